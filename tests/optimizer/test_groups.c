/* The table of optimizers, and who is in which group with what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "support/optimizers.h"
#include "support/tiny_model.h"

static ParamTable table;

static int setup(void **state) {
    Error err;
    ModelConfig c = tiny_model(50, 2, 16);
    c.attention_bias = true;
    (void)state;
    return param_table_build(&table, &c, &err) == OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    param_table_free(&table);
    return 0;
}

static int index_of(const char *name) {
    const Param *p = param_find(&table, name);
    assert_non_null(p);
    return (int)(p - table.params);
}

static OptimizerOptions options_of(OptimizerGroup *groups, size_t count) {
    OptimizerOptions o = usual_optimizer;
    o.groups = (ObjectList){count, (char *)groups};
    return o;
}

/* ---- the table ---- */

/* Each has the name that optimizer.kind knows it by, ops that move weights, and states with names of their
 * own. */
static void table_is_whole(void **state) {
    (void)state;
    const Option *kind = optimizer_options;
    while (strcmp(kind->key, "optimizer.kind") != 0) kind++;
    for (int k = 0; k < OPTIMIZER_KINDS; k++) {
        char name[64];
        const Optimizer *o = optimizer_of((OptimizerKind)k);
        OptimizerSettings s = USUAL_SETTINGS;
        s.kind = k;
        assert_string_equal(options_choice_name(kind, k, name), o->name);
        assert_true(o->flops > 0 && o->states(&s) <= OPTIMIZER_STATES);
        for (int i = 0; i < o->states(&s); i++) {
            assert_non_null(o->state[i].name);
            assert_non_null(o->state[i].title);
            assert_true(i == 0 || strcmp(o->state[i].name, o->state[0].name) != 0);
        }
        assert_int_equal(optimizer_state_bytes(&s), 4 * (size_t)o->states(&s));
        s.states = DTYPE_BF16;
        assert_int_equal(optimizer_state_bytes(&s), 2 * (size_t)o->states(&s));
    }
    char name[64];
    assert_string_equal(options_choice_name(kind, OPTIMIZER_KINDS, name), "");
}

static void updates_move_weights(void **state) {
    (void)state;
    enum { N = 40 };
    static _Alignas(64) char scratch[4096];
    const Param of = {
        .rows = 4, .cols = 10, .fused = 1, .count = N, .matrix_count = 1, .matrices = {{0, 4, 10, 10}}};
    Device d;
    Error err;
    assert_int_equal(device_open_cpu(&d, NULL, 1, &err), OK);
    for (int k = 0; k < OPTIMIZER_KINDS; k++) {
        float p[N], g[N], states[OPTIMIZER_STATES][N] = {{0}};
        OptimizerSettings s = USUAL_SETTINGS;
        const Optimizer *o = optimizer_of((OptimizerKind)k);
        UpdateStep step = {.lr_factor = 0.01, .clip_coefficient = 1, .updates = 1};
        UpdateRun run = {N, p, g, {states[0], states[1]}, NULL, 0, {.type = DTYPE_F32}, &of, scratch};
        OptimizerStep of_step = optimizer_step(&s, &step);
        assert_true(optimizer_scratch_bytes(o, &of) <= sizeof scratch);
        for (int i = 0; i < N; i++) p[i] = 1, g[i] = i % 2 ? 0.5f : -0.5f;
        o->update(&d, &s, &of_step, &run);
        device_finish(&d, device_mark(&d, ON_COMPUTE), WAIT_RESULT);
        for (int i = 0; i < N; i++) assert_true(i % 2 ? p[i] < 1 : p[i] > 1);
        for (int i = 0; i < o->states(&s); i++) assert_true(states[i][3] > 0);
    }
    device_close(&d);
}

/* Without momentum nothing is kept. */
static void momentum_zero_keeps_nothing(void **state) {
    (void)state;
    OptimizerSettings s = USUAL_SETTINGS;
    s.kind = OPTIMIZER_SGD;
    assert_int_equal(optimizer_state_bytes(&s), 4);
    s.momentum = 0;
    assert_int_equal(optimizer_state_bytes(&s), 0);
}

/* ---- groups ---- */

static void first_match_wins(void **state) {
    (void)state;
    Error err;
    ParamGroups g;
    OptimizerGroup groups[] = {group_of("layers\\.1\\..*mlp"), group_of("mlp"), group_of("^lm_head")};
    OptimizerOptions o = options_of(groups, 3);
    if (param_groups_build(&g, &o, &table, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(g.of[index_of("model.layers.1.mlp.up_proj.weight")], 0);
    assert_int_equal(g.of[index_of("model.layers.0.mlp.up_proj.weight")], 1);
    assert_int_equal(g.of[index_of("lm_head.weight")], 2);
    assert_int_equal(g.of[index_of("model.embed_tokens.weight")], 3);
    assert_int_equal(g.of[index_of("model.layers.1.input_layernorm.weight")], 3);
    assert_int_equal(g.items[0].params, 3);
    assert_int_equal(g.items[0].elements, 3 * 20 * 28);
    assert_int_equal(g.items[0].elements + g.items[1].elements + g.items[2].elements + g.items[3].elements,
                     table.elements);
    param_groups_free(&g);
}

/* A group has what it says, and else what the section says; its own weight decay is for vectors too. */
static void settings_are_completed(void **state) {
    (void)state;
    Error err;
    ParamGroups g;
    OptimizerGroup groups[] = {group_of("mlp"), group_of("norm"), group_of("bias")};
    groups[0].settings.lr = 0.25, groups[0].settings.states = DTYPE_BF16;
    groups[1].settings.kind = OPTIMIZER_SGD, groups[1].settings.weight_decay = 0.5;
    OptimizerOptions o = options_of(groups, 3);
    if (param_groups_build(&g, &o, &table, &err) != OK) fail_msg("%s", err.message);
    const OptimizerSettings *mlp = &g.items[0].settings, *norm = &g.items[1].settings;
    assert_true(mlp->lr == 0.25 && mlp->kind == OPTIMIZER_ADAMW && mlp->beta2 == 0.95 && mlp->eps == 1e-8);
    assert_true(norm->lr == 1 && norm->kind == OPTIMIZER_SGD && norm->momentum == 0.9 && norm->nesterov == 0);
    int up = index_of("model.layers.0.mlp.up_proj.weight"), last = index_of("model.norm.weight"),
        bias = index_of("model.layers.0.self_attn.q_proj.bias");
    assert_true(param_state_width(&g, up, 0) == 2 && param_state_bytes(&g, up) == 4 &&
                param_states(&g, up) == 2);
    assert_true(param_state_width(&g, last, 0) == 4 && param_state_bytes(&g, last) == 4);
    assert_true(param_weight_decay(&g, up, &table.params[up]) == 0.1);
    assert_true(param_weight_decay(&g, last, &table.params[last]) == 0.5);
    assert_true(param_weight_decay(&g, bias, &table.params[bias]) == 0);
    param_groups_free(&g);
    o.decay = DECAY_ALL;
    assert_int_equal(param_groups_build(&g, &o, &table, &err), OK);
    assert_true(param_weight_decay(&g, index_of("lm_head.weight"), param_find(&table, "lm_head.weight")) ==
                0.1);
    param_groups_free(&g);
}

static void refused(OptimizerGroup *groups, size_t count, const char *words) {
    Error err = {.message = ""};
    ParamGroups g;
    OptimizerOptions o = options_of(groups, count);
    assert_int_equal(param_groups_build(&g, &o, &table, &err), ERR_CONFIG);
    if (!strstr(err.message, words)) fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void what_has_no_effect_is_refused(void **state) {
    (void)state;
    OptimizerGroup none[] = {group_of("mlp"), group_of("experts")};
    refused(none, 2, "optimizer.groups[1].match: no parameter has \"experts\" in its name");
    OptimizerGroup hidden[] = {group_of("mlp"), group_of("up_proj")};
    refused(hidden, 2,
            "optimizer.groups[1].match: the 2 parameters that have \"up_proj\" in their names are in");
    OptimizerGroup broken[] = {group_of("mlp("), group_of("norm")};
    refused(broken, 2, "optimizer.groups[0].match: \"mlp(\" is no regular expression: missing closing");
    OptimizerGroup idle[] = {group_of("mlp")};
    idle[0].settings.momentum = 0.5;
    refused(idle, 1, "optimizer.groups[0].momentum: adamw does not read it, only lr, weight_decay, beta1");
    OptimizerGroup slow[] = {group_of("(a|e|o|[a-z._0-9])*$1")};
    refused(slow, 1, "optimizer.groups[0].match: ");
}

/* Nothing reads a setting of what is not trained, and a run has to train something. */
static void freezing_is_checked(void **state) {
    (void)state;
    OptimizerGroup idle[] = {group_of("mlp")}, all[] = {group_of(".")}, some[] = {group_of("mlp")};
    ParamGroups g;
    Error err;
    idle[0].frozen = all[0].frozen = some[0].frozen = 1;
    idle[0].settings.lr = 1;
    refused(idle, 1, "optimizer.groups[0].lr: the group is frozen");
    refused(all, 1, "every parameter is frozen");
    OptimizerOptions o = options_of(some, 1);
    assert_int_equal(param_groups_build(&g, &o, &table, &err), OK);
    int mlp = index_of("model.layers.0.mlp.up_proj.weight");
    assert_true(param_group(&g, mlp)->frozen && !param_group(&g, index_of("model.norm.weight"))->frozen);
    assert_int_equal(param_states(&g, mlp), 0);
    assert_int_equal(param_state_bytes(&g, mlp), 0);
    param_groups_free(&g);
}

/* Muon has the matrices of blocks, whole; AdamW the rest of its group, with the same settings. */
static void muon_leaves_the_rest_to_adamw(void **state) {
    (void)state;
    Error err;
    ParamGroups g;
    OptimizerGroup groups[] = {group_of("layers\\.0\\."), group_of("layers\\.1.*norm")};
    groups[0].settings.kind = OPTIMIZER_MUON, groups[0].settings.lr = 0.25;
    OptimizerOptions o = options_of(groups, 2);
    o.settings.kind = OPTIMIZER_MUON;
    groups[1].settings.kind = OPTIMIZER_ADAMW;
    if (param_groups_build(&g, &o, &table, &err) != OK) fail_msg("%s", err.message);
    static const struct {
        const char *name;
        OptimizerKind kind;
        double lr;
    } want[] = {{"model.layers.0.mlp.up_proj.weight", OPTIMIZER_MUON, 0.25},
                {"model.layers.0.self_attn.q_proj.bias", OPTIMIZER_ADAMW, 0.25},
                {"model.layers.0.input_layernorm.weight", OPTIMIZER_ADAMW, 0.25},
                {"model.layers.1.input_layernorm.weight", OPTIMIZER_ADAMW, 1},
                {"model.layers.1.mlp.up_proj.weight", OPTIMIZER_MUON, 1},
                {"model.layers.1.self_attn.o_proj.bias", OPTIMIZER_ADAMW, 1},
                {"model.embed_tokens.weight", OPTIMIZER_ADAMW, 1},
                {"lm_head.weight", OPTIMIZER_ADAMW, 1},
                {"model.norm.weight", OPTIMIZER_ADAMW, 1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int at = index_of(want[i].name);
        const ParamGroup *group = param_group(&g, at);
        bool muon = want[i].kind == OPTIMIZER_MUON;
        if (group->optimizer != optimizer_of(want[i].kind) || group->settings.lr != want[i].lr)
            fail_msg("%s has %s with %g", want[i].name, group->optimizer->name, group->settings.lr);
        assert_int_equal(param_stays_whole(&g, at, &table.params[at]), muon);
        assert_int_equal(param_scratch_bytes(&g, at, &table.params[at]) > 0, muon);
        assert_int_equal(param_states(&g, at), muon ? 1 : 2);
    }
    int64_t elements = 0;
    int params = 0;
    for (int i = 0; i < g.count; i++) elements += g.items[i].elements, params += g.items[i].params;
    assert_true(elements == table.elements && params == table.count && g.count == 5);
    assert_true(param_groups_need_matrices(&g));
    param_groups_free(&g);
}

static void muon_without_matrices_is_refused(void **state) {
    (void)state;
    OptimizerGroup none[] = {group_of("embed|norm")};
    none[0].settings.kind = OPTIMIZER_MUON;
    refused(none, 1,
            "optimizer.groups[0].kind: muon is for the matrices of blocks, and \"embed|norm\" finds none");
    OptimizerGroup cut[] = {group_of("mlp")};
    cut[0].settings.kind = OPTIMIZER_MUON, cut[0].whole = 0;
    refused(cut, 1, "optimizer.groups[0].whole: muon sees whole matrices");
    OptimizerGroup beta[] = {group_of("mlp")};
    beta[0].settings.kind = OPTIMIZER_MUON, beta[0].settings.beta1 = 0.5;
    refused(beta, 1, "optimizer.groups[0].beta1: muon does not read it, only lr, weight_decay, momentum");
}

static void tables_name_everything(void **state) {
    (void)state;
    Error err;
    ParamGroups g;
    Text out = {0}, states = {0};
    OptimizerGroup storage[3];
    OptimizerOptions o = mixed_optimizer(storage);
    assert_int_equal(param_groups_build(&g, &o, &table, &err), OK);
    param_groups_name_states(&g, &states);
    assert_string_equal(states.data, "sgd momentum bf16, adamw moments bf16, adamw moments fp32");
    param_groups_print(&g, &table, true, &out);
    for (int i = 0; i < table.count; i++) assert_non_null(strstr(out.data, table.params[i].name));
    assert_non_null(strstr(out.data, "momentum 0.9, nesterov true"));
    assert_non_null(strstr(out.data, "beta1 0.9, beta2 0.99"));
    text_free(&out);
    text_free(&states);
    param_groups_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_whole),
        cmocka_unit_test(updates_move_weights),
        cmocka_unit_test(momentum_zero_keeps_nothing),
        cmocka_unit_test(first_match_wins),
        cmocka_unit_test(settings_are_completed),
        cmocka_unit_test(what_has_no_effect_is_refused),
        cmocka_unit_test(freezing_is_checked),
        cmocka_unit_test(muon_leaves_the_rest_to_adamw),
        cmocka_unit_test(muon_without_matrices_is_refused),
        cmocka_unit_test(tables_name_everything),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
