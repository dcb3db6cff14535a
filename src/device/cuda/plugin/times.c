#include "device/cuda/plugin/times.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 256 };

static TimeEntry *at(const Times *t, uint64_t number) { return &t->ring[number % t->capacity]; }

static cudaError_t make_event(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }

static cudaError_t make_events(TimeEntry *p) {
    cudaError_t e = make_event(&p->begun);
    return e == cudaSuccess ? make_event(&p->ended) : e;
}

/* Doubles a full ring, or makes the first one. Entries keep their numbers. */
static cudaError_t grow(Times *t) {
    uint64_t capacity = t->capacity ? 2 * t->capacity : FIRST_CAPACITY;
    TimeEntry *ring = calloc(capacity, sizeof *ring);
    cudaError_t e = ring ? cudaSuccess : cudaErrorMemoryAllocation;
    if (e == cudaSuccess && !t->last) e = make_event(&t->last);
    for (uint64_t i = t->first; i < t->next && ring; i++) ring[i % capacity] = *at(t, i);
    for (uint64_t i = t->next; i < t->first + capacity && e == cudaSuccess; i++)
        e = make_events(&ring[i % capacity]);
    if (!ring) return e;
    free(t->ring);
    t->ring = ring, t->capacity = capacity;
    return e;
}

static cudaError_t take(Times *t, TimeEntry **out, TimeEntry as) {
    cudaError_t e = cudaSuccess;
    if (t->next - t->first == t->capacity) e = times_read(t);
    if (e == cudaSuccess && t->next - t->first == t->capacity) e = grow(t);
    if (e != cudaSuccess) return e;
    TimeEntry *p = *out = at(t, t->next++);
    as.begun = p->begun, as.ended = p->ended;
    *p = as;
    return e;
}

cudaError_t times_begin(Times *t, cudaStream_t s, int64_t *number) {
    TimeEntry *p;
    *number = (int64_t)t->next;
    cudaError_t e = take(t, &p, (TimeEntry){.closed = false});
    return e == cudaSuccess ? cudaEventRecord(p->begun, s) : e;
}

cudaError_t times_end(Times *t, cudaStream_t s, int64_t number, double *to) {
    TimeEntry *p = at(t, (uint64_t)number);
    p->to = to;
    p->closed = true;
    return cudaEventRecord(p->ended, s);
}

cudaError_t times_stamp(Times *t, cudaStream_t s, double *to) {
    TimeEntry *p;
    cudaError_t e = take(t, &p, (TimeEntry){.to = to, .stamp = true, .closed = true});
    return e == cudaSuccess ? cudaEventRecord(p->ended, s) : e;
}

/* The driver reports times as floats. A stamp is measured from the one before, so that no time is long enough
 * to lose precision. */
static cudaError_t deliver(Times *t, TimeEntry *p) {
    float milliseconds = 0;
    cudaError_t e = cudaSuccess;
    if (!p->stamp || p->to) e = cudaEventElapsedTime(&milliseconds, p->stamp ? t->last : p->begun, p->ended);
    if (e != cudaSuccess) return e;
    if (!p->stamp) {
        *p->to += (double)milliseconds / 1e3;
        return e;
    }
    t->at = p->to ? t->at + (double)milliseconds / 1e3 : 0;
    if (p->to) *p->to = t->at;
    cudaEvent_t used = t->last;
    t->last = p->ended, p->ended = used;
    return e;
}

/* Stops at the first entry that the stream has not passed, or that is still being enqueued. */
cudaError_t times_read(Times *t) {
    while (t->first < t->next) {
        TimeEntry *p = at(t, t->first);
        cudaError_t e = p->closed ? cudaEventQuery(p->ended) : cudaErrorNotReady;
        if (e == cudaSuccess) e = deliver(t, p);
        if (e == cudaErrorNotReady) {
            cudaGetLastError(); /* clears the error, which is no fault: the next launch would report it */
            return cudaSuccess;
        }
        if (e != cudaSuccess) return e;
        t->first++;
    }
    return cudaSuccess;
}

void times_close(Times *t) {
    for (uint64_t i = 0; i < t->capacity; i++) {
        if (t->ring[i].begun) cudaEventDestroy(t->ring[i].begun);
        if (t->ring[i].ended) cudaEventDestroy(t->ring[i].ended);
    }
    if (t->last) cudaEventDestroy(t->last);
    free(t->ring);
    *t = (Times){.capacity = 0};
}
