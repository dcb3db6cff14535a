/* Vectors of VLEN floats, with the compiler's vector extensions, for the instruction set that the including
 * file is compiled for. Tensors of either dtype are read and written as fp32 vectors. Where it matters, the
 * dtype is a compile-time constant, since everything here is inlined into kernels that are instantiated for
 * each dtype. */
#ifndef WEFT_DEVICE_CPU_VECTOR_H
#define WEFT_DEVICE_CPU_VECTOR_H

#if defined(__SSE2__)
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

/* Dot products of bf16 pairs, one pair in each 32-bit lane. */
#if defined(__AVX512BF16__)
#define VEC_PAIRS 1
#else
#define VEC_PAIRS 0
#endif

/* bf16 tiles, and AMX's instructions on them. */
#if defined(__AMX_BF16__)
#define VEC_AMX 1
#else
#define VEC_AMX 0
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

/* The larger; b if either is NaN. */
INLINE Vec vec_max(Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select((VecInt)(a > b), a, b);
#endif
}

/* The smaller; b if either is NaN. */
INLINE Vec vec_min(Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vec_select((VecInt)(a < b), a, b);
#endif
}

/* sum + a * b, rounded once if the instruction set has fma. An intrinsic, not left to contraction: a compiler
 * that checks memory accesses between the two operations (a sanitizer) cannot contract them everywhere. */
INLINE Vec vec_multiply_add(Vec sum, Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return sum + a * b;
#endif
}

/* Terms of a sum of products: fp32 numbers, or bf16 pairs in their place. */
INLINE Vec vec_term(const void *p, const bool pairs) { /* in all lanes */
    float x;
    memcpy(&x, p, sizeof x);
#if VEC_PAIRS
    int32_t word;
    memcpy(&word, p, sizeof word);
    if (pairs) return (Vec)_mm512_set1_epi32(word);
#endif
    (void)pairs;
    return vec_set(x);
}
INLINE Vec vec_add_terms(Vec sum, Vec a, Vec b, const bool pairs) {
#if VEC_PAIRS
    if (pairs) return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)pairs;
    return vec_multiply_add(sum, a, b);
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

/* Products of the lower halves of 64-bit lanes. An intrinsic, because compilers turn the plain expression
 * into more than this one instruction. */
INLINE VecWide vec_multiply_wide(VecWide a, VecWide b) {
#if defined(__AVX512F__)
    return (VecWide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (VecWide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (VecWide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

/* The product of each lane with a constant, as two halves of 32 bits. Even and odd lanes are multiplied
 * separately, in 64-bit lanes. */
INLINE void vec_multiply(uint32_t by, VecBits x, VecBits *high, VecBits *low) {
    const uint64_t lower = 0xffffffff;
    const VecWide factor = (VecWide){0} + by;
    VecWide even = vec_multiply_wide((VecWide)x, factor), odd = vec_multiply_wide((VecWide)x >> 32, factor);
    *low = (VecBits)((even & lower) | odd << 32);
    *high = (VecBits)(even >> 32 | (odd & ~lower));
}

/* rng_philox of base/rng.c in every lane. */
INLINE void vec_philox(uint64_t key, VecBits c[4]) {
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        VecBits high0, low0, high1, low1;
        vec_multiply(0xd2511f53u, c[0], &high0, &low0);
        vec_multiply(0xcd9e8d57u, c[2], &high1, &low1);
        c[0] = high1 ^ c[1] ^ key0, c[1] = low1;
        c[2] = high0 ^ c[3] ^ key1, c[3] = low0;
        key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
    }
}

/* Horizontal sum, by halves: a fixed order. */
INLINE float vec_sum(Vec v) {
#if VLEN == 16
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
#elif VLEN == 8
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3);
#else
    v += __builtin_shufflevector(v, v, 2, 3, 2, 3);
#endif
    return v[0] + v[1];
}

INLINE float vec_top(Vec v) {
    float lane[VLEN];
    vec_store(lane, v);
    for (int i = 1; i < VLEN; i++) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
}

/* A bf16 is the upper half of an fp32. With AVX-512 one instruction converts all lanes in either
 * direction. */
INLINE Vec vec_widen(VecHalf h) {
#if defined(__AVX512BW__)
    const __m512i from = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6,
                                          6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return (Vec)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, from, _mm512_castsi256_si512((__m256i)h));
#else
    return (Vec)(__builtin_convertvector(h, VecBits) << 16);
#endif
}

/* Rounds to nearest, ties to even: adds half a unit, less one bit if the last bit kept is 0. NaN stays
 * NaN. */
INLINE VecHalf vec_round(Vec v) {
#if defined(__AVX512BW__)
    const __m512i upper = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 31, 29,
                                           27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i u = (__m512i)v, one = _mm512_set1_epi32(1);
    __m512i rounded = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    rounded =
        _mm512_mask_add_epi32(rounded, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), rounded, one);
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q), u,
                                   _mm512_set1_epi32(0x400000));
    return (VecHalf)_mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, rounded));
#else
    VecBits u = (VecBits)v;
    VecInt nan = (VecInt)((u & 0x7fffffff) > 0x7f800000);
    VecBits rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    return __builtin_convertvector((VecBits)vec_select(nan, (Vec)quiet, (Vec)rounded), VecHalf);
#endif
}

/* 1 / x within two units in the last place, for x >= 0; 0 for infinity. One Newton step from a 14-bit
 * estimate. */
INLINE Vec vec_reciprocal(Vec x) {
#if defined(__AVX512F__)
    __m512 r = _mm512_rcp14_ps((__m512)x), one = _mm512_set1_ps(1);
    __mmask16 finite = _mm512_cmp_ps_mask(r, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    return (Vec)_mm512_mask_fmadd_ps(r, finite, _mm512_fnmadd_ps((__m512)x, r, one), r);
#else
    return 1.0f / x;
#endif
}

/* The last vector of a row, of which only `left` < VLEN lanes exist. Masks avoid a call to memcpy, across
 * which a loop's constants could not stay in registers. */
INLINE Vec get_some(const void *p, int64_t i, int64_t left, Dtype t) {
#if defined(__AVX512F__)
    __mmask16 here = (__mmask16)((1u << left) - 1);
    if (t == DTYPE_F32) return (Vec)_mm512_maskz_loadu_ps(here, (const float *)p + i);
    return vec_widen((VecHalf)_mm256_maskz_loadu_epi16(here, (const uint16_t *)p + i));
#else
    Vec v = {0};
    VecHalf h = {0};
    if (t == DTYPE_F32) {
        memcpy(&v, (const float *)p + i, (size_t)left * sizeof(float));
        return v;
    }
    memcpy(&h, (const uint16_t *)p + i, (size_t)left * sizeof(uint16_t));
    return vec_widen(h);
#endif
}

INLINE void put_some(void *p, int64_t i, int64_t left, Dtype t, Vec v) {
#if defined(__AVX512F__)
    __mmask16 here = (__mmask16)((1u << left) - 1);
    if (t == DTYPE_F32)
        _mm512_mask_storeu_ps((float *)p + i, here, (__m512)v);
    else
        _mm256_mask_storeu_epi16((uint16_t *)p + i, here, (__m256i)vec_round(v));
#else
    VecHalf h = vec_round(v);
    if (t == DTYPE_F32)
        memcpy((float *)p + i, &v, (size_t)left * sizeof(float));
    else
        memcpy((uint16_t *)p + i, &h, (size_t)left * sizeof(uint16_t));
#endif
}

/* Elements i .. i+VLEN-1 of a tensor. At the end of a row only `left` of them exist: the other lanes read as
 * 0 and are not written. */
INLINE Vec get(const void *p, int64_t i, int64_t left, Dtype t) {
    if (__builtin_expect(left < VLEN, 0)) return get_some(p, i, left, t);
    if (t == DTYPE_F32) return vec_load((const float *)p + i);
    VecHalf h;
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    return vec_widen(h);
}

INLINE void put(void *p, int64_t i, int64_t left, Dtype t, Vec v) {
    if (__builtin_expect(left < VLEN, 0)) {
        put_some(p, i, left, t, v);
        return;
    }
    if (t == DTYPE_F32) {
        vec_store((float *)p + i, v);
        return;
    }
    VecHalf h = vec_round(v);
    memcpy((uint16_t *)p + i, &h, sizeof h);
}

/* p * 2^n for a whole n that keeps p in range; 0 where x < least. moved: n + 1.5 * 2^23. */
INLINE Vec vec_scale(Vec p, Vec n, Vec moved, Vec x, float least) {
#if defined(__AVX512F__)
    (void)moved;
    __mmask16 here = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_NLT_UQ);
    return (Vec)_mm512_maskz_scalef_ps(here, (__m512)p, (__m512)n);
#else
    (void)n;
    VecBits power = ((VecBits)moved << 23) + 0x3f800000;
    return (Vec)(~(VecInt)(x < least) & (VecInt)(p * (Vec)power));
#endif
}

/* 2^x; 0 below -126, 2^127.49 instead of infinity above; NaN stays NaN. Relative error below 2e-7. x is split
 * into a whole number, which goes into the exponent, and a rest in [-0.5, 0.5], for which a polynomial was
 * fitted (minimax, 1.9e-9). */
INLINE Vec vec_exp2_bounded(Vec x) { /* x <= 127.49 */
    const float shift =
        12582912; /* 1.5 * 2^23: adding it rounds to a whole number, which is left in the low bits */
    Vec moved = x + shift, n = moved - shift, f = x - n;
    Vec p = vec_set(1.53458118e-4f);
    p = p * f + 1.33999312e-3f;
    p = p * f + 9.61848896e-3f;
    p = p * f + 5.55032878e-2f;
    p = p * f + 2.40226469e-1f;
    p = p * f + 6.93147206e-1f;
    p = p * f + 1.0f;
    return vec_scale(p, n, moved, x, -126);
}
INLINE Vec vec_exp2(Vec x) { return vec_exp2_bounded(vec_min(vec_set(127.49f), x)); }

/* e^x, likewise, but infinity above 88.37 (AVX-512: 88.72). ln 2 is subtracted in two parts, so that the rest
 * of a large x keeps its accuracy. */
INLINE Vec vec_exp_bounded(Vec x) { /* x <= 88.37 */
    const float shift = 12582912, log2e = 1.44269504f;
    Vec moved = x * log2e + shift, n = moved - shift;
    Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Vec p = vec_set(1.40612409e-03f);
    p = p * r + 8.37901141e-03f;
    p = p * r + 4.16647755e-02f;
    p = p * r + 1.66663662e-01f;
    p = p * r + 5.00000060e-01f;
    p = p * r + 1.00000000e+00f;
    p = p * r + 1.0f;
    return vec_scale(p, n, moved, x, -87.33f);
}
INLINE Vec vec_exp(Vec x) {
#if defined(__AVX512F__)
    return vec_exp_bounded(vec_min(vec_set(89.5f), x)); /* scalef overflows to infinity there */
#else
    return vec_select((VecInt)(x > 88.37f), vec_set(__builtin_inff()), vec_exp_bounded(x));
#endif
}

/* tanh x: a quotient of polynomials within 4 units in the last place for |x| < 7.9; 1 beyond, which is exact
 * in fp32. The quotient is x times a polynomial in x^2 over another, so small x keep their accuracy. The
 * coefficients are Eigen's. */
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

/* The compiler keeps sums in registers only if all their indices are constants, hence full unrolling. */
#define UNROLL _Pragma("GCC unroll 16")

/* Calls body(..., dtype) with a constant dtype, so that each dtype gets code of its own. Arguments of ops are
 * passed by value where loops use them: the compiler would read *o again after every store. */
#define BY_DTYPE(type, body, ...)          \
    do {                                   \
        if ((type) == DTYPE_F32)           \
            body(__VA_ARGS__, DTYPE_F32);  \
        else                               \
            body(__VA_ARGS__, DTYPE_BF16); \
    } while (0)

#endif
