#include "train/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find.h"
#include "observe/audit.h"
#include "observe/journal.h"
#include "observe/metrics.h"
#include "observe/report.h"
#include "observe/tensorboard.h"
#include "observe/trace.h"
#include "train/tensors.h"

enum { MOST_NAMED = 6 };

static bool allowed(const Config *c, const char *key) {
    for (size_t i = 0; i < c->run.allow_changes.count; i++)
        if (strcmp(c->run.allow_changes.items[i], key) == 0) return true;
    return false;
}

/* ---- the configuration that was, beside the one that is ---- */

/* What differs: what must not (the first MOST_NAMED of `count` are in the texts), what is to be said, and what
 * does nothing here. */
typedef struct Differences {
    const Config *c;
    const OptionSet *then, *now;
    Text refused, keys, said, idle;
    int count;
    bool other_run; /* one of them cannot be allowed */
} Differences;

static void add_refused(Differences *d, const char *key, const char *was, const char *is) {
    if (d->count++ >= MOST_NAMED) return;
    text_printf(&d->refused, "%s%s was %s when the checkpoint was made and is %s now",
                d->refused.length ? "; " : "", key, was, is);
    text_printf(&d->keys, "%s%s", d->keys.length ? ", " : "", key);
}

/* "train.steps was 30 and is 50; " */
static void add_said(Differences *d, const char *key, const char *was, const char *is, OptionEffect effect) {
    text_printf(&d->said, "%s%s was %s and is %s now (%s)", d->said.length ? "; " : "", key, was, is,
                options_effect_name(effect));
}

/* The key whose values a difference is told of: the one that `o` follows, where it did and does. */
static const char *key_to_name(const Differences *d, const Option *o, const char *then) {
    Text led = {0};
    if (!o->follows || options_is_set(d->now, o->key)) return o->key;
    options_write_value(d->then, o->follows, &led);
    bool followed = strcmp(led.data, then) == 0;
    text_free(&led);
    return followed ? o->follows : o->key;
}

static void add_difference(void *context, const Option *o, const char *then, const char *now) {
    Differences *d = context;
    char was[160], is[160];
    const char *key = key_to_name(d, o, then);
    error_escape(was, sizeof was, then, strlen(then));
    error_escape(is, sizeof is, now, strlen(now));
    switch (o->effect) {
    case EFFECT_UNKNOWN:
    case EFFECT_NOTHING:
    case EFFECT_SUMS:
    case EFFECT_CONTENT: return;
    case EFFECT_START: text_printf(&d->idle, "%s%s", d->idle.length ? ", " : "", key); return;
    case EFFECT_MEASURES:
    case EFFECT_BITS: add_said(d, key, was, is, o->effect); return;
    case EFFECT_CURVE:
        if (allowed(d->c, key) || allowed(d->c, o->key))
            add_said(d, key, was, is, o->effect);
        else
            add_refused(d, key, was, is);
        return;
    case EFFECT_RUN:
        d->other_run = true;
        add_refused(d, key, was, is);
        return;
    }
}

static ErrorCode refuse_differences(const Differences *d, Error *err) {
    char more[32] = "";
    const char *it = d->count == 1 ? "it" : "them";
    if (d->count > MOST_NAMED) snprintf(more, sizeof more, "; and %d more", d->count - MOST_NAMED);
    if (d->other_run)
        return error_set(err, ERR_CONFIG,
                         "%s%s, which is another run: put %s back, or start anew with run.overwrite=true",
                         d->refused.data, more, it);
    return error_set(
        err, ERR_CONFIG,
        "%s%s, which would change the curve: put %s back, or say run.allow_changes=[%s], or start anew with "
        "run.overwrite=true",
        d->refused.data, more, it, d->keys.data);
}

static ErrorCode compare_configs(const Config *c, const OptionSet *then, const OptionSet *now, Error *err) {
    Differences d = {.c = c, .then = then, .now = now};
    options_compare(then, now, add_difference, &d);
    ErrorCode code = d.count > 0 ? refuse_differences(&d, err) : OK;
    if (code == OK && d.said.length) log_info("from here on: %s", d.said.data);
    if (code == OK && d.idle.length) log_info("read when a run begins, and not now: %s", d.idle.data);
    text_free(&d.refused);
    text_free(&d.keys);
    text_free(&d.said);
    text_free(&d.idle);
    return code;
}

/* What a checkpoint says of the configuration that made it. */
static ErrorCode read_config(const cJSON *state, Config *then, OptionSet *set, Error *err) {
    const char *yaml = NULL;
    TRY(json_get_string(state, CHECKPOINT_STATE, "config", true, &yaml, err));
    TRY(options_init(set, config_options, then, err));
    ErrorCode code = options_apply_written(set, "configuration of the checkpoint", yaml, err);
    if (code == OK) code = config_derive(then, set, err);
    if (code != OK) options_free(set);
    return code;
}

static ErrorCode check_config(const cJSON *state, const Config *c, const OptionSet *set, Error *err) {
    Config then = {0};
    OptionSet before;
    TRY(read_config(state, &then, &before, err));
    ErrorCode code = compare_configs(c, &before, set, err);
    options_free(&before);
    return code;
}

static ErrorCode check_fingerprint(const cJSON *state, const Config *c, const char *key, const char *now,
                                   Error *err) {
    const char *then = NULL;
    char shown[32];
    TRY(json_get_string(state, CHECKPOINT_STATE, key, true, &then, err));
    if (strcmp(then, now) == 0 || allowed(c, key)) return OK;
    return error_set(
        err, ERR_CONFIG,
        "the %s is not what the checkpoint was trained with (fingerprint %s, now %.12s): put it back, or say "
        "run.allow_changes=[%s], or start anew with run.overwrite=true",
        key, error_escape(shown, sizeof shown, then, strnlen(then, 12)), now, key);
}

static ErrorCode read_window(const cJSON *state, const char *key, SpikeWindow *window, Error *err) {
    double values[SPIKE_WINDOW];
    size_t count = 0;
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(state, key), *item;
    if (!cJSON_IsArray(array))
        return error_set(err, ERR_DATA, "%s: %s: expected an array", CHECKPOINT_STATE, key);
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || count == SPIKE_WINDOW)
            return error_set(err, ERR_DATA, "%s: %s: expected at most %d numbers", CHECKPOINT_STATE, key,
                             SPIKE_WINDOW);
        values[count++] = item->valuedouble;
    }
    return spike_load(window, values, count, err);
}

static ErrorCode read_count(const cJSON *state, const char *key, int64_t *out, Error *err) {
    return json_get_int(state, CHECKPOINT_STATE, key, true, 0, INT64_C(1) << 53, out, err);
}

static ErrorCode read_state(RunState *s, int64_t *updates, const cJSON *state, Error *err) {
    int64_t version;
    TRY(read_count(state, "version", &version, err));
    if (version != STATE_VERSION)
        return error_set(err, ERR_DATA,
                         "%s: version %lld, but this weft reads %d: use the weft that wrote it",
                         CHECKPOINT_STATE, (long long)version, STATE_VERSION);
    TRY(read_count(state, "step", &s->step, err));
    TRY(read_count(state, "tokens", &s->tokens, err));
    TRY(read_count(state, "skipped", &s->skipped, err));
    TRY(read_count(state, "updates", updates, err));
    TRY(read_window(state, "loss_window", &s->losses, err));
    return read_window(state, "grad_norm_window", &s->norms, err);
}

ErrorCode state_parse(RunState *s, int64_t *updates, const char *text, const Config *c, const OptionSet *set,
                      const char *data, const char *tokenizer, Error *err) {
    cJSON *state;
    TRY(json_parse(CHECKPOINT_STATE, text, strlen(text), &state, err));
    ErrorCode code = check_config(state, c, set, err);
    if (code == OK) code = check_fingerprint(state, c, "data", data, err);
    if (code == OK) code = check_fingerprint(state, c, "tokenizer", tokenizer, err);
    if (code == OK) code = read_state(s, updates, state, err);
    cJSON_Delete(state);
    return code;
}

/* A model file in bf16 is a rounded copy: the optimizer file then holds the weights themselves. */
static ErrorCode load_tensors(Engine *e, const Checkpoint *ckpt, Error *err) {
    bool rounded = modelfiles_find(&ckpt->optimizer, "master.model.norm.weight") != NULL;
    Tensors *model = tensors_of_model(e, TENSORS_TO_LOAD, SAFE_F32);
    Tensors *optimizer = tensors_of_optimizer(e, TENSORS_TO_LOAD, rounded);
    ErrorCode code = rounded ? OK : modelfiles_load(&ckpt->model, &model->list, err);
    if (code == OK) code = modelfiles_load(&ckpt->optimizer, &optimizer->list, err);
    tensors_free(model);
    tensors_free(optimizer);
    engine_refresh(e);
    return code;
}

static ErrorCode take_up(RunState *s, const Config *c, const OptionSet *set, Engine *e, const Dataset *d,
                         const Tokenizer *t, const Checkpoint *ckpt, Error *err) {
    char data[65], tokenizer[65];
    int64_t updates;
    dataset_fingerprint(d, data);
    tokenizer_fingerprint(t, tokenizer);
    TRY(state_parse(s, &updates, ckpt->state, c, set, data, tokenizer, err));
    engine_set_updates(e, updates);
    return load_tensors(e, ckpt, err);
}

/* Every rank reads its part of the checkpoint, and all agree on what they found. */
static ErrorCode open_together(Checkpoint *ckpt, Comm *comm, const char *path, Error *err) {
    ErrorCode code = checkpoint_check_part(path, comm_rank(comm), comm_size(comm), err);
    TRY(comm_agree(comm, code, err));
    code = checkpoint_open_verified(ckpt, path, true, err);
    bool open = code == OK;
    code = comm_agree(comm, code, err);
    if (code != OK && open) checkpoint_close(ckpt);
    return code;
}

/* The newest that is good, of those that rank 0 found. */
static ErrorCode open_newest(Checkpoint *ckpt, Comm *comm, const CheckpointSet *set, int64_t count,
                             Error *err) {
    char path[4096];
    bool speaks = comm_rank(comm) == 0;
    for (int64_t i = count; i-- > 0;) {
        Error problem = {.message = ""};
        if (speaks) snprintf(path, sizeof path, "%s", set->items[i].path);
        TRY(comm_broadcast(comm, path, sizeof path, 0, err));
        ErrorCode code = open_together(ckpt, comm, path, &problem);
        if (code == OK && i + 1 < count && speaks)
            log_warn("going back to %s, the newest good checkpoint", path);
        if (code == OK) return OK;
        if (speaks) log_warn("checkpoint passed over: %s", problem.message);
    }
    return error_set(err, ERR_DATA,
                     "no checkpoint is good: \"weft checkpoint verify\" names what is damaged; put back a "
                     "copy, or start anew "
                     "with run.overwrite=true");
}

ErrorCode state_resume(RunState *s, const Config *c, const OptionSet *set, Engine *e, Comm *comm,
                       const Dataset *d, const Tokenizer *t, bool *resumed, Error *err) {
    CheckpointSet there = {0};
    Checkpoint ckpt;
    char *dir = checkpoint_directory(c->run.dir);
    *resumed = false;
    ErrorCode code = comm_rank(comm) == 0 ? checkpoint_candidates(&there, dir, err) : OK;
    TRY(comm_agree(comm, code, err));
    int64_t count = (int64_t)there.count;
    code = comm_broadcast(comm, &count, sizeof count, 0, err);
    if (code == OK && count > 0) code = open_newest(&ckpt, comm, &there, count, err);
    if (code != OK) error_context(err, "%s", dir);
    checkpoint_set_free(&there);
    free(dir);
    if (code != OK || count == 0) return code;
    code = take_up(s, c, set, e, d, t, &ckpt, err);
    if (code != OK) error_context(err, "%s", ckpt.path);
    checkpoint_close(&ckpt);
    *resumed = code == OK;
    return comm_agree(comm, code, err);
}

/* What readers of the new run would take for its own. */
static const char *const records[] = {METRICS_PATTERN, JOURNAL_FILE, TRACE_FILE, REPORT_FILE};

ErrorCode state_discard(const char *run_dir, Error *err) {
    char *dir = checkpoint_directory(run_dir);
    ErrorCode code = file_remove_tree(dir, err);
    free(dir);
    for (size_t i = 0; code == OK && i < sizeof records / sizeof *records; i++)
        code = file_remove_matching(run_dir, records[i], err);
    if (code == OK) code = tensorboard_discard(run_dir, err);
    return code == OK ? audit_discard(run_dir, err) : code;
}

ErrorCode state_load_weights(Engine *e, const char *dir, Error *err) {
    ModelFiles files;
    TRY(modelfiles_open(&files, dir, err));
    Tensors *model = tensors_of_model(e, TENSORS_TO_LOAD, SAFE_F32);
    ErrorCode code = modelfiles_load(&files, &model->list, err);
    tensors_free(model);
    modelfiles_close(&files);
    engine_refresh(e);
    return code;
}
