/* Speed of each op at the shapes of a model: GFLOP/s of what multiplies, GB/s of what passes over memory, and
 * the share of the matrix-product peak and of what registers can do, or of the copy speed, of the same run.
 *
 *     bench_ops [KIND [THREADS [fp32|bf16 [TOKENS]]]] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/pool.h"

enum { HIDDEN = 768, HEADS = 12, DIM = 64, INTER = 2048, VOCAB = 32000, ROWS = 256, LEAVES = 8 };

/* What ops are told and what they find, in tensor memory. */
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
    int64_t t;
    Pool pool;
    char *x, *y, *z;      /* activations, the widest */
    float *w, *g, *m, *v; /* fp32 parameters, gradients, moments */
    Dtype states;         /* of the moments */
    int64_t *fixed;       /* gradients in fixed point */
    float *logits, *loss, *lse, *angles;
    int32_t *ids, *positions, *first;
    Figures *figures;
    double peak, limit, copy;
} Bench;

static AttentionShape shape(const Bench *b) {
    return (AttentionShape){.tokens = b->t, .heads = HEADS, .kv_heads = HEADS, .head_dim = DIM};
}

static void layout(Bench *b) {
    size_t wide = (size_t)b->t * 2 * INTER * dtype_bytes(b->c), table = (size_t)VOCAB * HIDDEN * 4;
    if (wide < table) wide = table;
    b->x = pool_take(&b->pool, wide);
    b->y = pool_take(&b->pool, wide);
    b->z = pool_take(&b->pool, wide);
    b->w = pool_take(&b->pool, table);
    b->g = pool_take(&b->pool, table);
    b->m = pool_take(&b->pool, table);
    b->v = pool_take(&b->pool, table);
    b->fixed = pool_take(&b->pool, 2 * table);
    b->logits = pool_take(&b->pool, (size_t)ROWS * VOCAB * 4);
    b->loss = pool_take(&b->pool, (size_t)b->t * 4);
    b->lse = pool_take(&b->pool, (size_t)b->t * HEADS * 4);
    b->angles = pool_take(&b->pool, (size_t)b->t * DIM * 4);
    b->ids = pool_take(&b->pool, (size_t)b->t * 4);
    b->positions = pool_take(&b->pool, (size_t)b->t * 4);
    b->first = pool_take(&b->pool, (size_t)b->t * 4);
    b->figures = pool_take(&b->pool, sizeof *b->figures);
    DeviceNeeds needs = {.compute = b->c,
                         .tokens = b->t,
                         .hidden = HIDDEN,
                         .intermediate = INTER,
                         .vocab = VOCAB,
                         .logits_rows = ROWS,
                         .attention = shape(b),
                         .leaves = LEAVES};
    b->d.scratch_size = b->d.ops.scratch_bytes(&b->d, &needs);
    b->d.scratch = pool_take(&b->pool, b->d.scratch_size);
}

static void fill_tensors(Bench *b) {
    Device *d = &b->d;
    int64_t n = (int64_t)VOCAB * HIDDEN;
    float *all[] = {b->w, b->g, b->m, b->v};
    for (int i = 0; i < 4; i++) OP(d, OP_INIT_NORMAL, init_normal, n, (uint64_t)i, 0, 0, 0.5, -3, 3, all[i]);
    OP(d, OP_INIT_NORMAL, init_normal, (int64_t)ROWS * VOCAB, 9, 0, 0, 2, -3, 3, b->logits);
    int64_t wide = b->t * 2 * INTER < n ? b->t * 2 * INTER : n;
    OP(d, OP_CAST, cast, wide, b->w, DTYPE_F32, b->x, b->c);
    OP(d, OP_CAST, cast, wide, b->g, DTYPE_F32, b->y, b->c);
    int32_t *ids = calloc((size_t)b->t, 4), *positions = calloc((size_t)b->t, 4);
    float *angles = calloc((size_t)b->t * DIM, 4);
    if (!ids || !positions || !angles) abort();
    for (int64_t i = 0; i < b->t; i++) {
        ids[i] = (int32_t)(i * 7919 % VOCAB);
        positions[i] = (int32_t)i;
        for (int64_t j = 0; j < DIM; j++)
            angles[i * DIM + j] = j < DIM / 2 ? cosf((float)(i * j)) : sinf((float)(i * j));
    }
    Figures figures = {
        .step = {.lr = 1e-4f, .correction1 = 0.5f, .correction2 = 0.5f, .grad_scale = 1, .number = 1},
        .unit = 1,
        .scale = 1e-3f};
    OP(d, OP_UPLOAD, upload, b->figures, &figures, sizeof figures);
    OP(d, OP_UPLOAD, upload, b->ids, ids, (size_t)b->t * 4);
    OP(d, OP_UPLOAD, upload, b->positions, positions, (size_t)b->t * 4);
    OP(d, OP_UPLOAD, upload, b->angles, angles, (size_t)b->t * DIM * 4);
    free(ids);
    free(positions);
    free(angles);
}

/* ---- measured pieces ---- */

static void product(Bench *b, bool ta, bool tb, int64_t m, int64_t n, int64_t k, bool weight) {
    Device *d = &b->d;
    OP(d, OP_GEMM, gemm, ta, tb, m, n, k, b->x, b->y, b->c, weight ? (void *)b->w : b->z,
       weight ? DTYPE_F32 : b->c, n, weight, NO_LEAVES);
}
static void qkv(Bench *b) { product(b, false, true, b->t, 3 * HIDDEN, HIDDEN, false); }
static void qkv_dx(Bench *b) { product(b, false, false, b->t, HIDDEN, 3 * HIDDEN, false); }
static void qkv_dw(Bench *b) { product(b, true, false, 3 * HIDDEN, HIDDEN, b->t, true); }
static void output(Bench *b) { product(b, false, true, b->t, HIDDEN, HIDDEN, false); }
static void output_dw(Bench *b) { product(b, true, false, HIDDEN, HIDDEN, b->t, true); }
static void gate_up(Bench *b) { product(b, false, true, b->t, 2 * INTER, HIDDEN, false); }
static void gate_up_dx(Bench *b) { product(b, false, false, b->t, HIDDEN, 2 * INTER, false); }
static void gate_up_dw(Bench *b) { product(b, true, false, 2 * INTER, HIDDEN, b->t, true); }
static void down(Bench *b) { product(b, false, true, b->t, HIDDEN, INTER, false); }
static void down_dx(Bench *b) { product(b, false, false, b->t, INTER, HIDDEN, false); }
static void down_dw(Bench *b) { product(b, true, false, HIDDEN, INTER, b->t, true); }
static void head(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_GEMM, gemm, false, true, ROWS, VOCAB, HIDDEN, b->x, b->y, b->c, b->logits, DTYPE_F32, VOCAB,
       false, NO_LEAVES);
}
static void head_dx(Bench *b) { product(b, false, false, ROWS, HIDDEN, VOCAB, false); }
static void head_dw(Bench *b) { product(b, true, false, VOCAB, HIDDEN, ROWS, true); }

/* What leaves cost on one rank: sums over the inner dimension as eight ranks would share them. */
static void leaves_product(Bench *b, bool tb, int64_t n, Leaves l) {
    Device *d = &b->d;
    int64_t k = l.run[0].length + l.run[1].length + l.run[2].length;
    OP(d, OP_GEMM, gemm, false, tb, b->t, n, k, b->x, b->y, b->c, b->z, b->c, n, false, l);
}
static void output_leaves(Bench *b) {
    leaves_product(b, true, HIDDEN, (Leaves){1, {{HIDDEN, HIDDEN / LEAVES, 0}}});
}
static void down_leaves(Bench *b) {
    leaves_product(b, true, HIDDEN, (Leaves){1, {{INTER, INTER / LEAVES, 0}}});
}
static void gate_up_dx_leaves(Bench *b) {
    leaves_product(b, false, HIDDEN, (Leaves){2, {{INTER, INTER / LEAVES, 0}, {INTER, INTER / LEAVES, 0}}});
}

/* Behind the queries of a row. */
static void *keys_of(const Bench *b, void *qkv) {
    AttentionShape s = shape(b);
    return (char *)qkv + (size_t)(s.heads * s.head_dim) * dtype_bytes(b->c);
}

static void attend(Bench *b) {
    Device *d = &b->d;
    AttentionShape s = shape(b);
    OP(d, OP_ATTENTION_FORWARD, attention_forward, s, attention_whole(s), b->x, keys_of(b, b->x), b->first,
       b->z, b->lse, b->c);
}
static void attend_back(Bench *b) {
    Device *d = &b->d;
    char *grad = b->z + (size_t)b->t * HIDDEN * dtype_bytes(b->c);
    AttentionShape s = shape(b);
    OP(d, OP_ATTENTION_BACKWARD, attention_backward, s, attention_whole(s), b->x, keys_of(b, b->x), b->first,
       b->z, b->lse, b->y, grad, keys_of(b, grad), b->c);
}
static void rms(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_NORM_FORWARD, norm_forward, NORM_RMS, b->t, HIDDEN, 1e-5f, b->x, b->y, b->w, NULL, b->z, b->y,
       b->loss, b->c);
}
static void rms_back(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_NORM_BACKWARD, norm_backward, NORM_RMS, b->t, HIDDEN, b->x, b->w, b->loss, b->y, b->z, true,
       b->g, b->t, b->c);
}
static void rope(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_ROPE, rope, shape(b), b->y, b->positions, b->angles, false, b->c);
}
static void glu(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_ACTIVATION_FORWARD, activation_forward, ACT_SILU, true, b->t, INTER, b->x, b->z, b->c);
}
static void glu_back(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_ACTIVATION_BACKWARD, activation_backward, ACT_SILU, true, b->t, INTER, b->x, b->y, b->z, b->y,
       b->c);
}
static void add(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_ADD, add, b->t * HIDDEN, b->x, b->y, b->z, b->c);
}
static void loss(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_CROSS_ENTROPY, cross_entropy, ROWS, VOCAB, b->logits, DTYPE_F32, b->ids, WHOLE_VOCABULARY,
       &b->figures->scale, 0, 0, b->loss, NULL, b->z, b->c);
}
static void loss_leaves(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_CROSS_ENTROPY, cross_entropy, ROWS, VOCAB, b->logits, DTYPE_F32, b->ids,
       (VocabLeaves){.leaf = VOCAB / LEAVES}, &b->figures->scale, 0, 0, b->loss, NULL, b->z, b->c);
}
static void embed(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_EMBED_FORWARD, embed_forward, b->t, HIDDEN, b->ids, b->x, ALL_ROWS, 1, false, b->z, b->c);
}
static void embed_back(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_EMBED_BACKWARD, embed_backward, b->t, HIDDEN, b->ids, b->x, ALL_ROWS, 1, b->g, b->c);
}
static void update(Bench *b) {
    Device *d = &b->d;
    AdamW a = {0.9f, 0.95f, 1e-8f, 0.1f};
    StateStore s = {.type = b->states, .key = 1};
    OP(d, OP_ADAMW, adamw, (int64_t)VOCAB * HIDDEN, a, s, &b->figures->step, b->w, b->g, b->m, b->v,
       b->c == DTYPE_BF16 ? (uint16_t *)(void *)b->z : NULL);
}
static void update_half(Bench *b) {
    b->states = DTYPE_BF16;
    update(b);
    b->states = DTYPE_F32;
}
static void update_sgd(Bench *b) {
    Device *d = &b->d;
    Sgd o = {.momentum = 0.9f};
    OP(d, OP_SGD, sgd, (int64_t)VOCAB * HIDDEN, o, (StateStore){0}, &b->figures->step, b->w, b->g, b->m,
       b->c == DTYPE_BF16 ? (uint16_t *)(void *)b->z : NULL);
}
static void norm(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_GRAD_STATS, grad_stats, (int64_t)VOCAB * HIDDEN, b->g, 2, &b->figures->unit, &b->figures->stats);
}
/* One element in four thousand is far below the others: the way of sums that no piece can take. */
static void norm_wide(Bench *b) {
    Device *d = &b->d;
    for (int64_t i = 0; i < (int64_t)VOCAB * HIDDEN; i += 4096) OP(d, OP_FILL, fill, 1, 1e-30f, b->g + i);
    OP(d, OP_GRAD_STATS, grad_stats, (int64_t)VOCAB * HIDDEN, b->g, 2, &b->figures->unit, &b->figures->stats);
}
static void add_fixed(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_FIXED_ADD, fixed_add, (int64_t)VOCAB * HIDDEN, b->g, b->fixed, false, fixed_limit(64),
       &b->figures->refused);
}
static void from_fixed(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_FIXED_TO_FLOAT, fixed_to_float, (int64_t)VOCAB * HIDDEN, b->fixed, b->g);
}
static void sum_four(Bench *b) {
    Device *d = &b->d;
    const float *const parts[] = {b->w, b->g, b->m, b->v};
    OP(d, OP_SUM_PARTS, sum_parts, (int64_t)VOCAB * HIDDEN, 4, parts, b->w);
}
static void sum_four_i64(Bench *b) {
    Device *d = &b->d;
    const int64_t *const parts[] = {b->fixed, b->fixed, b->fixed, b->fixed};
    OP(d, OP_SUM_PARTS, sum_parts_i64, (int64_t)VOCAB * HIDDEN, 4, parts, b->fixed);
}
static void clear(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_ZERO, zero, b->g, (size_t)VOCAB * HIDDEN * 4);
}
static void round_weights(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_CAST, cast, (int64_t)VOCAB * HIDDEN, b->w, DTYPE_F32, b->z, DTYPE_BF16);
}
static void copy(Bench *b) {
    Device *d = &b->d;
    OP(d, OP_CAST, cast, (int64_t)VOCAB * HIDDEN, b->w, DTYPE_F32, b->z, DTYPE_F32);
}

/* Best time of a number of calls, over about a third of a second. */
static double best_time(Bench *b, void (*run)(Bench *)) {
    double best = HUGE_VAL, end;
    run(b);
    end = clock_seconds() + 0.3;
    do {
        double start = clock_seconds();
        run(b);
        double took = clock_seconds() - start;
        if (took < best) best = took;
    } while (clock_seconds() < end);
    return best;
}

static void flops(Bench *b, const char *name, void (*run)(Bench *), double operations) {
    double seconds = best_time(b, run), rate = operations / seconds;
    printf("%-20s %9.3f ms %8.1f GFLOP/s  %5.1f%% of the product peak, %5.1f%% of the cores' limit\n", name,
           seconds * 1e3, rate / 1e9, 100 * rate / b->peak, 100 * rate / b->limit);
}

static void bytes(Bench *b, const char *name, void (*run)(Bench *), double moved) {
    double seconds = best_time(b, run), rate = moved / seconds;
    printf("%-20s %9.3f ms %8.1f GB/s     %5.1f%% of the copy speed\n", name, seconds * 1e3, rate / 1e9,
           100 * rate / b->copy);
}

static void products(Bench *b) {
    double t = 2.0 * (double)b->t * HIDDEN;
    flops(b, "qkv", qkv, t * 3 * HIDDEN);
    flops(b, "qkv dX", qkv_dx, t * 3 * HIDDEN);
    flops(b, "qkv dW", qkv_dw, t * 3 * HIDDEN);
    flops(b, "output, dX", output, t * HIDDEN);
    flops(b, "output dW", output_dw, t * HIDDEN);
    flops(b, "gate+up", gate_up, t * 2 * INTER);
    flops(b, "gate+up dX", gate_up_dx, t * 2 * INTER);
    flops(b, "gate+up dW", gate_up_dw, t * 2 * INTER);
    flops(b, "down", down, t * INTER);
    flops(b, "down dX", down_dx, t * INTER);
    flops(b, "down dW", down_dw, t * INTER);
    flops(b, "output, 8 leaves", output_leaves, t * HIDDEN);
    flops(b, "gate+up dX, 8 leaves", gate_up_dx_leaves, t * 2 * INTER);
    flops(b, "down, 8 leaves", down_leaves, t * INTER);
    flops(b, "head", head, 2.0 * ROWS * HIDDEN * VOCAB);
    flops(b, "head dX", head_dx, 2.0 * ROWS * HIDDEN * VOCAB);
    flops(b, "head dW", head_dw, 2.0 * ROWS * HIDDEN * VOCAB);
    /* Causal: half of the pairs. */
    flops(b, "attention", attend, t * (double)(b->t + 1) * 1);
    flops(b, "attention gradient", attend_back, t * (double)(b->t + 1) * 2.5);
}

static void passes(Bench *b) {
    double t = (double)b->t, e = (double)dtype_bytes(b->c), table = (double)VOCAB * HIDDEN;
    bytes(b, "rmsnorm (+add)", rms, t * HIDDEN * e * 4);
    bytes(b, "rmsnorm gradient", rms_back, t * HIDDEN * e * 4);
    bytes(b, "rope", rope, t * 2 * HIDDEN * e * 2);
    bytes(b, "swiglu", glu, t * INTER * e * 3);
    bytes(b, "swiglu gradient", glu_back, t * INTER * e * 6);
    bytes(b, "add", add, t * HIDDEN * e * 3);
    bytes(b, "cross-entropy", loss, ROWS * (double)VOCAB * (4 + e));
    bytes(b, "loss, 8 leaves", loss_leaves, ROWS * (double)VOCAB * (4 + e));
    bytes(b, "embedding", embed, t * HIDDEN * e * 2);
    bytes(b, "embedding gradient", embed_back, t * HIDDEN * (e + 8));
    bytes(b, "adamw", update, table * (28 + (b->c == DTYPE_BF16 ? 2 : 0)));
    bytes(b, "adamw, bf16 moments", update_half, table * (20 + (b->c == DTYPE_BF16 ? 2 : 0)));
    bytes(b, "sgd with momentum", update_sgd, table * (20 + (b->c == DTYPE_BF16 ? 2 : 0)));
    bytes(b, "gradient norm", norm, table * 4);
    bytes(b, "add fixed-point", add_fixed, table * 20);
    bytes(b, "from fixed-point", from_fixed, table * 12);
    bytes(b, "sum of 4 parts", sum_four, table * 20);
    bytes(b, "of whole numbers", sum_four_i64, table * 24);
    bytes(b, "gradient norm, wide", norm_wide, table * 4);
    bytes(b, "zero", clear, table * 4);
    bytes(b, "cast to bf16", round_weights, table * 6);
}

int main(int argc, char **argv) {
    static Bench b;
    Error err;
    if (device_open_cpu(&b.d, argc > 1 ? argv[1] : NULL, argc > 2 ? atoi(argv[2]) : 0, &err) != OK) {
        fprintf(stderr, "%s\n", err.message);
        return err.code;
    }
    b.c = argc > 3 && strcmp(argv[3], "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    b.t = argc > 4 ? atoll(argv[4]) : 1024;
    if (b.t < ROWS || b.t > 1 << 20) {
        fprintf(stderr, "bench_ops: TOKENS must be %d to %d\n", ROWS, 1 << 20);
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
    b.peak = device_matmul_peak(&b.d, b.c, 2, INFINITY);
    b.limit = device_register_limit(&b.d, b.c, 0.5);
    if (b.limit <= 0 && !b.d.native_bf16) b.limit = device_register_limit(&b.d, DTYPE_F32, 0.5); /* widened */
    if (b.limit <= 0) b.limit = NAN; /* AMX's is not known */
    b.copy = (double)VOCAB * HIDDEN * 8 / best_time(&b, copy);
    printf("%s on %s, %d threads, %s, %lld tokens: products %.1f GFLOP/s, limit %.1f, copy %.1f GB/s\n",
           b.d.name, b.d.processor, b.d.threads, dtype_name(b.c), (long long)b.t, b.peak / 1e9, b.limit / 1e9,
           b.copy / 1e9);
    products(&b);
    passes(&b);
    pool_free(&b.pool);
    device_close(&b.d);
    return 0;
}
