/* The signals that end a run in an orderly way, and the thread that takes them: see signals.h. The trainer
 * waits for this set; the supervisor passes it on. */
#include "base/signals.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Runs before any library's constructor, where not even a sanitizer's runtime has started. Hence the raw
 * system call; the first word of its result is the handler. */
static unsigned long left_by_parent[8];
__attribute__((no_sanitize("address", "thread", "undefined"))) static void look(void) {
    syscall(SYS_rt_sigaction, SIGHUP, NULL, left_by_parent, sizeof(long));
}
__attribute__((section(".preinit_array"), used)) static void (*const look_first)(void) = look;

void signals_restore(void) {
    struct sigaction now;
    bool ignored = left_by_parent[0] == (unsigned long)SIG_IGN;
    if (sigaction(SIGHUP, NULL, &now) != 0 || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) return;
    signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
}

void signals_to_stop(sigset_t *set) {
    struct sigaction hangup;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(set, SIGHUP);
}

/* Written before the thread starts, and never after. */
static sigset_t awaited;
static void (*take)(int number);

static void *wait_for_signals(void *unused) {
    (void)unused;
    for (;;) {
        int number;
        if (sigwait(&awaited, &number) == 0) take(number);
    }
    return NULL;
}

/* Not among the signals that stop a run: only the launcher sends it, for the user's second SIGINT. */
static void signals_of_run(sigset_t *set) {
    signals_to_stop(set);
    sigaddset(set, SIGUSR2);
}

void signals_unblock(void) {
    sigset_t set;
    signals_of_run(&set);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

ErrorCode signals_take(void (*taken)(int number), Error *err) {
    pthread_t thread;
    take = taken;
    signals_of_run(&awaited);
    pthread_sigmask(SIG_BLOCK, &awaited, NULL);
    errno = pthread_create(&thread, NULL, wait_for_signals, NULL);
    if (errno != 0) return error_errno(err, ERR_UNAVAILABLE, "cannot start the thread that takes signals");
    pthread_detach(thread);
    return OK;
}
