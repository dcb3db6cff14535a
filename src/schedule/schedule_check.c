/* Whether a schedule is valid.
 *
 * A stage lives on one rank, so all rules but one are about the order within a rank, and each rank is read
 * once. The last rule is that ranks never wait for each other in a cycle; running the schedule finds that
 * (simulate.c). Memory is proportional to the number of cells: arrays of stages times microbatches are only
 * allocated after it is known that there are as many forwards.
 *
 * The checks come in this order, each relying on the one before (schedule_check_ranks, then schedule_check):
 *
 *     placement    every stage is on an existing rank
 *     numbers      every cell: a known kind, a stage of this rank, an existing microbatch
 *     counts       every stage has as many forwards as microbatches     from here on [stages, microbatches]
 *     order        every cell: what it needs came before it, once       may be allocated
 *     missing      every (stage, microbatch): nothing is left to do
 *     cycles       the schedule runs to its end with sends that complete at once */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "schedule/schedule.h"
#include "schedule/schedule_internal.h"
#include "schedule/simulate.h"

/* Marks of what has been done, per (stage, microbatch). */
enum { DID_F = 1, DID_I = 2, DID_W = 4, DID_SEND_F = 8, DID_RECV_F = 16, DID_SEND_B = 32, DID_RECV_B = 64 };

typedef struct Check {
    const Schedule *s;
    Error *err;
    bool transfers, unshards, parameters; /* present in the schedule */
    unsigned char *done;                  /* [stages, microbatches] */
    bool *resident, *reduced;             /* [stages] */
    int *weights;                         /* [stages] wgrads added so far */
    int rank, index;                      /* the current cell */
    char wrong[256];
} Check;

/* Fails with the current cell's position. */
static ErrorCode PRINTF_LIKE(2, 3) fail(Check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->wrong, sizeof c->wrong, format, args);
    va_end(args);
    return schedule_fail(c->s, c->rank, c->index, c->err, "%s", c->wrong);
}

/* The marks of the cell's (stage, microbatch), whatever its kind. */
static unsigned char *done(const Check *c, Cell cell) {
    return &c->done[schedule_pair(c->s, cell.stage, cell.microbatch)];
}

/* Nothing may be done twice: a gradient would be added twice, or a rank would wait for a message that never
 * comes. */
static ErrorCode mark(Check *c, Cell cell, int bits) {
    if (*done(c, cell) & bits) return fail(c, "comes twice");
    *done(c, cell) |= (unsigned char)bits;
    return OK;
}

/* Names the missing cell as it would be written in the file. */
static ErrorCode need(Check *c, Cell cell, int bit, CellKind kind) {
    if (*done(c, cell) & bit) return OK;
    return fail(c, "comes before %d%s%d", cell.stage, cell_kind_name(kind), cell.microbatch);
}

/* Whatever the second part of a composite needs must come before the composite. */
static ErrorCode need_before_composite(Check *c, Cell cell) {
    if (c->index == 0) return OK;
    Cell before = c->s->orders[c->rank].cells[c->index - 1];
    if (before.overlap && before.stage == cell.stage && before.microbatch == cell.microbatch)
        return fail(c, "needs the forward that it overlaps with");
    return OK;
}

/* If the schedule has transfers, data of another rank must have been received explicitly; otherwise it
 * arrives implicitly. */
static ErrorCode check_forward(Check *c, Cell cell) {
    if (c->transfers && schedule_is_remote(c->s, cell.stage, -1)) TRY(need(c, cell, DID_RECV_F, CELL_RECV_F));
    return mark(c, cell, DID_F);
}

/* B is I and W at once: `bits` distinguishes B from I. */
static ErrorCode check_input(Check *c, Cell cell, int bits) {
    TRY(need(c, cell, DID_F, CELL_F));
    TRY(need_before_composite(c, cell));
    if (c->transfers && schedule_is_remote(c->s, cell.stage, 1)) TRY(need(c, cell, DID_RECV_B, CELL_RECV_B));
    if (*done(c, cell) & DID_I)
        return fail(c, "is the second backward of microbatch %d: B alone, or I and W", cell.microbatch);
    return mark(c, cell, bits);
}

/* Each microbatch adds once, by W or within B. */
static ErrorCode check_weight(Check *c, Cell cell) {
    if (*done(c, cell) & DID_W)
        return fail(c, "is the second weight gradient of microbatch %d", cell.microbatch);
    TRY(need(c, cell, DID_I, CELL_I));
    return mark(c, cell, DID_W);
}

/* If a schedule has UNSHARD or RESHARD, parameters must be there when they are used. */
static ErrorCode check_compute(Check *c, Cell cell) {
    if (c->unshards && !c->resident[cell.stage])
        return fail(c, "the parameters of stage %d are not there: UNSHARD", cell.stage);
    if (cell.kind == CELL_F) return check_forward(c, cell);
    if (cell.kind == CELL_I) return check_input(c, cell, DID_I);
    TRY(cell.kind == CELL_W ? check_weight(c, cell) : check_input(c, cell, DID_I | DID_W));
    c->weights[cell.stage]++;
    return OK;
}

/* Data must be made before it is sent, and received once. Running the schedule shows whether both sides
 * agree. */
static ErrorCode check_transfer(Check *c, Cell cell) {
    bool forward = cell.kind == CELL_SEND_F || cell.kind == CELL_RECV_F;
    bool up = cell.kind == CELL_SEND_F || cell.kind == CELL_RECV_B;
    if (!schedule_is_remote(c->s, cell.stage, up ? 1 : -1))
        return fail(c, "stage %d has no neighbour %s on another rank", cell.stage, up ? "above" : "below");
    if (cell.kind == CELL_SEND_F) {
        TRY(need(c, cell, DID_F, CELL_F));
        return mark(c, cell, DID_SEND_F);
    }
    if (cell.kind != CELL_SEND_B) return mark(c, cell, forward ? DID_RECV_F : DID_RECV_B);
    if (!(*done(c, cell) & DID_I))
        return fail(c, "comes before the backward of microbatch %d", cell.microbatch);
    return mark(c, cell, DID_SEND_B);
}

/* REDUCE_GRAD comes after the wgrads of all microbatches; UNSHARD and RESHARD alternate. */
static ErrorCode check_parameter(Check *c, Cell cell) {
    bool *resident = &c->resident[cell.stage], *reduced = &c->reduced[cell.stage];
    if (cell.kind == CELL_REDUCE_GRAD) {
        if (*reduced) return fail(c, "comes twice");
        if (c->weights[cell.stage] < c->s->microbatches)
            return fail(c, "comes after %d of %d weight gradients", c->weights[cell.stage],
                        c->s->microbatches);
        *reduced = true;
        return OK;
    }
    if (*resident == (cell.kind == CELL_UNSHARD))
        return fail(c, "the parameters of stage %d are %s", cell.stage,
                    *resident ? "there already" : "not there");
    *resident = cell.kind == CELL_UNSHARD;
    return OK;
}

/* A composite is a forward and a backward that run as one: two adjacent cells, of which the first is
 * marked. */
static ErrorCode check_composite(Check *c, Cell cell) {
    const Order *o = &c->s->orders[c->rank];
    if (!cell.overlap) return OK;
    CellKind second = c->index + 1 < o->count ? o->cells[c->index + 1].kind : CELL_IDLE;
    if (cell.kind == CELL_F && (second == CELL_B || second == CELL_I) && !o->cells[c->index + 1].overlap)
        return OK;
    return fail(c, "OVERLAP_F_B takes a forward and then a B or I");
}

/* Idle cells only keep a column free. */
static ErrorCode check_cell(Check *c, Cell cell) {
    TRY(check_composite(c, cell));
    if (cell.kind == CELL_IDLE) return OK;
    if (cell_is_compute(cell.kind)) return check_compute(c, cell);
    return cell_is_transfer(cell.kind) ? check_transfer(c, cell) : check_parameter(c, cell);
}

/* Comes before anything is indexed by these numbers: a file may contain any number. */
static ErrorCode check_numbers(Check *c, Cell cell) {
    const Schedule *s = c->s;
    if (cell.kind == CELL_IDLE) return OK;
    if (cell.kind < 0 || cell.kind >= CELL_KINDS) return fail(c, "is no action");
    if (cell.stage < 0 || cell.stage >= s->stages) return fail(c, "there are stages 0 to %d", s->stages - 1);
    if (s->rank_of_stage[cell.stage] != c->rank)
        return fail(c, "stage %d lives on rank %d", cell.stage, s->rank_of_stage[cell.stage]);
    if (cell_has_microbatch(cell.kind) && (cell.microbatch < 0 || cell.microbatch >= s->microbatches))
        return fail(c, "there are microbatches 0 to %d", s->microbatches - 1);
    return OK;
}

/* The marks that a (stage, microbatch) must have at the end. */
static int complete(const Check *c, int stage) {
    int bits = DID_F | DID_I | DID_W;
    if (!c->transfers) return bits;
    if (schedule_is_remote(c->s, stage, 1)) bits |= DID_SEND_F | DID_RECV_B;
    if (schedule_is_remote(c->s, stage, -1)) bits |= DID_SEND_B | DID_RECV_F;
    return bits;
}

/* Reports the first of `missing` in the natural order: where the forward is missing, everything else is
 * too. */
static ErrorCode fail_missing(const Check *c, int stage, int microbatch, int missing) {
    static const struct {
        int bit;
        CellKind kind;
    } kinds[] = {{DID_F, CELL_F},           {DID_I, CELL_B},           {DID_W, CELL_W},
                 {DID_SEND_F, CELL_SEND_F}, {DID_RECV_F, CELL_RECV_F}, {DID_SEND_B, CELL_SEND_B},
                 {DID_RECV_B, CELL_RECV_B}};
    size_t i = 0;
    while (!(missing & kinds[i].bit)) i++;
    return error_set(c->err, ERR_DATA, "rank %d: %d%s%d is missing%s", c->s->rank_of_stage[stage], stage,
                     cell_kind_name(kinds[i].kind), microbatch, kinds[i].bit == DID_I ? " (or I and W)" : "");
}

/* The order is valid so far; finds cells that never came. */
static ErrorCode check_missing(Check *c) {
    const Schedule *s = c->s;
    for (int stage = 0; stage < s->stages; stage++) {
        for (int i = 0; i < s->microbatches; i++) {
            int missing = complete(c, stage) & ~*done(c, (Cell){CELL_F, stage, i, false});
            if (missing) return fail_missing(c, stage, i, missing);
        }
        if (c->parameters && !c->reduced[stage])
            return error_set(c->err, ERR_DATA, "rank %d: %dREDUCE_GRAD is missing", s->rank_of_stage[stage],
                             stage);
    }
    return OK;
}

/* Calls `look` for every cell, rank by rank. */
static ErrorCode for_each_cell(Check *c, ErrorCode (*look)(Check *c, Cell cell)) {
    for (c->rank = 0; c->rank < c->s->ranks; c->rank++)
        for (c->index = 0; c->index < c->s->orders[c->rank].count; c->index++)
            TRY(look(c, c->s->orders[c->rank].cells[c->index]));
    return OK;
}

/* The only check whose memory is stages times microbatches. */
static ErrorCode check_order(Check *c) {
    const Schedule *s = c->s;
    c->done = mem_alloc_array((size_t)s->stages * (size_t)s->microbatches, sizeof *c->done);
    c->weights = mem_alloc_array((size_t)s->stages, sizeof *c->weights);
    c->resident = mem_alloc_array((size_t)s->stages, sizeof *c->resident);
    c->reduced = mem_alloc_array((size_t)s->stages, sizeof *c->reduced);
    ErrorCode code = for_each_cell(c, check_cell);
    if (code == OK) code = check_missing(c);
    free(c->done);
    free(c->weights);
    free(c->resident);
    free(c->reduced);
    return code;
}

/* `weights` counts forwards here, and wgrads only later: the arrays by (stage, microbatch) must not be
 * allocated yet. */
static ErrorCode look_at_kind(Check *c, Cell cell) {
    c->transfers |= cell_is_transfer(cell.kind);
    c->parameters |= cell_is_parameter(cell.kind);
    c->unshards |= cell.kind == CELL_UNSHARD || cell.kind == CELL_RESHARD;
    if (cell.kind == CELL_F) c->weights[cell.stage]++;
    return OK;
}

/* Reports a stage with the wrong number of forwards: one comes twice, or one of the first is missing. */
static ErrorCode fail_count(Check *c, int stage, int count) {
    const Schedule *s = c->s;
    const Order *o = &s->orders[c->rank = s->rank_of_stage[stage]];
    bool *seen = mem_alloc_array((size_t)count + 1, sizeof *seen);
    ErrorCode code = OK;
    for (c->index = 0; c->index < o->count && code == OK; c->index++) {
        Cell cell = o->cells[c->index];
        if (cell.kind != CELL_F || cell.stage != stage || cell.microbatch > count) continue;
        if (seen[cell.microbatch]) code = fail(c, "comes twice");
        seen[cell.microbatch] = true;
    }
    int missing = 0;
    while (missing < count && seen[missing]) missing++;
    free(seen);
    if (code != OK) return code;
    return error_set(c->err, ERR_DATA, "rank %d: %dF%d is missing; there are microbatches 0 to %d", c->rank,
                     stage, missing, s->microbatches - 1);
}

/* Every stage has as many forwards as there are microbatches; which ones is checked later. */
static ErrorCode check_counts(Check *c) {
    const Schedule *s = c->s;
    ErrorCode code = OK;
    c->weights = mem_alloc_array((size_t)s->stages, sizeof *c->weights);
    for_each_cell(c, look_at_kind);
    for (int i = 0; i < s->stages && code == OK; i++)
        if (c->weights[i] != s->microbatches) code = fail_count(c, i, c->weights[i]);
    free(c->weights);
    return code;
}

/* A stage that appears in no line is on no rank. */
static ErrorCode check_placement(const Schedule *s, Error *err) {
    if (s->ranks < 1 || s->stages < 1 || s->microbatches < 1)
        return error_set(err, ERR_DATA,
                         "a schedule of %d ranks, %d stages, %d microbatches: each must be 1 or more",
                         s->ranks, s->stages, s->microbatches);
    for (int i = 0; i < s->stages; i++)
        if (s->rank_of_stage[i] < 0 || s->rank_of_stage[i] >= s->ranks)
            return error_set(err, ERR_DATA, "stage %d of %d is on no rank", i, s->stages);
    return OK;
}

/* Cheap checks come before those that need memory; each relies on the one before. */
ErrorCode schedule_check_ranks(const Schedule *s, Error *err) {
    Check c = {.s = s, .err = err};
    TRY(check_placement(s, err));
    TRY(for_each_cell(&c, check_numbers));
    TRY(check_counts(&c));
    return check_order(&c);
}

/* simulate_transport first checks rank by rank, then runs the schedule with sends that complete at once: a
 * schedule that hangs even so always hangs. */
ErrorCode schedule_check(const Schedule *s, Error *err) {
    return simulate_transport(s, TRANSPORT_EAGER, err);
}
