/* Which cores weft doctor --burn names, from the hashes that they had. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cli/burn.h"

/* Three cores and the threads of all, whose kernels had the same results. */
static Burn same(BurnWorker workers[4]) {
    memset(workers, 0, 4 * sizeof *workers);
    for (int i = 0; i < 4; i++) {
        workers[i].core = i < 3 ? 4 + i : -1;
        workers[i].threads = i < 3 ? 1 : 3;
        for (int k = 0; k < BURN_KERNELS; k++) workers[i].results[k][0] = (BurnResult){7, 10};
    }
    return (Burn){.cores = 3, .workers = workers};
}

static void expect_lines(const Burn *b, int lines, const char *text) {
    Text out = {0};
    assert_int_equal(burn_judge(b, &out), lines);
    assert_string_equal(out.length ? out.data : "", text);
    text_free(&out);
}

static void test_equal(void **state) {
    BurnWorker w[4];
    Burn b = same(w);
    (void)state;
    expect_lines(&b, 0, "");
}

/* A core that is wrong each time, one that is wrong once, and threads that are. */
static void test_minority(void **state) {
    BurnWorker w[4];
    Burn b = same(w);
    (void)state;
    w[1].results[BURN_PRODUCTS_BF16][0].hash = 8;
    w[2].results[BURN_PRODUCTS_F32][1] = (BurnResult){9, 1};
    w[3].results[BURN_STEPS_F32][2] = (BurnResult){9, 2};
    expect_lines(&b, 3,
                 "core 6: products fp32: 1 of 11 repeats have other bits than most cores\n"
                 "core 5: products bf16: 10 of 10 repeats have other bits than most cores\n"
                 "3 threads: training steps fp32: 2 of 12 repeats have other bits than most cores\n");
}

/* Two of four: nobody knows which are wrong, and both sides are named. */
static void test_tie(void **state) {
    BurnWorker w[4];
    Burn b = same(w);
    (void)state;
    w[0].results[BURN_STEPS_BF16][0].hash = 8;
    w[1].results[BURN_STEPS_BF16][0].hash = 8;
    expect_lines(&b, 4,
                 "core 4: training steps bf16: does not agree with others, and either may be wrong\n"
                 "core 5: training steps bf16: does not agree with others, and either may be wrong\n"
                 "core 6: training steps bf16: does not agree with others, and either may be wrong\n"
                 "3 threads: training steps bf16: does not agree with others, and either may be wrong\n");
}

/* A core whose test was killed has no results. */
static void test_killed(void **state) {
    BurnWorker w[4];
    Burn b = same(w);
    (void)state;
    memset(w[2].results, 0, sizeof w[2].results);
    strcpy(w[2].problem, "the test was killed by signal 4 (Illegal instruction)");
    expect_lines(&b, 1, "core 6: the test was killed by signal 4 (Illegal instruction)\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal), cmocka_unit_test(test_minority),
                                       cmocka_unit_test(test_tie), cmocka_unit_test(test_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
