/* Restarts a run in a child process, as long as the cause of its end may be temporary.
 *
 *     start --> the child trains --> it ends --+-- done, a user's mistake, or asked to stop --> the end
 *       ^                                      |
 *       +--- pause: 1, 2, 4 ... 60 s <---------+-- a signal, or a failure that may pass, restarts left
 *       +--- at once, with other ranks <-------+-- asked to stop for another number of ranks (resize.h)
 *
 * Invariants
 * S1. The stop signals and SIGCHLD are blocked from before the first fork until supervise returns, and taken
 *     one at a time by sigtimedwait: no handler runs, and no signal is lost between a check and a wait. The
 *     child gets the earlier signal mask back.
 * S2. At any time there is at most one child, and none when supervise returns.
 *
 * Elsewhere called: elastic restarts (torchrun). */
#include "train/supervise.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "comm/launch.h"
#include "train/resize.h"

#define ENV_RESIZED "WEFT_RESIZED"
#define LONGEST_PAUSE 60.0
#define LONG_RUN 600.0 /* seconds: a failure after that is a new one, not the same again */

typedef struct Watch {
    const Supervision *terms;
    char **words; /* of the next child; NULL: those of the terms */
    sigset_t awaited, before;
    pid_t child;
    bool stopping;   /* a signal was forwarded: no more restarts */
    int attempt;     /* starts after the first */
    int failures;    /* of these, those that count as restarts */
    int in_a_row;    /* restarts after short runs, in a row */
    bool resized;    /* the last end was for another number of ranks */
    char cause[200]; /* of the last end */
} Watch;

/* The environment tells a process that it was restarted: ranks inherit it through the launcher. */
int supervise_attempt(void) {
    const char *text = getenv(LAUNCHED_ATTEMPT);
    long value = text ? strtol(text, NULL, 10) : 0;
    return value > 0 && value < INT32_MAX ? (int)value : 0;
}

const char *supervise_cause(void) {
    const char *text = getenv(LAUNCHED_CAUSE);
    return text ? text : "";
}

bool supervise_resized(void) {
    const char *text = getenv(ENV_RESIZED);
    return text && *text;
}

ErrorCode supervise_announce(int attempt, const char *cause, bool resized, Error *err) {
    char number[16];
    snprintf(number, sizeof number, "%d", attempt);
    if (setenv(LAUNCHED_ATTEMPT, number, 1) != 0 || setenv(LAUNCHED_CAUSE, cause, 1) != 0 ||
        setenv(ENV_RESIZED, resized ? "1" : "", 1) != 0)
        return error_errno(err, ERR_MEMORY, "cannot set the environment of the training process");
    return OK;
}

/* ---- the child ---- */

/* Runs in the child. The environment is already set. The child gets its own process group, so that a Ctrl-C
 * in the terminal reaches the supervisor alone, which forwards it once. */
static _Noreturn void become(const Watch *w, pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, &w->before, NULL);
    /* Runs the same program even if its file was replaced in the meantime: a run does not change its
     * build. */
    if (getppid() == parent) execv("/proc/self/exe", w->words ? w->words : w->terms->words);
    _exit(ERR_INTERNAL);
}

static ErrorCode start(Watch *w, Error *err) {
    pid_t parent = getpid();
    TRY(supervise_announce(w->attempt, w->cause, w->resized, err));
    w->child = fork();
    if (w->child < 0) return error_errno(err, ERR_UNAVAILABLE, "cannot start the training process");
    if (w->child == 0) become(w, parent);
    setpgid(w->child, w->child); /* in parent and child, since either may run first */
    return OK;
}

/* Returns whether the child has ended, with its status. */
static bool ended(Watch *w, int *status) {
    pid_t pid;
    do { pid = waitpid(w->child, status, WNOHANG); } while (pid < 0 && errno == EINTR);
    if (pid != w->child) return false;
    w->child = 0;
    return true;
}

/* Waits for one of the signals, up to `seconds` (negative: forever). Returns 0 if none came. */
static int next_signal(const Watch *w, double seconds) {
    struct timespec limit = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(fmod(seconds, 1) * 1e9)};
    int number;
    do {
        number = seconds < 0 ? sigwaitinfo(&w->awaited, NULL) : sigtimedwait(&w->awaited, NULL, &limit);
    } while (number < 0 && errno == EINTR && seconds < 0);
    return number < 0 ? 0 : number;
}

/* SIGCHLDs merge, so the child is checked after each signal, whichever it was. */
static int wait_for_end(Watch *w) {
    int status = 0;
    while (!ended(w, &status)) {
        int number = next_signal(w, -1);
        if (number == 0 || number == SIGCHLD) continue;
        w->stopping = true;
        kill(w->child, number);
    }
    return status;
}

/* ---- how to react to its end ---- */

/* A signal is encoded as a shell does. */
static int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/* Training never returns ERR_DIFFERENT (1), so it is the launcher's own status. */
static const char *name_of(int code) {
    return code == ERR_DIFFERENT ? "the launcher failed" : error_name((ErrorCode)code);
}

static void describe(Watch *w, int status) {
    if (WIFSIGNALED(status))
        snprintf(w->cause, sizeof w->cause, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(w->cause, sizeof w->cause, "exit status %d (%s)", WEXITSTATUS(status),
                 name_of(WEXITSTATUS(status)));
}

bool supervise_may_pass(int code) {
    switch (code) {
    case OK:
    case ERR_USAGE:
    case ERR_CONFIG:
    case ERR_DATA:
    case ERR_NOINPUT:
    case ERR_UNAVAILABLE:
    case ERR_STOPPED: return false;
    default: return true;
    }
}

/* Doubles with each restart in a row: a full disk or a rebooting machine needs time, a single crash does
 * not. */
static double pause_before(const Watch *w) {
    return fmin(LONGEST_PAUSE, ldexp(w->terms->backoff_s, w->in_a_row - 1));
}

/* Returns false if a stop signal came in the meantime. */
static bool pause_for(const Watch *w, double seconds) {
    for (double until = clock_seconds() + seconds; seconds > 0; seconds = until - clock_seconds()) {
        int number = next_signal(w, seconds);
        if (number != 0 && number != SIGCHLD) return false;
    }
    return true;
}

static ErrorCode pass_on(Watch *w, int status, Error *err) {
    ErrorCode code = (ErrorCode)code_of(status);
    if (code != OK) error_set(err, code, "training ended: %s", w->cause);
    err->reported = WIFEXITED(status); /* the child has printed why */
    if (code == OK && w->failures > 0)
        log_info("done, after %d restart%s", w->failures, w->failures == 1 ? "" : "s");
    return code;
}

/* ---- another number of ranks ---- */

/* Takes a request for another number of ranks. Later children have the new command line too. The cause of a
 * failure stays: the child died before it could save, and the request is granted with the restart. */
static bool take_resize(Watch *w, int code) {
    Resize r;
    char said[150];
    if (code != ERR_STOPPED && !supervise_may_pass(code)) return false;
    if (!resize_take(&r, w->terms->run_dir)) return false;
    char **words = resize_words(w->words ? w->words : w->terms->words, &r);
    resize_free_words(w->words);
    w->words = words;
    resize_describe(&r, said, sizeof said);
    resize_free(&r);
    if (code == ERR_STOPPED) snprintf(w->cause, sizeof w->cause, "%s", said);
    log_info("the run goes on with another number of ranks: %s", said);
    return code == ERR_STOPPED;
}

/* Waits before the restart that follows a failure. */
static ErrorCode restart_after(Watch *w, int code, double lasted, Error *err) {
    if (w->failures >= w->terms->restarts)
        return error_set(err, (ErrorCode)code,
                         "training ended: %s; %d restarts were allowed, and all are used", w->cause,
                         w->failures);
    w->failures++;
    w->in_a_row = lasted > LONG_RUN ? 1 : w->in_a_row + 1;
    double seconds = pause_before(w);
    log_warn("training ended: %s; restart %d of %lld in %g s", w->cause, w->failures,
             (long long)w->terms->restarts, seconds);
    return pause_for(w, seconds)
               ? OK
               : error_set(err, ERR_STOPPED,
                           "stopped before a restart: the same command goes on from the last checkpoint");
}

/* Each iteration is one life of the child. */
static ErrorCode watch_child(Watch *w, Error *err) {
    for (;; w->attempt++) {
        double started = clock_seconds();
        TRY(start(w, err));
        int status = wait_for_end(w), code = code_of(status);
        describe(w, status);
        w->resized = !w->stopping && take_resize(w, code);
        if (w->resized) continue;
        if (w->stopping || !supervise_may_pass(code)) return pass_on(w, status, err);
        TRY(restart_after(w, code, clock_seconds() - started, err));
    }
}

ErrorCode supervise(const Supervision *s, Error *err) {
    Watch w = {.terms = s};
    signals_to_stop(&w.awaited);
    sigaddset(&w.awaited, SIGCHLD);
    signal(SIGCHLD, SIG_DFL); /* if it were ignored, there would be no status to read */
    signal(SIGPIPE, SIG_IGN); /* supervision outlives the readers of its messages */
    sigprocmask(SIG_BLOCK, &w.awaited, &w.before);
    ErrorCode code = watch_child(&w, err);
    sigprocmask(SIG_SETMASK, &w.before, NULL);
    resize_free_words(w.words);
    return code;
}
