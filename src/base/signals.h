/* Signals that ask a run to save and end. */
#ifndef WEFT_BASE_SIGNALS_H
#define WEFT_BASE_SIGNALS_H

#include <signal.h>

#include "base/error.h"

/* Call it first in main: restores SIGHUP to what the parent process left. A library may install its own
 * handler before main begins (UCX, which comes with Debian's MPICH, does): nohup would have no effect, and a
 * run would end in that handler. */
void signals_restore(void);

/* SIGINT, SIGTERM, SIGUSR1 (of batch systems), and SIGHUP (of a terminal that closes) unless it is ignored,
 * as under nohup, where the run must continue. A blocked signal is delivered even if it is ignored, so call
 * this before blocking it. */
void signals_to_stop(sigset_t *set);

/* Blocks these signals and SIGUSR2 in this thread and in all that it starts. A dedicated thread calls `taken`
 * with each signal that arrives, until the process ends. Call it once, before there are other threads.
 * ERR_UNAVAILABLE if no thread can be started.
 *
 * This is not a handler, because oneDNN's AVX2 and AVX-512 kernels keep the stack pointer in a workspace on
 * the heap during long sums (in all versions up to 3.11): the frame of a handler that runs meanwhile
 * overwrites whatever precedes that workspace (uxlfoundation/oneDNN, issue 4845). No handler may run on a
 * thread that computes. */
ErrorCode signals_take(void (*taken)(int number), Error *err);
/* Unblocks them in this thread, before it becomes another program. */
void signals_unblock(void);

#endif
