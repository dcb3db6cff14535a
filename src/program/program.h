/* A training step as data: the list of actions that a rank executes in one optimizer step, made before the
 * first step and never changed. The engine executes it, the memory plan is read off it, bytes sent are
 * counted on it, `weft plan --program` prints it.
 *
 *     LOAD   m          put microbatch m into tensor memory
 *     GATHER u          start the all-gather of unit u's parameters over dp_shard; its next use waits for it
 *     RELEASE u         drop the gathered parameters
 *     RECV_F u m        post the receive of unit u's input from the stage before; FWD u m waits for it
 *     FWD    u m        forward of unit u on microbatch m; the last unit also makes the loss
 *     SEND_F u m        send unit u's output to the stage behind
 *     RECV_B u m        post the receive of the gradient of unit u's output; its backward pass waits for it
 *     BWD    u m        backward of unit u, dgrad and wgrad
 *     DGRAD  u m        backward, only the gradient of the input
 *     WGRAD  u m        backward, only the gradient of the weights
 *     SEND_B u m        send the gradient of unit u's input to the stage before
 *     RECOMPUTE u m     make ops of unit u again for their backward pass, where that is cut
 *     COLLECTIVE u m    between ops: start what a row of one of the unit's layers says that ranks exchange
 *                       (model/layers/layer.h: Collective); printed by its kind and axis, as TP_ALL_GATHER
 *     WAIT   u m        until it is there
 *     DISPATCH u m      run ops where their experts are: rows of tokens go out, and results come back
 *     SUM_PARTIALS u    add up the partial sums of the gradients of unit u's vectors, over tp too
 *     REDUCE_SCATTER u  start summing unit u's gradient over dp_shard: each rank keeps its shard
 *     ALL_REDUCE u      start summing unit u's (shard of the) gradient over dp_replicate
 *     REDUCED u         wait until the sums are there
 *     TIE               add the head's gradient to the embedding's (tied embeddings)
 *     NORM              gradient norm, count of non-finite gradients, loss, clip coefficient: of all ranks
 *     MATRIX_GATHER u   make the directions of unit u's matrices that an optimizer must see whole and tp
 *                       cuts, and start to send their boxes to their owners over tp (program/owners.h)
 *     MATRIX_SCATTER u  wait for them, make the steps of whole matrices, start to send boxes of these back
 *     UPDATE u          optimizer step of the owned shard of unit u, and its compute copy; waits for
 *                       MATRIX_SCATTER
 *
 * Reductions name a microbatch when they sum one, and none when they sum a step. Unit number `units` is the
 * tied head's gradient.
 *
 * Invariants, checked by program_check
 *  1. Each FWD u m of a unit that runs here comes once, after FWD u-1 m, RECV_F u m or (u = 0) LOAD m.
 *  2. Each (u, m) has one BWD, or one DGRAD followed later by one WGRAD; inputs go backward after FWD u m and
 *     after dgrad of u+1, or RECV_B u m.
 *  3. Wgrads of a unit come in ascending order of microbatches, so that sums do not depend on
 *     the schedule (but for schedules that ask for another order).
 *  4. What is sent was made before, and each boundary is sent once.
 *  5. With sharded parameters, each pass over a unit lies between a GATHER and a RELEASE of it.
 *  6. With more than one data-parallel rank, each gradient is reduced once (a step, or a microbatch) on
 *     each axis, after its
 * last addition and before it is used.
 *  7. TIE, NORM, UPDATE come once, in this order, after everything else. Between NORM and the UPDATE of a
 *     unit whose matrices have owners its MATRIX_GATHER and its MATRIX_SCATTER come, once each; no other
 *     unit's meanwhile.
 *  8. A pass over a unit is one action, or several that run its ops (model/unit.h) one after the other,
 *     each once: ascending in a forward pass, descending in a backward pass. In a BWD of several actions an
 *     op's wgrad may come later than its dgrad, not later than the last action.
 *  9. Nothing that the table of axes (program/axes.h) calls a sum is left without an action that sums it.
 * 10. No action reads what has not been made, what is still on its way, or what something else has been put
 *     in the place of, and none writes where something is on its way (program/check.c). What a row says
 *     that a pass exchanges is exchanged once, and has ended with the pass. */
#ifndef WEFT_PROGRAM_PROGRAM_H
#define WEFT_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "config/choices.h"
#include "model/unit.h"
#include "program/partition.h"
#include "schedule/schedule.h"

typedef enum ActionKind {
    ACT_LOAD,
    ACT_GATHER,
    ACT_RELEASE,
    ACT_RECV_F,
    ACT_FWD,
    ACT_SEND_F,
    ACT_RECV_B,
    ACT_BWD,
    ACT_DGRAD,
    ACT_WGRAD,
    ACT_SEND_B,
    ACT_RECOMPUTE,
    ACT_COLLECTIVE,
    ACT_WAIT,
    ACT_DISPATCH,
    ACT_SUM_PARTIALS,
    ACT_REDUCE_SCATTER,
    ACT_ALL_REDUCE,
    ACT_REDUCED,
    ACT_TIE,
    ACT_NORM,
    ACT_MATRIX_GATHER,
    ACT_MATRIX_SCATTER,
    ACT_UPDATE,
    ACT_KINDS
} ActionKind;

typedef struct Action {
    ActionKind kind;
    int unit;       /* -1 where there is none */
    int microbatch; /* -1 where there is none; of GATHER and RELEASE: index of the gather among the unit's */
    /* Of a pass, RECOMPUTE and DISPATCH: those of the unit that it runs; nothing is exchanged inside one. Of
     * COLLECTIVE and WAIT: from its place, and none. */
    OpRange ops;
    int slice;         /* of what the head does by chunks: UnitPass.slice; 0: all of it */
    Grads grads;       /* of BWD: which halves of its ops it runs; 0: both */
    ActionKind pass;   /* of COLLECTIVE, WAIT, DISPATCH: FWD, RECOMPUTE, BWD, DGRAD, WGRAD */
    ActionKind before; /* of RECOMPUTE, and of what is exchanged in it: the backward pass that it is for */
    int row;           /* of COLLECTIVE, WAIT, DISPATCH: of unit_collectives, */
    CollKind how;      /* and what that says */
    AxisSet over;
} Action;
bool action_is_pass(ActionKind kind);   /* FWD, BWD, DGRAD, WGRAD */
bool action_exchanges(ActionKind kind); /* COLLECTIVE, WAIT, DISPATCH */
/* Of these: the pass that they belong to; of others, their kind. */
ActionKind action_pass(Action a);
/* "TP_ALL_GATHER". */
void collective_name(Action a, Text *out);
/* Which halves a backward pass has, and which of them an action of it runs. */
Grads pass_grads(ActionKind pass);
Grads action_grads(Action a);

/* As it applies, never auto: where an axis has one rank, or a step one microbatch, what is asked about it is
 * settled. */
GradientSync program_sync(GradientSync asked, int shards, int replicas, int microbatches);

/* Whether ranks exchange anything before an op of a unit that is not its first, or at its end: there passes
 * are cut into several actions. program_has_collective: what rows of layers say, over axes of several ranks;
 * nothing where each matrix, and all tokens, are on one rank. */
typedef bool HasCollective(const Partition *p, int unit, int op);
HasCollective program_has_collective;

typedef struct ProgramSpec {
    const ModelConfig *model;
    const Partition *partition;
    const Schedule *schedule; /* with transfers */
    bool defer_head; /* the head's weight gradient waits for WGRAD, where dgrad and wgrad run separately */
    bool exact;      /* fixed-point sums */
    GradientSync sync;
    Reshard reshard;
    HasCollective *has_collective;
    Recompute recompute;
    int chunks; /* of logits, of all heads, where ranks share the vocabulary: model_head_chunks */
} ProgramSpec;

typedef struct Program {
    const ModelConfig *model;
    const Partition *partition;
    int units, microbatches, instances; /* instances: most gathers of a unit */
    bool defer_head;                    /* the head's weight gradient waits for WGRAD */
    bool ordered;                       /* invariant 3 holds */
    bool first_alone; /* each gradient gets the first microbatch's before any other's, or apart from them */
    bool exact;
    bool evaluates;    /* forward only: there is memory for what engine_score finds */
    GradientSync sync; /* as it applies: program_sync */
    HasCollective *has_collective;
    Recompute recompute;
    int chunks;
    bool training;
    int count, capacity;
    Action *actions;
} Program;

/* Model and partition must outlive the program. */
void program_lower(Program *p, const ProgramSpec *spec);
/* Forward only, over one microbatch: evaluation. */
void program_lower_evaluation(Program *p, const ProgramSpec *spec); /* schedule: none */
void program_free(Program *p);
ErrorCode program_check(const Program *p, Error *err);

/* Whether gradients of a microbatch have memory of their own (else they are added to those of the step at
 * once). */
bool program_has_slots(const Program *p);
/* Ranks of the inner step of a flat's sum whose outer step is over the replicas (comm_sum_outer). 1 where the
 * replicas' sum is one of its own: of what many microbatches left. */
int program_inner_ranks(const Program *p, const FlatShard *s);

/* Whether passes over a unit are cut anywhere. */
bool program_cuts(const Program *p, int unit);

/* What programs ask about a unit, found once: its rows, and sets of its ops, a bit each. */
typedef struct Anatomy {
    OpRange all;
    int count;
    UnitCollective rows[UNIT_COLLECTIVES];
    /* [passes and RECOMPUTE] ops that use a row in a pass; none: the pass is without it. Dgrad and wgrad of
     * what is dispatched are run with DGRAD. */
    uint32_t uses[ACT_RECOMPUTE + 1][UNIT_COLLECTIVES];
    uint32_t dispatched, sliced;   /* run elsewhere; chunk by chunk */
    uint32_t recomputed, products; /* recomputed by the policy; with a matrix */
    uint32_t ops;                  /* used by any row, whatever the mesh */
    uint32_t reads_x, begins;      /* read FULL_X; the first of their layer that do */
    uint32_t parallel;             /* of layers that read FULL_X and FULL_DY */
} Anatomy;
void program_anatomy(const Program *p, int unit, Anatomy *out);
/* The row that runs an op elsewhere in this program; -1: none. */
int anatomy_dispatch(const Anatomy *n, int op);

/* Of a slice, the chunk of tokens: heads take each in turn. */
int program_chunk(const Program *p, const Model *m, Action a);
/* Whether vectors' gradients of a unit have splits to be added up: once a step, or once a microbatch. */
bool program_sums_partials(const Program *p, int unit);
bool program_sums_partials_once(const Program *p);
/* Whether a wgrad reads parameters, which none but that of adapters does. */
bool program_reads_adapters(const Program *p, Action a);

/* Whether a pass is the first, or the last, of those that run a unit's ops on a microbatch. */
bool program_begins_unit(const Program *p, Action a);
bool program_ends_unit(const Program *p, Action a);
/* The unit whose flat gets a gradient from this action (of the head's, it may be the tied head's own); -1:
 * none. Those of vectors are made with dgrad, those of matrices with wgrad, the head's with its forward pass
 * unless that is deferred. */
int program_gradient_unit(const Program *p, Action a, Flat flat);
/* All of an action, PASS_GRADIENTS at most, by number: of each flat, and of the embedding's rows that an MTP
 * module takes. Returns whether it makes the i-th. */
enum { PASS_GRADIENTS = GRADIENT_FLATS + 1 };
typedef struct PassGradient {
    int unit;
    Flat flat;
} PassGradient;
bool program_gradient(const Program *p, Action a, int i, PassGradient *out);

/* Bytes of what ranks combine once a step, over all of them and no axis (engine/record.h). No action does
 * it. */
enum { STEP_RECORD_BYTES = (6 + MTP_DEPTH_MAX) * sizeof(ExactSum) + 11 * sizeof(int64_t) };
/* How often a rank sends that, at most: floor(log2(ranks)) times, once more where ranks are no power of 2. */
int program_record_rounds(int ranks);

/* Bytes that this rank sends in one execution, by what they are. */
typedef struct ProgramTraffic {
    uint64_t pipeline;   /* between stages: activations, their gradients, and the tied gradient */
    uint64_t replicas;   /* gradients, over the replicas */
    uint64_t parameters; /* over the shards: gathers, ... */
    uint64_t gradients;  /* ... and reductions */
    uint64_t tensor; /* over tp: collectives of passes, the splits of vectors' gradients, boxes of matrices */
    uint64_t context; /* over cp: collectives of passes */
    /* Over ep: dispatches, where tokens go evenly to all ranks; what a step sends depends on them. */
    uint64_t experts;
} ProgramTraffic;
ProgramTraffic program_traffic(const Program *p, const Model *m);
/* Bytes that the collective of one flat sends, which a GATHER, REDUCE_SCATTER or ALL_REDUCE starts: what the
 * links will have counted afterwards, to the byte (tests/ranks/test_layouts.c). */
uint64_t program_flat_bytes(const Program *p, const Model *m, Action a, Flat flat);
/* Of a COLLECTIVE or DISPATCH. */
uint64_t program_collective_bytes(const Program *p, const Model *m, Action a);
/* The row that goes along with that of a COLLECTIVE or WAIT, behind `row` of it; -1: none. */
int program_along(const Program *p, Action a, int row);
/* The largest workspace of the sums among them. */
size_t program_collective_workspace(const Program *p, const Model *m);
/* What a sum of partial sums of the stream takes of that, before what its adapters' takes. */
size_t collective_workspace(const Program *p, const Model *m, const Collective *row);
/* Runs of a unit's vectors whose gradients are sums over tp, one after the other in its flat: from parameter
 * *next on, which is moved behind them; false: there is none left. `first` and `count` are elements. */
typedef struct VectorRun {
    int64_t first, count;
} VectorRun;
bool program_next_sum(const Program *p, int unit, int *next, VectorRun *run);

const char *action_name(ActionKind kind);
/* One line an action; runs of the same kind over consecutive units are folded ("FWD 0..13 m0") unless
 * `whole`. */
void program_print(const Program *p, bool whole, Text *out);

#endif
