/* Keeping a run going: the training command as a child process, started again when it dies.
 *
 * A child that is killed by a signal, or fails in a way that may pass (an internal error, memory, the disk, a
 * directory that is still locked, non-finite steps, replicas that differ), is started again after a pause:
 * backoff_s, then twice as long each time, 60 s at most, and from the beginning again when it ran for ten
 * minutes. One that says that its command line, configuration or inputs are wrong, or that something is not
 * available, would say so again: its status is passed on, as are success and ERR_STOPPED.
 *
 * The signals to stop (base/signals.h) go to the child, each as often as it comes, and end the supervision:
 * whatever becomes of the child then, it is not started again. The child has a process group of its own, so
 * that a Ctrl-C reaches it once; when the supervisor dies the child gets SIGTERM, and saves. */
#ifndef WEFT_TRAIN_SUPERVISE_H
#define WEFT_TRAIN_SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Supervision {
    char *const
        *words; /* of the command line, the program's name first, ended by NULL; the program is this one */
    int64_t restarts; /* at most */
    double backoff_s;
} Supervision;

/* Returns the child's exit status as a code, 128 + N if signal N killed it; err->reported where the child has
 * said already what there is to say. Each restart is one line of the log. */
ErrorCode supervise(const Supervision *s, Error *err);

/* Whether a run that ended with this status may do better when it is started again. 128 + N is that of a
 * launcher whose process signal N killed. What a user must change does not pass by waiting. A non-finite loss
 * or unlike replicas may: the run goes on from a checkpoint before it. */
bool supervise_may_pass(int code);

/* What the supervisor tells the child, by the environment: WEFT_ATTEMPT, how often the run was restarted
 * before (0 without a supervisor), and WEFT_RESTART_CAUSE, what became of the attempt before ("" for the
 * first). */
int supervise_attempt(void);
const char *supervise_cause(void);

#endif
