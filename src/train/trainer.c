#include "train/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "observe/console.h"
#include "observe/journal.h"
#include "observe/metrics.h"
#include "observe/plot.h"
#include "observe/spike.h"
#include "observe/tensorboard.h"
#include "train/evaluate.h"
#include "train/feed.h"
#include "train/lock.h"
#include "train/save.h"
#include "train/setup.h"
#include "train/state.h"

typedef struct Trainer {
    Config *c;
    Device device;
    Tokenizer *tokenizer;
    Dataset *data;
    Engine engine;
    Feed feed;
    MetricsLog log;
    MetricsWindow window;
    TensorBoard *board;
    Journal journal;
    RunState state;
    RunLock lock;
    Saver saver;
    int64_t bad_in_row;
    bool interval_suggested;
    double flops_per_token, peak_flops;
} Trainer;

/* First signal: stop after this step. Second: at once; whatever was saved stays. */
static volatile sig_atomic_t stop_requested;

static void on_signal(int number) {
    if (stop_requested && number == SIGINT) _exit(130);
    stop_requested = 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a run outlives whoever reads its messages */
}

static ErrorCode write_config(const Trainer *t, const OptionSet *set, Error *err) {
    Text yaml = {0};
    options_write_yaml(set, &yaml, true);
    char *path = path_join(t->c->run.dir, "config.yaml");
    ErrorCode code = file_write_atomic(path, yaml.data, yaml.length, err);
    free(path);
    text_free(&yaml);
    return code;
}

static ErrorCode open_data(Trainer *t, Error *err) {
    Config *c = t->c;
    if (c->data.sources.count == 0)
        return error_set(err, ERR_CONFIG, "data.sources is empty: name what to train on, e.g. data.sources=[text.txt]");
    TRY(tokenizer_open(&t->tokenizer, c->data.tokenizer, err));
    TRY(setup_shape(c, t->tokenizer, err));
    return dataset_open(&t->data, &c->data, t->tokenizer, c->train.context, (int)c->run.threads, err);
}

static ErrorCode open_engine(Trainer *t, Error *err) {
    EngineSpec spec;
    TRY(setup_device(t->c, &t->device, err));
    TRY(setup_spec(t->c, &t->device, &spec, err));
    TRY(engine_plan(&t->engine, &t->device, &spec, err));
    Text out = {0};
    t->engine.memory.staging = saver_bytes(t->c, &t->engine.model.table);
    dataset_describe(t->data, &out);
    setup_describe(t->c, &t->engine, &out);
    fputs(out.data, stderr);
    text_free(&out);
    TRY(engine_allocate(&t->engine, err));
    t->device.profiling = t->c->metrics.profile;
    t->flops_per_token = model_flops_per_token(&t->c->model.shape, t->c->train.context);
    t->peak_flops = device_matmul_peak(&t->device, t->engine.model.compute, 0.2);
    log_info("matrix-product peak %.3f TFLOP/s in %s", t->peak_flops / 1e12, dtype_name(t->engine.model.compute));
    return OK;
}

static ErrorCode initial_weights(Trainer *t, Error *err) {
    const ModelOptions *m = &t->c->model;
    if (!m->init[0]) {
        engine_initialise(&t->engine, (InitKind)m->initialiser, m->init_std, (uint64_t)t->c->run.seed);
        return OK;
    }
    char *dir;
    TRY(state_find_model(m->init, &dir, err));
    ErrorCode code = state_load_weights(&t->engine, dir, err);
    if (code == OK) log_info("weights from %s", dir);
    free(dir);
    return code;
}

static ErrorCode begin_or_resume(Trainer *t, const OptionSet *set, Error *err) {
    bool resumed = false;
    if (t->c->run.overwrite)
        TRY(state_discard(t->c->run.dir, err));
    else
        TRY(state_resume(&t->state, t->c, set, &t->engine, t->data, t->tokenizer, &resumed, err));
    if (!resumed) TRY(initial_weights(t, err));
    if (resumed) log_info("resumed after step %lld", (long long)t->state.step);
    if (t->state.step >= t->c->train.steps) log_info("the run has its %lld steps already", (long long)t->c->train.steps);
    return saver_open(&t->saver, t->c, set, &t->engine, t->data, t->tokenizer, resumed ? t->state.step : -1, err);
}

static ErrorCode open_records(Trainer *t, Error *err) {
    const char *dir = t->c->run.dir;
    int64_t step = t->state.step;
    TRY(metrics_log_open(&t->log, dir, step, err));
    TRY(journal_open(&t->journal, dir, err));
    if (t->c->metrics.tensorboard) TRY(tensorboard_open(&t->board, dir, step, err));
    const JournalFact facts[] = {{"parameters", (double)t->engine.model.table.elements},
                                 {"tokens_per_step", (double)t->feed.tokens},
                                 {"total_steps", (double)t->c->train.steps},
                                 {"flops_per_token", t->flops_per_token},
                                 {"peak_flops", t->peak_flops},
                                 {"threads", t->device.threads},
                                 {"planned_bytes", (double)engine_bytes(&t->engine)},
                                 {NULL, 0}};
    return journal_add(&t->journal, step ? JOURNAL_RESUMED : JOURNAL_STARTED, step, t->device.processor, facts, err);
}

static StepMetrics metrics_of(const Trainer *t, const StepResult *r, double lr) {
    const RunState *s = &t->state;
    double samples = (double)(s->step * t->feed.sequences * t->feed.microbatches);
    return (StepMetrics){.step = s->step,
                         .total_steps = t->c->train.steps,
                         .wall = clock_wall(),
                         .loss = r->loss,
                         .grad_norm = r->grad_norm,
                         .clip_coefficient = r->clip_coefficient,
                         .lr = lr,
                         .loss_deviation = spike_deviation(&s->losses, r->loss),
                         .grad_norm_deviation = spike_deviation(&s->norms, r->grad_norm),
                         .skipped = r->skipped,
                         .skipped_total = s->skipped,
                         .step_tokens = t->feed.tokens,
                         .total_tokens = s->tokens,
                         .epoch = samples / (double)dataset_samples_per_epoch(t->data)};
}

static ErrorCode record_step(Trainer *t, StepMetrics *m, Error *err) {
    bool due = m->step == 1 || m->step % t->c->metrics.log_freq == 0 || m->step == m->total_steps || m->skipped || m->spike;
    if (!due) {
        metrics_window_peek(&t->window, t->flops_per_token, t->peak_flops, m);
        console_status(m);
        return OK;
    }
    metrics_window_close(&t->window, t->flops_per_token, t->peak_flops, m);
    console_step(m);
    console_status(m);
    TRY(metrics_log_step(&t->log, m, err));
    return t->board ? tensorboard_step(t->board, m, err) : OK;
}

/* A non-finite step is skipped, counted and named; its figures enter no statistic. */
static ErrorCode judge(Trainer *t, const StepResult *r, StepMetrics *m, Error *err) {
    RunState *s = &t->state;
    double limit = t->c->metrics.spike;
    if (r->skipped) {
        char detail[160];
        snprintf(detail, sizeof detail, "%lld non-finite gradient elements, first in %s; no update", (long long)r->nonfinite,
                 r->culprit);
        log_warn("step %lld: %s", (long long)m->step, detail);
        return journal_add(&t->journal, JOURNAL_NONFINITE, m->step, detail, NULL, err);
    }
    m->spike = spike_detect(&s->losses, r->loss, limit) || spike_detect(&s->norms, r->grad_norm, limit);
    spike_add(&s->losses, r->loss);
    spike_add(&s->norms, r->grad_norm);
    return m->spike ? journal_add(&t->journal, JOURNAL_SPIKE, m->step, NULL, NULL, err) : OK;
}

/* The copy of a save runs beside forward and backward passes; weights may move when it is made. */
static void copy_finished(void *saver) { saver_copied(saver); }

static ErrorCode one_step(Trainer *t, Error *err) {
    double start = clock_seconds(), waited;
    StepResult r;
    StepOptions options = setup_step(t->c, t->state.step);
    options.before_update = copy_finished;
    options.context = &t->saver;
    TRY(feed_next(&t->feed, &waited, err));
    engine_step(&t->engine, t->feed.batches, &options, &r);
    metrics_window_step(&t->window, t->feed.tokens, clock_seconds() - start, waited);
    t->state.step++;
    t->state.tokens += t->feed.tokens;
    t->state.skipped += r.skipped;
    t->bad_in_row = r.skipped ? t->bad_in_row + 1 : 0;
    StepMetrics m = metrics_of(t, &r, options.lr);
    TRY(judge(t, &r, &m, err));
    TRY(record_step(t, &m, err));
    if (t->bad_in_row >= t->c->train.stop_after_bad)
        return error_set(
            err, ERR_NUMERIC,
            "%lld steps in a row were not finite, the last by %s: the run stops at step %lld; lower the learning rate "
            "or go back to a checkpoint",
            (long long)t->bad_in_row, r.culprit, (long long)t->state.step);
    return OK;
}

static ErrorCode validate(Trainer *t, Error *err) {
    Evaluation e;
    double start = clock_seconds();
    TRY(evaluate(&t->engine, t->data, t->tokenizer, t->c->validation.samples, &e, err));
    ValidationMetrics v = {.step = t->state.step,
                           .wall = clock_wall(),
                           .loss = e.loss,
                           .perplexity = exp(e.loss),
                           .bits_per_byte = e.bits_per_byte,
                           .tokens = e.tokens,
                           .seconds = clock_seconds() - start};
    v.tokens_per_second = (double)v.tokens / v.seconds;
    metrics_window_pause(&t->window, v.seconds);
    console_validation(&v);
    TRY(metrics_log_validation(&t->log, &v, err));
    if (t->board) TRY(tensorboard_validation(t->board, &v, err));
    const JournalFact facts[] = {{"loss", v.loss}, {NULL, 0}};
    return journal_add(&t->journal, JOURNAL_VALIDATION, v.step, NULL, facts, err);
}

/* What became of a save: in the journal, and once, a word on how often to save. */
static ErrorCode account_save(Trainer *t, Error *err) {
    SaveReport r;
    if (!saver_report(&t->saver, &r)) return OK;
    double stall = r.waited + r.copied, mttf = t->c->checkpoint.mttf_hours * 3600, rate = (double)r.bytes / r.seconds;
    char size[32], speed[32], detail[200], every[16];
    snprintf(detail, sizeof detail, "checkpoints/step-%08lld: %s in %.2f s beside the training (%s/s), stall %.3f s",
             (long long)r.step, text_bytes((double)r.bytes, size), r.seconds, text_bytes(rate, speed), stall);
    log_info("checkpoint %s", detail);
    if (!t->interval_suggested && mttf > 0) {
        double interval = checkpoint_interval(mttf, stall, r.seconds);
        log_info("with this stall and a failure every %g hours, a checkpoint every %s loses least (Young)", mttf / 3600,
                 clock_duration(interval, every));
        t->interval_suggested = true;
    }
    const JournalFact facts[] = {{"bytes", (double)r.bytes}, {"stall_seconds", stall}, {"seconds", r.seconds}, {NULL, 0}};
    return journal_add(&t->journal, JOURNAL_CHECKPOINT, r.step, detail, facts, err);
}

static ErrorCode save(Trainer *t, bool last, Error *err) {
    double start = clock_seconds();
    TRY(metrics_log_sync(&t->log, err));
    TRY(saver_begin(&t->saver, &t->state, last && t->c->checkpoint.last_weights_only, err));
    if (last || stop_requested) TRY(saver_wait(&t->saver, err));
    metrics_window_pause(&t->window, clock_seconds() - start);
    return account_save(t, err);
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

static ErrorCode loop(Trainer *t, Error *err) {
    const Config *c = t->c;
    bool has_validation = dataset_validation_samples(t->data) > 0;
    while (t->state.step < c->train.steps && !stop_requested) {
        TRY(one_step(t, err));
        TRY(account_save(t, err));
        if (lock_stop_requested(&t->lock)) stop_requested = 1;
        bool last = t->state.step == c->train.steps;
        if (has_validation && (last || due(c->validation.every, t->state.step))) TRY(validate(t, err));
        if (last || stop_requested || due(c->checkpoint.every, t->state.step)) TRY(save(t, last, err));
    }
    return OK;
}

/* The curve in the terminal, from the records of the whole run. */
static void show_curve(const Trainer *t) {
    MetricsTable table;
    Text out = {0};
    if (metrics_table_read(&table, t->log.path, NULL) != OK) return;
    double *x = mem_alloc_array(table.step_count, sizeof *x), *y = mem_alloc_array(table.step_count, sizeof *y);
    for (size_t i = 0; i < table.step_count; i++) x[i] = (double)table.steps[i].step, y[i] = table.steps[i].loss;
    if (table.step_count >= 4)
        plot_curve(&out, x, y, table.step_count, log_width() < 100 ? log_width() : 100, 12, plot_locale_is_utf8());
    if (out.length) fprintf(stderr, "loss\n%s", out.data);
    text_free(&out);
    free(x);
    free(y);
    metrics_table_free(&table);
}

static void show_profile(const Trainer *t) {
    Text out = {0};
    device_profile_print(&t->device, 0, &out);
    fputs(out.data, stderr);
    text_free(&out);
}

static ErrorCode finish(Trainer *t, Error *err) {
    bool complete = t->state.step >= t->c->train.steps;
    console_clear();
    show_curve(t);
    if (t->c->metrics.profile) show_profile(t);
    TRY(journal_add(&t->journal, complete ? JOURNAL_FINISHED : JOURNAL_STOPPED, t->state.step, NULL, NULL, err));
    if (complete) return OK;
    return error_set(err, ERR_STOPPED, "stopped after step %lld of %lld, everything saved: the same command goes on from there",
                     (long long)t->state.step, (long long)t->c->train.steps);
}

static ErrorCode run(Trainer *t, const OptionSet *set, Error *err) {
    TRY(file_make_dirs(t->c->run.dir, err));
    TRY(lock_take(&t->lock, t->c->run.dir, err));
    TRY(open_data(t, err));
    TRY(open_engine(t, err));
    TRY(begin_or_resume(t, set, err));
    TRY(write_config(t, set, err));
    TRY(feed_open(&t->feed, t->c, t->data, t->state.step, err));
    TRY(open_records(t, err));
    ErrorCode code = loop(t, err);
    if (code == OK) return finish(t, err);
    console_clear();
    journal_add(&t->journal, JOURNAL_FAILED, t->state.step, err->message, NULL, NULL);
    return code;
}

ErrorCode trainer_run(Config *c, const OptionSet *set, Error *err) {
    Trainer t = {.c = c, .journal = {.fd = -1}};
    catch_signals();
    ErrorCode code = run(&t, set, err);
    ErrorCode saved = saver_close(&t.saver, code == OK ? err : NULL);
    if (code == OK) code = saved;
    feed_close(&t.feed);
    tensorboard_close(t.board, NULL);
    metrics_log_close(&t.log);
    journal_close(&t.journal);
    engine_free(&t.engine);
    device_close(&t.device);
    dataset_close(t.data);
    tokenizer_free(t.tokenizer);
    lock_release(&t.lock);
    return code;
}
