/* Two plans of one rank, put together. Both are of the mesh without tp, whose ranks of cp are more ranks of
 * dp_shard, so that all that is checked of programs holds of them. */
#include "plan/foresee.h"

CrossingSpec foresee_crossings(const RankSpec *spec, const Mesh *mesh) {
    return (CrossingSpec){.model = &spec->model,
                          .compute = spec->compute,
                          .recompute = spec->recompute,
                          .tokens = spec->tokens,
                          .partial = sizeof(float),
                          .tensors = mesh_size(mesh, MESH_TENSOR),
                          .contexts = mesh_size(mesh, MESH_CONTEXT)};
}

/* As many bytes of logits as the rank's part of the vocabulary makes. */
static int64_t rows_of_whole(const RankPlan *held, int tensors) {
    int64_t rows = held->model.loss_rows / tensors;
    return rows > 0 ? rows : 1;
}

static void take_passes(MemoryPlan *to, const MemoryPlan *from, size_t crossings) {
    to->arena[ARENA_ACTIVATIONS] = from->arena[ARENA_ACTIVATIONS];
    to->keep = from->keep;
    to->scratch = from->scratch + pool_round(crossings);
}

static ErrorCode foresee(RankPlan *p, const RankSpec *spec, const Layout *l, int place, const Device *d,
                         Error *err) {
    CrossingSpec crossings = foresee_crossings(spec, &l->mesh);
    RankSpec held = *spec, computed = *spec;
    RankPlan passes;
    Layout without = *l;
    *p = (RankPlan){.rank = 0};
    TRY(axes_check(&spec->model, crossings.tensors, err));
    TRY(crossings_check(&crossings, spec->positions, err));
    without.mesh = mesh_without(&l->mesh, MESH_TENSOR);
    without.mesh = mesh_contexts_as_shards(&without.mesh);
    held.model = axes_local(&spec->model, (Sharing){crossings.tensors, 0, crossings.tensors});
    held.leaves = computed.leaves = held.spans = computed.spans = 1;
    held.tokens = computed.tokens = spec->tokens / crossings.tensors / crossings.contexts;
    TRY(rank_plan_fullest(p, &held, &without, place, d, err));
    computed.loss_rows = rows_of_whole(p, crossings.tensors);
    ErrorCode code = rank_plan(&passes, &computed, &without, p->rank, d, err);
    if (code == OK) take_passes(&p->memory, &passes.memory, crossings_memory(&crossings));
    rank_plan_free(&passes);
    return code;
}

bool foresee_needed(const RankSpec *spec, const Mesh *mesh) {
    CrossingSpec s = foresee_crossings(spec, mesh);
    return crossings_method(&s) == CONTEXT_KEYS;
}

ErrorCode foresee_fullest(RankPlan *p, const RankSpec *spec, const Layout *l, int place, const Device *d,
                          Error *err) {
    return foresee_needed(spec, &l->mesh) ? foresee(p, spec, l, place, d, err)
                                          : rank_plan_fullest(p, spec, l, place, d, err);
}
