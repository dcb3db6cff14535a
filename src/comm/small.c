/* Small things that all ranks do together and wait for. They go through the same requests as everything else,
 * so that what is under way moves on, and the watchdog and failures of others are seen. */
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"

enum { BROADCAST_PIECE = 1 << 30, GATHER_KIND = 3 }; /* a kind of messages that programs do not use */

static char *scratch(Comm *c, size_t bytes) {
    if (bytes > c->small_capacity) {
        c->small_scratch = mem_grow(c->small_scratch, bytes);
        c->small_capacity = bytes;
    }
    return c->small_scratch;
}

/* The mutex is held; gives it back. Waits for what `code` and `request` started. */
static ErrorCode finish(Comm *c, int code, MPI_Request request, const char *name, Error *err) {
    CommHandle handle = 0;
    if (code != MPI_SUCCESS) {
        comm_mpi_failure(c, code, name);
    } else {
        Op *op = op_begin(c, OP_SMALL);
        if (op) {
            op->name = name;
            op->open = 1;
            handle = op_handle(c, op);
            transfer_add(c, request, (Transfer){op, STREAMS, 0, 0, 0, false});
        }
    }
    ErrorCode failed = comm_refused(c, err);
    comm_unlock(c);
    return failed == OK ? comm_wait(c, handle, err) : failed;
}

static ErrorCode enter(Comm *c, Error *err) {
    comm_lock(c);
    ErrorCode code = comm_refused(c, err);
    if (code != OK) comm_unlock(c);
    return code;
}

ErrorCode comm_barrier(Comm *c, Error *err) {
    MPI_Request request;
    if (!c->joined) return OK;
    TRY(enter(c, err));
    int code = MPI_Ibarrier(c->small, &request);
    return finish(c, code, request, "a barrier", err);
}

/* all[p] = mine of rank p. */
static ErrorCode gather_records(Comm *c, const void *mine, char *all, size_t bytes, const char *name,
                                Error *err) {
    MPI_Request request;
    CHECK(bytes <= (size_t)BROADCAST_PIECE);
    TRY(enter(c, err));
    int code = MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, c->small, &request);
    return finish(c, code, request, name, err);
}

ErrorCode comm_combine(Comm *c, void *record, size_t bytes, void (*combine)(void *into, const void *from),
                       Error *err) {
    if (!c->joined) return OK;
    char *all = scratch(c, (size_t)c->size * bytes);
    TRY(gather_records(c, record, all, bytes, "combining records", err));
    memcpy(record, all, bytes);
    for (int p = 1; p < c->size; p++) combine(record, all + (size_t)p * bytes);
    return OK;
}

void comm_add_int64(void *into, const void *from) { *(int64_t *)into += *(const int64_t *)from; }
void comm_add_double(void *into, const void *from) { *(double *)into += *(const double *)from; }

ErrorCode comm_broadcast(Comm *c, void *data, size_t bytes, int root, Error *err) {
    if (!c->joined) return OK;
    for (size_t at = 0; at < bytes; at += BROADCAST_PIECE) {
        MPI_Request request;
        size_t left = bytes - at;
        TRY(enter(c, err));
        int code = MPI_Ibcast((char *)data + at, left < BROADCAST_PIECE ? (int)left : BROADCAST_PIECE,
                              MPI_BYTE, root, c->small, &request);
        TRY(finish(c, code, request, "a broadcast", err));
    }
    return OK;
}

static ErrorCode receive_pieces(Comm *c, const void *mine, size_t bytes, char **all, const size_t *lengths,
                                Error *err) {
    size_t total = 0;
    for (int p = 0; p < c->size; p++) total += lengths[p];
    char *out = mem_alloc(total + 1);
    memcpy(out, mine, bytes);
    ErrorCode code = OK;
    size_t at = bytes;
    for (int p = 1; p < c->size && code == OK; at += lengths[p++]) {
        CommHandle handle = 0;
        code = comm_recv(c, p, comm_key(GATHER_KIND, 0, 0), out + at, lengths[p], &handle, err);
        if (code == OK) code = comm_wait(c, handle, err);
    }
    if (code == OK) {
        *all = out;
    } else {
        free(out);
    }
    return code;
}

ErrorCode comm_gather(Comm *c, const void *mine, size_t bytes, char **all, size_t *lengths, Error *err) {
    *all = NULL;
    if (!c->joined) {
        *all = mem_alloc(bytes + 1);
        memcpy(*all, mine, bytes);
        lengths[0] = bytes;
        return OK;
    }
    char *sizes = scratch(c, (size_t)c->size * sizeof bytes);
    TRY(gather_records(c, &bytes, sizes, sizeof bytes, "gathering lengths", err));
    if (c->rank == 0) {
        memcpy(lengths, sizes, (size_t)c->size * sizeof bytes);
        return receive_pieces(c, mine, bytes, all, lengths, err);
    }
    CommHandle handle = 0;
    TRY(comm_send(c, 0, comm_key(GATHER_KIND, 0, 0), mine, bytes, &handle, err));
    TRY(comm_wait(c, handle, err));
    c->point_traffic.bytes -= (int64_t)bytes;
    c->point_traffic.messages--;
    return OK;
}

/* ---- agreement ---- */

typedef struct Verdict {
    int rank, failed; /* the lowest that failed, or -1; how many did */
    Error error;
} Verdict;

static void combine_verdicts(void *into, const void *from) {
    Verdict *a = into;
    const Verdict *b = from;
    int failed = a->failed + b->failed;
    if (a->rank < 0 && b->rank >= 0) *a = *b;
    a->failed = failed;
}

ErrorCode comm_agree(Comm *c, ErrorCode code, Error *err) {
    if (!c->joined) return code;
    Verdict v = {.rank = -1};
    if (code != OK) {
        v = (Verdict){c->rank, 1, {.code = code}};
        if (err) v.error = *err;
        v.error.code = code;
    }
    TRY(comm_combine(c, &v, sizeof v, combine_verdicts, err));
    if (v.rank < 0) return OK;
    bool told = v.rank != c->rank || v.error.told;
    /* What all ranks say is about the run, not about a rank. */
    if (v.failed == c->size) {
        error_set(err, v.error.code, "%s", v.error.message);
    } else {
        error_set(err, v.error.code, "rank %d: %s", v.rank, v.error.message);
    }
    if (err) err->told = told;
    return v.error.code;
}
