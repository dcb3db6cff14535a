/* Memory and life of the engine, and the loop over a program's actions.
 *
 *     engine_open ----> engine_initialise --+--> engine_step, engine_evaluate, ... --> engine_close
 *          |                                |
 *          +----> checkpoint, engine_refresh+
 *
 * The same code lays out the pools twice: in a dry run, then for real. They take what the plan said, to the
 * byte. An action finds its memory only by the plan's buffers (execution_buffer). plan/memory.c decides which
 * memory each action uses and when; the engine decides nothing about it.
 *
 * A step runs its actions in order, without looking ahead. Slow operations (a gather, a receive, a reduction)
 * were started earlier in the list and are waited for where their result is read. Communication is polled
 * between actions, which is all the progress it makes when it has no thread. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "comm/repair.h"
#include "device/ops/memory.h"
#include "device/ops/optimizer.h"
#include "engine/execution.h"
#include "program/owners.h"

/* ---- Memory ---- */

static const char *const pool_names[POOL_COUNT] = {
    "parameters", "compute copy", "gathered parameters", "gradients", "gradients in flight", "optimizer",
    "constants",  "statistics",   "activations",         "workspace", "communication",       "partner copy"};

static void *take(Engine *e, int pool, size_t bytes) {
    return bytes > 0 ? pool_take(&e->pools[pool], bytes) : NULL;
}

static void layout_gradients(Engine *e, int unit) {
    const Program *p = &e->plan->program;
    e->step.partials[unit] = take(e, POOL_GRADIENTS, gradient_partials_bytes(p, unit));
    for (int f = 0; f < GRADIENT_FLATS; f++) {
        e->step.sums[unit][f] = take(e, POOL_GRADIENTS, gradient_sum_bytes(p, unit, (Flat)f));
        e->step.owned[unit].flats[f] = take(e, POOL_GRADIENTS, gradient_owned_bytes(p, unit, (Flat)f));
    }
}

static void layout_training(Engine *e) {
    for (int u = 0; u <= e->model.table.units; u++) layout_gradients(e, u);
    e->work.bucket = pool_take(&e->pools[POOL_COMMUNICATION], memory_plan_buckets(&e->plan->memory));
    e->work.tie_buffer = pool_take(&e->pools[POOL_COMMUNICATION], e->plan->memory.tie);
}

/* What outlives a step. */
static void layout_state(Engine *e) {
    const MemoryPlan *plan = rank_memory(e->plan);
    e->state.master = take(e, POOL_PARAMETERS, plan->parameters);
    e->state.copy = take(e, POOL_COPY, plan->copy);
    if (!e->plan->spec.inference)
        e->state.states = pool_take(&e->pools[POOL_OPTIMIZER], e->plan->memory.optimizer);
    if (e->copied) partner_layout(e);
}

/* Takes every region from its pool: first in a dry run, then for real. */
static void layout(Engine *e) {
    static const int pool_of[ARENAS] = {[ARENA_ACTIVATIONS] = POOL_ACTIVATIONS,
                                        [ARENA_GATHERED] = POOL_GATHERED,
                                        [ARENA_GRADIENTS] = POOL_SLOTS};
    const MemoryPlan *plan = rank_memory(e->plan);
    layout_state(e);
    if (!e->plan->spec.inference) layout_training(e);
    e->work.exchange = pool_take(&e->pools[POOL_COMMUNICATION], plan->exchange);
    model_layout_constants(&e->model, e->plan->spec.positions, &e->pools[POOL_CONSTANTS]);
    statistics_layout(e);
    probe_layout(e);
    for (int a = 0; a < ARENAS; a++) e->work.arena[a] = pool_take(&e->pools[pool_of[a]], plan->arena[a]);
    e->work.stash = pool_take(&e->pools[POOL_WORKSPACE], plan->stash);
    e->work.scratch = pool_take(&e->pools[POOL_WORKSPACE], plan->scratch);
    e->device->scratch = pool_take(&e->pools[POOL_WORKSPACE], plan->device_scratch);
    e->device->scratch_size = plan->device_scratch;
}

/* Unsharded weights stay where they are: passes read the master weights, or their copy in the compute dtype.
 * With shards, GATHER and RELEASE set and clear the pointers (parameters.c). A unit that is not gathered has
 * NULL, so that reading it is a crash and not a stale weight. */
static void point_weights(Engine *e) {
    const Partition *p = &e->plan->partition;
    for (int u = 0; u < e->model.table.units && p->shards == 1; u++)
        for (int f = 0; f < FLATS && partition_holds(p, u); f++) {
            size_t start = p->flat_shard[u][f].start;
            bool copied = e->state.copy && flat_dtype((Flat)f, e->model.compute) == DTYPE_BF16;
            e->weights.units[u].flats[f] =
                copied ? (const void *)parameters_copy(e, start) : (const void *)(e->state.master + start);
        }
}

/* Where this rank's shard of each gradient lies once it is reduced: inside the sums, which hold the whole
 * flat if gradients are reduced once a step, and otherwise only this rank's shard. Fixed-point sums become
 * fp32 elsewhere: then the plan has given the shard memory of its own. */
static void point_owned(Engine *e) {
    const Partition *p = &e->plan->partition;
    bool whole = gradient_sums_are_unsharded(&e->plan->program);
    for (int u = 0; u <= e->model.table.units; u++)
        for (int f = 0; f < GRADIENT_FLATS; f++) {
            float **owned = &e->step.owned[u].flats[f], *sums = (float *)(void *)e->step.sums[u][f];
            if (!*owned && sums) *owned = sums + (whole ? p->flat_shard[u][f].first : 0);
        }
    /* The rank with the tied copy takes as the embedding's gradient the sum that TIE makes there. */
    if (p->tied_copy) e->step.owned[0] = e->step.owned[e->model.table.units];
}

/* Host memory: pointers and requests, a few for each unit. All of it is allocated here, since a step
 * allocates nothing. */
static void allocate_tables(Engine *e) {
    size_t units = (size_t)e->model.table.units,
           microbatches =
               (size_t)(e->plan->spec.inference ? &e->plan->evaluation : &e->plan->program)->microbatches;
    e->weights =
        (Weights){&e->model.table, e->model.compute, mem_alloc_array(units, sizeof *e->weights.units)};
    e->gradients = (Gradients){&e->model.table, mem_alloc_array(units + 1, sizeof *e->gradients.units),
                               e->plan->partition.tied, partition_rows(&e->plan->partition)};
    const Partition *p = &e->plan->partition;
    e->traffic.most_ranks = p->tensors > p->cp.ranks ? p->tensors : p->cp.ranks;
    e->traffic.ranges = mem_alloc_array(
        (size_t)(UNIT_COLLECTIVES * COLLECTIVE_MESSAGES * e->traffic.most_ranks), sizeof *e->traffic.ranges);
    for (int i = 0; i < OWNER_BUFFERS; i++)
        e->traffic.matrix_parts[i] =
            mem_alloc_array((size_t)e->plan->partition.tensors, sizeof *e->traffic.matrix_parts[i]);
    dispatch_open(e);
    e->step.partials = mem_alloc_array(units + 1, sizeof *e->step.partials);
    e->step.owned = mem_alloc_array(units + 1, sizeof *e->step.owned);
    e->step.sums = mem_alloc_array(units + 1, sizeof *e->step.sums);
    e->step.started = mem_alloc_array(units + 1, 1);
    e->clock.actions = mem_alloc_array((size_t)e->plan->program.count + 1, sizeof *e->clock.actions);
    if (e->plan->copied) partner_open(e);
    for (int i = 0; i < 2 && e->device->runtime.stamp; i++)
        e->timed.times[i].step.actions =
            mem_alloc_array((size_t)e->plan->program.count, sizeof *e->clock.actions);
    e->targets.mtp =
        mem_alloc(e->plan->spec.inference ? 1 : program_mtp_host_bytes(&e->plan->program, &e->model));
    e->traffic.gathers = mem_alloc_array(units, sizeof *e->traffic.gathers);
    e->traffic.reductions = mem_alloc_array(units + 1, sizeof *e->traffic.reductions);
    e->traffic.receives = mem_alloc_array(2 * units * microbatches, sizeof(CommRequest));
    e->traffic.sends = mem_alloc_array(2 * units, sizeof(CommRequest));
}

/* Pools of what outlives a step. */
static const int kept_pools[] = {POOL_PARAMETERS, POOL_COPY, POOL_OPTIMIZER, POOL_PARTNER};
enum { KEPT_POOLS = sizeof kept_pools / sizeof *kept_pools };
struct EngineState {
    Pool pools[KEPT_POOLS];
    OwnedState own, copied;
};

static OwnedState copied_state(const Engine *e) { return e->copied ? e->copied->state : (OwnedState){0}; }

EngineState *engine_take_state(Engine *e) {
    EngineState *s = mem_alloc(sizeof *s);
    s->own = e->state, s->copied = copied_state(e);
    for (int i = 0; i < KEPT_POOLS; i++) {
        s->pools[i] = e->pools[kept_pools[i]];
        e->pools[kept_pools[i]] = (Pool){.base = NULL};
    }
    return s;
}

void engine_free_state(EngineState *s) {
    for (int i = 0; s && i < KEPT_POOLS; i++) pool_free(&s->pools[i]);
    free(s);
}

/* After the dry run: the pools have the sizes that the plan needs. */
static ErrorCode give_state(Engine *e, EngineState *s, Error *err) {
    for (int i = 0; i < KEPT_POOLS; i++)
        if (s->pools[i].planned != e->pools[kept_pools[i]].planned)
            return error_set(err, ERR_INTERNAL, "pool %s: %zu bytes were kept, but %zu are planned",
                             e->pools[kept_pools[i]].name, s->pools[i].planned,
                             e->pools[kept_pools[i]].planned);
    for (int i = 0; i < KEPT_POOLS; i++) {
        s->pools[i].used = 0;
        e->pools[kept_pools[i]] = s->pools[i];
        s->pools[i] = (Pool){.base = NULL};
    }
    e->state.updates = s->own.updates;
    return OK;
}

EngineState *engine_get_state(const Engine *e) {
    EngineState *s = mem_alloc(sizeof *s);
    s->own = e->state, s->copied = copied_state(e);
    return s;
}

ErrorCode engine_make_state(EngineState **out, const RankPlan *plan, Device *d, int64_t updates, Error *err) {
    Engine e = {.plan = plan, .device = d, .model = plan->model, .state.updates = updates};
    ErrorCode code = OK;
    if (plan->copied) partner_open(&e);
    for (int i = 0; i < POOL_COUNT; i++) e.pools[i].name = pool_names[i];
    layout_state(&e);
    for (int i = 0; i < KEPT_POOLS && code == OK; i++) code = pool_commit(&e.pools[kept_pools[i]], d, err);
    if (code == OK) layout_state(&e);
    *out = engine_take_state(&e);
    partner_close(&e);
    return code;
}

ShardState engine_state_own(const EngineState *s) { return (ShardState){s->own.master, s->own.states}; }
ShardState engine_state_copied(const EngineState *s) {
    return (ShardState){s->copied.master, s->copied.states};
}
int64_t engine_state_updates(const EngineState *s) { return s->own.updates; }

static ErrorCode commit_pools(Engine *e, Error *err) {
    for (int i = 0; i < POOL_COUNT; i++)
        if (!e->pools[i].base) TRY(pool_commit(&e->pools[i], e->device, err));
    return OK;
}

static ErrorCode allocate(Engine *e, EngineState *kept, Error *err) {
    allocate_tables(e);
    for (int i = 0; i < POOL_COUNT; i++) e->pools[i].name = pool_names[i];
    layout(e);
    if (kept) TRY(give_state(e, kept, err));
    TRY(commit_pools(e, err));
    layout(e);
    /* The plan that was printed must be the memory that was taken. Otherwise one of the two is wrong, and so
     * is the next figure that somebody relies on. */
    CHECK(engine_bytes(e) == memory_plan_pools(rank_memory(e->plan)) &&
          engine_taken(e) == memory_plan_taken(rank_memory(e->plan)));
    point_weights(e);
    if (!e->plan->spec.inference) point_owned(e);
    model_compute_constants(&e->model, e->device);
    TRY(probe_open(e, err));
    TRY(statistics_open(e, err));
    if (e->copied) e->copied->statistics = e->statistics, e->copied->work = e->work;
    return OK;
}

ErrorCode engine_open_with(Engine **out, const RankPlan *plan, Device *d, Comm *comm, EngineState *kept,
                           Error *err) {
    Engine *e = *out = mem_alloc(sizeof *e);
    *e = (Engine){.plan = plan, .device = d, .comm = comm, .model = plan->model, .targets = {.all = -1}};
    return allocate(e, kept, err);
}

ErrorCode engine_open(Engine **out, const RankPlan *plan, Device *d, Comm *comm, Error *err) {
    return engine_open_with(out, plan, d, comm, NULL, err);
}

size_t engine_bytes(const Engine *e) {
    size_t total = 0;
    for (int i = 0; i < POOL_COUNT; i++) total += e->pools[i].planned;
    return total;
}

size_t engine_pool_bytes(const Engine *e, EnginePool pool) { return e->pools[pool].planned; }

size_t engine_taken(const Engine *e) {
    size_t total = 0;
    for (int i = 0; i < POOL_COUNT; i++) total += pool_taken(e->pools[i].planned, e->device->granularity);
    return total;
}

void engine_close(Engine *e) {
    if (!e) return;
    /* Pending stamps write to e->timed, whose memory is freed below. */
    if (e->device->runtime.read_times) e->device->runtime.read_times(e->device);
    statistics_close(e);
    probe_close(e);
    dispatch_close(e);
    partner_close(e);
    for (int i = 0; i < POOL_COUNT; i++) pool_free(&e->pools[i]);
    free(e->traffic.gathers);
    free(e->traffic.reductions);
    free(e->traffic.receives);
    free(e->traffic.sends);
    free(e->traffic.ranges);
    for (int i = 0; i < OWNER_BUFFERS; i++) free(e->traffic.matrix_parts[i]);
    free(e->step.partials);
    free(e->weights.units);
    free(e->gradients.units);
    free(e->step.owned);
    free(e->step.sums);
    free(e->step.started);
    free(e->clock.actions);
    for (int i = 0; i < 2; i++) free(e->timed.times[i].step.actions);
    free(e->targets.mtp);
    tensor_hash_close(&e->hash);
    free(e);
}

/* ---- access for others ---- */

const RankPlan *engine_plan(const Engine *e) { return e->plan; }
Device *engine_device(const Engine *e) { return e->device; }
const Model *engine_model(const Engine *e) { return &e->model; }
const Weights *engine_weights(const Engine *e) { return &e->weights; }
bool engine_is_torn(const Engine *e) { return e->torn; }
int64_t engine_updates(const Engine *e) { return e->state.updates; }
void engine_set_updates(Engine *e, int64_t updates) { e->state.updates = updates; }
const StepTimes *engine_times(const Engine *e) { return &e->clock; }
const Action *engine_current(const Engine *e) { return e->progress.current; }

float *engine_master(const Engine *e, ParamSegment segment) {
    CHECK(rank_memory(e->plan)->masters);
    return e->state.master + segment.at;
}

Dtype engine_held(const Engine *e, Flat flat) {
    return rank_memory(e->plan)->masters ? DTYPE_F32 : flat_dtype(flat, e->model.compute);
}

void *engine_weight(const Engine *e, const Param *p, ParamSegment segment) {
    return segment.count > 0 ? parameters_owned(e, p->flat, segment.at) : NULL;
}

void *engine_optimizer_state(const Engine *e, int param, int which) {
    return e->state.states + e->plan->memory.states[param * PARAM_STATES + which];
}

/* segment.at is an offset in the owned arrays; a flat's gradient begins where its shard does. */
float *engine_gradient(const Engine *e, const Param *p, ParamSegment segment) {
    size_t start = e->plan->partition.flat_shard[p->unit][p->flat].start;
    return e->step.owned[p->unit].flats[p->flat] + (segment.at - start);
}

/* Vectors are short, so the host computes them. */
static void initialise_of(Engine *e, double (*of)(double), uint64_t key, SegmentRun run, float *to) {
    float *values = mem_alloc_array((size_t)run.count, sizeof *values);
    for (int64_t i = 0; i < run.count; i++)
        values[i] = (float)of(rng_uniform(key, (uint64_t)(run.element + i)));
    OP(e->device, upload, to, values, (size_t)run.count * sizeof *values);
    free(values);
}

/* Elements are drawn by their index in the unsharded parameter, so the start of a curve does not depend on
 * the mesh. For that reason a local shard that is narrower than its matrix is filled row by row. */
static void initialise(Engine *e, const Param *p, InitKind kind, double std, uint64_t seed) {
    ParamSegment segment = partition_segment(&e->plan->partition, p);
    InitRule r = param_init_rule(p, &e->plan->spec.model, kind, std);
    SegmentRun run;
    for (int64_t at = 0; at < segment.count; at += run.count) {
        float *to = engine_master(e, segment) + at;
        run = segment_run(&segment, at);
        if (r.of)
            initialise_of(e, r.of, rng_key(seed, p->name), run, to);
        else if (r.std > 0)
            OP(e->device, init_normal, .n = run.count, .key = rng_key(seed, p->name),
               .first = (uint64_t)run.element, .std = r.std, .lo = r.lo, .hi = r.hi, .out = to);
        else
            OP(e->device, fill, run.count, (float)r.value, to);
    }
}

void engine_initialise(Engine *e, InitKind kind, double std, uint64_t seed) {
    for (int i = 0; i < e->model.table.count; i++) initialise(e, &e->model.table.params[i], kind, std, seed);
    engine_refresh(e);
}

void engine_initialise_adapters(Engine *e, uint64_t seed) {
    for (int i = 0; i < e->model.table.count; i++)
        if (e->model.table.params[i].row->adapts)
            initialise(e, &e->model.table.params[i], INIT_NORMAL, 0, seed);
    engine_refresh(e);
}

/* Only matrices: vectors are read in fp32. Between and after the flats the copy holds arbitrary bytes, which
 * nothing reads. */
void engine_refresh(Engine *e) {
    bool copied = e->state.copy && rank_memory(e->plan)->masters;
    for (int i = 0; copied && i < e->model.table.count; i++) {
        const Param *p = &e->model.table.params[i];
        ParamSegment segment = partition_segment(&e->plan->partition, p);
        if (!flat_of_vectors(p->flat) && segment.count)
            OP(e->device, cast, segment.count, e->state.master + segment.at, DTYPE_F32,
               parameters_copy(e, segment.at), DTYPE_BF16);
    }
}

void engine_start_average(Engine *e) {
    const ParamGroups *g = &e->plan->groups;
    for (int i = 0; g->ema > 0 && i < e->model.table.count; i++) {
        ParamSegment segment = partition_segment(&e->plan->partition, &e->model.table.params[i]);
        OP(e->device, copy, engine_optimizer_state(e, i, param_states(g, i) - 1), engine_master(e, segment),
           (size_t)segment.count * sizeof(float));
    }
}

/* ---- Execution ---- */

/* Inside a step a rank cannot give up alone: the others are in the middle of the same list, and would wait
 * for it forever. comm_fail ends all of them, with this rank's reason. Only a failure that all ranks learn
 * of, and that can be repaired, comes back: from then on the engine waits for nothing. */
void execution_must(Engine *e, ErrorCode code, const Error *err) {
    if (code == OK) return;
    if (!comm_is_broken(e->comm)) comm_fail(e->comm, err);
    e->interrupted = true;
}

/* The time between begin_wait and end_wait is the `waited` of traces and metrics. On a device it is the time
 * for which its stream stands still. */
typedef struct Wait {
    double host;    /* return value of begin_time */
    int64_t device; /* begin_time of what is timed */
} Wait;

static Wait begin_wait(Engine *e) {
    return (Wait){clock_seconds(), e->timed.waited ? e->device->runtime.begin_time(e->device) : 0};
}

static void end_wait(Engine *e, Wait w) {
    e->clock.waited += clock_seconds() - w.host;
    if (e->timed.waited) e->device->runtime.end_time(e->device, w.device, e->timed.waited);
}

void execution_wait(Engine *e, CommRequest *request) {
    Error err = {.message = ""};
    CommRequest waited = *request;
    *request = 0;
    if (waited == 0 || e->interrupted) return;
    Wait wait = begin_wait(e);
    execution_must(e, comm_wait(e->comm, waited, &err), &err);
    end_wait(e, wait);
}

void execution_combine(Engine *e, void *record, size_t bytes, void (*combine)(void *into, const void *from)) {
    Error err = {.message = ""};
    if (e->interrupted) return;
    Wait wait = begin_wait(e);
    execution_must(e, comm_combine(e->comm, record, bytes, combine, &err), &err);
    end_wait(e, wait);
}

char *execution_buffer(const Execution *x, BufferKind kind, int unit, int microbatch) {
    return x->engine->work.arena[buffer_arena(kind)] +
           memory_plan_buffer(x->memory, kind, unit, microbatch)->offset;
}

/* Address of an array of a microbatch in its buffer. The arrays lie in order; the records of an evaluation
 * follow them. */
static void *batch_array(const Execution *x, int microbatch, int array) {
    return execution_buffer(x, BUFFER_BATCH, 0, microbatch) + batch_array_offset(&x->engine->model, array);
}

/* Records of an evaluation, and the index of this rank's first. */
static LossRecord *scores_of(const Execution *x, int m) { return batch_array(x, m, BATCH_ARRAYS); }
static int64_t local_scores(const Engine *e) { return e->model.cp.rank * model_records(&e->model); }

void execution_enter(Execution *x, int m) {
    x->pass.segment = program_segment(x->program, m);
    x->pass.batch =
        (Microbatch){batch_array(x, m, 0), batch_array(x, m, 1), batch_array(x, m, 2), batch_array(x, m, 3)};
    x->pass.losses = batch_array(x, m, 4);
    x->pass.z_losses = x->pass.z_loss > 0 ? batch_array(x, m, BATCH_ARRAYS - 1) : NULL;
    x->pass.records = x->scoring ? scores_of(x, m) + local_scores(x->engine) : NULL;
    for (int k = 0; k < program_mtp_heads(x->program); k++) {
        x->pass.mtp_targets[k] = batch_array(x, m, BATCH_ARRAYS + 2 * k);
        x->pass.mtp_losses[k] = batch_array(x, m, BATCH_ARRAYS + 2 * k + 1);
    }
    int behind = BATCH_ARRAYS + 2 * program_mtp_heads(x->program);
    x->pass.next_ids = program_has_mtp_module(x->program) ? batch_array(x, m, behind) : NULL;
}

/* An id or a position outside its table would read memory of something else: a crash far from here, or a
 * silently wrong curve. Batches lie on the host for a step before they are read. */
static bool is_within(const Batch *b, const RankPlan *p) {
    bool within = true;
    for (int64_t t = 0; t < b->tokens; t++)
        within &= b->inputs[t] >= 0 && b->inputs[t] < p->spec.model.vocab_size && b->targets[t] >= -1 &&
                  b->targets[t] < p->spec.model.vocab_size && b->positions[t] >= 0 &&
                  b->positions[t] < p->spec.positions && b->first_key[t] >= 0 && b->first_key[t] <= t;
    return within;
}

/* Whether the segment of token t includes token t + on. */
static bool goes_on(const Batch *b, int64_t t, int64_t on) {
    return t + on < b->tokens && b->first_key[t + on] == b->first_key[t];
}

/* The target of MTP head k for a local token is the target of the token k + 1 further on, if its segment
 * includes that one; otherwise -1. That token may be on another rank: a batch has the tokens of all. */
static void load_mtp(Execution *x, int m, int k) {
    Engine *e = x->engine;
    const Batch *b = &x->batches[m];
    int64_t tokens = e->model.tokens, on = k + 1;
    int32_t *targets = e->targets.mtp + (m * program_mtp_rows(&e->model) + k) * tokens;
    for (int64_t i = 0; i < tokens; i++) {
        int64_t t = model_token(&e->model, e->model.cp.rank, i);
        targets[i] = goes_on(b, t, on) ? b->targets[t + on] : -1;
    }
    OP(e->device, upload, (void *)(uintptr_t)x->pass.mtp_targets[k], targets,
       (size_t)tokens * sizeof *targets);
}

/* The id of the token that follows each local token in its segment. This is not its target, which some tokens
 * lack. The last token of a segment takes its own id. */
static void load_next(Execution *x, int m) {
    Engine *e = x->engine;
    const Batch *b = &x->batches[m];
    int64_t tokens = e->model.tokens;
    int32_t *ids = e->targets.mtp + ((m + 1) * program_mtp_rows(&e->model) - 1) * tokens;
    for (int64_t i = 0; i < tokens; i++) {
        int64_t t = model_token(&e->model, e->model.cp.rank, i);
        ids[i] = b->inputs[goes_on(b, t, 1) ? t + 1 : t];
    }
    OP(e->device, upload, (void *)(uintptr_t)x->pass.next_ids, ids, (size_t)tokens * sizeof *ids);
}

/* Uploads this rank's tokens. Targets come with the batch, so the next token may be on another rank.
 * Attention sees the tokens of all ranks, and needs to know where their documents begin. */
static void load(Execution *x, int m) {
    const Batch *b = &x->batches[program_batch(x->program, m)];
    Device *d = x->engine->device;
    const Model *model = &x->engine->model;
    origin_tokens(x, b);
    execution_enter(x, m);
    CHECK(x->pass.segment > 0 || is_within(b, x->engine->plan));
    int64_t each = model_cp_chunk(model), segment = x->pass.segment * model->tokens;
    size_t bytes = (size_t)each * sizeof(int32_t);
    const Microbatch *to = &x->pass.batch;
    for (int i = 0; i < model_cp_chunks(model); i++) {
        int64_t first = segment + model_cp_chunk_first(model, model->cp.rank, i), at = i * each;
        OP(d, upload, to->ids + at, b->inputs + first, bytes);
        OP(d, upload, to->targets + at, b->targets + first, bytes);
        OP(d, upload, to->positions + at, b->positions + first, bytes);
    }
    OP(d, upload, to->first_key, b->first_key, (size_t)model_all_tokens(model) * sizeof(int32_t));
    for (int k = 0; k < program_mtp_heads(x->program); k++) load_mtp(x, m, k);
    if (program_has_mtp_module(x->program)) load_next(x, m);
}

/* Before the first action of a pass over a unit, sets where its gradients go. One pass may make those of
 * several flats, and the head's forward pass makes those of its matrix. */
static void begin_gradients(Execution *x, Action a) {
    PassGradient g;
    for (int i = 0; x->training && program_begins_unit(x->program, a) && i < PASS_GRADIENTS; i++)
        if (program_gradient(x->program, a, i, &g)) gradients_begin(x, g.unit, g.flat, a.microbatch);
}

/* After the last action of that pass, its gradients are complete. */
static void end_gradients(Execution *x, Action a) {
    PassGradient g;
    for (int i = 0; x->training && program_ends_unit(x->program, a) && i < PASS_GRADIENTS; i++)
        if (program_gradient(x->program, a, i, &g)) gradients_end(x, g.unit, g.flat, a.microbatch);
}

/* The buffers that a pass over a unit reads and writes besides its saved activations; `a` is the pass,
 * or belongs to it. A unit's output is the first of the next unit's saved activations. If that unit is
 * on another rank, the output has a buffer of its own until it is sent. WGRAD reads what DGRAD left in
 * `stash`, not the gradient's buffer, which belongs to other units by then. Only the embedding, whose
 * dgrad does nothing, reads that buffer in WGRAD. */
UnitPass execution_unit(const Execution *x, Action a) {
    const Engine *e = x->engine;
    int u = a.unit, m = a.microbatch, last = x->program->units - 1;
    ActionKind pass = action_pass(a);
    if (pass == ACT_RECOMPUTE) pass = a.before;
    Grads grads = pass_grads(pass);
    int first = program_first_segment(x->program, m);
    bool keeps = x->program->segments > 1 && u > 0 && u < last;
    UnitPass unit = {.pass = &x->pass,
                     .unit = u,
                     .together = grads == BOTH_GRADS,
                     .slice = a.slice,
                     .saved = u > 0 ? execution_buffer(x, BUFFER_SAVED, u, m) : NULL,
                     .stash = e->work.stash,
                     .scratch = e->work.scratch,
                     .keys = keeps ? execution_buffer(x, BUFFER_KEYS, u, first) : NULL};
    if (pass == ACT_FWD) {
        bool here = partition_runs(&e->plan->partition, u + 1);
        if (u < last)
            unit.out = execution_buffer(x, here ? BUFFER_SAVED : BUFFER_OUTPUT, here ? u + 1 : u, m);
        return unit;
    }
    if (keeps) unit.key_sums = execution_buffer(x, BUFFER_KEY_SUMS, u, first);
    if (grads != WGRAD || u == 0)
        unit.dx = execution_buffer(x, BUFFER_GRADIENT, gradient_unit(x->program, u), m);
    if (grads != BOTH_GRADS && u > 0 && (u < last || e->model.config.mtp_module))
        unit.stash = execution_buffer(x, BUFFER_STASH, u, m);
    return unit;
}

/* Waits for what can be missing: the input from the previous stage, then the parameters. A tied head reads
 * the embedding's matrix, which belongs to another unit and has a gather of its own. */
static void forward(Execution *x, Action a) {
    Engine *e = x->engine;
    int u = a.unit, m = a.microbatch;
    bool head = u == x->program->units - 1;
    execution_enter(x, m);
    boundary_arrived(x, ACT_RECV_F, u, m);
    parameters_ready(x, u);
    if (head && e->plan->partition.tied) parameters_ready(x, 0);
    begin_gradients(x, a);
    UnitPass unit = execution_unit(x, a);
    unit_forward(&unit, a.ops);
    probe_output(x, a, unit.out);
    if (head && program_ends_unit(x->program, a))
        origin_states(x, ORIGIN_SENT, e->model.tokens, DTYPE_F32, x->pass.losses);
    if (head && program_ends_unit(x->program, a)) replay_losses(x, m);
    end_gradients(x, a);
    /* The head's last op has computed the losses. They are added up on the device and read once, at NORM. */
    bool counts = e->plan->partition.tensor == 0; /* all ranks of tp have the same losses */
    if (head && counts && program_ends_unit(x->program, a)) statistics_add_losses(x, a.microbatch);
}

/* Ops between collectives are recomputed by actions of their own. An MTP module looks up its tokens again. */
static void recompute(Execution *x, Action a) {
    const Engine *e = x->engine;
    bool embeds = a.unit == x->program->units - 1 && e->model.config.mtp_module;
    execution_enter(x, a.microbatch);
    parameters_ready(x, a.unit);
    if (embeds && e->plan->partition.tied) parameters_ready(x, 0);
    UnitPass unit = execution_unit(x, a);
    unit_recompute(&unit, a.ops);
}

/* The gradient of the output comes from the unit above, in a buffer that passes down through the units: each
 * replaces it by the gradient of its input. */
static void backward(Execution *x, Action a, Grads grads) {
    Engine *e = x->engine;
    int u = a.unit, m = a.microbatch, last = x->program->units - 1;
    execution_enter(x, m);
    if (grads & DGRAD) boundary_arrived(x, ACT_RECV_B, u, m);
    begin_gradients(x, a);
    parameters_ready(x, u);
    if (u == last && x->program->defer_head && e->plan->partition.tied) parameters_ready(x, 0);
    UnitPass unit = execution_unit(x, a);
    /* Later ops read the results of earlier ones, so everything that was dropped is recomputed before the
     * backward pass begins with the last op. */
    if ((grads & DGRAD) && program_begins_unit(x->program, a) && !program_cuts(x->program, u))
        unit_recompute(&unit, unit_ops(&e->model.config, u));
    unit_backward(&unit, grads, a.ops);
    probe_gradient(x, a, grads, unit.dx);
    end_gradients(x, a);
}

/* A replay ends with the gradients that this rank makes by itself. */
static bool is_replayed(ActionKind kind) {
    return kind != ACT_SUM_PARTIALS && kind != ACT_REDUCE_SCATTER && kind != ACT_ALL_REDUCE &&
           kind != ACT_REDUCED && kind != ACT_TIE;
}

/* No default: a new kind of action causes a compiler warning here until somebody adds it. */
static void act(Execution *x, Action a) {
    if (x->replaying && !is_replayed(a.kind)) return;
    switch (a.kind) {
    case ACT_LOAD: load(x, a.microbatch); break;
    case ACT_GATHER: parameters_gather(x, a); break;
    case ACT_RELEASE: parameters_release(x, a); break;
    case ACT_RECV_F:
    case ACT_RECV_B: boundary_receive(x, a); break;
    case ACT_SEND_F:
    case ACT_SEND_B: boundary_send(x, a); break;
    case ACT_FWD: forward(x, a); break;
    case ACT_BWD:
    case ACT_DGRAD:
    case ACT_WGRAD: backward(x, a, action_grads(a)); break;
    case ACT_RECOMPUTE: recompute(x, a); break;
    case ACT_COLLECTIVE: collective_start(x, a); break;
    case ACT_WAIT: collective_wait(x, a); break;
    case ACT_DISPATCH: dispatch_run(x, a); break;
    case ACT_SUM_PARTIALS: gradients_sum_partials(x, a); break;
    case ACT_REDUCE_SCATTER:
    case ACT_ALL_REDUCE: gradients_reduce(x, a); break;
    case ACT_REDUCED: gradients_reduced(x, a); break;
    case ACT_TIE: gradients_tie(x); break;
    case ACT_NORM: update_norm(x); break;
    case ACT_MATRIX_GATHER: matrices_gather(x, a); break;
    case ACT_MATRIX_SCATTER: matrices_scatter(x, a); break;
    case ACT_UPDATE: update_unit(x, a.unit); break;
    case ACT_KINDS: break;
    }
}

/* ---- times by the device's clock ---- */

/* A step's times are known after the first wait of the next step, so those of two steps are kept. */
static void begin_times(Engine *e, const Execution *x) {
    StepTiming *t = &e->timed;
    Device *d = e->device;
    t->before = t->now;
    t->now = x->options->timed && d->runtime.stamp ? &t->times[t->before == &t->times[0]] : NULL;
    t->recording = t->now;
    if (!t->now) return;
    t->now->step.program = x->program;
    memset(t->now->step.actions, 0, (size_t)x->program->count * sizeof *t->now->step.actions);
    d->runtime.stamp(d, NULL);
}

/* On the device an action ends where the next one begins, so there is one stamp between them. */
static void time_action(Engine *e, int i, bool over) {
    DeviceTimes *t = e->timed.recording;
    e->timed.waited = t && !over ? &t->step.actions[i].waited : NULL;
    if (t && over) e->device->runtime.stamp(e->device, &t->step.actions[i].end);
}

/* Relates the device's clock to the host's, once a step: the host heard of the end of the last wait a moment
 * after it happened on the device. */
static void settle(DeviceTimes *t) {
    StepTimes *s = &t->step;
    s->began = t->heard - t->done;
    s->waited = 0;
    for (int i = 0; i < s->program->count; i++) {
        s->actions[i].start = i > 0 ? s->actions[i - 1].end : 0;
        s->waited += s->actions[i].waited;
    }
}

bool engine_is_timed_late(const Engine *e) { return e->device->runtime.stamp != NULL; }

const StepTimes *engine_timed(Engine *e, bool wait) {
    DeviceTimes *t = wait ? e->timed.now : e->timed.before;
    if (!t) return NULL;
    if (wait) e->device->runtime.read_times(e->device);
    settle(t);
    return &t->step;
}

/* After the commit a step has only updates left, which each rank makes by itself unless matrices are sent to
 * their owners: those are lost. */
static bool goes_on_alone(const Execution *x) { return x->committed && !x->engine->plan->partition.owners; }

static void execute(Execution *x) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    double begin = clock_seconds();
    e->clock.began = begin;
    for (int i = 0; i < x->program->count && (!e->interrupted || goes_on_alone(x)); i++) {
        /* Evaluations and replays are not timed: their actions share the entry after those of the step. */
        ActionTime *time =
            x->training && !x->replaying ? &e->clock.actions[i] : &e->clock.actions[e->plan->program.count];
        e->progress.current = &x->program->actions[i];
        double waited = e->clock.waited;
        time->start = clock_seconds() - begin;
        time_action(e, i, false);
        if (x->options && x->options->before_action)
            x->options->before_action(x->options->fault, x->program->actions[i].kind);
        origin_memory(x, i);
        act(x, x->program->actions[i]);
        time_action(e, i, true);
        time->end = clock_seconds() - begin;
        time->waited = e->clock.waited - waited;
        /* Collectives make progress here. Otherwise they would stand still while passes run, and no
         * communication would be hidden behind computation. */
        if (!e->interrupted) execution_must(e, comm_poll(e->comm, &err), &err);
    }
    boundary_finish(x);
    e->progress.current = NULL;
    e->progress.executed++;
}

/* State of one execution. Clearing `started` forgets the previous step: the first contribution to each sum
 * overwrites it. */
static Execution prepare(Engine *e, const Program *p, const MemoryPlan *memory, const Batch *batches) {
    Execution x = {.engine = e, .memory = memory, .program = p, .batches = batches};
    x.pass =
        (Pass){.model = &e->model, .device = e->device, .weights = &e->weights, .gradients = e->gradients};
    memset(e->step.started, 0, (size_t)e->model.table.units + 1);
    e->clock.waited = 0;
    record_start(&x.record);
    return x;
}

int64_t engine_valid(const Engine *e, const Batch *batches, int microbatches) {
    int64_t valid = 0;
    if (microbatches == 0) microbatches = program_batches(&e->plan->program);
    for (int m = 0; m < microbatches; m++) valid += batches[m].valid;
    /* The ranks of a pipeline see the same batches, so one of them counts. */
    return partition_counts_batches(&e->plan->partition) ? valid : 0;
}

/* Valid targets of the whole step over all data-parallel ranks. The loss is divided by it, so it must be
 * known first. The previous step's record brought it, unless there was none or it did not know. */
static int64_t count_valid(Engine *e, const Batch *batches, int microbatches) {
    int64_t valid = engine_valid(e, batches, microbatches);
    if (e->targets.all >= 0) {
        CHECK(valid == e->targets.own);
        return e->targets.all;
    }
    execution_combine(e, &valid, sizeof valid, comm_add_int64);
    return valid;
}

/* Selects the plan's program with this number of microbatches: the largest step's, or a smaller one. */
static Execution prepare_step(Engine *e, int microbatches, const Batch *batches) {
    const RankPlan *p = e->plan;
    if (microbatches == 0 || microbatches == program_batches(&p->program))
        return prepare(e, &p->program, &p->memory, batches);
    int i = 0;
    while (i < p->smaller_count && program_batches(&p->smaller[i].program) != microbatches) i++;
    CHECK(i < p->smaller_count);
    return prepare(e, &p->smaller[i].program, &p->smaller[i].memory, batches);
}

/* Batches are those of the step, which determine the scale of the loss. */
static Execution begin_training(Engine *e, int microbatches, const Batch *batches, const StepOptions *options,
                                StepResult *result) {
    Execution x = prepare_step(e, microbatches, batches);
    x.training = true, x.options = options, x.result = result;
    x.pass.z_loss = (float)e->plan->spec.z_loss;
    x.pass.training = true, x.pass.defer_head = e->plan->program.defer_head;
    return x;
}

void engine_replay(Engine *e, const Batch *batch, const Batch *batches, int microbatches, uint64_t *prints) {
    StepReplay replay = {.own = prints};
    StepOptions options = {.replay = &replay};
    StepResult result = {.valid = count_valid(e, batches, microbatches)};
    Execution x = begin_training(e, 1, batch, &options, &result);
    if (!e->hash.state) tensor_hash_open(&e->hash, e->device);
    memset(prints, 0, engine_prints(e) * sizeof *prints);
    x.replaying = true, x.limit = fixed_limit(1);
    statistics_begin(&x);
    execute(&x);
}

ErrorCode engine_step(Engine *e, const Batch *batches, const StepOptions *options, StepResult *result) {
    Execution x = begin_training(e, options->microbatches, batches, options, result);
    const Partition *p = &e->plan->partition;
    int exact_chunks = p->cp.exact_chunks > 0 ? p->cp.exact_chunks : 1,
        contributions = program_batches(x.program) * mesh_dp_degree(&p->mesh) * p->splits * exact_chunks;
    e->clock.program = x.program;
    *result = (StepResult){.valid = count_valid(e, batches, options->microbatches)};
    /* Each sum in fixed point has this many terms (counting splits and exact chunks, where sums have any),
     * and each term must leave headroom for the others. The limit depends on the step alone, not on which
     * rank adds what, so the same elements are refused on any mesh. */
    x.limit = fixed_limit(contributions);
    begin_times(e, &x);
    statistics_begin(&x);
    probe_begin(&x);
    partner_receive(&x);
    execute(&x);
    e->timed.recording = NULL;
    if (e->interrupted && !goes_on_alone(&x)) {
        e->torn = x.committed;
        return ERR_PEER;
    }
    partner_update(&x);
    probe_end(&x);
    return OK;
}

static Execution forward_only(Engine *e, const Batch *batch, bool scoring) {
    Execution x = prepare(e, &e->plan->evaluation, &e->plan->evaluation_memory, batch);
    x.scoring = scoring;
    statistics_begin(&x);
    execute(&x);
    return x;
}

/* Sums are exact, so the order of ranks and batches does not matter. */
void engine_evaluate(Engine *e, const Batch *batch, LossSum *losses) {
    Execution x = forward_only(e, batch, false);
    statistics_read_losses(e, &x.record);
    exact_merge(&losses->sum, &x.record.loss);
    losses->nonfinite += x.record.bad_losses;
}

bool engine_score(Engine *e, const Batch *batch, LossRecord *records) {
    Execution x = forward_only(e, batch, true);
    if (!partition_runs(&e->plan->partition, x.program->units - 1)) return false;
    size_t each = (size_t)(e->model.cp.ranks * model_records(&e->model));
    for (int m = 0; m < x.program->microbatches; m++) {
        LossRecord *all = scores_of(&x, m);
        collective_gather_scores(e, all);
        device_fetch(e->device, records + (size_t)m * each, all, each * sizeof *records);
    }
    return true;
}
