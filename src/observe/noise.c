/* Both means begin at zero and are too small alike at first, which their ratio does not see. */
#include "observe/noise.h"

#include <math.h>

#define KEPT 0.99 /* of a mean, at each step */

void noise_add(NoiseMean *m, double signal, double variance) {
    if (!isfinite(signal) || !isfinite(variance)) return;
    m->signal = KEPT * m->signal + (1 - KEPT) * signal;
    m->variance = KEPT * m->variance + (1 - KEPT) * variance;
}

double noise_scale(const NoiseMean *m) {
    return m->signal > 0 && m->variance > 0 ? m->variance / m->signal : (double)NAN;
}
