/* Gemma 2: four norms per block, norm weights stored minus 1, an embedding scaled by the square root of its
 * width, GELU gates, caps on scores and logits, windows on every other layer. Gemma 3 (text): no caps, norms
 * of q and k instead, windows on five layers of six, with a RoPE base of their own. Gemma team, "Gemma 2",
 * 2024; "Gemma 3 technical report", 2025. */
#include "model/families/keys.h"

/* clang-format off */
#define KEYS_GEMMA                                                                   \
    {"hidden_activation", KEY_ACTIVATION, 0, false}, KEYS_STREAM, KEY_ATTENTION_BIAS, \
    KEY_SLIDING, {"query_pre_attn_scalar", KEY_WHOLE, AT(query_pre_attn_scalar), false}, \
    {"final_logit_softcapping", KEY_OPTIONAL, AT(final_logit_softcapping), false}, \
    {"use_bidirectional_attention", KEY_FALSE, 0, false}, KEY_NO_DROPOUT
/* clang-format on */

static const KeyRule keys2[] = {
    KEYS_SIZES,
    KEYS_GEMMA,
    {"attn_logit_softcapping", KEY_OPTIONAL, AT(attn_logit_softcapping), false},
    KEYS_END_UNPADDED,
};
static const KeyRule keys3[] = {
    KEYS_SIZES,
    KEYS_GEMMA,
    {"attn_logit_softcapping", KEY_NONE, 0, false}, /* ignored by transformers */
    KEYS_END_UNPADDED,
};

static const PublishedSize sizes2[] = {
    {"Gemma 2 2B", 256000, 2304, 9216, 26, 8, 4, 256, true, 2614341888},
    {"Gemma 2 9B", 256000, 3584, 14336, 42, 16, 8, 256, true, 9241705984},
    {"Gemma 2 27B", 256000, 4608, 36864, 46, 32, 16, 128, true, 27227128320},
    {.name = NULL},
};
static const PublishedSize sizes3[] = {
    {"Gemma 3 270M", 262144, 640, 2048, 18, 4, 1, 256, true, 268098176},
    {"Gemma 3 1B", 262144, 1152, 6912, 26, 4, 1, 256, true, 999885952},
    {"Gemma 3 text 4B", 262208, 2560, 10240, 34, 8, 4, 256, true, 3880263168},
    {"Gemma 3 text 12B", 262208, 3840, 15360, 48, 16, 8, 256, true, 11766034176},
    {"Gemma 3 text 27B", 262208, 5376, 21504, 62, 32, 16, 128, true, 27009346304},
    {.name = NULL},
};

/* Norm weights are stored minus 1 (x r (1 + w)), so they start as 0. */
#define ARCH \
    .norms = NORMS_AROUND, .norm = NORM_RMS_PLUS_ONE, .activation = ACT_GELU_TANH, .scale_embedding = true
#define DEFAULTS                                                                                    \
    .rms_norm_eps = 1e-6, .rope_scaling = ROPE_NONE, .head_dim = 256, .query_pre_attn_scalar = 256, \
    .sliding_window = 4096, .tie_word_embeddings = true, .bos_token_id = 2, .eos_token_id = 1

/* Windows on layers 0, 2, 4, ...: pattern {2, 1}. */
const Family family_gemma2 = {.model_type = "gemma2",
                              .architecture = "Gemma2ForCausalLM",
                              .arch = {ARCH, .heads_divide = true},
                              .defaults = {DEFAULTS, .max_position_embeddings = 8192, .rope_theta = 10000,
                                           .windows = {2, 1}, .attn_logit_softcapping = 50,
                                           .final_logit_softcapping = 30},
                              .keys = keys2,
                              .window_keys = WINDOWS_SOME,
                              .sizes = sizes2};

/* Five layers with windows, then one without: pattern {6, 31}, bits 0 to 4. RoPE has base 1e6 in the latter,
 * where scaling applies, and 1e4 in the others. */
const Family family_gemma3_text = {.model_type = "gemma3_text",
                                   .architecture = "Gemma3ForCausalLM",
                                   .arch = {ARCH, .qk_norm = QK_NORM_HEAD, .window_pattern = true,
                                            .local_rotation = true, .heads_divide = true},
                                   .defaults = {DEFAULTS, .max_position_embeddings = 131072,
                                                .rope_theta = 1000000, .rope_local_theta = 10000,
                                                .windows = {6, 31}},
                                   .keys = keys3,
                                   .window_keys = WINDOWS_SOME,
                                   .sizes = sizes3};
