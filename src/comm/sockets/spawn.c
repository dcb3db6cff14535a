/* weft launch ----fork----> rank 0 .. N-1
 *   |  poll                  |
 *   +-- signals (signalfd): SIGCHLD: a rank has ended; those for the ranks
 *   +-- words of the ranks (comm/tell.h) <--- pipe
 *
 * When a rank dies, all others are killed, or with `tolerant` go on. Until that rank has begun they cannot:
 * all are killed then, and, if all are here, started again once, since nothing is lost. Ranks that learn of a
 * death before this process does say so, and wait to be killed.
 *
 * Above it may be launch.c, for weft train -n: that one reads what is printed here, and decides what the
 * run's end means. */
#include "comm/sockets/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/sockets/sockets.h"
#include "comm/tell.h"

/* LOST_S: for the end of a rank of this machine, after another one has learned of it. */
enum { CANNOT_START = 127, PATIENCE_S = 5, LOST_S = 10, LOOK_MS = 200 };

typedef struct Rank {
    pid_t process; /* 0: has ended */
    int status;    /* of waitpid; of one that this process killed 0 */
    bool starts;   /* it has said so, and not that it has begun */
    bool begun, left, killed;
    RankProcess speaker; /* of its words: a wrapper may stand between */
} Rank;

typedef struct Spawn {
    const SpawnTerms *terms;
    char meet[300];
    Rank *ranks;      /* [terms->ranks] */
    int left;         /* ranks that run */
    bool killing;     /* all that are left were killed */
    bool asked;       /* by SIGQUIT */
    bool stopping;    /* a signal has asked for the end */
    int interrupts;   /* SIGINTs so far */
    double failed_at; /* when a rank ended badly; 0: none has */
    RankWord said;    /* the first FAILED or LOST; before: code 0 */
    double said_at;
    bool ends_said;        /* it is why the ranks end */
    bool again;            /* they are started again when all have ended */
    int starts;            /* so far */
    char cause[200];       /* of the second */
    int signals, words[2]; /* descriptors; words: of the pipe */
    sigset_t before;
} Spawn;

/* Nobody else on this machine meets there. */
static void choose_place(Spawn *s) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (s->terms->meet)
        snprintf(s->meet, sizeof s->meet, "%s", s->terms->meet);
    else
        snprintf(s->meet, sizeof s->meet, "@weft-%d-%lld%09ld", (int)getpid(), (long long)now.tv_sec,
                 now.tv_nsec);
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* A second start counts as a restart, for the journal and for faults that are injected. */
static void set_words(const Spawn *s, pid_t parent) {
    char path[64];
    const char *attempt = getenv(LAUNCHED_ATTEMPT);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)parent, s->words[1]);
    setenv(TELL_PATH, path, 1);
    if (s->terms->tolerant) setenv(TELL_TOLERANT, "1", 1);
    if (s->starts == 1) return;
    set_number(LAUNCHED_ATTEMPT, (attempt ? atoi(attempt) : 0) + 1);
    setenv(LAUNCHED_CAUSE, s->cause, 1);
}

/* Only the first rank reads standard input. */
static _Noreturn void become(const Spawn *s, int index, char *const *words, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_number(LAUNCHED_RANK, s->terms->first + index);
    set_number(LAUNCHED_RANKS, s->terms->of);
    setenv(SOCKETS_MEET, s->meet, 1);
    set_words(s, parent);
    int nothing = index > 0 ? open("/dev/null", O_RDONLY) : -1;
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    sigprocmask(SIG_SETMASK, &s->before, NULL);
    if (getppid() == parent) execvp(words[0], words);
    fprintf(stderr, "weft: cannot start %s: %s\n", words[0], strerror(errno));
    _exit(CANNOT_START);
}

static void signal_ranks(const Spawn *s, int number) {
    for (int i = 0; i < s->terms->ranks; i++)
        if (s->ranks[i].process) kill(s->ranks[i].process, number);
}

static void kill_ranks(Spawn *s) {
    s->killing = true;
    signal_ranks(s, SIGKILL);
    for (int i = 0; i < s->terms->ranks; i++)
        if (s->ranks[i].speaker.process) rank_process_kill(&s->ranks[i].speaker);
}

static ErrorCode start(Spawn *s, char *const *words, Error *err) {
    pid_t parent = getpid();
    s->starts++;
    fflush(NULL);
    for (int i = 0; i < s->terms->ranks; i++) {
        s->ranks[i] = (Rank){.process = fork()};
        if (s->ranks[i].process == 0) become(s, i, words, parent);
        if (s->ranks[i].process < 0) {
            s->ranks[i].process = 0;
            kill_ranks(s);
            return error_errno(err, ERR_UNAVAILABLE, "cannot start a rank");
        }
        s->left++;
    }
    return OK;
}

/* ---- what happens ---- */

static bool is_bad(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

static void take_ended(Spawn *s) {
    int status;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < s->terms->ranks; i++) {
            Rank *r = &s->ranks[i];
            if (r->process != ended) continue;
            r->process = 0;
            s->left--;
            r->killed = s->killing && WIFSIGNALED(status);
            r->status = r->killed ? 0 : status;
            if (is_bad(r->status) && s->failed_at == 0) s->failed_at = clock_seconds();
            if (WIFSIGNALED(r->status) && !s->terms->tolerant) kill_ranks(s);
        }
}

/* A terminal sends SIGINT to all of its foreground job: the ranks have it. One that was sent to this
 * process alone is passed on, as a request to save and stop, and the second one as that to end at once. */
static void take_interrupt(Spawn *s, bool alone) {
    s->interrupts++;
    if (alone && s->interrupts <= 2) signal_ranks(s, s->interrupts == 1 ? SIGUSR1 : SIGUSR2);
    if (s->interrupts > 2) kill_ranks(s);
}

static void take_signal(Spawn *s) {
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof info) != (ssize_t)sizeof info) return;
    int number = (int)info.ssi_signo;
    s->asked |= number == SIGQUIT;
    s->stopping |= number != SIGCHLD;
    if (number == SIGQUIT) kill_ranks(s);
    if (number == SIGINT) take_interrupt(s, info.ssi_code <= 0);
    if (number == SIGUSR2) signal_ranks(s, SIGUSR2);
    if (number == SIGTERM || number == SIGHUP || number == SIGUSR1) signal_ranks(s, SIGUSR1);
}

static void take_word(Spawn *s) {
    RankWord word;
    if (read(s->words[0], &word, sizeof word) != (ssize_t)sizeof word) return;
    int i = word.rank - s->terms->first;
    if (i < 0 || i >= s->terms->ranks) return;
    Rank *r = &s->ranks[i];
    r->speaker = word.process;
    if (word.kind == RANK_STARTS) r->starts = true, r->begun = false;
    if (word.kind == RANK_BEGUN) r->starts = false, r->begun = true;
    r->left |= word.kind == RANK_LEFT;
    if ((word.kind != RANK_FAILED && word.kind != RANK_LOST) || s->said.code) return;
    s->said = word;
    s->said_at = clock_seconds();
}

/* ---- what follows from it ---- */

static bool any_starts(const Spawn *s) {
    for (int i = 0; i < s->terms->ranks; i++)
        if (s->ranks[i].starts) return true;
    return false;
}

/* The first rank that has ended badly before it had begun, while others start: these would wait for it.
 * -1: none. */
static int find_missing(const Spawn *s) {
    for (int i = 0; any_starts(s) && i < s->terms->ranks; i++)
        if (!s->ranks[i].process && !s->ranks[i].begun && is_bad(s->ranks[i].status)) return i;
    return -1;
}

static void describe_death(const Spawn *s, int i, char *out, size_t size) {
    char name[32];
    snprintf(out, size, "rank %d was killed by %s", s->terms->first + i,
             launch_signal_name(WTERMSIG(s->ranks[i].status), name));
}

/* Ranks of other machines would have to start again with these. */
static void start_again(Spawn *s, int i) {
    char death[80];
    describe_death(s, i, death, sizeof death);
    snprintf(s->cause, sizeof s->cause, "%s before the first step", death);
    dprintf(launched_messages(), "warning: %s: nothing is lost, and all ranks start again\n", s->cause);
    s->again = true;
}

static void take_missing(Spawn *s) {
    int i = find_missing(s);
    if (i < 0 || !WIFSIGNALED(s->ranks[i].status)) return;
    if (s->starts == 1 && s->terms->ranks == s->terms->of && !s->stopping) start_again(s, i);
    kill_ranks(s);
}

static bool has_ended(const Spawn *s, int rank) {
    int i = rank - s->terms->first;
    return i >= 0 && i < s->terms->ranks && !s->ranks[i].process;
}

static bool is_here(const Spawn *s, int rank) {
    return rank >= s->terms->first && rank < s->terms->first + s->terms->ranks;
}

/* A rank that was lost here is about to end, which says more. One that has ended badly has said why itself.
 * */
static void take_said(Spawn *s) {
    bool here = s->said.kind == RANK_LOST && is_here(s, s->said.lost);
    bool ended = here && has_ended(s, s->said.lost);
    if (!s->said.code || (here && !ended && clock_seconds() - s->said_at < LOST_S)) return;
    s->ends_said = !ended || s->failed_at == 0;
    if (s->ends_said) s->ranks[s->said.rank - s->terms->first].status = W_EXITCODE(s->said.code, 0);
    kill_ranks(s);
}

static void take_overdue(Spawn *s) {
    bool overdue = s->failed_at != 0 && clock_seconds() - s->failed_at > PATIENCE_S;
    if (overdue && (!s->terms->tolerant || find_missing(s) >= 0)) kill_ranks(s);
}

static void watch(Spawn *s) {
    while (s->left > 0) {
        struct pollfd fds[] = {{s->signals, POLLIN, 0}, {s->words[0], POLLIN, 0}};
        int ready = poll(fds, 2, LOOK_MS);
        if (ready > 0 && fds[0].revents) take_signal(s);
        if (ready > 0 && fds[1].revents) take_word(s);
        take_ended(s);
        if (!s->killing) take_missing(s);
        if (!s->killing) take_said(s);
        if (!s->killing) take_overdue(s);
    }
}

/* What a rank's wrapper has left behind holds the places of the ranks. */
static void await_speakers(const Spawn *s) {
    for (int i = 0; i < s->terms->ranks; i++)
        for (int look = 0; look < LOST_S * 100 && rank_process_state(&s->ranks[i].speaker); look++)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
}

static void forget_start(Spawn *s) {
    RankWord word;
    await_speakers(s);
    while (read(s->words[0], &word, sizeof word) > 0) continue;
    s->killing = s->again = false;
    s->failed_at = 0;
    s->said = (RankWord){.code = 0};
    choose_place(s);
}

static ErrorCode run(Spawn *s, char *const *words, Error *err) {
    ErrorCode code;
    do {
        if (s->again) forget_start(s);
        code = start(s, words, err);
        watch(s);
    } while (code == OK && s->again && !s->stopping);
    return code;
}

/* ---- how it ended ---- */

static void print_statuses(const Spawn *s) {
    printf("[weft@local] Exit codes: [local] ");
    for (int i = 0; i < s->terms->ranks; i++) printf("%s%d", i ? "," : "", s->ranks[i].status);
    printf("\n");
}

/* One that was left out of the run has not finished it. */
static bool has_finished(const Spawn *s) {
    for (int i = 0; i < s->terms->ranks; i++)
        if (!is_bad(s->ranks[i].status) && !s->ranks[i].left && !s->ranks[i].killed) return true;
    return false;
}

static ErrorCode judge(const Spawn *s, Error *err) {
    char death[80];
    if (s->asked) return error_set(err, (ErrorCode)(128 + SIGQUIT), "the ranks were killed: SIGQUIT");
    if (s->interrupts > 2) return error_set(err, (ErrorCode)(128 + SIGINT), "the ranks were killed: SIGINT");
    if (s->terms->tolerant && has_finished(s)) return OK;
    for (int i = 0; i < s->terms->ranks; i++) {
        if (!WIFSIGNALED(s->ranks[i].status)) continue;
        describe_death(s, i, death, sizeof death);
        return error_set(err, (ErrorCode)(128 + WTERMSIG(s->ranks[i].status)), "%s", death);
    }
    if (s->ends_said) return error_set(err, (ErrorCode)s->said.code, "%s", s->said.text);
    for (int i = 0; i < s->terms->ranks; i++) {
        int status = s->ranks[i].status;
        if (!is_bad(status)) continue;
        error_set(err, (ErrorCode)WEXITSTATUS(status), "rank %d ended with exit status %d",
                  s->terms->first + i, WEXITSTATUS(status));
        err->reported = true; /* it has said why */
        return err->code;
    }
    return OK;
}

/* To launch_ranks, which prints nothing about ranks that have ended with a status. */
static void report(const Spawn *s, Error *err) {
    char end[600];
    print_statuses(s);
    if (s->ends_said && !err->reported)
        dprintf(launched_messages(), "weft: %s (%s)\n", err->message, error_end(end, sizeof end, err->code));
    err->reported = true;
}

static ErrorCode open_spawn(Spawn *s, Error *err) {
    static const int taken[] = {SIGCHLD, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGINT};
    sigset_t awaited;
    sigemptyset(&awaited);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) sigaddset(&awaited, taken[i]);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &awaited, &s->before);
    s->signals = signalfd(-1, &awaited, SFD_CLOEXEC);
    if (s->signals < 0 || pipe2(s->words, O_CLOEXEC) != 0)
        return error_errno(err, ERR_UNAVAILABLE, "cannot make a pipe");
    fcntl(s->words[0], F_SETFL, O_NONBLOCK);
    s->ranks = mem_alloc_array((size_t)s->terms->ranks, sizeof *s->ranks);
    choose_place(s);
    return OK;
}

ErrorCode sockets_spawn(const SpawnTerms *terms, char *const *words, Error *err) {
    Spawn s = {.terms = terms};
    ErrorCode code = open_spawn(&s, err);
    if (code == OK) code = run(&s, words, err);
    if (code == OK) code = judge(&s, err);
    if (launched_reports() && s.ranks) report(&s, err);
    free(s.ranks);
    return code;
}
