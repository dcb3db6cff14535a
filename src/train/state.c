#include "train/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"

/* Tensors as the checkpoint layer sees them: a description each, and where it is in tensor memory. */
typedef struct Tensors {
    Device *device;
    TensorList list;
    TensorDesc *descriptions;
    float **memory;
} Tensors;

static ErrorCode fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    Tensors *t = ctx;
    (void)err;
    OP(t->device, OP_DOWNLOAD, download, host, (char *)t->memory[index] + offset, bytes);
    return OK;
}

static ErrorCode store(void *ctx, int index, size_t offset, size_t bytes, const void *host, Error *err) {
    Tensors *t = ctx;
    (void)err;
    OP(t->device, OP_UPLOAD, upload, (char *)t->memory[index] + offset, host, bytes);
    return OK;
}

static void tensors_add(Tensors *t, const Param *p, const char *prefix, float *memory) {
    Text name = {0};
    text_printf(&name, "%s%s", prefix, p->name);
    TensorDesc *d = &t->descriptions[t->list.count];
    *d = (TensorDesc){
        .name = name.data, .memory = SAFE_F32, .stored = SAFE_F32, .rank = p->cols ? 2 : 1, .shape = {p->rows, p->cols}};
    t->memory[t->list.count++] = memory;
}

static Tensors *tensors_new(Engine *e, int per_parameter) {
    size_t room = (size_t)(e->model.table.count * per_parameter);
    Tensors *t = mem_alloc(sizeof *t);
    t->device = e->device;
    t->descriptions = mem_alloc_array(room, sizeof *t->descriptions);
    t->memory = mem_alloc_array(room, sizeof *t->memory);
    t->list = (TensorList){.tensors = t->descriptions, .ctx = t, .fetch = fetch, .store = store};
    return t;
}

static Tensors *model_tensors(Engine *e) {
    Tensors *t = tensors_new(e, 1);
    for (int i = 0; i < e->model.table.count; i++) {
        const Param *p = &e->model.table.params[i];
        tensors_add(t, p, "", weights_master(&e->weights, p));
    }
    return t;
}

static Tensors *optimizer_tensors(Engine *e) {
    Tensors *t = tensors_new(e, 2);
    const ParamTable *table = &e->model.table;
    for (int i = 0; i < table->count; i++) {
        const Param *p = &table->params[i];
        size_t at = table->unit_start[p->unit] + p->offset;
        tensors_add(t, p, "exp_avg.", e->moment1 + at);
        tensors_add(t, p, "exp_avg_sq.", e->moment2 + at);
    }
    return t;
}

static void tensors_free(Tensors *t) {
    for (int i = 0; i < t->list.count; i++) free((void *)(uintptr_t)t->descriptions[i].name);
    free(t->descriptions);
    free(t->memory);
    free(t);
}

static void write_window(JsonWriter *w, const char *key, const SpikeWindow *window) {
    double values[SPIKE_WINDOW];
    size_t count = spike_save(window, values);
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < count; i++) json_double(w, values[i]);
    json_end_array(w);
}

static void write_int(JsonWriter *w, const char *key, int64_t value) {
    json_key(w, key);
    json_int(w, value);
}

static void write_string(JsonWriter *w, const char *key, const char *value) {
    json_key(w, key);
    json_string(w, value);
}

static void write_state(const RunState *s, const OptionSet *set, const Engine *e, const Dataset *d, const Tokenizer *t,
                        Text *out) {
    char data[65], tokenizer[65];
    Text yaml = {0};
    JsonWriter w;
    dataset_fingerprint(d, data);
    tokenizer_fingerprint(t, tokenizer);
    options_write_yaml(set, &yaml, false);
    json_start(&w, out, 2);
    json_begin_object(&w);
    write_int(&w, "version", 1);
    write_string(&w, "weft", WEFT_VERSION);
    write_int(&w, "step", s->step);
    write_int(&w, "tokens", s->tokens);
    write_int(&w, "skipped", s->skipped);
    write_int(&w, "updates", e->updates);
    write_string(&w, "data", data);
    write_string(&w, "tokenizer", tokenizer);
    write_window(&w, "loss_window", &s->losses);
    write_window(&w, "grad_norm_window", &s->norms);
    write_string(&w, "config", yaml.data);
    json_end_object(&w);
    text_free(&yaml);
}

/* The files of transformers beside the weights. */
typedef struct Companions {
    Text config, generation, tokenizer, tokenizer_config;
    CheckpointFile files[4];
} Companions;

/* tokenizer.json as it came, byte for byte; the tokenizer writes files only, so one is made and read back. */
static ErrorCode tokenizer_text(const Config *c, const Tokenizer *t, Text *out, Error *err) {
    char *data, *path = path_join(c->run.dir, "tokenizer.json");
    size_t length;
    ErrorCode code = tokenizer_save(t, path, err);
    if (code == OK) code = file_read(path, (size_t)1 << 30, &data, &length, err);
    if (code == OK) {
        text_add(out, data, length);
        free(data);
    }
    free(path);
    return code;
}

static char *special_text(const Tokenizer *t, int32_t id) {
    size_t length;
    const char *bytes = id >= 0 ? tokenizer_token_bytes(t, id, &length) : NULL;
    Text text = {0};
    if (bytes) text_add(&text, bytes, length);
    return text.data;
}

static ErrorCode companions_make(Companions *f, const Config *c, const Tokenizer *t, Error *err) {
    *f = (Companions){0};
    const ModelConfig *m = &c->model.shape;
    char *bos = special_text(t, tokenizer_bos(t)), *eos = special_text(t, tokenizer_eos(t));
    model_config_write(m, "float32", &f->config);
    checkpoint_generation_config(m, &f->generation);
    checkpoint_tokenizer_config(bos, eos, m->max_position_embeddings, &f->tokenizer_config);
    free(bos);
    free(eos);
    TRY(tokenizer_text(c, t, &f->tokenizer, err));
    f->files[0] = (CheckpointFile){"config.json", f->config.data, f->config.length};
    f->files[1] = (CheckpointFile){"generation_config.json", f->generation.data, f->generation.length};
    f->files[2] = (CheckpointFile){"tokenizer.json", f->tokenizer.data, f->tokenizer.length};
    f->files[3] = (CheckpointFile){"tokenizer_config.json", f->tokenizer_config.data, f->tokenizer_config.length};
    return OK;
}

static void companions_free(Companions *f) {
    text_free(&f->config);
    text_free(&f->generation);
    text_free(&f->tokenizer);
    text_free(&f->tokenizer_config);
}

static char *checkpoints_of(const char *run_dir) { return path_join(run_dir, "checkpoints"); }

ErrorCode state_save(const RunState *s, const Config *c, const OptionSet *set, Engine *e, const Dataset *d, const Tokenizer *t,
                     char **path, Error *err) {
    Companions files;
    Text state = {0};
    char *dir = checkpoints_of(c->run.dir);
    Tensors *model = model_tensors(e), *optimizer = optimizer_tensors(e);
    write_state(s, set, e, d, t, &state);
    ErrorCode code = companions_make(&files, c, t, err);
    CheckpointSave save = {.step = s->step,
                           .model = &model->list,
                           .optimizer = &optimizer->list,
                           .state = state.data,
                           .files = files.files,
                           .file_count = 4};
    if (code == OK) code = checkpoint_save(NULL, dir, &save, NULL, err);
    CheckpointKeep keep = {.last = c->checkpoint.keep, .every = c->checkpoint.keep_every};
    if (code == OK) code = checkpoint_prune(NULL, dir, keep, s->step, CHECK_MANIFEST, NULL, err);
    if (code == OK) {
        Text name = {0};
        text_printf(&name, "%s/step-%08lld", dir, (long long)s->step);
        *path = name.data;
    }
    companions_free(&files);
    tensors_free(model);
    tensors_free(optimizer);
    text_free(&state);
    free(dir);
    return code;
}

/* Keys whose change leaves the curve as it is. Sources are compared by the fingerprint of what they hold. */
static bool keeps_curve(const char *key) {
    static const char *const free_keys[] = {"run.",          "validation.",     "checkpoint.",          "metrics.",
                                            "data.sources",  "data.validation", "data.tokenizer",       "data.cache_dir",
                                            "data.prefetch", "train.recompute", "train.split_backward", "train.stop_after_bad",
                                            "model.config",  "model.init"};
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++) {
        size_t length = strlen(free_keys[i]);
        bool section = free_keys[i][length - 1] == '.';
        if (section ? strncmp(key, free_keys[i], length) == 0 : strcmp(key, free_keys[i]) == 0) return true;
    }
    return false;
}

static bool allowed(const Config *c, const char *key) {
    for (size_t i = 0; i < c->run.allow_changes.count; i++)
        if (strcmp(c->run.allow_changes.items[i], key) == 0) return true;
    return false;
}

static const YamlNode *member(const YamlNode *map, const char *key) {
    for (size_t i = 0; map && map->kind == YAML_NODE_MAP && i < map->count; i++)
        if (strcmp(map->keys[i], key) == 0) return map->items[i];
    return NULL;
}

/* Both trees come from options_write_yaml: sections of scalars. */
static ErrorCode compare_configs(const Config *c, const YamlNode *then, const YamlNode *now, Error *err) {
    for (size_t s = 0; s < now->count; s++)
        for (size_t k = 0; now->items[s]->kind == YAML_NODE_MAP && k < now->items[s]->count; k++) {
            char key[160];
            snprintf(key, sizeof key, "%s.%s", now->keys[s], now->items[s]->keys[k]);
            const YamlNode *a = member(member(then, now->keys[s]), now->items[s]->keys[k]), *b = now->items[s]->items[k];
            if (!a || a->kind != YAML_NODE_SCALAR || b->kind != YAML_NODE_SCALAR || strcmp(a->text, b->text) == 0) continue;
            if (keeps_curve(key) || allowed(c, key)) continue;
            return error_set(err, ERR_CONFIG,
                             "%s was %s when the checkpoint was made and is %s now, which would change the curve: put it "
                             "back, or say run.allow_changes=[%s], or start anew with run.overwrite=true",
                             key, a->text, b->text, key);
        }
    return OK;
}

static ErrorCode check_config(const cJSON *state, const Config *c, const OptionSet *set, Error *err) {
    const char *before = NULL;
    YamlNode *then = NULL, *now = NULL;
    Text yaml = {0};
    TRY(json_get_string(state, CHECKPOINT_STATE, "config", true, &before, err));
    options_write_yaml(set, &yaml, false);
    ErrorCode code = yaml_tree_parse("configuration of the checkpoint", before, strlen(before), &then, err);
    if (code == OK) code = yaml_tree_parse("configuration", yaml.data, yaml.length, &now, err);
    if (code == OK) code = compare_configs(c, then, now, err);
    yaml_tree_free(then);
    yaml_tree_free(now);
    text_free(&yaml);
    return code;
}

static ErrorCode check_fingerprint(const cJSON *state, const Config *c, const char *key, const char *now, Error *err) {
    const char *then = NULL;
    TRY(json_get_string(state, CHECKPOINT_STATE, key, true, &then, err));
    if (strcmp(then, now) == 0 || allowed(c, key)) return OK;
    return error_set(err, ERR_CONFIG,
                     "the %s is not what the checkpoint was trained with (fingerprint %.12s, now %.12s): put it back, or say "
                     "run.allow_changes=[%s], or start anew with run.overwrite=true",
                     key, then, now, key);
}

static ErrorCode read_window(const cJSON *state, const char *key, SpikeWindow *window, Error *err) {
    double values[SPIKE_WINDOW];
    size_t count = 0;
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(state, key), *item;
    if (!cJSON_IsArray(array)) return error_set(err, ERR_DATA, "%s: %s: expected an array", CHECKPOINT_STATE, key);
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || count == SPIKE_WINDOW)
            return error_set(err, ERR_DATA, "%s: %s: expected at most %d numbers", CHECKPOINT_STATE, key, SPIKE_WINDOW);
        values[count++] = item->valuedouble;
    }
    return spike_load(window, values, count, err);
}

static ErrorCode read_count(const cJSON *state, const char *key, int64_t *out, Error *err) {
    return json_get_int(state, CHECKPOINT_STATE, key, true, 0, INT64_C(1) << 53, out, err);
}

static ErrorCode read_state(RunState *s, Engine *e, const cJSON *state, Error *err) {
    int64_t version;
    TRY(json_get_int(state, CHECKPOINT_STATE, "version", true, 1, 1, &version, err));
    TRY(read_count(state, "step", &s->step, err));
    TRY(read_count(state, "tokens", &s->tokens, err));
    TRY(read_count(state, "skipped", &s->skipped, err));
    TRY(read_count(state, "updates", &e->updates, err));
    TRY(read_window(state, "loss_window", &s->losses, err));
    return read_window(state, "grad_norm_window", &s->norms, err);
}

static ErrorCode load_tensors(Engine *e, const Checkpoint *ckpt, Error *err) {
    Tensors *model = model_tensors(e), *optimizer = optimizer_tensors(e);
    ErrorCode code = modelfiles_load(&ckpt->model, &model->list, err);
    if (code == OK) code = modelfiles_load(&ckpt->optimizer, &optimizer->list, err);
    tensors_free(model);
    tensors_free(optimizer);
    weights_refresh_all(&e->weights, e->device);
    return code;
}

static ErrorCode take_up(RunState *s, const Config *c, const OptionSet *set, Engine *e, const Dataset *d, const Tokenizer *t,
                         const Checkpoint *ckpt, Error *err) {
    char data[65], tokenizer[65];
    cJSON *state;
    TRY(json_parse(CHECKPOINT_STATE, ckpt->state, strlen(ckpt->state), &state, err));
    dataset_fingerprint(d, data);
    tokenizer_fingerprint(t, tokenizer);
    ErrorCode code = check_config(state, c, set, err);
    if (code == OK) code = check_fingerprint(state, c, "data", data, err);
    if (code == OK) code = check_fingerprint(state, c, "tokenizer", tokenizer, err);
    if (code == OK) code = read_state(s, e, state, err);
    if (code == OK) code = load_tensors(e, ckpt, err);
    cJSON_Delete(state);
    return code;
}

ErrorCode state_resume(RunState *s, const Config *c, const OptionSet *set, Engine *e, const Dataset *d, const Tokenizer *t,
                       bool *resumed, Error *err) {
    CheckpointSet there;
    Checkpoint ckpt;
    char *dir = checkpoints_of(c->run.dir);
    *resumed = false;
    ErrorCode code = checkpoint_list(&there, dir, CHECK_MANIFEST, err);
    size_t count = code == OK ? there.count : 0;
    if (code == OK) checkpoint_set_free(&there);
    if (code == OK && count > 0) {
        code = checkpoint_open(&ckpt, dir, true, err);
        if (code == OK) {
            code = take_up(s, c, set, e, d, t, &ckpt, err);
            if (code != OK) error_context(err, "%s", ckpt.path);
            checkpoint_close(&ckpt);
            *resumed = code == OK;
        }
    }
    free(dir);
    return code;
}

ErrorCode state_discard(const char *run_dir, Error *err) {
    char *dir = checkpoints_of(run_dir);
    ErrorCode code = file_remove_tree(dir, err);
    free(dir);
    return code;
}

static bool holds(const char *dir, const char *name) {
    char *path = path_join(dir, name);
    bool there = file_exists(path);
    free(path);
    return there;
}

ErrorCode state_find_model(const char *where, char **dir, Error *err) {
    Checkpoint ckpt;
    if (!file_exists(where)) return error_set(err, ERR_NOINPUT, "%s: no such model, checkpoint or run directory", where);
    if (holds(where, "config.json")) {
        *dir = mem_strdup(where);
        return OK;
    }
    char *inside = holds(where, "checkpoints") ? checkpoints_of(where) : mem_strdup(where);
    ErrorCode code = checkpoint_open(&ckpt, inside, false, err);
    if (code == OK) {
        *dir = mem_strdup(ckpt.path);
        checkpoint_close(&ckpt);
    }
    free(inside);
    return code;
}

ErrorCode state_load_weights(Engine *e, const char *dir, Error *err) {
    ModelFiles files;
    TRY(modelfiles_open(&files, dir, err));
    Tensors *model = model_tensors(e);
    ErrorCode code = modelfiles_load(&files, &model->list, err);
    tensors_free(model);
    modelfiles_close(&files);
    weights_refresh_all(&e->weights, e->device);
    return code;
}
