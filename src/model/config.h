/* Shape of a model, by the names of Hugging Face's config.json. */
#ifndef WEFT_MODEL_CONFIG_H
#define WEFT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"

/* Largest sizes: of config.json and of the option table alike. */
#define MODEL_MAX_VOCAB (1 << 30)
#define MODEL_MAX_WIDTH (1 << 24)
#define MODEL_MAX_COUNT (1 << 16) /* of layers, of heads, of a head's elements */
#define MODEL_MAX_POSITIONS INT32_MAX

/* RoPE frequencies as in Llama 3.1 ("rope_type": "llama3"); factor 1 means none. */
typedef struct RopeScaling {
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
} RopeScaling;
#define ROPE_UNSCALED ((RopeScaling){1.0, 1.0, 4.0, 8192}) /* what stands there when there is none */

typedef struct ModelConfig {
    const struct Family *family; /* families/family.h; NULL: Llama */
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int64_t max_position_embeddings;
    double rms_norm_eps, rope_theta;
    RopeScaling rope_scaling;
    bool tie_word_embeddings, attention_bias, mlp_bias;
    int64_t bos_token_id, eos_token_id; /* -1: none */
} ModelConfig;

/* Widths that shapes of parameters and of activations are told in. */
typedef enum Dim {
    DIM_NONE, /* no such dimension: 0 */
    DIM_ONE,
    DIM_HIDDEN,    /* h */
    DIM_QUERY,     /* Q = H*D */
    DIM_KEY,       /* K = G*D */
    DIM_KEY_VALUE, /* 2K */
    DIM_QKV,       /* Q + 2K */
    DIM_HEADS,     /* H */
    DIM_INTER,     /* I */
    DIM_GATE_UP,   /* 2I */
    DIM_VOCAB      /* V */
} Dim;
int64_t model_dim(const ModelConfig *c, Dim dim);

/* Fills what may be left out (num_key_value_heads 0 = heads, head_dim 0 = hidden / heads) and checks every
 * rule: positive sizes, heads divide, head_dim even, products in 63 bits. `where` names the source. */
ErrorCode model_config_complete(ModelConfig *c, const char *where, Error *err);

/* config.json, both dialects (rope_theta + rope_scaling, or rope_parameters; torch_dtype or dtype), by the
 * rules of the family that it names. Refuses other model types, unsupported rope types and activations by
 * name. */
ErrorCode model_config_read(ModelConfig *c, const char *path, Error *err);
void model_config_write(const ModelConfig *c, const char *torch_dtype /* "bfloat16" */, Text *out);

int64_t model_parameter_count(const ModelConfig *c); /* tied weights once */
int64_t model_parameter_count_without_embedding(
    const ModelConfig *c); /* N of 6N: the head counts, the embedding does not */
/* Training FLOPs of one token: 6 N + 6 L d T (causal), with d = heads * head_dim, N without the embedding. */
double model_flops_per_token(const ModelConfig *c, int64_t context);

#endif
