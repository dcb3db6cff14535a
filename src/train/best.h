/* Tracks the best checkpoint of a run by a metric that the run measures: checkpoint.keep_best.
 *
 * A metric has the name that TensorBoard shows: "validation/loss", for one set "validation/NAME/loss", for a
 * task "task/NAME/acc". Losses, perplexities and bits are better when lower, accuracies when higher; of equal
 * ones the earlier stays. A checkpoint counts if the metric was measured at its step and is finite. */
#ifndef WEFT_TRAIN_BEST_H
#define WEFT_TRAIN_BEST_H

#include "data/dataset.h"
#include "observe/metrics.h"
#include "train/saved.h"
#include "train/tasks.h"

/* The last measurement. */
typedef struct Best {
    const char *figure; /* name of the metric, as configured; "": none */
    int64_t step;       /* -1: never */
    double value;
} Best;

/* Checks what the configuration alone shows, without opening data: ERR_CONFIG if the run measures no metric
 * of this kind. best_open checks the rest. */
ErrorCode best_check(const Config *c, Error *err);
/* ERR_CONFIG if no metric of this name will be measured; the message names those that will. Keeps the text,
 * without a copy. */
ErrorCode best_open(Best *b, const char *figure, const Dataset *d, const Tasks *t, Error *err);
/* Warns if the metric will not have been measured when checkpoints are saved. */
void best_remark(const Best *b, const Config *c);
/* Called with every record; ignores those of other metrics. */
void best_validation(Best *b, const ValidationMetrics *v);
void best_task(Best *b, const TaskMetrics *m);
/* Call before the checkpoint of this step is saved. Returns true if it is better than the one in `best`,
 * which it then replaces. */
bool best_take(const Best *b, int64_t step, BestCheckpoint *best);

#endif
