/* Describes a run as text before it starts. */
#ifndef WEFT_FORECAST_DESCRIBE_H
#define WEFT_FORECAST_DESCRIBE_H

#include "plan/rank.h"

/* Model, step, device, mesh and stages. */
void describe_work(const Config *c, const Layout *l, const RankPlan *p, const Device *d, Text *out);
/* The same, followed by the memory of this rank by category. */
void describe_run(const Config *c, const Layout *l, const RankPlan *p, const Device *d, Text *out);

#endif
