/* Losses, tokens and epochs by source of the data, where a run has several (config_reported_sources).
 *
 * Each rank adds up what it counts, step by step: exact sums, so that the figures have the same bits on
 * every mesh. Ranks meet when the figures are taken, at logged steps and before a checkpoint; a run that goes
 * on from one so begins with nothing, as the run that went through did. */
#ifndef WEFT_TRAIN_SOURCES_H
#define WEFT_TRAIN_SOURCES_H

#include "comm/comm.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "observe/metrics.h"
#include "train/read_ahead.h"

typedef struct SourceSum {
    LossSum loss;
    int64_t targets, samples;
} SourceSum;

typedef struct SourceSums {
    int64_t count; /* of sources */
    SourceSum of[];
} SourceSums;

typedef struct Sources {
    size_t count; /* 0: losses are not told apart */
    const Dataset *data;
    bool counts;      /* this rank counts the rows of its batches */
    int32_t *rows;    /* [microbatches, sequences] of which source they are, in the step under way */
    SourceSums *sums; /* of this rank, since they were taken */
} Sources;

void sources_open(Sources *s, const RankPlan *p, const Dataset *d, const Layout *l);
void sources_close(Sources *s); /* a zeroed one is fine */
/* What the engine is told of a step; NULL where nothing is told apart. */
const int32_t *sources_rows(Sources *s, const ReadAheadStep *step, int64_t sequences);
/* Adds what the engine's step has found. */
void sources_add(Sources *s, const ReadAheadStep *step, int64_t sequences, const Engine *e);
/* Of all ranks together: out[count], with the epochs of the first `samples` samples. Begins anew. All ranks.
 */
ErrorCode sources_take(Sources *s, Comm *comm, int64_t step, int64_t samples, SourceMetrics *out, Error *err);

#endif
