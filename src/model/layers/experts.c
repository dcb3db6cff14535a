/* Experts in place of an MLP, of which each token goes to a few (Shazeer et al., "Outrageously large neural
 * networks: the sparsely-gated mixture-of-experts layer", 2017; Fedus, Zoph & Shazeer, "Switch transformers",
 * 2021):
 *
 *     router       s = softmax(x Wr^T), k experts with the largest s; weights w are their s, divided by their
 *                  sum where the family does that. DeepSeek's: device.h, route
 *     gate and up  [g|u] = x [Wgate;Wup]^T       of the rows of each expert
 *     down         y = sum over the token's experts of w (f(g) * u) Wdown^T
 *
 * Shared experts (Dai et al., "DeepSeekMoE", 2024) are an MLP beside them, whose result is added:
 *
 *     shared       y += (f(g) * u) Wdown^T of an MLP of all tokens
 *
 * In gpt-oss all experts have biases, gate and up alternate, and one parameter has the matrices of all
 * experts.
 *
 * No token is dropped: there are k rows for each, in memory that is planned for, wherever they go. Rows lie
 * sorted by expert, tokens ascending, and a token adds its k results in the order of experts, so that nothing
 * hangs on who is done first. One expert may get all tokens, another none: its gradient is then zero, and
 * optimizer states go on.
 *
 * Where tokens go is chosen once: it stays in the slab under every policy, so that what is made again goes
 * where it went. Rows of x are gathered again for the weight half, which is a copy, rather than kept.
 *
 * Where ranks share the experts out, rows visit the ranks of theirs (layer.h: Visits), and each rank's are
 * worked on by themselves: the products are those of one rank that has all experts, and so are the bits. */
#include "model/families/family.h"
#include "model/unit.h"

enum {
    ROUTER_BIAS,
    CHOICE_BIAS,
    GATE_UP_BIAS,
    DOWN_BIAS,
    ROUTER,
    GATE_UP_STACK,
    GATE,
    UP,
    DOWN,
    DOWN_STACK,
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
enum { GATE_UP_ROWS = 3, DOWN_ROWS = 2 }; /* of which products take those that are there */
static const ParamRow params[PARAMS] = {
    [ROUTER_BIAS] = {"mlp.gate.bias", DIM_EXPERTS, .when = WHEN_EXPERT_BIAS, .init = ROLE_ZEROS},
    [CHOICE_BIAS] = {"mlp.gate.e_score_correction_bias", DIM_EXPERTS, .when = WHEN_CHOICE_BIAS,
                     .init = ROLE_ZEROS, .fixed = true},
    [GATE_UP_BIAS] = {"mlp.experts.gate_up_proj_bias", DIM_EXPERT_GATE_UP, .when = WHEN_EXPERT_BIAS,
                      .init = ROLE_ZEROS, .stacked = true},
    [DOWN_BIAS] = {"mlp.experts.down_proj_bias", DIM_HIDDEN, .when = WHEN_EXPERT_BIAS, .init = ROLE_ZEROS,
                   .stacked = true},
    [ROUTER] = {"mlp.gate.weight", DIM_EXPERTS, DIM_HIDDEN, .init = ROLE_INNER, .decays = true},
    [GATE_UP_STACK] = {"mlp.experts.gate_up_proj", DIM_EXPERT_GATE_UP, DIM_HIDDEN,
                       .when = WHEN_EXPERTS_STACKED, .init = ROLE_UP, .decays = true, .stacked = true},
    [GATE] = {"mlp.experts.*.gate_proj.weight", DIM_EXPERT, DIM_HIDDEN, .when = WHEN_EXPERTS_APART,
              .init = ROLE_INNER, .decays = true, .expert = true},
    [UP] = {"mlp.experts.*.up_proj.weight", DIM_EXPERT, DIM_HIDDEN, .when = WHEN_EXPERTS_APART,
            .init = ROLE_UP, .decays = true, .continues = true, .expert = true},
    [DOWN] = {"mlp.experts.*.down_proj.weight", DIM_HIDDEN, DIM_EXPERT, .when = WHEN_EXPERTS_APART,
              .init = ROLE_DOWN, .decays = true, .expert = true},
    [DOWN_STACK] = {"mlp.experts.down_proj", DIM_HIDDEN, DIM_EXPERT, .when = WHEN_EXPERTS_STACKED,
                    .init = ROLE_DOWN, .decays = true, .stacked = true},
    [SHARED_GATE] = {"mlp.shared_experts.gate_proj.weight", DIM_SHARED, DIM_HIDDEN, .when = WHEN_SHARED,
                     .init = ROLE_INNER, .decays = true},
    [SHARED_UP] = {"mlp.shared_experts.up_proj.weight", DIM_SHARED, DIM_HIDDEN, .when = WHEN_SHARED,
                   .init = ROLE_UP, .decays = true, .continues = true},
    [SHARED_DOWN] = {"mlp.shared_experts.down_proj.weight", DIM_HIDDEN, DIM_SHARED, .when = WHEN_SHARED,
                     .init = ROLE_DOWN, .decays = true},
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
    DLOGITS,
    BALANCE,
    ALL_FIRST,
    OWN_FIRST,
    HOME_DY,
    ROW_WEIGHTS,
    AWAY_X,
    AWAY_DY,
    AWAY_WEIGHTS,
    TENSORS,
    SHARED_GATE_UP = TENSORS,
    SHARED_ACT,
    DSHARED_GATE_UP,
    SHARED_ROWS,
    SHARED_TENSORS
};
static const TensorRow tensors[SHARED_TENSORS] = {
    /* Routes: device.h. The weight half reads them too, but they stay anyway. */
    [SCORES] = {.width = DIM_EXPERTS, .element = ELEMENT_FP32, .life = LIFE_INPUT},
    [CHOSEN] = {.width = DIM_CHOSEN, .element = ELEMENT_INDEX, .life = LIFE_INPUT},
    [WEIGHTS] = {.width = DIM_CHOSEN, .element = ELEMENT_FP32, .life = LIFE_INPUT},
    [ROW] = {.width = DIM_CHOSEN, .element = ELEMENT_INDEX, .life = LIFE_INPUT},
    [TOKEN] = {.width = DIM_CHOSEN, .element = ELEMENT_INDEX, .life = LIFE_INPUT, .operand = true},
    [FIRST] = {EXTENT_ONE, DIM_RUNS, ELEMENT_INDEX, .life = LIFE_INPUT, .operand = true},
    [GATE_UP] = {EXTENT_WORKED, DIM_EXPERT_GATE_UP, .life = LIFE_CHEAP},
    [ROWS] = {EXTENT_CHOICES, DIM_HIDDEN, .life = LIFE_SCRATCH}, /* of x, of the result, of gradients */
    [ACT] = {EXTENT_WORKED, DIM_EXPERT, .life = LIFE_SCRATCH, .operand = true}, /* there times the weight */
    [DACT] = {EXTENT_WORKED, DIM_EXPERT, .life = LIFE_SCRATCH},
    [DGATE_UP] = {EXTENT_WORKED, DIM_EXPERT_GATE_UP, .life = LIFE_SCRATCH, .operand = true},
    [DWEIGHTS] = {.width = DIM_CHOSEN, .element = ELEMENT_FP32, .life = LIFE_SCRATCH},
    [DLOGITS] = {.width = DIM_EXPERTS, .life = LIFE_SCRATCH, .operand = true},
    [BALANCE] = {.width = DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_SCRATCH},
    /* FIRST of all ranks; of their rows here, from each one's first on. */
    [ALL_FIRST] = {EXTENT_ONE, DIM_ALL_RUNS, ELEMENT_INDEX, .life = LIFE_INPUT, .need = NEED_VISITS},
    [OWN_FIRST] = {EXTENT_ONE, DIM_OWN_RUNS, ELEMENT_INDEX, .life = LIFE_SCRATCH, .need = NEED_VISITS},
    [HOME_DY] = {EXTENT_CHOICES, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_VISITS},
    [ROW_WEIGHTS] = {EXTENT_CHOICES, DIM_ONE, ELEMENT_FP32, .life = LIFE_SCRATCH, .need = NEED_VISITS},
    [AWAY_X] = {EXTENT_WORKED, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_VISITS}, /* as ROWS */
    [AWAY_DY] = {EXTENT_WORKED, DIM_HIDDEN, .life = LIFE_SCRATCH, .need = NEED_VISITS},
    [AWAY_WEIGHTS] = {EXTENT_WORKED, DIM_ONE, ELEMENT_FP32, .life = LIFE_SCRATCH, .need = NEED_VISITS},
    [SHARED_GATE_UP] = {.width = DIM_SHARED_GATE_UP, .life = LIFE_CHEAP},
    [SHARED_ACT] = {.width = DIM_SHARED, .life = LIFE_SCRATCH, .operand = true}, /* as layers/mlp.c has it */
    [DSHARED_GATE_UP] = {.width = DIM_SHARED_GATE_UP, .life = LIFE_SCRATCH, .operand = true},
    [SHARED_ROWS] = {.width = DIM_HIDDEN, .life = LIFE_SCRATCH}, /* their result, then the gradient of x */
};

static const Product router = {&params[ROUTER], &params[ROUTER_BIAS], 1, DIM_EXPERTS, DIM_HIDDEN};
static const Product gate_up = {&params[GATE_UP_STACK], NULL, GATE_UP_ROWS, DIM_EXPERT_GATE_UP, DIM_HIDDEN};
static const Product down = {&params[DOWN], NULL, DOWN_ROWS, DIM_HIDDEN, DIM_EXPERT};
static const Product shared_gate_up = {&params[SHARED_GATE], NULL, 2, DIM_SHARED_GATE_UP, DIM_HIDDEN};
static const Product shared_down = {&params[SHARED_DOWN], NULL, 1, DIM_HIDDEN, DIM_SHARED};

static RouteShape shape_of(const LayerPass *w) {
    const Model *m = w->pass->model;
    const ModelConfig *c = &m->config;
    int64_t tokens = m->tokens;
    const Param *bias = param_of(&m->table, w->unit, &params[CHOICE_BIAS]);
    return (RouteShape){.tokens = tokens,
                        .sequence = m->positions > 0 && m->positions < tokens ? m->positions : tokens,
                        .experts = (int)c->num_experts,
                        .chosen = (int)c->num_experts_per_tok,
                        .normalise = c->norm_topk_prob,
                        .balance = (float)model_balance(c),
                        .sigmoid = model_family(c)->arch.sigmoid_router,
                        .groups = c->n_group > 1 ? (int)c->n_group : 0,
                        .groups_chosen = (int)c->topk_group,
                        .factor = (float)c->routed_scaling_factor,
                        .bias = bias ? weights_vector(w->pass->weights, bias) : NULL};
}

static Routes routes_of(const LayerPass *w) {
    void *const *t = w->tensors;
    return (Routes){t[SCORES], t[CHOSEN], t[WEIGHTS], t[ROW], t[TOKEN], t[FIRST]};
}

/* Of experts that are parameters by themselves, that of the first one that is here. */
static const Param *matrix_of(const LayerPass *w, const Product *p) {
    const Param *first = product_matrix(w, p);
    if (!first->row->expert) return first;
    const Model *m = w->pass->model;
    return param_of_expert(&m->table, w->unit, first->row, (int)model_first_expert(&m->config));
}

static int64_t choices(const Model *m) { return model_choices(m); }

/* ---- products of experts: [rows, in] to [rows, out], and back ---- */

/* Rows that experts here work on at once, sorted by expert: all of this rank's choices, or the visitors of
 * one rank, whose gradients of weights are apart from those of others. */
typedef struct Rows {
    int64_t count;
    const int32_t *first;
    int span;                                  /* of gradients */
    void *x, *gate_up, *act, *dact, *dgate_up; /* [count, ...] */
    const void *dy;
} Rows;

static Rows rows_at_home(const LayerPass *w) {
    void *const *t = w->tensors;
    return (Rows){
        choices(w->pass->model), t[FIRST], 0, t[ROWS], t[GATE_UP], t[ACT], t[DACT], t[DGATE_UP], t[ROWS]};
}

static ExpertRows rows_of(const LayerPass *w, const Rows *r, const Param *first) {
    const Model *m = w->pass->model;
    return (ExpertRows){r->count, (int)model_own_experts(&m->config), r->first,
                        param_expert_step(&m->table, first)};
}

/* Stacks are stored [inputs, outputs], matrices of single experts the other way round. */
static void expert_product(const LayerPass *w, const Product *p, const Rows *r, bool back, const void *x,
                           void *y) {
    const Model *m = w->pass->model;
    const Param *first = matrix_of(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    OP(w->pass->device, OP_GEMM_EXPERTS, gemm_experts, rows_of(w, r, first), back == first->transposed,
       back ? in : out, back ? out : in, x, weights_matrix(w->pass->weights, first), m->compute, y,
       m->compute);
}

static void expert_weight(const LayerPass *w, const Product *p, const Rows *r, const void *dy,
                          const void *x) {
    const Model *m = w->pass->model;
    const Param *first = matrix_of(w, p);
    int64_t out = model_dim(&m->config, p->out), in = model_dim(&m->config, p->in);
    bool turned = first->transposed;
    if (first->flat >= GRADIENT_FLATS) return;
    OP(w->pass->device, OP_GEMM_EXPERTS_WEIGHT, gemm_experts_weight, rows_of(w, r, first), turned ? in : out,
       turned ? out : in, turned ? x : dy, turned ? dy : x, m->compute,
       gradient_of_span(&w->pass->gradients, first, r->span), !w->pass->first);
}

/* ---- their biases: none where rows visit ---- */

static const Param *bias_of(const LayerPass *w, int row) {
    return param_of(&w->pass->model->table, w->unit, &params[row]);
}

static void add_bias(const LayerPass *w, int row, Dim width, void *y /* [choices, width] c */) {
    const Model *m = w->pass->model;
    const Param *bias = bias_of(w, row);
    Rows r = rows_at_home(w);
    if (bias)
        OP(w->pass->device, OP_EXPERTS_BIAS_FORWARD, experts_bias_forward, rows_of(w, &r, bias),
           model_dim(&m->config, width), y, weights_vector(w->pass->weights, bias), m->compute);
}

static void bias_gradient(const LayerPass *w, int row, Dim width, const void *dy /* [choices, width] c */,
                          bool weighed) {
    const Model *m = w->pass->model;
    const Param *bias = bias_of(w, row);
    if (bias)
        OP(w->pass->device, OP_EXPERTS_BIAS_BACKWARD, experts_bias_backward, shape_of(w), routes_of(w),
           model_dim(&m->config, width), dy, weighed, weights_vector(w->pass->weights, bias),
           gradient_of(&w->pass->gradients, bias), weighed ? w->tensors[DWEIGHTS] : NULL, m->compute);
}

/* Of each row's token: rows are looked up as an embedding's are. */
static void gather(const LayerPass *w, const void *x /* [T, h] c */, void *rows /* [T k, h] c */) {
    const Model *m = w->pass->model;
    OP(w->pass->device, OP_EMBED_FORWARD, embed_forward, choices(m), m->config.hidden_size, w->tensors[TOKEN],
       x, ALL_ROWS, 1.0f, false, rows, m->compute);
}

static void combine(const LayerPass *w, bool weighed, void *y /* [T, h] c */) {
    const Model *m = w->pass->model;
    OP(w->pass->device, OP_EXPERTS_COMBINE, experts_combine, shape_of(w), routes_of(w), m->config.hidden_size,
       w->tensors[ROWS], weighed, false, y, m->compute);
}

/* ---- shared experts, and what all of them come to ---- */

static bool has_shared(const LayerPass *w) { return w->pass->model->config.n_shared_experts > 0; }

static void add_rows(const LayerPass *w, void *to /* [T, h] c */) {
    const Model *m = w->pass->model;
    OP(w->pass->device, OP_ADD, add, m->tokens * m->config.hidden_size, to, w->tensors[SHARED_ROWS], to,
       m->compute);
}

static void finish(const LayerPass *w) {
    combine(w, true, w->y);
    if (has_shared(w)) add_rows(w, w->y);
}

static void shared_up_forward(const LayerPass *w) {
    product_forward(w, &shared_gate_up, w->x, w->tensors[SHARED_GATE_UP]);
}

/* The gradient of x is added to that of the experts. */
static void shared_up_backward(const LayerPass *w, Half half) {
    if (half & HALF_WEIGHT) product_weight(w, &shared_gate_up, w->tensors[DSHARED_GATE_UP], w->x);
    if (!(half & HALF_INPUT)) return;
    product_input(w, &shared_gate_up, w->tensors[DSHARED_GATE_UP], w->tensors[SHARED_ROWS]);
    add_rows(w, w->dx);
}

static void shared_down_forward(const LayerPass *w) {
    const Model *m = w->pass->model;
    void *const *t = w->tensors;
    OP(w->pass->device, OP_ACTIVATION_FORWARD, activation_forward, model_family(&m->config)->arch.activation,
       true, m->tokens, model_dim(&m->config, DIM_SHARED), t[SHARED_GATE_UP], t[SHARED_ACT], m->compute);
    product_forward(w, &shared_down, t[SHARED_ACT], t[SHARED_ROWS]);
}

static void shared_down_backward(const LayerPass *w, Half half) {
    const Model *m = w->pass->model;
    void *const *t = w->tensors;
    if (half & HALF_INPUT) {
        product_input(w, &shared_down, w->dy, t[SHARED_ACT]);
        OP(w->pass->device, OP_ACTIVATION_BACKWARD, activation_backward,
           model_family(&m->config)->arch.activation, true, m->tokens, model_dim(&m->config, DIM_SHARED),
           t[SHARED_GATE_UP], t[SHARED_ACT], t[DSHARED_GATE_UP], t[SHARED_ACT], m->compute);
    }
    if (half & HALF_WEIGHT) product_weight(w, &shared_down, w->dy, t[SHARED_ACT]);
}

/* ---- router ---- */

/* Logits in fp32 whatever the compute dtype, since choices hang on their differences. They are counted here
 * and nowhere else: this part is never done again. */
static void router_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const ModelConfig *c = &m->config;
    OP(p->device, OP_GEMM, gemm, false, true, m->tokens, c->num_experts, c->hidden_size, w->x,
       weights_matrix(p->weights, product_matrix(w, &router)), m->compute, w->tensors[SCORES], DTYPE_F32,
       c->num_experts, false, NO_LEAVES);
    const Param *bias = product_bias(w, &router);
    if (bias)
        OP(p->device, OP_BIAS_FORWARD, bias_forward, m->tokens, c->num_experts, w->tensors[SCORES],
           weights_vector(p->weights, bias), DTYPE_F32);
    OP(p->device, OP_ROUTE, route, shape_of(w), routes_of(w),
       p->routed ? p->routed + (w->unit - 1) * c->num_experts : NULL);
}

/* The gradient of the weights has come from the experts; that of x is added to theirs. */
static void router_input(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    RouteShape s = shape_of(w);
    OP(p->device, OP_ROUTE_BACKWARD, route_backward, s, routes_of(w), w->tensors[DWEIGHTS], p->loss_scale,
       w->tensors[BALANCE], w->tensors[DLOGITS], m->compute);
    if (p->balance && s.balance > 0)
        OP(p->device, OP_LOSS_SUM, loss_sum, s.tokens, w->tensors[BALANCE], p->balance);
    OP(p->device, OP_GEMM, gemm, false, false, s.tokens, m->config.hidden_size, m->config.num_experts,
       w->tensors[DLOGITS], weights_matrix(p->weights, product_matrix(w, &router)), m->compute, w->dx,
       m->compute, m->config.hidden_size, true, NO_LEAVES);
    const Param *bias = product_bias(w, &router);
    if (bias)
        OP(p->device, OP_BIAS_BACKWARD, bias_backward, s.tokens, m->config.num_experts, w->tensors[DLOGITS],
           gradient_of(&p->gradients, bias), s.tokens, m->compute);
}

static void router_backward(const LayerPass *w, Half half) {
    if (half & HALF_INPUT) router_input(w);
    if (half & HALF_WEIGHT) product_weight(w, &router, w->tensors[DLOGITS], w->x);
}

/* ---- gate and up ---- */

static bool visits(const LayerPass *w) { return w->pass->model->visitors > 0; }

static void gate_up_forward(const LayerPass *w) {
    Rows r = rows_at_home(w);
    gather(w, w->x, r.x);
    expert_product(w, &gate_up, &r, false, r.x, r.gate_up);
    add_bias(w, GATE_UP_BIAS, DIM_EXPERT_GATE_UP, r.gate_up);
}

/* ROWS are x for the one half, then the gradient of that. */
static void gate_up_backward(const LayerPass *w, Half half) {
    Rows r = rows_at_home(w);
    if (visits(w)) return; /* with the input half, away */
    if (half & HALF_WEIGHT) {
        gather(w, w->x, r.x);
        expert_weight(w, &gate_up, &r, r.dgate_up, r.x);
    }
    if (half & HALF_INPUT) {
        bias_gradient(w, GATE_UP_BIAS, DIM_EXPERT_GATE_UP, r.dgate_up, false);
        expert_product(w, &gate_up, &r, true, r.dgate_up, r.x);
        combine(w, false, w->dx);
    }
}

/* ---- down ---- */

static void activate(const LayerPass *w, const Rows *r) {
    const Model *m = w->pass->model;
    OP(w->pass->device, OP_ACTIVATION_FORWARD, activation_forward, model_family(&m->config)->arch.activation,
       true, r->count, model_dim(&m->config, DIM_EXPERT), r->gate_up, r->act, m->compute);
}

static void down_forward(const LayerPass *w) {
    Rows r = rows_at_home(w);
    activate(w, &r);
    expert_product(w, &down, &r, false, r.act, r.x);
    add_bias(w, DOWN_BIAS, DIM_HIDDEN, r.x);
    finish(w);
}

/* With a = f(g) * u and da = Wdown^T dy: dw = a . da, which spares keeping the results; then w da is the
 * gradient of a, and (w a) dy^T that of Wdown. The activation that comes with its gradient is not wanted, and
 * takes the place of that. */
static void down_input(const LayerPass *w, const Rows *r, RouteShape s, Routes routes, float *dweights) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t inter = model_dim(&m->config, DIM_EXPERT);
    expert_product(w, &down, r, true, r->dy, r->dact);
    activate(w, r);
    OP(p->device, OP_EXPERTS_WEIGH, experts_weigh, s, routes, inter, r->act, r->dact, dweights, m->compute);
    bias_gradient(w, DOWN_BIAS, DIM_HIDDEN, r->dy, true);
    OP(p->device, OP_ACTIVATION_BACKWARD, activation_backward, model_family(&m->config)->arch.activation,
       true, r->count, inter, r->gate_up, r->dact, r->dgate_up, r->dact, m->compute);
}

static void down_backward(const LayerPass *w, Half half) {
    Rows r = rows_at_home(w);
    if (visits(w)) return;
    gather(w, w->dy, w->tensors[ROWS]);
    if (half & HALF_INPUT) down_input(w, &r, shape_of(w), routes_of(w), w->tensors[DWEIGHTS]);
    if (half & HALF_WEIGHT) expert_weight(w, &down, &r, r.dy, r.act);
}

/* ---- visits ---- */

static void *row_at(const LayerPass *w, int tensor, Dim width, int64_t row) {
    const Model *m = w->pass->model;
    return (char *)w->tensors[tensor] +
           (size_t)(row * model_dim(&m->config, width)) * dtype_bytes(m->compute);
}

static Rows rows_of_visitors(const LayerPass *w, const Visitors *v) {
    const int32_t *first = w->tensors[OWN_FIRST];
    return (Rows){.count = v->count,
                  .first = first + v->rank * (model_own_experts(&w->pass->model->config) + 1),
                  .span = v->rank,
                  .x = row_at(w, AWAY_X, DIM_HIDDEN, v->first),
                  .gate_up = row_at(w, GATE_UP, DIM_EXPERT_GATE_UP, v->first),
                  .act = row_at(w, ACT, DIM_EXPERT, v->first),
                  .dact = row_at(w, DACT, DIM_EXPERT, v->first),
                  .dgate_up = row_at(w, DGATE_UP, DIM_EXPERT_GATE_UP, v->first),
                  .dy = row_at(w, AWAY_DY, DIM_HIDDEN, v->first)};
}

static void leave_forward(const LayerPass *w) { gather(w, w->x, w->tensors[ROWS]); }

static void work_forward(const LayerPass *w, const Visitors *v) {
    Rows r = rows_of_visitors(w, v);
    if (v->count == 0) return;
    expert_product(w, &gate_up, &r, false, r.x, r.gate_up);
    activate(w, &r);
    expert_product(w, &down, &r, false, r.act, r.x);
}

static void arrive_forward(const LayerPass *w) { finish(w); }

/* Weights go with their rows, and their gradients come back so; at home these lie choice by choice. */
static void leave_backward(const LayerPass *w) {
    Device *d = w->pass->device;
    void *const *t = w->tensors;
    int64_t count = choices(w->pass->model);
    gather(w, w->x, t[ROWS]);
    gather(w, w->dy, t[HOME_DY]);
    OP(d, OP_ZERO, zero, t[ROW_WEIGHTS], (size_t)count * sizeof(float));
    OP(d, OP_EMBED_BACKWARD, embed_backward, count, 1, t[ROW], t[WEIGHTS], ALL_ROWS, 1.0f, t[ROW_WEIGHTS],
       DTYPE_F32);
}

/* A rank without visitors sets its gradients too. */
static void work_backward(const LayerPass *w, const Visitors *v) {
    Rows r = rows_of_visitors(w, v);
    float *weights = (float *)w->tensors[AWAY_WEIGHTS] + v->first;
    if (v->count > 0) {
        expert_product(w, &gate_up, &r, false, r.x, r.gate_up);
        down_input(w, &r, (RouteShape){.tokens = v->count, .chosen = 1}, (Routes){.weights = weights},
                   weights);
    }
    expert_weight(w, &down, &r, r.dy, r.act);
    expert_weight(w, &gate_up, &r, r.dgate_up, r.x);
    if (v->count > 0) expert_product(w, &gate_up, &r, true, r.dgate_up, r.x);
}

static void arrive_backward(const LayerPass *w) {
    void *const *t = w->tensors;
    OP(w->pass->device, OP_EMBED_FORWARD, embed_forward, choices(w->pass->model), 1, t[ROW], t[ROW_WEIGHTS],
       ALL_ROWS, 1.0f, false, t[DWEIGHTS], DTYPE_F32);
    combine(w, false, w->dx);
}

static const Visits visiting = {
    .runs = FIRST,
    .all_runs = ALL_FIRST,
    .own_runs = OWN_FIRST,
    .way = {[VISIT_FORWARD] = {.out = {{ROWS, AWAY_X, DIM_HIDDEN, ELEMENT_COMPUTE}},
                               .back = {{ROWS, AWAY_X, DIM_HIDDEN, ELEMENT_COMPUTE}},
                               .out_count = 1,
                               .back_count = 1,
                               .leave = leave_forward,
                               .work = work_forward,
                               .arrive = arrive_forward},
            [VISIT_BACKWARD] = {.out = {{ROWS, AWAY_X, DIM_HIDDEN, ELEMENT_COMPUTE},
                                        {HOME_DY, AWAY_DY, DIM_HIDDEN, ELEMENT_COMPUTE},
                                        {ROW_WEIGHTS, AWAY_WEIGHTS, DIM_ONE, ELEMENT_FP32}},
                                .back = {{ROWS, AWAY_X, DIM_HIDDEN, ELEMENT_COMPUTE},
                                         {ROW_WEIGHTS, AWAY_WEIGHTS, DIM_ONE, ELEMENT_FP32}},
                                .out_count = 3,
                                .back_count = 2,
                                .leave = leave_backward,
                                .work = work_backward,
                                .arrive = arrive_backward}}};

#define ROUTER_PART \
    { "router", LIFE_INPUT, router_forward, router_backward, .product = &router }
#define EXPERT_PARTS                                                                                     \
    {"gate and up of experts", LIFE_CHEAP,          gate_up_forward,                                     \
     gate_up_backward,         .product = &gate_up, .by_experts = true},                                 \
    {                                                                                                    \
        "down of experts", LIFE_SAVED, down_forward, down_backward, .product = &down, .by_experts = true \
    }
static const Part parts[] = {ROUTER_PART, EXPERT_PARTS};
/* What shared experts add is of no use but to the layer's result, which as a block's last is never made
 * again; as that of a module's it is (module.c). */
static const Part shared_parts[] = {ROUTER_PART,
                                    {"gate and up of the shared", LIFE_CHEAP, shared_up_forward,
                                     shared_up_backward, .product = &shared_gate_up},
                                    {"down of the shared", LIFE_INPUT, shared_down_forward,
                                     shared_down_backward, .product = &shared_down, .term = true},
                                    EXPERT_PARTS};

const Layer layer_experts = {.name = "experts",
                             .params = params,
                             .tensors = tensors,
                             .parts = parts,
                             .param_count = PARAMS,
                             .tensor_count = TENSORS,
                             .part_count = sizeof parts / sizeof *parts,
                             .visits = &visiting};
const Layer layer_shared_experts = {.name = "experts, some shared",
                                    .params = params,
                                    .tensors = tensors,
                                    .parts = shared_parts,
                                    .param_count = PARAMS,
                                    .tensor_count = SHARED_TENSORS,
                                    .part_count = sizeof shared_parts / sizeof *shared_parts,
                                    .visits = &visiting};
