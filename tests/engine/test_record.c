/* The record of a step: the bytes are the same for any order and tree in which ranks' records are
 * combined. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/record.h"

enum { RANKS = 13 };

static uint64_t draws;
static uint64_t draw_below(uint64_t n) { return rng_u64(3, draws++) % n; }

static StepRecord random_record(int rank, bool bad) {
    StepRecord r;
    record_start(&r);
    for (int i = 0; i < 40; i++) {
        GradStats s = {.max = ldexp(rng_uniform(4, draws++), (int)draw_below(200) - 100),
                       .first_nonfinite = -1};
        exact_add(&s.sum, s.max * s.max);
        if (bad && draw_below(8) == 0) s.nonfinite = (int64_t)draw_below(5) + 1;
        record_add_stats(&r, &s, (int64_t)draw_below(30), rank);
        LossSum loss = {.nonfinite = 0};
        exact_add(&loss.sum, rng_uniform(5, draws++) * 12);
        record_add_losses(&r, &loss);
        record_add_z_losses(&r, &loss);
    }
    r.valid = (int64_t)draw_below(1000);
    r.any = draw_below(4), r.all = draw_below(4);
    return r;
}

/* Combines two random records until one is left. */
static StepRecord combined(const StepRecord *records) {
    StepRecord left[RANKS];
    memcpy(left, records, sizeof left);
    for (int count = RANKS; count > 1; count--) {
        int a = (int)draw_below((uint64_t)count), b = (int)draw_below((uint64_t)count - 1);
        if (b >= a) b++;
        record_combine(&left[a], &left[b]);
        left[b] = left[count - 1];
    }
    return left[0];
}

static void any_tree_gives_the_same_bytes(void **state) {
    (void)state;
    StepRecord records[RANKS];
    for (int r = 0; r < RANKS; r++) records[r] = random_record(r, true);
    StepRecord first = combined(records);
    for (int round = 0; round < 200; round++) {
        StepRecord again = combined(records);
        assert_memory_equal(&again, &first, sizeof first);
    }
    assert_true(first.nonfinite > 0 && isnan(record_norm(&first, 2)));
}

static void figures_are_those_of_all(void **state) {
    (void)state;
    StepRecord records[RANKS], all;
    double squares = 0, losses = 0, max = 0;
    int64_t valid = 0;
    for (int r = 0; r < RANKS; r++) {
        records[r] = random_record(r, false);
        squares += exact_value(&records[r].norm), losses += exact_value(&records[r].loss);
        max = fmax(max, records[r].max);
        valid += records[r].valid;
    }
    all = combined(records);
    assert_true(all.valid == valid && all.nonfinite == 0 && all.culprit == -1 && all.culprit_rank == -1);
    assert_true(fabs(record_norm(&all, 2) - sqrt(squares)) <= 1e-14 * sqrt(squares));
    assert_true(fabs(record_norm(&all, 1) - squares) <= 1e-14 * squares);
    assert_true(fabs(record_norm(&all, 3) - max * cbrt(squares)) <= 1e-14 * max * cbrt(squares));
    assert_true(record_norm(&all, HUGE_VAL) >= max && record_norm(&all, HUGE_VAL) <= max);
    assert_true(fabs(record_loss(&all) - losses / (double)valid) <= 1e-14 * losses);
}

static void the_start_changes_nothing(void **state) {
    (void)state;
    StepRecord r = random_record(2, true), before, start;
    exact_normalise(&r.norm);
    exact_normalise(&r.loss);
    exact_normalise(&r.z_loss);
    before = r;
    record_start(&start);
    record_combine(&r, &start);
    assert_memory_equal(&r, &before, sizeof r);
    record_combine(&start, &before);
    assert_memory_equal(&start, &before, sizeof r);
}

static StepRecord with_culprit(int64_t parameter, int64_t rank) {
    StepRecord r;
    record_start(&r);
    record_add_stats(&r, &(GradStats){.nonfinite = 1}, parameter, rank);
    return r;
}

/* The lowest parameter, then the lowest rank. */
static void the_first_culprit_is_named(void **state) {
    (void)state;
    StepRecord all = with_culprit(7, 0), b = with_culprit(3, 5), c = with_culprit(3, 4),
               d = with_culprit(4, 1);
    record_combine(&all, &b);
    record_combine(&all, &c);
    record_combine(&all, &d);
    assert_true(all.culprit == 3 && all.culprit_rank == 4 && all.nonfinite == 4);
}

static void flags(void **state) {
    (void)state;
    StepRecord a, b;
    record_start(&a), record_start(&b);
    a.any = RECORD_STOP, b.all = ~(uint64_t)RECORD_WRITER;
    record_combine(&a, &b);
    assert_true(a.any & RECORD_STOP);
    assert_false(a.all & RECORD_WRITER);
}

static void a_bad_loss_shows(void **state) {
    (void)state;
    StepRecord a, b;
    record_start(&a), record_start(&b);
    a.valid = b.valid = 2;
    assert_true(record_loss(&a) >= 0 && record_loss(&a) <= 0);
    LossSum three = {.nonfinite = 0};
    exact_add(&three.sum, 3);
    record_add_losses(&a, &three);
    record_add_losses(&b, &(LossSum){.nonfinite = 1});
    record_combine(&a, &b);
    assert_true(a.bad_losses == 1 && isnan(record_loss(&a)));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_tree_gives_the_same_bytes),
                                       cmocka_unit_test(figures_are_those_of_all),
                                       cmocka_unit_test(the_start_changes_nothing),
                                       cmocka_unit_test(the_first_culprit_is_named),
                                       cmocka_unit_test(flags),
                                       cmocka_unit_test(a_bad_loss_shows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
