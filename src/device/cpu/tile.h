/* Products of small matrices in cache, and transposes: the building blocks of attention. Part of
 * kernels_all.h. */

enum { TILE_ROWS = 6, TILE_VECTORS = VLEN == 16 ? 4 : 2 }; /* sums of a tile fill most of the registers */

/* Rows of elements, `row` elements apart. */
typedef struct MatrixView {
    const void *at;
    int64_t rows, cols, row;
} MatrixView;

/* ---- prefetching ---- */

/* Rows of tensors to prefetch. They lie too far apart for the hardware prefetcher, and are too many to
 * request at once. So they are queued here, and products prefetch a few rows with every tile, which overlaps
 * the loads with arithmetic. A row that has not arrived in time is loaded when it is read. */
typedef struct AheadRows {
    const char *at;
    int64_t row, bytes, rows;
} AheadRows;
enum { AHEAD_RUNS = 32, AHEAD_ROWS = 3 /* with a tile */ };
typedef struct Ahead {
    AheadRows run[AHEAD_RUNS]; /* a ring */
    unsigned first, end;
} Ahead;

INLINE void ahead_add(Ahead *a, const void *from, int64_t row, int64_t rows, int64_t dim, Dtype c) {
    if (rows <= 0 || a->end - a->first == AHEAD_RUNS) return;
    int64_t size = (int64_t)dtype_bytes(c);
    a->run[a->end++ % AHEAD_RUNS] = (AheadRows){from, row * size, dim * size, rows};
}

INLINE void ahead_step(Ahead *a) {
    if (!a || a->first == a->end) return;
    AheadRows *r = &a->run[a->first % AHEAD_RUNS];
    for (int64_t i = 0; i < r->bytes; i += 64) __builtin_prefetch(r->at + i, 0, 2);
    r->at += r->row;
    if (--r->rows == 0) a->first++;
}

/* ---- products ---- */

typedef enum TileMode {
    TILE_SET,
    TILE_ADD,
    TILE_RESCALE
} TileMode; /* C = AB, C + AB, C * factor[column] + AB */

/* A product of a [m, k] and b [k, n], n a multiple of VLEN. A[i][p] is a[i * a_row + p * a_step], where one
 * of the two strides is 1. Each element is one chain of sums, whose order depends on neither its position nor
 * the shape. With `pairs`, both operands are bf16 pairs along k, in words of 32 bits, and k counts pairs. */
typedef struct Product {
    bool pairs;
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    TileMode mode;
    const float *factor;
    Ahead *ahead; /* or NULL */
} Product;

/* How operands lie; constants: rows of A lie across memory, terms are pairs. */
typedef struct TileForm {
    bool across, pairs;
} TileForm;

INLINE void tile(const Product *p, int64_t i, int64_t j, const int rows, const int vectors,
                 const TileForm form) {
    Vec sum[2 * TILE_ROWS][TILE_VECTORS];
    int64_t steps = p->k, a_row = form.across ? 1 : p->a_row, a_step = form.across ? p->a_step : 1,
            b_row = p->b_row;
    const float *a = p->a + i * a_row, *b = p->b + j;
    float *c = p->c + i * p->c_row + j;
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = p->mode == TILE_SET ? (Vec){0} : vec_load(c + r * p->c_row + v * VLEN);
            if (p->mode == TILE_RESCALE) sum[r][v] *= vec_load(p->factor + j + v * VLEN);
        }
    }
    for (int64_t s = 0; s < steps; s++) {
        Vec x[TILE_VECTORS];
        for (int v = 0; v < vectors; v++) x[v] = vec_load(b + v * VLEN);
        for (int r = 0; r < rows; r++) {
            Vec scalar = vec_term(a + r * a_row, form.pairs);
            for (int v = 0; v < vectors; v++) sum[r][v] = vec_add_terms(sum[r][v], scalar, x[v], form.pairs);
        }
        a += a_step;
        b += b_row;
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) vec_store(c + r * p->c_row + v * VLEN, sum[r][v]);
}

INLINE int64_t tile_rows(const Product *p, int64_t i, int64_t j, const int rows, const int vectors,
                         const TileForm form) {
    for (; i + rows <= p->m; i += rows) {
        for (int k = 0; k < AHEAD_ROWS; k++) ahead_step(p->ahead);
        tile(p, i, j, rows, vectors, form);
    }
    return i;
}

INLINE void tile_column(const Product *p, int64_t j, const int vectors, const TileForm form) {
    int64_t i = 0;
    if (vectors < TILE_VECTORS) i = tile_rows(p, i, j, 2 * TILE_ROWS, vectors, form);
    i = tile_rows(p, i, j, TILE_ROWS, vectors, form);
    i = tile_rows(p, i, j, 4, vectors, form);
    i = tile_rows(p, i, j, 1, vectors, form);
}

INLINE void tile_columns(const Product *p, const TileForm form) {
    int64_t j = 0;
    for (; j + TILE_VECTORS * VLEN <= p->n; j += TILE_VECTORS * VLEN) tile_column(p, j, TILE_VECTORS, form);
    for (; j < p->n; j += VLEN) tile_column(p, j, 1, form);
}

/* Not inlined: as parts of a larger function, the compiler did not keep a tile's sums in registers. */
static __attribute__((noinline)) void product_along(Product p) { tile_columns(&p, (TileForm){false, false}); }
static __attribute__((noinline)) void product_across(Product p) { tile_columns(&p, (TileForm){true, false}); }
#if VEC_PAIRS
static __attribute__((noinline)) void product_pairs_along(Product p) {
    tile_columns(&p, (TileForm){false, true});
}
static __attribute__((noinline)) void product_pairs_across(Product p) {
    tile_columns(&p, (TileForm){true, true});
}
#endif

static void product(Product p) {
#if VEC_PAIRS
    if (p.pairs && p.a_row == 1)
        product_pairs_across(p);
    else if (p.pairs)
        product_pairs_along(p);
    else
#endif
        if (p.a_row == 1)
        product_across(p);
    else
        product_along(p);
}

/* ---- transposes ---- */

/* Transposes in blocks of 4 x 4 words of 32 bits. A vector holds one row of each of its blocks, which lie
 * below each other in the matrix. Shuffles within 16 bytes then transpose all blocks at once, and one result
 * vector is one column of all blocks. For bf16 a word is two columns, which are separated afterwards. */
typedef float Quad __attribute__((vector_size(16)));

INLINE Quad quad_get(const void *p) {
    Quad q;
    memcpy(&q, p, sizeof q);
    return q;
}

/* Shuffles of two vectors: within each 16 bytes, interleave the low (or high) two words, or concatenate the
 * first (or last) two. */
#define LOW_4 0, 4, 1, 5
#define HIGH_4 2, 6, 3, 7
#define FRONT_4 0, 1, 4, 5
#define BACK_4 2, 3, 6, 7
#define LOW_8 0, 8, 1, 9, 4, 12, 5, 13
#define HIGH_8 2, 10, 3, 11, 6, 14, 7, 15
#define FRONT_8 0, 1, 8, 9, 4, 5, 12, 13
#define BACK_8 2, 3, 10, 11, 6, 7, 14, 15
#define LOW_16 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_16 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define FRONT_16 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define BACK_16 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31

/* Defines transpose_N, which transposes N rows of 16 bytes, `row` bytes apart, into columns of N numbers,
 * to_row apart. */
#define TRANSPOSE(N, Vector, words, get)                                                                     \
    INLINE void transpose_##N(const char *from, int64_t row, float *to, int64_t to_row, float factor,        \
                              Dtype t) {                                                                     \
        Vector a = get(from, 4 * row), b = get(from + row, 4 * row);                                         \
        Vector c = get(from + 2 * row, 4 * row), d = get(from + 3 * row, 4 * row);                           \
        Vector ab = __builtin_shufflevector(a, b, LOW_##N), cd = __builtin_shufflevector(c, d, LOW_##N);     \
        Vector ab2 = __builtin_shufflevector(a, b, HIGH_##N), cd2 = __builtin_shufflevector(c, d, HIGH_##N); \
        Vector word[4] = {                                                                                   \
            __builtin_shufflevector(ab, cd, FRONT_##N), __builtin_shufflevector(ab, cd, BACK_##N),           \
            __builtin_shufflevector(ab2, cd2, FRONT_##N), __builtin_shufflevector(ab2, cd2, BACK_##N)};      \
        for (int i = 0; i < 4; i++) {                                                                        \
            Vector low = t == DTYPE_F32 ? word[i] : (Vector)((words)word[i] << 16);                          \
            Vector high = (Vector)((words)word[i] & 0xffff0000);                                             \
            if (factor != 1) low *= factor, high *= factor; /* so that words may be pairs of bf16 */         \
            if (t == DTYPE_F32) {                                                                            \
                memcpy(to + i * to_row, &low, sizeof low);                                                   \
            } else {                                                                                         \
                memcpy(to + 2 * i * to_row, &low, sizeof low);                                               \
                memcpy(to + (2 * i + 1) * to_row, &high, sizeof high);                                       \
            }                                                                                                \
        }                                                                                                    \
    }

typedef uint32_t QuadBits __attribute__((vector_size(16)));
#define ONE_QUAD(p, far) quad_get(p)
TRANSPOSE(4, Quad, QuadBits, ONE_QUAD)

#if VLEN >= 8
typedef float Oct __attribute__((vector_size(32)));
typedef uint32_t OctBits __attribute__((vector_size(32)));
INLINE Oct oct_get(const char *p, int64_t far) {
    return __builtin_shufflevector(quad_get(p), quad_get(p + far), 0, 1, 2, 3, 4, 5, 6, 7);
}
TRANSPOSE(8, Oct, OctBits, oct_get)
#endif

#if VLEN == 16
INLINE Vec hex_get(const char *p, int64_t far) {
    return __builtin_shufflevector(oct_get(p, far), oct_get(p + 2 * far, far), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                   10, 11, 12, 13, 14, 15);
}
TRANSPOSE(16, Vec, VecBits, hex_get)
#endif

/* Rows of words of 16 bytes, `row` bytes apart. */
typedef struct QuadRows {
    const char *at;
    int64_t rows, words, row;
} QuadRows;

/* Transposes up to one cache line (64 bytes) of columns, all rows. Whole lines are consumed at once, before
 * they are evicted: rows a power of two apart compete for the same few cache sets. */
INLINE void transpose_lines(QuadRows from, float *to, int64_t to_row, float factor, Dtype t) {
    const int64_t step = 16 / (int64_t)dtype_bytes(t) * to_row;
    int64_t i = 0;
#if VLEN == 16
    for (; i + 16 <= from.rows; i += 16)
        for (int64_t w = 0; w < from.words; w++)
            transpose_16(from.at + i * from.row + 16 * w, from.row, to + i + w * step, to_row, factor, t);
#endif
#if VLEN >= 8
    for (; i + 8 <= from.rows; i += 8)
        for (int64_t w = 0; w < from.words; w++)
            transpose_8(from.at + i * from.row + 16 * w, from.row, to + i + w * step, to_row, factor, t);
#endif
    for (; i + 4 <= from.rows; i += 4)
        for (int64_t w = 0; w < from.words; w++)
            transpose_4(from.at + i * from.row + 16 * w, from.row, to + i + w * step, to_row, factor, t);
}

/* to[cols][rows] = from[rows][cols]^T * factor. */
INLINE void transpose_block(MatrixView from, float *to, int64_t to_row, float factor, Dtype t) {
    const int64_t bytes = (int64_t)dtype_bytes(t), word = 16 / bytes, line = 4 * word;
    int64_t full_rows = from.rows / 4 * 4, full_cols = from.cols / word * word;
    for (int64_t j = 0; j < full_cols; j += line) {
        const QuadRows lines = {tensor_at(from.at, j, t), from.rows, min_i64(line, full_cols - j) / word,
                                from.row * bytes};
        transpose_lines(lines, to + j * to_row, to_row, factor, t);
    }
    for (int64_t i = 0; i < from.rows; i++)
        for (int64_t j = i < full_rows ? full_cols : 0; j < from.cols; j++)
            to[j * to_row + i] = tensor_get(from.at, i * from.row + j, t) * factor;
}

/* ---- copies ---- */

/* Rows as fp32, padded with zeros: to[rows][padded]. fp32 rows are copied too: in memory they are all heads
 * apart, and at such strides few of them fit into a cache. */
INLINE void widen_typed(MatrixView from, int64_t padded, float *to, Dtype c) {
    int64_t dim = from.cols, whole = dim / VLEN * VLEN;
    for (int64_t r = 0; r < from.rows; r++, to += padded) {
        const void *row = tensor_at(from.at, r * from.row, c);
        for (int64_t i = 0; i < whole; i += VLEN) vec_store(to + i, get(row, i, VLEN, c));
        for (int64_t i = whole; i < padded; i += VLEN)
            vec_store(to + i, i < dim ? get(row, i, dim - i, c) : (Vec){0});
    }
}
