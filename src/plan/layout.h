/* How a run is laid out over ranks: mesh, microbatches, pipeline stages and their schedule. From the
 * configuration and the number of ranks alone: no MPI, so that any layout can be planned on any machine. */
#ifndef WEFT_PLAN_LAYOUT_H
#define WEFT_PLAN_LAYOUT_H

#include "plan/rank.h"
#include "plan/split.h"
#include "config/config.h"

typedef struct Layout {
    Mesh mesh;
    int64_t sequences; /* of a microbatch */
    int microbatches;  /* of a step, of each data-parallel rank */
    bool piped;        /* more than one pipeline rank, or several stages: there is a schedule */
    Stages stages;
    Schedule schedule; /* lowered: with transfers */
    StageCost *costs;  /* [stages] FLOPs of a token, as layout_unit_costs counts them */
} Layout;

/* The shape of the model must be complete. */
ErrorCode layout_build(Layout *l, const Config *c, int world, Error *err);
void layout_free(Layout *l);
/* Samples that a step takes. */
int64_t layout_samples(const Layout *l);
/* What rank `rank` runs: for rank_plan, while the layout stays. */
RankSpec layout_rank(const Layout *l, const Config *c, const Device *d, int rank);
/* FLOPs of a token in each unit, [layers + 2], as the engine does them: what is recomputed is in the input
 * half of the backward pass, and the head makes both its gradients with its forward pass. */
void layout_unit_costs(const Config *c, StageCost *units);
/* Mesh, stages and balance, in words; nothing for a single rank. */
void layout_describe(const Layout *l, const Config *c, Text *out);

#endif
