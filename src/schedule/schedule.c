/* Pipeline schedules as data: names, memory, the text of a cell.
 *
 *     schedule_make.c     orders of the named schedules          schedule_csv.c  ... and those of a file
 *     schedule_v.c        ... of a V under a limit                |
 *             \                                                   /
 *              +--> Schedule: for each rank a list of cells <----+
 *              |
 *     schedule_check.c    is it valid?         schedule_transfers.c  adds transfers, or UNSHARD and the rest
 *     simulate.c          when does what run   program/lower.c       makes it a program of actions
 *
 * A cell is about a full stage. What it means for units, parameters and gradients is not known here. */
#include "schedule/schedule.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/schedule_internal.h"

typedef struct NameFacts {
    const char *name;
    int default_stages; /* a rank */
    bool v;
    bool split_backward; /* its order has I and W cells */
    bool segments;       /* microbatches may be cut into segments */
} NameFacts;

/* Facts about the named schedules. A new schedule needs a row here and an order in schedule_make.c. */
static const NameFacts facts[PIPE_NAMES] = {
    [PIPE_GPIPE] = {"gpipe", 1, false, false, true},
    [PIPE_1F1B] = {"1f1b", 1, false, false, true},
    [PIPE_LOOPED_BFS] = {"looped_bfs", 2, false, false, false},
    [PIPE_INTERLEAVED_1F1B] = {"interleaved_1f1b", 2, false, false, false},
    [PIPE_ZB_H1] = {"zb_h1", 1, false, true, false},
    [PIPE_ZB_H2] = {"zb_h2", 1, false, true, false},
    [PIPE_INTERLEAVED_ZERO_BUBBLE] = {"interleaved_zero_bubble", 2, false, true, false},
    [PIPE_V_MIN] = {"v_min", 2, true, true, false},
    [PIPE_V_HALF] = {"v_half", 2, true, true, false},
    [PIPE_ZBV] = {"zbv", 2, true, true, false},
    [PIPE_DUALPIPEV] = {"dualpipev", 2, true, true, false},
};

/* The names used in configurations (pipeline.schedule) and messages. */
const char *schedule_name(ScheduleName name) { return facts[name].name; }

bool schedule_find(const char *text, ScheduleName *out) {
    for (int i = 0; i < PIPE_NAMES; i++) {
        if (strcmp(facts[i].name, text) != 0) continue;
        *out = (ScheduleName)i;
        return true;
    }
    return false;
}

/* A name with a slash or .csv means a file even if there is none, so the error is about the file. */
bool schedule_names_file(const char *text) {
    size_t length = strlen(text);
    return (length > 4 && strcmp(text + length - 4, ".csv") == 0) || strchr(text, '/');
}

bool schedule_is_v(ScheduleName name) { return facts[name].v; }

/* v_min and v_half are zbv under limits of their own. */
bool schedule_takes_limit(ScheduleName name) { return name == PIPE_ZBV; }

bool schedule_takes_segments(ScheduleName name) { return facts[name].segments; }

bool schedule_splits_backward(ScheduleName name) { return facts[name].split_backward; }

int schedule_default_stages_per_rank(ScheduleName name) { return facts[name].default_stages; }

/* Starts from zero: no stage, no microbatch, empty orders. A name that is too long is cut, since it only
 * serves messages. */
void schedule_start(Schedule *s, const char *name, int ranks) {
    *s = (Schedule){.ranks = ranks, .segments = 1};
    snprintf(s->name, sizeof s->name, "%s", name);
    s->orders = mem_alloc_array((size_t)ranks, sizeof *s->orders);
}

/* -1 means not on any rank yet; schedule_check finds stages that stay so. */
void schedule_place(Schedule *s, int stages) {
    s->stages = stages;
    s->rank_of_stage = mem_alloc_array((size_t)stages, sizeof *s->rank_of_stage);
    for (int i = 0; i < stages; i++) s->rank_of_stage[i] = -1;
}

/* Also valid for a zeroed or merely started schedule. */
void schedule_free(Schedule *s) {
    for (int r = 0; r < s->ranks; r++) free(s->orders[r].cells);
    free(s->orders);
    free(s->rank_of_stage);
    *s = (Schedule){0};
}

/* A stage lives on one rank, so the order of its wgrads is that rank's. */
bool schedule_adds_in_order(const Schedule *s) {
    int *last = mem_alloc_array((size_t)s->stages, sizeof *last);
    bool ascending = true;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++) {
            const Cell *cell = &s->orders[r].cells[i];
            if (cell->kind != CELL_B && cell->kind != CELL_W) continue;
            ascending = ascending && cell->microbatch >= last[cell->stage];
            last[cell->stage] = cell->microbatch;
        }
    free(last);
    return ascending;
}

/* Grows by doubling: orders may have a million cells. */
void order_add(Order *o, Cell cell) {
    if (o->count == o->capacity) {
        o->capacity = o->capacity ? 2 * o->capacity : 16;
        o->cells = mem_grow(o->cells, (size_t)o->capacity * sizeof *o->cells);
    }
    o->cells[o->count++] = cell;
}

/* Walks over all cells, which is fine: it is called a few times for each schedule and never inside a step. */
static bool has_kind(const Schedule *s, bool (*is)(CellKind kind)) {
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++)
            if (is(s->orders[r].cells[i].kind)) return true;
    return false;
}

bool schedule_has_transfers(const Schedule *s) { return has_kind(s, cell_is_transfer); }

bool schedule_has_parameters(const Schedule *s) { return has_kind(s, cell_is_parameter); }

/* Keys decide when parameters are gathered and gradients reduced, on every mesh. Cells that decide it too
 * would be a second source. */
ErrorCode schedule_refuse_parameters(const Schedule *s, const char *path, Error *err) {
    int rank = 0, at = 0;
    if (!schedule_has_parameters(s)) return OK;
    while (!cell_is_parameter(s->orders[rank].cells[at].kind))
        if (++at == s->orders[rank].count) rank++, at = 0;
    Text cell = {0};
    schedule_write_cell(&s->orders[rank].cells[at], &cell);
    error_set(
        err, ERR_CONFIG,
        "%s: rank %d (line %d) has the cell %s: a run places UNSHARD, RESHARD and REDUCE_GRAD itself, as "
        "train.reshard_after_forward and train.gradient_sync ask; leave those cells out",
        path, rank, rank + 1, cell.data);
    text_free(&cell);
    return ERR_CONFIG;
}

/* As in PyTorch's CSV files; an idle cell is empty. */
const char *cell_kind_name(CellKind kind) {
    static const char *const names[CELL_KINDS] = {
        "", "F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"};
    return names[kind];
}

/* schedule_write_csv adds the brackets of a composite, since it sees both of its cells. */
void schedule_write_cell(const Cell *cell, Text *out) {
    if (cell->kind == CELL_IDLE) return;
    text_printf(out, "%d%s", cell->stage, cell_kind_name(cell->kind));
    if (cell_has_microbatch(cell->kind)) text_printf(out, "%d", cell->microbatch);
}

/* The two cells of a composite are in one column of the file and count as one in messages. */
int schedule_column(const Order *o, int index) {
    int column = 1;
    for (int i = 0; i < index; i++) column += !o->cells[i].overlap;
    return column;
}

/* Gives the position as the author of a file sees it. Always returns ERR_DATA, so callers can return its
 * result. */
ErrorCode schedule_fail(const Schedule *s, int rank, int index, Error *err, const char *format, ...) {
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const Order *o = &s->orders[rank];
    Text cell = {0};
    text_puts(&cell, "");
    schedule_write_cell(&o->cells[index], &cell);
    error_set(err, ERR_DATA, "rank %d, cell %d (%s): %s", rank, schedule_column(o, index), cell.data, what);
    text_free(&cell);
    return ERR_DATA;
}
