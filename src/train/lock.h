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

/* Makes the directory. ERR_CANTCREATE names the process that holds it. Then what an earlier run has left
 * goes: its stop file, and temporary files of its own in the run directory and among the checkpoints. */
ErrorCode lock_take(RunLock *l, const char *run_dir, Error *err);
/* The directory of this name is still the one that was locked: not moved away, removed or replaced. */
ErrorCode lock_check(const RunLock *l, const char *run_dir, Error *err);
/* Whether this directory is, where another rank runs, the one that process `holder` has locked. Looks for
 * some seconds: what one machine has just written others may see late. */
bool lock_sees(const char *run_dir, long holder);
void lock_release(RunLock *l);
/* The same, after a start that failed: what lock_take made goes again, where nothing else has come to it. */
void lock_abandon(RunLock *l, const char *run_dir);
bool lock_stop_requested(const RunLock *l);

/* Process id of the run in this directory, 0 when none is running. */
ErrorCode lock_holder(const char *run_dir, long *pid, Error *err);
/* The same for who only looks, again and again: by the number that the file holds, without touching the
 * lock, which a run that starts just now would take for another run's. 0: that process is no longer there, or
 * not on this machine. */
long lock_last_holder(const char *run_dir);
ErrorCode lock_request_stop(const char *run_dir, Error *err);

#endif
