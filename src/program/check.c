/* Checks the invariants of a program (program/program.h). The check does not know how the program was made.
 * It walks the actions once and verifies two things.
 *
 * Marks of what has been done for each (unit, microbatch):
 *
 *     FWD        needs LOAD, and FWD of the unit below or RECV_F         --> DONE_FORWARD
 *     DGRAD      needs DONE_FORWARD, and dgrad of the unit above or RECV_B --> DONE_DGRAD
 *     WGRAD      needs as many ops of dgrad                              --> DONE_WGRAD
 *     SEND_x     needs what it sends                                     --> SENT_x
 *     reductions need DONE_WGRAD of all that they sum                    --> SCATTERED, SUMMED, REDUCED
 *
 * At the norm everything must have all its marks.
 *
 * Hazards inside a pass over a unit concern the tensors that its rows name (model/layers/layer.h:
 * Collective). An op reads `to`, or makes `from`; a collective reads `from` and writes `to`, from its start
 * to its end. The check tracks what each tensor holds, and so finds
 *
 *     reads before data is made or has arrived         the row has not ended, or its ops have not run
 *     data overwritten before it was read              the tensor holds something else
 *     accesses to tensors in flight                    a started row names the tensor
 *
 * for every row: the check knows no layer, and of the kinds of collectives only COLL_DISPATCH, whose action
 * runs ops. A program that would hang, read missing data, or leave out a sum is thus refused before memory is
 * taken. A schedule written by hand passes through here like any other.
 *
 * Elsewhere called: liveness analysis (use before definition). Of buffers: plan/memory.c. */
#include <stdlib.h>
#include <string.h>

#include "program/owners.h"
#include "program/program.h"

/* Marks of what has been done, per (unit, microbatch). */
enum {
    DONE_FORWARD = 1,
    DONE_DGRAD = 2,
    DONE_WGRAD = 4,
    DONE_ALL = 7,
    GOT_INPUT = 8,
    GOT_GRADIENT = 16,
    SENT_OUTPUT = 32,
    SENT_GRADIENT = 64
};

enum { SCATTERED = 1, SUMMED = 2, REDUCED = 4, LEFT = 8 /* its partial sums are added up */ };
typedef enum RunKind {
    RUN_FORWARD,
    RUN_DGRAD,
    RUN_WGRAD,
    RUN_RECOMPUTE,
    RUN_KINDS
} RunKind; /* kinds of runs of ops */

/* State of a (unit, microbatch). */
typedef struct UnitState {
    uint32_t ops[RUN_KINDS]; /* ops that have run, a bit each */
    uint32_t started[RUN_KINDS],
        there[RUN_KINDS];    /* rows; a pass with dgrad and wgrad uses those of RUN_DGRAD */
    int slice;               /* of the head: the last one that has run */
    bool called_up, records; /* records of the chunk whose logits are made: started, there */
} UnitState;

/* What a tensor holds: the result of a row, or the output of its ops. */
enum { HOLDS_NOTHING, HOLDS_BROUGHT = 1, HOLDS_MADE = 1 + UNIT_COLLECTIVES };
/* The tensors of each layer and those of the unit. */
enum { TENSORS = UNIT_SUBLAYERS * LAYER_TENSORS + UNIT_TENSORS - LAYER_TENSORS };

/* The current pass over a unit. There is one at a time, since passes share memory. */
typedef struct PassState {
    int unit, microbatch; /* unit -1: none */
    ActionKind kind;
    uint32_t under_way; /* rows */
    uint8_t holds[TENSORS];
} PassState;

typedef struct Check {
    const Program *p;
    Anatomy *anatomy;    /* [units] */
    unsigned char *done; /* [units, microbatches] */
    UnitState *state;    /* [units, microbatches] */
    PassState pass;
    unsigned char *reduced; /* [units + 1, microbatches + 1] marks for each microbatch and for the step */
    int *last_weight;       /* [units] microbatch of the last wgrad */
    unsigned char *loaded;  /* [microbatches] */
    bool *gathered;         /* [units] */
    bool *cuts;             /* [units] passes are cut somewhere */
    int phase;              /* 0 microbatches, 1 tied, 2 norm, 3 update */
    int updated;            /* last unit updated */
    ActionKind made;        /* last of MATRIX_GATHER, MATRIX_SCATTER for the next unit; ACT_NORM: neither */
} Check;

static const Anatomy *anatomy(const Check *c, Action a) { return &c->anatomy[a.unit]; }
static bool has(uint32_t ops, int op) { return ops >> op & 1; }

/* Units of other ranks have marks too, which stay empty: that keeps the indexing simple and costs little. */
static unsigned char *mark(Check *c, int u, int m) { return &c->done[u * c->p->microbatches + m]; }

static UnitState *state(Check *c, Action a) { return &c->state[a.unit * c->p->microbatches + a.microbatch]; }

/* Bits first <= i < end. */
static uint32_t bits(int first, int end) { return (uint32_t)((UINT64_C(1) << end) - (UINT64_C(1) << first)); }
static uint32_t bits_of(OpRange ops) { return bits(ops.first, ops.end); }

/* ---- hazards ---- */

static RunKind way_of(ActionKind pass) {
    return pass == ACT_FWD         ? RUN_FORWARD
           : pass == ACT_RECOMPUTE ? RUN_RECOMPUTE
           : pass == ACT_WGRAD     ? RUN_WGRAD
                                   : RUN_DGRAD;
}

static const Collective *row_of(const Anatomy *n, int row) { return n->rows[row].row; }

/* Index of a tensor among all tensors that a unit's rows name. */
static int tensor_of(const Anatomy *n, int row, int tensor) {
    return tensor >= LAYER_TENSORS ? UNIT_SUBLAYERS * LAYER_TENSORS + tensor - LAYER_TENSORS
                                   : n->rows[row].sublayer * LAYER_TENSORS + tensor;
}
static int from_of(const Anatomy *n, int row) { return tensor_of(n, row, row_of(n, row)->from); }
static int to_of(const Anatomy *n, int row) { return tensor_of(n, row, row_of(n, row)->to); }

/* Rows whose actions are checked here. Rows that go along with another have none, dispatched rows are run,
 * and chunks have their own order. */
static bool is_exchanged(const Anatomy *n, ActionKind pass, int row) {
    const Collective *c = row_of(n, row);
    return n->uses[pass][row] && !c->along && !c->chunked && c->kind != COLL_DISPATCH;
}

static uint32_t exchanged_in(const Anatomy *n, ActionKind pass) {
    uint32_t rows = 0;
    for (int i = 0; i < n->count; i++) rows |= is_exchanged(n, pass, i) ? 1u << i : 0;
    return rows;
}

/* Everything that a pass exchanges must have arrived when the pass ends. */
static const char *end_pass(Check *c) {
    PassState *s = &c->pass;
    Action a = {.unit = s->unit, .microbatch = s->microbatch};
    if (s->unit < 0) return NULL;
    const Anatomy *n = anatomy(c, a);
    const UnitState *u = state(c, a);
    if (s->under_way) return "comes while something of another pass is on its way";
    if (exchanged_in(n, s->kind) & ~u->there[way_of(s->kind)])
        return "comes before all that a pass exchanges";
    s->unit = -1;
    return NULL;
}

/* Recomputation belongs to the pass that it is for. */
static const char *enter_pass(Check *c, Action a) {
    ActionKind kind = action_pass(a);
    if (kind == ACT_RECOMPUTE) kind = a.before;
    PassState *s = &c->pass;
    if (s->unit == a.unit && s->microbatch == a.microbatch && s->kind == kind) return NULL;
    const char *wrong = end_pass(c);
    *s = (PassState){.unit = a.unit, .microbatch = a.microbatch, .kind = kind};
    return wrong;
}

/* Whether a row in flight names the tensor. */
static bool is_busy(const Check *c, const Anatomy *n, int tensor) {
    for (int i = 0; i < n->count; i++)
        if (c->pass.under_way >> i & 1 && (from_of(n, i) == tensor || to_of(n, i) == tensor)) return true;
    return false;
}

/* Dispatched ops are recomputed where they run, except for the last one, whose output is combined here. */
static uint32_t recomputed_in(const Anatomy *n, uint32_t ops) {
    return n->recomputed & ops & ~(n->dispatched & n->dispatched >> 1);
}

/* Whether everything is recomputed that the policy drops, and exchanged for that. */
static bool is_recomputed_first(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    const UnitState *u = state(c, a);
    if (!c->cuts[a.unit]) return true;
    return !(recomputed_in(n, UINT32_MAX) & ~u->ops[RUN_RECOMPUTE]) &&
           !(exchanged_in(n, ACT_RECOMPUTE) & ~u->there[RUN_RECOMPUTE]);
}

/* The passes of a row that an action runs: dgrad, wgrad or both of a backward pass. DISPATCH does both with
 * dgrad. */
static int passes_of(Action a) {
    ActionKind pass = action_pass(a);
    if (pass == ACT_FWD) return IN_FORWARD;
    if (pass == ACT_RECOMPUTE) return IN_RECOMPUTE;
    Grads grads = a.kind == ACT_DISPATCH ? BOTH_GRADS : action_grads(a);
    return (grads & DGRAD ? IN_DGRAD : 0) | (grads & WGRAD ? IN_WGRAD : 0);
}

/* Whether ops of an action read the result of a row: its own ops, or those next to them. */
static bool is_read(const Anatomy *n, ActionKind pass, int row, uint32_t ops) {
    const Collective *c = row_of(n, row);
    int cut = collective_cut(&n->rows[row]);
    if (!c->behind) return n->uses[pass][row] & ops;
    if (pass == ACT_FWD || pass == ACT_RECOMPUTE) return !c->overlaps && cut < n->all.end && ops >> cut & 1;
    return cut > 0 && ops >> (cut - 1) & 1;
}

/* Ops read what has arrived for them, and make what rows will send. */
static const char *check_hazards(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    const UnitState *u = state(c, a);
    ActionKind pass = action_pass(a);
    uint32_t ops = bits_of(a.ops);
    for (int i = 0; i < n->count; i++) {
        bool behind = row_of(n, i)->behind;
        if (!is_exchanged(n, pass, i) || !(row_of(n, i)->passes & passes_of(a))) continue;
        if (is_read(n, pass, i, ops)) {
            if (!(u->there[way_of(pass)] >> i & 1)) return "comes before what it reads is there";
            if (!behind && c->pass.holds[to_of(n, i)] != HOLDS_BROUGHT + i)
                return "reads what something else was put in the place of";
        }
        if (!behind || !(n->uses[pass][i] & ops)) continue;
        if (is_busy(c, n, from_of(n, i))) return "makes what is still on its way";
        c->pass.holds[from_of(n, i)] = (uint8_t)(HOLDS_MADE + i);
    }
    return NULL;
}

/* Whether the data of a row has been made when the row starts. */
static bool is_made(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    const Collective *row = row_of(n, a.row);
    const UnitState *u = state(c, a);
    uint32_t ops = n->uses[a.pass][a.row], needed;
    int lowest = __builtin_ctz(ops), above = 32 - __builtin_clz(ops);
    if (a.pass == ACT_FWD || a.pass == ACT_RECOMPUTE) {
        needed = bits(n->all.first, row->behind ? above : lowest);
        if (a.pass == ACT_RECOMPUTE) needed = recomputed_in(n, needed);
        return !(needed & ~u->ops[way_of(a.pass)]);
    }
    if (row->passes & IN_FORWARD || a.pass == ACT_WGRAD)
        return is_recomputed_first(c, a) && (a.pass != ACT_WGRAD || u->ops[RUN_DGRAD] == bits_of(n->all));
    needed = bits(row->behind ? lowest : above, n->all.end);
    return !(needed & ~u->ops[RUN_DGRAD]);
}

/* Whether `from` still holds the output of the ops, or the result of a row before this one. */
static bool holds_made(const Check *c, const Anatomy *n, Action a) {
    int from = from_of(n, a.row), holds = c->pass.holds[from];
    if (!row_of(n, a.row)->behind || holds == HOLDS_MADE + a.row) return true;
    for (int i = 0; i < a.row; i++)
        if (is_exchanged(n, a.pass, i) && row_of(n, i)->behind && from_of(n, i) == from)
            return holds == HOLDS_BROUGHT + i;
    for (int i = a.row + 1; i < n->count; i++)
        if (holds == HOLDS_MADE + i && n->uses[a.pass][i] == n->uses[a.pass][a.row]) return true;
    return false;
}

static const char *start_row(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    uint32_t *started = &state(c, a)->started[way_of(a.pass)];
    if (*started >> a.row & 1) return "happens twice";
    *started |= 1u << a.row;
    if (!is_made(c, a)) return "comes before what it sends";
    if (is_busy(c, n, to_of(n, a.row)) || is_busy(c, n, from_of(n, a.row)))
        return "moves what is still on its way";
    if (!holds_made(c, n, a)) return "sends what something else was put in the place of";
    c->pass.under_way |= 1u << a.row;
    c->pass.holds[to_of(n, a.row)] = (uint8_t)(HOLDS_BROUGHT + a.row);
    return NULL;
}

/* The records of a chunk are exchanged between its logits and its loss. */
static const char *check_chunk(Check *c, Action a) {
    UnitState *u = state(c, a);
    bool ends = a.kind == ACT_WAIT;
    if (u->slice % 2 != 1 || a.slice != u->slice || u->records || u->called_up != ends)
        return "comes where no records are";
    *(ends ? &u->records : &u->called_up) = true;
    return NULL;
}

/* A row is exchanged once, at its position: started, then waited for. */
static const char *check_exchange(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    if (a.row < 0 || a.row >= n->count || !n->uses[a.pass][a.row]) return "comes where nothing is exchanged";
    const char *wrong = enter_pass(c, a);
    if (wrong) return wrong;
    if (row_of(n, a.row)->chunked) return check_chunk(c, a);
    if (a.kind == ACT_COLLECTIVE) return start_row(c, a);
    if (!(c->pass.under_way >> a.row & 1)) return "waits for what has not been started";
    c->pass.under_way &= ~(1u << a.row);
    state(c, a)->there[way_of(a.pass)] |= 1u << a.row;
    return NULL;
}

/* Dispatched ops, and no others, run in DISPATCH; a separate wgrad has nothing to do there. */
static bool is_in_place(const Check *c, Action a) {
    uint32_t own = bits_of(a.ops), remote = anatomy(c, a)->dispatched & own;
    return action_exchanges(a.kind) ? remote == own : !remote || a.kind == ACT_WGRAD;
}

/* ---- passes ---- */

/* The head runs by chunks: logits, records, loss; then the next chunk. */
static const char *run_slice(Check *c, Action a) {
    UnitState *u = state(c, a);
    bool sliced = action_pass(a) == ACT_FWD && has(anatomy(c, a)->sliced, a.ops.first);
    if (sliced != (a.slice > 0)) return sliced ? "takes all chunks at once" : "has chunks where none are";
    if (!sliced) return NULL;
    if (a.slice != u->slice + 1 || (a.slice % 2 == 0 && !u->records)) return "takes chunks out of order";
    u->slice = a.slice < 2 * c->p->chunks ? a.slice : 0, u->records = u->called_up = false;
    return NULL;
}

/* Ops of a run without a wgrad, which count as done. */
static uint32_t weightless(const Check *c, Action a) {
    return a.unit > 0 ? bits_of(a.ops) & ~anatomy(c, a)->products : 0;
}

/* The ops of an action must follow those that ran before, in the order of the pass. In a pass with dgrad and
 * wgrad, wgrads may be delayed. The last op completes the unit. */
static const char *run_ops(Check *c, RunKind way, Action a, unsigned flag) {
    OpRange all = anatomy(c, a)->all;
    uint32_t *done = &state(c, a)->ops[way], own, before;
    if (a.ops.first == a.ops.end) return "names no ops of its unit";
    own = bits_of(a.ops);
    before = way == RUN_FORWARD ? bits(all.first, a.ops.first) : bits(a.ops.end, all.end);
    if (way == RUN_WGRAD && action_pass(a) == ACT_BWD) before = *done & ~own;
    if (*done != before) return "runs twice, or skips ops";
    const char *wrong = run_slice(c, a);
    if (wrong || (a.slice > 0 && a.slice < 2 * c->p->chunks)) return wrong;
    *done |= own;
    if (*done == bits_of(all)) *mark(c, a.unit, a.microbatch) |= (unsigned char)flag;
    return NULL;
}

/* Checks what a run of ops reads and makes. */
static const char *check_run(Check *c, Action a) {
    const char *wrong = enter_pass(c, a);
    if (wrong) return wrong;
    if (!is_in_place(c, a)) return "runs experts that are elsewhere, or dispatches what is here";
    return check_hazards(c, a);
}

static bool runs(const Check *c, int u) {
    return u >= 0 && u < c->p->units && partition_runs(c->p->partition, u);
}

/* With one shard parameters are always complete. A tied head reads two units. */
static const char *check_gathered(const Check *c, int u) {
    if (c->p->partition->shards == 1) return NULL;
    if (!c->gathered[u]) return "comes before its parameters are gathered";
    if (u == c->p->units - 1 && c->p->partition->tied && !c->gathered[0])
        return "comes before the embedding is gathered";
    return NULL;
}

/* The microbatch must be loaded on every rank, not only where the embedding is, since all ranks read
 * positions and targets. */
static const char *check_forward(Check *c, Action a) {
    int u = a.unit, m = a.microbatch;
    bool ready = u == 0           ? c->loaded[m]
                 : runs(c, u - 1) ? *mark(c, u - 1, m) & DONE_FORWARD
                                  : *mark(c, u, m) & GOT_INPUT;
    if (!ready || !c->loaded[m]) return "comes before its input";
    bool first = program_segment(c->p, m) == 0;
    if (!first && !(*mark(c, u, m - 1) & DONE_FORWARD)) return "comes before the segment whose keys it reads";
    const char *wrong = run_ops(c, RUN_FORWARD, a, DONE_FORWARD);
    return wrong ? wrong : check_gathered(c, u);
}

/* The sum at a block's end needs nothing recomputed. */
static bool hands_on(const Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    int last = n->all.end - 1;
    return a.ops.first == last && !has(n->ops | n->products, last);
}

/* Checks dgrad. The head has no unit above it; the embedding and the head read no gathered parameters in
 * dgrad. */
static const char *check_input(Check *c, Action a) {
    int u = a.unit, m = a.microbatch;
    bool ready = *mark(c, u, m) & DONE_FORWARD;
    if (ready && u < c->p->units - 1)
        ready = runs(c, u + 1) ? *mark(c, u + 1, m) & DONE_DGRAD : *mark(c, u, m) & GOT_GRADIENT;
    if (!ready) return "comes before the gradient of its output";
    bool last = program_segment(c->p, m) == c->p->segments - 1;
    if (!last && !(*mark(c, u, m + 1) & DONE_DGRAD))
        return "comes before the segment that adds to the gradients of its keys";
    if (!hands_on(c, a) && !is_recomputed_first(c, a)) return "comes before what it reads is recomputed";
    const char *wrong = run_ops(c, RUN_DGRAD, a, DONE_DGRAD);
    if (wrong) return wrong;
    return u > 0 && u < c->p->units - 1 ? check_gathered(c, u) : NULL;
}

/* Recomputation comes after the forward pass. Its ops read what was saved, or recomputed by ops below. */
static const char *check_recompute(Check *c, Action a) {
    UnitState *u = state(c, a);
    const Anatomy *n = anatomy(c, a);
    if (!(*mark(c, a.unit, a.microbatch) & DONE_FORWARD)) return "comes before its forward pass";
    if (recomputed_in(n, bits(n->all.first, a.ops.first)) & ~u->ops[RUN_RECOMPUTE])
        return "comes before what it reads is recomputed";
    u->ops[RUN_RECOMPUTE] |= bits_of(a.ops);
    return check_gathered(c, a.unit);
}

/* A wgrad may not overtake its op's dgrad, whose operands it reads. */
static const char *check_weight(Check *c, Action a) {
    const char *wrong = run_ops(c, RUN_WGRAD, a, DONE_WGRAD);
    if (wrong) return wrong;
    bool early = state(c, a)->ops[RUN_WGRAD] & ~state(c, a)->ops[RUN_DGRAD];
    if (early) return "comes before its dgrad";
    return program_reads_adapters(c->p, a) ? check_gathered(c, a.unit) : NULL;
}

/* The order of additions to weight gradients determines the bits: the first microbatch sets, later ones add
 * (invariant 3). */
static const char *check_order(Check *c, Action a) {
    if (!program_begins_unit(c->p, a)) return NULL;
    if (c->p->ordered && a.microbatch != c->last_weight[a.unit] + 1)
        return "adds to weight gradients out of order";
    c->last_weight[a.unit] = a.microbatch;
    return NULL;
}

/* Dgrad and wgrad, or one of them. The wgrad of an op may be delayed, but everything must be done after the
 * last action of the unit. */
static const char *check_backward(Check *c, Action a) {
    Grads grads = action_grads(a);
    const char *wrong = check_order(c, a);
    if (!wrong && grads & DGRAD) wrong = check_input(c, a);
    if (!wrong && grads & WGRAD) wrong = check_weight(c, a);
    if (wrong) return wrong;
    if (grads == DGRAD) state(c, a)->ops[RUN_WGRAD] |= weightless(c, a);
    bool ends = grads & DGRAD && program_ends_unit(c->p, a);
    return ends && !(*mark(c, a.unit, a.microbatch) & DONE_WGRAD) ? "comes before a delayed wgrad" : NULL;
}

/* Its ops are checked like those of the pass to which they belong. */
static const char *check_dispatch(Check *c, Action a) {
    a.kind = a.pass;
    if (a.pass == ACT_FWD) return check_forward(c, a);
    if (a.pass == ACT_RECOMPUTE) return check_recompute(c, a);
    if (a.pass == ACT_DGRAD) return check_input(c, a);
    if (a.pass != ACT_BWD) return "belongs to no pass";
    return check_backward(c, a);
}

/* A transfer happens once, between two ranks, after its data is made. */
static const char *check_transfer(Check *c, Action a) {
    bool forward_side = a.kind == ACT_SEND_F || a.kind == ACT_RECV_B;
    int other = forward_side ? a.unit + 1 : a.unit - 1;
    if (other < 0 || other >= c->p->units || runs(c, other)) return "has no other rank to talk to";
    unsigned char flag = a.kind == ACT_SEND_F   ? SENT_OUTPUT
                         : a.kind == ACT_SEND_B ? SENT_GRADIENT
                         : a.kind == ACT_RECV_F ? GOT_INPUT
                                                : GOT_GRADIENT;
    unsigned char *m = mark(c, a.unit, a.microbatch);
    if (*m & flag) return "happens twice";
    if (a.kind == ACT_SEND_F && !(*m & DONE_FORWARD)) return "comes before what it sends";
    if (a.kind == ACT_SEND_B && !(*m & DONE_DGRAD)) return "comes before what it sends";
    *m |= flag;
    return NULL;
}

/* Parameters are gathered, used and released in turn; with one shard there is nothing to gather. */
static const char *check_gather(Check *c, Action a) {
    if (c->p->partition->shards == 1) return "gathers what is whole";
    if (c->gathered[a.unit] == (a.kind == ACT_GATHER))
        return a.kind == ACT_GATHER ? "is gathered already" : "is not gathered";
    c->gathered[a.unit] = a.kind == ACT_GATHER;
    return NULL;
}

static unsigned char *reduction(Check *c, int u, int m) {
    return &c->reduced[u * (c->p->microbatches + 1) + (m < 0 ? c->p->microbatches : m)];
}

static bool weights_done(Check *c, int u, int m) {
    int first = m < 0 ? 0 : m, last = m < 0 ? c->p->microbatches - 1 : m;
    for (int i = first; i <= last; i++)
        if (!(*mark(c, u, i) & DONE_WGRAD)) return false;
    return true;
}

/* Partial sums are added up after the pass that makes them, before anything else happens to the gradient. */
static const char *check_partials(Check *c, Action a) {
    int first = a.microbatch < 0 ? 0 : a.microbatch,
        last = a.microbatch < 0 ? c->p->microbatches - 1 : a.microbatch;
    if (!program_sums_partials(c->p, a.unit)) return "adds partial sums where there are none";
    for (int m = first; m <= last; m++)
        if (!(*mark(c, a.unit, m) & DONE_DGRAD)) return "comes before the gradient is complete";
    unsigned char *m = reduction(c, a.unit, a.microbatch);
    if (*m) return "happens twice, or too late";
    *m |= LEFT;
    return NULL;
}

/* A gradient of a step counts as microbatch -1: reductions name each microbatch, or none. */
static const char *check_reduction(Check *c, Action a) {
    int u = a.unit < c->p->units ? a.unit : c->p->units - 1;
    if (!weights_done(c, u, a.microbatch)) return "comes before the gradient is complete";
    unsigned char *m = reduction(c, a.unit, a.microbatch);
    bool splits =
        program_sums_partials(c->p, a.unit) && (a.microbatch >= 0) != program_sums_partials_once(c->p);
    if (splits && !(*m & LEFT)) return "comes before its partial sums are added up";
    unsigned char flag = a.kind == ACT_REDUCE_SCATTER ? SCATTERED
                         : a.kind == ACT_ALL_REDUCE   ? SUMMED
                                                      : REDUCED;
    if (*m & flag) return "happens twice";
    if (*m & REDUCED) return "comes after the sums were used";
    *m |= flag;
    return NULL;
}

/* Every gradient of this rank was reduced on each axis exactly once a step, or a microbatch, as the sync
 * requires. A second reduction would double a gradient; no loss shows that, and AdamW would hide it. */
static bool reductions_complete(Check *c) {
    const Partition *p = c->p->partition;
    for (int u = 0; u <= c->p->units; u++) {
        if (!partition_makes_gradient(p, u)) continue;
        int scattered = 0, summed = 0, left = 0, m = c->p->microbatches;
        for (int i = 0; i <= m; i++) {
            left += (*reduction(c, u, i < m ? i : -1) & LEFT) ? 1 : 0;
            scattered += (*reduction(c, u, i < m ? i : -1) & SCATTERED) ? 1 : 0;
            summed += (*reduction(c, u, i < m ? i : -1) & SUMMED) ? 1 : 0;
        }
        int per_step = c->p->sync == SYNC_STEP ? 1 : m;
        if (left != (program_sums_partials(c->p, u) ? (program_sums_partials_once(c->p) ? 1 : m) : 0))
            return false;
        if (scattered != (p->shards > 1 ? per_step : 0)) return false;
        if (summed != (p->replicas > 1 ? (c->p->sync == SYNC_MICROBATCH ? m : 1) : 0)) return false;
    }
    return true;
}

/* Whether gradients of some kind of parameter are a sum over an axis for which no action here makes the sum:
 * a bug that no loss shows. Over pp TIE makes it, over tp SUM_PARTIALS. */
static bool sums_are_left(const Partition *p) {
    AxisSet left = 0;
    for (int kind = 0; kind < KINDS; kind++) left |= axes_any((ParamKind)kind, DOES_SUM);
    return mesh_size(&p->mesh, left & ~(AxisSet)(MESH_SHARDS | MESH_REPLICAS | MESH_PIPELINE | MESH_TENSOR)) >
           1;
}

/* Every unit that runs here has all its marks for every microbatch, and everything that other ranks wait for
 * was sent. */
static bool passes_complete(Check *c) {
    for (int u = 0; u < c->p->units; u++)
        for (int m = 0; runs(c, u) && m < c->p->microbatches; m++) {
            unsigned char done = *mark(c, u, m);
            if ((done & DONE_ALL) != DONE_ALL) return false;
            if (u > 0 && !runs(c, u - 1) && !(done & SENT_GRADIENT)) return false;
            if (u + 1 < c->p->units && !runs(c, u + 1) && !(done & SENT_OUTPUT)) return false;
        }
    return true;
}

/* The phases are passes, TIE where a tied weight is at either end, NORM, UPDATEs; each begins when the one
 * before is complete. An update before the norm of all gradients could be neither clipped nor undone. */
static const char *check_phase(Check *c, int phase) {
    const char *wrong = c->phase == 0 ? end_pass(c) : NULL;
    if (wrong) return wrong;
    if (c->phase == 0 && !passes_complete(c)) return "comes before all gradients are complete";
    if (c->phase == 0 && !reductions_complete(c)) return "comes before all gradients are reduced";
    if (sums_are_left(c->p->partition)) return "comes though gradients are not summed over all axes";
    const Partition *p = c->p->partition;
    bool tie = p->tied && (runs(c, 0) || runs(c, c->p->units - 1));
    int expected = c->phase == 0 && !tie ? 2 : c->phase + 1;
    if (phase != expected && !(phase == 3 && c->phase == 3)) return "comes out of order";
    c->phase = phase;
    return NULL;
}

/* Every unit that is held is updated once, in ascending order. A tied copy is updated too, with the same
 * result. */
static const char *check_update(Check *c, int u) {
    for (c->updated++; c->updated < u; c->updated++)
        if (partition_holds(c->p->partition, c->updated)) return "comes out of order";
    if (c->updated != u || !partition_holds(c->p->partition, u)) return "updates what is not held";
    if (owners_have(c->p->partition, u) != (c->made == ACT_MATRIX_SCATTER))
        return "comes before its boxes are back";
    c->made = ACT_NORM;
    return check_phase(c, 3);
}

/* The matrices of the next unit to be updated go to their owners and come back. */
static const char *check_matrices(Check *c, Action a) {
    int next = c->updated + 1;
    while (next < c->p->units && !partition_holds(c->p->partition, next)) next++;
    if (a.unit != next || !owners_have(c->p->partition, a.unit)) return "moves boxes that nobody waits for";
    if (c->made != (a.kind == ACT_MATRIX_GATHER ? ACT_NORM : ACT_MATRIX_GATHER)) return "comes out of order";
    c->made = a.kind;
    return check_phase(c, 3);
}

/* Checks the numbers of an action, so that everything after it may index by them. */
static const char *check_names(const Check *c, Action a) {
    bool passes = action_is_pass(a.kind) || action_exchanges(a.kind) || a.kind == ACT_RECOMPUTE;
    bool transfers =
        a.kind == ACT_RECV_F || a.kind == ACT_SEND_F || a.kind == ACT_RECV_B || a.kind == ACT_SEND_B;
    bool reduces = a.kind == ACT_REDUCE_SCATTER || a.kind == ACT_ALL_REDUCE || a.kind == ACT_REDUCED ||
                   a.kind == ACT_SUM_PARTIALS;
    bool none = a.kind == ACT_LOAD || a.kind == ACT_TIE || a.kind == ACT_NORM;
    int limit = c->p->units + (reduces ? 1 : 0);
    if (none ? a.unit >= 0 : a.unit < 0 || a.unit >= limit) return "names no unit";
    if ((passes || transfers) && !runs(c, a.unit)) return "names a unit of another rank";
    if (passes && (a.ops.first < 0 || a.ops.first > a.ops.end || a.ops.end > anatomy(c, a)->all.end))
        return "names no ops of its unit";
    if (action_exchanges(a.kind) && !action_is_pass(a.pass) && a.pass != ACT_RECOMPUTE)
        return "belongs to no pass";
    if (passes || transfers || a.kind == ACT_LOAD) {
        if (a.microbatch < 0 || a.microbatch >= c->p->microbatches) return "names no microbatch";
        if (c->phase > 0) return "comes after the gradients were used";
    }
    return NULL;
}

/* Each kind has its rule. The returned text completes "program action 7 (FWD ...) ...". */
static const char *check_action(Check *c, Action a) {
    const char *wrong = check_names(c, a);
    bool run = action_is_pass(a.kind) || a.kind == ACT_RECOMPUTE || a.kind == ACT_DISPATCH;
    if (!wrong && run) wrong = check_run(c, a);
    if (wrong) return wrong;
    switch (a.kind) {
    case ACT_LOAD: return c->loaded[a.microbatch]++ ? "runs twice" : NULL;
    case ACT_GATHER:
    case ACT_RELEASE: return check_gather(c, a);
    case ACT_FWD: return check_forward(c, a);
    case ACT_BWD: return check_backward(c, a);
    case ACT_DGRAD: return check_input(c, a);
    case ACT_WGRAD: return (wrong = check_weight(c, a)) ? wrong : check_order(c, a);
    case ACT_RECOMPUTE: return check_recompute(c, a);
    case ACT_COLLECTIVE:
    case ACT_WAIT: return check_exchange(c, a);
    case ACT_DISPATCH: return check_dispatch(c, a);
    case ACT_SUM_PARTIALS: return check_partials(c, a);
    case ACT_REDUCE_SCATTER:
    case ACT_ALL_REDUCE:
    case ACT_REDUCED: return check_reduction(c, a);
    case ACT_TIE: return check_phase(c, 1);
    case ACT_NORM: return check_phase(c, 2);
    case ACT_MATRIX_GATHER:
    case ACT_MATRIX_SCATTER: return check_matrices(c, a);
    case ACT_UPDATE: return check_update(c, a.unit);
    case ACT_RECV_F:
    case ACT_SEND_F:
    case ACT_RECV_B:
    case ACT_SEND_B: return check_transfer(c, a);
    case ACT_KINDS: break;
    }
    return "is none";
}

/* A wrong program is a bug in weft, whatever the configuration: ERR_INTERNAL, with the action that shows
 * it. */
static ErrorCode check_all(Check *c, Error *err) {
    const Program *p = c->p;
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        const char *wrong = check_action(c, a);
        if (wrong)
            return error_set(err, ERR_INTERNAL, "program action %d (%s unit %d microbatch %d) %s", i,
                             action_name(a.kind), a.unit, a.microbatch, wrong);
    }
    for (c->updated++; c->updated < p->units; c->updated++)
        if (partition_holds(p->partition, c->updated))
            return error_set(err, ERR_INTERNAL, "program does not update unit %d of %d", c->updated,
                             p->units);
    return OK;
}

ErrorCode program_check(const Program *p, Error *err) {
    Check c = {.p = p, .pass.unit = -1, .updated = -1, .made = ACT_NORM};
    size_t units = (size_t)p->units, microbatches = (size_t)p->microbatches;
    c.anatomy = mem_alloc_array(units, sizeof *c.anatomy);
    c.done = mem_alloc_array(units * microbatches, 1);
    c.state = mem_alloc_array(units * microbatches, sizeof *c.state);
    c.reduced = mem_alloc_array((units + 1) * (microbatches + 1), 1);
    c.loaded = mem_alloc_array(microbatches, 1);
    c.last_weight = mem_alloc_array(units, sizeof *c.last_weight);
    c.gathered = mem_alloc_array(units, sizeof *c.gathered);
    c.cuts = mem_alloc_array(units, sizeof *c.cuts);
    for (int u = 0; u < p->units; u++) c.last_weight[u] = -1;
    for (int u = 0; u < p->units; u++) {
        if (!runs(&c, u)) continue;
        program_anatomy(p, u, &c.anatomy[u]);
        c.cuts[u] = program_cuts(p, u);
    }
    ErrorCode code = check_all(&c, err);
    free(c.anatomy);
    free(c.done);
    free(c.state);
    free(c.reduced);
    free(c.loaded);
    free(c.last_weight);
    free(c.gathered);
    free(c.cuts);
    return code;
}
