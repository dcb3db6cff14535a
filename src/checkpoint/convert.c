/* Bitwise conversions, the same on every machine. Bytes of a file are unaligned, so they go through
 * memcpy. */
#include "checkpoint/convert.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

bool convert_is_float(SafeType type) { return type == SAFE_F32 || type == SAFE_BF16 || type == SAFE_F16; }

/* By memcpy: the portable way in C, and free of cost. */
static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* Bit fields of IEEE 754: 1 sign, 5 exponent (bias 15), 10 fraction. 112 is the difference of the biases, 127
 * - 15. Subnormals are fraction * 2^-24, which are normal numbers in fp32. */
static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent > 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float value = ldexpf((float)fraction, -24);
    return sign ? -value : value;
}

/* To nearest, ties to even, as in hardware. */
static uint16_t float_to_half(float value) {
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    /* A NaN keeps its sign and upper digits, and is made quiet: without the bit 0x200 some would become
     * infinity. */
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00); /* halfway above the largest finite value, and beyond */
    if (rest < 0x38800000) {
        /* Below the smallest normal: the unit is 2^-24, and rintf rounds to even. */
        return (uint16_t)(sign | (uint32_t)rintf(ldexpf(fabsf(value), 24)));
    }
    /* Half a unit minus one, plus the last kept digit: ties go to the even neighbour. A carry out of the
     * fraction correctly increments the exponent. */
    uint32_t rounded = rest + 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

/* The upper half of an fp32, rounded to nearest, ties to even; overflow yields infinity without special
 * handling. */
static uint16_t float_to_bf16(float value) {
    uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* quiet, and never turned into infinity */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A bf16 is the upper half of an fp32 whose lower half is zero: exact, also for NaNs and infinities. */
static void widen_bf16(const char *in, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, in + 2 * i, 2);
        out[i] = from_bits((uint32_t)v << 16);
    }
}

static void widen_f16(const char *in, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, in + 2 * i, 2);
        out[i] = half_to_float(v);
    }
}

/* Only in files of other programs; weft writes none. */
static void round_f64(const char *in, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, in + 8 * i, 8);
        out[i] = (float)v;
    }
}

/* Exact from bf16 and F16, rounded from F64. CHECK: callers have already refused every other type. */
void convert_to_f32(SafeType type, const void *in, float *out, size_t n) {
    CHECK(convert_is_float(type) || type == SAFE_F64);
    if (type == SAFE_F32) memcpy(out, in, 4 * n);
    if (type == SAFE_BF16) widen_bf16(in, out, n);
    if (type == SAFE_F16) widen_f16(in, out, n);
    if (type == SAFE_F64) round_f64(in, out, n);
}

/* n elements; values that are too large for the type become infinity. */
void convert_from_f32(SafeType type, const float *in, void *out, size_t n) {
    char *bytes = out;
    CHECK(convert_is_float(type));
    if (type == SAFE_F32) {
        memcpy(out, in, 4 * n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t v = type == SAFE_BF16 ? float_to_bf16(in[i]) : float_to_half(in[i]);
        memcpy(bytes + 2 * i, &v, 2);
    }
}
