/* cuBLASLt on the CPU: column-major, in fp32, with one rounding at the end. It refuses what products.c
 * may get wrong: types, sizes that do not match, leading dimensions below the rows, addresses less
 * aligned than the plan was told, a workspace that is missing or not aligned, and split-K unless it is in
 * fp32 and in order. Its heuristic gives each alignment another algorithm, with other bits.
 *
 * WEFT_SIM_PRODUCTS=state: the heuristic's first result has failed, and must not be used. drops: the first
 * splits K and leaves out its last element. drops-all: there is no other. */
#include "cublasLt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "cuda_runtime.h"
#include "sim.h"

struct SimLtHandle {
    int unused;
};
struct SimLtProduct {
    bool trans_a, trans_b;
};
struct SimLtLayout {
    cudaDataType_t type;
    int64_t rows, cols, ld;
};
struct SimLtPreference {
    size_t workspace;
    uint32_t schemes, alignment[4];
};

/* What the library's opaque 64 bytes hold here. */
struct Algorithm {
    size_t workspace;
    uint32_t alignment[4];
    uint32_t splits; /* of K, added in order */
    bool failed, drops;
    char rest[64 - sizeof(size_t) - 22];
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t), "an algorithm has 64 bytes");

template <typename T> static cublasStatus_t give(T **out, T value) {
    *out = new T(value);
    return CUBLAS_STATUS_SUCCESS;
}
template <typename T> static cublasStatus_t drop(T *p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t refuse(const char *why) {
    fprintf(stderr, "cuda_sim: cuBLASLt: %s\n", why);
    return CUBLAS_STATUS_INVALID_VALUE;
}

static float get(const void *p, int64_t i, cudaDataType_t t) {
    if (t == CUDA_R_32F) return ((const float *)p)[i];
    return __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
}

static void set(void *p, int64_t i, cudaDataType_t t, float x) {
    uint32_t u = __float_as_uint(x);
    if (t == CUDA_R_32F)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = (uint16_t)(x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

struct Job {
    SimLtProduct p;
    SimLtLayout a, b, d;
    const void *a_data, *b_data;
    void *d_data;
    float alpha, beta;
    Algorithm algorithm;
};

/* GROUP columns of TILE sums += a column of a's tile times one number each. Nothing is fused, whatever the
 * processor, so the bits are always the same. */
enum { GROUP = 8, TILE = 256 };
#define ADD_COLUMN(name, attributes)                                                      \
    attributes static void name(const float *column, const float x[GROUP], float *sums) { \
        for (int g = 0; g < GROUP; g++)                                                   \
            for (int i = 0; i < TILE; i++) sums[g * TILE + i] += column[i] * x[g];        \
    }
ADD_COLUMN(add_column_plain, )
ADD_COLUMN(add_column_avx2, __attribute__((target("avx2"))))

/* Packs op(a) in tiles of rows, [tile][k][TILE], and op(b) in groups of columns, [group][k][GROUP]. */
static std::vector<float> pack(const void *from, const SimLtLayout &l, bool inner_first, int64_t inner,
                               int64_t outer, int64_t wide) {
    std::vector<float> to((size_t)((outer + wide - 1) / wide * wide * inner));
    for (int64_t o = 0; o < outer; o++)
        for (int64_t p = 0; p < inner; p++)
            to[(size_t)((o / wide * inner + p) * wide + o % wide)] =
                get(from, inner_first ? o * l.ld + p : p * l.ld + o, l.type);
    return to;
}

/* d = alpha op(a) op(b) + beta d, GROUP columns of TILE rows of d at a time. */
static void multiply(const Job &j) {
    auto *add_column = __builtin_cpu_supports("avx2") ? add_column_avx2 : add_column_plain;
    int64_t m = j.d.rows, n = j.d.cols, k = j.p.trans_a ? j.a.rows : j.a.cols, splits = j.algorithm.splits,
            added = k - (j.algorithm.drops ? 1 : 0);
    std::vector<float> a = pack(j.a_data, j.a, j.p.trans_a, k, m, TILE),
                       b = pack(j.b_data, j.b, !j.p.trans_b, k, n, GROUP);
    for (int64_t row = 0; row < m; row += TILE)
        for (int64_t column = 0; column < n; column += GROUP) {
            float sums[GROUP * TILE] = {0};
            for (int64_t split = 0; split < splits; split++) {
                float partial[GROUP * TILE] = {0};
                for (int64_t p = added * split / splits; p < added * (split + 1) / splits; p++)
                    add_column(&a[(size_t)(row * k + p * TILE)], &b[(size_t)(column * k + p * GROUP)],
                               partial);
                for (int i = 0; i < GROUP * TILE; i++) sums[i] += partial[i];
            }
            for (int64_t g = 0; g < GROUP && column + g < n; g++)
                for (int64_t i = 0; i < TILE && row + i < m; i++) {
                    int64_t at = (column + g) * j.d.ld + row + i;
                    float before = j.beta == 0 ? 0 : j.beta * get(j.d_data, at, j.d.type);
                    set(j.d_data, at, j.d.type, j.alpha * sums[g * TILE + i] + before);
                }
        }
}

static bool aligned(const void *p, uint32_t to) { return to != 0 && (uintptr_t)p % to == 0; }

/* One where all are 16. */
static uint32_t splits_for(const uint32_t alignment[4]) {
    return 1 + (uint32_t)(__builtin_ctz(alignment[0]) + __builtin_ctz(alignment[1]) +
                          __builtin_ctz(alignment[2])) %
                   4;
}

static cublasStatus_t check_shapes(const SimLtProduct &p, const SimLtLayout &a, const SimLtLayout &b,
                                   const SimLtLayout &d) {
    int64_t m = p.trans_a ? a.cols : a.rows, k = p.trans_a ? a.rows : a.cols,
            k2 = p.trans_b ? b.cols : b.rows, n = p.trans_b ? b.rows : b.cols;
    if (m != d.rows || n != d.cols || k != k2) return refuse("sizes do not fit each other");
    if (a.ld < a.rows || b.ld < b.rows || d.ld < d.rows) return refuse("leading dimension below the rows");
    if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F)) return refuse("types");
    return CUBLAS_STATUS_SUCCESS;
}

/* For the partial sums of splits. */
static size_t workspace_needed(const Algorithm &a, const SimLtLayout &d) {
    size_t sums = a.splits > 1 ? a.splits * (size_t)(d.rows * d.cols) * sizeof(float) : 0;
    return sums < a.workspace ? sums : a.workspace;
}

static bool asked_for(const char *what) {
    const char *asked = getenv("WEFT_SIM_PRODUCTS");
    return asked && strcmp(asked, what) == 0;
}

/* Returns the number of results that this adds. */
static int offer(const Algorithm &a, int at, int want, cublasLtMatmulHeuristicResult_t *results) {
    if (at >= want) return 0;
    memcpy(&results[at].algo, &a, sizeof a);
    results[at].workspaceSize = a.workspace;
    results[at].state = a.failed ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    return 1;
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    sim_take("products");
    return give(h, SimLtHandle{0});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return drop(h); }
size_t cublasLtGetVersion(void) { return 0; }
const char *cublasLtGetStatusString(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS         ? "success"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                              : "invalid value";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *p, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return refuse("not fp32 sums");
    return give(p, SimLtProduct{false, false});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p) { return drop(p); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    cublasOperation_t op;
    if (bytes != sizeof op) return refuse("size of an attribute");
    memcpy(&op, value, sizeof op);
    (name == CUBLASLT_MATMUL_DESC_TRANSA ? p->trans_a : p->trans_b) = op == CUBLAS_OP_T;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    return give(l, SimLtLayout{type, (int64_t)rows, (int64_t)cols, ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return drop(l); }

/* Defaults of the library: no workspace, and addresses aligned to 256 bytes. */
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    return give(p, SimLtPreference{0, ~0u, {256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return drop(p); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes) {
    bool size = name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (bytes != (size ? sizeof(size_t) : sizeof(uint32_t))) return refuse("size of a preference");
    if (size)
        memcpy(&p->workspace, value, bytes);
    else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&p->schemes, value, bytes);
    else
        memcpy(&p->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t p,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wishes, int want,
                                              cublasLtMatmulHeuristicResult_t *results, int *got) {
    (void)h, (void)c;
    *got = 0;
    if (wishes->schemes & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        return refuse("sums of parts of K may be added in any order, or rounded");
    if (check_shapes(*p, *a, *b, *d) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
    Algorithm right = {}, bad;
    right.workspace = wishes->workspace;
    memcpy(right.alignment, wishes->alignment, sizeof right.alignment);
    right.splits = splits_for(wishes->alignment);
    bad = right;
    bad.failed = asked_for("state"), bad.drops = asked_for("drops") || asked_for("drops-all");
    if (bad.drops) bad.splits = 2;
    if (bad.failed || bad.drops) *got += offer(bad, *got, want, results);
    if (!asked_for("drops-all")) *got += offer(right, *got, want, results);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name, void *value,
                                                    size_t bytes, size_t *written) {
    Algorithm a;
    int32_t splits;
    memcpy(&a, algo, sizeof a);
    splits = (int32_t)a.splits;
    if (name != CUBLASLT_ALGO_CONFIG_SPLITK_NUM || bytes != sizeof splits) return refuse("an attribute");
    memcpy(value, &splits, sizeof splits);
    *written = sizeof splits;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t p, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t bytes, cudaStream_t s) {
    (void)h, (void)c_layout;
    Algorithm chosen;
    memcpy(&chosen, algo, sizeof chosen);
    if (chosen.failed) return refuse("an algorithm whose state is a failure");
    if (c != d) return refuse("C is not D");
    if (!sim_reaches(a) || !sim_reaches(b) || !sim_reaches(d) || !sim_reaches(workspace))
        return refuse("an operand that a GPU does not reach");
    if (!aligned(a, chosen.alignment[0]) || !aligned(b, chosen.alignment[1]) ||
        !aligned(d, chosen.alignment[2]) || !aligned(d, chosen.alignment[3]))
        return refuse("an operand is not aligned as the plan was told");
    if (!workspace || bytes < workspace_needed(chosen, *d_layout) || !aligned(workspace, 256))
        return refuse("workspace");
    if (check_shapes(*p, *a_layout, *b_layout, *d_layout) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_INVALID_VALUE;
    Job j = {*p,    *a_layout, *b_layout, *d_layout, a, b, d, *(const float *)alpha, *(const float *)beta,
             chosen};
    sim_queue(s, [j, workspace, bytes] {
        memset(workspace, 0xff, bytes < 4096 ? bytes : 4096); /* scratch: whoever relies on it sees NaN */
        multiply(j);
    });
    return CUBLAS_STATUS_SUCCESS;
}
}
