/* Sums without rounding, or in a fixed tree: statistics of gradients, sums of losses, fixed point,
 * sum_partials.
 *
 * Exact sums use only integers. A number is m 2^e with m < 2^24, so m or m^2 is an integer below 2^48. In a
 * segment of 4096 elements, those whose exponents are within REACH of the largest are added as integers of
 * 48 + 2 REACH + 12 = 120 bits; smaller ones are added in another pass, with their own largest exponent.
 * Each such sum is added to the few limbs of an ExactSum that it covers. Integer addition gives the same
 * result in any order. */
#include "device/cuda/plugin/packs.cuh"

namespace {

constexpr int FOUR = AT_ONCE<float>, EACH = 16 /* elements of a thread in a segment, in packs of FOUR */;
constexpr int SEGMENT = EACH * BLOCK, SEGMENTS = 8 /* segments of a block */, REACH = 30;
constexpr int LOWEST = -1088; /* limb 0 of an ExactSum counts units of 2^LOWEST */

/* 128 bits, two's complement. */
struct Wide {
    uint64_t low, high;
    INLINE Wide operator+=(Wide x) { /* written so that the compiler emits one carry chain */
        auto sum = ((unsigned __int128)high << 64 | low) + ((unsigned __int128)x.high << 64 | x.low);
        low = (uint64_t)sum, high = (uint64_t)(sum >> 64);
        return *this;
    }
    INLINE Wide negative(void) const { return {~low + 1, ~high + (low == 0)}; }
};
INLINE Wide __shfl_xor_sync(unsigned mask, Wide x, int offset) {
    return {::__shfl_xor_sync(mask, x.low, offset), ::__shfl_xor_sync(mask, x.high, offset)};
}

/* The exponent field of x: 1 for subnormal numbers, 0 for zero. */
INLINE int exponent_of(float x) {
    uint32_t u = __float_as_uint(x) & 0x7fffffff;
    return u == 0 ? 0 : (int)(u >> 23) + (u < 0x800000);
}

/* |x|, or x^2, whose exponent is `low + up`, in units of exponent `low`; |x| is given the sign of x. */
INLINE Wide wide_of(float x, bool square, int up) {
    uint32_t u = __float_as_uint(x), digits = (u & 0x7fffff) | ((u & 0x7f800000) ? 0x800000 : 0);
    uint64_t integer = square ? (uint64_t)digits * digits : digits;
    int shift = square ? 2 * up : up;
    Wide w = {integer << shift, shift ? integer >> (64 - shift) : 0};
    return !square && u >> 31 ? w.negative() : w;
}

/* Adds sum * 2^exponent to limbs, to which other warps may add at the same time. */
INLINE void add_to_limbs(int64_t *limbs, Wide sum, int exponent) {
    bool minus = sum.high >> 63;
    if (minus) sum = sum.negative();
    int bit = exponent - LOWEST, shift = bit & 31;
    uint32_t word[5] = {(uint32_t)sum.low, (uint32_t)(sum.low >> 32), (uint32_t)sum.high,
                        (uint32_t)(sum.high >> 32), 0};
    uint32_t before = 0;
    for (int i = 0; i < 5; i++) {
        int64_t digits = (int64_t)(uint32_t)(((uint64_t)word[i] << 32 | before) >> (32 - shift));
        before = word[i];
        atomicAdd((unsigned long long *)&limbs[(bit >> 5) + i],
                  (unsigned long long)(minus ? -digits : digits));
    }
}

struct SumBuffers {
    float *most;
    Wide *sums;
};

/* The index of this thread's element i, in a segment that begins at `first`. A thread has packs,
 * BLOCK packs apart. */
INLINE int64_t segment_index(int64_t first, int i) {
    return first + (i / FOUR * BLOCK + (int64_t)threadIdx.x) * FOUR + i % FOUR;
}
INLINE void load_segment(const float *p, int64_t first, int64_t n, float x[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; i += FOUR) {
        Pack<float, FOUR> here = load_pack<FOUR>(p, segment_index(first, i), n);
#pragma unroll
        for (int k = 0; k < FOUR; k++) x[i + k] = get(here, k);
    }
}

/* The largest exponent below `above` among a thread's elements; 0: there is none. */
INLINE int top_exponent(const float x[EACH], int above) {
    int top = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = exponent_of(x[i]);
        if (e < above && e > top) top = e;
    }
    return top;
}

/* Adds a segment to limbs, in shared memory. x: this thread's EACH elements, finite, with 0 for
 * those to be left out. */
INLINE void add_segment(const float x[EACH], bool square, int64_t *limbs, SumBuffers buffers) {
    int above = 256; /* elements with this exponent or a larger one have been added */
    for (;;) {
        int top = (int)block_max((float)top_exponent(x, above), buffers.most);
        if (top == 0) return;
        int low = top - REACH;
        Wide sum = {0, 0};
        for (int i = 0; i < EACH; i++) {
            int e = exponent_of(x[i]);
            if (e > 0 && e < above && e >= low) sum += wide_of(x[i], square, e - low);
        }
        sum = block_sum(sum, buffers.sums);
        if (threadIdx.x == 0) add_to_limbs(limbs, sum, square ? 2 * (low - 150) : low - 150);
        above = low;
    }
}

INLINE void carry(int64_t *limbs) {
    for (int i = 0; i < EXACT_LIMBS - 1; i++) {
        limbs[i + 1] += limbs[i] >> 32;
        limbs[i] &= 0xffffffff;
    }
}

/* ---- figures of gradients ---- */

enum Power { POWER_ONE, POWER_TWO, POWER_NONE };

__global__ void stats_start_kernel(GradStats *out) {
    int i = (int)threadIdx.x;
    if (i < EXACT_LIMBS) out->sum.limb[i] = 0;
    if (i == 0) {
        out->sum.pending = 0;
        out->max = 0;
        out->nonfinite = 0;
        out->first_nonfinite = -1;
    }
}

/* As unsigned integers, the bits of positive doubles are in order, and -1 is larger than any index. */
INLINE void note_max(GradStats *out, float most) {
    atomicMax((unsigned long long *)&out->max, (unsigned long long)__double_as_longlong((double)most));
}
INLINE void note_nonfinite(GradStats *out, int64_t at) {
    atomicAdd((unsigned long long *)&out->nonfinite, 1ull);
    atomicMin((unsigned long long *)&out->first_nonfinite, (unsigned long long)at);
}

/* Loads |g| of this thread's elements of a segment. Non-finite ones are noted and replaced by 0.
 * Returns the largest. */
INLINE float load_magnitudes(int64_t n, const float *g, int64_t first, GradStats *out, float x[EACH]) {
    float most = 0;
    load_segment(g, first, n, x);
    for (int i = 0; i < EACH; i++) {
        x[i] = fabsf(x[i]);
        if (!(x[i] < INFINITY)) {
            note_nonfinite(out, segment_index(first, i));
            x[i] = 0;
        }
        most = fmaxf(most, x[i]);
    }
    return most;
}

/* Sums elements with exponents low + 1 .. low + REACH as one integer for each lane of a warp, segment after
 * segment. It takes 48 + 2 REACH bits, 7 for a lane's SEGMENTS * EACH elements, and 5 for lanes. Warps do not
 * wait for each other. low is NOTHING until something has been added. */
constexpr int NOTHING = -REACH - 1, ABOVE = 4 /* exponents kept free above those of the first segment */;
static_assert(SEGMENTS * EACH <= 1 << 7 && 48 + 2 * REACH + 7 + 5 < 128, "a warp's sum has 128 bits");
struct Window {
    int low = NOTHING;
    Wide sum = {0, 0};

    INLINE void flush(bool square, int64_t *limbs) {
        if (low == NOTHING) return;
        sum = lanes_sum(sum, WARP);
        if (lane() == 0) add_to_limbs(limbs, sum, square ? 2 * (low - 150) : low - 150);
        sum = {0, 0};
    }
    /* Adds the elements in reach whose exponents are below `above`; returns whether any lane has smaller ones
     * left. All lanes must call. Here zero has the exponent of subnormal numbers, and no digits. A shift is
     * at least 1 and below 64. */
    INLINE bool add(const float x[EACH], bool square, int above) {
        bool left = false;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint32_t u = __float_as_uint(x[i]), field = u >> 23, normal = field ? 1 : 0,
                     digits = (u & 0x7fffff) | normal << 23;
            int e = (int)(field + 1 - normal), shift = (e - low) * (square ? 2 : 1);
            uint64_t integer = (uint64_t)digits * (square ? digits : 1);
            if (e > low && e < above) sum += {integer << shift, integer >> (64 - shift)};
            left = left || (e <= low && u != 0);
        }
        return __ballot_sync(0xffffffffu, left) != 0;
    }
};

/* Adds this warp's elements x of a segment, which are not negative; most: the largest of this lane. Elements
 * below the window's reach get windows of their own. */
INLINE void add_to_window(const float x[EACH], float most, bool square, int64_t *limbs, Window &window) {
    int top = exponent_of(lanes_max(most, WARP)), above = 256;
    if (top > window.low + REACH) {
        window.flush(square, limbs);
        window.low = top + ABOVE - REACH;
    }
    if (!window.add(x, square, above)) return;
    auto next = [&] { return (int)lanes_max((float)top_exponent(x, above), WARP); };
    for (above = window.low + 1; (top = next()) > 0; above = top - REACH + 1) {
        Window rest;
        rest.low = top - REACH;
        rest.add(x, square, above);
        rest.flush(square, limbs);
    }
}

/* A block adds to limbs in shared memory, and to the result only at its end. */
__global__ void __launch_bounds__(BLOCK)
    stats_kernel(int64_t n, const float *g, Power power, GradStats *out) {
    SHARED(int64_t, limbs, EXACT_LIMBS);
    SHARED(float, maxima, BLOCK / WARP);
    for (int i = (int)threadIdx.x; i < EXACT_LIMBS; i += BLOCK) limbs[i] = 0;
    __syncthreads();
    float most = 0, x[EACH];
    Window window;
    for (int segment = 0; segment < SEGMENTS; segment++) {
        int64_t first = ((int64_t)blockIdx.x * SEGMENTS + segment) * SEGMENT;
        if (first >= n) break;
        float here = load_magnitudes(n, g, first, out, x);
        most = fmaxf(most, here);
        if (power != POWER_NONE) add_to_window(x, here, power == POWER_TWO, limbs, window);
    }
    window.flush(power == POWER_TWO, limbs);
    most = block_max(most, maxima);
    if (threadIdx.x == 0) note_max(out, most);
    for (int i = (int)threadIdx.x; i < EXACT_LIMBS; i += BLOCK)
        if (limbs[i] != 0) atomicAdd((unsigned long long *)&out->sum.limb[i], (unsigned long long)limbs[i]);
}

/* All limbs are loaded into shared memory at once: one by one, each carry would wait for memory. */
__global__ void stats_end_kernel(GradStats *out) {
    SHARED(int64_t, limbs, EXACT_LIMBS);
    int i = (int)threadIdx.x;
    if (i < EXACT_LIMBS) limbs[i] = out->sum.limb[i];
    __syncthreads();
    if (i == 0) carry(limbs);
    __syncthreads();
    if (i < EXACT_LIMBS) out->sum.limb[i] = limbs[i];
}

/* The unit is not used: only powers that the program computes on the host need it. */
void grad_stats(Device *d, const GradStatsArgs *o) {
    (void)o->unit;
    Power power = o->p == 1 ? POWER_ONE : o->p == 2 ? POWER_TWO : POWER_NONE;
    LAUNCH(d, OP_GRAD_STATS, stats_start_kernel, 1, 3 * WARP, 0, o->out);
    if (o->n == 0) return;
    LAUNCH(d, OP_GRAD_STATS, stats_kernel, blocks_of(o->n, SEGMENTS * SEGMENT), BLOCK, 0, o->n, o->g, power,
           o->out);
    LAUNCH(d, OP_GRAD_STATS, stats_end_kernel, 1, 3 * WARP, 0, o->out);
}

/* ---- losses ---- */

/* One block is enough: a microbatch has few losses. */
__global__ void __launch_bounds__(BLOCK) loss_sum_kernel(int64_t n, const float *losses, LossSum *into) {
    SHARED(int64_t, limbs, EXACT_LIMBS);
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(Wide, sums, BLOCK / WARP);
    SHARED(int, counts, BLOCK / WARP);
    for (int i = (int)threadIdx.x; i < EXACT_LIMBS; i += BLOCK) limbs[i] = into->sum.limb[i];
    __syncthreads();
    int bad = 0;
    float x[EACH];
    for (int64_t first = 0; first < n; first += SEGMENT) {
        load_segment(losses, first, n, x);
        for (int i = 0; i < EACH; i++)
            if (!(fabsf(x[i]) < INFINITY)) x[i] = 0, bad++;
        add_segment(x, false, limbs, {maxima, sums});
    }
    bad = block_sum(bad, counts);
    if (threadIdx.x == 0) {
        carry(limbs);
        into->sum.pending = 0;
        into->nonfinite += bad;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < EXACT_LIMBS; i += BLOCK) into->sum.limb[i] = limbs[i];
}

void loss_sum(Device *d, const LossSumArgs *o) {
    if (o->n > 0) LAUNCH(d, OP_LOSS_SUM, loss_sum_kernel, 1, BLOCK, 0, o->n, o->losses, o->into);
}

/* ---- fixed point ---- */

/* `first` is the index of the first refusal of the first op that refused one. While an op runs that may
 * become it, `first` is negative: -1, or the smallest index refused so far, counted from INT64_MIN. As
 * unsigned numbers these are in order, and above any index that stays. */
__global__ void fixed_start_kernel(FixedRefusals *refused) {
    if (refused->count == 0) refused->first = -1;
}
__global__ void fixed_end_kernel(FixedRefusals *refused) {
    int64_t first = refused->first;
    if (first < 0) refused->first = first == -1 ? 0 : first - INT64_MIN;
}

__global__ void fixed_add_kernel(int64_t n, const float *g, int64_t *acc, bool set, double limit,
                                 FixedRefusals *refused) {
    int64_t first = element() * FOUR;
    Pack<float, FOUR> grads = load_pack<FOUR>(g, first, n);
    Pack<int64_t, FOUR> sums = {};
    if (!set) sums = load_pack<FOUR>(acc, first, n);
#pragma unroll
    for (int i = 0; i < FOUR; i++) { /* past the end there are zeros, which are good */
        double x = (double)get(grads, i);
        bool good = fabs(x) <= limit;
        if (!good) {
            atomicAdd((unsigned long long *)&refused->count, 1ull);
            atomicMin((unsigned long long *)&refused->first, (unsigned long long)(INT64_MIN + first + i));
        }
        int64_t fixed = good ? __double2ll_rn(x * (double)(INT64_C(1) << FIXED_SHIFT)) : 0;
        put(sums, i, get(sums, i) + fixed);
    }
    store_pack(acc, first, n, sums);
}

/* The conversion rounds once; the power of two is exact. */
__global__ void fixed_to_float_kernel(int64_t n, const int64_t *acc, float *out) {
    int64_t first = element() * FOUR;
    Pack<int64_t, FOUR> sums = load_pack<FOUR>(acc, first, n);
    Pack<float, FOUR> x = {};
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        put(x, i, __ll2float_rn(get(sums, i)) * (1.0f / (float)(INT64_C(1) << FIXED_SHIFT)));
    store_pack(out, first, n, x);
}

void fixed_add(Device *d, const FixedAddArgs *o) {
    if (o->n == 0) return;
    LAUNCH(d, OP_FIXED_ADD, fixed_start_kernel, 1, 1, 0, o->refused);
    LAUNCH(d, OP_FIXED_ADD, fixed_add_kernel, blocks_of_packs<FOUR>(o->n), BLOCK, 0, o->n, o->g, o->acc,
           o->set, o->limit, o->refused);
    LAUNCH(d, OP_FIXED_ADD, fixed_end_kernel, 1, 1, 0, o->refused);
}

void fixed_to_float(Device *d, const FixedToFloatArgs *o) {
    if (o->n > 0)
        LAUNCH(d, OP_FIXED_TO_FLOAT, fixed_to_float_kernel, blocks_of_packs<FOUR>(o->n), BLOCK, 0, o->n,
               o->acc, o->out);
}

/* Nearly always nothing is found, so adding one by one costs nothing. Past the end there are zeros. */
template <typename T> __global__ void count_nonfinite_kernel(int64_t n, const T *in, int64_t *count) {
    constexpr int N = AT_ONCE<T>;
    int64_t first = element() * N;
    Pack<T, N> x = load_pack<N>(in, first, n);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (!(fabsf(get(x, i)) < INFINITY)) atomicAdd((unsigned long long *)count, 1ull);
}

void count_nonfinite(Device *d, const CountNonfiniteArgs *o) {
    if (o->n == 0) return;
    if (o->type == DTYPE_F32)
        LAUNCH(d, OP_COUNT_NONFINITE, count_nonfinite_kernel<float>, blocks_of_packs<AT_ONCE<float>>(o->n),
               BLOCK, 0, o->n, (const float *)o->in, o->count);
    else
        LAUNCH(d, OP_COUNT_NONFINITE, count_nonfinite_kernel<Bf16>, blocks_of_packs<AT_ONCE<Bf16>>(o->n),
               BLOCK, 0, o->n, (const Bf16 *)o->in, o->count);
}

/* ---- sums of partials ---- */

/* A kernel argument, passed by value: a list in host memory might be gone when the kernel runs. */
constexpr int PARTIALS = 128, PARTIAL_LEVELS = 8;
template <typename T> struct Partials { const T *in[PARTIALS]; };

__global__ void sum_partials_kernel(int64_t n, int count, Partials<float> partials, float *out) {
    int64_t first = element() * FOUR;
    Tree<float, PARTIAL_LEVELS> trees[FOUR];
    for (int p = 0; p < count; p++) {
        Pack<float, FOUR> x = load_pack<FOUR>(partials.in[p], first, n);
#pragma unroll
        for (int i = 0; i < FOUR; i++) trees[i].add(get(x, i));
    }
    Pack<float, FOUR> sums = {};
#pragma unroll
    for (int i = 0; i < FOUR; i++) put(sums, i, trees[i].sum());
    store_pack(out, first, n, sums);
}

__global__ void sum_partials_i64_kernel(int64_t n, int count, Partials<int64_t> partials, int64_t *out) {
    constexpr int TWO = AT_ONCE<int64_t>;
    int64_t first = element() * TWO;
    Pack<int64_t, TWO> sums = {};
    for (int p = 0; p < count; p++) {
        Pack<int64_t, TWO> x = load_pack<TWO>(partials.in[p], first, n);
#pragma unroll
        for (int i = 0; i < TWO; i++) put(sums, i, (int64_t)((uint64_t)get(sums, i) + (uint64_t)get(x, i)));
    }
    store_pack(out, first, n, sums);
}

template <typename T> Partials<T> list_partials(Device *d, int count, const T *const *in) {
    Partials<T> partials;
    if (count > PARTIALS) cuda_fatal(d, "sum_partials: %d partials; at most %d are done", count, PARTIALS);
    for (int p = 0; p < PARTIALS; p++) partials.in[p] = p < count ? in[p] : NULL;
    return partials;
}

void sum_partials(Device *d, const SumPartialsArgs *o) {
    if (o->n == 0) return;
    LAUNCH(d, OP_SUM_PARTIALS, sum_partials_kernel, blocks_of_packs<FOUR>(o->n), BLOCK, 0, o->n, o->partials,
           list_partials(d, o->partials, o->in), o->out);
}

void sum_partials_i64(Device *d, const SumPartialsI64Args *o) {
    if (o->n == 0) return;
    LAUNCH(d, OP_SUM_PARTIALS, sum_partials_i64_kernel, blocks_of_packs<AT_ONCE<int64_t>>(o->n), BLOCK, 0,
           o->n, o->partials, list_partials(d, o->partials, o->in), o->out);
}

} // namespace

extern "C" void gradients_fill(Ops *ops) {
    ops->grad_stats = grad_stats;
    ops->loss_sum = loss_sum;
    ops->fixed_add = fixed_add;
    ops->fixed_to_float = fixed_to_float;
    ops->count_nonfinite = count_nonfinite;
    ops->sum_partials = sum_partials;
    ops->sum_partials_i64 = sum_partials_i64;
}
