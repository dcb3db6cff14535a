#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "model/sampling.h"

enum { VOCAB = 6, DRAWS = 20000 };
static const float logits[VOCAB] = {0.5f, 2, -1, 2, 1, -40};

static void draw(Sampling s, double share[VOCAB]) {
    int32_t order[VOCAB];
    for (int i = 0; i < VOCAB; i++) share[i] = 0;
    for (int i = 0; i < DRAWS; i++) share[sample_token(&s, logits, VOCAB, i, order)] += 1.0 / DRAWS;
}

static void expect(const double share[VOCAB], const int *kept, int count, double temperature) {
    double sum = 0, all = 0;
    for (int i = 0; i < count; i++) sum += exp((double)logits[kept[i]] / temperature);
    for (int i = 0; i < count; i++) {
        double p = exp((double)logits[kept[i]] / temperature) / sum;
        assert_true(fabs(share[kept[i]] - p) < 0.015);
        all += share[kept[i]];
    }
    assert_true(fabs(all - 1) < 1e-9);
}

static void test_shares(void **state) {
    (void)state;
    double share[VOCAB];
    const int every[] = {0, 1, 2, 3, 4, 5}, three[] = {1, 3, 4}, two[] = {1, 3}, one[] = {1};
    draw((Sampling){.temperature = 1, .top_p = 1, .seed = 3}, share);
    expect(share, every, VOCAB, 1);
    draw((Sampling){.temperature = 0.5, .top_p = 1, .seed = 4}, share);
    expect(share, every, VOCAB, 0.5);
    draw((Sampling){.temperature = 1, .top_k = 3, .top_p = 1, .seed = 5}, share);
    expect(share, three, 3, 1);
    draw((Sampling){.temperature = 1, .top_p = 0.6, .seed = 6}, share);
    expect(share, two, 2, 1);
    draw((Sampling){.temperature = 1, .top_k = 3, .top_p = 0.8, .seed = 6}, share);
    expect(share, two, 2, 1); /* 0.84 of the three most likely */
    draw((Sampling){.temperature = 0}, share);
    expect(share, one, 1, 1);
    draw((Sampling){.temperature = 1, .top_p = 0, .seed = 1}, share);
    expect(share, one, 1, 1);
}

static void test_draws_depend_on_seed_and_index_alone(void **state) {
    (void)state;
    int32_t order[VOCAB];
    int different = 0;
    for (int i = 0; i < 200; i++) {
        Sampling a = {.temperature = 1, .top_p = 1, .seed = 1}, b = {.temperature = 1, .top_p = 1, .seed = 2};
        int32_t first = sample_token(&a, logits, VOCAB, i, order);
        assert_int_equal(first, sample_token(&a, logits, VOCAB, i, order));
        different += first != sample_token(&b, logits, VOCAB, i, order);
    }
    assert_true(different > 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares),
                                       cmocka_unit_test(test_draws_depend_on_seed_and_index_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
