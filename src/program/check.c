/* Whether a program keeps its invariants (program/program.h). The check knows nothing of how it was made. It
 * walks the actions once, and looks for two things.
 *
 * Marks of what has been done to each (unit, microbatch):
 *
 *     FWD        needs LOAD, and FWD of the unit below or RECV_F         --> DONE_FORWARD
 *     BWD_IN     needs DONE_FORWARD, and that of the unit above or RECV_B --> DONE_INPUT
 *     BWD_W      needs as many parts of the input half                   --> DONE_WEIGHT
 *     SEND_x     needs what it sends                                     --> SENT_x
 *     reductions need DONE_WEIGHT of all that they sum                   --> SCATTERED, SUMMED, REDUCED
 *
 * and at the norm everything must have all its marks.
 *
 * Hazards inside a pass over a unit, of the tensors that its rows name (model/layers/layer.h: Collective): an
 * op reads `to`, or makes `from`; a collective reads the one and writes the other, from its start to its end.
 * Of each tensor is known what it holds. So it is found
 *
 *     what is read before it is made or has come       the row is not there, its ops have not run
 *     what was written over before it was read         the tensor holds something else
 *     what is touched while it is on its way           a row is under way that names the tensor
 *
 * whatever the row says: nothing here knows a layer, or a kind of collective. A program that would hang, use
 * what is not there, or leave a sum out is thus refused before memory is taken; a schedule that somebody
 * wrote by hand comes through here like any other. */
#include <stdlib.h>
#include <string.h>

#include "program/makers.h"
#include "program/program.h"

/* Marks of what has been done, per (unit, microbatch). */
enum {
    DONE_FORWARD = 1,
    DONE_INPUT = 2,
    DONE_WEIGHT = 4,
    DONE_ALL = 7,
    GOT_INPUT = 8,
    GOT_GRADIENT = 16,
    SENT_OUTPUT = 32,
    SENT_GRADIENT = 64
};

enum { SCATTERED = 1, SUMMED = 2, REDUCED = 4, LEFT = 8 /* its leaves are added up */ };
typedef enum Way { WAY_FORWARD, WAY_INPUT, WAY_WEIGHT, WAY_AGAIN, WAYS } Way; /* in which parts are run */

/* Of a (unit, microbatch). */
typedef struct UnitState {
    uint32_t parts[WAYS];                /* that have run, a bit each */
    uint32_t started[WAYS], there[WAYS]; /* rows; a pass of both halves has those of WAY_INPUT */
    int slice;                           /* of the head: the last that has run */
    bool called_up, records;             /* of the chunk whose logits have been made: started, there */
} UnitState;

/* What a tensor holds: what a row has brought, or what its ops have made. */
enum { HOLDS_NOTHING, HOLDS_BROUGHT = 1, HOLDS_MADE = 1 + UNIT_COLLECTIVES };
/* Tensors of each layer, and those of the unit. */
enum { TENSORS = UNIT_SUBLAYERS * LAYER_TENSORS + UNIT_TENSORS - LAYER_TENSORS };

/* The pass over a unit that is at work: one at a time, for they share memory. */
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
    unsigned char *reduced; /* [units + 1, microbatches + 1] of the microbatches, and of the step */
    int *last_weight;       /* [units] microbatch of the last weight half */
    unsigned char *loaded;  /* [microbatches] */
    bool *gathered;         /* [units] */
    bool *cuts;             /* [units] passes are cut somewhere */
    int phase;              /* 0 microbatches, 1 tied, 2 norm, 3 update */
    int updated;            /* last unit updated */
    ActionKind made;        /* of the one behind it: COLLECT, RETURN; ACT_NORM: neither */
} Check;

static const Anatomy *anatomy(const Check *c, Action a) { return &c->anatomy[a.unit]; }
static bool has(uint32_t parts, int part) { return parts >> part & 1; }

/* Marks are kept for units of other ranks too, and stay empty: indexing is simple, and they are bytes. */
static unsigned char *mark(Check *c, int u, int m) { return &c->done[u * c->p->microbatches + m]; }

static UnitState *state(Check *c, Action a) { return &c->state[a.unit * c->p->microbatches + a.microbatch]; }

/* first <= i < end, a bit each. */
static uint32_t bits(int first, int end) { return (uint32_t)((UINT64_C(1) << end) - (UINT64_C(1) << first)); }
static uint32_t bits_of(Parts parts) { return bits(parts.first, parts.end); }

/* ---- hazards ---- */

static Way way_of(ActionKind pass) {
    return pass == ACT_FWD     ? WAY_FORWARD
           : pass == ACT_AGAIN ? WAY_AGAIN
           : pass == ACT_BWD_W ? WAY_WEIGHT
                               : WAY_INPUT;
}

static const Collective *row_of(const Anatomy *n, int row) { return n->rows[row].row; }

/* A tensor's number among all that a unit's rows name. */
static int tensor_of(const Anatomy *n, int row, int tensor) {
    return tensor >= LAYER_TENSORS ? UNIT_SUBLAYERS * LAYER_TENSORS + tensor - LAYER_TENSORS
                                   : n->rows[row].sublayer * LAYER_TENSORS + tensor;
}
static int from_of(const Anatomy *n, int row) { return tensor_of(n, row, row_of(n, row)->from); }
static int to_of(const Anatomy *n, int row) { return tensor_of(n, row, row_of(n, row)->to); }

/* Rows whose actions this file checks here: what goes along with another has none, what is dispatched is run,
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

/* All that a pass has to bring is there when it is over. */
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

/* Of what is made again, the pass that it is for. */
static const char *enter_pass(Check *c, Action a) {
    ActionKind kind = action_pass(a);
    if (kind == ACT_AGAIN) kind = a.before;
    PassState *s = &c->pass;
    if (s->unit == a.unit && s->microbatch == a.microbatch && s->kind == kind) return NULL;
    const char *wrong = end_pass(c);
    *s = (PassState){.unit = a.unit, .microbatch = a.microbatch, .kind = kind};
    return wrong;
}

/* Whether a row that is under way names the tensor. */
static bool is_busy(const Check *c, const Anatomy *n, int tensor) {
    for (int i = 0; i < n->count; i++)
        if (c->pass.under_way >> i & 1 && (from_of(n, i) == tensor || to_of(n, i) == tensor)) return true;
    return false;
}

/* What is made elsewhere is made again there, but for what comes back of it. */
static uint32_t again_in(const Anatomy *n, uint32_t parts) {
    return n->again & parts & ~(n->dispatched & n->dispatched >> 1);
}

/* All that the policy drops of a unit, and what is exchanged for it. */
static bool is_made_again(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    const UnitState *u = state(c, a);
    if (!c->cuts[a.unit]) return true;
    return !(again_in(n, UINT32_MAX) & ~u->parts[WAY_AGAIN]) &&
           !(exchanged_in(n, ACT_AGAIN) & ~u->there[WAY_AGAIN]);
}

/* The passes of a row that an action runs: of a backward pass one half or both. What is dispatched does both
 * with the input half. */
static int passes_of(Action a) {
    ActionKind pass = action_pass(a);
    if (pass == ACT_FWD) return IN_FORWARD;
    if (pass == ACT_AGAIN) return IN_RECOMPUTE;
    Half half = a.kind == ACT_DISPATCH ? HALF_BOTH : action_half(a);
    return (half & HALF_INPUT ? IN_DGRAD : 0) | (half & HALF_WEIGHT ? IN_WGRAD : 0);
}

/* Whether parts of an action read what a row brings: its ops, or those next to them. */
static bool is_read(const Anatomy *n, ActionKind pass, int row, uint32_t parts) {
    const Collective *c = row_of(n, row);
    int place = collective_place(&n->rows[row]);
    if (!c->behind) return n->uses[pass][row] & parts;
    if (pass == ACT_FWD || pass == ACT_AGAIN) return !c->overlaps && place < n->all.end && parts >> place & 1;
    return place > 0 && parts >> (place - 1) & 1;
}

/* Parts read what has been brought for them, and make what others will send. */
static const char *check_hazards(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    const UnitState *u = state(c, a);
    ActionKind pass = action_pass(a);
    uint32_t parts = bits_of(a.parts);
    for (int i = 0; i < n->count; i++) {
        bool behind = row_of(n, i)->behind;
        if (!is_exchanged(n, pass, i) || !(row_of(n, i)->passes & passes_of(a))) continue;
        if (is_read(n, pass, i, parts)) {
            if (!(u->there[way_of(pass)] >> i & 1)) return "comes before what it reads is there";
            if (!behind && c->pass.holds[to_of(n, i)] != HOLDS_BROUGHT + i)
                return "reads what something else was put in the place of";
        }
        if (!behind || !(n->uses[pass][i] & parts)) continue;
        if (is_busy(c, n, from_of(n, i))) return "makes what is still on its way";
        c->pass.holds[from_of(n, i)] = (uint8_t)(HOLDS_MADE + i);
    }
    return NULL;
}

/* Whether what a row moves has been made when it starts. */
static bool is_made(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    const Collective *row = row_of(n, a.row);
    const UnitState *u = state(c, a);
    uint32_t ops = n->uses[a.pass][a.row], needed;
    int lowest = __builtin_ctz(ops), above = 32 - __builtin_clz(ops);
    if (a.pass == ACT_FWD || a.pass == ACT_AGAIN) {
        needed = bits(n->all.first, row->behind ? above : lowest);
        if (a.pass == ACT_AGAIN) needed = again_in(n, needed);
        return !(needed & ~u->parts[way_of(a.pass)]);
    }
    if (row->passes & IN_FORWARD || a.pass == ACT_BWD_W)
        return is_made_again(c, a) && (a.pass != ACT_BWD_W || u->parts[WAY_INPUT] == bits_of(n->all));
    needed = bits(row->behind ? lowest : above, n->all.end);
    return !(needed & ~u->parts[WAY_INPUT]);
}

/* What the ops have made is there still, or what a row before it has left there. */
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

/* Records of a chunk, between its logits and its loss. */
static const char *check_chunk(Check *c, Action a) {
    UnitState *u = state(c, a);
    bool ends = a.kind == ACT_WAIT;
    if (u->slice % 2 != 1 || a.slice != u->slice || u->records || u->called_up != ends)
        return "comes where no records are";
    *(ends ? &u->records : &u->called_up) = true;
    return NULL;
}

/* A row is exchanged once, where it says: started, and then waited for. */
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

/* Parts are run where their experts are, and no others; weight halves alone have nothing to do there. */
static bool is_in_place(const Check *c, Action a) {
    uint32_t own = bits_of(a.parts), away = anatomy(c, a)->dispatched & own;
    return action_exchanges(a.kind) ? away == own : !away || a.kind == ACT_BWD_W;
}

/* ---- passes ---- */

/* The head by chunks: logits, records, loss; then the next chunk. */
static const char *run_slice(Check *c, Action a) {
    UnitState *u = state(c, a);
    bool sliced = action_pass(a) == ACT_FWD && has(anatomy(c, a)->sliced, a.parts.first);
    if (sliced != (a.slice > 0)) return sliced ? "takes all chunks at once" : "has chunks where none are";
    if (!sliced) return NULL;
    if (a.slice != u->slice + 1 || (a.slice % 2 == 0 && !u->records)) return "takes chunks out of order";
    u->slice = a.slice < 2 * c->p->chunks ? a.slice : 0, u->records = u->called_up = false;
    return NULL;
}

/* Parts without a weight half have none that could come late. */
static uint32_t weightless(const Check *c, Action a) {
    return a.unit > 0 ? bits_of(a.parts) & ~anatomy(c, a)->products : 0;
}

/* The parts of an action follow those that ran before it, in the order of its way; weight halves of a pass
 * that has both may come late. The last of them completes the unit. */
static const char *run_parts(Check *c, Way way, Action a, unsigned flag) {
    Parts all = anatomy(c, a)->all;
    uint32_t *done = &state(c, a)->parts[way], own, before;
    if (a.parts.first == a.parts.end) return "names no parts of its unit";
    own = bits_of(a.parts);
    before = way == WAY_FORWARD ? bits(all.first, a.parts.first) : bits(a.parts.end, all.end);
    if (way == WAY_WEIGHT && action_pass(a) == ACT_BWD) before = *done & ~own;
    if (*done != before) return "runs twice, or skips parts";
    const char *wrong = run_slice(c, a);
    if (wrong || (a.slice > 0 && a.slice < 2 * c->p->chunks)) return wrong;
    *done |= own;
    if (*done == bits_of(all)) *mark(c, a.unit, a.microbatch) |= (unsigned char)flag;
    return NULL;
}

/* What a run of parts reads and makes. */
static const char *check_run(Check *c, Action a) {
    const char *wrong = enter_pass(c, a);
    if (wrong) return wrong;
    if (!is_in_place(c, a)) return "runs experts that are elsewhere, or dispatches what is here";
    return check_hazards(c, a);
}

static bool runs(const Check *c, int u) {
    return u >= 0 && u < c->p->units && partition_runs(c->p->partition, u);
}

/* With one shard everything is whole from the start. A tied head reads two units. */
static const char *check_gathered(const Check *c, int u) {
    if (c->p->partition->shards == 1) return NULL;
    if (!c->gathered[u]) return "comes before its parameters are gathered";
    if (u == c->p->units - 1 && c->p->partition->tied && !c->gathered[0])
        return "comes before the embedding is gathered";
    return NULL;
}

/* The microbatch must be loaded on every rank, not only where the embedding is: positions and targets are
 * read by all. */
static const char *check_forward(Check *c, Action a) {
    int u = a.unit, m = a.microbatch;
    bool ready = u == 0           ? c->loaded[m]
                 : runs(c, u - 1) ? *mark(c, u - 1, m) & DONE_FORWARD
                                  : *mark(c, u, m) & GOT_INPUT;
    if (!ready || !c->loaded[m]) return "comes before its input";
    const char *wrong = run_parts(c, WAY_FORWARD, a, DONE_FORWARD);
    return wrong ? wrong : check_gathered(c, u);
}

/* The sum at a block's end, which needs nothing. */
static bool hands_on(const Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    int last = n->all.end - 1;
    return a.parts.first == last && !has(n->ops | n->products, last);
}

/* The head has no unit above, and the embedding and it have nothing that must be gathered again for this
 * half. */
static const char *check_input(Check *c, Action a) {
    int u = a.unit, m = a.microbatch;
    bool ready = *mark(c, u, m) & DONE_FORWARD;
    if (ready && u < c->p->units - 1)
        ready = runs(c, u + 1) ? *mark(c, u + 1, m) & DONE_INPUT : *mark(c, u, m) & GOT_GRADIENT;
    if (!ready) return "comes before the gradient of its output";
    if (!hands_on(c, a) && !is_made_again(c, a)) return "comes before what it reads is made again";
    const char *wrong = run_parts(c, WAY_INPUT, a, DONE_INPUT);
    if (wrong) return wrong;
    return u > 0 && u < c->p->units - 1 ? check_gathered(c, u) : NULL;
}

/* Parts are made again when the forward pass is done; they read what is there, or was made again below. */
static const char *check_again(Check *c, Action a) {
    UnitState *u = state(c, a);
    const Anatomy *n = anatomy(c, a);
    if (!(*mark(c, a.unit, a.microbatch) & DONE_FORWARD)) return "comes before its forward pass";
    if (again_in(n, bits(n->all.first, a.parts.first)) & ~u->parts[WAY_AGAIN])
        return "comes before what it reads is made again";
    u->parts[WAY_AGAIN] |= bits_of(a.parts);
    return check_gathered(c, a.unit);
}

/* Part by part it may not overtake the input half, whose operands it reads. */
static const char *check_weight(Check *c, Action a) {
    const char *wrong = run_parts(c, WAY_WEIGHT, a, DONE_WEIGHT);
    if (wrong) return wrong;
    bool early = state(c, a)->parts[WAY_WEIGHT] & ~state(c, a)->parts[WAY_INPUT];
    if (early) return "comes before its input half";
    return program_reads_adapters(c->p, a) ? check_gathered(c, a.unit) : NULL;
}

/* A pass that adds to gradients of weights: its order is what makes the bits, the first microbatch sets,
 * later ones add (invariant 3). */
static const char *check_order(Check *c, Action a) {
    if (!program_begins_unit(c->p, a)) return NULL;
    if (c->p->ordered && a.microbatch != c->last_weight[a.unit] + 1)
        return "adds to weight gradients out of order";
    c->last_weight[a.unit] = a.microbatch;
    return NULL;
}

/* Both halves, or one of them: the weight half of a part that has one may come late, but when the last action
 * of the unit is done everything is. */
static const char *check_backward(Check *c, Action a) {
    Half half = action_half(a);
    const char *wrong = check_order(c, a);
    if (!wrong && half & HALF_INPUT) wrong = check_input(c, a);
    if (!wrong && half & HALF_WEIGHT) wrong = check_weight(c, a);
    if (wrong) return wrong;
    if (half == HALF_INPUT) state(c, a)->parts[WAY_WEIGHT] |= weightless(c, a);
    bool ends = half & HALF_INPUT && program_ends_unit(c->p, a);
    return ends && !(*mark(c, a.unit, a.microbatch) & DONE_WEIGHT) ? "comes before what is late" : NULL;
}

/* Runs its parts as the pass would that it belongs to. */
static const char *check_dispatch(Check *c, Action a) {
    a.kind = a.pass;
    if (a.pass == ACT_FWD) return check_forward(c, a);
    if (a.pass == ACT_AGAIN) return check_again(c, a);
    if (a.pass == ACT_BWD_IN) return check_input(c, a);
    if (a.pass != ACT_BWD) return "belongs to no pass";
    return check_backward(c, a);
}

/* A transfer happens once, between two ranks, and what is sent is there. */
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
    if (a.kind == ACT_SEND_B && !(*m & DONE_INPUT)) return "comes before what it sends";
    *m |= flag;
    return NULL;
}

/* Parameters are gathered, used and dropped, in turn; with one shard there is nothing to gather. */
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
        if (!(*mark(c, u, i) & DONE_WEIGHT)) return false;
    return true;
}

/* Before anything else is done to the gradient, when the pass is done that makes it. */
static const char *check_leaves(Check *c, Action a) {
    int first = a.microbatch < 0 ? 0 : a.microbatch,
        last = a.microbatch < 0 ? c->p->microbatches - 1 : a.microbatch;
    if (!program_adds_leaves(c->p, a.unit)) return "adds leaves where there are none";
    for (int m = first; m <= last; m++)
        if (!(*mark(c, a.unit, m) & DONE_INPUT)) return "comes before the gradient is complete";
    unsigned char *m = reduction(c, a.unit, a.microbatch);
    if (*m) return "happens twice, or too late";
    *m |= LEFT;
    return NULL;
}

/* A gradient of a step counts as microbatch -1: reductions either name each microbatch, or none. */
static const char *check_reduction(Check *c, Action a) {
    int u = a.unit < c->p->units ? a.unit : c->p->units - 1;
    if (!weights_done(c, u, a.microbatch)) return "comes before the gradient is complete";
    unsigned char *m = reduction(c, a.unit, a.microbatch);
    bool leaves = program_adds_leaves(c->p, a.unit) && (a.microbatch >= 0) != program_adds_leaves_once(c->p);
    if (leaves && !(*m & LEFT)) return "comes before its leaves are added up";
    unsigned char flag = a.kind == ACT_REDUCE_SCATTER ? SCATTERED
                         : a.kind == ACT_ALL_REDUCE   ? SUMMED
                                                      : REDUCED;
    if (*m & flag) return "happens twice";
    if (*m & REDUCED) return "comes after the sums were used";
    *m |= flag;
    return NULL;
}

/* Every gradient that this rank makes has crossed each axis once: a step or a microbatch, as the sync says,
 * no more and no less. Twice would double a gradient, which no loss shows; AdamW would hide even that. */
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
        if (left != (program_adds_leaves(c->p, u) ? (program_adds_leaves_once(c->p) ? 1 : m) : 0))
            return false;
        if (scattered != (p->shards > 1 ? per_step : 0)) return false;
        if (summed != (p->replicas > 1 ? (c->p->sync == SYNC_MICROBATCH ? m : 1) : 0)) return false;
    }
    return true;
}

/* An axis over which gradients of some kind of parameter are a sum, and no kind of action here makes it: the
 * bug that shows in no loss. Over pp, TIE sums; over tp, LEAVES. */
static bool sums_are_left(const Partition *p) {
    AxisSet left = 0;
    for (int kind = 0; kind < KINDS; kind++) left |= axes_any((ParamKind)kind, DOES_SUM);
    return mesh_size(&p->mesh, left & ~(AxisSet)(MESH_SHARDS | MESH_REPLICAS | MESH_PIPELINE | MESH_TENSOR)) >
           1;
}

/* Every unit that runs here, with every microbatch, has all its marks, and what others wait for has been
 * sent. */
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

/* Passes, then TIE where there is a tied weight at either end, then NORM, then UPDATEs: each phase begins
 * when the one before is complete. An update before the norm of all could not be clipped, nor taken back. */
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

/* Every unit that is held, in ascending order, each once: a tied copy too, which makes the same update. */
static const char *check_update(Check *c, int u) {
    for (c->updated++; c->updated < u; c->updated++)
        if (partition_holds(c->p->partition, c->updated)) return "comes out of order";
    if (c->updated != u || !partition_holds(c->p->partition, u)) return "updates what is not held";
    if (makers_have(c->p->partition, u) != (c->made == ACT_RETURN)) return "comes before its boxes are back";
    c->made = ACT_NORM;
    return check_phase(c, 3);
}

/* Boxes of the unit that is updated next go to their makers, and come back. */
static const char *check_boxes(Check *c, Action a) {
    int next = c->updated + 1;
    while (next < c->p->units && !partition_holds(c->p->partition, next)) next++;
    if (a.unit != next || !makers_have(c->p->partition, a.unit)) return "moves boxes that nobody waits for";
    if (c->made != (a.kind == ACT_COLLECT ? ACT_NORM : ACT_COLLECT)) return "comes out of order";
    c->made = a.kind;
    return check_phase(c, 3);
}

/* Whatever is wrong with the numbers of an action is found here, so that what follows may index by them. */
static const char *check_names(const Check *c, Action a) {
    bool passes = action_is_pass(a.kind) || action_exchanges(a.kind) || a.kind == ACT_AGAIN;
    bool transfers =
        a.kind == ACT_RECV_F || a.kind == ACT_SEND_F || a.kind == ACT_RECV_B || a.kind == ACT_SEND_B;
    bool reduces = a.kind == ACT_REDUCE_SCATTER || a.kind == ACT_ALL_REDUCE || a.kind == ACT_REDUCED ||
                   a.kind == ACT_LEAVES;
    bool none = a.kind == ACT_LOAD || a.kind == ACT_TIE || a.kind == ACT_NORM;
    int limit = c->p->units + (reduces ? 1 : 0);
    if (none ? a.unit >= 0 : a.unit < 0 || a.unit >= limit) return "names no unit";
    if ((passes || transfers) && !runs(c, a.unit)) return "names a unit of another rank";
    if (passes && (a.parts.first < 0 || a.parts.first > a.parts.end || a.parts.end > anatomy(c, a)->all.end))
        return "names no parts of its unit";
    if (action_exchanges(a.kind) && !action_is_pass(a.pass) && a.pass != ACT_AGAIN)
        return "belongs to no pass";
    if (passes || transfers || a.kind == ACT_LOAD) {
        if (a.microbatch < 0 || a.microbatch >= c->p->microbatches) return "names no microbatch";
        if (c->phase > 0) return "comes after the gradients were used";
    }
    return NULL;
}

/* Each kind has its rule; what it says completes the sentence "program action 7 (FWD ...) ...". */
static const char *check_action(Check *c, Action a) {
    const char *wrong = check_names(c, a);
    bool run = action_is_pass(a.kind) || a.kind == ACT_AGAIN || a.kind == ACT_DISPATCH;
    if (!wrong && run) wrong = check_run(c, a);
    if (wrong) return wrong;
    switch (a.kind) {
    case ACT_LOAD: return c->loaded[a.microbatch]++ ? "runs twice" : NULL;
    case ACT_GATHER:
    case ACT_RELEASE: return check_gather(c, a);
    case ACT_FWD: return check_forward(c, a);
    case ACT_BWD: return check_backward(c, a);
    case ACT_BWD_IN: return check_input(c, a);
    case ACT_BWD_W: return (wrong = check_weight(c, a)) ? wrong : check_order(c, a);
    case ACT_AGAIN: return check_again(c, a);
    case ACT_COLLECTIVE:
    case ACT_WAIT: return check_exchange(c, a);
    case ACT_DISPATCH: return check_dispatch(c, a);
    case ACT_LEAVES: return check_leaves(c, a);
    case ACT_REDUCE_SCATTER:
    case ACT_ALL_REDUCE:
    case ACT_REDUCED: return check_reduction(c, a);
    case ACT_TIE: return check_phase(c, 1);
    case ACT_NORM: return check_phase(c, 2);
    case ACT_COLLECT:
    case ACT_RETURN: return check_boxes(c, a);
    case ACT_UPDATE: return check_update(c, a.unit);
    case ACT_RECV_F:
    case ACT_SEND_F:
    case ACT_RECV_B:
    case ACT_SEND_B: return check_transfer(c, a);
    case ACT_KINDS: break;
    }
    return "is none";
}

/* A wrong program is a bug of this program, whatever the configuration: ERR_INTERNAL, with the action that
 * shows it. */
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
