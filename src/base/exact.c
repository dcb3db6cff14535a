/* Exact sums: a number wide enough for every double, in limbs of 32 bits that are stored in 64.
 *
 *     limb      0              1              ...   TOP - 1        TOP
 *     unit      2^-1088        2^-1056        ...                  the sign's
 *
 * A term touches three limbs and carries nothing. The upper half of each limb collects the carries until
 * PENDING_MAX additions might have filled it; then exact_normalise moves them up (Kulisch's long accumulator;
 * the delayed carries are from Neal, "Fast exact summation using small and large superaccumulators", 2015).
 * Right shifts of negative numbers keep the sign in every compiler that builds this. */
#include "base/exact.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    /* Limb 0 counts units of 2^LOWEST: the first multiple of 32 below the smallest double, 2^-1074. */
    LOWEST = -1088,
    TOP = EXACT_LIMBS - 1 /* the limb of the sign */
};

/* Two sums with that many pending additions can be merged, and one more term be added, before a limb
 * overflows 64 bits. */
static const int64_t PENDING_MAX = 1 << 29;

void exact_zero(ExactSum *s) { *s = (ExactSum){0}; }

/* Carries upwards: afterwards all limbs but the sign's are in [0, 2^32), so that equal sums have equal
 * limbs. */
void exact_normalise(ExactSum *s) {
    for (int i = 0; i < TOP; i++) {
        s->limb[i + 1] += s->limb[i] >> 32;
        s->limb[i] &= 0xffffffff;
    }
    s->pending = 0;
}

/* Infinities and NaNs are ignored: the caller counts them separately. */
void exact_add(ExactSum *s, double x) {
    uint64_t bits, digits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff) return;
    digits = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent > 0)
        digits |= UINT64_C(1) << 52;
    else
        exponent = 1;
    /* The double is digits * 2^(exponent - 1075). Its 53 digits, shifted into position, cover three limbs. */
    int offset = exponent - 1075 - LOWEST, shift = offset & 31;
    uint64_t low = (digits & 0xffffffff) << shift, high = (digits >> 32 << shift) + (low >> 32);
    int64_t part[3] = {(int64_t)(low & 0xffffffff), (int64_t)(high & 0xffffffff), (int64_t)(high >> 32)};
    int64_t sign = bits >> 63 ? -1 : 1, *limb = &s->limb[offset >> 5];
    for (int i = 0; i < 3; i++) limb[i] += sign * part[i];
    if (++s->pending >= PENDING_MAX) exact_normalise(s);
}

void exact_merge(ExactSum *into, const ExactSum *from) {
    for (int i = 0; i < EXACT_LIMBS; i++) into->limb[i] += from->limb[i];
    into->pending += from->pending + 1;
    if (into->pending >= PENDING_MAX) exact_normalise(into);
}

/* Replaces s by its absolute value, normalised; returns true if it was negative. */
static bool make_positive(ExactSum *s) {
    exact_normalise(s);
    if (s->limb[TOP] >= 0) return false;
    for (int i = 0; i < EXACT_LIMBS; i++) s->limb[i] = -s->limb[i];
    exact_normalise(s);
    return true;
}

static uint64_t digit(const ExactSum *s, int i) { return i >= 0 ? (uint64_t)s->limb[i] : 0; }

/* For a positive sum below 2^1024 whose highest non-zero limb is `first`: its upper 64 binary digits, the
 * last of which is also set if anything follows (a sticky bit). Rounding 64 digits to 53 then gives the same
 * result as rounding all of them. */
static double round_digits(const ExactSum *s, int first) {
    int lead = 0;
    while (!(digit(s, first) >> (31 - lead) & 1)) lead++;
    uint64_t upper = digit(s, first) << 32 | digit(s, first - 1), next = digit(s, first - 2) << lead;
    uint64_t digits = upper << lead | next >> 32;
    bool more = (next & 0xffffffff) != 0;
    for (int i = first - 3; i >= 0 && !more; i--) more = s->limb[i] != 0;
    /* A subnormal result is exact: every term is a multiple of the smallest double. */
    return ldexp((double)(digits | (more ? 1 : 0)), LOWEST + 32 * (first - 1) - lead);
}

double exact_value(const ExactSum *sum) {
    ExactSum s = *sum;
    bool negative = make_positive(&s);
    int first = TOP;
    while (first >= 0 && s.limb[first] == 0) first--;
    if (first < 0) return 0;
    double value = first == TOP ? HUGE_VAL : round_digits(&s, first);
    return negative ? -value : value;
}
