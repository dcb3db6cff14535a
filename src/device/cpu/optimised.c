/* The ops of a CPU on threads: each cuts its work into pieces and hands them to the kernels of an instruction
 * set.
 *
 *  1. Pieces depend on shapes alone, never on the number of threads, and no two write the same element.
 *  2. Sums over tokens are taken piece by piece, then over pieces in ascending order (partial_sums).
 *  3. Exact sums, maxima and counts may be merged in any order: threads do so as they finish. */
#include "device/cpu/optimised.h"

#include <stdlib.h>

#include "base/rng.h"
#include "base/text.h"
#include "device/cpu/cpu.h"

enum {
    GRAIN = 16384, /* elements in a piece of an elementwise op */
    PARTS = 64,    /* pieces of a sum over tokens, at most */
};

/* for (first = 0; first < n; first += step), pieces on threads; a single piece stays on this one. */
#define PRAGMA(text) _Pragma(#text)
#define EACH_PIECE(d, first, n, step)                                                     \
    PRAGMA(omp parallel for num_threads((d)->threads) schedule(static) if ((n) > (step))) \
    for (int64_t first = 0; first < (n); first += (step))

static const Kernels *kernels_of(const Device *d) { return optimised_of(d)->kernels; }

static int64_t rows_for(int64_t row) { return max_i64(1, GRAIN / max_i64(1, row)); }

static void gemm(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
                 const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate) {
    gemm_run(optimised_of(d)->gemm, d, trans_a, trans_b, m, n, k, a, b, ab_type, c, c_type, ldc, accumulate);
}

static void embed_forward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *table,
                          void *out, Dtype c) {
    size_t row = (size_t)hidden * dtype_bytes(c);
    int64_t step = rows_for(hidden);
    EACH_PIECE(d, first, tokens, step) {
        for (int64_t t = first; t < min_i64(tokens, first + step); t++)
            memcpy(tensor_to(out, t * hidden, c), tensor_at(table, ids[t] * hidden, c), row);
    }
}

/* Pieces are columns: each row of the table is added to in the order of the tokens. */
static void embed_backward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *dout,
                           float *dtable, Dtype c) {
    enum { COLUMNS = 128 };
    EACH_PIECE(d, first, hidden, COLUMNS)
    kernels_of(d)->embed_backward(tokens, hidden, first, min_i64(COLUMNS, hidden - first), ids, dout, dtable,
                                  c);
}

static void rmsnorm_forward(Device *d, int64_t tokens, int64_t hidden, float eps, const void *a,
                            const void *b, const float *w, void *sum, void *y, float *rstd, Dtype c) {
    int64_t step = rows_for(hidden);
    EACH_PIECE(d, first, tokens, step) {
        int64_t at = first * hidden;
        kernels_of(d)->rmsnorm_forward(min_i64(step, tokens - first), hidden, eps, tensor_at(a, at, c),
                                       b ? tensor_at(b, at, c) : NULL, w, sum ? tensor_to(sum, at, c) : NULL,
                                       y ? tensor_to(y, at, c) : NULL, rstd + first, c);
    }
}

/* ---- sums over tokens ---- */

static int64_t part_rows(int64_t tokens) { return max_i64(16, (tokens + PARTS - 1) / PARTS); }

/* Partial sums [parts][n] of the pieces of part_rows tokens, zeroed; NULL when there is one piece: it may add
 * to the result. */
static float *partial_sums(Device *d, int64_t tokens, int64_t n) {
    int64_t parts = (tokens + part_rows(tokens) - 1) / part_rows(tokens);
    if (parts == 1) return NULL;
    size_t bytes = (size_t)(parts * n) * sizeof(float);
    CHECK(d->scratch_size >= bytes);
    float *partial = (float *)(void *)d->scratch;
    EACH_PIECE(d, p, parts, 1) memset(partial + p * n, 0, (size_t)n * sizeof(float));
    return partial;
}

static void add_partial_sums(Device *d, int64_t tokens, int64_t n, const float *partial, float *sum) {
    enum { COLUMNS = 256 };
    int64_t parts = (tokens + part_rows(tokens) - 1) / part_rows(tokens);
    EACH_PIECE(d, first, n, COLUMNS) {
        int64_t count = min_i64(COLUMNS, n - first);
        for (int64_t p = 0; p < parts; p++)
            kernels_of(d)->add(count, sum + first, partial + p * n + first, sum + first, DTYPE_F32);
    }
}

static void rmsnorm_backward(Device *d, int64_t tokens, int64_t hidden, const void *x, const float *w,
                             const float *rstd, const void *dy, void *dx, bool add, float *dw, Dtype c) {
    int64_t step = part_rows(tokens);
    float *partial = dw ? partial_sums(d, tokens, hidden) : NULL;
    EACH_PIECE(d, first, tokens, step) {
        int64_t at = first * hidden;
        kernels_of(d)->rmsnorm_backward(min_i64(step, tokens - first), hidden, tensor_at(x, at, c), w,
                                        rstd + first, tensor_at(dy, at, c), tensor_to(dx, at, c), add,
                                        partial ? partial + first / step * hidden : dw, c);
    }
    if (partial) add_partial_sums(d, tokens, hidden, partial, dw);
}

static void bias_backward(Device *d, int64_t tokens, int64_t n, const void *dy, float *db, Dtype c) {
    int64_t step = part_rows(tokens);
    float *partial = partial_sums(d, tokens, n);
    EACH_PIECE(d, first, tokens, step)
    kernels_of(d)->bias_backward(min_i64(step, tokens - first), n, tensor_at(dy, first * n, c),
                                 partial ? partial + first / step * n : db, c);
    if (partial) add_partial_sums(d, tokens, n, partial, db);
}

/* ---- rows and elements ---- */

static void bias_forward(Device *d, int64_t tokens, int64_t n, void *y, const float *bias, Dtype c) {
    int64_t step = rows_for(n);
    EACH_PIECE(d, first, tokens, step)
    kernels_of(d)->bias_forward(min_i64(step, tokens - first), n, tensor_to(y, first * n, c), bias, c);
}

static void rope(Device *d, AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                 bool inverse, Dtype c) {
    int64_t row = (s.heads + 2 * s.kv_heads) * s.head_dim, step = rows_for(row);
    EACH_PIECE(d, first, s.tokens, step) {
        AttentionShape part = s;
        part.tokens = min_i64(step, s.tokens - first);
        kernels_of(d)->rope(part, tensor_to(qkv, first * row, c), positions + first, cos_sin, inverse, c);
    }
}

static void swiglu_forward(Device *d, int64_t tokens, int64_t inter, const void *gate_up, void *act,
                           Dtype c) {
    int64_t step = rows_for(inter);
    EACH_PIECE(d, first, tokens, step)
    kernels_of(d)->swiglu_forward(min_i64(step, tokens - first), inter,
                                  tensor_at(gate_up, first * 2 * inter, c), tensor_to(act, first * inter, c),
                                  c);
}

static void swiglu_backward(Device *d, int64_t tokens, int64_t inter, const void *gate_up, const void *dact,
                            void *dgate_up, void *act, Dtype c) {
    int64_t step = rows_for(inter);
    EACH_PIECE(d, first, tokens, step) {
        int64_t wide = first * 2 * inter, at = first * inter;
        kernels_of(d)->swiglu_backward(min_i64(step, tokens - first), inter, tensor_at(gate_up, wide, c),
                                       tensor_at(dact, at, c), tensor_to(dgate_up, wide, c),
                                       tensor_to(act, at, c), c);
    }
}

static void add(Device *d, int64_t n, const void *a, const void *b, void *out, Dtype c) {
    EACH_PIECE(d, first, n, GRAIN)
    kernels_of(d)->add(min_i64(GRAIN, n - first), tensor_at(a, first, c), tensor_at(b, first, c),
                       tensor_to(out, first, c), c);
}

/* ---- sums of parts ---- */

enum {
    PARTS_PIECE = 2048
}; /* elements of the sums that wait on the way up the tree, one block for each level */

/* The sum of a block of parts at elements first .. first+n-1: where it stands already, or in `room`, which
 * holds a block for this level and each below. */
static const float *tree_sum(const Device *d, int64_t first, int64_t n, int parts, const float *const *in,
                             float *room) {
    if (parts == 1) return in[0] + first;
    int half = tree_split(parts);
    const float *a = tree_sum(d, first, n, half, in, room);
    const float *b = tree_sum(d, first, n, parts - half, in + half, room + PARTS_PIECE);
    kernels_of(d)->add(n, a, b, room, DTYPE_F32);
    return room;
}

static void sum_parts(Device *d, int64_t n, int parts, const float *const *in, float *out) {
    EACH_PIECE(d, first, n, PARTS_PIECE) {
        float room[32 * PARTS_PIECE]; /* as many levels as an int has bits */
        int64_t count = min_i64(PARTS_PIECE, n - first);
        int half = parts > 1 ? tree_split(parts) : 1;
        const float *a = tree_sum(d, first, count, half, in, room);
        if (parts == 1) {
            memmove(out + first, a, (size_t)count * sizeof *out);
        } else {
            const float *b = tree_sum(d, first, count, parts - half, in + half, room + PARTS_PIECE);
            kernels_of(d)->add(count, a, b, out + first, DTYPE_F32);
        }
    }
}

static void sum_parts_i64(Device *d, int64_t n, int parts, const int64_t *const *in, int64_t *out) {
    EACH_PIECE(d, first, n, PARTS_PIECE) {
        uint64_t sum[PARTS_PIECE];
        size_t count = (size_t)min_i64(PARTS_PIECE, n - first);
        memcpy(sum, in[0] + first, count * sizeof *sum);
        for (int p = 1; p < parts; p++)
            for (size_t i = 0; i < count; i++) sum[i] += (uint64_t)in[p][first + (int64_t)i];
        memcpy(out + first, sum, count * sizeof *sum);
    }
}

static void cross_entropy(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                          const int32_t *targets, const float *scale, float *loss, void *dlogits,
                          Dtype grad_type) {
    float factor = scale ? *scale : 0;
    EACH_PIECE(d, r, rows, 1)
    kernels_of(d)->cross_entropy(1, vocab, tensor_at(logits, r * vocab, logits_type), logits_type,
                                 targets + r, factor, loss + r,
                                 dlogits ? tensor_to(dlogits, r * vocab, grad_type) : NULL, grad_type);
}

static StateStore from_element(StateStore s, int64_t i) {
    s.first += i;
    return s;
}

static void adamw(Device *d, int64_t n, AdamW a, StateStore s, const OptimizerStep *step, float *param,
                  const float *grad, void *m, void *v, uint16_t *copy) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->adamw(min_i64(GRAIN, n - i), a, from_element(s, i), *step, param + i, grad + i,
                         tensor_to(m, i, s.type), tensor_to(v, i, s.type), copy ? copy + i : NULL);
}

static void sgd(Device *d, int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param,
                const float *grad, void *momentum, uint16_t *copy) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->sgd(min_i64(GRAIN, n - i), o, from_element(s, i), *step, param + i, grad + i,
                       momentum ? tensor_to(momentum, i, s.type) : NULL, copy ? copy + i : NULL);
}

/* Exact, so threads may merge what they have in any order. */
static void merge_stats(GradStats *into, const GradStats *from) {
    exact_merge(&into->sum, &from->sum);
    if (from->max > into->max) into->max = from->max;
    if (!into->nonfinite || (from->nonfinite && from->first_nonfinite < into->first_nonfinite))
        into->first_nonfinite = from->first_nonfinite;
    into->nonfinite += from->nonfinite;
}

static void grad_stats(Device *d, int64_t n, const float *g, double p, const double *unit, GradStats *out) {
    GradStats all = {.first_nonfinite = -1};
#pragma omp parallel num_threads(d->threads) if (n > STATS_PIECE)
    {
        GradStats mine = {.first_nonfinite = -1};
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i += STATS_PIECE)
            kernels_of(d)->grad_stats(i, min_i64(STATS_PIECE, n - i), g, p, *unit, &mine);
#pragma omp critical(merge_stats)
        merge_stats(&all, &mine);
    }
    exact_normalise(&all.sum);
    *out = all;
}

static void fixed_add(Device *d, int64_t n, const float *g, int64_t *acc, bool set, double limit,
                      FixedRefusals *refused) {
    CHECK(limit <= fixed_limit(1));
    FixedRefusals all = {0};
    EACH_PIECE(d, i, n, GRAIN) {
        FixedRefusals piece = {0};
        kernels_of(d)->fixed_add(i, min_i64(GRAIN, n - i), g, acc, set, limit, &piece);
        if (piece.count) {
#pragma omp critical(merge_refusals)
            {
                if (!all.count || piece.first < all.first) all.first = piece.first;
                all.count += piece.count;
            }
        }
    }
    if (refused->count == 0) refused->first = all.first;
    refused->count += all.count;
}

static void fixed_to_float(Device *d, int64_t n, const int64_t *acc, float *out) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->fixed_to_float(min_i64(GRAIN, n - i), acc + i, out + i);
}

static void cast(Device *d, int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->cast(min_i64(GRAIN, n - i), tensor_at(in, i, in_type), in_type,
                        tensor_to(out, i, out_type), out_type);
}

static void zero(Device *d, void *p, size_t bytes) {
    enum { STEP = 1 << 18 };
    EACH_PIECE(d, i, (int64_t)bytes, STEP)
    memset((char *)p + i, 0, (size_t)min_i64(STEP, (int64_t)bytes - i));
}

static void init_normal(Device *d, int64_t n, uint64_t key, uint64_t first, double mean, double std,
                        double lo, double hi, float *out) {
    enum { AT_A_TIME = 1024 };
    EACH_PIECE(d, i, n, AT_A_TIME) {
        double normal[AT_A_TIME];
        int64_t count = min_i64(AT_A_TIME, n - i);
        rng_normals(key, first + (uint64_t)i, count, lo, hi, normal);
        for (int64_t e = 0; e < count; e++) out[i + e] = (float)(mean + std * normal[e]);
    }
}

static void fill(Device *d, int64_t n, float value, float *out) {
    EACH_PIECE(d, i, n, GRAIN) {
        for (int64_t e = i; e < min_i64(n, i + GRAIN); e++) out[e] = value;
    }
}

size_t optimised_scratch_bytes(const Device *d, const DeviceNeeds *needs) {
    AttentionShape s = needs->attention;
    int64_t qkv = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
    size_t widest = (size_t)max_i64(max_i64(needs->hidden, 2 * needs->intermediate), qkv);
    size_t largest = PARTS * widest * sizeof(float);
    size_t product = gemm_scratch_bytes(d->native_bf16, needs->compute),
           attention = optimised_attention_scratch(d, s);
    if (product > largest) largest = product;
    return attention > largest ? attention : largest;
}

ErrorCode optimised_open(Device *d, const Kernels *kernels, Error *err) {
    Optimised *o = mem_alloc(sizeof *o);
    o->kernels = kernels;
    d->impl = o;
    d->ops.gemm = gemm;
    d->ops.embed_forward = embed_forward;
    d->ops.embed_backward = embed_backward;
    d->ops.rmsnorm_forward = rmsnorm_forward;
    d->ops.rmsnorm_backward = rmsnorm_backward;
    d->ops.rope = rope;
    d->ops.bias_forward = bias_forward;
    d->ops.bias_backward = bias_backward;
    d->ops.attention_forward = optimised_attention_forward;
    d->ops.attention_backward = optimised_attention_backward;
    d->ops.attention_decode = optimised_attention_decode;
    d->ops.swiglu_forward = swiglu_forward;
    d->ops.swiglu_backward = swiglu_backward;
    d->ops.add = add;
    d->ops.sum_parts = sum_parts;
    d->ops.sum_parts_i64 = sum_parts_i64;
    d->ops.cross_entropy = cross_entropy;
    d->ops.adamw = adamw;
    d->ops.sgd = sgd;
    d->ops.grad_stats = grad_stats;
    d->ops.fixed_add = fixed_add;
    d->ops.fixed_to_float = fixed_to_float;
    d->ops.cast = cast;
    d->ops.zero = zero;
    d->ops.init_normal = init_normal;
    d->ops.fill = fill;
    d->ops.scratch_bytes = optimised_scratch_bytes;
    return gemm_open(&o->gemm, d->native_bf16, d->threads, err);
}

void optimised_close(Device *d) {
    if (!d->impl) return;
    gemm_close(optimised_of(d)->gemm);
    free(d->impl);
    d->impl = NULL;
}
