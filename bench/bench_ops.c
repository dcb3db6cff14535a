/* Speed of each op at the shapes of a model: GFLOP/s of ops with products, as a fraction of the
 * matrix-product peak and of the register limit, and GB/s of memory-bound ops, as a fraction of the copy
 * speed, measured in the same run.
 *
 *     bench_ops [KIND [THREADS [fp32|bf16 [TOKENS [SHRINK]]]]]
 *
 * KIND: cuda, or a CPU kind. SHRINK divides the widths of 125M by 1, 2 or 4; above 1 each op runs only twice,
 * to check that it works. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/ops/ops.h"
#include "device/pool.h"

enum { DIM = 64, SPLITS = 8 };

/* Small arguments and results of ops, in tensor memory. */
typedef struct Figures {
    OptimizerStep step;
    double unit;
    float scale;
    GradStats stats;
    FixedRefusals refused;
} Figures;

typedef struct Bench {
    Device d;
    Dtype c;
    int64_t t, hidden, inter, vocab, rows;
    int heads;
    double seconds; /* of measuring, for each op */
    Pool pool;
    char *x, *y, *z;      /* activations, of the widest size */
    float *w, *g, *m, *v; /* fp32 parameters, gradients, moments */
    Dtype states;         /* dtype of the moments */
    int64_t *fixed;       /* gradients in fixed point */
    float *logits, *loss, *lse, *angles;
    int32_t *ids, *positions, *first;
    Figures *figures;
    double peak, limit, copy;
} Bench;

static AttentionShape shape(const Bench *b) {
    return (AttentionShape){.tokens = b->t, .heads = b->heads, .kv_heads = b->heads, .head_dim = DIM};
}

static void layout(Bench *b) {
    size_t wide = (size_t)b->t * 2 * b->inter * dtype_bytes(b->c), table = (size_t)b->vocab * b->hidden * 4;
    size_t logits = (size_t)(b->rows * b->vocab) * dtype_bytes(b->c);
    if (wide < table) wide = table;
    if (wide < logits) wide = logits;
    b->x = pool_take(&b->pool, wide);
    b->y = pool_take(&b->pool, wide);
    b->z = pool_take(&b->pool, wide);
    b->w = pool_take(&b->pool, table);
    b->g = pool_take(&b->pool, table);
    b->m = pool_take(&b->pool, table);
    b->v = pool_take(&b->pool, table);
    b->fixed = pool_take(&b->pool, 2 * table);
    b->logits = pool_take(&b->pool, (size_t)b->rows * b->vocab * 4);
    b->loss = pool_take(&b->pool, (size_t)b->t * 4);
    b->lse = pool_take(&b->pool, (size_t)b->t * b->heads * 4);
    b->angles = pool_take(&b->pool, (size_t)b->t * DIM * 4);
    b->ids = pool_take(&b->pool, (size_t)b->t * 4);
    b->positions = pool_take(&b->pool, (size_t)b->t * 4);
    b->first = pool_take(&b->pool, (size_t)b->t * 4);
    b->figures = pool_take(&b->pool, sizeof *b->figures);
    DeviceNeeds needs = {.compute = b->c,
                         .tokens = b->t,
                         .hidden = b->hidden,
                         .intermediate = b->inter,
                         .vocab = b->vocab,
                         .logits_rows = b->rows,
                         .attention = shape(b),
                         .splits = SPLITS};
    b->d.scratch_size = b->d.runtime.scratch_bytes(&b->d, &needs);
    b->d.scratch = pool_take(&b->pool, b->d.scratch_size);
}

/* A table of normal numbers, which depend on the seed. */
static void fill_normal(Bench *b, float *table, uint64_t seed) {
    Device *d = &b->d;
    OP(d, init_normal, .n = b->vocab * b->hidden, .key = seed, .std = 0.5, .lo = -3, .hi = 3, .out = table);
}

static void fill_tensors(Bench *b) {
    Device *d = &b->d;
    int64_t n = b->vocab * b->hidden;
    float *all[] = {b->w, b->g, b->m, b->v};
    for (int i = 0; i < 4; i++) fill_normal(b, all[i], (uint64_t)i);
    OP(d, init_normal, .n = b->rows * b->vocab, .key = 9, .std = 2, .lo = -3, .hi = 3, .out = b->logits);
    int64_t wide = b->t * 2 * b->inter < n ? b->t * 2 * b->inter : n;
    OP(d, cast, wide, b->w, DTYPE_F32, b->x, b->c);
    OP(d, cast, wide, b->g, DTYPE_F32, b->y, b->c);
    int32_t *ids = calloc((size_t)b->t, 4), *positions = calloc((size_t)b->t, 4);
    float *angles = calloc((size_t)b->t * DIM, 4);
    if (!ids || !positions || !angles) abort();
    for (int64_t i = 0; i < b->t; i++) {
        ids[i] = (int32_t)(i * 7919 % b->vocab);
        positions[i] = (int32_t)i;
        for (int64_t j = 0; j < DIM; j++)
            angles[i * DIM + j] = j < DIM / 2 ? cosf((float)(i * j)) : sinf((float)(i * j));
    }
    Figures figures = {
        .step = {.lr = 1e-4f, .correction1 = 0.5f, .correction2 = 0.5f, .grad_scale = 1, .number = 1},
        .unit = 1,
        .scale = 1e-3f};
    OP(d, upload, b->figures, &figures, sizeof figures);
    OP(d, upload, b->ids, ids, (size_t)b->t * 4);
    OP(d, upload, b->positions, positions, (size_t)b->t * 4);
    OP(d, upload, b->angles, angles, (size_t)b->t * DIM * 4);
    free(ids);
    free(positions);
    free(angles);
}

/* ---- measured ops ---- */

static void product(Bench *b, bool ta, bool tb, int64_t m, int64_t n, int64_t k, bool weight) {
    Device *d = &b->d;
    OP(d, gemm, .trans_a = ta, .trans_b = tb, .m = m, .n = n, .k = k, .a = b->x, .b = b->y, .ab_type = b->c,
       .c = weight ? (void *)b->w : b->z, .c_type = weight ? DTYPE_F32 : b->c, .ldc = n,
       .accumulate = weight);
}
static void qkv(Bench *b) { product(b, false, true, b->t, 3 * b->hidden, b->hidden, false); }
static void qkv_dx(Bench *b) { product(b, false, false, b->t, b->hidden, 3 * b->hidden, false); }
static void qkv_dw(Bench *b) { product(b, true, false, 3 * b->hidden, b->hidden, b->t, true); }
static void output(Bench *b) { product(b, false, true, b->t, b->hidden, b->hidden, false); }
static void output_dw(Bench *b) { product(b, true, false, b->hidden, b->hidden, b->t, true); }
static void gate_up(Bench *b) { product(b, false, true, b->t, 2 * b->inter, b->hidden, false); }
static void gate_up_dx(Bench *b) { product(b, false, false, b->t, b->hidden, 2 * b->inter, false); }
static void gate_up_dw(Bench *b) { product(b, true, false, 2 * b->inter, b->hidden, b->t, true); }
static void down(Bench *b) { product(b, false, true, b->t, b->hidden, b->inter, false); }
static void down_dx(Bench *b) { product(b, false, false, b->t, b->inter, b->hidden, false); }
static void down_dw(Bench *b) { product(b, true, false, b->hidden, b->inter, b->t, true); }
static void head_rows(Bench *b, int64_t rows) {
    Device *d = &b->d;
    OP(d, gemm, .trans_b = true, .m = rows, .n = b->vocab, .k = b->hidden, .a = b->x, .b = b->y,
       .ab_type = b->c, .c = b->logits, .c_type = DTYPE_F32, .ldc = b->vocab);
}
static void head(Bench *b) { head_rows(b, b->rows); }
/* Decoding: the time is that of reading the weights. */
static void head_1(Bench *b) { head_rows(b, 1); }
static void head_8(Bench *b) { head_rows(b, 8); }
static void head_dx(Bench *b) { product(b, false, false, b->rows, b->hidden, b->vocab, false); }
static void head_dw(Bench *b) { product(b, true, false, b->vocab, b->hidden, b->rows, true); }

/* The cost of splits on one rank: sums over the inner dimension as eight ranks would share them. */
static void split_product(Bench *b, bool tb, int64_t n, KSplit l) {
    Device *d = &b->d;
    int64_t k = l.run[0].length + l.run[1].length + l.run[2].length;
    OP(d, gemm, .trans_b = tb, .m = b->t, .n = n, .k = k, .a = b->x, .b = b->y, .ab_type = b->c, .c = b->z,
       .c_type = b->c, .ldc = n, .splits = l);
}
static void output_splits(Bench *b) {
    split_product(b, true, b->hidden, (KSplit){1, {{b->hidden, b->hidden / SPLITS, 0}}});
}
static void down_splits(Bench *b) {
    split_product(b, true, b->hidden, (KSplit){1, {{b->inter, b->inter / SPLITS, 0}}});
}
static void gate_up_dx_splits(Bench *b) {
    split_product(b, false, b->hidden,
                  (KSplit){2, {{b->inter, b->inter / SPLITS, 0}, {b->inter, b->inter / SPLITS, 0}}});
}

/* The keys of a row follow its queries. */
static void *keys_of(const Bench *b, void *qkv) {
    AttentionShape s = shape(b);
    return (char *)qkv + (size_t)(s.heads * s.head_dim) * dtype_bytes(b->c);
}

static void attend(Bench *b) {
    Device *d = &b->d;
    AttentionShape s = shape(b);
    OP(d, attention_forward, .s = s, .r = attention_whole(s), .q = b->x, .kv = keys_of(b, b->x),
       .first_key = b->first, .out = b->z, .lse = b->lse, .c = b->c);
}
static void attend_back(Bench *b) {
    Device *d = &b->d;
    char *grad = b->z + (size_t)b->t * b->hidden * dtype_bytes(b->c);
    AttentionShape s = shape(b);
    OP(d, attention_backward, .s = s, .r = attention_whole(s), .q = b->x, .kv = keys_of(b, b->x),
       .first_key = b->first, .out = b->z, .lse = b->lse, .dout = b->y, .dq = grad, .dkv = keys_of(b, grad),
       .c = b->c);
}
static void rms(Bench *b) {
    Device *d = &b->d;
    OP(d, norm_forward, .kind = NORM_RMS, .tokens = b->t, .hidden = b->hidden, .eps = 1e-5f, .a = b->x,
       .b = b->y, .w = b->w, .sum = b->z, .y = b->y, .rstd = b->loss, .c = b->c);
}
static void rms_back(Bench *b) {
    Device *d = &b->d;
    OP(d, norm_backward, .kind = NORM_RMS, .tokens = b->t, .hidden = b->hidden, .x = b->x, .w = b->w,
       .rstd = b->loss, .dy = b->y, .dx = b->z, .add = true, .dw = b->g, .split_size = b->t, .c = b->c);
}
static void rope(Bench *b) {
    Device *d = &b->d;
    OP(d, rope, .s = shape(b), .qkv = b->y, .positions = b->positions, .cos_sin = b->angles, .c = b->c);
}
static void glu(Bench *b) {
    Device *d = &b->d;
    OP(d, activation_forward, .f = ACT_SILU, .gated = true, .tokens = b->t, .inter = b->inter, .x = b->x,
       .act = b->z, .c = b->c);
}
static void glu_back(Bench *b) {
    Device *d = &b->d;
    OP(d, activation_backward, .f = ACT_SILU, .gated = true, .tokens = b->t, .inter = b->inter, .x = b->x,
       .dact = b->y, .dx = b->z, .act = b->y, .c = b->c);
}
static void add(Bench *b) {
    Device *d = &b->d;
    OP(d, add, b->t * b->hidden, b->x, b->y, b->z, b->c);
}
static void loss(Bench *b) {
    Device *d = &b->d;
    OP(d, cross_entropy, .rows = b->rows, .vocab = b->vocab, .logits = b->logits, .logits_type = DTYPE_F32,
       .targets = b->ids, .scale = &b->figures->scale, .loss = b->loss, .dlogits = b->z, .grad_type = b->c);
}
static void loss_splits(Bench *b) {
    Device *d = &b->d;
    OP(d, cross_entropy, .rows = b->rows, .vocab = b->vocab, .logits = b->logits, .logits_type = DTYPE_F32,
       .targets = b->ids, .splits = (VocabSplit){.split_size = b->vocab / SPLITS},
       .scale = &b->figures->scale, .loss = b->loss, .dlogits = b->z, .grad_type = b->c);
}
static void embed(Bench *b) {
    Device *d = &b->d;
    OP(d, embed_forward, .tokens = b->t, .hidden = b->hidden, .ids = b->ids, .table = b->x, .rows = ALL_ROWS,
       .scale = 1, .out = b->z, .c = b->c);
}
static void embed_back(Bench *b) {
    Device *d = &b->d;
    OP(d, embed_backward, .tokens = b->t, .hidden = b->hidden, .ids = b->ids, .dout = b->x, .rows = ALL_ROWS,
       .scale = 1, .dtable = b->g, .c = b->c);
}
static void update(Bench *b) {
    Device *d = &b->d;
    AdamW a = {0.9f, 0.95f, 1e-8f, 0.1f};
    StateStore s = {.type = b->states, .key = 1};
    OP(d, adamw, .n = b->vocab * b->hidden, .constants = a, .s = s, .step = &b->figures->step, .param = b->w,
       .grad = b->g, .m = b->m, .v = b->v, .copy = b->c == DTYPE_BF16 ? (uint16_t *)(void *)b->z : NULL);
}
static void update_half(Bench *b) {
    b->states = DTYPE_BF16;
    update(b);
    b->states = DTYPE_F32;
}
static void update_sgd(Bench *b) {
    Device *d = &b->d;
    Sgd o = {.momentum = 0.9f};
    OP(d, sgd, .n = b->vocab * b->hidden, .constants = o, .s = (StateStore){0}, .step = &b->figures->step,
       .param = b->w, .grad = b->g, .momentum = b->m,
       .copy = b->c == DTYPE_BF16 ? (uint16_t *)(void *)b->z : NULL);
}
static void norm(Bench *b) {
    Device *d = &b->d;
    OP(d, grad_stats, .n = b->vocab * b->hidden, .g = b->g, .p = 2, .unit = &b->figures->unit,
       .out = &b->figures->stats);
}
/* Makes one element in four thousand far smaller than the others, so that every piece of the sum needs a
 * second pass. */
static void widen(Bench *b) {
    Device *d = &b->d;
    for (int64_t i = 0; i < b->vocab * b->hidden; i += 4096) OP(d, fill, 1, 1e-30f, b->g + i);
}
static void add_fixed(Bench *b) {
    Device *d = &b->d;
    OP(d, fixed_add, .n = b->vocab * b->hidden, .g = b->g, .acc = b->fixed, .limit = fixed_limit(64),
       .refused = &b->figures->refused);
}
static void from_fixed(Bench *b) {
    Device *d = &b->d;
    OP(d, fixed_to_float, b->vocab * b->hidden, b->fixed, b->g);
}
static void sum_four(Bench *b) {
    Device *d = &b->d;
    const float *const parts[] = {b->w, b->g, b->m, b->v};
    OP(d, sum_partials, b->vocab * b->hidden, 4, parts, b->w);
}
static void sum_four_i64(Bench *b) {
    Device *d = &b->d;
    const int64_t *const parts[] = {b->fixed, b->fixed, b->fixed, b->fixed};
    OP(d, sum_partials_i64, b->vocab * b->hidden, 4, parts, b->fixed);
}
static void clear(Bench *b) {
    Device *d = &b->d;
    OP(d, zero, b->g, (size_t)b->vocab * b->hidden * 4);
}
static void round_weights(Bench *b) {
    Device *d = &b->d;
    OP(d, cast, b->vocab * b->hidden, b->w, DTYPE_F32, b->z, DTYPE_BF16);
}
static void copy(Bench *b) {
    Device *d = &b->d;
    OP(d, cast, b->vocab * b->hidden, b->w, DTYPE_F32, b->z, DTYPE_F32);
}

static double time_of(Bench *b, void (*run)(Bench *), int calls) {
    double start = clock_seconds();
    for (int i = 0; i < calls; i++) run(b);
    device_finish(&b->d, device_mark(&b->d, device_stream()), WAIT_RESULT);
    return (clock_seconds() - start) / calls;
}

/* Best time of a call, within about a third of a second. On a GPU the host waits once for several calls that
 * together take some milliseconds, because an op ends before the host returns from a wait. */
static double best_time(Bench *b, void (*run)(Bench *)) {
    double best = HUGE_VAL, end;
    int calls = 1;
    time_of(b, run, 1);
    end = clock_seconds() + b->seconds;
    do {
        double took = time_of(b, run, calls);
        if (took < best) best = took;
        if (b->d.separate_memory && took * calls < 2e-3 && calls < 256) calls *= 2;
    } while (clock_seconds() < end);
    return best;
}

static void flops(Bench *b, const char *name, void (*run)(Bench *), double operations) {
    double seconds = best_time(b, run), rate = operations / seconds;
    printf("%-20s %9.3f ms %8.1f GFLOP/s  %5.1f%% of the product peak", name, seconds * 1e3, rate / 1e9,
           100 * rate / b->peak);
    if (b->limit > 0) printf(", %5.1f%% of the cores' limit", 100 * rate / b->limit);
    printf("\n");
}

static void bytes(Bench *b, const char *name, void (*run)(Bench *), double moved) {
    double seconds = best_time(b, run), rate = moved / seconds;
    printf("%-20s %9.3f ms %8.1f GB/s     %5.1f%% of the copy speed\n", name, seconds * 1e3, rate / 1e9,
           100 * rate / b->copy);
}

static void products(Bench *b) {
    double hidden = (double)b->hidden, inter = (double)b->inter, t = 2.0 * (double)b->t * hidden,
           head_flops = 2.0 * (double)b->rows * hidden * (double)b->vocab;
    flops(b, "qkv", qkv, t * 3 * hidden);
    flops(b, "qkv dX", qkv_dx, t * 3 * hidden);
    flops(b, "qkv dW", qkv_dw, t * 3 * hidden);
    flops(b, "output, dX", output, t * hidden);
    flops(b, "output dW", output_dw, t * hidden);
    flops(b, "gate+up", gate_up, t * 2 * inter);
    flops(b, "gate+up dX", gate_up_dx, t * 2 * inter);
    flops(b, "gate+up dW", gate_up_dw, t * 2 * inter);
    flops(b, "down", down, t * inter);
    flops(b, "down dX", down_dx, t * inter);
    flops(b, "down dW", down_dw, t * inter);
    flops(b, "output, 8 splits", output_splits, t * hidden);
    flops(b, "gate+up dX, 8 splits", gate_up_dx_splits, t * 2 * inter);
    flops(b, "down, 8 splits", down_splits, t * inter);
    flops(b, "head", head, head_flops);
    flops(b, "head dX", head_dx, head_flops);
    flops(b, "head dW", head_dw, head_flops);
    /* Causal: half of the pairs. */
    flops(b, "attention", attend, t * (double)(b->t + 1) * 1);
    flops(b, "attention gradient", attend_back, t * (double)(b->t + 1) * 2.5);
}

static void passes(Bench *b) {
    double hidden = (double)b->hidden, inter = (double)b->inter, vocab = (double)b->vocab,
           rows = (double)b->rows, t = (double)b->t, e = (double)dtype_bytes(b->c), table = vocab * hidden;
    bytes(b, "rmsnorm (+add)", rms, t * hidden * e * 4);
    bytes(b, "rmsnorm gradient", rms_back, t * hidden * e * 4);
    bytes(b, "rope", rope, t * 2 * hidden * e * 2);
    bytes(b, "swiglu", glu, t * inter * e * 3);
    bytes(b, "swiglu gradient", glu_back, t * inter * e * 6);
    bytes(b, "add", add, t * hidden * e * 3);
    bytes(b, "cross-entropy", loss, rows * vocab * (4 + e));
    bytes(b, "loss, 8 splits", loss_splits, rows * vocab * (4 + e));
    bytes(b, "head, 1 row", head_1, table * e);
    bytes(b, "head, 8 rows", head_8, table * e);
    bytes(b, "embedding", embed, t * hidden * e * 2);
    bytes(b, "embedding gradient", embed_back, t * hidden * (e + 8));
    bytes(b, "adamw", update, table * (28 + (b->c == DTYPE_BF16 ? 2 : 0)));
    bytes(b, "adamw, bf16 moments", update_half, table * (20 + (b->c == DTYPE_BF16 ? 2 : 0)));
    bytes(b, "sgd with momentum", update_sgd, table * (20 + (b->c == DTYPE_BF16 ? 2 : 0)));
    fill_normal(b, b->g, 1); /* the embedding's accumulated gradient exceeds fixed point */
    bytes(b, "gradient norm", norm, table * 4);
    bytes(b, "add fixed-point", add_fixed, table * 20);
    bytes(b, "from fixed-point", from_fixed, table * 12);
    bytes(b, "sum of 4 parts", sum_four, table * 20);
    bytes(b, "of whole numbers", sum_four_i64, table * 24);
    widen(b);
    bytes(b, "gradient norm, wide", norm, table * 4);
    bytes(b, "zero", clear, table * 4);
    bytes(b, "cast to bf16", round_weights, table * 6);
}

/* Sizes of 125M. As many rows of logits as a training run computes at a time. */
static void choose_sizes(Bench *b, int shrink) {
    b->hidden = 768 / shrink, b->heads = 12 / shrink, b->inter = 2048 / shrink;
    b->vocab = 32000 / (shrink * shrink);
    b->rows = (b->d.loss_rows ? b->d.loss_rows : 256) / (shrink * shrink * shrink);
    b->seconds = shrink == 1 ? 0.3 : 0;
}

int main(int argc, char **argv) {
    static Bench b;
    Error err;
    if (device_open(&b.d, argc > 1 ? argv[1] : "cpu", 0, argc > 2 ? atoi(argv[2]) : 0, &err) != OK) {
        fprintf(stderr, "%s\n", err.message);
        return err.code;
    }
    b.c = argc > 3 && strcmp(argv[3], "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    b.t = argc > 4 ? atoll(argv[4]) : 1024;
    int shrink = argc > 5 ? atoi(argv[5]) : 1;
    if (shrink != 1 && shrink != 2 && shrink != 4) shrink = 0;
    if (shrink) choose_sizes(&b, shrink);
    if (!shrink || b.t < b.rows || b.t > 1 << 20) {
        fprintf(stderr, "bench_ops: TOKENS must be %lld to %d, SHRINK 1, 2 or 4\n", (long long)b.rows,
                1 << 20);
        return ERR_USAGE;
    }
    b.pool.name = "bench";
    layout(&b);
    if (pool_commit(&b.pool, &b.d, &err) != OK) {
        fprintf(stderr, "%s\n", err.message);
        return err.code;
    }
    layout(&b);
    fill_tensors(&b);
    b.peak = device_matmul_peak(&b.d, b.c, shrink > 1 ? 0.01 : 2, INFINITY);
    b.limit = device_register_limit(&b.d, b.c, 0.5);
    if (b.limit <= 0 && !b.d.native_bf16) b.limit = device_register_limit(&b.d, DTYPE_F32, 0.5); /* widened */
    b.copy = (double)(b.vocab * b.hidden) * 8 / best_time(&b, copy);
    printf("%s on %s, %d threads, %s, %lld tokens: products %.1f GFLOP/s, limit %.1f (0: not known), copy "
           "%.1f GB/s\n",
           b.d.name, b.d.processor, b.d.threads, dtype_name(b.c), (long long)b.t, b.peak / 1e9, b.limit / 1e9,
           b.copy / 1e9);
    products(&b);
    passes(&b);
    pool_free(&b.pool);
    device_close(&b.d);
    return 0;
}
