/* metrics.trace: the times of some steps' actions, of all ranks on rank 0.
 *
 * On one machine the ranks' clocks are one. On several there is no telling how far apart they are, and steps
 * are taken to begin on all ranks at once: they have just agreed on the number of targets, so that is true
 * but for the latency of a message. */
#ifndef WEFT_TRAIN_TRACING_H
#define WEFT_TRAIN_TRACING_H

#include "observe/journal.h"
#include "forecast/timing.h"
#include "config/config.h"
#include "engine/engine.h"
#include "plan/layout.h"

typedef struct Tracing {
    Comm *comm;
    int64_t first, last;    /* steps; last 0: none */
    int64_t late, gathered; /* whose times a device has not told yet, and whose were gathered last; 0: none */
    double origin;          /* when the first traced step began */
    Timing timing;          /* rank 0's */
} Tracing;

void tracing_open(Tracing *t, const Config *c, const Layout *l, Comm *comm);
bool tracing_wants(const Tracing *t, int64_t step); /* StepOptions.timed */
/* After step `step` of the engine: gathers its times if it is to be traced; of a device that runs behind the
 * host those of the step before, which are there now. Collective. */
ErrorCode tracing_step(Tracing *t, Engine *e, int64_t step, Error *err);
/* What is still to be gathered when the last step is done. Collective; waits for the device. */
ErrorCode tracing_rest(Tracing *t, Engine *e, Error *err);
/* Whether the last one to be traced has been gathered, and not been reported. */
bool tracing_due(const Tracing *t);
/* On rank 0, if there is anything to report: RUN/trace.json, a line and an entry in the journal for each
 * step, planned and measured. What was gathered is gone then. Training does not depend on it: a failure is a
 * warning, but for one of the journal. */
ErrorCode tracing_report(Tracing *t, const char *run_dir, Journal *journal, Error *err);
void tracing_close(Tracing *t);

#endif
