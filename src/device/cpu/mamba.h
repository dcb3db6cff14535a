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

/* For one head and the tokens of a chunk: the steps, and the factors of the state. */
typedef struct MambaSteps {
    float step[MAMBA_CHUNK], keep[MAMBA_CHUNK];
    float rate; /* -exp(A_log) */
} MambaSteps;

INLINE void mamba_steps(const MambaRun *r, int64_t head, int64_t first, int64_t count, MambaSteps *out,
                        Dtype c) {
    float bias = r->in.dt_bias[head];
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

/* ---- forward ---- */

typedef float MambaRow[MAMBA_STATE];

/* S_t from S_{t-1}, step x and B; S_t may overwrite S_{t-1}. */
INLINE Vec mamba_next(const float *before, float keep, float x, const void *B, int64_t i, int64_t left,
                      Dtype c) {
    return vec_multiply_add(keep * vec_load(before + i), vec_set(x), get(B, i, left, c));
}

/* Advances the state by one token; returns S_t C_t. */
INLINE float mamba_advance(float *now, float keep, float x, const void *B, const void *C, int64_t n,
                           Dtype c) {
    Vec sum = {0};
    EACH_VECTOR(i, left, n) {
        Vec next = mamba_next(now, keep, x, B, i, left, c);
        vec_store(now + i, next);
        sum = vec_multiply_add(sum, next, get(C, i, left, c));
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
            float x = tensor_get(r->in.x, mamba_x_at(s, first + t, head, p), c);
            int64_t group = mamba_group_at(s, first + t, head);
            float y = mamba_advance(now, m.keep[t], m.step[t] * x, tensor_at(r->in.B, group, c),
                                    tensor_at(r->in.C, group, c), s->state, c);
            tensor_set(r->y, mamba_y_at(s, first + t, head, p), c, y + r->in.D[head] * x);
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

/* Goes back by one token: computes G_t from the gradient that the next token passed on, replaces that by the
 * one for the previous token, and adds to dB and dC. */
typedef struct MambaDots {
    float along, kept; /* G_t B_t, and G_t with S_{t-1} */
} MambaDots;
INLINE MambaDots mamba_retreat(float *later, const float *before, const float *now, float keep, float x,
                               float dy, const void *B, const void *C, float *dB, float *dC, int64_t n,
                               Dtype c) {
    Vec along = {0}, kept = {0};
    EACH_VECTOR(i, left, n) {
        Vec g = vec_multiply_add(vec_load(later + i), vec_set(dy), get(C, i, left, c));
        put(dB, i, left, DTYPE_F32, vec_multiply_add(get(dB, i, left, DTYPE_F32), vec_set(x), g));
        put(dC, i, left, DTYPE_F32,
            vec_multiply_add(get(dC, i, left, DTYPE_F32), vec_set(dy), vec_load(now + i)));
        along = vec_multiply_add(along, g, get(B, i, left, c));
        kept = vec_multiply_add(kept, g, vec_load(before + i));
        vec_store(later + i, keep * g);
    }
    return (MambaDots){vec_sum(along), vec_sum(kept)};
}

/* Recomputes the row's states: states[t] is the one before the chunk's token t. */
INLINE void mamba_states(const MambaRun *r, const MambaSteps *m, int64_t head, int64_t p, int64_t first,
                         int64_t count, MambaRow *states, Dtype c) {
    const MambaShape *s = &r->s;
    memset(states[0], 0, sizeof *states);
    memcpy(states[0], mamba_start(r, first) + mamba_state_at(s, head, p), (size_t)s->state * sizeof(float));
    for (int64_t t = 0; t < count; t++) {
        float x = m->step[t] * tensor_get(r->in.x, mamba_x_at(s, first + t, head, p), c);
        const void *B = tensor_at(r->in.B, mamba_group_at(s, first + t, head), c);
        EACH_VECTOR(i, left, s->state)
        vec_store(states[t + 1] + i, mamba_next(states[t], m->keep[t], x, B, i, left, c));
    }
}

INLINE void mamba_row_backward(const MambaRun *r, const MambaSteps *m, int64_t head, int64_t p, int64_t first,
                               int64_t count, MambaRow *states, MambaSums *sums, Dtype c) {
    const MambaShape *s = &r->s;
    float *carry = r->carry + mamba_state_at(s, head, p), skip = r->in.D[head];
    size_t bytes = (size_t)s->state * sizeof(float);
    MambaRow later = {0};
    memcpy(later, carry, bytes);
    mamba_states(r, m, head, p, first, count, states, c);
    for (int64_t t = count - 1; t >= 0; t--) {
        int64_t group = mamba_group_at(s, first + t, head), at = mamba_x_at(s, first + t, head, p);
        float x = tensor_get(r->in.x, at, c), *dB = mamba_room(r, t, head),
              dy = tensor_get(r->dy, mamba_y_at(s, first + t, head, p), c);
        MambaDots dots = mamba_retreat(later, states[t], states[t + 1], m->keep[t], m->step[t] * x, dy,
                                       tensor_at(r->in.B, group, c), tensor_at(r->in.C, group, c), dB,
                                       dB + s->state, s->state, c);
        tensor_set(r->out.x, at, c, m->step[t] * dots.along + skip * dy);
        sums->step[t] += x * dots.along;
        sums->keep[t] += dots.kept;
        sums->skip += (double)(x * dy);
    }
    memcpy(carry, later, bytes);
}

/* From gradients of steps and factors to those of dt, dt_bias, A_log and D: d log keep = rate d step, and the
 * derivative of log(1 + e^z) is 1 - exp(-step). */
INLINE void mamba_steps_backward(const MambaRun *r, const MambaSteps *m, int64_t head, int64_t first,
                                 int64_t count, const MambaSums *sums, Dtype c) {
    float slopes[MAMBA_CHUNK];
    double bias = 0, rate = 0;
    EACH_VECTOR(i, left, count)
    put(slopes, i, left, DTYPE_F32, one_minus_exp(-get(m->step, i, left, DTYPE_F32)));
    for (int64_t t = 0; t < count; t++) {
        float along = sums->keep[t] * m->keep[t] * m->rate, dt = (sums->step[t] + along) * slopes[t];
        tensor_set(r->out.dt, (first + t) * r->s.dt_row + head, c, dt);
        bias += (double)dt;
        rate += (double)(along * m->step[t]);
    }
    r->out.dt_bias[head] += (float)bias;
    r->out.A_log[head] += (float)rate;
    r->out.D[head] += (float)sums->skip;
}

INLINE void mamba_backward_typed(const MambaRun *r, int64_t head, int64_t first, int64_t count, Dtype c) {
    MambaRow states[MAMBA_CHUNK + 1];
    MambaSums sums = {{0}, {0}, 0};
    MambaSteps m;
    mamba_steps(r, head, first, count, &m, c);
    memset(mamba_room(r, 0, head), 0, (size_t)(count * 2 * r->s.state) * sizeof(float));
    for (int64_t p = 0; p < r->s.head_dim; p++)
        mamba_row_backward(r, &m, head, p, first, count, states, &sums, c);
    mamba_steps_backward(r, &m, head, first, count, &sums, c);
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
                const float *terms = mamba_room(r, t, head + k);
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

INLINE void gated_norm_forward_typed(GatedNorm s, const void *x, const void *gate, const float *w, void *y,
                                     Dtype c) {
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t first = 0; first < s.width; first += s.run) {
            const void *xs = tensor_at(x, t * s.width + first, c),
                       *gates = tensor_at(gate, t * s.gate_row + first, c);
            float rstd = gated_rstd(&s, xs, gates, c);
            EACH_VECTOR(i, left, s.run)
            put(tensor_to(y, t * s.width + first, c), i, left, c,
                gated(xs, gates, i, left, c) * rstd * get(w + first, i, left, DTYPE_F32));
        }
}
static void gated_norm_forward(const GatedNormForwardArgs *o) {
    BY_DTYPE(o->c, gated_norm_forward_typed, o->s, o->x, o->gate, o->w, o->y);
}

/* Backward of one run, as in rms_backward_typed, then through the gate. */
INLINE void gated_run_backward(const GatedNorm *s, const void *x, const void *gate, const float *w,
                               const void *dy, void *dx, void *dgate, float *dw, Dtype c) {
    float scale = gated_rstd(s, x, gate, c);
    Vec dot = {0};
    EACH_VECTOR(i, left, s->run)
    dot += gated(x, gate, i, left, c) * get(dy, i, left, c) * get(w, i, left, DTYPE_F32);
    float mean = vec_sum(dot) * scale / (float)s->run;
    EACH_VECTOR(i, left, s->run) {
        Vec z = get(gate, i, left, c), q = sigmoid(z), silu = z * q, v = get(x, i, left, c),
            n = v * silu * scale, g = get(dy, i, left, c),
            d = (g * get(w, i, left, DTYPE_F32) - n * mean) * scale;
        put(dw, i, left, DTYPE_F32, get(dw, i, left, DTYPE_F32) + g * n);
        put(dx, i, left, c, d * silu);
        put(dgate, i, left, c, d * v * (q + silu * (1.0f - q)));
    }
}

INLINE void gated_norm_backward_typed(GatedNorm s, const void *x, const void *gate, const float *w,
                                      const void *dy, void *dx, void *dgate, float *dw, Dtype c) {
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t first = 0; first < s.width; first += s.run) {
            int64_t at = t * s.width + first, gates = t * s.gate_row + first;
            gated_run_backward(&s, tensor_at(x, at, c), tensor_at(gate, gates, c), w + first,
                               tensor_at(dy, at, c), tensor_to(dx, at, c), tensor_to(dgate, gates, c),
                               dw + first, c);
        }
}
static void gated_norm_backward(const GatedNormBackwardArgs *o) {
    BY_DTYPE(o->c, gated_norm_backward_typed, o->s, o->x, o->gate, o->w, o->dy, o->dx, o->dgate, o->dw);
}
