/* Optimizers for tests of training. Learning rates are 1, so that a step's factor is the rate. */
#ifndef WEFT_TESTS_OPTIMIZERS_H
#define WEFT_TESTS_OPTIMIZERS_H

#include <math.h>

#include "optimizer/groups.h"

#define USUAL_SETTINGS                                                                            \
    {                                                                                             \
        .kind = OPTIMIZER_ADAMW, .states = DTYPE_F32, .lr = 1, .weight_decay = 0.1, .beta1 = 0.9, \
        .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9                                               \
    }
static const OptimizerOptions usual_optimizer
    __attribute__((unused)) = {.settings = USUAL_SETTINGS, .clip = 1, .clip_norm = 2, .seed = 1};

/* An item of optimizer.groups that sets only its pattern. */
static inline OptimizerGroup group_of(const char *match) {
    double none = (double)NAN;
    return (OptimizerGroup){
        (char *)(uintptr_t)match, {-1, -1, none, none, none, none, none, none, -1, -1, -1}, -1, -1};
}

/* Every kind and dtype together, and unsharded matrices. `groups` has space for three. */
static inline OptimizerOptions mixed_optimizer(OptimizerGroup groups[3]) {
    OptimizerOptions o = usual_optimizer;
    groups[0] = group_of("embed|lm_head"), groups[1] = group_of("norm|bias"), groups[2] = group_of("mlp");
    groups[0].settings.kind = groups[1].settings.kind = OPTIMIZER_SGD;
    groups[0].settings.states = groups[2].settings.states = DTYPE_BF16;
    groups[0].settings.lr = 3, groups[0].settings.nesterov = 1;
    groups[1].settings.weight_decay = 0.01, groups[1].settings.momentum = 0;
    groups[2].settings.lr = 0.5, groups[2].settings.beta2 = 0.99;
    groups[0].whole = groups[2].whole = 1;
    o.groups = (ObjectList){3, (char *)groups};
    return o;
}

#endif
