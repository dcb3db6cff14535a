/* Normal numbers in vectors, with the bits of rng_normals. Part of kernels_all.h, after fixed.h.
 *
 * Invariant: every operation on doubles is one IEEE 754 operation, in the order of base/rng.c, so results do
 * not depend on the instruction set. Logarithms are computed one by one with the C library: only numbers in
 * the tails, 15 of 100, need one. */

enum { NORMALS = 64 }; /* made at a time; a multiple of VLEN */

typedef uint32_t VecNarrowBits __attribute__((vector_size(2 * VLEN)));

INLINE VecDouble double_load(const double *p) {
    VecDouble v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE VecDouble double_set(double x) { return x - (VecDouble){0}; }

INLINE VecDouble double_select(VecLong mask, VecDouble a, VecDouble b) {
    return (VecDouble)((mask & (VecLong)a) | (~mask & (VecLong)b));
}

INLINE VecDouble double_clamp(VecDouble x, double lo, double hi) {
    VecDouble least = double_set(lo), most = double_set(hi);
    return double_select((VecLong)(x < least), least, double_select((VecLong)(x > most), most, x));
}

INLINE VecDouble double_sqrt(VecDouble v) {
#if defined(__AVX512F__)
    return (VecDouble)_mm512_sqrt_pd((__m512d)v);
#elif defined(__AVX2__)
    return (VecDouble)_mm256_sqrt_pd((__m256d)v);
#else
    for (int i = 0; i < HALF_VLEN; i++) v[i] = __builtin_sqrt(v[i]);
    return v;
#endif
}

/* A product that is rounded. Kernels are compiled with contraction, which would otherwise fuse it with a sum
 * that follows. */
INLINE VecDouble double_product(VecDouble a, VecDouble b) {
    VecDouble product = a * b;
#if defined(__FMA__)
    __asm__("" : "+v"(product));
#endif
    return product;
}

INLINE VecDouble double_polynomial(const double c[8], VecDouble x) {
    VecDouble sum = double_set(c[7]);
    for (int i = 6; i >= 0; i--) sum = double_product(sum, x) + c[i];
    return sum;
}

/* Probabilities (uniform in the range) of the numbers from `first` on. */
INLINE void normal_probabilities(uint64_t key, uint64_t first, const RngRange *r, double p[NORMALS]) {
    static const uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int i = 0; i < NORMALS; i += VLEN, first += VLEN) {
        VecBits c[4] = {{0}}, lane;
        VecNarrowBits words[4];
        memcpy(&lane, lanes, sizeof lane);
        c[0] = lane + (uint32_t)first;
        c[1] = (uint32_t)(first >> 32) - (VecBits)(c[0] < lane); /* a carry reads as -1 */
        vec_philox(key, c);
        memcpy(words, c, sizeof words);
        for (int half = 0; half < 2; half++) {
            VecWide low = __builtin_convertvector(words[half], VecWide);
            VecWide bits = __builtin_convertvector(words[2 + half], VecWide) << 32 | low;
            /* 1 + k 2^-52, less 1 - 2^-53: an odd multiple of 2^-53, exactly. */
            VecDouble u = (VecDouble)(bits >> 12 | 0x3ff0000000000000) - (1 - 0x1p-53);
            u = double_clamp(r->below + double_product(u, double_set(r->width)), DBL_MIN, 1 - 0x1p-53);
            memcpy(p + i + half * HALF_VLEN, &u, sizeof u);
        }
    }
}

/* Replaces the numbers in the tails. Their indices are gathered first, so that the loops have no branches. 1
 * - p is exact in the upper half. */
INLINE void normal_tails(const double p[NORMALS], double out[NORMALS]) {
    int where[NORMALS], tails = 0;
    double r[NORMALS + HALF_VLEN], x[NORMALS + HALF_VLEN];
    for (int i = 0; i < NORMALS; i++) {
        where[tails] = i;
        tails += fabs(p[i] - 0.5) > RNG_MIDDLE;
    }
    for (int t = 0; t < tails; t++) {
        double at = p[where[t]];
        r[t] = -log(at > 0.5 ? 1 - at : at);
    }
    for (int t = tails; t < tails + HALF_VLEN; t++) r[t] = 0; /* padding lanes */
    for (int t = 0; t < tails; t += HALF_VLEN) {
        VecDouble root = double_sqrt(double_load(r + t)), from = root - RNG_TAIL_FROM;
        VecDouble value = double_polynomial(rng_tail.above, from) / double_polynomial(rng_tail.below, from);
        memcpy(r + t, &root, sizeof root);
        memcpy(x + t, &value, sizeof value);
    }
    for (int t = 0; t < tails; t++) {
        double at = p[where[t]];
        out[where[t]] = r[t] > RNG_TAIL ? rng_quantile(at) : at > 0.5 ? x[t] : -x[t];
    }
}

static void draw_normals(uint64_t key, uint64_t first, const RngRange *r, double out[NORMALS]) {
    double p[NORMALS];
    normal_probabilities(key, first, r, p);
    for (int i = 0; i < NORMALS; i += HALF_VLEN) {
        VecDouble q = double_load(p + i) - 0.5, at = RNG_MIDDLE * RNG_MIDDLE - double_product(q, q);
        VecDouble x = q * double_polynomial(rng_middle.above, at) / double_polynomial(rng_middle.below, at);
        memcpy(out + i, &x, sizeof x);
    }
    normal_tails(p, out);
    for (int i = 0; i < NORMALS; i += HALF_VLEN) {
        VecDouble x = r->sign * double_clamp(double_load(out + i), r->lo, r->hi);
        memcpy(out + i, &x, sizeof x);
    }
}

static void init_normal(const InitNormalArgs *o, const RngRange *r) {
    for (int64_t i = 0; i < o->n; i += NORMALS) {
        double x[NORMALS];
        float rounded[NORMALS];
        draw_normals(o->key, o->first + (uint64_t)i, r, x);
        for (int e = 0; e < NORMALS; e += HALF_VLEN) {
            VecDouble scaled = o->mean + double_product(double_set(o->std), double_load(x + e));
            VecNarrow narrow = __builtin_convertvector(scaled, VecNarrow);
            memcpy(rounded + e, &narrow, sizeof narrow);
        }
        memcpy(o->out + i, rounded, (size_t)min_i64(NORMALS, o->n - i) * sizeof *o->out);
    }
}
