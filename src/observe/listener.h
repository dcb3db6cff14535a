/* Runs a user's program that receives the records of a run as they are made (metrics.command).
 *
 * Rank 0 starts it once, before the first step. The words of the list are its argv unchanged, and the first
 * is looked up in PATH. There is no shell: nothing is split, quoted or expanded. It runs in the working
 * directory of the run's process and in its own process group (so that a Ctrl-C for the run does not end it
 * before the last record). WEFT_RUN_DIR in its environment is the absolute run directory. Signals have their
 * defaults, and it inherits no open file of the run. Its stdin gets the lines of metrics.jsonl, then end of
 * file. Its output goes to RUN/metrics-command.log.
 *
 * It neither stops nor slows a run. Writes to its pipe never block: a record that does not fit is dropped and
 * counted. If it cannot be started or ends early, the run continues without it. At the end of the run it has
 * metrics.command_wait_s to finish; then it gets SIGTERM, and a second later SIGKILL. */
#ifndef WEFT_OBSERVE_LISTENER_H
#define WEFT_OBSERVE_LISTENER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/text.h"

#define LISTENER_LOG "metrics-command.log"

typedef struct Listener {
    int fd;      /* write end of the pipe; -1: none */
    pid_t child; /* 0: none */
    char *name;  /* as it may be printed */
    int64_t taken, left_out;
    bool reported; /* the first dropped record was reported */
} Listener;

/* Each function sets `message` to a sentence to report, or leaves it empty. Each of these is reported at most
 * once per run: it could not be started; it ended; a record was dropped; at the end, how many were dropped,
 * and that it had to be killed. words[0] exists. */
void listener_open(Listener *l, const char *run_dir, size_t count, char *const *words, Text *message);
/* A record, a line with its newline. */
void listener_send(Listener *l, const char *line, size_t length, Text *message);
/* Waits at most `seconds` plus the time to kill it. A listener that is zeroed or not open is fine. */
void listener_close(Listener *l, double seconds, Text *message);

#endif
