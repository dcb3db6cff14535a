/* Vectors of VLEN floats, by the compilers' vector extensions, for the instruction set that the including
 * file is compiled for. Tensors of either dtype are read and written as fp32 vectors; the dtype is a constant
 * where it matters, since everything here is inlined into kernels that are instantiated for each dtype. */
#ifndef WEFT_DEVICE_CPU_VECTOR_H
#define WEFT_DEVICE_CPU_VECTOR_H

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "device/cpu/cpu.h"

#if defined(__AVX512F__)
#define VLEN 16
#elif defined(__AVX2__)
#define VLEN 8
#else
#define VLEN 4
#endif

#define INLINE static inline __attribute__((always_inline, unused))

typedef float Vec __attribute__((vector_size(4 * VLEN)));
typedef int32_t VecInt __attribute__((vector_size(4 * VLEN)));
typedef uint32_t VecBits __attribute__((vector_size(4 * VLEN)));
typedef uint64_t VecWide __attribute__((vector_size(4 * VLEN)));
typedef uint16_t VecHalf __attribute__((vector_size(2 * VLEN)));

INLINE Vec vec_set(float x) { return x - (Vec){0}; } /* x - 0 is x, the sign of zero included */

INLINE Vec vec_load(const float *p) {
    Vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vec_store(float *p, Vec v) { memcpy(p, &v, sizeof v); }

INLINE VecInt vec_load_int(const int32_t *p) {
    VecInt v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* mask (all bits of a lane, or none) ? a : b */
INLINE Vec vec_select(VecInt mask, Vec a, Vec b) { return (Vec)((mask & (VecInt)a) | (~mask & (VecInt)b)); }

/* The larger; b where either is NaN. */
INLINE Vec vec_max(Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select((VecInt)(a > b), a, b);
#endif
}

/* sum + a * b with one rounding, where the instruction set has that: not left to contraction, which a
 * compiler that checks memory between the two (a sanitizer) cannot do everywhere alike. */
INLINE Vec vec_multiply_add(Vec sum, Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return sum + a * b;
#endif
}

INLINE Vec vec_sqrt(Vec v) {
#if defined(__AVX512F__)
    return (Vec)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX2__)
    return (Vec)_mm256_sqrt_ps((__m256)v);
#else
    for (int i = 0; i < VLEN; i++) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

INLINE Vec vec_abs(Vec v) { return (Vec)((VecBits)v & 0x7fffffff); }

/* Products of the lower halves of 64-bit lanes. */
INLINE VecWide vec_multiply_wide(VecWide a, VecWide b) {
#if defined(__AVX512F__)
    return (VecWide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (VecWide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

/* The product of each lane with a constant, in two halves of 32 bits. Even lanes and odd ones are multiplied
 * apart, in lanes of 64 bits. */
INLINE void vec_multiply(uint32_t by, VecBits x, VecBits *high, VecBits *low) {
    const uint64_t lower = 0xffffffff;
    const VecWide factor = (VecWide){0} + by;
    VecWide even = vec_multiply_wide((VecWide)x, factor), odd = vec_multiply_wide((VecWide)x >> 32, factor);
    *low = (VecBits)((even & lower) | odd << 32);
    *high = (VecBits)(even >> 32 | (odd & ~lower));
}

/* Lanes are added in halves: a fixed order. */
INLINE float vec_sum(Vec v) {
    float lane[VLEN];
    vec_store(lane, v);
    for (int width = VLEN / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

INLINE float vec_top(Vec v) {
    float lane[VLEN];
    vec_store(lane, v);
    for (int i = 1; i < VLEN; i++) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
}

INLINE Vec vec_widen(VecHalf h) { return (Vec)(__builtin_convertvector(h, VecBits) << 16); }

INLINE VecHalf vec_round(Vec v) {
    VecBits u = (VecBits)v;
    VecInt nan = (VecInt)((u & 0x7fffffff) > 0x7f800000);
    VecBits rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    return __builtin_convertvector((VecBits)vec_select(nan, (Vec)quiet, (Vec)rounded), VecHalf);
}

/* Elements i .. i+VLEN-1 of a tensor; of the last ones only `left` exist: the other lanes read as 0 and are
 * not written. */
INLINE Vec get(const void *p, int64_t i, int64_t left, Dtype t) {
    if (t == DTYPE_F32) {
        Vec v = {0};
        if (left >= VLEN) return vec_load((const float *)p + i);
        memcpy(&v, (const float *)p + i, (size_t)left * sizeof(float));
        return v;
    }
    VecHalf h = {0};
    if (left >= VLEN)
        memcpy(&h, (const uint16_t *)p + i, sizeof h);
    else
        memcpy(&h, (const uint16_t *)p + i, (size_t)left * sizeof(uint16_t));
    return vec_widen(h);
}

INLINE void put(void *p, int64_t i, int64_t left, Dtype t, Vec v) {
    if (t == DTYPE_F32) {
        if (left >= VLEN)
            vec_store((float *)p + i, v);
        else
            memcpy((float *)p + i, &v, (size_t)left * sizeof(float));
        return;
    }
    VecHalf h = vec_round(v);
    if (left >= VLEN)
        memcpy((uint16_t *)p + i, &h, sizeof h);
    else
        memcpy((uint16_t *)p + i, &h, (size_t)left * sizeof(uint16_t));
}

/* 2^x; 0 below -126, 2^127.99 and not infinity above; NaN stays NaN. Relative error below 2e-7: x is split
 * into a whole number, which goes into the exponent, and a rest in [-0.5, 0.5], for which a polynomial was
 * fitted (minimax, 1.9e-9). */
INLINE Vec vec_exp2(Vec x) {
    const float shift =
        12582912; /* 1.5 * 2^23: adding it rounds to a whole number, which is left in the low bits */
    VecInt tiny = (VecInt)(x < -126);
    x = vec_select((VecInt)(x > 127.49f), vec_set(127.49f), x);
    Vec moved = x + shift, f = x - (moved - shift);
    Vec p = vec_set(1.53458118e-4f);
    p = p * f + 1.33999312e-3f;
    p = p * f + 9.61848896e-3f;
    p = p * f + 5.55032878e-2f;
    p = p * f + 2.40226469e-1f;
    p = p * f + 6.93147206e-1f;
    p = p * f + 1.0f;
    VecBits power = ((VecBits)moved << 23) + 0x3f800000;
    return (Vec)(~tiny & (VecInt)(p * (Vec)power));
}

/* e^x, likewise, but infinity above 88.37. The rest is taken against ln 2 in two parts, so that large x keeps
 * its accuracy. */
INLINE Vec vec_exp(Vec x) {
    const float shift = 12582912, log2e = 1.44269504f;
    VecInt tiny = (VecInt)(x < -87.33f), huge = (VecInt)(x > 88.37f);
    Vec moved = x * log2e + shift, n = moved - shift;
    Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Vec p = vec_set(1.98412698e-4f);
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    VecBits power = ((VecBits)moved << 23) + 0x3f800000;
    return vec_select(huge, vec_set(__builtin_inff()), (Vec)(~tiny & (VecInt)(p * (Vec)power)));
}

/* tanh x: a quotient of polynomials where |x| < 7.9, of 4 units in the last place, and 1 beyond, which it is
 * there in fp32. It starts from x, so small x keep their accuracy. The coefficients are those of Eigen. */
INLINE Vec vec_tanh(Vec x) {
    const float limit = 7.90531110763549805f;
    x = vec_select((VecInt)(x > limit), vec_set(limit), x);
    x = vec_select((VecInt)(x < -limit), vec_set(-limit), x);
    Vec x2 = x * x, p = vec_set(-2.76076847742355e-16f), q = vec_set(1.19825839466702e-06f);
    p = p * x2 + 2.00018790482477e-13f;
    p = p * x2 - 8.60467152213735e-11f;
    p = p * x2 + 5.12229709037114e-08f;
    p = p * x2 + 1.48572235717979e-05f;
    p = p * x2 + 6.37261928875436e-04f;
    p = p * x2 + 4.89352455891786e-03f;
    q = q * x2 + 1.18534705686654e-04f;
    q = q * x2 + 2.26843463243900e-03f;
    q = q * x2 + 4.89352518554385e-03f;
    return x * p / q;
}

/* for every vector of a row of n elements: i its first element, left = n - i */
#define EACH_VECTOR(i, left, n) for (int64_t i = 0, left = (n); left > 0; i += VLEN, left -= VLEN)

/* Calls body(..., dtype) with a constant dtype, so that each dtype gets code of its own. */
#define BY_DTYPE(type, body, ...)          \
    do {                                   \
        if ((type) == DTYPE_F32)           \
            body(__VA_ARGS__, DTYPE_F32);  \
        else                               \
            body(__VA_ARGS__, DTYPE_BF16); \
    } while (0)

#endif
