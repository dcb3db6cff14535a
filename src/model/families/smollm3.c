/* SmolLM3: Llama without RoPE in every fourth layer (Kazemnejad et al., "The impact of positional encoding on
 * length generalization in transformers", 2023).
 *
 * Both patterns are {4, 8}: bit 3 of every four layers. Layers without RoPE are also those with windows, if a
 * file asks for windows (window_keys.c); without use_sliding_window no layer has one. */
#include "model/families/keys.h"

/* no_rope_layers comes before sliding_window, whose layers are derived from it. */
static const KeyRule keys[] = {
    KEYS_SIZES,
    KEY_SILU,
    KEYS_STREAM,
    KEY_ATTENTION_BIAS,
    {"mlp_bias", KEY_SWITCH, AT(mlp_bias), false},
    {"no_rope_layers", KEY_NO_ROPE, 0, false},
    KEY_SLIDING,
    KEY_NO_DROPOUT,
    KEYS_END_UNPADDED,
};

static const PublishedSize sizes[] = {
    {"SmolLM3 3B", 128256, 2048, 11008, 36, 16, 4, 128, true, 3075098624},
    {.name = NULL},
};

const Family family_smollm3 = {.model_type = "smollm3",
                               .architecture = "SmolLM3ForCausalLM",
                               .defaults = {.max_position_embeddings = 32768,
                                            .rms_norm_eps = 1e-6,
                                            .rope_theta = 2000000,
                                            .rope_scaling = ROPE_NONE,
                                            .no_rope = {4, 8},
                                            .windows = {4, 8},
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 128000,
                                            .eos_token_id = 128001},
                               .keys = keys,
                               .window_keys = WINDOWS_BEHIND,
                               .sizes = sizes};
