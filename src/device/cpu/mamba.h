/* Mamba-2 (ops/recurrence.h), a few rows of a head's state at a time: the N numbers of a row lie in lanes,
 * and tokens follow one after another. Each row is an independent chain from token to token, held in
 * registers. On a CPU this costs as many operations as products of chunks would, and a sequence that is
 * processed in pieces gets the same bits as in one call.
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

/* ---- blocks ---- */

/* A block: MAMBA_ROWS rows of the state, MAMBA_WIDE vectors of each, a slice. It stays in registers from
 * token to token, and a token's B and C are read once for all its rows. Rows and elements beyond the state's
 * are zeros. Each row adds in the order that it would have by itself. */
enum {
    MAMBA_ROWS = 4,
    MAMBA_WIDE = 2,
    MAMBA_SLICE = MAMBA_WIDE * VLEN,
    MAMBA_SLICES = MAMBA_STATE / MAMBA_SLICE
};
typedef Vec MambaBlock[MAMBA_ROWS][MAMBA_WIDE];

/* N fp32 numbers for each token of a chunk (B, C, their gradients), slice by slice. */
typedef Vec MambaSlice[MAMBA_CHUNK][MAMBA_WIDE];
typedef MambaSlice MambaSides[MAMBA_SLICES];

INLINE Vec mamba_get(const void *from, int64_t i, int64_t n, Dtype c) {
    return i < n ? get(from, i, n - i, c) : (Vec){0};
}
INLINE void mamba_put(float *to, int64_t i, int64_t n, Vec v) {
    if (i < n) put(to, i, n - i, DTYPE_F32, v);
}

INLINE int64_t mamba_slices(const MambaRun *r) { return (r->s.state + MAMBA_SLICE - 1) / MAMBA_SLICE; }

INLINE void mamba_sides(const MambaRun *r, const MambaSteps *m, const void *tensor, MambaSides to, Dtype c) {
    for (int64_t t = 0; t < m->count; t++) {
        const void *from = tensor_at(tensor, mamba_group_at(&r->s, m->first + t, m->head), c);
        for (int64_t i = 0; i < mamba_slices(r) * MAMBA_WIDE; i++)
            to[i / MAMBA_WIDE][t][i % MAMBA_WIDE] = mamba_get(from, i * VLEN, r->s.state, c);
    }
}

/* state: the block's first row. */
INLINE void mamba_load(const MambaRun *r, const float *state, int64_t rows, int64_t slice, MambaBlock out) {
    UNROLL for (int64_t row = 0; row < MAMBA_ROWS; row++) UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++) {
        int64_t i = slice * MAMBA_SLICE + v * VLEN;
        out[row][v] = row < rows ? mamba_get(state + row * r->s.state, i, r->s.state, DTYPE_F32) : (Vec){0};
    }
}
INLINE void mamba_store(const MambaRun *r, float *state, int64_t rows, int64_t slice, MambaBlock block) {
    UNROLL for (int64_t row = 0; row < MAMBA_ROWS; row++) UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++) {
        int64_t i = slice * MAMBA_SLICE + v * VLEN;
        if (row < rows) mamba_put(state + row * r->s.state, i, r->s.state, block[row][v]);
    }
}

/* What a block's rows p .. p+rows-1 read of the chunk's tokens. */
typedef struct MambaRows {
    int64_t p, rows;
    float x[MAMBA_CHUNK][MAMBA_ROWS], input[MAMBA_CHUNK][MAMBA_ROWS]; /* x_t, step_t x_t */
} MambaRows;

INLINE void mamba_rows(const MambaRun *r, const MambaSteps *m, int64_t p, MambaRows *k, Dtype c) {
    const MambaShape *s = &r->s;
    k->p = p, k->rows = min_i64(MAMBA_ROWS, s->head_dim - p);
    for (int64_t t = 0; t < m->count; t++)
        for (int64_t row = 0; row < MAMBA_ROWS; row++) {
            bool here = row < k->rows;
            float x = here ? tensor_get(r->in.x, mamba_x_at(s, m->first + t, m->head, p + row), c) : 0;
            k->x[t][row] = x, k->input[t][row] = m->step[t] * x;
        }
}

/* S_t from S_{t-1}, for a vector. */
INLINE Vec mamba_next(Vec before, float keep, float input, Vec B) {
    return vec_multiply_add(keep * before, vec_set(input), B);
}

/* ---- forward ---- */

/* Advances a slice through the chunk; adds each row's S_t C_t to sums, lane by lane. */
INLINE void mamba_advance(const MambaSteps *m, const MambaRows *k, MambaSlice B, MambaSlice C, MambaBlock now,
                          Vec (*sums)[MAMBA_ROWS]) {
    for (int64_t t = 0; t < m->count; t++) UNROLL for (int64_t row = 0; row < MAMBA_ROWS; row++) {
            Vec sum = sums[t][row];
            UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++) {
                now[row][v] = mamba_next(now[row][v], m->keep[t], k->input[t][row], B[t][v]);
                sum = vec_multiply_add(sum, now[row][v], C[t][v]);
            }
            sums[t][row] = sum;
        }
}

INLINE void mamba_rows_forward(const MambaRun *r, const MambaChunk *chunk, const MambaSteps *m,
                               const MambaRows *k, MambaSides B, MambaSides C, Dtype c) {
    Vec sums[MAMBA_CHUNK][MAMBA_ROWS];
    int64_t at = mamba_state_at(&r->s, m->head, k->p);
    memset(sums, 0, (size_t)m->count * sizeof *sums);
    for (int64_t slice = 0; slice < mamba_slices(r); slice++) {
        MambaBlock now = {{{0}}};
        if (chunk->before) mamba_load(r, chunk->before + at, k->rows, slice, now);
        mamba_advance(m, k, B[slice], C[slice], now, sums);
        if (chunk->after) mamba_store(r, chunk->after + at, k->rows, slice, now);
    }
    for (int64_t t = 0; t < m->count; t++)
        for (int64_t row = 0; row < k->rows; row++) {
            float y = vec_sum(sums[t][row]) + r->in.D[m->head] * k->x[t][row];
            tensor_set(r->y, mamba_y_at(&r->s, m->first + t, m->head, k->p + row), c, y);
        }
}

INLINE void mamba_forward_typed(const MambaRun *r, int64_t head, const MambaChunk *chunk, Dtype c) {
    MambaSides B, C;
    MambaSteps m;
    mamba_steps(r, head, chunk->first, chunk->count, &m, c);
    mamba_sides(r, &m, r->in.B, B, c);
    mamba_sides(r, &m, r->in.C, C, c);
    for (int64_t p = 0; p < r->s.head_dim; p += MAMBA_ROWS) {
        MambaRows k;
        mamba_rows(r, &m, p, &k, c);
        mamba_rows_forward(r, chunk, &m, &k, B, C, c);
    }
}
static void mamba_forward(const MambaRun *r, int64_t head, const MambaChunk *k) {
    BY_DTYPE(r->c, mamba_forward_typed, r, head, k);
}

/* ---- gradients of steps; the rest of the backward pass is in mamba_chunks.h ---- */

/* Gradients that are summed over the rows of a head's state, for the tokens of a chunk. */
typedef struct MambaSums {
    float step[MAMBA_CHUNK], log[MAMBA_CHUNK]; /* of the step, and of log keep */
    double skip;
} MambaSums;

/* To the gradients of dt, dt_bias, A_log and D: d log keep = rate d step, and the
 * derivative of log(1 + e^z) is 1 - exp(-step). */
INLINE void mamba_steps_backward(const MambaRun *r, const MambaSteps *m, const MambaSums *sums, Dtype c) {
    float slopes[MAMBA_CHUNK];
    double bias = 0, rate = 0;
    EACH_VECTOR(i, left, m->count)
    put(slopes, i, left, DTYPE_F32, one_minus_exp(-get(m->step, i, left, DTYPE_F32)));
    for (int64_t t = 0; t < m->count; t++) {
        float along = sums->log[t] * m->rate, dt = (sums->step[t] + along) * slopes[t];
        tensor_set(r->out.dt, (m->first + t) * r->s.dt_row + m->head, c, dt);
        bias += (double)dt;
        rate += (double)(along * m->step[t]);
    }
    r->out.dt_bias[m->head] += (float)bias;
    r->out.A_log[m->head] += (float)rate;
    r->out.D[m->head] += (float)sums->skip;
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
