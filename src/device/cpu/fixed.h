/* Gradients in fixed point. Part of kernels_all.h, after exact_sums.h. */

typedef int64_t VecLong __attribute__((vector_size(4 * VLEN)));
typedef uint64_t VecLongBits __attribute__((vector_size(4 * VLEN)));

/* As get and put, for half a vector; left may be below 1. */
INLINE VecLong get_long(const int64_t *p, int64_t i, int64_t left) {
    VecLong v = {0};
    if (left >= HALF_VLEN)
        memcpy(&v, p + i, sizeof v);
    else if (left > 0)
        memcpy(&v, p + i, (size_t)left * sizeof *p);
    return v;
}

INLINE void put_long(int64_t *p, int64_t i, int64_t left, VecLong v) {
    if (left >= HALF_VLEN)
        memcpy(p + i, &v, sizeof v);
    else if (left > 0)
        memcpy(p + i, &v, (size_t)left * sizeof *p);
}

/* Rounds x, at most 2^62 in size and with the 24 digits of a float, to a whole number: its part above 2^32
 * and the rest separately. Adding 1.5 * 2^52 rounds each and leaves a whole number in the low bits. */
INLINE VecLongBits round_to_long(VecDouble x) {
    const double shift = 0x1.8p52;
    VecDouble zero = {0}, high = x * 0x1p-32 + shift, low = (x - (high - shift) * 0x1p32) + shift;
    VecLongBits base = (VecLongBits)(shift - zero);
    return (((VecLongBits)high - base) << 32) + ((VecLongBits)low - base);
}

/* Largest float <= limit: comparing floats with it gives the same result as comparing with limit. */
static float float_below(double limit) {
    float f = (float)limit;
    return (double)f > limit ? nextafterf(f, -HUGE_VALF) : f;
}

INLINE void fixed_add_half(int64_t i, int64_t left, VecNarrow g, int64_t *acc, bool set) {
    VecLongBits before = {0};
    if (!set) before = (VecLongBits)get_long(acc, i, left);
    VecDouble scaled = __builtin_convertvector(g, VecDouble) * (double)(INT64_C(1) << FIXED_SHIFT);
    put_long(acc, i, left, (VecLong)(before + round_to_long(scaled)));
}

INLINE bool fixed_add_all(int64_t first, int64_t count, const float *g, int64_t *acc, bool set, float limit) {
    VecInt refused = {0};
    EACH_VECTOR(at, left, count) {
        Vec x = get(g, first + at, left, DTYPE_F32);
        VecInt good = (VecInt)(vec_abs(x) <= limit);
        refused |= ~good;
        x = (Vec)(good & (VecInt)x);
        VecNarrow half[2];
        memcpy(half, &x, sizeof half);
        fixed_add_half(first + at, left, half[0], acc, set);
        fixed_add_half(first + at + HALF_VLEN, left - HALF_VLEN, half[1], acc, set);
    }
    return vec_sum((Vec)(refused & (VecInt)vec_set(1))) > 0;
}

static void fixed_add(const FixedAddArgs *o, int64_t first, int64_t count, FixedRefusals *refused) {
    float most = float_below(o->limit);
    bool some = o->set ? fixed_add_all(first, count, o->g, o->acc, true, most)
                       : fixed_add_all(first, count, o->g, o->acc, false, most);
    for (int64_t i = first; some && i < first + count; i++)
        if (!(fabsf(o->g[i]) <= most) && refused->count++ == 0) refused->first = i;
}

/* All bits of the exponent are set in an infinity and a NaN, and in no other number. */
static int64_t count_nonfinite(int64_t n, const void *in, Dtype type) {
    enum { F32_EXPONENT = 0x7f800000, BF16_EXPONENT = 0x7f80 };
    const uint32_t *wide = in;
    const uint16_t *narrow = in;
    int32_t found = 0; /* pieces are short */
    if (type == DTYPE_F32)
        for (int64_t i = 0; i < n; i++) found += (wide[i] & F32_EXPONENT) == F32_EXPONENT;
    else
        for (int64_t i = 0; i < n; i++) found += (narrow[i] & BF16_EXPONENT) == BF16_EXPONENT;
    return found;
}

/* Converts directly to the nearest float: a conversion by way of double might round twice. */
static void fixed_to_float(int64_t n, const int64_t *acc, float *out) {
    EACH_VECTOR(i, left, n) {
        VecNarrow half[2] = {
            __builtin_convertvector(get_long(acc, i, left), VecNarrow),
            __builtin_convertvector(get_long(acc, i + HALF_VLEN, left - HALF_VLEN), VecNarrow)};
        Vec v;
        memcpy(&v, half, sizeof v);
        put(out, i, left, DTYPE_F32, v * (1.0f / (float)(INT64_C(1) << FIXED_SHIFT)));
    }
}
