/* Estimates how long steps should take on this machine's device. Its rates are measured; the ops of a rank's
 * step are counted (forecast/opcosts.h). Communication between ranks and waiting are not included. */
#ifndef WEFT_FORECAST_MACHINE_H
#define WEFT_FORECAST_MACHINE_H

#include "forecast/rates.h"
#include "plan/rank.h"

typedef struct MachineTime {
    double step; /* seconds of a full step; NaN where nothing could be measured */
} MachineTime;

/* The estimate for one rank. */
MachineTime machine_time(const RankPlan *p, const MachineRates *r);
/* FLOP/s of the model in training, over the full step. */
double machine_flops(const MachineTime *t, const Config *c, const RankPlan *p, const Layout *l);
/* Appends one line about the steps after `done`; nothing where the time is not known. */
void machine_describe(const MachineTime *t, const MachineRates *r, const Config *c, const RankPlan *p,
                      const Layout *l, int64_t done, Text *out);

#endif
