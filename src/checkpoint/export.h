/* Exports weights of checkpoints as a separate model directory: in another float type, or averaged over
 * several checkpoints (stochastic weight averaging: Izmailov and others, "Averaging Weights Leads to Wider
 * Optima and Better Generalization", 2018). If a checkpoint's model file is rounded, the export uses the
 * exact weights, which are stored with the moments. */
#ifndef WEFT_CHECKPOINT_EXPORT_H
#define WEFT_CHECKPOINT_EXPORT_H

#include "checkpoint/adapter.h"
#include "checkpoint/safetensors.h"

/* Makes `dir`, which must not exist, from model directories [count] of one shape. Configuration and tokenizer
 * come from the first. average: uses the moving averages that checkpoints of runs with optimizer.ema hold,
 * instead of their weights. stored: SAFE_F32 or SAFE_BF16. Means are computed in double precision, rounded to
 * fp32, then to `stored`. Leaves nothing behind on failure. *bytes: of the weights. */
ErrorCode export_model(const char *const *sources, size_t count, bool average, SafeType stored,
                       const char *dir, uint64_t *bytes, Error *err);
/* The same of an adapter merged into its base: W + s B A, summed in double precision and rounded to fp32,
 * then to `stored`. Tokenizer and chat template are the adapter's if it has them. */
ErrorCode export_merged(const AdapterDir *adapter, SafeType stored, const char *dir, uint64_t *bytes,
                        Error *err);

#endif
