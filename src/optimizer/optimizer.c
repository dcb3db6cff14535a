/* The table of optimizers, and the functions that connect an entry to its op.
 *
 * Numbers are computed in double and rounded once, when they are passed to an op: in fp32, 1 - beta^t would
 * lose digits if beta is near 1. Values that are the same for all elements of a group in a step (learning
 * rate, corrections, clip coefficient) are uploaded once, as tensor memory (OptimizerStep); constants are
 * passed with each call.
 *
 * To add an optimizer: an op with its reference (device/ops/optimizer.h), an entry here, its name in
 * OPTIMIZER_NAMES (optimizer/options.h). Memory plan, checkpoints, replica checks, inspection and the groups'
 * messages read the entry. */
#include "optimizer/optimizer.h"

#include <math.h>

#include "device/ops/optimizer.h"

static int adamw_states(const OptimizerSettings *s) {
    (void)s;
    return 2;
}

/* Loshchilov and Hutter 2019: weight decay is not part of the moments. */
static void adamw_update(Device *d, const OptimizerSettings *s, const OptimizerStep *step,
                         const UpdateRun *r) {
    AdamW a = {.beta1 = (float)s->beta1,
               .beta2 = (float)s->beta2,
               .eps = (float)s->eps,
               .weight_decay = (float)r->weight_decay};
    OP(d, adamw, .n = r->count, .constants = a, .s = r->store, .step = step, .param = r->param,
       .grad = r->grad, .m = r->state[0], .v = r->state[1], .copy = r->copy);
}

/* Without momentum there is no state, and no memory is planned. */
static int sgd_states(const OptimizerSettings *s) { return s->momentum > 0; }

static void sgd_update(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r) {
    Sgd o = {.momentum = (float)s->momentum, .weight_decay = (float)r->weight_decay, .nesterov = s->nesterov};
    OP(d, sgd, .n = r->count, .constants = o, .s = r->store, .step = step, .param = r->param, .grad = r->grad,
       .momentum = r->state[0], .copy = r->copy);
}

static int muon_states(const OptimizerSettings *s) {
    (void)s;
    return 1;
}

/* FLOPs of the formulas in device/ops/optimizer.h, counting a root or a quotient as one. */
static const Optimizer optimizers[OPTIMIZER_KINDS] = {
    [OPTIMIZER_ADAMW] = {.name = "adamw",
                         .keeps = "moments",
                         .reads = "lr, weight_decay, beta1, beta2, eps",
                         .state = {{"exp_avg", "the first moment"}, {"exp_avg_sq", "the second moment"}},
                         .flops = 16,
                         .states = adamw_states,
                         .update = adamw_update},
    [OPTIMIZER_SGD] = {.name = "sgd",
                       .keeps = "momentum",
                       .reads = "lr, weight_decay, momentum, nesterov",
                       .state = {{"momentum_buffer", "the momentum"}},
                       .flops = 9,
                       .states = sgd_states,
                       .update = sgd_update},
    [OPTIMIZER_MUON] = {.name = "muon",
                        .keeps = "momentum",
                        .reads = "lr, weight_decay, momentum, nesterov, muon_scale, muon_coefficients",
                        .momentum = "0.95",
                        .nesterov = "true",
                        .state = {{"momentum_buffer", "the momentum"}},
                        .flops = 13,
                        .matrices = &muon_matrices,
                        .states = muon_states,
                        .update = muon_update},
};

const Optimizer *optimizer_of(OptimizerKind kind) {
    CHECK((unsigned)kind < OPTIMIZER_KINDS);
    return &optimizers[kind];
}

/* A decay near 1 would remember the initial weights for long. So until as many updates have been made as the
 * decay stands for, a smaller one is used, with which the average covers about the last tenth of the
 * updates. */
static double average_share(const UpdateStep *step) {
    double t = (double)step->updates;
    return step->ema > 0 ? 1 - fmin(step->ema, (1 + t) / (10 + t)) : 0;
}

/* Corrections are for moments that start at zero (Kingma and Ba 2015, section 3); an optimizer without
 * moments does not read them. */
OptimizerStep optimizer_step(const OptimizerSettings *s, const UpdateStep *step) {
    return (OptimizerStep){.lr = (float)(s->lr * step->lr_factor),
                           .correction1 = (float)(1 - pow(s->beta1, (double)step->updates)),
                           .correction2 = (float)(1 - pow(s->beta2, (double)step->updates)),
                           .grad_scale = (float)step->clip_coefficient,
                           .average = (float)average_share(step),
                           .number = (uint64_t)step->updates};
}

size_t optimizer_state_bytes(const OptimizerSettings *s) {
    return (size_t)optimizer_of((OptimizerKind)s->kind)->states(s) * dtype_bytes((Dtype)s->states);
}

size_t optimizer_scratch_bytes(const Optimizer *o, const Param *p) {
    size_t most = 0;
    for (int k = 0; o->matrices && k < param_matrices(p); k++) {
        ParamMatrix m = param_matrix(p, k);
        size_t bytes = o->matrices->scratch(&m);
        if (bytes > most) most = bytes;
    }
    return most;
}

double optimizer_flops(const Optimizer *o, const Param *p) {
    double sum = o->flops * (double)p->count;
    for (int k = 0; o->matrices && k < param_matrices(p); k++) {
        ParamMatrix m = param_matrix(p, k);
        sum += o->matrices->flops(&m);
    }
    return sum;
}
