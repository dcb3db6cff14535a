/* Tensors of an engine as the checkpoint layer sees them: a description each, and callbacks that move bytes.
 */
#ifndef WEFT_TRAIN_TENSORS_H
#define WEFT_TRAIN_TENSORS_H

#include "checkpoint/modelfiles.h"
#include "engine/engine.h"

/* To save, each element is in the list of exactly one rank; to load, in those of all ranks that own it. */
typedef enum TensorsUse { TENSORS_TO_LOAD, TENSORS_TO_SAVE } TensorsUse;

typedef struct Tensors {
    const Engine *engine;
    TensorsUse use;
    TensorList list;
    TensorDesc *descriptions;
    TensorSegment *segments;
    void **memory; /* of each piece */
} Tensors;

/* What a checkpoint has as its model, stored in files as `stored` (SAFE_F32 or SAFE_BF16): the master
 * weights; where there are adapters these alone, by the names that PEFT has for them. */
Tensors *tensors_of_model(const Engine *e, TensorsUse use, SafeType stored);
/* The weights of a model directory, adapters not among them. */
Tensors *tensors_of_base(const Engine *e, TensorsUse use);
/* What the optimizer keeps, as STATE.NAME (exp_avg.NAME) in the dtype that it is kept in; with `master` the
 * fp32 weights too, as master.NAME: for checkpoints whose model file is rounded. `from`: the file to load, in
 * which what only some checkpoints have is looked for; NULL: to save. */
Tensors *tensors_of_optimizer(const Engine *e, const ModelFiles *from, bool master);
/* Of these, to save, what no model file has a place for: biases of experts. NULL where there is none. */
Tensors *tensors_of_kept(const Engine *e);
/* The average of the weights, by the names of the weights, in fp32. NULL where none is kept. */
Tensors *tensors_of_average(const Engine *e, TensorsUse use);
void tensors_free(Tensors *t); /* NULL is fine */

#endif
