/* Muon needs whole matrices, but TP shards them. This file assigns each matrix an owner rank (greedy, by
 * FLOPs) and lays out the gather and scatter buffers. All ranks of tp that share matrices compute the same
 * assignment without communication, since their tables differ only in sizes. */
#include "program/owners.h"

#include <stdlib.h>

#include "device/pool.h"

static TpGroup tp_group_at(const Partition *p, int rank) {
    return (TpGroup){p->tensors, rank, p->splits, p->copies};
}

static bool is_here(const Partition *p, const Param *param) {
    return !param->remote && partition_owner(p, param) == p->flat_shard[param->unit][param->flat].shard;
}

/* ---- owners ---- */

typedef struct Work {
    double flops;
    int param;
} Work;

/* Most work first; ties by index. */
static int by_work(const void *a, const void *b) {
    const Work *x = a, *y = b;
    if (x->flops < y->flops || x->flops > y->flops) return x->flops > y->flops ? -1 : 1;
    return x->param < y->param ? -1 : 1;
}

/* The rank with the least work so far takes the largest task (Graham 1969, as for shards). load: [shards,
 * tensors]. */
static void assign_unit(Partition *p, const ParamGroups *g, int unit, Work *work, double *load) {
    const ParamTable *t = p->table;
    int count = 0;
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) {
        bool uncut = p->unsharded->whole_experts && param_is_of_experts(t->params[i].row);
        if (uncut || t->params[i].remote || !param_needs_matrix(g, i, &t->params[i])) continue;
        Param whole = param_unsharded(p->unsharded, &t->params[i]);
        work[count++] = (Work){optimizer_flops(param_group(g, i)->optimizer, &whole), i};
    }
    qsort(work, (size_t)count, sizeof *work, by_work);
    for (int i = 0; i < count; i++) {
        double *of = load + partition_owner(p, &t->params[work[i].param]) * p->tensors;
        int least = 0;
        for (int q = 1; q < p->tensors; q++)
            if (of[q] < of[least]) least = q;
        of[least] += work[i].flops;
        p->owners[work[i].param] = least;
    }
}

void owners_assign(Partition *p, const ParamGroups *g) {
    size_t params = (size_t)p->table->count;
    if (p->tensors == 1 || !g || !param_groups_need_matrices(g)) return;
    Work *work = mem_alloc_array(params, sizeof *work);
    double *load = mem_alloc_array((size_t)(p->shards * p->tensors), sizeof *load);
    p->owners = mem_alloc_array(params, sizeof *p->owners);
    for (size_t i = 0; i < params; i++) p->owners[i] = -1;
    for (int u = 0; u < p->table->units; u++)
        if (partition_runs(p, u)) assign_unit(p, g, u, work, load);
    free(work);
    free(load);
}

bool owners_have(const Partition *p, int unit) {
    for (int i = p->table->unit_first[unit]; p->owners && i < p->table->unit_first[unit + 1]; i++)
        if (p->owners[i] >= 0) return true;
    return false;
}

int owner_of_matrices(const Partition *p, int param) {
    return p->owners && is_here(p, &p->table->params[param]) ? p->owners[param] : -1;
}

/* ---- buffers ---- */

static int64_t shard_elements(const Partition *p, const Param *param, int rank) {
    LocalShard b = axes_local_shard(p->unsharded, param, tp_group_at(p, rank), partition_experts(p));
    return shard_rows(&b) * shard_columns(&b);
}

/* Whether the rank with this index counts its shard; else the shard is a replica of another's. */
static bool is_counted(const Partition *p, const Param *param, int rank) {
    AxisSet copied = axes_any(axes_kind(p->unsharded, param), DOES_COPY) & MESH_TENSOR;
    return mesh_group_rank(&p->mesh, copied, mesh_member(&p->mesh, MESH_TENSOR, p->rank, rank)) == 0;
}

/* The ranks of tp whose shards of a parameter a buffer has: first <= q < end. */
typedef struct RankRange {
    int first, end;
} RankRange;

static RankRange ranks_in(const Partition *p, OwnerBuffer buffer, int param) {
    int owner = owner_of_matrices(p, param);
    if (buffer == BUFFER_OWNED) return (RankRange){0, owner == p->tensor ? p->tensors : 0};
    return (RankRange){p->tensor, owner >= 0 ? p->tensor + 1 : p->tensor};
}

static int segment_of(const Partition *p, OwnerBuffer buffer, int param, int rank) {
    return buffer == BUFFER_OWNED ? rank : p->owners[param];
}

void owners_segments(const Partition *p, int unit, OwnerBuffer buffer, OwnerSegment out[SPLITS_MAX]) {
    int64_t before = 0;
    for (int q = 0; q < p->tensors; q++) out[q] = (OwnerSegment){0};
    for (int i = p->table->unit_first[unit]; i < p->table->unit_first[unit + 1]; i++) {
        const Param *param = &p->table->params[i];
        RankRange ranks = ranks_in(p, buffer, i);
        for (int q = ranks.first; q < ranks.end; q++) {
            OwnerSegment *s = &out[segment_of(p, buffer, i, q)];
            int64_t count = shard_elements(p, param, q);
            s->count += count, s->counted += is_counted(p, param, q) ? count : 0;
        }
    }
    for (int q = 0; q < p->tensors; before += out[q++].count) out[q].first = before;
}

size_t owners_buffer_bytes(const Partition *p, int unit, OwnerBuffer buffer) {
    OwnerSegment s[SPLITS_MAX];
    owners_segments(p, unit, buffer, s);
    return pool_round((size_t)(s[p->tensors - 1].first + s[p->tensors - 1].count) * sizeof(float));
}

uint64_t owners_traffic(const Partition *p, int unit, OwnerBuffer from) {
    OwnerSegment s[SPLITS_MAX];
    int64_t sum = 0;
    owners_segments(p, unit, from, s);
    for (int q = 0; q < p->tensors; q++)
        sum += q == p->tensor ? 0 : from == BUFFER_LOCAL ? s[q].counted : s[q].count;
    return (uint64_t)sum * sizeof(float);
}

size_t owners_scratch(const Partition *p, const ParamGroups *g, int unit) {
    size_t most = 0;
    if (!owners_have(p, unit)) return 0;
    for (int i = p->table->unit_first[unit]; i < p->table->unit_first[unit + 1]; i++) {
        if (owner_of_matrices(p, i) != p->tensor) continue;
        Param whole = param_unsharded(p->unsharded, &p->table->params[i]);
        size_t bytes = pool_round(param_scratch_bytes(g, i, &whole));
        if (bytes > most) most = bytes;
    }
    return owners_buffer_bytes(p, unit, BUFFER_LOCAL) + owners_buffer_bytes(p, unit, BUFFER_OWNED) + most;
}

/* ---- walks ---- */

/* In a walk, a segment's `first` is the offset of the next counted shard, and `counted` that of the next
 * replica. */
OwnerWalk owners_walk(const Partition *p, int unit, OwnerBuffer buffer) {
    OwnerWalk w = {.p = p, .unit = unit, .buffer = buffer, .param = p->table->unit_first[unit] - 1};
    owners_segments(p, unit, buffer, w.next);
    for (int q = 0; q < p->tensors; q++) w.next[q].counted += w.next[q].first;
    return w;
}

bool owners_next(OwnerWalk *w) {
    const Partition *p = w->p;
    for (w->param++; w->param < p->table->unit_first[w->unit + 1]; w->param++) {
        RankRange ranks = ranks_in(p, w->buffer, w->param);
        const Param *param = &p->table->params[w->param];
        for (int q = ranks.first; q < ranks.end; q++) {
            OwnerSegment *s = &w->next[segment_of(p, w->buffer, w->param, q)];
            w->copy[q] = !is_counted(p, param, q);
            int64_t *next = w->copy[q] ? &s->counted : &s->first;
            w->at[q] = *next;
            *next += shard_elements(p, param, q);
        }
        if (ranks.first < ranks.end) return true;
    }
    return false;
}

/* ---- parts of matrices ---- */

/* The part of a run that is inside one of the ranges. At most one range overlaps it; if a dimension is not
 * cut, it has all of the run. */
static ShardRange overlap(const ShardRange ranges[PARAM_MATRICES], int64_t first, int64_t count) {
    for (int i = 0; i < PARAM_MATRICES; i++) {
        int64_t low = ranges[i].first > first ? ranges[i].first : first,
                end = ranges[i].first + ranges[i].count, high = end < first + count ? end : first + count;
        if (low < high) return (ShardRange){low - first, high - low};
    }
    return (ShardRange){0, 0};
}

/* Fused experts are alike: a rank has the same part of each. */
MatrixBlock owners_block(const Partition *p, const Param *whole, int k, int rank) {
    ParamMatrix m = param_matrix(whole, k);
    LocalShard b = axes_local_shard(p->unsharded, whole, tp_group_at(p, rank), (ShardRange){0, 1});
    ShardRange rows = overlap(b.rows, m.first / whole->cols % b.every, m.rows),
               columns = overlap(b.columns, m.first % whole->cols, m.cols);
    return (MatrixBlock){rows.first, columns.first, rows.count, columns.count};
}
