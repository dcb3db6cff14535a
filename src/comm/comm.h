/* Communication between the processes of a run (the ranks). Each process has one Comm.
 *
 * comm_open joins the other ranks when a launcher (mpirun, srun, weft launch) started this process. Otherwise
 * there is one rank, MPI is never initialised, and every call below works trivially.
 *
 * Rules
 *  1. Groups are sets of axes (comm/mesh.h). All ranks of a group start the same operations on that set, in
 *     the same order, with the same sizes. Operations on different sets and point-to-point messages are
 *     independent of each other.
 *  2. Operations are asynchronous. They make progress whenever the program calls comm_poll or waits, or in
 *     the progress thread. The memory passed to an operation belongs to it until it has ended. After
 *     comm_set_mesh operations allocate nothing, except for a record of comm_combine larger than any before,
 *     the result of comm_gather, and what the transport allocates (transport.h, rule 5).
 *  3. Results do not depend on timing. fp32 sums are taken in one canonical tree over the ranks of the group
 *     (base/tree.h), whether in one step or in two. Integer sums are exact (modulo 2^64).
 *  4. Data crosses the network once: each rank sends and receives (n-1)/n of the data in an all-gather or a
 *     reduce-scatter, and twice that in an all-reduce. The outer step of a two-step sum is an all-reduce that
 *     sends more only where the tree needs it.
 *  5. Collectives over several machines have two levels (Mesh.machine): comm_all_gather, comm_all_reduce,
 *     comm_sum_inner and comm_sum_outer move data between machines and inside each apart, so that a byte
 *     crosses to another machine once, not once for each of its ranks. The bits are the same. There is one
 *     level where machines have unequal numbers of the group's ranks, and for fp32 sums where that number is
 *     no power of two.
 *  6. The first failure is sticky: every later call returns it. comm_agree (while all ranks take part, as in
 *     setup) or comm_fail (while others may be waiting) makes the failure of one rank the failure of all.
 *  7. Calls come from one thread. The progress thread and the watchdog belong to this module.
 *
 * Pointers are tensor memory in the asynchronous operations and plain host memory in the small blocking ones.
 * Tensors in separate device memory go over the device's communicators (communicators.c) or are staged
 * through host memory (staging.c). Sizes are in elements or bytes, as named; any size works, including 0. */
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

/* Joins the other ranks if a launcher started this process: over sockets if WEFT_MEET is set, otherwise over
 * MPI. Fails with ERR_UNAVAILABLE when the launcher and the MPI library do not match: every process would
 * then believe that it is alone, and all would do the same work. */
ErrorCode comm_open(Comm **c, Error *err);

/* The watchdog finds ranks that hang. If nothing arrives in a wait for `seconds` (0: no limit) and no rank is
 * doing work that makes progress (log.h progress_beat), all ranks end with ERR_PEER. Before that, each rank
 * prints what it waits for and what it is doing; `describe` writes the latter to out. It is called from other
 * threads, from comm_open to the end of comm_close. The last line names the ranks that do not answer or that
 * keep the others waiting. Time for which a rank was asleep (stopped, for example) does not count. MPI_Init
 * and MPI_Finalize may take 30 seconds, however short the limit. */
typedef struct CommWatch {
    double seconds;
    void (*describe)(void *context, char *out, size_t size);
    void *context;
} CommWatch;
/* Like comm_open, with the watchdog active from before MPI starts until after it ends. Once all ranks have
 * joined, the longest of their limits applies to all. */
ErrorCode comm_open_watched(Comm **c, const CommWatch *watch, Error *err);
/* Opens a Comm over a transport that the caller made (comm/loopback). The Comm takes it over; the transport
 * must allow COMM_EVENTS events. NULL means a single rank. The watchdog is active once all ranks have
 * joined. */
typedef struct CommTransport CommTransport;
enum { COMM_EVENTS = 50176 };
ErrorCode comm_open_transport(Comm **c, CommTransport *transport, Error *err);
ErrorCode comm_open_transport_watched(Comm **c, CommTransport *transport, const CommWatch *watch, Error *err);
/* All ranks must call it, after success or an agreed failure. NULL is allowed. A rank that fails alone calls
 * comm_fail instead. */
void comm_close(Comm *c);
/* MPI cannot be initialised twice in a process, so all of a process's work lies between one comm_open and one
 * comm_close. */

/* "mpi", "sockets", "loopback"; "" for a single rank. */
const char *comm_transport_name(const Comm *c);
int comm_rank(const Comm *c);
int comm_size(const Comm *c);
int comm_local_rank(const Comm *c); /* among the ranks of this machine */
int comm_local_size(const Comm *c); /* ranks of this machine: they share its cores */
/* Cores that the ranks of this machine may run on, in union; 0: not known, or there is one rank. */
int comm_local_cores(const Comm *c);
/* For Mesh.machine, of the first `ranks` ranks: how many consecutive ones each of several machines has; 0 if
 * there is one machine, or machines have unequal numbers of ranks or ranks that are not consecutive. The
 * environment variable WEFT_MACHINE_RANKS, the same for all ranks, replaces what was found, for tests. */
int comm_machine_ranks(const Comm *c, int ranks);

/* Creates the groups of every set of axes. All ranks call it once, with the same mesh, whose world is
 * comm_size. */
ErrorCode comm_set_mesh(Comm *c, const Mesh *mesh, Error *err);
/* Axes with one rank make no difference to a set. */
int comm_group_rank(Comm *c, AxisSet set);
int comm_group_size(Comm *c, AxisSet set);

/* Sets the device whose sum_partials adds up what arrives while the program polls or waits. Without one, and
 * in the progress thread, this module's own single-threaded device is used. The bits are the same. */
void comm_set_device(Comm *c, Device *device); /* NULL before it closes */

/* All ranks call it after comm_set_mesh and comm_set_device. From then on tensors go from GPU to GPU,
 * provided that every rank has a GPU to itself and communicators (device.h) to the others. `problem` says why
 * they do not; it is "" where they do or the device is a CPU. With communicators the host waits for no
 * operation: an operation runs after what was enqueued on ON_COMPUTE when it was started, and comm_wait makes
 * ON_COMPUTE wait for it. Only the sets from MESH_SHARDS to MESH_CONTEXT have communicators; operations on
 * other sets are not allowed. Valid until the next comm_set_device. */
ErrorCode comm_open_communicators(Comm *c, const Mesh *mesh, char *problem, size_t size, Error *err);

/* ---- asynchronous operations ---- */

typedef enum CommType { COMM_F32, COMM_I64 } CommType;

/* An operation under way (elsewhere: Work, the handle of async_op). 0 stands for one that has ended, so a
 * zeroed request can be waited for. Waiting is optional and idempotent. */
typedef uint64_t CommRequest;

/* One rank's range of a buffer that a group shares: `count` elements from `first` on. Every rank passes the
 * same ranges, [size of the group], to an operation; they must stay valid until it has ended. Ranges may have
 * any sizes, including 0, and any order, but must not overlap. */
typedef struct CommRange {
    int64_t first, count;
} CommRange;
int64_t comm_ranges_count(const CommRange *ranges, int ranks); /* elements up to the end of the last range */
int64_t comm_largest(const CommRange *ranges, int ranks);      /* elements of the largest range */

/* Each rank's range of `all` is in place; the operation fills in the other ranges. width: bytes per
 * element. */
ErrorCode comm_all_gather(Comm *c, AxisSet set, const CommRange *ranges, size_t width, void *all,
                          CommRequest *request, Error *err);
/* out = sum over ranks of this rank's range of their `in`. out is either that range itself or lies outside
 * `in`. */
ErrorCode comm_reduce_scatter(Comm *c, AxisSet set, CommType type, const CommRange *ranges,
                              const void *in /* [whole] */, void *out /* [this rank's range] */,
                              void *workspace, CommRequest *request, Error *err);
/* data = sum over ranks of their data. */
ErrorCode comm_all_reduce(Comm *c, AxisSet set, CommType type, void *data /* [count] */, int64_t count,
                          void *workspace, CommRequest *request, Error *err);
/* All-to-all of equal pieces, one for each rank: to[p] receives the piece that rank p sends to this rank. */
ErrorCode comm_all_to_all(Comm *c, AxisSet set, size_t each /* bytes */, const void *from /* [ranks, each] */,
                          void *to /* [ranks, each], elsewhere */, CommRequest *request, Error *err);
/* All-to-all of pieces of any size, including 0: out[p] is the range of `from` that goes to rank p, in[p] the
 * range of `to` that comes from rank p. Both are [size of the group] and must stay valid until the operation
 * has ended. Sender and receiver must agree on the size of each piece. */
ErrorCode comm_all_to_all_v(Comm *c, AxisSet set, size_t width, const CommRange *out, const void *from,
                            const CommRange *in, void *to, CommRequest *request, Error *err);
/* A sum over the sets inner and outer in two steps, which may be some time apart. The axes of outer lie
 * outside those of inner. comm_sum_inner leaves this rank's range of the sum over inner; comm_sum_outer turns
 * it into the sum over both, with the bits of a single sum over inner | outer. The rest of `data` is scratch
 * from the first step on. Where the groups of inner are not blocks of the canonical tree (a size that is not
 * a power of two), the inner step leaves several partial sums and the outer step sends them all
 * (comm_sum_outer_traffic). Until then they lie in ranges that are as large as this rank's, or behind the
 * last range, where `data` must have space for comm_sum_spare more elements. */
ErrorCode comm_sum_inner(Comm *c, AxisSet inner, AxisSet outer, CommType type,
                         const CommRange *ranges /* of inner */, void *data /* [whole and spare] */,
                         void *workspace, CommRequest *request, Error *err);
ErrorCode comm_sum_outer(Comm *c, AxisSet inner, AxisSet outer, CommType type,
                         const CommRange *ranges /* of inner */, void *data /* [whole and spare] */,
                         void *workspace, CommRequest *request, Error *err);
/* Spare elements needed by the rank with these ranks in the inner and the outer group; inner and outer are
 * the sizes of the groups. */
int64_t comm_sum_spare(int inner, int outer, int inner_rank, int outer_rank, CommType type,
                       const CommRange *ranges);
/* Bytes of tensor memory that an operation needs as workspace while it is under way, in a group of `ranks`.
 * Operations of one group may share a workspace; the later one then waits for the earlier one. Two workspaces
 * used alternately cost no time, because only COMM_ACTIVE operations of a group move at a time. */
enum { COMM_ACTIVE = 2 };
size_t comm_reduce_scatter_workspace(int ranks, CommType type, int64_t largest /* range */);
size_t comm_all_reduce_workspace(int ranks, CommType type, int64_t count);
/* Workspace of comm_sum_outer on a range of `count` elements; comm_sum_inner needs that of a
 * reduce-scatter. */
size_t comm_sum_outer_workspace(int inner, int outer, CommType type, int64_t count);

/* Key of a message: its kind, its stage, and its sequence number (step * microbatches + microbatch). Sends
 * and receives may come in any order. Messages of one kind and stage under way between two ranks must have
 * numbers less than 524,288 apart (with MPI libraries that have few tags: 64). Beyond that a message may be
 * matched with another receive; that is detected as an error, never silent. */
enum { COMM_STAGES = 1024 };
static inline uint64_t comm_key(int kind, int stage, int64_t number) {
    return (uint64_t)number << 12 | (uint64_t)(unsigned)stage << 2 | (unsigned)kind;
}
enum { COMM_HEADER = 16 }; /* bytes sent before each message: its key and its size */
/* `peer` is another rank of the world. A message whose size differs from what the receiver expects is an
 * error at the receiver. */
ErrorCode comm_send(Comm *c, int peer, uint64_t key, const void *data, size_t bytes, CommRequest *request,
                    Error *err);
ErrorCode comm_recv(Comm *c, int peer, uint64_t key, void *data, size_t bytes, CommRequest *request,
                    Error *err);

/* Returns when the operation has ended. */
ErrorCode comm_wait(Comm *c, CommRequest request, Error *err);
/* Advances everything under way as far as possible without waiting. To be called between the actions of a
 * step. */
ErrorCode comm_poll(Comm *c, Error *err);

/* Starts a thread that polls while anything is under way. It takes part of a core. No-op with one rank, in
 * the guard build, and with a device that has separate memory, because such a device may be used from one
 * thread only. */
ErrorCode comm_start_progress(Comm *c, Error *err);

/* ---- small blocking operations; all ranks of the world take part ---- */

ErrorCode comm_barrier(Comm *c, Error *err);
/* record = the records of all ranks, combined in a tree over contiguous runs of ranks with the lower ones on
 * the left. All ranks get the same bytes. `combine` must be associative, apart from last bits where those do
 * not matter. Takes about log2(ranks) messages per rank. */
ErrorCode comm_combine(Comm *c, void *record, size_t bytes, void (*combine)(void *into, const void *from),
                       Error *err);
/* Combine functions: the sum of one number. */
void comm_add_int64(void *into, const void *from);
void comm_add_double(void *into, const void *from);
ErrorCode comm_broadcast(Comm *c, void *data, size_t bytes, int root, Error *err);
/* *first is rank 0's text, which the caller frees; NULL after a failure. Other ranks may have no text. */
ErrorCode comm_broadcast_text(Comm *c, const char *mine, char **first, Error *err);
/* On rank 0, *all is the data of all ranks, concatenated (the caller frees it), and lengths[p] the bytes of
 * rank p. On other ranks *all is NULL and lengths is not touched. */
ErrorCode comm_gather(Comm *c, const void *mine, size_t bytes, char **all, size_t *lengths /* [comm_size] */,
                      Error *err);
/* The same where only the length of all data matters; *total is 0 on other ranks. total may be NULL, where
 * all ranks give the same number of bytes. */
ErrorCode comm_concatenate(Comm *c, const void *mine, size_t bytes, char **all, size_t *total, Error *err);

/* ---- failures ---- */

/* Every rank passes the result of something that all have just done. Returns OK if it succeeded everywhere;
 * otherwise every rank gets the code and the message of the lowest rank that failed. err->reported is set on
 * all ranks but that one, so the message is printed once. */
ErrorCode comm_agree(Comm *c, ErrorCode code, Error *err);

/* Prints an agreed failure that ends the program, on the rank where it happened, and sets err->reported. Must
 * be called before comm_close: once one rank has exited with a status, a launcher may kill the others before
 * they have printed anything. No-op with one rank. */
void comm_report(Comm *c, Error *err);

/* Reports that this rank has failed while others may be waiting for it: prints the failure once, with the
 * rank, and ends all ranks within seconds, with err->code as the exit status. When several ranks fail at the
 * same time, only the first that rank 0 hears of prints. Returns only when there is one rank; the caller then
 * passes its error up as usual. */
void comm_fail(Comm *c, const Error *err);

/* ---- counters ---- */

/* What collectives and messages of this rank have sent since the last reset, in exact bytes, including the
 * COMM_HEADER of each message. The small blocking operations are not counted. */
typedef struct CommTraffic {
    int64_t bytes, messages;
    int64_t between; /* bytes of collectives to other machines, where Mesh.machine tells machines apart */
} CommTraffic;
CommTraffic comm_traffic(Comm *c, AxisSet set); /* collectives started on this set */
CommTraffic comm_point_traffic(Comm *c);        /* comm_send */
void comm_reset_traffic(Comm *c);
/* Elements that rank `rank` of a group sends; the counters must show this. In an all-gather each rank sends
 * its range to all others, in a reduce-scatter each range to its owner. inside: ranks of the inner level
 * (mesh_inside); a reduce-scatter sends as much with levels as without. */
int64_t comm_gather_traffic(const CommRange *ranges, int ranks, int inside, int rank);
int64_t comm_scatter_traffic(const CommRange *ranges, int ranks, int rank);
/* Bytes that rank `rank` of the outer group sends in comm_sum_outer; with inner 1, in an all-reduce. */
int64_t comm_sum_outer_traffic(int inner, int outer, int inside /* of outer */, int rank, CommType type,
                               int64_t count);

#endif
