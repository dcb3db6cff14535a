/* Angles by which the heads of a position are turned (Su et al., "RoFormer", 2021). */
#ifndef WEFT_MODEL_ROTATION_H
#define WEFT_MODEL_ROTATION_H

#include "model/config.h"

/* Of table `rotation` (model_block): 0, the layers' own, or 1, that of layers with windows where a family
 * tells them apart. R/2 cosines, then R/2 sines, R = model_rotary_dim; yarn's are longer than 1. */
void rotation_angles(const ModelConfig *c, int rotation, int64_t position, float *row /* [R] */);
/* Of latent attention, what scores are multiplied by: 1 / sqrt(D), and the square of yarn's factor where the
 * file gives that for all of a head (mscale_all_dim). */
float rotation_score_scale(const ModelConfig *c);
/* Of layers without rotation, by what queries of a position are multiplied, that scores of long contexts stay
 * apart (Nakanishi, "Scalable-softmax is superior for attention", 2025). */
float rotation_query_factor(const ModelConfig *c, int64_t position);

#endif
