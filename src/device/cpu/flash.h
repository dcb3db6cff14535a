/* Attention in blocks of FLASH_BLOCK queries and keys, with online softmax (Dao, "FlashAttention-2", 2023).
 * Part of kernels_all.h.
 *
 * Scores are laid out so that vectors run along the dimension that needs no reduction (tile.h has the
 * products). Forward holds a column of scores for each query: lanes are queries, so maxima and sums over keys
 * need no operation across lanes. Backward holds a row for each query: lanes are keys, so the transposed
 * copies of K and V are made once for a key block and serve all its queries. Scores are in units of log 2.
 *
 * Key blocks that lie wholly after the queries, or wholly before their first keys, are skipped; the mask is
 * applied only in blocks that a limit cuts. In a block that causality cuts, products are computed by strips
 * of STRIP lanes, each over the keys that one of its queries sees; the rest is zero. Key blocks begin at
 * multiples of FLASH_BLOCK, wherever the queries begin, so that a query's sums do not depend on which other
 * queries are in its block.
 *
 * With dot products of bf16 pairs, the operands in bf16 are such pairs (pairs.h). Probabilities and the
 * gradients of scores are rounded to bf16 before they are multiplied; scores, maxima and sums are fp32. In a
 * sum over an odd number of keys or queries, the second half of the last pair is a zero probability. Two
 * measures keep the roundings from accumulating along what all keys have in common (a bias). First, a row is
 * divided by the sum of its rounded probabilities. Second, the gradients of a row's scores sum to zero, but
 * rounded ones do not quite; so for each row and key block, dQ includes the rounding residual times the
 * block's first key, if the row sees that key.
 *
 * With AMX, heads whose width is a whole number of tiles use tiles for bf16 products (amx.h); other heads use
 * pairs. A product's first operand lies in rows (K; q, dout and the gradients of scores), or in tiles that
 * are packed across rows once for several blocks (V; also q^T and dout^T, so that dK and dV are sums
 * [D][keys] over the same pairs of queries that lanes of keys make). The second operand is pairs, as always.
 * Groups of 32 are padded with zeros. dQ takes each gradient of a score as two bf16 numbers: the rounded
 * value, and its rounded residual. That is 16 bits, so the sum over a row stays near zero. Strips are two
 * tiles.
 *
 * A thread processes a few blocks at once, called units: in forward, blocks of queries that go over the same
 * keys; in backward, blocks of keys that the same queries go over. Operands that units share are packed
 * once. */

enum { B = FLASH_BLOCK, STRIP = FLASH_STRIP };
_Static_assert(STRIP % VLEN == 0 && B % STRIP == 0, "strips are whole vectors");

/* ---- operands ---- */

/* Takes the next panel from a thread's scratch. */
INLINE float *next_panel(float **scratch, int64_t floats) {
    float *panel = *scratch;
    *scratch += flash_panel(floats);
    return panel;
}

/* Whether terms of sums are bf16 pairs. */
INLINE bool flash_pairs(const Flash *f) { return VEC_PAIRS && f->c == DTYPE_BF16; }
/* Whether products use tiles: the head's width must be whole tiles. */
INLINE bool flash_tiles(const Flash *f) { return VEC_AMX && flash_pairs(f) && f->s.head_dim % 16 == 0; }
INLINE int64_t flash_term(const Flash *f) { return flash_pairs(f) ? 2 : 1; }
INLINE int64_t flash_terms(const Flash *f, int64_t elements) {
    return (elements + flash_term(f) - 1) / flash_term(f);
}

/* Terms of a row that is summed over its elements, including its padding. */
INLINE int64_t flash_along(const Flash *f) {
#if VEC_AMX
    if (flash_tiles(f)) return amx_groups(f->s.head_dim) * AMX_SIDE;
#endif
    return flash_padded(f->s.head_dim) / flash_term(f);
}

/* Packs rows for sums over their elements: to[rows][flash_along]. */
static void terms_along(const Flash *f, const void *from, int64_t row, int64_t rows, float *to) {
    const int64_t dim = f->s.head_dim, along = flash_along(f);
    if (!flash_pairs(f)) {
        const MatrixView view = {from, rows, dim, row};
        BY_DTYPE(f->c, widen_typed, view, along, to);
        return;
    }
    for (int64_t r = 0; r < rows; r++, to += along) {
        memset(to + dim / 2, 0, (size_t)(along - dim / 2) * sizeof *to);
        memcpy(to, tensor_at(from, r * row, f->c), (size_t)dim * sizeof(uint16_t));
    }
}

/* Packs rows for sums over rows: to[rows / term][padded]. */
static void terms_across(const Flash *f, const void *from, int64_t row, int64_t rows, float *to) {
#if VEC_PAIRS
    const int64_t dim = f->s.head_dim, padded = flash_padded(dim);
    for (int64_t r = 0; flash_pairs(f) && r < rows; r += 2, to += padded)
        for (int64_t i = 0; i < padded; i += VLEN)
            vec_store(to + i,
                      pairs_of_rows((const uint16_t *)from + r * row + i, row, dim - i, r + 1 < rows));
    if (flash_pairs(f)) return;
#endif
    terms_along(f, from, row, rows, to);
}

#if VEC_AMX
/* Packs rows for sums over rows, as the first operand of a product, in tiles of 16 elements by 32 rows:
 * to[dim / 16][2]. */
static void tiles_across(const Flash *f, const void *from, int64_t row, int64_t rows, float *to) {
    for (int64_t i = 0; i < f->s.head_dim; i += AMX_GROUP) {
        const MatrixView part = {(const uint16_t *)from + i, rows, min_i64(AMX_GROUP, f->s.head_dim - i),
                                 row};
        amx_tiles_across(part, to + i / AMX_SIDE * 2 * AMX_WORDS, AMX_WORDS, 2 * AMX_WORDS);
    }
}
INLINE AmxTiles tiles_of_across(const float *tiles) {
    return (AmxTiles){(const char *)tiles, 64, AMX_BYTES, 2 * AMX_BYTES};
}
/* The tiles of rows packed by terms_along, from row `first` on. */
INLINE AmxTiles tiles_of_along(const Flash *f, const float *rows, int64_t first) {
    int64_t line = flash_along(f) * (int64_t)sizeof *rows;
    return (AmxTiles){(const char *)rows + first * line, line, 64, AMX_SIDE * line};
}
INLINE int64_t whole_tiles(int64_t rows) { return (rows + AMX_SIDE - 1) / AMX_SIDE * AMX_SIDE; }
#endif

/* Packs rows for sums over rows, in the form that the product reads. */
static void rows_across(const Flash *f, const void *from, int64_t row, int64_t rows, float *to) {
#if VEC_AMX
    if (flash_tiles(f)) {
        tiles_across(f, from, row, rows, to);
        return;
    }
#endif
    terms_across(f, from, row, rows, to);
}

/* Packs rows transposed, so that rows are lanes, for sums over their elements: to[dim / term][B], or
 * [flash_along][B] for tiles. Lanes from `rows` on are zero. fp32 numbers are multiplied by the factor, pairs
 * are not. */
static void transpose_rows(const Flash *f, MatrixView from, float factor, float *to, Dtype c) {
#if VEC_PAIRS
    if (flash_pairs(f))
        transpose_pairs(from, to, B);
    else
#endif
        BY_DTYPE(c, transpose_block, from, to, B, factor);
    int64_t terms = flash_terms(f, from.cols);
    for (int64_t i = 0; from.rows < B && i < terms; i++)
        memset(to + i * B + from.rows, 0, (size_t)(B - from.rows) * sizeof(float));
    if (flash_tiles(f)) memset(to + terms * B, 0, (size_t)((flash_along(f) - terms) * B) * sizeof(float));
}

INLINE void write_row_typed(const float *from, int64_t dim, float factor, void *to, Dtype c) {
    int64_t whole = dim / VLEN * VLEN;
    for (int64_t i = 0; i < whole; i += VLEN) put(to, i, VLEN, c, vec_load(from + i) * factor);
    if (whole < dim) put(to, whole, dim - whole, c, vec_load(from + whole) * factor);
}
/* Writes fp32 rows, padded to whole vectors, to rows `row` elements apart. */
static void write_rows(MatrixView from, float factor, void *to, int64_t row, Dtype c) {
    for (int64_t r = 0; r < from.rows; r++)
        BY_DTYPE(c, write_row_typed, (const float *)from.at + r * from.row, from.cols, factor,
                 tensor_to(to, r * row, c));
}

static const void *query_at(const Flash *f, const void *tensor, int64_t head, int64_t first) {
    return tensor_at(tensor, first * f->q_row + head * f->s.head_dim, f->c);
}
static const void *keys_at(const Flash *f, const void *tensor, int64_t kv_head, int64_t key) {
    return tensor_at(tensor, key * f->kv_row + kv_head * f->s.head_dim, f->c);
}
/* Prefetches a block of keys before `end`, and their values. */
static void ahead_keys(Ahead *a, const Flash *f, int64_t kv_head, int64_t key, int64_t end) {
    int64_t rows = min_i64(B, end - key);
    ahead_add(a, keys_at(f, f->k, kv_head, key), f->kv_row, rows, f->s.head_dim, f->c);
    ahead_add(a, keys_at(f, f->v, kv_head, key), f->kv_row, rows, f->s.head_dim, f->c);
}

/* The factor that scales scores, to units of log 2. */
INLINE float score_factor(const Flash *f) {
    return f->s.scale > 0 ? 1.44269504f * f->s.scale : 1.44269504f / __builtin_sqrtf((float)f->s.head_dim);
}
/* The factor that scores still need: pairs were not multiplied when packed. */
INLINE float score_left(const Flash *f) { return flash_pairs(f) ? score_factor(f) : 1; }
INLINE float cap_factor(const Flash *f) { return 1.44269504f * f->s.cap; }

/* Initial maximum of a row. Without a sink it is finite, so that -inf minus it is -inf, not NaN. */
INLINE float sink_score(const Flash *f, int64_t head) {
    return f->s.sinks ? 1.44269504f * f->s.sinks[head] : -1e30f;
}
INLINE float sink_total(const Flash *f) { return f->s.sinks ? 1 : 0; }

/* ---- forward ---- */

/* The queries of one block and head; lanes are queries. */
typedef struct ForwardUnit {
    const Flash *f;
    int64_t first, count, head;
    int64_t key, end;      /* first key of the first key block that it sees; end of its keys */
    float *queries, *sums; /* packed by transpose_rows, with the factor; [D][B], before the division */
    float top[B], total[B];
    int32_t last_key[B], first_key[B];
} ForwardUnit;

/* A block of keys, and a unit's results for it. */
typedef struct ForwardKeys {
    int64_t first, count;
    float *k, *v;  /* [B][flash_along]; [B / term][D padded], or packed by tiles_across */
    float *scores; /* [B keys][B]; then probabilities [B keys / term][B] */
    float factor[B];
    Ahead ahead;
} ForwardKeys;

static void *unit_out(const ForwardUnit *u) {
    const Flash *f = u->f;
    return tensor_to(f->out, (u->first * f->s.heads + u->head) * f->s.head_dim, f->c);
}

/* Starts unit `number`. Units are numbered by block of queries, then by head within the group. */
static void forward_start(ForwardUnit *u, const Flash *f, int64_t kv_head, int64_t number, float **scratch) {
    int64_t group = f->s.heads / f->s.kv_heads;
    u->f = f;
    u->first = number / group * B;
    u->count = min_i64(B, f->s.tokens - u->first);
    u->head = kv_head * group + number % group;
    u->queries = next_panel(scratch, B * f->s.head_dim);
    u->sums = next_panel(scratch, B * f->s.head_dim);
    for (int64_t i = 0; i < B; i++) {
        int64_t t = u->first + min_i64(i, u->count - 1);
        u->last_key[i] = (int32_t)(f->offset + t);
        u->first_key[i] = (int32_t)flash_first(f, t);
        u->top[i] = sink_score(f, u->head);
        u->total[i] = sink_total(f);
    }
    u->key = u->first_key[0] / B * B;
    u->end = u->last_key[B - 1] + 1;
}

static void forward_queries(const ForwardUnit *u) {
    const Flash *f = u->f;
    const MatrixView q = {query_at(f, f->q, u->head, u->first), u->count, f->s.head_dim, f->q_row};
    transpose_rows(f, q, score_factor(f), u->queries, f->c);
}

/* Lanes from .. end-1 of a block, which go through all products together, and the lanes in one product. With
 * tiles these are half a block, so that the results of one product are still in the L1 cache for the next. */
typedef struct Lanes {
    int64_t from, end, strip;
} Lanes;
INLINE int64_t lanes_together(const Flash *f) { return flash_tiles(f) ? B / 2 : B; }
INLINE Lanes lanes_from(const Flash *f, int64_t from, bool cut) {
    int64_t all = lanes_together(f);
    return (Lanes){from, from + all, cut && !flash_tiles(f) ? STRIP : all};
}

/* Number of keys of the block that some query among the first `lanes` sees. */
INLINE int64_t keys_seen(const ForwardUnit *u, const ForwardKeys *b, int64_t lanes) {
    return max_i64(0, min_i64(b->count, u->last_key[lanes - 1] + 1 - b->first));
}

static void forward_mask(const ForwardUnit *u, const ForwardKeys *b, Lanes l) {
    for (int64_t i = l.from; i < l.end; i += VLEN) {
        VecInt last = vec_load_int(u->last_key + i), first = vec_load_int(u->first_key + i);
        for (int64_t k = 0, keys = keys_seen(u, b, i + VLEN); k < keys; k++) {
            int32_t at = (int32_t)(b->first + k);
            float *s = b->scores + k * B + i;
            VecInt seen = (VecInt)(last >= at) & (VecInt)(first <= at);
            vec_store(s, vec_select(seen, vec_load(s), vec_set(-HUGE_VALF)));
        }
    }
}

static void forward_cap(const ForwardUnit *u, const ForwardKeys *b, Lanes l) {
    float cap = cap_factor(u->f), factor = score_left(u->f);
    for (int64_t k = 0; k < b->count; k++)
        for (int64_t i = l.from; i < l.end; i += VLEN) {
            float *at = b->scores + k * B + i;
            vec_store(at, vec_tanh(vec_load(at) * factor / cap) * cap);
        }
}

/* The largest of a column of vectors, in independent chains to hide latency. */
INLINE Vec column_max(const float *column, int64_t rows, Vec top) {
    enum { CHAINS = 4 };
    Vec chain[CHAINS] = {top, top, top, top};
    int64_t k = 0;
    for (; k + CHAINS <= rows; k += CHAINS)
        for (int c = 0; c < CHAINS; c++) chain[c] = vec_max(vec_load(column + (k + c) * B), chain[c]);
    for (; k < rows; k++) chain[0] = vec_max(vec_load(column + k * B), chain[0]);
    return vec_max(vec_max(chain[0], chain[1]), vec_max(chain[2], chain[3]));
}

/* Turns a column of scores, of which the first `keys` are seen, into probabilities; returns their sum. */
INLINE Vec column_softmax(float *column, int64_t keys, int64_t count, Vec top) {
    Vec total = {0};
    for (int64_t k = 0; k < keys; k++) {
        Vec p = vec_exp2_bounded(vec_load(column + k * B) - top);
        vec_store(column + k * B, p);
        total += p;
    }
    for (int64_t k = keys; k < count; k++) vec_store(column + k * B, (Vec){0});
    return total;
}

#if VEC_PAIRS
/* 2^x in few instructions: 0 below -126, because a number below 2^-126 costs an instruction 200 cycles; NaN
 * stays NaN. One instruction extracts the fractional part, for which a polynomial was fitted (minimax, error
 * 1.4e-7, exactly 1 at 0); another applies the whole part as the exponent. */
INLINE Vec pair_exp2(Vec x) {
    enum { DOWN = 1 };
    Vec f = (Vec)_mm512_reduce_ps((__m512)x, DOWN), p = vec_set(1.86713005e-3f);
    p = p * f + 9.01703071e-3f;
    p = p * f + 5.57999127e-2f;
    p = p * f + 2.40164444e-1f;
    p = p * f + 6.93151295e-1f;
    p = p * f + 1.0f;
    __mmask16 here = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return (Vec)_mm512_maskz_scalef_ps(here, (__m512)p, (__m512)x);
}

/* Turns scores into pairs of probabilities, which overwrite the first half of the column. Returns the sum of
 * the rounded probabilities, so that a row's weights sum to 1. */
INLINE Vec column_softmax_pairs(float *column, int64_t keys, int64_t count, float left, Vec top) {
    Vec total = {0}, factor = vec_set(left);
    int64_t k = 0;
    for (; k < keys; k += 2) {
        const float *at = column + k * B;
        Vec one = pair_exp2(vec_multiply_add(-top, vec_load(at), factor)), next = {0};
        if (k + 1 < keys) next = pair_exp2(vec_multiply_add(-top, vec_load(at + B), factor));
        Vec pairs = pairs_across(one, next);
        vec_store(column + k / 2 * B, pairs);
        total += (Vec)((VecBits)pairs << 16) + (Vec)((VecBits)pairs & 0xffff0000);
    }
    for (; k < count; k += 2) vec_store(column + k / 2 * B, (Vec){0});
    return total;
}
#endif

/* Turns scores into probabilities relative to the new maximum. b->factor is what earlier sums must be
 * multiplied by. */
INLINE void forward_softmax_of(ForwardUnit *u, ForwardKeys *b, Lanes l, const bool tiles) {
    (void)tiles;
    for (int64_t i = l.from; i < l.end; i += VLEN) {
        int64_t keys = keys_seen(u, b, i + VLEN);
        float *column = b->scores + i;
        Vec old = vec_load(u->top + i), top, total;
#if VEC_PAIRS
        if (flash_pairs(u->f)) {
            float left = u->f->s.cap > 0 ? 1 : score_left(u->f);
            top = vec_max(column_max(column, keys, vec_set(-HUGE_VALF)) * left, old);
            int64_t count = tiles ? (b->count + 31) / 32 * 32 : b->count; /* tiles multiply whole groups */
            total = column_softmax_pairs(column, keys, count, left, top);
        } else
#endif
        {
            top = column_max(column, keys, old);
            total = column_softmax(column, keys, b->count, top);
        }
        Vec factor = vec_exp2_bounded(old - top);
        vec_store(u->top + i, top);
        vec_store(b->factor + i, factor);
        vec_store(u->total + i, vec_load(u->total + i) * factor + total);
    }
}
static void forward_softmax(ForwardUnit *u, ForwardKeys *b, Lanes l) {
    if (flash_tiles(u->f))
        forward_softmax_of(u, b, l, true);
    else
        forward_softmax_of(u, b, l, false);
}

/* If a limit cuts the block, lanes are processed in strips, each over the keys that it sees. */
static void forward_scores_terms(const ForwardUnit *u, ForwardKeys *b, Lanes l) {
    for (int64_t i = l.from; i < l.end; i += l.strip)
        product((Product){.pairs = flash_pairs(u->f),
                          .m = keys_seen(u, b, i + l.strip),
                          .n = l.strip,
                          .k = flash_terms(u->f, u->f->s.head_dim),
                          .a = b->k,
                          .a_row = flash_padded(u->f->s.head_dim) / flash_term(u->f),
                          .a_step = 1,
                          .b = u->queries + i,
                          .b_row = B,
                          .c = b->scores + i,
                          .c_row = B,
                          .mode = TILE_SET,
                          .ahead = &b->ahead});
}
static void forward_sums_terms(const ForwardUnit *u, ForwardKeys *b, Lanes l) {
    for (int64_t i = l.from; i < l.end; i += l.strip)
        product((Product){.pairs = flash_pairs(u->f),
                          .m = u->f->s.head_dim,
                          .n = l.strip,
                          .k = flash_terms(u->f, keys_seen(u, b, i + l.strip)),
                          .a = b->v,
                          .a_row = 1,
                          .a_step = flash_padded(u->f->s.head_dim),
                          .b = b->scores + i,
                          .b_row = B,
                          .c = u->sums + i,
                          .c_row = B,
                          .mode = b->first == u->key ? TILE_SET : TILE_RESCALE,
                          .factor = b->factor + i,
                          .ahead = &b->ahead});
}

#if VEC_AMX
static void forward_scores_tiles(const ForwardUnit *u, ForwardKeys *b, Lanes l) {
    for (int64_t i = l.from; i < l.end; i += l.strip)
        amx_product((TileProduct){.m = whole_tiles(keys_seen(u, b, i + l.strip)),
                                  .n = l.strip,
                                  .groups = amx_groups(u->f->s.head_dim),
                                  .a = tiles_of_along(u->f, b->k, 0),
                                  .parts = 1,
                                  .b = u->queries + i,
                                  .b_row = B,
                                  .c = b->scores + i,
                                  .c_row = B,
                                  .ahead = &b->ahead});
}

/* Tile products only add to existing sums, so these are rescaled here. Lanes whose maximum did not grow need
 * no rescaling. */
static void forward_rescale(const ForwardUnit *u, const ForwardKeys *b, Lanes l) {
    for (int64_t i = l.from; i < l.end; i += VLEN) {
        Vec factor = vec_load(b->factor + i);
        if (_mm512_cmp_ps_mask((__m512)factor, _mm512_set1_ps(1), _CMP_NEQ_UQ) == 0) continue;
        float *sums = u->sums + i;
        for (int64_t d = 0; d < u->f->s.head_dim; d++)
            vec_store(sums + d * B, vec_load(sums + d * B) * factor);
    }
}

static void forward_sums_tiles(const ForwardUnit *u, ForwardKeys *b, Lanes l) {
    if (b->first != u->key) forward_rescale(u, b, l);
    for (int64_t i = l.from; i < l.end; i += l.strip)
        amx_product((TileProduct){.m = u->f->s.head_dim,
                                  .n = l.strip,
                                  .groups = amx_groups(keys_seen(u, b, i + l.strip)),
                                  .a = tiles_of_across(b->v),
                                  .parts = 1,
                                  .b = b->scores + i,
                                  .b_row = B,
                                  .c = u->sums + i,
                                  .c_row = B,
                                  .add = b->first != u->key,
                                  .ahead = &b->ahead});
}
#endif

static void forward_scores(const ForwardUnit *u, ForwardKeys *b, Lanes l) {
#if VEC_AMX
    if (flash_tiles(u->f)) {
        forward_scores_tiles(u, b, l);
        return;
    }
#endif
    forward_scores_terms(u, b, l);
}
static void forward_sums(const ForwardUnit *u, ForwardKeys *b, Lanes l) {
#if VEC_AMX
    if (flash_tiles(u->f)) {
        forward_sums_tiles(u, b, l);
        return;
    }
#endif
    forward_sums_terms(u, b, l);
}

static void forward_visit(ForwardUnit *u, ForwardKeys *b) {
    bool cut = b->first + b->count - 1 > u->last_key[0], masked = cut || b->first < u->first_key[B - 1];
    for (int64_t from = 0; from < B; from += lanes_together(u->f)) {
        Lanes l = lanes_from(u->f, from, cut);
        forward_scores(u, b, l);
        if (u->f->s.cap > 0) forward_cap(u, b, l);
        if (masked) forward_mask(u, b, l);
        forward_softmax(u, b, l);
        forward_sums(u, b, l);
    }
}

static void forward_keys(ForwardKeys *b, const Flash *f, int64_t kv_head, int64_t key, int64_t end) {
    b->first = key;
    b->count = min_i64(B, end - key);
    terms_along(f, keys_at(f, f->k, kv_head, key), f->kv_row, b->count, b->k);
    rows_across(f, keys_at(f, f->v, kv_head, key), f->kv_row, b->count, b->v);
    ahead_keys(&b->ahead, f, kv_head, key + B, end);
}

static void forward_finish(const ForwardUnit *u, float *scratch) {
    const Flash *f = u->f;
    int64_t dim = f->s.head_dim, padded = flash_padded(dim);
    transpose_block((MatrixView){u->sums, dim, u->count, B}, scratch, padded, 1, DTYPE_F32);
    for (int64_t r = 0; r < u->count; r++) {
        write_rows((MatrixView){scratch + r * padded, 1, dim, padded}, 1 / u->total[r],
                   tensor_to(unit_out(u), r * f->s.heads * dim, f->c), 0, f->c);
        if (f->lse)
            f->lse[u->head * f->s.tokens + u->first + r] =
                (float)((double)u->top[r] * 0.69314718055994531 + (double)logf(u->total[r]));
    }
}

/* Applies the block of keys to a unit that sees one of them. */
static void forward_unit(ForwardUnit *u, ForwardKeys *b) {
    const Flash *f = u->f;
    int64_t dim = f->s.head_dim, left = u->end - b->first;
    if (b->first < u->key || left <= 0) return;
    if (b->first == u->key) forward_queries(u);
    if (left > B && left <= 2 * B) ahead_add(&b->ahead, unit_out(u), f->s.heads * dim, u->count, dim, f->c);
    forward_visit(u, b);
    if (left <= B) forward_finish(u, b->scores);
}

/* These two enclose all work of a call. */
INLINE void flash_begin(const Flash *f) {
#if VEC_AMX
    if (flash_tiles(f)) amx_begin();
#endif
    (void)f;
}
INLINE void flash_end(const Flash *f) {
#if VEC_AMX
    if (flash_tiles(f)) amx_end();
#endif
    (void)f;
}

static void flash_forward(const Flash *f, int64_t kv_head, int64_t first, int64_t count, float *scratch) {
    int64_t dim = f->s.head_dim, padded = flash_padded(dim), key = INT64_MAX, end = 0;
    ForwardUnit unit[FLASH_UNITS_MAX];
    ForwardKeys b = {.k = next_panel(&scratch, B * padded),
                     .v = next_panel(&scratch, B * padded),
                     .scores = next_panel(&scratch, B * max_i64(B, padded))};
    for (int64_t i = 0; i < count; i++) {
        ForwardUnit *u = unit + i;
        forward_start(u, f, kv_head, first + i, &scratch);
        if (i) ahead_add(&b.ahead, query_at(f, f->q, u->head, u->first), f->q_row, u->count, dim, f->c);
        key = min_i64(key, u->key);
        end = max_i64(end, u->end);
    }
    flash_begin(f);
    for (; key < end; key += B) {
        forward_keys(&b, f, kv_head, key, end);
        for (int64_t i = 0; i < count; i++) forward_unit(unit + i, &b);
    }
    flash_end(f);
}

/* ---- backward ---- */

static void flash_delta(const Flash *f, int64_t head, int64_t block) {
    int64_t dim = f->s.head_dim;
    for (int64_t t = block * B; t < min_i64(f->s.tokens, (block + 1) * B); t++) {
        int64_t at = (t * f->s.heads + head) * dim;
        const void *out = tensor_at(f->kept, at, f->c), *dout = tensor_at(f->dout, at, f->c);
        Vec sum = {0};
        EACH_VECTOR(i, left, dim) sum += get(out, i, left, f->c) * get(dout, i, left, f->c);
        f->delta[head * f->s.tokens + t] = vec_sum(sum);
    }
}

/* A block of keys; lanes are keys. */
typedef struct BackwardUnit {
    int64_t first, count, block;
    float *keys, *values; /* packed by transpose_rows */
    float *k;             /* [B][D padded]; tiles: [B / 2][D] pairs of keys; pairs: after key 0 twice */
    float *dk, *dv;       /* [B][D padded]; tiles: [D][B] */
    bool seen;            /* a query has seen the block, so its operands are packed */
} BackwardUnit;

/* Offset of the pairs of a row of ds in its panel. */
enum { DS_PAIRS = 16 };

/* The queries of one block and head, and a unit's results for them. */
typedef struct BackwardQueries {
    const Flash *f;
    int64_t kv_head, padded;
    int64_t head, first, count, block;
    float *q, *dout;           /* [B][flash_along] */
    float *q_rows, *dout_rows; /* [B / term][D padded], or packed by tiles_across; fp32: as q, dout */
    float *p, *ds;             /* [B queries][B], then p [B queries / term][B]; ds of pairs: see put_ds */
    float *ds_across;          /* [B queries / term][B]; fp32: the same as ds */
    Ahead ahead;
} BackwardQueries;

static void backward_keys(const BackwardUnit *u, const Flash *f, int64_t kv_head, int64_t padded) {
    const int64_t dim = f->s.head_dim;
    const MatrixView keys = {keys_at(f, f->k, kv_head, u->first), u->count, dim, f->kv_row};
    const MatrixView values = {keys_at(f, f->v, kv_head, u->first), u->count, dim, f->kv_row};
    if (flash_tiles(f)) {
        terms_across(f, keys.at, f->kv_row, u->count, u->k);
        int64_t terms = flash_terms(f, u->count);
        memset(u->k + terms * padded, 0, (size_t)((B / 2 - terms) * padded) * sizeof(float));
    } else if (flash_pairs(f)) {
        terms_across(f, keys.at, 0, 2, u->k);
        terms_across(f, keys.at, f->kv_row, u->count, u->k + padded);
    } else {
        BY_DTYPE(f->c, widen_typed, keys, padded, u->k);
    }
    if (flash_pairs(f))
        transpose_rows(f, keys, 1, u->keys, f->c);
    else
        transpose_rows(f, (MatrixView){u->k, u->count, dim, padded}, score_factor(f), u->keys, DTYPE_F32);
    transpose_rows(f, values, 1, u->values, f->c);
}

/* The first query of the block that sees a key at or after `lane`. */
INLINE int64_t first_query(const BackwardQueries *b, const BackwardUnit *u, int64_t lane) {
    return max_i64(0, min_i64(b->count, u->first + lane - b->f->offset - b->first));
}
/* Number of keys that queries before `row` see. */
INLINE int64_t keys_before(const BackwardQueries *b, const BackwardUnit *u, int64_t row) {
    return max_i64(0, min_i64(u->count, b->f->offset + b->first + min_i64(row, b->count) - u->first));
}

/* One query's scores, and products dout v; its lse and delta; the first and the last key that it sees. */
typedef struct SoftmaxRow {
    float *p, *ds;
    float lse, delta;
    int32_t first, last;
} SoftmaxRow;

INLINE SoftmaxRow softmax_row(const BackwardQueries *b, int64_t r, const bool masked) {
    int64_t at = b->head * b->f->s.tokens + b->first + r;
    return (SoftmaxRow){.p = b->p + r * B,
                        .ds = b->ds + r * B,
                        .lse = b->f->kept_lse[at] * 1.44269504f,
                        .delta = b->f->delta[at],
                        .first = masked ? (int32_t)flash_first(b->f, b->first + r) : 0,
                        .last = (int32_t)(b->f->offset + b->first + r)};
}

/* Makes probabilities of scores, and gradients of scores of the products dout v. */
INLINE void backward_row(const BackwardQueries *b, const BackwardUnit *u, int64_t r, const bool masked,
                         const bool capped) {
    const SoftmaxRow row = softmax_row(b, r, masked);
    int32_t index[VLEN];
    float cap = cap_factor(b->f), left = score_left(b->f);
    for (int lane = 0; lane < VLEN; lane++) index[lane] = lane;
    for (int64_t i = 0; i < B; i += VLEN) {
        if (masked && u->first + i > row.last) { /* no score was computed here */
            vec_store(row.p + i, (Vec){0});
            vec_store(row.ds + i, (Vec){0});
            continue;
        }
        Vec score = vec_load(row.p + i) * left, part = capped ? vec_tanh(score / cap) : score;
        Vec p = vec_exp2((capped ? part * cap : score) - row.lse);
        if (masked) {
            VecInt key = vec_load_int(index) + (int32_t)(u->first + i);
            p = (Vec)((VecInt)(key <= row.last) & (VecInt)(key >= row.first) & (VecInt)p);
        }
        vec_store(row.p + i, p);
        Vec ds = p * (vec_load(row.ds + i) - row.delta);
        vec_store(row.ds + i, capped ? ds * (1.0f - part * part) : ds);
    }
}

static void backward_softmax_rows(const BackwardQueries *b, const BackwardUnit *u, bool masked) {
    for (int64_t r = 0; r < b->count; r++)
        if (b->f->s.cap > 0)
            backward_row(b, u, r, true, true);
        else if (masked)
            backward_row(b, u, r, true, false);
        else
            backward_row(b, u, r, false, false);
}

#if VEC_PAIRS
/* Half of a vector of bf16 numbers, as fp32. put_in_two stores 32 elements of a row as bf16, followed by
 * their rounding residuals as bf16. */
INLINE Vec half_widened(__m512i pairs, const int half) {
    const __m512i from = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6,
                                          6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return (Vec)_mm512_maskz_permutexvar_epi16(
        0xaaaaaaaa, _mm512_add_epi16(from, _mm512_set1_epi16((short)(16 * half))), pairs);
}
INLINE void put_in_two(Vec one, Vec next, float *to) {
    __m512i high = (__m512i)_mm512_cvtne2ps_pbh((__m512)next, (__m512)one);
    Vec rest = one - half_widened(high, 0), next_rest = next - half_widened(high, 1);
    _mm512_storeu_si512(to, high);
    _mm512_storeu_si512(to + VLEN, (__m512i)_mm512_cvtne2ps_pbh((__m512)next_rest, (__m512)rest));
}

/* A vector of a row's probabilities, and of the gradients of its scores, as in backward_row. */
typedef struct SoftmaxVector {
    Vec p, ds;
} SoftmaxVector;

INLINE SoftmaxVector softmax_vector(const BackwardQueries *b, const BackwardUnit *u, const SoftmaxRow *row,
                                    int64_t i, const bool masked, const bool capped) {
    if (masked && u->first + i > row->last) return (SoftmaxVector){{0}, {0}}; /* no score was computed here */
    float left = score_left(b->f), cap = cap_factor(b->f);
    Vec score = vec_load(row->p + i), part = score;
    if (capped) part = vec_tanh(score * left / cap), score = part, left = cap;
    Vec p = pair_exp2(vec_multiply_add(vec_set(-row->lse), score, vec_set(left)));
    if (masked) {
        VecInt key = (VecInt)_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0) +
                     (int32_t)(u->first + i);
        p = (Vec)((VecInt)(key <= row->last) & (VecInt)(key >= row->first) & (VecInt)p);
    }
    Vec ds = p * (vec_load(row->ds + i) - row->delta);
    return (SoftmaxVector){p, capped ? ds * (1.0f - part * part) : ds};
}

/* Stores 32 keys of a row of ds as operands of dQ. Tiles: the rounded values, then their residuals. Otherwise
 * pairs of keys from DS_PAIRS on; the sums before and after rounding are accumulated. */
INLINE void put_ds(float *row, int64_t i, const Vec ds[2], Vec *sum, Vec *rounded, const bool tiles) {
    if (tiles) {
        put_in_two(ds[0], ds[1], row + i);
        return;
    }
    const Vec ones = (Vec)_mm512_set1_epi32(0x3f803f80);
    Vec pairs = (Vec)_mm512_cvtne2ps_pbh((__m512)ds[1], (__m512)ds[0]);
    vec_store(row + DS_PAIRS + i / 2, pairs);
    *sum += ds[0] + ds[1];
    *rounded = vec_add_terms(*rounded, pairs, ones, true);
}

/* Stores the rounding residuals of two rows, each as a pair in front of the row's others: rounded, and the
 * residual of that. */
INLINE void put_rests(float *rows, float one, float next) {
    Vec rest = {one, next}, high = (Vec)((VecBits)pairs_across(rest, rest) << 16);
    Vec pairs = pairs_across(high, rest - high);
    rows[DS_PAIRS - 1] = pairs[0];
    rows[B + DS_PAIRS - 1] = pairs[1];
}
INLINE float rest_of(const SoftmaxRow *row, const BackwardUnit *u, Vec sum, Vec rounded, const bool masked) {
    bool seen = !masked || (u->first >= row->first && u->first <= row->last);
    return seen ? vec_sum(sum - rounded) : 0;
}

/* Two rows at a time, which are stored as pairs. */
INLINE void softmax_rows(const BackwardQueries *b, const BackwardUnit *u, int64_t r, const bool masked,
                         const bool capped, const bool tiles) {
    const bool second = r + 1 < b->count;
    const SoftmaxRow one = softmax_row(b, r, masked), next = softmax_row(b, r + second, masked);
    float *rows = b->ds + r * B;
    Vec sum[2] = {{0}, {0}}, rounded[2] = {{0}, {0}};
    for (int64_t i = 0; i < B; i += 2 * VLEN) {
        Vec ds[2][2];
        for (int v = 0; v < 2; v++) {
            int64_t at = i + v * VLEN;
            SoftmaxVector x = softmax_vector(b, u, &one, at, masked, capped), y = {{0}, {0}};
            if (second) y = softmax_vector(b, u, &next, at, masked, capped);
            vec_store(b->p + r / 2 * B + at, pairs_across(x.p, y.p));
            vec_store(b->ds_across + r / 2 * B + at, pairs_across(x.ds, y.ds));
            ds[0][v] = x.ds, ds[1][v] = y.ds;
        }
        put_ds(rows, i, ds[0], &sum[0], &rounded[0], tiles);
        put_ds(rows + B, i, ds[1], &sum[1], &rounded[1], tiles);
    }
    if (!tiles)
        put_rests(rows, rest_of(&one, u, sum[0], rounded[0], masked),
                  rest_of(&next, u, sum[1], rounded[1], masked));
}

INLINE int64_t softmax_pairs(const BackwardQueries *b, const BackwardUnit *u, bool masked, const bool tiles) {
    int64_t r = 0;
    for (; r < b->count; r += 2)
        if (b->f->s.cap > 0)
            softmax_rows(b, u, r, true, true, tiles);
        else if (masked)
            softmax_rows(b, u, r, true, false, tiles);
        else
            softmax_rows(b, u, r, false, false, tiles);
    return r;
}
static void backward_softmax_pairs(const BackwardQueries *b, const BackwardUnit *u, bool masked) {
    softmax_pairs(b, u, masked, false);
}
#endif

#if VEC_AMX
static void backward_softmax_tiles(const BackwardQueries *b, const BackwardUnit *u, bool masked) {
    int64_t r = softmax_pairs(b, u, masked, true);
    size_t rest = (size_t)((B - r) / 2 * B) * sizeof(float); /* pads at least to whole groups */
    memset(b->p + r / 2 * B, 0, rest);
    memset(b->ds_across + r / 2 * B, 0, rest);
}

/* As backward_scores, with tiles. */
static void backward_scores_tiles(BackwardQueries *b, const BackwardUnit *u, const float *rows,
                                  const float *lanes, float *to, int64_t strip) {
    for (int64_t j = 0; j < B; j += strip) {
        int64_t r = first_query(b, u, j) / AMX_SIDE * AMX_SIDE;
        amx_product((TileProduct){.m = whole_tiles(b->count) - r,
                                  .n = strip,
                                  .groups = amx_groups(b->f->s.head_dim),
                                  .a = tiles_of_along(b->f, rows, r),
                                  .parts = 1,
                                  .b = lanes + j,
                                  .b_row = B,
                                  .c = to + r * B + j,
                                  .c_row = B,
                                  .ahead = &b->ahead});
    }
}

/* [D][keys] += rows^T x weights. */
static void backward_sums_tiles(BackwardQueries *b, const BackwardUnit *u, const float *weights,
                                const float *rows, float *to, int64_t strip) {
    for (int64_t j = 0; j < u->count; j += strip) {
        int64_t g = first_query(b, u, j) / AMX_GROUP;
        amx_product((TileProduct){.m = b->f->s.head_dim,
                                  .n = strip,
                                  .groups = amx_groups(b->count) - g,
                                  .a = tiles_of_across(rows + g * AMX_WORDS),
                                  .parts = 1,
                                  .b = weights + g * AMX_SIDE * B + j,
                                  .b_row = B,
                                  .c = to + j,
                                  .c_row = B,
                                  .add = u->seen,
                                  .ahead = &b->ahead});
    }
}
#endif

static void backward_softmax(const BackwardQueries *b, const BackwardUnit *u, bool masked) {
#if VEC_AMX
    if (flash_tiles(b->f)) {
        backward_softmax_tiles(b, u, masked);
        return;
    }
#endif
#if VEC_PAIRS
    if (flash_pairs(b->f)) {
        backward_softmax_pairs(b, u, masked);
        return;
    }
#endif
    backward_softmax_rows(b, u, masked);
}

/* [queries][keys] = rows x lanes^T. Strips of keys leave out the queries that see none of them. */
static void backward_scores(BackwardQueries *b, const BackwardUnit *u, const float *rows, const float *lanes,
                            float *to, int64_t strip) {
#if VEC_AMX
    if (flash_tiles(b->f)) {
        backward_scores_tiles(b, u, rows, lanes, to, strip);
        return;
    }
#endif
    for (int64_t j = 0; j < B; j += strip) {
        int64_t r = first_query(b, u, j);
        int64_t row = flash_along(b->f);
        product((Product){.pairs = flash_pairs(b->f),
                          .m = b->count - r,
                          .n = strip,
                          .k = flash_terms(b->f, b->f->s.head_dim),
                          .a = rows + r * row,
                          .a_row = row,
                          .a_step = 1,
                          .b = lanes + j,
                          .b_row = B,
                          .c = to + r * B + j,
                          .c_row = B,
                          .mode = TILE_SET,
                          .ahead = &b->ahead});
    }
}

/* [keys][D] += weights^T x rows, with the same strips. */
static void backward_sums(BackwardQueries *b, const BackwardUnit *u, const float *weights, const float *rows,
                          float *to, int64_t strip) {
#if VEC_AMX
    if (flash_tiles(b->f)) {
        backward_sums_tiles(b, u, weights, rows, to, strip);
        return;
    }
#endif
    for (int64_t j = 0; j < u->count; j += strip) {
        int64_t term = flash_term(b->f), r = first_query(b, u, j) / term;
        product((Product){.pairs = flash_pairs(b->f),
                          .m = min_i64(strip, u->count - j),
                          .n = b->padded,
                          .k = flash_terms(b->f, b->count) - r,
                          .a = weights + r * B + j,
                          .a_row = 1,
                          .a_step = B,
                          .b = rows + r * b->padded,
                          .b_row = b->padded,
                          .c = to + j * b->padded,
                          .c_row = b->padded,
                          .mode = u->seen ? TILE_ADD : TILE_SET,
                          .ahead = &b->ahead});
    }
}

INLINE float *query_sums(const BackwardQueries *b) {
    return b->f->dq_sum + (b->head * b->f->s.tokens + b->first) * b->padded;
}

/* The last block of keys that the queries see. */
INLINE int64_t last_block(const BackwardQueries *b) { return (b->f->offset + b->first + b->count - 1) / B; }

/* [queries][D] += ds k. With pairs, a first term adds the rounding residual. */
static void query_product(BackwardQueries *b, const BackwardUnit *u, int64_t strip, bool set) {
    const bool pairs = flash_pairs(b->f);
    for (int64_t i = 0; i < b->count; i += strip)
        product((Product){.pairs = pairs,
                          .m = min_i64(strip, b->count - i),
                          .n = b->padded,
                          .k = pairs + flash_terms(b->f, keys_before(b, u, i + strip)),
                          .a = b->ds + i * B + (pairs ? DS_PAIRS - 1 : 0),
                          .a_row = B,
                          .a_step = 1,
                          .b = u->k,
                          .b_row = b->padded,
                          .c = query_sums(b) + i * b->padded,
                          .c_row = b->padded,
                          .mode = set ? TILE_SET : TILE_ADD,
                          .ahead = &b->ahead});
}
#if VEC_AMX
/* ds consists of two parts: rounded values and residuals. */
static void query_product_tiles(BackwardQueries *b, const BackwardUnit *u, int64_t strip, bool set) {
    for (int64_t i = 0; i < b->count; i += strip)
        amx_product((TileProduct){.m = min_i64(strip, b->count - i),
                                  .n = b->padded,
                                  .groups = amx_groups(keys_before(b, u, i + strip)),
                                  .a = {(const char *)(b->ds + i * B), B * 4, 2 * 64, AMX_SIDE * B * 4},
                                  .parts = 2,
                                  .part = 64,
                                  .b = u->k,
                                  .b_row = b->padded,
                                  .c = query_sums(b) + i * b->padded,
                                  .c_row = b->padded,
                                  .add = !set,
                                  .ahead = &b->ahead});
}
#endif

/* dq += ds k, after all earlier key blocks, so that the order of the sum is fixed. Those blocks were started
 * earlier, on threads that are running, so the wait ends. The last key block that a query sees also rounds
 * the sum and writes dq. */
static void backward_query(BackwardQueries *b, const BackwardUnit *u, int64_t strip) {
    const Flash *f = b->f;
    int64_t blocks = (f->s.tokens + B - 1) / B, dim = f->s.head_dim;
    atomic_int *progress = f->progress + b->head * blocks + b->block;
    for (int spins = 0; atomic_load_explicit(progress, memory_order_acquire) != (int)u->block;)
        if (++spins > 200) sched_yield();
    bool set = u->block == flash_first(f, b->first) / B;
#if VEC_AMX
    if (flash_tiles(f))
        query_product_tiles(b, u, strip, set);
    else
#endif
        query_product(b, u, strip, set);
    if (u->block == last_block(b))
        write_rows((MatrixView){query_sums(b), b->count, dim, b->padded}, score_scale(f->s),
                   tensor_to(f->dq, b->first * f->q_row + b->head * dim, f->c), f->q_row, f->c);
    atomic_store_explicit(progress, (int)u->block + 1, memory_order_release);
}

static void backward_visit(BackwardQueries *b, BackwardUnit *u) {
    const Flash *f = b->f;
    bool cut = f->offset + b->first < u->first + u->count - 1;
    int64_t strip = !cut ? B : flash_tiles(f) ? 2 * STRIP : STRIP;
    if (!u->seen) backward_keys(u, f, b->kv_head, b->padded);
    backward_scores(b, u, b->q, u->keys, b->p, strip);
    backward_scores(b, u, b->dout, u->values, b->ds, strip);
    backward_softmax(b, u, cut || u->count < B || flash_first(f, b->first + b->count - 1) > u->first);
    backward_sums(b, u, b->p, b->dout_rows, u->dv, strip);
    backward_sums(b, u, b->ds_across, b->q_rows, u->dk, strip);
    backward_query(b, u, strip);
    u->seen = true;
}

static const void *dout_at(const Flash *f, int64_t head, int64_t first) {
    return tensor_at(f->dout, (first * f->s.heads + head) * f->s.head_dim, f->c);
}

static void backward_queries(BackwardQueries *b, int64_t head, int64_t block) {
    const Flash *f = b->f;
    int64_t dim = f->s.head_dim;
    b->head = head;
    b->block = block;
    b->first = block * B;
    b->count = min_i64(B, f->s.tokens - b->first);
    const void *q = query_at(f, f->q, head, b->first), *dout = dout_at(f, head, b->first);
    terms_along(f, q, f->q_row, b->count, b->q);
    terms_along(f, dout, f->s.heads * dim, b->count, b->dout);
    if (flash_pairs(f)) {
        rows_across(f, q, f->q_row, b->count, b->q_rows);
        rows_across(f, dout, f->s.heads * dim, b->count, b->dout_rows);
    }
    ahead_add(&b->ahead, query_sums(b), b->padded, b->count, b->padded, DTYPE_F32);
}
static void ahead_queries(BackwardQueries *b, int64_t head, int64_t block) {
    const Flash *f = b->f;
    int64_t first = block * B, rows = min_i64(B, f->s.tokens - first), dim = f->s.head_dim;
    ahead_add(&b->ahead, query_at(f, f->q, head, first), f->q_row, rows, dim, f->c);
    ahead_add(&b->ahead, dout_at(f, head, first), f->s.heads * dim, rows, dim, f->c);
}

#if VEC_AMX
/* Writes sums that are stored transposed: a row of `from` for each column. scratch: [STRIP][D]. */
static void write_transposed(MatrixView from, float factor, float *scratch, void *to, int64_t row, Dtype c) {
    const int64_t dim = from.rows;
    for (int64_t j = 0; j < from.cols; j += STRIP) {
        int64_t rows = min_i64(STRIP, from.cols - j);
        transpose_block((MatrixView){(const float *)from.at + j, dim, rows, from.row}, scratch, dim, 1,
                        DTYPE_F32);
        write_rows((MatrixView){scratch, rows, dim, dim}, factor, tensor_to(to, j * row, c), row, c);
    }
}
#endif

/* scratch: as write_transposed, of tiles only. */
static void backward_finish(const BackwardUnit *u, const Flash *f, int64_t kv_head, int64_t padded,
                            float *scratch) {
    int64_t dim = f->s.head_dim, at = u->first * f->dkv_row + kv_head * dim, row = f->dkv_row;
    Dtype type = f->dkv_type;
    if (!u->seen) {
        memset(u->dk, 0, (size_t)(B * padded) * sizeof(float));
        memset(u->dv, 0, (size_t)(B * padded) * sizeof(float));
    }
    void *dk = tensor_to(f->dk, at, type), *dv = tensor_to(f->dv, at, type);
#if VEC_AMX
    if (flash_tiles(f)) {
        write_transposed((MatrixView){u->dk, dim, u->count, B}, score_scale(f->s), scratch, dk, row, type);
        write_transposed((MatrixView){u->dv, dim, u->count, B}, 1, scratch, dv, row, type);
        return;
    }
#endif
    (void)scratch;
    write_rows((MatrixView){u->dk, u->count, dim, padded}, score_scale(f->s), dk, row, type);
    write_rows((MatrixView){u->dv, u->count, dim, padded}, 1, dv, row, type);
}

/* Query blocks that see a key of the unit form an interval, which never moves back from one unit to the
 * next. */
INLINE int64_t first_block(const Flash *f, const BackwardUnit *u) {
    return u->first > f->offset ? (u->first - f->offset) / B : 0;
}
INLINE bool block_before_end(const Flash *f, const BackwardUnit *u, int64_t block) {
    return block * B < f->s.tokens && flash_first(f, block * B) < u->first + u->count;
}

static void ahead_results(Ahead *a, const Flash *f, const BackwardUnit *u, int64_t kv_head) {
    int64_t at = u->first * f->dkv_row + kv_head * f->s.head_dim;
    ahead_add(a, tensor_at(f->dk, at, f->dkv_type), f->dkv_row, u->count, f->s.head_dim, f->dkv_type);
    ahead_add(a, tensor_at(f->dv, at, f->dkv_type), f->dkv_row, u->count, f->s.head_dim, f->dkv_type);
}

/* Processes one block of queries, for all heads of the group, with all units. */
static void backward_block(BackwardQueries *b, BackwardUnit *unit, int64_t count, int64_t block) {
    const Flash *f = b->f;
    int64_t group = f->s.heads / f->s.kv_heads, head = b->kv_head * group, end = head + group;
    bool more = block_before_end(f, unit + count - 1, block + 1);
    for (int64_t h = head; h < end; h++) {
        backward_queries(b, h, block);
        if (last_block(b) >= unit->block && last_block(b) < unit->block + count)
            ahead_add(&b->ahead, query_at(f, f->dq, h, b->first), f->q_row, b->count, f->s.head_dim, f->c);
        if (h + 1 < end)
            ahead_queries(b, h + 1, block);
        else if (more)
            ahead_queries(b, head, block + 1);
        for (int64_t i = 0; i < count; i++) {
            if (!more && h + 1 == end) ahead_results(&b->ahead, f, unit + i, b->kv_head);
            if (block >= first_block(f, unit + i) && block_before_end(f, unit + i, block))
                backward_visit(b, unit + i);
        }
    }
}

static void flash_backward(const Flash *f, int64_t kv_head, int64_t block, int64_t count, float *scratch) {
    int64_t dim = f->s.head_dim, padded = flash_padded(dim), along = flash_along(f),
            across = flash_pairs(f) ? padded / 2 : 0; /* fp32 needs no second packing */
    BackwardQueries b = {.f = f,
                         .kv_head = kv_head,
                         .padded = padded,
                         .q = next_panel(&scratch, B * (along + across)),
                         .dout = next_panel(&scratch, B * (along + across)),
                         .p = next_panel(&scratch, B * B),
                         .ds = next_panel(&scratch, B * B)};
    b.q_rows = b.q, b.dout_rows = b.dout, b.ds_across = b.ds;
    if (flash_pairs(f)) {
        b.q_rows += B * along, b.dout_rows += B * along;
        b.ds_across = next_panel(&scratch, B * B / 2);
    }
    BackwardUnit unit[FLASH_UNITS_MAX];
    for (int64_t i = 0; i < count; i++) {
        BackwardUnit *u = unit + i;
        *u = (BackwardUnit){.first = (block + i) * B,
                            .block = block + i,
                            .keys = next_panel(&scratch, B * dim),
                            .values = next_panel(&scratch, B * dim),
                            .dk = next_panel(&scratch, B * padded),
                            .dv = next_panel(&scratch, B * padded),
                            .k = next_panel(&scratch, flash_tiles(f) ? B / 2 * padded : B * padded)};
        u->count = min_i64(B, f->keys - u->first);
        if (i) ahead_keys(&b.ahead, f, kv_head, u->first, f->keys);
    }
    flash_begin(f);
    for (int64_t q = first_block(f, unit); block_before_end(f, unit + count - 1, q); q++)
        backward_block(&b, unit, count, q);
    flash_end(f);
    for (int64_t i = 0; i < count; i++) backward_finish(unit + i, f, kv_head, padded, b.p);
}

/* ---- decode ---- */

INLINE float dot_rows(const void *a, const void *b, int64_t dim, Dtype c) {
    Vec sum = {0};
    EACH_VECTOR(i, left, dim) sum += get(a, i, left, c) * get(b, i, left, c);
    return vec_sum(sum);
}

/* Online softmax over B keys at a time. */
INLINE void decode_typed(const Flash *f, int64_t head, int64_t query, Dtype c) {
    int64_t dim = f->s.head_dim, keys = f->offset + query + 1, kv = head / (f->s.heads / f->s.kv_heads) * dim;
    const void *q = tensor_at(f->q, query * f->q_row + head * dim, c);
    float scores[B], sums[HEAD_DIM_MAX] = {0}, top = sink_score(f, head), total = sink_total(f);
    for (int64_t first = flash_first(f, query); first < keys; first += B) {
        int64_t count = min_i64(B, keys - first);
        float old = top;
        for (int64_t k = 0; k < count; k++) {
            scores[k] =
                dot_rows(q, tensor_at(f->k, (first + k) * f->kv_row + kv, c), dim, c) * score_factor(f);
            if (f->s.cap > 0) scores[k] = tanhf(scores[k] / cap_factor(f)) * cap_factor(f);
            if (scores[k] > top) top = scores[k];
        }
        float factor = __builtin_exp2f(old - top);
        total *= factor;
        for (int64_t i = 0; i < dim; i++) sums[i] *= factor;
        for (int64_t k = 0; k < count; k++) {
            float p = __builtin_exp2f(scores[k] - top);
            const void *v = tensor_at(f->v, (first + k) * f->kv_row + kv, c);
            total += p;
            EACH_VECTOR(i, left, dim)
            put(sums, i, left, DTYPE_F32, get(sums, i, left, DTYPE_F32) + get(v, i, left, c) * p);
        }
    }
    void *out = tensor_to(f->out, (query * f->s.heads + head) * dim, c);
    EACH_VECTOR(i, left, dim) put(out, i, left, c, get(sums, i, left, DTYPE_F32) / total);
}
static void flash_decode(const Flash *f, int64_t head, int64_t query) {
    BY_DTYPE(f->c, decode_typed, f, head, query);
}
