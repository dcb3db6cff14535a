/* One HTML file with the curves, figures, journal and configuration of a run, or of several runs in common
 * charts. It opens without a server and loads nothing.
 *
 *  R1. All text from the run is escaped; the content security policy is a second line of defence.
 *  R2. The size of the page is bounded: charts by pixels (chart.c), the read-out by its buckets
 *      (report_charts.c), the journal by its newest JOURNAL_ROWS events.
 *
 *     head       policy, style               report_page.c
 *     header     how it ended, figures       report_facts.c
 *     charts     five figures                report_charts.c, chart.c
 *     timeline   a traced step               report_timeline.c
 *     tasks      the newest figures of each  here
 *     probe      the newest, unit by unit    here
 *     journal, configuration                 here
 *     data       numbers for the read-out    report_charts.c; its script, report_page.c
 *
 * Without scripts only the read-out is missing: HTML and CSS alone draw curves, switch scales and scroll
 * tables. */
#include "observe/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "observe/chart.h"
#include "observe/report_charts.h"

#define JOURNAL_ROWS 1000 /* maximum of rows in the page, the newest */

/* ---- journal, configuration ---- */

/* Entries that need attention are coloured, and also named in words. */
static const char *event_style(const char *event) {
    if (strcmp(event, "nonfinite") == 0 || strcmp(event, "diverged") == 0 || strcmp(event, "failed") == 0)
        return "bad";
    if (strcmp(event, "spike") == 0 || strcmp(event, "stopped") == 0) return "warn";
    return strcmp(event, "finished") == 0 ? "good" : "";
}

/* Integral facts are shown without decimals. */
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

/* The newest first, since a report is usually opened to see how a run ended. */
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

/* A figure and its standard error; a dash if the task does not have it. */
static void write_figure(Text *out, double value, double error) {
    text_puts(out, "<td class=\"n\">");
    if (isfinite(value))
        text_printf(out, "%.4f", value);
    else
        text_puts(out, "\xe2\x80\x93");
    if (isfinite(error)) text_printf(out, " <small>&#177; %.4f</small>", error);
    text_puts(out, "</td>");
}

static void write_task(Text *out, const TaskMetrics *m) {
    const TaskFigures *f = &m->figures;
    const double none = (double)NAN;
    char number[32];
    text_puts(out, "<tr><th>");
    html_puts(out, m->name);
    text_printf(out, "</th><td class=\"n\">%s</td>", text_count(m->step, number));
    text_printf(out, "<td class=\"n\">%s</td>", text_count(f->documents, number));
    write_figure(out, f->acc, f->acc_stderr);
    write_figure(out, f->acc_norm, f->acc_norm_stderr);
    write_figure(out, f->gold_bits_per_byte, none);
    write_figure(out, isfinite(f->perplexity) ? f->perplexity : f->word_perplexity, f->perplexity_stderr);
    write_figure(out, f->bits_per_byte, none);
    text_puts(out, "</tr>\n");
}

/* The newest record of each task: those of one evaluation are adjacent. */
static void write_tasks(Text *out, const MetricsTable *t) {
    if (t->task_count == 0) return;
    text_puts(out, "<h2>Tasks</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th></th>"
                   "<th class=\"n\">Step</th><th class=\"n\">Documents</th><th class=\"n\">acc</th>"
                   "<th class=\"n\">acc_norm</th><th class=\"n\">Bits per byte of the answer</th>"
                   "<th class=\"n\">Perplexity</th><th class=\"n\">Bits per byte</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < t->task_count; i++)
        if (t->tasks[i].step == t->tasks[t->task_count - 1].step) write_task(out, &t->tasks[i]);
    text_puts(out, "</tbody></table></div>\n");
}

/* Each record covers the steps since the previous one; their sum covers the run. */
static double tokens_of_source(const MetricsTable *t, const char *name) {
    double sum = 0;
    for (size_t i = 0; i < t->source_count; i++)
        if (strcmp(t->sources[i].name, name) == 0) sum += (double)t->sources[i].tokens;
    return sum;
}

/* The newest record of each source. */
static void write_sources(Text *out, const MetricsTable *t) {
    char number[32];
    if (t->source_count == 0) return;
    text_puts(out, "<h2>Sources</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th></th>"
                   "<th class=\"n\">Tokens</th><th class=\"n\">Times read</th>"
                   "<th class=\"n\">Newest loss</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < t->source_count; i++) {
        const SourceMetrics *m = &t->sources[i];
        if (m->step != t->sources[t->source_count - 1].step) continue;
        text_puts(out, "<tr><th>");
        html_puts(out, m->name);
        text_printf(out, "</th><td class=\"n\">%s</td><td class=\"n\">%.3f</td>",
                    text_count((int64_t)tokens_of_source(t, m->name), number), m->epoch);
        write_figure(out, m->loss, (double)NAN);
        text_puts(out, "</tr>\n");
    }
    text_puts(out, "</tbody></table></div>\n");
}

/* Magnitudes span many powers of ten: three digits of each. */
static void write_size(Text *out, double value) {
    text_puts(out, "<td class=\"n\">");
    if (isfinite(value))
        text_printf(out, "%.3g", value);
    else
        text_puts(out, "\xe2\x80\x93");
    text_puts(out, "</td>");
}

static void write_unit(Text *out, const ProbeMetrics *m) {
    const double sizes[] = {m->output_rms, m->output_max, m->gradient_rms,        m->gradient_max,
                            m->weight_rms, m->weight_max, m->weight_gradient_rms, m->weight_gradient_max};
    text_puts(out, "<tr><th>");
    html_puts(out, m->name);
    text_puts(out, "</th>");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) write_size(out, sizes[i]);
    text_printf(out, "<td class=\"n\">%lld</td></tr>\n", (long long)m->nonfinite);
}

/* The newest probe, from the embedding up. */
static void write_probe(Text *out, const MetricsTable *t) {
    char number[32];
    if (t->probe_count == 0) return;
    int64_t step = t->probes[t->probe_count - 1].step;
    text_printf(out, "<h2>Units in step %s</h2>\n", text_count(step, number));
    text_puts(out, "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th></th><th class=\"n\">Output, "
                   "rms</th><th class=\"n\">max</th><th class=\"n\">Its gradient, rms</th><th "
                   "class=\"n\">max</th><th class=\"n\">Weights, rms</th><th class=\"n\">max</th><th "
                   "class=\"n\">Their gradients, rms</th><th class=\"n\">max</th><th class=\"n\">Not "
                   "finite</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < t->probe_count; i++)
        if (t->probes[i].step == step) write_unit(out, &t->probes[i]);
    text_puts(out, "</tbody></table></div>\n");
}

/* As text, with the comments that name the source of each value. */
static void write_config(Text *out, const ReportRun *run) {
    if (!run->config) return;
    text_puts(out, "<details><summary>Configuration</summary>\n<div class=\"scroll\" tabindex=\"0\"><pre>");
    html_puts(out, run->config);
    text_puts(out, "</pre></div></details>\n");
}

/* ---- several runs ---- */

/* The names as the title, and below them each directory in the colour of its run, since names may be
 * equal. */
static void write_names(Text *out, const Runs *r) {
    text_puts(out, "<header><div class=\"head\"><h1>");
    for (size_t i = 0; i < r->count; i++) {
        if (i) text_puts(out, " · ");
        html_puts(out, r->runs[i].name);
    }
    text_puts(out, "</h1></div>\n");
    for (size_t i = 0; i < r->count; i++) {
        text_printf(out, "<p class=\"sub name\"><i class=\"s%zu\"></i>", i + 1);
        html_puts(out, r->dirs[i]);
        text_puts(out, "</p>\n");
    }
    text_puts(out, "</header>\n");
}

/* A column per run, headed by its colour and name, and an additional one for `last`, which may be empty. The
 * scrolled box is reachable by keyboard (tabindex), since its content may be wider than the page. */
static void begin_table(Text *out, const Runs *r, const char *title, const char *last) {
    text_printf(out, "<h2>%s</h2>\n<div class=\"scroll rows\" tabindex=\"0\"><table><thead><tr><th></th>",
                title);
    for (size_t i = 0; i < r->count; i++) {
        text_printf(out, "<th class=\"%s name\"><i class=\"s%zu\"></i>", *last ? "v" : "n", i + 1);
        html_puts(out, r->runs[i].name);
        text_puts(out, "</th>");
    }
    text_printf(out, "%s</tr></thead><tbody>\n", last);
}

/* A dash if a run does not record the value. */
static void write_cell(Text *out, const char *value) {
    text_puts(out, "<td class=\"n\">");
    html_puts(out, value && *value ? value : "–");
    text_puts(out, "</td>");
}

static void write_figures(Text *out, const Runs *r) {
    RunFigure figures[RUNS_MAX][RUN_FIGURES];
    for (size_t i = 0; i < r->count; i++) runs_figures(&r->runs[i], figures[i]);
    begin_table(out, r, "Figures", "");
    for (int f = 0; f < RUN_FIGURES; f++) {
        text_printf(out, "<tr><th>%s</th>", figures[0][f].name);
        for (size_t i = 0; i < r->count; i++) write_cell(out, figures[i][f].text);
        text_puts(out, "</tr>\n");
    }
    text_puts(out, "</tbody></table></div>\n");
}

/* The value of a key may be a list of many lines: it has a scrollable box, so that rows stay low. */
static void write_value(Text *out, const char *value) {
    text_puts(out, "<td class=\"v\"><div class=\"long\">");
    html_puts(out, value && *value ? value : "–");
    text_puts(out, "</div></td>");
}

/* All rows, unlike in the terminal: here they can be scrolled. Rows on which no bit depends are labelled. */
static void write_rows(Text *out, const Runs *r) {
    begin_table(out, r, "What differs", "<th>What it does</th>");
    for (size_t i = 0; i < r->row_count; i++) {
        const RunsRow *row = &r->rows[i];
        text_puts(out, "<tr><th>");
        html_puts(out, row->name);
        text_puts(out, "</th>");
        for (size_t k = 0; k < r->count; k++) write_value(out, row->values[k]);
        text_printf(out, "<td>%s</td></tr>\n",
                    row->effect    ? row->effect
                    : row->matters ? ""
                                   : "no bit depends on it");
    }
    if (r->row_count == 0) text_puts(out, "<tr><th>nothing that was compared</th></tr>\n");
    text_puts(out, "</tbody></table></div>\n");
}

/* The sentences of compare_text.c, in HTML. */
static void write_split(Text *out, const Runs *r, size_t i) {
    const RunsSplit *s = &r->splits[i];
    const MetricsComparison *m = &s->metrics;
    char a[32], b[32];
    text_printf(out, "<p class=\"name\"><i class=\"s1\"></i><i class=\"s%zu\"></i>", i + 1);
    if (m->differs)
        text_printf(out,
                    "The first figure that differs is <b>%s of step %lld%s</b>: %s, %s. The same before it:",
                    m->first.figure, (long long)m->first.step,
                    strcmp(m->first.kind, "train") == 0 ? "" : " (validation)",
                    text_double(m->first.values[0], a), text_double(m->first.values[1], b));
    else
        text_puts(out, m->steps + m->validations ? "<b>No figure differs</b> in" : "Nothing to compare:");
    text_printf(out, " %zu logged steps and %zu validations of both.", m->steps, m->validations);
    if (s->audited) {
        text_puts(out, s->samples ? " Samples: " : " The same samples, with the same tokens, in each step.");
        if (s->samples) html_puts(out, s->samples);
    }
    text_puts(out, "</p>\n");
}

/* The split comes first, since it answers the question; figures and settings explain it. */
static void write_comparison(Text *out, const Runs *r) {
    text_puts(out, "<h2>Where they part</h2>\n");
    for (size_t i = 1; i < r->count; i++) write_split(out, r, i);
    write_figures(out, r);
    write_rows(out, r);
}

/* ---- the page ---- */

/* The policy enforces that nothing is loaded, whatever a journal contains. Styles and the script are inside
 * the page, hence 'unsafe-inline'; nothing may be loaded, sent or framed. */
static void write_head(Text *out, const Runs *r) {
    text_puts(out, "<!DOCTYPE html>\n"
                   "<html lang=\"en\">\n"
                   "<head>\n"
                   "<meta charset=\"utf-8\">\n"
                   "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                   "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                   "<title>");
    for (size_t i = 0; i < r->count; i++) {
        html_puts(out, r->runs[i].name);
        text_puts(out, " · ");
    }
    text_puts(out, "weft</title>\n<style>\n");
    text_puts(out, report_style);
    text_puts(out, "</style>\n</head>\n<body>\n<main>\n");
}

/* Unreadable lines are reported: a curve with a gap should not look complete. */
static void write_foot(Text *out, const Runs *r) {
    char time[21];
    size_t steps = 0, bad = 0;
    for (size_t i = 0; i < r->count; i++) {
        steps += r->runs[i].metrics.step_count;
        bad += r->runs[i].metrics.bad_lines;
    }
    text_printf(out, "<footer>Written %s by weft %s from %zu logged steps", clock_iso8601(clock_wall(), time),
                WEFT_VERSION, steps);
    if (bad) text_printf(out, "; %zu unreadable lines were left out", bad);
    text_puts(out, ".</footer>\n</main>\n");
}

/* In the order of interest: a report is read from the top and seldom to the end. */
static void write_one(Text *out, const Runs *r) {
    const ReportRun *run = &r->runs[0];
    report_write_header(out, run);
    report_write_charts(out, r);
    report_write_timeline(out, run);
    write_sources(out, &run->metrics);
    write_tasks(out, &run->metrics);
    write_probe(out, &run->metrics);
    write_journal(out, &run->journal);
    write_config(out, run);
}

static void write_several(Text *out, const Runs *r) {
    write_names(out, r);
    report_write_charts(out, r);
    write_comparison(out, r);
}

/* Data and script come last: the page is complete before the first line of script is read, and stays so if
 * that fails. */
void report_write_runs(Text *html, const Runs *runs) {
    write_head(html, runs);
    if (runs->count == 1)
        write_one(html, runs);
    else
        write_several(html, runs);
    write_foot(html, runs);
    report_write_data(html, runs);
    text_puts(html, "<script>\n");
    text_puts(html, report_script);
    text_puts(html, "</script>\n</body>\n</html>\n");
}

/* `html` is undefined after a failure. */
ErrorCode report_write(Text *html, const char *run_dir, Error *err) {
    Runs runs;
    ErrorCode code = runs_open(&runs, &run_dir, 1, err);
    if (code == OK) report_write_runs(html, &runs);
    runs_free(&runs);
    return code;
}
