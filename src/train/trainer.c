/* The life of a run, from a configuration to its last checkpoint. All ranks go through it together:
 *
 *       run_begin:  device, directory, data, plan, memory, checkpoint to resume from, records (begin.c)
 *       loop:       one_step -> compare_replicas -> validate -> save, each when it is due
 *       finish:     curve, journal; trainer_run closes what was opened, however the run ended
 *
 * records.c has what is written about it, and where to.
 *
 * T1. Where a rank does something by itself that may fail, all ranks agree on the result at once (TOGETHER):
 * all return the failure of one, and it is printed once. T2. Inside a step there is no such agreement: a
 * failure there ends all ranks (comm_fail). T3. Rank 0 holds the run's lock, writes the records of the run,
 * and prints. */
#include "train/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/signals.h"
#include "comm/launch.h"
#include "comm/repair.h"
#include "comm/tell.h"
#include "observe/console.h"
#include "observe/spike.h"
#include "train/resize.h"
#include "train/run.h"
#include "train/supervise.h"

/* Written by the thread that takes signals (base/signals.h); `ending` by the main thread. */
static atomic_bool stop_requested, interrupted, ending;

/* First signal: stop after this step. A second SIGINT (on ranks, the launcher's SIGUSR2): end at once; what
 * was saved stays. */
static void on_signal(int number) {
    if (ending) return;
    if (number == SIGUSR2 || (interrupted && number == SIGINT)) { launched_end(130); }
    interrupted |= number == SIGINT;
    stop_requested = true;
}

ErrorCode trainer_take_signals(Error *err) {
    signal(SIGPIPE, SIG_IGN); /* a run outlives the readers of its messages */
    return signals_take(on_signal, err);
}

/* From here on the run ends by itself, and a second Ctrl-C must not cut off its last messages. */
void trainer_ignore_signals(void) { ending = true; }

/* Enters the phase before injecting faults, so that the watchdog names the phase if a fault stops this
 * rank. */
void run_enter(Trainer *t, Phase phase) {
    activity_enter(t->activity, phase, t->state.step);
    FaultPoint point = {.rank = t->recovery.own,
                        .attempt = supervise_attempt(),
                        .phase = phase,
                        .step = t->state.step,
                        .first = !t->entered[phase]};
    t->entered[phase] = true;
    inject_phase_faults(t->inject, &point);
}

/* The largest imbalance that needs no warning: halfway between even and all tokens with the same experts, but
 * at most four times the mean. */
static double most_imbalance(const ModelConfig *m) {
    double worst = (double)m->num_experts / (double)m->num_experts_per_tok;
    return fmin(4, (1 + worst) / 2);
}

/* Warns once per attempt. Not with adapters, which leave the routers of their base as they are. */
static void watch_experts(Trainer *t, const StepResult *r) {
    enum { STEPS = 50 };
    const ModelConfig *m = &t->c->model.shape;
    bool moves = t->c->train.router_bias_speed > 0;
    t->unbalanced = r->experts.imbalance > most_imbalance(m) ? t->unbalanced + 1 : 0;
    if (t->unbalanced != STEPS || t->warned_experts || !t->is_rank0 || t->c->lora.rank > 0) return;
    t->warned_experts = true;
    log_warn("step %lld: experts have been unbalanced for %d steps: the most chosen one of a layer has %.2f "
             "times the tokens of the mean (%.2f is all of them), and %lld had none: %s "
             "train.router_bias_speed%s%s, and go on with run.allow_changes=[train.router_bias_speed]",
             (long long)t->state.step, STEPS, r->experts.imbalance,
             (double)m->num_experts / (double)m->num_experts_per_tok, (long long)r->experts.dead,
             moves ? "raise" : "set", moves ? "" : "=", moves ? "" : config_bias_speed(t->c));
}

/* A non-finite step is skipped, counted and reported; its values enter no statistic. A step is compared with
 * the earlier ones before it enters the window. */
static ErrorCode judge(Trainer *t, const StepResult *r, StepMetrics *m, Error *err) {
    RunState *s = &t->state;
    double limit = t->c->metrics.spike;
    if (r->skipped) {
        char detail[400];
        snprintf(detail, sizeof detail, "%lld non-finite gradient elements, first in %s; no update",
                 (long long)r->nonfinite, r->culprit);
        if (t->is_rank0) log_warn("step %lld: %s", (long long)m->step, detail);
        return record_event(t, JOURNAL_NONFINITE, m->step, detail, NULL, err);
    }
    watch_experts(t, r);
    m->spike = spike_detect(&s->losses, r->loss, limit) || spike_detect(&s->norms, r->grad_norm, limit);
    spike_add(&s->losses, r->loss);
    spike_add(&s->norms, r->grad_norm);
    return m->spike ? record_event(t, JOURNAL_SPIKE, m->step, NULL, NULL, err) : OK;
}

/* The copy of a save is made alongside forward and backward passes; weights may change once it is
 * complete. */
static void copy_finished(void *saver) { saver_copied(saver); }

/* Injected faults affect the next step, not what is still being saved of the previous one. */
static void inject_step_faults(Trainer *t, StepOptions *options) {
    int attempt = supervise_attempt();
    int64_t step = t->state.step + 1;
    if (!inject_at(t->inject, t->recovery.own, step, attempt, NULL)) return;
    saver_copied(&t->saver);
    inject_faults(t->inject, t->recovery.own, t->engine, step, attempt, options);
    for (const Fault *f = NULL; (f = inject_at(t->inject, t->recovery.own, step, attempt, f));)
        if (f->kind == FAULT_BITFLIP && f->place == FAULT_IN_STAGING)
            saver_flip(&t->saver, inject_index(f, UINT64_MAX));
}

/* All ranks return the error; rank 0 prints it. */
static ErrorCode give_up(const Trainer *t, const StepResult *r, Error *err) {
    error_set(err, ERR_NUMERIC,
              "%lld steps in a row were not finite, the last by %s: the run stops at step %lld; lower the "
              "learning rate or go back to a checkpoint",
              (long long)t->bad_in_row, r->culprit, (long long)t->state.step);
    err->reported = !t->is_rank0;
    return ERR_NUMERIC;
}

/* After the first step of this process, the free memory of GPUs should no longer change. If a rank finds
 * otherwise, all learn of it with the next step's record. */
static ErrorCode watch_memory(Trainer *t, uint64_t any, bool looks, Error *err) {
    if (!t->gpu_memory.steady) {
        TRY(gpu_memory_settle(&t->gpu_memory, err));
        return t->is_rank0 ? record_gpu_memory(t, err) : OK;
    }
    if (looks) gpu_memory_look(&t->gpu_memory);
    return any & RECORD_MEMORY ? record_lost_memory(t, err) : OK;
}

/* One rank of each machine looks. Warns once: a run whose machine has been announced ends after this step. */
static bool sees_notice(const Trainer *t) {
    char host[HOST_NAME_BYTES];
    if (comm_local_rank(t->comm) > 0 || !begin_has_notice(t->c)) return false;
    host_name(host, sizeof host);
    log_warn("step %lld: %s is there on host %s (run.notice_file): the run saves after this step, and ends",
             (long long)t->state.step + 1, t->c->run.notice_file, host);
    return true;
}

/* A signal may reach any rank, the stop file rank 0, a notice any machine. With the record of this step all
 * ranks learn of it, and all stop after it. */
static StepOptions options_of_step(Trainer *t) {
    StepOptions options = setup_step(t->c, t->state.step);
    options.before_update = copy_finished;
    options.context = &t->saver;
    if (stop_requested || (t->is_rank0 && lock_stop_requested(&t->lock))) options.any |= RECORD_STOP;
    if (sees_notice(t)) options.any |= RECORD_STOP | RECORD_NOTICE;
    if (gpu_memory_has_seen(&t->gpu_memory)) options.any |= RECORD_MEMORY;
    saver_flags(&t->saver, &options.any, &options.all);
    if (due(t->c->metrics.probe, t->state.step + 1)) options.probe = t->probe;
    options.timed = tracing_wants(&t->tracing, t->state.step + 1);
    return options;
}

/* A step that was made before a recovery is not made again: only what follows it is. */
static void take_made(const MadeStep *made, StepOptions *options, StepResult *r) {
    *r = made->result;
    r->any &= RECORD_WRITER - 1; /* the rest is of a save that was given up */
    r->all &= RECORD_WRITER - 1;
    options->probe = NULL;
}

static ErrorCode make_step(Trainer *t, const StepOptions *options, StepResult *r, Error *err) {
    if (engine_step(t->engine, t->read_ahead.now->batches, options, r) == OK) return OK;
    return error_set(err, ERR_PEER, "step %lld: another rank died", (long long)t->state.step + 1);
}

/* Traffic is counted from here: saves and records between steps are left out. A step in which a microbatch
 * was computed wrong has changed nothing, and is made again. */
static ErrorCode step_on_data(Trainer *t, StepOptions *options, StepResult *r, Error *err) {
    const ReadAheadStep *now = t->read_ahead.now, *next = t->read_ahead.next;
    options->sources = sources_rows(&t->sources, now, t->read_ahead.sequences);
    options->next = next ? next->batches : NULL;
    options->microbatches = (int)now->microbatches;
    options->next_microbatches = next ? (int)next->microbatches : 0;
    comm_reset_traffic(t->comm);
    if (due(t->c->check.replay_every, t->state.step + 1)) TRY(replay_begin(t, options, err));
    TRY(make_step(t, options, r, err));
    for (int made = 1; options->replay && options->replay->differs; made++) {
        TRY(replay_judge(t, made, err));
        if (made >= options->poison_times) options->poison = POISON_NONE;
        TRY(make_step(t, options, r, err));
    }
    sources_add(&t->sources, now, t->read_ahead.sequences, t->engine);
    return OK;
}

static ErrorCode count_step(Trainer *t, const StepResult *r, Error *err) {
    const ReadAheadStep *now = t->read_ahead.now;
    t->state.step++;
    t->state.samples += now->samples;
    t->state.tokens += now->tokens;
    t->state.skipped += r->skipped;
    t->bad_in_row = r->skipped ? t->bad_in_row + 1 : 0;
    if (!r->skipped) noise_add(&t->state.noise, r->noise.signal, r->noise.variance);
    receipt_add_samples(t);
    if (!t->c->data.audit) return OK;
    return audit_step(&t->audit, t->state.step, t->read_ahead.used, now->microbatches,
                      t->read_ahead.sequences, err);
}

static ErrorCode write_step(Trainer *t, const StepResult *r, const StepOptions *options, Error *err) {
    StepMetrics m = record_of_step(t, r, t->c->optimizer.settings.lr * options->lr_factor);
    TRY(judge(t, r, &m, err));
    TRY(record_step(t, &m, err));
    TRY(receipt_step(t, &m, err));
    TRY(record_probe(t, options, err));
    if (!recovery_made(t)) TRY(tracing_step(&t->tracing, t->engine, t->state.step, err));
    if (tracing_due(&t->tracing)) TRY(record_trace(t, err));
    bool looks = due(t->c->metrics.log_freq, m.step) || m.step == m.total_steps || t->stopping;
    return watch_memory(t, r->any, looks, err);
}

/* Order: what goes into the record of the step, the step, what its record brought; then the counts, and from
 * them the records. Nothing is written about a step before it is counted, so records and state agree. */
static ErrorCode one_step(Trainer *t, Error *err) {
    double start = clock_seconds(), waited;
    StepResult r;
    StepOptions options = options_of_step(t);
    const MadeStep *made = recovery_made(t);
    if (!made) inject_step_faults(t, &options);
    TRY(read_ahead_next(&t->read_ahead, &waited, err));
    if (made) {
        take_made(made, &options, &r);
    } else {
        TRY(step_on_data(t, &options, &r, err));
        recovery_keep(t, &r, clock_seconds() - start);
    }
    t->stopping |= (r.any & RECORD_STOP) != 0;
    t->noticed |= (r.any & RECORD_NOTICE) != 0;
    /* Advances the save under way by what the record brought. */
    TRY(saver_advance(&t->saver, r.any, r.all, err));
    double seconds = made ? made->seconds : clock_seconds() - start,
           for_ranks = engine_times(t->engine)->waited;
    metrics_window_step(&t->window, t->read_ahead.now->tokens, seconds, waited, for_ranks);
    goodput_step(&t->goodput, seconds, r.skipped);
    TRY(count_step(t, &r, err));
    TRY(stragglers_step(t, seconds, waited, for_ranks, err));
    TRY(write_step(t, &r, &options, err));
    return t->bad_in_row >= t->c->train.stop_after_bad ? give_up(t, &r, err) : OK;
}

/* What happens before the first step happens once, and must not enter the estimate of the remaining time. */
static void pause_for(Trainer *t, double seconds) {
    if (t->state.step > 0) metrics_window_pause(&t->window, seconds);
}

/* All ranks together. The time is taken out of the window, so that tokens per second are those of
 * training. */
static ErrorCode validate(Trainer *t, Error *err) {
    Evaluation all, *sets = mem_alloc_array(dataset_validation_sets(t->data), sizeof *sets);
    run_enter(t, PHASE_VALIDATION);
    double start = clock_seconds();
    ErrorCode code = evaluate(t->engine, t->data, t->tokenizer, t->c->validation.samples, &all, sets, err);
    double seconds = clock_seconds() - start;
    pause_for(t, seconds);
    if (code == OK) code = record_validations(t, &all, sets, seconds, err);
    free(sets);
    return code;
}

/* Appends to the journal's line. */
static void report_task(const TaskMetrics *m, Text *message) {
    TaskFigure f = metrics_task_figure(m);
    text_printf(message, "%s%s ", message->length ? ", " : "", m->name);
    if (f.name)
        text_printf(message, "%s %.4f", f.name, f.value);
    else
        text_puts(message, "not finite");
}

static ErrorCode measure_tasks(Trainer *t, Text *message, Error *err) {
    for (size_t i = 0; i < t->tasks.count; i++) {
        TaskMetrics m = {.step = t->state.step};
        double start = clock_seconds();
        TRY(tasks_measure(t->engine, t->tasks.items[i], NULL, &m.figures, err));
        m.wall = clock_wall();
        m.seconds = clock_seconds() - start;
        snprintf(m.name, sizeof m.name, "%s", t->tasks.items[i]->name);
        pause_for(t, m.seconds);
        TRY(record_task(t, &m, err));
        report_task(&m, message);
    }
    return OK;
}

/* All ranks together, as for validation. */
static ErrorCode try_tasks(Trainer *t, Error *err) {
    Text message = {0};
    run_enter(t, PHASE_VALIDATION);
    ErrorCode code = measure_tasks(t, &message, err);
    if (code == OK) code = record_event(t, JOURNAL_EVALUATION, t->state.step, message.data, NULL, err);
    text_free(&message);
    return code;
}

/* If the run directory is gone, saving would create it again, with only this checkpoint in it. */
static ErrorCode check_directory(const Trainer *t, Error *err) {
    return t->is_rank0 ? lock_check(&t->lock, t->c->run.dir, err) : OK;
}

/* Reported before it is saved: if the save fails, so does the run. */
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
    return record_event(t, JOURNAL_BEST, t->state.step, detail, facts, err);
}

/* Records are synced first: they must include everything that a checkpoint holds (audit.h, A2), and a crash
 * may follow right after the commit. */
static ErrorCode save(Trainer *t, bool last, Error *err) {
    double start = clock_seconds();
    run_enter(t, PHASE_SAVING);
    TRY(check_directory(t, err));
    TRY(record_sources(t, err));
    TRY(sinks_sync(t, err));
    if (t->c->data.audit) TRY(audit_sync(&t->audit, err));
    TRY(receipt_sync(t, err));
    TRY(look_for_best(t, err));
    t->recovery.owes_save = false;
    if (*t->facts.contents) TRY(comm_agree(t->comm, run_note_contents(t, err), err));
    TRY(saver_begin(&t->saver, &t->state, last && t->c->checkpoint.last_weights_only, err));
    /* The last save is waited for; others continue alongside the next steps. */
    if (last || t->stopping) TRY(saver_wait(&t->saver, err));
    TRY(comm_barrier(t->comm, err)); /* so that all leave the phase together */
    metrics_window_pause(&t->window, clock_seconds() - start);
    return record_saves(t, err);
}

/* Also called before a state is saved, so that what is saved is known to be equal on all replicas. */
static ErrorCode compare_replicas(Trainer *t, Error *err) {
    bool first = t->replicas.agreed < 0;
    if (!t->replicas.exist || t->c->check.replicas_every == 0) return OK;
    run_enter(t, PHASE_COMPARING);
    TRY(replicas_check(&t->replicas, t->state.step, err));
    metrics_window_pause(&t->window, t->replicas.seconds);
    if (first) log_info("copies on several ranks are equal; comparing them took %.3f s", t->replicas.seconds);
    return OK;
}

/* What is due after this many steps; before the first step, whatever is measured during the run. */
static ErrorCode measure(Trainer *t, bool last, Error *err) {
    bool has_validation = dataset_validation_samples(t->data) > 0;
    if (has_validation && (last || due(t->c->validation.every, t->state.step))) TRY(validate(t, err));
    if (t->tasks.count > 0 && (last || due(t->c->evaluation.every, t->state.step))) TRY(try_tasks(t, err));
    return OK;
}

/* Replicas are also compared before the first step: what was loaded must be equal everywhere. A resumed run
 * was measured at this step before, or was not supposed to be. */
static ErrorCode loop(Trainer *t, Error *err) {
    const Config *c = t->c;
    recovery_mark(t);
    TRY(compare_replicas(t, err));
    /* After a recovery the weights may be those of step 1, whose records are still to be written. */
    if (t->state.step == 0 && !recovery_made(t)) TRY(measure(t, false, err));
    while (t->state.step < c->train.steps && !t->stopping) {
        if (t->activity->phase != PHASE_STEPS) gpu_memory_allow(&t->gpu_memory);
        run_enter(t, PHASE_STEPS);
        recovery_mark(t);
        TRY(one_step(t, err));
        TRY(record_saves(t, err));
        bool last = t->state.step == c->train.steps, saves = run_saves_now(t);
        if (saves || due(c->check.replicas_every, t->state.step)) TRY(compare_replicas(t, err));
        TRY(measure(t, last, err));
        if (saves) TRY(save(t, last, err));
    }
    recovery_mark(t);
    return OK;
}

/* A request to stop ends it early. */
static ErrorCode replay(Trainer *t, Error *err) {
    while (t->state.step < t->replay->last && !t->stopping) {
        run_enter(t, PHASE_STEPS);
        TRY(one_step(t, err));
    }
    return t->stopping ? error_set(err, ERR_STOPPED, "stopped after step %lld", (long long)t->state.step)
                       : OK;
}

/* On rank 0: whether the run ends for another number of ranks. A launcher passes a signal on to all ranks; it
 * takes precedence, and so does a notice. */
static bool resizes(const Trainer *t) {
    if (stop_requested || t->noticed) resize_drop(t->c->run.dir);
    return resize_requested(t->c->run.dir);
}

/* The process that started the ranks reads the status, and starts others. */
static ErrorCode report_stop(const Trainer *t, Error *err) {
    long long step = t->state.step;
    bool goes_on = t->is_rank0 && resizes(t);
    error_set(err, ERR_STOPPED,
              "stopped after step %lld of %lld, everything saved: the same command goes on from there", step,
              (long long)t->c->train.steps);
    if (goes_on) log_info("step %lld: everything saved; the number of ranks changes", step);
    err->reported = !t->is_rank0 || goes_on;
    return ERR_STOPPED;
}

/* Everything is saved: a failure here loses at most a line of a log, but is still a failure. A rank that dies
 * up to the last commit is recovered from; afterwards nobody needs another one. The first one keeps rank 0
 * from writing the end of a run that may still lose a rank. */
static ErrorCode finish(Trainer *t, Error *err) {
    bool complete = t->state.step >= t->c->train.steps;
    run_enter(t, PHASE_ENDING);
    TRY(tracing_rest(&t->tracing, t->engine, err));
    TRY(record_lost_memory(t, err));
    TRY(check_directory(t, err));
    receipt_report(t);
    replay_report(t);
    TRY(comm_commit(t->comm, err));
    TRY(record_trace(t, err)); /* the run may end before the last step to be traced */
    if (t->is_rank0) {
        console_clear();
        run_show_curve(t);
        if (t->c->metrics.profile) run_show_profile(t);
    }
    TRY(sinks_close_program(t, err));
    const char *why = t->noticed && !complete ? "run.notice_file" : NULL;
    TRY(record_event(t, complete ? JOURNAL_FINISHED : JOURNAL_STOPPED, t->state.step, why, NULL, err));
    TRY(comm_commit(t->comm, err));
    return complete ? OK : report_stop(t, err);
}

/* Failures that all ranks return at the same time, one of them with err->reported unset. */
static bool known_to_all(ErrorCode code) { return code == ERR_REPLICAS || code == ERR_NUMERIC; }

/* The save under way is of a good step, so it is completed. */
static ErrorCode end_together(Trainer *t, Error *err) {
    if (saver_wait(&t->saver, NULL) == OK) record_saves(t, NULL);
    comm_report(t->comm, err);
    return err->code;
}

/* Of a rank set aside: until it is needed. */
static ErrorCode to_the_end(Trainer *t, Error *err) {
    if (comm_is_aside(t->comm)) return comm_stand_by(t->comm, err);
    TRY(loop(t, err));
    return finish(t, err);
}

/* Goes on as often as ranks die and the others can do without them. Ranks that hang are killed. */
static ErrorCode make_steps(Trainer *t, OptionSet *set, Error *err) {
    tell_begun();
    if (t->recovery.possible) comm_end_hung(t->comm, true);
    ErrorCode code = t->replay ? replay(t, err) : to_the_end(t, err);
    while (code != OK && recovery_can(t)) {
        code = recovery_run(t, set, err);
        if (code == OK) code = to_the_end(t, err);
    }
    comm_end_hung(t->comm, false);
    return code;
}

/* A failure of loop is this rank's alone, unless known_to_all says otherwise: the others are in the middle of
 * something, so comm_fail ends them. */
static ErrorCode run_training(Trainer *t, OptionSet *set, Error *err) {
    TRY(run_begin(t, set, err));
    ErrorCode code = make_steps(t, set, err);
    if (code == OK || code == ERR_STOPPED) return code;
    /* If the directory is gone, that is the cause of whatever could not be written to it. */
    if (code == ERR_CANTCREATE || code == ERR_IO) check_directory(t, err);
    code = err->code;
    console_clear();
    record_event(t, code == ERR_REPLICAS ? JOURNAL_DIVERGED : JOURNAL_FAILED, t->state.step, err->message,
                 NULL, NULL);
    if (t->recovery.refused) return code;
    if (known_to_all(code)) return end_together(t, err);
    if (comm_size(t->comm) > 1) comm_fail(t->comm, err);
    return code;
}

/* Accepts what was never opened. The device is closed after the engine and communicators that use it. */
static void close_run(Trainer *t) {
    run_close_records(t);
    recovery_close(t);
    engine_close(t->engine);
    rank_plan_free(&t->rank);
    layout_free(&t->layout);
    state_close(&t->found);
    text_free(&t->changes);
    comm_set_device(t->comm, NULL);
    device_close(&t->device);
    free(t->probe);
    tasks_close(&t->tasks);
    dataset_close(t->data);
    tokenizer_free(t->tokenizer);
    free(t->c->model.init_found);
    t->c->model.init_found = NULL;
}

/* `activity` loses the engine before it is closed, and the saver is closed before the engine, whose tensors
 * it copies. */
static ErrorCode run(Comm *comm, const char *file, Config *c, OptionSet *set, const Inject *inject,
                     const Replay *replay, Activity *activity, Error *err) {
    Trainer t = {.c = c,
                 .file = file,
                 .comm = comm,
                 .is_rank0 = comm_rank(comm) == 0,
                 .recovery.own = comm_rank(comm),
                 .asked = log_level(),
                 .inject = inject,
                 .activity = activity,
                 .journal = {.fd = -1},
                 .audit = {.fd = -1},
                 .receipts = {.log = {.fd = -1}},
                 .replay = replay,
                 .listener = {.fd = -1}};
    run_hush(&t);
    ErrorCode code = run_training(&t, set, err);
    /* Outside of the steps a death ends the run; MPI would wait for the dead at its end. */
    if (code != OK && comm_is_broken(comm)) comm_fail(comm, err);
    activity_enter(activity, PHASE_ENDING, t.state.step);
    activity_engine(activity, NULL);
    if (t.lock.fd > 0 && lock_check(&t.lock, c->run.dir, NULL) == OK) launch_remove(c->run.dir);
    ErrorCode saved = saver_close(&t.saver, code == OK ? err : NULL);
    if (code == OK) code = saved;
    mirror_close(t.mirror);
    close_run(&t);
    if (code == OK)
        lock_release(&t.lock);
    else
        lock_abandon(&t.lock, c->run.dir);
    return code;
}

ErrorCode trainer_run(Comm *comm, const char *file, Config *c, OptionSet *set, const Inject *inject,
                      Activity *activity, Error *err) {
    return run(comm, file, c, set, inject, NULL, activity, err);
}

ErrorCode trainer_replay(Comm *comm, const char *file, Config *c, OptionSet *set, const Replay *replay,
                         Activity *activity, Error *err) {
    const Inject none = {0};
    return run(comm, file, c, set, &none, replay, activity, err);
}
