/* The gradient noise scale of a run: the ratio of two running means. Each step gives estimates of |G|^2 and
 * of the variance of a target's gradient (engine/record.h). Either may be negative, since they are
 * differences. Their ratio would be biased and noisy; the ratio of their means is not. McCandlish et al., "An
 * empirical model of large-batch training", 2018: with about this many targets per step, noise is as large as
 * signal. */
#ifndef WEFT_OBSERVE_NOISE_H
#define WEFT_OBSERVE_NOISE_H

/* Exponentially decaying means over about the last 100 steps. All zero: no step yet. */
typedef struct NoiseMean {
    double signal, variance;
} NoiseMean;

/* Steps without an estimate (NaN) add nothing. */
void noise_add(NoiseMean *m, double signal, double variance);
/* In targets; NaN when there are no estimates yet, or the signal is not above the noise of the estimate. */
double noise_scale(const NoiseMean *m);

#endif
