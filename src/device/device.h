/* The device: a queue of operations on tensor memory, with shapes beside each argument.
 *
 * The contract
 *  1. Calling an op *enqueues* it, on the stream that the calling thread has chosen (device_on; ON_COMPUTE
 *     unless it says otherwise). Ops of one stream run in the order in which they were enqueued, ops of two
 *     streams in any order, unless an event stands between them: device_mark, then device_follow.
 *  2. Arguments are taken when an op is enqueued; tensor memory is read and written when it runs. Host code
 *     learns what a tensor holds by `download`, and then device_finish before it looks; device_fetch is both.
 *  3. Host memory given to `upload`, and the list of addresses given to a sum of parts, are read when the op
 *     is enqueued: they may be used again at once. Host memory given to `download` is written when the op
 *     runs: until that is finished it may hold anything.
 *     No op returns a value to the host, and none is given a number that the device has computed or that
 *     changes from step to step: such numbers live in tensor memory, so that a step can be enqueued whole.
 *  4. device_finish makes the host wait, which costs a GPU tens of microseconds of work: waits are counted.
 *  5. Only device/ dereferences tensor memory. Others hold addresses, add offsets, and call ops. The guard
 *     build proves it.
 *  6. device/cpu/reference.c fills every slot in plain C; faster implementations override slots. Each
 *     override is tested against the reference, on odd shapes and tails.
 *  7. Results do not depend on the number of threads, nor on how much of a tensor an op is given: what it
 *     makes of a slice (of tokens, heads, outputs, logits) is the slice of what it makes of the whole, bit
 *     for bit; of products, of those with splits (see KSplit). Sums are cut by constants and by splits, never
 *     by the length of a slice.
 *  8. Nothing is allocated in an op. Scratch comes from Device.scratch, whose size `scratch_bytes` tells in
 *     advance. It belongs to ON_COMPUTE: other streams take copies, uploads, downloads and sums of parts.
 *
 * On the CPU an op has ended when its call returns, every event has been reached, and finishing costs
 * nothing. A deferred CPU (device_defer) runs nothing before it must: what works there keeps the contract.
 *
 * Names: T tokens of one microbatch (sequences one after the other), h hidden size, H query heads, G
 * key/value heads (G divides H), D head dimension (even), I intermediate size, V vocabulary. Tensors are
 * row-major and contiguous unless a stride is named. "c" is the compute dtype (fp32 or bf16) of activations
 * and gathered weights; sums are taken in fp32 or wider. */
#ifndef WEFT_DEVICE_DEVICE_H
#define WEFT_DEVICE_DEVICE_H

#ifdef __cplusplus
typedef long long atomic_llong; /* kernels of GPUs are C++, and look at no counter */
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

/* Every op, with its name in the profile. The two sums of parts are one there. */
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

/* Of attention, and of what is done to its heads. Zeros behind the sizes are the plain kind. */
typedef struct AttentionShape {
    int64_t tokens;                /* T */
    int heads, kv_heads, head_dim; /* H, G, D */
    int rotary;                    /* R, even: leading elements of a head that rope turns; 0: all D */
    bool neighbours;               /* and which of them together: 2i and 2i + 1, else i and i + R/2 */
    float scale;                   /* of scores; 0: 1 / sqrt(D) */
    float cap;                     /* scores become cap * tanh(score / cap); 0: they stay */
    int64_t window;                /* a token sees at most so many keys, itself the last; 0: no limit */
    int64_t chunk;                 /* documents are cut into runs of so many, and it sees its own; 0: not */
    const float *sinks;            /* [H] tensor memory: see attention_forward; NULL: none */
} AttentionShape;

/* Which queries attention is about, and which keys: the T queries of tokens first .. first + T - 1 of `keys`
 * tokens; and how many elements lie between rows of queries, and of keys, behind whose G*D are the values'.
 * The gradients of keys and values are complete where all queries are here; else they are terms of a sum. */
typedef struct AttentionRun {
    int64_t first, keys, q_row, kv_row;
    bool partial; /* gradients of keys and values go to [keys, 2G*D] fp32, not to rows of kv_row of c */
} AttentionRun;
/* All queries; queries, keys and values of a token in one row. */
static inline AttentionRun attention_whole(AttentionShape s) {
    int64_t row = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
    AttentionRun r = {0, s.tokens, row, row, false};
    return r;
}

/* Heads of latent attention (DeepSeek-AI, "DeepSeek-V2", 2024): queries and keys of D = N + R elements, of
 * which the last R turn, those of keys being the same for all heads; values of V, which are put into D with
 * zeros behind them, so that attention is that of any heads. */
typedef struct LatentShape {
    int64_t tokens;                  /* T */
    int heads, plain, turned, value; /* H, N, R (even), V <= N + R */
    int64_t q_row, key_row; /* elements from one token to the next, of queries and of the turned key */
    int splits;   /* that these heads are, for the gradient of the common key, a sum over them; 0: as 1 */
    bool partial; /* which is a term of what ranks share, and fp32 */
} LatentShape;
static inline int64_t latent_head(LatentShape s) { return s.plain + s.turned; } /* D */
static inline int latent_splits(LatentShape s) { return s.splits > 1 ? s.splits : 1; }

/* Leaves: how a sum that ranks may share is cut, so that its bits do not depend on how many share it. Each
 * split is summed by itself; the sums of splits are added in the canonical tree of base/tree.h. A rank that
 * holds some of the splits gets their part of the tree (fp32, not yet rounded to c), and what the ranks have
 * is added in the same tree, by sum_parts. Where one rank has all, the op does both. Degrees whose share of
 * the splits is a power of two agree in every bit.
 *
 * Of a product, leaves lie along the inner dimension. That may consist of runs, one after another, which are
 * cut alike: split i is piece i of q, of k and of v, chained in this order. Pieces are `split` terms long,
 * the last of a run may be shorter; every run has the same number of them. Before a run `skip` terms are left
 * out, and all behind the last: they are other ranks'. */
enum { SPLIT_RUNS = 3, SPLITS_MAX = 64 };
typedef struct KSplit {
    int runs; /* 0: no splits, for a sum that no rank shares */
    struct {
        int64_t length, split_size, skip;
    } run[SPLIT_RUNS];
} KSplit;
#define NO_SPLIT ((KSplit){.runs = 0})
/* Terms of all splits that are here. */
static inline int64_t split_length(KSplit l) {
    int64_t length = 0;
    for (int r = 0; r < l.runs; r++) length += l.run[r].length;
    return length;
}

/* What is normed as one row: each head of a token, or, `flat`, all its queries, and all its keys. Of the
 * latter ranks may have some heads each. Then what is summed over a row is summed split by split, by
 * qk_norm_sums, and the splits of all ranks are there when a row is normed; else the op makes the sums, as is
 * fastest. */
typedef struct QkRows {
    bool flat;
    int splits;            /* of flat, on all ranks together; 0: none, for rows that no rank shares */
    int64_t tokens;        /* in sums, from one split to the next */
    int64_t queries, keys; /* numbers of whole rows */
    /* [splits, tokens, 2] of queries and of keys, tensor memory: the first is that of the op's first token */
    const float *squares;
    const float *products; /* of the way back alone */
} QkRows;
static inline QkRows qk_rows(bool flat) {
    QkRows rows = {flat, 0, 0, 0, 0, NULL, NULL};
    return rows;
}

/* Of the logits of a row that are in one split of the vocabulary. */
typedef struct LossRecord {
    float max;    /* the largest */
    float target; /* the target's logit, if it is one of them */
    double sum;   /* of exp(logit - max) */
} LossRecord;

/* Which logits of a row are here: first .. first+V-1 of the vocabulary, cut into splits. With all of them
 * here `first` is 0 and nobody needs records from elsewhere. */
typedef struct VocabSplit {
    int64_t first;             /* a multiple of split */
    int64_t split_size;        /* logits in a split, the last one may have fewer; 0: one split, of V */
    int count;                 /* of splits in the whole vocabulary; 0: those here are all */
    const LossRecord *records; /* [count, R] of all splits; NULL: the op makes them, since all are here */
} VocabSplit;

#define WHOLE_VOCABULARY ((VocabSplit){.count = 0})

/* Which rows of an embedding are here: first .. first+count-1. */
typedef struct EmbedRows {
    int64_t first, count;
} EmbedRows;
#define ALL_ROWS ((EmbedRows){0, INT64_MAX})

/* Experts: each token goes to k of E, whose results it adds up, times weights. What one expert does for one
 * token is a *choice*; there are always T k of them, whoever is chosen, so that memory never depends on the
 * data. Choices are worked on sorted by expert, tokens ascending: their rows. */
typedef struct RouteShape {
    int64_t tokens;   /* T */
    int64_t sequence; /* tokens of a sequence, for the balance loss; the last may have fewer */
    int experts;      /* E, at most EXPERTS_MAX */
    int chosen;       /* k <= E */
    bool normalise;   /* a token's weights are divided by their sum */
    float balance;    /* coefficient of the balance loss, for scores of a softmax; 0: none */
    /* Zeros from here on are the plain kind. */
    bool sigmoid;      /* a score is 1 / (1 + exp(-logit)), else one of a softmax over all */
    int groups;        /* experts are in so many runs of equally many, a divisor of E; 0: in none */
    int groups_chosen; /* from which the k experts are */
    float factor;      /* weights are multiplied by it; 0: by 1 */
    const float *bias; /* [E] tensor memory, of sigmoid: added to scores where experts are chosen; or NULL */
    int64_t before;    /* tokens of the microbatch before the first: sequences may have begun there */
} RouteShape;
enum { EXPERTS_MAX = 4096 };

/* Where the tokens go; tensor memory. */
typedef struct Routes {
    float *scores;   /* [T, E] of the router's logits */
    int32_t *chosen; /* [T, k] experts, ascending */
    float *weights;  /* [T, k] */
    int32_t *row;    /* [T, k] row of each choice */
    int32_t *token;  /* [T k] token of each row */
    int32_t *first;  /* [E + 1] rows of expert e: from first[e] to first[e + 1] */
} Routes;

/* Rows of experts, and their matrices. */
typedef struct ExpertRows {
    int64_t rows;         /* of all together: first[experts] */
    int experts;          /* E */
    const int32_t *first; /* [E + 1] tensor memory */
    int64_t step;         /* elements from one expert's matrix to the next one's */
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

/* A causal convolution of each channel by itself, a few tokens long. */
typedef struct ConvShape {
    int64_t tokens, width; /* T, W: channels */
    int64_t row;           /* elements from one token to the next in x, and in its gradient */
    int taps;              /* K, at most CONV_TAPS */
} ConvShape;
enum { CONV_TAPS = 8 };

/* Recurrences that are linear in their state, each channel by itself, h_t = a_t h_{t-1} + b_t, where a
 * document begins from h = 0. What a and b are made of, with s(x) = 1 / (1 + exp(-x)) and values v:
 *
 *     MIN_GRU    a = 1 - s(z)      b = s(z) v               gates z
 *     MIN_LSTM   a = s(f) n        b = s(i) n v             gates f, then i; n = 1 / (s(f) + s(i) + 1e-4)
 *     HAWK       a = exp(d s(r))   b = sqrt(1 - a^2) s(i) v gates r, then i; d = -8 log(1 + exp(lambda))
 *
 * Feng et al., "Were RNNs all we needed?", 2024, as Lingua has them (Videau et al., 2024); De et al.,
 * "Griffin", 2024. The root's slope is bounded, as there: 1 / sqrt(max(4 (1 - a^2), 1e-6)). */
typedef enum ScanKind { SCAN_MIN_GRU, SCAN_MIN_LSTM, SCAN_HAWK } ScanKind;
enum { SCAN_KINDS = SCAN_HAWK + 1 };
typedef struct ScanShape {
    int64_t tokens, width;                   /* T, W: channels */
    int64_t gates_row, values_row, gate_row; /* elements from one token to the next, in gradients likewise */
    ScanKind kind;
} ScanShape;
enum { SCAN_GATES = 2 }; /* runs of W gates that a kind has, at most */

/* What a recurrence reads, or the gradients of it; tensor memory. */
typedef struct ScanInputs {
    const void *gates;   /* [T, W or 2 W] c */
    const void *values;  /* [T, W] c */
    const void *gate;    /* [T, W] c: of what goes out */
    const float *lambda; /* [W] of HAWK, else NULL */
} ScanInputs;
typedef struct ScanGradients {
    void *gates, *values, *gate;
    float *lambda; /* [W], added to */
} ScanGradients;

/* A recurrence whose state is a matrix S [P, N] of each head, zeros where a document begins. x and y are P
 * numbers of a head and token, B and C N numbers of a token for all heads of a group, dt is one of a head:
 *
 *     S_t = exp(-step_t exp(A_log)) S_{t-1} + step_t x_t B_t^T      step_t = log(1 + exp(dt_t + dt_bias))
 *     y_t = S_t C_t + D x_t
 *
 * Dao & Gu, "Transformers are SSMs", 2024 (Mamba-2). States are kept before every MAMBA_CHUNK-th token: the
 * way back makes those between again. A constant, since sums over tokens are cut by it. */
typedef struct MambaShape {
    int64_t tokens;          /* T */
    int64_t heads, groups;   /* H, G: equally many heads of each */
    int64_t head_dim, state; /* P, N, of which the latter is at most MAMBA_STATE */
    int64_t row, dt_row;     /* elements from one token to the next in x, B and C, and in dt; in gradients
                                likewise */
} MambaShape;
enum { MAMBA_CHUNK = 128, MAMBA_STATE = 256 };
static inline int64_t mamba_starts(int64_t tokens) { return (tokens + MAMBA_CHUNK - 1) / MAMBA_CHUNK; }

/* What it reads, or the gradients of it; tensor memory. */
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

/* A gate, then an RMS norm of runs of a token's numbers by themselves: y = w n / rms(n), n = x silu(gate). */
typedef struct GatedNorm {
    int64_t tokens, width, run; /* T, W, numbers of a run */
    int64_t gate_row;           /* elements from one token to the next in the gate, and in its gradient */
    float eps;
} GatedNorm;

/* Of an optimizer, what stays as it is ... */
typedef struct AdamW {
    float beta1, beta2, eps, weight_decay;
} AdamW;

typedef struct Sgd {
    float momentum, weight_decay;
    bool nesterov;
} Sgd;

typedef struct Muon {
    float momentum, weight_decay, scale; /* scale: of the step of this matrix, times the learning rate */
    bool nesterov;
} Muon;

/* ... and what changes from step to step: in tensor memory. */
typedef struct OptimizerStep {
    float lr;
    float correction1, correction2; /* AdamW: 1 - beta^number */
    float grad_scale;               /* clip coefficient, multiplied into the gradient */
    float average;                  /* share of the new weights in their moving average */
    uint64_t number;                /* updates made, this one among them: from 1 on */
} OptimizerStep;

/* A matrix inside a parameter that is stored as part of a larger one: rows lie `row` elements apart. */
typedef struct MatrixShape {
    int64_t rows, cols, row;
} MatrixShape;

/* The sum of losses; see loss_sum. All zero: nothing has been added. */
typedef struct LossSum {
    ExactSum sum;      /* of the finite ones */
    int64_t nonfinite; /* number of the others */
} LossSum;

/* How the states of an optimizer are kept: fp32 as they are, or bf16, rounded stochastically. A bf16 number
 * has 8 bits: rounded to nearest, a mean of squares would never take up what is below 1/512 of it. So of the
 * two neighbours of x the upper one is taken with the probability that makes x the mean (finite x never
 * becomes infinite, and a NaN, whichever it is, becomes 0x7fc0):
 *
 *     bf16(x) = (bits of x + r) >> 16,   r: 16 random bits
 *
 * The bits of element e (of a parameter: `first` is the number of the op's first one) are those of Philox
 * with the counter (e / 64 * 16 + e % 16, OptimizerStep.number), word e % 64 / 16; the first state takes the
 * lower half of the word, the second the upper. They depend on (key, number, e) alone, however the elements
 * are cut into calls. */
typedef struct StateStore {
    Dtype type;
    uint64_t key; /* of the parameter */
    int64_t first;
} StateStore;
enum { STATE_CHUNK = 64, STATE_BLOCKS = 16 }; /* elements that 16 Philox blocks serve */

/* Order-free figures of a gradient tensor; see grad_stats. */
typedef struct GradStats {
    ExactSum sum;            /* of |g|^p, or (|g| / unit)^p, over finite elements (p finite), normalised */
    double max;              /* max |g| over finite elements */
    int64_t nonfinite;       /* elements that are NaN or infinite, or whose power is beyond every double */
    int64_t first_nonfinite; /* index of the first of them; -1: there is none */
} GradStats;

/* Gradients in fixed point count units of 2^-FIXED_SHIFT: 8.9e-16. */
enum { FIXED_SHIFT = 50, FIXED_SUM_LOG2 = 62 };

/* The largest |g| that may be added when an element gets `contributions` additions, on all ranks together:
 * their sum stays within 2^FIXED_SUM_LOG2 units (and half a unit each of rounding), so an int64 never
 * overflows. 4096 for one contribution. */
static inline double fixed_limit(int64_t contributions) {
    return (double)(INT64_C(1) << (FIXED_SUM_LOG2 - FIXED_SHIFT)) / (double)contributions;
}

/* Elements that fixed_add refused. All zero: none so far. */
typedef struct FixedRefusals {
    int64_t count;
    int64_t first; /* where count is not 0: index of the first, in the first of the ops that refused one */
} FixedRefusals;

typedef struct Device Device;
typedef struct DeviceNeeds DeviceNeeds;
typedef struct Deferred Deferred;

typedef struct Ops {
    /* C[M,N] = op(A) op(B) + (accumulate ? C : 0), row-major. op(A) is [M,K]: A itself [M,K], or with
     * trans_a the transpose of A [K,M]; op(B) is [K,N]: B [K,N], or with trans_b the transpose of B [N,K].
     * A and B have one dtype; C has that, or is fp32. Leading dimensions are those of contiguous tensors,
     * except ldc (>= N). For a linear layer with weight W [N,K]:
     *
     *     forward           Y[T,N]  = X[T,K] W[N,K]^T      gemm(0, 1, T, N, K, X, W, Y)
     *     input gradient    dX[T,K] = dY[T,N] W[N,K]       gemm(0, 0, T, K, N, dY, W, dX)
     *     weight gradient   dW[N,K] += dY[T,N]^T X[T,K]    gemm(1, 0, N, K, T, dY, X, dW fp32, accumulate)
     *
     * With splits, be it one, the product of a slice is the slice of the product, bit for bit: of rows of A,
     * of columns of op(B), or of splits of K. Without, the order of sums may hang on the shape (not on
     * threads): a product that no rank shares is made as is fastest. C is rounded once; with splits and
     * accumulate, C + their tree. */
    void (*gemm)(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                 const void *a /* [M, K] or [K, M] ab_type */, const void *b /* [K, N] or [N, K] ab_type */,
                 Dtype ab_type, void *c /* [M, N] c_type, rows ldc apart */, Dtype c_type, int64_t ldc,
                 bool accumulate, KSplit splits);

    /* out[t] = (add ? out[t] : 0) + scale * table[ids[t] - rows.first]. ids are checked by the loader, once,
     * to be in [0, V). A token whose row is not here gets -0, the number that changes no sum (0 would turn a
     * -0 into 0); with `add` its out stays. */
    void (*embed_forward)(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids /* [T] */,
                          const void *table /* [rows, h] c */, EmbedRows rows, float scale, bool add,
                          void *out /* [T, h] c */, Dtype c);
    /* dtable[ids[t] - rows.first] += scale * dout[t], tokens in ascending order; of tokens whose row is
     * here. */
    void (*embed_backward)(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids /* [T] */,
                           const void *dout /* [T, h] c */, EmbedRows rows, float scale,
                           float *dtable /* [rows, h] */, Dtype c);

    /* sum = a + b (b and sum may be NULL: then sum is a); y = norm(sum), rstd its r. y may be NULL: only sum
     * and rstd are wanted. */
    void (*norm_forward)(Device *d, NormKind kind, int64_t tokens, int64_t hidden, float eps,
                         const void *a /* [T, h] c */, const void *b /* [T, h] c or NULL */,
                         const float *w /* [h] */, const float *bias /* [h] of NORM_LAYER, else NULL */,
                         void *sum /* [T, h] c or NULL */, void *y /* [T, h] c or NULL */,
                         float *rstd /* [T] */, Dtype c);
    /* dx = (add ? dx : 0) + gradient through the norm; dw[i] += sum over tokens i split .. (i+1) split - 1
     * (skipped when NULL): a row for each split of tokens, to be added in the tree when all microbatches have
     * been. x is the normed input. The bias has the gradient of any bias: bias_backward. */
    void (*norm_backward)(Device *d, NormKind kind, int64_t tokens, int64_t hidden,
                          const void *x /* [T, h] c */, const float *w /* [h] */, const float *rstd /* [T] */,
                          const void *dy /* [T, h] c */, void *dx /* [T, h] c */, bool add,
                          float *dw /* [ceil(T / split), h] or NULL */, int64_t split_size, Dtype c);

    /* Norms of queries and keys: out = raw with q and k normed, and v as it is. Each head by itself with one
     * weight for all of them (n = D), or `flat`, all heads of a token as one row (n = H*D, and G*D for
     * keys). kind is NORM_RMS or NORM_RMS_PLUS_ONE; of the former, with heads by themselves, weights may be
     * NULL, all ones, and so are then their gradients.
     * Henry et al., "Query-key normalization for transformers", 2020. */
    void (*qk_norm_forward)(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                            const void *raw /* [T, (H+2G)*D] c */, const float *wq /* [D] or [H*D] */,
                            const float *wk /* [D] or [G*D] */, void *out /* [T, (H+2G)*D] c */, Dtype c);
    /* dqkv, the gradient of `out`, becomes that of raw; dwq and dwk += sums over tokens and heads, a row for
     * each of `splits` equal runs of heads (1: all of them; `flat` has no more), to be added in the tree when
     * all microbatches have been. Of heads that are fewer, each is in the first of as many splits as it has,
     * and the others are left alone. */
    void (*qk_norm_backward)(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                             const void *raw /* [T, (H+2G)*D] c */, const float *wq /* [D] or [H*D] */,
                             const float *wk /* [D] or [G*D] */, void *dqkv /* [T, (H+2G)*D] c */,
                             float *dwq /* [splits, D] or [H*D] */, float *dwk, int splits, Dtype c);
    /* Of flat rows, the sums of the splits that are here, of queries (run 0 of `splits`) and of keys (run 1;
     * what it skips is other ranks'): of raw^2, or, with dqkv, the gradient of `out`, of raw dqkv w, where w
     * is what a normed number is multiplied by. */
    void (*qk_norm_sums)(Device *d, AttentionShape s, KSplit splits, NormKind kind,
                         const void *raw /* [T, (H+2G)*D] c */, const float *wq /* [H*D] */,
                         const float *wk /* [G*D] */, const void *dqkv /* [T, (H+2G)*D] c or NULL */,
                         float *sums /* [splits here, T, 2] */, Dtype c);

    /* Rotates q and k inside qkv, in place, by position (half-split form, as most of Hugging Face's
     * checkpoints, or s.neighbours): of each head its first R = s.rotary elements. inverse rotates back: the
     * gradient. cos_sin[p] = R/2 cosines, then R/2 sines. Su et al., "RoFormer", 2021. */
    void (*rope)(Device *d, AttentionShape s, void *qkv /* [T, (H+2G)*D] c */,
                 const int32_t *positions /* [T] */, const float *cos_sin /* [P, R] */, bool inverse,
                 Dtype c);
    /* q inside qkv times factors[positions[t]], in place: forward as back. */
    void (*queries_scale)(Device *d, AttentionShape s, void *qkv /* [T, (H+2G)*D] c */,
                          const int32_t *positions /* [T] */, const float *factors /* [P] */, Dtype c);

    /* y[t] += bias. */
    void (*bias_forward)(Device *d, int64_t tokens, int64_t n, void *y /* [T, n] c */,
                         const float *bias /* [n] */, Dtype c);
    /* db[i] += sum of dy[t] over tokens i split .. (i+1) split - 1, as in norm_backward. */
    void (*bias_backward)(Device *d, int64_t tokens, int64_t n, const void *dy /* [T, n] c */,
                          float *db /* [ceil(T / split), n] */, int64_t split_size, Dtype c);

    /* Causal attention inside segments: token t attends to keys first_key[t] .. t, of them to the last
     * s.window, or to those of its chunk of s.chunk, from first_key[t] on; first_key never decreases. The
     * score matrix never exists whole; lse keeps log sum exp of each row, natural log, of exponentials as
     * they are multiplied (kernels may round them to bf16). Scores are scaled, then capped, by s. With
     * s.sinks a head has one more score, the same for all tokens, of a key without a value: weights sum to
     * less than 1, and lse counts it. What a query makes does not hang on the run that it is in; dkv is
     * set, also where no query of the run looks. Dao, "FlashAttention-2", 2023; of windows Beltagy et al.,
     * "Longformer", 2020; of caps Gemma team, "Gemma 2", 2024; of sinks Xiao et al., "Efficient streaming
     * language models with attention sinks", 2023. */
    void (*attention_forward)(Device *d, AttentionShape s, AttentionRun r, const void *q /* [T, H*D] c */,
                              const void *kv /* [keys, 2G*D] c */, const int32_t *first_key /* [keys] */,
                              void *out /* [T, H*D] c */, float *lse /* [H, T] */, Dtype c);
    void (*attention_backward)(Device *d, AttentionShape s, AttentionRun r, const void *q /* [T, H*D] c */,
                               const void *kv /* [keys, 2G*D] c */, const int32_t *first_key /* [keys] */,
                               const void *out /* [T, H*D] c */, const float *lse /* [H, T] */,
                               const void *dout /* [T, H*D] c */, void *dq /* as q */,
                               void *dkv /* [keys, 2G*D] */, Dtype c);
    /* Generation: s.tokens new tokens at positions start .. start+T-1 of one sequence whose keys and values
     * are in the cache (the new ones too); query t attends to cache rows 0 .. start+t, of them to the last
     * s.window, or to those of its chunk. */
    void (*attention_decode)(Device *d, AttentionShape s, int64_t start,
                             const void *qkv /* [T, (H+2G)*D] c */, const void *k_cache /* [P, G*D] c */,
                             const void *v_cache /* [P, G*D] c */, void *out /* [T, H*D] c */, Dtype c);

    /* Heads for attention: q, k, v of each token and head, from queries, the key that all heads have in
     * common, and what each head has of its own, N elements of the key and V of the value. The last R of q
     * and k are turned by position, neighbours together: elements 2i and 2i + 1 by the i-th angle of cos_sin,
     * which are as rope has them. */
    void (*latent_forward)(Device *d, LatentShape s, const void *q /* [T, H*D] c, q_row */,
                           const void *own /* [T, H*(N+V)] c */, const void *key /* [T, R] c, key_row */,
                           const int32_t *positions /* [T] */, const float *cos_sin /* [P, R] */,
                           void *qkv /* [T, 3H*D] c */, Dtype c);
    /* The gradients of these from that of qkv: of the common key a sum over heads, in their order, of each
     * split turned back, and then a tree of splits. */
    void (*latent_backward)(Device *d, LatentShape s, const void *dqkv /* [T, 3H*D] c */,
                            const int32_t *positions /* [T] */, const float *cos_sin /* [P, R] */,
                            void *dq /* [T, H*D] c, q_row */, void *down /* [T, H*(N+V)] c */,
                            void *dkey /* [T, R] c, or fp32 terms, key_row */, Dtype c);

    /* dsinks[x] -= sum over tokens of exp(s.sinks[x] - lse) (dout . out), of head x. */
    void (*sinks_backward)(Device *d, AttentionShape s, const void *out /* [T, H*D] c */,
                           const float *lse /* [H, T] */, const void *dout /* [T, H*D] c */,
                           float *dsinks /* [H] */, Dtype c);

    /* act = f(x); gated: f(gate) * up, with x = [gate | up] per token. W is I, or 2I where gated.
     * Shazeer, "GLU variants improve transformer", 2020. */
    void (*activation_forward)(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                               const void *x /* [T, W] c */, void *act /* [T, I] c */, Dtype c);
    /* dx from dact; act is computed again on the way (the down projection's weight gradient wants it). dact
     * and act may be the same memory. */
    void (*activation_backward)(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                                const void *x /* [T, W] c */, const void *dact /* [T, I] c */,
                                void *dx /* [T, W] c */, void *act /* [T, I] c */, Dtype c);

    /* out = a + b; out may be a or b. */
    void (*add)(Device *d, int64_t n, const void *a /* [n] c */, const void *b /* [n] c */,
                void *out /* [n] c */, Dtype c);

    /* out[r] = factor * in[r]: rows of n, which lie ldi (>= n) apart in `in` and follow each other in out.
     * They may be the same memory where ldi is n. */
    void (*scale)(Device *d, int64_t rows, int64_t n, float factor, const void *in /* [rows, n] c */,
                  int64_t ldi, void *out /* [rows, n] c */, Dtype c);

    /* x = cap * tanh(x / cap), in place. */
    void (*softcap)(Device *d, int64_t n, float cap, void *x /* [n] c */, Dtype c);

    /* y_t = silu(p_t), p_t = sum over j of w_j x_{t - K + 1 + j}, of tokens from first_key[t] on. In
     * generation first_key is NULL: tokens before the first are those of `tail`, fp32, which is then that of
     * the next call. */
    void (*conv_forward)(Device *d, ConvShape s, const void *x /* [T, W] c */, const float *w /* [K, W] */,
                         const int32_t *first_key /* [T] or NULL */, float *tail /* [K - 1, W] or NULL */,
                         void *y /* [T, W] c */, Dtype c);
    /* dx from dy; dw += sums over tokens. */
    void (*conv_backward)(Device *d, ConvShape s, const void *x /* [T, W] c */, const float *w /* [K, W] */,
                          const int32_t *first_key /* [T] */, const void *dy /* [T, W] c */,
                          void *dx /* [T, W] c */, float *dw /* [K, W] */, Dtype c);
    /* h of all tokens, one after the other. A document begins at t where first_key[t] is t. In generation
     * first_key is NULL, and `state` h before the first token, then h after the last. in.gate is not read. */
    void (*scan_forward)(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key /* [T] or NULL */,
                         float *state /* [W] or NULL */, float *h /* [T, W] */, Dtype c);
    /* What goes out: out = h silu(gate). */
    void (*scan_gate)(Device *d, ScanShape s, const void *gate /* [T, W] c */, const float *h /* [T, W] */,
                      void *out /* [T, W] c */, Dtype c);
    /* The gradients of what is read, through the gate and the recurrence, from dout:
     *     g_t = silu(gate_t) dout_t + a_{t+1} g_{t+1}      db_t = g_t      da_t = g_t h_{t-1} */
    void (*scan_backward)(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key /* [T] */,
                          const float *h /* [T, W] */, const void *dout /* [T, W] c */, ScanGradients out,
                          Dtype c);

    /* As scan_forward, with a state [H, P, N]: each row of it by itself from token to token, so that a
     * sequence in pieces has the bits of the whole. starts: the states before every MAMBA_CHUNK-th token. */
    void (*mamba_forward)(Device *d, MambaShape s, MambaInputs in, const int32_t *first_key /* [T] or NULL */,
                          float *state /* [H, P, N] or NULL */,
                          float *starts /* [mamba_starts(T), H, P, N] */, void *y /* [T, H*P] c */, Dtype c);
    /* With G_t the gradient of S_t: G_t = dy_t C_t^T + a_{t+1} G_{t+1}. carry is that of a stride's last
     * token; room has the terms of the gradients of B, then C, of each head. Neither is read before it is
     * written. */
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

    /* Scores of the logits that stand in r.scores, in place; then each token's k experts with the largest
     * logits (s.sigmoid with a bias, or groups: scores, with the bias), of equal ones those with lower
     * numbers, their scores without bias as weights, and the order of rows. With groups they are of the
     * s.groups_chosen best: those with the largest logit, or with s.sigmoid the largest sum of two.
     * counts[e] += rows of expert e, unless NULL. What is NaN is chosen last. Shazeer et al., "Outrageously
     * large neural networks: the sparsely-gated mixture-of-experts layer", 2017; groups and sigmoid:
     * DeepSeek-AI, "DeepSeek-V2" and "DeepSeek-V3", 2024; bias: Wang et al., "Auxiliary-loss-free load
     * balancing", 2024. */
    void (*route)(Device *d, RouteShape s, Routes r, int64_t *counts /* [E] or NULL */);
    /* counts[q, e] += choices of expert e by those tokens that are of sequence q of the microbatch. */
    void (*route_count)(Device *d, RouteShape s, const int32_t *chosen /* [T, k] */,
                        int64_t *counts /* [sequences, E] */);
    /* dlogits from dweights, through what is chosen alone: the choice has no gradient. With s.balance each
     * sequence has a loss that is least where experts have equally many tokens, f_e being the sequence's
     * choices of e, of all its tokens wherever they are, divided by these, and taken as a constant:
     *
     *     balance[t] = s.balance * E * sum_e f_e scores[t, e]
     *
     * dlogits are then also of the sum of balance, times *scale. Fedus, Zoph & Shazeer,
     * "Switch transformers", 2021; by sequence: DeepSeek-AI, "DeepSeek-V3 technical report", 2024. */
    void (*route_backward)(Device *d, RouteShape s, Routes r,
                           const int64_t *counts /* [sequences, E]: of s.balance */,
                           const float *dweights /* [T, k] */, const float *scale /* [1] */,
                           float *balance /* [T] */, void *dlogits /* [T, E] c */, Dtype c);
    /* Each expert's rows by its matrix: C[r] = A[r] op(B_e), B_e [k, n], or with trans_b the transpose of
     * [n, k]. An expert's product is what gemm makes of its rows alone. Leaves: none, or one, of whose terms
     * alone it is made; what the experts of a token come to is added up split by split. */
    void (*grouped_gemm)(Device *d, ExpertRows e, bool trans_b, int64_t n, int64_t k,
                         const void *a /* [rows, k] ab_type */, const void *b /* [E] matrices, ab_type */,
                         Dtype ab_type, void *c /* [rows, n] c_type */, Dtype c_type, KSplit splits);
    /* C_e [m, n] = A_e^T B_e + (accumulate ? C_e : 0), A_e and B_e the rows of expert e; 0 (or C_e) where it
     * has none. `sliced`: as a product with one split, of all its rows. */
    void (*grouped_gemm_wgrad)(Device *d, ExpertRows e, int64_t m, int64_t n, const void *a /* [rows, m] */,
                               const void *b /* [rows, n] */, Dtype ab_type, float *c /* [E] matrices */,
                               bool accumulate, bool sliced);
    /* y[t] = (add ? y[t] : 0) + sum over the token's choices, in the order of their experts, of its rows,
     * times r.weights where `weighed`; in fp32, rounded once. */
    void (*combine)(Device *d, RouteShape s, Routes r, int64_t hidden, const void *rows /* [T k, h] c */,
                    bool weighed, bool add, void *y /* [T, h] c */, Dtype c);
    /* Of each choice, with its row: dweights = act . dact, the tree of so many equal splits; then act and
     * dact times its weight. Without r.row choices are rows. dweights may be r.weights. */
    void (*combine_backward)(Device *d, RouteShape s, Routes r, int64_t inter, int splits,
                             void *act /* [T k, I] c */, void *dact /* [T k, I] c */,
                             float *dweights /* [T, k] */, Dtype c);

    /* Where x is weighed, and not what experts make of it, the row of each choice is its weight times its
     * token's x ... */
    void (*permute)(Device *d, RouteShape s, Routes r, int64_t hidden, const void *x /* [T, h] c */,
                    void *rows /* [T k, h] c */, Dtype c);
    /* ... and the gradient of the weight that of the row along x. By the products of the row that is, with
     * n numbers y that were made of it as one matrix' runs (gate, up), their gradients along y, divided by
     * the weight; 0 where that is 0. dweights = the tree of so many equal splits of each run. Without r.row
     * choices are rows. dweights may be r.weights. */
    void (*permute_dweights)(Device *d, RouteShape s, Routes r, int64_t n, int runs, int splits,
                             const void *y /* [T k, runs n] c */, const void *dy /* [T k, runs n] c */,
                             float *dweights /* [T, k] */, Dtype c);

    /* y[r] += the bias of its expert. */
    void (*experts_bias_forward)(Device *d, ExpertRows e /* step: unused */, int64_t n,
                                 void *y /* [rows, n] c */, const float *bias /* [E, n] */, Dtype c);
    /* dbias_e += sum over the rows of e of dy. `weighed`: of dy times the weight of its choice, by which what
     * the bias was added to is multiplied; then the gradient of that weight, dweights += dy . bias_e. */
    void (*experts_bias_backward)(Device *d, RouteShape s, Routes r, int64_t n,
                                  const void *dy /* [T k, n] c */, bool weighed,
                                  const float *bias /* [E, n] */, float *dbias /* [E, n] */,
                                  float *dweights /* [T, k]; NULL where not weighed */, Dtype c);

    /* Cross-entropy of R `rows` tokens, fused with its gradient: loss[r] = logsumexp(logits[r]) - logits[r,
     * target[r]], 0 where target < 0 (ignored). With dlogits: (softmax - onehot) * scale, zero rows where
     * ignored; dlogits may be logits. With cap > 0 logits are what softcap made, and dlogits the gradient of
     * what they were before: times 1 - (logit / cap)^2. With z > 0 another term comes apart, z_loss[r] = z *
     * logsumexp(logits[r])^2, 0 where ignored, which keeps logits from drifting (Chowdhery et al., "PaLM",
     * 2022); dlogits are then of both.
     *
     * The vocabulary may be cut over ranks, V the logits that are here. Then each makes records of its splits
     * (loss_records), all get those of all (16 bytes a row and split), and from the same records the same
     * loss and the gradient of their own logits: with M the largest max and S the tree over splits of
     * sum exp(max - M), in double, the loss is M + log S - target. On one rank the op makes the same records
     * by itself, row by row, while the row is in cache. Logits never travel.
     * Shoeybi et al., "Megatron-LM", 2019 (parallel cross-entropy). */
    void (*loss_records)(Device *d, int64_t rows, int64_t vocab, const void *logits /* [R, V] logits_type */,
                         Dtype logits_type, const int32_t *targets /* [R] */,
                         VocabSplit splits /* records: unused */, LossRecord *records /* [splits here, R] */);
    void (*cross_entropy)(Device *d, int64_t rows, int64_t vocab, const void *logits /* [R, V] logits_type */,
                          Dtype logits_type, const int32_t *targets /* [R], in the whole vocabulary */,
                          VocabSplit splits, const float *scale /* [1]; NULL without dlogits */, float cap,
                          float z, float *loss /* [R] */, float *z_loss /* [R], or NULL */,
                          void *dlogits /* [R, V] grad_type or NULL */, Dtype grad_type);
    /* into += losses, without rounding: neither order nor grouping can show. */
    void (*loss_sum)(Device *d, int64_t n, const float *losses /* [n] */, LossSum *into);

    /* Fused with clipping and with the compute copy:
     *     g = grad * grad_scale;   m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
     *     p -= lr * weight_decay * p + lr * (m / c1) / (sqrt(v / c2) + eps)
     *     copy = p rounded to bf16 (unless NULL)
     * Loshchilov & Hutter, "Decoupled weight decay regularization", 2019. */
    void (*adamw)(Device *d, int64_t n, AdamW a, StateStore s, const OptimizerStep *step,
                  float *param /* [n] */, const float *grad /* [n] */, void *m /* [n] s.type */,
                  void *v /* [n] s.type */, uint16_t *copy /* [n] bf16 or NULL */);
    /* As PyTorch has it (no dampening), fused likewise; without `momentum` b is g:
     *     g = grad * grad_scale + weight_decay * p;   b = momentum * b + g
     *     p -= lr * (nesterov ? g + momentum * b : b)
     *     copy = p rounded to bf16 (unless NULL) */
    void (*sgd)(Device *d, int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param /* [n] */,
                const float *grad /* [n] */, void *momentum /* [n] s.type or NULL */,
                uint16_t *copy /* [n] bf16 or NULL */);

    /* Muon makes of a matrix's momentum the nearest matrix whose singular values are 1, or about that, and
     * steps along it. What of it is no product:
     *
     *     muon_momentum    g = grad * grad_scale;  b = momentum * b + g;  x = nesterov ? g + momentum * b : b
     *     muon_normalise   x /= slack * |x| + 1e-7                 |x| from grad_stats' sum of squares
     *     newton_schulz    square = a I + b gram + c square     all [m, m]: gram = x x^T, square = gram gram
     *     muon_apply       p -= lr * weight_decay * p + lr * scale * x;   copy = p in bf16 (unless NULL)
     *
     * param, grad, b and copy are rows shape.row apart, x is contiguous; s.first is the number of the first
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

    /* Sum of powers (p finite, >= 1) and max |g|; the count of non-finite elements, which are left out of
     * both, and where the first is. |g| and g^2 are doubles; other powers are what pow() makes of |g| / unit,
     * so that with the largest |g| of all as the unit none overflows and the sum is 1 or more, whatever p.
     * The sum is exact: powers are added without rounding. So the figures of a tensor's parts, merged in any
     * order, are those of the tensor. With p infinite the sum is left 0. */
    void (*grad_stats)(Device *d, int64_t n, const float *g /* [n] */, double p, const double *unit /* [1] */,
                       GradStats *out);

    /* acc[i] = (set ? 0 : acc[i]) + g[i] * 2^FIXED_SHIFT rounded to nearest even. Whole numbers add in any
     * order. Elements that are not finite, or larger than the limit (at most fixed_limit(1)), add nothing to
     * acc, and are added to what was refused before. */
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

    /* Within tensor memory; the two places do not overlap. */
    void (*copy)(Device *d, void *to, const void *from, size_t bytes);
    /* Rows of `bytes` bytes each, so many bytes apart: columns of a matrix, to those of another. */
    void (*copy_rows)(Device *d, int64_t rows, size_t bytes, void *to, size_t to_stride, const void *from,
                      size_t from_stride);
    /* Between host memory and tensor memory: the contract, 3. */
    void (*upload)(Device *d, void *tensor, const void *host, size_t bytes);
    void (*download)(Device *d, void *host, const void *tensor, size_t bytes);

    /* out[i] = sum over parts p of in[p][i], in the canonical tree: blocks of parts are split at the largest
     * power of two below their number. out may be one of the parts. The integers wrap around. */
    void (*sum_parts)(Device *d, int64_t n, int parts, const float *const *in /* host [parts] of [n] */,
                      float *out /* [n] */);
    void (*sum_parts_i64)(Device *d, int64_t n, int parts, const int64_t *const *in /* host [parts] of [n] */,
                          int64_t *out /* [n] */);

    /* Scratch that the ops above may need, for the largest shapes of a run. */
    size_t (*scratch_bytes)(const Device *d, const DeviceNeeds *needs);
} Ops;

/* Largest shapes of a run, for scratch. */
struct DeviceNeeds {
    Dtype compute;
    int64_t tokens, hidden, intermediate, vocab, logits_rows;
    int64_t qkv; /* of a token, where attention sees some heads only; 0: what attention sees */
    AttentionShape attention;
    int64_t keys; /* that attention has; 0: one for each token */
    int splits;   /* the most of a product; 0: none has any */
};

/* ---- streams, events, memory ---- */

/* ON_COMMUNICATORS and those behind it are communicators (see DeviceCommunicators): as many as a rank of any
 * mesh may need, which comm/communicators.c holds this number to. */
enum { DEVICE_COMMUNICATORS = 11 };
typedef enum DeviceStream {
    ON_COMPUTE,
    ON_COMM,
    ON_COPY,
    ON_COMMUNICATORS,
    DEVICE_STREAMS = ON_COMMUNICATORS + DEVICE_COMMUNICATORS
} DeviceStream;

/* A ticket that device_mark gives out; 0 has always been reached. Nothing to free. */
typedef uint64_t Event;

/* What a wait of the host is for: a result that the program asked for, or memory that a transport between
 * ranks reads and writes by itself (MPI; a transport on the device lets streams wait instead). */
typedef enum DeviceWait { WAIT_RESULT, WAIT_TRANSPORT, DEVICE_WAITS } DeviceWait;

/* Memory that is a device's own, whoever has it: all processes that use the device are in these figures. */
typedef struct DeviceMemory {
    uint64_t total, available;
    uint64_t untouched; /* what was available before this process had anything of it; 0: not known */
    char identity[16];  /* no other device has it */
} DeviceMemory;

/* The same for all kernels of a device: what device_mark and the others below do. */
typedef struct DeviceRuntime {
    Event (*mark)(Device *d, DeviceStream s);
    void (*follow)(Device *d, DeviceStream s, Event e);
    void (*finish)(Device *d, Event e);
    void *(*take)(Device *d, size_t bytes); /* tensor memory, zeroed; NULL: there is not so much */
    void (*give)(Device *d, void *memory, size_t bytes);
    size_t (*available)(const Device *d);        /* bytes of tensor memory; 0: not known */
    void *(*host_take)(Device *d, size_t bytes); /* pinned host memory, zeroed */
    void (*host_give)(Device *d, void *host);
    /* Of a device whose memory is its own; else NULL. False: it cannot be told. Never waits. */
    bool (*memory)(const Device *d, DeviceMemory *m);
    /* Times by the device's clock, where ops have not ended when their calls return; else NULL. They are of
     * the calling thread's stream, and come to where they are to when the host has waited for something that
     * was enqueued behind; none of these waits but read_times, for all that is under way.
     *     begin_time, end_time   *to += seconds from the one to the other; begin_time returns what end_time
     *                            gets on the same stream
     *     stamp                  *to = seconds since the last stamp on the stream whose `to` is NULL */
    int64_t (*begin_time)(Device *d);
    void (*end_time)(Device *d, int64_t begun, double *to);
    void (*stamp)(Device *d, double *to);
    void (*read_times)(Device *d);
    void (*close)(Device *d); /* of what opening has made; also half way */
} DeviceRuntime;

/* Communicators: how tensors get from the memory of one rank's device into that of another's without the host
 * (NCCL). A communicator is a stream that some ranks have in common, each at its place of 0 .. n-1. Between
 * two places of a communicator the k-th send meets the k-th receive: there are no tags, and whoever enqueues
 * in another order than its peers waits for ever. Calls of one rank come one at a time. */
enum { COMMUNICATOR_KEY = 128, COMMUNICATOR_IDENTITY = 64 };
typedef struct DeviceCommunicators {
    /* What tells this device from every other; ERR_UNAVAILABLE says why it has no communicators. */
    ErrorCode (*identify)(Device *d, char identity[COMMUNICATOR_IDENTITY], Error *err);
    /* One rank makes what all of them open their communicators with. */
    ErrorCode (*key)(Device *d, char key[COMMUNICATOR_KEY], Error *err);
    ErrorCode (*open)(Device *d, const char key[COMMUNICATOR_KEY], int ranks, int rank, Error *err);
    /* All ranks call it, as often and in the same order; those of one colour get a communicator, each at its
     * place of 0 .. places-1. Colour -1: none, and *communicator is ON_COMPUTE. Takes all memory that the
     * communicator will need. */
    ErrorCode (*join)(Device *d, int colour, int place, int places, DeviceStream *communicator, Error *err);
    /* What stands between begin and end goes at a time; nobody waits in between. */
    void (*begin)(Device *d);
    void (*send)(Device *d, DeviceStream communicator, int place, const void *data, size_t bytes);
    void (*receive)(Device *d, DeviceStream communicator, int place, void *data, size_t bytes);
    ErrorCode (*end)(Device *d, Error *err);
    /* ERR_PEER where a communicator has failed; never waits. */
    ErrorCode (*look)(Device *d, Error *err);
    bool (*reached)(Device *d, Event e); /* never waits */
    /* Gives up what waits for a peer, so that waits of the host end; the communicators are of no use any
     * more. */
    void (*abort)(Device *d);
} DeviceCommunicators;

typedef struct OpProfile {
    int64_t calls;
    double seconds; /* on the device; those of streams that run side by side are added up */
    double flops;   /* gemm: 2MNK, of K the terms that are read; attention: by visited blocks */
} OpProfile;

struct Device {
    Ops ops;
    DeviceRuntime runtime;
    const DeviceCommunicators *communicators; /* NULL: there are none */
    const char *name;                         /* of CPU_KERNELS, or "cuda"; NULL: described, not opened */
    char processor[128];                      /* the processor's own name, or the GPU's */
    int threads;
    bool native_bf16;     /* bf16 matrix products are at least as fast as fp32 ones */
    bool separate_memory; /* tensor memory is the device's own, and not the machine's */
    uint64_t memory; /* bytes of that; 0: it is the machine's, or a described device's that nobody knows */
    uint64_t granularity; /* bytes: of such memory `take` takes whole pieces, one at least; 0: to the byte */
    uint64_t pinned;      /* bytes of the host's memory that opening it takes, for uploads */
    int64_t loss_rows;    /* tokens whose logits are to be made at a time; 0: as few as fit in caches */
    int widest_head;      /* attention heads have at most so many elements; 0: any number */
    char *scratch;
    size_t scratch_size;
    atomic_llong waits[DEVICE_WAITS]; /* calls of device_finish */
    atomic_llong
        waits_since;      /* of communicators: nanoseconds of a monotonic clock; 0: no call is under way */
    atomic_llong waiting; /* calls under way: the thread that trains may wait beside that of a save */
    bool profiling;
    OpProfile profile[OP_COUNT];
    void *impl;         /* private to the implementation */
    Deferred *deferred; /* what waits to run; NULL: nothing ever does */
};

/* Ops that this thread enqueues from now on go to s; returns where they went before. */
DeviceStream device_on(DeviceStream s);
DeviceStream device_stream(void); /* where they go now */
/* An event that is reached when everything enqueued on s so far has run. */
Event device_mark(Device *d, DeviceStream s);
/* What is enqueued on s from now on runs after e. */
void device_follow(Device *d, DeviceStream s, Event e);
/* Returns when e has been reached. */
void device_finish(Device *d, Event e, DeviceWait why);
/* A download on this thread's stream, finished: a wait for a result. */
void device_fetch(Device *d, void *host, const void *tensor, size_t bytes);

/* ---- kinds, opening, around an op ---- */

/* Names of CPU kernels, from the best to the plainest behind "auto" (onednn: avx512, and bf16 products by
 * oneDNN's primitives; only by its name); of devices, what an option table takes:
 * "auto" and "cpu" are the best kernels that the processor runs, "cuda" is a GPU. */
#define CPU_KERNELS "amx|onednn|avx512_bf16|avx512|avx2|portable|reference"
#define CPU_KINDS "auto|" CPU_KERNELS
#define DEVICE_KINDS "auto|cpu|cuda|" CPU_KERNELS
const char *device_cpu_kind(int index); /* one of CPU_KINDS */
const char *device_kind(int index);     /* one of DEVICE_KINDS */

/* A device of DEVICE_KINDS. ERR_UNAVAILABLE says what this machine or build lacks. place: of this rank on its
 * machine; ranks take GPUs in turn, several one where there are fewer. threads: of the CPU. */
ErrorCode device_open(Device *d, const char *kind, int place, int threads, Error *err);
/* The CPU. `kind`: NULL or "auto" for the best that the processor runs, or a name above (ERR_UNAVAILABLE if
 * it can't). threads <= 0: one per core this process may use. WEFT_CPU in the environment replaces "auto". */
ErrorCode device_open_cpu(Device *d, const char *kind, int threads, Error *err);
void device_close(Device *d);
/* Makes an open device a deferred one (deferred.c), until it is closed: nothing runs before something waits
 * for it, streams take turns that are drawn from the seed. For tests: results are the same, bit for bit,
 * unless the program breaks the contract. device_open_cpu does it by itself where the environment has
 * WEFT_DEFER=seed. */
void device_defer(Device *d, uint64_t seed);
/* A device to plan for, which may be another one than this: only scratch_bytes may be asked of it. Of
 * DEVICE_KINDS: "cuda" takes what any GPU does (its memory is the caller's to fill in), all others the most
 * that any of the CPU's implementations takes. It has no name. threads as above. Nothing to close. */
void device_describe(Device *d, const char *kind, const char *processor, int threads);
/* Cores this process may run on. */
int device_cpu_cores(void);

/* Every op call goes through this: it opens the guard, and keeps the profile when asked to.
 *     OP(d, OP_ADD, add, n, a, b, out); */
#define OP(d, id, slot, ...)                      \
    do {                                          \
        int64_t op_begun_ = device_op_enter((d)); \
        (d)->ops.slot((d), __VA_ARGS__);          \
        device_op_leave((d), (id), op_begun_);    \
    } while (0)
int64_t device_op_enter(Device *d);
void device_op_leave(Device *d, OpId op, int64_t begun);

/* A table of the profile: calls, seconds, share of `seconds` (0: of all ops), rate. Waits for what is under
 * way on the device. */
void device_profile_print(Device *d, double seconds, Text *out);

/* A number that tells how this device rounds what replicas make by themselves: updates of optimizers, and
 * with `products` matrix products in fp32. Devices with equal numbers made the same bits of the same
 * operands. */
ErrorCode device_rounding(Device *d, bool products, uint64_t *out, Error *err);

/* Matrix-product peak of this device, measured: the best of square products of several sizes, in FLOP/s; 0
 * where memory is short. Takes about `seconds` and `flops` at most: below 5e9 FLOPs the products are small
 * ones, which show less than the peak. */
double device_matmul_peak(Device *d, Dtype type, double seconds, double flops);
/* What a copy within tensor memory reads and writes, measured, in bytes/s, of 256 MiB if there is time for
 * them, and `room` for them twice; 0 where memory is short. */
double device_copy_rate(Device *d, double seconds, size_t room);
/* What its cores could multiply and add at most, in FLOP/s, if every operand were in a register; of bf16, by
 * its dot products, or AMX's. 0 where there are none, and for kinds without kernels of their own. */
double device_register_limit(const Device *d, Dtype type, double seconds);

#endif
