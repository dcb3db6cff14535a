/* Between the files of the engine: one execution of a program, and what each kind of action does.
 *
 *     engine.c      memory, life, the loop over actions
 *     parameters.c  GATHER, RELEASE
 *     gradients.c   SUM_PARTIALS, REDUCE_SCATTER, ALL_REDUCE, REDUCED, TIE, and what passes leave for them
 *     boundaries.c  RECV_F, SEND_F, RECV_B, SEND_B
 *     collectives.c COLLECTIVE, WAIT
 *     dispatch.c      DISPATCH
 *     statistics.c  what the ops of a step are told and what they found: the waits of a step
 *     update.c      NORM, UPDATE
 *     matrices.c    MATRIX_GATHER, MATRIX_SCATTER, and of UPDATE what they are for
 *     probe.c       figures of activations and weights, on steps that are probed */
#ifndef WEFT_ENGINE_EXECUTION_H
#define WEFT_ENGINE_EXECUTION_H

#include "engine/engine.h"

enum {
    POOL_PARAMETERS,
    POOL_COPY,
    POOL_GATHERED,
    POOL_GRADIENTS,
    POOL_SLOTS,
    POOL_OPTIMIZER,
    POOL_CONSTANTS,
    POOL_STATISTICS,
    POOL_ACTIVATIONS,
    POOL_WORKSPACE,
    POOL_COMMUNICATION,
    POOL_COUNT
};

/* What is trained, and what outlives a step beside it; master and copy: [partition.owned], but the copy
 * without partition.vectors. */
typedef struct OwnedState {
    float *master;   /* without MemoryPlan.masters: of vectors alone */
    uint16_t *copy;  /* bf16, when it stays */
    char *states;    /* of the optimizer: engine_state */
    int64_t updates; /* optimizer steps made */
} OwnedState;

/* Gradients of the step, [units + 1] each; the last is the tied head's. */
typedef struct StepGradients {
    char *(*sums)[FLATS];   /* as they add up; plan/memory.h gradient_sum_bytes */
    UnitGradients *owned;   /* this rank's shards, fp32, once they are reduced */
    char **partials;        /* rows of splits of vectors' gradients, where there are several */
    unsigned char *started; /* flats whose sums have been set in the step under way: 1 << flat */
} StepGradients;

typedef struct Workspace {
    char *arena[ARENAS], *keep, *scratch;
    char *bucket;      /* of collectives */
    float *tie_buffer; /* the other rank's share of a tied gradient */
    char *exchange;    /* of sums inside passes, over tp or cp: one at a time */
} Workspace;

/* Figures of a step that is probed; probe.c. NULL where the plan has no probes. */
typedef struct Probe {
    GradStats *slots; /* tensor memory: of passes, then of parameters */
    float *wide;      /* [own, h] tensor memory: states of bf16 in fp32 */
    GradStats *host;  /* pinned: what was fetched */
} Probe;

/* Figures of the step under way; statistics.c. */
typedef struct Statistics {
    StepScalars *scalars;    /* tensor memory, as the next two */
    StepStatistics *figures; /* of all parameters that this rank counts */
    FixedRefusals *refused;  /* [parameters], inside figures */
    GradStats *first;        /* [parameters], inside figures: of the first microbatch; NULL: not measured */
    StepStatistics *host;    /* pinned: what the last fetch brought */
    Probe probe;
    int64_t *routed; /* host: choices of experts that all ranks add up, their number first */
} Statistics;

/* Messages of one collective: of each CP chunk, or of partial sums and those of adapters. */
enum { COLLECTIVE_MESSAGES = 2 };

/* Host memory of dispatches (dispatch.c), where experts are sharded over ep: [ranks of ep] of each kind. */
typedef struct DispatchState {
    int32_t *runs;             /* [ranks, exact chunks, E + 1] rows by expert, of each rank */
    int32_t *own_runs;         /* [exact chunks, ranks, own experts + 1] of these, the experts here */
    int *dispatch_chunk;       /* [ranks, ranks] in which rows go from the second to the first, */
    int64_t *first;            /* and where they lie there */
    CommRange *local, *remote; /* of the exchange under way */
    CommRange *ranges;         /* of the gathering of runs */
} DispatchState;

/* Communication that has been started, by what it moves. 0: nothing. */
typedef struct Traffic {
    CommRequest (*gathers)[FLATS];    /* [units] */
    CommRequest (*reductions)[FLATS]; /* [units + 1] */
    CommRequest *receives;            /* [2, units, microbatches] forward, backward */
    CommRequest *sends;               /* [2, units] the last of each boundary */
    unsigned turn[3];                 /* reductions started, by the group that they are over */
    CommRequest collectives[UNIT_COLLECTIVES][COLLECTIVE_MESSAGES]; /* by row of the unit at work */
    CommRange *ranges;          /* [UNIT_COLLECTIVES, COLLECTIVE_MESSAGES, most_ranks] of these */
    int most_ranks;             /* of an axis that they are over */
    CommRequest matrices;       /* of MATRIX_GATHER, MATRIX_SCATTER */
    CommRange *matrix_parts[2]; /* [ranks of tp] of each OwnerBuffer */
    DispatchState dispatch;
} Traffic;

typedef struct Progress {
    _Atomic(const Action *) current; /* what it is doing; other threads look */
    int64_t executed;                /* programs: tells messages of one from those of the next */
} Progress;

/* Of a step, by the clock of a device that runs behind the host: `step` is whole once it was settled. */
typedef struct DeviceTimes {
    StepTimes step;
    /* When all that the step's last wait is for was done, seconds since the step began there, and when the
     * host heard of it, by its own clock. */
    double done, heard;
} DeviceTimes;

typedef struct Timed {
    DeviceTimes times[2];
    DeviceTimes *now, *before; /* of the last step, and of the one before; NULL: not timed */
    DeviceTimes *recording;    /* of the step under way */
    double *waited;            /* of the action under way; NULL: none is timed */
} Timed;

typedef struct Targets {
    int64_t all, own; /* valid ones of the next step: of all ranks, -1: unknown; of this one */
    /* [microbatches, MTP heads, T] host: targets, until they are uploaded; behind those of a microbatch
     * next ids of an MTP module */
    int32_t *mtp;
} Targets;

struct Engine {
    const RankPlan *plan;
    Device *device;
    Comm *comm;
    Model model; /* the plan's, with its constants */
    Pool pools[POOL_COUNT];
    Weights weights;     /* where passes read */
    Gradients gradients; /* where passes write */
    OwnedState state;
    StepGradients step;
    Workspace work;
    Statistics statistics;
    Traffic traffic;
    StepTimes clock; /* of the step under way; one ActionTime more, for evaluations */
    Timed timed;
    Progress progress;
    Targets targets;
};

typedef struct Execution {
    Engine *engine;
    const MemoryPlan *memory;
    const Program *program;
    const Batch *batches;
    const StepOptions *options;
    Pass pass;
    StepResult *result;
    StepRecord record;
    bool training, poisoned;
    bool scoring; /* an evaluation whose rows are asked for one by one */
    double limit; /* of one element in fixed point */
} Execution;

/* Memory of a buffer. */
char *execution_buffer(const Execution *x, BufferKind kind, int unit, int microbatch);
/* None comes back when communication failed. *request becomes 0. */
void execution_wait(Engine *e, CommRequest *request);
void execution_must(Engine *e, ErrorCode code, const Error *err);
/* comm_combine, waited for. */
void execution_combine(Engine *e, void *record, size_t bytes, void (*combine)(void *into, const void *from));

/* Of matrices in the copy, from an element of the owned arrays on; and of what is owned of any flat, in the
 * dtype engine_held. */
uint16_t *parameters_copy(const Engine *e, size_t at);
void *parameters_owned(const Engine *e, Flat flat, size_t at);
void parameters_gather(Execution *x, Action a);
void parameters_release(Execution *x, Action a);
/* Returns when the parameters of a unit are there. */
void parameters_ready(Execution *x, int unit);

/* Memory of a unit for what an action does to a microbatch of it. */
UnitPass execution_unit(const Execution *x, Action a);
/* Passes over several microbatches are interleaved, so each action selects its microbatch again. */
void execution_enter(Execution *x, int microbatch);

/* Starts what ranks exchange between two parts of a unit; waits for it, and puts it in its place. */
void collective_start(Execution *x, Action a);
void collective_wait(Execution *x, Action a);
/* Records of the tokens of each rank of cp, [ranks, model_records], go to all of them. */
void collective_gather_scores(Engine *e, LossRecord *all);

/* Runs ops whose rows are dispatched to the ranks of their experts. */
void dispatch_run(Execution *x, Action a);
void dispatch_open(Engine *e);
void dispatch_close(Engine *e);

/* Points passes to the gradient memory of (unit, microbatch), and prepares it. */
void gradients_begin(Execution *x, int unit, Flat flat, int microbatch);
/* What the pass added is complete: fixed point takes it over. */
void gradients_end(Execution *x, int unit, Flat flat, int microbatch);
void gradients_sum_partials(Execution *x, Action a);
void gradients_reduce(Execution *x, Action a);
void gradients_reduced(Execution *x, Action a);
void gradients_tie(Execution *x);

void boundary_receive(Execution *x, Action a);
void boundary_send(Execution *x, Action a);
void boundary_arrived(Execution *x, ActionKind kind, int unit, int microbatch);
void boundary_finish(Execution *x); /* all sends are done */

/* Valid targets of a step's batches that this rank counts. */
int64_t engine_valid(const Engine *e, const Batch *batches, int microbatches /* 0: of the largest */);

/* Takes the tensor memory of the figures from its pool; called in the dry pass and in the real one. */
void statistics_layout(Engine *e);
ErrorCode statistics_open(Engine *e, Error *err); /* pinned memory of the host */
void statistics_close(Engine *e);
/* The step begins: scalars are set, losses and refusals are none. */
void statistics_begin(Execution *x);
/* Those of the pass that has made them. */
void statistics_add_losses(Execution *x, int microbatch);
/* The first microbatch of the step has made these gradients, and no other has added to them. */
void statistics_add_first(Execution *x, int unit, Flat flat, const float *gradients);
/* Waits: all losses and refusals so far. */
void statistics_read_losses(Engine *e, StepRecord *r);
/* Waits: adds the figures of all gradients for norm p, and all losses and refusals when `whole`. Takes
 * another wait before that, and a reduction over all ranks, for powers that need the largest |g|. */
void statistics_read(Engine *e, double p, bool whole, StepRecord *r);
/* Of the choices of all ranks; after statistics_read. Collective where the model has experts. */
ExpertFigures statistics_experts(Engine *e);
/* Choices of each expert of a layer in the step, on all ranks; after statistics_experts. */
const int64_t *statistics_routed(const Engine *e, int layer);
/* What the optimizer of each group is told of this step. */
void statistics_set_optimizer(Engine *e, const UpdateStep *step);

void probe_layout(Engine *e); /* as statistics_layout */
ErrorCode probe_open(Engine *e, Error *err);
void probe_close(Engine *e);
void probe_begin(Execution *x);
/* A forward pass of the unit has made some of `out`, be it by what ranks have summed; a backward pass of
 * `dx`, the gradient of its input. They are looked at when all of it is there. */
void probe_output(const Execution *x, Action a, const void *out /* [own, h], NULL: none */);
void probe_gradient(const Execution *x, Action a, Grads grads, const void *dx /* [own, h] */);
/* Waits: fills options->probe. All ranks. */
void probe_end(Execution *x);

void update_norm(Execution *x);
void update_unit(Execution *x, int unit);
/* What the optimizer of a parameter is told of a run of its piece, `at` elements behind the first. */
UpdateRun update_run(const Engine *e, int param, ParamSegment segment, int64_t at, SegmentRun elements);
/* The average follows weights that have been updated. */
void update_average(Engine *e, int param, ParamSegment segment, int64_t at, int64_t count);
const OptimizerStep *update_step(const Engine *e, int param);

void matrices_gather(Execution *x, Action a);
void matrices_scatter(Execution *x, Action a);
/* Steps that have come back are taken. */
void matrices_update(Execution *x, int unit);

#endif
