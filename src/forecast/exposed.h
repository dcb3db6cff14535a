/* What ranks exchange between the ops of units and is not hidden: a rank's program is walked with a clock
 * for its own work, which is that of the ops, and one for each axis that collectives are over. One begins
 * where it is started, when its axis is free, and who comes to its WAIT before its end waits. */
#ifndef WEFT_FORECAST_EXPOSED_H
#define WEFT_FORECAST_EXPOSED_H

#include "program/program.h"

typedef struct ExposedSpec {
    const ModelConfig *model; /* of the mesh */
    int64_t context;
    double tokens; /* a rank does the FLOPs of so many tokens of the whole model in a microbatch */
    double byte;   /* how long one takes, in FLOPs, */
    double delay;  /* ... and a collective beside its bytes; others may begin meanwhile */
} ExposedSpec;

/* Adds to the passes of the units that run here, over one microbatch, what they wait for, in FLOPs. What a
 * pass with dgrad and wgrad waits for, or what is recomputed for it, stands with dgrad. */
void exposed_comm(const ExposedSpec *s, const Program *p, const Model *m, Cost *units);

#endif
