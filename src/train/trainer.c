/* The life of a run, from a configuration to its last checkpoint. All ranks go through it together:
 *
 *       open_all:  device, directory, data, plan, memory, the checkpoint to go on from, records
 *         loop:    one_step -> compare_replicas -> validate -> save, each when it is due
 *       finish:    curve, journal; what was opened is closed in trainer_run, however it ended
 *
 *  T1. What a rank does by itself and may fail is agreed on at once (TOGETHER): a failure of one is
 *      returned by all, and said once.
 *  T2. Inside a step there is nothing to agree on: a failure there ends all ranks (comm_fail).
 *  T3. Rank 0, the chief, holds the run's lock, writes the records of the run and speaks. */
#include "train/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "checkpoint/find.h"
#include "checkpoint/modelfiles.h"
#include "comm/launch.h"
#include "model/families/family.h"
#include "observe/audit.h"
#include "observe/console.h"
#include "observe/journal.h"
#include "observe/listener.h"
#include "observe/metrics.h"
#include "observe/plot.h"
#include "observe/spike.h"
#include "observe/tensorboard.h"
#include "engine/evaluate.h"
#include "engine/replicas.h"
#include "forecast/describe.h"
#include "forecast/machine.h"
#include "train/agree.h"
#include "train/best.h"
#include "train/changes.h"
#include "train/feed.h"
#include "train/lock.h"
#include "train/gpu_memory.h"
#include "train/inputs.h"
#include "train/phase.h"
#include "train/save.h"
#include "train/setup.h"
#include "train/sources.h"
#include "train/state.h"
#include "train/strike.h"
#include "train/supervise.h"
#include "train/tasks.h"
#include "train/tracing.h"

/* Everything of a run, opened in open_all and closed in trainer_run, whose closing calls take what was
 * never opened. Zero is "not there". */
typedef struct Trainer {
    Config *c;
    const char *file; /* that it was read from */
    Comm *comm;
    bool chief;          /* rank 0: it has the lock, writes the records, and speaks */
    LogLevel asked;      /* of messages, by the command line */
    bool sees_directory; /* the run directory is rank 0's, for all that this rank can see */
    Device device;
    Tokenizer *tokenizer;
    Dataset *data;
    Tasks tasks;
    Best best;
    Layout layout;
    RankPlan rank;
    Engine *engine;
    Feed feed;
    MetricsLog log;
    MetricsWindow window;
    TensorBoard *board;
    Journal journal;
    Listener listener; /* rank 0's: metrics.command */
    AuditLog audit;
    RunState state;
    RunFacts facts;
    char init[65];  /* the sample of weights that were read from model.init; "": none were */
    int unbalanced; /* steps in turn whose experts were */
    bool warned_experts;
    Found found;  /* what the run goes on from */
    Text changes; /* what is other from here on than in that, in words */
    RunLock lock;
    Saver saver;
    Occupancy occupancy;
    Tracing tracing;
    Replicas replicas;
    Sources sources;
    const Inject *inject;
    Doing *doing;
    bool entered[PHASES];
    int64_t bad_in_row;
    int64_t told_sources; /* the last step of which sources were recorded */
    UnitProbe *probe;     /* [units] of a step that is probed; NULL without metrics.probe */
    bool stopping;        /* all ranks agreed to */
    bool interval_suggested;
    double flops_per_token, peak_flops; /* peak: of all ranks together */
} Trainer;

/* What each rank has done by itself, and all must have: a failure of one is returned by all, and said once.
 */
#define TOGETHER(t, call) TRY(comm_agree((t)->comm, (call), err))

/* 0 is never. */
static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* Faults on purpose hit who enters, once others may wait for it. The phase is entered first, so that the
 * watchdog names it if the fault stops this rank. */
static void enter(Trainer *t, Phase phase) {
    doing_enter(t->doing, phase, t->state.step);
    FaultPlace place = {.rank = comm_rank(t->comm),
                        .attempt = supervise_attempt(),
                        .phase = phase,
                        .step = t->state.step,
                        .first = !t->entered[phase]};
    t->entered[phase] = true;
    strike_phase(t->inject, &place);
}

/* Written by the thread that takes signals (base/signals.h), and the second by the one that trains. */
static atomic_bool stop_requested, ending;

/* First signal: stop after this step. A second SIGINT (of ranks, the launcher's SIGUSR2): at once; whatever
 * was saved stays. */
static void on_signal(int number) {
    if (ending) return;
    if (number == SIGUSR2 || (stop_requested && number == SIGINT)) {
        launched_tell_end(130);
        _exit(130);
    }
    stop_requested = true;
}

ErrorCode trainer_take_signals(Error *err) {
    signal(SIGPIPE, SIG_IGN); /* a run outlives whoever reads its messages */
    return signals_take(on_signal, err);
}

/* From here on the run ends by itself, and a second Ctrl-C must not cut off what it says. */
void trainer_ignore_signals(void) { ending = true; }

/* With the source of each value: what was resolved, and why. The next start compares with what the
 * checkpoint holds, not with this file. */
static ErrorCode write_config(const Trainer *t, const OptionSet *set, Error *err) {
    Text yaml = {0};
    options_write_yaml(set, &yaml, true);
    char *path = path_join(t->c->run.dir, "config.yaml");
    ErrorCode code = file_write_atomic(path, yaml.data, yaml.length, err);
    free(path);
    text_free(&yaml);
    return code;
}

/* Rank 0 alone locks: one process can hold a run, and it speaks for all. */
static ErrorCode open_directory(Trainer *t, Error *err) {
    return t->chief ? lock_take(&t->lock, t->c->run.dir, err) : OK;
}

/* Ranks that do not see it train for long before the first save fails. */
static ErrorCode look_for_directory(Trainer *t, Error *err) {
    int64_t holder = (int64_t)getpid();
    TRY(comm_broadcast(t->comm, &holder, sizeof holder, 0, err));
    t->sees_directory = t->chief || lock_sees(t->c->run.dir, (long)holder);
    if (!t->sees_directory)
        log_warn(
            "rank %d does not see the run directory of rank 0 as %s: no checkpoint can be saved unless all "
            "ranks see one directory",
            comm_rank(t->comm), t->c->run.dir);
    return OK;
}

/* Every rank opens the data; the first to come builds the cache (open_all sees to the order). */
static ErrorCode open_data(Trainer *t, OptionSet *set, Error *err) {
    Config *c = t->c;
    if (c->data.sources.count == 0)
        return error_set(err, ERR_CONFIG,
                         "data.sources is empty: name what to train on, e.g. data.sources=[text.txt]");
    TRY(tokenizer_open_as(&t->tokenizer, c->data.tokenizer, &c->data.tokenizer_keys, err));
    TRY(setup_shape(c, set, t->tokenizer, err));
    return dataset_open(&t->data, &c->data, t->tokenizer, c->train.context, (int)c->run.threads, err);
}

/* Read by every rank before anything is trained: what is wrong with a file is found now. */
static ErrorCode open_tasks(Trainer *t, Error *err) {
    Text said = {0};
    TOGETHER(t, tasks_open(&t->tasks, &t->c->evaluation, t->tokenizer, t->c->train.context, err));
    TRY(tasks_agree(&t->tasks, t->comm, err));
    tasks_describe(&t->tasks, t->c->train.context, &said);
    if (t->chief && said.length) log_lines(said.data);
    if (t->chief) tasks_warn(&t->tasks);
    text_free(&said);
    TOGETHER(t, best_open(&t->best, t->c->checkpoint.keep_best, t->data, &t->tasks, err));
    if (t->chief) best_remark(&t->best, t->c);
    return OK;
}

/* What the run trains on, by what the files of each rank hold. */
static ErrorCode know_data(Trainer *t, Error *err) {
    Text files = {0};
    dataset_fingerprint(t->data, t->facts.data);
    tokenizer_fingerprint(t->tokenizer, t->facts.tokenizer);
    dataset_mixture(t->data, t->facts.mixture);
    dataset_list(t->data, &files);
    ErrorCode code = agree_on_data(t->comm, &t->facts, &files, err);
    text_free(&files);
    return code;
}

/* Of two numbers, into the first. */
static void larger(void *into, const void *from) {
    if (*(const int64_t *)from > *(int64_t *)into) *(int64_t *)into = *(const int64_t *)from;
}

/* Machines differ; what all ranks must plan alike takes the most that one of them has. */
static ErrorCode agree_on_threads(Trainer *t, Error *err) {
    RunConfig *run = &t->c->run;
    run->most_threads = run->threads > 0 ? run->threads : device_cpu_cores();
    return comm_combine(t->comm, &run->most_threads, sizeof run->most_threads, larger, err);
}

/* Between layout and plan nothing may be decided that another rank could decide otherwise: all of it
 * follows from the agreed configuration. */
static ErrorCode plan(Trainer *t, OptionSet *set, Error *err) {
    TRY(layout_build(&t->layout, t->c, comm_size(t->comm), err));
    RankSpec spec = rank_spec(t->c, &t->layout, &t->device);
    TRY(rank_plan(&t->rank, &spec, &t->layout, comm_rank(t->comm), &t->device, err));
    TRY(setup_loss_rows(t->c, set, t->rank.model.loss_rows, err));
    if (!t->chief) return OK;
    Text out = {0};
    dataset_describe(t->data, config_samples(t->c), &out);
    describe_run(t->c, &t->layout, &t->rank, &t->device, &out);
    log_lines(out.data);
    text_free(&out);
    setup_remarks(t->c, set, t->data, t->tokenizer);
    return OK;
}

/* Every element of the model is counted by one rank: norms of a mesh on which this does not hold would be
 * wrong. */
static ErrorCode check_ownership(Trainer *t, Error *err) {
    int64_t counted = partition_counted(&t->rank.partition);
    TRY(comm_combine(t->comm, &counted, sizeof counted, comm_add_int64, err));
    const ModelConfig *whole = &t->c->model.shape;
    int64_t expected = model_parameter_count(whole) + adapters_count(&t->rank.model.table, whole);
    if (counted == expected) return OK;
    return error_set(err, ERR_INTERNAL, "the ranks count %lld parameters, but the model has %lld",
                     (long long)counted, (long long)expected);
}

/* How long the run should take, before anybody has waited for it: the time of logged steps says it better. */
static void tell_of_time(Trainer *t, double peak) {
    Text said = {0};
    MachineTime time = machine_time(&t->rank, &t->device, peak);
    machine_describe(&time, t->c, &t->layout, t->state.step, &said);
    log_lines(said.data);
    text_free(&said);
}

/* Work of a rank below which a run has no MFU: a few seconds of a core. What could be measured in a tenth of
 * them, a small product or two, may be a thousandth of the peak while threads start. */
#define LEAST_WORK 5e11

/* A fifth of a second: enough for the clock of the processor to settle, and MFU is no more exact than
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
    if (t->chief) tell_of_time(t, peak / comm_size(t->comm));
    return OK;
}

/* Nothing is faster than the peak: where a step is, other programs had the processor while it was measured,
 * and no share of it means anything. */
static void doubt_peak(Trainer *t, StepMetrics *m) {
    if (!(m->mfu > 1)) return;
    log_info("step %lld made %.3f TFLOP/s, more than the peak that was measured at the start: the machine "
             "was busy then, and mfu is left out from here on",
             (long long)m->step, m->flops_per_second / 1e12);
    t->peak_flops = 0;
    m->mfu = (double)NAN;
}

/* Rows of an embedding stand for the entries of one tokenizer: with another one the weights are worth little,
 * and nothing but the curve would show it. */
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
                     "data.tokenizer=%s/tokenizer.json, or say run.allow_changes=[tokenizer]",
                     t->c->data.tokenizer, t->c->model.init, dir);
}

/* Shape and weights of model.init are compared before the one takes memory for the other. Where the weights
 * are gone, a run that goes on does not miss them. */
static ErrorCode check_init(const Trainer *t, Error *err) {
    char *dir;
    if (!t->c->model.init[0]) return OK;
    ErrorCode code = checkpoint_find_model(t->c->model.init, &dir, err);
    if (code == OK) {
        code = modelfiles_check_shape(dir, &t->c->model.shape, err);
        if (code == OK && !t->found.exists) code = check_init_tokenizer(t, dir, err);
        free(dir);
    }
    return code == ERR_NOINPUT ? OK : code;
}

/* Of a run that was finished and has more steps now. The schedule is as long as the run again, so the rate is
 * seldom what it ended at. */
static void tell_of_more_steps(const Trainer *t) {
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

/* Before any memory is taken. */
static ErrorCode compare_with_found(Trainer *t, const OptionSet *set, Error *err) {
    Text idle = {0};
    if (!t->found.exists) return OK;
    ErrorCode code = changes_check(&t->found.saved, t->c, set, &t->facts, &t->changes, &idle, err);
    if (code == OK && idle.length) log_info("of a run's beginning, and not read again: %s", idle.data);
    if (code == OK && t->changes.length)
        log_info("from step %lld on: %s", (long long)t->found.saved.state.step + 1, t->changes.data);
    if (code == OK) tell_of_more_steps(t);
    if (code != OK) error_context(err, "%s", t->found.checkpoint.path);
    text_free(&idle);
    return code;
}

/* Where they are on this rank, to be freed, and what tells them from others. */
static ErrorCode find_weights(const Trainer *t, char **dir, char print[65], Error *err) {
    TRY(checkpoint_find_model(t->c->model.init, dir, err));
    ErrorCode code = state_sample_weights(*dir, print, err);
    if (code == OK) return OK;
    free(*dir);
    *dir = NULL;
    return code;
}

/* The base of adapters is no checkpoint's, so it is read whenever a run starts, and must be what it was. */
static ErrorCode know_base(Trainer *t, Error *err) {
    char *dir = NULL;
    if (t->c->lora.rank == 0) return OK;
    TRY(find_weights(t, &dir, t->facts.base, err));
    free(dir);
    return OK;
}

/* Over tp routers and latents are each rank's own too, and an expert is chosen by what a product comes to.
 * Pipeline stages hold copies of nothing but a tied embedding. */
static ErrorCode agree_on_copies(Trainer *t, Error *err) {
    const Partition *p = &t->rank.partition;
    const ModelConfig *shape = &t->c->model.shape;
    bool products = param_groups_need_matrices(&t->rank.groups) ||
                    (p->tensors > 1 && (shape->num_experts > 0 || shape->kv_lora_rank > 0));
    int stages = p->tied ? 1 : mesh_size(&p->mesh, MESH_PIPELINE);
    return partition_has_copies(p)
               ? agree_on_rounding(t->comm, &t->device, products, stages > 1 ? p->pipe : 0, stages, err)
               : OK;
}

/* In this order: what can be refused is refused before memory is taken, and memory is taken before
 * anything is measured. */
static ErrorCode open_engine(Trainer *t, OptionSet *set, Error *err) {
    enter(t, PHASE_ALLOCATING);
    TOGETHER(t, t->chief ? check_init(t, err) : OK);
    TOGETHER(t, plan(t, set, err));
    setup_sums(t->c, &t->layout, t->facts.sums, sizeof t->facts.sums);
    TOGETHER(t, know_base(t, err));
    TOGETHER(t, compare_with_found(t, set, err));
    TOGETHER(t, setup_communication(t->c, t->comm, &t->layout.mesh, &t->device, err));
    TRY(agree_on_copies(t, err));
    const MemoryPlan *memory = rank_memory(&t->rank);
    TRY(occupancy_check(&t->occupancy, memory_plan_pools(memory), memory_plan_taken(memory), err));
    TOGETHER(t, engine_open(&t->engine, &t->rank, &t->device, t->comm, err));
    TRY(occupancy_pooled(&t->occupancy, err));
    TRY(check_ownership(t, err));
    if (t->c->metrics.probe > 0)
        t->probe = mem_alloc_array((size_t)t->rank.model.table.units, sizeof *t->probe);
    t->device.profiling = t->c->metrics.profile;
    if (t->device.apart)
        t->window.device_taken = engine_bytes(t->engine), t->window.device_memory = t->device.memory;
    t->flops_per_token =
        adapters_flops_per_token(&t->c->model.shape, &t->rank.model.table, t->c->train.context);
    enter(t, PHASE_MEASURING);
    return measure_peak(t, err);
}

/* Ranks that started from unlike weights would train a model of parts that do not fit. */
static ErrorCode load_init(Trainer *t, Error *err) {
    char *dir = NULL, print[65] = "";
    ErrorCode code = comm_agree(t->comm, find_weights(t, &dir, print, err), err);
    memcpy(t->init, print, sizeof t->init);
    if (code == OK)
        code = agree_on_file(t->comm, "the fingerprint of model.init", print,
                             "give all ranks the same weights", err);
    if (code == OK) code = comm_agree(t->comm, state_load_weights(t->engine, dir, err), err);
    if (code == OK) log_info("weights from %s", dir);
    if (code == OK && t->chief) checkpoint_warn_balance(dir);
    free(dir);
    return code;
}

/* Drawn from the seed by element, not by rank: every mesh begins with the same weights. */
static ErrorCode initial_weights(Trainer *t, Error *err) {
    const ModelOptions *m = &t->c->model;
    if (m->init[0]) TRY(load_init(t, err));
    if (t->c->lora.rank > 0) engine_initialise_adapters(t->engine, (uint64_t)t->c->run.seed);
    if (m->init[0]) return OK;
    engine_initialise(t->engine, (InitKind)m->initialiser, m->init_std, (uint64_t)t->c->run.seed);
    return OK;
}

/* Its files alone are another model, which nobody should find out from a figure. */
static void tell_balance(const Trainer *t) {
    const ModelConfig *m = &t->c->model.shape;
    if (!m->balance_bias || !t->chief) return;
    log_info("experts are balanced by a bias (train.router_bias_speed %g), which files of the family %s have "
             "no place for: checkpoints keep it in " CHECKPOINT_OPTIMIZER
             ", and an exported model chooses without it",
             t->c->train.router_bias_speed, model_family(m)->model_type);
}

static bool found_balance(const Trainer *t) {
    return t->found.exists && checkpoint_keeps_balance(&t->found.checkpoint.optimizer);
}

/* Of a run that goes on, where the bias begins or rests. */
static void tell_kept_balance(const Trainer *t) {
    if (!found_balance(t)) {
        tell_balance(t);
    } else if (t->c->train.router_bias_speed <= 0) {
        log_info("the bias that balances experts stays as it is (train.router_bias_speed 0)");
    }
}

/* What no file and no key leaves open any more: by what the run had when it was saved, and by all ranks
 * together. All of them then have the same. */
static ErrorCode resolve(Trainer *t, OptionSet *set, Error *err) {
    char *build = agree_build(), *kernels = NULL;
    const SavedRun *before = t->found.exists ? &t->found.saved : NULL;
    const Config *saved = before ? &before->config : NULL;
    snprintf(t->facts.build, sizeof t->facts.build, "%s", build);
    free(build);
    TOGETHER(t, setup_keep_compute(t->c, set, saved, err));
    TOGETHER(t, setup_keep_balance(t->c, set, before, found_balance(t), err));
    TRY(agree_on_compute(t->comm, t->c, set, &t->device, err));
    TOGETHER(t, setup_batch(t->c, set, comm_size(t->comm), saved, err));
    TOGETHER(t, setup_canonical(t->c, set, saved, err));
    TRY(agree_on_threads(t, err));
    TOGETHER(t, setup_gradient_sync(t->c, set, comm_size(t->comm), before, err));
    TRY(agree_kernels(t->comm, &t->device, &kernels, err));
    snprintf(t->facts.kernels, sizeof t->facts.kernels, "%s", kernels);
    free(kernels);
    return agree_on_config(t->comm, set, err);
}

/* A run that is to be overwritten begins anew whatever is there. */
static ErrorCode find_checkpoint(Trainer *t, Error *err) {
    return t->c->run.overwrite ? OK : state_find(&t->found, t->c->run.dir, t->sees_directory, t->comm, err);
}

/* What was the best by another figure says nothing of this one; one that is gone cannot be kept. */
static void go_on_from_best(Trainer *t) {
    BestCheckpoint *best = &t->state.best;
    char name[32], *dir = checkpoint_directory(t->c->run.dir);
    snprintf(name, sizeof name, "step-%08lld", (long long)best->step);
    char *path = path_join(dir, name);
    bool same = strcmp(best->figure, t->best.figure) == 0, there = file_is_dir(path);
    if (best->step > 0 && !same && t->chief)
        log_info("the best checkpoint by %s, of step %lld, is kept for it no longer", best->figure,
                 (long long)best->step);
    if (best->step > 0 && same && !there && t->chief)
        log_warn("the best checkpoint by %s, of step %lld, is not there any more: it is looked for anew",
                 best->figure, (long long)best->step);
    if (!same || !there) *best = (BestCheckpoint){.step = 0};
    free(path);
    free(dir);
}

/* Records of another run go before anything of this one is written. The saver comes last: it stages what
 * the engine now has. */
static ErrorCode begin_or_resume(Trainer *t, const OptionSet *set, Error *err) {
    bool resumed = t->found.exists;
    if (t->c->run.overwrite) TOGETHER(t, t->chief ? state_discard(t->c->run.dir, err) : OK);
    if (resumed) {
        if (t->c->lora.rank > 0) TRY(load_init(t, err)); /* no checkpoint holds the base */
        TRY(state_take_up(&t->found, t->engine, t->comm, err));
        t->state = t->found.saved.state;
        tell_kept_balance(t);
        state_close(&t->found);
        log_info("resumed after step %lld", (long long)t->state.step);
    } else {
        TRY(initial_weights(t, err));
        tell_balance(t);
        engine_start_average(t->engine);
    }
    go_on_from_best(t);
    snprintf(t->state.best.figure, sizeof t->state.best.figure, "%s", t->best.figure);
    if (t->state.step >= t->c->train.steps)
        log_info("the run has its %lld steps already", (long long)t->c->train.steps);
    int64_t in_use = resumed ? t->state.step : -1;
    TOGETHER(t, saver_open(&t->saver, t->c, set, &t->facts, t->engine, t->comm, t->tokenizer, in_use, err));
    return OK;
}

/* Under a supervisor the journal says how often, and why, the run was started again. */
static ErrorCode record_restart(Trainer *t, Error *err) {
    int attempt = supervise_attempt();
    const JournalFact facts[] = {{"attempt", attempt}, {NULL, 0}};
    if (attempt == 0) return OK;
    return journal_add(&t->journal, JOURNAL_RESTARTED, t->state.step, supervise_cause(), facts, err);
}

/* The attempt is rank 0's to find, since it alone sees all logs. */
static ErrorCode open_audit(Trainer *t, Error *err) {
    AuditWriter who = {.rank = comm_rank(t->comm),
                       .writers = comm_size(t->comm),
                       .dp_rank = mesh_dp_rank(&t->layout.mesh, comm_rank(t->comm)),
                       .dp_ranks = mesh_dp_degree(&t->layout.mesh)};
    if (!t->c->data.audit) return OK;
    TOGETHER(t, t->chief ? audit_next_attempt(t->c->run.dir, &who.attempt, err) : OK);
    TRY(comm_broadcast(t->comm, &who.attempt, sizeof who.attempt, 0, err));
    AuditDraw draw = {t->facts.mixture, t->c->data.seed, t->facts.data, t->facts.tokenizer};
    return audit_open(&t->audit, t->c->run.dir, &who, t->state.step, t->data, &draw, err);
}

/* Of the GPU that has least left. */
static ErrorCode record_occupancy(Trainer *t, Error *err) {
    JournalFact facts[OCCUPANCY_FACTS];
    if (!t->device.runtime.memory) return OK;
    (t->occupancy.steady ? occupancy_kernel_facts : occupancy_pool_facts)(&t->occupancy, facts);
    return journal_add(&t->journal, JOURNAL_MEMORY, t->state.step, NULL, facts, err);
}

/* Of the run as a whole: rank 0's. */
static ErrorCode open_journal(Trainer *t, Error *err) {
    const char *dir = t->c->run.dir;
    int64_t step = t->state.step;
    TRY(journal_open(&t->journal, dir, err));
    TRY(record_restart(t, err));
    if (t->c->metrics.tensorboard) TRY(tensorboard_open(&t->board, dir, step, err));
    const InputsFrom from = {t->file, t->c, t->data, step, t->init};
    TRY(inputs_record(&from, &t->journal, err));
    const MemoryPlan *memory = rank_memory(&t->rank);
    const JournalFact facts[] = {
        {"parameters", (double)model_parameter_count(&t->c->model.shape)},
        {"tokens_per_step", (double)t->c->train.tokens_per_step},
        {"total_steps", (double)t->c->train.steps},
        {"flops_per_token", t->flops_per_token},
        {"peak_flops", t->peak_flops},
        {"ranks", comm_size(t->comm)},
        {"threads", t->device.threads},
        {"planned_bytes", (double)memory_plan_total(memory)},
        {t->device.apart ? "planned_host_bytes" : NULL, (double)memory_plan_host(memory)},
        {NULL, 0}};
    TRY(journal_add(&t->journal, step ? JOURNAL_RESUMED : JOURNAL_STARTED, step, t->device.processor, facts,
                    err));
    TRY(record_occupancy(t, err));
    if (t->changes.length == 0) return OK;
    return journal_add(&t->journal, JOURNAL_CHANGED, step, t->changes.data, NULL, err);
}

/* What became of the program of metrics.command: a run goes on without it, but not in silence. */
static ErrorCode tell_of_listener(Trainer *t, Text *said, Error *err) {
    ErrorCode code = OK;
    if (said->length) {
        log_warn("%s", said->data);
        code = journal_add(&t->journal, JOURNAL_COMMAND, t->state.step, said->data, NULL, err);
    }
    text_free(said);
    return code;
}

/* A program that cannot be started is told of and does not end the run. */
static ErrorCode open_listener(Trainer *t, Error *err) {
    const StringList *words = &t->c->metrics.command;
    Text said = {0};
    if (words->count > 0) listener_open(&t->listener, t->c->run.dir, words->count, words->items, &said);
    return tell_of_listener(t, &said, err);
}

static ErrorCode send_record(Trainer *t, Error *err) {
    Text said = {0};
    if (t->chief) listener_send(&t->listener, t->log.line.data, t->log.line.length, &said);
    return tell_of_listener(t, &said, err);
}

static ErrorCode close_listener(Trainer *t, Error *err) {
    Text said = {0};
    listener_close(&t->listener, t->c->metrics.command_wait_s, &said);
    return tell_of_listener(t, &said, err);
}

/* Records that a disk or a hand has lost are not made again: whoever reads curve and report should know. */
static void warn_of_holes(const Trainer *t, const char *name) {
    MetricsTable table;
    char *path = path_join(t->c->run.dir, name);
    if (t->state.step > 0 && file_exists(path) && metrics_table_read(&table, path, NULL) == OK) {
        MetricsHole hole = metrics_hole(&table, t->state.step, t->c->metrics.log_freq);
        if (hole.records > 0)
            log_warn(
                "%s: %lld records up to step %lld are missing, the first between steps %lld and %lld: curves "
                "and report have a hole there; the training itself goes on as it was",
                path, (long long)hole.records, (long long)t->state.step, (long long)hole.from,
                (long long)hole.to);
        metrics_table_free(&table);
    }
    free(path);
}

/* Lines of metrics by rank 0, or by each rank into a file of its own; journal and program are the run's. */
static ErrorCode open_records(Trainer *t, Error *err) {
    char name[32];
    metrics_file_name(comm_rank(t->comm), name);
    if (t->chief) warn_of_holes(t, name);
    if (t->chief || t->c->metrics.all_ranks)
        TRY(metrics_log_open(&t->log, t->c->run.dir, name, t->state.step, err));
    if (!t->chief) return OK;
    TRY(open_journal(t, err));
    return open_listener(t, err);
}

/* Events of the run are said, and written down, by rank 0. */
static ErrorCode note(Trainer *t, JournalEvent event, int64_t step, const char *detail,
                      const JournalFact *facts, Error *err) {
    return t->chief ? journal_add(&t->journal, event, step, detail, facts, err) : OK;
}

/* Of a further head; NaN where it is none. */
static double further_loss(const Trainer *t, const StepResult *r, int head) {
    return head < t->c->train.multi_token ? r->further[head] : (double)NAN;
}

/* Deviations are against what came before this step: judge adds it to the windows only after. */
static StepMetrics metrics_of(const Trainer *t, const StepResult *r, double lr) {
    const RunState *s = &t->state;
    return (StepMetrics){.step = s->step,
                         .total_steps = t->c->train.steps,
                         .wall = clock_wall(),
                         .loss = r->loss,
                         .z_loss = t->c->train.z_loss > 0 ? r->z_loss : (double)NAN,
                         .balance_loss = model_balance(&t->c->model.shape) > 0 ? r->balance : (double)NAN,
                         .loss_2 = further_loss(t, r, 0),
                         .loss_3 = further_loss(t, r, 1),
                         .loss_4 = further_loss(t, r, 2),
                         .loss_5 = further_loss(t, r, 3),
                         .expert_imbalance = r->experts.imbalance,
                         .dead_experts = r->experts.dead,
                         .noise_scale = noise_scale(&s->noise),
                         .grad_norm = r->grad_norm,
                         .clip_coefficient = r->clip_coefficient,
                         .lr = lr,
                         .loss_deviation = spike_deviation(&s->losses, r->loss),
                         .grad_norm_deviation = spike_deviation(&s->norms, r->grad_norm),
                         .skipped = r->skipped,
                         .skipped_total = s->skipped,
                         .step_tokens = t->feed.now->tokens,
                         .total_tokens = s->tokens,
                         .epoch = (double)s->samples / (double)dataset_samples_per_epoch(t->data)};
}

/* Other ranks than the first keep to warnings, but for the lines that metrics.log_ranks asks of them. */
static void hush(const Trainer *t) {
    if (!t->chief && t->asked > LOG_WARN) log_set_level(LOG_WARN);
}

/* metrics.log_ranks: whether this rank may speak, until it is hushed. */
static bool take_word(const Trainer *t) {
    bool asked = config_logs_rank(t->c, comm_rank(t->comm));
    if (asked) log_set_level(t->asked);
    return asked;
}

/* A rank is named where another than rank 0 speaks. */
static int name_on_console(const Trainer *t) {
    bool only_chief = t->c->metrics.log_ranks.count == 1 && config_logs_rank(t->c, 0);
    return only_chief ? CONSOLE_UNNAMED : comm_rank(t->comm);
}

/* Of several sources of the data, what the steps since the last such records have found. All ranks. */
static ErrorCode record_sources(Trainer *t, Error *err) {
    size_t count = t->sources.count;
    if (count == 0 || t->told_sources == t->state.step) return OK;
    SourceMetrics *m = mem_alloc_array(count, sizeof *m);
    ErrorCode code = sources_take(&t->sources, t->comm, t->state.step, t->state.samples, m, err);
    for (size_t i = 0; code == OK && i < count; i++) {
        if (t->chief || t->c->metrics.all_ranks) code = metrics_log_source(&t->log, &m[i], err);
        if (code == OK) code = send_record(t, err);
        if (code == OK && t->board) code = tensorboard_source(t->board, &m[i], err);
    }
    t->told_sources = t->state.step;
    free(m);
    return code;
}

/* Between logged steps the status line moves, and nothing is written. */
static ErrorCode record_step(Trainer *t, StepMetrics *m, Error *err) {
    bool due = m->step == 1 || m->step % t->c->metrics.log_freq == 0 || m->step == m->total_steps ||
               m->skipped || m->spike;
    if (!due) {
        metrics_window_peek(&t->window, t->flops_per_token, t->peak_flops, m);
        if (t->chief) console_status(m, false);
        return OK;
    }
    metrics_window_close(&t->window, t->flops_per_token, t->peak_flops, m);
    doubt_peak(t, m);
    if (t->chief) console_status(m, true);
    if (take_word(t)) console_step(m, name_on_console(t));
    hush(t);
    if (t->chief || t->c->metrics.all_ranks) TRY(metrics_log_step(&t->log, m, err));
    TRY(send_record(t, err));
    if (t->board) TRY(tensorboard_step(t->board, m, err));
    return record_sources(t, err);
}

/* Units as people call them, and configurations too. */
static void name_unit(int unit, int units, char out[METRICS_NAME]) {
    if (unit == 0 || unit == units - 1)
        snprintf(out, METRICS_NAME, "%s", unit == 0 ? "embedding" : "head");
    else
        snprintf(out, METRICS_NAME, "layers.%d", unit - 1);
}

static ErrorCode record_one_unit(Trainer *t, int unit, Error *err) {
    const UnitProbe *u = &t->probe[unit];
    ProbeMetrics m = {.step = t->state.step,
                      .wall = clock_wall(),
                      .output_rms = u->output.rms,
                      .output_max = u->output.max,
                      .gradient_rms = u->gradient.rms,
                      .gradient_max = u->gradient.max,
                      .weight_rms = u->weight.rms,
                      .weight_max = u->weight.max,
                      .weight_gradient_rms = u->weight_gradient.rms,
                      .weight_gradient_max = u->weight_gradient.max};
    m.nonfinite =
        u->output.nonfinite + u->gradient.nonfinite + u->weight.nonfinite + u->weight_gradient.nonfinite;
    name_unit(unit, t->rank.model.table.units, m.name);
    if (t->chief || t->c->metrics.all_ranks) TRY(metrics_log_probe(&t->log, &m, err));
    TRY(send_record(t, err));
    return t->board ? tensorboard_probe(t->board, &m, err) : OK;
}

/* Of the step that has just ended. */
static ErrorCode record_probe(Trainer *t, const StepOptions *options, Error *err) {
    for (int u = 0; options->probe && u < t->rank.model.table.units; u++) TRY(record_one_unit(t, u, err));
    return OK;
}

/* The most that is no concern of a run: halfway from even to all tokens with the same experts, and four times
 * the mean at most. */
static double most_imbalance(const ModelConfig *m) {
    double worst = (double)m->num_experts / (double)m->num_experts_per_tok;
    return fmin(4, (1 + worst) / 2);
}

/* Once in an attempt. Routers of a base that adapters are beside stay as they are. */
static void watch_experts(Trainer *t, const StepResult *r) {
    enum { STEPS = 50 };
    const ModelConfig *m = &t->c->model.shape;
    bool moves = t->c->train.router_bias_speed > 0;
    t->unbalanced = r->experts.imbalance > most_imbalance(m) ? t->unbalanced + 1 : 0;
    if (t->unbalanced != STEPS || t->warned_experts || !t->chief || t->c->lora.rank > 0) return;
    t->warned_experts = true;
    log_warn("step %lld: experts have been unbalanced for %d steps: the most chosen one of a layer has %.2f "
             "times the tokens of the mean (%.2f is all of them), and %lld had none: %s "
             "train.router_bias_speed%s%s, and go on with run.allow_changes=[train.router_bias_speed]",
             (long long)t->state.step, STEPS, r->experts.imbalance,
             (double)m->num_experts / (double)m->num_experts_per_tok, (long long)r->experts.dead,
             moves ? "raise" : "set", moves ? "" : "=", moves ? "" : config_bias_speed(t->c));
}

/* A non-finite step is skipped, counted and named; its figures enter no statistic. Judged before it enters
 * the window, against what came before it. */
static ErrorCode judge(Trainer *t, const StepResult *r, StepMetrics *m, Error *err) {
    RunState *s = &t->state;
    double limit = t->c->metrics.spike;
    if (r->skipped) {
        char detail[240];
        snprintf(detail, sizeof detail, "%lld non-finite gradient elements, first in %s; no update",
                 (long long)r->nonfinite, r->culprit);
        if (t->chief) log_warn("step %lld: %s", (long long)m->step, detail);
        return note(t, JOURNAL_NONFINITE, m->step, detail, NULL, err);
    }
    watch_experts(t, r);
    m->spike = spike_detect(&s->losses, r->loss, limit) || spike_detect(&s->norms, r->grad_norm, limit);
    spike_add(&s->losses, r->loss);
    spike_add(&s->norms, r->grad_norm);
    return m->spike ? note(t, JOURNAL_SPIKE, m->step, NULL, NULL, err) : OK;
}

/* The copy of a save runs beside forward and backward passes; weights may move when it is made. */
static void copy_finished(void *saver) { saver_copied(saver); }

/* Faults on purpose hit the next step, not what is still being saved of the one before. */
static void suffer(Trainer *t, StepOptions *options) {
    int attempt = supervise_attempt();
    int64_t step = t->state.step + 1;
    if (!inject_at(t->inject, comm_rank(t->comm), step, attempt, NULL)) return;
    saver_copied(&t->saver);
    strike(t->inject, t->engine, step, attempt, options);
}

/* All ranks do; rank 0 says it. */
static ErrorCode give_up(const Trainer *t, const StepResult *r, Error *err) {
    error_set(err, ERR_NUMERIC,
              "%lld steps in a row were not finite, the last by %s: the run stops at step %lld; lower the "
              "learning rate or go back to a checkpoint",
              (long long)t->bad_in_row, r->culprit, (long long)t->state.step);
    err->told = !t->chief;
    return ERR_NUMERIC;
}

/* Planned and measured times of the traced steps. */
static ErrorCode report_trace(Trainer *t, Error *err) {
    return t->chief ? tracing_report(&t->tracing, t->c->run.dir, &t->journal, err) : OK;
}

static ErrorCode tell_of_memory(Trainer *t, Error *err) {
    Text said = {0};
    ErrorCode code = occupancy_tell(&t->occupancy, &said, err);
    const JournalFact facts[] = {{"fell_bytes", (double)t->occupancy.gpu.fell}, {NULL, 0}};
    if (said.length) {
        log_warn("%s", said.data);
        code = journal_add(&t->journal, JOURNAL_MEMORY, t->state.step, said.data, facts, err);
    }
    text_free(&said);
    return code;
}

/* What is free on GPUs behind the first step of this process is what steps leave free; all ranks hear with
 * the next step's record of one that finds otherwise. */
static ErrorCode watch_memory(Trainer *t, uint64_t any, bool looks, Error *err) {
    if (!t->occupancy.steady) {
        TRY(occupancy_settle(&t->occupancy, err));
        return t->chief ? record_occupancy(t, err) : OK;
    }
    if (looks) occupancy_look(&t->occupancy);
    return any & RECORD_MEMORY ? tell_of_memory(t, err) : OK;
}

/* Parameters and gradients; visits of experts are ep's. */
static int64_t sent_to_shards(Comm *c) {
    return comm_traffic(c, MESH_SHARDS).bytes + comm_traffic(c, MESH_EXPERT_SHARDS).bytes;
}

/* In this order: what goes into the record of the step, the step, what its record brought; then the counts,
 * and from them what is written. Nothing is written of a step before it is counted, so that records and
 * state tell of the same step. */
static ErrorCode one_step(Trainer *t, Error *err) {
    double start = clock_seconds(), waited;
    StepResult r;
    StepOptions options = setup_step(t->c, t->state.step);
    options.before_update = copy_finished;
    options.context = &t->saver;
    /* A signal may reach any rank, the stop file rank 0: with the record of this step all know, and all
     * stop after it. */
    if (stop_requested || (t->chief && lock_stop_requested(&t->lock))) options.any |= RECORD_STOP;
    if (occupancy_has_seen(&t->occupancy)) options.any |= RECORD_MEMORY;
    saver_flags(&t->saver, &options.any, &options.all);
    if (due(t->c->metrics.probe, t->state.step + 1)) options.probe = t->probe;
    options.timed = tracing_wants(&t->tracing, t->state.step + 1);
    suffer(t, &options);
    TRY(feed_next(&t->feed, &waited, err));
    const FeedStep *now = t->feed.now, *next = t->feed.next;
    options.sources = sources_rows(&t->sources, now, t->feed.sequences);
    options.next = next ? next->batches : NULL;
    options.microbatches = (int)now->microbatches,
    options.next_microbatches = next ? (int)next->microbatches : 0;
    /* What is counted is this step's, but for saves and records between steps. */
    comm_reset_traffic(t->comm);
    engine_step(t->engine, now->batches, &options, &r);
    sources_add(&t->sources, now, t->feed.sequences, t->engine);
    t->stopping |= (r.any & RECORD_STOP) != 0;
    /* The save under way moves on by what the record brought. */
    TRY(saver_advance(&t->saver, r.any, r.all, err));
    metrics_window_step(&t->window, now->tokens, clock_seconds() - start, waited,
                        engine_times(t->engine)->waited);
    t->state.step++;
    t->state.samples += now->samples;
    t->state.tokens += now->tokens;
    t->state.skipped += r.skipped;
    t->bad_in_row = r.skipped ? t->bad_in_row + 1 : 0;
    if (!r.skipped) noise_add(&t->state.noise, r.noise.signal, r.noise.variance);
    if (t->c->data.audit)
        TRY(audit_step(&t->audit, t->state.step, t->feed.used, now->microbatches, t->feed.sequences, err));
    StepMetrics m = metrics_of(t, &r, t->c->optimizer.settings.lr * options.lr_factor);
    m.sent_pp = comm_point_traffic(t->comm).bytes;
    m.sent_dp_replicate = comm_traffic(t->comm, MESH_REPLICAS).bytes;
    m.sent_dp_shard = sent_to_shards(t->comm);
    m.sent_cp = comm_traffic(t->comm, MESH_CONTEXT).bytes;
    m.sent_ep = comm_traffic(t->comm, MESH_EXPERTS).bytes;
    m.sent_tp = comm_traffic(t->comm, MESH_TENSOR).bytes + comm_traffic(t->comm, MESH_KEY_COPIES).bytes;
    TRY(judge(t, &r, &m, err));
    TRY(record_step(t, &m, err));
    TRY(record_probe(t, &options, err));
    TRY(tracing_step(&t->tracing, t->engine, t->state.step, err));
    if (tracing_due(&t->tracing)) TRY(report_trace(t, err));
    bool looks = due(t->c->metrics.log_freq, m.step) || m.step == m.total_steps || t->stopping;
    TRY(watch_memory(t, r.any, looks, err));
    return t->bad_in_row >= t->c->train.stop_after_bad ? give_up(t, &r, err) : OK;
}

/* What comes before the first step comes once, and says nothing of the time that is left. */
static void pause_for(Trainer *t, double seconds) {
    if (t->state.step > 0) metrics_window_pause(&t->window, seconds);
}

/* Said, sent and written down: of all sets together, or of the one with this name, whose share of the time
 * nobody knows. */
static ErrorCode record_validation(Trainer *t, const Evaluation *e, const char *name, double seconds,
                                   Error *err) {
    ValidationMetrics v = {.step = t->state.step,
                           .wall = clock_wall(),
                           .loss = e->loss,
                           .perplexity = exp(e->loss),
                           .bits_per_byte = e->bits_per_byte,
                           .tokens = e->tokens,
                           .nonfinite = e->nonfinite,
                           .seconds = seconds,
                           .tokens_per_second = (double)e->tokens / seconds};
    snprintf(v.name, sizeof v.name, "%s", name);
    best_validation(&t->best, &v);
    if (take_word(t)) console_validation(&v, name_on_console(t));
    hush(t);
    if (t->chief || t->c->metrics.all_ranks) TRY(metrics_log_validation(&t->log, &v, err));
    TRY(send_record(t, err));
    return t->board ? tensorboard_validation(t->board, &v, err) : OK;
}

/* Named sets, if there are any, before what they come to together. */
static ErrorCode record_sets(Trainer *t, const Evaluation *sets, Text *said, Error *err) {
    for (size_t i = 0; i < dataset_validation_sets(t->data); i++) {
        const char *name = dataset_validation_set(t->data, i).name;
        if (!*name) continue;
        TRY(record_validation(t, &sets[i], name, (double)NAN, err));
        text_printf(said, "%s%s %.5f", said->length ? ", " : "", name, sets[i].loss);
    }
    return OK;
}

static ErrorCode record_validations(Trainer *t, const Evaluation *all, const Evaluation *sets, double seconds,
                                    Error *err) {
    Text said = {0};
    const JournalFact facts[] = {{"loss", all->loss}, {NULL, 0}};
    ErrorCode code = record_sets(t, sets, &said, err);
    if (code == OK) code = record_validation(t, all, "", seconds, err);
    if (code == OK && all->nonfinite && t->chief)
        log_warn("validation after step %lld: the losses of %lld of %lld tokens are not finite",
                 (long long)t->state.step, (long long)all->nonfinite, (long long)all->tokens);
    if (code == OK) code = note(t, JOURNAL_VALIDATION, t->state.step, said.data, facts, err);
    text_free(&said);
    return code;
}

/* By all ranks together. The time is taken out of the window: tokens a second are those of training. */
static ErrorCode validate(Trainer *t, Error *err) {
    Evaluation all, *sets = mem_alloc_array(dataset_validation_sets(t->data), sizeof *sets);
    enter(t, PHASE_VALIDATION);
    double start = clock_seconds();
    ErrorCode code = evaluate(t->engine, t->data, t->tokenizer, t->c->validation.samples, &all, sets, err);
    double seconds = clock_seconds() - start;
    pause_for(t, seconds);
    if (code == OK) code = record_validations(t, &all, sets, seconds, err);
    free(sets);
    return code;
}

static ErrorCode record_task(Trainer *t, const TaskMetrics *m, Error *err) {
    best_task(&t->best, m);
    if (take_word(t)) console_task(m, name_on_console(t));
    hush(t);
    if (t->chief || t->c->metrics.all_ranks) TRY(metrics_log_task(&t->log, m, err));
    TRY(send_record(t, err));
    if (t->board) TRY(tensorboard_task(t->board, m, err));
    if (m->figures.nonfinite && t->chief)
        log_warn("task %s after step %lld: the log-likelihoods of %lld tokens are not finite", m->name,
                 (long long)m->step, (long long)m->figures.nonfinite);
    return OK;
}

/* For the journal's one line. */
static void say_task(const TaskMetrics *m, Text *said) {
    TaskFigure f = metrics_task_figure(m);
    text_printf(said, "%s%s ", said->length ? ", " : "", m->name);
    if (f.name)
        text_printf(said, "%s %.4f", f.name, f.value);
    else
        text_puts(said, "not finite");
}

static ErrorCode measure_tasks(Trainer *t, Text *said, Error *err) {
    for (size_t i = 0; i < t->tasks.count; i++) {
        TaskMetrics m = {.step = t->state.step};
        double start = clock_seconds();
        TRY(tasks_measure(t->engine, t->tasks.items[i], NULL, &m.figures, err));
        m.wall = clock_wall();
        m.seconds = clock_seconds() - start;
        snprintf(m.name, sizeof m.name, "%s", t->tasks.items[i]->name);
        pause_for(t, m.seconds);
        TRY(record_task(t, &m, err));
        say_task(&m, said);
    }
    return OK;
}

/* By all ranks together, as validation is. */
static ErrorCode try_tasks(Trainer *t, Error *err) {
    Text said = {0};
    enter(t, PHASE_VALIDATION);
    ErrorCode code = measure_tasks(t, &said, err);
    if (code == OK) code = note(t, JOURNAL_EVALUATION, t->state.step, said.data, NULL, err);
    text_free(&said);
    return code;
}

/* Seconds. A run that is started again sets up for longer than what it lost: advice to save more often than
 * this helps nobody. */
#define LEAST_INTERVAL 60.0

/* What became of a save: in the journal, and once, a word on how often to save. `stall` is what the
 * training waited for, `seconds` what the disk took beside it. */
static ErrorCode account_save(Trainer *t, const SaveReport *r, Error *err) {
    double stall = r->waited + r->copied, mttf = t->c->checkpoint.mttf_hours * 3600,
           rate = (double)r->bytes / r->seconds;
    char size[32], speed[32], detail[200], every[16];
    snprintf(detail, sizeof detail, "checkpoints/step-%08lld: %s in %.2f s %s (%s/s), stall %.3f s",
             (long long)r->step, text_bytes((double)r->bytes, size), r->seconds,
             config_saves_async(t->c) ? "beside the training" : "while training waited",
             text_bytes(rate, speed), stall);
    log_info("checkpoint %s", detail);
    double interval = checkpoint_interval(mttf, stall, r->seconds);
    if (!t->interval_suggested && mttf > 0 && interval >= LEAST_INTERVAL) {
        log_info("with this stall and a failure every %g hours, a checkpoint every %s loses least (Young)",
                 mttf / 3600, clock_duration(interval, every));
        t->interval_suggested = true;
    }
    const JournalFact facts[] = {
        {"bytes", (double)r->bytes}, {"stall_seconds", stall}, {"seconds", r->seconds}, {NULL, 0}};
    return journal_add(&t->journal, JOURNAL_CHECKPOINT, r->step, detail, facts, err);
}

/* Every rank takes its reports, or they would be told later; rank 0 writes. */
static ErrorCode account_saves(Trainer *t, Error *err) {
    for (SaveReport r; saver_report(&t->saver, &r);)
        if (t->chief) TRY(account_save(t, &r, err));
    return OK;
}

/* A run directory that went away would be made anew, with this checkpoint alone in it. */
static ErrorCode check_directory(const Trainer *t, Error *err) {
    return t->chief ? lock_check(&t->lock, t->c->run.dir, err) : OK;
}

/* Said before it is saved: should the save fail, the run does too. */
static ErrorCode look_for_best(Trainer *t, Error *err) {
    BestCheckpoint before = t->state.best;
    char detail[2 * BEST_FIGURE];
    if (!best_take(&t->best, t->state.step, &t->state.best)) return OK;
    int n = snprintf(detail, sizeof detail, "%s %.6g", before.figure, t->state.best.value);
    if (before.step > 0)
        snprintf(detail + n, sizeof detail - (size_t)n, ", before it %.6g of step %lld", before.value,
                 (long long)before.step);
    log_info("best checkpoint so far: step %lld, %s", (long long)t->state.step, detail);
    const JournalFact facts[] = {{"value", t->state.best.value}, {NULL, 0}};
    return note(t, JOURNAL_BEST, t->state.step, detail, facts, err);
}

/* Records first: what a checkpoint holds must be in them (audit.h, A2), and a crash may come right behind
 * the commit. */
static ErrorCode save(Trainer *t, bool last, Error *err) {
    double start = clock_seconds();
    enter(t, PHASE_SAVING);
    TRY(check_directory(t, err));
    TRY(record_sources(t, err));
    if (t->chief || t->c->metrics.all_ranks) TRY(metrics_log_sync(&t->log, err));
    if (t->c->data.audit) TRY(audit_sync(&t->audit, err));
    TRY(look_for_best(t, err));
    TRY(saver_begin(&t->saver, &t->state, last && t->c->checkpoint.last_weights_only, err));
    /* The last one is waited for; the others go on beside the next steps. */
    if (last || t->stopping) TRY(saver_wait(&t->saver, err));
    TRY(comm_barrier(t->comm, err)); /* so that all leave the phase together */
    metrics_window_pause(&t->window, clock_seconds() - start);
    return account_saves(t, err);
}

/* Before a state is saved, too: what is saved is what all copies had. */
static ErrorCode compare_replicas(Trainer *t, Error *err) {
    bool first = t->replicas.agreed < 0;
    if (!t->replicas.exist || t->c->check.replicas_every == 0) return OK;
    enter(t, PHASE_COMPARING);
    TRY(replicas_check(&t->replicas, t->state.step, err));
    metrics_window_pause(&t->window, t->replicas.seconds);
    if (first) log_info("copies on several ranks are equal; comparing them took %.3f s", t->replicas.seconds);
    return OK;
}

/* What is due after so many steps; before the first one, of what is measured on the way at all. */
static ErrorCode measure(Trainer *t, bool last, Error *err) {
    bool has_validation = dataset_validation_samples(t->data) > 0;
    if (has_validation && (last || due(t->c->validation.every, t->state.step))) TRY(validate(t, err));
    if (t->tasks.count > 0 && (last || due(t->c->evaluation.every, t->state.step))) TRY(try_tasks(t, err));
    return OK;
}

/* Copies are compared before the first step, too: what was loaded must be equal everywhere. A run that goes
 * on has been measured where it stands, or was not to be. */
static ErrorCode loop(Trainer *t, Error *err) {
    const Config *c = t->c;
    TRY(compare_replicas(t, err));
    if (t->state.step == 0) TRY(measure(t, false, err));
    while (t->state.step < c->train.steps && !t->stopping) {
        if (t->doing->phase != PHASE_STEPS) occupancy_allow(&t->occupancy);
        enter(t, PHASE_STEPS);
        TRY(one_step(t, err));
        TRY(account_saves(t, err));
        bool last = t->state.step == c->train.steps;
        bool saves = last || t->stopping || due(c->checkpoint.every, t->state.step);
        if (saves || due(c->check.replicas_every, t->state.step)) TRY(compare_replicas(t, err));
        TRY(measure(t, last, err));
        if (saves) TRY(save(t, last, err));
    }
    return OK;
}

/* The curve in the terminal, from the records of the whole run. */
static void show_curve(const Trainer *t) {
    MetricsTable table;
    Text out = {0};
    if (metrics_table_read(&table, t->log.path, NULL) != OK) return;
    double *x = mem_alloc_array(table.step_count, sizeof *x),
           *y = mem_alloc_array(table.step_count, sizeof *y);
    for (size_t i = 0; i < table.step_count; i++)
        x[i] = (double)table.steps[i].step, y[i] = table.steps[i].loss;
    if (table.step_count >= 4) {
        text_puts(&out, "loss\n");
        plot_curve(&out, x, y, table.step_count, log_width() < 100 ? log_width() : 100, 12,
                   plot_locale_is_utf8());
    }
    log_lines(out.data);
    text_free(&out);
    free(x);
    free(y);
    metrics_table_free(&table);
}

static void show_profile(Trainer *t) {
    Text out = {0};
    device_profile_print(&t->device, 0, &out);
    log_lines(out.data);
    text_free(&out);
}

/* Everything is saved: what fails here costs a line in a log, but is still a failure. */
static ErrorCode finish(Trainer *t, Error *err) {
    bool complete = t->state.step >= t->c->train.steps;
    enter(t, PHASE_ENDING);
    TRY(tracing_rest(&t->tracing, t->engine, err));
    TRY(tell_of_memory(t, err));
    TRY(check_directory(t, err));
    TRY(report_trace(t, err)); /* the run may end before the last step to be traced */
    if (t->chief) {
        console_clear();
        show_curve(t);
        if (t->c->metrics.profile) show_profile(t);
    }
    TRY(close_listener(t, err));
    TRY(note(t, complete ? JOURNAL_FINISHED : JOURNAL_STOPPED, t->state.step, NULL, NULL, err));
    if (complete) return OK;
    error_set(err, ERR_STOPPED,
              "stopped after step %lld of %lld, everything saved: the same command goes on from there",
              (long long)t->state.step, (long long)t->c->train.steps);
    err->told = !t->chief;
    return ERR_STOPPED;
}

/* The order is that of what can go wrong: cheap refusals before files, files before memory, memory before
 * measuring, and records last, so that a run that cannot begin has written nothing into them. */
static ErrorCode open_all(Trainer *t, OptionSet *set, Error *err) {
    enter(t, PHASE_READING);
    /* What this machine cannot run is said before anything is made. */
    TOGETHER(t, setup_device(t->c, t->comm, &t->device, err));
    occupancy_open(&t->occupancy, t->comm, &t->device);
    TOGETHER(t, open_directory(t, err));
    TRY(look_for_directory(t, err));
    enter(t, PHASE_TOKENIZING);
    /* Rank 0 first: what it tokenizes the others find in the cache. */
    TOGETHER(t, t->chief ? open_data(t, set, err) : OK);
    TOGETHER(t, t->chief ? OK : open_data(t, set, err));
    TRY(know_data(t, err));
    TRY(open_tasks(t, err));
    enter(t, PHASE_READING);
    TRY(find_checkpoint(t, err));
    TRY(resolve(t, set, err));
    TRY(open_engine(t, set, err));
    enter(t, PHASE_LOADING);
    TRY(begin_or_resume(t, set, err));
    enter(t, PHASE_RECORDS);
    TOGETHER(t, t->chief ? write_config(t, set, err) : OK);
    int dp_rank = mesh_dp_rank(&t->layout.mesh, comm_rank(t->comm));
    FeedStart from = {t->state.step, t->state.samples};
    TOGETHER(t, feed_open(&t->feed, t->c, &t->layout, dp_rank, t->data, &from, err));
    TOGETHER(t, open_records(t, err));
    tracing_open(&t->tracing, t->c, &t->layout, t->comm);
    TOGETHER(t, open_audit(t, err));
    replicas_open(&t->replicas, t->engine, t->comm);
    sources_open(&t->sources, &t->rank, t->data, &t->layout);
    t->told_sources = t->state.step;
    doing_engine(t->doing, t->engine);
    return OK;
}

/* Failures that all ranks return at the same time, one of them with err->told unset. */
static bool known_to_all(ErrorCode code) { return code == ERR_REPLICAS || code == ERR_NUMERIC; }

/* What is being saved is of a step that was good. */
static ErrorCode end_together(Trainer *t, Error *err) {
    if (saver_wait(&t->saver, NULL) == OK) account_saves(t, NULL);
    comm_report(t->comm, err);
    return err->code;
}

/* A failure of loop is this rank's alone unless known_to_all says otherwise: the others are in the middle
 * of something, so comm_fail ends them. */
static ErrorCode run(Trainer *t, OptionSet *set, Error *err) {
    TRY(open_all(t, set, err));
    ErrorCode code = loop(t, err);
    if (code == OK) return finish(t, err);
    /* A directory that went away is the cause of whatever could not be written to it. */
    if (code == ERR_CANTCREATE || code == ERR_IO) check_directory(t, err);
    code = err->code;
    console_clear();
    note(t, code == ERR_REPLICAS ? JOURNAL_DIVERGED : JOURNAL_FAILED, t->state.step, err->message, NULL,
         NULL);
    if (known_to_all(code)) return end_together(t, err);
    /* The others may be waiting for this rank. */
    if (comm_size(t->comm) > 1) comm_fail(t->comm, err);
    return code;
}

/* The engine leaves `doing` before it is closed, and the saver goes before the engine, whose tensors it
 * copies. */
ErrorCode trainer_run(Comm *comm, const char *file, Config *c, OptionSet *set, const Inject *inject,
                      Doing *doing, Error *err) {
    Trainer t = {.c = c,
                 .file = file,
                 .comm = comm,
                 .inject = inject,
                 .doing = doing,
                 .journal = {.fd = -1},
                 .audit = {.fd = -1},
                 .listener = {.fd = -1}};
    t.chief = comm_rank(comm) == 0;
    t.asked = log_level();
    hush(&t);
    ErrorCode code = run(&t, set, err);
    doing_enter(doing, PHASE_ENDING, t.state.step);
    doing_engine(doing, NULL);
    ErrorCode saved = saver_close(&t.saver, code == OK ? err : NULL);
    if (code == OK) code = saved;
    feed_close(&t.feed);
    close_listener(&t, NULL);
    tensorboard_close(t.board, NULL);
    metrics_log_close(&t.log);
    journal_close(&t.journal);
    audit_close(&t.audit);
    tracing_close(&t.tracing);
    replicas_close(&t.replicas);
    sources_close(&t.sources);
    engine_close(t.engine);
    rank_plan_free(&t.rank);
    layout_free(&t.layout);
    state_close(&t.found);
    text_free(&t.changes);
    comm_set_device(comm, NULL);
    device_close(&t.device);
    free(t.probe);
    tasks_close(&t.tasks);
    dataset_close(t.data);
    tokenizer_free(t.tokenizer);
    if (code == OK)
        lock_release(&t.lock);
    else
        lock_abandon(&t.lock, c->run.dir);
    return code;
}
