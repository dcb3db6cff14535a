/* Log-likelihoods of a task's requests, by all ranks together. */
#ifndef WEFT_ENGINE_SCORE_H
#define WEFT_ENGINE_SCORE_H

#include "data/task.h"
#include "engine/engine.h"

/* Packs many requests into one forward pass: each is a segment of its own in a batch of a microbatch's size,
 * and batches go to the data-parallel ranks in turn. The contents of a batch depend on the task and the size
 * of a microbatch, not on the mesh. All ranks take part with the same task, which must be opened for at most
 * the engine's positions, and all get the result. */
ErrorCode score_task(Engine *e, const Task *t, TaskScore *scores /* [requests] */, Error *err);

#endif
