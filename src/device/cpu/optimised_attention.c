/* Attention on threads: blocks of queries (forward) or keys (backward), a few at a time, longest first. */
#include <math.h>
#include <omp.h>

#include "base/error.h"
#include "device/cpu/cpu.h"
#include "device/cpu/optimised.h"

/* Blocks of 64. A block's scores (64 x 64 floats, 16 KiB) then stay in the L1 cache from one product through
 * the softmax to the next, and 64 queries are whole vectors of any vector length. */
static int64_t blocks_of(int64_t tokens) { return (tokens + FLASH_BLOCK - 1) / FLASH_BLOCK; }

/* Rows include all heads; the kernels find a head by its offset. */
static Flash flash_of(AttentionShape s, AttentionRun r, const void *q, const void *kv,
                      const int32_t *first_key, Dtype c) {
    CHECK(s.head_dim <= HEAD_DIM_MAX);
    return (Flash){.s = s,
                   .c = c,
                   .q = q,
                   .k = kv,
                   .v = tensor_at(kv, (int64_t)s.kv_heads * s.head_dim, c),
                   .q_row = r.q_row,
                   .kv_row = r.kv_row,
                   .offset = r.first,
                   .keys = r.keys,
                   .first_key = first_key + r.first};
}

/* Query-key pairs in the strips that are computed, over all heads, for the profile. */
static double visited_pairs(const Flash *f) {
    int64_t pairs = 0;
    for (int64_t first = 0; first < f->s.tokens; first += FLASH_STRIP) {
        int64_t count = min_i64(FLASH_STRIP, f->s.tokens - first);
        pairs += count * (f->offset + first + count - flash_first(f, first));
    }
    return (double)pairs * f->s.heads;
}

static void count_flops(Device *d, OpId op, const Flash *f, double products) {
    if (d->profiling) d->profile[op].flops += products * 2.0 * visited_pairs(f) * f->s.head_dim;
}

/* ---- scratch: one area per thread, then shared areas ---- */

typedef struct Areas {
    size_t thread;                  /* floats of one thread */
    size_t delta, dq_sum, progress; /* first byte of each */
    size_t bytes;
} Areas;

/* Rounds up to whole cache lines, so that no two threads write to the same one. */
static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Depends on shapes and the number of threads alone, so that a plan can ask for another machine's. dq_sum is
 * fp32, padded to whole vectors: key blocks add to it one after another, and rounding to bf16 in between
 * would make dq worse with every block. */
static Areas areas_of(const Device *d, AttentionShape s) {
    Areas a = {.thread = aligned((size_t)flash_scratch(s.head_dim) * sizeof(float)) / sizeof(float)};
    size_t rows = (size_t)s.tokens * (size_t)s.heads;
    a.delta = (size_t)d->threads * a.thread * sizeof(float);
    a.dq_sum = aligned(a.delta + rows * sizeof(float));
    a.progress = aligned(a.dq_sum + rows * (size_t)flash_padded(s.head_dim) * sizeof(float));
    a.bytes = aligned(a.progress + (size_t)blocks_of(s.tokens) * (size_t)s.heads * sizeof(atomic_int));
    return a;
}

size_t optimised_attention_scratch(const Device *d, AttentionShape s) { return areas_of(d, s).bytes; }

/* By the thread's number in its team, which has at most d->threads. */
static float *thread_area(const Device *d, const Areas *a) {
    return (float *)(void *)d->scratch + (size_t)omp_get_thread_num() * a->thread;
}

/* ---- forward ---- */

/* As many as flash_units allows, but each thread should have a few tasks, because they differ in length. */
static int64_t blocks_together(const Device *d, const Flash *f, int64_t blocks) {
    int64_t share = blocks / (4 * d->threads);
    return max_i64(1, min_i64(share, flash_units(f->s.head_dim)));
}

/* The last blocks of queries see the most keys, so they start first, and threads end at about the same time.
 * Blocks vary fastest, so a head's keys and values stay in the L2 cache. */
static void run_forward(Device *d, const Flash *f) {
    const Kernels *kernels = optimised_of(d)->kernels;
    Areas areas = areas_of(d, f->s);
    CHECK(d->scratch_size >= areas.delta);
    int64_t kv_heads = f->s.kv_heads, blocks = blocks_of(f->s.tokens) * (f->s.heads / kv_heads);
    int64_t step = blocks_together(d, f, blocks * kv_heads), each = splits_of(blocks, step),
            tasks = each * kv_heads;
#pragma omp parallel for num_threads(d->threads) schedule(dynamic, 1) if (tasks > 1)
    for (int64_t t = 0; t < tasks; t++) {
        int64_t first = (each - 1 - t % each) * step;
        kernels->flash_forward(f, t / each, first, min_i64(step, blocks - first), thread_area(d, &areas));
    }
}

/* FLOPs of two products, q k and p v. Backward has five: q k again, do v, and those of dq, dk and dv. */
static void attention_forward(Device *d, const AttentionForwardArgs *o) {
    Flash f = flash_of(o->s, o->r, o->q, o->kv, o->first_key, o->c);
    f.out = o->out;
    f.lse = o->lse;
    count_flops(d, OP_ATTENTION_FORWARD, &f, 2);
    run_forward(d, &f);
}

/* A prompt is processed as in training, by blocks of queries. A few tokens are processed query by query, on
 * one thread as long as the cache is so short that waking others would take longer. */
static void attention_decode(Device *d, const AttentionDecodeArgs *o) {
    enum { FEW = 8 }; /* queries; too few to fill the lanes of a block */
    CHECK(o->s.head_dim <= HEAD_DIM_MAX);
    Flash f = {.s = o->s,
               .c = o->c,
               .q = o->qkv,
               .k = o->k_cache,
               .v = o->v_cache,
               .q_row = (o->s.heads + 2 * (int64_t)o->s.kv_heads) * o->s.head_dim,
               .kv_row = (int64_t)o->s.kv_heads * o->s.head_dim,
               .offset = o->start,
               .keys = o->start + o->s.tokens,
               .out = o->out};
    count_flops(d, OP_ATTENTION_DECODE, &f, 2);
    if (o->s.tokens >= FEW) {
        run_forward(d, &f);
        return;
    }
    const Kernels *kernels = optimised_of(d)->kernels;
    int64_t tasks = o->s.tokens * o->s.heads;
#pragma omp parallel for num_threads(d->threads) schedule(static) if (tasks * o->start > 1024)
    for (int64_t t = 0; t < tasks; t++) kernels->flash_decode(&f, t % o->s.heads, t / o->s.heads);
}

/* ---- backward ---- */

/* delta depends only on out and dout, and every key block needs it, so it is computed once. The progress of a
 * query block starts at the first key block that it sees, since earlier ones never add to it. */
static void prepare_backward(Device *d, Flash *f, const Areas *a) {
    const Kernels *kernels = optimised_of(d)->kernels;
    f->delta = (float *)(void *)(d->scratch + a->delta);
    f->dq_sum = (float *)(void *)(d->scratch + a->dq_sum);
    f->progress = (atomic_int *)(void *)(d->scratch + a->progress);
    int64_t blocks = blocks_of(f->s.tokens), tasks = blocks * f->s.heads;
#pragma omp parallel for num_threads(d->threads) schedule(static) if (tasks > 1)
    for (int64_t t = 0; t < tasks; t++) {
        int64_t block = t % blocks;
        atomic_init(&f->progress[t], (int)(flash_first(f, block * FLASH_BLOCK) / FLASH_BLOCK));
        kernels->flash_delta(f, t / blocks, block);
    }
}

/* Tasks are taken in ascending order of key blocks, so a task waits only for tasks that were taken before
 * it. */
static void run_backward(Device *d, const Flash *f, const Areas *areas) {
    const Kernels *kernels = optimised_of(d)->kernels;
    int64_t kv_heads = f->s.kv_heads, blocks = blocks_of(f->keys);
    int64_t step = blocks_together(d, f, blocks * kv_heads), tasks = splits_of(blocks, step) * kv_heads;
    atomic_llong next = 0;
#pragma omp parallel num_threads(d->threads) if (tasks > 1)
    for (int64_t t = atomic_fetch_add(&next, 1); t < tasks; t = atomic_fetch_add(&next, 1)) {
        int64_t first = t / kv_heads * step;
        kernels->flash_backward(f, t % kv_heads, first, min_i64(step, blocks - first), thread_area(d, areas));
    }
}

static void attention_backward(Device *d, const AttentionBackwardArgs *o) {
    Flash f = flash_of(o->s, o->r, o->q, o->kv, o->first_key, o->c);
    int64_t width = (int64_t)o->s.kv_heads * o->s.head_dim;
    f.kept = o->out;
    f.kept_lse = o->lse;
    f.dout = o->dout;
    f.dq = o->dq;
    f.dkv_type = o->r.partial ? DTYPE_F32 : o->c;
    f.dkv_row = o->r.partial ? 2 * width : o->r.kv_row;
    f.dk = o->dkv;
    f.dv = tensor_to(o->dkv, width, f.dkv_type);
    Areas areas = areas_of(d, o->s);
    CHECK(d->scratch_size >= areas.bytes);
    count_flops(d, OP_ATTENTION_BACKWARD, &f, 5);
    prepare_backward(d, &f, &areas);
    run_backward(d, &f, &areas);
}

/* ---- sinks ---- */

/* A head is summed by one thread, so that its sum has one order. A pass over two tensors, without
 * products. */
static double sink_gradient(AttentionShape s, int64_t head, const void *out, const float *lse,
                            const void *dout, Dtype c) {
    double sum = 0;
    for (int64_t t = 0; t < s.tokens; t++) {
        int64_t at = (t * s.heads + head) * s.head_dim;
        double delta = 0;
        for (int64_t i = at; i < at + s.head_dim; i++)
            delta += (double)tensor_get(out, i, c) * (double)tensor_get(dout, i, c);
        sum += exp((double)s.sinks[head] - (double)lse[head * s.tokens + t]) * delta;
    }
    return sum;
}

static void sinks_backward(Device *d, const SinksBackwardArgs *o) {
    EACH_PIECE(d, head, o->s.heads, 1)
    o->dsinks[head] -= (float)sink_gradient(o->s, head, o->out, o->lse, o->dout, o->c);
}

void optimised_fill_attention(Ops *ops) {
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->attention_decode = attention_decode;
    ops->sinks_backward = sinks_backward;
}
