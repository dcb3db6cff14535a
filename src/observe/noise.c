/* Both means start at zero and are equally biased at first, so the bias cancels in their ratio. */
#include "observe/noise.h"

#include <math.h>

#define KEPT 0.99 /* weight of the old mean at each step */

void noise_add(NoiseMean *m, double signal, double variance) {
    if (!isfinite(signal) || !isfinite(variance)) return;
    m->signal = KEPT * m->signal + (1 - KEPT) * signal;
    m->variance = KEPT * m->variance + (1 - KEPT) * variance;
}

double noise_scale(const NoiseMean *m) {
    return m->signal > 0 && m->variance > 0 ? m->variance / m->signal : (double)NAN;
}
