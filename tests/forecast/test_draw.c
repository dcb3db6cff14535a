/* Drawings of timelines: figures agree with the simulation, rows are to scale, and SVG is well formed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "forecast/draw.h"

typedef struct Drawn {
    Schedule schedule;
    Simulation timing;
    Timeline line;
} Drawn;

static void start(Drawn *d, ScheduleName name, int ranks, int microbatches, const SimulateCosts *costs) {
    Error err = {0};
    int v = schedule_default_stages_per_rank(name);
    if (schedule_make(&d->schedule, name, ranks, microbatches, v, &err) != OK) fail_msg("%s", err.message);
    if (simulate(&d->timing, &d->schedule, costs, &err) != OK) fail_msg("%s", err.message);
    timeline_from_simulation(&d->line, d->schedule.name, &d->schedule, &d->timing);
}

static void finish(Drawn *d) {
    timeline_free(&d->line);
    simulation_free(&d->timing);
    schedule_free(&d->schedule);
}

static const SimulateCosts plain = {.uniform = {1, 1, 1}};
static const SimulateCosts uneven = {.uniform = {1, 1.25, 0.75}, .latency = 0.5, .overlap_is_max = true};

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * (1 + fabs(a)); }

static void test_figures_are_those_of_the_simulation(void **state) {
    (void)state;
    for (int n = 0; n < PIPE_NAMES; n++)
        for (int variant = 0; variant < 2; variant++) {
            Drawn d;
            Simulation f;
            start(&d, (ScheduleName)n, 4, 8, variant ? &uneven : &plain);
            timeline_figures(&d.line, &f);
            assert_true(near(f.makespan, d.timing.makespan) && near(f.bubble, d.timing.bubble) &&
                        near(f.span, d.timing.span));
            for (int r = 0; r < 4; r++) {
                const RankTimes *a = &f.rank[r], *b = &d.timing.rank[r];
                assert_true(near(a->start, b->start) && near(a->end, b->end));
                assert_true(near(a->busy, b->busy) && near(a->idle, b->idle));
                assert_int_equal(a->peak_input, b->peak_input);
                assert_int_equal(a->peak_weight, b->peak_weight);
            }
            free(f.rank);
            finish(&d);
        }
}

static void test_plain_rows(void **state) {
    (void)state;
    Drawn d;
    Text out = {0};
    start(&d, PIPE_1F1B, 2, 3, &plain);
    draw_terminal(&d.line, (TerminalStyle){43, false, false, 0}, &out); /* 36 columns for 12 units: 3 each */
    assert_non_null(strstr(out.data, "\nrank 0 F0-F1-......B0----F2-B1----...B2----\n"));
    assert_non_null(strstr(out.data, "\nrank 1 ...F0-B0----F1-B1----F2-B2----......\n"));
    assert_non_null(strstr(out.data, "makespan 12, bubble 25.0 %"));
    finish(&d);
    text_clear(&out);
    start(&d, PIPE_DUALPIPEV, 2, 4, &plain);
    draw_terminal(&d.line, (TerminalStyle){120, true, false, 0}, &out);
    assert_non_null(strstr(out.data, "f0")); /* a later stage */
    assert_non_null(strstr(out.data, "─"));
    assert_null(strchr(out.data, 0x1b));
    finish(&d);
    text_free(&out);
}

/* Width of a line in a terminal: characters without escape sequences. */
static int visible(const char *line) {
    int columns = 0;
    for (; *line && *line != '\n'; line++) {
        if (*line == 0x1b) {
            while (*line != 'm') line++;
        } else {
            columns += ((unsigned char)*line & 0xc0) != 0x80;
        }
    }
    return columns;
}

static void test_rows_keep_to_the_width(void **state) {
    (void)state;
    Drawn d;
    start(&d, PIPE_INTERLEAVED_1F1B, 4, 16, &uneven);
    for (int width = 40; width < 200; width += 23)
        for (int style = 0; style < 4; style++) {
            Text out = {0};
            draw_terminal(&d.line, (TerminalStyle){width, style & 1, style & 2, 0}, &out);
            const char *row = strstr(out.data, "\nrank 0 ");
            int first = visible(row + 1);
            for (int r = 0; r < 4; r++) {
                assert_true(visible(row + 1) <= width && visible(row + 1) == first && first > width / 2);
                row = strchr(row + 1, '\n');
            }
            assert_true((strchr(out.data, 0x1b) != NULL) == ((style & 2) != 0));
            text_free(&out);
        }
    finish(&d);
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

static void test_svg_has_every_box(void **state) {
    (void)state;
    Drawn d;
    Text out = {0};
    start(&d, PIPE_ZBV, 4, 8, &plain);
    draw_svg(&d.line, 1, 960, &out);
    /* A box is a closed sub-path: 8 microbatches x 8 stages x 3 kinds, an idle band for each of 4 ranks, 7
     * swatches. */
    assert_int_equal(count_of(out.data, "zM") + count_of(out.data, "z\""), 8 * 8 * 3 + 4 + 7);
    assert_int_equal(count_of(out.data, ">7</text>"), 8 * 3); /* each number once in each of its boxes */
    assert_int_equal(count_of(out.data, "<svg"), 1);
    assert_int_equal(count_of(out.data, "</svg>"), 1);
    assert_int_equal(count_of(out.data, "<text"), count_of(out.data, "</text>"));
    assert_null(strstr(out.data, "nan"));
    finish(&d);
    text_free(&out);
}

/* Width of the first box of a class: "<path class="f0" d="M58 50h..." */
static double first_width(const char *svg, const char *class) {
    const char *at = strstr(svg, class);
    assert_non_null(at);
    at = strchr(at, 'h');
    return strtod(at + 1, NULL);
}

/* Planned above measured: timelines of the same unit share a scale, others have their own. */
static void test_two_timelines(void **state) {
    (void)state;
    const int ranks[] = {0, 1};
    const char *titles[] = {"planned", "measured <\"1 & 2\">"};
    for (int same = 0; same < 2; same++) {
        Timeline lines[2];
        Text out = {0};
        for (int l = 0; l < 2; l++) {
            timeline_start(&lines[l], titles[l], l && !same ? "ms" : "", 2, 2, ranks);
            timeline_add(&lines[l], (Span){0, SPAN_F, 0, 0, 0, 1});
            timeline_add(&lines[l], (Span){0, SPAN_SEND, 0, 0, 1, 1.5});
            timeline_add(&lines[l], (Span){1, SPAN_F, 1, 0, 1.5, 2.5});
            timeline_add(&lines[l], (Span){1, SPAN_UPDATE, -1, -1, 2.5, l ? 10 : 5});
        }
        draw_svg(lines, 2, 800, &out);
        const char *second = strstr(out.data, "measured &#60;&#34;1 &#38; 2&#34;&#62;");
        assert_non_null(second);
        double above = first_width(out.data, "class=\"f0\""), below = first_width(second, "class=\"f0\"");
        assert_true(fabs(above - (same ? below : 2 * below)) < 0.2);
        assert_non_null(strstr(out.data, ">send</text>"));
        for (int l = 0; l < 2; l++) timeline_free(&lines[l]);
        text_free(&out);
    }
}

/* With more ranks than rows, those in the middle are left out of the drawing and the table, with a note. */
static void test_rows_are_folded(void **state) {
    (void)state;
    Drawn d;
    Text out = {0};
    start(&d, PIPE_1F1B, 8, 8, &plain);
    const double bytes[8] = {1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192};
    d.line.bytes = bytes;
    draw_terminal(&d.line, (TerminalStyle){120, false, false, 5}, &out);
    assert_non_null(strstr(out.data, "\nrank 2 "));
    assert_non_null(strstr(out.data, "\nranks 3 to 5 are left out\nrank 6 "));
    assert_null(strstr(out.data, "\nrank 3 "));
    assert_null(strstr(out.data, "4.00 KiB"));
    assert_non_null(strstr(out.data, "8.00 KiB"));
    text_clear(&out);
    draw_terminal(&d.line, (TerminalStyle){40, false, false, 8}, &out);
    assert_null(strstr(out.data, "left out"));
    assert_null(strstr(out.data, "not drawn"));
    finish(&d);
    text_clear(&out);
    start(&d, PIPE_1F1B, 2, 64, &plain);
    draw_terminal(&d.line, (TerminalStyle){100, false, false, 2}, &out);
    assert_non_null(strstr(out.data, "not drawn: 128 passes"));
    assert_null(strstr(out.data, "\nrank 0 "));
    finish(&d);
    text_free(&out);
}

/* Cells narrower than a column are reported, with the width that shows all; at that width nothing is
 * reported. */
static void test_narrow_cells(void **state) {
    (void)state;
    Drawn d;
    Text out = {0};
    start(&d, PIPE_1F1B, 2, 64, &plain);
    draw_terminal(&d.line, (TerminalStyle){60, false, false, 0}, &out);
    assert_non_null(
        strstr(out.data,
               "cells are narrower than a column: not all are shown; 195 columns show all: --width 202\n"));
    assert_null(strstr(out.data, "numbers are microbatches")); /* no number is drawn */
    for (int width = 201; width <= 202; width++) {
        text_clear(&out);
        draw_terminal(&d.line, (TerminalStyle){width, false, false, 0}, &out);
        assert_int_equal(strstr(out.data, "narrower") == NULL, width == 202);
    }
    assert_int_equal(count_of(strstr(out.data, "\nrank 0 FF..B0F"), "F"),
                     2 * 64 + 1); /* one is in the legend */
    text_clear(&out);
    draw_terminal(&d.line, (TerminalStyle){40, false, false, 2}, &out);
    assert_non_null(
        strstr(out.data, "not drawn: 128 passes of a rank on 33 columns; --width 202 draws them\n"));
    finish(&d);
    text_free(&out);
}

/* Upper and lower case distinguish two stages of a rank; with more stages, each has a letter. */
static void test_many_stages_of_a_rank(void **state) {
    (void)state;
    Drawn d = {0};
    Error err = {0};
    Text out = {0};
    if (schedule_make(&d.schedule, PIPE_LOOPED_BFS, 2, 2, 3, &err) != OK) fail_msg("%s", err.message);
    if (simulate(&d.timing, &d.schedule, &plain, &err) != OK) fail_msg("%s", err.message);
    timeline_from_simulation(&d.line, d.schedule.name, &d.schedule, &d.timing);
    draw_terminal(&d.line, (TerminalStyle){130, false, false, 0}, &out);
    assert_non_null(strstr(out.data, "\nrank 0 Fa0--Fa1--fb0--fb1--fc0--fc1--"));
    assert_non_null(strstr(out.data, "small letters; a, b, c: its first, second, third"));
    text_clear(&out);
    draw_terminal(&d.line, (TerminalStyle){40, false, false, 0}, &out);
    assert_non_null(strstr(out.data, "\nrank 0 FFffff"));
    finish(&d);
    text_free(&out);
}

static void test_an_empty_timeline(void **state) {
    (void)state;
    const int ranks[] = {0};
    Timeline t;
    Text out = {0};
    timeline_start(&t, "nothing", "s", 1, 1, ranks);
    draw_terminal(&t, (TerminalStyle){80, true, true, 0}, &out);
    draw_svg(&t, 1, 640, &out);
    assert_null(strstr(out.data, "nan"));
    assert_null(strstr(out.data, "inf"));
    timeline_free(&t);
    text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures_are_those_of_the_simulation),
        cmocka_unit_test(test_plain_rows),
        cmocka_unit_test(test_rows_keep_to_the_width),
        cmocka_unit_test(test_svg_has_every_box),
        cmocka_unit_test(test_two_timelines),
        cmocka_unit_test(test_rows_are_folded),
        cmocka_unit_test(test_narrow_cells),
        cmocka_unit_test(test_many_stages_of_a_rank),
        cmocka_unit_test(test_an_empty_timeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
