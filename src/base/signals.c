/* Which signals end a run well: see signals.h. The set is asked for by the trainer, which waits for them,
 * and by the supervisor, which passes them on. */
#include "base/signals.h"

#include <stddef.h>

void signals_to_stop(sigset_t *set) {
    struct sigaction hangup;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(set, SIGHUP);
}
