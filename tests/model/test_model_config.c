/* config.json: both dialects, defaults, contradictions, refusals, and writing. */
#include "support/files.h"

#include <math.h>

#include "model/config.h"
#include "model/rotation.h"
#include "support/shapes.h"

#define SIZES                                                                                          \
    "\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":176,\"num_" \
    "hidden_layers\":3,"                                                                               \
    "\"num_attention_heads\":4"

static ErrorCode read_text(ModelConfig *c, const char *text, Error *err) {
    return model_config_read(c, files_text("config.json", text), err);
}

static void accept(ModelConfig *c, const char *text) {
    Error err = {.message = ""};
    if (read_text(c, text, &err) != OK) fail_msg("%s: %s", text, err.message);
}

/* Expects a refusal whose message contains `named`. */
static void refuse(const char *text, const char *named) {
    ModelConfig c;
    Error err = {.message = ""};
    ErrorCode code = read_text(&c, text, &err);
    if (code == OK) fail_msg("accepted: %s", text);
    assert_int_equal(code, err.code);
    if (strstr(err.message, named) == NULL) fail_msg("\"%s\" does not name %s", err.message, named);
}

static void defaults_are_those_of_transformers(void **state) {
    (void)state;
    ModelConfig c;
    accept(&c, "{" SIZES "}");
    assert_int_equal(c.num_key_value_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.max_position_embeddings, 2048);
    assert_true(fabs(c.rms_norm_eps - 1e-6) < 1e-18);
    assert_true(fabs(c.rope_theta - 10000.0) < 1e-9);
    assert_true(fabs(c.rope_scaling.factor - 1.0) < 1e-12);
    assert_false(c.tie_word_embeddings || c.attention_bias || c.mlp_bias);
    assert_int_equal(c.bos_token_id, 1);
    assert_int_equal(c.eos_token_id, 2);
}

static void null_means_absent(void **state) {
    (void)state;
    ModelConfig c;
    accept(&c, "{" SIZES
               ",\"num_key_value_heads\":null,\"head_dim\":null,\"rope_scaling\":null,\"bos_token_id\":null,"
               "\"eos_token_id\":null,\"pad_token_id\":null,\"transformers_version\":\"4.57.1\"}");
    assert_int_equal(c.num_key_value_heads, 4);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.eos_token_id, -1);
}

static void eos_may_be_a_list(void **state) {
    (void)state;
    ModelConfig c;
    accept(&c, "{" SIZES ",\"eos_token_id\":[7,8,9]}");
    assert_int_equal(c.eos_token_id, 7);
}

static void check_llama3(const ModelConfig *c) {
    assert_true(fabs(c->rope_theta - 500000.0) < 1e-9);
    assert_true(fabs(c->rope_scaling.factor - 8.0) < 1e-12);
    assert_true(fabs(c->rope_scaling.low_freq_factor - 1.0) < 1e-12);
    assert_true(fabs(c->rope_scaling.high_freq_factor - 4.0) < 1e-12);
    assert_int_equal(c->rope_scaling.original_max_position_embeddings, 8192);
}

#define LLAMA3                                                                                  \
    "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0," \
    "\"original_max_position_embeddings\":8192"

static void both_dialects_of_rope(void **state) {
    (void)state;
    ModelConfig c;
    accept(&c,
           "{" SIZES ",\"rope_theta\":500000.0,\"rope_scaling\":{" LLAMA3 "},\"torch_dtype\":\"bfloat16\"}");
    check_llama3(&c);
    accept(&c, "{" SIZES ",\"rope_parameters\":{\"rope_theta\":500000.0," LLAMA3 "},\"dtype\":\"bfloat16\"}");
    check_llama3(&c);
    accept(&c,
           "{" SIZES ",\"rope_theta\":500000.0,\"rope_parameters\":{\"rope_theta\":500000.0," LLAMA3 "}}");
    check_llama3(&c);
    accept(&c, "{" SIZES ",\"rope_scaling\":{\"type\":\"default\"}}");
}

static void contradictions_are_refused(void **state) {
    (void)state;
    refuse("{" SIZES
           ",\"rope_theta\":10000.0,\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"default\"}}",
           "rope_theta");
    refuse("{" SIZES ",\"rope_scaling\":{" LLAMA3 "},\"rope_parameters\":{\"rope_type\":\"default\"}}",
           "rope_scaling");
    refuse("{" SIZES ",\"torch_dtype\":\"float32\",\"dtype\":\"bfloat16\"}", "dtype");
    refuse("{" SIZES ",\"rope_scaling\":{\"type\":\"default\"," LLAMA3 "}}", "rope_type");
}

static void other_families_are_refused_by_name(void **state) {
    (void)state;
    refuse("{\"model_type\":\"mamba\"}", "mamba");
    refuse("{" SIZES ",\"architectures\":[\"LlamaForSequenceClassification\"]}",
           "LlamaForSequenceClassification");
    refuse("{" SIZES ",\"hidden_act\":\"gelu\"}", "gelu");
    refuse("{" SIZES ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2.0}}", "longrope");
    refuse("{" SIZES ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}}",
           "partial_rotary_factor");
    refuse("{" SIZES ",\"attention_dropout\":0.1}", "attention_dropout");
    refuse("{" SIZES ",\"quantization_config\":{\"bits\":4}}", "quantization_config");
    refuse("{\"model_type\":\"\\u001b[31m\"}", "\\x1B[31m");
}

static void bad_values_are_refused(void **state) {
    (void)state;
    refuse("[]", "object");
    refuse("{", "config.json");
    refuse("{\"model_type\":\"llama\"}", "vocab_size");
    refuse("{" SIZES ",\"hidden_size\":64}", "duplicate key");
    refuse("{" SIZES ",\"num_key_value_heads\":3}", "num_key_value_heads");
    refuse("{" SIZES ",\"num_key_value_heads\":0}", "num_key_value_heads");
    refuse("{" SIZES ",\"head_dim\":15}", "head_dim");
    refuse("{" SIZES ",\"head_dim\":-16}", "head_dim");
    refuse("{" SIZES ",\"head_dim\":16.5}", "head_dim");
    refuse("{" SIZES ",\"rms_norm_eps\":\"small\"}", "rms_norm_eps");
    refuse("{" SIZES ",\"rms_norm_eps\":-1e-5}", "rms_norm_eps");
    refuse("{" SIZES ",\"rope_theta\":0}", "rope_theta");
    refuse("{" SIZES ",\"tie_word_embeddings\":1}", "tie_word_embeddings");
    refuse("{" SIZES ",\"bos_token_id\":1000}", "bos_token_id");
    refuse("{" SIZES ",\"eos_token_id\":\"</s>\"}", "eos_token_id");
    refuse("{" SIZES ",\"eos_token_id\":[[1]]}", "eos_token_id");
    refuse("{" SIZES ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}", "low_freq_factor");
    refuse("{" SIZES ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,"
           "\"high_freq_factor\":1.0,\"original_max_position_embeddings\":64}}",
           "low_freq_factor");
}

#define CONFIG_OF(type)                                                                           \
    "{\"model_type\":\"" type "\",\"vocab_size\":50,\"hidden_size\":32,\"intermediate_size\":48," \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":8"
#define YARN_OF(original) "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0" original "}"

/* RoPE keys in other places than their object, as transformers 5 reads them: the root's original context
 * counts, and repeated numbers must agree. */
static void rotation_is_read_as_transformers_reads_it(void **state) {
    (void)state;
    ModelConfig c;
    accept(&c, CONFIG_OF("llama") ",\"original_max_position_embeddings\":16," YARN_OF("") "}");
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 16);
    accept(&c, CONFIG_OF("llama") "," YARN_OF(",\"original_max_position_embeddings\":24") "}");
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 24);
    refuse(CONFIG_OF("llama") ",\"original_max_position_embeddings\":16," YARN_OF(
               ",\"original_max_position_embeddings\":24") "}",
           "original_max_position_embeddings is given twice");
    accept(&c,
           CONFIG_OF(
               "llama") ",\"original_max_position_embeddings\":16,\"rope_scaling\":{\"rope_type\":\"llama3\","
                        "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0}}");
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 16);
    refuse(CONFIG_OF("llama") "," YARN_OF(",\"attention_factor\":0.0") "}", "attention_factor");
    refuse(
        CONFIG_OF("llama") ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0},\"rope_parameters\":{"
                           "\"rope_type\":\"linear\",\"factor\":2.0,\"rope_theta\":50.0}}",
        "contradict");
    refuse(
        CONFIG_OF("llama") ",\"rope_theta\":20.0,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0,"
                           "\"rope_theta\":50.0}}",
        "rope_theta is given twice");
    accept(
        &c,
        CONFIG_OF(
            "llama") ",\"rope_theta\":50.0,\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"linear\","
                     "\"factor\":2.0}}");
    assert_true(c.rope_scaling.factor == 2 && c.rope_theta == 50);
}

/* With objects by kind of layer, transformers ignores more keys than it reads. */
static void rotation_by_kind_of_layer(void **state) {
    (void)state;
    ModelConfig c;
    refuse(
        CONFIG_OF(
            "gemma3_text") ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
                           "\"truncate\":false}}}",
        "truncate");
    refuse(CONFIG_OF("gemma3_text") ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0}}",
           "full_attention");
    refuse(CONFIG_OF("gemma3_text") ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}", "rope_type");
    refuse(CONFIG_OF("qwen3") ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
           "by kind of layer");
    accept(&c, CONFIG_OF("gemma3_text") ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":50.0},"
                                        "\"sliding_attention\":{}}}");
    assert_true(c.rope_theta == 50 && c.rope_local_theta == 10000);
    refuse(CONFIG_OF("olmo3") ",\"rope_theta\":50.0}", "layers with windows would rotate by 500000");
    accept(&c, CONFIG_OF("olmo3") ",\"rope_theta\":500000.0}");
}

static void empty_parameters_are_not_the_default(void **state) {
    (void)state;
    refuse(CONFIG_OF("gpt_oss") ",\"rope_parameters\":{}}", "rope_parameters is empty");
}

static void other_keys_that_change_attention(void **state) {
    (void)state;
    ModelConfig c;
    refuse(CONFIG_OF("llama") ",\"is_causal\":false}", "is_causal");
    refuse(CONFIG_OF("mistral") ",\"is_causal\":null}", "is_causal");
    accept(&c, CONFIG_OF("llama") ",\"is_causal\":true}");
    refuse(CONFIG_OF("gemma2") ",\"attn_logit_softcapping\":0.0}", "attn_logit_softcapping is 0");
    refuse(CONFIG_OF("gemma3_text") ",\"final_logit_softcapping\":0}", "final_logit_softcapping is 0");
    accept(&c, CONFIG_OF("gemma2") ",\"attn_logit_softcapping\":null}");
#define LISTED ",\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":4"
    refuse(CONFIG_OF("smollm3") LISTED ",\"use_sliding_window\":false}", "use_sliding_window is false");
    accept(&c, CONFIG_OF("smollm3") LISTED ",\"use_sliding_window\":true}");
    assert_true(model_block(&c, 0).window == 4 && model_block(&c, 1).window == 0);
    accept(&c, CONFIG_OF("phi3") ",\"sliding_window\":4,\"sliding_window_pattern\":1}");
    assert_int_equal(model_block(&c, 0).window, 4);
}

#define OF_GPT2 "{\"model_type\":\"gpt2\",\"vocab_size\":50,\"n_embd\":32,\"n_layer\":2"

/* transformers accepts second names for some keys, and uses their values. */
static void second_names_of_keys(void **state) {
    (void)state;
    ModelConfig c;
    refuse(OF_GPT2 ",\"n_head\":4,\"num_attention_heads\":8}",
           "num_attention_heads is another name of n_head in the family gpt2, which has another value");
    refuse(OF_GPT2 ",\"n_head\":4,\"num_hidden_layers\":0}", "another name of n_layer");
    refuse(OF_GPT2 ",\"n_head\":4,\"max_position_embeddings\":64}",
           "n_positions in the family gpt2, which is missing");
    accept(&c, OF_GPT2 ",\"n_head\":4,\"num_attention_heads\":4,\"num_hidden_layers\":null}");
    assert_int_equal(c.num_attention_heads, 4);
    refuse(CONFIG_OF("deepseek_v3") ",\"num_local_experts\":4}", "another name of n_routed_experts");
    refuse(CONFIG_OF("deepseek_v3") ",\"num_mtp_layers\":1}", "another name of num_nextn_predict_layers");
    refuse(CONFIG_OF("deepseek_v2") ",\"n_routed_experts\":8,\"num_experts\":4}",
           "another name of n_routed_experts");
}

/* transformers treats null as false. Choosing from no group of experts would leave none. */
static void null_is_no_switch_that_is_on(void **state) {
    (void)state;
    ModelConfig c;
    refuse(CONFIG_OF("deepseek_v3") ",\"norm_topk_prob\":null}", "norm_topk_prob is null");
    refuse(CONFIG_OF("deepseek_v3") ",\"rope_interleave\":null}", "rope_interleave is null");
    refuse(CONFIG_OF("gemma2") ",\"tie_word_embeddings\":null}", "tie_word_embeddings is null");
    refuse(CONFIG_OF("llama") "," YARN_OF(",\"truncate\":null") "}", "truncate is null");
    accept(&c, CONFIG_OF("llama") ",\"tie_word_embeddings\":null}");
    assert_false(c.tie_word_embeddings);
    refuse(CONFIG_OF("deepseek_v3") ",\"n_group\":1,\"topk_group\":0}", "topk_group");
}

/* MLA scores are multiplied by the square of mscale_all_dim's factor, whatever the kind of scaling. */
static void latent_scores_are_scaled_by_any_kind(void **state) {
    (void)state;
    ModelConfig c;
    accept(&c,
           "{\"model_type\":\"deepseek_v3\",\"vocab_size\":50,\"hidden_size\":16,\"intermediate_size\":24,"
           "\"num_hidden_layers\":6,\"num_attention_heads\":2,\"n_routed_experts\":16,"
           "\"num_experts_per_tok\":4,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4.0,"
           "\"mscale_all_dim\":0.7}}");
    double by = 0.1 * 0.7 * log(4) + 1;
    assert_true(fabs((double)rotation_score_scale(&c) - by * by / sqrt(192)) < 1e-7);
}

#define LONGROPE \
    "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1.0,1.5,2.0,2.5],\"long_factor\":[2,4,8,16]"
/* Up to the original context pairs have the short factors, beyond it all have the long ones; the scale of
 * sines and cosines follows from the contexts. */
static void longrope_has_two_tables(void **state) {
    (void)state;
    ModelConfig c;
    float row[8];
    accept(
        &c,
        CONFIG_OF("phi3") ",\"max_position_embeddings\":128,\"original_max_position_embeddings\":32," LONGROPE
                          "}}");
    double length = sqrt(1 + log(4) / log(32));
    assert_false(rotation_is_long(&c, 32));
    assert_true(rotation_is_long(&c, 33));
    for (int64_t context = 32; context <= 33; context++) {
        rotation_angles(&c, 0, context, 5, row);
        for (int i = 0; i < 4; i++) {
            double factor = context > 32 ? c.rope_scaling.long_factor[i] : c.rope_scaling.short_factor[i];
            double angle = 5 * pow(10000, -i / 4.0) / factor;
            assert_true(fabs((double)row[i] - length * cos(angle)) < 1e-6);
            assert_true(fabs((double)row[4 + i] - length * sin(angle)) < 1e-6);
        }
    }
    assert_true(fabs(c.rope_scaling.factor - 4) < 1e-12);
    refuse(CONFIG_OF("phi3") "," LONGROPE ",\"original_max_position_embeddings\":32}}",
           "is given twice"); /* the root has 4096 */
    refuse(
        CONFIG_OF(
            "phi3") ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1.0],\"long_factor\":[1.0]}}",
        "one for each pair");
    refuse(CONFIG_OF("phi3") ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":2.0}}", "longrope");
    accept(&c, CONFIG_OF("qwen2") ",\"max_position_embeddings\":128," LONGROPE
                                  ",\"original_max_position_embeddings\":32}}");
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 32);
}

static ModelConfig small(void) {
    return (ModelConfig){.vocab_size = 1000,
                         .hidden_size = 64,
                         .intermediate_size = 176,
                         .num_hidden_layers = 3,
                         .num_attention_heads = 4,
                         .num_key_value_heads = 2,
                         .max_position_embeddings = 128,
                         .rms_norm_eps = 1e-5,
                         .rope_theta = 10000.0,
                         .rope_scaling = ROPE_NONE,
                         .bos_token_id = -1,
                         .eos_token_id = 3};
}

static void sizes_beyond_the_address_space_are_refused(void **state) {
    (void)state;
    Error err;
    ModelConfig c = small();
    c.hidden_size = c.intermediate_size = (int64_t)1 << 24;
    c.num_hidden_layers = c.num_attention_heads = (int64_t)1 << 16;
    c.num_key_value_heads = 0;
    assert_int_equal(model_config_complete(&c, "test", &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "parameters"));
    c = small();
    c.hidden_size = INT64_MAX;
    assert_int_equal(model_config_complete(&c, "test", &err), ERR_CONFIG);
    c = small();
    c.num_attention_heads = 0;
    assert_int_equal(model_config_complete(&c, "test", &err), ERR_CONFIG);
}

static void check_round_trip(const ModelConfig *c) {
    Text text = {0};
    ModelConfig back;
    model_config_write(c, "float32", &text);
    accept(&back, text.data);
    assert_non_null(strstr(text.data, "\"float32\""));
    assert_int_equal(back.num_key_value_heads, c->num_key_value_heads);
    assert_int_equal(back.head_dim, c->head_dim);
    assert_int_equal(back.bos_token_id, c->bos_token_id);
    assert_int_equal(back.eos_token_id, c->eos_token_id);
    assert_int_equal(back.tie_word_embeddings, c->tie_word_embeddings);
    assert_int_equal(back.attention_bias, c->attention_bias);
    assert_int_equal(back.mlp_bias, c->mlp_bias);
    assert_memory_equal(&back.rms_norm_eps, &c->rms_norm_eps, sizeof(double));
    assert_memory_equal(&back.rope_theta, &c->rope_theta, sizeof(double));
    RopeScaling saved = c->rope_scaling;
    clear_padding(&saved);
    clear_padding(&back.rope_scaling);
    assert_memory_equal(&back.rope_scaling, &saved, sizeof saved);
    text_free(&text);
}

static void what_is_written_reads_back(void **state) {
    (void)state;
    Error err;
    ModelConfig c = small();
    assert_int_equal(model_config_complete(&c, "test", &err), OK);
    check_round_trip(&c);
    c.tie_word_embeddings = c.attention_bias = c.mlp_bias = true;
    c.head_dim = 24;
    c.rope_theta = 500000.123456789;
    c.rope_scaling = (RopeScaling){8.0, 1.0, 4.0, 8192, .beta_fast = 32, .beta_slow = 1, .truncate = true};
    check_round_trip(&c);
    accept(&c, CONFIG_OF(
                   "phi3") ",\"original_max_position_embeddings\":32,\"partial_rotary_factor\":1.0," LONGROPE
                           ",\"attention_factor\":1.25,\"factor\":3.0}}");
    check_round_trip(&c);
    accept(&c, CONFIG_OF("llama") "," LONGROPE ",\"original_max_position_embeddings\":32}}");
    check_round_trip(&c);
    accept(&c, CONFIG_OF(
                   "phi3") ",\"max_position_embeddings\":32,\"original_max_position_embeddings\":32," LONGROPE
                           "}}");
    assert_true(c.rope_scaling.factor == 1 && rope_is_scaled(&c.rope_scaling));
    check_round_trip(&c);
    c = small();
    assert_int_equal(model_config_complete(&c, "test", &err), OK);
    c.rope_scaling = (RopeScaling){8.0, 1.0, 4.0, 8192, .beta_fast = 32, .beta_slow = 1, .truncate = true};
    Text text = {0};
    model_config_write(&c, "bfloat16", &text);
    assert_non_null(strstr(text.data, "\"factor\": 8.0,"));
    assert_non_null(strstr(text.data, "\"rms_norm_eps\": 1e-05,"));
    assert_non_null(strstr(text.data, "\"bfloat16\""));
    text_free(&text);
}

static void parameters_and_flops_are_counted(void **state) {
    (void)state;
    Error err;
    ModelConfig c = small();
    assert_int_equal(model_config_complete(&c, "test", &err), OK);
    /* Two norms, q, o, k, v, and three matrices per block. */
    int64_t block = 2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 176;
    assert_int_equal(model_parameter_count(&c), 3 * block + 2 * 1000 * 64 + 64);
    assert_int_equal(model_active_count_without_embedding(&c), 3 * block + 1000 * 64 + 64);
    double flops = 6.0 * (double)(3 * block + 1000 * 64 + 64) + 6.0 * 3 * 64 * 128;
    assert_true(fabs(model_flops_per_token(&c, 128) - flops) < 0.5);
    c.tie_word_embeddings = true;
    assert_int_equal(model_parameter_count(&c), 3 * block + 1000 * 64 + 64);
    assert_int_equal(model_active_count_without_embedding(&c), 3 * block + 1000 * 64 + 64);
    c.attention_bias = c.mlp_bias = true;
    assert_int_equal(model_parameter_count(&c),
                     3 * (block + 64 + 2 * 32 + 64 + 2 * 176 + 64) + 1000 * 64 + 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(defaults_are_those_of_transformers),
                                       cmocka_unit_test(null_means_absent),
                                       cmocka_unit_test(eos_may_be_a_list),
                                       cmocka_unit_test(both_dialects_of_rope),
                                       cmocka_unit_test(contradictions_are_refused),
                                       cmocka_unit_test(other_families_are_refused_by_name),
                                       cmocka_unit_test(bad_values_are_refused),
                                       cmocka_unit_test(rotation_is_read_as_transformers_reads_it),
                                       cmocka_unit_test(rotation_by_kind_of_layer),
                                       cmocka_unit_test(empty_parameters_are_not_the_default),
                                       cmocka_unit_test(other_keys_that_change_attention),
                                       cmocka_unit_test(second_names_of_keys),
                                       cmocka_unit_test(null_is_no_switch_that_is_on),
                                       cmocka_unit_test(latent_scores_are_scaled_by_any_kind),
                                       cmocka_unit_test(longrope_has_two_tables),
                                       cmocka_unit_test(sizes_beyond_the_address_space_are_refused),
                                       cmocka_unit_test(what_is_written_reads_back),
                                       cmocka_unit_test(parameters_and_flops_are_counted)};
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
