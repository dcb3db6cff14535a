/* Ensures that one process at a time trains in a run directory: an exclusive lock on RUN/lock, which the
 * system releases when the process ends in any way. Also the file RUN/stop, by which `weft stop` asks a run
 * to save and end. */
#ifndef WEFT_TRAIN_LOCK_H
#define WEFT_TRAIN_LOCK_H

#include <stdbool.h>

#include "base/error.h"

typedef struct RunLock {
    int fd;                   /* 0 when not held */
    bool made_dir, made_file; /* created by lock_take */
    char *stop;               /* path of the stop file */
} RunLock;

/* Creates the directory and locks it. ERR_CANTCREATE names the process that holds the lock. Then removes what
 * an earlier run has left: its stop file, and temporary files in the run directory and among the
 * checkpoints. */
ErrorCode lock_take(RunLock *l, const char *run_dir, Error *err);
/* Checks that the directory of this name is still the one that was locked: not moved away, removed or
 * replaced. */
ErrorCode lock_check(const RunLock *l, const char *run_dir, Error *err);
/* On another rank: whether this directory is the one that process `holder` has locked. Retries for some
 * seconds, because other machines may see late what one has just written. */
bool lock_sees(const char *run_dir, long holder);
void lock_release(RunLock *l);
/* The same after a failed start: also removes what lock_take created, unless something else was added to
 * it. */
void lock_abandon(RunLock *l, const char *run_dir);
bool lock_stop_requested(const RunLock *l);

/* Process id of the run in this directory; 0 if none is running. */
ErrorCode lock_holder(const char *run_dir, long *pid, Error *err);
/* The same for repeated polling: reads the process id in the file without touching the lock, because a run
 * that starts at that moment would take it for another run's. 0: that process has ended, or is not on this
 * machine. */
long lock_last_holder(const char *run_dir);
ErrorCode lock_request_stop(const char *run_dir, Error *err);

#endif
