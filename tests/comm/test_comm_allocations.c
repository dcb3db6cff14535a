/* Nothing is allocated by the operations of a step once they have been done before. Counts this program's
 * calls of the allocator (tests/support/allocations.h; OpenMP's own for its threads do not count) while ranks
 * that are threads (tests/support/ranks.h) go through all operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "base/text.h"
#include "device/pool.h"
#include "support/allocations.h"
#include "support/ranks.h"

static int at_first, at_last; /* allocations of this program after the first and the last round */

/* ---- the ranks ---- */

enum { RANKS = 6, COUNT = 70000, ROUNDS = 4 };

static void must(Comm *c, ErrorCode code, const Error *err) {
    if (code == OK) return;
    comm_fail(c, err);
    abort();
}
#define MUST(call) must(c, call, &err)

static void add(void *into, const void *from) { *(int *)into += *(const int *)from; }

/* Three shards, two replicas: sums in two steps leave several partial sums. */
static void every_operation(Comm *c, float *parts, float *work, float *more) {
    Error err = {.message = ""};
    CommRequest h[4];
    char text[3000] = "";
    int one = 1, next = (comm_rank(c) + 1) % RANKS, before = (comm_rank(c) + RANKS - 1) % RANKS;
    const int64_t part = COUNT / 3;
    const CommRange thirds[] = {{0, part}, {part, part}, {2 * part, part}};
    MUST(comm_send(c, next, comm_key(0, 1, 1), parts, COUNT * sizeof(float), &h[0], &err));
    MUST(comm_recv(c, before, comm_key(0, 1, 1), more, COUNT * sizeof(float), &h[1], &err));
    MUST(comm_wait(c, h[0], &err));
    MUST(comm_wait(c, h[1], &err));
    MUST(comm_sum_inner(c, MESH_SHARDS, MESH_REPLICAS, COMM_F32, thirds, parts, work, &h[2], &err));
    MUST(comm_wait(c, h[2], &err));
    MUST(comm_sum_outer(c, MESH_SHARDS, MESH_REPLICAS, COMM_F32, thirds, parts, work, &h[2], &err));
    MUST(comm_wait(c, h[2], &err));
    MUST(comm_all_gather(c, MESH_SHARDS, thirds, sizeof(float), parts, &h[3], &err));
    MUST(comm_wait(c, h[3], &err));
    MUST(comm_combine(c, &one, sizeof one, add, &err));
    MUST(comm_broadcast(c, text, sizeof text, 2, &err));
    MUST(comm_agree(c, OK, &err));
    must(c, one == RANKS ? OK : error_set(&err, ERR_INTERNAL, "%d ranks were counted", one), &err);
}

static void body(Comm *c, void *context) {
    Error err = {.message = ""};
    Mesh mesh;
    Pool pool = {.name = "test"};
    Device device;
    size_t bytes = COUNT * sizeof(float), space = comm_sum_outer_workspace(3, 2, COMM_F32, COUNT / 3),
           space2 = comm_reduce_scatter_workspace(3, COMM_F32, COUNT / 3);
    (void)context;
    MUST(mesh_build(&mesh, &(MeshOptions){1, 2, 3, 1, 1, 1, 0, 0}, RANKS, &err));
    MUST(comm_set_mesh(c, &mesh, &err));
    pool_take(&pool, 2 * bytes + space + space2 + 256);
    MUST(device_open_cpu(&device, NULL, 1, &err));
    MUST(pool_commit(&pool, &device, &err));
    float *parts = pool_take(&pool, bytes), *more = pool_take(&pool, bytes),
          *work = pool_take(&pool, space + space2);
    for (int round = 0; round < ROUNDS; round++) {
        every_operation(c, parts, work, more);
        MUST(comm_barrier(c, &err));
        if (round == 0 && comm_rank(c) == 0) at_first = allocations_own();
        if (round == ROUNDS - 1 && comm_rank(c) == 0) at_last = allocations_own();
        MUST(comm_barrier(c, &err));
    }
    pool_free(&pool);
    device_close(&device);
}

static void test_nothing_is_allocated(void **state) {
    (void)state;
    if (!COUNTS_ALLOCATIONS) skip();
    /* Checks that counting works. */
    int none = allocations_own();
    void *volatile memory = mem_alloc(100);
    free(memory);
    assert_int_equal(allocations_own(), none + 1);
    ranks_run(RANKS, 3, body, NULL);
    assert_int_equal(at_last - at_first, 0);
    assert_true(at_first > none); /* setting up did allocate */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_is_allocated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
