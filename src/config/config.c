/* Loads a configuration and checks it across keys. A value that follows from others is set through the
 * options together with its origin, so that the written configuration reads back to the same values.
 *
 * The sources of a value. The last given one wins; the rest fills in values that were not given:
 *
 *     default -> file -> command line -> model.config or model.init -> other keys -> tokenizer, mesh, device
 *     (tables)   (options_apply_*)       (model_options_take)          (follows)     (train/setup.c) */
#include "config/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/families/family.h"
#include "optimizer/optimizer.h"
#include "remote/location.h"

enum { MOST_MICROBATCHES = 1000000 }; /* per step and rank: programs have an action for each */
enum { RUN_CONFIG_LIMIT = 1 << 20 };  /* bytes of config.yaml */

/* With a floor of 0 both of the two equal drops would end at 0. */
static ErrorCode check_schedule(const Config *c, const OptionSet *set, Error *err) {
    if (c->lr_schedule.kind != LR_DROPS || c->lr_schedule.min_factor > 0) return OK;
    return options_fail(
        set, "lr_schedule.min_factor", err,
        "lr_schedule.kind drops goes down to it in two equal steps: expected more than 0, such as 0.1");
}

int config_step_sizes(const Config *c, int64_t tokens[STEP_SIZES]) {
    int count = 0;
    for (int64_t size = c->train.rampup_start; size > 0 && size < c->train.tokens_per_step; size *= 2)
        tokens[count++] = size;
    tokens[count++] = c->train.tokens_per_step;
    return count;
}

/* The size of `step` during the batch-size ramp-up, or 0 after it; *all is then the number of ramp-up
 * steps. */
static int64_t size_of_step(const Config *c, int64_t step, int64_t *all) {
    int64_t sizes[STEP_SIZES];
    int growing = config_step_sizes(c, sizes) - 1;
    *all = 0;
    for (int i = 0; i < growing; i++) {
        int64_t share = (c->train.rampup_tokens + growing - 1) / growing;
        *all += (share + sizes[i] - 1) / sizes[i];
        if (step < *all) return sizes[i];
    }
    return 0;
}

int64_t config_step_tokens(const Config *c, int64_t step) {
    int64_t all, size = size_of_step(c, step, &all);
    return size > 0 ? size : c->train.tokens_per_step;
}

int64_t config_first_whole_step(const Config *c) {
    int64_t all;
    size_of_step(c, INT64_MAX, &all);
    return all;
}

/* With one source its loss is the run's; with very many, nobody reads each of them. */
int config_reported_sources(const Config *c) {
    size_t count = c->data.sources.count;
    return count > 1 && count <= 64 ? (int)count : 0;
}

double config_tokens_from(const Config *c, int64_t step) {
    int64_t end = c->train.steps, whole = config_first_whole_step(c);
    double sum = 0;
    for (; step < end && step < whole; step++) sum += (double)config_step_tokens(c, step);
    return step < end ? sum + (double)(end - step) * (double)c->train.tokens_per_step : sum;
}

uint64_t config_samples(const Config *c) {
    return (uint64_t)fmin(config_tokens_from(c, 0) / (double)c->train.context, 1e18);
}

double config_steps_from(const Config *c, int64_t step) {
    if (config_first_whole_step(c) <= step) return (double)(c->train.steps - step);
    return config_tokens_from(c, step) / (double)c->train.tokens_per_step;
}

/* Checkpoints of adapters do not contain the base's expert biases. */
static ErrorCode check_router_bias(const Config *c, const OptionSet *set, Error *err) {
    const Family *f = families[c->model.family];
    if (c->train.router_bias_speed <= 0) return OK;
    if (!family_has_experts(f))
        return options_fail(set, "train.router_bias_speed", err,
                            "the family %s has no experts: leave the key out", f->model_type);
    if (c->lora.rank == 0) return OK;
    return options_fail(set, "train.router_bias_speed", err,
                        "with adapters (lora.rank) all of the base stays as it is: leave the key out");
}

/* DeepSeek's own speed for its family; the other values balance the experts within some tens of steps. */
const char *config_bias_speed(const Config *c) {
    const Arch *a = &families[c->model.family]->arch;
    return a->sigmoid_router ? "0.001" : a->weighs_input ? "0.01" : "0.02";
}

/* Experts with random weights almost always collapse within some steps without balancing, since only chosen
 * experts learn. A configured balance loss is enough. Given weights are left unchanged, and so is a run that
 * continues (setup_keep_balance). */
static ErrorCode take_router_bias(Config *c, OptionSet *set, Error *err) {
    const ModelConfig *m = &c->model.shape;
    bool starts = family_has_experts(families[c->model.family]) && !c->model.init[0] &&
                  m->num_experts > m->num_experts_per_tok && !m->output_router_logits;
    if (options_is_set(set, "train.router_bias_speed") || !starts) return OK;
    return options_derive(set, "train.router_bias_speed", config_bias_speed(c),
                          "default of experts from random weights", err);
}

/* A step is divided into whole microbatches on every mesh; layout_build checks this also for the steps of the
 * ramp-up. */
static ErrorCode check_rampup(const Config *c, const OptionSet *set, Error *err) {
    int64_t start = c->train.rampup_start, whole = c->train.tokens_per_step, size = start, first, last;
    if (start == 0 && c->train.rampup_tokens == 0) return OK;
    if (start == 0 || c->train.rampup_tokens == 0)
        return options_fail(set, start ? "train.rampup_tokens" : "train.rampup_start", err,
                            "a ramp-up of the batch size needs train.rampup_start and "
                            "train.rampup_tokens together");
    if (whole == 0)
        return options_fail(set, "train.rampup_start", err,
                            "a ramp-up of the batch size needs train.tokens_per_step, too");
    while (size < whole) size *= 2;
    if (size != whole || start == whole)
        return options_fail(
            set, "train.rampup_start", err,
            "%lld, doubled again and again, never is train.tokens_per_step, %lld: expected its half, "
            "quarter, ...",
            (long long)start, (long long)whole);
    if (config_traces(c, &first, &last) && first <= config_first_whole_step(c))
        return options_fail(set, "metrics.trace", err,
                            "steps of the ramp-up of the batch size are not traced: it ends with step %lld",
                            (long long)config_first_whole_step(c));
    return OK;
}

static ErrorCode check_exact_chunks(const Config *c, const OptionSet *set, Error *err) {
    if (c->numerics.cp_invariant_up_to == 0 || c->numerics.mode == NUMERICS_EXACT) return OK;
    return options_fail(set, "numerics.cp_invariant_up_to", err,
                        "%lld, which is of numerics.mode: exact; in fast numerics the ranks of mesh.cp "
                        "are terms of sums as data-parallel ones are: leave it out",
                        (long long)c->numerics.cp_invariant_up_to);
}

/* Sums over segments are pairs of pairs. */
static ErrorCode check_segments(const Config *c, const OptionSet *set, Error *err) {
    int64_t k = c->pipeline.segments;
    if ((k & (k - 1)) == 0) return OK;
    return options_fail(set, "pipeline.segments", err, "%lld: expected 1, 2, 4, 8, 16, 32 or 64",
                        (long long)k);
}

/* The estimate needs squared norms that add up, hence the 2-norm. */
static ErrorCode check_noise(const Config *c, const OptionSet *set, Error *err) {
    if (!c->metrics.noise_scale || (c->optimizer.clip_norm >= 2 && c->optimizer.clip_norm <= 2)) return OK;
    return options_fail(set, "metrics.noise_scale", err,
                        "it is made of squares: expected optimizer.clip_norm 2, found %g",
                        c->optimizer.clip_norm);
}

/* The first optimizer, of the section or of a group, that has a usual momentum; NULL: none. */
static const Optimizer *brings_momentum(const OptimizerOptions *o) {
    const OptimizerGroup *groups = (const OptimizerGroup *)(const void *)o->groups.items;
    const Optimizer *by = optimizer_of((OptimizerKind)o->settings.kind);
    for (size_t i = 0; !by->momentum && i < o->groups.count; i++)
        if (groups[i].settings.kind >= 0) by = optimizer_of((OptimizerKind)groups[i].settings.kind);
    return by->momentum ? by : NULL;
}

/* A section whose own optimizer reads the keys, as SGD does, uses them for itself. AdamW reads neither. */
static ErrorCode take_momentum(const Config *c, OptionSet *set, Error *err) {
    const Optimizer *section = optimizer_of((OptimizerKind)c->optimizer.settings.kind),
                    *by = brings_momentum(&c->optimizer);
    if (!by || (by != section && strstr(section->reads, "momentum"))) return OK;
    const char *const defaults[][2] = {{"optimizer.momentum", by->momentum},
                                       {"optimizer.nesterov", by->nesterov}};
    char where[64];
    snprintf(where, sizeof where, "default of %s", by->name);
    for (int i = 0; i < 2; i++)
        if (!options_is_set(set, defaults[i][0]))
            TRY(options_derive(set, defaults[i][0], defaults[i][1], where, err));
    return OK;
}

/* Why a model or mesh cannot have an MTP module; NULL if it can. */
static const char *refuses_mtp_module(const Config *c) {
    if (c->train.mtp_depth > 1) return "train.mtp_depth above 1: checkpoints of the family have one module";
    if (!model_family(&c->model.shape)->arch.mtp_module)
        return "another model.family than deepseek_v3: files of no other one have a module";
    return NULL;
}

static ErrorCode check_mtp_module(const Config *c, const OptionSet *set, Error *err) {
    const char *why = refuses_mtp_module(c);
    if (c->train.mtp_kind != MTP_KIND_MODULE) return OK;
    if (c->train.mtp_depth == 0)
        return options_fail(set, "train.mtp_kind", err, "a module is one: set train.mtp_depth to 1");
    if (!why) return OK;
    return options_fail(set, "train.mtp_kind", err, "a module is not in this version together with %s", why);
}

/* Features that MTP heads do not support: a tied head's gradient is computed in a different way, and weights
 * to start from have no such heads. */
static ErrorCode check_mtp(const Config *c, const OptionSet *set, Error *err) {
    bool heads = c->train.mtp_kind == MTP_KIND_HEADS;
    const char *other = c->lora.rank > 0                     ? "lora.rank"
                        : c->model.init[0] && heads          ? "model.init"
                        : c->model.shape.tie_word_embeddings ? "model.tie_word_embeddings"
                                                             : NULL;
    if (c->train.mtp_depth == 0 || !other) return check_mtp_module(c, set, err);
    return options_fail(set, "train.mtp_depth", err,
                        "MTP heads together with %s are not in this version: leave "
                        "one of them out",
                        other);
}

/* Features that adapters do not support. */
static ErrorCode check_lora(const Config *c, const OptionSet *set, Error *err) {
    if (c->lora.rank == 0) return OK;
    if (!c->model.init[0])
        return options_fail(set, "lora.rank", err,
                            "adapters go to a model that is there: set model.init to its directory");
    if (c->optimizer.ema > 0)
        return options_fail(set, "optimizer.ema", err,
                            "no average of weights is kept with lora.rank: set it to 0");
    return OK;
}

/* `find` is checkpoint_find_shape, passed in since config/ is below checkpoint/. The path of a run means its
 * newest checkpoint, so messages name the directory that was found. */
static ErrorCode take_shape_of_model(Config *c, OptionSet *set, FindModel find, Error *err) {
    char *dir;
    ModelConfig own;
    TRY(find(c->model.init, c->data.cache_dir, &dir, err));
    char *path = path_join(dir, "config.json");
    ErrorCode code = model_options_take(&c->model, set, path, &own, err);
    if (code == OK) code = model_options_fit(&c->model, set, &own, dir, err);
    free(path);
    free(dir);
    return code;
}

/* "3-5", "3". Digits are checked before each strtoll, which would accept signs and blanks. A number beyond 64
 * bits becomes the largest: a step that is never reached, and no error. */
static bool parse_range(const char *text, int64_t *first, int64_t *last) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    *first = *last = strtoll(text, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') *last = strtoll(end + 1, &end, 10);
    return *end == '\0' && *first >= 1 && *last >= *first;
}

bool config_saves_async(const Config *c) { return c->checkpoint.async && c->checkpoint.every > 0; }

/* The text is parsed at each call: it is short and has been checked, and no second field must be kept
 * consistent with it. */
bool config_traces(const Config *c, int64_t *first, int64_t *last) {
    return parse_range(c->metrics.trace, first, last);
}

/* Checked when the configuration is read, not at the first traced step hours later. Empty: no trace. */
static ErrorCode check_trace(const OptionSet *set, const char *text, Error *err) {
    int64_t first, last;
    char shown[80];
    if (*text == '\0' || parse_range(text, &first, &last)) return OK;
    return options_fail(set, "metrics.trace", err, "expected steps as in 3-5, counted from 1, found \"%s\"",
                        error_escape(shown, sizeof shown, text, strlen(text)));
}

/* A rank in decimal; -1 for anything else. From text, since the options store a list of numbers as texts. The
 * first character must be a digit, since strtoll would accept " 3" and "+3". */
static int64_t rank_of(const char *text) {
    char *end;
    if (*text < '0' || *text > '9') return -1;
    long long value = strtoll(text, &end, 10);
    return *end == '\0' && value <= INT32_MAX ? (int64_t)value : -1;
}

bool config_logs_rank(const Config *c, int rank) {
    for (size_t i = 0; i < c->metrics.log_ranks.count; i++)
        if (rank_of(c->metrics.log_ranks.items[i]) == rank) return true;
    return false;
}

/* Checks what does not depend on the number of ranks; config_check_ranks does the rest. */
static ErrorCode check_ranks(const StringList *ranks, Error *err) {
    char shown[80];
    for (size_t i = 0; i < ranks->count; i++)
        if (rank_of(ranks->items[i]) < 0)
            return error_set(err, ERR_CONFIG,
                             "metrics.log_ranks: expected whole numbers as in [0, 3], found \"%s\"",
                             error_escape(shown, sizeof shown, ranks->items[i], strlen(ranks->items[i])));
    return OK;
}

/* A range test multiplies, so it must start above 0. */
static ErrorCode check_range_test(const OptionSet *set, const LrScheduleOptions *s, Error *err) {
    if (s->kind == LR_RANGE && s->warmup_from > 0)
        return options_fail(set, "lr_schedule.warmup_from", err, "lr_schedule.kind: range has no warmup");
    if (s->kind != LR_RANGE || s->min_factor > 0) return OK;
    return options_fail(set, "lr_schedule.min_factor", err,
                        "lr_schedule.kind: range starts at this share of optimizer.lr, which must be above "
                        "0: for example 1e-5");
}

/* Names in run.allow_changes that are not keys: facts about a run's data, and keys that only another version
 * of weft knows. */
static bool is_no_key(const char *name) {
    static const char *const names[] = {"data", "tokenizer", "mixture", "base", "unknown"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* A misspelt key would otherwise be found only when the supervisor resumes the run, possibly at night: so it
 * is refused when the configuration is read. */
static ErrorCode check_changes(const OptionSet *set, const StringList *keys, Error *err) {
    for (size_t i = 0; i < keys->count; i++) {
        const char *key = keys->items[i];
        if (!is_no_key(key)) TRY(options_check_key(set, "run.allow_changes", key, err));
    }
    return OK;
}

/* Before anything is written: a URL with a secret must not get into the run directory. */
static ErrorCode check_url(const char *key, const char *path, Error *err) {
    if (!path || !file_is_url(path) || location_check(path, err) == OK) return OK;
    return error_context(err, "%s", key);
}

static ErrorCode check_source_urls(const char *key, const ObjectList *list, Error *err) {
    const DataSource *sources = (const DataSource *)(const void *)list->items;
    for (size_t i = 0; i < list->count; i++) TRY(check_url(key, sources[i].path, err));
    return OK;
}

static ErrorCode check_task_urls(const ObjectList *list, Error *err) {
    const TaskSource *tasks = (const TaskSource *)(const void *)list->items;
    for (size_t i = 0; i < list->count; i++) {
        TRY(check_url("evaluation.tasks", tasks[i].path, err));
        TRY(check_url("evaluation.tasks", tasks[i].examples, err));
    }
    return OK;
}

static ErrorCode check_order(const Config *c, const OptionSet *set, Error *err) {
    const char *why = data_order_conflict(&c->data);
    return why ? options_fail(set, "data.order", err, "stream does not go with %s", why) : OK;
}

static ErrorCode check_mirror(const char *url, Error *err) {
    Location l;
    if (!url[0] || location_check_prefix(&l, url, err) == OK) return OK;
    return error_context(err, "checkpoint.mirror");
}

/* One of the two would be ignored. */
static ErrorCode check_restore(const Config *c, const OptionSet *set, Error *err) {
    const char *url = c->checkpoint.restore;
    if (!url[0]) return OK;
    if (c->run.overwrite)
        return options_fail(
            set, "checkpoint.restore", err,
            "run.overwrite starts at step 0, and this goes on from a checkpoint: leave one out");
    return location_check_directory(url, err) == OK ? OK : error_context(err, "checkpoint.restore");
}

static ErrorCode check_partner_copy(const Config *c, const OptionSet *set, Error *err) {
    const char *key = "recovery.partner_copy";
    if (!c->recovery.partner_copy) return OK;
    if (c->recovery.mode != RECOVERY_IN_PLACE)
        return options_fail(set, key, err,
                            "with recovery.mode: restart nothing reads the copies: set "
                            "recovery.mode=in_place, or leave this out");
    if (c->mesh.dp_replicate > 1)
        return options_fail(set, key, err,
                            "mesh.dp_replicate is %lld, so a replica holds each shard already: leave one of "
                            "the two out",
                            (long long)c->mesh.dp_replicate);
    return OK;
}

/* Checks what in_place needs of keys that a recovery does not change. setup_check (train/setup.c) checks the
 * rest when a run starts. */
static ErrorCode check_recovery(const Config *c, const OptionSet *set, Error *err) {
    const char *key = "recovery.mode";
    TRY(check_partner_copy(c, set, err));
    if (c->recovery.spares > 0 && c->recovery.mode != RECOVERY_IN_PLACE)
        return options_fail(set, "recovery.spares", err,
                            "with recovery.mode: restart nobody takes the place of a dead rank: set "
                            "recovery.mode=in_place, or leave this out");
    if (c->recovery.mode != RECOVERY_IN_PLACE) return OK;
    if (c->numerics.mode != NUMERICS_EXACT && c->recovery.spares == 0)
        return options_fail(set, key, err,
                            "in_place changes how many ranks sum the gradients, which only exact sums do not "
                            "show: set numerics.mode=exact, or give the mesh spares (recovery.spares)");
    if (c->run.receipts)
        return options_fail(set, key, err,
                            "in_place and run.receipts cannot be combined, since the hashes of a dead rank's "
                            "samples are lost: set recovery.mode=restart or run.receipts=false");
    return OK;
}

/* Called after the configuration is read, when the number of ranks is known. A rank beyond it is an error:
 * the user would wait for its lines in vain. */
ErrorCode config_check_ranks(const Config *c, int world, Error *err) {
    const StringList *ranks = &c->metrics.log_ranks;
    for (size_t i = 0; i < ranks->count; i++)
        if (rank_of(ranks->items[i]) >= world)
            return error_set(err, ERR_CONFIG, "metrics.log_ranks names rank %s: %s %d", ranks->items[i],
                             world == 1 ? "there is only rank" : "ranks are 0 to", world - 1);
    return OK;
}

/* Sequences of a microbatch if the user does not set them: about 2,048 tokens, which keep the matrix products
 * of a small model busy, or the result of pipeline.microbatches. The number of ranks matters only if that
 * many do not fit, so that the curve does not depend on it. */
static int64_t choose_sequences(const Config *c, int ranks) {
    /* Whatever divides the smallest step divides the others. */
    int64_t context = c->train.context,
            step = c->train.rampup_start > 0 ? c->train.rampup_start : c->train.tokens_per_step;
    if (step > 0 && c->pipeline.microbatches > 0 && step % (c->pipeline.microbatches * ranks * context) == 0)
        return step / (c->pipeline.microbatches * ranks * context);
    int64_t chosen = (2048 + context - 1) / context;
    while (step > 0 && chosen > 1 && step % (chosen * context) != 0) chosen--;
    while (step > 0 && chosen > 1 && step % (chosen * context * ranks) != 0) chosen--;
    return chosen;
}

/* The message suggests the nearest valid sizes: the multiples of one microbatch on every rank below and
 * above. There is none below if the step is smaller than that. */
static ErrorCode refuse_step(const Config *c, int64_t step, int64_t sequences, int ranks, Error *err) {
    int64_t unit = sequences * c->train.context * ranks, below = step / unit * unit;
    char lower[40] = "";
    if (below > 0) snprintf(lower, sizeof lower, "%lld or ", (long long)below);
    return error_set(err, ERR_CONFIG,
                     "train.tokens_per_step is %lld, which microbatches of %lld sequence%s of %lld tokens on "
                     "%d data-parallel rank%s do not divide: %s%lld would",
                     (long long)step, (long long)sequences, sequences == 1 ? "" : "s",
                     (long long)c->train.context, ranks, ranks == 1 ? "" : "s", lower,
                     (long long)(below + unit));
}

/* Into whole microbatches, of any number. *sequences and *microbatches are set even if the step is refused,
 * since config_geometry's message uses them. */
static ErrorCode divide_step(const Config *c, int ranks, int64_t *sequences, int64_t *microbatches,
                             Error *err) {
    int64_t step = c->train.tokens_per_step, asked = c->pipeline.microbatches;
    *sequences = c->train.microbatch > 0 ? c->train.microbatch : choose_sequences(c, ranks);
    int64_t unit = *sequences * c->train.context * ranks;
    if (step == 0) step = unit * (asked > 0 ? asked : 1);
    *microbatches = step / unit;
    return step % unit == 0 ? OK : refuse_step(c, step, *sequences, ranks, err);
}

/* Positions within a microbatch have 32 bits. */
static ErrorCode check_microbatch(const Config *c, int64_t sequences, Error *err) {
    long long most = INT32_MAX / c->train.context;
    if (sequences <= most) return OK;
    return error_set(err, ERR_CONFIG,
                     "train.microbatch is %lld sequences of %lld tokens: a microbatch has at most %d tokens, "
                     "%lld sequences",
                     (long long)sequences, (long long)c->train.context, INT32_MAX, most);
}

/* All three of tokens, microbatch and microbatches may be given if they agree; a missing one follows from the
 * others:
 *
 *     train.tokens_per_step = microbatches * sequences * train.context * ranks
 *
 * Refused, never rounded: a step with another number of tokens would give another curve. */
ErrorCode config_geometry(const Config *c, int ranks, int64_t *sequences, int64_t *microbatches, Error *err) {
    int64_t context = c->train.context, asked = c->pipeline.microbatches;
    TRY(divide_step(c, ranks, sequences, microbatches, err));
    TRY(check_microbatch(c, *sequences, err));
    if (*microbatches > MOST_MICROBATCHES)
        return error_set(err, ERR_CONFIG,
                         "train.tokens_per_step asks for %lld microbatches a step: at most 1,000,000",
                         (long long)*microbatches);
    if (asked > 0 && asked != *microbatches)
        return error_set(err, ERR_CONFIG,
                         "pipeline.microbatches is %lld, but %lld tokens a step in microbatches of %lld "
                         "sequences of %lld tokens on %d data-parallel rank%s are %lld: leave one of them to "
                         "weft (0)",
                         (long long)asked, (long long)(*sequences * *microbatches * context * ranks),
                         (long long)*sequences, (long long)context, ranks, ranks == 1 ? "" : "s",
                         (long long)*microbatches);
    return OK;
}

/* Also called for a saved configuration when it is read back (train/saved.c), so that both are compared with
 * everything derived. */
ErrorCode config_derive(Config *c, OptionSet *set, Error *err) {
    c->model.shape.mtp_depth = c->train.mtp_depth;
    c->model.shape.mtp_module = c->train.mtp_depth > 0 && c->train.mtp_kind == MTP_KIND_MODULE;
    c->model.shape.balance_bias =
        c->train.router_bias_speed > 0 && !families[c->model.family]->arch.sigmoid_router;
    TRY(options_follow(set, err));
    return model_options_derive(&c->model, set, err);
}

ErrorCode config_set_open(OptionSet *set, Config *c, Error *err) {
    TRY(options_init(set, config_options(), c, err));
    set->sections = config_sections;
    return OK;
}

/* As in a user's file, a key that this version does not know is an error. */
static ErrorCode apply_run(OptionSet *set, const char *dir, Error *err) {
    Text yaml = {0};
    char *path = path_join(dir, "config.yaml");
    ErrorCode code = file_read_text(path, RUN_CONFIG_LIMIT, &yaml, err);
    if (code == OK) code = options_apply_written(set, path, yaml.data, err);
    if (code == OK && set->unknown.length)
        code = error_set(err, ERR_CONFIG,
                         "%s: keys that this weft does not know: %s; use the weft that wrote them", path,
                         set->unknown.data);
    text_free(&yaml);
    free(path);
    return code;
}

/* Completes and checks the given values: first checks across keys, then shapes from files, then derived
 * values. So a wrong word is found before the file of a model is opened, and derived values see all that they
 * follow from. */
static ErrorCode complete(Config *c, OptionSet *set, FindModel find, Error *err) {
    TRY(check_ranks(&c->metrics.log_ranks, err));
    TRY(check_trace(set, c->metrics.trace, err));
    TRY(check_range_test(set, &c->lr_schedule, err));
    if (c->metrics.command.count > 0 && !*c->metrics.command.items[0])
        return options_fail(set, "metrics.command", err, "expected a program as the first word, found \"\"");
    TRY(check_changes(set, &c->run.allow_changes, err));
    TRY(check_source_urls("data.sources", &c->data.sources, err));
    TRY(check_source_urls("data.validation", &c->data.validation_sources, err));
    TRY(check_task_urls(&c->evaluation.tasks, err));
    TRY(check_order(c, set, err));
    TRY(check_mirror(c->checkpoint.mirror, err));
    TRY(check_restore(c, set, err));
    TRY(check_recovery(c, set, err));
    TRY(model_options_read(&c->model, set, err));
    if (c->model.config[0]) TRY(model_options_take(&c->model, set, c->model.config, &(ModelConfig){0}, err));
    if (c->model.init[0]) TRY(take_shape_of_model(c, set, find, err));
    if (!c->model.config[0] && !c->model.init[0]) TRY(model_options_default(&c->model, set, err));
    TRY(model_options_initialiser(&c->model, set, err));
    TRY(take_momentum(c, set, err));
    TRY(check_schedule(c, set, err));
    TRY(check_rampup(c, set, err));
    TRY(check_exact_chunks(c, set, err));
    TRY(check_segments(c, set, err));
    TRY(check_noise(c, set, err));
    TRY(check_lora(c, set, err));
    TRY(take_router_bias(c, set, err));
    TRY(check_router_bias(c, set, err));
    TRY(check_mtp(c, set, err));
    TRY(config_derive(c, set, err));
    if (c->train.context > c->model.shape.max_position_embeddings)
        return error_set(err, ERR_CONFIG,
                         "train.context is %lld but model.max_position_embeddings is %lld: lower the one or "
                         "raise the other",
                         (long long)c->train.context, (long long)c->model.shape.max_position_embeddings);
    /* Called only for its error. */
    int64_t sequences, microbatches;
    /* More ranks only restrict the possible sizes further; the mesh's restrictions are checked when the mesh
     * is known. */
    return c->pipeline.microbatches ? OK : divide_step(c, 1, &sequences, &microbatches, err);
}

/* `set` and `c` are the caller's to free by options_free, after a failure too. */
static ErrorCode load(Config *c, OptionSet *set, const char *path, bool run, int override_count,
                      const char *const *overrides, FindModel find, Error *err) {
    memset(c, 0, sizeof *c);
    TRY(config_set_open(set, c, err));
    if (path) TRY(run ? apply_run(set, path, err) : options_apply_file(set, path, err));
    for (int i = 0; i < override_count; i++) TRY(options_apply_override(set, overrides[i], err));
    return complete(c, set, find, err);
}

ErrorCode config_load(Config *c, OptionSet *set, const char *path, int override_count,
                      const char *const *overrides, FindModel find, Error *err) {
    return load(c, set, path, false, override_count, overrides, find, err);
}

ErrorCode config_load_either(Config *c, OptionSet *set, const char *path, int override_count,
                             const char *const *overrides, FindModel find, Error *err) {
    return load(c, set, path, path && file_is_dir(path), override_count, overrides, find, err);
}
