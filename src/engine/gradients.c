/* Gradients, from the passes that make them to this rank's shard of the step's gradient: REDUCE_SCATTER,
 * ALL_REDUCE, REDUCED, TIE. Each flat of a unit takes one of three ways by itself (program/program.h:
 * program_has_slots). "own" is this rank's shard.
 *
 *  1. Directly into the sums of the step, which are reduced in place once.
 *
 *      pass --adds--> sums[all shards] ==reduce==> sums[own]
 *
 *  2. Through memory of the microbatch (a slot); its reduced shard is added to the sums.
 *
 *      pass --sets--> slot[all] ==reduce==> slot[own] --add_shard--> sums[own]
 *
 *  3. Exact: from the slot in fixed point into the sums of the step, or (reduced once a microbatch) into a
 *     copy that is reduced and then added. At the end they become fp32 again.
 *
 *      pass --sets--> slot[all] --fix, adds--> sums[all] ==reduce==> sums[own] --to_float--> owned
 *                       |                                              ^
 *                       +--fix, sets--> fixed[all] ==reduce==> fixed[own]--add_shard
 *
 * Where sums have splits (numerics.tp_invariant_up_to), passes add the gradients of vectors to one row per
 * local split. SUM_PARTIALS adds up these rows, and then, for parameters that are replicated over tp, the
 * results of all ranks of tp. In fixed point each row is added by itself, and SUM_PARTIALS sums over tp only.
 *
 *      pass --adds--> partials --tree--> sums or slot [vectors] ==all-reduce over tp==> the same
 *
 * Where cp may shard the tokens of a microbatch (numerics.cp_invariant_up_to), a slot has one gradient for
 * each local exact chunk; each is rounded by itself.
 *
 * With expert parallelism (mesh.ep), local experts make a gradient for the tokens of each rank of ep (with
 * mesh.etp 1, of all ranks of tp together: they are one source). In fixed point each is rounded by itself,
 * from the same memory. In a slot they are added up as they come, in the canonical tree: those of a dispatch
 * chunk by the products themselves, those of several chunks with log2(ep) partial sums that wait. In the sums
 * of the step there is one sum for each rank, and these are added up before the reduction.
 *
 * At the end `owned` points to this rank's shard of each flat. A bit of `started` says whether a flat's sums
 * were written in this step, because the first contribution must overwrite them instead of adding.
 *
 * Elsewhere called: gradient accumulation (no_sync); DDP all-reduce, FSDP and ZeRO reduce-scatter; main_grad
 * (Megatron). */
#include "engine/execution.h"

#include "base/tree.h"
#include "device/ops/memory.h"
#include "device/ops/optimizer.h"

/* Memory that holds a flat's gradient: of the step (microbatch -1), or of a microbatch in its slot. */
typedef struct Region {
    char *all, *own;        /* the whole flat, or only this rank's shard; that shard */
    const FlatShard *shard; /* sizes of both */
} Region;

static Region region_of(const Execution *x, int unit, Flat flat, int microbatch) {
    const Partition *p = &x->engine->plan->partition;
    BufferKind kind = x->program->exact ? BUFFER_FLAT_FIXED : BUFFER_FLAT_GRADIENTS;
    Region r = {.shard = &p->flat_shard[unit][flat]};
    bool whole = microbatch >= 0 || gradient_sums_are_unsharded(x->program);
    if (r.shard->total == 0) return r;
    r.all = microbatch >= 0 ? execution_buffer(x, buffer_of_flat(kind, flat), unit, microbatch)
                            : x->engine->step.sums[unit][flat];
    size_t width = x->program->exact ? sizeof(int64_t) : sizeof(float);
    /* If only shards are held, this rank's may be empty and have no memory: nothing is added to it. */
    r.own = r.all;
    if (whole) r.own += (size_t)r.shard->first * width;
    return r;
}

/* Whether these sums have not been written in this step yet; from now on they have. */
static bool start_sums(Execution *x, int unit, Flat flat) {
    unsigned char bit = (unsigned char)(1 << flat), *started = &x->engine->step.started[unit];
    bool fresh = !(*started & bit);
    *started |= bit;
    return fresh;
}

/* ---- while passes make them ---- */

/* The first product overwrites what it finds. Gradients of vectors and of the embedding's rows are always
 * added to, so they begin at zero. */
void gradients_begin(Execution *x, int unit, Flat flat, int microbatch) {
    size_t elements = partition_flat_elements(&x->engine->plan->partition, unit, flat);
    bool slots = program_has_slots(x->program);
    if (elements == 0) return;
    char *partials = flat == FLAT_VECTORS ? x->engine->step.partials[unit] : NULL;
    char *to = partials ? partials
               : slots  ? execution_buffer(x, buffer_of_flat(BUFFER_FLAT_GRADIENTS, flat), unit, microbatch)
                        : x->engine->step.sums[unit][flat];
    if (partials) elements *= (size_t)partition_rows(&x->engine->plan->partition);
    elements *= (size_t)program_gradients(x->program, flat);
    bool fresh = slots || start_sums(x, unit, flat);
    x->engine->gradients.units[unit].flats[flat] = (float *)(void *)to;
    if (!flat_of_vectors(flat)) x->pass.first = fresh;
    if (fresh && (flat_of_vectors(flat) || unit == 0))
        OP(x->engine->device, zero, to, elements * sizeof(float));
}

bool gradient_next(const Execution *x, int unit, Flat flat, LocalGradient *g) {
    const Engine *e = x->engine;
    const ParamTable *t = &e->model.table;
    const Partition *partition = &e->plan->partition;
    int shape = unit < t->units ? unit : 0, i = g->param ? g->index + 1 : t->unit_first[shape];
    while (i < t->unit_first[shape + 1] && (t->params[i].flat != flat || t->params[i].remote)) i++;
    if (i == t->unit_first[shape + 1]) return false;
    const Param *p = &t->params[i];
    *g = (LocalGradient){.param = p,
                         .index = i,
                         .first = e->gradients.units[unit].flats[flat] + gradient_offset(&e->gradients, p),
                         .rows = flat == FLAT_VECTORS ? partition_param_rows(partition, p) : 1,
                         .count = program_gradients(x->program, flat),
                         .apart = gradient_exact_chunk(&e->gradients, unit, flat)};
    return true;
}

/* An element that fixed point cannot hold makes the step invalid, and is counted for its
 * parameter. */
static void fix(Execution *x, int unit, Flat flat, int64_t *sum, bool set) {
    LocalGradient g = {.param = NULL};
    while (gradient_next(x, unit, flat, &g))
        for (int r = 0; r < g.rows * g.count; r++)
            OP(x->engine->device, fixed_add, .n = g.param->count,
               .g = g.first + (size_t)(r / g.rows) * g.apart + (size_t)(r % g.rows) * (size_t)g.param->count,
               .acc = sum + g.param->offset, .set = set && r == 0, .limit = x->limit,
               .refused = x->engine->statistics.refused + g.index);
}

/* `first`: of those that a microbatch adds to the same sum. */
static void complete(Execution *x, int unit, Flat flat, int microbatch, bool first) {
    bool step = x->program->sync == SYNC_STEP;
    if (x->engine->gradients.units[unit].flats[flat]) origin_gradients(x, unit, flat, microbatch);
    if (x->engine->gradients.units[unit].flats[flat]) replay_gradients(x, unit, flat, microbatch);
    if (!x->program->exact) return;
    Region r = region_of(x, unit, flat, step ? -1 : microbatch);
    if (r.all) fix(x, unit, flat, (int64_t *)(void *)r.all, first && (!step || start_sums(x, unit, flat)));
}

void gradients_end(Execution *x, int unit, Flat flat, int microbatch) {
    if (x->engine->statistics.first && x->program->first_alone && microbatch == 0)
        statistics_add_first(x, unit, flat, x->engine->gradients.units[unit].flats[flat]);
    bool by_source = x->program->exact && program_adds_sources(x->program, flat);
    if (!by_source) complete(x, unit, flat, microbatch, true);
}

/* ---- partial sums of vectors ---- */

/* Adds up the rows of this rank: its part of the canonical tree. */
static void add_rows(Engine *e, int unit, float *to) {
    const ParamTable *t = &e->model.table;
    const float *partials = (const float *)(const void *)e->step.partials[unit], *rows[SPLITS_MAX];
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) {
        const Param *p = &t->params[i];
        int count = partition_param_rows(&e->plan->partition, p);
        if (p->flat != FLAT_VECTORS) continue;
        for (int r = 0; r < count; r++) rows[r] = partials + gradient_offset(&e->gradients, p) + r * p->count;
        OP(e->device, sum_partials, p->count, count, rows, to + p->offset);
    }
}

/* Parameters that tp shards are complete already. What lies between the runs of sums is not read. */
static void sum_over_tensor(Execution *x, int unit, char *to) {
    Engine *e = x->engine;
    size_t width = x->program->exact ? sizeof(int64_t) : sizeof(float);
    CommType type = x->program->exact ? COMM_I64 : COMM_F32;
    VectorRun run;
    for (int next = 0; program_next_sum(x->program, unit, &next, &run);) {
        Error err = {.message = ""};
        CommRequest request = 0;
        execution_must(e,
                       comm_all_reduce(e->comm, MESH_TENSOR, type, to + (size_t)run.first * width, run.count,
                                       e->work.exchange, &request, &err),
                       &err);
        execution_wait(e, &request);
    }
}

void gradients_sum_partials(Execution *x, Action a) {
    Engine *e = x->engine;
    Region r = region_of(x, a.unit, FLAT_VECTORS, a.microbatch);
    if (!x->program->exact && e->step.partials[a.unit]) add_rows(e, a.unit, (float *)(void *)r.all);
    if (e->plan->partition.tensors > 1) sum_over_tensor(x, a.unit, r.all);
}

/* ---- experts ---- */

/* Partial sum `i` of those that wait, or that come next; the first becomes the sum over all ranks of ep. */
static float *partial_sum(const Execution *x, int unit, Flat flat, int microbatch, int i) {
    BufferKind kind = i > 0 ? BUFFER_FLAT_PARTIALS : BUFFER_FLAT_GRADIENTS;
    char *all = execution_buffer(x, buffer_of_flat(kind, flat), unit, microbatch);
    size_t each = partition_flat_elements(&x->engine->plan->partition, unit, flat);
    return (float *)(void *)all + (i > 0 ? (size_t)(i - 1) * each : 0);
}

/* Where the experts write the gradient for the tokens of one source, or of a block that begins with it. */
static float *source_gradient(const Execution *x, int unit, Flat flat, int microbatch, int source) {
    size_t each = partition_flat_elements(&x->engine->plan->partition, unit, flat);
    if (!program_adds_sources(x->program, flat))
        return (float *)(void *)x->engine->step.sums[unit][flat] + (size_t)source * each;
    return partial_sum(x, unit, flat, microbatch, x->program->exact ? 0 : tree_waiting(source));
}

/* The sources of a microbatch are an aligned power of two of the leaves of the canonical tree over data ranks
 * (base/tree.h), so the order of these additions is the tree's. A block of sources comes with the additions
 * below its root done. */
static void add_sources(Execution *x, int unit, Flat flat, int microbatch, TreeBlock sources) {
    int at = tree_waiting(sources.first), carries = tree_block_carries(sources);
    int64_t n = (int64_t)partition_flat_elements(&x->engine->plan->partition, unit, flat);
    while (carries > 0) {
        const float *parts[3];
        int count = tree_carry_parts(carries);
        for (int i = 0; i < count; i++) parts[i] = partial_sum(x, unit, flat, microbatch, at - i);
        at -= count - 1, carries -= count - 1;
        OP(x->engine->device, sum_partials, n, count, parts, partial_sum(x, unit, flat, microbatch, at));
    }
}

static void begin_sources(Execution *x, int unit, Flat flat, int microbatch, TreeBlock sources) {
    float *to = source_gradient(x, unit, flat, microbatch, sources.first);
    size_t elements = partition_flat_elements(&x->engine->plan->partition, unit, flat);
    x->engine->gradients.units[unit].flats[flat] = to;
    if (flat_of_vectors(flat) && program_adds_sources(x->program, flat))
        OP(x->engine->device, zero, to, elements * sizeof *to);
}

/* Afterwards the unit's gradient is that of source 0 again: the first in memory, or the sum. */
static void end_sources(Execution *x, int unit, Flat flat, int microbatch, TreeBlock sources) {
    bool adds = program_adds_sources(x->program, flat);
    if (adds && x->program->exact)
        complete(x, unit, flat, microbatch, sources.first == 0);
    else if (adds)
        add_sources(x, unit, flat, microbatch, sources);
    x->engine->gradients.units[unit].flats[flat] = source_gradient(x, unit, flat, microbatch, 0);
}

/* Whether a unit has trained experts, in this flat. */
static bool has_experts(const Execution *x, int unit, int flat) {
    return flat_of_experts((Flat)flat) &&
           partition_flat_elements(&x->engine->plan->partition, unit, (Flat)flat) > 0;
}

void gradients_begin_sources(Execution *x, int unit, int microbatch, TreeBlock sources) {
    for (int f = 0; f < GRADIENT_FLATS; f++)
        if (has_experts(x, unit, f)) begin_sources(x, unit, (Flat)f, microbatch, sources);
}

void gradients_end_sources(Execution *x, int unit, int microbatch, TreeBlock sources) {
    for (int f = 0; f < GRADIENT_FLATS; f++)
        if (has_experts(x, unit, f)) end_sources(x, unit, (Flat)f, microbatch, sources);
}

/* Where gradients accumulate over a step, those for the tokens of each rank of ep stay apart until its end:
 * their sums over microbatches are the partial sums of the sum over all ranks. */
static void add_dispatched(Execution *x, Region r) {
    const Partition *p = &x->engine->plan->partition;
    const float *ranges[SPLITS_MAX], *all = (const float *)(const void *)r.all;
    for (int i = 0; i < p->sources; i++) ranges[i] = all + i * r.shard->total;
    OP(x->engine->device, sum_partials, r.shard->total, p->sources, ranges, (float *)(void *)r.all);
}

/* ---- reductions ---- */

/* Each group has workspaces of its own, used alternately. So operations wait for each other, and this rank
 * does not wait for them. */
typedef enum ReduceGroup { OVER_SHARDS, OVER_REPLICAS, OVER_EXPERT_SHARDS } ReduceGroup;

static ReduceGroup reduce_group(const Partition *p, ActionKind kind, Flat flat) {
    if (kind == ACT_ALL_REDUCE) return OVER_REPLICAS;
    return flat_of_experts(flat) && partition_splits_shards(p) ? OVER_EXPERT_SHARDS : OVER_SHARDS;
}

static char *workspace(Engine *e, ReduceGroup group) {
    const Partition *p = &e->plan->partition;
    size_t slot = e->traffic.reductions_started[group] % COMM_ACTIVE,
           before =
               group == OVER_SHARDS ? 0 : (group == OVER_EXPERT_SHARDS && p->replicas > 1) + (p->shards > 1);
    return e->work.bucket + (before * COMM_ACTIVE + slot) * e->plan->memory.reduction;
}

static void reduce(Execution *x, Action a, Flat flat) {
    Engine *e = x->engine;
    void *space = workspace(e, reduce_group(&e->plan->partition, a.kind, flat));
    Error err = {.message = ""};
    Region r = region_of(x, a.unit, flat, a.microbatch);
    CommType type = x->program->exact ? COMM_I64 : COMM_F32;
    CommRequest *request = &e->traffic.reductions[a.unit][flat];
    execution_wait(e, request);
    if (!r.all) return;
    bool whole = a.microbatch >= 0 || gradient_sums_are_unsharded(x->program);
    size_t width = x->program->exact ? sizeof(int64_t) : sizeof(float);
    origin_message(x, (size_t)(whole ? r.shard->total : r.shard->count) * width, r.all);
    if (!x->program->exact && program_gradients(x->program, flat) > 1 && a.kind == ACT_REDUCE_SCATTER)
        add_dispatched(x, r);
    /* The microbatches' sums over the shards are added up before they are summed over the replicas: these are
     * two separate sums. */
    bool apart = x->program->sync == SYNC_REPLICA;
    const CommRange *ranges = r.shard->ranges;
    ErrorCode code;
    if (a.kind == ACT_REDUCE_SCATTER)
        code = comm_sum_inner(e->comm, r.shard->axes, apart ? 0 : MESH_REPLICAS, type, ranges, r.all, space,
                              request, &err);
    else if (apart)
        code = comm_all_reduce(e->comm, MESH_REPLICAS, type, r.own, r.shard->count, space, request, &err);
    else
        code =
            comm_sum_outer(e->comm, r.shard->axes, MESH_REPLICAS, type, ranges, r.all, space, request, &err);
    execution_must(e, code, &err);
}

void gradients_reduce(Execution *x, Action a) {
    const Partition *p = &x->engine->plan->partition;
    for (int f = 0; f < GRADIENT_FLATS; f++) reduce(x, a, (Flat)f);
    x->engine->traffic.reductions_started[reduce_group(p, a.kind, FLAT_VECTORS)]++;
    if (a.kind == ACT_REDUCE_SCATTER) x->engine->traffic.reductions_started[OVER_EXPERT_SHARDS]++;
}

/* sums += reduced shard; `set`: overwrites instead. */
static void add_shard(Execution *x, Region to, Region from, bool set) {
    Device *d = x->engine->device;
    const void *ranges[2] = {to.own, from.own};
    int first = set ? 1 : 0, count = set ? 1 : 2;
    if (x->program->exact)
        OP(d, sum_partials_i64, to.shard->count, count, (const int64_t *const *)(const void *)&ranges[first],
           (int64_t *)(void *)to.own);
    else
        OP(d, sum_partials, to.shard->count, count, (const float *const *)(const void *)&ranges[first],
           (float *)(void *)to.own);
}

static void reduced(Execution *x, Action a, Flat flat) {
    Engine *e = x->engine;
    Region sums = region_of(x, a.unit, flat, -1);
    execution_wait(e, &e->traffic.reductions[a.unit][flat]);
    if (sums.shard->count == 0) return;
    if (a.microbatch >= 0)
        add_shard(x, sums, region_of(x, a.unit, flat, a.microbatch), start_sums(x, a.unit, flat));
    else if (x->program->exact)
        OP(e->device, fixed_to_float, sums.shard->count, (const int64_t *)(void *)sums.own,
           e->step.owned[a.unit].flats[flat]);
}

/* With tied embeddings the gradient of the embedding is complete after TIE. */
static bool waits_for_tie(const Partition *p, int unit) {
    return p->tied && (unit == 0 || unit == p->table->units);
}

void gradients_reduced(Execution *x, Action a) {
    for (int f = 0; f < GRADIENT_FLATS; f++) reduced(x, a, (Flat)f);
    if (a.microbatch < 0 && !waits_for_tie(&x->engine->plan->partition, a.unit)) partner_send(x, a.unit);
}

/* ---- the tied head ---- */

static void exchange(Engine *e, int peer, const float *mine, size_t bytes) {
    Error err = {.message = ""};
    CommRequest receive = 0, send = 0;
    uint64_t key = comm_key(2, 0, e->progress.executed);
    execution_must(e, comm_recv(e->comm, peer, key, e->work.tie_buffer, bytes, &receive, &err), &err);
    execution_must(e, comm_send(e->comm, peer, key, mine, bytes, &send, &err), &err);
    execution_wait(e, &receive);
    execution_wait(e, &send);
}

/* Adds the gradients of both uses of a tied weight after each has been reduced, embedding first, so that the
 * order does not depend on which rank holds which. */
static void add_tied(Engine *e, int64_t n) {
    const Partition *p = &e->plan->partition;
    int head = p->table->units - 1;
    float *embedding = e->step.owned[0].flats[FLAT_MATRICES];
    const float *ranges[2] = {embedding, e->step.owned[p->table->units].flats[FLAT_MATRICES]};
    bool here[2] = {partition_runs(p, 0), partition_runs(p, head)};
    for (int i = 0; i < 2; i++) {
        if (here[i]) continue;
        exchange(e, partition_peer(p, i == 0 ? 0 : head), ranges[1 - i], (size_t)n * sizeof(float));
        ranges[i] = e->work.tie_buffer;
    }
    OP(e->device, sum_partials, n, 2, ranges, embedding);
}

void gradients_tie(Execution *x) {
    int64_t n = x->engine->plan->partition.flat_shard[0][FLAT_MATRICES].count;
    if (n > 0) add_tied(x->engine, n); /* 0: the embedding is frozen */
    partner_send(x, 0);
}
