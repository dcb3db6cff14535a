/* A pipeline schedule as data: for each pipeline rank the order in which it works on (stage, microbatch)
 * pairs.
 *
 * P ranks, m microbatches, v stages a rank, S = P v stages. A schedule is first a compute order (F, I, W, B
 * cells); passes add parameter actions and transfers to it. Cells are written as in PyTorch's CSV files: 0F0,
 * 1B3, 2I1, 2W1, 3SEND_F2, 1UNSHARD, (0F4;7B1)OVERLAP_F_B. The stage of a transfer is the stage on this side
 * of the link.
 *
 * Huang et al., "GPipe", 2019; Narayanan et al., "Efficient large-scale language model training on GPU
 * clusters using Megatron-LM", 2021 (1F1B, interleaving); Lamy-Poirier, "Breadth-first pipeline parallelism",
 * 2023; Qi et al., "Zero bubble pipeline parallelism", 2024, and "Pipeline parallelism with controllable
 * memory", 2024; DeepSeek-AI, "DeepSeek-V3", 2024. */
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
    PIPE_ZBV,
    PIPE_DUALPIPEV,
    PIPE_NAMES
} ScheduleName;
const char *schedule_name(ScheduleName name);            /* "interleaved_1f1b" */
bool schedule_find(const char *text, ScheduleName *out); /* false: no such schedule */
bool schedule_names_file(const char *text);              /* it ends in .csv or holds a slash */
bool schedule_is_v(ScheduleName name);                   /* V placement: rank 0 holds first and last stage */
int schedule_default_stages_per_rank(
    ScheduleName name); /* 1, or 2 for those made for several stages a rank */

typedef enum CellKind {
    CELL_IDLE,
    CELL_F, /* forward; on the last stage the loss too */
    CELL_I, /* gradient of the input */
    CELL_W, /* gradient of the weights */
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
    /* With the next cell of this rank: the two (F, then B or I) make one composite (a;b)OVERLAP_F_B. */
    bool overlap;
} Cell;

typedef struct Order {
    int count, capacity;
    Cell *cells;
} Order;

typedef struct Schedule {
    char name[64]; /* of the schedule or the file */
    int ranks, microbatches, stages;
    bool split_backward; /* has I and W cells */
    int *rank_of_stage;  /* [stages] */
    Order *orders;       /* [ranks] */
} Schedule;

/* The compute order of a named schedule. The weight gradients of a stage come in ascending order of
 * microbatches, those of looped_bfs in descending order. ERR_CONFIG with the numbers, and what would fit,
 * where (P, m, v) is not possible. */
ErrorCode schedule_check_stages_per_rank(ScheduleName name, int stages_per_rank, Error *err);
ErrorCode schedule_make(Schedule *s, ScheduleName name, int ranks, int microbatches, int stages_per_rank,
                        Error *err);
void schedule_free(Schedule *s);
void schedule_copy(Schedule *to, const Schedule *from);

bool schedule_has_transfers(const Schedule *s);
/* Whether each stage adds up its weight gradients from the first microbatch to the last, as one rank does:
 * the same bits. */
bool schedule_adds_in_order(const Schedule *s);
bool schedule_has_parameters(const Schedule *s); /* UNSHARD, RESHARD or REDUCE_GRAD */
/* For a run, which places those itself: ERR_CONFIG names file, rank and cell of the first. */
ErrorCode schedule_refuse_parameters(const Schedule *s, const char *path, Error *err);

/* A schedule that can run: every stage on one rank; each (stage, microbatch) has one F, and one B or one I
 * then one W; no cycle between ranks (found by running it symbolically). If it has any transfers, each that
 * is needed is there once, sent after its data is made and received before it is used. If it has any
 * parameter actions, each stage is reduced once after its last weight gradient, and, with any UNSHARD, there
 * when it is used. ERR_DATA names rank (from 0), position (from 1) and cell. */
ErrorCode schedule_check(const Schedule *s, Error *err);

/* CSV: a line a rank, empty cells are idle. Placement and counts come from the file. Compute orders and files
 * that are lowered already (with transfers) are both checked as above and taken as they are. `where` names
 * the text in errors (ERR_DATA) and, its last part, the schedule. What is written reads back to the same
 * schedule. */
ErrorCode schedule_parse_csv(Schedule *s, const char *where, const char *text, size_t length, Error *err);
ErrorCode schedule_read_csv(Schedule *s, const char *path, Error *err);
void schedule_write_csv(const Schedule *s, Text *out);
void schedule_write_cell(const Cell *cell, Text *out); /* one cell, without the composite's brackets */

/* Passes; each leaves a schedule alone that has what it would add, so that both may be called for a CSV file
 * of any kind. They come in this order: parameters (UNSHARD and RESHARD with a look-ahead of `active` stages,
 * REDUCE_GRAD after the last weight gradient of a stage; active >= 1), then transfers (one sequential
 * construction over all ranks, so that there is one global order of transfers: free of deadlock whatever the
 * transport). */
void schedule_add_parameters(Schedule *s, int active);
ErrorCode schedule_add_transfers(Schedule *s, Error *err);

#endif
