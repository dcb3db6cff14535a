/* One transformer block: x -> mid = x + attention(norm(x)) -> mid + mlp(norm(mid)).
 *
 * Shapes: T tokens, h hidden, Q = H*D, K = G*D, I intermediate. Weights are [out, in]. */
#include <stdint.h>

#include "model/internal.h"

/* Every tensor of a block's pass, wherever it lives. */
typedef struct Tensors {
    void *x;               /* [T, h] input */
    float *rstd1, *rstd2;  /* [T] */
    void *n1, *n2;         /* [T, h] normed inputs of attention and MLP */
    void *qkv, *attn;      /* [T, Q+2K] rotated, [T, Q] */
    float *lse;            /* [H, T] */
    void *mid;             /* [T, h] after attention */
    void *gate_up;         /* [T, 2I] */
    void *act;             /* [T, I] */
    void *dout, *dmid;     /* [T, h] copies for the weight half; NULL when both halves run together */
    void *dgate_up, *dqkv; /* [T, 2I], [T, Q+2K] */
    void *dn, *dattn;      /* [T, h], [T, Q] */
} Tensors;

/* Hands out pieces of one region; with base NULL it only counts. */
typedef struct Cursor {
    char *base;
    size_t used;
} Cursor;

static void *take(Cursor *c, int64_t rows, int64_t cols, size_t element) {
    char *p = c->base ? c->base + c->used : NULL;
    c->used += pool_round((size_t)rows * (size_t)cols * element);
    return p;
}

static int64_t query_size(const ModelConfig *c) { return c->num_attention_heads * c->head_dim; }
static int64_t qkv_size(const ModelConfig *c) {
    return query_size(c) + 2 * c->num_key_value_heads * c->head_dim;
}
static AttentionShape attention_shape(const Model *m) {
    const ModelConfig *c = &m->config;
    return (AttentionShape){m->tokens, (int)c->num_attention_heads, (int)c->num_key_value_heads,
                            (int)c->head_dim};
}

/* The three regions, laid out the same way each time. What the recompute policy drops from the slab moves to
 * `keep` if the weight half reads it, else to `scratch`. */
static Tensors layout(const Model *m, Cursor *slab, Cursor *keep, Cursor *scratch) {
    const ModelConfig *c = &m->config;
    int64_t T = m->tokens, h = c->hidden_size, I = c->intermediate_size;
    size_t e = dtype_bytes(m->compute);
    Cursor *unless_full = m->recompute == RECOMPUTE_FULL ? scratch : slab;
    Tensors t = {0};
    t.x = take(slab, T, h, e);
    t.rstd1 = take(unless_full, T, 1, 4);
    t.qkv = take(unless_full, T, qkv_size(c), e);
    t.attn = take(m->recompute == RECOMPUTE_FULL ? keep : slab, T, query_size(c), e);
    t.lse = take(unless_full, c->num_attention_heads, T, 4);
    t.mid = take(unless_full, T, h, e);
    t.rstd2 = take(unless_full, T, 1, 4);
    t.n1 = take(m->recompute == RECOMPUTE_NONE ? slab : keep, T, h, e);
    t.n2 = take(m->recompute == RECOMPUTE_NONE ? slab : keep, T, h, e);
    t.gate_up = take(m->recompute == RECOMPUTE_NONE ? slab : scratch, T, 2 * I, e);
    t.act = take(keep, T, I, e);
    t.dout = take(keep, T, h, e);
    t.dmid = take(keep, T, h, e);
    t.dgate_up = take(keep, T, 2 * I, e);
    t.dqkv = take(keep, T, qkv_size(c), e);
    t.dn = take(scratch, T, h, e);
    t.dattn = take(scratch, T, query_size(c), e);
    return t;
}

void block_sizes(const Model *m, size_t *slab, size_t *keep, size_t *scratch) {
    Cursor s = {0}, k = {0}, w = {0};
    layout(m, &s, &k, &w);
    *slab = s.used, *keep = k.used, *scratch = w.used;
}

static Tensors tensors(const Model *m, char *slab, char *keep, char *scratch) {
    Cursor s = {slab, 0}, k = {keep, 0}, w = {scratch, 0};
    return layout(m, &s, &k, &w);
}

/* y[T, rows] = x[T, cols] W^T (+ bias), for a group of parameters that starts with `role`. */
static void linear(const Pass *p, int unit, ParamRole role, ParamRole bias_role, int64_t rows, int64_t cols,
                   const void *x, void *y) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, role), *bias = param_of(&m->table, unit, bias_role);
    OP(p->device, OP_GEMM, gemm, false, true, m->tokens, rows, cols, x, weights_matrix(p->weights, w),
       m->compute, y, m->compute, rows, false);
    if (bias)
        OP(p->device, OP_BIAS_FORWARD, bias_forward, m->tokens, rows, y, weights_vector(p->weights, bias),
           m->compute);
}

/* dx[T, cols] = dy[T, rows] W, and the bias gradient. */
static void linear_input(const Pass *p, int unit, ParamRole role, ParamRole bias_role, int64_t rows,
                         int64_t cols, const void *dy, void *dx) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, role), *bias = param_of(&m->table, unit, bias_role);
    OP(p->device, OP_GEMM, gemm, false, false, m->tokens, cols, rows, dy, weights_matrix(p->weights, w),
       m->compute, dx, m->compute, cols, false);
    if (bias)
        OP(p->device, OP_BIAS_BACKWARD, bias_backward, m->tokens, rows, dy, gradient_of(&p->gradients, bias),
           m->compute);
}

/* dW[rows, cols] (+)= dy[T, rows]^T x[T, cols]. */
static void linear_weight(const Pass *p, int unit, ParamRole role, int64_t rows, int64_t cols, const void *dy,
                          const void *x) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, role);
    OP(p->device, OP_GEMM, gemm, true, false, rows, cols, m->tokens, dy, x, m->compute,
       gradient_of(&p->gradients, w), DTYPE_F32, cols, !p->first);
}

static void norm(const Pass *p, int unit, ParamRole role, const void *a, const void *b, void *sum, void *y,
                 float *rstd) {
    const Model *m = p->model;
    OP(p->device, OP_RMSNORM_FORWARD, rmsnorm_forward, m->tokens, m->config.hidden_size,
       (float)m->config.rms_norm_eps, a, b, weights_vector(p->weights, param_of(&m->table, unit, role)), sum,
       y, rstd, m->compute);
}

/* dx += gradient through the norm of x. */
static void norm_backward(const Pass *p, int unit, ParamRole role, const void *x, const float *rstd,
                          const void *dy, void *dx) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, role);
    OP(p->device, OP_RMSNORM_BACKWARD, rmsnorm_backward, m->tokens, m->config.hidden_size, x,
       weights_vector(p->weights, w), rstd, dy, dx, true, gradient_of(&p->gradients, w), m->compute);
}

static void copy(const Pass *p, const void *in, void *out) {
    const Model *m = p->model;
    OP(p->device, OP_CAST, cast, m->tokens * m->config.hidden_size, in, m->compute, out, m->compute);
}

/* Puts the new keys and values where the cache wants them. */
static void extend_cache(const Pass *p, int unit, const Tensors *t, char **keys, char **values) {
    const Model *m = p->model;
    const ModelConfig *c = &m->config;
    const KeyValueCache *cache = p->cache;
    int64_t width = c->num_key_value_heads * c->head_dim;
    size_t e = dtype_bytes(m->compute), row = (size_t)width * e;
    *keys = cache->keys + (size_t)unit * (size_t)cache->positions * row;
    *values = cache->values + (size_t)unit * (size_t)cache->positions * row;
    for (int64_t i = 0; i < m->tokens; i++) {
        const char *key = (const char *)t->qkv + (size_t)(i * qkv_size(c) + query_size(c)) * e;
        size_t at = (size_t)(cache->start + i) * row;
        OP(p->device, OP_CAST, cast, width, key, m->compute, *keys + at, m->compute);
        OP(p->device, OP_CAST, cast, width, key + row, m->compute, *values + at, m->compute);
    }
}

static void attend(const Pass *p, int unit, const Tensors *t) {
    const Model *m = p->model;
    if (!p->cache) {
        OP(p->device, OP_ATTENTION_FORWARD, attention_forward, attention_shape(m), t->qkv, p->batch.first_key,
           t->attn, t->lse, m->compute);
        return;
    }
    char *keys, *values;
    extend_cache(p, unit, t, &keys, &values);
    OP(p->device, OP_ATTENTION_DECODE, attention_decode, attention_shape(m), p->cache->start, t->qkv, keys,
       values, t->attn, m->compute);
}

/* Up to and with the gate and up products; `branch` [T, h] holds the attention's output projection on the
 * way. */
static void forward_to_gate_up(const Pass *p, int unit, const Tensors *t, void *branch) {
    const Model *m = p->model;
    const ModelConfig *c = &m->config;
    int64_t h = c->hidden_size, q = query_size(c), qkv = qkv_size(c), inter = c->intermediate_size;
    norm(p, unit, PARAM_NORM1, t->x, NULL, NULL, t->n1, t->rstd1);
    linear(p, unit, PARAM_Q, PARAM_Q_BIAS, qkv, h, t->n1, t->qkv);
    OP(p->device, OP_ROPE, rope, attention_shape(m), t->qkv, p->batch.positions, m->cos_sin, false,
       m->compute);
    attend(p, unit, t);
    linear(p, unit, PARAM_O, PARAM_O_BIAS, h, q, t->attn, branch);
    norm(p, unit, PARAM_NORM2, t->x, branch, t->mid, t->n2, t->rstd2);
    linear(p, unit, PARAM_GATE, PARAM_GATE_BIAS, 2 * inter, h, t->n2, t->gate_up);
}

void block_forward(const Pass *p, int unit, char *slab, void *out, char *keep, char *scratch) {
    const Model *m = p->model;
    int64_t h = m->config.hidden_size, inter = m->config.intermediate_size;
    Tensors t = tensors(m, slab, keep, scratch);
    forward_to_gate_up(p, unit, &t, out);
    OP(p->device, OP_SWIGLU_FORWARD, swiglu_forward, m->tokens, inter, t.gate_up, t.act, m->compute);
    linear(p, unit, PARAM_DOWN, PARAM_DOWN_BIAS, h, inter, t.act, out);
    OP(p->device, OP_ADD, add, m->tokens * h, out, t.mid, out, m->compute);
}

/* Makes again what the policy dropped. */
static void restore(const Pass *p, int unit, const Tensors *t) {
    const Model *m = p->model;
    if (m->recompute == RECOMPUTE_FULL) forward_to_gate_up(p, unit, t, t->dn);
    if (m->recompute != RECOMPUTE_SELECTIVE) return;
    norm(p, unit, PARAM_NORM1, t->x, NULL, NULL, t->n1, t->rstd1);
    norm(p, unit, PARAM_NORM2, t->mid, NULL, NULL, t->n2, t->rstd2);
    linear(p, unit, PARAM_GATE, PARAM_GATE_BIAS, 2 * m->config.intermediate_size, m->config.hidden_size,
           t->n2, t->gate_up);
}

static void mlp_backward(const Pass *p, int unit, bool weight, const Tensors *t, void *dx) {
    const Model *m = p->model;
    int64_t h = m->config.hidden_size, inter = m->config.intermediate_size;
    linear_input(p, unit, PARAM_DOWN, PARAM_DOWN_BIAS, h, inter, dx, t->act);
    OP(p->device, OP_SWIGLU_BACKWARD, swiglu_backward, m->tokens, inter, t->gate_up, t->act, t->dgate_up,
       t->act, m->compute);
    if (weight) linear_weight(p, unit, PARAM_DOWN, h, inter, dx, t->act);
    if (weight) linear_weight(p, unit, PARAM_GATE, 2 * inter, h, t->dgate_up, t->n2);
    linear_input(p, unit, PARAM_GATE, PARAM_GATE_BIAS, 2 * inter, h, t->dgate_up, t->dn);
    norm_backward(p, unit, PARAM_NORM2, t->mid, t->rstd2, t->dn, dx);
}

static void attention_backward(const Pass *p, int unit, bool weight, const Tensors *t, void *dx) {
    const Model *m = p->model;
    const ModelConfig *c = &m->config;
    int64_t h = c->hidden_size, q = query_size(c), qkv = qkv_size(c);
    linear_input(p, unit, PARAM_O, PARAM_O_BIAS, h, q, dx, t->dattn);
    if (weight) linear_weight(p, unit, PARAM_O, h, q, dx, t->attn);
    OP(p->device, OP_ATTENTION_BACKWARD, attention_backward, attention_shape(m), t->qkv, p->batch.first_key,
       t->attn, t->lse, t->dattn, t->dqkv, m->compute);
    OP(p->device, OP_ROPE, rope, attention_shape(m), t->dqkv, p->batch.positions, m->cos_sin, true,
       m->compute);
    if (weight) linear_weight(p, unit, PARAM_Q, qkv, h, t->dqkv, t->n1);
    linear_input(p, unit, PARAM_Q, PARAM_Q_BIAS, qkv, h, t->dqkv, t->dn);
    norm_backward(p, unit, PARAM_NORM1, t->x, t->rstd1, t->dn, dx);
}

/* The weight half alone: its operands were kept by the input half. */
static void weight_half(const Pass *p, int unit, const Tensors *t) {
    const ModelConfig *c = &p->model->config;
    int64_t h = c->hidden_size, inter = c->intermediate_size;
    linear_weight(p, unit, PARAM_DOWN, h, inter, t->dout, t->act);
    linear_weight(p, unit, PARAM_GATE, 2 * inter, h, t->dgate_up, t->n2);
    linear_weight(p, unit, PARAM_O, h, query_size(c), t->dmid, t->attn);
    linear_weight(p, unit, PARAM_Q, qkv_size(c), h, t->dqkv, t->n1);
}

void block_backward(const Pass *p, int unit, Half half, char *slab, void *dx, char *keep, char *scratch) {
    Tensors t = tensors(p->model, slab, keep, scratch);
    if (half == HALF_WEIGHT) {
        weight_half(p, unit, &t);
        return;
    }
    bool weight = half & HALF_WEIGHT;
    restore(p, unit, &t);
    if (!weight) copy(p, dx, t.dout);
    mlp_backward(p, unit, weight, &t, dx);
    if (!weight) copy(p, dx, t.dmid);
    attention_backward(p, unit, weight, &t, dx);
}
