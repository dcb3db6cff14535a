/* The set of adapted matrices is read from the tensors' names, not from target_modules: that is a list of
 * name endings, or a pattern, and carries the same information. */
#include "checkpoint/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/find.h"

#define CONFIG_LIMIT ((size_t)16 << 20)
static const char part_a[] = ".lora_A.weight", part_b[] = ".lora_B.weight", weight[] = ".weight";

double adapter_scale(const AdapterConfig *c) { return adapters_scale(c->rank, c->alpha, c->rslora); }

/* ---- reading ---- */

static ErrorCode refuse(const char *path, const char *key, const char *expected, Error *err) {
    return error_set(err, ERR_DATA, "%s: %s is something that weft does not do: expected %s", path, key,
                     expected);
}

static bool is_empty(const cJSON *item) {
    bool list = cJSON_IsArray(item) || cJSON_IsObject(item);
    return item == NULL || cJSON_IsNull(item) || cJSON_IsFalse(item) || (list && item->child == NULL);
}

/* Keys that change the function of the same tensors, or need other tensors. Dropout only matters for
 * training, where another seed of it gives another run anyway. */
static ErrorCode check_kind(const cJSON *root, const char *path, Error *err) {
    static const char *const unset[] = {
        "use_dora",         "modules_to_save",   "rank_pattern", "alpha_pattern",
        "lora_bias",        "layer_replication", "use_qalora",   "trainable_token_indices",
        "target_parameters"};
    const char *kind = NULL, *bias = "none";
    TRY(json_get_string(root, path, "peft_type", true, &kind, err));
    if (strcmp(kind, "LORA") != 0) return refuse(path, "peft_type", "LORA", err);
    TRY(json_get_string(root, path, "bias", false, &bias, err));
    if (strcmp(bias, "none") != 0) return refuse(path, "bias", "none", err);
    /* Others (PiSSA, OLoRA, LoftQ) modify the base at initialisation, which would have to be done here,
     * too. */
    const cJSON *begins = cJSON_GetObjectItemCaseSensitive(root, "init_lora_weights");
    if (cJSON_IsString(begins) && strcmp(begins->valuestring, "gaussian") != 0)
        return refuse(path, "init_lora_weights", "true, false or gaussian", err);
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        if (!is_empty(cJSON_GetObjectItemCaseSensitive(root, unset[i])))
            return refuse(path, unset[i], "null, false or nothing in it", err);
    return OK;
}

static ErrorCode read_config(AdapterConfig *c, const cJSON *root, const char *path, Error *err) {
    const char *base = NULL;
    TRY(check_kind(root, path, err));
    TRY(json_get_int(root, path, "r", true, 1, MODEL_MAX_WIDTH, &c->rank, err));
    TRY(json_get_double(root, path, "lora_alpha", true, &c->alpha, err));
    TRY(json_get_bool(root, path, "use_rslora", false, &c->rslora, err));
    TRY(json_get_string(root, path, "base_model_name_or_path", false, &base, err));
    if (base && *base) c->base = mem_strdup(base);
    return OK;
}

ErrorCode adapter_config_read(AdapterConfig *c, const char *path, Error *err) {
    cJSON *root = NULL;
    *c = (AdapterConfig){.rank = 0};
    TRY(json_read(path, CONFIG_LIMIT, &root, err));
    ErrorCode code = cJSON_IsObject(root) ? read_config(c, root, path, err)
                                          : error_set(err, ERR_DATA, "%s: expected an object", path);
    cJSON_Delete(root);
    return code;
}

/* ---- writing ---- */

/* Length of "...self_attn.q_proj.weight" up to the end of what PEFT calls the module; its last component
 * begins at *last. */
static size_t module_length(const char *name, size_t *last) {
    size_t length = strlen(name) - (sizeof weight - 1), at = length;
    while (at > 0 && name[at - 1] != '.') at--;
    *last = at;
    return length;
}

static bool same_last_name(const Param *a, const Param *b) {
    size_t x, y, n = module_length(a->name, &x), m = module_length(b->name, &y);
    return n - x == m - y && memcmp(a->name + x, b->name + y, n - x) == 0;
}

static bool has_adapter(const ParamTable *t, const Param *p) {
    return p->cols > 0 && !p->row->adapts && param_adapter(t, p, ADAPTER_A) != NULL;
}

/* Whether every matrix whose last name component is that of an adapted matrix has an adapter. */
static bool last_names_tell(const ParamTable *t) {
    for (int i = 0; i < t->count; i++)
        for (int k = 0; k < t->count && has_adapter(t, &t->params[i]); k++) {
            const Param *other = &t->params[k];
            bool matrix = other->cols > 0 && !other->row->adapts;
            if (matrix && same_last_name(&t->params[i], other) && !has_adapter(t, other)) return false;
        }
    return true;
}

static void write_targets(JsonWriter *w, const ParamTable *t) {
    bool short_names = last_names_tell(t);
    json_key(w, "target_modules");
    json_begin_array(w);
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        bool message = !has_adapter(t, p);
        for (int k = 0; k < i && short_names && !message; k++)
            message = has_adapter(t, &t->params[k]) && same_last_name(p, &t->params[k]);
        size_t last, length = module_length(p->name, &last), first = short_names ? last : 0;
        if (!message) json_bytes(w, p->name + first, length - first);
    }
    json_end_array(w);
}

/* Writes an integral value as an integer, which is PEFT's type for it. */
static void write_alpha(JsonWriter *w, double alpha) {
    if (alpha < 1e9 && alpha >= floor(alpha) && alpha <= floor(alpha))
        json_put_int(w, "lora_alpha", (int64_t)alpha);
    else
        json_put_double(w, "lora_alpha", alpha);
}

void adapter_config_write(const AdapterConfig *c, const ParamTable *table, Text *out) {
    JsonWriter w;
    bool transposed = false;
    for (int i = 0; i < table->count; i++) transposed |= table->params[i].transposed;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_put_string(&w, "base_model_name_or_path", c->base ? c->base : "");
    json_put_string(&w, "bias", "none");
    json_put_bool(&w, "fan_in_fan_out", transposed);
    json_put_bool(&w, "inference_mode", true);
    json_put_bool(&w, "init_lora_weights", true);
    write_alpha(&w, c->alpha);
    json_put_double(&w, "lora_dropout", 0);
    json_put_null(&w, "modules_to_save");
    json_put_string(&w, "peft_type", "LORA");
    json_put_int(&w, "r", c->rank);
    write_targets(&w, table);
    json_put_string(&w, "task_type", "CAUSAL_LM");
    json_put_bool(&w, "use_rslora", c->rslora);
    json_end_object(&w);
    text_puts(out, "\n");
}

/* ---- directories ---- */

bool adapter_is(const char *dir) { return file_holds(dir, ADAPTER_CONFIG); }

/* The adapter's directory may be moved with its content; the base is a path on some machine. */
static ErrorCode find_base(AdapterDir *a, const char *base, Error *err) {
    char shown[300];
    const char *where = base ? base : a->config.base;
    if (!where)
        return error_set(err, ERR_NOINPUT, "%s/%s does not name its base model: give it with --base DIR",
                         a->dir, ADAPTER_CONFIG);
    ErrorCode code = checkpoint_find_model(where, &a->base, err);
    if (code != ERR_NOINPUT || base) return code;
    return error_set(
        err, ERR_NOINPUT,
        "%s is an adapter of the model %s, which is not there: give its directory with --base DIR", a->dir,
        error_escape(shown, sizeof shown, where, strlen(where)));
}

/* The A matrices, in the order of names; check_tensors looks for the B matrices. */
static ErrorCode name_matrices(AdapterDir *a, Error *err) {
    size_t prefix = sizeof ADAPTER_PREFIX; /* with its dot */
    char shown[160];
    a->names = mem_alloc_array(a->files.count + 1, sizeof *a->names);
    for (size_t i = 0; i < a->files.count; i++) {
        const char *name = a->files.tensors[i].name;
        bool known = strncmp(name, ADAPTER_PREFIX ".", prefix) == 0;
        if (!known || (!text_ends(name, strlen(name), part_a) && !text_ends(name, strlen(name), part_b)))
            return error_set(err, ERR_DATA,
                             "%s: tensor \"%s\" is no part of an adapter: expected %s.MATRIX%s or %s",
                             a->files.where, error_escape(shown, sizeof shown, name, strlen(name)),
                             ADAPTER_PREFIX, part_a, part_b);
        if (!text_ends(name, strlen(name), part_a)) continue;
        Text matrix = {0};
        text_add(&matrix, name + prefix, strlen(name) - prefix - (sizeof part_a - 1));
        text_puts(&matrix, weight);
        a->names[a->count++] = matrix.data;
    }
    if (a->count > 0) return OK;
    return error_set(err, ERR_DATA, "%s: holds no adapter", a->files.where);
}

/* Checks names and shapes in both directions against the table of the base with these adapters. */
static ErrorCode check_tensors(const AdapterDir *a, const ParamTable *t, Error *err) {
    TensorDesc *tensors = mem_alloc_array((size_t)t->count, sizeof *tensors);
    Text *names = mem_alloc_array((size_t)t->count, sizeof *names);
    TensorList list = {.tensors = tensors};
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        if (!p->row->adapts) continue;
        text_printf(&names[list.count], "%s.%s", ADAPTER_PREFIX, p->name);
        tensors[list.count] = (TensorDesc){names[list.count].data, SAFE_F32, SAFE_F32, 2, {p->rows, p->cols}};
        list.count++;
    }
    ErrorCode code = modelfiles_check(&a->files, &list, err);
    for (int i = 0; i < list.count; i++) text_free(&names[i]);
    free(names);
    free(tensors);
    return code;
}

static ErrorCode check_against_base(AdapterDir *a, Error *err) {
    ModelConfig c;
    ParamTable t;
    AdapterSpec spec = adapter_spec(a);
    char *path = path_join(a->base, "config.json");
    ErrorCode code = model_config_read(&c, path, err);
    free(path);
    TRY(code);
    TRY(modelfiles_check_shape(a->base, &c, err));
    TRY(param_table_build(&t, &c, err));
    code = adapters_put(&t, &c, &c, &spec, err);
    if (code == OK) code = check_tensors(a, &t, err);
    a->transposed = code == OK && param_find(&t, a->names[0])->transposed;
    param_table_free(&t);
    return code == OK ? OK : error_context(err, "%s, an adapter of %s", a->dir, a->base);
}

ErrorCode adapter_open(AdapterDir *a, const char *dir, const char *base, Error *err) {
    *a = (AdapterDir){.dir = mem_strdup(dir)};
    char *path = path_join(dir, ADAPTER_CONFIG);
    ErrorCode code = adapter_config_read(&a->config, path, err);
    free(path);
    if (code == OK) code = find_base(a, base, err);
    if (code == OK) code = modelfiles_open(&a->files, dir, err);
    if (code == OK) code = name_matrices(a, err);
    return code == OK ? check_against_base(a, err) : code;
}

void adapter_close(AdapterDir *a) {
    for (int i = 0; i < a->count; i++) free(a->names[i]);
    free(a->names);
    free(a->config.base);
    free(a->dir);
    free(a->base);
    modelfiles_close(&a->files);
    *a = (AdapterDir){0};
}

AdapterSpec adapter_spec(const AdapterDir *a) {
    return (AdapterSpec){.rank = a->config.rank,
                         .scale = adapter_scale(&a->config),
                         .names = (const char *const *)a->names,
                         .count = a->count};
}
