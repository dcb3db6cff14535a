/* The comparison of runs in a terminal, and as JSON. Names and values come from untrusted files: everything
 * that a terminal would interpret is escaped.
 *
 * The output, from the top:
 *
 *     a  runs/base                      the letter of each run, in its colour
 *     b  runs/other
 *     loss                              the curves in one drawing (plot.c)
 *                             a    b    letters again, as the head of the columns
 *     loss at step 10      ...          the same curves as numbers, at SAMPLED_STEPS steps
 *     steps, tokens, ...                figures of the whole runs (runs_figures)
 *     configuration           a    b    rows that differ, part by part, with the effect of each
 *     a, b: the first figure ...        where each run leaves the first one
 *
 * The JSON form has the same parts without the drawing. It is made from the same Runs, not from the text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "observe/compare.h"
#include "observe/plot.h"

/* In characters, except for the last two. NAME fits "tokens per second" and most keys; a column fits at least
 * a loss of six decimals, and at most a short path. Eight steps show the shape of a curve in a few lines. */
enum { NAME = 24, LEAST_COLUMN = 10, MOST_COLUMN = 30, CHART_ROWS = 14, SAMPLED_STEPS = 8 };

/* ---- a table: a name, a column for each run, a note ---- */

typedef struct Columns {
    size_t count;
    int width;
} Columns;

/* The width besides the name and a note of about 20 characters is divided evenly; 2 is the gap before each
 * column. If that is too little, lines become wider than the terminal, and nothing is omitted. */
static Columns columns_for(const Runs *r, int width) {
    int each = (width - NAME - 20) / (int)r->count - 2;
    return (Columns){r->count, each < LEAST_COLUMN ? LEAST_COLUMN : each > MOST_COLUMN ? MOST_COLUMN : each};
}

/* Columns of UTF-8 text, one per character. */
static int columns_of(const char *text) {
    int columns = 0;
    for (; *text; text++) columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns;
}

/* Escaped, truncated, right-aligned in its column. Padded by columns and not by bytes (printf's width), which
 * differ for non-ASCII values. A missing value is a dash. */
static void add_value(Text *out, const Columns *c, const char *value) {
    char shown[4 * MOST_COLUMN];
    error_escape(shown, (unsigned long)c->width + 1, value ? value : "-", strlen(value ? value : "-"));
    text_printf(out, "  %*s%s", c->width - columns_of(shown), "", shown);
}

/* A name that is too long moves its row to the right: better than a truncated key. */
static void add_name(Text *out, const char *name) {
    char shown[160];
    error_escape(shown, sizeof shown, name, strlen(name));
    text_printf(out, "%s%*s", shown, NAME > columns_of(shown) ? NAME - columns_of(shown) : 1, "");
}

/* The head of a table, each letter above the right end of its column, where the values end. Colour takes
 * bytes but no columns, so the padding is computed without the letter. */
static void add_letters(Text *out, const Columns *c, const char *title, bool colour) {
    text_printf(out, "\n%-*s", NAME, title);
    for (size_t i = 0; i < c->count; i++) {
        text_printf(out, "  %*s", c->width - 1, "");
        plot_key(out, i, colour);
    }
    text_puts(out, "\n");
}

/* ---- curves ---- */

/* x and y of a run's loss; the caller frees both. One element more than there are steps, since an empty
 * allocation may be NULL; the plot skips non-finite values. */
static PlotCurve loss_curve(const MetricsTable *t) {
    double *x = mem_alloc_array(t->step_count + 1, sizeof *x),
           *y = mem_alloc_array(t->step_count + 1, sizeof *y);
    for (size_t i = 0; i < t->step_count; i++) {
        x[i] = (double)t->steps[i].step;
        y[i] = t->steps[i].loss;
    }
    return (PlotCurve){x, y, t->step_count};
}

/* The curves point to const, since the plot changes nothing; this function owns the memory. */
static void draw(const Runs *r, int width, bool unicode, bool colour, Text *out) {
    PlotCurve curves[RUNS_MAX];
    for (size_t i = 0; i < r->count; i++) curves[i] = loss_curve(&r->runs[i].metrics);
    text_puts(out, "\nloss\n");
    plot_curves(out, curves, r->count, width, CHART_ROWS, unicode, colour);
    for (size_t i = 0; i < r->count; i++) {
        free((double *)(uintptr_t)curves[i].x);
        free((double *)(uintptr_t)curves[i].y);
    }
}

/* NULL if the run has no record of that step: runs may log different steps. */
static const StepMetrics *find_step(const MetricsTable *t, int64_t step) {
    for (size_t i = 0; i < t->step_count; i++)
        if (t->steps[i].step == step) return &t->steps[i];
    return NULL;
}

/* The curves as numbers, at some steps of the first run including its last. Evenly spaced among the logged
 * steps, not among all, so that the first run has a figure in every row. */
static void add_losses(const Runs *r, const Columns *c, Text *out) {
    const MetricsTable *t = &r->runs[0].metrics;
    size_t rows = t->step_count < SAMPLED_STEPS ? t->step_count : SAMPLED_STEPS;
    for (size_t k = 0; k < rows; k++) {
        char name[48], value[32];
        int64_t step = t->steps[rows > 1 ? k * (t->step_count - 1) / (rows - 1) : 0].step;
        snprintf(name, sizeof name, "loss at step %s", text_count(step, value));
        add_name(out, name);
        for (size_t i = 0; i < r->count; i++) {
            const StepMetrics *m = find_step(&r->runs[i].metrics, step);
            snprintf(value, sizeof value, "%.6f", m ? m->loss : 0);
            add_value(out, c, m ? isfinite(m->loss) ? value : "not finite" : NULL);
        }
        text_puts(out, "\n");
    }
}

/* The names are taken from the first run; they are the same for all. */
static void add_figures(const Runs *r, const Columns *c, Text *out) {
    RunFigure figures[RUNS_MAX][RUN_FIGURES];
    for (size_t i = 0; i < r->count; i++) runs_figures(&r->runs[i], figures[i]);
    for (int f = 0; f < RUN_FIGURES; f++) {
        add_name(out, figures[0][f].name);
        for (size_t i = 0; i < r->count; i++)
            add_value(out, c, figures[i][f].text[0] ? figures[i][f].text : NULL);
        text_puts(out, "\n");
    }
}

/* ---- differences ---- */

/* On one line and only by name: keys that no bit depends on (paths, logging frequencies) are seldom of
 * interest, but should not be silently omitted. The gap's second character tells whether one was printed. */
static void add_idle(const Runs *r, Text *out) {
    const char *gap = "Also, and no bit depends on it: ";
    for (size_t i = 0; i < r->row_count; i++) {
        if (r->rows[i].matters) continue;
        text_printf(out, "%s%s", gap, r->rows[i].name);
        gap = ", ";
    }
    if (gap[1] == ' ') text_puts(out, "\n");
}

/* Rows of one part are adjacent in r->rows; a heading is due where the part changes. If nothing differs, that
 * is printed, since an empty table could also be a failure. */
static void add_rows(const Runs *r, const Columns *c, bool colour, Text *out) {
    const char *part = "";
    for (size_t i = 0; i < r->row_count; i++) {
        const RunsRow *row = &r->rows[i];
        if (!row->matters) continue;
        if (strcmp(row->part, part) != 0) add_letters(out, c, part = row->part, colour);
        add_name(out, row->name);
        for (size_t k = 0; k < r->count; k++) add_value(out, c, row->values[k]);
        text_printf(out, "%s%s\n", row->effect ? "  " : "", row->effect ? row->effect : "");
    }
    text_puts(out,
              *part ? "\n" : "\nNothing that was compared of configuration, data and machine differs.\n");
    add_idle(r, out);
}

/* Silent if a run has no audit log: claiming that the samples are equal would be a guess. */
static void add_samples(const RunsSplit *s, Text *out) {
    char why[400];
    if (!s->audited) return;
    if (!s->samples) {
        text_puts(out, "   samples: the same, with the same tokens, in each step\n");
        return;
    }
    error_escape(why, sizeof why, s->samples, strlen(s->samples));
    text_printf(out, "   samples: %s\n", why);
}

static void add_counts(const MetricsComparison *m, Text *out) {
    text_printf(out, "%zu logged step%s and %zu validation%s", m->steps, m->steps == 1 ? "" : "s",
                m->validations, m->validations == 1 ? "" : "s");
}

/* All digits: the difference may be in the last one. Runs that differ in a last bit print the same to six
 * digits, so both values get as many digits as distinguish them. */
static void add_split(const Runs *r, size_t i, bool colour, Text *out) {
    const MetricsComparison *m = &r->splits[i].metrics;
    char a[32], b[32];
    plot_key(out, 0, colour);
    text_puts(out, ", ");
    plot_key(out, i, colour);
    if (m->differs) {
        text_printf(out, ": the first figure that differs is %s of step %lld%s: %s, %s\n   before it: ",
                    m->first.figure, (long long)m->first.step,
                    strcmp(m->first.kind, "train") == 0 ? "" : " (validation)",
                    text_double(m->first.values[0], a), text_double(m->first.values[1], b));
        add_counts(m, out);
        text_puts(out, " of both, the same\n");
    } else {
        text_puts(out, ": no figure differs in ");
        add_counts(m, out);
        text_puts(out, " of both\n");
    }
    add_samples(&r->splits[i], out);
}

/* The legend of letters and colours comes before the drawing. Beyond 100 columns a curve gets no clearer,
 * only its table does. The first run has no split: the others are compared with it. */
void runs_describe(const Runs *r, int width, bool unicode, bool colour, Text *out) {
    Columns c = columns_for(r, width);
    for (size_t i = 0; i < r->count; i++) {
        char shown[400];
        plot_key(out, i, colour);
        text_printf(out, "  %s\n", error_escape(shown, sizeof shown, r->dirs[i], strlen(r->dirs[i])));
    }
    if (!colour) text_puts(out, "*  where they meet\n");
    draw(r, width < 100 ? width : 100, unicode, colour, out);
    add_letters(out, &c, "", colour);
    add_losses(r, &c, out);
    add_figures(r, &c, out);
    add_rows(r, &c, colour, out);
    text_puts(out, "\n");
    for (size_t i = 1; i < r->count; i++) add_split(r, i, colour, out);
}

/* ---- JSON ---- */

/* "training loss" -> "training_loss". JSON has the raw numbers; a missing value is null. */
static void put_figure(JsonWriter *w, const RunFigure *f) {
    char key[40];
    snprintf(key, sizeof key, "%s", f->name);
    for (char *at = key; *at; at++)
        if (*at == ' ') *at = '_';
    json_put_double(w, key, f->value);
}

/* As bytes: names and values come from other programs' files, and may be invalid UTF-8, which json_bytes
 * repairs. */
static void put_text(JsonWriter *w, const char *key, const char *value) {
    if (value)
        json_put_bytes(w, key, value, strlen(value));
    else
        json_put_null(w, key);
}

static void write_runs(const Runs *r, JsonWriter *w) {
    json_key(w, "runs");
    json_begin_array(w);
    for (size_t i = 0; i < r->count; i++) {
        RunFigure figures[RUN_FIGURES];
        json_begin_object(w);
        put_text(w, "run", r->dirs[i]);
        runs_figures(&r->runs[i], figures);
        for (int f = 0; f < RUN_FIGURES; f++) put_figure(w, &figures[f]);
        json_end_object(w);
    }
    json_end_array(w);
}

/* All rows in one list, including those that do not matter: a program can filter by "matters". "values" are
 * in the order of "runs". */
static void write_rows(const Runs *r, JsonWriter *w) {
    json_key(w, "different");
    json_begin_array(w);
    for (size_t i = 0; i < r->row_count; i++) {
        const RunsRow *row = &r->rows[i];
        json_begin_object(w);
        put_text(w, "part", row->part);
        put_text(w, "name", row->name);
        put_text(w, "effect", row->effect);
        json_put_bool(w, "matters", row->matters);
        json_key(w, "values");
        json_begin_array(w);
        for (size_t k = 0; k < r->count; k++) {
            if (row->values[k])
                json_bytes(w, row->values[k], strlen(row->values[k]));
            else
                json_null(w);
        }
        json_end_array(w);
        json_end_object(w);
    }
    json_end_array(w);
}

/* null if nothing differs, so that the member always exists. */
static void write_first(const MetricsComparison *m, JsonWriter *w) {
    json_key(w, "first");
    if (!m->differs) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    json_put_int(w, "step", m->first.step);
    json_put_string(w, "kind", m->first.kind);
    json_put_string(w, "figure", m->first.figure);
    json_key(w, "values");
    json_begin_array(w);
    for (int i = 0; i < 2; i++) json_double(w, m->first.values[i]);
    json_end_array(w);
    json_end_object(w);
}

/* One entry for each run but the first, in their order. */
static void write_splits(const Runs *r, JsonWriter *w) {
    json_key(w, "compared");
    json_begin_array(w);
    for (size_t i = 1; i < r->count; i++) {
        const RunsSplit *s = &r->splits[i];
        json_begin_object(w);
        put_text(w, "run", r->dirs[i]);
        json_put_bool(w, "equal", !s->metrics.differs);
        json_put_int(w, "same_steps", (int64_t)s->metrics.steps);
        json_put_int(w, "same_validations", (int64_t)s->metrics.validations);
        write_first(&s->metrics, w);
        json_put_bool(w, "audited", s->audited);
        put_text(w, "samples", s->samples);
        json_end_object(w);
    }
    json_end_array(w);
}

/* One line, for tools that read line by line. */
void runs_write_json(const Runs *r, Text *out) {
    JsonWriter w;
    json_start(&w, out, 0);
    json_begin_object(&w);
    json_put_bool(&w, "equal", runs_equal(r));
    write_runs(r, &w);
    write_rows(r, &w);
    write_splits(r, &w);
    json_end_object(&w);
    text_add(out, "\n", 1);
}
