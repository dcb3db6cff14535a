/* The products of experts with rows of many sources (mesh.ep): all sources in one call, and one source after
 * the other with gradients added in the canonical tree as they come. The bits are the same; this compares the
 * times.
 *
 *     bench_experts [KIND [THREADS [fp32|bf16 [SOURCES [ROWS [EXPERTS [HIDDEN [INTER]]]]]]]]
 *
 * KIND: cuda, or a CPU kind. ROWS: of a source and expert. EXPERTS: of this rank. The widths of OLMoE if not
 * given. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/tree.h"
#include "device/ops/experts.h"
#include "device/ops/memory.h"
#include "device/ops/ops.h"
#include "device/pool.h"

enum { PARTIALS = 7 }; /* for SPLITS_MAX sources */

typedef struct Bench {
    Device d;
    Dtype c;
    int sources, experts;
    int64_t hidden, inter, rows;
    double seconds; /* of measuring, for each product */
    Pool pool;
    char *x, *y;   /* [rows, the wider of hidden and 2 inter] */
    char *weights; /* [experts, 2 inter, hidden] */
    float *gradients[PARTIALS];
    int32_t *first;
} Bench;

/* What is measured: a product of rows, [rows, k] to [rows, n], or the gradient of its weights. */
typedef struct Work {
    const char *name;
    int64_t n, k;
    bool back, gradient;
} Work;

static size_t matrices(const Bench *b) { return (size_t)(b->experts * 2 * b->inter * b->hidden); }

static void layout(Bench *b) {
    int64_t wide = b->hidden > 2 * b->inter ? b->hidden : 2 * b->inter;
    b->x = pool_take(&b->pool, (size_t)(b->rows * wide) * dtype_bytes(b->c));
    b->y = pool_take(&b->pool, (size_t)(b->rows * wide) * dtype_bytes(b->c));
    b->weights = pool_take(&b->pool, matrices(b) * dtype_bytes(b->c));
    for (int i = 0; i < PARTIALS; i++) b->gradients[i] = pool_take(&b->pool, matrices(b) * sizeof(float));
    b->first = pool_take(&b->pool, (size_t)(b->sources * b->experts + 1) * sizeof *b->first);
    DeviceNeeds needs = {.compute = b->c,
                         .sources = b->sources,
                         .attention = {.tokens = 1, .heads = 1, .kv_heads = 1, .head_dim = 2}};
    b->d.scratch_size = b->d.runtime.scratch_bytes(&b->d, &needs);
    b->d.scratch = pool_take(&b->pool, b->d.scratch_size);
}

static void wait_for(Bench *b) { device_finish(&b->d, device_mark(&b->d, device_stream()), WAIT_RESULT); }

static void fill(Bench *b, int64_t each) {
    int runs = b->sources * b->experts;
    int32_t *first = malloc((size_t)(runs + 1) * sizeof *first);
    for (int i = 0; i <= runs; i++) first[i] = (int32_t)(i * each);
    OP(&b->d, upload, b->first, first, (size_t)(runs + 1) * sizeof *first);
    int64_t wide = b->hidden > 2 * b->inter ? b->hidden : 2 * b->inter;
    float *some = b->gradients[0];
    int64_t most = (int64_t)matrices(b);
    OP(&b->d, fill, most, 0.01f, some);
    OP(&b->d, cast, most, some, DTYPE_F32, b->weights, b->c);
    for (int64_t at = 0, n; at < b->rows * wide; at += n) {
        n = b->rows * wide - at < most ? b->rows * wide - at : most;
        OP(&b->d, cast, n, some, DTYPE_F32, b->x + (size_t)at * dtype_bytes(b->c), b->c);
        OP(&b->d, cast, n, some, DTYPE_F32, b->y + (size_t)at * dtype_bytes(b->c), b->c);
    }
    wait_for(b);
    free(first);
}

/* From `sources` sources, beginning with `from`. */
static void call(Bench *b, const Work *w, int from, int sources, float *gradient) {
    ExpertRows e = {.rows = b->rows / b->sources * sources,
                    .experts = b->experts,
                    .first = b->first + from * b->experts,
                    .step = w->n * w->k,
                    .sources = sources};
    if (w->gradient)
        OP(&b->d, grouped_gemm_wgrad, e, w->n, w->k, b->y, b->x, b->c, gradient, false);
    else
        OP(&b->d, grouped_gemm, e, !w->back, w->n, w->k, b->x, b->weights, b->c, b->y, b->c, NO_SPLIT);
}

static void together(Bench *b, const Work *w) { call(b, w, 0, b->sources, b->gradients[0]); }

/* As engine/gradients.c adds the gradients of single sources. */
static void one_by_one(Bench *b, const Work *w) {
    for (int s = 0; s < b->sources; s++) {
        int at = tree_waiting(s), carries = tree_carries(s);
        call(b, w, s, 1, b->gradients[at]);
        for (int parts; w->gradient && carries > 0; carries -= parts - 1, at -= parts - 1) {
            const float *terms[3];
            parts = tree_carry_parts(carries);
            for (int i = 0; i < parts; i++) terms[i] = b->gradients[at - i];
            OP(&b->d, sum_partials, b->experts * w->n * w->k, parts, terms, b->gradients[at - parts + 1]);
        }
    }
}

static double best_time(Bench *b, const Work *w, void (*run)(Bench *b, const Work *w)) {
    double best = INFINITY, end = clock_seconds() + b->seconds;
    do {
        double start = clock_seconds();
        run(b, w);
        wait_for(b);
        best = fmin(best, clock_seconds() - start);
    } while (clock_seconds() < end);
    return best;
}

static void measure(Bench *b) {
    const Work works[] = {{"gate and up", 2 * b->inter, b->hidden, false, false},
                          {"down", b->hidden, b->inter, false, false},
                          {"down dX", b->inter, b->hidden, true, false},
                          {"gate and up dX", b->hidden, 2 * b->inter, true, false},
                          {"down dW", b->hidden, b->inter, false, true},
                          {"gate and up dW", 2 * b->inter, b->hidden, false, true}};
    double all[2] = {0, 0};
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        double one = best_time(b, &works[i], one_by_one), joined = best_time(b, &works[i], together);
        double flops = 2.0 * (double)b->rows * (double)works[i].n * (double)works[i].k;
        printf("%-16s one by one %9.2f ms %8.1f GFLOP/s, together %9.2f ms %8.1f GFLOP/s, ratio %.2f\n",
               works[i].name, one * 1e3, flops / one / 1e9, joined * 1e3, flops / joined / 1e9, one / joined);
        all[0] += one, all[1] += joined;
    }
    printf("%-16s one by one %9.2f ms, together %9.2f ms, ratio %.2f\n", "all", all[0] * 1e3, all[1] * 1e3,
           all[0] / all[1]);
}

static int refuse(const Error *err) {
    fprintf(stderr, "%s\n", err->message);
    return err->code;
}

static bool choose_sizes(Bench *b, int argc, char **argv, int64_t *each) {
    b->c = argc > 3 && strcmp(argv[3], "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    b->sources = argc > 4 ? atoi(argv[4]) : 64;
    *each = argc > 5 ? atoll(argv[5]) : 128;
    b->experts = argc > 6 ? atoi(argv[6]) : 1;
    b->hidden = argc > 7 ? atoll(argv[7]) : 2048, b->inter = argc > 8 ? atoll(argv[8]) : 1024;
    b->rows = b->sources * b->experts * *each, b->seconds = b->hidden < 256 ? 0 : 1.5;
    return b->sources >= 1 && b->sources <= SPLITS_MAX && *each >= 1 && *each <= 1 << 16 && b->experts >= 1 &&
           b->experts <= 256 && b->hidden >= 1 && b->hidden <= 1 << 15 && b->inter >= 1 &&
           b->inter <= 1 << 15;
}

int main(int argc, char **argv) {
    static Bench b;
    Error err;
    int64_t each;
    if (device_open(&b.d, argc > 1 ? argv[1] : "cpu", 0, argc > 2 ? atoi(argv[2]) : 0, &err) != OK)
        return refuse(&err);
    if (!choose_sizes(&b, argc, argv, &each)) {
        fprintf(stderr,
                "bench_experts: SOURCES must be 1 to %d, ROWS 1 to 65536, EXPERTS 1 to 256, widths 1 to "
                "32768\n",
                SPLITS_MAX);
        return ERR_USAGE;
    }
    b.pool.name = "bench";
    layout(&b);
    if (pool_commit(&b.pool, &b.d, &err) != OK) return refuse(&err);
    layout(&b);
    fill(&b, each);
    printf("%s on %s, %d threads, %s, %d sources of %lld rows of each of %d experts, %lld to %lld\n",
           b.d.name, b.d.processor, b.d.threads, dtype_name(b.c), b.sources, (long long)each, b.experts,
           (long long)b.hidden, (long long)b.inter);
    measure(&b);
    pool_free(&b.pool);
    device_close(&b.d);
    return 0;
}
