/* fp32 products of one tile: what gemm.c makes every product of that oneDNN's bf16 primitives do not make.
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
 * Operands are packed first: A into panels of STRIP_ROWS rows, B into panels of STRIP_COLS columns, each
 * [k][rows or columns], so that the inner loop reads both in order, at a constant distance. A panel of B
 * (24 KiB to 48 KiB) stays in the first-level cache while all panels of A pass by; those (PACK_ROWS rows,
 * 192 KiB) stay in the second. The sums of a strip fill the registers: with VLEN 8, 4 rows x 3 vectors, 3
 * vectors of B and a scalar of A are the 16 that there are; with VLEN 16, 8 x 3 + 3 + 1 of 32. */

enum { STRIP_ROWS = VLEN == 16 ? 8 : 4, STRIP_VECTORS = 3, STRIP_COLS = STRIP_VECTORS * VLEN };

/* ---- packing ---- */

/* `width` lines of `depth` elements, each contiguous, `row` apart: panels of [depth][panel], the last one
 * filled up with zeros. There are `lines` from there on: while a panel is transposed the next one is fetched,
 * since each line is too short for a processor to see by itself where they lead. */
INLINE void pack_along(const void *from, int64_t row, int64_t lines, int64_t width, int64_t depth, float *to,
                       const int64_t panel, Dtype t) {
    enum { STEP = 16 };
    for (int64_t i = 0; i < width; i += panel, to += panel * depth) {
        int64_t here = min_i64(panel, width - i), next = min_i64(panel, lines - i - here);
        for (int64_t p = 0; p < depth; p += STEP) {
            const void *at = tensor_at(from, i * row + p, t);
            for (int64_t r = 0; r < next; r++) __builtin_prefetch(tensor_at(at, (panel + r) * row, t));
            transpose_block(at, row, here, min_i64(STEP, depth - p), to + p * panel, panel, 1, t);
        }
        for (int64_t p = 0; here < panel && p < depth; p++)
            memset(to + p * panel + here, 0, (size_t)(panel - here) * sizeof *to);
    }
}

/* `left` elements (at least 1) to a line of a panel, whose other elements become 0. */
INLINE void pack_line(const void *from, int64_t left, float *to, const int64_t panel, Dtype t) {
    if (panel < VLEN && left >= panel) { /* panels of 4 rows and vectors of 8, or 8 and 16 */
        for (int64_t i = 0; i < panel; i += 4) {
            Quad q = quad_get(from, i, t);
            memcpy(to + i, &q, sizeof q);
        }
        return;
    }
    for (int64_t v = 0; v < panel; v += VLEN)
        put(to, v, panel - v, DTYPE_F32, left > v ? get(from, v, left - v, t) : (Vec){0});
}

/* The same of lines that lie across: element p of line i is from[p * row + i]. What is read of a row at once
 * are a few panels, whole lines of the cache. */
INLINE void pack_across(const void *from, int64_t row, int64_t width, int64_t depth, float *to,
                        const int64_t panel, Dtype t) {
    enum { AHEAD = 8 };
    const int64_t group = panel < 16 ? 8 * panel : 2 * panel;
    for (int64_t i = 0; i < width; i += group)
        for (int64_t p = 0; p < depth; p++) {
            const void *at = tensor_at(from, p * row, t);
            __builtin_prefetch(tensor_at(at, AHEAD * row + i, t));
            for (int64_t j = i; j < min_i64(width, i + group); j += panel)
                pack_line(tensor_at(at, j, t), width - j, to + j * depth + p * panel, panel, t);
        }
}

INLINE void pack_typed(const ProductOperand *o, int64_t lines, int64_t line, int64_t width, int64_t first,
                       int64_t depth, float *to, const int64_t panel, Dtype t) {
    if (o->along)
        pack_along(tensor_at(o->data, line * o->row + first, t), o->row, lines - line, width, depth, to,
                   panel, t);
    else
        pack_across(tensor_at(o->data, first * o->row + line, t), o->row, width, depth, to, panel, t);
}

/* Elements first .. first+depth-1 of lines line .. line+width-1. */
static void pack_a(const ProductRun *r, int64_t line, int64_t width, int64_t first, int64_t depth,
                   float *to) {
    BY_DTYPE(r->type, pack_typed, &r->a, r->m, line, width, first, depth, to, STRIP_ROWS);
}
static void pack_b(const ProductRun *r, int64_t line, int64_t width, int64_t first, int64_t depth,
                   float *to) {
    BY_DTYPE(r->type, pack_typed, &r->b, r->n, line, width, first, depth, to, STRIP_COLS);
}

/* ---- strips ---- */

/* Where sums of a panel of A and one of B go: C from (i, j) on. After the last block, what waits to the left
 * of them in a tree is added, nearest first, while they are still in registers. */
typedef struct Strip {
    const ProductRun *run;
    int64_t i, j, cols;
    bool add, last;
} Strip;

INLINE void strip(const Strip *s, int64_t depth, const float *a, const float *b, const int rows,
                  const int vectors) {
    const ProductRun *run = s->run;
    Vec sum[STRIP_ROWS][STRIP_VECTORS];
    float *c = run->c + s->i * run->c_row + s->j;
    int64_t wait_at = s->i * run->wait_row + s->j, waiting = s->last ? run->waiting : 0;
    for (int r = 0; r < rows; r++) {
        __builtin_prefetch(c + r * run->c_row, 1); /* wanted when the sums are there */
        __builtin_prefetch(c + r * run->c_row + 16, 1);
        for (int64_t w = 0; w < waiting; w++) {
            __builtin_prefetch(run->wait[w] + wait_at + r * run->wait_row);
            __builtin_prefetch(run->wait[w] + wait_at + r * run->wait_row + 16);
        }
        for (int v = 0; v < vectors; v++) sum[r][v] = (Vec){0};
    }
    for (int64_t p = 0; p < depth; p++, a += STRIP_ROWS, b += STRIP_COLS) {
        Vec x[STRIP_VECTORS];
        for (int v = 0; v < vectors; v++) x[v] = vec_load(b + v * VLEN);
        for (int r = 0; r < rows; r++) {
            Vec scalar = vec_set(a[r]);
            for (int v = 0; v < vectors; v++) sum[r][v] = vec_multiply_add(sum[r][v], scalar, x[v]);
        }
    }
    for (int r = 0; s->add && r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = get(c + r * run->c_row, v * VLEN, s->cols - v * VLEN, DTYPE_F32) + sum[r][v];
    for (int64_t w = 0; w < waiting; w++) {
        const float *left = run->wait[w] + wait_at;
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] =
                    get(left + r * run->wait_row, v * VLEN, s->cols - v * VLEN, DTYPE_F32) + sum[r][v];
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            put(c + r * run->c_row, v * VLEN, s->cols - v * VLEN, DTYPE_F32, sum[r][v]);
}

INLINE void strips_of(Strip s, int64_t depth, const float *a, const float *b, int64_t rows,
                      const int vectors) {
    for (; rows >= STRIP_ROWS; rows -= STRIP_ROWS) {
        strip(&s, depth, a, b, STRIP_ROWS, vectors);
        a += STRIP_ROWS * depth, s.i += STRIP_ROWS;
    }
    for (; rows > 0; rows--, a++, s.i++) strip(&s, depth, a, b, 1, vectors);
}

/* All panels of A by one panel of B. */
static void strips(Strip s, int64_t depth, const float *a, const float *b, int64_t rows) {
    if (s.cols > 2 * VLEN)
        strips_of(s, depth, a, b, rows, 3);
    else if (s.cols > VLEN)
        strips_of(s, depth, a, b, rows, 2);
    else
        strips_of(s, depth, a, b, rows, 1);
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

/* Block by block: B is packed once for all rows of A. */
static void run_blocks(const ProductRun *r, float *room) {
    float *a = room + PRODUCT_BLOCK * PRODUCT_COLS;
    int64_t block = block_of(r->k);
    for (int64_t first = 0; first < r->k; first += block) {
        int64_t depth = min_i64(block, r->k - first);
        pack_b(r, 0, r->n, first, depth, room);
        for (int64_t i = 0; i < r->m; i += PACK_ROWS) {
            int64_t rows = min_i64(PACK_ROWS, r->m - i);
            pack_a(r, i, rows, first, depth, a);
            for (int64_t j = 0; j < r->n; j += STRIP_COLS)
                strips(strip_at(r, i, j, first), depth, a, room + j * depth, rows);
        }
    }
}

/* Few rows (a token that is generated): time is what reading B takes. So it is read in order, a panel's whole
 * lines one after the other, and what is packed of it stays in the first-level cache. */
static void run_few(const ProductRun *r, float *room) {
    float *a = room + PRODUCT_BLOCK * PRODUCT_COLS;
    int64_t block = block_of(r->k), span = PACK_ROWS / FEW_ROWS * block; /* of A there is room for so much */
    for (int64_t start = 0; start < r->k; start += span) {
        int64_t end = min_i64(r->k, start + span);
        for (int64_t first = start; first < end; first += block)
            pack_a(r, 0, r->m, first, min_i64(block, end - first), a + (first - start) * FEW_ROWS);
        for (int64_t j = 0; j < r->n; j += STRIP_COLS)
            for (int64_t first = start; first < end; first += block) {
                int64_t depth = min_i64(block, end - first);
                pack_b(r, j, min_i64(STRIP_COLS, r->n - j), first, depth, room);
                strips(strip_at(r, 0, j, first), depth, a + (first - start) * FEW_ROWS, room, r->m);
            }
    }
}

static void product_run(const ProductRun *r, float *room) {
    if (r->m <= FEW_ROWS)
        run_few(r, room);
    else
        run_blocks(r, room);
}
