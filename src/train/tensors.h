/* Tensors of an engine as the checkpoint layer sees them: a description each, and callbacks that move bytes. */
#ifndef WEFT_TRAIN_TENSORS_H
#define WEFT_TRAIN_TENSORS_H

#include "checkpoint/safetensors.h"
#include "train/engine.h"

typedef struct Tensors {
    Device *device;
    TensorList list;
    TensorDesc *descriptions;
    float **memory;
} Tensors;

/* The master weights, stored in files as `stored` (SAFE_F32 or SAFE_BF16). */
Tensors *tensors_of_model(Engine *e, SafeType stored);
/* AdamW's moments, exp_avg.NAME and exp_avg_sq.NAME; with `master` the fp32 weights too, as master.NAME: for checkpoints whose
 * model file is rounded. */
Tensors *tensors_of_optimizer(Engine *e, bool master);
void tensors_free(Tensors *t); /* NULL is fine */

#endif
