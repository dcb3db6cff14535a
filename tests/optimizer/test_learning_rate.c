/* Learning-rate schedules against the published check values of TorchTitan and Lingua. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "optimizer/learning_rate.h"

static void check(const ScheduleOptions *s, int64_t total, const double *expected, int count,
                  double tolerance) {
    for (int i = 0; i < count; i++) {
        double f = learning_rate_factor(s, total, i);
        if (fabs(f - expected[i]) > tolerance)
            fail_msg("step %d of %d: %.9g, expected %.9g", i, (int)total, f, expected[i]);
    }
}

static ScheduleOptions titan(int kind, int64_t warmup, double ratio, double min) {
    return (ScheduleOptions){.kind = kind,
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
    ScheduleOptions s = titan(SCHEDULE_LINEAR, 2, -1, 0);
    check(&s, 10, linear, 10, 1e-12);
    s = titan(SCHEDULE_LINEAR, 2, 0.5, 0);
    check(&s, 10, ratio, 10, 1e-12);
    s = titan(SCHEDULE_LINEAR, 10, -1, 0);
    check(&s, 5, short_run, 5, 1e-12);
    s = titan(SCHEDULE_LINEAR, 5, 0.8, 0);
    check(&s, 10, squeezed, 10, 1e-12);
}

static void test_titan_ends(void **state) {
    (void)state;
    ScheduleOptions s = titan(SCHEDULE_LINEAR, 2, -1, 0.2);
    assert_true(fabs(learning_rate_factor(&s, 10, 10) - 0.2) < 1e-12);
    s = titan(SCHEDULE_COSINE, 0, -1, 0.1);
    assert_true(fabs(learning_rate_factor(&s, 100, 50) - (0.1 + 0.9 * 0.5)) < 1e-12);
    assert_true(fabs(learning_rate_factor(&s, 100, 100) - 0.1) < 1e-12);
    s = titan(SCHEDULE_SQRT, 0, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 100, 25) - 0.5) < 1e-12);
    s = titan(SCHEDULE_CONSTANT, 4, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 100, 99) - 1) < 1e-12 &&
                fabs(learning_rate_factor(&s, 100, 1) - 0.5) < 1e-12);
    s = titan(SCHEDULE_WSD, 10, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 100, 89) - 1) < 1e-12 &&
                fabs(learning_rate_factor(&s, 100, 95) - 0.5) < 1e-12);
    s = titan(SCHEDULE_INVERSE_SQRT, 100, -1, 0);
    assert_true(fabs(learning_rate_factor(&s, 1000, 399) - 0.5) < 1e-12 &&
                fabs(learning_rate_factor(&s, 1000, 49) - 0.5) < 1e-12);
}

static void test_range(void **state) {
    (void)state;
    const double factors[] = {1e-4, 1e-3, 1e-2, 1e-1, 1, 1};
    ScheduleOptions s = titan(SCHEDULE_RANGE, 3, -1, 1e-4); /* the warmup is not looked at */
    check(&s, 5, factors, 6, 1e-15);
    check(&s, 1, (const double[]){1}, 1, 0);
}

typedef struct Row {
    int step;
    double value;
} Row;

static void check_rows(int kind, double cycle, const Row *rows, int count) {
    ScheduleOptions s = titan(kind, 100, 0.1, 0.1);
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
    check_rows(SCHEDULE_LINGUA_LINEAR, 1, linear, 7);
    check_rows(SCHEDULE_LINGUA_INVERSE_SQRT, 1, inverse, 7);
    check_rows(SCHEDULE_LINGUA_COSINE, 1, cosine, 7);
    check_rows(SCHEDULE_LINGUA_COSINE, 0.5, half, 9);
    check_rows(SCHEDULE_LINGUA_WSD, 1, wsd, 8);
    check_rows(SCHEDULE_LINGUA_WSD, 0.5, wsd_half, 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_titan_tables), cmocka_unit_test(test_titan_ends),
                                       cmocka_unit_test(test_lingua_tables), cmocka_unit_test(test_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
