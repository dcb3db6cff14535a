/* The time of a rank's step on given hardware, op by op. The passes of its program run on a device that only
 * counts (device/counting.h). Each op takes the longer of the times for its FLOPs and for its bytes, at the
 * rates that the hardware is assumed to reach: a roofline (Williams, Waterman & Patterson, "Roofline", 2009)
 * without any measurement.
 *
 * Kernel launches, repeated reads, and the sums inside collectives, which run concurrently with passes, are
 * left out. */
#ifndef WEFT_FORECAST_OPCOSTS_H
#define WEFT_FORECAST_OPCOSTS_H

#include "base/text.h"
#include "forecast/hardware.h"
#include "plan/rank.h"

/* Seconds of a unit's passes over a microbatch. */
typedef struct UnitTime {
    Cost products, attention, memory, tensor, context, experts;
} UnitTime;

typedef struct OpCost {
    char name[40]; /* of the kernel; for a product in a pass, of its op */
    double calls, flops, bytes, seconds;
    double by_memory; /* part of the seconds that is bound by bytes */
} OpCost;

enum { OP_COSTS = 128 };
typedef struct OpCosts {
    int count;
    OpCost rows[OP_COSTS]; /* of a step */
    bool splits;           /* some products are split-K or grouped by experts */
    double update;         /* seconds after the passes: sums and statistics of gradients, optimizer */
} OpCosts;

/* Adds products, attention and memory of the units that run on this rank to `units`,
 * [segments, layers + 2]. */
void opcosts_count(OpCosts *out, const Hardware *h, const RankPlan *p, UnitTime *units);
/* Appends a table, slowest ops first. */
void opcosts_print(const OpCosts *costs, Text *out);

#endif
