/* Fuzzes a run directory whose metrics.jsonl and journal.jsonl are both the input. Records are read, written
 * and read again; resuming at a step leaves no later records; the report can be drawn from whatever was
 * read. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "fuzz.h"
#include "observe/journal.h"
#include "observe/metrics.h"
#include "observe/report.h"

/* A record of about 200 bytes may be as short as `{"kind":"train"}`; tables double. Entries of the journal
 * are short too. */
enum { PER_BYTE = 128, FIXED = 1 << 17 };

static MetricsTable read_table(const char *path, size_t size) {
    Error err = {0};
    MetricsTable t;
    fuzz_memory_start();
    REQUIRE(metrics_table_read(&t, path, &err) == OK);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    return t;
}

/* Compares field by field: the same 8 bytes each, or flags. */
static bool same_steps(const StepMetrics *a, const StepMetrics *b) {
    return a->step == b->step && memcmp(&a->loss, &b->loss, sizeof a->loss) == 0 &&
           a->skipped == b->skipped && a->total_tokens == b->total_tokens &&
           memcmp(&a->eta, &b->eta, sizeof a->eta) == 0 && a->spike == b->spike;
}

static void check_round_trip(const MetricsTable *t, const char *path) {
    Error err = {0};
    MetricsLog log;
    REQUIRE(metrics_log_open(&log, fuzz_directory(), METRICS_FILE, 0, &err) == OK);
    for (size_t i = 0; i < t->step_count; i++)
        REQUIRE(metrics_log_add(&log, METRICS_STEP, &t->steps[i], &err) == OK);
    for (size_t i = 0; i < t->validation_count; i++)
        REQUIRE(metrics_log_add(&log, METRICS_VALIDATION, &t->validations[i], &err) == OK);
    metrics_log_close(&log);
    MetricsTable again;
    REQUIRE(metrics_table_read(&again, path, &err) == OK);
    REQUIRE(again.bad_lines == 0 && again.step_count == t->step_count &&
            again.validation_count == t->validation_count);
    for (size_t i = 0; i < t->step_count; i++) REQUIRE(same_steps(&t->steps[i], &again.steps[i]));
    metrics_table_free(&again);
}

static void check_resume(const char *path, int64_t step) {
    Error err = {0};
    MetricsLog log;
    REQUIRE(metrics_log_open(&log, fuzz_directory(), METRICS_FILE, step, &err) == OK);
    metrics_log_close(&log);
    MetricsTable t;
    REQUIRE(metrics_table_read(&t, path, &err) == OK);
    for (size_t i = 0; i < t.step_count; i++) REQUIRE(t.steps[i].step <= step);
    for (size_t i = 0; i < t.validation_count; i++) REQUIRE(t.validations[i].step <= step);
    metrics_table_free(&t);
}

static void check_journal(const char *path, size_t size) {
    Error err = {0};
    JournalTable t;
    fuzz_memory_start();
    REQUIRE(journal_table_read(&t, path, &err) == OK);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    for (size_t i = 0; i < t.count; i++)
        REQUIRE(t.entries[i].time && t.entries[i].event && t.entries[i].detail);
    (void)journal_table_fact(&t, "peak_flops");
    journal_table_free(&t);
}

static void check_report(void) {
    Error err = {0};
    Text html = {0};
    if (fuzz_ok(report_write(&html, fuzz_directory(), &err), &err)) {
        REQUIRE(html.length > 0 && strlen(html.data) == html.length);
        /* Text of the run must not become markup. */
        REQUIRE(!strstr(html.data, "<fuzz"));
    }
    text_free(&html);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file(METRICS_FILE, data, size);
    check_journal(fuzz_file(JOURNAL_FILE, data, size), size);
    fuzz_file("config.yaml", data, size);
    MetricsTable t = read_table(path, size);
    check_report();
    check_resume(path, 5);
    check_round_trip(&t, path);
    metrics_table_free(&t);
    return 0;
}
