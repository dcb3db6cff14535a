/* Figures of a step in tensor memory: scalars that its ops read, and what they computed of losses, refusals
 * and gradients.
 *
 *     statistics_begin         uploads scalars; zeroes losses and refusals
 *     forward, backward        ops add losses (statistics_add_losses) and refusals (gradients.c)
 *     statistics_read          ops compute the figures of each gradient; the host waits once for everything
 *     statistics_set_optimizer uploads the resulting scalars, for UPDATE
 *
 * Without ep (dispatch.c), and outside probed and skipped steps (probe.c, origin.c), these are the only waits
 * of a step for the device, whatever the model and the number of microbatches: one, or two where the powers
 * of a norm need the largest |g| of all ranks first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "device/ops/loss.h"
#include "device/ops/memory.h"
#include "device/ops/optimizer.h"
#include "engine/execution.h"

static int64_t origin_counters(const Engine *e) {
    return e->plan->spec.inference ? 0 : step_origins(&e->plan->program, e->model.table.count);
}

static size_t figures_bytes(const Engine *e) {
    bool training = !e->plan->spec.inference;
    return step_statistics_bytes(training ? e->model.table.count : 0, training && e->plan->spec.noise,
                                 training ? step_routed(&e->model.config) : 0, origin_counters(e),
                                 training ? e->plan->spec.sources : 0);
}

/* After the figures of gradients, in tensor memory and on the host. */
static FixedRefusals *refusals_of(const Engine *e, StepStatistics *s) {
    return (FixedRefusals *)(void *)&s->gradients[e->model.table.count];
}
static GradStats *first_of(const Engine *e, StepStatistics *s) {
    return (GradStats *)(void *)(refusals_of(e, s) + e->model.table.count);
}

/* After those, or in their place where the noise is not measured; then the counters of origin.c. */
static int64_t *routed_of(const Engine *e, StepStatistics *s) {
    return (int64_t *)(void *)(first_of(e, s) + (e->plan->spec.noise ? e->model.table.count : 0));
}

int64_t *statistics_origins(const Engine *e, StepStatistics *s) {
    return (int64_t *)(void *)(routed_of(e, s) + step_routed(&e->model.config));
}

int64_t statistics_refused(const Engine *e, int param) {
    return refusals_of(e, e->statistics.host)[param].count;
}

static LossSum *sources_of(const Engine *e, StepStatistics *s) {
    return (LossSum *)(void *)(statistics_origins(e, s) + origin_counters(e));
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
    /* As planned, in the row `record` or in that of pinned memory. */
    CHECK(e->plan->spec.inference ||
          e->plan->memory.record ==
              step_record_bytes(step_routed(&e->model.config), e->device->separate_memory ? 0 : bytes));
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

/* The loss is scaled by 1 / target tokens of the whole step, not by 1 / gradient_accumulation_steps
 * (elsewhere called: loss_scale). So gradient accumulation is a sum and no average of averages. */
void statistics_begin(Execution *x) {
    Engine *e = x->engine;
    const Statistics *s = &e->statistics;
    StepScalars scalars = {.norm_unit = 1};
    if (x->training && x->result->valid > 0) {
        scalars.inverse_token_count = (float)(1.0 / (double)x->result->valid);
        scalars.mtp_inverse_token_count = (float)(e->plan->spec.mtp_loss_weight / (double)x->result->valid);
    }
    OP(e->device, upload, s->scalars, &scalars, sizeof scalars);
    OP(e->device, zero, s->figures, figures_bytes(e));
    x->pass.inverse_token_count = &s->scalars->inverse_token_count;
    x->pass.mtp_inverse_token_count = &s->scalars->mtp_inverse_token_count;
    if (!x->training) return;
    if (e->plan->partition.tensor > 0) return; /* all ranks of tp route the same tokens */
    x->pass.balance = &s->figures->balance;
    if (step_routed(&e->model.config) > 0) x->pass.routed = routed_of(e, s->figures);
}

/* Adds the losses of a microbatch's local tokens to the sources of their rows, one run of tokens of a row at
 * a time. */
static void add_by_source(Execution *x, int microbatch) {
    Engine *e = x->engine;
    const Model *m = &e->model;
    int64_t row = model_sequence(m), rows = model_all_tokens(m) / row, segment = x->pass.segment * m->tokens;
    const int32_t *of = x->options->sources + program_batch(x->program, microbatch) * rows;
    LossSum *sums = sources_of(e, e->statistics.figures);
    for (int64_t i = 0, count; i < m->tokens; i += count) {
        int64_t at = segment + model_token(m, m->cp.rank, i), cp_chunk = model_cp_chunk(m),
                left = cp_chunk - i % cp_chunk;
        count = row - at % row < left ? row - at % row : left;
        OP(e->device, loss_sum, count, x->pass.losses + i, &sums[of[at / row]]);
    }
}

void statistics_add_losses(Execution *x, int microbatch) {
    Engine *e = x->engine;
    StepStatistics *s = e->statistics.figures;
    OP(e->device, loss_sum, e->model.tokens, x->pass.losses, &s->losses);
    if (x->training && x->options->sources) add_by_source(x, microbatch);
    if (x->pass.z_losses) OP(e->device, loss_sum, e->model.tokens, x->pass.z_losses, &s->z_losses);
    for (int k = 0; k < program_mtp_heads(x->program); k++)
        OP(e->device, loss_sum, e->model.tokens, x->pass.mtp_losses[k], &s->mtp[k]);
}

/* A wait of a timed step also measures how far the device is behind the host. */
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

/* Elements of a parameter that this rank counts; a frozen one has no gradient. */
static int64_t counted(const Engine *e, const Param *p) {
    if (p->frozen) return 0;
    return partition_counts(&e->plan->partition, p) ? partition_segment(&e->plan->partition, p).count : 0;
}

/* Enqueues the figures of every gradient that this rank counts, and waits for them. No other place in a step
 * waits for the device, except dispatches of experts over ep (dispatch.c). All figures are in one region,
 * with losses and refusals, and come in one transfer. */
static void make_figures(Engine *e, double p) {
    const ParamTable *t = &e->model.table;
    const Statistics *s = &e->statistics;
    for (int i = 0; i < t->count; i++) {
        const Param *param = &t->params[i];
        int64_t count = counted(e, param);
        if (count == 0) continue;
        const float *gradient = engine_gradient(e, param, partition_segment(&e->plan->partition, param));
        OP(e->device, grad_stats, .n = count, .g = gradient, .p = p, .unit = &s->scalars->norm_unit,
           .out = &s->figures->gradients[i]);
    }
    fetch(e, figures_bytes(e));
}

static void add_figures(const Engine *e, StepRecord *r) {
    const ParamTable *t = &e->model.table;
    for (int i = 0; i < t->count; i++)
        if (counted(e, &t->params[i]))
            record_add_stats(r, &e->statistics.host->gradients[i], i, e->plan->rank);
}

/* Gradients that fixed point could not hold count as non-finite elements: they make the step invalid, on
 * every mesh alike. */
static void add_refusals(const Engine *e, StepRecord *r) {
    int count = e->model.table.count;
    const FixedRefusals *refused = refusals_of(e, e->statistics.host);
    for (int i = 0; i < count; i++)
        if (!e->model.table.params[i].frozen) record_add_nonfinite(r, refused[i].count, i, e->plan->rank);
}

/* ---- the noise of gradients ---- */

/* A tied embedding has two gradients until they are added, once a step, so the gradient of a single
 * microbatch never exists. */
static bool is_tied(const Engine *e, const Param *p) {
    return e->plan->partition.tied && p->unit == 0 && p->flat == FLAT_MATRICES;
}

/* Done by the ranks that read the step's first sequences, so that every mesh measures the same. Their
 * gradients are unsharded here, whatever shards they are summed into; of gradients that ranks of tp have
 * alike, one rank counts. */
void statistics_add_first(Execution *x, int unit, Flat flat, const float *gradients) {
    Engine *e = x->engine;
    const Partition *partition = &e->plan->partition;
    const ParamTable *t = &e->model.table;
    if (unit == t->units || mesh_dp_rank(&partition->mesh, partition->rank) > 0) return;
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) {
        const Param *p = &t->params[i];
        if (p->flat != flat || p->frozen || is_tied(e, p) || !partition_counts(partition, p)) continue;
        OP(e->device, grad_stats, .n = p->count, .g = gradients + p->offset, .p = 2.0,
           .unit = &e->statistics.scalars->norm_unit, .out = &e->statistics.first[i]);
    }
}

/* Adds to both sums for the same parameters. */
static void add_noise(const Engine *e, StepRecord *r) {
    const ParamTable *t = &e->model.table;
    for (int i = 0; e->statistics.first && i < t->count; i++) {
        if (is_tied(e, &t->params[i])) continue;
        if (counted(e, &t->params[i])) exact_merge(&r->noise_all, &e->statistics.host->gradients[i].sum);
        exact_merge(&r->noise_first, &first_of(e, e->statistics.host)[i].sum);
    }
}

/* ---- experts ---- */

/* For one layer: the most-chosen expert's assignments relative to the mean, and the number of experts that no
 * token chose. Layers without experts have no counts. */
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

/* Integers, so the figures are the same on every mesh. The first number states how many follow. */
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

/* ---- gradients and the whole record ---- */

static void take_larger(void *into, const void *from) {
    *(double *)into = fmax(*(double *)into, *(const double *)from);
}

/* Powers other than 1 and 2 take a second pass over the gradients and another reduction. For large p, |g|^p
 * of fp32 numbers leaves the range of doubles at both ends, so g is first divided by the largest |g| of all
 * ranks, which all of them must know. */
static void find_unit(Engine *e, double p) {
    StepRecord r;
    if (!record_needs_max(p)) return;
    record_start(&r);
    make_figures(e, INFINITY);
    add_figures(e, &r);
    execution_combine(e, &r.max, sizeof r.max, take_larger);
    double unit = record_unit(r.max, p);
    OP(e->device, upload, &e->statistics.scalars->norm_unit, &unit, sizeof unit);
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
        OptimizerStep of_step = optimizer_step(&g->items[i].settings, step);
        OP(e->device, upload, &e->statistics.scalars->optimizer[i], &of_step, sizeof of_step);
    }
}
