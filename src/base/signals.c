/* Which signals end a run well, and the thread that takes them: see signals.h. The set is asked for by the
 * trainer, which waits for them, and by the supervisor, which passes them on. */
#include "base/signals.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

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
