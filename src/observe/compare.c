/* Where runs differ: in what they were told (configuration, by the option table), in what they found (facts
 * of journal and audit, and those that the caller knows), and in what came of it (metrics, by bits).
 *
 * A row is made where two runs say different things. A run that does not say a thing, because its weft did
 * not know it yet or its file is not there, differs from nobody.
 *
 * Parts of a comparison, and where each comes from:
 *
 *     configuration     config.yaml of each run, by the option table      add_configuration
 *     model and step,   entries of the journal that a process makes       add_journal
 *     machine, course   when it begins
 *     other facts       whoever calls                                     runs_add_fact
 *     splits            metrics.jsonl, first run against each other one   metrics_compare
 *     samples           audit logs, where both runs have them             compare_samples
 *
 * Everything is compared as text that weft itself has written, or by bits. There is no tolerance anywhere:
 * how much of a difference is too much is for the reader to say. */
#include "observe/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "observe/audit.h"

/* ---- rows ---- */

/* An empty text is what a fact is written as when its run does not tell it. */
static bool known(const char *value) { return value && *value; }

/* Neighbours among the known values suffice: if each is like the one before it, all are alike. */
static bool differ(const char *const *values, size_t count) {
    const char *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!known(values[i])) continue;
        if (first && strcmp(first, values[i]) != 0) return true;
        first = values[i];
    }
    return false;
}

/* Takes copies of the name and the values, which may be the caller's scratch. `part` and `effect` are kept as
 * pointers, and must outlive the rows. A row on which nobody differs is not made: the tables show differences
 * only. */
static void add_row(Runs *r, RunsRow row, const char *const *values) {
    if (!differ(values, r->count)) return;
    r->rows = mem_grow(r->rows, (r->row_count + 1) * sizeof *r->rows);
    row.name = mem_strdup(row.name);
    for (size_t i = 0; i < r->count; i++) row.values[i] = known(values[i]) ? mem_strdup(values[i]) : NULL;
    r->rows[r->row_count++] = row;
}

/* A fact always matters: only the option table knows of something that no bit depends on. */
void runs_add_fact(Runs *r, const char *part, const char *name, const char *effect,
                   const char *const *values) {
    add_row(r, (RunsRow){.part = part, .name = (char *)(uintptr_t)name, .effect = effect, .matters = true},
            values);
}

/* ---- configuration ---- */

/* The configuration of one run, over the defaults of this version, which a key has that the run's weft did
 * not know. */
typedef struct Settings {
    Config config;
    OptionSet set;
    bool known;
} Settings;

/* A configuration that cannot be read takes no part; the report shows its text all the same. Errors are
 * dropped on purpose: what is wrong with the file is a matter of the run, not of the comparison. */
static void read_settings(Settings *s, const ReportRun *run) {
    memset(s, 0, sizeof *s);
    s->known = run->config && options_init(&s->set, config_options(), &s->config, NULL) == OK &&
               options_apply_written(&s->set, run->name, run->config, NULL) == OK;
}

/* Two runs have two beginnings, where one that goes on has none. */
static const char *effect_of(const Option *o) {
    return o->effect == EFFECT_START ? "another beginning" : options_effect_name(o->effect);
}

/* Written out by the option table, so that one value has one spelling, whatever stood in the file. */
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

/* In the order of the option table, which is what a reader knows from config.yaml. A set that was not read is
 * all zero, and may be freed. */
static void add_configuration(Runs *r) {
    Settings *settings = mem_alloc_array(r->count, sizeof *settings);
    for (size_t i = 0; i < r->count; i++) read_settings(&settings[i], &r->runs[i]);
    for (const Option *o = config_options(); o->key; o++) add_key(r, settings, o);
    for (size_t i = 0; i < r->count; i++) options_free(&settings[i].set);
    free(settings);
}

/* ---- the journal ---- */

/* A run has as many such entries as it had processes; each tells the machine and the mesh anew. */
static bool begins(const JournalEntry *e) {
    return strcmp(e->event, journal_event_name(JOURNAL_STARTED)) == 0 ||
           strcmp(e->event, journal_event_name(JOURNAL_RESUMED)) == 0;
}

/* Of a number that a process tells when it begins: "2", or "2, from step 51 on 4". What stays is said once.
 * `before` begins as NaN, which equals nothing, so the first value is always written. */
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

/* Of the newest process: the detail of its beginning is the name of the processor. */
static void processor(const JournalTable *t, Text *out) {
    for (size_t i = t->count; i-- > 0;) {
        if (!begins(&t->entries[i])) continue;
        text_puts(out, t->entries[i].detail);
        return;
    }
}

/* What a run that was stopped went on with: the journal's own words. "none" only where there is a journal:
 * without one it is not known, which is no difference. */
static void changes(const JournalTable *t, Text *out) {
    for (size_t i = 0; i < t->count; i++) {
        const JournalEntry *e = &t->entries[i];
        if (strcmp(e->event, journal_event_name(JOURNAL_CHANGED)) != 0) continue;
        text_printf(out, "%sfrom step %lld on: %s", out->length ? "; " : "", (long long)e->step + 1,
                    e->detail);
    }
    if (t->count > 0 && out->length == 0) text_puts(out, "none");
}

/* Rows come in the order of `names`: the first NUMBERS are facts of entries, the two behind them are texts.
 * What they belong to follows from the place: two on the model and its step, the machine, and last the course
 * of the run. */
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

/* False where there are no records; what is wrong with those that are there goes to err. No checkpoint is
 * asked for (saved 0): whether the records reach the newest one is a question about one run (`weft audit`),
 * and not about two. What audit_check prints is not wanted, its figures are. */
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

/* The first run is read once and held against each other one. Records that contradict themselves are not
 * compared: why they do is told in place of a difference, that of the other run before that of the first. */
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

/* A report of one run comes the same way and compares nothing. After a failure the runs that were loaded stay
 * for runs_free; the others are zero. */
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

/* Names and values of rows are copies (add_row); `dirs` are the caller's. */
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

/* By what came of it alone: runs with other settings may have equal curves, and that is worth knowing. */
bool runs_equal(const Runs *r) {
    for (size_t i = 1; i < r->count; i++)
        if (r->splits[i].metrics.differs) return false;
    return true;
}

/* Two runs without a step in common would count as equal, having no figure that differs: that is refused. */
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

/* fmin passes over NaN: a validation that was not finite is never the best. */
static double least_validation(const MetricsTable *t) {
    double least = (double)NAN;
    for (size_t i = 0; i < t->validation_count; i++) least = fmin(least, t->validations[i].loss);
    return least;
}

/* Of rank 0, which writes this file. 0: not known. */
static double peak_memory(const MetricsTable *t) {
    int64_t peak = 0;
    for (size_t i = 0; i < t->step_count; i++)
        if (t->steps[i].memory_peak > peak) peak = t->steps[i].memory_peak;
    return peak > 0 ? (double)peak : (double)NAN;
}

/* The same rows for every run, so that tables can be laid side by side: `out` is indexed by the order here,
 * and so are the formats below. A figure that a run does not have keeps an empty text. 9e15: beyond it a
 * double no longer holds every whole number, and a rate like that is no rate. */
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
