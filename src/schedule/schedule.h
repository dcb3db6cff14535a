/* A pipeline schedule as data: for each pipeline rank the order in which it works on (stage, microbatch)
 * pairs.
 *
 * There are P ranks, m microbatches, v stages a rank, and S = P v stages. A schedule starts as a compute
 * order (F, I, W, B cells); passes add parameter actions and transfers to it. Cells are written as in
 * PyTorch's CSV files: 0F0, 1B3, 2I1, 2W1, 3SEND_F2, 1UNSHARD, (0F4;7B1)OVERLAP_F_B. The stage of a transfer
 * is the one on this side of it.
 *
 * With segments, the tokens of a microbatch are cut into equal runs that go through the pipeline one after
 * the other. Each is a microbatch of the schedule: those of microbatch m are m k .. m k + k - 1.
 * Forwards go through them in order. Backwards take a microbatch's segments from the last to the first, since
 * later segments attend to the keys of earlier ones.
 *
 * Sources: Huang et al., "GPipe", 2019; Narayanan et al., "Efficient large-scale language model training on
 * GPU clusters using Megatron-LM", 2021 (1F1B, interleaving); Lamy-Poirier, "Breadth-first pipeline
 * parallelism", 2023; Qi et al., "Zero bubble pipeline parallelism", 2024, and "Pipeline parallelism with
 * controllable memory", 2024; DeepSeek-AI, "DeepSeek-V3", 2024; Sun et al., "Seq1F1B", 2024 (segments). */
#ifndef WEFT_SCHEDULE_SCHEDULE_H
#define WEFT_SCHEDULE_SCHEDULE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/text.h"

typedef enum ScheduleName {
    PIPE_GPIPE,
    PIPE_1F1B,
    PIPE_LOOPED_BFS,
    PIPE_INTERLEAVED_1F1B,
    PIPE_ZB_H1,
    PIPE_ZB_H2,
    PIPE_INTERLEAVED_ZERO_BUBBLE,
    PIPE_V_MIN,
    PIPE_V_HALF,
    PIPE_ZBV,
    PIPE_DUALPIPEV,
    PIPE_NAMES
} ScheduleName;
const char *schedule_name(ScheduleName name);            /* "interleaved_1f1b" */
bool schedule_find(const char *text, ScheduleName *out); /* false: no such schedule */
bool schedule_names_file(const char *text);              /* ends in .csv or contains a slash */
bool schedule_is_v(ScheduleName name);                   /* V placement: rank 0 has first and last stage */
bool schedule_takes_limit(ScheduleName name);            /* OrderTerms.activations */
bool schedule_takes_segments(ScheduleName name);         /* OrderTerms.segments */
bool schedule_splits_backward(ScheduleName name);        /* its order has I and W cells */
int schedule_default_stages_per_rank(
    ScheduleName name); /* 1, or 2 for those that are made for several stages on each rank */

typedef enum CellKind {
    CELL_IDLE,
    CELL_F, /* forward; on the last stage also the loss */
    CELL_I, /* dgrad */
    CELL_W, /* wgrad */
    CELL_B, /* I and W */
    CELL_SEND_F,
    CELL_RECV_F,
    CELL_SEND_B,
    CELL_RECV_B,
    CELL_UNSHARD,
    CELL_RESHARD,
    CELL_REDUCE_GRAD,
    CELL_KINDS
} CellKind;

typedef struct Cell {
    CellKind kind;
    int stage;      /* -1 when idle */
    int microbatch; /* -1 where there is none */
    /* This cell and the next one of its rank (F, then B or I) are one composite (a;b)OVERLAP_F_B. */
    bool overlap;
} Cell;

typedef struct Order {
    int count, capacity;
    Cell *cells;
} Order;

typedef struct Schedule {
    char name[64];                   /* of the named schedule or the file */
    int ranks, microbatches, stages; /* microbatches: each segment counts as one */
    int segments;                    /* of a microbatch; 1: it is whole */
    bool split_backward;             /* has I and W cells */
    int *rank_of_stage;              /* [stages] */
    Order *orders;                   /* [ranks] */
} Schedule;

/* The compute order of a named schedule. Wgrads of a stage come in ascending order of microbatches, those of
 * looped_bfs in descending order. ERR_CONFIG where (P, m, v) is not possible, with the numbers and what would
 * fit. */
ErrorCode schedule_check_stages_per_rank(ScheduleName name, int stages_per_rank, Error *err);
ErrorCode schedule_make(Schedule *s, ScheduleName name, int ranks, int microbatches, int stages_per_rank,
                        Error *err);
ErrorCode schedule_check_limit(ScheduleName name, double activations, Error *err); /* 0: no limit */
ErrorCode schedule_check_segments(ScheduleName name, int segments, Error *err);
/* What orders depend on besides their sizes. */
typedef struct OrderTerms {
    /* No rank keeps more than this share (0 to 1) of the P microbatches that 1F1B keeps, counted for both of
     * its stages until the end of the wgrad. 0: the schedule's own order. */
    double activations;
    double cost[3]; /* of F, I, W in a V under a limit, in any unit; all 0: equal */
    int segments;   /* of each of the microbatches; 0: 1 */
} OrderTerms;
ErrorCode schedule_make_on(Schedule *s, ScheduleName name, int ranks, int microbatches, int stages_per_rank,
                           const OrderTerms *terms, Error *err);
void schedule_free(Schedule *s);

bool schedule_has_transfers(const Schedule *s);
/* Whether each stage accumulates its wgrads from the first microbatch to the last. One rank does the same, so
 * the bits are the same. */
bool schedule_adds_in_order(const Schedule *s);
bool schedule_has_parameters(const Schedule *s); /* UNSHARD, RESHARD or REDUCE_GRAD */
/* A run places these cells itself, so ERR_CONFIG if there are any; names file, rank and cell of the first. */
ErrorCode schedule_refuse_parameters(const Schedule *s, const char *path, Error *err);

/* Checks that a schedule can run. Every stage is on one rank; each (stage, microbatch) has one F, and one B
 * or one I followed by one W; ranks never wait for each other in a cycle (found by running the schedule
 * symbolically). If it has transfers, each necessary transfer is there once, sent after its data is made and
 * received before it is used. If it has parameter actions, each stage is reduced once after its last wgrad;
 * if it has UNSHARD, parameters are there whenever they are used. ERR_DATA names rank (from 0), position
 * (from 1) and cell. */
ErrorCode schedule_check(const Schedule *s, Error *err);

/* CSV has a line for each rank; empty cells are idle. Placement and counts come from the file. Both compute
 * orders and files with transfers are checked as above and taken unchanged. `where` names the text in errors
 * (ERR_DATA); its last component names the schedule. Writing and reading back gives the same schedule. */
ErrorCode schedule_parse_csv(Schedule *s, const char *where, const char *text, size_t length, Error *err);
ErrorCode schedule_read_csv(Schedule *s, const char *path, Error *err);
void schedule_write_csv(const Schedule *s, Text *out);
void schedule_write_cell(const Cell *cell, Text *out); /* one cell, without the brackets of a composite */

/* Passes. Each leaves a schedule unchanged that already has what it would add, so both may be called on any
 * CSV file. Parameters come first: UNSHARD and RESHARD with a look-ahead of `active` >= 1 stages, and
 * REDUCE_GRAD after the last wgrad of a stage. Then transfers: one sequential construction over all ranks
 * gives one global order of transfers, which cannot deadlock on any transport. */
void schedule_add_parameters(Schedule *s, int active);
ErrorCode schedule_add_transfers(Schedule *s, Error *err);

#endif
