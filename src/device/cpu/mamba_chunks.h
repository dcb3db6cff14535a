/* The backward pass of Mamba-2 by products of chunks (state-space duality: Dao & Gu, 2024). Part of
 * kernels_all.h, after mamba.h.
 *
 * Within a chunk (MambaChunk), let c_t be the sum of the logarithms of keep from its first token to token t,
 * and S the state before it. With x'_u = step_u x_u and, for u <= t, L_tu = exp(c_t - c_u), K_tu = C_t . B_u
 * and V_tu = dy_t . x_u,
 *
 *     y_t = exp(c_t) S C_t + sum over u of L_tu K_tu x'_u + D x_t
 *
 * With G the gradient of the state after the chunk, whose last token is z:
 *
 *     dx'_u = exp(c_z - c_u) G B_u    + sum over t of L_tu K_tu dy_t
 *     dB_u  = exp(c_z - c_u) G^T x'_u + sum over t of Z_tu C_t            Z_tu = L_tu V_tu step_u
 *     dC_t  = exp(c_t) S^T dy_t       + sum over u of Z_tu B_u
 *     dS    = exp(c_z) G              + sum over t of exp(c_t) dy_t C_t^T
 *
 * K is a group's, and the sums with Z are over all its heads: the heads' Z are added before they are
 * multiplied. The gradient of log keep at token s is the sum over all terms that it scales. Those with
 * u < s <= t are L_tu K_tu V_tu step_u; they are added as the sums of rows t >= s less the sums of columns
 * u >= s, in double.
 *
 * Factors are exponentials of differences, which are never above 1. Sums are cut by blocks of MAMBA_BLOCK
 * tokens that count from the chunk's first; terms outside u <= t are zeros there, or left out. */

enum {
    MAMBA_SLAB = 64, /* rows of a head's state at a time */
    MAMBA_PANEL = MAMBA_SLAB * MAMBA_CHUNK,
    MAMBA_SQUARE = MAMBA_CHUNK * MAMBA_CHUNK
};

/* Vectors that cross lines of the cache are loaded at half the rate. */
#define CHUNK_LINES _Alignas(64)

/* ---- operands ---- */

/* fp32 numbers between rows of B, C and their gradients. */
INLINE int64_t chunk_state(const MambaRun *r) { return mamba_whole(r->s.state); }

/* to[cols][MAMBA_CHUNK], with zeros for tokens up to the next block. */
INLINE void chunk_transpose(MatrixView from, float *to, Dtype c) {
    int64_t end = mamba_whole(from.rows);
    BY_DTYPE(c, transpose_block, from, to, MAMBA_CHUNK, 1);
    for (int64_t i = 0; i < from.cols && from.rows < end; i++)
        memset(to + i * MAMBA_CHUNK + from.rows, 0, (size_t)(end - from.rows) * sizeof *to);
}

static void chunk_widen(MatrixView from, int64_t padded, float *to, Dtype c) {
    BY_DTYPE(c, widen_typed, from, padded, to);
}

/* B or C of the chunk's tokens, of head's group. */
static MatrixView chunk_sides(const MambaRun *r, const void *tensor, const MambaChunk *k, int64_t head) {
    const void *at = tensor_at(tensor, mamba_group_at(&r->s, k->first, head), r->c);
    return (MatrixView){at, k->count, r->s.state, r->s.row};
}

/* ---- what heads of a group share ---- */

INLINE int64_t chunk_block(const MambaChunk *k, int64_t from) {
    return min_i64(MAMBA_BLOCK, k->count - from);
}

/* Block `from` of tokens: B and C in fp32, and the block's rows of K. */
static void mamba_scores(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from) {
    const int64_t head = group * (r->s.heads / r->s.groups), n = chunk_state(r), rows = chunk_block(k, from);
    MambaShared to = mamba_shared(r, group);
    CHUNK_LINES float turned[MAMBA_STATE * MAMBA_CHUNK];
    MatrixView B = chunk_sides(r, r->in.B, k, head), C = chunk_sides(r, r->in.C, k, head), part = B;
    part.at = tensor_at(B.at, from * B.row, r->c), part.rows = rows;
    chunk_widen(part, n, to.B + from * n, r->c);
    part.at = tensor_at(C.at, from * C.row, r->c);
    chunk_widen(part, n, to.C + from * n, r->c);
    B.rows = from + rows;
    chunk_transpose(B, turned, r->c);
    product((Product){.m = rows,
                      .n = mamba_whole(B.rows),
                      .k = r->s.state,
                      .a = to.C + from * n,
                      .a_row = n,
                      .a_step = 1,
                      .b = turned,
                      .b_row = MAMBA_CHUNK,
                      .c = to.scores + from * MAMBA_CHUNK,
                      .c_row = MAMBA_CHUNK,
                      .mode = TILE_SET});
}

/* ---- a head ---- */

typedef struct ChunkPass {
    const MambaRun *r;
    const MambaChunk *k;
    MambaSteps m;
    MambaShared shared;
    MambaTerms to;
    CHUNK_LINES float since[MAMBA_CHUNK], rest[MAMBA_CHUNK]; /* exp(c_t), exp(c_z - c_t) */
    float through;                                           /* exp(c_z) */
    CHUNK_LINES float mixed[MAMBA_SQUARE];                   /* L K */
    CHUNK_LINES float along[MAMBA_SQUARE];                   /* V */
    CHUNK_LINES float turned[MAMBA_STATE * MAMBA_CHUNK];     /* B transposed */
    /* Sums for each token: x_u . exp(c_z - c_u) G B_u; and of G with S. */
    CHUNK_LINES float passed[MAMBA_CHUNK];
    double kept;
} ChunkPass;

/* A slab: rows p .. p+rows-1 of the head's state. */
typedef struct ChunkSlab {
    int64_t p, rows;
    CHUNK_LINES float x[MAMBA_PANEL], dy[MAMBA_PANEL];      /* [T][MAMBA_SLAB] */
    CHUNK_LINES float turned[MAMBA_PANEL], dx[MAMBA_PANEL]; /* x and dx', [MAMBA_SLAB][T] */
    CHUNK_LINES float scaled[MAMBA_PANEL];                  /* dy or x', scaled; [T][MAMBA_SLAB] */
    CHUNK_LINES float S[MAMBA_SLAB * MAMBA_STATE], G[MAMBA_SLAB * MAMBA_STATE];
} ChunkSlab;

/* c_t - c_u is the difference of two numbers that may be large: they are kept in two parts, so that its error
 * is that of the difference. */
typedef struct ChunkLogs {
    float high[MAMBA_CHUNK], low[MAMBA_CHUNK];
} ChunkLogs;

/* e^x for x <= 0; 0 where it is less than 2^-64: products with smaller numbers would fall below 2^-126, which
 * costs an instruction 200 cycles. */
INLINE Vec chunk_exp(Vec x) {
    return (Vec)((VecInt)(x > -44.36f) & (VecInt)vec_exp_bounded(vec_min(vec_set(0), x)));
}

static void chunk_factors(ChunkPass *w, ChunkLogs *logs) {
    const int64_t count = w->m.count;
    double sums[MAMBA_CHUNK], sum = 0;
    memset(logs, 0, sizeof *logs);
    memset(w->rest, 0, sizeof w->rest);
    for (int64_t t = 0; t < count; t++) {
        sums[t] = sum += (double)w->m.rate * (double)w->m.step[t];
        logs->high[t] = (float)sum, logs->low[t] = (float)(sum - (double)logs->high[t]);
        w->since[t] = logs->high[t];
    }
    for (int64_t t = 0; t < count; t++) w->rest[t] = (float)(sum - sums[t]);
    EACH_VECTOR(i, left, count) {
        put(w->since, i, left, DTYPE_F32, chunk_exp(get(w->since, i, left, DTYPE_F32)));
        put(w->rest, i, left, DTYPE_F32, chunk_exp(get(w->rest, i, left, DTYPE_F32)));
    }
    w->through = w->since[count - 1];
}

/* Lanes beyond the chunk's tokens are zeros everywhere. */
static void chunk_begin(const MambaRun *r, int64_t head, const MambaChunk *k, ChunkPass *w, ChunkLogs *logs) {
    w->r = r, w->k = k, w->kept = 0;
    w->shared = mamba_shared(r, mamba_group(&r->s, head)), w->to = mamba_terms(r, head);
    memset(w->passed, 0, sizeof w->passed);
    memset(w->m.step, 0, sizeof w->m.step);
    BY_DTYPE(r->c, mamba_steps, r, head, k->first, k->count, &w->m);
    chunk_factors(w, logs);
    if (k->after) chunk_transpose(chunk_sides(r, r->in.B, k, head), w->turned, r->c);
}

INLINE VecInt vec_lanes(void) {
    VecInt lanes;
    for (int i = 0; i < VLEN; i++) lanes[i] = i;
    return lanes;
}

/* L K, and L_tu step_u in the place of Z. Both are zero for u > t, to the end of t's block. */
static void chunk_mix(ChunkPass *w, const ChunkLogs *logs) {
    const VecInt lanes = vec_lanes();
    for (int64_t t = 0; t < w->k->count; t++) {
        const int64_t end = mamba_whole(t + 1);
        const Vec high = vec_set(logs->high[t]), low = vec_set(logs->low[t]);
        const float *K = w->shared.scores + t * MAMBA_CHUNK;
        float *mixed = w->mixed + t * MAMBA_CHUNK, *Z = w->to.Z + t * MAMBA_CHUNK;
        for (int64_t u = 0; u < end; u += VLEN) {
            VecInt here = (VecInt)(lanes + (int32_t)u <= (int32_t)t);
            Vec L = (high - vec_load(logs->high + u)) + (low - vec_load(logs->low + u));
            L = (Vec)(here & (VecInt)chunk_exp(L));
            vec_store(mixed + u, (Vec)(here & (VecInt)(L * vec_load(K + u))));
            vec_store(Z + u, L * vec_load(w->m.step + u));
        }
    }
}

/* ---- slabs ---- */

INLINE void chunk_scale(const ChunkPass *w, const float *from, const float *factor, float *to) {
    for (int64_t t = 0; t < w->k->count; t++)
        for (int64_t i = 0; i < MAMBA_SLAB; i += VLEN)
            vec_store(to + t * MAMBA_SLAB + i, vec_load(from + t * MAMBA_SLAB + i) * factor[t]);
}

/* Rows of a head's state, padded with zeros. */
static void chunk_load(const ChunkPass *w, const float *state, const ChunkSlab *s, float *to) {
    int64_t n = w->r->s.state;
    const MatrixView from = {state + mamba_state_at(&w->r->s, w->m.head, s->p), s->rows, n, n};
    chunk_widen(from, chunk_state(w->r), to, DTYPE_F32);
}

static void chunk_begin_slab(const ChunkPass *w, int64_t p, ChunkSlab *s) {
    const MambaRun *r = w->r;
    const int64_t first = w->k->first, head = w->m.head;
    s->p = p, s->rows = min_i64(MAMBA_SLAB, r->s.head_dim - p);
    const MatrixView x = {tensor_at(r->in.x, mamba_x_at(&r->s, first, head, p), r->c), w->k->count, s->rows,
                          r->s.row},
                     dy = {tensor_at(r->dy, mamba_y_at(&r->s, first, head, p), r->c), w->k->count, s->rows,
                           r->s.heads * r->s.head_dim};
    chunk_widen(x, MAMBA_SLAB, s->x, r->c);
    chunk_widen(dy, MAMBA_SLAB, s->dy, r->c);
    chunk_transpose(x, s->turned, r->c);
}

/* V += the slab's part. */
static void chunk_along(ChunkPass *w, const ChunkSlab *s) {
    for (int64_t from = 0; from < w->k->count; from += MAMBA_BLOCK)
        product((Product){.m = chunk_block(w->k, from),
                          .n = from + MAMBA_BLOCK,
                          .k = s->rows,
                          .a = s->dy + from * MAMBA_SLAB,
                          .a_row = MAMBA_SLAB,
                          .a_step = 1,
                          .b = s->turned,
                          .b_row = MAMBA_CHUNK,
                          .c = w->along + from * MAMBA_CHUNK,
                          .c_row = MAMBA_CHUNK,
                          .mode = s->p ? TILE_ADD : TILE_SET});
}

/* Through the state after the chunk: dx', and the part of dB. */
static void chunk_after(ChunkPass *w, ChunkSlab *s) {
    const int64_t count = w->k->count, n = chunk_state(w->r);
    float factor[MAMBA_CHUNK];
    chunk_load(w, w->r->carry, s, s->G);
    for (int64_t t = 0; t < count; t++) factor[t] = w->rest[t] * w->m.step[t];
    chunk_scale(w, s->x, factor, s->scaled);
    product((Product){.m = count,
                      .n = n,
                      .k = s->rows,
                      .a = s->scaled,
                      .a_row = MAMBA_SLAB,
                      .a_step = 1,
                      .b = s->G,
                      .b_row = n,
                      .c = w->to.dB,
                      .c_row = n,
                      .mode = s->p ? TILE_ADD : TILE_SET});
    product((Product){.m = s->rows,
                      .n = mamba_whole(count),
                      .k = w->r->s.state,
                      .a = s->G,
                      .a_row = n,
                      .a_step = 1,
                      .b = w->turned,
                      .b_row = MAMBA_CHUNK,
                      .c = s->dx,
                      .c_row = MAMBA_CHUNK,
                      .mode = TILE_SET});
    for (int64_t u = 0; u < count; u += VLEN) {
        Vec rest = vec_load(w->rest + u), sum = {0};
        for (int64_t p = 0; p < s->rows; p++) {
            float *dx = s->dx + p * MAMBA_CHUNK + u;
            Vec d = vec_load(dx) * rest;
            sum = vec_multiply_add(sum, d, vec_load(s->turned + p * MAMBA_CHUNK + u));
            vec_store(dx, d);
        }
        vec_store(w->passed + u, vec_load(w->passed + u) + sum);
    }
}

/* Through the state before the chunk: the part of dC, and the gradient of that state, which replaces G. */
static void chunk_before(ChunkPass *w, ChunkSlab *s) {
    const int64_t count = w->k->count, n = chunk_state(w->r), all = s->rows * n;
    float through[MAMBA_STATE];
    Vec kept = {0};
    chunk_load(w, w->k->before, s, s->S);
    chunk_scale(w, s->dy, w->since, s->scaled);
    product((Product){.m = count,
                      .n = n,
                      .k = s->rows,
                      .a = s->scaled,
                      .a_row = MAMBA_SLAB,
                      .a_step = 1,
                      .b = s->S,
                      .b_row = n,
                      .c = w->to.dC,
                      .c_row = n,
                      .mode = s->p ? TILE_ADD : TILE_SET});
    for (int64_t i = 0; i < n; i += VLEN) vec_store(through + i, vec_set(w->through));
    for (int64_t i = 0; w->k->after && i < all; i += VLEN)
        kept = vec_multiply_add(kept, vec_load(s->G + i), vec_load(s->S + i));
    w->kept += (double)(vec_sum(kept) * w->through);
    product((Product){.m = s->rows,
                      .n = n,
                      .k = count,
                      .a = s->scaled,
                      .a_row = 1,
                      .a_step = MAMBA_SLAB,
                      .b = w->shared.C,
                      .b_row = n,
                      .c = s->G,
                      .c_row = n,
                      .mode = w->k->after ? TILE_RESCALE : TILE_SET,
                      .factor = through});
    float *to = w->r->carry + mamba_state_at(&w->r->s, w->m.head, s->p);
    for (int64_t p = 0; p < s->rows; p++)
        memcpy(to + p * w->r->s.state, s->G + p * n, (size_t)w->r->s.state * sizeof *to);
}

/* dx' += the terms within the chunk. */
static void chunk_within(const ChunkPass *w, ChunkSlab *s) {
    for (int64_t from = 0; from < w->k->count; from += MAMBA_BLOCK)
        product((Product){.m = s->rows,
                          .n = MAMBA_BLOCK,
                          .k = w->k->count - from,
                          .a = s->dy + from * MAMBA_SLAB,
                          .a_row = 1,
                          .a_step = MAMBA_SLAB,
                          .b = w->mixed + from * MAMBA_CHUNK + from,
                          .b_row = MAMBA_CHUNK,
                          .c = s->dx + from,
                          .c_row = MAMBA_CHUNK,
                          .mode = w->k->after ? TILE_ADD : TILE_SET});
}

INLINE void chunk_put_dx(const ChunkPass *w, ChunkSlab *s, Dtype c) {
    const MambaRun *r = w->r;
    const float skip = r->in.D[w->m.head];
    float *dx = s->scaled;
    const MatrixView turned = {s->dx, s->rows, w->k->count, MAMBA_CHUNK};
    transpose_block(turned, dx, MAMBA_SLAB, 1, DTYPE_F32);
    for (int64_t t = 0; t < w->k->count; t++) {
        void *to = tensor_to(r->out.x, mamba_x_at(&r->s, w->k->first + t, w->m.head, s->p), c);
        EACH_VECTOR(i, left, s->rows) {
            Vec d = vec_load(dx + t * MAMBA_SLAB + i), dy = vec_load(s->dy + t * MAMBA_SLAB + i);
            put(to, i, left, c, w->m.step[t] * d + skip * dy);
        }
    }
}

static void chunk_slab(ChunkPass *w, int64_t p) {
    ChunkSlab s;
    chunk_begin_slab(w, p, &s);
    chunk_along(w, &s);
    if (w->k->after) chunk_after(w, &s);
    if (w->k->before) chunk_before(w, &s);
    chunk_within(w, &s);
    BY_DTYPE(w->r->c, chunk_put_dx, w, &s);
}

/* ---- gradients of steps and factors ---- */

/* Sums of L K V: of a token's row, each term times step_u; of its column; and the term with itself. */
typedef struct ChunkSums {
    float row[MAMBA_CHUNK], column[MAMBA_CHUNK], own[MAMBA_CHUNK];
} ChunkSums;

/* Completes Z, and adds the sums. */
static void chunk_terms(const ChunkPass *w, ChunkSums *sums) {
    const VecInt lanes = vec_lanes();
    memset(sums->column, 0, sizeof sums->column);
    for (int64_t t = 0; t < w->k->count; t++) {
        const int64_t at = t * MAMBA_CHUNK, end = mamba_whole(t + 1);
        Vec row = {0};
        for (int64_t u = 0; u < end; u += VLEN) {
            VecInt here = (VecInt)(lanes + (int32_t)u < (int32_t)t),
                   seen = (VecInt)(lanes + (int32_t)u <= (int32_t)t);
            Vec V = (Vec)(seen & (VecInt)vec_load(w->along + at + u));
            Vec all = (Vec)(here & (VecInt)(vec_load(w->mixed + at + u) * V));
            vec_store(w->to.Z + at + u, vec_load(w->to.Z + at + u) * V);
            vec_store(sums->column + u, vec_load(sums->column + u) + all);
            row = vec_multiply_add(row, all, vec_load(w->m.step + u));
        }
        sums->row[t] = vec_sum(row);
        sums->own[t] = w->mixed[at + t] * w->along[at + t];
    }
}

/* exp(c_t) dy_t . S C_t */
INLINE float chunk_read(const ChunkPass *w, int64_t t) {
    const int64_t n = chunk_state(w->r);
    Vec sum = {0};
    for (int64_t i = 0; i < n; i += VLEN)
        sum = vec_multiply_add(sum, vec_load(w->to.dC + t * n + i), vec_load(w->shared.C + t * n + i));
    return vec_sum(sum);
}

/* The gradients of steps and of log keep, in the form that mamba_steps_backward takes. */
static void chunk_steps(const ChunkPass *w, MambaSums *out) {
    ChunkSums sums;
    double later = 0, passed = w->kept;
    out->skip = 0;
    chunk_terms(w, &sums);
    for (int64_t t = 0; t < w->k->count; t++) passed += (double)(w->m.step[t] * w->passed[t]);
    for (int64_t t = w->k->count - 1; t >= 0; t--) {
        float column = w->m.step[t] * sums.column[t];
        passed -= (double)(w->m.step[t] * w->passed[t]);
        later += (double)sums.row[t] - (double)column;
        if (w->k->before) later += (double)chunk_read(w, t);
        out->step[t] = w->passed[t] + sums.column[t] + sums.own[t];
        out->log[t] = t > 0 || w->k->before ? (float)(later + passed) : 0;
        out->skip += (double)w->along[t * MAMBA_CHUNK + t];
    }
}

static void mamba_backward(const MambaRun *r, int64_t head, const MambaChunk *k) {
    ChunkPass w;
    ChunkLogs logs;
    MambaSums sums;
    chunk_begin(r, head, k, &w, &logs);
    chunk_mix(&w, &logs);
    for (int64_t p = 0; p < r->s.head_dim; p += MAMBA_SLAB) chunk_slab(&w, p);
    chunk_steps(&w, &sums);
    BY_DTYPE(r->c, mamba_steps_backward, r, &w.m, &sums);
}

/* ---- dB and dC: sums over the heads of a group ---- */

/* Adds the heads' terms to rows of dB or dC, and writes them. */
INLINE void chunk_put_sides(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from, bool is_C,
                            const float *sums, Dtype c) {
    const int64_t heads = r->s.heads / r->s.groups, n = chunk_state(r), head = group * heads;
    for (int64_t t = from; t < from + chunk_block(k, from); t++, sums += n) {
        void *to = tensor_to(is_C ? r->out.C : r->out.B, mamba_group_at(&r->s, k->first + t, head), c);
        EACH_VECTOR(i, left, r->s.state) {
            Vec sum = vec_load(sums + i);
            for (int64_t h = head; (is_C ? k->before : k->after) && h < head + heads; h++) {
                MambaTerms terms = mamba_terms(r, h);
                sum += vec_load((is_C ? terms.dC : terms.dB) + t * n + i);
            }
            put(to, i, left, c, sum);
        }
    }
}

/* Rows of the sum of Z over heads, in the place of K; then dC. */
static void mamba_sum_C(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from) {
    const int64_t heads = r->s.heads / r->s.groups, rows = chunk_block(k, from), end = from + MAMBA_BLOCK,
                  n = chunk_state(r);
    const MambaShared to = mamba_shared(r, group);
    CHUNK_LINES float sums[MAMBA_BLOCK * MAMBA_STATE], *Z = to.scores + from * MAMBA_CHUNK;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t u = 0; u < end; u += VLEN) {
            const int64_t at = (from + t) * MAMBA_CHUNK + u;
            Vec sum = vec_load(mamba_terms(r, group * heads).Z + at);
            for (int64_t h = 1; h < heads; h++) sum += vec_load(mamba_terms(r, group * heads + h).Z + at);
            vec_store(Z + t * MAMBA_CHUNK + u, sum);
        }
    product((Product){.m = rows,
                      .n = n,
                      .k = from + rows,
                      .a = Z,
                      .a_row = MAMBA_CHUNK,
                      .a_step = 1,
                      .b = to.B,
                      .b_row = n,
                      .c = sums,
                      .c_row = n,
                      .mode = TILE_SET});
    BY_DTYPE(r->c, chunk_put_sides, r, group, k, from, true, sums);
}

static void mamba_sum_B(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from) {
    const int64_t n = chunk_state(r);
    const MambaShared to = mamba_shared(r, group);
    CHUNK_LINES float sums[MAMBA_BLOCK * MAMBA_STATE];
    product((Product){.m = chunk_block(k, from),
                      .n = n,
                      .k = k->count - from,
                      .a = to.scores + from * MAMBA_CHUNK + from,
                      .a_row = 1,
                      .a_step = MAMBA_CHUNK,
                      .b = to.C + from * n,
                      .b_row = n,
                      .c = sums,
                      .c_row = n,
                      .mode = TILE_SET});
    BY_DTYPE(r->c, chunk_put_sides, r, group, k, from, false, sums);
}
#undef CHUNK_LINES
