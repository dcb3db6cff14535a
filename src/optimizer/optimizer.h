/* Optimizers, as a table: what each keeps of an element, what it reads of the configuration, what it
 * costs, and the op it enqueues. Memory plan, checkpoints, replica checks and inspection read the table;
 * to add an optimizer is to add an entry, its op, and its name to optimizer.kind. */
#ifndef WEFT_OPTIMIZER_OPTIMIZER_H
#define WEFT_OPTIMIZER_OPTIMIZER_H

#include "device/device.h"
#include "model/params.h"
#include "optimizer/options.h"

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
    /* For an optimizer of matrices: the run is all of this parameter, or all that tp leaves of it. */
    const Param *of;
    char *scratch; /* what optimizer_scratch_bytes says */
} UpdateRun;

/* An optimizer that looks at a matrix as one: what a matrix costs it, and its update in three, of which the
 * second alone must see all of the matrix. The others are element by element, of what of it is here. */
typedef struct MatrixUpdate {
    size_t (*scratch)(
        const ParamMatrix *m); /* bytes; those of several matrices are needed one after the other */
    double (*flops)(const ParamMatrix *m); /* of products */
    /* The direction in which the matrix is to go; states become those of this step. `number` is that of its
     * first element in the whole parameter, by which states are rounded. */
    void (*direct)(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r,
                   const ParamMatrix *m, int64_t number, float *x /* [rows, cols] */);
    /* Where in the scratch of a matrix its direction is to lie: [rows, cols]; and the step that is made of
     * it, which lies where it returns. */
    float *(*room)(char *scratch, const ParamMatrix *m);
    float *(*turn)(Device *d, const OptimizerSettings *s, const ParamMatrix *m, char *scratch);
    /* Takes the step. `whole`: the matrix that these are elements of. */
    void (*descend)(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r,
                    const ParamMatrix *m, const ParamMatrix *whole, const float *x /* [rows, cols] */);
} MatrixUpdate;

typedef struct Optimizer {
    const char *name;  /* of optimizer.kind */
    const char *keeps; /* its states in a word: "moments" */
    const char *reads; /* names of settings, "lr, weight_decay, ..." */
    OptimizerState state[OPTIMIZER_STATES];
    double flops; /* an element, at most, but for products */
    /* It looks at matrices as matrices: it takes those of blocks, each on one rank, and what else is in its
     * group is left to AdamW (groups.h). NULL for one that treats each element by itself. */
    const MatrixUpdate *matrices;
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
extern const MatrixUpdate muon_matrices;
void muon_update(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r);

#endif
