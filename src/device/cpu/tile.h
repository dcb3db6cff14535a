/* Products of small matrices that lie in cache, and transposes: what attention is made of. Part of
 * kernels_all.h. */

enum { TILE_ROWS = 6, TILE_VECTORS = VLEN == 16 ? 4 : 2 }; /* sums of a tile fill most of the registers */

/* ---- lines ahead ---- */

/* Rows of tensors that will be wanted: far apart in memory, which no processor foresees, and too many to be
 * asked for at once. So they wait here, and products ask for some with every tile: arithmetic goes on while
 * they come. What has not come when it is wanted comes then. */
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

/* A product of m x k scalars and k x n numbers, n a multiple of VLEN. A[i][p] is a[i * a_row + p * a_step],
 * where one of the two is 1. An element is one chain of sums, whatever its place and the shape. */
typedef struct Product {
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

INLINE void tile(const Product *p, int64_t i, int64_t j, const int rows, const int vectors,
                 const bool across) {
    Vec sum[2 * TILE_ROWS][TILE_VECTORS];
    int64_t steps = p->k, a_row = across ? 1 : p->a_row, a_step = across ? p->a_step : 1, b_row = p->b_row;
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
            Vec scalar = vec_set(a[r * a_row]);
            for (int v = 0; v < vectors; v++) sum[r][v] += scalar * x[v];
        }
        a += a_step;
        b += b_row;
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) vec_store(c + r * p->c_row + v * VLEN, sum[r][v]);
}

INLINE int64_t tile_rows(const Product *p, int64_t i, int64_t j, const int rows, const int vectors,
                         const bool across) {
    for (; i + rows <= p->m; i += rows) {
        for (int k = 0; k < AHEAD_ROWS; k++) ahead_step(p->ahead);
        tile(p, i, j, rows, vectors, across);
    }
    return i;
}

INLINE void tile_column(const Product *p, int64_t j, const int vectors, const bool across) {
    int64_t i = 0;
    if (vectors < TILE_VECTORS) i = tile_rows(p, i, j, 2 * TILE_ROWS, vectors, across);
    i = tile_rows(p, i, j, TILE_ROWS, vectors, across);
    i = tile_rows(p, i, j, 4, vectors, across);
    i = tile_rows(p, i, j, 1, vectors, across);
}

INLINE void tile_columns(const Product *p, const bool across) {
    int64_t j = 0;
    for (; j + TILE_VECTORS * VLEN <= p->n; j += TILE_VECTORS * VLEN) tile_column(p, j, TILE_VECTORS, across);
    for (; j < p->n; j += VLEN) tile_column(p, j, 1, across);
}

/* Functions of their own: where they were part of a larger one, sums of a tile did not stay in registers. */
static __attribute__((noinline)) void product_along(Product p) { tile_columns(&p, false); }
static __attribute__((noinline)) void product_across(Product p) { tile_columns(&p, true); }

static void product(Product p) {
    if (p.a_row == 1)
        product_across(p);
    else
        product_along(p);
}

/* ---- transposes ---- */

typedef float Quad __attribute__((vector_size(16)));
typedef uint16_t QuadHalf __attribute__((vector_size(8)));
typedef uint32_t QuadBits __attribute__((vector_size(16)));

INLINE Quad quad_get(const void *p, int64_t i, Dtype t) {
    Quad q;
    QuadHalf h;
    if (t == DTYPE_F32) {
        memcpy(&q, (const float *)p + i, sizeof q);
        return q;
    }
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    return (Quad)(__builtin_convertvector(h, QuadBits) << 16);
}

INLINE void transpose_quads(const void *from, int64_t row, int64_t at, float *to, int64_t to_row,
                            float factor, Dtype t) {
    Quad a = quad_get(from, at, t), b = quad_get(from, at + row, t);
    Quad c = quad_get(from, at + 2 * row, t), d = quad_get(from, at + 3 * row, t);
    Quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    Quad ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    Quad out[4] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5) * factor,
                   __builtin_shufflevector(ab, cd, 2, 3, 6, 7) * factor,
                   __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5) * factor,
                   __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7) * factor};
    for (int i = 0; i < 4; i++) memcpy(to + i * to_row, &out[i], sizeof out[i]);
}

/* Eight rows of four columns: rows i and i + 4 share a vector from the load on, so that the same shuffles as
 * above do twice the work and nothing has to cross the halves. */
#if VLEN >= 8
enum { TURN_ROWS = 8 };
typedef float Oct __attribute__((vector_size(32)));

INLINE Oct oct_get(const void *p, int64_t i, int64_t far, Dtype t) {
    return __builtin_shufflevector(quad_get(p, i, t), quad_get(p, i + far, t), 0, 1, 2, 3, 4, 5, 6, 7);
}

INLINE void transpose_rows(const void *from, int64_t row, int64_t at, float *to, int64_t to_row, float factor,
                           Dtype t) {
    Oct a = oct_get(from, at, 4 * row, t), b = oct_get(from, at + row, 4 * row, t);
    Oct c = oct_get(from, at + 2 * row, 4 * row, t), d = oct_get(from, at + 3 * row, 4 * row, t);
    Oct ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    Oct cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    Oct ab2 = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    Oct cd2 = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    Oct out[4] = {__builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) * factor,
                  __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15) * factor,
                  __builtin_shufflevector(ab2, cd2, 0, 1, 8, 9, 4, 5, 12, 13) * factor,
                  __builtin_shufflevector(ab2, cd2, 2, 3, 10, 11, 6, 7, 14, 15) * factor};
    for (int i = 0; i < 4; i++) memcpy(to + i * to_row, &out[i], sizeof out[i]);
}
#else
enum { TURN_ROWS = 4 };
INLINE void transpose_rows(const void *from, int64_t row, int64_t at, float *to, int64_t to_row, float factor,
                           Dtype t) {
    transpose_quads(from, row, at, to, to_row, factor, t);
}
#endif

/* to[cols][rows] = from[rows][cols]^T * factor; 16 columns at a time, so that the lines read and written stay
 * in cache. */
INLINE void transpose_block(const void *from, int64_t row, int64_t rows, int64_t cols, float *to,
                            int64_t to_row, float factor, Dtype t) {
    int64_t full_rows = rows / 4 * 4, full_cols = cols / 4 * 4;
    int64_t turned = rows / TURN_ROWS * TURN_ROWS;
    for (int64_t j0 = 0; j0 < full_cols; j0 += 16) {
        for (int64_t i = 0; i < turned; i += TURN_ROWS)
            for (int64_t j = j0; j < min_i64(full_cols, j0 + 16); j += 4)
                transpose_rows(from, row, i * row + j, to + j * to_row + i, to_row, factor, t);
        for (int64_t i = turned; i < full_rows; i += 4)
            for (int64_t j = j0; j < min_i64(full_cols, j0 + 16); j += 4)
                transpose_quads(from, row, i * row + j, to + j * to_row + i, to_row, factor, t);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < full_rows ? full_cols : 0; j < cols; j++)
            to[j * to_row + i] = tensor_get(from, i * row + j, t) * factor;
}
