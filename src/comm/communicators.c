/* Operations over communicators, if all devices have them (device.h, DeviceCommunicators): tensors go from
 * GPU to GPU, and the host waits for none of it.
 *
 *     comm_all_gather ...    enqueued in full, after what the program has enqueued so far: for each bucket a
 *                            group of sends and receives, and its sum, by the same op as everywhere
 *     comm_wait              what the program enqueues from then on follows the operation
 *
 * Sums therefore have the same bits as over any transport (rule 3 of comm.h). A communicator has no tags, so
 * both sides must enqueue in one order:
 *
 *  1. Each group of ranks has a communicator of its own. Its ranks start the same operations in the same
 *     order.
 *  2. Messages may be sent in one order and waited for in another. Each pair of neighbours in a pipeline has
 *     a communicator for each direction, a *p2p channel*, and negotiates over the transport first:
 *
 *         receiver   ready: key, bytes ----------.                    .---> in the order of numbers: data
 *         sender                                  `---> data, number --'  header: key, bytes, number
 *
 *     A message gets a number only when its receiver is ready, so nothing on a p2p channel waits for what is
 *     behind it.
 *  3. A message to a rank that is no neighbour goes through the host (staging.c), and so do all messages if
 *     two ranks share a GPU, or without NCCL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"

/* Position of a message's number in a header, above its size. Numbers may wrap around; sizes stay below. */
enum { NUMBER_SHIFT = 40 };
#define BYTES_MASK ((UINT64_C(1) << NUMBER_SHIFT) - 1)
#define NUMBER_MASK (UINT64_MAX >> NUMBER_SHIFT)

/* ---- opening ---- */

/* What a rank contributes: the identity of its device, or why that has no communicators. */
typedef struct Offer {
    char identity[COMMUNICATOR_IDENTITY];
    char problem[192];
} Offer;

/* Decision of rank 0. */
typedef struct Verdict {
    char problem[256]; /* "": open communicators, with this key */
    char key[COMMUNICATOR_KEY];
} Verdict;

static void judge(Comm *c, const Offer *offers, Verdict *v) {
    Error err = {.code = OK};
    for (int p = 0; p < c->size && !*v->problem; p++)
        if (*offers[p].problem) snprintf(v->problem, sizeof v->problem, "rank %d: %s", p, offers[p].problem);
    for (int p = 1; p < c->size && !*v->problem; p++)
        for (int q = 0; q < p && !*v->problem; q++)
            if (memcmp(offers[p].identity, offers[q].identity, COMMUNICATOR_IDENTITY) == 0)
                snprintf(v->problem, sizeof v->problem, "ranks %d and %d share a GPU", q, p);
    if (!*v->problem && c->device->communicators->key(c->device, v->key, &err) != OK)
        snprintf(v->problem, sizeof v->problem, "%.250s", err.message);
}

static ErrorCode agree_on_communicators(Comm *c, Verdict *v, Error *err) {
    Offer own = {.problem = ""};
    Error problem = {.code = OK};
    char *all;
    if (c->device->communicators->identify(c->device, own.identity, &problem) != OK)
        snprintf(own.problem, sizeof own.problem, "%.190s", problem.message);
    *v = (Verdict){.problem = ""};
    ErrorCode code = comm_concatenate(c, &own, sizeof own, &all, NULL, err);
    if (code == OK && all) judge(c, (const Offer *)(const void *)all, v);
    if (code == OK) code = comm_broadcast(c, v, sizeof *v, 0, err);
    free(all);
    return code;
}

_Static_assert(COMMUNICATOR_SETS + P2P_CHANNELS <= DEVICE_COMMUNICATORS,
               "a rank of some mesh would have more communicators than a device has");

/* Each set once, even if it has several names: without cp, for example, MESH_SHARDS is dp_shard. */
int communicators_sets(const Mesh *mesh, AxisSet out[COMMUNICATOR_SETS]) {
    static const AxisSet names[COMMUNICATOR_SETS] = {MESH_SHARDS,   MESH_EXPERT_SHARDS, MESH_EXPERTS,
                                                     MESH_REPLICAS, MESH_TENSOR,        MESH_KEY_COPIES,
                                                     MESH_CONTEXT};
    AxisSet used = 0;
    int count = 0;
    for (int axis = 0; axis < AXES; axis++) used |= mesh->degree[axis] > 1 ? 1u << axis : 0;
    for (int i = 0; i < COMMUNICATOR_SETS; i++) {
        AxisSet set = mesh_axes(mesh, names[i]) & used;
        bool there = set == 0;
        for (int k = 0; k < count; k++) there = there || out[k] == set;
        if (!there) out[count++] = set;
    }
    return count;
}

/* Neighbours include the last and the first stage: they exchange the gradients of parameters that both
 * have. */
int p2p_channels_of(int stages) { return stages > 2 ? 2 * stages : stages == 2 ? 2 : 0; }

P2pEnds p2p_channel_ends(int stages, int number) {
    int from = number % stages;
    return (P2pEnds){from, (number < stages ? from + 1 : from + stages - 1) % stages};
}

static ErrorCode join_group(Comm *c, const Mesh *mesh, AxisSet set, Error *err) {
    Group *g = &c->groups[set];
    return c->device->communicators->join(c->device, mesh_member(mesh, set, c->rank, 0), g->rank, g->size,
                                          &g->communicator, err);
}

/* Ranks at neither end pass no colour. */
static ErrorCode join_p2p_channel(Comm *c, const Mesh *mesh, P2pEnds ends, Error *err) {
    const Group *g = &c->groups[MESH_PIPELINE];
    bool sends = g->rank == ends.from, takes_part = sends || g->rank == ends.to;
    P2pChannel p2p_channel = {.sends = sends,
                              .peer = mesh_member(mesh, MESH_PIPELINE, c->rank, sends ? ends.to : ends.from)};
    int colour = takes_part ? mesh_member(mesh, MESH_PIPELINE, c->rank, ends.from) : -1;
    TRY(c->device->communicators->join(c->device, colour, sends ? 0 : 1, 2, &p2p_channel.communicator, err));
    if (takes_part) c->p2p_channels[c->p2p_channel_count++] = p2p_channel;
    return OK;
}

/* A stage sends and receives, both ways. */
static int with_peers(const AxisSet *sets, int count, int stages) {
    int most = stages > 2 ? P2P_CHANNELS : p2p_channels_of(stages);
    for (int i = 0; i < count; i++) most += sets[i] != 0;
    return most;
}

static ErrorCode join_all(Comm *c, const Mesh *mesh, const char *key, Error *err) {
    AxisSet sets[COMMUNICATOR_SETS];
    int count = communicators_sets(mesh, sets), stages = mesh_size(mesh, MESH_PIPELINE);
    TRY(c->device->communicators->open(c->device, key, c->size, c->rank, with_peers(sets, count, stages),
                                       err));
    for (int i = 0; i < count; i++) TRY(join_group(c, mesh, sets[i], err));
    for (int n = 0; n < p2p_channels_of(stages); n++)
        TRY(join_p2p_channel(c, mesh, p2p_channel_ends(stages, n), err));
    return OK;
}

/* A rank that fails here ends all (comm_fail): the others may be in NCCL, waiting for it, and could not agree
 * on anything. */
ErrorCode comm_open_communicators(Comm *c, const Mesh *mesh, char *problem, size_t size, Error *err) {
    Verdict v;
    snprintf(problem, size, "%s", "");
    if (!c->joined || !staging_needed(c)) return OK;
    TRY(agree_on_communicators(c, &v, err));
    snprintf(problem, size, "%s", v.problem);
    if (*v.problem) return OK;
    TRY(comm_join(c, "making groups", &c->ready, err));
    comm_waits_in(c, "joining the GPUs of all ranks");
    ErrorCode code = join_all(c, mesh, v.key, err);
    comm_waits_in(c, NULL);
    if (code != OK) comm_fail(c, err);
    TRY(code);
    atomic_store(&c->communicator_device, c->device);
    return OK;
}

/* Waits for what is under way, unless it was given up. */
void communicators_close(Comm *c) {
    comm_lock(c);
    Device *d = atomic_exchange(&c->communicator_device, NULL);
    for (int set = 0; set < MESH_SETS && c->failure.code == OK; set++)
        if (c->groups[set].communicator)
            device_finish(d, device_mark(d, c->groups[set].communicator), WAIT_TRANSPORT);
    for (int i = 0; i < c->p2p_channel_count && c->failure.code == OK; i++)
        device_finish(d, device_mark(d, c->p2p_channels[i].communicator), WAIT_TRANSPORT);
    for (int set = 0; set < MESH_SETS; set++) c->groups[set].communicator = ON_COMPUTE;
    c->p2p_channel_count = 0;
    comm_unlock(c);
}

/* ---- collectives ---- */

static void post(Comm *c, Op *op, StreamId id, int64_t item) {
    StreamItem p = transfer_item(op, id, item);
    const DeviceCommunicators *w = c->device->communicators;
    if (p.bytes == 0) return;
    if (p.receives) {
        w->receive(c->device, op->group->communicator, p.peer, p.data, p.bytes);
    } else {
        w->send(c->device, op->group->communicator, p.peer, p.data, p.bytes);
        transfer_count(c, op, p.peer, p.bytes);
    }
}

static void end_group(Comm *c) {
    Error err;
    if (c->device->communicators->end(c->device, &err) != OK)
        comm_keep_failure(c, err.code, "rank %d: %s", c->rank, err.message);
}

/* One bucket, between all pairs of ranks. */
static void move(Comm *c, Op *op, int64_t bucket, StreamId sends, StreamId receives) {
    const StreamId both[] = {receives, sends};
    c->device->communicators->begin(c->device);
    for (int i = 0; i < 2; i++) {
        int64_t count = op->streams[both[i]].per_bucket;
        for (int64_t k = 0; k < count; k++) post(c, op, both[i], bucket * count + k);
    }
    end_group(c);
}

void communicators_start(Comm *c, Op *op) {
    Device *d = c->device;
    DeviceStream communicator = op->group->communicator;
    device_follow(d, communicator, device_mark(d, ON_COMPUTE));
    for (int64_t b = 0; b < op->buckets && c->failure.code == OK; b++) {
        if (op_reduces(op)) {
            move(c, op, b, REDUCE_SEND, REDUCE_RECV);
            transfer_add_up(c, op, d, communicator);
        }
        if (op_gathers(op)) move(c, op, b, GATHER_SEND, GATHER_RECV);
    }
    op->event = device_mark(d, communicator);
}

/* ---- messages ---- */

P2pChannel *p2p_channel_find(Comm *c, int peer, bool sends) {
    for (int i = 0; i < c->p2p_channel_count; i++)
        if (c->p2p_channels[i].peer == peer && c->p2p_channels[i].sends == sends) return &c->p2p_channels[i];
    return NULL;
}

enum { READY, HEADER, ITEMS };

/* Over the transport. */
static void post_item(Comm *c, Op *op, int item) {
    Transfer t = {.op = op, .stream = STREAMS, .item = item, .peer = op->peer, .bytes = COMM_HEADER};
    t.receives = (op->kind == OP_RECV) == (item == HEADER);
    transfer_post(c, t, item == READY ? c->ready : op->channel,
                  (int64_t)(op->key % (uint64_t)c->transport->tags), item == READY ? op->ready : op->header);
}

Op *communicators_message(Comm *c, P2pChannel *p2p_channel, OpKind kind, uint64_t key, void *data,
                          size_t bytes) {
    Op *op = op_begin(c, kind);
    if (!op) return NULL;
    CHECK(bytes <= BYTES_MASK);
    op->p2p_channel = p2p_channel;
    op->channel = c->point, op->peer = p2p_channel->peer;
    op->key = op->header[0] = op->ready[0] = key;
    op->bytes = op->header[1] = op->ready[1] = bytes;
    op->data = data;
    op->after = device_mark(c->device, ON_COMPUTE);
    op->message.items = op->message.next = ITEMS;
    c->transport->kind->begin(c->transport);
    post_item(c, op, READY);
    if (kind == OP_RECV) post_item(c, op, HEADER);
    c->transport->kind->end(c->transport);
    return op;
}

/* Enqueues the message; the other side does the same for the message of this number. */
static void issue(Comm *c, Op *op) {
    Device *d = c->device;
    const P2pChannel *p2p_channel = op->p2p_channel;
    device_follow(d, p2p_channel->communicator, op->after);
    d->communicators->begin(d);
    if (p2p_channel->sends) {
        d->communicators->send(d, p2p_channel->communicator, 1, op->data, op->bytes);
    } else {
        d->communicators->receive(d, p2p_channel->communicator, 0, op->data, op->bytes);
    }
    end_group(c);
    op->event = device_mark(d, p2p_channel->communicator);
    op->next = c->issued;
    c->issued = op;
}

/* The receiver is ready: the message gets its number. */
static void send_numbered(Comm *c, Op *op) {
    if (op->ready[0] != op->key || op->ready[1] != op->bytes) {
        comm_keep_failure(c, ERR_INTERNAL, "rank %d: rank %d waits for %llu bytes of a message of %zu",
                          c->rank, op->peer, (unsigned long long)op->ready[1], op->bytes);
        return;
    }
    op->header[1] |= (op->p2p_channel->next++ & NUMBER_MASK) << NUMBER_SHIFT;
    issue(c, op);
    post_item(c, op, HEADER);
}

/* Headers may arrive in any order; messages are enqueued in the order of their numbers. */
static void receive_numbered(Comm *c, Op *op) {
    P2pChannel *p2p_channel = op->p2p_channel;
    op->number = op->header[1] >> NUMBER_SHIFT;
    op->header[1] &= BYTES_MASK;
    transfer_check_header(c, op);
    op->next = p2p_channel->waiting;
    p2p_channel->waiting = op;
    for (Op **at = &p2p_channel->waiting; *at && c->failure.code == OK;) {
        Op *waits = *at;
        if (waits->number != (p2p_channel->next & NUMBER_MASK)) {
            at = &waits->next;
            continue;
        }
        *at = waits->next;
        p2p_channel->next++;
        issue(c, waits);
        at = &p2p_channel->waiting;
    }
}

void communicators_item_ended(Comm *c, Op *op, int64_t item) {
    transfer_item_done(&op->message, item);
    if (op->kind == OP_SEND && item == READY) send_numbered(c, op);
    if (op->kind == OP_RECV && item == HEADER) receive_numbered(c, op);
}

/* ---- what has ended ---- */

bool communicators_reached(Comm *c, const Op *op) {
    return c->device->communicators->reached(c->device, op->event);
}

bool communicators_progress(Comm *c) {
    bool moved = false;
    Error err;
    if (c->device->communicators->look(c->device, &err) != OK) {
        c->hearsay = c->hearsay || c->failure.code == OK;
        comm_keep_failure(c, err.code, "rank %d: %s", c->rank, err.message);
    }
    for (Op **at = &c->issued; *at && c->failure.code == OK;) {
        Op *op = *at;
        if (op->message.first < op->message.items || !communicators_reached(c, op)) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        op_end(c, op);
        moved = true;
    }
    return moved;
}

bool communicators_follow(Comm *c, CommRequest request) {
    const Op *op = &c->ops[(uint32_t)request - 1];
    if (op->event == 0) return false;
    device_follow(c->device, ON_COMPUTE, op->event);
    return true;
}

/* The host may be waiting for something that will never arrive. No other thread is inside a call of the
 * communicators, because the lock is held. */
void communicators_give_up(Comm *c) {
    Device *d = atomic_load(&c->communicator_device);
    if (!d || c->given_up) return;
    c->given_up = true;
    d->communicators->abort(d);
}
