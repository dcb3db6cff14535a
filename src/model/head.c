/* The last unit: final norm, head, loss. The head runs over chunks of tokens, and for each chunk does
 * everything that needs its logits - loss, their gradient, and both halves of the head's backward pass -
 * before the next chunk overwrites them. */
#include <math.h>

#include "model/internal.h"

typedef struct Slab {
    void *x;     /* [T, h] input */
    float *rstd; /* [T] */
    void *dn;    /* [T, h] gradient with respect to the normed state */
} Slab;

typedef struct Scratch {
    void *normed;  /* [T, h] */
    float *logits; /* [R, V] */
    void *dlogits; /* [R, V] in the compute dtype; the logits themselves when that is fp32 */
} Scratch;

size_t head_slab_bytes(const Model *m) {
    return 2 * pool_round(boundary_bytes(m)) + pool_round((size_t)m->tokens * sizeof(float));
}

static size_t logits_bytes(const Model *m, size_t element) {
    return pool_round((size_t)m->loss_rows * (size_t)m->config.vocab_size * element);
}

size_t head_scratch_bytes(const Model *m) {
    size_t narrow = m->compute == DTYPE_F32 ? 0 : logits_bytes(m, dtype_bytes(m->compute));
    return pool_round(boundary_bytes(m)) + logits_bytes(m, sizeof(float)) + narrow;
}

static Slab slab_of(const Model *m, char *base) {
    size_t boundary = pool_round(boundary_bytes(m));
    return (Slab){.x = base, .dn = base + boundary, .rstd = (float *)(void *)(base + 2 * boundary)};
}

static Scratch scratch_of(const Model *m, char *base) {
    Scratch s = {.normed = base};
    char *logits = base + pool_round(boundary_bytes(m));
    s.logits = (float *)(void *)logits;
    s.dlogits = m->compute == DTYPE_F32 ? (void *)logits : (void *)(logits + logits_bytes(m, sizeof(float)));
    return s;
}

static const Param *head_param(const Model *m) {
    const Param *head = param_of(&m->table, m->table.units - 1, PARAM_HEAD);
    return head ? head : param_of(&m->table, 0, PARAM_EMBED);
}

static float *head_gradient(const Pass *p) {
    const Gradients *g = &p->gradients;
    return g->tied ? g->units[g->table->units].matrices : gradient_of(g, head_param(p->model));
}

static void final_norm(const Pass *p, int64_t rows, const void *x, void *y, float *rstd) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, m->table.units - 1, PARAM_NORM);
    OP(p->device, OP_RMSNORM_FORWARD, rmsnorm_forward, rows, m->config.hidden_size,
       (float)m->config.rms_norm_eps, x, NULL, weights_vector(p->weights, w), NULL, y, rstd, m->compute);
}

static void logits_of(const Pass *p, int64_t rows, const void *normed, float *logits) {
    const Model *m = p->model;
    OP(p->device, OP_GEMM, gemm, false, true, rows, m->config.vocab_size, m->config.hidden_size, normed,
       weights_matrix(p->weights, head_param(m)), m->compute, logits, DTYPE_F32, m->config.vocab_size, false);
}

/* One chunk: which of the products to do is up to the caller. */
typedef struct Chunk {
    int64_t first, rows;
    bool input, weight;
} Chunk;

static void chunk(const Pass *p, Chunk c, const Slab *slab, const Scratch *s, float *losses) {
    const Model *m = p->model;
    int64_t h = m->config.hidden_size, v = m->config.vocab_size;
    size_t row = (size_t)h * dtype_bytes(m->compute);
    char *normed = (char *)s->normed + (size_t)c.first * row;
    logits_of(p, c.rows, normed, s->logits);
    OP(p->device, OP_CROSS_ENTROPY, cross_entropy, c.rows, v, s->logits, DTYPE_F32,
       p->batch.targets + c.first, (float)p->loss_scale, losses + c.first,
       c.input || c.weight ? s->dlogits : NULL, m->compute);
    if (c.input)
        OP(p->device, OP_GEMM, gemm, false, false, c.rows, h, v, s->dlogits,
           weights_matrix(p->weights, head_param(m)), m->compute, (char *)slab->dn + (size_t)c.first * row,
           m->compute, h, false);
    if (c.weight)
        OP(p->device, OP_GEMM, gemm, true, false, v, h, c.rows, s->dlogits, normed, m->compute,
           head_gradient(p), DTYPE_F32, h, !(p->first && c.first == 0));
}

static void all_chunks(const Pass *p, bool input, bool weight, const Slab *slab, const Scratch *s,
                       float *losses) {
    const Model *m = p->model;
    for (int64_t first = 0; first < m->tokens; first += m->loss_rows) {
        int64_t rows = m->tokens - first < m->loss_rows ? m->tokens - first : m->loss_rows;
        chunk(p, (Chunk){first, rows, input, weight}, slab, s, losses);
    }
}

void head_forward(const Pass *p, char *slab_base, float *losses, bool training, bool defer_weight,
                  char *scratch_base) {
    Slab slab = slab_of(p->model, slab_base);
    Scratch scratch = scratch_of(p->model, scratch_base);
    final_norm(p, p->model->tokens, slab.x, scratch.normed, slab.rstd);
    all_chunks(p, training, training && !defer_weight, &slab, &scratch, losses);
}

void head_backward(const Pass *p, Half half, bool deferred, char *slab_base, void *dx, char *scratch_base) {
    const Model *m = p->model;
    Slab slab = slab_of(m, slab_base);
    Scratch scratch = scratch_of(m, scratch_base);
    const Param *w = param_of(&m->table, m->table.units - 1, PARAM_NORM);
    if (half & HALF_INPUT)
        OP(p->device, OP_RMSNORM_BACKWARD, rmsnorm_backward, m->tokens, m->config.hidden_size, slab.x,
           weights_vector(p->weights, w), slab.rstd, slab.dn, dx, false, gradient_of(&p->gradients, w),
           m->compute);
    if ((half & HALF_WEIGHT) && deferred) {
        final_norm(p, m->tokens, slab.x, scratch.normed, slab.rstd);
        /* dn has been used: its first T floats take the losses, which nobody reads again. */
        all_chunks(p, false, true, &slab, &scratch, slab.dn);
    }
}

void head_logits(const Pass *p, int64_t rows, const void *x, void *normed, float *rstd, float *logits) {
    final_norm(p, rows, x, normed, rstd);
    logits_of(p, rows, normed, logits);
}
