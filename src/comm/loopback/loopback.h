/* A transport for tests, whose ranks are threads of one process. A message is copied when its receive is
 * posted: nothing is sent eagerly, as over a network where no message is small. On request ends are reported
 * late and out of order, to expose dependence on timing. */
#ifndef WEFT_COMM_LOOPBACK_H
#define WEFT_COMM_LOOPBACK_H

#include "comm/transport.h"

typedef struct Loopback Loopback;

/* seed 0: ends are reported at once; otherwise after a number of polls drawn from it. */
Loopback *loopback_new(int ranks, int events, uint64_t seed);
/* Call it after all transports were closed. */
void loopback_free(Loopback *hub);
/* The transport of one rank. close concerns this rank alone; join waits for the others. */
CommTransport *loopback_transport(Loopback *hub, int rank);

#endif
