/* Transport over MPI, for ranks that a launcher started. Only the files of this directory know MPI. */
#ifndef WEFT_COMM_MPI_TRANSPORT_H
#define WEFT_COMM_MPI_TRANSPORT_H

#include "base/error.h"
#include "comm/transport.h"

/* Joins the other ranks; possible once in the life of a process. `events` limits the posts that are open at a
 * time. `variable` names the environment variable that shows the launcher, for messages. */
ErrorCode mpi_transport_open(CommTransport **transport, int events, const char *variable, Error *err);

#endif
