/* Figures of a step in tensor memory: scalars that its ops are told, and what they found of losses, refusals
 * and gradients.
 *
 *     statistics_begin         scalars go up; losses and refusals are zeroed
 *     forward, backward        ops add losses (statistics_add_losses) and refusals (sharding.c)
 *     statistics_read          ops make the figures of each gradient; the host waits, once, for everything
 *     statistics_set_optimizer what follows from them goes up, for UPDATE
 *
 * These are the only waits of a step for the device: one, or two where the powers of a norm need the largest
 * |g| of all ranks first; whatever the model, and however many microbatches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "engine/execution.h"

static size_t figures_bytes(const Engine *e) {
    bool training = !e->plan->spec.inference;
    return step_statistics_bytes(training ? e->model.table.count : 0, training && e->plan->spec.noise,
                                 training ? step_routed(&e->model.config) : 0,
                                 training ? e->plan->spec.sources : 0);
}

/* Behind the figures of gradients, in tensor memory as on the host. */
static FixedRefusals *refusals_of(const Engine *e, StepStatistics *s) {
    return (FixedRefusals *)(void *)&s->gradients[e->model.table.count];
}
static GradStats *first_of(const Engine *e, StepStatistics *s) {
    return (GradStats *)(void *)(refusals_of(e, s) + e->model.table.count);
}

/* Behind those, or in their place where the noise is not measured. */
static int64_t *routed_of(const Engine *e, StepStatistics *s) {
    return (int64_t *)(void *)(first_of(e, s) + (e->plan->spec.noise ? e->model.table.count : 0));
}

static LossSum *sources_of(const Engine *e, StepStatistics *s) {
    return (LossSum *)(void *)(routed_of(e, s) + step_routed(&e->model.config));
}

const LossSum *engine_source_losses(const Engine *e) { return sources_of(e, e->statistics.host); }

void statistics_layout(Engine *e) {
    Statistics *s = &e->statistics;
    s->scalars = pool_take(&e->pools[POOL_STATISTICS], step_scalars_bytes(e->plan->groups.count));
    s->figures = pool_take(&e->pools[POOL_STATISTICS], figures_bytes(e));
    if (s->figures) s->refused = refusals_of(e, s->figures);
    if (s->figures && e->plan->spec.noise) s->first = first_of(e, s->figures);
}

ErrorCode statistics_open(Engine *e, Error *err) {
    size_t bytes = figures_bytes(e);
    e->statistics.host = e->device->runtime.host_take(e->device, bytes);
    e->statistics.routed = mem_alloc_array((size_t)step_routed(&e->model.config) + 1, sizeof(int64_t));
    if (!e->statistics.host)
        return error_set(err, ERR_MEMORY, "the system gave no pinned memory for %zu bytes", bytes);
    return OK;
}

void statistics_close(Engine *e) {
    free(e->statistics.routed);
    if (e->statistics.host) e->device->runtime.host_give(e->device, e->statistics.host);
}

void statistics_begin(Execution *x) {
    Engine *e = x->engine;
    const Statistics *s = &e->statistics;
    StepScalars scalars = {.norm_unit = 1};
    if (x->training && x->result->valid > 0) {
        scalars.inverse_token_count = (float)(1.0 / (double)x->result->valid);
        scalars.mtp_inverse_token_count = (float)(e->plan->spec.mtp_loss_weight / (double)x->result->valid);
    }
    OP(e->device, OP_UPLOAD, upload, s->scalars, &scalars, sizeof scalars);
    OP(e->device, OP_ZERO, zero, s->figures, figures_bytes(e));
    x->pass.inverse_token_count = &s->scalars->inverse_token_count;
    x->pass.mtp_inverse_token_count = &s->scalars->mtp_inverse_token_count;
    if (!x->training) return;
    if (e->plan->partition.tensor > 0) return; /* all of tp route the same tokens */
    x->pass.balance = &s->figures->balance;
    if (step_routed(&e->model.config) > 0) x->pass.routed = routed_of(e, s->figures);
}

/* A microbatch's own tokens, run by run of those that lie in one row, to the source that the row is from. */
static void add_by_source(Execution *x, int microbatch) {
    Engine *e = x->engine;
    const Model *m = &e->model;
    int64_t row = model_sequence(m), rows = model_all_tokens(m) / row;
    const int32_t *of = x->options->sources + microbatch * rows;
    LossSum *sums = sources_of(e, e->statistics.figures);
    for (int64_t i = 0, count; i < m->tokens; i += count) {
        int64_t at = model_token(m, m->cp.place, i), cp_chunk = model_cp_chunk(m),
                left = cp_chunk - i % cp_chunk;
        count = row - at % row < left ? row - at % row : left;
        OP(e->device, OP_LOSS_SUM, loss_sum, count, x->pass.losses + i, &sums[of[at / row]]);
    }
}

void statistics_add_losses(Execution *x, int microbatch) {
    Engine *e = x->engine;
    StepStatistics *s = e->statistics.figures;
    OP(e->device, OP_LOSS_SUM, loss_sum, e->model.tokens, x->pass.losses, &s->losses);
    if (x->training && x->options->sources) add_by_source(x, microbatch);
    if (x->pass.z_losses)
        OP(e->device, OP_LOSS_SUM, loss_sum, e->model.tokens, x->pass.z_losses, &s->z_losses);
    for (int k = 0; k < program_mtp_heads(x->program); k++)
        OP(e->device, OP_LOSS_SUM, loss_sum, e->model.tokens, x->pass.mtp_losses[k], &s->mtp[k]);
}

/* A wait of the step under way also tells how late the device is behind the host, where it is timed. */
static void fetch(Engine *e, size_t bytes) {
    DeviceTimes *t = e->timed.recording;
    if (t) e->device->runtime.stamp(e->device, &t->done);
    device_fetch(e->device, e->statistics.host, e->statistics.figures, bytes);
    if (t) t->heard = clock_seconds();
}

void statistics_read_losses(Engine *e, StepRecord *r) {
    fetch(e, sizeof(StepStatistics));
    record_add_losses(r, &e->statistics.host->losses);
}

/* Elements of a parameter that this rank answers for; what is frozen has no gradient to answer for. */
static int64_t counted(const Engine *e, const Param *p) {
    if (p->frozen) return 0;
    return partition_counts(&e->plan->partition, p) ? partition_segment(&e->plan->partition, p).count : 0;
}

/* Enqueues the figures of every gradient that this rank counts, and waits for them: the only place of a step
 * where the host does. All that was found is in one region, losses and refusals too, and comes by one
 * transfer. */
static void make_figures(Engine *e, double p) {
    const ParamTable *t = &e->model.table;
    const Statistics *s = &e->statistics;
    for (int i = 0; i < t->count; i++) {
        const Param *param = &t->params[i];
        int64_t count = counted(e, param);
        if (count == 0) continue;
        const float *gradient = engine_gradient(e, param, partition_segment(&e->plan->partition, param));
        OP(e->device, OP_GRAD_STATS, grad_stats, count, gradient, p, &s->scalars->norm_unit,
           &s->figures->gradients[i]);
    }
    fetch(e, figures_bytes(e));
}

static void add_figures(const Engine *e, StepRecord *r) {
    const ParamTable *t = &e->model.table;
    for (int i = 0; i < t->count; i++)
        if (counted(e, &t->params[i]))
            record_add_stats(r, &e->statistics.host->gradients[i], i, e->plan->rank);
}

/* Gradients that fixed point could not hold count as elements that are not finite: they make the step a bad
 * one, on any mesh alike. */
static void add_refusals(const Engine *e, StepRecord *r) {
    int count = e->model.table.count;
    const FixedRefusals *refused = refusals_of(e, e->statistics.host);
    for (int i = 0; i < count; i++)
        if (!e->model.table.params[i].frozen) record_add_nonfinite(r, refused[i].count, i, e->plan->rank);
}

/* ---- the noise of gradients ---- */

/* A tied embedding's gradient is two until they are added, once a step: of a single microbatch it is never
 * there. */
static bool is_tied(const Engine *e, const Param *p) {
    return e->plan->partition.tied && p->unit == 0 && p->flat == FLAT_MATRICES;
}

/* By the rank that reads the step's first sequences, on any mesh, so that all measure the same. Its gradients
 * are whole here, whatever shares they are summed into; of what it holds like others along tp one counts. */
void statistics_add_first(Execution *x, int unit, Flat flat, const float *gradients) {
    Engine *e = x->engine;
    const Partition *partition = &e->plan->partition;
    const ParamTable *t = &e->model.table;
    if (unit == t->units || mesh_dp_rank(&partition->mesh, partition->rank) > 0) return;
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) {
        const Param *p = &t->params[i];
        if (p->flat != flat || p->frozen || is_tied(e, p) || !partition_counts(partition, p)) continue;
        OP(e->device, OP_GRAD_STATS, grad_stats, p->count, gradients + p->place, 2.0,
           &e->statistics.scalars->norm_unit, &e->statistics.first[i]);
    }
}

/* Both sums are over the same parameters. */
static void add_noise(const Engine *e, StepRecord *r) {
    const ParamTable *t = &e->model.table;
    for (int i = 0; e->statistics.first && i < t->count; i++) {
        if (is_tied(e, &t->params[i])) continue;
        if (counted(e, &t->params[i])) exact_merge(&r->noise_all, &e->statistics.host->gradients[i].sum);
        exact_merge(&r->noise_first, &first_of(e, e->statistics.host)[i].sum);
    }
}

/* ---- experts ---- */

/* Of one layer: how many times as many choices as in the mean the most chosen expert has, and those that
 * nobody chose. Layers without experts have no choices. */
static void add_layer(ExpertFigures *f, const int64_t *counts, int64_t experts) {
    int64_t most = 0, sum = 0, dead = 0;
    for (int64_t e = 0; e < experts; e++) {
        if (counts[e] > most) most = counts[e];
        sum += counts[e], dead += counts[e] == 0;
    }
    if (sum == 0) return;
    f->imbalance = fmax(f->imbalance, (double)most * (double)experts / (double)sum);
    f->dead += dead;
}

static void add_counts(void *into, const void *from) {
    int64_t *a = into;
    const int64_t *b = from;
    for (int64_t i = 1; i <= b[0]; i++) a[i] += b[i];
}

const int64_t *statistics_routed(const Engine *e, int layer) {
    return e->statistics.routed + 1 + layer * e->model.config.num_experts;
}

/* Whole numbers, so the figures are the same on every mesh. The first number says how many follow. */
ExpertFigures statistics_experts(Engine *e) {
    const ModelConfig *c = &e->model.config;
    int64_t count = step_routed(c), *counts = e->statistics.routed;
    ExpertFigures f = {0};
    if (count == 0) return (ExpertFigures){.imbalance = (double)NAN};
    counts[0] = count;
    memcpy(counts + 1, routed_of(e, e->statistics.host), (size_t)count * sizeof *counts);
    execution_combine(e, counts, (size_t)(count + 1) * sizeof *counts, add_counts);
    for (int64_t i = 0; i < model_blocks(c); i++)
        add_layer(&f, counts + 1 + i * c->num_experts, c->num_experts);
    return f;
}

/* ---- */

static void take_larger(void *into, const void *from) {
    *(double *)into = fmax(*(double *)into, *(const double *)from);
}

/* Powers other than 1 and 2 take a second pass over the gradients, and a reduction more: |g|^p of fp32
 * numbers leaves the range of doubles on either side for large p, so g is divided by the largest of all ranks
 * first, which must be known on all of them. */
static void find_unit(Engine *e, double p) {
    StepRecord r;
    if (!record_needs_max(p)) return;
    record_start(&r);
    make_figures(e, INFINITY);
    add_figures(e, &r);
    execution_combine(e, &r.max, sizeof r.max, take_larger);
    double unit = record_unit(r.max, p);
    OP(e->device, OP_UPLOAD, upload, &e->statistics.scalars->norm_unit, &unit, sizeof unit);
}

void statistics_read(Engine *e, double p, bool whole, StepRecord *r) {
    find_unit(e, p);
    make_figures(e, p);
    add_figures(e, r);
    if (!whole) return;
    record_add_losses(r, &e->statistics.host->losses);
    record_add_z_losses(r, &e->statistics.host->z_losses);
    record_add_balance(r, &e->statistics.host->balance);
    for (int k = 0; k < MTP_DEPTH_MAX; k++) record_add_mtp(r, k, &e->statistics.host->mtp[k]);
    add_noise(e, r);
    add_refusals(e, r);
}

void statistics_set_optimizer(Engine *e, const UpdateStep *step) {
    const ParamGroups *g = &e->plan->groups;
    for (int i = 0; i < g->count; i++) {
        OptimizerStep told = optimizer_step(&g->items[i].settings, step);
        OP(e->device, OP_UPLOAD, upload, &e->statistics.scalars->optimizer[i], &told, sizeof told);
    }
}
