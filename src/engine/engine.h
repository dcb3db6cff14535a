/* The engine executes a rank's plan: it owns the rank's memory, and runs programs on it: one optimizer step,
 * or one evaluation.
 *
 * Life: engine_open (every byte of the run), then engine_initialise or weights and state from a checkpoint
 * followed by engine_refresh, then steps. Nothing is allocated inside a step.
 *
 * A failure of communication inside a step cannot be mended by this rank alone: it ends the run on all ranks
 * (comm_fail). */
#ifndef WEFT_ENGINE_ENGINE_H
#define WEFT_ENGINE_ENGINE_H

#include "comm/comm.h"
#include "data/batch.h"
#include "engine/record.h"
#include "plan/rank.h"

typedef struct Engine Engine;

/* What some numbers are like. NaN where there are none. */
typedef struct ProbeFigures {
    int64_t count, nonfinite; /* how many; of these, how many are NaN or infinite, and in no other figure */
    double rms, max;          /* root of the mean square over `count`; largest absolute value */
} ProbeFigures;

/* Of a unit in one step, over all microbatches and ranks: what it puts out, the gradient of that (the last
 * unit puts out nothing), its weights after the update, and their gradients before clipping. */
typedef struct UnitProbe {
    ProbeFigures output, gradient, weight, weight_gradient;
} UnitProbe;

/* How the optimizer acts in one step. */
typedef struct StepOptions {
    double lr_factor;       /* of the schedule: what the learning rates of all groups are multiplied with */
    double clip, clip_norm; /* clip 0: no clipping; clip_norm: p, or INFINITY */
    uint64_t any, all;      /* flags of this rank, to be combined by or, and by and; see record.h */
    bool poison;            /* a fault on purpose: one element of this rank's gradients becomes NaN ... */
    uint64_t poison_place;  /* ... and says which */
    const Batch *next; /* the next step's: their valid targets ride on this step's record; NULL: unknown */
    UnitProbe *probe;  /* [units] to be filled, or NULL; the plan must have probes */
    const int32_t *sources; /* [microbatches, sequences] of which source of the data a row is; NULL: losses
                             * are not told apart; else the plan must have sources */
    bool timed;       /* actions are timed by the device's clock, where that is another than the host's */
    int microbatches; /* of this step: those of one of the plan's programs; 0: of the largest */
    int next_microbatches;                /* the same of the next one */
    void (*before_update)(void *context); /* called once, when all gradients are done; or NULL */
    void *context;
} StepOptions;

/* How evenly the tokens of a step went to experts. */
typedef struct ExpertFigures {
    double
        imbalance; /* choices of an expert, largest / mean of its layer: the worst layer's; NaN: no experts */
    int64_t dead;  /* experts that no token went to, of all layers */
} ExpertFigures;

/* The same on every rank. */
typedef struct StepResult {
    double loss;               /* sum of cross-entropies / valid targets of the whole step */
    double z_loss;             /* the same of what train.z_loss adds to it: not part of `loss` */
    double balance;            /* the same of the balance loss of experts, summed over layers */
    double mtp[MTP_DEPTH_MAX]; /* the same of each MTP head, not weighted */
    ExpertFigures experts;
    int64_t valid;
    double grad_norm;        /* before clipping */
    double clip_coefficient; /* what gradients were multiplied with */
    NoiseEstimate noise;     /* NaN unless the plan measures it */
    int64_t nonfinite; /* gradient elements that are NaN or infinite (exact: or too large for fixed point) */
    /* First parameter that has one and the rank that holds it, or "the loss"; empty when all is finite. */
    char culprit[128];
    bool skipped;      /* no update was made */
    uint64_t any, all; /* flags of all ranks */
} StepResult;

/* When an action ran, in seconds since the step began: by the host's clock when the host enqueued it, by that
 * of a device when the device came to it and was done with it. */
typedef struct ActionTime {
    double start, end;
    double waited; /* of this, for other ranks */
} ActionTime;

/* Of a step, on this rank. */
typedef struct StepTimes {
    double began;           /* clock_seconds */
    double waited;          /* seconds that the host waited for other ranks */
    const Program *program; /* that ran */
    ActionTime *actions;    /* [actions of the program] */
} StepTimes;

/* Plan, device and comm must stay as long as the engine. The comm has the plan's mesh (comm_set_mesh); of a
 * plan for one rank, any will do that is alone. ERR_MEMORY. Close it also after a failure. */
ErrorCode engine_open(Engine **e, const RankPlan *plan, Device *d, Comm *comm, Error *err);
void engine_close(Engine *e); /* NULL is fine */

void engine_initialise(Engine *e, InitKind kind, double std, uint64_t seed);
/* Only what adapters begin with: the base has its weights from elsewhere. */
void engine_initialise_adapters(Engine *e, uint64_t seed);
/* The average of weights, if one is kept, becomes what the weights are. */
void engine_start_average(Engine *e);
/* After weights were written: makes what products read from master weights anew. */
void engine_refresh(Engine *e);

/* batches: one per microbatch. Collective. */
void engine_step(Engine *e, const Batch *batches, const StepOptions *options, StepResult *result);
/* [sources] of the last step, which was told them: losses of the tokens that this rank counts, exact, to be
 * added up over all ranks. */
const LossSum *engine_source_losses(const Engine *e);
/* One microbatch, forward only: its losses are added where the last stage is, those that are not finite to
 * their number. Collective over the pipeline and the shards. */
void engine_evaluate(Engine *e, const Batch *batch, LossSum *losses);

/* The same, row by row: of each token the largest logit, that of its target, and the sum of exponentials, in
 * splits of the vocabulary: of one rank of cp after the other, of one chunk of its logits after the other,
 * [splits, rows]. False, and nothing is written, on ranks that do not have the losses. Collective, as above,
 * and over the ranks that share matrices or tokens, all of which get the same. */
bool engine_score(Engine *e, const Batch *batch, LossRecord *records /* host [ranks of cp, model_records] */);

const RankPlan *engine_plan(const Engine *e);
Device *engine_device(const Engine *e);
/* The model with its constants, and where its passes read: for generation. */
const Model *engine_model(const Engine *e);
const Weights *engine_weights(const Engine *e);

/* Owned memory of a parameter, fp32: `piece` elements of it. Not for inference. */
float *engine_master(const Engine *e, ParamSegment segment);
/* The same of any engine, and what it is: fp32, but for inference as passes read it. */
void *engine_weight(const Engine *e, const Param *p, ParamSegment segment);
Dtype engine_held(const Engine *e, Flat flat);
/* One of what is kept of parameter number `param` (optimizer/groups.h: param_state): what is owned of it. */
void *engine_optimizer_state(const Engine *e, int param, int which);
float *engine_gradient(const Engine *e, const Param *p, ParamSegment segment); /* after a step */
/* Optimizer steps made: AdamW's t. */
int64_t engine_updates(const Engine *e);
void engine_set_updates(Engine *e, int64_t updates);

/* Norm of the gradients that are in memory after a step; p >= 1 or INFINITY. Collective. */
double engine_gradient_norm(Engine *e, double p, int64_t *nonfinite, const char **culprit);

const StepTimes *engine_times(const Engine *e); /* of the last step, by the host's clock */
/* Whether the device has a clock of its own: it runs behind the host, and is done with a step while the next
 * one is under way. */
bool engine_is_timed_late(const Engine *e);
/* By that clock: of the step before the last, or with `wait` of the last, for which the device is waited for.
 * NULL: it was not to be timed (StepOptions.timed). */
const StepTimes *engine_timed(Engine *e, bool wait);
const Action *engine_current(const Engine *e); /* what it is doing, from any thread; NULL: between steps */
size_t engine_bytes(const Engine *e);          /* of all pools: what the plan said */
size_t engine_taken(const Engine *e); /* for which the device has taken so much (Device.granularity) */

#endif
