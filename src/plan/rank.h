/* What one rank holds, does and sends: everything about it that can be known without running.
 *
 * A RankPlan is the model in the form that is trained, the rank's part of it, the programs that it executes,
 * and the memory which they take. It needs no other rank and allocates no tensor memory, so that any rank of
 * any mesh can be planned, printed and compared on any machine. The engine executes one and never changes it
 * (engine/engine.h). */
#ifndef WEFT_PLAN_RANK_H
#define WEFT_PLAN_RANK_H

#include "device/device.h"
#include "model/adapters.h"
#include "model/unit.h"
#include "program/comm_volume.h"
#include "plan/layout.h"
#include "plan/memory.h"
#include "program/partition.h"
#include "program/program.h"

/* What all ranks have in common, beside the layout. */
typedef struct RankSpec {
    ModelConfig model;
    AdapterSpec adapters; /* put to it; its texts need not outlive rank_plan */
    Dtype compute;
    Recompute recompute;
    int64_t tokens;         /* T of a microbatch */
    int64_t positions;      /* rows of the rotation table: the context */
    int64_t loss_rows;      /* 0: chosen */
    double z_loss;          /* coefficient; 0: none */
    double bias_speed;      /* of train.router_bias_speed */
    double mtp_loss_weight; /* of the losses of MTP heads */
    int splits;             /* of the sums that tp shares: numerics.canonical_tp; 0: as many as its ranks */
    int exact_chunks; /* of tokens, that cp shares: numerics.canonical_cp; 0: as many as its ranks need */
    CpComm context;
    double capacity; /* rows of a round of visits over those of its own choices; 0: 1 */
    bool defer_head; /* the head's weight gradient waits for its W, and makes the logits again */
    bool inference;  /* weights and evaluation only: no gradients, no optimizer */
    bool exact;      /* gradients in fixed point */
    bool probes;     /* steps may be probed */
    bool noise;      /* of gradients is measured */
    int sources;     /* of the data, whose losses are told apart; 0: they are not */
    GradientSync sync;
    Reshard reshard;
    const OptimizerOptions *optimizer; /* NULL for inference alone */
    HasCollective *has_collective;     /* where passes are cut; NULL: program_has_collective */
    /* fp32 copies of what it counts, on the host while a checkpoint with the states is written; 0: none */
    int staged;
} RankSpec;

/* A step of fewer microbatches (train.batch_start): it runs in the memory of a whole one. */
typedef struct StepPlan {
    Program program;
    MemoryPlan memory; /* places of buffers alone */
} StepPlan;

/* Not to be moved or copied: its parts point to each other. */
typedef struct RankPlan {
    RankSpec spec;
    int rank;
    Model model;        /* without its constants, which are tensor memory */
    ParamGroups groups; /* none for inference */
    Partition partition;
    Program program, evaluation; /* of a training step (none for inference); of one microbatch forward */
    MemoryPlan memory, evaluation_memory; /* evaluation runs in the memory of training */
    int smaller_count;
    StepPlan *smaller; /* [smaller_count] */
} RankPlan;

/* Those of the run. */
AdapterSpec rank_adapters(const Config *c);
/* As the configuration says; of the device, only what it multiplies best. */
RankSpec rank_spec(const Config *c, const Layout *l, const Device *d);

/* What crosses inside its passes; of a configuration, once its microbatch and compute are settled. */
CommVolumeSpec rank_comm_volume(const RankSpec *spec, const Mesh *mesh);
CommVolumeSpec rank_comm_volume_of(const Config *c);

/* Layout and optimizer need not outlive the call. Of the device only scratch_bytes is asked: one that
 * device_describe made will do. ERR_CONFIG for a model that cannot be built, and for groups of parameters
 * that do not fit it. Free it also after a failure. */
ErrorCode rank_plan(RankPlan *p, const RankSpec *spec, const Layout *l, int rank, const Device *d,
                    Error *err);
/* Of the ranks of a pipeline place the one that holds the most. */
ErrorCode rank_plan_fullest(RankPlan *p, const RankSpec *spec, const Layout *l, int place, const Device *d,
                            Error *err);
void rank_plan_free(RankPlan *p);

const MemoryPlan *rank_memory(const RankPlan *p); /* of what is allocated */
ProgramTraffic rank_traffic(const RankPlan *p);   /* bytes that a step sends */

#endif
