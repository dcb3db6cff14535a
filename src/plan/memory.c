/* Walks the program once to collect the buffers that actions touch (action_buffers), then places them in
 * their arenas.
 *
 *     action      0    1    2    3    4    5    6          a buffer lives from the first action
 *     saved 1     |---------------------------|            that touches it to the last; two that
 *     saved 2          |-----------------|                 are never alive together may share bytes
 *     stash 2                     |-----------|
 *     gathered 1  |---------|          |------|            (two lives, two buffers)
 *
 * If an action uses a buffer that action_buffers does not list, it corrupts another buffer.
 * tests/program/test_program.c: check_plan checks that listed buffers are alive and never overlap,
 * tests/ranks/test_pipeline_memory.sh that ranks take what was planned.
 *
 * First fit in order of first use need not give the smallest packing, which is hard to find. It is fast, and
 * the same on every machine.
 *
 * Elsewhere called: liveness analysis and graph allocator (ggml: gallocr), caching allocator (PyTorch), which
 * a plan replaces. */
#include "plan/memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "program/owners.h"

Arena buffer_arena(BufferKind kind) {
    if (kind == BUFFER_GATHERED) return ARENA_GATHERED;
    return kind >= BUFFER_FLAT_GRADIENTS ? ARENA_GRADIENTS : ARENA_ACTIVATIONS;
}

/* A gradient travels down through adjacent units of one rank in one buffer, which is named by the highest of
 * them. */
int gradient_unit(const Program *p, int unit) {
    while (unit + 1 < p->units && partition_runs(p->partition, unit + 1)) unit++;
    return unit;
}

/* Flats of a gathered unit follow each other, each at a pool's alignment. */
size_t gathered_offset(const Program *p, const Model *m, int unit, Flat flat) {
    size_t at = 0;
    for (int f = 0; f < (int)flat; f++)
        at += pool_round(partition_flat_elements(p->partition, unit, (Flat)f) *
                         dtype_bytes(flat_dtype((Flat)f, m->compute)));
    return at;
}

/* Bytes of a buffer whose kind exists once for each flat. */
static size_t flat_bytes(const Program *p, BufferKind kind, int unit) {
    Flat flat = (Flat)((kind - BUFFER_FLAT_GRADIENTS) % GRADIENT_FLATS);
    size_t elements = gradient_elements(p, unit, flat),
           total = partition_flat_elements(p->partition, unit, flat);
    if (kind >= BUFFER_FLAT_PARTIALS)
        return pool_round((size_t)program_partial_sums(p, flat) * total * sizeof(float));
    if (kind >= BUFFER_FLAT_FIXED) return pool_round(elements * sizeof(int64_t));
    return pool_round((size_t)program_gradients(p, flat) * elements * sizeof(float));
}

size_t batch_array_offset(const Model *m, int array) {
    size_t each = pool_round((size_t)m->tokens * sizeof(int32_t)),
           all = pool_round((size_t)model_all_tokens(m) * sizeof(int32_t));
    return (size_t)array * each + (array > BATCH_FIRST_KEY ? all - each : 0);
}

int program_mtp_heads(const Program *p) {
    return p->training && partition_runs(p->partition, p->units - 1) ? (int)p->model->mtp_depth : 0;
}

int64_t program_mtp_rows(const Model *m) { return m->config.mtp_depth + m->config.mtp_module; }

size_t program_mtp_host_bytes(const Program *p, const Model *m) {
    return (size_t)(p->microbatches * m->tokens * program_mtp_rows(m)) * sizeof(int32_t);
}

bool program_has_mtp_module(const Program *p) { return program_mtp_heads(p) > 0 && p->model->mtp_module; }

static size_t batch_bytes(const Program *p, const Model *m) {
    int mtp = 2 * program_mtp_heads(p) + program_has_mtp_module(p);
    size_t arrays = batch_array_offset(m, BATCH_ARRAYS + mtp),
           records = (size_t)(model_records(m) * m->cp.ranks);
    return pool_round(arrays + (p->evaluates ? records * sizeof(LossRecord) : 0));
}

static size_t buffer_bytes(const Program *p, const Model *m, BufferKind kind, int unit) {
    switch (kind) {
    case BUFFER_BATCH: return batch_bytes(p, m);
    case BUFFER_SAVED: return pool_round(unit_saved_bytes(m, unit));
    case BUFFER_STASH: return pool_round(unit_stash_bytes(m, unit));
    case BUFFER_KEYS: return pool_round(unit_keys_bytes(m, unit));
    case BUFFER_KEY_SUMS: return pool_round(unit_key_sums_bytes(m, unit));
    case BUFFER_GATHERED: return gathered_offset(p, m, unit, FLATS);
    case BUFFER_OUTPUT:
    case BUFFER_GRADIENT: return pool_round(boundary_bytes(m));
    case BUFFER_FLAT_GRADIENTS:
    case BUFFER_FLAT_FIXED:
    case BUFFER_FLAT_PARTIALS:
    case BUFFER_KINDS: break; /* one for each flat */
    }
    return flat_bytes(p, kind, unit);
}

/* ---- buffers of an action ---- */

typedef struct Naming {
    const Program *p;
    const Model *m;
    Buffer *out;
    int count, microbatch;
    /* [BUFFER_KINDS, units + 1] bytes of a buffer, NOT_ASKED until it is first named; or NULL */
    size_t *bytes;
} Naming;

#define NOT_ASKED SIZE_MAX

/* Bytes of a buffer: the same for every microbatch, and computed once. */
static size_t bytes_of(const Naming *n, BufferKind kind, int unit) {
    if (!n->bytes) return buffer_bytes(n->p, n->m, kind, unit);
    size_t *bytes = &n->bytes[(int)kind * (n->p->units + 1) + unit];
    if (*bytes == NOT_ASKED) *bytes = buffer_bytes(n->p, n->m, kind, unit);
    return *bytes;
}

/* Something of no bytes is no buffer: the head of a tied model has no flat of matrices. */
static void name_of(Naming *n, BufferKind kind, int unit, int microbatch) {
    size_t bytes = bytes_of(n, kind, unit);
    if (bytes == 0) return;
    CHECK(n->count < ACTION_BUFFERS);
    n->out[n->count++] = (Buffer){.kind = kind, .unit = unit, .microbatch = microbatch, .bytes = bytes};
}

static void name(Naming *n, BufferKind kind, int unit) { name_of(n, kind, unit, n->microbatch); }

/* What passes over the segments of a microbatch share. */
static void name_keys(Naming *n, Action a) {
    int first = program_first_segment(n->p, a.microbatch);
    name_of(n, BUFFER_KEYS, a.unit, first);
    if (a.kind != ACT_FWD) name_of(n, BUFFER_KEY_SUMS, a.unit, first);
}

/* Only where a microbatch's gradient has its own memory; else passes add to the sums, which the engine holds
 * throughout. */
static void name_gradients(Naming *n, Action a) {
    const Program *p = n->p;
    PassGradient g;
    for (int i = 0; program_has_slots(p) && i < PASS_GRADIENTS; i++) {
        if (!program_gradient(p, a, i, &g)) continue;
        name(n, buffer_of_flat(BUFFER_FLAT_GRADIENTS, g.flat), g.unit);
        if (p->exact && p->sync != SYNC_STEP) name(n, buffer_of_flat(BUFFER_FLAT_FIXED, g.flat), g.unit);
    }
}

/* A reduction of a microbatch sends what its pass left, in fixed point if numerics are exact. A reduction of
 * a step sends the sums. */
static void name_reduced(Naming *n, Action a) {
    BufferKind first = n->p->exact ? BUFFER_FLAT_FIXED : BUFFER_FLAT_GRADIENTS;
    for (int f = 0; a.microbatch >= 0 && f < GRADIENT_FLATS; f++)
        name(n, buffer_of_flat(first, (Flat)f), a.unit);
}

/* A forward pass writes its output into the saved activations of the unit above. A separate wgrad
 * reads what dgrad left in the stash; that of the embedding reads the gradient that came down to it. */
static void name_pass(Naming *n, Action a) {
    const Program *p = n->p;
    int u = a.unit;
    name(n, BUFFER_BATCH, 0);
    name(n, BUFFER_SAVED, u);
    name_keys(n, a);
    if (a.kind == ACT_FWD && u + 1 < p->units) {
        bool here = partition_runs(p->partition, u + 1);
        name(n, here ? BUFFER_SAVED : BUFFER_OUTPUT, here ? u + 1 : u);
    }
    if (a.kind == ACT_BWD || a.kind == ACT_DGRAD) name(n, BUFFER_GRADIENT, gradient_unit(p, u));
    if (a.kind == ACT_WGRAD && u == 0)
        name(n, BUFFER_GRADIENT, gradient_unit(p, u)); /* the embedding's wgrad reads it */
    if (a.kind == ACT_DGRAD || a.kind == ACT_WGRAD) name(n, BUFFER_STASH, u);
    name_gradients(n, a);
}

/* Collectives and recomputation touch what the pass touches to which they belong. */
static void name_exchange(Naming *n, Action a) {
    a.kind = a.kind == ACT_RECOMPUTE || a.pass == ACT_RECOMPUTE ? a.before : a.pass;
    name_pass(n, a);
}

/* The experts' gradients are made by their dispatch. */
static void name_dispatch(Naming *n, Action a) {
    name_exchange(n, a);
    if (a.pass != ACT_BWD && a.pass != ACT_DGRAD) return;
    for (int f = 0; f < GRADIENT_FLATS; f++) name(n, buffer_of_flat(BUFFER_FLAT_PARTIALS, (Flat)f), a.unit);
}

/* The partial sums are in the engine's memory; their total may be in a microbatch's buffer. */
static void name_partials(Naming *n, Action a) {
    BufferKind first = n->p->exact ? BUFFER_FLAT_FIXED : BUFFER_FLAT_GRADIENTS;
    if (a.microbatch >= 0) name(n, buffer_of_flat(first, FLAT_VECTORS), a.unit);
}

static int name_buffers(Naming n, Action a) {
    const Program *p = n.p;
    n.microbatch = a.microbatch;
    switch (a.kind) {
    case ACT_LOAD: name(&n, BUFFER_BATCH, 0); break;
    case ACT_GATHER:
    case ACT_RELEASE: name(&n, BUFFER_GATHERED, a.unit); break;
    case ACT_FWD:
    case ACT_BWD:
    case ACT_DGRAD:
    case ACT_WGRAD: name_pass(&n, a); break;
    case ACT_RECOMPUTE:
    case ACT_COLLECTIVE:
    case ACT_WAIT: name_exchange(&n, a); break;
    case ACT_DISPATCH: name_dispatch(&n, a); break;
    case ACT_RECV_F: name(&n, BUFFER_SAVED, a.unit); break;
    case ACT_SEND_F: name(&n, BUFFER_OUTPUT, a.unit); break;
    case ACT_RECV_B:
    case ACT_SEND_B: name(&n, BUFFER_GRADIENT, gradient_unit(p, a.unit)); break;
    case ACT_SUM_PARTIALS: name_partials(&n, a); break;
    case ACT_REDUCE_SCATTER:
    case ACT_ALL_REDUCE:
    case ACT_REDUCED: name_reduced(&n, a); break;
    case ACT_TIE:
    case ACT_NORM:
    case ACT_MATRIX_GATHER:
    case ACT_MATRIX_SCATTER:
    case ACT_UPDATE:
    case ACT_KINDS: break; /* use memory that the engine holds throughout */
    }
    return n.count;
}

int action_buffers(const Program *p, const Model *m, Action a, Buffer out[ACTION_BUFFERS]) {
    return name_buffers((Naming){.p = p, .m = m, .out = out}, a);
}

static int *slot(const MemoryPlan *plan, BufferKind kind, int unit, int microbatch) {
    return &plan->index[((size_t)kind * (size_t)(plan->units + 1) + (size_t)unit) * (size_t)plan->columns +
                        (size_t)microbatch];
}

/* The first action to touch a buffer creates it; later ones extend its life. */
static void touch(MemoryPlan *plan, const Buffer *b, int action) {
    int *at = slot(plan, b->kind, b->unit, b->microbatch);
    if (*at == 0) {
        plan->buffers[plan->count] = *b;
        plan->buffers[plan->count++].first = action;
        *at = plan->count;
    }
    Buffer *known = &plan->buffers[*at - 1];
    if (action > known->last) known->last = action;
}

/* A sent buffer must stay until the send has completed. The engine waits for that before the next send over
 * the same boundary, or at the end (engine/boundaries.c), so each send's buffer is touched once more there.
 * Without this the next pass would overwrite what the network still reads, and numbers would be wrong now and
 * then. */
static void hold_sends(MemoryPlan *plan, Naming naming) {
    const Program *p = naming.p;
    const Buffer *b = naming.out;
    Action *last = mem_alloc_array(2 * (size_t)p->units, sizeof *last);
    for (int i = 0; i < 2 * p->units; i++) last[i].unit = -1;
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        if (a.kind == ACT_SEND_F || a.kind == ACT_SEND_B) {
            Action *before = &last[2 * a.unit + (a.kind == ACT_SEND_B)];
            if (before->unit >= 0 && name_buffers(naming, *before)) touch(plan, b, i);
            *before = a;
        }
    }
    for (int i = 0; i < 2 * p->units; i++)
        if (last[i].unit >= 0 && name_buffers(naming, last[i])) touch(plan, b, p->count - 1);
    free(last);
}

/* The records of an evaluation are read after its last pass. */
static void hold_batches(MemoryPlan *plan, Naming naming) {
    for (int m = 0; m < naming.p->microbatches; m++)
        if (name_buffers(naming, (Action){.kind = ACT_LOAD, .unit = -1, .microbatch = m}))
            touch(plan, naming.out, naming.p->count - 1);
}

static void collect(MemoryPlan *plan, const Program *p, const Model *m) {
    plan->units = p->units, plan->columns = p->microbatches > p->instances ? p->microbatches : p->instances;
    size_t slots = (size_t)BUFFER_KINDS * (size_t)(p->units + 1) * (size_t)plan->columns;
    plan->index = mem_alloc_array(slots, sizeof *plan->index);
    plan->buffers = mem_alloc_array(slots, sizeof *plan->buffers);
    Buffer touched[ACTION_BUFFERS];
    size_t known = (size_t)BUFFER_KINDS * (size_t)(p->units + 1);
    Naming naming = {.p = p, .m = m, .out = touched, .bytes = mem_alloc_array(known, sizeof *naming.bytes)};
    for (size_t i = 0; i < known; i++) naming.bytes[i] = NOT_ASKED;
    for (int i = 0; i < p->count; i++) {
        int n = name_buffers(naming, p->actions[i]);
        for (int k = 0; k < n; k++) touch(plan, &touched[k], i);
    }
    hold_sends(plan, naming);
    if (p->evaluates) hold_batches(plan, naming);
    free(naming.bytes);
}

/* ---- Placing ---- */

/* Buffers that are alive, by ascending offset, without overlap. Most of them live long, so two facts about
 * them are cached: when the first of them dies, and up to which one they leave no gap of `least` or more
 * bytes. */
typedef struct Alive {
    Buffer **items;
    int count, soonest; /* soonest: the smallest `last` among them */
    int packed;         /* between the first `packed` of them there is no such gap */
    size_t least;
} Alive;

static void drop_dead(Alive *a, int now) {
    int kept = 0, soonest = INT_MAX;
    if (a->soonest >= now) return;
    for (int i = 0; i < a->count; i++) {
        Buffer *b = a->items[i];
        if (b->last < now) {
            if (kept < a->packed) a->packed = kept;
            continue;
        }
        if (b->last < soonest) soonest = b->last;
        a->items[kept++] = b;
    }
    a->count = kept;
    a->soonest = soonest;
}

/* Places `b` at the lowest offset where it fits among those alive. */
static void first_fit(Alive *a, Buffer *b) {
    int i = b->bytes >= a->least ? a->packed : 0;
    b->offset = i > 0 ? a->items[i - 1]->offset + a->items[i - 1]->bytes : 0;
    for (; i < a->count && a->items[i]->offset < b->offset + b->bytes; i++)
        b->offset = a->items[i]->offset + a->items[i]->bytes;
    memmove(a->items + i + 1, a->items + i, (size_t)(a->count - i) * sizeof *a->items);
    a->items[i] = b;
    a->count++;
    if (b->last < a->soonest) a->soonest = b->last;
    if (b->bytes > a->least) return;
    a->least = b->bytes;
    a->packed = i + 1;
}

/* Buffers come in order of first use, so dead ones can be dropped for good during the walk. */
static void place(MemoryPlan *plan) {
    for (int arena = 0; arena < ARENAS; arena++) {
        Alive alive = {.soonest = INT_MAX, .least = SIZE_MAX};
        alive.items = mem_alloc_array((size_t)plan->count + 1, sizeof *alive.items);
        for (int i = 0; i < plan->count; i++) {
            Buffer *b = &plan->buffers[i];
            if ((int)buffer_arena(b->kind) != arena) continue;
            drop_dead(&alive, b->first);
            first_fit(&alive, b);
            if (b->offset + b->bytes > plan->arena[arena]) plan->arena[arena] = b->offset + b->bytes;
        }
        free(alive.items);
    }
}

/* ---- the plan ---- */

size_t gradient_elements(const Program *p, int unit, Flat flat) {
    const Partition *part = p->partition;
    const FlatShard *s = &part->flat_shard[unit][flat];
    CommType type = p->exact ? COMM_I64 : COMM_F32;
    return (size_t)(s->total + comm_sum_spare(program_inner_ranks(p, s), part->replicas, s->shard,
                                              part->replica, type, s->ranges));
}

/* When gradients are reduced once a step, a rank accumulates gradients of the full flat until then. When they
 * are reduced more often, only its shard has to stay. */
bool gradient_sums_are_unsharded(const Program *p) { return p->sync == SYNC_STEP; }

size_t gradient_sum_bytes(const Program *p, int unit, Flat flat) {
    size_t element = p->exact ? sizeof(int64_t) : sizeof(float);
    size_t each = p->exact ? 1 : (size_t)program_gradients(p, flat); /* exact: each is rounded by itself */
    if (!partition_makes_gradient(p->partition, unit)) return 0;
    return pool_round(element * (gradient_sums_are_unsharded(p)
                                     ? each * gradient_elements(p, unit, flat)
                                     : (size_t)p->partition->flat_shard[unit][flat].count));
}

/* fp32 results of fixed-point sums. In fast numerics the shard is read from the sums themselves. */
size_t gradient_owned_bytes(const Program *p, int unit, Flat flat) {
    if (!p->exact || !partition_makes_gradient(p->partition, unit)) return 0;
    return pool_round((size_t)p->partition->flat_shard[unit][flat].count * sizeof(float));
}

size_t gradient_partials_bytes(const Program *p, int unit) {
    size_t rows = (size_t)partition_rows(p->partition);
    if (rows == 1 || unit >= p->units || !partition_makes_gradient(p->partition, unit)) return 0;
    return pool_round(rows * (size_t)program_gradients(p, FLAT_VECTORS) *
                      partition_flat_elements(p->partition, unit, FLAT_VECTORS) * sizeof(float));
}

size_t step_scalars_bytes(int groups) { return sizeof(StepScalars) + (size_t)groups * sizeof(OptimizerStep); }

size_t step_record_bytes(int64_t routed, size_t fetched) {
    return STEP_RECORD_BYTES + ((size_t)routed + 1) * sizeof(int64_t) + fetched;
}

int64_t step_routed(const ModelConfig *c) { return model_blocks(c) * c->num_experts; }

int64_t step_origins(const Program *p, int parameters) {
    return (int64_t)ORIGIN_STAGES * p->count + (int64_t)p->microbatches * parameters;
}

size_t step_statistics_bytes(int parameters, bool noise, int64_t routed, int64_t origins, int sources) {
    size_t each = sizeof(GradStats) + sizeof(FixedRefusals) + (noise ? sizeof(GradStats) : 0);
    return sizeof(StepStatistics) + (size_t)parameters * each + (size_t)(routed + origins) * sizeof(int64_t) +
           (size_t)sources * sizeof(LossSum);
}

/* One workspace serves all reductions on an axis in turn, so it has the size of the largest. Buckets depend
 * on the largest shard, which all ranks know, and not on the local one: all ranks must cut alike. */
static size_t reduction_bytes(const Program *p, const FlatShard *s) {
    const Partition *part = p->partition;
    CommType type = p->exact ? COMM_I64 : COMM_F32;
    int64_t largest = comm_largest(s->ranges, s->shards);
    size_t scatter = s->shards > 1 ? comm_reduce_scatter_workspace(s->shards, type, largest) : 0;
    size_t all = part->replicas > 1
                     ? comm_sum_outer_workspace(program_inner_ranks(p, s), part->replicas, type, s->count)
                     : 0;
    return pool_round(scatter > all ? scatter : all);
}

static size_t most_of(size_t a, size_t b) { return a > b ? a : b; }

/* Workspace of the sums inside passes and of those of vectors' gradients. Only one of these runs at a
 * time. */
static size_t exchange_bytes(const Program *p, const Model *m, bool training) {
    int ranks = p->partition->tensors;
    size_t most = program_collective_workspace(p, m);
    VectorRun run;
    for (int u = 0; ranks > 1 && training && u < p->units; u++)
        for (int next = 0; partition_holds(p->partition, u) && program_next_sum(p, u, &next, &run);) {
            size_t bytes = comm_all_reduce_workspace(ranks, p->exact ? COMM_I64 : COMM_F32, run.count);
            most = most_of(most, bytes);
        }
    return pool_round(most);
}

static void plan_communication(MemoryPlan *plan, const Program *p) {
    const Partition *part = p->partition;
    bool embedding = partition_runs(part, 0), head = partition_runs(part, p->units - 1);
    plan->reductions = (part->shards > 1) + (part->replicas > 1) + partition_splits_shards(part);
    if (part->tied && embedding != head)
        plan->tie = pool_round((size_t)part->flat_shard[0][FLAT_MATRICES].count * sizeof(float));
}

static void plan_gradients(MemoryPlan *plan, const Program *p, int unit, Flat flat) {
    if (!partition_makes_gradient(p->partition, unit)) return;
    size_t reduction = reduction_bytes(p, &p->partition->flat_shard[unit][flat]);
    plan->gradients += gradient_sum_bytes(p, unit, flat) + gradient_owned_bytes(p, unit, flat);
    if (reduction > plan->reduction) plan->reduction = reduction;
}

/* One parameter after the other, since each may have different states: they depend on its group's optimizer
 * and dtype. */
static void plan_states(MemoryPlan *plan, const Partition *p, const ParamGroups *g) {
    plan->states = mem_alloc_array((size_t)p->table->count * PARAM_STATES, sizeof *plan->states);
    for (int i = 0; i < p->table->count; i++) {
        size_t count = (size_t)partition_segment(p, &p->table->params[i]).count;
        for (int k = 0; k < param_states(g, i); k++) {
            plan->states[i * PARAM_STATES + k] = plan->optimizer;
            plan->optimizer += pool_round(count * param_state_width(g, i, k));
        }
    }
}

/* Scratch for the updates of parameters that a rank updates by itself. */
static void plan_update_alone(MemoryPlan *plan, const Partition *p, const ParamGroups *g) {
    for (int i = 0; i < p->table->count; i++) {
        const Param *param = &p->table->params[i];
        bool alone = partition_segment(p, param).count > 0 && owner_of_matrices(p, i) < 0;
        plan->scratch = most_of(plan->scratch, alone ? pool_round(param_scratch_bytes(g, i, param)) : 0);
    }
}

/* Updates come after all passes and reuse their scratch, which is mostly larger than what an update needs. */
static void plan_update(MemoryPlan *plan, const Partition *p, const ParamGroups *g) {
    plan_update_alone(plan, p, g);
    for (int u = 0; u < p->table->units; u++) plan->scratch = most_of(plan->scratch, owners_scratch(p, g, u));
}

static void plan_training(MemoryPlan *plan, const Program *p, const ParamGroups *optimizer) {
    plan_communication(plan, p);
    plan_update(plan, p->partition, optimizer);
    for (int u = 0; u <= p->units; u++) {
        for (int f = 0; f < GRADIENT_FLATS; f++) plan_gradients(plan, p, u, (Flat)f);
        plan->gradients += gradient_partials_bytes(p, u);
    }
    plan_states(plan, p->partition, optimizer);
}

int64_t gradient_updated(const Partition *p, int unit, Flat flat) {
    bool copy = unit == 0 && p->tied_copy && flat == FLAT_MATRICES;
    return partition_runs(p, unit) || copy ? p->flat_shard[unit][flat].count : 0;
}

void memory_plan_add_partner(MemoryPlan *plan, const Partition *of, const ParamGroups *g,
                             const MemoryPlan *memory) {
    plan->partner.parameters = memory->parameters;
    plan->partner.optimizer = memory->optimizer;
    for (int u = 0; u < of->table->units; u++)
        for (int f = 0; f < GRADIENT_FLATS; f++)
            plan->partner.gradients += pool_round((size_t)gradient_updated(of, u, (Flat)f) * sizeof(float));
    plan_update_alone(plan, of, g);
}

size_t memory_plan_partner(const MemoryPlan *plan) {
    return plan->partner.parameters + plan->partner.optimizer + plan->partner.gradients;
}

/* Two slots for each unit and microbatch, and two for each parameter. */
static void plan_probes(MemoryPlan *plan, const Program *p, const Model *m) {
    size_t slots = 2 * ((size_t)p->units * (size_t)p->microbatches + (size_t)m->table.count);
    plan->probe.slots = pool_round(slots * sizeof(GradStats));
    if (m->compute == DTYPE_BF16)
        plan->probe.wide =
            pool_round((size_t)(model_local_tokens(m) * m->config.hidden_size) * sizeof(float));
    plan->statistics += plan->probe.slots + plan->probe.wide;
}

/* An evaluation has its own plan, without gradients and states; it runs in the arenas of training
 * (plan/rank.c). */
void memory_plan(MemoryPlan *plan, const MemorySpec *spec) {
    const Program *p = spec->program;
    const Model *m = spec->model;
    size_t owned = p->partition->owned, vectors = p->partition->vectors;
    *plan = (MemoryPlan){.separate_memory = spec->separate_memory,
                         .granularity = spec->granularity,
                         .device_scratch = pool_round(spec->device_scratch)};
    collect(plan, p, m);
    place(plan);
    plan->scratch = pool_round(model_scratch_bytes(m));
    plan->stash = pool_round(model_stash_bytes(m));
    plan->masters = !spec->inference || m->compute == DTYPE_F32;
    plan->parameters = pool_round((plan->masters ? owned : vectors) * sizeof(float));
    /* With shards, products read gathered parameters, which are in the compute dtype already: a copy of the
     * master weights would be unused. */
    if (m->compute == DTYPE_BF16 && (p->partition->shards == 1 || !plan->masters))
        plan->copy = pool_round((owned - vectors) * sizeof(uint16_t));
    plan->constants = model_constants_bytes(&m->config, spec->positions);
    int figures = spec->optimizer ? m->table.count : 0, groups = spec->optimizer ? spec->optimizer->count : 0;
    int64_t routed = spec->optimizer ? step_routed(&m->config) : 0,
            origins = spec->optimizer ? step_origins(p, m->table.count) : 0;
    size_t found =
        step_statistics_bytes(figures, spec->noise, routed, origins, spec->optimizer ? spec->sources : 0);
    plan->statistics = pool_round(step_scalars_bytes(groups)) + pool_round(found);
    plan->exchange = exchange_bytes(p, m, spec->optimizer != NULL);
    if (spec->optimizer) plan_training(plan, p, spec->optimizer);
    if (spec->optimizer && spec->probes) plan_probes(plan, p, m);
    if (spec->optimizer) plan->record = step_record_bytes(routed, plan->separate_memory ? 0 : found);
    if (plan->separate_memory) plan->pinned = spec->pinned + found + plan->probe.slots;
}

void memory_plan_free(MemoryPlan *plan) {
    free(plan->buffers);
    free(plan->index);
    free(plan->states);
    *plan = (MemoryPlan){0};
}

const Buffer *memory_plan_buffer(const MemoryPlan *plan, BufferKind kind, int unit, int microbatch) {
    int at = *slot(plan, kind, unit, microbatch);
    CHECK(at > 0);
    return &plan->buffers[at - 1];
}

/* The pools that the engine allocates. */
enum { POOLS = 12 };
static void list_pools(const MemoryPlan *plan, size_t out[POOLS]) {
    const size_t pools[POOLS] = {plan->parameters,
                                 plan->copy,
                                 plan->arena[ARENA_GATHERED],
                                 plan->gradients,
                                 plan->arena[ARENA_GRADIENTS],
                                 plan->optimizer,
                                 plan->constants,
                                 plan->statistics,
                                 plan->arena[ARENA_ACTIVATIONS],
                                 plan->stash + plan->scratch + plan->device_scratch,
                                 memory_plan_communication(plan),
                                 memory_plan_partner(plan)};
    memcpy(out, pools, sizeof pools);
}

size_t memory_plan_pools(const MemoryPlan *plan) {
    size_t pools[POOLS], sum = 0;
    list_pools(plan, pools);
    for (int i = 0; i < POOLS; i++) sum += pools[i];
    return sum;
}

size_t memory_plan_taken(const MemoryPlan *plan) {
    size_t pools[POOLS], sum = 0;
    list_pools(plan, pools);
    for (int i = 0; i < POOLS; i++) sum += pool_taken(pools[i], plan->granularity);
    return sum;
}

/* COMM_ACTIVE workspaces for each axis: one operation fills its workspace while the one before adds up in the
 * other. */
size_t memory_plan_buckets(const MemoryPlan *plan) {
    return (size_t)plan->reductions * COMM_ACTIVE * plan->reduction;
}

size_t memory_plan_communication(const MemoryPlan *plan) {
    return memory_plan_buckets(plan) + plan->tie + plan->exchange;
}

size_t memory_plan_host(const MemoryPlan *plan) {
    return plan->staging + plan->batches + plan->record + plan->pinned;
}

size_t memory_plan_total(const MemoryPlan *plan) {
    return memory_plan_pools(plan) + (plan->separate_memory ? 0 : memory_plan_host(plan));
}

/* ---- Printing ---- */

/* A row of the table. Sizes are in the memory that holds the pools; where that is the device's own, a column
 * for `host` follows. */
static void two(const MemoryPlan *plan, Text *out, const char *category, size_t bytes, size_t host,
                const char *what) {
    char size[32], share[16] = "", other[32];
    size_t total = memory_plan_total(plan);
    if (bytes + host == 0) return;
    if (bytes > 0) snprintf(share, sizeof share, "%.1f%%", 100.0 * (double)bytes / (double)total);
    text_printf(out, "  %-14s %12s %6s", category, bytes > 0 ? text_bytes((double)bytes, size) : "", share);
    if (plan->separate_memory) text_printf(out, " %12s", host > 0 ? text_bytes((double)host, other) : "");
    text_printf(out, "  %s\n", what);
}

static void row(const MemoryPlan *plan, Text *out, const char *category, size_t bytes, const char *what) {
    two(plan, out, category, bytes, 0, what);
}

static void row_of_host(const MemoryPlan *plan, Text *out, const char *category, size_t bytes,
                        const char *what) {
    two(plan, out, category, plan->separate_memory ? 0 : bytes, plan->separate_memory ? bytes : 0, what);
}

static int buffers_of(const MemoryPlan *plan, Arena arena) {
    int n = 0;
    for (int i = 0; i < plan->count; i++) n += buffer_arena(plan->buffers[i].kind) == arena;
    return n;
}

/* Categories come in the order in which a reader can act on them; those that take nothing have no row. The
 * last lines cover what is outside the pools, as measured once. */
void memory_plan_print(const MemoryPlan *plan, const Program *p, const Model *m, const ParamGroups *g,
                       Text *out) {
    static const char *const policy[] = {"nothing recomputed", "selective recompute", "full recompute"};
    char note[160], size[32], granularity[32];
    Text states = {0};
    bool sharded = p->partition->shards > 1;
    if (plan->separate_memory) text_printf(out, "  %-14s %12s %6s %12s\n", "", "device", "", "host");
    row(plan, out, "parameters", plan->parameters,
        sharded ? "fp32 master weights, this rank's shards" : "fp32 master weights");
    row(plan, out, "compute copy", plan->copy, "bf16 weights that the products read");
    row(plan, out, "gathered", plan->arena[ARENA_GATHERED], "parameters of the units at work");
    row(plan, out, "gradients", plan->gradients, p->exact ? "int64 sums, fp32 results" : "fp32");
    row(plan, out, "grad. in flight", plan->arena[ARENA_GRADIENTS], "of single microbatches");
    if (plan->optimizer) param_groups_name_states(g, &states);
    row(plan, out, "optimizer", plan->optimizer, states.data);
    text_free(&states);
    row(plan, out, "partner copy", memory_plan_partner(plan),
        "of another rank: master weights, optimizer states, gradients of a step");
    snprintf(note, sizeof note, "%d buffers, %lld tokens a %s, %s", buffers_of(plan, ARENA_ACTIVATIONS),
             (long long)m->tokens, model_segments(m) > 1 ? "segment" : "microbatch", policy[m->recompute]);
    row(plan, out, "activations", plan->arena[ARENA_ACTIVATIONS], note);
    snprintf(note, sizeof note, "block gradients, logits of %lld tokens at a time%s", (long long)m->loss_rows,
             plan->scratch > pool_round(model_scratch_bytes(m)) ? ", the update of the largest matrix" : "");
    row(plan, out, "workspace", plan->stash + plan->scratch + plan->device_scratch, note);
    row(plan, out, "communication", memory_plan_communication(plan), "buckets of collectives");
    row(plan, out, "constants", plan->constants, "rotation table");
    row(plan, out, "statistics", plan->statistics, "of losses and gradients; what changes from step to step");
    row_of_host(plan, out, "staging", plan->staging,
                p->partition->replicas > 1
                    ? "copy of what a checkpoint holds; other replicas than the first have none"
                    : "copy of what a checkpoint holds, written alongside training");
    row_of_host(plan, out, "batches", plan->batches, "two steps of tokens, and what the loader reads ahead");
    row_of_host(plan, out, "record", plan->record, "what a step reports, on the host");
    row_of_host(plan, out, "pinned", plan->pinned,
                "batches on their way to the device, figures of a step on theirs back");
    two(plan, out, "total", memory_plan_total(plan), plan->separate_memory ? memory_plan_host(plan) : 0, "");
    /* Measured as resident memory minus the total, for 1 to 8 ranks of 4 to 320 MiB each on one machine.
     * tests/ranks/test_pipeline_memory.sh allows twice as much. */
    if (plan->separate_memory)
        text_printf(
            out,
            "  outside: on the device %s by which pools are rounded up to multiples of %s, and memory of\n"
            "           driver, kernels and libraries: some 0.5 to 1 GiB is an estimate, not a measurement;\n"
            "           a run reports it when it starts; on the host libraries, heap, buffers of MPI, and\n"
            "           the pages of the token cache that were read\n",
            text_bytes((double)(memory_plan_taken(plan) - memory_plan_pools(plan)), size),
            text_bytes((double)plan->granularity, granularity));
    else
        text_puts(
            out, "  outside: 20 to 45 MiB of libraries, heap and buffers of MPI; what was read of the token "
                 "cache; before\n"
                 "           the first step up to 48 MiB more while the peak of the processor is measured\n");
}
