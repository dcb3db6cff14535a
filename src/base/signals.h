/* Signals that ask a run to save and end. */
#ifndef WEFT_BASE_SIGNALS_H
#define WEFT_BASE_SIGNALS_H

#include <signal.h>

#include "base/error.h"

/* First of all in main: SIGHUP is again as the program's parent left it. A library may have put a handler of
 * its own before main begins (UCX, which comes with Debian's MPICH, does): nohup would be lost, and a run end
 * in that handler. */
void signals_restore(void);

/* SIGINT, SIGTERM, SIGUSR1 (of batch systems), and SIGHUP (of a terminal that closes) unless it is ignored,
 * as nohup leaves it: who said nohup wants the run to go on. A blocked signal comes even where it is ignored,
 * so this is asked before it is blocked. */
void signals_to_stop(sigset_t *set);

/* From now on these and SIGUSR2 are blocked in this thread and in all that it starts, and a thread of their
 * own calls `taken` with each that comes, until the process ends. To be called once, before there are other
 * threads. ERR_UNAVAILABLE where no thread can be had.
 *
 * Not a handler: AVX2 and AVX-512 kernels of oneDNN keep the stack pointer in a workspace on the heap where
 * a sum is long (in all versions up to 3.11), and the frame of a handler that comes meanwhile is written
 * over whatever lies before it (uxlfoundation/oneDNN, issue 4845). No handler may run on a thread that
 * computes. */
ErrorCode signals_take(void (*taken)(int number), Error *err);

#endif
