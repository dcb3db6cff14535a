/* Operations under way: what each has still to send, to receive and to add up.
 *
 * 1. A collective is up to four streams of messages. Item k of a stream is bucket k / (n-1), distance d =
 *    1 + k % (n-1): sends go to the rank d ahead, receives come from the rank d behind, so that the k-th
 *    send of every rank meets the k-th receive of another. Streams are posted in order: the messages of a
 *    pair of ranks never overtake each other, and the first unfinished item of a group can always move.
 * 2. Buckets are added up in ascending order, each when all its parts are there; parts of two buckets fit
 *    the workspace.
 * 3. In an all-reduce a bucket of another rank's sum is received where this rank's share of it was: not
 *    before that has been sent.
 * 4. Requests of all operations stand in one dense array, so that one MPI_Testsome moves all of them.
 * 5. In the guard build tensor memory stays open while an operation is under way: other ranks may read it
 *    at any time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"

enum { REQUESTS_FIRST = 1024 };

/* ---- places ---- */

void transfer_setup(Comm *c) {
    c->ops = mem_alloc_array(OPS_MAX, sizeof *c->ops);
    for (int i = OPS_MAX - 1; i >= 0; i--) {
        c->ops[i].generation = 1;
        c->ops[i].next = c->free_ops;
        c->free_ops = &c->ops[i];
    }
    c->parts = mem_alloc_array((size_t)c->size, sizeof *c->parts);
}

void transfer_free(Comm *c) {
    free(c->ops);
    free(c->parts);
    free(c->requests);
    free(c->transfers);
    free(c->statuses);
    free(c->indices);
}

Op *op_begin(Comm *c, OpKind kind) {
    Op *op = c->free_ops;
    if (!op) {
        comm_keep_failure(c, ERR_INTERNAL, "more than %d communications are under way at a time", OPS_MAX);
        return NULL;
    }
    c->free_ops = op->next;
    *op = (Op){.kind = kind, .generation = op->generation};
    c->under_way++;
    pool_unlock_all();
    if (c->has_progress) pthread_cond_broadcast(&c->wake);
    return op;
}

void op_end(Comm *c, Op *op) {
    pool_lock_all();
    op->generation++;
    op->next = c->free_ops;
    c->free_ops = op;
    c->under_way--;
}

CommHandle op_handle(const Comm *c, const Op *op) {
    return (uint64_t)op->generation << 32 | (uint64_t)(op - c->ops + 1);
}

bool op_ended(const Comm *c, CommHandle handle) {
    uint32_t place = (uint32_t)handle;
    return place == 0 || c->ops[place - 1].generation != (uint32_t)(handle >> 32);
}

void op_describe(const Comm *c, const Op *op, char *out, size_t size) {
    static const char *const names[] = {"all-gather", "reduce-scatter", "all-reduce"};
    (void)c;
    switch (op->kind) {
    case OP_SEND: snprintf(out, size, "a message of %zu bytes to rank %d", op->bytes, op->peer); break;
    case OP_RECV: snprintf(out, size, "a message of %zu bytes from rank %d", op->bytes, op->peer); break;
    case OP_SMALL: snprintf(out, size, "%s", op->name); break;
    default: snprintf(out, size, "%s of %zu bytes over %s", names[op->kind], op->total, axis_name(op->axis));
    }
}

/* ---- requests ---- */

static void make_room(Comm *c) {
    if (c->open < c->capacity) return;
    c->capacity = c->capacity ? 2 * c->capacity : REQUESTS_FIRST;
    size_t n = (size_t)c->capacity;
    c->requests = mem_grow(c->requests, n * sizeof *c->requests);
    c->transfers = mem_grow(c->transfers, n * sizeof *c->transfers);
    c->statuses = mem_grow(c->statuses, n * sizeof *c->statuses);
    c->indices = mem_grow(c->indices, n * sizeof *c->indices);
}

void transfer_add(Comm *c, MPI_Request request, Transfer t) {
    make_room(c);
    c->requests[c->open] = request;
    c->transfers[c->open++] = t;
}

static void fail_transfer(Comm *c, const Transfer *t, int mpi_code) {
    char what[192], whole[256];
    op_describe(c, t->op, what, sizeof what);
    snprintf(whole, sizeof whole, "%s: %s rank %d", what, t->receives ? "receiving from" : "sending to",
             t->peer);
    comm_mpi_failure(c, mpi_code, whole);
}

/* ---- streams ---- */

static bool window_open(const Stream *s) { return s->next < s->items && s->next - s->first < WINDOW; }

static void item_done(Stream *s, int64_t item) {
    s->done |= UINT64_C(1) << (item - s->first);
    while (s->done & 1) {
        s->done >>= 1;
        s->first++;
    }
}

static size_t part_bytes(const Op *op, int part) {
    size_t start = (size_t)part * op->stride;
    if (start >= op->total) return 0;
    return op->total - start < op->stride ? op->total - start : op->stride;
}

/* Bytes of bucket b of a part. */
static size_t bucket_bytes(const Op *op, int part, int64_t b) {
    size_t whole = part_bytes(op, part), start = (size_t)b * op->bucket;
    if (start >= whole) return 0;
    return whole - start < op->bucket ? whole - start : op->bucket;
}

/* Where another rank's share of bucket b of this rank's part is kept. */
static char *arrival(const Op *op, int64_t b, int from) {
    const Group *g = op->group;
    int64_t place = (b & 1) * (g->size - 1) + (from < g->rank ? from : from - 1);
    return op->workspace + (size_t)place * op->bucket;
}

/* Where bucket b goes from, or to. A part's shares go to its owner; its sum goes from its owner to everyone.
 */
static char *place(const Op *op, StreamId id, int peer, int64_t b) {
    size_t offset = (size_t)b * op->bucket, theirs = (size_t)peer * op->stride,
           own = (size_t)op->group->rank * op->stride;
    char *source = (char *)(uintptr_t)op->source; /* MPI only reads it */
    switch (id) {
    case REDUCE_SEND: return source + theirs + offset;
    case REDUCE_RECV: return arrival(op, b, peer);
    case GATHER_SEND: return source + (op->kind == OP_ALL_REDUCE ? own : 0) + offset;
    default: return op->target + theirs + offset;
    }
}

/* Posts item t.item of stream t.stream. */
static void post(Comm *c, Transfer t, char *data) {
    Group *g = t.op->group;
    MPI_Request request;
    int phase = t.stream <= REDUCE_RECV ? 0 : 1,
        tag = (int)((2 * t.op->turn + (uint64_t)phase) % (uint64_t)c->tags), code;
    if (t.receives) {
        code = MPI_Irecv(data, (int)t.bytes, MPI_BYTE, t.peer, tag, g->mpi, &request);
    } else {
        code = MPI_Isend(data, (int)t.bytes, MPI_BYTE, t.peer, tag, g->mpi, &request);
        g->traffic.bytes += (int64_t)t.bytes;
        g->traffic.messages++;
    }
    if (code == MPI_SUCCESS) {
        transfer_add(c, request, t);
    } else {
        fail_transfer(c, &t, code);
    }
}

static void post_next(Comm *c, Op *op, StreamId id) {
    const Group *g = op->group;
    Stream *s = &op->streams[id];
    int64_t item = s->next++, b = item / (g->size - 1);
    int distance = 1 + (int)(item % (g->size - 1));
    bool receives = id == REDUCE_RECV || id == GATHER_RECV;
    int peer = (receives ? g->rank - distance + g->size : g->rank + distance) % g->size;
    bool own = id == REDUCE_RECV || id == GATHER_SEND; /* whose part it is */
    size_t bytes = bucket_bytes(op, own ? g->rank : peer, b);
    if (bytes == 0) {
        item_done(s, item);
    } else {
        post(c, (Transfer){op, id, item, peer, bytes, receives}, place(op, id, peer, b));
    }
}

/* May the next item of a stream be posted now, as far as the other streams go? */
static bool ready(const Op *op, StreamId id) {
    int64_t others = op->group->size - 1, b = op->streams[id].next / others;
    if (id == REDUCE_SEND || op->kind == OP_ALL_GATHER) return true;
    if (id == REDUCE_RECV) return b < op->summed + 2;
    if (id == GATHER_SEND) return b < op->summed;
    return op->streams[REDUCE_SEND].first >= (b + 1) * others;
}

/* ---- sums ---- */

static void add_up(Comm *c, Op *op, Device *device) {
    const Group *g = op->group;
    int64_t b = op->summed;
    size_t bytes = bucket_bytes(op, g->rank, b), offset = (size_t)b * op->bucket;
    const char *own = op->source + (size_t)g->rank * op->stride + offset;
    char *out = op->kind == OP_ALL_REDUCE ? op->target + (size_t)g->rank * op->stride : op->target;
    op->summed++;
    if (bytes == 0) return;
    for (int p = 0; p < g->size; p++) c->parts[p] = p == g->rank ? own : arrival(op, b, p);
    if (op->type == COMM_F32) {
        OP(device, OP_SUM_PARTS, sum_parts, (int64_t)(bytes / sizeof(float)), g->size,
           (const float *const *)c->parts, (float *)(out + offset));
    } else {
        OP(device, OP_SUM_PARTS, sum_parts_i64, (int64_t)(bytes / sizeof(int64_t)), g->size,
           (const int64_t *const *)c->parts, (int64_t *)(out + offset));
    }
}

static bool reduces(const Op *op) { return op->kind != OP_ALL_GATHER; }

static bool can_add_up(const Op *op) {
    return reduces(op) && op->summed < op->buckets &&
           op->streams[REDUCE_RECV].first >= (op->summed + 1) * (op->group->size - 1);
}

/* ---- operations ---- */

static bool collective_ended(const Op *op) {
    for (int id = 0; id < STREAMS; id++)
        if (op->streams[id].first < op->streams[id].items) return false;
    return !reduces(op) || op->summed == op->buckets;
}

/* Receives first: a message that is expected is taken without a copy. */
static bool advance(Comm *c, Op *op, Device *device) {
    static const StreamId order[STREAMS] = {REDUCE_RECV, GATHER_RECV, REDUCE_SEND, GATHER_SEND};
    bool moved = false;
    for (bool again = true; again && c->failure.code == OK;) {
        again = false;
        for (int i = 0; i < STREAMS; i++)
            while (window_open(&op->streams[order[i]]) && ready(op, order[i]) && c->failure.code == OK) {
                post_next(c, op, order[i]);
                again = true;
            }
        if (can_add_up(op)) {
            add_up(c, op, device);
            again = true;
        }
        moved |= again;
    }
    return moved;
}

/* An earlier operation of the group uses the same workspace. */
static bool held_back(const Group *g, const Op *op) {
    for (const Op *earlier = g->queue; earlier != op; earlier = earlier->next)
        if (earlier->workspace && earlier->workspace == op->workspace) return true;
    return false;
}

static bool advance_group(Comm *c, Group *g, Device *device) {
    bool moved = false;
    int active = 0;
    for (Op **at = &g->queue; *at && active < COMM_TURNS && c->failure.code == OK;) {
        Op *op = *at;
        if (!held_back(g, op)) moved |= advance(c, op, device);
        if (collective_ended(op)) {
            *at = op->next;
            op_end(c, op);
            moved = true;
        } else {
            at = &op->next;
            active++;
        }
    }
    return moved;
}

static void check_header(Comm *c, const Op *op) {
    if (op->header[0] != op->key) {
        comm_keep_failure(c, ERR_INTERNAL, "rank %d: expected message %llx from rank %d, which sent %llx",
                          c->rank, (unsigned long long)op->key, op->peer, (unsigned long long)op->header[0]);
    } else if (op->header[1] != op->bytes) {
        comm_keep_failure(c, ERR_INTERNAL,
                          "rank %d: expected a message of %zu bytes from rank %d, which sent %llu", c->rank,
                          op->bytes, op->peer, (unsigned long long)op->header[1]);
    }
}

static void finished(Comm *c, Transfer t) {
    if (!t.op) {
        notice_arrived(c);
    } else if (t.op->kind <= OP_ALL_REDUCE) {
        item_done(&t.op->streams[t.stream], t.item);
    } else {
        if (t.op->kind == OP_RECV && t.item == 0) check_header(c, t.op);
        if (--t.op->open == 0) op_end(c, t.op);
    }
}

static void check_length(Comm *c, const Transfer *t, const MPI_Status *status) {
    int count = 0;
    if (!t->op || !t->receives || t->op->kind == OP_SMALL) return;
    MPI_Get_count(status, MPI_BYTE, &count);
    if ((size_t)count == t->bytes) return;
    char what[192];
    op_describe(c, t->op, what, sizeof what);
    comm_keep_failure(c, ERR_INTERNAL, "rank %d: %s: rank %d sent %d bytes where %zu were expected", c->rank,
                      what, t->peer, count, t->bytes);
}

static int compare_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Takes finished requests out of the dense array: the last one moves into each gap, from the end, so that
 * none is lost. Their transfers are handled in the order in which they were posted. */
static void take_finished(Comm *c, int count, bool in_status) {
    for (int i = 0; i < count; i++) {
        const Transfer *t = &c->transfers[c->indices[i]];
        int code = in_status ? c->statuses[i].MPI_ERROR : MPI_SUCCESS;
        if (code != MPI_SUCCESS && code != MPI_ERR_PENDING) {
            if (t->op) fail_transfer(c, t, code);
        } else {
            check_length(c, t, &c->statuses[i]);
            finished(c, *t);
        }
    }
    qsort(c->indices, (size_t)count, sizeof *c->indices, compare_ints);
    for (int i = count - 1; i >= 0; i--) {
        int gap = c->indices[i], last = --c->open;
        c->requests[gap] = c->requests[last];
        c->transfers[gap] = c->transfers[last];
    }
}

static bool test_requests(Comm *c) {
    if (c->open == 0) return false;
    int count = 0, code = MPI_Testsome(c->open, c->requests, &count, c->indices, c->statuses);
    if (count == MPI_UNDEFINED) count = 0;
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) comm_mpi_failure(c, code, "testing for messages");
    if (count > 0) take_finished(c, count, code == MPI_ERR_IN_STATUS);
    return count > 0;
}

bool transfer_progress(Comm *c, Device *device) {
    if (c->failure.code != OK || !c->joined) return false;
    bool moved = test_requests(c);
    for (int axis = 0; axis < AXES; axis++) moved |= advance_group(c, &c->groups[axis], device);
    if (moved) atomic_store(&c->moved_at, comm_nanoseconds());
    return moved;
}
