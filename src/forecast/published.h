/* How far plans of published runs were from the runs: the error bar of a prediction
 * (docs/lab/published-runs.md). `make plan-cases` computes the figures, and fails where the table has
 * others. */
#ifndef WEFT_FORECAST_PUBLISHED_H
#define WEFT_FORECAST_PUBLISHED_H

#include "config/config.h"

typedef struct Published {
    const char *group; /* "dense models across machines" */
    int runs;
    double least, most; /* measured over planned seconds of a step, nine of ten runs */
} Published;

/* The published runs that are like a run of `c` on `world` ranks; NULL where none is. */
const Published *published_like(const Config *c, int world, int ranks_of_machine);

#endif
