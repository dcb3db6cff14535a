/* Learning-rate schedules against the published check values of TorchTitan and Lingua. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "optimizer/learning_rate.h"

static void check(const LrScheduleOptions *s, int64_t total, const double *expected, int count,
                  double tolerance) {
    for (int i = 0; i < count; i++) {
        double f = learning_rate_factor(s, total, i);
        if (fabs(f - expected[i]) > tolerance)
            fail_msg("step %d of %d: %.9g, expected %.9g", i, (int)total, f, expected[i]);
    }
}

static LrScheduleOptions titan(int kind, int64_t warmup, double ratio, double min) {
    return (LrScheduleOptions){.kind = kind,
                               .warmup_steps = warmup,
                               .decay_ratio = ratio,
                               .min_factor = min,
                               .exponent = 0.5,
                               .cycle_length = 1,
                               .theta = 1};
}

static void test_titan_tables(void **state) {
    (void)state;
    const double linear[] = {.5, 1, 1, .875, .75, .625, .5, .375, .25, .125};
    const double ratio[] = {.5, 1, 1, 1, 1, 1, .8, .6, .4, .2};
    const double short_run[] = {.2, .4, .6, .8, 1};
    const double squeezed[] = {.2, .4, .6, .8, 1, 1, .8, .6, .4, .2};
    LrScheduleOptions s = titan(LR_LINEAR, 2, -1, 0);
    check(&s, 10, linear, 10, 1e-12);
    s = titan(LR_LINEAR, 2, 0.5, 0);
    check(&s, 10, ratio, 10, 1e-12);
    s = titan(LR_LINEAR, 10, -1, 0);
    check(&s, 5, short_run, 5, 1e-12);
    s = titan(LR_LINEAR, 5, 0.8, 0);
    check(&s, 10, squeezed, 10, 1e-12);
}

static void test_titan_ends(void **state) {
    (void)state;
    LrScheduleOptions s = titan(LR_LINEAR, 2, -1, 0.2);
    assert_true(fabs(learning_rate_factor(&s, 10, 10) - 0.2) < 1e-12);
    s = titan(LR_COSINE, 0, -1, 0.1);
    assert_true(fabs(learning_rate_factor(&s, 100, 50) - (0.1 + 0.9 * 0.5)) < 1e-12);
    assert_true(fabs(learning_rate_factor(&s, 100, 100) - 0.1) < 1e-12);
    s = titan(LR_SQRT, 0, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 100, 25) - 0.5) < 1e-12);
    s = titan(LR_CONSTANT, 4, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 100, 99) - 1) < 1e-12 &&
                fabs(learning_rate_factor(&s, 100, 1) - 0.5) < 1e-12);
    s = titan(LR_WSD, 10, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 100, 89) - 1) < 1e-12 &&
                fabs(learning_rate_factor(&s, 100, 95) - 0.5) < 1e-12);
    s = titan(LR_INVERSE_SQRT, 100, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 1000, 399) - 0.5) < 1e-12 &&
                fabs(learning_rate_factor(&s, 1000, 49) - 0.5) < 1e-12);
}

static void test_range(void **state) {
    (void)state;
    const double factors[] = {1e-4, 1e-3, 1e-2, 1e-1, 1, 1};
    LrScheduleOptions s = titan(LR_RANGE, 3, -1, 1e-4); /* the warmup is not looked at */
    check(&s, 5, factors, 6, 1e-15);
    check(&s, 1, (const double[]){1}, 1, 0);
}

/* Shapes with the phases of TorchTitan's: 10 steps of warmup, a decay of the last 20 of 100, whose end is the
 * virtual step 100. */
static void test_other_shapes(void **state) {
    static const struct {
        int kind;
        double ratio, min;
        int64_t step;
        double factor;
    } want[] = {
        {LR_EXPONENTIAL, -1, 0, 4, 0.5},
        {LR_EXPONENTIAL, -1, 0, 80, 1},
        {LR_EXPONENTIAL, -1, 0, 90, 0.41421356237309515}, /* 2 / sqrt(2) - 1 */
        {LR_EXPONENTIAL, -1, 0.1, 100, 0.1},
        {LR_EXPONENTIAL, 0.5, 0, 75, 0.41421356237309515},
        {LR_DROPS, -1, 0.25, 4, 0.5},
        {LR_DROPS, -1, 0.25, 80, 1},
        {LR_DROPS, -1, 0.25, 81, 0.5},
        {LR_DROPS, -1, 0.25, 90, 0.5},
        {LR_DROPS, -1, 0.25, 91, 0.25},
        {LR_DROPS, -1, 0.25, 99, 0.25},
        {LR_POWER, 0.2, 0, 9, 1},
        {LR_POWER, 0.2, 0, 39, 0.5},
        {LR_POWER, 0.2, 0, 80, 0.35136418446315326}, /* sqrt(10 / 81) */
        {LR_POWER, 0.2, 0, 90, 0.17568209223157663},
        {LR_POWER, 0.2, 0.1, 100, 0.1},
        {LR_COSINE_LINEAR, 0.2, 0, 9, 1},
        {LR_COSINE_LINEAR, 0.2, 0.1, 100, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        LrScheduleOptions s = titan(want[i].kind, 10, want[i].ratio, want[i].min);
        double found = learning_rate_factor(&s, 100, want[i].step);
        if (fabs(found - want[i].factor) > 1e-12)
            fail_msg("row %zu: %.17g, expected %.17g", i, found, want[i].factor);
    }
    /* The tail begins where the cosine over all steps stands, and falls evenly. */
    LrScheduleOptions whole = titan(LR_COSINE, 10, -1, 0.1), cut = titan(LR_COSINE_LINEAR, 10, 0.2, 0.1);
    double at = learning_rate_factor(&cut, 100, 80);
    for (int64_t step = 0; step < 100; step++) {
        double found = learning_rate_factor(&cut, 100, step), tail = at * (double)(100 - step) / 20;
        if (fabs(found - (step <= 80 ? learning_rate_factor(&whole, 100, step) : tail)) > 0.005)
            fail_msg("cosine_linear, step %d: %g", (int)step, found);
    }
}

typedef struct Row {
    int step;
    double value;
} Row;

static void check_rows(int kind, double cycle, const Row *rows, int count) {
    LrScheduleOptions s = titan(kind, 100, 0.1, 0.1);
    s.cycle_length = cycle;
    for (int i = 0; i < count; i++) {
        double f = learning_rate_factor(&s, 1000, rows[i].step);
        if (fabs(f - rows[i].value) > 6e-7)
            fail_msg("kind %d cycle %g step %d: %.7f, expected %.7f", kind, cycle, rows[i].step, f,
                     rows[i].value);
    }
}

static void test_lingua_tables(void **state) {
    (void)state;
    const Row linear[] = {{50, .5}, {101, .999}, {500, .6}, {901, .199}, {950, .15}, {999, .101}, {1000, .1}};
    const Row inverse[] = {{50, .5},       {101, .995037}, {500, .447214}, {901, .333148},
                           {950, .324443}, {999, .316386}, {1000, .316228}};
    /* At the last step Lingua's own cosine jumps back to 1: here it ends where it was going. */
    const Row cosine[] = {{50, .5},       {101, .999997}, {500, .628142}, {901, .126604},
                          {950, .106837}, {999, .100003}, {1000, .1}};
    const Row half[] = {{50, .5},       {101, .999989}, {451, .203269}, {499, .128223}, {500, .972862},
                        {901, .203269}, {950, .127138}, {999, .100011}, {1000, .1}};
    const Row wsd[] = {{50, .5},       {101, 1},       {451, 1},       {500, 1},
                       {901, .917431}, {950, .181818}, {999, .100908}, {1000, .1}};
    const Row wsd_half[] = {{50, .5},       {101, 1},       {451, .847458}, {499, .101833}, {500, 1},
                            {901, .917431}, {950, .181818}, {999, .100908}, {1000, .1}};
    check_rows(LR_LINGUA_LINEAR, 1, linear, 7);
    check_rows(LR_LINGUA_INVERSE_SQRT, 1, inverse, 7);
    check_rows(LR_LINGUA_COSINE, 1, cosine, 7);
    check_rows(LR_LINGUA_COSINE, 0.5, half, 9);
    check_rows(LR_LINGUA_WSD, 1, wsd, 8);
    check_rows(LR_LINGUA_WSD, 0.5, wsd_half, 9);
}

/* Every kind with a warmup goes from there to the peak, and is after it what it is without. */
static void test_warmup_from(void **state) {
    (void)state;
    for (int kind = 0; kind <= LR_LINGUA_INVERSE_SQRT; kind++) {
        if (kind == LR_RANGE) continue;
        LrScheduleOptions s = titan(kind, 10, 0.5, 0.01), from = s;
        from.warmup_from = 0.25;
        for (int64_t step = 0; step < 40; step++) {
            double f = learning_rate_factor(&s, 40, step), expected = step < 10 ? 0.25 + 0.75 * f : f,
                   found = learning_rate_factor(&from, 40, step);
            if (fabs(found - expected) > 1e-15)
                fail_msg("kind %d step %d: %.17g, expected %.17g", kind, (int)step, found, expected);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_titan_tables),  cmocka_unit_test(test_titan_ends),
        cmocka_unit_test(test_other_shapes),  cmocka_unit_test(test_warmup_from),
        cmocka_unit_test(test_lingua_tables), cmocka_unit_test(test_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
