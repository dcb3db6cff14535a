#include "device/cuda/plugin/times.h"

#include <stdlib.h>

enum { FIRST_ROOM = 256 };

static TimedOp *at(const Times *t, uint64_t number) { return &t->ring[number % t->room]; }

static cudaError_t make_pair(TimedOp *p) {
    cudaError_t e = cudaEventCreateWithFlags(&p->begun, cudaEventDefault);
    return e == cudaSuccess ? cudaEventCreateWithFlags(&p->ended, cudaEventDefault) : e;
}

/* Of a full ring: what is in it keeps its numbers. */
static cudaError_t grow(Times *t) {
    uint64_t room = t->room ? 2 * t->room : FIRST_ROOM;
    TimedOp *ring = calloc(room, sizeof *ring);
    cudaError_t e = ring ? cudaSuccess : cudaErrorMemoryAllocation;
    for (uint64_t i = t->first; i < t->next && ring; i++) ring[i % room] = *at(t, i);
    for (uint64_t i = t->next; i < t->first + room && e == cudaSuccess; i++) e = make_pair(&ring[i % room]);
    if (!ring) return e;
    free(t->ring);
    t->ring = ring, t->room = room;
    return e;
}

cudaError_t times_begin(Times *t, cudaStream_t s, OpProfile profile[OP_COUNT], int64_t *number) {
    cudaError_t e = cudaSuccess;
    *number = (int64_t)t->next;
    if (t->next - t->first == t->room) e = times_read(t, profile);
    if (e == cudaSuccess && t->next - t->first == t->room) e = grow(t);
    if (e != cudaSuccess) return e;
    TimedOp *p = at(t, t->next++);
    p->closed = false;
    return cudaEventRecord(p->begun, s);
}

cudaError_t times_end(Times *t, cudaStream_t s, OpId op, int64_t number) {
    TimedOp *p = at(t, (uint64_t)number);
    p->op = op;
    p->closed = true;
    return cudaEventRecord(p->ended, s);
}

/* Up to the first that the stream has not passed, or that is still being enqueued. */
cudaError_t times_read(Times *t, OpProfile profile[OP_COUNT]) {
    while (t->first < t->next) {
        const TimedOp *p = at(t, t->first);
        float milliseconds = 0;
        cudaError_t e = p->closed ? cudaEventQuery(p->ended) : cudaErrorNotReady;
        if (e == cudaSuccess) e = cudaEventElapsedTime(&milliseconds, p->begun, p->ended);
        if (e == cudaErrorNotReady) {
            cudaGetLastError(); /* no fault of the device: not to be found by the next launch */
            return cudaSuccess;
        }
        if (e != cudaSuccess) return e;
        profile[p->op].seconds += (double)milliseconds / 1e3;
        t->first++;
    }
    return cudaSuccess;
}

void times_close(Times *t) {
    for (uint64_t i = 0; i < t->room; i++) {
        if (t->ring[i].begun) cudaEventDestroy(t->ring[i].begun);
        if (t->ring[i].ended) cudaEventDestroy(t->ring[i].ended);
    }
    free(t->ring);
    *t = (Times){.room = 0};
}
