/* Products of bf16 with AMX. Part of kernels_all.h, after product.h and amx.h; empty if the instruction set
 * has no AMX.
 *
 * Each element of C is one chain, in ascending order, over groups of 32 elements (amx.h), starting from C if
 * the product accumulates; then the sums of splits further left are added, as in product.h. So it depends on
 * neither m, n, the row lengths, its position, nor how k is cut into blocks here.
 *
 * Both operands are packed. B becomes panels of 32 columns, [16 pairs of each group][32], which stay in the
 * L2 cache. A becomes strips of 32 rows, [groups][2 tiles], each of which is multiplied by all those panels.
 * Four tiles of sums need two tiles of each operand: four loads for four dot products, and the loads take
 * half the time of the dot products if A comes from the L1 cache. So a block of k is as long as a strip may
 * be to stay in L1, and panels bypass L1 (amx_chain). Sums are stored to C between blocks. The blocks of one
 * strip follow each other, as far as B's buffer reaches, so that C is still in cache. Memory is prefetched:
 * each step of a chain requests some lines of the next strip, each strip the next piece of C. Results in bf16
 * that fill whole cache lines are written with non-temporal stores, since nothing reads them before they
 * would have been evicted. */
#if VEC_AMX

enum {
    AMX_PANEL = AMX_FOUR,                       /* rows of a strip, columns of a panel */
    AMX_BLOCK = 16,                             /* groups */
    AMX_B_WORDS = PRODUCT_BLOCK * PRODUCT_COLS, /* capacity for packed B */
    AMX_A_WORDS = PRODUCT_BLOCK * PACK_ROWS,
};
_Static_assert(2 * (int)AMX_BLOCK * (int)AMX_WORDS <= (int)AMX_A_WORDS,
               "a strip fits into a product's scratch");
_Static_assert((int)AMX_BLOCK *(int)AMX_SIDE *(int)PRODUCT_COLS <= (int)AMX_B_WORDS, "and so do its panels");

INLINE int64_t amx_padded(int64_t width) { return (width + AMX_PANEL - 1) / AMX_PANEL * AMX_PANEL; }

/* ---- packing ---- */

/* Zeros the padding of a packed operand. */
INLINE void amx_zero_words(float *to, int64_t row, int64_t lines, int64_t words) {
    for (int64_t i = 0; i < lines; i++) memset(to + i * row, 0, (size_t)words * sizeof *to);
}

/* Packs B if it is transposed: its columns are contiguous, and pairs lie along them. */
static void amx_panels_along(MatrixView from, float *to) {
    const int64_t width = from.rows, depth = from.cols;
    const int64_t lines = amx_groups(depth) * AMX_SIDE, terms = terms_of(depth, DTYPE_BF16);
    for (int64_t i = 0; i < width; i += AMX_SIDE) {
        float *half = to + i / AMX_PANEL * AMX_PANEL * lines + i % AMX_PANEL;
        int64_t cols = min_i64(AMX_SIDE, width - i);
        transpose_pairs((MatrixView){(const uint16_t *)from.at + i * from.row, cols, depth, from.row}, half,
                        AMX_PANEL);
        if (cols < AMX_SIDE) amx_zero_words(half + cols, AMX_PANEL, terms, AMX_SIDE - cols);
        amx_zero_words(half + terms * AMX_PANEL, AMX_PANEL, lines - terms, AMX_SIDE);
    }
    if (amx_padded(width) - width >= AMX_SIDE)
        amx_zero_words(to + width / AMX_PANEL * AMX_PANEL * lines + AMX_SIDE, AMX_PANEL, lines, AMX_SIDE);
}

/* Packs B if it is not transposed: pairs are made of two rows. Several panels are packed at a time, so that
 * rows are read sequentially. */
static void amx_panels_across(MatrixView from, float *to) {
    enum { TOGETHER = 4 * AMX_PANEL, AHEAD = 8 };
    const int64_t width = from.cols, depth = from.rows, row = from.row;
    const int64_t lines = amx_groups(depth) * AMX_SIDE, padded = amx_padded(width);
    for (int64_t i = 0; i < padded; i += TOGETHER)
        for (int64_t p = 0; p < 2 * lines; p += 2) {
            const uint16_t *at = (const uint16_t *)from.at + p * row;
            for (int64_t j = i; j < min_i64(padded, i + TOGETHER); j += VLEN) {
                float *line = to + j / AMX_PANEL * AMX_PANEL * lines + p / 2 * AMX_PANEL + j % AMX_PANEL;
                if (p < depth) {
                    __builtin_prefetch(at + AHEAD * row + j);
                    __builtin_prefetch(at + (AHEAD + 1) * row + j);
                }
                vec_store(line, p < depth ? pairs_of_rows(at + j, row, width - j, p + 1 < depth) : (Vec){0});
            }
        }
}

/* Packs tiles of A if it is not transposed: elements from `first` on of lines from `line` on. Groups are
 * `step` words apart. */
static void amx_tiles_along(const ProductOperand *a, int64_t line, int64_t rows, int64_t first, int64_t depth,
                            float *to, int64_t step) {
    const uint16_t *from[AMX_SIDE];
    for (int64_t r = 0; r < AMX_SIDE; r++)
        from[r] = (const uint16_t *)a->data + product_line(a, line + min_i64(r, rows - 1)) * a->row + first;
    for (int64_t g = 0; g < amx_groups(depth); g++, to += step)
        for (int64_t r = 0; r < AMX_SIDE; r++)
            _mm512_storeu_si512(to + r * AMX_SIDE,
                                _mm512_maskz_loadu_epi16(r < rows ? amx_mask(depth - g * AMX_GROUP) : 0,
                                                         from[r] + g * AMX_GROUP));
}

static void amx_pack_b(const ProductRun *r, int64_t line, int64_t width, int64_t first, int64_t depth,
                       float *to) {
    const MatrixView from = operand_view(&r->b, line, width, first, depth, DTYPE_BF16);
    if (r->b.along)
        amx_panels_along(from, to);
    else
        amx_panels_across(from, to);
}

/* Packs a strip of A: two tiles side by side in each group, or one if there are no rows for the second. */
static void amx_pack_a(const ProductRun *r, int64_t line, int64_t rows, int64_t first, int64_t depth,
                       float *to) {
    const int64_t step = rows > AMX_SIDE ? 2 * AMX_WORDS : AMX_WORDS;
    if (!r->a.along) {
        amx_tiles_across(operand_view(&r->a, line, rows, first, depth, DTYPE_BF16), to, step, AMX_WORDS);
        return;
    }
    for (int64_t i = 0; i < rows; i += AMX_SIDE)
        amx_tiles_along(&r->a, line + i, min_i64(AMX_SIDE, rows - i), first, depth,
                        to + i / AMX_SIDE * AMX_WORDS, step);
}

/* ---- strips ---- */

/* Buffer for sums of a strip that cannot go straight to C. */
typedef float AmxSums[AMX_PANEL * AMX_PANEL];

static void amx_begin_sums(const Strip *s, AmxSums sums) {
    const ProductRun *r = s->run;
    memset(sums, 0, sizeof(AmxSums));
    for (int64_t i = 0; i < s->rows; i++)
        memcpy(sums + i * AMX_PANEL, r->c + (s->i + i) * r->c_row + s->j, (size_t)s->cols * sizeof(float));
}

/* Whether the results of a strip are whole cache lines of a product with many rows (if there are few, they
 * are read soon). */
INLINE bool amx_makes_lines(const Strip *s) {
    const ProductRun *r = s->run;
    return s->last && r->rounded && r->m > FEW_ROWS && s->cols == AMX_PANEL &&
           ((uintptr_t)(r->rounded + s->j) | (uintptr_t)r->rounded_row * 2) % 64 == 0;
}

/* Non-temporal store. */
INLINE void amx_put_line(uint16_t *to, Vec left, Vec right) {
    __m512i line = _mm512_castsi256_si512((__m256i)vec_round(left));
    _mm512_stream_si512((void *)to, _mm512_inserti64x4(line, (__m256i)vec_round(right), 1));
}

/* A vector of sums in row i, plus those of the splits that it completes. */
INLINE Vec amx_whole_sum(const Strip *s, int64_t i, int64_t v, int64_t left, const float *sums) {
    const ProductRun *r = s->run;
    Vec sum = vec_load(sums + v);
    for (int w = 0; s->last && w < r->waiting; w++)
        sum = get(r->wait[w] + i * r->wait_row + s->j, v, left, DTYPE_F32) + sum;
    return sum;
}

static void amx_end_sums(const Strip *s, const float *sums) {
    const ProductRun *r = s->run;
    const bool lines = amx_makes_lines(s), rounded = s->last && r->rounded;
    for (int64_t i = s->i; i < s->i + s->rows; i++, sums += AMX_PANEL) {
        uint16_t *to = rounded ? r->rounded + i * r->rounded_row + s->j : NULL;
        if (lines)
            amx_put_line(to, amx_whole_sum(s, i, 0, VLEN, sums), amx_whole_sum(s, i, VLEN, VLEN, sums));
        else
            EACH_VECTOR(v, left, s->cols) {
                Vec sum = amx_whole_sum(s, i, v, left, sums);
                if (rounded)
                    put(to, v, left, DTYPE_BF16, sum);
                else
                    put(r->c + i * r->c_row + s->j, v, left, DTYPE_F32, sum);
            }
    }
}

INLINE void amx_strip_of(const Strip *s, AmxOperands o, const AmxAhead *next, const int down,
                         const int across) {
    const ProductRun *r = s->run;
    float *c = r->c + s->i * r->c_row + s->j;
    bool whole = s->rows == down * AMX_SIDE && s->cols == across * AMX_SIDE;
    AmxSums sums;
    if (!s->add) {
        amx_zero();
    } else if (whole) {
        amx_load(c, r->c_row, down, across);
    } else {
        amx_begin_sums(s, sums);
        amx_written();
        amx_load(sums, AMX_PANEL, down, across);
    }
    o.a.group = down * AMX_BYTES;
    amx_chain(o, next, down, across, true);
    if (whole && !(s->last && (r->rounded || r->waiting))) {
        amx_store(c, r->c_row, down, across);
    } else {
        amx_store(sums, AMX_PANEL, down, across);
        amx_end_sums(s, sums);
    }
}

/* Multiplies at most AMX_PANEL rows by one panel. */
static void amx_strip(const Strip *s, const float *a, const float *b, int64_t groups, const AmxAhead *next) {
    const AmxOperands o = {{(const char *)a, 64, 0, AMX_BYTES}, b, AMX_PANEL, groups};
    if (s->rows > AMX_SIDE && s->cols > AMX_SIDE)
        amx_strip_of(s, o, next, 2, 2);
    else if (s->rows > AMX_SIDE)
        amx_strip_of(s, o, next, 2, 1);
    else if (s->cols > AMX_SIDE)
        amx_strip_of(s, o, next, 1, 2);
    else
        amx_strip_of(s, o, next, 1, 1);
}

/* ---- runs ---- */

/* Elements in a block: whole groups, in blocks of nearly equal length. */
static int64_t amx_block_of(int64_t k) {
    int64_t groups = amx_groups(k), blocks = (groups + AMX_BLOCK - 1) / AMX_BLOCK;
    return (groups + blocks - 1) / blocks * AMX_GROUP;
}

static Strip amx_strip_at(const ProductRun *r, int64_t i, int64_t j, int64_t first, int64_t depth) {
    return (Strip){r,
                   i,
                   j,
                   min_i64(AMX_PANEL, r->m - i),
                   min_i64(AMX_PANEL, r->n - j),
                   r->add || first > 0,
                   first + depth == r->k};
}

/* The part of the next strip (from row i on) that panel `panel` of `panels` prefetches. A line holds 32
 * elements of a row, or, if A is transposed, of a column. */
static AmxAhead amx_next_of_a(const ProductRun *r, int64_t i, int64_t first, int64_t panel, int64_t panels) {
    const ProductOperand *o = &r->a;
    int64_t each = (AMX_PANEL + panels - 1) / panels, line = panel * each;
    AmxAhead next = {.lines = min_i64(each, min_i64(AMX_PANEL, r->m - i) - line)};
    if (next.lines <= 0) return amx_nothing;
    /* Rows by number mostly follow each other. */
    int64_t at = o->along ? product_line(o, i + line) * o->row + first : (first + line) * o->row + i;
    next.at = tensor_at(o->data, at, DTYPE_BF16);
    next.row = o->row * 2;
    next.step = o->along ? AMX_GROUP * 2 : AMX_GROUP * o->row * 2;
    return next;
}

/* Prefetches the destination of a strip's sums. */
static void amx_fetch_c(const Strip *s) {
    const ProductRun *r = s->run;
    bool rounded = s->last && r->rounded;
    const char *c = rounded ? (const char *)(r->rounded + s->i * r->rounded_row + s->j)
                            : (const char *)(r->c + s->i * r->c_row + s->j);
    int64_t row = rounded ? 2 * r->rounded_row : 4 * r->c_row, bytes = s->cols * (rounded ? 2 : 4);
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(c + i * row + b, 1);
}

/* Multiplies one strip by all panels of B. */
static void amx_sweep(const ProductRun *r, int64_t i, int64_t first, int64_t depth, const float *b,
                      const float *a) {
    const int64_t groups = amx_groups(depth), panels = amx_padded(r->n) / AMX_PANEL;
    for (int64_t p = 0; p < panels; p++) {
        AmxAhead next = amx_next_of_a(r, i + AMX_PANEL, first, p, panels);
        Strip s = amx_strip_at(r, i, p * AMX_PANEL, first, depth),
              after = amx_strip_at(r, i, s.j + AMX_PANEL, first, depth);
        if (p + 1 < panels && !amx_makes_lines(&after)) amx_fetch_c(&after);
        amx_strip(&s, a, b + p * groups * AMX_WORDS * 2, groups, &next);
    }
}

/* Packs as many blocks of B at a time as fit into its buffer, `words` each. */
static void amx_run_blocks(const ProductRun *r, float *scratch) {
    float *a = scratch + AMX_B_WORDS;
    const int64_t block = amx_block_of(r->k), words = block / 2 * amx_padded(r->n);
    const int64_t span = AMX_B_WORDS / words * block;
    for (int64_t start = 0; start < r->k; start += span) {
        const int64_t end = min_i64(r->k, start + span);
        float *b = scratch;
        for (int64_t first = start; first < end; first += block, b += words)
            amx_pack_b(r, 0, r->n, first, min_i64(block, r->k - first), b);
        for (int64_t i = 0; i < r->m; i += AMX_PANEL) {
            b = scratch;
            for (int64_t first = start; first < end; first += block, b += words) {
                int64_t depth = min_i64(block, r->k - first);
                amx_pack_a(r, i, min_i64(AMX_PANEL, r->m - i), first, depth, a);
                amx_written();
                amx_sweep(r, i, first, depth, b, a);
            }
        }
    }
}

/* Few rows, columns from `from` on. As run_few: B is read sequentially, and one packed panel stays in the L1
 * cache. */
static void amx_run_packed(const ProductRun *r, int64_t from, float *scratch) {
    enum { SPAN = AMX_A_WORDS / (AMX_BLOCK * AMX_WORDS) }; /* blocks of A that fit into its buffer */
    float *a = scratch + AMX_B_WORDS;
    int64_t block = amx_block_of(r->k);
    for (int64_t start = 0; start < r->k; start += SPAN * block) {
        int64_t end = min_i64(r->k, start + SPAN * block);
        for (int64_t first = start; first < end; first += block)
            amx_pack_a(r, 0, r->m, first, min_i64(block, end - first), a + (first - start) * FEW_ROWS / 2);
        for (int64_t j = from; j < r->n; j += AMX_PANEL)
            for (int64_t first = start; first < end; first += block) {
                int64_t depth = min_i64(block, end - first);
                Strip s = amx_strip_at(r, 0, j, first, depth);
                amx_pack_b(r, j, s.cols, first, depth, scratch);
                amx_written();
                amx_strip(&s, a + (first - start) * FEW_ROWS / 2, scratch, amx_groups(depth), &amx_nothing);
            }
    }
}

/* Lines of B from `line` on, as many as a panel has, prefetched with the groups of a chain: in the order of
 * memory if they are one piece of it. */
static AmxAhead amx_next_of_b(const ProductRun *r, int64_t line) {
    const ProductOperand *o = &r->b;
    if (line + AMX_PANEL > r->n) return amx_nothing;
    AmxAhead next = {tensor_at(o->data, line * o->row, DTYPE_BF16), AMX_PANEL, o->row * 2, 64};
    if (o->row == r->k) next.row = 64, next.step = AMX_PANEL * 64;
    return next;
}

static void amx_fetch(AmxAhead a, int64_t groups) {
    for (int64_t g = 0; g < groups; g++, a.at += a.step)
        for (int64_t i = 0; i < a.lines; i++) __builtin_prefetch(a.at + i * a.row, 0, 2);
}

/* The strip of all rows and the columns of one panel, transposed: lines of B in place are the rows of its
 * tiles, and x holds A's pairs, [k / 2][AMX_SIDE]. */
static void amx_strip_in_place(const Strip *s, const float *x) {
    const ProductRun *r = s->run;
    float tiles[AMX_PANEL * AMX_SIDE];
    AmxSums sums;
    const int64_t line = r->b.row * 2;
    const AmxAhead next = amx_next_of_b(r, s->j + AMX_PANEL);
    if (s->add) {
        amx_begin_sums(s, sums);
        transpose_block((MatrixView){sums, AMX_SIDE, AMX_PANEL, AMX_PANEL}, tiles, AMX_SIDE, 1, DTYPE_F32);
        amx_written();
        amx_load(tiles, AMX_SIDE, 2, 1);
    } else {
        amx_zero();
    }
    const AmxTiles b = {tensor_at(r->b.data, s->j * r->b.row, DTYPE_BF16), line, AMX_GROUP * 2,
                        AMX_SIDE * line};
    amx_chain((AmxOperands){b, x, AMX_SIDE, r->k / AMX_GROUP}, &next, 2, 1, false);
    amx_store(tiles, AMX_SIDE, 2, 1);
    transpose_block((MatrixView){tiles, AMX_PANEL, AMX_SIDE, AMX_SIDE}, sums, AMX_PANEL, 1, DTYPE_F32);
    amx_end_sums(s, sums);
}

/* Few rows by whole panels of columns: reading B takes the time, and packing it would double that. An element
 * has the same bits whichever of the instruction's operands its row is, since the instruction only multiplies
 * them. Columns of tiles for rows that A does not have are not used. */
static void amx_run_in_place(const ProductRun *r, float *x) {
    amx_fetch(amx_next_of_b(r, 0), r->k / AMX_GROUP);
    transpose_pairs(operand_view(&r->a, 0, r->m, 0, r->k, DTYPE_BF16), x, AMX_SIDE);
    amx_written();
    for (int64_t j = 0; j + AMX_PANEL <= r->n; j += AMX_PANEL) {
        const Strip s = amx_strip_at(r, 0, j, 0, r->k);
        amx_strip_in_place(&s, x);
    }
}

/* Whether lines are contiguous and whole groups, those of A lie together, and A's pairs fit into the
 * scratch. */
static bool amx_reads_in_place(const ProductRun *r) {
    return r->a.along && !r->a.lines && r->b.along && r->k % AMX_GROUP == 0 &&
           r->k / 2 * AMX_SIDE <= AMX_B_WORDS;
}

static void amx_run_few(const ProductRun *r, float *scratch) {
    int64_t done = 0;
    if (amx_reads_in_place(r)) {
        amx_run_in_place(r, scratch);
        done = r->n / AMX_PANEL * AMX_PANEL;
    }
    if (done < r->n) amx_run_packed(r, done, scratch);
}
_Static_assert((int)FEW_ROWS == (int)AMX_SIDE, "few rows are those of a tile");

static void amx_product_run(const ProductRun *r, float *scratch) {
    if (r->type != DTYPE_BF16) {
        product_run(r, scratch);
        return;
    }
    amx_begin();
    if (r->m <= FEW_ROWS)
        amx_run_few(r, scratch);
    else
        amx_run_blocks(r, scratch);
    amx_end();
    _mm_sfence(); /* non-temporal stores must be visible before the thread reports that it is done */
}

#endif
