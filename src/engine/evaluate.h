/* Loss on held-out data. */
#ifndef WEFT_ENGINE_EVALUATE_H
#define WEFT_ENGINE_EVALUATE_H

#include "data/dataset.h"
#include "engine/engine.h"

typedef struct Evaluation {
    double loss;    /* nats per token: sum over all valid targets / their number; NaN if one is not finite */
    int64_t tokens; /* valid targets */
    int64_t nonfinite;    /* targets whose loss is not finite: they are included in the other figures */
    int64_t bytes;        /* of text that the targets stand for; control tokens have none */
    double bits_per_byte; /* loss in bits / bytes; independent of the tokenizer. NaN without bytes */
} Evaluation;

/* Evaluates the first `samples` samples of each validation set, or all if samples is 0 or more than there
 * are; each set must have at least one. Each sample is evaluated exactly once, whatever the number of ranks.
 * *out: all sets together; sets: each one (dataset_validation_set), or NULL. All ranks take part, and all get
 * the result. */
ErrorCode evaluate(Engine *e, const Dataset *d, const Tokenizer *t, int64_t samples, Evaluation *out,
                   Evaluation *sets /* [dataset_validation_sets] */, Error *err);

#endif
