/* Goodput: time in steps that count / time since the run was first started, over restarts.
 *
 * A step counts if it made an update and was not lost: one that a restart makes again counts once. Everything
 * else is lost time: start, validation, saving, the pause before a restart, the steps behind the last
 * checkpoint. The records of a run say all that is needed to continue the figure, since a run that resumes
 * drops the records of lost steps. */
#ifndef WEFT_OBSERVE_GOODPUT_H
#define WEFT_OBSERVE_GOODPUT_H

#include "observe/metrics.h"

typedef struct Goodput {
    double began;   /* the first start of the run: seconds since 1970 */
    double counted; /* seconds in steps that count */
} Goodput;

/* A run that starts now. */
void goodput_begin(Goodput *g, double wall);
/* A run that goes on after step `step`, from its records, also those of steps that are lost. Steps after the
 * last record of the others are taken to be as long as its own. */
void goodput_resume(Goodput *g, const MetricsTable *records, int64_t step);
void goodput_step(Goodput *g, double seconds, bool skipped);
/* Fills both figures of a record whose `wall` is set. */
void goodput_fill(const Goodput *g, StepMetrics *m);

#endif
