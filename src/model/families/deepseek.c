/* DeepSeek-V3 and V2: MLA with interleaved RoPE (layers/latent.c), and experts, with shared ones and without
 * any in the first layers (DeepSeek-AI, "DeepSeek-V2" and "DeepSeek-V3 technical report", 2024).
 *
 *     deepseek_v3   sigmoid scores, plus a bias where experts are chosen; groups by the sum of their top two;
 *                   weights divided by their sum if norm_topk_prob
 *     deepseek_v2   softmax scores; groups by their best, if topk_method says so; weights not normalised
 *
 * Both multiply weights by routed_scaling_factor. Moonlight is a deepseek_v3 whose queries have no latent.
 * transformers adds no balance loss in either family, whatever aux_loss_alpha is, and neither does weft. */
#include "model/families/keys.h"

/* clang-format off */
#define KEYS_LATENT                                                         \
    {"q_lora_rank", KEY_OR_NULL, AT(q_lora_rank), false},                   \
    {"kv_lora_rank", KEY_SIZE, AT(kv_lora_rank), false},                    \
    {"qk_nope_head_dim", KEY_SIZE, AT(qk_nope_head_dim), false},            \
    {"qk_rope_head_dim", KEY_SIZE, AT(qk_rope_head_dim), false},            \
    {"v_head_dim", KEY_SIZE, AT(v_head_dim), false}
#define KEYS_EXPERTS                                                        \
    {"n_routed_experts", KEY_SIZE, AT(num_experts), false},                 \
    {"n_shared_experts", KEY_COUNT, AT(n_shared_experts), false},           \
    {"num_experts_per_tok", KEY_SIZE, AT(num_experts_per_tok), false},      \
    {"moe_intermediate_size", KEY_SIZE, AT(moe_intermediate_size), false},  \
    {"first_k_dense_replace", KEY_COUNT, AT(first_k_dense_replace), false}, \
    {"moe_layer_freq", KEY_ONLY, 1000, false},                              \
    {"routed_scaling_factor", KEY_NUMBER, AT(routed_scaling_factor), false}, \
    {"n_group", KEY_COUNT, AT(n_group), false},                             \
    {"topk_group", KEY_SIZE, AT(topk_group), false}
/* In transformers' own files head_dim is the rotated part of a head, not a size of its own. */
#define KEYS_SHAPE                                                          \
    {"vocab_size", KEY_SIZE, AT(vocab_size), true},                         \
    {"hidden_size", KEY_SIZE, AT(hidden_size), true},                       \
    {"intermediate_size", KEY_SIZE, AT(intermediate_size), true},           \
    {"num_hidden_layers", KEY_SIZE, AT(num_hidden_layers), true},           \
    {"num_attention_heads", KEY_SIZE, AT(num_attention_heads), true},       \
    {"num_key_value_heads", KEY_SIZE, AT(num_key_value_heads), false}
#define KEYS_REST                                                           \
    {"attention_bias", KEY_FALSE, 0, false},                                \
    {"mlp_bias", KEY_FALSE, 0, false},                                      \
    KEY_NO_DROPOUT, KEYS_END_UNPADDED
/* clang-format on */

static const KeyRule v3_keys[] = {
    KEYS_SHAPE,
    KEYS_LATENT,
    KEYS_EXPERTS,
    KEY_NORM_TOPK,
    {"scoring_func", KEY_WORD, WORD_SIGMOID, false},
    {"topk_method", KEY_WORD, WORD_NOAUX, false},
    {"num_nextn_predict_layers", KEY_MTP, 0, false},
    {"rope_interleave", KEY_TRUE, 0, false},
    KEY_SILU,
    KEYS_STREAM,
    KEYS_REST,
};
static const KeyRule v2_keys[] = {
    KEYS_SHAPE,
    KEYS_LATENT,
    KEYS_EXPERTS,
    {"norm_topk_prob", KEY_FALSE, 0, false},
    {"scoring_func", KEY_WORD, WORD_SOFTMAX, false},
    {"topk_method", KEY_GREEDY, 0, false},
    KEY_SILU,
    KEYS_STREAM,
    KEYS_REST,
};

static const KeyAlias v3_aliases[] = {
    {"num_local_experts", "n_routed_experts"},
    {"num_mtp_layers", "num_nextn_predict_layers"},
    {.name = NULL},
};
static const KeyAlias v2_aliases[] = {{"num_experts", "n_routed_experts"}, {.name = NULL}};

static const PublishedSize v3_sizes[] = {
    {"DeepSeek-V3", 129280, 7168, 18432, 61, 128, 128, 192, false, 671026419200},
    {"Moonlight 16B-A3B", 163840, 2048, 11264, 27, 16, 16, 192, false, 15960110208},
    {.name = NULL},
};
static const PublishedExperts v3_experts[] = {{256, 8, 2048, 37552297472, 1, 3, 0},
                                              {64, 6, 1408, 2914776192, 2, 1, 0}};
static const PublishedLatents v3_latents[] = {{1536, 512, 128, 64, 128}, {0, 512, 128, 64, 128}};

static const PublishedSize v2_sizes[] = {
    {"DeepSeek-V2", 102400, 5120, 12288, 60, 128, 128, 192, false, 235741434880},
    {"DeepSeek-V2-Lite", 102400, 2048, 10944, 27, 16, 16, 192, false, 15706484224},
    {.name = NULL},
};
static const PublishedExperts v2_experts[] = {{160, 6, 1536, 21375800320, 2, 1, 0},
                                              {64, 6, 1408, 2661150208, 2, 1, 0}};
static const PublishedLatents v2_latents[] = {{1536, 512, 128, 64, 128}, {0, 512, 128, 64, 128}};

const Family family_deepseek_v3 = {.model_type = "deepseek_v3",
                                   .architecture = "DeepseekV3ForCausalLM",
                                   .arch = {.mtp_module = true, .latent = true, .sigmoid_router = true},
                                   .defaults = {.max_position_embeddings = 4096,
                                                .rms_norm_eps = 1e-6,
                                                .rope_theta = 10000,
                                                .rope_scaling = ROPE_NONE,
                                                .num_experts = 256,
                                                .num_experts_per_tok = 8,
                                                .moe_intermediate_size = 2048,
                                                .first_k_dense_replace = 3,
                                                .n_shared_experts = 1,
                                                .n_group = 8,
                                                .topk_group = 4,
                                                .routed_scaling_factor = 2.5,
                                                .norm_topk_prob = true,
                                                .q_lora_rank = 1536,
                                                .kv_lora_rank = 512,
                                                .qk_nope_head_dim = 128,
                                                .qk_rope_head_dim = 64,
                                                .v_head_dim = 128,
                                                .bos_token_id = 0,
                                                .eos_token_id = 1},
                                   .keys = v3_keys,
                                   .aliases = v3_aliases,
                                   .sizes = v3_sizes,
                                   .experts = v3_experts,
                                   .latents = v3_latents};

const Family family_deepseek_v2 = {.model_type = "deepseek_v2",
                                   .architecture = "DeepseekV2ForCausalLM",
                                   .arch = {.latent = true, .heads_divide = true},
                                   .defaults = {.max_position_embeddings = 2048,
                                                .rms_norm_eps = 1e-6,
                                                .rope_theta = 10000,
                                                .rope_scaling = ROPE_NONE,
                                                .num_experts = 64,
                                                .num_experts_per_tok = 6,
                                                .moe_intermediate_size = 1407,
                                                .first_k_dense_replace = 0,
                                                .n_shared_experts = 2,
                                                .n_group = 1,
                                                .topk_group = 1,
                                                .routed_scaling_factor = 1,
                                                .q_lora_rank = 1536,
                                                .kv_lora_rank = 512,
                                                .qk_nope_head_dim = 128,
                                                .qk_rope_head_dim = 64,
                                                .v_head_dim = 128,
                                                .bos_token_id = 1,
                                                .eos_token_id = 2},
                                   .keys = v2_keys,
                                   .aliases = v2_aliases,
                                   .sizes = v2_sizes,
                                   .experts = v2_experts,
                                   .latents = v2_latents};
