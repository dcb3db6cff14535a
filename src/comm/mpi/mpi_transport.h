/* Ranks that a launcher started, over MPI. The files of this directory are the only ones that know MPI. */
#ifndef WEFT_COMM_MPI_TRANSPORT_H
#define WEFT_COMM_MPI_TRANSPORT_H

#include "base/error.h"
#include "comm/transport.h"

/* Joins the others, once in the life of a process. `events` is how many posts may be open at a time;
 * `variable` is what says that a launcher is there, for messages. */
ErrorCode mpi_transport_open(CommTransport **transport, int events, const char *variable, Error *err);

#endif
