/* A device that runs nothing: each op reports the work it would do, computed from its arguments alone. So the
 * cost of a program can be read off the code that runs it, without tensors: addresses are never
 * dereferenced. */
#ifndef WEFT_DEVICE_COUNTING_H
#define WEFT_DEVICE_COUNTING_H

#include "device/ops/ops.h"

typedef struct OpWork {
    OpId op;
    Dtype type;   /* of the operands */
    bool splits;  /* a product with splits, or grouped by expert */
    double flops; /* of products, attention and Mamba-2's scan; 0 for all other ops, which are memory-bound */
    double bytes; /* tensors read plus tensors written, each once */
    double terms; /* of products: of each sum */
    int head_dim; /* of attention */
    int64_t context; /* of attention: keys that a query sees at most */
} OpWork;
typedef void OpHeard(void *context, const OpWork *work);

/* Attention is causal within consecutive sequences of `sequence` tokens. Per visible key and element of a
 * query, forward counts 4 FLOPs and backward 8 (as model_unit_costs). Nothing to close. */
typedef struct CountingDevice {
    Device device;
    int64_t sequence;
    OpHeard *heard;
    void *context;
} CountingDevice;
void device_count(CountingDevice *c, int64_t sequence, OpHeard *heard, void *context);

#endif
