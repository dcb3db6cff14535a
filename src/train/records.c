/* Writes the records of a run: metrics of steps, validations, tasks, probed units and sources go to the sinks
 * in a table, events go to the journal.
 *
 * R1. All ranks call the `write` of a sink; the sink decides whether this rank writes the record. R2. To add
 * a sink (TensorBoard, wandb), add a file in observe/, its state in Trainer and an entry of sinks[]; if it
 * leaves files in the run directory, state_discard must remove them too. The names of metrics are in
 * observe/metrics.c (fields in files), observe/tensorboard.c (tags) and observe/console.c (console). */
#include "train/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/async.h"
#include "observe/console.h"
#include "observe/plot.h"
#include "observe/spike.h"
#include "train/inputs.h"
#include "train/supervise.h"

/* ---- console ---- */

void run_hush(const Trainer *t) {
    if (!t->is_rank0 && t->asked > LOG_WARN) log_set_level(LOG_WARN);
}

/* metrics.log_ranks: whether this rank may print, until run_hush. */
static bool take_word(const Trainer *t) {
    bool asked = config_logs_rank(t->c, comm_rank(t->comm));
    if (asked) log_set_level(t->asked);
    return asked;
}

/* The rank is named if ranks other than 0 print records. */
static int name_on_console(const Trainer *t) {
    bool only_rank0 = t->c->metrics.log_ranks.count == 1 && config_logs_rank(t->c, 0);
    return only_rank0 ? CONSOLE_UNNAMED : comm_rank(t->comm);
}

static ErrorCode print_record(Trainer *t, MetricsKind kind, const void *record, Error *err) {
    (void)err;
    if (take_word(t)) console_record(kind, record, name_on_console(t));
    run_hush(t);
    return OK;
}

/* ---- metrics.jsonl, TensorBoard ---- */

/* Lost records are not written again, so readers of curve and report should know of them. */
static void warn_of_holes(const Trainer *t, const MetricsTable *records, const char *path) {
    MetricsHole hole = metrics_hole(records, t->state.step, t->c->metrics.log_freq);
    if (hole.records > 0)
        log_warn(
            "%s: %lld records up to step %lld are missing, the first between steps %lld and %lld: curves "
            "and report have a hole there; the training itself goes on as it was",
            path, (long long)hole.records, (long long)t->state.step, (long long)hole.from,
            (long long)hole.to);
}

/* Reads the records of the run so far, before those of lost steps are dropped. */
static void take_up_records(Trainer *t, const char *name) {
    MetricsTable table;
    char *path = path_join(t->c->run.dir, name);
    if (file_exists(path) && metrics_table_read(&table, path, NULL) == OK) {
        goodput_resume(&t->goodput, &table, t->state.step);
        if (t->state.step > 0) warn_of_holes(t, &table, path);
        metrics_table_free(&table);
    }
    free(path);
}

/* Metrics are written by rank 0, or by each rank into its own file. */
static bool has_log(const Trainer *t) { return t->is_rank0 || t->c->metrics.all_ranks; }

static ErrorCode open_log(Trainer *t, Error *err) {
    char name[32];
    metrics_file_name(comm_rank(t->comm), name);
    if (t->is_rank0) take_up_records(t, name);
    if (!has_log(t)) return OK;
    /* What was measured before the first step is not measured again. */
    return (recovery_made(t) ? metrics_log_go_on : metrics_log_open)(&t->log, t->c->run.dir, name,
                                                                     t->state.step, err);
}

static ErrorCode write_log(Trainer *t, MetricsKind kind, const void *record, Error *err) {
    return has_log(t) ? metrics_log_add(&t->log, kind, record, err) : OK;
}

static ErrorCode sync_log(Trainer *t, Error *err) { return has_log(t) ? metrics_log_sync(&t->log, err) : OK; }

static ErrorCode close_log(Trainer *t, Error *err) {
    (void)err;
    metrics_log_close(&t->log);
    return OK;
}

static ErrorCode open_board(Trainer *t, Error *err) {
    if (!t->is_rank0 || !t->c->metrics.tensorboard) return OK;
    return tensorboard_open(&t->board, t->c->run.dir, t->state.step, err);
}

static ErrorCode write_board(Trainer *t, MetricsKind kind, const void *record, Error *err) {
    return t->board ? tensorboard_add(t->board, kind, record, err) : OK;
}

static ErrorCode close_board(Trainer *t, Error *err) {
    ErrorCode code = tensorboard_close(t->board, err);
    t->board = NULL;
    return code;
}

/* ---- journal ---- */

ErrorCode record_event(Trainer *t, JournalEvent event, int64_t step, const char *detail,
                       const JournalFact *facts, Error *err) {
    return t->is_rank0 && t->journal.fd >= 0 ? journal_add(&t->journal, event, step, detail, facts, err) : OK;
}

/* The journal records how often, and why, the run was started again. */
static ErrorCode record_restart(Trainer *t, Error *err) {
    int attempt = supervise_attempt();
    const JournalFact facts[] = {{"attempt", attempt}, {NULL, 0}};
    if (attempt == 0) return OK;
    JournalEvent event = supervise_resized() ? JOURNAL_RESIZED : JOURNAL_RESTARTED;
    return journal_add(&t->journal, event, t->state.step, supervise_cause(), facts, err);
}

/* About the GPU with least memory left. */
ErrorCode record_gpu_memory(Trainer *t, Error *err) {
    JournalFact facts[GPU_MEMORY_FACTS];
    if (!t->device.runtime.memory) return OK;
    (t->gpu_memory.steady ? gpu_memory_kernel_facts : gpu_memory_pool_facts)(&t->gpu_memory, facts);
    return journal_add(&t->journal, JOURNAL_MEMORY, t->state.step, NULL, facts, err);
}

/* Rank 0 writes the journal of the run as a whole. */
static ErrorCode open_journal(Trainer *t, Error *err) {
    int64_t step = t->state.step;
    if (!t->is_rank0) return OK;
    TRY(journal_open(&t->journal, t->c->run.dir, err));
    if (t->recovery.count > 0) return OK; /* recovery.c records it */
    TRY(record_restart(t, err));
    const InputsFrom from = {t->file, t->c, t->data, step, t->init};
    TRY(inputs_record(&from, &t->journal, err));
    const MemoryPlan *memory = rank_memory(&t->rank);
    bool has_host =
        t->device.separate_memory; /* then there are no spares: recovery.mode in_place is refused */
    const JournalFact facts[] = {{"parameters", (double)model_parameter_count(&t->c->model.shape)},
                                 {"tokens_per_step", (double)t->c->train.tokens_per_step},
                                 {"total_steps", (double)t->c->train.steps},
                                 {"flops_per_token", t->flops_per_token},
                                 {"peak_flops", t->peak_flops},
                                 {"ranks", comm_size(t->comm)},
                                 {"threads", t->device.threads},
                                 {"planned_bytes", (double)memory_plan_total(memory)},
                                 {has_host                 ? "planned_host_bytes"
                                  : t->recovery.spares > 0 ? "spares"
                                                           : NULL,
                                  has_host ? (double)memory_plan_host(memory) : t->recovery.spares},
                                 {NULL, 0}};
    TRY(journal_add(&t->journal, step ? JOURNAL_RESUMED : JOURNAL_STARTED, step, t->device.processor, facts,
                    err));
    TRY(record_gpu_memory(t, err));
    if (t->changes.length == 0) return OK;
    return journal_add(&t->journal, JOURNAL_CHANGED, step, t->changes.data, NULL, err);
}

static ErrorCode close_journal(Trainer *t, Error *err) {
    (void)err;
    journal_close(&t->journal);
    return OK;
}

/* ---- metrics.command ---- */

/* Reports problems of the program of metrics.command: the run continues without it, but not silently. */
static ErrorCode report_listener(Trainer *t, Text *message, Error *err) {
    ErrorCode code = OK;
    if (message->length) {
        log_warn("%s", message->data);
        code = journal_add(&t->journal, JOURNAL_COMMAND, t->state.step, message->data, NULL, err);
    }
    text_free(message);
    return code;
}

/* A program that cannot be started is reported, and does not end the run. */
static ErrorCode open_listener(Trainer *t, Error *err) {
    const StringList *words = &t->c->metrics.command;
    Text message = {0};
    if (t->is_rank0 && words->count > 0)
        listener_open(&t->listener, t->c->run.dir, words->count, words->items, &message);
    return report_listener(t, &message, err);
}

/* Sends the line that was just written to metrics.jsonl. */
static ErrorCode send_record(Trainer *t, MetricsKind kind, const void *record, Error *err) {
    Text message = {0};
    (void)kind, (void)record;
    if (t->is_rank0) listener_send(&t->listener, t->log.line.data, t->log.line.length, &message);
    return report_listener(t, &message, err);
}

ErrorCode sinks_close_program(Trainer *t, Error *err) {
    Text message = {0};
    listener_close(&t->listener, t->c->metrics.command_wait_s, &message);
    return report_listener(t, &message, err);
}

/* ---- sinks ---- */

/* Each function may be NULL. */
typedef struct Sink {
    ErrorCode (*open)(Trainer *t, Error *err);
    ErrorCode (*write)(Trainer *t, MetricsKind kind, const void *record, Error *err);
    ErrorCode (*sync)(Trainer *t, Error *err); /* to the disk */
    ErrorCode (*close)(Trainer *t, Error *err);
} Sink;

/* Opened and written in this order, and closed in reverse: the end of the program goes into the journal, and
 * the program gets the line that the log has written. */
static const Sink sinks[] = {
    {NULL, print_record, NULL, NULL},             /* the console */
    {open_log, write_log, sync_log, close_log},   /* metrics.jsonl */
    {open_board, write_board, NULL, close_board}, /* tensorboard/ */
    {open_journal, NULL, NULL, close_journal},    /* journal.jsonl: events (record_event), no metrics */
    {open_listener, send_record, NULL, sinks_close_program}, /* metrics.command */
};
enum { SINKS = sizeof sinks / sizeof *sinks };

ErrorCode sinks_open(Trainer *t, Error *err) {
    for (int i = 0; i < SINKS; i++)
        if (sinks[i].open) TRY(sinks[i].open(t, err));
    return OK;
}

ErrorCode sinks_sync(Trainer *t, Error *err) {
    for (int i = 0; i < SINKS; i++)
        if (sinks[i].sync) TRY(sinks[i].sync(t, err));
    return OK;
}

void sinks_close(Trainer *t) {
    for (int i = SINKS; i-- > 0;)
        if (sinks[i].close) sinks[i].close(t, NULL);
}

/* record: the struct that belongs to `kind`. */
static ErrorCode write_record(Trainer *t, MetricsKind kind, const void *record, Error *err) {
    for (int i = 0; i < SINKS; i++)
        if (sinks[i].write) TRY(sinks[i].write(t, kind, record, err));
    return OK;
}

/* ---- steps ---- */

/* Loss of an MTP head; NaN if there is no such head. */
static double mtp_loss(const Trainer *t, const StepResult *r, int head) {
    return head < t->c->train.mtp_depth ? r->mtp[head] : (double)NAN;
}

/* Bytes over two sets: parameters and gradients go over both kinds of shards. Dispatch of experts counts as
 * ep. */
static int64_t sent_over(Comm *c, AxisSet one, AxisSet other) {
    return comm_traffic(c, one).bytes + comm_traffic(c, other).bytes;
}

/* NaN, which is left out of records, as long as the length of an epoch is not known. */
static double epochs_of(const Trainer *t) {
    uint64_t epoch = dataset_samples_per_epoch(t->data);
    return epoch > 0 ? (double)t->state.samples / (double)epoch : (double)NAN;
}

/* Deviations compare with earlier steps: judge adds this one to the windows only afterwards. */
StepMetrics record_of_step(const Trainer *t, const StepResult *r, double lr) {
    const RunState *s = &t->state;
    Comm *c = t->comm;
    return (StepMetrics){.step = s->step,
                         .total_steps = t->c->train.steps,
                         .wall = clock_wall(),
                         .loss = r->loss,
                         .z_loss = t->c->train.z_loss > 0 ? r->z_loss : (double)NAN,
                         .balance_loss = model_balance(&t->c->model.shape) > 0 ? r->balance : (double)NAN,
                         .loss_2 = mtp_loss(t, r, 0),
                         .loss_3 = mtp_loss(t, r, 1),
                         .loss_4 = mtp_loss(t, r, 2),
                         .loss_5 = mtp_loss(t, r, 3),
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
                         .sent_pp = comm_point_traffic(c).bytes,
                         .sent_dp_replicate = comm_traffic(c, MESH_REPLICAS).bytes,
                         .sent_dp_shard = sent_over(c, MESH_SHARDS, MESH_EXPERT_SHARDS),
                         .sent_cp = comm_traffic(c, MESH_CONTEXT).bytes,
                         .sent_ep = comm_traffic(c, MESH_EXPERTS).bytes,
                         .sent_tp = sent_over(c, MESH_TENSOR, MESH_KEY_COPIES),
                         .step_tokens = t->read_ahead.now->tokens,
                         .total_tokens = s->tokens,
                         .epoch = epochs_of(t)};
}

/* Nothing is faster than the peak. If a step is, other programs used the processor while the peak was
 * measured, and no fraction of it means anything. */
static void doubt_peak(Trainer *t, StepMetrics *m) {
    if (!(m->mfu > 1)) return;
    log_info("step %lld made %.3f TFLOP/s, more than the peak that was measured at the start: the machine "
             "was busy then, and mfu is left out from here on",
             (long long)m->step, m->flops_per_second / 1e12);
    t->peak_flops = 0;
    m->mfu = (double)NAN;
}

/* With several data sources, records the figures of the steps since the last such records. All ranks. */
ErrorCode record_sources(Trainer *t, Error *err) {
    size_t count = t->sources.count;
    if (count == 0 || t->reported_sources == t->state.step) return OK;
    SourceMetrics *m = mem_alloc_array(count, sizeof *m);
    ErrorCode code = sources_take(&t->sources, t->comm, t->state.step, t->state.samples, m, err);
    for (size_t i = 0; code == OK && i < count; i++) code = write_record(t, METRICS_SOURCE, &m[i], err);
    t->reported_sources = t->state.step;
    free(m);
    return code;
}

bool run_logs_step(const Trainer *t, const StepMetrics *m) {
    return m->step == 1 || m->step % t->c->metrics.log_freq == 0 || m->step == m->total_steps || m->skipped ||
           m->spike;
}

ErrorCode record_step(Trainer *t, StepMetrics *m, Error *err) {
    if (!run_logs_step(t, m)) {
        metrics_window_peek(&t->window, t->flops_per_token, t->peak_flops, m);
        if (t->is_rank0) console_status(m, false);
        return OK;
    }
    metrics_window_close(&t->window, t->flops_per_token, t->peak_flops, m);
    goodput_fill(&t->goodput, m);
    doubt_peak(t, m);
    if (t->is_rank0) console_status(m, true);
    TRY(write_record(t, METRICS_STEP, m, err));
    return record_sources(t, err);
}

/* Names as configurations use them: "layers.3". */
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
    return write_record(t, METRICS_PROBE, &m, err);
}

/* Of the step that has just ended. */
ErrorCode record_probe(Trainer *t, const StepOptions *options, Error *err) {
    for (int u = 0; options->probe && u < t->rank.model.table.units; u++) TRY(record_one_unit(t, u, err));
    return OK;
}

/* ---- validations, tasks ---- */

/* Records a validation of all sets together, or of the one with this name, whose part of the time is not
 * known. */
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
    return write_record(t, *name ? METRICS_SET : METRICS_VALIDATION, &v, err);
}

/* Records named sets, if there are any, before the total. */
static ErrorCode record_sets(Trainer *t, const Evaluation *sets, Text *message, Error *err) {
    for (size_t i = 0; i < dataset_validation_sets(t->data); i++) {
        const char *name = dataset_validation_set(t->data, i).name;
        if (!*name) continue;
        TRY(record_validation(t, &sets[i], name, (double)NAN, err));
        text_printf(message, "%s%s %.5f", message->length ? ", " : "", name, sets[i].loss);
    }
    return OK;
}

ErrorCode record_validations(Trainer *t, const Evaluation *all, const Evaluation *sets, double seconds,
                             Error *err) {
    Text message = {0};
    const JournalFact facts[] = {{"loss", all->loss}, {NULL, 0}};
    ErrorCode code = record_sets(t, sets, &message, err);
    if (code == OK) code = record_validation(t, all, "", seconds, err);
    if (code == OK && all->nonfinite && t->is_rank0)
        log_warn("validation after step %lld: the losses of %lld of %lld tokens are not finite",
                 (long long)t->state.step, (long long)all->nonfinite, (long long)all->tokens);
    if (code == OK) code = record_event(t, JOURNAL_VALIDATION, t->state.step, message.data, facts, err);
    text_free(&message);
    return code;
}

ErrorCode record_task(Trainer *t, const TaskMetrics *m, Error *err) {
    best_task(&t->best, m);
    TRY(write_record(t, METRICS_TASK, m, err));
    if (m->figures.nonfinite && t->is_rank0)
        log_warn("task %s after step %lld: the log-likelihoods of %lld tokens are not finite", m->name,
                 (long long)m->step, (long long)m->figures.nonfinite);
    return OK;
}

/* ---- saves, memory, traces, the end ---- */

/* Seconds. Restarting a run takes longer than what it would lose, so advice to save more often than this is
 * useless. */
#define LEAST_INTERVAL 60.0

/* Records a save in the journal and, once, logs advice on how often to save. `stall` is the time that
 * training waited; `seconds` is the time that the disk took alongside it. */
static ErrorCode record_save(Trainer *t, const SaveReport *r, Error *err) {
    double stall = r->waited + r->copied, mttf = t->c->checkpoint.mttf_hours * 3600,
           rate = (double)r->bytes / r->seconds;
    char size[32], speed[32], detail[200], every[16];
    snprintf(detail, sizeof detail, "checkpoints/step-%08lld: %s in %.2f s %s (%s/s), stall %.3f s",
             (long long)r->step, text_bytes((double)r->bytes, size), r->seconds,
             config_saves_async(t->c) ? "alongside training" : "while training waited",
             text_bytes(rate, speed), stall);
    log_info("checkpoint %s", detail);
    double interval = checkpoint_interval(mttf, stall, r->seconds);
    if (!t->interval_suggested && mttf > 0 && interval >= LEAST_INTERVAL) {
        log_info("with this stall and a failure every %g hours, a checkpoint every %s loses least (Young)",
                 mttf / 3600, clock_duration(interval, every));
        t->interval_suggested = true;
    }
    if (t->mirror) mirror_add(t->mirror, r->step);
    const JournalFact facts[] = {
        {"bytes", (double)r->bytes}, {"stall_seconds", stall}, {"seconds", r->seconds}, {NULL, 0}};
    return journal_add(&t->journal, JOURNAL_CHECKPOINT, r->step, detail, facts, err);
}

/* Every rank takes its reports, because otherwise they would stay queued; rank 0 writes. */
ErrorCode record_saves(Trainer *t, Error *err) {
    for (SaveReport r; saver_report(&t->saver, &r);)
        if (t->is_rank0) TRY(record_save(t, &r, err));
    return OK;
}

ErrorCode record_lost_memory(Trainer *t, Error *err) {
    Text message = {0};
    ErrorCode code = gpu_memory_write(&t->gpu_memory, &message, err);
    const JournalFact facts[] = {{"fell_bytes", (double)t->gpu_memory.gpu.fell}, {NULL, 0}};
    if (message.length) {
        log_warn("%s", message.data);
        code = journal_add(&t->journal, JOURNAL_MEMORY, t->state.step, message.data, facts, err);
    }
    text_free(&message);
    return code;
}

ErrorCode record_trace(Trainer *t, Error *err) {
    return t->is_rank0 ? tracing_report(&t->tracing, t->c->run.dir, &t->journal, err) : OK;
}

/* Plots the loss curve in the terminal, from the records of the whole run. */
void run_show_curve(const Trainer *t) {
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

void run_show_profile(Trainer *t) {
    Text out = {0};
    device_profile_print(&t->device, 0, &out);
    log_lines(out.data);
    text_free(&out);
}
