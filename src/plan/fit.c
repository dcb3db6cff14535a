/* The memory of a split has two figures: an estimate, and the exact one from a plan of every pipeline rank.
 * split_auto can only search by the estimate, which merely has to grow with the exact figure. The search
 * therefore walks over estimates, and every split that it returns or names in an error was measured by plans.
 *
 *     fastest split --measure--> fits? --yes--> done
 *                                  no
 *     descend: halve the range of estimates, measure each split --> the smallest one found
 *                                  |
 *          does not fit: error, naming its bytes        fits: refine towards the fastest
 *
 * Measuring a split takes a plan for each pipeline rank. A search by plans alone would need that for every
 * split that it considers. */
#include "plan/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/rank.h"

#define GIB 1073741824.0

enum {
    DESCENT = 16,
    REFINEMENT = 8
}; /* splits that are tried on the way to the smallest, and between that and the fastest */

typedef struct Fit {
    const Layout *l;
    const Config *c;
    SplitModel model;
    double *fixed, *activation;
    int *live;
} Fit;

/* The device is described, not opened: a search on a login node must be about the machine that will train, as
 * far as its kind and threads are known. */
static void describe_device(const Config *c, Device *d) {
    int64_t threads = c->run.most_threads > 0 ? c->run.most_threads : c->run.threads;
    device_describe(d, device_kind(c->run.device), "", (int)threads);
}

/* ---- the estimate ---- */

/* Bytes of the optimizer states of a unit. They depend on the parameter groups, so blocks may differ. */
static double state_bytes(const ParamTable *t, const ParamGroups *g, int unit) {
    double sum = 0;
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++)
        sum += (double)t->params[i].count * (double)param_state_bytes(g, i);
    return sum;
}

/* Bytes that the parameters of a unit and their optimizer states (`states` bytes) take on the rank that holds
 * them, for any number of microbatches. `copies`: with the copy that a checkpoint takes of them. */
static double fixed_bytes(const Layout *l, const Config *c, double elements, double states, double compute,
                          bool copies) {
    double shards = mesh_size(&l->mesh, MESH_SHARDS), shard = elements / shards;
    bool exact = c->numerics.mode == NUMERICS_EXACT;
    bool whole = program_sync((GradientSync)c->train.gradient_sync, (int)shards,
                              mesh_size(&l->mesh, MESH_REPLICAS), l->schedule.microbatches) == SYNC_STEP;
    double saved = !copies ? 0 : c->checkpoint.dtype == STORE_BF16 ? 8 : 4;
    double gradients = (whole ? elements : shard) * (exact ? 8 : 4) + (exact ? shard * 4 : 0);
    double read = shards > 1    ? elements * compute
                  : compute < 4 ? shard * compute
                                : 0; /* gathered, or the compute copy */
    return shard * (4 + saved) + (copies ? 2 : 1) * states / shards + gradients + read;
}

/* Most microbatches whose activations a stage keeps at a time, found by walking each rank's order:
 * activations live from F to the pass that computes the weight gradients. */
static void count_live(const Schedule *s, int *live) {
    int *now = mem_alloc_array((size_t)s->stages, sizeof *now);
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++) {
            const Cell *cell = &s->orders[r].cells[i];
            if (cell->kind == CELL_F && ++now[cell->stage] > live[cell->stage])
                live[cell->stage] = now[cell->stage];
            if (cell->kind == CELL_B || cell->kind == CELL_W) now[cell->stage]--;
        }
    free(now);
}

/* Activations and parameters of each unit, as in the plan, but without rounding, arenas and workspaces. */
static ErrorCode estimate(Fit *f, Error *err) {
    Model m;
    const Config *c = f->c;
    Dtype compute = c->train.compute == COMPUTE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    int segments = f->l->schedule.segments;
    int64_t tokens = f->l->sequences * c->train.context / segments;
    TRY(model_build(&m, &c->model.shape, compute, (Recompute)c->train.recompute, tokens, c->train.loss_rows,
                    err));
    model_set_segments(&m, segments, ALL_TOKENS);
    ParamGroups g;
    Device d;
    describe_device(c, &d);
    ErrorCode code = param_groups_build(&g, &c->optimizer, &m.table, err);
    for (int u = 0; u < m.table.units && code == OK; u++) {
        f->fixed[u] = fixed_bytes(f->l, c, (double)param_unit_size(&m.table, u), state_bytes(&m.table, &g, u),
                                  (double)dtype_bytes(compute), !d.separate_memory);
        f->fixed[u] += (double)unit_key_sums_bytes(&m, u);
        f->activation[u] = (double)unit_saved_bytes(&m, u) + (double)unit_keys_bytes(&m, u) / segments +
                           (f->l->schedule.split_backward ? (double)unit_stash_bytes(&m, u) : 0);
    }
    count_live(&f->l->schedule, f->live);
    param_groups_free(&g);
    model_free(&m);
    return code;
}

/* ---- what a split takes ---- */

/* Raises `bytes` to those of a pipeline rank, for its rank of the mesh that needs most. */
static ErrorCode plan_pipe_rank(const Config *c, const Layout *l, const Device *d, int pipe_rank,
                                double *bytes, Error *err) {
    RankPlan p;
    RankSpec spec = rank_spec(c, l, d);
    ErrorCode code = rank_plan_fullest(&p, &spec, l, pipe_rank, d, err);
    if (code == OK) *bytes = fmax(*bytes, (double)memory_plan_total(rank_memory(&p)));
    rank_plan_free(&p);
    return code;
}

ErrorCode fit_measure(const Config *c, const Layout *l, double *bytes, Error *err) {
    Device d;
    *bytes = 0;
    describe_device(c, &d);
    for (int pipe_rank = 0; pipe_rank < mesh_size(&l->mesh, MESH_PIPELINE); pipe_rank++)
        TRY(plan_pipe_rank(c, l, &d, pipe_rank, bytes, err));
    return OK;
}

static ErrorCode measure(const Fit *f, const Split *s, double *bytes, Error *err) {
    Layout l = *f->l;
    l.stages = (Stages){s->stages, s->first, l.schedule.rank_of_stage};
    return fit_measure(f->c, &l, bytes, err);
}

/* ---- the search ---- */

static double estimated(const Fit *f, const Split *s) {
    return split_fullest_rank(s, &f->model, f->l->schedule.rank_of_stage);
}

/* Finds the fastest split whose estimate is within `bytes`. False: there is none. */
static bool find(const Fit *f, double bytes, Split *out) {
    SplitModel m = f->model;
    m.rank_bytes = bytes;
    return split_auto(out, &m, f->l->schedule.stages, f->l->schedule.rank_of_stage, NULL) == OK;
}

/* Replaces `kept` by the better split, whose memory it takes over from the caller. */
static void take(Split *kept, double *bytes, Split *better, double better_bytes) {
    split_free(kept);
    *kept = *better;
    *bytes = better_bytes;
    *better = (Split){0};
}

/* Halves the range of estimates below that of `least` and keeps the smallest of the splits that it finds.
 * This does not depend on the limit, so the smallest is always the same. */
static ErrorCode descend(const Fit *f, Split *least, double *least_bytes, Error *err) {
    double low = 0, high = estimated(f, least), bytes;
    ErrorCode code = OK;
    for (int i = 0; i < DESCENT && code == OK; i++) {
        Split s;
        double middle = (low + high) / 2;
        if (!find(f, middle, &s)) {
            low = middle;
            continue;
        }
        high = estimated(f, &s);
        code = measure(f, &s, &bytes, err);
        if (code == OK && bytes < *least_bytes) take(least, least_bytes, &s, bytes);
        split_free(&s);
    }
    return code;
}

/* Goes from a split that fits to a faster one that also fits, if there is one with an estimate below
 * `high`. */
static ErrorCode refine(const Fit *f, Split *fitting, double high, double limit, Error *err) {
    double low = estimated(f, fitting), bytes;
    ErrorCode code = OK;
    for (int i = 0; i < REFINEMENT && code == OK; i++) {
        Split s;
        double middle = (low + high) / 2;
        if (!find(f, middle, &s)) return OK;
        code = measure(f, &s, &bytes, err);
        if (code == OK && bytes <= limit) {
            low = middle;
            take(fitting, &bytes, &s, bytes);
        } else {
            high = middle;
        }
        split_free(&s);
    }
    return code;
}

double fit_limit(const Config *c) { return c->pipeline.memory_gib * GIB; }

/* Formats bytes as a value of pipeline.memory_gib with four digits. Rounds up, since the suggested value must
 * work when it is entered. */
static void write_limit(double bytes, char out[32]) {
    double gib = bytes / GIB, unit = pow(10, floor(log10(gib)) - 3), rounded = ceil(gib / unit) * unit;
    snprintf(out, 32, "%.4g", rounded);
    if (strtod(out, NULL) * GIB < bytes) snprintf(out, 32, "%.4g", rounded + unit);
}

/* The error says that no split was found, not that there is none: the search is not exhaustive. */
static ErrorCode search(const Fit *f, Split *out, Error *err) {
    double limit = fit_limit(f->c), bytes;
    char would_do[32];
    TRY(measure(f, out, &bytes, err));
    if (bytes <= limit) return OK;
    double fastest = estimated(f, out);
    TRY(descend(f, out, &bytes, err));
    if (bytes <= limit) return refine(f, out, fastest, limit, err);
    write_limit(bytes, would_do);
    return error_set(
        err, ERR_CONFIG,
        "pipeline.memory_gib is %g: no split of %d units into %d stages was found that keeps to it; "
        "pipeline.memory_gib=%s would do. More ranks, smaller microbatches or recomputation take less",
        f->c->pipeline.memory_gib, f->model.blocks + 2, out->stages, would_do);
}

ErrorCode fit_split(Split *out, const Layout *l, const Config *c, const StageCost *units, Error *err) {
    int blocks = (int)c->model.shape.num_hidden_layers;
    Fit f = {.l = l, .c = c};
    f.fixed = mem_alloc_array((size_t)blocks + 2, sizeof *f.fixed);
    f.activation = mem_alloc_array((size_t)blocks + 2, sizeof *f.activation);
    f.live = mem_alloc_array((size_t)l->schedule.stages, sizeof *f.live);
    f.model = (SplitModel){blocks, units, f.fixed, f.activation, f.live, 0};
    ErrorCode code = estimate(&f, err);
    if (code == OK) code = split_auto(out, &f.model, l->schedule.stages, l->schedule.rank_of_stage, err);
    if (code == OK && (code = search(&f, out, err)) != OK) split_free(out);
    free(f.fixed);
    free(f.activation);
    free(f.live);
    return code;
}
