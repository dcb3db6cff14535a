/* weft stop: asks a run to finish its step, save and end.
 *
 * The stop file reaches rank 0 on any machine of the run, even where no signal does; all ranks learn of it
 * with the record of the next step. */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "train/lock.h"
#include "train/resize.h"

static const Flag flags[] = {{"--wait", 'w', "SECONDS", "wait until it has ended, at most so long"},
                             {NULL, 0, NULL, NULL}};

/* The process that holds the lock is still running. The lock is checked before the clock, so that a wait of 0
 * s still notices a run that has ended. If the run is started again meanwhile, by another process, that one
 * is waited for as well: the request is about the directory. */
static ErrorCode wait_for(const char *run, double seconds, Error *err) {
    double until = clock_seconds() + seconds;
    for (long pid = 1; pid != 0;) {
        TRY(lock_holder(run, &pid, err));
        if (pid == 0) break;
        if (clock_seconds() > until)
            return error_set(err, ERR_IO, "%s: process %ld has not ended after %g s", run, pid, seconds);
        /* Often enough for a script that waits, rarely enough for a network file system. */
        usleep(50000);
    }
    return OK;
}

/* Without an active run it is an error, since the request would reach nobody: the next run removes a stop
 * file that it finds (lock_take). */
static ErrorCode run_stop(const Arguments *args, Error *err) {
    const char *dir = args->operands[0];
    double seconds = 0;
    long pid;
    TRY(arguments_double(args, "--wait", 0, 1e6, &seconds, err));
    TRY(lock_holder(dir, &pid, err));
    if (pid == 0) return error_set(err, ERR_NOINPUT, "%s: no run is going on in it", dir);
    resize_drop(dir); /* the run is to end, not to go on with other ranks */
    TRY(lock_request_stop(dir, err));
    terminal_printf("process %ld will save and end after its step\n", pid);
    return arguments_has(args, "--wait") ? wait_for(dir, seconds, err) : OK;
}

const Verb verb_stop = {
    .name = "stop",
    .summary = "ask a run to finish its step, save and end",
    .synopsis = "RUN",
    .details = "Writes a file that the run looks for after each step; it then saves and exits with status "
               "75. The same command that started it\n"
               "goes on from there.",
    .flags = flags,
    .min_operands = 1,
    .max_operands = 1,
    .run = run_stop,
};
