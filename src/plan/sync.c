/* Memory comes from the plans of all pipeline ranks, by the code that also checks pipeline.memory_gib
 * (fit.c). The choice therefore fits by the figures of `weft plan`. */
#include "plan/sync.h"

#include <math.h>

#include "plan/fit.h"

const char *sync_name(GradientSync sync) {
    static const char *const names[] = {SYNC_KINDS(CHOICE_NAME)};
    return names[sync];
}

/* The stage split is computed for the candidate too. Where no split fits pipeline.memory_gib, layout_build
 * fails, which rules out this candidate only. */
static ErrorCode measure(const Config *c, int world, GradientSync sync, double *bytes, Error *err) {
    Config candidate = *c;
    Layout l;
    candidate.train.gradient_sync = sync;
    ErrorCode code = layout_build(&l, &candidate, world, err);
    if (code == OK) code = fit_measure(&candidate, &l, bytes, err);
    layout_free(&l);
    return code;
}

/* Tries settings in the order of bytes sent, without those that do not apply to the mesh. Where nothing fits,
 * it takes the one with the least memory; the plan then reports by how much it exceeds the limit. */
static ErrorCode first_that_fits(const Config *c, int world, double limit, bool both_axes, SyncChoice *out,
                                 Error *err) {
    static const SyncChoice order[] = {
        {SYNC_STEP, "auto: fits the memory of a rank, and sends the fewest bytes"},
        {SYNC_REPLICA, "auto: step does not fit the memory of a rank"},
        {SYNC_MICROBATCH, "auto: nothing that sends fewer bytes fits the memory of a rank"}};
    ErrorCode code = OK;
    double least = INFINITY;
    for (int i = 0; i < 3; i++) {
        double bytes = 0;
        if (order[i].sync == SYNC_REPLICA && !both_axes) continue;
        code = measure(c, world, order[i].sync, &bytes, err);
        if (code == OK && bytes < least) least = bytes, *out = order[i];
        if (code == OK && bytes <= limit) return OK;
    }
    if (isinf(least)) return code;
    out->why = "auto: nothing fits the memory of a rank, this takes least";
    return OK;
}

ErrorCode sync_choose(const Config *c, int world, double limit, SyncChoice *out, Error *err) {
    Mesh mesh;
    int64_t sequences, microbatches;
    TRY(mesh_build(&mesh, &c->mesh, world, err));
    TRY(config_geometry(c, mesh_dp_degree(&mesh), &sequences, &microbatches, err));
    int shards = mesh_size(&mesh, MESH_SHARDS), replicas = mesh_size(&mesh, MESH_REPLICAS);
    if (mesh_size(&mesh, MESH_PIPELINE) > 1) microbatches *= c->pipeline.segments;
    *out = (SyncChoice){program_sync(SYNC_AUTO, shards, replicas, (int)microbatches),
                        "auto: the fewest bytes, with no limit of memory"};
    if (shards * replicas == 1)
        out->why = "auto: one data-parallel rank, nothing crosses";
    else if (microbatches == 1)
        out->why = "auto: one microbatch a step, there is nothing to add up";
    else if (shards > 1 && limit > 0)
        return first_that_fits(c, world, limit, replicas > 1, out, err);
    return OK;
}
