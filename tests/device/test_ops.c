/* Every op of every backend that runs here is compared with the plain-C reference, in both dtypes, with odd
 * shapes and tails. Also checks that bits do not depend on the number of threads. The random numbers are the
 * same on every machine.
 *
 *     test_ops [BACKEND [TEST]]     tests of backends, on one of them: avx2, portable, deferred, cuda, ... */
#include <float.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/devices.h"

#include "device/cpu/gemm.h"
#include "device/cpu/optimised.h"
#include "device/ops/ops.h"

static Device reference;

/* Allowed distance between two computations of a tensor, in Frobenius norms:
 *  - for each number, 64 roundings of fp32 (polynomial exponentials and the like), or one rounding to bf16;
 *  - two roundings to bf16 of nearly equal numbers may occasionally differ by one step: one step of the
 *    largest number;
 *  - an element that is the sum of `terms` numbers of about `size`, most of which may cancel, is summed in
 *    fp32 in some order. A partial sum of k such numbers of both signs is about sqrt(k) size, so the
 *    roundings add up to terms * size / sqrt(2) of them: four times that, plus four for the operations around
 *    the sum.
 *
 * made: the dtype in which the numbers were last computed; may be bf16 although they are stored in fp32. */
static void assert_made(const char *what, const Device *d, const void *got, const void *want, int64_t n,
                        Dtype t, Dtype made, double terms, double size) {
    const double round32 = 0x1p-24, round16 = 0x1p-8;
    double error = 0, norm = 0, top = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)tensor_get(got, i, t), y = (double)tensor_get(want, i, t);
        error += (x - y) * (x - y);
        norm += y * y;
        top = fmax(top, fabs(y));
    }
    double limit = made == DTYPE_F32 ? 64 * round32 * sqrt(norm) : round16 * sqrt(norm) + 2 * round16 * top;
    limit += 4 * round32 * (terms + 4) * size * sqrt((double)n);
    if (!(sqrt(error) <= limit))
        fail_msg("%s, %s, %s: error %g of %g, limit %g", d->name, what, dtype_name(t), sqrt(error),
                 sqrt(norm), limit);
}

static void assert_sums(const char *what, const Device *d, const void *got, const void *want, int64_t n,
                        Dtype t, double terms, double size) {
    assert_made(what, d, got, want, n, t, t, terms, size);
}

static void assert_near(const char *what, const Device *d, const void *got, const void *want, int64_t n,
                        Dtype t) {
    assert_sums(what, d, got, want, n, t, 0, 0);
}

static const int64_t token_counts[] = {1, 3, 17, 65, 257};

static const int64_t widths[] = {1, 24, 40, 64, 100, 521};

/* On a simulated GPU, whose threads take turns, the longest sizes take too long for ops on rows and tiles: 65
 * tokens already include blocks and tiles of all kinds. A deferred device uses the kernels of another device
 * and can only break the arguments of a call, so tails are not tested on it. */
static bool takes_long(const Device *d, int64_t tokens) {
    const char *most = getenv("TEST_TOKENS"); /* if every access is checked, fewer are enough */
    if (strcmp(d->name, CUDA) == 0 && !getenv("TEST_REAL")) return tokens > (most ? atoi(most) : 65);
    return d->deferred && tokens > 17;
}

/* How threads cooperate on a head does not depend on its width, except that 64 is the narrowest width that
 * some instructions take. */
static bool too_wide(int head_dim) { return head_dim > 16 && head_dim != 64 && getenv("TEST_TOKENS"); }

/* ---- products ---- */

/* With `is`, a product that ranks may share, here with one split; else one without splits. They use different
 * code. */
static KSplit shared(bool is, int64_t k) {
    return is ? (KSplit){.runs = 1, .run = {{.length = k, .split_size = k}}} : NO_SPLIT;
}

/* A copy of m rows of at least n elements each, `from` elements apart, now `to` apart. */
static void *rows_apart(const void *x, int64_t m, int64_t from, int64_t to, Dtype t) {
    void *copy = tensor(m * to, t);
    for (int64_t i = 0; i < m; i++)
        memcpy(tensor_to(copy, i * to, t), tensor_at(x, i * from, t), (size_t)to * dtype_bytes(t));
    return copy;
}

/* One product of the reference, whose rows of C are apart, for all implementations, with and without splits.
 * Their rows of C are adjacent or apart. */
static void check_product(Gemm *const *g, int ways, Device *d, const int64_t shape[3], int bits, Dtype ab,
                          Dtype c) {
    bool trans_a = bits & 1, trans_b = bits & 2, accumulate = bits & 4;
    int64_t m = shape[0], n = shape[1], k = shape[2], apart = n + 5;
    void *a = random_tensor(m * k, ab, -1, 1), *b = random_tensor(k * n, ab, -1, 1),
         *before = random_tensor(m * apart, c, -1, 1), *want = copy_of(before, m * apart, c);
    OP(&reference, gemm, trans_a, trans_b, m, n, k, a, b, ab, want, c, apart, accumulate, NO_SPLIT);
    for (int i = 0; i < 4 * ways; i++) {
        int64_t ldc = i & 1 ? n : apart;
        void *got = rows_apart(before, m, apart, ldc, c);
        gemm_run(g[i / 4], d,
                 &(GemmArgs){trans_a, trans_b, m, n, k, a, b, ab, got, c, ldc, accumulate, shared(i & 2, k)});
        assert_sums("gemm", d, got, rows_apart(want, m, apart, ldc, c), m * ldc, c, (double)k, 1);
    }
    drop_all();
}

/* The number of implementations of bf16 products. oneDNN emulates bf16 instructions, but only with
 * AVX-512. */
static int ways_of_bf16(void) {
    bool native = gemm_native_possible();
    if (__builtin_cpu_supports("avx512bw")) assert_true(native);
    if (!native) print_message("oneDNN's bf16 products are not tested: this processor has no AVX-512\n");
    return native ? 2 : 1;
}

/* The op of each backend. */
static void check_gemm_op(Device *d, Dtype c) {
    static const int64_t shapes[][3] = {{3, 5, 7}, {65, 70, 33}};
    DeviceNeeds needs = small_needs(c, 1, 2);
    needs.splits = 1;
    set_scratch(d, &needs);
    for (int i = 0; i < 2; i++)
        for (int bits = 0; bits < 16; bits++) {
            int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
            void *a = random_tensor(m * k, c, -1, 1), *b = random_tensor(k * n, c, -1, 1);
            float *got = random_tensor(m * n, DTYPE_F32, -1, 1), *want = copy_of(got, m * n, DTYPE_F32);
            RUN(d, gemm, bits & 1, bits & 2, m, n, k, a, b, c, got, DTYPE_F32, n, bits & 4,
                shared(bits & 8, k));
            RUN(&reference, gemm, bits & 1, bits & 2, m, n, k, a, b, c, want, DTYPE_F32, n, bits & 4,
                NO_SPLIT);
            assert_sums("gemm", d, got, want, m * n, DTYPE_F32, (double)k, 1);
            drop_all();
        }
}
static void test_gemm_op(void **state) { (void)state, on_all(check_gemm_op); }

static void test_gemm_refuses_native(void **state) {
    (void)state;
    if (only) skip();
    Gemm *g = NULL;
    Error err;
    if (gemm_native_possible()) skip();
    assert_int_equal(gemm_open(&g, &kernels_portable, true, 1, &err), ERR_UNAVAILABLE);
    assert_null(g);
    assert_non_null(strstr(err.message, "AVX-512"));
}

static void test_gemm(void **state) {
    (void)state;
    if (only) skip();
    int ways = ways_of_bf16();
    static const int64_t shapes[][3] = {{1, 1, 1},      {3, 5, 7},      {65, 130, 2100},
                                        {300, 400, 33}, {1030, 50, 64}, {40, 1100, 16}};
    Device d;
    Error err;
    open_device(&d, NULL, 2);
    Gemm *g[2] = {NULL};
    for (int native = 0; native < ways; native++)
        assert_int_equal(gemm_open(&g[native], optimised_of(&d)->kernels, native != 0, 2, &err), OK);
    free(d.scratch);
    d.scratch_size = gemm_scratch_bytes(4, DTYPE_BF16, 1, 0);
    d.scratch = malloc(d.scratch_size + 1);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int bits = 0; bits < 8; bits++) {
            check_product(g, 1, &d, shapes[s], bits, DTYPE_F32, DTYPE_F32);
            check_product(g, ways, &d, shapes[s], bits, DTYPE_BF16, DTYPE_F32);
            check_product(g, ways, &d, shapes[s], bits, DTYPE_BF16, DTYPE_BF16);
        }
    for (int native = 0; native < ways; native++) gemm_close(g[native]);
    close_device(&d);
}

/* The same bits for 1 to 4 threads, on shapes of models and on small results of long sums. */
static void product_bits(Gemm *const g[4], Device *d, const int64_t shape[5], Dtype ab, Dtype c,
                         int64_t splits) {
    int64_t m = shape[2], n = shape[3], k = shape[4];
    KSplit of = shared(splits > 0, k);
    if (splits > 1) of.run[0].split_size = (k + splits - 1) / splits;
    void *a = random_tensor(m * k, ab, -1, 1), *b = random_tensor(k * n, ab, -1, 1), *first = NULL;
    for (int t = 0; t < 4; t++) {
        void *out = tensor(m * n, c);
        memset(out, 0, (size_t)(m * n) * dtype_bytes(c));
        d->threads = t + 1;
        gemm_run(g[t], d,
                 &(GemmArgs){shape[0] != 0, shape[1] != 0, m, n, k, a, b, ab, out, c, n, shape[0] != 0, of});
        if (first)
            assert_bits("gemm with other threads", d, out, first, m * n, c);
        else
            first = out;
    }
    drop_all();
}

static void test_gemm_threads(void **state) {
    (void)state;
    if (only) skip();
    int ways = ways_of_bf16();
    static const int64_t shapes[][5] = {
        /* transposed A, B, M, N, K; the last: tiles of the largest size, added to a C in bf16 */
        {0, 1, 512, 768, 256},  {0, 1, 300, 2304, 768}, {0, 0, 512, 768, 2048}, {1, 0, 768, 768, 1024},
        {1, 0, 64, 64, 16384},  {0, 1, 64, 64, 8192},   {1, 0, 1, 100, 3000},   {0, 1, 1, 3000, 768},
        {1, 0, 3000, 256, 128}, {1, 0, 768, 1536, 40}};
    enum { SPLITS = 4 };
    Device d;
    Error err;
    open_device(&d, NULL, 4);
    for (int native = 0; native < ways; native++) {
        Gemm *g[4] = {NULL};
        for (int t = 0; t < 4; t++)
            assert_int_equal(gemm_open(&g[t], optimised_of(&d)->kernels, native != 0, t + 1, &err), OK);
        free(d.scratch);
        d.scratch_size = gemm_scratch_bytes(4, DTYPE_BF16, SPLITS, 0);
        d.scratch = malloc(d.scratch_size + 1);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int splits = 0; splits <= SPLITS; splits += splits ? SPLITS - 1 : 1) {
                if (!native) product_bits(g, &d, shapes[s], DTYPE_F32, DTYPE_F32, splits);
                product_bits(g, &d, shapes[s], DTYPE_BF16, DTYPE_F32, splits);
                product_bits(g, &d, shapes[s], DTYPE_BF16, DTYPE_BF16, splits);
            }
        for (int t = 0; t < 4; t++) gemm_close(g[t]);
    }
    close_device(&d);
}

/* ---- embedding, bias, elements ---- */

static void check_embed(Device *d, Dtype c) {
    EACH(t, token_counts) EACH(h, widths) {
        int64_t vocab = 29;
        int32_t *ids = random_ints(*t, (int32_t)vocab);
        void *table = random_tensor(vocab * *h, c, -1, 1), *got = tensor(*t * *h, c),
             *want = tensor(*t * *h, c);
        for (int i = 0; i < 3; i++) { /* plain, added, scaled */
            float scale = i == 2 ? 1.7f : 1;
            RUN(d, embed_forward, *t, *h, ids, table, ALL_ROWS, scale, i == 1, got, c);
            OP(&reference, embed_forward, *t, *h, ids, table, ALL_ROWS, scale, i == 1, want, c);
            assert_bits("embed_forward", d, got, want, *t * *h, c);
        }
        float *sum = random_tensor(vocab * *h, DTYPE_F32, -1, 1), *sum2 = copy_of(sum, vocab * *h, DTYPE_F32);
        RUN(d, embed_backward, *t, *h, ids, got, ALL_ROWS, 1, sum, c);
        OP(&reference, embed_backward, *t, *h, ids, got, ALL_ROWS, 1, sum2, c);
        assert_bits("embed_backward", d, sum, sum2, vocab * *h, DTYPE_F32);
        RUN(d, embed_backward, *t, *h, ids, got, ALL_ROWS, 1.7f, sum, c);
        OP(&reference, embed_backward, *t, *h, ids, got, ALL_ROWS, 1.7f, sum2, c);
        assert_sums("embed_backward, scaled", d, sum, sum2, vocab * *h, DTYPE_F32, (double)*t, 2);
        drop_all();
    }
}
/* Equal ids that are farther apart than the tokens that a block examines at once: a few frequent ids, and one
 * that occurs only three times. */
static void check_embed_far(Device *d, Dtype c) {
    enum { T = 2100, H = 9, VOCAB = 30 };
    int32_t *ids = random_ints(T, VOCAB - 1);
    ids[0] = ids[1500] = ids[T - 1] = VOCAB - 1;
    void *dout = random_tensor(T * H, c, -1, 1);
    float *sum = random_tensor(VOCAB * H, DTYPE_F32, -1, 1), *want = copy_of(sum, VOCAB * H, DTYPE_F32);
    RUN(d, embed_backward, T, H, ids, dout, ALL_ROWS, 1, sum, c);
    OP(&reference, embed_backward, T, H, ids, dout, ALL_ROWS, 1, want, c);
    assert_bits("embed_backward", d, sum, want, VOCAB * H, DTYPE_F32);
    drop_all();
}
static void test_embed(void **state) {
    (void)state;
    on_all(check_embed);
    on_all(check_embed_far);
}

static void check_bias(Device *d, Dtype c) {
    EACH(t, token_counts) EACH(h, widths) {
        if (takes_long(d, *t)) continue;
        DeviceNeeds needs = small_needs(c, *t, *h);
        set_scratch(d, &needs);
        void *y = random_tensor(*t * *h, c, -1, 1), *y2 = copy_of(y, *t * *h, c);
        float *bias = random_tensor(*h, DTYPE_F32, -1, 1), *db = copy_of(bias, *h, DTYPE_F32),
              *db2 = copy_of(bias, *h, DTYPE_F32);
        RUN(d, bias_backward, *t, *h, y, db, *t, c);
        OP(&reference, bias_backward, *t, *h, y, db2, *t, c);
        assert_sums("bias_backward", d, db, db2, *h, DTYPE_F32, (double)*t, 1);
        RUN(d, bias_forward, *t, *h, y, bias, c);
        OP(&reference, bias_forward, *t, *h, y2, bias, c);
        assert_bits("bias_forward", d, y, y2, *t * *h, c);
        drop_all();
    }
}
static void test_bias(void **state) { (void)state, on_all(check_bias); }

static void check_elements(Device *d, Dtype c) {
    static const int64_t counts[] = {1, 15, 16, 33, 16384, 40001};
    EACH(n, counts) {
        void *a = random_tensor(*n, c, -3, 3), *b = random_tensor(*n, c, -3, 3), *out = tensor(*n, c),
             *want = tensor(*n, c);
        RUN(d, add, *n, a, b, out, c);
        OP(&reference, add, *n, a, b, want, c);
        assert_bits("add", d, out, want, *n, c);
        void *a2 = copy_of(a, *n, c);
        RUN(d, add, *n, a2, b, a2, c);
        assert_bits("add into a", d, a2, want, *n, c);
        RUN(d, add, *n, a, b, b, c);
        assert_bits("add into b", d, b, want, *n, c);
        for (Dtype to = DTYPE_F32; to <= DTYPE_BF16; to++) {
            void *x = tensor(*n, to), *x2 = tensor(*n, to);
            RUN(d, cast, *n, a, c, x, to);
            OP(&reference, cast, *n, a, c, x2, to);
            assert_bits("cast", d, x, x2, *n, to);
        }
        float *x = tensor(*n, DTYPE_F32), *x2 = tensor(*n, DTYPE_F32);
        RUN(d, fill, *n, 1.5f, x);
        for (int64_t i = 0; i < *n; i++) assert_true(x[i] >= 1.5f && x[i] <= 1.5f);
        RUN(d, zero, x, (size_t)*n * 4 - 1);
        const unsigned char *bytes = (const unsigned char *)x;
        for (int64_t i = 0; i < *n * 4 - 1; i++) assert_int_equal(bytes[i], 0);
        assert_int_equal(bytes[*n * 4 - 1], 0x3f);
        RUN(d, copy, x, b, (size_t)*n * dtype_bytes(c));
        assert_bits("copy", d, x, b, *n, c);
        size_t e = dtype_bytes(c); /* exchanges the outer columns of all rows of three */
        RUN(d, copy_rows, *n / 3, e, (char *)x + 2 * e, 3 * e, a, 3 * e);
        RUN(d, copy_rows, *n / 3, e, x, 3 * e, (char *)a + 2 * e, 3 * e);
        for (int64_t i = 0; i + 2 < *n; i += 3) {
            assert_memory_equal((char *)x + (size_t)i * e, (char *)a + (size_t)(i + 2) * e, e);
            assert_memory_equal((char *)x + (size_t)(i + 1) * e, (char *)b + (size_t)(i + 1) * e, e);
            assert_memory_equal((char *)x + (size_t)(i + 2) * e, (char *)a + (size_t)i * e, e);
        }
        RUN(d, upload, x, a, (size_t)*n * dtype_bytes(c));
        RUN(d, download, x2, x, (size_t)*n * dtype_bytes(c));
        assert_bits("upload, download", d, x2, a, *n, c);
        drop_all();
    }
}

/* If the bounds are close together and the mean cancels them, the floats show the last bits of the doubles
 * that they are computed from: in the middle, in the tails, and far out in the tails. */
static void check_normals(Device *d, Dtype c) {
    static const double cases[][4] = {/* mean, std, lo, hi */
                                      {0, 0.02, -(double)INFINITY, (double)INFINITY},
                                      {0.5, 2, -2, 2},
                                      {-0.5, 1, 0.5, 0.5 + 1e-9},
                                      {0.125, 1, -0.125 - 1e-10, -0.125},
                                      {1, 0.5, -2 - 1e-9, -2},
                                      {-2, 1, 2, 2 + 1e-9},
                                      {7.5, 1, -7.5 - 1e-8, -7.5},
                                      {0, 1, 4, (double)INFINITY}};
    static const int64_t counts[] = {1, 63, 64, 40001};
    if (c != DTYPE_F32) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) EACH(n, counts) {
            const double *a = cases[i];
            const uint64_t first = 0xffffffff00 - (uint64_t)i; /* the lower half of the counter overflows */
            float *x = tensor(*n + 1, DTYPE_F32), *x2 = tensor(*n + 1, DTYPE_F32);
            x[*n] = x2[*n] = 3;
            RUN(d, init_normal, *n, 5 + i, first, a[0], a[1], a[2], a[3], x);
            OP(&reference, init_normal, *n, 5 + i, first, a[0], a[1], a[2], a[3], x2);
            assert_bits("init_normal", d, x, x2, *n + 1, DTYPE_F32);
            drop_all();
        }
}
static void test_elements(void **state) { (void)state, on_all(check_elements), on_all(check_normals); }

/* Ties go to even, overflow goes to infinity, NaN stays NaN. */
static void check_rounding(Device *d, Dtype c) {
    if (c == DTYPE_F32) return;
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f7fffff, 0x7f800000,
                                    0xff800000, 0x7f800001, 0xffc00000, 0x80000000, 0x00000001, 0x00008000};
    static const uint16_t want[] = {0x3f80, 0x3f82, 0x3f81, 0x3f80, 0x7f80, 0x7f80,
                                    0xff80, 0x7fc0, 0xffc0, 0x8000, 0,      0};
    enum { N = sizeof bits / sizeof *bits };
    float *in = tensor(2 * N, DTYPE_F32);
    uint16_t *out = tensor(2 * N, DTYPE_BF16);
    memcpy(in, bits, sizeof bits);
    memcpy(in + N, bits, sizeof bits);
    RUN(d, cast, 2 * N, in, DTYPE_F32, out, DTYPE_BF16);
    for (int i = 0; i < 2 * N; i++) assert_int_equal(out[i], want[i % N]);
    drop_all();
}
static void test_rounding(void **state) {
    (void)state, check_rounding(&reference, DTYPE_BF16), on_all(check_rounding);
}

/* ---- norms ---- */

static void check_norm_forward(Device *d, Dtype c, NormKind kind, int64_t t, int64_t h, bool two, bool keep) {
    void *a = random_tensor(t * h, c, -1, 3), *b = two ? random_tensor(t * h, c, -2, 2) : NULL;
    float *w = random_tensor(h, DTYPE_F32, 0.5f, 1.5f), *rstd = tensor(t, DTYPE_F32),
          *rstd2 = tensor(t, DTYPE_F32),
          *bias = kind == NORM_LAYER ? random_tensor(h, DTYPE_F32, -1, 1) : NULL;
    void *sum = keep ? tensor(t * h, c) : NULL, *sum2 = keep ? tensor(t * h, c) : NULL;
    void *y = tensor(t * h, c), *y2 = tensor(t * h, c);
    RUN(d, norm_forward, kind, t, h, 1e-5f, a, b, w, bias, sum, y, rstd, c);
    OP(&reference, norm_forward, kind, t, h, 1e-5f, a, b, w, bias, sum2, y2, rstd2, c);
    if (keep) assert_bits("norm sum", d, sum, sum2, t * h, c);
    assert_sums("norm", d, y, y2, t * h, c, kind == NORM_LAYER ? (double)h : 0, 1);
    assert_sums("rstd", d, rstd, rstd2, t, DTYPE_F32, kind == NORM_LAYER ? (double)h : 0, 1);
    if (keep) {
        float *rstd3 = tensor(t, DTYPE_F32);
        RUN(d, norm_forward, kind, t, h, 1e-5f, a, b, w, bias, sum, NULL, rstd3, c);
        assert_bits("rstd without y", d, rstd3, rstd, t, DTYPE_F32);
        RUN(d, norm_forward, kind, t, h, 1e-5f, a, b, w, bias, a, y2, rstd3, c);
        assert_bits("norm into a", d, y2, y, t * h, c);
    }
}

static void check_norm_backward(Device *d, Dtype c, NormKind kind, int64_t t, int64_t h, bool add) {
    void *x = random_tensor(t * h, c, -1, 3), *dy = random_tensor(t * h, c, -1, 1);
    float *w = random_tensor(h, DTYPE_F32, 0.5f, 1.5f), *rstd = random_tensor(t, DTYPE_F32, 0.8f, 1.2f);
    void *dx = random_tensor(t * h, c, -1, 1), *dx2 = copy_of(dx, t * h, c), *dx3 = copy_of(dx, t * h, c);
    float *dw = random_tensor(h, DTYPE_F32, -1, 1), *dw2 = copy_of(dw, h, DTYPE_F32);
    RUN(d, norm_backward, kind, t, h, x, w, rstd, dy, dx, add, dw, t, c);
    OP(&reference, norm_backward, kind, t, h, x, w, rstd, dy, dx2, add, dw2, t, c);
    assert_sums("norm dx", d, dx, dx2, t * h, c, (double)h, 2);
    assert_sums("norm dw", d, dw, dw2, h, DTYPE_F32, (double)t, 2);
    RUN(d, norm_backward, kind, t, h, x, w, rstd, dy, dx3, add, NULL, t, c);
    assert_bits("norm dx without dw", d, dx3, dx, t * h, c);
}

static void check_norm(Device *d, Dtype c) {
    DeviceNeeds many = small_needs(c, 2100, 24);
    set_scratch(d, &many); /* more rows than kernels process at a time for one of their sums */
    check_norm_backward(d, c, NORM_LAYER, 2100, 24, true);
    drop_all();
    EACH(t, token_counts) EACH(h, widths) {
        if (takes_long(d, *t)) continue;
        if (*h == 1) continue; /* there the gradient is a difference of equal numbers */
        DeviceNeeds needs = small_needs(c, *t, *h);
        set_scratch(d, &needs);
        for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++) {
            for (int bits = 0; bits < 4; bits++) {
                if (bits != 1) check_norm_forward(d, c, (NormKind)kind, *t, *h, bits & 1, bits & 2);
                drop_all();
            }
            check_norm_backward(d, c, (NormKind)kind, *t, *h, false);
            check_norm_backward(d, c, (NormKind)kind, *t, *h, true);
            drop_all();
        }
    }
}
static void test_norm(void **state) { (void)state, on_all(check_norm); }

/* ---- convolutions and recurrences ---- */

/* Documents, with the patterns of attention's segments; without a window, which recurrences do not have. */
static int32_t *documents(int64_t tokens, int pattern) {
    int32_t *first = tensor(tokens, DTYPE_F32), start = 0;
    for (int64_t t = 0; t < tokens; t++) {
        if (pattern == 1 || (pattern == 2 && (t % 37 == 36 || t % 100 == 64))) start = (int32_t)t;
        first[t] = start;
    }
    return first;
}

static const int64_t scan_widths[] = {1, 24, 100, 131, 300};

/* Rows of x have gaps between them, which must stay unchanged. */
static void check_conv_shape(Device *d, ConvShape s, int pattern, Dtype c) {
    int64_t wide = s.tokens * s.row, n = s.tokens * s.width, taps = s.taps * s.width;
    void *x = random_tensor(wide, c, -2, 2), *dy = random_tensor(n, c, -1, 1), *y = tensor(n, c),
         *y2 = tensor(n, c), *dx = random_tensor(wide, c, -1, 1), *dx2 = copy_of(dx, wide, c);
    float *w = random_tensor(taps, DTYPE_F32, -1, 1), *dw = random_tensor(taps, DTYPE_F32, -1, 1),
          *dw2 = copy_of(dw, taps, DTYPE_F32);
    int32_t *first = documents(s.tokens, pattern);
    RUN(d, conv_forward, s, x, w, first, NULL, y, c);
    OP(&reference, conv_forward, s, x, w, first, NULL, y2, c);
    assert_sums("conv", d, y, y2, n, c, s.taps, 2);
    RUN(d, conv_backward, s, x, w, first, dy, dx, dw, c);
    OP(&reference, conv_backward, s, x, w, first, dy, dx2, dw2, c);
    assert_sums("conv dx", d, dx, dx2, wide, c, s.taps, 1);
    assert_sums("conv dw", d, dw, dw2, taps, DTYPE_F32, (double)s.tokens, 2);
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = s.width; i < s.row; i++) {
            float got = tensor_get(dx, t * s.row + i, c), want = tensor_get(dx2, t * s.row + i, c);
            assert_true(got >= want && got <= want);
        }
}

/* Pieces of 1, 2, ... tokens with a tail give the same result as one call. */
static void check_conv_tail(Device *d, ConvShape s, Dtype c) {
    int64_t n = s.tokens * s.width, rows = (s.taps - 1) * s.width + 1;
    void *x = random_tensor(s.tokens * s.row, c, -2, 2), *y = tensor(n, c), *whole = tensor(n, c);
    float *w = random_tensor(s.taps * s.width, DTYPE_F32, -1, 1), *tail = tensor(rows, DTYPE_F32);
    RUN(d, conv_forward, s, x, w, documents(s.tokens, 0), NULL, whole, c);
    memset(tail, 0, (size_t)rows * sizeof *tail);
    ConvShape piece = s;
    for (int64_t at = 0, step = 1; at < s.tokens; at += piece.tokens, step++) {
        piece.tokens = min_i64(step, s.tokens - at);
        RUN(d, conv_forward, piece, tensor_at(x, at * s.row, c), w, NULL, tail, tensor_to(y, at * s.width, c),
            c);
    }
    assert_sums("conv in pieces", d, y, whole, n, c, s.taps, 2);
}

static void check_conv(Device *d, Dtype c) {
    DeviceNeeds needs = small_needs(c, 1, 1);
    set_scratch(d, &needs);
    check_conv_shape(d, (ConvShape){.tokens = 1100, .width = 3, .row = 5, .taps = 4}, 2, c);
    drop_all();
    EACH(t, token_counts)
    EACH(h, scan_widths) for (int taps = 1; taps <= CONV_TAPS; taps += *t <= 65 || taps < 4 ? 1 : 4) {
        ConvShape s = {.tokens = *t, .width = *h, .row = *h + 7, .taps = taps};
        check_conv_shape(d, s, taps % 3, c);
        drop_all();
        if (*t <= 65) check_conv_tail(d, s, c);
        drop_all();
    }
}
static void test_conv(void **state) { (void)state, on_all(check_conv); }

/* Values of lambda for HAWK: fast and slow decays. */
static float *lambdas_of(ScanShape s) {
    return s.kind == SCAN_HAWK ? random_tensor(s.width, DTYPE_F32, -6, 0) : NULL;
}

static void check_scan_shape(Device *d, ScanShape s, int pattern, Dtype c) {
    int64_t t = s.tokens, n = t * s.width, gates = t * s.gates_row, values = t * s.values_row,
            gate = t * s.gate_row;
    ScanInputs in = {random_tensor(gates, c, -2, 2), random_tensor(values, c, -1, 1),
                     random_tensor(gate, c, -2, 2), lambdas_of(s)};
    ScanGradients to = {random_tensor(gates, c, -1, 1), random_tensor(values, c, -1, 1),
                        random_tensor(gate, c, -1, 1), lambdas_of(s)},
                  to2 = {copy_of(to.gates, gates, c), copy_of(to.values, values, c),
                         copy_of(to.gate, gate, c),
                         to.lambda ? copy_of(to.lambda, s.width, DTYPE_F32) : NULL};
    float *h = tensor(n, DTYPE_F32), *h2 = tensor(n, DTYPE_F32);
    void *out = tensor(n, c), *out2 = tensor(n, c), *dout = random_tensor(n, c, -1, 1);
    int32_t *first = documents(t, pattern);
    double terms = 16; /* a state forgets older tokens */
    RUN(d, scan_forward, s, in, first, NULL, h, c);
    OP(&reference, scan_forward, s, in, first, NULL, h2, c);
    assert_sums("scan", d, h, h2, n, DTYPE_F32, terms, 1);
    RUN(d, scan_gate, s, in.gate, h2, out, c);
    OP(&reference, scan_gate, s, in.gate, h2, out2, c);
    assert_near("scan_gate", d, out, out2, n, c);
    RUN(d, scan_backward, s, in, first, h2, dout, to, c);
    OP(&reference, scan_backward, s, in, first, h2, dout, to2, c);
    assert_sums("scan: gates", d, to.gates, to2.gates, gates, c, terms, 1);
    assert_sums("scan: values", d, to.values, to2.values, values, c, terms, 1);
    if (to.lambda)
        assert_sums("scan: lambda", d, to.lambda, to2.lambda, s.width, DTYPE_F32, (double)t * terms, 1);
    assert_sums("scan: gate", d, to.gate, to2.gate, gate, c, terms, 1);
}

/* Pieces with a state give the bits of one call. */
static void check_scan_state(Device *d, ScanShape s, Dtype c) {
    int64_t n = s.tokens * s.width;
    ScanInputs in = {random_tensor(s.tokens * s.gates_row, c, -2, 2),
                     random_tensor(s.tokens * s.values_row, c, -1, 1), NULL, lambdas_of(s)};
    float *h = tensor(n, DTYPE_F32), *whole = tensor(n, DTYPE_F32), *state = tensor(s.width, DTYPE_F32);
    RUN(d, scan_forward, s, in, documents(s.tokens, 0), NULL, whole, c);
    memset(state, 0, (size_t)s.width * sizeof *state);
    ScanShape piece = s;
    for (int64_t at = 0, step = 1; at < s.tokens; at += piece.tokens, step++) {
        piece.tokens = min_i64(step, s.tokens - at);
        ScanInputs from = {tensor_at(in.gates, at * s.gates_row, c),
                           tensor_at(in.values, at * s.values_row, c), NULL, in.lambda};
        RUN(d, scan_forward, piece, from, NULL, state, h + at * s.width, c);
    }
    assert_bits("scan in pieces", d, h, whole, n, DTYPE_F32);
    assert_bits("state", d, state, whole + n - s.width, s.width, DTYPE_F32);
}

static void check_scan(Device *d, Dtype c) {
    DeviceNeeds needs = small_needs(c, 1, 1);
    set_scratch(d, &needs);
    EACH(t, token_counts) EACH(w, scan_widths) for (int kind = 0; kind < SCAN_KINDS; kind++) {
        ScanShape s = {.tokens = *t,
                       .width = *w,
                       .gates_row = scan_gates((ScanKind)kind) * *w + 3,
                       .values_row = *w,
                       .gate_row = 2 * *w,
                       .kind = (ScanKind)kind};
        check_scan_shape(d, s, (int)(*t + *w) % 3, c);
        drop_all();
        check_scan_state(d, s, c);
        drop_all();
    }
}
static void test_scan(void **state) { (void)state, on_all(check_scan); }

/* The formulas of ops/recurrence.h, in double, step by step. */
static void test_scan_formulas(void **state) {
    (void)state;
    if (only) skip();
    enum { T = 9 };
    static const float gates[T][2] = {{0.5f, -1}, {2, 0.3f}, {-1, 1}, {0, 0}, {-3, 2},
                                      {1, 1},     {4, -4},   {-2, 0}, {1, -2}};
    static const float values[T] = {1, -2, 0.5f, 3, -1, 2, 0.25f, -3, 1};
    static const int32_t first[T] = {0, 0, 0, 3, 3, 3, 6, 6, 6};
    for (int kind = 0; kind < SCAN_KINDS; kind++) {
        ScanShape s = {T, 1, 2, 1, 1, (ScanKind)kind};
        float h[T], lambda = -1.5f;
        double want = 0;
        OP(&reference, scan_forward, s, (ScanInputs){gates, values, NULL, kind == SCAN_HAWK ? &lambda : NULL},
           first, NULL, h, DTYPE_F32);
        for (int t = 0; t < T; t++) {
            double x = 1 / (1 + exp(-(double)gates[t][0])), y = 1 / (1 + exp(-(double)gates[t][1]));
            if (first[t] == t) want = 0;
            if (kind == SCAN_MIN_GRU)
                want = (1 - x) * want + x * (double)values[t];
            else if (kind == SCAN_MIN_LSTM)
                want = (x * want + y * (double)values[t]) / (x + y + 1e-4);
            else {
                double a = exp(-8 * x * log(1 + exp(-1.5)));
                want = a * want + sqrt(1 - a * a) * y * (double)values[t];
            }
            assert_true(fabs((double)h[t] - want) < 1e-6);
        }
    }
}

/* ---- Mamba-2 ---- */

static MambaShape mamba_shape(int64_t tokens, int64_t heads, int64_t groups, int64_t head_dim,
                              int64_t state) {
    return (MambaShape){.tokens = tokens,
                        .heads = heads,
                        .groups = groups,
                        .head_dim = head_dim,
                        .state = state,
                        .row = heads * head_dim + 2 * groups * state + 5,
                        .dt_row = heads + 3};
}
static int64_t mamba_outputs(MambaShape s) { return s.tokens * s.heads * s.head_dim; }
static int64_t mamba_states(MambaShape s) { return mamba_starts(s.tokens) * mamba_state_at(&s, s.heads, 0); }
static int64_t mamba_floats(MambaShape s) {
    return mamba_scratch_rows(s.tokens) * mamba_scratch_row(s.heads, s.groups, s.state);
}

/* Inputs, or their gradients: x, B and C in one row; dt; and dt_bias, A_log and D. Rows have gaps between
 * them. */
typedef struct MambaTensors {
    void *read, *dt;
    float *heads;
} MambaTensors;
static MambaTensors mamba_random(MambaShape s, Dtype c) {
    return (MambaTensors){random_tensor(s.tokens * s.row, c, -1, 1),
                          random_tensor(s.tokens * s.dt_row, c, -3, 1),
                          random_tensor(3 * s.heads, DTYPE_F32, -1, 1)};
}
/* From token t on. */
static MambaGradients mamba_gradients(MambaShape s, MambaTensors m, int64_t t, Dtype c) {
    void *x = tensor_to(m.read, t * s.row, c);
    return (MambaGradients){.x = x,
                            .B = tensor_to(x, s.heads * s.head_dim, c),
                            .C = tensor_to(x, s.heads * s.head_dim + s.groups * s.state, c),
                            .dt = tensor_to(m.dt, t * s.dt_row, c),
                            .dt_bias = m.heads,
                            .A_log = m.heads + s.heads,
                            .D = m.heads + 2 * s.heads};
}
static MambaInputs mamba_inputs(MambaShape s, MambaTensors m, int64_t t, Dtype c) {
    MambaGradients g = mamba_gradients(s, m, t, c);
    return (MambaInputs){g.x, g.B, g.C, g.dt, g.dt_bias, g.A_log, g.D};
}

static void check_mamba_shape(Device *d, MambaShape s, int pattern, Dtype c) {
    int64_t n = mamba_outputs(s), states = mamba_states(s), carried = mamba_state_at(&s, s.heads, 0),
            wide = s.tokens * s.row, steps = s.tokens * s.dt_row;
    MambaTensors from = mamba_random(s, c), to = mamba_random(s, c),
                 to2 = {copy_of(to.read, wide, c), copy_of(to.dt, steps, c),
                        copy_of(to.heads, 3 * s.heads, DTYPE_F32)};
    MambaInputs in = mamba_inputs(s, from, 0, c);
    float *starts = tensor(states, DTYPE_F32), *starts2 = tensor(states, DTYPE_F32),
          *carry = tensor(carried, DTYPE_F32), *scratch = tensor(mamba_floats(s), DTYPE_F32);
    void *y = tensor(n, c), *y2 = tensor(n, c), *dy = random_tensor(n, c, -1, 1);
    int32_t *first = documents(s.tokens, pattern);
    double terms = 32; /* a state forgets older tokens */
    RUN(d, mamba_forward, s, in, first, NULL, starts, y, c);
    OP(&reference, mamba_forward, s, in, first, NULL, starts2, y2, c);
    assert_sums("mamba", d, y, y2, n, c, terms * (double)s.state, 1);
    RUN(d, mamba_backward, s, in, first, starts, dy, carry, scratch, mamba_gradients(s, to, 0, c), c);
    OP(&reference, mamba_backward, s, in, first, starts2, dy, carry, scratch, mamba_gradients(s, to2, 0, c),
       c);
    double sums = terms * (double)(s.state + s.heads * s.head_dim);
    assert_sums("mamba: x, B and C", d, to.read, to2.read, wide, c, sums, 1);
    assert_sums("mamba: dt", d, to.dt, to2.dt, steps, c, sums, (double)s.head_dim);
    assert_sums("mamba: heads", d, to.heads, to2.heads, 3 * s.heads, DTYPE_F32, sums * (double)s.tokens,
                (double)s.head_dim);
}

/* Pieces with a state give the bits of one call. */
static void check_mamba_state(Device *d, MambaShape s, Dtype c) {
    int64_t n = mamba_outputs(s), row = s.heads * s.head_dim, states = mamba_carried(&s);
    MambaTensors from = mamba_random(s, c);
    void *y = tensor(n, c), *whole = tensor(n, c);
    float *state = tensor(states, DTYPE_F32), *starts = tensor(mamba_states(s), DTYPE_F32);
    RUN(d, mamba_forward, s, mamba_inputs(s, from, 0, c), documents(s.tokens, 0), NULL, starts, whole, c);
    memset(state, 0, (size_t)states * sizeof *state);
    MambaShape piece = s;
    for (int64_t at = 0, step = 1; at < s.tokens; at += piece.tokens, step *= 3) {
        piece.tokens = min_i64(step, s.tokens - at);
        RUN(d, mamba_forward, piece, mamba_inputs(s, from, at, c), NULL, state, starts,
            tensor_to(y, at * row, c), c);
    }
    assert_bits("mamba in pieces", d, y, whole, n, c);
}

/* A row of a state adds in its own order, whatever rows are processed beside it. */
static void check_mamba_rows(Device *d, Dtype c) {
    MambaShape s = mamba_shape(140, 1, 1, 7, 20), one = s;
    int64_t rows = s.head_dim, states = mamba_states(s);
    MambaTensors from = mamba_random(s, c), to = mamba_random(s, c), to1 = mamba_random(s, c);
    MambaInputs in = mamba_inputs(s, from, 0, c);
    MambaGradients out = mamba_gradients(s, to, 0, c), out1 = mamba_gradients(s, to1, 0, c);
    void *y = tensor(s.tokens * rows, c), *y1 = tensor(s.tokens, c),
         *dy = random_tensor(s.tokens * rows, c, -1, 1), *dy1 = tensor(s.tokens, c), *dx = out.x,
         *dx1 = out1.x;
    float *starts = tensor(states, DTYPE_F32), *starts1 = tensor(states, DTYPE_F32),
          *carry = tensor(states, DTYPE_F32), *scratch = tensor(mamba_floats(s), DTYPE_F32);
    int32_t *first = documents(s.tokens, 2);
    one.head_dim = 1;
    RUN(d, mamba_forward, s, in, first, NULL, starts, y, c);
    RUN(d, mamba_backward, s, in, first, starts, dy, carry, scratch, out, c);
    for (int64_t p = 0; p < rows; p++) {
        MambaInputs in1 = in;
        in1.x = tensor_at(in.x, p, c), out1.x = tensor_to(dx1, p, c);
        for (int64_t t = 0; t < s.tokens; t++) tensor_set(dy1, t, c, tensor_get(dy, t * rows + p, c));
        RUN(d, mamba_forward, one, in1, first, NULL, starts1, y1, c);
        RUN(d, mamba_backward, one, in1, first, starts1, dy1, carry, scratch, out1, c);
        for (int64_t t = 0; t < s.tokens; t++) {
            assert_bits("mamba, a row", d, tensor_at(y1, t, c), tensor_at(y, t * rows + p, c), 1, c);
            assert_bits("mamba, a row of dx", d, tensor_at(dx1, t * s.row + p, c),
                        tensor_at(dx, t * s.row + p, c), 1, c);
        }
    }
}

static void check_mamba(Device *d, Dtype c) {
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {2, 1, 5, 3}, {4, 2, 3, 16}, {3, 3, 4, 40}};
    DeviceNeeds needs = small_needs(c, 1, 1);
    set_scratch(d, &needs);
    EACH(t, token_counts) for (int i = 0; i < 4; i++) {
        const int64_t *of = shapes[i];
        check_mamba_shape(d, mamba_shape(*t, of[0], of[1], of[2], of[3]), (int)(*t + i) % 3, c);
        drop_all();
        check_mamba_state(d, mamba_shape(*t, of[0], of[1], of[2], of[3]), c);
        drop_all();
    }
    check_mamba_shape(d, mamba_shape(130, 1, 1, 2, MAMBA_STATE), 2, c);
    drop_all();
    check_mamba_shape(d, mamba_shape(20, 2, 1, 70, 100), 1, c);
    drop_all();
    if (c == DTYPE_F32) check_mamba_shape(d, mamba_shape(2, 3, 1, 8200, 1), 0, c); /* heads one by one */
    drop_all();
    check_mamba_rows(d, c);
    drop_all();
}
static void test_mamba(void **state) { (void)state, on_all(check_mamba); }

/* In double, as a sum over the previous tokens, without any state: "the dual form" of Dao & Gu. */
static double mamba_by_sums(MambaShape s, MambaInputs in, const int32_t *first, int64_t t, int64_t head,
                            int64_t p) {
    double y = 0, decay = 0;
    for (int64_t u = t; u >= first[t]; u--) {
        double along = 0, x = (double)((const float *)in.x)[mamba_x_at(&s, u, head, p)],
               step = log(
                   1 + exp((double)((const float *)in.dt)[u * s.dt_row + head] + (double)in.dt_bias[head]));
        for (int64_t n = 0; n < s.state; n++)
            along += (double)((const float *)in.C)[mamba_group_at(&s, t, head) + n] *
                     (double)((const float *)in.B)[mamba_group_at(&s, u, head) + n];
        y += exp(decay) * step * along * x + (u == t ? (double)in.D[head] * x : 0);
        decay -= step * exp((double)in.A_log[head]);
    }
    return y;
}

static void test_mamba_formulas(void **state) {
    (void)state;
    if (only) skip();
    MambaShape s = mamba_shape(150, 4, 2, 3, 5);
    MambaTensors from = mamba_random(s, DTYPE_F32);
    MambaInputs in = mamba_inputs(s, from, 0, DTYPE_F32);
    float *y = tensor(mamba_outputs(s), DTYPE_F32), *starts = tensor(mamba_states(s), DTYPE_F32);
    int32_t *first = documents(s.tokens, 2);
    OP(&reference, mamba_forward, s, in, first, NULL, starts, y, DTYPE_F32);
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = 0; i < 12; i++) {
            double want = mamba_by_sums(s, in, first, t, i / 3, i % 3);
            if (!(fabs((double)y[t * 12 + i] - want) < 1e-5))
                fail_msg("token %d, channel %d: %g, by its sum %g", (int)t, (int)i, (double)y[t * 12 + i],
                         want);
        }
    drop_all();
}

static void check_gated_norm(Device *d, Dtype c) {
    const int64_t lengths[] = {1, 24, 40, 64, 100, 521, 5000}; /* the last: longer than what a kernel keeps */
    EACH(t, token_counts) EACH(h, lengths) for (int64_t runs = 1; runs <= 4; runs += 3) {
        if (*h == 5000 && *t > 3) continue;
        GatedNorm s = {*t, runs * *h, *h, runs * *h + 3, 1e-5f};
        int64_t n = *t * s.width, wide = *t * s.gate_row;
        DeviceNeeds needs = small_needs(c, *t, s.width);
        set_scratch(d, &needs);
        void *x = random_tensor(n, c, -1, 1), *gate = random_tensor(wide, c, -2, 2),
             *dy = random_tensor(n, c, -1, 1), *y = tensor(n, c), *y2 = tensor(n, c), *dx = tensor(n, c),
             *dx2 = tensor(n, c), *dgate = random_tensor(wide, c, -1, 1), *dgate2 = copy_of(dgate, wide, c);
        float *w = random_tensor(s.width, DTYPE_F32, -1, 1), *dw = copy_of(w, s.width, DTYPE_F32),
              *dw2 = copy_of(w, s.width, DTYPE_F32);
        RUN(d, gated_norm_forward, s, x, gate, w, y, c);
        OP(&reference, gated_norm_forward, s, x, gate, w, y2, c);
        assert_sums("gated norm", d, y, y2, n, c, (double)*h, 1);
        RUN(d, gated_norm_backward, s, x, gate, w, dy, dx, dgate, dw, c);
        OP(&reference, gated_norm_backward, s, x, gate, w, dy, dx2, dgate2, dw2, c);
        /* A single number is normed to +-w, whatever it is; its residual is multiplied by up to 1 /
         * sqrt(eps). */
        double size = *h == 1 ? 300 : 10;
        assert_sums("gated norm dx", d, dx, dx2, n, c, (double)*h, size);
        assert_sums("gated norm dgate", d, dgate, dgate2, wide, c, (double)*h, size);
        assert_sums("gated norm dw", d, dw, dw2, s.width, DTYPE_F32, (double)*t, 2);
        drop_all();
    }
}
static void test_gated_norm(void **state) { (void)state, on_all(check_gated_norm); }

/* ---- RoPE and attention ---- */

static const AttentionShape attention_shapes[] = {
    SHAPE(0, 1, 1, 2),
    SHAPE(0, 2, 1, 8),
    SHAPE(0, 4, 2, 16),
    SHAPE(0, 2, 2, 24),
    SHAPE(0, 6, 2, 64),
    SHAPE(0, 2, 1, 80),
    SHAPE(0, 2, 1, 128),
    SHAPE(0, 1, 1, 256),
    {.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 9},
    {.heads = 2, .kv_heads = 2, .head_dim = 24, .rotary = 10, .scale = 0.11f, .cap = 3},
    {.heads = 3, .kv_heads = 1, .head_dim = 40, .rotary = 36, .window = 70, .cap = 2},
    {.heads = 2, .kv_heads = 1, .head_dim = 64, .scale = 0.07f, .window = 1},
    {.heads = 4, .kv_heads = 1, .head_dim = 32, .scale = 0.2f, .window = 50, .cap = 3},
    {.heads = 4, .kv_heads = 2, .head_dim = 16, .chunk = 7, .neighbours = true},
    {.heads = 3, .kv_heads = 1, .head_dim = 40, .chunk = 100, .neighbours = true, .rotary = 22},
    {.heads = 2, .kv_heads = 1, .head_dim = 64, .chunk = 64},
    {.heads = 1, .kv_heads = 1, .head_dim = 24, .chunk = 1, .cap = 2},
};
enum { ATTENTION_SHAPES = sizeof attention_shapes / sizeof *attention_shapes };

static int64_t qkv_row(AttentionShape s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

static void check_qk_norm_kind(Device *d, AttentionShape s, bool flat, NormKind kind, Dtype c) {
    int64_t n = s.tokens * qkv_row(s), nq = (flat ? s.heads : 1) * s.head_dim,
            nk = (flat ? s.kv_heads : 1) * s.head_dim;
    void *raw = random_tensor(n, c, -2, 2), *out = tensor(n, c), *want = tensor(n, c),
         *grad = random_tensor(n, c, -1, 1), *grad2 = copy_of(grad, n, c);
    float *wq = random_tensor(nq, DTYPE_F32, 0.5f, 1.5f), *wk = random_tensor(nk, DTYPE_F32, 0.5f, 1.5f),
          *dwq = copy_of(wq, nq, DTYPE_F32), *dwk = copy_of(wk, nk, DTYPE_F32),
          *dwq2 = copy_of(wq, nq, DTYPE_F32), *dwk2 = copy_of(wk, nk, DTYPE_F32);
    double terms = (double)(s.tokens * s.heads);
    RUN(d, qk_norm_forward, s, qk_rows(flat), kind, 1e-5f, raw, wq, wk, out, c);
    OP(&reference, qk_norm_forward, s, qk_rows(flat), kind, 1e-5f, raw, wq, wk, want, c);
    assert_near("qk_norm", d, out, want, n, c);
    RUN(d, qk_norm_backward, s, qk_rows(flat), kind, 1e-5f, raw, wq, wk, grad, dwq, dwk, 1, c);
    OP(&reference, qk_norm_backward, s, qk_rows(flat), kind, 1e-5f, raw, wq, wk, grad2, dwq2, dwk2, 1, c);
    assert_sums("qk_norm gradient", d, grad, grad2, n, c, (double)nq, 2);
    assert_sums("qk_norm dwq", d, dwq, dwq2, nq, DTYPE_F32, terms, 2);
    assert_sums("qk_norm dwk", d, dwk, dwk2, nk, DTYPE_F32, terms, 2);
    drop_all();
}

/* Without weights, which then have no gradients. */
static void check_qk_norm_plain(Device *d, AttentionShape s, Dtype c) {
    int64_t n = s.tokens * qkv_row(s);
    void *raw = random_tensor(n, c, -2, 2), *out = tensor(n, c), *want = tensor(n, c),
         *grad = random_tensor(n, c, -1, 1), *grad2 = copy_of(grad, n, c);
    QkRows rows = qk_rows(false);
    RUN(d, qk_norm_forward, s, rows, NORM_RMS, 1e-5f, raw, NULL, NULL, out, c);
    OP(&reference, qk_norm_forward, s, rows, NORM_RMS, 1e-5f, raw, NULL, NULL, want, c);
    assert_near("qk_norm without weights", d, out, want, n, c);
    RUN(d, qk_norm_backward, s, rows, NORM_RMS, 1e-5f, raw, NULL, NULL, grad, NULL, NULL, 1, c);
    OP(&reference, qk_norm_backward, s, rows, NORM_RMS, 1e-5f, raw, NULL, NULL, grad2, NULL, NULL, 1, c);
    assert_sums("its gradient", d, grad, grad2, n, c, (double)s.head_dim, 2);
    drop_all();
}

/* Sums by splits equal those of the reference, and rows normed with them equal rows normed without splits. */
static void check_qk_splits(Device *d, AttentionShape s, NormKind kind, Dtype c) {
    int splits = s.kv_heads * s.head_dim % s.heads == 0 ? s.heads : s.kv_heads;
    int64_t n = s.tokens * qkv_row(s), nq = s.heads * s.head_dim, nk = s.kv_heads * s.head_dim,
            count = splits * s.tokens * 2;
    void *raw = random_tensor(n, c, -2, 2), *out = tensor(n, c), *want = tensor(n, c),
         *grad = random_tensor(n, c, -1, 1), *grad2 = copy_of(grad, n, c);
    float *wq = random_tensor(nq, DTYPE_F32, 0.5f, 1.5f), *wk = random_tensor(nk, DTYPE_F32, 0.5f, 1.5f),
          *dw = copy_of(wq, nq, DTYPE_F32), *dw2 = copy_of(wq, nq, DTYPE_F32),
          *dk = copy_of(wk, nk, DTYPE_F32), *dk2 = copy_of(wk, nk, DTYPE_F32), *sums[2],
          *own = tensor(count, DTYPE_F32);
    KSplit l = {
        .runs = 2,
        .run = {{.length = nq, .split_size = nq / splits}, {.length = nk, .split_size = nk / splits}}};
    for (int back = 0; back < 2; back++) {
        sums[back] = tensor(count, DTYPE_F32);
        RUN(d, qk_norm_sums, s, l, kind, raw, wq, wk, back ? grad : NULL, sums[back], c);
        OP(&reference, qk_norm_sums, s, l, kind, raw, wq, wk, back ? grad : NULL, own, c);
        assert_sums("qk_norm sums", d, sums[back], own, count, DTYPE_F32, (double)l.run[0].split_size, 5);
    }
    QkRows rows = {true, splits, s.tokens, nq, nk, sums[0], sums[1]};
    RUN(d, qk_norm_forward, s, rows, kind, 1e-5f, raw, wq, wk, out, c);
    OP(&reference, qk_norm_forward, s, qk_rows(true), kind, 1e-5f, raw, wq, wk, want, c);
    assert_near("qk_norm by splits", d, out, want, n, c);
    RUN(d, qk_norm_backward, s, rows, kind, 1e-5f, raw, wq, wk, grad, dw, dk, 1, c);
    OP(&reference, qk_norm_backward, s, qk_rows(true), kind, 1e-5f, raw, wq, wk, grad2, dw2, dk2, 1, c);
    assert_sums("qk_norm gradient by splits", d, grad, grad2, n, c, (double)nq, 2);
    assert_sums("qk_norm dwq by splits", d, dw, dw2, nq, DTYPE_F32, (double)s.tokens, 2);
    assert_sums("qk_norm dwk by splits", d, dk, dk2, nk, DTYPE_F32, (double)s.tokens, 2);
    drop_all();
}

static void check_qk_norm(Device *d, Dtype c) {
    EACH(t, token_counts) for (int i = 1; i < ATTENTION_SHAPES; i++) { /* two numbers have no gradient */
        if (takes_long(d, *t)) continue;
        AttentionShape s = attention_shapes[i];
        s.tokens = *t;
        DeviceNeeds needs = small_needs(c, *t, 2);
        needs.attention = s;
        set_scratch(d, &needs);
        for (int bits = 0; bits < 4; bits++)
            check_qk_norm_kind(d, s, bits & 1, bits & 2 ? NORM_RMS_PLUS_ONE : NORM_RMS, c);
        check_qk_norm_plain(d, s, c);
        check_qk_splits(d, s, NORM_RMS, c);
        check_qk_splits(d, s, NORM_RMS_PLUS_ONE, c);
    }
}
static void test_qk_norm(void **state) { (void)state, on_all(check_qk_norm); }

/* Calls `check` on rows of queries, keys and values of each shape; x and want are equal at first. */
enum { POSITIONS = 50 };
static void on_placed_rows(Device *d, Dtype c,
                           void (*check)(Device *d, AttentionShape s, const int32_t *positions, void *x,
                                         void *want, Dtype c)) {
    EACH(t, token_counts) for (int i = 0; i < ATTENTION_SHAPES; i++) {
        AttentionShape s = attention_shapes[i];
        s.tokens = *t;
        void *x = random_tensor(*t * qkv_row(s), c, -1, 1), *want = copy_of(x, *t * qkv_row(s), c);
        check(d, s, random_ints(*t, POSITIONS), x, want, c);
        drop_all();
    }
}

static void check_rope_shape(Device *d, AttentionShape s, const int32_t *positions, void *x, void *want,
                             Dtype c) {
    float *angles = random_tensor(POSITIONS * s.head_dim, DTYPE_F32, -1, 1);
    for (int inverse = 0; inverse < 2; inverse++) {
        RUN(d, rope, s, x, positions, angles, inverse != 0, c);
        OP(&reference, rope, s, want, positions, angles, inverse != 0, c);
        assert_sums("rope", d, x, want, s.tokens * qkv_row(s), c, 2, 1);
    }
}
static void check_rope(Device *d, Dtype c) { on_placed_rows(d, c, check_rope_shape); }
static void test_rope(void **state) { (void)state, on_all(check_rope); }

static void check_scale_shape(Device *d, AttentionShape s, const int32_t *positions, void *x, void *want,
                              Dtype c) {
    float *factors = random_tensor(POSITIONS, DTYPE_F32, 1, 2);
    RUN(d, queries_scale, s, x, positions, factors, c);
    OP(&reference, queries_scale, s, want, positions, factors, c);
    assert_bits("queries_scale", d, x, want, s.tokens * qkv_row(s), c);
}
static void check_queries_scale(Device *d, Dtype c) { on_placed_rows(d, c, check_scale_shape); }
static void test_queries_scale(void **state) { (void)state, on_all(check_queries_scale); }

/* Queries and the shared key are separate tensors, or with `joint` columns of one. */
static void check_latent_shape(Device *d, LatentShape s, bool joint, Dtype c) {
    int64_t dim = latent_head(s), width = s.heads * dim, own = s.heads * (int64_t)(s.nope + s.value),
            row = (joint ? width : 0) + 3 + s.rope, t = s.tokens;
    s.q_row = joint ? row : width, s.key_row = row;
    void *down = random_tensor(t * row, c, -1, 1), *q = joint ? down : random_tensor(t * width, c, -1, 1),
         *mine = random_tensor(t * own, c, -1, 1), *key = tensor_to(down, row - s.rope, c),
         *got = random_tensor(3 * t * width, c, -1, 1), *want = tensor(3 * t * width, c);
    int32_t *positions = random_ints(t, POSITIONS);
    float *angles = random_tensor(POSITIONS * s.rope, DTYPE_F32, -1, 1);
    RUN(d, latent_forward, s, q, mine, key, positions, angles, got, c);
    OP(&reference, latent_forward, s, q, mine, key, positions, angles, want, c);
    assert_sums("latent_forward", d, got, want, 3 * t * width, c, 2, 1);
    void *dq = joint ? down : q, *want_down = copy_of(down, t * row, c),
         *want_q = joint ? want_down : tensor(t * width, c), *want_mine = tensor(t * own, c);
    RUN(d, latent_backward, s, want, positions, angles, dq, mine, key, c);
    OP(&reference, latent_backward, s, want, positions, angles, want_q, want_mine,
       tensor_to(want_down, row - s.rope, c), c);
    assert_sums("gradient of the common key", d, down, want_down, t * row, c, 2 * s.heads, 2 * s.heads);
    if (!joint) assert_sums("gradient of queries", d, q, want_q, t * width, c, 2, 1);
    assert_near("gradient of keys and values", d, mine, want_mine, t * own, c);
    s.partial = true, s.key_row = s.rope;
    float *terms = tensor(t * s.rope, DTYPE_F32), *want_terms = tensor(t * s.rope, DTYPE_F32);
    RUN(d, latent_backward, s, want, positions, angles, dq, mine, terms, c);
    OP(&reference, latent_backward, s, want, positions, angles, want_q, want_mine, want_terms, c);
    assert_sums("terms of the common key", d, terms, want_terms, t * s.rope, DTYPE_F32, 2 * s.heads,
                2 * s.heads);
    drop_all();
}

static void check_latent(Device *d, Dtype c) {
    static const LatentShape shapes[] = {{.heads = 1, .nope = 2, .rope = 2, .value = 1},
                                         {.heads = 3, .nope = 5, .rope = 6, .value = 11},
                                         {.heads = 4, .nope = 12, .rope = 8, .value = 10},
                                         {.heads = 2, .nope = 128, .rope = 64, .value = 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int bits = 0; bits < 4; bits++) {
            LatentShape s = shapes[i];
            s.tokens = bits & 1 ? 17 : 1, s.splits = s.heads;
            if (bits & 2) s.splits = s.heads % 2 == 0 ? 2 : 1;
            check_latent_shape(d, s, bits & 2, c);
        }
}
static void test_latent(void **state) { (void)state, on_all(check_latent); }

/* Segments: one; every token its own; of uneven lengths; a window that moves on in the middle of blocks. */
static void set_first_keys(int32_t *first, int64_t tokens, int pattern) {
    int32_t start = 0;
    for (int64_t t = 0; t < tokens; t++) {
        if (pattern == 1) start = (int32_t)t;
        if (pattern == 2 && (t % 37 == 36 || t % 100 == 64)) start = (int32_t)t;
        if (pattern == 3) start = (int32_t)(t > 40 ? t - 40 : 0);
        first[t] = start;
    }
}

/* In every second case: within the range of scores, or above all of them. NULL if the device has no kernels
 * for sinks. */
static const float *sinks_for(const Device *d, AttentionShape s, int64_t number) {
    if (!d->ops->sinks_backward || number % 2 == 0) return NULL;
    return number % 4 == 1 ? random_tensor(s.heads, DTYPE_F32, -2, 2)
                           : random_tensor(s.heads, DTYPE_F32, 30, 200);
}

/* Whether its own kernels multiply bf16 without widening. */
static bool has_dot_products(const Device *d) {
    return strcmp(d->name, "avx512_bf16") == 0 || strcmp(d->name, "amx") == 0;
}

/* The dtype in which attention's probabilities and the gradients of its scores are multiplied. */
static Dtype weights_of(const Device *d, AttentionShape s, Dtype c) {
    bool takes_matrices = strcmp(d->name, CUDA) == 0 && s.head_dim % 16 == 0 && s.head_dim <= 128;
    return takes_matrices || has_dot_products(d) ? c : DTYPE_F32;
}

/* If weights are rounded to bf16, each is off by at most 2^-9 of itself, and so is their sum. Its logarithm
 * is then off by 2^-9, however near to 0 it is. */
static void assert_lse(const char *what, const Device *d, const float *got, const float *want,
                       AttentionShape s, Dtype c) {
    const double term = 4 * 0x1p-24, weights = weights_of(d, s, c) == DTYPE_BF16 ? 0x1p-9 : 0;
    assert_made(what, d, got, want, s.heads * s.tokens, DTYPE_F32, DTYPE_F32, s.head_dim + weights / term, 1);
}

/* Some of the queries: partial sums of the gradients of all keys and values, zero for keys that no query
 * sees. */
static void check_attention_run(Device *d, AttentionShape s, const void *qkv, const int32_t *first,
                                const void *out, const float *lse, const void *dout, Dtype c) {
    int64_t t = s.tokens, query = s.heads * s.head_dim, width = 2 * (int64_t)s.kv_heads * s.head_dim;
    AttentionRun r = attention_whole(s);
    AttentionShape some = s;
    r.first = t / 3, some.tokens = (t + 1) / 2, r.partial = true;
    int64_t end = r.first + some.tokens, n = some.tokens * query;
    float *lse_some = tensor(s.heads * some.tokens, DTYPE_F32),
          *dkv = random_tensor(t * width, DTYPE_F32, 1, 2), *dkv2 = tensor(t * width, DTYPE_F32);
    for (int h = 0; h < s.heads; h++)
        memcpy(lse_some + h * some.tokens, lse + h * t + r.first, (size_t)some.tokens * sizeof *lse);
    void *dq = tensor(some.tokens * r.q_row, c), *dq2 = tensor(some.tokens * r.q_row, c), *got = tensor(n, c);
    const void *q = tensor_at(qkv, r.first * r.q_row, c), *kv = tensor_at(qkv, query, c),
               *o = tensor_at(out, r.first * query, c), *dout_some = tensor_at(dout, r.first * query, c);
    float *lse2 = tensor(s.heads * some.tokens, DTYPE_F32);
    RUN(d, attention_forward, some, r, q, kv, first, got, lse2, c);
    assert_sums("attention of a run", d, got, o, n, c, s.head_dim, 1);
    assert_lse("lse of a run", d, lse2, lse_some, some, c);
    RUN(d, attention_backward, some, r, q, kv, first, o, lse_some, dout_some, dq, dkv, c);
    OP(&reference, attention_backward, some, r, q, kv, first, o, lse_some, dout_some, dq2, dkv2, c);
    assert_sums("attention gradient of a run's queries", d, dq, dq2, some.tokens * r.q_row, c, s.head_dim, 1);
    assert_made("terms of a run", d, dkv, dkv2, t * width, DTYPE_F32, weights_of(d, s, c), s.head_dim, 1);
    for (int64_t i = end * width; i < t * width; i++) assert_true(dkv[i] == 0);
}

/* Each chunk acts as a document, wherever its document began. */
static void check_chunks(Device *d, AttentionShape s, const void *qkv, const int32_t *first, const void *want,
                         Dtype c) {
    int64_t n = s.tokens * s.heads * s.head_dim;
    AttentionShape plain = s;
    int32_t *begins = tensor(s.tokens, DTYPE_F32);
    float *lse = tensor(s.heads * s.tokens, DTYPE_F32);
    void *out = tensor(n, c);
    for (int64_t t = 0; t < s.tokens; t++)
        begins[t] = first[t] + (int32_t)((t - first[t]) / s.chunk * s.chunk);
    plain.chunk = 0;
    RUN(d, attention_forward, plain, attention_whole(s), qkv, tensor_at(qkv, s.heads * s.head_dim, c), begins,
        out, lse, c);
    assert_bits("attention in chunks", d, out, want, n, c);
}

static void check_attention_shape(Device *d, AttentionShape s, int pattern, Dtype c) {
    int64_t t = s.tokens, wide = t * qkv_row(s), n = t * s.heads * s.head_dim;
    void *qkv = random_tensor(wide, c, -2, 2), *dout = random_tensor(n, c, -1, 1);
    int32_t *first = tensor(t, DTYPE_F32);
    set_first_keys(first, t, pattern);
    void *out = tensor(n, c), *out2 = tensor(n, c), *grad = tensor(wide, c), *grad2 = tensor(wide, c);
    float *lse = tensor(s.heads * t, DTYPE_F32), *lse2 = tensor(s.heads * t, DTYPE_F32);
    s.sinks = sinks_for(d, s, pattern);
    AttentionRun whole = attention_whole(s);
    int64_t query = s.heads * s.head_dim;
    const void *kv = tensor_at(qkv, query, c);
    RUN(d, attention_forward, s, whole, qkv, kv, first, out, lse, c);
    OP(&reference, attention_forward, s, whole, qkv, kv, first, out2, lse2, c);
    double terms = s.head_dim; /* of a score; in sums over keys the weights sum to 1 */
    assert_sums("attention", d, out, out2, n, c, terms, 1);
    assert_lse("lse", d, lse, lse2, s, c);
    RUN(d, attention_backward, s, whole, qkv, kv, first, out2, lse2, dout, grad, tensor_to(grad, query, c),
        c);
    OP(&reference, attention_backward, s, whole, qkv, kv, first, out2, lse2, dout, grad2,
       tensor_to(grad2, query, c), c);
    assert_sums("attention gradient", d, grad, grad2, wide, c, terms, 1);
    if (s.sinks) {
        float *dsinks = random_tensor(s.heads, DTYPE_F32, -1, 1), *want = copy_of(dsinks, s.heads, DTYPE_F32);
        RUN(d, sinks_backward, s, out2, lse2, dout, dsinks, c);
        OP(&reference, sinks_backward, s, out2, lse2, dout, want, c);
        assert_sums("sinks", d, dsinks, want, s.heads, DTYPE_F32, terms, 1);
    }
    check_attention_run(d, s, qkv, first, out2, lse2, dout, c);
    if (s.chunk > 0 && pattern < 3) check_chunks(d, s, qkv, first, out, c); /* pattern 3 has no documents */
    drop_all();
}

/* TEST_HEAD restricts tests to heads of this width, for checks that change one of their kernels. */
static bool left_out(AttentionShape s) {
    const char *head = getenv("TEST_HEAD");
    return head && atoi(head) != s.head_dim;
}

static void check_attention(Device *d, Dtype c) {
    for (int i = 0; i < ATTENTION_SHAPES; i++) {
        if (left_out(attention_shapes[i])) continue;
        EACH(t, token_counts) for (int pattern = 0; pattern < 4; pattern++) {
            AttentionShape s = attention_shapes[i];
            s.tokens = *t;
            bool wide = strcmp(d->name, CUDA) == 0 && s.chunk == 0 && !getenv("TEST_TOKENS") &&
                        (s.head_dim == 64 || s.head_dim == 128); /* the widths of wgmma */
            bool tiles = pattern == 0 && s.window == 0 &&        /* several tiles, one after another */
                         ((*t == 65 && s.head_dim == 8) || (*t == 257 && (s.head_dim == 16 || wide)));
            if ((takes_long(d, *t) && !tiles) || too_wide(s.head_dim)) continue;
            if (*t == 257 && !tiles && pattern != (s.head_dim > 80 ? 2 : i % 4))
                continue; /* the reference is slow */
            DeviceNeeds needs = {
                .compute = DTYPE_F32, .tokens = *t, .hidden = 2, .intermediate = 1, .attention = s};
            set_scratch(d, &needs);
            check_attention_shape(d, s, pattern, c);
        }
    }
}
static void test_attention(void **state) { (void)state, on_all(check_attention); }

/* An `out` whose product with dout is the same as that of the fp32 out: the product is stored as the sum of
 * three bf16 numbers, where dout is 1. */
static void exact_out(const AttentionShape *s, const float *out, void *dout, void *to, Dtype c) {
    for (int64_t row = 0; row < s->tokens * s->heads; row++) {
        int64_t at = row * s->head_dim;
        double delta = 0;
        for (int i = 0; i < 3; i++) tensor_set(dout, at + i, c, 1);
        for (int i = 0; i < s->head_dim; i++)
            delta += (double)tensor_get(dout, at + i, c) * (double)out[at + i];
        for (int i = 0; i < s->head_dim; i++) {
            tensor_set(to, at + i, c, i < 3 ? (float)delta : 0);
            delta -= (double)tensor_get(to, at + i, c);
        }
    }
}

/* Relative distance between the device's gradients of queries, with a common offset added to all keys, and
 * the reference's gradients without it. */
static double apart_by_common(Device *d, AttentionShape s, void *qkv, const int32_t *first, Dtype c) {
    int64_t row = qkv_row(s), query = s.heads * s.head_dim, n = s.tokens * query;
    float *exact = tensor(n, DTYPE_F32), *lse = tensor(s.heads * s.tokens, DTYPE_F32),
          *plain = tensor(s.tokens * row, DTYPE_F32);
    void *dout = random_tensor(n, c, -1, 1), *out = tensor(n, c), *grad = tensor(s.tokens * row, c);
    float *dout_plain = tensor(n, DTYPE_F32), *want = tensor(s.tokens * row, DTYPE_F32);
    AttentionRun all = attention_whole(s);
    for (int64_t i = 0; i < s.tokens * row; i++) plain[i] = tensor_get(qkv, i, c);
    RUN(&reference, attention_forward, s, all, plain, plain + query, first, exact, lse, DTYPE_F32);
    exact_out(&s, exact, dout, out, c);
    for (int64_t i = 0; i < n; i++) dout_plain[i] = tensor_get(dout, i, c);
    RUN(&reference, attention_backward, s, all, plain, plain + query, first, exact, lse, dout_plain, want,
        want + query, DTYPE_F32);
    for (int64_t t = 0; t < s.tokens; t++) /* softmax does not depend on it */
        for (int64_t i = t * row + query; i < t * row + query + s.kv_heads * s.head_dim; i++)
            tensor_set(qkv, i, c, 64 + tensor_get(qkv, i, c)), plain[i] += 64;
    RUN(&reference, attention_forward, s, all, plain, plain + query, first, exact, lse, DTYPE_F32);
    RUN(d, attention_backward, s, all, qkv, tensor_at(qkv, query, c), first, out, lse, dout, grad,
        tensor_to(grad, query, c), c);
    double apart = 0, size = 0;
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = t * row; i < t * row + query; i++) {
            double by = (double)tensor_get(grad, i, c) - (double)want[i];
            apart += by * by;
            size += (double)want[i] * (double)want[i];
        }
    return sqrt(apart / size);
}

/* Gradients of a row's scores sum to zero, so an offset that all keys share does not affect dQ. If gradients
 * rounded to bf16 were multiplied without their residuals, the offset would appear in dQ with about 2^-9 of
 * its size: here a tenth of dQ. Rounding of the keys' differences and of the result adds only 2^-9. GPU
 * kernels round without residuals, so they are not tested. */
static void check_common_key(Device *d, Dtype c) {
    AttentionShape s = {.heads = 2, .kv_heads = 1, .head_dim = 32, .tokens = 65};
    int64_t row = qkv_row(s), query = s.heads * s.head_dim;
    if (strcmp(d->name, CUDA) == 0) return;
    DeviceNeeds needs = {
        .compute = DTYPE_F32, .tokens = s.tokens, .hidden = 2, .intermediate = 1, .attention = s};
    set_scratch(d, &needs);
    int32_t *first = tensor(s.tokens, DTYPE_F32);
    set_first_keys(first, s.tokens, 0);
    void *qkv = random_tensor(s.tokens * row, c, -0.5f, 0.5f);
    for (int64_t t = 0; t < s.tokens; t++) /* multiples that bf16 can represent next to 64 */
        for (int64_t i = t * row + query; i < t * row + query + s.head_dim; i++)
            tensor_set(qkv, i, c, roundf(8 * tensor_get(qkv, i, c)) / 2);
    double apart = apart_by_common(d, s, qkv, first, c);
    assert_true(apart < 0x1p-6);
    drop_all();
}
static void test_common_key(void **state) { (void)state, on_all(check_common_key); }

static void check_decode(Device *d, Dtype c) {
    static const int64_t starts[] = {0, 1, 63, 130, 300};
    static const int64_t counts[] = {1, 3, 20, 70};
    EACH(start, starts) EACH(t, counts) for (int i = 0; i < ATTENTION_SHAPES; i++) {
        AttentionShape s = attention_shapes[i];
        s.tokens = *t;
        if (takes_long(d, 4 * *t) || too_wide(s.head_dim)) continue;
        DeviceNeeds needs = {
            .compute = DTYPE_F32, .tokens = *t, .hidden = 2, .intermediate = 1, .attention = s};
        set_scratch(d, &needs);
        int64_t keys = (*start + *t) * s.kv_heads * s.head_dim, n = *t * s.heads * s.head_dim;
        void *qkv = random_tensor(*t * qkv_row(s), c, -2, 2), *k = random_tensor(keys, c, -2, 2),
             *v = random_tensor(keys, c, -1, 1);
        void *out = tensor(n, c), *want = tensor(n, c);
        s.sinks = sinks_for(d, s, i + *t);
        RUN(d, attention_decode, s, *start, qkv, k, v, out, c);
        OP(&reference, attention_decode, s, *start, qkv, k, v, want, c);
        assert_sums("attention_decode", d, out, want, n, c, s.head_dim, 1);
        drop_all();
    }
}
static void test_decode(void **state) { (void)state, on_all(check_decode); }

/* ---- activations, loss, optimizer ---- */

static void check_activation_kind(Device *d, Activation f, bool gated, int64_t t, int64_t w, Dtype c) {
    int64_t n = t * w, wide = gated ? 2 * n : n;
    void *x = random_tensor(wide, c, -8, 8), *act = tensor(n, c), *act2 = tensor(n, c),
         *dact = random_tensor(n, c, -1, 1);
    void *dx = tensor(wide, c), *dx2 = tensor(wide, c);
    RUN(d, activation_forward, f, gated, t, w, x, act, c);
    OP(&reference, activation_forward, f, gated, t, w, x, act2, c);
    assert_sums("activation", d, act, act2, n, c, f == ACT_SILU ? 0 : 1, 8);
    OP(&reference, activation_backward, f, gated, t, w, x, dact, dx2, act2, c);
    RUN(d, activation_backward, f, gated, t, w, x, dact, dx, dact, c); /* act in the memory of dact */
    assert_sums("activation gradient", d, dx, dx2, wide, c, 2, 8);
    assert_sums("act again", d, dact, act2, n, c, f == ACT_SILU ? 0 : 1, 8);
    drop_all();
}

static void check_activation(Device *d, Dtype c) {
    EACH(t, token_counts) EACH(w, widths) {
        if (takes_long(d, *t)) continue;
        for (int bits = 0; bits < 4; bits++)
            check_activation_kind(d, bits & 1 ? ACT_GELU_TANH : ACT_SILU, !(bits & 2), *t, *w, c);
        check_activation_kind(d, ACT_CLAMPED, true, *t, *w, c);
    }
}
static void test_activation(void **state) { (void)state, on_all(check_activation); }

/* Far ends of the exponential: no NaN, no infinity. */
static void check_activation_ends(Device *d, Dtype c) {
    static const float ends[] = {-1e30f, -200, -90, -88, -87, 0, 87, 88, 89, 200, 1e30f};
    enum { N = sizeof ends / sizeof *ends };
    void *x = tensor(2 * N, c), *act = tensor(N, c), *want = tensor(N, c);
    for (int clamped = 0; clamped < 2; clamped++) {
        Activation f = clamped ? ACT_CLAMPED : ACT_SILU;
        for (int i = 0; i < N; i++)
            tensor_set(x, clamped ? 2 * i : i, c, ends[i]), tensor_set(x, clamped ? 2 * i + 1 : N + i, c, 1);
        RUN(d, activation_forward, f, true, 1, N, x, act, c);
        OP(&reference, activation_forward, f, true, 1, N, x, want, c);
        for (int i = 0; i < N; i++) {
            double got = (double)tensor_get(act, i, c), exact = (double)tensor_get(want, i, c);
            assert_true(fabs(got - exact) <= 1e-30 + 8e-3 * fabs(exact));
        }
    }
    drop_all();
}
static void test_activation_ends(void **state) { (void)state, on_all(check_activation_ends); }

/* From the range where tanh is its argument to where it is 1. */
static void check_softcap(Device *d, Dtype c) {
    EACH(n, widths) for (int e = -3; e <= 2; e++) {
        float range = powf(10, (float)e);
        void *x = random_tensor(*n, c, -30 * range, 30 * range), *want = copy_of(x, *n, c);
        RUN(d, softcap, *n, 30, x, c);
        OP(&reference, softcap, *n, 30, want, c);
        assert_near("softcap", d, x, want, *n, c);
        drop_all();
    }
}
static void test_softcap(void **state) { (void)state, on_all(check_softcap); }

/* Columns of a wider matrix, and in place. */
static void check_scale(Device *d, Dtype c) {
    enum { ROWS = 7 };
    EACH(n, widths) for (int more = 0; more <= 5; more += 5) {
        void *x = random_tensor(ROWS * (*n + more), c, -3, 3), *want = tensor(ROWS * *n, c),
             *got = more ? tensor(ROWS * *n, c) : x;
        OP(&reference, scale, ROWS, *n, 0.3f, x, *n + more, want, c);
        for (int64_t i = 0; i < ROWS * *n; i++) {
            float in = tensor_get(x, i / *n * (*n + more) + i % *n, c);
            assert_true(fabsf(tensor_get(want, i, c) - 0.3f * in) <= fabsf(in) / 256);
        }
        RUN(d, scale, ROWS, *n, 0.3f, x, *n + more, got, c);
        assert_near("scale", d, got, want, ROWS * *n, c);
        drop_all();
    }
}
static void test_scale(void **state) { (void)state, on_all(check_scale); }

/* ---- experts ---- */

static Routes new_routes(RouteShape s) {
    int64_t assignments = s.tokens * s.chosen;
    return (Routes){.scores = random_tensor(s.tokens * s.experts, DTYPE_F32, -2, 2),
                    .chosen = tensor(assignments, DTYPE_F32),
                    .weights = tensor(assignments, DTYPE_F32),
                    .row = tensor(assignments, DTYPE_F32),
                    .token = tensor(assignments, DTYPE_F32),
                    .first = tensor(s.experts + 1, DTYPE_F32)};
}

/* Adds ties, and an expert that no token selects if there are enough of them. */
static void spoil_logits(RouteShape s, float *logits) {
    for (int64_t t = 0; t < s.tokens; t++) {
        if (t % 5 == 2)
            for (int e = 0; e < s.experts; e++) logits[t * s.experts + e] = 0.5f;
        if (s.experts > 3) logits[t * s.experts + 1] = -50;
    }
}

static Routes copy_routes(RouteShape s, Routes r) {
    Routes c = new_routes(s);
    memcpy(c.scores, r.scores, (size_t)(s.tokens * s.experts) * sizeof *c.scores);
    return c;
}

/* Properties of all routes, by the definition alone. */
static void assert_routes(const Device *d, RouteShape s, Routes r, const int64_t *counts) {
    int64_t row = 0;
    for (int e = 0; e < s.experts; e++) {
        assert_int_equal(r.first[e], row);
        for (int64_t t = 0; t < s.tokens; t++)
            for (int i = 0; i < s.chosen; i++) {
                int64_t j = t * s.chosen + i;
                if (i > 0 && r.chosen[j] <= r.chosen[j - 1]) fail_msg("%s: choices not ascending", d->name);
                if (r.chosen[j] != e) continue;
                assert_int_equal(r.row[j], row);
                assert_int_equal(r.token[row++], t);
            }
        assert_int_equal(counts[e], 7 + row - r.first[e]);
    }
    assert_int_equal(r.first[s.experts], s.tokens * s.chosen);
    assert_int_equal(row, s.tokens * s.chosen);
}

/* No expert that was not selected has a larger logit, or an equal one and a lower number. */
static void assert_best(RouteShape s, const float *logits, const int32_t *chosen) {
    for (int i = 0; i < s.chosen; i++)
        for (int e = 0; e < s.experts; e++) {
            bool taken = false;
            for (int j = 0; j < s.chosen; j++) taken = taken || chosen[j] == e;
            float mine = logits[chosen[i]];
            if (!taken) assert_true(mine > logits[e] || (!(mine < logits[e]) && chosen[i] < e));
        }
}

/* Assignments to each expert, for all sequences. */
static int64_t *new_counts(RouteShape s) {
    int64_t n = ((s.before + s.tokens - 1) / s.sequence + 1) * s.experts;
    int64_t *counts = tensor(2 * n, DTYPE_F32);
    memset(counts, 0, (size_t)n * sizeof *counts);
    return counts;
}

/* The result is the same if all tokens come in one call, or in several, which may begin inside a sequence. */
static void check_route_backward(Device *d, RouteShape s, Routes r, Dtype c) {
    int64_t assignments = s.tokens * s.chosen, *counts = new_counts(s), *parts = new_counts(s);
    float *dweights = random_tensor(assignments, DTYPE_F32, -1, 1),
          *scale = random_tensor(1, DTYPE_F32, 0.1f, 1), *balance = tensor(s.tokens, DTYPE_F32),
          *want_balance = tensor(s.tokens, DTYPE_F32);
    void *got = tensor(s.tokens * s.experts, c), *want = tensor(s.tokens * s.experts, c);
    RUN(&reference, route_count, s, r.chosen, counts);
    RUN(&reference, route_backward, s, r, counts, dweights, scale, want_balance, want, c);
    RUN(d, route_backward, s, r, counts, dweights, scale, balance, got, c);
    assert_sums("route_backward", d, got, want, s.tokens * s.experts, c, s.experts, 1);
    assert_near("balance", d, balance, want_balance, s.tokens, DTYPE_F32);
    void *whole = copy_of(got, s.tokens * s.experts, c);
    float *whole_balance = copy_of(balance, s.tokens, DTYPE_F32);
    for (int64_t at = 0, step = 0; at < s.tokens; at += step) {
        RouteShape some = s;
        Routes of = {.scores = r.scores + at * s.experts,
                     .chosen = r.chosen + at * s.chosen,
                     .weights = r.weights + at * s.chosen};
        step = s.tokens - at < 11 ? s.tokens - at : 11;
        some.tokens = step, some.before = at;
        RUN(d, route_count, some, of.chosen, parts);
        RUN(d, route_backward, some, of, counts, dweights + at * s.chosen, scale, balance + at,
            tensor_to(got, at * s.experts, c), c);
    }
    assert_bits("counts", d, parts, counts, 2 * ((s.tokens - 1) / s.sequence + 1) * s.experts, DTYPE_F32);
    assert_bits("route_backward in parts", d, got, whole, s.tokens * s.experts, c);
    assert_bits("balance in parts", d, balance, whole_balance, s.tokens, DTYPE_F32);
}

static void check_route_shape(Device *d, RouteShape s, Dtype c) {
    Routes got = new_routes(s);
    int64_t *counts = tensor(2 * s.experts, DTYPE_F32), want_counts[64];
    for (int e = 0; e < s.experts; e++) counts[e] = want_counts[e] = 7;
    spoil_logits(s, got.scores);
    Routes want = copy_routes(s, got);
    float *logits = copy_of(got.scores, s.tokens * s.experts, DTYPE_F32);
    RUN(d, route, s, got, counts);
    RUN(&reference, route, s, want, want_counts);
    assert_routes(d, s, got, counts);
    for (int64_t t = 0; t < s.tokens; t++) assert_best(s, logits + t * s.experts, got.chosen + t * s.chosen);
    assert_bits("chosen", d, got.chosen, want.chosen, s.tokens * s.chosen, DTYPE_F32);
    assert_near("scores", d, got.scores, want.scores, s.tokens * s.experts, DTYPE_F32);
    assert_near("weights", d, got.weights, want.weights, s.tokens * s.chosen, DTYPE_F32);
    RUN(d, route, s, copy_routes(s, (Routes){.scores = logits}), NULL); /* without counts */
    check_route_backward(d, s, want, c);
    drop_all();
}

static void check_route(Device *d, Dtype c) {
    static const struct {
        int64_t tokens;
        int experts, chosen;
    } shapes[] = {{1, 1, 1}, {17, 8, 2}, {65, 60, 8}, {40, 3, 3}, {257, 5, 4}};
    DeviceNeeds needs = small_needs(c, 257, 64);
    set_scratch(d, &needs);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int normalise = 0; normalise < 2 && !takes_long(d, shapes[i].tokens); normalise++)
            check_route_shape(d,
                              (RouteShape){.tokens = shapes[i].tokens,
                                           .sequence = 16,
                                           .experts = shapes[i].experts,
                                           .chosen = shapes[i].chosen,
                                           .normalise = normalise,
                                           .balance = normalise ? 0.3f : 0},
                              c);
}
static void test_route(void **state) { (void)state, on_all(check_route); }

static float group_key(RouteShape s, const float *keys, int group) {
    int size = s.experts / s.groups;
    float first = -INFINITY, second = -INFINITY;
    for (int e = group * size; e < (group + 1) * size; e++) {
        second = keys[e] > first ? first : fmaxf(second, keys[e]);
        first = fmaxf(first, keys[e]);
    }
    return s.sigmoid ? first + second : first;
}

/* No group that was not chosen has a larger key, or an equal one and a lower number. */
static bool is_open(RouteShape s, const float *keys, int group) {
    int before = 0;
    for (int g = 0; g < s.groups; g++) {
        float other = group_key(s, keys, g), mine = group_key(s, keys, group);
        before += other > mine || (g < group && !(other < mine));
    }
    return before < s.groups_chosen;
}

/* By the definition, applied to the device's own scores: the selected experts are the best of the best
 * groups. */
static void assert_grouped(RouteShape s, const float *logits, Routes r) {
    for (int64_t t = 0; t < s.tokens; t++) {
        float keys[64];
        for (int e = 0; e < s.experts; e++)
            keys[e] = !s.sigmoid ? logits[t * s.experts + e]
                                 : r.scores[t * s.experts + e] + (s.bias ? s.bias[e] : 0);
        for (int i = 0; i < s.chosen; i++)
            assert_true(is_open(s, keys, r.chosen[t * s.chosen + i] / (s.experts / s.groups)));
        for (int e = 0; e < s.experts; e++)
            if (!is_open(s, keys, e / (s.experts / s.groups))) keys[e] = -INFINITY;
        assert_best(s, keys, r.chosen + t * s.chosen);
    }
}

/* Half the experts have equal biases, so that groups and experts tie. */
static void check_grouped_shape(Device *d, RouteShape s, Dtype c) {
    Routes got = new_routes(s);
    int64_t *counts = tensor(2 * s.experts, DTYPE_F32), want_counts[64], assignments = s.tokens * s.chosen;
    float *bias = random_tensor(s.experts, DTYPE_F32, -0.5f, 0.5f);
    for (int e = 0; e < s.experts; e++) counts[e] = want_counts[e] = 7;
    for (int e = 0; e < s.experts / 2; e++) bias[e] = 0.25f;
    s.bias = s.sigmoid ? bias : NULL;
    spoil_logits(s, got.scores);
    Routes want = copy_routes(s, got);
    float *logits = copy_of(got.scores, s.tokens * s.experts, DTYPE_F32);
    RUN(d, route, s, got, counts);
    RUN(&reference, route, s, want, want_counts);
    assert_routes(d, s, got, counts);
    assert_grouped(s, logits, got);
    assert_near("scores", d, got.scores, want.scores, s.tokens * s.experts, DTYPE_F32);
    assert_near("weights", d, got.weights, want.weights, assignments, DTYPE_F32);
    for (int64_t i = 0; i < assignments; i += s.chosen) {
        double sum = 0;
        for (int j = 0; j < s.chosen; j++) sum += (double)got.weights[i + j];
        if (s.normalise) assert_true(fabs(sum - 2.5) < 1e-5);
    }
    check_route_backward(d, s, want, c);
    drop_all();
}

static void check_grouped_route(Device *d, Dtype c) {
    DeviceNeeds needs = small_needs(c, 65, 64);
    set_scratch(d, &needs);
    for (int bits = 0; bits < 8; bits++)
        check_grouped_shape(d,
                            (RouteShape){.tokens = 40,
                                         .sequence = 16,
                                         .experts = bits & 1 ? 60 : 8,
                                         .chosen = bits & 1 ? 7 : 3,
                                         .normalise = bits & 4,
                                         .sigmoid = bits & 2,
                                         .groups = bits & 1 ? 6 : 4,
                                         .groups_chosen = 2,
                                         .factor = 2.5f},
                            c);
}
static void test_grouped_route(void **state) { (void)state, on_all(check_grouped_route); }

/* Sigmoids that are 1 in fp32 are distinguished by their logits. */
static void check_full_route(Device *d, Dtype c) {
    (void)c;
    RouteShape s = {.tokens = 2, .sequence = 2, .experts = 4, .chosen = 1, .sigmoid = true};
    Routes r = new_routes(s);
    static const float logits[8] = {40, 30, 41, -1, -3, 50, 60, 60};
    static const int32_t chosen[2] = {2, 2};
    memcpy(r.scores, logits, sizeof logits);
    RUN(d, route, s, r, NULL);
    assert_memory_equal(r.chosen, chosen, sizeof chosen);
    assert_true(r.weights[0] >= 1 && r.weights[0] <= 1);
    drop_all();
}
static void test_full_route(void **state) { (void)state, on_all(check_full_route); }

/* NaN among logits: the selected experts are still k different ones, in ascending order. */
static void check_nan_route(Device *d, Dtype c) {
    (void)c;
    RouteShape s = {.tokens = 3, .sequence = 3, .experts = 4, .chosen = 2};
    Routes r = new_routes(s);
    int64_t sevens[4] = {7, 7, 7, 7}, *counts = COPY_OF(sevens);
    static const float logits[12] = {NAN, 1, NAN, 2, NAN, NAN, NAN, NAN, 1, NAN, NAN, NAN};
    static const int32_t chosen[6] = {1, 3, 0, 1, 0, 1};
    memcpy(r.scores, logits, sizeof logits);
    RUN(d, route, s, r, counts);
    assert_routes(d, s, r, counts);
    assert_memory_equal(r.chosen, chosen, sizeof chosen);
    drop_all();
}
static void test_nan_route(void **state) { (void)state, on_all(check_nan_route); }

/* Rows per expert: many, one, none. */
static ExpertRows some_rows(int64_t step) {
    static const int32_t counts[] = {0, 37, 1, 0, 300, 5, 0};
    enum { EXPERTS = sizeof counts / sizeof *counts };
    int32_t *first = tensor(EXPERTS + 1, DTYPE_F32);
    first[0] = 0;
    for (int e = 0; e < EXPERTS; e++) first[e + 1] = first[e] + counts[e];
    return (ExpertRows){.rows = first[EXPERTS], .experts = EXPERTS, .first = first, .step = step};
}

static void check_grouped_gemm_shape(Device *d, int64_t n, int64_t k, int bits, Dtype c) {
    bool trans_b = bits & 1, add = bits & 2;
    ExpertRows e = some_rows(n * k + 13);
    void *a = random_tensor(e.rows * k, c, -1, 1), *b = random_tensor(e.experts * e.step, c, -1, 1),
         *y = random_tensor(e.rows * n, c, -1, 1), *got = tensor(e.rows * n, c),
         *want = tensor(e.rows * n, c);
    RUN(d, grouped_gemm, e, trans_b, n, k, a, b, c, got, c, NO_SPLIT);
    RUN(&reference, grouped_gemm, e, trans_b, n, k, a, b, c, want, c, NO_SPLIT);
    assert_sums("grouped_gemm", d, got, want, e.rows * n, c, (double)k, 1);
    float *dw = random_tensor(e.experts * e.step, DTYPE_F32, -1, 1),
          *want_dw = copy_of(dw, e.experts * e.step, DTYPE_F32);
    RUN(d, grouped_gemm_wgrad, e, n, k, y, a, c, dw, add);
    RUN(&reference, grouped_gemm_wgrad, e, n, k, y, a, c, want_dw, add);
    assert_sums("grouped_gemm_wgrad", d, dw, want_dw, e.experts * e.step, DTYPE_F32, 300, 1);
    for (int64_t i = 0; i < n * k && !add; i++) assert_true(dw[i] == 0); /* the expert has no rows */
    drop_all();
}

static void check_grouped_gemm(Device *d, Dtype c) {
    DeviceNeeds needs = small_needs(c, 343, 64);
    set_scratch(d, &needs);
    for (int bits = 0; bits < 4; bits++) {
        check_grouped_gemm_shape(d, 24, 40, bits, c);
        check_grouped_gemm_shape(d, 65, 7, bits, c);
    }
}
static void test_grouped_gemm(void **state) { (void)state, on_all(check_grouped_gemm); }

static void check_experts_rows_shape(Device *d, RouteShape s, int64_t h, Dtype c) {
    Routes r = new_routes(s);
    int64_t assignments = s.tokens * s.chosen;
    RUN(&reference, route, s, r, NULL);
    void *rows = random_tensor(assignments * h, c, -1, 1), *other = random_tensor(assignments * h, c, -1, 1);
    for (int bits = 0; bits < 4; bits++) {
        void *got = random_tensor(s.tokens * h, c, -1, 1), *want = copy_of(got, s.tokens * h, c);
        RUN(d, combine, s, r, h, rows, bits & 1, bits & 2, got, c);
        RUN(&reference, combine, s, r, h, rows, bits & 1, bits & 2, want, c);
        assert_near("combine", d, got, want, s.tokens * h, c);
    }
    void *rows2 = copy_of(rows, assignments * h, c), *other2 = copy_of(other, assignments * h, c);
    float *dw = tensor(assignments, DTYPE_F32), *dw2 = tensor(assignments, DTYPE_F32);
    RUN(d, combine_backward, s, r, h, 1, rows, other, dw, c);
    RUN(&reference, combine_backward, s, r, h, 1, rows2, other2, dw2, c);
    assert_near("act", d, rows, rows2, assignments * h, c);
    assert_near("dact", d, other, other2, assignments * h, c);
    assert_sums("dweights", d, dw, dw2, assignments, DTYPE_F32, (double)h, 1);
    /* By rows, and gradients in the memory of the weights. */
    float *w = copy_of(r.weights, assignments, DTYPE_F32), *w2 = copy_of(w, assignments, DTYPE_F32);
    RouteShape one = {.tokens = assignments, .chosen = 1};
    RUN(d, combine_backward, one, (Routes){.weights = w}, h, 1, rows, other, w, c);
    RUN(&reference, combine_backward, one, (Routes){.weights = w2}, h, 1, rows2, other2, w2, c);
    assert_near("act by rows", d, rows, rows2, assignments * h, c);
    assert_sums("weights by rows", d, w, w2, assignments, DTYPE_F32, (double)h, 1);
    drop_all();
}

/* For models that weight x: each run is split, and a weight may be zero. */
static void check_permute(Device *d, RouteShape s, int64_t h, Dtype c) {
    enum { RUNS = 2, SPLITS = 3 };
    Routes r = new_routes(s);
    int64_t assignments = s.tokens * s.chosen, n = SPLITS * h, all = assignments * RUNS * n;
    RUN(&reference, route, s, r, NULL);
    r.weights[assignments / 2] = 0;
    void *x = random_tensor(s.tokens * h, c, -1, 1), *got = tensor(assignments * h, c),
         *want = tensor(assignments * h, c);
    RUN(d, permute, s, r, h, x, got, c);
    RUN(&reference, permute, s, r, h, x, want, c);
    assert_bits("permute", d, got, want, assignments * h, c);
    void *y = random_tensor(all, c, -1, 1), *dy = random_tensor(all, c, -1, 1);
    float *dw = tensor(assignments, DTYPE_F32), *dw2 = tensor(assignments, DTYPE_F32);
    for (int64_t i = 0; i < assignments; i++) r.weights[i] = r.weights[i] > 0 ? 0.5f + r.weights[i] : 0;
    for (int splits = 1; splits <= SPLITS; splits += SPLITS - 1) {
        RUN(d, permute_dweights, s, r, n, RUNS, splits, y, dy, dw, c);
        RUN(&reference, permute_dweights, s, r, n, RUNS, splits, y, dy, dw2, c);
        assert_sums("permute_dweights", d, dw, dw2, assignments, DTYPE_F32, (double)(RUNS * n), 1);
        assert_true(dw[assignments / 2] >= 0 && dw[assignments / 2] <= 0);
    }
    /* By rows, and gradients in the memory of the weights. */
    float *w = copy_of(r.weights, assignments, DTYPE_F32), *w2 = copy_of(w, assignments, DTYPE_F32);
    RouteShape one = {.tokens = assignments, .chosen = 1};
    RUN(d, permute_dweights, one, (Routes){.weights = w}, n, RUNS, 1, y, dy, w, c);
    RUN(&reference, permute_dweights, one, (Routes){.weights = w2}, n, RUNS, 1, y, dy, w2, c);
    assert_sums("weights of inputs by rows", d, w, w2, assignments, DTYPE_F32, (double)(RUNS * n), 1);
    drop_all();
}

static void check_experts_bias(Device *d, RouteShape s, int64_t h, Dtype c) {
    Routes r = new_routes(s);
    int64_t assignments = s.tokens * s.chosen, biases = s.experts * h;
    RUN(&reference, route, s, r, NULL);
    ExpertRows e = {.rows = assignments, .experts = s.experts, .first = r.first};
    void *y = random_tensor(assignments * h, c, -1, 1), *want_y = copy_of(y, assignments * h, c);
    float *bias = random_tensor(biases, DTYPE_F32, -1, 1);
    RUN(d, experts_bias_forward, e, h, y, bias, c);
    RUN(&reference, experts_bias_forward, e, h, want_y, bias, c);
    assert_near("experts_bias", d, y, want_y, assignments * h, c);
    for (int weighed = 0; weighed < 2; weighed++) {
        float *db = random_tensor(biases, DTYPE_F32, -1, 1), *want_db = copy_of(db, biases, DTYPE_F32),
              *dw = random_tensor(assignments, DTYPE_F32, -1, 1),
              *want_dw = copy_of(dw, assignments, DTYPE_F32);
        RouteShape of = weighed ? s : (RouteShape){.experts = s.experts}; /* as layers call it */
        Routes routes = weighed ? r : (Routes){.first = r.first};
        RUN(d, experts_bias_backward, of, routes, h, y, weighed, bias, db, weighed ? dw : NULL, c);
        RUN(&reference, experts_bias_backward, of, routes, h, y, weighed, bias, want_db,
            weighed ? want_dw : NULL, c);
        assert_sums("experts' bias gradient", d, db, want_db, biases, DTYPE_F32, (double)assignments, 1);
        assert_sums("its weights", d, dw, want_dw, assignments, DTYPE_F32, (double)h, 1);
    }
    drop_all();
}

static void check_experts_rows(Device *d, Dtype c) {
    DeviceNeeds needs = small_needs(c, 65, 521);
    set_scratch(d, &needs);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        check_experts_rows_shape(d, (RouteShape){.tokens = 65, .sequence = 65, .experts = 9, .chosen = 3},
                                 widths[i], c);
        check_permute(d, (RouteShape){.tokens = 65, .sequence = 65, .experts = 9, .chosen = 3}, widths[i], c);
        check_experts_bias(d, (RouteShape){.tokens = 65, .sequence = 65, .experts = 9, .chosen = 3},
                           widths[i], c);
        check_experts_bias(d, (RouteShape){.tokens = 3, .sequence = 3, .experts = 9, .chosen = 2}, widths[i],
                           c); /* some experts have no rows */
        check_experts_rows_shape(d, (RouteShape){.tokens = 3, .sequence = 3, .experts = 1, .chosen = 1},
                                 widths[i], c);
    }
}
static void test_experts_rows(void **state) { (void)state, on_all(check_experts_rows); }

/* Absolute as well as relative tolerance, since small losses are differences of larger numbers. */
static void assert_losses(const Device *d, const float *got, const float *want, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= 1e-6 + 1e-6 * (double)want[i]))
            fail_msg("%s: loss %.9g, expected %.9g", d->name, (double)got[i], (double)want[i]);
}

static void check_cross_entropy_shape(Device *d, int64_t rows, int64_t vocab, float cap, float z,
                                      Dtype logits_type, Dtype grad_type) {
    int64_t n = rows * vocab;
    void *logits = random_tensor(n, logits_type, -12, 12), *grad = tensor(n, grad_type),
         *grad2 = tensor(n, grad_type);
    int32_t *targets = random_ints(rows, (int32_t)vocab);
    if (rows > 2) targets[1] = -1;
    float *loss = tensor(rows, DTYPE_F32), *loss2 = tensor(rows, DTYPE_F32),
          *z_loss = tensor(rows, DTYPE_F32), *z_loss2 = tensor(rows, DTYPE_F32);
    double share = 1 + 2 * (double)z * 21; /* logsumexp is below 12 + log 9001 */
    const float eighth = 0.125f, *scale = COPY_OF(eighth);
    OP(&reference, cross_entropy, rows, vocab, logits, logits_type, targets, WHOLE_VOCABULARY, scale, cap, z,
       loss2, z_loss2, grad2, grad_type);
    RUN(d, cross_entropy, rows, vocab, logits, logits_type, targets, WHOLE_VOCABULARY, scale, cap, z, loss,
        z_loss, grad, grad_type);
    assert_losses(d, loss, loss2, rows);
    assert_losses(d, z_loss, z_loss2, rows);
    assert_sums("loss gradient", d, grad, grad2, n, grad_type, 12, share * 0.125 / sqrt((double)vocab));
    memset(loss, 0, (size_t)rows * sizeof *loss);
    RUN(d, cross_entropy, rows, vocab, logits, logits_type, targets, WHOLE_VOCABULARY, scale, cap, z, loss,
        NULL, NULL, grad_type);
    assert_losses(d, loss, loss2, rows);
    if (grad_type == logits_type) {
        RUN(d, cross_entropy, rows, vocab, logits, logits_type, targets, WHOLE_VOCABULARY, scale, cap, z,
            loss, NULL, logits, grad_type);
        assert_bits("loss gradient in place", d, logits, grad, n, grad_type);
    }
    drop_all();
}

static void check_cross_entropy(Device *d, Dtype c) {
    static const int64_t vocabs[] = {2, 17, 257, 4096, 9001};
    EACH(t, token_counts) EACH(v, vocabs) {
        if (*t * *v > 600000 || takes_long(d, *t)) continue;
        check_cross_entropy_shape(d, *t, *v, 0, 0, DTYPE_F32, c);
        check_cross_entropy_shape(d, *t, *v, 0, 0, c, c);
        check_cross_entropy_shape(d, *t, *v, 13, 0, DTYPE_F32, c);
        check_cross_entropy_shape(d, *t, *v, 13, 1e-2f, DTYPE_F32, c);
    }
    check_cross_entropy_shape(d, 2, 40001, 0, 0, DTYPE_F32, c); /* more than a kernel keeps of a row */
}
static void test_cross_entropy(void **state) { (void)state, on_all(check_cross_entropy); }

/* A NaN logit gives a NaN loss, at any position. */
static void check_nan_loss(Device *d, Dtype c) {
    for (int64_t at = 0; at < 100; at += 33) {
        void *logits = random_tensor(100, c, -1, 1), *grad = tensor(100, c);
        const float one = 1;
        float *loss = COPY_OF(one), *scale = COPY_OF(one);
        int32_t *target = random_ints(1, 100);
        tensor_set(logits, at, c, NAN);
        RUN(d, cross_entropy, 1, 100, logits, c, target, WHOLE_VOCABULARY, scale, 0, 0, loss, NULL, grad, c);
        assert_true(isnan(*loss));
        drop_all();
    }
}
static void test_nan_loss(void **state) { (void)state, on_all(check_nan_loss); }

/* As exact_add computes it, added to previous contents; non-finite losses are counted. */
static void check_loss_sum(Device *d, Dtype c) {
    static const int64_t counts[] = {0, 1, 17, 4099};
    if (c == DTYPE_BF16) return;
    LossSum so_far = {.nonfinite = 0}, want = {.nonfinite = 0};
    EACH(n, counts) {
        LossSum *got = COPY_OF(so_far);
        float *losses = random_tensor(*n + 1, DTYPE_F32, 0, 20);
        if (*n > 3) losses[1] = NAN, losses[*n - 1] = INFINITY;
        RUN(d, loss_sum, *n, losses, got);
        for (int64_t i = 0; i < *n; i++) exact_add(&want.sum, (double)losses[i]);
        want.nonfinite += *n > 3 ? 2 : 0;
        assert_true(exact_value(&got->sum) <= exact_value(&want.sum) &&
                    exact_value(&got->sum) >= exact_value(&want.sum));
        assert_int_equal(got->nonfinite, want.nonfinite);
        so_far = *got;
        drop_all();
    }
}
static void test_loss_sum(void **state) {
    (void)state, check_loss_sum(&reference, DTYPE_F32), on_all(check_loss_sum);
}

static const int64_t update_counts[] = {1, 16, 17, 40001};

/* The tensors of an optimizer; the bf16 copy exists if the compute dtype is bf16. */
typedef struct Trainee {
    int64_t n;
    StateStore store;
    float *p, *g;
    void *m, *v;
    uint16_t *copy;
} Trainee;

static Trainee trainee(int64_t n, StateStore store, bool copy) {
    return (Trainee){.n = n,
                     .store = store,
                     .p = random_tensor(n, DTYPE_F32, -1, 1),
                     .g = random_tensor(n, DTYPE_F32, -1, 1),
                     .m = random_tensor(n, store.type, -1, 1),
                     .v = random_tensor(n, store.type, 0, 1),
                     .copy = copy ? tensor(n, DTYPE_BF16) : NULL};
}

static Trainee twin_of(const Trainee *t) {
    Trainee twin = *t;
    twin.p = copy_of(t->p, t->n, DTYPE_F32);
    twin.m = copy_of(t->m, t->n, t->store.type), twin.v = copy_of(t->v, t->n, t->store.type);
    if (t->copy) twin.copy = tensor(t->n, DTYPE_BF16);
    return twin;
}

/* Elements first .. first+count-1, such as a rank's shard of a parameter. */
static Trainee part_of(const Trainee *t, int64_t first, int64_t count) {
    Trainee part = {count,
                    t->store,
                    t->p + first,
                    t->g + first,
                    tensor_to(t->m, first, t->store.type),
                    tensor_to(t->v, first, t->store.type),
                    t->copy ? t->copy + first : NULL};
    part.store.first += first;
    return part;
}

static void assert_like(const Device *d, const char *what, const Trainee *t, const Trainee *want) {
    assert_sums(what, d, t->m, want->m, t->n, t->store.type, 2, 1);
    assert_sums(what, d, t->v, want->v, t->n, t->store.type, 2, 1);
    assert_sums(what, d, t->p, want->p, t->n, DTYPE_F32, 2, 1);
    if (t->copy) assert_near(what, d, t->copy, want->copy, t->n, DTYPE_BF16);
}

static const AdamW adamw_settings = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
static const OptimizerStep one_step = {.lr = 0.01f,
                                       .correction1 = 0.19f,
                                       .correction2 = 0.0975f,
                                       .grad_scale = 0.5f,
                                       .number = 5,
                                       .average = 0.1f};

/* Variant 0 is AdamW; 1 to 3 are SGD plain, with momentum, with Nesterov momentum; then the elementwise ops
 * of Muon, with an average in between, without and with Nesterov momentum. */
enum { UPDATES = 4, MATRIX_UPDATES = 2 };
static void do_matrix_update(Device *d, bool nesterov, const Trainee *t) {
    Muon o = {.momentum = 0.9f, .weight_decay = 0.1f, .scale = 3, .nesterov = nesterov};
    MatrixShape row = {1, t->n, t->n};
    float *x = tensor(t->n, DTYPE_F32);
    const OptimizerStep *step = COPY_OF(one_step);
    RUN(d, muon_momentum, row, o, t->store, step, t->g, t->m, x);
    RUN(d, average, t->n, step, t->p, x);
    RUN(d, muon_apply, row, o, step, x, t->p, t->copy);
}

static void do_update(Device *d, int variant, const Trainee *t) {
    Sgd o = {.momentum = 0.9f, .weight_decay = 0.1f};
    const OptimizerStep *step = COPY_OF(one_step);
    o.nesterov = variant == 3;
    if (variant >= UPDATES)
        do_matrix_update(d, variant > UPDATES, t);
    else if (variant == 0)
        RUN(d, adamw, t->n, adamw_settings, t->store, step, t->p, t->g, t->m, t->v, t->copy);
    else
        RUN(d, sgd, t->n, o, t->store, step, t->p, t->g, variant > 1 ? t->m : NULL, t->copy);
}

static void check_updates(Device *d, Dtype c) {
    for (int variant = 0; variant < UPDATES; variant++) EACH(n, update_counts) {
            for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) {
                StateStore store = {(Dtype)type, 77, 23};
                Trainee t = trainee(*n, store, c == DTYPE_BF16), want = twin_of(&t);
                do_update(d, variant, &t);
                do_update(&reference, variant, &want);
                assert_like(d, variant ? "sgd" : "adamw", &t, &want);
                drop_all();
            }
        }
}
static void test_updates(void **state) { (void)state, on_all(check_updates); }

static double length_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Muon's ops except products, on matrices that are part of wider ones. */
static void check_muon(Device *d, Dtype c) {
    static const MatrixShape shapes[] = {{1, 1, 1}, {7, 33, 33}, {33, 7, 9}, {130, 257, 300}};
    const Muon o = {.momentum = 0.9f, .weight_decay = 0.1f, .scale = 3, .nesterov = true};
    DeviceNeeds needs = small_needs(c, 1, 2);
    set_scratch(d, &needs);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) {
            MatrixShape s = shapes[i];
            int64_t room = s.rows * s.row, n = s.rows * s.cols;
            StateStore store = {(Dtype)type, 77, 23};
            Trainee t = trainee(room, store, c == DTYPE_BF16), want = twin_of(&t);
            float *x = tensor(n, DTYPE_F32), *y = tensor(n, DTYPE_F32);
            const OptimizerStep *step = COPY_OF(one_step);
            double unit = 1;
            GradStats *squares = take_exactly(sizeof *squares);
            if (t.copy) memset(t.copy, 0, (size_t)room * 2), memset(want.copy, 0, (size_t)room * 2);
            RUN(d, muon_momentum, s, o, store, step, t.g, t.m, x);
            RUN(&reference, muon_momentum, s, o, store, step, want.g, want.m, y);
            assert_sums("direction", d, x, y, n, DTYPE_F32, 2, 1);
            RUN(&reference, grad_stats, n, y, 2.0, &unit, squares);
            double before = length_of(y, n);
            RUN(d, muon_normalise, n, squares, 1.02f, y);
            assert_true(fabs(length_of(y, n) - before / (1.02 * before + 1e-7)) < 1e-6);
            RUN(d, muon_apply, s, o, step, y, t.p, t.copy);
            RUN(&reference, muon_apply, s, o, step, y, want.p, want.copy);
            assert_like(d, "muon", &t, &want);
            drop_all();
        }
}

static void check_quintic(Device *d, Dtype c) {
    static const int64_t sizes[] = {1, 5, 64, 150};
    EACH(m, sizes) {
        float *gram = random_tensor(*m * *m, DTYPE_F32, -1, 1), *x = random_tensor(*m * *m, DTYPE_F32, -1, 1),
              *y = copy_of(x, *m * *m, DTYPE_F32);
        RUN(d, newton_schulz, *m, 3.4445f, -4.775f, 2.0315f, gram, x);
        RUN(&reference, newton_schulz, *m, 3.4445f, -4.775f, 2.0315f, gram, y);
        assert_sums("quintic", d, x, y, *m * *m, DTYPE_F32, 3, 4);
        drop_all();
    }
    (void)c;
}
static void test_muon(void **state) { (void)state, on_all(check_muon), on_all(check_quintic); }

/* A parameter's bits do not depend on how it is cut into pieces. */
static void check_pieces(Device *d, Dtype c) {
    static const int64_t cuts[] = {0, 1, 16, 80, 81, 129, 20000, 40001};
    for (int variant = 0; variant < UPDATES + MATRIX_UPDATES; variant++)
        for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) {
            Trainee t = trainee(40001, (StateStore){(Dtype)type, 99, 0}, c == DTYPE_BF16),
                    whole = twin_of(&t);
            do_update(d, variant, &whole);
            for (int i = 0; i < 7; i++) {
                Trainee part = part_of(&t, cuts[i], cuts[i + 1] - cuts[i]);
                do_update(d, variant, &part);
            }
            assert_bits("first state in pieces", d, t.m, whole.m, t.n, (Dtype)type);
            assert_bits("second state in pieces", d, t.v, whole.v, t.n, (Dtype)type);
            assert_bits("parameters in pieces", d, t.p, whole.p, t.n, DTYPE_F32);
            drop_all();
        }
}
static void test_pieces(void **state) { (void)state, on_all(check_pieces); }

/* PyTorch's formulas in double (torch.optim.AdamW and SGD, documentation of 2.x), over some steps of one
 * element. */
typedef struct Exact {
    double p, m, v;
} Exact;

static void exact_step(Exact *x, int variant, double grad, int step) {
    double lr = 0.01, decay = 0.1, g = grad * 0.5;
    if (variant == 0) {
        x->p -= lr * decay * x->p;
        x->m = 0.9 * x->m + 0.1 * g;
        x->v = 0.95 * x->v + 0.05 * g * g;
        double m_hat = x->m / (1 - pow(0.9, step)), v_hat = x->v / (1 - pow(0.95, step));
        x->p -= lr * m_hat / (sqrt(v_hat) + 1e-8);
        return;
    }
    g += decay * x->p;
    if (variant > 1) {
        x->m = step == 1 ? g : 0.9 * x->m + g;
        g = variant == 3 ? g + 0.9 * x->m : x->m;
    }
    x->p -= lr * g;
}

static void follow_formula(Device *d, int variant) {
    enum { N = 19, STEPS = 50 };
    Exact exact[N];
    Trainee t = trainee(N, (StateStore){0}, false);
    memset(t.m, 0, N * sizeof(float)), memset(t.v, 0, N * sizeof(float));
    for (int i = 0; i < N; i++) exact[i] = (Exact){.p = (double)t.p[i]};
    for (int step = 1; step <= STEPS; step++) {
        OptimizerStep now = one_step;
        now.correction1 = (float)(1 - pow(0.9, step)), now.correction2 = (float)(1 - pow(0.95, step));
        for (int i = 0; i < N; i++) {
            t.g[i] = draw(-1, 1);
            exact_step(&exact[i], variant, (double)t.g[i], step);
        }
        if (variant == 0)
            RUN(d, adamw, N, adamw_settings, t.store, COPY_OF(now), t.p, t.g, t.m, t.v, NULL);
        else
            do_update(d, variant, &t);
    }
    for (int i = 0; i < N; i++)
        if (fabs((double)t.p[i] - exact[i].p) > 1e-5)
            fail_msg("%s, update %d: %g after %d steps, by the formula %g", d->name, variant, (double)t.p[i],
                     STEPS, exact[i].p);
    drop_all();
}

static void check_formula(Device *d, Dtype c) {
    for (int variant = 0; variant < UPDATES && c == DTYPE_F32; variant++) follow_formula(d, variant);
}
static void test_formula(void **state) {
    (void)state;
    on_all(check_formula);
    check_formula(&reference, DTYPE_F32);
}

/* A number in bf16 states becomes one of its two neighbours, and on average over elements and steps the
 * number itself. SGD without momentum writes the gradient to the state. */
static void round_states(Device *d, const float *numbers, int64_t n, uint64_t step, uint16_t *out) {
    float *p = tensor(n, DTYPE_F32);
    memset(p, 0, (size_t)n * sizeof *p);
    memset(out, 0, (size_t)n * sizeof *out);
    OptimizerStep now = {.grad_scale = 1, .number = step};
    RUN(d, sgd, n, (Sgd){.momentum = 0}, (StateStore){DTYPE_BF16, 31, 7}, COPY_OF(now), p, numbers, out,
        NULL);
}

static void check_unbiased(Device *d, Dtype c) {
    enum { N = 1 << 16, STEPS = 4 };
    static const float numbers[] = {1.001f, -3.14159f, 1e-39f, 255.9f, 1.00390625f /* half way */};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers && c == DTYPE_F32; k++) {
        float *x = tensor(N, DTYPE_F32);
        uint16_t *half = tensor(N, DTYPE_BF16);
        double sum = 0, low = INFINITY, high = -INFINITY;
        for (int i = 0; i < N; i++) x[i] = numbers[k];
        for (uint64_t step = 1; step <= STEPS; step++) {
            round_states(d, x, N, step, half);
            for (int i = 0; i < N; i++) {
                double value = (double)bf16_widen(half[i]);
                sum += value, low = fmin(low, value), high = fmax(high, value);
            }
        }
        double gap = high - low, mean = sum / (N * STEPS), exact = (double)numbers[k];
        assert_true(low <= exact && exact <= high && gap > 0 && gap <= fmax(fabs(exact) / 128, 0x1p-133));
        /* For coin tosses the standard deviation of the mean is at most half the gap over the root of their
         * number; five of these are allowed. */
        if (fabs(mean - exact) > 2.5 * gap / sqrt(N * STEPS))
            fail_msg("%s: %.9g rounds to %.9g on average", d->name, exact, mean);
        drop_all();
    }
}
static void test_unbiased(void **state) {
    (void)state;
    on_all(check_unbiased);
    check_unbiased(&reference, DTYPE_F32);
}

/* Numbers that bf16 can represent stay, the largest number does not become infinite, infinity stays, and
 * every NaN becomes BF16_NAN; the last NaN is the one that GPUs produce. The bits are those of the
 * reference. */
static void check_state_ends(Device *d, Dtype c) {
    enum { N = 700 };
    float ends[] = {0, -0.0f, 1, -2.5f, FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, 0x1p-133f, NAN, -NAN, NAN};
    enum { ENDS = sizeof ends / sizeof *ends };
    if (c != DTYPE_F32) return;
    memcpy(&ends[ENDS - 1], &(uint32_t){0x7fffffff}, sizeof *ends);
    float *x = tensor(N, DTYPE_F32);
    uint16_t *half = tensor(N, DTYPE_BF16), *want = tensor(N, DTYPE_BF16);
    for (int i = 0; i < N; i++) x[i] = i < 20 * ENDS ? ends[i % ENDS] : draw(-1, 1);
    round_states(d, x, N, 3, half);
    round_states(&reference, x, N, 3, want);
    for (int i = 0; i < 20 * ENDS; i++) {
        float value = bf16_widen(half[i]), end = ends[i % ENDS];
        bool largest = fabsf(end) == FLT_MAX;
        if (isnan(end))
            assert_int_equal(half[i], BF16_NAN);
        else
            assert_true(largest ? fabsf(value) == bf16_widen(0x7f7f) : value == end);
    }
    assert_bits("states", d, half, want, N, DTYPE_BF16);
    drop_all();
}
static void test_state_ends(void **state) {
    (void)state;
    on_all(check_state_ends);
    check_state_ends(&reference, DTYPE_F32);
}

/* Numbers of all magnitudes, including subnormal ones. */
static float draw_any(void) {
    float x = ldexpf(draw(1, 2), (int)(rng_u64(43, next_number) % 277) - 149);
    return rng_u64(44, next_number++) & 1 ? -x : x;
}

/* Gradients as an op may find them. `range` 0: ordinary; 1: as wide as three levels of a sum; 2: all
 * magnitudes; 3: many zeros, and one element that dwarfs the others. */
static float *draw_gradient(int64_t n, int range) {
    float *g = random_tensor(n, DTYPE_F32, -3, 3);
    for (int64_t i = 0; i < n; i++) {
        if (range == 1) g[i] = ldexpf(g[i], -(int)(rng_u64(45, next_number++) % 40));
        if (range == 2) g[i] = draw_any();
        if (range == 3 && i % 3) g[i] = 0;
    }
    if (range == 3) g[n / 2] = -3e38f;
    return g;
}

static void compare_stats(Device *d, int64_t n, const float *g, double p, double unit) {
    GradStats *got = take_exactly(sizeof *got), want;
    RUN(d, grad_stats, n, g, p, COPY_OF(unit), got);
    OP(&reference, grad_stats, n, g, p, &unit, &want);
    assert_int_equal(got->nonfinite, want.nonfinite);
    assert_int_equal(got->first_nonfinite, want.first_nonfinite);
    assert_memory_equal(got, &want, sizeof want);
}

static void check_stats(Device *d, Dtype c) {
    static const double powers[] = {1, 1.5, 2, 3, 9, 1e9, HUGE_VAL};
    static const int64_t counts[] = {1, 31, 4096, 5000, 4096 * 9 + 77};
    if (c == DTYPE_BF16) return;
    EACH(n, counts) for (int range = 0; range < 4; range++) {
        float *g = draw_gradient(*n, range);
        for (size_t i = 0; i < sizeof powers / sizeof *powers; i++)
            for (int u = 0; u < 2; u++) compare_stats(d, *n, g, powers[i], u ? 3e38 : 1);
        if (*n > 20) g[19] = NAN, g[*n - 2] = -INFINITY, g[*n - 1] = INFINITY;
        for (size_t i = 0; i < sizeof powers / sizeof *powers; i++)
            for (int u = 0; u < 2; u++) compare_stats(d, *n, g, powers[i], u ? 3e38 : 1);
        drop_all();
    }
}

/* A full piece at its bound: the levels of a sum must not overflow their binade. Then also with one element
 * whose rest fits no level. */
static void check_stats_bounds(Device *d, Dtype c) {
    static const float tops[] = {FLT_MAX, 1.99999988f, 1, FLT_MIN, 0x1.fffffcp-127f, 0x1p-149f};
    if (c == DTYPE_BF16) return;
    for (size_t t = 0; t < sizeof tops / sizeof *tops; t++) {
        for (int odd = 0; odd < 60; odd++) {
            float *g = tensor(4096, DTYPE_F32);
            for (int i = 0; i < 4096; i++) g[i] = tops[t];
            if (odd) g[17] = ldexpf(1.00000012f, -odd) * tops[t];
            compare_stats(d, 4096, g, 2, 1);
            compare_stats(d, 4096, g, 1, 1);
            drop_all();
        }
    }
}
static int64_t *random_longs(int64_t n) {
    int64_t *x = tensor(2 * n, DTYPE_F32);
    for (int64_t i = 0; i < n; i++, next_number++)
        x[i] = (int64_t)rng_u64(46, next_number) >> (int)(rng_u64(47, next_number) % 64);
    return x;
}

static void check_sum_partials(Device *d, Dtype c) {
    enum { MOST = 17 };
    static const int64_t counts[] = {1, 15, 16, 33, 16384 * 2 + 5};
    if (c == DTYPE_BF16) return;
    EACH(n, counts) for (int parts = 1; parts <= MOST; parts += 1 + (*n > 100)) {
        float *in[MOST], *want = tensor(*n, DTYPE_F32);
        int64_t *whole[MOST], *sum = random_longs(*n);
        for (int p = 0; p < parts; p++) in[p] = draw_gradient(*n, 1), whole[p] = random_longs(*n);
        OP(&reference, sum_partials, *n, parts, (const float *const *)in, want);
        OP(&reference, sum_partials_i64, *n, parts, (const int64_t *const *)whole, sum);
        int to = (int)(rng_u64(48, next_number++) % (uint64_t)parts); /* in place */
        RUN(d, sum_partials, *n, parts, (const float *const *)in, in[to]);
        RUN(d, sum_partials_i64, *n, parts, (const int64_t *const *)whole, whole[to]);
        assert_bits("sum_partials", d, in[to], want, *n, DTYPE_F32);
        assert_memory_equal(whole[to], sum, (size_t)*n * sizeof *sum);
        drop_all();
    }
}

/* The reference itself, on an example where the order matters: ((1e8 - 1e8) + (1 + 2)) + 4, and 1e8 + 1 stays
 * 1e8. */
static void test_sum_partials(void **state) {
    (void)state;
    float a = 1e8f, b = -1e8f, one = 1, two = 2, four = 4, out;
    OP(&reference, sum_partials, 1, 5, (const float *const[]){&a, &b, &one, &two, &four}, &out);
    assert_true(out >= 7 && out <= 7);
    OP(&reference, sum_partials, 1, 4, (const float *const[]){&a, &one, &b, &two}, &out);
    assert_true(out >= 0 && out <= 0);
    OP(&reference, sum_partials, 1, 3, (const float *const[]){&a, &b, &one}, &out);
    assert_true(out >= 1 && out <= 1);
    on_all(check_sum_partials);
}

static void check_fixed_add(Device *d, int64_t n, const float *g, double limit) {
    int64_t *acc = random_longs(n), *want = copy_of(acc, 2 * n, DTYPE_F32);
    for (int64_t i = 0; i < n; i++) acc[i] = want[i] >>= 2;
    FixedRefusals expected = {0}, *got = COPY_OF(expected); /* the second op adds to the first */
    for (int set = 0; set < 2; set++) {
        RUN(d, fixed_add, n, g, acc, set, limit, got);
        OP(&reference, fixed_add, n, g, want, set, limit, &expected);
        assert_memory_equal(got, &expected, sizeof expected);
        assert_memory_equal(acc, want, (size_t)n * sizeof *acc);
    }
}

static void check_count_nonfinite(Device *d, Dtype c) {
    static const int64_t counts[] = {0, 1, 7, 33, 16384 * 2 + 5};
    EACH(n, counts) {
        void *x = random_tensor(*n, c, -1, 1);
        int64_t before = 3, *got = COPY_OF(before), want = 3;
        if (*n > 6)
            tensor_set(x, 0, c, NAN), tensor_set(x, 5, c, -INFINITY), tensor_set(x, *n - 1, c, INFINITY);
        RUN(d, count_nonfinite, *n, x, c, got);
        OP(&reference, count_nonfinite, *n, x, c, &want);
        assert_int_equal(want, *n > 6 ? 6 : 3);
        assert_int_equal(*got, want);
        drop_all();
    }
}

static void test_count_nonfinite(void **state) {
    (void)state;
    on_all(check_count_nonfinite);
}

static void check_fixed(Device *d, Dtype c) {
    static const int64_t counts[] = {1, 7, 16, 33, 16384 * 2 + 5};
    static const double limits[] = {4096, 3, 0.1, 4096.0 / 3};
    if (c == DTYPE_BF16) return;
    EACH(n, counts) for (int range = 0; range < 4; range++) {
        float *g = draw_gradient(*n, range);
        if (*n > 8)
            g[*n - 1] = NAN, g[5] = 4096, g[6] = -4096, g[7] = 4096.00049f, g[4] = 0x1.000002p-27f,
                   g[3] = 0x1.8p-50f;
        for (size_t l = 0; l < 4; l++) check_fixed_add(d, *n, g, limits[l]);
        int64_t *acc = random_longs(*n);
        if (*n > 8) acc[0] = INT64_MIN, acc[1] = INT64_MAX, acc[2] = 0;
        float *got = tensor(*n, DTYPE_F32), *want = tensor(*n, DTYPE_F32);
        /* Just beyond a tie that would go to even: rounding to double first would lose the last digit. */
        for (int64_t i = 8; i < *n; i += 3) acc[i] = (INT64_C(0x1000001) << 38) + (i & 1) - (i & 2);
        RUN(d, fixed_to_float, *n, acc, got);
        OP(&reference, fixed_to_float, *n, acc, want);
        assert_bits("fixed_to_float", d, got, want, *n, DTYPE_F32);
        drop_all();
    }
}

/* The reference's results for a few numbers. */
static void test_fixed(void **state) {
    (void)state;
    float g[] = {1, -0x1p-50f, 0x1.8p-50f, -0x1.4p-50f, 0x1p-51f, 4096, 4097, NAN, INFINITY}, back[9];
    static const int64_t want[] = {INT64_C(1) << 50, -1, 2, -1, 0, INT64_C(1) << 62, 0, 0, 0};
    int64_t acc[9];
    FixedRefusals refused = {0};
    OP(&reference, fixed_add, 9, g, acc, true, fixed_limit(1), &refused);
    assert_memory_equal(acc, want, sizeof acc);
    assert_true(refused.count == 3 && refused.first == 6);
    OP(&reference, fixed_to_float, 9, acc, back);
    assert_true(back[0] >= 1 && back[0] <= 1 && back[2] >= 0x1p-49f && back[2] <= 0x1p-49f &&
                back[5] >= 4096);
    acc[0] = (INT64_C(0x1000001) << 38) + 1; /* 2^62 + 2^38 + 1: just above a tie */
    acc[1] = (INT64_C(0x1000001) << 38);
    OP(&reference, fixed_to_float, 2, acc, back);
    assert_true(back[0] >= 0x1.000002p12f && back[1] <= 0x1p12f);
    on_all(check_fixed);
}

/* The worst case that fixed_limit allows does not overflow. */
static void test_fixed_limit(void **state) {
    (void)state;
    if (only) skip();
    for (int contributions = 1; contributions < 3000; contributions = contributions * 3 + 1) {
        float g = (float)fixed_limit(contributions);
        if ((double)g > fixed_limit(contributions)) g = nextafterf(g, 0);
        int64_t acc = 0, before = 0;
        FixedRefusals refused = {0};
        for (int i = 0; i < contributions; i++, before = acc) {
            OP(&reference, fixed_add, 1, &g, &acc, false, fixed_limit(contributions), &refused);
            assert_true(acc > before && refused.count == 0);
        }
        assert_true(acc > INT64_MAX / 2 - INT64_MAX / 1000000 && acc <= (INT64_C(1) << 62) + contributions);
    }
}

static void test_stats(void **state) { (void)state, on_all(check_stats), on_all(check_stats_bounds); }

/* Tensors at unaligned addresses: GPU kernels that use vector accesses elsewhere process single elements
 * here, with the same bits. */
static void test_odd_offsets(void **state) {
    static void (*const checks[])(Device *, Dtype) = {
        check_embed,   check_bias,       check_elements,      check_norm,         check_qk_norm,
        check_rope,    check_gated_norm, check_conv,          check_scan,         check_activation,
        check_softcap, check_scale,      check_cross_entropy, check_loss_sum,     check_updates,
        check_muon,    check_quintic,    check_stats,         check_sum_partials, check_fixed};
    (void)state;
    if (!only || strcmp(only, CUDA) != 0) skip();
    odd_offsets = true;
    setenv("TEST_TOKENS", "17", 0);
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) on_all(checks[i]);
    odd_offsets = false;
}

/* ---- the reference itself: gradients against differences ---- */

/* Along a random direction u, with f(x) = sum of weight * output: (f(x + eu) - f(x - eu)) / 2e = gradient .
 * u. */
typedef struct Probe {
    int64_t in, out; /* elements */
    void (*forward)(const float *x, float *y);
    void (*backward)(const float *x, const float *dy, float *dx);
} Probe;

static double weighted(const Probe *p, const float *x, const float *u, float step, const float *weight) {
    float *moved = tensor(p->in, DTYPE_F32), *y = tensor(p->out, DTYPE_F32);
    for (int64_t i = 0; i < p->in; i++) moved[i] = x[i] + step * u[i];
    p->forward(moved, y);
    double sum = 0;
    for (int64_t i = 0; i < p->out; i++) sum += (double)y[i] * (double)weight[i];
    return sum;
}

static void check_differences(const char *what, const Probe *p) {
    for (int round = 0; round < 4; round++) {
        float *x = random_tensor(p->in, DTYPE_F32, -1, 1), *u = random_tensor(p->in, DTYPE_F32, -1, 1);
        float *weight = random_tensor(p->out, DTYPE_F32, -1, 1), *dx = tensor(p->in, DTYPE_F32);
        p->backward(x, weight, dx);
        double along = 0, size = 0, step = 1e-2;
        for (int64_t i = 0; i < p->in; i++)
            along += (double)dx[i] * (double)u[i], size += fabs((double)dx[i] * (double)u[i]);
        double slope =
            (weighted(p, x, u, (float)step, weight) - weighted(p, x, u, -(float)step, weight)) / (2 * step);
        if (!(fabs(slope - along) <= 1e-3 * size))
            fail_msg("%s: slope %g, gradient along it %g", what, slope, along);
        drop_all();
    }
}

/* x is [t, h], then the weight [h]. */
enum { NORM_T = 5, NORM_H = 24 };
static NormKind probe_norm;
static void norm_forward(const float *x, float *y) {
    float rstd[NORM_T], bias[NORM_H] = {0.5f};
    OP(&reference, norm_forward, probe_norm, NORM_T, NORM_H, 1e-5f, x, NULL, x + NORM_T * NORM_H,
       probe_norm == NORM_LAYER ? bias : NULL, NULL, y, rstd, DTYPE_F32);
}
static void norm_backward(const float *x, const float *dy, float *dx) {
    float rstd[NORM_T], y[NORM_T * NORM_H], *dw = dx + NORM_T * NORM_H;
    const float *w = x + NORM_T * NORM_H;
    OP(&reference, norm_forward, probe_norm, NORM_T, NORM_H, 1e-5f, x, NULL, w, NULL, NULL, y, rstd,
       DTYPE_F32);
    memset(dw, 0, NORM_H * sizeof *dw);
    OP(&reference, norm_backward, probe_norm, NORM_T, NORM_H, x, w, rstd, dy, dx, false, dw, NORM_T,
       DTYPE_F32);
}

/* x is the input [4, 3], then a matrix [2 * 2, 3] of two runs that multiplies the rows, and 6 weights. The
 * output is the product of each assignment. */
enum { SPREAD_X = 4 * 3, SPREAD_W = 4 * 3, SPREAD_K = 4 * 2, SPREAD_OUT = SPREAD_K * 4 };
static int32_t spread_ints[3][SPREAD_K] = {{0, 1, 1, 2, 0, 2, 0, 1}, {0, 3, 4, 6, 1, 7, 2, 5}, {0}};
static const RouteShape probe_spread = {.tokens = 4, .sequence = 4, .experts = 3, .chosen = 2};
static Routes spread_routes(const float *x) {
    return (Routes){.chosen = spread_ints[0],
                    .row = spread_ints[1],
                    .weights = (float *)(uintptr_t)(x + SPREAD_X + SPREAD_W)};
}
static void spread_forward(const float *x, float *y) {
    float rows[SPREAD_K * 3];
    OP(&reference, permute, probe_spread, spread_routes(x), 3, x, rows, DTYPE_F32);
    OP(&reference, gemm, false, true, SPREAD_K, 4, 3, rows, x + SPREAD_X, DTYPE_F32, y, DTYPE_F32, 4, false,
       NO_SPLIT);
}
static void spread_backward(const float *x, const float *dy, float *dx) {
    float rows[SPREAD_K * 3], drows[SPREAD_K * 3], y[SPREAD_OUT];
    Routes r = spread_routes(x);
    spread_forward(x, y);
    OP(&reference, permute, probe_spread, r, 3, x, rows, DTYPE_F32);
    OP(&reference, gemm, false, false, SPREAD_K, 3, 4, dy, x + SPREAD_X, DTYPE_F32, drows, DTYPE_F32, 3,
       false, NO_SPLIT);
    OP(&reference, combine, probe_spread, r, 3, drows, true, false, dx, DTYPE_F32);
    OP(&reference, gemm, true, false, 4, 3, SPREAD_K, dy, rows, DTYPE_F32, dx + SPREAD_X, DTYPE_F32, 3, false,
       NO_SPLIT);
    OP(&reference, permute_dweights, probe_spread, r, 2, 2, 2, y, dy, dx + SPREAD_X + SPREAD_W, DTYPE_F32);
}

/* x is qkv [3, (2 + 2) * 6], then the weights of q and k. */
static const AttentionShape norm_shape = SHAPE(3, 2, 1, 6);
enum { HEADS_WIDE = 3 * 4 * 6 };
static bool probe_flat;
static void heads_forward(const float *x, float *y) {
    const float *wq = x + HEADS_WIDE;
    OP(&reference, qk_norm_forward, norm_shape, qk_rows(probe_flat), probe_norm, 1e-5f, x, wq,
       wq + (probe_flat ? 12 : 6), y, DTYPE_F32);
}
static void heads_backward(const float *x, const float *dy, float *dx) {
    const float *wq = x + HEADS_WIDE;
    float *dwq = dx + HEADS_WIDE;
    memcpy(dx, dy, HEADS_WIDE * sizeof *dx);
    memset(dwq, 0, (probe_flat ? 18 : 12) * sizeof *dwq);
    OP(&reference, qk_norm_backward, norm_shape, qk_rows(probe_flat), probe_norm, 1e-5f, x, wq,
       wq + (probe_flat ? 12 : 6), dx, dwq, dwq + (probe_flat ? 12 : 6), 1, DTYPE_F32);
}

static void plain_forward(const float *x, float *y) {
    OP(&reference, qk_norm_forward, norm_shape, qk_rows(false), NORM_RMS, 1e-5f, x, NULL, NULL, y, DTYPE_F32);
}
static void plain_backward(const float *x, const float *dy, float *dx) {
    memcpy(dx, dy, HEADS_WIDE * sizeof *dx);
    OP(&reference, qk_norm_backward, norm_shape, qk_rows(false), NORM_RMS, 1e-5f, x, NULL, NULL, dx, NULL,
       NULL, 1, DTYPE_F32);
}

static AttentionShape probe_shape = SHAPE(7, 4, 2, 8);
enum { PROBE_WIDE = 7 * 8 * 8, PROBE_OUT = 7 * 4 * 8 };
static const int32_t probe_first[7] = {0, 0, 0, 2, 2, 5, 5};
enum { PROBE_KEYS = 4 * 8 }; /* elements of a row before its keys */
static void attend_forward(const float *x, float *y) {
    float lse[7 * 4];
    OP(&reference, attention_forward, probe_shape, attention_whole(probe_shape), x, x + PROBE_KEYS,
       probe_first, y, lse, DTYPE_F32);
}
static void attend_backward(const float *x, const float *dy, float *dx) {
    float lse[7 * 4], y[PROBE_OUT];
    OP(&reference, attention_forward, probe_shape, attention_whole(probe_shape), x, x + PROBE_KEYS,
       probe_first, y, lse, DTYPE_F32);
    OP(&reference, attention_backward, probe_shape, attention_whole(probe_shape), x, x + PROBE_KEYS,
       probe_first, y, lse, dy, dx, dx + PROBE_KEYS, DTYPE_F32);
}

static Activation probe_activation;
static bool probe_gated;
static void act_forward(const float *x, float *y) {
    OP(&reference, activation_forward, probe_activation, probe_gated, 3, 10, x, y, DTYPE_F32);
}
static void act_backward(const float *x, const float *dy, float *dx) {
    float act[30];
    OP(&reference, activation_backward, probe_activation, probe_gated, 3, 10, x, dy, dx, act, DTYPE_F32);
}

/* x is qkv, then the sinks. */
static void sink_forward(const float *x, float *y) {
    probe_shape.sinks = x + PROBE_WIDE;
    attend_forward(x, y);
}
static void sink_backward(const float *x, const float *dy, float *dx) {
    float lse[7 * 4], y[PROBE_OUT];
    probe_shape.sinks = x + PROBE_WIDE;
    attend_backward(x, dy, dx);
    OP(&reference, attention_forward, probe_shape, attention_whole(probe_shape), x, x + PROBE_KEYS,
       probe_first, y, lse, DTYPE_F32);
    memset(dx + PROBE_WIDE, 0, 4 * sizeof *dx);
    OP(&reference, sinks_backward, probe_shape, y, lse, dy, dx + PROBE_WIDE, DTYPE_F32);
}

/* As the activation, with some gates and ups beyond the limit. */
static void clamped_forward(const float *x, float *y) {
    float wide[60];
    for (int i = 0; i < 60; i++) wide[i] = x[i] + (float)(i % 5 - 2) * 4.5f;
    act_forward(wide, y);
}
static void clamped_backward(const float *x, const float *dy, float *dx) {
    float wide[60];
    for (int i = 0; i < 60; i++) wide[i] = x[i] + (float)(i % 5 - 2) * 4.5f;
    act_backward(wide, dy, dx);
}

static const int32_t rope_positions[3] = {0, 3, 1};
static bool probe_neighbours;
static void rotate(const float *x, float *y, bool inverse) {
    float angles[4 * 8];
    AttentionShape s = SHAPE(3, 2, 1, 8);
    s.neighbours = probe_neighbours;
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 4; i++)
            angles[p * 8 + i] = cosf((float)(p * i)), angles[p * 8 + 4 + i] = sinf((float)(p * i));
    memcpy(y, x, 3 * 4 * 8 * sizeof *y);
    OP(&reference, rope, s, y, rope_positions, angles, inverse, DTYPE_F32);
}
static void rope_forward(const float *x, float *y) { rotate(x, y, false); }
static void rope_backward(const float *x, const float *dy, float *dx) { (void)x, rotate(dy, dx, true); }

/* x is the queries, each head's own keys and values, and the shared key. The output is the heads' q, k and
 * v. */
enum { LATENT_Q = 3 * 2 * 6, LATENT_OWN = 3 * 2 * 5, LATENT_KEY = 3 * 4, LATENT_OUT = 3 * LATENT_Q };
static const LatentShape probe_latent = {3, 2, 2, 4, 3, 12, 4, 2, false};
static const float probe_angles[4 * 4] = {1,     1,    0,     0,    0.54f,  0.9f, 0.84f,  0.43f,
                                          -0.4f, 0.2f, 0.91f, 0.7f, -0.99f, 0.1f, -0.14f, 0.3f};
static void latent_forward(const float *x, float *y) {
    OP(&reference, latent_forward, probe_latent, x, x + LATENT_Q, x + LATENT_Q + LATENT_OWN, rope_positions,
       probe_angles, y, DTYPE_F32);
}
static void latent_backward(const float *x, const float *dy, float *dx) {
    (void)x;
    OP(&reference, latent_backward, probe_latent, dy, rope_positions, probe_angles, dx, dx + LATENT_Q,
       dx + LATENT_Q + LATENT_OWN, DTYPE_F32);
}

/* The loss is the only output; with weight w its gradient is w times the stored one. */
static float probe_cap, probe_z;
static void loss_run(const float *x, float *loss, float *dx, float scale) {
    static const int32_t target = 4;
    float z_loss;
    float logits[19];
    memcpy(logits, x, sizeof logits);
    if (probe_cap > 0) OP(&reference, softcap, 19, probe_cap, logits, DTYPE_F32);
    OP(&reference, cross_entropy, 1, 19, logits, DTYPE_F32, &target, WHOLE_VOCABULARY, &scale, probe_cap,
       probe_z, loss, &z_loss, dx, DTYPE_F32);
    *loss += z_loss;
}
static void loss_forward(const float *x, float *y) { loss_run(x, y, NULL, 1); }
static void loss_backward(const float *x, const float *dy, float *dx) {
    float loss;
    loss_run(x, &loss, dx, dy[0]);
}

/* x is logits [T, E]. An offset larger than any step of a difference fixes the selection. The output is the
 * weights [T, k], then the sum of the balance loss. */
enum { ROUTE_T = 6, ROUTE_E = 5, ROUTE_K = 2, ROUTE_OUT = ROUTE_T * ROUTE_K + 1 };
static RouteShape probe_route = {
    .tokens = ROUTE_T, .sequence = 4, .experts = ROUTE_E, .chosen = ROUTE_K, .balance = 0.7f};
static Routes probe_routes(const float *x, int32_t ints[4 * ROUTE_T * ROUTE_K], float *scores,
                           float *weights) {
    Routes r = {scores, ints, weights, ints + 12, ints + 24, ints + 36};
    for (int i = 0; i < ROUTE_T * ROUTE_E; i++) {
        int t = i / ROUTE_E, e = i % ROUTE_E;
        scores[i] = x[i] + (e == t % ROUTE_E || e == (t * t + 2) % ROUTE_E ? 3 : 0);
    }
    OP(&reference, route, probe_route, r, NULL);
    return r;
}
static void probe_backward(Routes r, const float *dweights, const float *scale, float *balance, float *dx) {
    int64_t counts[2 * ROUTE_E] = {0};
    OP(&reference, route_count, probe_route, r.chosen, counts);
    OP(&reference, route_backward, probe_route, r, counts, dweights, scale, balance, dx, DTYPE_F32);
}
static void route_backward(const float *x, const float *dy, float *dx) {
    int32_t ints[4 * ROUTE_T * ROUTE_K];
    float scores[ROUTE_T * ROUTE_E], weights[ROUTE_T * ROUTE_K], balance[ROUTE_T];
    probe_backward(probe_routes(x, ints, scores, weights), dy, &dy[ROUTE_OUT - 1], balance, dx);
}
static void route_forward(const float *x, float *y) {
    int32_t ints[4 * ROUTE_T * ROUTE_K];
    float scores[ROUTE_T * ROUTE_E], balance[ROUTE_T], dx[ROUTE_T * ROUTE_E], none[ROUTE_OUT] = {0};
    Routes r = probe_routes(x, ints, scores, y);
    probe_backward(r, none, none, balance, dx);
    y[ROUTE_OUT - 1] = 0;
    for (int t = 0; t < ROUTE_T; t++) y[ROUTE_OUT - 1] += balance[t];
}

/* x is gates, values and output gate, each [T, W] or twice that, and lambda; two documents. The output is
 * that of scan_gate. */
enum { SCAN_T = 7, SCAN_W = 3, SCAN_N = SCAN_T * SCAN_W };
static ScanShape probe_scan = {SCAN_T, SCAN_W, 2 * SCAN_W, SCAN_W, SCAN_W, SCAN_MIN_GRU};
static const int32_t probe_documents[SCAN_T] = {0, 0, 0, 0, 4, 4, 4};
static ScanInputs probe_inputs(const float *x) {
    const float *lambda = probe_scan.kind == SCAN_HAWK ? x + 4 * SCAN_N : NULL;
    return (ScanInputs){x, x + 2 * SCAN_N, x + 3 * SCAN_N, lambda};
}
static void scan_out(const float *x, float *y) {
    float h[SCAN_N];
    ScanInputs in = probe_inputs(x);
    OP(&reference, scan_forward, probe_scan, in, probe_documents, NULL, h, DTYPE_F32);
    OP(&reference, scan_gate, probe_scan, in.gate, h, y, DTYPE_F32);
}
static void scan_back(const float *x, const float *dy, float *dx) {
    float h[SCAN_N];
    ScanInputs in = probe_inputs(x);
    memset(dx, 0, 2 * SCAN_N * sizeof *dx); /* gates that a kind does not have */
    memset(dx + 4 * SCAN_N, 0, SCAN_W * sizeof *dx);
    OP(&reference, scan_forward, probe_scan, in, probe_documents, NULL, h, DTYPE_F32);
    OP(&reference, scan_backward, probe_scan, in, probe_documents, h, dy,
       (ScanGradients){dx, dx + 2 * SCAN_N, dx + 3 * SCAN_N, in.lambda ? dx + 4 * SCAN_N : NULL}, DTYPE_F32);
}

/* x is x, B and C; dt; and the parameters of heads. The last document continues in the second chunk, and only
 * the outputs of the last tokens are compared. */
enum { MAMBA_T = 131, MAMBA_ROW = 4 + 2 * 3, MAMBA_LOOK = 5, MAMBA_OUT = 4 * MAMBA_LOOK };
enum { MAMBA_IN = MAMBA_T * (MAMBA_ROW + 2) + 3 * 2 };
static const MambaShape probe_mamba = {MAMBA_T, 2, 1, 2, 3, MAMBA_ROW, 2};
static int32_t mamba_documents[MAMBA_T];
static MambaTensors probe_tensors(const float *x) {
    float *at = (float *)(uintptr_t)x;
    for (int32_t t = 0; t < MAMBA_T; t++) mamba_documents[t] = t < 124 ? 0 : 124;
    return (MambaTensors){at, at + MAMBA_T * MAMBA_ROW, at + MAMBA_T * (MAMBA_ROW + 2)};
}
static float mamba_kept[2 * 4 * 3];
static void mamba_out(const float *x, float *y) {
    float all[MAMBA_T * 4];
    OP(&reference, mamba_forward, probe_mamba, mamba_inputs(probe_mamba, probe_tensors(x), 0, DTYPE_F32),
       mamba_documents, NULL, mamba_kept, all, DTYPE_F32);
    memcpy(y, all + 4 * (MAMBA_T - MAMBA_LOOK), MAMBA_OUT * sizeof *y);
}
static void mamba_back(const float *x, const float *dy, float *dx) {
    float y[MAMBA_OUT], all[MAMBA_T * 4] = {0}, carry[4 * 3],
                                      scratch[MAMBA_CHUNK * 3 * (2 * MAMBA_BLOCK + MAMBA_CHUNK)];
    mamba_out(x, y);
    memcpy(all + 4 * (MAMBA_T - MAMBA_LOOK), dy, MAMBA_OUT * sizeof *dy);
    memset(dx, 0, MAMBA_IN * sizeof *dx);
    OP(&reference, mamba_backward, probe_mamba, mamba_inputs(probe_mamba, probe_tensors(x), 0, DTYPE_F32),
       mamba_documents, mamba_kept, all, carry, scratch,
       mamba_gradients(probe_mamba, probe_tensors(dx), 0, DTYPE_F32), DTYPE_F32);
}

/* x is the input, the gate, and the weight. */
static const GatedNorm probe_gated_norm = {5, 12, 6, 12, 1e-5f};
static void gated_out(const float *x, float *y) {
    OP(&reference, gated_norm_forward, probe_gated_norm, x, x + 60, x + 120, y, DTYPE_F32);
}
static void gated_back(const float *x, const float *dy, float *dx) {
    memset(dx + 120, 0, 12 * sizeof *dx);
    OP(&reference, gated_norm_backward, probe_gated_norm, x, x + 60, x + 120, dy, dx, dx + 60, dx + 120,
       DTYPE_F32);
}

/* x is the input, then the taps. */
static const ConvShape probe_conv = {SCAN_T, SCAN_W, SCAN_W, 3};
static void conv_out(const float *x, float *y) {
    OP(&reference, conv_forward, probe_conv, x, x + SCAN_N, probe_documents, NULL, y, DTYPE_F32);
}
static void conv_back(const float *x, const float *dy, float *dx) {
    memset(dx + SCAN_N, 0, 3 * SCAN_W * sizeof *dx);
    OP(&reference, conv_backward, probe_conv, x, x + SCAN_N, probe_documents, dy, dx, dx + SCAN_N, DTYPE_F32);
}

static void test_differences(void **state) {
    (void)state;
    if (only) skip();
    for (int normalise = 0; normalise < 2; normalise++) {
        probe_route.normalise = normalise;
        check_differences("route", &(Probe){ROUTE_T * ROUTE_E, ROUTE_OUT, route_forward, route_backward});
    }
    probe_route.sigmoid = true, probe_route.balance = 0, probe_route.factor = 2.5f;
    for (int normalise = 0; normalise < 2; normalise++) {
        probe_route.normalise = normalise;
        check_differences("route by sigmoids",
                          &(Probe){ROUTE_T * ROUTE_E, ROUTE_OUT, route_forward, route_backward});
    }
    check_differences("heads of latent attention", &(Probe){LATENT_Q + LATENT_OWN + LATENT_KEY, LATENT_OUT,
                                                            latent_forward, latent_backward});
    check_differences("conv", &(Probe){SCAN_N + 3 * SCAN_W, SCAN_N, conv_out, conv_back});
    for (int kind = 0; kind < SCAN_KINDS; kind++) {
        probe_scan.kind = (ScanKind)kind;
        check_differences("scan", &(Probe){4 * SCAN_N + SCAN_W, SCAN_N, scan_out, scan_back});
    }
    check_differences("mamba", &(Probe){MAMBA_IN, MAMBA_OUT, mamba_out, mamba_back});
    check_differences("gated norm", &(Probe){132, 60, gated_out, gated_back});
    for (probe_norm = NORM_RMS; probe_norm <= NORM_LAYER; probe_norm++)
        check_differences("norm",
                          &(Probe){NORM_T * NORM_H + NORM_H, NORM_T * NORM_H, norm_forward, norm_backward});
    for (int bits = 0; bits < 4; bits++) {
        probe_norm = bits & 1 ? NORM_RMS_PLUS_ONE : NORM_RMS, probe_flat = bits & 2;
        check_differences("qk_norm", &(Probe){HEADS_WIDE + (probe_flat ? 18 : 12), HEADS_WIDE, heads_forward,
                                              heads_backward});
        probe_activation = bits & 1 ? ACT_GELU_TANH : ACT_SILU, probe_gated = bits & 2;
        check_differences("activation", &(Probe){probe_gated ? 60 : 30, 30, act_forward, act_backward});
    }
    check_differences("qk_norm without weights",
                      &(Probe){HEADS_WIDE, HEADS_WIDE, plain_forward, plain_backward});
    check_differences("experts that weigh what they read",
                      &(Probe){SPREAD_X + SPREAD_W + SPREAD_K, SPREAD_OUT, spread_forward, spread_backward});
    check_differences("attention", &(Probe){PROBE_WIDE, PROBE_OUT, attend_forward, attend_backward});
    probe_shape.chunk = 2;
    check_differences("attention in chunks",
                      &(Probe){PROBE_WIDE, PROBE_OUT, attend_forward, attend_backward});
    probe_shape.chunk = 0;
    probe_shape.scale = 0.4f, probe_shape.cap = 1.5f, probe_shape.window = 3;
    check_differences("attention, capped, in windows",
                      &(Probe){PROBE_WIDE, PROBE_OUT, attend_forward, attend_backward});
    check_differences("attention with sinks",
                      &(Probe){PROBE_WIDE + 4, PROBE_OUT, sink_forward, sink_backward});
    probe_activation = ACT_CLAMPED, probe_gated = true;
    check_differences("clamped activation", &(Probe){60, 30, clamped_forward, clamped_backward});
    for (int i = 0; i < 2; i++) {
        probe_neighbours = i;
        check_differences("rope", &(Probe){96, 96, rope_forward, rope_backward});
    }
    check_differences("cross_entropy", &(Probe){19, 1, loss_forward, loss_backward});
    probe_cap = 1.5f;
    check_differences("cross_entropy, capped", &(Probe){19, 1, loss_forward, loss_backward});
    probe_z = 0.125f;
    check_differences("cross_entropy, capped, and z-loss", &(Probe){19, 1, loss_forward, loss_backward});
    probe_cap = 0;
    check_differences("cross_entropy and z-loss", &(Probe){19, 1, loss_forward, loss_backward});
}

/* ---- threads ---- */

/* Results of the ops that add across pieces of work. */
typedef struct Results {
    void *out, *dqkv, *dx, *dread;
    float *lse, *dw, *db, *dtable, *dexperts, *dtaps, *dheads, *dgated;
    Routes routes;
    GradStats stats;
} Results;

/* Five heads of 16 channels, whose x, B, C and dt lie in rows of qkv. */
static void run_mamba(Device *d, Dtype c, int64_t t, int64_t width, const void *qkv, const int32_t *first,
                      Results *r) {
    MambaShape s = {t, 5, 1, 16, 24, width, width};
    GatedNorm norm = {t, width, width, width, 1e-5f};
    float *heads = tensor(3 * 5, DTYPE_F32), *starts = tensor(mamba_states(s), DTYPE_F32),
          *carry = tensor(mamba_states(s), DTYPE_F32), *scratch = tensor(mamba_floats(s), DTYPE_F32),
          *w = tensor(width, DTYPE_F32);
    void *y = tensor(mamba_outputs(s), c);
    MambaTensors from = {(void *)(uintptr_t)qkv, tensor_to((void *)(uintptr_t)qkv, 5 * 16 + 2 * 24, c),
                         heads},
                 to = {r->dread, tensor_to(r->dread, 5 * 16 + 2 * 24, c), r->dheads};
    RUN(d, fill, 3 * 5, 0, heads);
    RUN(d, fill, 3 * 5, 0, r->dheads);
    RUN(d, fill, width, 0, r->dgated);
    RUN(d, fill, width, 1, w);
    RUN(d, gated_norm_backward, norm, qkv, qkv, w, qkv, r->dqkv, r->dread, r->dgated, c);
    RUN(d, mamba_forward, s, mamba_inputs(s, from, 0, c), first, NULL, starts, y, c);
    RUN(d, mamba_backward, s, mamba_inputs(s, from, 0, c), first, starts, y, carry, scratch,
        mamba_gradients(s, to, 0, c), c);
}

static void run_sums(Device *d, Dtype c, AttentionShape s, const void *qkv, const int32_t *first,
                     const int32_t *ids, Results *r) {
    int64_t t = s.tokens, width = qkv_row(s), n = t * s.heads * s.head_dim;
    *r = (Results){.out = tensor(n, c),
                   .dqkv = tensor(t * width, c),
                   .dx = tensor(t * width, c),
                   .lse = tensor(t * s.heads, DTYPE_F32),
                   .dw = tensor(width, DTYPE_F32),
                   .db = tensor(width, DTYPE_F32),
                   .dtable = tensor(9 * width, DTYPE_F32),
                   .dexperts = tensor(9 * width * 24, DTYPE_F32),
                   .dtaps = tensor(4 * width, DTYPE_F32),
                   .dheads = tensor(3 * 5, DTYPE_F32),
                   .dgated = tensor(width, DTYPE_F32),
                   .dread = tensor(t * width, c),
                   .routes = {.scores = tensor(t * 9, DTYPE_F32),
                              .chosen = tensor(t, DTYPE_F32),
                              .weights = tensor(t, DTYPE_F32),
                              .row = tensor(t, DTYPE_F32),
                              .token = tensor(t, DTYPE_F32),
                              .first = tensor(10, DTYPE_F32)}};
    RouteShape route = {.tokens = t, .sequence = t, .experts = 9, .chosen = 1};
    for (int64_t i = 0; i < t * 9; i++) r->routes.scores[i] = (float)(i * i % 31);
    RUN(d, fill, 9 * width * 24, 0, r->dexperts);
    RUN(d, route, route, r->routes, NULL);
    RUN(d, grouped_gemm_wgrad, (ExpertRows){t, 9, r->routes.first, width * 24, 1}, width, 24, qkv, qkv, c,
        r->dexperts, false);
    RUN(d, fill, 4 * width, 0, r->dtaps);
    RUN(d, conv_backward, (ConvShape){t, width, width, 4}, qkv, r->dexperts, first, qkv, r->dqkv, r->dtaps,
        c);
    run_mamba(d, c, t, width, qkv, first, r);
    RUN(d, fill, width, 0, r->dw);
    RUN(d, fill, width, 0, r->db);
    RUN(d, fill, 9 * width, 0, r->dtable);
    AttentionRun all = attention_whole(s);
    int64_t query = s.heads * s.head_dim;
    const void *kv = tensor_at(qkv, query, c);
    RUN(d, attention_forward, s, all, qkv, kv, first, r->out, r->lse, c);
    RUN(d, attention_backward, s, all, qkv, kv, first, r->out, r->lse, r->out, r->dqkv,
        tensor_to(r->dqkv, query, c), c);
    float *w = tensor(width, DTYPE_F32);
    RUN(d, fill, width, 1, w);
    RUN(d, norm_backward, NORM_RMS, t, width, qkv, w, r->lse, r->dqkv, r->dx, false, r->dw, t, c);
    RUN(d, qk_norm_backward, s, qk_rows(true), NORM_RMS, 1e-5f, qkv, w, w, r->dqkv, r->dw,
        r->dw + s.heads * s.head_dim, 1, c);
    RUN(d, bias_backward, t, width, r->dqkv, r->db, t, c);
    RUN(d, embed_backward, t, width, ids, r->dqkv, ALL_ROWS, 1, r->dtable, c);
    RUN(d, grad_stats, 9 * width, r->dtable, 2, &(double){1}, &r->stats);
}

static void check_threads(Device *base, Dtype c) {
    if (strcmp(base->name, CUDA) == 0) return; /* no host threads take part */
    AttentionShape s = {.tokens = 700, .heads = 6, .kv_heads = 2, .head_dim = 40, .window = 400};
    int64_t t = s.tokens, width = qkv_row(s), n = t * s.heads * s.head_dim;
    void *qkv = random_tensor(t * width, c, -2, 2);
    int32_t *first = tensor(t, DTYPE_F32), *ids = random_ints(t, 9);
    set_first_keys(first, t, 0);
    for (int64_t i = 500; i < t; i++) first[i] = 450;
    Results one, r;
    for (int threads = 1; threads <= 5; threads++) {
        Device d;
        assert_true(open_backend(&d, base->deferred ? DEFERRED : base->name, threads));
        DeviceNeeds needs = {.compute = c, .tokens = t, .hidden = width, .intermediate = 1, .attention = s};
        set_scratch(&d, &needs);
        run_sums(&d, c, s, qkv, first, ids, &r);
        if (threads == 1) one = r;
        assert_bits("attention", &d, r.out, one.out, n, c);
        assert_bits("attention gradient", &d, r.dqkv, one.dqkv, t * width, c);
        assert_bits("norm dx", &d, r.dx, one.dx, t * width, c);
        assert_bits("norm dw", &d, r.dw, one.dw, width, DTYPE_F32);
        assert_bits("bias gradient", &d, r.db, one.db, width, DTYPE_F32);
        assert_bits("embedding gradient", &d, r.dtable, one.dtable, 9 * width, DTYPE_F32);
        assert_bits("taps' gradient", &d, r.dtaps, one.dtaps, 4 * width, DTYPE_F32);
        assert_bits("mamba's gradient", &d, r.dread, one.dread, t * width, c);
        assert_bits("heads' gradient", &d, r.dheads, one.dheads, 3 * 5, DTYPE_F32);
        assert_bits("gated norm's gradient", &d, r.dgated, one.dgated, width, DTYPE_F32);
        assert_bits("experts' gradient", &d, r.dexperts, one.dexperts, 9 * width * 24, DTYPE_F32);
        assert_memory_equal(&r.stats, &one.stats, sizeof r.stats);
        close_device(&d);
    }
    drop_all();
}
static void test_threads(void **state) { (void)state, on_all(check_threads); }

/* Attention with a window narrower than a block. The number of blocks that a thread processes together
 * depends on the number of threads; queries then see only some blocks in the middle. */
static void check_narrow(Device *base, Dtype c) {
    if (strcmp(base->name, CUDA) == 0) return; /* as in check_threads */
    AttentionShape s = {.tokens = 700, .heads = 6, .kv_heads = 2, .head_dim = 40, .window = 20};
    int64_t t = s.tokens, width = qkv_row(s), n = t * s.heads * s.head_dim, queries = s.heads * s.head_dim;
    void *qkv = random_tensor(t * width, c, -2, 2), *kv = tensor_to(qkv, queries, c), *out[2], *grad[2];
    int32_t *first = tensor(t, DTYPE_F32);
    set_first_keys(first, t, 0);
    for (int i = 0; i < 2; i++) {
        Device d;
        assert_true(open_backend(&d, base->deferred ? DEFERRED : base->name, i ? 5 : 1));
        DeviceNeeds needs = {.compute = c, .tokens = t, .hidden = width, .intermediate = 1, .attention = s};
        set_scratch(&d, &needs);
        float *lse = tensor(t * s.heads, DTYPE_F32);
        out[i] = tensor(n, c), grad[i] = tensor(t * width, c);
        RUN(&d, attention_forward, s, attention_whole(s), qkv, kv, first, out[i], lse, c);
        RUN(&d, attention_backward, s, attention_whole(s), qkv, kv, first, out[i], lse, out[i], grad[i],
            tensor_to(grad[i], queries, c), c);
        close_device(&d);
    }
    assert_bits("attention", base, out[1], out[0], n, c);
    assert_bits("attention gradient", base, grad[1], grad[0], t * width, c);
    drop_all();
}
static void test_narrow(void **state) { (void)state, on_all(check_narrow); }

/* ---- opening ---- */

static void test_open(void **state) {
    (void)state;
    if (only) skip();
    Device d;
    Error err;
    Text kinds = {0};
    for (int i = 0; i < 10; i++) text_printf(&kinds, "%s%s", i ? "|" : "", device_kind(i));
    assert_string_equal(kinds.data, DEVICE_KINDS);
    text_clear(&kinds);
    for (int i = 0; i < 8; i++) text_printf(&kinds, "%s%s", i ? "|" : "", device_cpu_kind(i));
    assert_string_equal(kinds.data, CPU_KINDS);
    text_free(&kinds);
    assert_int_equal(device_open_cpu(&d, "z80", 1, &err), ERR_UNAVAILABLE);
    assert_non_null(strstr(err.message, "z80"));
    assert_int_equal(setenv("WEFT_CPU", "portable", 1), 0);
    open_device(&d, "auto", 0);
    assert_string_equal(d.name, "portable");
    assert_int_equal(d.threads, device_cpu_cores());
    device_close(&d);
    setenv("WEFT_CPU", "no\033such", 1);
    assert_int_equal(device_open_cpu(&d, NULL, 1, &err), ERR_UNAVAILABLE);
    assert_non_null(strstr(err.message, "WEFT_CPU"));
    assert_null(strchr(err.message, '\033'));
    unsetenv("WEFT_CPU");
    open_device(&d, NULL, 3);
    assert_int_equal(d.threads, 3);
    assert_true(d.processor[0] != 0);
    device_close(&d);
    for (int i = 0; i < OP_COUNT; i++) assert_string_not_equal(op_name(i), "unknown");
}

static void test_profile(void **state) {
    (void)state;
    if (only) skip();
    Device d;
    open_device(&d, NULL, 1);
    DeviceNeeds needs = small_needs(DTYPE_F32, 2, 2);
    set_scratch(&d, &needs);
    float a[4] = {1, 2, 3, 4}, out[4];
    d.profiling = true;
    OP(&d, add, 4, a, a, out, DTYPE_F32);
    OP(&d, gemm, false, false, 2, 2, 2, a, a, DTYPE_F32, out, DTYPE_F32, 2, false, NO_SPLIT);
    assert_int_equal(d.profile[OP_ADD].calls, 1);
    assert_true(d.profile[OP_GEMM].flops >= 16 && d.profile[OP_GEMM].flops <= 16);
    assert_true(out[0] >= 7 && out[0] <= 7);
    close_device(&d);
}

/* The reference has no kernels whose limit could be measured. */
static void test_peak(void **state) {
    (void)state;
    if (only) skip();
    Device d;
    open_device(&d, NULL, 1);
    assert_true(device_matmul_peak(&d, DTYPE_F32, 0.05, 1e12) > 1e8);
    assert_true(device_matmul_peak(&d, DTYPE_BF16, 0.05, 1e12) > 1e8);
    double limit = device_register_limit(&d, DTYPE_F32, 0.05),
           dots = device_register_limit(&d, DTYPE_BF16, 0.05);
    assert_true(strcmp(d.name, "reference") == 0 ? limit <= 0 : limit > 1e8);
    assert_int_equal(has_dot_products(&d), dots > 0);
    device_close(&d);
}

/* A device whose products take no time: if the host waited for each, its waits would be measured instead. */
static int products_made, waits_made;
static void (*finish_of_device)(Device *d, Event e);
static void quick_gemm(Device *d, const GemmArgs *o) {
    (void)d, (void)o;
    products_made++;
}
static void counted_finish(Device *d, Event e) {
    waits_made++;
    finish_of_device(d, e);
}
static void test_peak_waits(void **state) {
    (void)state;
    if (only) skip();
    Device d;
    open_device(&d, NULL, 1);
    finish_of_device = d.runtime.finish;
    d.ops->gemm = quick_gemm, d.runtime.finish = counted_finish;
    assert_true(device_matmul_peak(&d, DTYPE_BF16, 0.05, INFINITY) > 0);
    assert_true(waits_made > 0 && products_made > 20 * waits_made);
    assert_true(device_copy_rate(&d, 0.02, SIZE_MAX) > 1e8);
    assert_true(device_read_rate(&d, 0.02, SIZE_MAX) > 1e8);
    device_close(&d);
}

/* ---- grids ---- */

/* Launches with more than 65,535 blocks in one direction: tokens, rows of experts and splits must lie along
 * the grid dimension that allows that many. No memory is accessed. */
static void launch_large(Device *d, Dtype c) {
    enum { TOKENS = 1 << 23, SPLIT_SIZE = 64, EXPERTS = 512 };
    static _Alignas(16) char there[4096];
    void *p = there;
    float *f = p;
    int32_t *ids = p;
    AttentionShape s = SHAPE(TOKENS, 4, 2, 8);
    AttentionRun whole = attention_whole(s);
    RouteShape routed = {.tokens = TOKENS, .sequence = SPLIT_SIZE, .experts = EXPERTS, .chosen = 2};
    Routes routes = {f, ids, f, ids, ids, ids};
    ExpertRows rows = {TOKENS, EXPERTS, ids, 1 << 20, 1};
    VocabSplit vocab = {.split_size = SPLIT_SIZE};
    ScanShape scan = {TOKENS, SPLIT_SIZE, 2 * SPLIT_SIZE, SPLIT_SIZE, SPLIT_SIZE, SCAN_HAWK};
    MambaShape mamba = {TOKENS, SPLIT_SIZE / 64, 1, 64, 128, 2 * SPLIT_SIZE, SPLIT_SIZE};
    MambaGradients grads = {p, p, p, p, f, f, f};
    d->scratch = there, d->scratch_size = SIZE_MAX;
    OP(d, gemm, false, true, TOKENS, SPLIT_SIZE, SPLIT_SIZE, p, p, c, p, c, SPLIT_SIZE, false,
       shared(true, SPLIT_SIZE));
    OP(d, attention_forward, s, whole, p, p, ids, p, f, c);
    OP(d, attention_backward, s, whole, p, p, ids, p, f, p, p, p, c);
    OP(d, attention_decode, s, 0, p, p, p, p, c);
    s.head_dim = 16; /* other kernels in bf16 */
    OP(d, attention_forward, s, attention_whole(s), p, p, ids, p, f, c);
    OP(d, attention_backward, s, attention_whole(s), p, p, ids, p, f, p, p, p, c);
    OP(d, norm_backward, NORM_LAYER, TOKENS, SPLIT_SIZE, p, f, f, p, p, false, f, SPLIT_SIZE, c);
    OP(d, bias_backward, TOKENS, SPLIT_SIZE, p, f, SPLIT_SIZE, c);
    OP(d, embed_backward, TOKENS, SPLIT_SIZE, ids, p, ALL_ROWS, 1, f, c);
    OP(d, route, routed, routes, NULL);
    OP(d, route_count, routed, ids, p);
    OP(d, route_backward, routed, routes, p, f, f, f, p, c);
    OP(d, grouped_gemm, rows, true, SPLIT_SIZE, SPLIT_SIZE, p, p, c, p, c, NO_SPLIT);
    OP(d, grouped_gemm_wgrad, rows, 1 << 14, SPLIT_SIZE, p, p, c, f, true);
    OP(d, combine_backward, routed, routes, SPLIT_SIZE, 1, p, p, f, c);
    OP(d, permute_dweights, routed, routes, SPLIT_SIZE, 2, 1, p, p, f, c);
    OP(d, experts_bias_forward, rows, SPLIT_SIZE, p, f, c);
    OP(d, experts_bias_backward, routed, routes, SPLIT_SIZE, p, true, f, f, f, c);
    OP(d, conv_forward, (ConvShape){TOKENS, SPLIT_SIZE, SPLIT_SIZE, 4}, p, f, ids, NULL, p, c);
    OP(d, conv_backward, (ConvShape){TOKENS, SPLIT_SIZE, SPLIT_SIZE, 4}, p, f, ids, p, p, f, c);
    OP(d, scan_forward, scan, (ScanInputs){p, p, p, f}, ids, NULL, f, c);
    OP(d, scan_gate, scan, p, f, p, c);
    OP(d, scan_backward, scan, (ScanInputs){p, p, p, f}, ids, f, p, (ScanGradients){p, p, p, f}, c);
    OP(d, mamba_forward, mamba, (MambaInputs){p, p, p, p, f, f, f}, ids, NULL, f, p, c);
    OP(d, mamba_backward, mamba, (MambaInputs){p, p, p, p, f, f, f}, ids, f, p, f, f, grads, c);
    OP(d, gated_norm_forward, (GatedNorm){TOKENS, SPLIT_SIZE, SPLIT_SIZE / 2, SPLIT_SIZE, 1e-5f}, p, p, f, p,
       c);
    OP(d, gated_norm_backward, (GatedNorm){TOKENS, SPLIT_SIZE, SPLIT_SIZE / 2, SPLIT_SIZE, 1e-5f}, p, p, f, p,
       p, p, f, c);
    OP(d, loss_records, TOKENS, 2 * SPLIT_SIZE, p, c, ids, vocab, p);
    OP(d, cross_entropy, TOKENS, 2 * SPLIT_SIZE, p, c, ids, vocab, f, 0, 0, f, f, p, c);
    d->scratch = NULL;
}

/* The message with which a process ends that launches 2^31 blocks. */
static void launch_too_large(Device *d, char *said, size_t size) {
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        OP(d, add, INT64_C(1) << 41, said, said, said, DTYPE_F32); /* four elements per thread */
        _exit(0);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], said, size - 1);
    said[length > 0 ? length : 0] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), ERR_UNAVAILABLE);
}

static void test_grids(void **state) {
    Device d;
    char said[1024];
    (void)state;
    if (!only || strcmp(only, CUDA) != 0 || !getenv("WEFT_SIM_DRY")) skip();
    open_backend(&d, CUDA, 1);
    launch_large(&d, DTYPE_F32);
    launch_large(&d, DTYPE_BF16);
    launch_too_large(&d, said, sizeof said);
    if (!strstr(said, "add(n 2199023255552, c fp32) would take 2147483648 x 1 blocks of threads; GPUs take "))
        fail_msg("%s", said);
    close_device(&d);
}

static int open_reference(void **state) {
    (void)state;
    open_device(&reference, "reference", 1);
    return 0;
}

int main(int argc, char **argv) {
    only = argc > 1 ? argv[1] : NULL;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    unsetenv("WEFT_DEFER");
    /* Freed memory is kept: without this a third of the time is spent on new pages. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_gemm_op),
        cmocka_unit_test(test_gemm_refuses_native),
        cmocka_unit_test(test_gemm_threads),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_scan),
        cmocka_unit_test(test_scan_formulas),
        cmocka_unit_test(test_mamba),
        cmocka_unit_test(test_mamba_formulas),
        cmocka_unit_test(test_gated_norm),
        cmocka_unit_test(test_qk_norm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_queries_scale),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_common_key),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_grouped_route),
        cmocka_unit_test(test_full_route),
        cmocka_unit_test(test_nan_route),
        cmocka_unit_test(test_grouped_gemm),
        cmocka_unit_test(test_experts_rows),
        cmocka_unit_test(test_activation_ends),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_nan_loss),
        cmocka_unit_test(test_loss_sum),
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_unbiased),
        cmocka_unit_test(test_state_ends),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_sum_partials),
        cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_count_nonfinite),
        cmocka_unit_test(test_fixed_limit),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_grids),
        cmocka_unit_test(test_odd_offsets),
        cmocka_unit_test(test_peak_waits),
    };
    return cmocka_run_group_tests(tests, open_reference, NULL);
}
