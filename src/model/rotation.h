/* Angles by which the heads of a position are turned (Su et al., "RoFormer", 2021). */
#ifndef WEFT_MODEL_ROTATION_H
#define WEFT_MODEL_ROTATION_H

#include "model/config.h"

/* Of table `rotation` (model_block): 0, the layers' own, or 1, that of layers with windows where a family
 * tells them apart. R/2 cosines, then R/2 sines, R = model_rotary_dim; yarn's are longer than 1. */
void rotation_angles(const ModelConfig *c, int rotation, int64_t position, float *row /* [R] */);

#endif
