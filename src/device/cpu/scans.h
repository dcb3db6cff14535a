/* Convolutions and recurrences along the tokens, SCAN_CHANNELS channels at a time. Channels lie in lanes,
 * tokens follow one after another, and rows on the stack carry state from token to token. Part of
 * kernels_all.h. */

typedef float ScanRow[SCAN_CHANNELS];

INLINE void clear_row(float *row) { memset(row, 0, sizeof(ScanRow)); }

/* ---- convolutions ---- */

/* The input row of token t; for t < 0 it comes from the tail, in fp32. */
INLINE Vec conv_input(const ConvShape *s, const void *x, const float *tail, int64_t t, int64_t at,
                      int64_t left, Dtype c) {
    return t < 0 ? get(tail + (t + s->taps - 1) * s->width, at, left, DTYPE_F32)
                 : get(tensor_at(x, t * s->row, c), at, left, c);
}

/* The first token that token t sees. */
INLINE int64_t conv_reach(const ConvShape *s, const int32_t *first_key, int64_t t) {
    return max_i64(first_key ? first_key[t] : t - s->taps + 1, t - s->taps + 1);
}

INLINE Vec conv_tap(const ConvShape *s, const float *w, int64_t back, int64_t at, int64_t left) {
    return get(w + (s->taps - 1 - back) * s->width, at, left, DTYPE_F32);
}

/* Summed oldest token first. */
INLINE Vec conv_sum(const ConvShape *s, const void *x, const float *w, const float *tail, int64_t reach,
                    int64_t t, int64_t at, int64_t left, Dtype c) {
    Vec sum = {0};
    for (int64_t u = reach; u <= t; u++)
        sum = vec_multiply_add(sum, conv_tap(s, w, t - u, at, left), conv_input(s, x, tail, u, at, left, c));
    return sum;
}

/* Moves oldest tokens first, so that each row is read before it is overwritten. */
INLINE void conv_move_tail(const ConvShape *s, int64_t first, int64_t count, const void *x, float *tail,
                           Dtype c) {
    for (int64_t k = 0; k < s->taps - 1; k++) EACH_VECTOR(i, left, count)
    put(tail + k * s->width, first + i, left, DTYPE_F32,
        conv_input(s, x, tail, s->tokens - s->taps + 1 + k, first + i, left, c));
}

INLINE void conv_forward_typed(const ConvShape *s, int64_t first, int64_t count, const void *x,
                               const float *w, const int32_t *first_key, float *tail, void *y, Dtype c) {
    for (int64_t t = 0; t < s->tokens; t++) {
        int64_t reach = conv_reach(s, first_key, t);
        void *row = tensor_to(y, t * s->width, c);
        EACH_VECTOR(i, left, count) {
            Vec p = conv_sum(s, x, w, tail, reach, t, first + i, left, c);
            put(row, first + i, left, c, p * sigmoid(p));
        }
    }
    if (tail) conv_move_tail(s, first, count, x, tail, c);
}
static void conv_forward(const ConvForwardArgs *o, int64_t first, int64_t count) {
    ConvShape s = o->s;
    BY_DTYPE(o->c, conv_forward_typed, &s, first, count, o->x, o->w, o->first_key, o->tail, o->y);
}

/* State of a channel's backward pass: gradients of the last K tokens' inputs (token t in row t % K), and sums
 * of the taps' gradients, over the current block of tokens and over the blocks before it. */
typedef struct ConvSums {
    ScanRow inputs[CONV_TAPS], block[CONV_TAPS], taps[CONV_TAPS];
} ConvSums;

INLINE void conv_add_block(const ConvShape *s, ConvSums *sums) {
    for (int k = 0; k < s->taps; k++) {
        for (int64_t i = 0; i < SCAN_CHANNELS; i += VLEN)
            vec_store(&sums->taps[k][i], vec_load(&sums->taps[k][i]) + vec_load(&sums->block[k][i]));
        clear_row(sums->block[k]);
    }
}

/* Adds token t's contributions to the gradients of the inputs that it sees, and of the taps. */
INLINE void conv_backward_token(const ConvShape *s, int64_t first, int64_t count, const void *x,
                                const float *w, int64_t reach, int64_t t, const void *dy, ConvSums *sums,
                                Dtype c) {
    EACH_VECTOR(i, left, count) {
        Vec p = conv_sum(s, x, w, NULL, reach, t, first + i, left, c), q = sigmoid(p), silu = p * q;
        Vec dp = get(tensor_at(dy, t * s->width, c), first + i, left, c) * (q + silu * (1.0f - q));
        for (int64_t u = reach; u <= t; u++) {
            float *input = &sums->inputs[u % s->taps][i], *tap = &sums->block[s->taps - 1 - (t - u)][i];
            Vec weight = conv_tap(s, w, t - u, first + i, left);
            vec_store(input, vec_multiply_add(vec_load(input), weight, dp));
            vec_store(tap,
                      vec_multiply_add(vec_load(tap), conv_input(s, x, NULL, u, first + i, left, c), dp));
        }
    }
}

INLINE void conv_put_input(const ConvShape *s, int64_t first, int64_t count, int64_t t, const ConvSums *sums,
                           void *dx, Dtype c) {
    EACH_VECTOR(i, left, count)
    put(tensor_to(dx, t * s->row, c), first + i, left, c, vec_load(&sums->inputs[t % s->taps][i]));
}

/* No token after t sees t - K + 1, so the gradient of that input is complete after token t. */
INLINE void conv_backward_typed(const ConvShape *s, int64_t first, int64_t count, const void *x,
                                const float *w, const int32_t *first_key, const void *dy, void *dx, float *dw,
                                Dtype c) {
    ConvSums sums;
    memset(&sums, 0, sizeof sums);
    for (int64_t t = 0; t < s->tokens; t++) {
        clear_row(sums.inputs[t % s->taps]);
        conv_backward_token(s, first, count, x, w, conv_reach(s, first_key, t), t, dy, &sums, c);
        if (t >= s->taps - 1) conv_put_input(s, first, count, t - s->taps + 1, &sums, dx, c);
        if (t % SCAN_BLOCK == SCAN_BLOCK - 1) conv_add_block(s, &sums);
    }
    for (int64_t t = max_i64(0, s->tokens - s->taps + 1); t < s->tokens; t++)
        conv_put_input(s, first, count, t, &sums, dx, c);
    conv_add_block(s, &sums);
    for (int k = 0; k < s->taps; k++) EACH_VECTOR(i, left, count) {
            float *to = dw + k * s->width + first;
            put(to, i, left, DTYPE_F32, get(to, i, left, DTYPE_F32) + vec_load(&sums.taps[k][i]));
        }
}
static void conv_backward(const ConvBackwardArgs *o, int64_t first, int64_t count) {
    ConvShape s = o->s;
    BY_DTYPE(o->c, conv_backward_typed, &s, first, count, o->x, o->w, o->first_key, o->dy, o->dx, o->dw);
}

/* ---- recurrences ---- */

/* For some channels of a token: the inputs of a and b, or their gradients. decay: HAWK's factor of s(r). */
typedef struct ScanElements {
    Vec gates[SCAN_GATES], values, decay;
} ScanElements;

typedef struct ScanCoefficients {
    Vec a, b;
} ScanCoefficients;

/* -8 log(1 + exp(lambda)) of some channels, computed once for all tokens. */
INLINE void scan_decays(const float *lambda, int64_t first, int64_t count, float *decays) {
    clear_row(decays);
    for (int64_t i = 0; lambda && i < count; i++)
        decays[i] = (float)(-8 * log1p(exp((double)lambda[first + i])));
}

INLINE ScanElements scan_get(const ScanShape *s, const ScanInputs *in, int64_t t, int64_t at, int64_t left,
                             const float *decay, const ScanKind kind, Dtype c) {
    ScanElements e = {.values = get(tensor_at(in->values, t * s->values_row, c), at, left, c)};
    for (int k = 0; k < scan_gates(kind); k++)
        e.gates[k] = get(tensor_at(in->gates, t * s->gates_row + k * s->width, c), at, left, c);
    if (kind == SCAN_HAWK) e.decay = vec_load(decay);
    return e;
}

/* 1 - e^x for x <= 0. Near 0 by its series, because the difference would cancel. */
INLINE Vec one_minus_exp(Vec x) {
    Vec series = 1.0f + x * (1.0f / 8);
    for (int k = 7; k > 1; k--) series = 1.0f + x * series * (1.0f / (float)k);
    return vec_select((VecInt)(x > -0.5f), -x * series, 1.0f - vec_exp(x));
}

INLINE ScanCoefficients scan_coefficients(const ScanElements *e, const ScanKind kind) {
    Vec x = sigmoid(e->gates[0]);
    if (kind == SCAN_MIN_GRU) return (ScanCoefficients){1.0f - x, x * e->values};
    Vec y = sigmoid(e->gates[1]), n = 1.0f / (x + y + 1e-4f), log_a = e->decay * x;
    if (kind == SCAN_MIN_LSTM) return (ScanCoefficients){x * n, y * n * e->values};
    return (ScanCoefficients){vec_exp(log_a), vec_sqrt(one_minus_exp(2.0f * log_a)) * y * e->values};
}

/* HAWK's gradients from da and db. */
INLINE ScanElements hawk_slopes(const ScanElements *e, Vec da, Vec db) {
    Vec x = sigmoid(e->gates[0]), y = sigmoid(e->gates[1]), log_a = e->decay * x, a = vec_exp(log_a),
        square = one_minus_exp(2.0f * log_a), root = vec_sqrt(square), along = db * y,
        dlog = (da - 2.0f * a * along * e->values / vec_sqrt(vec_max(4.0f * square, vec_set(1e-6f)))) * a;
    return (ScanElements){
        {dlog * e->decay * x * (1.0f - x), along * root * e->values * (1.0f - y)}, along * root, dlog * x};
}

/* Gradients from da and db; reference_scans.c computes the same with formulas of its own. */
INLINE ScanElements scan_slopes(const ScanElements *e, Vec da, Vec db, const ScanKind kind) {
    if (kind == SCAN_HAWK) return hawk_slopes(e, da, db);
    Vec x = sigmoid(e->gates[0]), dbv = db * e->values, none = {0};
    if (kind == SCAN_MIN_GRU) return (ScanElements){{(dbv - da) * x * (1.0f - x), none}, db * x, none};
    Vec y = sigmoid(e->gates[1]), n = 1.0f / (x + y + 1e-4f), along = n * (da * x + dbv * y);
    return (ScanElements){
        {n * (da - along) * x * (1.0f - x), n * (dbv - along) * y * (1.0f - y)}, db * y * n, none};
}

INLINE void scan_forward_typed(const ScanShape *s, int64_t first, int64_t count, const ScanInputs *in,
                               const int32_t *first_key, float *state, float *h, const ScanKind kind,
                               Dtype c) {
    ScanRow now, decays;
    clear_row(now);
    scan_decays(in->lambda, first, count, decays);
    if (state) memcpy(now, state + first, (size_t)count * sizeof *now);
    for (int64_t t = 0; t < s->tokens; t++) {
        if (scan_begins(first_key, t)) clear_row(now);
        EACH_VECTOR(i, left, count) {
            ScanElements e = scan_get(s, in, t, first + i, left, decays + i, kind, c);
            ScanCoefficients k = scan_coefficients(&e, kind);
            Vec next = vec_multiply_add(k.b, k.a, vec_load(now + i));
            vec_store(now + i, next);
            put(h + t * s->width, first + i, left, DTYPE_F32, next);
        }
    }
    if (state) memcpy(state + first, now, (size_t)count * sizeof *now);
}

INLINE void scan_gate_typed(const ScanShape *s, const void *gate, const float *h, void *out, Dtype c) {
    for (int64_t t = 0; t < s->tokens; t++) {
        const void *row = tensor_at(gate, t * s->gate_row, c);
        EACH_VECTOR(i, left, s->width) {
            Vec g = get(row, i, left, c);
            put(tensor_to(out, t * s->width, c), i, left, c,
                get(h + t * s->width, i, left, DTYPE_F32) * (g * sigmoid(g)));
        }
    }
}
static void scan_gate(ScanShape s, const void *gate, const float *h, void *out, Dtype c) {
    BY_DTYPE(c, scan_gate_typed, &s, gate, h, out);
}

INLINE void scan_add_block(float *block, float *sums) {
    for (int64_t i = 0; i < SCAN_CHANNELS; i += VLEN)
        vec_store(sums + i, vec_load(sums + i) + vec_load(block + i));
    clear_row(block);
}

/* Lanes beyond the last channel read zeros, and stay finite. */
INLINE void scan_backward_typed(const ScanShape *s, int64_t first, int64_t count, const ScanInputs *in,
                                const int32_t *first_key, const float *h, const void *dout,
                                const ScanGradients *out, const ScanKind kind, Dtype c) {
    ScanRow later, decays, block, sums; /* later: the gradient that the next token passes on */
    clear_row(later), clear_row(block), clear_row(sums);
    scan_decays(in->lambda, first, count, decays);
    for (int64_t t = s->tokens - 1; t >= 0; t--) {
        bool begins = t == 0 || scan_begins(first_key, t);
        EACH_VECTOR(i, left, count) {
            int64_t at = first + i;
            ScanElements e = scan_get(s, in, t, at, left, decays + i, kind, c), de;
            Vec gate = get(tensor_at(in->gate, t * s->gate_row, c), at, left, c), q = sigmoid(gate),
                silu = gate * q, dy = get(tensor_at(dout, t * s->width, c), at, left, c),
                now = get(h + t * s->width, at, left, DTYPE_F32), before = {0},
                g = vec_multiply_add(vec_load(later + i), dy, silu);
            if (!begins) before = get(h + (t - 1) * s->width, at, left, DTYPE_F32);
            de = scan_slopes(&e, g * before, g, kind);
            if (kind == SCAN_HAWK) vec_store(block + i, vec_load(block + i) + de.decay);
            vec_store(later + i, begins ? (Vec){0} : g * scan_coefficients(&e, kind).a);
            for (int k = 0; k < scan_gates(kind); k++)
                put(tensor_to(out->gates, t * s->gates_row + k * s->width, c), at, left, c, de.gates[k]);
            put(tensor_to(out->values, t * s->values_row, c), at, left, c, de.values);
            put(tensor_to(out->gate, t * s->gate_row, c), at, left, c, dy * now * (q + silu * (1.0f - q)));
        }
        if (kind == SCAN_HAWK && t % SCAN_BLOCK == 0) scan_add_block(block, sums);
    }
    for (int64_t i = 0; kind == SCAN_HAWK && i < count; i++)
        out->lambda[first + i] += sums[i] * (float)(-8 / (1 + exp(-(double)in->lambda[first + i])));
}

/* Calls body(..., kind, dtype) with constants. */
#define BY_SCAN(kind, type, body, ...)                                               \
    do {                                                                             \
        switch (kind) {                                                              \
        case SCAN_MIN_GRU: BY_DTYPE(type, body, __VA_ARGS__, SCAN_MIN_GRU); break;   \
        case SCAN_MIN_LSTM: BY_DTYPE(type, body, __VA_ARGS__, SCAN_MIN_LSTM); break; \
        case SCAN_HAWK: BY_DTYPE(type, body, __VA_ARGS__, SCAN_HAWK); break;         \
        }                                                                            \
    } while (0)

static void scan_forward(const ScanForwardArgs *o, int64_t first, int64_t count) {
    ScanShape s = o->s;
    ScanInputs in = o->in;
    BY_SCAN(s.kind, o->c, scan_forward_typed, &s, first, count, &in, o->first_key, o->state, o->h);
}

static void scan_backward(const ScanBackwardArgs *o, int64_t first, int64_t count) {
    ScanShape s = o->s;
    ScanInputs in = o->in;
    ScanGradients out = o->out;
    BY_SCAN(s.kind, o->c, scan_backward_typed, &s, first, count, &in, o->first_key, o->h, o->dout, &out);
}
