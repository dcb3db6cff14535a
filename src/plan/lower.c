/* Lowering: from who holds what, and a pipeline schedule, to the program of one rank.
 *
 *     order of cells         first pass                        second pass
 *     F s m         -->  LOAD m, FWD u m ...               -->  GATHER u+1, FWD u m, RELEASE u ...
 *     B s m         -->  BWD u m, REDUCE_SCATTER u ...     -->  the same for backward passes
 *     SEND, RECV    -->  SEND_F, RECV_F, SEND_B, RECV_B         as they are
 *     the end       -->  REDUCED, TIE, NORM, UPDATE u           as they are
 *
 * The first writes down passes over units, transfers and reductions in the order of the schedule; the second
 * puts GATHER and RELEASE around the uses of sharded parameters, one unit ahead of use. They are apart
 * because what is used next is known only when everything is written down.
 *
 * Three things are put elsewhere than where they are thought of first, so that what is slow has time: gathers
 * are started one unit early, the second half of a reduction is written behind the start of the next one, and
 * what must be complete for the norm is waited for at the end. Nothing else of the order is this file's: it
 * is the schedule's. */
#include <stdlib.h>

#include "plan/program.h"

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

bool program_crosses(const Partition *p, int unit, int part) {
    return p->tensors * p->contexts.ranks > 1 && mesh_size(&p->mesh, axes_crossing(p->whole, unit, part)) > 1;
}

/* ---- passes and what crosses in them ---- */

static void emit_crossing(Program *p, ActionKind kind, Action pass, int part) {
    if (!(program_crossing(p, pass.kind, pass.unit, part) & 1u << crossing_of(kind))) return;
    append(p, (Action){
                  kind, pass.unit, pass.microbatch, {part, part}, .pass = pass.kind, .before = pass.before});
}

/* The head's logits chunk by chunk, records of each between the two halves of it. */
static void emit_slices(Program *p, Action a) {
    for (int chunk = 0; chunk < p->chunks; chunk++) {
        a.slice = 2 * chunk + 1;
        append(p, a);
        append(
            p,
            (Action){
                ACT_RECORDS, a.unit, a.microbatch, {a.parts.first, a.parts.first}, a.slice, .pass = a.kind});
        a.slice++;
        append(p, a);
    }
}

/* The first place from `part` on where passes over the unit are cut, or its end. */
static int next_cut(const Program *p, int unit, int part) {
    Parts all = unit_parts(p->model, unit);
    while (part < all.end && !p->crosses(p->partition, unit, part)) part++;
    return part;
}

/* Where nothing of a run is made again it is left out, and what would cross for it. */
static bool makes_again(const Program *p, int unit, Parts parts) {
    for (int i = parts.first; i < parts.end; i++)
        if (unit_part_again(p->model, unit, i, p->recompute)) return true;
    return false;
}

/* An action for each run of parts between two crossings: ascending in a forward pass, and in what is made
 * again. Attention gets all tokens, and gives them back; what a product reads is gathered before its run,
 * what one makes is summed behind it; the head's gradient too. */
static void emit_ascending(Program *p, Action a) {
    Parts all = unit_parts(p->model, a.unit);
    for (int first = all.first, end; first < all.end; first = end) {
        bool reads = axes_reads_all(p->model, a.unit, first);
        end = next_cut(p, a.unit, first + 1);
        a.parts = (Parts){first, end};
        emit_crossing(p, ACT_SWAP_X, a, first);
        emit_crossing(p, ACT_GATHER_X, a, first);
        if (a.kind == ACT_FWD && reads && program_slices(p, a.unit))
            emit_slices(p, a);
        else if (a.kind == ACT_FWD || makes_again(p, a.unit, a.parts))
            append(p, a);
        if (reads && a.kind == ACT_FWD) emit_crossing(p, ACT_SUM_X, a, first);
        if (!axes_reads_all(p->model, a.unit, end)) emit_crossing(p, ACT_SUM_X, a, end);
    }
}

/* Descending: before a run the gradient of what its last part has made, and what its first part reads; behind
 * it the gradient of that. */
static void emit_descending(Program *p, Action a) {
    Parts all = unit_parts(p->model, a.unit);
    for (int end = all.end, first; end > all.first; end = first) {
        for (first = end - 1; first > all.first && !p->crosses(p->partition, a.unit, first);) first--;
        a.parts = (Parts){first, end};
        bool reads = axes_reads_all(p->model, a.unit, first);
        emit_crossing(p, ACT_SWAP_X, a, end);
        if (!axes_reads_all(p->model, a.unit, end)) emit_crossing(p, ACT_GATHER_X, a, end);
        if (reads) emit_crossing(p, ACT_GATHER_X, a, first);
        append(p, a);
        if (reads) emit_crossing(p, ACT_SUM_X, a, first);
    }
}

/* A pass that is not cut makes again what it needs by itself (engine.c); one that is has actions for that. */
static void emit_pass(Program *p, ActionKind kind, int unit, int microbatch) {
    Action a = {.kind = kind, .unit = unit, .microbatch = microbatch};
    Action again = {.kind = ACT_AGAIN, .unit = unit, .microbatch = microbatch, .before = kind};
    if (kind == ACT_FWD) {
        emit_ascending(p, a);
        return;
    }
    if (kind != ACT_BWD_W && program_cuts(p, unit)) emit_ascending(p, again);
    emit_descending(p, a);
}

typedef struct Lowering {
    Program *p;
    const Partition *partition;
    bool *loaded;  /* [microbatches] */
    int *left;     /* [units] weight halves still to come */
    Action behind; /* the reduction started last: what follows it is written after the next one has started */
    bool has_behind, behind_last; /* there is one; it was the unit's last of the step */
} Lowering;

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

/* Leaves of a microbatch's gradient are added up behind the pass that makes it, since the next one writes
 * where they are; in fixed point they have been added by then, and only cross. */
static void leaves_of_microbatch(Lowering *l, int u, int m) {
    if (program_adds_leaves(l->p, u) && !program_adds_leaves_once(l->p)) emit(l->p, ACT_LEAVES, u, m);
}

/* A weight half of (u, m) is done. With gradients reduced once a step, the last of a unit's microbatches sets
 * its reduction off, while units below are still at work. The tied head's own gradient is complete when the
 * head is. */
static void gradient_added(Lowering *l, int u, int m) {
    bool last = --l->left[u] == 0;
    if (last && program_adds_leaves(l->p, u) && program_adds_leaves_once(l->p)) emit(l->p, ACT_LEAVES, u, -1);
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
    for (int u = first[stage]; u < first[stage + 1]; u++) emit_pass(l->p, ACT_FWD, u, m);
}

/* From the last unit of the stage to the first. The input half alone makes no gradient of matrices, so
 * nothing can be reduced after it. */
static void backward(Lowering *l, int stage, int m, ActionKind kind) {
    const int *first = l->partition->stages.first;
    for (int u = first[stage + 1] - 1; u >= first[stage]; u--) {
        emit_pass(l->p, kind, u, m);
        if (kind != ACT_BWD_W) leaves_of_microbatch(l, u, m);
        if (kind != ACT_BWD_IN) gradient_added(l, u, m);
    }
}

static void cell(Lowering *l, const Cell *c) {
    const int *first = l->partition->stages.first;
    int m = c->microbatch;
    switch (c->kind) {
    case CELL_F: forward(l, c->stage, m); break;
    case CELL_B: backward(l, c->stage, m, ACT_BWD); break;
    case CELL_I: backward(l, c->stage, m, ACT_BWD_IN); break;
    case CELL_W: backward(l, c->stage, m, ACT_BWD_W); break;
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
    for (int u = 0; u < p->units; u++)
        if (partition_holds(l->partition, u)) emit(p, ACT_UPDATE, u, -1);
}

/* ---- Second pass: parameters ---- */

/* Units whose parameters an action reads. The embedding's backward pass reads none (it adds rows to a
 * gradient), and a weight half reads activations only; but a head that was deferred makes its logits again,
 * and a tied one reads the embedding for them. */
static int uses(const Program *p, Action a, int out[2]) {
    int n = 0, head = p->units - 1;
    bool pass = a.kind == ACT_FWD || a.kind == ACT_AGAIN ||
                ((a.kind == ACT_BWD || a.kind == ACT_BWD_IN) && a.unit > 0);
    bool logits_again = a.unit == head && p->defer_head && (a.kind == ACT_BWD || a.kind == ACT_BWD_W);
    if (pass || logits_again) out[n++] = a.unit;
    if (p->partition->tied && a.unit == head && (a.kind == ACT_FWD || logits_again)) out[n++] = 0;
    return n;
}

typedef struct Gathering {
    Program *to;
    const Program *from;
    bool *live;     /* [units] */
    bool *wanted;   /* [units] by this action or the next use of another unit */
    int *instances; /* [units] gathers so far */
    int *last_use;  /* [units] action */
} Gathering;

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

/* Marks and gathers what action i uses, then the next unit that any later action uses. One unit ahead is
 * enough to hide a gather behind a pass of equal length, and holds two units at a time; more would hold more
 * and hide no more. */
static void gather_ahead(Gathering *g, int i) {
    const Program *p = g->from;
    int own[2], n = uses(p, p->actions[i], own);
    if (n == 0) return;
    for (int k = 0; k < n; k++) g->wanted[own[k]] = true, gather(g, own[k]);
    for (int j = i + 1; j < p->count; j++) {
        int next[2], more = uses(p, p->actions[j], next);
        bool found = false;
        for (int k = 0; k < more; k++)
            if (!g->wanted[next[k]]) g->wanted[next[k]] = found = true, gather(g, next[k]);
        if (found) return;
    }
}

/* A unit is dropped after its last use, or, where it is to be gathered anew for each pass, as soon as the
 * next action that reads parameters reads others. Backward follows forward on the same unit at the turn of a
 * microbatch: there it stays. */
static void place_gathers(Program *p, Reshard reshard) {
    Program from = *p;
    size_t units = (size_t)p->units;
    Gathering g = {.to = p, .from = &from};
    g.live = mem_alloc_array(units, sizeof *g.live), g.wanted = mem_alloc_array(units, sizeof *g.wanted);
    g.instances = mem_alloc_array(units, sizeof *g.instances),
    g.last_use = mem_alloc_array(units, sizeof *g.last_use);
    p->actions = NULL, p->count = p->capacity = 0;
    int used[2];
    for (int i = 0; i < from.count; i++)
        for (int k = uses(&from, from.actions[i], used) - 1; k >= 0; k--) g.last_use[used[k]] = i;
    for (int i = 0; i < from.count; i++) {
        for (int u = 0; u < p->units; u++) g.wanted[u] = false;
        gather_ahead(&g, i);
        append(p, from.actions[i]);
        for (int k = uses(&from, from.actions[i], used) - 1; k >= 0; k--) {
            int ahead = i + 1, next[2] = {-1, -1};
            while (ahead < from.count && uses(&from, from.actions[ahead], next) == 0) ahead++;
            bool again = ahead < from.count && (next[0] == used[k] || next[1] == used[k]);
            if (g.last_use[used[k]] == i || (reshard == RESHARD_ALWAYS && !again)) release(&g, used[k]);
        }
    }
    free(g.live);
    free(g.wanted);
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
        if (a.kind != ACT_BWD && a.kind != ACT_BWD_W) continue;
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
        for (int f = 0; f < FLATS; f++) {
            int unit = program_gradient_unit(p, p->actions[i], (Flat)f);
            if (unit < 0) continue;
            ok = ok && (p->actions[i].microbatch == 0 || seen[unit] >> f & 1);
            seen[unit] |= (unsigned char)(1 << f);
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
 * asked: making logits again would exchange records again. */
void program_lower(Program *p, const ProgramSpec *spec) {
    const Partition *partition = spec->partition;
    *p =
        (Program){.model = spec->model,
                  .partition = partition,
                  .units = partition->table->units,
                  .microbatches = spec->schedule->microbatches,
                  .defer_head = spec->defer_head && spec->schedule->split_backward && partition->tensors == 1,
                  .exact = spec->exact,
                  .crosses = spec->crosses,
                  .recompute = spec->recompute,
                  .chunks = spec->chunks,
                  .training = true,
                  .sync = program_sync(spec->sync, partition->shards, partition->replicas,
                                       spec->schedule->microbatches)};
    Lowering l = {.p = p, .partition = partition};
    l.loaded = mem_alloc_array((size_t)p->microbatches, sizeof *l.loaded);
    l.left = mem_alloc_array((size_t)p->units, sizeof *l.left);
    for (int u = 0; u < p->units; u++) l.left[u] = p->microbatches;
    const Order *order = &spec->schedule->orders[partition->pipe];
    for (int i = 0; i < order->count; i++) cell(&l, &order->cells[i]);
    finish(&l);
    free(l.loaded);
    free(l.left);
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
                   .crosses = spec->crosses,
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
