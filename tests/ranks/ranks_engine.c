/* One configuration, one curve: trains a tiny model on a mesh of real ranks, in every way that this mesh
 * allows. For each way prints a line with what determines the bits, and a digest of losses, norms and final
 * weights.
 *
 *     mpirun -n 8 ranks_engine PP DP_REPLICATE DP_SHARD [quick [STEPS]]
 *     mpirun -n 8 ranks_engine PP DP_REPLICATE DP_SHARD tp TP CANONICAL [STEPS [KEY_HEADS]]
 *     mpirun -n 8 ranks_engine PP DP_REPLICATE DP_SHARD heads|keys CP TP SPANS CANONICAL [STEPS]
 *
 * Lines with equal first words must have equal second words, whatever mesh printed them
 * (tests/ranks/test_curve.sh compares). With `quick` each schedule runs once, and numerics, sums, dtypes and
 * tied weights alternate. With `tp` sums have CANONICAL splits over TP ranks, and biases, head norms,
 * recomputation and schedules alternate. With `heads` (all-to-all) and `keys` (all-gather) tokens also have
 * SPANS exact chunks over CP ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/rng.h"
#include "base/text.h"
#include "comm/comm.h"
#include "model/families/family.h"
#include "engine/engine.h"
#include "support/allocations.h"
#include "support/optimizers.h"
#include "support/tiny_model.h"

enum { CONTEXT = 16, TOKENS = 2 * CONTEXT, STEP = 8, VOCAB = 61, LAYERS = 6 };

typedef struct Case {
    const char *schedule;    /* NULL: one pipeline rank; SHUFFLED: a file of orders */
    bool tied, exact, mixed; /* mixed: several optimizers, with states in several dtypes */
    Dtype compute;
    Recompute recompute;
    GradientSync sync;
    Reshard reshard;
    bool split_backward, uneven; /* uneven stages */
    bool normed;                 /* queries and keys have norms */
    bool experts;                /* in most blocks, with a balance loss */
    double clip_norm;
} Case;

typedef struct World {
    Comm *comm;
    Mesh mesh;
    int rank, steps, canonical, exact_chunks, key_heads; /* key_heads 0: enough for all splits */
    CpComm method;
} World;

static const char SHUFFLED[] = "shuffled";

static void must(World *w, ErrorCode code, const Error *err) {
    if (code == OK) return;
    fprintf(stderr, "ranks_engine: %s\n", err->message);
    if (w->comm) comm_fail(w->comm, err);
    exit(1);
}

/* With enough heads for four splits, if sums have splits. */
static ModelConfig shape(const World *w, const Case *c) {
    ModelConfig m = tiny_model(VOCAB, LAYERS, CONTEXT);
    m.tie_word_embeddings = c->tied;
    m.attention_bias = !c->normed;
    if (w->canonical > 1 || w->exact_chunks > 1)
        m.num_attention_heads = 8, m.num_key_value_heads = 4, m.mlp_bias = !c->normed;
    if (w->key_heads > 0) m.num_key_value_heads = w->key_heads, m.head_dim = 8, m.intermediate_size = 32;
    if (c->normed) m.family = &family_qwen3;
    if (!c->experts) return m;
    m.family = &family_qwen3_moe, m.attention_bias = false;
    m.num_experts = 7, m.num_experts_per_tok = 2, m.moe_intermediate_size = 12;
    m.dense_layers = (LayerSet){4, 2}, m.norm_topk_prob = true;
    m.output_router_logits = true, m.router_aux_loss_coef = 0.1;
    return m;
}

/* Microbatch `index` of a step: several documents, and different numbers of ignored targets; one microbatch
 * in eight has no target. */
static void fill_batch(Batch *b, int64_t index) {
    b->tokens = TOKENS, b->valid = 0;
    for (int t = 0; t < TOKENS; t++) {
        uint64_t r = rng_u64(99, (uint64_t)index * TOKENS + (uint64_t)t);
        bool ignored = index % 8 == 5 || (r >> 20) % (uint64_t)(2 + index % 5) == 0;
        int start = t < CONTEXT ? 0 : t < CONTEXT + 7 ? CONTEXT : CONTEXT + 7;
        b->inputs[t] = (int32_t)(r % VOCAB);
        b->targets[t] = ignored ? -1 : (int32_t)((r >> 32) % 7);
        b->first_key[t] = start;
        b->positions[t] = t - start;
        b->valid += b->targets[t] >= 0;
    }
}

static Batch *batches_new(int count) {
    Batch *b = mem_alloc_array((size_t)count, sizeof *b);
    for (int m = 0; m < count; m++) {
        int32_t **arrays[] = {&b[m].inputs, &b[m].targets, &b[m].positions, &b[m].first_key};
        for (int i = 0; i < 4; i++) *arrays[i] = mem_alloc_array(TOKENS, sizeof(int32_t));
    }
    return b;
}

static void batches_free(Batch *b, int count) {
    for (int m = 0; m < count; m++) {
        int32_t *arrays[] = {b[m].inputs, b[m].targets, b[m].positions, b[m].first_key};
        for (int i = 0; i < 4; i++) free(arrays[i]);
    }
    free(b);
}

/* Orders as a user may write them: all forwards, then all backwards, with a different order on each rank, so
 * that activations are not received in the order in which they are sent. */
static ErrorCode shuffled(Schedule *s, int ranks, int microbatches, Error *err) {
    Text csv = {0};
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < microbatches; i++) text_printf(&csv, "%dF%d,", r, (5 * i + 3 * r) % microbatches);
        for (int i = 0; i < microbatches; i++)
            text_printf(&csv, "%dB%d%s", r, (3 * (microbatches - i) + r) % microbatches,
                        i + 1 < microbatches ? "," : "\n");
    }
    ErrorCode code = schedule_parse_csv(s, SHUFFLED, csv.data, csv.length, err);
    text_free(&csv);
    return code;
}

static ErrorCode schedule_of(const Case *c, Schedule *s, int ranks, int microbatches, Error *err) {
    ScheduleName name;
    if (c->schedule == SHUFFLED) return shuffled(s, ranks, microbatches, err);
    if (!schedule_find(c->schedule, &name)) return error_set(err, ERR_USAGE, "no schedule %s", c->schedule);
    return schedule_make(s, name, ranks, microbatches, schedule_default_stages_per_rank(name), err);
}

static void make_layout(World *w, const Case *c, Layout *l, int microbatches) {
    Error err = {.message = ""};
    int units = LAYERS + 2;
    ModelConfig model = shape(w, c);
    if (!c->schedule) {
        must(w, layout_single(l, &model, microbatches, c->split_backward, &err), &err);
        l->mesh = w->mesh;
        return;
    }
    *l = (Layout){.mesh = w->mesh, .microbatches = microbatches};
    Schedule *schedule = &l->schedule;
    Stages *stages = &l->stages;
    must(w, schedule_of(c, schedule, w->mesh.degree[AXIS_PP], microbatches, &err), &err);
    must(w, schedule_add_transfers(schedule, &err), &err);
    size_t n = (size_t)schedule->stages;
    *stages =
        (Stages){schedule->stages, mem_alloc_array(n + 1, sizeof(int)), mem_alloc_array(n, sizeof(int))};
    for (int i = 0; i <= schedule->stages; i++) {
        stages->first[i] = units * i / schedule->stages;
        if (c->uneven && i > 0 && i < schedule->stages)
            stages->first[i] -= i % 2 && stages->first[i] - 1 > stages->first[i - 1];
    }
    memcpy(stages->rank, schedule->rank_of_stage, n * sizeof(int));
}

static void add_floats(void *into, const void *from) {
    const uint32_t *f = from;
    uint32_t *t = into;
    for (uint32_t i = 0; i < t[0]; i++) t[1 + i] |= f[1 + i];
}

/* A digest of the unsharded model's weights, with each element from the rank that counts it. */
static uint64_t digest_weights(World *w, Engine *e) {
    const ParamTable *own = &engine_model(e)->table, *t;
    ParamTable whole;
    Error err = {.message = ""};
    must(w, param_table_build(&whole, &engine_plan(e)->spec.model, &err), &err);
    t = &whole;
    uint32_t *all = mem_alloc_array((size_t)t->elements + 1, sizeof *all);
    size_t at = 1;
    all[0] = (uint32_t)t->elements;
    for (int i = 0; i < t->count; i++) {
        ParamSegment p = partition_segment(&engine_plan(e)->partition, &own->params[i]);
        bool counts = partition_counts(&engine_plan(e)->partition, &own->params[i]);
        SegmentRun run;
        for (int64_t k = 0; counts && k < p.count; k += run.count) {
            run = segment_run(&p, k);
            device_fetch(engine_device(e), all + at + run.element, engine_master(e, p) + k,
                         (size_t)run.count * sizeof(float));
        }
        at += (size_t)t->params[i].count;
    }
    if (w->comm) must(w, comm_combine(w->comm, all, at * sizeof *all, add_floats, &err), &err);
    uint64_t digest = XXH3_64bits(all, at * sizeof *all);
    free(all);
    param_table_free(&whole);
    return digest;
}

/* A step's cost on the host does not depend on the mesh: at most two waits for results, and no allocations
 * after the first steps. */
static void check_costs(World *w, int step, long long waits, int allocations) {
    Error err = {.message = ""};
    if (waits > 2)
        error_set(&err, ERR_INTERNAL, "step %d waited %lld times for the device, expected 2", step, waits);
    if (step > 1 && allocations > 0)
        error_set(&err, ERR_INTERNAL, "step %d allocated %d times, expected none", step, allocations);
    must(w, err.code, &err);
}

static uint64_t train(World *w, const Case *c, double *loss, double *norm) {
    Device d;
    RankPlan plan;
    Engine *e;
    Layout layout;
    Error err = {.message = ""};
    StepResult r = {0};
    XXH3_state_t *hash = XXH3_createState();
    int dp = mesh_dp_degree(&w->mesh), own = STEP / dp, first = own * mesh_dp_rank(&w->mesh, w->rank);
    make_layout(w, c, &layout, own);
    must(w, device_open_cpu(&d, NULL, 1, &err), &err);
    OptimizerGroup groups[3];
    OptimizerOptions mixed = mixed_optimizer(groups);
    /* Matrices that tp shards stay whole nowhere. */
    if (w->canonical > 1) groups[0].whole = groups[2].whole = 0;
    RankSpec spec = {.model = shape(w, c),
                     .splits = w->canonical,
                     .exact_chunks = w->exact_chunks,
                     .context = w->method,
                     .compute = c->compute,
                     .recompute = c->recompute,
                     .tokens = TOKENS,
                     .positions = CONTEXT,
                     .loss_rows = 20,
                     .defer_head = c->split_backward,
                     .exact = c->exact,
                     .sync = c->sync,
                     .reshard = c->reshard,
                     .optimizer = c->mixed ? &mixed : &usual_optimizer};
    must(w, rank_plan(&plan, &spec, &layout, w->rank, &d, &err), &err);
    must(w, engine_open(&e, &plan, &d, w->comm, &err), &err);
    if (w->comm) comm_set_device(w->comm, &d);
    engine_initialise(e, INIT_NORMAL, 0.3, 7);
    Batch *batches = batches_new(own);
    XXH3_64bits_reset(hash);
    for (int step = 0; step < w->steps; step++) {
        StepOptions options = {
            .lr_factor = 2e-3, .clip = 0.1, .clip_norm = c->clip_norm > 0 ? c->clip_norm : 2};
        for (int m = 0; m < own; m++) fill_batch(&batches[m], (int64_t)step * STEP + first + m);
        long long waits = d.waits[WAIT_RESULT];
        int allocations = allocations_own();
        engine_step(e, batches, &options, &r);
        check_costs(w, step, d.waits[WAIT_RESULT] - waits, d.deferred ? 0 : allocations_own() - allocations);
        double figures[] = {r.loss,    r.grad_norm,         r.clip_coefficient,    (double)r.valid,
                            r.balance, r.experts.imbalance, (double)r.experts.dead};
        if (!c->experts) figures[5] = 0; /* NaN */
        XXH3_64bits_update(hash, figures, sizeof figures);
        if (step == 0) *loss = -r.loss;
    }
    *loss += r.loss, *norm = r.grad_norm;
    uint64_t weights = digest_weights(w, e);
    XXH3_64bits_update(hash, &weights, sizeof weights);
    uint64_t digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    batches_free(batches, own);
    engine_close(e);
    rank_plan_free(&plan);
    device_close(&d);
    layout_free(&layout);
    return digest;
}

/* When gradients are reduced, as far as it changes the sums. */
static GradientSync effective_sync(const World *w, const Case *c) {
    int shards = mesh_size(&w->mesh, MESH_SHARDS), replicas = mesh_size(&w->mesh, MESH_REPLICAS);
    if (shards * replicas == 1 || c->exact) return SYNC_STEP;
    if (c->sync != SYNC_REPLICA) return c->sync;
    return shards == 1 ? SYNC_STEP : replicas == 1 ? SYNC_MICROBATCH : SYNC_REPLICA;
}

/* What determines the bits: with exact numerics nothing of the mesh; otherwise the degrees of data and
 * context parallelism and when they reduce. */
static void report(World *w, const Case *c) {
    static const char *const syncs[] = {"step", "microbatch", "replica"};
    double change, norm;
    Text key = {0};
    int dp = mesh_dp_degree(&w->mesh), shards = mesh_size(&w->mesh, MESH_SHARDS);
    uint64_t digest = train(w, c, &change, &norm);
    GradientSync sync = effective_sync(w, c);
    text_printf(&key, "%s-%s-%s-%s-%s-c%d-p%g", c->exact ? "exact" : "fast", c->tied ? "tied" : "untied",
                c->mixed ? "mixed" : "adamw", dtype_name(c->compute),
                c->experts  ? "experts"
                : c->normed ? "normed"
                            : "plain",
                w->canonical, c->clip_norm > 0 ? c->clip_norm : 2);
    if (w->key_heads > 0) text_printf(&key, "-g%d", w->key_heads);
    if (c->exact && w->exact_chunks > 1) text_printf(&key, "-s%d", w->exact_chunks);
    if (!c->exact)
        text_printf(&key, "-dp%d-cp%d%s-%s", dp, w->mesh.degree[AXIS_CP],
                    w->mesh.degree[AXIS_CP] > 1 && w->method == CP_COMM_ALL_GATHER ? "keys" : "",
                    syncs[sync]);
    if (sync == SYNC_REPLICA) text_printf(&key, "%d", shards);
    if (w->rank == 0) {
        printf(
            "%s %016llx loss %+.3f norm %.3f cp %d%s tp %d pp %d %s replicate %d shard %d sync %s reshard %d "
            "recompute "
            "%d split %d\n",
            key.data, (unsigned long long)digest, change, norm, w->mesh.degree[AXIS_CP],
            w->mesh.degree[AXIS_CP] > 1 && w->method == CP_COMM_ALL_GATHER ? " by keys" : "",
            mesh_degree(&w->mesh, AXIS_TP), w->mesh.degree[AXIS_PP], c->schedule ? c->schedule : "-",
            w->mesh.degree[AXIS_DP_REPLICATE], shards, syncs[c->sync], c->reshard, c->recompute,
            c->split_backward || c->uneven);
        fflush(stdout);
    }
    text_free(&key);
}

static void each_sync(World *w, Case c) {
    int shards = w->mesh.degree[AXIS_DP_SHARD], replicas = w->mesh.degree[AXIS_DP_REPLICATE];
    report(w, &c);
    if (shards * replicas > 1) c.sync = SYNC_MICROBATCH, c.reshard = RESHARD_NEVER, report(w, &c);
    if (shards > 1 && replicas > 1) c.sync = SYNC_REPLICA, c.reshard = RESHARD_ALWAYS, report(w, &c);
}

static const double norms[] = {1, 3, INFINITY};

static void one_pipeline_rank(World *w) {
    for (int tied = 0; tied <= 1; tied++)
        for (int exact = 0; exact <= 1; exact++) each_sync(w, (Case){.tied = tied, .exact = exact});
    report(w, &(Case){.compute = DTYPE_BF16, .tied = true});
    report(w, &(Case){.compute = DTYPE_BF16, .tied = true, .exact = true});
    report(w, &(Case){.compute = DTYPE_BF16, .exact = true, .reshard = RESHARD_NEVER});
    report(w, &(Case){.tied = true, .mixed = true});
    report(w, &(Case){.exact = true, .mixed = true});
    report(w, &(Case){.recompute = RECOMPUTE_FULL, .split_backward = true});
    report(w, &(Case){.exact = true, .recompute = RECOMPUTE_SELECTIVE, .split_backward = true});
    for (int i = 0; i < 3; i++) report(w, &(Case){.exact = true, .clip_norm = norms[i]});
    for (int exact = 0; exact < 2; exact++) each_sync(w, (Case){.experts = true, .exact = exact});
    report(w, &(Case){.experts = true, .exact = true, .compute = DTYPE_BF16, .split_backward = true});
}

/* Whether this mesh, with stages for the model's layers, allows a named schedule. */
static bool fits(const World *w, ScheduleName name) {
    Schedule s = {0};
    Error err = {.message = ""};
    int own = STEP / mesh_dp_degree(&w->mesh), each = schedule_default_stages_per_rank(name);
    bool possible = schedule_make(&s, name, w->mesh.degree[AXIS_PP], own, each, &err) == OK;
    bool yes = possible && s.stages <= LAYERS + 2;
    schedule_free(&s);
    return yes;
}

static void one_schedule(World *w, ScheduleName name) {
    for (int tied = 0, turn = 2 * (int)name; tied <= 1; tied++, turn++) {
        Case c = {.schedule = schedule_name(name), .tied = tied, .uneven = turn % 2};
        c.exact = name == PIPE_LOOPED_BFS || turn % 3 == 2; /* its sums have another order */
        c.recompute = (Recompute)(turn % 3), c.reshard = (Reshard)(turn % 3);
        each_sync(w, c);
        c.compute = DTYPE_BF16, c.mixed = true;
        if (turn % 2) report(w, &c);
    }
    report(w, &(Case){.schedule = schedule_name(name), .exact = true, .clip_norm = norms[(int)name % 3]});
    report(w, &(Case){.schedule = schedule_name(name),
                      .exact = true,
                      .experts = true,
                      .recompute = (Recompute)((int)name % 3)});
}

static void pipelines(World *w) {
    for (int name = 0; name < PIPE_NAMES; name++)
        if (fits(w, (ScheduleName)name)) one_schedule(w, (ScheduleName)name);
    each_sync(w, (Case){.schedule = SHUFFLED, .exact = true});
    each_sync(w, (Case){.schedule = SHUFFLED,
                        .exact = true,
                        .tied = true,
                        .reshard = RESHARD_ALWAYS,
                        .recompute = RECOMPUTE_FULL});
}

/* Cases that alternate in a quick run. Each also runs without a pipeline, on some mesh of the same degree. */
static const Case turns[] = {
    {.tied = true, .compute = DTYPE_BF16, .sync = SYNC_MICROBATCH, .reshard = RESHARD_ALWAYS},
    {.tied = true, .exact = true, .mixed = true, .sync = SYNC_MICROBATCH, .recompute = RECOMPUTE_FULL},
    {.sync = SYNC_REPLICA, .recompute = RECOMPUTE_SELECTIVE, .reshard = RESHARD_NEVER},
    {.exact = true, .mixed = true, .compute = DTYPE_BF16, .sync = SYNC_REPLICA},
    {.tied = true, .mixed = true, .recompute = RECOMPUTE_FULL, .reshard = RESHARD_ALWAYS},
    {.exact = true, .sync = SYNC_STEP, .reshard = RESHARD_ALWAYS},
    {.experts = true, .recompute = RECOMPUTE_FULL, .reshard = RESHARD_ALWAYS},
    {.experts = true, .exact = true, .tied = true, .mixed = true, .sync = SYNC_MICROBATCH}};
enum { TURNS = sizeof turns / sizeof *turns };

/* Many ranks on few cores are slow, so they run only every second case and schedule, different ones on
 * another mesh. */
static void quick(World *w) {
    int dp = mesh_dp_degree(&w->mesh), every = w->mesh.world > 2 ? 2 : 1,
        first = w->mesh.world > 2 && dp > 2 ? 1 : 0;
    int turn = dp - 1;
    if (w->mesh.degree[AXIS_PP] == 1) {
        for (int i = first; i < TURNS; i += every) report(w, &turns[i]);
        return;
    }
    for (int name = first; name < PIPE_NAMES; name += every) {
        if (!fits(w, (ScheduleName)name)) continue;
        while (name == PIPE_LOOPED_BFS && !turns[turn % TURNS].exact)
            turn++; /* its sums have another order */
        Case c = turns[turn++ % TURNS];
        c.schedule = schedule_name((ScheduleName)name), c.uneven = turn % 2;
        report(w, &c);
    }
    report(w, &(Case){.schedule = SHUFFLED, .exact = true, .sync = SYNC_MICROBATCH});
}

/* Cases for tp: dgrad and wgrad separate, full recomputation, fixed point, reduction per microbatch, biases
 * and norms, tied weights. */
static const Case shared[] = {
    {.recompute = RECOMPUTE_SELECTIVE},
    {.tied = true, .compute = DTYPE_BF16, .recompute = RECOMPUTE_FULL},
    {.normed = true, .split_backward = true, .recompute = RECOMPUTE_FULL, .sync = SYNC_MICROBATCH},
    {.normed = true, .tied = true, .compute = DTYPE_BF16, .sync = SYNC_REPLICA},
    {.exact = true, .mixed = true, .recompute = RECOMPUTE_SELECTIVE, .sync = SYNC_MICROBATCH},
    {.exact = true, .normed = true, .split_backward = true, .reshard = RESHARD_ALWAYS},
};
enum { SHARED = sizeof shared / sizeof *shared };

/* Cases for cp: mostly in fixed point, where the number of ranks must not show. */
static const Case cp_cases[] = {
    {.exact = true, .tied = true, .compute = DTYPE_BF16, .recompute = RECOMPUTE_FULL},
    {.exact = true, .mixed = true, .recompute = RECOMPUTE_SELECTIVE, .sync = SYNC_MICROBATCH},
    {.exact = true, .normed = true, .split_backward = true, .reshard = RESHARD_ALWAYS},
    {.exact = true, .normed = true, .tied = true, .recompute = RECOMPUTE_SELECTIVE},
    {.normed = true, .split_backward = true, .recompute = RECOMPUTE_FULL, .sync = SYNC_MICROBATCH},
    {.tied = true, .compute = DTYPE_BF16},
};
enum { CP_CASES = sizeof cp_cases / sizeof *cp_cases };

static void each_of(World *w, const Case *cases, int count) {
    static const ScheduleName names[] = {PIPE_1F1B,  PIPE_ZB_H1, PIPE_INTERLEAVED_1F1B,
                                         PIPE_GPIPE, PIPE_ZBV,   PIPE_ZB_H2};
    for (int i = 0; i < count; i++) {
        Case c = cases[i];
        if (w->mesh.degree[AXIS_PP] > 1) c.schedule = schedule_name(fits(w, names[i]) ? names[i] : PIPE_1F1B);
        if (mesh_size(&w->mesh, MESH_SHARDS | MESH_REPLICAS) == 1) c.sync = SYNC_STEP;
        report(w, &c);
    }
}

int main(int argc, char **argv) {
    World w = {.canonical = 1};
    Error err = {.message = ""};
    MeshOptions options = {1, 1, 1, 1, 1, 1, 0, 0};
    bool shares = argc > 6 && strcmp(argv[4], "tp") == 0, keys = argc > 8 && strcmp(argv[4], "keys") == 0,
         deals = keys || (argc > 8 && strcmp(argv[4], "heads") == 0);
    if (argc >= 4)
        options.pp = atoi(argv[1]), options.dp_replicate = atoi(argv[2]), options.dp_shard = atoi(argv[3]);
    if (deals) {
        options.cp = atoi(argv[5]), options.tp = atoi(argv[6]);
        w.method = keys ? CP_COMM_ALL_GATHER : CP_COMM_ALL_TO_ALL;
        w.exact_chunks = atoi(argv[7]), w.canonical = atoi(argv[8]), argc -= 4, argv += 4;
    }
    if (shares) options.tp = atoi(argv[5]), w.canonical = atoi(argv[6]), argc -= 2, argv += 2;
    must(&w, comm_open(&w.comm, &err), &err);
    w.rank = comm_rank(w.comm);
    must(&w, mesh_build(&w.mesh, &options, comm_size(w.comm), &err), &err);
    if (shares && argc > 6) w.key_heads = atoi(argv[6]);
    ModelConfig model = shape(&w, &(Case){.exact = true});
    axes_lay_copies(&model, &w.mesh);
    must(&w, comm_set_mesh(w.comm, &w.mesh, &err), &err);
    w.steps = argc > 5 ? atoi(argv[5]) : 100;
    if (shares) {
        each_of(&w, shared, SHARED);
    } else if (deals) {
        each_of(&w, cp_cases, CP_CASES);
    } else if (argc > 4) {
        quick(&w);
    } else if (w.mesh.degree[AXIS_PP] > 1) {
        pipelines(&w);
    } else {
        one_pipeline_rank(&w);
    }
    comm_close(w.comm);
    return 0;
}
