/* A roofline with measured rates. The shares below are what a model's products and attention reach of the
 * peak of large square products on CPUs; docs/use/planning.md reports how accurate this is. */
#include "forecast/machine.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "forecast/steptime.h"

/* Of the peak of large square products. */
#define PRODUCT_SHARE 0.9
#define ATTENTION_SHARE 0.5

static Hardware measure(Device *d, double peak) {
    Hardware h = {.name = "this machine",
                  .compute = {.share = PRODUCT_SHARE, .attention_share = ATTENTION_SHARE},
                  .memory = {.gb_per_s = device_copy_rate(d, 0.05, MACHINE_COPY_BYTES) / 1e9, .share = 1}};
    h.compute.bf16_tflops = h.compute.fp32_tflops = peak / 1e12;
    return h;
}

MachineTime machine_time(const RankPlan *p, Device *d, double peak) {
    Hardware h = measure(d, peak);
    OpCosts ops;
    MachineTime t = {.peak = peak};
    UnitTime *units = mem_alloc_array((size_t)p->model.table.units + 1, sizeof *units);
    opcosts_count(&ops, &h, p, units);
    for (int i = 0; i < ops.count; i++) t.step += ops.rows[i].seconds;
    free(units);
    if (!isfinite(t.step) || t.step <= 0) t.step = (double)NAN;
    return t;
}

void machine_describe(const MachineTime *t, const Config *c, const Layout *l, int64_t done, Text *out) {
    char all[16], steps[32], rate[32];
    double tokens = (double)(layout_samples(l) * c->train.context);
    if (!isfinite(t->step) || done >= c->train.steps) return;
    text_printf(
        out,
        "time    about %s for %s steps on this machine: %.3g s a step, %s tokens/s, at a peak of %.3g "
        "TFLOP/s measured now; half or twice as long is possible%s\n",
        clock_duration(config_steps_from(c, done) * t->step, all), text_count(c->train.steps - done, steps),
        t->step, text_count((int64_t)(tokens / t->step), rate), t->peak / 1e12,
        l->mesh.world > 1 ? ", and what ranks send and wait for comes on top" : "");
}
