/* The memory of a run, read off its program before anything is allocated.
 *
 * Activation memory is a set of buffers with lifetimes: a buffer lives from the first action that touches it to the last. Since
 * the program never changes, each buffer gets a fixed offset in one pool, by first fit in order of first use over the buffers
 * alive at the same time. What the plan prints is what the run takes: the pools have exactly these sizes. */
#ifndef WEFT_PLAN_MEMORY_H
#define WEFT_PLAN_MEMORY_H

#include "device/device.h"
#include "model/unit.h"
#include "plan/program.h"

typedef enum BufferKind {
    BUFFER_BATCH,    /* ids, targets, positions, first keys of microbatch m: 4 x [T] int32, then [T] losses fp32 */
    BUFFER_SLAB,     /* slab(u, m) of model/unit.h; its head is the output of unit u - 1 */
    BUFFER_KEEP,     /* keep(u, m), only when the backward halves run apart */
    BUFFER_GRADIENT, /* [T, h] gradient that travels back through the units of microbatch m */
    BUFFER_KINDS
} BufferKind;

typedef struct Buffer {
    BufferKind kind;
    int unit, microbatch;
    size_t bytes, offset; /* offset in the activations pool */
    int first, last;      /* actions */
} Buffer;

typedef struct MemoryPlan {
    int count;
    Buffer *buffers;
    int *index; /* [kind, unit, microbatch] -> buffer, -1 if none */
    int units, microbatches;
    size_t activations;                                       /* bytes of the pool */
    size_t keep, scratch;                                     /* shared regions of model/unit.h, in the workspace pool */
    size_t parameters, copy, gradients, optimizer, constants; /* bytes */
    size_t device_scratch;
    size_t staging; /* beside the pools: host copy for checkpoints that are written while training; set by who saves */
} MemoryPlan;

/* At most this many buffers does one action touch. */
#define ACTION_BUFFERS 5
/* Names the buffers that an action touches; returns how many. `bytes` of each is filled too. */
int action_buffers(const Program *p, const Model *m, Action a, Buffer out[ACTION_BUFFERS]);

/* training: gradients and moments too. */
void memory_plan(MemoryPlan *plan, const Program *p, const Model *m, int64_t positions, size_t device_scratch, bool training);
void memory_plan_free(MemoryPlan *plan);
const Buffer *memory_plan_buffer(const MemoryPlan *plan, BufferKind kind, int unit, int microbatch); /* CHECKs that it exists */
size_t memory_plan_pools(const MemoryPlan *plan);
size_t memory_plan_total(const MemoryPlan *plan); /* pools and staging */
/* A table: category, bytes, what it holds. */
void memory_plan_print(const MemoryPlan *plan, const Model *m, Text *out);

#endif
