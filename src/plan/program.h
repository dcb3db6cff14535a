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
 *     AGAIN  u m        make parts of unit u again for their backward pass, where something crosses in it
 *     GATHER_X u m      between parts: start to all-gather what each rank of tp has of a tensor's tokens
 *     SUM_X  u m        between parts: start to sum terms over tp, each rank gets those of its tokens
 *     SWAP_X u m        between parts: start to change tokens for heads over cp, or back, around attention
 *     GATHER_KV u m     before attention: start to all-gather the keys and values of each rank of cp
 *     SUM_KV u m        behind its way back: start to sum their gradients over cp, each rank gets those of
 *                       its tokens
 *     SUM_COPIES u m    the same, behind it: start to sum them over the ranks of tp that hold the same heads
 *                       of keys, of which each has some of the queries that look at them
 *     ROWS_X u m        before a norm of all heads of a token at once: start to all-gather over tp what each
 *                       rank has of sums over them; on the way back behind the sums that it needs there
 *     COUNT_X u m       behind a router: start to sum over cp how often sequences chose each expert
 *     SUM_WEIGHTS u m   behind a router, on the way back: start to sum gradients of tokens' weights over tp
 *     SUM_LATENTS u m   behind what makes latents, on the way back: start to sum their gradients over tp
 *     RECORDS u m       between a chunk's logits and its loss: start to all-gather their records over tp
 *     CROSSED u m       wait until what one of these has started is there
 *     LEAVES u          add up the leaves of the gradients of unit u's vectors, over tp too
 *     REDUCE_SCATTER u  start summing unit u's gradient over dp_shard: each rank keeps its share
 *     ALL_REDUCE u      start summing unit u's (share of the) gradient over dp_replicate
 *     REDUCED u         wait until the sums are there
 *     TIE               add the head's gradient to the embedding's (tied embeddings)
 *     NORM              gradient norm, count of non-finite gradients, loss, clip coefficient: of all ranks
 *     COLLECT u         make the directions of unit u's matrices that an optimizer must see whole and tp
 *                       cuts, and start to send their boxes to their makers over tp (plan/makers.h)
 *     RETURN u          wait for them, make the steps of whole matrices, start to send boxes of these back
 *     UPDATE u          optimizer step of the owned share of unit u, and its compute copy; waits for RETURN
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
 *  7. TIE, NORM, UPDATE come once, in this order, after everything else. Between NORM and the UPDATE of a
 *     unit whose matrices have makers its COLLECT and its RETURN come, once each; no other unit's meanwhile.
 *  8. A pass over a unit is one action, or several that run its parts (model/unit.h) one after the other,
 *     each once: ascending in a forward pass, descending in a backward pass. In a BWD of several actions a
 *     part's weight half may come later than its input half, not later than the last action.
 *  9. Nothing that the table of axes (plan/axes.h) calls a sum is left without an action that sums it.
 * 10. Where ranks share a unit's matrices, or the tokens of a microbatch, each of its passes stops at the
 *     places that the table names, and what crosses there has crossed when a part runs that reads it
 *     (model/unit.h: crossings). It starts when what it sends has been made, and what lies where it goes has
 *     been read; and it ends in the pass that it belongs to. */
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
    ACT_AGAIN,
    ACT_GATHER_X,
    ACT_SUM_X,
    ACT_SWAP_X,
    ACT_GATHER_KV,
    ACT_SUM_KV,
    ACT_SUM_COPIES,
    ACT_ROWS_X,
    ACT_COUNT_X,
    ACT_SUM_WEIGHTS,
    ACT_SUM_LATENTS,
    ACT_VISIT_X,
    ACT_RECORDS,
    ACT_CROSSED,
    ACT_LEAVES,
    ACT_REDUCE_SCATTER,
    ACT_ALL_REDUCE,
    ACT_REDUCED,
    ACT_TIE,
    ACT_NORM,
    ACT_COLLECT,
    ACT_RETURN,
    ACT_UPDATE,
    ACT_KINDS
} ActionKind;

typedef struct Action {
    ActionKind kind;
    int unit;       /* -1 where there is none */
    int microbatch; /* -1 where there is none; of GATHER and RELEASE: the how-manieth gather of this unit */
    /* Of a pass, and of AGAIN: those of the unit that it runs; nothing crosses between ranks inside one. Of a
     * crossing: from its place, and none, but of VISIT_X: those that rows visit other ranks for. */
    Parts parts;
    int slice;         /* of what the head does by chunks: UnitPass.slice; 0: all of it */
    Half half;         /* of BWD: which halves of its parts it runs; 0: both */
    ActionKind pass;   /* of a crossing: FWD, AGAIN, BWD, BWD_IN, BWD_W */
    ActionKind start;  /* of CROSSED: what started it */
    ActionKind before; /* of AGAIN, and of what crosses in it: the backward pass that it is for */
} Action;
bool action_is_pass(ActionKind kind); /* FWD, BWD, BWD_IN, BWD_W */
/* GATHER_X, SUM_X, SWAP_X, GATHER_KV, SUM_KV, SUM_COPIES, ROWS_X, COUNT_X, SUM_WEIGHTS, SUM_LATENTS, RECORDS:
 * its start; CROSSED: its end; VISIT_X: both. */
bool action_is_crossing(ActionKind kind);
bool action_crosses_contexts(ActionKind kind); /* SWAP_X, GATHER_KV, SUM_KV, COUNT_X: over cp */
CrossingKind crossing_of(Action a);
/* Which halves a backward pass has, and which of them an action of it runs. */
Half pass_half(ActionKind pass);
Half action_half(Action a);

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

/* Whether anything crosses between ranks before a part of a unit that is not its first, or at its end: there
 * passes are cut into several actions. program_crosses says what the mesh makes cross (plan/axes.h): nothing
 * while each matrix is on one rank. */
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
    Recompute recompute;
    int chunks; /* of logits, of all heads, where ranks share the vocabulary: model_head_chunks */
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
int program_inner_ranks(const Program *p, const Share *s);

/* Whether passes over a unit are cut anywhere. */
bool program_cuts(const Program *p, int unit);
/* Whether rows visit other ranks for a part, whose experts they share out: it runs in VISIT_X, which makes
 * the gradients of experts with the input half of a backward pass. In evaluation none do for a module. */
bool program_visits(const Program *p, int unit, int part);
/* The first part from `part` on for which none do: behind the last of them the gradient of the layer's result
 * is gathered. */
int program_past_visits(const Program *p, int unit, int part);
/* What crosses in a pass at a place of a unit: 1 << CrossingKind, of all but RECORDS and VISIT; 0 where no
 * ranks share the unit. Records are exchanged once a chunk of the head's forward pass. */
unsigned program_crossing(const Program *p, ActionKind pass, int unit, int part);
/* The ops that use a row of a unit in a pass, a bit each; 0: the pass is without it. */
uint32_t program_collective(const Program *p, ActionKind pass, int unit, int row);
/* Whether forward passes of a part take its logits chunk by chunk. */
bool program_slices(const Program *p, int unit, int part);
/* Of a slice, the chunk of tokens: heads take each in turn. */
int program_chunk(const Program *p, const Model *m, Action a);
/* Whether vectors' gradients of a unit have leaves to be added up: once a step, or once a microbatch. */
bool program_adds_leaves(const Program *p, int unit);
bool program_adds_leaves_once(const Program *p);
/* Whether a weight half reads parameters, which none but that of adapters does. */
bool program_reads_adapters(const Program *p, Action a);

/* Whether a pass is the first, or the last, of those that run a unit's parts on a microbatch. */
bool program_begins_unit(const Program *p, Action a);
bool program_ends_unit(const Program *p, Action a);
/* The unit whose flat gets a gradient from this action (of the head's, it may be the tied head's own); -1:
 * none. Those of vectors are made with the input half of a backward pass, those of matrices with the weight
 * half, the head's with its forward pass unless that is deferred. */
int program_gradient_unit(const Program *p, Action a, Flat flat);
/* All of an action, PASS_GRADIENTS at most, by number: of each flat, and of the embedding's rows that a
 * module takes. Returns whether it makes the i-th. */
enum { PASS_GRADIENTS = GRADIENT_FLATS + 1 };
typedef struct PassGradient {
    int unit;
    Flat flat;
} PassGradient;
bool program_gradient(const Program *p, Action a, int i, PassGradient *out);

/* Bytes of what ranks combine once a step, over all of them and no axis (engine/record.h). No action does
 * it. */
enum { STEP_RECORD_BYTES = (6 + FURTHER_HEADS) * sizeof(ExactSum) + 11 * sizeof(int64_t) };
/* How often a rank sends that, at most: floor(log2(ranks)) times, once more where ranks are no power of 2. */
int program_record_rounds(int ranks);

/* Bytes that this rank sends in one execution, by what they are. */
typedef struct ProgramTraffic {
    uint64_t pipeline;   /* between stages: activations, their gradients, and the tied gradient */
    uint64_t replicas;   /* gradients, over the replicas */
    uint64_t parameters; /* over the shards: gathers, ... */
    uint64_t gradients;  /* ... and reductions */
    uint64_t tensor;     /* over tp: crossings, the leaves of vectors' gradients, boxes of matrices */
    uint64_t context;    /* over cp: crossings */
    uint64_t
        experts; /* over ep: visits, where tokens go evenly to all ranks; what a step sends hangs on them */
} ProgramTraffic;
ProgramTraffic program_traffic(const Program *p, const Model *m);
/* Bytes that the collective of one flat sends, which a GATHER, REDUCE_SCATTER or ALL_REDUCE starts: what the
 * links will have counted afterwards, to the byte (tests/ranks/test_layouts.c). */
uint64_t program_flat_bytes(const Program *p, const Model *m, Action a, Flat flat);
/* Of a crossing, which its start counts. */
uint64_t program_crossing_bytes(const Program *p, const Model *m, Action a);
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
