/* Orders of V schedules under a limit of activations (Qi et al., 2024: V-Min, V-Half).
 *
 * The paper repeats a building block: the times of one microbatch's F and I on each rank, every 6 units, with
 * wgrads in the gaps. A microbatch goes down the V, up, and back; a stage keeps its activations for the time
 * between, so the way down may be slow only if there is memory for it:
 *
 *     rank 0  F0 . . . . . . . . F1 I1 . . . . . . . . . . I0      F0 down: `spacing` units from rank to rank
 *     rank 1  .  . F0 . . . . F1 .  .  . I1 . . . . . . I0 .       F1 up: 1 unit
 *     rank 2  .  . .  . F0 F1 .  .  .  . .  .  I1 . I0 .  .        I1 down: `spacing`; I0 up: 1
 *
 * Spacing 2 is V-Half (a peak of P/2 + 1 microbatches), spacing 1 V-Min (about P/3 + 1). The block only gives
 * priorities here. All ranks advance together in units of one pass: each takes the passes whose input is
 * there, the one that is due first in the block, as long as its activations stay within the limit, and a
 * wgrad if there is none. That fills warm-up and cool-down as well as the steady state, for any limit.
 *
 * Between I and W a stage keeps what wgrad reads: with the gradients of all outputs that is more than between
 * F and I, and with recompute several times as much. So no more than two wgrads of a rank wait.
 *
 * Of the limit, the forwards of the low stage leave places for the high one: activations of the low stage are
 * only freed by passes that come after those of the high stage. One place is enough to go on, so a run always
 * ends: all that precedes the oldest microbatch is done, and nothing of a later one fills the last place. */
#include <stdlib.h>

#include "schedule/schedule.h"
#include "schedule/schedule_internal.h"

enum { LOW, HIGH, PASSES = 6, PERIOD = 6, MOST_WAITING = 2 };
#define LATER ((int64_t)1 << 40) /* than any F or I */

/* The passes of a rank for one microbatch. */
static const struct {
    CellKind kind;
    int chunk;
} passes[PASSES] = {{CELL_F, LOW}, {CELL_F, HIGH}, {CELL_I, HIGH},
                    {CELL_I, LOW}, {CELL_W, HIGH}, {CELL_W, LOW}};

typedef struct Block {
    int spacing;
    int rounding; /* of the places for the high stage, in sixths */
} Block;

typedef struct VRun {
    int ranks, microbatches, limit; /* limit: stages of microbatches */
    Block block;
    Order *orders;           /* [ranks], or NULL: only the length is wanted */
    int (*done)[CELL_W + 1]; /* [stages] microbatches, by kind */
    int *chosen;             /* [ranks] pass of this unit, or PASSES */
    int *awake, *next; /* [ranks] whose choice may differ from the last unit's; those of the next unit */
    int next_count;
    bool *waiting; /* [ranks] in next */
} VRun;

static int stage_of(const VRun *v, int rank, int chunk) {
    return chunk == LOW ? rank : 2 * v->ranks - 1 - rank;
}

/* Activations of a stage, kept from F to W. */
static int kept(const VRun *v, int stage) { return v->done[stage][CELL_F] - v->done[stage][CELL_W]; }

/* The activations of the high stage live for spacing + 1 units more on each further rank. */
static int low_limit(const VRun *v, int rank) {
    int places = 1 + (rank * (v->block.spacing + 1) + v->block.rounding) / PERIOD;
    return v->limit - places > 1 ? v->limit - places : 1;
}

/* The wgrads of a rank whose dgrads are done. */
static int waiting_wgrads(const VRun *v, int rank) {
    int high = stage_of(v, rank, HIGH);
    return v->done[rank][CELL_I] - v->done[rank][CELL_W] + v->done[high][CELL_I] - v->done[high][CELL_W];
}

/* Time of a pass in the repeated block. The shift keeps a rank's passes apart modulo the period. Wgrads come
 * after all others, or before them when many wait, in the order of their dgrads. */
static int64_t due(const VRun *v, int rank, int pass, int microbatch) {
    int d = v->block.spacing, P = v->ranks;
    int shift = d == 1 ? (P % 3 ? 0 : 2) : P % 2 ? -1 : 2;
    int64_t delay = passes[pass].kind != CELL_W ? 0 : waiting_wgrads(v, rank) < MOST_WAITING ? LATER : -LATER;
    int64_t at[] = {(int64_t)d * rank, (int64_t)(d + 1) * P - d - rank,
                    (int64_t)(d + 1) * P + shift + (int64_t)d * rank,
                    2 * (int64_t)(d + 1) * P + shift - d - rank};
    return delay + at[delay ? pass - 2 : pass] + (int64_t)PERIOD * microbatch;
}

/* Whether the input of a rank's next pass of this kind is there, and its activations have room. */
static bool may_run(const VRun *v, int rank, int pass) {
    int chunk = passes[pass].chunk, stage = stage_of(v, rank, chunk), last = 2 * v->ranks - 1;
    CellKind kind = passes[pass].kind;
    int next = v->done[stage][kind];
    if (next >= v->microbatches) return false;
    if (kind == CELL_W) return v->done[stage][CELL_I] > next;
    if (kind == CELL_I)
        return v->done[stage][CELL_F] > next && (stage == last || v->done[stage + 1][CELL_I] > next);
    if (stage > 0 && v->done[stage - 1][CELL_F] <= next) return false;
    int low = kept(v, rank), all = low + kept(v, last - rank);
    return all < v->limit && (chunk == HIGH || low < low_limit(v, rank));
}

/* The pass of a rank that is due first; PASSES: none may run. */
static int choose(const VRun *v, int rank) {
    int best = PASSES;
    int64_t first = INT64_MAX;
    for (int pass = 0; pass < PASSES; pass++) {
        if (!may_run(v, rank, pass)) continue;
        int stage = stage_of(v, rank, passes[pass].chunk);
        int64_t time = due(v, rank, pass, v->done[stage][passes[pass].kind]);
        if (time < first) first = time, best = pass;
    }
    return best;
}

static void wake(VRun *v, int rank) {
    if (rank < 0 || rank >= v->ranks || v->waiting[rank]) return;
    v->waiting[rank] = true;
    v->next[v->next_count++] = rank;
}

/* A rank's choice depends on its own stages and those next to them. */
static void take(VRun *v, int rank) {
    CellKind kind = passes[v->chosen[rank]].kind;
    int stage = stage_of(v, rank, passes[v->chosen[rank]].chunk), microbatch = v->done[stage][kind]++;
    if (v->orders) order_add(&v->orders[rank], (Cell){kind, stage, microbatch, false});
    for (int r = rank - 1; r <= rank + 1; r++) wake(v, r);
}

/* One unit of time: all ranks choose by what was done before it. Returns the number of passes. */
static int advance(VRun *v) {
    int *awake = v->next, count = v->next_count, taken = 0;
    v->next = v->awake, v->awake = awake, v->next_count = 0;
    for (int i = 0; i < count; i++) {
        v->waiting[awake[i]] = false;
        v->chosen[awake[i]] = choose(v, awake[i]);
    }
    for (int i = 0; i < count; i++) {
        if (v->chosen[awake[i]] == PASSES) continue;
        take(v, awake[i]);
        taken++;
    }
    return taken;
}

/* Returns the units of time until all is done. */
static int64_t run(VRun v) {
    int64_t left = (int64_t)PASSES * v.ranks * v.microbatches, length = 0;
    size_t ranks = (size_t)v.ranks;
    v.done = mem_alloc_array(2 * ranks, sizeof *v.done);
    v.chosen = mem_alloc_array(ranks, sizeof *v.chosen);
    v.awake = mem_alloc_array(ranks, sizeof *v.awake);
    v.next = mem_alloc_array(ranks, sizeof *v.next);
    v.waiting = mem_alloc_array(ranks, sizeof *v.waiting);
    for (int r = 0; r < v.ranks; r++) wake(&v, r);
    for (; left > 0; length++) {
        int count = advance(&v);
        CHECK(count > 0);
        left -= count;
    }
    free(v.done);
    free(v.chosen);
    free(v.awake);
    free(v.next);
    free(v.waiting);
    return length;
}

/* Which block is best depends on P and the limit, so several are tried, on as many microbatches as show the
 * steady state. */
void schedule_make_v(Schedule *s, int limit) {
    static const Block blocks[] = {{1, 0}, {1, 3}, {1, 5}, {2, 0}, {2, 3}, {2, 5}};
    VRun v = {.ranks = s->ranks, .microbatches = s->microbatches, .limit = limit};
    int64_t least = INT64_MAX;
    if (v.microbatches > 4 * v.ranks) v.microbatches = 4 * v.ranks;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        VRun trial = v;
        trial.block = blocks[i];
        int64_t length = run(trial);
        if (length < least) least = length, v.block = blocks[i];
    }
    v.microbatches = s->microbatches;
    v.orders = s->orders;
    run(v);
}
