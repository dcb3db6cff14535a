/* The program of metrics.command: started, fed and ended without ever waiting for it, but for its end.
 *
 *  L1. A line is one write(2) of at most PIPE_BUF bytes to a pipe that does not block: it is there whole or
 *      not at all.
 *  L2. The child has no descriptor of ours but its stdin and its log: it keeps neither the run's lock nor a
 *      terminal or launcher that waits for the end of our output.
 *  L3. A child is reaped exactly once, at the end, and after `child` is 0 its number is not used again. Until
 *      then the number is that of its group, which may outlive it.
 *
 *     run                                    the program
 *     listener_open   --spawn-->             starts; stdin is the pipe, stdout and stderr the log
 *     listener_send   --a line a write-->    reads as it likes; what does not fit is left out and counted
 *     listener_close  --end of file-->       has `seconds` to finish
 *                     --SIGTERM-->           GRACE seconds more, its whole group
 *                     --SIGKILL-->           gone, and reaped
 *                     --SIGTERM, SIGKILL-->  what is left of its group, also where it ended by itself
 *
 * A write to a program that has ended is EPIPE and no signal: the run ignores SIGPIPE before it opens one. */
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

/* ROOM is as much as Linux lets any process ask for unless it is told otherwise; GLANCE is short against the
 * seconds one waits, and long against the cost of a look. */
#define ROOM (1 << 20)  /* of the pipe, where the system gives so much: some thousand records */
#define GRACE 1.0       /* seconds between SIGTERM and SIGKILL */
#define GLANCE 20000000 /* nanoseconds between looks at a child that is to end */

/* ---- starting ---- */

/* Every signal as a fresh process has it, none blocked; a group of its own. An ignored signal would stay
 * ignored in the child (SIGPIPE is), and so would a blocked one stay blocked. */
static void set_attributes(posix_spawnattr_t *a) {
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(a, &all);
    posix_spawnattr_setsigmask(a, &none);
    posix_spawnattr_setpgroup(a, 0);
    posix_spawnattr_setflags(a, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
}

/* Our environment and one variable more; the array is the caller's, its strings are not. One that is there
 * already is replaced: of two with one name, programs take either. */
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

/* Returns 0 or an errno, as posix_spawn does. By posix_spawnp and not by fork: a fork of a process of many
 * GiB, with threads and MPI in it, would copy its page tables and may not be safe. dup2 clears close-on-exec
 * on the copies; everything above stderr is closed in the child, whoever opened it. */
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

/* The ends of the pipe lie above the standard descriptors even where a launcher has closed those: dup2 in
 * the child would otherwise tread on one of them. */
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

/* Returns 0 or an errno. The reading end is closed here once the child has its own: else a program that has
 * ended would never show as EPIPE. Non-blocking is a matter of the open file, and each end of a pipe is one
 * of its own, so the child's reads block as it expects. */
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
    fcntl(ends[1], F_SETPIPE_SZ, ROOM); /* what it is otherwise will do */
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    l->fd = ends[1];
    return 0;
}

/* The log is opened first: without it the program is not started. Our descriptor of it is closed once the
 * child has its own. `words` have no NULL at their end, which an argv needs. */
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

/* True once it has ended; it is not reaped (L3). Without WNOHANG in `options` it is waited for. Where
 * somebody else has reaped it nothing is known of its end. */
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

/* The end of the file, for the program; without a pipe nothing happens. */
static void close_pipe(Listener *l) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

/* It reads no more: it has ended, or closed its stdin. What became of it shows when it is reaped. */
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

/* A short write cannot be: up to PIPE_BUF bytes go whole or not at all (L1). Any failure but EPIPE counts as
 * a record that did not fit: the next one may. */
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
            text_printf(message,
                        "metrics.command: %s does not keep up: from here on it gets the records that it has "
                        "room for",
                        l->name);
        l->reported = true;
    }
}

/* ---- ending ---- */

/* Others may wait for us meanwhile: the beat says that this is no hang. */
static bool ends_within(const Listener *l, double seconds, int *status) {
    double until = clock_seconds() + seconds;
    while (!has_ended(l, status)) {
        if (clock_seconds() >= until) return false;
        progress_beat();
        nanosleep(&(struct timespec){0, GLANCE}, NULL);
    }
    return true;
}

/* Its whole group: what a script has started goes with it. SIGKILL cannot be refused, so the last wait has an
 * end. */
static void put_down(const Listener *l, int *status) {
    kill(-l->child, SIGTERM);
    if (ends_within(l, GRACE, status)) return;
    kill(-l->child, SIGKILL);
    look_at_end(l, 0, status);
}

/* It has ended, which ends nothing that it has started. Only what made a group of its own stays. */
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

/* Silent when a program ended well, or had been said to have gone before (`listening` false). Otherwise it
 * goes on with the sentence that stands in `said`, if there is one: all is told at once. */
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

/* The pipe first: most programs end when their input does, and only what stays is waited for. */
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
