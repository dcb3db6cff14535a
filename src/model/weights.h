/* Where the weights of a model are while products read them: per unit, its flats, vectors in fp32 and
 * matrices in the compute dtype. Who holds that memory - the master weights themselves, a copy, or a
 * gathered buffer that comes and goes - is not the model's business: whoever runs a pass sets the
 * pointers. */
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

/* What passes read a flat in. */
Dtype flat_dtype(Flat flat, Dtype compute);
const float *weights_vector(const Weights *w, const Param *p);
/* A matrix in the compute dtype. */
const void *weights_matrix(const Weights *w, const Param *p);

/* Gradients, fp32, laid out as the weights of a unit. Where the last unit reads the embedding too (it is tied
 * to the head, or an MTP module looks tokens up), what comes of that is a unit of its own, behind the last:
 * it is added to the embedding's once a step, so that its order does not depend on the schedule. */
typedef struct UnitGradients {
    float *flats[FLATS];
} UnitGradients;

/* Where tokens have exact chunks (unit.h: CpGroup), a flat is there as often as this rank has of them. */
typedef struct Gradients {
    const ParamTable *table;
    UnitGradients *units; /* [units + 1] */
    bool tied;
    int rows; /* leaves of tokens, or heads, that vectors have a row for, one after the other; 0: 1 */
} Gradients;

float *gradient_of(const Gradients *g, const Param *p);
float *gradient_of_exact_chunk(const Gradients *g, const Param *p, int exact_chunk);
/* Tied: of what the last unit reads of the embedding, as all of unit 0. */
float *gradient_tied(const Gradients *g, int exact_chunk);
/* Elements from one exact chunk's flat to the next one's. */
size_t gradient_exact_chunk(const Gradients *g, int unit, Flat flat);
/* Elements before it in the gradient of its flat. */
size_t gradient_place(const Gradients *g, const Param *p);

#endif
