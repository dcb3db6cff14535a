/* The passes that add parameter cells and transfers to a compute order; program/lower.c makes a program of
 * the result. Both are deterministic, and leave a schedule unchanged that already has what they would add.
 *
 *     parameters   a window of the next stages to be used slides over a rank's cells: UNSHARD for stages that
 *                  enter it, RESHARD for those that leave it, REDUCE_GRAD after the last wgrad of a stage
 *     transfers    ranks are visited in turn, and each advances by one cell if that is ready; after each cell
 *                  with output for another rank come a SEND here and a RECV there
 *
 * Transfers of all ranks come from one sequence in time, so both sides of all transfers meet in the same
 * order, and no cycle can arise. The pass for parameters is for schedules that are shown and exported; a run
 * places its own gathers (program/lower.c). */
#include <stdlib.h>

#include "schedule/schedule.h"
#include "schedule/schedule_internal.h"

static void add(Order *o, CellKind kind, int stage, int microbatch) {
    order_add(o, (Cell){kind, stage, microbatch, false});
}

/* The parameters of one rank's stages. next[s] is the index of the compute cell that uses stage s next, or
 * `count`. */
typedef struct Window {
    const Order *from;
    int stages, count, wanted; /* count: cells; wanted: stages to keep gathered */
    const int *owned;          /* [stages] ascending */
    int *next, *following;     /* [all stages]; [cells]: next use of the same stage */
    int *weights;              /* [all stages] wgrads still to come */
    bool *resident, *inside;   /* [all stages] */
    int *window;               /* [stages] in order of use */
} Window;

static void find_uses(Window *w) {
    for (int k = 0; k < w->stages; k++) w->next[w->owned[k]] = w->count;
    for (int i = w->count - 1; i >= 0; i--) {
        Cell cell = w->from->cells[i];
        if (!cell_is_compute(cell.kind)) continue;
        w->following[i] = w->next[cell.stage];
        w->next[cell.stage] = i;
        w->weights[cell.stage] += cell.kind == CELL_B || cell.kind == CELL_W;
    }
}

/* The stage outside the window that is used first; -1 when no other is used again. */
static int first_outside(const Window *w) {
    int best = -1;
    for (int k = 0; k < w->stages; k++) {
        int s = w->owned[k];
        if (!w->inside[s] && w->next[s] < w->count && (best < 0 || w->next[s] < w->next[best])) best = s;
    }
    return best;
}

/* Fills the window with the next `wanted` stages, and one more if the last one is in a composite with
 * another. Returns their number. */
static int look_ahead(Window *w) {
    int n = 0;
    for (int k = 0; k < w->stages; k++) w->inside[w->owned[k]] = false;
    for (int s; (s = first_outside(w)) >= 0; n++) {
        bool second =
            n > 0 && w->next[s] == w->next[w->window[n - 1]] + 1 && w->from->cells[w->next[s] - 1].overlap;
        if (n >= w->wanted && !second) break;
        w->inside[s] = true;
        w->window[n] = s;
    }
    return n;
}

/* RESHARD comes before UNSHARD, so that no more parameters are held than the window has. */
static void move_window(Window *w, Order *to) {
    int n = look_ahead(w);
    for (int k = 0; k < w->stages; k++) {
        int s = w->owned[k];
        if (!w->resident[s] || w->inside[s]) continue;
        add(to, CELL_RESHARD, s, -1);
        w->resident[s] = false;
    }
    for (int k = 0; k < n; k++) {
        if (w->resident[w->window[k]]) continue;
        add(to, CELL_UNSHARD, w->window[k], -1);
        w->resident[w->window[k]] = true;
    }
}

/* Adds a cell. Returns whether it is the last wgrad of its stage. */
static bool take(Window *w, int index, Order *to) {
    Cell cell = w->from->cells[index];
    order_add(to, cell);
    if (!cell_is_compute(cell.kind)) return false;
    w->next[cell.stage] = w->following[index];
    return (cell.kind == CELL_B || cell.kind == CELL_W) && --w->weights[cell.stage] == 0;
}

static void add_parameters(Window *w, Order *to) {
    find_uses(w);
    for (int i = 0; i < w->count; i++) {
        Cell cell = w->from->cells[i];
        if (cell_is_compute(cell.kind)) move_window(w, to);
        if (take(w, i, to)) add(to, CELL_REDUCE_GRAD, cell.stage, -1);
        if (!cell.overlap) continue;
        i++;
        if (take(w, i, to)) add(to, CELL_REDUCE_GRAD, w->from->cells[i].stage, -1);
    }
    for (int k = 0; k < w->stages; k++)
        if (w->resident[w->owned[k]]) add(to, CELL_RESHARD, w->owned[k], -1);
}

static int find_owned(const Schedule *s, int rank, int *owned) {
    int n = 0;
    for (int i = 0; i < s->stages; i++)
        if (s->rank_of_stage[i] == rank) owned[n++] = i;
    return n;
}

/* Rewrites the order; the window reads the old cells until that is done. */
static void lower_rank(Schedule *s, int rank, int active) {
    Order from = s->orders[rank];
    size_t stages = (size_t)s->stages;
    int *owned = mem_alloc_array(stages, sizeof *owned);
    Window w = {.from = &from, .count = from.count, .wanted = active, .owned = owned};
    w.stages = find_owned(s, rank, owned);
    w.next = mem_alloc_array(stages, sizeof *w.next);
    w.following = mem_alloc_array((size_t)from.count, sizeof *w.following);
    w.weights = mem_alloc_array(stages, sizeof *w.weights);
    w.resident = mem_alloc_array(stages, sizeof *w.resident);
    w.inside = mem_alloc_array(stages, sizeof *w.inside);
    w.window = mem_alloc_array(stages, sizeof *w.window);
    s->orders[rank] = (Order){0};
    add_parameters(&w, &s->orders[rank]);
    free(from.cells);
    free(owned);
    free(w.next);
    free(w.following);
    free(w.weights);
    free(w.resident);
    free(w.inside);
    free(w.window);
}

void schedule_add_parameters(Schedule *s, int active) {
    CHECK(active >= 1);
    if (schedule_has_parameters(s)) return;
    for (int r = 0; r < s->ranks; r++) lower_rank(s, r, active);
}

/* The sequential construction of transfers. forward and backward mark the computed (stage, microbatch)
 * pairs. */
typedef struct Sweep {
    const Schedule *s;
    int *at;    /* [ranks] next cell */
    Order *out; /* [ranks] */
    bool *forward, *backward;
} Sweep;

static bool is_ready(const Sweep *w, Cell cell) {
    switch (cell.kind) {
    case CELL_F: return cell.stage == 0 || w->forward[schedule_pair(w->s, cell.stage - 1, cell.microbatch)];
    case CELL_I:
    case CELL_B:
        return cell.stage == w->s->stages - 1 ||
               w->backward[schedule_pair(w->s, cell.stage + 1, cell.microbatch)];
    case CELL_IDLE:
    case CELL_W:
    case CELL_SEND_F:
    case CELL_RECV_F:
    case CELL_SEND_B:
    case CELL_RECV_B:
    case CELL_UNSHARD:
    case CELL_RESHARD:
    case CELL_REDUCE_GRAD:
    case CELL_KINDS: break; /* need nothing from another stage */
    }
    return true;
}

/* Adds the send of a cell's output together with the receive on the other side: that makes one global order
 * of transfers. */
static void add_transfer(Sweep *w, int rank, Cell cell) {
    bool forward = cell.kind == CELL_F;
    if (!forward && cell.kind != CELL_I && cell.kind != CELL_B) return;
    (forward ? w->forward : w->backward)[schedule_pair(w->s, cell.stage, cell.microbatch)] = true;
    int other = cell.stage + (forward ? 1 : -1);
    if (!schedule_is_remote(w->s, cell.stage, forward ? 1 : -1)) return;
    add(&w->out[rank], forward ? CELL_SEND_F : CELL_SEND_B, cell.stage, cell.microbatch);
    add(&w->out[w->s->rank_of_stage[other]], forward ? CELL_RECV_F : CELL_RECV_B, other, cell.microbatch);
}

/* Advances a rank by its next cell, or composite, if it is ready. */
static bool take_turn(Sweep *w, int rank) {
    const Order *o = &w->s->orders[rank];
    int first = w->at[rank];
    if (first == o->count) return false;
    int last = first + o->cells[first].overlap;
    for (int i = first; i <= last; i++)
        if (!is_ready(w, o->cells[i])) return false;
    for (int i = first; i <= last; i++) order_add(&w->out[rank], o->cells[i]);
    for (int i = first; i <= last; i++) add_transfer(w, rank, o->cells[i]);
    w->at[rank] = last + 1;
    return true;
}

/* Visits the ranks repeatedly until none advances. Every cell is then done, since the schedule was run to its
 * end before. */
static void sweep_all(Sweep *w) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < w->s->ranks; r++) moved |= take_turn(w, r);
    }
    for (int r = 0; r < w->s->ranks; r++) CHECK(w->at[r] == w->s->orders[r].count);
}

/* A schedule that passes schedule_check can be run to its end, so the sweep ends too. */
ErrorCode schedule_add_transfers(Schedule *s, Error *err) {
    TRY(schedule_check(s, err));
    if (schedule_has_transfers(s)) return OK;
    size_t pairs = (size_t)s->stages * (size_t)s->microbatches;
    Sweep w = {.s = s};
    w.at = mem_alloc_array((size_t)s->ranks, sizeof *w.at);
    w.out = mem_alloc_array((size_t)s->ranks, sizeof *w.out);
    w.forward = mem_alloc_array(pairs, sizeof *w.forward);
    w.backward = mem_alloc_array(pairs, sizeof *w.backward);
    sweep_all(&w);
    for (int r = 0; r < s->ranks; r++) free(s->orders[r].cells);
    free(s->orders);
    s->orders = w.out;
    free(w.at);
    free(w.forward);
    free(w.backward);
    return OK;
}
