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
 * priorities here. The passes are listed in the order of time, at the costs of F, I and W. A rank that is
 * free takes, of the passes whose input is there and whose activations stay within the limit, the one that
 * is due first in the block, and a wgrad if there is none. That fills warm-up and cool-down as well as the
 * steady state, for any limit and any costs. Times are whole numbers, so all ranks find the same order.
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

enum {
    LOW,
    HIGH,
    PASSES = 6,
    PERIOD = 6,
    MOST_WAITING = 2,
    UNITS = 60, /* of time in F, I and W together */
    SLOTS = 64  /* more than any of them */
};
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
    const int *costs;               /* [CELL_W + 1] */
    Block block;
    Order *orders;           /* [ranks], or NULL: only the length is wanted */
    int (*done)[CELL_W + 1]; /* [stages] microbatches, by kind */
    int *running;            /* [ranks] pass, or PASSES */
    int *awake;              /* [ranks] that may find a pass now */
    int awake_count;
    bool *is_awake;   /* [ranks] */
    int first[SLOTS]; /* rank whose pass ends at this time modulo SLOTS, or -1 */
    int *after;       /* [ranks] another one with the same end, or -1 */
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
    if (rank < 0 || rank >= v->ranks || v->is_awake[rank]) return;
    v->is_awake[rank] = true;
    v->awake[v->awake_count++] = rank;
}

/* Begins the rank's next pass, if there is one. */
static void begin(VRun *v, int rank, int64_t now) {
    int pass = choose(v, rank);
    v->running[rank] = pass;
    if (pass == PASSES) return;
    CellKind kind = passes[pass].kind;
    int stage = stage_of(v, rank, passes[pass].chunk), *slot = &v->first[(now + v->costs[kind]) % SLOTS];
    if (v->orders) order_add(&v->orders[rank], (Cell){kind, stage, v->done[stage][kind], false});
    v->after[rank] = *slot;
    *slot = rank;
}

/* Ends the passes of this moment, then lets all free ranks choose by what is done. A choice depends on a
 * rank's own stages and those next to them. Returns how many passes ended. */
static int advance(VRun *v, int64_t now) {
    int ended = 0, next;
    for (int rank = v->first[now % SLOTS]; rank >= 0; rank = next, ended++) {
        next = v->after[rank];
        v->done[stage_of(v, rank, passes[v->running[rank]].chunk)][passes[v->running[rank]].kind]++;
        v->running[rank] = PASSES;
        for (int r = rank - 1; r <= rank + 1; r++) wake(v, r);
    }
    v->first[now % SLOTS] = -1;
    for (int i = 0; i < v->awake_count; i++) {
        v->is_awake[v->awake[i]] = false;
        if (v->running[v->awake[i]] == PASSES) begin(v, v->awake[i], now);
    }
    v->awake_count = 0;
    return ended;
}

static void start(VRun *v) {
    size_t ranks = (size_t)v->ranks;
    v->done = mem_alloc_array(2 * ranks, sizeof *v->done);
    v->running = mem_alloc_array(ranks, sizeof *v->running);
    v->awake = mem_alloc_array(ranks, sizeof *v->awake);
    v->is_awake = mem_alloc_array(ranks, sizeof *v->is_awake);
    v->after = mem_alloc_array(ranks, sizeof *v->after);
    for (int i = 0; i < SLOTS; i++) v->first[i] = -1;
    for (int r = 0; r < v->ranks; r++) {
        v->running[r] = PASSES;
        wake(v, r);
    }
}

/* Returns the units of time until all is done. */
static int64_t run(VRun v) {
    int64_t left = (int64_t)PASSES * v.ranks * v.microbatches, now = 0, last = 0;
    start(&v);
    for (; left > 0; now++) {
        int ended = advance(&v, now);
        left -= ended;
        if (ended) last = now;
        CHECK(now - last < SLOTS);
    }
    free(v.done);
    free(v.running);
    free(v.awake);
    free(v.is_awake);
    free(v.after);
    return last;
}

/* Whole numbers that add up to about UNITS, each at least 1. Equal costs are 1 each. */
static void round_costs(const double cost[3], int out[CELL_W + 1]) {
    double sum = cost[0] + cost[1] + cost[2];
    bool equal = cost[0] == cost[1] && cost[1] == cost[2];
    for (int i = 0; i < 3; i++) {
        double part = equal ? 1 : cost[i] / sum * UNITS;
        out[CELL_F + i] = part < 1 ? 1 : (int)(part + 0.5);
    }
}

/* Which block is best depends on P, the limit and the costs, so several are tried, on as many microbatches as
 * show the steady state. */
void schedule_make_v(Schedule *s, int limit, const double cost[3]) {
    static const Block blocks[] = {{1, 0}, {1, 3}, {1, 5}, {2, 0}, {2, 3}, {2, 5}, {3, 0}, {3, 3}, {3, 5}};
    int costs[CELL_W + 1] = {0};
    round_costs(cost, costs);
    VRun v = {.ranks = s->ranks, .microbatches = s->microbatches, .limit = limit, .costs = costs};
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
