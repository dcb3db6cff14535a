/* Exact sums against big-integer arithmetic without limbs: one binary digit per byte. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/exact.h"
#include "base/rng.h"

/* ---- the oracle: two's complement in units of 2^-1074, WIDE binary digits ---- */

enum { WIDE = 2300 };
typedef struct Big {
    uint8_t bit[WIDE];
} Big;

/* b += sign * digits * 2^offset */
static void big_add(Big *b, uint64_t digits, int offset, bool negative) {
    int carry = 0;
    for (int i = offset; i < WIDE; i++) {
        int d = i - offset < 64 ? (int)(digits >> (i - offset) & 1) : 0;
        int v = negative ? b->bit[i] - d - carry : b->bit[i] + d + carry;
        b->bit[i] = (uint8_t)(v & 1);
        carry = negative ? v < 0 : v > 1;
    }
}

static void big_add_double(Big *b, double x) {
    int exponent;
    double fraction = frexp(fabs(x), &exponent);
    if (x == 0) return;
    /* A subnormal has fewer digits: none of the 53 below 2^-1074 is set. */
    uint64_t digits = (uint64_t)ldexp(fraction, 53);
    int offset = exponent - 53 + 1074;
    if (offset < 0) digits >>= -offset, offset = 0;
    big_add(b, digits, offset, x < 0);
}

static double big_value(const Big *from) {
    Big b = *from;
    bool negative = b.bit[WIDE - 1];
    if (negative) {
        for (int i = 0; i < WIDE; i++) b.bit[i] ^= 1;
        big_add(&b, 1, 0, false);
    }
    int top = WIDE - 1;
    while (top >= 0 && !b.bit[top]) top--;
    if (top < 0) return 0;
    int last = top > 52 ? top - 52 : 0; /* lowest digit that a double keeps */
    uint64_t digits = 0;
    for (int i = top; i >= last; i--) digits = digits << 1 | b.bit[i];
    bool half = last > 0 && b.bit[last - 1], more = false;
    for (int i = 0; i < last - 1; i++) more |= b.bit[i];
    if (half && (more || (digits & 1))) digits++;
    double value = ldexp((double)digits, last - 1074);
    return negative ? -value : value;
}

/* ---- sums ---- */

static void assert_same(double got, double want) {
    if (memcmp(&got, &want, sizeof got) != 0) fail_msg("got %a, expected %a", got, want);
}

static double exact_of(const double *x, int n) {
    ExactSum s;
    exact_zero(&s);
    for (int i = 0; i < n; i++) exact_add(&s, x[i]);
    return exact_value(&s);
}

static double big_of(const double *x, int n) {
    static Big b;
    memset(&b, 0, sizeof b);
    for (int i = 0; i < n; i++) big_add_double(&b, x[i]);
    return big_value(&b);
}

static uint64_t draws;
static double draw_between(int lowest, int highest) {
    double x = ldexp(1 + rng_uniform(7, draws),
                     lowest + (int)(rng_u64(8, draws) % (uint64_t)(highest - lowest + 1)));
    return rng_u64(9, draws++) & 1 ? -x : x;
}

static void known_sums(void **state) {
    (void)state;
    assert_same(exact_of(NULL, 0), 0);
    assert_same(exact_of((double[]){0.1}, 1), 0.1);
    assert_same(exact_of((double[]){1e308, 1, -1e308}, 3), 1);
    assert_same(exact_of((double[]){DBL_MAX, DBL_MAX, -DBL_MAX}, 3), DBL_MAX); /* no overflow in between */
    assert_same(exact_of((double[]){-DBL_MAX, -DBL_MAX, DBL_MAX}, 3), -DBL_MAX);
    assert_same(exact_of((double[]){DBL_MAX, DBL_MAX}, 2), HUGE_VAL);
    assert_same(exact_of((double[]){-DBL_MAX, -DBL_MAX}, 2), -HUGE_VAL);
    assert_same(exact_of((double[]){0x1p-1074, 0x1p-1074}, 2), 0x1p-1073);
    assert_same(exact_of((double[]){0x1p-1022, -0x1p-1074}, 2), 0x0.fffffffffffffp-1022);
    assert_same(exact_of((double[]){DBL_MAX, 0x1p-1074, -DBL_MAX}, 3), 0x1p-1074);
    assert_same(exact_of((double[]){1, -1}, 2), 0);
}

/* Halves go to even; anything beyond a half, however small, rounds up. */
static void rounding(void **state) {
    (void)state;
    assert_same(exact_of((double[]){1, 0x1p-53}, 2), 1);
    assert_same(exact_of((double[]){1 + 0x1p-52, 0x1p-53}, 2), 1 + 0x1p-51);
    assert_same(exact_of((double[]){1, 0x1p-53, 0x1p-1074}, 3), 1 + 0x1p-52);
    assert_same(exact_of((double[]){1, 0x1p-53, -0x1p-1074}, 3), 1);
    assert_same(exact_of((double[]){-1, -0x1p-53, -0x1p-1074}, 3), -1 - 0x1p-52);
    assert_same(exact_of((double[]){DBL_MAX, 0x1p969}, 2), DBL_MAX);
    assert_same(exact_of((double[]){DBL_MAX, 0x1p970}, 2), HUGE_VAL);
    assert_same(exact_of((double[]){1, -0x1p-54}, 2), 1); /* half of the finer spacing below 1 */
    assert_same(exact_of((double[]){1, -0x1p-54, -0x1p-1074}, 3), 1 - 0x1p-53);
}

static void random_sums_match_big_integers(void **state) {
    (void)state;
    static const int ranges[][2] = {{-1074, 1023}, {-1074, -1000}, {-60, 60},
                                    {-3, 3},       {960, 1023},    {-300, 260}};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        for (int round = 0; round < 12; round++) {
            double x[64];
            int n = 1 + round * 5;
            for (int i = 0; i < n; i++) x[i] = draw_between(ranges[r][0], ranges[r][1]);
            /* In every third round nearly everything cancels. */
            for (int i = n / 2; round % 3 == 2 && i + 1 < n; i++) x[i] = -x[i - n / 2];
            assert_same(exact_of(x, n), big_of(x, n));
        }
    }
}

static void shuffle(double *x, int n) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(rng_u64(10, draws++) % (uint64_t)(i + 1));
        double t = x[i];
        x[i] = x[j], x[j] = t;
    }
}

/* In any order and any distribution, not only the value is the same but every byte. */
static void order_and_parts_do_not_matter(void **state) {
    (void)state;
    enum { N = 500, PARTS = 7 };
    double x[N];
    ExactSum first, s, part[PARTS];
    for (int i = 0; i < N; i++) x[i] = draw_between(-1074, 1023);
    for (int round = 0; round < 50; round++) {
        for (int p = 0; p < PARTS; p++) exact_zero(&part[p]);
        for (int i = 0; i < N; i++) exact_add(&part[rng_u64(11, draws++) % PARTS], x[i]);
        exact_zero(&s);
        for (int p = 0; p < PARTS; p++) {
            if (round & 1) exact_normalise(&part[p]);
            exact_merge(&s, &part[p]);
        }
        exact_normalise(&s);
        if (round == 0) first = s;
        assert_memory_equal(&s, &first, sizeof s);
        shuffle(x, N);
    }
}

/* As ranks do: normalised limbs are added as plain integers. */
static void limbs_add_as_integers(void **state) {
    (void)state;
    enum { RANKS = 1000 };
    ExactSum sum, one;
    static Big oracle;
    exact_zero(&sum);
    memset(&oracle, 0, sizeof oracle);
    for (int r = 0; r < RANKS; r++) {
        exact_zero(&one);
        for (int i = 0; i < 3; i++) {
            double x = draw_between(-200, 200);
            exact_add(&one, x);
            big_add_double(&oracle, x);
        }
        exact_normalise(&one);
        for (int i = 0; i < EXACT_LIMBS; i++) sum.limb[i] += one.limb[i];
    }
    sum.pending = RANKS;
    assert_same(exact_value(&sum), big_value(&oracle));
}

/* Carries can be deferred, but not forever: limbs stay within their bits when a sum is doubled again and
 * again. */
static void carries_are_taken_in_time(void **state) {
    (void)state;
    ExactSum s;
    exact_zero(&s);
    exact_add(&s, 0x1.fffffffffffffp0);
    for (int i = 0; i < 900; i++) {
        ExactSum copy = s;
        exact_merge(&s, &copy);
        exact_add(&s, -0x1p-1074);
    }
    /* x 2^900 - (2^900 - 1) 2^-1074 */
    static Big oracle;
    memset(&oracle, 0, sizeof oracle);
    big_add_double(&oracle, 0x1.fffffffffffffp900);
    big_add_double(&oracle, -0x1p-174);
    big_add_double(&oracle, 0x1p-1074);
    assert_same(exact_value(&s), big_value(&oracle));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_sums),
                                       cmocka_unit_test(rounding),
                                       cmocka_unit_test(random_sums_match_big_integers),
                                       cmocka_unit_test(order_and_parts_do_not_matter),
                                       cmocka_unit_test(limbs_add_as_integers),
                                       cmocka_unit_test(carries_are_taken_in_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
