/* Addresses of a model's weights while products read them: the flats of each unit, vectors in fp32 and
 * matrices in the compute dtype. The memory may be the master weights, a copy, or a gathered buffer that is
 * released again. The model does not own it: whoever runs a pass sets the pointers. */
#ifndef WEFT_MODEL_WEIGHTS_H
#define WEFT_MODEL_WEIGHTS_H

#include "device/device.h"
#include "model/params.h"

typedef struct UnitWeights {
    const void *flats[FLATS]; /* in the flat's dtype */
} UnitWeights;

typedef struct Weights {
    const ParamTable *table;
    Dtype compute;
    UnitWeights *units; /* [units] */
} Weights;

/* Dtype in which passes read a flat. */
Dtype flat_dtype(Flat flat, Dtype compute);
const float *weights_vector(const Weights *w, const Param *p);
/* A matrix in the compute dtype. */
const void *weights_matrix(const Weights *w, const Param *p);

/* Gradients, fp32, laid out as the weights of a unit. Where the last unit reads the embedding too (tied head,
 * or the token lookup of an MTP module), that gradient is a unit of its own, after the last one. It is added
 * to the embedding's once per step, so the order of the sum does not depend on the schedule. */
typedef struct UnitGradients {
    float *flats[FLATS];
} UnitGradients;

/* With exact chunks (unit.h: CpGroup), each flat exists once for each local exact chunk, one after the
 * other. */
typedef struct Gradients {
    const ParamTable *table;
    UnitGradients *units; /* [units + 1] */
    bool tied;
    int rows; /* partial sums, of splits of tokens or of heads, that vectors have a row for; 0: 1 */
} Gradients;

float *gradient_of(const Gradients *g, const Param *p);
float *gradient_of_exact_chunk(const Gradients *g, const Param *p, int exact_chunk);
/* If tied: the last unit's gradient of the embedding, laid out as unit 0. */
float *gradient_tied(const Gradients *g, int exact_chunk);
/* Stride in elements from one exact chunk's flat to the next one's. */
size_t gradient_exact_chunk(const Gradients *g, int unit, Flat flat);
/* Offset of the parameter in the gradient of its flat, in elements. */
size_t gradient_offset(const Gradients *g, const Param *p);

#endif
