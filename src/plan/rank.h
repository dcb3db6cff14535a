/* What one rank holds, does and sends: everything about it that can be known without running.
 *
 * A RankPlan has the model as it is trained, the rank's part of it, the programs that the rank executes, and
 * the memory that they take. It needs no other rank and allocates no tensor memory, so any rank of any mesh
 * can be planned, printed and compared on any machine. The engine executes a RankPlan and never changes it
 * (engine/engine.h). */
#ifndef WEFT_PLAN_RANK_H
#define WEFT_PLAN_RANK_H

#include "device/device.h"
#include "model/adapters.h"
#include "model/unit.h"
#include "program/cp_comm.h"
#include "plan/layout.h"
#include "plan/memory.h"
#include "program/partition.h"
#include "program/program.h"

/* What all ranks have in common, apart from the layout. */
typedef struct RankSpec {
    ModelConfig model;
    AdapterSpec adapters; /* of the model; its strings need not outlive rank_plan */
    Dtype compute;
    Recompute recompute;
    int64_t tokens;         /* T of a microbatch */
    int64_t positions;      /* rows of the rotation table: the context length */
    int64_t loss_rows;      /* tokens whose logits exist at a time; 0: chosen */
    double z_loss;          /* coefficient of the z-loss; 0: none */
    double bias_speed;      /* train.router_bias_speed */
    double mtp_loss_weight; /* weight of the losses of MTP heads */
    int splits;             /* split-K over tp: numerics.tp_invariant_up_to; 0: one a rank */
    int expert_splits; /* of sums over the width of experts: numerics.etp_invariant_up_to; 0: of the mesh */
    int exact_chunks;  /* exact chunks of tokens over cp: numerics.cp_invariant_up_to; 0: what cp needs */
    CpComm context;
    double capacity; /* rows of a dispatch chunk / the rank's local assignments; 0: 1 */
    bool defer_head; /* the head's wgrad waits for WGRAD, and recomputes the logits */
    bool inference;  /* weights and evaluation only: no gradients, no optimizer */
    bool exact;      /* fixed-point gradients */
    bool probes;     /* steps may be probed */
    bool noise;      /* the gradient noise scale is measured */
    int sources;     /* of the data, with losses reported separately; 0: not separately */
    GradientSync sync;
    Reshard reshard;
    const OptimizerOptions *optimizer; /* NULL for inference */
    HasCollective *has_collective;     /* where passes are cut; NULL: program_has_collective */
    size_t batches;                    /* on the host: bytes of the batches that are read ahead */
    /* fp32 copies of the elements that a rank counts, held on the host while a checkpoint with optimizer
     * states is written; 0: none */
    int staged;
    bool partner_copy; /* this rank holds a copy of another one's state: recovery.partner_copy */
} RankSpec;

/* A step of fewer microbatches (train.rampup_start). It runs in the memory of a full step. */
typedef struct StepPlan {
    Program program;
    MemoryPlan memory; /* only the offsets of buffers */
} StepPlan;

/* Must not be moved or copied: its members point to each other. */
typedef struct RankPlan {
    RankSpec spec;
    int rank;
    Model model;        /* without its constants, which are tensor memory */
    ParamGroups groups; /* none for inference */
    Partition partition;
    Program program, evaluation; /* a training step (none for inference); one microbatch, forward only */
    MemoryPlan memory, evaluation_memory; /* evaluation runs in the memory of training */
    int smaller_count;
    StepPlan *smaller;       /* [smaller_count] */
    struct RankPlan *copied; /* of the rank whose state this one holds a copy of; NULL: of none */
} RankPlan;

/* The adapters that the configuration asks for. */
AdapterSpec rank_adapters(const Config *c);
/* The spec that the configuration asks for. It depends on the device only for train.compute: auto and the
 * default of loss_rows. */
RankSpec rank_spec(const Config *c, const Layout *l, const Device *d);

/* What determines mesh.cp_comm: auto. rank_cp_comm_of takes a configuration whose microbatch and compute
 * dtype are settled. */
CpCommSpec rank_cp_comm(const RankSpec *spec, const Mesh *mesh);
CpCommSpec rank_cp_comm_of(const Config *c);

/* Layout and optimizer need not outlive the call. `d` may come from device_describe, since nothing runs on
 * it. ERR_CONFIG for a model that cannot be built and for parameter groups that do not fit it. Call
 * rank_plan_free also after a failure. */
ErrorCode rank_plan(RankPlan *p, const RankSpec *spec, const Layout *l, int rank, const Device *d,
                    Error *err);
/* Plans the rank with the most elements among those of pipeline rank `pipe_rank`. */
ErrorCode rank_plan_fullest(RankPlan *p, const RankSpec *spec, const Layout *l, int pipe_rank,
                            const Device *d, Error *err);
void rank_plan_free(RankPlan *p);

const MemoryPlan *rank_memory(const RankPlan *p); /* the memory that is allocated */
ProgramTraffic rank_traffic(const RankPlan *p);   /* bytes that a step sends */

#endif
