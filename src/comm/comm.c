/* Opens a Comm, creates groups, starts operations and waits for them.
 *
 * One mutex guards the state and every call of the transport: the main thread, the progress thread and the
 * watchdog take it in turn. Nobody holds it while waiting.
 *
 * The files of this module, from the outside in:
 *
 *     comm.c           checks, takes the lock, makes an operation, returns its request
 *     transfer.c       splits it into messages and buckets, sums what arrives in the canonical order
 *     communicators.c  the same from GPU to GPU; staging.c stages tensors of GPUs through the host
 *     transport.h      carries messages: mpi/, sockets/, loopback/
 *     small.c          barriers, records, broadcasts: messages of the same kind, waited for
 *     failure.c        control messages about failures, and the watchdog
 *     repair.c         goes on without ranks that died, where the transport can; hung.c kills those that hang
 *     launch.c, launched_env.c, launcher_output.c, local_ranks.c, tell.c    processes, and their launcher
 *
 * Threads: the main thread, which alone calls comm.h; the progress thread (progress_main), which advances
 * operations under way and uses a device of its own; the watchdog (failure.c), which reads atomics, and takes
 * the lock only to receive control messages or to ask the other ranks. */
#include "comm/comm.h"

#include <build_kind.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/internal.h"
#include "comm/launch.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/sockets/sockets.h"
#include "device/ops/memory.h"

/* ---- shared by the files of comm/ ---- */

void comm_lock(Comm *c) { pthread_mutex_lock(&c->mutex); }
void comm_unlock(Comm *c) { pthread_mutex_unlock(&c->mutex); }

/* Monotonic: setting the system clock must not look like a wait. */
long long comm_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The first failure counts, since later ones are most often its consequences. The lock is held, except while
 * the Comm is opened. */
ErrorCode comm_keep_failure(Comm *c, ErrorCode code, const char *format, ...) {
    if (c->failure.code != OK) return c->failure.code;
    char message[sizeof c->failure.message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    error_set(&c->failure, code, "%s", message);
    communicators_give_up(c);
    return code;
}

void comm_break(Comm *c) {
    c->broken = true;
    atomic_store(&c->broken_at, comm_nanoseconds());
}

ErrorCode comm_transport_failure(Comm *c, int error, const char *what) {
    char text[256];
    c->transport->kind->explain(error, text, sizeof text);
    if (c->failure.code == OK) comm_break(c);
    return comm_keep_failure(c, ERR_PEER, "rank %d: %s: %s", c->rank, what, text);
}

/* Every call begins and ends with this. It copies `reported` too: this rank does not print a failure that
 * another rank has reported. */
ErrorCode comm_refused(const Comm *c, Error *err) {
    if (c->failure.code == OK) return OK;
    error_set(err, c->failure.code, "%s", c->failure.message);
    if (err) err->reported = c->failure.reported;
    return c->failure.code;
}

/* ---- opening ---- */

static ErrorCode join(Comm *c, const char *what, int colour, int key, int size, int *channel, Error *err) {
    int error = c->transport->kind->join(c->transport, colour, key, size, channel);
    if (error == TRANSPORT_OK) return OK;
    comm_transport_failure(c, error, what);
    return comm_refused(c, err);
}

ErrorCode comm_join(Comm *c, const char *what, int *channel, Error *err) {
    return join(c, what, 0, c->rank, c->size, channel, err);
}

/* Three channels of all ranks, so that small operations, messages of stages and control messages never mix,
 * whatever their tags. The standing receive of control messages lasts from here to the end. */
ErrorCode comm_make_channels(Comm *c, Error *err) {
    int *const channels[] = {&c->small, &c->point, &c->control};
    for (int i = 0; i < 3; i++) TRY(comm_join(c, "making a group", channels[i], err));
    control_listen(c);
    c->listening = true;
    return OK;
}

static ErrorCode open_channels(Comm *c, Error *err) {
    comm_lock(c);
    comm_blocked(c, "making channels");
    ErrorCode code = comm_make_channels(c, err);
    comm_blocked(c, NULL);
    comm_unlock(c);
    return code;
}

/* Conditions use the monotonic clock, as all times here do. */
static void make_locks(Comm *c) {
    pthread_condattr_t attributes;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_mutex_init(&c->watch_mutex, NULL);
    pthread_mutex_init(&c->hung_mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attributes);
    pthread_cond_init(&c->watch_wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* From here on the transport is closed with the Comm, even if this fails. Everything that comm_close frees is
 * made here, or is zero. A rank that cannot open its kernels still opens the channels: the others wait for it
 * there, and learn of the failure afterwards. */
static ErrorCode open_parts(Comm *c, CommTransport *transport, Error *err) {
    c->transport = transport;
    c->joined = transport != NULL;
    if (transport) {
        c->rank = transport->rank, c->size = transport->size;
        c->local_rank = transport->local_rank, c->local_size = transport->local_size,
        c->local_cores = transport->local_cores;
    }
    c->all = c->size;
    c->order = mem_alloc_array((size_t)c->all, sizeof *c->order);
    for (int p = 0; p < c->all; p++) c->order[p] = p;
    transfer_setup(c);
    c->lowest_failed = c->size;
    c->speaker = -1;
    c->heard = mem_alloc_array((size_t)c->size, sizeof *c->heard);
    c->lines = mem_alloc_array((size_t)c->size, sizeof *c->lines);
    /* One thread: it sums in the progress thread, which must not take the cores of the program. */
    ErrorCode own = device_open_cpu(&c->own, NULL, 1, err);
    if (transport) TRY(open_channels(c, err));
    return comm_agree(c, own, err);
}

/* The watchdog starts before MPI does. Until then it knows its rank from the environment, and reports in
 * which call the rank hangs. */
static ErrorCode open_launched(Comm *c, const LaunchedEnv *launched, Error *err) {
    c->rank_variable = launched->rank_variable;
    if (launched->rank >= 0) c->rank = launched->rank;
    if (c->watch.describe) TRY(watchdog_start(c, err));
    comm_blocked(c, launched->sockets ? "joining the other ranks" : "MPI start");
    ErrorCode code =
        launched->sockets
            ? sockets_transport_open(&c->transport, launched->rank, launched->size, COMM_EVENTS, err)
            : mpi_transport_open(&c->transport, COMM_EVENTS, launched->variable, err);
    comm_blocked(c, NULL);
    c->joined = c->transport != NULL;
    TRY(code);
    TRY(open_parts(c, c->transport, err));
    TRY(launched_env_check(launched, c->transport->size, err));
    return c->watch.describe ? watchdog_agree(c, err) : OK;
}

/* A single rank, until there is a transport. */
static Comm *new_comm(const CommWatch *watch) {
    Comm *c = mem_alloc(sizeof *c);
    *c = (Comm){.size = 1, .local_size = 1, .lowest_failed = 1};
    if (watch) c->watch = *watch;
    make_locks(c);
    return c;
}

/* Closing waits for all ranks, so the failure is printed first. If it was agreed on, all ranks have it and
 * close; if it is this rank's alone (the transport failed), it ends the others too. */
static ErrorCode hand_out(Comm **out, Comm *c, ErrorCode code, Error *err) {
    *out = code == OK ? c : NULL;
    if (code == OK) return OK;
    if (!c->listening || c->failure.code != OK) comm_fail(c, err);
    comm_report(c, err);
    comm_close(c);
    return code;
}

/* The ranks have joined, so the watchdog can ask them from the start. */
static ErrorCode open_linked(Comm *c, CommTransport *transport, Error *err) {
    TRY(open_parts(c, transport, err));
    if (!transport || !c->watch.describe) return OK;
    TRY(watchdog_start(c, err));
    return watchdog_agree(c, err);
}

ErrorCode comm_open_transport_watched(Comm **out, CommTransport *transport, const CommWatch *watch,
                                      Error *err) {
    Comm *c = new_comm(watch);
    return hand_out(out, c, open_linked(c, transport, err), err);
}

ErrorCode comm_open_transport(Comm **out, CommTransport *transport, Error *err) {
    return comm_open_transport_watched(out, transport, NULL, err);
}

ErrorCode comm_open_watched(Comm **out, const CommWatch *watch, Error *err) {
    LaunchedEnv launched = launched_env_find();
    TRY(launched_env_incomplete(err));
    Comm *c = new_comm(watch);
    ErrorCode code = launched.by_launcher ? open_launched(c, &launched, err) : open_parts(c, NULL, err);
    return hand_out(out, c, code, err);
}

ErrorCode comm_open(Comm **out, Error *err) { return comm_open_watched(out, NULL, err); }

/* Joined without the lock, which that thread needs in order to end. */
static void stop_progress(Comm *c) {
    comm_lock(c);
    c->ending = true;
    pthread_cond_broadcast(&c->wake);
    comm_unlock(c);
    if (c->has_progress) pthread_join(c->progress, NULL);
    c->has_progress = false;
}

void comm_close(Comm *c) {
    if (!c) return;
    /* A rank that hangs before the end is found here, where the watchdog can still ask. */
    if (c->has_watchdog && c->listening) comm_barrier(c, NULL);
    stop_progress(c);
    fflush(stdout); /* once the first rank has exited with a status, a launcher may kill the others */
    comm_lock(c);
    c->listening = false;
    comm_unlock(c);
    comm_set_device(c, NULL);
    comm_blocked(c, "MPI end");
    if (c->transport) free(c->transport->hosts);
    if (c->transport) c->transport->kind->close(c->transport);
    comm_blocked(c, NULL);
    watchdog_stop(c);
    transfer_free(c);
    free(c->small_scratch);
    free(c->heard);
    free(c->lines);
    free(c->old_ranks);
    free(c->order);
    hung_free(c);
    device_close(&c->own);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->watch_mutex);
    pthread_mutex_destroy(&c->hung_mutex);
    pthread_cond_destroy(&c->watch_wake);
    free(c);
}

const char *comm_transport_name(const Comm *c) { return c->transport ? c->transport->kind->name : ""; }
int comm_rank(const Comm *c) { return c->rank; }
int comm_size(const Comm *c) { return c->size; }
int comm_local_rank(const Comm *c) { return c->local_rank; }
int comm_local_size(const Comm *c) { return c->local_size; }
int comm_local_cores(const Comm *c) { return c->local_cores; }
int comm_machine_ranks(const Comm *c, int ranks) {
    const char *given = getenv("WEFT_MACHINE_RANKS");
    if (given) return atoi(given) > 0 && ranks % atoi(given) == 0 && atoi(given) < ranks ? atoi(given) : 0;
    if (!c->transport || !c->transport->hosts) return 0;
    uint64_t *hosts = mem_alloc_array((size_t)ranks, sizeof *hosts);
    for (int p = 0; p < ranks; p++) hosts[p] = c->transport->hosts[c->order[p]];
    int count = transport_machine_ranks(hosts, ranks);
    free(hosts);
    return count;
}

void comm_set_device(Comm *c, Device *device) {
    if (atomic_load(&c->communicator_device)) communicators_close(c);
    if (c->device) staging_close(c);
    c->device = device;
}

/* ---- groups ---- */

/* The colour of a group is its lowest rank. A rank that is alone in its group needs no channel, but takes
 * part: creating groups is collective over all ranks, and all go through the sets in the same order. */
static ErrorCode make_group(Comm *c, const Mesh *mesh, AxisSet set, Error *err) {
    Group *g = &c->groups[set];
    *g = (Group){.set = set,
                 .rank = mesh_group_rank(mesh, set, c->rank),
                 .size = mesh_size(mesh, set),
                 .inside = mesh_inside(mesh, set, c->rank)};
    return join(c, "making a group", mesh_member(mesh, set, c->rank, 0), g->rank, g->size, &g->channel, err);
}

ErrorCode comm_set_mesh(Comm *c, const Mesh *mesh, Error *err) {
    CHECK(mesh->world == c->size && !c->has_mesh);
    c->has_mesh = true;
    for (int axis = 0; axis < AXES; axis++)
        if (mesh->degree[axis] > 1) c->used |= 1u << axis;
    c->folded = mesh_axes(mesh, MESH_FOLDED);
    c->groups[0] = (Group){.size = 1, .inside = 1};
    ErrorCode code = OK;
    comm_lock(c);
    comm_blocked(c, "making groups");
    for (AxisSet set = 1; set < MESH_SETS && code == OK; set++)
        /* Only sets of axes with more than one rank; any other set is the same group as the set without its
         * axes of one rank (group_of). */
        if ((set & ~c->used) == 0) code = make_group(c, mesh, set, err);
    comm_blocked(c, NULL);
    comm_unlock(c);
    return code;
}

/* Axes of one rank make no difference. */
static Group *group_of(Comm *c, AxisSet set) {
    CHECK(c->has_mesh && set < MESH_ASKED_SETS);
    if (set & MESH_FOLDED) set |= c->folded;
    return &c->groups[set & c->used];
}

int comm_group_rank(Comm *c, AxisSet set) { return group_of(c, set)->rank; }
int comm_group_size(Comm *c, AxisSet set) { return group_of(c, set)->size; }

/* ---- starting collectives ---- */

static size_t type_bytes(CommType type) { return type == COMM_F32 ? sizeof(float) : sizeof(int64_t); }
static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Bytes of a bucket (elsewhere: bucket_cap_mb): a message, or less if shards of many ranks are kept until
 * they are summed. Depends only on what all ranks know, since all must cut alike. arrivals: shards from
 * other ranks, at most. Between 64 KiB, below which messages cost more than their bytes, and
 * MESSAGE_PART_MAX; in between, half of the workspace divided by the arrivals, since two buckets are under
 * way at a time. Multiples of a page where possible, so that sums run over aligned memory. */
static size_t bucket_of(int arrivals, size_t stride) {
    size_t most = round_up((size_t)WORKSPACE_TARGET / 2 / (size_t)(arrivals > 1 ? arrivals : 1), 4096);
    if (most < 65536) most = 65536;
    if (most > MESSAGE_PART_MAX) most = MESSAGE_PART_MAX;
    stride = round_up(stride, POOL_ALIGN);
    return stride < most ? stride : most;
}

/* Elements of a rank's range in an all-reduce: rounded up to the pools' alignment, so that each rank sums
 * aligned memory. The last ranges may be short or empty (elements_of). */
static int64_t reduce_range(int ranks, int64_t count) {
    int64_t range = (count + ranks - 1) / ranks;
    return (int64_t)round_up((size_t)range, POOL_ALIGN);
}

/* Number of sums that an outer step receives from all its ranks: one per block of each run. With 2 x 3 ranks,
 * for example, the runs 0-2 and 3-5 of the tree over six have two blocks each. */
static int outer_sums(int inner, int outer) {
    int count = 0;
    for (int p = 0; p < outer; p++) count += tree_blocks(inner * outer, (TreeBlock){p * inner, inner}, NULL);
    return count;
}

/* Integer sums do not depend on the order, nor do sums of blocks of the tree. If every run is a block (a
 * power of two), one sum per run is a node of the tree. */
static bool is_split(int inner, int outer, CommType type) {
    return type == COMM_F32 && outer > 1 && (inner & (inner - 1)) != 0;
}

/* The ranks of a machine must be a block of the canonical tree, or sums of fp32 numbers would have other
 * bits. */
static bool has_levels(int inside, CommType type) {
    return inside > 1 && (type == COMM_I64 || (inside & (inside - 1)) == 0);
}

/* Two buckets for each arrival: one that is being summed, one that arrives. */
static size_t workspace_of(int arrivals, size_t stride) {
    return arrivals > 0 ? 2 * (size_t)arrivals * bucket_of(arrivals, stride) : 0;
}

size_t comm_reduce_scatter_workspace(int ranks, CommType type, int64_t largest) {
    return workspace_of(ranks - 1, (size_t)largest * type_bytes(type));
}

size_t comm_sum_outer_workspace(int inner, int outer, CommType type, int64_t count) {
    int sums = is_split(inner, outer, type) ? outer_sums(inner, outer) : outer;
    return workspace_of(sums - 1, (size_t)reduce_range(outer, count) * type_bytes(type));
}

size_t comm_all_reduce_workspace(int ranks, CommType type, int64_t count) {
    return comm_sum_outer_workspace(1, ranks, type, count);
}

/* ---- ranges ---- */

int64_t comm_ranges_count(const CommRange *ranges, int ranks) {
    int64_t end = 0;
    for (int p = 0; p < ranks; p++)
        if (ranges[p].first + ranges[p].count > end) end = ranges[p].first + ranges[p].count;
    return end;
}

int64_t comm_largest(const CommRange *ranges, int ranks) {
    int64_t most = 0;
    for (int p = 0; p < ranks; p++)
        if (ranges[p].count > most) most = ranges[p].count;
    return most;
}

int64_t comm_gather_traffic(const CommRange *ranges, int ranks, int inside, int rank) {
    int64_t brought = 0; /* from other machines: this rank sends it on inside its own */
    for (int p = rank % inside; inside > 1 && p < ranks; p += inside) brought += ranges[p].count;
    if (inside == 1) return (ranks - 1) * ranges[rank].count;
    return (ranks / inside - 1) * ranges[rank].count + (inside - 1) * brought;
}

int64_t comm_scatter_traffic(const CommRange *ranges, int ranks, int rank) {
    int64_t sum = 0;
    for (int p = 0; p < ranks; p++) sum += p == rank ? 0 : ranges[p].count;
    return sum;
}

int64_t comm_sum_spare(int inner, int outer, int inner_rank, int outer_rank, CommType type,
                       const CommRange *ranges) {
    if (!is_split(inner, outer, type)) return 0;
    int64_t whole = comm_ranges_count(ranges, inner), end = whole, own = ranges[inner_rank].count;
    int blocks = tree_blocks(inner * outer, (TreeBlock){outer_rank * inner, inner}, NULL);
    for (int k = 0; k < blocks; k++) {
        int64_t first = block_first(ranges, inner, inner_rank, k);
        if (first + own > end) end = first + own;
    }
    return end - whole;
}

/* Elements of rank p's range in an all-reduce. */
static int64_t elements_of(int ranks, int64_t count, int p) {
    int64_t range = reduce_range(ranks, count), left = count - p * range;
    return left < 0 ? 0 : left < range ? left : range;
}

/* Bytes that this rank sends: its sums of the other ranks' ranges, and the result of its own range to each of
 * them. The memory plan and forecasts use it; the counters of a step must agree with it. */
static int64_t all_reduce_elements(int ranks, int rank, int64_t each, int64_t count) {
    int64_t left = count - rank * each, own = left < 0 ? 0 : left < each ? left : each;
    return count - own + (ranks - 1) * own;
}

int64_t comm_sum_outer_traffic(int inner, int outer, int inside, int rank, CommType type, int64_t count) {
    bool split = is_split(inner, outer, type);
    int64_t sums = split ? tree_blocks(inner * outer, (TreeBlock){rank * inner, inner}, NULL) : 1,
            own = elements_of(outer, count, rank), elements = sums * (count - own) + (outer - 1) * own;
    if (!split && has_levels(inside, type)) {
        int64_t range = elements_of(inside, count, rank % inside);
        elements = count - range + (inside - 1) * range +
                   all_reduce_elements(outer / inside, rank / inside,
                                       reduce_range(outer / inside, reduce_range(inside, count)), range);
    }
    return (int64_t)type_bytes(type) * elements;
}

static Device *device_of(Comm *c) { return c->device ? c->device : &c->own; }

/* MPI accesses tensor memory directly: a message's data must have been written before it is sent, and memory
 * that receives one must no longer be read. Call before taking the mutex, which others need. */
static void settle(Comm *c) {
    if (c->device) device_finish(c->device, device_mark(c->device, ON_COMPUTE), WAIT_TRANSPORT);
}

/* Waits for the copy, since the following operation sends from there; communicators follow what the program
 * enqueues. */
static void copy(Comm *c, void *to, const void *from, size_t bytes) {
    Device *d = device_of(c);
    bool on_communicators = atomic_load(&c->communicator_device) != NULL;
    if (to == from || bytes == 0) return;
    DeviceStream before = device_on(on_communicators ? ON_COMPUTE : ON_COMM);
    OP(d, copy, to, from, bytes);
    if (!on_communicators) device_finish(d, device_mark(d, ON_COMM), WAIT_TRANSPORT);
    device_on(before);
}

/* Appends: operations of a group move in the order of their start, which is the same on all ranks. */
static void enqueue(Group *g, Op *op) {
    Op **at = &g->queue;
    while (*at) at = &(*at)->next;
    op->next = NULL;
    *at = op;
}

/* An all-reduce is a reduce-scatter and an all-gather of the sums, bucket by bucket. */
static void set_streams(Op *op) {
    if (op_reduces(op)) stream_items(op, REDUCE_SEND), stream_items(op, REDUCE_RECV);
    if (op_gathers(op)) stream_items(op, GATHER_SEND), stream_items(op, GATHER_RECV);
}

/* The operation is complete: it moves as soon as it may. */
static void start(Comm *c, Op *op) {
    if (op->group) set_streams(op);
    if (op->group && op->group->communicator) communicators_start(c, op);
}

/* arrivals: shards of one bucket that come from other ranks. */
static Op *begin_collective(Comm *c, OpKind kind, Group *g, size_t stride, size_t total, int arrivals) {
    Op *op = op_begin(c, kind);
    if (!op) return NULL;
    op->group = g, op->asked = c->asked;
    op->span = (Span){0, 1, g->size, g->rank}, op->pieces = 1;
    op->stride = stride;
    op->total = total;
    /* A communicator cuts by itself what is not summed. */
    op->bucket = g->communicator && !op_reduces(op) ? stride : bucket_of(arrivals, stride);
    op->buckets = op->bucket ? (int64_t)((stride + op->bucket - 1) / op->bucket) : 0;
    /* The k-th operation of a group is the k-th on all its ranks: their messages are matched by this
     * number. */
    op->sequence = g->started++;
    enqueue(g, op);
    return op;
}

/* ---- levels (transfer.c) ---- */

/* One level of a collective of a group. */
typedef struct Level {
    Span span;
    int pieces;       /* ranges of each rank of the span */
    size_t workspace; /* bytes */
} Level;

static Level inside_level(const Group *g, int pieces, size_t workspace) {
    int index = g->rank % g->inside;
    return (Level){{g->rank - index, 1, g->inside, index}, pieces, workspace};
}

static Level between_level(const Group *g, size_t workspace) {
    return (Level){{g->rank % g->inside, g->inside, g->size / g->inside, g->rank / g->inside}, 1, workspace};
}

/* Makes a collective one level; it begins when `before`, if there is one, has ended. Fewer shards arrive than
 * without levels, of ranges that may be larger: the bucket must fit the workspace. */
static void set_level(Comm *c, Op *op, Level level, const Op *before) {
    size_t arrivals = (size_t)level.span.size - 1, most = level.workspace / (2 * arrivals);
    op->span = level.span;
    op->pieces = level.pieces;
    if (before) op->behind = op_request(c, before);
    if (op->bucket < op->stride) op->bucket = bucket_of((int)arrivals, op->stride);
    if (op_reduces(op) && op->bucket > most) op->bucket = most / POOL_ALIGN * POOL_ALIGN;
    op->buckets = level.pieces * (int64_t)((op->stride + op->bucket - 1) / op->bucket);
}

static Op *start_level(Comm *c, Op *op, Level level) {
    set_level(c, op, level, NULL);
    start(c, op);
    return op;
}

/* Posts the first messages and returns the request, which is 0 if it has already ended. Releases the lock
 * that enter has taken. */
static ErrorCode launch(Comm *c, Op *op, CommRequest *request, Error *err) {
    if (op) {
        start(c, op);
        *request = op_request(c, op);
        transfer_progress(c, device_of(c));
        if (op_ended(c, *request)) *request = 0;
    }
    ErrorCode code = comm_refused(c, err);
    comm_unlock(c);
    return code;
}

/* Returns OK with the lock held. */
static ErrorCode enter(Comm *c, AxisSet set, CommRequest *request, Error *err) {
    const Group *g = group_of(c, set);
    bool on_communicators = atomic_load(&c->communicator_device) != NULL;
    CHECK(!on_communicators || g->size == 1 || g->communicator);
    *request = 0;
    if (!on_communicators) settle(c);
    comm_lock(c);
    ErrorCode code = comm_refused(c, err);
    c->asked = set;
    if (code != OK) comm_unlock(c);
    return code;
}

/* Begins a collective on ranges of a buffer; NULL if there is nothing to move. */
static Op *begin_ranges(Comm *c, OpKind kind, Group *g, const CommRange *ranges, size_t width) {
    size_t stride, total;
    CHECK(size_multiply((size_t)comm_largest(ranges, g->size), width, &stride) &&
          size_multiply((size_t)comm_ranges_count(ranges, g->size), width, &total));
    if (g->size == 1 || stride == 0) return NULL;
    Op *op = begin_collective(c, kind, g, stride, total, g->size - 1);
    if (op) op->ranges = ranges, op->width = width;
    return op;
}

ErrorCode comm_all_gather(Comm *c, AxisSet set, const CommRange *ranges, size_t width, void *all,
                          CommRequest *request, Error *err) {
    TRY(enter(c, set, request, err));
    Group *g = group_of(c, set);
    Op *op = begin_ranges(c, OP_ALL_GATHER, g, ranges, width);
    if (op) op->source = op->target = all;
    if (op && g->inside > 1) {
        Op *between = start_level(c, op, between_level(g, 0));
        op = begin_ranges(c, OP_ALL_GATHER, g, ranges, width);
        if (op)
            op->source = op->target = all, set_level(c, op, inside_level(g, g->size / g->inside, 0), between);
    }
    return launch(c, op, request, err);
}

ErrorCode comm_all_to_all(Comm *c, AxisSet set, size_t each, const void *from, void *to, CommRequest *request,
                          Error *err) {
    TRY(enter(c, set, request, err));
    Group *g = group_of(c, set);
    size_t own = (size_t)g->rank * each, total;
    CHECK(size_multiply(each, (size_t)g->size, &total));
    copy(c, (char *)to + own, (const char *)from + own, each);
    Op *op = NULL;
    if (g->size > 1 && each > 0 && (op = begin_collective(c, OP_ALL_TO_ALL, g, each, total, g->size - 1)))
        op->source = from, op->target = to;
    return launch(c, op, request, err);
}

/* Each rank knows only its own pieces, so buckets have one size whatever these are. A rank with nothing to
 * move takes part as well, because operations are numbered. */
ErrorCode comm_all_to_all_v(Comm *c, AxisSet set, size_t width, const CommRange *out, const void *from,
                            const CommRange *in, void *to, CommRequest *request, Error *err) {
    TRY(enter(c, set, request, err));
    Group *g = group_of(c, set);
    int64_t largest = comm_largest(out, g->size), comes = comm_largest(in, g->size);
    CommRange own = out[g->rank], here = in[g->rank];
    CHECK(own.count == here.count);
    copy(c, (char *)to + (size_t)here.first * width, (const char *)from + (size_t)own.first * width,
         (size_t)own.count * width);
    Op *op = NULL;
    size_t stride = (size_t)(largest > comes ? largest : comes) * width;
    if (g->size > 1 && (op = begin_collective(c, OP_ALL_TO_ALL_V, g, stride, stride, g->size - 1))) {
        op->bucket = bucket_of(g->size - 1, SIZE_MAX / 2);
        op->buckets = (int64_t)((stride + op->bucket - 1) / op->bucket);
        op->ranges = out, op->arriving = in, op->width = width;
        op->source = from, op->target = to;
    }
    return launch(c, op, request, err);
}

static void take_sum(Op *op, CommType type, const void *in, void *out, void *workspace) {
    op->type = type;
    op->source = in;
    op->target = out;
    op->workspace = workspace;
}

/* In place: inside machines, all ranges of ranks with this rank's index; then, between machines, its own. */
static ErrorCode reduce_scatter_levels(Comm *c, Group *g, CommType type, const CommRange *ranges, char *data,
                                       void *workspace, CommRequest *request, Error *err) {
    size_t width = type_bytes(type),
           bytes = comm_reduce_scatter_workspace(g->size, type, comm_largest(ranges, g->size));
    Op *op = begin_ranges(c, OP_REDUCE_SCATTER, g, ranges, width);
    if (op) {
        take_sum(op, type, data, data, workspace);
        const Op *inside = start_level(c, op, inside_level(g, g->size / g->inside, bytes));
        if ((op = begin_ranges(c, OP_REDUCE_SCATTER, g, ranges, width))) {
            take_sum(op, type, data, data + (size_t)ranges[g->rank].first * width, workspace);
            set_level(c, op, between_level(g, bytes), inside);
        }
    }
    return launch(c, op, request, err);
}

/* outer NULL: the group is the whole sum. */
static ErrorCode reduce_scatter(Comm *c, Group *g, const Group *outer, CommType type, const CommRange *ranges,
                                const void *in, void *out, void *workspace, CommRequest *request,
                                Error *err) {
    size_t width = type_bytes(type);
    const char *own = (const char *)in + (size_t)ranges[g->rank].first * width;
    if (g->size == 1) copy(c, out, own, (size_t)ranges[g->rank].count * width);
    Op *op = begin_ranges(c, OP_REDUCE_SCATTER, g, ranges, width);
    if (op) {
        take_sum(op, type, in, out, workspace);
        if (outer && is_split(g->size, outer->size, type)) {
            /* The blocks of this rank's run, except for the first, go to ranges that have been sent
             * already. */
            op->leaves = g->size * outer->size, op->run = g->size, op->first = outer->rank * g->size;
            op->own = g->rank, op->sums = (char *)(uintptr_t)in, op->shards = ranges;
        }
    }
    return launch(c, op, request, err);
}

ErrorCode comm_reduce_scatter(Comm *c, AxisSet set, CommType type, const CommRange *ranges, const void *in,
                              void *out, void *workspace, CommRequest *request, Error *err) {
    TRY(enter(c, set, request, err));
    return reduce_scatter(c, group_of(c, set), NULL, type, ranges, in, out, workspace, request, err);
}

/* All-reduces `data`, of which each rank sums an equal range. inner: the group, ranges and sums of the inner
 * step, where it left several partial sums; NULL: the group is the whole sum. */
typedef struct Inner {
    const Group *group;
    const CommRange *ranges;
    char *sums;
} Inner;

/* Each rank of the level's span sums `each` elements; the last ones fewer. Rank r of an inner level sums the
 * range that the level between machines divides. */
static Op *begin_reduce(Comm *c, OpKind kind, Group *g, Level level, CommType type, char *data, int64_t each,
                        int64_t count, void *workspace, const Op *before) {
    size_t width = type_bytes(type), stride = (size_t)each * width;
    Op *op = begin_collective(c, kind, g, stride, (size_t)count * width, level.span.size - 1);
    if (!op) return NULL;
    take_sum(op, type, data, kind == OP_REDUCE_SCATTER ? data + (size_t)level.span.rank * stride : data,
             kind == OP_ALL_GATHER ? NULL : workspace);
    set_level(c, op, level, before);
    return op;
}

static Op *all_reduce_levels(Comm *c, Group *g, CommType type, char *data, int64_t count, void *workspace) {
    size_t bytes = comm_all_reduce_workspace(g->size, type, count);
    Level inside = inside_level(g, 1, bytes), between = between_level(g, bytes);
    int64_t each = reduce_range(g->inside, count), own = elements_of(g->inside, count, inside.span.rank);
    char *range = data + (size_t)inside.span.rank * (size_t)each * type_bytes(type);
    Op *op = begin_reduce(c, OP_REDUCE_SCATTER, g, inside, type, data, each, count, workspace, NULL);
    if (op) start(c, op);
    if (op)
        op = begin_reduce(c, OP_ALL_REDUCE, g, between, type, range, reduce_range(between.span.size, each),
                          own, workspace, op);
    if (op) start(c, op);
    return op ? begin_reduce(c, OP_ALL_GATHER, g, inside, type, data, each, count, NULL, op) : NULL;
}

static ErrorCode all_reduce(Comm *c, Group *g, const Inner *inner, CommType type, char *data, int64_t count,
                            void *workspace, CommRequest *request, Error *err) {
    size_t bytes, width = type_bytes(type), stride = (size_t)reduce_range(g->size, count) * width;
    CHECK(count >= 0 && count < INT64_MAX / 2 && size_multiply((size_t)count, width, &bytes));
    bool split = inner && is_split(inner->group->size, g->size, type);
    int arrivals = (split ? outer_sums(inner->group->size, g->size) : g->size) - 1;
    Op *op = NULL;
    if (bytes && !split && has_levels(g->inside, type)) {
        op = all_reduce_levels(c, g, type, data, count, workspace);
    } else if (g->size > 1 && bytes &&
               (op = begin_collective(c, OP_ALL_REDUCE, g, stride, bytes, arrivals))) {
        take_sum(op, type, data, data, workspace);
        if (split) {
            op->leaves = inner->group->size * g->size, op->run = inner->group->size;
            op->own = inner->group->rank, op->sums = inner->sums, op->shards = inner->ranges;
            op->width = width;
        }
    }
    return launch(c, op, request, err);
}

ErrorCode comm_all_reduce(Comm *c, AxisSet set, CommType type, void *data, int64_t count, void *workspace,
                          CommRequest *request, Error *err) {
    TRY(enter(c, set, request, err));
    return all_reduce(c, group_of(c, set), NULL, type, data, count, workspace, request, err);
}

/* ---- a sum in two steps ---- */

/* Inner axes vary fastest, so inner groups are runs of the ranks of both sets. Otherwise the tree would be
 * another one. */
static void check_order(AxisSet inner, AxisSet outer) {
    CHECK(outer < (inner & (~inner + 1)) || !inner || !outer);
}

ErrorCode comm_sum_inner(Comm *c, AxisSet inner, AxisSet outer, CommType type, const CommRange *ranges,
                         void *data, void *workspace, CommRequest *request, Error *err) {
    check_order(inner, outer);
    TRY(enter(c, inner, request, err));
    Group *g = group_of(c, inner);
    char *own = (char *)data + (size_t)ranges[g->rank].first * type_bytes(type);
    if (has_levels(g->inside, type) && !is_split(g->size, group_of(c, outer)->size, type))
        return reduce_scatter_levels(c, g, type, ranges, data, workspace, request, err);
    return reduce_scatter(c, g, group_of(c, outer), type, ranges, data, own, workspace, request, err);
}

ErrorCode comm_sum_outer(Comm *c, AxisSet inner, AxisSet outer, CommType type, const CommRange *ranges,
                         void *data, void *workspace, CommRequest *request, Error *err) {
    check_order(inner, outer);
    TRY(enter(c, outer, request, err));
    Inner in = {group_of(c, inner), ranges, data};
    const CommRange *own = &ranges[in.group->rank];
    return all_reduce(c, group_of(c, outer), &in, type, (char *)data + (size_t)own->first * type_bytes(type),
                      own->count, workspace, request, err);
}

/* ---- messages ---- */

static ErrorCode start_message(Comm *c, OpKind kind, int peer, uint64_t key, void *data, size_t bytes,
                               CommRequest *request, Error *err) {
    CHECK(peer >= 0 && peer < c->size && peer != c->rank);
    P2pChannel *p2p_channel = bytes ? p2p_channel_find(c, peer, kind == OP_SEND) : NULL;
    Op *op = NULL;
    *request = 0;
    if (!p2p_channel) settle(c);
    comm_lock(c);
    if (comm_refused(c, err) == OK)
        op = p2p_channel ? communicators_message(c, p2p_channel, kind, key, data, bytes)
                         : message_begin(c, kind, c->point, peer, key, data, bytes);
    if (op && kind == OP_SEND) {
        c->point_traffic.bytes += COMM_HEADER + (int64_t)bytes;
        c->point_traffic.messages++;
    }
    return launch(c, op, request, err);
}

ErrorCode comm_send(Comm *c, int peer, uint64_t key, const void *data, size_t bytes, CommRequest *request,
                    Error *err) {
    return start_message(c, OP_SEND, peer, key, (void *)(uintptr_t)data, bytes, request, err);
}

ErrorCode comm_recv(Comm *c, int peer, uint64_t key, void *data, size_t bytes, CommRequest *request,
                    Error *err) {
    return start_message(c, OP_RECV, peer, key, data, bytes, request, err);
}

/* ---- waiting ---- */

/* A message from the same machine arrives within a microsecond, so the first polls follow each other
 * directly. Then the thread yields its core for some thousand polls, since waking up from a sleep takes 50 us
 * or more; then it sleeps. If ranks outnumber cores it sleeps almost at once: the rank that it waits for
 * needs the core, and sched_yield, which MPI also calls in each poll, returns too soon. Sleeps that grow with
 * the wait, up to 1 ms, showed no gain on 4 ranks and 2 cores, over dp_shard, tp and pp. */
static void rest(const Comm *c, int idle) {
    bool crowded = c->local_cores > 0 && c->local_size > c->local_cores;
    if (idle < (crowded ? 4 : 64)) return;
    if (idle < 4096 && !crowded) {
        sched_yield();
        return;
    }
    nanosleep(&(struct timespec){0, 50000}, NULL);
}

/* `waits_since` tells the watchdog that this rank waits, `waiting_for` what for. Returns the Comm's failure
 * if there is one, including one that another rank has reported. */
ErrorCode comm_wait(Comm *c, CommRequest request, Error *err) {
    ErrorCode code = OK;
    bool ended = false;
    atomic_store(&c->waits_since, comm_nanoseconds());
    for (int idle = 0; !ended && code == OK; idle++) {
        comm_lock(c);
        c->waiting_for = request;
        if (transfer_progress(c, device_of(c))) idle = 0;
        code = comm_refused(c, err);
        ended = op_ended(c, request) || (code == OK && communicators_follow(c, request));
        comm_unlock(c);
        if (!ended && code == OK) rest(c, idle);
    }
    atomic_store(&c->waits_since, 0);
    return code;
}

/* Does nothing if the progress thread holds the lock. Other ranks may have sent many buckets since the last
 * call; each iteration takes as many as the workspace holds. */
ErrorCode comm_poll(Comm *c, Error *err) {
    if (!c->joined || pthread_mutex_trylock(&c->mutex) != 0) return OK;
    for (int i = 0; i < POLL_MAX && transfer_progress(c, device_of(c)); i++) {}
    ErrorCode code = comm_refused(c, err);
    comm_unlock(c);
    return code;
}

/* ---- progress thread ---- */

static void *progress_main(void *argument) {
    Comm *c = argument;
    comm_lock(c);
    /* It sleeps while nothing is under way, and after a failure forever. */
    while (!c->ending) {
        if (c->under_way == 0 || c->failure.code != OK) {
            pthread_cond_wait(&c->wake, &c->mutex);
            continue;
        }
        bool moved = transfer_progress(c, &c->own);
        comm_unlock(c);
        /* A program that waits makes progress itself, with more threads. */
        if (!moved) nanosleep(&(struct timespec){0, atomic_load(&c->waits_since) ? 500000 : 50000}, NULL);
        comm_lock(c);
    }
    comm_unlock(c);
    return NULL;
}

ErrorCode comm_start_progress(Comm *c, Error *err) {
/* In the guard build tensor memory is unlocked while a thread is in an op: two threads would lock it for each
 * other. */
#if WEFT_GUARD
    (void)progress_main, (void)c, (void)err;
    return OK;
#else
    if (!c->joined || c->has_progress || staging_needed(c)) return OK;
    int code = pthread_create(&c->progress, NULL, progress_main, c);
    if (code != 0)
        return error_set(err, ERR_MEMORY, "cannot start a thread for communication: %s", strerror(code));
    comm_lock(c);
    c->has_progress = true;
    comm_unlock(c);
    return OK;
#endif
}

/* ---- counters ---- */

static CommTraffic read_traffic(Comm *c, const CommTraffic *traffic) {
    comm_lock(c);
    CommTraffic now = *traffic;
    comm_unlock(c);
    return now;
}

CommTraffic comm_traffic(Comm *c, AxisSet set) { return read_traffic(c, &c->traffic[set]); }
CommTraffic comm_point_traffic(Comm *c) { return read_traffic(c, &c->point_traffic); }

void comm_reset_traffic(Comm *c) {
    comm_lock(c);
    for (int set = 0; set < MESH_ASKED_SETS; set++) c->traffic[set] = (CommTraffic){0};
    c->point_traffic = (CommTraffic){0};
    comm_unlock(c);
}
