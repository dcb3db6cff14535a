/* gpt-oss: experts in every layer, with clamped gates; biases throughout; windows on every other layer;
 * attention sinks, so heads may attend to nothing; yarn from the start (OpenAI, "gpt-oss-120b and gpt-oss-20b
 * model card", 2025).
 *
 * The weights of a token are a softmax over the logits of its chosen experts. That equals a softmax over all
 * experts, divided by the sum of the chosen ones. Published experts are MXFP4, which weft reads
 * (checkpoint/packed.h) but does not write. */
#include "model/families/keys.h"

static const KeyRule keys[] = {
    KEYS_SIZES,
    {"num_local_experts", KEY_EXPERTS, AT(num_experts), false},
    KEYS_ROUTER,
    KEY_SILU,
    {"swiglu_limit", KEY_ONLY, 7000, false},
    {"swiglu_alpha", KEY_ONLY, 1702, false},
    KEYS_STREAM,
    KEY_ATTENTION_BIAS,
    KEY_SLIDING,
    KEY_NO_DROPOUT,
    KEYS_END_UNPADDED,
};

static const NameRule names[] = {
    {"mlp.gate.weight", "mlp.router.weight"},
    {"mlp.gate.bias", "mlp.router.bias"},
    {.row = NULL},
};

static const PublishedSize sizes[] = {
    {"gpt-oss 20B", 201088, 2880, 2880, 24, 64, 8, 64, false, 20914757184},
    {"gpt-oss 120B", 201088, 2880, 2880, 36, 64, 8, 64, false, 116829156672},
    {.name = NULL},
};
static const PublishedExperts experts[] = {{32, 4, 0, 4187440704, 0, 0, 0}, {128, 4, 0, 5711982912, 0, 0, 0}};

const Family family_gpt_oss = {
    .model_type = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .arch = {.activation = ACT_CLAMPED,
             .sinks = true,
             .fused_experts = true,
             .packed_experts = true,
             .expert_bias = true},
    .defaults = {.head_dim = 64,
                 .max_position_embeddings = 131072,
                 .rms_norm_eps = 1e-5,
                 .rope_theta = 150000,
                 .rope_scaling = {32, 1.0, 4.0, 4096, .beta_fast = 32, .beta_slow = 1, .kind = ROPE_YARN},
                 .sliding_window = 128,
                 .windows = {2, 1},
                 .num_experts = 128,
                 .num_experts_per_tok = 4,
                 .router_aux_loss_coef = 0.001,
                 .norm_topk_prob = true,
                 .attention_bias = true,
                 .bos_token_id = -1,
                 .eos_token_id = -1},
    .keys = keys,
    .window_keys = WINDOWS_SOME,
    .names = names,
    .sizes = sizes,
    .experts = experts};
