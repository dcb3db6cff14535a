/* The transport, the lower layer of comm/, carries bytes from rank to rank. It posts sends and receives and
 * reports which of them have ended. It knows nothing of sums, streams or the mesh; everything that determines
 * bits (order) is above it.
 *
 *     mpi/       processes that a launcher started
 *     sockets/   processes that meet at an address
 *     loopback/  ranks that are threads of one process: for tests
 *
 * Rules
 *  1. Calls for one rank are serialised (its Comm holds a mutex).
 *  2. Between two ranks, on one channel and with one tag, the k-th send matches the k-th receive. Messages of
 *     different channels never match.
 *  3. Posting a send or receive returns at once. Its buffer is in use until `finished` or `test` reports the
 *     end. Between `begin` and `end` a transport may hold posts back; the caller must not wait there.
 *  4. An event is a number below `events`, chosen by the caller. It can be used again once its end was
 *     reported.
 *  5. Nothing is allocated after the last join, except by MPI itself, and by sockets for agreements, for
 *     failures, and for messages that arrive before their receives are posted once the pools are empty (4,096
 *     offers, 512 short messages). */
#ifndef WEFT_COMM_TRANSPORT_H
#define WEFT_COMM_TRANSPORT_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRANSPORT_CHANNELS = 72, TRANSPORT_ANY = -1 /* peer of a receive */, TRANSPORT_OK = 0 };

typedef struct CommTransport CommTransport;

typedef struct TransportPost {
    int channel, peer; /* peer: its rank in the channel */
    int64_t tag;       /* below CommTransport.tags */
    size_t bytes;
    int event;
} TransportPost;

typedef struct TransportEnd {
    int event;
    int error;    /* TRANSPORT_OK, or a number that `explain` knows */
    size_t bytes; /* of a receive: bytes that arrived */
} TransportEnd;

typedef struct TransportKind {
    const char *name;
    /* Collective: all ranks call it equally often and in the same order. Ranks of one colour share a channel,
     * each with the rank `key`, 0 .. size-1. */
    int (*join)(CommTransport *transport, int colour, int key, int size, int *channel);
    int (*send)(CommTransport *transport, const TransportPost *post, const void *data);
    int (*receive)(CommTransport *transport, const TransportPost *post, void *data);
    void (*begin)(CommTransport *transport);
    void (*end)(CommTransport *transport);
    /* Reports up to `most` ends without waiting. Returns how many, or -1 with *error set. */
    int (*finished)(CommTransport *transport, TransportEnd *ends, int most, int *error);
    /* Whether this event has ended. Does not wait and touches no other event. */
    bool (*test)(CommTransport *transport, int event, TransportEnd *end);
    void (*explain)(int error, char *out, size_t size);
    /* Ends this process and, if it can, those of the other ranks. */
    void (*abort)(CommTransport *transport, int status);
    /* Collective, unless ranks have failed. Open posts are abandoned. */
    void (*close)(CommTransport *transport);
    /* Whether a rank is known to be dead; NULL: this transport does not know. */
    bool (*is_gone)(CommTransport *transport, int rank);

    /* For transports whose ranks can go on without those that died (repair.c); otherwise these are NULL. */
    /* Whether this one can; if not, why. */
    bool (*can_repair)(CommTransport *transport, char *problem, size_t size);
    /* Collective: all ranks can, and may do so from now on. May change `tags`. */
    int (*allow_repair)(CommTransport *transport);
    /* Ends the open receives of all ranks, which `finished` then reports; sends to living ranks may stay
     * open. Later posts and joins fail. */
    void (*revoke)(CommTransport *transport);
    /* Collective over the ranks that live, after revoke, when no receive is open. Gives up all channels and
     * open sends, and renumbers the ranks: rank p of now was old[p]. A failure may concern this rank alone;
     * `size` and old[] say whether it came before or after the ranks were renumbered. */
    int (*shrink)(CommTransport *transport, int *old /* [size before], filled with 0, 1, ... */);
    /* Collective over the living ranks. Returns whether all are well and none has died since shrink; all
     * ranks get the same answer. Over sockets agree and shrink end this process if it belongs to the smaller
     * part of a divided job. */
    bool (*agree)(CommTransport *transport, bool well);
    /* The next two: NULL if the transport cannot do it. */
    /* Until the next shrink these ranks join no channel and are not waited for there; they take part in agree
     * and shrink alone. local_rank, local_size and local_cores are without them. Collective over all ranks,
     * which have nothing under way; open posts are abandoned. */
    void (*set_aside)(CommTransport *transport, const bool *aside /* [size] */);
    /* Ends the process of another rank, with this status. */
    void (*dismiss)(CommTransport *transport, int rank, int status);
} TransportKind;

struct CommTransport {
    const TransportKind *kind;
    int rank, size, local_rank, local_size; /* local: of this machine */
    int local_cores;                        /* cores that any rank of this machine may run on */
    uint64_t *hosts; /* [size] machine of each rank; NULL: not known. The Comm frees it. */
    int64_t tags;    /* a power of two, at least 2^18 */
};

/* Where a rank runs. */
typedef struct TransportPlace {
    uint64_t host; /* equal numbers: one machine */
    cpu_set_t cores;
} TransportPlace;

/* ---- local_ranks.c ---- */
/* The cores that this process may run on; with more than a set can hold, none. */
void transport_own_cores(cpu_set_t *out);
/* Sets local_rank, local_size, local_cores and hosts. A launcher may bind each rank to cores of its own, or
 * allow all cores to all: the ranks share the union of their cores. */
void transport_find_local(CommTransport *transport, const TransportPlace *places /* [size], of all ranks */);
/* Consecutive ranks of each of several machines, where these have equally many; 0: otherwise. */
int transport_machine_ranks(const uint64_t *hosts, int size);

#endif
