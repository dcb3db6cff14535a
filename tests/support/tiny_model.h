/* The smallest model with all features: grouped heads, a separate head size, sizes that are no multiples of a
 * vector. Tests change what they test. */
#ifndef WEFT_TESTS_TINY_MODEL_H
#define WEFT_TESTS_TINY_MODEL_H

#include "model/config.h"

static inline ModelConfig tiny_model(int64_t vocabulary, int64_t layers, int64_t positions) {
    return (ModelConfig){.vocab_size = vocabulary,
                         .hidden_size = 20,
                         .intermediate_size = 28,
                         .num_hidden_layers = layers,
                         .num_attention_heads = 4,
                         .num_key_value_heads = 2,
                         .head_dim = 6,
                         .max_position_embeddings = positions,
                         .rms_norm_eps = 1e-5,
                         .rope_theta = 100,
                         .bos_token_id = -1,
                         .eos_token_id = -1};
}

#endif
