/* Mixture of experts in place of an MLP: each token goes to k of E experts (Shazeer et al., "Outrageously
 * large neural networks: the sparsely-gated mixture-of-experts layer", 2017; Fedus, Zoph & Shazeer, "Switch
 * transformers", 2021):
 *
 *     router       s = softmax(x Wr^T), k experts with the largest s; weights w are their s, divided by their
 *                  sum where the family does that. DeepSeek's and Llama 4's: the op route
 *     gate and up  [g|u] = x [Wgate;Wup]^T       of the rows of each expert
 *     down         y = sum over the token's experts of w (f(g) * u) Wdown^T
 *
 * Shared experts (Dai et al., "DeepSeekMoE", 2024) are an MLP alongside, whose result is added:
 *
 *     shared       y += (f(g) * u) Wdown^T of an MLP of all tokens
 *
 * In gpt-oss all experts have biases, gate and up are interleaved, and one parameter holds the matrices of
 * all experts. Biases of gate and up are sharded over ep with the experts. Those of down are on all ranks of
 * ep, with the router: they are added, and their gradients made, on the rank of the tokens.
 *
 * In Llama 4 a weight multiplies its expert's input instead of its result: rows are gathered times their
 * weights, results are added up unweighted, and the gradient of x is weighted instead.
 *
 * Load balancing: a loss (balance), or without one a bias on the scores by which experts are chosen
 * (CORRECTION_BIAS, BALANCE_BIAS), which engine/update.c: move_run moves once a step.
 *
 * No token is dropped: the planned memory holds k rows for each token, wherever they go. Rows are sorted by
 * expert, tokens ascending, and the k results of a token are added in the order of experts, so nothing
 * depends on which finishes first. An expert may get no tokens: its gradient is then zero, and its optimizer
 * states are updated as usual.
 *
 * The routing is chosen once and saved under every policy, so that recomputation routes alike.
 * Rows of x are gathered again for wgrad, which is a copy, rather than saved.
 *
 * Expert parallelism: rows are dispatched to the ranks of their experts (layer.h: ExpertDispatch). A product
 * takes the rows of all source ranks, since a row's bits do not depend on the others; a gradient of weights
 * is the sum of those that the tokens of each source rank make, in the canonical tree. So the bits are those
 * of one rank that has all experts.
 *
 * TP: each rank has a slice of every expert's width, and all tokens. All ranks route alike, from the same
 * bits. The combined results of a token's experts, the gradient of x, and the gradients of routing weights
 * are partial sums, reduced over ranks; the latter before the router's backward pass. The router then adds
 * to the gradient of x for local tokens, after that sum, and its own gradient is complete and the same on
 * each rank. With EP as well, rows are dispatched to ranks with the same slice, and fp32 rows of each local
 * split come back. Shared experts are sharded as one MLP, and the result of each of their splits is added to
 * that of the same split of the routed experts: so one sum over ranks covers both.
 *
 * Where TP shards no expert (ModelConfig.whole_experts), sums over an expert's width are not split. Every
 * rank of TP still routes all tokens, since the router's gradient is of all, but it makes only the rows of
 * its own tokens, and dispatches them to ranks of EP that include those of its TP group. Their results are
 * added to the rounded sum of shared experts, after the sum over ranks. A rank of EP merges the rows from one
 * TP group as if one rank had sent them, since the gradient of an expert is a sum over these rows in the
 * order of tokens.
 *
 * With exact chunks, whose gradients are rounded by themselves (unit.h: CpGroup), the rows of each exact
 * chunk are also sorted and processed by themselves: the bits of a gradient depend on the rows in its sum,
 * which are then the exact chunk's on whichever rank. With CP, a sequence may begin on one rank and end on
 * another: its expert counts are summed over cp before the backward pass.
 *
 * Elsewhere called: MoE layer: router (TopKRouter), permute, grouped GEMM, unpermute and combine; auxiliary
 * (load-balancing) loss. */
#include "base/tree.h"
#include "device/ops/experts.h"
#include "device/ops/linear.h"
#include "device/ops/loss.h"
#include "device/ops/memory.h"
#include "model/families/family.h"
#include "model/unit.h"

enum {
    ROUTER_BIAS,
    CORRECTION_BIAS,
    BALANCE_BIAS,
    GATE_UP_BIAS,
    DOWN_BIAS,
    ROUTER,
    GATE_UP_FUSED,
    GATE,
    UP,
    DOWN,
    DOWN_FUSED,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
    MATRICES
};
enum {
    SHARED_GATE_A = MATRICES,
    SHARED_GATE_B,
    SHARED_UP_A,
    SHARED_UP_B,
    SHARED_DOWN_A,
    SHARED_DOWN_B,
    PARAMS
};
enum { GATE_UP_ROWS = 3, DOWN_ROWS = 2 }; /* rows of which a product takes those that the model has */
static const ParamRow params[PARAMS] = {
    [ROUTER_BIAS] = {"mlp.gate.bias", DIM_EXPERTS, .when = WHEN_EXPERT_BIAS, .init = ROLE_ZEROS,
                     .router = true},
    [CORRECTION_BIAS] = {"mlp.gate.e_score_correction_bias", DIM_EXPERTS, .when = WHEN_CORRECTION_BIAS,
                         .init = ROLE_ZEROS, .fixed = true, .router = true},
    [BALANCE_BIAS] = {"mlp.gate.balance_bias", DIM_EXPERTS, .when = WHEN_BALANCE_BIAS, .init = ROLE_ZEROS,
                      .fixed = true, .router = true, .with_states = true},
    [GATE_UP_BIAS] = {"mlp.experts.gate_up_proj_bias", DIM_EXPERT_GATE_UP, .when = WHEN_EXPERT_BIAS,
                      .tp = COLUMN_PARALLEL, .init = ROLE_ZEROS, .fused = true},
    [DOWN_BIAS] = {"mlp.experts.down_proj_bias", DIM_HIDDEN, .when = WHEN_EXPERT_BIAS, .init = ROLE_ZEROS,
                   .fused = true, .router = true},
    [ROUTER] = {"mlp.gate.weight", DIM_EXPERTS, DIM_HIDDEN, .init = ROLE_INNER, .decays = true,
                .router = true},
    [GATE_UP_FUSED] = {"mlp.experts.gate_up_proj", DIM_EXPERT_GATE_UP, DIM_HIDDEN, .when = WHEN_EXPERTS_FUSED,
                       .tp = COLUMN_PARALLEL, .init = ROLE_UP, .decays = true, .fused = true},
    [GATE] = {"mlp.experts.*.gate_proj.weight", DIM_EXPERT, DIM_HIDDEN, .when = WHEN_EXPERTS_SEPARATE,
              .tp = COLUMN_PARALLEL, .init = ROLE_INNER, .decays = true, .expert = true},
    [UP] = {"mlp.experts.*.up_proj.weight", DIM_EXPERT, DIM_HIDDEN, .when = WHEN_EXPERTS_SEPARATE,
            .tp = COLUMN_PARALLEL, .init = ROLE_UP, .decays = true, .continues = true, .expert = true},
    [DOWN] = {"mlp.experts.*.down_proj.weight", DIM_HIDDEN, DIM_EXPERT, .when = WHEN_EXPERTS_SEPARATE,
              .tp = ROW_PARALLEL, .init = ROLE_DOWN, .decays = true, .expert = true},
    [DOWN_FUSED] = {"mlp.experts.down_proj", DIM_HIDDEN, DIM_EXPERT, .when = WHEN_EXPERTS_FUSED,
                    .tp = ROW_PARALLEL, .init = ROLE_DOWN, .decays = true, .fused = true},
    [SHARED_GATE] = {"mlp.shared_experts.gate_proj.weight", DIM_SHARED, DIM_HIDDEN, .when = WHEN_SHARED,
                     .tp = COLUMN_PARALLEL, .init = ROLE_INNER, .decays = true},
    [SHARED_UP] = {"mlp.shared_experts.up_proj.weight", DIM_SHARED, DIM_HIDDEN, .when = WHEN_SHARED,
                   .tp = COLUMN_PARALLEL, .init = ROLE_UP, .decays = true, .continues = true},
    [SHARED_DOWN] = {"mlp.shared_experts.down_proj.weight", DIM_HIDDEN, DIM_SHARED, .when = WHEN_SHARED,
                     .tp = ROW_PARALLEL, .init = ROLE_DOWN, .decays = true},
    ADAPTER_ROWS(SHARED_GATE, DIM_SHARED, DIM_HIDDEN),
    ADAPTER_ROWS(SHARED_UP, DIM_SHARED, DIM_HIDDEN),
    ADAPTER_ROWS(SHARED_DOWN, DIM_HIDDEN, DIM_SHARED),
};

enum {
    SCORES,
    CHOSEN,
    WEIGHTS,
    ROW,
    TOKEN,
    FIRST,
    GATE_UP,
    ROWS,
    ACT,
    DACT,
    DGATE_UP,
    DWEIGHTS,
    BIAS_WEIGHTS,
    DLOGITS,
    BALANCE,
    COUNTS,
    ALL_FIRST,
    OWN_FIRST,
    LOCAL_DY,
    ROW_WEIGHTS,
    REMOTE_X,
    REMOTE_DY,
    REMOTE_WEIGHTS,
    PARTIAL_ROWS,
    PARTIAL_SUMS,
    REMOTE_PARTIALS,
    ARRIVED,
    ORDERS,
    TENSORS,
    SHARED_GATE_UP = TENSORS,
    SHARED_ACT,
    DSHARED_GATE_UP,
    SHARED_ROWS,
    SHARED_TENSORS
};
static const TensorRow tensors[SHARED_TENSORS] = {
    /* Routes. Rows, and tokens of rows, count within their routing piece. wgrad reads them too
     * (weights and rows only where weights multiply the input); they are saved anyway. */
    [SCORES] = {.width = DIM_EXPERTS, .element = ELEMENT_FP32, .life = LIFE_ALWAYS},
    [CHOSEN] = {.width = DIM_CHOSEN, .element = ELEMENT_INDEX, .life = LIFE_ALWAYS},
    [WEIGHTS] = {.width = DIM_CHOSEN, .element = ELEMENT_FP32, .life = LIFE_ALWAYS, .operand = true},
    [ROW] = {.width = DIM_CHOSEN, .element = ELEMENT_INDEX, .life = LIFE_ALWAYS, .operand = true},
    [TOKEN] = {.width = DIM_CHOSEN, .element = ELEMENT_INDEX, .life = LIFE_ALWAYS, .operand = true},
    [FIRST] = {EXTENT_PIECES, DIM_RUNS, ELEMENT_INDEX, .life = LIFE_ALWAYS, .operand = true},
    [GATE_UP] = {EXTENT_WORKED, DIM_EXPERT_GATE_UP, .life = LIFE_CHEAP},
    [ROWS] = {EXTENT_ASSIGNMENTS, DIM_HIDDEN, .life = LIFE_SCRATCH}, /* of x, of results, and of gradients */
    /* for wgrad, times the weight */
    [ACT] = {EXTENT_WORKED, DIM_EXPERT, .life = LIFE_SCRATCH, .operand = true},
    [DACT] = {EXTENT_WORKED, DIM_EXPERT, .life = LIFE_SCRATCH},
    [DGATE_UP] = {EXTENT_WORKED, DIM_EXPERT_GATE_UP, .life = LIFE_SCRATCH, .operand = true},
    [DWEIGHTS] = {.width = DIM_CHOSEN, .element = ELEMENT_FP32, .life = LIFE_SCRATCH},
    /* Contribution of the biases of down to DWEIGHTS. Kept separate, since it is not a partial sum over
     * ranks. */
    [BIAS_WEIGHTS] = {.width = DIM_CHOSEN,
                      .element = ELEMENT_FP32,
                      .life = LIFE_SCRATCH,
                      .need = NEED_EXPERT_BIAS},
    [DLOGITS] = {.width = DIM_EXPERTS, .life = LIFE_SCRATCH, .operand = true},
    [BALANCE] = {.width = DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_SCRATCH},
    [COUNTS] = {EXTENT_SEQUENCES, DIM_EXPERTS, ELEMENT_COUNT, .life = LIFE_ALWAYS, .need = NEED_BALANCE},
    /* FIRST of all ranks; and of their rows here. */
    [ALL_FIRST] = {EXTENT_LOCAL_PIECES, DIM_ALL_RUNS, ELEMENT_INDEX, .life = LIFE_ALWAYS,
                   .need = NEED_DISPATCH},
    [OWN_FIRST] = {EXTENT_EXACT_CHUNKS, DIM_LOCAL_RUNS, ELEMENT_INDEX, .life = LIFE_SCRATCH,
                   .need = NEED_DISPATCH},
    [LOCAL_DY] = {EXTENT_ASSIGNMENTS, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_DISPATCH},
    [ROW_WEIGHTS] = {EXTENT_ASSIGNMENTS, DIM_ONE, ELEMENT_FP32, .life = LIFE_SCRATCH, .need = NEED_DISPATCH},
    /* the remote ROWS */
    [REMOTE_X] = {EXTENT_WORKED, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_DISPATCH},
    [REMOTE_DY] = {EXTENT_WORKED, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_DISPATCH},
    [REMOTE_WEIGHTS] = {EXTENT_WORKED, DIM_ONE, ELEMENT_FP32, .life = LIFE_SCRATCH, .need = NEED_DISPATCH},
    /* Result of one split for each row, one split at a time, or with dispatch for all splits; and the sums of
     * splits for each token. */
    [PARTIAL_ROWS] = {EXTENT_SPLIT_ASSIGNMENTS, DIM_HIDDEN, ELEMENT_FP32, .life = LIFE_SCRATCH,
                      .need = NEED_EXPERT_SPLITS},
    [PARTIAL_SUMS] = {EXTENT_SPLIT_PARTIALS, DIM_HIDDEN, ELEMENT_FP32, .life = LIFE_SCRATCH,
                      .need = NEED_EXPERT_SPLITS},
    [REMOTE_PARTIALS] = {EXTENT_SPLIT_WORKED, DIM_HIDDEN, ELEMENT_FP32, .life = LIFE_SCRATCH,
                         .need = NEED_DISPATCH_SPLITS},
    [ARRIVED] = {EXTENT_WORKED, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_FOLDED},
    [ORDERS] = {EXTENT_ORDERS, DIM_ONE, ELEMENT_INDEX, .life = LIFE_SCRATCH, .need = NEED_FOLDED},
    [SHARED_GATE_UP] = {.width = DIM_SHARED_GATE_UP, .life = LIFE_CHEAP},
    [SHARED_ACT] = {.width = DIM_SHARED, .life = LIFE_SCRATCH, .operand = true}, /* as in layers/mlp.c */
    [DSHARED_GATE_UP] = {.width = DIM_SHARED_GATE_UP, .life = LIFE_SCRATCH, .operand = true},
    /* The result of shared experts, then the gradient of x; where ranks reduce these, of routed experts. */
    [SHARED_ROWS] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_WHOLE_EXPERTS},
};

static const Product router = {&params[ROUTER], &params[ROUTER_BIAS], 1, DIM_EXPERTS, DIM_HIDDEN};
static const Product gate_up = {&params[GATE_UP_FUSED], NULL, GATE_UP_ROWS, DIM_EXPERT_GATE_UP, DIM_HIDDEN};
static const Product down = {&params[DOWN], NULL, DOWN_ROWS, DIM_HIDDEN, DIM_EXPERT};
static const Product shared_gate_up = {&params[SHARED_GATE], NULL, 2, DIM_SHARED_GATE_UP, DIM_HIDDEN};
static const Product shared_down = {&params[SHARED_DOWN], NULL, 1, DIM_HIDDEN, DIM_SHARED};

static int exact_chunks(const LayerPass *w) { return model_exact_chunks(w->pass->model); }

/* Whether a weight multiplies its expert's input. */
/* Routing pieces whose rows this rank makes. */
static int pieces(const LayerPass *w) { return model_local_pieces(w->pass->model); }

static bool is_folded(const LayerPass *w) { return model_is_folded(w->pass->model); }

static bool weighs_input(const LayerPass *w) {
    return model_family(&w->pass->model->config)->arch.weighs_input;
}

/* Shape of the routing of one piece. */
static RouteShape shape_of(const LayerPass *w) {
    const Model *m = w->pass->model;
    const ModelConfig *c = &m->config;
    const Param *bias =
        param_of(&m->table, w->unit, &params[c->balance_bias ? BALANCE_BIAS : CORRECTION_BIAS]);
    return (RouteShape){.tokens = model_piece(m),
                        .sequence = model_sequence(m),
                        .experts = (int)c->num_experts,
                        .chosen = (int)c->num_experts_per_tok,
                        .normalise = c->norm_topk_prob,
                        .balance = (float)model_balance(c),
                        .sigmoid = model_family(c)->arch.sigmoid_router || weighs_input(w),
                        .groups = c->n_group > 1 ? (int)c->n_group : 0,
                        .groups_chosen = (int)c->topk_group,
                        .factor = (float)c->routed_scaling_factor,
                        .bias = bias ? weights_vector(w->pass->weights, bias) : NULL};
}

/* Routes from `token` on. Runs of rows are those of the first piece. */
static Routes routes_at(const LayerPass *w, int64_t token) {
    const ModelConfig *c = &w->pass->model->config;
    void *const *t = w->tensors;
    int64_t assignment = token * c->num_experts_per_tok;
    return (Routes){(float *)t[SCORES] + token * c->num_experts,
                    (int32_t *)t[CHOSEN] + assignment,
                    (float *)t[WEIGHTS] + assignment,
                    (int32_t *)t[ROW] + assignment,
                    (int32_t *)t[TOKEN] + assignment,
                    t[FIRST]};
}

static Routes routes_of_piece(const LayerPass *w, int piece) {
    const Model *m = w->pass->model;
    Routes r = routes_at(w, piece * model_piece(m));
    r.first += piece * model_dim(&m->config, DIM_RUNS);
    return r;
}

/* Of the i-th of this rank's own pieces. */
static Routes routes_of(const LayerPass *w, int i) {
    return routes_of_piece(w, model_first_piece(w->pass->model) + i);
}

/* The parameter of the first local expert, where each expert has its own parameters; else the fused one. */
static const Param *matrix_of(const LayerPass *w, const Product *p) {
    const Param *first = product_matrix(w, p);
    if (!first->row->expert) return first;
    const Model *m = w->pass->model;
    return param_of_expert(&m->table, w->unit, first->row, (int)model_first_expert(&m->config));
}

/* (token, expert) assignments of a piece. */
static int64_t assignments(const LayerPass *w) {
    return model_piece(w->pass->model) * w->pass->model->config.num_experts_per_tok;
}

/* The layer's input, and the gradient of its result, of the tokens whose rows this rank makes. */
static const void *input_of(const LayerPass *w) { return is_folded(w) ? w->local_x : w->x; }
static const void *gradient_of_result(const LayerPass *w) { return is_folded(w) ? w->local_dy : w->dy; }

/* Address in a tensor of such tokens, [tokens, h], of the first of a piece. */
static void *tokens_of(const LayerPass *w, int piece, const void *tokens) {
    const Model *m = w->pass->model;
    return model_at(m, tokens, piece * model_piece(m) * m->config.hidden_size);
}

static void *row_at(const LayerPass *w, int tensor, Dim width, int64_t row) {
    const Model *m = w->pass->model;
    return model_at(m, w->tensors[tensor], row * model_dim(&m->config, width));
}

/* ---- products of experts: [rows, in] to [rows, out], and their gradients ---- */

/* Rows that local experts process at once, sorted by expert: the assignments of one piece of local
 * tokens, or of dispatched ones of another rank. */
typedef struct Rows {
    int64_t count;
    const int32_t *first;
    int sources;  /* ranks of their tokens (ExpertRows) */
    int experts;  /* number of local experts that rows are sorted by */
    int gradient; /* index among the gradients of a weight: of the exact chunk; of dispatched rows 0 */
    void *x, *gate_up, *act, *dact, *dgate_up; /* [count, ...] */
    const void *dy;
} Rows;

static Rows local_rows(const LayerPass *w, int piece) {
    int64_t count = assignments(w), first = piece * count;
    return (Rows){.count = count,
                  .first = routes_of(w, piece).first,
                  .sources = 1,
                  .experts = (int)w->pass->model->config.num_experts,
                  .gradient = piece,
                  .x = row_at(w, ROWS, DIM_HIDDEN, first),
                  .gate_up = row_at(w, GATE_UP, DIM_EXPERT_GATE_UP, first),
                  .act = row_at(w, ACT, DIM_EXPERT, first),
                  .dact = row_at(w, DACT, DIM_EXPERT, first),
                  .dgate_up = row_at(w, DGATE_UP, DIM_EXPERT_GATE_UP, first),
                  .dy = row_at(w, ROWS, DIM_HIDDEN, first)};
}

static ExpertRows rows_of(const LayerPass *w, const Rows *r, const Param *first) {
    int64_t step = param_expert_step(&w->pass->model->table, first);
    return (ExpertRows){r->count, r->experts, r->first, step, r->sources};
}

static bool is_dispatched(const LayerPass *w) { return w->pass->model->dispatch_rows > 0; }

/* Whether sums over an expert's width are split. */
static bool has_splits(const LayerPass *w) { return model_expert_splits(w->pass->model) > 1; }

/* Fused expert weights are stored [inputs, outputs], matrices of single experts [outputs, inputs]. */
static void multiply(const LayerPass *w, const Product *p, const Rows *r, bool back, const void *x, void *y,
                     Dtype y_type, KSplit splits) {
    const Model *m = w->pass->model;
    const Param *first = matrix_of(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, grouped_gemm, .e = rows_of(w, r, first), .trans_b = back == first->transposed,
       .n = back ? in : out, .k = back ? out : in, .a = x, .b = weights_matrix(w->pass->weights, first),
       .ab_type = m->compute, .c = y, .c_type = y_type, .splits = splits);
}

/* A product whose sum is not split over ranks. */
static void expert_product(const LayerPass *w, const Product *p, const Rows *r, bool back, const void *x,
                           void *y) {
    const Model *m = w->pass->model;
    int64_t length = model_dim(&m->config, back ? p->out : p->in);
    multiply(w, p, r, back, x, y, m->compute, m->tp.splits > 1 ? model_one_split(m, length) : NO_SPLIT);
}

static void expert_weight(const LayerPass *w, const Product *p, const Rows *r, const void *dy,
                          const void *x) {
    const Model *m = w->pass->model;
    const Param *first = matrix_of(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    bool transposed = first->transposed;
    if (first->flat >= GRADIENT_FLATS) return;
    OP(w->pass->device, grouped_gemm_wgrad, .e = rows_of(w, r, first), .m = transposed ? in : out,
       .n = transposed ? out : in, .a = transposed ? x : dy, .b = transposed ? dy : x, .ab_type = m->compute,
       .c = gradient_of_exact_chunk(&w->pass->gradients, first, r->gradient), .accumulate = !w->pass->first);
}

/* ---- biases of experts ---- */

static const Param *bias_of(const LayerPass *w, int row) {
    return param_of(&w->pass->model->table, w->unit, &params[row]);
}

static void add_bias(const LayerPass *w, int row, Dim width, const Rows *r, void *y /* [rows, width] */,
                     Dtype type) {
    const Param *bias = bias_of(w, row);
    if (bias)
        OP(w->pass->device, experts_bias_forward, .e = rows_of(w, r, bias),
           .n = model_dim(&w->pass->model->config, width), .y = y,
           .bias = weights_vector(w->pass->weights, bias), .c = type);
}

/* Computed where the rows are processed. */
static void gate_up_bias(const LayerPass *w, const Rows *r) {
    const Model *m = w->pass->model;
    const Param *bias = bias_of(w, GATE_UP_BIAS);
    if (bias)
        OP(w->pass->device, experts_bias_backward, .s = (RouteShape){.experts = r->experts},
           .r = (Routes){.first = (int32_t *)(uintptr_t)r->first},
           .n = model_dim(&m->config, DIM_EXPERT_GATE_UP), .dy = r->dgate_up,
           .bias = weights_vector(w->pass->weights, bias),
           .dbias = gradient_of_exact_chunk(&w->pass->gradients, bias, r->gradient), .c = m->compute);
}

/* Computed locally, where dy was gathered into tensor `dy`. */
static void down_bias(const LayerPass *w, int exact_chunk, int dy) {
    const Model *m = w->pass->model;
    const Param *bias = bias_of(w, DOWN_BIAS);
    float *dweights = (float *)w->tensors[BIAS_WEIGHTS] + exact_chunk * assignments(w);
    if (!bias) return;
    OP(w->pass->device, zero, dweights, (size_t)assignments(w) * sizeof *dweights);
    OP(w->pass->device, experts_bias_backward, .s = shape_of(w), .r = routes_of(w, exact_chunk),
       .n = m->config.hidden_size, .dy = row_at(w, dy, DIM_HIDDEN, exact_chunk * assignments(w)),
       .weighed = true, .bias = weights_vector(w->pass->weights, bias),
       .dbias = gradient_of_exact_chunk(&w->pass->gradients, bias, exact_chunk), .dweights = dweights,
       .c = m->compute);
}

/* Adds the biases' contribution after DWEIGHTS was reduced over ranks. */
static void add_bias_weights(const LayerPass *w) {
    const Model *m = w->pass->model;
    float *dweights = w->tensors[DWEIGHTS];
    if (bias_of(w, DOWN_BIAS))
        OP(w->pass->device, add, model_assignments(m), dweights, w->tensors[BIAS_WEIGHTS], dweights,
           DTYPE_F32);
}

/* Gathers each row's token. Rows are looked up as in an embedding. */
static void gather(const LayerPass *w, int piece, const void *x /* [T, h] c */, int to /* [T k, h] c */) {
    const Model *m = w->pass->model;
    OP(w->pass->device, embed_forward, .tokens = assignments(w), .hidden = m->config.hidden_size,
       .ids = routes_of(w, piece).token, .table = tokens_of(w, piece, x), .rows = ALL_ROWS, .scale = 1.0f,
       .out = row_at(w, to, DIM_HIDDEN, piece * assignments(w)), .c = m->compute);
}

/* Gathers the input of the experts, times the weights where these multiply it. */
static void gather_x(const LayerPass *w, int piece) {
    const Model *m = w->pass->model;
    if (!weighs_input(w))
        gather(w, piece, input_of(w), ROWS);
    else
        OP(w->pass->device, permute, .s = shape_of(w), .r = routes_of(w, piece),
           .hidden = m->config.hidden_size, .x = tokens_of(w, piece, input_of(w)),
           .rows = row_at(w, ROWS, DIM_HIDDEN, piece * assignments(w)), .c = m->compute);
}

static void combine(const LayerPass *w, int piece, bool weighed, void *y /* [tokens, h] c */) {
    const Model *m = w->pass->model;
    OP(w->pass->device, combine, .s = shape_of(w), .r = routes_of(w, piece), .hidden = m->config.hidden_size,
       .rows = row_at(w, ROWS, DIM_HIDDEN, piece * assignments(w)), .weighed = weighed,
       .y = tokens_of(w, piece, y), .c = m->compute);
}

static void combine_all(const LayerPass *w, bool weighed, void *y /* [tokens, h] c */) {
    for (int s = 0; s < pieces(w); s++) combine(w, s, weighed, y);
}

/* ---- sums over an expert's width, split over ranks, then over a token's experts ---- */

static bool has_shared(const LayerPass *w) { return w->pass->model->config.n_shared_experts > 0; }

/* The two sums over an expert's width: the result y of down, and the gradient of x of gate and up. Ranks
 * reduce sums per token, over all its experts, since there are fewer of them than rows. Each split computes
 * its rows, adds up those of each token, and adds its part of the shared experts. The splits are then summed
 * in fp32. */
typedef struct Sum {
    const Product *product, *shared;
    int of_shared; /* the tensor that `shared` reads */
    bool back;     /* the gradient through gate and up; else down's product */
} Sum;
static const Sum sum_of_down = {&down, &shared_down, SHARED_ACT, false},
                 sum_of_gate_up = {&gate_up, &shared_gate_up, DSHARED_GATE_UP, true};

/* to [T, h] += one split of the shared experts */
static void add_shared_split(const LayerPass *w, const Sum *sum, int split, float *to) {
    const Model *m = w->pass->model;
    Dim inner = sum->back ? sum->shared->out : sum->shared->in;
    int64_t hidden = m->config.hidden_size;
    OP(w->pass->device, gemm, .trans_b = !sum->back, .m = m->tokens, .n = hidden,
       .k = model_dim(&m->config, inner), .a = w->tensors[sum->of_shared],
       .b = weights_matrix(w->pass->weights, product_matrix(w, sum->shared)), .ab_type = m->compute, .c = to,
       .c_type = DTYPE_F32, .ldc = hidden, .accumulate = true, .splits = model_split(m, inner, split));
}

static const void *terms_of(const Sum *sum, const Rows *r) { return sum->back ? r->dgate_up : r->act; }

static void split_rows(const LayerPass *w, const Sum *sum, const Rows *r, int split,
                       float *to /* [rows, h] */) {
    const Product *p = sum->product;
    multiply(w, p, r, sum->back, terms_of(sum, r), to, DTYPE_F32,
             model_split(w->pass->model, sum->back ? p->out : p->in, split));
}

/* Not split: the whole product, written over x. */
static void whole_rows(const LayerPass *w, const Sum *sum, const Rows *r) {
    expert_product(w, sum->product, r, sum->back, terms_of(sum, r), r->x);
}

/* Results of dispatched rows. With splits there is one result for each split; they return one tensor after
 * the other. */
static void permute_rows(const LayerPass *w, const Sum *sum, const Rows *r) {
    const Model *m = w->pass->model;
    int64_t hidden = m->config.hidden_size;
    float *partials = w->tensors[REMOTE_PARTIALS];
    if (!has_splits(w)) {
        whole_rows(w, sum, r);
        return;
    }
    for (int split = 0; split < model_local_expert_splits(m); split++)
        split_rows(w, sum, r, split, partials + split * m->dispatch_rows * hidden);
}

static void split_sum(const LayerPass *w, const Sum *sum, int split, float *to /* [T, h] */) {
    const Model *m = w->pass->model;
    int64_t hidden = m->config.hidden_size;
    float *partials = w->tensors[PARTIAL_ROWS];
    bool first = m->tp.rank == 0 && split == 0;
    if (is_dispatched(w)) partials += split * model_assignments(m) * hidden;
    for (int s = 0; s < pieces(w); s++) {
        Rows r = local_rows(w, s);
        float *rows = partials + s * assignments(w) * hidden;
        if (!is_dispatched(w)) split_rows(w, sum, &r, split, rows);
        if (first && !sum->back) add_bias(w, DOWN_BIAS, DIM_HIDDEN, &r, rows, DTYPE_F32);
        OP(w->pass->device, combine, .s = shape_of(w), .r = routes_of(w, s), .hidden = hidden, .rows = rows,
           .weighed = sum->back == weighs_input(w), .y = to + s * model_exact_chunk(m, m->tokens) * hidden,
           .c = DTYPE_F32);
    }
    if (has_shared(w)) add_shared_split(w, sum, split, to);
}

/* Sums `count` splits in the canonical tree, into `to`. scratch: memory for the right halves. */
static void sum_partials(const LayerPass *w, const Sum *sum, int first, int count, float *to,
                         float *scratch) {
    const Model *m = w->pass->model;
    int64_t elements = m->tokens * m->config.hidden_size;
    if (count == 1) {
        split_sum(w, sum, first, to);
        return;
    }
    int grads = tree_half(count);
    const float *ops[2] = {to, scratch};
    sum_partials(w, sum, first, grads, to, scratch);
    sum_partials(w, sum, first + grads, count - grads, scratch, scratch + elements);
    OP(w->pass->device, sum_partials, elements, 2, ops, to);
}

/* y: fp32 partial sums if tp.size > 1; else rounded. */
static void add_up(const LayerPass *w, const Sum *sum, void *y /* [T, h] */) {
    const Model *m = w->pass->model;
    int64_t elements = m->tokens * m->config.hidden_size;
    float *partials = w->tensors[PARTIAL_SUMS];
    if (m->tp.size > 1) {
        sum_partials(w, sum, 0, model_local_expert_splits(m), y, partials);
        return;
    }
    sum_partials(w, sum, 0, model_local_expert_splits(m), partials, partials + elements);
    OP(w->pass->device, cast, elements, partials, DTYPE_F32, y, m->compute);
}

/* ---- shared experts, and the sum of all experts ---- */

static void add_rows(const LayerPass *w, void *to /* [local, h] c */) {
    const Model *m = w->pass->model;
    OP(w->pass->device, add, model_local_tokens(m) * m->config.hidden_size, to, w->tensors[SHARED_ROWS], to,
       m->compute);
}

/* Whether the sum of the shared experts is reduced over ranks, and that of the routed ones waits for it. */
static bool waits_for_shared(const LayerPass *w) { return is_folded(w) && has_shared(w); }

/* Without splits. Where the sum of a token's routed experts goes, if the layer's goes to `to`. */
static void *routed_sum(const LayerPass *w, void *to) {
    return waits_for_shared(w) ? w->tensors[SHARED_ROWS] : to;
}

/* With splits. Adapters of shared experts are added after the sum, which may be over ranks. */
static void add_up_results(const LayerPass *w) {
    add_up(w, &sum_of_down, w->y);
    if (has_shared(w) && w->pass->model->tp.size == 1) product_adapters_output(w, &shared_down, w->y);
}

static void finish(const LayerPass *w) {
    combine_all(w, !weighs_input(w), routed_sum(w, w->y));
    if (has_shared(w) && !is_folded(w)) add_rows(w, w->y);
}

/* After the reduction of the shared experts' sum, whose address unit.c: take_sum gives as dx. */
static void result_summed(const LayerPass *w, const Collective *c) {
    (void)c;
    if (waits_for_shared(w)) add_rows(w, w->dx);
}

static void shared_up_forward(const LayerPass *w) {
    product_forward(w, &shared_gate_up, w->x, w->tensors[SHARED_GATE_UP]);
}

/* Adds to the gradient of x of the routed experts. With splits, both are computed here, split by split. */
static void shared_up_backward(const LayerPass *w, Grads grads) {
    if (grads & WGRAD) product_weight(w, &shared_gate_up, w->tensors[DSHARED_GATE_UP], w->x);
    if (!(grads & DGRAD)) return;
    if (has_splits(w)) {
        add_up(w, &sum_of_gate_up, w->dx);
        product_adapters_input(w, &shared_gate_up, w->tensors[DSHARED_GATE_UP], w->dx);
        return;
    }
    void *to = is_folded(w) ? w->dx : w->tensors[SHARED_ROWS];
    product_input(w, &shared_gate_up, w->tensors[DSHARED_GATE_UP], to);
    if (!is_folded(w)) add_rows(w, w->dx);
}

static void shared_down_forward(const LayerPass *w) {
    const Model *m = w->pass->model;
    void *const *t = w->tensors;
    OP(w->pass->device, activation_forward, .f = model_family(&m->config)->arch.activation, .gated = true,
       .tokens = m->tokens, .inter = model_dim(&m->config, DIM_SHARED), .x = t[SHARED_GATE_UP],
       .act = t[SHARED_ACT], .c = m->compute);
    if (has_splits(w))
        product_adapters_inner(w, &shared_down, t[SHARED_ACT]);
    else
        product_forward(w, &shared_down, t[SHARED_ACT], is_folded(w) ? w->y : t[SHARED_ROWS]);
}

static void shared_down_backward(const LayerPass *w, Grads grads) {
    const Model *m = w->pass->model;
    void *const *t = w->tensors;
    if (grads & DGRAD) {
        product_input(w, &shared_down, w->dy, t[SHARED_ACT]);
        OP(w->pass->device, activation_backward, .f = model_family(&m->config)->arch.activation,
           .gated = true, .tokens = m->tokens, .inter = model_dim(&m->config, DIM_SHARED),
           .x = t[SHARED_GATE_UP], .dact = t[SHARED_ACT], .dx = t[DSHARED_GATE_UP], .act = t[SHARED_ACT],
           .c = m->compute);
    }
    if (grads & WGRAD) product_weight(w, &shared_down, w->dy, t[SHARED_ACT]);
}

/* ---- router ---- */

/* Shape of a run of tokens that are adjacent in a sequence, which may have begun on another rank. */
static RouteShape shape_of_run(const LayerPass *w, int run) {
    const Model *m = w->pass->model;
    RouteShape s = shape_of(w);
    s.tokens = m->tokens / model_runs(m), s.before = model_run_first(m, run);
    return s;
}

static void count_sequences(const LayerPass *w) {
    const Model *m = w->pass->model;
    RouteShape s = shape_of(w);
    if (!(s.balance > 0)) return;
    OP(w->pass->device, zero, w->tensors[COUNTS], (size_t)model_counts(m) * sizeof(int64_t));
    for (int i = 0; i < model_runs(m); i++) {
        s = shape_of_run(w, i);
        OP(w->pass->device, route_count, .s = s, .chosen = routes_at(w, i * s.tokens).chosen,
           .counts = w->tensors[COUNTS]);
    }
}

/* Logits are fp32 whatever the compute dtype, since choices depend on their differences. Routed tokens are
 * counted here only: this op is never recomputed. */
static void router_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const ModelConfig *c = &m->config;
    OP(p->device, gemm, .trans_b = true, .m = m->tokens, .n = c->num_experts, .k = c->hidden_size, .a = w->x,
       .b = weights_matrix(p->weights, product_matrix(w, &router)), .ab_type = m->compute,
       .c = w->tensors[SCORES], .c_type = DTYPE_F32, .ldc = c->num_experts,
       .splits = model_one_split(m, c->hidden_size));
    const Param *bias = product_bias(w, &router);
    if (bias)
        OP(p->device, bias_forward, .tokens = m->tokens, .n = c->num_experts, .y = w->tensors[SCORES],
           .bias = weights_vector(p->weights, bias), .c = DTYPE_F32);
    for (int s = 0; s < model_route_pieces(m); s++)
        OP(p->device, route, .s = shape_of(w), .r = routes_of_piece(w, s),
           .counts = p->routed ? p->routed + (w->unit - 1) * c->num_experts : NULL);
    if (p->training) count_sequences(w);
}

static void router_bias(const LayerPass *w) {
    const Model *m = w->pass->model;
    const Param *bias = product_bias(w, &router);
    int64_t tokens = model_exact_chunk(m, m->tokens), experts = m->config.num_experts;
    for (int s = 0; bias && s < exact_chunks(w); s++)
        OP(w->pass->device, bias_backward, .tokens = tokens, .n = experts,
           .dy = model_at(m, w->tensors[DLOGITS], s * tokens * experts),
           .db = gradient_of_exact_chunk(&w->pass->gradients, bias, s), .split_size = tokens,
           .c = m->compute);
}

static void route_back(const LayerPass *w, int run) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const ModelConfig *c = &m->config;
    RouteShape s = shape_of_run(w, run);
    int64_t first = run * s.tokens;
    OP(p->device, route_backward, .s = s, .r = routes_at(w, first), .counts = w->tensors[COUNTS],
       .dweights = (const float *)w->tensors[DWEIGHTS] + first * c->num_experts_per_tok,
       .scale = p->inverse_token_count, .balance = (float *)w->tensors[BALANCE] + first,
       .dlogits = model_at(m, w->tensors[DLOGITS], first * c->num_experts), .c = m->compute);
}

/* Adds the router's part of the gradient of x for `tokens` tokens, from `first` on, to dx [tokens, h]. */
static void add_router(const LayerPass *w, int64_t first, int64_t tokens) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t experts = m->config.num_experts, hidden = m->config.hidden_size;
    OP(p->device, gemm, .m = tokens, .n = hidden, .k = experts,
       .a = model_at(m, w->tensors[DLOGITS], first * experts),
       .b = weights_matrix(p->weights, product_matrix(w, &router)), .ab_type = m->compute, .c = w->dx,
       .c_type = m->compute, .ldc = hidden, .accumulate = true, .splits = model_one_split(m, experts));
}

/* Adds it for the tokens of this rank's sequence-parallel shard, to dx [local, h]. */
static void add_router_local(const LayerPass *w) {
    const Model *m = w->pass->model;
    int64_t own = model_local_tokens(m);
    add_router(w, m->tp.rank * own, own);
}

/* The gradient of the routing weights comes from the experts. The router's part of the gradient of x is added
 * to theirs; with TP, after that sum was reduced (router_summed), if it is. */
static void router_input(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    add_bias_weights(w);
    for (int i = 0; i < model_runs(m); i++) route_back(w, i);
    if (p->balance && shape_of(w).balance > 0)
        OP(p->device, loss_sum, m->tokens, w->tensors[BALANCE], p->balance);
    if (m->tp.size == 1 || (is_folded(w) && !has_shared(w))) add_router_local(w);
    router_bias(w);
}

static void router_summed(const LayerPass *w, const Collective *c) {
    (void)c;
    if (waits_for_shared(w)) add_rows(w, w->dx);
    add_router_local(w);
}

static void router_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD) router_input(w);
    if (grads & WGRAD) product_weight(w, &router, w->tensors[DLOGITS], w->x);
}

/* ---- gate and up ---- */

static void make_gate_up(const LayerPass *w, const Rows *r) {
    expert_product(w, &gate_up, r, false, r->x, r->gate_up);
    add_bias(w, GATE_UP_BIAS, DIM_EXPERT_GATE_UP, r, r->gate_up, w->pass->model->compute);
}

static void gate_up_forward(const LayerPass *w) {
    for (int s = 0; s < pieces(w); s++) {
        Rows r = local_rows(w, s);
        gather_x(w, s);
        make_gate_up(w, &r);
    }
}

/* ROWS hold x for wgrad, then its gradient in dgrad. */
static void gate_up_back(const LayerPass *w, int piece, Grads grads) {
    Rows r = local_rows(w, piece);
    if (grads & WGRAD) {
        gather_x(w, piece);
        expert_weight(w, &gate_up, &r, r.dgate_up, r.x);
    }
    if (grads & DGRAD) {
        gate_up_bias(w, &r);
        if (has_splits(w)) return;
        whole_rows(w, &sum_of_gate_up, &r);
        combine(w, piece, weighs_input(w), w->dx);
    }
}

/* With dispatch, experts_backward does this on the remote rank, together with dgrad. */
static void gate_up_backward(const LayerPass *w, Grads grads) {
    if (is_dispatched(w)) return;
    for (int s = 0; s < pieces(w); s++) gate_up_back(w, s, grads);
    if (has_splits(w) && !has_shared(w) && grads & DGRAD) add_up(w, &sum_of_gate_up, w->dx);
}

/* ---- down ---- */

static void activate(const LayerPass *w, const Rows *r) {
    const Model *m = w->pass->model;
    OP(w->pass->device, activation_forward, .f = model_family(&m->config)->arch.activation, .gated = true,
       .tokens = r->count, .inter = model_dim(&m->config, DIM_EXPERT), .x = r->gate_up, .act = r->act,
       .c = m->compute);
}

static void down_forward(const LayerPass *w) {
    for (int s = 0; s < pieces(w); s++) {
        Rows r = local_rows(w, s);
        activate(w, &r);
        if (has_splits(w)) continue;
        whole_rows(w, &sum_of_down, &r);
        add_bias(w, DOWN_BIAS, DIM_HIDDEN, &r, r.x, w->pass->model->compute);
    }
    if (has_splits(w))
        add_up_results(w);
    else
        finish(w);
}

static void activate_backward(const LayerPass *w, const Rows *r, void *act) {
    const Model *m = w->pass->model;
    OP(w->pass->device, activation_backward, .f = model_family(&m->config)->arch.activation, .gated = true,
       .tokens = r->count, .inter = model_dim(&m->config, DIM_EXPERT), .x = r->gate_up, .dact = r->dact,
       .dx = r->dgate_up, .act = act, .c = m->compute);
}

/* With x' = w x, the expert's input, and y = W x', the gradient of w is dx' . x, and so dy . y / w. */
static void input_weights(const LayerPass *w, const Rows *r, RouteShape s, Routes routes, float *dweights) {
    const Model *m = w->pass->model;
    enum { RUNS = 2 }; /* gate, up */
    OP(w->pass->device, permute_dweights, .s = s, .r = routes, .n = model_dim(&m->config, DIM_EXPERT),
       .runs = RUNS, .splits = model_local_expert_splits(m), .y = r->gate_up, .dy = r->dgate_up,
       .dweights = dweights, .c = m->compute);
}

/* With a = f(g) * u and da = Wdown^T dy: dw = a . da, so results need not be saved. Then w da is the gradient
 * of a, and (w a) dy^T that of Wdown. activate_backward also returns the activation, which is not needed and
 * overwrites da. */
static void down_input(const LayerPass *w, const Rows *r, RouteShape s, Routes routes, float *dweights) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t inter = model_dim(&m->config, DIM_EXPERT);
    expert_product(w, &down, r, true, r->dy, r->dact);
    if (weighs_input(w)) {
        activate_backward(w, r, r->act);
        input_weights(w, r, s, routes, dweights);
        return;
    }
    activate(w, r);
    OP(p->device, combine_backward, .s = s, .r = routes, .inter = inter,
       .splits = model_local_expert_splits(m), .act = r->act, .dact = r->dact, .dweights = dweights,
       .c = m->compute);
    activate_backward(w, r, r->dact);
}

static void down_back(const LayerPass *w, int piece, Grads grads) {
    Rows r = local_rows(w, piece);
    gather(w, piece, w->dy, ROWS);
    if (grads & DGRAD) {
        down_bias(w, piece, ROWS);
        down_input(w, &r, shape_of(w), routes_of(w, piece),
                   (float *)w->tensors[DWEIGHTS] + piece * assignments(w));
    }
    if (grads & WGRAD) expert_weight(w, &down, &r, r.dy, r.act);
}

static void down_backward(const LayerPass *w, Grads grads) {
    for (int s = 0; !is_dispatched(w) && s < pieces(w); s++) down_back(w, s, grads);
}

/* ---- dispatch ---- */

static Rows remote_rows(const LayerPass *w, const RemoteRows *v) {
    const ModelConfig *c = &w->pass->model->config;
    int64_t table = v->exact_chunk * model_expert_sources(c) + v->first, experts = model_local_experts(c);
    const int32_t *runs = (const int32_t *)w->tensors[OWN_FIRST] + table * (experts + 1);
    return (Rows){.count = v->count,
                  .first = runs + (v->rank - v->first) * experts,
                  .sources = v->sources,
                  .experts = (int)experts,
                  .x = w->tensors[REMOTE_X],
                  .gate_up = w->tensors[GATE_UP],
                  .act = w->tensors[ACT],
                  .dact = w->tensors[DACT],
                  .dgate_up = w->tensors[DGATE_UP],
                  .dy = w->tensors[REMOTE_DY]};
}

static void permute_forward(const LayerPass *w) {
    for (int s = 0; s < pieces(w); s++) gather_x(w, s);
}

static void experts_forward(const LayerPass *w, const RemoteRows *v) {
    Rows r = remote_rows(w, v);
    make_gate_up(w, &r);
    activate(w, &r);
}

static void results_forward(const LayerPass *w, const RemoteRows *v) {
    Rows r = remote_rows(w, v);
    permute_rows(w, &sum_of_down, &r);
}

static void unpermute_forward(const LayerPass *w) {
    if (has_splits(w)) {
        add_up_results(w);
        return;
    }
    for (int s = 0; s < pieces(w); s++) {
        Rows r = local_rows(w, s);
        add_bias(w, DOWN_BIAS, DIM_HIDDEN, &r, r.x, w->pass->model->compute);
    }
    finish(w);
}

/* Weights are sent with their rows, and their gradients come back the same way. Locally, weights are stored
 * by assignment, not by row. */
static void permute_backward(const LayerPass *w) {
    Device *d = w->pass->device;
    float *weights = w->tensors[ROW_WEIGHTS];
    int64_t count = assignments(w);
    OP(d, zero, weights, (size_t)(pieces(w) * count) * sizeof(float));
    for (int s = 0; s < pieces(w); s++) {
        Routes r = routes_of(w, s);
        gather_x(w, s);
        gather(w, s, gradient_of_result(w), LOCAL_DY);
        down_bias(w, s, LOCAL_DY);
        OP(d, embed_backward, .tokens = count, .hidden = 1, .ids = r.row, .dout = r.weights, .rows = ALL_ROWS,
           .scale = 1.0f, .dtable = weights + s * count, .c = DTYPE_F32);
    }
}

static void experts_backward(const LayerPass *w, const RemoteRows *v) {
    Rows r = remote_rows(w, v);
    float *weights = w->tensors[REMOTE_WEIGHTS];
    make_gate_up(w, &r);
    down_input(w, &r, (RouteShape){.tokens = v->count, .chosen = 1}, (Routes){.weights = weights}, weights);
}

/* A rank that received no rows also writes its gradients. */
static void weights_backward(const LayerPass *w, const RemoteRows *v) {
    Rows r = remote_rows(w, v);
    expert_weight(w, &down, &r, r.dy, r.act);
    expert_weight(w, &gate_up, &r, r.dgate_up, r.x);
    if (v->count > 0) gate_up_bias(w, &r);
}

static void results_backward(const LayerPass *w, const RemoteRows *v) {
    Rows r = remote_rows(w, v);
    permute_rows(w, &sum_of_gate_up, &r);
}

/* With splits, the gradient of x waits for that of the shared experts, whose op comes later in the backward
 * pass. */
static void unpermute_backward(const LayerPass *w) {
    const float *weights = w->tensors[ROW_WEIGHTS];
    int64_t count = assignments(w);
    float *dweights = (float *)w->tensors[DWEIGHTS] + model_first_piece(w->pass->model) * count;
    for (int s = 0; s < pieces(w); s++)
        OP(w->pass->device, embed_forward, .tokens = count, .hidden = 1, .ids = routes_of(w, s).row,
           .table = weights + s * count, .rows = ALL_ROWS, .scale = 1.0f, .out = dweights + s * count,
           .c = DTYPE_F32);
    if (!has_splits(w))
        combine_all(w, weighs_input(w), routed_sum(w, w->dx));
    else if (!has_shared(w))
        add_up(w, &sum_of_gate_up, w->dx);
}

#define DISPATCHED_X \
    { ROWS, REMOTE_X, DIM_HIDDEN, ELEMENT_COMPUTE, DISPATCH_ALWAYS }
#define COMBINED_RESULTS                                                         \
    {ROWS, REMOTE_X, DIM_HIDDEN, ELEMENT_COMPUTE, DISPATCH_WHOLE}, {             \
        PARTIAL_ROWS, REMOTE_PARTIALS, DIM_HIDDEN, ELEMENT_FP32, DISPATCH_SPLITS \
    }
static const ExpertDispatch expert_dispatch = {
    .runs = FIRST,
    .all_runs = ALL_FIRST,
    .local_runs = OWN_FIRST,
    .arrived = ARRIVED,
    .orders = ORDERS,
    .way = {
        [DISPATCH_FORWARD] = {.out = {DISPATCHED_X},
                              .back = {COMBINED_RESULTS},
                              .out_count = 1,
                              .back_count = 2,
                              .permute = permute_forward,
                              .experts = experts_forward,
                              .results = results_forward,
                              .unpermute = unpermute_forward},
        [DISPATCH_BACKWARD] = {
            .out = {DISPATCHED_X,
                    {LOCAL_DY, REMOTE_DY, DIM_HIDDEN, ELEMENT_COMPUTE, DISPATCH_ALWAYS},
                    {ROW_WEIGHTS, REMOTE_WEIGHTS, DIM_ONE, ELEMENT_FP32, DISPATCH_ALWAYS}},
            .back = {COMBINED_RESULTS, {ROW_WEIGHTS, REMOTE_WEIGHTS, DIM_ONE, ELEMENT_FP32, DISPATCH_ALWAYS}},
            .out_count = 3,
            .back_count = 3,
            .permute = permute_backward,
            .experts = experts_backward,
            .weights = weights_backward,
            .results = results_backward,
            .unpermute = unpermute_backward}}};

#define ROUTER_OP \
    { "router", LIFE_ALWAYS, router_forward, router_backward, .product = &router }
#define EXPERT_OPS                                                                                    \
    {"gate and up of experts", LIFE_CHEAP, gate_up_forward, gate_up_backward, .product = &gate_up}, { \
        "down of experts", LIFE_SAVED, down_forward, down_backward, .product = &down                  \
    }
static const LayerOp ops[] = {ROUTER_OP, EXPERT_OPS};
/* The results of shared experts are only needed for the layer's result. A block's last result is never
 * recomputed; that of an MTP module's block is (mtp.c). */
static const LayerOp shared_ops[] = {ROUTER_OP,
                                     {"gate and up of the shared", LIFE_CHEAP, shared_up_forward,
                                      shared_up_backward, .product = &shared_gate_up},
                                     {"down of the shared", LIFE_ALWAYS, shared_down_forward,
                                      shared_down_backward, .product = &shared_down, .partial = true},
                                     EXPERT_OPS};

/* The experts' ops begin with op `up`. read_x, read_dy: masks of the ops that read x and dy of all tokens, of
 * which those that read x make partial sums of dx. */
#define TP_COLLECTIVES(up, read_x, read_dy, up_adapters, down_adapters)                                   \
    {ALL_GATHER_X(read_x)}, {REDUCE_SCATTER_DX(read_x), .unpack = router_summed, .adapted = up_adapters}, \
        {REDUCE_SCATTER_Y(OPS((up) + 1)), .unpack = result_summed, .adapted = down_adapters}, {           \
        ALL_GATHER_DY(read_dy)                                                                            \
    }
#define EXPERT_COUNTS                                                                                   \
    {                                                                                                   \
        COLLECTIVE(IN_FORWARD, BEHIND(OPS(0)), ALL_REDUCE, CONTEXT, COUNTS, COUNTS, SEQUENCES, EXPERTS, \
                   COUNT),                                                                              \
            .when = NEED_BALANCE, .trains = true, .overlaps = true, .what = "EXPERT_COUNTS"             \
    }
/* Ranks have partial sums for all tokens, or complete gradients for their own (`kind`, `rows`). */
#define DROUTER(kind, rows)                                                                         \
    {                                                                                               \
        COLLECTIVE(IN_DGRAD, BEFORE(OPS(0)), kind, TENSOR, DWEIGHTS, DWEIGHTS, rows, CHOSEN, FP32), \
            .brief = true, .what = "DROUTER"                                                        \
    }
#define EXPERT_DISPATCH(up)                                                                                  \
    {                                                                                                        \
        COLLECTIVE(IN_FORWARD | IN_RECOMPUTE | IN_DGRAD, BEFORE(OPS(up) | OPS((up) + 1)), DISPATCH, EXPERTS, \
                   ROWS, REMOTE_X, ASSIGNMENTS, HIDDEN, COMPUTE)                                             \
    }
static const Collective collectives[] = {TP_COLLECTIVES(1, OPS(0) | OPS(1), OPS(2), NULL, NULL),
                                         EXPERT_COUNTS, DROUTER(ALL_REDUCE, TOKENS), EXPERT_DISPATCH(1)};
static const Collective shared_collectives[] = {
    TP_COLLECTIVES(3, OPS(0) | OPS(1) | OPS(3), OPS(2) | OPS(4), &shared_gate_up, &shared_down),
    EXPERT_COUNTS, DROUTER(ALL_REDUCE, TOKENS), EXPERT_DISPATCH(3)};
/* Routed experts read, and make, rows of local tokens only. */
static const Collective whole_collectives[] = {
    {ALL_GATHER_X(OPS(0))}, EXPERT_COUNTS, DROUTER(ALL_GATHER, LOCAL), EXPERT_DISPATCH(1)};
static const Collective whole_shared_collectives[] = {
    TP_COLLECTIVES(3, OPS(0) | OPS(1), OPS(2), &shared_gate_up, &shared_down), EXPERT_COUNTS,
    DROUTER(ALL_GATHER, LOCAL), EXPERT_DISPATCH(3)};

const Layer layer_experts = {.name = "experts",
                             LAYER_ROWS(param, params),
                             .tensors = tensors,
                             LAYER_ROWS(op, ops),
                             LAYER_ROWS(collective, collectives),
                             .tensor_count = TENSORS,
                             .dispatch = &expert_dispatch};
const Layer layer_shared_experts = {.name = "experts, some shared",
                                    LAYER_ROWS(param, params),
                                    LAYER_ROWS(tensor, tensors),
                                    LAYER_ROWS(op, shared_ops),
                                    LAYER_ROWS(collective, shared_collectives),
                                    .dispatch = &expert_dispatch};
const Layer layer_whole_experts = {.name = "experts",
                                   LAYER_ROWS(param, params),
                                   .tensors = tensors,
                                   LAYER_ROWS(op, ops),
                                   LAYER_ROWS(collective, whole_collectives),
                                   .tensor_count = TENSORS,
                                   .dispatch = &expert_dispatch};
const Layer layer_whole_shared_experts = {.name = "experts, some shared",
                                          LAYER_ROWS(param, params),
                                          LAYER_ROWS(tensor, tensors),
                                          LAYER_ROWS(op, shared_ops),
                                          LAYER_ROWS(collective, whole_shared_collectives),
                                          .dispatch = &expert_dispatch};
