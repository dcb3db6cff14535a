/* AdamW, SGD, what Muon does beside products, and averages of weights: in fp32, in the order of the CPU's
 * reference, with no product and sum fused, and its random words (Philox, device.h: StateStore): the same
 * bits. */
#include "device/cuda/plugin/kernels.cuh"

namespace {

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

/* The largest finite number stays, and so does a NaN. */
INLINE uint16_t bf16_by(float f, uint32_t bits) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    if ((u & 0x7fffffff) >= 0x7f7f0000) bits = 0;
    return (uint16_t)((u + bits) >> 16);
}

/* The first state takes the lower half of the word, the second the upper. */
INLINE void put_state(float *state, int64_t i, float value, uint32_t) { state[i] = value; }
INLINE void put_state(Bf16 *state, int64_t i, float value, uint32_t half) {
    state[i].bits = bf16_by(value, half & 0xffff);
}
INLINE uint32_t word_of(const float *, StateStore, uint64_t, int64_t) { return 0; }
INLINE uint32_t word_of(const Bf16 *, StateStore s, uint64_t step, int64_t i) {
    return state_word(s, step, i);
}

template <typename T>
__global__ void adamw_kernel(int64_t n, AdamW a, StateStore s, const OptimizerStep *step, float *param,
                             const float *grad, T *m, T *v, uint16_t *copy) {
    int64_t i = element();
    if (i >= n) return;
    float g = grad[i] * step->grad_scale;
    float mean = a.beta1 * load(m, i) + (1 - a.beta1) * g;
    float square = a.beta2 * load(v, i) + (1 - a.beta2) * g * g;
    float move = mean / step->correction1 / (sqrtf(square / step->correction2) + a.eps);
    float p = param[i];
    p -= step->lr * a.weight_decay * p + step->lr * move;
    param[i] = p;
    uint32_t word = word_of(m, s, step->number, i);
    put_state(m, i, mean, word);
    put_state(v, i, square, word >> 16);
    if (copy) copy[i] = bf16_of(p);
}

template <typename T>
__global__ void sgd_kernel(int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param,
                           const float *grad, T *momentum, uint16_t *copy) {
    int64_t i = element();
    if (i >= n) return;
    float p = param[i], g = grad[i] * step->grad_scale + o.weight_decay * p, move = g;
    if (momentum) {
        float b = o.momentum * load(momentum, i) + g;
        put_state(momentum, i, b, word_of(momentum, s, step->number, i));
        move = o.nesterov ? g + o.momentum * b : b;
    }
    p -= step->lr * move;
    param[i] = p;
    if (copy) copy[i] = bf16_of(p);
}

/* ---- Muon ---- */

/* Where element i of a matrix stands in the parameter that it is part of. */
INLINE int64_t place_in(MatrixShape shape, int64_t i) { return i / shape.cols * shape.row + i % shape.cols; }

template <typename T>
__global__ void muon_direction_kernel(MatrixShape shape, Muon o, StateStore s, const OptimizerStep *step,
                                      const float *grad, T *momentum, float *x) {
    int64_t i = element(), at = place_in(shape, i);
    if (i >= shape.rows * shape.cols) return;
    float g = grad[at] * step->grad_scale, b = o.momentum * load(momentum, at) + g;
    put_state(momentum, at, b, word_of(momentum, s, step->number, at));
    x[i] = o.nesterov ? g + o.momentum * b : b;
}

/* exact_value of base/exact.c, of a sum that is normalised, not negative, and below 2^1024: its upper 64
 * binary digits, the last of which is also set if anything follows, are rounded once. */
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

/* muon_factor of device/cpu/cpu.h, by one thread for all. */
__global__ void muon_factor_kernel(const GradStats *squares, float slack, float *factor) {
    *factor = (float)(1 / ((double)slack * sqrt(value_of(&squares->sum)) + 1e-7));
}

__global__ void muon_unit_kernel(int64_t n, const float *factor, float *x) {
    int64_t i = element();
    if (i < n) x[i] *= *factor;
}

__global__ void muon_quintic_kernel(int64_t m, float a, float b, float c, const float *gram, float *square) {
    int64_t i = element();
    if (i < m * m) square[i] = (i / m == i % m ? a : 0) + (b * gram[i] + c * square[i]);
}

__global__ void muon_descend_kernel(MatrixShape shape, Muon o, const OptimizerStep *step, const float *x,
                                    float *param, uint16_t *copy) {
    int64_t i = element(), at = place_in(shape, i);
    if (i >= shape.rows * shape.cols) return;
    float p = param[at];
    p -= step->lr * o.weight_decay * p + step->lr * o.scale * x[i];
    param[at] = p;
    if (copy) copy[at] = bf16_of(p);
}

__global__ void average_kernel(int64_t n, const OptimizerStep *step, const float *param, float *mean) {
    int64_t i = element();
    if (i < n) mean[i] += step->average * (param[i] - mean[i]);
}

/* ---- slots ---- */

void adamw(Device *d, int64_t n, AdamW a, StateStore s, const OptimizerStep *step, float *param,
           const float *grad, void *m, void *v, uint16_t *copy) {
    if (n == 0) return;
    BY_DTYPE(s.type, T,
             LAUNCH(d, OP_ADAMW, adamw_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, n, a, s, step, param, grad,
                    (T *)m, (T *)v, copy));
}

void sgd(Device *d, int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param,
         const float *grad, void *momentum, uint16_t *copy) {
    if (n == 0) return;
    BY_DTYPE(s.type, T,
             LAUNCH(d, OP_SGD, sgd_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, n, o, s, step, param, grad,
                    (T *)momentum, copy));
}

void muon_direction(Device *d, MatrixShape shape, Muon o, StateStore s, const OptimizerStep *step,
                    const float *grad, void *momentum, float *x) {
    int64_t n = shape.rows * shape.cols;
    if (n == 0) return;
    BY_DTYPE(s.type, T,
             LAUNCH(d, OP_MUON_DIRECTION, muon_direction_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, shape, o,
                    s, step, grad, (T *)momentum, x));
}

/* The factor goes through scratch. */
void muon_unit(Device *d, int64_t n, const GradStats *squares, float slack, float *x) {
    if (n == 0) return;
    float *factor = (float *)cuda_scratch(d, sizeof *factor);
    LAUNCH(d, OP_MUON_UNIT, muon_factor_kernel, 1, 1, 0, squares, slack, factor);
    LAUNCH(d, OP_MUON_UNIT, muon_unit_kernel, blocks_of(n, BLOCK), BLOCK, 0, n, factor, x);
}

void muon_quintic(Device *d, int64_t m, float a, float b, float c, const float *gram, float *square) {
    if (m > 0)
        LAUNCH(d, OP_MUON_QUINTIC, muon_quintic_kernel, blocks_of(m * m, BLOCK), BLOCK, 0, m, a, b, c, gram,
               square);
}

void muon_descend(Device *d, MatrixShape shape, Muon o, const OptimizerStep *step, const float *x,
                  float *param, uint16_t *copy) {
    int64_t n = shape.rows * shape.cols;
    if (n > 0)
        LAUNCH(d, OP_MUON_DESCEND, muon_descend_kernel, blocks_of(n, BLOCK), BLOCK, 0, shape, o, step, x,
               param, copy);
}

void average(Device *d, int64_t n, const OptimizerStep *step, const float *param, float *mean) {
    if (n > 0) LAUNCH(d, OP_AVERAGE, average_kernel, blocks_of(n, BLOCK), BLOCK, 0, n, step, param, mean);
}

} // namespace

extern "C" void optimizers_fill(Ops *ops) {
    ops->adamw = adamw;
    ops->sgd = sgd;
    ops->muon_direction = muon_direction;
    ops->muon_unit = muon_unit;
    ops->muon_quintic = muon_quintic;
    ops->muon_descend = muon_descend;
    ops->average = average;
}
