/* Estimates the time of a step on given hardware: seconds of passes for the simulator, and of everything that
 * the simulator does not cover.
 *
 *     pass of a unit    its ops (forecast/opcosts.h), and the collectives of tp and cp inside it, in full
 *     collectives       those of parameters and gradients run one after the other on each axis, as the
 *                       program starts and awaits them; the part that passes do not hide counts
 *     update            its ops
 *
 * Nothing is measured on the target machine: the estimate is as good as the given figures. */
#ifndef WEFT_FORECAST_STEPTIME_H
#define WEFT_FORECAST_STEPTIME_H

#include "forecast/hardware.h"
#include "forecast/opcosts.h"
#include "plan/rank.h"

/* Fills the time of the collectives inside the passes of n units. */
void steptime_exposed_comm(const Hardware *h, const Mesh *mesh, const PassTraffic (*traffic)[PASS_AXES],
                           size_t n, UnitTime *units);
Cost steptime_sum(const UnitTime *t);

/* Seconds that a rank waits for gathers and reductions, if the passes of each unit take `units` (seconds,
 * [segments, layers + 2]) and nothing else is waited for. */
double steptime_exposed(const Hardware *h, const RankPlan *p, const Mesh *mesh, const Cost *units);

#endif
