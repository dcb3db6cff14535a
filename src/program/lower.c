/* Lowering: from the partition and a pipeline schedule to the program of one rank.
 *
 *     order of cells         first pass                        second pass
 *     F s m         -->  LOAD m, FWD u m ...               -->  GATHER u+1, FWD u m, RELEASE u ...
 *     B s m         -->  BWD u m, REDUCE_SCATTER u ...     -->  the same for backward passes
 *     SEND, RECV    -->  SEND_F, RECV_F, SEND_B, RECV_B         unchanged
 *     the end       -->  REDUCED, TIE, NORM, UPDATE u ...       unchanged
 *
 * The first pass emits passes over units, transfers and reductions in the order of the schedule. The second
 * puts GATHER and RELEASE around the uses of sharded parameters, one unit ahead of use. It is separate
 * because the next use is only known when all actions are there.
 *
 * Some actions are moved away from their natural position to give slow operations time. Gathers are started
 * one unit early. The second step of a reduction comes after the start of the next reduction. The norm's
 * inputs are waited for at the end. In backward passes that collectives cut, wgrads run during collectives.
 * The rest of the order is the schedule's.
 *
 * Elsewhere called: overlap_grad_reduce (reduce), FSDP prefetch (prefetch_gathers), delayed wgrad (run_down,
 * delayed_of, run_delayed), zero bubble (cells I and W of schedule_make.c become DGRAD and WGRAD in cell). */
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

/* Appends any action but a pass. */
static void emit(Program *p, ActionKind kind, int unit, int microbatch) {
    append(p, (Action){.kind = kind, .unit = unit, .microbatch = microbatch});
}

/* ---- passes and their collectives ---- */

static void append_exchange(Program *p, ActionKind kind, const Anatomy *n, int row, Action pass) {
    const UnitCollective *c = &n->rows[row];
    int cut = collective_cut(c);
    append(p, (Action){.kind = kind,
                       .unit = pass.unit,
                       .microbatch = pass.microbatch,
                       .ops = {cut, cut},
                       .slice = pass.slice,
                       .pass = pass.kind,
                       .before = pass.before,
                       .row = row,
                       .how = c->row->kind,
                       .over = c->row->over});
}

/* Whether a pass has a separate action for a row. Rows that go along with another have none, those of chunks
 * are between slices, and dispatched rows are run. */
static bool is_exchanged(const Anatomy *n, ActionKind pass, int row) {
    const Collective *c = n->rows[row].row;
    return n->uses[pass][row] && !c->along && !c->chunked && c->kind != COLL_DISPATCH;
}

/* The head's logits chunk by chunk, with a collective of the chunk's records between its two slices. */
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

/* The first op from `op` on before which passes over the unit are cut, or `end`. */
static int next_cut(const Program *p, int unit, int op, int end) {
    while (op < end && !p->has_collective(p->partition, unit, op)) op++;
    return op;
}

static uint32_t bits(OpRange range) {
    return (uint32_t)((UINT64_C(1) << range.end) - (UINT64_C(1) << range.first));
}

static int highest(uint32_t ops) { return 31 - __builtin_clz(ops); }

/* Ops that run on their experts' ranks. They recompute what they need there by themselves: only their
 * combined output may have to be recomputed. False: the ops are not dispatched. */
static bool emit_dispatch(Program *p, const Anatomy *n, Action a) {
    int row = anatomy_dispatch(n, a.ops.first);
    if (row < 0) return false;
    if (a.kind == ACT_RECOMPUTE && !(n->recomputed >> (a.ops.end - 1) & 1)) return true;
    append_exchange(p, ACT_DISPATCH, n, row, a);
    p->actions[p->count - 1].ops = a.ops;
    return true;
}

/* Emits the collectives before the cut at op `cut` of an ascending pass. Returns the row that may overlap
 * with the op; -1: none. */
static int exchange_at(Program *p, const Anatomy *n, Action a, int cut) {
    int overlaps = -1;
    for (int i = 0; i < n->count; i++) {
        if (!is_exchanged(n, a.kind, i) || collective_cut(&n->rows[i]) != cut) continue;
        append_exchange(p, ACT_COLLECTIVE, n, i, a);
        if (n->rows[i].row->overlaps)
            overlaps = i;
        else
            append_exchange(p, ACT_WAIT, n, i, a);
    }
    return overlaps;
}

/* Emits an action for each run of ops between two collectives, ascending, for a forward pass or
 * recomputation. Leaves out runs without recomputed ops. */
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

/* A backward pass in progress, with its delayed wgrads. Nothing waits for the wgrad of a product, so it runs
 * during a collective.
 *
 *     gradient of the result ==gather==> down, gate and up: dgrad ==sum==> norm ==gather==> output, ...
 *              recomputation                    wgrad of down   ^   wgrad of gate and up
 *
 * Products come in pairs, which makes this possible. A row-parallel product reads the gradient of the layer's
 * result, which stays unchanged until the norm before the layer adds to it. A column-parallel product reads
 * the layer's input, which is gathered again after both dgrads. So no tensor is kept longer, and collectives
 * use the same memory as without delay. */
typedef struct BackwardEmitter {
    Program *p;
    const Anatomy *n;
    Action pass;
    bool recompute;   /* recomputation has not been emitted yet */
    uint32_t delayed; /* ops whose wgrads have not been emitted yet */
    int gathered;     /* the row last gathered for wgrads; -1: none */
    bool pending;     /* it has been started but not waited for */
} BackwardEmitter;

static void wait_for(BackwardEmitter *d, int row) { append_exchange(d->p, ACT_WAIT, d->n, row, d->pass); }

static void wait_gathered(BackwardEmitter *d) {
    if (d->pending) wait_for(d, d->gathered);
    d->pending = false;
}

/* Emits the highest delayed wgrad, or all of them. `rows`: only those that read the gradient of a layer's
 * result. */
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

/* A collective with other work until it is waited for. */
static void exchange(BackwardEmitter *d, int row) {
    append_exchange(d->p, ACT_COLLECTIVE, d->n, row, d->pass);
    if (d->recompute)
        emit_recompute(d);
    else if (!d->n->rows[row].row->brief)
        run_delayed(d, false, false);
    wait_for(d, row);
}

/* After dgrad of a layer's first op, the gradient of the layer's input is summed. The layer's remaining
 * wgrads run meanwhile. Those that read its input wait for the gather of the layer below, if the unit has
 * one. */
static void end_layer(BackwardEmitter *d, int row, int cut) {
    bool below = d->n->begins & bits((OpRange){0, cut});
    if (row >= 0) append_exchange(d->p, ACT_COLLECTIVE, d->n, row, d->pass);
    run_delayed(d, below, true);
    if (row >= 0) wait_for(d, row);
}

/* The sum at a block's end passes its gradient on and needs nothing recomputed. */
static bool hands_on(const BackwardEmitter *d, OpRange range) {
    int last = d->n->all.end - 1;
    return range.first == last && !((d->n->ops | d->n->products) >> last & 1);
}

/* The ops of a run whose wgrads are delayed: all products, or none. In the last unit some ops have a wgrad
 * without a product; with dispatched experts there is no collective to overlap with. */
static uint32_t delayed_of(const BackwardEmitter *d, OpRange range) {
    uint32_t products = d->n->products & bits(range);
    if (d->pass.kind != ACT_BWD || d->pass.unit == d->p->units - 1) return 0;
    return d->p->partition->experts == 1 && !(products & ~d->n->parallel) ? products : 0;
}

/* What rows of a backward pass move: gradients, outputs of the forward pass, or operands for wgrads only. */
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

/* Starts the gather of an operand of a run's wgrads: once for all ops that read it. */
static void gather_operand(BackwardEmitter *d, OpRange range) {
    for (int i = 0; i < d->n->count; i++) {
        if (!is_exchanged(d->n, d->pass.kind, i) || moves(d->n->rows[i].row) != MOVES_OPERAND) continue;
        if (!(d->n->uses[d->pass.kind][i] & bits(range)) || i == d->gathered) continue;
        run_delayed(d, false, true);
        append_exchange(d->p, ACT_COLLECTIVE, d->n, i, d->pass);
        d->gathered = i, d->pending = true;
    }
}

/* The row that sums the gradient of the layer's input at which the run ends; -1: none. */
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

/* If the gradient comes from another rank, recomputation runs before it arrives. */
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

/* A gather overwrites what was in its tensor. */
static void start_gather(WgradEmitter *w, int row) {
    if (w->started >> row & 1) return;
    for (int i = 0; i < w->n->count; i++)
        if (w->n->rows[i].row->to == w->n->rows[row].row->to) w->there &= ~(1u << i);
    append_exchange(w->p, ACT_COLLECTIVE, w->n, row, w->pass);
    w->started |= 1u << row;
}

/* Gathers the next operand while this op runs, unless that would overwrite what this op, or one in between,
 * reads. */
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

/* Whether wgrads stop at a cut. Those of dispatched experts ran with dgrad and have nothing to do here, so
 * without other collectives they join a run. */
static bool stops_weights(const WgradEmitter *w, int cut) {
    uint32_t here = w->n->dispatched;
    bool ends = (here >> cut & 1) != (cut > 0 && here >> (cut - 1) & 1);
    if (w->p->partition->tensors == 1 && ends) return false;
    return w->p->has_collective(w->p->partition, w->pass.unit, cut);
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

/* A pass that is not cut recomputes what it needs by itself (engine.c). A pass that is cut has actions for
 * that. */
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

/* The actions of a pass over a unit, as emitted for the first microbatch. */
typedef struct Written {
    int first, count;
} Written;

typedef struct Lowering {
    Program *p;
    const Partition *partition;
    bool *loaded;     /* [microbatches] */
    int *left;        /* [units] wgrads still to come */
    Written *written; /* [units, ACT_KINDS] */
    Action behind;    /* the reduction started last; its second step comes after the start of the next one */
    bool has_behind, behind_last; /* there is one; it was the unit's last in the step */
} Lowering;

/* Microbatches are alike: the model is asked once about a pass, and the actions are copied for all others. */
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

/* The second step of a reduction: the all-reduce over replicas, or the wait for the sum. By then the first
 * step of the next unit is in flight, so neither waits for the other: both axes are busy at once. */
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

/* Reduces over the shards first, if there are any, which leaves one shard to sum over the replicas; else the
 * full gradient over the replicas. */
static void reduce(Lowering *l, int unit, int microbatch, bool last) {
    emit(l->p, l->partition->shards > 1 ? ACT_REDUCE_SCATTER : ACT_ALL_REDUCE, unit, microbatch);
    finish_behind(l);
    l->behind = (Action){.unit = unit, .microbatch = microbatch};
    l->has_behind = true;
    l->behind_last = last;
}

/* Partial sums of a microbatch's gradient are added up after the pass that makes them, since the next pass
 * overwrites them. In fixed point they have been added by then, and only the total is sent. */
static void partials_of_microbatch(Lowering *l, int u, int m) {
    if (program_sums_partials(l->p, u) && !program_sums_partials_once(l->p))
        emit(l->p, ACT_SUM_PARTIALS, u, m);
}

/* Called after a wgrad of (u, m). With gradients reduced once a step, the last microbatch of a unit starts
 * its reduction, while lower units are still at work. The tied head's own gradient is complete when the
 * head's is. */
static void gradient_added(Lowering *l, int u, int m) {
    bool last = --l->left[u] == 0;
    if (last && program_sums_partials(l->p, u) && program_sums_partials_once(l->p))
        emit(l->p, ACT_SUM_PARTIALS, u, -1);
    if (!reduces(l) || (l->p->sync == SYNC_STEP && !last)) return;
    int microbatch = l->p->sync == SYNC_STEP ? -1 : m;
    reduce(l, u, microbatch, last);
    if (l->partition->tied && u == l->p->units - 1) reduce(l, l->p->units, microbatch, last);
}

/* Comes with the first stage of this rank that runs the microbatch. */
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

/* From the last unit of the stage to the first. A separate dgrad makes no gradient of matrices, so no
 * reduction follows it. */
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
    case CELL_REDUCE_GRAD: /* lower.c places these itself */
    case CELL_KINDS:
    case CELL_IDLE: break;
    }
}

/* The matrices of one unit at a time are exchanged, in memory that the passes no longer use. */
static void update(Lowering *l, int unit) {
    if (!partition_holds(l->partition, unit)) return;
    if (owners_have(l->partition, unit)) {
        emit(l->p, ACT_MATRIX_GATHER, unit, -1);
        emit(l->p, ACT_MATRIX_SCATTER, unit, -1);
    }
    emit(l->p, ACT_UPDATE, unit, -1);
}

/* The end of a step. REDUCED of the step comes once for each gradient, after all passes. Gradients that were
 * reduced microbatch by microbatch need no wait, but fixed point is still converted to fp32. A rank in the
 * middle of a pipeline has neither end of a tie. */
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

/* ---- second pass: parameters ---- */

/* The units whose parameters an action reads. The embedding's backward pass reads none (it adds rows to a
 * gradient). A wgrad reads only activations, except that adapters read each other. A deferred head recomputes
 * its logits, and a tied one reads the embedding for that; so does an MTP module when it is recomputed. */
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

/* For an action that reads parameters: the next one that does, and the next one that reads different
 * parameters. If there is none: the number of actions. */
typedef struct Ahead {
    int next, other;
} Ahead;

typedef struct Gathering {
    Program *to;
    const Program *from;
    Ahead *ahead;   /* [actions] */
    bool *live;     /* [units] */
    int *instances; /* [units] gathers so far */
    int *last_use;  /* [units] index of the action */
} Gathering;

static bool is_among(const int *units, int n, int unit) {
    return (n > 0 && units[0] == unit) || (n > 1 && units[1] == unit);
}

/* Walks from the end, so that what is ahead of each action is already known. */
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

/* The index of a gather among those of its unit names the buffer. Each buffer lives from its GATHER to its
 * RELEASE, and may have another offset than the one before. */
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

/* Gathers what action i uses, then the next unit that a later action uses. One unit ahead is enough to hide a
 * gather behind a pass of equal length, and holds two units at a time. More would take more memory and hide
 * nothing more. */
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

/* Releases a unit after its last use or, if it is to be gathered again for each pass, as soon as the next
 * action that reads parameters reads others. Where a microbatch turns from forward to backward on the same
 * unit, the unit stays. */
static void drop(Gathering *g, int i, const int *own, int n, Reshard reshard) {
    const Program *p = g->from;
    int next[2], more = g->ahead[i].next < p->count ? uses(p, p->actions[g->ahead[i].next], next) : 0;
    for (int k = n - 1; k >= 0; k--)
        if (g->last_use[own[k]] == i || (reshard == RESHARD_ALWAYS && !is_among(next, more, own[k])))
            release(g, own[k]);
}

static void insert_gathers(Program *p, Reshard reshard) {
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

/* With a pipeline each microbatch would gather each stage again, which is many times the bytes; by default
 * parameters then stay gathered. */
static Reshard choose(Reshard asked, const Partition *partition) {
    if (asked != RESHARD_AUTO) return asked;
    return mesh_size(&partition->mesh, MESH_PIPELINE) > 1 ? RESHARD_NEVER : RESHARD_ALWAYS;
}

/* Whether gradients are accumulated microbatch by microbatch, as on one rank, which makes the bits equal.
 * True for all schedules except those with another order. */
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
            bool first = program_batch(p, p->actions[i].microbatch) == 0;
            ok = ok && (first || seen[g.unit] >> g.flat & 1);
            seen[g.unit] |= (unsigned char)(1 << g.flat);
        }
    free(seen);
    return ok;
}

/* With one microbatch there is nothing to accumulate before the reduction: with SYNC_MICROBATCH no rank holds
 * a full gradient, for the same bytes. Replicas without shards would only hold it twice. */
GradientSync program_sync(GradientSync asked, int shards, int replicas, int microbatches) {
    if (shards * replicas == 1) return SYNC_STEP;
    if (asked == SYNC_AUTO) return microbatches == 1 && shards > 1 ? SYNC_MICROBATCH : SYNC_STEP;
    if (asked != SYNC_REPLICA) return asked;
    return shards == 1 ? SYNC_STEP : replicas == 1 ? SYNC_MICROBATCH : SYNC_REPLICA;
}

/* Where ranks share the vocabulary, the head computes its weight gradient in the forward pass whatever is
 * asked: recomputing logits would repeat the exchange of records. With an MTP module, all gradients of the
 * last unit's matrices are computed in the backward pass (model/layers/head.c). */
void program_lower(Program *p, const ProgramSpec *spec) {
    const Partition *partition = spec->partition;
    *p = (Program){
        .model = spec->model,
        .partition = partition,
        .units = partition->table->units,
        .microbatches = spec->schedule->microbatches,
        .segments = spec->schedule->segments,
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
    if (partition->shards > 1) insert_gathers(p, choose(spec->reshard, partition));
}

static void evaluate_microbatch(Program *p, int m) {
    const Stages *s = &p->partition->stages;
    int rank = p->partition->pipe;
    for (int stage = 0; stage < s->count; stage++) {
        if (s->rank[stage] != rank) continue;
        if (stage > 0 && s->rank[stage - 1] != rank) emit(p, ACT_RECV_F, s->first[stage], m);
        for (int u = s->first[stage]; u < s->first[stage + 1]; u++) emit_pass(p, ACT_FWD, u, m);
        if (stage + 1 < s->count && s->rank[stage + 1] != rank)
            emit(p, ACT_SEND_F, s->first[stage + 1] - 1, m);
    }
}

/* One microbatch goes through the stages of this rank in ascending order: there is nothing to interleave. Its
 * segments follow each other. */
void program_lower_evaluation(Program *p, const ProgramSpec *spec) {
    const Partition *partition = spec->partition;
    *p = (Program){.model = spec->model,
                   .partition = partition,
                   .units = partition->table->units,
                   .microbatches = partition->segments,
                   .segments = partition->segments,
                   .has_collective = spec->has_collective,
                   .chunks = spec->chunks,
                   .evaluates = true,
                   .ordered = true};
    for (int m = 0; m < p->microbatches; m++) emit(p, ACT_LOAD, -1, m);
    for (int m = 0; m < p->microbatches; m++) evaluate_microbatch(p, m);
    if (partition->shards > 1) insert_gathers(p, RESHARD_ALWAYS);
}
