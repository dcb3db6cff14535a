/* Order of samples: bijection within an epoch, exact shares at every prefix, no state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "data/sampler.h"

static Sampler *open_sampler(uint64_t seed, const uint64_t *windows, const double *shares, size_t count) {
    Sampler *s;
    Error err = {0};
    if (sampler_open(&s, seed, windows, shares, count, &err) != OK) fail_msg("%s", err.message);
    return s;
}

static void test_every_window_once_an_epoch(void **state) {
    (void)state;
    const uint64_t sizes[] = {1, 2, 3, 5, 7, 8, 64, 100, 255, 256, 257, 1000, 4097};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        uint64_t windows = sizes[n];
        Sampler *s = open_sampler(n, &windows, NULL, 1);
        unsigned char *seen = malloc(windows);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, windows);
            for (uint64_t i = 0; i < windows; i++) {
                Sample at = sampler_at(s, epoch * windows + i);
                assert_int_equal(at.source, 0);
                assert_int_equal(at.epoch, epoch);
                assert_true(at.window < windows);
                assert_int_equal(seen[at.window]++, 0);
            }
        }
        free(seen);
        sampler_close(s);
    }
}

static uint64_t order_hash(const Sampler *s, uint64_t from, uint64_t count) {
    uint64_t h = 1469598103934665603u;
    for (uint64_t k = from; k < from + count; k++) {
        Sample at = sampler_at(s, k);
        h = (h ^ (at.window * 31 + at.source)) * 1099511628211u;
    }
    return h;
}

static void test_epochs_and_seeds_reshuffle(void **state) {
    (void)state;
    uint64_t windows = 500;
    Sampler *a = open_sampler(1, &windows, NULL, 1), *b = open_sampler(2, &windows, NULL, 1),
            *c = open_sampler(1, &windows, NULL, 1);
    assert_true(order_hash(a, 0, 500) != order_hash(a, 500, 500));
    assert_true(order_hash(a, 0, 500) != order_hash(b, 0, 500));
    assert_true(order_hash(a, 0, 5000) == order_hash(c, 0, 5000));
    sampler_close(a);
    sampler_close(b);
    sampler_close(c);
}

static void test_sources_without_weights_are_one_corpus(void **state) {
    (void)state;
    const uint64_t windows[] = {10, 1, 300, 45};
    Sampler *s = open_sampler(5, windows, NULL, 4);
    bool seen[4][300] = {{0}};
    for (uint64_t k = 0; k < 356; k++) {
        Sample at = sampler_at(s, k);
        assert_true(at.source < 4 && at.window < windows[at.source] && at.epoch == 0);
        assert_false(seen[at.source][at.window]);
        seen[at.source][at.window] = true;
    }
    assert_int_equal(sampler_at(s, 356).epoch, 1);
    sampler_close(s);
}

/* At every prefix each source is within one sample of its share, and uses its windows in whole epochs. */
static void check_mixture(const uint64_t *windows, const double *shares, size_t count, uint64_t samples,
                          uint32_t cycle, double slack) {
    Sampler *s = open_sampler(9, windows, shares, count);
    if (cycle) assert_int_equal(sampler_cycle(s), cycle);
    double total = 0;
    for (size_t i = 0; i < count; i++) total += shares[i];
    uint64_t used[64] = {0}, sum = 0;
    for (size_t i = 0; i < count; i++) sum += sampler_slots(s, i);
    assert_int_equal(sum, sampler_cycle(s));
    for (uint64_t k = 0; k < samples; k++) {
        Sample at = sampler_at(s, k);
        assert_true(at.source < count);
        assert_int_equal(at.epoch, used[at.source] / windows[at.source]);
        used[at.source]++;
        for (size_t i = 0; i < count; i++) {
            uint64_t m = sampler_slots(s, i), c = sampler_cycle(s);
            /* used - (k + 1) m / c| < 1 in integers */
            int64_t off = (int64_t)(used[i] * c) - (int64_t)((k + 1) * m);
            if (off >= (int64_t)c || off <= -(int64_t)c)
                fail_msg("source %zu of %zu has %llu of %llu samples", i, count, (unsigned long long)used[i],
                         (unsigned long long)k + 1);
            assert_true(fabs((double)used[i] - (double)(k + 1) * shares[i] / total) < 1 + slack * (double)k);
        }
    }
    uint64_t counts[64];
    sampler_count(s, samples, counts);
    assert_memory_equal(counts, used, count * sizeof *counts);
    sampler_close(s);
}

static void test_mixture_is_exact_at_every_prefix(void **state) {
    (void)state;
    const uint64_t windows[] = {7, 100, 3, 50, 11, 23};
    check_mixture(windows, (const double[]){3, 1}, 2, 400, 4, 1e-12);
    check_mixture(windows, (const double[]){0.7, 0.2, 0.1}, 3, 1000, 10, 1e-12);
    check_mixture(windows, (const double[]){1, 1, 1}, 3, 999, 3, 1e-12);
    check_mixture(windows, (const double[]){0.333, 0.667}, 2, 5000, 1000, 1e-12);
    check_mixture(windows, (const double[]){1, 1, 1, 1, 1, 95}, 6, 3000, 100, 1e-12);
    check_mixture(windows, (const double[]){M_PI, M_E, M_SQRT2}, 3, 140000, 65536, 1.0 / 65536);
    check_mixture(windows, (const double[]){1e-9, 1}, 2, 140000, 65536, 1.0 / 65536);
    uint64_t state_bits = 88172645463325252u;
    for (int round = 0; round < 60; round++) {
        uint64_t many[12];
        double shares[12];
        size_t count = 2 + (size_t)round % 11;
        for (size_t i = 0; i < count; i++) {
            state_bits = state_bits * 6364136223846793005u + 1442695040888963407u;
            shares[i] = (double)(1 + (state_bits >> 40) % (round % 3 == 0 ? 9 : 997));
            many[i] = 1 + (state_bits >> 20) % 50;
        }
        check_mixture(many, shares, count, 4000, 0, 1.0 / 65536);
    }
}

/* Within a mixture each source uses each of its windows once per epoch. */
static void test_mixture_epochs(void **state) {
    (void)state;
    const uint64_t windows[] = {37, 5};
    Sampler *s = open_sampler(4, windows, (const double[]){2, 3}, 2);
    int seen[2][40] = {{0}};
    uint64_t epochs[2] = {0}, count[2] = {0};
    for (uint64_t k = 0; k < 2000; k++) {
        Sample at = sampler_at(s, k);
        if (at.epoch != epochs[at.source]) {
            assert_int_equal(at.epoch, epochs[at.source] + 1);
            assert_int_equal(count[at.source], windows[at.source]);
            memset(seen[at.source], 0, sizeof seen[0]);
            count[at.source] = 0;
            epochs[at.source]++;
        }
        assert_int_equal(seen[at.source][at.window]++, 0);
        count[at.source]++;
    }
    assert_true(epochs[0] >= 20 && epochs[1] >= 200);
    sampler_close(s);
}

static void test_far_samples_cost_nothing(void **state) {
    (void)state;
    const uint64_t windows[] = {UINT64_C(1) << 40, 3};
    Sampler *s = open_sampler(4, windows, (const double[]){1, 1}, 2);
    for (uint64_t k = UINT64_C(1) << 62, i = 0; i < 100; i++) {
        Sample at = sampler_at(s, k + i);
        assert_true(at.window < windows[at.source]);
    }
    sampler_close(s);
}

static void expect_refused(const uint64_t *windows, const double *shares, size_t count) {
    Sampler *s;
    Error err = {0};
    assert_int_not_equal(sampler_open(&s, 0, windows, shares, count, &err), OK);
    assert_true(err.message[0] != 0);
}

static void test_bad_mixtures(void **state) {
    (void)state;
    const uint64_t windows[] = {5, 5}, none[] = {5, 0}, huge[] = {INT64_MAX, INT64_MAX};
    expect_refused(windows, NULL, 0);
    expect_refused(windows, NULL, SAMPLER_SOURCES + 1);
    expect_refused(none, NULL, 2);
    expect_refused(huge, NULL, 2);
    expect_refused(windows, (const double[]){1, 0}, 2);
    expect_refused(windows, (const double[]){1, -1}, 2);
    expect_refused(windows, (const double[]){1, NAN}, 2);
    expect_refused(windows, (const double[]){1, INFINITY}, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_window_once_an_epoch),
        cmocka_unit_test(test_epochs_and_seeds_reshuffle),
        cmocka_unit_test(test_sources_without_weights_are_one_corpus),
        cmocka_unit_test(test_mixture_is_exact_at_every_prefix),
        cmocka_unit_test(test_mixture_epochs),
        cmocka_unit_test(test_far_samples_cost_nothing),
        cmocka_unit_test(test_bad_mixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
