/* A deferred CPU: ops are queued with copies of their arguments, and run when something waits for them.
 *
 *     op --> queue of its stream --(device_finish: until the event is reached)--> the CPU's own op
 *
 * Each stream is a queue of calls that run in order. The next stream is drawn at random (from the seed) among
 * those whose next call does not wait for an event of another. A call that nobody waits for may never run. So
 * a program that reads too early, forgets an event, or relies on the order of two streams gets other results.
 *
 *  1. Arguments, memory given to `upload` and lists of parts are copied when a call is queued.
 *  2. Host memory given to `download` is filled with NaN when the call is queued.
 *  3. Memory is given back only after every queued call has run, since some may still use it.
 *  4. An event is number * DEVICE_STREAMS + stream. It is reached when that many calls of that stream have
 *     run.
 *  5. One mutex guards everything, also while a call runs: several threads may queue and wait.
 *
 * It substitutes for a GPU, whose queues may run far behind the host, on machines that have none. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"
#include "device/arguments.h"
#include "device/cpu/cpu.h"
#include "device/pool.h"

typedef void Run(Device *d, const void *arguments);

/* Header of a call in a queue, followed by the arguments. */
typedef struct Call {
    size_t bytes; /* of header and arguments */
    Run *run;     /* NULL: nothing to run; the call only waits for an event */
    Event after;
} Call;

typedef struct Queue {
    char *calls;
    size_t first, end, room; /* bytes; calls before `first` have run */
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

/* A queue is one block of memory, which grows to the longest backlog of a run and then stays. It restarts at
 * its beginning whenever it is empty. Argument sizes are rounded up so that the next call is aligned. The
 * returned address is valid until the next call is added. */
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

/* Queues a call on the calling thread's stream. Host data that the arguments point to is copied right behind
 * them: `bytes` is the size of the argument struct, so `a + 1` finds the data when the call runs. */
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

/* Compares counts of calls that have run, never addresses, because an event outlives its call. Event 0 has
 * always been reached. */
static bool reached(const Deferred *w, Event e) {
    return w->queues[e % DEVICE_STREAMS].run >= e / DEVICE_STREAMS;
}

static const Call *next_call(const Queue *q) {
    return q->first < q->end ? (const Call *)(const void *)(q->calls + q->first) : NULL;
}

/* Runs one call of a random stream among those that can continue. The mutex is held throughout, so the
 * queue's memory does not move while a call uses its arguments. */
static void run_one(Device *d) {
    Deferred *w = d->deferred;
    Queue *ready[DEVICE_STREAMS];
    uint64_t count = 0;
    for (int s = 0; s < DEVICE_STREAMS; s++) {
        const Call *call = next_call(&w->queues[s]);
        if (call && reached(w, call->after)) ready[count++] = &w->queues[s];
    }
    CHECK(count > 0); /* otherwise streams wait for each other, or for an event of another device */
    Queue *q = ready[rng_u64(w->seed, w->draws++) % count];
    const Call *call = next_call(q);
    if (call->run) call->run(d, call + 1);
    q->first += call->bytes;
    q->run++;
}

/* Runs only until the event is reached. Everything else stays queued, so that a host that reads too early
 * finds NaN. The guard is opened here, since ops run here, not where they were called. */
static void finish(Device *d, Event e) {
    Deferred *w = d->deferred;
    pthread_mutex_lock(&w->mutex);
    pool_unlock_all();
    while (!reached(w, e)) run_one(d);
    pool_lock_all();
    pthread_mutex_unlock(&w->mutex);
}

/* The event of the last call queued so far; queues nothing itself. */
static Event mark(Device *d, DeviceStream s) {
    Deferred *w = d->deferred;
    pthread_mutex_lock(&w->mutex);
    Event e = w->queues[s].queued * DEVICE_STREAMS + (Event)s;
    pthread_mutex_unlock(&w->mutex);
    return e;
}

/* Queues a call without an op, which blocks only its own stream. */
static void follow(Device *d, DeviceStream s, Event e) {
    Deferred *w = d->deferred;
    pthread_mutex_lock(&w->mutex);
    add_call(&w->queues[s], NULL, e, 0);
    pthread_mutex_unlock(&w->mutex);
}

/* ---- memory ---- */

/* Stream by stream: finishing one may also run calls of others. */
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

/* ---- ops whose arguments are all that must be copied ---- */

/* Defines the op that is called, which queues its arguments, and the op that runs later. */
#define DEFERRED(slot, ...)                                                                                \
    static void run_##slot(Device *d, const void *arguments) {                                             \
        const slot##_arguments *a = arguments;                                                             \
        d->deferred->ops.slot(d EACH(STORED, __VA_ARGS__));                                                \
    }                                                                                                      \
    static void defer_##slot(Device *d EACH(PARAMETER, __VA_ARGS__)) {                                     \
        queue_call(d, run_##slot, &(slot##_arguments){EACH(VALUE, __VA_ARGS__)}, sizeof(slot##_arguments), \
                   NULL, 0);                                                                               \
    }

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

/* All bits set are NaN in fp32 and bf16, and -1 in integers, so memory that is read too early cannot be
 * mistaken for a result. */
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

/* The original ops and runtime are kept, and are called from the queues. Taking memory is not deferred, since
 * no queued call can refer to memory that has not been handed out. scratch_bytes is not deferred either,
 * because it is no op. */
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

/* Calls that nobody has waited for are dropped with their queues. */
void deferred_close(Device *d) {
    Deferred *w = d->deferred;
    if (!w) return;
    for (int s = 0; s < DEVICE_STREAMS; s++) free(w->queues[s].calls);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    d->deferred = NULL;
}
