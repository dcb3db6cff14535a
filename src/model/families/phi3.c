/* Phi-3 and Phi-4: Llama with q, k, v stored as one matrix, and gate and up as another. RoPE scaling is
 * longrope, in Phi-4 mini and in Phi-3's models for 128 k tokens.
 *
 * A fused matrix has the bytes that weft keeps side by side anyway (model/params.h, invariant 2), so the same
 * products read a file's one parameter and Llama's three. Phi-4 mini has partial_rotary_factor, and rotates
 * three quarters of a head. Abdin et al., "Phi-3 technical report", 2024. */
#include "model/families/keys.h"

static const KeyRule keys[] = {
    KEYS_SIZES,
    KEY_SILU,
    KEYS_STREAM,
    KEY_SLIDING,
    KEY_NO_DROPOUT,
    {"resid_pdrop", KEY_ZERO, 0, false},
    {"embd_pdrop", KEY_ZERO, 0, false},
    KEYS_END_UNPADDED,
};

static const PublishedSize sizes[] = {
    {"Phi-3 mini", 32064, 3072, 8192, 32, 32, 32, 96, false, 3821079552},
    {"Phi-4", 100352, 5120, 17920, 40, 40, 10, 128, false, 14659507200},
    {"Phi-4 mini", 200064, 3072, 8192, 32, 24, 8, 128, true, 3836021760},
    {.name = NULL},
};

const Family family_phi3 = {
    .model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .arch = {.fused_qkv = true, .fused_gate_up = true, .partial_rotation = true, .longrope = true},
    .defaults = {.max_position_embeddings = 4096,
                 .rms_norm_eps = 1e-5,
                 .rope_theta = 10000,
                 .rope_scaling = {1, 1, 4, 4096, .beta_fast = 32, .beta_slow = 1, .truncate = true},
                 .windows = {1, 1},
                 .bos_token_id = 1,
                 .eos_token_id = 32000},
    .keys = keys,
    .sizes = sizes};
