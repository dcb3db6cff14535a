/* Types of arguments of ops that headers outside of device/ use as well. A type that only callers of its ops
 * need is declared with them (ops/). A new op therefore changes neither this file nor device.h, and most of
 * the program is not rebuilt.
 *
 * Names: T tokens of one microbatch (sequences one after the other), h hidden size, H query heads, G
 * key/value heads (G divides H), D head dimension (even), I intermediate size, V vocabulary. Tensors are
 * row-major and contiguous unless a stride is named. "c" is the compute dtype (fp32 or bf16) of activations
 * and gathered weights; sums are taken in fp32 or wider. */
#ifndef WEFT_DEVICE_SHAPES_H
#define WEFT_DEVICE_SHAPES_H

#include "base/exact.h"
#include "device/device.h"

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

/* Splits: how a sum that ranks may share is cut, so that its bits do not depend on the number of ranks. Each
 * split is summed by itself; the sums of splits (partials) are added in the canonical tree of base/tree.h. A
 * rank that holds some of the splits computes their part of the tree (fp32, not yet rounded to c), and
 * sum_partials adds the results of the ranks in the same tree. Where one rank has all splits, the op does
 * both. Degrees at which each rank's number of splits is a power of two agree in every bit.
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

/* Which rows of an embedding are local: first .. first+count-1. */
typedef struct EmbedRows {
    int64_t first, count;
} EmbedRows;
#define ALL_ROWS ((EmbedRows){0, INT64_MAX})

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

/* A sum of losses; see loss_sum. All zero: nothing has been added. */
typedef struct LossSum {
    ExactSum sum;      /* of the finite ones */
    int64_t nonfinite; /* number of non-finite losses */
} LossSum;

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

/* Elements that fixed_add refused. All zero: none so far. */
typedef struct FixedRefusals {
    int64_t count;
    int64_t first; /* if count > 0: index of the first, within the first op that refused one */
} FixedRefusals;

/* Largest shapes of a run, for scratch. */
struct DeviceNeeds {
    Dtype compute;
    int64_t tokens, hidden, intermediate, vocab, logits_rows;
    int64_t qkv; /* of a token, if attention sees only some heads; 0: what attention sees */
    AttentionShape attention;
    int64_t keys; /* of attention; 0: one per token */
    int splits;   /* most splits of a product; 0: no product has any */
    int sources;  /* most sources of an expert's rows (ExpertRows); 0: no product has several */
};

#endif
