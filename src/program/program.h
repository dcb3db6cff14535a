/* A training step as data: the list of actions that a rank executes in one optimizer step, made before the
 * first step and never changed. The engine executes it, the memory plan and the traffic are derived from it,
 * and `weft plan --program` prints it.
 *
 *     LOAD   m          put microbatch m into tensor memory
 *     GATHER u          start the all-gather of unit u's parameters over the ranks that shard them
 *                       (FlatShard.axes: dp_shard x cp, of experts without ep); its next use waits for it
 *     RELEASE u         drop the gathered parameters
 *     RECV_F u m        post the receive of unit u's input from the previous stage; FWD u m waits for it
 *     FWD    u m        forward of unit u on microbatch m; the last unit also computes the loss
 *     SEND_F u m        send unit u's output to the next stage
 *     RECV_B u m        post the receive of the gradient of unit u's output; its backward pass waits for it
 *     BWD    u m        backward of unit u, dgrad and wgrad
 *     DGRAD  u m        backward, only the gradient of the input
 *     WGRAD  u m        backward, only the gradient of the weights
 *     SEND_B u m        send the gradient of unit u's input to the previous stage
 *     RECOMPUTE u m     recompute ops of unit u for its backward pass (activation checkpointing), where
 *                       collectives cut that pass
 *     COLLECTIVE u m    between ops: start a collective that one of the unit's layers declares
 *                       (model/layers/layer.h: Collective); printed by its kind and axis, as TP_ALL_GATHER
 *     WAIT   u m        wait for it
 *     DISPATCH u m      send tokens' rows to their experts' ranks, run ops there, combine the results
 *     SUM_PARTIALS u    sum the partial gradients of unit u's vectors, over tp too
 *     REDUCE_SCATTER u  start summing unit u's gradient over the same ranks: each keeps its shard
 *     ALL_REDUCE u      start summing unit u's (shard of the) gradient over dp_replicate
 *     REDUCED u         wait for the sums
 *     TIE               add the head's gradient to the embedding's (tied embeddings)
 *     NORM              gradient norm, count of non-finite gradients, loss, clip coefficient: of all ranks
 *     MATRIX_GATHER u   compute the directions of those matrices of unit u that tp shards and an optimizer
 *                       needs whole, and start to send them to their owner ranks (program/owners.h)
 *     MATRIX_SCATTER u  wait for them, compute the steps of whole matrices, start to send their shards back
 *     UPDATE u          optimizer step of the owned shard of unit u, and its compute copy; waits for
 *                       MATRIX_SCATTER
 *
 * With segments (schedule/schedule.h), m is a segment of a microbatch: microbatch m / segments of the step.
 *
 * A reduction of one microbatch has its index in `microbatch`, that of a whole step has -1. Unit number
 * `units` is the tied head's gradient.
 *
 * Invariants, checked by program_check
 *    1. Each FWD u m of a unit that runs here comes once, after FWD u-1 m, RECV_F u m or (u = 0) LOAD m.
 *    2. Each (u, m) has one BWD, or one DGRAD followed later by one WGRAD. Dgrad comes after FWD u m and
 *       after dgrad of u+1, or RECV_B u m.
 *    3. Wgrads of a unit come in ascending order of microbatches, so that sums do not depend on the schedule
 *       (except in schedules that ask for another order). With segments, forward passes of a microbatch come
 *       in ascending order of its segments, and all before its backward passes, which come in descending
 *       order: attention reads keys of earlier segments, and adds to the gradients of these keys.
 *    4. Data is sent after it was made, and each boundary is sent once.
 *    5. With sharded parameters, each pass over a unit lies between a GATHER and a RELEASE of it.
 *    6. With more than one data-parallel rank, each gradient is reduced once (a step, or a microbatch) on
 *       each axis, after its last addition and before it is used.
 *    7. TIE, NORM, UPDATE come once, in this order, after everything else. A unit whose matrices have owners
 *       has one MATRIX_GATHER and one MATRIX_SCATTER between NORM and its UPDATE; those of two units never
 *       overlap.
 *    8. A pass over a unit is one action, or several that run its ops (model/unit.h) one after the other,
 *       each once: ascending in a forward pass, descending in a backward pass. In a BWD of several actions
 *       the wgrad of an op may come later than its dgrad, but not after the last action.
 *    9. Every sum that the table of axes (program/axes.h) lists has an action that computes it.
 *   10. For tensors that collective rows name: none is read before it is made, in flight, or overwritten, or
 *       written in flight (check.c). Each row's collective runs once in a pass and has ended when that ends.
 *       Buffers of the memory plan are not checked here (plan/memory.c: hold_sends; test_program.c). */
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
    int unit; /* -1 where there is none */
    /* -1 where there is none; of GATHER and RELEASE: index of this gather among the unit's gathers in the
     * step, from 0 */
    int microbatch;
    /* Of a pass, RECOMPUTE and DISPATCH: the ops of the unit that it runs, without a collective among them.
     * Of COLLECTIVE and WAIT: empty, at the op that they come before. */
    OpRange ops;
    int slice;         /* of the head's chunks: UnitPass.slice; 0: all */
    Grads grads;       /* of BWD: DGRAD or WGRAD alone; 0: both (action_grads) */
    ActionKind pass;   /* of COLLECTIVE, WAIT, DISPATCH: FWD, RECOMPUTE, BWD, DGRAD, WGRAD */
    ActionKind before; /* of RECOMPUTE, and of collectives in it: the backward pass that it is for */
    int row;           /* of COLLECTIVE, WAIT, DISPATCH: index in unit_collectives, ... */
    CollKind how;      /* ... and its kind and axes */
    AxisSet over;
} Action;
bool action_is_pass(ActionKind kind);   /* FWD, BWD, DGRAD, WGRAD */
bool action_exchanges(ActionKind kind); /* COLLECTIVE, WAIT, DISPATCH */
/* Of these three: the pass that they belong to; of others, their kind. */
ActionKind action_pass(Action a);
/* "TP_ALL_GATHER". */
void collective_name(Action a, Text *out);
/* Which of dgrad and wgrad a backward pass has, and which of them an action of it runs. */
Grads pass_grads(ActionKind pass);
Grads action_grads(Action a);

/* Resolves `auto`, and maps settings that are equivalent on this mesh, or with one microbatch, to one
 * value. */
GradientSync program_sync(GradientSync asked, int shards, int replicas, int microbatches);

/* Whether a collective runs just before `op` (not the first op of the unit), or at the unit's end if `op` is
 * the number of ops. Passes are cut into several actions there. program_has_collective reads the layers'
 * rows; it is false for all ops without tp, cp and ep. */
typedef bool HasCollective(const Partition *p, int unit, int op);
HasCollective program_has_collective;

typedef struct ProgramSpec {
    const ModelConfig *model;
    const Partition *partition;
    const Schedule *schedule; /* none for an evaluation */
    bool defer_head;          /* the head's wgrad waits for WGRAD, if the schedule splits dgrad and wgrad */
    bool exact;               /* fixed-point sums */
    GradientSync sync;
    Reshard reshard;
    HasCollective *has_collective;
    Recompute recompute;
    int chunks; /* of logits, over all heads, where ranks share the vocabulary: model_head_chunks */
} ProgramSpec;

typedef struct Program {
    const ModelConfig *model;
    const Partition *partition;
    int units, microbatches, instances; /* instances: most gathers of a unit */
    int segments;                       /* of a microbatch of the step, each of which counts as one here */
    bool defer_head;                    /* the head's wgrad waits for WGRAD */
    bool ordered;                       /* invariant 3 holds */
    /* The first microbatch's gradients can be measured alone: they come first, or have their own buffer. */
    bool first_alone;
    bool exact;
    bool evaluates;    /* forward only, with memory for the records of engine_score */
    GradientSync sync; /* as it applies: program_sync */
    HasCollective *has_collective;
    Recompute recompute;
    int chunks;
    bool training;
    int count, capacity;
    Action *actions;
} Program;

/* The microbatch of the step that a pass works on, which of its segments, and the first of these. */
static inline int program_batch(const Program *p, int m) { return m / p->segments; }
static inline int program_segment(const Program *p, int m) { return m % p->segments; }
static inline int program_first_segment(const Program *p, int m) { return m - m % p->segments; }
/* Microbatches of the step. */
static inline int program_batches(const Program *p) { return p->microbatches / p->segments; }

/* Model and partition must outlive the program. */
void program_lower(Program *p, const ProgramSpec *spec);
/* Forward only, over one microbatch: evaluation. */
void program_lower_evaluation(Program *p, const ProgramSpec *spec); /* schedule: none */
void program_free(Program *p);
ErrorCode program_check(const Program *p, Error *err);

/* Whether gradients of a microbatch have their own memory. Otherwise they are added to those of the step at
 * once. */
bool program_has_slots(const Program *p);
/* With ep: whether the gradient for the tokens of each rank of ep is rounded, or added to those of the ranks
 * before, as soon as it is made. Not where it accumulates over a step: there the sum over microbatches comes
 * before the sum over ranks. */
bool program_adds_sources(const Program *p, Flat flat);
/* Whether one product makes a unit's gradient for the tokens of several ranks of ep, which it adds up. Not in
 * fixed point, which rounds each by itself, and not of biases, whose op sums the rows of one rank. */
bool program_joins_sources(const Program *p, int unit);
/* Gradients of a flat that a pass leaves side by side: one for each exact chunk; of experts with ep, one that
 * is added up, or else one for each rank of ep. */
int program_gradients(const Program *p, Flat flat);
/* Partial sums that exist at most besides that one while they are added up (base/tree.h). */
int program_partial_sums(const Program *p, Flat flat);
/* Size of the inner group if this flat is summed in two steps: over shards, then over replicas
 * (comm_sum_outer). 1 if replicas are reduced separately, after microbatches were summed. */
int program_inner_ranks(const Program *p, const FlatShard *s);

/* Whether collectives cut passes over a unit anywhere. */
bool program_cuts(const Program *p, int unit);

/* What lowering and checks ask about a unit, computed once: its rows, and sets of its ops as bit masks. */
typedef struct Anatomy {
    OpRange all;
    int count;
    UnitCollective rows[UNIT_COLLECTIVES];
    /* [passes and RECOMPUTE] ops that use a row in a pass; none: the row is not part of the pass. Dgrad and
     * wgrad of dispatched ops both run with DGRAD. */
    uint32_t uses[ACT_RECOMPUTE + 1][UNIT_COLLECTIVES];
    uint32_t dispatched, sliced;   /* run on their experts' ranks; run chunk by chunk */
    uint32_t recomputed, products; /* by the policy; ops with a matrix product */
    uint32_t ops;                  /* used by any row, whatever the mesh */
    uint32_t reads_x, begins;      /* ops that read FULL_X; the first such op of each layer */
    uint32_t parallel;             /* ops of layers that gather both FULL_X and FULL_DY */
} Anatomy;
void program_anatomy(const Program *p, int unit, Anatomy *out);
/* The row that dispatches an op in this program; -1: none. */
int anatomy_dispatch(const Anatomy *n, int op);

/* The chunk of tokens of a slice. MTP heads each take all chunks in turn. */
int program_chunk(const Program *p, const Model *m, Action a);
/* Whether the gradients of a unit's vectors have partial sums to be added; whether that is once a step, or
 * once a microbatch. */
bool program_sums_partials(const Program *p, int unit);
bool program_sums_partials_once(const Program *p);
/* Whether the action is a wgrad that reads parameters. Only adapters have such. */
bool program_reads_adapters(const Program *p, Action a);

/* Whether a pass is the first, or the last, of those that run a unit's ops on a microbatch. */
bool program_begins_unit(const Program *p, Action a);
bool program_ends_unit(const Program *p, Action a);
/* Enumerates an action's gradients, at most PASS_GRADIENTS: one for each flat, and the one of the
 * embedding's rows that an MTP module reads. Returns false where the action does not make the i-th. */
enum { PASS_GRADIENTS = GRADIENT_FLATS + 1 };
typedef struct PassGradient {
    int unit;
    Flat flat;
} PassGradient;
bool program_gradient(const Program *p, Action a, int i, PassGradient *out);

/* Bytes of the record that all ranks combine once a step (engine/record.h). No action does this. */
enum { STEP_RECORD_BYTES = (6 + MTP_DEPTH_MAX) * sizeof(ExactSum) + 11 * sizeof(int64_t) };
/* Upper bound on how often a rank sends the record: floor(log2(ranks)), plus 1 if ranks is not a power of
 * 2. */
int program_record_rounds(int ranks);

/* Bytes that this rank sends in one execution, by kind. */
typedef struct ProgramTraffic {
    uint64_t pipeline;   /* between stages: activations, their gradients, and the tied gradient */
    uint64_t replicas;   /* gradients, over the replicas */
    uint64_t parameters; /* over the shards: gathers of parameters, ... */
    uint64_t gradients;  /* ... and reductions of gradients */
    /* Over tp: collectives of passes, partial sums of vectors' gradients, gather and scatter of matrices. */
    uint64_t tensor;
    uint64_t context; /* over cp: collectives of passes */
    /* Over ep: dispatches, assuming balanced experts; a step's real bytes depend on its tokens. */
    uint64_t experts;
    uint64_t partner; /* gradients to the partner's copy; no action does this (plan/rank.h) */
} ProgramTraffic;
ProgramTraffic program_traffic(const Program *p, const Model *m);
/* Bytes that a GATHER, REDUCE_SCATTER or ALL_REDUCE sends for one flat: exactly what the links count
 * afterwards (tests/ranks/test_layouts.c). */
uint64_t program_flat_bytes(const Program *p, const Model *m, Action a, Flat flat);
/* The same of a COLLECTIVE or DISPATCH. */
uint64_t program_collective_bytes(const Program *p, const Model *m, Action a);
/* What a rank sends in the collectives inside the passes of a unit, over a microbatch. */
typedef enum PassAxis { PASS_TENSOR, PASS_CONTEXT, PASS_EXPERTS, PASS_AXES } PassAxis;
typedef struct PassTraffic {
    Cost bytes;     /* of forward, dgrad and wgrad; with dgrad: recomputation, and a BWD that does both */
    int operations; /* for their latency; an all-reduce counts as two */
} PassTraffic;
/* units [program units][PASS_AXES]: those of the units that run here; others are left alone. partial: bytes
 * of an element of partial sums as the hardware sends it; weft sends 4. */
void program_pass_traffic(const Program *p, const Model *m, size_t partial, PassTraffic (*units)[PASS_AXES]);
/* The next row after `row` that starts with the row of this COLLECTIVE or WAIT; -1: none. */
int program_along(const Program *p, Action a, int row);
/* The largest workspace that any row needs in the units of this rank, with that of its adapters. */
size_t program_collective_workspace(const Program *p, const Model *m);
/* That row's workspace (0 if it reduces nothing); its adapters' workspace follows. */
size_t collective_workspace(const Program *p, const Model *m, const Collective *row);
/* Iterates over runs of a unit's vectors whose gradients are sums over tp, in the order of its flat. Starts
 * at parameter *next and advances *next past the run. False when none is left. `first` and `count` are
 * elements. */
typedef struct VectorRun {
    int64_t first, count;
} VectorRun;
bool program_next_sum(const Program *p, int unit, int *next, VectorRun *run);

const char *action_name(ActionKind kind);
/* One line an action; runs of the same kind over consecutive units are folded ("FWD 0..13 m0") unless
 * `whole`. */
void program_print(const Program *p, bool whole, Text *out);

#endif
