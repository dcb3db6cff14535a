/* The MLP, with a gate (Shazeer, "GLU variants improve transformer", 2020) or without:
 *
 *     gate and up  [g|u] = x [Wgate;Wup]^T              u = x Wup^T
 *     down         y = (f(g) * u) Wdown^T               y = f(u) Wdown^T
 *
 * f is the family's activation. The backward pass recomputes it on the way, so it is never saved: it is the
 * widest activation of a block, and the cheapest to compute.
 *
 * Elsewhere called: SwiGLU, GeGLU; ColumnParallelLinear (gate and up) and RowParallelLinear (down) with
 * sequence parallelism (Megatron). */
#include "model/families/family.h"
#include "device/ops/linear.h"
#include "model/unit.h"

enum { GATE_BIAS, UP_BIAS, GATE_UP_BIAS, DOWN_BIAS, GATE, UP, GATE_UP_WEIGHT, DOWN, MATRICES };
enum { GATE_A = MATRICES, GATE_B, UP_A, UP_B, GATE_UP_WEIGHT_A, GATE_UP_WEIGHT_B, DOWN_A, DOWN_B, PARAMS };
enum { GATE_UP_ROWS = 3 }; /* rows that make up the first product's matrix: gate and up, up alone, or one */
static const ParamRow params[PARAMS] = {
    [GATE_BIAS] = {"mlp.gate_proj.bias", DIM_INTER,
                   .when = WHEN_MLP_BIAS | WHEN_GATED | WHEN_GATE_UP_SEPARATE, .tp = COLUMN_PARALLEL,
                   .init = ROLE_ZEROS},
    [UP_BIAS] = {"mlp.up_proj.bias", DIM_INTER, .when = WHEN_MLP_BIAS | WHEN_GATE_UP_SEPARATE,
                 .tp = COLUMN_PARALLEL, .init = ROLE_ZEROS, .continues = true},
    [GATE_UP_BIAS] = {"mlp.gate_up_proj.bias", DIM_GATE_UP, .when = WHEN_MLP_BIAS | WHEN_GATE_UP_FUSED,
                      .tp = COLUMN_PARALLEL, .init = ROLE_ZEROS},
    [DOWN_BIAS] = {"mlp.down_proj.bias", DIM_HIDDEN, .when = WHEN_MLP_BIAS, .init = ROLE_ZEROS},
    [GATE] = {"mlp.gate_proj.weight", DIM_INTER, DIM_HIDDEN, .when = WHEN_GATED | WHEN_GATE_UP_SEPARATE,
              .tp = COLUMN_PARALLEL, .init = ROLE_INNER, .decays = true},
    [UP] = {"mlp.up_proj.weight", DIM_INTER, DIM_HIDDEN, .when = WHEN_GATE_UP_SEPARATE, .tp = COLUMN_PARALLEL,
            .init = ROLE_UP, .decays = true, .continues = true},
    [GATE_UP_WEIGHT] = {"mlp.gate_up_proj.weight", DIM_GATE_UP, DIM_HIDDEN, .when = WHEN_GATE_UP_FUSED,
                        .tp = COLUMN_PARALLEL, .init = ROLE_UP, .decays = true},
    [DOWN] = {"mlp.down_proj.weight", DIM_HIDDEN, DIM_INTER, .tp = ROW_PARALLEL, .init = ROLE_DOWN,
              .decays = true},
    ADAPTER_ROWS(GATE, DIM_INTER, DIM_HIDDEN),
    ADAPTER_ROWS(UP, DIM_INTER, DIM_HIDDEN),
    ADAPTER_ROWS(GATE_UP_WEIGHT, DIM_GATE_UP, DIM_HIDDEN),
    ADAPTER_ROWS(DOWN, DIM_HIDDEN, DIM_INTER),
};

enum { GATE_UP, ACT, DGATE_UP, TENSORS };
static const TensorRow tensors[TENSORS] = {
    [GATE_UP] = {.width = DIM_GATE_UP, .life = LIFE_CHEAP},
    [ACT] = {.width = DIM_INTER,
             .life = LIFE_SCRATCH,
             .operand = true}, /* in the backward pass, first its gradient */
    [DGATE_UP] = {.width = DIM_GATE_UP, .life = LIFE_SCRATCH, .operand = true},
};

static const Product gate_up = {&params[GATE], &params[GATE_BIAS], GATE_UP_ROWS, DIM_GATE_UP, DIM_HIDDEN};
static const Product down = {&params[DOWN], &params[DOWN_BIAS], 1, DIM_HIDDEN, DIM_INTER};

static void gate_up_forward(const LayerPass *w) { product_forward(w, &gate_up, w->x, w->tensors[GATE_UP]); }

/* dgrad and wgrad both read DGATE_UP only, so their order does not matter. */
static void gate_up_backward(const LayerPass *w, Grads grads) {
    if (grads & WGRAD) product_weight(w, &gate_up, w->tensors[DGATE_UP], w->x);
    if (grads & DGRAD) product_input(w, &gate_up, w->tensors[DGATE_UP], w->dx);
}

/* The activation belongs to this op, not to the one before: with TP nothing is exchanged between the two, and
 * recomputation of gate and up need not compute it. */
static void down_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const Arch *a = &model_family(&m->config)->arch;
    OP(p->device, activation_forward, .f = a->activation, .gated = !a->no_gate, .tokens = m->tokens,
       .inter = m->config.intermediate_size, .x = w->tensors[GATE_UP], .act = w->tensors[ACT],
       .c = m->compute);
    product_forward(w, &down, w->tensors[ACT], w->y);
}

/* The activation's gradient is computed where the activation will be: the op leaves the activation there, for
 * wgrad. */
static void down_backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const Arch *a = &model_family(&m->config)->arch;
    void *const *t = w->tensors;
    if (grads & DGRAD) {
        product_input(w, &down, w->dy, t[ACT]);
        OP(p->device, activation_backward, .f = a->activation, .gated = !a->no_gate, .tokens = m->tokens,
           .inter = m->config.intermediate_size, .x = t[GATE_UP], .dact = t[ACT], .dx = t[DGATE_UP],
           .act = t[ACT], .c = m->compute);
    }
    if (grads & WGRAD) product_weight(w, &down, w->dy, t[ACT]);
}

static const LayerOp ops[] = {
    {"gate and up", LIFE_CHEAP, gate_up_forward, gate_up_backward, .product = &gate_up},
    {"down", LIFE_SAVED, down_forward, down_backward, .product = &down},
};

enum { GATE_UP_OP, DOWN_OP };
static const Collective collectives[] = {{ALL_GATHER_X(OPS(GATE_UP_OP))},
                                         {REDUCE_SCATTER_DX(OPS(GATE_UP_OP))},
                                         {REDUCE_SCATTER_Y(OPS(DOWN_OP))},
                                         {ALL_GATHER_DY(OPS(DOWN_OP))}};

const Layer layer_mlp = {.name = "mlp",
                         LAYER_ROWS(param, params),
                         LAYER_ROWS(tensor, tensors),
                         LAYER_ROWS(op, ops),
                         LAYER_ROWS(collective, collectives)};
