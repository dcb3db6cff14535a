/* Common to all layers: products with a matrix of the unit, and norms.
 *
 * A matrix is stored [out, in], as Hugging Face's linear layers are, or transposed, [in, out]; its gradient
 * is stored the same way. Only the transpose flags of the products below depend on it: layers need not know.
 *
 * Elsewhere called: linear layer; split-K where TP may shard the sum. No epilogue is fused into a
 * product: bias and rounding follow the reduce-scatter of a row-parallel one. */
#include "model/families/family.h"
#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "model/unit.h"

/* The parameter that begins the matrix. Of alternative rows, the model has some, which are adjacent. NULL: it
 * has none. */
static const Param *first_of(const LayerPass *w, const ParamRow *rows, int count) {
    const Param *p = NULL;
    for (int i = 0; rows && i < count && !p; i++) p = param_of(&w->pass->model->table, w->unit, &rows[i]);
    return p;
}

const Param *product_matrix(const LayerPass *w, const Product *p) { return first_of(w, p->weight, p->rows); }
const Param *product_bias(const LayerPass *w, const Product *p) { return first_of(w, p->bias, p->rows); }

/* A column-parallel product needs no reduction in the forward pass, a row-parallel one none in dgrad; in the
 * other direction each rank makes partial sums. Rows of k, v and up are sharded as those of q and gate before
 * them. */
static bool product_reads_all(const Model *m, const Product *p) {
    return m->tp.size > 1 && p->weight->tp == COLUMN_PARALLEL;
}
static bool product_makes_partials(const Model *m, const Product *p) {
    return m->tp.size > 1 && p->weight->tp == ROW_PARALLEL;
}

/* A sum over a TP-sharded dimension has its splits; one over another dimension is complete on every rank. */
static KSplit splits_over(const Model *m, const Product *p, TpStyle cut, Dim dim) {
    return p->weight->tp == cut ? model_k_split(m, dim) : model_one_split(m, model_dim(&m->config, dim));
}

static bool is_replicated(const LayerPass *w, const Param *p) {
    return param_is_replicated(&w->pass->model->config, p->row);
}

/* A matrix, or a side of an adapter, in the dtype that products read. */
static const void *matrix_of(const LayerPass *w, const Param *p) {
    Dtype compute = w->pass->model->compute;
    if (!is_replicated(w, p)) return weights_matrix(w->pass->weights, p);
    const float *held = weights_vector(w->pass->weights, p);
    if (compute == DTYPE_F32) return held;
    OP(w->pass->device, cast, p->count, held, DTYPE_F32, w->adapters->replicated, compute);
    return w->adapters->replicated;
}

/* ---- adapters ----
 *
 * Where TP may not shard matrices, both sides of an adapter are ordinary matrices. Where it may, one side is
 * sharded with its matrix and still ordinary, and the other is replicated (params.h: param_is_replicated):
 *
 *               q k v, gate and up                 output, down
 *     replicated   A                               B
 *     forward      y += s (x A^T) B^T              x A^T is reduced over ranks, and saved: y += s (it) B^T
 *     backward     s dy B is reduced: dx += (it) A dx += (s dy B) A
 *     replicated's dA += (it)^T x                  dB += (s dy)^T (x A^T)
 *     other's      dB += (s dy)^T (x A^T)          dA += (s dy B)^T x
 *
 * Partial sums of both are reduced together with those of the product. What is computed from the results is
 * for local tokens, and so are the gradients of replicated sides, which belong to dgrad. Adapters of heads
 * that are made from latents work on all tokens on each rank, as the latents do (product_latents_summed).
 * Matrices that make latents are unsharded, and their adapters are ordinary matrices. */

/* The adapter of one of the matrices that a product takes as one. */
typedef struct Adapter {
    const Param *a, *b;
    Dim outputs;
    int64_t out, in, rank;
    int64_t first, width; /* offset of its outputs among the product's `width` outputs */
    int64_t at;           /* offset of its r columns among those of all adapters of the product */
} Adapter;

/* Whether its intermediate is reduced over ranks; never for matrices that make latents. */
static bool has_partials(const Model *m, const Param *a, const Param *b) {
    return param_is_replicated(&m->config, a->row) || param_is_replicated(&m->config, b->row);
}

/* The next adapter, from row *next on; false: there are no more. */
static bool next_adapter(const Model *m, int unit, const Product *p, int *next, Adapter *out) {
    const ParamTable *t = &m->table;
    int64_t first = 0, at = 0;
    for (int i = 0; m->config.adapter_rank > 0 && i < p->rows; i++) {
        const Param *matrix = param_of(t, unit, &p->weight[i]);
        const Param *a = matrix ? param_adapter(t, matrix, ADAPTER_A) : NULL,
                    *b = a ? param_adapter(t, matrix, ADAPTER_B) : NULL;
        if (a && i >= *next) {
            int64_t width = model_dim(&m->config, p->out);
            *out = (Adapter){a, b, p->weight[i].rows, b->rows, a->cols, a->rows, first, width, at};
            *next = i + 1;
            return true;
        }
        if (a && has_partials(m, a, b)) at += a->rows;
        if (matrix) first += model_dim(&m->config, p->weight[i].rows);
    }
    return false;
}

static bool adapter_of(const LayerPass *w, const Product *p, int *next, Adapter *out) {
    return next_adapter(w->pass->model, w->unit, p, next, out);
}

int product_adapters(const Model *m, int unit, const Product *p) {
    Adapter a;
    int count = 0;
    for (int next = 0; next_adapter(m, unit, p, &next, &a);) count += has_partials(m, a.a, a.b);
    return count;
}

/* The sum [tokens, r] to `inner`; or this rank's partial sums of it, to those that are reduced with the
 * product's. */
static void inner_product(const LayerPass *w, const Product *p, const Adapter *a, int64_t tokens, bool back,
                          const void *from, bool is_partial, KSplit splits, void *inner) {
    const Model *m = w->pass->model;
    const Param *side = back ? a->b : a->a;
    int64_t width = is_partial ? product_adapters(m, w->unit, p) * a->rank : a->rank;
    OP(w->pass->device, gemm, .trans_b = !back, .m = tokens, .n = a->rank, .k = back ? a->out : a->in,
       .a = from, .b = matrix_of(w, side), .ab_type = m->compute,
       .c = is_partial ? (void *)(w->shared->inner + a->at) : inner,
       .c_type = is_partial ? DTYPE_F32 : m->compute, .ldc = width, .splits = splits);
}

/* x A^T; returns true if these are partial sums over ranks. */
static bool adapter_inner(const LayerPass *w, const Product *p, const Adapter *a, const void *x,
                          void *inner) {
    const Model *m = w->pass->model;
    bool replicated = is_replicated(w, a->b), is_partial = replicated && product_makes_partials(m, p);
    inner_product(w, p, a, m->tokens, false, x, is_partial,
                  replicated ? model_k_split(m, p->in) : model_one_split(m, a->in), inner);
    return is_partial;
}

/* outer [tokens, out] = s dy, for the outputs of this matrix */
static void adapter_outer(const LayerPass *w, const Adapter *a, int64_t tokens, const void *dy) {
    const Model *m = w->pass->model;
    OP(w->pass->device, scale, .rows = tokens, .n = a->out, .factor = (float)m->config.adapter_scale,
       .in = model_at(m, dy, a->first), .ldi = a->width, .out = w->adapters->outer, .c = m->compute);
}

/* inner = outer B; returns true if these are partial sums over ranks. */
static bool adapter_outer_inner(const LayerPass *w, const Product *p, const Adapter *a, int64_t tokens) {
    const Model *m = w->pass->model;
    bool replicated = is_replicated(w, a->a), is_partial = replicated && product_reads_all(m, p);
    inner_product(w, p, a, tokens, true, w->adapters->outer, is_partial,
                  replicated ? model_k_split(m, a->outputs) : model_one_split(m, a->out), w->adapters->inner);
    return is_partial;
}

/* Takes the reduced sums of local tokens. */
static void inner_summed(const LayerPass *w, const Product *p, const Adapter *a, void *inner) {
    const Model *m = w->pass->model;
    int64_t own = model_local_tokens(m), width = product_adapters(m, w->unit, p) * a->rank;
    size_t row = (size_t)a->rank * sizeof(float);
    OP(w->pass->device, copy_rows, .rows = own, .bytes = row, .to = w->adapters->apart, .to_stride = row,
       .from = w->shared->inner + m->tp.rank * own * width + a->at,
       .from_stride = (size_t)width * sizeof(float));
    OP(w->pass->device, cast, own * a->rank, w->adapters->apart, DTYPE_F32, inner, m->compute);
}

/* y += s inner B^T. The scale is applied to the narrow operand. */
static void add_to_output(const LayerPass *w, const Adapter *a, int64_t tokens, const void *inner, void *y) {
    const Model *m = w->pass->model;
    OP(w->pass->device, scale, .rows = tokens, .n = a->rank, .factor = (float)m->config.adapter_scale,
       .in = inner, .ldi = a->rank, .out = w->adapters->inner, .c = m->compute);
    OP(w->pass->device, gemm, .trans_b = true, .m = tokens, .n = a->out, .k = a->rank,
       .a = w->adapters->inner, .b = matrix_of(w, a->b), .ab_type = m->compute, .c = model_at(m, y, a->first),
       .c_type = m->compute, .ldc = a->width, .accumulate = true, .splits = model_one_split(m, a->rank));
}

/* dx += inner A */
static void add_to_input(const LayerPass *w, const Adapter *a, int64_t tokens, void *dx) {
    const Model *m = w->pass->model;
    OP(w->pass->device, gemm, .m = tokens, .n = a->in, .k = a->rank, .a = w->adapters->inner,
       .b = matrix_of(w, a->a), .ab_type = m->compute, .c = dx, .c_type = m->compute, .ldc = a->in,
       .accumulate = true, .splits = model_one_split(m, a->rank));
}

/* dW [out, in] += left [T, out]^T right [T, in], per exact chunk. The first microbatch overwrites. */
static void adapter_gradient(const LayerPass *w, const Param *p, const void *left, const void *right) {
    const Model *m = w->pass->model;
    int64_t tokens = model_exact_chunk(m, m->tokens);
    for (int r = 0; p->flat != FLAT_FROZEN && r < model_exact_chunks(m); r++)
        OP(w->pass->device, gemm, .trans_a = true, .m = p->rows, .n = p->cols, .k = tokens,
           .a = model_at(m, left, r * tokens * p->rows), .b = model_at(m, right, r * tokens * p->cols),
           .ab_type = m->compute, .c = gradient_of_exact_chunk(&w->pass->gradients, p, r),
           .c_type = DTYPE_F32, .ldc = p->cols, .accumulate = !w->pass->first,
           .splits = model_one_split(m, tokens));
}

/* The same over local tokens, split by split, as for a norm, and always added. If param_sees_all, over all
 * tokens. */
static void replicated_gradient(const LayerPass *w, const Param *p, const void *left, const void *right) {
    const Model *m = w->pass->model;
    bool all = param_sees_all(p->row);
    int64_t split_size = all ? model_exact_chunk(m, m->tokens) : model_token_split(m),
            each = all ? 1 : model_exact_chunk(m, model_local_tokens(m)) / split_size;
    for (int64_t i = 0; i < model_exact_chunks(m) * each; i++)
        OP(w->pass->device, gemm, .trans_a = true, .m = p->rows, .n = p->cols, .k = split_size,
           .a = model_at(m, left, i * split_size * p->rows),
           .b = model_at(m, right, i * split_size * p->cols), .ab_type = m->compute,
           .c = gradient_of_exact_chunk(&w->pass->gradients, p, (int)(i / each)) + i % each * p->count,
           .c_type = DTYPE_F32, .ldc = p->cols, .accumulate = true, .splits = model_one_split(m, split_size));
}

static void adapters_forward(const LayerPass *w, const Product *p, const void *x, void *y) {
    const Model *m = w->pass->model;
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) {
        void *inner = is_replicated(w, a.b) ? w->inner : w->adapters->inner;
        if (!adapter_inner(w, p, &a, x, inner)) add_to_output(w, &a, m->tokens, inner, y);
    }
}

void product_adapters_inner(const LayerPass *w, const Product *p, const void *x) {
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) adapter_inner(w, p, &a, x, w->inner);
}

void product_adapters_output(const LayerPass *w, const Product *p, void *y) {
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);)
        add_to_output(w, &a, w->pass->model->tokens, w->inner, y);
}

void product_adapters_summed(const LayerPass *w, const Product *p, void *y) {
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) {
        inner_summed(w, p, &a, w->inner);
        add_to_output(w, &a, model_local_tokens(w->pass->model), w->inner, y);
    }
}

/* dx += (s dy B) A, and the gradient of a replicated side. */
static void adapter_input(const LayerPass *w, const Product *p, const Adapter *a, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    adapter_outer(w, a, m->tokens, dy);
    if (!adapter_outer_inner(w, p, a, m->tokens)) {
        add_to_input(w, a, m->tokens, dx);
        if (is_replicated(w, a->a)) replicated_gradient(w, a->a, w->adapters->inner, w->local_x);
    }
    if (!is_replicated(w, a->b)) return;
    adapter_outer(w, a, model_local_tokens(m), w->local_dy);
    replicated_gradient(w, a->b, w->adapters->outer, w->inner);
}

static void adapters_input(const LayerPass *w, const Product *p, const void *dy, void *dx) {
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) adapter_input(w, p, &a, dy, dx);
}

void product_adapters_input(const LayerPass *w, const Product *p, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);)
        if (has_partials(m, a.a, a.b)) adapter_input(w, p, &a, dy, dx);
}

void product_full_input(const LayerPass *w, const Product *p, int64_t tokens, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) {
        if (has_partials(m, a.a, a.b)) continue;
        adapter_outer(w, &a, tokens, dy);
        adapter_outer_inner(w, p, &a, tokens);
        add_to_input(w, &a, tokens, dx);
    }
}

void product_latents_summed(const LayerPass *w, const Product *p, const float *partials, const void *x,
                            void *dx) {
    const Model *m = w->pass->model;
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) {
        OP(w->pass->device, cast, m->tokens * a.rank, partials, DTYPE_F32, w->adapters->inner, m->compute);
        add_to_input(w, &a, m->tokens, dx);
        replicated_gradient(w, a.a, w->adapters->inner, x);
    }
}

void product_input_summed(const LayerPass *w, const Product *p, void *dx) {
    const Model *m = w->pass->model;
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) {
        if (!has_partials(m, a.a, a.b)) continue;
        inner_summed(w, p, &a, w->adapters->inner);
        add_to_input(w, &a, model_local_tokens(m), dx);
        replicated_gradient(w, a.a, w->adapters->inner, w->local_x);
    }
}

/* dA += (s dy B)^T x, dB += (s dy)^T (x A^T), for sides that are not replicated. */
static void adapters_weight(const LayerPass *w, const Product *p, const void *dy, const void *x) {
    Adapter a;
    for (int next = 0; adapter_of(w, p, &next, &a);) {
        adapter_outer(w, &a, w->pass->model->tokens, dy);
        if (!is_replicated(w, a.a)) {
            adapter_outer_inner(w, p, &a, w->pass->model->tokens);
            adapter_gradient(w, a.a, w->adapters->inner, x);
        }
        if (is_replicated(w, a.b)) continue;
        adapter_inner(w, p, &a, x, w->adapters->inner);
        adapter_gradient(w, a.b, w->adapters->outer, w->adapters->inner);
    }
}

/* ---- products ---- */

static void add_bias(const LayerPass *w, const Product *p, int64_t tokens, void *y) {
    const Model *m = w->pass->model;
    const Param *bias = product_bias(w, p);
    if (bias)
        OP(w->pass->device, bias_forward, .tokens = tokens, .n = model_dim(&m->config, p->out), .y = y,
           .bias = weights_vector(w->pass->weights, bias), .c = m->compute);
}

/* A replicated matrix is multiplied by local tokens only. */
static int64_t tokens_of(const LayerPass *w, const Param *matrix) {
    const Model *m = w->pass->model;
    return is_replicated(w, matrix) ? model_local_tokens(m) : m->tokens;
}

/* Y [T, out] = X W^T; the flag is set if W is stored as [out, in]. The bias is added in a separate pass over
 * y; partial sums get it after their reduction. */
void product_forward(const LayerPass *w, const Product *p, const void *x, void *y) {
    const Model *m = w->pass->model;
    const Param *matrix = product_matrix(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    bool partials = product_makes_partials(m, p);
    OP(w->pass->device, gemm, .trans_b = !matrix->transposed, .m = tokens_of(w, matrix), .n = out, .k = in,
       .a = x, .b = matrix_of(w, matrix), .ab_type = m->compute, .c = y,
       .c_type = partials ? DTYPE_F32 : m->compute, .ldc = out,
       .splits = splits_over(m, p, ROW_PARALLEL, p->in));
    if (!partials) add_bias(w, p, m->tokens, y);
    adapters_forward(w, p, x, y);
}

void product_summed(const LayerPass *w, const Product *p, const float *partials, void *y) {
    const Model *m = w->pass->model;
    int64_t own = model_local_tokens(m);
    OP(w->pass->device, cast, own * model_dim(&m->config, p->out), partials, DTYPE_F32, y, m->compute);
    add_bias(w, p, own, y);
    product_adapters_summed(w, p, y);
}

/* With a column-parallel product, the bias is sharded, and its gradient is a sum over all tokens. Otherwise
 * the bias is replicated, and its gradient is a sum over local tokens, by splits as for a norm. */
static void bias_gradient(const LayerPass *w, const Product *p, const void *dy) {
    const Model *m = w->pass->model;
    const Param *bias = product_bias(w, p);
    bool cut = p->weight->tp == COLUMN_PARALLEL;
    int64_t out = model_dim(&m->config, p->out),
            tokens = model_exact_chunk(m, cut ? m->tokens : model_local_tokens(m));
    for (int r = 0; bias && r < model_exact_chunks(m); r++)
        OP(w->pass->device, bias_backward, .tokens = tokens, .n = out,
           .dy = model_at(m, cut ? dy : w->local_dy, r * tokens * out),
           .db = gradient_of_exact_chunk(&w->pass->gradients, bias, r),
           .split_size = cut ? tokens : model_token_split(m), .c = m->compute);
}

void product_input(const LayerPass *w, const Product *p, const void *dy, void *dx) {
    const Model *m = w->pass->model;
    const Param *matrix = product_matrix(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, gemm, .trans_b = matrix->transposed, .m = tokens_of(w, matrix), .n = in, .k = out,
       .a = dy, .b = matrix_of(w, matrix), .ab_type = m->compute, .c = dx,
       .c_type = product_reads_all(m, p) ? DTYPE_F32 : m->compute, .ldc = in,
       .splits = splits_over(m, p, COLUMN_PARALLEL, p->out));
    adapters_input(w, p, dy, dx);
    bias_gradient(w, p, dy); /* gradients of vectors belong to dgrad */
}

/* The first microbatch overwrites, later ones add. */
static void weight_of_exact_chunk(const LayerPass *w, const Product *p, const Param *matrix, int exact_chunk,
                                  const void *dy, const void *x) {
    const Model *m = w->pass->model;
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in),
            tokens = model_exact_chunk(m, m->tokens), first = exact_chunk * tokens;
    float *gradient = gradient_of_exact_chunk(&w->pass->gradients, matrix, exact_chunk);
    bool add = !w->pass->first;
    KSplit splits = model_one_split(m, tokens);
    dy = model_at(m, dy, first * out), x = model_at(m, x, first * in);
    if (matrix->transposed) /* dW [in, out] = X^T dY */
        OP(w->pass->device, gemm, .trans_a = true, .m = in, .n = out, .k = tokens, .a = x, .b = dy,
           .ab_type = m->compute, .c = gradient, .c_type = DTYPE_F32, .ldc = out, .accumulate = add,
           .splits = splits);
    else
        OP(w->pass->device, gemm, .trans_a = true, .m = out, .n = in, .k = tokens, .a = dy, .b = x,
           .ab_type = m->compute, .c = gradient, .c_type = DTYPE_F32, .ldc = in, .accumulate = add,
           .splits = splits);
}

/* Elsewhere called: gradient accumulation fusion (Megatron), wgrad into main_grad: the GEMM adds to the fp32
 * gradient. */
void product_weight(const LayerPass *w, const Product *p, const void *dy, const void *x) {
    const Model *m = w->pass->model;
    const Param *matrix = product_matrix(w, p);
    adapters_weight(w, p, dy, x);
    if (matrix->flat == FLAT_FROZEN || is_replicated(w, matrix)) return;
    for (int r = 0; r < model_exact_chunks(m); r++) weight_of_exact_chunk(w, p, matrix, r, dy, x);
}

void product_replicated(const LayerPass *w, const Product *p, const void *dy, const void *x) {
    const Param *matrix = product_matrix(w, p);
    if (is_replicated(w, matrix)) replicated_gradient(w, matrix, dy, x);
}

/* ---- norms ---- */

enum { WEIGHT, BIAS }; /* of NORM_ROWS */

void norm_forward(const Pass *p, int unit, const ParamRow rows[NORM_ROWS], int64_t tokens, const void *a,
                  const void *b, void *sum, void *y, float *rstd) {
    const Model *m = p->model;
    const Param *w = param_of(&m->table, unit, &rows[WEIGHT]), *bias = param_of(&m->table, unit, &rows[BIAS]);
    OP(p->device, norm_forward, .kind = model_family(&m->config)->arch.norm, .tokens = tokens,
       .hidden = m->config.hidden_size, .eps = (float)m->config.rms_norm_eps, .a = a, .b = b,
       .w = weights_vector(p->weights, w), .bias = bias ? weights_vector(p->weights, bias) : NULL, .sum = sum,
       .y = y, .rstd = rstd, .c = m->compute);
}

/* The gradient of a norm's bias is that of any bias. Both gradients are of vectors, so they are added to in
 * dgrad, also in the first microbatch; by splits of the tokens, which may be on several ranks. */
void norm_backward(const Pass *p, int unit, const ParamRow rows[NORM_ROWS], const void *x, const float *rstd,
                   const void *dy, void *dx, bool add) {
    const Model *m = p->model;
    int64_t hidden = m->config.hidden_size, own = model_exact_chunk(m, model_local_tokens(m));
    const Param *w = param_of(&m->table, unit, &rows[WEIGHT]), *bias = param_of(&m->table, unit, &rows[BIAS]);
    for (int r = 0; bias && r < model_exact_chunks(m); r++)
        OP(p->device, bias_backward, .tokens = own, .n = hidden, .dy = model_at(m, dy, r * own * hidden),
           .db = gradient_of_exact_chunk(&p->gradients, bias, r), .split_size = model_token_split(m),
           .c = m->compute);
    for (int r = 0; r < model_exact_chunks(m); r++)
        OP(p->device, norm_backward, .kind = model_family(&m->config)->arch.norm, .tokens = own,
           .hidden = hidden, .x = model_at(m, x, r * own * hidden), .w = weights_vector(p->weights, w),
           .rstd = rstd + r * own, .dy = model_at(m, dy, r * own * hidden),
           .dx = model_at(m, dx, r * own * hidden), .add = add,
           .dw = gradient_of_exact_chunk(&p->gradients, w, r), .split_size = model_token_split(m),
           .c = m->compute);
}
