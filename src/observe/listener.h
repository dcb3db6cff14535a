/* A program of the user's that gets the records of a run as they are made: metrics.command.
 *
 * It is started once, by rank 0, before the first step: the words of the list are its argv as they stand, the
 * first is looked up in PATH. No shell takes part, nothing is split, quoted or expanded. It runs in the
 * directory of the run's process and in a process group of its own (a Ctrl-C meant for the run does not end
 * it before the last record), with WEFT_RUN_DIR, the absolute run directory, in its environment, with signals
 * as any program expects them, and with no open file of the run. Its stdin gets the lines of metrics.jsonl,
 * then the end of the file; what it prints goes to RUN/metrics-command.log.
 *
 * A run is neither stopped nor slowed by it. The pipe to it takes what fits and never waits: a record that
 * does not fit is left out and counted. A program that cannot be started or ends early is done without. At
 * the end of the run it has metrics.command_wait_s to finish; then it is sent SIGTERM, and a second later
 * SIGKILL. */
#ifndef WEFT_OBSERVE_LISTENER_H
#define WEFT_OBSERVE_LISTENER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/text.h"

#define LISTENER_LOG "metrics-command.log"

typedef struct Listener {
    int fd;      /* of the pipe; -1: none */
    pid_t child; /* 0: none */
    char *name;  /* as it may be printed */
    int64_t taken, left_out;
    bool reported; /* of the first record that was left out */
} Listener;

/* Each of these puts into `said` what there is to say, in one sentence, and at most once in a run: that it
 * could not be started; that it ended; that a record was left out; at the end, how many were, and that it had
 * to be ended. words[0] exists. `said` stays empty when there is nothing. */
void listener_open(Listener *l, const char *run_dir, size_t count, char *const *words, Text *message);
/* A record, a line with its newline. */
void listener_send(Listener *l, const char *line, size_t length, Text *message);
/* Waits at most `seconds`, and a little. A listener that is not open, or zeroed, is fine. */
void listener_close(Listener *l, double seconds, Text *message);

#endif
