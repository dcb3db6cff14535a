/* One HTML file with the curves, figures, journal and configuration of a run. It opens without a server
 * and fetches nothing.
 *
 *  R1. All of the run that is shown as text is escaped; the content security policy holds where escaping
 *      would fail.
 *  R2. The size of the page is bounded: charts by pixels (chart.c), the read-out by READOUT_BUCKETS, the
 *      journal by its newest JOURNAL_ROWS events. */
#include "observe/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "observe/chart.h"
#include "observe/report_run.h"

#define GIB (1024.0 * 1024 * 1024)
#define JOURNAL_ROWS 1000 /* the page shows at most so many, the newest */
#define READOUT_BUCKETS 400

/* One column of the metrics as an array; NaN where a step was not logged with it. */
typedef struct Columns {
    size_t count, validations;
    double *step, *loss, *grad_norm, *lr, *rate, *resident, *peak, *validation_step, *validation_loss;
} Columns;

static double *new_column(size_t count) { return mem_alloc_array(count + 1, sizeof(double)); }

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

/* The labels are the marks' own: free_marks frees them. */
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

/* A logarithmic axis suits values whose extremes leave the rest no room. */
static bool wants_log(const MetricsTable *t, const double *values, size_t offset) {
    double high = 0, typical = report_median(t, offset);
    for (size_t i = 0; i < t->step_count; i++) {
        if (isfinite(values[i])) high = fmax(high, values[i]);
    }
    return typical > 0 && high > 8 * typical;
}

static void write_loss_charts(Text *out, const MetricsTable *t, const Columns *c, Chart base) {
    ChartMark *marks = mem_alloc_array(t->step_count + 1, sizeof *marks);
    size_t mark_count = make_marks(t, marks);
    base.marks = marks;
    base.mark_count = mark_count;
    base.offer_log = true;
    ChartSeries loss[] = {
        {"training", "s1", c->step, c->loss, c->count, true, false},
        {"validation", "s2", c->validation_step, c->validation_loss, c->validations, false, true},
    };
    Chart chart = base;
    chart.id = "loss";
    chart.title = "Loss";
    chart.unit = "nats per token";
    chart.series = loss;
    chart.series_count = c->validations ? 2 : 1;
    chart.width = 1080;
    chart.height = 360;
    chart_write(out, &chart);
    ChartSeries norm = {"gradient norm", "s1", c->step, c->grad_norm, c->count, true, false};
    chart = base;
    chart.id = "norm";
    chart.title = "Gradient norm";
    chart.unit = "before clipping";
    chart.series = &norm;
    chart.series_count = 1;
    chart.start_log = wants_log(t, c->grad_norm, offsetof(StepMetrics, grad_norm));
    chart_write(out, &chart);
    free_marks(marks, mark_count);
}

static void write_other_charts(Text *out, const Columns *c, Chart base) {
    base.from_zero = true;
    ChartSeries lr = {"learning rate", "s1", c->step, c->lr, c->count, false, false};
    base.id = "lr";
    base.title = "Learning rate";
    base.series = &lr;
    base.series_count = 1;
    chart_write(out, &base);
    ChartSeries rate = {"throughput", "s1", c->step, c->rate, c->count, true, false};
    base.id = "rate";
    base.title = "Throughput";
    base.unit = "tokens per second";
    base.series = &rate;
    chart_write(out, &base);
    ChartSeries memory[] = {
        {"resident", "s1", c->step, c->resident, c->count, false, false},
        {"peak", "s2", c->step, c->peak, c->count, false, false},
    };
    base.id = "memory";
    base.title = "Memory";
    base.unit = "GiB";
    base.series = memory;
    base.series_count = 2;
    chart_write(out, &base);
}

static void write_charts(Text *out, const ReportRun *run, const Columns *c) {
    Chart base = {.width = 530, .height = 250};
    base.x_low = 0;
    base.x_high = c->count ? c->step[c->count - 1] : 1;
    if (c->validations) base.x_high = fmax(base.x_high, c->validation_step[c->validations - 1]);
    text_puts(out, "<section class=\"charts\" aria-label=\"Curves\">\n");
    write_loss_charts(out, &run->metrics, c, base);
    write_other_charts(out, c, base);
    text_puts(out, "</section>\n");
}

/* ---- data for the read-out ---- */

/* Marks the rows worth reading: of each bucket of rows the first, and the extremes of loss and norm. */
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

/* Only rows that are kept: the script finds the one nearest to the pointer. */
static void write_array(JsonWriter *w, const char *key, const double *values, size_t count,
                        const bool *keep) {
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < count; i++) {
        if (!keep || keep[i]) json_double(w, rounded(values[i]));
    }
    json_end_array(w);
}

static void write_data(Text *out, const Columns *c) {
    bool *keep = mem_alloc_array(c->count + 1, sizeof *keep);
    choose_rows(c, keep);
    JsonWriter w;
    text_puts(out, "<script type=\"application/json\" id=\"data\">");
    json_start(&w, out, 0);
    json_begin_object(&w);
    const struct {
        const char *key;
        const double *values;
    } columns[] = {{"step", c->step}, {"loss", c->loss},         {"norm", c->grad_norm}, {"lr", c->lr},
                   {"rate", c->rate}, {"resident", c->resident}, {"peak", c->peak}};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        write_array(&w, columns[i].key, columns[i].values, c->count, keep);
    }
    write_array(&w, "vstep", c->validation_step, c->validations, NULL);
    write_array(&w, "vloss", c->validation_loss, c->validations, NULL);
    json_end_object(&w);
    text_puts(out, "</script>\n");
    free(keep);
}

/* ---- journal, configuration ---- */

static const char *event_style(const char *event) {
    if (strcmp(event, "nonfinite") == 0 || strcmp(event, "diverged") == 0 || strcmp(event, "failed") == 0)
        return "bad";
    if (strcmp(event, "spike") == 0 || strcmp(event, "stopped") == 0) return "warn";
    return strcmp(event, "finished") == 0 ? "good" : "";
}

/* Facts that are whole numbers are shown whole. */
static void write_entry(Text *out, const JournalEntry *e) {
    char number[32];
    text_puts(out, "<tr><td class=\"t\">");
    html_puts(out, e->time);
    text_printf(out, "</td><td class=\"n\">%s</td><td class=\"%s\">", text_count(e->step, number),
                event_style(e->event));
    html_puts(out, e->event);
    text_puts(out, "</td><td class=\"d\">");
    html_puts(out, e->detail);
    const char *before = *e->detail ? " <small>" : "<small>";
    for (const JournalFact *f = e->facts; f->name; f++) {
        text_puts(out, before);
        html_puts(out, f->name);
        bool whole = f->value == floor(f->value) && fabs(f->value) < 1e12;
        text_printf(out, " %s", whole ? text_count((int64_t)f->value, number) : "");
        if (!whole) text_printf(out, "%.6g", f->value);
        before = " · ";
    }
    text_puts(out, e->facts->name ? "</small></td></tr>\n" : "</td></tr>\n");
}

static void write_journal(Text *out, const JournalTable *t) {
    if (t->count == 0) return;
    size_t first = t->count > JOURNAL_ROWS ? t->count - JOURNAL_ROWS : 0;
    text_puts(out, "<h2>Journal</h2>\n");
    if (first > 0)
        text_printf(out, "<p class=\"sub\">The newest %d of %zu events.</p>\n", JOURNAL_ROWS, t->count);
    text_puts(out, "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>Time</th><th "
                   "class=\"n\">Step</th><th>Event</th><th>Detail</th></tr></thead><tbody>\n");
    for (size_t i = first; i < t->count; i++) write_entry(out, &t->entries[i]);
    text_puts(out, "</tbody></table></div>\n");
}

static void write_config(Text *out, const ReportRun *run) {
    if (!run->config) return;
    text_puts(out, "<details><summary>Configuration</summary>\n<div class=\"scroll\" tabindex=\"0\"><pre>");
    html_puts(out, run->config);
    text_puts(out, "</pre></div></details>\n");
}

/* ---- the page ---- */

/* The policy makes sure of what the text promises: nothing is fetched, whatever stands in a journal. */
static void write_head(Text *out, const ReportRun *run) {
    text_puts(out, "<!DOCTYPE html>\n"
                   "<html lang=\"en\">\n"
                   "<head>\n"
                   "<meta charset=\"utf-8\">\n"
                   "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                   "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                   "<title>");
    html_puts(out, run->name);
    text_puts(out, " · weft</title>\n<style>\n");
    text_puts(out, report_style);
    text_puts(out, "</style>\n</head>\n<body>\n<main>\n");
}

static void write_foot(Text *out, const ReportRun *run) {
    char time[21];
    text_printf(out, "<footer>Written %s by weft %s from %zu logged steps", clock_iso8601(clock_wall(), time),
                WEFT_VERSION, run->metrics.step_count);
    if (run->metrics.bad_lines)
        text_printf(out, "; %zu unreadable lines were left out", run->metrics.bad_lines);
    text_puts(out, ".</footer>\n</main>\n");
}

ErrorCode report_write(Text *html, const char *run_dir, Error *err) {
    ReportRun run = {0};
    ErrorCode code = report_run_load(&run, run_dir, err);
    if (code == OK) {
        Columns columns = make_columns(&run.metrics);
        write_head(html, &run);
        report_write_header(html, &run);
        write_charts(html, &run, &columns);
        report_write_timeline(html, &run);
        write_journal(html, &run.journal);
        write_config(html, &run);
        write_foot(html, &run);
        write_data(html, &columns);
        text_puts(html, "<script>\n");
        text_puts(html, report_script);
        text_puts(html, "</script>\n</body>\n</html>\n");
        free_columns(&columns);
    }
    report_run_free(&run);
    return code;
}
