/* Speed of attention alone, in bf16, at the shapes for which cuDNN's speed is published. Reports TFLOP/s,
 * counting the causal half once and the backward pass as 2.5 forward passes, and the fraction of cuDNN's
 * speed.
 *
 *     bench_attention [KIND [LONGEST [HEADS]]]     the longest sequence, 32768; query heads, 64
 *
 * cuDNN 9.19 on an H200, 64 query heads that share 8 key heads: NVIDIA's benchmark in cudnn-frontend. Its
 * backward pass there is not deterministic; this one is. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "device/ops/attention.h"
#include "device/ops/memory.h"
#include "device/pool.h"

enum { GROUP = 8, WINDOW = 1024, SHORTEST = 2048, BLOCK = 1 << 20 };

/* TFLOP/s at 2,048, 4,096, ... tokens; 0: not published. */
typedef struct Case {
    int head_dim;
    int64_t window;
    double forward[5], backward[5];
} Case;
static const Case cases[] = {{128, 0, {484, 591, 644, 673, 688}, {370, 474, 541, 579, 581}},
                             {64, 0, {0}, {0}},
                             {64, WINDOW, {0}, {0}}};

typedef struct Bench {
    Device d;
    Pool pool;
    AttentionShape s;
    char *qkv, *out, *dout, *dqkv;
    float *lse;
    int32_t *first; /* zeros: one document */
} Bench;

static size_t elements(int64_t rows, int64_t wide) { return (size_t)(rows * wide) * 2; }

static void layout(Bench *b, int64_t tokens, int heads, int dim) {
    int64_t wide = (heads + 2 * (int64_t)(heads / GROUP)) * dim, results = (int64_t)heads * dim;
    DeviceNeeds needs = {
        .compute = DTYPE_BF16,
        .tokens = tokens,
        .hidden = results,
        .intermediate = 1,
        .vocab = 1,
        .logits_rows = 1,
        .attention = {.tokens = tokens, .heads = heads, .kv_heads = heads / GROUP, .head_dim = dim}};
    b->qkv = pool_take(&b->pool, elements(tokens, wide));
    b->dqkv = pool_take(&b->pool, elements(tokens, wide));
    b->out = pool_take(&b->pool, elements(tokens, results));
    b->dout = pool_take(&b->pool, elements(tokens, results));
    b->lse = pool_take(&b->pool, (size_t)(tokens * heads) * sizeof *b->lse);
    b->first = pool_take(&b->pool, (size_t)tokens * sizeof *b->first);
    b->d.scratch_size = b->d.runtime.scratch_bytes(&b->d, &needs);
    b->d.scratch = pool_take(&b->pool, b->d.scratch_size);
}

/* Repeats a block of random numbers: with zeros a GPU would be faster than in practice. */
static void fill_random(Device *d, char *to, size_t bytes, float *block) {
    size_t part;
    OP(d, init_normal, .n = BLOCK, .key = 1, .std = 1, .lo = -3, .hi = 3, .out = block);
    for (size_t done = 0; done < bytes; done += part) {
        part = bytes - done < BLOCK * 2 ? bytes - done : BLOCK * 2;
        OP(d, cast, (int64_t)(part / 2), block, DTYPE_F32, to + done, DTYPE_BF16);
    }
}

static void forward(Bench *b) {
    Device *d = &b->d;
    OP(d, attention_forward, .s = b->s, .r = attention_whole(b->s), .q = b->qkv,
       .kv = b->qkv + elements(b->s.heads, b->s.head_dim), .first_key = b->first, .out = b->out,
       .lse = b->lse, .c = DTYPE_BF16);
}
static void backward(Bench *b) {
    Device *d = &b->d;
    size_t keys = elements(b->s.heads, b->s.head_dim);
    OP(d, attention_backward, .s = b->s, .r = attention_whole(b->s), .q = b->qkv, .kv = b->qkv + keys,
       .first_key = b->first, .out = b->out, .lse = b->lse, .dout = b->dout, .dq = b->dqkv,
       .dkv = b->dqkv + keys, .c = DTYPE_BF16);
}

static double seconds_of(Bench *b, void (*run)(Bench *), int calls) {
    double begun = clock_seconds();
    for (int i = 0; i < calls; i++) run(b);
    device_finish(&b->d, device_mark(&b->d, device_stream()), WAIT_RESULT);
    return (clock_seconds() - begun) / calls;
}
/* The best of five measurements, each of as many calls as take about 20 ms, so that the host's share is
 * small. */
static double best_of(Bench *b, void (*run)(Bench *)) {
    double best = seconds_of(b, run, 1), first = seconds_of(b, run, 1);
    int calls = first > 0.02 ? 1 : (int)(0.02 / first) + 1;
    for (int i = 0; i < 5; i++) {
        double took = seconds_of(b, run, calls);
        if (took < best) best = took;
    }
    return best;
}

/* Query-key pairs that are not masked, over all heads. */
static double pairs_of(AttentionShape s) {
    double t = (double)s.tokens, w = s.window > 0 && s.window < s.tokens ? (double)s.window : t;
    return s.heads * (w * (w + 1) / 2 + (t - w) * w);
}

static void report(const Bench *b, const char *name, double seconds, double flops, double published) {
    double rate = flops / seconds / 1e12;
    printf("%-8s D %3d, T %6lld, window %4lld %10.3f ms %8.2f TFLOP/s", name, b->s.head_dim,
           (long long)b->s.tokens, (long long)b->s.window, seconds * 1e3, rate);
    if (published > 0) printf("  %5.1f%% of cuDNN's %.0f", 100 * rate / published, published);
    printf("\n");
}

static void measure(Bench *b, const Case *c, int64_t tokens, int heads, int i) {
    bool known = heads == 64 && tokens == (int64_t)SHORTEST << i;
    b->s = (AttentionShape){.tokens = tokens,
                            .heads = heads,
                            .kv_heads = heads / GROUP,
                            .head_dim = c->head_dim,
                            .window = c->window};
    double flops = 4.0 * c->head_dim * pairs_of(b->s);
    report(b, "forward", best_of(b, forward), flops, known ? c->forward[i] : 0);
    report(b, "backward", best_of(b, backward), 2.5 * flops, known ? c->backward[i] : 0);
}

int main(int argc, char **argv) {
    static Bench b;
    Error err;
    int64_t longest = argc > 2 ? atoll(argv[2]) : (int64_t)SHORTEST << 4;
    int heads = argc > 3 ? atoi(argv[3]) : 64;
    if (longest < 1 || longest > (int64_t)SHORTEST << 4 || heads < GROUP || heads % GROUP != 0) {
        fprintf(stderr, "bench_attention: LONGEST must be 1 to %d, HEADS a multiple of %d\n", SHORTEST << 4,
                GROUP);
        return ERR_USAGE;
    }
    if (device_open(&b.d, argc > 1 ? argv[1] : "cuda", 0, 0, &err) != OK) {
        fprintf(stderr, "%s\n", err.message);
        return err.code;
    }
    b.pool.name = "bench";
    float *block = NULL;
    for (int pass = 0; pass < 2; pass++) { /* dry, then real */
        block = pool_take(&b.pool, (size_t)BLOCK * sizeof *block);
        layout(&b, longest, heads, cases[0].head_dim);
        if (pass == 0 && pool_commit(&b.pool, &b.d, &err) != OK) {
            fprintf(stderr, "%s\n", err.message);
            return err.code;
        }
    }
    fill_random(&b.d, b.qkv, elements(longest, (heads + 2 * (int64_t)(heads / GROUP)) * cases[0].head_dim),
                block);
    fill_random(&b.d, b.dout, elements(longest, (int64_t)heads * cases[0].head_dim), block);
    printf("%s on %s, bf16, %d heads, %d of keys\n", b.d.name, b.d.processor, heads, heads / GROUP);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int i = 0; i < 5 && (i == 0 || (int64_t)SHORTEST << i <= longest); i++) {
            int64_t tokens = (int64_t)SHORTEST << i;
            measure(&b, &cases[c], tokens < longest ? tokens : longest, heads, i);
        }
    pool_free(&b.pool);
    device_close(&b.d);
    return 0;
}
