/* The end of a step: the record that all ranks must agree on, and the optimizer.
 *
 *     figures of own gradients --(one wait)--> record --(combine over all ranks)--> norm, loss, verdict
 *                                                                                   |
 *     UPDATE, unit after unit <--(upload: learning rate, clip, bias correction)-----+
 *
 * Each element of the model's gradient is counted by exactly one rank (partition_counts), sums are exact, and
 * one small reduction combines them, so the norm and everything derived from it have the same bits on every
 * rank and mesh. Every rank therefore comes to the same verdict by itself: all of them skip a step whose
 * gradient or loss is not finite, and report where.
 *
 * Elsewhere called: optimizer step, gradient clipping (clip_grad_norm_). There is no loss scaling (AMP,
 * GradScaler): bf16 needs none. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"
#include "comm/repair.h"
#include "device/ops/experts.h"
#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "device/ops/optimizer.h"
#include "engine/execution.h"
#include "program/owners.h"

double engine_gradient_norm(Engine *e, double p, int64_t *nonfinite, const char **culprit) {
    StepRecord r;
    record_start(&r);
    statistics_read(e, p, false, &r);
    execution_combine(e, &r, sizeof r, record_combine);
    *nonfinite = r.nonfinite;
    *culprit = r.culprit >= 0 ? e->model.table.params[r.culprit].name : NULL;
    return record_norm(&r, p);
}

/* Where each rank made finite values only, they became non-finite in a sum over ranks, or on the way. */
static void name_sum(const Engine *e, const StepRecord *r, Text *out) {
    if (r->culprit < 0) {
        text_puts(out, "a sum");
        return;
    }
    text_printf(out, "the gradient of %s", e->model.table.params[r->culprit].name);
    if (comm_size(e->comm) > 1)
        text_printf(out, " after the sum over ranks, held by rank %lld", (long long)r->culprit_rank);
}

/* Writes what made the step invalid. All ranks, since they look for it together. */
static void name_culprit(Execution *x) {
    Text where = {0};
    if (!x->result->skipped) return;
    if (!origin_find(x, &where)) name_sum(x->engine, &x->record, &where);
    snprintf(x->result->culprit, sizeof x->result->culprit, "%s", where.data);
    text_free(&where);
}

/* Targets of the step's first microbatch, counted by the rank that reads it. */
static int64_t first_valid(const Execution *x) {
    const Partition *p = &x->engine->plan->partition;
    bool counts = partition_counts_batches(p) && mesh_dp_rank(&p->mesh, p->rank) == 0;
    return counts && x->program->first_alone ? x->batches[0].valid : 0;
}

/* From here on the step counts: all living ranks make the update, or none does. */
static bool commit(Execution *x) {
    Error err;
    Engine *e = x->engine;
    if (!e->interrupted) execution_must(e, comm_commit(e->comm, &err), &err);
    x->committed = !e->interrupted;
    return x->committed;
}

void update_norm(Execution *x) {
    Engine *e = x->engine;
    StepResult *r = x->result;
    const StepOptions *o = x->options;
    StepRecord *record = &x->record;
    if (x->replaying || (o->replay && replay_differs(x))) {
        partner_wait(x);
        r->skipped = true;
        return;
    }
    statistics_read(e, o->clip_norm, true, record);
    record->any = o->any, record->all = o->all;
    record->first_valid = first_valid(x);
    e->targets.own = o->next ? engine_valid(e, o->next, o->next_microbatches) : 0;
    record->ahead = e->targets.own, record->ahead_unknown = o->next == NULL;
    execution_combine(e, record, sizeof *record, record_combine);
    if (e->interrupted) return;
    e->targets.all = record->ahead_unknown ? -1 : record->ahead;
    record->valid = r->valid;
    r->nonfinite = record->nonfinite;
    r->loss = record_loss(record), r->z_loss = record_z_loss(record), r->balance = record_balance(record);
    for (int k = 0; k < MTP_DEPTH_MAX; k++) r->mtp[k] = record_mtp(record, k);
    r->experts = statistics_experts(e);
    r->grad_norm = record_norm(record, o->clip_norm);
    r->noise = e->statistics.first ? record_noise(record) : (NoiseEstimate){(double)NAN, (double)NAN};
    r->any = record->any, r->all = record->all;
    r->skipped = !isfinite(r->loss) || !isfinite(r->grad_norm);
    name_culprit(x);
    partner_wait(x);
    if (!commit(x)) return;
    /* PyTorch's rule: the small constant keeps the quotient finite. */
    double coefficient = o->clip > 0 ? o->clip / (r->grad_norm + 1e-6) : 1;
    r->clip_coefficient = r->skipped ? 0 : fmin(1, coefficient);
    if (!r->skipped) e->state.updates++;
    statistics_set_optimizer(e, &(UpdateStep){.lr_factor = o->lr_factor,
                                              .clip_coefficient = r->clip_coefficient,
                                              .updates = e->state.updates,
                                              .ema = e->plan->groups.ema});
    if (o->before_update) o->before_update(o->context);
}

const OptimizerStep *update_step(const Engine *e, int i) {
    return &e->statistics.scalars->optimizer[e->plan->groups.of[i]];
}

/* The rounding of states is drawn by an element's index in the unsharded parameter, so one run of such
 * indices is updated at a time. */
UpdateRun update_run(const Engine *e, int i, ParamSegment segment, int64_t at, SegmentRun elements) {
    const Param *p = &e->model.table.params[i];
    const ParamGroups *g = &e->plan->groups;
    const ParamGroup *group = param_group(g, i);
    size_t offset = segment.at + (size_t)at;
    UpdateRun run = {.count = elements.count,
                     .param = e->state.master + offset,
                     .grad = engine_gradient(e, p, segment) + at,
                     .copy = e->state.copy && !flat_of_vectors(p->flat) ? parameters_copy(e, offset) : NULL,
                     .weight_decay = param_weight_decay(g, i, p),
                     .of = p,
                     .scratch = e->work.scratch,
                     .store = {.type = (Dtype)group->settings.states,
                               .key = rng_key(g->seed, p->name),
                               .first = elements.element}};
    for (int k = 0; k < param_states(g, i); k++) {
        char *state = (char *)engine_optimizer_state(e, i, k) + (size_t)at * param_state_width(g, i, k);
        if (!param_state_is_average(g, i, k)) run.state[k] = state;
    }
    return run;
}

void update_average(Engine *e, int i, ParamSegment segment, int64_t at, int64_t count) {
    const ParamGroups *g = &e->plan->groups;
    if (g->ema <= 0) return;
    float *mean = engine_optimizer_state(e, i, param_states(g, i) - 1);
    OP(e->device, average, count, update_step(e, i), e->state.master + segment.at + at, mean + at);
}

static void descend_run(Engine *e, int i, ParamSegment segment, int64_t at, SegmentRun elements) {
    const ParamGroup *group = param_group(&e->plan->groups, i);
    UpdateRun run = update_run(e, i, segment, at, elements);
    group->optimizer->update(e->device, &group->settings, update_step(e, i), &run);
    update_average(e, i, segment, at, elements.count);
}

/* By how much an expert's bias moves. mine: its tokens times the number of experts; all: the tokens of all.
 * DeepSeek's moves by the sign of the difference, as published. A bias that no model file has moves by its
 * relative distance from the mean, at most by `speed`: so it counteracts experts that collapse and rests
 * where they do not, however little logits differ. */
static float move_of(const Param *p, float speed, int64_t mine, int64_t all) {
    if (!p->row->with_states) return mine < all ? speed : mine > all ? -speed : 0;
    return all > 0 ? speed * (float)fmax(1 - (double)mine / (double)all, -1) : 0;
}

/* Moves the bias with which experts are chosen (Wang et al., "Auxiliary-loss-free load balancing", 2024;
 * DeepSeek: e_score_correction_bias; Megatron: expert_bias): up for experts with fewer tokens than the
 * layer's mean, down for those with more. Counts are of the whole step, so the moves are the same on every
 * mesh. What is added goes through the memory of the bias's gradient, which nothing reads. */
static void move_run(Engine *e, int i, ParamSegment segment, int64_t at, SegmentRun elements) {
    const Param *p = &e->model.table.params[i];
    const int64_t *counts = statistics_routed(e, p->layer);
    float moves[EXPERTS_MAX], *by = engine_gradient(e, p, segment) + at,
                              *bias = e->state.master + segment.at + at;
    float speed = (float)e->plan->spec.bias_speed;
    int64_t all = 0;
    for (int64_t k = 0; k < p->count; k++) all += counts[k];
    for (int64_t k = 0; k < elements.count; k++)
        moves[k] = move_of(p, speed, counts[elements.element + k] * p->count, all);
    OP(e->device, upload, by, moves, (size_t)elements.count * sizeof *moves);
    OP(e->device, add, elements.count, bias, by, bias, DTYPE_F32);
    update_average(e, i, segment, at, elements.count);
}

static void update_parameter(Engine *e, int i) {
    const Param *p = &e->model.table.params[i];
    bool moves = p->row->fixed && e->plan->spec.bias_speed > 0;
    if ((p->frozen && !moves) || owner_of_matrices(&e->plan->partition, i) >= 0) return;
    ParamSegment segment = partition_segment(&e->plan->partition, p);
    SegmentRun run;
    for (int64_t at = 0; at < segment.count; at += run.count) {
        run = segment_run(&segment, at);
        (moves ? move_run : descend_run)(e, i, segment, at, run);
    }
}

void update_parameters(Engine *e, int unit) {
    const ParamTable *t = &e->model.table;
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) update_parameter(e, i);
}

/* A skipped step changes nothing, not even the optimizer's states. Steps of exchanged matrices come first:
 * they are in scratch, which the update of a matrix that is whole here (an expert, with mesh.etp 1) needs. */
void update_unit(Execution *x, int unit) {
    if (x->result->skipped) return;
    matrices_update(x, unit);
    update_parameters(x->engine, unit);
}
