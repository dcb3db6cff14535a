/* Optimizers, as a table: what each keeps of an element, what it reads of the configuration, what it
 * costs, and the op it enqueues. Memory plan, checkpoints, replica checks and inspection read the table;
 * to add an optimizer is to add an entry, its op, and its name to optimizer.kind. */
#ifndef WEFT_OPTIMIZER_OPTIMIZER_H
#define WEFT_OPTIMIZER_OPTIMIZER_H

#include "config/config.h"
#include "device/device.h"
#include "model/params.h"

enum {
    OPTIMIZER_STATES = 2,
    PARAM_STATES = OPTIMIZER_STATES + 1
}; /* most that an optimizer keeps, and the average */

/* One number of each element, from one step to the next. */
typedef struct OptimizerState {
    const char *name;  /* "exp_avg": in checkpoints exp_avg.PARAMETER, as PyTorch calls it */
    const char *title; /* "the first moment" */
} OptimizerState;

/* What is the same for all groups in one step. */
typedef struct UpdateStep {
    double lr_factor;        /* of the schedule */
    double clip_coefficient; /* multiplied into gradients */
    int64_t updates;         /* updates made, this one among them */
    double ema;              /* decay of the average of weights; 0: there is none */
} UpdateStep;

/* A run of elements of one parameter, in tensor memory. */
typedef struct UpdateRun {
    int64_t count;
    float *param;                  /* [count] */
    const float *grad;             /* [count] */
    void *state[OPTIMIZER_STATES]; /* [count] store.type */
    uint16_t *copy;                /* [count] bf16, or NULL */
    double weight_decay;
    StateStore store;
    /* For an optimizer of matrices: the run is all of this parameter. */
    const Param *of;
    char *scratch; /* what optimizer_scratch_bytes says */
} UpdateRun;

/* What a matrix costs an optimizer that looks at it as one. */
typedef struct MatrixCosts {
    size_t (*scratch)(
        const ParamMatrix *m); /* bytes; those of several matrices are needed one after the other */
    double (*flops)(const ParamMatrix *m); /* of products */
} MatrixCosts;

typedef struct Optimizer {
    const char *name;  /* of optimizer.kind */
    const char *keeps; /* its states in a word: "moments" */
    const char *reads; /* names of settings, "lr, weight_decay, ..." */
    OptimizerState state[OPTIMIZER_STATES];
    double flops; /* an element, at most, but for products */
    /* It looks at matrices as matrices: it takes those of blocks, each on one rank, and what else is in its
     * group is left to AdamW (groups.h). NULL for one that treats each element by itself. */
    const MatrixCosts *matrices;
    int (*states)(const OptimizerSettings *s);
    void (*update)(Device *d, const OptimizerSettings *s, const OptimizerStep *step /* tensor memory */,
                   const UpdateRun *run);
} Optimizer;

const Optimizer *optimizer_of(OptimizerKind kind);
/* What its op is told of a step. */
OptimizerStep optimizer_step(const OptimizerSettings *s, const UpdateStep *step);
/* Bytes of its states, an element. */
size_t optimizer_state_bytes(const OptimizerSettings *s);
/* Bytes of scratch for the update of a parameter, and its FLOPs. */
size_t optimizer_scratch_bytes(const Optimizer *o, const Param *p);
double optimizer_flops(const Optimizer *o, const Param *p);

/* muon.c */
extern const MatrixCosts muon_costs;
void muon_update(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r);

#endif
