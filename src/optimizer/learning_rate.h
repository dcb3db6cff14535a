/* Learning-rate schedules: pure functions of the step. */
#ifndef WEFT_OPTIMIZER_LEARNING_RATE_H
#define WEFT_OPTIMIZER_LEARNING_RATE_H

#include "optimizer/options.h"

/* Factor of the peak learning rate at 0-based step `step` of `total` steps.
 *
 * constant, linear, cosine, sqrt, wsd: TorchTitan's form. W = min(warmup, total); D decaying steps at the end
 * (decay_ratio of the total, or all that is left; wsd decays linearly over 10% unless told otherwise); warmup
 * (step + 1) / W, then 1, then down to min_factor, with one virtual step at the end so that the last real
 * step is not zero. exponential is 2 * 0.5^x - 1 at share x of the decay (Megatron's), over 20% unless told
 * otherwise. With warmup_from f a warmup goes from f to 1 instead of from 0: f + (1 - f) of what it would be.
 *
 * With the same warmup: drops goes down by sqrt(min_factor) where the decay begins, and again half way
 * through it; cosine_linear is a cosine over all steps to min_factor, cut where the decay begins and from
 * there linear to 0; inverse_sqrt is (W / (step + 1))^exponent, not below min_factor; power the same, and
 * from where the decay begins linear to min_factor.
 *
 * range: a range test (Smith, "Cyclical learning rates for training neural networks", 2015, here by factors,
 * as learning rates are compared): from min_factor, above 0, at step 0 to 1 at the last step, by the same
 * factor each step; no warmup.
 *
 * lingua_*: Lingua's formulas, whose warmup starts at 0; the cosine does not jump back to its peak at the
 * last step. */
double learning_rate_factor(const ScheduleOptions *s, int64_t total, int64_t step);

#endif
