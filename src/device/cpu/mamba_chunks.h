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

/* ---- operands ----
 *
 * Terms of sums are fp32 numbers; or, with dot products, pairs of bf16 in their place (pairs.h), multiplied
 * in registers or in tiles (amx.h). A left operand's rows lie along k, or across it: in tiles of 16 lines by
 * 32 terms of k then. Rows of a right operand are k. Where tiles are used, k is padded with zeros in both to
 * whole groups. Pairs round what is computed here (states, gradients, L K, Z) to bf16, as published kernels
 * for GPUs do; sums, states and their gradients from chunk to chunk are fp32. */

typedef enum ChunkForm { CHUNK_NUMBERS, CHUNK_PAIRS, CHUNK_TILES } ChunkForm;

INLINE ChunkForm chunk_form(const MambaRun *r) {
    return !VEC_PAIRS || r->c != DTYPE_BF16 ? CHUNK_NUMBERS : VEC_AMX ? CHUNK_TILES : CHUNK_PAIRS;
}
/* Elements in a term. */
INLINE int64_t chunk_term(ChunkForm form) { return form == CHUNK_NUMBERS ? 1 : 2; }

/* fp32 numbers between rows of B, C and their gradients. */
INLINE int64_t chunk_state(const MambaRun *r) { return mamba_whole(r->s.state); }

/* A left operand along k, in rows of `padded` elements. */
INLINE void chunk_rows_typed(MatrixView from, int64_t padded, void *to, Dtype made, Dtype c) {
    for (int64_t t = 0; t < from.rows; t++)
        for (int64_t i = 0; i < padded; i += VLEN)
            put(to, t * padded + i, VLEN, made,
                mamba_get(tensor_at(from.at, t * from.row, c), i, from.cols, c));
}
static void chunk_rows(ChunkForm form, MatrixView from, int64_t padded, float *to, Dtype c) {
    if (form == CHUNK_NUMBERS)
        BY_DTYPE(c, chunk_rows_typed, from, padded, to, DTYPE_F32);
    else
        BY_DTYPE(c, chunk_rows_typed, from, padded, to, DTYPE_BF16);
}

/* A right operand: rows are k. */
static void chunk_right(ChunkForm form, MatrixView from, int64_t padded, float *to, Dtype c) {
#if VEC_PAIRS
    for (int64_t t = 0; form != CHUNK_NUMBERS && t < mamba_whole(from.rows); t += 2)
        for (int64_t i = 0; i < padded; i += VLEN) {
            Vec one = {0}, next = {0};
            if (t < from.rows) one = mamba_get(tensor_at(from.at, t * from.row, c), i, from.cols, c);
            if (t + 1 < from.rows)
                next = mamba_get(tensor_at(from.at, (t + 1) * from.row, c), i, from.cols, c);
            vec_store(to + t / 2 * padded + i, pairs_across(one, next));
        }
    if (form != CHUNK_NUMBERS) return;
#endif
    chunk_rows(form, from, padded, to, c);
}

/* A right operand from rows that lie along k, which are its columns: [k][MAMBA_CHUNK], with zeros for tokens
 * up to the next block. */
static void chunk_turned(ChunkForm form, MatrixView from, float *to, Dtype c) {
    const int64_t end = mamba_whole(from.rows), term = chunk_term(form), k = (from.cols + term - 1) / term;
#if VEC_PAIRS
    if (form != CHUNK_NUMBERS)
        transpose_pairs(from, to, MAMBA_CHUNK);
    else
#endif
        BY_DTYPE(c, transpose_block, from, to, MAMBA_CHUNK, 1);
    for (int64_t i = 0; i < k && from.rows < end; i++)
        memset(to + i * MAMBA_CHUNK + from.rows, 0, (size_t)(end - from.rows) * sizeof *to);
    for (int64_t i = k; form == CHUNK_TILES && i < mamba_whole(from.cols) / 2; i++)
        memset(to + i * MAMBA_CHUNK, 0, (size_t)end * sizeof *to);
}

/* A left operand across k, from rows of `lines` fp32 numbers that are k. Returns its place: `to`, or
 * the source. */
static const float *chunk_across(ChunkForm form, const float *from, int64_t row, int64_t k, int64_t lines,
                                 float *to) {
    const MatrixView view = {from, k, lines, row};
#if VEC_AMX
    if (form == CHUNK_TILES) {
        CHUNK_LINES float rows[MAMBA_PANEL / 2];
        chunk_rows(form, view, lines, rows, DTYPE_F32);
        for (int64_t i = 0; i < lines; i += AMX_GROUP) {
            const MatrixView part = {(const uint16_t *)(const void *)rows + i, k, AMX_GROUP, lines};
            amx_tiles_across(part, to + i / AMX_SIDE * AMX_WORDS, lines / AMX_SIDE * AMX_WORDS, AMX_WORDS);
        }
        return to;
    }
#endif
    if (form == CHUNK_NUMBERS && row == lines) return from;
    chunk_right(form, view, lines, to, DTYPE_F32);
    return to;
}

/* C = (add ? C : 0) + A B. Rows of A are a_row words apart; or they lie across k, `across` lines of them. */
typedef struct ChunkProduct {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, across;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool add;
} ChunkProduct;

static void chunk_product(ChunkForm form, ChunkProduct p) {
#if VEC_AMX
    if (form == CHUNK_TILES) {
        AmxTiles a = {(const char *)p.a, p.a_row * 4, 64, AMX_SIDE * p.a_row * 4};
        if (p.across) a = (AmxTiles){(const char *)p.a, 64, p.across / AMX_SIDE * AMX_BYTES, AMX_BYTES};
        amx_product((TileProduct){.m = p.m,
                                  .n = p.n,
                                  .groups = amx_groups(p.k),
                                  .a = a,
                                  .parts = 1,
                                  .b = p.b,
                                  .b_row = p.b_row,
                                  .c = p.c,
                                  .c_row = p.c_row,
                                  .add = p.add});
        return;
    }
#endif
    product((Product){.pairs = form == CHUNK_PAIRS,
                      .m = p.m,
                      .n = p.n,
                      .k = (p.k + chunk_term(form) - 1) / chunk_term(form),
                      .a = p.a,
                      .a_row = p.across ? 1 : p.a_row,
                      .a_step = p.across ? p.across : 1,
                      .b = p.b,
                      .b_row = p.b_row,
                      .c = p.c,
                      .c_row = p.c_row,
                      .mode = p.add ? TILE_ADD : TILE_SET});
}

/* Tiles are set up for a kernel, and given back after it. */
INLINE void chunk_tiles_begin(ChunkForm form) {
#if VEC_AMX
    if (form == CHUNK_TILES) amx_begin();
#endif
    (void)form;
}
INLINE void chunk_tiles_end(ChunkForm form) {
#if VEC_AMX
    if (form == CHUNK_TILES) amx_end();
#endif
    (void)form;
}

/* `count` of the chunk's tokens of B or C, from its `from`-th on, of head's group. */
static MatrixView chunk_sides(const MambaRun *r, const void *tensor, const MambaChunk *k, int64_t head,
                              int64_t from, int64_t count) {
    const void *at = tensor_at(tensor, mamba_group_at(&r->s, k->first + from, head), r->c);
    return (MatrixView){at, count, r->s.state, r->s.row};
}

/* ---- what heads of a group share ---- */

INLINE int64_t chunk_block(const MambaChunk *k, int64_t from) {
    return min_i64(MAMBA_BLOCK, k->count - from);
}

/* Block `from` of tokens: B and C as right operands, and the block's rows of K. */
static void mamba_scores(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from) {
    const ChunkForm form = chunk_form(r);
    const int64_t head = group * (r->s.heads / r->s.groups), n = chunk_state(r), rows = chunk_block(k, from),
                  row = n / chunk_term(form), at = from * row;
    const MambaShared to = mamba_shared(r, group, k);
    CHUNK_LINES float turned[MAMBA_STATE * MAMBA_CHUNK], left[MAMBA_BLOCK * MAMBA_STATE];
    const MatrixView C = chunk_sides(r, r->in.C, k, head, from, rows);
    chunk_tiles_begin(form);
    chunk_right(form, chunk_sides(r, r->in.B, k, head, from, rows), n, to.B + at, r->c);
    chunk_right(form, C, n, to.C + at, r->c);
    chunk_rows(form, C, n, left, r->c);
    chunk_turned(form, chunk_sides(r, r->in.B, k, head, 0, from + rows), turned, r->c);
    chunk_product(form, (ChunkProduct){.m = rows,
                                       .n = from + MAMBA_BLOCK,
                                       .k = r->s.state,
                                       .a = left,
                                       .a_row = row,
                                       .b = turned,
                                       .b_row = MAMBA_CHUNK,
                                       .c = to.scores + from * MAMBA_CHUNK,
                                       .c_row = MAMBA_CHUNK});
    chunk_tiles_end(form);
}

/* ---- a head ---- */

typedef struct ChunkPass {
    const MambaRun *r;
    const MambaChunk *k;
    ChunkForm form;
    MambaSteps m;
    MambaShared shared;
    MambaTerms to;
    CHUNK_LINES float since[MAMBA_CHUNK], rest[MAMBA_CHUNK]; /* exp(c_t), exp(c_z - c_t) */
    float through;                                           /* exp(c_z) */
    CHUNK_LINES float mixed[MAMBA_SQUARE];                   /* L K */
    CHUNK_LINES float right[MAMBA_SQUARE];                   /* the same as an operand, if pairs */
    CHUNK_LINES float along[MAMBA_SQUARE];                   /* V */
    CHUNK_LINES float turned[MAMBA_STATE * MAMBA_CHUNK];     /* B, turned */
    /* Sums for each token: x_u . exp(c_z - c_u) G B_u; and of G with S. */
    CHUNK_LINES float passed[MAMBA_CHUNK];
    double kept;
} ChunkPass;

/* A slab: rows p .. p+rows-1 of the head's state. */
typedef struct ChunkSlab {
    int64_t p, rows;
    MatrixView x_of, dy_of;                            /* in tensors */
    CHUNK_LINES float x[MAMBA_PANEL], dy[MAMBA_PANEL]; /* left operands, rows of MAMBA_SLAB */
    CHUNK_LINES float turned[MAMBA_PANEL];             /* x, turned */
    CHUNK_LINES float dx[MAMBA_PANEL];                 /* dx', [MAMBA_SLAB][T] */
    CHUNK_LINES float wide[MAMBA_PANEL],
        tiles[MAMBA_PANEL]; /* dy, dx' in fp32, [T][MAMBA_SLAB]; an operand */
    CHUNK_LINES float G[MAMBA_SLAB * MAMBA_STATE], operand[MAMBA_SLAB * MAMBA_STATE];
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
    w->r = r, w->k = k, w->form = chunk_form(r), w->kept = 0;
    w->shared = mamba_shared(r, mamba_group(&r->s, head), k), w->to = mamba_terms(r, head, k);
    memset(w->passed, 0, sizeof w->passed);
    memset(w->m.step, 0, sizeof w->m.step);
    BY_DTYPE(r->c, mamba_steps, r, head, k->first, k->count, &w->m);
    chunk_factors(w, logs);
    if (k->after) chunk_turned(w->form, chunk_sides(r, r->in.B, k, head, 0, k->count), w->turned, r->c);
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

/* L K as a right operand. */
static const float *chunk_mixed(ChunkPass *w) {
#if VEC_PAIRS
    const int64_t count = w->k->count;
    for (int64_t t = 0; w->form != CHUNK_NUMBERS && t < mamba_whole(count); t += 2)
        for (int64_t u = 0; u < mamba_whole(t + 1); u += VLEN) {
            const float *at = w->mixed + t * MAMBA_CHUNK + u;
            Vec one = t < count ? vec_load(at) : (Vec){0};
            Vec next = t + 1 < count ? vec_load(at + MAMBA_CHUNK) : (Vec){0};
            vec_store(w->right + t / 2 * MAMBA_CHUNK + u, pairs_across(one, next));
        }
    if (w->form != CHUNK_NUMBERS) return w->right;
#endif
    return w->mixed;
}

/* ---- slabs ---- */

static void chunk_begin_slab(const ChunkPass *w, int64_t p, ChunkSlab *s) {
    const MambaRun *r = w->r;
    const int64_t first = w->k->first, head = w->m.head;
    s->p = p, s->rows = min_i64(MAMBA_SLAB, r->s.head_dim - p);
    s->x_of = (MatrixView){tensor_at(r->in.x, mamba_x_at(&r->s, first, head, p), r->c), w->k->count, s->rows,
                           r->s.row};
    s->dy_of = (MatrixView){tensor_at(r->dy, mamba_y_at(&r->s, first, head, p), r->c), w->k->count, s->rows,
                            r->s.heads * r->s.head_dim};
    chunk_rows(w->form, s->x_of, MAMBA_SLAB, s->x, r->c);
    chunk_rows(w->form, s->dy_of, MAMBA_SLAB, s->dy, r->c);
    chunk_rows(CHUNK_NUMBERS, s->dy_of, MAMBA_SLAB, s->wide, r->c);
    chunk_turned(w->form, s->x_of, s->turned, r->c);
}

/* A product of the chunk's rows of x or dy. */
INLINE ChunkProduct chunk_times(const ChunkPass *w, const ChunkSlab *s, const float *rows, int64_t from,
                                int64_t count) {
    const int64_t row = MAMBA_SLAB / chunk_term(w->form);
    return (ChunkProduct){.m = count, .k = s->rows, .a = rows + from * row, .a_row = row, .add = s->p > 0};
}

/* V += the slab's part. */
static void chunk_along(ChunkPass *w, const ChunkSlab *s) {
    for (int64_t from = 0; from < w->k->count; from += MAMBA_BLOCK) {
        ChunkProduct p = chunk_times(w, s, s->dy, from, chunk_block(w->k, from));
        p.n = from + MAMBA_BLOCK, p.b = s->turned, p.b_row = MAMBA_CHUNK;
        p.c = w->along + from * MAMBA_CHUNK, p.c_row = MAMBA_CHUNK;
        chunk_product(w->form, p);
    }
}

/* A row of dB or dC += the slab's part, before the factors of tokens; sides: N by the slab's rows. */
static void chunk_to_sides(const ChunkPass *w, const ChunkSlab *s, const float *rows, const float *sides,
                           float *to) {
    ChunkProduct p = chunk_times(w, s, rows, 0, w->k->count);
    p.n = p.b_row = p.c_row = chunk_state(w->r), p.b = sides, p.c = to;
    chunk_product(w->form, p);
}

/* Rows of a head's state in fp32, padded, and the same as an operand. */
static MatrixView chunk_state_of(const ChunkPass *w, float *state, const ChunkSlab *s) {
    int64_t n = w->r->s.state;
    return (MatrixView){state + mamba_state_at(&w->r->s, w->m.head, s->p), s->rows, n, n};
}

/* x at p and tokens from u on, out of the turned operand. */
INLINE Vec chunk_x(const ChunkPass *w, const ChunkSlab *s, int64_t p, int64_t u) {
    if (w->form == CHUNK_NUMBERS) return vec_load(s->turned + p * MAMBA_CHUNK + u);
    VecBits pair = (VecBits)vec_load(s->turned + p / 2 * MAMBA_CHUNK + u);
    return (Vec)(p % 2 ? pair & 0xffff0000 : pair << 16);
}

/* Through the state after the chunk: dx', and the part of dB. */
static void chunk_after(ChunkPass *w, ChunkSlab *s) {
    const int64_t count = w->k->count, n = chunk_state(w->r);
    const MatrixView G = chunk_state_of(w, w->r->carry, s);
    chunk_rows(CHUNK_NUMBERS, G, n, s->G, DTYPE_F32);
    chunk_right(w->form, G, n, s->operand, DTYPE_F32);
    chunk_to_sides(w, s, s->x, s->operand, w->to.dB);
    chunk_rows(w->form, G, n, s->operand, DTYPE_F32);
    chunk_product(w->form, (ChunkProduct){.m = s->rows,
                                          .n = mamba_whole(count),
                                          .k = w->r->s.state,
                                          .a = s->operand,
                                          .a_row = n / chunk_term(w->form),
                                          .b = w->turned,
                                          .b_row = MAMBA_CHUNK,
                                          .c = s->dx,
                                          .c_row = MAMBA_CHUNK});
    for (int64_t u = 0; u < count; u += VLEN) {
        Vec rest = vec_load(w->rest + u), sum = {0};
        for (int64_t p = 0; p < s->rows; p++) {
            float *dx = s->dx + p * MAMBA_CHUNK + u;
            Vec d = vec_load(dx) * rest;
            sum = vec_multiply_add(sum, d, chunk_x(w, s, p, u));
            vec_store(dx, d);
        }
        vec_store(w->passed + u, vec_load(w->passed + u) + sum);
    }
}

/* dx' += the terms within the chunk. */
static void chunk_within(const ChunkPass *w, const float *mixed, ChunkSlab *s) {
    const int64_t count = w->k->count, term = chunk_term(w->form);
    const float *dy = chunk_across(w->form, s->wide, MAMBA_SLAB, count, MAMBA_SLAB, s->tiles);
    for (int64_t from = 0; from < count; from += MAMBA_BLOCK)
        chunk_product(w->form, (ChunkProduct){.m = s->rows,
                                              .n = MAMBA_BLOCK,
                                              .k = count - from,
                                              .a = dy + from / term * MAMBA_SLAB,
                                              .across = MAMBA_SLAB,
                                              .b = mixed + from / term * MAMBA_CHUNK + from,
                                              .b_row = MAMBA_CHUNK,
                                              .c = s->dx + from,
                                              .c_row = MAMBA_CHUNK,
                                              .add = w->k->after});
}

/* Through the state before the chunk: the part of dC, and the gradient of that state, which replaces G. */
static void chunk_before(ChunkPass *w, ChunkSlab *s) {
    const int64_t count = w->k->count, n = chunk_state(w->r), row = w->r->s.state;
    const MatrixView S = chunk_state_of(w, w->k->before, s);
    chunk_right(w->form, S, n, s->operand, DTYPE_F32);
    chunk_to_sides(w, s, s->dy, s->operand, w->to.dC);
    Vec kept = {0};
    for (int64_t p = 0; w->k->after && p < s->rows; p++)
        for (int64_t i = 0; i < n; i += VLEN) {
            Vec G = vec_load(s->G + p * n + i) * w->through;
            kept = vec_multiply_add(kept, G, mamba_get((const float *)S.at + p * row, i, row, DTYPE_F32));
            vec_store(s->G + p * n + i, G);
        }
    w->kept += (double)vec_sum(kept);
    for (int64_t t = 0; t < count; t++)
        for (int64_t i = 0; i < MAMBA_SLAB; i += VLEN)
            vec_store(s->wide + t * MAMBA_SLAB + i, vec_load(s->wide + t * MAMBA_SLAB + i) * w->since[t]);
    const float *dy = chunk_across(w->form, s->wide, MAMBA_SLAB, count, MAMBA_SLAB, s->tiles);
    chunk_product(w->form, (ChunkProduct){.m = s->rows,
                                          .n = n,
                                          .k = count,
                                          .a = dy,
                                          .across = MAMBA_SLAB,
                                          .b = w->shared.C,
                                          .b_row = n,
                                          .c = s->G,
                                          .c_row = n,
                                          .add = w->k->after});
    float *to = w->r->carry + mamba_state_at(&w->r->s, w->m.head, s->p);
    for (int64_t p = 0; p < s->rows; p++) memcpy(to + p * row, s->G + p * n, (size_t)row * sizeof *to);
}

INLINE void chunk_put_dx(const ChunkPass *w, ChunkSlab *s, Dtype c) {
    const MambaRun *r = w->r;
    const float skip = r->in.D[w->m.head];
    const MatrixView turned = {s->dx, s->rows, w->k->count, MAMBA_CHUNK};
    transpose_block(turned, s->wide, MAMBA_SLAB, 1, DTYPE_F32);
    for (int64_t t = 0; t < w->k->count; t++) {
        void *to = tensor_to(r->out.x, mamba_x_at(&r->s, w->k->first + t, w->m.head, s->p), c);
        const void *dy = tensor_at(s->dy_of.at, t * s->dy_of.row, c);
        EACH_VECTOR(i, left, s->rows)
        put(to, i, left, c,
            w->m.step[t] * vec_load(s->wide + t * MAMBA_SLAB + i) + skip * get(dy, i, left, c));
    }
}

static void chunk_slab(ChunkPass *w, const float *mixed, int64_t p) {
    ChunkSlab s;
    chunk_begin_slab(w, p, &s);
    chunk_along(w, &s);
    if (w->k->after) chunk_after(w, &s);
    chunk_within(w, mixed, &s);
    if (w->k->before) chunk_before(w, &s);
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

/* Multiplies a row of dB or dC by its token's factor; returns its sum with `by`, a row of N elements. */
INLINE float chunk_scale(const ChunkPass *w, float *row, float factor, const void *by, Dtype c) {
    Vec sum = {0};
    EACH_VECTOR(i, left, w->r->s.state) {
        Vec x = vec_load(row + i) * factor;
        vec_store(row + i, x);
        sum = vec_multiply_add(sum, x, get(by, i, left, c));
    }
    return vec_sum(sum);
}

/* Completes the head's parts of dB and dC. read[t]: exp(c_t) dy_t . S C_t. */
INLINE void chunk_scale_sides(const ChunkPass *w, float *read, Dtype c) {
    const int64_t n = chunk_state(w->r), count = w->k->count;
    const MatrixView C = chunk_sides(w->r, w->r->in.C, w->k, w->m.head, 0, count);
    for (int64_t t = 0; t < count; t++) {
        const void *at = tensor_at(C.at, t * C.row, c);
        read[t] = w->k->before ? chunk_scale(w, w->to.dC + t * n, w->since[t], at, c) : 0;
        if (w->k->after) chunk_scale(w, w->to.dB + t * n, w->rest[t] * w->m.step[t], at, c);
    }
}

/* The gradients of steps and of log keep, in the form that mamba_steps_backward takes. */
static void chunk_steps(const ChunkPass *w, MambaSums *out) {
    ChunkSums sums;
    float read[MAMBA_CHUNK];
    double later = 0, passed = w->kept;
    out->skip = 0;
    BY_DTYPE(w->r->c, chunk_scale_sides, w, read);
    chunk_terms(w, &sums);
    for (int64_t t = 0; t < w->k->count; t++) passed += (double)(w->m.step[t] * w->passed[t]);
    for (int64_t t = w->k->count - 1; t >= 0; t--) {
        float column = w->m.step[t] * sums.column[t];
        passed -= (double)(w->m.step[t] * w->passed[t]);
        later += (double)sums.row[t] - (double)column + (double)read[t];
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
    const float *mixed = chunk_mixed(&w);
    chunk_tiles_begin(w.form);
    for (int64_t p = 0; p < r->s.head_dim; p += MAMBA_SLAB) chunk_slab(&w, mixed, p);
    chunk_tiles_end(w.form);
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
                MambaTerms terms = mamba_terms(r, h, k);
                sum += vec_load((is_C ? terms.dC : terms.dB) + t * n + i);
            }
            put(to, i, left, c, sum);
        }
    }
}

/* Rows of the sum of Z over heads, in the place of K; then dC. */
static void mamba_sum_C(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from) {
    const ChunkForm form = chunk_form(r);
    const int64_t heads = r->s.heads / r->s.groups, rows = chunk_block(k, from), end = from + MAMBA_BLOCK,
                  n = chunk_state(r);
    const MambaShared to = mamba_shared(r, group, k);
    CHUNK_LINES float sums[MAMBA_BLOCK * MAMBA_STATE], left[MAMBA_BLOCK * MAMBA_CHUNK];
    float *Z = to.scores + from * MAMBA_CHUNK;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t u = 0; u < end; u += VLEN) {
            const int64_t at = (from + t) * MAMBA_CHUNK + u;
            Vec sum = vec_load(mamba_terms(r, group * heads, k).Z + at);
            for (int64_t h = 1; h < heads; h++) sum += vec_load(mamba_terms(r, group * heads + h, k).Z + at);
            vec_store(Z + t * MAMBA_CHUNK + u, sum);
        }
    chunk_tiles_begin(form);
    chunk_rows(form, (MatrixView){Z, rows, end, MAMBA_CHUNK}, end, left, DTYPE_F32);
    chunk_product(form, (ChunkProduct){.m = rows,
                                       .n = n,
                                       .k = from + rows,
                                       .a = left,
                                       .a_row = end / chunk_term(form),
                                       .b = to.B,
                                       .b_row = n,
                                       .c = sums,
                                       .c_row = n});
    chunk_tiles_end(form);
    BY_DTYPE(r->c, chunk_put_sides, r, group, k, from, true, sums);
}

static void mamba_sum_B(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from) {
    const ChunkForm form = chunk_form(r);
    const int64_t n = chunk_state(r), row = n / chunk_term(form);
    const MambaShared to = mamba_shared(r, group, k);
    CHUNK_LINES float sums[MAMBA_BLOCK * MAMBA_STATE], left[MAMBA_BLOCK * MAMBA_CHUNK];
    chunk_tiles_begin(form);
    const float *Z = chunk_across(form, to.scores + from * MAMBA_CHUNK + from, MAMBA_CHUNK, k->count - from,
                                  MAMBA_BLOCK, left);
    chunk_product(form, (ChunkProduct){.m = chunk_block(k, from),
                                       .n = n,
                                       .k = k->count - from,
                                       .a = Z,
                                       .across = MAMBA_BLOCK,
                                       .b = to.C + from * row,
                                       .b_row = n,
                                       .c = sums,
                                       .c_row = n});
    chunk_tiles_end(form);
    BY_DTYPE(r->c, chunk_put_sides, r, group, k, from, false, sums);
}
#undef CHUNK_LINES
