/* Which signals end a run well, and the thread that takes them: see signals.h. The set is asked for by the
 * trainer, which waits for them, and by the supervisor, which passes them on. */
#include "base/signals.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Looked at before any library's constructor runs, where not even a sanitizer's runtime has begun: hence the
 * bare call, of whose answer the handler is the first word. */
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

/* Written before the thread begins, and by nobody later. */
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

ErrorCode signals_take(void (*taken)(int number), Error *err) {
    pthread_t thread;
    take = taken;
    signals_to_stop(&awaited);
    /* Not among the signals to stop: only the launcher sends it, for the user's second SIGINT. */
    sigaddset(&awaited, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &awaited, NULL);
    errno = pthread_create(&thread, NULL, wait_for_signals, NULL);
    if (errno != 0) return error_errno(err, ERR_UNAVAILABLE, "cannot start the thread that takes signals");
    pthread_detach(thread);
    return OK;
}
