#include "observe/goodput.h"

#include <math.h>

void goodput_begin(Goodput *g, double wall) { *g = (Goodput){.began = wall}; }

/* Records of older versions have no such figures: then the run begins now. */
void goodput_resume(Goodput *g, const MetricsTable *records, int64_t step) {
    for (size_t i = 0; i < records->step_count; i++) {
        const StepMetrics *m = &records->steps[i];
        if (!isfinite(m->run_seconds) || !isfinite(m->goodput)) continue;
        g->began = m->wall - m->run_seconds;
        if (m->step > step) break;
        g->counted = m->goodput * m->run_seconds + m->step_seconds * (double)(step - m->step);
    }
}

void goodput_step(Goodput *g, double seconds, bool skipped) { g->counted += skipped ? 0 : seconds; }

void goodput_fill(const Goodput *g, StepMetrics *m) {
    m->run_seconds = m->wall - g->began;
    m->goodput = m->run_seconds > 0 ? g->counted / m->run_seconds : (double)NAN;
}
