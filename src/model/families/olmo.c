/* OLMo 2: norms after attention and MLP, and of q and k over all heads at once. OLMo 3: the same with windows
 * on three layers of four; RoPE is scaled only in the fourth.
 *
 * OLMo team, "2 OLMo 2 furious", 2025. The norm over all heads has a mean over H*D (G*D) elements, and
 * weights of that length. */
#include "model/families/keys.h"

static const KeyRule keys2[] = {KEYS_SIZES,         KEY_SILU,       KEYS_STREAM,
                                KEY_ATTENTION_BIAS, KEY_NO_DROPOUT, KEYS_END_UNPADDED};
static const KeyRule keys3[] = {KEYS_SIZES,  KEY_SILU,       KEYS_STREAM,      KEY_ATTENTION_BIAS,
                                KEY_SLIDING, KEY_NO_DROPOUT, KEYS_END_UNPADDED};

static const PublishedSize sizes2[] = {
    {"OLMo 2 1B", 100352, 2048, 8192, 16, 16, 16, 128, false, 1484916736},
    {"OLMo 2 7B", 100352, 4096, 11008, 32, 32, 32, 128, false, 7298617344},
    {"OLMo 2 13B", 100352, 5120, 13824, 40, 40, 40, 128, false, 13716198400},
    {"OLMo 2 32B", 100352, 5120, 27648, 64, 40, 8, 128, false, 32234279936},
    {.name = NULL},
};
static const PublishedSize sizes3[] = {
    {"OLMo 3 7B", 100278, 4096, 11008, 32, 32, 32, 128, false, 7298011136},
    {.name = NULL},
};

/* Without rope_local_theta: OLMo 3 has one base, and its second table differs only in having no scaling. */
#define DEFAULTS                                                                                          \
    .max_position_embeddings = 2048, .rms_norm_eps = 1e-5, .rope_scaling = ROPE_NONE, .bos_token_id = -1, \
    .eos_token_id = 50279

const Family family_olmo2 = {.model_type = "olmo2",
                             .architecture = "Olmo2ForCausalLM",
                             .arch = {.norms = NORMS_AFTER, .qk_norm = QK_NORM_FLAT},
                             .defaults = {DEFAULTS, .rope_theta = 10000},
                             .keys = keys2,
                             .sizes = sizes2};

const Family family_olmo3 = {
    .model_type = "olmo3",
    .architecture = "Olmo3ForCausalLM",
    .arch = {.norms = NORMS_AFTER, .qk_norm = QK_NORM_FLAT, .local_rotation = true},
    .defaults = {DEFAULTS, .rope_theta = 500000, .sliding_window = 4096, .windows = {4, 7}},
    .keys = keys3,
    .window_keys = WINDOWS_SOME,
    .sizes = sizes3};
