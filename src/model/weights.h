/* The weights of a model on one device: fp32 master copies, flat per unit in the order of the parameter table, and the copy in
 * the compute dtype that the products read. With compute fp32 the two are the same memory. */
#ifndef WEFT_MODEL_WEIGHTS_H
#define WEFT_MODEL_WEIGHTS_H

#include "base/memory.h"
#include "device/device.h"
#include "model/params.h"

typedef struct Weights {
    const ParamTable *table;
    Dtype compute;
    float *master;  /* [unit_start[units]] fp32 */
    uint16_t *copy; /* same shape in bf16, or NULL when compute is fp32 */
} Weights;

/* Takes the memory from two pools (dry or real; see memory.h). */
void weights_layout(Weights *w, const ParamTable *table, Dtype compute, Pool *master, Pool *copy);

float *weights_master(const Weights *w, const Param *p);
/* A matrix in the compute dtype. */
const void *weights_matrix(const Weights *w, const Param *p);

/* Fills every parameter by its rule: a function of (seed, name, element) alone. */
void weights_initialise(Weights *w, Device *d, const ModelConfig *c, InitKind kind, double std, uint64_t seed);
/* Makes the compute copy anew from the master weights of one parameter. */
void weights_refresh(Weights *w, Device *d, const Param *p);
void weights_refresh_all(Weights *w, Device *d);

#endif
