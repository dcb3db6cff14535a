/* Which layers have windows, no RoPE, or no experts, in config.json. For windows transformers has many keys.
 * The list layer_types takes precedence over all others; otherwise
 *
 *     Mistral, Phi-3    sliding_window: all layers, or none if null
 *     Qwen 2 and 3      use_sliding_window; the layers from max_window_layers on
 *     Qwen 3 MoE        use_sliding_window; all layers
 *     Gemma, OLMo 3     a pattern of the family; sliding_window_pattern
 *     Llama 4           attention_chunk_size; the layers with RoPE
 *
 * weft writes the list, and the family's own keys with the same meaning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/families/family.h"

enum { BEHIND = 28, NO_ROPE_EVERY = 4 }; /* defaults of max_window_layers and no_rope_layer_interval */

/* A longer pattern does not fit: the mask must be exact as a double, since it goes through JSON. */
static ErrorCode refuse_pattern(const char *where, const char *key, Error *err) {
    return error_set(err, ERR_CONFIG,
                     "%s: the layers of %s follow no pattern of at most %d layers, which weft could hold",
                     where, key, LAYER_SET_PERIOD);
}

/* Reads an array of one item for each layer. has[i] is what `reads` returns for item i. */
static ErrorCode read_list(const cJSON *list, const char *where, const char *key, int64_t layers,
                           ErrorCode (*reads)(const cJSON *, const char *, bool *, Error *), LayerSet *out,
                           Error *err) {
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != layers)
        return error_set(err, ERR_CONFIG, "%s: %s is not a list of one item for each of %lld layers", where,
                         key, (long long)layers);
    bool *has = mem_alloc_array((size_t)layers, sizeof *has);
    const cJSON *item;
    ErrorCode code = OK;
    int64_t i = 0;
    cJSON_ArrayForEach(item, list) if (code == OK) code = reads(item, where, &has[i++], err);
    if (code == OK && !layer_set_find(out, has, layers)) code = refuse_pattern(where, key, err);
    free(has);
    return code;
}

static const char SLIDING[] = "sliding_attention", CHUNKED[] = "chunked_attention";

/* Whether a layer has the window, which layer_types calls `windowed`; the alternative is "full_attention". */
static ErrorCode read_type(const cJSON *item, const char *where, const char *windowed, bool *has,
                           Error *err) {
    const char *type = cJSON_IsString(item) ? item->valuestring : "(not a string)";
    char either[64];
    *has = strcmp(type, windowed) == 0;
    if (*has || strcmp(type, "full_attention") == 0) return OK;
    snprintf(either, sizeof either, "\"full_attention\" or \"%s\"", windowed);
    return family_refuse(where, "layer_types", type, either, err);
}

static ErrorCode read_layer_type(const cJSON *item, const char *where, bool *window, Error *err) {
    return read_type(item, where, SLIDING, window, err);
}

static ErrorCode read_chunk_type(const cJSON *item, const char *where, bool *chunk, Error *err) {
    return read_type(item, where, CHUNKED, chunk, err);
}

/* Despite the key's name, 1 means that the layer has RoPE. */
static ErrorCode read_no_rope_layer(const cJSON *item, const char *where, bool *no_rope, Error *err) {
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (value < 0 || value > 1 || (value > 0 && value < 1))
        return error_set(err, ERR_CONFIG, "%s: no_rope_layers holds something that is neither 0 nor 1",
                         where);
    *no_rope = value < 1;
    return OK;
}

/* Layers i for which (i + 1) % every is 0, or with `others` those for which it is not. */
static LayerSet every_layer(int64_t every, bool others) {
    int64_t last = INT64_C(1) << (every - 1);
    return (LayerSet){every, others ? last - 1 : last};
}

/* The layers, of the first `layers`, that are not in `s`. */
static ErrorCode other_layers(LayerSet s, int64_t layers, const char *where, LayerSet *out, Error *err) {
    *out = (LayerSet){0, 0};
    if (layers > MODEL_MAX_COUNT) return OK; /* the depth is refused later; do not allocate by it */
    bool *has = mem_alloc_array((size_t)layers, sizeof *has);
    for (int64_t i = 0; i < layers; i++) has[i] = !layer_set_has(s, i);
    bool found = layer_set_find(out, has, layers);
    free(has);
    return found ? OK : refuse_pattern(where, "no_rope_layers", err);
}

/* Layers from `first` on. */
static ErrorCode from_layer(int64_t first, int64_t layers, const char *where, LayerSet *out, Error *err) {
    *out = (LayerSet){0, 0};
    if (layers > MODEL_MAX_COUNT) return OK; /* the depth is refused later; do not allocate by it */
    bool *has = mem_alloc_array((size_t)layers, sizeof *has);
    for (int64_t i = first; i < layers; i++) has[i] = true;
    bool found = layer_set_find(out, has, layers);
    free(has);
    return found ? OK : refuse_pattern(where, "max_window_layers", err);
}

static ErrorCode read_pattern(const Family *f, ModelConfig *c, const cJSON *root, const char *where,
                              Error *err) {
    int64_t first = BEHIND, every = 0;
    if (c->sliding_window == 0) return OK;
    if (f->window_keys == WINDOWS_CHUNKS)
        return other_layers(c->no_rope, c->num_hidden_layers, where, &c->windows, err);
    if (family_reads(f, KEY_NO_ROPE)) { /* SmolLM3: layers without RoPE have windows */
        c->windows = c->no_rope;
        return OK;
    }
    if (f->window_keys == WINDOWS_SWITCH) return OK;
    if (f->window_keys == WINDOWS_BEHIND) {
        TRY(json_get_int(root, where, "max_window_layers", false, 0, MODEL_MAX_COUNT, &first, err));
        return from_layer(first, c->num_hidden_layers, where, &c->windows, err);
    }
    if (!f->arch.window_pattern) return OK; /* transformers ignores the key */
    TRY(json_get_int(root, where, "sliding_window_pattern", false, 1, LAYER_SET_PERIOD, &every, err));
    if (every > 0) c->windows = every_layer(every, true);
    return OK;
}

static const char *width_key(const Family *f) {
    return f->window_keys == WINDOWS_CHUNKS ? "attention_chunk_size" : "sliding_window";
}

/* null means no window; absent is the family's default. */
static ErrorCode read_width(const Family *f, ModelConfig *c, const cJSON *root, const char *where,
                            Error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, width_key(f));
    if (item != NULL && cJSON_IsNull(item)) c->sliding_window = 0;
    return json_get_int(root, where, width_key(f), false, 1, MODEL_MAX_POSITIONS, &c->sliding_window, err);
}

/* Refuses a list with windows where the width is not used: transformers fails on it, or has the window or not
 * depending on the attention kernel. Chunks may have any length. */
static ErrorCode check_used(const ModelConfig *c, bool used, const char *where, Error *err) {
    if (c->windows.period == 0 || c->sliding_window > 0) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: layer_types has \"sliding_attention\", but %s: expected a window, or "
                     "\"full_attention\"",
                     where, used ? "sliding_window is null" : "use_sliding_window is false");
}

/* The list takes precedence over the family's keys, as in transformers. The width of an unused window is read
 * all the same and then dropped; model_config_complete drops its layers. */
ErrorCode window_keys_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where,
                           Error *err) {
    const cJSON *types = family_member(root, "layer_types");
    bool all = f->window_keys == WINDOWS_ALL || f->window_keys == WINDOWS_SWITCH;
    bool chunks = f->window_keys == WINDOWS_CHUNKS,
         used = f->window_keys == WINDOWS_ALL || f->window_keys == WINDOWS_SOME || chunks;
    TRY(read_width(f, c, root, where, err));
    if (!used) TRY(json_get_bool(root, where, "use_sliding_window", false, &used, err));
    if (!used) c->sliding_window = 0;
    if (types != NULL)
        TRY(read_list(types, where, "layer_types", c->num_hidden_layers,
                      chunks ? read_chunk_type : read_layer_type, &c->windows, err));
    else
        TRY(read_pattern(f, c, root, where, err));
    if (types != NULL && !all && !chunks) TRY(check_used(c, used, where, err));
    /* transformers ignores the list in these families. */
    if (all && types != NULL && c->sliding_window > 0 && (c->windows.period != 1 || c->windows.layers != 1))
        return error_set(err, ERR_CONFIG,
                         "%s: layer_types are not those of the family %s, whose layers all have the window",
                         where, f->model_type);
    return OK;
}

/* A list, else every fourth layer, or the interval's. Published files of Llama 4 have an empty list. */
ErrorCode no_rope_read(ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    const cJSON *list = family_member(root, "no_rope_layers");
    bool none = model_family(c)->window_keys == WINDOWS_CHUNKS && cJSON_IsArray(list) && !list->child;
    int64_t every = NO_ROPE_EVERY;
    if (list != NULL && !none)
        return read_list(list, where, "no_rope_layers", c->num_hidden_layers, read_no_rope_layer, &c->no_rope,
                         err);
    TRY(json_get_int(root, where, "no_rope_layer_interval", false, 1, LAYER_SET_PERIOD, &every, err));
    c->no_rope = every_layer(every, false);
    return OK;
}

/* Sets has[layer] to `to` for each layer of a list. */
static ErrorCode read_numbers(const cJSON *list, const char *where, const char *key, int64_t layers, bool to,
                              bool *has, Error *err) {
    const cJSON *item;
    if (list != NULL && !cJSON_IsArray(list))
        return error_set(err, ERR_CONFIG, "%s: %s is not a list", where, key);
    cJSON_ArrayForEach(item, list) {
        double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(value >= 0 && value < (double)layers && (double)(int64_t)value >= value))
            return error_set(err, ERR_CONFIG, "%s: %s holds something that is no layer of 0 to %lld", where,
                             key, (long long)layers - 1);
        has[(int64_t)value] = to;
    }
    return OK;
}

/* Layer i has experts if (i + 1) % `step` is 0. The listed layers have none (KEY_DENSE), or are the only ones
 * with experts (KEY_SPARSE). */
typedef struct DenseKeys {
    const char *step, *list;
    bool listed; /* the listed layers are dense */
} DenseKeys;
static DenseKeys dense_keys(KeyKind kind) {
    return kind == KEY_DENSE ? (DenseKeys){"decoder_sparse_step", "mlp_only_layers", true}
                             : (DenseKeys){"interleave_moe_layer_step", "moe_layers", false};
}

ErrorCode dense_layers_read(KeyKind kind, ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    DenseKeys keys = dense_keys(kind);
    const cJSON *list = family_member(root, keys.list);
    int64_t step = 1, layers = c->num_hidden_layers;
    bool others = list != NULL && !keys.listed;
    TRY(json_get_int(root, where, keys.step, false, 1, MODEL_MAX_COUNT, &step, err));
    if (layers > MODEL_MAX_COUNT) return OK; /* the depth is refused later; do not allocate by it */
    bool *dense = mem_alloc_array((size_t)layers, sizeof *dense);
    for (int64_t i = 0; i < layers; i++) dense[i] = others || (i + 1) % step != 0;
    ErrorCode code = read_numbers(list, where, keys.list, layers, keys.listed, dense, err);
    if (code == OK && !layer_set_find(&c->dense_layers, dense, layers))
        code = refuse_pattern(where, keys.list, err);
    free(dense);
    return code;
}

/* ---- writing ---- */

static void write_layer_types(const ModelConfig *c, JsonWriter *w) {
    bool chunks = model_family(c)->window_keys == WINDOWS_CHUNKS;
    json_key(w, "layer_types");
    json_begin_array(w);
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        json_string(w, !layer_set_has(c->windows, i) ? "full_attention" : chunks ? CHUNKED : SLIDING);
    json_end_array(w);
}

/* Qwen's max_window_layers: the layers before it have no window. All layers if none has a window. */
static int64_t first_window(const ModelConfig *c) {
    int64_t i = 0;
    while (i < c->num_hidden_layers && !layer_set_has(c->windows, i)) i++;
    return i;
}

void window_keys_write(const ModelConfig *c, JsonWriter *w) {
    const Family *f = model_family(c);
    WindowKeys keys = f->window_keys;
    if (keys == WINDOWS_BEHIND || keys == WINDOWS_SWITCH)
        json_put_bool(w, "use_sliding_window", c->sliding_window > 0);
    if (c->sliding_window > 0)
        json_put_int(w, width_key(f), c->sliding_window);
    else
        json_put_null(w, width_key(f));
    if (keys == WINDOWS_BEHIND) json_put_int(w, "max_window_layers", first_window(c));
    if (keys == WINDOWS_BEHIND || keys == WINDOWS_SOME || keys == WINDOWS_CHUNKS) write_layer_types(c, w);
}

void dense_layers_write(KeyKind kind, const ModelConfig *c, JsonWriter *w) {
    DenseKeys keys = dense_keys(kind);
    json_put_int(w, keys.step, 1);
    json_key(w, keys.list);
    json_begin_array(w);
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        if (layer_set_has(c->dense_layers, i) == keys.listed) json_int(w, i);
    json_end_array(w);
}

void no_rope_write(const ModelConfig *c, JsonWriter *w) {
    json_key(w, "no_rope_layers");
    json_begin_array(w);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) json_int(w, layer_set_has(c->no_rope, i) ? 0 : 1);
    json_end_array(w);
}
