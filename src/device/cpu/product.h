/* Products of one tile, in fp32: what gemm.c makes all products of but those of oneDNN's bf16 primitives.
 * Part of kernels_all.h, after tile.h.
 *
 * Why not a library's sgemm: it picks among its kernels by the shape of a call and by how far apart rows are,
 * and they add in different orders. Then a rank that has half the rows of a weight gets other bits for them
 * than a rank that has all. Here an element of C is one and the same sum, whatever m, n, the row lengths and
 * its place in the tile:
 *
 *     block sum = fma(a_n, b_n, ... fma(a_1, b_1, a_0 b_0)),   at most PRODUCT_BLOCK terms (block_of)
 *     C = (add ? C : 0) + block sum + block sum + ...              in ascending order
 *     C = wait[n] + ... (wait[0] + C)                              the sums of leaves further left, if any
 *
 * (a product and a sum where the instruction set has no fma). Short blocks that start from zero lose fewer
 * digits than one long chain, and k need not fit into a cache.
 *
 * B is packed into panels of STRIP_COLS columns, [k][columns], so that the inner loop reads it in order. A is
 * read where it is if its rows are rows in memory; of A transposed, panels of STRIP_ROWS rows are packed in
 * the same way. STRIP_ROWS rows of A stay in the first-level cache while panels of B stream by from the
 * second, 16 bytes a cycle. The sums of a strip fill the registers: with VLEN 8, 4 rows x 3 vectors, 3
 * vectors of B and a scalar of A are the 16 that there are; with VLEN 16, 8 x 3 + 3 + 1 of 32. */

enum { STRIP_ROWS = VLEN == 16 ? 8 : 4, STRIP_VECTORS = 3, STRIP_COLS = STRIP_VECTORS * VLEN };

/* ---- packing ---- */

/* `width` lines of `depth` elements, each contiguous, `row` apart: panels of [depth][panel], the last one
 * filled up with zeros. A vector of lines at a time, each to its end: a processor follows so many alone. */
INLINE void pack_along(const void *from, int64_t row, int64_t width, int64_t depth, float *to,
                       const int64_t panel, Dtype t) {
    const int64_t group = min_i64(panel, VLEN);
    for (int64_t i = 0; i < width; i += group) {
        float *here = to + i / panel * panel * depth + i % panel;
        transpose_block(tensor_at(from, i * row, t), row, min_i64(group, width - i), depth, here, panel, 1,
                        t);
    }
    int64_t rest = width % panel;
    to += (width - rest) * depth;
    for (int64_t p = 0; rest && p < depth; p++)
        memset(to + p * panel + rest, 0, (size_t)(panel - rest) * sizeof *to);
}

/* `left` elements (at least 1) to a line of a panel, whose other elements become 0. */
INLINE void pack_line(const void *from, int64_t left, float *to, const int64_t panel, Dtype t) {
    for (int64_t v = 0; v < panel; v += VLEN)
        put(to, v, panel - v, DTYPE_F32, left > v ? get(from, v, left - v, t) : (Vec){0});
}

/* Two panels of half a vector: two lines of two rows, each row `row` long, become two lines of each panel. */
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

/* The same of lines that lie across: element p of line i is from[p * row + i]. What is read of a row at once
 * are a few panels, whole lines of the cache. */
INLINE void pack_across(const void *from, int64_t row, int64_t width, int64_t depth, float *to,
                        const int64_t panel, Dtype t) {
    enum { AHEAD = 8 };
    const int64_t group = panel < 16 ? 8 * panel : 2 * panel;
    for (int64_t i = 0; i < width; i += group) {
        int64_t end = min_i64(width, i + group), p = 0;
        for (; 2 * panel == VLEN && end - i == group && p + 2 <= depth; p += 2) {
            const void *at = tensor_at(from, p * row, t);
            __builtin_prefetch(tensor_at(at, AHEAD * row + i, t));
            __builtin_prefetch(tensor_at(at, (AHEAD + 1) * row + i, t));
            for (int64_t j = i; j < end; j += VLEN)
                pack_halves(tensor_at(at, j, t), row, to + j * depth + p * panel, panel * depth, t);
        }
        for (; p < depth; p++) {
            const void *at = tensor_at(from, p * row, t);
            __builtin_prefetch(tensor_at(at, AHEAD * row + i, t));
            for (int64_t j = i; j < end; j += panel)
                pack_line(tensor_at(at, j, t), width - j, to + j * depth + p * panel, panel, t);
        }
    }
}

INLINE void pack_typed(const ProductOperand *o, int64_t line, int64_t width, int64_t first, int64_t depth,
                       float *to, const int64_t panel, Dtype t) {
    if (o->along)
        pack_along(tensor_at(o->data, line * o->row + first, t), o->row, width, depth, to, panel, t);
    else
        pack_across(tensor_at(o->data, first * o->row + line, t), o->row, width, depth, to, panel, t);
}

/* Elements first .. first+depth-1 of lines line .. line+width-1. */
static void pack_b(const ProductRun *r, int64_t line, int64_t width, int64_t first, int64_t depth,
                   float *to) {
    BY_DTYPE(r->type, pack_typed, &r->b, line, width, first, depth, to, STRIP_COLS);
}

/* Rows of A as strips read them: panels of [depth][STRIP_ROWS] (row = 0), or rows `row` apart. */
typedef struct Rows {
    const float *at;
    int64_t row, depth;
} Rows;

/* What lies along is read where it is: a row is read in order. bf16 is widened, in rows too. */
static Rows rows_of_a(const ProductRun *r, int64_t line, int64_t width, int64_t first, int64_t depth,
                      float *to) {
    const ProductOperand *o = &r->a;
    if (!o->along) {
        BY_DTYPE(r->type, pack_typed, o, line, width, first, depth, to, STRIP_ROWS);
        return (Rows){to, 0, depth};
    }
    const void *from = tensor_at(o->data, line * o->row + first, r->type);
    if (r->type == DTYPE_F32) return (Rows){from, o->row, depth};
    for (int64_t i = 0; i < width; i++) EACH_VECTOR(p, left, depth)
    put(to + i * depth, p, left, DTYPE_F32, get(from, i * o->row + p, left, DTYPE_BF16));
    return (Rows){to, depth, depth};
}

/* ---- strips ---- */

/* Where sums of some rows of A and a panel of B go: C from (i, j) on. After the last block, what waits to the
 * left of them in a tree is added, nearest first, while they are still in registers. */
typedef struct Strip {
    const ProductRun *run;
    int64_t i, j, cols;
    bool add, last;
} Strip;

/* Sums are registers only if all their indices are known early: else a compiler gives them memory too. */
#define UNROLL _Pragma("GCC unroll 16")

INLINE void add_rows(Vec sum[STRIP_ROWS][STRIP_VECTORS], const float *c, int64_t c_row, int64_t cols,
                     const int rows, const int vectors) {
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] =
        get(c + r * c_row, v * VLEN, cols - v * VLEN, DTYPE_F32) + sum[r][v];
}

INLINE void put_rows(Vec sum[STRIP_ROWS][STRIP_VECTORS], void *c, int64_t c_row, int64_t cols, const int rows,
                     const int vectors, Dtype t) {
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++)
        put(tensor_to(c, r * c_row, t), v * VLEN, cols - v * VLEN, t, sum[r][v]);
}

INLINE void fetch_rows(const float *c, int64_t c_row, const int rows, const int vectors) {
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++)
        __builtin_prefetch(c + r * c_row + v * VLEN, 1);
}

/* Sums of `rows` rows. B is fetched AHEAD terms early: it streams from the second-level cache. */
INLINE void strip(const Strip *s, const float *a, int64_t a_row, const int64_t a_step, int64_t depth,
                  const float *b, const int rows, const int vectors, const int64_t cols) {
    enum { AHEAD = 6 };
    const ProductRun *run = s->run;
    Vec sum[STRIP_ROWS][STRIP_VECTORS];
    float *c = run->c + s->i * run->c_row + s->j;
    int64_t wait_at = s->i * run->wait_row + s->j, waiting = s->last ? run->waiting : 0;
    if (s->add || !s->last || !run->rounded)
        fetch_rows(c, run->c_row, rows, vectors); /* wanted when the sums are there */
    for (int64_t w = 0; w < waiting; w++) fetch_rows(run->wait[w] + wait_at, run->wait_row, rows, vectors);
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = (Vec){0};
    for (int64_t p = 0; p < depth; p++, a += a_step, b += STRIP_COLS) {
        Vec x[STRIP_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(b + AHEAD * STRIP_COLS + v * VLEN);
        UNROLL for (int v = 0; v < vectors; v++) x[v] = vec_load(b + v * VLEN);
        UNROLL for (int r = 0; r < rows; r++) {
            Vec scalar = vec_set(a[r * a_row]);
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = vec_multiply_add(sum[r][v], scalar, x[v]);
        }
    }
    if (s->add) add_rows(sum, c, run->c_row, cols, rows, vectors);
    for (int64_t w = 0; w < waiting; w++)
        add_rows(sum, run->wait[w] + wait_at, run->wait_row, cols, rows, vectors);
    if (s->last && run->rounded)
        put_rows(sum, run->rounded + s->i * run->rounded_row + s->j, run->rounded_row, cols, rows, vectors,
                 DTYPE_BF16);
    else
        put_rows(sum, c, run->c_row, cols, rows, vectors, DTYPE_F32);
}

/* As many rows at once as registers hold sums of; those left over one by one. */
INLINE void strips_of(Strip s, const Rows *a, int64_t i, const float *b, int64_t rows, const int vectors,
                      const int64_t cols) {
    const float *at = a->at + i * (a->row ? a->row : a->depth);
    if (a->row && rows == STRIP_ROWS)
        strip(&s, at, a->row, 1, a->depth, b, STRIP_ROWS, vectors, cols);
    else if (rows == STRIP_ROWS)
        strip(&s, at, 1, STRIP_ROWS, a->depth, b, STRIP_ROWS, vectors, cols);
    else
        for (int64_t r = 0; r < rows; r++, s.i++)
            strip(&s, at + r * (a->row ? a->row : 1), 0, a->row ? 1 : STRIP_ROWS, a->depth, b, 1, vectors,
                  cols);
}

/* At most STRIP_ROWS rows of A, from its i-th on, by one panel of B. */
static void strips(Strip s, const Rows *a, int64_t i, const float *b, int64_t rows) {
    if (s.cols == STRIP_COLS)
        strips_of(s, a, i, b, rows, 3, STRIP_COLS);
    else if (s.cols > 2 * VLEN)
        strips_of(s, a, i, b, rows, 3, s.cols);
    else if (s.cols > VLEN)
        strips_of(s, a, i, b, rows, 2, s.cols);
    else
        strips_of(s, a, i, b, rows, 1, s.cols);
}

/* ---- runs ---- */

/* Blocks of nearly equal length: a short one at the end would cost as much as a long one. They follow from k
 * alone, which is the same for a leaf wherever it is summed. */
static int64_t block_of(int64_t k) {
    int64_t blocks = (k + PRODUCT_BLOCK - 1) / PRODUCT_BLOCK;
    return (k + blocks - 1) / blocks;
}

static Strip strip_at(const ProductRun *r, int64_t i, int64_t j, int64_t first) {
    return (Strip){r,
                   i,
                   j,
                   .cols = min_i64(STRIP_COLS, r->n - j),
                   .add = r->add || first > 0,
                   .last = first + block_of(r->k) >= r->k};
}

/* Block by block: B is packed once for all rows of A. A group of its rows meets SWEEP columns of B at a time:
 * those stay in the second-level cache while all rows of the group pass. */
static void run_blocks(const ProductRun *r, float *room) {
    enum { SWEEP = 384 };
    float *a = room + PRODUCT_BLOCK * PRODUCT_COLS;
    int64_t block = block_of(r->k);
    for (int64_t first = 0; first < r->k; first += block) {
        int64_t depth = min_i64(block, r->k - first);
        pack_b(r, 0, r->n, first, depth, room);
        for (int64_t from = 0; from < r->m; from += PACK_ROWS) {
            int64_t count = min_i64(PACK_ROWS, r->m - from);
            Rows rows = rows_of_a(r, from, count, first, depth, a);
            for (int64_t left = 0; left < r->n; left += SWEEP)
                for (int64_t i = 0; i < count; i += STRIP_ROWS)
                    for (int64_t j = left; j < min_i64(r->n, left + SWEEP); j += STRIP_COLS)
                        strips(strip_at(r, from + i, j, first), &rows, i, room + j * depth,
                               min_i64(STRIP_ROWS, count - i));
        }
    }
}

/* Few rows (a token that is generated): time is what reading B takes. So it is read in order, a panel's whole
 * lines one after the other, and what is packed of it stays in the first-level cache. */
static void run_few(const ProductRun *r, float *room) {
    float *a = room + PRODUCT_BLOCK * PRODUCT_COLS;
    int64_t block = block_of(r->k), span = PACK_ROWS / FEW_ROWS; /* of A there is room for so many blocks */
    for (int64_t start = 0; start < r->k; start += span * block) {
        Rows rows[PACK_ROWS / FEW_ROWS];
        int64_t count = 0;
        for (int64_t first = start; count < span && first < r->k; first += block, count++)
            rows[count] =
                rows_of_a(r, 0, r->m, first, min_i64(block, r->k - first), a + count * block * FEW_ROWS);
        for (int64_t j = 0; j < r->n; j += STRIP_COLS)
            for (int64_t q = 0; q < count; q++) {
                int64_t first = start + q * block;
                pack_b(r, j, min_i64(STRIP_COLS, r->n - j), first, rows[q].depth, room);
                for (int64_t i = 0; i < r->m; i += STRIP_ROWS)
                    strips(strip_at(r, i, j, first), &rows[q], i, room, min_i64(STRIP_ROWS, r->m - i));
            }
    }
}

static void product_run(const ProductRun *r, float *room) {
    if (r->m <= FEW_ROWS)
        run_few(r, room);
    else
        run_blocks(r, room);
}

/* ---- the limit ---- */

/* Sums of a strip that stay in registers, and so do what is added to them: what a core could do at most. */
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

#if VLEN == 16
__attribute__((target("avx512bf16"))) static double dot_limit(int64_t rounds, float *sums) {
    enum { CHAINS = 16 }; /* enough for two units of 4 cycles each */
    __m512 sum[CHAINS];
    __m512bh x = (__m512bh)_mm512_loadu_si512(sums), y = (__m512bh)_mm512_loadu_si512(sums + VLEN);
    UNROLL for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_loadu_ps(sums + c * VLEN);
    for (int64_t i = 0; i < rounds; i++)
        UNROLL for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_dpbf16_ps(sum[c], x, y);
    UNROLL for (int c = 0; c < CHAINS; c++) _mm512_storeu_ps(sums + c * VLEN, sum[c]);
    return 4.0 * (double)rounds * CHAINS * VLEN;
}
#endif

static double product_limit(int64_t rounds, Dtype t, float *sums) {
    if (t == DTYPE_F32) return fma_limit(rounds, sums);
#if VLEN == 16
    if (__builtin_cpu_supports("avx512bf16")) return dot_limit(rounds, sums);
#endif
    return 0;
}
