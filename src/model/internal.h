/* Between the files that put units together from layers. */
#ifndef WEFT_MODEL_INTERNAL_H
#define WEFT_MODEL_INTERNAL_H

#include "model/unit.h"

/* A part of a unit: of a sublayer's layer, or what the unit itself does around it. */
typedef enum StepKind {
    STEP_ENTER, /* the result of the sublayer before is added to the stream; then the norm before the layer */
    STEP_LAYER, /* a part of the layer */
    STEP_NORM_BEHIND, /* the norm after the layer */
    STEP_ADD          /* the last result added to the stream: the unit's output */
} StepKind;

typedef struct Step {
    StepKind kind;
    int sublayer;
    const LayerOp *op; /* of STEP_LAYER */
    bool last;         /* of its layer's parts: makes its result */
    Lifetime makes;
} Step;

/* Returns how many. */
int unit_steps(const ModelConfig *c, int unit, Step steps[UNIT_OPS]);
Step unit_step(const ModelConfig *c, int unit, int op); /* one of them */

/* The tensors of a sublayer. Of one that stands alone x alone is there, which is n, or nothing. */
typedef struct SublayerTensors {
    void *x;     /* [T, h] the stream before it */
    float *rstd; /* [T] of the norm before the layer */
    void *n;     /* [T, h] what the layer is applied to: normed, or the stream itself */
    /* [T, h] gradient of the layer's result, where it is not the stream's: behind a norm, and for wgrad
     * alone */
    void *dy;
    void *result; /* [T, h] of the layer, where a norm follows it, or where it begins a stream; else NULL */
    float *out_rstd; /* [T] of that norm */
    void *inner;     /* [T, r] x A^T of the adapter whose B is joint (product.c) */
    void *layer[LAYER_TENSORS];
} SublayerTensors;

typedef struct UnitTensors {
    void *dn;      /* [T, h] gradient of a layer's input, and what it makes when that is done again */
    void *dstream; /* [T, h] gradient of a stream that begins in the unit; NULL: it goes through it */
    Shared shared;
    AdapterRoom adapters;
    SublayerTensors sublayers[UNIT_SUBLAYERS];
} UnitTensors;

/* Where a unit's tensors are in its memory. */
void unit_tensors(const Model *m, int unit, char *slab, char *keep, char *scratch, UnitTensors *out);
/* Whether what has this lifetime is still there when the backward pass comes. */
bool lifetime_stays(Lifetime life, Recompute recompute);
/* Of the stream before the `index`-th sublayer: the first one's is the unit's input. */
Lifetime stream_lifetime(int index);

#endif
