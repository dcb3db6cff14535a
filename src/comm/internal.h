/* What the files of comm/ share. */
#ifndef WEFT_COMM_INTERNAL_H
#define WEFT_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/text.h"
#include "comm/comm.h"
#include "comm/process.h"
#include "comm/repair.h"
#include "comm/transport.h"
#include "base/tree.h"
#include "device/pool.h"

enum {
    OPS_MAX = 4096,     /* operations under way at a time */
    WINDOW = 16,        /* items of a collective's stream between the first unfinished and the next to post */
    MESSAGE_WINDOW = 4, /* the same for a message; both at most 64 */
    MESSAGE_PART_MAX = 1 << 20,  /* bytes of a message; 256 KiB to 4 MiB are equally fast on shared memory */
    POLL_MAX = 256,              /* iterations of a poll: a program that computes must get control back */
    WORKSPACE_TARGET = 16 << 20, /* bytes of a workspace, about; with many ranks buckets are smaller */
    CONTROL_TEXT = 1024,
};

/* This rank's group for one set of axes. */
typedef struct Group {
    AxisSet set;
    int channel;
    DeviceStream communicator; /* ON_COMPUTE if there is none */
    int rank, size;
    int inside;       /* ranks of the inner level (mesh_inside); 1: one level */
    uint64_t started; /* operations started so far; gives their tags */
    struct Op *queue; /* operations under way, in the order of their start */
} Group;

/* The ranks of a group between which an operation moves data: all of them, those of one machine, or those
 * with one index in their machine. Rank p of the span is rank first + p * step of the group. */
typedef struct Span {
    int first, step, size, rank; /* rank: this rank's */
} Span;

/* A sequence of messages posted in order, of which at most WINDOW are open. */
typedef struct Stream {
    int64_t items, per_bucket;
    int64_t next;  /* the next item to be posted */
    int64_t first; /* all items before it are finished */
    uint64_t done; /* bit i: item first + i is finished */
} Stream;

typedef enum StreamId { REDUCE_SEND, REDUCE_RECV, GATHER_SEND, GATHER_RECV, STREAMS } StreamId;
typedef enum OpKind {
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    OP_ALL_REDUCE,
    OP_ALL_TO_ALL,
    OP_ALL_TO_ALL_V,
    OP_SEND,
    OP_RECV
} OpKind;

/* Posts that may be open at a time: those of OPS_MAX messages and of the collectives that move in each
 * group. */
_Static_assert(COMM_EVENTS >= OPS_MAX * MESSAGE_WINDOW + MESH_SETS * COMM_ACTIVE * STREAMS * WINDOW + 1024,
               "the table of posts is too small");

/* A communicator for messages in one direction (communicators.c). */
typedef struct P2pChannel {
    int peer; /* rank */
    bool sends;
    DeviceStream communicator;
    uint64_t next;      /* sequence number of the next message */
    struct Op *waiting; /* messages that have a number, while earlier ones have not come */
} P2pChannel;
enum { P2P_CHANNELS = 4 /* to and from the previous and the next stage */, COMMUNICATOR_SETS = 7 };

typedef struct Op {
    OpKind kind;
    uint32_t generation; /* counts the uses of this slot: a request with another generation has ended */
    bool under_way;
    struct Op *next;  /* in its queue, or in the list of free slots */
    const char *name; /* the operation it is part of, for messages; or NULL */

    /* Collectives. The range of rank p is given by `ranges`, in elements of `width` bytes; if that is NULL,
     * it is `stride` bytes from p * stride on, clipped at `total`. Data moves in buckets. */
    Group *group;
    Span span;
    /* One level of a collective over several machines: the inner one moves `pieces` ranges of each rank,
     * those of ranks with its index on all machines, one after the other. Each level waits for the one
     * before. */
    int pieces;
    CommRequest behind; /* 0: none */
    AxisSet asked;      /* the set asked for, which maps to that group; traffic is counted there */
    CommType type;
    const CommRange *ranges;
    const CommRange *arriving; /* all-to-all-v: what arrives; `ranges` is what is sent */
    size_t width;
    size_t stride, total, bucket; /* stride: bytes of the largest range */
    int64_t buckets;
    /* the full buffer: to be reduced or scattered, or with this rank's range to be gathered */
    const char *source;
    char *target; /* this rank's sum; gathered ranges; pieces from all ranks */
    char *workspace;
    int64_t summed; /* buckets that have been summed */
    /* One step of a sum over inner | outer, whose groups are runs of `run` ranks of a tree with `leaves`
     * leaves. leaves 0: the group is the whole sum. The blocks of this rank's run lie in `sums`, at
     * block_address. */
    /* first: leaf at which this rank's run begins; own: its rank in the inner group */
    int leaves, run, first, own;
    char *sums;
    const CommRange *shards; /* [run] ranges of the inner step */
    uint64_t sequence;       /* sequence number in the group; gives the tags */
    Stream streams[STREAMS];

    /* Messages: a stream of a header (item 0) and the data in pieces. */
    int channel, peer;
    Stream message;
    uint64_t key, header[COMM_HEADER / sizeof(uint64_t)];
    char *data;
    size_t bytes;

    /* Over a communicator. */
    Event event;             /* event of its end; 0: it is not enqueued */
    P2pChannel *p2p_channel; /* of a message */
    Event after;             /* end of what the program had enqueued before it */
    uint64_t number, ready[COMM_HEADER / sizeof(uint64_t)];
} Op;

/* An item of a collective's stream. */
typedef struct StreamItem {
    int peer; /* its rank in the group */
    bool receives;
    char *data;
    size_t bytes; /* 0: nothing to move */
} StreamItem;

/* What an open post belongs to. Its index in the table is the transport's event. */
typedef struct Transfer {
    Op *op; /* NULL: a control message */
    StreamId stream;
    int64_t item;
    int peer;
    size_t bytes;
    bool receives;
    /* staging memory that the transport reads or writes instead of the tensor; NULL: the tensor */
    void *staged;
    int next; /* in the list of free slots */
} Transfer;

/* Host memory through which a tensor's message is staged (staging.c). */
typedef struct StagingSlot {
    void *memory, *tensor;
    bool busy;
} StagingSlot;

/* Kinds of control messages. A rank tells the others that it has failed or that it waits without progress. A
 * rank that receives the latter answers that it waits too, or that it is busy. */
typedef enum ControlKind {
    CONTROL_NONE,
    CONTROL_FAILURE,
    CONTROL_SPEAK, /* rank 0 to a rank that failed: print your failure */
    CONTROL_STALL,
    CONTROL_WAITS,
    CONTROL_WORKS, /* its work makes progress, or its messages do */
    CONTROL_BUSY,
    CONTROL_HUNG /* to all: the rank whose number is `code` hangs (hung.c) */
} ControlKind;
typedef struct ControlMessage {
    int32_t kind, rank, code;
    char message[CONTROL_TEXT];
} ControlMessage;

struct Comm {
    int rank, size, local_rank, local_size, local_cores;
    bool joined; /* there is a transport */
    /* Ranks and those set aside (comm_set_aside), which are numbered from `size` on: `all` of them, and what
     * the transport calls each. */
    int all, *order;
    bool repairable;
    int epoch;      /* repairs so far */
    int *old_ranks; /* [all] before the last one, or NULL */
    /* hung.c, where repairs are allowed. Ranks are numbered as they were before the first repair. */
    atomic_bool ends_hung;      /* ranks that hang are killed, and the others go on */
    int first_size;             /* ranks at first */
    RankProcess *processes;     /* [first_size], written once */
    int *numbers;               /* [all] of each rank of now */
    pthread_mutex_t hung_mutex; /* guards the next two, for a watchdog that cannot have `mutex` */
    bool *condemned;            /* [first_size] ranks that were to be killed */
    int *spared;                /* [first_size] questions in a row for which they did not answer, but ran */
    CommHung hung;              /* what was found since the last comm_take_hung */
    long long stopped_sought; /* the watchdog's: start of the blocked wait in which it looked for them last */
    CommTransport *transport;
    int small, point, control; /* channels of all ranks */
    bool has_mesh;
    AxisSet used;   /* axes with more than one rank */
    AxisSet folded; /* axes that MESH_FOLDED stands for */
    Group groups[MESH_SETS];
    uint64_t small_started;               /* small operations so far: their tags */
    AxisSet asked;                        /* set of the current operation; written under the lock */
    CommTraffic traffic[MESH_ASKED_SETS]; /* of collectives, by the set asked for */
    CommTraffic point_traffic;
    Device own, *device;  /* own: single-threaded; device: the program's, or NULL */
    const void **addends; /* [size] addresses for sum_partials */
    StagingSlot *slots;
    int slot_count;
    _Atomic(Device *) communicator_device; /* the device, if its tensors go over communicators */
    int ready;                             /* channel on which receivers report that they are ready */
    P2pChannel p2p_channels[P2P_CHANNELS];
    int p2p_channel_count;

    pthread_mutex_t mutex; /* guards all below and every call of the transport */
    Op *ops, *free_ops;
    int under_way;       /* operations */
    Op *issued;          /* messages on communicators */
    bool given_up;       /* operations on communicators were abandoned */
    Transfer *transfers; /* [COMM_EVENTS] by event */
    int fresh_transfers; /* entries from here on were never used */
    int free_transfer;   /* first of the free list, or -1 */
    int posts, sends;    /* entries in use, and how many of them are sends */
    TransportEnd *ends;  /* [COMM_EVENTS] */
    char *small_scratch;
    size_t small_capacity;
    Error failure;                  /* the first; code OK: none */
    bool broken;                    /* that of a message, which a repair can heal; */
    atomic_llong broken_at;         /* since then, in nanoseconds; 0: it is not */
    bool refused;                   /* the agreement before that repair has taken place (comm_commit) */
    bool hearsay;                   /* a communicator has failed, usually because another rank did */
    ControlMessage control_message; /* being received */
    int control_event;              /* of the standing receive, */
    bool listening;                 /* while it stands */
    int lowest_failed;              /* lowest rank that reported a failure, or size */
    /* rank 0: the rank it told to print; others: this rank, if it was told to; -1: none */
    int speaker;
    ControlKind *heard; /* [size] while this rank asks: what each rank answered, */
    char **lines;       /* [size] and its text; NULL: none */
    bool asking;

    pthread_t progress;
    bool has_progress, ending;
    pthread_cond_t wake;
    CommRequest waiting_for;
    atomic_llong waits_since; /* nanoseconds; 0: not waiting */
    atomic_llong moved_at;    /* when something last made progress */
    atomic_llong looked_at;   /* when the watchdog last ran; 0: there is none */
    atomic_llong awake_since; /* when it noticed that it had been asleep */

    CommWatch watch; /* as passed when this rank was opened */
    pthread_t watchdog;
    pthread_mutex_t watch_mutex; /* guards watch_ending */
    pthread_cond_t watch_wake;
    bool has_watchdog, watch_ending;
    atomic_llong limit; /* nanoseconds; 0: none */
    /* when it was told that others make progress, or until when another rank asks */
    atomic_llong excused_at;
    atomic_llong beat_at; /* when its work last made progress; 0: it has not begun */
    uint64_t beats;       /* the watchdog's: progress_beats() at that time */
    /* an MPI call during which no control message can be handled; NULL: none */
    _Atomic(const char *) blocked_in;
    _Atomic(const char *) waits_in; /* what the program waits in outside of the transport; NULL: nothing */
    const char *rank_variable;      /* environment variable in which the launcher passed the rank */
};

/* comm.c */
void comm_lock(Comm *c);
void comm_unlock(Comm *c);
long long comm_nanoseconds(void);
/* Keeps the first failure. Returns its code. */
ErrorCode comm_keep_failure(Comm *c, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
ErrorCode comm_transport_failure(Comm *c, int error, const char *what);
void comm_break(Comm *c); /* the failure that follows is one that a repair can heal */
ErrorCode comm_refused(const Comm *c, Error *err); /* the failure so far, or OK */

ErrorCode comm_join(Comm *c, const char *what, int *channel, Error *err); /* creates a channel of all ranks */
/* Creates the channels of all ranks, and listens for control messages. The lock is held. */
ErrorCode comm_make_channels(Comm *c, Error *err);

/* transfer.c. The mutex is held. */
void transfer_setup(Comm *c);
void transfer_free(Comm *c);
/* Ends a post and forgets it. */
void transfer_drop(Comm *c, int event);
/* Forgets all posts. */
void transfer_drop_all(Comm *c);
/* Ends all operations. No post may be open. */
void transfer_end_all(Comm *c);
/* Takes a slot for an operation, which is then under way. Returns NULL after setting the failure. */
Op *op_begin(Comm *c, OpKind kind);
void op_end(Comm *c, Op *op);
CommRequest op_request(const Comm *c, const Op *op);
bool op_ended(const Comm *c, CommRequest request);
void op_describe(const Comm *c, const Op *op, char *out, size_t size);
/* Posts `t`; a failure is kept. Returns the event. */
int transfer_post(Comm *c, Transfer t, int channel, int64_t tag, void *data);
/* Element at which rank `own` of a run keeps the k-th of its partial sums. */
int64_t block_first(const CommRange *ranges, int run, int own, int k);
/* Sets how many items a stream of a collective has, once its buckets are known. */
void stream_items(Op *op, StreamId id);
/* What a collective consists of. An all-reduce does both. An all-to-all gathers, but different pieces. */
static inline bool op_reduces(const Op *op) {
    return op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE;
}
static inline bool op_gathers(const Op *op) { return op->kind != OP_REDUCE_SCATTER; }
/* Starts a message and posts its first pieces. */
Op *message_begin(Comm *c, OpKind kind, int channel, int peer, uint64_t key, void *data, size_t bytes);
/* Checks one event only. Returns true if it had ended; its end is then handled. */
bool transfer_test(Comm *c, int event);
/* Makes progress on everything. Returns true if anything happened. */
bool transfer_progress(Comm *c, Device *device);

StreamItem transfer_item(const Op *op, StreamId id, int64_t item);
void transfer_count(Comm *c, const Op *op, int peer /* in the group */, size_t bytes); /* what is sent */
/* Adds up the next bucket of this rank's range, on a stream. */
void transfer_add_up(Comm *c, Op *op, Device *device, DeviceStream on);
void transfer_check_header(Comm *c, const Op *op);
void transfer_item_done(Stream *s, int64_t item);

/* communicators.c. The communicators of a mesh: one for each of these sets of axes, and one for each p2p
 * channel between two ranks of a pipeline. A rank joins those that it belongs to. */
int communicators_sets(const Mesh *mesh, AxisSet out[COMMUNICATOR_SETS]); /* how many */
int p2p_channels_of(int stages);
typedef struct P2pEnds {
    int from, to; /* ranks in the pipeline */
} P2pEnds;
P2pEnds p2p_channel_ends(int stages, int number);
/* The mutex is held, except when closing. */
void communicators_close(Comm *c);
void communicators_start(Comm *c, Op *op);                   /* enqueues all of a collective */
P2pChannel *p2p_channel_find(Comm *c, int peer, bool sends); /* NULL if there is none */
Op *communicators_message(Comm *c, P2pChannel *p2p_channel, OpKind kind, uint64_t key, void *data,
                          size_t bytes);
void communicators_item_ended(Comm *c, Op *op, int64_t item);
bool communicators_reached(Comm *c, const Op *op);
bool communicators_progress(Comm *c); /* true when anything has ended */
/* Whether the operation is on a communicator. If so, what the program enqueues from now on follows it. */
bool communicators_follow(Comm *c, CommRequest request);
void communicators_give_up(Comm *c);

/* staging.c. The mutex is held, except in the last. */
bool staging_needed(const Comm *c);
/* Memory from which the transport is to read what a post sends, or to which it is to write what it
 * receives. */
void *staging_begin(Comm *c, const Transfer *t, void *tensor);
/* The post has ended; arrived: it brought data for its tensor. */
void staging_end(Comm *c, const Transfer *t, bool arrived);
void staging_close(Comm *c); /* before its device closes */

/* local_ranks.c: other ranks of this machine, found by their processes. */
typedef struct LocalRank {
    int rank;
    pid_t process;
    char state; /* as in /proc: 'T' is stopped */
} LocalRank;
/* Returns how many; *out is ascending by rank, and the caller frees it. */
int local_ranks_find(const char *variable, LocalRank **out);

/* hung.c */
ErrorCode hung_setup(Comm *c, Error *err); /* collective, once, when repairs have been allowed */
void hung_free(Comm *c);
void hung_renumber(Comm *c, const int *before); /* [all] */
/* A question has shown that ranks hang (c->heard), and the mutex is held. True: the others are to go on
 * without them. False: the run must end. */
bool hung_condemn(Comm *c);
/* Another rank has found that this one hangs; wait: how long it had waited for it, and for what. */
void hung_told(Comm *c, int rank, const char *wait);
/* The watchdog's thread, when the rank has been blocked in MPI for longer than the limit. False: no rank was
 * found, again. */
bool hung_find_stopped(Comm *c);
/* Ends this rank if its communication is broken, but its program, without progress, does not repair it. */
void hung_end_own(const Comm *c);

/* failure.c */
void control_listen(Comm *c);  /* posts the standing receive */
void control_arrived(Comm *c); /* handles the complete c->control_message */
ErrorCode watchdog_start(Comm *c, Error *err);
ErrorCode watchdog_agree(Comm *c, Error *err); /* collective: on the longest limit */
void watchdog_stop(Comm *c);
/* enters an MPI call in which it cannot answer; NULL: leaves it */
void comm_blocked(Comm *c, const char *call);
/* The same for a wait outside of MPI, during which the watchdog receives control messages, asks and
 * answers. */
void comm_waits_in(Comm *c, const char *what);
void control_send(Comm *c, ControlKind kind, int peer, ErrorCode code, const char *message);
/* "all-gather of 64 bytes over dp_shard, in step 3, GATHER of unit 1": what the rank waits for, and in what.
 * The mutex is held, unless it is blocked in MPI. */
void watchdog_describe(const Comm *c, char *out, size_t size);
double watchdog_waited(const Comm *c); /* seconds for which it has waited, while nothing has come */
void watchdog_print(const char *line);

#endif
