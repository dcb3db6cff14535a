/* Families as data: checks every entry, and shows with a family of its own that an entry is all that a family
 * needs. */
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
    if (!f->experts) return c;
    const PublishedExperts *e = &f->experts[s - f->sizes];
    c.num_experts = e->experts, c.num_experts_per_tok = e->chosen, c.moe_intermediate_size = e->width;
    if (e->step) c.dense_layers = (LayerSet){e->step, ((uint64_t)1 << (e->step - 1)) - 1};
    if (!f->latents) return c;
    const PublishedLatents *l = &f->latents[s - f->sizes];
    c.n_shared_experts = e->shared, c.first_k_dense_replace = e->dense;
    c.q_lora_rank = l->queries, c.kv_lora_rank = l->keys, c.v_head_dim = l->values;
    c.qk_nope_head_dim = l->nope, c.qk_rope_head_dim = l->rope;
    return c;
}

/* The published number of parameters, from the shape alone and from the table; and the written config.json
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
    if (f->experts && model_active_count(&c) != f->experts[s - f->sizes].active)
        fail_msg("%s has %lld active parameters", s->name, (long long)model_active_count(&c));
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

/* Checks of an entry: optional keys have defaults, and each key occurs once. */
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

/* ---- a family made up by this test ---- */

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
    assert_int_equal(c.bos_token_id, -1);       /* the default exceeds the small vocabulary */
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

/* ---- experts ---- */

/* Products rely on the order of experts and on equal strides between them. */
static void experts_follow_each_other(void **state) {
    (void)state;
    Error err = {0};
    ParamTable t;
    ModelConfig c = shape_of(&family_mixtral, family_mixtral.sizes);
    c.hidden_size = 18, c.intermediate_size = 7, c.num_hidden_layers = 2, c.vocab_size = 30;
    c.num_attention_heads = 3, c.num_key_value_heads = 1, c.head_dim = 6;
    c.num_experts = 12;
    assert_int_equal(model_config_complete(&c, "mixtral", &err), OK);
    assert_int_equal(param_table_build(&t, &c, &err), OK);
    const Param *router = param_find(&t, "model.layers.1.block_sparse_moe.gate.weight");
    assert_true(router && router->rows == 12 && router->cols == 18);
    static const char *const names[] = {"w1", "w3", "w2"};
    for (int k = 0; k < 3; k++) {
        const Param *first = NULL;
        for (int e = 0; e < 12; e++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.1.block_sparse_moe.experts.%d.%s.weight", e, names[k]);
            const Param *p = param_find(&t, name);
            assert_non_null(p);
            if (e == 0) first = p;
            assert_int_equal(p->expert, e);
            assert_ptr_equal(p, first + 3 * e);
            assert_int_equal(p->offset, first->offset + (size_t)(e * param_expert_step(&t, first)));
        }
    }
    param_table_free(&t);
}

/* Frozen experts leave the flat of trained matrices if all of a layer are frozen; a single one stays. */
static void experts_freeze_together(void **state) {
    (void)state;
    Error err = {0};
    for (int all = 0; all < 2; all++) {
        ParamTable t;
        ModelConfig c = shape_of(&family_olmoe, family_olmoe.sizes);
        c.hidden_size = 16, c.intermediate_size = 8, c.num_hidden_layers = 1, c.vocab_size = 30;
        c.num_attention_heads = c.num_key_value_heads = 2, c.head_dim = 8, c.num_experts = 3;
        c.num_experts_per_tok = 2, c.eos_token_id = -1;
        assert_int_equal(model_config_complete(&c, "olmoe", &err), OK);
        assert_int_equal(param_table_build(&t, &c, &err), OK);
        bool frozen[64] = {false};
        for (int i = 0; i < t.count; i++)
            frozen[i] = t.params[i].row->expert && (all || t.params[i].expert == 1);
        assert_int_equal(param_table_freeze(&t, &c, frozen, &err), OK);
        const Param *one = param_find(&t, "model.layers.0.mlp.experts.1.up_proj.weight"),
                    *two = param_find(&t, "model.layers.0.mlp.experts.2.up_proj.weight");
        assert_int_equal(one->flat, all ? FLAT_FROZEN_EXPERTS : FLAT_EXPERTS);
        assert_int_equal(two->flat, one->flat);
        assert_true(one->frozen && two->frozen == all);
        const Param *router = param_find(&t, "model.layers.0.mlp.gate.weight");
        assert_int_equal(router->flat, FLAT_MATRICES);
        for (int i = 0; i < t.count; i++) frozen[i] = &t.params[i] == router;
        assert_int_equal(param_table_freeze(&t, &c, frozen, &err), OK);
        /* The router is not part of the experts' group. */
        assert_int_equal(param_find(&t, "model.layers.0.mlp.gate.weight")->flat, FLAT_FROZEN);
        assert_int_equal(param_find(&t, "model.layers.0.mlp.experts.0.up_proj.weight")->flat, FLAT_EXPERTS);
        param_table_free(&t);
    }
}

/* Keys of layers and windows, and refusals. */
static void check_refused(const char *file, const char *what) {
    Error err = {0};
    ModelConfig c;
    assert_int_equal(model_config_read(&c, files_text("config.json", file), &err), ERR_CONFIG);
    if (!strstr(err.message, what)) fail_msg("not of %s: %s", what, err.message);
}

#define MOE_SIZES                                                                            \
    "\"vocab_size\":50,\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":6," \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"num_experts\":6,\"num_experts_per_tok\":2"
static void keys_of_experts_are_read(void **state) {
    (void)state;
    Error err = {0};
    ModelConfig c;
    const char *file =
        files_text("config.json", "{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":2,"
                                  "\"mlp_only_layers\":[3],\"router_aux_loss_coef\":0.5,"
                                  "\"use_sliding_window\":true,\"sliding_window\":7," MOE_SIZES "}");
    if (model_config_read(&c, file, &err) != OK) fail_msg("%s", err.message);
    for (int i = 0; i < 6; i++) assert_int_equal(model_block(&c, i).experts, i == 1 || i == 5);
    assert_int_equal(model_block(&c, 0).window, 7);
    assert_int_equal(model_expert_blocks(&c), 2);
    assert_false(c.norm_topk_prob);
    assert_true(model_balance(&c) == 0); /* output_router_logits is false */
    c.output_router_logits = true;
    assert_true(model_balance(&c) == 0.25);
    check_refused("{\"model_type\":\"olmoe\",\"clip_qkv\":8.0," MOE_SIZES "}", "clip_qkv");
    check_refused("{\"model_type\":\"mixtral\",\"router_jitter_noise\":0.1," MOE_SIZES "}",
                  "router_jitter_noise");
    check_refused("{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[6]," MOE_SIZES "}", "mlp_only_layers");
    check_refused("{\"model_type\":\"mixtral\",\"vocab_size\":50,\"hidden_size\":16,\"intermediate_size\":24,"
                  "\"num_hidden_layers\":6,\"num_attention_heads\":2,\"num_local_experts\":1}",
                  "num_experts_per_tok is 2");
    check_refused("{\"model_type\":\"olmoe\",\"num_local_experts\":7," MOE_SIZES "}", "contradict");
    check_refused("{\"model_type\":\"qwen2_moe\"," MOE_SIZES "}", "qwen2_moe");
    check_refused("{\"model_type\":\"gpt_oss\",\"swiglu_limit\":5.0," MOE_SIZES "}", "swiglu_limit is 5");
    check_refused("{\"model_type\":\"gpt_oss\","
                  "\"quantization_config\":{\"quant_method\":\"fp8\"}," MOE_SIZES "}",
                  "fp8");
    check_refused("{\"model_type\":\"olmoe\","
                  "\"quantization_config\":{\"quant_method\":\"mxfp4\"}," MOE_SIZES "}",
                  "mxfp4");
#define LATENT_SIZES                                                                         \
    "\"vocab_size\":50,\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":6," \
    "\"num_attention_heads\":2,\"n_routed_experts\":16,\"num_experts_per_tok\":4"
    check_refused("{\"model_type\":\"deepseek_v3\",\"n_group\":3," LATENT_SIZES "}", "n_group 3");
    check_refused("{\"model_type\":\"deepseek_v3\",\"topk_group\":1," LATENT_SIZES "}", "topk_group");
    check_refused("{\"model_type\":\"deepseek_v3\",\"scoring_func\":\"softmax\"," LATENT_SIZES "}",
                  "scoring_func \"softmax\"");
    check_refused("{\"model_type\":\"deepseek_v3\",\"attention_bias\":true," LATENT_SIZES "}",
                  "attention_bias");
    check_refused("{\"model_type\":\"deepseek_v3\",\"num_key_value_heads\":1," LATENT_SIZES "}",
                  "num_key_value_heads is 1");
    check_refused("{\"model_type\":\"deepseek_v3\",\"v_head_dim\":193," LATENT_SIZES "}", "v_head_dim 193");
    check_refused("{\"model_type\":\"deepseek_v3\",\"rope_interleave\":false," LATENT_SIZES "}",
                  "rope_interleave");
    check_refused("{\"model_type\":\"deepseek_v2\",\"topk_method\":\"noaux_tc\"," LATENT_SIZES "}",
                  "topk_method \"noaux_tc\"");
    check_refused("{\"model_type\":\"deepseek_v2\",\"norm_topk_prob\":true," LATENT_SIZES "}",
                  "norm_topk_prob");
    check_refused("{\"model_type\":\"deepseek_v3\","
                  "\"quantization_config\":{\"quant_method\":\"fp8\"}," LATENT_SIZES "}",
                  "fp8");
    file = files_text("config.json", "{\"model_type\":\"deepseek_v2\",\"n_group\":4,\"topk_group\":2,"
                                     "\"first_k_dense_replace\":2,\"q_lora_rank\":null," LATENT_SIZES "}");
    if (model_config_read(&c, file, &err) != OK) fail_msg("%s", err.message);
    assert_true(c.n_group == 1 && c.q_lora_rank == 0 && c.head_dim == 192); /* greedy: no groups */
    assert_true(!model_block(&c, 1).experts && model_block(&c, 2).experts);
    ModelConfig llama = shape_of(&family_llama, family_llama.sizes);
    llama.num_experts = 4, llama.num_experts_per_tok = 2;
    assert_int_equal(model_config_complete(&llama, "run", &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "num_experts"));
}

#define LLAMA4_SIZES                                                                                   \
    "{\"model_type\":\"llama4_text\",\"vocab_size\":50,\"hidden_size\":16,\"intermediate_size\":6,"    \
    "\"intermediate_size_mlp\":24,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8," \
    "\"num_local_experts\":4,\"num_hidden_layers\":8"

static ModelConfig read_text(const char *text) {
    Error err = {0};
    ModelConfig c;
    if (model_config_read(&c, files_text("config.json", text), &err) != OK) fail_msg("%s", err.message);
    return c;
}

static ModelConfig read_llama4(const char *more) {
    Text file = {0};
    text_printf(&file, LLAMA4_SIZES "%s}", more);
    ModelConfig c = read_text(file.data);
    text_free(&file);
    return c;
}

/* Layers with RoPE have chunks, unless layer_types says otherwise; the older form of a switch, the empty list
 * of published files, and refusals. */
static void keys_of_llama4_are_read(void **state) {
    (void)state;
    ModelConfig c = read_llama4(",\"no_rope_layers\":[],\"attn_temperature_tuning\":4");
    assert_true(c.intermediate_size == 24 && c.moe_intermediate_size == 6 && c.n_shared_experts == 1);
    assert_true(c.attn_scale == 0.1 && c.floor_scale == 8192 && c.use_qk_norm);
    for (int i = 0; i < 8; i++) {
        BlockShape b = model_block(&c, i);
        assert_true(b.experts && b.chunked == (i % 4 != 3) && b.scaled == !b.chunked);
        assert_true((b.rotation < 0) == b.scaled && b.window == (b.chunked ? 8192 : 0));
    }
    c = read_llama4(",\"no_rope_layers\":[0,1,0,1,0,1,0,1],\"interleave_moe_layer_step\":2,"
                    "\"attn_temperature_tuning\":false,\"attention_chunk_size\":7");
    assert_true(c.attn_scale == 0);
    for (int i = 0; i < 8; i++) {
        BlockShape b = model_block(&c, i);
        assert_true(b.experts == (i % 2 == 1) && b.window == (i % 2 ? 7 : 0) && !b.scaled);
    }
    c = read_llama4(",\"attention_chunk_size\":null,\"moe_layers\":[2,5]");
    assert_true(c.sliding_window == 0 && c.windows.period == 0 && model_expert_blocks(&c) == 2);
    assert_true(model_block(&c, 2).experts && model_block(&c, 5).experts);
    c = read_llama4(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                    "\"high_freq_factor\":1.0,\"original_max_position_embeddings\":8192}");
    assert_true(c.rope_scaling.factor == 8);
    check_refused(LLAMA4_SIZES ",\"layer_types\":[\"sliding_attention\",1,1,1,1,1,1,1]}",
                  "chunked_attention");
    check_refused(LLAMA4_SIZES ",\"moe_layers\":[8]}", "moe_layers");
    check_refused(LLAMA4_SIZES ",\"attn_temperature_tuning\":\"yes\"}", "attn_temperature_tuning");
    check_refused(LLAMA4_SIZES ",\"floor_scale\":0}", "floor_scale");
    check_refused(LLAMA4_SIZES ",\"router_jitter_noise\":0.1}", "router_jitter_noise");
    check_refused(LLAMA4_SIZES ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", "mxfp4");
    c = read_text("{\"model_type\":\"llama4\",\"text_config\":" LLAMA4_SIZES "},\"vision_config\":{}}");
    assert_true(c.family == &family_llama4_text && c.num_hidden_layers == 8);
    check_refused("{\"model_type\":\"llama4\",\"text_config\":[]}", "needs text_config, an object");
    check_refused("{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama\"}}", "llama4_text");
    check_refused("{\"model_type\":\"llama4\",\"text_config\":" LLAMA4_SIZES "},\"quantization_config\":{}}",
                  "quantization_config");
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
    assert_int_equal(c.vocab_size, 0); /* nothing was set */
}

/* ---- recurrences ---- */

#define RECURRENT_SIZES                                                                            \
    "{\"model_type\":\"recurrent\",\"vocab_size\":50,\"hidden_size\":16,\"intermediate_size\":24," \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"num_hidden_layers\":"

/* Parameters of a model with one layer, including embedding, last norm and head. */
static int64_t layer_parameters(const char *mixer, const char *more) {
    Error err = {0};
    ModelConfig c;
    char file[512];
    snprintf(file, sizeof file, RECURRENT_SIZES "1,\"layer_types\":[\"%s\"]%s}", mixer, more);
    if (model_config_read(&c, files_text("config.json", file), &err) != OK) fail_msg("%s", err.message);
    return model_parameter_count(&c) - 2 * 50 * 16 - 16;
}

/* By the formulas of layers/recurrence.c: matrices, taps, lambda, norms, MLP; and of layers/mamba.c, with
 * parameters of heads. */
static void recurrences_have_their_parameters(void **state) {
    (void)state;
    assert_int_equal(layer_parameters("min_gru", ""), 4 * 16 * 32 + 4 * 32 + 16);
    assert_int_equal(layer_parameters("min_lstm", ",\"conv_size\":3"), 5 * 16 * 32 + 3 * 64 + 16);
    assert_int_equal(layer_parameters("min_gru", ",\"conv_size\":0,\"recurrent_size\":7"), 4 * 16 * 7 + 16);
    assert_int_equal(layer_parameters("hawk", ""),
                     3 * 16 * 256 + 2 * 256 * 256 + 4 * 256 + 256 + 3 * 16 * 24 + 2 * 16);
    assert_int_equal(
        layer_parameters("mamba2", ",\"mamba_d_head\":8,\"mamba_d_state\":6,\"mamba_n_groups\":2"),
        (2 * 32 + 2 * 12 + 4) * 16 + 16 * 32 + 4 * (32 + 2 * 12) + 3 * 4 + 32 + 16);
    assert_int_equal(layer_parameters("mamba2", ",\"recurrent_size\":128"),
                     (2 * 128 + 2 * 128 + 2) * 16 + 16 * 128 + 4 * (128 + 2 * 128) + 3 * 2 + 128 + 16);
}

static void mixers_are_a_pattern(void **state) {
    (void)state;
    Error err = {0};
    ModelConfig c, back;
    Text text = {0};
    const char *file = RECURRENT_SIZES "6,\"mamba_d_head\":16,\"layer_types\":[\"mamba2\",\"min_gru\","
                                       "\"attention\",\"mamba2\",\"min_gru\",\"attention\"]}";
    if (model_config_read(&c, files_text("config.json", file), &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(c.mixers.period, 3);
    assert_int_equal(c.recurrent_size, 32);
    assert_int_equal(model_block(&c, 4).mixer, MIXER_MIN_GRU);
    assert_int_equal(model_rotations(&c), 1);
    assert_int_equal(c.mamba_d_state, 128);
    model_config_write(&c, "float32", &text);
    if (model_config_read(&back, files_text("config.json", text.data), &err) != OK)
        fail_msg("%s", err.message);
    clear_shape_padding(&c);
    clear_shape_padding(&back);
    assert_memory_equal(&c, &back, sizeof c);
    text_free(&text);
    check_refused(RECURRENT_SIZES "2,\"layer_types\":[\"hawk\"]}", "one mixer for each of 2 layers");
    check_refused(RECURRENT_SIZES "2}", "layer_types is not a list");
    check_refused(RECURRENT_SIZES "1,\"layer_types\":[\"mamba\"]}", "\"mamba\" is not supported");
    check_refused(RECURRENT_SIZES "1,\"layer_types\":[7]}", "not a string");
    check_refused(RECURRENT_SIZES "1,\"layer_types\":[\"attention\"]}", "no block of the family recurrent");
    check_refused(RECURRENT_SIZES "1,\"layer_types\":[\"hawk\"],\"conv_size\":9}", "conv_size is 9");
    check_refused(RECURRENT_SIZES "1,\"layer_types\":[\"mamba2\"]}",
                  "recurrent_size 32 is not a multiple of mamba_d_head 64");
    check_refused(RECURRENT_SIZES "1,\"layer_types\":[\"mamba2\"],\"mamba_d_head\":8,\"mamba_n_groups\":3}",
                  "mamba_n_groups 3 does not divide the 4 heads");
    check_refused(RECURRENT_SIZES "1,\"layer_types\":[\"mamba2\"],\"mamba_d_head\":8,\"mamba_d_state\":257}",
                  "mamba_d_state is 257");
}

/* An MTP module has a block, two norms and a matrix before it, and a norm after it: as many parameters as
 * that of DeepSeek-V3 without its copies of embedding and head. Names are those of a layer after the last
 * one. */
static void an_mtp_module_is_a_layer_behind_the_last(void **state) {
    (void)state;
    Error err = {0};
    ParamTable t;
    Text text = {0};
    ModelConfig c = shape_of(&family_deepseek_v3, &family_deepseek_v3.sizes[0]);
    c.mtp_depth = 1, c.mtp_module = true;
    assert_int_equal(model_config_complete(&c, "module", &err), OK);
    assert_int_equal(model_parameter_count(&c), family_deepseek_v3.sizes[0].parameters + 11610068224);
    assert_int_equal(param_table_build(&t, &c, &err), OK);
    assert_int_equal(t.elements, model_parameter_count(&c));
    const Param *joins = param_find(&t, "model.layers.61.eh_proj.weight");
    assert_non_null(joins);
    assert_int_equal(joins->cols, 2 * c.hidden_size);
    assert_int_equal(joins->unit, 62);
    assert_non_null(param_find(&t, "model.layers.61.shared_head.norm.weight"));
    assert_non_null(param_find(&t, "model.layers.61.mlp.experts.255.down_proj.weight"));
    assert_non_null(param_find(&t, "model.norm.weight"));
    assert_null(param_find(&t, "model.layers.62.enorm.weight"));
    param_table_free(&t);
    model_config_write(&c, "bfloat16", &text);
    assert_non_null(strstr(text.data, "\"num_nextn_predict_layers\": 1"));
    text_free(&text);
}

static bool has_field(const Family *f, size_t offset) {
    for (const KeyRule *k = f->keys; k->name; k++)
        if (k->offset == offset) return true;
    return false;
}

/* Gives the field of a rule another value; false: the rule holds none. */
static bool change_field(ModelConfig *c, const KeyRule *k) {
    void *at = (char *)c + k->offset;
    if (k->kind == KEY_SIZE || k->kind == KEY_COUNT || k->kind == KEY_OR_NULL)
        *(int64_t *)at += 2;
    else if (k->kind == KEY_SWITCH)
        *(bool *)at = !*(bool *)at;
    else if (k->kind == KEY_NUMBER || k->kind == KEY_WHOLE || k->kind == KEY_OPTIONAL)
        *(double *)at += 0.5;
    else
        return false;
    return true;
}

/* A value that config.json of the family cannot hold would be lost in its checkpoints. */
static void keys_of_other_families_are_refused(void **state) {
    (void)state;
    int refused = 0;
    for (int i = 0; families[i]; i++)
        for (int j = 0; families[j] && families[i]->sizes->name; j++)
            for (const KeyRule *k = families[j]->keys; k->name; k++) {
                ModelConfig c = shape_of(families[i], families[i]->sizes);
                Error err = {0};
                if (model_config_complete(&c, "x", &err) != OK) fail_msg("%s", err.message);
                if (has_field(families[i], k->offset) || !change_field(&c, k)) continue;
                if (families[i]->arch.latent && k->offset == offsetof(ModelConfig, head_dim)) continue;
                if (family_check(&c, "x", &err) != ERR_CONFIG)
                    fail_msg("%s takes another %s", families[i]->model_type, k->name);
                assert_non_null(strstr(err.message, "no key for another"));
                refused++;
            }
    assert_true(refused > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_sizes_are_met),
                                       cmocka_unit_test(keys_of_other_families_are_refused),
                                       cmocka_unit_test(entries_are_whole),
                                       cmocka_unit_test(an_entry_is_all_it_takes),
                                       cmocka_unit_test(what_an_entry_refuses_is_named),
                                       cmocka_unit_test(experts_follow_each_other),
                                       cmocka_unit_test(experts_freeze_together),
                                       cmocka_unit_test(recurrences_have_their_parameters),
                                       cmocka_unit_test(mixers_are_a_pattern),
                                       cmocka_unit_test(keys_of_experts_are_read),
                                       cmocka_unit_test(keys_of_llama4_are_read),
                                       cmocka_unit_test(an_mtp_module_is_a_layer_behind_the_last)};
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
