/* Counter-based random numbers: Philox4x32-10 and distributions built on it.
 *
 * The 64-bit key fills both key words; the 64-bit counter fills the low two counter words, the others are
 * zero. Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011: any rank can
 * compute any number of a stream without the earlier ones.
 *
 * These bits define every run's initial weights and sample order: they never change. */
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

/* A round needs both halves of a 64-bit product. */
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

/* Uses two of the four words, so that number i is block i. */
uint64_t rng_u64(uint64_t key, uint64_t counter) {
    uint32_t words[4];
    rng_block(key, counter, words);
    return (uint64_t)words[1] << 32 | words[0];
}

/* One stream per name: each parameter and source draws from its own stream, so that a new one does not change
 * the others. */
uint64_t rng_key(uint64_t seed, const char *name) { return rng_u64(seed, hash64(name, strlen(name))); }

/* 53 bits, in [0, 1). */
double rng_uniform(uint64_t key, uint64_t counter) { return (double)(rng_u64(key, counter) >> 11) * 0x1p-53; }

/* Normal distribution function. */
static double normal_below(double x) { return 0.5 * erfc(x * -0.70710678118654752440); }

/* c[0] + c[1] x + ... + c[7] x^7 */
static double polynomial(const double c[8], double x) {
    return ((((((c[7] * x + c[6]) * x + c[5]) * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0];
}

/* Inverse of the normal distribution function: Wichura's rational approximations (algorithm AS 241, PPND16,
 * Applied Statistics 37, 1988), accurate to 1e-16. The middle one covers 85 of 100 numbers and needs neither
 * logarithm nor branch, so that a loop over it can be vectorised. */
const RngQuotient rng_middle = {
    {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
     4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3},
    {1, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
     2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3}};

const RngQuotient rng_tail = {{1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
                               3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
                               2.27238449892691845833e-2, 7.74545014278341407640e-4},
                              {1, 2.05319162663775882187e0, 1.67638483018380384940e0,
                               6.89767334985100004550e-1, 1.48103976427480074590e-1,
                               1.51986665636164571966e-2, 5.47593808499534494600e-4,
                               1.05075007164441684324e-9}};

static const RngQuotient far_tail = {
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5,
     2.01033439929228813265e-7},
    {1, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15}};

static double quantile_middle(double p) {
    double q = p - 0.5, r = RNG_MIDDLE * RNG_MIDDLE - q * q;
    return q * polynomial(rng_middle.above, r) / polynomial(rng_middle.below, r);
}

/* Computed from the nearer tail by symmetry: 1 - p is exact in the upper half. Two approximations, which meet
 * at p = e^-25. */
static double quantile_tail(double p) {
    bool upper = p > 0.5;
    double r = sqrt(-log(upper ? 1 - p : p));
    bool near = r <= RNG_TAIL;
    const RngQuotient *tail = near ? &rng_tail : &far_tail;
    r -= near ? RNG_TAIL_FROM : RNG_TAIL;
    double x = polynomial(tail->above, r) / polynomial(tail->below, r);
    return upper ? x : -x;
}

double rng_quantile(double p) { return fabs(p - 0.5) > RNG_MIDDLE ? quantile_tail(p) : quantile_middle(p); }

static double clamp(double x, double lo, double hi) { return x < lo ? lo : x > hi ? hi : x; }

RngRange rng_range(double lo, double hi) {
    RngRange r = {1, lo, hi, 0, 1};
    if (lo > 0) r.sign = -1, r.lo = -hi, r.hi = -lo;
    if (!isinf(r.lo)) r.below = normal_below(r.lo);
    r.width = (isinf(r.hi) ? 1 : normal_below(r.hi)) - r.below;
    return r;
}

enum { NORMALS = 64 }; /* at a time */

static void draw_normals(uint64_t key, uint64_t first, int count, const RngRange *r, double *out) {
    double p[NORMALS];
    for (int i = 0; i < count; i++) {
        /* An odd multiple of 2^-53: exact, and never 0 or 1. */
        double u = (double)(rng_u64(key, first + (uint64_t)i) >> 12 << 1 | 1) * 0x1p-53;
        p[i] = clamp(r->below + u * r->width, DBL_MIN, 1 - 0x1p-53);
    }
    for (int i = 0; i < count; i++) out[i] = quantile_middle(p[i]);
    for (int i = 0; i < count; i++) {
        if (fabs(p[i] - 0.5) > RNG_MIDDLE) out[i] = quantile_tail(p[i]);
        out[i] = r->sign * clamp(out[i], r->lo, r->hi);
    }
}

/* One uniform and the inverse distribution function, instead of a pair (Box and Muller) or a loop
 * (rejection): element i depends on (key, i) alone, and bounds cost nothing. */
void rng_normals(uint64_t key, uint64_t first, int64_t n, double lo, double hi, double *out) {
    RngRange r = rng_range(lo, hi);
    for (int64_t i = 0; i < n; i += NORMALS) {
        int count = n - i < NORMALS ? (int)(n - i) : NORMALS;
        draw_normals(key, first + (uint64_t)i, count, &r, out + i);
    }
}

double rng_normal(uint64_t key, uint64_t index, double lo, double hi) {
    double x;
    rng_normals(key, index, 1, lo, hi, &x);
    return x;
}

/* A keyed 64-bit finaliser (shifts, and multiplications by odd constants): the Feistel network's round
 * function. */
static uint64_t mix(uint64_t x, uint64_t key) {
    x += key;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The network permutes `bits`-bit numbers, fewer than twice n except for tiny n. A result that is not below n
 * is put through again; this walks a cycle that began below n, so it returns there. The halves may differ by
 * a bit: they swap in every round, and an even number of rounds restores them. */
uint64_t rng_permute(uint64_t key, uint64_t n, uint64_t index) {
    enum { ROUNDS = 8, LEAST_BITS = 6 }; /* networks on a few bits shuffle poorly */
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
