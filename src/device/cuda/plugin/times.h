/* Times by the GPU's clock: of ops for a profile, of actions for a trace.
 *
 *     times_begin, times_end   record a pair of events; the host does not wait
 *     times_stamp              records one event; its time counts from the first stamp of its series
 *     times_read               delivers the times of the pairs and stamps that the stream has passed
 *
 * A stream passes its events in order, so they form a queue, kept in a ring. The ring is read when the host
 * has waited for something anyway, and a slot is reused once it has been read. A full ring is read first, and
 * doubled if nothing has ended. So during the first steps it grows to as many slots as are ever in flight at
 * a time. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_TIMES_H
#define WEFT_DEVICE_CUDA_PLUGIN_TIMES_H

#include <cuda_runtime_api.h>

#include "device/device.h"

typedef struct TimeEntry {
    cudaEvent_t begun, ended; /* a stamp uses only `ended` */
    double *to;               /* where its time goes; NULL for a stamp that begins a series */
    bool stamp;
    bool closed; /* all its events have been recorded */
} TimeEntry;

/* Of one stream. All zero: nothing has been timed on it. */
typedef struct Times {
    TimeEntry *ring;
    uint64_t capacity, first, next; /* first: the oldest unread one; number n has slot n % capacity */
    cudaEvent_t last;               /* the event of the last stamp that was read */
    double at;                      /* seconds from the first stamp of its series to it */
} Times;

/* *number identifies the pair for times_end, which adds the pair's time to *to once it is read. */
cudaError_t times_begin(Times *t, cudaStream_t s, int64_t *number);
cudaError_t times_end(Times *t, cudaStream_t s, int64_t number, double *to);
/* Sets *to, once it is read, to the seconds since the last stamp whose `to` was NULL. */
cudaError_t times_stamp(Times *t, cudaStream_t s, double *to);
cudaError_t times_read(Times *t);
void times_close(Times *t);

#endif
