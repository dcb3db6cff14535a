/* Loss on held-out data. */
#ifndef WEFT_ENGINE_EVALUATE_H
#define WEFT_ENGINE_EVALUATE_H

#include "data/dataset.h"
#include "engine/engine.h"

typedef struct Evaluation {
    double loss;    /* nats a token: sum over all valid targets / their number; NaN when one is not finite */
    int64_t tokens; /* valid targets */
    int64_t nonfinite;    /* of these, whose loss is not finite: no figure leaves them out */
    int64_t bytes;        /* of text behind the targets; control tokens have none */
    double bits_per_byte; /* loss in bits / bytes; does not depend on the tokenizer. NaN without bytes */
} Evaluation;

/* Of each validation set its first `samples` samples, all when samples is 0 or more than there are; at least
 * one must exist. These and no others, however many ranks share them. *out: of all sets together; sets: of
 * each (dataset_validation_set), or NULL. All ranks take part, and all get the result. */
ErrorCode evaluate(Engine *e, const Dataset *d, const Tokenizer *t, int64_t samples, Evaluation *out,
                   Evaluation *sets /* [dataset_validation_sets] */, Error *err);

#endif
