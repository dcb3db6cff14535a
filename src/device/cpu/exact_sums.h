/* Sums without rounding. Part of kernels_all.h. */

typedef float VecNarrow __attribute__((vector_size(2 * VLEN)));
typedef double VecDouble __attribute__((vector_size(4 * VLEN)));
enum { HALF_VLEN = VLEN / 2 }; /* lanes of VecNarrow */

/* The exact sum of the powers v = |g|^p of a piece of gradients, p 1 or 2, in doubles alone.
 *
 * Adding v to a large number s in [2^k, 2^(k+1)) rounds it to a multiple of u = 2^(k-52), the unit of s. Both
 * the part that was added, (s + v) - s, and the part that was lost, v minus that, are exact. The lost part is
 * at most u / 2 and goes to the next, finer level. (Rump, Ogita & Oishi, "Accurate floating-point summation",
 * 2008; Ahrens, Demmel & Nguyen, "Algorithms for efficient reproducible floating point summation", 2020.) A
 * sum starts at 1.5 * 2^k. It stays in its binade because the n = 2^12 elements of a piece together are at
 * most n times the bound of one, 2^(k - 2):
 *
 *     level   bound of v              k               u
 *     0       2^b                     b + 14          2^(b - 38)
 *     1       2^(b - 39)              b - 25          2^(b - 77)
 *     2       2^(b - 78)              b - 64          2^(b - 116)
 *
 * By the same bound, the lanes of a level and its low and high halves can be added to each other without
 * rounding. Nothing is left after the last level if v is a multiple of its unit. With |g| < 2^e and b = p e,
 * every |g| >= 2^(e - 35) is a multiple of 2^(e - 58), and its square one of 2^(2 e - 116). Smaller elements
 * are left to another pass with a smaller b. */
enum { LEVELS = 3, LEVEL_STEP = 39, LEVEL_ROOM = STATS_PIECE_LOG2 + 2, LEVEL_REACH = 35 };

typedef struct Levels {
    VecDouble start[LEVELS], low[LEVELS], high[LEVELS];
} Levels;

/* All values must be below 2^bound. */
INLINE Levels levels_start(int bound) {
    Levels s;
    for (int l = 0; l < LEVELS; l++)
        s.low[l] = s.high[l] = s.start[l] = ldexp(1.5, bound + LEVEL_ROOM - l * LEVEL_STEP) - (VecDouble){0};
    return s;
}

/* Adds v to one half (low or high) of the levels. */
INLINE void levels_add(VecDouble *half, VecDouble v) {
    for (int l = 0; l < LEVELS; l++) {
        VecDouble before = half[l];
        half[l] += v;
        v -= half[l] - before;
    }
}

INLINE void levels_finish(const Levels *s, ExactSum *sum) {
    for (int l = 0; l < LEVELS; l++) {
        double total = 0;
        for (int i = 0; i < HALF_VLEN; i++)
            total += (s->low[l][i] - s->start[l][i]) + (s->high[l][i] - s->start[l][i]);
        exact_add(sum, total);
    }
}

/* Adds the powers of a piece's elements from `top`, the largest that has not been added yet, down to
 * 2^-LEVEL_REACH of it. Returns the largest element that is left, 0 if none. */
INLINE double sum_powers(int64_t n, const float *g, bool square, double top, ExactSum *sum) {
    int exponent;
    (void)frexp(top, &exponent); /* top < 2^exponent */
    Levels s = levels_start(square ? 2 * exponent : exponent);
    Vec next = {0}, lowest = vec_set((float)ldexp(1, exponent - LEVEL_REACH)), highest = vec_set((float)top);
    EACH_VECTOR(i, left, n) {
        __builtin_prefetch(g + i + STATS_PIECE); /* prefetch the next piece */
        Vec x = vec_abs(get(g, i, left, DTYPE_F32));
        VecInt here = (VecInt)(x >= lowest) & (VecInt)(x <= highest), below = (VecInt)(x < lowest);
        next = vec_max((Vec)(below & (VecInt)x), next);
        x = (Vec)(here & (VecInt)x);
        VecNarrow half[2];
        memcpy(half, &x, sizeof half);
        VecDouble a = __builtin_convertvector(half[0], VecDouble),
                  b = __builtin_convertvector(half[1], VecDouble);
        levels_add(s.low, square ? a * a : a);
        levels_add(s.high, square ? b * b : b);
    }
    levels_finish(&s, sum);
    return (double)vec_top(next);
}

/* Largest |g|; NaN or infinite if some element is not finite. */
static double piece_top(int64_t n, const float *g) {
    Vec top = {0}, zero = {0};
    EACH_VECTOR(i, left, n) {
        Vec x = vec_abs(get(g, i, left, DTYPE_F32));
        top = vec_max(x, top); /* skips NaN */
        zero += x - x;         /* NaN once an element was NaN or infinite */
    }
    return (double)(vec_top(top) + vec_sum(zero));
}

/* Element by element: for any power, and for pieces with non-finite elements. */
static void grad_stats_slowly(int64_t first, int64_t count, const float *g, double p, double unit,
                              GradStats *all) {
    for (int64_t i = first; i < first + count; i++) {
        double x = fabs((double)g[i]), power = p <= 1             ? x
                                               : p <= 2 && p >= 2 ? x * x
                                               : p < HUGE_VAL     ? pow(x / unit, p)
                                                                  : 0;
        if (!(x < HUGE_VAL) || !(power < HUGE_VAL)) {
            if (all->nonfinite++ == 0) all->first_nonfinite = i; /* pieces come in ascending order */
            continue;
        }
        if (x > all->max) all->max = x;
        exact_add(&all->sum, power);
    }
}

static void grad_stats(int64_t first, int64_t count, const float *g, double p, double unit, GradStats *all) {
    const float *piece = g + first;
    double top = piece_top(count, piece);
    bool square = p <= 2 && p >= 2, one = p <= 1, finite = p < HUGE_VAL;
    if (!(top < HUGE_VAL) || (finite && !square && !one)) {
        grad_stats_slowly(first, count, g, p, unit, all);
        return;
    }
    if (top > all->max) all->max = top;
    while (finite && top > 0)
        top = square ? sum_powers(count, piece, true, top, &all->sum)
                     : sum_powers(count, piece, false, top, &all->sum);
}
