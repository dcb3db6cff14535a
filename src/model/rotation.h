/* Rotary position embedding, RoPE (Su et al., "RoFormer", 2021). */
#ifndef WEFT_MODEL_ROTATION_H
#define WEFT_MODEL_ROTATION_H

#include "model/config.h"

/* One row of RoPE table `rotation` (model_block): table 0, or 1 for layers with windows in families that give
 * them another base. R/2 cosines, then R/2 sines, R = model_rotary_dim. With yarn and longrope they are
 * scaled by a factor above 1. `context` is the longest sequence that the table serves: beyond the original
 * context longrope uses other factors, for all positions. */
void rotation_angles(const ModelConfig *c, int rotation, int64_t context, int64_t position,
                     float *row /* [R] */);
/* Whether the table depends on the context: with longrope, beyond the original context. */
bool rotation_is_long(const ModelConfig *c, int64_t context);
/* MLA: factor of the scores. It is 1 / sqrt(D), times the square of yarn's factor where the file gives
 * mscale_all_dim, whatever the kind of scaling. */
float rotation_score_scale(const ModelConfig *c);
/* Layers without RoPE: factor of the queries at a position, which keeps softmax from flattening in long
 * contexts (Nakanishi, "Scalable-softmax is superior for attention", 2025). */
float rotation_query_factor(const ModelConfig *c, int64_t position);

#endif
