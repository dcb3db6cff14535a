/* Times by the GPU's clock: of ops, where a profile is asked for, and of actions, where a trace is.
 *
 *     times_begin, times_end   the two of a pair of events: nobody waits
 *     times_stamp              one event; its time counts from the first of its series
 *     times_read               the times of what the stream has passed go to where they are to
 *
 * A stream passes its events in order, so they are a queue, in a ring. It is read when the host has waited
 * for something anyway, and each place is used again after it was read. A ring that is full is read, and
 * doubled if nothing has ended: there come to be as many places as are under way at a time, in the first
 * steps. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_TIMES_H
#define WEFT_DEVICE_CUDA_PLUGIN_TIMES_H

#include <cuda_runtime_api.h>

#include "device/device.h"

typedef struct Timed {
    cudaEvent_t begun, ended; /* of a stamp the second alone */
    double *to;               /* where its time goes; of a stamp NULL: it begins a series */
    bool stamp;
    bool closed; /* what it has is recorded */
} Timed;

/* Of one stream; all zero: nothing has been timed on it. */
typedef struct Times {
    Timed *ring;
    uint64_t room, first, next; /* the oldest that was not read; numbers, a place is a rest by room */
    cudaEvent_t last;           /* of the last stamp that was read, ... */
    double at;                  /* ... so many seconds behind the first of its series */
} Times;

/* *number: of the pair, for times_end, which adds its time to *to. */
cudaError_t times_begin(Times *t, cudaStream_t s, int64_t *number);
cudaError_t times_end(Times *t, cudaStream_t s, int64_t number, double *to);
/* *to: seconds since the last stamp without one. */
cudaError_t times_stamp(Times *t, cudaStream_t s, double *to);
cudaError_t times_read(Times *t);
void times_close(Times *t);

#endif
