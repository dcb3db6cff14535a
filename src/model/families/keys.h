/* Keys of config.json that many families share, for their entries. */
#ifndef WEFT_MODEL_FAMILIES_KEYS_H
#define WEFT_MODEL_FAMILIES_KEYS_H

#include "model/families/family.h"

#define AT(field) offsetof(ModelConfig, field)

/* clang-format off */
#define KEYS_SIZES                                                          \
    {"vocab_size", KEY_SIZE, AT(vocab_size), true},                         \
    {"hidden_size", KEY_SIZE, AT(hidden_size), true},                       \
    {"intermediate_size", KEY_SIZE, AT(intermediate_size), true},           \
    {"num_hidden_layers", KEY_SIZE, AT(num_hidden_layers), true},           \
    {"num_attention_heads", KEY_SIZE, AT(num_attention_heads), true},       \
    {"num_key_value_heads", KEY_SIZE, AT(num_key_value_heads), false},      \
    {"head_dim", KEY_SIZE, AT(head_dim), false}

/* RoPE keys may depend on the longest context, so they come after it. */
#define KEYS_STREAM                                                         \
    {"max_position_embeddings", KEY_SIZE, AT(max_position_embeddings), false}, \
    {"rms_norm_eps", KEY_NUMBER, AT(rms_norm_eps), false},                  \
    {"rope_theta", KEY_ROTATION, 0, false},                                 \
    {"tie_word_embeddings", KEY_SWITCH, AT(tie_word_embeddings), false}

#define KEYS_TOKENS                                                         \
    {"bos_token_id", KEY_TOKEN, AT(bos_token_id), false},                   \
    {"eos_token_id", KEY_ENDS, AT(eos_token_id), false}
#define KEYS_END                                                            \
    KEYS_TOKENS, {"pad_token_id", KEY_PAD, AT(pad_token_id), false}, {.name = NULL}
#define KEYS_END_UNPADDED                                                   \
    KEYS_TOKENS, {"pad_token_id", KEY_UNPADDED, AT(pad_token_id), false}, {.name = NULL}

#define KEY_SILU {"hidden_act", KEY_ACTIVATION, 0, false}
#define KEY_ATTENTION_BIAS {"attention_bias", KEY_SWITCH, AT(attention_bias), false}
#define KEY_NO_DROPOUT {"attention_dropout", KEY_ZERO, 0, false}
/* router_aux_loss_coef counts only where output_router_logits is true, as in transformers. */
#define KEYS_ROUTER                                                         \
    {"num_experts_per_tok", KEY_SIZE, AT(num_experts_per_tok), false},      \
    {"router_aux_loss_coef", KEY_NUMBER, AT(router_aux_loss_coef), false},  \
    {"output_router_logits", KEY_SWITCH, AT(output_router_logits), false}
#define NUM_EXPERTS {"num_experts", KEY_EXPERTS, AT(num_experts), false}
#define KEY_NORM_TOPK {"norm_topk_prob", KEY_SWITCH, AT(norm_topk_prob), false}
#define KEY_SLIDING {"sliding_window", KEY_WINDOWS, 0, false}
/* clang-format on */

#endif
