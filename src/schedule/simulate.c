/* Runs a schedule without a model.
 *
 * Each rank goes through its cells until one must wait. An event on one rank puts the ranks that may have
 * waited for it back into a queue, so the running time is proportional to the number of cells. The result
 * does not depend on the order of the queue, since every time is a function of final times. If the queue runs
 * empty before all orders end, ranks wait for each other in a cycle, and the error reports it.
 *
 *     rank 0   |F0|F1|F2|        |B0|F3|B1|         a cell starts when its rank is free (clock)
 *                 \               /                 and its data is there (made, sent and posted)
 *     rank 1       |F0|B0|F1|B1|
 *
 * Receives are posted where they stand in the order and waited for where their data is used, as in the
 * engine. Transfers are indexed by the (stage, microbatch) of the receiving side.
 *
 * There are three transports. EAGER: sends complete at once, and data arrives after the latency. RENDEZVOUS:
 * nothing moves before both sides are there, as with large messages. BLOCKING: receives stop their rank too.
 * A schedule that runs to its end under RENDEZVOUS cannot hang on real transports. */
#include "schedule/simulate.h"

#include <math.h>
#include <stdlib.h>

#include "schedule/schedule_internal.h"

#define NOT_YET (-1.0)

enum { FORWARD, BACKWARD, DIRECTIONS };

/* A pair is a (stage, microbatch), see schedule_pair. The arrays of transfers are empty where the schedule
 * has none; then data arrives a latency after it was made. */
typedef struct Run {
    const Schedule *s;
    Transport transport;
    const SimulateCosts *costs;
    Simulation *out;
    bool transfers; /* the schedule has transfers: data arrives only by them */
    int *at;        /* [ranks] next cell */
    double *clock;  /* [ranks] when the rank is free */
    int *live_input, *live_weight;
    double *made[DIRECTIONS];   /* [pairs] end of F, end of I or B */
    double *sent[DIRECTIONS];   /* [pairs] of the receiving stage: when the sender reached it */
    double *posted[DIRECTIONS]; /* [pairs] when the receiver reached it */
    int *queue;                 /* ring of ranks that may be able to advance */
    bool *queued;
    int queue_first, queue_count;
} Run;

/* NOT_YET is below every time, so a test for "has happened" is one comparison. */
static double *new_times(size_t count) {
    double *times = mem_alloc_array(count, sizeof *times);
    for (size_t i = 0; i < count; i++) times[i] = NOT_YET;
    return times;
}

/* A rank is in the queue at most once, so the ring needs only one entry a rank. */
static void wake(Run *run, int rank) {
    if (run->queued[rank]) return;
    run->queued[rank] = true;
    run->queue[(run->queue_first + run->queue_count++) % run->s->ranks] = rank;
}

static int pop(Run *run) {
    int rank = run->queue[run->queue_first];
    run->queue_first = (run->queue_first + 1) % run->s->ranks;
    run->queue_count--;
    run->queued[rank] = false;
    return rank;
}

/* For compute cells the stage that the data comes from, for transfers the stage on the other side. */
static int other_stage(Cell cell) {
    return cell.stage +
           (cell.kind == CELL_SEND_F || cell.kind == CELL_RECV_B || cell.kind == CELL_I || cell.kind == CELL_B
                ? 1
                : -1);
}

/* Activations go forward and gradients backward. Each has its own table, since a pair may have both in
 * flight. */
static int direction_of(CellKind kind) {
    return kind == CELL_F || kind == CELL_SEND_F || kind == CELL_RECV_F ? FORWARD : BACKWARD;
}

/* Time at which the data of a transfer is in place at the receiver, or NOT_YET. */
static double arrival(const Run *run, int direction, size_t pair) {
    if (run->sent[direction][pair] < 0 || run->posted[direction][pair] < 0) return NOT_YET;
    double begin = run->sent[direction][pair];
    if (run->transport != TRANSPORT_EAGER) begin = fmax(begin, run->posted[direction][pair]);
    return begin + run->costs->latency;
}

/* Time at which a compute cell has its data from other stages, or NOT_YET. Its own stage's data was computed
 * earlier on the same rank. */
static double ready_at(const Run *run, Cell cell) {
    const Schedule *s = run->s;
    int other = other_stage(cell), direction = direction_of(cell.kind);
    if (cell.kind == CELL_W || other < 0 || other >= s->stages) return 0;
    bool remote = s->rank_of_stage[other] != s->rank_of_stage[cell.stage];
    if (remote && run->transfers)
        return arrival(run, direction, schedule_pair(s, cell.stage, cell.microbatch));
    double end = run->made[direction][schedule_pair(s, other, cell.microbatch)];
    return end >= 0 && remote ? end + run->costs->latency : end;
}

/* A full backward pass may cost something other than dgrad plus wgrad, so a measured cost of it takes
 * precedence. */
static double cost_of(const Schedule *s, const SimulateCosts *costs, Cell cell) {
    int segment = costs->segments > 1 ? cell.microbatch % costs->segments : 0;
    const StageCost *c = costs->stages ? &costs->stages[segment * s->stages + cell.stage] : &costs->uniform;
    return cell.kind == CELL_B && costs->backward ? costs->backward[cell.stage] : stage_cost_of(c, cell.kind);
}

/* Counts live activations of (stage, microbatch): from F to I, and from F to W, whose operands live
 * longer. */
static void count_live(Run *run, int rank, CellKind kind) {
    RankTimes *t = &run->out->rank[rank];
    bool frees_input = kind == CELL_I || kind == CELL_B, frees_weight = kind == CELL_W || kind == CELL_B;
    run->live_input[rank] += (kind == CELL_F) - frees_input;
    run->live_weight[rank] += (kind == CELL_F) - frees_weight;
    if (run->live_input[rank] > t->peak_input) t->peak_input = run->live_input[rank];
    if (run->live_weight[rank] > t->peak_weight) t->peak_weight = run->live_weight[rank];
}

/* Records the end of a cell and wakes the rank that may wait for its result. Wgrad has no result for others.
 * If the schedule has transfers, they do the waking. */
static void finish(Run *run, int rank, int index, CellTime time) {
    const Schedule *s = run->s;
    Cell cell = s->orders[rank].cells[index];
    run->out->rank[rank].cells[index] = time;
    count_live(run, rank, cell.kind);
    if (cell.kind == CELL_W) return;
    int user = cell.stage + (cell.kind == CELL_F ? 1 : -1);
    run->made[direction_of(cell.kind)][schedule_pair(s, cell.stage, cell.microbatch)] = time.end;
    if (user >= 0 && user < s->stages && !run->transfers) wake(run, s->rank_of_stage[user]);
}

/* Runs a compute cell, or the two of a composite as one. False: it must wait. */
static bool step_compute(Run *run, int rank, int first) {
    const Order *o = &run->s->orders[rank];
    RankTimes *t = &run->out->rank[rank];
    int last = first + o->cells[first].overlap;
    double start = run->clock[rank], cost = 0;
    for (int i = first; i <= last; i++) {
        double ready = ready_at(run, o->cells[i]), part = cost_of(run->s, run->costs, o->cells[i]);
        if (ready < 0) return false;
        start = fmax(start, ready);
        cost = run->costs->overlap_is_max ? fmax(cost, part) : cost + part;
    }
    CellTime time = {start, start + cost};
    for (int i = first; i <= last; i++) finish(run, rank, i, time);
    /* Distinguishes idle time before the first and after the last cell from that between cells. */
    if (t->start < 0) t->start = time.start;
    t->end = time.end;
    t->busy += cost;
    run->clock[rank] = time.end;
    run->at[rank] = last + 1;
    return true;
}

/* Runs either side of a transfer. Reaching it wakes the other side. False: it must wait. */
static bool step_transfer(Run *run, int rank, int index) {
    const Schedule *s = run->s;
    Cell cell = s->orders[rank].cells[index];
    bool sends = cell.kind == CELL_SEND_F || cell.kind == CELL_SEND_B;
    int direction = direction_of(cell.kind), other = other_stage(cell);
    size_t pair = schedule_pair(s, sends ? other : cell.stage, cell.microbatch);
    double *mine = &(sends ? run->sent : run->posted)[direction][pair];
    if (*mine < 0) {
        *mine = run->clock[rank];
        wake(run, s->rank_of_stage[other]);
    }
    double arrived = arrival(run, direction, pair);
    bool waits = sends ? run->transport != TRANSPORT_EAGER
                       : run->transport == TRANSPORT_BLOCKING || run->costs->receive_blocks;
    if (waits && arrived < 0) return false;
    run->out->rank[rank].cells[index].start = run->clock[rank];
    if (waits) run->clock[rank] = fmax(run->clock[rank], arrived);
    run->at[rank] = index + 1;
    return true;
}

/* Whether the rank advanced. UNSHARD, RESHARD and REDUCE_GRAD take no time here; collectives are drawn as
 * windows instead (draw_program.c). */
static bool step(Run *run, int rank) {
    int index = run->at[rank];
    if (index == run->s->orders[rank].count) return false;
    CellKind kind = run->s->orders[rank].cells[index].kind;
    if (cell_is_compute(kind)) return step_compute(run, rank, index);
    if (cell_is_transfer(kind)) return step_transfer(run, rank, index);
    run->out->rank[rank].cells[index] = (CellTime){run->clock[rank], run->clock[rank]};
    run->at[rank] = index + 1;
    return true;
}

/* The cell that a blocked rank waits for. For a composite, that of the part that is not ready. */
static Cell awaited(const Run *run, int rank) {
    const Schedule *s = run->s;
    Cell cell = s->orders[rank].cells[run->at[rank]];
    if (cell.overlap && ready_at(run, cell) >= 0) cell = s->orders[rank].cells[run->at[rank] + 1];
    int other = other_stage(cell);
    static const CellKind partner[CELL_KINDS] = {[CELL_SEND_F] = CELL_RECV_F,
                                                 [CELL_RECV_F] = CELL_SEND_F,
                                                 [CELL_SEND_B] = CELL_RECV_B,
                                                 [CELL_RECV_B] = CELL_SEND_B,
                                                 [CELL_F] = CELL_F,
                                                 [CELL_I] = CELL_I,
                                                 [CELL_B] = CELL_B};
    CellKind kind = partner[cell.kind];
    bool remote = s->rank_of_stage[other] != rank;
    if (cell_is_compute(kind) && run->transfers && remote) kind = kind == CELL_F ? CELL_SEND_F : CELL_SEND_B;
    return (Cell){kind, other, cell.microbatch, false};
}

/* Follows the waiting ranks into the cycle, then once around it. Every blocked rank waits for one other, so
 * after as many steps as there are ranks the walk is inside the cycle. Six ranks of it are enough to see
 * why. */
static ErrorCode fail_circle(const Run *run, Error *err) {
    const Schedule *s = run->s;
    int rank = 0, most = 6;
    while (run->at[rank] == s->orders[rank].count) rank++;
    for (int i = 0; i < s->ranks; i++) rank = s->rank_of_stage[awaited(run, rank).stage];
    Text text = {0};
    int first = rank;
    do {
        Cell here = s->orders[rank].cells[run->at[rank]], there = awaited(run, rank);
        text_printf(&text, "%srank %d at cell %d (", rank == first ? "" : "; ", rank,
                    schedule_column(&s->orders[rank], run->at[rank]));
        schedule_write_cell(&here, &text);
        text_puts(&text, ") for ");
        schedule_write_cell(&there, &text);
        rank = s->rank_of_stage[there.stage];
    } while (rank != first && --most > 0);
    error_set(err, ERR_DATA, "the ranks wait for each other: %s%s", text.data, rank == first ? "" : "; ...");
    text_free(&text);
    return ERR_DATA;
}

/* At first every rank may be able to advance. */
static void start_run(Run *run) {
    const Schedule *s = run->s;
    size_t ranks = (size_t)s->ranks, pairs = (size_t)s->stages * (size_t)s->microbatches;
    run->transfers = schedule_has_transfers(s);
    run->at = mem_alloc_array(ranks, sizeof *run->at);
    run->clock = mem_alloc_array(ranks, sizeof *run->clock);
    run->live_input = mem_alloc_array(ranks, sizeof *run->live_input);
    run->live_weight = mem_alloc_array(ranks, sizeof *run->live_weight);
    run->queue = mem_alloc_array(ranks, sizeof *run->queue);
    run->queued = mem_alloc_array(ranks, sizeof *run->queued);
    for (int d = 0; d < DIRECTIONS; d++) {
        run->made[d] = new_times(pairs);
        run->sent[d] = new_times(run->transfers ? pairs : 0);
        run->posted[d] = new_times(run->transfers ? pairs : 0);
    }
    run->out->ranks = s->ranks;
    run->out->rank = mem_alloc_array(ranks, sizeof *run->out->rank);
    for (int r = 0; r < s->ranks; r++) {
        run->out->rank[r].start = NOT_YET;
        run->out->rank[r].cells =
            mem_alloc_array((size_t)s->orders[r].count, sizeof *run->out->rank[r].cells);
        wake(run, r);
    }
}

/* Leaves the cells' times, which belong to the caller, in run->out. */
static void end_run(Run *run) {
    free(run->at);
    free(run->clock);
    free(run->live_input);
    free(run->live_weight);
    free(run->queue);
    free(run->queued);
    for (int d = 0; d < DIRECTIONS; d++) {
        free(run->made[d]);
        free(run->sent[d]);
        free(run->posted[d]);
    }
}

/* A transfer ends when its data arrives, even if no rank waits for it. */
static void end_transfers(Run *run) {
    const Schedule *s = run->s;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++) {
            Cell cell = s->orders[r].cells[i];
            if (!cell_is_transfer(cell.kind)) continue;
            bool sends = cell.kind == CELL_SEND_F || cell.kind == CELL_SEND_B;
            CellTime *time = &run->out->rank[r].cells[i];
            size_t pair = schedule_pair(s, sends ? other_stage(cell) : cell.stage, cell.microbatch);
            time->end = fmax(time->start, arrival(run, direction_of(cell.kind), pair));
        }
}

/* Bubble: the idle time of the rank with the most, until the last rank ends, relative to the makespan. Span:
 * the same without the time before a rank's first and after its last cell, which the next step could use if
 * there were no barrier. */
static void sum_up(Simulation *out) {
    for (int r = 0; r < out->ranks; r++) {
        if (out->rank[r].start < 0) out->rank[r].start = 0;
        out->makespan = fmax(out->makespan, out->rank[r].end);
    }
    double worst = 0;
    for (int r = 0; r < out->ranks; r++) {
        RankTimes *t = &out->rank[r];
        t->idle = out->makespan - t->busy;
        worst = fmax(worst, t->idle);
        out->span = fmax(out->span, t->end - t->start - t->busy);
    }
    out->bubble = out->makespan > 0 ? worst / out->makespan : 0;
}

/* A rank, once awake, goes as far as it can: that takes fewer rounds of the queue and gives the same
 * times. */
static ErrorCode run_all(Run *run, Error *err) {
    const Schedule *s = run->s;
    start_run(run);
    while (run->queue_count > 0)
        for (int rank = pop(run); step(run, rank);) continue;
    bool ended = true;
    for (int r = 0; r < s->ranks; r++) ended &= run->at[r] == s->orders[r].count;
    ErrorCode code = ended ? OK : fail_circle(run, err);
    if (ended) {
        if (run->transfers) end_transfers(run);
        sum_up(run->out);
    }
    end_run(run);
    if (!ended) simulation_free(run->out);
    return code;
}

/* With NaN every comparison would be false, and a run that never ends would look like one that waits. */
static ErrorCode check_costs(const Schedule *s, const SimulateCosts *costs, Error *err) {
    int segments = costs->segments > 1 ? costs->segments : 1;
    for (int i = 0; i < (costs->stages ? segments * s->stages : 1); i++) {
        const StageCost *c = costs->stages ? &costs->stages[i] : &costs->uniform;
        if (isfinite(c->forward) && isfinite(c->input) && isfinite(c->weight) && c->forward >= 0 &&
            c->input >= 0 && c->weight >= 0)
            continue;
        return error_set(err, ERR_CONFIG, "costs of stage %d: %g, %g, %g: each must be 0 or more",
                         i % s->stages, c->forward, c->input, c->weight);
    }
    for (int i = 0; costs->backward && i < s->stages; i++)
        if (!(costs->backward[i] >= 0) || isinf(costs->backward[i]))
            return error_set(err, ERR_CONFIG, "backward of stage %d costs %g: must be 0 or more", i,
                             costs->backward[i]);
    if (isfinite(costs->latency) && costs->latency >= 0) return OK;
    return error_set(err, ERR_CONFIG, "latency %g: must be 0 or more", costs->latency);
}

/* Checks ranks and numbers of the schedule first, since the rest indexes by them. */
ErrorCode simulate(Simulation *out, const Schedule *s, const SimulateCosts *costs, Error *err) {
    *out = (Simulation){0};
    TRY(schedule_check_ranks(s, err));
    TRY(check_costs(s, costs, err));
    Run run = {.s = s, .transport = TRANSPORT_EAGER, .costs = costs, .out = out};
    return run_all(&run, err);
}

void simulation_free(Simulation *s) {
    for (int r = 0; r < s->ranks; r++) free(s->rank[r].cells);
    free(s->rank);
    *s = (Simulation){0};
}

/* Costs are zero: the only question is whether the program ends. */
ErrorCode simulate_transport(const Schedule *s, Transport transport, Error *err) {
    SimulateCosts nothing = {0};
    Simulation out = {0};
    TRY(schedule_check_ranks(s, err));
    Run run = {.s = s, .transport = transport, .costs = &nothing, .out = &out};
    TRY(run_all(&run, err));
    simulation_free(&out);
    return OK;
}
