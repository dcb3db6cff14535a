/* How long a step should take on given hardware: seconds of passes for the simulator, and of all that it does
 * not know of.
 *
 *     pass of a unit    its ops (forecast/opcosts.h), and the collectives of tp and cp inside it, in full
 *     collectives       of parameters and gradients, one after the other on each axis, as the program starts
 *                       and awaits them: what passes do not hide counts
 *     update            its ops
 *
 * Nothing here is measured on the machine that is meant: it is as right as the figures that it is given. */
#ifndef WEFT_FORECAST_STEPTIME_H
#define WEFT_FORECAST_STEPTIME_H

#include "program/comm_volume.h"
#include "forecast/hardware.h"
#include "forecast/opcosts.h"
#include "plan/rank.h"

/* What crosses inside the passes of all units of the mesh's model, [layers + 2]. */
void steptime_exposed_comm(const Hardware *h, const CommVolumeSpec *s, UnitTime *units);
Cost steptime_sum(const UnitTime *t);

/* Seconds that a rank waits for gathers and reductions, when the passes of each unit take `units` (seconds,
 * [layers + 2]) and nothing else is waited for. */
double steptime_exposed(const Hardware *h, const RankPlan *p, const Mesh *mesh, const Cost *units);

#endif
