/* Signals that ask a run to save and end. */
#ifndef WEFT_BASE_SIGNALS_H
#define WEFT_BASE_SIGNALS_H

#include <signal.h>

/* SIGINT, SIGTERM, SIGUSR1 (of batch systems), and SIGHUP (of a terminal that closes) unless it is ignored,
 * as nohup leaves it: who said nohup wants the run to go on. A blocked signal comes even where it is ignored,
 * so this is asked before it is blocked. */
void signals_to_stop(sigset_t *set);

#endif
