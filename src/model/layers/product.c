/* What layers share: products with a matrix of the unit, and norms. */
#include "model/unit.h"

void product_forward(const LayerPass *w, const Product *p, const void *x, void *y) {
    const Model *m = w->pass->model;
    const Weights *weights = w->pass->weights;
    const Param *matrix = param_of(&m->table, w->unit, p->weight);
    const Param *bias = p->bias ? param_of(&m->table, w->unit, p->bias) : NULL;
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, OP_GEMM, gemm, false, true, m->tokens, out, in, x, weights_matrix(weights, matrix),
       m->compute, y, m->compute, out, false, ONE_LEAF);
    if (bias)
        OP(w->pass->device, OP_BIAS_FORWARD, bias_forward, m->tokens, out, y, weights_vector(weights, bias),
           m->compute);
}

void product_input(const LayerPass *w, const Product *p, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    const Param *matrix = param_of(&m->table, w->unit, p->weight);
    const Param *bias = p->bias ? param_of(&m->table, w->unit, p->bias) : NULL;
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, OP_GEMM, gemm, false, false, m->tokens, in, out, dy,
       weights_matrix(w->pass->weights, matrix), m->compute, dx, m->compute, in, false, ONE_LEAF);
    if (bias)
        OP(w->pass->device, OP_BIAS_BACKWARD, bias_backward, m->tokens, out, dy,
           gradient_of(&w->pass->gradients, bias), m->tokens, m->compute);
}

void product_weight(const LayerPass *w, const Product *p, const void *dy, const void *x) {
    const Model *m = w->pass->model;
    const Param *matrix = param_of(&m->table, w->unit, p->weight);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    /* The first microbatch sets, later ones add. */
    OP(w->pass->device, OP_GEMM, gemm, true, false, out, in, m->tokens, dy, x, m->compute,
       gradient_of(&w->pass->gradients, matrix), DTYPE_F32, in, !w->pass->first, ONE_LEAF);
}

void norm_forward(const Pass *p, int unit, const ParamRow *weight, int64_t tokens, const void *a,
                  const void *b, void *sum, void *y, float *rstd) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, weight);
    OP(p->device, OP_RMSNORM_FORWARD, rmsnorm_forward, tokens, m->config.hidden_size,
       (float)m->config.rms_norm_eps, a, b, weights_vector(p->weights, w), sum, y, rstd, m->compute);
}

void norm_backward(const Pass *p, int unit, const ParamRow *weight, const void *x, const float *rstd,
                   const void *dy, void *dx, bool add) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, weight);
    OP(p->device, OP_RMSNORM_BACKWARD, rmsnorm_backward, m->tokens, m->config.hidden_size, x,
       weights_vector(p->weights, w), rstd, dy, dx, add, gradient_of(&p->gradients, w), m->tokens,
       m->compute);
}
