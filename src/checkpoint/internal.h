/* Shared between the files of checkpoint/. */
#ifndef WEFT_CHECKPOINT_INTERNAL_H
#define WEFT_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"

ErrorCode checkpoint_remove(const FileOps *ops, const char *dir, int64_t step, Error *err);
/* Parses "step-00000100"; no other spelling of the step is accepted. */
bool checkpoint_step(const char *name, int64_t *step);

#endif
