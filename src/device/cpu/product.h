/* Matrix products of one tile, with fp32 sums. gemm.c builds all products from these, except those that
 * oneDNN's primitives compute. Part of kernels_all.h, after tile.h.
 *
 * Why not a library's sgemm: it selects a kernel by the shape of a call and by the row lengths, and its
 * kernels sum in different orders. A rank that has half the rows of a weight would then get other bits for
 * them than a rank that has all. Here every element of C is the same sum, whatever m, n, the row lengths and
 * its position in the tile:
 *
 *     block sum = fma(a_n, b_n, ... fma(a_1, b_1, a_0 b_0)),   at most PRODUCT_BLOCK terms (block_of)
 *     C = (add ? C : 0) + block sum + block sum + ...              in ascending order
 *     C = wait[n] + ... (wait[0] + C)                              the sums of splits further left, if any
 *
 * (a product, then a sum, if the instruction set has no fma). Short blocks that start from zero lose fewer
 * digits than one long chain, and k need not fit into a cache.
 *
 * Operands in bf16 are widened to fp32. With dot products of bf16 pairs (vdpbf16ps), a term is such a pair
 * instead: a_1 b_1 + a_2 b_2, in the order and with the roundings of the instruction, which treats numbers
 * below 2^-126 as zero. A pair takes the space of an fp32 number, so all code below is the same for both. If
 * a line has an odd number of elements, its last pair is padded with a zero.
 *
 * B is packed into panels of STRIP_COLS columns, [k][columns], so that the inner loop reads it sequentially.
 * A is read in place if its rows are rows in memory; if A is transposed, panels of STRIP_ROWS rows are packed
 * in the same way. STRIP_ROWS rows of A stay in the L1 cache while panels of B stream from L2, 16 bytes a
 * cycle. The sums of a strip fill the registers: with VLEN 8, 4 rows x 3 vectors of sums, 3 vectors of B and
 * a scalar of A are all 16; with VLEN 16, 8 x 3 + 3 + 1 of 32.
 *
 * Elsewhere called: GEMM, micro-kernel; its only epilogue is rounding. */

enum { STRIP_ROWS = VLEN == 16 ? 8 : 4, STRIP_VECTORS = 3, STRIP_COLS = STRIP_VECTORS * VLEN };

/* Elements in a term. */
INLINE int64_t term_of(Dtype t) { return VEC_PAIRS && t == DTYPE_BF16 ? 2 : 1; }
INLINE int64_t terms_of(int64_t elements, Dtype t) { return (elements + term_of(t) - 1) / term_of(t); }

/* ---- packing ---- */

/* Packs lines, each a row of `from`, into panels of [depth][panel]; the last panel is padded with zeros. A
 * vector of lines is read at a time, each to its end: the hardware prefetcher can follow so many streams. */
INLINE void pack_along(MatrixView from, float *to, const int64_t panel, Dtype t) {
    const int64_t width = from.rows, depth = from.cols, group = min_i64(panel, VLEN);
    for (int64_t i = 0; i < width; i += group) {
        const MatrixView lines = {tensor_at(from.at, i * from.row, t), min_i64(group, width - i), depth,
                                  from.row};
        transpose_block(lines, to + i / panel * panel * depth + i % panel, panel, 1, t);
    }
    int64_t rest = width % panel;
    to += (width - rest) * depth;
    for (int64_t p = 0; rest && p < depth; p++)
        memset(to + p * panel + rest, 0, (size_t)(panel - rest) * sizeof *to);
}

/* Packs `left` elements (at least 1) into one line of a panel, padded with zeros. */
INLINE void pack_line(const void *from, int64_t left, float *to, const int64_t panel, Dtype t) {
    for (int64_t v = 0; v < panel; v += VLEN)
        put(to, v, panel - v, DTYPE_F32, left > v ? get(from, v, left - v, t) : (Vec){0});
}

/* For panels of half a vector: packs a vector of each of two consecutive rows into two lines of each of two
 * panels. */
INLINE void pack_halves(const void *from, int64_t row, float *to, int64_t next, Dtype t) {
    Vec x = get(from, 0, VLEN, t), y = get(from, row, VLEN, t);
#if VLEN == 16
    Vec left = __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    Vec right = __builtin_shufflevector(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
#elif VLEN == 8
    Vec left = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
    Vec right = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
#else
    Vec left = __builtin_shufflevector(x, y, 0, 1, 4, 5);
    Vec right = __builtin_shufflevector(x, y, 2, 3, 6, 7);
#endif
    vec_store(to, left);
    vec_store(to + next, right);
}

/* Prefetches the cache lines of elements i .. end-1 of `rows` rows. Strided operands are read in short pieces
 * far apart, which the hardware prefetcher does not predict. */
INLINE void fetch_ahead(const void *from, int64_t row, const int rows, int64_t i, int64_t end, Dtype t) {
    const int64_t line = 64 / (int64_t)dtype_bytes(t);
    for (int r = 0; r < rows; r++)
        for (int64_t j = i; j < end; j += line) __builtin_prefetch(tensor_at(from, r * row + j, t));
}

/* The same for strided lines: a column of `from` each. A few panels are packed at a time, so that whole cache
 * lines of a row are read. */
INLINE void pack_across(MatrixView from, float *to, const int64_t panel, Dtype t) {
    enum { AHEAD = 8 };
    const int64_t width = from.cols, depth = from.rows, row = from.row,
                  group = panel < 16 ? 8 * panel : 2 * panel;
    for (int64_t i = 0; i < width; i += group) {
        int64_t end = min_i64(width, i + group), p = 0;
        for (; 2 * panel == VLEN && (end - i) % VLEN == 0 && p + 2 <= depth; p += 2) {
            const void *at = tensor_at(from.at, p * row, t);
            fetch_ahead(tensor_at(at, AHEAD * row, t), row, 2, i, end, t);
            for (int64_t j = i; j < end; j += VLEN)
                pack_halves(tensor_at(at, j, t), row, to + j * depth + p * panel, panel * depth, t);
        }
        for (; p < depth; p++) {
            const void *at = tensor_at(from.at, p * row, t);
            fetch_ahead(tensor_at(at, AHEAD * row, t), row, 1, i, end, t);
            for (int64_t j = i; j < end; j += panel)
                pack_line(tensor_at(at, j, t), width - j, to + j * depth + p * panel, panel, t);
        }
    }
}

#if VEC_PAIRS
/* As pack_along. */
INLINE void pack_pairs_along(MatrixView from, float *to, const int64_t panel) {
    const int64_t width = from.rows, terms = terms_of(from.cols, DTYPE_BF16), group = min_i64(panel, VLEN);
    if (width % panel) memset(to + width / panel * panel * terms, 0, (size_t)(panel * terms) * sizeof *to);
    for (int64_t i = 0; i < width; i += group) {
        const MatrixView lines = {(const uint16_t *)from.at + i * from.row, min_i64(group, width - i),
                                  from.cols, from.row};
        transpose_pairs(lines, to + i / panel * panel * terms + i % panel, panel);
    }
}

/* Stores a vector of pairs: either a piece of one panel's line, or, if panels are half a vector wide, the
 * same line of two panels, of which the second may not exist. */
INLINE void put_line(Vec pairs, float *line, const int64_t panel, int64_t next, bool both) {
    if (panel >= VLEN) {
        vec_store(line, pairs);
        return;
    }
    _mm256_storeu_ps(line, _mm512_castps512_ps256((__m512)pairs));
    if (both) _mm256_storeu_ps(line + next, _mm512_extractf32x8_ps((__m512)pairs, 1));
}

/* As pack_halves: this line and the next of two half-vector panels, one whole vector for each. */
INLINE void put_halves(Vec pairs, Vec next, float *to, int64_t apart) {
    vec_store(to, (Vec)_mm512_shuffle_f32x4((__m512)pairs, (__m512)next, 0x44));
    vec_store(to + apart, (Vec)_mm512_shuffle_f32x4((__m512)pairs, (__m512)next, 0xee));
}

/* As pack_across, VLEN lines at a time, padded with zeros to the end of a panel. */
INLINE void pack_pairs_across(MatrixView from, float *to, const int64_t panel) {
    enum { AHEAD = 16 };
    const int64_t width = from.cols, depth = from.rows, row = from.row, terms = terms_of(depth, DTYPE_BF16);
    const int64_t group = panel < VLEN ? 8 * panel : 2 * panel, step = max_i64(panel, VLEN);
    for (int64_t i = 0; i < width; i += group) {
        int64_t end = min_i64(width, i + group), filled = (end + step - 1) / step * step, p = 0;
        float *line = to + i * terms;
        for (; 2 * panel == VLEN && (end - i) % VLEN == 0 && p + 4 <= depth; p += 4, line += 2 * panel) {
            const uint16_t *at = (const uint16_t *)from.at + p * row;
            fetch_ahead(at + AHEAD * row, row, 4, i, end, DTYPE_BF16);
            for (int64_t j = i; j < end; j += VLEN)
                put_halves(pairs_of_rows(at + j, row, VLEN, true),
                           pairs_of_rows(at + 2 * row + j, row, VLEN, true), line + (j - i) * terms,
                           panel * terms);
        }
        for (; p < depth; p += 2, line += panel) {
            const uint16_t *at = (const uint16_t *)from.at + p * row;
            fetch_ahead(at + AHEAD * row, row, 2, i, end, DTYPE_BF16);
            for (int64_t j = i; j < filled; j += VLEN)
                put_line(pairs_of_rows(at + j, row, end - j, p + 1 < depth),
                         line + (j - i) / panel * panel * terms + (j - i) % panel, panel, panel * terms,
                         j + panel < end);
        }
    }
}
#endif

INLINE void pack_typed(MatrixView from, bool along, float *to, const int64_t panel, Dtype t) {
#if VEC_PAIRS
    if (t == DTYPE_BF16) {
        if (along)
            pack_pairs_along(from, to, panel);
        else
            pack_pairs_across(from, to, panel);
        return;
    }
#endif
    if (along)
        pack_along(from, to, panel, t);
    else
        pack_across(from, to, panel, t);
}

/* Elements first .. first+depth-1 of lines line .. line+width-1, as rows in memory. */
static MatrixView operand_view(const ProductOperand *o, int64_t line, int64_t width, int64_t first,
                               int64_t depth, Dtype t) {
    if (o->along) return (MatrixView){tensor_at(o->data, line * o->row + first, t), width, depth, o->row};
    return (MatrixView){tensor_at(o->data, first * o->row + line, t), depth, width, o->row};
}

static void pack_b(const ProductRun *r, int64_t line, int64_t width, int64_t first, int64_t depth,
                   float *to) {
    const MatrixView from = operand_view(&r->b, line, width, first, depth, r->type);
    BY_DTYPE(r->type, pack_typed, from, r->b.along, to, STRIP_COLS);
}

/* Rows of A in the form that strips read: panels of [terms][STRIP_ROWS] (row = 0), or rows `row` bytes
 * apart. */
enum { TERM_BYTES = 4 };
typedef struct Rows {
    const char *at;
    int64_t row, terms;
} Rows;

/* A row of bf16 as terms: with pairs, copied and padded with a zero (the number of elements is odd); else
 * widened. */
static void terms_of_row(const uint16_t *from, int64_t depth, float *to) {
    if (VEC_PAIRS) {
        to[depth / 2] = 0;
        memcpy(to, from, (size_t)depth * sizeof *from);
        return;
    }
    EACH_VECTOR(p, left, depth) put(to, p, left, DTYPE_F32, get(from, p, left, DTYPE_BF16));
}

/* Rows that lie together and are terms already are read in place; all others are packed into `to`. */
static Rows rows_of_a(const ProductRun *r, int64_t line, int64_t width, int64_t first, int64_t depth,
                      float *to) {
    const MatrixView from = operand_view(&r->a, line, width, first, depth, r->type);
    const int64_t terms = terms_of(depth, r->type), row = from.row * (int64_t)dtype_bytes(r->type);
    const bool in_place = terms * TERM_BYTES == depth * (int64_t)dtype_bytes(r->type);
    if (!r->a.along) {
        BY_DTYPE(r->type, pack_typed, from, false, to, STRIP_ROWS);
        return (Rows){(const char *)to, 0, terms};
    }
    if (in_place && !r->a.lines) return (Rows){from.at, row, terms};
    for (int64_t i = 0; i < width; i++) {
        const void *at = tensor_at(r->a.data, product_line(&r->a, line + i) * r->a.row + first, r->type);
        if (in_place)
            memcpy(to + i * terms, at, (size_t)(terms * TERM_BYTES));
        else
            terms_of_row(at, depth, to + i * terms);
    }
    return (Rows){(const char *)to, terms * TERM_BYTES, terms};
}

/* ---- strips ---- */

/* Destination of the sums of some rows of A and a panel of B: C from (i, j) on. After the last block, the
 * sums of the splits further left in the tree (run->wait) are added, nearest first, while these sums are
 * still in registers. */
typedef struct Strip {
    const ProductRun *run;
    int64_t i, j, rows, cols;
    bool add, last;
} Strip;

/* Sums that a strip keeps in registers; constants. */
typedef struct StripSize {
    int rows, vectors;
    int64_t cols; /* of the vectors, those that exist */
} StripSize;

INLINE void add_rows(Vec sum[STRIP_ROWS][STRIP_VECTORS], const float *c, int64_t c_row,
                     const StripSize size) {
    UNROLL for (int r = 0; r < size.rows; r++) UNROLL for (int v = 0; v < size.vectors; v++) sum[r][v] =
        get(c + r * c_row, v * VLEN, size.cols - v * VLEN, DTYPE_F32) + sum[r][v];
}

INLINE void put_rows(Vec sum[STRIP_ROWS][STRIP_VECTORS], void *c, int64_t c_row, const StripSize size,
                     Dtype t) {
    UNROLL for (int r = 0; r < size.rows; r++) UNROLL for (int v = 0; v < size.vectors; v++)
        put(tensor_to(c, r * c_row, t), v * VLEN, size.cols - v * VLEN, t, sum[r][v]);
}

INLINE void fetch_rows(const float *c, int64_t c_row, const StripSize size) {
    UNROLL for (int r = 0; r < size.rows; r++) UNROLL for (int v = 0; v < size.vectors; v++)
        __builtin_prefetch(c + r * c_row + v * VLEN, 1);
}

/* What a strip multiplies: rows of A, with strides in bytes, and a panel of B. */
typedef struct StripOperands {
    const char *a;
    int64_t a_row, a_step, terms;
    const float *b;
} StripOperands;

/* Sums of a strip's rows: all, or one of them. B is prefetched AHEAD terms early, since it streams from the
 * L2 cache. gcc 12 spills the sums unless rows, vectors and cols are scalars here. */
INLINE void strip(const Strip *s, StripOperands o, const int rows, const int vectors, const int64_t cols,
                  const bool pairs) {
    enum { AHEAD = 6 };
    const StripSize size = {rows, vectors, cols};
    const ProductRun *run = s->run;
    Vec sum[STRIP_ROWS][STRIP_VECTORS];
    float *c = run->c + s->i * run->c_row + s->j;
    int64_t wait_at = s->i * run->wait_row + s->j, waiting = s->last ? run->waiting : 0;
    if (s->add || !s->last || !run->rounded)
        fetch_rows(c, run->c_row, size); /* needed when the sums are complete */
    for (int64_t w = 0; w < waiting; w++) fetch_rows(run->wait[w] + wait_at, run->wait_row, size);
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = (Vec){0};
    for (int64_t p = 0; p < o.terms; p++, o.a += o.a_step, o.b += STRIP_COLS) {
        Vec x[STRIP_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(o.b + AHEAD * STRIP_COLS + v * VLEN);
        UNROLL for (int v = 0; v < vectors; v++) x[v] = vec_load(o.b + v * VLEN);
        UNROLL for (int r = 0; r < rows; r++) {
            Vec scalar = vec_term(o.a + r * o.a_row, pairs);
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] =
                vec_add_terms(sum[r][v], scalar, x[v], pairs);
        }
    }
    if (s->add) add_rows(sum, c, run->c_row, size);
    for (int64_t w = 0; w < waiting; w++) add_rows(sum, run->wait[w] + wait_at, run->wait_row, size);
    if (s->last && run->rounded)
        put_rows(sum, run->rounded + s->i * run->rounded_row + s->j, run->rounded_row, size, DTYPE_BF16);
    else
        put_rows(sum, c, run->c_row, size, DTYPE_F32);
}

/* STRIP_ROWS rows at once, which is as many as there are registers for; fewer rows one by one. */
INLINE void strips_of(Strip s, const Rows *a, int64_t i, const float *b, const StripSize size,
                      const bool pairs) {
    enum { PANEL = STRIP_ROWS * TERM_BYTES };
    const char *at = a->at + i * (a->row ? a->row : a->terms * TERM_BYTES);
    if (a->row && s.rows == STRIP_ROWS)
        strip(&s, (StripOperands){at, a->row, TERM_BYTES, a->terms, b}, STRIP_ROWS, size.vectors, size.cols,
              pairs);
    else if (s.rows == STRIP_ROWS)
        strip(&s, (StripOperands){at, TERM_BYTES, PANEL, a->terms, b}, STRIP_ROWS, size.vectors, size.cols,
              pairs);
    else
        for (int64_t r = 0; r < s.rows; r++, s.i++, at += a->row ? a->row : TERM_BYTES)
            strip(&s, (StripOperands){at, 0, a->row ? TERM_BYTES : PANEL, a->terms, b}, 1, size.vectors,
                  size.cols, pairs);
}

INLINE void strips_typed(Strip s, const Rows *a, int64_t i, const float *b, const bool pairs) {
    if (s.cols == STRIP_COLS)
        strips_of(s, a, i, b, (StripSize){STRIP_ROWS, 3, STRIP_COLS}, pairs);
    else if (s.cols > 2 * VLEN)
        strips_of(s, a, i, b, (StripSize){STRIP_ROWS, 3, s.cols}, pairs);
    else if (s.cols > VLEN)
        strips_of(s, a, i, b, (StripSize){STRIP_ROWS, 2, s.cols}, pairs);
    else
        strips_of(s, a, i, b, (StripSize){STRIP_ROWS, 1, s.cols}, pairs);
}

/* Multiplies a strip's rows of A, at most STRIP_ROWS from the i-th of `a` on, by one panel of B. */
static void strips(Strip s, const Rows *a, int64_t i, const float *b) {
    if (term_of(s.run->type) == 2)
        strips_typed(s, a, i, b, true);
    else
        strips_typed(s, a, i, b, false);
}

/* ---- runs ---- */

/* Blocks have nearly equal lengths, because a short last block would cost as much as a long one. The lengths
 * depend on k alone, which is the same for a split on whichever rank it is summed. */
static int64_t block_of(int64_t k, Dtype t) {
    int64_t terms = terms_of(k, t), blocks = (terms + PRODUCT_BLOCK - 1) / PRODUCT_BLOCK;
    return (terms + blocks - 1) / blocks * term_of(t);
}

static Strip strip_at(const ProductRun *r, int64_t i, int64_t j, int64_t first) {
    return (Strip){r,
                   i,
                   j,
                   .rows = min_i64(STRIP_ROWS, r->m - i),
                   .cols = min_i64(STRIP_COLS, r->n - j),
                   .add = r->add || first > 0,
                   .last = first + block_of(r->k, r->type) >= r->k};
}

/* Block by block, B is packed once for all rows of A. SWEEP columns of B at a time stay in the L2 cache while
 * all rows of a group of A pass over them. */
static void run_blocks(const ProductRun *r, float *scratch) {
    enum { SWEEP = 384 };
    float *a = scratch + PRODUCT_BLOCK * PRODUCT_COLS;
    int64_t block = block_of(r->k, r->type);
    for (int64_t first = 0; first < r->k; first += block) {
        int64_t depth = min_i64(block, r->k - first), terms = terms_of(depth, r->type);
        pack_b(r, 0, r->n, first, depth, scratch);
        for (int64_t from = 0; from < r->m; from += PACK_ROWS) {
            int64_t count = min_i64(PACK_ROWS, r->m - from);
            Rows rows = rows_of_a(r, from, count, first, depth, a);
            for (int64_t left = 0; left < r->n; left += SWEEP)
                for (int64_t i = 0; i < count; i += STRIP_ROWS)
                    for (int64_t j = left; j < min_i64(r->n, left + SWEEP); j += STRIP_COLS)
                        strips(strip_at(r, from + i, j, first), &rows, i, scratch + j * terms);
        }
    }
}

/* For few rows (generation of single tokens), reading B takes all the time. So B is read sequentially, panel
 * by panel, and each packed piece stays in the L1 cache. */
static void run_few(const ProductRun *r, float *scratch) {
    float *a = scratch + PRODUCT_BLOCK * PRODUCT_COLS;
    int64_t block = block_of(r->k, r->type),
            span = PACK_ROWS / FEW_ROWS; /* blocks of A that fit into its buffer */
    for (int64_t start = 0; start < r->k; start += span * block) {
        Rows rows[PACK_ROWS / FEW_ROWS];
        int64_t count = 0;
        for (int64_t first = start; count < span && first < r->k; first += block, count++)
            rows[count] = rows_of_a(r, 0, r->m, first, min_i64(block, r->k - first),
                                    a + count * PRODUCT_BLOCK * FEW_ROWS);
        for (int64_t j = 0; j < r->n; j += STRIP_COLS)
            for (int64_t q = 0; q < count; q++) {
                int64_t first = start + q * block;
                pack_b(r, j, min_i64(STRIP_COLS, r->n - j), first, min_i64(block, r->k - first), scratch);
                for (int64_t i = 0; i < r->m; i += STRIP_ROWS)
                    strips(strip_at(r, i, j, first), &rows[q], i, scratch);
            }
    }
}

_Static_assert((int)PACK_ROWS % (int)STRIP_ROWS == 0, "strips end with the rows that are packed at a time");

static void product_run(const ProductRun *r, float *scratch) {
    if (r->m <= FEW_ROWS)
        run_few(r, scratch);
    else
        run_blocks(r, scratch);
}

/* ---- the limit ---- */

/* A strip with all operands in registers: the upper bound of one core. */
static double fma_limit(int64_t rounds, float *sums) {
    Vec sum[STRIP_ROWS][STRIP_VECTORS], x = vec_load(sums), y = vec_load(sums + VLEN);
    UNROLL for (int r = 0; r < STRIP_ROWS; r++) UNROLL for (int v = 0; v < STRIP_VECTORS; v++) sum[r][v] =
        vec_load(sums + (r * STRIP_VECTORS + v) * VLEN);
    for (int64_t i = 0; i < rounds; i++)
        UNROLL for (int r = 0; r < STRIP_ROWS; r++) UNROLL for (int v = 0; v < STRIP_VECTORS; v++) sum[r][v] =
            vec_multiply_add(sum[r][v], x, y);
    UNROLL for (int r = 0; r < STRIP_ROWS; r++) UNROLL for (int v = 0; v < STRIP_VECTORS; v++)
        vec_store(sums + (r * STRIP_VECTORS + v) * VLEN, sum[r][v]);
    return 2.0 * (double)rounds * STRIP_ROWS * STRIP_COLS;
}

#if VEC_PAIRS && !VEC_AMX
static double dot_limit(int64_t rounds, float *sums) {
    enum { CHAINS = 16 }; /* enough for two units of 4 cycles each */
    Vec sum[CHAINS], x = vec_load(sums), y = vec_load(sums + VLEN);
    UNROLL for (int c = 0; c < CHAINS; c++) sum[c] = vec_load(sums + c * VLEN);
    for (int64_t i = 0; i < rounds; i++)
        UNROLL for (int c = 0; c < CHAINS; c++) sum[c] = vec_add_terms(sum[c], x, y, true);
    UNROLL for (int c = 0; c < CHAINS; c++) vec_store(sums + c * VLEN, sum[c]);
    return 4.0 * (double)rounds * CHAINS * VLEN;
}
#endif

static double product_limit(int64_t rounds, Dtype t, float *sums) {
    if (t == DTYPE_F32) return fma_limit(rounds, sums);
#if VEC_AMX
    return amx_limit(rounds, sums);
#elif VEC_PAIRS
    return dot_limit(rounds, sums);
#else
    return 0;
#endif
}
