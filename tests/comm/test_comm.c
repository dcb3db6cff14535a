/* Communication between ranks: compares every operation with what one process computes, over each transport
 * (`transports` below). Under mpirun, with any number of ranks, it tests them over its transport (MPI,
 * sockets), in the mesh that the environment gives; otherwise one rank alone, and several over the
 * loopback. With an argument it plays a failure, for test_comm_failures.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "device/pool.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/launch.h"
#include "device/ops/memory.h"
#include "support/ranks.h"

/* Per rank, which may be a thread. */
static _Thread_local Comm *comm;
static _Thread_local Error err;

/* A check that fails on one rank must not leave the others waiting. */
#define EXPECT(condition)                                                                       \
    do {                                                                                        \
        if (condition) break;                                                                   \
        error_set(&err, ERR_INTERNAL, "%s:%d: expected %s: %s", __FILE__, __LINE__, #condition, \
                  err.message);                                                                 \
        comm_fail(comm, &err);                                                                  \
        fail_msg("%s", err.message);                                                            \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == OK)

/* ---- tensor memory ---- */

static _Thread_local Pool pool = {.name = "test"};
static _Thread_local Device device;

static void *take(size_t bytes) { return pool_take(&pool, bytes); }
static void begin_pool(size_t bytes) {
    pool_take(&pool, bytes);
    EXPECT_OK(pool_commit(&pool, &device, &err));
}
static void upload(void *to, const void *from, size_t bytes) { OP(&device, upload, to, from, bytes); }
static void download(void *to, const void *from, size_t bytes) { device_fetch(&device, to, from, bytes); }

/* Delays ranks by random times, so that nothing depends on which comes first. */
static void dawdle(uint64_t key) {
    double share = rng_uniform(77 + key, (uint64_t)comm_rank(comm));
    nanosleep(&(struct timespec){0, (long)(share * 3e6)}, NULL);
}

/* ---- expectations ---- */

static double random_share(uint64_t key, int64_t i) {
    uint64_t x = (key + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xd1342543de82ef95u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (double)((x ^ x >> 32) >> 11) / 9007199254740992.0;
}

/* Element i of rank r's contribution: numbers whose sum depends on the order. */
static float value_f32(int r, int64_t i) {
    return (float)(random_share(1000 + (uint64_t)r, i) * 2 - 1) * (float)(1 + i % 7 * 1000);
}
static int64_t value_i64(int r, int64_t i) {
    return (int64_t)(random_share(2000 + (uint64_t)r, i) * 1e18) - (r % 2) * i;
}

/* The canonical tree over ranks[0..n). */
static float tree(const int *ranks, int n, int64_t i) {
    int half = 1;
    if (n == 1) return value_f32(ranks[0], i);
    while (2 * half < n) half *= 2;
    return tree(ranks, half, i) + tree(ranks + half, n - half, i);
}

static void expected_sum(CommType type, const int *ranks, int n, int64_t i, void *out) {
    if (type == COMM_F32) {
        float sum = tree(ranks, n, i);
        memcpy(out, &sum, sizeof sum);
    } else {
        uint64_t sum = 0;
        for (int p = 0; p < n; p++) sum += (uint64_t)value_i64(ranks[p], i);
        memcpy(out, &sum, sizeof sum);
    }
}

static size_t bytes_of(CommType type) { return type == COMM_F32 ? 4 : 8; }

/* Elements [0, n) of rank r's contribution. */
static void put_values(CommType type, int r, int64_t n, void *out) {
    float *f = out;
    int64_t *whole = out;
    if (type == COMM_F32)
        for (int64_t i = 0; i < n; i++) f[i] = value_f32(r, i);
    else
        for (int64_t i = 0; i < n; i++) whole[i] = value_i64(r, i);
}

static _Thread_local Mesh mesh;
static int set_ranks(AxisSet set, int ranks[64]) {
    int n = mesh_size(&mesh, set);
    for (int p = 0; p < n; p++) ranks[p] = mesh_member(&mesh, set, comm_rank(comm), p);
    return n;
}

static int inside_of(AxisSet set) { return mesh_inside(&mesh, set, comm_rank(comm)); }

static const int64_t counts[] = {0, 1, 2, 3, 15, 64, 1001, 65537, 1500017};
enum { COUNTS = sizeof counts / sizeof *counts };
/* Many threads on few cores are slow: the largest range is only for two of them, and for processes. */
static _Thread_local int64_t largest;
static const AxisSet sets[] = {MESH_PIPELINE, MESH_REPLICAS, MESH_SHARDS, MESH_DATA,
                               MESH_PIPELINE | MESH_REPLICAS};
enum { SETS = sizeof sets / sizeof *sets };

/* ---- collectives ---- */

/* Ranges of a buffer: equal ones of `count` elements; or of different sizes, including 0, with the last
 * rank's first. Returns the elements of the buffer. */
static int64_t make_parts(int ranks, int64_t count, bool uneven, CommRange parts[64]) {
    int64_t at = 0;
    for (int i = 0; i < ranks; i++) {
        int p = uneven ? ranks - 1 - i : i;
        parts[p] = (CommRange){at, !uneven ? count : p % 3 == 0 ? count / 4 : p % 3 == 1 ? count : 0};
        at += parts[p].count;
    }
    return at;
}

static void check_all_gather(AxisSet set, int64_t count, bool uneven) {
    int ranks[64], n = set_ranks(set, ranks), me = comm_group_rank(comm, set);
    CommRange parts[64];
    size_t bytes = (size_t)make_parts(n, count, uneven, parts);
    begin_pool(bytes + 256);
    char *all = take(bytes + 64), *host = malloc(bytes + 1);
    for (int64_t i = 0; i < parts[me].count; i++) host[i] = (char)(comm_rank(comm) * 7 + (int)i);
    upload(all + parts[me].first, host, (size_t)parts[me].count);
    CommRequest request;
    comm_reset_traffic(comm);
    dawdle(bytes);
    EXPECT_OK(comm_all_gather(comm, set, parts, 1, all, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    int inside = inside_of(set);
    EXPECT(comm_traffic(comm, set).bytes == comm_gather_traffic(parts, n, inside, me));
    if (inside > 1) EXPECT(comm_traffic(comm, set).between == (n / inside - 1) * parts[me].count);
    download(host, all, bytes);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < parts[p].count; i++)
            EXPECT(host[parts[p].first + i] == (char)(ranks[p] * 7 + (int)i));
    free(host);
    pool_free(&pool);
}

static void test_all_gather(void) {
    for (int a = 0; a < SETS; a++)
        for (int k = 0; k < COUNTS; k++)
            if (comm_group_size(comm, sets[a]) > 1 ? counts[k] <= largest : counts[k] < 2000)
                for (int uneven = 0; uneven < 2; uneven++) check_all_gather(sets[a], counts[k], uneven);
}

/* Each rank of a group has a different piece for each rank. */
static char piece_byte(int from, int to, int64_t i) { return (char)(from * 31 + to * 7 + (int)(i % 101)); }

static void check_all_to_all(AxisSet set, int64_t each) {
    int ranks[64], n = set_ranks(set, ranks), me = comm_group_rank(comm, set);
    size_t bytes = (size_t)each * (size_t)n;
    begin_pool(2 * bytes + 256);
    char *from = take(bytes + 64), *to = take(bytes + 64), *host = malloc(bytes + 1);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < each; i++) host[p * each + i] = piece_byte(ranks[me], ranks[p], i);
    upload(from, host, bytes);
    CommRequest request;
    comm_reset_traffic(comm);
    dawdle(bytes);
    EXPECT_OK(comm_all_to_all(comm, set, (size_t)each, from, to, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    EXPECT(comm_traffic(comm, set).bytes == (n - 1) * each);
    download(host, to, bytes);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < each; i++) EXPECT(host[p * each + i] == piece_byte(ranks[p], ranks[me], i));
    free(host);
    pool_free(&pool);
}

static void test_all_to_all(void) {
    for (int a = 0; a < SETS; a++)
        for (int k = 0; k < COUNTS; k++)
            if (comm_group_size(comm, sets[a]) > 1 ? counts[k] <= largest : counts[k] < 2000)
                check_all_to_all(sets[a], counts[k]);
}

/* Pieces of different sizes, including 0: (from * 3 + to) % 5 quarters. Sent pieces lie in the order of
 * ranks, received ones in reverse. */
static int64_t exchanged(int from, int to, int64_t each) { return (from * 3 + to) % 5 * each / 4; }

static void check_exchange(AxisSet set, int64_t each) {
    int ranks[64], n = set_ranks(set, ranks), me = comm_group_rank(comm, set);
    CommRange out[64], in[64];
    int64_t goes = 0, comes = 0, sent = 0;
    for (int p = 0; p < n; p++) {
        int q = n - 1 - p;
        out[p] = (CommRange){goes, exchanged(ranks[me], ranks[p], each)};
        in[q] = (CommRange){comes, exchanged(ranks[q], ranks[me], each)};
        goes += out[p].count, comes += in[q].count, sent += p == me ? 0 : out[p].count;
    }
    size_t all = (size_t)(goes + comes) * 3 + 1;
    begin_pool(all + 256);
    char *from = take((size_t)goes * 3 + 64), *to = take((size_t)comes * 3 + 64), *host = malloc(all);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < 3 * out[p].count; i++)
            host[3 * out[p].first + i] = piece_byte(ranks[me], ranks[p], i);
    upload(from, host, (size_t)goes * 3);
    CommRequest request;
    comm_reset_traffic(comm);
    dawdle((size_t)each);
    EXPECT_OK(comm_all_to_all_v(comm, set, 3, out, from, in, to, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    EXPECT(comm_traffic(comm, set).bytes == 3 * sent);
    download(host, to, (size_t)comes * 3);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < 3 * in[p].count; i++)
            EXPECT(host[3 * in[p].first + i] == piece_byte(ranks[p], ranks[me], i));
    free(host);
    pool_free(&pool);
}

static void test_exchange(void) {
    for (int a = 0; a < SETS; a++)
        for (int k = 0; k < COUNTS; k++)
            if (comm_group_size(comm, sets[a]) == 2 ? counts[k] <= largest : counts[k] < 2000)
                check_exchange(sets[a], counts[k]);
}

/* The expected sum is computed at every element of small ranges, and at some of large ones. */
static int64_t stride_of(int64_t count) { return count < 4000 ? 1 : 997; }

static void check_reduce_scatter(AxisSet set, CommType type, int64_t count, bool inside, bool uneven) {
    int ranks[64], n = set_ranks(set, ranks), me = comm_group_rank(comm, set);
    CommRange parts[64];
    int64_t all = make_parts(n, count, uneven, parts);
    size_t each = bytes_of(type), bytes = (size_t)all * each, own = (size_t)parts[me].count * each;
    size_t space = comm_reduce_scatter_workspace(n, type, comm_largest(parts, n));
    begin_pool(bytes + own + space + 256);
    char *in = take(bytes + 64), *out = inside ? in + (size_t)parts[me].first * each : take(own + 64),
         *work = take(space + 1);
    char *host = malloc(bytes + 1);
    put_values(type, comm_rank(comm), all, host);
    upload(in, host, bytes);
    CommRequest request;
    comm_reset_traffic(comm);
    dawdle(bytes + 1);
    EXPECT_OK(comm_reduce_scatter(comm, set, type, parts, in, out, work, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    EXPECT(comm_traffic(comm, set).bytes == comm_scatter_traffic(parts, n, me) * (int64_t)each);
    download(host, out, own);
    for (int64_t i = 0; i < parts[me].count; i += stride_of(count)) {
        char want[8];
        expected_sum(type, ranks, n, parts[me].first + i, want);
        EXPECT(memcmp(want, host + (size_t)i * each, each) == 0);
    }
    free(host);
    pool_free(&pool);
}

static void check_all_reduce(AxisSet set, CommType type, int64_t count) {
    int ranks[64], n = set_ranks(set, ranks);
    size_t each = bytes_of(type), bytes = (size_t)count * each,
           space = comm_all_reduce_workspace(n, type, count);
    begin_pool(bytes + space + 256);
    char *data = take(bytes + 1), *work = take(space + 1), *host = malloc(bytes + 1);
    put_values(type, comm_rank(comm), count, host);
    upload(data, host, bytes);
    CommRequest request;
    dawdle(bytes + 2);
    EXPECT_OK(comm_all_reduce(comm, set, type, data, count, work, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    download(host, data, bytes);
    for (int64_t i = 0; i < count; i += stride_of(count)) {
        char want[8];
        expected_sum(type, ranks, n, i, want);
        EXPECT(memcmp(want, host + (size_t)i * each, each) == 0);
    }
    free(host);
    pool_free(&pool);
}

static void test_sums(void) {
    for (int a = 0; a < SETS; a++)
        for (int type = COMM_F32; type <= COMM_I64; type++)
            for (int k = 0; k < COUNTS; k++) {
                if (comm_group_size(comm, sets[a]) == 1 && counts[k] > 2000) continue;
                if (counts[k] > largest) continue;
                for (int p2p_channel = 0; p2p_channel < 4; p2p_channel++)
                    check_reduce_scatter(sets[a], (CommType)type, counts[k], p2p_channel % 2,
                                         p2p_channel / 2);
                check_all_reduce(sets[a], (CommType)type, counts[k]);
            }
}

/* ---- a sum in two steps has the bits of a single sum ---- */

/* A sum over shards, then over replicas: element i over all data-parallel ranks, in the tree over them, with
 * exactly the predicted number of bytes. */
static void check_sum_in_two_steps(CommType type, int64_t count, bool uneven) {
    int shards = comm_group_size(comm, MESH_SHARDS), replicas = comm_group_size(comm, MESH_REPLICAS),
        ranks[64], me = comm_group_rank(comm, MESH_SHARDS), replica = comm_group_rank(comm, MESH_REPLICAS),
        dp = set_ranks(MESH_DATA, ranks);
    CommRange parts[64];
    int64_t whole = make_parts(shards, count, uneven, parts), own = parts[me].count,
            spare = comm_sum_spare(shards, replicas, me, replica, type, parts);
    size_t each = bytes_of(type), bytes = (size_t)whole * each, more = (size_t)spare * each;
    size_t space = comm_reduce_scatter_workspace(shards, type, comm_largest(parts, shards)),
           space2 = comm_sum_outer_workspace(shards, replicas, type, own);
    begin_pool(bytes + more + space + space2 + 512);
    char *data = take(bytes + more + 1), *work = take(space + 1), *work2 = take(space2 + 1);
    char *host = malloc(bytes + 1);
    put_values(type, comm_rank(comm), whole, host);
    upload(data, host, bytes);
    CommRequest request;
    comm_reset_traffic(comm);
    dawdle(bytes + 3);
    EXPECT_OK(comm_sum_inner(comm, MESH_SHARDS, MESH_REPLICAS, type, parts, data, work, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    EXPECT_OK(comm_sum_outer(comm, MESH_SHARDS, MESH_REPLICAS, type, parts, data, work2, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    EXPECT(comm_traffic(comm, MESH_SHARDS).bytes == comm_scatter_traffic(parts, shards, me) * (int64_t)each);
    EXPECT(comm_traffic(comm, MESH_REPLICAS).bytes ==
           comm_sum_outer_traffic(shards, replicas, inside_of(MESH_REPLICAS), replica, type, own));
    int inside = inside_of(MESH_SHARDS);
    bool block =
        type == COMM_I64 || ((inside & (inside - 1)) == 0 && ((shards & (shards - 1)) == 0 || replicas == 1));
    if (inside > 1 && block) {
        int64_t others = 0; /* ranges of this rank's index on other machines */
        for (int p = me % inside; p < shards; p += inside) others += p == me ? 0 : parts[p].count;
        EXPECT(comm_traffic(comm, MESH_SHARDS).between == others * (int64_t)each);
    }
    download(host, data + (size_t)parts[me].first * each, (size_t)own * each);
    for (int64_t i = 0; i < own; i += stride_of(count)) {
        char want[8];
        expected_sum(type, ranks, dp, parts[me].first + i, want);
        EXPECT(memcmp(want, host + (size_t)i * each, each) == 0);
    }
    free(host);
    pool_free(&pool);
}

static void test_sum_of_sums(void) {
    for (int type = COMM_F32; type <= COMM_I64; type++)
        for (int k = 0; k < COUNTS; k++)
            for (int uneven = 0; uneven < 2; uneven++)
                if (counts[k] <= largest) check_sum_in_two_steps((CommType)type, counts[k], uneven);
}

/* ---- several operations under way, and their traffic ---- */

/* Several operations on two axes under way together, with one workspace per axis; the last started is waited
 * for first. */
static void test_many_under_way(void) {
    enum { MANY = 12 };
    int ranks[64], n = comm_group_size(comm, MESH_SHARDS), n2 = comm_group_size(comm, MESH_REPLICAS);
    int64_t count = largest / 5;
    size_t bytes = (size_t)count * sizeof(int64_t),
           space = comm_all_reduce_workspace(n > n2 ? n : n2, COMM_I64, count);
    begin_pool(MANY * (bytes + 64) + 2 * (space + 64));
    CommRequest requests[MANY];
    int64_t *data[MANY], *host = malloc(bytes);
    char *works[2] = {take(space), take(space)};
    for (int k = 0; k < MANY; k++) {
        AxisSet set = k % 2 ? MESH_SHARDS : MESH_REPLICAS;
        data[k] = take(bytes);
        for (int64_t i = 0; i < count; i++) host[i] = value_i64(comm_rank(comm), i + k);
        upload(data[k], host, bytes);
        EXPECT_OK(comm_all_reduce(comm, set, COMM_I64, data[k], count, works[k % 2], &requests[k], &err));
        dawdle((uint64_t)k);
    }
    for (int k = MANY - 1; k >= 0; k--) EXPECT_OK(comm_wait(comm, requests[k], &err));
    for (int k = 0; k < MANY; k++) {
        n = set_ranks(k % 2 ? MESH_SHARDS : MESH_REPLICAS, ranks);
        download(host, data[k], bytes);
        for (int64_t i = 0; i < count; i += 101) {
            int64_t want;
            expected_sum(COMM_I64, ranks, n, i + k, &want);
            EXPECT(host[i] == want);
        }
    }
    free(host);
    pool_free(&pool);
}

static void test_traffic_is_minimal(void) {
    int n = comm_group_size(comm, MESH_SHARDS);
    CommRange parts[64];
    int64_t count = 3 * 64 * 1024;
    size_t bytes = (size_t)count * sizeof(float), space = comm_reduce_scatter_workspace(n, COMM_F32, count);
    make_parts(n, count, false, parts);
    begin_pool((size_t)n * bytes + space + 256);
    char *in = take((size_t)n * bytes), *work = take(space + 1),
         *mine = in + (size_t)comm_group_rank(comm, MESH_SHARDS) * bytes;
    CommRequest request;
    comm_reset_traffic(comm);
    EXPECT_OK(comm_reduce_scatter(comm, MESH_SHARDS, COMM_F32, parts, in, mine, work, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    EXPECT(comm_traffic(comm, MESH_SHARDS).bytes == (n - 1) * (int64_t)bytes);
    EXPECT_OK(comm_all_gather(comm, MESH_SHARDS, parts, sizeof(float), in, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    EXPECT(comm_traffic(comm, MESH_SHARDS).bytes == 2 * (n - 1) * (int64_t)bytes);
    EXPECT(comm_traffic(comm, MESH_REPLICAS).bytes == 0);
    comm_reset_traffic(comm);
    /* All n ranges are one tensor: its all-reduce costs as much as both of the above. */
    EXPECT_OK(comm_all_reduce(comm, MESH_SHARDS, COMM_F32, in, count, work, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    int64_t sent = comm_traffic(comm, MESH_SHARDS).bytes, least = 2 * (n - 1) * (int64_t)bytes / n;
    EXPECT(sent >= least - 2048 && sent <= least + 2048);
    pool_free(&pool);
}

/* Between machines an all-reduce sends what an all-reduce of this rank's range of the machine's sum does. */
static void test_traffic_between(void) {
    int n = comm_group_size(comm, MESH_SHARDS), inside = inside_of(MESH_SHARDS), machines = n / inside;
    int64_t count = (int64_t)n * 64 * 64;
    size_t bytes = (size_t)count * sizeof(float), space = comm_all_reduce_workspace(n, COMM_F32, count);
    bool levels = inside > 1 && (inside & (inside - 1)) == 0;
    begin_pool(bytes + space + 256);
    char *data = take(bytes), *work = take(space + 1);
    CommRequest request;
    comm_reset_traffic(comm);
    EXPECT_OK(comm_all_reduce(comm, MESH_SHARDS, COMM_F32, data, count, work, &request, &err));
    EXPECT_OK(comm_wait(comm, request, &err));
    if (levels) EXPECT(comm_traffic(comm, MESH_SHARDS).between == 2 * (machines - 1) * (int64_t)bytes / n);
    EXPECT(comm_traffic(comm, MESH_SHARDS).bytes == 2 * (n - 1) * (int64_t)bytes / n);
    pool_free(&pool);
}

/* ---- messages ---- */

static void fill_message(char *host, size_t bytes, int from, int number) {
    for (size_t i = 0; i < bytes; i++) host[i] = (char)(from * 31 + number * 3 + (int)i);
}

/* In a ring, MESSAGES to the next rank; the receives are posted in another order than the sends. */
static void test_messages_in_any_order(void) {
    enum { MESSAGES = 10 };
    static const size_t sizes[MESSAGES] = {0, 1, 7, 4096, 65536, 100001, 9000000, 3, 5, 64};
    int size = comm_size(comm), rank = comm_rank(comm), next = (rank + 1) % size,
        before = (rank + size - 1) % size;
    if (size == 1) return;
    begin_pool(2 * 10000000);
    char *host = malloc(9000000), *out[MESSAGES], *in[MESSAGES];
    CommRequest sends[MESSAGES], receives[MESSAGES];
    comm_reset_traffic(comm);
    int64_t total = 0;
    for (int k = 0; k < MESSAGES; k++) {
        out[k] = take(sizes[k] + 1);
        in[k] = take(sizes[k] + 1);
        fill_message(host, sizes[k], rank, k);
        upload(out[k], host, sizes[k]);
        EXPECT_OK(comm_send(comm, next, comm_key(k % 2, 1000 - k, 7), out[k], sizes[k], &sends[k], &err));
        total += (int64_t)sizes[k];
    }
    for (int i = 0; i < MESSAGES; i++) {
        int k = i * 7 % MESSAGES;
        dawdle((uint64_t)i);
        EXPECT_OK(comm_recv(comm, before, comm_key(k % 2, 1000 - k, 7), in[k], sizes[k], &receives[k], &err));
    }
    for (int k = 0; k < MESSAGES; k++) {
        EXPECT_OK(comm_wait(comm, receives[k], &err));
        char *want = malloc(sizes[k] + 1);
        fill_message(want, sizes[k], before, k);
        download(host, in[k], sizes[k]);
        EXPECT(memcmp(host, want, sizes[k]) == 0);
        free(want);
    }
    for (int k = 0; k < MESSAGES; k++) EXPECT_OK(comm_wait(comm, sends[k], &err));
    EXPECT(comm_point_traffic(comm).bytes == total + MESSAGES * COMM_HEADER);
    EXPECT(comm_point_traffic(comm).messages == MESSAGES);
    free(host);
    pool_free(&pool);
}

/* Numbers may decrease, and receives may be posted in an order unrelated to that of the sends, as in a
 * pipeline with its own order of microbatches. */
static void test_numbers_in_any_order(void) {
    enum { MESSAGES = 32, BYTES = 9000 };
    int size = comm_size(comm), rank = comm_rank(comm), next = (rank + 1) % size,
        before = (rank + size - 1) % size;
    if (size == 1) return;
    begin_pool(2 * MESSAGES * (BYTES + POOL_ALIGN));
    char *host = malloc(BYTES), *want = malloc(BYTES), *out[MESSAGES], *in[MESSAGES];
    CommRequest sends[MESSAGES], receives[MESSAGES];
    for (int k = 0; k < MESSAGES; k++) out[k] = take(BYTES), in[k] = take(BYTES);
    for (int i = 0; i < MESSAGES; i++) {
        int down = MESSAGES - 1 - i, any = 13 * i % MESSAGES;
        fill_message(host, BYTES, rank, down);
        upload(out[down], host, BYTES);
        EXPECT_OK(comm_send(comm, next, comm_key(1, 3, 1000 + down), out[down], BYTES, &sends[down], &err));
        EXPECT_OK(comm_recv(comm, before, comm_key(1, 3, 1000 + any), in[any], BYTES, &receives[any], &err));
        dawdle((uint64_t)i);
    }
    for (int k = 0; k < MESSAGES; k++) {
        EXPECT_OK(comm_wait(comm, receives[k], &err));
        fill_message(want, BYTES, before, k);
        download(host, in[k], BYTES);
        EXPECT(memcmp(host, want, BYTES) == 0);
    }
    for (int k = 0; k < MESSAGES; k++) EXPECT_OK(comm_wait(comm, sends[k], &err));
    free(host);
    free(want);
    pool_free(&pool);
}

/* ---- small operations ---- */

typedef struct Record {
    int count, order[64];
} Record;

static void append(void *into, const void *from) {
    Record *a = into;
    const Record *b = from;
    for (int i = 0; i < b->count; i++) a->order[a->count++] = b->order[i];
}

static void test_small(void) {
    int size = comm_size(comm), rank = comm_rank(comm);
    Record r = {1, {rank}};
    EXPECT_OK(comm_combine(comm, &r, sizeof r, append, &err));
    EXPECT(r.count == size);
    for (int p = 0; p < size; p++) EXPECT(r.order[p] == p);
    for (int root = 0; root < size; root++) {
        char text[100] = "";
        if (rank == root) snprintf(text, sizeof text, "from %d", root);
        EXPECT_OK(comm_broadcast(comm, text, sizeof text, root, &err));
        char want[100];
        snprintf(want, sizeof want, "from %d", root);
        EXPECT(strcmp(text, want) == 0);
    }
    EXPECT_OK(comm_barrier(comm, &err));
}

static void test_gather_of_pieces(void) {
    char mine[64], *all = NULL;
    size_t lengths[64], at = 0;
    memset(mine, 'a' + comm_rank(comm), sizeof mine);
    /* Rank 1 contributes nothing. */
    size_t bytes = comm_rank(comm) == 1 ? 0 : (size_t)comm_rank(comm) + 3;
    EXPECT_OK(comm_gather(comm, mine, bytes, &all, lengths, &err));
    EXPECT((all != NULL) == (comm_rank(comm) == 0));
    for (int p = 0; all && p < comm_size(comm); p++) {
        EXPECT(lengths[p] == (p == 1 ? 0 : (size_t)p + 3));
        for (size_t i = 0; i < lengths[p]; i++) EXPECT(all[at++] == 'a' + p);
    }
    free(all);
}

static void test_agreement(void) {
    Error e = {0};
    int size = comm_size(comm), rank = comm_rank(comm);
    EXPECT(comm_agree(comm, OK, &e) == OK);
    /* All ranks from `first` on fail. */
    for (int first = 0; first < size; first++) {
        ErrorCode code = OK;
        if (rank >= first) code = error_set(&e, rank == first ? ERR_DATA : ERR_IO, "of %d", rank);
        EXPECT(comm_agree(comm, code, &e) == ERR_DATA);
        char want[64];
        snprintf(want, sizeof want, first == 0 ? "of 0" : "rank %d: of %d", first, first);
        EXPECT(strcmp(e.message, want) == 0 && e.code == ERR_DATA);
        EXPECT(e.reported == (rank != first));
    }
}

static void test_places(void) {
    for (AxisSet set = 0; set < MESH_SETS; set++) {
        EXPECT(comm_group_rank(comm, set) == mesh_group_rank(&mesh, set, comm_rank(comm)));
        EXPECT(comm_group_size(comm, set) == mesh_size(&mesh, set));
    }
    EXPECT(comm_local_size(comm) == comm_size(comm) && comm_local_rank(comm) == comm_rank(comm));
    EXPECT_OK(comm_poll(comm, &err));
    EXPECT_OK(comm_wait(comm, 0, &err));
}

static void take_larger(void *into, const void *from) {
    if (*(const int *)from > *(int *)into) *(int *)into = *(const int *)from;
}

/* ---- running ---- */

static int number_of(const char *name, int otherwise) {
    return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static void (*const checks[])(void) = {test_places,
                                       test_all_gather,
                                       test_all_to_all,
                                       test_exchange,
                                       test_sums,
                                       test_sum_of_sums,
                                       test_many_under_way,
                                       test_traffic_is_minimal,
                                       test_traffic_between,
                                       test_messages_in_any_order,
                                       test_numbers_in_any_order,
                                       test_small,
                                       test_gather_of_pieces,
                                       test_agreement};
static const char *const check_names[] = {"places",
                                          "all-gather",
                                          "all-to-all",
                                          "exchange",
                                          "sums",
                                          "sum of sums",
                                          "many under way",
                                          "traffic is minimal",
                                          "traffic between machines",
                                          "messages in any order",
                                          "numbers in any order",
                                          "small ones",
                                          "gather of pieces",
                                          "agreement"};
enum { CHECKS = sizeof checks / sizeof *checks };

/* Configuration of a run of checks: ranks in a mesh, and what runs alongside them. */
typedef struct Shape {
    int ranks, pp, replicate;
    bool progress, own_device; /* a progress thread; sums by the program's device */
    uint64_t seed;             /* of the loopback's delays */
    bool sums_only;            /* only the checks of sums, which depend on the shape */
    int machine;               /* consecutive ranks that count as one machine; 0: all */
} Shape;

/* On each rank, once in the life of a Comm. */
static void join_mesh(const Shape *s) {
    MeshOptions o = {s->pp, s->replicate, -1, 1, 1, 1, 0, s->machine};
    EXPECT_OK(mesh_build(&mesh, &o, comm_size(comm), &err));
    EXPECT_OK(comm_set_mesh(comm, &mesh, &err));
    if (s->progress) EXPECT_OK(comm_start_progress(comm, &err));
}

static void check_rank(const Shape *s, void (*check)(void)) {
    pool = (Pool){.name = "test"};
    EXPECT_OK(device_open_cpu(&device, NULL, 1, &err));
    largest = s->ranks <= 2 || launched_env_find().by_launcher ? 1500017 : 65537;
    comm_set_device(comm, s->own_device ? &device : NULL);
    check();
    comm_set_device(comm, NULL);
    device_close(&device);
}

/* ---- all transports ---- */

typedef struct Work {
    const Shape *shape;
    void (*check)(void);
} Work;

/* A new Comm for each check; over MPI, which can be joined only once, one for all. */
static void on_new(Comm *c, void *work) {
    const Work *w = work;
    comm = c;
    join_mesh(w->shape);
    check_rank(w->shape, w->check);
}

static void run_alone(const Shape *s, void (*check)(void)) {
    Comm *c;
    Error e;
    assert_int_equal(comm_open_transport(&c, NULL, &e), OK);
    on_new(c, &(Work){s, check});
    comm_close(c);
}

static void run_loopback(const Shape *s, void (*check)(void)) {
    ranks_run(s->ranks, s->seed, on_new, &(Work){s, check});
}

static Comm *world; /* over MPI */
static void run_launched(const Shape *s, void (*check)(void)) { check_rank(s, check); }

static const Shape alone[] = {{.ranks = 1, .pp = 1, .replicate = 1}};
static const Shape threads[] = {{2, 1, 1, false, false, 0, false, 0},
                                {3, 1, 3, false, true, 1, false, 0},
                                {4, 2, 2, true, false, 2, false, 0},
                                {5, 1, 1, false, false, 3, false, 0},
                                {6, 1, 2, false, true, 4, false, 0},
                                {8, 2, 2, false, false, 5, false, 0},
                                /* Runs of three, five and six ranks are not blocks of the tree. */
                                {6, 1, 3, false, false, 6, true, 0},
                                {9, 1, 3, false, false, 7, true, 0},
                                {10, 1, 2, false, false, 8, true, 0},
                                {12, 1, 2, false, false, 9, true, 0},
                                {12, 1, 4, false, false, 10, true, 0},
                                /* Two levels; runs of three are one for fp32 numbers, and the last shape has
                                 * them over replicas. */
                                {4, 1, 1, false, false, 11, false, 2},
                                {8, 1, 2, true, true, 12, false, 2},
                                {6, 1, 1, false, false, 13, false, 3},
                                {12, 1, 1, false, false, 14, false, 4},
                                {8, 1, 4, false, false, 15, false, 4}};
static Shape of_environment[1];

static const struct {
    const char *name;
    bool launched; /* tested by ranks that a launcher started */
    void (*run)(const Shape *s, void (*check)(void));
    const Shape *shapes;
    size_t count;
} transports[] = {{"alone", false, run_alone, alone, 1},
                  {"loopback", false, run_loopback, threads, sizeof threads / sizeof *threads},
                  {"launched", true, run_launched, of_environment, 1}};
enum { TRANSPORTS = sizeof transports / sizeof *transports };

typedef struct Case {
    size_t transport, shape, check;
    char name[120];
} Case;

static void run_case(void **state) {
    const Case *c = *state;
    transports[c->transport].run(&transports[c->transport].shapes[c->shape], checks[c->check]);
}

static int run_checks(bool launched) {
    static Case cases[512];
    static struct CMUnitTest tests[512];
    size_t count = 0;
    for (size_t l = 0; l < TRANSPORTS; l++)
        for (size_t s = 0; transports[l].launched == launched && s < transports[l].count; s++)
            for (size_t k = 0; k < CHECKS; k++) {
                const Shape *shape = &transports[l].shapes[s];
                if (shape->sums_only && checks[k] != test_sum_of_sums) continue;
                CHECK(count < sizeof tests / sizeof *tests);
                cases[count] = (Case){.transport = l, .shape = s, .check = k};
                snprintf(cases[count].name, sizeof cases->name,
                         "%s, %d ranks, pp %d, dp_replicate %d, machines of %d: %s", transports[l].name,
                         shape->ranks, shape->pp, shape->replicate, shape->machine, check_names[k]);
                tests[count] = (struct CMUnitTest){
                    .name = cases[count].name, .test_func = run_case, .initial_state = &cases[count]};
                count++;
            }
    return _cmocka_run_group_tests("test_comm", tests, count, NULL, NULL);
}

/* ---- plays ---- */

static volatile sig_atomic_t asked_to_stop;
static void on_signal(int number) {
    (void)number;
    asked_to_stop = 1;
}

static void on_alarm(int number) {
    (void)number;
    raise(SIGSTOP);
}

static bool is_named(char **names) {
    for (; *names; names++)
        if (atoi(*names) == comm_rank(comm)) return true;
    return false;
}

static void describe(void *context, char *out, size_t size) {
    snprintf(out, size, "%s", (const char *)context);
}

/* Waits for a message from rank 0 (on rank 0: from rank 1) that never comes. */
static ErrorCode wait_in_vain(void) {
    static char buffer[64];
    CommRequest request;
    TRY(comm_recv(comm, comm_rank(comm) == 0, comm_key(0, 1, 1), buffer, sizeof buffer, &request, &err));
    return comm_wait(comm, request, &err);
}

static ErrorCode play_sizes(void) {
    static char buffer[8192];
    CommRequest request;
    if (comm_rank(comm) == 1) {
        TRY(comm_send(comm, 0, comm_key(0, 1, 1), buffer, 4096, &request, &err));
        TRY(comm_wait(comm, request, &err));
        return wait_in_vain();
    }
    if (comm_rank(comm) != 0) return wait_in_vain();
    TRY(comm_recv(comm, 1, comm_key(0, 1, 1), buffer, 8192, &request, &err));
    return comm_wait(comm, request, &err);
}

/* Signals arrive at ranks at different times: what counts is what they agree on. */
static ErrorCode play_stop(void) {
    for (int stops = 0; !stops;) {
        stops = asked_to_stop;
        TRY(comm_combine(comm, &stops, sizeof stops, take_larger, &err));
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    return comm_agree(comm, error_set(&err, ERR_STOPPED, "stopped on request"), &err);
}

/* The signal that comes too late. */
static sigset_t late_signal(void) {
    sigset_t late;
    sigemptyset(&late);
    sigaddset(&late, SIGUSR2); /* by Open MPI's mpirun */
    sigaddset(&late, SIGINT);  /* by MPICH's mpiexec */
    return late;
}

/* After its last message, waits for the signal that comes too late, so that it surely comes. */
static ErrorCode play_through(void) {
    sigset_t late = late_signal();
    int number;
    ErrorCode code = play_stop();
    comm_report(comm, &err);
    sigwait(&late, &number);
    return code;
}

/* Until it is killed. */
static void stay(void) {
    for (;;) pause();
}

/* Stops itself in the middle of a wait. */
static void freeze_soon(void) {
    struct itimerval soon = {.it_value = {.tv_usec = 200000}};
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &soon, NULL);
}

/* The named ranks stop before they join the others. Signals that are waited for later are blocked here,
 * before MPI has threads: a signal that comes before the wait would end the process in a thread that does
 * not block it. */
static void before_start(const char *name, char **ranks) {
    sigset_t late = late_signal();
    if (strcmp(name, "through") == 0) sigprocmask(SIG_BLOCK, &late, NULL);
    for (; strcmp(name, "late") == 0 && *ranks; ranks++)
        if (atoi(*ranks) == launched_env_find().rank) raise(SIGSTOP);
}

/* After MPI_Finalize. */
static void hang(int status, void *nothing) {
    (void)status, (void)nothing;
    stay();
}

/* Ignores the signals that launchers forward. */
static void ignore_all(void) {
    static const int numbers[] = {SIGUSR1, SIGUSR2, SIGINT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) signal(numbers[i], SIG_IGN);
}

/* For longer than any limit, without a beat; a signal ends it. */
static void sleep_long(void) { sleep(8 * (unsigned)number_of("TEST_WATCHDOG", 60)); }

/* For longer than any limit, but with regular beats. */
static void work(void) {
    for (int i = 0; i < 3 * 100 * number_of("TEST_WATCHDOG", 60); i++) {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        progress_beat();
    }
}

/* play NAME [RANK...]: what the named ranks do while the others wait for something. Everything ends through
 * comm_fail, except for agreed failures. */
static ErrorCode play(const char *name, char **ranks) {
    bool named = is_named(ranks);
    ErrorCode code = OK;
    signal(SIGUSR1, on_signal);
    if (strcmp(name, "stubborn") == 0) ignore_all();
    TRY(comm_barrier(comm, &err));
    if (comm_rank(comm) == 0) printf("ready\n");
    fflush(stdout);
    if (strcmp(name, "agree") == 0 && named)
        fprintf(stderr, "[host:29200] Read -1, expected 11008, errno = 3\n");
    if (strcmp(name, "agree") == 0)
        return comm_agree(comm, named ? error_set(&err, ERR_DATA, "bad play") : OK, &err);
    if (strcmp(name, "stop") == 0) return play_stop();
    if (strcmp(name, "through") == 0) return play_through();
    if (strcmp(name, "stubborn") == 0) stay();
    if (strcmp(name, "kill") == 0 && named) raise(SIGKILL);
    if (strcmp(name, "freeze") == 0 && named) raise(SIGSTOP);
    if (strcmp(name, "doze") == 0 && named) freeze_soon();
    if (strcmp(name, "nap") == 0 && named) freeze_soon();
    if ((strcmp(name, "busy") == 0 || strcmp(name, "nap") == 0) && named) sleep_long(), sleep_long();
    if (strcmp(name, "work") == 0) {
        if (named) work();
        return comm_barrier(comm, &err);
    }
    if (strcmp(name, "end") == 0) {
        if (named) raise(SIGSTOP);
        return OK;
    }
    if (strcmp(name, "linger") == 0) {
        if (named) on_exit(hang, NULL);
        return OK;
    }
    if (strcmp(name, "mute") == 0 && named) kill(getppid(), SIGSTOP); /* mpirun will end no rank */
    if ((strcmp(name, "fail") == 0 || strcmp(name, "mute") == 0) && named)
        code = error_set(&err, ERR_DATA, "bad play");
    if (strcmp(name, "sizes") == 0) code = play_sizes();
    if (code == OK) code = wait_in_vain();
    comm_fail(comm, &err);
    return code;
}

/* launch N ...: runs the rest of the command line with N ranks. */
static int launch(int ranks, char **words) {
    words[0] = (char *)(uintptr_t) "test_comm";
    ErrorCode code = launch_ranks(
        &(LaunchTerms){.ranks = ranks, .watchdog_s = number_of("TEST_WATCHDOG", 60)}, words, &err);
    if (code != OK && !err.reported) fprintf(stderr, "test_comm: %s\n", err.message);
    return (int)code;
}

int main(int argc, char **argv) {
    launched_streams();
    if (argc > 2 && strcmp(argv[1], "launch") == 0) return launch(atoi(argv[2]), argv + 2);
    static char doing[] = "the play";
    bool plays = argc > 2 && strcmp(argv[1], "play") == 0;
    CommWatch watch = {number_of("TEST_WATCHDOG", 60), describe, doing};
    if (plays) before_start(argv[2], argv + 3);
    if ((plays ? comm_open_watched(&comm, &watch, &err) : comm_open(&comm, &err)) != OK) {
        if (!err.reported) fprintf(stderr, "test_comm: %s\n", err.message);
        return (int)err.code;
    }
    bool launched = launched_env_find().by_launcher;
    Shape here = {comm_size(comm),
                  number_of("TEST_PP", 1),
                  number_of("TEST_REPLICATE", 1),
                  number_of("TEST_PROGRESS", 0),
                  number_of("TEST_DEVICE", 0),
                  0,
                  false,
                  number_of("TEST_MACHINE", 0)};
    /* One report is enough. */
    if (comm_rank(comm) != 0 && !freopen("/dev/null", "w", stdout)) return 1;
    world = comm;
    of_environment[0] = here;
    if (plays) {
        ErrorCode code = play(argv[2], argv + 3);
        if (code != OK) comm_report(comm, &err);
        comm_close(comm);
        return (int)code;
    }
    if (launched) join_mesh(&here);
    int failed = run_checks(launched);
    comm_close(world);
    return failed ? 1 : 0;
}
