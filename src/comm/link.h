/* What carries bytes from rank to rank: the lower storey of comm/. A link posts sends and receives and says
 * which of them have ended; it knows nothing of sums, streams or the mesh. What makes bits (order) stands
 * above it.
 *
 *     mpi/       processes that a launcher started
 *     loopback/  ranks that are threads of one process: for tests
 *
 * Rules
 *  1. Calls of one rank come one at a time (its Comm holds a mutex).
 *  2. Between two ranks, on one channel and with one tag, the k-th send meets the k-th receive. A channel's
 *     messages never meet those of another.
 *  3. A post returns at once. Its memory belongs to the link until finished or test has told its end. What
 *     stands between begin and end may be held back until end: nobody waits in between.
 *  4. An event is a number below `events`, chosen by the caller, free when its end was told.
 *  5. Nothing is allocated after the last join. */
#ifndef WEFT_COMM_LINK_H
#define WEFT_COMM_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LINK_CHANNELS = 72, LINK_ANY = -1 /* peer of a receive */, LINK_OK = 0 };

typedef struct Link Link;

typedef struct LinkPost {
    int channel, peer; /* peer: its place in the channel */
    int64_t tag;       /* below Link.tags */
    size_t bytes;
    int event;
} LinkPost;

typedef struct LinkEnd {
    int event;
    int error;    /* LINK_OK, or a number that `explain` knows */
    size_t bytes; /* of a receive: what came */
} LinkEnd;

typedef struct LinkKind {
    const char *name;
    /* All ranks call it, as often and in the same order. Ranks of one colour share a channel, each at its
     * place of 0 .. size-1. */
    int (*join)(Link *link, int colour, int place, int size, int *channel);
    int (*send)(Link *link, const LinkPost *post, const void *data);
    int (*receive)(Link *link, const LinkPost *post, void *data);
    void (*begin)(Link *link);
    void (*end)(Link *link);
    /* Up to `most` ends; never waits. Returns how many, or -1 with *error set. */
    int (*finished)(Link *link, LinkEnd *ends, int most, int *error);
    /* Whether one event has ended; never waits, touches no other. */
    bool (*test)(Link *link, int event, LinkEnd *end);
    void (*explain)(int error, char *out, size_t size);
    /* Ends this process and, if it can, those of the other ranks. */
    void (*abort)(Link *link, int status);
    /* All ranks call it, or have failed. What is still posted is given up. */
    void (*close)(Link *link);
} LinkKind;

struct Link {
    const LinkKind *kind;
    int rank, size, local_rank, local_size; /* local: of this machine */
    int local_cores;                        /* that any of its ranks may run on */
    int64_t tags;                           /* a power of two, at least 2^18 */
};

#endif
