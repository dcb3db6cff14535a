/* Convolutions and recurrences by the formulas in ops/recurrence.h, one channel at a time, in double.
 *
 * A state is kept in fp32, as h is stored. So a sequence that is processed in two calls gets the same numbers
 * as in one. */
#include <math.h>

#include "device/cpu/cpu.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

/* ---- convolutions ---- */

static double input_at(const ConvInputs *in, int64_t t, int64_t channel) {
    if (t < 0) return (double)in->tail[(t + in->s.taps - 1) * in->s.width + channel];
    return (double)tensor_get(in->x, t * in->s.row + channel, in->c);
}

static double tap(const ConvInputs *in, int64_t back, int64_t channel) {
    return (double)in->w[(in->s.taps - 1 - back) * in->s.width + channel];
}

static double convolve(const ConvInputs *in, int64_t t, int64_t channel) {
    double sum = 0;
    for (int64_t u = conv_reach(in, t); u <= t; u++)
        sum += tap(in, t - u, channel) * input_at(in, u, channel);
    return sum;
}

/* Moves oldest tokens first, so that each row is read before it is overwritten. */
static void move_tail(const ConvInputs *in) {
    int64_t kept = in->s.taps - 1;
    for (int64_t k = 0; k < kept; k++)
        for (int64_t i = 0; i < in->s.width; i++)
            in->tail[k * in->s.width + i] = (float)input_at(in, in->s.tokens - kept + k, i);
}

static void conv_forward(Device *d, const ConvForwardArgs *o) {
    (void)d;
    const ConvInputs in = {o->s, o->x, o->w, o->first_key, o->tail, o->c};
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t i = 0; i < o->s.width; i++)
            tensor_set(o->y, t * o->s.width + i, o->c, (float)silu(convolve(&in, t, i)));
    if (o->tail) move_tail(&in);
}

/* Gradient of p_t, the input of silu. */
static double before_silu(const ConvInputs *in, const void *dy, int64_t t, int64_t channel) {
    return (double)tensor_get(dy, t * in->s.width + channel, in->c) * silu_slope(convolve(in, t, channel));
}

static void conv_backward(Device *d, const ConvBackwardArgs *o) {
    (void)d;
    const ConvInputs in = {o->s, o->x, o->w, o->first_key, NULL, o->c};
    for (int64_t i = 0; i < o->s.width; i++) {
        double sums[CONV_TAPS] = {0};
        for (int64_t t = 0; t < o->s.tokens; t++) {
            double sum = 0, dp = before_silu(&in, o->dy, t, i);
            for (int64_t u = conv_reach(&in, t); u <= t; u++) sums[t - u] += dp * input_at(&in, u, i);
            for (int64_t u = t; u < min_i64(o->s.tokens, t + o->s.taps); u++)
                if (conv_reach(&in, u) <= t) sum += tap(&in, u - t, i) * before_silu(&in, o->dy, u, i);
            tensor_set(o->dx, t * o->s.row + i, o->c, (float)sum);
        }
        for (int64_t back = 0; back < o->s.taps; back++)
            o->dw[(o->s.taps - 1 - back) * o->s.width + i] += (float)sums[back];
    }
}

/* ---- recurrences ---- */

/* For one token and channel: the inputs of a and b, or their gradients. decay: HAWK's factor of s(r). */
typedef struct Element {
    double gate[SCAN_GATES], value, decay;
} Element;
typedef struct Coefficients {
    double a, b;
} Coefficients;

static Element element_at(ScanShape s, ScanInputs in, int64_t t, int64_t channel, Dtype c) {
    Element e = {.value = (double)tensor_get(in.values, t * s.values_row + channel, c),
                 .decay = in.lambda ? -8 * log1p(exp((double)in.lambda[channel])) : 0};
    for (int k = 0; k < scan_gates(s.kind); k++)
        e.gate[k] = (double)tensor_get(in.gates, t * s.gates_row + k * s.width + channel, c);
    return e;
}

static Coefficients coefficients(ScanKind kind, Element e) {
    double x = sigmoid(e.gate[0]), y = sigmoid(e.gate[1]), n = 1 / (x + y + 1e-4);
    switch (kind) {
    case SCAN_MIN_GRU: return (Coefficients){1 - x, x * e.value};
    case SCAN_MIN_LSTM: return (Coefficients){x * n, y * n * e.value};
    case SCAN_HAWK: return (Coefficients){exp(e.decay * x), sqrt(-expm1(2 * e.decay * x)) * y * e.value};
    }
    return (Coefficients){0, 0};
}

/* HAWK's gradients from da and db. */
static Element hawk_slopes(Element e, double da, double db) {
    double x = sigmoid(e.gate[0]), y = sigmoid(e.gate[1]), a = exp(e.decay * x),
           square = -expm1(2 * e.decay * x), root = sqrt(square);
    double droot = db * y * e.value, dlog = (da - 2 * a * droot / sqrt(fmax(4 * square, 1e-6))) * a;
    return (Element){
        {dlog * e.decay * x * (1 - x), db * root * e.value * y * (1 - y)}, db * root * y, dlog * x};
}

/* Gradients from da and db. */
static Element slopes(ScanKind kind, Element e, double da, double db) {
    double x = sigmoid(e.gate[0]), y = sigmoid(e.gate[1]), n = 1 / (x + y + 1e-4);
    switch (kind) {
    case SCAN_MIN_GRU: return (Element){{(db * e.value - da) * x * (1 - x), 0}, db * x, 0};
    case SCAN_MIN_LSTM: {
        double along = da * x + db * e.value * y; /* n times it is what both gates' gradients subtract */
        return (Element){{n * (da - n * along) * x * (1 - x), n * (db * e.value - n * along) * y * (1 - y)},
                         db * y * n,
                         0};
    }
    case SCAN_HAWK: return hawk_slopes(e, da, db);
    }
    return (Element){{0, 0}, 0, 0};
}

static void scan_forward(Device *d, const ScanForwardArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->s.width; i++) {
        float before = o->state ? o->state[i] : 0;
        for (int64_t t = 0; t < o->s.tokens; t++) {
            Coefficients k = coefficients(o->s.kind, element_at(o->s, o->in, t, i, o->c));
            if (scan_begins(o->first_key, t)) before = 0;
            before = o->h[t * o->s.width + i] = (float)(k.a * (double)before + k.b);
        }
        if (o->state) o->state[i] = before;
    }
}

static void scan_gate(Device *d, const ScanGateArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t i = 0; i < o->s.width; i++) {
            double g = (double)tensor_get(o->gate, t * o->s.gate_row + i, o->c);
            tensor_set(o->out, t * o->s.width + i, o->c, (float)((double)o->h[t * o->s.width + i] * silu(g)));
        }
}

/* Backward through one channel; `later` is the gradient that the next token passes on. */
static void scan_channel_backward(const ScanBackwardArgs *o, int64_t i) {
    double later = 0, decay = 0;
    for (int64_t t = o->s.tokens - 1; t >= 0; t--) {
        int64_t at = t * o->s.width + i;
        Element e = element_at(o->s, o->in, t, i, o->c), de;
        bool begins = t == 0 || scan_begins(o->first_key, t);
        double gate = (double)tensor_get(o->in.gate, t * o->s.gate_row + i, o->c),
               dy = (double)tensor_get(o->dout, at, o->c), g = dy * silu(gate) + later;
        de = slopes(o->s.kind, e, begins ? 0 : g * (double)o->h[at - o->s.width], g);
        later = begins ? 0 : g * coefficients(o->s.kind, e).a;
        for (int k = 0; k < scan_gates(o->s.kind); k++)
            tensor_set(o->out.gates, t * o->s.gates_row + k * o->s.width + i, o->c, (float)de.gate[k]);
        decay += de.decay;
        tensor_set(o->out.values, t * o->s.values_row + i, o->c, (float)de.value);
        tensor_set(o->out.gate, t * o->s.gate_row + i, o->c,
                   (float)(dy * (double)o->h[at] * silu_slope(gate)));
    }
    if (o->out.lambda) o->out.lambda[i] += (float)(decay * -8 * sigmoid((double)o->in.lambda[i]));
}

static void scan_backward(Device *d, const ScanBackwardArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->s.width; i++) scan_channel_backward(o, i);
}

void reference_fill_scans(Ops *ops) {
    ops->conv_forward = conv_forward;
    ops->conv_backward = conv_backward;
    ops->scan_forward = scan_forward;
    ops->scan_gate = scan_gate;
    ops->scan_backward = scan_backward;
}
