/* Shards of a flat: even, complete, not inside matrices that must stay whole; and their assignment to
 * ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "base/rng.h"
#include "program/cuts.h"

enum { MOST = 64 };

/* Shards follow each other without a gap, and no whole run is in two of them. */
static void check(int64_t elements, const WholeRun *whole_runs, int n, int count, const CommRange *shards) {
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        assert_int_equal(shards[i].first, at);
        assert_true(shards[i].count >= 0);
        at += shards[i].count;
        for (int k = 0; k < n; k++) assert_false(whole_runs[k].first < at && at < whole_runs[k].end);
    }
    assert_int_equal(at, elements);
}

static void even_shards(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 16, 32, 48, 160, 1600, 100000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int count = 1; count <= 9; count++) {
            CommRange shards[MOST];
            cut_evenly(sizes[s], NULL, 0, count, shards);
            check(sizes[s], NULL, 0, count, shards);
            int64_t each = ((sizes[s] + count - 1) / count + 15) / 16 * 16;
            for (int i = 0; i < count; i++) {
                int64_t left = sizes[s] - i * each;
                assert_int_equal(shards[i].count, left < 0 ? 0 : left < each ? left : each);
            }
        }
}

/* Whether `count` shards of at most `limit` elements exist: cuts as late as possible. */
static bool possible(int64_t elements, const WholeRun *whole_runs, int n, int count, int64_t limit) {
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        int64_t end = at + limit < elements ? at + limit : elements;
        for (int k = n - 1; k >= 0; k--)
            if (whole_runs[k].first < end && end < whole_runs[k].end) end = whole_runs[k].first;
        if (end <= at) break;
        at = end;
    }
    return at == elements;
}

/* No shard maximum could be smaller by a cache line. */
static void whole_matrices(void **state) {
    (void)state;
    for (uint64_t trial = 0; trial < 300; trial++) {
        WholeRun whole_runs[8];
        CommRange shards[MOST];
        int n = 1 + (int)(rng_u64(trial, 0) % 8), count = 1 + (int)(rng_u64(trial, 1) % 11);
        int64_t at = 0, most = 0;
        for (int k = 0; k < n; k++) {
            at += (int64_t)(rng_u64(trial, (uint64_t)(10 + k)) % 2 *
                            (rng_u64(trial, (uint64_t)(20 + k)) % 500));
            whole_runs[k].first = at;
            at += 1 + (int64_t)(rng_u64(trial, (uint64_t)(30 + k)) % 3000);
            whole_runs[k].end = at;
        }
        int64_t elements = (at + 15) / 16 * 16;
        cut_evenly(elements, whole_runs, n, count, shards);
        check(elements, whole_runs, n, count, shards);
        for (int i = 0; i < count; i++) most = shards[i].count > most ? shards[i].count : most;
        assert_false(possible(elements, whole_runs, n, count, most - 16));
    }
}

/* Seven matrices a block over four ranks: unequal in one block, but equal over many. */
static void loads_are_balanced(void **state) {
    (void)state;
    static const int64_t sizes[] = {4096, 1024, 1024, 4096, 14336, 14336, 14336};
    WholeRun whole_runs[7];
    int64_t at = 0, load[MOST] = {0}, most = 0, sum = 0;
    for (int k = 0; k < 7; k++) whole_runs[k] = (WholeRun){at, at + sizes[k]}, at += sizes[k];
    for (int block = 0; block < 32; block++) {
        CommRange shards[MOST];
        int64_t covered = 0;
        cut_evenly(at, whole_runs, 7, 4, shards);
        cut_assign(shards, 4, load);
        for (int i = 0; i < 4; i++) load[i] += shards[i].count, covered += shards[i].count;
        assert_int_equal(covered, at);
    }
    for (int i = 0; i < 4; i++) most = load[i] > most ? load[i] : most, sum += load[i];
    assert_true(most * 4 * 100 <= sum * 102); /* the fullest has at most 2% more than the average */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(even_shards), cmocka_unit_test(whole_matrices),
                                       cmocka_unit_test(loads_are_balanced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
