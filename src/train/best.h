/* The best checkpoint of a run, by a figure that the run measures: checkpoint.keep_best.
 *
 * A figure is called as TensorBoard calls it: "validation/loss", of a set "validation/NAME/loss", of a task
 * "task/NAME/acc".
 * Losses, perplexities and bits are better when lower, accuracies when higher; the earlier of equals stays. A
 * checkpoint is looked at if the figure was measured at its step, and is finite. */
#ifndef WEFT_TRAIN_BEST_H
#define WEFT_TRAIN_BEST_H

#include "data/dataset.h"
#include "observe/metrics.h"
#include "train/saved.h"
#include "train/tasks.h"

/* What was measured last. */
typedef struct Best {
    const char *figure; /* of the configuration; "": none is looked for */
    int64_t step;       /* -1: never */
    double value;
} Best;

/* What the configuration alone shows, which opens no data: ERR_CONFIG where nothing of such a figure's kind
 * is measured. best_open sees the rest. */
ErrorCode best_check(const Config *c, Error *err);
/* ERR_CONFIG where nothing of this name will be measured, naming what will. The text is kept, not copied. */
ErrorCode best_open(Best *b, const char *figure, const Dataset *d, const Tasks *t, Error *err);
/* Says where the figure will not be there for checkpoints. */
void best_remark(const Best *b, const Config *c);
/* Each record that is made; they need not be what is looked for. */
void best_validation(Best *b, const ValidationMetrics *v);
void best_task(Best *b, const TaskMetrics *m);
/* The checkpoint of this step is about to be made: true when it is better than the one in `best`, which then
 * is this one. */
bool best_take(const Best *b, int64_t step, BestCheckpoint *best);

#endif
