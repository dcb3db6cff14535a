/* From what all ranks have in common to the plan of one rank. The order matters: each step reads only what
 * stands above it.
 *
 *     mesh and model --> the rank's local model (tp) --> table of parameters --> groups of the optimizer
 *                                                          |                       |
 *     schedule, stages ----------------------------> partition: shards <-----------+
 *                                                          |
 *                                       programs: of a step, and of an evaluation
 *                                                          |
 *                                       memory: buffers, pools, staging
 *
 * Nothing here depends on what other ranks do or on the machine: `weft plan` plans any rank anywhere, and a
 * run plans its own in the same way.
 *
 * Elsewhere called: mixed precision, which is decided here: fp32 master weights, computation in bf16 or
 * fp32. */
#include "plan/rank.h"

#include <stdlib.h>

#include "base/memory.h"
#include "data/loader.h"
#include "model/families/family.h"

/* auto becomes bf16 where the device multiplies it natively, else fp32: without native products bf16 is no
 * faster than fp32, and less exact. */
static Dtype compute_of(const Config *c, const Device *d) {
    if (c->train.compute == COMPUTE_AUTO) return d->native_bf16 ? DTYPE_BF16 : DTYPE_F32;
    return c->train.compute == COMPUTE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

AdapterSpec rank_adapters(const Config *c) {
    if (c->lora.rank == 0) return (AdapterSpec){.rank = 0};
    return (AdapterSpec){.rank = c->lora.rank,
                         .scale = adapters_scale(c->lora.rank, c->lora.alpha, c->lora.rslora),
                         .match = c->lora.match};
}

/* Of the steps that are read ahead, and of the loader. */
static size_t rank_batch_bytes(const Config *c, const Layout *l) {
    return STEPS_READ_AHEAD * batch_bytes(layout_tokens(l, c->train.context)) +
           loader_bytes(l->sequences * c->train.context, c->data.prefetch);
}

RankSpec rank_spec(const Config *c, const Layout *l, const Device *d) {
    return (RankSpec){.model = c->model.shape,
                      .adapters = rank_adapters(c),
                      .compute = compute_of(c, d),
                      .recompute = (Recompute)c->train.recompute,
                      .tokens = l->sequences * c->train.context,
                      .positions = c->train.context,
                      .loss_rows = c->train.loss_rows > 0 ? c->train.loss_rows : d->loss_rows,
                      .splits = (int)c->numerics.tp_invariant_up_to,
                      .expert_splits = (int)c->numerics.etp_invariant_up_to,
                      .exact_chunks = (int)c->numerics.cp_invariant_up_to,
                      .context = (CpComm)c->cp_comm,
                      .z_loss = c->train.z_loss,
                      .bias_speed = c->train.router_bias_speed,
                      .capacity = c->train.ep_buffer_factor,
                      .mtp_loss_weight = c->train.mtp_loss_weight,
                      .defer_head = c->train.split_backward && !layout_is_pipeline(l),
                      .exact = c->numerics.mode == NUMERICS_EXACT,
                      .probes = c->metrics.probe > 0,
                      .noise = c->metrics.noise_scale,
                      .sources = config_reported_sources(c),
                      .sync = (GradientSync)c->train.gradient_sync,
                      .reshard = (Reshard)c->train.reshard,
                      .optimizer = &c->optimizer,
                      .batches = rank_batch_bytes(c, l),
                      .partner_copy = c->recovery.partner_copy,
                      .staged = !config_saves_async(c)              ? 0
                                : c->checkpoint.dtype == STORE_BF16 ? 2
                                                                    : 1};
}

/* Bytes of a segment with `width` bytes an element. Each run is padded by itself, since the runs of a local
 * shard that is narrower than its matrix are not adjacent. */
static size_t run_bytes(const ParamSegment *segment, size_t width) {
    size_t sum = 0;
    SegmentRun run;
    for (int64_t at = 0; at < segment->count; at += run.count) {
        run = segment_run(segment, at);
        sum += pool_round((size_t)run.count * width);
    }
    return sum;
}

/* Bytes that a checkpoint copies of the elements that this rank counts: each tensor by itself, in the layout
 * of the copy (checkpoint_staging_bytes). The base model of adapters is in no checkpoint. */
static size_t staging(const RankPlan *p) {
    size_t sum = 0;
    for (int i = 0; i < p->model.table.count; i++) {
        const Param *param = &p->model.table.params[i];
        if (!partition_counts(&p->partition, param) || param_group(&p->groups, i)->base) continue;
        ParamSegment segment = partition_segment(&p->partition, param);
        sum += (size_t)(param->row->with_states ? 1 : p->spec.staged) * run_bytes(&segment, sizeof(float));
        for (int k = 0; k < param_states(&p->groups, i); k++)
            sum += run_bytes(&segment, param_state_width(&p->groups, i, k));
    }
    return sum;
}

/* Every plan checks its program here, so no run, forecast or comparison uses a program that would not run. */
static ErrorCode plan_program(RankPlan *p, const Schedule *schedule, GradientSync sync, Program *out,
                              Error *err) {
    const RankSpec *s = &p->spec;
    ProgramSpec spec = {.model = &p->model.config,
                        .partition = &p->partition,
                        .schedule = schedule,
                        .defer_head = s->defer_head,
                        .exact = s->exact,
                        .sync = sync,
                        .reshard = s->reshard,
                        .has_collective = s->has_collective,
                        .recompute = s->recompute,
                        .chunks = model_head_chunks(&p->model, true)};
    program_lower(out, &spec);
    return program_check(out, err);
}

/* The properties of the device on which memory depends. */
typedef struct DeviceTraits {
    size_t scratch, granularity, pinned;
    bool separate_memory;
} DeviceTraits;

/* Enlarges the arenas of training for another program that runs in them. */
static void enlarge_arenas(RankPlan *p, const MemoryPlan *other) {
    for (int a = 0; a < ARENAS; a++)
        if (other->arena[a] > p->memory.arena[a]) p->memory.arena[a] = other->arena[a];
}

static ErrorCode plan_smaller(RankPlan *p, const Schedule *schedule, DeviceTraits traits, Error *err) {
    StepPlan *step = &p->smaller[p->smaller_count++];
    /* The same synchronisation as in the full step, whose memory this uses. */
    TRY(plan_program(p, schedule, p->program.sync, &step->program, err));
    memory_plan(&step->memory, &(MemorySpec){.program = &step->program,
                                             .model = &p->model,
                                             .positions = p->spec.positions,
                                             .device_scratch = traits.scratch,
                                             .separate_memory = traits.separate_memory,
                                             .granularity = traits.granularity,
                                             .pinned = traits.pinned});
    enlarge_arenas(p, &step->memory);
    return OK;
}

static ErrorCode plan_training(RankPlan *p, const Layout *l, DeviceTraits traits, Error *err) {
    TRY(plan_program(p, &l->schedule, p->spec.sync, &p->program, err));
    memory_plan(&p->memory, &(MemorySpec){.program = &p->program,
                                          .model = &p->model,
                                          .positions = p->spec.positions,
                                          .device_scratch = traits.scratch,
                                          .separate_memory = traits.separate_memory,
                                          .granularity = traits.granularity,
                                          .pinned = traits.pinned,
                                          .optimizer = &p->groups,
                                          .probes = p->spec.probes,
                                          .noise = p->spec.noise,
                                          .sources = p->spec.sources});
    p->memory.staging = p->spec.staged > 0 ? staging(p) : 0;
    p->memory.batches = p->spec.batches + program_mtp_host_bytes(&p->program, &p->model);
    enlarge_arenas(p, &p->evaluation_memory);
    p->smaller = mem_alloc_array((size_t)l->smaller_count, sizeof *p->smaller);
    for (int i = 0; i < l->smaller_count; i++) TRY(plan_smaller(p, &l->smaller[i], traits, err));
    return OK;
}

/* The partner makes the updates of its copy, and so needs all that they read: the state and the gradients of
 * one rank. */
static ErrorCode plan_partner(RankPlan *p, const RankSpec *spec, const Layout *l, const Device *d,
                              Error *err) {
    RankSpec other = *spec;
    if (!spec->partner_copy || l->mesh.world == 1) return OK;
    if (p->partition.owners)
        return error_set(err, ERR_CONFIG,
                         "recovery.partner_copy: an optimizer of whole matrices updates those that mesh.tp "
                         "%d shards with the help of other ranks, which a partner does not have: set mesh.tp "
                         "to 1, another optimizer, or recovery.partner_copy=false",
                         p->partition.tensors);
    other.partner_copy = false;
    p->copied = mem_alloc(sizeof *p->copied);
    TRY(rank_plan(p->copied, &other, l, mesh_partner_of(&l->mesh, p->rank), d, err));
    memory_plan_add_partner(&p->memory, &p->copied->partition, &p->copied->groups, &p->copied->memory);
    return OK;
}

/* Patterns of parameter names decide what is frozen, so the table comes first. Freezing changes the layout of
 * the table, and the groups are then built again for it. */
static ErrorCode make_groups(RankPlan *p, Error *err) {
    ParamTable *t = &p->model.table;
    TRY(param_groups_build(&p->groups, p->spec.optimizer, t, err));
    bool *frozen = mem_alloc_array((size_t)t->count, sizeof *frozen), any = false;
    for (int i = 0; i < t->count; i++) any |= frozen[i] = param_group(&p->groups, i)->frozen;
    ErrorCode code = any ? param_table_freeze(t, &p->model.config, frozen, err) : OK;
    free(frozen);
    if (code != OK || !any) return code;
    param_groups_free(&p->groups);
    return param_groups_build(&p->groups, p->spec.optimizer, t, err);
}

/* The noise scale needs the gradient of one microbatch on one rank, which does not exist where its sum is
 * split. */
static ErrorCode check_whole(const RankPlan *p, TpGroup tp, Error *err) {
    if (p->spec.inference) return OK;
    if (p->spec.noise && p->model.dispatch_rows > 0)
        return error_set(
            err, ERR_CONFIG,
            "metrics.noise_scale: with mesh.ep %lld the gradient of a microbatch is on several ranks: "
            "leave it out, or set mesh.ep to 1",
            (long long)model_expert_ranks(&p->model.config));
    if (p->spec.noise && p->model.cp.ranks > 1)
        return error_set(
            err, ERR_CONFIG,
            "metrics.noise_scale: with mesh.cp %d no rank has the gradient of a microbatch: leave "
            "it out, or set mesh.cp to 1",
            p->model.cp.ranks);
    if (p->spec.noise && model_segments(&p->model) > 1)
        return error_set(err, ERR_CONFIG,
                         "metrics.noise_scale: with pipeline.segments %d no pass makes the gradient of a "
                         "microbatch: leave it out, or set pipeline.segments to 1",
                         model_segments(&p->model));
    if (p->spec.noise && model_exact_chunks(&p->model) > 1)
        return error_set(err, ERR_CONFIG,
                         "metrics.noise_scale: sums that cp may split are partial until they are rounded: "
                         "set numerics.cp_invariant_up_to to 1");
    if (p->spec.noise && (tp.size > 1 || tp.splits > 1))
        return error_set(err, ERR_CONFIG,
                         "metrics.noise_scale: sums that tp may split are partial until the end of a step: "
                         "set mesh.tp to 1 and numerics.tp_invariant_up_to to 0");
    return OK;
}

static bool has_attention(const ModelConfig *c) {
    for (int64_t i = 0; i < model_blocks(c); i++)
        if (model_block(c, i).mixer == MIXER_ATTENTION) return true;
    return false;
}

/* Reports what a device's kernels do not support, before anything runs. */
static ErrorCode check_device(const ModelConfig *model, const Device *d, Error *err) {
    int64_t widest = d->widest_head;
    if (widest == 0 || model->head_dim <= widest || !has_attention(model)) return OK;
    return error_set(err, ERR_CONFIG,
                     "attention heads of %lld elements (head_dim); at most %lld are done on %s: take more or "
                     "narrower heads",
                     (long long)model->head_dim, (long long)widest, d->separate_memory ? "this GPU" : "CPUs");
}

static ErrorCode put_adapters(RankPlan *p, TpGroup tp, Error *err) {
    ModelConfig *own = &p->model.config, *whole = &p->spec.model;
    p->spec.adapters.replicated = tp.splits > 1;
    TRY(adapters_put(&p->model.table, own, whole, &p->spec.adapters, err));
    whole->adapter_rank = own->adapter_rank, whole->adapter_scale = own->adapter_scale;
    whole->adapter_replicated = own->adapter_replicated;
    p->spec.adapters.match = NULL, p->spec.adapters.names = NULL;
    return OK;
}

CpCommSpec rank_cp_comm(const RankSpec *spec, const Mesh *mesh) {
    return (CpCommSpec){.model = &spec->model,
                        .compute = spec->compute,
                        .tokens = spec->tokens,
                        .tensors = mesh_size(mesh, MESH_TENSOR),
                        .cp = mesh_size(mesh, MESH_CONTEXT),
                        .splits = spec->splits,
                        .asked = spec->context,
                        .exact_chunks = spec->exact ? spec->exact_chunks : 0};
}

CpCommSpec rank_cp_comm_of(const Config *c) {
    bool exact = c->numerics.mode == NUMERICS_EXACT;
    return (CpCommSpec){.model = &c->model.shape,
                        .compute = c->train.compute == COMPUTE_BF16 ? DTYPE_BF16 : DTYPE_F32,
                        .tokens = c->train.microbatch * c->train.context,
                        .tensors = (int)c->mesh.tp,
                        .cp = (int)c->mesh.cp,
                        .splits = (int)c->numerics.tp_invariant_up_to,
                        .asked = (CpComm)c->cp_comm,
                        .exact_chunks = exact ? (int)c->numerics.cp_invariant_up_to : 0};
}

/* In fast numerics cp is one of the axes over which gradients are summed without exact chunks. */
static CpGroup cp_group_of(const RankSpec *s, const Mesh *mesh, int rank, int segments) {
    CpCommSpec comm = rank_cp_comm(s, mesh);
    bool keys = cp_comm_method(&comm) == CP_COMM_ALL_GATHER;
    int least = keys ? 2 * comm.cp : comm.cp > segments ? comm.cp : segments;
    return partition_cp(mesh, rank, !s->exact ? 0 : s->exact_chunks > 0 ? s->exact_chunks : least, keys);
}

/* Whether sums over an expert's width are not split although others are: what the numerics say, else the
 * mesh. */
static ErrorCode find_whole_experts(const RankSpec *s, const Mesh *mesh, TpGroup tp, bool *whole,
                                    Error *err) {
    bool folded = mesh_size(mesh, MESH_FOLDED) > 1;
    int asked = s->expert_splits > 0 ? s->expert_splits : folded ? 1 : tp.splits;
    *whole = s->model.num_experts > 0 && tp.splits > 1 && asked == 1;
    if (s->model.num_experts == 0) return OK;
    if (asked != 1 && asked != tp.splits)
        return error_set(
            err, ERR_CONFIG,
            "numerics.etp_invariant_up_to %d is neither 1, for experts that are whole, nor "
            "numerics.tp_invariant_up_to %d, for experts that mesh.tp cuts: set it to one of them",
            asked, tp.splits);
    if (tp.size == 1 || *whole == folded) return OK;
    return error_set(err, ERR_CONFIG,
                     "mesh.etp %d cannot have the bits of numerics.etp_invariant_up_to %d, of which %s: set "
                     "mesh.etp to %d%s",
                     folded ? 1 : tp.size, asked,
                     *whole ? "experts are whole on each rank"
                            : "each rank of mesh.tp has a part of an expert",
                     *whole ? 1 : tp.size, *whole ? " and mesh.ep to a multiple of mesh.tp" : "");
}

ErrorCode rank_plan(RankPlan *p, const RankSpec *spec, const Layout *l, int rank, const Device *d,
                    Error *err) {
    *p = (RankPlan){.spec = *spec, .rank = rank};
    if (!spec->has_collective) p->spec.has_collective = program_has_collective;
    ModelConfig own;
    const ModelConfig *whole = &p->spec.model;
    TpGroup tp = partition_tp_group(&l->mesh, rank, spec->splits);
    p->spec.model.mtp_replicated = whole->mtp_module && tp.splits > 1;
    TRY(find_whole_experts(spec, &l->mesh, tp, &p->spec.model.whole_experts, err));
    int segments = l->schedule.segments;
    CpGroup cp = cp_group_of(spec, &l->mesh, rank, segments);
    int64_t tokens = spec->tokens / (cp.ranks * segments),
            loss_rows = model_loss_rows(whole, tokens, spec->loss_rows);
    TRY(check_device(whole, d, err));
    TRY(axes_check_splits(whole, tp.size, tp.splits, spec->tokens, err));
    TRY(axes_check_cp(whole, tp, cp, spec->tokens, err));
    TRY(axes_check_segments(whole, tp, cp, segments, spec->tokens, err));
    TRY(axes_check_whole_experts(whole, tp, cp, err));
    TRY(partition_model(whole, &l->mesh, rank, spec->splits, &own, err));
    TRY(model_build(&p->model, &own, spec->compute, spec->recompute, tokens, loss_rows, err));
    p->model.positions = spec->positions;
    model_set_tp(&p->model, tp, whole);
    model_set_segments(&p->model, segments, cp);
    model_set_ep(&p->model, spec->capacity > 1 ? spec->capacity : 1);
    TRY(put_adapters(p, tp, err));
    if (!spec->inference) TRY(make_groups(p, err));
    if (!spec->inference) param_groups_count(&p->groups, &p->model.table, whole);
    TRY(check_whole(p, tp, err));
    partition_build(&p->partition, &(PartitionSpec){.model = &p->spec.model,
                                                    .table = &p->model.table,
                                                    .groups = spec->inference ? NULL : &p->groups,
                                                    .mesh = &l->mesh,
                                                    .rank = rank,
                                                    .stages = &l->stages,
                                                    .splits = spec->splits,
                                                    .exact_chunks = cp.exact_chunks,
                                                    .keys = cp.keys,
                                                    .segments = segments,
                                                    .inference = spec->inference});
    DeviceNeeds needs = model_device_needs(&p->model);
    DeviceTraits traits = {d->runtime.scratch_bytes(d, &needs), d->granularity, d->pinned,
                           d->separate_memory};
    program_lower_evaluation(&p->evaluation, &(ProgramSpec){.model = &p->model.config,
                                                            .partition = &p->partition,
                                                            .has_collective = p->spec.has_collective,
                                                            .chunks = model_head_chunks(&p->model, false)});
    memory_plan(&p->evaluation_memory, &(MemorySpec){.program = &p->evaluation,
                                                     .model = &p->model,
                                                     .positions = spec->positions,
                                                     .device_scratch = traits.scratch,
                                                     .separate_memory = traits.separate_memory,
                                                     .granularity = traits.granularity,
                                                     .pinned = traits.pinned,
                                                     .inference = spec->inference});
    if (spec->inference) return OK;
    TRY(plan_training(p, l, traits, err));
    return plan_partner(p, spec, l, d, err);
}

/* Shards are even unless matrices stay whole, so a second plan is rarely needed. */
ErrorCode rank_plan_fullest(RankPlan *p, const RankSpec *spec, const Layout *l, int pipe_rank,
                            const Device *d, Error *err) {
    int first = pipe_rank * (l->mesh.world / mesh_size(&l->mesh, MESH_PIPELINE));
    TRY(rank_plan(p, spec, l, first, d, err));
    int fullest = partition_fullest(&p->partition);
    if (fullest == first) return OK;
    rank_plan_free(p);
    return rank_plan(p, spec, l, fullest, d, err);
}

void rank_plan_free(RankPlan *p) {
    memory_plan_free(&p->memory);
    memory_plan_free(&p->evaluation_memory);
    program_free(&p->program);
    program_free(&p->evaluation);
    for (int i = 0; i < p->smaller_count; i++) {
        memory_plan_free(&p->smaller[i].memory);
        program_free(&p->smaller[i].program);
    }
    free(p->smaller);
    if (p->copied) rank_plan_free(p->copied);
    free(p->copied);
    partition_free(&p->partition);
    param_groups_free(&p->groups);
    model_free(&p->model);
    *p = (RankPlan){0};
}

const MemoryPlan *rank_memory(const RankPlan *p) {
    return p->spec.inference ? &p->evaluation_memory : &p->memory;
}

/* The messages with which a rank sends its gradients to its partner: one for each flat of a unit. */
static uint64_t partner_traffic(const RankPlan *p) {
    uint64_t sum = 0;
    for (int u = 0; p->copied && u < p->partition.table->units; u++)
        for (int f = 0; f < GRADIENT_FLATS; f++) {
            uint64_t count = (uint64_t)gradient_updated(&p->partition, u, (Flat)f);
            sum += count > 0 ? COMM_HEADER + count * sizeof(float) : 0;
        }
    return sum;
}

ProgramTraffic rank_traffic(const RankPlan *p) {
    ProgramTraffic t = program_traffic(&p->program, &p->model);
    t.partner = partner_traffic(p);
    return t;
}
