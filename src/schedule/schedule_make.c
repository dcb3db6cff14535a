/* The compute orders of the named schedules.
 *
 * Each rank's order is made by itself. An OrderBuilder counts, for every (chunk, kind), which microbatch
 * comes next, so rules can be written as "two forwards of the low stage, then ...". Chunk c of a rank is
 * its c-th stage from below; `w` is the length of the warm-up. The papers are listed in schedule.h.
 *
 *     stages of 3 ranks     one each: 0 1 2     looped: 0 1 2 / 3 4 5     V: 0 1 2 / 5 4 3
 *
 *     1F1B, rank 0 of 3     F0 F1 F2 B0 F3 B1 F4 B2 ...     as many forwards ahead as there are ranks behind
 *     ZB-H1                 B becomes I and W: I keeps the others going, W fills what would be idle
 *
 * schedule_v.c makes a V under a limit of activations: all ranks at once, without a closed form.
 *
 * Closed forms and phases follow the papers; cells of microbatches that do not exist are left out. Tests
 * verify every order with schedule_check and the simulator. */
#include "schedule/schedule.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/schedule_internal.h"

#define MAX_PAIRS ((int64_t)1 << 22) /* (stage, microbatch) */

typedef struct OrderBuilder {
    Order *order;
    int ranks, rank, microbatches, chunks; /* P, r, m, v; each segment is a microbatch */
    int segments;
    bool v;
    int next[2][CELL_B + 1];     /* of the V schedules: next microbatch of (chunk, kind) */
    Cell *queue;                 /* delayed wgrads */
    int queue_first, queue_last; /* [first, last) */
} OrderBuilder;

static int min_int(int a, int b) { return a < b ? a : b; }
static int max_int(int a, int b) { return a > b ? a : b; }

/* In a V every second lap runs backwards: the last rank has two consecutive stages. */
static int rank_of(bool v, int ranks, int stage) {
    int lap = stage / ranks, place = stage % ranks;
    return v && lap % 2 ? ranks - 1 - place : place;
}

static int stage_of(const OrderBuilder *k, int chunk) {
    return chunk * k->ranks + (k->v && chunk % 2 ? k->ranks - 1 - k->rank : k->rank);
}

/* Leaves out cells of microbatches that do not exist: the closed forms and ZBV rely on this at their ends. */
static void emit(OrderBuilder *k, CellKind kind, int chunk, int microbatch) {
    if (microbatch < 0 || microbatch >= k->microbatches) return;
    order_add(k->order, (Cell){kind, stage_of(k, chunk), microbatch, false});
}

/* The i-th backward of a rank: microbatches ascend, and the segments of each descend. */
static void emit_backward_of(OrderBuilder *k, int i) {
    emit(k, CELL_B, 0, i / k->segments * k->segments + k->segments - 1 - i % k->segments);
}

/* GPipe is LoopedBFS with one stage a rank, except that its backwards ascend. */
static void make_gpipe(OrderBuilder *k) {
    for (int i = 0; i < k->microbatches; i++) emit(k, CELL_F, 0, i);
    for (int i = 0; i < k->microbatches; i++) emit_backward_of(k, i);
}

/* Rank r runs P - 1 - r forwards ahead of its backwards: that is when the first gradient can arrive. With k
 * segments k - 1 more, because the first backward is that of a microbatch's last segment. */
static void make_1f1b(OrderBuilder *k) {
    int w = min_int(k->microbatches, k->ranks - 1 - k->rank + k->segments - 1);
    for (int i = 0; i < w; i++) emit(k, CELL_F, 0, i);
    for (int i = 0; i < k->microbatches; i++) {
        emit(k, CELL_F, 0, w + i);
        emit_backward_of(k, i);
    }
}

/* All forwards of a chunk, then those of the next. Backwards go the other way, microbatches too: the last
 * output is consumed first. */
static void make_looped_bfs(OrderBuilder *k) {
    for (int c = 0; c < k->chunks; c++)
        for (int i = 0; i < k->microbatches; i++) emit(k, CELL_F, c, i);
    for (int c = k->chunks - 1; c >= 0; c--)
        for (int i = k->microbatches - 1; i >= 0; i--) emit(k, CELL_B, c, i);
}

/* Microbatches in a round of the interleaved schedules; 0 where rounds would not be equal. */
static int round_size(int ranks, int microbatches) {
    int rounds = max_int(1, microbatches / ranks);
    return microbatches % rounds ? 0 : microbatches / rounds;
}

/* The n-th forward or backward of a rank: rounds of R microbatches go through all chunks, for backwards in
 * descending order. */
static void emit_interleaved(OrderBuilder *k, CellKind kind, int n) {
    int size = round_size(k->ranks, k->microbatches);
    if (n < 0 || n >= k->chunks * k->microbatches) return;
    int chunk = n / size % k->chunks;
    emit(k, kind, kind == CELL_F ? chunk : k->chunks - 1 - chunk, n / (size * k->chunks) * size + n % size);
}

/* The warm-up is a round for each chunk but the last, and two forwards for each rank behind: one for the way
 * up and one for the way back. */
static void make_interleaved_1f1b(OrderBuilder *k) {
    int all = k->chunks * k->microbatches, size = round_size(k->ranks, k->microbatches);
    int w = min_int(all, (k->chunks - 1) * size + 2 * (k->ranks - 1 - k->rank));
    for (int n = 0; n < w; n++) emit_interleaved(k, CELL_F, n);
    for (int n = 0; n < all; n++) {
        emit_interleaved(k, CELL_F, w + n);
        emit_interleaved(k, CELL_B, n);
    }
}

/* Half the warm-up, with wgrads delayed by r backwards. */
static void make_interleaved_zero_bubble(OrderBuilder *k) {
    int all = k->chunks * k->microbatches, size = round_size(k->ranks, k->microbatches);
    int w = min_int(all, (k->chunks - 1) * size + k->ranks - 1 - k->rank);
    for (int n = 0; n < w; n++) emit_interleaved(k, CELL_F, n);
    for (int n = 0; n < all + k->rank; n++) {
        emit_interleaved(k, CELL_F, w + n);
        emit_interleaved(k, CELL_I, n);
        emit_interleaved(k, CELL_W, n - k->rank);
    }
}

/* ZB-H1 with pace 1, ZB-H2 with pace 2: dgrad of x is delayed by pace (P-1-r) forwards, its wgrad by pace
 * (P-1). So all ranks compute wgrads when they would otherwise be idle. Pace 2 keeps about twice as many
 * activations and closes that gap too. */
static void make_zb(OrderBuilder *k, int pace) {
    int last = k->microbatches + pace * (k->ranks - 1);
    for (int x = 0; x < last; x++) {
        emit(k, CELL_F, 0, x);
        emit(k, CELL_I, 0, x - pace * (k->ranks - 1 - k->rank));
        emit(k, CELL_W, 0, x - pace * (k->ranks - 1));
    }
}

enum { LOW = 0, HIGH = 1 }; /* the two stages of a rank in a V */

static void emit_next(OrderBuilder *k, CellKind kind, int chunk) {
    emit(k, kind, chunk, k->next[chunk][kind]++);
}

static void emit_split(OrderBuilder *k, int chunk) {
    emit_next(k, CELL_I, chunk);
    emit_next(k, CELL_W, chunk);
}

/* ZBV from its third phase until no forward is left, for n microbatches of which some may not exist. */
static void make_zbv_middle(OrderBuilder *k, int n) {
    for (int i = 0; i < k->ranks - k->rank; i++) {
        emit_next(k, CELL_F, HIGH);
        emit_split(k, HIGH);
    }
    while (k->next[LOW][CELL_F] < n || k->next[HIGH][CELL_F] < n) {
        if (k->next[LOW][CELL_F] < n) emit_next(k, CELL_F, LOW);
        emit_split(k, LOW);
        emit_next(k, CELL_F, HIGH);
        emit_split(k, HIGH);
    }
}

/* Two stages a rank, down and up again: the first rank on the way down is the last on the way up, so
 * activations live equally long on all ranks. With too few microbatches to fill the V, `n` is larger than
 * their number. */
static void make_zbv(OrderBuilder *k) {
    int n = max_int(k->microbatches, 2 * k->ranks - 1);
    for (int i = 0; i < 2 * (k->ranks - k->rank) - 1; i++) emit_next(k, CELL_F, LOW);
    for (int i = 0; i < k->rank; i++) {
        emit_next(k, CELL_F, HIGH);
        emit_next(k, CELL_F, LOW);
    }
    make_zbv_middle(k, n);
    for (int i = 0; i < k->rank; i++) {
        emit_next(k, CELL_I, LOW);
        emit_next(k, CELL_I, HIGH);
    }
    for (int i = 0; i < k->ranks - k->rank; i++) emit_split(k, LOW);
    while (k->next[HIGH][CELL_W] < n) emit_next(k, CELL_W, HIGH);
    while (k->next[LOW][CELL_W] < n) emit_next(k, CELL_W, LOW);
}

/* DualPipeV counts full backwards and dgrads together. */
static void emit_backward(OrderBuilder *k, int chunk) { emit(k, CELL_B, chunk, k->next[chunk][CELL_B]++); }

/* Delays the wgrad: it stays in the queue until there is a gap. */
static void emit_input(OrderBuilder *k, int chunk) {
    int microbatch = k->next[chunk][CELL_B]++;
    emit(k, CELL_I, chunk, microbatch);
    k->queue[k->queue_last++] = (Cell){CELL_W, stage_of(k, chunk), microbatch, false};
}

static void emit_queued(OrderBuilder *k) {
    CHECK(k->queue_first < k->queue_last);
    order_add(k->order, k->queue[k->queue_first++]);
}

static void emit_overlapped(OrderBuilder *k, int forward, int backward) {
    emit_next(k, CELL_F, forward);
    k->order->cells[k->order->count - 1].overlap = true;
    emit_backward(k, backward);
}

/* Phases 1 to 3 fill the V. */
static void make_dualpipev_start(OrderBuilder *k) {
    int after = k->ranks - 1 - k->rank;
    for (int i = 0; i < 2 * after; i++) emit_next(k, CELL_F, LOW);
    for (int i = 0; i < k->rank + 1; i++) {
        emit_next(k, CELL_F, LOW);
        emit_next(k, CELL_F, HIGH);
    }
    for (int i = 0; i < after; i++) {
        emit_input(k, HIGH);
        emit_queued(k);
        emit_next(k, CELL_F, HIGH);
    }
}

/* Phases 4 and 5 are pairs. At the bottom of the V the two stages of the first pair depend on each other. */
static void make_dualpipev_pairs(OrderBuilder *k) {
    int after = k->ranks - 1 - k->rank;
    for (int i = 0; i < k->microbatches - 2 * k->ranks + k->rank + 1; i++) {
        if (i == 0 && after == 0) {
            emit_next(k, CELL_F, LOW);
            emit_backward(k, HIGH);
        } else {
            emit_overlapped(k, LOW, HIGH);
        }
        emit_overlapped(k, HIGH, LOW);
    }
    for (int i = 0; i < after; i++) {
        emit_backward(k, HIGH);
        emit_overlapped(k, HIGH, LOW);
    }
}

/* Phases 6 to 8 drain the V; from the middle of phase 6 on, wgrads fill the gaps. */
static void make_dualpipev_end(OrderBuilder *k) {
    int whole = 2 * ((k->rank + 1) / 2) + (k->rank % 2 ? 0 : 1);
    for (int half = 0; half < 2 * (k->rank + 1); half++)
        (half < whole ? emit_backward : emit_input)(k, half % 2 ? LOW : HIGH);
    for (int i = 0; i < k->ranks - 1 - k->rank; i++) {
        emit_queued(k);
        emit_input(k, LOW);
    }
    for (int i = 0; i < k->rank + 1; i++) emit_queued(k);
    CHECK(k->queue_first == k->queue_last);
}

static void make_dualpipev(OrderBuilder *k) {
    k->queue = mem_alloc_array(2 * (size_t)k->microbatches, sizeof *k->queue);
    make_dualpipev_start(k);
    make_dualpipev_pairs(k);
    make_dualpipev_end(k);
    free(k->queue);
}

/* No default case: the compiler then warns about a new name without an order. */
static void make_rank(OrderBuilder *k, ScheduleName name) {
    switch (name) {
    case PIPE_GPIPE: make_gpipe(k); break;
    case PIPE_1F1B: make_1f1b(k); break;
    case PIPE_LOOPED_BFS: make_looped_bfs(k); break;
    case PIPE_INTERLEAVED_1F1B: make_interleaved_1f1b(k); break;
    case PIPE_ZB_H1: make_zb(k, 1); break;
    case PIPE_ZB_H2: make_zb(k, 2); break;
    case PIPE_INTERLEAVED_ZERO_BUBBLE: make_interleaved_zero_bubble(k); break;
    case PIPE_ZBV: make_zbv(k); break;
    case PIPE_V_MIN:
    case PIPE_V_HALF: break; /* by schedule_make_v */
    case PIPE_DUALPIPEV: make_dualpipev(k); break;
    case PIPE_NAMES: break;
    }
}

/* Only looped schedules have a choice of chunks. */
ErrorCode schedule_check_stages_per_rank(ScheduleName name, int chunks, Error *err) {
    bool any =
        name == PIPE_LOOPED_BFS || name == PIPE_INTERLEAVED_1F1B || name == PIPE_INTERLEAVED_ZERO_BUBBLE;
    int wanted = schedule_default_stages_per_rank(name);
    if (any || chunks == wanted) return OK;
    return error_set(err, ERR_CONFIG,
                     "schedule %s has %d stage%s a rank, not %d; looped_bfs, interleaved_1f1b and "
                     "interleaved_zero_bubble take any number",
                     schedule_name(name), wanted, wanted == 1 ? "" : "s", chunks);
}

/* The interleaved schedules need rounds of equal size. */
static ErrorCode check_rounds(ScheduleName name, int ranks, int microbatches, Error *err) {
    if (round_size(ranks, microbatches)) return OK;
    int below = microbatches, above = microbatches;
    while (!round_size(ranks, below)) below--;
    while (!round_size(ranks, above)) above++;
    return error_set(err, ERR_CONFIG,
                     "schedule %s cuts the microbatches into %d equal rounds (microbatches / %d ranks): %d "
                     "do not divide; %d or %d would",
                     schedule_name(name), max_int(1, microbatches / ranks), ranks, microbatches, below,
                     above);
}

/* Each product is bounded before it is computed. */
static ErrorCode check_numbers(ScheduleName name, int ranks, int microbatches, int chunks, Error *err) {
    if (ranks < 1 || microbatches < 1 || chunks < 1)
        return error_set(
            err, ERR_CONFIG,
            "schedule %s with %d ranks, %d microbatches, %d stages a rank: each must be 1 or more",
            schedule_name(name), ranks, microbatches, chunks);
    if (ranks > MAX_PAIRS || chunks > MAX_PAIRS / ranks ||
        microbatches > MAX_PAIRS / ((int64_t)ranks * chunks))
        return error_set(
            err, ERR_CONFIG,
            "schedule %s with %d ranks, %d microbatches, %d stages a rank: their product may be up to %lld",
            schedule_name(name), ranks, microbatches, chunks, (long long)MAX_PAIRS);
    TRY(schedule_check_stages_per_rank(name, chunks, err));
    if (name == PIPE_DUALPIPEV && microbatches < 2 * ranks)
        return error_set(
            err, ERR_CONFIG,
            "schedule %s on %d ranks needs %d microbatches or more, not %d; zbv takes any number",
            schedule_name(name), ranks, 2 * ranks, microbatches);
    if (name == PIPE_INTERLEAVED_1F1B || name == PIPE_INTERLEAVED_ZERO_BUBBLE)
        return check_rounds(name, ranks, microbatches, err);
    return OK;
}

ErrorCode schedule_check_limit(ScheduleName name, double activations, Error *err) {
    if (activations == 0 || schedule_takes_limit(name)) return OK;
    return error_set(
        err, ERR_CONFIG,
        "schedule %s has no limit of activations that can be set (%g): zbv has; v_half keeps about "
        "half of what 1f1b keeps, v_min a third",
        schedule_name(name), activations);
}

/* The limit of schedule_make_v, or 0 for an order by closed form. The paper's numbers of microbatches for
 * V-Min and V-Half, times two stages. */
static ErrorCode find_limit(ScheduleName name, int ranks, double activations, int *limit, Error *err) {
    *limit = name == PIPE_V_MIN ? 2 * ((ranks + 4) / 3) : name == PIPE_V_HALF ? 2 * ((ranks + 2) / 2) : 0;
    TRY(schedule_check_limit(name, activations, err));
    if (activations == 0) return OK;
    *limit = (int)(2 * ranks * activations + 1e-9); /* 1 / 3 of 6 is 2 */
    if (*limit < 2)
        return error_set(
            err, ERR_CONFIG,
            "schedule %s with %g of the activations of 1f1b, %d microbatches on %d ranks: that is "
            "less than the one microbatch that a rank works on; %.3g would do",
            schedule_name(name), activations, ranks, ranks, 1.0 / ranks);
    return OK;
}

ErrorCode schedule_check_segments(ScheduleName name, int segments, Error *err) {
    if (segments == 1 || schedule_takes_segments(name)) return OK;
    return error_set(err, ERR_CONFIG,
                     "schedule %s does not cut microbatches into segments (%d): 1f1b and gpipe do",
                     schedule_name(name), segments);
}

static void make_orders(Schedule *s, ScheduleName name, int stages_per_rank) {
    for (int r = 0; r < s->ranks; r++) {
        OrderBuilder k = {.order = &s->orders[r],
                          .ranks = s->ranks,
                          .rank = r,
                          .microbatches = s->microbatches,
                          .chunks = stages_per_rank,
                          .segments = s->segments,
                          .v = schedule_is_v(name)};
        make_rank(&k, name);
    }
}

ErrorCode schedule_make_on(Schedule *s, ScheduleName name, int ranks, int microbatches, int stages_per_rank,
                           const OrderTerms *terms, Error *err) {
    int limit, segments = max_int(1, terms->segments);
    *s = (Schedule){0};
    TRY(schedule_check_segments(name, segments, err));
    if (microbatches > INT_MAX / segments) microbatches = INT_MAX / segments; /* refused below */
    microbatches *= segments;
    TRY(check_numbers(name, ranks, microbatches, stages_per_rank, err));
    TRY(find_limit(name, ranks, terms->activations, &limit, err));
    schedule_start(s, schedule_name(name), ranks);
    schedule_place(s, ranks * stages_per_rank);
    s->microbatches = microbatches, s->segments = segments;
    s->split_backward = schedule_splits_backward(name);
    for (int i = 0; i < s->stages; i++) s->rank_of_stage[i] = rank_of(schedule_is_v(name), ranks, i);
    if (limit)
        schedule_make_v(s, limit, terms->cost);
    else
        make_orders(s, name, stages_per_rank);
    return OK;
}

ErrorCode schedule_make(Schedule *s, ScheduleName name, int ranks, int microbatches, int stages_per_rank,
                        Error *err) {
    return schedule_make_on(s, name, ranks, microbatches, stages_per_rank, &(OrderTerms){0}, err);
}
