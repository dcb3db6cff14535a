/* What a learning-rate range test has shown: a run whose learning rate rises from next to nothing until the
 * loss does (schedule.kind: range). Smith, "Cyclical learning rates for training neural networks", 2015. */
#ifndef WEFT_OBSERVE_LR_RANGE_H
#define WEFT_OBSERVE_LR_RANGE_H

#include "observe/metrics.h"

#define LR_RANGE_MINIMUM 20 /* logged steps, below which nothing is said */

/* Learning rates, in rising order but for `steepest`, which lies between the first two. */
typedef struct LrRange {
    bool known;      /* false: too few steps, or the loss fell by less than a hundredth */
    double falls;    /* from here on the loss is lower than at the start */
    double steepest; /* where it falls fastest */
    double lowest;   /* where it is lowest */
    double rises;    /* where it has risen again, or was not finite; NaN: the test ended before */
} LrRange;

/* Of the logged steps, in the order of their learning rates; losses are smoothed over a twentieth of them. */
LrRange lr_range_find(const MetricsTable *t);
/* "the loss falls from 1e-5 on, ...", a sentence without a full stop; says so where nothing is known. */
void lr_range_describe(const LrRange *r, Text *out);

#endif
