/* Mamba-2 (Dao & Gu, "Transformers are SSMs", 2024). Its state is a matrix per head, of a size that does not
 * depend on the length of the sequence:
 *
 *     product  [g|x|B|C|dt] = u [Wg;Wx;WB;WC;Wdt]^T
 *     conv     [x|B|C] = silu(conv([x|B|C]))             K taps per channel; optional
 *     scan     S_t = exp(-s_t exp(A_log)) S_{t-1} + s_t x_t B_t^T      s = log(1 + exp(dt + dt_bias))
 *              y_t = S_t C_t + D x_t
 *     output   norm(y silu(g)) Wo^T                      an RMS norm over each group's channels
 *
 * Shapes: T tokens, W channels in H heads of P. B and C have N elements for each of G groups of heads. No MLP
 * follows. State and convolution restart with each document. Generation carries S, and the last tokens that
 * the convolution still reads.
 *
 * The backward pass recomputes the gate and the norm, as it does an MLP's activation. Of the states, one is
 * saved for every MAMBA_CHUNK tokens. */
#include "model/unit.h"

#include "device/ops/recurrence.h"

/* ---- rows ---- */

enum { TAPS, DT_BIAS, A_LOG, SKIP, NORM, GATE, VALUE, KEY, QUERY, DT, OUTPUT, MATRICES };
enum {
    GATE_A = MATRICES,
    GATE_B,
    VALUE_A,
    VALUE_B,
    KEY_A,
    KEY_B,
    QUERY_A,
    QUERY_B,
    DT_A,
    DT_B,
    OUTPUT_A,
    OUTPUT_B,
    PARAMS
};

/* Taps are a vector, as in other recurrences (recurrence.c). B and C correspond to the keys and queries of
 * attention. */
static const ParamRow params[PARAMS] = {
    [TAPS] = {"mixer.conv.weight", DIM_MAMBA_TAPS, .when = WHEN_CONV, .init = ROLE_CONV},
    [DT_BIAS] = {"mixer.dt_bias", DIM_MAMBA_HEADS, .init = ROLE_STEP},
    [A_LOG] = {"mixer.A_log", DIM_MAMBA_HEADS, .init = ROLE_DECAY},
    [SKIP] = {"mixer.D", DIM_MAMBA_HEADS, .init = ROLE_SKIP},
    [NORM] = {"mixer.norm.weight", DIM_STATE, .init = ROLE_NORM},
    [GATE] = {"mixer.gate.weight", DIM_STATE, DIM_HIDDEN, .init = ROLE_INNER, .decays = true},
    [VALUE] = {"mixer.x.weight", DIM_STATE, DIM_HIDDEN, .init = ROLE_INNER, .decays = true,
               .continues = true},
    [KEY] = {"mixer.B.weight", DIM_MAMBA_GROUPS, DIM_HIDDEN, .init = ROLE_INNER, .decays = true,
             .continues = true},
    [QUERY] = {"mixer.C.weight", DIM_MAMBA_GROUPS, DIM_HIDDEN, .init = ROLE_INNER, .decays = true,
               .continues = true},
    [DT] = {"mixer.dt.weight", DIM_MAMBA_HEADS, DIM_HIDDEN, .init = ROLE_INNER, .decays = true,
            .continues = true},
    [OUTPUT] = {"mixer.out.weight", DIM_HIDDEN, DIM_STATE, .init = ROLE_DOWN, .decays = true},
    ADAPTER_ROWS(GATE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(VALUE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(KEY, DIM_MAMBA_GROUPS, DIM_HIDDEN),
    ADAPTER_ROWS(QUERY, DIM_MAMBA_GROUPS, DIM_HIDDEN),
    ADAPTER_ROWS(DT, DIM_MAMBA_HEADS, DIM_HIDDEN),
    ADAPTER_ROWS(OUTPUT, DIM_HIDDEN, DIM_STATE),
};

/* RAW is the result of the first product, CONVOLVED that of the convolution of its x, B and C, Y that of the
 * scan. CARRY and TERMS are workspace of the scan's backward pass. */
enum { RAW, CONVOLVED, STARTS, Y, OUT, DOUT, DY, DRAW, DCONVOLVED, CARRY, TERMS, TENSORS };
static const TensorRow tensors[TENSORS] = {
    [RAW] = {.width = DIM_MAMBA_IN, .life = LIFE_SAVED},
    [CONVOLVED] = {.width = DIM_MAMBA_CONV, .life = LIFE_CHEAP},
    [STARTS] = {EXTENT_STARTS, DIM_MAMBA_STATES, ELEMENT_FP32, LIFE_SAVED, false, NEED_ALWAYS},
    [Y] = {.width = DIM_STATE, .life = LIFE_SAVED},
    [OUT] = {.width = DIM_STATE, .life = LIFE_SCRATCH, .operand = true},
    [DOUT] = {.width = DIM_STATE, .life = LIFE_SCRATCH},
    [DY] = {.width = DIM_STATE, .life = LIFE_SCRATCH},
    [DRAW] = {.width = DIM_MAMBA_IN, .life = LIFE_SCRATCH, .operand = true},
    [DCONVOLVED] = {.width = DIM_MAMBA_CONV, .life = LIFE_SCRATCH},
    [CARRY] = {EXTENT_ONE, DIM_MAMBA_STATES, ELEMENT_FP32, LIFE_SCRATCH, false, NEED_ALWAYS},
    [TERMS] = {EXTENT_MAMBA_CHUNK, DIM_MAMBA_TERMS, ELEMENT_FP32, LIFE_SCRATCH, false, NEED_ALWAYS},
};

enum { IN_ROWS = 5 };
static const Product in = {&params[GATE], NULL, IN_ROWS, DIM_MAMBA_IN, DIM_HIDDEN};
static const Product out = {&params[OUTPUT], NULL, 1, DIM_HIDDEN, DIM_STATE};

/* ---- what the ops get ---- */

static int64_t dim(const LayerPass *w, Dim d) { return model_dim(&w->pass->model->config, d); }

static const Param *param_at(const LayerPass *w, int row) {
    return param_of(&w->pass->model->table, w->unit, &params[row]);
}
static const float *vector_of(const LayerPass *w, int row) {
    return weights_vector(w->pass->weights, param_at(w, row));
}
static float *gradient_at(const LayerPass *w, int row) {
    return gradient_of(&w->pass->gradients, param_at(w, row));
}

/* What follows the gate in RAW or DRAW. */
static void *after_gate(const LayerPass *w, int raw) {
    return model_at(w->pass->model, w->tensors[raw], dim(w, DIM_STATE));
}

/* x, B and C, after the convolution or straight from the product. */
static void *read_by_scan(const LayerPass *w, int raw, int convolved) {
    return param_at(w, TAPS) ? w->tensors[convolved] : after_gate(w, raw);
}
static void *keys_at(const LayerPass *w, void *read, int groups) {
    return model_at(w->pass->model, read, dim(w, DIM_STATE) + groups * dim(w, DIM_MAMBA_GROUPS));
}
static void *steps_at(const LayerPass *w, int raw) {
    return model_at(w->pass->model, after_gate(w, raw), dim(w, DIM_MAMBA_READ));
}

static MambaShape scan_of(const LayerPass *w) {
    const ModelConfig *c = &w->pass->model->config;
    return (MambaShape){.tokens = w->pass->model->tokens,
                        .heads = dim(w, DIM_MAMBA_HEADS),
                        .groups = c->mamba_n_groups,
                        .head_dim = c->mamba_d_head,
                        .state = c->mamba_d_state,
                        .row = dim(w, param_at(w, TAPS) ? DIM_MAMBA_READ : DIM_MAMBA_IN),
                        .dt_row = dim(w, DIM_MAMBA_IN)};
}

static MambaInputs inputs_of(const LayerPass *w) {
    void *read = read_by_scan(w, RAW, CONVOLVED);
    return (MambaInputs){.x = read,
                         .B = keys_at(w, read, 0),
                         .C = keys_at(w, read, 1),
                         .dt = steps_at(w, RAW),
                         .dt_bias = vector_of(w, DT_BIAS),
                         .A_log = vector_of(w, A_LOG),
                         .D = vector_of(w, SKIP)};
}

static MambaGradients gradients_of(const LayerPass *w) {
    void *read = read_by_scan(w, DRAW, DCONVOLVED);
    return (MambaGradients){.x = read,
                            .B = keys_at(w, read, 0),
                            .C = keys_at(w, read, 1),
                            .dt = steps_at(w, DRAW),
                            .dt_bias = gradient_at(w, DT_BIAS),
                            .A_log = gradient_at(w, A_LOG),
                            .D = gradient_at(w, SKIP)};
}

static ConvShape conv_of(const LayerPass *w) {
    return (ConvShape){.tokens = w->pass->model->tokens,
                       .width = dim(w, DIM_MAMBA_READ),
                       .row = dim(w, DIM_MAMBA_IN),
                       .taps = (int)w->pass->model->config.conv_size};
}

static GatedNorm norm_of(const LayerPass *w) {
    const ModelConfig *c = &w->pass->model->config;
    return (GatedNorm){.tokens = w->pass->model->tokens,
                       .width = dim(w, DIM_STATE),
                       .run = dim(w, DIM_STATE) / c->mamba_n_groups,
                       .gate_row = dim(w, DIM_MAMBA_IN),
                       .eps = (float)c->rms_norm_eps};
}

/* ---- state of generation: that of the scan (mamba_carried), then the tail of the convolution ---- */

static int64_t carried_by_scan(const ModelConfig *c) {
    return model_dim(c, DIM_MAMBA_STATES) + model_dim(c, DIM_MAMBA_HEADS);
}

static int64_t carried(const ModelConfig *c) {
    int64_t tail = c->conv_size > 1 ? (c->conv_size - 1) * model_dim(c, DIM_MAMBA_READ) : 0;
    return carried_by_scan(c) + tail;
}

/* ---- ops ---- */

static void in_forward(const LayerPass *w) {
    begin_sequence(w, carried(&w->pass->model->config));
    product_forward(w, &in, w->x, w->tensors[RAW]);
}

static void in_backward(const LayerPass *w, Grads grads) {
    if (grads & WGRAD) product_weight(w, &in, w->tensors[DRAW], w->x);
    if (grads & DGRAD) product_input(w, &in, w->tensors[DRAW], w->dx);
}

static void conv_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    float *carries = carried_of(w);
    if (!param_at(w, TAPS)) return;
    OP(p->device, conv_forward, .s = conv_of(w), .x = after_gate(w, RAW), .w = vector_of(w, TAPS),
       .first_key = documents_of(w), .tail = carries ? carries + carried_by_scan(&p->model->config) : NULL,
       .y = w->tensors[CONVOLVED], .c = p->model->compute);
}

static void conv_backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    if (!(grads & DGRAD) || !param_at(w, TAPS)) return;
    OP(p->device, conv_backward, .s = conv_of(w), .x = after_gate(w, RAW), .w = vector_of(w, TAPS),
       .first_key = p->batch.first_key, .dy = w->tensors[DCONVOLVED], .dx = after_gate(w, DRAW),
       .dw = gradient_at(w, TAPS), .c = p->model->compute);
}

static void scan_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    OP(p->device, mamba_forward, .s = scan_of(w), .in = inputs_of(w), .first_key = documents_of(w),
       .state = carried_of(w), .starts = w->tensors[STARTS], .y = w->tensors[Y], .c = p->model->compute);
}

static void scan_backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    if (grads & DGRAD)
        OP(p->device, mamba_backward, .s = scan_of(w), .in = inputs_of(w), .first_key = p->batch.first_key,
           .starts = t[STARTS], .dy = t[DY], .carry = t[CARRY], .scratch = t[TERMS], .out = gradients_of(w),
           .c = p->model->compute);
}

/* The operations of MambaShape per element of the state, token by token: five forward; eleven backward, and
 * three to recompute the state. Products of chunks (CPU) take about as many. */
static Cost scan_cost(const ModelConfig *c, int unit, int64_t context) {
    double elements = (double)model_dim(c, DIM_MAMBA_STATES);
    (void)unit, (void)context;
    return (Cost){5 * elements, 14 * elements, 0};
}
static Cost scan_needs(const ModelConfig *c, int unit, int64_t context) {
    double elements = (double)model_dim(c, DIM_MAMBA_STATES);
    (void)unit, (void)context;
    return (Cost){5 * elements, 11 * elements, 0};
}

static void gate_output(const LayerPass *w) {
    const Pass *p = w->pass;
    OP(p->device, gated_norm_forward, .s = norm_of(w), .x = w->tensors[Y], .gate = w->tensors[RAW],
       .w = vector_of(w, NORM), .y = w->tensors[OUT], .c = p->model->compute);
}

static void out_forward(const LayerPass *w) {
    gate_output(w);
    product_forward(w, &out, w->tensors[OUT], w->y);
}

static void out_backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    if (grads & DGRAD) {
        product_input(w, &out, w->dy, t[DOUT]);
        OP(p->device, gated_norm_backward, .s = norm_of(w), .x = t[Y], .gate = t[RAW],
           .w = vector_of(w, NORM), .dy = t[DOUT], .dx = t[DY], .dgate = t[DRAW], .dw = gradient_at(w, NORM),
           .c = p->model->compute);
        gate_output(w);
    }
    if (grads & WGRAD) product_weight(w, &out, w->dy, t[OUT]);
}

static const LayerOp ops[] = {
    {"gate, x, B, C and steps", LIFE_SAVED, in_forward, in_backward, .product = &in},
    {"convolution", LIFE_CHEAP, conv_forward, conv_backward, .product = NULL},
    {"scan", LIFE_SAVED, scan_forward, scan_backward, .more = scan_cost, .needed = scan_needs},
    {"output", LIFE_SAVED, out_forward, out_backward, .product = &out},
};

const Layer layer_mamba2 = {.name = "Mamba-2",
                            LAYER_ROWS(param, params),
                            LAYER_ROWS(tensor, tensors),
                            LAYER_ROWS(op, ops),
                            .carried = carried};
