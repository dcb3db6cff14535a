/* A roofline with measured rates knows what products and bytes cost, and not what a kernel makes of them: the
 * shares below are those that runs on CPUs have reached (docs/planning.md). */
#include "plan/machine.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "plan/steptime.h"

/* Of the peak of large square products. */
#define PRODUCT_SHARE 0.9
#define ATTENTION_SHARE 0.5

static Hardware measure(Device *d, double peak) {
    Hardware h = {.name = "this machine",
                  .compute = {.share = PRODUCT_SHARE, .attention_share = ATTENTION_SHARE},
                  .memory = {.gb_per_s = device_copy_rate(d, 0.05, MACHINE_ROOM) / 1e9, .share = 1}};
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
    if (getenv("SHOW")) {
        Text o = {0};
        opcosts_print(&ops, &o);
        fputs(o.data, stderr);
        fprintf(stderr, "peak %g copy %g update %g\n", peak / 1e9, h.memory.gb_per_s, ops.update);
    }
    free(units);
    if (!isfinite(t.step) || t.step <= 0) t.step = (double)NAN;
    return t;
}

void machine_describe(const MachineTime *t, const Config *c, const RankPlan *p, int64_t done, Text *out) {
    char all[16], steps[32], rate[32];
    double whole = (double)c->train.tokens_per_step, left = (double)config_tokens_from(c, done) / whole;
    if (!isfinite(t->step) || done >= c->train.steps) return;
    text_printf(
        out,
        "time    about %s for %s steps on this machine: %.3g s a step, %s tokens/s, by a peak of %.3g "
        "TFLOP/s in %s measured now; runs take up to twice that%s\n",
        clock_duration(left * t->step, all), text_count(c->train.steps - done, steps), t->step,
        text_count((int64_t)(whole / t->step), rate), t->peak / 1e12, dtype_name(p->model.compute),
        p->partition.mesh.world > 1 ? ", and what ranks send and wait for comes on top" : "");
}
