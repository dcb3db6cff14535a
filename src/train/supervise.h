/* Supervises a run: starts the training command as a child process, and restarts it when it dies.
 *
 * A child that is killed by a signal, or fails for a reason that may be temporary (an internal error, memory,
 * the disk, a directory that is still locked, non-finite steps, replicas that differ), is restarted after a
 * pause: backoff_s, then twice as long each time up to 60 s, and backoff_s again after a child that ran for
 * ten minutes. If the child reports that its command line, configuration or inputs are wrong, or that
 * something is not available, a restart would fail in the same way, so its status is passed on, as are
 * success and ERR_STOPPED. A child that saved and ended for another number of ranks (resize.h) is restarted
 * at once, with the new command line; this does not count as a restart after a failure.
 *
 * The stop signals (base/signals.h) are forwarded to the child, each as often as it comes, and end the
 * supervision: however the child ends then, it is not restarted. The child has a process group of its own, so
 * that a Ctrl-C reaches it once. If the supervisor dies the child gets SIGTERM, and saves. */
#ifndef WEFT_TRAIN_SUPERVISE_H
#define WEFT_TRAIN_SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Supervision {
    /* command line, with the program's name first and NULL last; the program is this one */
    char *const *words;
    const char *run_dir; /* where requests for another number of ranks are found (resize.h) */
    int64_t restarts;    /* at most, after failures */
    double backoff_s;
} Supervision;

/* Returns the child's exit status as a code, 128 + N if signal N killed it. err->reported is set if the child
 * has printed why. Each restart is logged in one line. */
ErrorCode supervise(const Supervision *s, Error *err);

/* Whether a run that ended with this status may succeed when it is restarted. 128 + N is the status of a
 * launcher whose process signal N killed. Errors that a user must fix do not go away. A non-finite loss or
 * replicas that differ may: the run resumes from an earlier checkpoint. */
bool supervise_may_pass(int code);

/* What is passed to the next attempt in the environment. WEFT_ATTEMPT: number of attempts before it (0 for
 * the first). WEFT_RESTART_CAUSE: how the previous one ended ("" for the first). WEFT_RESIZED: whether it
 * ended for another number of ranks, which is then the cause. */
int supervise_attempt(void);
const char *supervise_cause(void);
bool supervise_resized(void);
/* Sets them. */
ErrorCode supervise_announce(int attempt, const char *cause, bool resized, Error *err);

#endif
