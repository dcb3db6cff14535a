/* Transport over sockets, for ranks that no MPI library joins: Unix sockets inside a machine, TCP between
 * machines. Each pair of ranks has a connection of its own, which fails by itself: the others hear of a
 * killed rank from its kernel, and of a lost machine or a cut cable after some seconds (SOCKETS_SILENCE). So
 * ranks can go on without those that died (comm/repair.h), with no support by a launcher.
 *
 * Elsewhere called: Gloo (PyTorch), btl tcp (Open MPI); the rendezvous: MASTER_ADDR, TCPStore (torchrun). */
#ifndef WEFT_COMM_SOCKETS_H
#define WEFT_COMM_SOCKETS_H

#include "base/error.h"
#include "comm/transport.h"

/* Environment variables: where the ranks meet, "HOST:PORT", at which rank 0 listens, or "@NAME", a name
 * known on one machine only. If it is set, ranks are joined by sockets. Ranks with another SOCKETS_KEY (any
 * text) are turned away. */
#define SOCKETS_MEET "WEFT_MEET"
#define SOCKETS_KEY "WEFT_MEET_KEY"
/* A connection between machines on which nothing was heard for so many seconds is lost; 10 if not set, at
 * least 4, and half as much again. The kernels ask and answer, so a rank may compute as long as it likes. */
#define SOCKETS_SILENCE "WEFT_SILENCE_S"

/* Seconds for which ranks wait for each other at the start; 60 if not set. */
#define SOCKETS_PATIENCE "WEFT_MEET_S"

/* Joins the other ranks at SOCKETS_MEET. `events`: posts that may be open at a time. ERR_USAGE for a wrong
 * address or rank, ERR_PEER if not all ranks come in time; *transport is NULL then. */
ErrorCode sockets_transport_open(CommTransport **transport, int rank, int ranks, int events, Error *err);

#endif
