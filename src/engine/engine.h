/* The engine owns a rank's memory and executes programs on it: one optimizer step, or one evaluation.
 *
 * Life: engine_plan (nothing is allocated and no other rank is needed: figures and program of any rank of any
 * mesh can be printed), engine_allocate (every byte of the run), then engine_initialise or weights and state
 * from a checkpoint followed by engine_refresh, then steps. Nothing is allocated inside a step.
 *
 * A failure of communication inside a step cannot be mended by this rank alone: it ends the run on all ranks
 * (comm_fail). */
#ifndef WEFT_ENGINE_ENGINE_H
#define WEFT_ENGINE_ENGINE_H

#include "comm/comm.h"
#include "data/batch.h"
#include "model/unit.h"
#include "plan/memory.h"
#include "plan/program.h"
#include "engine/record.h"

typedef struct EngineSpec {
    ModelConfig model;
    Dtype compute;
    Recompute recompute;
    int64_t tokens;    /* T of a microbatch */
    int microbatches;  /* of a step, of this data-parallel rank */
    int64_t positions; /* rows of the rotation table: the context */
    int64_t loss_rows; /* 0: chosen */
    bool split_backward;
    bool inference; /* weights and evaluation only: no gradients, no optimizer */
    bool exact;     /* gradients in fixed point */
    GradientSync sync;
    Reshard reshard;
    Mesh mesh; /* world 0: a single rank */
    int rank;
    const Stages *stages;     /* NULL: one stage */
    const Schedule *schedule; /* with transfers, as many microbatches; NULL: one pipeline rank */
} EngineSpec;

/* How the optimizer acts in one step. */
typedef struct StepOptions {
    double lr, beta1, beta2, eps, weight_decay;
    bool decay_all;         /* else matrices only */
    double clip, clip_norm; /* clip 0: no clipping; clip_norm: p, or INFINITY */
    uint64_t any, all;      /* flags of this rank, to be combined by or, and by and; see record.h */
    bool poison;            /* a fault on purpose: one element of this rank's gradients becomes NaN ... */
    uint64_t poison_place;  /* ... and says which */
    void (*before_update)(void *context); /* called once, when all gradients are done; or NULL */
    void *context;
} StepOptions;

/* The same on every rank. */
typedef struct StepResult {
    double loss; /* sum of cross-entropies / valid targets of the whole step */
    int64_t valid;
    double grad_norm;        /* before clipping */
    double clip_coefficient; /* what gradients were multiplied with */
    int64_t nonfinite; /* gradient elements that are NaN or infinite (exact: or too large for fixed point) */
    char culprit
        [128]; /* first parameter that has one and the rank that holds it, or "the loss"; empty when all is finite */
    bool skipped;      /* no update was made */
    uint64_t any, all; /* flags of all ranks */
} StepResult;

/* When an action ran, in seconds since the step began. */
typedef struct ActionTime {
    double start, end;
    double waited; /* of this, for other ranks */
} ActionTime;

enum {
    POOL_PARAMETERS,
    POOL_COPY,
    POOL_GATHERED,
    POOL_GRADIENTS,
    POOL_SLOTS,
    POOL_OPTIMIZER,
    POOL_CONSTANTS,
    POOL_ACTIVATIONS,
    POOL_WORKSPACE,
    POOL_COMMUNICATION,
    POOL_COUNT
};

typedef struct Engine {
    Device *device;
    Comm *comm; /* NULL: a single rank */
    EngineSpec spec;
    Model model;
    Partition partition;
    Program program, evaluation;
    MemoryPlan memory, evaluation_memory;
    Pool pools[POOL_COUNT];
    Weights weights;     /* where passes read */
    Gradients gradients; /* where passes write */
    UnitGradients
        *owned;  /* [units + 1] this rank's shares of the step's gradients, fp32, once they are reduced */
    char **sums; /* [units + 1] gradients of the step as they add up; plan/memory.h gradient_sum_bytes */
    float *master, *moment1, *moment2; /* [partition.owned] */
    uint16_t *copy;                    /* [partition.owned] bf16, when it stays */
    char *arena[ARENAS], *keep, *scratch;
    char *bucket;       /* workspace of collectives */
    float *tie_buffer;  /* the other rank's share of a tied gradient */
    float *host_losses; /* [T] */
    ActionTime *times;  /* [program.count] of the last step */
    struct Traffic *traffic;
    unsigned char *started; /* [units + 1] of the step under way */
    const Action *current;  /* what it is doing */
    double began;           /* when the last step did: clock_seconds */
    double waited;          /* seconds that the step waited for other ranks so far */
    int64_t updates;        /* optimizer steps made: AdamW's t */
    int64_t steps;          /* programs executed: tells messages of one from those of the next */
} Engine;

/* Builds model, programs and memory plan. The device must stay open as long as the engine; stages and
 * schedule need not. */
ErrorCode engine_plan(Engine *e, Device *d, const EngineSpec *spec, Error *err);
/* comm NULL: a single rank. */
ErrorCode engine_allocate(Engine *e, Comm *comm, Error *err);
void engine_free(Engine *e);

void engine_initialise(Engine *e, InitKind kind, double std, uint64_t seed);
/* After master weights were written: makes what products read from them anew. */
void engine_refresh(Engine *e);

/* batches: one per microbatch of the program. Collective. */
void engine_step(Engine *e, const Batch *batches, const StepOptions *options, StepResult *result);
/* One microbatch, forward only: its losses are added to `sum` where the last stage is. Collective over the
 * pipeline and the shards. */
void engine_evaluate(Engine *e, const Batch *batch, ExactSum *sum);

/* Owned memory of a parameter: `piece` elements of it. */
float *engine_master(const Engine *e, Piece piece);
float *engine_gradient(const Engine *e, const Param *p, Piece piece); /* after a step */
/* Norm of the gradients that are in memory after a step; p >= 1 or INFINITY. Collective. */
double engine_gradient_norm(Engine *e, double p, int64_t *nonfinite, const char **culprit);

const MemoryPlan *engine_memory(const Engine *e); /* the plan of what engine_allocate takes */
size_t engine_bytes(const Engine *e);             /* of all pools: what the plan said */

#endif
