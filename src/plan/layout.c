/* From keys of a configuration to mesh, schedule and stages, in this order:
 *
 *     ranks, mesh.* --> mesh --> microbatches of each data-parallel rank --> schedule (a name, or a file)
 *                                                                             | number of stages
 *     pipeline.split, layers_per_stage, costs of units, memory --------------> stages --> transfers
 *
 * The schedule determines the number of stages. Other keys that ask for stages (layers_per_stage, split) are
 * checked against it, and each error names both sides and what would work. A single pipeline rank takes the
 * same path with a schedule of one rank.
 *
 * All of it is arithmetic on numbers that every rank has, so every rank computes the same layout without
 * communication. */
#include "plan/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "comm/comm.h"
#include "model/unit.h"
#include "program/program.h"
#include "schedule/simulate.h"
#include "plan/fit.h"

/* Number of blocks for which embedding and head count where layers are split by number and not by cost. */
static SplitWeights weights_of(const Config *c) {
    return (SplitWeights){(int)c->pipeline.first_stage_less, (int)c->pipeline.last_stage_less};
}

/* A V has two stages a rank by definition. Looped schedules take any number, the others one. */
static StagesPerRank allowed_stages(ScheduleName name) {
    if (schedule_is_v(name)) return (StagesPerRank){2, 2};
    return schedule_default_stages_per_rank(name) == 1 ? (StagesPerRank){1, 1} : (StagesPerRank){1, 0};
}

/* ---- the schedule ---- */

/* Returns ERR_CONFIG with all names: there are few, and a wrong name is usually a misspelling. */
static ErrorCode unknown_schedule(const char *asked, Error *err) {
    char shown[80];
    Text names = {0};
    for (int i = 0; i < PIPE_NAMES; i++)
        text_printf(&names, "%s%s", i ? ", " : "", schedule_name((ScheduleName)i));
    error_set(err, ERR_CONFIG, "pipeline.schedule is \"%s\": expected %s, or a CSV file",
              error_escape(shown, sizeof shown, asked, strlen(asked)), names.data);
    text_free(&names);
    return ERR_CONFIG;
}

/* A schedule file determines the stages; keys that ask for others contradict it. */
static ErrorCode check_file_stages(const Schedule *s, const Config *c, Error *err) {
    const PipelineOptions *p = &c->pipeline;
    int effective =
        (int)c->model.shape.num_hidden_layers + (int)p->first_stage_less + (int)p->last_stage_less;
    if (p->stages_per_rank > 0 && p->stages_per_rank * s->ranks != s->stages)
        return error_set(err, ERR_CONFIG,
                         "pipeline.stages_per_rank is %lld, but %s has %d stages on %d ranks: leave "
                         "stages_per_rank to the file (0)",
                         (long long)p->stages_per_rank, p->schedule, s->stages, s->ranks);
    if (p->layers_per_stage > 0 && (effective + p->layers_per_stage - 1) / p->layers_per_stage != s->stages)
        return error_set(err, ERR_CONFIG,
                         "pipeline.layers_per_stage is %lld, which makes %lld stages of %d layers (embedding "
                         "and head counted), but %s has %d stages: leave layers_per_stage to the file (0)",
                         (long long)p->layers_per_stage,
                         (long long)((effective + p->layers_per_stage - 1) / p->layers_per_stage), effective,
                         p->schedule, s->stages);
    return OK;
}

/* The order of a file keeps what it keeps. */
static ErrorCode refuse_file_limit(const Config *c, Error *err) {
    if (c->pipeline.activations == 0) return OK;
    return error_set(
        err, ERR_CONFIG,
        "pipeline.activations is %g, but pipeline.schedule is the file %s, whose order is fixed: "
        "leave pipeline.activations at 0, or take pipeline.schedule=zbv",
        c->pipeline.activations, c->pipeline.schedule);
}

/* A file is a schedule for a fixed number of ranks and microbatches, which must be those of the mesh and the
 * step. The message shows both the file's numbers and the keys', since either may be the one to change. */
static ErrorCode read_schedule(Layout *l, const Config *c, int ranks, Error *err) {
    const char *asked = c->pipeline.schedule;
    Schedule *s = &l->schedule;
    TRY(schedule_read_csv(s, asked, err));
    if (s->ranks != ranks || s->microbatches != l->microbatches)
        return error_set(err, ERR_CONFIG,
                         "%s is for %d ranks and %d microbatches, but the mesh has pp %d and a step %d "
                         "microbatches: set mesh.pp=%d and pipeline.microbatches=%d, or take another %s",
                         asked, s->ranks, s->microbatches, ranks, l->microbatches, s->ranks, s->microbatches,
                         ranks > 1 ? "file" : "schedule");
    TRY(schedule_refuse_parameters(s, asked, err));
    return check_file_stages(s, c, err);
}

/* The number of stages on each rank that layers_per_stage and stages_per_rank ask for. */
static ErrorCode stages_per_rank(const Config *c, ScheduleName name, int ranks, int *out, Error *err) {
    int asked = (int)c->pipeline.stages_per_rank, stages;
    *out = asked > 0 ? asked : schedule_default_stages_per_rank(name);
    if (c->pipeline.layers_per_stage == 0) return OK;
    TRY(split_layers_per_stage(&stages, (int)c->model.shape.num_hidden_layers, weights_of(c),
                               (int)c->pipeline.layers_per_stage, ranks, allowed_stages(name), err));
    *out = stages / ranks;
    if (asked == 0 || asked == *out) return OK;
    return error_set(err, ERR_CONFIG,
                     "pipeline.layers_per_stage is %lld, which makes %d stages, %d on each of %d ranks, but "
                     "pipeline.stages_per_rank is %d: leave one of them to weft (0)",
                     (long long)c->pipeline.layers_per_stage, stages, *out, ranks, asked);
}

/* ERR_CONFIG unless there are enough units: each stage needs at least one. */
static ErrorCode check_units(const Config *c, ScheduleName name, int ranks, int each, Error *err) {
    StagesPerRank allowed = allowed_stages(name);
    int blocks = (int)c->model.shape.num_hidden_layers, units = blocks + 2, most = units / ranks;
    int64_t stages = (int64_t)each * ranks;
    if (each <= most) return OK;
    bool fewer = most >= allowed.least; /* fewer stages a rank would work */
    return error_set(err, ERR_CONFIG,
                     "%s with %d stage%s a rank has %lld on %d pipeline ranks, but there are %d units "
                     "(embedding, %d layers, head): set %s to at most %d",
                     schedule_name(name), each, each == 1 ? "" : "s", (long long)stages, ranks, units, blocks,
                     fewer ? "pipeline.stages_per_rank" : "mesh.pp", fewer ? most : units / allowed.least);
}

/* One pipeline rank runs microbatches one after the other; backward passes may be split. */
static ErrorCode make_single(Schedule *s, int microbatches, bool split_backward, Error *err) {
    return schedule_make(s, split_backward ? PIPE_ZB_H1 : PIPE_1F1B, 1, microbatches, 1, err);
}

/* On one rank a pipeline schedule would cost memory and gain nothing, so the keys are ignored here: they may
 * be meant for other meshes. A value that is invalid on every mesh is still an error. */
static ErrorCode open_single(Layout *l, const Config *c, ScheduleName name, Error *err) {
    int asked = (int)c->pipeline.stages_per_rank;
    if (asked > 0) TRY(schedule_check_stages_per_rank(name, asked, err));
    return make_single(&l->schedule, l->microbatches, c->train.split_backward, err);
}

static void unit_costs(const Config *c, int64_t context, StageCost *units) {
    ModelConfig m = c->model.shape;
    m.expert_ranks = c->mesh.ep; /* dispatched ops are recomputed, and their dgrad and wgrad are one */
    m.num_key_value_heads *= axes_copies(&m, (int)c->mesh.tp); /* each rank computes its replicas */
    model_unit_costs(&m, (Recompute)c->train.recompute, context, units);
}

/* Splits, simulations, forecasts and balance all count in these FLOPs of a token. */
void layout_unit_costs(const Config *c, StageCost *units) { unit_costs(c, c->train.context, units); }

/* Adds `times` the FLOPs of the first `tokens` of a microbatch. */
static void add_costs(const Config *c, int64_t tokens, double times, StageCost *units, size_t count) {
    int64_t context = c->train.context, whole = tokens / context * context, rest = tokens - whole;
    StageCost *each = mem_alloc_array(count, sizeof *each);
    unit_costs(c, context, each);
    for (size_t u = 0; u < count; u++)
        units[u] = cost_plus(units[u], cost_scaled(each[u], times * (double)whole));
    if (rest > 0) unit_costs(c, rest, each);
    for (size_t u = 0; u < count && rest > 0; u++)
        units[u] = cost_plus(units[u], cost_scaled(each[u], times * (double)rest));
    free(each);
}

/* The costs of the tokens up to its end, without those up to its beginning. */
void layout_segment_costs(const Config *c, const Layout *l, int segment, StageCost *units) {
    size_t count = (size_t)c->model.shape.num_hidden_layers + 2;
    int64_t tokens = l->sequences * c->train.context / l->schedule.segments;
    if (l->schedule.segments == 1) {
        layout_unit_costs(c, units);
        return;
    }
    memset(units, 0, count * sizeof *units);
    add_costs(c, (segment + 1) * tokens, 1.0 / (double)tokens, units, count);
    add_costs(c, segment * tokens, -1.0 / (double)tokens, units, count);
}

/* An order by list is made for the average stage. */
static OrderTerms order_terms(const Layout *l, const Config *c) {
    size_t units = (size_t)c->model.shape.num_hidden_layers + 2;
    StageCost *costs = mem_alloc_array(units, sizeof *costs), sum = {0};
    layout_unit_costs(c, costs);
    for (size_t i = 0; i < units; i++) sum = cost_plus(sum, costs[i]);
    free(costs);
    return (OrderTerms){l->limit, {sum.forward, sum.input, sum.weight}, (int)c->pipeline.segments};
}

/* Segments are for pipelines, as the other keys are. */
static ErrorCode check_segments(const Config *c, const ScheduleName *name, int ranks, Error *err) {
    int segments = (int)c->pipeline.segments;
    if (segments == 1 || (ranks == 1 && name)) return OK;
    if (!name)
        return error_set(
            err, ERR_CONFIG,
            "pipeline.segments is %d, but pipeline.schedule is the file %s, whose microbatches are "
            "whole: set pipeline.segments to 1, or take pipeline.schedule=1f1b",
            segments, c->pipeline.schedule);
    if (schedule_check_segments(*name, segments, err) == OK) return OK;
    return error_context(err, "pipeline.segments");
}

/* Opens the schedule, with the number of stages that it has or is asked to have. */
static ErrorCode open_schedule(Layout *l, const Config *c, int ranks, Error *err) {
    ScheduleName name;
    const char *asked = c->pipeline.schedule;
    int each;
    if (!schedule_find(asked, &name)) {
        if (!schedule_names_file(asked) && !file_exists(asked)) return unknown_schedule(asked, err);
        TRY(refuse_file_limit(c, err));
        TRY(check_segments(c, NULL, ranks, err));
        return read_schedule(l, c, ranks, err);
    }
    if (schedule_check_limit(name, c->pipeline.activations, err) != OK)
        return error_context(err, "pipeline.activations");
    TRY(check_segments(c, &name, ranks, err));
    if (ranks == 1) return open_single(l, c, name, err);
    TRY(stages_per_rank(c, name, ranks, &each, err));
    TRY(check_units(c, name, ranks, each, err));
    OrderTerms terms = order_terms(l, c);
    return schedule_make_on(&l->schedule, name, ranks, l->microbatches, each, &terms, err);
}

/* ---- the split ---- */

/* Whether pipeline.split names the units where stages start. "auto" and "uniform" are methods, not units, and
 * only valid alone. */
static bool has_points(const Config *c) {
    const StringList *how = &c->pipeline.split;
    return how->count > 1 ||
           (how->count == 1 && strcmp(how->items[0], "auto") != 0 && strcmp(how->items[0], "uniform") != 0);
}

/* layers_per_stage among the points, a common mistake of users of TorchTitan, has its own message. The caller
 * frees the split. */
static ErrorCode read_points(const Config *c, Split *split, Error *err) {
    const StringList *how = &c->pipeline.split;
    for (size_t i = 0; i < how->count; i++)
        if (strncmp(how->items[i], "layers_per_stage", 16) == 0)
            return error_set(err, ERR_CONFIG,
                             "pipeline.split names the units where stages start, such as layers.4; the "
                             "number of layers of a stage is pipeline.layers_per_stage");
    ErrorCode code = split_points(split, (int)c->model.shape.num_hidden_layers,
                                  (const char *const *)how->items, (int)how->count, err);
    return code == OK ? OK : error_context(err, "pipeline.split");
}

/* Wrong names are an error also where nothing reads them, as on one pipeline rank: a configuration must mean
 * the same on any mesh. */
static ErrorCode check_points(const Config *c, Error *err) {
    Split split;
    if (!has_points(c)) return OK;
    TRY(read_points(c, &split, err));
    int stages = split.stages;
    split_free(&split);
    if (c->pipeline.layers_per_stage == 0) return OK;
    return error_set(err, ERR_CONFIG,
                     "pipeline.split names where %d stages start, and pipeline.layers_per_stage is %lld: "
                     "leave one of them out",
                     stages, (long long)c->pipeline.layers_per_stage);
}

/* n points make n + 1 stages, which must be the number of stages of the schedule. */
static ErrorCode split_by_points(const Layout *l, const Config *c, Split *split, Error *err) {
    int stages = l->schedule.stages, ranks = l->schedule.ranks;
    ScheduleName name;
    char wanted[160];
    TRY(read_points(c, split, err));
    if (split->stages == stages) return OK;
    int found = split->stages;
    split_free(split);
    if (schedule_find(c->pipeline.schedule, &name))
        snprintf(wanted, sizeof wanted, "pp %d with %d stage%s a rank are %d", ranks, stages / ranks,
                 stages == ranks ? "" : "s", stages);
    else
        snprintf(wanted, sizeof wanted, "%s has %d", l->schedule.name, stages);
    return error_set(
        err, ERR_CONFIG,
        "pipeline.split names %d place%s where a stage starts, which makes %d stages, but %s: name %d",
        found - 1, found == 2 ? "" : "s", found, wanted, stages - 1);
}

static bool splits_by_cost(const Config *c) {
    const StringList *how = &c->pipeline.split;
    bool uniform = how->count == 1 && strcmp(how->items[0], "uniform") == 0;
    return !has_points(c) && c->pipeline.layers_per_stage == 0 && !uniform;
}

/* The most specific method wins: named units, a number of layers, a limit of memory, and by default the best
 * balance of costs. */
static ErrorCode split_units(const Layout *l, const Config *c, const StageCost *units, Split *split,
                             Error *err) {
    int blocks = (int)c->model.shape.num_hidden_layers, stages = l->schedule.stages;
    if (stages == 1) return split_points(split, blocks, NULL, 0, err);
    if (has_points(c)) return split_by_points(l, c, split, err);
    if (!splits_by_cost(c)) return split_uniform(split, blocks, stages, weights_of(c), err);
    if (c->pipeline.memory_gib > 0) return fit_split(split, l, c, units, err);
    SplitModel model = {.blocks = blocks, .costs = units};
    return split_auto(split, &model, stages, l->schedule.rank_of_stage, err);
}

/* Takes the split's array of first units over into the layout without copying it. */
static ErrorCode lay_stages(Layout *l, const Config *c, Error *err) {
    size_t units = (size_t)c->model.shape.num_hidden_layers + 2;
    StageCost *costs = mem_alloc_array(units, sizeof *costs);
    Split split = {0};
    layout_unit_costs(c, costs);
    ErrorCode code = split_units(l, c, costs, &split, err);
    if (code == OK) {
        size_t n = (size_t)split.stages;
        l->stages =
            (Stages){.count = split.stages, .first = split.first, .rank = mem_alloc_array(n, sizeof(int))};
        memcpy(l->stages.rank, l->schedule.rank_of_stage, n * sizeof(int));
        l->costs = mem_alloc_array(n, sizeof *l->costs);
        split_stage_costs(&split, costs, l->costs);
    }
    free(costs);
    return code;
}

/* Transfers are added once, so the schedules that are simulated, planned and run are the same. */
static ErrorCode lay_transfers(Layout *l, const Config *c, Error *err) {
    if (!schedule_has_transfers(&l->schedule)) return schedule_add_transfers(&l->schedule, err);
    /* The order of transfers in a file may work only where sends complete at once, which sends of large
     * messages do not. */
    if (simulate_transport(&l->schedule, TRANSPORT_RENDEZVOUS, err) == OK) return OK;
    return error_context(err, "%s: its SEND and RECV cells (without them weft finds an order itself)",
                         c->pipeline.schedule);
}

/* Number of microbatches of a smaller step on each data-parallel rank. */
static ErrorCode divide_smaller(const Layout *l, const Config *c, int64_t tokens, int *out, Error *err) {
    int64_t unit = l->sequences * c->train.context * mesh_dp_degree(&l->mesh);
    *out = (int)(tokens / unit);
    if (tokens % unit == 0) return OK;
    return error_set(
        err, ERR_CONFIG,
        "train.rampup_start: steps of %lld tokens are not made up of microbatches of %lld sequences of "
        "%lld tokens on %d data-parallel rank%s: start with %lld, or with fewer train.microbatch",
        (long long)tokens, (long long)l->sequences, (long long)c->train.context, mesh_dp_degree(&l->mesh),
        mesh_dp_degree(&l->mesh) == 1 ? "" : "s", (long long)unit);
}

/* Builds the schedule of the same pipeline with fewer microbatches. */
static ErrorCode lay_smaller(Layout *l, const Config *c, Schedule *out, int64_t tokens, const char *key,
                             Error *err) {
    Layout part = {.mesh = l->mesh, .sequences = l->sequences, .limit = l->limit};
    TRY(divide_smaller(l, c, tokens, &part.microbatches, err));
    ErrorCode code = open_schedule(&part, c, mesh_size(&l->mesh, MESH_PIPELINE), err);
    if (code == OK) code = lay_transfers(&part, c, err);
    *out = part.schedule;
    return code == OK ? OK : error_context(err, "%s: a step of %lld tokens", key, (long long)tokens);
}

/* A replay is a step of one microbatch; the ramp-up or the full step may have the same. */
static ErrorCode lay_smaller_steps(Layout *l, const Config *c, Error *err) {
    int64_t sizes[STEP_SIZES], one = l->sequences * c->train.context * mesh_dp_degree(&l->mesh);
    int count = config_step_sizes(c, sizes) - 1;
    l->smaller = mem_alloc_array((size_t)count + 1, sizeof *l->smaller);
    if (c->check.replay_every > 0 && l->microbatches > 1 && sizes[0] != one)
        TRY(lay_smaller(l, c, &l->smaller[l->smaller_count++], one, "check.replay_every", err));
    for (int i = 0; i < count; i++)
        TRY(lay_smaller(l, c, &l->smaller[l->smaller_count++], sizes[i], "train.rampup_start", err));
    return OK;
}

static ErrorCode lay_pipeline(Layout *l, const Config *c, Error *err) {
    TRY(open_schedule(l, c, mesh_size(&l->mesh, MESH_PIPELINE), err));
    if (l->schedule.stages > COMM_STAGES)
        return error_set(err, ERR_CONFIG, "a pipeline of %d stages: at most %d are possible",
                         l->schedule.stages, COMM_STAGES);
    TRY(lay_transfers(l, c, err));
    TRY(lay_smaller_steps(l, c, err));
    return lay_stages(l, c, err);
}

static void drop_pipeline(Layout *l) {
    stages_free(&l->stages);
    schedule_free(&l->schedule);
    for (int i = 0; i < l->smaller_count; i++) schedule_free(&l->smaller[i]);
    free(l->smaller);
    free(l->costs);
    l->smaller = NULL, l->smaller_count = 0, l->costs = NULL;
}

/* Whether pipeline.memory_gib also decides how many activations the order of passes keeps. */
static bool chooses_limit(const Config *c) {
    ScheduleName name;
    return c->pipeline.memory_gib > 0 && c->pipeline.activations == 0 &&
           schedule_find(c->pipeline.schedule, &name) && schedule_takes_limit(name) && splits_by_cost(c);
}

/* The bubble grows as the limit falls, so the largest limit that fits is the best: it is found by halving, in
 * microbatches out of as many as there are ranks. If none fits, the error is that of the least. */
static ErrorCode lay_within_memory(Layout *l, const Config *c, Error *err) {
    int ranks = mesh_size(&l->mesh, MESH_PIPELINE), fits = 0, too_many = ranks;
    ErrorCode code = lay_pipeline(l, c, err);
    if (code == OK || ranks == 1 || !chooses_limit(c)) return code;
    while (too_many - fits > 1) {
        int middle = (fits + too_many) / 2;
        drop_pipeline(l);
        l->limit = (double)middle / ranks;
        *(lay_pipeline(l, c, NULL) == OK ? &fits : &too_many) = middle;
    }
    drop_pipeline(l);
    l->limit = (double)(fits > 0 ? fits : 1) / ranks;
    return lay_pipeline(l, c, err);
}

/* Checks come as early as they can: a mesh that does not fit is reported before a schedule is read. */
ErrorCode layout_build(Layout *l, const Config *c, int world, Error *err) {
    int64_t microbatches;
    *l = (Layout){0};
    TRY(mesh_build(&l->mesh, &c->mesh, world, err));
    axes_lay_copies(&c->model.shape, &l->mesh);
    TRY(config_geometry(c, mesh_dp_degree(&l->mesh), &l->sequences, &microbatches, err));
    l->microbatches = (int)microbatches;
    TRY(config_check_ranks(c, world, err));
    TRY(check_points(c, err));
    l->limit = c->pipeline.activations;
    return lay_within_memory(l, c, err);
}

/* For computations on one rank, whatever mesh is configured. There are no costs, since nothing has to be
 * balanced. */
ErrorCode layout_single(Layout *l, const ModelConfig *model, int microbatches, bool split_backward,
                        Error *err) {
    *l = (Layout){.microbatches = microbatches};
    TRY(mesh_build(&l->mesh, &(MeshOptions){1, 1, 1, 1, 1, 1, 0, 0}, 1, err));
    TRY(make_single(&l->schedule, microbatches, split_backward, err));
    stages_single(&l->stages, (int)model->num_hidden_layers + 2);
    return OK;
}

bool layout_is_pipeline(const Layout *l) { return l->schedule.ranks > 1; }

/* Also valid after layout_build failed: everything that it did not build is zero. */
void layout_free(Layout *l) {
    drop_pipeline(l);
    *l = (Layout){0};
}

int64_t layout_tokens(const Layout *l, int64_t context) { return l->sequences * l->microbatches * context; }

/* Counts all data-parallel ranks; all pipeline ranks see the same samples. */
int64_t layout_samples(const Layout *l) { return l->sequences * l->microbatches * mesh_dp_degree(&l->mesh); }

/* Leaves out axes of degree 1. */
static void describe_mesh(const Mesh *m, Text *out) {
    if (m->world == 1) return;
    text_printf(out, "mesh    %d ranks:", m->world);
    for (int a = 0; a < AXES; a++)
        if (axis_is_asked((Axis)a) && mesh_degree(m, (Axis)a) > 1)
            text_printf(out, " %s %d", axis_name((Axis)a), mesh_degree(m, (Axis)a));
    text_puts(out, m->folded ? " etp 1\n" : "\n");
}

/* The costs are those by which the split was balanced. */
static void describe_split(const Layout *l, const Config *c, Text *out) {
    Split split = {
        .blocks = (int)c->model.shape.num_hidden_layers, .stages = l->stages.count, .first = l->stages.first};
    StageCost *units = mem_alloc_array((size_t)split.blocks + 2, sizeof *units);
    layout_unit_costs(c, units);
    split_print(&split, units, l->stages.rank, out);
    free(units);
}

/* Prints nothing with one rank, where there was nothing to choose. */
void layout_describe(const Layout *l, const Config *c, Text *out) {
    describe_mesh(&l->mesh, out);
    if (l->stages.count > 1) {
        text_printf(out, "pipeline %s, %d stages", c->pipeline.schedule, l->stages.count);
        if (l->schedule.segments > 1) text_printf(out, ", microbatches in %d segments", l->schedule.segments);
        if (l->limit > 0)
            text_printf(out, ", at most %g of the activations of 1f1b%s", l->limit,
                        c->pipeline.activations > 0 ? "" : ", as pipeline.memory_gib allows");
        text_puts(out, "\n");
    }
    if (c->numerics.mode != NUMERICS_EXACT && !schedule_adds_in_order(&l->schedule))
        text_puts(out, "sums    gradients are added up in another order than by one rank: "
                       "numerics.mode=exact makes the bits equal\n");
    if (l->stages.count > 1) describe_split(l, c, out);
}
