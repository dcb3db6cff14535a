/* A roofline with measured rates. The shares below are what a model's products and attention reach of the
 * peak of large square products on CPUs; docs/use/planning.md reports how accurate this is. */
#include "forecast/machine.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "model/adapters.h"
#include "forecast/steptime.h"

/* Of the peak of large square products. */
#define PRODUCT_SHARE 0.9
#define ATTENTION_SHARE 0.5

static Hardware as_hardware(const MachineRates *r) {
    Hardware h = {.name = "this machine",
                  .compute = {.share = PRODUCT_SHARE, .attention_share = ATTENTION_SHARE},
                  .memory = {.gb_per_s = r->copy / 1e9, .share = 1}};
    h.compute.bf16_tflops = h.compute.fp32_tflops = r->peak / 1e12;
    return h;
}

MachineTime machine_time(const RankPlan *p, const MachineRates *r) {
    Hardware h = as_hardware(r);
    OpCosts ops;
    MachineTime t = {.step = 0};
    UnitTime *units = mem_alloc_array((size_t)p->model.table.units + 1, sizeof *units);
    opcosts_count(&ops, &h, p, units);
    for (int i = 0; i < ops.count; i++) t.step += ops.rows[i].seconds;
    free(units);
    if (!isfinite(t.step) || t.step <= 0) t.step = (double)NAN;
    return t;
}

double machine_flops(const MachineTime *t, const Config *c, const RankPlan *p, const Layout *l) {
    double tokens = (double)(layout_samples(l) * c->train.context);
    return adapters_flops_per_token(&c->model.shape, &p->model.table, c->train.context) * tokens / t->step;
}

void machine_describe(const MachineTime *t, const MachineRates *r, const Config *c, const RankPlan *p,
                      const Layout *l, int64_t done, Text *out) {
    char all[16], steps[32], rate[32];
    double tokens = (double)(layout_samples(l) * c->train.context);
    if (!isfinite(t->step) || done >= c->train.steps) return;
    text_printf(out,
                "time    about %s for %s steps on this machine, at %.3g TFLOP/s: %.3g s a step, %s tokens/s, "
                "by a peak of %.3g TFLOP/s measured ",
                clock_duration(config_steps_from(c, done) * t->step, all),
                text_count(c->train.steps - done, steps), machine_flops(t, c, p, l) / 1e12, t->step,
                text_count((int64_t)(tokens / t->step), rate), r->peak / 1e12);
    if (r->before)
        text_printf(out, "before (remove %s to measure again)", r->before);
    else
        text_puts(out, "now");
    text_printf(out, "; half or twice as long is possible%s\n",
                l->mesh.world > 1 ? ", and what ranks send and wait for comes on top" : "");
}
