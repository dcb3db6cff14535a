/* Matrix products.
 *
 * oneDNN runs a product that is called inside a parallel region on the calling thread alone. We cut the
 * result into tiles by shape, give each to whichever thread is free, and let oneDNN do one tile: K is then
 * never split between threads, which oneDNN does by itself when there are more threads than tiles, with other
 * bits for other numbers of threads.
 *
 * fp32 takes dnnl_sgemm. bf16 has two ways:
 *
 *     native    cached matmul primitives, one for each tile shape; made on the first use of a shape, run with
 *               scratchpads and memory objects of each thread, since a primitive may run on several threads
 *               at once only if nothing is shared;
 *     widened   panels of both operands become fp32 in scratch; a long K is cut into fixed pieces that add up
 *               in fp32.
 *
 * After the first use of a shape nothing is allocated here. oneDNN itself packs the operands of dnnl_sgemm
 * into memory that it takes and gives back within the call. */
#include "device/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <stdlib.h>

#include "base/text.h"
#include "device/cpu/cpu.h"

enum { PANEL_M = 1024, PANEL_N = 1024, PANEL_K = 2048 };

/* A product, or a tile of one: operands by address and row length, as stored. */
typedef struct Product {
    bool trans_a, trans_b, accumulate;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    Dtype ab_type, c_type;
} Product;

typedef struct Primitive {
    Product shape; /* its addresses are unused */
    dnnl_primitive_t primitive;
    dnnl_memory_t *memory; /* [threads][4]: A, B, C, scratchpad */
} Primitive;

struct Gemm {
    bool native;
    int threads;
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* [threads] */
    Primitive *cache;
    int cached, room;
    char *pads; /* [threads][pad_bytes] scratchpads, grown when a primitive asks for more */
    size_t pad_bytes;
};

/* ---- tiles ---- */

static int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Length of pieces of n near `size`, of nearly equal length, a multiple of `step`. */
static int64_t piece_length(int64_t n, int64_t size, int64_t step) {
    int64_t count = max_i64(1, (n + size / 2) / size), each = (n + count - 1) / count;
    return (each + step - 1) / step * step;
}

static Product tile_of(const Product *p, int64_t i, int64_t j, int64_t rows, int64_t cols) {
    Product t = *p;
    t.m = min_i64(rows, p->m - i);
    t.n = min_i64(cols, p->n - j);
    t.a = tensor_at(p->a, p->trans_a ? i : i * p->lda, p->ab_type);
    t.b = tensor_at(p->b, p->trans_b ? j * p->ldb : j, p->ab_type);
    t.c = tensor_to(p->c, i * p->ldc + j, p->c_type);
    return t;
}

/* ---- fp32 ---- */

static void product_f32(const Product *p) {
    dnnl_status_t status = dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, 1,
                                      p->a, p->lda, p->b, p->ldb, p->accumulate ? 1 : 0, p->c, p->ldc);
    CHECK(status == dnnl_success);
}

/* Large tiles, since each packs its operands anew, but enough of them for a few threads. oneDNN takes a way
 * without packing for results below about a million elements, which is slow where A is transposed and its
 * rows are long: there tiles are larger. */
static void tile_size(const Product *p, int64_t *rows, int64_t *cols) {
    enum { ENOUGH = 8, LONG = 2048 };
    bool large = p->trans_a && p->m >= LONG;
    *rows = piece_length(p->m, !large ? 512 : p->m >= 2 * LONG ? 2048 : 1024, 16);
    *cols = piece_length(p->n, 768, 48);
    if (!large && pieces_of(p->m, *rows) * pieces_of(p->n, *cols) < ENOUGH)
        *rows = piece_length(p->m, 256, 16);
    if (!large && pieces_of(p->m, *rows) * pieces_of(p->n, *cols) < ENOUGH)
        *cols = piece_length(p->n, 384, 48);
}

static void tiled_f32(int threads, const Product *p) {
    int64_t rows, cols;
    tile_size(p, &rows, &cols);
    int64_t down = pieces_of(p->m, rows), across = pieces_of(p->n, cols);
#pragma omp parallel num_threads(threads)
    {
        omp_set_num_threads(1); /* a team of one is no parallel region in oneDNN's eyes */
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < down * across; t++) {
            Product tile = tile_of(p, t % down * rows, t / down * cols, rows, cols);
            product_f32(&tile);
        }
    }
}

/* ---- bf16 through fp32 panels ---- */

/* rows x cols from `from` (rows `stride` apart) to a contiguous fp32 panel. */
static void widen(Device *d, const void *from, int64_t stride, int64_t rows, int64_t cols, float *to) {
#pragma omp parallel for num_threads(d->threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const uint16_t *row = (const uint16_t *)from + i * stride;
        for (int64_t j = 0; j < cols; j++) to[i * cols + j] = bf16_widen(row[j]);
    }
}

static void narrow(Device *d, const float *from, int64_t rows, int64_t cols, uint16_t *to, int64_t stride) {
#pragma omp parallel for num_threads(d->threads) schedule(static)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[i * stride + j] = bf16_round(from[i * cols + j]);
}

typedef struct Panels {
    float *a, *b, *c;
    int64_t a_row, a_piece; /* what panel a holds now, so that a short A is widened once */
} Panels;

static void widen_operands(Device *d, const Product *p, int64_t i, int64_t j, int64_t q, Product *piece,
                           Panels *w) {
    int64_t k = piece->k;
    if (w->a_row != i || w->a_piece != q) {
        if (p->trans_a)
            widen(d, (const uint16_t *)p->a + q * p->lda + i, p->lda, k, piece->m, w->a);
        else
            widen(d, (const uint16_t *)p->a + i * p->lda + q, p->lda, piece->m, k, w->a);
        w->a_row = i;
        w->a_piece = q;
    }
    if (p->trans_b)
        widen(d, (const uint16_t *)p->b + j * p->ldb + q, p->ldb, piece->n, k, w->b);
    else
        widen(d, (const uint16_t *)p->b + q * p->ldb + j, p->ldb, k, piece->n, w->b);
    piece->lda = p->trans_a ? piece->m : k;
    piece->ldb = p->trans_b ? k : piece->n;
}

/* One panel of C: the sum of its pieces of K. */
static void widened_panel(Device *d, const Product *p, int64_t i, int64_t j, Panels *w) {
    Product piece = *p;
    piece.m = min_i64(PANEL_M, p->m - i);
    piece.n = min_i64(PANEL_N, p->n - j);
    piece.a = w->a;
    piece.b = w->b;
    bool direct = p->c_type == DTYPE_F32;
    piece.c = direct ? (float *)p->c + i * p->ldc + j : w->c;
    piece.ldc = direct ? p->ldc : piece.n;
    piece.ab_type = piece.c_type = DTYPE_F32;
    uint16_t *c16 = direct ? NULL : (uint16_t *)p->c + i * p->ldc + j;
    if (!direct && p->accumulate) widen(d, c16, p->ldc, piece.m, piece.n, w->c);
    for (int64_t q = 0; q < p->k; q += PANEL_K) {
        piece.k = min_i64(PANEL_K, p->k - q);
        piece.accumulate = p->accumulate || q > 0;
        widen_operands(d, p, i, j, q, &piece, w);
        tiled_f32(d->threads, &piece);
    }
    if (!direct) narrow(d, w->c, piece.m, piece.n, c16, p->ldc);
}

static void widened(const Gemm *g, Device *d, const Product *p) {
    CHECK(d->scratch_size >= gemm_scratch_bytes(g->native, DTYPE_BF16));
    Panels w = {.a = (float *)(void *)d->scratch, .a_row = -1, .a_piece = -1};
    w.b = w.a + PANEL_M * PANEL_K;
    w.c = w.b + PANEL_N * PANEL_K;
    for (int64_t i = 0; i < p->m; i += PANEL_M)
        for (int64_t j = 0; j < p->n; j += PANEL_N) widened_panel(d, p, i, j, &w);
}

/* ---- bf16 by primitives ---- */

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

static void grow_pads(Gemm *g, size_t bytes) {
    if (bytes <= g->pad_bytes) return;
    free(g->pads);
    g->pad_bytes = (bytes + 4095) / 4096 * 4096;
    size_t all;
    CHECK(size_multiply(g->pad_bytes, (size_t)g->threads, &all));
    g->pads = aligned_alloc(4096, all);
    CHECK(g->pads != NULL);
}

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

/* Made with one OpenMP thread, for a plan that one thread carries out whole. */
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

static bool same_shape(const Product *a, const Product *b) {
    return a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->accumulate == b->accumulate &&
           a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->ab_type == b->ab_type && a->c_type == b->c_type;
}

static int find_primitive(Gemm *g, const Product *p) {
    for (int i = 0; i < g->cached; i++)
        if (same_shape(&g->cache[i].shape, p)) return i;
    if (g->cached == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->cache = mem_grow(g->cache, (size_t)g->room * sizeof *g->cache);
    }
    make_primitive(g, &g->cache[g->cached], p);
    return g->cached++;
}

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

static void native(Gemm *g, Device *d, const Product *p) {
    int64_t rows = piece_length(p->m, 1024, 64), cols = piece_length(p->n, 384, 64);
    int64_t down = pieces_of(p->m, rows), across = pieces_of(p->n, cols);
    int which[4]; /* inner tile, last row, last column, corner */
    for (int i = 0; i < 4; i++) {
        Product t = tile_of(p, i & 1 ? (down - 1) * rows : 0, i & 2 ? (across - 1) * cols : 0, rows, cols);
        which[i] = find_primitive(g, &t);
    }
#pragma omp parallel num_threads(d->threads)
    {
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < down * across; t++) {
            int64_t i = t % down, j = t / down;
            Product tile = tile_of(p, i * rows, j * cols, rows, cols);
            run_primitive(g, &g->cache[which[(i == down - 1 ? 1 : 0) + (j == across - 1 ? 2 : 0)]], &tile);
        }
    }
}

/* ---- */

void gemm_run(Gemm *g, Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
              const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate) {
    if (d->profiling) d->profile[OP_GEMM].flops += 2.0 * (double)m * (double)n * (double)k;
    Product p = {.trans_a = trans_a,
                 .trans_b = trans_b,
                 .accumulate = accumulate,
                 .m = m,
                 .n = n,
                 .k = k,
                 .a = a,
                 .b = b,
                 .c = c,
                 .lda = trans_a ? m : k,
                 .ldb = trans_b ? k : n,
                 .ldc = ldc,
                 .ab_type = ab_type,
                 .c_type = c_type};
    if (ab_type == DTYPE_F32)
        tiled_f32(d->threads, &p);
    else if (g->native)
        native(g, d, &p);
    else
        widened(g, d, &p);
}

size_t gemm_scratch_bytes(bool native, Dtype compute) {
    size_t elements = (size_t)PANEL_M * PANEL_K + (size_t)PANEL_N * PANEL_K + (size_t)PANEL_M * PANEL_N;
    return native || compute == DTYPE_F32 ? 0 : elements * sizeof(float);
}

static ErrorCode open_streams(Gemm *g, Error *err) {
    if (dnnl_engine_create(&g->engine, dnnl_cpu, 0) != dnnl_success)
        return error_set(err, ERR_UNAVAILABLE, "oneDNN: this library has no CPU engine");
    g->streams = mem_alloc_array((size_t)g->threads, sizeof *g->streams);
    for (int t = 0; t < g->threads; t++)
        if (dnnl_stream_create(&g->streams[t], g->engine, dnnl_stream_default_flags) != dnnl_success)
            return error_set(err, ERR_UNAVAILABLE, "oneDNN: cannot create a stream");
    return OK;
}

bool gemm_native_possible(void) {
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

ErrorCode gemm_open(Gemm **out, bool native_bf16, int threads, Error *err) {
    if (native_bf16 && !gemm_native_possible())
        return error_set(err, ERR_UNAVAILABLE,
                         "oneDNN: no bf16 products on this processor; it needs AVX-512");
    Gemm *g = mem_alloc(sizeof *g);
    g->native = native_bf16;
    g->threads = threads;
    ErrorCode code = open_streams(g, err);
    if (code == OK)
        *out = g;
    else
        gemm_close(g);
    return code;
}

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
