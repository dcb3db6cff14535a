/* Lowering: from who holds what, and a pipeline schedule, to the program of one rank.
 *
 *     order of cells         first pass                        second pass
 *     F s m         -->  LOAD m, FWD u m ...               -->  GATHER u+1, FWD u m, RELEASE u ...
 *     B s m         -->  BWD u m, REDUCE_SCATTER u ...     -->  the same for backward passes
 *     SEND, RECV    -->  SEND_F, RECV_F, SEND_B, RECV_B         as they are
 *     the end       -->  REDUCED, TIE, NORM, UPDATE u ...       as they are
 *
 * The first writes down passes over units, transfers and reductions in the order of the schedule; the second
 * puts GATHER and RELEASE around the uses of sharded parameters, one unit ahead of use. They are apart
 * because what is used next is known only when everything is written down.
 *
 * Some things are put elsewhere than where they are thought of first, so that what is slow has time: gathers
 * are started one unit early, the second half of a reduction is written behind the start of the next one,
 * what must be complete for the norm is waited for at the end, and in backward passes that are cut wgrads of
 * products run while ranks exchange something. Nothing else of the order is this file's: it is the
 * schedule's.
 *
 * Elsewhere called: FSDP prefetch (prefetch_gathers), delayed wgrad (run_delayed), zero bubble (DGRAD,
 * WGRAD). */
#include <stdlib.h>

#include "program/owners.h"
#include "program/program.h"

static void append(Program *p, Action a) {
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->actions = mem_grow(p->actions, (size_t)p->capacity * sizeof *p->actions);
    }
    p->actions[p->count++] = a;
}

/* All but passes. */
static void emit(Program *p, ActionKind kind, int unit, int microbatch) {
    append(p, (Action){.kind = kind, .unit = unit, .microbatch = microbatch});
}

/* ---- passes and what ranks exchange in them ---- */

static void append_exchange(Program *p, ActionKind kind, const Anatomy *n, int row, Action pass) {
    const UnitCollective *c = &n->rows[row];
    int place = collective_place(c);
    append(p, (Action){.kind = kind,
                       .unit = pass.unit,
                       .microbatch = pass.microbatch,
                       .ops = {place, place},
                       .slice = pass.slice,
                       .pass = pass.kind,
                       .before = pass.before,
                       .row = row,
                       .how = c->row->kind,
                       .over = c->row->over});
}

/* Whether a pass has an action of its own for a row: what goes along with another has none, chunks have
 * theirs between slices, and what is dispatched is run. */
static bool is_exchanged(const Anatomy *n, ActionKind pass, int row) {
    const Collective *c = n->rows[row].row;
    return n->uses[pass][row] && !c->along && !c->chunked && c->kind != COLL_DISPATCH;
}

/* The head's logits chunk by chunk, records of each between the two halves of it. */
static void emit_slices(Program *p, const Anatomy *n, Action a) {
    int row = 0;
    while (!n->rows[row].row->chunked || !(n->uses[a.kind][row] >> a.ops.first & 1)) row++;
    for (int chunk = 0; chunk < p->chunks; chunk++) {
        a.slice = 2 * chunk + 1;
        append(p, a);
        append_exchange(p, ACT_COLLECTIVE, n, row, a);
        append_exchange(p, ACT_WAIT, n, row, a);
        a.slice++;
        append(p, a);
    }
}

/* The first place from `op` on where passes over the unit are cut, or its end. */
static int next_cut(const Program *p, int unit, int op, int end) {
    while (op < end && !p->has_collective(p->partition, unit, op)) op++;
    return op;
}

static uint32_t bits(OpRange range) {
    return (uint32_t)((UINT64_C(1) << range.end) - (UINT64_C(1) << range.first));
}

static int highest(uint32_t ops) { return 31 - __builtin_clz(ops); }

/* Ops that run where their experts are. They make again what they need there by themselves: only what they
 * bring back may have to be recomputed. */
static bool emit_dispatch(Program *p, const Anatomy *n, Action a) {
    int row = anatomy_dispatch(n, a.ops.first);
    if (row < 0) return false;
    if (a.kind == ACT_RECOMPUTE && !(n->recomputed >> (a.ops.end - 1) & 1)) return true;
    append_exchange(p, ACT_DISPATCH, n, row, a);
    p->actions[p->count - 1].ops = a.ops;
    return true;
}

/* What stands at a place of a forward pass. Returns the row that may overlap what follows; -1: none. */
static int exchange_at(Program *p, const Anatomy *n, Action a, int place) {
    int overlaps = -1;
    for (int i = 0; i < n->count; i++) {
        if (!is_exchanged(n, a.kind, i) || collective_place(&n->rows[i]) != place) continue;
        append_exchange(p, ACT_COLLECTIVE, n, i, a);
        if (n->rows[i].row->overlaps)
            overlaps = i;
        else
            append_exchange(p, ACT_WAIT, n, i, a);
    }
    return overlaps;
}

/* An action for each run of ops between two places where ranks exchange something: ascending in a forward
 * pass, and in what is recomputed. Where nothing of a run is recomputed it is left out. */
static void emit_ascending(Program *p, const Anatomy *n, Action a) {
    for (int first = n->all.first, end; first < n->all.end; first = end) {
        bool slices = a.kind == ACT_FWD && n->sliced >> first & 1;
        end = slices ? first + 1 : next_cut(p, a.unit, first + 1, n->all.end);
        a.ops = (OpRange){first, end};
        int overlapped = exchange_at(p, n, a, first);
        if (slices)
            emit_slices(p, n, a);
        else if (!emit_dispatch(p, n, a) && (a.kind == ACT_FWD || n->recomputed & bits(a.ops)))
            append(p, a);
        if (overlapped >= 0) append_exchange(p, ACT_WAIT, n, overlapped, a);
    }
    exchange_at(p, n, a, n->all.end);
}

/* ---- backward passes ---- */

/* A backward pass on its way down, and what it has put off: wgrad of a product is what nobody waits
 * for, so it runs while something is on its way.
 *
 *     gradient of the result ==gather==> down, gate and up: dgrad ==sum==> norm ==gather==> output, ...
 *              what is recomputed               wgrad of down   ^   wgrad of gate and up
 *
 * Products in pairs make that fit: a row-parallel one reads the gradient of the layer's result, which stays
 * what it is until the norm before the layer adds to it; a column-parallel one reads the layer's input,
 * gathered again behind dgrads of both. So no tensor has to wait for what it holds, and what is on
 * its way has the memory that it had before. */
typedef struct BackwardEmitter {
    Program *p;
    const Anatomy *n;
    Action pass;
    bool recompute;   /* what is recomputed for it has still to be */
    uint32_t delayed; /* ops whose wgrads have still to run */
    int gathered;     /* the row that was gathered last for wgrads; -1 */
    bool pending;     /* it has been started, and not been waited for */
} BackwardEmitter;

static void wait_for(BackwardEmitter *d, int row) { append_exchange(d->p, ACT_WAIT, d->n, row, d->pass); }

static void wait_gathered(BackwardEmitter *d) {
    if (d->pending) wait_for(d, d->gathered);
    d->pending = false;
}

/* The uppermost of those that are late, or all of them; `rows`: that read a result's gradient. */
static void run_delayed(BackwardEmitter *d, bool rows, bool all) {
    uint32_t delayed = rows ? d->delayed & ~d->n->reads_x : d->delayed;
    for (; delayed; delayed &= ~(1u << highest(delayed))) {
        int op = highest(delayed);
        if (d->n->reads_x >> op & 1) wait_gathered(d);
        Action a = d->pass;
        a.ops = (OpRange){op, op + 1}, a.grads = WGRAD;
        append(d->p, a);
        d->delayed &= ~(1u << op);
        if (!all) return;
    }
}

static void emit_recompute(BackwardEmitter *d) {
    Action a = {.kind = ACT_RECOMPUTE,
                .unit = d->pass.unit,
                .microbatch = d->pass.microbatch,
                .before = d->pass.kind};
    if (d->recompute) emit_ascending(d->p, d->n, a);
    d->recompute = false;
}

/* With something to do meanwhile. */
static void exchange(BackwardEmitter *d, int row) {
    append_exchange(d->p, ACT_COLLECTIVE, d->n, row, d->pass);
    if (d->recompute)
        emit_recompute(d);
    else if (!d->n->rows[row].row->brief)
        run_delayed(d, false, false);
    wait_for(d, row);
}

/* Behind dgrad of a layer's first op, the gradient of its input is summed. What the layer has left
 * of wgrads runs meanwhile; those that read its input wait for the gather of the layer below, if the
 * unit has one. */
static void end_layer(BackwardEmitter *d, int row, int place) {
    bool below = d->n->begins & bits((OpRange){0, place});
    if (row >= 0) append_exchange(d->p, ACT_COLLECTIVE, d->n, row, d->pass);
    run_delayed(d, below, true);
    if (row >= 0) wait_for(d, row);
}

/* The sum at a block's end hands its gradient on, and needs nothing. */
static bool hands_on(const BackwardEmitter *d, OpRange range) {
    int last = d->n->all.end - 1;
    return range.first == last && !((d->n->ops | d->n->products) >> last & 1);
}

/* Of a run of ops those whose wgrads come late: all that have one, or none. In the last unit some
 * have one without a product; where experts are dispatched nothing is exchanged that one could run beside. */
static uint32_t delayed_of(const BackwardEmitter *d, OpRange range) {
    uint32_t products = d->n->products & bits(range);
    if (d->pass.kind != ACT_BWD || d->pass.unit == d->p->units - 1) return 0;
    return d->p->partition->experts == 1 && !(products & ~d->n->parallel) ? products : 0;
}

/* Rows of the pass that ops of a run read (`behind`: make), by what they move: gradients, what the forward
 * pass has made, or that for wgrads alone. */
typedef enum Moves { MOVES_GRADIENT, MOVES_FORWARD, MOVES_OPERAND } Moves;

static Moves moves(const Collective *row) {
    if (!(row->passes & IN_DGRAD)) return MOVES_OPERAND;
    return row->passes & IN_FORWARD ? MOVES_FORWARD : MOVES_GRADIENT;
}

static void exchange_all(BackwardEmitter *d, OpRange range, bool behind, Moves what) {
    for (int i = 0; i < d->n->count; i++) {
        const Collective *row = d->n->rows[i].row;
        uint32_t ops = d->n->uses[d->pass.kind][i];
        if (!is_exchanged(d->n, d->pass.kind, i) || row->behind != behind || moves(row) != what) continue;
        int at = behind ? __builtin_ctz(ops) : highest(ops);
        if (row->to != UNIT_DX && range.first <= at && at < range.end) exchange(d, i);
    }
}

/* What wgrads of a run read that is gathered for them: once for all that read it. */
static void gather_operand(BackwardEmitter *d, OpRange range) {
    for (int i = 0; i < d->n->count; i++) {
        if (!is_exchanged(d->n, d->pass.kind, i) || moves(d->n->rows[i].row) != MOVES_OPERAND) continue;
        if (!(d->n->uses[d->pass.kind][i] & bits(range)) || i == d->gathered) continue;
        run_delayed(d, false, true);
        append_exchange(d->p, ACT_COLLECTIVE, d->n, i, d->pass);
        d->gathered = i, d->pending = true;
    }
}

/* That of the input's gradient which the run has ended with; -1: none. */
static int summed_by(const BackwardEmitter *d, OpRange range) {
    for (int i = 0; i < d->n->count; i++) {
        uint32_t ops = d->n->uses[d->pass.kind][i];
        if (ops && d->n->rows[i].row->to == UNIT_DX && __builtin_ctz(ops) == range.first) return i;
    }
    return -1;
}

static void run_down(BackwardEmitter *d, OpRange range) {
    Action a = d->pass;
    uint32_t delayed = delayed_of(d, range);
    exchange_all(d, range, false, MOVES_GRADIENT);
    if (!hands_on(d, range)) emit_recompute(d);
    gather_operand(d, range);
    if (!delayed) wait_gathered(d);
    exchange_all(d, range, false, MOVES_FORWARD);
    a.ops = range;
    if (delayed) a.grads = DGRAD;
    if (!emit_dispatch(d->p, d->n, a)) append(d->p, a);
    d->delayed |= delayed;
    exchange_all(d, range, true, MOVES_GRADIENT);
    if (d->n->begins >> range.first & 1) end_layer(d, summed_by(d, range), range.first);
}

/* Where the gradient comes from another rank, what is recomputed has been by the time it is there. */
static void emit_descending(Program *p, const Anatomy *n, Action pass) {
    BackwardEmitter d = {.p = p, .n = n, .pass = pass, .recompute = true, .gathered = -1};
    if (!partition_runs(p->partition, pass.unit + 1)) emit_recompute(&d);
    for (int end = n->all.end, first; end > n->all.first; end = first) {
        first = end - 1;
        while (first > n->all.first && !(n->begins >> first & 1) &&
               !p->has_collective(p->partition, pass.unit, first))
            first--;
        run_down(&d, (OpRange){first, end});
    }
}

/* ---- wgrads alone ---- */

typedef struct WgradEmitter {
    Program *p;
    const Anatomy *n;
    Action pass;
    uint32_t started, there; /* rows */
} WgradEmitter;

/* The row that is gathered for an op's wgrad; -1: none. */
static int gathered_for(const WgradEmitter *w, int op) {
    for (int i = 0; i < w->n->count; i++)
        if (is_exchanged(w->n, ACT_WGRAD, i) && w->n->uses[ACT_WGRAD][i] >> op & 1) return i;
    return -1;
}

static bool is_ready(const WgradEmitter *w, int op) {
    int row = gathered_for(w, op);
    return row < 0 || w->there >> row & 1;
}

/* What was there is no more. */
static void start_gather(WgradEmitter *w, int row) {
    if (w->started >> row & 1) return;
    for (int i = 0; i < w->n->count; i++)
        if (w->n->rows[i].row->to == w->n->rows[row].row->to) w->there &= ~(1u << i);
    append_exchange(w->p, ACT_COLLECTIVE, w->n, row, w->pass);
    w->started |= 1u << row;
}

/* The next one is gathered while this op runs, unless it goes where that lies which this one, or one in
 * between, reads. */
static void gather_next(WgradEmitter *w, int op) {
    int next = op;
    while (next >= 0 && is_ready(w, next)) next--;
    int row = next >= 0 ? gathered_for(w, next) : -1;
    for (int i = op; row >= 0 && i > next; i--) {
        int reads = gathered_for(w, i);
        if (reads >= 0 && w->n->rows[reads].row->to == w->n->rows[row].row->to) return;
    }
    if (row >= 0) start_gather(w, row);
}

static void make_ready(WgradEmitter *w, int op) {
    int row = gathered_for(w, op);
    if (is_ready(w, op)) return;
    start_gather(w, row);
    w->there |= 1u << row;
    gather_next(w, op);
    append_exchange(w->p, ACT_WAIT, w->n, row, w->pass);
}

/* Whether wgrads stop at a place: those of experts that are elsewhere have nothing to do, and where
 * nothing else is exchanged they go with others. */
static bool stops_weights(const WgradEmitter *w, int place) {
    uint32_t here = w->n->dispatched;
    bool ends = (here >> place & 1) != (place > 0 && here >> (place - 1) & 1);
    if (w->p->partition->tensors == 1 && ends) return false;
    return w->p->has_collective(w->p->partition, w->pass.unit, place);
}

static void emit_weights(Program *p, const Anatomy *n, Action pass) {
    WgradEmitter w = {.p = p, .n = n, .pass = pass};
    for (int end = n->all.end, first; end > n->all.first; end = first) {
        first = end - 1;
        make_ready(&w, first);
        while (first > n->all.first && !stops_weights(&w, first) && is_ready(&w, first - 1)) first--;
        w.pass.ops = (OpRange){first, end};
        append(p, w.pass);
    }
}

/* A pass that is not cut makes again what it needs by itself (engine.c); one that is has actions for that. */
static void emit_pass(Program *p, ActionKind kind, int unit, int microbatch) {
    Anatomy n;
    program_anatomy(p, unit, &n);
    Action a = {.kind = kind, .unit = unit, .microbatch = microbatch, .ops = n.all};
    if (kind == ACT_FWD)
        emit_ascending(p, &n, a);
    else if (!program_cuts(p, unit))
        append(p, a);
    else if (kind == ACT_WGRAD)
        emit_weights(p, &n, a);
    else
        emit_descending(p, &n, a);
}

/* The actions of a pass over a unit, where they stand for the microbatch that comes first. */
typedef struct Written {
    int first, count;
} Written;

typedef struct Lowering {
    Program *p;
    const Partition *partition;
    bool *loaded;     /* [microbatches] */
    int *left;        /* [units] wgrads still to come */
    Written *written; /* [units, ACT_KINDS] */
    Action behind; /* the reduction started last: what follows it is written after the next one has started */
    bool has_behind, behind_last; /* there is one; it was the unit's last of the step */
} Lowering;

/* Microbatches are alike: what a pass comes to is asked of the model once, and written again for all others.
 */
static void write_pass(Lowering *l, ActionKind kind, int unit, int microbatch) {
    Program *p = l->p;
    Written *w = &l->written[unit * ACT_KINDS + (int)kind];
    if (w->count == 0) {
        w->first = p->count;
        emit_pass(p, kind, unit, microbatch);
        w->count = p->count - w->first;
        return;
    }
    for (int i = 0; i < w->count; i++) {
        Action a = p->actions[w->first + i];
        a.microbatch = microbatch;
        append(p, a);
    }
}

static bool reduces(const Lowering *l) { return l->partition->shards * l->partition->replicas > 1; }

/* The second half of a reduction: over the replicas, or the wait for what was summed. By then the next unit's
 * first half is under way, so neither waits for the other: on a network both axes are busy at once. */
static void finish_behind(Lowering *l) {
    if (!l->has_behind) return;
    Action a = l->behind;
    bool scattered = l->partition->shards > 1;
    l->has_behind = false;
    if (scattered && l->partition->replicas > 1 && l->p->sync != SYNC_REPLICA)
        emit(l->p, ACT_ALL_REDUCE, a.unit, a.microbatch);
    if (a.microbatch >= 0) emit(l->p, ACT_REDUCED, a.unit, a.microbatch);
    if (l->p->sync == SYNC_REPLICA && l->behind_last) emit(l->p, ACT_ALL_REDUCE, a.unit, -1);
}

/* Over the shards first where there are any, which leaves a share to sum over the replicas; else the whole
 * over the replicas. */
static void reduce(Lowering *l, int unit, int microbatch, bool last) {
    emit(l->p, l->partition->shards > 1 ? ACT_REDUCE_SCATTER : ACT_ALL_REDUCE, unit, microbatch);
    finish_behind(l);
    l->behind = (Action){.unit = unit, .microbatch = microbatch};
    l->has_behind = true;
    l->behind_last = last;
}

/* Splits of a microbatch's gradient are added up behind the pass that makes it, since the next one writes
 * where they are; in fixed point they have been added by then, and only cross. */
static void partials_of_microbatch(Lowering *l, int u, int m) {
    if (program_sums_partials(l->p, u) && !program_sums_partials_once(l->p))
        emit(l->p, ACT_SUM_PARTIALS, u, m);
}

/* A wgrad of (u, m) is done. With gradients reduced once a step, the last of a unit's microbatches sets
 * its reduction off, while units below are still at work. The tied head's own gradient is complete when the
 * head is. */
static void gradient_added(Lowering *l, int u, int m) {
    bool last = --l->left[u] == 0;
    if (last && program_sums_partials(l->p, u) && program_sums_partials_once(l->p))
        emit(l->p, ACT_SUM_PARTIALS, u, -1);
    if (!reduces(l) || (l->p->sync == SYNC_STEP && !last)) return;
    int microbatch = l->p->sync == SYNC_STEP ? -1 : m;
    reduce(l, u, microbatch, last);
    if (l->partition->tied && u == l->p->units - 1) reduce(l, l->p->units, microbatch, last);
}

/* With the first stage of this rank that sees the microbatch: later stages of it find it there. */
static void load(Lowering *l, int m) {
    if (l->loaded[m]) return;
    l->loaded[m] = true;
    emit(l->p, ACT_LOAD, -1, m);
}

static void forward(Lowering *l, int stage, int m) {
    const int *first = l->partition->stages.first;
    load(l, m);
    for (int u = first[stage]; u < first[stage + 1]; u++) write_pass(l, ACT_FWD, u, m);
}

/* From the last unit of the stage to the first. Dgrad alone makes no gradient of matrices, so
 * nothing can be reduced after it. */
static void backward(Lowering *l, int stage, int m, ActionKind kind) {
    const int *first = l->partition->stages.first;
    for (int u = first[stage + 1] - 1; u >= first[stage]; u--) {
        write_pass(l, kind, u, m);
        if (kind != ACT_WGRAD) partials_of_microbatch(l, u, m);
        if (kind != ACT_DGRAD) gradient_added(l, u, m);
    }
}

static void cell(Lowering *l, const Cell *c) {
    const int *first = l->partition->stages.first;
    int m = c->microbatch;
    switch (c->kind) {
    case CELL_F: forward(l, c->stage, m); break;
    case CELL_B: backward(l, c->stage, m, ACT_BWD); break;
    case CELL_I: backward(l, c->stage, m, ACT_DGRAD); break;
    case CELL_W: backward(l, c->stage, m, ACT_WGRAD); break;
    case CELL_SEND_F: emit(l->p, ACT_SEND_F, first[c->stage + 1] - 1, m); break;
    case CELL_RECV_F: emit(l->p, ACT_RECV_F, first[c->stage], m); break;
    case CELL_SEND_B: emit(l->p, ACT_SEND_B, first[c->stage], m); break;
    case CELL_RECV_B: emit(l->p, ACT_RECV_B, first[c->stage + 1] - 1, m); break;
    case CELL_UNSHARD:
    case CELL_RESHARD:
    case CELL_REDUCE_GRAD: /* parameter actions are this file's own */
    case CELL_KINDS:
    case CELL_IDLE: break;
    }
}

/* One unit's boxes at a time are on their way, in the memory that passes have left. */
static void update(Lowering *l, int unit) {
    if (!partition_holds(l->partition, unit)) return;
    if (owners_have(l->partition, unit)) {
        emit(l->p, ACT_MATRIX_GATHER, unit, -1);
        emit(l->p, ACT_MATRIX_SCATTER, unit, -1);
    }
    emit(l->p, ACT_UPDATE, unit, -1);
}

/* What stands at the end of every step. REDUCED of the step comes once for each gradient, after all passes:
 * with gradients that were reduced microbatch by microbatch there is nothing left to wait for, but fixed
 * point still has to become fp32. A rank of the middle of a pipeline has neither end of a tie. */
static void finish(Lowering *l) {
    Program *p = l->p;
    finish_behind(l);
    bool runs_head = partition_runs(l->partition, p->units - 1),
         runs_embedding = partition_runs(l->partition, 0);
    bool waits = (reduces(l) && p->sync != SYNC_MICROBATCH) || p->exact;
    for (int u = 0; waits && u <= p->units; u++)
        if (partition_makes_gradient(l->partition, u)) emit(p, ACT_REDUCED, u, -1);
    if (l->partition->tied && (runs_head || runs_embedding)) emit(p, ACT_TIE, -1, -1);
    emit(p, ACT_NORM, -1, -1);
    for (int u = 0; u < p->units; u++) update(l, u);
}

/* ---- Second pass: parameters ---- */

/* Units whose parameters an action reads. The embedding's backward pass reads none (it adds rows to a
 * gradient), and a wgrad reads activations only, but for adapters, which read each other; a head that
 * was deferred makes its logits again, and a tied one reads the embedding for them; an MTP module, when it is
 * recomputed. */
static int uses(const Program *p, Action a, int out[2]) {
    int n = 0, head = p->units - 1;
    bool pass = a.kind == ACT_FWD || a.kind == ACT_RECOMPUTE || a.kind == ACT_DISPATCH ||
                ((a.kind == ACT_BWD || a.kind == ACT_DGRAD) && a.unit > 0);
    bool recomputes_logits = a.unit == head && p->defer_head && (a.kind == ACT_BWD || a.kind == ACT_WGRAD);
    bool recomputes = p->model->mtp_module && (a.kind == ACT_DGRAD || a.kind == ACT_RECOMPUTE),
         embeds = a.kind == ACT_FWD || recomputes_logits || recomputes;
    if (pass || recomputes_logits || program_reads_adapters(p, a)) out[n++] = a.unit;
    if (p->partition->tied && a.unit == head && embeds) out[n++] = 0;
    return n;
}

/* Of an action that reads parameters: the next one that does, and the next that does not read the same. Where
 * there is none: as many as there are actions. */
typedef struct Ahead {
    int next, other;
} Ahead;

typedef struct Gathering {
    Program *to;
    const Program *from;
    Ahead *ahead;   /* [actions] */
    bool *live;     /* [units] */
    int *instances; /* [units] gathers so far */
    int *last_use;  /* [units] action */
} Gathering;

static bool is_among(const int *units, int n, int unit) {
    return (n > 0 && units[0] == unit) || (n > 1 && units[1] == unit);
}

/* From the end, so that nothing is searched for: what is ahead of an action is known when its turn comes. */
static void look_ahead(Gathering *g) {
    const Program *p = g->from;
    int next = p->count, read[2] = {-1, -1};
    for (int i = p->count - 1; i >= 0; i--) {
        int own[2] = {-1, -1}, n = uses(p, p->actions[i], own);
        bool same = own[0] == read[0] && own[1] == read[1];
        if (n == 0) continue;
        for (int k = 0; k < n; k++)
            if (g->last_use[own[k]] < i) g->last_use[own[k]] = i;
        g->ahead[i] = (Ahead){next, same ? g->ahead[next].other : next};
        next = i, read[0] = own[0], read[1] = own[1];
    }
}

/* The how-manieth gather of its unit names its buffer: each lives from there to its RELEASE, and may lie
 * elsewhere than the one before. */
static void gather(Gathering *g, int unit) {
    if (g->live[unit]) return;
    g->live[unit] = true;
    emit(g->to, ACT_GATHER, unit, g->instances[unit]++);
    if (g->instances[unit] > g->to->instances) g->to->instances = g->instances[unit];
}

static void release(Gathering *g, int unit) {
    if (!g->live[unit]) return;
    g->live[unit] = false;
    emit(g->to, ACT_RELEASE, unit, g->instances[unit] - 1);
}

/* Gathers what action i uses, then the next unit that any later action uses. One unit ahead is enough to hide
 * a gather behind a pass of equal length, and holds two units at a time; more would hold more and hide no
 * more. */
static void prefetch_gathers(Gathering *g, int i, const int *own, int n) {
    const Program *p = g->from;
    bool found = false;
    for (int k = 0; k < n; k++) gather(g, own[k]);
    for (int j = g->ahead[i].other; j < p->count && !found; j = g->ahead[j].other) {
        int next[2], more = uses(p, p->actions[j], next);
        for (int k = 0; k < more; k++)
            if (!is_among(own, n, next[k])) found = true, gather(g, next[k]);
    }
}

/* A unit is dropped after its last use, or, where it is to be gathered anew for each pass, as soon as the
 * next action that reads parameters reads others. Backward follows forward on the same unit at the turn of a
 * microbatch: there it stays. */
static void drop(Gathering *g, int i, const int *own, int n, Reshard reshard) {
    const Program *p = g->from;
    int next[2], more = g->ahead[i].next < p->count ? uses(p, p->actions[g->ahead[i].next], next) : 0;
    for (int k = n - 1; k >= 0; k--)
        if (g->last_use[own[k]] == i || (reshard == RESHARD_ALWAYS && !is_among(next, more, own[k])))
            release(g, own[k]);
}

static void place_gathers(Program *p, Reshard reshard) {
    Program from = *p;
    size_t units = (size_t)p->units;
    Gathering g = {.to = p, .from = &from};
    g.ahead = mem_alloc_array((size_t)from.count, sizeof *g.ahead);
    g.live = mem_alloc_array(units, sizeof *g.live);
    g.instances = mem_alloc_array(units, sizeof *g.instances),
    g.last_use = mem_alloc_array(units, sizeof *g.last_use);
    p->actions = NULL, p->count = p->capacity = 0;
    look_ahead(&g);
    for (int i = 0; i < from.count; i++) {
        int own[2], n = uses(&from, from.actions[i], own);
        if (n > 0) prefetch_gathers(&g, i, own, n);
        append(p, from.actions[i]);
        if (n > 0) drop(&g, i, own, n, reshard);
    }
    free(g.ahead);
    free(g.live);
    free(g.instances);
    free(g.last_use);
    free(from.actions);
}

/* Under pipelines each microbatch would gather each stage anew, which is many times the bytes: there they
 * stay, unless asked otherwise. */
static Reshard choose(Reshard asked, const Partition *partition) {
    if (asked != RESHARD_AUTO) return asked;
    return mesh_size(&partition->mesh, MESH_PIPELINE) > 1 ? RESHARD_NEVER : RESHARD_ALWAYS;
}

/* Whether sums are added up as one rank would, microbatch after microbatch: true of all schedules but those
 * that say otherwise, and what makes their bits equal. */
static bool ascending(const Program *p) {
    int *last = mem_alloc_array((size_t)p->units, sizeof *last);
    bool ok = true;
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        if (a.kind != ACT_BWD && a.kind != ACT_WGRAD) continue;
        ok = ok && a.microbatch >= last[a.unit];
        last[a.unit] = a.microbatch;
    }
    free(last);
    return ok;
}

static bool comes_first(const Program *p) {
    unsigned char *seen = mem_alloc_array((size_t)p->units + 1, 1);
    bool ok = true;
    for (int i = 0; i < p->count; i++)
        for (int k = 0; action_is_pass(p->actions[i].kind) && k < PASS_GRADIENTS; k++) {
            PassGradient g;
            if (!program_gradient(p, p->actions[i], k, &g)) continue;
            ok = ok && (p->actions[i].microbatch == 0 || seen[g.unit] >> g.flat & 1);
            seen[g.unit] |= (unsigned char)(1 << g.flat);
        }
    free(seen);
    return ok;
}

/* With one microbatch there is nothing to add up before gradients cross: shards then hold no whole gradient,
 * for the same bytes. Replicas without shards would only hold it twice. */
GradientSync program_sync(GradientSync asked, int shards, int replicas, int microbatches) {
    if (shards * replicas == 1) return SYNC_STEP;
    if (asked == SYNC_AUTO) return microbatches == 1 && shards > 1 ? SYNC_MICROBATCH : SYNC_STEP;
    if (asked != SYNC_REPLICA) return asked;
    return shards == 1 ? SYNC_STEP : replicas == 1 ? SYNC_MICROBATCH : SYNC_REPLICA;
}

/* Where ranks share the vocabulary the head makes its weight gradient with its forward pass whatever is
 * asked: making logits again would exchange records again. With an MTP module, all gradients of the last
 * unit's matrices are made on the way back (model/layers/head.c). */
void program_lower(Program *p, const ProgramSpec *spec) {
    const Partition *partition = spec->partition;
    *p = (Program){
        .model = spec->model,
        .partition = partition,
        .units = partition->table->units,
        .microbatches = spec->schedule->microbatches,
        .defer_head = (spec->defer_head && spec->schedule->split_backward && partition->tensors == 1) ||
                      spec->model->mtp_module,
        .exact = spec->exact,
        .has_collective = spec->has_collective,
        .recompute = spec->recompute,
        .chunks = spec->chunks,
        .training = true,
        .sync =
            program_sync(spec->sync, partition->shards, partition->replicas, spec->schedule->microbatches)};
    Lowering l = {.p = p, .partition = partition};
    l.loaded = mem_alloc_array((size_t)p->microbatches, sizeof *l.loaded);
    l.left = mem_alloc_array((size_t)p->units, sizeof *l.left);
    l.written = mem_alloc_array((size_t)p->units * ACT_KINDS, sizeof *l.written);
    for (int u = 0; u < p->units; u++) l.left[u] = p->microbatches;
    const Order *order = &spec->schedule->orders[partition->pipe];
    for (int i = 0; i < order->count; i++) cell(&l, &order->cells[i]);
    finish(&l);
    free(l.loaded);
    free(l.left);
    free(l.written);
    p->ordered = ascending(p);
    p->first_alone = program_has_slots(p) || comes_first(p);
    if (partition->shards > 1) place_gathers(p, choose(spec->reshard, partition));
}

/* The stages of this rank in ascending order, one microbatch through all of them: there is nothing to
 * interleave. */
void program_lower_evaluation(Program *p, const ProgramSpec *spec) {
    const Partition *partition = spec->partition;
    *p = (Program){.model = spec->model,
                   .partition = partition,
                   .units = partition->table->units,
                   .microbatches = 1,
                   .has_collective = spec->has_collective,
                   .chunks = spec->chunks,
                   .evaluates = true,
                   .ordered = true};
    const Stages *s = &partition->stages;
    int rank = partition->pipe;
    emit(p, ACT_LOAD, -1, 0);
    for (int stage = 0; stage < s->count; stage++) {
        if (s->rank[stage] != rank) continue;
        if (stage > 0 && s->rank[stage - 1] != rank) emit(p, ACT_RECV_F, s->first[stage], 0);
        for (int u = s->first[stage]; u < s->first[stage + 1]; u++) emit_pass(p, ACT_FWD, u, 0);
        if (stage + 1 < s->count && s->rank[stage + 1] != rank)
            emit(p, ACT_SEND_F, s->first[stage + 1] - 1, 0);
    }
    if (partition->shards > 1) place_gathers(p, RESHARD_ALWAYS);
}
