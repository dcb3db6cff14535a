/* Sums of doubles without any rounding: neither the order of the terms nor their distribution over ranks can
 * change the result.
 *
 * An ExactSum is a fixed-point number wide enough for every finite double (Kulisch & Miranker, "Computer
 * arithmetic in theory and practice", 1981): limb i counts units of 2^(32 i - 1088). A limb has 64 bits but
 * holds a digit of 32, so carries can be deferred.
 *
 *     ExactSum s;
 *     exact_zero(&s);
 *     for (...) exact_add(&s, x[i]);
 *     double total = exact_value(&s);   // rounded once, to nearest even
 *
 * A normalised sum has one representation for each value: equal values are equal bytes. Limbs of normalised
 * sums may be added as plain integers (for example by an all-reduce of `limb` over up to 2^29 ranks);
 * exact_normalise normalises that sum again, once `pending` has been set to at least the number of sums in
 * it. */
#ifndef WEFT_BASE_EXACT_H
#define WEFT_BASE_EXACT_H

#include <stdint.h>

enum { EXACT_LIMBS = 67 };

/* limb[i]| <= (1 + pending) 2^32, except the last limb, which holds the sign and everything beyond 2^1024:
 * enough for 2^63 terms of any size. */
typedef struct ExactSum {
    int64_t limb[EXACT_LIMBS];
    int64_t pending; /* additions since the last normalisation */
} ExactSum;

void exact_zero(ExactSum *s);
/* x must be finite: the caller counts infinities and NaN, which add nothing here. */
void exact_add(ExactSum *s, double x);
void exact_merge(ExactSum *into, const ExactSum *from);
void exact_normalise(ExactSum *s);
/* The sum, correctly rounded; infinite when it is beyond the largest double. */
double exact_value(const ExactSum *s);

#endif
