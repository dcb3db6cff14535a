/* Differences between runs: in their configurations (by the option table), in their facts (from journal and
 * audit, and from the caller), and in their results (metrics, by bits).
 *
 * A row is made if two runs have different values. A run without a value, because its weft did not know it
 * yet or its file is missing, differs from none.
 *
 * Parts of a comparison, and the source of each:
 *
 *     configuration     config.yaml of each run, by the option table      add_configuration
 *     model and step,   journal entries that a process makes              add_journal
 *     machine, course   when it begins
 *     other facts       the caller                                        runs_add_fact
 *     splits            metrics.jsonl, first run against each other one   metrics_compare
 *     samples           audit logs, if both runs have them                compare_samples
 *
 * Everything is compared as text that weft itself has written, or by bits, without any tolerance: the reader
 * judges which differences matter. */
#include "observe/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "observe/audit.h"

/* ---- rows ---- */

/* An unknown fact is written as an empty text. */
static bool known(const char *value) { return value && *value; }

/* Comparing neighbours among the known values is enough: if each equals the previous one, all are equal. */
static bool differ(const char *const *values, size_t count) {
    const char *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!known(values[i])) continue;
        if (first && strcmp(first, values[i]) != 0) return true;
        first = values[i];
    }
    return false;
}

/* Copies the name and the values, which may be temporary. `part` and `effect` are kept as pointers, and must
 * outlive the rows. A row without a difference is not added: the tables show only differences. */
static void add_row(Runs *r, RunsRow row, const char *const *values) {
    if (!differ(values, r->count)) return;
    r->rows = mem_grow(r->rows, (r->row_count + 1) * sizeof *r->rows);
    row.name = mem_strdup(row.name);
    for (size_t i = 0; i < r->count; i++) row.values[i] = known(values[i]) ? mem_strdup(values[i]) : NULL;
    r->rows[r->row_count++] = row;
}

/* Facts always matter: only the option table can tell that no bit depends on a value. */
void runs_add_fact(Runs *r, const char *part, const char *name, const char *effect,
                   const char *const *values) {
    add_row(r, (RunsRow){.part = part, .name = (char *)(uintptr_t)name, .effect = effect, .matters = true},
            values);
}

/* ---- configuration ---- */

/* The configuration of one run, over this version's defaults, which apply to keys that the run's weft did not
 * have. */
typedef struct Settings {
    Config config;
    OptionSet set;
    bool known;
} Settings;

/* An unreadable configuration is excluded from the comparison; the report still shows its text. Errors are
 * dropped on purpose: a problem of the file concerns the run, not the comparison. */
static void read_settings(Settings *s, const ReportRun *run) {
    memset(s, 0, sizeof *s);
    s->known = run->config && config_set_open(&s->set, &s->config, NULL) == OK &&
               options_apply_written(&s->set, run->name, run->config, NULL) == OK;
}

/* Between two runs such a key changes the start, while for one run that continues it changes nothing. */
static const char *effect_of(const Option *o) {
    return o->effect == EFFECT_START ? "another beginning" : options_effect_name(o->effect);
}

/* Written by the option table, so that each value has one spelling, whatever its file had. */
static void add_key(Runs *r, const Settings *settings, const Option *o) {
    Text texts[RUNS_MAX] = {{0}};
    const char *values[RUNS_MAX] = {NULL};
    for (size_t i = 0; i < r->count; i++) {
        if (!settings[i].known) continue;
        options_write_value(&settings[i].set, o->key, &texts[i]);
        values[i] = texts[i].data;
    }
    RunsRow row = {.part = "configuration",
                   .name = (char *)(uintptr_t)o->key,
                   .effect = effect_of(o),
                   .matters = o->effect != EFFECT_NOTHING};
    add_row(r, row, values);
    for (size_t i = 0; i < r->count; i++) text_free(&texts[i]);
}

/* Keys that this version does not know, in one row: what each of them does is not known. */
static void add_unknown_keys(Runs *r, const Settings *settings) {
    const char *values[RUNS_MAX] = {NULL};
    for (size_t i = 0; i < r->count; i++) {
        const Text *unknown = &settings[i].set.unknown;
        if (settings[i].known) values[i] = unknown->length ? unknown->data : "none";
    }
    runs_add_fact(r, "configuration", "unknown keys", "perhaps another curve", values);
}

/* In the order of the option table, which readers know from config.yaml. A set that was not read is all zero,
 * and may be freed. */
static void add_configuration(Runs *r) {
    Settings *settings = mem_alloc_array(r->count, sizeof *settings);
    for (size_t i = 0; i < r->count; i++) read_settings(&settings[i], &r->runs[i]);
    for (const Option *o = config_options(); o->key; o++) add_key(r, settings, o);
    add_unknown_keys(r, settings);
    for (size_t i = 0; i < r->count; i++) options_free(&settings[i].set);
    free(settings);
}

/* ---- the journal ---- */

/* A run has one such entry per process; each records the machine and the mesh again. */
static bool begins(const JournalEntry *e) {
    return strcmp(e->event, journal_event_name(JOURNAL_STARTED)) == 0 ||
           strcmp(e->event, journal_event_name(JOURNAL_RESUMED)) == 0;
}

/* A number that each process records when it begins: "2", or "2, from step 51 on 4". A repeated value is
 * written once. `before` starts as NaN, which equals nothing, so the first value is always written. */
static void value_over_time(const JournalTable *t, const char *name, Text *out) {
    double before = (double)NAN;
    for (size_t i = 0; i < t->count; i++) {
        const JournalEntry *e = &t->entries[i];
        if (!begins(e)) continue;
        for (const JournalFact *f = e->facts; f->name; f++) {
            if (strcmp(f->name, name) != 0 || f->value == before) continue;
            if (out->length) text_printf(out, ", from step %lld on ", (long long)e->step + 1);
            text_printf(out, "%.15g", f->value);
            before = f->value;
        }
    }
}

/* From the newest process: the detail of its first entry is the name of the processor. */
static void processor(const JournalTable *t, Text *out) {
    for (size_t i = t->count; i-- > 0;) {
        if (!begins(&t->entries[i])) continue;
        text_puts(out, t->entries[i].detail);
        return;
    }
}

/* The changes with which a stopped run continued, in the journal's words. "none" only if there is a journal:
 * without one they are unknown, which is no difference. */
static void changes(const JournalTable *t, Text *out) {
    for (size_t i = 0; i < t->count; i++) {
        const JournalEntry *e = &t->entries[i];
        if (strcmp(e->event, journal_event_name(JOURNAL_CHANGED)) != 0) continue;
        text_printf(out, "%sfrom step %lld on: %s", out->length ? "; " : "", (long long)e->step + 1,
                    e->detail);
    }
    if (t->count > 0 && out->length == 0) text_puts(out, "none");
}

/* Rows are in the order of `names`: the first NUMBERS are facts of entries, the last two are texts. The
 * position determines the part: two on the model and its step, then the machine, and last the course of the
 * run. */
static void add_journal(Runs *r) {
    static const char *const names[] = {"parameters", "tokens_per_step", "ranks",
                                        "threads",    "processor",       "changes on the way"};
    enum { NUMBERS = 4, FACTS = sizeof names / sizeof *names };
    for (size_t n = 0; n < FACTS; n++) {
        Text texts[RUNS_MAX] = {{0}};
        const char *values[RUNS_MAX];
        for (size_t i = 0; i < r->count; i++) {
            const JournalTable *t = &r->runs[i].journal;
            if (n < NUMBERS)
                value_over_time(t, names[n], &texts[i]);
            else if (n == NUMBERS)
                processor(t, &texts[i]);
            else
                changes(t, &texts[i]);
            values[i] = texts[i].data;
        }
        runs_add_fact(r,
                      n < 2           ? "model and step"
                      : n < FACTS - 1 ? "machine"
                                      : "course",
                      names[n], NULL, values);
        for (size_t i = 0; i < r->count; i++) text_free(&texts[i]);
    }
}

/* ---- samples ---- */

/* False if there are no records; problems of existing ones go to err. No checkpoint is considered (saved 0):
 * whether the records reach the newest one concerns a single run (`weft audit`). Only audit_check's figures
 * are used, not its output. */
static bool read_samples(const char *dir, AuditFigures *figures, Error *err) {
    AuditRun run = {0};
    Text out = {0};
    ErrorCode code = audit_read(&run, dir, err);
    bool there = code != ERR_NOINPUT;
    if (code == OK) audit_check(&run, 0, figures, &out, err);
    text_free(&out);
    audit_free(&run);
    return there;
}

/* The first run is read once and compared with each other one. Inconsistent records are not compared: the
 * reason is reported instead of a difference, that of the other run before that of the first. */
static void compare_samples(Runs *r) {
    AuditFigures first = {0}, other;
    Error why = {.message = ""}, why_other;
    if (!read_samples(r->dirs[0], &first, &why)) return;
    for (size_t i = 1; i < r->count; i++) {
        other = (AuditFigures){0};
        why_other = (Error){.message = ""};
        r->splits[i].audited = read_samples(r->dirs[i], &other, &why_other);
        if (why_other.code == OK) why_other = why;
        if (why_other.code == OK) audit_compare(r->runs[0].name, &first, r->runs[i].name, &other, &why_other);
        if (r->splits[i].audited && why_other.code != OK)
            r->splits[i].samples = mem_strdup(why_other.message);
        audit_figures_free(&other);
    }
    audit_figures_free(&first);
}

/* ---- all of it ---- */

/* A report of a single run also comes here, and compares nothing. After a failure runs_free frees the loaded
 * runs; the others are zero. */
ErrorCode runs_open(Runs *r, const char *const *dirs, size_t count, Error *err) {
    CHECK(count >= 1 && count <= RUNS_MAX);
    *r = (Runs){.count = count};
    for (size_t i = 0; i < count; i++) {
        r->dirs[i] = dirs[i];
        TRY(report_run_load(&r->runs[i], dirs[i], err));
    }
    if (count == 1) return OK;
    for (size_t i = 0; i < count; i++)
        metrics_compare(&r->runs[0].metrics, &r->runs[i].metrics, &r->splits[i].metrics);
    add_configuration(r);
    add_journal(r);
    compare_samples(r);
    return OK;
}

/* Rows own copies of names and values (add_row); the caller owns `dirs`. */
void runs_free(Runs *r) {
    for (size_t i = 0; i < r->count; i++) {
        report_run_free(&r->runs[i]);
        free(r->splits[i].samples);
    }
    for (size_t i = 0; i < r->row_count; i++) {
        free(r->rows[i].name);
        for (size_t k = 0; k < r->count; k++) free(r->rows[i].values[k]);
    }
    free(r->rows);
    *r = (Runs){0};
}

/* Only results count: runs with different settings may have equal curves, which is worth knowing. */
bool runs_equal(const Runs *r) {
    for (size_t i = 1; i < r->count; i++)
        if (r->splits[i].metrics.differs) return false;
    return true;
}

/* Two runs without a common step would count as equal, since no figure differs: that is refused. */
ErrorCode runs_comparable(const Runs *r, Error *err) {
    for (size_t i = 1; i < r->count; i++) {
        const MetricsComparison *m = &r->splits[i].metrics;
        if (!m->differs && m->steps + m->validations == 0)
            return error_set(
                err, ERR_DATA,
                "%s and %s have a record of no step in common: nothing can be compared; give the "
                "runs one metrics.log_freq",
                r->dirs[0], r->dirs[i]);
    }
    return OK;
}

/* ---- figures ---- */

/* fmin ignores NaN: a non-finite validation is never the best. */
static double least_validation(const MetricsTable *t) {
    double least = (double)NAN;
    for (size_t i = 0; i < t->validation_count; i++) least = fmin(least, t->validations[i].loss);
    return least;
}

/* Of rank 0, which writes this file. 0: unknown. */
static double peak_memory(const MetricsTable *t) {
    int64_t peak = 0;
    for (size_t i = 0; i < t->step_count; i++)
        if (t->steps[i].memory_peak > peak) peak = t->steps[i].memory_peak;
    return peak > 0 ? (double)peak : (double)NAN;
}

/* The same rows for every run, so that tables can be put side by side: `out` and the formats below are in
 * this order. An unknown figure keeps an empty text. Beyond 9e15 a double cannot represent every integer, and
 * such a rate is meaningless. */
void runs_figures(const ReportRun *run, RunFigure out[RUN_FIGURES]) {
    const MetricsTable *t = &run->metrics;
    const StepMetrics *last = t->step_count ? &t->steps[t->step_count - 1] : NULL;
    const double none = (double)NAN;
    const RunFigure figures[RUN_FIGURES] = {
        {"steps", last ? (double)last->step : none, ""},
        {"tokens", last ? (double)last->total_tokens : none, ""},
        {"training loss", last ? last->loss : none, ""},
        {"validation loss", t->validation_count ? t->validations[t->validation_count - 1].loss : none, ""},
        {"best validation loss", least_validation(t), ""},
        {"tokens per second", report_median(t, offsetof(StepMetrics, tokens_per_second)), ""},
        {"seconds in steps", metrics_training_seconds(t), ""},
        {"peak memory", peak_memory(t), ""},
    };
    memcpy(out, figures, sizeof figures);
    for (int i = 0; i < RUN_FIGURES; i++) {
        RunFigure *f = &out[i];
        if (!isfinite(f->value)) continue;
        if (i < 2 || (i == 5 && f->value < 9e15))
            text_count((int64_t)llround(f->value), f->text);
        else if (i < RUN_FIGURES - 1)
            snprintf(f->text, sizeof f->text, i < 5 ? "%.5f" : "%.1f", f->value);
        else
            text_bytes(f->value, f->text);
    }
}
