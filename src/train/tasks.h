/* The tasks of a run, or of weft eval: opened once, and the same on all ranks. */
#ifndef WEFT_TRAIN_TASKS_H
#define WEFT_TRAIN_TASKS_H

#include "comm/comm.h"
#include "config/config.h"
#include "data/task.h"
#include "engine/engine.h"

typedef struct Tasks {
    size_t count;
    Task **items; /* [count] */
} Tasks;

/* `context` as in task_open. ERR_CONFIG for names that are no names, or that two tasks have. Close it also
 * after a failure. */
ErrorCode tasks_open(Tasks *t, const EvaluationOptions *o, const Tokenizer *tokenizer, int64_t context,
                     Error *err);
void tasks_close(Tasks *t); /* a zeroed one is fine */

/* Asks the model: what it makes of each choice or text, and what that comes to. All ranks. */
ErrorCode tasks_measure(Engine *e, const Task *t, TaskScore *slots /* [t->slots] or NULL */, TaskFigures *out,
                        Error *err);

/* ERR_DATA unless all ranks ask the same. All ranks. */
ErrorCode tasks_agree(const Tasks *t, Comm *comm, Error *err);
/* What was opened, a line a task; what does not fit the context is said. */
void tasks_describe(const Tasks *t, int64_t context, Text *out);
void tasks_warn(const Tasks *t); /* of files that are not as they should be; for one rank */

#endif
