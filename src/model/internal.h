/* Sizes that block.c and head.c tell unit.c. Bytes for one microbatch. */
#ifndef WEFT_MODEL_INTERNAL_H
#define WEFT_MODEL_INTERNAL_H

#include "model/unit.h"

void block_sizes(const Model *m, size_t *slab, size_t *keep, size_t *scratch);
size_t head_slab_bytes(const Model *m);
size_t head_scratch_bytes(const Model *m);

#endif
