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
 *     BWD    u m        backward of unit u, both halves
 *     BWD_IN u m        backward, only the gradient of the input
 *     BWD_W  u m        backward, only the gradient of the weights
 *     SEND_B u m        send the gradient of unit u's input to the stage before
 *     REDUCE_SCATTER u  start summing unit u's gradient over dp_shard: each rank keeps its share
 *     ALL_REDUCE u      start summing unit u's (share of the) gradient over dp_replicate
 *     REDUCED u         wait until the sums are there
 *     TIE               add the head's gradient to the embedding's (tied embeddings)
 *     NORM              gradient norm, count of non-finite gradients, loss, clip coefficient: of all ranks
 *     UPDATE u          optimizer step of the owned share of unit u, and its compute copy
 *
 * Reductions name a microbatch when they sum one, and none when they sum a step. Unit number `units` is the
 * tied head's gradient.
 *
 * Invariants, checked by program_check
 *  1. Each FWD u m of a unit that runs here comes once, after FWD u-1 m, RECV_F u m or (u = 0) LOAD m.
 *  2. Each (u, m) has one BWD, or one BWD_IN followed later by one BWD_W; inputs go backward after FWD u m
 *     and after the input half of u+1, or RECV_B u m.
 *  3. The weight halves of a unit come in ascending order of microbatches, so that sums do not depend on
 *     the schedule (but for schedules that ask for another order).
 *  4. What is sent was made before, and each boundary is sent once.
 *  5. With sharded parameters, each pass over a unit lies between a GATHER and a RELEASE of it.
 *  6. With more than one data-parallel rank, each gradient is reduced once (a step, or a microbatch) on
 *     each axis, after its
 * last addition and before it is used.
 *  7. TIE, NORM, UPDATE come once, in this order, after everything else.
 *  8. A pass over a unit is one action, or several that run its parts (model/unit.h) one after the other,
 *     each once: ascending in a forward pass, descending in a backward pass.
 *  9. Nothing that the table of axes (plan/axes.h) calls a sum is left without an action that sums it. */
#ifndef WEFT_PLAN_PROGRAM_H
#define WEFT_PLAN_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "model/unit.h"
#include "plan/partition.h"
#include "plan/schedule.h"

typedef enum ActionKind {
    ACT_LOAD,
    ACT_GATHER,
    ACT_RELEASE,
    ACT_RECV_F,
    ACT_FWD,
    ACT_SEND_F,
    ACT_RECV_B,
    ACT_BWD,
    ACT_BWD_IN,
    ACT_BWD_W,
    ACT_SEND_B,
    ACT_REDUCE_SCATTER,
    ACT_ALL_REDUCE,
    ACT_REDUCED,
    ACT_TIE,
    ACT_NORM,
    ACT_UPDATE,
    ACT_KINDS
} ActionKind;

typedef struct Action {
    ActionKind kind;
    int unit;       /* -1 where there is none */
    int microbatch; /* -1 where there is none; of GATHER and RELEASE: the how-manieth gather of this unit */
    Parts parts;    /* of a pass: those of the unit that it runs; nothing crosses between ranks inside one */
} Action;
bool action_is_pass(ActionKind kind); /* FWD, BWD, BWD_IN, BWD_W */

/* When gathered parameters are dropped. Never: once gathered, they stay to the end of the step (ZeRO-2,
 * ZeRO-1). Auto: always, but never under pipelines, where each microbatch would gather anew. */
typedef enum Reshard { RESHARD_AUTO, RESHARD_ALWAYS, RESHARD_NEVER } Reshard;

/* When gradients cross the network: once a step, once a microbatch, or reduce-scatters once a microbatch and
 * all-reduces over the replicas once a step. Auto: what takes the least memory of those that send the fewest
 * bytes; with a limit of memory, plan/sync.h. */
typedef enum GradientSync { SYNC_STEP, SYNC_MICROBATCH, SYNC_REPLICA, SYNC_AUTO } GradientSync;
/* As it applies, never auto: where an axis has one rank, or a step one microbatch, what is asked about it is
 * settled. */
GradientSync program_sync(GradientSync asked, int shards, int replicas, int microbatches);

/* Whether anything crosses between ranks before a part of a unit that is not its first: there passes are cut
 * into several actions. program_crosses says what the mesh makes cross (plan/axes.h): nothing while each
 * matrix is on one rank. */
typedef bool Crosses(const Partition *p, int unit, int part);
Crosses program_crosses;

typedef struct ProgramSpec {
    const ModelConfig *model;
    const Partition *partition;
    const Schedule *schedule; /* with transfers */
    bool defer_head;          /* the head's weight gradient waits for BWD_W, where halves run apart */
    bool exact;               /* fixed-point sums */
    GradientSync sync;
    Reshard reshard;
    Crosses *crosses;
} ProgramSpec;

typedef struct Program {
    const ModelConfig *model;
    const Partition *partition;
    int units, microbatches, instances; /* instances: most gathers of a unit */
    bool defer_head;                    /* the head's weight gradient waits for BWD_W */
    bool ordered;                       /* invariant 3 holds */
    bool first_alone; /* each gradient gets the first microbatch's before any other's, or apart from them */
    bool exact;
    bool evaluates;    /* forward only: there is memory for what engine_score finds */
    GradientSync sync; /* as it applies: program_sync */
    Crosses *crosses;
    int count, capacity;
    Action *actions;
} Program;

/* Model and partition must outlive the program. */
void program_lower(Program *p, const ProgramSpec *spec);
/* Forward only, over one microbatch: evaluation. */
void program_lower_evaluation(Program *p, const ModelConfig *model, const Partition *partition,
                              Crosses *crosses);
void program_free(Program *p);
ErrorCode program_check(const Program *p, Error *err);

/* Whether gradients of a microbatch have memory of their own (else they are added to those of the step at
 * once). */
bool program_has_slots(const Program *p);
/* Ranks of the inner step of a sum whose outer step is over the replicas (comm_sum_outer). 1 where the
 * replicas' sum is one of its own: of what many microbatches left. */
int program_inner_ranks(const Program *p);

/* Whether a pass is the first, or the last, of those that run a unit's parts on a microbatch. */
bool program_begins_unit(const Program *p, Action a);
bool program_ends_unit(const Program *p, Action a);
/* The unit whose flat gets a gradient from this action (of the head's, it may be the tied head's own); -1:
 * none. Those of vectors are made with the input half of a backward pass, those of matrices with the weight
 * half, the head's with its forward pass unless that is deferred. */
int program_gradient_unit(const Program *p, Action a, Flat flat);

/* Bytes that this rank sends in one execution, by what they are. */
typedef struct ProgramTraffic {
    uint64_t pipeline;   /* between stages: activations, their gradients, and the tied gradient */
    uint64_t replicas;   /* gradients, over the replicas */
    uint64_t parameters; /* over the shards: gathers, ... */
    uint64_t gradients;  /* ... and reductions */
} ProgramTraffic;
/* `compute_bytes` and `boundary_bytes` are of an element of the compute dtype and of one [T, h] tensor. */
ProgramTraffic program_traffic(const Program *p, size_t compute_bytes, size_t boundary_bytes);

const char *action_name(ActionKind kind);
/* One line an action; runs of the same kind over consecutive units are folded ("FWD 0..13 m0") unless
 * `whole`. */
void program_print(const Program *p, bool whole, Text *out);

#endif
