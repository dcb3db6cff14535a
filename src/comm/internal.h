/* What the files of comm/ share. */
#ifndef WEFT_COMM_INTERNAL_H
#define WEFT_COMM_INTERNAL_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/text.h"
#include "comm/comm.h"

enum {
    OPS_MAX = 4096, /* operations under way at a time */
    WINDOW = 16,    /* items of a stream between the first unfinished and the next to be posted; at most 64 */
    PIECE_MAX =
        1 << 20,    /* bytes of a message; from 256 KiB to 4 MiB all go at the same speed on shared memory */
    POLL_MAX = 256, /* rounds of a poll: a program that computes must come back to it */
    WORKSPACE_TARGET = 16 << 20, /* bytes of a workspace, about: with many ranks buckets are smaller */
    NOTICE_TEXT = 1024,
};

/* The ranks along one axis through this one. */
typedef struct Group {
    MPI_Comm mpi;
    int rank, size;
    uint64_t started; /* operations so far: their tags */
    struct Op *queue; /* under way, in the order of their start */
    CommTraffic traffic;
} Group;

/* A sequence of messages posted in order, of which at most WINDOW are open. */
typedef struct Stream {
    int64_t items;
    int64_t next;  /* the next to be posted */
    int64_t first; /* all before are finished */
    uint64_t done; /* bit i: item first + i is finished */
} Stream;

typedef enum StreamId { REDUCE_SEND, REDUCE_RECV, GATHER_SEND, GATHER_RECV, STREAMS } StreamId;
typedef enum OpKind { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_SEND, OP_RECV, OP_SMALL } OpKind;

typedef struct Op {
    OpKind kind;
    uint32_t generation; /* counts the uses of this place: a handle with another one has ended */
    struct Op *next;     /* in its queue, or in the list of free places */
    const char *name;    /* OP_SMALL: for messages */

    /* Collectives: part p of the group is `stride` bytes from p * stride, cut off at `total`, and moves in
     * buckets. */
    Axis axis;
    Group *group;
    CommType type;
    size_t stride, total, bucket;
    int64_t buckets;
    const char *source; /* parts to be reduced, or this rank's part to be gathered */
    char *target;       /* this rank's sum; gathered parts */
    char *workspace;
    int64_t summed; /* buckets whose sum is there */
    uint64_t turn;  /* of the axis: makes the tags */
    Stream streams[STREAMS];

    /* Messages: a header, then the data in pieces. */
    int peer, open; /* open: messages not finished */
    uint64_t key, header[2];
    size_t bytes;
} Op;

/* What a request belongs to. */
typedef struct Transfer {
    Op *op; /* NULL: the standing receive of notices */
    StreamId stream;
    int64_t item;
    int peer;
    size_t bytes;
    bool receives;
} Transfer;

/* A rank tells the others that it has failed, or that it waits in vain; who hears the latter answers that it
 * waits too, or is busy. */
typedef enum NoticeKind { NOTICE_NONE, NOTICE_FAILURE, NOTICE_STALL, NOTICE_WAITS, NOTICE_BUSY } NoticeKind;
typedef struct Notice {
    int32_t kind, rank, code;
    char message[NOTICE_TEXT];
} Notice;

struct Comm {
    int rank, size, local_rank, local_size;
    bool joined;  /* MPI is initialised */
    int64_t tags; /* tags are 0 .. tags-1; a power of two */
    MPI_Comm small, point, control;
    bool has_mesh;
    Group groups[AXES];
    CommTraffic point_traffic;
    Device own, *device; /* own: single-threaded; device: the program's, or NULL */
    const void **parts;  /* [size] addresses for sum_parts */

    pthread_mutex_t mutex; /* guards all below and every call of MPI */
    Op *ops, *free_ops;
    int under_way; /* operations, OP_SMALL too */
    MPI_Request *requests;
    Transfer *transfers;
    MPI_Status *statuses;
    int *indices;
    int open, capacity;
    char *small_scratch;
    size_t small_capacity;
    Error failure;        /* the first; code OK: none */
    bool failure_noticed; /* another rank told */
    Notice notice;        /* being received */
    int lowest_notice;    /* lowest rank that told of a failure, or size */
    NoticeKind *heard;    /* [size] last of each rank about waiting */
    bool asking;          /* this rank waits for the answers */

    pthread_t progress;
    bool has_progress, ending;
    pthread_cond_t wake;
    CommHandle waiting_for;
    atomic_llong waits_since; /* nanoseconds; 0: not waiting */
    atomic_llong moved_at;    /* when something last moved on */
    atomic_llong looked_at;   /* when the watchdog last did; 0: there is none */
    atomic_llong awake_since; /* when it noticed that it had been asleep */

    pthread_t watchdog;
    pthread_mutex_t watch_mutex; /* guards watch_ending */
    pthread_cond_t watch_wake;
    bool has_watchdog, watch_ending;
    double watchdog_s;
    void (*describe)(void *, char *, size_t);
    void *describe_context;
    bool stall_told;
};

/* comm.c */
void comm_lock(Comm *c);
void comm_unlock(Comm *c);
long long comm_nanoseconds(void);
/* Keeps the first failure. Returns its code. */
ErrorCode comm_keep_failure(Comm *c, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
ErrorCode comm_mpi_failure(Comm *c, int mpi_code, const char *what);
ErrorCode comm_refused(const Comm *c, Error *err); /* the failure that there is, or OK */

/* transfer.c; the mutex is held. */
void transfer_setup(Comm *c);
void transfer_free(Comm *c);
/* A place for an operation, under way; NULL after setting the failure. */
Op *op_begin(Comm *c, OpKind kind);
void op_end(Comm *c, Op *op);
CommHandle op_handle(const Comm *c, const Op *op);
bool op_ended(const Comm *c, CommHandle handle);
void op_describe(const Comm *c, const Op *op, char *out, size_t size);
/* Adds an open request. */
void transfer_add(Comm *c, MPI_Request request, Transfer t);
/* Moves everything on; true when anything happened. */
bool transfer_progress(Comm *c, Device *device);

/* failure.c */
void notice_listen(Comm *c);  /* posts the standing receive */
void notice_arrived(Comm *c); /* c->notice is complete */
void watchdog_stop(Comm *c);
void comm_print_line(const char *line); /* one write */

#endif
