/* Records of steps and validations: their file (metrics.h has its invariants), the window over which speeds
 * are averaged, and the table that reads them back. The table of fields is the only list of a record's
 * members: a new member is one line there.
 *
 * Speeds are means over the steps since the last logged one (MetricsWindow), not of the last step alone: one
 * slow step in ten should show as a tenth. Time that a step spends on saves and validations is a pause,
 * counted separately: it affects the remaining time, not the speed. */
#include "observe/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/lines.h"
#include "base/memory.h"

/* A record's members, listed once: writing and reading use the same table. */
typedef enum FieldType { FIELD_INT, FIELD_DOUBLE, FIELD_BOOL, FIELD_NAME } FieldType;
/* `curve` marks the members by which two runs are compared (metrics_compare). Times, rates and memory differ
 * each time, and deviations and spikes follow from losses and norms: none of them is a separate
 * difference. */
typedef struct Field {
    const char *key;
    FieldType type;
    size_t offset;
    bool curve; /* depends on configuration and data, not on time or machine */
} Field;

/* Key and field have the same name, so that no table of names can become outdated. */
#define STEP_FIELD(name, type) \
    { #name, type, offsetof(StepMetrics, name), false }
#define STEP_CURVE(name, type) \
    { #name, type, offsetof(StepMetrics, name), true }
static const Field step_fields[] = {
    STEP_FIELD(step, FIELD_INT),
    STEP_FIELD(total_steps, FIELD_INT),
    STEP_FIELD(wall, FIELD_DOUBLE),
    STEP_CURVE(loss, FIELD_DOUBLE),
    STEP_CURVE(grad_norm, FIELD_DOUBLE),
    STEP_CURVE(clip_coefficient, FIELD_DOUBLE),
    STEP_CURVE(lr, FIELD_DOUBLE),
    STEP_CURVE(z_loss, FIELD_DOUBLE),
    STEP_CURVE(balance_loss, FIELD_DOUBLE),
    STEP_CURVE(loss_2, FIELD_DOUBLE),
    STEP_CURVE(loss_3, FIELD_DOUBLE),
    STEP_CURVE(loss_4, FIELD_DOUBLE),
    STEP_CURVE(loss_5, FIELD_DOUBLE),
    STEP_CURVE(expert_imbalance, FIELD_DOUBLE),
    STEP_CURVE(dead_experts, FIELD_INT),
    STEP_FIELD(noise_scale, FIELD_DOUBLE),
    STEP_FIELD(loss_deviation, FIELD_DOUBLE),
    STEP_FIELD(grad_norm_deviation, FIELD_DOUBLE),
    STEP_CURVE(skipped, FIELD_BOOL),
    STEP_FIELD(spike, FIELD_BOOL),
    STEP_CURVE(skipped_total, FIELD_INT),
    STEP_CURVE(step_tokens, FIELD_INT),
    STEP_CURVE(total_tokens, FIELD_INT),
    STEP_CURVE(epoch, FIELD_DOUBLE),
    STEP_FIELD(step_seconds, FIELD_DOUBLE),
    STEP_FIELD(data_seconds, FIELD_DOUBLE),
    STEP_FIELD(wait_seconds, FIELD_DOUBLE),
    STEP_FIELD(sent_pp, FIELD_INT),
    STEP_FIELD(sent_dp_replicate, FIELD_INT),
    STEP_FIELD(sent_dp_shard, FIELD_INT),
    STEP_FIELD(sent_cp, FIELD_INT),
    STEP_FIELD(sent_tp, FIELD_INT),
    STEP_FIELD(sent_ep, FIELD_INT),
    STEP_FIELD(pause_seconds, FIELD_DOUBLE),
    STEP_FIELD(tokens_per_second, FIELD_DOUBLE),
    STEP_FIELD(flops_per_second, FIELD_DOUBLE),
    STEP_FIELD(mfu, FIELD_DOUBLE),
    STEP_FIELD(eta, FIELD_DOUBLE),
    STEP_FIELD(memory_resident, FIELD_INT),
    STEP_FIELD(memory_peak, FIELD_INT),
    STEP_FIELD(memory_fraction, FIELD_DOUBLE),
    STEP_FIELD(device_memory, FIELD_INT),
    STEP_FIELD(device_fraction, FIELD_DOUBLE),
    STEP_FIELD(run_seconds, FIELD_DOUBLE),
    STEP_FIELD(goodput, FIELD_DOUBLE),
    {NULL, FIELD_INT, 0, false},
};

/* The same for validations; both tables end with an entry without a key. */
#define VALIDATION_FIELD(name, type) \
    { #name, type, offsetof(ValidationMetrics, name), false }
#define VALIDATION_CURVE(name, type) \
    { #name, type, offsetof(ValidationMetrics, name), true }
#define VALIDATION_FIGURES                                                                  \
    VALIDATION_FIELD(step, FIELD_INT), VALIDATION_FIELD(wall, FIELD_DOUBLE),                \
        VALIDATION_CURVE(loss, FIELD_DOUBLE), VALIDATION_CURVE(perplexity, FIELD_DOUBLE),   \
        VALIDATION_CURVE(bits_per_byte, FIELD_DOUBLE), VALIDATION_CURVE(tokens, FIELD_INT), \
        VALIDATION_CURVE(nonfinite, FIELD_INT), VALIDATION_FIELD(seconds, FIELD_DOUBLE),    \
        VALIDATION_FIELD(tokens_per_second, FIELD_DOUBLE), {                                \
        NULL, FIELD_INT, 0, false                                                           \
    }
static const Field validation_fields[] = {VALIDATION_FIGURES};
static const Field set_fields[] = {VALIDATION_FIELD(name, FIELD_NAME), VALIDATION_FIGURES};

#define TASK_FIELD(name, type) \
    { #name, type, offsetof(TaskMetrics, name), false }
#define TASK_CURVE(name, type) \
    { #name, type, offsetof(TaskMetrics, figures.name), true }
static const Field task_fields[] = {
    TASK_FIELD(name, FIELD_NAME),
    TASK_FIELD(step, FIELD_INT),
    TASK_FIELD(wall, FIELD_DOUBLE),
    TASK_CURVE(documents, FIELD_INT),
    TASK_CURVE(truncated, FIELD_INT),
    TASK_CURVE(nonfinite, FIELD_INT),
    TASK_CURVE(acc, FIELD_DOUBLE),
    TASK_CURVE(acc_stderr, FIELD_DOUBLE),
    TASK_CURVE(acc_norm, FIELD_DOUBLE),
    TASK_CURVE(acc_norm_stderr, FIELD_DOUBLE),
    TASK_CURVE(gold_bits_per_byte, FIELD_DOUBLE),
    TASK_CURVE(perplexity, FIELD_DOUBLE),
    TASK_CURVE(perplexity_stderr, FIELD_DOUBLE),
    TASK_CURVE(word_perplexity, FIELD_DOUBLE),
    TASK_CURVE(byte_perplexity, FIELD_DOUBLE),
    TASK_CURVE(bits_per_byte, FIELD_DOUBLE),
    TASK_FIELD(seconds, FIELD_DOUBLE),
    {NULL, FIELD_INT, 0, false},
};

#define PROBE_FIELD(name, type) \
    { #name, type, offsetof(ProbeMetrics, name), false }
#define PROBE_CURVE(name, type) \
    { #name, type, offsetof(ProbeMetrics, name), true }
static const Field probe_fields[] = {
    PROBE_FIELD(name, FIELD_NAME),
    PROBE_FIELD(step, FIELD_INT),
    PROBE_FIELD(wall, FIELD_DOUBLE),
    PROBE_CURVE(output_rms, FIELD_DOUBLE),
    PROBE_CURVE(output_max, FIELD_DOUBLE),
    PROBE_CURVE(gradient_rms, FIELD_DOUBLE),
    PROBE_CURVE(gradient_max, FIELD_DOUBLE),
    PROBE_CURVE(weight_rms, FIELD_DOUBLE),
    PROBE_CURVE(weight_max, FIELD_DOUBLE),
    PROBE_CURVE(weight_gradient_rms, FIELD_DOUBLE),
    PROBE_CURVE(weight_gradient_max, FIELD_DOUBLE),
    PROBE_CURVE(nonfinite, FIELD_INT),
    {NULL, FIELD_INT, 0, false},
};

#define SOURCE_FIELD(name, type) \
    { #name, type, offsetof(SourceMetrics, name), false }
#define SOURCE_CURVE(name, type) \
    { #name, type, offsetof(SourceMetrics, name), true }
static const Field source_fields[] = {
    SOURCE_FIELD(name, FIELD_NAME),    SOURCE_FIELD(step, FIELD_INT),    SOURCE_FIELD(wall, FIELD_DOUBLE),
    SOURCE_CURVE(loss, FIELD_DOUBLE),  SOURCE_CURVE(targets, FIELD_INT), SOURCE_CURVE(tokens, FIELD_INT),
    SOURCE_CURVE(epoch, FIELD_DOUBLE), {NULL, FIELD_INT, 0, false},
};

/* `kind`, the first member of a record, tells a reader which members follow. */
static const struct {
    const char *name;
    const Field *fields;
} kinds[METRICS_KINDS] = {
    [METRICS_STEP] = {"train", step_fields},   [METRICS_VALIDATION] = {"validation", validation_fields},
    [METRICS_SET] = {"set", set_fields},       [METRICS_TASK] = {"task", task_fields},
    [METRICS_PROBE] = {"probe", probe_fields}, [METRICS_SOURCE] = {"source", source_fields}};

/* Fields in the order of the table, "kind" first, which is convenient for people and awk. */
static void write_record(Text *out, MetricsKind kind, const void *record) {
    JsonWriter w;
    json_start(&w, out, 0);
    json_begin_object(&w);
    json_put_string(&w, "kind", kinds[kind].name);
    for (const Field *f = kinds[kind].fields; f->key; f++) {
        const char *at = (const char *)record + f->offset;
        json_key(&w, f->key);
        /* By memcpy: the offset locates the field, but does not allow access as another type. */
        switch (f->type) {
        case FIELD_INT: {
            int64_t value;
            memcpy(&value, at, sizeof value);
            json_int(&w, value);
            break;
        }
        case FIELD_DOUBLE: {
            double value;
            memcpy(&value, at, sizeof value);
            json_double(&w, value);
            break;
        }
        case FIELD_BOOL: json_bool(&w, *(const bool *)at); break;
        case FIELD_NAME: json_string(&w, at); break;
        }
    }
    json_end_object(&w);
    text_add(out, "\n", 1);
}

/* A record of something named that lacks its name is a bad line. A missing number is read as NaN (or 0), so
 * that files of older versions stay readable; a number of the wrong kind makes the line bad. Integers up to
 * 2^53, since a JSON reader may store all numbers as doubles. Unknown keys are ignored: a later version may
 * have written them. */
static bool read_record(const cJSON *object, MetricsKind kind, void *record) {
    for (const Field *f = kinds[kind].fields; f->key; f++) {
        char *at = (char *)record + f->offset;
        if (f->type == FIELD_INT) {
            int64_t value = 0;
            if (json_get_int(object, "record", f->key, false, -(1LL << 53), 1LL << 53, &value, NULL) != OK)
                return false;
            memcpy(at, &value, sizeof value);
        } else if (f->type == FIELD_DOUBLE) {
            double value = (double)NAN;
            if (json_get_double(object, "record", f->key, false, &value, NULL) != OK) return false;
            memcpy(at, &value, sizeof value);
        } else if (f->type == FIELD_NAME) {
            const char *name = NULL;
            if (json_get_string(object, "record", f->key, true, &name, NULL) != OK) return false;
            if (!*name || strlen(name) >= METRICS_NAME) return false;
            strcpy(at, name);
        } else {
            *(bool *)at = false;
            if (json_get_bool(object, "record", f->key, false, (bool *)at, NULL) != OK) return false;
        }
    }
    return true;
}

/* By memcpy: the offset locates the member, but does not allow access as another type. Both types have eight
 * bytes, and only the right one is used. */
double metrics_number(const void *record, size_t offset, bool whole) {
    const char *at = (const char *)record + offset;
    int64_t integer;
    double value;
    memcpy(&integer, at, sizeof integer);
    memcpy(&value, at, sizeof value);
    return whole ? (double)integer : value;
}

TaskFigure metrics_task_figure(const TaskMetrics *m) {
    const TaskFigures *f = &m->figures;
    const TaskFigure figures[] = {
        {"acc_norm", f->acc_norm, true}, {"acc", f->acc, true}, {"bits per byte", f->bits_per_byte, false}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (isfinite(figures[i].value)) return figures[i];
    return (TaskFigure){NULL, (double)NAN, false};
}

/* ---- the window ---- */

/* `seconds` is the whole step, including data and waiting. A window, from one logged step to the next:
 *
 *     |--- step ---|--- step ---|-- pause --|--- step ---|     seconds: the steps; pause_seconds: the pause
 *      data wait                 save                          data_seconds, wait_seconds: parts of steps */
void metrics_window_step(MetricsWindow *w, int64_t tokens, double seconds, double data_seconds,
                         double wait_seconds) {
    w->steps++;
    w->tokens += tokens;
    w->seconds += seconds;
    w->data_seconds += data_seconds;
    w->wait_seconds += wait_seconds;
    w->run_steps++;
    w->run_seconds += seconds;
}

/* For a pause between steps. */
void metrics_window_pause(MetricsWindow *w, double seconds) {
    w->pause_seconds += seconds;
    w->run_pause_seconds += seconds;
}

/* The speed of a step is taken from the newest window, so that it follows a machine that becomes slower or
 * faster. Pauses are rare, so their fraction is taken from the whole run. */
static double remaining_seconds(const MetricsWindow *w, const StepMetrics *m) {
    if (w->run_steps <= 0) return (double)NAN;
    double step = w->steps > 0 ? w->seconds / (double)w->steps : w->run_seconds / (double)w->run_steps;
    double pause = w->run_pause_seconds / (double)w->run_steps;
    int64_t left = m->total_steps > m->step ? m->total_steps - m->step : 0;
    return (double)left * (step + pause);
}

/* Quotients of an empty window are NaN, which the console and the file show as unknown. The window stays
 * open: this is for the status line between logged steps. */
void metrics_window_peek(const MetricsWindow *w, double flops_per_token, double peak_flops, StepMetrics *m) {
    double steps = w->steps > 0 ? (double)w->steps : (double)NAN;
    m->step_seconds = w->seconds / steps;
    m->data_seconds = w->data_seconds / steps;
    m->wait_seconds = w->wait_seconds / steps;
    m->pause_seconds = w->pause_seconds;
    m->tokens_per_second = w->seconds > 0 ? (double)w->tokens / w->seconds : (double)NAN;
    m->flops_per_second = m->tokens_per_second * flops_per_token;
    m->mfu = peak_flops > 0 ? m->flops_per_second / peak_flops : (double)NAN;
    m->eta = remaining_seconds(w, m);
    /* Read here, at each step's end, without any allocation. */
    MemoryUse use = memory_use();
    m->memory_resident = (int64_t)use.resident;
    m->memory_peak = (int64_t)use.peak;
    m->memory_fraction = use.machine > 0 ? (double)use.peak / (double)use.machine : (double)NAN;
    m->device_memory = (int64_t)w->device_taken;
    m->device_fraction =
        w->device_memory > 0 ? (double)w->device_taken / (double)w->device_memory : (double)NAN;
}

/* Totals of the whole run are kept. */
void metrics_window_close(MetricsWindow *w, double flops_per_token, double peak_flops, StepMetrics *m) {
    metrics_window_peek(w, flops_per_token, peak_flops, m);
    w->steps = w->tokens = 0;
    w->seconds = w->data_seconds = w->wait_seconds = w->pause_seconds = 0;
}

/* ---- the file ---- */

/* A record and its kind; NULL for an invalid line. The caller deletes it. */
static cJSON *parse_line(const char *line, size_t length, MetricsKind *kind) {
    cJSON *root = NULL;
    const char *name = NULL;
    if (json_parse(METRICS_FILE, line, length, &root, NULL) != OK) return NULL;
    if (cJSON_IsObject(root) && json_get_string(root, METRICS_FILE, "kind", true, &name, NULL) == OK)
        for (int k = 0; k < METRICS_KINDS; k++)
            if (strcmp(name, kinds[k].name) == 0) {
                *kind = (MetricsKind)k;
                return root;
            }
    cJSON_Delete(root);
    return NULL;
}

/* Invariants 2 and 3: rewrites the file if it holds a torn line or a step beyond `resumed`. An unreadable
 * line is removed too, since its step is unknown. A single atomic rewrite, so that a crash here loses
 * nothing; the file has a few hundred bytes per logged step. */
static ErrorCode drop_beyond(const char *path, int64_t resumed, Error *err) {
    FileMap map;
    TRY(file_map(&map, path, err));
    Text kept = {0};
    Lines lines = lines_of((const char *)map.data, map.length);
    Line line;
    MetricsKind kind;
    while (lines_next(&lines, &line)) {
        cJSON *record = line.whole ? parse_line(line.text, line.length, &kind) : NULL;
        int64_t step = INT64_MAX;
        if (record && json_get_int(record, path, "step", true, 0, 1LL << 53, &step, NULL) != OK)
            step = INT64_MAX;
        if (step <= resumed) text_add(&kept, line.text, line.length + 1);
        cJSON_Delete(record);
    }
    bool changed = kept.length != map.length;
    file_unmap(&map);
    ErrorCode code = changed ? file_write_atomic(path, kept.data ? kept.data : "", kept.length, err) : OK;
    text_free(&kept);
    return code;
}

/* Rank 0 writes the run's metrics; other ranks, if they log at all, have files of their own. */
char *metrics_file_name(int rank, char out[32]) {
    snprintf(out, 32, rank == 0 ? METRICS_FILE : "metrics-%05d.jsonl", rank);
    return out;
}

/* A run that starts over empties the file: it must not continue another run's curve. */
static ErrorCode open_log(MetricsLog *log, const char *run_dir, const char *name, bool keeps, int64_t step,
                          Error *err) {
    *log = (MetricsLog){.fd = -1, .path = path_join(run_dir, name)};
    ErrorCode code = OK;
    if (file_exists(log->path))
        code = keeps ? drop_beyond(log->path, step, err) : file_write_atomic(log->path, "", 0, err);
    if (code == OK) code = file_open_lines(log->path, &log->fd, err);
    if (code != OK) metrics_log_close(log);
    return code;
}

ErrorCode metrics_log_open(MetricsLog *log, const char *run_dir, const char *name, int64_t resumed,
                           Error *err) {
    return open_log(log, run_dir, name, resumed > 0, resumed, err);
}

ErrorCode metrics_log_go_on(MetricsLog *log, const char *run_dir, const char *name, int64_t step,
                            Error *err) {
    return open_log(log, run_dir, name, true, step, err);
}

/* One write to a file in append mode: a crash tears at most this line. */
ErrorCode metrics_log_add(MetricsLog *log, MetricsKind kind, const void *record, Error *err) {
    text_clear(&log->line);
    write_record(&log->line, kind, record);
    return file_add_line(log->fd, log->path, log->line.data, log->line.length, err);
}

ErrorCode metrics_log_sync(MetricsLog *log, Error *err) { return file_sync(log->fd, log->path, err); }

/* Also for a log that was never opened. */
void metrics_log_close(MetricsLog *log) {
    if (log->path && log->fd >= 0) close(log->fd);
    free(log->path);
    text_free(&log->line);
    *log = (MetricsLog){.fd = -1};
}

/* Makes space for one more item; grows by doubling. The capacity is implied by the count, since the array is
 * full at 0 and at powers of two. May move the items; the caller stores the result. */
static void *grow(void *items, size_t count, size_t each) {
    bool full = (count & (count - 1)) == 0;
    size_t bytes;
    if (!full) return items;
    CHECK(size_multiply(count ? 2 * count : 1, each, &bytes));
    return mem_grow(items, bytes);
}

/* *out is undefined after false. */
bool metrics_parse(const char *line, size_t length, MetricsRecord *out) {
    *out = (MetricsRecord){.kind = METRICS_KINDS};
    cJSON *record = parse_line(line, length, &out->kind);
    if (!record) return false;
    bool good = read_record(record, out->kind, &out->step); /* all records begin where the union does */
    cJSON_Delete(record);
    return good;
}

/* An unreadable line is counted, not fatal: the rest of the curve is still useful. */
static bool table_add(MetricsTable *t, const char *line, size_t length) {
    MetricsRecord r;
    if (!metrics_parse(line, length, &r)) return false;
    switch (r.kind) {
    case METRICS_STEP:
        t->steps = grow(t->steps, t->step_count, sizeof *t->steps);
        t->steps[t->step_count++] = r.step;
        break;
    case METRICS_VALIDATION:
        t->validations = grow(t->validations, t->validation_count, sizeof *t->validations);
        t->validations[t->validation_count++] = r.validation;
        break;
    case METRICS_SET:
        t->sets = grow(t->sets, t->set_count, sizeof *t->sets);
        t->sets[t->set_count++] = r.validation;
        break;
    case METRICS_TASK:
        t->tasks = grow(t->tasks, t->task_count, sizeof *t->tasks);
        t->tasks[t->task_count++] = r.task;
        break;
    case METRICS_PROBE:
        t->probes = grow(t->probes, t->probe_count, sizeof *t->probes);
        t->probes[t->probe_count++] = r.probe;
        break;
    case METRICS_SOURCE:
        t->sources = grow(t->sources, t->source_count, sizeof *t->sources);
        t->sources[t->source_count++] = r.source;
        break;
    case METRICS_KINDS: return false;
    }
    return true;
}

/* Bad lines are counted and no error; the caller reports their number. metrics_table_free frees t, after a
 * failure too. */
ErrorCode metrics_table_read(MetricsTable *t, const char *path, Error *err) {
    *t = (MetricsTable){0};
    FileMap map;
    TRY(file_map(&map, path, err));
    Lines lines = lines_of((const char *)map.data, map.length);
    Line line;
    while (lines_next(&lines, &line))
        if (line.length > 0 && !table_add(t, line.text, line.length)) t->bad_lines++;
    file_unmap(&map);
    return OK;
}

void metrics_table_free(MetricsTable *t) {
    free(t->steps);
    free(t->validations);
    free(t->sets);
    free(t->tasks);
    free(t->probes);
    free(t->sources);
    *t = (MetricsTable){0};
}

/* A logged step holds the mean of the steps since the previous one, so mean times number is their sum. */
double metrics_training_seconds(const MetricsTable *t) {
    double seconds = 0;
    int64_t before = 0;
    for (size_t i = 0; i < t->step_count; i++) {
        const StepMetrics *m = &t->steps[i];
        if (isfinite(m->step_seconds)) seconds += m->step_seconds * (double)(m->step - before);
        before = m->step;
    }
    return seconds > 0 ? seconds : (double)NAN;
}

/* The step of record i among those up to `resumed`; 0 before the first, `resumed` after the last. */
static int64_t step_at(const MetricsTable *t, size_t i, int64_t resumed) {
    return i == 0 ? 0 : i <= t->step_count && t->steps[i - 1].step < resumed ? t->steps[i - 1].step : resumed;
}

/* The logging frequency may change between two starts: an interval is a gap if it is longer than both of its
 * neighbours and than log_freq. */
MetricsHole metrics_hole(const MetricsTable *t, int64_t resumed, int64_t log_freq) {
    MetricsHole hole = {0};
    int64_t before = log_freq, from = 0;
    for (size_t i = 1; i <= t->step_count + 1 && from < resumed; i++) {
        int64_t to = step_at(t, i, resumed), after = step_at(t, i + 1, resumed) - to;
        int64_t spacing = before > after ? before : after;
        if (spacing < log_freq) spacing = log_freq;
        bool logged = i <= t->step_count && t->steps[i - 1].step == to;
        int64_t missing = (to - from - logged) / spacing;
        if (to - from > spacing && missing > 0) {
            if (hole.records == 0) hole = (MetricsHole){0, from, to};
            hole.records += missing;
        } else {
            before = from == 1 ? to : to - from; /* the first step is always logged */
        }
        from = to;
    }
    return hole;
}

/* ---- comparing ---- */

static double number_of(const Field *f, const void *record) {
    if (f->type == FIELD_BOOL) return *(const bool *)((const char *)record + f->offset);
    return metrics_number(record, f->offset, f->type == FIELD_INT);
}

/* By bits, except that all NaNs are equal, since a file does not distinguish them. Returns the first field
 * that differs, with its two values in out; NULL if no `curve` field differs. In the order of the table, so
 * the loss is named before the norm that follows from it. */
static const Field *first_other(const Field *fields, const void *a, const void *b, double out[2]) {
    for (const Field *f = fields; f->key; f++) {
        out[0] = number_of(f, a);
        out[1] = number_of(f, b);
        bool same = isnan(out[0]) ? isnan(out[1]) != 0 : memcmp(&out[0], &out[1], sizeof out[0]) == 0;
        if (f->curve && !same) return f;
    }
    return NULL;
}

/* The records of one kind as bytes of `size` each, so that one function compares steps and validations. */
typedef struct Records {
    const char *kind;
    const Field *fields;
    const char *items;
    size_t count, size;
} Records;

static Records records_of(const MetricsTable *t, bool steps) {
    if (steps)
        return (Records){kinds[METRICS_STEP].name, step_fields, (const char *)t->steps, t->step_count,
                         sizeof *t->steps};
    return (Records){kinds[METRICS_VALIDATION].name, validation_fields, (const char *)t->validations,
                     t->validation_count, sizeof *t->validations};
}

/* Both kinds begin with their step. */
static int64_t step_of(const Records *r, size_t i) {
    int64_t step;
    memcpy(&step, r->items + i * r->size, sizeof step);
    return step;
}
_Static_assert(offsetof(StepMetrics, step) == 0 && offsetof(ValidationMetrics, step) == 0,
               "step comes first");

/* Counts the steps before `end` of which both have equal records, up to the first difference. Both ascend by
 * step, so a single pass is enough. Steps of which only one run has a record are skipped. d->figure is NULL
 * if nothing differs before `end`. */
static size_t compare_records(const Records *a, const Records *b, int64_t end, MetricsDifference *d) {
    size_t i = 0, j = 0, same = 0;
    *d = (MetricsDifference){0};
    while (i < a->count && j < b->count) {
        int64_t x = step_of(a, i), y = step_of(b, j);
        if (x >= end || y >= end) break;
        if (x == y) {
            const Field *f =
                first_other(a->fields, a->items + i * a->size, b->items + j * b->size, d->values);
            if (f) {
                d->step = x;
                d->kind = a->kind;
                d->figure = f->key;
                return same;
            }
            same++;
        }
        i += x <= y;
        j += y <= x;
    }
    return same;
}

/* Steps and validations are compared separately; the earlier difference is the first one, and training comes
 * first within a step. Then both are counted again up to it. */
void metrics_compare(const MetricsTable *a, const MetricsTable *b, MetricsComparison *out) {
    Records steps[2] = {records_of(a, true), records_of(b, true)},
            validations[2] = {records_of(a, false), records_of(b, false)};
    MetricsDifference d[2];
    size_t count[2] = {compare_records(&steps[0], &steps[1], INT64_MAX, &d[0]),
                       compare_records(&validations[0], &validations[1], INT64_MAX, &d[1])};
    *out = (MetricsComparison){.steps = count[0], .validations = count[1]};
    out->differs = d[0].figure || d[1].figure;
    if (!out->differs) return;
    /* Equal records after the first difference do not count: they would be a coincidence. */
    out->first = d[!d[0].figure || (d[1].figure && d[1].step < d[0].step)];
    out->steps = compare_records(&steps[0], &steps[1], out->first.step, &d[0]);
    out->validations = compare_records(&validations[0], &validations[1], out->first.step, &d[1]);
}
