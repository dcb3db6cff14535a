/* Fuzzes a trace file: an accepted one can be predicted from, drawn, and written so that it reads back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "observe/trace.h"

/* An event may be as short as `1,`; cJSON takes 64 bytes per value, and the reader as much per action. */
enum { PER_BYTE = 256, FIXED = 1 << 16 };

static void check_picture(const Timing *t, const Prediction *p) {
    Text out = {0};
    Timeline lines[2] = {p->planned[0]};
    timing_measured(t, t->count - 1, 0, &lines[1]);
    draw_svg_in_page(lines, 2, 800, &out);
    REQUIRE(out.length > 0 && !strstr(out.data, "nan") && !strstr(out.data, "inf"));
    timeline_free(&lines[1]);
    text_free(&out);
}

static void check_round_trip(const Timing *t, const Prediction *p) {
    Text out = {0};
    Error err = {0};
    Timing again;
    trace_format(t, p, &out);
    REQUIRE(trace_parse(&again, "again", out.data, out.length, &err) == OK);
    REQUIRE(again.count == t->count && again.ranks == t->ranks);
    for (int s = 0; s < t->count; s++)
        for (int r = 0; r < t->ranks; r++)
            REQUIRE(again.steps[s].ranks[r].count == t->steps[s].ranks[r].count);
    timing_free(&again);
    text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    Timing t;
    fuzz_memory_start();
    bool good = fuzz_ok(trace_parse(&t, "trace", (const char *)data, size, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    Prediction p = {0};
    if (good && fuzz_ok(timing_predict(&p, &t, &err), &err)) {
        REQUIRE(isfinite(p.seconds) && p.seconds >= 0);
        check_picture(&t, &p);
        check_round_trip(&t, &p);
    }
    prediction_free(&p);
    timing_free(&t);
    return 0;
}
