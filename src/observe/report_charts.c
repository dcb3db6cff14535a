/* Curves of one run, or of several over each other: a chart has a series, or two, of each. The numbers behind
 * the read-out are thinned out: its size does not grow with the run.
 *
 * A page's charts, in this order; `id` is what style and script know a chart by:
 *
 *     loss      whole width; training and validation, of one run its named sets too, linear or logarithmic
 *     norm      gradient norm before clipping, linear or logarithmic
 *     lr        learning rate                  rate    tokens per second
 *     memory    GiB; resident and peak, of several runs the peak alone
 *     tasks     of one run that has any: accuracy of each
 *
 * All share one range of steps, that of the longest run, so that a place on one is the same place on all. */
#include "observe/report_charts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "observe/chart.h"

#define GIB (1024.0 * 1024 * 1024)
/* The smaller charts are 458 pixels wide inside their margins: a pointer tells few more places apart. */
#define READOUT_BUCKETS 400

/* One column of the metrics as an array; NaN where a step was not logged with it. Each array is of its own
 * and owned; free_columns frees them all. */
typedef struct Columns {
    size_t count, validations;
    double *step, *loss, *grad_norm, *lr, *rate, *resident, *peak, *validation_step, *validation_loss;
} Columns;

/* At least one element, since a run may have logged nothing yet. */
static double *new_column(size_t count) { return mem_alloc_array(count + 1, sizeof(double)); }

/* As doubles throughout, so that one function draws any of them. Memory is drawn in GiB, all else in the
 * units of the records. */
static Columns make_columns(const MetricsTable *t) {
    size_t n = t->step_count, v = t->validation_count;
    Columns c = {n,
                 v,
                 new_column(n),
                 new_column(n),
                 new_column(n),
                 new_column(n),
                 new_column(n),
                 new_column(n),
                 new_column(n),
                 new_column(v),
                 new_column(v)};
    for (size_t i = 0; i < n; i++) {
        const StepMetrics *m = &t->steps[i];
        c.step[i] = (double)m->step;
        c.loss[i] = m->loss;
        c.grad_norm[i] = m->grad_norm;
        c.lr[i] = m->lr;
        c.rate[i] = m->tokens_per_second;
        c.resident[i] = (double)m->memory_resident / GIB;
        c.peak[i] = (double)m->memory_peak / GIB;
    }
    for (size_t i = 0; i < v; i++) {
        c.validation_step[i] = (double)t->validations[i].step;
        c.validation_loss[i] = t->validations[i].loss;
    }
    return c;
}

static void free_columns(Columns *c) {
    double *all[] = {c->step,           c->loss,     c->grad_norm, c->lr,
                     c->rate,           c->resident, c->peak,      c->validation_step,
                     c->validation_loss};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- charts ---- */

/* The labels are the marks' own: free_marks frees them. Skipped steps and spikes, in the order of steps;
 * `marks` has room for one a step. A skipped step is one that was not finite, which says more than that it
 * also was a spike. */
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

/* A logarithmic axis suits values whose extremes leave the rest no room. Eight times the median: a
 * gradient norm that is hundreds in the first steps and one in the rest. */
static bool wants_log(const MetricsTable *t, const double *values, size_t offset) {
    double high = 0, typical = report_median(t, offset);
    for (size_t i = 0; i < t->step_count; i++) {
        if (isfinite(values[i])) high = fmax(high, values[i]);
    }
    return typical > 0 && high > 8 * typical;
}

/* Of the runs on a page. */
typedef struct Page {
    const Runs *runs;
    Columns columns[RUNS_MAX];
    Chart base; /* what all charts have in common */
} Page;

/* Classes of the style sheet, in the order of the runs: a run has one colour on the whole page. */
static const char *const styles[RUNS_MAX] = {"s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"};

/* A chart with a curve a run; of one run alone it goes by what it shows. `column` is the offset in Columns of
 * the array to draw, so that one function serves all charts with a curve a run. The chart is taken by value:
 * each caller goes on with its own. */
static void write_chart(Text *out, const Page *p, Chart chart, const char *name, size_t column, bool smooth) {
    ChartSeries series[RUNS_MAX];
    size_t n = p->runs->count;
    for (size_t i = 0; i < n; i++) {
        double *values = *(double *const *)((const char *)&p->columns[i] + column);
        series[i] = (ChartSeries){n > 1 ? p->runs->runs[i].name : name,
                                  styles[i],
                                  p->columns[i].step,
                                  values,
                                  p->columns[i].count,
                                  smooth,
                                  false};
    }
    chart.series = series;
    chart.series_count = n;
    chart_write(out, &chart);
}

/* Curves of things with names, in the order in which these come: of one run, with the colours that are left.
 * There are as many as that at most; all records are in the files. */
enum { NAMED = RUNS_MAX - 2 };
typedef struct NamedCurve {
    const char *name;
    size_t count;
    double *x, *y;
} NamedCurve;

/* To the curve of this name, which may be a new one with room for `room` points. */
static void add_named(NamedCurve *curves, size_t room, const char *name, double x, double y) {
    size_t i = 0;
    while (i < NAMED && curves[i].name && strcmp(curves[i].name, name) != 0) i++;
    if (i == NAMED) return;
    NamedCurve *c = &curves[i];
    if (!c->name) *c = (NamedCurve){name, 0, new_column(room), new_column(room)};
    c->x[c->count] = x;
    c->y[c->count++] = y;
}

static void free_named(NamedCurve *curves) {
    for (size_t i = 0; i < NAMED; i++) {
        free(curves[i].x);
        free(curves[i].y);
    }
}

/* Dots: there are few, and it matters where. Returns how many series there are now. */
static size_t named_series(const NamedCurve *curves, size_t first, ChartSeries *series) {
    size_t count = first;
    for (size_t i = 0; i < NAMED && curves[i].name; i++, count++)
        series[count] = (ChartSeries){curves[i].name,
                                      styles[(i + 2) % RUNS_MAX],
                                      curves[i].x,
                                      curves[i].y,
                                      curves[i].count,
                                      false,
                                      true};
    return count;
}

static void collect_sets(const MetricsTable *t, NamedCurve *curves) {
    for (size_t i = 0; i < t->set_count; i++)
        add_named(curves, t->set_count, t->sets[i].name, (double)t->sets[i].step, t->sets[i].loss);
}

/* The normalised accuracy where the task has it: what is drawn of it elsewhere, too. */
static void collect_tasks(const MetricsTable *t, NamedCurve *curves) {
    for (size_t i = 0; i < t->task_count; i++) {
        const TaskMetrics *m = &t->tasks[i];
        double value = isfinite(m->figures.acc_norm) ? m->figures.acc_norm : m->figures.acc;
        if (isfinite(value)) add_named(curves, t->task_count, m->name, (double)m->step, 100 * value);
    }
}

/* Of one run validation has a colour of its own; of several it has that of its run, and dots. All training
 * curves come before all validations, so that dots lie above lines. Validations of several runs have no name:
 * the key would name each run twice. */
static void write_loss_chart(Text *out, const Page *p, Chart chart) {
    ChartSeries series[2 * RUNS_MAX];
    NamedCurve sets[NAMED] = {{0}};
    size_t n = p->runs->count, count = 0;
    for (size_t i = 0; i < n; i++)
        series[count++] = (ChartSeries){n > 1 ? p->runs->runs[i].name : "training",
                                        styles[i],
                                        p->columns[i].step,
                                        p->columns[i].loss,
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
    if (n == 1) {
        collect_sets(&p->runs->runs[0].metrics, sets);
        count = named_series(sets, count, series);
    }
    chart.id = "loss";
    chart.title = "Loss";
    chart.unit = "nats per token";
    chart.series = series;
    chart.series_count = count;
    chart.width = 1080;
    chart.height = 360;
    chart_write(out, &chart);
    free_named(sets);
}

/* Marks on these two only, where the events show; with several runs they would be a thicket whose ticks
 * belong to nobody. The norm starts on the logarithmic axis if any of the runs wants it, as they share it. */
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
        chart.start_log |=
            wants_log(&p->runs->runs[i].metrics, p->columns[i].grad_norm, offsetof(StepMetrics, grad_norm));
    write_chart(out, p, chart, "gradient norm", offsetof(Columns, grad_norm), true);
    free_marks(marks, mark_count);
}

/* Two series where there is one run; the peaks of several would be too much. */
static void write_memory_chart(Text *out, const Page *p, Chart chart) {
    const Columns *c = &p->columns[0];
    const ChartSeries both[] = {
        {"resident", "s1", c->step, c->resident, c->count, false, false},
        {"peak", "s2", c->step, c->peak, c->count, false, false},
    };
    chart.id = "memory";
    chart.title = "Memory";
    chart.unit = "GiB";
    if (p->runs->count > 1) {
        write_chart(out, p, chart, "peak", offsetof(Columns, peak), false);
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
    write_chart(out, p, chart, "learning rate", offsetof(Columns, lr), false);
    chart.id = "rate";
    chart.title = "Throughput";
    chart.unit = "tokens per second";
    write_chart(out, p, chart, "throughput", offsetof(Columns, rate), true);
    write_memory_chart(out, p, chart);
}

/* Nothing where no task has an accuracy. */
static void write_task_chart(Text *out, const Page *p) {
    Chart chart = p->base;
    NamedCurve tasks[NAMED] = {{0}};
    ChartSeries series[NAMED];
    if (p->runs->count > 1) return;
    collect_tasks(&p->runs->runs[0].metrics, tasks);
    chart.id = "tasks";
    chart.title = "Tasks";
    chart.unit = "percent right";
    chart.series = series;
    chart.series_count = named_series(tasks, 0, series);
    if (chart.series_count > 0) chart_write(out, &chart);
    free_named(tasks);
}

/* A validation may come after the last logged step, and must not stand outside the box. */
static double last_step(const Columns *c) {
    double last = c->count ? c->step[c->count - 1] : 1;
    return c->validations ? fmax(last, c->validation_step[c->validations - 1]) : last;
}

/* `x_high` must be known before the first chart is written, hence columns of all runs first. */
void report_write_charts(Text *out, const Runs *runs) {
    Page p = {.runs = runs, .base = {.width = 530, .height = 250}};
    for (size_t i = 0; i < runs->count; i++) {
        p.columns[i] = make_columns(&runs->runs[i].metrics);
        p.base.x_high = fmax(p.base.x_high, last_step(&p.columns[i]));
    }
    text_puts(out, "<section class=\"charts\" aria-label=\"Curves\">\n");
    write_step_charts(out, &p);
    write_other_charts(out, &p);
    write_task_chart(out, &p);
    text_puts(out, "</section>\n");
    for (size_t i = 0; i < runs->count; i++) free_columns(&p.columns[i]);
}

/* ---- data for the read-out ---- */

/* Marks the rows worth reading: of each bucket of rows the first, and the extremes of loss and norm. More
 * than four hundred places nobody tells apart by a pointer; steps that were not finite are all kept. The last
 * row is kept too: a reader goes to the end first. */
static void choose_rows(const Columns *c, bool *keep) {
    size_t size = c->count / READOUT_BUCKETS + 1;
    for (size_t from = 0; from < c->count; from += size) {
        size_t to = from + size < c->count ? from + size : c->count, low = from, high = from, norm = from;
        for (size_t i = from; i < to; i++) {
            if (!isfinite(c->loss[i])) keep[i] = true;
            if (c->loss[i] < c->loss[low]) low = i;
            if (c->loss[i] > c->loss[high]) high = i;
            if (c->grad_norm[i] > c->grad_norm[norm]) norm = i;
        }
        /* Comparisons with NaN are false, so low and high stay at `from` where nothing is finite. */
        keep[from] = keep[low] = keep[high] = keep[norm] = true;
    }
    if (c->count) keep[c->count - 1] = true;
}

/* Seven digits are more than a read-out shows. */
static double rounded(double value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.7g", value);
    return strtod(digits, NULL);
}

/* Only rows that are kept: the script finds the one nearest to the pointer. `keep` NULL: all of them, as with
 * validations, which are few. What is not finite becomes null, which the script reads out as "not finite". */
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
    const struct {
        const char *key;
        const double *values;
    } columns[] = {{"step", c->step}, {"loss", c->loss},         {"norm", c->grad_norm}, {"lr", c->lr},
                   {"rate", c->rate}, {"resident", c->resident}, {"peak", c->peak}};
    choose_rows(c, keep);
    json_begin_object(w);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        write_array(w, columns[i].key, columns[i].values, c->count, keep);
    }
    write_array(w, "vstep", c->validation_step, c->validations, NULL);
    write_array(w, "vloss", c->validation_loss, c->validations, NULL);
    json_end_object(w);
    free(keep);
}

/* Numbers and fixed keys alone, so nothing in it can end the <script> element that it stands in. */
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
