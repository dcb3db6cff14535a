/* Angles by which the heads of a position are turned (Su et al., "RoFormer", 2021). */
#ifndef WEFT_MODEL_ROTATION_H
#define WEFT_MODEL_ROTATION_H

#include "model/config.h"

/* Of table `rotation` (model_block): 0, the layers' own, or 1, that of layers with windows where a family
 * tells them apart. R/2 cosines, then R/2 sines, R = model_rotary_dim; yarn's and longrope's are longer
 * than 1. `context` is the longest sequence that the table is for: beyond the original context longrope has
 * other factors, for all positions. */
void rotation_angles(const ModelConfig *c, int rotation, int64_t context, int64_t position,
                     float *row /* [R] */);
/* Whether a context of so many has other angles than shorter ones: longrope's, beyond the original one. */
bool rotation_is_long(const ModelConfig *c, int64_t context);
/* Of latent attention, what scores are multiplied by: 1 / sqrt(D), and the square of yarn's factor where the
 * file gives that for all of a head (mscale_all_dim), with whatever kind of scaling. */
float rotation_score_scale(const ModelConfig *c);
/* Of layers without rotation, by what queries of a position are multiplied, that scores of long contexts stay
 * apart (Nakanishi, "Scalable-softmax is superior for attention", 2025). */
float rotation_query_factor(const ModelConfig *c, int64_t position);

#endif
