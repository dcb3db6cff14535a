/* fp32 products of one tile: what gemm.c makes every product of that oneDNN's bf16 primitives do not make.
 * Part of kernels_all.h, after tile.h.
 *
 * Why not a library's sgemm: it picks among its kernels by the shape of a call and by how far apart rows are,
 * and they add in different orders. Then a rank that has half the rows of a weight gets other bits for them
 * than a rank that has all. Here an element of C is one and the same sum, whatever m, n, the row lengths and
 * its place in the tile:
 *
 *     block sum = fma(a_255, b_255, ... fma(a_1, b_1, a_0 b_0)),   PRODUCT_BLOCK terms, the last block fewer
 *     C = (add ? C : 0) + block sum + block sum + ...              in ascending order
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
    if (panel < VLEN && left >= panel) { /* panels of 4 rows, vectors of 8 */
        Quad q = quad_get(from, 0, t);
        memcpy(to, &q, sizeof q);
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

/* C [rows, cols] of a panel of A and one of B. */
INLINE void strip(int64_t depth, const float *a, const float *b, float *c, int64_t row, int64_t cols,
                  bool add, const int rows, const int vectors) {
    Vec sum[STRIP_ROWS][STRIP_VECTORS];
    for (int r = 0; r < rows; r++) {
        __builtin_prefetch(c + r * row, 1); /* wanted when the sums are there */
        __builtin_prefetch(c + r * row + 16, 1);
        for (int v = 0; v < vectors; v++) sum[r][v] = (Vec){0};
    }
    for (int64_t p = 0; p < depth; p++, a += STRIP_ROWS, b += STRIP_COLS) {
        Vec x[STRIP_VECTORS];
        for (int v = 0; v < vectors; v++) x[v] = vec_load(b + v * VLEN);
        for (int r = 0; r < rows; r++) {
            Vec scalar = vec_set(a[r]);
            for (int v = 0; v < vectors; v++) sum[r][v] += scalar * x[v];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            float *to = c + r * row + v * VLEN;
            int64_t left = cols - v * VLEN;
            put(to, 0, left, DTYPE_F32, add ? get(to, 0, left, DTYPE_F32) + sum[r][v] : sum[r][v]);
        }
}

INLINE void strips_of(int64_t depth, const float *a, const float *b, float *c, int64_t row, int64_t rows,
                      int64_t cols, bool add, const int vectors) {
    for (; rows >= STRIP_ROWS; rows -= STRIP_ROWS) {
        strip(depth, a, b, c, row, cols, add, STRIP_ROWS, vectors);
        a += STRIP_ROWS * depth, c += STRIP_ROWS * row;
    }
    for (; rows > 0; rows--, a++, c += row) strip(depth, a, b, c, row, cols, add, 1, vectors);
}

/* All panels of A by one panel of B. */
static void strips(int64_t depth, const float *a, const float *b, float *c, int64_t row, int64_t rows,
                   int64_t cols, bool add) {
    if (cols > 2 * VLEN)
        strips_of(depth, a, b, c, row, rows, cols, add, 3);
    else if (cols > VLEN)
        strips_of(depth, a, b, c, row, rows, cols, add, 2);
    else
        strips_of(depth, a, b, c, row, rows, cols, add, 1);
}

/* ---- runs ---- */

/* Block by block: B is packed once for all rows of A. */
static void run_blocks(const ProductRun *r, float *room) {
    float *a = room + PRODUCT_BLOCK * PRODUCT_COLS;
    for (int64_t first = 0; first < r->k; first += PRODUCT_BLOCK) {
        int64_t depth = min_i64(PRODUCT_BLOCK, r->k - first);
        pack_b(r, 0, r->n, first, depth, room);
        for (int64_t i = 0; i < r->m; i += PACK_ROWS) {
            int64_t rows = min_i64(PACK_ROWS, r->m - i);
            pack_a(r, i, rows, first, depth, a);
            for (int64_t j = 0; j < r->n; j += STRIP_COLS)
                strips(depth, a, room + j * depth, r->c + i * r->c_row + j, r->c_row, rows,
                       min_i64(STRIP_COLS, r->n - j), r->add || first > 0);
        }
    }
}

/* Few rows (a token that is generated): time is what reading B takes. So it is read in order, a panel's whole
 * lines one after the other, and what is packed of it stays in the first-level cache. */
static void run_few(const ProductRun *r, float *room) {
    float *a = room + PRODUCT_BLOCK * PRODUCT_COLS;
    enum { SPAN = PACK_ROWS / FEW_ROWS * PRODUCT_BLOCK }; /* what of A there is room for */
    for (int64_t start = 0; start < r->k; start += SPAN) {
        int64_t end = min_i64(r->k, start + SPAN);
        for (int64_t first = start; first < end; first += PRODUCT_BLOCK)
            pack_a(r, 0, r->m, first, min_i64(PRODUCT_BLOCK, end - first), a + (first - start) * FEW_ROWS);
        for (int64_t j = 0; j < r->n; j += STRIP_COLS) {
            int64_t cols = min_i64(STRIP_COLS, r->n - j);
            for (int64_t first = start; first < end; first += PRODUCT_BLOCK) {
                int64_t depth = min_i64(PRODUCT_BLOCK, end - first);
                pack_b(r, j, cols, first, depth, room);
                strips(depth, a + (first - start) * FEW_ROWS, room, r->c + j, r->c_row, r->m, cols,
                       r->add || first > 0);
            }
        }
    }
}

static void product_run(const ProductRun *r, float *room) {
    if (r->m <= FEW_ROWS)
        run_few(r, room);
    else
        run_blocks(r, room);
}
