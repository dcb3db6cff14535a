/* Reading refuses what no weft has written; from another version it takes what it knows.
 *
 * state.json, in the order of writing:
 *
 *     version, weft                      of the format; of the program, for people
 *     step, samples, tokens              progress; the data resumes from the number of samples
 *     skipped, updates                   steps without an update; updates made: the count for bias correction
 *     data, tokenizer, mixture           fingerprints of what it was trained on
 *     contents                           of remote files that are fetched while the run trains
 *     sums, kernels, build               what last bits depend on, in words
 *     receipt                            with run.receipts
 *     loss_window, grad_norm_window      of the spike statistic, oldest first
 *     best                               figure, step and value, if checkpoint.keep_best is set
 *     noise_signal, noise_variance       means of the noise scale; 0 if it is not measured
 *     config                             resolved, as YAML in a string */
#include "train/saved.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "checkpoint/checkpoint.h"

/* ---- reading ---- */

/* At most as many numbers as the window has; fewer if the run was younger. */
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

/* Below 2^53, because JSON numbers are doubles. */
static ErrorCode read_count(const cJSON *state, const char *key, int64_t *out, Error *err) {
    return json_get_int(state, CHECKPOINT_STATE, key, true, 0, INT64_C(1) << 53, out, err);
}

/* Version 1 counted tokens but not samples. Tokens are counted as they are taken, and all steps had equally
 * many, so samples and an open train.tokens_per_step follow from them. */
static ErrorCode convert_first_version(SavedRun *saved, Error *err) {
    RunState *s = &saved->state;
    char tokens[24];
    if (s->tokens % saved->config.train.context != 0)
        return error_set(err, ERR_DATA, "%s: %lld tokens are no whole samples of %lld", CHECKPOINT_STATE,
                         (long long)s->tokens, (long long)saved->config.train.context);
    s->samples = s->tokens / saved->config.train.context;
    if (saved->config.train.tokens_per_step > 0 || s->step == 0) return OK;
    snprintf(tokens, sizeof tokens, "%lld", (long long)(s->tokens / s->step));
    return options_derive(&saved->set, "train.tokens_per_step", tokens, "derived from the tokens so far",
                          err);
}

/* A wrong step would only keep one checkpoint from being removed; an invalid value is refused. */
static ErrorCode read_best(const cJSON *state, BestCheckpoint *best, Error *err) {
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(state, "best");
    const char *where = CHECKPOINT_STATE ": best", *figure = NULL;
    *best = (BestCheckpoint){.step = 0};
    if (!object || cJSON_IsNull(object)) return OK;
    if (!cJSON_IsObject(object)) return error_set(err, ERR_DATA, "%s: expected an object", where);
    TRY(json_get_string(object, where, "figure", true, &figure, err));
    TRY(json_get_int(object, where, "step", true, 0, INT64_C(1) << 53, &best->step, err));
    TRY(json_get_double(object, where, "value", best->step > 0, &best->value, err));
    error_escape(best->figure, sizeof best->figure, figure, strlen(figure));
    return OK;
}

/* Version 1 did not count samples. */
static ErrorCode read_state(SavedRun *saved, const cJSON *state, int64_t version, Error *err) {
    RunState *s = &saved->state;
    TRY(read_count(state, "step", &s->step, err));
    TRY(read_count(state, "tokens", &s->tokens, err));
    TRY(read_count(state, "skipped", &s->skipped, err));
    TRY(read_count(state, "updates", &saved->updates, err));
    TRY(read_window(state, "loss_window", &s->losses, err));
    TRY(read_window(state, "grad_norm_window", &s->norms, err));
    TRY(read_best(state, &s->best, err));
    TRY(json_get_double(state, CHECKPOINT_STATE, "noise_signal", false, &s->noise.signal, err));
    TRY(json_get_double(state, CHECKPOINT_STATE, "noise_variance", false, &s->noise.variance, err));
    return version == 1 ? convert_first_version(saved, err) : read_count(state, "samples", &s->samples, err);
}

/* *out stays empty ("not known") if the fact is missing. */
static ErrorCode read_fact(const cJSON *state, const char *key, bool required, char *out, size_t size,
                           Error *err) {
    const char *text = NULL;
    TRY(json_get_string(state, CHECKPOINT_STATE, key, required, &text, err));
    if (text) error_escape(out, size, text, strlen(text));
    return OK;
}

/* Version 1 knew data and tokenizer only. */
static ErrorCode read_facts(RunFacts *f, const cJSON *state, bool all, Error *err) {
    TRY(read_fact(state, "data", true, f->data, sizeof f->data, err));
    TRY(read_fact(state, "tokenizer", true, f->tokenizer, sizeof f->tokenizer, err));
    TRY(read_fact(state, "contents", false, f->contents, sizeof f->contents, err));
    TRY(read_fact(state, "base", false, f->base, sizeof f->base, err));
    TRY(read_fact(state, "mixture", all, f->mixture, sizeof f->mixture, err));
    TRY(read_fact(state, "sums", all, f->sums, sizeof f->sums, err));
    TRY(read_fact(state, "kernels", all, f->kernels, sizeof f->kernels, err));
    TRY(read_fact(state, "receipt", false, f->receipt, sizeof f->receipt, err));
    return read_fact(state, "build", all, f->build, sizeof f->build, err);
}

/* Keys of a newer weft are listed in the set, and refused by changes_check. A missing key is compared by its
 * default. */
static ErrorCode read_config(SavedRun *saved, const cJSON *state, Error *err) {
    const char *yaml = NULL;
    TRY(json_get_string(state, CHECKPOINT_STATE, "config", true, &yaml, err));
    TRY(options_apply_written(&saved->set, CHECKPOINT_STATE ": config", yaml, err));
    return config_derive(&saved->config, &saved->set, err);
}

static ErrorCode read_all(SavedRun *saved, const cJSON *state, Error *err) {
    int64_t version;
    TRY(read_count(state, "version", &version, err));
    if (version < 1 || version > STATE_VERSION)
        return error_set(err, ERR_DATA,
                         "%s: version %lld, but this weft reads 1 to %d: use the weft that wrote it",
                         CHECKPOINT_STATE, (long long)version, STATE_VERSION);
    TRY(read_config(saved, state, err));
    TRY(read_facts(&saved->facts, state, version > 1, err));
    return read_state(saved, state, version, err);
}

/* The caller frees `saved` after a failure too. */
ErrorCode saved_parse(SavedRun *saved, const char *text, Error *err) {
    cJSON *state;
    memset(saved, 0, sizeof *saved);
    TRY(config_set_open(&saved->set, &saved->config, err));
    TRY(json_parse(CHECKPOINT_STATE, text, strlen(text), &state, err));
    ErrorCode code = read_all(saved, state, err);
    cJSON_Delete(state);
    return code;
}

/* For readers of fingerprints: works for any version, and for configurations that this weft would not
 * accept. */
const char *saved_contents(const RunFacts *facts) { return *facts->contents ? facts->contents : facts->data; }

ErrorCode saved_parse_facts(RunFacts *facts, const char *text, Error *err) {
    cJSON *state;
    *facts = (RunFacts){0};
    TRY(json_parse(CHECKPOINT_STATE, text, strlen(text), &state, err));
    ErrorCode code = read_facts(facts, state, false, err);
    cJSON_Delete(state);
    return code;
}

ErrorCode saved_parse_best(BestCheckpoint *best, const char *text, Error *err) {
    cJSON *state;
    TRY(json_parse(CHECKPOINT_STATE, text, strlen(text), &state, err));
    ErrorCode code = read_best(state, best, err);
    cJSON_Delete(state);
    return code;
}

void saved_free(SavedRun *saved) { options_free(&saved->set); }

/* ---- writing ---- */

/* Oldest first, so that reading them in order restores the window. */
static void write_window(JsonWriter *w, const char *key, const SpikeWindow *window) {
    double values[SPIKE_WINDOW];
    size_t count = spike_save(window, values);
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < count; i++) json_double(w, values[i]);
    json_end_array(w);
}

/* Without checkpoint.keep_best there is no such member. */
static void write_best(JsonWriter *w, const BestCheckpoint *best) {
    if (!*best->figure) return;
    json_key(w, "best");
    json_begin_object(w);
    json_put_string(w, "figure", best->figure);
    json_put_int(w, "step", best->step);
    json_put_double(w, "value", best->step > 0 ? best->value : (double)NAN);
    json_end_object(w);
}

static void write_facts(JsonWriter *w, const RunFacts *f) {
    json_put_string(w, "data", f->data);
    if (*f->contents) json_put_string(w, "contents", f->contents);
    json_put_string(w, "tokenizer", f->tokenizer);
    if (*f->base) json_put_string(w, "base", f->base);
    json_put_string(w, "mixture", f->mixture);
    json_put_string(w, "sums", f->sums);
    json_put_string(w, "kernels", f->kernels);
    json_put_string(w, "build", f->build);
    if (*f->receipt) json_put_string(w, "receipt", f->receipt);
}

/* Called by rank 0. Depends on its arguments alone, so equal runs have equal states. */
void saved_write(const RunState *s, int64_t updates, const OptionSet *set, const RunFacts *facts, Text *out) {
    Text yaml = {0};
    JsonWriter w;
    options_write_yaml(set, &yaml, false);
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_put_int(&w, "version", STATE_VERSION);
    json_put_string(&w, "weft", WEFT_VERSION);
    json_put_int(&w, "step", s->step);
    json_put_int(&w, "samples", s->samples);
    json_put_int(&w, "tokens", s->tokens);
    json_put_int(&w, "skipped", s->skipped);
    json_put_int(&w, "updates", updates);
    write_facts(&w, facts);
    write_window(&w, "loss_window", &s->losses);
    write_window(&w, "grad_norm_window", &s->norms);
    write_best(&w, &s->best);
    json_key(&w, "noise_signal");
    json_double(&w, s->noise.signal);
    json_key(&w, "noise_variance");
    json_double(&w, s->noise.variance);
    json_put_string(&w, "config", yaml.data);
    json_end_object(&w);
    text_free(&yaml);
}
