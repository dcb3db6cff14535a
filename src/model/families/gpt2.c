/* GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): LayerNorm, learned
 * positions, an MLP without gate, biases everywhere; matrices stored [inputs, outputs], q, k, v as one. Files
 * on the hub omit the prefix of the names, and contain attention masks, which are not read.
 *
 * Training does not apply the dropout of published files (0.1), and warns about it. Other keys that change
 * the mathematics must have the value that weft computes, or are refused. */
#include "model/families/keys.h"

static const KeyRule keys[] = {
    {"vocab_size", KEY_SIZE, AT(vocab_size), true},
    {"n_embd", KEY_SIZE, AT(hidden_size), true},
    {"n_inner", KEY_INNER, AT(intermediate_size), false},
    {"n_layer", KEY_SIZE, AT(num_hidden_layers), true},
    {"n_head", KEY_SIZE, AT(num_attention_heads), true},
    {"n_positions", KEY_SIZE, AT(max_position_embeddings), false},
    {"activation_function", KEY_ACTIVATION, 0, false},
    {"layer_norm_epsilon", KEY_NUMBER, AT(rms_norm_eps), false},
    {"tie_word_embeddings", KEY_SWITCH, AT(tie_word_embeddings), false},
    {"attn_pdrop", KEY_DROPOUT, 0, false},
    {"embd_pdrop", KEY_DROPOUT, 0, false},
    {"resid_pdrop", KEY_DROPOUT, 0, false},
    {"scale_attn_weights", KEY_TRUE, 0, false},
    {"scale_attn_by_inverse_layer_idx", KEY_FALSE, 0, false},
    {"reorder_and_upcast_attn", KEY_FALSE, 0, false},
    {"add_cross_attention", KEY_FALSE, 0, false},
    KEYS_END,
};

static const KeyAlias aliases[] = {
    {"hidden_size", "n_embd"},
    {"max_position_embeddings", "n_positions"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
    {.name = NULL},
};

/* c_attn holds q, k, v side by side, and c_fc is the MLP's up. The rows are Llama's; only the names differ.
 * Names in blocks follow "transformer.h.N.". */
static const NameRule names[] = {
    {"model.embed_tokens.weight", "transformer.wte.weight"},
    {"model.embed_positions.weight", "transformer.wpe.weight"},
    {"input_layernorm.weight", "ln_1.weight"},
    {"input_layernorm.bias", "ln_1.bias"},
    {"self_attn.qkv_proj.weight", "attn.c_attn.weight"},
    {"self_attn.qkv_proj.bias", "attn.c_attn.bias"},
    {"self_attn.o_proj.weight", "attn.c_proj.weight"},
    {"self_attn.o_proj.bias", "attn.c_proj.bias"},
    {"post_attention_layernorm.weight", "ln_2.weight"},
    {"post_attention_layernorm.bias", "ln_2.bias"},
    {"mlp.up_proj.weight", "mlp.c_fc.weight"},
    {"mlp.up_proj.bias", "mlp.c_fc.bias"},
    {"mlp.down_proj.weight", "mlp.c_proj.weight"},
    {"mlp.down_proj.bias", "mlp.c_proj.bias"},
    {"model.norm.weight", "transformer.ln_f.weight"},
    {"model.norm.bias", "transformer.ln_f.bias"},
    {.row = NULL},
};

static const PublishedSize sizes[] = {
    {"GPT-2", 50257, 768, 3072, 12, 12, 12, 64, true, 124439808},
    {"GPT-2 medium", 50257, 1024, 4096, 24, 16, 16, 64, true, 354823168},
    {"GPT-2 large", 50257, 1280, 5120, 36, 20, 20, 64, true, 774030080},
    {"GPT-2 XL", 50257, 1600, 6400, 48, 25, 25, 64, true, 1557611200},
    {.name = NULL},
};

const Family family_gpt2 = {.model_type = "gpt2",
                            .architecture = "GPT2LMHeadModel",
                            .arch = {.norm = NORM_LAYER,
                                     .activation = ACT_GELU_TANH,
                                     .no_gate = true,
                                     .fused_qkv = true,
                                     .transposed = true,
                                     .learned_positions = true,
                                     .heads_divide = true},
                            .defaults = {.max_position_embeddings = 1024,
                                         .rms_norm_eps = 1e-5,
                                         .rope_theta = 10000,
                                         .rope_scaling = ROPE_NONE,
                                         .tie_word_embeddings = true,
                                         .attention_bias = true,
                                         .mlp_bias = true,
                                         .bos_token_id = 50256,
                                         .eos_token_id = 50256},
                            .init = INIT_GPT2,
                            .keys = keys,
                            .aliases = aliases,
                            .blocks = "transformer.h.",
                            .names = names,
                            .sizes = sizes};
