/* The processes of a run ("ranks"), and what they tell each other. One Comm a process.
 *
 * Alone, or one of many. comm_open joins the others when a launcher (mpirun, srun, ...) started this process;
 * otherwise there is one rank, MPI is never initialised, and every call below works trivially.
 *
 * Rules
 *  1. Groups are sets of axes (comm/mesh.h). All ranks of a group start the same operations on that set, in
 *     the same order, with the same sizes. Different sets and point-to-point messages are independent of each
 *     other.
 *  2. Operations are started and go on by themselves: whenever the program calls comm_poll, waits, or has a
 *     progress thread. Memory that takes part belongs to the operation until it has ended. Nothing is
 *     allocated by operations after comm_set_mesh, but for a record of comm_combine larger than any before,
 *     and what comm_gather returns.
 *  3. Results do not depend on timing: fp32 sums are taken in one canonical tree over the ranks of the group
 *     (base/tree.h), in one step or in two. Integer sums are exact (modulo 2^64).
 *  4. Data crosses the network once: each rank sends and receives (n-1)/n of the data in an all-gather or a
 *     reduce-scatter, twice that in an all-reduce. The outer step of a sum in two steps is an all-reduce that
 *     sends more only where the tree needs it.
 *  5. The first failure stays: every later call returns it. A failure of one rank is made the failure of all
 *     by comm_agree (while everyone takes part, as in setup) or comm_fail (while others may be waiting).
 *  6. Calls come from one thread; the progress thread and the watchdog are this module's own.
 *
 * Pointers are tensor memory in the asynchronous operations, plain memory in the small blocking ones. What a
 * device has in memory of its own goes over communicators (communicators.c), or through the host's
 * (staging.c). Sizes are elements or bytes, as named; any size works, 0 too. */
#ifndef WEFT_COMM_COMM_H
#define WEFT_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/mesh.h"
#include "device/device.h"

typedef struct Comm Comm;

/* ---- processes ---- */

/* Over MPI when a launcher is there. ERR_UNAVAILABLE when the launcher and the MPI library do not
 * understand each other: then every process would believe that it is alone and all would do the same work. */
ErrorCode comm_open(Comm **c, Error *err);

/* How ranks that hang are found. A wait in which nothing arrives for `seconds` (0: never) while no rank is at
 * work that moves on (log.h progress_beat) ends all ranks with ERR_PEER. Printed is what each rank waits for
 * and is doing, or is busy with: `describe` writes that to out; it is called from other threads, from
 * comm_open to the end of comm_close. The last line says which ranks do not answer, or keep the others
 * waiting. A rank that was asleep meanwhile (stopped, say) does not count that time. Starting and ending MPI
 * may take 30 seconds, however short the limit. */
typedef struct CommWatch {
    double seconds;
    void (*describe)(void *context, char *out, size_t size);
    void *context;
} CommWatch;
/* The same as comm_open, watched from before MPI starts until after it ends. Once all ranks are there the
 * longest of their limits is that of all. */
ErrorCode comm_open_watched(Comm **c, const CommWatch *watch, Error *err);
/* Over a transport of the caller's making (comm/loopback), which is now the Comm's and holds COMM_EVENTS;
 * NULL: alone. Watched, from when all ranks are there. */
typedef struct CommTransport CommTransport;
enum { COMM_EVENTS = 50176 };
ErrorCode comm_open_transport(Comm **c, CommTransport *transport, Error *err);
ErrorCode comm_open_transport_watched(Comm **c, CommTransport *transport, const CommWatch *watch, Error *err);
/* All ranks must call it, after success or an agreed failure; NULL is fine. A rank that fails alone calls
 * comm_fail instead. */
void comm_close(Comm *c);
/* Another MPI_Init in this process is impossible, so all of a process's work is between one comm_open and one
 * comm_close. */

int comm_rank(const Comm *c);
int comm_size(const Comm *c);
int comm_local_rank(const Comm *c); /* among the ranks of this machine */
int comm_local_size(const Comm *c); /* ranks of this machine: they share its cores */
/* Cores that any of them may run on; 0: not known, or one rank. */
int comm_local_cores(const Comm *c);

/* Groups of every set of axes. All ranks must call it with the same mesh, whose world must be comm_size.
 * Once. */
ErrorCode comm_set_mesh(Comm *c, const Mesh *mesh, Error *err);
/* Axes of one rank make no difference to a set. */
int comm_group_rank(Comm *c, AxisSet set);
int comm_group_size(Comm *c, AxisSet set);

/* Whose sum_parts adds up what arrives while the program polls or waits; without one, or in the progress
 * thread, a single-threaded device of this module's own does. The bits are the same. */
void comm_set_device(Comm *c, Device *device); /* NULL before it closes */

/* After comm_set_mesh and comm_set_device, by all ranks: from here on tensors go from GPU to GPU, where every
 * rank has one of its own and communicators (device.h) to the others. `problem`: why they do not, "" where
 * they do or the device is a CPU. Then the host waits for no operation: it runs behind what ON_COMPUTE had
 * when it was started, and comm_wait lets ON_COMPUTE follow it. Sets other than those of MESH_SHARDS to
 * MESH_CONTEXT have no communicators, and may have no operations. Until comm_set_device. */
ErrorCode comm_open_communicators(Comm *c, const Mesh *mesh, char *problem, size_t size, Error *err);

/* ---- asynchronous operations ---- */

typedef enum CommType { COMM_F32, COMM_I64 } CommType;

/* An operation under way. 0 is one that has ended, so that a zeroed request may be waited for. A request need
 * not be waited for and may be any number of times. */
typedef uint64_t CommRequest;

/* What one rank of a group has of a whole: elements from `first` on. The parts of a whole are told to every
 * operation by all its ranks alike, [size of the group], and must stay until it has ended. They may be of any
 * sizes, none too, in any order, and do not overlap. */
typedef struct CommRange {
    int64_t first, count;
} CommRange;
int64_t comm_whole(const CommRange *ranges, int ranks);   /* elements up to the end of the last */
int64_t comm_largest(const CommRange *ranges, int ranks); /* elements of one */

/* Each rank has its part of `all` in place, and gets the others; width: bytes of an element. */
ErrorCode comm_all_gather(Comm *c, AxisSet set, const CommRange *ranges, size_t width, void *all,
                          CommRequest *request, Error *err);
/* out = sum over ranks of this rank's part of their `in`. out may be that part, and else must lie outside. */
ErrorCode comm_reduce_scatter(Comm *c, AxisSet set, CommType type, const CommRange *ranges,
                              const void *in /* [whole] */, void *out /* [own part] */, void *workspace,
                              CommRequest *request, Error *err);
/* data = sum over ranks of their data. */
ErrorCode comm_all_reduce(Comm *c, AxisSet set, CommType type, void *data /* [count] */, int64_t count,
                          void *workspace, CommRequest *request, Error *err);
/* Each rank has an equal piece for each, and gets one from each: to[p] = the piece of rank p for this one. */
ErrorCode comm_all_to_all(Comm *c, AxisSet set, size_t each /* bytes */, const void *from /* [ranks, each] */,
                          void *to /* [ranks, each], elsewhere */, CommRequest *request, Error *err);
/* Each rank has a piece of any size for each, none too: out[p] says which elements of `from` go to rank p,
 * in[p] which of `to` come from there. Both are [size of the group], and must stay until it has ended; what
 * one rank sends another, that one expects. */
ErrorCode comm_all_to_all_v(Comm *c, AxisSet set, size_t width, const CommRange *out, const void *from,
                            const CommRange *in, void *to, CommRequest *request, Error *err);
/* One sum over the sets inner and outer (whose axes lie outside those of inner) in two steps, which may be
 * some time apart: comm_sum_inner leaves this rank's part of the sum over inner, comm_sum_outer makes it
 * the sum over both. Then the part has the bits of one sum over inner | outer; all else of `data` is used up
 * from the first step on. Where the groups of inner are no blocks of the canonical tree (a size that is no
 * power of two), the inner step leaves several sums, and the outer one sends them all
 * (comm_sum_outer_traffic): until then they lie where parts were that are as large as this rank's own, or
 * behind the whole, where there must be room for comm_sum_spare more elements. */
ErrorCode comm_sum_inner(Comm *c, AxisSet inner, AxisSet outer, CommType type,
                         const CommRange *ranges /* of inner */, void *data /* [whole and spare] */,
                         void *workspace, CommRequest *request, Error *err);
ErrorCode comm_sum_outer(Comm *c, AxisSet inner, AxisSet outer, CommType type,
                         const CommRange *ranges /* of inner */, void *data /* [whole and spare] */,
                         void *workspace, CommRequest *request, Error *err);
/* Of the rank at these places of the two groups, of so many ranks each. */
int64_t comm_sum_spare(int inner, int outer, int inner_place, int outer_place, CommType type,
                       const CommRange *ranges);
/* Bytes of tensor memory that an operation needs while it is under way, for a group of `ranks`. Operations of
 * one group may share a workspace: the later then waits for the earlier. With two in turn nothing is lost:
 * COMM_TURNS of a group move at a time. */
enum { COMM_TURNS = 2 };
size_t comm_reduce_scatter_workspace(int ranks, CommType type, int64_t largest /* part */);
size_t comm_all_reduce_workspace(int ranks, CommType type, int64_t count);
/* Of comm_sum_outer on a part of `count`; comm_sum_inner needs that of a reduce-scatter. */
size_t comm_sum_outer_workspace(int inner, int outer, CommType type, int64_t count);

/* What a message is: of which kind, for which stage, and its running number (step * microbatches +
 * microbatch). Sends and receives may come in any order. Under way between two ranks may be messages of one
 * kind and stage whose numbers lie less than 524,288 apart (MPI libraries with few tags: 64); beyond that one
 * may be taken for another, which is an error, never silent. */
enum { COMM_KINDS = 3, COMM_STAGES = 1024 };
static inline uint64_t comm_key(int kind, int stage, int64_t number) {
    return (uint64_t)number << 12 | (uint64_t)(unsigned)stage << 2 | (unsigned)kind;
}
enum { COMM_HEADER = 16 }; /* bytes that go before a message: its key, and its size */
/* `peer` is a rank of the world, not this one. A message of another size than the receiver expects is an
 * error there. */
ErrorCode comm_send(Comm *c, int peer, uint64_t key, const void *data, size_t bytes, CommRequest *request,
                    Error *err);
ErrorCode comm_recv(Comm *c, int peer, uint64_t key, void *data, size_t bytes, CommRequest *request,
                    Error *err);

/* Returns when the operation has ended. */
ErrorCode comm_wait(Comm *c, CommRequest request, Error *err);
/* *done: has it ended? Moves things on, as comm_poll. */
ErrorCode comm_test(Comm *c, CommRequest request, bool *done, Error *err);
/* Moves on whatever is under way as far as that goes without waiting: to be called between the actions of a
 * step. */
ErrorCode comm_poll(Comm *c, Error *err);

/* A thread that polls while anything is under way. It needs a share of a core. No-op when alone, in the guard
 * build, and with a device that has memory of its own, which is one thread's. */
ErrorCode comm_start_progress(Comm *c, Error *err);

/* ---- small blocking ones; all ranks of the world take part ---- */

ErrorCode comm_barrier(Comm *c, Error *err);
/* record = the records of all ranks, combined in one tree over runs of ranks, lower ones on the left: the
 * same bytes on all ranks. `combine` must be associative, but for last bits where those do not matter.
 * About log2(ranks) messages a rank. */
ErrorCode comm_combine(Comm *c, void *record, size_t bytes, void (*combine)(void *into, const void *from),
                       Error *err);
/* Combinations: sums of one number. */
void comm_add_int64(void *into, const void *from);
void comm_add_double(void *into, const void *from);
ErrorCode comm_broadcast(Comm *c, void *data, size_t bytes, int root, Error *err);
/* On rank 0: *all is the pieces of all ranks, one after the other (to be freed), lengths[p] the bytes of
 * each. Elsewhere *all is NULL and lengths is not touched. */
ErrorCode comm_gather(Comm *c, const void *mine, size_t bytes, char **all, size_t *lengths /* [comm_size] */,
                      Error *err);

/* ---- failures ---- */

/* Each rank brings what became of something that all have just done. Returns OK if it worked everywhere; else
 * the code and the message of the lowest rank that failed, on all ranks. All but that rank have err->reported
 * set: the message is printed once. */
ErrorCode comm_agree(Comm *c, ErrorCode code, Error *err);

/* Prints an agreed failure that goes up to the end of the program, on the rank whose it is, and sets
 * err->reported. To be called before comm_close: once a rank has ended with a status, a launcher may end the
 * others, before they have printed anything. No-op when there is one rank. */
void comm_report(Comm *c, Error *err);

/* This rank has failed while others may be waiting for it: says why, once, with its rank, and ends all ranks
 * within seconds, with err->code as the exit status. When several fail at the same time one of them prints,
 * the first that rank 0 hears of. Returns only when there is one rank: its error goes up as any other. */
void comm_fail(Comm *c, const Error *err);

/* ---- counters ---- */

/* What collectives and messages of this rank sent since the last reset, to the byte, the COMM_HEADER of
 * each message included. The small blocking operations are not counted. */
typedef struct CommTraffic {
    int64_t bytes, messages;
} CommTraffic;
CommTraffic comm_traffic(Comm *c, AxisSet set); /* collectives that were asked for over it */
CommTraffic comm_point_traffic(Comm *c);        /* comm_send */
void comm_reset_traffic(Comm *c);
/* Elements that the rank at `place` of a group sends: what the counters must show. Its part goes to everyone
 * in an all-gather, everyone's part to its owner in a reduce-scatter. */
int64_t comm_gather_traffic(const CommRange *ranges, int ranks, int place);
int64_t comm_scatter_traffic(const CommRange *ranges, int ranks, int place);
/* Bytes, of comm_sum_outer, at one place of the outer group; inner 1: of an all-reduce. */
int64_t comm_sum_outer_traffic(int inner, int outer, int place, CommType type, int64_t count);

#endif
