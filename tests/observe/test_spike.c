/* The robust spike statistic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "observe/spike.h"

#define LIMIT 8.0

/* Normal values around 4 with deviation 0.5. */
static SpikeWindow filled(int count) {
    SpikeWindow w = {{0}, 0, 0};
    for (int i = 0; i < count; i++)
        spike_add(&w, 4 + 0.5 * rng_normal(rng_key(1, "spike"), (uint64_t)i, -10, 10));
    return w;
}

static void no_judgement_on_few_values(void **state) {
    (void)state;
    SpikeWindow w = filled(SPIKE_MINIMUM - 1);
    assert_true(spike_deviation(&w, 1e9) == 0);
    assert_false(spike_detect(&w, 1e9, LIMIT));
    spike_add(&w, 4);
    assert_true(spike_detect(&w, 1e9, LIMIT));
}

static void deviations_are_in_standard_deviations(void **state) {
    (void)state;
    SpikeWindow w = filled(SPIKE_WINDOW);
    double d = spike_deviation(&w, 4 + 0.5 * 10);
    assert_true(d > 7.5 && d < 13);
    assert_true(spike_deviation(&w, 4 - 0.5 * 10) < -7.5);
    assert_true(spike_detect(&w, 4 + 0.5 * 20, LIMIT));
    assert_false(spike_detect(&w, 4 - 0.5 * 20, LIMIT)); /* a low value is no spike */
    assert_false(spike_detect(&w, 5, LIMIT));
    assert_false(spike_detect(&w, 1e9, 0)); /* disabled */
}

static void normal_values_are_no_spikes(void **state) {
    (void)state;
    SpikeWindow w = filled(SPIKE_WINDOW);
    for (int i = 0; i < 20000; i++) {
        double value = 4 + 0.5 * rng_normal(rng_key(2, "spike"), (uint64_t)i, -10, 10);
        assert_false(spike_detect(&w, value, LIMIT));
        spike_add(&w, value);
    }
}

static void a_falling_loss_is_no_spike(void **state) {
    (void)state;
    SpikeWindow w = {{0}, 0, 0};
    for (int i = 1; i < 2000; i++) {
        double loss = 2 + 7 / sqrt(i);
        assert_false(spike_detect(&w, loss, LIMIT));
        spike_add(&w, loss);
    }
}

/* Forty nearly constant steps, with noise of 0.05% as in large batches, then a falling loss and a rising
 * gradient norm, faster with each step; a spike in between is detected. */
static void a_warmup_is_no_spike(void **state) {
    (void)state;
    SpikeWindow losses = {{0}, 0, 0}, norms = {{0}, 0, 0};
    for (int i = 0; i < 200; i++) {
        double noise = 1 + 5e-4 * rng_normal(rng_key(3, "warmup"), (uint64_t)i, -10, 10),
               far = i < 40 ? 0 : (i - 40) / 160.0;
        double loss = (9 - 4 * far * (2 - far)) * noise, norm = (0.3 + 2 * far * far) * noise;
        assert_false(spike_detect(&losses, loss, LIMIT));
        assert_false(spike_detect(&norms, norm, LIMIT));
        if (i > 40) assert_true(spike_detect(&losses, 40, LIMIT));
        if (i > 40) assert_true(spike_detect(&norms, 20 * norm, LIMIT));
        spike_add(&losses, loss);
        spike_add(&norms, norm);
    }
}

static void nonfinite_values_never_enter(void **state) {
    (void)state;
    SpikeWindow w = filled(SPIKE_WINDOW), before = w;
    spike_add(&w, (double)NAN);
    spike_add(&w, (double)INFINITY);
    spike_add(&w, -(double)INFINITY);
    assert_memory_equal(&w, &before, sizeof w);
    assert_true(spike_detect(&w, (double)NAN, LIMIT));
    assert_true(spike_detect(&w, -(double)INFINITY, LIMIT));
    assert_true(isnan(spike_deviation(&w, (double)NAN)));
    assert_false(spike_detect(&w, 4, LIMIT)); /* the outlier does not hide the next one */
}

static void outliers_do_not_blind(void **state) {
    (void)state;
    SpikeWindow w = filled(SPIKE_WINDOW);
    for (int i = 0; i < 3; i++) spike_add(&w, 1e30);
    assert_true(spike_detect(&w, 100, LIMIT));
    for (int i = 0; i < 10; i++) spike_add(&w, 1e30); /* a new level */
    assert_false(spike_detect(&w, 100, LIMIT));
    assert_false(spike_detect(&w, 1e30, LIMIT));
}

static void equal_values_do_not_divide_by_zero(void **state) {
    (void)state;
    SpikeWindow w = {{0}, 0, 0};
    for (int i = 0; i < SPIKE_WINDOW; i++) spike_add(&w, 2.5);
    assert_true(spike_deviation(&w, 2.5) == 0);
    assert_false(spike_detect(&w, 2.5 * (1 + 1e-6), LIMIT));
    assert_true(spike_detect(&w, 3, LIMIT));
    w = (SpikeWindow){{0}, 0, 0};
    for (int i = 0; i < SPIKE_WINDOW; i++) spike_add(&w, i % 2 ? DBL_MAX : -DBL_MAX);
    assert_false(isnan(spike_deviation(&w, 1)));
    w = (SpikeWindow){{0}, 0, 0};
    for (int i = 0; i < SPIKE_WINDOW; i++) spike_add(&w, 0);
    assert_true(spike_deviation(&w, 0) == 0);
}

static void the_window_is_saved_and_loaded(void **state) {
    (void)state;
    for (int count = 0; count < 300; count += 37) {
        SpikeWindow w = filled(count), back;
        double saved[SPIKE_WINDOW], again[SPIKE_WINDOW];
        size_t n = spike_save(&w, saved);
        assert_int_equal(n, count < SPIKE_WINDOW ? count : SPIKE_WINDOW);
        assert_int_equal(spike_load(&back, saved, n, NULL), OK);
        for (int i = 0; i < 50; i++) { /* both continue in the same way */
            double value = 3 + 0.1 * i;
            assert_true(spike_deviation(&w, value) == spike_deviation(&back, value));
            spike_add(&w, value);
            spike_add(&back, value);
        }
        assert_int_equal(spike_save(&w, saved), spike_save(&back, again));
        assert_memory_equal(saved, again, w.count * sizeof *saved);
    }
}

static void bad_windows_are_refused(void **state) {
    (void)state;
    double values[SPIKE_WINDOW + 1] = {0};
    SpikeWindow w;
    Error err;
    assert_int_equal(spike_load(&w, values, SPIKE_WINDOW + 1, &err), ERR_DATA);
    values[3] = (double)NAN;
    assert_int_equal(spike_load(&w, values, 10, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "value 3"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_judgement_on_few_values),
        cmocka_unit_test(deviations_are_in_standard_deviations),
        cmocka_unit_test(normal_values_are_no_spikes),
        cmocka_unit_test(a_falling_loss_is_no_spike),
        cmocka_unit_test(a_warmup_is_no_spike),
        cmocka_unit_test(nonfinite_values_never_enter),
        cmocka_unit_test(outliers_do_not_blind),
        cmocka_unit_test(equal_values_do_not_divide_by_zero),
        cmocka_unit_test(the_window_is_saved_and_loaded),
        cmocka_unit_test(bad_windows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
