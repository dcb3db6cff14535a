/* Lower bounds of a layout's step time and memory, for the search of `weft plan --compare`: cheap, and never
 * above what a full forecast of the layout gives. tests/forecast/test_search.c compares the two for some
 * thousand plans.
 *
 * Costs of units come from a probe: a forecast of one microbatch with the same tp, cp, ep, etp, recomputation
 * and sequences, on as few ranks as these need. The full forecast has the same ops and collectives inside its
 * passes, so a simulation of the schedule with these costs has its makespan. Added to that:
 *
 *     exposed   the first gather and the last reduction, which no pass hides; or the time of all that crosses
 *               the data-parallel axes, minus the passes
 *     update    owned elements, read and written once
 *
 * Memory: master weights, optimizer states and gradients as they are sharded, gathered parameters, the most
 * activations that the order of passes keeps alive, and the workspaces of passes. Left out: what memory
 * arenas lose between buffers, buckets of collectives, statistics. */
#ifndef WEFT_FORECAST_BOUNDS_H
#define WEFT_FORECAST_BOUNDS_H

#include "forecast/forecast.h"

/* A point of the search space. dp_shard takes the ranks that are left. */
typedef struct Choice {
    int pp, replicas, cp, tp, ep;
    int etp;              /* 1: experts are whole although tp is more; else 0 */
    int64_t sequences;    /* of a microbatch */
    const char *schedule; /* not owned */
    int stages_per_rank;
    int segments;                 /* of a microbatch; 0: 1 */
    int recompute, sync, reshard; /* Recompute, GradientSync, Reshard */
} Choice;

typedef struct Bound {
    double time;   /* of a step, as forecast_step */
    double memory; /* bytes of the fullest rank */
} Bound;

typedef struct Probe Probe;
typedef struct KnownLayout KnownLayout;
typedef struct Bounds {
    const Config *config;
    const Device *device;
    int world;
    int64_t step; /* sequences of a step, over all ranks */
    ForecastSpeed speed;
    int layers;            /* of probes */
    Probe **probes;        /* by hash of their key */
    KnownLayout **layouts; /* likewise */
    int64_t cells;         /* of the pipelines of `layouts` */
} Bounds;

void bounds_open(Bounds *b, const Config *c, const Device *d, int world, int64_t step, ForecastSpeed speed);
void bounds_free(Bounds *b);

/* The configuration with this choice; shares the strings of the original. */
Config bounds_config(const Bounds *b, const Choice *c);
int bounds_data_ranks(const Bounds *b, const Choice *c);
/* Of a step on a data-parallel rank; 0 where the sequences of a step cannot be divided so. */
int bounds_microbatches(const Bounds *b, const Choice *c);
/* Replaces gradient_sync and reshard_after_forward by what they come to on this mesh. */
void bounds_normalize(const Bounds *b, Choice *c);

/* Of all plans with these tp, cp, ep, sequences and recompute, whatever the rest is: only the passes count,
 * evenly divided. False: there is no such plan. */
bool bounds_passes(Bounds *b, const Choice *c, Bound *out);

/* A pipeline with the costs of its stages, for all values of replicas, sync and reshard. */
typedef struct PipeBound PipeBound;
/* NULL: there is no such plan. Valid until the next one is asked for. */
PipeBound *bounds_pipe(Bounds *b, const Choice *c);
/* Of all plans with this pipeline. The time is 0 where the memory exceeds the limit. False: there is no such
 * plan. */
bool bounds_of_pipe(PipeBound *p, double limit, Bound *out);
bool bounds_of_plan(PipeBound *p, const Choice *c, Bound *out);
void bounds_pipe_free(PipeBound *p);

#endif
