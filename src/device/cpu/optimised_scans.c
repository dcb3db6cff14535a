/* Convolutions and recurrences on threads. Channels are independent, and each goes through its tokens in one
 * order. So pieces are channels, and the assignment to threads does not affect results. Ops without a chain
 * over tokens are cut by rows. */
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

/* ---- Mamba-2 ---- */

/* Heads are independent: in forward, a piece is one head, through all tokens. */
static void mamba_forward(Device *d, MambaShape s, MambaInputs in, const int32_t *first_key, float *state,
                          float *starts, void *y, Dtype c) {
    MambaRun r = {.s = s, .in = in, .first_key = first_key, .c = c, .starts = starts, .state = state, .y = y};
    size_t bytes = (size_t)(s.head_dim * s.state) * sizeof(float);
    EACH_PIECE(d, head, s.heads, 1) {
        int64_t at = mamba_state_at(&s, head, 0);
        if (state)
            memcpy(starts + at, state + at, bytes);
        else
            memset(starts + at, 0, bytes);
        for (int64_t first = 0; first < s.tokens; first += MAMBA_CHUNK)
            kernels_of(d)->mamba_forward(&r, head, first, min_i64(MAMBA_CHUNK, s.tokens - first));
    }
    mamba_profile(d, OP_MAMBA_FORWARD, &s);
}

/* Heads of a group contribute to the same sums, dB and dC. Their partial sums are added, in the order of the
 * heads, when those of a chunk are complete. */
static void mamba_backward(Device *d, MambaShape s, MambaInputs in, const int32_t *first_key,
                           const float *starts, const void *dy, float *carry, float *room, MambaGradients out,
                           Dtype c) {
    MambaRun r = {.s = s,
                  .in = in,
                  .first_key = first_key,
                  .c = c,
                  .starts = (float *)(uintptr_t)starts,
                  .dy = dy,
                  .carry = carry,
                  .room = room,
                  .out = out};
    int64_t step = rows_for(2 * s.heads * s.state);
    memset(carry, 0, (size_t)mamba_state_at(&s, s.heads, 0) * sizeof *carry);
    for (int64_t first = (mamba_starts(s.tokens) - 1) * MAMBA_CHUNK; first >= 0; first -= MAMBA_CHUNK) {
        int64_t count = min_i64(MAMBA_CHUNK, s.tokens - first);
        EACH_PIECE(d, head, s.heads, 1)
        kernels_of(d)->mamba_backward(&r, head, first, count);
        EACH_PIECE(d, i, count, step) {
            for (int64_t t = i; t < min_i64(count, i + step); t++) kernels_of(d)->mamba_sum(&r, first, t);
        }
    }
    mamba_profile(d, OP_MAMBA_BACKWARD, &s);
}

void optimised_fill_scans(Ops *ops) {
    ops->conv_forward = conv_forward;
    ops->conv_backward = conv_backward;
    ops->scan_forward = scan_forward;
    ops->scan_gate = scan_gate;
    ops->scan_backward = scan_backward;
    ops->mamba_forward = mamba_forward;
    ops->mamba_backward = mamba_backward;
}
