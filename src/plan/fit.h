/* The stage split of pipeline.split: auto within pipeline.memory_gib.
 *
 * A search that estimates bytes (plan/split.h) names splits, from the fastest to the smallest; which of them
 * fits is read off the memory plans of all pipeline ranks. So what is taken fits by the figures of `weft
 * plan`, and the limit that an error names does. All ranks, and who plans for them, must find the same split:
 * threads are those of the rank that has most, and train.compute is what all ranks agreed on. */
#ifndef WEFT_PLAN_FIT_H
#define WEFT_PLAN_FIT_H

#include "plan/split.h"
#include "plan/layout.h"
#include "plan/memory.h"

/* Of the layout there must be all but its stages and their costs; `units` are the costs of layout_unit_costs.
 */
ErrorCode fit_split(Split *out, const Layout *l, const Config *c, const StageCost *units, Error *err);
/* pipeline.memory_gib in bytes; 0: no limit. */
double fit_limit(const Config *c);
/* Bytes that the fullest rank of a whole layout takes (memory_plan_total), by the plan of every pipeline
 * place. */
ErrorCode fit_measure(const Config *c, const Layout *l, double *bytes, Error *err);

#endif
