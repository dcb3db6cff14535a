/* Ops of the loss. */
#ifndef WEFT_DEVICE_OPS_LOSS_H
#define WEFT_DEVICE_OPS_LOSS_H

#include "device/shapes.h"

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
typedef struct LossRecordsArgs {
    int64_t rows, vocab;
    const void *logits; /* [R, V] logits_type */
    Dtype logits_type;
    const int32_t *targets; /* [R] */
    VocabSplit splits;      /* records: unused */
    LossRecord *records;    /* [splits here, R] */
} LossRecordsArgs;

typedef struct CrossEntropyArgs {
    int64_t rows, vocab;
    const void *logits; /* [R, V] logits_type */
    Dtype logits_type;
    const int32_t *targets; /* [R], in the whole vocabulary */
    VocabSplit splits;
    const float *scale; /* [1]; NULL without dlogits */
    float cap, z;
    float *loss;   /* [R] */
    float *z_loss; /* [R], or NULL */
    void *dlogits; /* [R, V] grad_type or NULL */
    Dtype grad_type;
} CrossEntropyArgs;

/* into += losses, without rounding: the result depends on neither order nor grouping. */
typedef struct LossSumArgs {
    int64_t n;
    const float *losses; /* [n] */
    LossSum *into;
} LossSumArgs;

/* Each op: id, slot, struct of arguments, and the fields that an error message shows. */
/* clang-format off */
#define LOSS_OPS(X)                                                                        \
    X(LOSS_RECORDS, loss_records, LossRecordsArgs, rows, vocab, logits_type)               \
    X(CROSS_ENTROPY, cross_entropy, CrossEntropyArgs, rows, vocab, logits_type, grad_type) \
    X(LOSS_SUM, loss_sum, LossSumArgs, n)
/* clang-format on */
LOSS_OPS(OP_DECLARE)

#endif
