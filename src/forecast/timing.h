/* Measured steps, compared with what the simulator predicts from their costs.
 *
 * A rank is either busy or waits for others. The time from the end of one cell to the end of the next, minus
 * the waiting, belongs to the later cell. So loading, posting messages and progressing communication count
 * with the passes that they serve, and so does waiting for tp and cp collectives inside a pass. The spans of
 * a measured timeline are therefore busy time, and the gaps between them are waiting. Mean spans are the
 * costs with which simulate() should arrive at the measured step, except for waiting that the schedule does
 * not explain: noise, and communication that computation did not hide.
 *
 * Ranks are those of the mesh, with the pipeline outermost: rank = pipeline rank * pipelines + pipeline. A
 * `pipeline` is the set of ranks that work on the same microbatches; a single pipeline rank is a pipeline
 * too. */
#ifndef WEFT_FORECAST_TIMING_H
#define WEFT_FORECAST_TIMING_H

#include "forecast/draw.h"
#include "program/program.h"

/* Plain data, since ranks send it to each other. */
typedef struct TimedAction {
    Action action;
    int stage;         /* of its unit; -1 where there is none */
    double start, end; /* seconds since the step began, on the first rank to begin it */
    double waited;     /* seconds of this spent waiting for other ranks; a pass waits before it computes */
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
    int ranks, pipeline, stages; /* pipeline: ranks of one pipeline; divides ranks */
    int count, capacity;
    TimedStep *steps;
} Timing;

void timing_start(Timing *t, int ranks, int pipeline, int stages);
/* Adds a step without actions. The pointer is valid until the next step is added. */
TimedStep *timing_add(Timing *t, int64_t step, double began);
/* Takes over `actions`, which must be in order of time. */
void timing_set(TimedStep *s, int rank, TimedAction *actions, int count);
void timing_free(Timing *t);
static inline int timing_pipelines(const Timing *t) { return t->ranks / t->pipeline; }

/* Makes the timeline of a step of one pipeline, in milliseconds. The time after the last cell, before and
 * after the ranks agree on the norm, counts as optimizer. */
void timing_measured(const Timing *t, int step, int pipeline, Timeline *out);

/* What the steps should have taken: each pipeline's order of cells, simulated with the mean costs of its
 * stages and the median latency of a message, followed by the end of the step. */
typedef struct Prediction {
    int pipelines;
    Timeline *planned; /* [pipelines], in milliseconds */
    double latency;    /* seconds from a pass's end to the start of one that waits for its message: median */
    double seconds;    /* of a step */
    double bubble;     /* idle share of the step on the rank with the most */
    StageCost *costs;  /* [pipelines, stages] seconds; where dgrad and wgrad ran together, `input` has both */
} Prediction;
/* ERR_DATA where the actions are not steps of a pipeline. Call prediction_free in either case. */
ErrorCode timing_predict(Prediction *p, const Timing *t, Error *err);
void prediction_free(Prediction *p);

/* The same figures of a measured step, over all pipelines. */
typedef struct StepFigures {
    double seconds, bubble;
} StepFigures;
StepFigures timing_figures(const Timing *t, int step);

/* "predicted 3.210 s, measured 3.300 s (+2.8 %), bubble predicted 11.1 %, measured 12.0 %" */
void timing_sentence(const Prediction *p, const StepFigures *measured, Text *out);

#endif
