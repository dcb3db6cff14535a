/* Optimizers, as a table: the states each keeps per element, the settings it reads, its cost, and the op it
 * enqueues. Memory plan, checkpoints, replica checks and inspection read the table. To add an optimizer, add
 * an entry, its op, and its name in OPTIMIZER_NAMES (optimizer/options.h). */
#ifndef WEFT_OPTIMIZER_OPTIMIZER_H
#define WEFT_OPTIMIZER_OPTIMIZER_H

#include "device/shapes.h"
#include "model/params.h"
#include "optimizer/options.h"

enum {
    OPTIMIZER_STATES = 2,
    PARAM_STATES = OPTIMIZER_STATES + 1
}; /* most states of an optimizer, and the same with the average */

/* One number per element that is kept from step to step. */
typedef struct OptimizerState {
    const char *name;  /* "exp_avg": in checkpoints exp_avg.PARAMETER, as PyTorch calls it */
    const char *title; /* "the first moment" */
} OptimizerState;

/* Values that all groups share in one step. */
typedef struct UpdateStep {
    double lr_factor;        /* of the schedule */
    double clip_coefficient; /* multiplied into gradients */
    int64_t updates;         /* number of updates, including this one */
    double ema;              /* decay of the average of weights; 0: no average */
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
    /* For an optimizer of matrices: the run is all of this parameter, or all of its shard over tp. */
    const Param *of;
    char *scratch; /* optimizer_scratch_bytes of it */
} UpdateRun;

/* An optimizer that treats a matrix as a matrix: the cost of a matrix, and its update in three stages. Only
 * the second (orthogonalise) must see the full matrix; the other two are element-wise on the local shard. */
typedef struct MatrixUpdate {
    size_t (*scratch)(
        const ParamMatrix *m); /* bytes; matrices are processed one after the other, so they share it */
    double (*flops)(const ParamMatrix *m); /* of matrix products */
    /* Writes the direction of the update to x and advances the states to this step. `number` is the index of
     * the matrix's first element in the full parameter, which seeds the rounding of states. */
    void (*momentum_of)(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r,
                        const ParamMatrix *m, int64_t number, float *x /* [rows, cols] */);
    /* momentum_buffer: where in the scratch of a matrix its direction must lie, [rows, cols]. orthogonalise:
     * computes the step from it and returns where that lies. */
    float *(*momentum_buffer)(char *scratch, const ParamMatrix *m);
    float *(*orthogonalise)(Device *d, const OptimizerSettings *s, const ParamMatrix *m, char *scratch);
    /* Applies the step. `whole`: the full matrix of which `m` is the local part. */
    void (*apply)(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r,
                  const ParamMatrix *m, const ParamMatrix *whole, const float *x /* [rows, cols] */);
} MatrixUpdate;

typedef struct Optimizer {
    const char *name;  /* as in optimizer.kind */
    const char *keeps; /* name of its states: "moments" */
    const char *reads; /* names of the settings it reads, "lr, weight_decay, ..." */
    /* Its defaults of optimizer.momentum and optimizer.nesterov; NULL: those of the options. */
    const char *momentum, *nesterov;
    OptimizerState state[OPTIMIZER_STATES];
    double flops; /* per element, at most, without matrix products */
    /* Set for an optimizer that treats matrices as matrices. It takes those of blocks, each on one rank;
     * AdamW takes the rest of its group (groups.h). NULL for an element-wise optimizer. */
    const MatrixUpdate *matrices;
    int (*states)(const OptimizerSettings *s);
    void (*update)(Device *d, const OptimizerSettings *s, const OptimizerStep *step /* tensor memory */,
                   const UpdateRun *run);
} Optimizer;

const Optimizer *optimizer_of(OptimizerKind kind);
/* The values of a step that its op needs. */
OptimizerStep optimizer_step(const OptimizerSettings *s, const UpdateStep *step);
/* Bytes per element of its states. */
size_t optimizer_state_bytes(const OptimizerSettings *s);
/* Bytes of scratch for the update of a parameter, and its FLOPs. */
size_t optimizer_scratch_bytes(const Optimizer *o, const Param *p);
double optimizer_flops(const Optimizer *o, const Param *p);

/* muon.c */
extern const MatrixUpdate muon_matrices;
void muon_update(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r);

#endif
