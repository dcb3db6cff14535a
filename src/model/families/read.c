/* Reads config.json by the rules of its family: one rule per key, in the order of the entry, since the
 * meaning of some keys depends on earlier ones (the number of layers comes before lists with an item per
 * layer).
 *
 * Everything is read into a copy that starts as the family's defaults. The caller's shape is set only after
 * everything was read and checked, so a refused file leaves no half-filled shape. Keys without a rule are
 * ignored, as in transformers: files have many that do not affect the mathematics, and those that would have
 * a rule that refuses them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/families/family.h"

#define CONFIG_FILE_LIMIT ((size_t)1 << 20)

/* null counts as absent: transformers writes it for values that were never set. */
const cJSON *family_member(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item != NULL && !cJSON_IsNull(item) ? item : NULL;
}

/* `found` comes from an untrusted file: it is escaped and truncated before it is shown. */
ErrorCode family_refuse(const char *where, const char *key, const char *found, const char *supported,
                        Error *err) {
    char shown[80];
    return error_set(err, ERR_CONFIG, "%s: %s \"%s\" is not supported, expected %s", where, key,
                     error_escape(shown, sizeof shown, found, strlen(found)), supported);
}

/* A family's model_type is shared by classes that are not language models (classifiers, for example), whose
 * files lack the head. */
static ErrorCode check_architecture(const Family *f, const cJSON *root, const char *where, Error *err) {
    const cJSON *list = family_member(root, "architectures"), *item;
    if (list == NULL) return OK;
    if (!cJSON_IsArray(list)) return error_set(err, ERR_CONFIG, "%s: architectures is not a list", where);
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsString(item))
            return error_set(err, ERR_CONFIG, "%s: architectures holds something not a string", where);
        if (strcmp(item->valuestring, f->architecture) != 0)
            return family_refuse(where, "architecture", item->valuestring, f->architecture, err);
    }
    return OK;
}

/* The dtype itself does not matter, since tensors have their own. Two that differ suggest a damaged file. */
static ErrorCode check_dtype(const cJSON *root, const char *where, Error *err) {
    const char *old = NULL, *new = NULL;
    TRY(json_get_string(root, where, "torch_dtype", false, &old, err));
    TRY(json_get_string(root, where, "dtype", false, &new, err));
    if (old != NULL && new != NULL && strcmp(old, new) != 0)
        return error_set(err, ERR_CONFIG, "%s: torch_dtype and dtype contradict each other; remove one",
                         where);
    return OK;
}

/* Refuses quantized weights, except MXFP4 in families whose experts are published in it
 * (checkpoint/packed.h). */
static ErrorCode check_plain(const Family *f, const cJSON *root, const char *where, Error *err) {
    const cJSON *quantized = family_member(root, "quantization_config");
    const char *method = "of no quant_method";
    if (quantized == NULL) return OK;
    if (cJSON_IsObject(quantized))
        TRY(json_get_string(quantized, where, "quant_method", false, &method, err));
    if (f->arch.packed_experts && strcmp(method, "mxfp4") == 0) return OK;
    return family_refuse(where, "quantization_config", method,
                         "weights as bf16 or fp32: convert them, and leave the key out", err);
}

/* transformers treats null as false here. */
static ErrorCode check_causal(const cJSON *root, const char *where, Error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "is_causal");
    if (item == NULL || cJSON_IsTrue(item)) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: is_causal is not true: weft trains models whose tokens see those before them alone",
                     where);
}

/* transformers takes the value of the second name, so it must equal that of the first. */
static ErrorCode check_aliases(const Family *f, const cJSON *root, const char *where, Error *err) {
    for (const KeyAlias *a = f->aliases; a && a->name; a++) {
        const cJSON *item = family_member(root, a->name), *key = family_member(root, a->key);
        if (item != NULL && (key == NULL || !cJSON_Compare(item, key, true)))
            return error_set(err, ERR_CONFIG,
                             "%s: %s is another name of %s in the family %s, which %s: use %s alone", where,
                             a->name, a->key, f->model_type, key != NULL ? "has another value" : "is missing",
                             a->key);
    }
    return OK;
}

/* Checks keys of any family that select another model than the one weft computes. */
static ErrorCode check_root(const Family *f, const cJSON *root, const char *where, Error *err) {
    TRY(check_architecture(f, root, where, err));
    TRY(check_causal(root, where, err));
    TRY(check_aliases(f, root, where, err));
    TRY(check_plain(f, root, where, err));
    return check_dtype(root, where, err);
}

/* Reads a token id: absent keeps the default, null is none, a list gives its first. */
static ErrorCode read_token(const cJSON *root, const char *where, const char *key, int64_t *out, Error *err) {
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

static ErrorCode read_ends(ModelConfig *c, const cJSON *root, const char *where, const KeyRule *k,
                           Error *err) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, k->name), *item;
    TRY(read_token(root, where, k->name, &c->eos_token_id, err));
    c->more_eos.count = 0;
    if (!cJSON_IsArray(list) || !list->child) return OK;
    for (item = list->child->next; item; item = item->next) {
        if (c->more_eos.count == TOKEN_IDS)
            return error_set(err, ERR_CONFIG, "%s: %s has more than %d ids", where, k->name, TOKEN_IDS + 1);
        if (!cJSON_IsNumber(item) ||
            !(item->valuedouble >= 0 && item->valuedouble < (double)MODEL_MAX_VOCAB) ||
            floor(item->valuedouble) < item->valuedouble)
            return error_set(err, ERR_CONFIG, "%s: %s holds what is no token id", where, k->name);
        c->more_eos.ids[c->more_eos.count++] = (int64_t)item->valuedouble;
    }
    return OK;
}

/* Old files have -1 for none, and some name a row that the embedding lacks. Neither is a token. */
static void read_pad(ModelConfig *c, const cJSON *root, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
    c->has_pad = id >= 0 && id < (double)c->vocab_size;
    c->pad_token_id = c->has_pad ? (int64_t)id : 0;
}

/* Default ids are tokens of the family's own vocabulary, which a tiny model may not have. */
static void drop_token(const cJSON *root, const char *key, int64_t vocab, int64_t *id) {
    if (family_member(root, key) == NULL && *id >= vocab) *id = -1;
}

/* What config.json calls an activation. `gelu` is not among the names: it is the exact function, with erf. */
static const char *const *activation_names(Activation f) {
    static const char *const silu[] = {"silu", "swish", NULL};
    static const char *const gelu_tanh[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", NULL};
    static const char *const none[] = {NULL};
    switch (f) {
    case ACT_SILU:
    case ACT_CLAMPED: return silu; /* gpt-oss's is named by its gate's function */
    case ACT_GELU_TANH: return gelu_tanh;
    }
    return none;
}

/* Accepts any synonym of the family's activation. The exact GELU and other families' activations are refused
 * by name, since they would be another model. */
static ErrorCode read_activation(const Family *f, const cJSON *root, const char *where, const char *key,
                                 Error *err) {
    const char *name = family_activation(f);
    const char *const *known = activation_names(f->arch.activation);
    TRY(json_get_string(root, where, key, false, &name, err));
    for (int i = 0; known[i]; i++)
        if (strcmp(name, known[i]) == 0) return OK;
    return family_refuse(where, key, name, family_activation(f), err);
}

/* A number for which 0 means off, the only supported value. */
static ErrorCode read_zero(const cJSON *root, const char *where, const char *key, Error *err) {
    double value = 0;
    TRY(json_get_double(root, where, key, false, &value, err));
    if (value >= 0.0 && value <= 0.0) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: %s is %g, expected 0: weft draws nothing in a layer, neither dropout nor noise",
                     where, key, value);
}

/* GPT-2's published files have 0.1. Refusing them would refuse the family, so training continues without
 * dropout, with a warning. */
static ErrorCode read_dropout(const cJSON *root, const char *where, const char *key, Error *err) {
    double value = 0;
    TRY(json_get_double(root, where, key, false, &value, err));
    if (!(value >= 0 && value < 1))
        return error_set(err, ERR_CONFIG, "%s: %s is %g, expected a probability", where, key, value);
    if (value > 0) log_warn("%s: %s is %g: weft trains without dropout", where, key, value);
    return OK;
}

/* A number with only one supported value. */
static ErrorCode read_number_only(const cJSON *root, const char *where, const KeyRule *k, Error *err) {
    double only = (double)k->offset / 1000, value = only;
    TRY(json_get_double(root, where, k->name, false, &value, err));
    if (value >= only && value <= only) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is %g, expected %g", where, k->name, value, only);
}

/* As read_optional, for integers. */
static ErrorCode read_or_null(const cJSON *root, const char *where, const char *key, int64_t *to,
                              Error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (item != NULL && cJSON_IsNull(item)) *to = 0;
    return json_get_int(root, where, key, false, 0, MODEL_MAX_POSITIONS, to, err);
}

/* A word with only one supported value. */
static ErrorCode read_word(const cJSON *root, const char *where, const KeyRule *k, Error *err) {
    const char *word = family_word(k);
    TRY(json_get_string(root, where, k->name, false, &word, err));
    if (strcmp(word, family_word(k)) == 0) return OK;
    return family_refuse(where, k->name, word, family_word(k), err);
}

/* Comes after the groups, which have no effect with "greedy". */
static ErrorCode read_greedy(ModelConfig *c, const cJSON *root, const char *where, const char *key,
                             Error *err) {
    const char *word = "greedy";
    TRY(json_get_string(root, where, key, false, &word, err));
    if (strcmp(word, "greedy") == 0)
        c->n_group = c->topk_group = 1;
    else if (strcmp(word, "group_limited_greedy") != 0)
        return family_refuse(where, key, word, "\"greedy\" or \"group_limited_greedy\"", err);
    return OK;
}

/* MTP layers are ignored, as in transformers, but with a warning. */
static ErrorCode read_mtp(const cJSON *root, const char *where, const char *key, Error *err) {
    int64_t layers = 0;
    TRY(json_get_int(root, where, key, false, 0, MODEL_MAX_COUNT, &layers, err));
    if (layers > 0)
        log_warn("%s: %s is %lld: what predicts tokens behind the next is read, trained and written with "
                 "train.mtp_depth=1 train.mtp_kind=module alone",
                 where, key, (long long)layers);
    return OK;
}

/* transformers treats null as false. So null is accepted as absent only if the default is false. */
static ErrorCode read_switch(const cJSON *root, const char *where, const KeyRule *k, bool *to, Error *err) {
    if (*to && cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(root, k->name)))
        return error_set(err, ERR_CONFIG, "%s: %s is null, expected true or false", where, k->name);
    return json_get_bool(root, where, k->name, k->required, to, err);
}

/* A switch with only one supported value. */
static ErrorCode read_only(const cJSON *root, const char *where, const KeyRule *k, bool only, Error *err) {
    bool value = only;
    TRY(read_switch(root, where, k, &value, err));
    if (value == only) return OK;
    return family_refuse(where, k->name, value ? "true" : "false", only ? "true" : "false", err);
}

/* A switch, which old files have as a number. A scale of 0 is the same as off. */
static ErrorCode read_tuning(ModelConfig *c, const cJSON *root, const char *where, const char *key,
                             Error *err) {
    const cJSON *item = family_member(root, key);
    if (item == NULL) return OK;
    if (!cJSON_IsBool(item) && !cJSON_IsNumber(item))
        return error_set(err, ERR_CONFIG, "%s: %s is neither true nor false", where, key);
    if (cJSON_IsFalse(item) || (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= 0))
        c->attn_scale = 0;
    return OK;
}

static ErrorCode read_none(const cJSON *root, const char *where, const char *key, Error *err) {
    if (family_member(root, key) == NULL) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is not supported in this family, expected null", where, key);
}

/* Only null switches off what the family's default may switch on: transformers would divide by a 0. Absent
 * keeps the default. */
static ErrorCode read_optional(const cJSON *root, const char *where, const char *key, double *to,
                               Error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (item != NULL && cJSON_IsNull(item)) *to = 0;
    TRY(json_get_double(root, where, key, false, to, err));
    if (!cJSON_IsNumber(item) || *to > 0) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is %g, expected more than 0, or null", where, key, *to);
}

/* hidden_size has been read, but not checked: one that is too large is refused later, and not multiplied
 * here. */
static ErrorCode read_inner(ModelConfig *c, const cJSON *root, const char *where, const KeyRule *k,
                            int64_t *to, Error *err) {
    if (c->hidden_size <= MODEL_MAX_WIDTH) *to = 4 * c->hidden_size;
    return json_get_int(root, where, k->name, false, 1, MODEL_MAX_POSITIONS, to, err);
}

/* transformers accepts either name in every family with experts, and writes either. */
static ErrorCode read_experts(const cJSON *root, const char *where, int64_t *to, Error *err) {
    int64_t local = 0;
    TRY(json_get_int(root, where, "num_experts", false, 1, MODEL_MAX_POSITIONS, to, err));
    TRY(json_get_int(root, where, "num_local_experts", false, 1, MODEL_MAX_POSITIONS, &local, err));
    if (local == 0) return OK;
    if (family_member(root, "num_experts") != NULL && *to != local)
        return error_set(err, ERR_CONFIG,
                         "%s: num_experts and num_local_experts contradict each other; remove one", where);
    *to = local;
    return OK;
}

static ErrorCode read_key(const Family *f, ModelConfig *c, const KeyRule *k, const cJSON *root,
                          const char *where, Error *err) {
    void *to = (char *)c + k->offset;
    switch (k->kind) {
    case KEY_SIZE: return json_get_int(root, where, k->name, k->required, 1, MODEL_MAX_POSITIONS, to, err);
    case KEY_NUMBER:
    case KEY_WHOLE: return json_get_double(root, where, k->name, k->required, to, err);
    case KEY_SWITCH: return read_switch(root, where, k, to, err);
    case KEY_TOKEN: return read_token(root, where, k->name, to, err);
    case KEY_OPTIONAL: return read_optional(root, where, k->name, to, err);
    case KEY_INNER: return read_inner(c, root, where, k, to, err);
    case KEY_ROTATION: return rope_keys_read(f, c, root, where, err);
    case KEY_WINDOWS: return window_keys_read(f, c, root, where, err);
    case KEY_NO_ROPE: return no_rope_read(c, root, where, err);
    case KEY_EXPERTS: return read_experts(root, where, to, err);
    case KEY_MIXERS: return mixers_read(c, root, where, err);
    case KEY_COUNT: return json_get_int(root, where, k->name, k->required, 0, MODEL_MAX_POSITIONS, to, err);
    case KEY_OR_NULL: return read_or_null(root, where, k->name, to, err);
    case KEY_DENSE:
    case KEY_SPARSE: return dense_layers_read(k->kind, c, root, where, err);
    case KEY_TUNING: return read_tuning(c, root, where, k->name, err);
    case KEY_ACTIVATION: return read_activation(f, root, where, k->name, err);
    case KEY_ZERO: return read_zero(root, where, k->name, err);
    case KEY_DROPOUT: return read_dropout(root, where, k->name, err);
    case KEY_ONLY: return read_number_only(root, where, k, err);
    case KEY_FALSE: return read_only(root, where, k, false, err);
    case KEY_TRUE: return read_only(root, where, k, true, err);
    case KEY_WORD: return read_word(root, where, k, err);
    case KEY_GREEDY: return read_greedy(c, root, where, k->name, err);
    case KEY_MTP: return read_mtp(root, where, k->name, err);
    case KEY_ENDS: return read_ends(c, root, where, k, err);
    case KEY_PAD:
    case KEY_UNPADDED: read_pad(c, root, k->name); return OK;
    case KEY_NONE: return read_none(root, where, k->name, err);
    }
    return OK;
}

ErrorCode family_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    ModelConfig read = f->defaults;
    read.family = f;
    TRY(check_root(f, root, where, err));
    for (const KeyRule *k = f->keys; k->name; k++) TRY(read_key(f, &read, k, root, where, err));
    drop_token(root, "bos_token_id", read.vocab_size, &read.bos_token_id);
    drop_token(root, "eos_token_id", read.vocab_size, &read.eos_token_id);
    TRY(model_config_complete(&read, where, err));
    *c = read;
    return OK;
}

static ErrorCode refuse_family(const char *type, const char *where, Error *err) {
    Text known = {0};
    for (int i = 0; families[i]; i++)
        text_printf(&known, "%s\"%s\"", i > 0 ? ", " : "", families[i]->model_type);
    ErrorCode code = family_refuse(where, "model_type", type, known.data, err);
    text_free(&known);
    return code;
}

/* Selects the text model of a multimodal file. Its keys are an object of their own, except those on how all
 * weights are stored. */
static ErrorCode take_text(const Family *f, const cJSON **root, const char *where, Error *err) {
    const cJSON *text = family_member(*root, "text_config");
    const char *type = f->model_type;
    TRY(check_plain(f, *root, where, err));
    if (!cJSON_IsObject(text))
        return error_set(err, ERR_CONFIG, "%s: model_type \"%s\" needs text_config, an object", where,
                         f->within);
    TRY(json_get_string(text, where, "model_type", false, &type, err));
    if (strcmp(type, f->model_type) != 0)
        return family_refuse(where, "model_type of text_config", type, f->model_type, err);
    log_warn("%s: a model of images and text (%s): its text alone is read, and written as %s", where,
             f->within, f->model_type);
    *root = text;
    return OK;
}

/* Finds the family of a file; old files name none, and are Llama. *root becomes the object with its keys. */
static ErrorCode find_family(const cJSON **root, const char *where, const Family **out, Error *err) {
    const char *type = families[0]->model_type;
    if (!cJSON_IsObject(*root)) return error_set(err, ERR_CONFIG, "%s: expected a JSON object", where);
    TRY(json_get_string(*root, where, "model_type", false, &type, err));
    for (int i = 0; families[i]; i++) {
        *out = families[i];
        if (strcmp(type, families[i]->model_type) == 0) return OK;
        if (families[i]->within && strcmp(type, families[i]->within) == 0)
            return take_text(families[i], root, where, err);
    }
    return refuse_family(type, where, err);
}

/* Fails as json_read does for the file, else with the file and the key. No real config.json is near 1 MiB: a
 * larger file is something else. */
ErrorCode model_config_read(ModelConfig *c, const char *path, Error *err) {
    cJSON *root = NULL;
    const Family *f = NULL;
    TRY(json_read(path, CONFIG_FILE_LIMIT, &root, err));
    const cJSON *keys = root;
    ErrorCode code = find_family(&keys, path, &f, err);
    if (code == OK) code = family_read(f, c, keys, path, err);
    cJSON_Delete(root);
    return code;
}
