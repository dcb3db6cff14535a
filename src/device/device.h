/* The device: a queue of operations (ops) on tensor memory. A comment at each argument gives its shape.
 *
 * The contract
 * 1. Calling an op *enqueues* it on the stream that the calling thread has chosen with device_on (by default
 *    ON_COMPUTE). Ops of one stream run in the order in which they were enqueued. Ops of two streams run in
 *    any order, unless an event orders them: device_mark, then device_follow.
 * 2. Arguments are taken when an op is enqueued; tensor memory is read and written when it runs. To see what
 *    a tensor holds, host code calls `download` and then device_finish; device_fetch does both.
 * 3. Host memory given to `upload`, and the list of addresses given to sum_parts, are read when the op is
 *    enqueued and may be reused at once. Host memory given to `download` is written when the op runs; until
 *    that has finished its contents are undefined.
 *    No op returns a value to the host. No op takes a number that the device has computed or that changes
 *    from step to step: such numbers live in tensor memory, so that a whole step can be enqueued at once.
 * 4. device_finish makes the host wait, which costs a GPU tens of microseconds of work: waits are counted.
 * 5. Only device/ dereferences tensor memory. Other code holds addresses, adds offsets, and calls ops. The
 *    guard build (pool.h) proves it.
 * 6. device/cpu/reference.c fills every slot in plain C; faster implementations override slots. Each
 *    override is tested against the reference, on odd shapes and tails.
 * 7. Results depend neither on the number of threads nor on how much of a tensor an op is given: the result
 *    of a slice (of tokens, heads, outputs, logits) is the slice of the full result, bit for bit. For matrix
 *    products this holds of those with splits (see KSplit). Sums are cut by constants and by splits, never
 *    by the length of a slice.
 * 8. No op allocates. Scratch comes from Device.scratch, whose size `scratch_bytes` returns in advance. It
 *    belongs to ON_COMPUTE: other streams only take copies, uploads, downloads and sum_parts.
 *
 * On the CPU an op has ended when its call returns, every event has been reached, and finishing costs
 * nothing. A deferred CPU (device_defer) runs nothing before it must: code that works there keeps the
 * contract.
 *
 * Names: T tokens of one microbatch (sequences one after the other), h hidden size, H query heads, G
 * key/value heads (G divides H), D head dimension (even), I intermediate size, V vocabulary. Tensors are
 * row-major and contiguous unless a stride is named. "c" is the compute dtype (fp32 or bf16) of activations
 * and gathered weights; sums are taken in fp32 or wider. */
#ifndef WEFT_DEVICE_DEVICE_H
#define WEFT_DEVICE_DEVICE_H

#ifdef __cplusplus
typedef long long atomic_llong; /* GPU kernels are C++ and use no counter */
#else
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/exact.h"
#include "base/text.h"

typedef enum Dtype { DTYPE_F32, DTYPE_BF16 } Dtype;
static inline size_t dtype_bytes(Dtype t) { return t == DTYPE_F32 ? 4 : 2; }
const char *dtype_name(Dtype t); /* "fp32", "bf16" */

/* Every op, with its name in the profile. sum_parts and sum_parts_i64 share one entry. */
/* clang-format off */
#define DEVICE_OPS(X)                                                                                  \
    X(GEMM, gemm)                                                                                      \
    X(EMBED_FORWARD, embed_forward)             X(EMBED_BACKWARD, embed_backward)                      \
    X(NORM_FORWARD, norm_forward)               X(NORM_BACKWARD, norm_backward)                        \
    X(QK_NORM_FORWARD, qk_norm_forward)         X(QK_NORM_BACKWARD, qk_norm_backward)                  \
    X(QK_NORM_SUMS, qk_norm_sums)               X(ROPE, rope)                                          \
    X(QUERIES_SCALE, queries_scale)                                                                    \
    X(BIAS_FORWARD, bias_forward)               X(BIAS_BACKWARD, bias_backward)                        \
    X(ATTENTION_FORWARD, attention_forward)     X(ATTENTION_BACKWARD, attention_backward)              \
    X(ATTENTION_DECODE, attention_decode)       X(SINKS_BACKWARD, sinks_backward)                      \
    X(LATENT_FORWARD, latent_forward)           X(LATENT_BACKWARD, latent_backward)                    \
    X(ACTIVATION_FORWARD, activation_forward)   X(ACTIVATION_BACKWARD, activation_backward)            \
    X(ADD, add)                                 X(SCALE, scale)                                        \
    X(SOFTCAP, softcap)                                                                                \
    X(CONV_FORWARD, conv_forward)               X(CONV_BACKWARD, conv_backward)                        \
    X(SCAN_FORWARD, scan_forward)               X(SCAN_BACKWARD, scan_backward)                        \
    X(SCAN_GATE, scan_gate)                                                                            \
    X(MAMBA_FORWARD, mamba_forward)             X(MAMBA_BACKWARD, mamba_backward)                      \
    X(GATED_NORM_FORWARD, gated_norm_forward)   X(GATED_NORM_BACKWARD, gated_norm_backward)            \
    X(ROUTE, route)                             X(ROUTE_BACKWARD, route_backward)                      \
    X(ROUTE_COUNT, route_count)                                                                        \
    X(GROUPED_GEMM, grouped_gemm)               X(GROUPED_GEMM_WGRAD, grouped_gemm_wgrad)            \
    X(COMBINE, combine)         X(COMBINE_BACKWARD, combine_backward)                        \
    X(PERMUTE, permute)           X(PERMUTE_DWEIGHTS, permute_dweights)                    \
    X(EXPERTS_BIAS_FORWARD, experts_bias_forward)                                                      \
    X(EXPERTS_BIAS_BACKWARD, experts_bias_backward)                                                    \
    X(LOSS_RECORDS, loss_records)               X(CROSS_ENTROPY, cross_entropy)                        \
    X(LOSS_SUM, loss_sum)                                                                              \
    X(ADAMW, adamw)                             X(SGD, sgd)                                            \
    X(MUON_MOMENTUM, muon_momentum)           X(MUON_NORMALISE, muon_normalise)                                \
    X(NEWTON_SCHULZ, newton_schulz)               X(MUON_APPLY, muon_apply)                          \
    X(AVERAGE, average)                                                                                \
    X(GRAD_STATS, grad_stats)                                                                          \
    X(FIXED_ADD, fixed_add)                     X(FIXED_TO_FLOAT, fixed_to_float)                      \
    X(CAST, cast)                               X(ZERO, zero)                                          \
    X(INIT_NORMAL, init_normal)                 X(FILL, fill)                                          \
    X(COPY, copy)                               X(UPLOAD, upload)                                      \
    X(COPY_ROWS, copy_rows)                                                                            \
    X(DOWNLOAD, download)                       X(SUM_PARTS, sum_parts)
/* clang-format on */

#define OP_ID(id, name) OP_##id,
typedef enum OpId { DEVICE_OPS(OP_ID) OP_COUNT } OpId;
#undef OP_ID
const char *op_name(OpId op);

/* Shape of attention and of the ops on its heads. Zeros after the sizes select plain attention. */
typedef struct AttentionShape {
    int64_t tokens;                /* T */
    int heads, kv_heads, head_dim; /* H, G, D */
    int rotary;                    /* R, even: leading elements of a head that rope rotates; 0: all D */
    bool neighbours;               /* rope rotates the pair 2i and 2i + 1, else i and i + R/2 */
    float scale;                   /* of scores; 0: 1 / sqrt(D) */
    float cap;                     /* scores become cap * tanh(score / cap); 0: no cap */
    int64_t window;                /* a token sees at most this many keys, the last its own; 0: no limit */
    int64_t chunk;      /* documents are cut into chunks of so many; a token sees its own; 0: off */
    const float *sinks; /* [H] tensor memory, see attention_forward; NULL: no sinks */
} AttentionShape;

/* Range of queries, and strides. The T queries are those of tokens first .. first + T - 1 of `keys` tokens.
 * q_row and kv_row are the elements between rows of queries and of keys; in a row the G*D elements of the
 * keys are followed by the values'. Gradients of keys and values are complete if all queries are here;
 * otherwise they are partial sums. */
typedef struct AttentionRun {
    int64_t first, keys, q_row, kv_row;
    /* gradients of keys and values go to [keys, 2G*D] fp32, not to rows of dtype c, kv_row apart */
    bool partial;
} AttentionRun;
/* All queries, with the queries, keys and values of a token in one row. */
static inline AttentionRun attention_whole(AttentionShape s) {
    int64_t row = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
    AttentionRun r = {0, s.tokens, row, row, false};
    return r;
}

/* Heads of latent attention (MLA: DeepSeek-AI, "DeepSeek-V2", 2024). Queries and keys have D = N + R
 * elements. rope rotates the last R; those of the keys are the same for all heads. Values have V elements and
 * are padded to D with zeros, so that the attention ops serve them too. */
typedef struct LatentShape {
    int64_t tokens;                  /* T */
    int heads, plain, turned, value; /* H, N, R (even), V <= N + R */
    int64_t q_row, key_row;          /* elements between tokens, of queries and of the rotated key */
    int splits;   /* that these heads form in the gradient of the shared key, a sum over heads; 0: as 1 */
    bool partial; /* that gradient is this rank's partial sum, and fp32 */
} LatentShape;
static inline int64_t latent_head(LatentShape s) { return s.plain + s.turned; } /* D */
static inline int latent_splits(LatentShape s) { return s.splits > 1 ? s.splits : 1; }

/* Splits: how a sum that ranks may share is cut, so that its bits do not depend on the number of ranks. Each
 * split is summed by itself; the sums of splits (partials) are added in the canonical tree of base/tree.h. A
 * rank that holds some of the splits computes their part of the tree (fp32, not yet rounded to c), and
 * sum_parts adds the results of the ranks in the same tree. Where one rank has all splits, the op does both.
 * Degrees at which each rank's number of splits is a power of two agree in every bit.
 *
 * In a matrix product, splits lie along the inner dimension (split-K). That dimension may consist of runs,
 * one after another (such as q, k, v), which are cut alike: split i is segment i of every run, chained in
 * order of runs. Segments are split_size elements long, the last of a run may be shorter; every run has the
 * same number of them. `skip` elements before a run are left out, and so is what follows the last run: they
 * belong to other ranks. */
enum { SPLIT_RUNS = 3, SPLITS_MAX = 64 };
typedef struct KSplit {
    int runs; /* 0: no splits, for a sum that ranks do not share */
    struct {
        int64_t length, split_size, skip;
    } run[SPLIT_RUNS];
} KSplit;
#define NO_SPLIT ((KSplit){.runs = 0})
/* Elements of the inner dimension in all local splits. */
static inline int64_t split_length(KSplit l) {
    int64_t length = 0;
    for (int r = 0; r < l.runs; r++) length += l.run[r].length;
    return length;
}

/* The rows of the norms of queries and keys: each head of a token by itself, or, if `flat`, all its queries,
 * and all its keys. With `flat`, TP ranks may hold some of the heads each. A row is then summed split by
 * split with qk_norm_sums, and the sums of all ranks' splits must be here before the norm. Otherwise the op
 * computes its sums itself, in the fastest order. */
typedef struct QkRows {
    bool flat;
    int splits;            /* of flat rows, over all ranks; 0: none, if ranks do not share rows */
    int64_t tokens;        /* in `squares` and `products`, between splits */
    int64_t queries, keys; /* elements of an unsharded row */
    /* [splits, tokens, 2] of queries and of keys, tensor memory, starting at the op's first token */
    const float *squares;
    const float *products; /* of backward only */
} QkRows;
static inline QkRows qk_rows(bool flat) {
    QkRows rows = {flat, 0, 0, 0, 0, NULL, NULL};
    return rows;
}

/* The logits of one row in one split of the vocabulary, reduced to what the loss needs. */
typedef struct LossRecord {
    float max;    /* the largest */
    float target; /* the target's logit, if it is in this split */
    double sum;   /* of exp(logit - max) */
} LossRecord;

/* Which logits of a row are local: first .. first+V-1 of the vocabulary, cut into splits. If all are local,
 * `first` is 0 and no records of other ranks are needed. */
typedef struct VocabSplit {
    int64_t first;             /* a multiple of split_size */
    int64_t split_size;        /* logits in a split, fewer in the last; 0: one split, of V */
    int count;                 /* splits of the full vocabulary; 0: all are local */
    const LossRecord *records; /* [count, R] of all splits; NULL: all are local, and the op makes them */
} VocabSplit;

#define WHOLE_VOCABULARY ((VocabSplit){.count = 0})

/* Which rows of an embedding are local: first .. first+count-1. */
typedef struct EmbedRows {
    int64_t first, count;
} EmbedRows;
#define ALL_ROWS ((EmbedRows){0, INT64_MAX})

/* Mixture of experts: each token is routed to k of E experts, and their weighted results are added up. There
 * are always T k (token, expert) *assignments*, whatever the router selects, so that memory never depends on
 * the data. Experts work on the assignments sorted by expert, then by token: these are their rows. */
typedef struct RouteShape {
    int64_t tokens;   /* T */
    int64_t sequence; /* tokens of a sequence, for the balance loss; fewer in the last */
    int experts;      /* E, at most EXPERTS_MAX */
    int chosen;       /* k <= E */
    bool normalise;   /* divide a token's weights by their sum */
    float balance;    /* coefficient of the balance loss, of softmax scores only; 0: none */
    /* Zeros from here on select plain softmax routing. */
    bool sigmoid;      /* a score is 1 / (1 + exp(-logit)); else softmax over all experts */
    int groups;        /* equal groups of consecutive experts, a divisor of E; 0: no groups */
    int groups_chosen; /* groups from which the k experts are chosen */
    float factor;      /* multiplies weights; 0: as 1 */
    const float *bias; /* [E] tensor memory, with sigmoid: added to scores to choose experts; or NULL */
    int64_t before;    /* tokens of the microbatch before the first, whose sequence may begin there */
} RouteShape;
enum { EXPERTS_MAX = 4096 };

/* Where the router sends the tokens; tensor memory. */
typedef struct Routes {
    float *scores;   /* [T, E] of the router's logits */
    int32_t *chosen; /* [T, k] experts, ascending */
    float *weights;  /* [T, k] */
    int32_t *row;    /* [T, k] row of each assignment */
    int32_t *token;  /* [T k] token of each row */
    int32_t *first;  /* [E + 1] rows of expert e: from first[e] to first[e + 1] */
} Routes;

/* Rows of the experts, and their weight matrices. */
typedef struct ExpertRows {
    int64_t rows;         /* of all experts: first[experts] */
    int experts;          /* E */
    const int32_t *first; /* [E + 1] tensor memory */
    int64_t step;         /* elements between the matrices of two experts */
} ExpertRows;

/* x the normed row, w its weights, r = 1 / sqrt(mean(x^2) + eps), of LayerNorm mean((x - mean x)^2):
 *   RMS           x r w                    Zhang & Sennrich, "Root mean square layer normalization", 2019
 *   RMS_PLUS_ONE  x r (1 + w)              Gemma's: weights start from 0
 *   LAYER         (x - mean x) r w + bias  Ba, Kiros & Hinton, "Layer normalization", 2016 */
typedef enum NormKind { NORM_RMS, NORM_RMS_PLUS_ONE, NORM_LAYER } NormKind;

/*   SILU       z / (1 + exp(-z))
 *   GELU_TANH  z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2
 *   CLAMPED    of a gate g and an up u, (1 + max(min(u, 7), -7)) z / (1 + exp(-1.702 z)) with z = min(g, 7):
 *              always gated, and g and u alternate: g, u, g, u, ...
 * Hendrycks & Gimpel, "Gaussian error linear units", 2016; the last: OpenAI, "gpt-oss model card", 2025. */
typedef enum Activation { ACT_SILU, ACT_GELU_TANH, ACT_CLAMPED } Activation;
#define CLAMPED_LIMIT 7.0f
#define CLAMPED_SLOPE 1.702f

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
 * Dao & Gu, "Transformers are SSMs", 2024 (Mamba-2). The state before every MAMBA_CHUNK-th token is saved;
 * backward recomputes those in between. The chunk is a constant, since sums over tokens are cut by it. */
typedef struct MambaShape {
    int64_t tokens;          /* T */
    int64_t heads, groups;   /* H, G: H / G heads in each group */
    int64_t head_dim, state; /* P, N <= MAMBA_STATE */
    int64_t row, dt_row;     /* elements between tokens in x, B and C, and in dt; in gradients likewise */
} MambaShape;
enum { MAMBA_CHUNK = 128, MAMBA_STATE = 256 };
static inline int64_t mamba_starts(int64_t tokens) { return (tokens + MAMBA_CHUNK - 1) / MAMBA_CHUNK; }

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

/* Constants of the optimizers. */
typedef struct AdamW {
    float beta1, beta2, eps, weight_decay;
} AdamW;

typedef struct Sgd {
    float momentum, weight_decay;
    bool nesterov;
} Sgd;

typedef struct Muon {
    float momentum, weight_decay, scale; /* scale: multiplies the learning rate for this matrix */
    bool nesterov;
} Muon;

/* An optimizer's values that change from step to step; they lie in tensor memory. */
typedef struct OptimizerStep {
    float lr;
    float correction1, correction2; /* AdamW: 1 - beta^number */
    float grad_scale;               /* clip coefficient, multiplied into the gradient */
    float average;                  /* weight of the new weights in their moving average */
    uint64_t number;                /* of updates including this one: 1, 2, ... */
} OptimizerStep;

/* A matrix inside a larger one: rows lie `row` elements apart. */
typedef struct MatrixShape {
    int64_t rows, cols, row;
} MatrixShape;

/* A sum of losses; see loss_sum. All zero: nothing has been added. */
typedef struct LossSum {
    ExactSum sum;      /* of the finite ones */
    int64_t nonfinite; /* number of non-finite losses */
} LossSum;

/* How the states of an optimizer are stored: as fp32, or as bf16 with stochastic rounding. bf16 has 8
 * significant bits: rounded to nearest, a mean of squares would never absorb an addition below 1/512 of it.
 * So x becomes the upper of its two neighbours with the probability that makes x the mean (finite x never
 * becomes infinite, and every NaN becomes 0x7fc0):
 *
 *     bf16(x) = (bits of x + r) >> 16,   r: 16 random bits
 *
 * Element e of a parameter (the op's first element is number `first`) takes its random bits from Philox with
 * the counter (e / 64 * 16 + e % 16, OptimizerStep.number), word e % 64 / 16: the first state takes the lower
 * half of the word, the second the upper. So the bits depend on (key, number, e) alone, however the elements
 * are cut into calls. */
typedef struct StateStore {
    Dtype type;
    uint64_t key; /* of the parameter */
    int64_t first;
} StateStore;
enum { STATE_CHUNK = 64, STATE_BLOCKS = 16 }; /* elements served by 16 Philox blocks */

/* Statistics of a gradient tensor that no order of summation changes; see grad_stats. */
typedef struct GradStats {
    ExactSum sum;            /* of |g|^p, or (|g| / unit)^p, over finite elements (p finite), normalised */
    double max;              /* max |g| over finite elements */
    int64_t nonfinite;       /* elements that are NaN or infinite, or whose power overflows a double */
    int64_t first_nonfinite; /* index of the first of them; -1: none */
} GradStats;

/* Gradients in fixed point count units of 2^-FIXED_SHIFT: 8.9e-16. */
enum { FIXED_SHIFT = 50, FIXED_SUM_LOG2 = 62 };

/* The largest |g| that may be added if an element gets `contributions` additions over all ranks. Their sum
 * then stays within 2^FIXED_SUM_LOG2 units (and half a unit each of rounding), so an int64 never overflows.
 * 4096 for one contribution. */
static inline double fixed_limit(int64_t contributions) {
    return (double)(INT64_C(1) << (FIXED_SUM_LOG2 - FIXED_SHIFT)) / (double)contributions;
}

/* Elements that fixed_add refused. All zero: none so far. */
typedef struct FixedRefusals {
    int64_t count;
    int64_t first; /* if count > 0: index of the first, within the first op that refused one */
} FixedRefusals;

typedef struct Device Device;
typedef struct DeviceNeeds DeviceNeeds;
typedef struct Deferred Deferred;

typedef struct Ops {
    /* C[M,N] = op(A) op(B) + (accumulate ? C : 0), row-major. op(A) is [M,K]: A itself [M,K], or with trans_a
     * the transpose of A [K,M]; op(B) is [K,N]: B [K,N], or with trans_b the transpose of B [N,K]. A and B
     * have one dtype; C has that, or is fp32. Leading dimensions are those of contiguous tensors, except ldc
     * (>= N). For a linear layer with weight W [N,K]:
     *
     *     forward           Y[T,N]  = X[T,K] W[N,K]^T      gemm(0, 1, T, N, K, X, W, Y)
     *     dgrad             dX[T,K] = dY[T,N] W[N,K]       gemm(0, 0, T, K, N, dY, W, dX)
     *     wgrad             dW[N,K] += dY[T,N]^T X[T,K]    gemm(1, 0, N, K, T, dY, X, dW fp32, accumulate)
     *
     * With splits, even a single one, the product of a slice is the slice of the product, bit for bit: of
     * rows of A, of columns of op(B), or of splits of K. Without splits, the order of sums may depend on the
     * shape (not on threads), whichever is fastest. C is rounded once; with splits and accumulate, C + their
     * tree. */
    void (*gemm)(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                 const void *a /* [M, K] or [K, M] ab_type */, const void *b /* [K, N] or [N, K] ab_type */,
                 Dtype ab_type, void *c /* [M, N] c_type, rows ldc apart */, Dtype c_type, int64_t ldc,
                 bool accumulate, KSplit splits);

    /* out[t] = (add ? out[t] : 0) + scale * table[ids[t] - rows.first]. The loader has checked that ids are
     * in [0, V). A token whose row is not local gets -0, which changes no sum (0 would turn a -0 into 0);
     * with `add` its out is left alone. */
    void (*embed_forward)(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids /* [T] */,
                          const void *table /* [rows, h] c */, EmbedRows rows, float scale, bool add,
                          void *out /* [T, h] c */, Dtype c);
    /* dtable[ids[t] - rows.first] += scale * dout[t], over tokens in ascending order whose row is local. */
    void (*embed_backward)(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids /* [T] */,
                           const void *dout /* [T, h] c */, EmbedRows rows, float scale,
                           float *dtable /* [rows, h] */, Dtype c);

    /* sum = a + b (b and sum may be NULL: then sum is a); y = norm(sum); rstd is its r. y may be NULL, if
     * only sum and rstd are needed. */
    void (*norm_forward)(Device *d, NormKind kind, int64_t tokens, int64_t hidden, float eps,
                         const void *a /* [T, h] c */, const void *b /* [T, h] c or NULL */,
                         const float *w /* [h] */, const float *bias /* [h] of NORM_LAYER, else NULL */,
                         void *sum /* [T, h] c or NULL */, void *y /* [T, h] c or NULL */,
                         float *rstd /* [T] */, Dtype c);
    /* dx = (add ? dx : 0) + gradient through the norm; dw[i] += sum over tokens i * split_size .. (i+1) *
     * split_size - 1 (skipped if dw is NULL). dw has a row for each split of tokens; the rows are added in
     * the tree after all microbatches. x is the input of the norm. The gradient of the bias is made by
     * bias_backward. */
    void (*norm_backward)(Device *d, NormKind kind, int64_t tokens, int64_t hidden,
                          const void *x /* [T, h] c */, const float *w /* [h] */, const float *rstd /* [T] */,
                          const void *dy /* [T, h] c */, void *dx /* [T, h] c */, bool add,
                          float *dw /* [ceil(T / split), h] or NULL */, int64_t split_size, Dtype c);

    /* Norms of queries and keys: out = raw with q and k normed, and v as it is. Either each head by itself,
     * with one weight for all heads (n = D), or `flat`, all heads of a token as one row (n = H*D, and G*D for
     * keys). kind is NORM_RMS or NORM_RMS_PLUS_ONE. With NORM_RMS and not `flat`, weights may be NULL (all
     * ones), and their gradients are then NULL too. Henry et al., "Query-key normalization for transformers",
     * 2020. */
    void (*qk_norm_forward)(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                            const void *raw /* [T, (H+2G)*D] c */, const float *wq /* [D] or [H*D] */,
                            const float *wk /* [D] or [G*D] */, void *out /* [T, (H+2G)*D] c */, Dtype c);
    /* dqkv, the gradient of `out`, becomes that of raw; dwq and dwk += sums over tokens and heads, a row for
     * each of `splits` equal runs of heads (1: all heads; always 1 if `flat`). The rows are added in the tree
     * after all microbatches. With fewer heads than splits, a head's sum goes to the first of the splits that
     * it covers, and the other rows are left alone. */
    void (*qk_norm_backward)(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                             const void *raw /* [T, (H+2G)*D] c */, const float *wq /* [D] or [H*D] */,
                             const float *wk /* [D] or [G*D] */, void *dqkv /* [T, (H+2G)*D] c */,
                             float *dwq /* [splits, D] or [H*D] */, float *dwk, int splits, Dtype c);
    /* For flat rows: sums over the local splits of queries (run 0 of `splits`) and of keys (run 1; it skips
     * what belongs to other ranks). They are sums of raw^2, or, if dqkv (the gradient of `out`) is given, of
     * raw dqkv w, where w is the factor of a normed element. */
    void (*qk_norm_sums)(Device *d, AttentionShape s, KSplit splits, NormKind kind,
                         const void *raw /* [T, (H+2G)*D] c */, const float *wq /* [H*D] */,
                         const float *wk /* [G*D] */, const void *dqkv /* [T, (H+2G)*D] c or NULL */,
                         float *sums /* [splits here, T, 2] */, Dtype c);

    /* Rotates the first R = s.rotary elements of each head of q and k inside qkv, in place, by position
     * (half-split form, as in most of Hugging Face's checkpoints, or s.neighbours). `inverse` rotates back,
     * which is the gradient. cos_sin[p] = R/2 cosines, then R/2 sines. Su et al., "RoFormer", 2021. */
    void (*rope)(Device *d, AttentionShape s, void *qkv /* [T, (H+2G)*D] c */,
                 const int32_t *positions /* [T] */, const float *cos_sin /* [P, R] */, bool inverse,
                 Dtype c);
    /* Multiplies q inside qkv by factors[positions[t]], in place; backward does the same to the gradient. */
    void (*queries_scale)(Device *d, AttentionShape s, void *qkv /* [T, (H+2G)*D] c */,
                          const int32_t *positions /* [T] */, const float *factors /* [P] */, Dtype c);

    /* y[t] += bias. */
    void (*bias_forward)(Device *d, int64_t tokens, int64_t n, void *y /* [T, n] c */,
                         const float *bias /* [n] */, Dtype c);
    /* db[i] += sum of dy[t] over tokens i * split_size .. (i+1) * split_size - 1, as in norm_backward. */
    void (*bias_backward)(Device *d, int64_t tokens, int64_t n, const void *dy /* [T, n] c */,
                          float *db /* [ceil(T / split), n] */, int64_t split_size, Dtype c);

    /* Causal attention inside segments: token t attends to keys first_key[t] .. t, of these to the last
     * s.window, or to those of its chunk (chunks of s.chunk tokens, counted from first_key[t]). first_key
     * never decreases. The full score matrix is never stored; lse keeps the natural log sum exp of each row,
     * of the exponentials as the kernel uses them (it may round them to bf16). Scores are scaled, then
     * capped, by s. With s.sinks each head has one more score, the same for all tokens, of a key without a
     * value: weights sum to less than 1, and lse includes it. The result of a query does not depend on the
     * run that it is in. dkv is overwritten, also at keys that no query of the run sees. Dao,
     * "FlashAttention-2", 2023; of windows Beltagy et al., "Longformer", 2020; of caps Gemma team, "Gemma 2",
     * 2024; of sinks Xiao et al., "Efficient streaming language models with attention sinks", 2023. */
    void (*attention_forward)(Device *d, AttentionShape s, AttentionRun r, const void *q /* [T, H*D] c */,
                              const void *kv /* [keys, 2G*D] c */, const int32_t *first_key /* [keys] */,
                              void *out /* [T, H*D] c */, float *lse /* [H, T] */, Dtype c);
    void (*attention_backward)(Device *d, AttentionShape s, AttentionRun r, const void *q /* [T, H*D] c */,
                               const void *kv /* [keys, 2G*D] c */, const int32_t *first_key /* [keys] */,
                               const void *out /* [T, H*D] c */, const float *lse /* [H, T] */,
                               const void *dout /* [T, H*D] c */, void *dq /* as q */,
                               void *dkv /* [keys, 2G*D] */, Dtype c);
    /* Generation: s.tokens new tokens at positions start .. start+T-1 of one sequence whose keys and values
     * are in the cache (the new ones too); query t attends to cache rows 0 .. start+t, of these to the last
     * s.window, or to those of its chunk. */
    void (*attention_decode)(Device *d, AttentionShape s, int64_t start,
                             const void *qkv /* [T, (H+2G)*D] c */, const void *k_cache /* [P, G*D] c */,
                             const void *v_cache /* [P, G*D] c */, void *out /* [T, H*D] c */, Dtype c);

    /* Builds q, k, v of each token and head for the attention ops from the queries, the `key` that all heads
     * share, and each head's `own` N elements of the key and V of the value. The last R elements of q and k
     * are rotated by position, 2i and 2i + 1 by the i-th angle of cos_sin, which is laid out as in rope. */
    void (*latent_forward)(Device *d, LatentShape s, const void *q /* [T, H*D] c, q_row */,
                           const void *own /* [T, H*(N+V)] c */, const void *key /* [T, R] c, key_row */,
                           const int32_t *positions /* [T] */, const float *cos_sin /* [P, R] */,
                           void *qkv /* [T, 3H*D] c */, Dtype c);
    /* Gradients of the inputs from that of qkv. For the shared key: each split sums its heads in order and
     * rotates the sum back; the splits are then added in the tree. */
    void (*latent_backward)(Device *d, LatentShape s, const void *dqkv /* [T, 3H*D] c */,
                            const int32_t *positions /* [T] */, const float *cos_sin /* [P, R] */,
                            void *dq /* [T, H*D] c, q_row */, void *down /* [T, H*(N+V)] c */,
                            void *dkey /* [T, R] c, or fp32 partial sums, key_row */, Dtype c);

    /* For each head x: dsinks[x] -= sum over tokens of exp(s.sinks[x] - lse) (dout . out). */
    void (*sinks_backward)(Device *d, AttentionShape s, const void *out /* [T, H*D] c */,
                           const float *lse /* [H, T] */, const void *dout /* [T, H*D] c */,
                           float *dsinks /* [H] */, Dtype c);

    /* act = f(x); gated: f(gate) * up, with x = [gate | up] per token. W is I, or 2I where gated.
     * Shazeer, "GLU variants improve transformer", 2020. */
    void (*activation_forward)(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                               const void *x /* [T, W] c */, void *act /* [T, I] c */, Dtype c);
    /* dx from dact; also recomputes act, which the wgrad of the down projection needs. dact and act may be
     * the same memory. */
    void (*activation_backward)(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                                const void *x /* [T, W] c */, const void *dact /* [T, I] c */,
                                void *dx /* [T, W] c */, void *act /* [T, I] c */, Dtype c);

    /* out = a + b; out may be a or b. */
    void (*add)(Device *d, int64_t n, const void *a /* [n] c */, const void *b /* [n] c */,
                void *out /* [n] c */, Dtype c);

    /* out[r] = factor * in[r], for rows of n elements that lie ldi (>= n) apart in `in` and are contiguous in
     * out. in and out may be the same memory if ldi is n. */
    void (*scale)(Device *d, int64_t rows, int64_t n, float factor, const void *in /* [rows, n] c */,
                  int64_t ldi, void *out /* [rows, n] c */, Dtype c);

    /* x = cap * tanh(x / cap), in place. */
    void (*softcap)(Device *d, int64_t n, float cap, void *x /* [n] c */, Dtype c);

    /* y_t = silu(p_t), p_t = sum over j of w_j x_{t - K + 1 + j}, over tokens from first_key[t] on. In
     * generation first_key is NULL, and `tail` (fp32) holds the K - 1 tokens before the first; the op updates
     * it for the next call. */
    void (*conv_forward)(Device *d, ConvShape s, const void *x /* [T, W] c */, const float *w /* [K, W] */,
                         const int32_t *first_key /* [T] or NULL */, float *tail /* [K - 1, W] or NULL */,
                         void *y /* [T, W] c */, Dtype c);
    /* dx from dy; dw += sums over tokens. */
    void (*conv_backward)(Device *d, ConvShape s, const void *x /* [T, W] c */, const float *w /* [K, W] */,
                          const int32_t *first_key /* [T] */, const void *dy /* [T, W] c */,
                          void *dx /* [T, W] c */, float *dw /* [K, W] */, Dtype c);
    /* h of all tokens, one after the other. A document begins at t if first_key[t] is t. In generation
     * first_key is NULL; `state` is h before the first token on entry, and h after the last on return.
     * in.gate is not read. */
    void (*scan_forward)(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key /* [T] or NULL */,
                         float *state /* [W] or NULL */, float *h /* [T, W] */, Dtype c);
    /* Output gate: out = h silu(gate). */
    void (*scan_gate)(Device *d, ScanShape s, const void *gate /* [T, W] c */, const float *h /* [T, W] */,
                      void *out /* [T, W] c */, Dtype c);
    /* Gradients of the inputs, through the gate and the recurrence, from dout:
     *     g_t = silu(gate_t) dout_t + a_{t+1} g_{t+1}      db_t = g_t      da_t = g_t h_{t-1} */
    void (*scan_backward)(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key /* [T] */,
                          const float *h /* [T, W] */, const void *dout /* [T, W] c */, ScanGradients out,
                          Dtype c);

    /* As scan_forward, with a state [H, P, N]. Each row of the state advances by itself from token to token,
     * so a sequence processed in several calls has the bits of one call. starts: the states before every
     * MAMBA_CHUNK-th token. */
    void (*mamba_forward)(Device *d, MambaShape s, MambaInputs in, const int32_t *first_key /* [T] or NULL */,
                          float *state /* [H, P, N] or NULL */,
                          float *starts /* [mamba_starts(T), H, P, N] */, void *y /* [T, H*P] c */, Dtype c);
    /* With G_t the gradient of S_t: G_t = dy_t C_t^T + a_{t+1} G_{t+1}. carry is the G_t that one chunk
     * passes to the chunk before it; room holds each head's partial sums of the gradients of B, then C.
     * Neither is read before it is written. */
    void (*mamba_backward)(Device *d, MambaShape s, MambaInputs in, const int32_t *first_key /* [T] */,
                           const float *starts, const void *dy /* [T, H*P] c */, float *carry /* [H, P, N] */,
                           float *room /* [H, min(T, MAMBA_CHUNK), 2, N] */, MambaGradients out, Dtype c);
    void (*gated_norm_forward)(Device *d, GatedNorm s, const void *x /* [T, W] c */,
                               const void *gate /* [T, W] c */, const float *w /* [W] */,
                               void *y /* [T, W] c */, Dtype c);
    /* dw += sums over tokens. */
    void (*gated_norm_backward)(Device *d, GatedNorm s, const void *x /* [T, W] c */,
                                const void *gate /* [T, W] c */, const float *w /* [W] */,
                                const void *dy /* [T, W] c */, void *dx /* [T, W] c */,
                                void *dgate /* [T, W] c */, float *dw /* [W] */, Dtype c);

    /* Turns the logits in r.scores into scores, in place; then selects each token's top k experts by logit
     * (with s.sigmoid and a bias or groups: by score plus bias; ties go to lower numbers), takes their scores
     * without bias as weights, and lays out the rows. With groups, the experts come from the s.groups_chosen
     * best groups: those with the largest logit, or with s.sigmoid the largest sum of two. counts[e] += rows
     * of expert e, unless NULL. NaN is selected last. Shazeer et al., "Outrageously large neural networks:
     * the sparsely-gated mixture-of-experts layer", 2017; groups and sigmoid: DeepSeek-AI, "DeepSeek-V2" and
     * "DeepSeek-V3", 2024; bias: Wang et al., "Auxiliary-loss-free load balancing", 2024. */
    void (*route)(Device *d, RouteShape s, Routes r, int64_t *counts /* [E] or NULL */);
    /* counts[q, e] += assignments to expert e of tokens of sequence q of the microbatch. */
    void (*route_count)(Device *d, RouteShape s, const int32_t *chosen /* [T, k] */,
                        int64_t *counts /* [sequences, E] */);
    /* dlogits from dweights, through the scores of the selected experts; the selection has no gradient. With
     * s.balance each sequence has a loss that is least if experts have equally many tokens. f_e is the number
     * of the sequence's assignments to e divided by its tokens, over all ranks that hold some of them, and is
     * treated as a constant:
     *
     *     balance[t] = s.balance * E * sum_e f_e scores[t, e]
     *
     * dlogits then includes the gradient of the sum of balance, times *scale. Fedus, Zoph & Shazeer, "Switch
     * transformers", 2021; by sequence: DeepSeek-AI, "DeepSeek-V3 technical report", 2024. */
    void (*route_backward)(Device *d, RouteShape s, Routes r,
                           const int64_t *counts /* [sequences, E]: of s.balance */,
                           const float *dweights /* [T, k] */, const float *scale /* [1] */,
                           float *balance /* [T] */, void *dlogits /* [T, E] c */, Dtype c);
    /* Multiplies each expert's rows by its matrix: C[r] = A[r] op(B_e), B_e [k, n], or with trans_b the
     * transpose of [n, k]. The result equals gemm of that expert's rows. `splits` has no split, or one, and
     * then only that range of k is multiplied; callers combine a token's experts split by split. */
    void (*grouped_gemm)(Device *d, ExpertRows e, bool trans_b, int64_t n, int64_t k,
                         const void *a /* [rows, k] ab_type */, const void *b /* [E] matrices, ab_type */,
                         Dtype ab_type, void *c /* [rows, n] c_type */, Dtype c_type, KSplit splits);
    /* C_e [m, n] = A_e^T B_e + (accumulate ? C_e : 0), with A_e and B_e the rows of expert e; 0 (or C_e) if
     * it has none. `sliced`: as a product with one split of all its rows. */
    void (*grouped_gemm_wgrad)(Device *d, ExpertRows e, int64_t m, int64_t n, const void *a /* [rows, m] */,
                               const void *b /* [rows, n] */, Dtype ab_type, float *c /* [E] matrices */,
                               bool accumulate, bool sliced);
    /* y[t] = (add ? y[t] : 0) + sum of the rows of the token's k assignments, in the order of their experts,
     * times r.weights if `weighed`; in fp32, rounded once. */
    void (*combine)(Device *d, RouteShape s, Routes r, int64_t hidden, const void *rows /* [T k, h] c */,
                    bool weighed, bool add, void *y /* [T, h] c */, Dtype c);
    /* For each assignment and its row: dweights = act . dact, as the tree of `splits` equal splits; then act
     * and dact are multiplied by its weight. If r.row is NULL, assignment j has row j. dweights may be
     * r.weights. */
    void (*combine_backward)(Device *d, RouteShape s, Routes r, int64_t inter, int splits,
                             void *act /* [T k, I] c */, void *dact /* [T k, I] c */,
                             float *dweights /* [T, k] */, Dtype c);

    /* For models that weight the input of an expert instead of its output: the row of each assignment is its
     * weight times its token's x ... */
    void (*permute)(Device *d, RouteShape s, Routes r, int64_t hidden, const void *x /* [T, h] c */,
                    void *rows /* [T k, h] c */, Dtype c);
    /* ... and the gradient of the weight is the dot product of the row's gradient and x. Since y, `runs` runs
     * of n elements (gate, up), is linear in the row, that is (y . dy) / weight, or 0 if the weight is 0.
     * dweights = the tree of `splits` equal splits of each run. If r.row is NULL, assignment j has row j.
     * dweights may be r.weights. */
    void (*permute_dweights)(Device *d, RouteShape s, Routes r, int64_t n, int runs, int splits,
                             const void *y /* [T k, runs n] c */, const void *dy /* [T k, runs n] c */,
                             float *dweights /* [T, k] */, Dtype c);

    /* y[r] += the bias of its expert. */
    void (*experts_bias_forward)(Device *d, ExpertRows e /* step: unused */, int64_t n,
                                 void *y /* [rows, n] c */, const float *bias /* [E, n] */, Dtype c);
    /* dbias_e += sum of dy over the rows of e. `weighed`: the biased output was multiplied by the weight of
     * its assignment, so dy is too, and dweights += dy . bias_e. */
    void (*experts_bias_backward)(Device *d, RouteShape s, Routes r, int64_t n,
                                  const void *dy /* [T k, n] c */, bool weighed,
                                  const float *bias /* [E, n] */, float *dbias /* [E, n] */,
                                  float *dweights /* [T, k]; NULL where not weighed */, Dtype c);

    /* Cross-entropy of R `rows` tokens, fused with its gradient: loss[r] = logsumexp(logits[r]) - logits[r,
     * target[r]], or 0 if target < 0 (ignored). dlogits, unless NULL, is (softmax - onehot) * scale, with
     * zero rows where ignored; it may be the memory of logits. With cap > 0 the logits come from softcap, and
     * dlogits is the gradient before it: multiplied by 1 - (logit / cap)^2. With z > 0 there is also a
     * z-loss, z_loss[r] = z * logsumexp(logits[r])^2, 0 where ignored, which keeps logits from drifting
     * (Chowdhery et al., "PaLM", 2022); dlogits is then the gradient of both.
     *
     * The vocabulary may be sharded over ranks (vocab-parallel), with V local logits. Each rank then makes
     * records of its splits (loss_records), all-gathers them (16 bytes per row and split), and computes from
     * the same records the same loss and the gradient of its local logits. With M the largest max and S the
     * tree over splits of sum exp(max - M), in double, the loss is M + log S - target. On one rank the op
     * makes the same records itself, row by row, while the row is in cache. Logits are never communicated.
     * Shoeybi et al., "Megatron-LM", 2019 (parallel cross-entropy). */
    void (*loss_records)(Device *d, int64_t rows, int64_t vocab, const void *logits /* [R, V] logits_type */,
                         Dtype logits_type, const int32_t *targets /* [R] */,
                         VocabSplit splits /* records: unused */, LossRecord *records /* [splits here, R] */);
    void (*cross_entropy)(Device *d, int64_t rows, int64_t vocab, const void *logits /* [R, V] logits_type */,
                          Dtype logits_type, const int32_t *targets /* [R], in the whole vocabulary */,
                          VocabSplit splits, const float *scale /* [1]; NULL without dlogits */, float cap,
                          float z, float *loss /* [R] */, float *z_loss /* [R], or NULL */,
                          void *dlogits /* [R, V] grad_type or NULL */, Dtype grad_type);
    /* into += losses, without rounding: the result depends on neither order nor grouping. */
    void (*loss_sum)(Device *d, int64_t n, const float *losses /* [n] */, LossSum *into);

    /* Fused with gradient clipping and with the bf16 compute copy:
     *     g = grad * grad_scale;   m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
     *     p -= lr * weight_decay * p + lr * (m / c1) / (sqrt(v / c2) + eps)
     *     copy = p rounded to bf16 (unless NULL)
     * Loshchilov & Hutter, "Decoupled weight decay regularization", 2019. */
    void (*adamw)(Device *d, int64_t n, AdamW a, StateStore s, const OptimizerStep *step,
                  float *param /* [n] */, const float *grad /* [n] */, void *m /* [n] s.type */,
                  void *v /* [n] s.type */, uint16_t *copy /* [n] bf16 or NULL */);
    /* As in PyTorch (no dampening), fused likewise; if `momentum` is NULL, b is g:
     *     g = grad * grad_scale + weight_decay * p;   b = momentum * b + g
     *     p -= lr * (nesterov ? g + momentum * b : b)
     *     copy = p rounded to bf16 (unless NULL) */
    void (*sgd)(Device *d, int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param /* [n] */,
                const float *grad /* [n] */, void *momentum /* [n] s.type or NULL */,
                uint16_t *copy /* [n] bf16 or NULL */);

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
    void (*muon_momentum)(Device *d, MatrixShape shape, Muon o, StateStore s, const OptimizerStep *step,
                          const float *grad, void *momentum /* s.type */, float *x /* [rows, cols] */);
    void (*muon_normalise)(Device *d, int64_t n, const GradStats *squares, float slack, float *x /* [n] */);
    void (*newton_schulz)(Device *d, int64_t m, float a, float b, float c, const float *gram /* [m, m] */,
                          float *square /* [m, m] */);
    void (*muon_apply)(Device *d, MatrixShape shape, Muon o, const OptimizerStep *step,
                       const float *x /* [rows, cols] */, float *param, uint16_t *copy /* bf16 or NULL */);

    /* mean += step->average * (param - mean): an exponential moving average of weights (Polyak & Juditsky,
     * 1992; in this form Tarvainen & Valpola, "Mean teachers", 2017). */
    void (*average)(Device *d, int64_t n, const OptimizerStep *step, const float *param /* [n] */,
                    float *mean /* [n] */);

    /* Sum of powers (p finite, >= 1) and max |g|; also the count of non-finite elements, which are left out
     * of both, and the index of the first. |g| and g^2 are doubles; other powers are pow() of |g| / unit:
     * with the largest |g| as the unit none overflows and the sum is at least 1 for every p. The sum is
     * exact: powers are added without rounding. So the statistics of a tensor's shards, merged in any order,
     * are those of the tensor. With p infinite the sum is left 0. */
    void (*grad_stats)(Device *d, int64_t n, const float *g /* [n] */, double p, const double *unit /* [1] */,
                       GradStats *out);

    /* acc[i] = (set ? 0 : acc[i]) + g[i] * 2^FIXED_SHIFT rounded to nearest even. Integers add in any order.
     * Elements that are not finite, or larger than the limit (at most fixed_limit(1)), add nothing to acc and
     * are counted in *refused. */
    void (*fixed_add)(Device *d, int64_t n, const float *g /* [n] */, int64_t *acc /* [n] */, bool set,
                      double limit, FixedRefusals *refused);
    /* out[i] = acc[i] * 2^-FIXED_SHIFT, rounded once, to nearest even. */
    void (*fixed_to_float)(Device *d, int64_t n, const int64_t *acc /* [n] */, float *out /* [n] */);

    /* Rounds to nearest even. */
    void (*cast)(Device *d, int64_t n, const void *in /* [n] in_type */, Dtype in_type,
                 void *out /* [n] out_type */, Dtype out_type);
    void (*zero)(Device *d, void *p, size_t bytes);
    /* out[i] = mean + std * normal(key, first + i) cut to [lo, hi] standard deviations; rng_normals
     * of base/rng.h. */
    void (*init_normal)(Device *d, int64_t n, uint64_t key, uint64_t first, double mean, double std,
                        double lo, double hi, float *out /* [n] */);
    void (*fill)(Device *d, int64_t n, float value, float *out /* [n] */);

    /* Within tensor memory; `to` and `from` do not overlap. */
    void (*copy)(Device *d, void *to, const void *from, size_t bytes);
    /* A 2D copy: rows of `bytes` bytes each, to_stride and from_stride bytes apart. */
    void (*copy_rows)(Device *d, int64_t rows, size_t bytes, void *to, size_t to_stride, const void *from,
                      size_t from_stride);
    /* Between host memory and tensor memory: see point 3 of the contract. */
    void (*upload)(Device *d, void *tensor, const void *host, size_t bytes);
    void (*download)(Device *d, void *host, const void *tensor, size_t bytes);

    /* out[i] = sum over parts p of in[p][i], in the canonical tree: blocks of parts are split at the largest
     * power of two below their number. out may be one of the parts. The integers wrap around. */
    void (*sum_parts)(Device *d, int64_t n, int parts, const float *const *in /* host [parts] of [n] */,
                      float *out /* [n] */);
    void (*sum_parts_i64)(Device *d, int64_t n, int parts, const int64_t *const *in /* host [parts] of [n] */,
                          int64_t *out /* [n] */);

    /* Scratch that the ops above may need for the largest shapes of a run. */
    size_t (*scratch_bytes)(const Device *d, const DeviceNeeds *needs);
} Ops;

/* Largest shapes of a run, for scratch. */
struct DeviceNeeds {
    Dtype compute;
    int64_t tokens, hidden, intermediate, vocab, logits_rows;
    int64_t qkv; /* of a token, if attention sees only some heads; 0: what attention sees */
    AttentionShape attention;
    int64_t keys; /* of attention; 0: one per token */
    int splits;   /* most splits of a product; 0: no product has any */
};

/* ---- streams, events, memory ---- */

/* ON_COMMUNICATORS and the streams after it are communicators (see DeviceCommunicators): as many as a rank of
 * any mesh may need. comm/communicators.c checks this number. */
enum { DEVICE_COMMUNICATORS = 11 };
typedef enum DeviceStream {
    ON_COMPUTE,
    ON_COMM,
    ON_COPY,
    ON_COMMUNICATORS,
    DEVICE_STREAMS = ON_COMMUNICATORS + DEVICE_COMMUNICATORS
} DeviceStream;

/* A ticket returned by device_mark; 0 has always been reached. Nothing to free. */
typedef uint64_t Event;

/* Why the host waits: for a result that the program asked for, or for memory that a transport between ranks
 * reads and writes by itself (MPI; a transport on the device lets streams wait instead). */
typedef enum DeviceWait { WAIT_RESULT, WAIT_TRANSPORT, DEVICE_WAITS } DeviceWait;

/* Memory of a discrete device, over all processes that use the device. */
typedef struct DeviceMemory {
    uint64_t total, available;
    uint64_t untouched; /* available before this process took any; 0: not known */
    char identity[16];  /* unique to the device */
} DeviceMemory;

/* The functions behind device_mark and those below; the same for all kernels of a device. */
typedef struct DeviceRuntime {
    Event (*mark)(Device *d, DeviceStream s);
    void (*follow)(Device *d, DeviceStream s, Event e);
    void (*finish)(Device *d, Event e);
    void *(*take)(Device *d, size_t bytes); /* tensor memory, zeroed; NULL: not enough */
    void (*give)(Device *d, void *memory, size_t bytes);
    size_t (*available)(const Device *d);        /* bytes of tensor memory; 0: not known */
    void *(*host_take)(Device *d, size_t bytes); /* pinned host memory, zeroed */
    void (*host_give)(Device *d, void *host);
    /* Only of a device with separate memory; else NULL. Returns false if unknown. Never waits. */
    bool (*memory)(const Device *d, DeviceMemory *m);
    /* Timing by the device's clock, for devices whose ops have not ended when their calls return; else NULL.
     * Times are of the calling thread's stream. They are written to `to` after the host has waited for
     * something enqueued later. None of these waits, except read_times: it waits for everything under way.
     *    begin_time, end_time   *to += seconds between the two; end_time takes what begin_time returned on
     *                           the same stream
     *    stamp                  *to = seconds since the stream's last stamp with a NULL `to` */
    int64_t (*begin_time)(Device *d);
    void (*end_time)(Device *d, int64_t begun, double *to);
    void (*stamp)(Device *d, double *to);
    void (*read_times)(Device *d);
    void (*close)(Device *d); /* frees everything that opening allocated, also if it failed half way */
} DeviceRuntime;

/* Communicators move tensors from the memory of one rank's device to that of another without the host (NCCL).
 * A communicator is a stream that several ranks share, each with its rank 0 .. n-1 in it. Between two ranks
 * of a communicator the k-th send meets the k-th receive: there are no tags, and a rank that enqueues in
 * another order than its peers waits forever. Calls of one rank come one at a time. */
enum { COMMUNICATOR_KEY = 128, COMMUNICATOR_IDENTITY = 64 };
typedef struct DeviceCommunicators {
    /* Identifies this device among all; ERR_UNAVAILABLE says why it has no communicators. */
    ErrorCode (*identify)(Device *d, char identity[COMMUNICATOR_IDENTITY], Error *err);
    /* One rank makes the key with which all ranks open their communicators. */
    ErrorCode (*key)(Device *d, char key[COMMUNICATOR_KEY], Error *err);
    ErrorCode (*open)(Device *d, const char key[COMMUNICATOR_KEY], int ranks, int rank, Error *err);
    /* Collective: all ranks call it, equally often and in the same order. Ranks of one colour get a
     * communicator, each at its place (rank in it) 0 .. places-1. Colour -1: none, and *communicator is
     * ON_COMPUTE. Takes all memory that the communicator will need. */
    ErrorCode (*join)(Device *d, int colour, int place, int places, DeviceStream *communicator, Error *err);
    /* Calls between begin and end are one group that starts together; none of them waits. */
    void (*begin)(Device *d);
    void (*send)(Device *d, DeviceStream communicator, int place, const void *data, size_t bytes);
    void (*receive)(Device *d, DeviceStream communicator, int place, void *data, size_t bytes);
    ErrorCode (*end)(Device *d, Error *err);
    /* ERR_PEER if a communicator has failed; never waits. */
    ErrorCode (*look)(Device *d, Error *err);
    bool (*reached)(Device *d, Event e); /* never waits */
    /* Aborts what waits for a peer, so that host waits end; the communicators cannot be used again. */
    void (*abort)(Device *d);
} DeviceCommunicators;

typedef struct OpProfile {
    int64_t calls;
    double seconds; /* on the device; concurrent streams are added up */
    double flops;   /* gemm: 2MNK, K counting only elements read; attention: by computed blocks */
} OpProfile;

struct Device {
    Ops ops;
    DeviceRuntime runtime;
    const DeviceCommunicators *communicators; /* NULL: none */
    const char *name;                         /* of CPU_KERNELS, or "cuda"; NULL: described, not opened */
    char processor[128];                      /* the processor's own name, or the GPU's */
    int threads;
    bool native_bf16;     /* bf16 matrix products are at least as fast as fp32 ones */
    bool separate_memory; /* tensor memory is not the machine's */
    uint64_t memory; /* bytes of separate memory; 0: it is the machine's, or not known (described device) */
    uint64_t granularity; /* `take` rounds up to a multiple of it, at least one; bytes; 0: exact sizes */
    uint64_t pinned;      /* bytes of host memory that opening takes, for uploads */
    int64_t loss_rows;    /* tokens whose logits are computed at a time; 0: few, to fit in caches */
    int widest_head;      /* most elements of an attention head; 0: no limit */
    char *scratch;
    size_t scratch_size;
    atomic_llong waits[DEVICE_WAITS]; /* calls of device_finish */
    atomic_llong
        waits_since;      /* of communicators: nanoseconds of a monotonic clock; 0: no call is under way */
    atomic_llong waiting; /* calls under way: the training thread and a saving thread may both wait */
    bool profiling;
    OpProfile profile[OP_COUNT];
    void *impl;         /* private to the implementation */
    Deferred *deferred; /* queued ops; NULL: not a deferred device */
};

/* Sets the stream for ops that this thread enqueues from now on; returns the previous one. */
DeviceStream device_on(DeviceStream s);
DeviceStream device_stream(void); /* the current one */
/* An event that is reached when everything enqueued on s so far has run. */
Event device_mark(Device *d, DeviceStream s);
/* Everything enqueued on s from now on runs after e. */
void device_follow(Device *d, DeviceStream s, Event e);
/* Returns when e has been reached. */
void device_finish(Device *d, Event e, DeviceWait why);
/* A download on this thread's stream and a device_finish for it (WAIT_RESULT). */
void device_fetch(Device *d, void *host, const void *tensor, size_t bytes);

/* ---- kinds, opening, around an op ---- */

/* Names of CPU kernels, from the best to the plainest (onednn: avx512, with bf16 products by oneDNN's
 * primitives; "auto" never selects it). Device kinds, as an option table takes them: "auto" and "cpu" are the
 * best kernels that the processor runs, "cuda" is a GPU. */
#define CPU_KERNELS "amx|onednn|avx512_bf16|avx512|avx2|portable|reference"
#define CPU_KINDS "auto|" CPU_KERNELS
#define DEVICE_KINDS "auto|cpu|cuda|" CPU_KERNELS
const char *device_cpu_kind(int index); /* one of CPU_KINDS */
const char *device_kind(int index);     /* one of DEVICE_KINDS */

/* Opens a device of DEVICE_KINDS. ERR_UNAVAILABLE says what this machine or build lacks. place: local rank on
 * its machine; ranks take GPUs round-robin, several one GPU if there are fewer. threads: of the CPU. */
ErrorCode device_open(Device *d, const char *kind, int place, int threads, Error *err);
/* The CPU. `kind`: NULL or "auto" for the best that the processor runs, or a name above (ERR_UNAVAILABLE if
 * it can't run). threads <= 0: one per core that this process may use. WEFT_CPU in the environment replaces
 * "auto". */
ErrorCode device_open_cpu(Device *d, const char *kind, int threads, Error *err);
void device_close(Device *d);
/* Makes an open device a deferred one (deferred.c) until it is closed: nothing runs before something waits
 * for it, and streams take turns drawn from the seed. For tests: results are the same bit for bit, unless the
 * program breaks the contract. device_open_cpu calls it if WEFT_DEFER=seed is set in the environment. */
void device_defer(Device *d, uint64_t seed);
/* A device to plan for, possibly on another machine: only scratch_bytes may be called. Of DEVICE_KINDS:
 * "cuda" needs what any GPU does (the caller fills in its memory), all others the most that any CPU
 * implementation needs. It has no name. threads as above. Nothing to close. */
void device_describe(Device *d, const char *kind, const char *processor, int threads);
/* Cores this process may run on. */
int device_cpu_cores(void);

/* Every op call goes through this: it opens the guard and keeps the profile if enabled.
 *     OP(d, OP_ADD, add, n, a, b, out); */
#define OP(d, id, slot, ...)                      \
    do {                                          \
        int64_t op_begun_ = device_op_enter((d)); \
        (d)->ops.slot((d), __VA_ARGS__);          \
        device_op_leave((d), (id), op_begun_);    \
    } while (0)
int64_t device_op_enter(Device *d);
void device_op_leave(Device *d, OpId op, int64_t begun);

/* Prints the profile as a table: calls, seconds, share of `seconds` (0: of all ops), rate. Waits for the
 * device. */
void device_profile_print(Device *d, double seconds, Text *out);

/* A hash of how this device rounds what replicas compute independently: optimizer updates and, with
 * `products`, fp32 matrix products. Devices with equal hashes produced the same bits from the same
 * operands. */
ErrorCode device_rounding(Device *d, bool products, uint64_t *out, Error *err);

/* Measured matrix-product peak of this device in FLOP/s: the best of square products of several sizes; 0 if
 * memory is short. Takes at most about `seconds` and `flops`: below 5e9 FLOPs the products are small, and
 * show less than the peak. */
double device_matmul_peak(Device *d, Dtype type, double seconds, double flops);
/* Measured rate of a copy within tensor memory, read plus written, in bytes/s. Copies 256 MiB if there is
 * time and `room` holds them twice. 0 if memory is short. */
double device_copy_rate(Device *d, double seconds, size_t room);
/* Upper bound in FLOP/s of the cores' multiply-adds if every operand were in a register; of bf16, by dot
 * products or AMX. 0 if there are none, and for kinds without kernels of their own. */
double device_register_limit(const Device *d, Dtype type, double seconds);

#endif
