/* Ops of recurrent layers: convolutions, linear recurrences, Mamba-2, gated norms. */
#ifndef WEFT_DEVICE_OPS_RECURRENCE_H
#define WEFT_DEVICE_OPS_RECURRENCE_H

#include "device/shapes.h"

/* A short causal depthwise convolution. */
typedef struct ConvShape {
    int64_t tokens, width; /* T, W: channels */
    int64_t row;           /* elements between tokens in x, and in its gradient */
    int taps;              /* K, at most CONV_TAPS */
} ConvShape;
enum { CONV_TAPS = 8 };

/* Recurrences that are linear in their state, per channel: h_t = a_t h_{t-1} + b_t. Each document begins from
 * h = 0. a and b, with s(x) = 1 / (1 + exp(-x)) and values v:
 *
 *     MIN_GRU    a = 1 - s(z)      b = s(z) v               gates z
 *     MIN_LSTM   a = s(f) n        b = s(i) n v             gates f, then i; n = 1 / (s(f) + s(i) + 1e-4)
 *     HAWK       a = exp(d s(r))   b = sqrt(1 - a^2) s(i) v gates r, then i; d = -8 log(1 + exp(lambda))
 *
 * Feng et al., "Were RNNs all we needed?", 2024, in Lingua's form (Videau et al., 2024); De et al.,
 * "Griffin", 2024. As in Griffin, the slope of the square root is bounded: 1 / sqrt(max(4 (1 - a^2),
 * 1e-6)). */
typedef enum ScanKind { SCAN_MIN_GRU, SCAN_MIN_LSTM, SCAN_HAWK } ScanKind;
enum { SCAN_KINDS = SCAN_HAWK + 1 };
typedef struct ScanShape {
    int64_t tokens, width;                   /* T, W: channels */
    int64_t gates_row, values_row, gate_row; /* elements between tokens, in gradients likewise */
    ScanKind kind;
} ScanShape;
enum { SCAN_GATES = 2 }; /* most runs of W gates of a kind */

/* Inputs of a recurrence, and their gradients; tensor memory. */
typedef struct ScanInputs {
    const void *gates;   /* [T, W or 2 W] c */
    const void *values;  /* [T, W] c */
    const void *gate;    /* [T, W] c: output gate */
    const float *lambda; /* [W] of HAWK, else NULL */
} ScanInputs;
typedef struct ScanGradients {
    void *gates, *values, *gate;
    float *lambda; /* [W], added to */
} ScanGradients;

/* Mamba-2: a recurrence whose state is a matrix S [P, N] per head, zero where a document begins. Per token, x
 * and y have P elements per head, B and C have N elements per group of heads, dt has one per head:
 *
 *     S_t = exp(-step_t exp(A_log)) S_{t-1} + step_t x_t B_t^T      step_t = log(1 + exp(dt_t + dt_bias))
 *     y_t = S_t C_t + D x_t
 *
 * Dao & Gu, "Transformers are SSMs", 2024 (Mamba-2). A state is saved for every MAMBA_CHUNK tokens; backward
 * needs no others (CPU), or recomputes those in between. The chunk is a constant, since sums over tokens are
 * cut by it. */
typedef struct MambaShape {
    int64_t tokens;          /* T */
    int64_t heads, groups;   /* H, G: H / G heads in each group */
    int64_t head_dim, state; /* P, N <= MAMBA_STATE */
    int64_t row, dt_row;     /* elements between tokens in x, B and C, and in dt; in gradients likewise */
} MambaShape;
enum { MAMBA_CHUNK = 128, MAMBA_STATE = 256 };
static inline int64_t mamba_carried(const MambaShape *s) { return s->heads * (s->head_dim * s->state + 1); }
static inline int64_t mamba_starts(int64_t tokens) { return (tokens + MAMBA_CHUNK - 1) / MAMBA_CHUNK; }

/* Scratch of backward, in floats: rows of tokens, whole blocks of MAMBA_BLOCK up to a chunk, by the numbers
 * of a row: for each head and for each group, two rows of N numbers, padded, and one of a chunk. */
enum { MAMBA_BLOCK = 32 };
static inline int64_t mamba_whole(int64_t n) { return (n + MAMBA_BLOCK - 1) / MAMBA_BLOCK * MAMBA_BLOCK; }
static inline int64_t mamba_scratch_rows(int64_t tokens) {
    return tokens < MAMBA_CHUNK ? mamba_whole(tokens) : (int64_t)MAMBA_CHUNK;
}
static inline int64_t mamba_scratch_row(int64_t heads, int64_t groups, int64_t state) {
    return (heads + groups) * (2 * mamba_whole(state) + MAMBA_CHUNK);
}

/* Inputs of Mamba-2, and their gradients; tensor memory. */
typedef struct MambaInputs {
    const void *x;                    /* [T, H*P] c */
    const void *B, *C;                /* [T, G*N] c */
    const void *dt;                   /* [T, H] c */
    const float *dt_bias, *A_log, *D; /* [H] */
} MambaInputs;
typedef struct MambaGradients {
    void *x, *B, *C, *dt;
    float *dt_bias, *A_log, *D; /* added to */
} MambaGradients;

/* A gate, then an RMS norm of each run of a token's elements: y = w n / rms(n), n = x silu(gate). */
typedef struct GatedNorm {
    int64_t tokens, width, run; /* T, W, elements in a run */
    int64_t gate_row;           /* elements between tokens in the gate, and in its gradient */
    float eps;
} GatedNorm;

/* y_t = silu(p_t), p_t = sum over j of w_j x_{t - K + 1 + j}, over tokens from first_key[t] on. In
 * generation first_key is NULL, and `tail` (fp32) holds the K - 1 tokens before the first; the op updates
 * it for the next call. */
typedef struct ConvForwardArgs {
    ConvShape s;
    const void *x;            /* [T, W] c */
    const float *w;           /* [K, W] */
    const int32_t *first_key; /* [T] or NULL */
    float *tail;              /* [K - 1, W] or NULL */
    void *y;                  /* [T, W] c */
    Dtype c;
} ConvForwardArgs;

/* dx from dy; dw += sums over tokens. */
typedef struct ConvBackwardArgs {
    ConvShape s;
    const void *x;            /* [T, W] c */
    const float *w;           /* [K, W] */
    const int32_t *first_key; /* [T] */
    const void *dy;           /* [T, W] c */
    void *dx;                 /* [T, W] c */
    float *dw;                /* [K, W] */
    Dtype c;
} ConvBackwardArgs;

/* h of all tokens, one after the other. A document begins at t if first_key[t] is t. In generation
 * first_key is NULL; `state` is h before the first token on entry, and h after the last on return.
 * in.gate is not read. */
typedef struct ScanForwardArgs {
    ScanShape s;
    ScanInputs in;
    const int32_t *first_key; /* [T] or NULL */
    float *state;             /* [W] or NULL */
    float *h;                 /* [T, W] */
    Dtype c;
} ScanForwardArgs;

/* Output gate: out = h silu(gate). */
typedef struct ScanGateArgs {
    ScanShape s;
    const void *gate; /* [T, W] c */
    const float *h;   /* [T, W] */
    void *out;        /* [T, W] c */
    Dtype c;
} ScanGateArgs;

/* Gradients of the inputs, through the gate and the recurrence, from dout:
 *     g_t = silu(gate_t) dout_t + a_{t+1} g_{t+1}      db_t = g_t      da_t = g_t h_{t-1} */
typedef struct ScanBackwardArgs {
    ScanShape s;
    ScanInputs in;
    const int32_t *first_key; /* [T] */
    const float *h;           /* [T, W] */
    const void *dout;         /* [T, W] c */
    ScanGradients out;
    Dtype c;
} ScanBackwardArgs;

/* As scan_forward, with a state [H, P, N] and a number more per head, for the device. Each row advances by
 * itself from token to token, so a sequence processed in several calls has the bits of one call. starts:
 * states that backward reads; a device chooses before which tokens. */
typedef struct MambaForwardArgs {
    MambaShape s;
    MambaInputs in;
    const int32_t *first_key; /* [T] or NULL */
    float *state;             /* [mamba_carried] or NULL */
    float *starts;            /* [mamba_starts(T), H, P, N], written */
    void *y;                  /* [T, H*P] c */
    Dtype c;
} MambaForwardArgs;

/* With G_t the gradient of S_t: G_t = dy_t C_t^T + a_{t+1} G_{t+1}. carry is the G_t that one chunk
 * passes to the chunk before it; scratch holds, among others, each head's partial sums of the gradients of B
 * and C. Neither is read before it is written. starts: what the same device's forward pass left. */
typedef struct MambaBackwardArgs {
    MambaShape s;
    MambaInputs in;
    const int32_t *first_key; /* [T] */
    const float *starts;
    const void *dy; /* [T, H*P] c */
    float *carry;   /* [H, P, N] */
    float *scratch; /* mamba_scratch_rows by mamba_scratch_row */
    MambaGradients out;
    Dtype c;
} MambaBackwardArgs;

typedef struct GatedNormForwardArgs {
    GatedNorm s;
    const void *x;    /* [T, W] c */
    const void *gate; /* [T, W] c */
    const float *w;   /* [W] */
    void *y;          /* [T, W] c */
    Dtype c;
} GatedNormForwardArgs;

/* dw += sums over tokens. */
typedef struct GatedNormBackwardArgs {
    GatedNorm s;
    const void *x;    /* [T, W] c */
    const void *gate; /* [T, W] c */
    const float *w;   /* [W] */
    const void *dy;   /* [T, W] c */
    void *dx;         /* [T, W] c */
    void *dgate;      /* [T, W] c */
    float *dw;        /* [W] */
    Dtype c;
} GatedNormBackwardArgs;

/* Each op: id, slot, struct of arguments, and the fields that an error message shows. */
/* clang-format off */
#define RECURRENCE_OPS(X)                                                 \
    X(CONV_FORWARD, conv_forward, ConvForwardArgs, c)                     \
    X(CONV_BACKWARD, conv_backward, ConvBackwardArgs, c)                  \
    X(SCAN_FORWARD, scan_forward, ScanForwardArgs, c)                     \
    X(SCAN_GATE, scan_gate, ScanGateArgs, c)                              \
    X(SCAN_BACKWARD, scan_backward, ScanBackwardArgs, c)                  \
    X(MAMBA_FORWARD, mamba_forward, MambaForwardArgs, c)                  \
    X(MAMBA_BACKWARD, mamba_backward, MambaBackwardArgs, c)               \
    X(GATED_NORM_FORWARD, gated_norm_forward, GatedNormForwardArgs, c)    \
    X(GATED_NORM_BACKWARD, gated_norm_backward, GatedNormBackwardArgs, c)
/* clang-format on */
RECURRENCE_OPS(OP_DECLARE)

#endif
