/* AdamW, SGD, the steps of Muon that are not matrix products, and averages of weights. All are fp32, in the
 * order of the CPU's reference, with no product and sum fused, and with its random words (Philox, shapes.h:
 * StateStore), so that they give the same bits. A thread has a pack (packs.cuh) of four elements of each
 * tensor: 16 bytes in fp32, 8 in bf16. */
#include "device/cuda/plugin/packs.cuh"

namespace {

constexpr int N = AT_ONCE<float>;
using Floats = Pack<float, N>;
using Copies = Pack<Bf16, N>;

/* rng_philox of base/rng.c. */
INLINE void philox(uint64_t key, uint32_t c[4]) {
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t first = (uint64_t)0xd2511f53u * c[0], second = (uint64_t)0xcd9e8d57u * c[2];
        c[0] = (uint32_t)(second >> 32) ^ c[1] ^ key0, c[1] = (uint32_t)second;
        c[2] = (uint32_t)(first >> 32) ^ c[3] ^ key1, c[3] = (uint32_t)first;
        key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
    }
}

/* The random word of element i of an op. */
INLINE uint32_t state_word(StateStore s, uint64_t step, int64_t i) {
    uint64_t e = (uint64_t)(s.first + i), block = e / STATE_CHUNK * STATE_BLOCKS + e % STATE_BLOCKS;
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)step, (uint32_t)(step >> 32)};
    philox(s.key, c);
    int word = (int)(e % STATE_CHUNK / STATE_BLOCKS);
    return word == 0 ? c[0] : word == 1 ? c[1] : word == 2 ? c[2] : c[3];
}

/* The same as bf16_round_by of device/cpu/cpu.h: the largest finite number stays finite, and every NaN
 * becomes one NaN. */
INLINE uint16_t bf16_by(float f, uint32_t bits) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    if ((u & 0x7fffffff) >= 0x7f7f0000) bits = 0;
    return (uint16_t)((u + bits) >> 16);
}

/* The first state takes the lower half of the word, the second the upper. */
INLINE void put_state(Floats &state, int i, float value, uint32_t) { put(state, i, value); }
INLINE void put_state(Copies &state, int i, float value, uint32_t half) {
    put_bits(state, i, bf16_by(value, half & 0xffff));
}
INLINE uint32_t word_of(const float *, StateStore, uint64_t, int64_t) { return 0; }
INLINE uint32_t word_of(const Bf16 *, StateStore s, uint64_t step, int64_t i) {
    return state_word(s, step, i);
}

template <typename T> __global__ void adamw_kernel(const AdamWArgs o) {
    const AdamW &a = o.constants;
    const OptimizerStep *step = o.step;
    T *m = (T *)o.m, *v = (T *)o.v;
    int64_t first = element() * N, n = o.n;
    if (first >= n) return;
    Floats params = load_pack<N>(o.param, first, n), grads = load_pack<N>(o.grad, first, n);
    Pack<T, N> means = load_pack<N>(m, first, n), squares = load_pack<N>(v, first, n);
    Copies copies = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        float g = get(grads, i) * step->grad_scale;
        float mean = a.beta1 * get(means, i) + (1 - a.beta1) * g;
        float square = a.beta2 * get(squares, i) + (1 - a.beta2) * g * g;
        float move = mean / step->correction1 / (sqrtf(square / step->correction2) + a.eps);
        float p = get(params, i);
        p -= step->lr * a.weight_decay * p + step->lr * move;
        put(params, i, p);
        put(copies, i, p);
        uint32_t word = word_of(m, o.s, step->number, first + i);
        put_state(means, i, mean, word);
        put_state(squares, i, square, word >> 16);
    }
    store_pack(o.param, first, n, params);
    store_pack(m, first, n, means);
    store_pack(v, first, n, squares);
    if (o.copy) store_pack((Bf16 *)o.copy, first, n, copies);
}

template <typename T> __global__ void sgd_kernel(const SgdArgs o) {
    const Sgd &a = o.constants;
    const OptimizerStep *step = o.step;
    T *momentum = (T *)o.momentum;
    int64_t first = element() * N, n = o.n;
    if (first >= n) return;
    Floats params = load_pack<N>(o.param, first, n), grads = load_pack<N>(o.grad, first, n);
    Pack<T, N> moments = {};
    if (momentum) moments = load_pack<N>(momentum, first, n);
    Copies copies = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        float p = get(params, i), g = get(grads, i) * step->grad_scale + a.weight_decay * p, move = g;
        if (momentum) {
            float b = a.momentum * get(moments, i) + g;
            put_state(moments, i, b, word_of(momentum, o.s, step->number, first + i));
            move = a.nesterov ? g + a.momentum * b : b;
        }
        p -= step->lr * move;
        put(params, i, p);
        put(copies, i, p);
    }
    store_pack(o.param, first, n, params);
    if (momentum) store_pack(momentum, first, n, moments);
    if (o.copy) store_pack((Bf16 *)o.copy, first, n, copies);
}

/* ---- Muon ---- */

/* A matrix is a slice of a parameter, whose rows are shape.row elements apart; in x they are contiguous. */
template <typename T> __global__ void muon_momentum_kernel(const MuonMomentumArgs o) {
    const Muon &a = o.constants;
    const OptimizerStep *step = o.step;
    T *momentum = (T *)o.momentum;
    PackStart at = pack_start<N>(o.shape.cols);
    if (at.row >= o.shape.rows) return;
    int64_t begin = at.row * o.shape.row, first = at.column, n = o.shape.cols;
    Floats grads = load_pack<N>(o.grad + begin, first, n);
    Pack<T, N> moments = load_pack<N>(momentum + begin, first, n);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float g = get(grads, i) * step->grad_scale, b = a.momentum * get(moments, i) + g;
        put_state(moments, i, b, word_of(momentum, o.s, step->number, begin + first + i));
        put(grads, i, a.nesterov ? g + a.momentum * b : b);
    }
    store_pack(momentum + begin, first, n, moments);
    store_pack(o.x + at.row * n, first, n, grads);
}

/* The same as exact_value of base/exact.c, for a sum that is normalised, not negative, and below 2^1024. It
 * takes the upper 64 bits, sets the last of them if any lower bit is set, and rounds once. */
INLINE uint64_t digit(const ExactSum *s, int i) { return i >= 0 ? (uint64_t)s->limb[i] : 0; }
INLINE double value_of(const ExactSum *s) {
    int first = EXACT_LIMBS - 1, lead = 0;
    while (first >= 0 && s->limb[first] == 0) first--;
    if (first < 0) return 0;
    while (!(digit(s, first) >> (31 - lead) & 1)) lead++;
    uint64_t upper = digit(s, first) << 32 | digit(s, first - 1), next = digit(s, first - 2) << lead;
    uint64_t digits = upper << lead | next >> 32;
    bool more = (next & 0xffffffff) != 0;
    for (int i = first - 3; i >= 0 && !more; i--) more = s->limb[i] != 0;
    return ldexp(__ull2double_rn(digits | (more ? 1 : 0)), -1088 + 32 * (first - 1) - lead);
}

/* The same as muon_factor of device/cpu/cpu.h. One thread computes it for all. */
__global__ void muon_factor_kernel(const GradStats *squares, float slack, float *factor) {
    *factor = (float)(1 / ((double)slack * sqrt(value_of(&squares->sum)) + 1e-7));
}

__global__ void muon_normalise_kernel(int64_t n, const float *factor, float *x) {
    int64_t first = element() * N;
    Floats here = load_pack<N>(x, first, n);
#pragma unroll
    for (int i = 0; i < N; i++) put(here, i, get(here, i) * *factor);
    store_pack(x, first, n, here);
}

__global__ void newton_schulz_kernel(const NewtonSchulzArgs o) {
    int64_t m = o.m;
    PackStart at = pack_start<N>(m);
    if (at.row >= m) return;
    Floats grams = load_pack<N>(o.gram + at.row * m, at.column, m),
           squares = load_pack<N>(o.square + at.row * m, at.column, m);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float middle = at.row == at.column + i ? o.a : 0;
        put(squares, i, middle + (o.b * get(grams, i) + o.c * get(squares, i)));
    }
    store_pack(o.square + at.row * m, at.column, m, squares);
}

__global__ void muon_apply_kernel(const MuonApplyArgs o) {
    const Muon &a = o.constants;
    const OptimizerStep *step = o.step;
    PackStart at = pack_start<N>(o.shape.cols);
    if (at.row >= o.shape.rows) return;
    int64_t begin = at.row * o.shape.row, first = at.column, n = o.shape.cols;
    Floats params = load_pack<N>(o.param + begin, first, n), moves = load_pack<N>(o.x + at.row * n, first, n);
    Copies copies = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        float p = get(params, i);
        p -= step->lr * a.weight_decay * p + step->lr * a.scale * get(moves, i);
        put(params, i, p);
        put(copies, i, p);
    }
    store_pack(o.param + begin, first, n, params);
    if (o.copy) store_pack((Bf16 *)o.copy + begin, first, n, copies);
}

__global__ void average_kernel(const AverageArgs o) {
    int64_t first = element() * N, n = o.n;
    Floats params = load_pack<N>(o.param, first, n), means = load_pack<N>(o.mean, first, n);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float m = get(means, i);
        put(means, i, m + o.step->average * (get(params, i) - m));
    }
    store_pack(o.mean, first, n, means);
}

/* ---- slots ---- */

void adamw(Device *d, const AdamWArgs *o) {
    if (o->n == 0) return;
    BY_DTYPE(o->s.type, T, LAUNCH(d, OP_ADAMW, adamw_kernel<T>, blocks_of_packs<N>(o->n), BLOCK, 0, *o));
}

void sgd(Device *d, const SgdArgs *o) {
    if (o->n == 0) return;
    BY_DTYPE(o->s.type, T, LAUNCH(d, OP_SGD, sgd_kernel<T>, blocks_of_packs<N>(o->n), BLOCK, 0, *o));
}

void muon_momentum(Device *d, const MuonMomentumArgs *o) {
    if (o->shape.rows * o->shape.cols == 0) return;
    BY_DTYPE(o->s.type, T,
             LAUNCH(d, OP_MUON_MOMENTUM, muon_momentum_kernel<T>,
                    blocks_of_packs<N>(o->shape.rows, o->shape.cols), BLOCK, 0, *o));
}

/* The factor lies in scratch. */
void muon_normalise(Device *d, const MuonNormaliseArgs *o) {
    if (o->n == 0) return;
    float *factor = (float *)cuda_scratch(d, sizeof *factor);
    LAUNCH(d, OP_MUON_NORMALISE, muon_factor_kernel, 1, 1, 0, o->squares, o->slack, factor);
    LAUNCH(d, OP_MUON_NORMALISE, muon_normalise_kernel, blocks_of_packs<N>(o->n), BLOCK, 0, o->n, factor,
           o->x);
}

void newton_schulz(Device *d, const NewtonSchulzArgs *o) {
    if (o->m > 0)
        LAUNCH(d, OP_NEWTON_SCHULZ, newton_schulz_kernel, blocks_of_packs<N>(o->m, o->m), BLOCK, 0, *o);
}

void muon_apply(Device *d, const MuonApplyArgs *o) {
    if (o->shape.rows * o->shape.cols > 0)
        LAUNCH(d, OP_MUON_APPLY, muon_apply_kernel, blocks_of_packs<N>(o->shape.rows, o->shape.cols), BLOCK,
               0, *o);
}

void average(Device *d, const AverageArgs *o) {
    if (o->n > 0) LAUNCH(d, OP_AVERAGE, average_kernel, blocks_of_packs<N>(o->n), BLOCK, 0, *o);
}

} // namespace

extern "C" void optimizers_fill(Ops *ops) {
    ops->adamw = adamw;
    ops->sgd = sgd;
    ops->muon_momentum = muon_momentum;
    ops->muon_normalise = muon_normalise;
    ops->newton_schulz = newton_schulz;
    ops->muon_apply = muon_apply;
    ops->average = average;
}
