/* The mesh: coordinates of ranks on the axes, and every rule that a configuration can break. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "comm/internal.h"

static const MeshOptions one = {1, 1, -1, 1, 1, 1, 0, 0};

static void test_left_ranks_become_shards(void **state) {
    (void)state;
    for (int world = 1; world <= 24; world++)
        for (int pp = 1; pp <= 4; pp++)
            for (int replicate = 1; replicate <= 3; replicate++) {
                MeshOptions o = {pp, replicate, -1, 1, 1, 1, 0, 0};
                Mesh m;
                Error err = {0};
                ErrorCode code = mesh_build(&m, &o, world, &err);
                assert_int_equal(code, world % (pp * replicate) == 0 ? OK : ERR_CONFIG);
                if (code != OK) continue;
                assert_int_equal(m.world, world);
                assert_int_equal(m.degree[AXIS_DP_SHARD], world / (pp * replicate));
                assert_int_equal(mesh_dp_degree(&m) * pp, world);
            }
}

/* The formula of the design, written out. */
static void test_places(void **state) {
    (void)state;
    Mesh m;
    Error err = {0};
    assert_int_equal(mesh_build(&m, &(MeshOptions){2, 3, 4, 1, 1, 1, 0, 0}, 24, &err), OK);
    for (int rank = 0; rank < 24; rank++) {
        int at[AXES];
        mesh_coordinates(&m, rank, at);
        assert_int_equal(mesh_rank(&m, at), rank);
        assert_int_equal(at[AXIS_PP], rank / 12);
        assert_int_equal(at[AXIS_DP_REPLICATE], rank / 4 % 3);
        assert_int_equal(at[AXIS_DP_SHARD], rank % 4);
        assert_int_equal(mesh_dp_rank(&m, rank), rank % 12);
    }
}

/* tp varies fastest, also where this version allows it only by hand. */
static void test_order_of_axes(void **state) {
    (void)state;
    Mesh m = {{2, 2, 2, 1, 2, 1, 2, 1}, 32, false, 0};
    int at[AXES] = {1, 0, 1, 0, 0, 0, 1, 0}, back[AXES];
    assert_int_equal(mesh_rank(&m, at), 16 + 4 + 1);
    mesh_coordinates(&m, 2, back);
    assert_int_equal(back[AXIS_CP], 1);
    assert_int_equal(mesh_dp_rank(&m, 2), 0);
    assert_int_equal(mesh_dp_rank(&m, 16 + 8 + 4), 3);
    assert_string_equal(axis_name(AXIS_DP_SHARD), "dp_shard");
}

static void expect_refusal(MeshOptions o, int world, const char *const *said) {
    Mesh m;
    Error err = {0};
    assert_int_equal(mesh_build(&m, &o, world, &err), ERR_CONFIG);
    for (; *said; said++)
        if (!strstr(err.message, *said)) fail_msg("\"%s\" does not say \"%s\"", err.message, *said);
}
#define EXPECT_REFUSAL(o, world, ...) expect_refusal(o, world, (const char *const[]){__VA_ARGS__, NULL})

static void test_refusals_say_what_would_fit(void **state) {
    (void)state;
    MeshOptions o = one;
    o.pp = 3;
    EXPECT_REFUSAL(o, 4, "mesh.pp 3", "4 ranks", "3 or 6 ranks");
    EXPECT_REFUSAL(o, 2, "at least 3 ranks", "there are 2");
    o = one, o.dp_shard = 3, o.dp_replicate = 2;
    EXPECT_REFUSAL(o, 4, "= 6", "there are 4 ranks", "start 6 ranks", "mesh.dp_shard to 2");
    o = one, o.pp = 4, o.dp_shard = 2;
    EXPECT_REFUSAL(o, 6, "= 8, but there are 6 ranks: start 8 ranks or change a degree");
    EXPECT_REFUSAL(o, 2, "= 8, but there are 2 ranks: start 8 ranks or change a degree");
    o = one, o.dp_shard = 0;
    EXPECT_REFUSAL(o, 1, "mesh.dp_shard is 0", "or -1");
    o = one, o.dp_replicate = -1;
    EXPECT_REFUSAL(o, 1, "mesh.dp_replicate is -1", "at least 1");
    o = one, o.tp = 4, o.cp = 2;
    EXPECT_REFUSAL(o, 12, "mesh.dp_replicate 1 x mesh.cp 2 x mesh.tp 4 = 8", "8 or 16 ranks");
    o.dp_shard = 3;
    EXPECT_REFUSAL(o, 8, "x mesh.tp 4 x mesh.dp_shard 3 = 24", "mesh.dp_shard to 1");
    o = one, o.tp = 0;
    EXPECT_REFUSAL(o, 2, "mesh.tp is 0", "at least 1");
    o = one, o.ep = 4;
    EXPECT_REFUSAL(o, 6, "mesh.ep 4 is laid over mesh.dp_shard 6", "1 or 2 would do");
    o.ep = 3;
    EXPECT_REFUSAL(o, 3, "mesh.ep 3 is laid over mesh.dp_shard 3", "power of two", ": 1 would do");
    o.ep = 2, o.cp = 3;
    EXPECT_REFUSAL(o, 12, "mesh.ep 2 is laid over mesh.dp_shard 4 x mesh.cp 3",
                   "or is a multiple of it: 1 would do");
    o.cp = 2, o.ep = 16;
    EXPECT_REFUSAL(o, 12, "mesh.ep 16 is laid over mesh.dp_shard 6 x mesh.cp 2", "1, 2 or 4 would do");
    o = one, o.ep = 0;
    EXPECT_REFUSAL(o, 4, "mesh.ep is 0", "at least 1");
    o = (MeshOptions){INT64_MAX, INT64_MAX, INT64_MAX, 1, 1, 1, 0, 0};
    EXPECT_REFUSAL(o, 4, "mesh.pp");
    o = (MeshOptions){1, 1, INT64_MAX, 1, 1, 1, 0, 0};
    EXPECT_REFUSAL(o, 4, "mesh.dp_shard", "to 4");
}

/* cp's ranks shard parameters as dp_shard's do, and read the same data. */
static void test_context_ranks_are_shards(void **state) {
    (void)state;
    MeshOptions o = one;
    Mesh m;
    Error err = {0};
    o.cp = 2;
    assert_int_equal(mesh_build(&m, &o, 6, &err), OK);
    assert_int_equal(mesh_size(&m, MESH_SHARDS), 6);
    assert_int_equal(mesh_dp_degree(&m), 3);
    assert_int_equal(mesh_dp_rank(&m, 2), mesh_dp_rank(&m, 3));
    assert_int_equal(mesh_group_rank(&m, MESH_CONTEXT, 3), 1);
}

/* ep is part of dp_shard: its ranks are neighbours, and only experts distinguish it from the rest. */
static void test_experts_lie_over_shards(void **state) {
    (void)state;
    MeshOptions o = one;
    Mesh m;
    Error err = {0};
    o.dp_replicate = 2, o.ep = 2;
    assert_int_equal(mesh_build(&m, &o, 16, &err), OK);
    assert_int_equal(mesh_degree(&m, AXIS_DP_SHARD), 8);
    assert_int_equal(mesh_degree(&m, AXIS_EP), 2);
    assert_int_equal(mesh_size(&m, MESH_SHARDS), 8);
    assert_int_equal(mesh_size(&m, MESH_EXPERT_SHARDS), 4);
    assert_int_equal(mesh_dp_degree(&m), 16);
    for (int rank = 0; rank < 16; rank++) {
        assert_int_equal(mesh_dp_rank(&m, rank), rank);
        assert_int_equal(mesh_group_rank(&m, MESH_EXPERTS, rank), rank % 2);
        assert_int_equal(mesh_group_rank(&m, MESH_EXPERT_SHARDS, rank), rank % 8 / 2);
    }
}

/* Over dp_shard and all of tp, where each rank of tp has experts of its own. */
static void test_experts_lie_over_tensors(void **state) {
    (void)state;
    MeshOptions o = one;
    Mesh m;
    Error err = {0};
    o.tp = 4, o.ep = 8, o.etp = 1;
    assert_int_equal(mesh_build(&m, &o, 16, &err), OK);
    for (int copies = 1; copies <= 4; copies *= 2) {
        mesh_lay_copies(&m, copies);
        assert_int_equal(mesh_degree(&m, AXIS_EP), 8);
        assert_int_equal(mesh_degree(&m, AXIS_TP), 4);
        assert_int_equal(mesh_degree(&m, AXIS_DP_SHARD), 4);
        assert_int_equal(mesh_size(&m, MESH_EXPERT_SOURCES), 2);
        assert_int_equal(mesh_size(&m, MESH_EXPERT_SHARDS), 2);
        assert_int_equal(mesh_size(&m, MESH_SHARDS), 4);
        assert_int_equal(mesh_size(&m, MESH_TENSOR), 4);
        for (int rank = 0; rank < 16; rank++) {
            assert_int_equal(mesh_group_rank(&m, MESH_EXPERTS, rank), rank % 8);
            assert_int_equal(mesh_group_rank(&m, MESH_FOLDED, rank), rank % 4);
            assert_int_equal(mesh_member(&m, MESH_EXPERTS, rank, 7), rank / 8 * 8 + 7);
            assert_int_equal(mesh_dp_rank(&m, rank), rank / 4);
        }
    }
    o.etp = 4, o.ep = 2; /* as without the key */
    assert_int_equal(mesh_build(&m, &o, 16, &err), OK);
    assert_int_equal(mesh_size(&m, MESH_EXPERTS), 2);
    assert_int_equal(mesh_size(&m, MESH_FOLDED), 1);
}

/* Over cp, its groups consist of cp's neighbours first. */
static void test_experts_lie_over_contexts(void **state) {
    (void)state;
    static const struct {
        int ep, shards, contexts; /* of a group, along these */
    } cases[] = {{2, 1, 2}, {4, 1, 4}, {8, 2, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MeshOptions o = one;
        Mesh m;
        Error err = {0};
        char name[64];
        o.cp = 4, o.ep = cases[i].ep;
        assert_int_equal(mesh_build(&m, &o, 16, &err), OK);
        assert_int_equal(mesh_degree(&m, AXIS_DP_SHARD), 4);
        assert_int_equal(mesh_degree(&m, AXIS_CP), 4);
        assert_int_equal(mesh_degree(&m, AXIS_EP), o.ep);
        assert_int_equal(mesh_size(&m, MESH_SHARDS), 16);
        assert_int_equal(mesh_size(&m, MESH_CONTEXT), 4);
        assert_int_equal(mesh_size(&m, MESH_DATA), 4);
        assert_int_equal(m.degree[AXIS_EP], cases[i].shards);
        assert_int_equal(m.degree[AXIS_EP_CP], cases[i].contexts);
        for (int rank = 0; rank < 16; rank++) {
            assert_int_equal(mesh_group_rank(&m, MESH_EXPERTS, rank), rank % o.ep);
            assert_int_equal(mesh_group_rank(&m, MESH_EXPERT_SHARDS, rank), rank / o.ep);
            assert_int_equal(mesh_group_rank(&m, MESH_CONTEXT, rank), rank % 4);
            assert_int_equal(mesh_dp_rank(&m, rank), rank / 4);
        }
        assert_string_equal(mesh_set_name(MESH_SHARDS, name), "dp_shard x ep x cp");
        assert_string_equal(mesh_set_name(MESH_CONTEXT, name), "cp");
        assert_string_equal(mesh_set_name(MESH_EXPERTS, name), "ep");
    }
}

/* Communicators of a rank: no mesh needs more than a device has, and some need as many. */
static int count_communicators(const Mesh *m, int pipe_rank) {
    AxisSet sets[COMMUNICATOR_SETS];
    int stages = mesh_size(m, MESH_PIPELINE), count = communicators_sets(m, sets);
    for (int n = 0; n < p2p_channels_of(stages); n++) {
        P2pEnds w = p2p_channel_ends(stages, n);
        assert_int_not_equal(w.from, w.to);
        count += w.from == pipe_rank || w.to == pipe_rank;
    }
    return count;
}

static void test_communicators(void **state) {
    (void)state;
    int most = 0;
    for (int pp = 1; pp <= 6; pp++)
        for (int axes = 0; axes < 1 << AXES; axes++) {
            Mesh m = {.degree = {pp}, .world = pp};
            for (int axis = AXIS_DP_REPLICATE; axis < AXES; axis++) {
                m.degree[axis] = axes >> axis & 1 ? 2 : 1;
                m.world *= m.degree[axis];
            }
            for (int pipe_rank = 0; pipe_rank < pp; pipe_rank++) {
                int count = count_communicators(&m, pipe_rank);
                if (count > most) most = count;
            }
        }
    assert_int_equal(most, DEVICE_COMMUNICATORS);
    /* A communicator with several names is joined once. */
    Mesh m = {{2, 1, 2, 1, 1, 1, 1, 1}, 4, false, 0};
    assert_int_equal(count_communicators(&m, 0), 3);
}

/* ---- machines ---- */

static int inside_of(int world, int machine, int replicas, int tp, AxisSet set, int rank) {
    MeshOptions o = {
        .pp = 1, .dp_replicate = replicas, .dp_shard = -1, .cp = 1, .tp = tp, .ep = 1, .machine = machine};
    Mesh m;
    Error err;
    assert_int_equal(mesh_build(&m, &o, world, &err), OK);
    return mesh_inside(&m, set, rank);
}

static void test_levels(void **state) {
    (void)state;
    assert_int_equal(inside_of(64, 8, 1, 1, MESH_SHARDS, 17), 8);
    assert_int_equal(inside_of(64, 8, 1, 2, MESH_SHARDS, 17), 4);
    assert_int_equal(inside_of(64, 8, 1, 8, MESH_SHARDS, 17), 1); /* each on a machine of its own */
    assert_int_equal(inside_of(64, 8, 1, 8, MESH_TENSOR, 17), 1); /* all on one */
    assert_int_equal(inside_of(64, 8, 8, 1, MESH_SHARDS, 17), 1);
    assert_int_equal(inside_of(64, 8, 8, 1, MESH_REPLICAS, 17), 1);
    assert_int_equal(inside_of(64, 8, 16, 1, MESH_REPLICAS, 17), 2);
    assert_int_equal(inside_of(64, 8, 16, 1, MESH_SHARDS, 17), 1);
    assert_int_equal(inside_of(24, 8, 2, 1, MESH_SHARDS, 1), 1);  /* 8 and 4 */
    assert_int_equal(inside_of(24, 8, 2, 1, MESH_SHARDS, 13), 1); /* 4 and 8 */
    assert_int_equal(inside_of(24, 6, 1, 1, MESH_SHARDS, 13), 6);
    assert_int_equal(inside_of(8, 8, 1, 1, MESH_SHARDS, 3), 1);
    assert_int_equal(inside_of(8, 0, 1, 1, MESH_SHARDS, 3), 1);
}

static void test_machine_ranks(void **state) {
    (void)state;
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 5, 9, 9, 2, 2}, 6), 2);
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 5, 5, 9, 9, 9}, 6), 3);
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 9, 5, 9}, 4), 0); /* dealt out in turn */
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 5, 9, 9, 5, 5}, 6), 0);
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 5, 9}, 3), 0);
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 5, 9, 9, 9, 9}, 6), 0);
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 9}, 2), 1);
    assert_int_equal(transport_machine_ranks((const uint64_t[]){5, 5}, 2), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_context_ranks_are_shards),
                                       cmocka_unit_test(test_levels),
                                       cmocka_unit_test(test_machine_ranks),
                                       cmocka_unit_test(test_experts_lie_over_contexts),
                                       cmocka_unit_test(test_experts_lie_over_shards),
                                       cmocka_unit_test(test_experts_lie_over_tensors),
                                       cmocka_unit_test(test_left_ranks_become_shards),
                                       cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_order_of_axes),
                                       cmocka_unit_test(test_refusals_say_what_would_fit),
                                       cmocka_unit_test(test_communicators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
