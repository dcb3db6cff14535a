/* Matrices that an optimizer must see whole although tp shards them: MATRIX_GATHER, MATRIX_SCATTER, and the
 * part of UPDATE that applies their steps (program/owners.h).
 *
 *     MATRIX_GATHER    directions of local shards --> local | ==to owners==> | owned
 *     MATRIX_SCATTER   owned --> x, the full matrix --> step --> owned | ==back==> | local
 *     UPDATE           local --> master weights
 *
 * If a parameter stores several matrices, a buffer holds its local shard matrix by matrix, each row by row,
 * so that the shard of each matrix is a matrix as well. The buffers use the memory of passes, as other
 * updates do. */
#include <string.h>

#include "device/ops/memory.h"
#include "engine/execution.h"
#include "program/owners.h"

static float *buffer_at(const Engine *e, size_t before) {
    return (float *)(void *)(e->work.scratch + before);
}

typedef struct MatrixBuffers {
    float *buffer[OWNER_BUFFERS];
    char *scratch; /* after the buffers */
} MatrixBuffers;

static MatrixBuffers buffers_of(const Engine *e, int unit) {
    const Partition *p = &e->plan->partition;
    size_t own = owners_buffer_bytes(p, unit, BUFFER_LOCAL),
           made = owners_buffer_bytes(p, unit, BUFFER_OWNED);
    return (MatrixBuffers){{buffer_at(e, 0), buffer_at(e, own)}, e->work.scratch + own + made};
}

/* Exchanges one buffer for the other: only counted shards go to the owners, but all come back. */
static void start(Execution *x, int unit, OwnerBuffer from) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    const Partition *p = &e->plan->partition;
    OwnerBuffer to = from == BUFFER_LOCAL ? BUFFER_OWNED : BUFFER_LOCAL;
    MatrixBuffers buffers = buffers_of(e, unit);
    for (int buffer = 0; buffer < OWNER_BUFFERS; buffer++) {
        OwnerSegment s[SPLITS_MAX];
        owners_segments(p, unit, (OwnerBuffer)buffer, s);
        for (int q = 0; q < p->tensors; q++)
            e->traffic.matrix_parts[buffer][q] =
                (CommRange){s[q].first, from == BUFFER_LOCAL ? s[q].counted : s[q].count};
    }
    execution_must(e,
                   comm_all_to_all_v(e->comm, MESH_TENSOR, sizeof(float), e->traffic.matrix_parts[from],
                                     buffers.buffer[from], e->traffic.matrix_parts[to], buffers.buffer[to],
                                     &e->traffic.matrices, &err),
                   &err);
}

/* ---- local shards ---- */

/* This rank's shard of a parameter, as one run. */
static UpdateRun shard_run(const Engine *e, int i, ParamSegment *segment) {
    const Param *p = &e->model.table.params[i];
    *segment = partition_segment(&e->plan->partition, p);
    CHECK(segment->count == p->count);
    return update_run(e, i, *segment, 0, (SegmentRun){.count = p->count});
}

/* The optimizer numbers elements to round states. Rows go together if they are as far apart in the full
 * matrix as here, or if states are fp32 and need no numbers; otherwise each row goes by itself. */
static void matrix_momentum(Engine *e, int i, const UpdateRun *run, const ParamSegment *segment,
                            ParamMatrix m, int64_t stride, float *to) {
    const ParamGroup *g = param_group(&e->plan->groups, i);
    bool together = m.row == stride || run->store.type == DTYPE_F32;
    ParamMatrix rows = {m.first, together ? m.rows : 1, m.cols, m.row};
    for (int64_t r = 0; r < m.rows; r += rows.rows, to += rows.rows * m.cols) {
        rows.first = m.first + r * m.row;
        g->optimizer->matrices->momentum_of(e->device, &g->settings, update_step(e, i), run, &rows,
                                            segment_run(segment, rows.first).element, to);
    }
}

static void shard_momentum(Engine *e, int i, float *to) {
    const Param *p = &e->model.table.params[i];
    Param whole = param_unsharded(&e->plan->spec.model, p);
    ParamSegment segment;
    UpdateRun run = shard_run(e, i, &segment);
    for (int k = 0; k < param_matrices(p); k++) {
        ParamMatrix m = param_matrix(p, k);
        matrix_momentum(e, i, &run, &segment, m, param_matrix(&whole, k).row, to);
        to += m.rows * m.cols;
    }
}

static void apply_to_shard(Engine *e, int i, const float *from) {
    const Param *p = &e->model.table.params[i];
    const ParamGroup *g = param_group(&e->plan->groups, i);
    Param whole = param_unsharded(&e->plan->spec.model, p);
    ParamSegment segment;
    UpdateRun run = shard_run(e, i, &segment);
    for (int k = 0; k < param_matrices(p); k++) {
        ParamMatrix m = param_matrix(p, k), all = param_matrix(&whole, k);
        g->optimizer->matrices->apply(e->device, &g->settings, update_step(e, i), &run, &m, &all, from);
        from += m.rows * m.cols;
    }
    update_average(e, i, segment, 0, segment.count);
}

/* ---- full matrices ---- */

/* Copies between a rank's part of a buffer and the full matrix; back: to the buffer. Returns the number of
 * elements. */
static int64_t move_part(Device *d, MatrixBlock part, int64_t cols, float *shard, float *x, bool back) {
    float *at = x + part.row * cols + part.col;
    size_t row = (size_t)cols * sizeof(float), own = (size_t)part.cols * sizeof(float);
    OP(d, copy_rows, .rows = part.rows, .bytes = own, .to = back ? shard : at, .to_stride = back ? own : row,
       .from = back ? at : shard, .from_stride = back ? row : own);
    return part.rows * part.cols;
}

/* The step of each matrix replaces its direction. Replicas have sent no direction, but get a step. */
static void orthogonalise_parameter(Engine *e, const OwnerWalk *w, float *made, char *scratch) {
    const Partition *p = w->p;
    const ParamGroup *g = param_group(&e->plan->groups, w->param);
    const MatrixUpdate *u = g->optimizer->matrices;
    Param whole = param_unsharded(&e->plan->spec.model, &e->model.table.params[w->param]);
    int64_t at[SPLITS_MAX];
    memcpy(at, w->at, sizeof at);
    for (int k = 0; k < param_matrices(&whole); k++) {
        ParamMatrix m = param_matrix(&whole, k);
        float *x = u->momentum_buffer(scratch, &m);
        for (int q = 0; q < p->tensors; q++)
            if (!w->copy[q])
                move_part(e->device, owners_block(p, &whole, k, q), m.cols, made + at[q], x, false);
        float *step = u->orthogonalise(e->device, &g->settings, &m, scratch);
        for (int q = 0; q < p->tensors; q++)
            at[q] += move_part(e->device, owners_block(p, &whole, k, q), m.cols, made + at[q], step, true);
    }
}

/* ---- actions; in a skipped step they do nothing ---- */

void matrices_gather(Execution *x, Action a) {
    Engine *e = x->engine;
    if (x->result->skipped) return;
    float *own = buffers_of(e, a.unit).buffer[BUFFER_LOCAL];
    OwnerWalk w = owners_walk(&e->plan->partition, a.unit, BUFFER_LOCAL);
    while (owners_next(&w)) shard_momentum(e, w.param, own + w.at[e->plan->partition.tensor]);
    start(x, a.unit, BUFFER_LOCAL);
}

void matrices_scatter(Execution *x, Action a) {
    Engine *e = x->engine;
    if (x->result->skipped) return;
    MatrixBuffers buffers = buffers_of(e, a.unit);
    OwnerWalk w = owners_walk(&e->plan->partition, a.unit, BUFFER_OWNED);
    execution_wait(e, &e->traffic.matrices);
    while (owners_next(&w)) orthogonalise_parameter(e, &w, buffers.buffer[BUFFER_OWNED], buffers.scratch);
    start(x, a.unit, BUFFER_OWNED);
}

void matrices_update(Execution *x, int unit) {
    Engine *e = x->engine;
    const Partition *p = &e->plan->partition;
    if (!owners_have(p, unit)) return;
    execution_wait(e, &e->traffic.matrices);
    const float *own = buffers_of(e, unit).buffer[BUFFER_LOCAL];
    OwnerWalk w = owners_walk(p, unit, BUFFER_LOCAL);
    while (owners_next(&w)) apply_to_shard(e, w.param, own + w.at[p->tensor]);
}
