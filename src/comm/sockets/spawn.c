/* weft launch ----fork----> rank 0 .. N-1
 *   |  sigtimedwait
 *   +-- SIGCHLD: a rank has ended; the others go on, or are killed
 *   +-- signals for the ranks
 *
 * Above it may be launch.c, for weft train -n: that one reads what is printed here, and decides what the
 * run's end means. */
#include "comm/sockets/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/sockets/sockets.h"

enum { CANNOT_START = 127, PATIENCE_S = 5, LOOK_MS = 200 };

typedef struct Spawn {
    const SpawnTerms *terms;
    char meet[300];
    pid_t *ranks;     /* [terms->ranks]; 0: has ended */
    int *status;      /* [terms->ranks] of waitpid; of ranks that this process killed 0 */
    int left;         /* ranks that run */
    bool killing;     /* all that are left were killed */
    bool asked;       /* by SIGQUIT */
    double failed_at; /* when a rank ended badly; 0: none has */
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

/* Only the first rank reads standard input. */
static _Noreturn void become(const Spawn *s, int index, char *const *words, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_number(LAUNCHED_RANK, s->terms->first + index);
    set_number(LAUNCHED_RANKS, s->terms->of);
    setenv(SOCKETS_MEET, s->meet, 1);
    int nothing = index > 0 ? open("/dev/null", O_RDONLY) : -1;
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    sigprocmask(SIG_SETMASK, &s->before, NULL);
    if (getppid() == parent) execvp(words[0], words);
    fprintf(stderr, "weft: cannot start %s: %s\n", words[0], strerror(errno));
    _exit(CANNOT_START);
}

static void signal_ranks(const Spawn *s, int number) {
    for (int i = 0; i < s->terms->ranks; i++)
        if (s->ranks[i]) kill(s->ranks[i], number);
}

static void kill_ranks(Spawn *s) {
    s->killing = true;
    signal_ranks(s, SIGKILL);
}

static ErrorCode start(Spawn *s, char *const *words, Error *err) {
    pid_t parent = getpid();
    fflush(NULL);
    for (int i = 0; i < s->terms->ranks; i++) {
        s->ranks[i] = fork();
        if (s->ranks[i] == 0) become(s, i, words, parent);
        if (s->ranks[i] < 0) {
            s->ranks[i] = 0;
            kill_ranks(s);
            return error_errno(err, ERR_UNAVAILABLE, "cannot start a rank");
        }
        s->left++;
    }
    return OK;
}

static bool is_bad(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

static void take_ended(Spawn *s) {
    int status;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < s->terms->ranks; i++) {
            if (s->ranks[i] != ended) continue;
            s->ranks[i] = 0;
            s->left--;
            s->status[i] = s->killing && WIFSIGNALED(status) ? 0 : status;
            if (is_bad(s->status[i]) && s->failed_at == 0) s->failed_at = clock_seconds();
            if (WIFSIGNALED(s->status[i]) && !s->terms->tolerant) kill_ranks(s);
        }
}

static void take_signal(Spawn *s, int number) {
    s->asked |= number == SIGQUIT;
    if (number == SIGQUIT) kill_ranks(s);
    if (number == SIGUSR2) signal_ranks(s, SIGUSR2);
    if (number == SIGTERM || number == SIGHUP || number == SIGUSR1) signal_ranks(s, SIGUSR1);
}

static void watch(Spawn *s, const sigset_t *awaited) {
    while (s->left > 0) {
        struct timespec look = {0, LOOK_MS * 1000000L};
        int number = sigtimedwait(awaited, NULL, &look);
        if (number > 0) take_signal(s, number);
        take_ended(s);
        bool overdue = s->failed_at != 0 && clock_seconds() - s->failed_at > PATIENCE_S;
        if (overdue && !s->terms->tolerant && !s->killing) kill_ranks(s);
    }
}

static void print_statuses(const Spawn *s) {
    printf("[weft@local] Exit codes: [local] ");
    for (int i = 0; i < s->terms->ranks; i++) printf("%s%d", i ? "," : "", s->status[i]);
    printf("\n");
}

static ErrorCode judge(const Spawn *s, Error *err) {
    char name[32];
    if (s->asked) return error_set(err, (ErrorCode)(128 + SIGQUIT), "the ranks were killed: SIGQUIT");
    for (int i = 0; i < s->terms->ranks && s->terms->tolerant; i++)
        if (!is_bad(s->status[i])) return OK;
    for (int i = 0; i < s->terms->ranks; i++) {
        int status = s->status[i];
        if (WIFSIGNALED(status))
            return error_set(err, (ErrorCode)(128 + WTERMSIG(status)), "rank %d was killed by %s",
                             s->terms->first + i, launch_signal_name(WTERMSIG(status), name));
    }
    for (int i = 0; i < s->terms->ranks; i++) {
        if (!is_bad(s->status[i])) continue;
        error_set(err, (ErrorCode)WEXITSTATUS(s->status[i]), "rank %d ended with exit status %d",
                  s->terms->first + i, WEXITSTATUS(s->status[i]));
        err->reported = true; /* it has said why */
        return err->code;
    }
    return OK;
}

ErrorCode sockets_spawn(const SpawnTerms *terms, char *const *words, Error *err) {
    static const int taken[] = {SIGCHLD, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
    Spawn s = {.terms = terms};
    sigset_t awaited;
    choose_place(&s);
    s.ranks = mem_alloc_array((size_t)terms->ranks, sizeof *s.ranks);
    s.status = mem_alloc_array((size_t)terms->ranks, sizeof *s.status);
    sigemptyset(&awaited);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) sigaddset(&awaited, taken[i]);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &awaited, &s.before);
    ErrorCode code = start(&s, words, err);
    signal(SIGINT, SIG_IGN);
    watch(&s, &awaited);
    if (code == OK) code = judge(&s, err);
    if (launched_reports()) {
        print_statuses(&s);
        if (code != OK) err->reported = true;
    }
    free(s.ranks);
    free(s.status);
    return code;
}
