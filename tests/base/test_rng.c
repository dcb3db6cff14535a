/* Random numbers: published vectors, the normal distribution against long double, permutations as bijections.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

/* Known answers from the authors' Random123 library. */
static void test_philox_vectors(void **state) {
    static const struct {
        uint32_t key[2], counter[4], expected[4];
    } vectors[] = {
        {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0},
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint32_t out[4];
        rng_philox(vectors[i].key, vectors[i].counter, out);
        assert_memory_equal(out, vectors[i].expected, sizeof out);
    }
}

static void test_words_of_a_block(void **state) {
    uint32_t block[4], words[4];
    const uint32_t key[2] = {0x89abcdef, 0x01234567}, counter[4] = {0xddccbbaa, 0x11223344, 0, 0};
    (void)state;
    rng_block(0x0123456789abcdefu, 0x11223344ddccbbaau, block);
    rng_philox(key, counter, words);
    assert_memory_equal(block, words, sizeof block);
    assert_true(rng_u64(0x0123456789abcdefu, 0x11223344ddccbbaau) == ((uint64_t)words[1] << 32 | words[0]));
}

static void test_keys_differ(void **state) {
    (void)state;
    assert_true(rng_key(1, "a") == rng_key(1, "a"));
    assert_true(rng_key(1, "a") != rng_key(2, "a"));
    assert_true(rng_key(1, "a") != rng_key(1, "b"));
    assert_true(rng_key(1, "") != rng_key(1, "a"));
}

static void test_uniform(void **state) {
    double sum = 0, squares = 0;
    enum { N = 200000 };
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(7, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
    }
    assert_true(fabs(sum / N - 0.5) < 5 * 0.29 / sqrt(N));
    assert_true(fabs(squares / N - 1.0 / 3) < 5 * 0.3 / sqrt(N));
}

/* The uniform number behind element `index`: an odd multiple of 2^-53. */
static long double uniform_of(uint64_t key, uint64_t index) {
    return (long double)(rng_u64(key, index) >> 12 << 1 | 1) * 0x1p-53L;
}

static void test_normal_inverts_the_distribution(void **state) {
    const long double root = sqrtl(2), scale = 1 / sqrtl(2 * acosl(-1));
    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        long double x = (long double)rng_normal(3, i, -(double)INFINITY, (double)INFINITY);
        long double u = uniform_of(3, i), density = scale * expl(-x * x / 2);
        /* Compared in the nearer tail, where the difference of probabilities is exact. */
        long double off = x < 0 ? erfcl(-x / root) / 2 - u : (1 - u) - erfcl(x / root) / 2;
        assert_true(fabsl(off / density) < 1e-12L * (1 + fabsl(x)));
    }
}

static void test_normal_moments(void **state) {
    double sum = 0, squares = 0, fourth = 0;
    enum { N = 200000 };
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(rng_key(42, "w"), i, -(double)INFINITY, (double)INFINITY);
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    assert_true(fabs(sum / N) < 5 / sqrt(N));
    assert_true(fabs(squares / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96.0 / N));
}

static void test_truncation(void **state) {
    static const double bounds[][2] = {{-3, 3}, {-2, 0.5}, {4, 5}, {-5, -4}, {8, 9}, {0, 1e-9}, {-1, 40}};
    (void)state;
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
        double least = (double)INFINITY, most = -(double)INFINITY;
        for (uint64_t i = 0; i < 5000; i++) {
            double x = rng_normal(11, i, bounds[b][0], bounds[b][1]);
            assert_true(x >= bounds[b][0] && x <= bounds[b][1]);
            least = fmin(least, x);
            most = fmax(most, x);
        }
        assert_true(most > least);
    }
    /* Nothing beyond three deviations: the standard deviation of the truncated distribution is known. */
    double squares = 0;
    for (uint64_t i = 0; i < 200000; i++) squares += pow(rng_normal(12, i, -3, 3), 2);
    assert_true(fabs(squares / 200000 - 0.9733369) < 0.012);
    /* One-sided: the mean beyond 2 is the inverse Mills ratio. */
    double sum = 0;
    for (uint64_t i = 0; i < 200000; i++) sum += rng_normal(13, i, 2, (double)INFINITY);
    assert_true(fabs(sum / 200000 - 2.3732155) < 0.005);
}

/* The bits of a few numbers, which never change. In the middle range no function of the C library affects
 * them. */
static void test_normal_bits(void **state) {
    static const struct {
        uint64_t index;
        double expected;
    } numbers[] = {{0, -0x1.42dc65ce0ff81p-4},
                   {1, -0x1.caca1d20ed484p-2},
                   {5, -0x1.16290af19a375p-1},
                   {63, 0x1.fd96a319619e6p-1},
                   {1000, 0x1.e10895f6891aap-2},
                   {0xffffffff, -0x1.4de561c6d5118p-1},
                   {0x123456789abc, 0x1.b8eac101dd124p-3}};
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double found = rng_normal(42, numbers[i].index, -(double)INFINITY, (double)INFINITY);
        assert_true(found == numbers[i].expected);
    }
}

static void assert_bijection(uint64_t key, uint64_t n) {
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t to = rng_permute(key, n, i);
        assert_true(to < n);
        assert_int_equal(seen[to], 0);
        seen[to] = 1;
    }
    free(seen);
}

static void test_permutations(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 300; n++)
        for (uint64_t key = 0; key < 3; key++) assert_bijection(key * 0x9e3779b97f4a7c15u, n);
    assert_bijection(5, 1 << 16);
    assert_bijection(6, (1 << 16) + 1);
    assert_bijection(7, 1000003);
}

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_large_permutations(void **state) {
    static const uint64_t sizes[] = {((uint64_t)1 << 40) + 7, (uint64_t)1 << 63, ((uint64_t)1 << 63) + 1,
                                     UINT64_MAX};
    enum { N = 20000 };
    uint64_t *out = calloc(N, sizeof *out);
    (void)state;
    assert_non_null(out);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        double mean = 0;
        for (uint64_t i = 0; i < N; i++) {
            out[i] = rng_permute(9, sizes[s], i % 2 ? sizes[s] - i : i);
            assert_true(out[i] < sizes[s]);
            mean += (double)out[i] / (double)sizes[s] / N;
        }
        qsort(out, N, sizeof *out, compare_u64);
        for (size_t i = 1; i < N; i++) assert_true(out[i - 1] != out[i]);
        assert_true(fabs(mean - 0.5) < 5 * 0.29 / sqrt(N));
    }
    free(out);
}

/* Every index goes to every position about equally often, and keys give different orders. */
static void test_permutations_shuffle(void **state) {
    enum { N = 5, KEYS = 20000 };
    int count[N][N] = {{0}};
    (void)state;
    for (uint64_t key = 0; key < KEYS; key++)
        for (uint64_t i = 0; i < N; i++) count[i][rng_permute(rng_u64(1, key), N, i)]++;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) assert_true(abs(count[i][j] - KEYS / N) < 6 * 57);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_vectors),
        cmocka_unit_test(test_words_of_a_block),
        cmocka_unit_test(test_keys_differ),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_normal_inverts_the_distribution),
        cmocka_unit_test(test_normal_moments),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_normal_bits),
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_large_permutations),
        cmocka_unit_test(test_permutations_shuffle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
