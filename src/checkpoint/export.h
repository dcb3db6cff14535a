/* Weights of checkpoints as a model directory of their own: in another float type, or the average of several
 * (stochastic weight averaging: Izmailov and others, "Averaging Weights Leads to Wider Optima and Better
 * Generalization", 2018). A checkpoint whose model file is rounded gives its exact weights, which lie beside
 * the moments. */
#ifndef WEFT_CHECKPOINT_EXPORT_H
#define WEFT_CHECKPOINT_EXPORT_H

#include "checkpoint/adapter.h"
#include "checkpoint/safetensors.h"

/* Makes `dir`, which must not be there, from model directories [count] of one shape, the first of which gives
 * configuration and tokenizer. average: the moving averages that checkpoints of runs with optimizer.ema hold,
 * in place of their weights. stored: SAFE_F32 or SAFE_BF16. Means are taken in double precision, rounded to
 * fp32, then to `stored`. When it fails, nothing is left. *bytes: of the weights. */
ErrorCode export_model(const char *const *sources, size_t count, bool average, SafeType stored,
                       const char *dir, uint64_t *bytes, Error *err);
/* The same of an adapter and its base: W + s B A, summed in double precision and rounded to fp32, then to
 * `stored`. Tokenizer and chat template are the adapter's where it has them. */
ErrorCode export_merged(const AdapterDir *adapter, SafeType stored, const char *dir, uint64_t *bytes,
                        Error *err);

#endif
