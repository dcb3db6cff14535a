/* Recurrences in place of attention, with one number of state per channel, however long the sequence: minGRU
 * and minLSTM (Feng et al., "Were RNNs all we needed?", 2024), and Hawk's RG-LRU (De et al., "Griffin",
 * 2024), as in Lingua (Videau et al., 2024):
 *
 *              minGRU                       minLSTM                    Hawk
 *     product  [g|z|v] = x [Wg;Wz;Wv]^T     [g|f|i|v] likewise         [g|v] likewise
 *     conv     z = silu(conv(z))            of f and i                 of v
 *     gates                                                            [r|i] = v [Wr;Wi]^T
 *     scan     h_t = (1 - s(z)) h + s(z) v  h_t = n (s(f) h + s(i) v)  h_t = a h + sqrt(1 - a^2) s(i) v
 *     output   y = (h * silu(g)) Wo^T       the same                   the same
 *
 * with s the logistic function, n = 1 / (s(f) + s(i) + 1e-4), log a = -8 s(r) log(1 + exp(lambda)), and one
 * lambda per channel. The convolution has K taps per channel, and is optional. An MLP follows Hawk only.
 *
 * Shapes: T tokens, W channels. State and convolution restart with each document. Generation carries h, and
 * the last tokens that the convolution still reads.
 *
 * The three share this code: they differ in their rows, and in which runs of W channels they have. The
 * backward pass recomputes h silu(g), as it does an MLP's activation. */
#include "model/unit.h"

#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "device/ops/recurrence.h"

/* ---- rows ---- */

enum { GRU_TAPS, GRU_GATE, GRU_Z, GRU_VALUE, GRU_OUT, GRU_MATRICES };
enum {
    GRU_GATE_A = GRU_MATRICES,
    GRU_GATE_B,
    GRU_Z_A,
    GRU_Z_B,
    GRU_VALUE_A,
    GRU_VALUE_B,
    GRU_OUT_A,
    GRU_OUT_B,
    GRU_PARAMS
};
enum { LSTM_TAPS, LSTM_GATE, LSTM_FORGET, LSTM_INPUT, LSTM_VALUE, LSTM_OUT, LSTM_MATRICES };
enum {
    LSTM_GATE_A = LSTM_MATRICES,
    LSTM_GATE_B,
    LSTM_FORGET_A,
    LSTM_FORGET_B,
    LSTM_INPUT_A,
    LSTM_INPUT_B,
    LSTM_VALUE_A,
    LSTM_VALUE_B,
    LSTM_OUT_A,
    LSTM_OUT_B,
    LSTM_PARAMS
};

enum { HAWK_TAPS, HAWK_LAMBDA, HAWK_GATE, HAWK_VALUE, HAWK_R, HAWK_I, HAWK_OUT, HAWK_MATRICES };
enum {
    HAWK_GATE_A = HAWK_MATRICES,
    HAWK_GATE_B,
    HAWK_VALUE_A,
    HAWK_VALUE_B,
    HAWK_R_A,
    HAWK_R_B,
    HAWK_I_A,
    HAWK_I_B,
    HAWK_OUT_A,
    HAWK_OUT_B,
    HAWK_PARAMS
};

/* Taps are a vector, [K, W] tap by tap: they are read in fp32, and are not for optimizers of matrices. */
#define TAPS(elements) \
    { "mixer.conv.weight", elements, .when = WHEN_CONV, .init = ROLE_CONV }
#define READS(name, ...) \
    { "mixer." name ".weight", DIM_STATE, DIM_HIDDEN, .init = ROLE_INNER, .decays = true, __VA_ARGS__ }
#define WRITES \
    { "mixer.out.weight", DIM_HIDDEN, DIM_STATE, .init = ROLE_DOWN, .decays = true }

#define params gru_params /* ADAPTER_ROWS refers to params */
static const ParamRow params[GRU_PARAMS] = {
    [GRU_TAPS] = TAPS(DIM_TAPS),
    [GRU_GATE] = READS("gate"),
    [GRU_Z] = READS("update", .continues = true),
    [GRU_VALUE] = READS("value", .continues = true),
    [GRU_OUT] = WRITES,
    ADAPTER_ROWS(GRU_GATE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(GRU_Z, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(GRU_VALUE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(GRU_OUT, DIM_HIDDEN, DIM_STATE),
};
#undef params
#define params lstm_params
static const ParamRow params[LSTM_PARAMS] = {
    [LSTM_TAPS] = TAPS(DIM_TAPS_2),
    [LSTM_GATE] = READS("gate"),
    [LSTM_FORGET] = READS("forget", .continues = true),
    [LSTM_INPUT] = READS("input", .continues = true),
    [LSTM_VALUE] = READS("value", .continues = true),
    [LSTM_OUT] = WRITES,
    ADAPTER_ROWS(LSTM_GATE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(LSTM_FORGET, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(LSTM_INPUT, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(LSTM_VALUE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(LSTM_OUT, DIM_HIDDEN, DIM_STATE),
};
#undef params
#define params hawk_params
static const ParamRow params[HAWK_PARAMS] = {
    [HAWK_TAPS] = TAPS(DIM_TAPS),
    [HAWK_LAMBDA] = {"mixer.lambda", DIM_STATE, .init = ROLE_LAMBDA},
    [HAWK_GATE] = READS("gate"),
    [HAWK_VALUE] = READS("value", .continues = true),
    [HAWK_R] = {"mixer.recurrence.weight", DIM_STATE, DIM_STATE, .init = ROLE_INNER, .decays = true},
    [HAWK_I] = {"mixer.input.weight", DIM_STATE, DIM_STATE, .init = ROLE_INNER, .decays = true,
                .continues = true},
    [HAWK_OUT] = WRITES,
    ADAPTER_ROWS(HAWK_GATE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(HAWK_VALUE, DIM_STATE, DIM_HIDDEN),
    ADAPTER_ROWS(HAWK_R, DIM_STATE, DIM_STATE),
    ADAPTER_ROWS(HAWK_I, DIM_STATE, DIM_STATE),
    ADAPTER_ROWS(HAWK_OUT, DIM_HIDDEN, DIM_STATE),
};
#undef params

/* RAW is the result of the first product, CONVOLVED that of the convolution of some of it, and GATES Hawk's
 * gates of that. D... are gradients. Hawk's v has two: DVALUES is the one through the scan alone. */
enum { RAW, CONVOLVED, STATES, OUT, DOUT, DRAW, DCONVOLVED, TENSORS };
enum { GATES = TENSORS, DGATES, DVALUES, HAWK_TENSORS };
#define TENSOR_ROWS(raw, convolved, read)                                                 \
    [RAW] = {.width = raw, .life = LIFE_SAVED},                                           \
    [CONVOLVED] = {.width = convolved, .life = LIFE_CHEAP, .operand = read},              \
    [STATES] = {.width = DIM_STATE, .element = ELEMENT_FP32, .life = LIFE_SAVED}, /* h */ \
        [OUT] = {.width = DIM_STATE, .life = LIFE_SCRATCH, .operand = true},              \
    [DOUT] = {.width = DIM_STATE, .life = LIFE_SCRATCH},                                  \
    [DRAW] = {.width = raw, .life = LIFE_SCRATCH, .operand = true},                       \
    [DCONVOLVED] = {.width = convolved, .life = LIFE_SCRATCH}
static const TensorRow gru_tensors[TENSORS] = {TENSOR_ROWS(DIM_STATES_3, DIM_CONV, false)};
static const TensorRow lstm_tensors[TENSORS] = {TENSOR_ROWS(DIM_STATES_4, DIM_CONV_2, false)};
static const TensorRow hawk_tensors[HAWK_TENSORS] = {
    TENSOR_ROWS(DIM_STATES_2, DIM_STATE, true),
    [GATES] = {.width = DIM_STATES_2, .life = LIFE_SAVED},
    [DGATES] = {.width = DIM_STATES_2, .life = LIFE_SCRATCH, .operand = true},
    [DVALUES] = {.width = DIM_STATE, .life = LIFE_SCRATCH},
};

enum { GRU_ROWS = 3, LSTM_ROWS = 4, HAWK_ROWS = 2 }; /* rows that make up a product's matrix */
static const Product gru_in = {&gru_params[GRU_GATE], NULL, GRU_ROWS, DIM_STATES_3, DIM_HIDDEN};
static const Product gru_out = {&gru_params[GRU_OUT], NULL, 1, DIM_HIDDEN, DIM_STATE};
static const Product lstm_in = {&lstm_params[LSTM_GATE], NULL, LSTM_ROWS, DIM_STATES_4, DIM_HIDDEN};
static const Product lstm_out = {&lstm_params[LSTM_OUT], NULL, 1, DIM_HIDDEN, DIM_STATE};
static const Product hawk_in = {&hawk_params[HAWK_GATE], NULL, HAWK_ROWS, DIM_STATES_2, DIM_HIDDEN};
static const Product hawk_gates = {&hawk_params[HAWK_R], NULL, HAWK_ROWS, DIM_STATES_2, DIM_STATE};
static const Product hawk_out = {&hawk_params[HAWK_OUT], NULL, 1, DIM_HIDDEN, DIM_STATE};

/* ---- which of the three recurrences ---- */

typedef struct Kind {
    ScanKind scan;
    int raw, convolved; /* runs of W channels; the convolved ones follow g */
    const ParamRow *taps, *lambda;
    const Product *in, *gates, *out; /* gates NULL: the convolution makes the gates */
} Kind;
static const Kind kinds[] = {
    [MIXER_MIN_GRU] = {SCAN_MIN_GRU, 3, 1, &gru_params[GRU_TAPS], NULL, &gru_in, NULL, &gru_out},
    [MIXER_MIN_LSTM] = {SCAN_MIN_LSTM, 4, 2, &lstm_params[LSTM_TAPS], NULL, &lstm_in, NULL, &lstm_out},
    [MIXER_HAWK] = {SCAN_HAWK, 2, 1, &hawk_params[HAWK_TAPS], &hawk_params[HAWK_LAMBDA], &hawk_in,
                    &hawk_gates, &hawk_out},
};

static const Kind *kind_of(const LayerPass *w) {
    return &kinds[model_block(&w->pass->model->config, w->unit - 1).mixer];
}

static const Param *param_in(const LayerPass *w, const ParamRow *row) {
    return row ? param_of(&w->pass->model->table, w->unit, row) : NULL;
}

/* NULL: there is no convolution. */
static const Param *taps_of(const LayerPass *w) { return param_in(w, kind_of(w)->taps); }

static int64_t width_of(const LayerPass *w) { return w->pass->model->config.recurrent_size; }

static ConvShape conv_of(const LayerPass *w) {
    const Model *m = w->pass->model;
    const Kind *k = kind_of(w);
    return (ConvShape){.tokens = m->tokens,
                       .width = k->convolved * width_of(w),
                       .row = k->raw * width_of(w),
                       .taps = (int)m->config.conv_size};
}

/* A run of W channels of RAW, or of DRAW. */
static void *run_of(const LayerPass *w, int tensor, int64_t run) {
    return model_at(w->pass->model, w->tensors[tensor], run * width_of(w));
}

/* What the scan reads, or its gradients: addresses, and strides from token to token. */
typedef struct Operands {
    void *gates, *values, *gate;
    ScanShape shape;
} Operands;

/* Hawk's gates and values are tensors of their own. For the others, values are in RAW, and so are gates
 * without a convolution. */
static Operands operands(const LayerPass *w, int raw, int convolved, int gates, int values) {
    const Kind *k = kind_of(w);
    int64_t width = width_of(w), row = k->raw * width;
    Operands o = {.gates = run_of(w, raw, 1),
                  .values = run_of(w, raw, k->convolved + 1),
                  .gate = w->tensors[raw],
                  .shape = {w->pass->model->tokens, width, row, row, row, k->scan}};
    if (k->gates) {
        o.gates = w->tensors[gates], o.values = w->tensors[values];
        o.shape.gates_row = 2 * width, o.shape.values_row = width;
    } else if (taps_of(w)) {
        o.gates = w->tensors[convolved], o.shape.gates_row = k->convolved * width;
    }
    return o;
}
static Operands read_by_scan(const LayerPass *w) { return operands(w, RAW, CONVOLVED, GATES, CONVOLVED); }

static ScanInputs inputs_of(const LayerPass *w, const Operands *o) {
    const Param *lambda = param_in(w, kind_of(w)->lambda);
    return (ScanInputs){o->gates, o->values, o->gate,
                        lambda ? weights_vector(w->pass->weights, lambda) : NULL};
}

/* ---- state of generation: h, then the tail of the convolution ---- */

static int64_t carried(const ModelConfig *c, Mixer mixer) {
    int64_t tail = c->conv_size > 1 ? (c->conv_size - 1) * kinds[mixer].convolved : 0;
    return (1 + tail) * c->recurrent_size;
}
static int64_t gru_carried(const ModelConfig *c) { return carried(c, MIXER_MIN_GRU); }
static int64_t lstm_carried(const ModelConfig *c) { return carried(c, MIXER_MIN_LSTM); }
static int64_t hawk_carried(const ModelConfig *c) { return carried(c, MIXER_HAWK); }

float *carried_of(const LayerPass *w) {
    const KeyValueCache *cache = w->pass->cache;
    return cache ? (float *)(void *)(cache->base + (size_t)(w->unit - 1) * cache->unit_bytes) : NULL;
}

void begin_sequence(const LayerPass *w, int64_t elements) {
    const Pass *p = w->pass;
    if (p->cache && p->cache->start == 0)
        OP(p->device, zero, carried_of(w), (size_t)elements * sizeof(float));
}

const int32_t *documents_of(const LayerPass *w) { return w->pass->cache ? NULL : w->pass->batch.first_key; }

/* ---- ops ---- */

static void in_forward(const LayerPass *w) {
    const ModelConfig *c = &w->pass->model->config;
    begin_sequence(w, carried(c, model_block(c, w->unit - 1).mixer));
    product_forward(w, kind_of(w)->in, w->x, w->tensors[RAW]);
}

static void in_backward(const LayerPass *w, Grads grads) {
    if (grads & WGRAD) product_weight(w, kind_of(w)->in, w->tensors[DRAW], w->x);
    if (grads & DGRAD) product_input(w, kind_of(w)->in, w->tensors[DRAW], w->dx);
}

/* Without a convolution, copies the input of Hawk's gates, which their product reads as a matrix of one
 * run. */
static void copy_run(const LayerPass *w, void *to, int64_t to_runs, const void *from, int64_t from_runs) {
    const Model *m = w->pass->model;
    size_t bytes = (size_t)width_of(w) * dtype_bytes(m->compute);
    OP(w->pass->device, copy_rows, .rows = m->tokens, .bytes = bytes, .to = to,
       .to_stride = (size_t)to_runs * bytes, .from = from, .from_stride = (size_t)from_runs * bytes);
}

static void conv_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Kind *k = kind_of(w);
    const Param *taps = taps_of(w);
    float *carries = carried_of(w);
    if (taps)
        OP(p->device, conv_forward, .s = conv_of(w), .x = run_of(w, RAW, 1),
           .w = weights_vector(p->weights, taps), .first_key = documents_of(w),
           .tail = carries ? carries + width_of(w) : NULL, .y = w->tensors[CONVOLVED],
           .c = p->model->compute);
    else if (k->gates)
        copy_run(w, w->tensors[CONVOLVED], 1, run_of(w, RAW, 1), k->raw);
}

static void conv_backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    const Kind *k = kind_of(w);
    const Param *taps = taps_of(w);
    if (!(grads & DGRAD)) return;
    if (taps)
        OP(p->device, conv_backward, .s = conv_of(w), .x = run_of(w, RAW, 1),
           .w = weights_vector(p->weights, taps), .first_key = p->batch.first_key,
           .dy = w->tensors[DCONVOLVED], .dx = run_of(w, DRAW, 1), .dw = gradient_of(&p->gradients, taps),
           .c = p->model->compute);
    else if (k->gates)
        copy_run(w, run_of(w, DRAW, 1), k->raw, w->tensors[DCONVOLVED], 1);
}

static void gates_forward(const LayerPass *w) {
    product_forward(w, &hawk_gates, w->tensors[CONVOLVED], w->tensors[GATES]);
}

/* The gradients of v from the gates and from the scan are added. */
static void gates_backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    if (grads & DGRAD) {
        product_input(w, &hawk_gates, t[DGATES], t[DCONVOLVED]);
        OP(p->device, add, p->model->tokens * width_of(w), t[DCONVOLVED], t[DVALUES], t[DCONVOLVED],
           p->model->compute);
    }
    if (grads & WGRAD) product_weight(w, &hawk_gates, t[DGATES], t[CONVOLVED]);
}

static void scan_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    Operands o = read_by_scan(w);
    OP(p->device, scan_forward, .s = o.shape, .in = inputs_of(w, &o), .first_key = documents_of(w),
       .state = carried_of(w), .h = w->tensors[STATES], .c = p->model->compute);
}

static void scan_backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    const Param *lambda = param_in(w, kind_of(w)->lambda);
    Operands o = read_by_scan(w), to = operands(w, DRAW, DCONVOLVED, DGATES, DVALUES);
    ScanGradients gradients = {to.gates, to.values, to.gate,
                               lambda ? gradient_of(&p->gradients, lambda) : NULL};
    if (grads & DGRAD)
        OP(p->device, scan_backward, .s = o.shape, .in = inputs_of(w, &o), .first_key = p->batch.first_key,
           .h = w->tensors[STATES], .dout = w->tensors[DOUT], .out = gradients, .c = p->model->compute);
}

static void gate_output(const LayerPass *w) {
    const Pass *p = w->pass;
    Operands o = read_by_scan(w);
    OP(p->device, scan_gate, .s = o.shape, .gate = o.gate, .h = w->tensors[STATES], .out = w->tensors[OUT],
       .c = p->model->compute);
}

static void out_forward(const LayerPass *w) {
    gate_output(w);
    product_forward(w, kind_of(w)->out, w->tensors[OUT], w->y);
}

static void out_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD) {
        product_input(w, kind_of(w)->out, w->dy, w->tensors[DOUT]);
        gate_output(w);
    }
    if (grads & WGRAD) product_weight(w, kind_of(w)->out, w->dy, w->tensors[OUT]);
}

#define FIRST_OPS(in)                                                            \
    {"gates and values", LIFE_SAVED, in_forward, in_backward, .product = &in}, { \
        "convolution", LIFE_CHEAP, conv_forward, conv_backward, .product = NULL  \
    }
#define LAST_OPS(out)                                                     \
    {"scan", LIFE_SAVED, scan_forward, scan_backward, .product = NULL}, { \
        "output", LIFE_SAVED, out_forward, out_backward, .product = &out  \
    }
static const LayerOp gru_ops[] = {FIRST_OPS(gru_in), LAST_OPS(gru_out)};
static const LayerOp lstm_ops[] = {FIRST_OPS(lstm_in), LAST_OPS(lstm_out)};
static const LayerOp hawk_ops[] = {
    FIRST_OPS(hawk_in),
    {"gates", LIFE_SAVED, gates_forward, gates_backward, .product = &hawk_gates},
    LAST_OPS(hawk_out),
};

const Layer layer_min_gru = {.name = "minGRU",
                             LAYER_ROWS(param, gru_params),
                             LAYER_ROWS(tensor, gru_tensors),
                             LAYER_ROWS(op, gru_ops),
                             .carried = gru_carried};
const Layer layer_min_lstm = {.name = "minLSTM",
                              LAYER_ROWS(param, lstm_params),
                              LAYER_ROWS(tensor, lstm_tensors),
                              LAYER_ROWS(op, lstm_ops),
                              .carried = lstm_carried};
const Layer layer_hawk = {.name = "Hawk",
                          LAYER_ROWS(param, hawk_params),
                          LAYER_ROWS(tensor, hawk_tensors),
                          LAYER_ROWS(op, hawk_ops),
                          .carried = hawk_carried};
