/* Reading, checking and writing the shape of a model.
 *
 * What transformers would read from a file is what weft reads, or weft refuses it: a key that changes the
 * mathematics and that weft does not implement is an error naming the key, never silently dropped. */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_FILE_LIMIT ((size_t)1 << 20)
/* Weights, gradients and two moments in fp32 then stay below 2^63 bytes. */
#define MAX_PARAMETERS ((int64_t)1 << 58)

/* Defaults of transformers' LlamaConfig for what a file may leave out. */
#define DEFAULT_POSITIONS 2048
#define DEFAULT_EPS 1e-6
#define DEFAULT_THETA 10000.0
#define DEFAULT_BOS 1
#define DEFAULT_EOS 2

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

static const cJSON *member(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item != NULL && !cJSON_IsNull(item) ? item : NULL;
}

static ErrorCode refuse(const char *where, const char *key, const char *found, const char *supported,
                        Error *err) {
    char shown[80];
    return error_set(err, ERR_CONFIG, "%s: %s \"%s\" is not supported, expected %s", where, key,
                     error_escape(shown, sizeof shown, found, strlen(found)), supported);
}

static ErrorCode check_architecture(const cJSON *root, const char *where, Error *err) {
    const cJSON *list = member(root, "architectures"), *item;
    if (list == NULL) return OK;
    if (!cJSON_IsArray(list)) return error_set(err, ERR_CONFIG, "%s: architectures is not a list", where);
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsString(item))
            return error_set(err, ERR_CONFIG, "%s: architectures holds something not a string", where);
        if (strcmp(item->valuestring, "LlamaForCausalLM") != 0)
            return refuse(where, "architecture", item->valuestring, "LlamaForCausalLM", err);
    }
    return OK;
}

static ErrorCode check_dtype(const cJSON *root, const char *where, Error *err) {
    const char *old = NULL, *new = NULL;
    TRY(json_get_string(root, where, "torch_dtype", false, &old, err));
    TRY(json_get_string(root, where, "dtype", false, &new, err));
    if (old != NULL && new != NULL && strcmp(old, new) != 0)
        return error_set(err, ERR_CONFIG, "%s: torch_dtype and dtype contradict each other; remove one",
                         where);
    return OK;
}

/* Keys that select another model than the one weft computes. */
static ErrorCode check_family(const cJSON *root, const char *where, Error *err) {
    const char *type = "llama", *act = "silu";
    double dropout = 0.0;
    if (!cJSON_IsObject(root)) return error_set(err, ERR_CONFIG, "%s: expected a JSON object", where);
    TRY(json_get_string(root, where, "model_type", false, &type, err));
    if (strcmp(type, "llama") != 0) return refuse(where, "model_type", type, "\"llama\"", err);
    TRY(check_architecture(root, where, err));
    TRY(json_get_string(root, where, "hidden_act", false, &act, err));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return refuse(where, "hidden_act", act, "\"silu\"", err);
    TRY(json_get_double(root, where, "attention_dropout", false, &dropout, err));
    if (!(dropout >= 0.0 && dropout <= 0.0))
        return error_set(err, ERR_CONFIG, "%s: attention_dropout is %g, expected 0: weft has no dropout",
                         where, dropout);
    if (member(root, "quantization_config") != NULL)
        return error_set(err, ERR_CONFIG, "%s: quantization_config is not supported, expected plain weights",
                         where);
    return check_dtype(root, where, err);
}

/* A token id: absent keeps the default, null is none, a list gives its first. */
static ErrorCode read_token_id(const cJSON *root, const char *where, const char *key, int64_t *out,
                               Error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (item == NULL) return OK;
    if (cJSON_IsArray(item)) item = item->child;
    if (item == NULL || cJSON_IsNull(item)) {
        *out = -1;
        return OK;
    }
    double value = cJSON_IsNumber(item) ? item->valuedouble : -2.0;
    if (!(value >= -1.0 && value < (double)MODEL_MAX_VOCAB) || floor(value) < value)
        return error_set(err, ERR_CONFIG,
                         "%s: %s is not a token id (a whole number, a list of them, or null)", where, key);
    *out = (int64_t)value;
    return OK;
}

static ErrorCode read_rope_type(const cJSON *rope, const char *where, const char **type, Error *err) {
    const char *old = NULL, *new = NULL;
    TRY(json_get_string(rope, where, "type", false, &old, err));
    TRY(json_get_string(rope, where, "rope_type", false, &new, err));
    if (old != NULL && new != NULL && strcmp(old, new) != 0)
        return error_set(err, ERR_CONFIG, "%s: RoPE type and rope_type contradict each other; remove one",
                         where);
    *type = new != NULL ? new : old != NULL ? old : "default";
    return OK;
}

static ErrorCode read_scaling(const cJSON *rope, const char *where, RopeScaling *out, Error *err) {
    const char *type = NULL;
    double partial = 1.0;
    *out = ROPE_UNSCALED;
    TRY(read_rope_type(rope, where, &type, err));
    TRY(json_get_double(rope, where, "partial_rotary_factor", false, &partial, err));
    if (!(partial >= 1.0 && partial <= 1.0))
        return error_set(err, ERR_CONFIG, "%s: partial_rotary_factor is %g, expected 1", where, partial);
    if (strcmp(type, "default") == 0) return OK;
    if (strcmp(type, "llama3") != 0)
        return refuse(where, "RoPE type", type, "\"default\" or \"llama3\"", err);
    TRY(json_get_double(rope, where, "factor", true, &out->factor, err));
    TRY(json_get_double(rope, where, "low_freq_factor", true, &out->low_freq_factor, err));
    TRY(json_get_double(rope, where, "high_freq_factor", true, &out->high_freq_factor, err));
    return json_get_int(rope, where, "original_max_position_embeddings", true, 1, MODEL_MAX_POSITIONS,
                        &out->original_max_position_embeddings, err);
}

static bool same_number(double a, double b) { return a >= b && a <= b; }

static bool same_scaling(const RopeScaling *a, const RopeScaling *b) {
    return same_number(a->factor, b->factor) && same_number(a->low_freq_factor, b->low_freq_factor) &&
           same_number(a->high_freq_factor, b->high_freq_factor) &&
           a->original_max_position_embeddings == b->original_max_position_embeddings;
}

/* The two dialects: rope_theta and rope_scaling of transformers 4, one rope_parameters of transformers 5. */
static ErrorCode read_rope(ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    const cJSON *old = member(root, "rope_scaling"), *new = member(root, "rope_parameters");
    RopeScaling scaling;
    double theta = DEFAULT_THETA;
    c->rope_scaling = ROPE_UNSCALED;
    c->rope_theta = DEFAULT_THETA;
    if ((old != NULL && !cJSON_IsObject(old)) || (new != NULL && !cJSON_IsObject(new)))
        return error_set(err, ERR_CONFIG, "%s: rope_scaling and rope_parameters must be objects", where);
    TRY(json_get_double(root, where, "rope_theta", false, &c->rope_theta, err));
    if (old != NULL) TRY(read_scaling(old, where, &c->rope_scaling, err));
    if (new == NULL) return OK;
    theta = c->rope_theta;
    TRY(json_get_double(new, where, "rope_theta", false, &theta, err));
    TRY(read_scaling(new, where, &scaling, err));
    if (member(root, "rope_theta") != NULL && !same_number(theta, c->rope_theta))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_theta %g and rope_parameters.rope_theta %g contradict each other", where,
                         c->rope_theta, theta);
    if (old != NULL && !same_scaling(&scaling, &c->rope_scaling))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_scaling and rope_parameters contradict each other; remove one", where);
    c->rope_theta = theta;
    c->rope_scaling = scaling;
    return OK;
}

static ErrorCode read_members(ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    const int64_t max = MODEL_MAX_POSITIONS;
    TRY(json_get_int(root, where, "vocab_size", true, 1, max, &c->vocab_size, err));
    TRY(json_get_int(root, where, "hidden_size", true, 1, max, &c->hidden_size, err));
    TRY(json_get_int(root, where, "intermediate_size", true, 1, max, &c->intermediate_size, err));
    TRY(json_get_int(root, where, "num_hidden_layers", true, 1, max, &c->num_hidden_layers, err));
    TRY(json_get_int(root, where, "num_attention_heads", true, 1, max, &c->num_attention_heads, err));
    TRY(json_get_int(root, where, "num_key_value_heads", false, 1, max, &c->num_key_value_heads, err));
    TRY(json_get_int(root, where, "head_dim", false, 1, max, &c->head_dim, err));
    TRY(json_get_int(root, where, "max_position_embeddings", false, 1, max, &c->max_position_embeddings,
                     err));
    TRY(json_get_double(root, where, "rms_norm_eps", false, &c->rms_norm_eps, err));
    TRY(json_get_bool(root, where, "tie_word_embeddings", false, &c->tie_word_embeddings, err));
    TRY(json_get_bool(root, where, "attention_bias", false, &c->attention_bias, err));
    TRY(json_get_bool(root, where, "mlp_bias", false, &c->mlp_bias, err));
    TRY(read_token_id(root, where, "bos_token_id", &c->bos_token_id, err));
    TRY(read_token_id(root, where, "eos_token_id", &c->eos_token_id, err));
    return read_rope(c, root, where, err);
}

static ErrorCode config_from_json(ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    ModelConfig read = {.max_position_embeddings = DEFAULT_POSITIONS,
                        .rms_norm_eps = DEFAULT_EPS,
                        .bos_token_id = DEFAULT_BOS,
                        .eos_token_id = DEFAULT_EOS};
    TRY(check_family(root, where, err));
    TRY(read_members(&read, root, where, err));
    /* The defaults name tokens of Llama's own vocabulary, which a tiny one may not have. */
    if (member(root, "bos_token_id") == NULL && read.bos_token_id >= read.vocab_size) read.bos_token_id = -1;
    if (member(root, "eos_token_id") == NULL && read.eos_token_id >= read.vocab_size) read.eos_token_id = -1;
    TRY(model_config_complete(&read, where, err));
    *c = read;
    return OK;
}

ErrorCode model_config_read(ModelConfig *c, const char *path, Error *err) {
    cJSON *root = NULL;
    TRY(json_read(path, CONFIG_FILE_LIMIT, &root, err));
    ErrorCode code = config_from_json(c, root, path, err);
    cJSON_Delete(root);
    return code;
}

static void write_int(JsonWriter *w, const char *key, int64_t value) {
    json_key(w, key);
    json_int(w, value);
}

/* transformers tells 8.0 from 8, and warns about the latter. */
static void write_double(JsonWriter *w, const char *key, double value) {
    json_key(w, key);
    size_t start = w->out->length;
    json_double(w, value);
    if (strpbrk(w->out->data + start, ".en") == NULL) text_puts(w->out, ".0");
}

static void write_bool(JsonWriter *w, const char *key, bool value) {
    json_key(w, key);
    json_bool(w, value);
}

static void write_string(JsonWriter *w, const char *key, const char *value) {
    json_key(w, key);
    json_string(w, value);
}

static void write_token_id(JsonWriter *w, const char *key, int64_t id) {
    json_key(w, key);
    if (id < 0)
        json_null(w);
    else
        json_int(w, id);
}

static void write_scaling(JsonWriter *w, const RopeScaling *s) {
    json_key(w, "rope_scaling");
    if (s->factor <= 1.0) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    write_string(w, "rope_type", "llama3");
    write_double(w, "factor", s->factor);
    write_double(w, "low_freq_factor", s->low_freq_factor);
    write_double(w, "high_freq_factor", s->high_freq_factor);
    write_int(w, "original_max_position_embeddings", s->original_max_position_embeddings);
    json_end_object(w);
}

/* transformers names types its own way. */
static const char *torch_name(const char *dtype_name) {
    if (strcmp(dtype_name, "bf16") == 0) return "bfloat16";
    if (strcmp(dtype_name, "fp16") == 0) return "float16";
    return strcmp(dtype_name, "fp32") == 0 ? "float32" : dtype_name;
}

/* The dialect of transformers 4, which transformers 5 reads too. */
void model_config_write(const ModelConfig *c, const char *dtype_name, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_key(&w, "architectures");
    json_begin_array(&w);
    json_string(&w, "LlamaForCausalLM");
    json_end_array(&w);
    write_string(&w, "model_type", "llama");
    write_int(&w, "vocab_size", c->vocab_size);
    write_int(&w, "hidden_size", c->hidden_size);
    write_int(&w, "intermediate_size", c->intermediate_size);
    write_int(&w, "num_hidden_layers", c->num_hidden_layers);
    write_int(&w, "num_attention_heads", c->num_attention_heads);
    write_int(&w, "num_key_value_heads", c->num_key_value_heads);
    write_int(&w, "head_dim", c->head_dim);
    write_string(&w, "hidden_act", "silu");
    write_int(&w, "max_position_embeddings", c->max_position_embeddings);
    write_double(&w, "rms_norm_eps", c->rms_norm_eps);
    write_double(&w, "rope_theta", c->rope_theta);
    write_scaling(&w, &c->rope_scaling);
    write_bool(&w, "tie_word_embeddings", c->tie_word_embeddings);
    write_bool(&w, "attention_bias", c->attention_bias);
    write_bool(&w, "mlp_bias", c->mlp_bias);
    write_double(&w, "attention_dropout", 0.0);
    write_token_id(&w, "bos_token_id", c->bos_token_id);
    write_token_id(&w, "eos_token_id", c->eos_token_id);
    write_bool(&w, "use_cache", true);
    write_string(&w, "torch_dtype", torch_name(dtype_name));
    json_end_object(&w);
    text_puts(out, "\n");
}
