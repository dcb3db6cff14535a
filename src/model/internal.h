/* Internal to the files that build units from layers. */
#ifndef WEFT_MODEL_INTERNAL_H
#define WEFT_MODEL_INTERNAL_H

#include "model/unit.h"

/* An op of a unit: an op of a sublayer's layer, or what the unit itself does around the layer. */
typedef enum StepKind {
    STEP_ENTER,       /* adds the previous sublayer's result to the stream; then the norm before the layer */
    STEP_LAYER,       /* an op of the layer */
    STEP_NORM_BEHIND, /* the norm after the layer */
    STEP_ADD          /* adds the last result to the stream: the unit's output */
} StepKind;

typedef struct Step {
    StepKind kind;
    int sublayer;
    const LayerOp *op; /* of STEP_LAYER */
    bool last;         /* the layer's last op, which makes its result */
    Lifetime makes;
} Step;

/* Returns the number of steps. */
int unit_steps(const ModelConfig *c, int unit, Step steps[UNIT_OPS]);
Step unit_step(const ModelConfig *c, int unit, int op); /* one of them */

/* The tensors of a sublayer. One that stands alone has only x, which equals n; in the embedding neither. */
typedef struct SublayerTensors {
    void *x;     /* [T, h] the stream before it */
    float *rstd; /* [T] of the norm before the layer */
    void *n;     /* [T, h] what the layer is applied to: normed, or the stream itself */
    /* [T, h] gradient of the layer's result, where that is not dx: after a norm, and for a separate wgrad */
    void *dy;
    void *result;    /* [T, h] the layer's result, if a norm follows or if it begins a stream; else NULL */
    float *out_rstd; /* [T] of that norm */
    void *inner;     /* [T, r] x A^T of the adapter whose B is replicated (product.c) */
    void *layer[LAYER_TENSORS];
} SublayerTensors;

typedef struct UnitTensors {
    void *dn;      /* [T, h] gradient of a layer's input; during recomputation, the layer's result */
    void *dstream; /* [T, h] gradient of a stream that begins in the unit; NULL: the stream passes through */
    Shared shared;
    AdapterScratch adapters;
    SublayerTensors sublayers[UNIT_SUBLAYERS];
} UnitTensors;

/* Addresses of a unit's tensors in the memory of a pass. */
void unit_tensors(const UnitPass *u, UnitTensors *out);
/* Whether a tensor of this lifetime is saved until the backward pass. */
bool lifetime_stays(Lifetime life, Recompute recompute);
/* Lifetime of the stream before the `index`-th sublayer: before the first, that is the unit's input. */
Lifetime stream_lifetime(int index);

#endif
