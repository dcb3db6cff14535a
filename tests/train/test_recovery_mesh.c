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

/* SPARE: -1 in the list, which ends at -2. expected: numbers of those chosen, in their order. */
static void expect_seats(Mesh first, int replicas, const int *numbers, const int *expected) {
    int chosen[16], count = 0, n = 0;
    while (numbers[count] > -2) count++;
    bool found = recovery_choose(&first, numbers, count, replicas, chosen);
    for (; expected[n] > -2; n++) assert_int_equal(numbers[chosen[n]], expected[n]);
    assert_int_equal(found, n > 0);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) assert_int_not_equal(chosen[i], chosen[j]);
}
#define SEATS(...) ((const int[]){__VA_ARGS__, -2})

/* Spares take the places of the dead, and of nobody else. */
static void spares(void **state) {
    (void)state;
    const int none[] = {-2};
    expect_seats(mesh_of(1, 2, 1, 1), 2, SEATS(1, -1), SEATS(-1, 1));
    expect_seats(mesh_of(1, 2, 2, 1), 2, SEATS(0, 1, 3, -1), SEATS(0, 1, -1, 3));
    expect_seats(mesh_of(2, 2, 1, 1), 2, SEATS(1, 2, -1, -1), SEATS(-1, 1, 2, -1));
    expect_seats(mesh_of(1, 3, 1, 2), 3, SEATS(0, 1, 3, 4, -1, -1), SEATS(0, 1, -1, 3, 4, -1));
    /* Fewer replicas: who has lost its place comes before a spare. */
    expect_seats(mesh_of(1, 3, 1, 2), 2, SEATS(0, 3, 5, -1), SEATS(0, 5, -1, 3));
    expect_seats(mesh_of(1, 2, 1, 2), 1, SEATS(1, 2, -1), SEATS(2, 1));
    expect_seats(mesh_of(1, 2, 2, 1), 1, SEATS(0, 1, 3, -1, -1), SEATS(0, 1));
    /* Nobody holds the shard, or there are too few. */
    expect_seats(mesh_of(1, 2, 2, 1), 2, SEATS(0, 2, -1, -1), none);
    expect_seats(mesh_of(1, 2, 2, 1), 2, SEATS(0, 1, -1), none);
    expect_seats(mesh_of(1, 2, 1, 1), 2, SEATS(-1, -1), none);
}

/* Accepts the meshes that can be built, and whose data-parallel ranks divide so many microbatches. */
static bool divides(const void *microbatches, const MeshOptions *m) {
    Mesh mesh;
    int world = (int)(m->pp * m->dp_shard * m->cp * m->tp);
    return mesh_build(&mesh, m, world, NULL) == OK && *(const int *)microbatches % m->dp_shard == 0;
}

static void expect_next(Mesh now, int ranks, int microbatches, MeshOptions expected) {
    MeshOptions m;
    assert_true(mesh_shrink(&now, ranks, divides, &microbatches, &m));
    assert_true(m.pp == expected.pp && m.dp_replicate == 1 && m.dp_shard == expected.dp_shard &&
                m.cp == expected.cp && m.tp == expected.tp && m.ep == expected.ep && m.etp == expected.etp);
}

static void any_mesh(void **state) {
    (void)state;
    expect_next(mesh_of(1, 1, 2, 1), 1, 8, (MeshOptions){.pp = 1, .dp_shard = 1, .cp = 1, .tp = 1, .ep = 1});
    expect_next(mesh_of(1, 1, 4, 1), 3, 8, (MeshOptions){.pp = 1, .dp_shard = 2, .cp = 1, .tp = 1, .ep = 1});
    expect_next(mesh_of(1, 1, 4, 1), 3, 6, (MeshOptions){.pp = 1, .dp_shard = 3, .cp = 1, .tp = 1, .ep = 1});
    expect_next(mesh_of(1, 1, 2, 2), 3, 8, (MeshOptions){.pp = 1, .dp_shard = 1, .cp = 1, .tp = 2, .ep = 1});
    expect_next(mesh_of(2, 1, 1, 2), 3, 8, (MeshOptions){.pp = 1, .dp_shard = 1, .cp = 1, .tp = 2, .ep = 1});
    expect_next(mesh_of(4, 1, 1, 1), 3, 8, (MeshOptions){.pp = 3, .dp_shard = 1, .cp = 1, .tp = 1, .ep = 1});
    expect_next(mesh_of(1, 1, 1, 4), 3, 8, (MeshOptions){.pp = 1, .dp_shard = 1, .cp = 1, .tp = 2, .ep = 1});
}

/* Each rank of tp has whole experts, and goes on with whole ones. */
static void whole_experts(void **state) {
    (void)state;
    MeshOptions o = {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2, .ep = 4, .etp = 1};
    Mesh m;
    assert_int_equal(mesh_build(&m, &o, 4, NULL), OK);
    MeshOptions same = mesh_degrees(&m);
    assert_memory_equal(&same, &o, sizeof o);
    expect_next(m, 3, 8, (MeshOptions){.pp = 1, .dp_shard = 1, .cp = 1, .tp = 2, .ep = 2, .etp = 1});
}

static bool never(const void *nothing, const MeshOptions *m) {
    (void)nothing, (void)m;
    return false;
}

static void no_mesh(void **state) {
    (void)state;
    MeshOptions m;
    Mesh two = mesh_of(1, 1, 2, 1);
    assert_false(mesh_shrink(&two, 1, never, NULL, &m));
}

/* Partners hold each other's copies, or form a ring; they are as far apart as they can be. */
static void partners(void **state) {
    (void)state;
    for (int world = 1; world <= 9; world++) {
        Mesh m = mesh_of(1, 1, world, 1);
        for (int r = 0; r < world; r++) {
            assert_int_equal(mesh_partner_of(&m, mesh_partner(&m, r)), r);
            assert_true((mesh_partner(&m, r) == r) == (world == 1));
        }
    }
    Mesh hosts = mesh_of(1, 1, 8, 1);
    for (int r = 0; r < 8; r++) assert_int_not_equal(mesh_partner(&hosts, r) / 4, r / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fewer_replicas), cmocka_unit_test(mixed_replicas),
                                       cmocka_unit_test(no_replica),     cmocka_unit_test(spares),
                                       cmocka_unit_test(any_mesh),       cmocka_unit_test(whole_experts),
                                       cmocka_unit_test(no_mesh),        cmocka_unit_test(partners)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
