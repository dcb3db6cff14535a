/* The program of metrics.command: started, fed and ended without ever waiting for it, except at its end.
 *
 *  L1. A line is one write(2) of at most PIPE_BUF bytes to a non-blocking pipe: it is written completely or
 *      not at all.
 *  L2. The child inherits only its stdin and its log: it keeps neither the run's lock nor a terminal, nor a
 *      launcher that waits for the end of the run's output.
 *  L3. The child is reaped exactly once, at the end, and once `child` is 0 its number is not used again.
 *      Until then the number is that of its process group, which may outlive it.
 *
 *     run                                    the program
 *     listener_open   --spawn-->             starts; stdin is the pipe, stdout and stderr the log
 *     listener_send   --a line per write-->  reads at its own pace; what does not fit is dropped and counted
 *     listener_close  --end of file-->       has `seconds` to finish
 *                     --SIGTERM-->           GRACE seconds more, its whole group
 *                     --SIGKILL-->           killed, and reaped
 *                     --SIGTERM, SIGKILL-->  the rest of its group, also if it ended by itself
 *
 * A write to a program that has ended gives EPIPE and no signal: the run ignores SIGPIPE before it opens
 * one. */
#include "observe/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

/* PIPE_BYTES is Linux's default maximum for any process. GLANCE is short compared to the seconds of a wait,
 * and long compared to the cost of a check. */
#define PIPE_BYTES (1 << 20) /* size of the pipe, if the system allows it: some thousand records */
#define GRACE 1.0            /* seconds between SIGTERM and SIGKILL */
#define GLANCE 20000000      /* nanoseconds between checks of a child that is to end */

/* ---- starting ---- */

/* All signals have their defaults and are unblocked, as in a new session; the child gets a process group of
 * its own. Otherwise it would inherit ignored (SIGPIPE) and blocked signals. */
static void set_attributes(posix_spawnattr_t *a) {
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(a, &all);
    posix_spawnattr_setsigmask(a, &none);
    posix_spawnattr_setpgroup(a, 0);
    posix_spawnattr_setflags(a, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
}

/* The environment plus one variable; the caller frees the array, not its strings. An existing variable of
 * that name is replaced: if there were two, programs could use either. */
static char **environment_with(char *variable) {
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **all = mem_alloc_array(count + 2, sizeof *all);
    size_t name = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], variable, name) != 0) all[kept++] = environ[i];
    all[kept] = variable;
    return all;
}

/* Returns 0 or an errno, like posix_spawn. Uses posix_spawnp instead of fork: forking a process of many GiB,
 * with threads and MPI, would copy its page tables and may not be safe. dup2 clears close-on-exec on the
 * copies; the child closes everything above stderr, whoever opened it. */
static int spawn(Listener *l, char **argv, char **environment, int input, int log) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&files) != 0) return ENOMEM;
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, log, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, log, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    posix_spawnattr_init(&attributes);
    set_attributes(&attributes);
    int failed = posix_spawnp(&l->child, argv[0], &files, &attributes, argv, environment);
    if (failed) l->child = 0;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

/* Both ends of the pipe are above the standard descriptors, even if a launcher has closed those: otherwise
 * dup2 in the child could overwrite one of them. */
static bool make_pipe(int ends[2]) {
    int low[2];
    if (pipe2(low, O_CLOEXEC) != 0) return false;
    for (int i = 0; i < 2; i++) {
        ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(low[i]);
    }
    if (ends[0] >= 0 && ends[1] >= 0) return true;
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0) close(ends[i]);
    return false;
}

/* Returns 0 or an errno. The read end is closed here once the child has its own: otherwise the end of the
 * program would never show as EPIPE. O_NONBLOCK belongs to the open file, and each end of a pipe is a
 * separate one, so the child's reads block as it expects. */
static int start(Listener *l, const char *run_dir, char **argv, int log) {
    int ends[2];
    if (!make_pipe(ends)) return errno;
    char *dir = realpath(run_dir, NULL);
    Text variable = {0};
    text_printf(&variable, "WEFT_RUN_DIR=%s", dir ? dir : run_dir);
    char **environment = environment_with(variable.data);
    int failed = spawn(l, argv, environment, ends[0], log);
    free(environment);
    text_free(&variable);
    free(dir);
    close(ends[0]);
    if (failed) {
        close(ends[1]);
        return failed;
    }
    fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES); /* the default size works, too */
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    l->fd = ends[1];
    return 0;
}

/* The log is opened first: without it the program is not started. This process closes its descriptor of the
 * log once the child has its own. `words` is not NULL-terminated, but an argv must be. */
void listener_open(Listener *l, const char *run_dir, size_t count, char *const *words, Text *message) {
    char **argv = mem_alloc_array(count + 1, sizeof *argv), name[80],
         *path = path_join(run_dir, LISTENER_LOG);
    Error err = {.message = ""};
    int log = -1;
    memcpy(argv, words, count * sizeof *argv);
    *l =
        (Listener){.fd = -1, .name = mem_strdup(error_escape(name, sizeof name, words[0], strlen(words[0])))};
    if (file_open_own(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, &log, &err) != OK) {
        text_printf(message, "metrics.command: %s is not started: %s", l->name, err.message);
    } else {
        int failed = start(l, run_dir, argv, log);
        if (failed)
            text_printf(message, "metrics.command: %s cannot be started (%s): the run goes on without it",
                        l->name, strerror(failed));
        close(log);
    }
    free(path);
    free(argv);
}

/* ---- feeding ---- */

/* True once the child has ended, without reaping it (L3). Waits for it unless `options` contains WNOHANG. If
 * somebody else has reaped it, its status is unknown. */
static bool look_at_end(const Listener *l, int options, int *status) {
    siginfo_t end = {.si_pid = 0};
    int failed;
    RETRY(failed, waitid(P_PID, (id_t)l->child, &end, WEXITED | WNOWAIT | options));
    if (failed == 0 && end.si_pid == 0) return false;
    *status = end.si_code == CLD_EXITED ? W_EXITCODE(end.si_status, 0) : W_EXITCODE(0, end.si_status);
    return true;
}

static bool has_ended(const Listener *l, int *status) { return look_at_end(l, WNOHANG, status); }

static void add_end(int status, Text *message) {
    if (WIFSIGNALED(status))
        text_printf(message, "was killed by signal %d", WTERMSIG(status));
    else
        text_printf(message, "ended with status %d", WEXITSTATUS(status));
}

/* Signals end of file to the program; no-op without a pipe. */
static void close_pipe(Listener *l) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

/* The program reads no more: it has ended, or closed its stdin. Its status shows when it is reaped. */
static void lost(Listener *l, Text *message) {
    int status;
    close_pipe(l);
    text_printf(message, "metrics.command: %s ", l->name);
    if (has_ended(l, &status)) {
        kill(-l->child, SIGTERM);
        add_end(status, message);
    } else {
        text_puts(message, "closed its standard input");
    }
    text_printf(message, " after %lld records: the run goes on without it; %s has what it printed",
                (long long)l->taken, LISTENER_LOG);
}

/* Writes are never short: up to PIPE_BUF bytes are written completely or not at all (L1). Any failure but
 * EPIPE counts as a dropped record: the next one may fit. */
void listener_send(Listener *l, const char *line, size_t length, Text *message) {
    ssize_t written;
    if (l->fd < 0) return;
    if (length > PIPE_BUF) {
        errno = EAGAIN; /* a longer line could be torn */
        written = -1;
    } else {
        RETRY(written, write(l->fd, line, length));
    }
    if (written == (ssize_t)length) {
        l->taken++;
    } else if (errno == EPIPE) {
        lost(l, message);
    } else {
        l->left_out++;
        if (!l->reported)
            text_printf(
                message,
                "metrics.command: %s does not keep up: from here on records that do not fit its pipe are "
                "left out",
                l->name);
        l->reported = true;
    }
}

/* ---- ending ---- */

/* Other ranks may be waiting meanwhile: the heartbeat tells their watchdogs that this is no hang. */
static bool ends_within(const Listener *l, double seconds, int *status) {
    double until = clock_seconds() + seconds;
    while (!has_ended(l, status)) {
        if (clock_seconds() >= until) return false;
        progress_beat();
        nanosleep(&(struct timespec){0, GLANCE}, NULL);
    }
    return true;
}

/* Ends the whole group, including processes that a script has started. SIGKILL cannot be ignored, so the last
 * wait terminates. */
static void put_down(const Listener *l, int *status) {
    kill(-l->child, SIGTERM);
    if (ends_within(l, GRACE, status)) return;
    kill(-l->child, SIGKILL);
    look_at_end(l, 0, status);
}

/* Reaps the child, and ends the processes in its group, which outlive it. Only processes that made a group of
 * their own survive. */
static void clear_group(Listener *l) {
    pid_t group = l->child, pid;
    double until = clock_seconds() + GRACE;
    kill(-group, SIGTERM);
    RETRY(pid, waitpid(group, NULL, 0));
    l->child = 0;
    while (kill(-group, 0) == 0 && clock_seconds() < until) {
        progress_beat();
        nanosleep(&(struct timespec){0, GLANCE}, NULL);
    }
    kill(-group, SIGKILL);
}

/* Silent if the program ended well, or if its end was already reported (`listening` false). Otherwise it
 * continues the sentence in `message`, if there is one, so that everything is reported at once. */
static void add_ending(Listener *l, bool listening, double seconds, Text *message) {
    int status = 0;
    bool ended = ends_within(l, seconds, &status);
    if (!ended) put_down(l, &status);
    clear_group(l);
    if (ended && (!listening || status == 0)) return;
    if (message->length)
        text_puts(message, "; it ");
    else
        text_printf(message, "metrics.command: %s ", l->name);
    if (!ended) {
        text_printf(message, "had not ended after metrics.command_wait_s = %g s, and was ended", seconds);
    } else {
        add_end(status, message);
        text_printf(message, "; %s has what it printed", LISTENER_LOG);
    }
}

/* The pipe first: most programs end with their input, and only the others are waited for. */
void listener_close(Listener *l, double seconds, Text *message) {
    if (!l->name) return;
    bool listening = l->fd >= 0;
    close_pipe(l);
    if (l->left_out > 0)
        text_printf(message, "metrics.command: %s did not keep up: %lld records were left out, it got %lld",
                    l->name, (long long)l->left_out, (long long)l->taken);
    if (l->child > 0) add_ending(l, listening, seconds, message);
    free(l->name);
    *l = (Listener){.fd = -1};
}
