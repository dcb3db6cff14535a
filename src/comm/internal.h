/* What the files of comm/ share. */
#ifndef WEFT_COMM_INTERNAL_H
#define WEFT_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/text.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "base/tree.h"
#include "device/pool.h"

enum {
    OPS_MAX = 4096, /* operations under way at a time */
    WINDOW = 16, /* items of a collective's stream between the first unfinished and the next to be posted */
    MESSAGE_WINDOW = 4, /* the same of a message; both at most 64 */
    PIECE_MAX =
        1 << 20,    /* bytes of a message; from 256 KiB to 4 MiB all go at the same speed on shared memory */
    POLL_MAX = 256, /* rounds of a poll: a program that computes must come back to it */
    WORKSPACE_TARGET = 16 << 20, /* bytes of a workspace, about: with many ranks buckets are smaller */
    CONTROL_TEXT = 1024,
};

/* The ranks of one set of axes that this one is among. */
typedef struct Group {
    AxisSet set;
    int channel;
    DeviceStream communicator; /* ON_COMPUTE: it has none */
    int rank, size;
    uint64_t started; /* operations so far: their tags */
    struct Op *queue; /* under way, in the order of their start */
} Group;

/* A sequence of messages posted in order, of which at most WINDOW are open. */
typedef struct Stream {
    int64_t items, per_bucket;
    int64_t next;  /* the next to be posted */
    int64_t first; /* all before are finished */
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

/* Posts that may be open at a time: those of OPS_MAX messages, and of the collectives that move in each
 * group. */
_Static_assert(COMM_EVENTS >= OPS_MAX * MESSAGE_WINDOW + MESH_SETS * COMM_TURNS * STREAMS * WINDOW + 1024,
               "the table of posts is too small");

/* A communicator for messages in one direction (communicators.c). */
typedef struct P2pChannel {
    int peer; /* rank */
    bool sends;
    DeviceStream communicator;
    uint64_t next;      /* number of the next message */
    struct Op *waiting; /* have a number, and those before have not come */
} P2pChannel;
enum { P2P_CHANNELS = 4 /* to and from the stage before and the one behind */, COMMUNICATOR_SETS = 7 };

typedef struct Op {
    OpKind kind;
    uint32_t generation; /* counts the uses of this place: a request with another one has ended */
    struct Op *next;     /* in its queue, or in the list of free places */
    const char *name;    /* what it is a part of, for messages; or NULL */

    /* Collectives: part p of the group is what `ranges` says, in elements of `width` bytes; or, where that is
     * NULL, `stride` bytes from p * stride on, cut off at `total`. It moves in buckets. */
    Group *group;
    AxisSet asked; /* of which that is the group: what it sends is counted there */
    CommType type;
    const CommRange *ranges;
    const CommRange *arriving; /* of an exchange: what comes; `ranges` is what goes */
    size_t width;
    size_t stride, total, bucket; /* stride: bytes of the largest part */
    int64_t buckets;
    const char *source; /* the whole: to be reduced, dealt out, or with this rank's part to be gathered */
    char *target;       /* this rank's sum; gathered parts; pieces of all */
    char *workspace;
    int64_t summed; /* buckets whose sum is there */
    /* One step of a sum over inner | outer, whose groups are runs of `run` ranks of a tree of `leaves`;
     * leaves 0: the group is the whole sum. The blocks of this rank's run lie in `sums`, at block_place. */
    int leaves, run, first, own; /* first: leaf of this rank's run; own: its place in the inner group */
    char *sums;
    const CommRange *shards; /* [run] of the inner step */
    uint64_t turn;           /* of the axis: makes the tags */
    Stream streams[STREAMS];

    /* Messages: a stream of a header (item 0) and the data in pieces. */
    int channel, peer;
    Stream pieces;
    uint64_t key, header[COMM_HEADER / sizeof(uint64_t)];
    char *data;
    size_t bytes;

    /* Over a communicator. */
    Event event;             /* of its end; 0: it is not enqueued */
    P2pChannel *p2p_channel; /* of a message */
    Event after;             /* what the program had enqueued before it */
    uint64_t number, ready[COMM_HEADER / sizeof(uint64_t)];
} Op;

/* An item of a collective's stream. */
typedef struct Piece {
    int peer; /* its place in the group */
    bool receives;
    char *data;
    size_t bytes; /* 0: there is nothing to move */
} Piece;

/* What an open post belongs to. Its place in the table is the transport's event. */
typedef struct Transfer {
    Op *op; /* NULL: a control message */
    StreamId stream;
    int64_t item;
    int peer;
    size_t bytes;
    bool receives;
    void *staged; /* what the transport reads or writes in place of the tensor; NULL: the tensor */
    int next;     /* in the list of free places */
} Transfer;

/* Host memory through which a tensor's message goes (staging.c). */
typedef struct StagingSlot {
    void *memory, *tensor;
    bool busy;
} StagingSlot;

/* A rank tells the others that it has failed, or that it waits in vain; who hears the latter answers that it
 * waits too, or is busy. */
typedef enum ControlKind {
    CONTROL_NONE,
    CONTROL_FAILURE,
    CONTROL_SPEAK, /* rank 0 to one that failed: it is for you to say so */
    CONTROL_STALL,
    CONTROL_WAITS,
    CONTROL_WORKS, /* its work moves on, or its messages do */
    CONTROL_BUSY
} ControlKind;
typedef struct ControlMessage {
    int32_t kind, rank, code;
    char message[CONTROL_TEXT];
} ControlMessage;

struct Comm {
    int rank, size, local_rank, local_size, local_cores;
    bool joined; /* there is a transport */
    CommTransport *transport;
    int small, point, control; /* channels of all ranks */
    bool has_mesh;
    AxisSet used; /* axes with more than one rank */
    Group groups[MESH_SETS];
    uint64_t small_started;         /* small operations so far: their tags */
    AxisSet asked;                  /* by who has the lock */
    CommTraffic traffic[MESH_SETS]; /* of collectives, by what was asked for */
    CommTraffic point_traffic;
    Device own, *device;  /* own: single-threaded; device: the program's, or NULL */
    const void **addends; /* [size] addresses for sum_parts */
    StagingSlot *slots;
    int slot_count;
    _Atomic(Device *) wired; /* the device, where its tensors go over communicators */
    int ready;               /* channel on which receivers say that they are */
    P2pChannel p2p_channels[P2P_CHANNELS];
    int p2p_channel_count;

    pthread_mutex_t mutex; /* guards all below and every call of the transport */
    Op *ops, *free_ops;
    int under_way;       /* operations */
    Op *issued;          /* messages on communicators */
    bool given_up;       /* what is on communicators */
    Transfer *transfers; /* [COMM_EVENTS] by event */
    int fresh_transfers; /* those from here on were never used */
    int free_transfer;   /* the first of the list, or -1 */
    TransportEnd *ends;  /* [COMM_EVENTS] */
    char *small_scratch;
    size_t small_capacity;
    Error failure;                  /* the first; code OK: none */
    bool hearsay;                   /* a communicator has failed, which is most often another rank's doing */
    ControlMessage control_message; /* being received */
    int control_event;              /* of the standing receive, */
    bool listening;                 /* while it stands */
    int lowest_failed;              /* lowest rank that told of a failure, or size */
    int speaker;                    /* rank 0: whom it gave the word; others: this rank, if it has it; -1 */
    ControlKind *heard;             /* [size] while this rank asks, what each answered, */
    char **lines;                   /* [size] and said; NULL: nothing */
    bool asking;

    pthread_t progress;
    bool has_progress, ending;
    pthread_cond_t wake;
    CommRequest waiting_for;
    atomic_llong waits_since; /* nanoseconds; 0: not waiting */
    atomic_llong moved_at;    /* when something last moved on */
    atomic_llong looked_at;   /* when the watchdog last did; 0: there is none */
    atomic_llong awake_since; /* when it noticed that it had been asleep */

    CommWatch watch; /* as this rank was opened */
    pthread_t watchdog;
    pthread_mutex_t watch_mutex; /* guards watch_ending */
    pthread_cond_t watch_wake;
    bool has_watchdog, watch_ending;
    atomic_llong limit;               /* nanoseconds; 0: none */
    atomic_llong excused_at;          /* it was told that others move on, or another one asks until then */
    atomic_llong beat_at;             /* when its work last did; 0: it has not begun */
    uint64_t beats;                   /* the watchdog's: as many were there then */
    _Atomic(const char *) blocked_in; /* a call of MPI in which nothing can be asked; NULL: none */
    _Atomic(const char *)
        waits_in;              /* what the program waits in outside of the transport; NULL: it does not */
    const char *rank_variable; /* of the environment, in which the launcher gave the rank */
};

/* comm.c */
void comm_lock(Comm *c);
void comm_unlock(Comm *c);
long long comm_nanoseconds(void);
/* Keeps the first failure. Returns its code. */
ErrorCode comm_keep_failure(Comm *c, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
ErrorCode comm_transport_failure(Comm *c, int error, const char *what);
ErrorCode comm_refused(const Comm *c, Error *err); /* the failure that there is, or OK */

ErrorCode comm_join(Comm *c, const char *what, int *channel, Error *err); /* a channel of all ranks */

/* transfer.c; the mutex is held. */
void transfer_setup(Comm *c);
void transfer_free(Comm *c);
/* A place for an operation, under way; NULL after setting the failure. */
Op *op_begin(Comm *c, OpKind kind);
void op_end(Comm *c, Op *op);
CommRequest op_request(const Comm *c, const Op *op);
bool op_ended(const Comm *c, CommRequest request);
void op_describe(const Comm *c, const Op *op, char *out, size_t size);
/* Posts what `t` says; a failure is kept. Returns the event. */
int transfer_post(Comm *c, Transfer t, int channel, int64_t tag, void *data);
/* Element where the rank at place `own` of a run keeps the k-th of the sums that it is left with. */
int64_t block_first(const CommRange *ranges, int run, int own, int k);
/* How many items a stream of a collective has; its buckets are known. */
void stream_items(Op *op, StreamId id);
/* What a collective is made of: an all-reduce of both, and an all-to-all gathers, but pieces that differ. */
static inline bool op_reduces(const Op *op) {
    return op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE;
}
static inline bool op_gathers(const Op *op) { return op->kind != OP_REDUCE_SCATTER; }
/* Starts a message: its first pieces are posted. */
Op *message_begin(Comm *c, OpKind kind, int channel, int peer, uint64_t key, void *data, size_t bytes);
/* Looks at one event only; true when it had ended, and was seen to. */
bool transfer_test(Comm *c, int event);
/* Moves everything on; true when anything happened. */
bool transfer_progress(Comm *c, Device *device);

Piece transfer_piece(const Op *op, StreamId id, int64_t item);
/* Adds up the next bucket of this rank's own part, on a stream. */
void transfer_add_up(Comm *c, Op *op, Device *device, DeviceStream on);
void transfer_check_header(Comm *c, const Op *op);
void transfer_item_done(Stream *s, int64_t item);

/* communicators.c. Which communicators a mesh has, of which a rank joins those that it is an end of: one for
 * each of these sets of axes, and one for each p2p channel between two places of a pipeline. */
int communicators_sets(const Mesh *mesh, AxisSet out[COMMUNICATOR_SETS]); /* how many */
int p2p_channels_of(int stages);
typedef struct P2pEnds {
    int from, to; /* places */
} P2pEnds;
P2pEnds p2p_channel_ends(int stages, int number);
/* The mutex is held, but for closing. */
void communicators_close(Comm *c);
void communicators_start(Comm *c, Op *op);                   /* enqueues a collective whole */
P2pChannel *p2p_channel_find(Comm *c, int peer, bool sends); /* NULL: there is none */
Op *communicators_message(Comm *c, P2pChannel *p2p_channel, OpKind kind, uint64_t key, void *data,
                          size_t bytes);
void communicators_item_ended(Comm *c, Op *op, int64_t item);
bool communicators_reached(Comm *c, const Op *op);
bool communicators_progress(Comm *c); /* true when anything has ended */
/* Whether the operation is on a communicator; what the program enqueues from now on then follows it. */
bool communicators_follow(Comm *c, CommRequest request);
void communicators_give_up(Comm *c);

/* staging.c: the mutex is held, but for the last. */
bool staging_needed(const Comm *c);
/* Where the transport is to read what a post sends, or to write what it receives. */
void *staging_begin(Comm *c, const Transfer *t, void *tensor);
/* The post has ended; arrived: with something for its tensor. */
void staging_end(Comm *c, const Transfer *t, bool arrived);
void staging_close(Comm *c); /* before its device closes */

/* local_ranks.c: other ranks of this machine, as far as processes show them. */
typedef struct LocalRank {
    int rank;
    pid_t process;
    char state; /* as in /proc: 'T' is stopped */
} LocalRank;
/* By rank, to be freed; how many. */
int local_ranks_find(const char *variable, LocalRank **out);

/* failure.c */
void control_listen(Comm *c);  /* posts the standing receive */
void control_arrived(Comm *c); /* c->control_message is complete */
ErrorCode watchdog_start(Comm *c, Error *err);
ErrorCode watchdog_agree(Comm *c, Error *err); /* collective: on the longest limit */
void watchdog_stop(Comm *c);
void comm_blocked(Comm *c, const char *call); /* from now on in it; NULL: no longer */
/* Likewise, in something that is not MPI's: the watchdog takes control messages, asks and answers
 * meanwhile. */
void comm_waits_in(Comm *c, const char *what);
void comm_print_line(const char *line); /* one write */

#endif
