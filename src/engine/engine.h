/* The engine executes a rank's plan. It owns the rank's memory and runs programs on it: one optimizer step,
 * or one evaluation.
 *
 * Life: engine_open (every byte of the run); then engine_initialise, or weights and state from a checkpoint
 * followed by engine_refresh; then steps. A step takes no tensor memory (pools) from the device.
 *
 * One rank alone cannot recover from a communication failure inside a step, so such a failure ends the run on
 * all ranks (comm_fail). Only one that can be repaired (comm_is_broken, comm/repair.h) comes back: the engine
 * leaves what it executes, waits for nothing, and is of no use any more but for engine_take_state. */
#ifndef WEFT_ENGINE_ENGINE_H
#define WEFT_ENGINE_ENGINE_H

#include "comm/comm.h"
#include "data/batch.h"
#include "engine/record.h"
#include "plan/rank.h"

typedef struct Engine Engine;

/* Statistics of some numbers. NaN where there are none. */
typedef struct ProbeFigures {
    int64_t count, nonfinite; /* numbers; of these NaN or infinite, which the other figures leave out */
    double rms, max;          /* rms over `count`; largest absolute value */
} ProbeFigures;

/* Figures of a unit in one step, over all microbatches and ranks: its output, the gradient of its output (the
 * last unit has neither), its weights after the update, and their gradients before clipping. */
typedef struct UnitProbe {
    ProbeFigures output, gradient, weight, weight_gradient;
} UnitProbe;

/* Tensor memory of a rank. Each is one piece, taken before the first step. */
typedef enum EnginePool {
    POOL_PARAMETERS,    /* master weights */
    POOL_COPY,          /* of them, in the dtype of passes */
    POOL_GATHERED,      /* parameters of the units at work */
    POOL_GRADIENTS,     /* of the step */
    POOL_SLOTS,         /* gradients of single microbatches */
    POOL_OPTIMIZER,     /* its states */
    POOL_CONSTANTS,     /* rotation table */
    POOL_STATISTICS,    /* what the host reads of a step, and scalars that ops read */
    POOL_ACTIVATIONS,   /* and their gradients, tokens, losses */
    POOL_WORKSPACE,     /* of ops */
    POOL_COMMUNICATION, /* workspaces of collectives */
    POOL_PARTNER,       /* the copy of another rank's state */
    POOL_COUNT
} EnginePool;

/* Where an injected fault puts a NaN, or flips a bit. */
typedef enum StepPoison {
    POISON_NONE,
    POISON_ACTIVATION, /* an output of a pass */
    POISON_GRADIENT,   /* gradients, before they are counted */
    POISON_MESSAGE,    /* gradients that were counted, on their way to other ranks */
    POISON_TOKENS,     /* in the ids of a batch, in memory of the host */
    POISON_MEMORY      /* in a pool, between two actions */
} StepPoison;

/* A microbatch that is computed twice: in the step, and before it by another rank (engine_replay). */
typedef struct StepReplay {
    int microbatch;        /* of this rank, in the step */
    const int *owners;     /* [ranks] whose microbatch each rank has computed again */
    const uint64_t *other; /* [engine_prints] hashes of what this rank made of it */
    uint64_t *own;         /* [engine_prints] hashes of what the step makes; begin as 0 */
    bool differs;          /* out, the same on all ranks: on some rank they differ, and no update was made */
} StepReplay;

/* How the optimizer acts in one step. */
typedef struct StepOptions {
    double lr_factor;       /* of the schedule: multiplies the learning rates of all groups */
    double clip, clip_norm; /* clip 0: no clipping; clip_norm: p, or INFINITY */
    uint64_t any, all;      /* flags of this rank, combined by or, and by and (record.h) */
    StepPoison poison;      /* inject a fault: something that this rank makes becomes NaN, ... */
    bool poison_flips;      /* ... or has a bit flipped, ... */
    int poison_microbatch;  /* ... in this microbatch, ... */
    uint64_t poison_index;  /* ... at an element chosen by this number ... */
    EnginePool poison_pool; /* ... of this memory (POISON_MEMORY) ... */
    int poison_action;      /* ... before the action of this number, modulo their count */
    int poison_times;       /* in so many executions of a step that is made again (the caller's count) */
    const Batch *next; /* of the next step: their valid targets go with this step's record; NULL: unknown */
    UnitProbe *probe;  /* [units] out, or NULL; the plan must have probes */
    /* [microbatches, sequences] index of each row's data source; the plan must have sources. NULL: losses are
     * not split by source. */
    const int32_t *sources;
    StepReplay *replay;    /* compare a microbatch with its replay; NULL: not in this step */
    bool timed;            /* time actions by the device's clock, if it has its own */
    int microbatches;      /* of this step: those of one of the plan's programs; 0: of the largest */
    int next_microbatches; /* the same for the next step */
    void (*before_update)(void *context); /* called once, when all gradients are done; or NULL */
    void *context;
    void (*before_action)(const void *fault, ActionKind kind); /* of the step; or NULL */
    const void *fault;                                         /* an injected one */
} StepOptions;

/* How evenly the tokens of a step were routed to experts. */
typedef struct ExpertFigures {
    double imbalance; /* most / mean assignments of an expert, in the worst layer; NaN: no experts */
    int64_t dead;     /* experts that received no token, over all layers */
} ExpertFigures;

/* The same on every rank. */
typedef struct StepResult {
    double loss;               /* sum of cross-entropies / valid targets of the whole step */
    double z_loss;             /* the same for the z-loss (train.z_loss): not part of `loss` */
    double balance;            /* the same for the balance loss of experts, summed over layers */
    double mtp[MTP_DEPTH_MAX]; /* the same for each MTP head, not weighted */
    ExpertFigures experts;
    int64_t valid;
    double grad_norm;        /* before clipping */
    double clip_coefficient; /* factor that gradients were multiplied by */
    NoiseEstimate noise;     /* NaN unless the plan measures it */
    int64_t nonfinite; /* gradient elements that are NaN or infinite (exact: or too large for fixed point) */
    /* What became non-finite first: where, in which microbatch, and on which rank and host. Empty if all are
     * finite. */
    char culprit[320];
    bool skipped;      /* no update was made */
    uint64_t any, all; /* flags of all ranks */
} StepResult;

/* When an action ran, in seconds since the step began. On the host's clock: when the host enqueued it. On a
 * device's clock: when the device began and finished it. */
typedef struct ActionTime {
    double start, end;
    double waited; /* time of this spent waiting for other ranks */
} ActionTime;

/* Times of a step on this rank. */
typedef struct StepTimes {
    double began;           /* clock_seconds */
    double waited;          /* seconds that the host waited for other ranks */
    const Program *program; /* the program that ran */
    ActionTime *actions;    /* [actions of the program] */
} StepTimes;

/* Plan, device and comm must outlive the engine. The comm must have the plan's mesh (comm_set_mesh); for a
 * plan of one rank, any comm with a single rank will do. Fails with ERR_MEMORY. Close the engine also after a
 * failure. */
ErrorCode engine_open(Engine **e, const RankPlan *plan, Device *d, Comm *comm, Error *err);
void engine_close(Engine *e); /* NULL is allowed */

/* Weights, optimizer states and the number of updates, to go on with in another engine whose plan has the
 * same shards: a mesh with another number of replicas. */
typedef struct EngineState EngineState;
EngineState *engine_take_state(Engine *e); /* e can then only be closed */
void engine_free_state(EngineState *s);    /* NULL is allowed */
/* As engine_open. Moves what s has into the engine, unless it fails. */
ErrorCode engine_open_with(Engine **e, const RankPlan *plan, Device *d, Comm *comm, EngineState *s,
                           Error *err);
/* What an engine of this plan would have, to be filled; also after a failure to be freed. The compute copy of
 * the weights is left to engine_refresh. */
ErrorCode engine_make_state(EngineState **s, const RankPlan *plan, Device *d, int64_t updates, Error *err);
/* The same for an engine, which keeps its memory. */
EngineState *engine_get_state(const Engine *e);
int64_t engine_state_updates(const EngineState *s);

/* Memory of the weights and optimizer states of a rank's shards, as its plan lays it out. */
typedef struct ShardState {
    float *master;
    char *states;
} ShardState;
/* Those of the rank itself, and the copy of another one's. */
ShardState engine_state_own(const EngineState *s);
ShardState engine_state_copied(const EngineState *s);

void engine_initialise(Engine *e, InitKind kind, double std, uint64_t seed);
/* Initialises the adapters only: the weights of the base come from elsewhere. */
void engine_initialise_adapters(Engine *e, uint64_t seed);
/* Sets the average of weights, if one is kept, to the current weights. */
void engine_start_average(Engine *e);
/* Call after weights were written: updates the compute copies of the master weights. */
void engine_refresh(Engine *e);

/* batches: one per microbatch. Collective. ERR_PEER: communication has failed in a way that can be repaired.
 * Either all living ranks have made the step then, or none has changed anything: comm_commit comes before the
 * first update. */
ErrorCode engine_step(Engine *e, const Batch *batches, const StepOptions *options, StepResult *result);
/* After ERR_PEER: the step was committed, and some weights are updated while others cannot be. */
bool engine_is_torn(const Engine *e);
/* Number of hashes of a microbatch's gradients and losses; what one of them is of. */
size_t engine_prints(const Engine *e);
const char *engine_print_name(const Engine *e, size_t i);
/* Makes the gradients of one microbatch with the current weights, as a step of `microbatches` batches would,
 * and writes their hashes; the plan must have a program of one microbatch. Weights, optimizer and records are
 * left alone. Collective. */
void engine_replay(Engine *e, const Batch *batch, const Batch *batches, int microbatches,
                   uint64_t *prints /* [engine_prints] out */);
/* [sources] of the last step, which must have had StepOptions.sources: losses of the tokens that this rank
 * counts. The sums are exact; add them up over all ranks. */
const LossSum *engine_source_losses(const Engine *e);
/* Runs one microbatch, forward only. Adds its losses on the ranks with the last stage; those that are not
 * finite are added to their count. Collective over the pipeline and the shards. */
void engine_evaluate(Engine *e, const Batch *batch, LossSum *losses);

/* The same, token by token: for each, the largest logit, the target's logit and the sum of exponentials, per
 * split of the vocabulary. The records of the ranks of cp follow each other; those of a rank are [splits,
 * rows] for each chunk of its logits in turn. Returns false and writes nothing on ranks that do not have the
 * losses. Collective as above, and over tp and cp, whose ranks all get the same. */
bool engine_score(Engine *e, const Batch *batch, LossRecord *records /* host [ranks of cp, model_records] */);

const RankPlan *engine_plan(const Engine *e);
Device *engine_device(const Engine *e);
size_t engine_pool_bytes(const Engine *e, EnginePool pool);
/* For generation: the model with its constants, and the weights that its passes read. */
const Model *engine_model(const Engine *e);
const Weights *engine_weights(const Engine *e);

/* Owned fp32 master weights of a parameter: segment.count elements. Not for inference. */
float *engine_master(const Engine *e, ParamSegment segment);
/* The same for any engine, and the dtype: fp32, except for inference, where it is the one that passes read.
 * NULL for an empty segment. */
void *engine_weight(const Engine *e, const Param *p, ParamSegment segment);
Dtype engine_held(const Engine *e, Flat flat);
/* This rank's shard of one state of parameter number `param` (optimizer/groups.h: param_state). */
void *engine_optimizer_state(const Engine *e, int param, int which);
float *engine_gradient(const Engine *e, const Param *p, ParamSegment segment); /* after a step */
/* Optimizer steps made so far: AdamW's t. */
int64_t engine_updates(const Engine *e);
void engine_set_updates(Engine *e, int64_t updates);

/* Norm of the gradients that are in memory after a step; p >= 1 or INFINITY. Collective. */
double engine_gradient_norm(Engine *e, double p, int64_t *nonfinite, const char **culprit);

const StepTimes *engine_times(const Engine *e); /* of the last step, by the host's clock */
/* Whether the device has a clock of its own. Such a device runs behind the host: it finishes a step while the
 * next one is under way. */
bool engine_is_timed_late(const Engine *e);
/* Times by that clock: of the step before the last, or with `wait` of the last, after waiting for the device.
 * NULL: that step was not timed (StepOptions.timed). */
const StepTimes *engine_timed(Engine *e, bool wait);
const Action *engine_current(const Engine *e); /* action under way, or NULL; any thread may ask */
size_t engine_bytes(const Engine *e);          /* of all pools, equal to the plan's */
size_t engine_taken(const Engine *e);          /* allocated for them on the device (Device.granularity) */

#endif
