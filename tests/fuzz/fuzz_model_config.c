/* Fuzzes config.json of a model. An accepted one has finite counts, and is written so that it reads back the
 * same. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "model/config.h"

enum { PER_BYTE = 128, FIXED = 1 << 16 };

static bool same_double(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

static bool same_scaling(const RopeScaling *a, const RopeScaling *b) {
    if (a->factor <= 1.0 && b->factor <= 1.0) return true;
    return same_double(a->factor, b->factor) && same_double(a->low_freq_factor, b->low_freq_factor) &&
           same_double(a->high_freq_factor, b->high_freq_factor) &&
           a->original_max_position_embeddings == b->original_max_position_embeddings;
}

static bool same(const ModelConfig *a, const ModelConfig *b) {
    bool sizes = a->vocab_size == b->vocab_size && a->hidden_size == b->hidden_size &&
                 a->intermediate_size == b->intermediate_size &&
                 a->num_hidden_layers == b->num_hidden_layers &&
                 a->num_attention_heads == b->num_attention_heads &&
                 a->num_key_value_heads == b->num_key_value_heads && a->head_dim == b->head_dim &&
                 a->max_position_embeddings == b->max_position_embeddings;
    bool switches = a->tie_word_embeddings == b->tie_word_embeddings &&
                    a->attention_bias == b->attention_bias && a->mlp_bias == b->mlp_bias &&
                    a->bos_token_id == b->bos_token_id && a->eos_token_id == b->eos_token_id;
    return sizes && switches && same_double(a->rms_norm_eps, b->rms_norm_eps) &&
           same_double(a->rope_theta, b->rope_theta) && same_scaling(&a->rope_scaling, &b->rope_scaling);
}

static void check_counts(const ModelConfig *c) {
    int64_t all = model_parameter_count(c), counted = model_active_count_without_embedding(c);
    REQUIRE(all > 0 && counted > 0 && counted <= all && all <= INT64_MAX / 4);
    REQUIRE(isfinite(model_flops_per_token(c, c->max_position_embeddings)));
    REQUIRE(c->num_attention_heads % c->num_key_value_heads == 0 && c->head_dim % 2 == 0 && c->head_dim > 0);
    REQUIRE(isfinite(c->rms_norm_eps) && isfinite(c->rope_theta) && c->rope_theta > 0);
    REQUIRE(c->bos_token_id < c->vocab_size && c->eos_token_id < c->vocab_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    ModelConfig c = {0}, again = {0};
    const char *path = fuzz_file("config.json", data, size);
    fuzz_memory_start();
    bool good = fuzz_ok(model_config_read(&c, path, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (!good) return 0;
    check_counts(&c);
    Text text = {0};
    model_config_write(&c, "bfloat16", &text);
    if (!fuzz_ok(model_config_read(&again, fuzz_file("written.json", text.data, text.length), &err), &err))
        fuzz_fail(__FILE__, __LINE__, "what was written reads back", err.message);
    if (!same(&c, &again)) fuzz_fail(__FILE__, __LINE__, "it reads back to the same", text.data);
    text_free(&text);
    return 0;
}
