/* The widths that a shape comes to, and the rules that every shape keeps, wherever it is from. */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>

/* Weights, gradients and two moments in fp32 then stay below 2^63 bytes. */
#define MAX_PARAMETERS ((int64_t)1 << 58)

int64_t model_dim(const ModelConfig *c, Dim dim) {
    int64_t query = c->num_attention_heads * c->head_dim, key = c->num_key_value_heads * c->head_dim;
    switch (dim) {
    case DIM_NONE: return 0;
    case DIM_ONE: return 1;
    case DIM_HIDDEN: return c->hidden_size;
    case DIM_QUERY: return query;
    case DIM_KEY: return key;
    case DIM_KEY_VALUE: return 2 * key;
    case DIM_QKV: return query + 2 * key;
    case DIM_HEADS: return c->num_attention_heads;
    case DIM_INTER: return c->intermediate_size;
    case DIM_GATE_UP: return 2 * c->intermediate_size;
    case DIM_VOCAB: return c->vocab_size;
    }
    return 0;
}

static ErrorCode check_size(const char *where, const char *key, int64_t value, int64_t max, Error *err) {
    if (value >= 1 && value <= max) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is %" PRId64 ", expected a number from 1 to %" PRId64, where,
                     key, value, max);
}

static ErrorCode check_sizes(const ModelConfig *c, const char *where, Error *err) {
    TRY(check_size(where, "vocab_size", c->vocab_size, MODEL_MAX_VOCAB, err));
    TRY(check_size(where, "hidden_size", c->hidden_size, MODEL_MAX_WIDTH, err));
    TRY(check_size(where, "intermediate_size", c->intermediate_size, MODEL_MAX_WIDTH, err));
    TRY(check_size(where, "num_hidden_layers", c->num_hidden_layers, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "num_attention_heads", c->num_attention_heads, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "num_key_value_heads", c->num_key_value_heads, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "head_dim", c->head_dim, MODEL_MAX_COUNT, err));
    return check_size(where, "max_position_embeddings", c->max_position_embeddings, MODEL_MAX_POSITIONS, err);
}

static ErrorCode check_divisions(const ModelConfig *c, const char *where, Error *err) {
    if (c->hidden_size % c->num_attention_heads != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: hidden_size %" PRId64 " is not a multiple of num_attention_heads %" PRId64,
                         where, c->hidden_size, c->num_attention_heads);
    if (c->num_attention_heads % c->num_key_value_heads != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: num_attention_heads %" PRId64
                         " is not a multiple of num_key_value_heads %" PRId64,
                         where, c->num_attention_heads, c->num_key_value_heads);
    if (c->head_dim % 2 != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: head_dim is %" PRId64 ", expected an even number (RoPE rotates pairs)", where,
                         c->head_dim);
    return OK;
}

static ErrorCode check_numbers(const ModelConfig *c, const char *where, Error *err) {
    if (!(c->rms_norm_eps >= 0.0 && c->rms_norm_eps <= 1.0))
        return error_set(err, ERR_CONFIG, "%s: rms_norm_eps is %g, expected a number from 0 to 1", where,
                         c->rms_norm_eps);
    if (!(c->rope_theta >= 1.0 && isfinite(c->rope_theta)))
        return error_set(err, ERR_CONFIG, "%s: rope_theta is %g, expected a number of at least 1", where,
                         c->rope_theta);
    if (c->bos_token_id < -1 || c->bos_token_id >= c->vocab_size)
        return error_set(err, ERR_CONFIG,
                         "%s: bos_token_id %" PRId64 " is outside the vocabulary of %" PRId64, where,
                         c->bos_token_id, c->vocab_size);
    if (c->eos_token_id < -1 || c->eos_token_id >= c->vocab_size)
        return error_set(err, ERR_CONFIG,
                         "%s: eos_token_id %" PRId64 " is outside the vocabulary of %" PRId64, where,
                         c->eos_token_id, c->vocab_size);
    return OK;
}

static ErrorCode check_scaling(const RopeScaling *s, const char *where, Error *err) {
    if (!(s->factor >= 1.0 && isfinite(s->factor)))
        return error_set(err, ERR_CONFIG, "%s: RoPE scaling factor is %g, expected 1 or more", where,
                         s->factor);
    if (s->factor <= 1.0) return OK;
    if (!(s->low_freq_factor > 0.0 && s->high_freq_factor > s->low_freq_factor &&
          isfinite(s->high_freq_factor)))
        return error_set(err, ERR_CONFIG,
                         "%s: RoPE scaling needs 0 < low_freq_factor < high_freq_factor, found %g and %g",
                         where, s->low_freq_factor, s->high_freq_factor);
    return check_size(where, "original_max_position_embeddings", s->original_max_position_embeddings,
                      MODEL_MAX_POSITIONS, err);
}

ErrorCode model_config_complete(ModelConfig *c, const char *where, Error *err) {
    if (c->num_key_value_heads == 0) c->num_key_value_heads = c->num_attention_heads;
    if (c->head_dim == 0 && c->num_attention_heads > 0) c->head_dim = c->hidden_size / c->num_attention_heads;
    if (c->rope_scaling.factor >= 1.0 && c->rope_scaling.factor <= 1.0) c->rope_scaling = ROPE_UNSCALED;
    TRY(check_sizes(c, where, err));
    TRY(check_divisions(c, where, err));
    TRY(check_numbers(c, where, err));
    TRY(check_scaling(&c->rope_scaling, where, err));
    if (model_parameter_count(c) > MAX_PARAMETERS)
        return error_set(err, ERR_CONFIG,
                         "%s: the sizes make more parameters than 64-bit byte counts can hold", where);
    return OK;
}
