/* A deferred CPU: ops are queued with copies of their arguments, and run when something waits for them.
 *
 *     op --> queue of its stream --(device_finish: until the event is reached)--> the CPU's own op
 *
 * Each stream is a queue of calls, run in order. Which stream goes next is drawn from the seed, among those
 * whose next call does not wait for an event of another; what nobody waits for may stay where it is. So a
 * program that reads too early, forgets an event, or counts on the order of two streams, gets other results.
 *
 *  1. Arguments, memory given to `upload` and lists of parts are copied when a call is queued.
 *  2. Host memory given to `download` is filled with NaN when the call is queued.
 *  3. Memory is given back when every call has run: some may still want it.
 *  4. An event is number * DEVICE_STREAMS + stream: reached when so many calls of that stream have run.
 *  5. One mutex guards it all, also while a call runs: several threads may queue and wait.
 *
 * It stands in for a GPU, whose queues run ahead and behind of the host as they like, on machines that
 * have none. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/pool.h"

typedef void Run(Device *d, const void *arguments);

/* In a queue: this, then the arguments. */
typedef struct Call {
    size_t bytes; /* of both */
    Run *run;     /* NULL: nothing to run, but an event to wait for */
    Event after;
} Call;

typedef struct Queue {
    char *calls;
    size_t first, end, room; /* bytes; calls that have run are in front of first */
    uint64_t queued, run;    /* numbers of calls */
} Queue;

struct Deferred {
    Ops ops; /* the CPU's own */
    DeviceRuntime runtime;
    Queue queues[DEVICE_STREAMS];
    uint64_t seed, draws;
    pthread_mutex_t mutex;
};

/* ---- queueing ---- */

/* One stretch of memory a queue, that grows to the longest wait of a run and then stays. It starts again
 * at its beginning whenever it has run empty. Arguments are rounded up in length, so that the call behind
 * them is aligned. The address that is returned is good until the next call is added. */
static void *add_call(Queue *q, Run *run, Event after, size_t bytes) {
    size_t whole = sizeof(Call) + (bytes + 15) / 16 * 16;
    if (q->first == q->end) q->first = q->end = 0;
    if (q->end + whole > q->room) {
        q->room = 2 * (q->end + whole);
        q->calls = mem_grow(q->calls, q->room);
    }
    Call *call = (Call *)(void *)(q->calls + q->end);
    *call = (Call){.bytes = whole, .run = run, .after = after};
    q->end += whole;
    q->queued++;
    return call + 1;
}

/* Arguments, and what they point to on the host, right behind them: `bytes` is a struct's size, so `a + 1`
 * finds the rest when the call runs. The stream is the calling thread's. */
static void queue_call(Device *d, Run *run, const void *arguments, size_t bytes, const void *more,
                       size_t more_bytes) {
    Deferred *w = d->deferred;
    pthread_mutex_lock(&w->mutex);
    char *to = add_call(&w->queues[device_stream()], run, 0, bytes + more_bytes);
    memcpy(to, arguments, bytes);
    if (more_bytes) memcpy(to + bytes, more, more_bytes);
    pthread_mutex_unlock(&w->mutex);
}

/* ---- running ---- */

/* Calls that have run are counted, never their addresses: an event outlives its call. 0 is of no stream's
 * call and always reached. */
static bool reached(const Deferred *w, Event e) {
    return w->queues[e % DEVICE_STREAMS].run >= e / DEVICE_STREAMS;
}

static const Call *next_call(const Queue *q) {
    return q->first < q->end ? (const Call *)(const void *)(q->calls + q->first) : NULL;
}

/* One call of a stream that can go on, drawn among those. The mutex is held all the time, so the queue's
 * memory does not move under the arguments. */
static void run_one(Device *d) {
    Deferred *w = d->deferred;
    Queue *ready[DEVICE_STREAMS];
    uint64_t count = 0;
    for (int s = 0; s < DEVICE_STREAMS; s++) {
        const Call *call = next_call(&w->queues[s]);
        if (call && reached(w, call->after)) ready[count++] = &w->queues[s];
    }
    CHECK(count > 0); /* else streams wait for each other, or for an event of another device */
    Queue *q = ready[rng_u64(w->seed, w->draws++) % count];
    const Call *call = next_call(q);
    if (call->run) call->run(d, call + 1);
    q->first += call->bytes;
    q->run++;
}

/* Runs only until the event is reached: what else is queued stays, so that a host that reads too early finds
 * NaN. The guard is opened here, since ops run here and not where they were called. */
static void finish(Device *d, Event e) {
    Deferred *w = d->deferred;
    pthread_mutex_lock(&w->mutex);
    pool_unlock_all();
    while (!reached(w, e)) run_one(d);
    pool_lock_all();
    pthread_mutex_unlock(&w->mutex);
}

/* Of the last call that is queued now; nothing has to be queued for it. */
static Event mark(Device *d, DeviceStream s) {
    Deferred *w = d->deferred;
    pthread_mutex_lock(&w->mutex);
    Event e = w->queues[s].queued * DEVICE_STREAMS + (Event)s;
    pthread_mutex_unlock(&w->mutex);
    return e;
}

/* A call without an op: it holds up its stream, no other. */
static void follow(Device *d, DeviceStream s, Event e) {
    Deferred *w = d->deferred;
    pthread_mutex_lock(&w->mutex);
    add_call(&w->queues[s], NULL, e, 0);
    pthread_mutex_unlock(&w->mutex);
}

/* ---- memory ---- */

/* Stream after stream: finishing one may run calls of others, and what has run stays so. */
static void finish_all(Device *d) {
    for (int s = 0; s < DEVICE_STREAMS; s++) finish(d, mark(d, (DeviceStream)s));
}

static void give(Device *d, void *memory, size_t bytes) {
    finish_all(d);
    d->deferred->runtime.give(d, memory, bytes);
}

static void host_give(Device *d, void *host) {
    finish_all(d);
    d->deferred->runtime.host_give(d, host);
}

/* ---- ops whose arguments are all there is to copy ---- */

/* EACH(m, (a, b), (c, d), ...) is m(a, b) m(c, d) ..., for up to 13. */
#define EACH_1(m, p) m p
#define EACH_2(m, p, ...) m p EACH_1(m, __VA_ARGS__)
#define EACH_3(m, p, ...) m p EACH_2(m, __VA_ARGS__)
#define EACH_4(m, p, ...) m p EACH_3(m, __VA_ARGS__)
#define EACH_5(m, p, ...) m p EACH_4(m, __VA_ARGS__)
#define EACH_6(m, p, ...) m p EACH_5(m, __VA_ARGS__)
#define EACH_7(m, p, ...) m p EACH_6(m, __VA_ARGS__)
#define EACH_8(m, p, ...) m p EACH_7(m, __VA_ARGS__)
#define EACH_9(m, p, ...) m p EACH_8(m, __VA_ARGS__)
#define EACH_10(m, p, ...) m p EACH_9(m, __VA_ARGS__)
#define EACH_11(m, p, ...) m p EACH_10(m, __VA_ARGS__)
#define EACH_12(m, p, ...) m p EACH_11(m, __VA_ARGS__)
#define EACH_13(m, p, ...) m p EACH_12(m, __VA_ARGS__)
#define COUNT(...) COUNT_OF(__VA_ARGS__, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define COUNT_OF(a, b, c, d, e, f, g, h, i, j, k, l, m, n, ...) n
#define JOIN(a, b) JOIN_AGAIN(a, b)
#define JOIN_AGAIN(a, b) a##b
#define EACH(m, ...) JOIN(EACH_, COUNT(__VA_ARGS__))(m, __VA_ARGS__)

#define FIELD(type, name) type name;
#define PARAMETER(type, name) , type name
#define VALUE(type, name) name,
#define STORED(type, name) , a->name

/* The op as it is called, the op as it runs, and what lies in the queue between them. */
#define DEFERRED(slot, ...)                                                                                \
    typedef struct slot##_arguments {                                                                      \
        EACH(FIELD, __VA_ARGS__)                                                                           \
    } slot##_arguments;                                                                                    \
    static void run_##slot(Device *d, const void *arguments) {                                             \
        const slot##_arguments *a = arguments;                                                             \
        d->deferred->ops.slot(d EACH(STORED, __VA_ARGS__));                                                \
    }                                                                                                      \
    static void defer_##slot(Device *d EACH(PARAMETER, __VA_ARGS__)) {                                     \
        queue_call(d, run_##slot, &(slot##_arguments){EACH(VALUE, __VA_ARGS__)}, sizeof(slot##_arguments), \
                   NULL, 0);                                                                               \
    }

/* Slot, then type and name of each argument as in struct Ops; the assignments below hold them to that. */
/* clang-format off */
#define PLAIN_OPS(X)                                                                                        \
    X(gemm, (bool, trans_a), (bool, trans_b), (int64_t, m), (int64_t, n), (int64_t, k), (const void *, a),  \
      (const void *, b), (Dtype, ab_type), (void *, c), (Dtype, c_type), (int64_t, ldc),                    \
      (bool, accumulate), (Leaves, leaves))                                                                 \
    X(embed_forward, (int64_t, tokens), (int64_t, hidden), (const int32_t *, ids), (const void *, table),   \
      (EmbedRows, rows), (float, scale), (bool, add), (void *, out), (Dtype, c))                            \
    X(embed_backward, (int64_t, tokens), (int64_t, hidden), (const int32_t *, ids), (const void *, dout),   \
      (EmbedRows, rows), (float, scale), (float *, dtable), (Dtype, c))                                     \
    X(norm_forward, (NormKind, kind), (int64_t, tokens), (int64_t, hidden), (float, eps),                   \
      (const void *, a), (const void *, b), (const float *, w), (const float *, bias), (void *, sum),       \
      (void *, y), (float *, rstd), (Dtype, c))                                                             \
    X(norm_backward, (NormKind, kind), (int64_t, tokens), (int64_t, hidden), (const void *, x),             \
      (const float *, w), (const float *, rstd), (const void *, dy), (void *, dx), (bool, add),             \
      (float *, dw), (int64_t, leaf), (Dtype, c))                                                           \
    X(qk_norm_forward, (AttentionShape, s), (QkRows, rows), (NormKind, kind), (float, eps),                 \
      (const void *, raw), (const float *, wq), (const float *, wk), (void *, out), (Dtype, c))             \
    X(qk_norm_backward, (AttentionShape, s), (QkRows, rows), (NormKind, kind), (float, eps),                \
      (const void *, raw), (const float *, wq), (const float *, wk), (void *, dqkv), (float *, dwq),        \
      (float *, dwk), (int, leaves), (Dtype, c))                                                            \
    X(qk_norm_sums, (AttentionShape, s), (Leaves, leaves), (NormKind, kind), (const void *, raw),           \
      (const float *, wq), (const float *, wk), (const void *, dqkv), (float *, sums), (Dtype, c))          \
    X(rope, (AttentionShape, s), (void *, qkv), (const int32_t *, positions), (const float *, cos_sin),     \
      (bool, inverse), (Dtype, c))                                                                          \
    X(bias_forward, (int64_t, tokens), (int64_t, n), (void *, y), (const float *, bias), (Dtype, c))        \
    X(bias_backward, (int64_t, tokens), (int64_t, n), (const void *, dy), (float *, db), (int64_t, leaf),   \
      (Dtype, c))                                                                                           \
    X(attention_forward, (AttentionShape, s), (AttentionRun, r), (const void *, q), (const void *, kv),     \
      (const int32_t *, first_key), (void *, out), (float *, lse), (Dtype, c))                              \
    X(attention_backward, (AttentionShape, s), (AttentionRun, r), (const void *, q), (const void *, kv),    \
      (const int32_t *, first_key), (const void *, out), (const float *, lse), (const void *, dout),        \
      (void *, dq), (void *, dkv), (Dtype, c))                                                              \
    X(attention_decode, (AttentionShape, s), (int64_t, start), (const void *, qkv),                         \
      (const void *, k_cache), (const void *, v_cache), (void *, out), (Dtype, c))                          \
    X(latent_forward, (LatentShape, s), (const void *, q), (const void *, own), (const void *, key),        \
      (const int32_t *, positions), (const float *, cos_sin), (void *, qkv), (Dtype, c))                    \
    X(latent_backward, (LatentShape, s), (const void *, dqkv), (const int32_t *, positions),                \
      (const float *, cos_sin), (void *, dq), (void *, down), (void *, dkey), (Dtype, c))                   \
    X(sinks_backward, (AttentionShape, s), (const void *, out), (const float *, lse), (const void *, dout), \
      (float *, dsinks), (Dtype, c))                                                                        \
    X(activation_forward, (Activation, f), (bool, gated), (int64_t, tokens), (int64_t, inter),              \
      (const void *, x), (void *, act), (Dtype, c))                                                         \
    X(activation_backward, (Activation, f), (bool, gated), (int64_t, tokens), (int64_t, inter),             \
      (const void *, x), (const void *, dact), (void *, dx), (void *, act), (Dtype, c))                     \
    X(scale, (int64_t, rows), (int64_t, n), (float, factor), (const void *, in), (int64_t, ldi),            \
      (void *, out), (Dtype, c))                                                                            \
    X(softcap, (int64_t, n), (float, cap), (void *, x), (Dtype, c))                                         \
    X(add, (int64_t, n), (const void *, a), (const void *, b), (void *, out), (Dtype, c))                   \
    X(conv_forward, (ConvShape, s), (const void *, x), (const float *, w), (const int32_t *, first_key),    \
      (float *, tail), (void *, y), (Dtype, c))                                                             \
    X(conv_backward, (ConvShape, s), (const void *, x), (const float *, w), (const int32_t *, first_key),   \
      (const void *, dy), (void *, dx), (float *, dw), (Dtype, c))                                          \
    X(scan_forward, (ScanShape, s), (ScanInputs, in), (const int32_t *, first_key), (float *, state),       \
      (float *, h), (Dtype, c))                                                                             \
    X(scan_gate, (ScanShape, s), (const void *, gate), (const float *, h), (void *, out), (Dtype, c))       \
    X(scan_backward, (ScanShape, s), (ScanInputs, in), (const int32_t *, first_key), (const float *, h),    \
      (const void *, dout), (ScanGradients, out), (Dtype, c))                                               \
    X(mamba_forward, (MambaShape, s), (MambaInputs, in), (const int32_t *, first_key), (float *, state),    \
      (float *, starts), (void *, y), (Dtype, c))                                                           \
    X(mamba_backward, (MambaShape, s), (MambaInputs, in), (const int32_t *, first_key),                     \
      (const float *, starts), (const void *, dy), (float *, carry), (float *, room),                       \
      (MambaGradients, out), (Dtype, c))                                                                    \
    X(gated_norm_forward, (GatedNorm, s), (const void *, x), (const void *, gate), (const float *, w),      \
      (void *, y), (Dtype, c))                                                                              \
    X(gated_norm_backward, (GatedNorm, s), (const void *, x), (const void *, gate), (const float *, w),     \
      (const void *, dy), (void *, dx), (void *, dgate), (float *, dw), (Dtype, c))                         \
    X(route, (RouteShape, s), (Routes, r), (int64_t *, counts))                                             \
    X(route_count, (RouteShape, s), (const int32_t *, chosen), (int64_t *, counts))                         \
    X(route_backward, (RouteShape, s), (Routes, r), (const int64_t *, counts), (const float *, dweights),   \
      (const float *, scale), (float *, balance), (void *, dlogits), (Dtype, c))                            \
    X(gemm_experts, (ExpertRows, e), (bool, trans_b), (int64_t, n), (int64_t, k), (const void *, a),        \
      (const void *, b), (Dtype, ab_type), (void *, c), (Dtype, c_type), (Leaves, leaves))                  \
    X(gemm_experts_weight, (ExpertRows, e), (int64_t, m), (int64_t, n), (const void *, a),                  \
      (const void *, b), (Dtype, ab_type), (float *, c), (bool, accumulate), (bool, sliced))                \
    X(experts_combine, (RouteShape, s), (Routes, r), (int64_t, hidden), (const void *, rows),               \
      (bool, weighed), (bool, add), (void *, y), (Dtype, c))                                                \
    X(experts_weigh, (RouteShape, s), (Routes, r), (int64_t, inter), (int, leaves), (void *, act),          \
      (void *, dact), (float *, dweights), (Dtype, c))                                                      \
    X(experts_bias_forward, (ExpertRows, e), (int64_t, n), (void *, y), (const float *, bias), (Dtype, c))  \
    X(experts_bias_backward, (RouteShape, s), (Routes, r), (int64_t, n), (const void *, dy),                \
      (bool, weighed), (const float *, bias), (float *, dbias), (float *, dweights), (Dtype, c))            \
    X(loss_records, (int64_t, rows), (int64_t, vocab), (const void *, logits), (Dtype, logits_type),        \
      (const int32_t *, targets), (VocabLeaves, leaves), (LossRecord *, records))                           \
    X(cross_entropy, (int64_t, rows), (int64_t, vocab), (const void *, logits), (Dtype, logits_type),       \
      (const int32_t *, targets), (VocabLeaves, leaves), (const float *, scale), (float, cap), (float, z),  \
      (float *, loss), (float *, z_loss), (void *, dlogits), (Dtype, grad_type))                            \
    X(loss_sum, (int64_t, n), (const float *, losses), (LossSum *, into))                                   \
    X(adamw, (int64_t, n), (AdamW, a), (StateStore, s), (const OptimizerStep *, step), (float *, param),    \
      (const float *, grad), (void *, m), (void *, v), (uint16_t *, copy))                                  \
    X(sgd, (int64_t, n), (Sgd, o), (StateStore, s), (const OptimizerStep *, step), (float *, param),        \
      (const float *, grad), (void *, momentum), (uint16_t *, copy))                                        \
    X(muon_direction, (MatrixShape, shape), (Muon, o), (StateStore, s), (const OptimizerStep *, step),      \
      (const float *, grad), (void *, momentum), (float *, x))                                              \
    X(muon_unit, (int64_t, n), (const GradStats *, squares), (float, slack), (float *, x))                  \
    X(muon_quintic, (int64_t, m), (float, a), (float, b), (float, c), (const float *, gram),                \
      (float *, square))                                                                                    \
    X(muon_descend, (MatrixShape, shape), (Muon, o), (const OptimizerStep *, step), (const float *, x),     \
      (float *, param), (uint16_t *, copy))                                                                 \
    X(average, (int64_t, n), (const OptimizerStep *, step), (const float *, param), (float *, mean))        \
    X(grad_stats, (int64_t, n), (const float *, g), (double, p), (const double *, unit),                    \
      (GradStats *, out))                                                                                   \
    X(fixed_add, (int64_t, n), (const float *, g), (int64_t *, acc), (bool, set), (double, limit),          \
      (FixedRefusals *, refused))                                                                           \
    X(fixed_to_float, (int64_t, n), (const int64_t *, acc), (float *, out))                                 \
    X(cast, (int64_t, n), (const void *, in), (Dtype, in_type), (void *, out), (Dtype, out_type))           \
    X(zero, (void *, p), (size_t, bytes))                                                                   \
    X(init_normal, (int64_t, n), (uint64_t, key), (uint64_t, first), (double, mean), (double, std),         \
      (double, lo), (double, hi), (float *, out))                                                           \
    X(fill, (int64_t, n), (float, value), (float *, out))                                                   \
    X(copy, (void *, to), (const void *, from), (size_t, bytes))                                            \
    X(copy_rows, (int64_t, rows), (size_t, bytes), (void *, to), (size_t, to_stride), (const void *, from), \
      (size_t, from_stride))
/* clang-format on */

PLAIN_OPS(DEFERRED)

/* ---- ops with host memory ---- */

typedef struct Upload {
    void *tensor;
    size_t bytes;
} Upload; /* then the bytes */

static void run_upload(Device *d, const void *arguments) {
    const Upload *a = arguments;
    d->deferred->ops.upload(d, a->tensor, a + 1, a->bytes);
}

static void defer_upload(Device *d, void *tensor, const void *host, size_t bytes) {
    queue_call(d, run_upload, &(Upload){tensor, bytes}, sizeof(Upload), host, bytes);
}

typedef struct Download {
    void *host;
    const void *tensor;
    size_t bytes;
} Download;

static void run_download(Device *d, const void *arguments) {
    const Download *a = arguments;
    d->deferred->ops.download(d, a->host, a->tensor, a->bytes);
}

/* All bits set are NaN in fp32 and bf16, and -1 in whole numbers: what is read too early cannot be taken
 * for a result. */
static void defer_download(Device *d, void *host, const void *tensor, size_t bytes) {
    if (bytes) memset(host, 0xff, bytes);
    queue_call(d, run_download, &(Download){host, tensor, bytes}, sizeof(Download), NULL, 0);
}

typedef struct SumParts {
    int64_t n;
    int parts;
    void *out;
} SumParts; /* then the addresses of the parts */

static void run_sum_parts(Device *d, const void *arguments) {
    const SumParts *a = arguments;
    d->deferred->ops.sum_parts(d, a->n, a->parts, (const float *const *)(const void *)(a + 1), a->out);
}

static void run_sum_parts_i64(Device *d, const void *arguments) {
    const SumParts *a = arguments;
    d->deferred->ops.sum_parts_i64(d, a->n, a->parts, (const int64_t *const *)(const void *)(a + 1), a->out);
}

static void defer_sum_parts(Device *d, int64_t n, int parts, const float *const *in, float *out) {
    queue_call(d, run_sum_parts, &(SumParts){n, parts, out}, sizeof(SumParts), in,
               (size_t)parts * sizeof *in);
}

static void defer_sum_parts_i64(Device *d, int64_t n, int parts, const int64_t *const *in, int64_t *out) {
    queue_call(d, run_sum_parts_i64, &(SumParts){n, parts, out}, sizeof(SumParts), in,
               (size_t)parts * sizeof *in);
}

/* ---- opening ---- */

/* Ops and runtime that were there are kept, and called from the queues. Taking memory is not deferred: no
 * call that is queued can know of memory that is not given out yet. Nor is scratch_bytes, which is no op. */
void device_defer(Device *d, uint64_t seed) {
    CHECK(!d->deferred);
    Deferred *w = d->deferred = mem_alloc(sizeof *w);
    w->ops = d->ops;
    w->runtime = d->runtime;
    w->seed = seed;
    pthread_mutex_init(&w->mutex, NULL);
#define REPLACE(slot, ...) d->ops.slot = defer_##slot;
    PLAIN_OPS(REPLACE)
#undef REPLACE
    d->ops.upload = defer_upload;
    d->ops.download = defer_download;
    d->ops.sum_parts = defer_sum_parts;
    d->ops.sum_parts_i64 = defer_sum_parts_i64;
    d->runtime.mark = mark;
    d->runtime.follow = follow;
    d->runtime.finish = finish;
    d->runtime.give = give;
    d->runtime.host_give = host_give;
}

/* What nobody has waited for is dropped with its queue: it was never needed. */
void deferred_close(Device *d) {
    Deferred *w = d->deferred;
    if (!w) return;
    for (int s = 0; s < DEVICE_STREAMS; s++) free(w->queues[s].calls);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    d->deferred = NULL;
}
