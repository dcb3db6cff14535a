/* Curves of one run, or of several in common charts: a chart has one or two series of each. The numbers for
 * the read-out are thinned out: their size does not grow with the run.
 *
 * A page's charts, in this order; style and script identify a chart by its `id`:
 *
 *     loss      full width; training and validation, of one run its named sets too, linear or logarithmic
 *     norm      gradient norm before clipping, linear or logarithmic
 *     lr        learning rate                  rate    tokens per second
 *     memory    GiB; resident and peak, of several runs the peak alone
 *     zloss balance imbalance noise   if a run has recorded them
 *     tasks texts   of one run that has any: accuracy, or bits per byte, of each
 *     nameda namedb ...   of several runs: a chart for each named set and each task
 *
 * All share one range of steps, that of the longest run, so that a position means the same step on all
 * charts. */
#include "observe/report_charts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "observe/chart.h"

#define GIB (1024.0 * 1024 * 1024)
/* The smaller charts are 458 pixels wide inside their margins: a pointer cannot select many more
 * positions. */
#define READOUT_BUCKETS 400

/* The drawn members of a step. `key` names the numbers in the data for the read-out. */
typedef enum Column {
    STEP,
    LOSS,
    NORM,
    LR,
    RATE,
    RESIDENT,
    PEAK,
    Z_LOSS,
    BALANCE,
    IMBALANCE,
    NOISE,
    COLUMNS,
    OPTIONAL = Z_LOSS /* from here on those that only some runs record */
} Column;
#define OF(name) offsetof(StepMetrics, name)
static const struct {
    const char *key;
    size_t offset;
    bool whole; /* an int64_t */
    double unit;
} columns[COLUMNS] = {
    [STEP] = {"step", OF(step), true, 1},
    [LOSS] = {"loss", OF(loss), false, 1},
    [NORM] = {"norm", OF(grad_norm), false, 1},
    [LR] = {"lr", OF(lr), false, 1},
    [RATE] = {"rate", OF(tokens_per_second), false, 1},
    [RESIDENT] = {"resident", OF(memory_resident), true, GIB},
    [PEAK] = {"peak", OF(memory_peak), true, GIB},
    [Z_LOSS] = {"zloss", OF(z_loss), false, 1},
    [BALANCE] = {"balance", OF(balance_loss), false, 1},
    [IMBALANCE] = {"imbalance", OF(expert_imbalance), false, 1},
    [NOISE] = {"noise", OF(noise_scale), false, 1},
};

/* Members of a run as arrays; NaN for steps logged without the member. free_columns frees them. */
typedef struct Columns {
    size_t count, validations;
    double *of[COLUMNS], *validation_step, *validation_loss;
} Columns;

/* At least one element, since a run may not have logged anything yet. */
static double *new_column(size_t count) { return mem_alloc_array(count + 1, sizeof(double)); }

static Columns make_columns(const MetricsTable *t) {
    size_t v = t->validation_count;
    Columns c = {t->step_count, v, {NULL}, new_column(v), new_column(v)};
    for (Column k = 0; k < COLUMNS; k++) {
        c.of[k] = new_column(c.count);
        for (size_t i = 0; i < c.count; i++)
            c.of[k][i] = metrics_number(&t->steps[i], columns[k].offset, columns[k].whole) / columns[k].unit;
    }
    for (size_t i = 0; i < v; i++) {
        c.validation_step[i] = (double)t->validations[i].step;
        c.validation_loss[i] = t->validations[i].loss;
    }
    return c;
}

static void free_columns(Columns *c) {
    for (Column k = 0; k < COLUMNS; k++) free(c->of[k]);
    free(c->validation_step);
    free(c->validation_loss);
}

static bool any_finite(const Columns *c, Column column) {
    for (size_t i = 0; i < c->count; i++)
        if (isfinite(c->of[column][i])) return true;
    return false;
}

/* ---- charts ---- */

/* Skipped steps and spikes, in the order of steps. `marks` has space for one per step and owns the labels,
 * which free_marks frees. A step that was skipped as non-finite is not also marked as a spike. */
static size_t make_marks(const MetricsTable *t, ChartMark *marks) {
    size_t n = 0;
    for (size_t i = 0; i < t->step_count; i++) {
        const StepMetrics *m = &t->steps[i];
        if (!m->skipped && !m->spike) continue;
        Text label = {0};
        text_printf(&label, "step %lld: %s", (long long)m->step,
                    m->skipped ? "skipped, not finite" : "spike");
        marks[n++] = (ChartMark){(double)m->step, m->skipped ? "skipped" : "spike", label.data};
    }
    return n;
}

static void free_marks(ChartMark *marks, size_t count) {
    for (size_t i = 0; i < count; i++) free((char *)(uintptr_t)marks[i].label);
    free(marks);
}

/* A logarithmic axis is used if extremes would compress all other values: a maximum above eight times the
 * median, like a gradient norm of hundreds in the first steps and about one later. */
static bool wants_log(const MetricsTable *t, const Columns *c, Column column) {
    double high = 0, typical = report_median(t, columns[column].offset);
    for (size_t i = 0; i < c->count; i++) {
        if (isfinite(c->of[column][i])) high = fmax(high, c->of[column][i]);
    }
    return typical > 0 && high > 8 * typical;
}

/* Shared by the charts of a page. */
typedef struct Page {
    const Runs *runs;
    Columns columns[RUNS_MAX];
    Chart base; /* properties common to all charts */
} Page;

/* Classes of the style sheet, in the order of the runs: a run has the same colour on the whole page. */
static const char *const styles[RUNS_MAX] = {"s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"};

/* A chart with a curve per run; with a single run, the curve is named after the figure. The chart is passed
 * by value: callers continue with their own. */
static void write_chart(Text *out, const Page *p, Chart chart, const char *name, Column column, bool smooth) {
    ChartSeries series[RUNS_MAX];
    size_t n = p->runs->count;
    for (size_t i = 0; i < n; i++) {
        const Columns *c = &p->columns[i];
        series[i] = (ChartSeries){n > 1 ? p->runs->runs[i].name : name,
                                  styles[i],
                                  c->of[STEP],
                                  c->of[column],
                                  c->count,
                                  smooth,
                                  false};
    }
    chart.series = series;
    chart.series_count = n;
    chart_write(out, &chart);
}

/* Curves of named things, in the order in which they occur: for one run, with the remaining colours. There
 * are at most NAMED of them; of further ones only the names are known, and listed. All records are in the
 * files. */
enum { NAMED = RUNS_MAX - 2, KNOWN = 256 };
typedef struct NamedCurve {
    const char *name;
    size_t count;
    double *x, *y;
} NamedCurve;

/* Appends to the curve of this name, which may be new, with space for `capacity` points. */
static void add_named(NamedCurve *curves, size_t capacity, const char *name, double x, double y) {
    size_t i = 0;
    while (i < KNOWN && curves[i].name && strcmp(curves[i].name, name) != 0) i++;
    if (i == KNOWN) return;
    NamedCurve *c = &curves[i];
    bool drawn = i < NAMED;
    if (!c->name)
        *c = (NamedCurve){name, 0, drawn ? new_column(capacity) : NULL, drawn ? new_column(capacity) : NULL};
    if (!drawn) return;
    c->x[c->count] = x;
    c->y[c->count++] = y;
}

static void free_named(NamedCurve *curves) {
    for (size_t i = 0; i < NAMED; i++) {
        free(curves[i].x);
        free(curves[i].y);
    }
}

/* Dots for few points, whose positions matter; otherwise a smoothed line. */
static ChartSeries named_one(const NamedCurve *c, const char *name, const char *style, bool dots) {
    return (ChartSeries){name, style, c->x, c->y, c->count, !dots, dots};
}

/* Returns the new number of series. */
static size_t named_series(const NamedCurve *curves, size_t first, bool dots, ChartSeries *series) {
    size_t count = first;
    for (size_t i = 0; i < NAMED && curves[i].name; i++, count++)
        series[count] = named_one(&curves[i], curves[i].name, styles[(i + 2) % RUNS_MAX], dots);
    return count;
}

/* A chart that omits something says so. */
static void write_rest(Text *out, const NamedCurve *curves, const char *run, const char *things) {
    size_t count = 0;
    while (count < KNOWN && curves[count].name) count++;
    if (count <= NAMED) return;
    text_puts(out, "<p class=\"note\">");
    html_puts(out, run);
    text_printf(out, "%sof %zu %s %zu are not drawn: ", *run ? ": " : "", count, things, count - NAMED);
    for (size_t i = NAMED; i < count; i++) {
        if (i > NAMED) text_puts(out, ", ");
        html_puts(out, curves[i].name);
    }
    text_puts(out, "</p>\n");
}

/* Collects one kind of named things of a run. */
typedef void Collect(const MetricsTable *, NamedCurve *);

static void collect_sets(const MetricsTable *t, NamedCurve *curves) {
    for (size_t i = 0; i < t->set_count; i++)
        add_named(curves, t->set_count, t->sets[i].name, (double)t->sets[i].step, t->sets[i].loss);
}

static void collect_sources(const MetricsTable *t, NamedCurve *curves) {
    for (size_t i = 0; i < t->source_count; i++)
        add_named(curves, t->source_count, t->sources[i].name, (double)t->sources[i].step,
                  t->sources[i].loss);
}

static void collect_tasks(const MetricsTable *t, bool share, NamedCurve *curves) {
    for (size_t i = 0; i < t->task_count; i++) {
        TaskFigure f = metrics_task_figure(&t->tasks[i]);
        if (f.name && f.share == share)
            add_named(curves, t->task_count, t->tasks[i].name, (double)t->tasks[i].step,
                      share ? 100 * f.value : f.value);
    }
}

static void collect_shares(const MetricsTable *t, NamedCurve *curves) { collect_tasks(t, true, curves); }
static void collect_bits(const MetricsTable *t, NamedCurve *curves) { collect_tasks(t, false, curves); }

/* With one run, validation has a colour of its own; with several it has its run's colour, and dots. All
 * training curves come before all validations, so that dots lie above lines. Validations of several runs have
 * no name, since the legend would name each run twice. */
static void write_loss_chart(Text *out, const Page *p, Chart chart) {
    ChartSeries series[2 * RUNS_MAX];
    NamedCurve sets[KNOWN] = {{0}};
    size_t n = p->runs->count, count = 0;
    for (size_t i = 0; i < n; i++)
        series[count++] = (ChartSeries){n > 1 ? p->runs->runs[i].name : "training",
                                        styles[i],
                                        p->columns[i].of[STEP],
                                        p->columns[i].of[LOSS],
                                        p->columns[i].count,
                                        true,
                                        false};
    for (size_t i = 0; i < n; i++) {
        const Columns *c = &p->columns[i];
        if (c->validations)
            series[count++] = (ChartSeries){n > 1 ? NULL : "validation",
                                            n > 1 ? styles[i] : "s2",
                                            c->validation_step,
                                            c->validation_loss,
                                            c->validations,
                                            false,
                                            true};
    }
    if (count > n) chart.dots = n > 1 ? "with dots: validation" : "a dot: one validation";
    if (n == 1) {
        collect_sets(&p->runs->runs[0].metrics, sets);
        count = named_series(sets, count, true, series);
    }
    chart.id = "loss";
    chart.title = "Loss";
    chart.unit = "nats per token";
    chart.series = series;
    chart.series_count = count;
    chart.width = 1080;
    chart.height = 360;
    chart_write(out, &chart);
    write_rest(out, sets, "", "validation sets");
    free_named(sets);
}

/* Marks only on these two charts, which show the events; with several runs the marks would be too many, and
 * could not be attributed. The norm starts on the logarithmic axis if any of the runs needs it, since they
 * share it. */
static void write_step_charts(Text *out, const Page *p) {
    const MetricsTable *t = &p->runs->runs[0].metrics;
    ChartMark *marks = mem_alloc_array(t->step_count + 1, sizeof *marks);
    size_t mark_count = p->runs->count == 1 ? make_marks(t, marks) : 0;
    Chart chart = p->base;
    chart.marks = marks;
    chart.mark_count = mark_count;
    chart.offer_log = true;
    write_loss_chart(out, p, chart);
    chart.id = "norm";
    chart.title = "Gradient norm";
    chart.unit = "before clipping";
    for (size_t i = 0; i < p->runs->count; i++)
        chart.start_log |= wants_log(&p->runs->runs[i].metrics, &p->columns[i], NORM);
    write_chart(out, p, chart, "gradient norm", NORM, true);
    free_marks(marks, mark_count);
}

/* Two series for a single run; for several only the peaks, to avoid clutter. */
static void write_memory_chart(Text *out, const Page *p, Chart chart) {
    const Columns *c = &p->columns[0];
    const ChartSeries both[] = {
        {"resident", "s1", c->of[STEP], c->of[RESIDENT], c->count, false, false},
        {"peak", "s2", c->of[STEP], c->of[PEAK], c->count, false, false},
    };
    chart.id = "memory";
    chart.title = "Memory";
    chart.unit = "GiB";
    if (p->runs->count > 1) {
        write_chart(out, p, chart, "peak", PEAK, false);
        return;
    }
    chart.series = both;
    chart.series_count = 2;
    chart_write(out, &chart);
}

/* From zero: a rate that falls from 400 to 390 should not look like a cliff. */
static void write_other_charts(Text *out, const Page *p) {
    Chart chart = p->base;
    chart.from_zero = true;
    chart.id = "lr";
    chart.title = "Learning rate";
    write_chart(out, p, chart, "learning rate", LR, false);
    chart.id = "rate";
    chart.title = "Throughput";
    chart.unit = "tokens per second";
    write_chart(out, p, chart, "throughput", RATE, true);
    write_memory_chart(out, p, chart);
}

/* Figures that no run has recorded have no chart. */
static void write_optional_charts(Text *out, const Page *p) {
    static const struct {
        Column column;
        const char *title, *unit;
    } charts[] = {
        {Z_LOSS, "z-loss", "added to the loss"},
        {BALANCE, "Balance loss", "of experts, added to the loss"},
        {IMBALANCE, "Experts", "tokens of one, largest / mean, worst layer"},
        {NOISE, "Gradient noise scale", "targets"},
    };
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++) {
        Chart chart = p->base;
        bool any = false;
        for (size_t r = 0; r < p->runs->count; r++) any |= any_finite(&p->columns[r], charts[i].column);
        if (!any) continue;
        chart.id = columns[charts[i].column].key;
        chart.title = charts[i].title;
        chart.unit = charts[i].unit;
        write_chart(out, p, chart, charts[i].title, charts[i].column, true);
    }
}

/* A kind of named things with separate figures. */
typedef struct NamedKind {
    Collect *collect;
    const char *id, *title, *unit; /* title: for several on one chart */
    const char *things;
    bool dots;
} NamedKind;
static const NamedKind named_sources = {
    collect_sources, "sources", "Loss by source", "training, nats per token", "sources", false};
static const NamedKind named_sets = {collect_sets,      "sets", "", "validation set, nats per token",
                                     "validation sets", true};
static const NamedKind named_tasks = {collect_shares, "tasks", "Tasks", "percent right", "tasks", true};
static const NamedKind named_texts = {collect_bits, "texts", "Tasks", "bits per byte", "tasks", true};

/* For one run: a curve per name. Nothing if nothing has such a figure. */
static void write_one_chart(Text *out, const Page *p, const NamedKind *kind) {
    Chart chart = p->base;
    NamedCurve tasks[KNOWN] = {{0}};
    ChartSeries series[NAMED];
    kind->collect(&p->runs->runs[0].metrics, tasks);
    chart.id = kind->id;
    chart.unit = kind->unit;
    chart.series = series;
    chart.series_count = named_series(tasks, 0, kind->dots, series);
    chart.title = chart.series_count == 1 ? tasks[0].name : kind->title; /* a legend needs several */
    if (chart.series_count > 0) chart_write(out, &chart);
    write_rest(out, tasks, "", kind->things);
    free_named(tasks);
}

static const NamedCurve *find_named(const NamedCurve *curves, const char *name) {
    for (size_t i = 0; i < NAMED && curves[i].name; i++)
        if (strcmp(curves[i].name, name) == 0) return &curves[i];
    return NULL;
}

/* One name, and the curve of each run that has it: no run before `first` does. */
static void write_named_chart(Text *out, const Page *p, NamedCurve (*curves)[KNOWN], size_t first,
                              const char *name, bool dots, Chart chart) {
    ChartSeries series[RUNS_MAX];
    for (size_t r = first; r < p->runs->count; r++) {
        const NamedCurve *c = find_named(curves[r], name);
        if (c) series[chart.series_count++] = named_one(c, p->runs->runs[r].name, styles[r], dots);
    }
    chart.title = name;
    chart.series = series;
    chart_write(out, &chart);
}

/* For several runs, in the order of their names' occurrence. `charts` counts those on the page. */
static void write_named_charts(Text *out, const Page *p, const NamedKind *kind, int *charts) {
    NamedCurve curves[RUNS_MAX][KNOWN] = {{{0}}};
    for (size_t r = 0; r < p->runs->count; r++) kind->collect(&p->runs->runs[r].metrics, curves[r]);
    for (size_t r = 0; r < p->runs->count; r++)
        for (size_t i = 0; i < NAMED && curves[r][i].name; i++) {
            char id[16];
            Chart chart = p->base;
            bool written = false;
            for (size_t q = 0; q < r; q++) written |= find_named(curves[q], curves[r][i].name) != NULL;
            if (written) continue;
            snprintf(id, sizeof id, "named%c%c", 'a' + *charts / 26 % 26, 'a' + *charts % 26);
            (*charts)++;
            chart.id = id;
            chart.unit = kind->unit;
            write_named_chart(out, p, curves, r, curves[r][i].name, kind->dots, chart);
        }
    for (size_t r = 0; r < p->runs->count; r++) {
        write_rest(out, curves[r], p->runs->runs[r].name, kind->things);
        free_named(curves[r]);
    }
}

static void write_set_and_task_charts(Text *out, const Page *p) {
    int charts = 0;
    if (p->runs->count == 1) { /* its sets are in the loss chart */
        write_one_chart(out, p, &named_sources);
        write_one_chart(out, p, &named_tasks);
        write_one_chart(out, p, &named_texts);
        return;
    }
    write_named_charts(out, p, &named_sources, &charts);
    write_named_charts(out, p, &named_sets, &charts);
    write_named_charts(out, p, &named_tasks, &charts);
    write_named_charts(out, p, &named_texts, &charts);
}

/* A validation or an evaluation may come after the last logged step, and must still be inside the axes. */
static double last_step(const MetricsTable *t, const Columns *c) {
    double last = c->count ? c->of[STEP][c->count - 1] : 1;
    if (t->task_count) last = fmax(last, (double)t->tasks[t->task_count - 1].step);
    return c->validations ? fmax(last, c->validation_step[c->validations - 1]) : last;
}

/* `x_high` must be known before the first chart is written, so the columns of all runs are made first. */
void report_write_charts(Text *out, const Runs *runs) {
    Page p = {.runs = runs, .base = {.width = 530, .height = 250}};
    for (size_t i = 0; i < runs->count; i++) {
        p.columns[i] = make_columns(&runs->runs[i].metrics);
        p.base.x_high = fmax(p.base.x_high, last_step(&runs->runs[i].metrics, &p.columns[i]));
    }
    text_puts(out, "<section class=\"charts\" aria-label=\"Curves\">\n");
    write_step_charts(out, &p);
    write_other_charts(out, &p);
    write_optional_charts(out, &p);
    write_set_and_task_charts(out, &p);
    text_puts(out, "</section>\n");
    for (size_t i = 0; i < runs->count; i++) free_columns(&p.columns[i]);
}

/* ---- data for the read-out ---- */

/* Marks the rows for the read-out: of each bucket of rows the first, and the extremes of loss and norm. A
 * pointer cannot select more than four hundred positions. All non-finite steps are kept, and the last row,
 * which readers look at first. */
static void choose_rows(const Columns *c, bool *keep) {
    size_t size = c->count / READOUT_BUCKETS + 1;
    for (size_t from = 0; from < c->count; from += size) {
        size_t to = from + size < c->count ? from + size : c->count, low = from, high = from, norm = from;
        for (size_t i = from; i < to; i++) {
            if (!isfinite(c->of[LOSS][i])) keep[i] = true;
            if (c->of[LOSS][i] < c->of[LOSS][low]) low = i;
            if (c->of[LOSS][i] > c->of[LOSS][high]) high = i;
            if (c->of[NORM][i] > c->of[NORM][norm]) norm = i;
        }
        /* Comparisons with NaN are false, so low and high stay at `from` if nothing is finite. */
        keep[from] = keep[low] = keep[high] = keep[norm] = true;
    }
    if (c->count) keep[c->count - 1] = true;
}

/* A read-out shows fewer than seven digits. */
static double rounded(double value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.7g", value);
    return strtod(digits, NULL);
}

/* Only the kept rows: the script finds the one nearest to the pointer. `keep` NULL: all, as for validations,
 * which are few. Non-finite values become null, which the script shows as "not finite". */
static void write_array(JsonWriter *w, const char *key, const double *values, size_t count,
                        const bool *keep) {
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < count; i++) {
        if (!keep || keep[i]) json_double(w, rounded(values[i]));
    }
    json_end_array(w);
}

/* Without names: the script takes them from the page, where they are escaped for HTML. */
static void write_run_data(JsonWriter *w, const Columns *c) {
    bool *keep = mem_alloc_array(c->count + 1, sizeof *keep);
    choose_rows(c, keep);
    json_begin_object(w);
    for (Column k = 0; k < COLUMNS; k++)
        if (k < OPTIONAL || any_finite(c, k)) write_array(w, columns[k].key, c->of[k], c->count, keep);
    write_array(w, "vstep", c->validation_step, c->validations, NULL);
    write_array(w, "vloss", c->validation_loss, c->validations, NULL);
    json_end_object(w);
    free(keep);
}

/* Only numbers and fixed keys, so nothing in it can end the enclosing <script> element. */
void report_write_data(Text *out, const Runs *runs) {
    JsonWriter w;
    text_puts(out, "<script type=\"application/json\" id=\"data\">");
    json_start(&w, out, 0);
    json_begin_array(&w);
    for (size_t i = 0; i < runs->count; i++) {
        Columns c = make_columns(&runs->runs[i].metrics);
        write_run_data(&w, &c);
        free_columns(&c);
    }
    json_end_array(&w);
    text_puts(out, "</script>\n");
}
