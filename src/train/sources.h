/* Losses, tokens and epochs per data source, for runs with several (config_reported_sources).
 *
 * Each rank adds up what it counts, step by step. The sums are exact, so the figures have the same bits on
 * every mesh. They are combined over ranks when they are taken: at logged steps and before a checkpoint. So a
 * resumed run begins with empty sums, as the uninterrupted run did at that point. */
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
    size_t count; /* 0: losses are not split by source */
    const Dataset *data;
    bool counts;      /* this rank counts the rows of its batches */
    int32_t *rows;    /* [microbatches, sequences] index of each row's source, in the current step */
    SourceSums *sums; /* of this rank, since they were last taken */
} Sources;

void sources_open(Sources *s, const RankPlan *p, const Dataset *d, const Layout *l);
void sources_close(Sources *s); /* a zeroed one is allowed */
/* StepOptions.sources of a step; NULL if losses are not split by source. */
const int32_t *sources_rows(Sources *s, const ReadAheadStep *step, int64_t sequences);
/* Adds the source losses of the engine's last step. */
void sources_add(Sources *s, const ReadAheadStep *step, int64_t sequences, const Engine *e);
/* Combines the sums of all ranks: out[count], with the epochs of the first `samples` samples. Then begins
 * again with empty sums. All ranks. */
ErrorCode sources_take(Sources *s, Comm *comm, int64_t step, int64_t samples, SourceMetrics *out, Error *err);

#endif
