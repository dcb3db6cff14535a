/* The engine owns a device's memory and executes programs on it: one optimizer step, or one evaluation.
 *
 * Life: engine_plan (nothing is allocated: figures and program can be printed), engine_allocate (every byte of the run), then
 * engine_initialise or weights and state from a checkpoint, then steps. Nothing is allocated inside a step. */
#ifndef WEFT_TRAIN_ENGINE_H
#define WEFT_TRAIN_ENGINE_H

#include "data/batch.h"
#include "model/unit.h"
#include "plan/memory.h"
#include "plan/program.h"

typedef struct EngineSpec {
    ModelConfig model;
    Dtype compute;
    Recompute recompute;
    int64_t tokens;    /* T of a microbatch */
    int microbatches;  /* of a step */
    int64_t positions; /* rows of the rotation table: the context */
    int64_t loss_rows; /* 0: chosen */
    bool split_backward;
    bool inference; /* weights and evaluation only: no gradients, no optimizer */
} EngineSpec;

/* How the optimizer acts in one step. */
typedef struct StepOptions {
    double lr, beta1, beta2, eps, weight_decay;
    bool decay_all;                       /* else matrices only */
    double clip, clip_norm;               /* clip 0: no clipping; clip_norm: p, or INFINITY */
    void (*before_update)(void *context); /* called once, when all gradients are done; or NULL */
    void *context;
} StepOptions;

typedef struct StepResult {
    double loss; /* sum of cross-entropies / valid targets of the whole step */
    int64_t valid;
    double grad_norm;        /* before clipping */
    double clip_coefficient; /* what gradients were multiplied with */
    int64_t nonfinite;       /* gradient elements that are NaN or infinite */
    const char *culprit;     /* first parameter that has one, or "the loss"; NULL when all is finite */
    bool skipped;            /* no update was made */
} StepResult;

typedef struct Engine {
    Device *device;
    EngineSpec spec;
    Model model;
    Program program, evaluation;
    MemoryPlan memory, evaluation_memory;
    Pool parameters, copy, gradient_pool, optimizer, constants, activation_pool, workspace;
    Weights weights;
    Gradients gradients;
    float *moment1, *moment2; /* AdamW, laid out as the master weights */
    char *activations, *keep, *scratch;
    float *host_losses; /* [T] */
    int64_t updates;    /* optimizer steps made: AdamW's t */
} Engine;

/* Builds model, programs and memory plan. The device must stay open as long as the engine. */
ErrorCode engine_plan(Engine *e, Device *d, const EngineSpec *spec, Error *err);
ErrorCode engine_allocate(Engine *e, Error *err);
void engine_free(Engine *e);

void engine_initialise(Engine *e, InitKind kind, double std, uint64_t seed);
/* batches: one per microbatch of the program. */
void engine_step(Engine *e, const Batch *batches, const StepOptions *options, StepResult *result);
/* Sum of cross-entropies of one microbatch; batch->valid targets. */
double engine_evaluate(Engine *e, const Batch *batch);

/* Norm of the gradients that are in memory (after a step); p >= 1 or INFINITY. For tests and tools. */
double engine_gradient_norm(Engine *e, double p, int64_t *nonfinite, const char **culprit);

const MemoryPlan *engine_memory(const Engine *e); /* the plan of what engine_allocate takes */
size_t engine_bytes(const Engine *e);             /* of all pools: what the plan said */

#endif
