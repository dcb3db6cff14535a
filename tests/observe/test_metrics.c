/* The records of a run: metrics.jsonl, journal.jsonl, the lines on the terminal, the curve. */
#include "support/files.h"

#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "observe/console.h"
#include "observe/journal.h"
#include "observe/goodput.h"
#include "observe/metrics.h"
#include "observe/plot.h"

static Error err;

static StepMetrics sample(int64_t step) {
    return (StepMetrics){.step = step,
                         .total_steps = 1000,
                         .wall = 1769860800.25,
                         .loss = (double)(9.0f / (float)step),
                         .grad_norm = 1.0 / 3,
                         .clip_coefficient = 1,
                         .lr = 3e-4,
                         .step_tokens = 16384,
                         .total_tokens = 16384 * step,
                         .epoch = 0.125,
                         .step_seconds = 0.1,
                         .data_seconds = 1e-4,
                         .tokens_per_second = 163840.1,
                         .flops_per_second = 2.1e11,
                         .mfu = 0.612,
                         .eta = 185,
                         .memory_resident = 1000000000,
                         .memory_peak = 1320702444,
                         .memory_fraction = 0.051,
                         .device_memory = 2000000000,
                         .device_fraction = 0.25,
                         .run_seconds = 0.5 * (double)step,
                         .goodput = 0.75};
}

static MetricsTable read_table(void) {
    MetricsTable t;
    assert_int_equal(metrics_table_read(&t, files_path(METRICS_FILE), &err), OK);
    return t;
}

static void log_steps(int64_t resumed, int64_t from, int64_t to) {
    MetricsLog log;
    assert_int_equal(metrics_log_open(&log, files_root, METRICS_FILE, resumed, &err), OK);
    for (int64_t s = from; s <= to; s++) {
        StepMetrics m = sample(s);
        assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
    }
    ValidationMetrics v = {.step = to,
                           .loss = 0.1 + 0.2,
                           .perplexity = exp(0.1 + 0.2),
                           .bits_per_byte = (double)NAN,
                           .tokens = 7};
    assert_int_equal(metrics_log_add(&log, METRICS_VALIDATION, &v, &err), OK);
    assert_int_equal(metrics_log_sync(&log, &err), OK);
    metrics_log_close(&log);
}

/* Ten seconds of start, three steps of five, of which a restart loses the last two; then a minute's pause. */
static void goodput_goes_on_over_restarts(void **state) {
    (void)state;
    StepMetrics steps[3] = {{.step = 1, .wall = 1015, .step_seconds = 5},
                            {.step = 2, .wall = 1020, .step_seconds = 5},
                            {.step = 3, .wall = 1025, .step_seconds = 5}};
    MetricsTable table = {.steps = steps, .step_count = 3};
    StepMetrics last = {.wall = 1090};
    Goodput g;
    goodput_begin(&g, 1000);
    for (int i = 0; i < 3; i++) {
        goodput_step(&g, 5, false);
        goodput_fill(&g, &steps[i]);
    }
    assert_true(steps[2].run_seconds == 25 && steps[2].goodput == 0.6);
    goodput_begin(&g, 1080);
    goodput_resume(&g, &table, 1);
    assert_true(g.began == 1000 && fabs(g.counted - 5) < 1e-9);
    goodput_step(&g, 5, false);
    goodput_step(&g, 5, true); /* a skipped step does not count */
    goodput_fill(&g, &last);
    assert_true(last.run_seconds == 90 && fabs(last.goodput - 10.0 / 90) < 1e-9);
    goodput_begin(&g, 1080);
    goodput_resume(&g, &table, 0);
    assert_true(g.began == 1000 && g.counted == 0);
    /* A run of an older version has no such figures. */
    for (int i = 0; i < 3; i++) steps[i].run_seconds = steps[i].goodput = (double)NAN;
    goodput_begin(&g, 1080);
    goodput_resume(&g, &table, 2);
    assert_true(g.began == 1080 && g.counted == 0);
}

static void numbers_keep_all_their_digits(void **state) {
    (void)state;
    log_steps(0, 1, 3);
    MetricsTable t = read_table();
    assert_int_equal(t.step_count, 3);
    assert_int_equal(t.validation_count, 1);
    for (size_t i = 0; i < 3; i++) {
        StepMetrics want = sample((int64_t)i + 1), got = t.steps[i];
        assert_true(got.loss == want.loss && got.grad_norm == want.grad_norm && got.lr == want.lr &&
                    got.wall == want.wall);
        assert_true(got.tokens_per_second == want.tokens_per_second && got.mfu == want.mfu &&
                    got.eta == want.eta);
        assert_int_equal(got.step, want.step);
        assert_int_equal(got.total_tokens, want.total_tokens);
        assert_int_equal(got.memory_peak, want.memory_peak);
        assert_int_equal(got.device_memory, want.device_memory);
        assert_true(got.device_fraction == want.device_fraction);
        assert_true(got.run_seconds == want.run_seconds && got.goodput == want.goodput);
        assert_false(got.skipped || got.spike);
    }
    assert_true(t.validations[0].loss == 0.1 + 0.2);
    assert_true(isnan(t.validations[0].bits_per_byte));
    metrics_table_free(&t);
    size_t length;
    char *text = files_read(METRICS_FILE, &length);
    assert_non_null(strstr(text, "\"lr\": 0.0003,"));
    assert_non_null(strstr(text, "\"grad_norm\": 0.3333333333333333,"));
    assert_non_null(strstr(text, "\"bits_per_byte\": null"));
    free(text);
}

static void every_line_is_an_object(void **state) {
    (void)state;
    StepMetrics m = sample(1);
    m.loss = (double)NAN;
    m.grad_norm = (double)INFINITY;
    m.skipped = true;
    MetricsLog log;
    assert_int_equal(metrics_log_open(&log, files_root, METRICS_FILE, 0, &err), OK);
    assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
    /* flushed already: a reader sees it before the log is closed */
    MetricsTable t = read_table();
    assert_int_equal(t.step_count, 1);
    assert_true(isnan(t.steps[0].loss) && isnan(t.steps[0].grad_norm) && t.steps[0].skipped &&
                !t.steps[0].spike);
    metrics_table_free(&t);
    metrics_log_close(&log);
}

static void a_resumed_run_holds_each_step_once(void **state) {
    (void)state;
    log_steps(0, 1, 10);
    log_steps(6, 7, 12);
    MetricsTable t = read_table();
    assert_int_equal(t.step_count, 12);
    for (size_t i = 0; i < 12; i++) assert_int_equal(t.steps[i].step, (int64_t)i + 1);
    assert_int_equal(t.validation_count, 1); /* the one at step 10 was dropped */
    assert_int_equal(t.validations[0].step, 12);
    metrics_table_free(&t);
}

static void each_rank_has_its_file(void **state) {
    (void)state;
    char name[32];
    assert_string_equal(metrics_file_name(0, name), METRICS_FILE);
    assert_string_equal(metrics_file_name(12345, name), "metrics-12345.jsonl");
    assert_string_equal(metrics_file_name(3, name), "metrics-00003.jsonl");
    log_steps(0, 1, 2);
    MetricsLog log;
    assert_int_equal(metrics_log_open(&log, files_root, name, 0, &err), OK);
    StepMetrics m = sample(1);
    assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
    metrics_log_close(&log);
    MetricsTable first = read_table(), other;
    assert_int_equal(metrics_table_read(&other, files_path(name), &err), OK);
    assert_int_equal(first.step_count, 2);
    assert_int_equal(other.step_count, 1);
    metrics_table_free(&first);
    metrics_table_free(&other);
}

static void a_fresh_run_starts_an_empty_file(void **state) {
    (void)state;
    log_steps(0, 1, 5);
    log_steps(0, 1, 2);
    MetricsTable t = read_table();
    assert_int_equal(t.step_count, 2);
    metrics_table_free(&t);
}

static void a_torn_last_line_is_dropped(void **state) {
    (void)state;
    files_text(METRICS_FILE,
               "{\"kind\":\"train\",\"step\":1,\"loss\":5}\n{\"kind\":\"train\",\"step\":2,\"lo");
    MetricsTable t = read_table();
    assert_int_equal(t.step_count, 1);
    assert_int_equal(t.bad_lines, 1);
    metrics_table_free(&t);
    log_steps(2, 3, 3);
    t = read_table();
    assert_int_equal(t.step_count, 2);
    assert_int_equal(t.bad_lines, 0);
    assert_int_equal(t.steps[1].step, 3);
    metrics_table_free(&t);
}

static void lines_that_are_no_records_are_skipped(void **state) {
    (void)state;
    files_text(
        METRICS_FILE,
        "\n[]\n{}\n{\"kind\":3}\n{\"kind\":\"other\",\"step\":1}\n{\"kind\":\"train\",\"step\":\"x\"}\n"
        "{\"kind\":\"train\",\"step\":1.5}\n\x01\xff\n{\"kind\":\"train\",\"step\":4,\"loss\":null}\n");
    MetricsTable t = read_table();
    assert_int_equal(t.step_count, 1);
    assert_int_equal(t.steps[0].step, 4);
    assert_int_equal(t.bad_lines, 7);
    metrics_table_free(&t);
}

static void a_file_that_cannot_be_made_is_an_error(void **state) {
    (void)state;
    MetricsLog log;
    assert_int_equal(metrics_log_open(&log, "/nonexistent/run", METRICS_FILE, 0, &err), ERR_CANTCREATE);
    assert_non_null(strstr(err.message, "/nonexistent/run"));
    Journal j;
    assert_int_equal(journal_open(&j, "/nonexistent/run", &err), ERR_CANTCREATE);
}

static void rates_leave_pauses_out(void **state) {
    (void)state;
    MetricsWindow w = {0};
    StepMetrics m = {.step = 4, .total_steps = 10};
    for (int i = 0; i < 4; i++) metrics_window_step(&w, 1000, 0.5, 0.125, 0.25);
    metrics_window_pause(&w, 8);
    metrics_window_close(&w, 3e6, 6e9 * 2, &m);
    assert_true(m.tokens_per_second == 2000);
    assert_true(m.flops_per_second == 6e9);
    assert_true(m.mfu == 0.5);
    assert_true(m.step_seconds == 0.5 && m.data_seconds == 0.125 && m.wait_seconds == 0.25);
    assert_true(m.pause_seconds == 8);
    assert_true(m.eta == 6 * (0.5 + 2.0)); /* two seconds of pause per step so far */
    assert_true(m.memory_resident > 0 && m.memory_peak >= m.memory_resident && m.memory_fraction > 0);
    m = (StepMetrics){.step = 5, .total_steps = 10};
    metrics_window_step(&w, 1000, 0.25, 0, 0);
    metrics_window_close(&w, 3e6, 0, &m);
    assert_true(m.tokens_per_second == 4000); /* of the new window only */
    assert_true(m.pause_seconds == 0);
    assert_true(isnan(m.mfu));
}

static void an_empty_window_knows_nothing(void **state) {
    (void)state;
    MetricsWindow w = {0};
    StepMetrics m = {.step = 0, .total_steps = 10};
    metrics_window_close(&w, 3e6, 1e9, &m);
    assert_true(isnan(m.tokens_per_second) && isnan(m.eta) && isnan(m.step_seconds));
}

static void the_console_line_is_the_known_one(void **state) {
    (void)state;
    Text t = {0};
    StepMetrics m = sample(10);
    m.tokens_per_second = 12345;
    m.loss = 5.12345;
    m.grad_norm = 1.2345;
    m.loss_2 = m.loss_3 = m.loss_4 = m.loss_5 = NAN; /* no MTP heads */
    m.device_memory = 0;
    console_format_step(&t, &m, false);
    assert_string_equal(
        t.data, "step:   10  loss:  5.12345  grad_norm:  1.2345  memory:  1.23GiB(5.10%)  tps: 12,345  "
                "tflops: 0.210  mfu: 61.20%  data: 0.1%  lr: 3.00e-04  eta: 3m05s");
    text_clear(&t);
    /* If tensors are in a device's separate memory, its usage is shown, not the host's. */
    m.device_memory = (int64_t)3 << 30, m.device_fraction = 0.25;
    console_format_step(&t, &m, false);
    assert_non_null(strstr(t.data, "  memory:  3.00GiB(25.00%)  "));
    m.device_memory = 0, m.device_fraction = (double)NAN;
    text_clear(&t);
    m.spike = true;
    console_format_step(&t, &m, false);
    assert_non_null(strstr(t.data, "  SPIKE"));
    assert_null(strchr(t.data, '\033'));
    text_clear(&t);
    m.skipped = true;
    m.loss = -(double)NAN;
    m.mfu = m.eta = (double)NAN;
    console_format_step(&t, &m, true);
    assert_non_null(strstr(t.data, "SKIPPED"));
    assert_non_null(strstr(t.data, "loss: nan"));
    assert_null(strstr(t.data, "mfu"));
    assert_null(strstr(t.data, "eta"));
    assert_non_null(strchr(t.data, '\033'));
    text_free(&t);
}

static void the_status_line_fits(void **state) {
    (void)state;
    StepMetrics m = sample(500);
    for (int width = 1; width < 200; width++) {
        Text t = {0};
        console_format_status(&t, &m, width, false, false);
        if (width > 6) assert_true((int)t.length < width);
        text_free(&t);
    }
    Text t = {0};
    console_format_status(&t, &m, 200, false, false);
    assert_string_equal(
        t.data,
        " 50% ####################.................... 500/1000  loss 0.0180  163,840 tok/s  eta 3m05s");
    text_free(&t);
}

static void the_journal_survives_a_torn_line(void **state) {
    (void)state;
    files_text(
        JOURNAL_FILE,
        "{\"time\":\"2026-01-31T12:34:56Z\",\"event\":\"started\",\"step\":0,\"parameters\":5}\n{\"ti");
    Journal j;
    assert_int_equal(journal_open(&j, files_root, &err), OK);
    const JournalFact facts[] = {{"parameters", 6000000}, {"loss", (double)NAN}, {NULL, 0}};
    assert_int_equal(journal_add(&j, JOURNAL_RESUMED, 500, "from \"step-500\"\n<b>", facts, &err), OK);
    assert_int_equal(journal_add(&j, JOURNAL_NONFINITE, 501, NULL, NULL, &err), OK);
    journal_close(&j);
    JournalTable t;
    assert_int_equal(journal_table_read(&t, files_path(JOURNAL_FILE), &err), OK);
    assert_int_equal(t.count, 3);
    assert_string_equal(t.entries[1].event, "resumed");
    assert_string_equal(t.entries[1].detail, "from \"step-500\"\n<b>");
    assert_int_equal(t.entries[1].step, 500);
    assert_int_equal(strlen(t.entries[1].time), 20);
    assert_string_equal(t.entries[2].event, "nonfinite");
    assert_string_equal(t.entries[2].detail, "");
    assert_true(journal_table_fact(&t, "parameters") == 6000000);
    assert_true(isnan(journal_table_fact(&t, "no such")));
    journal_table_free(&t);
}

/* The list is one line, whose numbers are not facts of the event. */
static void the_journal_lists_files(void **state) {
    (void)state;
    const JournalFile files[] = {{"source", "a \"b\".txt", 1, 5, "0123", false},
                                 {"weights", "m", 2, 6, "4567", true},
                                 {"config", "-", 1, 0, "", false}};
    Journal j;
    files_text(JOURNAL_FILE, "");
    assert_int_equal(journal_open(&j, files_root, &err), OK);
    assert_int_equal(journal_add_files(&j, 7, files, 3, &err), OK);
    journal_close(&j);
    char *text;
    size_t length;
    assert_int_equal(file_read(files_path(JOURNAL_FILE), 1 << 20, &text, &length, &err), OK);
    assert_non_null(strstr(text,
                           "\"files\": [{\"kind\": \"source\", \"path\": \"a \\\"b\\\".txt\", \"files\": 1, "
                           "\"bytes\": 5, \"sha256\": \"0123\"}, "));
    assert_non_null(strstr(
        text,
        "\"bytes\": 6, \"sample\": \"4567\"}, {\"kind\": \"config\", \"path\": \"-\", \"files\": 1}]}"));
    free(text);
    JournalTable t;
    assert_int_equal(journal_table_read(&t, files_path(JOURNAL_FILE), &err), OK);
    assert_int_equal(t.count, 1);
    assert_string_equal(t.entries[0].event, "read");
    assert_string_equal(t.entries[0].detail, "source a \"b\".txt, weights m (2 files), config -");
    assert_int_equal(t.entries[0].step, 7);
    assert_null(t.entries[0].facts->name);
    journal_table_free(&t);
}

static void the_curve_keeps_its_size(void **state) {
    (void)state;
    double x[300], y[300];
    for (int i = 0; i < 300; i++) {
        x[i] = i;
        y[i] = i == 77 ? (double)NAN : 8 * exp(-i / 60.0) + 2;
    }
    for (int unicode = 0; unicode < 2; unicode++) {
        Text t = {0};
        plot_curve(&t, x, y, 300, 60, 10, unicode);
        int lines = 0;
        for (char *line = t.data; *line; lines++) {
            size_t width = 0, bytes = strcspn(line, "\n");
            for (size_t i = 0; i < bytes; i++) width += ((unsigned char)line[i] & 0xc0) != 0x80;
            assert_true(width <= 60);
            line += bytes + 1;
        }
        assert_int_equal(lines, 12);
        assert_non_null(strstr(t.data, "10.0"));
        assert_non_null(strstr(t.data, "299"));
        text_free(&t);
    }
    Text t = {0};
    plot_curve(&t, x, y, 0, 60, 10, true);
    assert_int_equal(t.length, 0);
    plot_curve(&t, x, y, 1, 0, 0, true); /* one point, sizes raised to the minimum */
    assert_true(t.length > 0);
    text_free(&t);
}

static size_t count_of(const char *text, char c) {
    size_t n = 0;
    for (; *text; text++) n += *text == c;
    return n;
}

static void curves_are_told_apart_with_colour_or_without(void **state) {
    (void)state;
    double x[50], flat[50], falling[50];
    for (int i = 0; i < 50; i++) {
        x[i] = i;
        flat[i] = 5;
        falling[i] = 10 - 0.2 * i;
    }
    const PlotCurve curves[] = {{x, flat, 50}, {x, falling, 50}};
    for (int unicode = 0; unicode < 2; unicode++) {
        Text t = {0};
        plot_curves(&t, curves, 2, 60, 11, unicode, false);
        assert_int_equal(count_of(t.data, 0x1b), 0);
        assert_true(count_of(t.data, 'a') > 20 && count_of(t.data, 'b') > 20);
        assert_in_range(count_of(t.data, '*'), 1, 8); /* where they intersect */
        text_clear(&t);
        plot_curves(&t, curves, 2, 60, 11, unicode, true);
        assert_non_null(strstr(t.data, "\x1b[34m"));
        assert_non_null(strstr(t.data, "\x1b[33m"));
        text_clear(&t);
        plot_curves(&t, curves, 1, 60, 11, unicode, true); /* a single curve needs no letter */
        assert_int_equal(count_of(t.data, 0x1b) + count_of(t.data, 'a'), 0);
        text_free(&t);
    }
}

/* A record of a named thing has its name, and is invalid without it. */
static void things_with_names_have_records(void **state) {
    (void)state;
    MetricsLog log;
    ValidationMetrics v = {
        .step = 4, .name = "code", .loss = 2.5, .perplexity = exp(2.5), .bits_per_byte = 1.5};
    TaskMetrics m = {.step = 4, .name = "piqa", .figures = {.documents = 7, .acc = 0.5, .acc_norm = 3.0 / 7}};
    assert_int_equal(metrics_log_open(&log, files_root, METRICS_FILE, 0, &err), OK);
    assert_int_equal(metrics_log_add(&log, METRICS_SET, &v, &err), OK);
    v.name[0] = '\0';
    v.loss = 3;
    assert_int_equal(metrics_log_add(&log, METRICS_VALIDATION, &v, &err), OK);
    assert_int_equal(metrics_log_add(&log, METRICS_TASK, &m, &err), OK);
    m.step = 8, m.figures.acc = (double)NAN;
    assert_int_equal(metrics_log_add(&log, METRICS_TASK, &m, &err), OK);
    metrics_log_close(&log);
    size_t length;
    char *text = files_read(METRICS_FILE, &length);
    assert_ptr_equal(strstr(text, "{\"kind\": \"set\", \"name\": \"code\", \"step\": 4,"), text);
    free(text);
    MetricsTable t = read_table();
    assert_int_equal(t.bad_lines, 0);
    assert_int_equal(t.validation_count, 1);
    assert_true(t.validations[0].loss == 3);
    assert_string_equal(t.validations[0].name, "");
    assert_int_equal(t.set_count, 1);
    assert_string_equal(t.sets[0].name, "code");
    assert_true(t.sets[0].loss == 2.5);
    assert_int_equal(t.task_count, 2);
    assert_string_equal(t.tasks[1].name, "piqa");
    assert_true(t.tasks[0].figures.acc_norm == 3.0 / 7 && isnan(t.tasks[1].figures.acc));
    metrics_table_free(&t);
    /* continuing at step 4 keeps the records of step 4 */
    assert_int_equal(metrics_log_open(&log, files_root, METRICS_FILE, 4, &err), OK);
    metrics_log_close(&log);
    t = read_table();
    assert_int_equal(t.task_count, 1);
    metrics_table_free(&t);
    static const char *const bad[] = {
        "{\"kind\": \"task\", \"step\": 4}", "{\"kind\": \"set\", \"name\": \"\", \"step\": 4}",
        "{\"kind\": \"task\", \"name\": 4}",
        ("{\"kind\": \"task\", \"name\": "
         "\"0123456789012345678901234567890123456789012345678901234567890123\"}")};
    MetricsRecord r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(metrics_parse(bad[i], strlen(bad[i]), &r));
}

/* Bits count, not digits; members that depend on time and machine do not. */
static void runs_part_where_a_bit_differs(void **state) {
    (void)state;
    StepMetrics a[4], b[4];
    ValidationMetrics va = {.step = 2, .loss = 3}, vb = va;
    MetricsTable first = {.steps = a, .step_count = 4, .validations = &va, .validation_count = 1},
                 second = {.steps = b, .step_count = 4, .validations = &vb, .validation_count = 1};
    MetricsComparison c;
    for (int s = 0; s < 4; s++) {
        a[s] = b[s] = sample(s + 1);
        b[s].wall += 1;
        b[s].tokens_per_second = 7;
        b[s].memory_peak = 7;
    }
    a[1].loss = b[1].loss = (double)NAN;
    metrics_compare(&first, &second, &c);
    assert_false(c.differs);
    assert_int_equal(c.steps, 4);
    assert_int_equal(c.validations, 1);
    b[2].grad_norm = nextafter(b[2].grad_norm, 1);
    metrics_compare(&first, &second, &c);
    assert_true(c.differs);
    assert_int_equal(c.first.step, 3);
    assert_string_equal(c.first.figure, "grad_norm");
    assert_string_equal(c.first.kind, "train");
    assert_true(c.first.values[0] == a[2].grad_norm && c.first.values[1] == b[2].grad_norm);
    assert_int_equal(c.steps, 2);
    vb.loss = 4; /* earlier */
    metrics_compare(&first, &second, &c);
    assert_string_equal(c.first.kind, "validation");
    assert_int_equal(c.first.step, 2);
    assert_int_equal(c.steps, 1);
    assert_int_equal(c.validations, 0);
    /* steps of only one run are ignored */
    second.steps = b + 1;
    second.step_count = 1;
    second.validation_count = 0;
    metrics_compare(&first, &second, &c);
    assert_false(c.differs);
    assert_int_equal(c.steps, 1);
    second.step_count = 0;
    metrics_compare(&first, &second, &c);
    assert_false(c.differs);
    assert_int_equal(c.steps, 0);
}

static void the_locale_decides_on_unicode(void **state) {
    (void)state;
    setenv("LC_ALL", "C", 1);
    setenv("LANG", "en_US.UTF-8", 1);
    assert_false(plot_locale_is_utf8());
    setenv("LC_ALL", "", 1);
    unsetenv("LC_CTYPE");
    assert_true(plot_locale_is_utf8());
}

static MetricsHole hole_of(int64_t resumed, size_t count, const int64_t *steps) {
    StepMetrics records[16] = {0};
    for (size_t i = 0; i < count; i++) records[i].step = steps[i];
    MetricsTable t = {.steps = records, .step_count = count};
    return metrics_hole(&t, resumed, 10);
}
static int64_t holes_of_each_step(size_t first, size_t count) {
    StepMetrics records[16] = {0};
    for (size_t i = 0; i < count; i++) records[i].step = (int64_t)(first + i);
    MetricsTable t = {.steps = records, .step_count = count};
    return metrics_hole(&t, (int64_t)(first + count) - 1, 1).records;
}
#define HOLE(resumed, ...) \
    hole_of(resumed, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

/* Lost records are counted; a different log_freq earlier is no loss. */
static void holes_are_counted(void **state) {
    (void)state;
    assert_int_equal(HOLE(40, 1, 10, 20, 30, 40).records, 0);
    assert_int_equal(HOLE(45, 1, 10, 20, 30, 40, 50).records, 0);
    MetricsHole h = HOLE(60, 1, 10, 20, 50, 60);
    assert_int_equal(h.records, 2);
    assert_int_equal(h.from, 20);
    assert_int_equal(h.to, 50);
    assert_int_equal(HOLE(60, 1, 10, 20, 30).records, 3);
    assert_int_equal(HOLE(60, 40, 50, 60).records, 3);
    assert_int_equal(hole_of(60, 0, NULL).records, 6);
    assert_int_equal(HOLE(250, 1, 50, 100, 150, 200).records, 0);
    assert_int_equal(HOLE(120, 1, 50, 100, 110, 120).records, 0);
    assert_int_equal(HOLE(150, 1, 10, 20, 30, 80, 130).records, 0);
    assert_int_equal(holes_of_each_step(1, 16), 0);
    assert_int_equal(holes_of_each_step(4, 10), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holes_are_counted),
        cmocka_unit_test(goodput_goes_on_over_restarts),
        cmocka_unit_test(numbers_keep_all_their_digits),
        cmocka_unit_test(every_line_is_an_object),
        cmocka_unit_test(a_resumed_run_holds_each_step_once),
        cmocka_unit_test(each_rank_has_its_file),
        cmocka_unit_test(a_fresh_run_starts_an_empty_file),
        cmocka_unit_test(a_torn_last_line_is_dropped),
        cmocka_unit_test(lines_that_are_no_records_are_skipped),
        cmocka_unit_test(a_file_that_cannot_be_made_is_an_error),
        cmocka_unit_test(rates_leave_pauses_out),
        cmocka_unit_test(an_empty_window_knows_nothing),
        cmocka_unit_test(the_console_line_is_the_known_one),
        cmocka_unit_test(the_status_line_fits),
        cmocka_unit_test(the_journal_survives_a_torn_line),
        cmocka_unit_test(the_journal_lists_files),
        cmocka_unit_test(the_curve_keeps_its_size),
        cmocka_unit_test(curves_are_told_apart_with_colour_or_without),
        cmocka_unit_test(things_with_names_have_records),
        cmocka_unit_test(runs_part_where_a_bit_differs),
        cmocka_unit_test(the_locale_decides_on_unicode),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
