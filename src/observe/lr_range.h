/* Evaluates a learning-rate range test: a run whose learning rate rises from near zero until the loss rises
 * too (lr_schedule.kind: range). Smith, "Cyclical learning rates for training neural networks", 2015. */
#ifndef WEFT_OBSERVE_LR_RANGE_H
#define WEFT_OBSERVE_LR_RANGE_H

#include "observe/metrics.h"

#define LR_RANGE_MINIMUM 20 /* least number of logged steps for a result */

/* Learning rates, in rising order but for `steepest`, which lies between the first two. */
typedef struct LrRange {
    bool known;      /* false: too few steps, or the loss fell by less than a hundredth */
    double falls;    /* from here on the loss is below its start */
    double steepest; /* where the loss falls fastest */
    double lowest;   /* where it is lowest */
    double rises;    /* where the loss has risen again or was not finite; NaN: never */
} LrRange;

/* Evaluates the logged steps in the order of their learning rates; losses are smoothed over a twentieth of
 * them. */
LrRange lr_range_find(const MetricsTable *t);
/* "the loss falls from 1e-5 on, ...", a sentence without a full stop. It also says when there is no
 * result. */
void lr_range_describe(const LrRange *r, Text *out);

#endif
