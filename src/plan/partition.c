/* Shares are whole cache lines, so that a share of a share, and its bf16 copy, begin on 16 elements. */
#include "plan/partition.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { ALIGN = 16 }; /* elements: one cache line of fp32 */

void stages_single(Stages *s, int units) {
    *s = (Stages){
        .count = 1, .first = mem_alloc_array(2, sizeof(int)), .rank = mem_alloc_array(1, sizeof(int))};
    s->first[1] = units;
}

static void stages_copy(Stages *to, const Stages *from) {
    size_t n = (size_t)from->count;
    *to = (Stages){.count = from->count,
                   .first = mem_alloc_array(n + 1, sizeof(int)),
                   .rank = mem_alloc_array(n, sizeof(int))};
    memcpy(to->first, from->first, (n + 1) * sizeof(int));
    memcpy(to->rank, from->rank, n * sizeof(int));
}

void stages_free(Stages *s) {
    free(s->first);
    free(s->rank);
    *s = (Stages){0};
}

int stages_of_unit(const Stages *s, int unit) {
    int stage = 0;
    while (stage + 1 < s->count && s->first[stage + 1] <= unit) stage++;
    return stage;
}

static size_t share_of(size_t elements, int shards) {
    size_t each = (elements + (size_t)shards - 1) / (size_t)shards;
    return (each + ALIGN - 1) / ALIGN * ALIGN;
}

/* The shares of a unit, and where they begin if this rank holds them. */
static void share_unit(Partition *p, int unit) {
    bool held = unit < p->table->units && partition_holds(p, unit);
    const size_t *flats = p->table->flats[unit < p->table->units ? unit : 0];
    for (int f = 0; f < FLATS; f++) {
        p->share[unit][f] = (Share){share_of(flats[f], p->shards), p->owned};
        if (held) p->owned += p->share[unit][f].count;
    }
}

ErrorCode partition_model(const ModelConfig *whole, const Mesh *mesh, int rank, ModelConfig *own,
                          Error *err) {
    int tensors = mesh_size(mesh, MESH_TENSOR);
    TRY(axes_check(whole, tensors, err));
    *own = axes_local(whole, tensors, mesh_place(mesh, MESH_TENSOR, rank));
    return OK;
}

void partition_build(Partition *p, const ParamTable *table, const ModelConfig *whole, const Mesh *mesh,
                     int rank, const Stages *stages) {
    *p = (Partition){
        .table = table, .whole = whole, .mesh = *mesh, .rank = rank, .tied = whole->tie_word_embeddings};
    p->pipe = mesh_place(mesh, MESH_PIPELINE, rank);
    stages_copy(&p->stages, stages);
    p->place = mem_alloc_array((size_t)table->units + 1, sizeof *p->place);
    for (int u = 0; u <= table->units; u++) p->place[u] = stages->rank[stages_of_unit(stages, u)];
    p->shards = mesh_size(mesh, MESH_SHARDS), p->shard = mesh_place(mesh, MESH_SHARDS, rank);
    p->replicas = mesh_size(mesh, MESH_REPLICAS), p->replica = mesh_place(mesh, MESH_REPLICAS, rank);
    p->tensors = mesh_size(mesh, MESH_TENSOR), p->tensor = mesh_place(mesh, MESH_TENSOR, rank);
    p->tied_copy = p->tied && partition_runs(p, table->units - 1) && !partition_runs(p, 0);
    p->share = mem_alloc_array((size_t)table->units + 1, sizeof *p->share);
    for (int u = 0; u <= table->units; u++) share_unit(p, u);
}

void partition_free(Partition *p) {
    stages_free(&p->stages);
    free(p->place);
    free(p->share);
    *p = (Partition){0};
}

int partition_pipeline_rank(const Partition *p, int unit) { return p->place[unit]; }

bool partition_runs(const Partition *p, int unit) { return partition_pipeline_rank(p, unit) == p->pipe; }

bool partition_holds(const Partition *p, int unit) {
    return partition_runs(p, unit) || (unit == 0 && p->tied_copy);
}

bool partition_makes_gradient(const Partition *p, int unit) {
    return partition_runs(p, unit) && (unit < p->table->units || p->tied);
}

bool partition_first_stage(const Partition *p) { return p->pipe == 0; }

int partition_peer(const Partition *p, int unit) {
    return mesh_member(&p->mesh, MESH_PIPELINE, p->rank, partition_pipeline_rank(p, unit));
}

/* ---- pieces ---- */

Piece partition_piece(const Partition *p, const Param *param) {
    const Share *s = &p->share[param->unit][param->flat];
    if (!partition_holds(p, param->unit)) return (Piece){.count = 0};
    Box box = axes_box(p->whole, param, p->tensors, p->tensor).box;
    CHECK(box.rows * box.columns == param->count);
    size_t begin = param->place, end = begin + (size_t)param->count;
    size_t low = s->count * (size_t)p->shard, high = low + s->count;
    size_t first = begin > low ? begin : low, last = end < high ? end : high;
    if (first >= last) return (Piece){.box = box};
    return (Piece){.box = box,
                   .first = (int64_t)(first - begin),
                   .count = (int64_t)(last - first),
                   .at = s->start + first - low};
}

bool partition_counts(const Partition *p, const Param *param) {
    return partition_runs(p, param->unit) && axes_first(p->whole, param, &p->mesh, p->rank);
}

bool partition_has_copies(const Partition *p) {
    int last = p->table->units - 1;
    return p->replicas * p->tensors > 1 ||
           (p->tied && partition_pipeline_rank(p, 0) != partition_pipeline_rank(p, last));
}

int64_t partition_counted(const Partition *p) {
    int64_t sum = 0;
    for (int i = 0; i < p->table->count; i++)
        if (partition_counts(p, &p->table->params[i])) sum += partition_piece(p, &p->table->params[i]).count;
    return sum;
}

static bool is_full_width(const Box *b) { return b->columns == b->stride; }

PieceRun piece_run(const Piece *piece, int64_t at) {
    const Box *b = &piece->box;
    int64_t place = piece->first + at, row = place / b->columns, column = place % b->columns;
    PieceRun run = {(b->row + row) * b->stride + b->column + column, piece->count - at};
    if (!is_full_width(b) && b->columns - column < run.count) run.count = b->columns - column;
    return run;
}

int64_t piece_runs(const Piece *piece) {
    const Box *b = &piece->box;
    if (piece->count == 0 || is_full_width(b)) return piece->count > 0;
    return (piece->first + piece->count - 1) / b->columns - piece->first / b->columns + 1;
}

size_t partition_whole(const Partition *p, int unit, Flat flat) {
    return p->share[unit][flat].count * (size_t)p->shards;
}
