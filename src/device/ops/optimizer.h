/* Ops after the passes: updates, statistics of gradients, exact sums of gradients. */
#ifndef WEFT_DEVICE_OPS_OPTIMIZER_H
#define WEFT_DEVICE_OPS_OPTIMIZER_H

#include "device/shapes.h"

/* A matrix inside a larger one: rows lie `row` elements apart. */
typedef struct MatrixShape {
    int64_t rows, cols, row;
} MatrixShape;

/* Gradients in fixed point count units of 2^-FIXED_SHIFT: 8.9e-16. */
enum { FIXED_SHIFT = 50, FIXED_SUM_LOG2 = 62 };

/* The largest |g| that may be added if an element gets `contributions` additions over all ranks. Their sum
 * then stays within 2^FIXED_SUM_LOG2 units (and half a unit each of rounding), so an int64 never overflows.
 * 4096 for one contribution. */
static inline double fixed_limit(int64_t contributions) {
    return (double)(INT64_C(1) << (FIXED_SUM_LOG2 - FIXED_SHIFT)) / (double)contributions;
}

/* Fused with gradient clipping and with the bf16 compute copy:
 *     g = grad * grad_scale;   m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
 *     p -= lr * weight_decay * p + lr * (m / c1) / (sqrt(v / c2) + eps)
 *     copy = p rounded to bf16 (unless NULL)
 * Loshchilov & Hutter, "Decoupled weight decay regularization", 2019. */
typedef struct AdamWArgs {
    int64_t n;
    AdamW constants;
    StateStore s;
    const OptimizerStep *step;
    float *param;      /* [n] */
    const float *grad; /* [n] */
    void *m;           /* [n] s.type */
    void *v;           /* [n] s.type */
    uint16_t *copy;    /* [n] bf16 or NULL */
} AdamWArgs;

/* As in PyTorch (no dampening), fused likewise; if `momentum` is NULL, b is g:
 *     g = grad * grad_scale + weight_decay * p;   b = momentum * b + g
 *     p -= lr * (nesterov ? g + momentum * b : b)
 *     copy = p rounded to bf16 (unless NULL) */
typedef struct SgdArgs {
    int64_t n;
    Sgd constants;
    StateStore s;
    const OptimizerStep *step;
    float *param;      /* [n] */
    const float *grad; /* [n] */
    void *momentum;    /* [n] s.type or NULL */
    uint16_t *copy;    /* [n] bf16 or NULL */
} SgdArgs;

/* Muon replaces a matrix's momentum by the nearest matrix whose singular values are about 1
 * (orthogonalisation by Newton-Schulz), and steps along it. These are the steps that are not matrix
 * products:
 *
 *     muon_momentum    g = grad * grad_scale;  b = momentum * b + g;  x = nesterov ? g + momentum * b : b
 *     muon_normalise   x /= slack * |x| + 1e-7                 |x| from grad_stats' sum of squares
 *     newton_schulz    square = a I + b gram + c square     all [m, m]: gram = x x^T, square = gram gram
 *     muon_apply       p -= lr * weight_decay * p + lr * scale * x;   copy = p in bf16 (unless NULL)
 *
 * param, grad, b and copy have rows shape.row apart, x is contiguous; s.first is the number of the first
 * element. Jordan et al., "Muon", 2024; Liu et al., "Muon is scalable for LLM training", 2025. */
typedef struct MuonMomentumArgs {
    MatrixShape shape;
    Muon constants;
    StateStore s;
    const OptimizerStep *step;
    const float *grad;
    void *momentum; /* s.type */
    float *x;       /* [rows, cols] */
} MuonMomentumArgs;

typedef struct MuonNormaliseArgs {
    int64_t n;
    const GradStats *squares;
    float slack;
    float *x; /* [n] */
} MuonNormaliseArgs;

typedef struct NewtonSchulzArgs {
    int64_t m;
    float a, b, c;
    const float *gram; /* [m, m] */
    float *square;     /* [m, m] */
} NewtonSchulzArgs;

typedef struct MuonApplyArgs {
    MatrixShape shape;
    Muon constants;
    const OptimizerStep *step;
    const float *x; /* [rows, cols] */
    float *param;
    uint16_t *copy; /* bf16 or NULL */
} MuonApplyArgs;

/* mean += step->average * (param - mean): an exponential moving average of weights (Polyak & Juditsky,
 * 1992; in this form Tarvainen & Valpola, "Mean teachers", 2017). */
typedef struct AverageArgs {
    int64_t n;
    const OptimizerStep *step;
    const float *param; /* [n] */
    float *mean;        /* [n] */
} AverageArgs;

/* Sum of powers (p finite, >= 1) and max |g|; also the count of non-finite elements, which are left out
 * of both, and the index of the first. |g| and g^2 are doubles; other powers are pow() of |g| / unit:
 * with the largest |g| as the unit none overflows and the sum is at least 1 for every p. The sum is
 * exact: powers are added without rounding. So the statistics of a tensor's shards, merged in any order,
 * are those of the tensor. With p infinite the sum is left 0. */
typedef struct GradStatsArgs {
    int64_t n;
    const float *g; /* [n] */
    double p;
    const double *unit; /* [1] */
    GradStats *out;
} GradStatsArgs;

/* acc[i] = (set ? 0 : acc[i]) + g[i] * 2^FIXED_SHIFT rounded to nearest even. Integers add in any order.
 * Elements that are not finite, or larger than the limit (at most fixed_limit(1)), add nothing to acc and
 * are counted in *refused. */
typedef struct FixedAddArgs {
    int64_t n;
    const float *g; /* [n] */
    int64_t *acc;   /* [n] */
    bool set;
    double limit; /* by the step's number of microbatches, which a ramp-up changes */
    FixedRefusals *refused;
} FixedAddArgs;

/* out[i] = acc[i] * 2^-FIXED_SHIFT, rounded once, to nearest even. */
typedef struct FixedToFloatArgs {
    int64_t n;
    const int64_t *acc; /* [n] */
    float *out;         /* [n] */
} FixedToFloatArgs;

/* Adds the number of elements that are NaN or infinite to *count. */
typedef struct CountNonfiniteArgs {
    int64_t n;
    const void *in; /* [n] type */
    Dtype type;
    int64_t *count;
} CountNonfiniteArgs;

/* Each op: id, slot, struct of arguments, and the fields that an error message shows. */
/* clang-format off */
#define OPTIMIZER_OPS(X)                                     \
    X(ADAMW, adamw, AdamWArgs, n)                            \
    X(SGD, sgd, SgdArgs, n)                                  \
    X(MUON_MOMENTUM, muon_momentum, MuonMomentumArgs, shape) \
    X(MUON_NORMALISE, muon_normalise, MuonNormaliseArgs, n)  \
    X(NEWTON_SCHULZ, newton_schulz, NewtonSchulzArgs, m)     \
    X(MUON_APPLY, muon_apply, MuonApplyArgs, shape)          \
    X(AVERAGE, average, AverageArgs, n)                      \
    X(GRAD_STATS, grad_stats, GradStatsArgs, n)              \
    X(FIXED_ADD, fixed_add, FixedAddArgs, n, set)            \
    X(FIXED_TO_FLOAT, fixed_to_float, FixedToFloatArgs, n)   \
    X(COUNT_NONFINITE, count_nonfinite, CountNonfiniteArgs, n, type)
/* clang-format on */
OPTIMIZER_OPS(OP_DECLARE)

#endif
