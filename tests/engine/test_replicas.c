/* Comparing replicas: which ranks are found to differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "engine/replicas.h"

enum { PARAMS = 2, MOST = 12 };

static Error err;
static const ParamRow row = {.rows = DIM_VOCAB, .cols = DIM_HIDDEN, .tp = COLUMN_PARALLEL};
static Param params[PARAMS] = {{.name = "model.embed_tokens.weight", .row = &row, .cols = 8, .unit = 0},
                               {.name = "lm_head.weight", .row = &row, .cols = 8, .unit = 3}};
static ModelConfig model = {.vocab_size = 16, .hidden_size = 8, .tie_word_embeddings = true};
static const ParamTable table = {.count = PARAMS, .units = 4, .params = params};
static ParamGroup group;
static int group_of_param[PARAMS];
static const ParamGroups groups = {.count = 1, .items = &group, .of = group_of_param};
static ParamPrint prints[MOST][PARAMS];

static Mesh mesh_of(int pp, int replicas, int shards) {
    return (Mesh){.degree = {pp, replicas, shards, 1, 1, 1, 1, 1}, .world = pp * replicas * shards};
}

/* Every rank holds its shard; the first stage has the embedding, the last the head. */
static void fill(const Mesh *mesh, bool tied_copy) {
    memset(prints, 0, sizeof prints);
    for (int rank = 0; rank < mesh->world; rank++) {
        int at[AXES], last = mesh->degree[AXIS_PP] - 1;
        mesh_coordinates(mesh, rank, at);
        for (int p = 0; p < PARAMS; p++) {
            bool held = p == 0 ? at[AXIS_PP] == 0 || (tied_copy && at[AXIS_PP] == last) : at[AXIS_PP] == last;
            ParamPrint *print = &prints[rank][p];
            if (!held) continue;
            print->held = 1;
            for (int a = 0; a < PRINTED_ARRAYS; a++)
                print->hash[a] = (uint64_t)(100 * p + 10 * a + at[AXIS_DP_SHARD]);
        }
    }
}

static ErrorCode judge(const Mesh *mesh, int64_t agreed) {
    ParamPrint *all = mem_alloc_array((size_t)mesh->world * PARAMS, sizeof *all);
    memcpy(all, prints, (size_t)mesh->world * sizeof prints[0]);
    err.message[0] = 0;
    group.optimizer = optimizer_of(OPTIMIZER_ADAMW);
    ErrorCode code = replicas_judge(all, &(ReplicaScene){&model, &table, &groups, mesh}, 40, agreed, &err);
    free(all);
    return code;
}

static void expect(const Mesh *mesh, int64_t agreed, const char *words) {
    assert_int_equal(judge(mesh, agreed), ERR_REPLICAS);
    if (!strstr(err.message, words)) fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void equal_copies_pass(void **state) {
    (void)state;
    Mesh meshes[] = {mesh_of(1, 1, 4), mesh_of(1, 4, 1), mesh_of(1, 3, 4), mesh_of(2, 2, 2),
                     mesh_of(3, 2, 2)};
    for (int i = 0; i < 5; i++)
        for (int tied = 0; tied < 2; tied++) {
            fill(&meshes[i], tied);
            assert_int_equal(judge(&meshes[i], 3), OK);
        }
}

static void two_copies_are_both_named(void **state) {
    (void)state;
    Mesh mesh = mesh_of(1, 2, 2);
    fill(&mesh, false);
    prints[3][1].hash[2] ^= 1;
    expect(&mesh, 30,
           "after step 40: the second moment of lm_head.weight (unit 3) unlike on ranks 1 and 3, too few");
    expect(&mesh, 30, "equal after step 30");
    expect(&mesh, -1, "not compared before");
}

static void a_majority_decides(void **state) {
    (void)state;
    Mesh mesh = mesh_of(1, 4, 2);
    fill(&mesh, false);
    prints[5][0].hash[0] ^= 1;
    expect(&mesh, 30, "the weights of model.embed_tokens.weight (unit 0) on rank 5 not as on ranks 1, 3, 7");
    prints[1][0].hash[0] ^= 2; /* 3 and 7 are no longer a majority */
    expect(&mesh, 30, "unlike on ranks 1, 3, 5 and 7");
    Mesh three = mesh_of(1, 3, 1);
    fill(&three, false);
    prints[0][0].hash[1] ^= 1;
    expect(&three, 30,
           "the first moment of model.embed_tokens.weight (unit 0) on rank 0 not as on ranks 1, 2");
}

static void a_tied_copy_is_one(void **state) {
    (void)state;
    Mesh mesh = mesh_of(3, 1, 2);
    fill(&mesh, true);
    prints[5][0].hash[0] ^= 1;
    expect(&mesh, 30, "ranks 1 and 5");
    Mesh two = mesh_of(2, 2, 1);
    fill(&two, true);
    prints[2][0].hash[0] ^= 1;
    expect(&two, 30, "on rank 2 not as on ranks 0, 1, 3");
}

/* Data without replicas may be anything: nothing says what it should be. */
static void what_exists_once_is_not_judged(void **state) {
    (void)state;
    Mesh mesh = mesh_of(1, 1, 4);
    fill(&mesh, false);
    prints[2][0].hash[0] ^= 1;
    assert_int_equal(judge(&mesh, 3), OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_copies_pass),
        cmocka_unit_test(two_copies_are_both_named),
        cmocka_unit_test(a_majority_decides),
        cmocka_unit_test(a_tied_copy_is_one),
        cmocka_unit_test(what_exists_once_is_not_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
