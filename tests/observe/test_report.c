/* The report: charts that keep the extremes, a self-contained page that trusts no text. */
#include "support/files.h"

#include <math.h>

#include "observe/chart.h"
#include "observe/journal.h"
#include "observe/metrics.h"
#include "observe/report.h"
#include "observe/trace.h"

static Error err;

static size_t count_of(const char *text, const char *what) {
    size_t n = 0;
    while ((text = strstr(text, what))) {
        n++;
        text += strlen(what);
    }
    return n;
}

/* ---- charts ---- */

static void ticks_are_round_and_inside(void **state) {
    (void)state;
    static const double ranges[][2] = {{0, 1},    {3.05, 9.4},  {-7, 12},
                                       {0, 4000}, {1e-5, 9e-4}, {1e9, 1.0001e9}};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        double low = ranges[r][0], high = ranges[r][1], ticks[32], step;
        size_t n = chart_ticks(low, high, 5, ticks, 32, &step);
        assert_in_range(n, 3, 8);
        double lead = step / pow(10, floor(log10(step) + 1e-9));
        assert_true(fabs(lead - 1) < 1e-6 || fabs(lead - 2) < 1e-6 || fabs(lead - 5) < 1e-6);
        for (size_t i = 0; i < n; i++) {
            assert_true(ticks[i] >= low - 1e-6 * step && ticks[i] <= high + 1e-6 * step);
            assert_true(fabs(ticks[i] / step - round(ticks[i] / step)) < 1e-6);
        }
    }
    double step, ticks[4];
    assert_int_equal(chart_ticks(1, 1, 5, ticks, 4, &step), 0);
    assert_int_equal(chart_ticks((double)NAN, 1, 5, ticks, 4, &step), 0);
    assert_int_equal(chart_ticks(3e-322, 3.5e-322, 5, ticks, 4, &step), 0); /* no round step is that small */
    assert_true(chart_ticks(0, 1e6, 1000000, ticks, 4, &step) <= 4);
}

static void smoothing_neither_lags_nor_spreads_gaps(void **state) {
    (void)state;
    double y[400], out[400];
    for (int i = 0; i < 400; i++) y[i] = 3;
    y[100] = (double)NAN;
    chart_smooth(y, 400, 20, out);
    for (int i = 0; i < 400; i++) assert_true(i == 100 ? isnan(out[i]) : fabs(out[i] - 3) < 1e-12);
    for (int i = 0; i < 400; i++) y[i] = 10 - 0.01 * i;
    chart_smooth(y, 400, 20, out);
    assert_true(fabs(out[200] - y[200]) < 1e-6);
    for (int i = 0; i < 400; i++) y[i] = i % 2 ? 1 : -1;
    chart_smooth(y, 400, 40, out);
    assert_true(fabs(out[200]) < 0.1);
}

static Chart chart_of(const ChartSeries *s) {
    return (Chart){.id = "loss",
                   .title = "Loss",
                   .series = s,
                   .series_count = 1,
                   .x_low = 0,
                   .x_high = (double)s->count,
                   .width = 500,
                   .height = 200};
}

static void a_spike_in_a_million_points_stays(void **state) {
    (void)state;
    size_t n = 1000000;
    double *x = mem_alloc_array(n, sizeof *x), *y = mem_alloc_array(n, sizeof *y);
    for (size_t i = 0; i < n; i++) {
        x[i] = (double)i;
        y[i] = 1;
    }
    y[654321] = 11;
    ChartSeries s = {"loss", "s1", x, y, n, false, false};
    Chart c = chart_of(&s);
    Text t = {0};
    chart_write(&t, &c);
    assert_true(t.length < 40000); /* bytes by pixels, not by points */
    /* the range is [1, 11] with a margin of 6% below and above; the plot is 156 high from 14 */
    char top[16];
    snprintf(top, sizeof top, " %.1f", 170 - (11 - 0.4) / 11.2 * 156);
    assert_int_equal(count_of(t.data, top), 1);
    text_free(&t);
    free(x);
    free(y);
}

static void charts_take_anything(void **state) {
    (void)state;
    static const double x[] = {1, 2, 3, 4};
    static const double samples[][4] = {
        {1, 2, 3, 4},
        {5, 5, 5, 5},
        {0, 0, 0, 0},
        {-1, -2, 0, 3},
        {1e-300, 1e300, 1, 1},
        {1e308, -1e308, 0, 0},
        {1e-12, 2e-12, 3e-12, 1e-12},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        for (size_t count = 0; count <= 4; count++) {
            ChartSeries s = {"loss", "s1", x, samples[i], count, true, true};
            Chart c = chart_of(&s);
            c.offer_log = true;
            c.from_zero = i % 2;
            Text t = {0};
            chart_write(&t, &c);
            assert_null(strstr(t.data, "nan"));
            assert_null(strstr(t.data, "inf"));
            text_free(&t);
        }
    }
    static const double none[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, (double)NAN};
    ChartSeries s = {"loss", "s1", x, none, 4, true, true};
    Chart c = chart_of(&s);
    Text t = {0};
    chart_write(&t, &c);
    assert_non_null(strstr(t.data, "Nothing to draw"));
    text_free(&t);
}

static void gaps_lift_the_pen(void **state) {
    (void)state;
    static const double x[] = {0, 1, 2, 3, 4}, y[] = {1, 2, (double)NAN, 3, 4};
    ChartSeries s = {"loss", "s1", x, y, 5, false, false};
    Chart c = chart_of(&s);
    Text t = {0};
    chart_write(&t, &c);
    char *line = strstr(t.data, "class=\"line s1\" d=\"");
    assert_non_null(line);
    *strstr(line, "/>") = '\0';
    assert_int_equal(count_of(line, "M"), 2);
    assert_int_equal(count_of(line, "L"), 2);
    text_free(&t);
}

static void html_is_escaped(void **state) {
    (void)state;
    Text t = {0};
    html_puts(&t, "<a href=\"x\">&'\x1b[31mé</a>\n");
    assert_string_equal(t.data, "&lt;a href=&quot;x&quot;&gt;&amp;&#39; [31mé&lt;/a&gt;\n");
    text_free(&t);
}

/* ---- the page ---- */

static void write_run(int steps) {
    MetricsLog log;
    assert_int_equal(metrics_log_open(&log, files_root, METRICS_FILE, 0, &err), OK);
    for (int s = 1; s <= steps; s++) {
        StepMetrics m = {.step = s,
                         .total_steps = steps,
                         .loss = 3 + 6 * exp(-s / 50.0),
                         .grad_norm = 1,
                         .lr = 1e-3,
                         .tokens_per_second = 12345,
                         .mfu = 0.5,
                         .memory_resident = 1 << 30,
                         .memory_peak = 3 << 29,
                         .total_tokens = 1000 * s,
                         .step_seconds = 1,
                         .z_loss = (double)NAN,
                         .balance_loss = (double)NAN,
                         .expert_imbalance = (double)NAN,
                         .noise_scale = (double)NAN,
                         .spike = s == 60,
                         .skipped = s == 80};
        if (m.skipped) m.loss = m.grad_norm = (double)NAN;
        assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
    }
    ValidationMetrics v = {.step = 50, .loss = 3.25, .perplexity = exp(3.25), .bits_per_byte = (double)NAN};
    assert_int_equal(metrics_log_add(&log, METRICS_VALIDATION, &v, &err), OK);
    v = (ValidationMetrics){.step = 100, .loss = 3.5, .perplexity = exp(3.5), .bits_per_byte = (double)NAN};
    assert_int_equal(metrics_log_add(&log, METRICS_VALIDATION, &v, &err), OK);
    metrics_log_close(&log);
}

static Text page(void) {
    Text html = {0};
    err.message[0] = '\0';
    assert_int_equal(report_write(&html, files_root, &err), OK);
    return html;
}

static void the_page_stands_alone(void **state) {
    (void)state;
    write_run(100);
    Text html = page();
    assert_int_equal(strncmp(html.data, "<!DOCTYPE html>", 15), 0);
    assert_null(strstr(html.data, "http://"));
    assert_null(strstr(html.data, "https://"));
    assert_null(strstr(html.data, "src="));
    assert_null(strstr(html.data, "@import"));
    assert_non_null(strstr(html.data, "default-src 'none'"));
    assert_non_null(strstr(html.data, "prefers-color-scheme:dark"));
    static const char *const ids[] = {"loss", "norm", "lr", "rate", "memory"};
    for (int i = 0; i < 5; i++) {
        char figure[32];
        snprintf(figure, sizeof figure, "<figure id=\"%s\">", ids[i]);
        assert_int_equal(count_of(html.data, figure), 1);
    }
    assert_int_equal(count_of(html.data, "<svg"), 7); /* loss and norm on two axes */
    assert_int_equal(count_of(html.data, "</svg>"), 7);
    assert_non_null(strstr(html.data, "3.5000")); /* final validation loss */
    assert_non_null(strstr(html.data, "3.2500")); /* best validation loss */
    assert_non_null(strstr(html.data, "at step 50"));
    assert_non_null(strstr(html.data, "1.50 GiB"));
    assert_non_null(strstr(html.data, "12,345"));
    assert_non_null(strstr(html.data, "step 60: spike"));
    assert_non_null(strstr(html.data, "step 80: skipped"));
    text_free(&html);
}

/* Named sets are curves; tasks have a chart and a table. */
static void sets_and_tasks_are_shown(void **state) {
    (void)state;
    MetricsLog log;
    write_run(100);
    assert_int_equal(metrics_log_open(&log, files_root, METRICS_FILE, 100, &err), OK);
    for (int64_t step = 0; step <= 100; step += 50) {
        ValidationMetrics v = {.step = step, .name = "co&de", .loss = 2, .perplexity = exp(2)};
        TaskMetrics m = {
            .step = step, .name = "piqa<", .figures = {.documents = 7, .acc = 0.5125, .acc_stderr = 0.0625}};
        m.figures.acc_norm = m.figures.acc_norm_stderr = m.figures.perplexity = m.figures.perplexity_stderr =
            (double)NAN;
        m.figures.word_perplexity = m.figures.bits_per_byte = m.figures.gold_bits_per_byte = (double)NAN;
        assert_int_equal(metrics_log_add(&log, METRICS_SET, &v, &err), OK);
        assert_int_equal(metrics_log_add(&log, METRICS_TASK, &m, &err), OK);
        strcpy(m.name, "words");
        m.figures.acc = (double)NAN;
        m.figures.bits_per_byte = 1.5;
        assert_int_equal(metrics_log_add(&log, METRICS_TASK, &m, &err), OK);
    }
    metrics_log_close(&log);
    Text html = page();
    assert_int_equal(count_of(html.data, "<figure id=\"tasks\">"), 1);
    assert_int_equal(count_of(html.data, "<figure id=\"texts\">"), 1);
    assert_non_null(strstr(html.data, "aria-label=\"piqa&lt; by step"));
    assert_non_null(strstr(html.data, "co&amp;de"));
    assert_int_equal(count_of(html.data, "<th>piqa&lt;</th>"), 1); /* the newest */
    assert_non_null(strstr(html.data, "0.5125 <small>&#177; 0.0625</small>"));
    assert_non_null(strstr(html.data, "3.5000")); /* the validation is that of all sets */
    text_free(&html);
}

/* Figures that only some runs record have a chart only in those. */
static void what_is_recorded_is_charted(void **state) {
    (void)state;
    static const char *const ids[] = {"zloss", "balance", "imbalance", "noise"};
    const double none = (double)NAN;
    for (size_t recorded = 0; recorded < 4; recorded++) {
        MetricsLog log;
        assert_int_equal(metrics_log_open(&log, files_root, METRICS_FILE, 0, &err), OK);
        for (int64_t step = 1; step <= 3; step++) {
            StepMetrics m = {.step = step,
                             .z_loss = recorded == 0 ? 1 : none,
                             .balance_loss = recorded == 1 ? 1 : none,
                             .expert_imbalance = recorded == 2 ? 1 : none,
                             .noise_scale = recorded == 3 && step > 1 ? 1 : none};
            assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
        }
        metrics_log_close(&log);
        Text html = page();
        for (size_t i = 0; i < 4; i++) {
            char figure[32], data[32];
            snprintf(figure, sizeof figure, "<figure id=\"%s\">", ids[i]);
            snprintf(data, sizeof data, "\"%s\": [", ids[i]);
            assert_int_equal(count_of(html.data, figure), i == recorded);
            assert_int_equal(count_of(html.data, data), i == recorded);
        }
        text_free(&html);
    }
}

static void text_of_others_stays_text(void **state) {
    (void)state;
    write_run(3);
    files_text("config.yaml",
               "model:\n  hidden_size: \"<script>alert(1)</script>\"\n  num_hidden_layers: 4\n");
    files_text(JOURNAL_FILE,
               "{\"time\":\"<b>\",\"event\":\"<i>\",\"step\":1,\"detail\":\"</td><script>alert(2)</script>\","
               "\"<u>\":1,\"parameters\":6295296}\n"
               "{\"time\":\"t\",\"event\":\"finished\",\"step\":3,\"detail\":\"\"}\n{\"torn");
    Text html = page();
    assert_null(strstr(html.data, "<script>alert"));
    assert_null(strstr(html.data, "<b></td>"));
    assert_null(strstr(html.data, "<u>"));
    assert_non_null(strstr(html.data, "hidden &lt;script&gt;"));
    assert_non_null(strstr(html.data, "layers 4"));
    assert_non_null(strstr(html.data, "6.30 M"));
    assert_non_null(strstr(html.data, "state good\">finished"));
    text_free(&html);
}

static void a_young_run_has_a_page(void **state) {
    (void)state;
    files_text(METRICS_FILE, "");
    files_text("config.yaml", "a: [unclosed\n");
    Text html = page();
    assert_int_equal(count_of(html.data, "Nothing to draw yet"), 7);
    assert_non_null(strstr(html.data, "a: [unclosed")); /* shown anyway */
    assert_null(strstr(html.data, "nan"));
    text_free(&html);
    write_run(1);
    html = page();
    assert_non_null(strstr(html.data, "</html>"));
    text_free(&html);
}

/* Two ranks, one microbatch: rank 1 waits for rank 0, then rank 0 for rank 1. */
static void write_trace(void) {
    static const TimedAction first[] = {{{.kind = ACT_FWD, .unit = 0, .ops = {0, 1}}, 0, 0, 0.1, 0},
                                        {{.kind = ACT_BWD, .unit = 0, .ops = {0, 1}}, 0, 0.1, 0.6, 0.3}},
                             second[] = {{{.kind = ACT_FWD, .unit = 1, .ops = {0, 1}}, 1, 0, 0.2, 0.1},
                                         {{.kind = ACT_BWD, .unit = 1, .ops = {0, 1}}, 1, 0.2, 0.4, 0}};
    Timing t;
    Prediction p;
    timing_start(&t, 2, 2, 2);
    TimedStep *s = timing_add(&t, 7, 0);
    timing_set(s, 0, memcpy(mem_alloc(sizeof first), first, sizeof first), 2);
    timing_set(s, 1, memcpy(mem_alloc(sizeof second), second, sizeof second), 2);
    assert_int_equal(timing_predict(&p, &t, &err), OK);
    assert_int_equal(trace_write(files_path(TRACE_FILE), &t, &p, &err), OK);
    prediction_free(&p);
    timing_free(&t);
}

static void a_traced_step_is_drawn_planned_above_measured(void **state) {
    (void)state;
    write_run(10);
    write_trace();
    Text html = page();
    assert_int_equal(count_of(html.data, "<svg class=\"timeline\""), 1);
    const char *planned = strstr(html.data, "planned, with measured costs"),
               *measured = strstr(html.data, "step 7, measured");
    assert_true(planned && measured && planned < measured);
    assert_null(strstr(html.data, "http://"));
    /* both ranks are busy for 0.3 of 0.6 s */
    assert_non_null(strstr(html.data,
                           "<td class=\"n\">7</td><td class=\"n\">0.6</td><td class=\"n\">0.6</td><td "
                           "class=\"n\">50.0 %</td><td class=\"n\">50.0 %</td>"));
    text_free(&html);
    files_text(TRACE_FILE, "{\"traceEvents\": \"<script>\"}");
    html = page();
    assert_int_equal(count_of(html.data, "<svg class=\"timeline\""), 0);
    assert_non_null(strstr(html.data, "There is a trace, but "));
    text_free(&html);
    write_trace();
    assert_int_equal(unlink(files_path(TRACE_FILE)), 0);
}

static void several_runs_are_on_one_page(void **state) {
    (void)state;
    write_run(10);
    const char *hostile = files_mkdir("<script>alert(3)<");
    char *from = path_join(files_root, METRICS_FILE), *to = path_join(hostile, METRICS_FILE);
    assert_int_equal(link(from, to), 0); /* a hard link is accepted, since the file is only read */
    const char *const dirs[] = {files_root, hostile, files_root};
    Runs runs;
    Text html = {0};
    assert_int_equal(runs_open(&runs, dirs, 3, &err), OK);
    assert_true(runs_equal(&runs));
    report_write_runs(&html, &runs);
    assert_null(strstr(html.data, "<script>alert"));
    assert_non_null(strstr(html.data, "&lt;script&gt;alert(3)"));
    assert_int_equal(count_of(html.data, "<svg"), 7);
    assert_non_null(strstr(html.data, "line s3\"")); /* one colour per run */
    assert_int_equal(count_of(html.data, "No figure differs"), 2);
    assert_null(strstr(html.data, "http://"));
    assert_null(strstr(html.data, "src="));
    runs_free(&runs);
    text_free(&html);
    free(from);
    free(to);
}

static void a_wrong_place_is_named(void **state) {
    (void)state;
    Text html = {0};
    assert_int_equal(report_write(&html, "/nonexistent/run", &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "/nonexistent/run"));
    assert_int_equal(report_write(&html, files_mkdir("empty"), &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, METRICS_FILE));
    text_free(&html);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_round_and_inside),
        cmocka_unit_test(smoothing_neither_lags_nor_spreads_gaps),
        cmocka_unit_test(a_spike_in_a_million_points_stays),
        cmocka_unit_test(charts_take_anything),
        cmocka_unit_test(gaps_lift_the_pen),
        cmocka_unit_test(html_is_escaped),
        cmocka_unit_test(the_page_stands_alone),
        cmocka_unit_test(sets_and_tasks_are_shown),
        cmocka_unit_test(what_is_recorded_is_charted),
        cmocka_unit_test(text_of_others_stays_text),
        cmocka_unit_test(a_young_run_has_a_page),
        cmocka_unit_test(a_traced_step_is_drawn_planned_above_measured),
        cmocka_unit_test(several_runs_are_on_one_page),
        cmocka_unit_test(a_wrong_place_is_named),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
