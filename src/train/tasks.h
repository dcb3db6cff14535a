/* The tasks of a run, or of weft eval. They are opened once, and are the same on all ranks. */
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

/* ERR_CONFIG for tasks that are wrong whatever their files hold: formats, names. tasks_open calls it too. */
ErrorCode tasks_check(const EvaluationOptions *o, Error *err);
/* Fetches tasks that are URLs into data.cache_dir. `context` as in task_open. ERR_CONFIG for invalid names,
 * or if two tasks have the same name. Close it also after a failure. */
ErrorCode tasks_open(Tasks *t, const Config *c, const Tokenizer *tokenizer, int64_t context, Error *err);
void tasks_close(Tasks *t); /* a zeroed one is allowed */

/* Evaluates a task: a score for each choice or text, and the metrics computed from them. All ranks. */
ErrorCode tasks_measure(Engine *e, const Task *t, TaskScore *slots /* [t->slots] or NULL */, TaskFigures *out,
                        Error *err);

/* ERR_DATA unless all ranks have the same requests. All ranks. */
ErrorCode tasks_agree(const Tasks *t, Comm *comm, Error *err);
/* Describes the opened tasks, one line each, with the number of requests that were cut to the context. */
void tasks_describe(const Tasks *t, int64_t context, Text *out);
void tasks_warn(const Tasks *t); /* about invalid UTF-8 and markup; for one rank */

#endif
