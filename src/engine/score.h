/* Log-likelihoods of a task's requests, by all ranks together. */
#ifndef WEFT_ENGINE_SCORE_H
#define WEFT_ENGINE_SCORE_H

#include "data/task.h"
#include "engine/engine.h"

/* Many requests go through the model at once, each a segment of its own in a batch as large as a microbatch;
 * data-parallel ranks take batches in turn. What is in a batch depends on the task and on the size of a
 * microbatch, not on the mesh. All ranks take part with the same task, opened for at most the engine's
 * positions, and all get the result. */
ErrorCode score_task(Engine *e, const Task *t, TaskScore *scores /* [requests] */, Error *err);

#endif
