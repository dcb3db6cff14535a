/* A device on which nothing is done: each op tells what it would do, by its arguments alone. So what a
 * program costs can be read off the code that runs it, without tensors: addresses are never looked at. */
#ifndef WEFT_DEVICE_COUNTING_H
#define WEFT_DEVICE_COUNTING_H

#include "device/device.h"

typedef struct OpWork {
    OpId op;
    Dtype type;   /* of what is multiplied */
    bool splits;  /* of a product that is made split by split, or by experts */
    double flops; /* of products, attention and Mamba-2's scan; 0 of all else, which is bound by memory */
    double bytes; /* tensors that are read, and that are written, each once */
} OpWork;
typedef void OpHeard(void *context, const OpWork *work);

/* Attention is causal inside sequences of so many tokens, one behind the other; forward 4 FLOPs a visible key
 * and element of a query, backward 8 (model_unit_costs). Nothing to close. */
typedef struct CountingDevice {
    Device device;
    int64_t sequence;
    OpHeard *heard;
    void *context;
} CountingDevice;
void device_count(CountingDevice *c, int64_t sequence, OpHeard *heard, void *context);

#endif
