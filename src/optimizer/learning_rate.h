/* Learning-rate schedules: pure functions of the step. */
#ifndef WEFT_OPTIMIZER_LEARNING_RATE_H
#define WEFT_OPTIMIZER_LEARNING_RATE_H

#include "optimizer/options.h"

/* Factor of the peak learning rate at 0-based step `step` of `total` steps.
 *
 * constant, linear, cosine, sqrt, wsd: as TorchTitan defines them. The warmup takes W = min(warmup, total)
 * steps, the factor being (step + 1) / W; then the factor is 1; the last D steps decay it to min_factor. D is
 * decay_ratio of the total, or all steps after the warmup; the default for wsd is a linear decay over 10%.
 * One virtual step at the end keeps the last real step above zero. exponential is 2 * 0.5^x - 1 at fraction x
 * of the decay (Megatron's), by default over 20%. With warmup_from f the warmup goes from f to 1 instead of
 * from 0: f + (1 - f) times the factor above.
 *
 * With the same warmup: drops multiplies by sqrt(min_factor) where the decay begins and again half way
 * through it; cosine_linear is a cosine over all steps to min_factor, cut off where the decay begins, and
 * from there linear to 0; inverse_sqrt is (W / (step + 1))^exponent, not below min_factor; power is the same,
 * and linear to min_factor from where the decay begins.
 *
 * range is a learning-rate range test (Smith, "Cyclical learning rates for training neural networks", 2015,
 * but geometric, since learning rates are compared by their ratios): from min_factor, which is above 0, at
 * step 0 to 1 at the last step, by the same factor each step, without warmup.
 *
 * lingua_*: Lingua's formulas. Their warmup starts at 0; here the cosine does not jump back to its peak at
 * the last step. */
double learning_rate_factor(const LrScheduleOptions *s, int64_t total, int64_t step);

#endif
