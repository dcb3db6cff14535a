/* Finds the stage split of pipeline.split: auto that fits pipeline.memory_gib.
 *
 * A search over estimated bytes (plan/split.h) proposes splits, from the fastest to the smallest. The memory
 * plans of all pipeline ranks then decide which of them fits. So the chosen split fits by the figures of
 * `weft plan`, and a limit that an error message suggests works. All ranks must find the same split, and so
 * must `weft plan`: the number of threads is therefore that of the rank with the most, and train.compute is
 * the value that all ranks agreed on. */
#ifndef WEFT_PLAN_FIT_H
#define WEFT_PLAN_FIT_H

#include "plan/split.h"
#include "plan/layout.h"
#include "plan/memory.h"

/* The layout must be complete except for its stages and their costs. `units`: from layout_unit_costs. On
 * success the caller frees `out` with split_free. */
ErrorCode fit_split(Split *out, const Layout *l, const Config *c, const StageCost *units, Error *err);
/* pipeline.memory_gib in bytes; 0: no limit. */
double fit_limit(const Config *c);
/* Bytes that the fullest rank of a complete layout takes (memory_plan_total), from the memory plan of every
 * pipeline rank. */
ErrorCode fit_measure(const Config *c, const Layout *l, double *bytes, Error *err);

#endif
