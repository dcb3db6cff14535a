/* Steps as they ran, beside what the simulator makes of their costs.
 *
 * A rank is busy or it waits for others: its time from one cell's end to the next one's, less what it waited,
 * belongs to that next cell, so that loading, posting messages and moving communication on count with the
 * passes they serve; so does waiting for what crosses over tp and cp inside a pass. Hence the spans of a
 * measured timeline are what a rank was busy, what lies between them is waiting, and mean spans are the costs
 * with which simulate() must come to the measured step, but for waiting that a schedule does not explain:
 * noise, and communication that computing did not hide.
 *
 * Ranks are those of the mesh, pipeline outermost: rank = pipeline rank * pipelines + pipeline. A `pipeline`
 * is the ranks that work on the same microbatches; one pipeline rank is a pipeline too. */
#ifndef WEFT_FORECAST_TIMING_H
#define WEFT_FORECAST_TIMING_H

#include "forecast/draw.h"
#include "program/program.h"

/* Plain data: ranks send it to each other. */
typedef struct TimedAction {
    Action action;
    int stage;         /* of its unit; -1 where there is none */
    double start, end; /* seconds since the step began, on the first rank to begin it */
    double waited;     /* of these, for other ranks; a pass waits before it computes */
} TimedAction;

typedef struct TimedRank {
    int count;
    TimedAction *actions;
} TimedRank;

typedef struct TimedStep {
    int64_t step;
    double began; /* seconds since the first step of the record began */
    double seconds;
    TimedRank *ranks;
} TimedStep;

typedef struct Timing {
    int ranks, pipeline, stages; /* pipeline: ranks of one; a divisor of ranks */
    int count, capacity;
    TimedStep *steps;
} Timing;

void timing_start(Timing *t, int ranks, int pipeline, int stages);
/* A step more, its ranks without actions. */
TimedStep *timing_add(Timing *t, int64_t step, double began);
/* Takes the actions over, which must be in order of time. */
void timing_set(TimedStep *s, int rank, TimedAction *actions, int count);
void timing_free(Timing *t);
static inline int timing_pipelines(const Timing *t) { return t->ranks / t->pipeline; }

/* A step of one pipeline: its cells, and the end of the step (what comes after the last cell, before and
 * after the ranks agree on the norm) as optimizer. In milliseconds. */
void timing_measured(const Timing *t, int step, int pipeline, Timeline *out);

/* What the steps should have taken: each pipeline's order of cells, simulated with the mean costs of its own
 * stages and the typical latency of a message; then the end of the step. */
typedef struct Prediction {
    int pipelines;
    Timeline *planned; /* [pipelines], in milliseconds */
    double
        latency; /* seconds from the end of a pass to the begin of one that waits for its message; median */
    double seconds;   /* of a step */
    double bubble;    /* share of it that the idlest rank idles */
    StageCost *costs; /* [pipelines, stages] seconds; where only whole backwards ran, they are `input` */
} Prediction;
/* ERR_DATA where the actions are no steps of a pipeline. Free it in either case. */
ErrorCode timing_predict(Prediction *p, const Timing *t, Error *err);
void prediction_free(Prediction *p);

/* As the prediction has them, of a measured step over all pipelines. */
typedef struct StepFigures {
    double seconds, bubble;
} StepFigures;
StepFigures timing_figures(const Timing *t, int step);

/* "predicted 3.210 s, measured 3.300 s (+2.8 %), bubble predicted 11.1 %, measured 12.0 %" */
void timing_sentence(const Prediction *p, const StepFigures *measured, Text *out);

#endif
