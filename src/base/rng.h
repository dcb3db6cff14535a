/* Counter-based random numbers: value = f(key, counter). Nothing is stored, so any rank can draw any element
 * alone, in any order. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011). */
#ifndef WEFT_BASE_RNG_H
#define WEFT_BASE_RNG_H

#include <stdint.h>

/* A key from a seed and a name (a parameter's name, "sampling", ...). */
uint64_t rng_key(uint64_t seed, const char *name);

/* The generator itself, as published: ten rounds over a 128-bit counter with a 64-bit key. */
void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* Four 32-bit values for one counter. */
void rng_block(uint64_t key, uint64_t counter, uint32_t out[4]);
uint64_t rng_u64(uint64_t key, uint64_t counter);
double rng_uniform(uint64_t key, uint64_t counter); /* in [0, 1), 53 bits */

/* Standard normal numbers of the elements first <= i < first + n, by inversion of the normal distribution
 * function (Wichura's AS 241). Each element takes one uniform, so that truncation is a rescaling of the
 * uniform. lo and hi bound the results in standard deviations (-INFINITY, INFINITY for none). */
void rng_normals(uint64_t key, uint64_t first, int64_t n, double lo, double hi, double *out /* [n] */);
double rng_normal(uint64_t key, uint64_t index, double lo, double hi); /* a single one */

/* ---- building blocks, for vectorised kernels that make the same bits (device/cpu/normals.h) ---- */

/* Bounds, also as probabilities. Bounds in the upper tail are mirrored into the lower one, where
 * probabilities keep their digits. */
typedef struct RngRange {
    double sign, lo, hi;
    double below, width; /* probability below lo, and between lo and hi */
} RngRange;
RngRange rng_range(double lo, double hi);

/* A quotient of polynomials, coefficients from x^0 on. */
typedef struct RngQuotient {
    double above[8], below[8];
} RngQuotient;
/* For q = p - 0.5 within RNG_MIDDLE of 0: the quotient at RNG_MIDDLE^2 - q^2, times q. */
#define RNG_MIDDLE 0.425
extern const RngQuotient rng_middle;
/* For r, the square root of minus the logarithm of the nearer tail, up to RNG_TAIL: the quotient at r -
 * RNG_TAIL_FROM. */
#define RNG_TAIL 5
#define RNG_TAIL_FROM 1.6
extern const RngQuotient rng_tail;
double rng_quantile(double p); /* for any p */

/* A permutation of [0, n): a keyed Feistel network with cycle walking. O(1) memory; a bijection for every key
 * and n >= 1. */
uint64_t rng_permute(uint64_t key, uint64_t n, uint64_t index);

#endif
