/* Estimates how long steps should take on this machine's device. Its rates are measured; the ops of a rank's
 * step are counted (forecast/opcosts.h). Communication between ranks and waiting are not included. */
#ifndef WEFT_FORECAST_MACHINE_H
#define WEFT_FORECAST_MACHINE_H

#include "plan/rank.h"

typedef struct MachineTime {
    double peak; /* of matrix products in the compute dtype, FLOP/s */
    double step; /* seconds of a full step; NaN where nothing could be measured */
} MachineTime;

/* The estimate for one rank; `peak` comes from device_matmul_peak. Takes some hundredths of a second to
 * measure the speed of copying memory, in at most MACHINE_COPY_BYTES bytes. */
enum { MACHINE_COPY_BYTES = 48 << 20 };
MachineTime machine_time(const RankPlan *p, Device *d, double peak);
/* Appends one line about the steps after `done`; nothing where the time is not known. */
void machine_describe(const MachineTime *t, const Config *c, const Layout *l, int64_t done, Text *out);

#endif
