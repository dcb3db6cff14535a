/* The parameter table: published sizes, names, and the invariants of its layout. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/find.h"
#include "model/params.h"
#include "config/config.h"

static ModelConfig shape_of(const char *name, OptionSet *set, Config *c) {
    char path[512];
    Error err = {0};
    snprintf(path, sizeof path, "%s/configs/%s.yaml", WEFT_SOURCE_DIR, name);
    if (config_load(c, set, path, 0, NULL, checkpoint_find_shape, &err) != OK)
        fail_msg("%s: %s", name, err.message);
    if (c->model.shape.vocab_size == 0) c->model.shape.vocab_size = 4096;
    if (model_config_complete(&c->model.shape, name, &err) != OK) fail_msg("%s: %s", name, err.message);
    return c->model.shape;
}

static void test_shipped_sizes(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t parameters;
        double flops_8192; /* TorchTitan's formula: attention not halved for causality, head counted */
    } sizes[] = {{"llama3-debug", 6163712, 0},
                 {"llama3-1b", 1235814400, 10.636e9},
                 {"llama3-3b", 3212749824, 27.732e9},
                 {"llama3-8b", 8030261248, 57.914e9},
                 {"llama3-70b", 70553706496, 481.443e9},
                 {"llama3-405b", 405853388800, 2625.449e9},
                 {"lingua-1b", 0, 0},
                 {"lingua-7b", 0, 0},
                 {"demo", 0, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Config c;
        OptionSet set;
        ParamTable t;
        Error err = {0};
        ModelConfig m = shape_of(sizes[i].name, &set, &c);
        assert_int_equal(param_table_build(&t, &m, &err), OK);
        assert_int_equal(t.elements, model_parameter_count(&m));
        if (sizes[i].parameters) assert_int_equal(t.elements, sizes[i].parameters);
        if (sizes[i].flops_8192 > 0) {
            double attention =
                6.0 * (double)(m.num_hidden_layers * m.num_attention_heads * m.head_dim) * 8192;
            double titan = model_flops_per_token(&m, 8192) + attention;
            assert_true(fabs(titan / sizes[i].flops_8192 - 1) < 1e-4);
        }
        param_table_free(&t);
        options_free(&set);
    }
}

static ErrorCode complete_with(const Option *o, double value, Error *err) {
    Config c;
    OptionSet set;
    char number[32];
    Text word = {0};
    text_printf(&word, "%s=%s", o->key, o->type == OPT_INT ? "" : text_double(value, number));
    if (o->type == OPT_INT) text_printf(&word, "%lld", (long long)value);
    if (config_load(&c, &set, NULL, 1, (const char *const[]){word.data}, checkpoint_find_shape, err) != OK)
        fail_msg("%s", err->message);
    if (c.model.shape.vocab_size == 0) c.model.shape.vocab_size = 256;
    ErrorCode code = model_config_complete(&c.model.shape, "model", err);
    text_free(&word);
    options_free(&set);
    return code;
}

/* A value that the option table accepts is accepted by the shape too: only contradictory values remain. */
static void test_declared_ranges(void **state) {
    int seen = 0;
    (void)state;
    for (const Option *o = config_options(); o->key; o++) {
        if (strncmp(o->key, "model.", 6) != 0 || (o->type != OPT_INT && o->type != OPT_DOUBLE)) continue;
        const double ends[] = {o->min, o->max};
        for (int i = 0; i < 2; i++) {
            Error err = {0};
            bool refused = complete_with(o, ends[i], &err) != OK;
            if (refused && strstr(err.message, "expected a number") && strstr(err.message, o->key + 6))
                fail_msg("%s at %g: %s", o->key, ends[i], err.message);
        }
        seen++;
    }
    assert_true(seen > 10);
}

/* Lingua publishes its sizes without the embedding. */
static void test_lingua_sizes(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t blocks_and_head;
    } sizes[] = {{"lingua-1b", 1284610048}, {"lingua-7b", 6476271616}};
    for (size_t i = 0; i < 2; i++) {
        Config c;
        OptionSet set;
        ModelConfig m = shape_of(sizes[i].name, &set, &c);
        assert_int_equal(model_parameter_count(&m) - 2 * m.vocab_size * m.hidden_size,
                         sizes[i].blocks_and_head);
        options_free(&set);
    }
}

static ModelConfig odd_shape(bool tied, bool biases) {
    return (ModelConfig){.vocab_size = 33,
                         .hidden_size = 12,
                         .intermediate_size = 21,
                         .num_hidden_layers = 3,
                         .num_attention_heads = 3,
                         .num_key_value_heads = 1,
                         .head_dim = 6,
                         .tie_word_embeddings = tied,
                         .attention_bias = biases,
                         .mlp_bias = biases};
}

static void check_layout(bool tied, bool biases) {
    ParamTable t;
    Error err = {0};
    ModelConfig c = odd_shape(tied, biases);
    assert_int_equal(param_table_build(&t, &c, &err), OK);
    assert_int_equal(t.units, 5);
    for (int i = 0; i < t.count; i++) {
        const Param *p = &t.params[i];
        const Param *before = i > 0 && t.params[i - 1].unit == p->unit ? &t.params[i - 1] : NULL;
        if (before && before->flat != p->flat) {
            assert_true(before->flat < p->flat);
            before = NULL;
        }
        if (p->row->continues)
            assert_true(before && p->offset == before->offset + (size_t)before->count);
        else
            assert_int_equal(p->offset % 16, 0);
        assert_true((p->cols == 0) == flat_of_vectors(p->flat));
        assert_true(p->offset + (size_t)p->count <= t.flats[p->unit][p->flat]);
        assert_true(before ? p->offset >= before->offset + (size_t)before->count : p->offset == 0);
        assert_ptr_equal(param_find(&t, p->name), p);
        assert_ptr_equal(param_of(&t, p->unit, p->row), p);
        for (int j = 0; j < i; j++) assert_string_not_equal(p->name, t.params[j].name);
    }
    assert_true((param_find(&t, "lm_head.weight") == NULL) == tied);
    assert_true((param_find(&t, "model.layers.2.self_attn.o_proj.bias") != NULL) == biases);
    assert_null(param_find(&t, "model.layers.3.mlp.up_proj.weight"));
    param_table_free(&t);
}

static void test_layout(void **state) {
    (void)state;
    for (int v = 0; v < 4; v++) check_layout(v & 1, v & 2);
}

static void test_initialisers(void **state) {
    (void)state;
    ParamTable t;
    Error err = {0};
    ModelConfig c = odd_shape(false, true);
    assert_int_equal(param_table_build(&t, &c, &err), OK);
    InitRule embed = param_init_rule(param_find(&t, "model.embed_tokens.weight"), &c, INIT_TORCHTITAN, 0.02);
    assert_true(embed.std == 1 && isinf(embed.hi));
    InitRule down =
        param_init_rule(param_find(&t, "model.layers.1.mlp.down_proj.weight"), &c, INIT_TORCHTITAN, 0.02);
    assert_true(fabs(down.std - 0.02 / 2) < 1e-15 && fabs(down.std * down.hi - 2) < 1e-12);
    InitRule out =
        param_init_rule(param_find(&t, "model.layers.1.self_attn.o_proj.weight"), &c, INIT_LINGUA, 0.02);
    assert_true(fabs(out.std - 1 / sqrt(12.0) / sqrt(8.0)) < 1e-15 && out.hi == 3);
    InitRule norm = param_init_rule(param_find(&t, "model.norm.weight"), &c, INIT_LINGUA, 0.02);
    assert_true(norm.std == 0 && norm.value == 1);
    InitRule bias =
        param_init_rule(param_find(&t, "model.layers.0.self_attn.q_proj.bias"), &c, INIT_NORMAL, 0.02);
    assert_true(bias.std == 0 && bias.value == 0);
    param_table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_declared_ranges),
                                       cmocka_unit_test(test_shipped_sizes),
                                       cmocka_unit_test(test_lingua_sizes), cmocka_unit_test(test_layout),
                                       cmocka_unit_test(test_initialisers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
