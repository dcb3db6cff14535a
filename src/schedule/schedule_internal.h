/* Shared by the files of pipeline schedules: schedule*.c and simulate.c. */
#ifndef WEFT_SCHEDULE_SCHEDULE_INTERNAL_H
#define WEFT_SCHEDULE_SCHEDULE_INTERNAL_H

#include "schedule/schedule.h"

/* schedule_start makes empty orders. schedule_place makes the stages, none of them on any rank (-1); until
 * then there may be 0. */
void schedule_start(Schedule *s, const char *name, int ranks);
void schedule_place(Schedule *s, int stages);
void order_add(Order *o, Cell cell);
/* Fills the orders of a V of two stages a rank: no rank keeps the activations of more than `limit` >= 2
 * (stage, microbatch) pairs until the end of their wgrads. cost: of F, I, W, in any unit; all 0: equal. */
void schedule_make_v(Schedule *s, int limit, const double cost[3]);

static inline bool cell_is_compute(CellKind kind) { return kind >= CELL_F && kind <= CELL_B; }
static inline bool cell_is_transfer(CellKind kind) { return kind >= CELL_SEND_F && kind <= CELL_RECV_B; }
static inline bool cell_is_parameter(CellKind kind) {
    return kind >= CELL_UNSHARD && kind <= CELL_REDUCE_GRAD;
}
static inline bool cell_has_microbatch(CellKind kind) { return kind >= CELL_F && kind <= CELL_RECV_B; }

const char *cell_kind_name(CellKind kind); /* "SEND_F" */

/* Index of (stage, microbatch) in an array [stages, microbatches]. */
static inline size_t schedule_pair(const Schedule *s, int stage, int microbatch) {
    return (size_t)stage * (size_t)s->microbatches + (size_t)microbatch;
}

/* Whether the stage's neighbour, one below (-1) or above (+1), exists and lives on another rank. */
static inline bool schedule_is_remote(const Schedule *s, int stage, int step) {
    int other = stage + step;
    return other >= 0 && other < s->stages && s->rank_of_stage[other] != s->rank_of_stage[stage];
}

/* The column of a cell in its line, from 1. A composite is one column. */
int schedule_column(const Order *o, int index);
/* Fails with ERR_DATA: "rank 1, cell 5 (1B9): ...". */
ErrorCode schedule_fail(const Schedule *s, int rank, int index, Error *err, const char *format, ...)
    PRINTF_LIKE(5, 6);

/* The part of schedule_check that needs no other rank: counts, placement, order within a rank, nothing
 * missing. Code may index by the numbers of a schedule that has passed. Whether it ends is only found by
 * running it. */
ErrorCode schedule_check_ranks(const Schedule *s, Error *err);

#endif
