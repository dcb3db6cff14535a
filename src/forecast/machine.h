/* How long steps should take on the device that is here: its rates are measured, the ops of a rank's step
 * counted (forecast/opcosts.h). What ranks send each other, and wait for, is not in it. */
#ifndef WEFT_FORECAST_MACHINE_H
#define WEFT_FORECAST_MACHINE_H

#include "plan/rank.h"

typedef struct MachineTime {
    double peak; /* of matrix products in the compute dtype, FLOP/s */
    double step; /* seconds of a whole step; NaN where nothing could be measured */
} MachineTime;

/* Of one rank; `peak`: device_matmul_peak. Measures for some hundredths of a second how fast memory is
 * copied, in MACHINE_ROOM bytes at most. */
enum { MACHINE_ROOM = 48 << 20 };
MachineTime machine_time(const RankPlan *p, Device *d, double peak);
/* In one line, of the steps behind `done`; nothing where the time is not known. */
void machine_describe(const MachineTime *t, const Config *c, const Layout *l, int64_t done, Text *out);

#endif
