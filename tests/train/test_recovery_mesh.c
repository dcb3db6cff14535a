/* The choice of the ranks that go on when others have died. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/recovery.h"

static Mesh mesh_of(int pp, int replicas, int shards, int tp) {
    MeshOptions o = {.pp = pp, .dp_replicate = replicas, .dp_shard = shards, .cp = 1, .tp = tp, .ep = 1};
    Mesh m;
    assert_int_equal(mesh_build(&m, &o, pp * replicas * shards * tp, NULL), OK);
    return m;
}

/* alive: ranks, ended by -1; expected: the ranks chosen, or only -1. */
static void expect(Mesh first, int replicas, const int *alive, const int *expected) {
    int chosen[16], count = 0, n = 0;
    while (alive[count] >= 0) count++;
    bool found = recovery_choose(&first, alive, count, replicas, chosen);
    for (; expected[n] >= 0; n++) assert_int_equal(alive[chosen[n]], expected[n]);
    assert_int_equal(found, n > 0);
    if (found) assert_int_equal(mesh_of_replicas(&first, replicas).world, n);
}
#define RANKS(...) ((const int[]){__VA_ARGS__, -1})

static void fewer_replicas(void **state) {
    (void)state;
    expect(mesh_of(1, 2, 1, 1), 1, RANKS(1), RANKS(1));
    expect(mesh_of(1, 4, 1, 1), 3, RANKS(0, 2, 3), RANKS(0, 2, 3));
    expect(mesh_of(1, 4, 1, 1), 2, RANKS(0, 2, 3), RANKS(0, 2));
    expect(mesh_of(1, 2, 1, 2), 1, RANKS(1, 2, 3), RANKS(2, 3));
    expect(mesh_of(1, 2, 2, 1), 1, RANKS(0, 1, 2), RANKS(0, 1));
}

/* A replica may be made of ranks of several. */
static void mixed_replicas(void **state) {
    (void)state;
    expect(mesh_of(1, 2, 1, 2), 1, RANKS(0, 3), RANKS(0, 3));
    expect(mesh_of(1, 3, 1, 2), 2, RANKS(0, 3, 4, 5), RANKS(0, 3, 4, 5));
    /* Stages are outside of replicas: ranks 0, 1 have the first one. */
    expect(mesh_of(2, 2, 1, 1), 1, RANKS(0, 1, 3), RANKS(0, 3));
    expect(mesh_of(2, 2, 1, 1), 1, RANKS(1, 2, 3), RANKS(1, 2));
}

static void no_replica(void **state) {
    (void)state;
    expect(mesh_of(1, 2, 1, 2), 2, RANKS(0, 1, 3), RANKS(-1));
    expect(mesh_of(1, 2, 1, 2), 1, RANKS(1, 3), RANKS(-1));
    expect(mesh_of(1, 2, 1, 2), 1, RANKS(1, 2), RANKS(-1)); /* in the wrong order */
    expect(mesh_of(2, 2, 1, 1), 1, RANKS(0, 1), RANKS(-1));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fewer_replicas), cmocka_unit_test(mixed_replicas),
                                       cmocka_unit_test(no_replica)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
