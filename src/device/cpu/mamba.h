/* Mamba-2 (ops/recurrence.h), one row of a head's state at a time: the N numbers of a row lie in lanes,
 * and tokens follow one after another. Each row is an independent chain from token to token, held in
 * registers and the L1 cache. On a CPU this costs as many operations as products of chunks would, and a
 * sequence that is processed in pieces gets the same bits as in one call.
 *
 * At the first token of a document the state's factor `keep` is 0; nothing else here depends on where
 * documents begin. Part of kernels_all.h. */

/* ---- steps ---- */

/* log(1 + x) for x in [0, 1]: the series of 2 artanh(s), with s = x / (2 + x) <= 1/3. */
INLINE Vec vec_log1p(Vec x) {
    Vec s = x / (2.0f + x), square = s * s, series = vec_set(1.0f / 15);
    for (int k = 13; k > 0; k -= 2) series = series * square + 1.0f / (float)k;
    return 2.0f * s * series;
}

INLINE Vec softplus(Vec x) { return vec_max(x, vec_set(0)) + vec_log1p(vec_exp(-vec_abs(x))); }

/* A head's tokens first .. first+count-1, a chunk: their steps, and the factors of the state. */
typedef struct MambaSteps {
    int64_t head, first, count;
    float step[MAMBA_CHUNK], keep[MAMBA_CHUNK];
    float rate; /* -exp(A_log) */
} MambaSteps;

INLINE void mamba_steps(const MambaRun *r, int64_t head, int64_t first, int64_t count, MambaSteps *out,
                        Dtype c) {
    float bias = r->in.dt_bias[head];
    out->head = head, out->first = first, out->count = count;
    out->rate = (float)-exp((double)r->in.A_log[head]);
    for (int64_t t = 0; t < count; t++)
        out->step[t] = tensor_get(r->in.dt, (first + t) * r->s.dt_row + head, c) + bias;
    EACH_VECTOR(i, left, count) {
        Vec step = softplus(get(out->step, i, left, DTYPE_F32));
        put(out->step, i, left, DTYPE_F32, step);
        put(out->keep, i, left, DTYPE_F32, vec_exp(out->rate * step));
    }
    for (int64_t t = 0; t < count; t++)
        if (scan_begins(r->first_key, first + t)) out->keep[t] = 0;
}

/* The chunk's token t, as a row of the state sees it. */
typedef struct MambaToken {
    float keep, step, x, dy; /* dy: of backward */
    const void *B, *C;
} MambaToken;

INLINE MambaToken mamba_token(const MambaRun *r, const MambaSteps *m, int64_t p, int64_t t, Dtype c) {
    int64_t group = mamba_group_at(&r->s, m->first + t, m->head);
    float x = tensor_get(r->in.x, mamba_x_at(&r->s, m->first + t, m->head, p), c);
    return (MambaToken){
        m->keep[t], m->step[t], x, 0, tensor_at(r->in.B, group, c), tensor_at(r->in.C, group, c)};
}

/* ---- forward ---- */

typedef float MambaRow[MAMBA_STATE];

/* S_t from S_{t-1}; S_t may overwrite S_{t-1}. */
INLINE Vec mamba_next(const float *before, MambaToken k, int64_t i, int64_t left, Dtype c) {
    return vec_multiply_add(k.keep * vec_load(before + i), vec_set(k.step * k.x), get(k.B, i, left, c));
}

/* Advances a state of n elements by one token; returns S_t C_t. */
INLINE float mamba_advance(float *now, MambaToken k, int64_t n, Dtype c) {
    Vec sum = {0};
    EACH_VECTOR(i, left, n) {
        Vec next = mamba_next(now, k, i, left, c);
        vec_store(now + i, next);
        sum = vec_multiply_add(sum, next, get(k.C, i, left, c));
    }
    return vec_sum(sum);
}

/* Where the state after a chunk is stored; NULL: it is not needed. */
INLINE float *mamba_end(const MambaRun *r, int64_t end) {
    return end < r->s.tokens ? mamba_start(r, end) : r->state;
}

INLINE void mamba_forward_typed(const MambaRun *r, int64_t head, int64_t first, int64_t count, Dtype c) {
    const MambaShape *s = &r->s;
    const float *from = mamba_start(r, first);
    float *to = mamba_end(r, first + count);
    size_t bytes = (size_t)s->state * sizeof(float);
    MambaSteps m;
    mamba_steps(r, head, first, count, &m, c);
    for (int64_t p = 0; p < s->head_dim; p++) {
        MambaRow now = {0};
        memcpy(now, from + mamba_state_at(s, head, p), bytes);
        for (int64_t t = 0; t < count; t++) {
            MambaToken k = mamba_token(r, &m, p, t, c);
            float y = mamba_advance(now, k, s->state, c);
            tensor_set(r->y, mamba_y_at(s, first + t, head, p), c, y + r->in.D[head] * k.x);
        }
        if (to) memcpy(to + mamba_state_at(s, head, p), now, bytes);
    }
}
static void mamba_forward(const MambaRun *r, int64_t head, int64_t first, int64_t count) {
    BY_DTYPE(r->c, mamba_forward_typed, r, head, first, count);
}

/* ---- backward ---- */

/* Gradients that are summed over the rows of a head's state, for the tokens of a chunk. */
typedef struct MambaSums {
    float step[MAMBA_CHUNK], keep[MAMBA_CHUNK];
    double skip;
} MambaSums;

typedef struct MambaDots {
    float along, kept; /* G_t B_t, and G_t with S_{t-1} */
} MambaDots;

/* A token's backward step: computes G_t from `later`, the gradient that the next token passed on, and
 * replaces that by the one for the previous token. states: S_{t-1}, S_t. sums: dB, then dC, are added to. */
INLINE MambaDots mamba_token_backward(const MambaRow states[2], MambaToken k, float *later, float *sums,
                                      int64_t n, Dtype c) {
    Vec along = {0}, kept = {0}, x = vec_set(k.step * k.x);
    float *dB = sums, *dC = sums + n;
    EACH_VECTOR(i, left, n) {
        Vec g = vec_multiply_add(vec_load(later + i), vec_set(k.dy), get(k.C, i, left, c));
        put(dB, i, left, DTYPE_F32, vec_multiply_add(get(dB, i, left, DTYPE_F32), x, g));
        put(dC, i, left, DTYPE_F32,
            vec_multiply_add(get(dC, i, left, DTYPE_F32), vec_set(k.dy), vec_load(states[1] + i)));
        along = vec_multiply_add(along, g, get(k.B, i, left, c));
        kept = vec_multiply_add(kept, g, vec_load(states[0] + i));
        vec_store(later + i, k.keep * g);
    }
    return (MambaDots){vec_sum(along), vec_sum(kept)};
}

/* Recomputes the row's states: states[t] is the one before the chunk's token t. */
INLINE void mamba_states(const MambaRun *r, const MambaSteps *m, int64_t p, MambaRow *states, Dtype c) {
    const MambaShape *s = &r->s;
    memset(states[0], 0, sizeof *states);
    memcpy(states[0], mamba_start(r, m->first) + mamba_state_at(s, m->head, p),
           (size_t)s->state * sizeof(float));
    for (int64_t t = 0; t < m->count; t++) {
        MambaToken k = mamba_token(r, m, p, t, c);
        EACH_VECTOR(i, left, s->state)
        vec_store(states[t + 1] + i, mamba_next(states[t], k, i, left, c));
    }
}

INLINE void mamba_row_backward(const MambaRun *r, const MambaSteps *m, int64_t p, MambaRow *states,
                               MambaSums *sums, Dtype c) {
    const MambaShape *s = &r->s;
    float *carry = r->carry + mamba_state_at(s, m->head, p), skip = r->in.D[m->head];
    size_t bytes = (size_t)s->state * sizeof(float);
    MambaRow later = {0};
    memcpy(later, carry, bytes);
    mamba_states(r, m, p, states, c);
    for (int64_t t = m->count - 1; t >= 0; t--) {
        MambaToken k = mamba_token(r, m, p, t, c);
        k.dy = tensor_get(r->dy, mamba_y_at(s, m->first + t, m->head, p), c);
        MambaDots dots =
            mamba_token_backward(states + t, k, later, mamba_scratch(r, t, m->head), s->state, c);
        tensor_set(r->out.x, mamba_x_at(s, m->first + t, m->head, p), c, k.step * dots.along + skip * k.dy);
        sums->step[t] += k.x * dots.along;
        sums->keep[t] += dots.kept;
        sums->skip += (double)(k.x * k.dy);
    }
    memcpy(carry, later, bytes);
}

/* From gradients of steps and factors to those of dt, dt_bias, A_log and D: d log keep = rate d step, and the
 * derivative of log(1 + e^z) is 1 - exp(-step). */
INLINE void mamba_steps_backward(const MambaRun *r, const MambaSteps *m, const MambaSums *sums, Dtype c) {
    float slopes[MAMBA_CHUNK];
    double bias = 0, rate = 0;
    EACH_VECTOR(i, left, m->count)
    put(slopes, i, left, DTYPE_F32, one_minus_exp(-get(m->step, i, left, DTYPE_F32)));
    for (int64_t t = 0; t < m->count; t++) {
        float along = sums->keep[t] * m->keep[t] * m->rate, dt = (sums->step[t] + along) * slopes[t];
        tensor_set(r->out.dt, (m->first + t) * r->s.dt_row + m->head, c, dt);
        bias += (double)dt;
        rate += (double)(along * m->step[t]);
    }
    r->out.dt_bias[m->head] += (float)bias;
    r->out.A_log[m->head] += (float)rate;
    r->out.D[m->head] += (float)sums->skip;
}

INLINE void mamba_backward_typed(const MambaRun *r, int64_t head, int64_t first, int64_t count, Dtype c) {
    MambaRow states[MAMBA_CHUNK + 1];
    MambaSums sums = {{0}, {0}, 0};
    MambaSteps m;
    mamba_steps(r, head, first, count, &m, c);
    memset(mamba_scratch(r, 0, head), 0, (size_t)(count * 2 * r->s.state) * sizeof(float));
    for (int64_t p = 0; p < r->s.head_dim; p++) mamba_row_backward(r, &m, p, states, &sums, c);
    mamba_steps_backward(r, &m, &sums, c);
}
static void mamba_backward(const MambaRun *r, int64_t head, int64_t first, int64_t count) {
    BY_DTYPE(r->c, mamba_backward_typed, r, head, first, count);
}

/* dB and dC of a group: the sums over its heads, in order. */
INLINE void mamba_sum_typed(const MambaRun *r, int64_t first, int64_t t, Dtype c) {
    const MambaShape *s = &r->s;
    int64_t heads = s->heads / s->groups;
    for (int64_t head = 0; head < s->heads; head += heads) {
        int64_t at = mamba_group_at(s, first + t, head);
        EACH_VECTOR(i, left, s->state) {
            Vec dB = {0}, dC = {0};
            for (int64_t k = 0; k < heads; k++) {
                const float *terms = mamba_scratch(r, t, head + k);
                dB += get(terms, i, left, DTYPE_F32);
                dC += get(terms + s->state, i, left, DTYPE_F32);
            }
            put(tensor_to(r->out.B, at, c), i, left, c, dB);
            put(tensor_to(r->out.C, at, c), i, left, c, dC);
        }
    }
}
static void mamba_sum(const MambaRun *r, int64_t first, int64_t i) {
    BY_DTYPE(r->c, mamba_sum_typed, r, first, i);
}

/* ---- gated norm ---- */

INLINE Vec gated(const void *x, const void *gate, int64_t i, int64_t left, Dtype c) {
    Vec z = get(gate, i, left, c);
    return get(x, i, left, c) * (z * sigmoid(z));
}

INLINE float gated_rstd(const GatedNorm *s, const void *x, const void *gate, Dtype c) {
    Vec squares = {0};
    EACH_VECTOR(i, left, s->run) {
        Vec n = gated(x, gate, i, left, c);
        squares += n * n;
    }
    return 1 / __builtin_sqrtf(vec_sum(squares) / (float)s->run + s->eps);
}

INLINE void gated_norm_forward_typed(const GatedNormForwardArgs *o, Dtype c) {
    const GatedNorm s = o->s;
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t first = 0; first < s.width; first += s.run) {
            const void *x = tensor_at(o->x, t * s.width + first, c),
                       *gate = tensor_at(o->gate, t * s.gate_row + first, c);
            const float *w = o->w + first;
            void *y = tensor_to(o->y, t * s.width + first, c);
            float rstd = gated_rstd(&s, x, gate, c);
            EACH_VECTOR(i, left, s.run)
            put(y, i, left, c, gated(x, gate, i, left, c) * rstd * get(w, i, left, DTYPE_F32));
        }
}
static void gated_norm_forward(const GatedNormForwardArgs *o) { BY_DTYPE(o->c, gated_norm_forward_typed, o); }

/* Backward of the run from element `first` of token t on, as in rms_backward_typed, then through the gate. */
INLINE void gated_run_backward(const GatedNormBackwardArgs *o, int64_t t, int64_t first, Dtype c) {
    const int64_t n = o->s.run, at = t * o->s.width + first, gate_at = t * o->s.gate_row + first;
    const void *x = tensor_at(o->x, at, c), *gate = tensor_at(o->gate, gate_at, c),
               *dy = tensor_at(o->dy, at, c);
    void *dx = tensor_to(o->dx, at, c), *dgate = tensor_to(o->dgate, gate_at, c);
    const float *w = o->w + first, rstd = gated_rstd(&o->s, x, gate, c);
    float *dw = o->dw + first;
    Vec dot = {0};
    EACH_VECTOR(i, left, n)
    dot += gated(x, gate, i, left, c) * get(dy, i, left, c) * get(w, i, left, DTYPE_F32);
    float mean = vec_sum(dot) * rstd / (float)n;
    EACH_VECTOR(i, left, n) {
        Vec z = get(gate, i, left, c), q = sigmoid(z), silu = z * q, v = get(x, i, left, c),
            norm = v * silu * rstd, g = get(dy, i, left, c),
            d = (g * get(w, i, left, DTYPE_F32) - norm * mean) * rstd;
        put(dw, i, left, DTYPE_F32, get(dw, i, left, DTYPE_F32) + g * norm);
        put(dx, i, left, c, d * silu);
        put(dgate, i, left, c, d * v * (q + silu * (1.0f - q)));
    }
}

INLINE void gated_norm_backward_typed(const GatedNormBackwardArgs *o, Dtype c) {
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t first = 0; first < o->s.width; first += o->s.run) gated_run_backward(o, t, first, c);
}
static void gated_norm_backward(const GatedNormBackwardArgs *o) {
    BY_DTYPE(o->c, gated_norm_backward_typed, o);
}
