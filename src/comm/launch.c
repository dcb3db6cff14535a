/* Starts ranks through mpirun, or through weft's own launcher for sockets (launcher_own).
 *
 * The stop signals and SIGCHLD are blocked and read from a descriptor alongside mpirun's stderr, so that one
 * poll waits for both.
 *
 *     weft train -n N ----fork----> mpirun ----> rank 0 .. N-1
 *       |  poll                      |  stderr of all ranks, and its own messages
 *       +-- signals (signalfd)       +--> pipe --> launcher_output.c --> stderr
 *       +-- the pipe
 *
 * If the launcher reports separately how ranks ended (launcher.h read_end), it gets a second pipe for
 * everything that it prints itself. Ranks then bypass it: they inherit stdout and the first pipe.
 *
 * Each rank appends its exit status to an unnamed file when it ends. Launchers have been seen to lose
 * statuses on busy machines. Also, the end of the first rank starts a time limit for the others, which have
 * no watchdog after MPI_Finalize. It is a file, not a pipe, because a file takes bytes when nobody is left to
 * read them. */
#include "comm/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/text.h"
#include "comm/launcher_output.h"
#include "comm/facts.h"
#include "comm/launcher.h"

/* After half a second without a message, what looked like the beginning of one of mpirun's lines is passed
 * on. After twenty such periods, ten seconds, following a second SIGINT, mpirun is told to end the ranks. 127
 * and 130 are the shell's numbers for these cases. */
enum {
    QUIET_MS = 500,
    PATIENCE = 20 /* QUIET_MS */,
    LEAST_LINGER_S = 30, /* the same as for MPI's own end (failure.c) */
    CANNOT_START = 127,
    AFTER_SECOND_SIGINT = 130,
    OUTPUT_MAX = 65536
};

typedef struct Launch {
    const LauncherKind *kind;
    int ranks;
    bool tolerant; /* the others go on when a rank dies */
    pid_t mpirun;
    ScratchDir sessions;   /* directory for mpirun's files */
    int signals, messages; /* descriptors */
    int remarks;           /* pipe of mpirun's own output, or -1 */
    int ends;              /* file with the statuses of ranks in the order of their ends, or -1 */
    int interrupts;        /* SIGINTs so far */
    int patience;          /* quiet periods since the second */
    double limit;          /* seconds from the first rank's end to the last one's; 0: none */
    double first_end;      /* when it was seen; 0: not yet */
    int stuck;             /* quiet periods since the limit */
    bool ended, closed;    /* mpirun has ended; its stderr is closed */
    int status;
    sigset_t before;
    LauncherOutput launcher_output;
    Text output; /* of mpirun itself, up to OUTPUT_MAX */
} Launch;

/* ---- the command ---- */

static void add(char **words, int *count, const char *word) { words[(*count)++] = mem_strdup(word); }

static char **mpirun_words(const LauncherKind *kind, const LaunchTerms *terms, const char *program,
                           char *const *words) {
    int given = 0, count = 0;
    while (words[given]) given++;
    char **all = mem_alloc_array((size_t)given + 18, sizeof *all), number[16];
    snprintf(number, sizeof number, "%d", terms->ranks);
    add(all, &count, kind->own ? program : comm_launcher());
    if (kind->as_root && geteuid() == 0) add(all, &count, kind->as_root);
    for (int i = 0; kind->words[i]; i++) add(all, &count, kind->words[i]);
    for (int i = 0; terms->tolerant && kind->tolerant[i]; i++) add(all, &count, kind->tolerant[i]);
    add(all, &count, "-n");
    add(all, &count, number);
    add(all, &count, program);
    for (int i = 1; i < given; i++) add(all, &count, words[i]);
    return all;
}

static void free_words(char **words) {
    for (char **w = words; *w; w++) free(*w);
    free(words);
}

char *launch_signal_name(int number, char out[32]) {
    const char *name = sigabbrev_np(number);
    snprintf(out, 32, "signal %d (SIG%s)", number, name ? name : "?");
    return out;
}

/* Uses /proc, not argv[0], which may be relative to another working directory, or found through PATH. */
ErrorCode launch_own_path(char *out, size_t size, Error *err) {
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    if (length < 0) return error_errno(err, ERR_UNAVAILABLE, "cannot find this program's own path");
    out[length] = 0;
    return OK;
}

/* The ranks write into a pipe that goes on to this process's stderr; they may draw a status line if that is a
 * terminal. */
static void report_to_terminal(void) {
    char columns[16];
    snprintf(columns, sizeof columns, "%d", log_width());
    if (log_is_terminal()) setenv(LOG_TERMINAL, columns, 1);
}

/* Open MPI 4 has one directory for the sessions of all of a user's jobs on a machine. A job that ends removes
 * it if it is empty, while another one may be about to create its own directory in it: "orte_session_dir
 * failed". So each job gets its own, unless the user has set one. */
static ErrorCode take_sessions(Launch *l, Error *err) {
    if (!l->kind->sessions || getenv(l->kind->sessions)) return OK;
    return scratch_take(&l->sessions, "weft-mpirun-", err);
}

/* In the child: mpirun keeps the lock of its directory for as long as it lives, which may be longer than weft
 * does. */
static void use_sessions(const Launch *l) {
    if (!l->sessions.path) return;
    setenv(l->kind->sessions, l->sessions.path, 1);
    fcntl(l->sessions.lock, F_SETFD, 0);
}

/* In the child: mpirun's own output goes to a pipe of its own, and the ranks learn which descriptors are
 * their stdout and stderr (launched_streams). */
static void use_streams(int stderr_pipe, int remarks_pipe) {
    char numbers[48];
    if (remarks_pipe < 0) {
        dup2(stderr_pipe, STDERR_FILENO);
        return;
    }
    snprintf(numbers, sizeof numbers, "%d %d", dup(STDOUT_FILENO), dup(stderr_pipe));
    setenv(LAUNCHED_STREAMS, numbers, 1);
    dup2(remarks_pipe, STDOUT_FILENO);
    dup2(remarks_pipe, STDERR_FILENO);
}

static void use_ends(const Launch *l, pid_t parent) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)parent, l->ends);
    setenv(LAUNCHED_ENDS, path, 1);
}

/* In the child. stdin is /dev/null, because a process group in the background would be stopped for reading
 * the terminal. */
static _Noreturn void become(const Launch *l, char *const *words, const int *pipes, pid_t parent) {
    setpgid(0, 0);
    report_to_terminal();
    use_sessions(l);
    /* If weft dies, mpirun gets the signal that it forwards: the ranks save and stop. The parent may have
     * died before this call, hence the comparison below. */
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    if (l->kind->own) setenv(LAUNCHED_REPORT, "1", 1);
    use_ends(l, parent);
    use_streams(pipes[0], pipes[1]);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    if (getppid() == parent) execvp(words[0], words);
    _exit(CANNOT_START);
}

static ErrorCode make_pipe(int *from, int *to, Error *err) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return error_errno(err, ERR_UNAVAILABLE, "cannot make a pipe");
    *from = ends[0];
    *to = ends[1];
    return OK;
}

static ErrorCode make_ends(Launch *l, Error *err) {
    l->ends = memfd_create("weft-ends", MFD_CLOEXEC);
    return l->ends >= 0 ? OK : error_errno(err, ERR_UNAVAILABLE, "cannot make a file without a name");
}

/* mpirun has a process group of its own: a Ctrl-C in the terminal reaches only weft, which decides what to
 * forward. */
static ErrorCode start(Launch *l, char *const *words, Error *err) {
    int pipes[2] = {-1, -1}; /* the write ends: of messages, of mpirun's own output */
    pid_t parent = getpid();
    TRY(make_pipe(&l->messages, &pipes[0], err));
    if (l->kind->read_end) TRY(make_pipe(&l->remarks, &pipes[1], err));
    TRY(make_ends(l, err));
    l->mpirun = fork();
    if (l->mpirun == 0) become(l, words, pipes, parent);
    close(pipes[0]);
    if (pipes[1] >= 0) close(pipes[1]);
    if (l->mpirun < 0) return error_errno(err, ERR_UNAVAILABLE, "cannot start %s", words[0]);
    setpgid(l->mpirun, l->mpirun); /* in parent and child, since either may run first */
    return OK;
}

/* ---- while it runs ---- */

/* Logged, so that whoever sees ranks end in this way knows that they hung. */
static void end_ranks(const Launch *l) {
    log_warn("the ranks did not end on the second SIGINT: %s ends them", l->kind->name);
    kill(l->mpirun, l->kind->end);
}

/* After the first rank has ended, the others may take as long as ranks wait for each other. Called only when
 * there is nothing else to read: mpirun may have ended while this process was stopped. A launcher that uses
 * one signal both for its ranks and for itself needs it twice. */
static void find_stuck(Launch *l) {
    struct stat ends;
    if (l->ended || l->limit <= 0 || fstat(l->ends, &ends) != 0 || ends.st_size == 0) return;
    if (l->first_end == 0) l->first_end = clock_seconds();
    if (clock_seconds() - l->first_end < l->limit) return;
    l->stuck++;
    if (l->stuck == 1 || (l->stuck == 2 && l->kind->again == l->kind->end)) kill(l->mpirun, l->kind->end);
    if (l->stuck != PATIENCE) return;
    log_warn("%s had not ended %g s after the first of its ranks, and is killed: lines of the ranks may be "
             "missing",
             l->kind->name, l->limit);
    kill(l->mpirun, SIGKILL);
}

static void take_signal(Launch *l) {
    struct signalfd_siginfo info;
    if (read(l->signals, &info, sizeof info) != (ssize_t)sizeof info) return;
    int number = (int)info.ssi_signo;
    if (number == SIGCHLD) {
        l->ended = l->ended || waitpid(l->mpirun, &l->status, WNOHANG) == l->mpirun;
        return;
    }
    /* The first SIGINT, and any other stop signal, asks the ranks to save and stop; the second to end at
     * once; the third ends mpirun. */
    l->interrupts += number == SIGINT;
    if (l->interrupts <= 1 || number != SIGINT)
        kill(l->mpirun, SIGUSR1);
    else
        kill(l->mpirun, l->interrupts == 2 ? l->kind->again : l->kind->end);
}

static void take_messages(Launch *l) {
    char bytes[4096];
    ssize_t length = read(l->messages, bytes, sizeof bytes);
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (length > 0) launcher_output_add(&l->launcher_output, bytes, (size_t)length);
    if (length <= 0) l->closed = true;
}

static void take_remarks(Launch *l) {
    char bytes[4096];
    ssize_t length = read(l->remarks, bytes, sizeof bytes);
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (length > 0 && l->output.length < OUTPUT_MAX) text_add(&l->output, bytes, (size_t)length);
    if (length > 0) return;
    close(l->remarks);
    l->remarks = -1;
}

/* A process that a rank has left behind may keep the pipes open, so after mpirun's end only what is in them
 * counts. */
static void watch_launcher(Launch *l) {
    while (!l->ended || !l->closed || l->remarks >= 0) {
        struct pollfd fds[3] = {
            {l->signals, POLLIN, 0}, {l->closed ? -1 : l->messages, POLLIN, 0}, {l->remarks, POLLIN, 0}};
        int ready = poll(fds, 3, QUIET_MS);
        if (ready < 0 && errno != EINTR) break;
        if (ready == 0) {
            launcher_output_flush(&l->launcher_output);
            if (l->ended) break;
            find_stuck(l);
            if (l->interrupts > 1 && ++l->patience == PATIENCE) end_ranks(l);
        }
        if (ready > 0 && fds[0].revents) take_signal(l);
        if (ready > 0 && fds[1].revents) take_messages(l);
        if (ready > 0 && fds[2].revents) take_remarks(l);
    }
    launcher_output_flush(&l->launcher_output);
}

static bool read_report(const Launch *l, int at, RankReport *out) {
    return pread(l->ends, out, sizeof *out, (off_t)((size_t)at * sizeof *out)) == sizeof *out;
}

/* Status of the first rank that ended badly, by its own report; 0: none did. *unreported: some rank should
 * have reported how it ended, but did not. */
static int reported_code(const Launch *l, bool *unreported) {
    RankReport one;
    int code = 0, reported = 0;
    for (; read_report(l, reported, &one); reported++) code = code ? code : one.status;
    *unreported = l->tolerant ? reported == 0 : l->kind->read_end && reported < l->ranks;
    return code;
}

static bool has_reported(const Launch *l, int rank) {
    RankReport one;
    for (int at = 0; read_report(l, at, &one); at++)
        if (one.rank == rank) return true;
    return false;
}

/* Lists ranks without a report. If all reported, it is not known which one hangs. */
static void list_stuck(const Launch *l, Text *out) {
    for (int rank = 0; rank < l->ranks; rank++)
        if (!has_reported(l, rank)) text_printf(out, "%s%d", out->length ? ", " : "rank ", rank);
    if (!out->length) text_puts(out, "one of them");
}

static ErrorCode refuse_stuck(const Launch *l, Error *err) {
    Text stuck = {0};
    list_stuck(l, &stuck);
    error_set(err, ERR_PEER,
              "ranks hang behind their last step: %s had not ended %g s after the first that did "
              "(comm.watchdog_s, at least %d s), and %s was asked to end them; with --restarts N a run goes "
              "on from its last checkpoint",
              stuck.data, l->limit, LEAST_LINGER_S, l->kind->name);
    text_free(&stuck);
    return ERR_PEER;
}

/* From mpirun's own output, separate or mixed with that of the ranks, and from its exit status. */
static RanksEnd said_end(const Launch *l) {
    RanksEnd end;
    int own = WEXITSTATUS(l->status);
    if (l->kind->read_end && l->kind->read_end(l->output.length ? l->output.data : "", &end)) {
        if (!end.code && !end.signal) end.code = own;
        return end;
    }
    end = (RanksEnd){.code = own, .signal = l->launcher_output.killed_by};
    snprintf(end.ranks, sizeof end.ranks, "rank %d", l->launcher_output.killed_rank);
    return end;
}

/* A rank's own report takes precedence over mpirun's; ranks that were killed have none. It also takes
 * precedence over SIGKILL, because mpirun may have killed the others for it. Where ranks may die, those
 * that were left at the end have reported, and mpirun's status means nothing. */
static RanksEnd find_end(const Launch *l, bool *unreported) {
    RanksEnd end = said_end(l);
    int reported = reported_code(l, unreported);
    if (reported) end.code = reported;
    if (l->tolerant && !*unreported) return (RanksEnd){.code = reported};
    if (l->kind->read_end && end.code && end.signal == SIGKILL) end.signal = 0;
    return end;
}

/* From the most to the least specific: the user's second SIGINT, ranks that hang after their last step, a
 * rank killed by a signal, mpirun itself unless find_stuck killed it, the ranks' own status, which they have
 * explained (err->reported). */
static ErrorCode judge(const Launch *l, Error *err) {
    bool unreported;
    char name[32];
    RanksEnd end = find_end(l, &unreported);
    bool through =
        WIFEXITED(l->status) && !end.signal && !unreported && (end.code == OK || end.code == ERR_STOPPED);
    if (l->interrupts > 1 && !through) {
        error_set(err, (ErrorCode)AFTER_SECOND_SIGINT, "interrupted");
        err->reported = true;
        return err->code;
    }
    if (l->stuck && reported_code(l, &unreported) == 0) return refuse_stuck(l, err);
    if (end.signal)
        return error_set(err, (ErrorCode)(128 + end.signal), "%s was killed by %s", end.ranks,
                         launch_signal_name(end.signal, name));
    if (WIFSIGNALED(l->status) && !(l->stuck && end.code))
        return error_set(err, (ErrorCode)(128 + WTERMSIG(l->status)), "%s was killed by signal %d",
                         l->kind->name, WTERMSIG(l->status));
    if (end.code == CANNOT_START && l->kind->own)
        return error_set(err, ERR_UNAVAILABLE,
                         "%s could not start a rank (exit status %d): see the line above", l->kind->name,
                         CANNOT_START);
    if (end.code == CANNOT_START)
        return error_set(err, ERR_UNAVAILABLE, "cannot start %s: apt-get install %s", comm_launcher(),
                         l->kind->package);
    if (end.code == 0 && unreported)
        return error_set(err, ERR_PEER, "a rank was killed: it did not report how it ended, and nor does %s",
                         l->kind->own ? l->kind->name : comm_launcher());
    if (end.code == 0) return OK;
    if (l->kind->failed && end.code == l->kind->failed) fputs(l->output.length ? l->output.data : "", stderr);
    error_set(err, (ErrorCode)end.code, "the ranks ended with exit status %d", end.code);
    err->reported = true;
    return err->code;
}

static void block_signals(Launch *l) {
    sigset_t awaited;
    signals_to_stop(&awaited);
    sigaddset(&awaited, SIGCHLD);
    /* If the parent left it ignored, children would be reaped before anyone can wait for them. */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN); /* a run outlives the readers of its messages */
    sigprocmask(SIG_BLOCK, &awaited, &l->before);
    l->signals = signalfd(-1, &awaited, SFD_CLOEXEC);
}

ErrorCode launch_ranks(const LaunchTerms *terms, char *const *words, Error *err) {
    char program[4096];
    Launch l = {.kind = terms->sockets ? launcher_own() : launcher_kind(),
                .ranks = terms->ranks,
                .messages = -1,
                .remarks = -1,
                .ends = -1};
    l.tolerant = terms->tolerant && l.kind->tolerant[0];
    if (terms->watchdog_s > 0)
        l.limit = terms->watchdog_s > LEAST_LINGER_S ? terms->watchdog_s : LEAST_LINGER_S;
    LaunchedEnv launched = launched_env_find();
    if (launched.by_launcher)
        return error_set(err, ERR_USAGE,
                         "this process was started as one of several ranks (%s is set), so it cannot start "
                         "ranks itself: leave out -n, or run weft -n without mpirun, srun or weft launch",
                         launched.variable);
    TRY(launch_own_path(program, sizeof program, err));
    TRY(take_sessions(&l, err));
    char **all = mpirun_words(l.kind, terms, program, words);
    block_signals(&l);
    ErrorCode code = start(&l, all, err);
    if (code == OK) {
        watch_launcher(&l);
        code = judge(&l, err);
    }
    sigprocmask(SIG_SETMASK, &l.before, NULL);
    close(l.signals);
    if (l.messages >= 0) close(l.messages);
    if (l.remarks >= 0) close(l.remarks);
    if (l.ends >= 0) close(l.ends);
    launcher_output_free(&l.launcher_output);
    text_free(&l.output);
    free_words(all);
    scratch_give(&l.sessions);
    return code;
}
