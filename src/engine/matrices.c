/* Matrices that an optimizer must see whole, of which tp leaves each rank a box: COLLECT, RETURN, and what of
 * UPDATE takes their steps (program/makers.h).
 *
 *     COLLECT   directions of own boxes --> own | ==to makers==> | made
 *     RETURN    made --> x, whole --> step --> made | ==back==> | own
 *     UPDATE    own --> master weights
 *
 * Of a parameter that stores several matrices its box lies in a room matrix after matrix, each row by row, so
 * that a box's part of a matrix is a matrix. Rooms are in the memory of passes, as other updates are. */
#include <string.h>

#include "engine/execution.h"
#include "program/makers.h"

static float *room_at(const Engine *e, size_t before) { return (float *)(void *)(e->work.scratch + before); }

typedef struct Rooms {
    float *room[MAKER_ROOMS];
    char *scratch; /* behind them */
} Rooms;

static Rooms rooms_of(const Engine *e, int unit) {
    const Partition *p = &e->plan->partition;
    size_t own = makers_room(p, unit, ROOM_OWN), made = makers_room(p, unit, ROOM_MADE);
    return (Rooms){{room_at(e, 0), room_at(e, own)}, e->work.scratch + own + made};
}

/* From room to room: towards the makers what is counted, back all that there is. */
static void start(Execution *x, int unit, MakerRoom from) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    const Partition *p = &e->plan->partition;
    MakerRoom to = from == ROOM_OWN ? ROOM_MADE : ROOM_OWN;
    Rooms rooms = rooms_of(e, unit);
    for (int room = 0; room < MAKER_ROOMS; room++) {
        MakerSegment s[LEAVES_MAX];
        makers_segments(p, unit, (MakerRoom)room, s);
        for (int q = 0; q < p->tensors; q++)
            e->traffic.boxes[room][q] = (CommPart){s[q].first, from == ROOM_OWN ? s[q].counted : s[q].count};
    }
    execution_must(e,
                   comm_exchange(e->comm, MESH_TENSOR, sizeof(float), e->traffic.boxes[from],
                                 rooms.room[from], e->traffic.boxes[to], rooms.room[to], &e->traffic.matrices,
                                 &err),
                   &err);
}

/* ---- boxes ---- */

/* The whole of what this rank has of a parameter. */
static UpdateRun box_run(const Engine *e, int i, Piece *piece) {
    const Param *p = &e->model.table.params[i];
    *piece = partition_piece(&e->plan->partition, p);
    CHECK(piece->count == p->count);
    return update_run(e, i, *piece, 0, (PieceRun){.count = p->count});
}

/* Rows of a box lie as far apart in the whole as here, or each is a run of its own: of states in fp32, which
 * are not rounded, nobody asks for numbers. */
static void direct_matrix(Engine *e, int i, const UpdateRun *run, const Piece *piece, ParamMatrix m,
                          int64_t stride, float *to) {
    const ParamGroup *g = param_group(&e->plan->groups, i);
    bool together = m.row == stride || run->store.type == DTYPE_F32;
    ParamMatrix rows = {m.first, together ? m.rows : 1, m.cols, m.row};
    for (int64_t r = 0; r < m.rows; r += rows.rows, to += rows.rows * m.cols) {
        rows.first = m.first + r * m.row;
        g->optimizer->matrices->direct(e->device, &g->settings, update_step(e, i), run, &rows,
                                       piece_run(piece, rows.first).element, to);
    }
}

static void direct_box(Engine *e, int i, float *to) {
    const Param *p = &e->model.table.params[i];
    Param whole = param_whole(&e->plan->spec.model, p);
    Piece piece;
    UpdateRun run = box_run(e, i, &piece);
    for (int k = 0; k < param_matrices(p); k++) {
        ParamMatrix m = param_matrix(p, k);
        direct_matrix(e, i, &run, &piece, m, param_matrix(&whole, k).row, to);
        to += m.rows * m.cols;
    }
}

static void descend_box(Engine *e, int i, const float *from) {
    const Param *p = &e->model.table.params[i];
    const ParamGroup *g = param_group(&e->plan->groups, i);
    Param whole = param_whole(&e->plan->spec.model, p);
    Piece piece;
    UpdateRun run = box_run(e, i, &piece);
    for (int k = 0; k < param_matrices(p); k++) {
        ParamMatrix m = param_matrix(p, k), all = param_matrix(&whole, k);
        g->optimizer->matrices->descend(e->device, &g->settings, update_step(e, i), &run, &m, &all, from);
        from += m.rows * m.cols;
    }
    update_average(e, i, piece, 0, piece.count);
}

/* ---- whole matrices ---- */

/* Between a place's part in a room and the matrix; returns its elements. */
static int64_t move_part(Device *d, MatrixPart part, int64_t cols, float *box, float *x, bool back) {
    float *at = x + part.row * cols + part.col;
    size_t row = (size_t)cols * sizeof(float), own = (size_t)part.cols * sizeof(float);
    OP(d, OP_COPY_ROWS, copy_rows, part.rows, own, back ? box : at, back ? own : row, back ? at : box,
       back ? row : own);
    return part.rows * part.cols;
}

/* The step of each matrix takes the place of its direction. Copies have sent none, and get one. */
static void turn_parameter(Engine *e, const MakerWalk *w, float *made, char *scratch) {
    const Partition *p = w->p;
    const ParamGroup *g = param_group(&e->plan->groups, w->param);
    const MatrixUpdate *u = g->optimizer->matrices;
    Param whole = param_whole(&e->plan->spec.model, &e->model.table.params[w->param]);
    int64_t at[LEAVES_MAX];
    memcpy(at, w->at, sizeof at);
    for (int k = 0; k < param_matrices(&whole); k++) {
        ParamMatrix m = param_matrix(&whole, k);
        float *x = u->room(scratch, &m);
        for (int q = 0; q < p->tensors; q++)
            if (!w->copy[q])
                move_part(e->device, makers_part(p, &whole, k, q), m.cols, made + at[q], x, false);
        float *step = u->turn(e->device, &g->settings, &m, scratch);
        for (int q = 0; q < p->tensors; q++)
            at[q] += move_part(e->device, makers_part(p, &whole, k, q), m.cols, made + at[q], step, true);
    }
}

/* ---- actions: of a step that was found to be useless, none ---- */

void matrices_collect(Execution *x, Action a) {
    Engine *e = x->engine;
    if (x->result->skipped) return;
    float *own = rooms_of(e, a.unit).room[ROOM_OWN];
    MakerWalk w = makers_walk(&e->plan->partition, a.unit, ROOM_OWN);
    while (makers_next(&w)) direct_box(e, w.param, own + w.at[e->plan->partition.tensor]);
    start(x, a.unit, ROOM_OWN);
}

void matrices_return(Execution *x, Action a) {
    Engine *e = x->engine;
    if (x->result->skipped) return;
    Rooms rooms = rooms_of(e, a.unit);
    MakerWalk w = makers_walk(&e->plan->partition, a.unit, ROOM_MADE);
    execution_wait(e, &e->traffic.matrices);
    while (makers_next(&w)) turn_parameter(e, &w, rooms.room[ROOM_MADE], rooms.scratch);
    start(x, a.unit, ROOM_MADE);
}

void matrices_update(Execution *x, int unit) {
    Engine *e = x->engine;
    const Partition *p = &e->plan->partition;
    if (!makers_have(p, unit)) return;
    execution_wait(e, &e->traffic.matrices);
    const float *own = rooms_of(e, unit).room[ROOM_OWN];
    MakerWalk w = makers_walk(p, unit, ROOM_OWN);
    while (makers_next(&w)) descend_box(e, w.param, own + w.at[p->tensor]);
}
