/* Ranks in one process: a transport for tests, whose ranks are threads. What is sent is copied when its
 * receive is there (no message goes ahead of it, as over a network where none is small), and ends are told
 * late and out of order if asked for, so that whatever hangs on timing is found. */
#ifndef WEFT_COMM_LOOPBACK_H
#define WEFT_COMM_LOOPBACK_H

#include "comm/transport.h"

typedef struct Loopback Loopback;

/* seed 0: ends are told at once; else after a number of looks drawn from it. */
Loopback *loopback_new(int ranks, int events, uint64_t seed);
/* After all transports were closed. */
void loopback_free(Loopback *hub);
/* The transport of one rank. Its close is a matter of this rank alone; join waits for the others. */
CommTransport *loopback_transport(Loopback *hub, int rank);

#endif
