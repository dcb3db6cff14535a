/* Families as data: every entry is walked, and one made up here shows that an entry is all it takes. */
#include "support/files.h"

#include <math.h>
#include <stdio.h>

#include "model/families/family.h"
#include "model/unit.h"
#include "support/shapes.h"

static ModelConfig shape_of(const Family *f, const PublishedSize *s) {
    ModelConfig c = family_defaults(f, &f->defaults);
    c.vocab_size = s->vocab_size;
    c.hidden_size = s->hidden_size;
    c.intermediate_size = s->intermediate_size;
    c.num_hidden_layers = s->num_hidden_layers;
    c.num_attention_heads = s->num_attention_heads;
    c.num_key_value_heads = s->num_key_value_heads;
    c.head_dim = s->head_dim;
    c.tie_word_embeddings = s->tied;
    return c;
}

/* Exactly as many parameters as were published, from the shape alone and from the table; what is written
 * reads back to the same shape. */
static void check_size(const Family *f, const PublishedSize *s) {
    Error err = {0};
    ParamTable t;
    Text text = {0};
    ModelConfig c = shape_of(f, s), back;
    if (model_config_complete(&c, s->name, &err) != OK) fail_msg("%s", err.message);
    if (model_parameter_count(&c) != s->parameters)
        fail_msg("%s has %lld parameters, not %lld", s->name, (long long)model_parameter_count(&c),
                 (long long)s->parameters);
    assert_int_equal(param_table_build(&t, &c, &err), OK);
    assert_int_equal(t.elements, s->parameters);
    param_table_free(&t);
    model_config_write(&c, "bfloat16", &text);
    if (model_config_read(&back, files_text("config.json", text.data), &err) != OK)
        fail_msg("%s", err.message);
    assert_ptr_equal(back.family, f);
    clear_shape_padding(&c);
    clear_shape_padding(&back);
    assert_memory_equal(&c, &back, sizeof c);
    assert_ptr_equal(family_published(&back), s);
    back.hidden_size += 2;
    assert_null(family_published(&back));
    text_free(&text);
}

static void published_sizes_are_met(void **state) {
    (void)state;
    for (int i = 0; families[i]; i++)
        for (const PublishedSize *s = families[i]->sizes; s && s->name; s++) check_size(families[i], s);
}

/* What a family asks of its entry: keys that it may leave out have defaults, and each is told once. */
static void entries_are_whole(void **state) {
    (void)state;
    for (int i = 0; families[i]; i++) {
        const Family *f = families[i];
        assert_true(f->model_type && f->architecture && f->sizes);
        for (int k = 0; f->keys[k].name; k++) {
            for (int j = 0; j < k; j++) {
                assert_string_not_equal(f->keys[j].name, f->keys[k].name);
                if (f->keys[k].offset) assert_int_not_equal(f->keys[j].offset, f->keys[k].offset);
            }
        }
        for (int j = 0; j < i; j++) assert_string_not_equal(families[j]->model_type, f->model_type);
    }
}

/* ---- a family of this test's own ---- */

#define AT(field) offsetof(ModelConfig, field)
static const KeyRule other_keys[] = {
    {"n_vocab", KEY_SIZE, AT(vocab_size), true},
    {"width", KEY_SIZE, AT(hidden_size), true},
    {"inner", KEY_SIZE, AT(intermediate_size), true},
    {"depth", KEY_SIZE, AT(num_hidden_layers), true},
    {"heads", KEY_SIZE, AT(num_attention_heads), true},
    {"layer_norm_epsilon", KEY_NUMBER, AT(rms_norm_eps), false},
    {"resid_pdrop", KEY_ZERO, 0, false},
    {.name = NULL},
};
static const NameRule other_names[] = {
    {"model.embed_tokens.weight", "wte.weight"},
    {"post_attention_layernorm.weight", "ln_2.weight"},
    {.row = NULL},
};
static const Family other = {
    .model_type = "other",
    .architecture = "OtherForCausalLM",
    .defaults = {.max_position_embeddings = 77,
                 .rms_norm_eps = 1e-3,
                 .rope_theta = 500,
                 .rope_scaling = ROPE_NONE,
                 .tie_word_embeddings = true,
                 .bos_token_id = 900,
                 .eos_token_id = 5},
    .keys = other_keys,
    .names = other_names,
    .blocks = "stack.",
};

static ErrorCode read_other(ModelConfig *c, const char *text, Error *err) {
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    ErrorCode code = family_read(&other, c, root, "other.json", err);
    cJSON_Delete(root);
    return code;
}

static void an_entry_is_all_it_takes(void **state) {
    (void)state;
    Error err = {0};
    ModelConfig c;
    ParamTable t;
    Text text = {0};
    const char *file = "{\"n_vocab\":100,\"width\":64,\"inner\":96,\"depth\":2,\"heads\":4,"
                       "\"layer_norm_epsilon\":0.5,\"num_key_value_heads\":2}";
    if (read_other(&c, file, &err) != OK) fail_msg("%s", err.message);
    assert_true(c.tie_word_embeddings && c.rms_norm_eps == 0.5 && c.rope_theta == 500);
    assert_int_equal(c.max_position_embeddings, 77);
    assert_int_equal(c.num_key_value_heads, 4); /* a key of another family */
    assert_int_equal(c.bos_token_id, -1);       /* the default is beyond so small a vocabulary */
    assert_int_equal(c.eos_token_id, 5);
    assert_int_equal(param_table_build(&t, &c, &err), OK);
    assert_non_null(param_find(&t, "wte.weight"));
    assert_non_null(param_find(&t, "stack.1.ln_2.weight"));
    assert_non_null(param_find(&t, "stack.1.input_layernorm.weight"));
    assert_null(param_find(&t, "model.embed_tokens.weight"));
    param_table_free(&t);
    model_config_write(&c, "float32", &text);
    assert_non_null(strstr(text.data, "\"OtherForCausalLM\""));
    assert_non_null(strstr(text.data, "\"resid_pdrop\": 0.0"));
    assert_null(strstr(text.data, "hidden_size"));
    text_free(&text);
}

static void what_an_entry_refuses_is_named(void **state) {
    (void)state;
    Error err = {0};
    ModelConfig c = {0};
    assert_int_equal(read_other(&c, "{\"n_vocab\":100,\"width\":64,\"inner\":96,\"heads\":4}", &err),
                     ERR_DATA);
    assert_non_null(strstr(err.message, "other.json: "));
    assert_non_null(strstr(err.message, "depth"));
    assert_int_equal(read_other(&c,
                                "{\"n_vocab\":9,\"width\":64,\"inner\":96,\"depth\":2,\"heads\":4,"
                                "\"resid_pdrop\":0.1}",
                                &err),
                     ERR_CONFIG);
    assert_non_null(strstr(err.message, "resid_pdrop is 0.1"));
    assert_int_equal(read_other(&c, "{\"architectures\":[\"LlamaForCausalLM\"]}", &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "OtherForCausalLM"));
    assert_int_equal(c.vocab_size, 0); /* nothing was taken */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_sizes_are_met), cmocka_unit_test(entries_are_whole),
        cmocka_unit_test(an_entry_is_all_it_takes), cmocka_unit_test(what_an_entry_refuses_is_named)};
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
