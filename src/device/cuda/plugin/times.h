/* Times of ops, where a profile is asked for: a pair of events around each, on its stream.
 *
 *     times_begin  records the first of a pair, times_end the second: nobody waits
 *     times_read   adds the times of pairs that the stream has passed to the profile
 *
 * A stream passes its pairs in order, so they are a queue, in a ring. It is read when the host has waited for
 * something anyway, and each pair is used again after it was read. A ring that is full is read, and doubled
 * if nothing has ended: there come to be as many pairs as ops are under way at a time, in the first steps. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_TIMES_H
#define WEFT_DEVICE_CUDA_PLUGIN_TIMES_H

#include <cuda_runtime_api.h>

#include "device/device.h"

typedef struct TimedOp {
    cudaEvent_t begun, ended;
    OpId op;
    bool closed; /* both are recorded */
} TimedOp;

/* Of one stream; all zero: no op has been timed on it. */
typedef struct Times {
    TimedOp *ring;
    uint64_t room, first, next; /* the oldest that was not read; numbers of ops, a place is a rest by room */
} Times;

/* *number: of the op, for times_end. */
cudaError_t times_begin(Times *t, cudaStream_t s, OpProfile profile[OP_COUNT], int64_t *number);
cudaError_t times_end(Times *t, cudaStream_t s, OpId op, int64_t number);
cudaError_t times_read(Times *t, OpProfile profile[OP_COUNT]);
void times_close(Times *t);

#endif
