/* Speed of the ops of a Mamba-2 layer: best time of a call, and nanoseconds of a core per token and head.
 *
 *     bench_mamba [KIND [THREADS [fp32|bf16 [TOKENS [HEADS [DOCUMENT]]]]]]
 *
 * DOCUMENT: tokens in each. Below 1,024 TOKENS each op runs only once, to check that it works. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/ops/ops.h"
#include "device/pool.h"

enum { CHANNELS = 64, STATE = 128, TAPS = 4 };

typedef struct Bench {
    Device d;
    Pool pool;
    Dtype c;
    MambaShape s;
    double seconds; /* of measuring, for each op */
    int64_t gates;  /* elements between tokens of the gate, x, B, C and dt */
    char *raw, *draw, *read, *dread, *y, *dy, *out;
    float *heads, *taps, *norm, *gradients, *starts, *carry, *scratch;
    int32_t *first;
} Bench;

static int64_t width(const Bench *b) { return b->s.heads * CHANNELS; }

static void layout(Bench *b) {
    size_t e = dtype_bytes(b->c), t = (size_t)b->s.tokens, states = (size_t)(width(b) * STATE);
    b->gates = 2 * width(b) + 2 * STATE + b->s.heads;
    b->s.row = width(b) + 2 * STATE, b->s.dt_row = b->gates;
    b->raw = pool_take(&b->pool, t * (size_t)b->gates * e);
    b->draw = pool_take(&b->pool, t * (size_t)b->gates * e);
    b->read = pool_take(&b->pool, t * (size_t)b->s.row * e);
    b->dread = pool_take(&b->pool, t * (size_t)b->s.row * e);
    b->y = pool_take(&b->pool, t * (size_t)width(b) * e);
    b->dy = pool_take(&b->pool, t * (size_t)width(b) * e);
    b->out = pool_take(&b->pool, t * (size_t)width(b) * e);
    b->heads = pool_take(&b->pool, (size_t)b->s.heads * 3 * 4);
    b->taps = pool_take(&b->pool, (size_t)b->s.row * TAPS * 4);
    b->norm = pool_take(&b->pool, (size_t)width(b) * 4);
    b->gradients = pool_take(&b->pool, (size_t)(b->s.row * TAPS) * 4);
    b->starts = pool_take(&b->pool, (size_t)mamba_starts(b->s.tokens) * states * 4);
    b->carry = pool_take(&b->pool, states * 4);
    b->scratch = pool_take(
        &b->pool,
        (size_t)(mamba_scratch_rows(b->s.tokens) * mamba_scratch_row(b->s.heads, b->s.groups, STATE)) * 4);
    b->first = pool_take(&b->pool, t * 4);
    DeviceNeeds needs = {.compute = b->c,
                         .tokens = b->s.tokens,
                         .hidden = width(b),
                         .intermediate = 1,
                         .vocab = 1,
                         .logits_rows = 1,
                         .attention = {.tokens = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
                         .splits = 1};
    b->d.scratch_size = b->d.runtime.scratch_bytes(&b->d, &needs);
    b->d.scratch = pool_take(&b->pool, b->d.scratch_size);
}

static void draw(Bench *b, void *to, int64_t n, Dtype c, double std, float low, uint64_t key) {
    float *numbers = malloc((size_t)n * sizeof *numbers);
    if (!numbers) abort();
    OP(&b->d, init_normal, .n = n, .key = key, .std = std, .lo = low, .hi = 3, .out = numbers);
    OP(&b->d, cast, n, numbers, DTYPE_F32, to, c);
    device_finish(&b->d, device_mark(&b->d, device_stream()), WAIT_RESULT);
    free(numbers);
}

static void fill(Bench *b, int64_t document) {
    int64_t t = b->s.tokens;
    draw(b, b->raw, t * b->gates, b->c, 1, -3, 1);
    draw(b, b->read, t * b->s.row, b->c, 1, -3, 2);
    draw(b, b->dy, t * width(b), b->c, 1, -3, 3);
    draw(b, b->heads, b->s.heads * 3, DTYPE_F32, 1, -3, 4);
    draw(b, b->taps, b->s.row * TAPS, DTYPE_F32, 0.5, -3, 5);
    draw(b, b->norm, width(b), DTYPE_F32, 1, -3, 6);
    for (int64_t i = 0; i < t; i++) b->first[i] = (int32_t)(i / document * document);
}

static char *at(const Bench *b, char *tensor, int64_t i) { return tensor + (size_t)i * dtype_bytes(b->c); }
static MambaInputs inputs(Bench *b) {
    return (MambaInputs){b->read,
                         at(b, b->read, width(b)),
                         at(b, b->read, width(b) + STATE),
                         at(b, b->raw, b->gates - b->s.heads),
                         b->heads,
                         b->heads + b->s.heads,
                         b->heads + 2 * b->s.heads};
}
static ConvShape conv(const Bench *b) { return (ConvShape){b->s.tokens, b->s.row, b->gates, TAPS}; }
static GatedNorm gate(const Bench *b) {
    return (GatedNorm){b->s.tokens, width(b), width(b), b->gates, 1e-5f};
}

static void convolve(Bench *b) {
    Device *d = &b->d;
    OP(d, conv_forward, conv(b), at(b, b->raw, width(b)), b->taps, b->first, NULL, b->dread, b->c);
}
static void convolve_back(Bench *b) {
    Device *d = &b->d;
    OP(d, conv_backward, conv(b), at(b, b->raw, width(b)), b->taps, b->first, b->read,
       at(b, b->draw, width(b)), b->gradients, b->c);
}
static void scan(Bench *b) {
    Device *d = &b->d;
    OP(d, mamba_forward, b->s, inputs(b), b->first, NULL, b->starts, b->y, b->c);
}
static void scan_back(Bench *b) {
    Device *d = &b->d;
    MambaGradients out = {b->dread,
                          at(b, b->dread, width(b)),
                          at(b, b->dread, width(b) + STATE),
                          at(b, b->draw, b->gates - b->s.heads),
                          b->gradients,
                          b->gradients + b->s.heads,
                          b->gradients + 2 * b->s.heads};
    OP(d, mamba_backward, b->s, inputs(b), b->first, b->starts, b->dy, b->carry, b->scratch, out, b->c);
}
static void norm(Bench *b) {
    Device *d = &b->d;
    OP(d, gated_norm_forward, gate(b), b->y, b->raw, b->norm, b->out, b->c);
}
static void norm_back(Bench *b) {
    Device *d = &b->d;
    OP(d, gated_norm_backward, gate(b), b->y, b->raw, b->norm, b->dy, b->out, b->draw, b->gradients, b->c);
}

static void measure(Bench *b, const char *name, void (*run)(Bench *)) {
    double best = HUGE_VAL, end = clock_seconds() + b->seconds;
    do {
        double start = clock_seconds();
        run(b);
        device_finish(&b->d, device_mark(&b->d, device_stream()), WAIT_RESULT);
        best = fmin(best, clock_seconds() - start);
    } while (clock_seconds() < end);
    printf("%-24s %9.3f ms %8.0f ns\n", name, best * 1e3,
           best * 1e9 * b->d.threads / (double)(b->s.tokens * b->s.heads));
}

int main(int argc, char **argv) {
    static Bench b;
    Error err;
    if (device_open(&b.d, argc > 1 ? argv[1] : "cpu", 0, argc > 2 ? atoi(argv[2]) : 0, &err) != OK) {
        fprintf(stderr, "%s\n", err.message);
        return err.code;
    }
    b.c = argc > 3 && strcmp(argv[3], "fp32") == 0 ? DTYPE_F32 : DTYPE_BF16;
    b.s = (MambaShape){.tokens = argc > 4 ? atoll(argv[4]) : 2048,
                       .heads = argc > 5 ? atoll(argv[5]) : 10,
                       .groups = 1,
                       .head_dim = CHANNELS,
                       .state = STATE};
    int64_t document = argc > 6 ? atoll(argv[6]) : 1024;
    if (b.s.tokens < 1 || b.s.tokens > 1 << 20 || b.s.heads < 1 || b.s.heads > 1024 || document < 1) {
        fprintf(stderr, "bench_mamba: TOKENS must be 1 to %d, HEADS 1 to 1024, DOCUMENT at least 1\n",
                1 << 20);
        return ERR_USAGE;
    }
    b.seconds = b.s.tokens < 1024 ? 0 : 0.5;
    b.pool.name = "bench";
    layout(&b);
    if (pool_commit(&b.pool, &b.d, &err) != OK) {
        fprintf(stderr, "%s\n", err.message);
        return err.code;
    }
    layout(&b);
    fill(&b, document);
    printf("%s on %s, %d threads, %s, %lld tokens, %lld heads\n", b.d.name, b.d.processor, b.d.threads,
           dtype_name(b.c), (long long)b.s.tokens, (long long)b.s.heads);
    measure(&b, "convolution", convolve);
    measure(&b, "convolution gradient", convolve_back);
    measure(&b, "scan", scan);
    measure(&b, "scan gradient", scan_back);
    measure(&b, "gated norm", norm);
    measure(&b, "gated norm gradient", norm_back);
    pool_free(&b.pool);
    device_close(&b.d);
    return 0;
}
