/* Llama 1 to 3, and what is published in its form: SmolLM, TinyLlama, Yi, DeepSeek-LLM. The keys are those of
 * transformers' LlamaConfig, the defaults too. */
#include "model/families/family.h"

#define AT(field) offsetof(ModelConfig, field)
static const KeyRule keys[] = {
    {"vocab_size", KEY_SIZE, AT(vocab_size), true},
    {"hidden_size", KEY_SIZE, AT(hidden_size), true},
    {"intermediate_size", KEY_SIZE, AT(intermediate_size), true},
    {"num_hidden_layers", KEY_SIZE, AT(num_hidden_layers), true},
    {"num_attention_heads", KEY_SIZE, AT(num_attention_heads), true},
    {"num_key_value_heads", KEY_SIZE, AT(num_key_value_heads), false},
    {"head_dim", KEY_SIZE, AT(head_dim), false},
    {"hidden_act", KEY_ACTIVATION, 0, false},
    {"max_position_embeddings", KEY_SIZE, AT(max_position_embeddings), false},
    {"rms_norm_eps", KEY_NUMBER, AT(rms_norm_eps), false},
    {"rope_theta", KEY_ROTATION, 0, false},
    {"tie_word_embeddings", KEY_SWITCH, AT(tie_word_embeddings), false},
    {"attention_bias", KEY_SWITCH, AT(attention_bias), false},
    {"mlp_bias", KEY_SWITCH, AT(mlp_bias), false},
    {"attention_dropout", KEY_ZERO, 0, false},
    {"bos_token_id", KEY_TOKEN, AT(bos_token_id), false},
    {"eos_token_id", KEY_TOKEN, AT(eos_token_id), false},
    {.name = NULL},
};

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

const Family family_llama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .defaults = {.max_position_embeddings = 2048,
                 .rms_norm_eps = 1e-6,
                 .rope_theta = 10000,
                 .rope_scaling = {.factor = 1},
                 .bos_token_id = 1,
                 .eos_token_id = 2},
    .keys = keys,
    .mixer = &layer_attention,
    .mlp = &layer_mlp,
    .sizes = sizes,
};
