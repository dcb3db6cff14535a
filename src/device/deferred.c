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
#include "device/cpu/cpu.h"
#include "device/ops/ops.h"
#include "device/pool.h"

/* Header of a call in a queue, followed by the arguments, and by host data that they point to. */
typedef struct Call {
    size_t bytes; /* of all of it */
    OpId op;      /* NO_OP: nothing to run; the call only waits for an event */
    Event after;
} Call;
enum { NO_OP = -1 };

typedef struct Queue {
    char *calls;
    size_t first, end, room; /* bytes; calls before `first` have run */
    uint64_t queued, run;    /* numbers of calls */
} Queue;

struct Deferred {
    DeviceRuntime runtime; /* the CPU's own */
    Queue queues[DEVICE_STREAMS];
    uint64_t seed, draws;
    pthread_mutex_t mutex;
};

/* ---- queueing ---- */

/* A queue is one block of memory, which grows to the longest backlog of a run and then stays. It restarts at
 * its beginning whenever it is empty. Argument sizes are rounded up so that the next call is aligned. The
 * returned address is valid until the next call is added. */
static void *add_call(Queue *q, OpId op, Event after, size_t bytes) {
    size_t whole = sizeof(Call) + (bytes + 15) / 16 * 16;
    if (q->first == q->end) q->first = q->end = 0;
    if (q->end + whole > q->room) {
        q->room = 2 * (q->end + whole);
        q->calls = mem_grow(q->calls, q->room);
    }
    Call *call = (Call *)(void *)(q->calls + q->end);
    *call = (Call){.bytes = whole, .op = op, .after = after};
    q->end += whole;
    q->queued++;
    return call + 1;
}

/* Host memory that is read when an op is enqueued. */
typedef struct HostData {
    size_t bytes, at; /* at: offset of its address in the arguments */
} HostData;

static HostData host_data(OpId op, const void *arguments) {
    const UploadArgs *upload = arguments;
    const SumPartialsArgs *sum = arguments;
    const SumPartialsI64Args *sum_i64 = arguments;
    switch (op) {
    case OP_UPLOAD: return (HostData){upload->bytes, offsetof(UploadArgs, host)};
    case OP_SUM_PARTIALS:
        return (HostData){(size_t)sum->partials * sizeof *sum->in, offsetof(SumPartialsArgs, in)};
    case OP_SUM_PARTIALS_I64:
        return (HostData){(size_t)sum_i64->partials * sizeof *sum_i64->in, offsetof(SumPartialsI64Args, in)};
    default: return (HostData){0, 0};
    }
}

static const void *host_address(HostData h, const void *arguments) {
    const void *address;
    memcpy(&address, (const char *)arguments + h.at, sizeof address);
    return address;
}

/* All bits set are NaN in fp32 and bf16, and -1 in integers, so memory that is read too early cannot be
 * mistaken for a result. */
static void spoil(const DownloadArgs *o) {
    if (o->bytes) memset(o->host, 0xff, o->bytes);
}

/* Queues a call on the calling thread's stream, with copies of the arguments and of host data. */
static void enqueue(Device *d, OpId op, const void *arguments) {
    Deferred *w = d->deferred;
    size_t bytes = op_descriptor(op)->bytes;
    HostData host = host_data(op, arguments);
    if (op == OP_DOWNLOAD) spoil(arguments);
    pthread_mutex_lock(&w->mutex);
    char *to = add_call(&w->queues[device_stream()], op, 0, bytes + host.bytes);
    memcpy(to, arguments, bytes);
    if (host.bytes) memcpy(to + bytes, host_address(host, arguments), host.bytes);
    pthread_mutex_unlock(&w->mutex);
}

/* ---- running ---- */

/* Compares counts of calls that have run, never addresses, because an event outlives its call. Event 0 has
 * always been reached. */
static bool reached(const Deferred *w, Event e) {
    return w->queues[e % DEVICE_STREAMS].run >= e / DEVICE_STREAMS;
}

static Call *next_call(const Queue *q) {
    return q->first < q->end ? (Call *)(void *)(q->calls + q->first) : NULL;
}

/* The copy of host data lies right behind the arguments, wherever the queue has been moved since. */
static void run_call(Device *d, Call *call) {
    if (call->op == NO_OP) return;
    char *arguments = (char *)(call + 1);
    const void *copy = arguments + op_descriptor(call->op)->bytes;
    HostData host = host_data(call->op, arguments);
    if (host.bytes) memcpy(arguments + host.at, &copy, sizeof copy);
    op_run(d, call->op, arguments);
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
    Call *call = next_call(q);
    run_call(d, call);
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
    add_call(&w->queues[s], NO_OP, e, 0);
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

/* ---- opening ---- */

/* The original runtime is kept. Taking memory is not deferred, since no queued call can refer to memory that
 * has not been handed out. */
void device_defer(Device *d, uint64_t seed) {
    CHECK(!d->deferred);
    Deferred *w = d->deferred = mem_alloc(sizeof *w);
    w->runtime = d->runtime;
    w->seed = seed;
    pthread_mutex_init(&w->mutex, NULL);
    d->runtime.enqueue = enqueue;
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
