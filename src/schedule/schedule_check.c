/* Whether a schedule is one.
 *
 * A stage lives on one rank, so all rules but one are about the order within a rank, and each rank is read
 * once. The last, that no ranks wait for each other in a circle, is found by running the schedule
 * (simulate.c). Memory is in proportion to the cells: the number of forwards must be stages times
 * microbatches before anything is allocated by that product.
 *
 * In this order, each relying on the one before (schedule_check_ranks, then schedule_check):
 *
 *     placement    every stage on a rank that there is
 *     numbers      every cell: a known kind, a stage of this rank, a microbatch that there is
 *     counts       forwards of every stage: as many as microbatches     from here on [stages, microbatches]
 *     order        every cell: what it needs came before it, once       may be allocated
 *     missing      every (stage, microbatch): nothing is left to do
 *     circles      run with sends that end at once */
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
    bool transfers, unshards, parameters; /* what the schedule has */
    unsigned char *done;                  /* [stages, microbatches] */
    bool *resident, *reduced;             /* [stages] */
    int *weights;                         /* [stages] weight gradients added */
    int rank, index;                      /* the cell looked at */
    char wrong[256];
} Check;

/* Says what is wrong with the cell looked at. */
static ErrorCode PRINTF_LIKE(2, 3) fail(Check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->wrong, sizeof c->wrong, format, args);
    va_end(args);
    return schedule_fail(c->s, c->rank, c->index, c->err, "%s", c->wrong);
}

/* By stage and microbatch of the cell, whatever its kind. */
static unsigned char *done(const Check *c, Cell cell) {
    return &c->done[schedule_pair(c->s, cell.stage, cell.microbatch)];
}

/* What has been done once must not be done again: a second time would add a gradient twice, or wait for a
 * message that never comes. */
static ErrorCode mark(Check *c, Cell cell, int bits) {
    if (*done(c, cell) & bits) return fail(c, "comes twice");
    *done(c, cell) |= (unsigned char)bits;
    return OK;
}

/* The cell that is missing is named as the file would have it. */
static ErrorCode need(Check *c, Cell cell, int bit, CellKind kind) {
    if (*done(c, cell) & bit) return OK;
    return fail(c, "comes before %d%s%d", cell.stage, cell_kind_name(kind), cell.microbatch);
}

/* What a composite's second part needs must come before the composite. */
static ErrorCode need_before_composite(Check *c, Cell cell) {
    if (c->index == 0) return OK;
    Cell before = c->s->orders[c->rank].cells[c->index - 1];
    if (before.overlap && before.stage == cell.stage && before.microbatch == cell.microbatch)
        return fail(c, "needs the forward that it overlaps with");
    return OK;
}

/* Data of another rank must have been received by name where the schedule has transfers; else it comes by
 * itself. */
static ErrorCode check_forward(Check *c, Cell cell) {
    if (c->transfers && schedule_is_remote(c->s, cell.stage, -1)) TRY(need(c, cell, DID_RECV_F, CELL_RECV_F));
    return mark(c, cell, DID_F);
}

/* B is I and W at once: `bits` says which. */
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

/* With UNSHARD and RESHARD in it, a schedule says when parameters are there, and is held to it. */
static ErrorCode check_compute(Check *c, Cell cell) {
    if (c->unshards && !c->resident[cell.stage])
        return fail(c, "the parameters of stage %d are not there: UNSHARD", cell.stage);
    if (cell.kind == CELL_F) return check_forward(c, cell);
    if (cell.kind == CELL_I) return check_input(c, cell, DID_I);
    TRY(cell.kind == CELL_W ? check_weight(c, cell) : check_input(c, cell, DID_I | DID_W));
    c->weights[cell.stage]++;
    return OK;
}

/* The side that sends must have made it; the side that receives only must not do so twice. That both sides
 * agree is found by running the schedule. */
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

/* REDUCE_GRAD is for what all microbatches have added to; UNSHARD and RESHARD take turns. */
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

/* A forward and a backward that run as one: the second part stands right behind the first, marked by the
 * first. */
static ErrorCode check_composite(Check *c, Cell cell) {
    const Order *o = &c->s->orders[c->rank];
    if (!cell.overlap) return OK;
    CellKind second = c->index + 1 < o->count ? o->cells[c->index + 1].kind : CELL_IDLE;
    if (cell.kind == CELL_F && (second == CELL_B || second == CELL_I) && !o->cells[c->index + 1].overlap)
        return OK;
    return fail(c, "OVERLAP_F_B takes a forward and then a B or I");
}

/* Idle cells hold a column open, and do nothing. */
static ErrorCode check_cell(Check *c, Cell cell) {
    TRY(check_composite(c, cell));
    if (cell.kind == CELL_IDLE) return OK;
    if (cell_is_compute(cell.kind)) return check_compute(c, cell);
    return cell_is_transfer(cell.kind) ? check_transfer(c, cell) : check_parameter(c, cell);
}

/* Before anything is indexed by them: a file may say any number. */
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

/* What a (stage, microbatch) must have done at the end. */
static int complete(const Check *c, int stage) {
    int bits = DID_F | DID_I | DID_W;
    if (!c->transfers) return bits;
    if (schedule_is_remote(c->s, stage, 1)) bits |= DID_SEND_F | DID_RECV_B;
    if (schedule_is_remote(c->s, stage, -1)) bits |= DID_SEND_B | DID_RECV_F;
    return bits;
}

/* The first of `missing` in the order in which they would come: what lacks a forward lacks all else too. */
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

/* Orders have been followed; what is left is what never came. */
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

/* ExpertDispatch every cell with `look`, in the order of ranks. */
static ErrorCode for_each_cell(Check *c, ErrorCode (*look)(Check *c, Cell cell)) {
    for (c->rank = 0; c->rank < c->s->ranks; c->rank++)
        for (c->index = 0; c->index < c->s->orders[c->rank].count; c->index++)
            TRY(look(c, c->s->orders[c->rank].cells[c->index]));
    return OK;
}

/* The only part whose memory is the product of stages and microbatches. */
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

/* `weights` counts forwards here, and only later weight gradients: the arrays by (stage, microbatch) are not
 * yet allowed for. */
static ErrorCode look_at_kind(Check *c, Cell cell) {
    c->transfers |= cell_is_transfer(cell.kind);
    c->parameters |= cell_is_parameter(cell.kind);
    c->unshards |= cell.kind == CELL_UNSHARD || cell.kind == CELL_RESHARD;
    if (cell.kind == CELL_F) c->weights[cell.stage]++;
    return OK;
}

/* A stage whose forwards are not as many as the microbatches: one comes twice, or one of the first is
 * missing. */
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

/* Every stage has as many forwards as there are microbatches, whichever they are. */
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

/* A stage that no line names is on no rank. */
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

/* From what is cheap to what needs memory; each step relies on the one before. */
ErrorCode schedule_check_ranks(const Schedule *s, Error *err) {
    Check c = {.s = s, .err = err};
    TRY(check_placement(s, err));
    TRY(for_each_cell(&c, check_numbers));
    TRY(check_counts(&c));
    return check_order(&c);
}

/* Rank by rank first (simulate_transport does that), then by running it with sends that end at once: what
 * hangs even so hangs always. */
ErrorCode schedule_check(const Schedule *s, Error *err) {
    return simulate_transport(s, TRANSPORT_EAGER, err);
}
