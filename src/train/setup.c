/* Settles once, through the options, what a configuration leaves open and device, tokenizer or mesh
 * determine. A resumed run keeps what it has settled before (changes.c).
 *
 * In the order of a run: setup_before_ranks (the environment for OpenMP, before there are threads),
 * setup_check, setup_device, setup_shape (with the tokenizer), setup_keep_compute and setup_compute,
 * setup_settle, setup_check_init, setup_loss_rows, setup_sums, setup_communication. Each writes what it has
 * settled into the options with the reason, so that the run's config.yaml, the agreement between ranks and
 * the next start all see the same. */
#include "train/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/find.h"
#include "checkpoint/modelfiles.h"
#include "device/cpu/waiting.h"
#include "model/families/family.h"
#include "plan/fit.h"
#include "plan/sync.h"
#include "train/best.h"

static const char WAITING[] = "OMP_WAIT_POLICY";

/* OpenMP threads spin while they wait; if there are more of them than cores, each takes time from another. */
static bool too_many_threads(const Config *c, int ranks, int cores) {
    return ranks > 1 && c->run.threads > 1 && c->run.threads * ranks > cores;
}

/* Cores of all ranks of this machine together. If a launcher has bound the ranks, these are more than this
 * rank's own. */
static int local_cores(const Comm *comm) {
    int known = comm ? comm_local_cores(comm) : 0;
    return known > 0 ? known : device_cpu_cores();
}

static bool set_waiting; /* by setup_before_ranks, not by the user */

/* With "passive", threads sleep while they wait. A value that the user has set stays. It is for the ranks,
 * which inherit the environment: OpenMP in this process has read its own already. */
void setup_before_ranks(const Config *c, int ranks) {
    if (getenv(WAITING) || !too_many_threads(c, ranks, device_cpu_cores())) return;
    set_waiting = setenv(WAITING, "passive", 1) == 0;
}

void setup_after_ranks(void) {
    if (set_waiting) unsetenv(WAITING);
    set_waiting = false;
}

/* Silent if the user has chosen how threads wait: such a machine is loaded on purpose. */
static void warn_of_load(const Comm *comm) {
    double load;
    int cores;
    if ((comm && comm_rank(comm) > 0) || waiting_is_set() || !machine_is_loaded(&load, &cores)) return;
    log_warn("other programs use this machine (load %.1f on %d cores): this one gets a part of its speed",
             load, cores);
}

/* A configuration that a recovery has left behind, with fewer replicas, can be read but not begun with. */
static ErrorCode check_recovery(const Config *c, Error *err) {
    if (c->recovery.mode != RECOVERY_IN_PLACE) return OK;
    if (c->mesh.dp_replicate < 2 && !c->recovery.partner_copy)
        return error_set(err, ERR_CONFIG,
                         "recovery.mode in_place takes the weights of a dead rank from a replica, but "
                         "mesh.dp_replicate is %lld: set it to 2 or more, or set recovery.partner_copy=true",
                         (long long)c->mesh.dp_replicate);
    if (strcmp(device_kind(c->run.device), "cuda") == 0)
        return error_set(
            err, ERR_CONFIG,
            "recovery.mode in_place works on CPUs only, and run.device is cuda: set recovery.mode=restart");
    return OK;
}

/* That no data is named is left to those who open it. */
ErrorCode setup_check(const Config *c, Error *err) {
    TRY(dataset_check(&c->data, c->train.context, err));
    TRY(tasks_check(&c->evaluation, err));
    TRY(check_recovery(c, err));
    return best_check(c, err);
}

/* Without run.threads each rank gets an equal share of the machine's cores: at least one, and no more than it
 * is bound to. */
ErrorCode setup_device(const Config *c, const Comm *comm, int spares, Device *d, Error *err) {
    int local = comm ? comm_local_size(comm) - spares : 1, cores = local_cores(comm),
        own = device_cpu_cores();
    if (local < 1) local = 1; /* a spare that is alone on its machine */
    int each = cores > local ? cores / local : 1;
    if (each > own) each = own;
    warn_of_load(comm);
    if (too_many_threads(c, local, cores) && !getenv(WAITING) && comm_rank(comm) == 0)
        log_warn("%d ranks of %lld threads on %d cores take each other's time: set run.threads=%d, or "
                 "%s=passive in the environment",
                 local, (long long)c->run.threads, cores, each, WAITING);
    return device_open(d, device_kind(c->run.device), comm ? comm_local_rank(comm) : 0,
                       c->run.threads > 0 ? (int)c->run.threads : each, err);
}

/* A window size needs layers that use it, and a layer pattern must name layers. Files express "none" in many
 * ways, all of which become one. A user who sets half of a pair by option means something, and would get
 * nothing. */
static ErrorCode check_pairs(const ModelConfig *m, Error *err) {
    if (m->sliding_window > 0 && m->windows.layers == 0)
        return error_set(
            err, ERR_CONFIG,
            "model.sliding_window is %lld, but no layer has a window: set model.window_period and "
            "model.window_layers (1 and 1 mean all layers), or leave it out",
            (long long)m->sliding_window);
    /* The family's pattern is allowed without a window. */
    LayerSet usual = model_family(m)->defaults.windows;
    bool said = m->windows.period != usual.period || m->windows.layers != usual.layers;
    if (m->sliding_window == 0 && said && (m->windows.period > 0 || m->windows.layers > 0))
        return error_set(
            err, ERR_CONFIG,
            "model.window_period is %lld and model.window_layers %lld, but model.sliding_window is 0: "
            "set how many keys such a layer sees, or leave them out",
            (long long)m->windows.period, (long long)m->windows.layers);
    if (m->no_rope.period > 0 && m->no_rope.layers == 0)
        return error_set(err, ERR_CONFIG,
                         "model.no_rope_period is %lld, but model.no_rope_layers names no layer of it",
                         (long long)m->no_rope.period);
    return OK;
}

/* Names the keys that were given, rather than what the family's config.json cannot express. */
static ErrorCode check_experts(const ModelConfig *m, Error *err) {
    const Family *f = model_family(m);
    const struct {
        const char *key;
        int64_t value;
    } keys[] = {{"num_experts", m->num_experts},
                {"num_experts_per_tok", m->num_experts_per_tok},
                {"moe_intermediate_size", m->moe_intermediate_size},
                {"dense_period", m->dense_layers.period}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value > 0 && !family_has_experts(f))
            return error_set(err, ERR_CONFIG,
                             "model.%s is %lld, but models of the family %s have no experts; \"weft models\" "
                             "lists those that have",
                             keys[i].key, (long long)keys[i].value, f->model_type);
    if (m->dense_layers.period > 0 && m->dense_layers.layers == 0)
        return error_set(err, ERR_CONFIG,
                         "model.dense_period is %lld, but model.dense_layers names no layer of it",
                         (long long)m->dense_layers.period);
    if (m->dense_layers.period == 0 && m->dense_layers.layers > 0)
        return error_set(
            err, ERR_CONFIG,
            "model.dense_layers is %lld, but model.dense_period is 0: set after how many layers of "
            "the model the pattern repeats",
            (long long)m->dense_layers.layers);
    return OK;
}

/* Such keys would be ignored if no block has a recurrence, or not the one that reads them. */
static ErrorCode check_recurrence(const ModelConfig *m, Error *err) {
    const struct {
        const char *key;
        int64_t value;
        bool read;
        const char *by;
    } keys[] = {{"recurrent_size", m->recurrent_size, model_is_recurrent(m), "a recurrence: name one"},
                {"conv_size", m->conv_size, model_is_recurrent(m), "a recurrence: name one"},
                {"mamba_d_state", m->mamba_d_state, model_has_mixer(m, MIXER_MAMBA2), "mamba2: name it"},
                {"mamba_d_head", m->mamba_d_head, model_has_mixer(m, MIXER_MAMBA2), "mamba2: name it"},
                {"mamba_n_groups", m->mamba_n_groups, model_has_mixer(m, MIXER_MAMBA2), "mamba2: name it"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!keys[i].read && keys[i].value > 0)
            return error_set(err, ERR_CONFIG,
                             "model.%s is %lld, but no block has %s in model.mixer, with model.family: "
                             "recurrent",
                             keys[i].key, (long long)keys[i].value, keys[i].by);
    return OK;
}

/* Adds to the error the values that nobody gave but the family's defaults have, since a user would look for
 * them in vain. */
static ErrorCode name_defaults(const OptionSet *set, const ModelConfig *m, Error *err) {
    Text said = {0};
    char message[sizeof err->message];
    for (size_t i = 0; i < set->count; i++) {
        const char *key = set->table[i].key;
        bool usual =
            strncmp(key, "model.", 6) == 0 && strcmp(set->sources[i].where, "default of model.family") == 0;
        if (!usual || strcmp(key, "model.family") == 0 || !strstr(err->message, key + 6)) continue;
        text_printf(&said, "%s%s ", said.length ? ", " : "", key);
        options_write_value(set, key, &said);
    }
    snprintf(message, sizeof message, "%s", err->message);
    if (said.length)
        error_set(err, err->code, "%s (by default of the family %s: %s)", message,
                  model_family(m)->model_type, said.data);
    text_free(&said);
    return err->code;
}

/* Values that follow from other keys (heads, sizes) are marked as derived. */
static ErrorCode complete_shape(Config *c, OptionSet *set, Error *err) {
    ModelConfig whole = c->model.shape;
    TRY(check_pairs(&whole, err));
    TRY(check_experts(&whole, err));
    TRY(check_recurrence(&whole, err));
    if (model_config_complete(&whole, "model", err) != OK) return name_defaults(set, &whole, err);
    return options_derive_part(set, &c->model.shape, &whole, sizeof whole, true,
                               "derived from other keys of model", err);
}

/* Whether this is the tokenizer.json of model.init: the usual case, in which none need be opened to
 * compare. */
static bool is_of(const char *dir, const char *tokenizer) {
    struct stat a, b;
    char *path = path_join(dir, "tokenizer.json"),
         *other = file_is_dir(tokenizer) ? path_join(tokenizer, "tokenizer.json") : mem_strdup(tokenizer);
    bool same = stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    free(path);
    free(other);
    return same;
}

/* Whether the ids of model.init still name the same tokens. They do not if it is tuned with another tokenizer
 * (run.allow_changes). */
static bool keeps_tokens(const Config *c, const Tokenizer *t) {
    char *dir = NULL;
    Tokenizer *own = NULL;
    Error unread = {.message = ""};
    const char *init = model_options_init(&c->model);
    if (!init[0] || checkpoint_find_shape(init, c->data.cache_dir, &dir, &unread) != OK)
        return c->model.init[0];
    bool kept = is_of(dir, c->data.tokenizer) || tokenizer_open(&own, dir, &unread) != OK ||
                tokenizer_same_ids(own, t);
    tokenizer_free(own);
    free(dir);
    return kept;
}

/* bos, eos and pad are written to config.json alongside the weights, so that other programs stop where this
 * one does. Those of model.init stay, since it was tuned to stop at them; keys of `tokenizer` take
 * precedence. */
static void take_tokens(Config *c, const Tokenizer *t) {
    ModelConfig *m = &c->model.shape;
    const TokenizerKeys *keys = &c->data.tokenizer_keys;
    c->model.keeps_tokens = keeps_tokens(c, t);
    bool fresh = !c->model.keeps_tokens;
    if (fresh || keys->bos[0]) m->bos_token_id = tokenizer_bos(t);
    if (fresh || keys->pad[0]) m->has_pad = tokenizer_pad(t) >= 0, m->pad_token_id = tokenizer_pad(t);
    if (!fresh && keys->eos.count == 0) return;
    int count;
    const int32_t *ends = tokenizer_ends(t, &count);
    m->eos_token_id = tokenizer_eos(t);
    m->more_eos.count = count > 1 ? count - 1 : 0;
    for (int i = 1; i < count; i++) m->more_eos.ids[i - 1] = ends[i];
}

ErrorCode setup_shape(Config *c, OptionSet *set, const Tokenizer *t, Error *err) {
    ModelConfig *m = &c->model.shape;
    int64_t size = tokenizer_vocab_size(t);
    char entries[24];
    snprintf(entries, sizeof entries, "%lld", (long long)size);
    if (m->vocab_size == 0)
        TRY(options_derive(set, "model.vocab_size", entries, "derived from data.tokenizer", err));
    /* More rows than entries are fine (padding to a round number). With fewer, ids would be out of bounds. */
    if (m->vocab_size < size)
        return error_set(
            err, ERR_CONFIG,
            "model.vocab_size is %lld but tokenizer %s has %lld entries: set it to 0 or to at least that",
            (long long)m->vocab_size, c->data.tokenizer, (long long)size);
    take_tokens(c, t);
    return complete_shape(c, set, err);
}

static ErrorCode shape_with_tokenizer(Config *c, OptionSet *set, Error *err) {
    Tokenizer *tokenizer;
    TRY(tokenizer_open_as(&tokenizer, c->data.tokenizer, &c->data.tokenizer_keys, err));
    ErrorCode code = setup_shape(c, set, tokenizer, err);
    tokenizer_free(tokenizer);
    return code;
}

ErrorCode setup_shape_alone(Config *c, OptionSet *set, Error *err) {
    return c->model.shape.vocab_size > 0 ? complete_shape(c, set, err) : shape_with_tokenizer(c, set, err);
}

/* Published configurations name a tokenizer that their reader may not have yet. */
ErrorCode setup_shape_planned(Config *c, OptionSet *set, Error *err) {
    if (c->model.shape.vocab_size > 0 && c->data.sources.count == 0) return complete_shape(c, set, err);
    ErrorCode code = shape_with_tokenizer(c, set, err);
    return code == ERR_NOINPUT && c->model.shape.vocab_size > 0 ? complete_shape(c, set, err) : code;
}

/* A resumed run does not need the weights, so it may do without them. The shape of a checkpoint that is not
 * fetched has come from its config.json (checkpoint_find_shape). */
ErrorCode setup_check_init(const Config *c, Error *err) {
    char *dir;
    const char *init = model_options_init(&c->model);
    if (!init[0] || file_is_url(init)) return OK;
    ErrorCode code = checkpoint_find_model(init, &dir, err);
    if (code == OK) {
        code = modelfiles_check_shape(dir, &c->model.shape, err);
        free(dir);
    }
    return code == ERR_NOINPUT ? OK : code;
}

/* ---- values that are left open ---- */

static const char KEPT[] = "what the run has had so far";

/* `auto` is decided once in the life of a run: on another machine it could mean another dtype, and another
 * curve. */
ErrorCode setup_keep_compute(const Config *c, OptionSet *set, const Config *saved, Error *err) {
    if (c->train.compute != COMPUTE_AUTO || !saved || saved->train.compute == COMPUTE_AUTO) return OK;
    return options_derive(set, "train.compute", saved->train.compute == COMPUTE_BF16 ? "bf16" : "fp32", KEPT,
                          err);
}

/* The default of a key that nobody gave depends on the version and on model.init; a resumed run continues as
 * it began. Biases of experts stay even if the speed is 0 now, since experts learned to be chosen with
 * them. */
ErrorCode setup_keep_balance(Config *c, OptionSet *set, const SavedRun *saved, bool biased, Error *err) {
    char speed[32];
    if (!saved) return OK;
    if (!options_is_set(set, "train.router_bias_speed"))
        TRY(options_derive(set, "train.router_bias_speed",
                           text_double(saved->config.train.router_bias_speed, speed), KEPT, err));
    TRY(config_derive(c, set, err));
    c->model.shape.balance_bias |= biased;
    return OK;
}

/* `native`: on all ranks (agree_on_compute). */
ErrorCode setup_compute(const Config *c, OptionSet *set, bool native, Error *err) {
    if (c->train.compute != COMPUTE_AUTO) return OK;
    return options_derive(set, "train.compute", native ? "bf16" : "fp32",
                          native ? "auto: the processors multiply bf16 natively"
                                 : "auto: not all processors multiply bf16 natively",
                          err);
}

/* Goes through the option table as text, so a derived value passes the same bounds as a given one. */
static ErrorCode derive_number(OptionSet *set, const char *key, int64_t value, const char *where,
                               Error *err) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return options_derive(set, key, text, where, err);
}

/* Whether the saved run's microbatch divides the step on these ranks, into the number of microbatches that
 * was asked for. Otherwise another is chosen, and the change of last bits is reported. */
static bool keeps_microbatch(const Config *c, const Config *saved, int ranks) {
    int64_t unit = saved->train.microbatch * c->train.context * ranks, asked = c->pipeline.microbatches;
    if (unit == 0 || c->train.tokens_per_step % unit != 0 || c->train.rampup_start % unit != 0) return false;
    return asked == 0 || asked == c->train.tokens_per_step / unit;
}

/* Takes, in this order, what was given, what the saved run had, what follows from the tokens of a step. With
 * another number of ranks the step keeps its tokens, and so its samples. */
ErrorCode setup_batch(const Config *c, OptionSet *set, int world, const Config *saved, Error *err) {
    Mesh mesh;
    int64_t sequences, microbatches;
    TRY(mesh_build(&mesh, &c->mesh, world, err));
    int ranks = mesh_dp_degree(&mesh);
    if (c->train.tokens_per_step == 0 && saved && saved->train.tokens_per_step > 0)
        TRY(derive_number(set, "train.tokens_per_step", saved->train.tokens_per_step, KEPT, err));
    if (c->train.microbatch == 0 && saved && keeps_microbatch(c, saved, ranks))
        TRY(derive_number(set, "train.microbatch", saved->train.microbatch, KEPT, err));
    TRY(config_geometry(c, ranks, &sequences, &microbatches, err));
    if (c->train.microbatch == 0)
        TRY(derive_number(set, "train.microbatch", sequences, "derived from the tokens of a step", err));
    /* Chunks of the loss determine the order of sums too: they stay if the microbatch does. */
    if (c->train.loss_rows == 0 && saved && saved->train.microbatch == sequences)
        TRY(derive_number(set, "train.loss_rows", saved->train.loss_rows, KEPT, err));
    if (c->train.tokens_per_step > 0) return OK;
    return derive_number(set, "train.tokens_per_step", sequences * microbatches * c->train.context * ranks,
                         "derived from train.microbatch and the ranks", err);
}

/* A run that is older than the key behaved as with 1. */
static ErrorCode keep_degree(OptionSet *set, const char *key, int64_t kept, Error *err) {
    return derive_number(set, key, kept > 0 ? kept : 1, KEPT, err);
}

/* Only exact sums have exact chunks. */
static ErrorCode settle_exact_chunks(const Config *c, OptionSet *set, const Config *saved, Error *err) {
    bool exact = c->numerics.mode == NUMERICS_EXACT, was = saved && saved->numerics.mode == NUMERICS_EXACT;
    if (!exact || c->numerics.cp_invariant_up_to > 0) return OK;
    if (was) return keep_degree(set, "numerics.cp_invariant_up_to", saved->numerics.cp_invariant_up_to, err);
    CpCommSpec comm = rank_cp_comm_of(c);
    bool twice = c->mesh.cp > 1 && cp_comm_method(&comm) == CP_COMM_ALL_GATHER;
    if (c->mesh.cp == 1 && c->pipeline.segments > 1)
        return derive_number(set, "numerics.cp_invariant_up_to", c->pipeline.segments,
                             "derived from pipeline.segments", err);
    return derive_number(set, "numerics.cp_invariant_up_to", (twice ? 2 : 1) * c->mesh.cp,
                         twice ? "derived from mesh.cp, by all_gather" : "derived from mesh.cp", err);
}

static ErrorCode settle_tensors(const Config *c, OptionSet *set, const Config *saved, Error *err) {
    if (c->numerics.tp_invariant_up_to > 0) return OK;
    if (saved)
        return keep_degree(set, "numerics.tp_invariant_up_to", saved->numerics.tp_invariant_up_to, err);
    return derive_number(set, "numerics.tp_invariant_up_to", c->mesh.tp, "derived from mesh.tp", err);
}

/* 0 stays: experts are cut as an MLP is, as in runs that are older than the key. A mesh that would have other
 * bits than the saved run gets that run's number, with which its plan is refused. */
static ErrorCode settle_experts(const Config *c, OptionSet *set, const Config *saved, Error *err) {
    const char *key = "numerics.etp_invariant_up_to";
    if (c->numerics.etp_invariant_up_to > 0) return OK;
    if (saved && saved->numerics.etp_invariant_up_to > 0)
        return keep_degree(set, key, saved->numerics.etp_invariant_up_to, err);
    if (!mesh_folds(&c->mesh)) return OK;
    if (saved) return keep_degree(set, key, c->numerics.tp_invariant_up_to, err);
    return derive_number(set, key, 1, "derived from mesh.etp", err);
}

/* All are settled once in the life of a run: another number would split its sums in another way. */
ErrorCode setup_invariance(const Config *c, OptionSet *set, const Config *saved, Error *err) {
    TRY(settle_exact_chunks(c, set, saved, err));
    TRY(settle_tensors(c, set, saved, err));
    return settle_experts(c, set, saved, err);
}

/* The plan has decided; its choice is written down so that a resumed run keeps the same chunks. */
ErrorCode setup_loss_rows(const Config *c, OptionSet *set, int64_t planned, Error *err) {
    if (c->train.loss_rows == planned) return OK;
    return derive_number(set, "train.loss_rows", planned, "derived from the vocabulary and train.microbatch",
                         err);
}

/* When gradients are summed over data-parallel ranks. In the canonical tree (base/tree.h) a sum over shards
 * and then over replicas equals one over all, unless other microbatches are added in between. */
static void describe_collectives(const Config *c, const Layout *l, char *out, size_t size) {
    int shards = mesh_size(&l->mesh, MESH_SHARDS), replicas = mesh_size(&l->mesh, MESH_REPLICAS);
    int microbatches = l->schedule.microbatches;
    GradientSync sync = program_sync((GradientSync)c->train.gradient_sync, shards, replicas, microbatches);
    if (sync == SYNC_MICROBATCH && microbatches == 1) sync = SYNC_STEP; /* the same sum */
    int at = snprintf(out, size, sync == SYNC_STEP ? " once a step" : " once a microbatch");
    if (sync == SYNC_REPLICA) snprintf(out + at, size - (size_t)at, ", %d at first", shards);
}

/* Describes everything that the order of fp32 sums depends on: equal texts, equal bits. Compared on resuming,
 * and shown if it differs, so the texts of older runs stay ("by keys" is mesh.cp_comm: all_gather). */
void setup_sums(const Config *c, const Layout *l, char *out, size_t size) {
    int ranks = mesh_dp_degree(&l->mesh), contexts = mesh_size(&l->mesh, MESH_CONTEXT);
    char collectives[80] = "", order[120] = "", shared[60] = "";
    if (c->numerics.mode == NUMERICS_EXACT) {
        snprintf(out, size, "exact");
        return;
    }
    CpCommSpec comm = rank_cp_comm_of(c);
    bool keys = contexts > 1 && cp_comm_method(&comm) == CP_COMM_ALL_GATHER;
    if (contexts > 1) snprintf(shared, sizeof shared, " x %d of mesh.cp%s", contexts, keys ? " by keys" : "");
    if (ranks * contexts > 1) describe_collectives(c, l, collectives, sizeof collectives);
    if (l->schedule.segments > 1)
        snprintf(order, sizeof order, ", microbatches in %d segments", l->schedule.segments);
    else if (!schedule_adds_in_order(&l->schedule))
        snprintf(order, sizeof order, ", as %.60s on %d pipeline ranks orders them", c->pipeline.schedule,
                 l->schedule.ranks);
    snprintf(out, size, "fast over %d data-parallel rank%s%s%s%s", ranks, ranks == 1 ? "" : "s", shared,
             collectives, order);
}

/* Whether the saved run's gradient_sync reproduces its order of sums here. It need not be kept where that
 * order does not depend on it: with one microbatch per step, and with exact numerics. */
static bool keeps_sync(const Config *c, int world, const SavedRun *saved, GradientSync *sync) {
    Layout l;
    Error ignored = {.message = ""};
    Config as_saved = *c;
    char sums[sizeof saved->facts.sums] = "";
    if (!saved || saved->config.train.gradient_sync == SYNC_AUTO || c->numerics.mode == NUMERICS_EXACT)
        return false;
    as_saved.train.gradient_sync = saved->config.train.gradient_sync;
    bool laid = layout_build(&l, &as_saved, world, &ignored) == OK;
    if (laid) setup_sums(&as_saved, &l, sums, sizeof sums);
    bool same = laid && l.schedule.microbatches > 1 && strcmp(sums, saved->facts.sums) == 0;
    layout_free(&l);
    *sync = (GradientSync)as_saved.train.gradient_sync;
    return same;
}

/* Call after the step is settled, because the choice depends on its number of microbatches. */
ErrorCode setup_gradient_sync(const Config *c, OptionSet *set, int world, const SavedRun *saved, double limit,
                              Error *err) {
    SyncChoice choice = {.why = KEPT};
    if (c->train.gradient_sync != SYNC_AUTO) return OK;
    if (!keeps_sync(c, world, saved, &choice.sync)) TRY(sync_choose(c, world, limit, &choice, err));
    return options_derive(set, "train.gradient_sync", sync_name(choice.sync), choice.why, err);
}

ErrorCode setup_settle(const Config *c, OptionSet *set, int world, const SavedRun *saved, double limit,
                       Error *err) {
    const Config *before = saved ? &saved->config : NULL;
    TRY(setup_batch(c, set, world, before, err));
    TRY(setup_invariance(c, set, before, err));
    return setup_gradient_sync(c, set, world, saved, limit, err);
}

/* lr_schedule.total_steps may be longer than the run, or shorter; 0: the run's steps. */
static int64_t schedule_steps(const Config *c) {
    return c->lr_schedule.total_steps > 0 ? c->lr_schedule.total_steps : c->train.steps;
}

/* A schedule that warms up for more than half of its steps learns little. The default warmup is the same for
 * every run, so short runs are told what is usual. */
static void remark_on_warmup(const Config *c, const OptionSet *set) {
    long long warmup = c->lr_schedule.warmup_steps, total = schedule_steps(c);
    bool given = options_is_set(set, "lr_schedule.warmup_steps");
    if (warmup <= (given ? total : total / 2)) return;
    log_warn("lr_schedule.warmup_steps is %lld%s, and the schedule has %lld steps: %s; a tenth is usual, "
             "lr_schedule.warmup_steps=%lld",
             warmup, given ? "" : " by default", total,
             warmup >= total ? "the learning rate warms up to the end and never comes down"
                             : "most of them are warm-up",
             (total + 9) / 10);
}

/* Remarks are about what is allowed but seldom meant. None of them ends a run. */
static void remark_on_schedule(const Config *c, const OptionSet *set) {
    const LrScheduleOptions *s = &c->lr_schedule;
    long long total = schedule_steps(c), steps = c->train.steps;
    remark_on_warmup(c, set);
    if (steps > total && learning_rate_factor(s, total, steps - 1) == 0)
        log_warn("lr_schedule.total_steps is %lld of %lld steps: the learning rate is 0 after it", total,
                 steps);
}

static void remark_on_data(const Config *c, const OptionSet *set, const Dataset *d, const Tokenizer *t) {
    long long there = 0, asked = c->validation.samples;
    bool marked = (c->data.add_bos && tokenizer_bos(t) >= 0) || (c->data.add_eos && tokenizer_eos(t) >= 0);
    for (size_t i = 0; i < dataset_validation_sets(d); i++) {
        long long samples = (long long)dataset_validation_set(d, i).samples;
        if (samples > there) there = samples; /* the largest set: smaller ones are usually taken whole */
    }
    if (c->validation.every > 0 && there == 0)
        log_warn("validation.every is %lld, and there is nothing to validate on: set "
                 "data.validation_fraction, or data.validation",
                 (long long)c->validation.every);
    if (asked > there && there > 0)
        log_warn("validation.samples is %lld, and there are %lld: all are taken", asked, there);
    if (!data_has_conversations(&c->data) &&
        (options_is_set(set, "data.chat_loss_on") || options_is_set(set, "data.chat_template") ||
         options_is_set(set, "data.chat_date")))
        log_warn("data.chat_*: no source has format: chat, so nothing reads them");
    if (!marked && (c->data.add_bos || c->data.add_eos))
        log_warn(
            "data.add_bos, data.add_eos: the tokenizer has neither: nothing marks where a document ends");
}

static void remark_on_repeat(DatasetRepeat repeat, const char *what) {
    char more[48] = "";
    if (repeat.files > 1) snprintf(more, sizeof more, " (and %zu others like it)", repeat.files - 1);
    if (repeat.files > 0) log_warn("%s holds what %s holds%s: %s", repeat.again, repeat.path, more, what);
}

/* Up to four epochs a text teaches nearly as much as new text would; beyond that, less each time (Muennighoff
 * et al., "Scaling data-constrained language models", 2023). */
static void remark_on_epochs(const Config *c, const Dataset *d) {
    size_t count = dataset_sources(d), most = 0, many = 0;
    double *epochs = mem_alloc_array(count, sizeof *epochs);
    dataset_epochs(d, config_samples(c), epochs);
    for (size_t i = 0; i < count; i++) {
        many += epochs[i] > 4;
        if (epochs[i] > epochs[most]) most = i;
    }
    if (many > 0)
        log_warn(
            "%s%s is read %.1f times in %lld steps: beyond four times text teaches less and less; more text, "
            "fewer steps, or a smaller weight",
            dataset_source_name(d, most), many > 1 && !dataset_is_mixture(d) ? ", as all sources," : "",
            epochs[most], (long long)c->train.steps);
    free(epochs);
}

static void remark_on_repeats(const Dataset *d) {
    DatasetRepeats repeats = dataset_repeats(d);
    remark_on_repeat(repeats.trained_twice, "it is trained on that much more often");
    remark_on_repeat(repeats.validated_on, "the validation loss is one of text that is trained on");
}

static void remark_on_trace(const Config *c) {
    int64_t first, last;
    if (config_traces(c, &first, &last) && first > c->train.steps)
        log_warn("metrics.trace is %s, and the run has %lld steps: nothing is traced", c->metrics.trace,
                 (long long)c->train.steps);
}

/* A resumed run has the bias, but a model directory does not. */
static void remark_on_balance(const Config *c) {
    if (!c->model.shape.balance_bias || !c->checkpoint.last_weights_only) return;
    log_warn("checkpoint.last_weights_only: the last checkpoint is a model that chooses experts without the "
             "bias that balances them: its loss may be above that of this run's validation");
}

void setup_remarks(const Config *c, const OptionSet *set, const Dataset *d, const Tokenizer *t) {
    remark_on_schedule(c, set);
    remark_on_trace(c);
    dataset_warn(d);
    remark_on_data(c, set, d, t);
    remark_on_repeats(d);
    remark_on_epochs(c, d);
    remark_on_balance(c);
}

/* Depends on configuration and step only, so a resumed run has the same learning rates. */
StepOptions setup_step(const Config *c, int64_t step) {
    const OptimizerOptions *o = &c->optimizer;
    int64_t total = schedule_steps(c);
    return (StepOptions){.lr_factor = learning_rate_factor(&c->lr_schedule, total, step),
                         .clip = o->clip,
                         .clip_norm = o->clip_norm};
}

/* A progress thread moves messages while kernels run. Without a core of its own it would only take time from
 * them. */
ErrorCode setup_communication(const Config *c, Comm *comm, const Mesh *mesh, Device *d, Error *err) {
    int asked = c->comm.progress_thread;
    /* There is one if ranks times threads leave a core free. */
    bool core_left = local_cores(comm) > comm_local_size(comm) * d->threads;
    TRY(comm_set_mesh(comm, mesh, err));
    comm_set_device(comm, d);
    char problem[256];
    TRY(comm_open_communicators(comm, mesh, problem, sizeof problem, err));
    if (*problem && comm_rank(comm) == 0)
        log_info("What ranks send goes through the memory of the host: %s", problem);
    bool wanted = asked == PROGRESS_TRUE || (asked == PROGRESS_AUTO && core_left);
    return wanted ? comm_start_progress(comm, err) : OK;
}
