#include "train/layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "comm/comm.h"
#include "model/unit.h"
#include "plan/program.h"
#include "plan/simulate.h"
#include "train/fit.h"

/* Which schedule, and how many stages it wants on a rank. */
static ErrorCode open_schedule(Layout *l, const Config *c, int ranks, int stages_per_rank, Error *err) {
    ScheduleName name;
    const char *asked = c->pipeline.schedule;
    if (schedule_find(asked, &name)) return schedule_make(&l->schedule, name, ranks, l->microbatches, stages_per_rank, err);
    if (!file_exists(asked)) {
        Text names = {0};
        for (int i = 0; i < PIPE_NAMES; i++) text_printf(&names, "%s%s", i ? ", " : "", schedule_name((ScheduleName)i));
        error_set(err, ERR_CONFIG, "pipeline.schedule is \"%s\": expected %s, or a CSV file", asked, names.data);
        text_free(&names);
        return ERR_CONFIG;
    }
    TRY(schedule_read_csv(&l->schedule, asked, err));
    if (l->schedule.ranks != ranks || l->schedule.microbatches != l->microbatches)
        return error_set(
            err, ERR_CONFIG,
            "%s is for %d ranks and %d microbatches, but the mesh has pp %d and a step %d microbatches: set mesh.pp=%d "
            "and pipeline.microbatches=%d, or take another file",
            asked, l->schedule.ranks, l->schedule.microbatches, ranks, l->microbatches, l->schedule.ranks,
            l->schedule.microbatches);
    return OK;
}

static SplitWeights weights_of(const Config *c) {
    return (SplitWeights){(int)c->pipeline.first_stage_less, (int)c->pipeline.last_stage_less};
}

static StagesPerRank allowed_stages(ScheduleName name) {
    if (schedule_is_v(name)) return (StagesPerRank){2, 2};
    return schedule_default_stages_per_rank(name) == 1 ? (StagesPerRank){1, 1} : (StagesPerRank){1, 0};
}

static ErrorCode stages_per_rank(const Config *c, int ranks, int *out, Error *err) {
    ScheduleName name;
    *out = (int)c->pipeline.stages_per_rank;
    if (!schedule_find(c->pipeline.schedule, &name)) return OK;
    if (c->pipeline.layers_per_stage > 0) {
        int stages;
        TRY(split_layers_per_stage(&stages, (int)c->model.shape.num_hidden_layers, weights_of(c),
                                   (int)c->pipeline.layers_per_stage, ranks, allowed_stages(name), err));
        *out = stages / ranks;
    }
    if (*out == 0) *out = schedule_default_stages_per_rank(name);
    return OK;
}

/* ---- costs ---- */

/* What recomputation adds to the backward pass of a block, in its input half; see model/unit.h. */
static double done_again(const Config *c, const StageCost *block) {
    const ModelConfig *m = &c->model.shape;
    if (c->train.recompute == RECOMPUTE_FULL) return block->forward;
    return c->train.recompute == RECOMPUTE_SELECTIVE ? 4.0 * (double)m->hidden_size * (double)m->intermediate_size : 0;
}

void layout_unit_costs(const Config *c, StageCost *units) {
    int blocks = (int)c->model.shape.num_hidden_layers;
    split_unit_costs(&c->model.shape, c->train.context, units);
    for (int u = 1; u <= blocks; u++) units[u].input += done_again(c, &units[u]);
    StageCost *head = &units[blocks + 1];
    *head = (StageCost){head->forward + head->input + head->weight, 0, 0};
}

/* ---- the split ---- */

static ErrorCode split_units(const Layout *l, const Config *c, const StageCost *units, Split *split, Error *err) {
    const StringList *how = &c->pipeline.split;
    int blocks = (int)c->model.shape.num_hidden_layers, stages = l->schedule.stages;
    bool word = how->count == 1;
    if (c->pipeline.layers_per_stage > 0 || (word && strcmp(how->items[0], "uniform") == 0))
        return split_uniform(split, blocks, stages, weights_of(c), err);
    if (how->count == 0 || (word && strcmp(how->items[0], "auto") == 0)) {
        SplitModel model = {.blocks = blocks, .costs = units};
        if (c->pipeline.memory_gib > 0) return fit_split(split, l, c, units, err);
        return split_auto(split, &model, stages, l->schedule.rank_of_stage, err);
    }
    TRY(split_points(split, blocks, (const char *const *)how->items, (int)how->count, err));
    if (split->stages == stages) return OK;
    int found = split->stages;
    split_free(split);
    return error_set(
        err, ERR_CONFIG,
        "pipeline.split names %d places where a stage starts, which makes %d stages, but pp %d with %d stages a rank "
        "are %d: name %d",
        found - 1, found, l->schedule.ranks, stages / l->schedule.ranks, stages, stages - 1);
}

static ErrorCode lay_stages(Layout *l, const Config *c, Error *err) {
    size_t units = (size_t)c->model.shape.num_hidden_layers + 2;
    StageCost *costs = mem_alloc_array(units, sizeof *costs);
    Split split = {0};
    layout_unit_costs(c, costs);
    ErrorCode code = split_units(l, c, costs, &split, err);
    if (code == OK) {
        size_t n = (size_t)split.stages;
        l->stages = (Stages){.count = split.stages, .first = split.first, .rank = mem_alloc_array(n, sizeof(int))};
        memcpy(l->stages.rank, l->schedule.rank_of_stage, n * sizeof(int));
        l->costs = mem_alloc_array(n, sizeof *l->costs);
        split_stage_costs(&split, costs, l->costs);
    }
    free(costs);
    return code;
}

static ErrorCode lay_transfers(Layout *l, const Config *c, Error *err) {
    if (!schedule_has_transfers(&l->schedule)) return schedule_add_transfers(&l->schedule, err);
    /* A file's own order of transfers may work only where sends end at once; those of large messages do not. */
    if (simulate_transport(&l->schedule, TRANSPORT_RENDEZVOUS, err) == OK) return OK;
    return error_context(err, "%s: its SEND and RECV cells (without them weft finds an order itself)", c->pipeline.schedule);
}

static ErrorCode lay_pipeline(Layout *l, const Config *c, Error *err) {
    int ranks = l->mesh.degree[AXIS_PP], each;
    TRY(stages_per_rank(c, ranks, &each, err));
    TRY(open_schedule(l, c, ranks, each, err));
    if (l->schedule.stages > COMM_STAGES)
        return error_set(err, ERR_CONFIG, "a pipeline of %d stages: at most %d are possible", l->schedule.stages, COMM_STAGES);
    TRY(lay_transfers(l, c, err));
    return lay_stages(l, c, err);
}

ErrorCode layout_build(Layout *l, const Config *c, int world, Error *err) {
    int64_t microbatches;
    *l = (Layout){0};
    TRY(mesh_build(&l->mesh, &c->mesh, world, err));
    TRY(config_geometry(c, mesh_dp_degree(&l->mesh), &l->sequences, &microbatches, err));
    l->microbatches = (int)microbatches;
    l->piped = l->mesh.degree[AXIS_PP] > 1;
    if (l->piped) return lay_pipeline(l, c, err);
    stages_single(&l->stages, (int)c->model.shape.num_hidden_layers + 2);
    return OK;
}

void layout_free(Layout *l) {
    stages_free(&l->stages);
    schedule_free(&l->schedule);
    free(l->costs);
    *l = (Layout){0};
}

int64_t layout_samples(const Layout *l) { return l->sequences * l->microbatches * mesh_dp_degree(&l->mesh); }

void layout_describe(const Layout *l, const Config *c, Text *out) {
    if (l->mesh.world == 1) return;
    text_printf(out, "mesh    %d ranks:", l->mesh.world);
    for (int a = 0; a < AXES; a++)
        if (l->mesh.degree[a] > 1) text_printf(out, " %s %d", axis_name((Axis)a), l->mesh.degree[a]);
    text_puts(out, "\n");
    if (!l->piped) return;
    Split split = {.blocks = (int)c->model.shape.num_hidden_layers, .stages = l->stages.count, .first = l->stages.first};
    StageCost *units = mem_alloc_array((size_t)split.blocks + 2, sizeof *units);
    layout_unit_costs(c, units);
    text_printf(out, "pipeline %s, %d stages\n", c->pipeline.schedule, l->stages.count);
    split_print(&split, units, l->stages.rank, out);
    free(units);
}
