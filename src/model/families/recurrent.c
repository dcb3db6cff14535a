/* Recurrences in place of attention, or mixed with it: minGRU, minLSTM, Hawk and Mamba-2. Blocks with
 * attention are as in Llama.
 *
 * The family is weft's own: transformers has no class for it, and no other program uses its names and keys.
 * In config.json layer_types is a list of one mixer for each layer. */
#include <stdlib.h>

#include "base/memory.h"
#include "model/families/keys.h"

static const KeyRule keys[] = {
    KEYS_SIZES,
    {"layer_types", KEY_MIXERS, 0, true},
    {"recurrent_size", KEY_SIZE, AT(recurrent_size), false},
    {"conv_size", KEY_COUNT, AT(conv_size), false},
    {"mamba_d_state", KEY_COUNT, AT(mamba_d_state), false},
    {"mamba_d_head", KEY_COUNT, AT(mamba_d_head), false},
    {"mamba_n_groups", KEY_COUNT, AT(mamba_n_groups), false},
    KEY_SILU,
    KEYS_STREAM,
    KEYS_END,
};

static const PublishedSize sizes[] = {{.name = NULL}};

const Family family_recurrent = {.model_type = "recurrent",
                                 .architecture = "WeftRecurrentForCausalLM",
                                 .defaults = {.max_position_embeddings = 2048,
                                              .rms_norm_eps = 1e-5,
                                              .rope_theta = 10000,
                                              .rope_scaling = ROPE_NONE,
                                              .conv_size = 4,
                                              .bos_token_id = -1,
                                              .eos_token_id = -1},
                                 .init = INIT_LINGUA,
                                 .keys = keys,
                                 .sizes = sizes};

static ErrorCode read_kinds(const cJSON *list, const char *where, uint8_t *kinds, Error *err) {
    const cJSON *item;
    int64_t i = 0;
    cJSON_ArrayForEach(item, list) {
        const char *name = cJSON_IsString(item) ? item->valuestring : "(not a string)";
        Mixer mixer;
        if (!mixer_find(name, &mixer)) return family_refuse(where, "layer_types", name, MIXER_NAMES, err);
        kinds[i++] = (uint8_t)mixer;
    }
    return OK;
}

ErrorCode mixers_read(ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    const cJSON *list = family_member(root, "layer_types");
    int64_t layers = c->num_hidden_layers;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != layers)
        return error_set(err, ERR_CONFIG,
                         "%s: layer_types is not a list of one mixer for each of %lld layers", where,
                         (long long)layers);
    uint8_t *kinds = mem_alloc_array((size_t)layers, sizeof *kinds);
    ErrorCode code = read_kinds(list, where, kinds, err);
    if (code == OK && !mixers_find(&c->mixers, kinds, layers))
        code = error_set(err, ERR_CONFIG,
                         "%s: layer_types follow no pattern of at most %d layers, which weft could hold",
                         where, MIXER_PERIOD);
    free(kinds);
    return code;
}

void mixers_write(const ModelConfig *c, JsonWriter *w) {
    json_key(w, "layer_types");
    json_begin_array(w);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) json_string(w, mixer_name(mixer_of(&c->mixers, i)));
    json_end_array(w);
}
