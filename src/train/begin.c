/* Starts a run: from its configuration to the state before its next step. run_begin, at the end, has the
 * order: device, directory, data, plan, memory, checkpoint to resume from, records. */
#include "train/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "checkpoint/fetch.h"
#include "checkpoint/find.h"
#include "comm/repair.h"
#include "forecast/describe.h"
#include "forecast/machine.h"
#include "model/families/family.h"
#include "plan/fit.h"
#include "train/agree.h"
#include "train/changes.h"
#include "train/resize.h"

/* Writes the resolved configuration, with the source of each value. The next start compares with the
 * checkpoint, not with this file. */
static ErrorCode write_config(const Trainer *t, const OptionSet *set, Error *err) {
    Text yaml = {0};
    options_write_yaml(set, &yaml, true);
    char *path = path_join(t->c->run.dir, "config.yaml");
    ErrorCode code = file_write_atomic(path, yaml.data, yaml.length, err);
    free(path);
    text_free(&yaml);
    return code;
}

bool begin_has_notice(const Config *c) {
    return c->run.notice_file[0] && access(c->run.notice_file, F_OK) == 0;
}

/* A run that begins with a notice would end after one step, as often as it is started. */
static ErrorCode refuse_notice(const Trainer *t, Error *err) {
    char host[HOST_NAME_BYTES];
    if (t->replay || !begin_has_notice(t->c)) return OK;
    host_name(host, sizeof host);
    return error_set(err, ERR_UNAVAILABLE,
                     "%s is there on host %s (run.notice_file): the machine is to be taken away; start the "
                     "run on others, or remove the file if it is old",
                     t->c->run.notice_file, host);
}

/* Only rank 0 takes the lock, on behalf of all ranks: one process can hold it. */
static ErrorCode open_directory(Trainer *t, Error *err) {
    return t->is_rank0 ? lock_take(&t->lock, t->c->run.dir, err) : OK;
}

/* Warns now: otherwise a rank that does not see the directory would train for long before the first save
 * fails. */
static ErrorCode look_for_directory(Trainer *t, Error *err) {
    int64_t holder = (int64_t)getpid();
    if (t->replay) return OK; /* only rank 0 writes to it */
    TRY(comm_broadcast(t->comm, &holder, sizeof holder, 0, err));
    t->sees_directory = t->is_rank0 || lock_sees(t->c->run.dir, (long)holder);
    if (!t->sees_directory)
        log_warn(
            "rank %d does not see the run directory of rank 0 as %s: no checkpoint can be saved unless all "
            "ranks see one directory",
            comm_rank(t->comm), t->c->run.dir);
    return OK;
}

/* Every rank opens the data; the first one builds the cache (run_begin lets rank 0 go first). */
static ErrorCode open_data(Trainer *t, OptionSet *set, Error *err) {
    Config *c = t->c;
    if (c->data.sources.count == 0)
        return error_set(err, ERR_CONFIG,
                         "data.sources is empty: name what to train on, e.g. data.sources=[text.txt]");
    TRY(tokenizer_open_as(&t->tokenizer, c->data.tokenizer, &c->data.tokenizer_keys, err));
    TRY(setup_shape(c, set, t->tokenizer, err));
    return dataset_open_growing(&t->data, &c->data, t->tokenizer, c->train.context, (int)c->run.threads, err);
}

/* Every rank reads the tasks before training begins, so that errors in files are found now. */
static ErrorCode open_tasks(Trainer *t, Error *err) {
    Text message = {0};
    TOGETHER(t, tasks_open(&t->tasks, t->c, t->tokenizer, t->c->train.context, err));
    TRY(tasks_agree(&t->tasks, t->comm, err));
    tasks_describe(&t->tasks, t->c->train.context, &message);
    if (t->is_rank0 && message.length) log_lines(message.data);
    if (t->is_rank0) tasks_warn(&t->tasks);
    text_free(&message);
    TOGETHER(t, best_open(&t->best, t->c->checkpoint.keep_best, t->data, &t->tasks, err));
    if (t->is_rank0) best_remark(&t->best, t->c);
    return OK;
}

/* Fingerprints of the data, by the contents of each rank's files. */
static ErrorCode know_data(Trainer *t, Error *err) {
    Text files = {0};
    dataset_fingerprint(t->data, t->facts.data);
    dataset_contents(t->data, t->facts.contents);
    tokenizer_fingerprint(t->tokenizer, t->facts.tokenizer);
    dataset_mixture(t->data, t->facts.mixture);
    dataset_list(t->data, &files);
    ErrorCode code = agree_on_data(t->comm, &t->facts, &files, err);
    text_free(&files);
    return code;
}

static bool are_same_contents(const RunFacts *a, const RunFacts *b) {
    const char *x = saved_contents(a);
    return strcmp(x, DATA_UNKNOWN) != 0 && strcmp(x, saved_contents(b)) == 0;
}

static bool knows_contents(const RunFacts *f) { return strcmp(saved_contents(f), DATA_UNKNOWN) != 0; }

/* Names remote files of other versions than before. That they are others is refused, or allowed, by
 * changes_check. */
static ErrorCode refuse_changed(const Trainer *t, Error *err) {
    Text names = {0};
    ErrorCode code = OK;
    dataset_changed(t->data, &names);
    if (names.length && !changes_allowed(t->c, "data"))
        code = error_set(err, ERR_CONFIG,
                         "the data is not what the checkpoint was trained with: changed on the server: "
                         "%.2000s; put it back, or set run.allow_changes=[data], or start over with "
                         "run.overwrite=true",
                         names.data);
    text_free(&names);
    return code;
}

ErrorCode run_note_contents(Trainer *t, Error *err) {
    RunFacts now = {.contents = ""};
    dataset_contents(t->data, now.contents);
    if (!*now.contents || !knows_contents(&now)) return OK;
    if (knows_contents(&t->facts) && !are_same_contents(&t->facts, &now) && !changes_allowed(t->c, "data"))
        return error_set(err, ERR_CONFIG,
                         "the data is not what the checkpoint was trained with: the server sends other bytes "
                         "under the same versions of files; put them back, or set run.allow_changes=[data], "
                         "or start over with run.overwrite=true");
    memcpy(t->facts.contents, now.contents, sizeof t->facts.contents);
    return OK;
}

/* Whether the data is that of the checkpoint. Remote files of data.order: stream are compared by versions; if
 * these are others, or were not recorded, by contents if the checkpoint has them. A run keeps the fingerprint
 * that it began with. */
static ErrorCode settle_data(Trainer *t, Error *err) {
    const RunFacts *then = &t->found.saved.facts;
    if (!t->found.exists) return OK;
    if (strcmp(then->data, t->facts.data) == 0) {
        memcpy(t->facts.contents, then->contents, sizeof t->facts.contents);
        return run_note_contents(t, err);
    }
    if (knows_contents(then) && !knows_contents(&t->facts)) {
        if (t->is_rank0)
            log_info("versions of remote files are not those of the checkpoint: all files are fetched, so "
                     "that their contents can be compared");
        TRY(dataset_know_contents(t->data, err));
        dataset_contents(t->data, t->facts.contents);
    }
    if (!are_same_contents(then, &t->facts)) return refuse_changed(t, err);
    memcpy(t->facts.contents, saved_contents(then), sizeof t->facts.contents);
    memcpy(t->facts.data, then->data, sizeof t->facts.data);
    return OK;
}

/* Maximum of two numbers, into the first. */
static void larger(void *into, const void *from) {
    if (*(const int64_t *)from > *(int64_t *)into) *(int64_t *)into = *(const int64_t *)from;
}

/* Machines differ. What all ranks must plan alike uses the most threads that one of them has. */
static ErrorCode agree_on_threads(Trainer *t, Error *err) {
    RunConfig *run = &t->c->run;
    run->most_threads = run->threads > 0 ? run->threads : device_cpu_cores();
    return comm_combine(t->comm, &run->most_threads, sizeof run->most_threads, larger, err);
}

/* Nothing between layout and plan may be decided differently on another rank: everything follows from the
 * agreed configuration. */
static ErrorCode plan_rank(Trainer *t, int ranks, int rank, Error *err) {
    t->c->mesh.machine = t->c->comm.two_levels ? comm_machine_ranks(t->comm, ranks) : 0;
    TRY(layout_build(&t->layout, t->c, ranks, err));
    RankSpec spec = rank_spec(t->c, &t->layout, &t->device);
    return rank_plan(&t->rank, &spec, &t->layout, rank, &t->device, err);
}

/* Ranks of the mesh, until the spares are set aside. */
static int mesh_ranks(const Trainer *t) { return comm_size(t->comm) - t->recovery.spares; }
static bool is_spare(const Trainer *t) { return comm_rank(t->comm) >= mesh_ranks(t); }

static ErrorCode plan(Trainer *t, OptionSet *set, Error *err) {
    /* A spare settles what the others do. */
    TRY(plan_rank(t, mesh_ranks(t), is_spare(t) ? 0 : comm_rank(t->comm), err));
    TRY(setup_loss_rows(t->c, set, t->rank.model.loss_rows, err));
    if (!t->is_rank0) return OK;
    Text out = {0};
    dataset_describe(t->data, config_samples(t->c), &out);
    describe_run(t->c, &t->layout, &t->rank, &t->device, &out);
    log_lines(out.data);
    text_free(&out);
    setup_remarks(t->c, set, t->data, t->tokenizer);
    return OK;
}

/* Each element of the model must be counted by exactly one rank; otherwise norms would be wrong. */
static ErrorCode check_ownership(Trainer *t, Error *err) {
    int64_t counted = partition_counted(&t->rank.partition);
    TRY(comm_combine(t->comm, &counted, sizeof counted, comm_add_int64, err));
    const ModelConfig *whole = &t->c->model.shape;
    int64_t expected = model_parameter_count(whole) + adapters_count(&t->rank.model.table, whole);
    if (counted == expected) return OK;
    return error_set(err, ERR_INTERNAL, "the ranks count %lld parameters, but the model has %lld",
                     (long long)counted, (long long)expected);
}

/* Predicts how long the run will take, before anybody has waited for it; later the times of logged steps are
 * more exact. */
static void report_time(Trainer *t, double peak) {
    Text message = {0};
    MachineRates rates = rates_with_peak(&t->device, peak);
    MachineTime time = machine_time(&t->rank, &rates);
    machine_describe(&time, &rates, t->c, &t->rank, &t->layout, t->state.step, &message);
    log_lines(message.data);
    text_free(&message);
}

/* FLOPs per rank below which a run has no MFU: a few seconds of a core. The peak could then be measured for a
 * tenth of that time, which is a small product or two, and may give a thousandth of the peak while threads
 * start. */
#define LEAST_WORK 5e11

/* Measures for 0.2 seconds: long enough for the processor's clock to settle, and MFU is not more exact than
 * that. */
static ErrorCode measure_peak(Trainer *t, Error *err) {
    double tokens = config_tokens_from(t->c, t->state.step);
    double work = tokens * t->flops_per_token / comm_size(t->comm);
    if (work < LEAST_WORK) return OK;
    double peak = device_matmul_peak(&t->device, t->rank.model.compute, 0.2, 0.1 * work);
    TRY(comm_combine(t->comm, &peak, sizeof peak, comm_add_double, err));
    t->peak_flops = peak;
    log_info("matrix-product peak %.3f TFLOP/s in %s%s", peak / 1e12, dtype_name(t->rank.model.compute),
             comm_size(t->comm) > 1 ? ", all ranks together" : "");
    if (t->is_rank0) report_time(t, peak / comm_size(t->comm));
    return OK;
}

/* The rows of an embedding belong to the entries of one tokenizer. With another one the weights are worth
 * little, and only the curve would show it. */
static ErrorCode check_init_tokenizer(const Trainer *t, const char *dir, Error *err) {
    Tokenizer *own = NULL;
    Error unread = {.message = ""};
    if (tokenizer_open(&own, dir, &unread) != OK) {
        log_warn("model.init: its tokenizer is not compared with data.tokenizer: %s", unread.message);
        return OK;
    }
    bool same = tokenizer_same_ids(own, t->tokenizer);
    tokenizer_free(own);
    if (same || changes_allowed(t->c, "tokenizer")) return OK;
    return error_set(err, ERR_CONFIG,
                     "data.tokenizer, %s, is not the tokenizer of model.init, %s: set "
                     "data.tokenizer=%s/tokenizer.json, or set run.allow_changes=[tokenizer]",
                     t->c->data.tokenizer, t->c->model.init, dir);
}

static void take_init(Trainer *t, char *found) {
    free(t->c->model.init_found);
    t->c->model.init_found = found;
}

/* Whatever is read of model.init is of one step, on all ranks, also if its run goes on. */
static ErrorCode name_init(Trainer *t, Error *err) {
    char *named;
    ErrorCode code = checkpoint_name_on_ranks(t->c->model.init, t->c->data.cache_dir, t->comm, &named, err);
    take_init(t, named);
    return code == OK ? OK : error_context(err, "model.init");
}

/* If the weights are needed: a resumed run has its own, except for the base of adapters. */
static ErrorCode fetch_init(Trainer *t, Error *err) {
    char *dir;
    const char *init = model_options_init(&t->c->model);
    if (!init[0] || (t->found.exists && t->c->lora.rank == 0)) return OK;
    TRY(checkpoint_find_on_ranks(init, t->c->data.cache_dir, t->comm, &dir, err));
    take_init(t, dir);
    return OK;
}

/* Compares shape and tokenizer with those of model.init before memory is allocated. */
static ErrorCode check_init(const Trainer *t, Error *err) {
    char *dir;
    const char *init = model_options_init(&t->c->model);
    TRY(setup_check_init(t->c, err));
    if (!init[0] || t->found.exists || file_is_url(init)) return OK;
    TRY(checkpoint_find_model(init, &dir, err));
    ErrorCode code = check_init_tokenizer(t, dir, err);
    free(dir);
    return code;
}

/* Reports that a finished run has been given more steps. The schedule is now as long as the new run, so the
 * learning rate usually differs from the one that it ended at. */
static void report_more_steps(const Trainer *t) {
    const RunState *was = &t->found.saved.state;
    const Config *then = &t->found.saved.config;
    double peak = t->c->optimizer.settings.lr;
    if (was->step < then->train.steps || t->c->train.steps <= then->train.steps) return;
    log_info(
        "the run had its %lld steps and goes on to %lld: the learning rate is %.3g at first, and was %.3g "
        "at last",
        (long long)was->step, (long long)t->c->train.steps, peak * setup_step(t->c, was->step).lr_factor,
        then->optimizer.settings.lr * setup_step(then, was->step - 1).lr_factor);
}

/* Done before any memory is allocated. */
static ErrorCode compare_with_found(Trainer *t, const OptionSet *set, Error *err) {
    Text idle = {0};
    if (!t->found.exists) return OK;
    ErrorCode code = changes_check(&t->found.saved, t->c, set, &t->facts, &t->changes, &idle, err);
    if (code == OK && idle.length) log_info("of a run's beginning, and not read again: %s", idle.data);
    if (code == OK && t->changes.length)
        log_info("from step %lld on: %s", (long long)t->found.saved.state.step + 1, t->changes.data);
    if (code == OK) report_more_steps(t);
    if (code != OK) error_context(err, "%s", t->found.checkpoint.path);
    text_free(&idle);
    return code;
}

/* Finds the weights of model.init on this rank, and hashes a sample of them. The caller frees *dir. */
static ErrorCode find_weights(const Trainer *t, char **dir, char print[65], Error *err) {
    TRY(checkpoint_find_model(model_options_init(&t->c->model), dir, err));
    ErrorCode code = state_sample_weights(*dir, print, err);
    if (code == OK) return OK;
    free(*dir);
    *dir = NULL;
    return code;
}

/* Checkpoints do not hold the base of adapters, so it is read at every start and must be what it was. */
static ErrorCode know_base(Trainer *t, Error *err) {
    char *dir = NULL;
    if (t->c->lora.rank == 0) return OK;
    TRY(find_weights(t, &dir, t->facts.base, err));
    free(dir);
    return OK;
}

/* Over tp, routers and latents are replicas too, and experts are chosen by the results of products, so these
 * must round alike as well. Pipeline stages share no replicas except a tied embedding. */
static ErrorCode agree_on_copies(Trainer *t, Error *err) {
    const Partition *p = &t->rank.partition;
    const ModelConfig *shape = &t->c->model.shape;
    bool products = param_groups_need_matrices(&t->rank.groups) ||
                    (p->tensors > 1 && (shape->num_experts > 0 || shape->kv_lora_rank > 0));
    int stages = p->tied ? 1 : mesh_size(&p->mesh, MESH_PIPELINE);
    /* Any rank may be the partner of another one, and makes its updates. */
    if (t->rank.copied) return agree_on_rounding(t->comm, &t->device, products, 0, 1, err);
    return partition_has_copies(p)
               ? agree_on_rounding(t->comm, &t->device, products, stages > 1 ? p->pipe : 0, stages, err)
               : OK;
}

/* Communication and memory of a plan. kept: the weights to go on with, or NULL. */
static ErrorCode make_engine(Trainer *t, EngineState *kept, Error *err) {
    TOGETHER(t, setup_communication(t->c, t->comm, &t->layout.mesh, &t->device, err));
    TRY(agree_on_copies(t, err));
    const MemoryPlan *memory = rank_memory(&t->rank);
    TRY(gpu_memory_check(&t->gpu_memory, memory_plan_pools(memory), memory_plan_taken(memory), err));
    TOGETHER(t, engine_open_with(&t->engine, &t->rank, &t->device, t->comm, kept, err));
    TRY(gpu_memory_pooled(&t->gpu_memory, err));
    return check_ownership(t, err);
}

/* Order: everything that can be refused is refused before memory is allocated, and memory is allocated before
 * anything is measured. */
static ErrorCode open_engine(Trainer *t, OptionSet *set, Error *err) {
    TRY(fetch_init(t, err));
    run_enter(t, PHASE_ALLOCATING);
    TOGETHER(t, t->is_rank0 ? check_init(t, err) : OK);
    TOGETHER(t, plan(t, set, err));
    setup_sums(t->c, &t->layout, t->facts.sums, sizeof t->facts.sums);
    TOGETHER(t, know_base(t, err));
    TOGETHER(t, compare_with_found(t, set, err));
    if (t->c->metrics.probe > 0)
        t->probe = mem_alloc_array((size_t)t->rank.model.table.units, sizeof *t->probe);
    t->device.profiling = t->c->metrics.profile;
    t->flops_per_token =
        adapters_flops_per_token(&t->c->model.shape, &t->rank.model.table, t->c->train.context);
    if (t->recovery.spares > 0) TRY(agree_on_copies(t, err)); /* any of them may get copies */
    TRY(recovery_begin(t, err));
    if (comm_is_aside(t->comm)) return OK;
    TRY(make_engine(t, NULL, err));
    if (t->device.separate_memory)
        t->window.device_taken = engine_bytes(t->engine), t->window.device_memory = t->device.memory;
    run_enter(t, PHASE_MEASURING);
    return measure_peak(t, err);
}

/* All ranks must start from the same weights: otherwise they would train a model of parts that do not fit
 * together. */
static ErrorCode load_init(Trainer *t, Error *err) {
    char *dir = NULL, print[65] = "";
    ErrorCode code = comm_agree(t->comm, find_weights(t, &dir, print, err), err);
    memcpy(t->init, print, sizeof t->init);
    if (code == OK)
        code = agree_on_file(t->comm, "the fingerprint of model.init", print,
                             "give all ranks the same weights", err);
    if (code == OK) code = comm_agree(t->comm, state_load_weights(t->engine, dir, err), err);
    if (code == OK) log_info("weights from %s", dir);
    if (code == OK && t->is_rank0) checkpoint_warn_balance(dir);
    free(dir);
    return code;
}

/* Weights are drawn from the seed by element, not by rank, so every mesh begins with the same. */
static ErrorCode initial_weights(Trainer *t, Error *err) {
    const ModelOptions *m = &t->c->model;
    if (m->init[0]) TRY(load_init(t, err));
    if (t->c->lora.rank > 0) engine_initialise_adapters(t->engine, (uint64_t)t->c->run.seed);
    if (m->init[0]) return OK;
    engine_initialise(t->engine, (InitKind)m->initialiser, m->init_std, (uint64_t)t->c->run.seed);
    return OK;
}

/* The model files alone, without the bias, are another model; this should be known before a metric shows
 * it. */
static void report_balance(const Trainer *t) {
    const ModelConfig *m = &t->c->model.shape;
    if (!m->balance_bias || !t->is_rank0) return;
    log_info("experts are balanced by a bias (train.router_bias_speed %g), which files of the family %s have "
             "no place for: checkpoints keep it in " CHECKPOINT_OPTIMIZER
             ", and an exported model chooses without it",
             t->c->train.router_bias_speed, model_family(m)->model_type);
}

static bool found_balance(const Trainer *t) {
    return t->found.exists && checkpoint_keeps_balance(&t->found.checkpoint.optimizer);
}

/* For a resumed run: reports if the bias begins to be used, or no longer changes. */
static void report_kept_balance(const Trainer *t) {
    if (!found_balance(t)) {
        report_balance(t);
    } else if (t->c->train.router_bias_speed <= 0) {
        log_info("the bias that balances experts stays as it is (train.router_bias_speed 0)");
    }
}

/* Settles what the configuration leaves open, from the saved run and by agreement of all ranks, which then
 * all have the same. */
static ErrorCode resolve(Trainer *t, OptionSet *set, Error *err) {
    char *build = agree_build(), *kernels = NULL;
    const SavedRun *before = t->found.exists ? &t->found.saved : NULL;
    snprintf(t->facts.build, sizeof t->facts.build, "%s", build);
    free(build);
    TOGETHER(t, setup_keep_compute(t->c, set, before ? &before->config : NULL, err));
    TOGETHER(t, setup_keep_balance(t->c, set, before, found_balance(t), err));
    TRY(agree_on_compute(t->comm, t->c, set, &t->device, err));
    TRY(agree_on_threads(t, err));
    TOGETHER(t, setup_settle(t->c, set, mesh_ranks(t), before, fit_limit(t->c), err));
    TRY(agree_kernels(t->comm, &t->device, &kernels, err));
    snprintf(t->facts.kernels, sizeof t->facts.kernels, "%s", kernels);
    free(kernels);
    return agree_on_config(t->comm, set, err);
}

/* Rank 0, for all: they see its directory. */
static ErrorCode restore(const Trainer *t, Error *err) {
    const char *url = t->c->checkpoint.restore;
    CheckpointSet there = {0};
    char *dir;
    if (!url[0] || t->replay || !t->is_rank0) return OK;
    TRY(checkpoint_own_directory(t->c->run.dir, &dir, err));
    ErrorCode code = checkpoint_candidates(&there, dir, err);
    if (code == OK && there.count == 0) {
        code = fetch_into_run(url, dir, err);
        if (code != OK) error_context(err, "checkpoint.restore");
    }
    checkpoint_set_free(&there);
    free(dir);
    return code;
}

/* A run with run.overwrite begins from scratch, whatever is there. */
static ErrorCode find_checkpoint(Trainer *t, Error *err) {
    if (t->replay && *t->replay->checkpoint)
        return state_open(&t->found, t->replay->checkpoint, t->comm, err);
    return t->c->run.overwrite || t->replay
               ? OK
               : state_find(&t->found, t->c->run.dir, t->sees_directory, t->comm, err);
}

/* The best value of another metric means nothing for this one, and a checkpoint that is gone cannot be
 * kept. */
static void go_on_from_best(Trainer *t) {
    BestCheckpoint *best = &t->state.best;
    char name[32], *dir = checkpoint_directory(t->c->run.dir);
    snprintf(name, sizeof name, "step-%08lld", (long long)best->step);
    char *path = path_join(dir, name);
    bool same = strcmp(best->figure, t->best.figure) == 0, there = file_is_dir(path);
    if (best->step > 0 && !same && t->is_rank0)
        log_info("the best checkpoint by %s, of step %lld, is kept for it no longer", best->figure,
                 (long long)best->step);
    if (best->step > 0 && same && !there && t->is_rank0)
        log_warn("the best checkpoint by %s, of step %lld, is not there any more: the search starts again",
                 best->figure, (long long)best->step);
    if (!same || !there) *best = (BestCheckpoint){.step = 0};
    free(path);
    free(dir);
}

/* The newest checkpoint of an earlier start may not have been copied to its end. */
static ErrorCode open_mirror(Trainer *t, Error *err) {
    const char *url = t->c->checkpoint.mirror;
    if (!url[0] || !t->is_rank0) return OK;
    char *dir = checkpoint_directory(t->c->run.dir);
    ErrorCode code = mirror_open(&t->mirror, url, dir, err);
    free(dir);
    if (code == OK) mirror_add(t->mirror, -1);
    return code;
}

/* Discards the records of an earlier run before anything of this one is written. Opens the saver last, since
 * it stages what the engine holds now. */
static ErrorCode begin_or_resume(Trainer *t, const OptionSet *set, Error *err) {
    bool resumed = t->found.exists;
    if (t->c->run.overwrite) TOGETHER(t, t->is_rank0 ? state_discard(t->c->run.dir, err) : OK);
    if (resumed) {
        if (t->c->lora.rank > 0) TRY(load_init(t, err)); /* no checkpoint holds the base */
        TRY(state_take_up(&t->found, t->engine, t->comm, err));
        t->state = t->found.saved.state;
        report_kept_balance(t);
        memcpy(t->receipts.head, t->found.saved.facts.receipt, sizeof t->receipts.head);
        state_close(&t->found);
        log_info("resumed after step %lld", (long long)t->state.step);
    } else {
        TRY(initial_weights(t, err));
        report_balance(t);
        engine_start_average(t->engine);
    }
    go_on_from_best(t);
    snprintf(t->state.best.figure, sizeof t->state.best.figure, "%s", t->best.figure);
    if (t->state.step >= t->c->train.steps)
        log_info("the run has its %lld steps already", (long long)t->c->train.steps);
    int64_t in_use = resumed ? t->state.step : -1;
    TOGETHER(t, open_mirror(t, err));
    TOGETHER(t, saver_open(&t->saver, t->c, set, &t->facts, t->engine, t->comm, t->tokenizer, in_use, err));
    return OK;
}

/* Rank 0 determines the attempt, since only it sees all logs. */
static ErrorCode open_audit(Trainer *t, Error *err) {
    AuditWriter who = {.rank = comm_rank(t->comm),
                       .writers = comm_size(t->comm),
                       .dp_rank = mesh_dp_rank(&t->layout.mesh, comm_rank(t->comm)),
                       .dp_ranks = mesh_dp_degree(&t->layout.mesh)};
    if (!t->c->data.audit) return OK;
    TOGETHER(t, t->is_rank0 ? audit_next_attempt(t->c->run.dir, &who.attempt, err) : OK);
    TRY(comm_broadcast(t->comm, &who.attempt, sizeof who.attempt, 0, err));
    AuditDraw draw = {t->facts.mixture, t->c->data.seed, t->facts.data, t->facts.tokenizer};
    return audit_open(&t->audit, t->c->run.dir, &who, t->state.step, t->data, &draw, err);
}

/* What reads data and writes records from t->state on. */
static ErrorCode open_records(Trainer *t, const OptionSet *set, Error *err) {
    if (!t->replay) TOGETHER(t, t->is_rank0 ? launch_write(t->c->run.dir, comm_size(t->comm), err) : OK);
    int dp_rank = mesh_dp_rank(&t->layout.mesh, comm_rank(t->comm));
    ReadAheadStart from = {t->state.step, t->state.samples};
    TOGETHER(t, read_ahead_open(&t->read_ahead, t->c, &t->layout, dp_rank, t->data, &from, err));
    TOGETHER(t, sinks_open(t, err));
    tracing_open(&t->tracing, t->c, &t->layout, t->comm);
    TOGETHER(t, open_audit(t, err));
    t->receipts.first = t->state.samples;
    TRY(receipt_begin(t, set, err));
    replicas_open(&t->replicas, t->engine, t->comm);
    TOGETHER(t, replay_open(t, err));
    sources_open(&t->sources, &t->rank, t->data, &t->layout);
    t->reported_sources = t->state.step;
    activity_engine(t->activity, t->engine);
    return OK;
}

/* Ordered by what can go wrong: cheap checks come before files, files before memory, memory before measuring.
 * Records come last, so a run that cannot begin has written nothing to them. */
ErrorCode run_begin(Trainer *t, OptionSet *set, Error *err) {
    goodput_begin(&t->goodput, clock_wall());
    run_enter(t, PHASE_READING);
    /* Report what is wrong, and what this machine cannot run, before anything is created. */
    TOGETHER(t, setup_check(t->c, err));
    TRY(recovery_open(t, err));
    TOGETHER(t, setup_device(t->c, t->comm, comm_local_from(t->comm, mesh_ranks(t)), &t->device, err));
    TOGETHER(t, refuse_notice(t, err));
    gpu_memory_open(&t->gpu_memory, t->comm, &t->device);
    TOGETHER(t, open_directory(t, err));
    TRY(look_for_directory(t, err));
    TRY(name_init(t, err));
    run_enter(t, PHASE_TOKENIZING);
    /* Rank 0 goes first: the others find in the cache what it has tokenized. */
    TOGETHER(t, t->is_rank0 ? open_data(t, set, err) : OK);
    TOGETHER(t, t->is_rank0 ? OK : open_data(t, set, err));
    /* Receipts state contents. */
    TOGETHER(t, t->c->run.receipts ? dataset_know_contents(t->data, err) : OK);
    TRY(know_data(t, err));
    TRY(open_tasks(t, err));
    run_enter(t, PHASE_READING);
    TOGETHER(t, restore(t, err));
    TRY(find_checkpoint(t, err));
    TOGETHER(t, settle_data(t, err));
    TRY(resolve(t, set, err));
    TRY(open_engine(t, set, err));
    if (comm_is_aside(t->comm)) {
        state_close(&t->found);
        return OK;
    }
    run_enter(t, PHASE_LOADING);
    TRY(begin_or_resume(t, set, err));
    TRY(shards_fill_copies(t, err));
    run_enter(t, PHASE_RECORDS);
    TOGETHER(t, t->is_rank0 ? write_config(t, set, err) : OK);
    return open_records(t, set, err);
}

/* The process of rank 0 may just have died, and with it its lock; the system may take a moment to notice. */
static ErrorCode inherit_lock(Trainer *t, Error *err) {
    enum { TRIES = 100 };
    ErrorCode code = ERR_CANTCREATE;
    if (t->lock.fd > 0) return OK;
    for (int i = 0; i < TRIES && code == ERR_CANTCREATE; i++) {
        if (i > 0) nanosleep(&(struct timespec){0, 50000000}, NULL);
        code = lock_take(&t->lock, t->c->run.dir, err);
    }
    return code;
}

void run_close_records(Trainer *t) {
    read_ahead_close(&t->read_ahead);
    sinks_close(t);
    audit_close(&t->audit);
    receipt_close(t);
    tracing_close(&t->tracing);
    replicas_close(&t->replicas);
    replay_close(t);
    sources_close(&t->sources);
}

ErrorCode run_begin_again(Trainer *t, OptionSet *set, Error *err) {
    run_enter(t, PHASE_ALLOCATING);
    t->is_rank0 = comm_rank(t->comm) == 0;
    if (t->is_rank0) log_set_level(t->asked);
    TOGETHER(t, t->is_rank0 ? inherit_lock(t, err) : OK);
    TRY(look_for_directory(t, err));
    TOGETHER(t, plan_rank(t, comm_size(t->comm), comm_rank(t->comm), err));
    TRY(make_engine(t, t->recovery.state, err));
    engine_refresh(t->engine); /* weights may have come from other ranks */
    run_enter(t, PHASE_LOADING);
    if (!t->mirror) TOGETHER(t, open_mirror(t, err));
    TOGETHER(t, saver_open(&t->saver, t->c, set, &t->facts, t->engine, t->comm, t->tokenizer, -1, err));
    run_enter(t, PHASE_RECORDS);
    return open_records(t, set, err);
}
