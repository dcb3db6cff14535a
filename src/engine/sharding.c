/* Parameters and gradients over the data-parallel axes.
 *
 * Gathered parameters live in buffers of the plan; a rank casts its own share into its place, and the
 * all-gather fills the rest.
 *
 * Gradients take one of three ways (plan/program.h: program_has_slots):
 *   1. Straight into the sums of the step, which are reduced in place once.
 *   2. Into memory of their microbatch, which is reduced; then this rank's share is added to its sums.
 *   3. Exact: into memory of their microbatch, from there in fixed point into the sums of the step, or
 *      (reduced once a microbatch) into a fixed-point copy that is reduced and then added to the sums. At
 *      the end they become fp32 again.
 * In the end `owned` points to this rank's share of each unit's gradient. */
#include "engine/execution.h"

static const Share *share_of(const Execution *x, int unit) { return &x->engine->plan->partition.share[unit]; }

/* ---- Parameters ---- */

static size_t gathered_vectors_bytes(const Execution *x, int unit) {
    return pool_round(partition_vectors(&x->engine->plan->partition, unit) * sizeof(float));
}

/* Casts this rank's share into its place and starts filling the others. */
static void gather_part(Execution *x, int unit, int part, const float *master, size_t share, char *all,
                        Dtype type) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    size_t bytes = share * dtype_bytes(type);
    char *mine = all + (size_t)e->plan->partition.shard * bytes;
    if (share == 0) return;
    OP(e->device, OP_CAST, cast, (int64_t)share, master, DTYPE_F32, mine, type);
    CommHandle *handle = &e->traffic.gathers[2 * unit + part];
    execution_must(e, comm_all_gather(e->comm, MESH_SHARDS, mine, all, bytes, handle, &err), &err);
}

void sharding_gather(Execution *x, Action a) {
    Engine *e = x->engine;
    const Share *s = share_of(x, a.unit);
    char *vectors = execution_buffer(x, BUFFER_GATHERED, a.unit, a.microbatch);
    char *matrices = vectors + gathered_vectors_bytes(x, a.unit);
    const float *master = e->state.master + s->start;
    gather_part(x, a.unit, 0, master, s->vectors, vectors, DTYPE_F32);
    gather_part(x, a.unit, 1, master + s->vectors, s->matrices, matrices, e->model.compute);
    e->weights.units[a.unit] =
        (UnitWeights){.vectors = (const float *)(const void *)vectors, .matrices = matrices};
}

void sharding_ready(Execution *x, int unit) {
    execution_wait(x->engine, &x->engine->traffic.gathers[2 * unit]);
    execution_wait(x->engine, &x->engine->traffic.gathers[2 * unit + 1]);
}

void sharding_release(Execution *x, Action a) {
    sharding_ready(x, a.unit); /* prefetched, and then not used */
    x->engine->weights.units[a.unit] = (UnitWeights){0};
}

/* ---- Gradients while they are made ---- */

/* The sums of a step hold all shards when they are reduced once, else this rank's. */
static size_t sum_shards(const Execution *x) {
    return x->program->sync == SYNC_STEP ? (size_t)x->engine->plan->partition.shards : 1;
}

static float *sum_vectors(const Execution *x, int unit) {
    return (float *)(void *)x->engine->step.sums[unit];
}
static float *sum_matrices(const Execution *x, int unit) {
    return sum_vectors(x, unit) + share_of(x, unit)->vectors * sum_shards(x);
}
static int64_t *fixed_sums(const Execution *x, int unit) {
    return (int64_t *)(void *)x->engine->step.sums[unit];
}

static void zero(Execution *x, float *p, size_t elements) {
    if (elements) OP(x->engine->device, OP_ZERO, zero, p, elements * sizeof(float));
}

void sharding_begin_vectors(Execution *x, int unit, int microbatch) {
    size_t elements = partition_vectors(&x->engine->plan->partition, unit);
    UnitGradients *g = &x->engine->gradients.units[unit];
    if (elements == 0) return;
    if (!program_has_slots(x->program)) {
        g->vectors = sum_vectors(x, unit);
        if (!(x->started[unit] & 1)) zero(x, g->vectors, elements);
        x->started[unit] |= 1;
        return;
    }
    g->vectors = (float *)(void *)execution_buffer(x, BUFFER_GRAD_VECTORS, unit, microbatch);
    zero(x, g->vectors, elements);
}

/* Products set what they find on the first time; the embedding's rows are always added to. */
void sharding_begin_matrices(Execution *x, int unit, int microbatch) {
    size_t elements = partition_matrices(&x->engine->plan->partition, unit);
    UnitGradients *g = &x->engine->gradients.units[unit];
    bool slots = program_has_slots(x->program);
    bool fresh = slots || !(x->started[unit] & 2);
    g->matrices = slots ? (float *)(void *)execution_buffer(x, BUFFER_GRAD_MATRICES, unit, microbatch)
                        : sum_matrices(x, unit);
    if (fresh && unit == 0) zero(x, g->matrices, elements);
    x->pass.first = fresh;
    if (!slots) x->started[unit] |= 2;
}

/* Parameter by parameter, since what is between them and behind them is never written and may be anything.
 * What fixed point cannot take makes the step a bad one, and is named. */
static void fix(Execution *x, int unit, bool matrices, const float *g, int64_t *sum, bool set) {
    const ParamTable *t = &x->engine->model.table;
    int shape = unit < t->units ? unit : 0;
    for (int i = t->unit_first[shape]; i < t->unit_first[shape + 1]; i++) {
        const Param *p = &t->params[i];
        size_t at = param_place(t, p);
        if ((p->cols > 0) != matrices) continue;
        OP(x->engine->device, OP_FIXED_ADD, fixed_add, p->count, g + at, sum + at, set, x->limit,
           x->engine->statistics.refused + i);
    }
}

/* Where fixed point adds up what a microbatch made: the sums of the step, or what will be reduced. `bit`
 * tells vectors from matrices in `started`. */
static int64_t *fixed_target(Execution *x, int unit, int microbatch, int bit, bool *set) {
    *set = true;
    if (x->program->sync != SYNC_STEP)
        return (int64_t *)(void *)execution_buffer(x, BUFFER_FIXED, unit, microbatch);
    *set = !(x->started[unit] & bit);
    x->started[unit] |= (unsigned char)bit;
    return fixed_sums(x, unit);
}

void sharding_end_vectors(Execution *x, int unit, int microbatch) {
    size_t elements = partition_vectors(&x->engine->plan->partition, unit);
    bool set;
    if (!x->program->exact || elements == 0) return;
    int64_t *to = fixed_target(x, unit, microbatch, 1, &set);
    fix(x, unit, false, x->engine->gradients.units[unit].vectors, to, set);
}

void sharding_end_matrices(Execution *x, int unit, int microbatch) {
    size_t elements = partition_matrices(&x->engine->plan->partition, unit);
    bool set;
    if (!x->program->exact || elements == 0) return;
    int64_t *to = fixed_target(x, unit, microbatch, 2, &set) +
                  share_of(x, unit)->vectors * (size_t)x->engine->plan->partition.shards;
    fix(x, unit, true, x->engine->gradients.units[unit].matrices, to, set);
}

/* ---- Reductions ---- */

/* What a reduction works on: all shards of vectors and matrices, in fp32 or fixed point. */
typedef struct Reduction {
    char *vectors, *matrices;
    size_t vectors_share, matrices_share, element; /* elements of a share; bytes of one */
    CommType type;
    bool one_share; /* only this rank's share is there */
} Reduction;

static Reduction reduction_of(const Execution *x, Action a) {
    bool exact = x->program->exact;
    Reduction r = {.vectors_share = share_of(x, a.unit)->vectors,
                   .matrices_share = share_of(x, a.unit)->matrices,
                   .element = exact ? sizeof(int64_t) : sizeof(float),
                   .type = exact ? COMM_I64 : COMM_F32};
    size_t shards = (size_t)x->engine->plan->partition.shards;
    if (a.microbatch < 0) {
        shards = sum_shards(x);
        r.vectors = x->engine->step.sums[a.unit];
        r.one_share = shards == 1 && x->engine->plan->partition.shards > 1;
    } else if (exact) {
        r.vectors = execution_buffer(x, BUFFER_FIXED, a.unit, a.microbatch);
    } else {
        if (r.vectors_share) r.vectors = execution_buffer(x, BUFFER_GRAD_VECTORS, a.unit, a.microbatch);
        if (r.matrices_share) r.matrices = execution_buffer(x, BUFFER_GRAD_MATRICES, a.unit, a.microbatch);
        return r;
    }
    r.matrices = r.vectors + shards * r.vectors_share * r.element;
    return r;
}

static char *own(const Execution *x, const Reduction *r, char *base, size_t share) {
    return r->one_share ? base : base + (size_t)x->engine->plan->partition.shard * share * r->element;
}

/* Each axis has workspaces of its own, used in turn: the operations wait for each other, not this rank for
 * them. */
static char *workspace(Engine *e, ActionKind kind) {
    bool second = kind == ACT_ALL_REDUCE && e->plan->partition.shards > 1;
    size_t turn = e->traffic.turn[second]++ % COMM_TURNS;
    return e->work.bucket + ((second ? COMM_TURNS : 0) + turn) * e->plan->memory.reduction;
}

/* Starts the sum of one part, vectors (0) or matrices (1). */
static void start(Execution *x, Action a, const Reduction *r, int part, void *space) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    size_t share = part ? r->matrices_share : r->vectors_share;
    CommHandle *handle = &e->traffic.reductions[2 * a.unit + part];
    execution_wait(e, handle);
    if (share == 0) return;
    char *base = part ? r->matrices : r->vectors;
    /* What microbatches left over the shards is added up before it goes over the replicas: these are two sums. */
    bool apart = x->program->sync == SYNC_REPLICA;
    ErrorCode code = a.kind == ACT_REDUCE_SCATTER
                         ? comm_sum_inner(e->comm, MESH_SHARDS, apart ? 0 : MESH_REPLICAS, r->type, base,
                                          (int64_t)share, space, handle, &err)
                         : comm_sum_outer(e->comm, apart ? 0 : MESH_SHARDS, MESH_REPLICAS, r->type, base,
                                          (int64_t)share, space, handle, &err);
    execution_must(e, code, &err);
}

void sharding_reduce(Execution *x, Action a) {
    Reduction r = reduction_of(x, a);
    void *space = workspace(x->engine, a.kind);
    start(x, a, &r, 0, space);
    start(x, a, &r, 1, space);
}

/* sums += the share that was reduced. */
static void add_share(Execution *x, const char *from, size_t share, size_t at, bool set, int unit) {
    Device *d = x->engine->device;
    int64_t n = (int64_t)share;
    if (n == 0) return;
    if (x->program->exact) {
        int64_t *sum = fixed_sums(x, unit) + at;
        const int64_t *parts[2] = {sum, (const int64_t *)(const void *)from};
        OP(d, OP_SUM_PARTS, sum_parts_i64, n, set ? 1 : 2, set ? parts + 1 : parts, sum);
    } else {
        float *sum = sum_vectors(x, unit) + at;
        const float *parts[2] = {sum, (const float *)(const void *)from};
        OP(d, OP_SUM_PARTS, sum_parts, n, set ? 1 : 2, set ? parts + 1 : parts, sum);
    }
}

static void to_float(Execution *x, int unit) {
    Engine *e = x->engine;
    Reduction r = reduction_of(x, (Action){.unit = unit, .microbatch = -1});
    if (r.vectors_share)
        OP(e->device, OP_FIXED_TO_FLOAT, fixed_to_float, (int64_t)r.vectors_share,
           (const int64_t *)(const void *)own(x, &r, r.vectors, r.vectors_share),
           e->step.owned[unit].vectors);
    if (r.matrices_share)
        OP(e->device, OP_FIXED_TO_FLOAT, fixed_to_float, (int64_t)r.matrices_share,
           (const int64_t *)(const void *)own(x, &r, r.matrices, r.matrices_share),
           e->step.owned[unit].matrices);
}

void sharding_reduced(Execution *x, Action a) {
    Engine *e = x->engine;
    for (int part = 0; part < 2; part++) execution_wait(e, &e->traffic.reductions[2 * a.unit + part]);
    if (a.microbatch < 0) {
        if (x->program->exact) to_float(x, a.unit);
        return;
    }
    Reduction r = reduction_of(x, a);
    bool set = !x->started[a.unit];
    x->started[a.unit] = 1;
    if (r.vectors_share)
        add_share(x, own(x, &r, r.vectors, r.vectors_share), r.vectors_share, 0, set, a.unit);
    if (r.matrices_share)
        add_share(x, own(x, &r, r.matrices, r.matrices_share), r.matrices_share, r.vectors_share, set,
                  a.unit);
}

static void exchange(Engine *e, int peer, const float *mine, size_t bytes) {
    Error err = {.message = ""};
    CommHandle receive, send;
    uint64_t key = comm_key(2, 0, e->steps);
    execution_must(e, comm_recv(e->comm, peer, key, e->work.tie_buffer, bytes, &receive, &err), &err);
    execution_must(e, comm_send(e->comm, peer, key, mine, bytes, &send, &err), &err);
    execution_wait(e, &receive);
    execution_wait(e, &send);
}

/* Both uses of a tied weight are summed after each has been reduced, embedding first, so that the order does
 * not depend on who holds what. */
void sharding_tie(Execution *x) {
    Engine *e = x->engine;
    const Partition *p = &e->plan->partition;
    int head = p->table->units - 1, tied = p->table->units;
    int64_t n = (int64_t)p->share[0].matrices;
    bool has_embedding = partition_runs(p, 0), has_head = partition_runs(p, head);
    if (!has_embedding || !has_head)
        exchange(e, partition_peer(p, has_embedding ? head : 0),
                 has_embedding ? e->step.owned[0].matrices : e->step.owned[tied].matrices,
                 (size_t)n * sizeof(float));
    const float *parts[2] = {has_embedding ? e->step.owned[0].matrices : e->work.tie_buffer,
                             has_head ? e->step.owned[tied].matrices : e->work.tie_buffer};
    OP(e->device, OP_SUM_PARTS, sum_parts, n, 2, parts, e->step.owned[0].matrices);
}
