/* Llama 1 to 3, and models published in its form: SmolLM, TinyLlama, Yi, DeepSeek-LLM. Keys and defaults are
 * those of transformers' LlamaConfig.
 *
 * Norms before attention and MLP, no biases unless a key asks for them, a SiLU gate: the meaning of an
 * all-zero Arch. Touvron et al., "LLaMA: open and efficient foundation language models", 2023; "The Llama 3
 * herd of models", 2024. */
#include "model/families/keys.h"

static const KeyRule keys[] = {
    KEYS_SIZES,     KEY_SILU, KEYS_STREAM, KEY_ATTENTION_BIAS, {"mlp_bias", KEY_SWITCH, AT(mlp_bias), false},
    KEY_NO_DROPOUT, KEYS_END,
};

/* Vocabulary, h, I, L, H, G, D, tied, parameters. RoPE of Llama 3.1 and later is scaled by llama3, which is
 * not part of a shape's name. */
static const PublishedSize sizes[] = {
    {"Llama 2 7B", 32000, 4096, 11008, 32, 32, 32, 128, false, 6738415616},
    {"Llama 2 13B", 32000, 5120, 13824, 40, 40, 40, 128, false, 13015864320},
    {"Llama 3.1 8B", 128256, 4096, 14336, 32, 32, 8, 128, false, 8030261248},
    {"Llama 3.1 70B", 128256, 8192, 28672, 80, 64, 8, 128, false, 70553706496},
    {"Llama 3.1 405B", 128256, 16384, 53248, 126, 128, 8, 128, false, 405853388800},
    {"Llama 3.2 1B", 128256, 2048, 8192, 16, 32, 8, 64, true, 1235814400},
    {"Llama 3.2 3B", 128256, 3072, 8192, 28, 24, 8, 128, true, 3212749824},
    {"TinyLlama 1.1B", 32000, 2048, 5632, 22, 32, 4, 64, false, 1100048384},
    {"SmolLM2 135M", 49152, 576, 1536, 30, 9, 3, 64, true, 134515008},
    {"SmolLM2 360M", 49152, 960, 2560, 32, 15, 5, 64, true, 361821120},
    {"SmolLM2 1.7B", 49152, 2048, 8192, 24, 32, 32, 64, true, 1711376384},
    {.name = NULL},
};

/* First in the table of families, so this entry reads a file without model_type. */
const Family family_llama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .arch = {.heads_divide = true},
    .defaults = {.max_position_embeddings = 2048,
                 .rms_norm_eps = 1e-6,
                 .rope_theta = 10000,
                 .rope_scaling = ROPE_NONE,
                 .bos_token_id = 1,
                 .eos_token_id = 2},
    .init = INIT_TORCHTITAN,
    .keys = keys,
    .sizes = sizes,
};
