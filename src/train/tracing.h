/* metrics.trace: gathers the times of actions in some steps, of all ranks, on rank 0.
 *
 * Ranks of one machine share a clock. Clocks of different machines may differ by any amount, so steps are
 * taken to begin on all ranks at once: the ranks have just agreed on the number of targets, so this is true
 * up to the latency of a message. */
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
    int64_t late, gathered; /* step whose times are still on the device; step gathered last; 0: none */
    double origin;          /* when the first traced step began */
    Timing timing;          /* rank 0's */
} Tracing;

void tracing_open(Tracing *t, const Config *c, const Layout *l, Comm *comm);
bool tracing_wants(const Tracing *t, int64_t step); /* StepOptions.timed */
/* Call after step `step` of the engine. Gathers its times if it is to be traced; for a device that runs
 * behind the host, those of the previous step, which are complete now. Collective. */
ErrorCode tracing_step(Tracing *t, Engine *e, int64_t step, Error *err);
/* Gathers what is left after the last step. Collective; waits for the device. */
ErrorCode tracing_rest(Tracing *t, Engine *e, Error *err);
/* Whether the last step to be traced has been gathered, but not reported. */
bool tracing_due(const Tracing *t);
/* On rank 0, if there is anything to report, writes RUN/trace.json, and for each step a line and a journal
 * entry with planned and measured times. What was gathered is freed. Training does not depend on it, so a
 * failure is only a warning, except for one of the journal. */
ErrorCode tracing_report(Tracing *t, const char *run_dir, Journal *journal, Error *err);
void tracing_close(Tracing *t);

#endif
