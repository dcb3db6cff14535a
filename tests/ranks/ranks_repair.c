/* Ranks die by SIGKILL at random moments of random operations, and those that are left repair communication
 * and go on:
 *
 *     mpirun --with-ft ulfm -n 8 ranks_repair SEED
 *
 * Each operation's result is checked. In each epoch (between two repairs) one rank dies, or two at once, or a
 * second one during the repair, until fewer than four are left. Rank 0 of those prints a line. If
 * communication cannot be repaired, it prints why, and the exit status is 69. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/rng.h"
#include "comm/repair.h"

enum { RANKS_MAX = 64, LARGEST = 200000, KINDS = 9, LAST = 40, MANY = 100000, MESSAGE = 1 };

typedef struct World {
    Comm *comm;
    Error err;
    uint64_t seed;
    int rank, size, epoch;
    int ids[RANKS_MAX];      /* by rank: its first number */
    bool planned[RANKS_MAX]; /* by first number: it is to die */
    bool doomed;             /* this rank is, and its time is running */
    int64_t operations, commits;
    int unplanned; /* ranks that are gone and were not to die: the MPI library may crash when others do */
    int64_t *data, *more, *workspace;
} World;

/* ---- deaths ---- */

typedef enum Death { ONE, TWO, ONE_IN_REPAIR, DEATHS } Death;

/* The same on all ranks. */
typedef struct Plan {
    Death kind;
    int first, second; /* ranks; -1: none */
    int operation;     /* after which the time of the first begins to run; -1: before the mesh is made */
} Plan;

static uint64_t draw(const World *w, uint64_t n) { return rng_u64(w->seed + (uint64_t)w->epoch * 977, n); }

static Plan plan_of(const World *w) {
    Plan p = {.first = -1, .second = -1};
    if (w->size < 4) return p;
    p.kind = (Death)(draw(w, 0) % DEATHS);
    p.first = (int)(draw(w, 1) % (uint64_t)w->size);
    p.operation = (int)(draw(w, 3) % 12) - 1;
    if (p.kind != ONE) p.second = (p.first + 1 + (int)(draw(w, 2) % (uint64_t)(w->size - 1))) % w->size;
    return p;
}

static void *end_of_time(void *us) {
    nanosleep(&(struct timespec){0, (long)(intptr_t)us * 1000}, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Up to 2 ms: some operations take as long. */
static void doom(World *w) {
    pthread_t thread;
    uint64_t us = rng_u64(w->seed + 5, (uint64_t)w->epoch * RANKS_MAX + (uint64_t)w->ids[w->rank]) % 2000;
    w->doomed = true;
    if (pthread_create(&thread, NULL, end_of_time, (void *)(intptr_t)us) != 0) abort();
}

static void doom_at(World *w, const Plan *p, int operation) {
    if (operation != p->operation || w->doomed) return;
    if (w->rank == p->first || (w->rank == p->second && p->kind == TWO)) doom(w);
}

/* ---- operations ---- */

static void wrong(const World *w, const char *what) {
    fprintf(stderr, "ranks_repair: rank %d, epoch %d, operation %lld: %s\n", w->rank, w->epoch,
            (long long)w->operations, what);
    comm_fail(w->comm, &(Error){.code = ERR_INTERNAL, .message = "a wrong result"});
    _exit(1);
}

static int64_t value(const World *w, int rank, int64_t i) { return (i * 31 + rank * 7 + w->epoch) % 1000; }

static ErrorCode finish(World *w, ErrorCode code, const CommRequest *request) {
    return code == OK ? comm_wait(w->comm, *request, &w->err) : code;
}

static ErrorCode all_reduce(World *w, int64_t n) {
    CommRequest request;
    for (int64_t i = 0; i < n; i++) w->data[i] = value(w, w->rank, i);
    TRY(finish(w,
               comm_all_reduce(w->comm, MESH_SHARDS, COMM_I64, w->data, n, w->workspace, &request, &w->err),
               &request));
    for (int64_t i = 0; i < n; i++) {
        int64_t sum = 0;
        for (int p = 0; p < w->size; p++) sum += value(w, p, i);
        if (w->data[i] != sum) wrong(w, "another sum of integers");
    }
    return OK;
}

static ErrorCode all_reduce_floats(World *w, int64_t n) {
    CommRequest request;
    float *data = (float *)w->data;
    for (int64_t i = 0; i < n; i++) data[i] = (float)value(w, w->rank, i);
    TRY(finish(w, comm_all_reduce(w->comm, MESH_SHARDS, COMM_F32, data, n, w->workspace, &request, &w->err),
               &request));
    for (int64_t i = 0; i < n; i++) {
        int64_t sum = 0; /* exact in fp32, too */
        for (int p = 0; p < w->size; p++) sum += value(w, p, i);
        if (data[i] != (float)sum) wrong(w, "another sum");
    }
    return OK;
}

static void equal_ranges(const World *w, int64_t each, CommRange *ranges) {
    for (int p = 0; p < w->size; p++) ranges[p] = (CommRange){p * each, each};
}

static ErrorCode reduce_scatter(World *w, int64_t n) {
    CommRequest request;
    CommRange ranges[RANKS_MAX];
    int64_t each = n / w->size + 1;
    equal_ranges(w, each, ranges);
    for (int64_t i = 0; i < each * w->size; i++) w->data[i] = value(w, w->rank, i);
    TRY(finish(w,
               comm_reduce_scatter(w->comm, MESH_SHARDS, COMM_I64, ranges, w->data, w->more, w->workspace,
                                   &request, &w->err),
               &request));
    for (int64_t i = 0; i < each; i++) {
        int64_t sum = 0;
        for (int p = 0; p < w->size; p++) sum += value(w, p, w->rank * each + i);
        if (w->more[i] != sum) wrong(w, "another reduce-scatter");
    }
    return OK;
}

static ErrorCode all_gather(World *w, int64_t n) {
    CommRequest request;
    CommRange ranges[RANKS_MAX];
    int64_t each = n / w->size + 1;
    equal_ranges(w, each, ranges);
    for (int64_t i = 0; i < each; i++) w->data[w->rank * each + i] = value(w, w->rank, i);
    TRY(finish(w, comm_all_gather(w->comm, MESH_SHARDS, ranges, sizeof *w->data, w->data, &request, &w->err),
               &request));
    for (int p = 0; p < w->size; p++)
        for (int64_t i = 0; i < each; i++)
            if (w->data[p * each + i] != value(w, p, i)) wrong(w, "another all-gather");
    return OK;
}

static ErrorCode all_to_all(World *w, int64_t n) {
    CommRequest request;
    int64_t each = n / w->size + 1;
    for (int p = 0; p < w->size; p++)
        for (int64_t i = 0; i < each; i++) w->data[p * each + i] = value(w, w->rank + p, i);
    TRY(finish(w,
               comm_all_to_all(w->comm, MESH_SHARDS, (size_t)each * sizeof *w->data, w->data, w->more,
                               &request, &w->err),
               &request));
    for (int p = 0; p < w->size; p++)
        for (int64_t i = 0; i < each; i++)
            if (w->more[p * each + i] != value(w, p + w->rank, i)) wrong(w, "another all-to-all");
    return OK;
}

/* Around a ring. */
static ErrorCode messages(World *w, int64_t n) {
    CommRequest send, receive;
    int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;
    uint64_t key = comm_key(MESSAGE, 0, w->operations);
    if (w->size == 1) return OK;
    for (int64_t i = 0; i < n; i++) w->data[i] = value(w, w->rank, i);
    TRY(comm_recv(w->comm, before, key, w->more, (size_t)n * sizeof *w->more, &receive, &w->err));
    TRY(comm_send(w->comm, next, key, w->data, (size_t)n * sizeof *w->data, &send, &w->err));
    TRY(comm_wait(w->comm, receive, &w->err));
    TRY(comm_wait(w->comm, send, &w->err));
    for (int64_t i = 0; i < n; i++)
        if (w->more[i] != value(w, before, i)) wrong(w, "another message");
    return OK;
}

static ErrorCode records(World *w, int64_t n) {
    int64_t sum = n + w->rank;
    TRY(comm_combine(w->comm, &sum, sizeof sum, comm_add_int64, &w->err));
    if (sum != w->size * n + w->size * (w->size - 1) / 2) wrong(w, "another record");
    return OK;
}

/* All have the same view of who is left. */
static ErrorCode views(World *w, int64_t n) {
    int ids[RANKS_MAX];
    memcpy(ids, w->ids, sizeof ids);
    TRY(comm_broadcast(w->comm, ids, sizeof ids, (int)(n % w->size), &w->err));
    if (memcmp(ids, w->ids, (size_t)w->size * sizeof *ids) != 0) wrong(w, "another view of who is left");
    return comm_barrier(w->comm, &w->err);
}

/* Either all of those that are left have committed, or none (settled). */
static ErrorCode commits(World *w, int64_t n) {
    TRY(records(w, n));
    TRY(comm_commit(w->comm, &w->err));
    w->commits++;
    return OK;
}

static void larger(void *into, const void *from) {
    int64_t *a = into;
    const int64_t *b = from;
    for (int i = 0; i < 2; i++) a[i] = b[i] > a[i] ? b[i] : a[i];
}

static ErrorCode settled(World *w) {
    int64_t most[2] = {w->commits, -w->commits};
    TRY(comm_combine(w->comm, most, sizeof most, larger, &w->err));
    if (most[0] != -most[1]) wrong(w, "some have committed what others have not");
    return OK;
}

static ErrorCode operate(World *w) {
    static ErrorCode (*const kinds[KINDS])(World *, int64_t) = {
        all_reduce, all_reduce_floats, reduce_scatter, all_gather, all_to_all,
        messages,   records,           views,          commits};
    uint64_t key = draw(w, 1000 + (uint64_t)w->operations);
    int64_t n = (int64_t)(key >> 32) % (key & 16 ? LARGEST : 100) + 1;
    ErrorCode code = kinds[key % KINDS](w, n);
    w->operations++;
    return code;
}

/* ---- epochs ---- */

/* Ends with an error when somebody dies, or with OK at the end of a run. */
static ErrorCode live(World *w) {
    Mesh mesh;
    MeshOptions options = {.pp = 1, .dp_replicate = 1, .dp_shard = -1, .cp = 1, .tp = 1, .ep = 1};
    Plan p = plan_of(w);
    if (p.first >= 0) w->planned[w->ids[p.first]] = true;
    if (p.second >= 0) w->planned[w->ids[p.second]] = true;
    TRY(mesh_build(&mesh, &options, w->size, &w->err));
    doom_at(w, &p, -1);
    TRY(comm_set_mesh(w->comm, &mesh, &w->err));
    w->operations = 0;
    TRY(settled(w));
    for (int k = 0; k < (p.first < 0 ? LAST : MANY); k++) {
        doom_at(w, &p, k);
        TRY(operate(w));
    }
    if (p.first >= 0) wrong(w, "nobody has died");
    while (w->doomed) pause();
    return OK;
}

static void take_view(World *w, const CommRepair *now) {
    int ids[RANKS_MAX];
    if (now->epoch != w->epoch + 1 || now->size + now->lost != w->size || now->size != comm_size(w->comm))
        wrong(w, "numbers of a repair");
    if (now->lost == 0 || now->old_ranks[comm_rank(w->comm)] != w->rank) wrong(w, "places of a repair");
    for (int p = 0, old = 0; old < w->size; old++) {
        bool lives = p < now->size && now->old_ranks[p] == old;
        if (lives) ids[p++] = w->ids[old];
        if (!lives && !w->planned[w->ids[old]]) w->unplanned++;
    }
    memcpy(w->ids, ids, (size_t)now->size * sizeof *ids);
    w->rank = comm_rank(w->comm), w->size = now->size, w->epoch = now->epoch;
}

static void repair(World *w) {
    CommRepair now;
    Plan p = plan_of(w);
    if (!comm_is_broken(w->comm)) wrong(w, w->err.message);
    if (p.kind == ONE_IN_REPAIR && w->rank == p.second && !w->doomed) doom(w);
    if (comm_repair(w->comm, &now, &w->err) != OK) wrong(w, w->err.message);
    take_view(w, &now);
}

/* In any group, up to so many ranks. */
static size_t workspace_bytes(int ranks) {
    size_t most = 0;
    for (int n = 2; n <= ranks; n++) {
        size_t reduce = comm_all_reduce_workspace(n, COMM_I64, LARGEST),
               scatter = comm_reduce_scatter_workspace(n, COMM_I64, LARGEST / n + 1);
        most = reduce > most ? reduce : most;
        most = scatter > most ? scatter : most;
    }
    return most;
}

int main(int argc, char **argv) {
    World w = {.seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1};
    if (comm_open(&w.comm, &w.err) != OK) return (int)w.err.code;
    if (comm_allow_repair(w.comm, &w.err) != OK) {
        if (!w.err.reported) fprintf(stderr, "ranks_repair: %s\n", w.err.message);
        comm_close(w.comm);
        return (int)w.err.code;
    }
    w.rank = comm_rank(w.comm), w.size = comm_size(w.comm);
    int ranks = w.size;
    for (int p = 0; p < ranks; p++) w.ids[p] = p;
    w.data = mem_alloc_array(LARGEST + RANKS_MAX, sizeof *w.data);
    w.more = mem_alloc_array(LARGEST + RANKS_MAX, sizeof *w.more);
    w.workspace = mem_alloc(workspace_bytes(ranks));
    while (live(&w) != OK) repair(&w);
    if (w.rank == 0)
        printf("seed %s: %d of %d ranks are left after %d repairs, %d lost without a plan\n",
               argc > 1 ? argv[1] : "1", w.size, ranks, w.epoch, w.unplanned);
    comm_close(w.comm);
    free(w.data);
    free(w.more);
    free(w.workspace);
    return 0;
}
