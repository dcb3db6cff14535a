/* What layers share: products with a matrix of the unit, and norms.
 *
 * A matrix is stored [out, in], as Hugging Face's linear layers are, or transposed, [in, out]; its gradient
 * is stored alike. Which of the two it is only turns the flags of the products below, so that no layer knows.
 * */
#include "model/families/family.h"
#include "model/unit.h"

/* The parameter that begins the matrix: of rows that exclude each other, those that the model has lie side by
 * side. NULL: it has none of them. */
static const Param *first_of(const LayerPass *w, const ParamRow *rows, int count) {
    const Param *p = NULL;
    for (int i = 0; rows && i < count && !p; i++) p = param_of(&w->pass->model->table, w->unit, &rows[i]);
    return p;
}

static const Param *bias_of(const LayerPass *w, const Product *p) { return first_of(w, p->bias, p->rows); }

/* Y [T, out] = X W^T: the flag says whether W is stored as the product wants it. The bias is a pass of its
 * own over y. */
void product_forward(const LayerPass *w, const Product *p, const void *x, void *y) {
    const Model *m = w->pass->model;
    const Weights *weights = w->pass->weights;
    const Param *matrix = first_of(w, p->weight, p->rows), *bias = bias_of(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, OP_GEMM, gemm, false, !matrix->transposed, m->tokens, out, in, x,
       weights_matrix(weights, matrix), m->compute, y, m->compute, out, false, NO_LEAVES);
    if (bias)
        OP(w->pass->device, OP_BIAS_FORWARD, bias_forward, m->tokens, out, y, weights_vector(weights, bias),
           m->compute);
}

void product_input(const LayerPass *w, const Product *p, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    const Param *matrix = first_of(w, p->weight, p->rows), *bias = bias_of(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, OP_GEMM, gemm, false, matrix->transposed, m->tokens, in, out, dy,
       weights_matrix(w->pass->weights, matrix), m->compute, dx, m->compute, in, false, NO_LEAVES);
    if (bias) /* a vector's gradient belongs to this half */
        OP(w->pass->device, OP_BIAS_BACKWARD, bias_backward, m->tokens, out, dy,
           gradient_of(&w->pass->gradients, bias), m->tokens, m->compute);
}

void product_weight(const LayerPass *w, const Product *p, const void *dy, const void *x) {
    const Model *m = w->pass->model;
    const Param *matrix = first_of(w, p->weight, p->rows);
    if (matrix->flat == FLAT_FROZEN) return;
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    float *gradient = gradient_of(&w->pass->gradients, matrix);
    bool add = !w->pass->first; /* the first microbatch sets, later ones add */
    if (matrix->transposed)     /* dW [in, out] = X^T dY */
        OP(w->pass->device, OP_GEMM, gemm, true, false, in, out, m->tokens, x, dy, m->compute, gradient,
           DTYPE_F32, out, add, NO_LEAVES);
    else
        OP(w->pass->device, OP_GEMM, gemm, true, false, out, in, m->tokens, dy, x, m->compute, gradient,
           DTYPE_F32, in, add, NO_LEAVES);
}

/* ---- norms ---- */

enum { WEIGHT, BIAS }; /* of NORM_ROWS */

void norm_forward(const Pass *p, int unit, const ParamRow rows[NORM_ROWS], int64_t tokens, const void *a,
                  const void *b, void *sum, void *y, float *rstd) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, &rows[WEIGHT]), *bias = param_of(&m->table, unit, &rows[BIAS]);
    OP(p->device, OP_NORM_FORWARD, norm_forward, model_family(&m->config)->arch.norm, tokens,
       m->config.hidden_size, (float)m->config.rms_norm_eps, a, b, weights_vector(p->weights, w),
       bias ? weights_vector(p->weights, bias) : NULL, sum, y, rstd, m->compute);
}

/* A norm's bias has the gradient of any bias. Both of the norm's gradients are of vectors, so they are
 * added to in the input half, for all microbatches alike. */
void norm_backward(const Pass *p, int unit, const ParamRow rows[NORM_ROWS], const void *x, const float *rstd,
                   const void *dy, void *dx, bool add) {
    const Model *m = p->model;
    int64_t hidden = m->config.hidden_size;
    const Param *w = param_of(&m->table, unit, &rows[WEIGHT]), *bias = param_of(&m->table, unit, &rows[BIAS]);
    if (bias)
        OP(p->device, OP_BIAS_BACKWARD, bias_backward, m->tokens, hidden, dy,
           gradient_of(&p->gradients, bias), m->tokens, m->compute);
    OP(p->device, OP_NORM_BACKWARD, norm_backward, model_family(&m->config)->arch.norm, m->tokens, hidden, x,
       weights_vector(p->weights, w), rstd, dy, dx, add, gradient_of(&p->gradients, w), m->tokens,
       m->compute);
}
