/* Shapes compared as bytes. The padding between members is undefined, so it is cleared first. */
#ifndef WEFT_TESTS_SUPPORT_SHAPES_H
#define WEFT_TESTS_SUPPORT_SHAPES_H

#include <stddef.h>
#include <string.h>

#include "model/config.h"

static inline void clear_padding(RopeScaling *s) {
    size_t end = offsetof(RopeScaling, truncate) + sizeof s->truncate;
    memset((char *)s + end, 0, sizeof *s - end);
}

static inline void clear_shape_padding(ModelConfig *c) {
    size_t end = offsetof(ModelConfig, output_router_logits) + sizeof c->output_router_logits;
    memset((char *)c + end, 0, offsetof(ModelConfig, bos_token_id) - end);
    clear_padding(&c->rope_scaling);
}

#endif
