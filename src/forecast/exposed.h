/* Finds the part of collectives inside passes that no work hides. It walks a rank's program with one clock
 * for the rank's own work, which is that of the ops, and one clock for each axis with collectives. A
 * collective begins when it is started and its axis is free; a rank that reaches its WAIT earlier waits until
 * the end. */
#ifndef WEFT_FORECAST_EXPOSED_H
#define WEFT_FORECAST_EXPOSED_H

#include "program/program.h"

typedef struct ExposedSpec {
    const ModelConfig *model; /* the unsharded model */
    int64_t context;
    double tokens; /* a rank computes as many FLOPs in a microbatch as the full model for so many tokens */
    double byte;   /* time of a byte, in FLOPs */
    double delay;  /* latency of a collective, in FLOPs; others may begin meanwhile */
} ExposedSpec;

/* Adds the waiting time of the units that run here, over one microbatch, in FLOPs. Waiting in a pass with
 * both dgrad and wgrad, or in recomputation for it, counts as dgrad. */
void exposed_comm(const ExposedSpec *s, const Program *p, const Model *m, Cost *units);

#endif
