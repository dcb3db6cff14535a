/* How a run is laid out over ranks: mesh, microbatches, pipeline stages and their schedule. From the
 * configuration and the number of ranks alone: no MPI, so that any layout can be planned on any machine. */
#ifndef WEFT_PLAN_LAYOUT_H
#define WEFT_PLAN_LAYOUT_H

#include "program/partition.h"
#include "schedule/schedule.h"
#include "plan/split.h"
#include "config/config.h"

typedef struct Layout {
    Mesh mesh;
    int64_t sequences; /* of a microbatch */
    int microbatches;  /* of a step, of each data-parallel rank */
    Stages stages;
    Schedule schedule; /* lowered: with transfers */
    int smaller_count; /* of steps of the batch warm-up: how many sizes, ... */
    Schedule *smaller; /* [smaller_count] ... and their schedules, by ascending microbatches */
    StageCost *costs;  /* [stages] FLOPs of a token, as layout_unit_costs counts them */
} Layout;

/* The shape of the model must be complete. One pipeline rank takes its microbatches one after the other,
 * whatever schedule is named for others; a file's order it runs as it stands. */
ErrorCode layout_build(Layout *l, const Config *c, int world, Error *err);
/* A single rank by itself, without costs. */
ErrorCode layout_single(Layout *l, const ModelConfig *model, int microbatches, bool split_backward,
                        Error *err);
void layout_free(Layout *l);
bool layout_is_pipeline(const Layout *l); /* of more than one rank */
/* Samples that a step takes. */
int64_t layout_samples(const Layout *l);
/* FLOPs of a token in each unit, [layers + 2]: model_unit_costs of this configuration. */
void layout_unit_costs(const Config *c, StageCost *units);
/* Mesh, stages and balance, in words; nothing where there is one of each. */
void layout_describe(const Layout *l, const Config *c, Text *out);

#endif
