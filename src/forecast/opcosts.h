/* What a rank's step takes on given hardware, op by op: the passes of its program are run on a device that
 * does nothing and counts (device/counting.h). Each op takes as long as its FLOPs, or its bytes, at the rates
 * that the hardware is said to reach: a roofline (Williams, Waterman & Patterson, "Roofline", 2009), with
 * nothing measured in it.
 *
 * Left out are launches, what is read twice, and collectives' own sums, which run beside passes. */
#ifndef WEFT_FORECAST_OPCOSTS_H
#define WEFT_FORECAST_OPCOSTS_H

#include "base/text.h"
#include "forecast/hardware.h"
#include "plan/rank.h"

/* Of a unit's passes over a microbatch, in seconds. */
typedef struct UnitTime {
    Cost products, attention, memory, tensor, context, experts;
} UnitTime;

typedef struct OpCost {
    char name[40]; /* the op's; of a product of passes, its op's */
    double calls, flops, bytes, seconds;
    double by_memory; /* of the seconds, those that bytes decide about */
} OpCost;

enum { OP_COSTS = 128 };
typedef struct OpCosts {
    int count;
    OpCost rows[OP_COSTS]; /* of a step */
    bool splits;           /* products among them are made split by split, or by experts */
    double update;         /* seconds behind the passes: sums of gradients, figures of them, the optimizer */
} OpCosts;

/* Products, attention and memory of the units that run on this rank are added to `units`, [layers + 2]. */
void opcosts_count(OpCosts *out, const Hardware *h, const RankPlan *p, UnitTime *units);
/* A table, those that take longest first. */
void opcosts_print(const OpCosts *costs, Text *out);

#endif
