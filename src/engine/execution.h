/* What the files of the engine share: one execution of a program, and the functions that run its actions.
 *
 *     engine.c      memory, life, the loop over actions
 *     parameters.c  GATHER, RELEASE
 *     gradients.c   SUM_PARTIALS, REDUCE_SCATTER, ALL_REDUCE, REDUCED, TIE, and where passes write gradients
 *     boundaries.c  RECV_F, SEND_F, RECV_B, SEND_B
 *     collectives.c COLLECTIVE, WAIT
 *     dispatch.c    DISPATCH
 *     statistics.c  scalars that the ops of a step read and figures that they compute: the waits of a step
 *     update.c      NORM, UPDATE
 *     partner.c     the copy of another rank's state
 *     matrices.c    MATRIX_GATHER, MATRIX_SCATTER, and their part of UPDATE
 *     replay.c      a microbatch that is computed again
 *     origin.c      which rank made the first non-finite value of a step
 *     probe.c       figures of activations and weights, on steps that are probed */
#ifndef WEFT_ENGINE_EXECUTION_H
#define WEFT_ENGINE_EXECUTION_H

#include "base/tree.h"
#include "engine/engine.h"
#include "engine/tensor_hash.h"

/* Weights and states, which outlive a step. master and copy are [partition.owned]; the copy lacks
 * partition.vectors. */
typedef struct OwnedState {
    float *master;   /* without MemoryPlan.masters: vectors only */
    uint16_t *copy;  /* bf16 copy of the matrices, if it is kept */
    char *states;    /* of the optimizer: engine_optimizer_state */
    int64_t updates; /* optimizer steps made */
} OwnedState;

/* Gradients of the step, [units + 1] each; the last is the tied head's. */
typedef struct StepGradients {
    char *(*sums)[FLATS];   /* accumulated; plan/memory.h gradient_sum_bytes */
    UnitGradients *owned;   /* this rank's shards, fp32, after the reduction */
    char **partials;        /* gradients of vectors, one row per split, where there are several */
    unsigned char *started; /* bit mask of flats whose sums were set in the current step: 1 << flat */
} StepGradients;

typedef struct Workspace {
    char *arena[ARENAS], *stash, *scratch;
    char *bucket;      /* of collectives */
    float *tie_buffer; /* the other rank's contribution to a tied gradient */
    char *exchange;    /* workspace of sums inside passes, over tp or cp: one at a time */
} Workspace;

/* Figures of a probed step (probe.c). NULL where the plan has no probes. */
typedef struct Probe {
    GradStats *slots; /* tensor memory: of passes, then of parameters */
    float *wide;      /* [local, h] tensor memory: fp32 copy of bf16 states */
    GradStats *host;  /* pinned: the slots fetched to the host */
} Probe;

/* Figures of the step under way (statistics.c). */
typedef struct Statistics {
    StepScalars *scalars;    /* tensor memory, as the next three */
    StepStatistics *figures; /* of all parameters that this rank counts */
    FixedRefusals *refused;  /* [parameters], inside figures */
    GradStats *first;        /* [parameters], inside figures: of the first microbatch; NULL: not measured */
    StepStatistics *host;    /* pinned: result of the last fetch */
    Probe probe;
    bool each_microbatch; /* count non-finite gradients in each microbatch (origin.c) */
    int64_t *routed;      /* host: tokens per expert, of all ranks; [0]: how many counts */
} Statistics;

/* Messages of one collective: one for each CP chunk, or one for partial sums and one for those of
 * adapters. */
enum { COLLECTIVE_MESSAGES = 2 };

/* Host memory of DISPATCH (dispatch.c), where ep shards the experts: [ranks of ep] each. */
typedef struct DispatchState {
    int32_t *runs;             /* [ranks, exact chunks, E + 1] where each expert's rows begin */
    int32_t *local_runs;       /* [exact chunks, sources, local experts + 1] see ExpertDispatch */
    int32_t *orders;           /* [2, dispatch rows] of a dispatch chunk whose sources are merged; or NULL */
    int *dispatch_chunk;       /* [ranks, ranks] chunk in which the first gets the second's rows, ... */
    int64_t *first;            /* ... and where they lie in its buffer */
    CommRange *local, *remote; /* of the exchange under way: local rows; dispatch buffer */
    CommRange *ranges;         /* of the all-gather of runs */
} DispatchState;

/* Communication under way, by what it moves. 0: none. */
typedef struct Traffic {
    CommRequest (*gathers)[FLATS];    /* [units] */
    CommRequest (*reductions)[FLATS]; /* [units + 1] */
    CommRequest *receives;            /* [2, units, microbatches] forward, backward */
    CommRequest *sends;               /* [2, units] the last one of each boundary */
    unsigned reductions_started[3];   /* reductions started, by their group */
    CommRequest collectives[UNIT_COLLECTIVES][COLLECTIVE_MESSAGES]; /* by row of the current unit */
    CommRange *ranges;               /* [UNIT_COLLECTIVES, COLLECTIVE_MESSAGES, most_ranks] their ranges */
    int most_ranks;                  /* of the larger of tp and cp */
    CommRequest matrices;            /* of MATRIX_GATHER, MATRIX_SCATTER */
    CommRequest (*copies)[2][FLATS]; /* [units] gradients to the partner; of the rank whose copy is here */
    CommRange *matrix_parts[2];      /* [ranks of tp] for each OwnerBuffer */
    DispatchState dispatch;
} Traffic;

typedef struct Progress {
    _Atomic(const Action *) current; /* action under way; read by other threads */
    int64_t executed;                /* programs so far: tells the messages of one from those of the next */
} Progress;

/* Times of a step by the clock of a device that runs behind the host. `step` is complete once it is
 * settled. */
typedef struct DeviceTimes {
    StepTimes step;
    /* When everything that the step's last wait waits for was done, in seconds since the step began on the
     * device; and when the host learned of it, on the host's clock. */
    double done, heard;
} DeviceTimes;

typedef struct StepTiming {
    DeviceTimes times[2];
    DeviceTimes *now, *before; /* of the last step, and of the one before it; NULL: not timed */
    DeviceTimes *recording;    /* of the step under way */
    double *waited;            /* of the action under way; NULL: no action is timed */
} StepTiming;

typedef struct Targets {
    int64_t all, own; /* valid targets of the next step: over all ranks, -1: unknown; of this rank */
    /* [microbatches, MTP heads, T] host: targets, until they are uploaded. With an MTP module, the next ids
     * of each microbatch follow its targets. */
    int32_t *mtp;
} Targets;

struct Engine {
    const RankPlan *plan;
    Device *device;
    Comm *comm;
    Model model; /* the plan's, with its constants */
    Pool pools[POOL_COUNT];
    Weights weights;     /* that passes read */
    Gradients gradients; /* that passes write */
    OwnedState state;
    StepGradients step;
    Workspace work;
    Statistics statistics;
    Traffic traffic;
    StepTimes clock; /* of the step under way; the entry after the last action is for evaluations */
    StepTiming timed;
    Progress progress;
    Targets targets;
    TensorHash hash;  /* of replays */
    Engine *copied;   /* the copy of another rank's state (partner.c); NULL: there is none */
    bool interrupted; /* communication has failed, and can be repaired */
    bool torn;        /* engine_is_torn */
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
    bool replaying; /* passes only: nothing is reduced or updated (engine_replay) */
    bool committed; /* all living ranks make the update */
    bool scoring;   /* an evaluation whose losses are wanted token by token (engine_score) */
    double limit;   /* largest absolute value that fixed point accepts in one element */
} Execution;

/* Memory of a buffer. */
char *execution_buffer(const Execution *x, BufferKind kind, int unit, int microbatch);
/* Waits for the operation and sets *request to 0. Does not return if communication failed, unless that can be
 * repaired: then Engine.interrupted is set, what the operation was to bring is undefined, and the action
 * goes on to its end where that is safe. */
void execution_wait(Engine *e, CommRequest *request);
void execution_must(Engine *e, ErrorCode code, const Error *err);
/* Blocking comm_combine. */
void execution_combine(Engine *e, void *record, size_t bytes, void (*combine)(void *into, const void *from));

/* Address of element `at` of the owned arrays: in the bf16 copy of the matrices; and wherever the flat is
 * kept, in the dtype engine_held. */
uint16_t *parameters_copy(const Engine *e, size_t at);
void *parameters_owned(const Engine *e, Flat flat, size_t at);
void parameters_gather(Execution *x, Action a);
void parameters_release(Execution *x, Action a);
/* Returns when the gathered parameters of a unit have arrived. */
void parameters_ready(Execution *x, int unit);

/* Memory of a unit for an action's pass over one microbatch. */
UnitPass execution_unit(const Execution *x, Action a);
/* Passes over several microbatches are interleaved, so each action selects its microbatch again. */
void execution_enter(Execution *x, int microbatch);

/* Starts the collective between two ops of a unit; waits for it and unpacks its result. */
void collective_start(Execution *x, Action a);
void collective_wait(Execution *x, Action a);
/* All-gathers the loss records of all ranks of cp: [ranks, model_records]. */
void collective_gather_scores(Engine *e, LossRecord *all);

/* Runs ops whose rows are dispatched to the ranks of their experts. */
void dispatch_run(Execution *x, Action a);
void dispatch_open(Engine *e);
void dispatch_close(Engine *e);

/* What this rank has of a parameter's gradient when a pass has completed it. */
typedef struct LocalGradient {
    const Param *param;
    int index;       /* of the parameter */
    float *first;    /* count tensors [rows, elements of param] */
    int rows, count; /* rows: partial sums of vectors */
    size_t apart;    /* elements from one tensor to the next */
} LocalGradient;
/* The next parameter of the unit in this flat, or the first if g->param is NULL; false: there is none. One
 * after the other: what lies between them is never written, and may hold anything. */
bool gradient_next(const Execution *x, int unit, Flat flat, LocalGradient *g);
/* Makes passes write to the gradient memory of (unit, microbatch), and prepares it. */
void gradients_begin(Execution *x, int unit, Flat flat, int microbatch);
/* The pass has finished this gradient. With exact sums it is converted to fixed point now. */
void gradients_end(Execution *x, int unit, Flat flat, int microbatch);
/* The same for the part of the experts' gradients that the tokens of some ranks of ep make: one, or (see
 * program_joins_sources) as many as a subtree of the canonical tree has. Sources are numbered as they come:
 * by exact chunk, then by rank. */
void gradients_begin_sources(Execution *x, int unit, int microbatch, TreeBlock sources);
void gradients_end_sources(Execution *x, int unit, int microbatch, TreeBlock sources);
void gradients_sum_partials(Execution *x, Action a);
void gradients_reduce(Execution *x, Action a);
void gradients_reduced(Execution *x, Action a);
void gradients_tie(Execution *x);

void boundary_receive(Execution *x, Action a);
void boundary_send(Execution *x, Action a);
void boundary_arrived(Execution *x, ActionKind kind, int unit, int microbatch);
void boundary_finish(Execution *x); /* waits until all sends are done */

/* Valid targets that this rank counts in a step's batches. */
int64_t engine_valid(const Engine *e, const Batch *batches, int microbatches /* 0: of the largest */);

/* Counters of origin.c among the figures in tensor memory, or in their copy on the host. */
int64_t *statistics_origins(const Engine *e, StepStatistics *s);
/* Elements of a parameter's gradients that fixed point refused on this rank; after statistics_read. */
int64_t statistics_refused(const Engine *e, int param);
/* Takes the tensor memory of the figures from its pool; called in the dry run and in the real one. */
void statistics_layout(Engine *e);
ErrorCode statistics_open(Engine *e, Error *err); /* pinned memory of the host */
void statistics_close(Engine *e);
/* Begins a step: sets the scalars; zeroes losses and refusals. */
void statistics_begin(Execution *x);
/* Adds the losses of the pass that has just computed them. */
void statistics_add_losses(Execution *x, int microbatch);
/* Adds the figures of gradients that hold the first microbatch's contribution only. */
void statistics_add_first(Execution *x, int unit, Flat flat, const float *gradients);
/* Waits for the device. Reads all losses and refusals so far. */
void statistics_read_losses(Engine *e, StepRecord *r);
/* Waits for the device. Adds the figures of all gradients for norm p, and with `whole` all losses and
 * refusals. Powers that need the largest |g| take another wait before that, and a reduction over all
 * ranks. */
void statistics_read(Engine *e, double p, bool whole, StepRecord *r);
/* Figures of routing over all ranks; after statistics_read. Collective where the model has experts. */
ExpertFigures statistics_experts(Engine *e);
/* Tokens routed to each expert of a layer in the step, over all ranks; after statistics_experts. */
const int64_t *statistics_routed(const Engine *e, int layer);
/* Uploads the optimizer scalars of each group for this step. */
void statistics_set_optimizer(Engine *e, const UpdateStep *step);

void probe_layout(Engine *e); /* as statistics_layout */
ErrorCode probe_open(Engine *e, Error *err);
void probe_close(Engine *e);
void probe_begin(Execution *x);
/* A forward pass of the unit has written to `out`, or a sum over ranks has; a backward pass to `dx`, the
 * gradient of its input. Figures are taken once the tensor is complete. */
void probe_output(Execution *x, Action a, void *out /* [local, h], NULL: none */);
void probe_gradient(Execution *x, Action a, Grads grads, void *dx /* [local, h] */);
/* Waits for the device and fills options->probe. All ranks. */
void probe_end(Execution *x);

/* Count what the action under way has made, before other ranks receive it: a tensor; the gradients of a
 * microbatch. An injected NaN is planted here. */
typedef enum OriginStage { ORIGIN_SENT, ORIGIN_RETURNED /* by the experts of a DISPATCH */ } OriginStage;
void origin_states(Execution *x, OriginStage stage, int64_t n, Dtype type, void *tensor);
void origin_gradients(Execution *x, int unit, Flat flat, int microbatch);
/* Only plant an injected fault: in gradients that are about to be sent; in a batch that is about to be
 * uploaded; in memory, before the action of this number. */
void origin_message(Execution *x, size_t bytes, void *tensor);
void origin_tokens(Execution *x, const Batch *b);
void origin_memory(Execution *x, int action);
/* After a step that is skipped: appends where its first non-finite value was made. Returns false if each rank
 * made finite values only. All ranks; the same on each. */
bool origin_find(Execution *x, Text *out);

/* Hash the losses, and the gradients that a pass has completed, of a microbatch that is compared. */
void replay_losses(const Execution *x, int microbatch);
void replay_gradients(const Execution *x, int unit, Flat flat, int microbatch);
/* Compares the hashes of all ranks. */
bool replay_differs(Execution *x);

void update_norm(Execution *x);
void update_unit(Execution *x, int unit);
/* Updates what the engine holds of a unit, but for matrices whose update needs other ranks. */
void update_parameters(Engine *e, int unit);

/* The copy of another rank's state. Without one these do nothing, except for open, close, and layout, which
 * takes its memory from the pool. */
void partner_open(Engine *e);
void partner_close(Engine *e);
void partner_layout(Engine *e);
void partner_receive(Execution *x);        /* at the start of a step: from here on gradients may come */
void partner_send(Execution *x, int unit); /* the gradients of a unit are complete */
void partner_wait(Execution *x);           /* all have left and arrived */
void partner_update(Execution *x);         /* after the step's updates */
/* Arguments of the optimizer for a run of a parameter's segment, from its element `at` on. */
UpdateRun update_run(const Engine *e, int param, ParamSegment segment, int64_t at, SegmentRun elements);
/* Moves the average towards weights that have been updated. */
void update_average(Engine *e, int param, ParamSegment segment, int64_t at, int64_t count);
const OptimizerStep *update_step(const Engine *e, int param);

void matrices_gather(Execution *x, Action a);
void matrices_scatter(Execution *x, Action a);
/* Waits for the steps that owner ranks send back, and applies them. */
void matrices_update(Execution *x, int unit);

#endif
