/* Convolutions and recurrences along the tokens, SCAN_CHANNELS channels at a time. Channels lie in lanes,
 * tokens follow one after another, and rows on the stack carry state from token to token. Part of
 * kernels_all.h. */

typedef float ScanRow[SCAN_CHANNELS];

INLINE void clear_row(float *row) { memset(row, 0, sizeof(ScanRow)); }

/* A vector of channels of token t: those from `at` on, of which `left` exist. */
typedef struct Channels {
    int64_t t, at, left;
} Channels;

/* These channels of a tensor whose tokens lie `row` elements apart. */
INLINE Vec get_channels(const void *x, int64_t row, Channels v, Dtype c) {
    return get(tensor_at(x, v.t * row, c), v.at, v.left, c);
}
INLINE void put_channels(void *x, int64_t row, Channels v, Dtype c, Vec value) {
    put(tensor_to(x, v.t * row, c), v.at, v.left, c, value);
}

/* ---- convolutions ---- */

INLINE Vec conv_input(const ConvInputs *in, Channels v, Dtype c) {
    if (v.t >= 0) return get_channels(in->x, in->s.row, v, c);
    v.t += in->s.taps - 1;
    return get_channels(in->tail, in->s.width, v, DTYPE_F32);
}

/* A vector of channels on its way through a block of tokens, in registers: the taps, oldest token's first,
 * and the inputs of token t that they are multiplied by. Inputs before the document are zeros. The number of
 * taps is a compile-time constant. */
typedef struct ConvWindow {
    Vec taps[CONV_TAPS], x[CONV_TAPS];
} ConvWindow;

/* Before token v.t. */
INLINE ConvWindow conv_window(const ConvInputs *in, Channels v, const int taps, Dtype c) {
    ConvWindow w;
    const int64_t reach = conv_reach(in, v.t), before = v.t - taps + 1;
    UNROLL for (int k = 0; k < taps; k++) {
        w.taps[k] = get(in->w + k * in->s.width, v.at, v.left, DTYPE_F32);
        w.x[k] = (Vec){0};
        if (k < taps - 1 && before + k >= reach)
            w.x[k] = conv_input(in, (Channels){before + k, v.at, v.left}, c);
    }
    return w;
}

/* The sum of token v.t, oldest token first. */
INLINE Vec conv_sum(const ConvInputs *in, ConvWindow *w, Channels v, const int taps, Dtype c) {
    Vec sum = {0};
    w->x[taps - 1] = get_channels(in->x, in->s.row, v, c);
    UNROLL for (int k = 0; k < taps; k++) sum = vec_multiply_add(sum, w->taps[k], w->x[k]);
    return sum;
}

/* rows[k] = rows[k + 1] */
INLINE void conv_shift(Vec *rows, const int taps) {
    UNROLL for (int k = 0; k + 1 < taps; k++) rows[k] = rows[k + 1];
}
INLINE void conv_clear(Vec *rows, const int taps) {
    UNROLL for (int k = 0; k < taps; k++) rows[k] = (Vec){0};
}

/* Moves oldest tokens first, so that each row is read before it is overwritten. */
INLINE void conv_move_tail(const ConvInputs *in, int64_t first, int64_t count, Dtype c) {
    int64_t kept = in->s.taps - 1;
    for (int64_t k = 0; k < kept; k++) EACH_VECTOR(i, left, count)
    put(in->tail + k * in->s.width, first + i, left, DTYPE_F32,
        conv_input(in, (Channels){in->s.tokens - kept + k, first + i, left}, c));
}

/* A block of tokens stays in the first-level cache while the vectors of a row take turns. */
#define EACH_BLOCK(t, end, tokens, size)                           \
    for (int64_t t = 0, end = min_i64(size, tokens); t < (tokens); \
         t = end, end = min_i64(end + (size), tokens))
enum { CONV_BLOCK = 8 }; /* forward; backward's is that of its sums */

/* Tokens v.t .. end-1. */
INLINE void conv_forward_block(const ConvInputs *in, void *y, Channels v, int64_t end, const int taps,
                               Dtype c) {
    ConvWindow w = conv_window(in, v, taps, c);
    for (; v.t < end; v.t++) {
        if (scan_begins(in->first_key, v.t)) conv_clear(w.x, taps);
        Vec p = conv_sum(in, &w, v, taps, c);
        put_channels(y, in->s.width, v, c, p * sigmoid(p));
        conv_shift(w.x, taps);
    }
}

INLINE void conv_forward_typed(const ConvForwardArgs o, int64_t first, int64_t count, const int taps,
                               Dtype c) {
    const ConvInputs in = {o.s, o.x, o.w, o.first_key, o.tail, c};
    EACH_BLOCK(t, end, in.s.tokens, CONV_BLOCK)
    EACH_VECTOR(i, left, count)
    conv_forward_block(&in, o.y, (Channels){t, first + i, left}, end, taps, c);
    if (in.tail) conv_move_tail(&in, first, count, c);
}

/* Calls body(..., taps, dtype) with constants. */
#define CASE_TAPS(n, type, body, ...)         \
    case n:                                   \
        BY_DTYPE(type, body, __VA_ARGS__, n); \
        break
#define BY_TAPS(taps, type, body, ...)             \
    do {                                           \
        switch (taps) {                            \
            CASE_TAPS(1, type, body, __VA_ARGS__); \
            CASE_TAPS(2, type, body, __VA_ARGS__); \
            CASE_TAPS(3, type, body, __VA_ARGS__); \
            CASE_TAPS(4, type, body, __VA_ARGS__); \
            CASE_TAPS(5, type, body, __VA_ARGS__); \
            CASE_TAPS(6, type, body, __VA_ARGS__); \
            CASE_TAPS(7, type, body, __VA_ARGS__); \
            CASE_TAPS(8, type, body, __VA_ARGS__); \
        }                                          \
    } while (0)
_Static_assert(CONV_TAPS == 8, "BY_TAPS has a case for each number of taps");

static void conv_forward(const ConvForwardArgs *o, int64_t first, int64_t count) {
    BY_TAPS(o->s.taps, o->c, conv_forward_typed, *o, first, count);
}

/* What the channels of a backward pass carry from block to block: gradients of the inputs that the next
 * token sees, oldest first, and sums of the taps' gradients. */
typedef struct ConvSums {
    ScanRow inputs[CONV_TAPS], taps[CONV_TAPS];
} ConvSums;

/* Writes the gradients of the document's last inputs before token v.t, which no later token sees. */
INLINE void conv_put_last(const ConvBackwardArgs *o, const Vec *inputs, Channels v, const int taps, Dtype c) {
    const int64_t before = v.t - taps + 1, document = v.t > 0 && o->first_key ? o->first_key[v.t - 1] : 0;
    UNROLL for (int k = 0; k < taps - 1; k++) if (before + k >= document)
        put_channels(o->dx, o->s.row, (Channels){before + k, v.at, v.left}, c, inputs[k]);
}

/* Tokens v.t .. end-1. i: the vector's place in sums. After token t, the gradient of the input of token
 * t - K + 1 is complete. */
INLINE void conv_backward_block(const ConvBackwardArgs *o, Channels v, int64_t end, int64_t i, ConvSums *sums,
                                const int taps, Dtype c) {
    const ConvInputs in = {o->s, o->x, o->w, o->first_key, NULL, c};
    ConvWindow w = conv_window(&in, v, taps, c);
    Vec inputs[CONV_TAPS], block[CONV_TAPS];
    UNROLL for (int k = 0; k < taps; k++) inputs[k] = vec_load(&sums->inputs[k][i]), block[k] = (Vec){0};
    for (; v.t < end; v.t++) {
        if (scan_begins(in.first_key, v.t)) {
            conv_put_last(o, inputs, v, taps, c);
            conv_clear(w.x, taps), conv_clear(inputs, taps);
        }
        Vec p = conv_sum(&in, &w, v, taps, c), q = sigmoid(p), silu = p * q;
        Vec dp = get_channels(o->dy, in.s.width, v, c) * (q + silu * (1.0f - q));
        inputs[taps - 1] = (Vec){0};
        UNROLL for (int k = 0; k < taps; k++) {
            inputs[k] = vec_multiply_add(inputs[k], w.taps[k], dp);
            block[k] = vec_multiply_add(block[k], w.x[k], dp);
        }
        const Channels done = {v.t - taps + 1, v.at, v.left};
        if (done.t >= (in.first_key ? in.first_key[v.t] : 0))
            put_channels(o->dx, o->s.row, done, c, inputs[0]);
        conv_shift(inputs, taps), conv_shift(w.x, taps);
    }
    UNROLL for (int k = 0; k < taps; k++) {
        vec_store(&sums->inputs[k][i], inputs[k]);
        vec_store(&sums->taps[k][i], vec_load(&sums->taps[k][i]) + block[k]);
    }
}

INLINE void conv_backward_typed(const ConvBackwardArgs o, int64_t first, int64_t count, const int taps,
                                Dtype c) {
    ConvSums sums;
    memset(&sums, 0, sizeof sums);
    EACH_BLOCK(t, end, o.s.tokens, SCAN_BLOCK)
    EACH_VECTOR(i, left, count)
    conv_backward_block(&o, (Channels){t, first + i, left}, end, i, &sums, taps, c);
    EACH_VECTOR(i, left, count) {
        Vec inputs[CONV_TAPS];
        UNROLL for (int k = 0; k < taps; k++) {
            float *to = o.dw + k * o.s.width + first;
            inputs[k] = vec_load(&sums.inputs[k][i]);
            put(to, i, left, DTYPE_F32, get(to, i, left, DTYPE_F32) + vec_load(&sums.taps[k][i]));
        }
        conv_put_last(&o, inputs, (Channels){o.s.tokens, first + i, left}, taps, c);
    }
}
static void conv_backward(const ConvBackwardArgs *o, int64_t first, int64_t count) {
    BY_TAPS(o->s.taps, o->c, conv_backward_typed, *o, first, count);
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

INLINE ScanElements scan_get(const ScanShape *s, const ScanInputs *in, Channels v, const float *decay,
                             const ScanKind kind, Dtype c) {
    ScanElements e = {.values = get_channels(in->values, s->values_row, v, c)};
    for (int k = 0; k < scan_gates(kind); k++)
        e.gates[k] = get_channels(tensor_at(in->gates, k * s->width, c), s->gates_row, v, c);
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

INLINE void scan_forward_typed(const ScanForwardArgs o, int64_t first, int64_t count, const ScanKind kind,
                               Dtype c) {
    const ScanShape s = o.s;
    const ScanInputs in = o.in;
    ScanRow now, decays;
    clear_row(now);
    scan_decays(in.lambda, first, count, decays);
    if (o.state) memcpy(now, o.state + first, (size_t)count * sizeof *now);
    for (int64_t t = 0; t < s.tokens; t++) {
        if (scan_begins(o.first_key, t)) clear_row(now);
        EACH_VECTOR(i, left, count) {
            Channels v = {t, first + i, left};
            ScanElements e = scan_get(&s, &in, v, decays + i, kind, c);
            ScanCoefficients k = scan_coefficients(&e, kind);
            Vec next = vec_multiply_add(k.b, k.a, vec_load(now + i));
            vec_store(now + i, next);
            put_channels(o.h, s.width, v, DTYPE_F32, next);
        }
    }
    if (o.state) memcpy(o.state + first, now, (size_t)count * sizeof *now);
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
INLINE void scan_backward_typed(const ScanBackwardArgs o, int64_t first, int64_t count, const ScanKind kind,
                                Dtype c) {
    const ScanShape s = o.s;
    const ScanInputs in = o.in;
    ScanRow later, decays, block, sums; /* later: the gradient that the next token passes on */
    clear_row(later), clear_row(block), clear_row(sums);
    scan_decays(in.lambda, first, count, decays);
    for (int64_t t = s.tokens - 1; t >= 0; t--) {
        bool begins = t == 0 || scan_begins(o.first_key, t);
        EACH_VECTOR(i, left, count) {
            Channels v = {t, first + i, left};
            ScanElements e = scan_get(&s, &in, v, decays + i, kind, c), de;
            Vec gate = get_channels(in.gate, s.gate_row, v, c), q = sigmoid(gate), silu = gate * q,
                dy = get_channels(o.dout, s.width, v, c), now = get_channels(o.h, s.width, v, DTYPE_F32),
                before = {0}, g = vec_multiply_add(vec_load(later + i), dy, silu);
            if (!begins) before = get_channels(o.h, s.width, (Channels){t - 1, v.at, left}, DTYPE_F32);
            de = scan_slopes(&e, g * before, g, kind);
            if (kind == SCAN_HAWK) vec_store(block + i, vec_load(block + i) + de.decay);
            vec_store(later + i, begins ? (Vec){0} : g * scan_coefficients(&e, kind).a);
            for (int k = 0; k < scan_gates(kind); k++)
                put_channels(tensor_to(o.out.gates, k * s.width, c), s.gates_row, v, c, de.gates[k]);
            put_channels(o.out.values, s.values_row, v, c, de.values);
            put_channels(o.out.gate, s.gate_row, v, c, dy * now * (q + silu * (1.0f - q)));
        }
        if (kind == SCAN_HAWK && t % SCAN_BLOCK == 0) scan_add_block(block, sums);
    }
    for (int64_t i = 0; kind == SCAN_HAWK && i < count; i++)
        o.out.lambda[first + i] += sums[i] * (float)(-8 / (1 + exp(-(double)in.lambda[first + i])));
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
    BY_SCAN(o->s.kind, o->c, scan_forward_typed, *o, first, count);
}

static void scan_backward(const ScanBackwardArgs *o, int64_t first, int64_t count) {
    BY_SCAN(o->s.kind, o->c, scan_backward_typed, *o, first, count);
}
