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

const Param *product_matrix(const LayerPass *w, const Product *p) { return first_of(w, p->weight, p->rows); }
const Param *product_bias(const LayerPass *w, const Product *p) { return first_of(w, p->bias, p->rows); }

/* By rows of its matrix (outputs) a product is shared without a sum forward, by columns (inputs) without one
 * backward; the other way each rank makes terms of a sum. Rows of k, v and up are cut as those of q and gate
 * before them. */
static bool product_reads_all(const Model *m, const Product *p) {
    return m->sharing.ranks > 1 && p->weight->cut == CUT_ROWS;
}
static bool product_makes_terms(const Model *m, const Product *p) {
    return m->sharing.ranks > 1 && p->weight->cut == CUT_COLUMNS;
}

/* A sum over a dimension that tp cuts has the leaves of that; over another one it is whole on every rank. */
static Leaves leaves_over(const Model *m, const Product *p, Cut cut, Dim dim) {
    return p->weight->cut == cut ? model_leaves(m, dim) : model_one_leaf(m, model_dim(&m->config, dim));
}

/* ---- adapters: no rank shares a sum of theirs but over tokens ---- */

/* Of one of the matrices that a product takes as one. */
typedef struct Adapter {
    const Param *a, *b;
    int64_t out, in, rank;
    int64_t first, width; /* its outputs are so many behind the first of `width`, those of the product */
} Adapter;

/* The next one that there is, from row *next on; false: no more. */
static bool next_adapter(const LayerPass *w, const Product *p, int *next, Adapter *out) {
    const Model *m = w->pass->model;
    const ParamTable *t = &m->table;
    int64_t first = 0;
    for (int i = 0; m->config.adapter_rank > 0 && i < p->rows; i++) {
        const Param *matrix = param_of(t, w->unit, &p->weight[i]);
        const Param *a = matrix && i >= *next ? param_adapter(t, matrix, ADAPTER_A) : NULL;
        if (a) {
            const Param *b = param_adapter(t, matrix, ADAPTER_B);
            *out = (Adapter){a, b, b->rows, a->cols, a->rows, first, model_dim(&m->config, p->out)};
            *next = i + 1;
            return true;
        }
        if (matrix) first += model_dim(&m->config, p->weight[i].rows);
    }
    return false;
}

/* inner [T, r] = x A^T */
static void adapter_inner(const LayerPass *w, const Adapter *a, const void *x) {
    const Model *m = w->pass->model;
    OP(w->pass->device, OP_GEMM, gemm, false, true, m->tokens, a->rank, a->in, x,
       weights_matrix(w->pass->weights, a->a), m->compute, w->adapters->inner, m->compute, a->rank, false,
       model_one_leaf(m, a->in));
}

/* outer [T, out] = s dy, of this matrix's outputs; inner [T, r] = outer B */
static void adapter_outer(const LayerPass *w, const Adapter *a, const void *dy) {
    const Model *m = w->pass->model;
    OP(w->pass->device, OP_SCALE, scale, m->tokens, a->out, (float)m->config.adapter_scale,
       model_at(m, dy, a->first), a->width, w->adapters->outer, m->compute);
    OP(w->pass->device, OP_GEMM, gemm, false, false, m->tokens, a->rank, a->out, w->adapters->outer,
       weights_matrix(w->pass->weights, a->b), m->compute, w->adapters->inner, m->compute, a->rank, false,
       model_one_leaf(m, a->out));
}

/* The scale goes to the narrow side. */
static void adapters_forward(const LayerPass *w, const Product *p, const void *x, void *y) {
    const Model *m = w->pass->model;
    Adapter a;
    for (int next = 0; next_adapter(w, p, &next, &a);) {
        adapter_inner(w, &a, x);
        OP(w->pass->device, OP_SCALE, scale, m->tokens, a.rank, (float)m->config.adapter_scale,
           w->adapters->inner, a.rank, w->adapters->inner, m->compute);
        OP(w->pass->device, OP_GEMM, gemm, false, true, m->tokens, a.out, a.rank, w->adapters->inner,
           weights_matrix(w->pass->weights, a.b), m->compute, model_at(m, y, a.first), m->compute, a.width,
           true, model_one_leaf(m, a.rank));
    }
}

/* dx += (s dy B) A */
static void adapters_input(const LayerPass *w, const Product *p, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    Adapter a;
    for (int next = 0; next_adapter(w, p, &next, &a);) {
        adapter_outer(w, &a, dy);
        OP(w->pass->device, OP_GEMM, gemm, false, false, m->tokens, a.in, a.rank, w->adapters->inner,
           weights_matrix(w->pass->weights, a.a), m->compute, dx, m->compute, a.in, true,
           model_one_leaf(m, a.rank));
    }
}

/* dW [out, in] += left [T, out]^T right [T, in], span by span; the first microbatch sets. */
static void adapter_gradient(const LayerPass *w, const Param *p, const void *left, const void *right) {
    const Model *m = w->pass->model;
    int64_t tokens = model_span(m, m->tokens);
    for (int r = 0; p->flat != FLAT_FROZEN && r < model_spans(m); r++)
        OP(w->pass->device, OP_GEMM, gemm, true, false, p->rows, p->cols, tokens,
           model_at(m, left, r * tokens * p->rows), model_at(m, right, r * tokens * p->cols), m->compute,
           gradient_of_span(&w->pass->gradients, p, r), DTYPE_F32, p->cols, !w->pass->first,
           model_one_leaf(m, tokens));
}

/* dA += (s dy B)^T x, dB += (s dy)^T (x A^T) */
static void adapters_weight(const LayerPass *w, const Product *p, const void *dy, const void *x) {
    Adapter a;
    for (int next = 0; next_adapter(w, p, &next, &a);) {
        adapter_outer(w, &a, dy);
        adapter_gradient(w, a.a, w->adapters->inner, x);
        adapter_inner(w, &a, x);
        adapter_gradient(w, a.b, w->adapters->outer, w->adapters->inner);
    }
}

/* ---- products ---- */

static void add_bias(const LayerPass *w, const Product *p, int64_t tokens, void *y) {
    const Model *m = w->pass->model;
    const Param *bias = product_bias(w, p);
    if (bias)
        OP(w->pass->device, OP_BIAS_FORWARD, bias_forward, tokens, model_dim(&m->config, p->out), y,
           weights_vector(w->pass->weights, bias), m->compute);
}

/* Y [T, out] = X W^T: the flag says whether W is stored as the product wants it. The bias is a pass of its
 * own over y; what is a sum over ranks gets it when it is one. */
void product_forward(const LayerPass *w, const Product *p, const void *x, void *y) {
    const Model *m = w->pass->model;
    const Param *matrix = product_matrix(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    bool terms = product_makes_terms(m, p);
    OP(w->pass->device, OP_GEMM, gemm, false, !matrix->transposed, m->tokens, out, in, x,
       weights_matrix(w->pass->weights, matrix), m->compute, y, terms ? DTYPE_F32 : m->compute, out, false,
       leaves_over(m, p, CUT_COLUMNS, p->in));
    if (!terms) add_bias(w, p, m->tokens, y);
    adapters_forward(w, p, x, y);
}

void product_summed(const LayerPass *w, const Product *p, const float *terms, void *y) {
    const Model *m = w->pass->model;
    int64_t own = model_own_tokens(m);
    OP(w->pass->device, OP_CAST, cast, own * model_dim(&m->config, p->out), terms, DTYPE_F32, y, m->compute);
    add_bias(w, p, own, y);
}

/* The gradient of a bias that is cut is a sum over all tokens on each rank, one of a bias that is whole over
 * those that are its own: by leaves of them, as that of a norm. */
static void bias_gradient(const LayerPass *w, const Product *p, const void *dy) {
    const Model *m = w->pass->model;
    const Param *bias = product_bias(w, p);
    bool cut = p->weight->cut == CUT_ROWS;
    int64_t out = model_dim(&m->config, p->out),
            tokens = model_span(m, cut ? m->tokens : model_own_tokens(m));
    for (int r = 0; bias && r < model_spans(m); r++)
        OP(w->pass->device, OP_BIAS_BACKWARD, bias_backward, tokens, out,
           model_at(m, cut ? dy : w->own_dy, r * tokens * out),
           gradient_of_span(&w->pass->gradients, bias, r), cut ? tokens : model_token_leaf(m), m->compute);
}

void product_input(const LayerPass *w, const Product *p, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    const Param *matrix = product_matrix(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, OP_GEMM, gemm, false, matrix->transposed, m->tokens, in, out, dy,
       weights_matrix(w->pass->weights, matrix), m->compute, dx,
       product_reads_all(m, p) ? DTYPE_F32 : m->compute, in, false, leaves_over(m, p, CUT_ROWS, p->out));
    adapters_input(w, p, dy, dx);
    bias_gradient(w, p, dy); /* a vector's gradient belongs to this half */
}

/* The first microbatch sets, later ones add. */
static void weight_of_span(const LayerPass *w, const Product *p, const Param *matrix, int span,
                           const void *dy, const void *x) {
    const Model *m = w->pass->model;
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in),
            tokens = model_span(m, m->tokens), first = span * tokens;
    float *gradient = gradient_of_span(&w->pass->gradients, matrix, span);
    bool add = !w->pass->first;
    Leaves leaves = model_one_leaf(m, tokens);
    dy = model_at(m, dy, first * out), x = model_at(m, x, first * in);
    if (matrix->transposed) /* dW [in, out] = X^T dY */
        OP(w->pass->device, OP_GEMM, gemm, true, false, in, out, tokens, x, dy, m->compute, gradient,
           DTYPE_F32, out, add, leaves);
    else
        OP(w->pass->device, OP_GEMM, gemm, true, false, out, in, tokens, dy, x, m->compute, gradient,
           DTYPE_F32, in, add, leaves);
}

void product_weight(const LayerPass *w, const Product *p, const void *dy, const void *x) {
    const Model *m = w->pass->model;
    const Param *matrix = product_matrix(w, p);
    adapters_weight(w, p, dy, x);
    if (matrix->flat == FLAT_FROZEN) return;
    for (int r = 0; r < model_spans(m); r++) weight_of_span(w, p, matrix, r, dy, x);
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
 * added to in the input half, for all microbatches alike; by leaves of the tokens, of which ranks may each
 * have some. */
void norm_backward(const Pass *p, int unit, const ParamRow rows[NORM_ROWS], const void *x, const float *rstd,
                   const void *dy, void *dx, bool add) {
    const Model *m = p->model;
    int64_t hidden = m->config.hidden_size, own = model_span(m, model_own_tokens(m));
    const Param *w = param_of(&m->table, unit, &rows[WEIGHT]), *bias = param_of(&m->table, unit, &rows[BIAS]);
    for (int r = 0; bias && r < model_spans(m); r++)
        OP(p->device, OP_BIAS_BACKWARD, bias_backward, own, hidden, model_at(m, dy, r * own * hidden),
           gradient_of_span(&p->gradients, bias, r), model_token_leaf(m), m->compute);
    for (int r = 0; r < model_spans(m); r++)
        OP(p->device, OP_NORM_BACKWARD, norm_backward, model_family(&m->config)->arch.norm, own, hidden,
           model_at(m, x, r * own * hidden), weights_vector(p->weights, w), rstd + r * own,
           model_at(m, dy, r * own * hidden), model_at(m, dx, r * own * hidden), add,
           gradient_of_span(&p->gradients, w, r), model_token_leaf(m), m->compute);
}
