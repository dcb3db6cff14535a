/* One run, one process: an exclusive lock on RUN/lock, which the system drops when the process ends, however
 * it ends. And the file RUN/stop, by which `weft stop` asks a run to save and end. */
#ifndef WEFT_TRAIN_LOCK_H
#define WEFT_TRAIN_LOCK_H

#include <stdbool.h>

#include "base/error.h"

typedef struct RunLock {
    int fd;                   /* 0 when not held */
    bool made_dir, made_file; /* by lock_take */
    char *stop;               /* path of the stop file */
} RunLock;

/* Makes the directory. ERR_CANTCREATE names the process that holds it. Removes an old stop file. */
ErrorCode lock_take(RunLock *l, const char *run_dir, Error *err);
void lock_release(RunLock *l);
/* The same, after a start that failed: what lock_take made goes again, where nothing else has come to it. */
void lock_abandon(RunLock *l, const char *run_dir);
bool lock_stop_requested(const RunLock *l);

/* Process id of the run in this directory, 0 when none is running. */
ErrorCode lock_holder(const char *run_dir, long *pid, Error *err);
ErrorCode lock_request_stop(const char *run_dir, Error *err);

#endif
