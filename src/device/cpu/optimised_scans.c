/* Convolutions and recurrences on threads. Channels are independent, and each goes through its tokens in one
 * order. So pieces are channels, and the assignment to threads does not affect results. Ops without a chain
 * over tokens are cut by rows. */
#include "device/cpu/optimised.h"

static void conv_forward(Device *d, const ConvForwardArgs *o) {
    EACH_PIECE(d, first, o->s.width, SCAN_CHANNELS)
    kernels_of(d)->conv_forward(o, first, min_i64(SCAN_CHANNELS, o->s.width - first));
}

static void conv_backward(Device *d, const ConvBackwardArgs *o) {
    EACH_PIECE(d, first, o->s.width, SCAN_CHANNELS)
    kernels_of(d)->conv_backward(o, first, min_i64(SCAN_CHANNELS, o->s.width - first));
}

static void scan_forward(Device *d, const ScanForwardArgs *o) {
    EACH_PIECE(d, first, o->s.width, SCAN_CHANNELS)
    kernels_of(d)->scan_forward(o, first, min_i64(SCAN_CHANNELS, o->s.width - first));
}

static void scan_gate(Device *d, const ScanGateArgs *o) {
    int64_t step = rows_for(o->s.width), tokens = o->s.tokens;
    EACH_PIECE(d, first, tokens, step) {
        ScanShape piece = o->s;
        piece.tokens = min_i64(step, tokens - first);
        kernels_of(d)->scan_gate(piece, tensor_at(o->gate, first * o->s.gate_row, o->c),
                                 o->h + first * o->s.width, tensor_to(o->out, first * o->s.width, o->c),
                                 o->c);
    }
}

static void scan_backward(Device *d, const ScanBackwardArgs *o) {
    EACH_PIECE(d, first, o->s.width, SCAN_CHANNELS)
    kernels_of(d)->scan_backward(o, first, min_i64(SCAN_CHANNELS, o->s.width - first));
}

/* ---- Mamba-2 ---- */

/* Heads are independent: in forward, a piece is one head, through all tokens. */
static void mamba_forward(Device *d, const MambaForwardArgs *o) {
    MambaRun r = mamba_forward_run(o);
    size_t bytes = (size_t)(o->s.head_dim * o->s.state) * sizeof(float);
    EACH_PIECE(d, head, o->s.heads, 1) {
        int64_t at = mamba_state_at(&o->s, head, 0);
        if (o->state)
            memcpy(o->starts + at, o->state + at, bytes);
        else
            memset(o->starts + at, 0, bytes);
        for (int64_t first = 0; first < o->s.tokens; first += MAMBA_CHUNK)
            kernels_of(d)->mamba_forward(&r, head, first, min_i64(MAMBA_CHUNK, o->s.tokens - first));
    }
    mamba_profile(d, OP_MAMBA_FORWARD, &o->s);
}

/* Heads of a group contribute to the same sums, dB and dC. Their partial sums are added, in the order of the
 * heads, when those of a chunk are complete. */
static void mamba_backward(Device *d, const MambaBackwardArgs *o) {
    MambaRun r = mamba_backward_run(o);
    int64_t step = rows_for(2 * o->s.heads * o->s.state);
    memset(o->carry, 0, (size_t)mamba_state_at(&o->s, o->s.heads, 0) * sizeof *o->carry);
    for (int64_t first = (mamba_starts(o->s.tokens) - 1) * MAMBA_CHUNK; first >= 0; first -= MAMBA_CHUNK) {
        int64_t count = min_i64(MAMBA_CHUNK, o->s.tokens - first);
        EACH_PIECE(d, head, o->s.heads, 1)
        kernels_of(d)->mamba_backward(&r, head, first, count);
        EACH_PIECE(d, i, count, step) {
            for (int64_t t = i; t < min_i64(count, i + step); t++) kernels_of(d)->mamba_sum(&r, first, t);
        }
    }
    mamba_profile(d, OP_MAMBA_BACKWARD, &o->s);
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
