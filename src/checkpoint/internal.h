/* Between the files of checkpoint/. */
#ifndef WEFT_CHECKPOINT_INTERNAL_H
#define WEFT_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"

ErrorCode checkpoint_remove(const FileOps *ops, const char *dir, int64_t step, Error *err);
/* Removes what interrupted saves and removals left. */
void checkpoint_clean(const FileOps *ops, const char *dir);

#endif
