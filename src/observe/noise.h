/* The gradient noise scale of a run: a ratio of two means over the last steps. Each step brings estimates of
 * |G|^2 and of the variance of a target's gradient (engine/record.h), either of which may be negative, since
 * they are differences; their ratio would be biased and wild, the ratio of their means is not. McCandlish et
 * al., "An empirical model of large-batch training", 2018: about so many targets make a step whose noise is
 * as large as its signal. */
#ifndef WEFT_OBSERVE_NOISE_H
#define WEFT_OBSERVE_NOISE_H

/* Means that forget: about the last 100 steps count. All zero: no step has been added. */
typedef struct NoiseMean {
    double signal, variance;
} NoiseMean;

/* Steps without an estimate (NaN) add nothing. */
void noise_add(NoiseMean *m, double signal, double variance);
/* In targets; NaN while the means do not say: none, or no signal above the noise of the estimate. */
double noise_scale(const NoiseMean *m);

#endif
