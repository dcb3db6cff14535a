/* Operations under way: what each still has to send, to receive and to sum.
 *
 *  1. A collective is up to four streams of messages. Items are ordered by bucket, distance d = 1 .. n-1, and
 *     block (most have one). Sends go to the rank d ahead, receives come from the rank d behind, so both
 *     sides of a pair see its messages in the same order. Streams are posted in order: the messages of a pair
 *     of ranks never overtake each other, and the first unfinished item of a group can always move.
 *  2. Buckets are summed in ascending order, each when all its shards have arrived; the shards of two buckets
 *     fit the workspace.
 *  3. In an all-reduce, a bucket of another rank's sum is received into the memory of this rank's addend, but
 *     not before that has been sent.
 *  4. A sum over two sets of ranks in two steps has the bits of the canonical tree over both. If the inner
 *     groups are not blocks of the tree, the inner step leaves several partial sums (the blocks of its run)
 *     instead of one, in ranges that this rank has already sent. The outer step sends them all, and folds
 *     those of all ranks.
 *  5. A collective over several machines is up to three operations of the group, one for each level, which
 *     wait for each other in turn:
 *         all-gather                 between machines, inside
 *         reduce-scatter (in place)  inside, between
 *         all-reduce                 reduce-scatter inside, all-reduce of this rank's range between,
 *                                    all-gather inside
 *     Rank j of a machine exchanges with rank j of each other machine, so that each byte crosses to a machine
 *     once. A machine's sum is a block of the canonical tree over the group if its ranks are a power of two.
 *  6. A message is one stream: a header, then the data in pieces. The header says what follows, so a receiver
 *     never takes one message for another.
 *  7. Every open post has an entry in one table, whose index is the transport's event. The table holds as
 *     many as the windows of all operations allow, so it never grows.
 *  8. In the guard build tensor memory stays unlocked while an operation is under way: other ranks may read
 *     it at any time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"
#include "device/ops/memory.h"

/* ---- slots ---- */

/* Allocates everything that operations need, except slots of staging.c, so that a step allocates nothing. */
void transfer_setup(Comm *c) {
    c->ops = mem_alloc_array(OPS_MAX, sizeof *c->ops);
    for (int i = OPS_MAX - 1; i >= 0; i--) {
        c->ops[i].generation = 1;
        c->ops[i].next = c->free_ops;
        c->free_ops = &c->ops[i];
    }
    c->addends = mem_alloc_array((size_t)c->size, sizeof *c->addends);
    c->transfers = mem_alloc_array(COMM_EVENTS, sizeof *c->transfers);
    c->ends = mem_alloc_array(COMM_EVENTS, sizeof *c->ends);
    c->free_transfer = -1;
}

void transfer_free(Comm *c) {
    free(c->ops);
    free(c->addends);
    free(c->transfers);
    free(c->ends);
}

/* A program that starts thousands of operations without waiting for any has lost their requests. */
Op *op_begin(Comm *c, OpKind kind) {
    Op *op = c->free_ops;
    if (!op) {
        comm_keep_failure(c, ERR_INTERNAL, "more than %d communications are under way at a time", OPS_MAX);
        return NULL;
    }
    c->free_ops = op->next;
    *op = (Op){.kind = kind, .generation = op->generation, .under_way = true};
    c->under_way++;
    pool_unlock_all();
    if (c->has_progress) pthread_cond_broadcast(&c->wake);
    return op;
}

void op_end(Comm *c, Op *op) {
    pool_lock_all();
    /* From here on its requests count as ended, forever: a slot has 2^32 uses. */
    op->generation++;
    op->under_way = false;
    op->next = c->free_ops;
    c->free_ops = op;
    c->under_way--;
}

/* The slot's index plus one in the lower half, its generation in the upper: 0 is no operation. */
CommRequest op_request(const Comm *c, const Op *op) {
    return (uint64_t)op->generation << 32 | (uint64_t)(op - c->ops + 1);
}

bool op_ended(const Comm *c, CommRequest request) {
    uint32_t slot = (uint32_t)request;
    return slot == 0 || c->ops[slot - 1].generation != (uint32_t)(request >> 32);
}

void op_describe(const Comm *c, const Op *op, char *out, size_t size) {
    static const char *const names[] = {"all-gather", "reduce-scatter", "all-reduce", "all-to-all",
                                        "exchange"};
    char set[64];
    (void)c;
    if (op->name) {
        snprintf(out, size, "%s", op->name);
        return;
    }
    switch (op->kind) {
    case OP_SEND: snprintf(out, size, "a message of %zu bytes to rank %d", op->bytes, op->peer); break;
    case OP_RECV: snprintf(out, size, "a message of %zu bytes from rank %d", op->bytes, op->peer); break;
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_ALL_REDUCE:
    case OP_ALL_TO_ALL:
    case OP_ALL_TO_ALL_V:
        snprintf(out, size, "%s of %zu bytes over %s", names[op->kind], op->total,
                 mesh_set_name(op->group->set, set));
    }
}

/* ---- posts ---- */

/* Takes freed entries first, which are in the cache; then the next that was never used. */
static int take_transfer(Comm *c, bool receives) {
    int event = c->free_transfer;
    c->posts++;
    c->sends += !receives;
    if (event < 0) {
        CHECK(c->fresh_transfers < COMM_EVENTS);
        return c->fresh_transfers++;
    }
    c->free_transfer = c->transfers[event].next;
    return event;
}

static void give_transfer(Comm *c, int event) {
    c->posts--;
    c->sends -= !c->transfers[event].receives;
    c->transfers[event].next = c->free_transfer;
    c->free_transfer = event;
}

void transfer_drop(Comm *c, int event) {
    const Transfer t = c->transfers[event];
    give_transfer(c, event);
    if (t.staged) staging_end(c, &t, false);
}

/* Entries that are free are in the list. */
void transfer_drop_all(Comm *c) {
    bool *free_ones = mem_alloc_array(COMM_EVENTS, sizeof *free_ones);
    for (int event = c->free_transfer; event >= 0; event = c->transfers[event].next) free_ones[event] = true;
    for (int event = 0; event < c->fresh_transfers; event++)
        if (!free_ones[event]) transfer_drop(c, event);
    free(free_ones);
}

void transfer_end_all(Comm *c) {
    CHECK(c->posts == 0);
    for (int i = 0; i < OPS_MAX; i++)
        if (c->ops[i].under_way) op_end(c, &c->ops[i]);
}

/* Reports the operation and the peer: "all-gather of N bytes over dp_shard: receiving from rank 3". */
static void fail_transfer(Comm *c, const Transfer *t, int error) {
    char what[192] = "a control message", whole[256];
    if (t->op) op_describe(c, t->op, what, sizeof what);
    snprintf(whole, sizeof whole, "%s: %s rank %d", what, t->receives ? "receiving from" : "sending to",
             t->peer);
    comm_transport_failure(c, error, whole);
}

/* Collectives and the messages of comm.h move tensors; control messages, headers and small operations move
 * host memory. */
static bool is_tensor(const Comm *c, const Transfer *t) {
    if (!t->op) return false;
    bool message = t->op->kind == OP_SEND || t->op->kind == OP_RECV;
    if (t->op->p2p_channel) return false;
    return !message || (t->op->channel == c->point && t->item > 0);
}

/* If the transport refuses a post, its entry is freed; the failure is kept, and ends all operations. */
int transfer_post(Comm *c, Transfer t, int channel, int64_t tag, void *data) {
    int event = take_transfer(c, t.receives);
    TransportPost post = {.channel = channel, .peer = t.peer, .tag = tag, .bytes = t.bytes, .event = event};
    if (staging_needed(c) && is_tensor(c, &t)) t.staged = data = staging_begin(c, &t, data);
    c->transfers[event] = t;
    int error = t.receives ? c->transport->kind->receive(c->transport, &post, data)
                           : c->transport->kind->send(c->transport, &post, data);
    if (error == TRANSPORT_OK) return event;
    fail_transfer(c, &t, error);
    if (t.staged) staging_end(c, &t, false);
    give_transfer(c, event);
    return -1;
}

/* ---- streams ---- */

static bool window_open(const Stream *s, int window) {
    return s->next < s->items && s->next - s->first < window;
}

/* Items may end out of order within the window, which is at most 64. The bits record which have ended;
 * `first` moves past those that ended in a row. */
void transfer_item_done(Stream *s, int64_t item) {
    s->done |= UINT64_C(1) << (item - s->first);
    while (s->done & 1) {
        s->done >>= 1;
        s->first++;
    }
}

/* The range of rank p of the span that bucket b is of. */
static const CommRange *range_of(const Op *op, int p, int64_t b) {
    const Span *s = &op->span;
    return op->pieces > 1 ? &op->ranges[b / (op->buckets / op->pieces) * s->size + p]
                          : &op->ranges[s->first + p * s->step];
}

static size_t range_start(const Op *op, int p, int64_t b) {
    return op->ranges ? (size_t)range_of(op, p, b)->first * op->width : (size_t)p * op->stride;
}

/* Offset of bucket b in its range. */
static size_t bucket_start(const Op *op, int64_t b) {
    return (size_t)(b % (op->buckets / op->pieces)) * op->bucket;
}

/* The last ranges of an all-reduce may be short, or beyond its end. */
static size_t range_bytes(const Op *op, int p, int64_t b) {
    if (op->ranges) return (size_t)range_of(op, p, b)->count * op->width;
    size_t start = range_start(op, p, b);
    if (start >= op->total) return 0;
    return op->total - start < op->stride ? op->total - start : op->stride;
}

/* Bytes of bucket b, of `whole` bytes. */
static size_t bytes_in_bucket(const Op *op, size_t whole, int64_t b) {
    size_t start = bucket_start(op, b);
    if (start >= whole) return 0;
    return whole - start < op->bucket ? whole - start : op->bucket;
}

/* Bytes of bucket b of the range of rank p of the span. */
static size_t bucket_bytes(const Op *op, int p, int64_t b) {
    return bytes_in_bucket(op, range_bytes(op, p, b), b);
}

/* ---- blocks of a two-step sum ---- */

static bool is_outer(const Op *op) { return op->leaves && op->kind == OP_ALL_REDUCE; }

/* Number of sums that a rank of the group contributes. */
static int blocks_of(const Op *op, int rank) {
    return is_outer(op) ? tree_blocks(op->leaves, (TreeBlock){rank * op->run, op->run}, NULL) : 1;
}

/* The first block is at this rank's own range; the others are at ranges that it has sent and that are large
 * enough, searched for from its own on; those that are left follow the whole buffer. */
int64_t block_first(const CommRange *ranges, int run, int own, int k) {
    int left = k;
    for (int i = 0; i < run; i++) {
        const CommRange *range = &ranges[(own + i) % run];
        if (range->count >= ranges[own].count && left-- == 0) return range->first;
    }
    return comm_ranges_count(ranges, run) + left * ranges[own].count;
}

static char *block_address(const Op *op, int k) {
    return op->sums + (size_t)block_first(op->shards, op->run, op->own, k) * op->width;
}

void stream_items(Op *op, StreamId id) {
    const Group *g = op->group;
    Stream *s = &op->streams[id];
    /* One item for each other rank of the span; in an outer step one for each block sent or received. */
    s->per_bucket = op->span.size - 1;
    if (is_outer(op) && id == REDUCE_SEND) s->per_bucket *= blocks_of(op, g->rank);
    if (is_outer(op) && id == REDUCE_RECV) {
        s->per_bucket = 0;
        for (int p = 0; p < g->size; p++) s->per_bucket += p == g->rank ? 0 : blocks_of(op, p);
    }
    s->items = op->buckets * s->per_bucket;
}

typedef struct Item {
    int64_t bucket;
    int peer, block; /* peer: its rank in the span */
} Item;

/* Computes bucket, rank and block from the number of an item (invariant 1). With blocks, goes through the
 * distances, since ranks have different numbers of blocks. */
static Item item_of(const Op *op, StreamId id, int64_t item) {
    const Span *g = &op->span;
    int64_t per_bucket = op->streams[id].per_bucket;
    int left = (int)(item % per_bucket), sends = id == REDUCE_SEND || id == GATHER_SEND,
        step = sends ? 1 : g->size - 1;
    bool blocks = is_outer(op) && (id == REDUCE_SEND || id == REDUCE_RECV);
    Item at = {.bucket = item / per_bucket};
    int distance = blocks ? 1 : 1 + left;
    at.peer = (int)((g->rank + (int64_t)distance * step) % g->size);
    while (blocks) {
        int here = blocks_of(op, sends ? g->rank : at.peer);
        at.block = left;
        if (left < here) break;
        left -= here;
        at.peer = (at.peer + step) % g->size;
    }
    return at;
}

/* The range of a piece that is sent or received in an all-to-all-v. */
static const CommRange *exchanged(const Op *op, StreamId id, Item at) {
    return &(id == GATHER_SEND ? op->ranges : op->arriving)[at.peer];
}

/* Where the addend (or a block of it) of another rank for bucket b of this rank's range is kept. Two buckets
 * alternate: b and b + 1 exist at a time, b + 2 only when b has been summed (ready). */
static char *arrival(const Op *op, int64_t b, int from, int block) {
    const Span *g = &op->span;
    int64_t at = from < g->rank ? from : from - 1;
    if (is_outer(op)) {
        at = 0;
        for (int p = 0; p < from; p++) at += p == g->rank ? 0 : blocks_of(op, p);
    }
    at += (b & 1) * op->streams[REDUCE_RECV].per_bucket + block;
    return op->workspace + (size_t)at * op->bucket;
}

/* Memory that an item is read from or written to. Addends of a range go to its owner; its sum goes from its
 * owner to all. */
static char *item_address(const Op *op, StreamId id, Item at) {
    size_t offset = bucket_start(op, at.bucket), theirs = range_start(op, at.peer, at.bucket),
           own = range_start(op, op->span.rank, at.bucket);
    char *source = (char *)(uintptr_t)op->source; /* what is sent is only read */
    if (op->kind == OP_ALL_TO_ALL_V)
        return (id == GATHER_SEND ? source : op->target) + (size_t)exchanged(op, id, at)->first * op->width +
               offset;
    switch (id) {
    case REDUCE_SEND: return (is_outer(op) ? block_address(op, at.block) : source) + theirs + offset;
    case REDUCE_RECV: return arrival(op, at.bucket, at.peer, at.block);
    case GATHER_SEND: return source + (op->kind == OP_ALL_TO_ALL ? theirs : own) + offset;
    case GATHER_RECV: return op->target + theirs + offset;
    case STREAMS: break;
    }
    return NULL;
}

static size_t item_bytes(const Op *op, StreamId id, Item at) {
    bool own = id == REDUCE_RECV || id == GATHER_SEND; /* whose range it is */
    if (op->kind == OP_ALL_TO_ALL_V)
        return bytes_in_bucket(op, (size_t)exchanged(op, id, at)->count * op->width, at.bucket);
    return bucket_bytes(op, own ? op->span.rank : at.peer, at.bucket);
}

StreamItem transfer_item(const Op *op, StreamId id, int64_t item) {
    Item at = item_of(op, id, item);
    return (StreamItem){.peer = op->span.first + at.peer * op->span.step,
                        .receives = id == REDUCE_RECV || id == GATHER_RECV,
                        .data = item_address(op, id, at),
                        .bytes = item_bytes(op, id, at)};
}

void transfer_count(Comm *c, const Op *op, int peer, size_t bytes) {
    const Group *g = op->group;
    CommTraffic *traffic = &c->traffic[op->asked];
    traffic->bytes += (int64_t)bytes;
    traffic->messages++;
    if (peer / g->inside != g->rank / g->inside) traffic->between += (int64_t)bytes;
}

/* Posts item t.item of stream t.stream. */
static void post(Comm *c, Transfer t, char *data) {
    Group *g = t.op->group;
    /* Reducing and gathering have different tags: in an all-reduce both go between the same ranks at the same
     * time. */
    uint64_t phase = t.stream <= REDUCE_RECV ? 0 : 1,
             tag = (2 * t.op->sequence + phase) % (uint64_t)c->transport->tags;
    if (!t.receives) { transfer_count(c, t.op, t.peer, t.bytes); }
    transfer_post(c, t, g->channel, (int64_t)tag, data);
}

/* Empty items, of ranges beyond the end, end without a message on both sides, which both know their sizes. */
static void post_next(Comm *c, Op *op, StreamId id) {
    Stream *s = &op->streams[id];
    int64_t item = s->next++;
    StreamItem p = transfer_item(op, id, item);
    Transfer t = {
        .op = op, .stream = id, .item = item, .peer = p.peer, .bytes = p.bytes, .receives = p.receives};
    if (p.bytes == 0) {
        transfer_item_done(s, item);
    } else {
        post(c, t, p.data);
    }
}

/* Whether all items of the first b buckets of a stream have ended. */
static bool through(const Op *op, StreamId id, int64_t b) {
    return op->streams[id].first >= b * op->streams[id].per_bucket;
}

/* Whether the next item of a stream may be posted, as far as the other streams are concerned. In the order
 * below: what is sent exists from the start; a bucket is received when the workspace has space; a sum is sent
 * when it is complete; a sum of another rank is received into the memory of this rank's addend when that has
 * been sent (invariant 3). */
static bool ready(const Op *op, StreamId id) {
    int64_t b = op->streams[id].next / op->streams[id].per_bucket;
    if (id == REDUCE_SEND || !op_reduces(op)) return true;
    if (id == REDUCE_RECV) return b < op->summed + 2;
    if (id == GATHER_SEND) return b < op->summed;
    return through(op, REDUCE_SEND, b + 1);
}

/* ---- sums ---- */

/* out = the canonical sum of c->addends[0 .. n). */
static void sum(Comm *c, const Op *op, Device *device, int n, void *out, size_t bytes) {
    if (op->type == COMM_F32) {
        OP(device, sum_partials, (int64_t)(bytes / sizeof(float)), n, (const float *const *)c->addends,
           (float *)out);
    } else {
        OP(device, sum_partials_i64, (int64_t)(bytes / sizeof(int64_t)), n,
           (const int64_t *const *)c->addends, (int64_t *)out);
    }
}

/* The group is the whole sum. */
static void add_whole(Comm *c, Op *op, Device *device, int64_t b, size_t bytes) {
    const Span *g = &op->span;
    size_t range = range_start(op, g->rank, b), offset = bucket_start(op, b);
    char *out = op->kind == OP_ALL_REDUCE || op->pieces > 1 ? op->target + range : op->target;
    for (int p = 0; p < g->size; p++)
        c->addends[p] = p == g->rank ? op->source + range + offset : arrival(op, b, p, 0);
    sum(c, op, device, g->size, out + offset, bytes);
}

/* The inner step: one sum for each block of this rank's run. The first sum goes where this rank's own range
 * is, so the block that contains this rank ("with") is summed first. Otherwise the sums of earlier blocks
 * would overwrite its addend. */
static void add_blocks(Comm *c, Op *op, Device *device, int64_t b, size_t bytes) {
    const Group *g = op->group;
    size_t offset = (size_t)b * op->bucket;
    const char *own = op->source + range_start(op, g->rank, b) + offset;
    TreeBlock blocks[TREE_BLOCKS];
    int count = tree_blocks(op->leaves, (TreeBlock){op->first, op->run}, blocks), with = 0;
    while (blocks[with].first + blocks[with].size <= op->first + g->rank) with++;
    for (int i = 0; i < count; i++) {
        int k = i == 0 ? with : i <= with ? i - 1 : i;
        for (int p = 0; p < blocks[k].size; p++) {
            int rank = blocks[k].first - op->first + p;
            c->addends[p] = rank == g->rank ? own : arrival(op, b, rank, 0);
        }
        sum(c, op, device, blocks[k].size, block_address(op, k) + offset, bytes);
    }
}

/* The outer step folds the blocks of all runs, in the order of the tree, each pair into its left half. */
typedef struct Fold {
    Comm *c;
    const Op *op;
    Device *device;
    int64_t bucket;
    size_t bytes;
    int rank, block; /* of the next leaf: its rank, and the index of its block */
} Fold;

static char *next_leaf(Fold *f) {
    const Op *op = f->op;
    const Group *g = op->group;
    size_t own = range_start(op, g->rank, f->bucket) + (size_t)f->bucket * op->bucket;
    int rank = f->rank, block = f->block++;
    if (f->block == blocks_of(op, rank)) f->rank++, f->block = 0;
    return rank == g->rank ? block_address(op, block) + own : arrival(op, f->bucket, rank, block);
}

/* The sum of a block of the tree; out NULL: it may stay where its first leaf is. A block inside one run was
 * summed there, by the inner step. */
static char *fold(Fold *f, TreeBlock block, char *out) {
    if (block.first / f->op->run == (block.first + block.size - 1) / f->op->run) return next_leaf(f);
    int half = tree_half(block.size);
    char *left = fold(f, (TreeBlock){block.first, half}, NULL);
    char *right = fold(f, (TreeBlock){block.first + half, block.size - half}, NULL);
    f->c->addends[0] = left, f->c->addends[1] = right;
    sum(f->c, f->op, f->device, 2, out ? out : left, f->bytes);
    return out ? out : left;
}

/* Sums one bucket of this rank's own range. Another thread may be summing for another operation, but never
 * for this one: the lock is held. */
void transfer_add_up(Comm *c, Op *op, Device *device, DeviceStream on) {
    int64_t b = op->summed++;
    size_t bytes = bucket_bytes(op, op->span.rank, b);
    if (bytes == 0) return;
    DeviceStream before = device_on(on);
    if (!op->leaves) {
        add_whole(c, op, device, b, bytes);
    } else if (!is_outer(op)) {
        add_blocks(c, op, device, b, bytes);
    } else {
        Fold f = {.c = c, .op = op, .device = device, .bucket = b, .bytes = bytes};
        char *out = op->target + range_start(op, op->span.rank, b) + (size_t)b * op->bucket;
        fold(&f, (TreeBlock){0, op->leaves}, out);
    }
    /* A communicator continues by itself; MPI sends from that memory. */
    if (on == ON_COMM) device_finish(device, device_mark(device, ON_COMM), WAIT_TRANSPORT);
    device_on(before);
}

/* Blocks of the inner step go to ranges that must have been sent. */
static bool can_add_up(const Op *op) {
    return op_reduces(op) && op->summed < op->buckets && through(op, REDUCE_RECV, op->summed + 1) &&
           (!op->leaves || is_outer(op) || through(op, REDUCE_SEND, op->summed + 1));
}

/* ---- operations ---- */

static bool collective_ended(const Op *op) {
    for (int id = 0; id < STREAMS; id++)
        if (op->streams[id].first < op->streams[id].items) return false;
    return !op_reduces(op) || op->summed == op->buckets;
}

/* Receives first: a message whose receive is posted needs no copy. */
static bool advance(Comm *c, Op *op, Device *device) {
    static const StreamId order[STREAMS] = {REDUCE_RECV, GATHER_RECV, REDUCE_SEND, GATHER_SEND};
    bool moved = false;
    for (bool again = true; again && c->failure.code == OK;) {
        again = false;
        for (int i = 0; i < STREAMS; i++)
            while (window_open(&op->streams[order[i]], WINDOW) && ready(op, order[i]) &&
                   c->failure.code == OK) {
                post_next(c, op, order[i]);
                again = true;
            }
        if (can_add_up(op)) {
            transfer_add_up(c, op, device, ON_COMM);
            again = true;
        }
        moved |= again;
    }
    return moved;
}

/* Whether it is the next level of an operation that has not ended, or an earlier operation of the group uses
 * the same workspace. */
static bool held_back(const Comm *c, const Group *g, const Op *op) {
    if (!op_ended(c, op->behind)) return true;
    for (const Op *earlier = g->queue; earlier != op; earlier = earlier->next)
        if (earlier->workspace && earlier->workspace == op->workspace) return true;
    return false;
}

static bool advance_group(Comm *c, Group *g, Device *device) {
    bool moved = false;
    int active = 0;
    for (Op **at = &g->queue; *at && active < COMM_ACTIVE && c->failure.code == OK;) {
        Op *op = *at;
        bool on_communicators = op->event != 0;
        if (!on_communicators && !held_back(c, g, op)) moved |= advance(c, op, device);
        if (on_communicators ? communicators_reached(c, op) : collective_ended(op)) {
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

/* ---- messages ---- */

/* Posts piece `item` of a message; 0 is the header. */
static void post_message_part(Comm *c, Op *op, int64_t item) {
    size_t at = item == 0 ? 0 : (size_t)(item - 1) * MESSAGE_PART_MAX, left = op->bytes - at;
    Transfer t = {
        .op = op, .stream = STREAMS, .item = item, .peer = op->peer, .receives = op->kind == OP_RECV};
    t.bytes = item == 0 ? sizeof op->header : left < MESSAGE_PART_MAX ? left : MESSAGE_PART_MAX;
    transfer_post(c, t, op->channel, (int64_t)(op->key % (uint64_t)c->transport->tags),
                  item == 0 ? (char *)op->header : op->data + at);
}

static void advance_message(Comm *c, Op *op) {
    while (window_open(&op->message, MESSAGE_WINDOW) && c->failure.code == OK)
        post_message_part(c, op, op->message.next++);
}

Op *message_begin(Comm *c, OpKind kind, int channel, int peer, uint64_t key, void *data, size_t bytes) {
    Op *op = op_begin(c, kind);
    if (!op) return NULL;
    op->channel = channel;
    op->peer = peer;
    op->key = op->header[0] = key;
    op->bytes = op->header[1] = bytes;
    op->data = data;
    op->message.items = 1 + (int64_t)((bytes + MESSAGE_PART_MAX - 1) / MESSAGE_PART_MAX);
    c->transport->kind->begin(c->transport);
    advance_message(c, op);
    c->transport->kind->end(c->transport);
    return op;
}

/* A mismatch is a bug of weft, or different builds: it is found at the first message, before its data is
 * used. */
void transfer_check_header(Comm *c, const Op *op) {
    if (op->header[0] != op->key) {
        comm_keep_failure(c, ERR_INTERNAL, "rank %d: expected message %llx from rank %d, which sent %llx",
                          c->rank, (unsigned long long)op->key, op->peer, (unsigned long long)op->header[0]);
    } else if (op->header[1] != op->bytes) {
        comm_keep_failure(c, ERR_INTERNAL,
                          "rank %d: expected a message of %zu bytes from rank %d, which sent %llu", c->rank,
                          op->bytes, op->peer, (unsigned long long)op->header[1]);
    }
}

static void message_part_ended(Comm *c, Op *op, int64_t item) {
    if (op->p2p_channel) {
        communicators_item_ended(c, op, item);
        return;
    }
    if (op->kind == OP_RECV && item == 0) transfer_check_header(c, op);
    transfer_item_done(&op->message, item);
    advance_message(c, op);
    if (op->message.first == op->message.items) op_end(c, op);
}

/* ---- what has ended ---- */

/* MPI truncates nothing, but a shorter message than expected arrives without an error. */
static void check_length(Comm *c, const Transfer *t, size_t came) {
    char what[192];
    if (!t->op || !t->receives || came == t->bytes) return;
    op_describe(c, t->op, what, sizeof what);
    comm_keep_failure(c, ERR_INTERNAL, "rank %d: %s: rank %d sent %zu bytes where %zu were expected", c->rank,
                      what, t->peer, came, t->bytes);
}

/* Sends of control messages are not waited for, and may fail: a rank that has died hears nothing. An end is
 * removed from the table before it is handled, since handling it may post the next. */
static void take_end(Comm *c, const TransportEnd *end) {
    Transfer t = c->transfers[end->event];
    give_transfer(c, end->event);
    if (t.staged) staging_end(c, &t, t.receives && end->error == TRANSPORT_OK && end->bytes == t.bytes);
    if (end->error != TRANSPORT_OK) {
        if (!t.op && t.receives) c->listening = false;
        if (t.op || t.receives) fail_transfer(c, &t, end->error);
        return;
    }
    check_length(c, &t, end->bytes);
    if (!t.op) {
        if (t.receives) control_arrived(c);
    } else if (t.op->kind == OP_SEND || t.op->kind == OP_RECV) {
        message_part_ended(c, t.op, t.item);
    } else {
        transfer_item_done(&t.op->streams[t.stream], t.item);
    }
}

bool transfer_test(Comm *c, int event) {
    TransportEnd end;
    if (event < 0 || !c->transport->kind->test(c->transport, event, &end)) return false;
    take_end(c, &end);
    return true;
}

/* Takes as many as have ended, in one call of the transport. Returns false if there were only control
 * messages, which are no progress: otherwise questions about what is missing would delay each other's
 * answers. */
static bool take_ends(Comm *c) {
    int error = TRANSPORT_OK,
        count = c->transport->kind->finished(c->transport, c->ends, COMM_EVENTS, &error);
    bool moved = false;
    if (count < 0) comm_transport_failure(c, error, "testing for messages");
    for (int i = 0; i < count; i++) {
        moved |= c->transfers[c->ends[i].event].op != NULL;
        take_end(c, &c->ends[i]);
    }
    return moved;
}

/* Returns false if nothing moved. After a failure nothing does: the memory of operations may be gone by
 * then. */
bool transfer_progress(Comm *c, Device *device) {
    if (c->failure.code != OK || !c->joined) return false;
    c->transport->kind->begin(c->transport);
    bool moved = take_ends(c);
    if (atomic_load(&c->communicator_device)) moved |= communicators_progress(c);
    for (int set = 1; set < MESH_SETS; set++)
        if (c->groups[set].queue) moved |= advance_group(c, &c->groups[set], device);
    c->transport->kind->end(c->transport);
    if (moved) atomic_store(&c->moved_at, comm_nanoseconds());
    return moved;
}
