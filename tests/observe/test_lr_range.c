/* Learning-rate range tests with known results. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "observe/lr_range.h"

enum { STEPS = 500 };
static StepMetrics steps[STEPS];
static const MetricsTable table = {.steps = steps, .step_count = STEPS};

/* Learning rates from 1e-6 to 1 in geometric steps; the loss as a function of log10 of the learning rate,
 * with a jump between steps. */
static void fill(double (*loss)(double x), double jump) {
    for (int i = 0; i < STEPS; i++) {
        double x = -6 + 6.0 * i / (STEPS - 1);
        steps[i] = (StepMetrics){.step = i + 1, .lr = pow(10, x), .loss = loss(x) + (i % 2 ? jump : -jump)};
    }
}

/* 6 up to 1e-4, linearly down to 3 at 1e-2, up again from 3e-2 at the same rate. */
static double valley(double x) {
    if (x < -4) return 6;
    if (x < -2) return 6 - 1.5 * (x + 4);
    return x < -1.5 ? 3 : 3 + 6 * (x + 1.5);
}
static double explodes(double x) { return x > -1.5 ? (double)NAN : valley(x); }
static double only_falls(double x) { return 6 - 0.1 * (x + 6); }
static double only_rises(double x) { return 6 + 0.1 * (x + 6); }

static void near(double found, double log10_wanted, double decades) {
    if (!(fabs(log10(found) - log10_wanted) <= decades))
        fail_msg("found %g, expected 10^%g", found, log10_wanted);
}

/* The window is 26 steps, 0.31 decades, which is the precision of the marks. */
static void marks_stand_where_the_curve_turns(void **state) {
    (void)state;
    for (int noisy = 0; noisy < 2; noisy++) {
        fill(valley, noisy ? 0.3 : 0);
        LrRange r = lr_range_find(&table);
        assert_true(r.known);
        near(r.falls, -3.9, 0.32); /* a twentieth of the fall of 3 after 1e-4 */
        assert_true(r.steepest > 1e-4 && r.steepest < 1e-2);
        near(r.lowest, -1.75, 0.35);
        near(r.rises, -1.45, 0.32);
        assert_true(r.falls < r.steepest && r.steepest < r.lowest && r.lowest < r.rises);
    }
}

static void a_loss_that_is_not_finite_has_risen(void **state) {
    (void)state;
    fill(explodes, 0);
    LrRange r = lr_range_find(&table);
    assert_true(r.known);
    near(r.rises, -1.5, 0.32);
    assert_true(r.lowest < r.rises);
}

static void what_was_not_seen_is_not_said(void **state) {
    (void)state;
    Text words = {0};
    fill(only_falls, 0);
    LrRange r = lr_range_find(&table);
    assert_true(r.known && isnan(r.rises));
    lr_range_describe(&r, &words);
    assert_non_null(strstr(words.data, "ended before it rose"));
    fill(only_rises, 0);
    r = lr_range_find(&table);
    assert_false(r.known);
    text_clear(&words);
    lr_range_describe(&r, &words);
    assert_non_null(strstr(words.data, "no suggestion"));
    MetricsTable few = {.steps = steps, .step_count = LR_RANGE_MINIMUM - 1};
    fill(valley, 0);
    assert_false(lr_range_find(&few).known);
    text_free(&words);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(marks_stand_where_the_curve_turns),
                                       cmocka_unit_test(a_loss_that_is_not_finite_has_risen),
                                       cmocka_unit_test(what_was_not_seen_is_not_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
