/* What a rank holds follows in four steps: the units of its stages, the local shards that tp leaves of their
 * parameters (axes.c), of experts those of this rank of ep, and the shards of the flats that these make up
 * (cuts.c).
 *
 *     model --stages--> units --tp, ep--> local shards in flats --dp_shard, cp--> flats' shards --> owned
 *
 *     flat of a unit         | local shard of p | of q            | of r       |
 *     shards of the flat     |       shard 0       |   shard 1       | shard 2 |
 *     segments in shard 1                          q, from its middle  r, its head
 *
 * All ranks of a pipeline rank cut and assign alike and independently: their inputs (the table, the groups,
 * the sizes so far) are the same, so nothing is exchanged, and any rank of any mesh can be planned on any
 * machine. Each shard begins at a cache line of the owned arrays.
 *
 * Elsewhere called: FSDP sharding, distributed optimizer (ZeRO). */
#include "program/partition.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/cuts.h"
#include "program/owners.h"

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

/* Unit number `units` is the tied head's gradient, which belongs to the last stage, like the head. */
int stages_of_unit(const Stages *s, int unit) {
    int stage = 0;
    while (stage + 1 < s->count && s->first[stage + 1] <= unit) stage++;
    return stage;
}

/* ---- shards of flats ---- */

/* Finds the matrices of a flat that must stay whole; returns their number. The order of the table is that of
 * offsets, ascending, as cut_evenly requires. */
static int find_whole_runs(const PartitionSpec *spec, int unit, Flat flat,
                           WholeRun *out /* [parameters of the unit] */) {
    const ParamTable *t = spec->table;
    int count = 0;
    for (int i = t->unit_first[unit]; spec->groups && i < t->unit_first[unit + 1]; i++) {
        const Param *p = &t->params[i];
        if (p->flat == flat && !p->remote && param_stays_whole(spec->groups, i, p))
            out[count++] = (WholeRun){(int64_t)p->offset, (int64_t)p->offset + p->capacity};
    }
    return count;
}

/* The shard of a flat that the rank with index `rank` in MESH_SHARDS has. For experts, ranks that differ in
 * ep have the same index, in flats of other experts. */
static int shard_of_rank(const Partition *p, const FlatShard *s, int pipe_of) {
    return mesh_group_rank(&p->mesh, s->axes, mesh_member(&p->mesh, MESH_SHARDS, p->rank, pipe_of));
}

/* Assigns shards by the elements that each rank has so far, summed over the ranks with the same shard, where
 * all of them get the same result. */
static void assign_shards(const Partition *p, FlatShard *s) {
    int64_t *load = mem_alloc_array((size_t)s->shards, sizeof *load);
    for (int i = 0; i < p->shards; i++) load[shard_of_rank(p, s, i)] += p->assigned[i];
    cut_assign(s->ranges, s->shards, load);
    free(load);
}

/* Whether all ranks of tp have equally much of a unit. With a vocabulary they may not, unless the flat is
 * padded. The tp shards of a matrix must be on one shard of the flat whatever their sizes, and so must a
 * replicated matrix of an MTP module, which follows the head in its flat. */
static bool is_alike(const Partition *p, int unit) {
    bool block = unit > 0 && unit < p->table->units - 1;
    return block || p->unsharded->mtp_module || axes_splits_evenly(p->unsharded, p->tensors, p->splits);
}

/* Without matrices that must stay whole, cuts are equal except for the last, and shard k is cut k: the memory
 * of a rank then does not depend on the order of units. Otherwise shards are unequal, and are assigned by
 * what each rank has so far. */
static void cut_flat(Partition *p, const PartitionSpec *spec, int unit, Flat flat, FlatShard *s) {
    const int *first = spec->table->unit_first;
    WholeRun *whole_runs = mem_alloc_array((size_t)(first[unit + 1] - first[unit]) + 1, sizeof *whole_runs);
    int count = find_whole_runs(spec, unit, flat, whole_runs);
    s->axes = flat_of_experts(flat) ? MESH_EXPERT_SHARDS : MESH_SHARDS;
    s->shards = mesh_size(&p->mesh, s->axes), s->shard = mesh_group_rank(&p->mesh, s->axes, p->rank);
    s->inside = mesh_inside(&p->mesh, s->axes, p->rank);
    s->total = (int64_t)spec->table->flats[unit][flat];
    s->ranges = mem_alloc_array((size_t)s->shards, sizeof *s->ranges);
    cut_evenly(s->total, whole_runs, count, s->shards, s->ranges);
    free(whole_runs);
    if (count > 0) assign_shards(p, s);
    for (int i = 0; i < p->shards; i++) {
        int64_t n = s->ranges[shard_of_rank(p, s, i)].count;
        p->load[i] += n, p->assigned[i] += is_alike(p, unit) ? n : 0;
    }
    s->first = s->ranges[s->shard].first, s->count = s->ranges[s->shard].count;
}

/* Assigns the offsets of the shards of vectors, of matrices, or of both in the owned arrays. */
static void shard_flats(Partition *p, bool vectors, bool matrices) {
    for (int u = 0; u < p->table->units; u++)
        for (int f = 0; f < FLATS && partition_holds(p, u); f++) {
            FlatShard *s = &p->flat_shard[u][f];
            if (!(flat_of_vectors((Flat)f) ? vectors : matrices)) continue;
            s->start = p->owned;
            p->owned += ((size_t)s->count + ALIGN - 1) / ALIGN * ALIGN;
        }
}

/* Units come in ascending order, since each is assigned by the load so far. A tied copy comes first, as the
 * embedding does on the first stage: both are assigned with zero load and therefore alike, although the two
 * ranks hold different units. The tied head's gradient is cut as the embedding is, which is held wherever the
 * head runs. */
static void make_shards(Partition *p, const PartitionSpec *spec) {
    int units = p->table->units;
    p->flat_shard = mem_alloc_array((size_t)units + 1, sizeof *p->flat_shard);
    p->load = mem_alloc_array((size_t)p->shards, sizeof *p->load);
    p->assigned = mem_alloc_array((size_t)p->shards, sizeof *p->assigned);
    for (int u = 0; u < units; u++)
        for (int f = 0; f < FLATS && partition_holds(p, u); f++)
            cut_flat(p, spec, u, (Flat)f, &p->flat_shard[u][f]);
    if (spec->inference) {
        shard_flats(p, true, false);
        p->vectors = p->owned;
    }
    shard_flats(p, !spec->inference, true);
    if (partition_makes_gradient(p, units))
        memcpy(p->flat_shard[units], p->flat_shard[0], sizeof p->flat_shard[0]);
}

TpGroup partition_tp_group(const Mesh *mesh, int rank, int splits) {
    int ranks = mesh_size(mesh, MESH_TENSOR);
    return (TpGroup){ranks, mesh_group_rank(mesh, MESH_TENSOR, rank), splits > 0 ? splits : ranks,
                     mesh_size(mesh, MESH_KEY_COPIES)};
}

CpGroup partition_cp(const Mesh *mesh, int rank, int exact_chunks, bool keys) {
    return (CpGroup){mesh_size(mesh, MESH_CONTEXT), mesh_group_rank(mesh, MESH_CONTEXT, rank), exact_chunks,
                     keys};
}

/* Errors come before anything is built: otherwise wrong sizes would appear as a table that does not match its
 * shards. */
ErrorCode partition_model(const ModelConfig *whole, const Mesh *mesh, int rank, int splits, ModelConfig *own,
                          Error *err) {
    TpGroup s = partition_tp_group(mesh, rank, splits);
    int experts = mesh_size(mesh, MESH_EXPERTS);
    TRY(axes_check(whole, s.size, err));
    TRY(axes_check_experts(whole, experts, err));
    *own = axes_local(whole, s);
    if (experts > 1)
        own->expert_ranks = experts, own->expert_rank = mesh_group_rank(mesh, MESH_EXPERTS, rank);
    own->expert_folded = mesh_size(mesh, MESH_FOLDED);
    return OK;
}

void partition_build(Partition *p, const PartitionSpec *spec) {
    const Mesh *mesh = spec->mesh;
    int rank = spec->rank;
    *p = (Partition){.table = spec->table,
                     .unsharded = spec->model,
                     .mesh = *mesh,
                     .rank = rank,
                     .tied = model_embeds_last(spec->model)};
    p->pipe = mesh_group_rank(mesh, MESH_PIPELINE, rank);
    stages_copy(&p->stages, spec->stages);
    p->pipe_of = mem_alloc_array((size_t)p->table->units + 1, sizeof *p->pipe_of);
    for (int u = 0; u <= p->table->units; u++) p->pipe_of[u] = p->stages.rank[stages_of_unit(&p->stages, u)];
    p->shards = mesh_size(mesh, MESH_SHARDS), p->shard = mesh_group_rank(mesh, MESH_SHARDS, rank);
    p->replicas = mesh_size(mesh, MESH_REPLICAS), p->replica = mesh_group_rank(mesh, MESH_REPLICAS, rank);
    p->replicas_inside = mesh_inside(mesh, MESH_REPLICAS, rank);
    TpGroup tp = partition_tp_group(mesh, rank, spec->splits);
    p->tensors = tp.size, p->tensor = tp.rank, p->splits = tp.splits;
    p->copies = tp.copies, p->copy = mesh_group_rank(mesh, MESH_KEY_COPIES, rank);
    CHECK(p->copies == axes_copies(spec->model, p->tensors));
    p->experts = mesh_size(mesh, MESH_EXPERTS), p->expert = mesh_group_rank(mesh, MESH_EXPERTS, rank);
    p->sources = mesh_size(mesh, MESH_EXPERT_SOURCES);
    p->cp = partition_cp(mesh, rank, spec->exact_chunks, spec->keys);
    p->segments = spec->segments > 1 ? spec->segments : 1;
    p->tied_copy = p->tied && partition_runs(p, p->table->units - 1) && !partition_runs(p, 0);
    make_shards(p, spec);
    owners_assign(p, spec->groups);
}

void partition_free(Partition *p) {
    stages_free(&p->stages);
    free(p->pipe_of);
    for (int u = 0; p->flat_shard && u < p->table->units; u++)
        for (int f = 0; f < FLATS; f++) free(p->flat_shard[u][f].ranges);
    free(p->flat_shard);
    free(p->load);
    free(p->assigned);
    free(p->owners);
    *p = (Partition){0};
}

static int pipeline_rank(const Partition *p, int unit) { return p->pipe_of[unit]; }

bool partition_runs(const Partition *p, int unit) { return pipeline_rank(p, unit) == p->pipe; }

bool partition_holds(const Partition *p, int unit) {
    return partition_runs(p, unit) || (unit == 0 && p->tied_copy);
}

/* The tied head's gradient is made where the head is. If the embedding is on another rank, TIE exchanges the
 * two. */
bool partition_makes_gradient(const Partition *p, int unit) {
    return partition_runs(p, unit) && (unit < p->table->units || p->tied);
}

bool partition_counts_batches(const Partition *p) {
    return mesh_group_rank(&p->mesh, (AxisSet)(MESH_SETS - 1) & ~(AxisSet)MESH_DATA, p->rank) == 0;
}

int partition_peer(const Partition *p, int unit) {
    return mesh_member(&p->mesh, MESH_PIPELINE, p->rank, pipeline_rank(p, unit));
}

int partition_rows(const Partition *p) { return p->splits / p->tensors; }

/* Exact chunks of the tokens of a pass on this rank. The gradient of each is computed and rounded by
 * itself. */
int partition_exact_chunks(const Partition *p) {
    return p->cp.exact_chunks > 0 ? p->cp.exact_chunks / (p->cp.ranks * p->segments) : 1;
}

bool partition_splits_shards(const Partition *p) { return p->sources > 1 && p->shards > p->sources; }

int partition_param_rows(const Partition *p, const Param *param) {
    return axes_any(axes_kind(p->unsharded, param), DOES_SUM) & MESH_TENSOR ? partition_rows(p) : 1;
}

/* ---- segments ---- */

ShardRange partition_experts(const Partition *p) {
    int64_t each = p->unsharded->num_experts / p->experts;
    return (ShardRange){p->expert * each, each};
}

/* The shard of a flat and the range of a parameter in it overlap in one run, or not at all. */
ParamSegment partition_segment(const Partition *p, const Param *param) {
    const FlatShard *s = &p->flat_shard[param->unit][param->flat];
    if (!partition_holds(p, param->unit) || param->remote) return (ParamSegment){.count = 0};
    LocalShard shard = axes_local_shard(
        p->unsharded, param, (TpGroup){p->tensors, p->tensor, p->splits, p->copies}, partition_experts(p));
    CHECK(shard_rows(&shard) * shard_columns(&shard) == param->count);
    int64_t begin = (int64_t)param->offset, end = begin + param->count, low = s->first, high = low + s->count;
    int64_t first = begin > low ? begin : low, last = end < high ? end : high;
    if (first >= last) return (ParamSegment){.shard = shard};
    return (ParamSegment){.shard = shard,
                          .first = first - begin,
                          .count = last - first,
                          .at = s->start + (size_t)(first - low)};
}

/* The first replica counts, and of tied parameters the copy on the unit's own stage. Over all ranks this
 * counts every element once, on any mesh (tests/program/test_axes.c). */
bool partition_counts(const Partition *p, const Param *param) {
    return partition_runs(p, param->unit) && axes_first(p->unsharded, param, &p->mesh, p->rank);
}

bool partition_has_copies(const Partition *p) {
    int last = p->table->units - 1;
    return p->replicas * p->tensors > 1 || (p->tied && pipeline_rank(p, 0) != pipeline_rank(p, last));
}

int64_t partition_counted(const Partition *p) {
    int64_t sum = 0;
    for (int i = 0; i < p->table->count; i++)
        if (partition_counts(p, &p->table->params[i]))
            sum += partition_segment(p, &p->table->params[i]).count;
    return sum;
}

/* Maps row (or column) i of a local shard to the number in the full matrix, with the number of rows (columns)
 * that remain in its range. */
static ShardRange range_from(const ShardRange *b, int64_t i) {
    for (; i >= b->count; b++) i -= b->count;
    return (ShardRange){b->first + i, b->count - i};
}

/* A local shard that is narrower than its matrix has a run for each column range of each row. Otherwise the
 * rows of a range are consecutive in both, and form one run. */
SegmentRun segment_run(const ParamSegment *segment, int64_t at) {
    const LocalShard *b = &segment->shard;
    int64_t offset = segment->first + at, left = segment->count - at, columns = shard_columns(b),
            each = shard_rows(b) / b->fused.count, i = offset / columns;
    ShardRange row = range_from(b->rows, i % each), column = range_from(b->columns, offset % columns);
    row.first += (b->fused.first + i / each) * b->every;
    int64_t next = columns == b->stride ? row.count * columns - offset % columns : column.count;
    return (SegmentRun){row.first * b->stride + column.first, next < left ? next : left};
}

int64_t segment_runs(const ParamSegment *segment) {
    int64_t runs = 0;
    for (int64_t at = 0; at < segment->count; runs++) at += segment_run(segment, at).count;
    return runs;
}

size_t partition_flat_elements(const Partition *p, int unit, Flat flat) {
    return (size_t)p->flat_shard[unit][flat].total;
}

/* ---- owners ---- */

/* A matrix that stays whole is where its first element is. */
int partition_owner(const Partition *p, const Param *param) {
    const FlatShard *s = &p->flat_shard[param->unit][param->flat];
    for (int i = 0; i < s->shards; i++)
        if (s->ranges[i].first + s->ranges[i].count > (int64_t)param->offset &&
            s->ranges[i].first <= (int64_t)param->offset)
            return i;
    return -1;
}

/* Ranks of one pipeline rank differ only in their shards, and ranks with the same shard give the same
 * answer. */
int partition_fullest(const Partition *p) {
    int fullest = 0;
    for (int i = 1; i < p->shards; i++)
        if (p->load[i] > p->load[fullest]) fullest = i;
    return mesh_member(&p->mesh, MESH_SHARDS, p->rank, fullest);
}

/* The name of the parameter up to the last ".weight"; in a block, without everything up to the block's
 * number. */
static void put_short_name(const Param *param, Text *out) {
    char number[16];
    const char *name = param->name, *end = strstr(name, ".weight");
    snprintf(number, sizeof number, ".%d.", param->layer);
    const char *block = param->layer >= 0 ? strstr(name, number) : NULL;
    if (block) name = block + strlen(number);
    text_printf(out, "%.*s", end ? (int)(end - name) : (int)strlen(name), name);
}

/* "self_attn.q_proj 0, mlp.up_proj 2" */
static void put_owners(const Partition *p, const ParamGroups *g, int unit, Text *out) {
    const ParamTable *t = p->table;
    const char *gap = "";
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) {
        const Param *param = &t->params[i];
        if (param->remote || !param_stays_whole(g, i, param)) continue;
        int owner = p->owners ? p->owners[i] : -1;
        if (p->shards == 1 && owner < 0) continue;
        text_puts(out, gap);
        put_short_name(param, out);
        if (p->shards > 1) text_printf(out, " %d", partition_owner(p, param));
        if (owner >= 0) text_printf(out, "%s%d", p->shards > 1 ? "." : " ", owner);
        gap = ", ";
    }
}

static void put_line(int first, int last, const Text *owners, Text *out) {
    if (owners->length == 0) return;
    char units[32];
    snprintf(units, sizeof units, first == last ? "unit %d" : "units %d-%d", first, last);
    text_printf(out, "  %-14s %s\n", units, owners->data);
}

/* Consecutive blocks with the same owners share a line. With equal shards that is all of them. */
void partition_print_owners(const Partition *p, const ParamGroups *g, Text *out) {
    Text line = {0}, next = {0};
    int first = 0;
    if ((p->shards == 1 && !p->owners) || !param_groups_keep_whole(g)) return;
    text_puts(out, "whole matrices, each");
    if (p->shards > 1) text_printf(out, " on one of %d shards", p->shards);
    if (p->owners)
        text_printf(out, "%s put together for its update on one of %d ranks of tp%s",
                    p->shards > 1 ? "," : "", p->tensors, p->shards > 1 ? " (shard.rank)" : "");
    text_puts(out, "\n");
    for (int u = 0; u <= p->table->units; u++) {
        text_clear(&next);
        if (u < p->table->units && partition_holds(p, u)) put_owners(p, g, u, &next);
        if (u > 0 && next.length == line.length && (!next.length || strcmp(next.data, line.data) == 0))
            continue;
        put_line(first, u - 1, &line, out);
        text_clear(&line);
        if (next.length) text_puts(&line, next.data);
        first = u;
    }
    text_free(&line);
    text_free(&next);
}
