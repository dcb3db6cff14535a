/* Forward and backward of each kind of unit on one microbatch: single-device mathematics, nothing about
 * parallelism.
 *
 * What lives where
 *   slab(u, m)   what the forward pass leaves for the backward pass of unit u on microbatch m, its input first. The unit before
 *                writes its output there, so no activation is copied.
 *   keep(u, m)   operands of the weight half when the two halves of the backward pass run apart; with both halves together it
 *                is shared memory, reused by every unit.
 *   scratch      shared, dead after each action.
 *
 * The backward pass of every linear layer has two halves: the gradient of its input (dX = dY W) and of its
 * weight (dW += dY^T X). block_backward runs either or both; the order of additions into a weight gradient
 * is that of the microbatches either way, so the bits are the same. */
#ifndef WEFT_MODEL_UNIT_H
#define WEFT_MODEL_UNIT_H

#include "base/memory.h"
#include "device/device.h"
#include "model/params.h"
#include "model/weights.h"

/* What the forward pass keeps of a block.
 *   none       every operand of the backward pass (the activation of the MLP is made again in passing)
 *   selective  not the normed inputs and the gate and up products: two norms and one matrix product are done again
 *   full       the block's input only: its forward pass is done again */
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;

typedef enum Half { HALF_INPUT = 1, HALF_WEIGHT = 2, HALF_BOTH = 3 } Half;

typedef struct Model {
    ModelConfig config;
    ParamTable table;
    Dtype compute;
    Recompute recompute;
    int64_t tokens;    /* T of a microbatch */
    int64_t loss_rows; /* tokens whose logits exist at a time */
    int64_t positions; /* rows of the rotation table */
    float *cos_sin;    /* [positions, head_dim] tensor memory */
} Model;

/* A microbatch in tensor memory. */
typedef struct Microbatch {
    int32_t *ids, *targets, *positions, *first_key; /* [T] each */
} Microbatch;

/* Keys and values of the tokens of one sequence so far, for generation; tensor memory. */
typedef struct KeyValueCache {
    char *keys, *values; /* [units, positions, G*D] compute dtype */
    int64_t positions;   /* room */
    int64_t start;       /* position of the pass's first token */
} KeyValueCache;

/* Everything a unit's pass needs besides its activations. */
typedef struct Pass {
    const Model *model;
    Device *device;
    const Weights *weights;
    Gradients gradients; /* training only */
    Microbatch batch;
    bool first;        /* gradients of matrices are set, not added to (the embedding's always are added to) */
    double loss_scale; /* 1 / valid targets of the step */
    const KeyValueCache *cache; /* generation only: attend to the cache, after adding to it */
} Pass;

/* Bytes of the three kinds of memory for one microbatch. */
size_t unit_slab_bytes(const Model *m, int unit);
size_t unit_keep_bytes(const Model *m, int unit);
size_t unit_scratch_bytes(const Model *m);
size_t boundary_bytes(const Model *m); /* one [T, h] tensor of the compute dtype */

/* Fills m->table, picks loss_rows when it is 0. */
ErrorCode model_build(Model *m, const ModelConfig *c, Dtype compute, Recompute recompute, int64_t tokens,
                      int64_t loss_rows, Error *err);
void model_free(Model *m);
/* The rotation table: taken from a pool, and computed (after commit). */
void model_layout_constants(Model *m, int64_t positions, Pool *constants);
void model_compute_constants(Model *m, Device *d);
DeviceNeeds model_device_needs(const Model *m);

void embed_forward_unit(const Pass *p, void *out /* [T, h] */);
void embed_backward_unit(const Pass *p, const void *dx /* [T, h] */);

/* x is the slab's input; out [T, h]. */
void block_forward(const Pass *p, int unit, char *slab, void *out, char *keep, char *scratch);
/* dx [T, h]: gradient of the output on entry, of the input on return. With HALF_WEIGHT alone dx is not
 * touched. */
void block_backward(const Pass *p, int unit, Half half, char *slab, void *dx, char *keep, char *scratch);

/* Final norm, head and loss, fused and in chunks of loss_rows tokens: logits never exist whole. Writes the
 * loss of each token (0 where ignored) to losses [T] fp32; with training, leaves in the slab the gradient
 * with respect to the normed state, and adds the head's weight gradient (unless `defer_weight`: then
 * head_backward with HALF_WEIGHT makes the logits again). */
void head_forward(const Pass *p, char *slab, float *losses, bool training, bool defer_weight, char *scratch);
void head_backward(const Pass *p, Half half, bool deferred, char *slab, void *dx, char *scratch);

/* Inference: logits [rows, V] fp32 of `rows` states x [rows, h]. */
void head_logits(const Pass *p, int64_t rows, const void *x, void *normed /* [rows, h] */,
                 float *rstd /* [rows] */, float *logits);

#endif
