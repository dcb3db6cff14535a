/* The layout of a run over ranks: mesh, microbatches, pipeline stages and their schedule. It follows from the
 * configuration and the number of ranks alone, without MPI, so any layout can be planned on any machine. */
#ifndef WEFT_PLAN_LAYOUT_H
#define WEFT_PLAN_LAYOUT_H

#include "program/partition.h"
#include "schedule/schedule.h"
#include "plan/split.h"
#include "config/config.h"

typedef struct Layout {
    Mesh mesh;
    int64_t sequences; /* of a microbatch */
    int microbatches;  /* of a step, on each data-parallel rank */
    Stages stages;
    Schedule schedule; /* lowered: includes transfers */
    int smaller_count; /* number of smaller steps: of check.replay_every and of the batch-size ramp-up */
    double limit;      /* share of the activations of 1f1b that zbv keeps; 0: all */
    Schedule *smaller; /* [smaller_count] their schedules, by ascending microbatches */
    StageCost *costs;  /* [stages] FLOPs per token, from layout_unit_costs */
} Layout;

/* The shape of the model must be complete. With one pipeline rank, microbatches run one after the other,
 * whatever named schedule is configured; a schedule from a file runs as written. Call layout_free also after
 * a failure. */
ErrorCode layout_build(Layout *l, const Config *c, int world, Error *err);
/* The layout of one rank on its own, without costs. */
ErrorCode layout_single(Layout *l, const ModelConfig *model, int microbatches, bool split_backward,
                        Error *err);
void layout_free(Layout *l);
bool layout_is_pipeline(const Layout *l); /* more than one pipeline rank */
/* A run keeps the batches of this many steps at a time on the host (train/read_ahead.h). */
enum { STEPS_READ_AHEAD = 2 };
/* Tokens of a step on one data-parallel rank. */
int64_t layout_tokens(const Layout *l, int64_t context);
/* Samples of one step, over all data-parallel ranks. */
int64_t layout_samples(const Layout *l);
/* Fills FLOPs per token of each unit, [layers + 2]: model_unit_costs for this configuration. */
void layout_unit_costs(const Config *c, StageCost *units);
/* The same for the tokens of one segment of a microbatch: attention of later ones sees more keys. */
void layout_segment_costs(const Config *c, const Layout *l, int segment, StageCost *units);
/* Appends mesh, stages and balance as text. Leaves out the mesh of one rank and the split of one stage. */
void layout_describe(const Layout *l, const Config *c, Text *out);

#endif
