/* Convolutions and recurrences by the formulas in device.h, one channel at a time, in double.
 *
 * A state is kept in fp32, as h is stored. So a sequence that is processed in two calls gets the same numbers
 * as in one. */
#include <math.h>

#include "device/cpu/cpu.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

/* ---- convolutions ---- */

/* The first token that t sees; in generation also those in the tail, at negative indices. */
static int64_t reach(ConvShape s, const int32_t *first_key, int64_t t) {
    return max_i64(first_key ? first_key[t] : t - s.taps + 1, t - s.taps + 1);
}

static double input_at(ConvShape s, const void *x, const float *tail, int64_t t, int64_t channel, Dtype c) {
    if (t < 0) return (double)tail[(t + s.taps - 1) * s.width + channel];
    return (double)tensor_get(x, t * s.row + channel, c);
}

static const float *tap(ConvShape s, const float *w, int64_t back) {
    return w + (s.taps - 1 - back) * s.width;
}

static double convolve(ConvShape s, const void *x, const float *w, const int32_t *first_key,
                       const float *tail, int64_t t, int64_t channel, Dtype c) {
    double sum = 0;
    for (int64_t u = reach(s, first_key, t); u <= t; u++)
        sum += (double)tap(s, w, t - u)[channel] * input_at(s, x, tail, u, channel, c);
    return sum;
}

/* Moves oldest tokens first, so that each row is read before it is overwritten. */
static void move_tail(ConvShape s, const void *x, float *tail, Dtype c) {
    for (int64_t k = 0; k < s.taps - 1; k++)
        for (int64_t i = 0; i < s.width; i++)
            tail[k * s.width + i] = (float)input_at(s, x, tail, s.tokens - s.taps + 1 + k, i, c);
}

static void conv_forward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                         float *tail, void *y, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = 0; i < s.width; i++)
            tensor_set(y, t * s.width + i, c, (float)silu(convolve(s, x, w, first_key, tail, t, i, c)));
    if (tail) move_tail(s, x, tail, c);
}

/* Gradient of p_t, the input of silu. */
static double before_silu(ConvShape s, const void *x, const float *w, const int32_t *first_key,
                          const void *dy, int64_t t, int64_t channel, Dtype c) {
    double p = convolve(s, x, w, first_key, NULL, t, channel, c);
    return (double)tensor_get(dy, t * s.width + channel, c) * silu_slope(p);
}

static void conv_backward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                          const void *dy, void *dx, float *dw, Dtype c) {
    (void)d;
    for (int64_t i = 0; i < s.width; i++) {
        double sums[CONV_TAPS] = {0};
        for (int64_t t = 0; t < s.tokens; t++) {
            double sum = 0, dp = before_silu(s, x, w, first_key, dy, t, i, c);
            for (int64_t u = reach(s, first_key, t); u <= t; u++)
                sums[t - u] += dp * input_at(s, x, NULL, u, i, c);
            for (int64_t u = t; u < min_i64(s.tokens, t + s.taps); u++)
                if (reach(s, first_key, u) <= t)
                    sum += (double)tap(s, w, u - t)[i] * before_silu(s, x, w, first_key, dy, u, i, c);
            tensor_set(dx, t * s.row + i, c, (float)sum);
        }
        for (int64_t back = 0; back < s.taps; back++)
            dw[(s.taps - 1 - back) * s.width + i] += (float)sums[back];
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

static void scan_forward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, float *state,
                         float *h, Dtype c) {
    (void)d;
    for (int64_t i = 0; i < s.width; i++) {
        float before = state ? state[i] : 0;
        for (int64_t t = 0; t < s.tokens; t++) {
            Coefficients k = coefficients(s.kind, element_at(s, in, t, i, c));
            if (scan_begins(first_key, t)) before = 0;
            before = h[t * s.width + i] = (float)(k.a * (double)before + k.b);
        }
        if (state) state[i] = before;
    }
}

static void scan_gate(Device *d, ScanShape s, const void *gate, const float *h, void *out, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = 0; i < s.width; i++) {
            double g = (double)tensor_get(gate, t * s.gate_row + i, c);
            tensor_set(out, t * s.width + i, c, (float)((double)h[t * s.width + i] * silu(g)));
        }
}

/* Backward through one channel; `later` is the gradient that the next token passes on. */
static void scan_channel_backward(ScanShape s, ScanInputs in, const int32_t *first_key, const float *h,
                                  const void *dout, ScanGradients out, int64_t i, Dtype c) {
    double later = 0, decay = 0;
    for (int64_t t = s.tokens - 1; t >= 0; t--) {
        int64_t at = t * s.width + i;
        Element e = element_at(s, in, t, i, c), de;
        bool begins = t == 0 || scan_begins(first_key, t);
        double gate = (double)tensor_get(in.gate, t * s.gate_row + i, c),
               dy = (double)tensor_get(dout, at, c), g = dy * silu(gate) + later;
        de = slopes(s.kind, e, begins ? 0 : g * (double)h[at - s.width], g);
        later = begins ? 0 : g * coefficients(s.kind, e).a;
        for (int k = 0; k < scan_gates(s.kind); k++)
            tensor_set(out.gates, t * s.gates_row + k * s.width + i, c, (float)de.gate[k]);
        decay += de.decay;
        tensor_set(out.values, t * s.values_row + i, c, (float)de.value);
        tensor_set(out.gate, t * s.gate_row + i, c, (float)(dy * (double)h[at] * silu_slope(gate)));
    }
    if (out.lambda) out.lambda[i] += (float)(decay * -8 * sigmoid((double)in.lambda[i]));
}

static void scan_backward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, const float *h,
                          const void *dout, ScanGradients out, Dtype c) {
    (void)d;
    for (int64_t i = 0; i < s.width; i++) scan_channel_backward(s, in, first_key, h, dout, out, i, c);
}

void reference_fill_scans(Ops *ops) {
    ops->conv_forward = conv_forward;
    ops->conv_backward = conv_backward;
    ops->scan_forward = scan_forward;
    ops->scan_gate = scan_gate;
    ops->scan_backward = scan_backward;
}
