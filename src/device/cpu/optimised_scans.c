/* Convolutions and recurrences on threads. A channel knows nothing of another, and goes through its tokens in
 * one order: pieces are channels, and which thread has which cannot show. What is no chain over tokens is cut
 * by rows. */
#include "device/cpu/optimised.h"

static void conv_forward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                         float *tail, void *y, Dtype c) {
    EACH_PIECE(d, first, s.width, SCAN_CHANNELS)
    kernels_of(d)->conv_forward(s, first, min_i64(SCAN_CHANNELS, s.width - first), x, w, first_key, tail, y,
                                c);
}

static void conv_backward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                          const void *dy, void *dx, float *dw, Dtype c) {
    EACH_PIECE(d, first, s.width, SCAN_CHANNELS)
    kernels_of(d)->conv_backward(s, first, min_i64(SCAN_CHANNELS, s.width - first), x, w, first_key, dy, dx,
                                 dw, c);
}

static void scan_forward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, float *state,
                         float *h, Dtype c) {
    EACH_PIECE(d, first, s.width, SCAN_CHANNELS)
    kernels_of(d)->scan_forward(s, first, min_i64(SCAN_CHANNELS, s.width - first), in, first_key, state, h,
                                c);
}

static void scan_gate(Device *d, ScanShape s, const void *gate, const float *h, void *out, Dtype c) {
    int64_t step = rows_for(s.width), tokens = s.tokens;
    EACH_PIECE(d, first, tokens, step) {
        ScanShape piece = s;
        piece.tokens = min_i64(step, tokens - first);
        kernels_of(d)->scan_gate(piece, tensor_at(gate, first * s.gate_row, c), h + first * s.width,
                                 tensor_to(out, first * s.width, c), c);
    }
}

static void scan_backward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, const float *h,
                          const void *dout, ScanGradients out, Dtype c) {
    EACH_PIECE(d, first, s.width, SCAN_CHANNELS)
    kernels_of(d)->scan_backward(s, first, min_i64(SCAN_CHANNELS, s.width - first), in, first_key, h, dout,
                                 out, c);
}

void optimised_fill_scans(Ops *ops) {
    ops->conv_forward = conv_forward;
    ops->conv_backward = conv_backward;
    ops->scan_forward = scan_forward;
    ops->scan_gate = scan_gate;
    ops->scan_backward = scan_backward;
}
