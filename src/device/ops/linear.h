/* Ops of the dense layers: matrix products, embeddings, norms, biases, activations, elementwise sums. */
#ifndef WEFT_DEVICE_OPS_LINEAR_H
#define WEFT_DEVICE_OPS_LINEAR_H

#include "device/shapes.h"

/* C[M,N] = op(A) op(B) + (accumulate ? C : 0), row-major. op(A) is [M,K]: A itself [M,K], or with trans_a
 * the transpose of A [K,M]; op(B) is [K,N]: B [K,N], or with trans_b the transpose of B [N,K]. A and B
 * have one dtype; C has that, or is fp32. Leading dimensions are those of contiguous tensors, except ldc
 * (>= N). For a linear layer with weight W [N,K]:
 *
 *     forward   Y[T,N]  = X[T,K] W[N,K]^T     .trans_b, .m = T, .n = N, .k = K, .a = X, .b = W
 *     dgrad     dX[T,K] = dY[T,N] W[N,K]      .m = T, .n = K, .k = N, .a = dY, .b = W
 *     wgrad     dW[N,K] += dY[T,N]^T X[T,K]   .trans_a, .m = N, .n = K, .k = T, .a = dY, .b = X, .accumulate
 *
 * With splits, even a single one, the product of a slice is the slice of the product, bit for bit: of
 * rows of A, of columns of op(B), or of splits of K. Without splits, the order of sums may depend on the
 * shape (not on threads), whichever is fastest. C is rounded once; with splits and accumulate, C + their
 * tree. */
typedef struct GemmArgs {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const void *a; /* [M, K] or [K, M] ab_type */
    const void *b; /* [K, N] or [N, K] ab_type */
    Dtype ab_type;
    void *c; /* [M, N] c_type, rows ldc apart */
    Dtype c_type;
    int64_t ldc;
    bool accumulate;
    KSplit splits;
} GemmArgs;

/* out[t] = (add ? out[t] : 0) + scale * table[ids[t] - rows.first]. The loader has checked that ids are
 * in [0, V). A token whose row is not local gets -0, which changes no sum (0 would turn a -0 into 0);
 * with `add` its out is left alone. */
typedef struct EmbedForwardArgs {
    int64_t tokens, hidden;
    const int32_t *ids; /* [T] */
    const void *table;  /* [rows, h] c */
    EmbedRows rows;
    float scale;
    bool add;
    void *out; /* [T, h] c */
    Dtype c;
} EmbedForwardArgs;

/* dtable[ids[t] - rows.first] += scale * dout[t], over tokens in ascending order whose row is local. */
typedef struct EmbedBackwardArgs {
    int64_t tokens, hidden;
    const int32_t *ids; /* [T] */
    const void *dout;   /* [T, h] c */
    EmbedRows rows;
    float scale;
    float *dtable; /* [rows, h] */
    Dtype c;
} EmbedBackwardArgs;

/* sum = a + b (b and sum may be NULL: then sum is a); y = norm(sum), RMSNorm or LayerNorm; rstd is its r.
 * y may be NULL, if only sum and rstd are needed. */
typedef struct NormForwardArgs {
    NormKind kind;
    int64_t tokens, hidden;
    float eps;
    const void *a;     /* [T, h] c */
    const void *b;     /* [T, h] c or NULL */
    const float *w;    /* [h] */
    const float *bias; /* [h] of NORM_LAYER, else NULL */
    void *sum;         /* [T, h] c or NULL */
    void *y;           /* [T, h] c or NULL */
    float *rstd;       /* [T] */
    Dtype c;
} NormForwardArgs;

/* dx = (add ? dx : 0) + gradient through the norm; dw[i] += sum over tokens i * split_size .. (i+1) *
 * split_size - 1 (skipped if dw is NULL). dw has a row for each split of tokens; the rows are added in
 * the tree after all microbatches. x is the input of the norm. The gradient of the bias is made by
 * bias_backward. */
typedef struct NormBackwardArgs {
    NormKind kind;
    int64_t tokens, hidden;
    const void *x;     /* [T, h] c */
    const float *w;    /* [h] */
    const float *rstd; /* [T] */
    const void *dy;    /* [T, h] c */
    void *dx;          /* [T, h] c */
    bool add;
    float *dw; /* [ceil(T / split), h] or NULL */
    int64_t split_size;
    Dtype c;
} NormBackwardArgs;

/* y[t] += bias. */
typedef struct BiasForwardArgs {
    int64_t tokens, n;
    void *y;           /* [T, n] c */
    const float *bias; /* [n] */
    Dtype c;
} BiasForwardArgs;

/* db[i] += sum of dy[t] over tokens i * split_size .. (i+1) * split_size - 1, as in norm_backward. */
typedef struct BiasBackwardArgs {
    int64_t tokens, n;
    const void *dy; /* [T, n] c */
    float *db;      /* [ceil(T / split), n] */
    int64_t split_size;
    Dtype c;
} BiasBackwardArgs;

/* act = f(x); gated: f(gate) * up, with x = [gate | up] per token. W is I, or 2I where gated.
 * Shazeer, "GLU variants improve transformer", 2020. */
typedef struct ActivationForwardArgs {
    Activation f;
    bool gated;
    int64_t tokens, inter;
    const void *x; /* [T, W] c */
    void *act;     /* [T, I] c */
    Dtype c;
} ActivationForwardArgs;

/* dx from dact; also recomputes act, which the wgrad of the down projection needs. dact and act may be
 * the same memory. */
typedef struct ActivationBackwardArgs {
    Activation f;
    bool gated;
    int64_t tokens, inter;
    const void *x;    /* [T, W] c */
    const void *dact; /* [T, I] c */
    void *dx;         /* [T, W] c */
    void *act;        /* [T, I] c */
    Dtype c;
} ActivationBackwardArgs;

/* out = a + b; out may be a or b. */
typedef struct AddArgs {
    int64_t n;
    const void *a; /* [n] c */
    const void *b; /* [n] c */
    void *out;     /* [n] c */
    Dtype c;
} AddArgs;

/* out[r] = factor * in[r], for rows of n elements that lie ldi (>= n) apart in `in` and are contiguous in
 * out. in and out may be the same memory if ldi is n. */
typedef struct ScaleArgs {
    int64_t rows, n;
    float factor;
    const void *in; /* [rows, n] c */
    int64_t ldi;
    void *out; /* [rows, n] c */
    Dtype c;
} ScaleArgs;

/* x = cap * tanh(x / cap), in place. */
typedef struct SoftcapArgs {
    int64_t n;
    float cap;
    void *x; /* [n] c */
    Dtype c;
} SoftcapArgs;

/* Each op: id, slot, struct of arguments, and the fields that an error message shows. */
/* clang-format off */
#define LINEAR_OPS(X)                                                                            \
    X(GEMM, gemm, GemmArgs, trans_a, trans_b, m, n, k, ab_type, c_type, ldc, accumulate, splits) \
    X(EMBED_FORWARD, embed_forward, EmbedForwardArgs, tokens, hidden, add, c)                    \
    X(EMBED_BACKWARD, embed_backward, EmbedBackwardArgs, tokens, hidden, c)                      \
    X(NORM_FORWARD, norm_forward, NormForwardArgs, tokens, hidden, c)                            \
    X(NORM_BACKWARD, norm_backward, NormBackwardArgs, tokens, hidden, add, split_size, c)        \
    X(BIAS_FORWARD, bias_forward, BiasForwardArgs, tokens, n, c)                                 \
    X(BIAS_BACKWARD, bias_backward, BiasBackwardArgs, tokens, n, split_size, c)                  \
    X(ACTIVATION_FORWARD, activation_forward, ActivationForwardArgs, gated, tokens, inter, c)    \
    X(ACTIVATION_BACKWARD, activation_backward, ActivationBackwardArgs, gated, tokens, inter, c) \
    X(ADD, add, AddArgs, n, c)                                                                   \
    X(SCALE, scale, ScaleArgs, rows, n, ldi, c)                                                  \
    X(SOFTCAP, softcap, SoftcapArgs, n, c)
/* clang-format on */
LINEAR_OPS(OP_DECLARE)

#endif
