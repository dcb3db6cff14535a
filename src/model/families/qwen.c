/* Qwen 2 and 2.5: Llama with biases on q, k and v. Qwen 3: no biases, but each head of q and k normed. Layers
 * from max_window_layers on may have windows; published models have none.
 *
 * Qwen 2 has no key for its biases, and none on the output. Qwen 3's attention_bias is for q, k, v and output
 * together. Qwen 3's head_dim defaults to 128, whatever hidden_size is. Yang et al., "Qwen2 technical
 * report", 2024; "Qwen3 technical report", 2025. */
#include "model/families/keys.h"

static const KeyRule keys2[] = {KEYS_SIZES, KEY_SILU, KEYS_STREAM, KEY_SLIDING, KEY_NO_DROPOUT, KEYS_END};
static const KeyRule keys3[] = {KEYS_SIZES,  KEY_SILU,       KEYS_STREAM, KEY_ATTENTION_BIAS,
                                KEY_SLIDING, KEY_NO_DROPOUT, KEYS_END};

static const PublishedSize sizes2[] = {
    {"Qwen2.5 0.5B", 151936, 896, 4864, 24, 14, 2, 64, true, 494032768},
    {"Qwen2.5 1.5B", 151936, 1536, 8960, 28, 12, 2, 128, true, 1543714304},
    {"Qwen2.5 7B", 152064, 3584, 18944, 28, 28, 4, 128, false, 7615616512},
    {.name = NULL},
};
static const PublishedSize sizes3[] = {
    {"Qwen3 0.6B", 151936, 1024, 3072, 28, 16, 8, 128, true, 596049920},
    {"Qwen3 1.7B", 151936, 2048, 6144, 28, 16, 8, 128, true, 1720574976},
    {"Qwen3 4B", 151936, 2560, 9728, 36, 32, 8, 128, true, 4022468096},
    {"Qwen3 8B", 151936, 4096, 12288, 36, 32, 8, 128, false, 8190735360},
    {"Qwen3 14B", 151936, 5120, 17408, 40, 40, 8, 128, false, 14768307200},
    {"Qwen3 32B", 151936, 5120, 25600, 64, 64, 8, 128, false, 32762123264},
    {.name = NULL},
};

#define DEFAULTS                                                                                            \
    .max_position_embeddings = 32768, .rms_norm_eps = 1e-6, .rope_theta = 10000, .rope_scaling = ROPE_NONE, \
    .sliding_window = 4096, .windows = {1, 1}, .bos_token_id = -1, .eos_token_id = -1

const Family family_qwen2 = {.model_type = "qwen2",
                             .architecture = "Qwen2ForCausalLM",
                             .arch = {.qkv_bias = true},
                             .defaults = {DEFAULTS},
                             .keys = keys2,
                             .window_keys = WINDOWS_BEHIND,
                             .sizes = sizes2};

const Family family_qwen3 = {.model_type = "qwen3",
                             .architecture = "Qwen3ForCausalLM",
                             .arch = {.qk_norm = QK_NORM_HEAD},
                             .defaults = {DEFAULTS, .head_dim = 128},
                             .keys = keys3,
                             .window_keys = WINDOWS_BEHIND,
                             .sizes = sizes3};
