/* Where a run keeps its checkpoints, and which directory a user means who names a model, a checkpoint or a
 * run. */
#ifndef WEFT_CHECKPOINT_FIND_H
#define WEFT_CHECKPOINT_FIND_H

#include "checkpoint/modelfiles.h"

char *checkpoint_directory(const char *run_dir); /* RUN/checkpoints; the caller frees */
/* The same, refused where it is a link or a file. The caller frees *dir. */
ErrorCode checkpoint_own_directory(const char *run_dir, char **dir, Error *err);
/* The model directory behind `where`: itself, a checkpoint's, or that of the newest checkpoint of a run. The
 * caller frees *dir. ERR_NOINPUT: it is none of these; ERR_DATA: it is an adapter, which is no model. */
ErrorCode checkpoint_find_model(const char *where, char **dir, Error *err);
/* The same, or an adapter (checkpoint/adapter.h). */
ErrorCode checkpoint_find_weights(const char *where, char **dir, Error *err);
/* Warns where a checkpoint holds biases of experts that its model files have no place for: who takes the
 * model alone chooses experts without them. */
void checkpoint_warn_balance(const char *dir);
/* Whether the optimizer's file of one does. */
bool checkpoint_keeps_balance(const ModelFiles *optimizer);

#endif
