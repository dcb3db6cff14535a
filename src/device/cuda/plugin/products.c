/* Plans of matrix products. cuBLASLt is column-major: a row-major [R, S] is a column-major S x R. So C^T =
 * op(B)^T op(A)^T is requested, with B as the first operand:
 *
 *     lt.m = N   lt.n = M   lt.k = K     first: B, transposed if trans_b   second: A, transposed if trans_a
 *
 * Plans are cached by shape and types. The library is given the alignment that the rows have, up to what TMA
 * needs, not that of the addresses: those differ between meshes, and the algorithm would. A matrix begins at
 * a multiple of 16 bytes (pools, flats), or at a row of one that does.
 *
 * A plan keeps the first algorithm of the library's heuristic that is fit for it. That algorithm may be
 * split-K, since a small result with a large K would fill only a few multiprocessors; but only with partial
 * sums in fp32 in the workspace that are added in order, not as they arrive. So the bits are
 * reproducible on one GPU model and version of the library. Algorithms are never chosen by timing, which
 * would make bits depend on the moment. The cache is searched linearly: a run has some tens of shapes.
 *
 * A split-K algorithm is tried once on ones, since a version of the library had splits that left out the end
 * of K: on a few rows and columns, whose operands are in the workspace. */
#include "device/cuda/plugin/products.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/needs.h"
#include "device/cuda/plugin/backend.h"

enum {
    ALIGNMENT = CUDA_ALIGNMENT, /* of the workspace */
    ROWS_ALIGNMENT = 16,        /* at most; more changes no kernel that is known */
    CANDIDATES = 8,             /* of the heuristic */
    /* Rows and columns of a trial: as many as a tile has, or as few as keep rows aligned. */
    TRIAL_MOST = 64,
    TRIAL_LEAST = 8,
    TRIAL_EXACT = 1 << 24 /* fp32 counts up to here */
};

typedef struct ProductShape {
    bool trans_a, trans_b;
    int64_t m, n, k, ldc;
    Dtype ab_type, c_type;
    uint32_t a_alignment, b_alignment, c_alignment; /* bytes; follow from the above and C's first column */
} ProductShape;

typedef struct Workspace {
    char *memory; /* aligned */
    size_t bytes;
    cudaStream_t stream; /* on which it is used */
} Workspace;

typedef struct Operands {
    const void *a, *b;
    void *c;
    float beta;
} Operands;

typedef struct Plan {
    ProductShape shape;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, result;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

struct Products {
    cublasLtHandle_t handle;
    Plan *plans;
    int count;
};

Products *products_open(Error *err) {
    Products *p = calloc(1, sizeof *p);
    cublasStatus_t s = p ? cublasLtCreate(&p->handle) : CUBLAS_STATUS_ALLOC_FAILED;
    if (s == CUBLAS_STATUS_SUCCESS) return p;
    free(p);
    cuda_refuse(err, ERR_UNAVAILABLE, "run.device: cuda: cuBLASLt does not start: %s",
                cublasLtGetStatusString(s));
    return NULL;
}

static void free_plan(Plan *plan) {
    if (plan->result) cublasLtMatrixLayoutDestroy(plan->result);
    if (plan->second) cublasLtMatrixLayoutDestroy(plan->second);
    if (plan->first) cublasLtMatrixLayoutDestroy(plan->first);
    if (plan->product) cublasLtMatmulDescDestroy(plan->product);
}

void products_close(Products *p) {
    if (!p) return;
    for (int i = 0; i < p->count; i++) free_plan(&p->plans[i]);
    free(p->plans);
    cublasLtDestroy(p->handle);
    free(p);
}

/* Bytes of the workspace that remain once its address is rounded up. */
static size_t workspace_bytes(void) { return cuda_products_workspace() - ALIGNMENT; }
uint64_t products_version(void) { return cublasLtGetVersion(); }

/* ---- plans ---- */

static cudaDataType_t type_of(Dtype t) { return t == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF; }

/* The largest power of two, up to ROWS_ALIGNMENT, that divides the number. */
static uint32_t alignment_of(uint64_t x) {
    uint32_t a = ROWS_ALIGNMENT;
    while (x % a) a /= 2;
    return a;
}

/* fp32 products are computed in fp32 on the CUDA cores: TF32 would give another loss curve. */
static cublasStatus_t describe_product(Plan *plan) {
    const ProductShape *s = &plan->shape;
    cublasOperation_t first = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t e = cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                           sizeof second);
    return e;
}

/* Rows, columns and leading dimension in the library's order. */
static cublasStatus_t describe_operands(Plan *plan) {
    const ProductShape *s = &plan->shape;
    cudaDataType_t ab = type_of(s->ab_type), c = type_of(s->c_type);
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    cublasStatus_t e = s->trans_b ? cublasLtMatrixLayoutCreate(&plan->first, ab, k, n, s->k)
                                  : cublasLtMatrixLayoutCreate(&plan->first, ab, n, k, s->n);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = s->trans_a ? cublasLtMatrixLayoutCreate(&plan->second, ab, m, k, s->m)
                       : cublasLtMatrixLayoutCreate(&plan->second, ab, k, m, s->k);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatrixLayoutCreate(&plan->result, c, n, m, s->ldc);
    return e;
}

typedef struct Wish {
    cublasLtMatmulPreferenceAttributes_t name;
    const void *value;
    size_t bytes;
} Wish;

static cublasStatus_t ask(const Products *p, const Plan *plan,
                          cublasLtMatmulHeuristicResult_t found[CANDIDATES], int *count) {
    cublasLtMatmulPreference_t wishes;
    const size_t workspace = workspace_bytes();
    const uint32_t in_order = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const ProductShape *s = &plan->shape;
    const Wish list[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &in_order, sizeof in_order},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &s->b_alignment, sizeof s->b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &s->a_alignment, sizeof s->a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &s->c_alignment, sizeof s->c_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &s->c_alignment, sizeof s->c_alignment}};
    cublasStatus_t e = cublasLtMatmulPreferenceCreate(&wishes);
    if (e != CUBLAS_STATUS_SUCCESS) return e;
    for (size_t i = 0; i < sizeof list / sizeof *list && e == CUBLAS_STATUS_SUCCESS; i++)
        e = cublasLtMatmulPreferenceSetAttribute(wishes, list[i].name, list[i].value, list[i].bytes);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulAlgoGetHeuristic(p->handle, plan->product, plan->first, plan->second, plan->result,
                                           plan->result, wishes, CANDIDATES, found, count);
    cublasLtMatmulPreferenceDestroy(wishes);
    return e;
}

static cublasStatus_t multiply(const Products *p, const Plan *plan, const Operands *o, const Workspace *w) {
    const float alpha = 1;
    return cublasLtMatmul(p->handle, plan->product, &alpha, o->b, plan->first, o->a, plan->second, &o->beta,
                          o->c, plan->result, o->c, plan->result, &plan->algorithm, w->memory, w->bytes,
                          w->stream);
}

/* ---- the trial of a split-K algorithm ---- */

/* An algorithm that does not report its splits is tried too. */
static bool splits_k(const cublasLtMatmulAlgo_t *algorithm) {
    int32_t splits = 1;
    size_t bytes;
    cublasStatus_t e = cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                            &splits, sizeof splits, &bytes);
    return e != CUBLAS_STATUS_SUCCESS || splits > 1;
}

static uint32_t bits_of(float x, Dtype t) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return t == DTYPE_F32 ? u : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static void fill(void *to, Dtype t, int64_t n, uint32_t bits) {
    for (int64_t i = 0; i < n; i++)
        if (t == DTYPE_F32)
            ((uint32_t *)to)[i] = bits;
        else
            ((uint16_t *)to)[i] = (uint16_t)bits;
}

/* Makes the product of ones in the first half of the workspace, where the same ones are both operands, and
 * copies it to `host`, where the ones fit as well. */
static cublasStatus_t multiply_ones(const Products *p, Plan *trial, const Workspace *w, void *host,
                                    size_t ones) {
    const ProductShape *s = &trial->shape;
    size_t half = w->bytes / 2, result = (size_t)(s->m * s->n) * dtype_bytes(s->c_type);
    const Workspace rest = {w->memory + half, half, w->stream};
    const Operands o = {.a = w->memory, .b = w->memory, .c = w->memory + ones};
    fill(host, s->ab_type, (int64_t)(ones / dtype_bytes(s->ab_type)), bits_of(1, s->ab_type));
    cudaError_t bad = cudaMemcpyAsync(w->memory, host, ones, cudaMemcpyHostToDevice, w->stream);
    cublasStatus_t e = describe_product(trial);
    if (e == CUBLAS_STATUS_SUCCESS) e = describe_operands(trial);
    if (e == CUBLAS_STATUS_SUCCESS && !bad) e = multiply(p, trial, &o, &rest);
    if (e == CUBLAS_STATUS_SUCCESS && !bad)
        bad = cudaMemcpyAsync(host, o.c, result, cudaMemcpyDeviceToHost, w->stream);
    if (!bad) bad = cudaStreamSynchronize(w->stream);
    return bad ? CUBLAS_STATUS_EXECUTION_FAILED : e;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The shape of the trial and, in *ones, the bytes of its larger operand, a multiple of ALIGNMENT; false if it
 * does not fit into half of the workspace. */
static bool trial_of(const ProductShape *s, size_t half, ProductShape *trial, size_t *ones) {
    for (int rows = TRIAL_MOST; rows >= TRIAL_LEAST; rows = rows > TRIAL_LEAST ? TRIAL_LEAST : 0) {
        *trial = *s;
        trial->m = least(s->m, rows), trial->n = trial->ldc = least(s->n, rows);
        size_t bytes = (size_t)(rows * s->k) * dtype_bytes(s->ab_type);
        *ones = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (*ones + (size_t)(rows * rows) * sizeof(float) <= half) return s->k < TRIAL_EXACT;
    }
    return false;
}

/* Whether each element of a product of ones is K, rounded to the result's type. */
static bool adds_all(const Products *p, const Plan *plan, const Workspace *w) {
    Plan trial = {.algorithm = plan->algorithm};
    const ProductShape *s = &trial.shape;
    size_t ones, each = dtype_bytes(plan->shape.c_type);
    if (!trial_of(&plan->shape, w->bytes / 2, &trial.shape, &ones)) return false;
    int64_t n = s->m * s->n;
    char *host = malloc(ones + (size_t)n * each), *want = malloc((size_t)n * each);
    bool right = host && want && multiply_ones(p, &trial, w, host, ones) == CUBLAS_STATUS_SUCCESS;
    if (right) fill(want, s->c_type, n, bits_of((float)s->k, s->c_type));
    right = right && memcmp(host, want, (size_t)n * each) == 0;
    free_plan(&trial);
    free(host), free(want);
    return right;
}

/* ---- the cache of plans ---- */

/* The first that the library stands by and that adds all of K. */
static cublasStatus_t choose_algorithm(const Products *p, Plan *plan, const Workspace *w) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count = 0;
    cublasStatus_t e = ask(p, plan, found, &count);
    for (int i = 0; i < count && e == CUBLAS_STATUS_SUCCESS; i++) {
        plan->algorithm = found[i].algo;
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        if (!splits_k(&plan->algorithm) || adds_all(p, plan, w)) return e;
    }
    return e == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : e;
}

static cublasStatus_t make_plan(Products *p, const ProductShape *s, const Workspace *w) {
    Plan plan = {.shape = *s};
    cublasStatus_t e = describe_product(&plan);
    if (e == CUBLAS_STATUS_SUCCESS) e = describe_operands(&plan);
    if (e == CUBLAS_STATUS_SUCCESS) e = choose_algorithm(p, &plan, w);
    Plan *plans =
        e == CUBLAS_STATUS_SUCCESS ? realloc(p->plans, (size_t)(p->count + 1) * sizeof *plans) : NULL;
    if (!plans) {
        free_plan(&plan);
        return e == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_ALLOC_FAILED : e;
    }
    p->plans = plans;
    p->plans[p->count++] = plan;
    return e;
}

static bool same_shape(const ProductShape *a, const ProductShape *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->ldc == b->ldc && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b && a->ab_type == b->ab_type && a->c_type == b->c_type &&
           a->c_alignment == b->c_alignment;
}

static cublasStatus_t find_plan(Products *p, const ProductShape *s, const Workspace *w, const Plan **out) {
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    *out = NULL;
    for (int i = 0; i < p->count && !*out; i++)
        if (same_shape(&p->plans[i].shape, s)) *out = &p->plans[i];
    if (!*out) e = make_plan(p, s, w);
    if (!*out && e == CUBLAS_STATUS_SUCCESS) *out = &p->plans[p->count - 1];
    return e;
}

/* A result inside wider rows may begin at any of their columns, which is the same on every mesh. */
static ProductShape shape_of(const GemmArgs *o) {
    size_t ab = dtype_bytes(o->ab_type), c = dtype_bytes(o->c_type);
    uint64_t column = o->ldc == o->n ? 0 : (uintptr_t)o->c;
    return (ProductShape){.trans_a = o->trans_a,
                          .trans_b = o->trans_b,
                          .m = o->m,
                          .n = o->n,
                          .k = o->k,
                          .ldc = o->ldc,
                          .ab_type = o->ab_type,
                          .c_type = o->c_type,
                          .a_alignment = alignment_of((uint64_t)(o->trans_a ? o->m : o->k) * ab),
                          .b_alignment = alignment_of((uint64_t)(o->trans_b ? o->k : o->n) * ab),
                          .c_alignment = alignment_of((uint64_t)o->ldc * c | column)};
}

static bool is_aligned(const GemmArgs *o, const ProductShape *s) {
    return (uintptr_t)o->a % s->a_alignment == 0 && (uintptr_t)o->b % s->b_alignment == 0 &&
           (uintptr_t)o->c % s->c_alignment == 0;
}

const char *products_run(Products *p, const GemmArgs *o, void *workspace, cudaStream_t stream) {
    const ProductShape s = shape_of(o);
    const Operands operands = {.a = o->a, .b = o->b, .c = o->c, .beta = o->accumulate ? 1 : 0};
    const Plan *plan;
    char *aligned = (char *)workspace + (ALIGNMENT - (uintptr_t)workspace % ALIGNMENT) % ALIGNMENT;
    const Workspace w = {aligned, workspace_bytes(), stream};
    if (!is_aligned(o, &s)) return "not called: a matrix is less aligned than its rows: a bug";
    cublasStatus_t e = find_plan(p, &s, &w, &plan);
    if (e == CUBLAS_STATUS_SUCCESS) e = multiply(p, plan, &operands, &w);
    if (e == CUBLAS_STATUS_NOT_SUPPORTED) return "it has no algorithm for this, or none that adds all of K";
    return e == CUBLAS_STATUS_SUCCESS ? NULL : cublasLtGetStatusString(e);
}
