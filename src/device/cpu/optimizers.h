/* AdamW, SGD and the parts of Muon that are not matrix products, with states in fp32 or in bf16 with
 * stochastic rounding. Part of kernels_all.h.
 *
 * Random words are made for one chunk of STATE_CHUNK elements at a time. Its STATE_BLOCKS Philox blocks are
 * computed in parallel, one per vector lane. StateStore (shapes.h) lays the words out over elements such that
 * no lane has to move, for any VLEN.
 *
 * Elsewhere called: fused optimizer, fused AdamW. */

/* The words of the elements from chunk * STATE_CHUNK on. */
INLINE void make_words(const StateStore *s, uint64_t step, uint64_t chunk, uint32_t *words) {
    static const uint32_t lanes[STATE_BLOCKS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const VecBits zero = {0};
    const uint64_t first = chunk * STATE_BLOCKS; /* adding a lane's number does not carry */
    for (int j = 0; j < STATE_BLOCKS; j += VLEN) {
        VecBits c[4];
        memcpy(&c[0], lanes + j, sizeof c[0]);
        c[0] += (uint32_t)first, c[1] = zero + (uint32_t)(first >> 32);
        c[2] = zero + (uint32_t)step, c[3] = zero + (uint32_t)(step >> 32);
        vec_philox(s->key, c);
        for (int w = 0; w < 4; w++) memcpy(words + w * STATE_BLOCKS + j, &c[w], sizeof c[w]);
    }
}

/* bf16_round_by in every lane. */
INLINE VecHalf round_by(Vec v, VecBits bits) {
    VecBits u = (VecBits)v, size = u & 0x7fffffff;
    VecBits stays = (VecBits)(size >= 0x7f7f0000), nan = (VecBits)(size > 0x7f800000);
    VecBits rounded = ((u + (bits & ~stays)) >> 16 & ~nan) | (nan & BF16_NAN);
    return __builtin_convertvector(rounded, VecHalf);
}

/* A state of some elements. words[0] belongs to the first of them; unused with fp32. half: the lower (0) or
 * the upper (1) half of a word rounds it. */
typedef struct State {
    void *at;
    const uint32_t *words;
    int half;
} State;

INLINE void put_state(State s, int64_t i, int64_t left, Dtype t, Vec v) {
    if (t == DTYPE_F32) {
        put(s.at, i, left, t, v);
        return;
    }
    VecBits bits;
    memcpy(&bits, s.words + i, sizeof bits);
    VecHalf h = round_by(v, bits >> 16 * s.half & 0xffff);
    memcpy((uint16_t *)s.at + i, &h, left >= VLEN ? sizeof h : (size_t)left * sizeof(uint16_t));
}

/* Makes the words of the chunk that contains element i of n, and points *words at the word of element i.
 * Returns how many elements from i on this chunk serves. A vector may read words past the chunk's end, but
 * does not use them. */
INLINE int64_t words_from(const StateStore *s, uint64_t step, int64_t i, int64_t n,
                          uint32_t chunk[STATE_CHUNK + VLEN], const uint32_t **words) {
    int64_t at = (s->first + i) % STATE_CHUNK;
    make_words(s, step, (uint64_t)(s->first + i) / STATE_CHUNK, chunk);
    *words = chunk + at;
    return min_i64(STATE_CHUNK - at, n - i);
}

/* Calls run(o, step, first, count, words, type) for all n elements: at once with states in fp32, else for
 * each chunk of random words. */
#define BY_STATE(type, run, o, n)                                          \
    do {                                                                   \
        const OptimizerStep step = *(o)->step;                             \
        if ((type) == DTYPE_F32) {                                         \
            run(*(o), &step, 0, n, NULL, DTYPE_F32);                       \
            break;                                                         \
        }                                                                  \
        uint32_t chunk[STATE_CHUNK + VLEN] = {0};                          \
        const uint32_t *words;                                             \
        for (int64_t i = 0, count; i < (n); i += count) {                  \
            count = words_from(&(o)->s, step.number, i, n, chunk, &words); \
            run(*(o), &step, i, count, words, DTYPE_BF16);                 \
        }                                                                  \
    } while (0)

/* v + x share, as a fused multiply-add. Do not write it as a plain sum of two products: the compiler would
 * then choose which product is rounded, possibly differently at the end of a row than inside it, and an
 * element's bits would depend on how it is sharded. */
INLINE Vec with_share(Vec v, Vec x, float share) { return vec_multiply_add(v, x, vec_set(share)); }

/* Elements first .. first+n-1, as in the runs below. */
INLINE void adamw_run(const AdamWArgs o, const OptimizerStep *step, int64_t first, int64_t n,
                      const uint32_t *words, Dtype t) {
    const AdamW a = o.constants;
    const State m = {tensor_to(o.m, first, t), words, 0}, v = {tensor_to(o.v, first, t), words, 1};
    const float *grad = o.grad + first;
    float *param = o.param + first;
    uint16_t *copy = o.copy ? o.copy + first : NULL;
    float rest1 = 1 - a.beta1, rest2 = 1 - a.beta2, decay = step->lr * a.weight_decay;
    float unbias1 = step->lr / step->correction1, unbias2 = 1 / step->correction2;
    EACH_VECTOR(i, left, n) {
        Vec g = get(grad, i, left, DTYPE_F32) * step->grad_scale, p = get(param, i, left, DTYPE_F32);
        Vec mean = with_share(g * rest1, get(m.at, i, left, t), a.beta1);
        Vec square = with_share(g * g * rest2, get(v.at, i, left, t), a.beta2);
        p = p - with_share(mean * unbias1 / (vec_sqrt(square * unbias2) + a.eps), p, decay);
        put_state(m, i, left, t, mean);
        put_state(v, i, left, t, square);
        put(param, i, left, DTYPE_F32, p);
        if (copy) put(copy, i, left, DTYPE_BF16, p);
    }
}
static void adamw(const AdamWArgs *o) { BY_STATE(o->s.type, adamw_run, o, o->n); }

INLINE void sgd_run(const SgdArgs o, const OptimizerStep *step, int64_t first, int64_t n,
                    const uint32_t *words, Dtype t) {
    const Sgd a = o.constants;
    const State momentum = {o.momentum ? tensor_to(o.momentum, first, t) : NULL, words, 0};
    const float *grad = o.grad + first;
    float *param = o.param + first;
    uint16_t *copy = o.copy ? o.copy + first : NULL;
    EACH_VECTOR(i, left, n) {
        Vec p = get(param, i, left, DTYPE_F32);
        Vec g = with_share(p * a.weight_decay, get(grad, i, left, DTYPE_F32), step->grad_scale), move = g;
        if (momentum.at) {
            Vec b = with_share(g, get(momentum.at, i, left, t), a.momentum);
            put_state(momentum, i, left, t, b);
            move = a.nesterov ? with_share(g, b, a.momentum) : b;
        }
        p = with_share(p, move, -step->lr);
        put(param, i, left, DTYPE_F32, p);
        if (copy) put(copy, i, left, DTYPE_BF16, p);
    }
}
static void sgd(const SgdArgs *o) { BY_STATE(o->momentum ? o->s.type : DTYPE_F32, sgd_run, o, o->n); }

INLINE void muon_momentum_run(const MuonMomentumArgs o, const OptimizerStep *step, int64_t first, int64_t n,
                              const uint32_t *words, Dtype t) {
    const Muon a = o.constants;
    const State momentum = {tensor_to(o.momentum, first, t), words, 0};
    const float *grad = o.grad + first, grad_scale = step->grad_scale;
    float *x = o.x + first;
    EACH_VECTOR(i, left, n) {
        Vec g = get(grad, i, left, DTYPE_F32) * grad_scale;
        Vec b = with_share(g, get(momentum.at, i, left, t), a.momentum);
        put_state(momentum, i, left, t, b);
        put(x, i, left, DTYPE_F32, a.nesterov ? with_share(g, b, a.momentum) : b);
    }
}
static void muon_momentum(const MuonMomentumArgs *o, int64_t n) {
    BY_STATE(o->s.type, muon_momentum_run, o, n);
}

static void muon_normalise(int64_t n, float factor, float *x) {
    EACH_VECTOR(i, left, n) put(x, i, left, DTYPE_F32, get(x, i, left, DTYPE_F32) * factor);
}

static void muon_blend(int64_t n, float b, const float *x, float c, float *y) {
    EACH_VECTOR(i, left, n)
    put(y, i, left, DTYPE_F32, with_share(get(y, i, left, DTYPE_F32) * c, get(x, i, left, DTYPE_F32), b));
}

static void muon_apply(int64_t n, Muon o, OptimizerStep step, const float *x, float *param, uint16_t *copy) {
    float decay = step.lr * o.weight_decay, along = step.lr * o.scale;
    EACH_VECTOR(i, left, n) {
        Vec p = get(param, i, left, DTYPE_F32);
        p = p - with_share(p * decay, get(x, i, left, DTYPE_F32), along);
        put(param, i, left, DTYPE_F32, p);
        if (copy) put(copy, i, left, DTYPE_BF16, p);
    }
}

static void average(int64_t n, float share, const float *param, float *mean) {
    EACH_VECTOR(i, left, n) {
        Vec m = get(mean, i, left, DTYPE_F32);
        put(mean, i, left, DTYPE_F32, with_share(m, get(param, i, left, DTYPE_F32) - m, share));
    }
}
