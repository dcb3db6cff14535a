/* Llama 4, its text model (Meta, "The Llama 4 herd", 2025). Experts whose weights multiply their input,
 * alongside a shared expert, in all layers or in every other one. Layers with RoPE (interleaved) attend
 * within chunks, and norm q and k after the rotation. Every fourth layer has no RoPE, attends over the whole
 * document, and scales its queries with their position.
 *
 * intermediate_size is the width of an expert, routed or shared; intermediate_size_mlp is that of the MLP in
 * layers without experts. In weft these are moe_intermediate_size and intermediate_size. transformers adds no
 * balance loss, whatever output_router_logits and router_aux_loss_coef are, and neither does weft. The
 * published models are multimodal (llama4) and hold this one as text_config. */
#include "model/families/keys.h"

/* no_rope_layers comes before the chunks, whose layers are derived from it, and the scale before its
 * switch. */
static const KeyRule keys[] = {
    {"vocab_size", KEY_SIZE, AT(vocab_size), true},
    {"hidden_size", KEY_SIZE, AT(hidden_size), true},
    {"intermediate_size", KEY_SIZE, AT(moe_intermediate_size), true},
    {"intermediate_size_mlp", KEY_SIZE, AT(intermediate_size), false},
    {"num_hidden_layers", KEY_SIZE, AT(num_hidden_layers), true},
    {"num_attention_heads", KEY_SIZE, AT(num_attention_heads), true},
    {"num_key_value_heads", KEY_SIZE, AT(num_key_value_heads), false},
    {"head_dim", KEY_SIZE, AT(head_dim), false},
    {"num_local_experts", KEY_EXPERTS, AT(num_experts), false},
    {"num_experts_per_tok", KEY_SIZE, AT(num_experts_per_tok), false},
    {"moe_layers", KEY_SPARSE, 0, false},
    {"router_jitter_noise", KEY_ZERO, 0, false},
    KEY_SILU,
    KEYS_STREAM,
    {"use_qk_norm", KEY_SWITCH, AT(use_qk_norm), false},
    {"no_rope_layers", KEY_NO_ROPE, 0, false},
    {"attention_chunk_size", KEY_WINDOWS, 0, false},
    {"attn_scale", KEY_NUMBER, AT(attn_scale), false},
    {"floor_scale", KEY_COUNT, AT(floor_scale), false},
    {"attn_temperature_tuning", KEY_TUNING, 0, false},
    {"attention_bias", KEY_SWITCH, AT(attention_bias), false},
    KEY_NO_DROPOUT,
    KEYS_END_UNPADDED,
};

static const NameRule names[] = {
    {"mlp.gate.weight", "feed_forward.router.weight"},
    {"mlp.experts.gate_up_proj", "feed_forward.experts.gate_up_proj"},
    {"mlp.experts.down_proj", "feed_forward.experts.down_proj"},
    {"mlp.shared_experts.gate_proj.weight", "feed_forward.shared_expert.gate_proj.weight"},
    {"mlp.shared_experts.up_proj.weight", "feed_forward.shared_expert.up_proj.weight"},
    {"mlp.shared_experts.down_proj.weight", "feed_forward.shared_expert.down_proj.weight"},
    {"mlp.gate_proj.weight", "feed_forward.gate_proj.weight"},
    {"mlp.up_proj.weight", "feed_forward.up_proj.weight"},
    {"mlp.down_proj.weight", "feed_forward.down_proj.weight"},
    {.row = NULL},
};

static const PublishedSize sizes[] = {
    {"Llama 4 Scout", 202048, 5120, 16384, 48, 40, 8, 128, false, 107769861120},
    {"Llama 4 Maverick", 202048, 5120, 16384, 48, 40, 8, 128, false, 400711848960},
    {.name = NULL},
};
static const PublishedExperts experts[] = {{16, 1, 8192, 17172894720, 1, 0, 0},
                                           {128, 1, 8192, 17184691200, 1, 0, 2}};

const Family family_llama4_text = {.model_type = "llama4_text",
                                   .architecture = "Llama4ForCausalLM",
                                   .within = "llama4",
                                   .arch = {.qk_norm = QK_NORM_PLAIN,
                                            .neighbours = true,
                                            .chunks = true,
                                            .fused_experts = true,
                                            .weighs_input = true},
                                   .defaults = {.intermediate_size = 16384,
                                                .num_key_value_heads = 8,
                                                .head_dim = 128,
                                                .max_position_embeddings = 131072,
                                                .rms_norm_eps = 1e-5,
                                                .rope_theta = 500000,
                                                .rope_scaling = ROPE_NONE,
                                                .no_rope = {4, 8},
                                                .sliding_window = 8192,
                                                .windows = {4, 7},
                                                .attn_scale = 0.1,
                                                .floor_scale = 8192,
                                                .use_qk_norm = true,
                                                .num_experts = 16,
                                                .num_experts_per_tok = 1,
                                                .moe_intermediate_size = 8192,
                                                .n_shared_experts = 1,
                                                .bos_token_id = 1,
                                                .eos_token_id = 2},
                                   .keys = keys,
                                   .window_keys = WINDOWS_CHUNKS,
                                   .names = names,
                                   .sizes = sizes,
                                   .experts = experts};
