/* Elementwise kernels (add, cast, bias, activations, caps) and simple sums over rows. Part of
 * kernels_all.h. */

INLINE void add_typed(int64_t n, const void *a, const void *b, void *out, Dtype c) {
    EACH_VECTOR(i, left, n) put(out, i, left, c, get(a, i, left, c) + get(b, i, left, c));
}
static void add(int64_t n, const void *a, const void *b, void *out, Dtype c) {
    BY_DTYPE(c, add_typed, n, a, b, out);
}

static void cast(int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    if (in_type == out_type)
        memcpy(out, in, (size_t)n * dtype_bytes(in_type));
    else if (in_type == DTYPE_F32)
        EACH_VECTOR(i, left, n) put(out, i, left, DTYPE_BF16, get(in, i, left, DTYPE_F32));
    else
        EACH_VECTOR(i, left, n) put(out, i, left, DTYPE_F32, get(in, i, left, DTYPE_BF16));
}

INLINE void bias_forward_typed(int64_t rows, int64_t n, void *y, const float *bias, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        void *row = tensor_to(y, r * n, c);
        EACH_VECTOR(i, left, n) put(row, i, left, c, get(row, i, left, c) + get(bias, i, left, DTYPE_F32));
    }
}
static void bias_forward(int64_t rows, int64_t n, void *y, const float *bias, Dtype c) {
    BY_DTYPE(c, bias_forward_typed, rows, n, y, bias);
}

INLINE void bias_backward_typed(int64_t rows, int64_t n, const void *dy, float *db, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *row = tensor_at(dy, r * n, c);
        EACH_VECTOR(i, left, n)
        put(db, i, left, DTYPE_F32, get(db, i, left, DTYPE_F32) + get(row, i, left, c));
    }
}
static void bias_backward(int64_t rows, int64_t n, const void *dy, float *db, Dtype c) {
    BY_DTYPE(c, bias_backward_typed, rows, n, dy, db);
}

INLINE void embed_backward_typed(const EmbedBackwardArgs o, int64_t first, int64_t count, Dtype c) {
    const float scale = o.scale;
    for (int64_t t = 0; t < o.tokens; t++) {
        int64_t row = embed_row_of(o.rows, o.ids[t]);
        if (row < 0) continue;
        const void *from = tensor_at(o.dout, t * o.hidden + first, c);
        float *to = o.dtable + row * o.hidden + first;
        EACH_VECTOR(i, left, count)
        put(to, i, left, DTYPE_F32, get(to, i, left, DTYPE_F32) + scale * get(from, i, left, c));
    }
}
static void embed_backward(const EmbedBackwardArgs *o, int64_t first, int64_t count) {
    BY_DTYPE(o->c, embed_backward_typed, *o, first, count);
}

INLINE void embed_row_typed(int64_t hidden, const void *row, float scale, bool add_to, void *out, Dtype c) {
    EACH_VECTOR(i, left, hidden) {
        Vec x = scale * get(row, i, left, c);
        put(out, i, left, c, add_to ? get(out, i, left, c) + x : x);
    }
}
static void embed_row(int64_t hidden, const void *row, float scale, bool add_to, void *out, Dtype c) {
    BY_DTYPE(c, embed_row_typed, hidden, row, scale, add_to, out);
}

INLINE void softcap_typed(int64_t n, float cap, void *x, Dtype c) {
    EACH_VECTOR(i, left, n) put(x, i, left, c, vec_tanh(get(x, i, left, c) / cap) * cap);
}
static void softcap(int64_t n, float cap, void *x, Dtype c) { BY_DTYPE(c, softcap_typed, n, cap, x); }

INLINE Vec sigmoid(Vec x) { return vec_reciprocal(1.0f + vec_exp(-x)); }

/* f(z), and its derivative if needed; ACT_CLAMPED has functions of its own. */
typedef struct Activated {
    Vec value, slope;
} Activated;

INLINE Activated activate(Activation f, Vec z) {
    switch (f) {
    case ACT_SILU: {
        Vec s = sigmoid(z), silu = z * s;
        return (Activated){silu, s + silu * (1.0f - s)};
    }
    case ACT_GELU_TANH: {
        const float root = 0.79788456f; /* sqrt(2 / pi) */
        Vec z2 = z * z, t = vec_tanh(root * (z + 0.044715f * z2 * z)), half = 0.5f * (1.0f + t);
        return (Activated){z * half, half + 0.5f * z * (1.0f - t * t) * root * (1.0f + 0.134145f * z2)};
    }
    case ACT_CLAMPED: break;
    }
    return (Activated){{0}, {0}};
}

INLINE void activation_forward_typed(const ActivationForwardArgs o, const Activation f, const bool gated,
                                     Dtype c) {
    for (int64_t r = 0; r < o.tokens; r++) {
        const void *gate = tensor_at(o.x, r * (gated ? 2 : 1) * o.inter, c),
                   *up = tensor_at(gate, o.inter, c);
        void *to = tensor_to(o.act, r * o.inter, c);
        EACH_VECTOR(i, left, o.inter) {
            Vec y = activate(f, get(gate, i, left, c)).value;
            put(to, i, left, c, gated ? y * get(up, i, left, c) : y);
        }
    }
}

INLINE void activation_backward_typed(const ActivationBackwardArgs o, const Activation f, const bool gated,
                                      Dtype c) {
    for (int64_t r = 0; r < o.tokens; r++) {
        int64_t at = r * (gated ? 2 : 1) * o.inter;
        const void *gate = tensor_at(o.x, at, c), *up = tensor_at(gate, o.inter, c);
        const void *from = tensor_at(o.dact, r * o.inter, c);
        void *dgate = tensor_to(o.dx, at, c), *dup = tensor_to(dgate, o.inter, c),
             *to = tensor_to(o.act, r * o.inter, c);
        EACH_VECTOR(i, left, o.inter) {
            Vec g = get(gate, i, left, c), grad = get(from, i, left, c);
            Activated y = activate(f, g);
            if (gated) {
                Vec u = get(up, i, left, c);
                put(dgate, i, left, c, grad * u * y.slope);
                put(dup, i, left, c, grad * y.value);
                put(to, i, left, c, y.value * u);
            } else {
                put(dgate, i, left, c, grad * y.slope);
                put(to, i, left, c, y.value);
            }
        }
    }
}

/* A vector of gates and one of ups, deinterleaved. */
typedef struct Pairs {
    Vec gate, up;
} Pairs;

INLINE Pairs get_pairs(const void *x, int64_t i, int64_t left, Dtype c) {
    float gate[VLEN] = {0}, up[VLEN] = {0};
    for (int64_t k = 0; k < left && k < VLEN; k++) {
        gate[k] = tensor_get(x, 2 * (i + k), c);
        up[k] = tensor_get(x, 2 * (i + k) + 1, c);
    }
    return (Pairs){vec_load(gate), vec_load(up)};
}

INLINE void put_pairs(void *x, int64_t i, int64_t left, Pairs p, Dtype c) {
    float gate[VLEN], up[VLEN];
    vec_store(gate, p.gate), vec_store(up, p.up);
    for (int64_t k = 0; k < left && k < VLEN; k++) {
        tensor_set(x, 2 * (i + k), c, gate[k]);
        tensor_set(x, 2 * (i + k) + 1, c, up[k]);
    }
}

/* For a pair: the activation, and the derivatives with respect to gate and up. */
typedef struct Clamped {
    Vec value;
    Pairs slope;
} Clamped;

INLINE Clamped clamp_pair(Pairs p) {
    Vec limit = vec_set(CLAMPED_LIMIT), zero = {0};
    Vec z = vec_select((VecInt)(p.gate > limit), limit, p.gate);
    Vec u = vec_select((VecInt)(p.up > limit), limit, p.up);
    u = 1.0f + vec_select((VecInt)(u < -limit), -limit, u);
    Vec s = sigmoid(CLAMPED_SLOPE * z), zs = z * s;
    Vec gate = u * (s + CLAMPED_SLOPE * zs * (1.0f - s));
    VecInt out = (VecInt)(p.up > limit) | (VecInt)(p.up < -limit);
    return (Clamped){u * zs, {vec_select((VecInt)(p.gate > limit), zero, gate), vec_select(out, zero, zs)}};
}

INLINE void clamped_forward_typed(int64_t n, const void *x, void *act, Dtype c) {
    EACH_VECTOR(i, left, n) put(act, i, left, c, clamp_pair(get_pairs(x, i, left, c)).value);
}

INLINE void clamped_backward_typed(int64_t n, const void *x, const void *dact, void *dx, void *act, Dtype c) {
    EACH_VECTOR(i, left, n) {
        Clamped y = clamp_pair(get_pairs(x, i, left, c));
        Vec grad = get(dact, i, left, c);
        put_pairs(dx, i, left, (Pairs){grad * y.slope.gate, grad * y.slope.up}, c);
        put(act, i, left, c, y.value);
    }
}

/* Calls body(..., f, gated, dtype) with constants, so that each combination gets code of its own. */
#define BY_GATE(f, gated, type, body, ...)                 \
    do {                                                   \
        if (gated)                                         \
            BY_DTYPE(type, body, __VA_ARGS__, (f), true);  \
        else                                               \
            BY_DTYPE(type, body, __VA_ARGS__, (f), false); \
    } while (0)

static void activation_forward(const ActivationForwardArgs *o) {
    switch (o->f) {
    case ACT_SILU: BY_GATE(ACT_SILU, o->gated, o->c, activation_forward_typed, *o); break;
    case ACT_GELU_TANH: BY_GATE(ACT_GELU_TANH, o->gated, o->c, activation_forward_typed, *o); break;
    case ACT_CLAMPED: BY_DTYPE(o->c, clamped_forward_typed, o->tokens * o->inter, o->x, o->act); break;
    }
}
static void activation_backward(const ActivationBackwardArgs *o) {
    switch (o->f) {
    case ACT_SILU: BY_GATE(ACT_SILU, o->gated, o->c, activation_backward_typed, *o); break;
    case ACT_GELU_TANH: BY_GATE(ACT_GELU_TANH, o->gated, o->c, activation_backward_typed, *o); break;
    case ACT_CLAMPED:
        BY_DTYPE(o->c, clamped_backward_typed, o->tokens * o->inter, o->x, o->dact, o->dx, o->act);
        break;
    }
}
