/* Matrix products.
 *
 * The result is cut into tiles, each computed by whichever thread is free; the inner dimension is never split
 * between threads. There are three ways to compute a tile:
 *
 *     packed     our own kernels (product.h). An element's bits do not depend on the tile it is in. So the
 *                product of a rank's slice is the slice of the product, and tiles may be cut to suit the
 *                threads. Products of experts are always packed.
 *     native     bf16 products without splits, by oneDNN's matmul primitives, if gemm_open was told to use
 *                them. There is one primitive for each tile shape, created on the first use of the shape.
 *                Scratchpads and memory objects are per thread, since a primitive may run on several threads
 *                at once only if nothing is shared. The order of its sums depends on the shape of a tile, so
 *                tiles are cut by the product's shape alone.
 *     library    fp32 products of a few rows (generation of single tokens) without splits, by dnnl_sgemm: the
 *                time is that of reading B, and packing it would double that.
 *
 * oneDNN runs a call inside a parallel region on the calling thread alone.
 *
 * If the inner dimension has several splits, the fp32 partials of a tile are added in the canonical tree, in
 * the thread's scratch. If C is bf16, it is rounded once, after that.
 *
 * After the first use of a shape nothing is allocated here, but dnnl_sgemm may allocate within a call.
 *
 * Elsewhere called: GEMM, matmul, mul_mat (ggml). */
#include "device/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/text.h"
#include "device/cpu/cpu.h"

/* A product, or a tile of one: operands by address and row length, as stored. */
typedef struct Product {
    bool trans_a, trans_b, accumulate;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    Dtype ab_type, c_type;
    KSplit splits;
    /* Products of an expert with rows of several sources; NULL: of any others. A product of rows takes the
     * rows of A and C from there: with row_numbers, [m] of a tile. A gradient is a tree of sums over the rows
     * of each source. */
    const ExpertRows *rows;
    int expert;
    const int32_t *row_numbers;
} Product;

typedef struct Primitive {
    Product shape; /* its addresses are unused */
    dnnl_primitive_t primitive;
    dnnl_memory_t *memory; /* [threads][4]: A, B, C, scratchpad */
} Primitive;

struct Gemm {
    bool native;
    int threads;
    const Kernels *kernels;
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* [threads] */
    Primitive *cache;
    int cached, capacity;
    char *pads; /* [threads][pad_bytes] scratchpads, grown when a primitive asks for more */
    size_t pad_bytes;
};

/* ---- tiles ---- */

typedef struct Grid {
    int64_t rows, cols; /* of a tile */
    int64_t down, across;
} Grid;

static int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Length of pieces of n: near `size`, nearly equal, a multiple of `step`. */
static int64_t piece_length(int64_t n, int64_t size, int64_t step) {
    int64_t count = max_i64(1, (n + size / 2) / size), each = (n + count - 1) / count;
    return (each + step - 1) / step * step;
}

/* Whether rows of A and C lie apart. */
static bool is_spread(const Product *p) { return p->rows && !p->trans_a; }

/* The product that computes C from element (i, j) on, over terms from k on. Rows that lie apart are found by
 * their numbers. */
static Product moved(const Product *p, int64_t i, int64_t j, int64_t k) {
    Product t = *p;
    if (is_spread(p)) i = 0;
    t.a = tensor_at(p->a, p->trans_a ? k * p->lda + i : i * p->lda + k, p->ab_type);
    t.b = tensor_at(p->b, p->trans_b ? j * p->ldb + k : k * p->ldb + j, p->ab_type);
    t.c = tensor_to(p->c, i * p->ldc + j, p->c_type);
    return t;
}

/* Tiles are numbered down the columns, so that neighbours share columns of B. */
static Product tile_of(const Product *p, const Grid *g, int64_t number) {
    int64_t i = number % g->down * g->rows, j = number / g->down * g->cols;
    Product t = moved(p, i, j, 0);
    t.m = min_i64(g->rows, p->m - i);
    t.n = min_i64(g->cols, p->n - j);
    return t;
}

/* ---- splits ---- */

/* All runs have the same number of splits, so the first run determines it. */
static int64_t splits_in(const KSplit *l) {
    return l->runs ? pieces_of(l->run[0].length, l->run[0].split_size) : 1;
}

/* Partial sums of a product: of its splits, or of the sources of a gradient's rows. */
static int64_t split_count(const Product *p) {
    return p->rows && p->trans_a ? expert_sources(p->rows) : splits_in(&p->splits);
}

/* The rows of an expert from one source: their number, and where they begin. */
static int64_t rows_of_source(const ExpertRows *e, int expert, int64_t source, int64_t *first) {
    const int32_t *run = e->first + source * e->experts + expert;
    CHECK(e->first[0] <= run[0] && run[0] <= run[1] && run[1] - e->first[0] <= e->rows);
    *first = run[0];
    return run[1] - run[0];
}

/* A tile in progress. The partials of its splits are computed in ascending order and added like the digits of
 * a binary counter: level[l] holds the sum of 2^l splits until that of the next 2^l is complete. So the
 * canonical tree needs one tile for each of its levels, and each sum is stored once. */
enum { LEVELS = 7 }; /* enough for SPLITS_MAX splits */
typedef struct SplitWork {
    const Kernels *kernels;
    Product tile;
    float *scratch;       /* PRODUCT_SCRATCH floats of this thread */
    float *level[LEVELS]; /* [m, n] each */
} SplitWork;

/* Where the sums of a tile go: to rows of fp32, after the waiting sums have been added to them. whole: they
 * are then rounded straight into C, which is bf16. */
typedef struct Target {
    float *to;
    int64_t row;
    bool whole;
    int waiting;
    const float *wait[LEVELS];
} Target;

/* Lines of op(A) are rows of C; they are contiguous unless A is transposed. Lines of op(B) are columns of C;
 * they are contiguous if B is transposed. last: the sums are complete. */
static void run_piece(const SplitWork *w, const Product *p, const Target *t, bool last) {
    w->kernels->product_run(&(ProductRun){.m = p->m,
                                          .n = p->n,
                                          .k = p->k,
                                          .a = {p->a, p->lda, !p->trans_a, p->row_numbers},
                                          .b = {p->b, p->ldb, p->trans_b, NULL},
                                          .type = p->ab_type,
                                          .c = t->to,
                                          .c_row = t->row,
                                          .add = p->accumulate,
                                          .wait = t->wait,
                                          .waiting = last ? t->waiting : 0,
                                          .wait_row = w->tile.n,
                                          .rounded = last && t->whole ? w->tile.c : NULL,
                                          .rounded_row = w->tile.ldc},
                            w->scratch);
}

/* Sums the rows of one source; of none zeros, to which the waiting sums are added all the same. */
static void source_sum(const SplitWork *w, int64_t source, const Target *t) {
    const Product *tile = &w->tile;
    int64_t first, count = rows_of_source(tile->rows, tile->expert, source, &first);
    Product piece = moved(tile, 0, 0, first);
    piece.k = count, piece.accumulate = false;
    if (count > 0) {
        run_piece(w, &piece, t, true);
        return;
    }
    for (int64_t i = 0; i < tile->m; i++) {
        float *to = t->to + i * t->row;
        memset(to, 0, (size_t)tile->n * sizeof *to);
        for (int s = 0; s < t->waiting; s++)
            w->kernels->add(tile->n, t->wait[s] + i * tile->n, to, to, DTYPE_F32);
    }
}

/* Sums segment `split` of every run, chained in the order of the runs. */
static void split_sum(const SplitWork *w, int64_t split, bool add, const Target *t) {
    const KSplit *l = &w->tile.splits;
    int runs = l->runs ? l->runs : 1;
    int64_t start = 0;
    for (int r = 0; r < runs; r++) {
        int64_t length = l->runs ? l->run[r].length : w->tile.k,
                each = l->runs ? l->run[r].split_size : length;
        if (l->runs) start += l->run[r].skip;
        Product piece = moved(&w->tile, 0, 0, start + split * each);
        piece.k = min_i64(each, length - split * each);
        piece.accumulate = add || r > 0;
        run_piece(w, &piece, t, r + 1 == runs);
        start += length;
    }
}

/* Split i completes the levels of the trailing 1 bits of i: with their sums added, it becomes the sum of the
 * level above. The last split adds all waiting sums: one for every 1 bit of i. Example with six splits, which
 * the canonical tree divides into four and two:
 *
 *     split             0     1     2     3        4     5 (the last)
 *     added to it      -     0     -     2, 0+1   -     4, 0+1+2+3
 *     becomes level    0     1     0     2        0     C */
static void tree_of_partials(const SplitWork *w, int64_t splits, float *to, int64_t row, bool whole) {
    for (int64_t i = 0; i < splits; i++) {
        bool last = i == splits - 1;
        Target t = {.row = last ? row : w->tile.n, .whole = last && whole};
        int level = 0;
        for (; last ? i >> level != 0 : i >> level & 1; level++)
            if (i >> level & 1) t.wait[t.waiting++] = w->level[level];
        t.to = last ? to : w->level[level];
        if (w->tile.rows)
            source_sum(w, i, &t);
        else
            split_sum(w, i, false, &t);
    }
}

static void add_rows(const SplitWork *w, float *to, int64_t row, const float *what) {
    for (int64_t i = 0; i < w->tile.m; i++)
        w->kernels->add(w->tile.n, what + i * w->tile.n, to + i * row, to + i * row, DTYPE_F32);
}

/* Levels of the tree below its root; 0 for one split. */
static int levels_of(int64_t splits) {
    int levels = 0;
    while (INT64_C(1) << levels < splits) levels++;
    return levels;
}

/* Whether sums are taken in C itself. */
static bool sums_in_place(const Product *p) { return p->c_type == DTYPE_F32 && !is_spread(p); }

/* fp32 tiles that a thread needs in addition to C: one for the sums if they are not taken in C; one for the
 * tree if C is added to it; and one for each level of the tree. */
static int spare_tiles(const Product *p) {
    int64_t splits = split_count(p);
    return !sums_in_place(p) + (p->accumulate && splits > 1) + levels_of(splits);
}

/* Converts between C and the fp32 sums of a tile. Only complete sums are rounded, once. */
static void cast_rows(const SplitWork *w, void *c, float *sum, bool load) {
    const Product *t = &w->tile;
    for (int64_t i = 0; i < t->m; i++) {
        void *row = tensor_to(c, (t->row_numbers ? t->row_numbers[i] : i) * t->ldc, t->c_type);
        if (load)
            w->kernels->cast(t->n, row, t->c_type, sum + i * t->n, DTYPE_F32);
        else
            w->kernels->cast(t->n, sum + i * t->n, DTYPE_F32, row, t->c_type);
    }
}

/* With one split, its blocks are added to C, or to C widened to fp32. With several, C is added to their tree.
 * `spare` has space for spare_tiles tiles, and ends at `end`. */
static void sum_tile(SplitWork *w, float *spare, const float *end) {
    const Product *t = &w->tile;
    int64_t splits = split_count(t), tile = t->m * t->n;
    bool direct = sums_in_place(t);
    float *to = direct ? t->c : spare;
    int64_t row = direct ? t->ldc : t->n;
    if (!direct && t->accumulate) cast_rows(w, t->c, to, true);
    if (!direct) spare += tile;
    for (int l = 0; l < levels_of(splits); l++, spare += tile) w->level[l] = spare;
    CHECK(end - spare >= (t->accumulate && splits > 1 ? tile : 0));
    if (splits == 1) {
        split_sum(w, 0, t->accumulate, &(Target){.to = to, .row = row, .whole = !direct && !is_spread(t)});
        if (is_spread(t)) cast_rows(w, t->c, to, false);
    } else if (t->accumulate) {
        tree_of_partials(w, splits, spare, t->n, false);
        add_rows(w, to, row, spare);
        if (!direct) cast_rows(w, t->c, to, false);
    } else {
        tree_of_partials(w, splits, to, row, !direct);
    }
}

/* ---- packed ---- */

enum {
    TILE_ROWS = 384, /* of a tile with all its columns, if it needs spare_tiles */
    TALL = 4 * TILE_ROWS,
    TILE_FLOATS = TILE_ROWS * PRODUCT_COLS,
    /* Packing an element takes about as long as this many fp32 terms: of B, of A transposed, of A read in
     * rows. */
    COST_B = 24,
    COST_A = 16,
    COST_ROWS = 4,
};

/* Pieces of nearly equal length, multiples of `step`: of the panels of all kernels. */
enum { STEP_ROWS = 8, STEP_COLS = 48 };
static int64_t equal_length(int64_t n, int64_t most, int64_t step) {
    int64_t each = pieces_of(n, pieces_of(n, most));
    return n <= step ? n : min_i64(most, (each + step - 1) / step * step);
}

/* The grid with the shortest time for its slowest thread. A tile costs its terms and its packing, and threads
 * take tiles in rounds. `most`: largest number of elements of a tile. */
static Grid grid_of(const Product *p, int threads, int64_t most, int bf16_pace) {
    Grid best = {.rows = 0};
    const int64_t pace = p->ab_type == DTYPE_BF16 ? bf16_pace : 1;
    const int64_t cost_a = pace * (p->trans_a ? COST_A : COST_ROWS), cost_b = pace * COST_B;
    int64_t least = INT64_MAX;
    for (int64_t tall = TALL; tall >= 48; tall /= 2)
        for (int64_t wide = PRODUCT_COLS; wide >= PRODUCT_COLS / 8; wide /= 2) {
            Grid g = {.rows = equal_length(p->m, tall, STEP_ROWS),
                      .cols = equal_length(p->n, wide, STEP_COLS)};
            g.down = pieces_of(p->m, g.rows), g.across = pieces_of(p->n, g.cols);
            int64_t packed_rows = max_i64(g.rows, FEW_ROWS); /* for few rows, a tile begins with as much */
            int64_t cost = pieces_of(g.down * g.across, threads) *
                           (g.rows * g.cols + cost_a * packed_rows + cost_b * g.cols);
            if (g.rows * g.cols <= most && cost < least) least = cost, best = g;
        }
    return best;
}

/* A small product, such as that of one token in a small model, ends before another thread would have woken
 * up. */
static int threads_for(const Device *d, const Product *p, const Grid *grid) {
    enum { NARROW = 1 << 15 };
    return grid->down * grid->across > 1 && p->m * p->n * p->k > NARROW ? d->threads : 1;
}

/* Scratch of one thread: packed panels, then tiles. */
static size_t thread_floats(int tiles) { return PRODUCT_SCRATCH + (size_t)tiles * TILE_FLOATS; }

/* Elements of a tile, at most. With a source of few rows after the other, a tile's time is that of adding its
 * waiting sums; those that are added most often should stay in the L2 cache. */
static int64_t largest_tile(const Product *p) {
    if (p->rows && p->trans_a) return TILE_FLOATS / 4;
    return spare_tiles(p) ? TILE_FLOATS : TALL * PRODUCT_COLS;
}

/* Numbers of rows i .. i+m-1 of an expert's, over all sources. */
static void number_rows(const Product *p, int64_t i, int64_t m, int32_t *numbers) {
    int64_t before = 0, first;
    for (int s = 0; s < expert_sources(p->rows); s++) {
        int64_t count = rows_of_source(p->rows, p->expert, s, &first);
        for (int64_t r = max_i64(0, i - before); r < min_i64(count, i + m - before); r++)
            numbers[before + r - i] = (int32_t)(first + r);
        before += count;
    }
}

/* Computes each tile with its splits. A thread's scratch starts at its number times `each`; it holds packed
 * panels, then the tiles of spare_tiles. If there are none, sums go straight to C. */
static void packed(Gemm *g, Device *d, const Product *p) {
    Grid grid = grid_of(p, d->threads, largest_tile(p), g->kernels->bf16_pace);
    size_t each = thread_floats(spare_tiles(p));
    int64_t count = grid.down * grid.across;
    CHECK(d->scratch_size >= (size_t)d->threads * each * sizeof(float));
#pragma omp parallel for num_threads(threads_for(d, p, &grid)) schedule(dynamic, 1)
    for (int64_t t = 0; t < count; t++) {
        SplitWork w = {.kernels = g->kernels, .tile = tile_of(p, &grid, t)};
        int32_t numbers[TALL];
        if (is_spread(p)) {
            number_rows(p, t % grid.down * grid.rows, w.tile.m, numbers);
            w.tile.row_numbers = numbers;
        }
        w.scratch = (float *)(void *)d->scratch + (size_t)omp_get_thread_num() * each;
        sum_tile(&w, w.scratch + PRODUCT_SCRATCH, w.scratch + each);
    }
}

/* ---- native: bf16 with primitives ---- */

/* oneDNN has no flag for transposition: the strides describe how an operand is stored. */
static dnnl_status_t describe(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, Dtype type, bool trans,
                              int64_t ld) {
    dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};
    dnnl_data_type_t dt = type == DTYPE_F32 ? dnnl_f32 : dnnl_bf16;
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(md, 2, dims, dt, strides);
#else
    return dnnl_memory_desc_init_by_strides(md, 2, dims, dt, strides);
#endif
}

/* The descriptors of a primitive's operands: pointers in oneDNN 3, structs in 2. */
#if DNNL_VERSION_MAJOR >= 3
#define MD_ARG(md) (md)
#else
#define MD_ARG(md) (&(md))
#endif

/* Versions 2 and 3 of oneDNN differ only in the calls. The NULL is the bias, which is a separate op here. */
static dnnl_status_t primitive_desc(const Gemm *g, const dnnl_memory_desc_t md[3], dnnl_primitive_attr_t attr,
                                    dnnl_primitive_desc_t *pd) {
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(pd, g->engine, md[0], md[1], NULL, md[2], attr);
#else
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(pd, &desc, attr, g->engine, NULL);
#endif
}

/* Accumulation is a post-op: C is added in fp32, before the one rounding to C's dtype. */
static dnnl_primitive_attr_t attributes_of(const Product *p) {
    dnnl_primitive_attr_t attr;
    CHECK(dnnl_primitive_attr_create(&attr) == dnnl_success);
    CHECK(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success);
    if (p->accumulate) {
        dnnl_post_ops_t sum;
        CHECK(dnnl_post_ops_create(&sum) == dnnl_success);
#if DNNL_VERSION_MAJOR >= 3
        CHECK(dnnl_post_ops_append_sum(sum, 1, 0, dnnl_data_type_undef) == dnnl_success);
#else
        CHECK(dnnl_post_ops_append_sum(sum, 1) == dnnl_success);
#endif
        CHECK(dnnl_primitive_attr_set_post_ops(attr, sum) == dnnl_success);
        CHECK(dnnl_post_ops_destroy(sum) == dnnl_success);
    }
    return attr;
}

/* One scratchpad per thread, of the largest size requested, serves all primitives, since a thread runs one at
 * a time. It is oneDNN's workspace, not a tensor, and is not part of the device's scratch, whose size must be
 * known before any primitive exists. */
static void grow_pads(Gemm *g, size_t bytes) {
    if (bytes <= g->pad_bytes) return;
    free(g->pads);
    g->pad_bytes = (bytes + 4095) / 4096 * 4096;
    size_t all;
    CHECK(size_multiply(g->pad_bytes, (size_t)g->threads, &all));
    g->pads = aligned_alloc(4096, all);
    CHECK(g->pads != NULL);
}

/* Each thread has its own memory objects, since such an object holds the address that a call works on. They
 * are created without memory; addresses are set for each tile. */
static void make_memories(Gemm *g, Primitive *entry, const dnnl_memory_desc_t md[3],
                          dnnl_primitive_desc_t pd) {
    entry->memory = mem_alloc_array((size_t)g->threads * 4, sizeof *entry->memory);
#if DNNL_VERSION_MAJOR >= 3
    const_dnnl_memory_desc_t pad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
#else
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
#endif
    grow_pads(g, dnnl_memory_desc_get_size(pad));
    for (int t = 0; t < g->threads; t++) {
        dnnl_memory_t *of = entry->memory + t * 4;
        for (int i = 0; i < 3; i++)
            CHECK(dnnl_memory_create(&of[i], MD_ARG(md[i]), g->engine, DNNL_MEMORY_NONE) == dnnl_success);
        CHECK(dnnl_memory_create(&of[3], pad, g->engine, DNNL_MEMORY_NONE) == dnnl_success);
    }
}

/* Created with one OpenMP thread, so that a single thread executes it entirely. */
static void make_primitive(Gemm *g, Primitive *entry, const Product *p) {
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    dnnl_memory_desc_t md[3];
    CHECK(describe(&md[0], p->m, p->k, p->ab_type, p->trans_a, p->lda) == dnnl_success);
    CHECK(describe(&md[1], p->k, p->n, p->ab_type, p->trans_b, p->ldb) == dnnl_success);
    CHECK(describe(&md[2], p->m, p->n, p->c_type, false, p->ldc) == dnnl_success);
    dnnl_primitive_attr_t attr = attributes_of(p);
    dnnl_primitive_desc_t pd;
    CHECK(primitive_desc(g, md, attr, &pd) == dnnl_success);
    CHECK(dnnl_primitive_create(&entry->primitive, pd) == dnnl_success);
    make_memories(g, entry, md, pd);
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
#if DNNL_VERSION_MAJOR >= 3
    for (int i = 0; i < 3; i++) dnnl_memory_desc_destroy(md[i]);
#endif
    entry->shape = *p;
    omp_set_num_threads(threads);
}

/* Everything that a primitive was created for, including row lengths, which are part of its descriptors. */
static bool same_shape(const Product *a, const Product *b) {
    return a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->accumulate == b->accumulate &&
           a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->ab_type == b->ab_type && a->c_type == b->c_type;
}

/* A linear search: a model has a few dozen shapes, and a tile takes a thousand times as long. */
static int find_primitive(Gemm *g, const Product *p) {
    for (int i = 0; i < g->cached; i++)
        if (same_shape(&g->cache[i].shape, p)) return i;
    if (g->cached == g->capacity) {
        g->capacity = g->capacity ? 2 * g->capacity : 64;
        g->cache = mem_grow(g->cache, (size_t)g->capacity * sizeof *g->cache);
    }
    make_primitive(g, &g->cache[g->cached], p);
    return g->cached++;
}

/* Memory objects belong to the thread, and are pointed at the tile just before use. */
static void run_primitive(const Gemm *g, const Primitive *entry, const Product *p) {
    int thread = omp_get_thread_num();
    dnnl_memory_t *of = entry->memory + thread * 4;
    void *pad = g->pads ? g->pads + (size_t)thread * g->pad_bytes : NULL;
    /* oneDNN's handles are not const, although A and B are only read. */
    void *handle[4] = {(void *)(uintptr_t)p->a, (void *)(uintptr_t)p->b, p->c, pad};
    for (int i = 0; i < 4; i++) CHECK(dnnl_memory_set_data_handle(of[i], handle[i]) == dnnl_success);
    dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, of[0]},
                               {DNNL_ARG_WEIGHTS, of[1]},
                               {DNNL_ARG_DST, of[2]},
                               {DNNL_ARG_SCRATCHPAD, of[3]}};
    CHECK(dnnl_primitive_execute(entry->primitive, g->streams[thread], 4, args) == dnnl_success);
}

/* Tiles have at most four shapes: full ones, the last row's, the last column's, and the last tile's. The four
 * corners of the grid have them all. Primitives are created before threads start, since the cache may grow on
 * one thread only. */
static void prepare(Gemm *g, const Product *p, const Grid *grid) {
    int64_t last = grid->down * grid->across - 1;
    const int64_t corners[] = {0, grid->down - 1, last - grid->down + 1, last};
    for (int i = 0; i < 4; i++) {
        Product t = tile_of(p, grid, corners[i]);
        find_primitive(g, &t);
    }
}

/* Calls `make` for each tile, each on one thread. */
static void each_tile(Gemm *g, int threads, const Product *p, const Grid *grid,
                      void (*make)(Gemm *g, const Product *tile)) {
#pragma omp parallel num_threads(threads)
    {
        omp_set_num_threads(1); /* oneDNN does not count a team of one as a parallel region */
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < grid->down * grid->across; t++) {
            Product tile = tile_of(p, grid, t);
            make(g, &tile);
        }
    }
}

static void make_by_primitive(Gemm *g, const Product *tile) {
    run_primitive(g, &g->cache[find_primitive(g, tile)], tile);
}

/* Works on C directly; primitives accumulate in fp32. */
static void native(Gemm *g, Device *d, const Product *p) {
    Grid grid = {piece_length(p->m, 1024, 64), piece_length(p->n, 384, 64), 0, 0};
    grid.down = pieces_of(p->m, grid.rows), grid.across = pieces_of(p->n, grid.cols);
    prepare(g, p, &grid);
    each_tile(g, threads_for(d, p, &grid), p, &grid, make_by_primitive);
}

/* ---- library ---- */

enum { LIBRARY_ROWS = 4 };

/* Row-major, like dnnl_sgemm, which fails only for sizes and row lengths that gemm_run never passes. */
static void make_by_library(Gemm *g, const Product *p) {
    (void)g;
    dnnl_status_t status = dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, 1,
                                      p->a, p->lda, p->b, p->ldb, p->accumulate ? 1 : 0, p->c, p->ldc);
    CHECK(status == dnnl_success);
}

static void library(Gemm *g, Device *d, const Product *p) {
    Grid grid = {.rows = p->m, .cols = piece_length(p->n, 384, 48), .down = 1};
    grid.across = pieces_of(p->n, grid.cols);
    each_tile(g, threads_for(d, p, &grid), p, &grid, make_by_library);
}

/* ---- */

/* Products that ranks may share have splits (at least one). oneDNN must not compute these: on two ranks they
 * have other shapes than on one, so it would return other bits. */
static void run(Gemm *g, Device *d, const Product *p) {
    bool wide = p->ab_type == DTYPE_F32;
    if (p->splits.runs == 0 && !wide && g->native)
        native(g, d, p);
    else if (p->splits.runs == 0 && wide && p->c_type == DTYPE_F32 && p->m <= LIBRARY_ROWS)
        library(g, d, p);
    else
        packed(g, d, p);
}

void gemm_run(Gemm *g, Device *d, const GemmArgs *o) {
    CHECK(o->m > 0 && o->n > 0 && o->k > 0 && splits_in(&o->splits) <= SPLITS_MAX);
    if (d->profiling)
        d->profile[OP_GEMM].flops +=
            2.0 * (double)o->m * (double)o->n * (double)(o->splits.runs ? split_length(o->splits) : o->k);
    Product p = {.trans_a = o->trans_a,
                 .trans_b = o->trans_b,
                 .accumulate = o->accumulate,
                 .m = o->m,
                 .n = o->n,
                 .k = o->k,
                 .a = o->a,
                 .b = o->b,
                 .c = o->c,
                 .lda = o->trans_a ? o->m : o->k,
                 .ldb = o->trans_b ? o->k : o->n,
                 .ldc = o->ldc,
                 .ab_type = o->ab_type,
                 .c_type = o->c_type,
                 .splits = o->splits};
    run(g, d, &p);
}

/* ---- products of experts ---- */

/* These are always packed. A library's order of sums depends on the number of rows, which is that of one
 * source where ranks share the tokens of a microbatch, and that of all where one rank has them. */

/* The rows of an expert from all sources. `p` finds them by number if there are several sources. */
static int64_t rows_of_expert(const ExpertRows *e, int expert, Product *p, int64_t *first) {
    int64_t count = rows_of_source(e, expert, 0, first), other;
    p->rows = expert_sources(e) > 1 ? e : NULL, p->expert = expert;
    for (int s = 1; s < expert_sources(e); s++) count += rows_of_source(e, expert, s, &other);
    return count;
}

static void count_flops(Device *d, OpId op, int64_t rows, int64_t n, int64_t k) {
    if (d->profiling) d->profile[op].flops += 2.0 * (double)rows * (double)n * (double)k;
}

/* One expert after another, each on all threads. */
void gemm_run_grouped(Gemm *g, Device *d, const GroupedGemmArgs *o) {
    Product p = {.trans_b = o->trans_b,
                 .n = o->n,
                 .k = o->k,
                 .lda = o->k,
                 .ldb = o->trans_b ? o->k : o->n,
                 .ldc = o->n};
    p.ab_type = o->ab_type, p.c_type = o->c_type, p.splits = o->splits;
    CHECK(splits_in(&o->splits) == 1 && expert_sources(&o->e) <= SPLITS_MAX);
    count_flops(d, OP_GROUPED_GEMM, o->e.rows, o->n, o->splits.runs ? split_length(o->splits) : o->k);
    for (int i = 0; i < o->e.experts; i++) {
        int64_t first;
        p.m = rows_of_expert(&o->e, i, &p, &first);
        if (p.rows) first = 0;
        p.a = tensor_at(o->a, first * o->k, o->ab_type), p.c = tensor_to(o->c, first * o->n, o->c_type);
        p.b = tensor_at(o->b, i * o->e.step, o->ab_type);
        if (p.m > 0) packed(g, d, &p);
    }
}

void gemm_run_grouped_wgrad(Gemm *g, Device *d, const GroupedGemmWgradArgs *o) {
    Product p = {.trans_a = true, .m = o->m, .n = o->n, .lda = o->m, .ldb = o->n, .ldc = o->n};
    p.ab_type = o->ab_type, p.c_type = DTYPE_F32, p.accumulate = o->accumulate;
    CHECK(expert_sources(&o->e) <= SPLITS_MAX);
    count_flops(d, OP_GROUPED_GEMM_WGRAD, o->e.rows, o->m, o->n);
    for (int i = 0; i < o->e.experts; i++) {
        int64_t first;
        p.k = rows_of_expert(&o->e, i, &p, &first);
        if (p.rows) first = 0;
        p.a = tensor_at(o->a, first * o->m, o->ab_type), p.b = tensor_at(o->b, first * o->n, o->ab_type);
        p.c = o->c + i * o->e.step;
        if (p.k > 0)
            packed(g, d, &p);
        else if (!o->accumulate)
            memset(p.c, 0, (size_t)(o->m * o->n) * sizeof *o->c);
    }
}

/* ---- */

/* The most scratch that any of the ways above needs, for a plan. The tiles needed in addition to C grow with
 * the levels of the tree. */
size_t gemm_scratch_bytes(int threads, Dtype compute, int splits, int sources) {
    int sums = compute != DTYPE_F32 || sources > 1, most = splits > sources ? splits : sources;
    return (size_t)threads * thread_floats(sums + (most > 1) + levels_of(most)) * sizeof(float);
}

/* The best of many short measurements, since other programs may use the cores. */
double gemm_register_limit(const Kernels *kernels, int threads, Dtype type, double seconds) {
    enum { ROUNDS = 1 << 17 };
    double best = 0, end = clock_seconds() + seconds;
    do {
        double flops = 0, start = clock_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : flops)
        {
            float sums[LIMIT_SUMS] = {0};
            flops = kernels->product_limit(ROUNDS, type, sums);
        }
        best = fmax(best, flops / (clock_seconds() - start));
    } while (best > 0 && clock_seconds() < end);
    return best;
}

static ErrorCode open_streams(Gemm *g, Error *err) {
    if (!g->native) return OK;
    if (dnnl_engine_create(&g->engine, dnnl_cpu, 0) != dnnl_success)
        return error_set(err, ERR_UNAVAILABLE, "oneDNN: this library has no CPU engine");
    g->streams = mem_alloc_array((size_t)g->threads, sizeof *g->streams);
    for (int t = 0; t < g->threads; t++)
        if (dnnl_stream_create(&g->streams[t], g->engine, dnnl_stream_default_flags) != dnnl_success)
            return error_set(err, ERR_UNAVAILABLE, "oneDNN: cannot create a stream");
    return OK;
}

/* Asks for the instruction set that oneDNN would use, which its own environment variable may restrict. */
bool gemm_native_possible(void) {
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

/* Primitives are created later, when shapes are known. */
ErrorCode gemm_open(Gemm **out, const Kernels *kernels, bool native, int threads, Error *err) {
    if (native && !gemm_native_possible())
        return error_set(err, ERR_UNAVAILABLE,
                         "oneDNN: no bf16 products on this processor; it needs AVX-512");
    Gemm *g = mem_alloc(sizeof *g);
    g->native = native;
    g->threads = threads;
    g->kernels = kernels;
    ErrorCode code = open_streams(g, err);
    if (code == OK)
        *out = g;
    else
        gemm_close(g);
    return code;
}

/* Also frees what a failed gemm_open leaves: missing objects are NULL, and nothing is cached. */
void gemm_close(Gemm *g) {
    if (!g) return;
    for (int i = 0; i < g->cached; i++) {
        for (int t = 0; t < g->threads * 4; t++) dnnl_memory_destroy(g->cache[i].memory[t]);
        free(g->cache[i].memory);
        dnnl_primitive_destroy(g->cache[i].primitive);
    }
    for (int t = 0; g->streams && t < g->threads; t++)
        if (g->streams[t]) dnnl_stream_destroy(g->streams[t]);
    if (g->engine) dnnl_engine_destroy(g->engine);
    free(g->streams);
    free(g->cache);
    free(g->pads);
    free(g);
}
