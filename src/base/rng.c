/* Counter-based random numbers: Philox4x32-10, and what is drawn from it.
 *
 * The 64-bit key fills both key words; the 64-bit counter fills the low two counter words, the others are
 * zero. These bits define every run's initial weights and sample order: they never change. */
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

static void multiply(uint32_t a, uint32_t b, uint32_t *high, uint32_t *low) {
    uint64_t product = (uint64_t)a * b;
    *high = (uint32_t)(product >> 32);
    *low = (uint32_t)product;
}

/* The constants are the paper's: two multipliers, and Weyl steps of the golden ratio and sqrt(3) - 1 for the
 * key. */
void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], key0 = key[0], key1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint32_t high0, low0, high1, low1;
        multiply(0xd2511f53u, c0, &high0, &low0);
        multiply(0xcd9e8d57u, c2, &high1, &low1);
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

void rng_block(uint64_t key, uint64_t counter, uint32_t out[4]) {
    const uint32_t key_words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t counter_words[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    rng_philox(key_words, counter_words, out);
}

uint64_t rng_u64(uint64_t key, uint64_t counter) {
    uint32_t words[4];
    rng_block(key, counter, words);
    return (uint64_t)words[1] << 32 | words[0];
}

/* A stream for each name: parameters and sources draw from streams of their own, so that a new one moves
 * none of the others. */
uint64_t rng_key(uint64_t seed, const char *name) { return rng_u64(seed, hash64(name, strlen(name))); }

/* 53 bits, in [0, 1). */
double rng_uniform(uint64_t key, uint64_t counter) { return (double)(rng_u64(key, counter) >> 11) * 0x1p-53; }

/* Normal distribution function. */
static double normal_below(double x) { return 0.5 * erfc(x * -0.70710678118654752440); }

/* Inverse of the normal distribution function for p in (0, 1/2]: Acklam's rational approximations, good to
 * 1.2e-9, and one Halley step, which takes that to the last bits. */
static double normal_quantile_low(double p) {
    static const double a[6] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                                1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[5] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                6.680131188771972e+01, -1.328068155288572e+01};
    static const double c[6] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
    static const double d[4] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                3.754408661907416e+00};
    double x;
    if (p < 0.02425) {
        double q = sqrt(-2 * log(p));
        x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
            ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
    } else {
        double q = p - 0.5, r = q * q;
        x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
            (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
    }
    double u = (normal_below(x) - p) * 2.50662827463100050242 * exp(x * x / 2);
    return x - u / (1 + x * u / 2);
}

/* The upper half by symmetry: 1 - p is exact there. */
static double normal_quantile(double p) {
    return p <= 0.5 ? normal_quantile_low(p) : -normal_quantile_low(1 - p);
}

static double clamp(double x, double lo, double hi) { return x < lo ? lo : x > hi ? hi : x; }

/* One uniform and the inverse distribution function, instead of a pair (Box and Muller) or a loop
 * (rejection): element i is a function of (key, i) alone, and bounds cost nothing. */
double rng_normal(uint64_t key, uint64_t index, double lo, double hi) {
    /* An odd multiple of 2^-53: exact, and never 0 or 1. */
    double u = (double)(rng_u64(key, index) >> 12 << 1 | 1) * 0x1p-53;
    /* Bounds in the upper tail are mirrored into the lower, where probabilities keep their digits. */
    double sign = lo > 0 ? -1 : 1;
    if (sign < 0) {
        double swap = lo;
        lo = -hi, hi = -swap;
    }
    double below_lo = isinf(lo) ? 0 : normal_below(lo), below_hi = isinf(hi) ? 1 : normal_below(hi);
    double p = clamp(below_lo + u * (below_hi - below_lo), DBL_MIN, 1 - 0x1p-53);
    return sign * clamp(normal_quantile(p), lo, hi);
}

/* A 64-bit finaliser (shift and multiply by odd constants), keyed: the Feistel network's round function. */
static uint64_t mix(uint64_t x, uint64_t key) {
    x += key;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The network permutes `bits`-bit numbers, less than twice n of them except for tiny n; a result that is not
 * below n is put through again, and since this walks a cycle that began below n, it comes back. Halves may
 * differ by a bit: they change places in every round, and an even number of rounds puts them back. */
uint64_t rng_permute(uint64_t key, uint64_t n, uint64_t index) {
    enum { ROUNDS = 8, LEAST_BITS = 6 }; /* networks on a few bits are poor shuffles */
    CHECK(index < n);
    int bits = LEAST_BITS;
    while (bits < 64 && (n - 1) >> bits) bits++;
    const int low_bits = bits / 2, high_bits = bits - low_bits;
    uint64_t x = index;
    do {
        uint64_t high = x >> low_bits, low = x & ((1ull << low_bits) - 1);
        for (int round = 0; round < ROUNDS; round++) {
            int width = round % 2 ? low_bits : high_bits;
            uint64_t next =
                (high ^ mix(low, key + (uint64_t)round * 0x9e3779b97f4a7c15u)) & ((1ull << width) - 1);
            high = low;
            low = next;
        }
        x = high << low_bits | low;
    } while (x >= n);
    return x;
}
