/* Tensors of an engine as checkpoint/ sees them: a description of each, and callbacks that move bytes. */
#ifndef WEFT_TRAIN_TENSORS_H
#define WEFT_TRAIN_TENSORS_H

#include "checkpoint/modelfiles.h"
#include "engine/engine.h"

/* When saving, each element is in the list of exactly one rank; when loading, in those of all ranks that own
 * it. */
typedef enum TensorsUse { TENSORS_TO_LOAD, TENSORS_TO_SAVE } TensorsUse;

typedef struct Tensors {
    const Engine *engine;
    TensorsUse use;
    TensorList list;
    TensorDesc *descriptions;
    TensorSegment *segments;
    void **memory; /* [segments] address of each */
} Tensors;

/* The tensors of a checkpoint's model files, stored as `stored` (SAFE_F32 or SAFE_BF16): the master weights,
 * or with adapters only these, under PEFT's names. */
Tensors *tensors_of_model(const Engine *e, TensorsUse use, SafeType stored);
/* The weights of a model directory, without adapters. */
Tensors *tensors_of_base(const Engine *e, TensorsUse use);
/* The optimizer's states as STATE.NAME (exp_avg.NAME), in the dtype that they have in memory. With `master`
 * also the fp32 weights as master.NAME, for checkpoints whose model file is rounded. from: the file to load,
 * because some tensors exist in some checkpoints only; NULL: to save. */
Tensors *tensors_of_optimizer(const Engine *e, const ModelFiles *from, bool master);
/* For saving: those of them that model files cannot hold, the biases of experts. NULL if there are none. */
Tensors *tensors_of_kept(const Engine *e);
/* The average of the weights, under the names of the weights, in fp32. NULL if none is kept. */
Tensors *tensors_of_average(const Engine *e, TensorsUse use);
void tensors_free(Tensors *t); /* NULL is allowed */

#endif
