/* Mamba-2 (ops/recurrence.h), vectors of rows of a head's state at a time, tokens one after another. Each
 * row is an independent chain from token to token, held in registers, and y needs no sums across lanes. A
 * sequence that is processed in pieces gets the same bits as in one call.
 *
 * A state S is kept as a number e times R. With e_t = keep_t e_{t-1},
 *
 *     R_t = R_{t-1} + (step_t / e_t) x_t B_t^T      y_t = e_t R_t C_t + D x_t
 *
 * which takes two instructions for a vector of the state, where S itself takes three. When e_t falls below
 * MAMBA_LEAST, R is multiplied by it, and e is 1 again. That depends on the document's tokens only, as R
 * and e are carried from chunk to chunk.
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

/* Of each token: e after it, and whether R was multiplied, by keep[t]. x / MAMBA_LEAST has to be finite. */
#define MAMBA_LEAST 0x1p-30f
typedef struct MambaScales {
    float e[MAMBA_CHUNK];
    bool folds[MAMBA_CHUNK];
} MambaScales;

/* From e before the chunk; returns that after it. */
INLINE float mamba_scales(MambaSteps *m, float e, MambaScales *out) {
    for (int64_t t = 0; t < m->count; t++) {
        e *= m->keep[t];
        out->folds[t] = e < MAMBA_LEAST;
        if (out->folds[t]) m->keep[t] = e, e = 1;
        out->e[t] = e;
    }
    return e;
}

/* ---- blocks ---- */

/* A block: MAMBA_ROWS rows of the state, in lanes, and a slice of MAMBA_SLICE numbers of each. It stays in
 * registers from token to token. Rows and numbers beyond the state's are zeros. Each row adds in the order
 * that it would have by itself. */
enum { MAMBA_WIDE = 2, MAMBA_ROWS = MAMBA_WIDE * VLEN, MAMBA_SLICE = VLEN == 16 ? 8 : 4 };
typedef Vec MambaBlock[MAMBA_SLICE][MAMBA_WIDE];

INLINE Vec mamba_get(const void *from, int64_t i, int64_t n, Dtype c) {
    return i < n ? get(from, i, n - i, c) : (Vec){0};
}
INLINE void mamba_put(void *to, int64_t i, int64_t n, Dtype c, Vec v) {
    if (i < n) put(to, i, n - i, c, v);
}

/* B or C of a chunk's tokens in fp32. */
typedef float MambaSides[MAMBA_CHUNK][MAMBA_STATE];

INLINE void mamba_sides(const MambaRun *r, const MambaSteps *m, const void *tensor, MambaSides to, Dtype c) {
    for (int64_t t = 0; t < m->count; t++) {
        const void *from = tensor_at(tensor, mamba_group_at(&r->s, m->first + t, m->head), c);
        for (int64_t i = 0; i < mamba_whole(r->s.state); i += VLEN)
            vec_store(to[t] + i, mamba_get(from, i, r->s.state, c));
    }
}

/* Rows p .. p+rows-1: for the chunk's tokens step_t / e_t x_t, and R C; and R. */
typedef struct MambaRows {
    int64_t p, rows;
    float input[MAMBA_CHUNK][MAMBA_ROWS], y[MAMBA_CHUNK][MAMBA_ROWS];
    float state[MAMBA_STATE][MAMBA_ROWS];
} MambaRows;

INLINE void mamba_rows(const MambaRun *r, const MambaSteps *m, const MambaScales *scales, int64_t p,
                       MambaRows *k, Dtype c) {
    k->p = p, k->rows = min_i64(MAMBA_ROWS, r->s.head_dim - p);
    for (int64_t t = 0; t < m->count; t++) {
        const void *from = tensor_at(r->in.x, mamba_x_at(&r->s, m->first + t, m->head, p), c);
        const float factor = m->step[t] / scales->e[t];
        UNROLL for (int64_t v = 0; v < MAMBA_ROWS; v += VLEN) {
            vec_store(k->input[t] + v, factor * mamba_get(from, v, k->rows, c));
            vec_store(k->y[t] + v, (Vec){0});
        }
    }
}

/* y = e R C + D x, of all tokens. */
INLINE void mamba_put_rows(const MambaRun *r, const MambaSteps *m, const MambaScales *scales,
                           const MambaRows *k, Dtype c) {
    const float skip = r->in.D[m->head];
    for (int64_t t = 0; t < m->count; t++) {
        const void *from = tensor_at(r->in.x, mamba_x_at(&r->s, m->first + t, m->head, k->p), c);
        void *to = tensor_to(r->y, mamba_y_at(&r->s, m->first + t, m->head, k->p), c);
        const Vec e = vec_set(scales->e[t]);
        UNROLL for (int64_t v = 0; v < MAMBA_ROWS; v += VLEN)
            mamba_put(to, v, k->rows, c,
                      vec_multiply_add(skip * mamba_get(from, v, k->rows, c), e, vec_load(k->y[t] + v)));
    }
}

/* In generation R is read and written for every token, so it lies as it is used: the rows' first numbers,
 * then their second ones. Otherwise it lies as rows of N numbers, where the backward pass reads S: once
 * loaded, R is replaced by e R. */
INLINE void mamba_load(const MambaRun *r, float *before, float e, MambaRows *k) {
    const int64_t n = r->s.state;
    if (!before || !r->state) memset(k->state, 0, (size_t)mamba_whole(n) * sizeof *k->state);
    if (before && !r->state) {
        transpose_block((MatrixView){before, k->rows, n, n}, k->state[0], MAMBA_ROWS, 1, DTYPE_F32);
        EACH_VECTOR(i, left, k->rows * n)
        put(before, i, left, DTYPE_F32, e * get(before, i, left, DTYPE_F32));
    }
    for (int64_t i = 0; r->state && i < mamba_whole(n); i++)
        UNROLL for (int64_t v = 0; v < MAMBA_ROWS; v += VLEN) vec_store(
            k->state[i] + v, i < n ? mamba_get(before + i * k->rows, v, k->rows, DTYPE_F32) : (Vec){0});
}
INLINE void mamba_store(const MambaRun *r, const MambaRows *k, float *after) {
    const int64_t n = r->s.state;
    if (!r->state) transpose_block((MatrixView){k->state, n, k->rows, MAMBA_ROWS}, after, n, 1, DTYPE_F32);
    for (int64_t i = 0; r->state && i < n; i++)
        UNROLL for (int64_t v = 0; v < MAMBA_ROWS; v += VLEN)
            mamba_put(after + i * k->rows, v, k->rows, DTYPE_F32, vec_load(k->state[i] + v));
}

/* ---- forward ---- */

/* Advances a slice, the numbers from n on, through the chunk; adds to R C. */
INLINE void mamba_advance(const MambaSteps *m, const bool *folds, MambaRows *k, MambaSides B, MambaSides C,
                          int64_t n) {
    MambaBlock now;
    UNROLL for (int64_t i = 0; i < MAMBA_SLICE; i++) UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++)
        now[i][v] = vec_load(k->state[n + i] + v * VLEN);
    for (int64_t t = 0; t < m->count; t++) {
        Vec input[MAMBA_WIDE], y[MAMBA_WIDE];
        if (folds[t])
            UNROLL for (int64_t i = 0; i < MAMBA_SLICE; i++) UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++)
                now[i][v] *= m->keep[t];
        UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++) {
            input[v] = vec_load(k->input[t] + v * VLEN);
            y[v] = vec_load(k->y[t] + v * VLEN);
        }
        UNROLL for (int64_t i = 0; i < MAMBA_SLICE; i++) {
            Vec b = vec_set(B[t][n + i]), c = vec_set(C[t][n + i]);
            UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++) {
                now[i][v] = vec_multiply_add(now[i][v], input[v], b);
                y[v] = vec_multiply_add(y[v], now[i][v], c);
            }
        }
        UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++) vec_store(k->y[t] + v * VLEN, y[v]);
    }
    UNROLL for (int64_t i = 0; i < MAMBA_SLICE; i++) UNROLL for (int64_t v = 0; v < MAMBA_WIDE; v++)
        vec_store(k->state[n + i] + v * VLEN, now[i][v]);
}

INLINE float mamba_forward_typed(const MambaRun *r, int64_t head, const MambaChunk *chunk, float e, Dtype c) {
    MambaSides B, C;
    MambaSteps m;
    MambaScales scales;
    MambaRows k;
    mamba_steps(r, head, chunk->first, chunk->count, &m, c);
    const float after = mamba_scales(&m, e, &scales);
    mamba_sides(r, &m, r->in.B, B, c);
    mamba_sides(r, &m, r->in.C, C, c);
    for (int64_t p = 0; p < r->s.head_dim; p += MAMBA_ROWS) {
        const int64_t at = mamba_state_at(&r->s, head, p);
        mamba_rows(r, &m, &scales, p, &k, c);
        mamba_load(r, chunk->before ? chunk->before + at : NULL, e, &k);
        for (int64_t n = 0; n < r->s.state; n += MAMBA_SLICE) mamba_advance(&m, scales.folds, &k, B, C, n);
        if (chunk->after) mamba_store(r, &k, chunk->after + at);
        mamba_put_rows(r, &m, &scales, &k, c);
    }
    return after;
}
static float mamba_forward(const MambaRun *r, int64_t head, const MambaChunk *k, float e) {
    return r->c == DTYPE_F32 ? mamba_forward_typed(r, head, k, e, DTYPE_F32)
                             : mamba_forward_typed(r, head, k, e, DTYPE_BF16);
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

/* Passes over a run keep what they share: a sigmoid takes longer than the rest. Of longer runs each pass
 * computes all. */
enum { GATED_KEPT = 4096 };
typedef float GatedKept[GATED_KEPT];

INLINE Vec gated_sigmoid(const GatedNorm *s, const float *kept, int64_t i, Vec z) {
    return s->run <= GATED_KEPT ? vec_load(kept + i) : sigmoid(z);
}
/* The sigmoid of the first pass, for those after it. */
INLINE Vec gated_first(const GatedNorm *s, float *kept, int64_t i, Vec z) {
    Vec q = sigmoid(z);
    if (s->run <= GATED_KEPT) vec_store(kept + i, q);
    return q;
}

INLINE float gated_rstd(const GatedNorm *s, Vec squares) {
    return 1 / __builtin_sqrtf(vec_sum(squares) / (float)s->run + s->eps);
}

INLINE void gated_run_forward(const GatedNormForwardArgs *o, int64_t t, int64_t first, GatedKept kept,
                              Dtype c) {
    const GatedNorm s = o->s;
    const void *x = tensor_at(o->x, t * s.width + first, c),
               *gate = tensor_at(o->gate, t * s.gate_row + first, c);
    const float *w = o->w + first;
    void *y = tensor_to(o->y, t * s.width + first, c);
    Vec squares = {0};
    EACH_VECTOR(i, left, s.run) {
        Vec z = get(gate, i, left, c), n = get(x, i, left, c) * (z * gated_first(&s, kept, i, z));
        squares += n * n;
    }
    const float rstd = gated_rstd(&s, squares);
    EACH_VECTOR(i, left, s.run) {
        Vec z = get(gate, i, left, c), n = get(x, i, left, c) * (z * gated_sigmoid(&s, kept, i, z));
        put(y, i, left, c, n * rstd * get(w, i, left, DTYPE_F32));
    }
}

INLINE void gated_norm_forward_typed(const GatedNormForwardArgs *o, Dtype c) {
    GatedKept kept;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t first = 0; first < o->s.width; first += o->s.run)
            gated_run_forward(o, t, first, kept, c);
}
static void gated_norm_forward(const GatedNormForwardArgs *o) { BY_DTYPE(o->c, gated_norm_forward_typed, o); }

/* Backward of the run from element `first` of token t on, as in rms_backward_typed, then through the gate. */
INLINE void gated_run_backward(const GatedNormBackwardArgs *o, int64_t t, int64_t first, GatedKept kept,
                               Dtype c) {
    const GatedNorm s = o->s;
    const int64_t n = s.run, at = t * s.width + first, gate_at = t * s.gate_row + first;
    const void *x = tensor_at(o->x, at, c), *gate = tensor_at(o->gate, gate_at, c),
               *dy = tensor_at(o->dy, at, c);
    void *dx = tensor_to(o->dx, at, c), *dgate = tensor_to(o->dgate, gate_at, c);
    const float *w = o->w + first;
    float *dw = o->dw + first;
    Vec dot = {0}, squares = {0};
    EACH_VECTOR(i, left, n) {
        Vec z = get(gate, i, left, c), v = get(x, i, left, c) * (z * gated_first(&s, kept, i, z));
        squares += v * v;
        dot += v * get(dy, i, left, c) * get(w, i, left, DTYPE_F32);
    }
    const float rstd = gated_rstd(&s, squares), mean = vec_sum(dot) * rstd / (float)n;
    EACH_VECTOR(i, left, n) {
        Vec z = get(gate, i, left, c), q = gated_sigmoid(&s, kept, i, z), silu = z * q,
            v = get(x, i, left, c), norm = v * silu * rstd, g = get(dy, i, left, c),
            d = (g * get(w, i, left, DTYPE_F32) - norm * mean) * rstd;
        put(dw, i, left, DTYPE_F32, get(dw, i, left, DTYPE_F32) + g * norm);
        put(dx, i, left, c, d * silu);
        put(dgate, i, left, c, d * v * (q + silu * (1.0f - q)));
    }
}

INLINE void gated_norm_backward_typed(const GatedNormBackwardArgs *o, Dtype c) {
    GatedKept kept;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t first = 0; first < o->s.width; first += o->s.run)
            gated_run_backward(o, t, first, kept, c);
}
static void gated_norm_backward(const GatedNormBackwardArgs *o) {
    BY_DTYPE(o->c, gated_norm_backward_typed, o);
}
