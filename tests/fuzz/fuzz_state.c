/* Fuzzes state.json of a checkpoint, for a run with the default configuration. An accepted one has counts
 * from which a run can resume, and windows of finite values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "fuzz.h"
#include "train/changes.h"

/* The state is a tree, and so is the YAML in one of its strings; this run's own configuration does not depend
 * on it. */
enum { PER_BYTE = 512, FIXED = 1 << 19 };

#define PRINT "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void check_window(const SpikeWindow *w) {
    double values[SPIKE_WINDOW];
    size_t count = spike_save(w, values);
    REQUIRE(count <= SPIKE_WINDOW);
    for (size_t i = 0; i < count; i++) REQUIRE(isfinite(values[i]));
    REQUIRE(!isnan(spike_deviation(w, 1.0)));
}

static void check_count(int64_t count) { REQUIRE(count >= 0 && count <= INT64_C(1) << 53); }

static void check_state(const SavedRun *saved) {
    const RunState *s = &saved->state;
    check_count(s->step);
    check_count(s->samples);
    check_count(s->tokens);
    check_count(s->skipped);
    check_count(saved->updates);
    check_window(&s->losses);
    check_window(&s->norms);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Config c;
    static OptionSet set;
    static RunFacts facts = {.data = PRINT, .tokenizer = PRINT};
    static SavedRun saved;
    Error err = {0};
    Text said = {0}, idle = {0};
    fuzz_directory();
    if (!set.table) REQUIRE(config_set_open(&set, &c, &err) == OK && config_derive(&c, &set, &err) == OK);
    char *text = mem_alloc(size + 1);
    memcpy(text, data, size);
    fuzz_memory_start();
    bool good = fuzz_ok(saved_parse(&saved, text, &err), &err);
    if (good) fuzz_ok(changes_check(&saved, &c, &set, &facts, &said, &idle, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    free(text);
    text_free(&said);
    text_free(&idle);
    if (good) check_state(&saved);
    saved_free(&saved);
    return 0;
}
