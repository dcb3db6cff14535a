/* What carries bytes from rank to rank: the lower storey of comm/. A transport posts sends and receives and
 * says which of them have ended; it knows nothing of sums, streams or the mesh. What makes bits (order)
 * stands above it.
 *
 *     mpi/       processes that a launcher started
 *     loopback/  ranks that are threads of one process: for tests
 *
 * Rules
 *  1. Calls of one rank come one at a time (its Comm holds a mutex).
 *  2. Between two ranks, on one channel and with one tag, the k-th send meets the k-th receive. A channel's
 *     messages never meet those of another.
 *  3. A post returns at once. Its memory belongs to the transport until finished or test has told its end.
 *     What stands between begin and end may be held back until end: nobody waits in between.
 *  4. An event is a number below `events`, chosen by the caller, free when its end was told.
 *  5. Nothing is allocated after the last join. */
#ifndef WEFT_COMM_TRANSPORT_H
#define WEFT_COMM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRANSPORT_CHANNELS = 72, TRANSPORT_ANY = -1 /* peer of a receive */, TRANSPORT_OK = 0 };

typedef struct CommTransport CommTransport;

typedef struct TransportPost {
    int channel, peer; /* peer: its place in the channel */
    int64_t tag;       /* below CommTransport.tags */
    size_t bytes;
    int event;
} TransportPost;

typedef struct TransportEnd {
    int event;
    int error;    /* TRANSPORT_OK, or a number that `explain` knows */
    size_t bytes; /* of a receive: what came */
} TransportEnd;

typedef struct TransportKind {
    const char *name;
    /* All ranks call it, as often and in the same order. Ranks of one colour share a channel, each at its
     * place of 0 .. size-1. */
    int (*join)(CommTransport *transport, int colour, int place, int size, int *channel);
    int (*send)(CommTransport *transport, const TransportPost *post, const void *data);
    int (*receive)(CommTransport *transport, const TransportPost *post, void *data);
    void (*begin)(CommTransport *transport);
    void (*end)(CommTransport *transport);
    /* Up to `most` ends; never waits. Returns how many, or -1 with *error set. */
    int (*finished)(CommTransport *transport, TransportEnd *ends, int most, int *error);
    /* Whether one event has ended; never waits, touches no other. */
    bool (*test)(CommTransport *transport, int event, TransportEnd *end);
    void (*explain)(int error, char *out, size_t size);
    /* Ends this process and, if it can, those of the other ranks. */
    void (*abort)(CommTransport *transport, int status);
    /* All ranks call it, or have failed. What is still posted is given up. */
    void (*close)(CommTransport *transport);
} TransportKind;

struct CommTransport {
    const TransportKind *kind;
    int rank, size, local_rank, local_size; /* local: of this machine */
    int local_cores;                        /* that any of its ranks may run on */
    int64_t tags;                           /* a power of two, at least 2^18 */
};

#endif
