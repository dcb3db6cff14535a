/* Families with experts in place of the MLP: Mixtral is Mistral with 8 experts; Qwen 3 MoE is Qwen 3 with
 * experts; OLMoE is Llama with experts, and with q and k normed over all heads at once, as in OLMo 2.
 *
 * All choose by a softmax over all experts. Mixtral divides the weights of a token by their sum; the others
 * do so if norm_topk_prob is set, as in published Qwens, but not in OLMoE. Experts of Mixtral and OLMoE are
 * intermediate_size wide. Qwen has a key for their width, and keys for layers that have an MLP of
 * intermediate_size instead. Jiang et al., "Mixtral of experts", 2024; "Qwen3 technical report", 2025;
 * Muennighoff et al., "OLMoE: open mixture-of-experts language models", 2024. */
#include "model/families/keys.h"

static const KeyRule mixtral_keys[] = {
    KEYS_SIZES,     {"num_local_experts", KEY_EXPERTS, AT(num_experts), false},
    KEYS_ROUTER,    KEY_SILU,
    KEYS_STREAM,    KEY_SLIDING,
    KEY_NO_DROPOUT, {"router_jitter_noise", KEY_ZERO, 0, false},
    KEYS_END};
static const KeyRule qwen3_moe_keys[] = {
    KEYS_SIZES,  NUM_EXPERTS,    {"moe_intermediate_size", KEY_SIZE, AT(moe_intermediate_size), false},
    KEYS_ROUTER, KEY_NORM_TOPK,  {"mlp_only_layers", KEY_DENSE, 0, false},
    KEY_SILU,    KEYS_STREAM,    KEY_ATTENTION_BIAS,
    KEY_SLIDING, KEY_NO_DROPOUT, KEYS_END,
};
static const KeyRule olmoe_keys[] = {KEYS_SIZES,         NUM_EXPERTS,    KEYS_ROUTER,
                                     KEY_NORM_TOPK,      KEY_SILU,       KEYS_STREAM,
                                     KEY_ATTENTION_BIAS, KEY_NO_DROPOUT, {"clip_qkv", KEY_NONE, 0, false},
                                     KEYS_END_UNPADDED};

static const NameRule mixtral_names[] = {
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.experts.*.gate_proj.weight", "block_sparse_moe.experts.*.w1.weight"},
    {"mlp.experts.*.up_proj.weight", "block_sparse_moe.experts.*.w3.weight"},
    {"mlp.experts.*.down_proj.weight", "block_sparse_moe.experts.*.w2.weight"},
    {.row = NULL},
};

static const PublishedSize mixtral_sizes[] = {
    {"Mixtral 8x7B", 32000, 4096, 14336, 32, 32, 8, 128, false, 46702792704},
    {.name = NULL},
};
static const PublishedExperts mixtral_experts[] = {{8, 2, 0, 12879925248, 0, 0, 0}};

static const PublishedSize qwen3_moe_sizes[] = {
    {"Qwen3 30B-A3B", 151936, 2048, 6144, 48, 32, 4, 128, false, 30532122624},
    {"Qwen3 235B-A22B", 151936, 4096, 12288, 94, 64, 4, 128, false, 235093634560},
    {.name = NULL},
};
static const PublishedExperts qwen3_moe_experts[] = {{128, 8, 768, 3353032704, 0, 0, 0},
                                                     {128, 8, 1536, 22190763520, 0, 0, 0}};

static const PublishedSize olmoe_sizes[] = {
    {"OLMoE 1B-7B", 50304, 2048, 1024, 16, 16, 16, 128, false, 6919161856},
    {.name = NULL},
};
static const PublishedExperts olmoe_experts[] = {{64, 8, 0, 1282017280, 0, 0, 0}};

const Family family_mixtral = {.model_type = "mixtral",
                               .architecture = "MixtralForCausalLM",
                               .defaults = {.max_position_embeddings = 131072,
                                            .rms_norm_eps = 1e-5,
                                            .rope_theta = 1000000,
                                            .rope_scaling = ROPE_NONE,
                                            .windows = {1, 1},
                                            .num_experts = 8,
                                            .num_experts_per_tok = 2,
                                            .router_aux_loss_coef = 0.001,
                                            .norm_topk_prob = true,
                                            .bos_token_id = 1,
                                            .eos_token_id = 2},
                               .keys = mixtral_keys,
                               .names = mixtral_names,
                               .sizes = mixtral_sizes,
                               .experts = mixtral_experts};

const Family family_qwen3_moe = {.model_type = "qwen3_moe",
                                 .architecture = "Qwen3MoeForCausalLM",
                                 .arch = {.qk_norm = QK_NORM_HEAD},
                                 .defaults = {.max_position_embeddings = 32768,
                                              .rms_norm_eps = 1e-6,
                                              .rope_theta = 10000,
                                              .rope_scaling = ROPE_NONE,
                                              .sliding_window = 4096,
                                              .windows = {1, 1},
                                              .num_experts = 128,
                                              .num_experts_per_tok = 8,
                                              .moe_intermediate_size = 768,
                                              .router_aux_loss_coef = 0.001,
                                              .bos_token_id = -1,
                                              .eos_token_id = -1},
                                 .keys = qwen3_moe_keys,
                                 .window_keys = WINDOWS_SWITCH,
                                 .sizes = qwen3_moe_sizes,
                                 .experts = qwen3_moe_experts};

const Family family_olmoe = {.model_type = "olmoe",
                             .architecture = "OlmoeForCausalLM",
                             .arch = {.qk_norm = QK_NORM_FLAT},
                             .defaults = {.max_position_embeddings = 4096,
                                          .rms_norm_eps = 1e-5,
                                          .rope_theta = 10000,
                                          .rope_scaling = ROPE_NONE,
                                          .num_experts = 64,
                                          .num_experts_per_tok = 8,
                                          .router_aux_loss_coef = 0.01,
                                          .bos_token_id = -1,
                                          .eos_token_id = 50279},
                             .keys = olmoe_keys,
                             .sizes = olmoe_sizes,
                             .experts = olmoe_experts};
