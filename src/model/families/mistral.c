/* Mistral: Llama with a window on all layers, or on none (7B from v0.2 on, Nemo).
 *
 * A file without sliding_window has 4096, as in transformers' class; only null means no window. Jiang et al.,
 * "Mistral 7B", 2023. */
#include "model/families/keys.h"

static const KeyRule keys[] = {KEYS_SIZES, KEY_SILU, KEYS_STREAM, KEY_SLIDING, KEY_NO_DROPOUT, KEYS_END};

static const PublishedSize sizes[] = {
    {"Mistral 7B v0.1", 32000, 4096, 14336, 32, 32, 8, 128, false, 7241732096},
    {"Mistral 7B v0.3", 32768, 4096, 14336, 32, 32, 8, 128, false, 7248023552},
    {"Mistral Nemo", 131072, 5120, 14336, 40, 32, 8, 128, false, 12247782400},
    {.name = NULL},
};

const Family family_mistral = {.model_type = "mistral",
                               .architecture = "MistralForCausalLM",
                               .defaults = {.max_position_embeddings = 131072,
                                            .rms_norm_eps = 1e-6,
                                            .rope_theta = 10000,
                                            .rope_scaling = ROPE_NONE,
                                            .sliding_window = 4096,
                                            .windows = {1, 1},
                                            .bos_token_id = 1,
                                            .eos_token_id = 2},
                               .keys = keys,
                               .sizes = sizes};
