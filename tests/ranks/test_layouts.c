/* Results that do not depend on the layout of ranks: a tiny model on meshes of threads
 * (tests/support/ranks.h).
 *
 * DDP, FSDP and HSDP have the same bits at one data-parallel degree, whatever that is. Each rank sends
 * exactly the planned bytes on each axis. The count of valid targets is the same whether the previous step's
 * record carries it or not. Every family runs on every axis with the figures of one rank, or is refused by
 * name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "model/families/family.h"
#include "support/optimizers.h"
#include "support/ranks.h"
#include "support/tiny_model.h"

enum { CONTEXT = 16, VOCAB = 37, LAYERS = 2, OWN = 2 /* microbatches per rank */, STEPS = 4, MOST = 12 };

typedef struct Shape {
    int pp, replicas, shards;
    GradientSync sync;
    bool exact, tied, apart; /* apart: the count of valid targets takes messages of its own */
    bool whole;              /* an optimizer group asks for whole matrices */
    bool muon;               /* the optimizer is Muon */
} Shape;

typedef struct Run {
    const Shape *shape;
    int tensors, splits;  /* ranks of tp; splits of the sums over these */
    int cp, exact_chunks; /* the same for cp */
    CpComm method;
    int experts;              /* ranks of ep, for a model with experts; 0: none */
    int etp;                  /* 1: experts are whole, and so are sums over their width; 0 */
    bool adapted;             /* all matrices of blocks have adapters */
    bool half;                /* Muon's states are bf16 */
    bool narrow;              /* passes compute in bf16 */
    bool split_backward;      /* dgrad and wgrad run separately */
    const ModelConfig *model; /* NULL: tiny_model */
    int own;                  /* microbatches per rank; 0: OWN */
    double figures[MOST][STEPS]
                  [6]; /* of each rank: loss, norm, valid targets, z-loss, variance of the noise, losses of
                          MTP heads */
} Run;

static int own_microbatches(const Run *run) { return run->own > 0 ? run->own : OWN; }

/* A rank that fails must not leave the others waiting. */
static void must(Comm *c, bool holds, const char *what, Error *err) {
    if (holds) return;
    error_set(err, ERR_INTERNAL, "expected: %s: %s", what, err->message);
    comm_fail(c, err);
    abort();
}
#define MUST(condition) must(c, condition, #condition, &err)

/* ---- one rank ---- */

typedef struct Data {
    int32_t inputs[CONTEXT], targets[CONTEXT], positions[CONTEXT], first_key[CONTEXT];
} Data;

/* Microbatch `index` of the run; some targets are ignored, in one of five all. */
static Batch fill(Data *d, int64_t index) {
    Batch b = {.tokens = CONTEXT,
               .inputs = d->inputs,
               .targets = d->targets,
               .positions = d->positions,
               .first_key = d->first_key};
    for (int t = 0; t < CONTEXT; t++) {
        uint64_t r = rng_u64(5, (uint64_t)(index * CONTEXT + t));
        d->inputs[t] = (int32_t)(r % VOCAB), d->positions[t] = t, d->first_key[t] = 0;
        d->targets[t] = index % 5 == 3 || (r >> 20) % 3 == 0 ? -1 : (int32_t)((r >> 32) % 7);
        b.valid += d->targets[t] >= 0;
    }
    return b;
}

static void make_layout(Comm *c, const Run *run, const ModelConfig *m, Layout *l) {
    const Shape *s = run->shape;
    Error err = {.message = ""};
    MeshOptions o = {
        s->pp, s->replicas, s->shards, run->cp, run->tensors, run->experts > 0 ? run->experts : 1, run->etp,
        0};
    int own = own_microbatches(run);
    if (s->pp == 1) MUST(layout_single(l, m, own, run->split_backward, &err) == OK);
    if (s->pp > 1) {
        *l = (Layout){.microbatches = own};
        MUST(schedule_make(&l->schedule, run->split_backward ? PIPE_ZB_H1 : PIPE_1F1B, s->pp, own, 1, &err) ==
             OK);
        MUST(schedule_add_transfers(&l->schedule, &err) == OK);
        l->stages = (Stages){s->pp, mem_alloc_array((size_t)s->pp + 1, sizeof(int)),
                             mem_alloc_array((size_t)s->pp, sizeof(int))};
        for (int i = 0; i <= s->pp; i++) l->stages.first[i] = (LAYERS + 2) * i / s->pp;
        for (int i = 0; i < s->pp; i++) l->stages.rank[i] = i;
    }
    MUST(mesh_build(&l->mesh, &o, comm_size(c), &err) == OK);
    axes_lay_copies(m, &l->mesh);
}

/* Sent bytes equal planned bytes, and are counted for their purpose, also where cp's ranks are those of
 * MESH_SHARDS. */
static void check_traffic(Comm *c, const RankPlan *p) {
    Error err = {.message = ""};
    ProgramTraffic t = rank_traffic(p);
    /* The number of dispatched rows depends on the tokens: at most all rows, both ways. */
    uint64_t dispatched = (uint64_t)comm_traffic(c, MESH_EXPERTS).bytes,
             shards =
                 (uint64_t)(comm_traffic(c, MESH_SHARDS).bytes + comm_traffic(c, MESH_EXPERT_SHARDS).bytes);
    MUST((dispatched > 0) == (t.experts > 0) && dispatched <= t.experts * 2 * (uint64_t)p->partition.experts);
    MUST((uint64_t)comm_point_traffic(c).bytes == t.pipeline);
    MUST((uint64_t)comm_traffic(c, MESH_REPLICAS).bytes == t.replicas);
    MUST(shards == t.parameters + t.gradients);
    MUST((uint64_t)comm_traffic(c, MESH_CONTEXT).bytes == t.context);
    uint64_t copies = (uint64_t)comm_traffic(c, MESH_KEY_COPIES).bytes;
    MUST((uint64_t)comm_traffic(c, MESH_TENSOR).bytes + copies == t.tensor);
    MUST((copies > 0) == (p->partition.copies > 1));
}

/* A matrix that must stay whole is here in full or not at all; and not all of them are on one rank. */
static void check_whole(Comm *c, const RankPlan *p) {
    Error err = {.message = ""};
    int64_t owners = 0, here = 0;
    for (int i = 0; i < p->model.table.count; i++) {
        const Param *param = &p->model.table.params[i];
        if (!param_stays_whole(&p->groups, i, param) || !partition_holds(&p->partition, param->unit))
            continue;
        int64_t count = partition_segment(&p->partition, param).count;
        MUST(count == 0 || count == param->count);
        const FlatShard *shard = &p->partition.flat_shard[param->unit][param->flat];
        MUST((count > 0) == (!param->remote && partition_owner(&p->partition, param) == shard->shard));
        here = 1;
        owners += count > 0;
    }
    owners = owners > 0;
    MUST(comm_combine(c, &owners, sizeof owners, comm_add_int64, &err) == OK);
    MUST(!here || owners > p->partition.replicas || p->partition.shards == 1);
}

static void train(Comm *c, Engine *e, const RankPlan *plan, Run *run) {
    Data data[2][OWN];
    Batch both[2][OWN];
    const Shape *s = run->shape;
    int dp = s->replicas * s->shards, own = own_microbatches(run),
        first = own * mesh_dp_rank(&plan->partition.mesh, comm_rank(c));
    for (int step = 0; step <= STEPS; step++) {
        Batch *next = both[step % 2], *now = both[1 - step % 2];
        for (int m = 0; m < own; m++)
            next[m] = fill(&data[step % 2][m], (int64_t)step * own * dp + first + m);
        if (step == 0) continue;
        StepOptions o = {.lr_factor = 1e-2, .clip = 0.1, .clip_norm = 2};
        StepResult r;
        o.next = s->apart || step == STEPS ? NULL : next;
        comm_reset_traffic(c);
        engine_step(e, now, &o, &r);
        check_traffic(c, plan);
        double *to = run->figures[comm_rank(c)][step - 1];
        to[0] = r.loss, to[1] = r.grad_norm, to[2] = (double)r.valid, to[3] = r.z_loss;
        to[4] = r.noise.variance, to[5] = 0;
        for (int k = 0; k < MTP_DEPTH_MAX; k++) to[5] += r.mtp[k];
    }
}

static void body(Comm *c, void *context) {
    Run *run = context;
    const Shape *s = run->shape;
    Device d;
    Layout l;
    RankPlan plan;
    Engine *e;
    Error err = {.message = ""};
    bool shared = run->tensors > 1 || run->cp > 1 || run->exact_chunks > 1 || run->experts > 0 ||
                  run->model || run->adapted;
    OptimizerGroup group = group_of("proj|embed|lm_head");
    OptimizerOptions whole = usual_optimizer;
    group.whole = 1, whole.groups = (ObjectList){1, (char *)&group};
    OptimizerOptions muon = usual_optimizer;
    muon.settings.kind = OPTIMIZER_MUON, muon.settings.nesterov = 1;
    if (run->half) muon.settings.states = DTYPE_BF16;
    RankSpec spec = {.model = tiny_model(VOCAB, LAYERS, CONTEXT),
                     .tokens = CONTEXT,
                     .positions = CONTEXT,
                     .loss_rows = shared ? 10 : CONTEXT, /* the last chunk is shorter */
                     .splits = run->splits,
                     .expert_splits = run->etp,
                     .compute = run->narrow ? DTYPE_BF16 : DTYPE_F32,
                     .mtp_loss_weight = 0.5,
                     .exact_chunks = run->exact_chunks,
                     .context = run->method,
                     .recompute = run->split_backward ? RECOMPUTE_SELECTIVE
                                  : shared            ? RECOMPUTE_FULL
                                                      : RECOMPUTE_NONE,
                     .z_loss = 1e-2,
                     .noise = !shared,
                     .optimizer = s->muon    ? &muon
                                  : s->whole ? &whole
                                             : &usual_optimizer,
                     .exact = s->exact,
                     .sync = s->sync};
    if (run->adapted) spec.adapters = (AdapterSpec){.rank = 3, .scale = 2, .match = ""};
    spec.model.tie_word_embeddings = s->tied;
    if (run->model)
        spec.model = *run->model;
    else if (run->experts > 0)
        spec.model.family = &family_qwen3_moe, spec.model.num_experts = 8, spec.model.num_experts_per_tok = 3,
        spec.model.moe_intermediate_size = run->splits > 1 ? 12 : 9, spec.model.norm_topk_prob = true,
        spec.model.output_router_logits = true, spec.model.router_aux_loss_coef = 0.1;
    if (run->experts > 0 && !s->exact) spec.recompute = RECOMPUTE_NONE;
    make_layout(c, run, &spec.model, &l);
    MUST(device_open_cpu(&d, NULL, 1, &err) == OK);
    comm_set_device(c, &d);
    MUST(comm_set_mesh(c, &l.mesh, &err) == OK);
    MUST(rank_plan(&plan, &spec, &l, comm_rank(c), &d, &err) == OK);
    if (s->whole || s->muon) check_whole(c, &plan);
    MUST(engine_open(&e, &plan, &d, c, &err) == OK);
    engine_initialise(e, INIT_NORMAL, 0.3, 7);
    train(c, e, &plan, run);
    engine_close(e);
    rank_plan_free(&plan);
    layout_free(&l);
    comm_set_device(c, NULL);
    device_close(&d);
}

/* ---- running all ranks ---- */

static void run_all(Run *run) {
    const Shape *s = run->shape;
    int ranks = s->pp * s->replicas * s->shards * run->tensors * run->cp;
    ranks_run(ranks, 11, body, run);
    for (int r = 1; r < ranks; r++)
        assert_memory_equal(run->figures[r], run->figures[0], sizeof run->figures[0]);
    for (int i = 0; i < STEPS; i++) {
        const double *f = run->figures[0][i];
        if (!(f[0] > 0 && f[2] > 0 && f[3] > 0))
            fail_msg("step %d of %s: loss %g, norm %g, %g targets, z-loss %g", i,
                     run->model ? model_family(run->model)->model_type : "the tiny model", f[0], f[1], f[2],
                     f[3]);
    }
}

static void run_by(CpComm method, const Shape *s, int cp, int exact_chunks, int tensors, Run *run) {
    *run = (Run){.shape = s,
                 .tensors = tensors,
                 .splits = tensors,
                 .cp = cp,
                 .exact_chunks = exact_chunks,
                 .method = method,
                 .experts = run->experts};
    run_all(run);
}

static void run_split(const Shape *s, int cp, int exact_chunks, int tensors, Run *run) {
    run_by(CP_COMM_ALL_TO_ALL, s, cp, exact_chunks, tensors, run);
}

static void run_shared(const Shape *s, int tensors, Run *run) { run_split(s, 1, 0, tensors, run); }
static void run_shape(const Shape *s, Run *run) { run_shared(s, 1, run); }

static void expect_like(const Run *one, const Shape *s) {
    static Run other;
    run_shape(s, &other);
    assert_memory_equal(one->figures[0], other.figures[0], sizeof one->figures[0]);
}

static void expect_equal(const Shape *a, const Shape *b) {
    static Run one;
    run_shape(a, &one);
    expect_like(&one, b);
}

static void test_degrees(void **state) {
    static const int degrees[] = {3, 5, 6, 7, 9, 10, 12};
    (void)state;
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        static Run first;
        Shape ddp = {1,     degrees[i], 1,    i % 2 ? SYNC_MICROBATCH : SYNC_STEP, false, i % 3 == 0,
                     false, false,      false};
        run_shape(&ddp, &first);
        for (int shards = 2; shards <= degrees[i]; shards++) {
            Shape s = ddp;
            if (degrees[i] % shards) continue;
            s.shards = shards, s.replicas = degrees[i] / shards, s.whole = (shards + (int)i) % 2;
            expect_like(&first, &s);
        }
    }
}

static void test_stages(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        expect_equal(&(Shape){1, 2, 1, SYNC_STEP, false, tied, false, false, false},
                     &(Shape){2, 2, 1, SYNC_STEP, false, tied, false, false, false});
        expect_equal(&(Shape){1, 1, 3, SYNC_STEP, false, tied, false, false, false},
                     &(Shape){2, 1, 3, SYNC_STEP, false, tied, false, false, false});
        expect_equal(&(Shape){1, 2, 3, SYNC_STEP, true, tied, false, false, false},
                     &(Shape){2, 2, 3, SYNC_MICROBATCH, true, tied, false, false, false});
        expect_equal(&(Shape){1, 2, 3, SYNC_STEP, false, tied, false, false, false},
                     &(Shape){2, 2, 3, SYNC_STEP, false, tied, false, true, false});
    }
}

/* Updates of matrices as matrices: the same on whichever rank a matrix is, on any mesh. */
static void test_muon(void **state) {
    static Run first;
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        Shape ddp = {1, 6, 1, SYNC_STEP, false, tied, .muon = true}, other = ddp;
        static const int meshes[][3] = {{1, 1, 6}, {1, 2, 3}, {1, 3, 2}, {2, 6, 1}, {2, 1, 6}, {2, 2, 3}};
        run_shape(&ddp, &first);
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            other.pp = meshes[i][0], other.replicas = meshes[i][1], other.shards = meshes[i][2];
            expect_like(&first, &other);
        }
    }
    expect_equal(&(Shape){1, 4, 1, SYNC_MICROBATCH, true, .muon = true},
                 &(Shape){2, 1, 4, SYNC_MICROBATCH, true, .muon = true});
}

static void test_count_rides(void **state) {
    (void)state;
    expect_equal(&(Shape){2, 1, 2, SYNC_STEP, false, false, false, false, false},
                 &(Shape){2, 1, 2, SYNC_STEP, false, false, true, false, false});
    expect_equal(&(Shape){1, 3, 1, SYNC_STEP, false, false, false, false, false},
                 &(Shape){1, 3, 1, SYNC_STEP, false, false, true, false, false});
}

/* A separate sum over the replicas: it rightly has other bits, and other traffic. */
static void test_replica_sync(void **state) {
    static Run run;
    (void)state;
    run_shape(&(Shape){1, 2, 3, SYNC_REPLICA, false, false, false, false, false}, &run);
    run_shape(&(Shape){1, 2, 2, SYNC_REPLICA, true, true, false, false, false}, &run);
    expect_equal(&(Shape){1, 2, 3, SYNC_REPLICA, false, true, false, false, false},
                 &(Shape){1, 2, 3, SYNC_REPLICA, false, true, false, true, false});
}

/* Ranks of tp: collectives between ops, and sums of vectors, combined with everything else. */
static void test_tensors(void **state) {
    static Run run;
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        run_shared(&(Shape){1, 1, 1, SYNC_STEP, exact, false, false, false, false}, 2, &run);
        run_shared(&(Shape){1, 2, 2, SYNC_MICROBATCH, exact, true, false, false, false}, 2, &run);
        run_shared(&(Shape){2, 1, 2, SYNC_STEP, exact, true, false, false, false}, 2, &run);
    }
}

/* Adapters of all matrices, with the figures of one rank. */
static void test_adapters(void **state) {
    static Run one, other;
    static const Shape shapes[] = {{1, 1, 1, .exact = true},
                                   {1, 1, 2, .exact = true, .sync = SYNC_MICROBATCH},
                                   {1, 2, 1, .exact = true, .tied = true},
                                   {2, 1, 1, .exact = true}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int splits = 2; splits <= 4; splits *= 2) {
            one = (Run){.shape = &shapes[i], .tensors = 1, .splits = splits, .cp = 1, .adapted = true};
            run_all(&one);
            for (int tensors = 2; tensors <= splits; tensors *= 2) {
                other = one, other.tensors = tensors;
                run_all(&other);
                assert_memory_equal(one.figures[0], other.figures[0], sizeof one.figures[0]);
            }
        }
}

/* Fewer KV heads than ranks and splits: one or two, with the figures of one rank; with norms per head or over
 * all heads, biases, exact chunks, and everything else. */
static void test_copies(void **state) {
    static Run one, other;
    static const struct {
        Shape shape;
        int tensors, cp;
        CpComm method;
    } meshes[] = {{{1, 1, 1, .exact = true}, 2, 1, CP_COMM_ALL_TO_ALL},
                  {{1, 1, 1, .exact = true}, 4, 1, CP_COMM_ALL_TO_ALL},
                  {{1, 2, 1, .exact = true, .sync = SYNC_MICROBATCH}, 4, 1, CP_COMM_ALL_TO_ALL},
                  {{2, 1, 1, .exact = true}, 4, 1, CP_COMM_ALL_TO_ALL},
                  {{1, 1, 2, .exact = true}, 4, 1, CP_COMM_ALL_TO_ALL},
                  {{1, 1, 1, .exact = true}, 4, 2, CP_COMM_ALL_GATHER}};
    static const Shape alone = {1, 1, 1, .exact = true};
    (void)state;
    for (int way = 0; way < 6; way++) {
        ModelConfig m = tiny_model(VOCAB, LAYERS, CONTEXT);
        m.num_key_value_heads = 1 + way % 2, m.head_dim = 8, m.attention_bias = way < 2;
        if (way >= 2) m.family = way < 4 ? &family_qwen3 : &family_olmo2, m.tie_word_embeddings = way < 4;
        one = (Run){&alone, .tensors = 1, .splits = 4, .cp = 1, .exact_chunks = 4, .model = &m};
        run_all(&one);
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            int dp = meshes[i].shape.replicas * meshes[i].shape.shards;
            other = (Run){&meshes[i].shape,  .tensors = meshes[i].tensors, .splits = 4, .cp = meshes[i].cp,
                          .exact_chunks = 4, .method = meshes[i].method,   .model = &m, .own = OWN / dp};
            run_all(&other);
            assert_memory_equal(one.figures[0], other.figures[0], sizeof one.figures[0]);
        }
    }
}

/* Ranks of cp shard the tokens of a microbatch: in fixed point their number does not show; otherwise each
 * mesh sends what was planned. */
static void test_contexts(void **state) {
    static Run one, other;
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        Shape alone = {1, 1, 1, SYNC_STEP, true, tied, .apart = true};
        static const int meshes[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 1, 2}, {1, 2, 1}};
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            Shape s = alone;
            s.pp = meshes[i][0], s.replicas = meshes[i][1], s.shards = meshes[i][2];
            s.sync = i % 2 ? SYNC_MICROBATCH : SYNC_STEP;
            run_split(&s, 1, 4, 1, &one);
            for (int method = CP_COMM_ALL_TO_ALL; method <= CP_COMM_ALL_GATHER; method++) {
                run_by((CpComm)method, &s, 2, 4, 1, &other);
                assert_memory_equal(one.figures[0], other.figures[0], sizeof one.figures[0]);
            }
        }
    }
    run_split(&(Shape){1, 2, 2, SYNC_MICROBATCH, .muon = true}, 2, 0, 1, &one);
    run_split(&(Shape){2, 1, 2, SYNC_STEP, .tied = true}, 2, 0, 1, &one);
    run_by(CP_COMM_ALL_GATHER, &(Shape){1, 1, 2, SYNC_STEP, .tied = true}, 2, 0, 2, &one);
}

/* Ranks of ep shard the experts: sums are those of ranks that have all experts. */
static void test_experts(void **state) {
    static Run one, other;
    static const Shape shapes[] = {{1, 1, 4, .sync = SYNC_STEP},
                                   {1, 2, 4, .sync = SYNC_REPLICA},
                                   {1, 3, 2, .sync = SYNC_STEP},
                                   {1, 1, 6, .sync = SYNC_MICROBATCH, .tied = true},
                                   {2, 1, 2, .sync = SYNC_STEP},
                                   {1, 1, 8, .sync = SYNC_MICROBATCH},
                                   {1, 2, 2, .sync = SYNC_MICROBATCH, .exact = true},
                                   {1, 1, 8, .sync = SYNC_MICROBATCH, .exact = true},
                                   {1, 1, 4, .sync = SYNC_STEP, .exact = true, .whole = true},
                                   {1, 1, 4, .sync = SYNC_STEP, .muon = true}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        one.experts = 1;
        run_shape(&shapes[i], &one);
        for (int ep = 2; shapes[i].shards % ep == 0; ep *= 2) {
            other.experts = ep;
            run_shape(&shapes[i], &other);
            assert_memory_equal(one.figures[0], other.figures[0], sizeof one.figures[0]);
        }
    }
}

/* The same over cp, within a group of cp or beyond it. */
static void test_experts_over_contexts(void **state) {
    static Run one, other;
    static const Shape shapes[] = {{1, 1, 2, .sync = SYNC_STEP},
                                   {1, 2, 1, .sync = SYNC_MICROBATCH},
                                   {2, 1, 1, .sync = SYNC_STEP, .tied = true}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int method = CP_COMM_ALL_TO_ALL; method <= CP_COMM_ALL_GATHER; method++) {
            one.experts = 1;
            run_by((CpComm)method, &shapes[i], 2, 0, 1, &one);
            for (int ep = 2; ep <= 2 * shapes[i].shards; ep *= 2) {
                other.experts = ep;
                run_by((CpComm)method, &shapes[i], 2, 0, 1, &other);
                assert_memory_equal(one.figures[0], other.figures[0], sizeof one.figures[0]);
            }
        }
}

/* And with tp, where results are combined per split: as on one rank of tp that has all splits and all
 * experts. */
static void test_experts_with_tensors(void **state) {
    static Run one, other;
    static const Shape shapes[] = {{1, 1, 2, .sync = SYNC_STEP},
                                   {1, 1, 4, .sync = SYNC_MICROBATCH, .tied = true},
                                   {1, 2, 2, .sync = SYNC_MICROBATCH, .exact = true},
                                   {2, 1, 2, .sync = SYNC_STEP, .exact = true}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int splits = 2; splits <= 4; splits *= 2) {
            one = (Run){.shape = &shapes[i], .tensors = 1, .splits = splits, .cp = 1, .experts = 1};
            run_all(&one);
            for (int tensors = 1; tensors <= splits && tensors <= 2; tensors *= 2)
                for (int ep = 2; ep <= shapes[i].shards; ep *= 2) {
                    other = one, other.tensors = tensors, other.experts = ep;
                    run_all(&other);
                    assert_memory_equal(one.figures[0], other.figures[0], sizeof one.figures[0]);
                }
        }
}

/* ---- families ---- */

/* A family at its smallest: heads for two ranks of either axis, a vocabulary that tp shards unequally and, if
 * its keys can express them, a window shorter than a microbatch and a layer without RoPE. */
static ModelConfig family_shape(const Family *f) {
    ModelConfig c = tiny_model(VOCAB, LAYERS, CONTEXT);
    Error err = {.message = ""};
    bool no_heads = f->arch.learned_positions; /* GPT-2 has no key for either */
    c.hidden_size = 16;
    c = family_defaults(f, &c);
    c.bos_token_id = c.eos_token_id = -1;
    c.head_dim = no_heads ? 4 : 6, c.num_key_value_heads = no_heads ? 4 : 2;
    if (no_heads) c.max_position_embeddings = CONTEXT + 1; /* unequal shards, too */
    if (family_has_experts(f)) c.num_experts = 4, c.num_experts_per_tok = 2;
    if (c.router_aux_loss_coef > 0) c.output_router_logits = true, c.router_aux_loss_coef = 0.5;
    if (f == &family_qwen3_moe || f->arch.latent || f->arch.weighs_input) c.moe_intermediate_size = 10;
    if (f->arch.weighs_input) c.floor_scale = 3, c.attn_scale = 0.5, c.dense_layers = (LayerSet){2, 2};
    if (f->arch.latent) {
        c.num_key_value_heads = 4, c.head_dim = 0, c.first_k_dense_replace = 1, c.n_shared_experts = 1;
        c.q_lora_rank = 8, c.kv_lora_rank = 12, c.qk_nope_head_dim = 4, c.qk_rope_head_dim = 6;
        c.v_head_dim = 7, c.n_group = 2, c.topk_group = 1;
    }
    if (f == &family_recurrent)
        c.recurrent_size = 10, c.conv_size = 3, c.mamba_d_state = 3, c.mamba_d_head = 5,
        c.mixers = (MixerPattern){2, {MIXER_MIN_GRU, MIXER_MAMBA2}};
    if (f->arch.partial_rotation) c.partial_rotary_factor = 0.7;
    if (family_reads(f, KEY_WINDOWS))
        c.sliding_window = 5, c.windows = (LayerSet){f->window_keys == WINDOWS_SOME ? 2 : 1, 1};
    if (family_reads(f, KEY_NO_ROPE)) c.no_rope = (LayerSet){2, 1};
    if (model_config_complete(&c, f->model_type, &err) != OK) fail_msg("%s", err.message);
    return c;
}

/* Without a latent of queries, and with several shared experts. */
static ModelConfig moonlight_shape(void) {
    ModelConfig c = family_shape(&family_deepseek_v3);
    c.q_lora_rank = 0, c.n_shared_experts = 2;
    return c;
}

typedef struct Way {
    const char *name;
    Shape shape;
    int cp, tensors, experts;
    CpComm method;
} Way;

static const Way ways[] = {
    {"pp", {2, 1, 1, .exact = true}, 1, 1, 0, CP_COMM_ALL_TO_ALL},
    {"dp_shard", {1, 1, 2, .sync = SYNC_MICROBATCH, .exact = true}, 1, 1, 0, CP_COMM_ALL_TO_ALL},
    {"tp", {1, 1, 1, .exact = true}, 1, 2, 0, CP_COMM_ALL_TO_ALL},
    {"cp by heads", {1, 1, 1, .exact = true}, 2, 1, 0, CP_COMM_ALL_TO_ALL},
    {"cp by keys", {1, 1, 1, .exact = true}, 2, 1, 0, CP_COMM_ALL_GATHER},
    {"ep", {1, 1, 2, .exact = true}, 1, 1, 2, CP_COMM_ALL_TO_ALL},
    {"tp, cp by keys, dp_shard", {1, 1, 2, .exact = true}, 2, 2, 0, CP_COMM_ALL_GATHER},
    {"ep over cp", {1, 1, 1, .exact = true}, 2, 1, 2, CP_COMM_ALL_GATHER},
    {"ep over dp_shard, cp", {1, 1, 2, .exact = true}, 2, 1, 4, CP_COMM_ALL_TO_ALL},
    {"ep with tp", {1, 1, 2, .exact = true}, 1, 2, 2, CP_COMM_ALL_TO_ALL},
    {"ep over cp with tp", {1, 1, 1, .exact = true}, 2, 2, 2, CP_COMM_ALL_GATHER},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Whether a family supports that way. Otherwise it is refused by its name, before a rank starts. */
static bool goes(const ModelConfig *m, const Way *w) {
    Error err = {.message = ""};
    CpGroup cp = {w->cp, 0, 4, w->method == CP_COMM_ALL_GATHER};
    TpGroup tp = {w->tensors, 0, w->tensors, 1};
    if ((w->tensors == 1 || axes_check_splits(m, w->tensors, w->tensors, CONTEXT, &err) == OK) &&
        (w->cp == 1 || axes_check_cp(m, tp, cp, CONTEXT, &err) == OK) &&
        (w->experts == 0 || axes_check_experts(m, w->experts, &err) == OK))
        return true;
    if (!strstr(err.message, model_family(m)->model_type)) fail_msg("no name in: %s", err.message);
    return false;
}

/* One rank gets the splits and exact chunks of all ways that a family supports as well. If cp refuses the
 * family, there are no exact chunks. */
static Run run_of(const ModelConfig *m, const Way *w) {
    bool cp = goes(m, &ways[4]);
    return (Run){.shape = &w->shape,
                 .tensors = w->tensors,
                 .splits = goes(m, &ways[2]) ? 2 : 1,
                 .cp = w->cp,
                 .exact_chunks = cp ? 4 : 0,
                 .method = w->method,
                 .experts = w->experts,
                 .model = m,
                 .own = OWN / w->shape.shards};
}

static void walk_family(ModelConfig m, Text *refused) {
    static const Way alone = {"alone", {1, 1, 1, .exact = true}, 1, 1, 0, CP_COMM_ALL_TO_ALL};
    static Run one, other;
    const Family *f = model_family(&m);
    one = run_of(&m, &alone);
    run_all(&one);
    text_printf(refused, "%s:", f->model_type);
    for (int i = 0; i < WAYS; i++) {
        if (!goes(&m, &ways[i])) {
            text_printf(refused, " %s;", ways[i].name);
            continue;
        }
        for (int split_backward = 0; split_backward < 2; split_backward++) {
            other = run_of(&m, &ways[i]), other.split_backward = split_backward;
            run_all(&other);
            if (memcmp(one.figures[0], other.figures[0], sizeof one.figures[0]) != 0)
                fail_msg("%s over %s%s has other figures than one rank", f->model_type, ways[i].name,
                         split_backward ? ", dgrad and wgrad separate," : "");
        }
    }
    text_puts(refused, "\n");
}

/* An MTP module, whose block is in the last unit: on all ways, with splits as on one rank or several, and
 * alone. */
static void walk_mtp_module(ModelConfig m, int splits, bool narrow) {
    static const Way alone = {"alone", {1, 1, 1, .exact = true}, 1, 1, 0, CP_COMM_ALL_TO_ALL},
                     piped = {"tp, pp", {2, 1, 1, .exact = true}, 1, 2, 0, CP_COMM_ALL_TO_ALL};
    static Run one, other;
    m.mtp_depth = 1, m.mtp_module = true;
    one = run_of(&m, &alone), one.splits = splits, one.narrow = narrow;
    run_all(&one);
    assert_true(one.figures[0][STEPS - 1][5] > 0);
    for (int i = 0; i <= WAYS; i++) {
        const Way *w = i < WAYS ? &ways[i] : &piped;
        if (w->tensors > splits) continue;
        for (int split_backward = 0; split_backward < 2; split_backward++) {
            other = run_of(&m, w), other.splits = splits, other.narrow = narrow,
            other.split_backward = split_backward;
            run_all(&other);
            if (memcmp(one.figures[0], other.figures[0], sizeof one.figures[0]) != 0)
                fail_msg("a module over %s%s has other figures than one rank", w->name,
                         split_backward ? ", dgrad and wgrad separate," : "");
        }
    }
}

static void test_mtp_module(void **state) {
    (void)state;
    for (int narrow = 0; narrow < 2; narrow++) {
        walk_mtp_module(family_shape(&family_deepseek_v3), 1 + narrow, narrow);
        walk_mtp_module(moonlight_shape(), 2, narrow);
    }
}

/* Adapters of the projections to latents, of heads made from latents, and of shared experts: on all ways over
 * tp, with one split per rank, or two. */
static void walk_adapted_latents(ModelConfig m, int splits, bool narrow) {
    static const Way alone = {"alone", {1, 1, 1, .exact = true}, 1, 1, 0, CP_COMM_ALL_TO_ALL},
                     piped = {"tp, pp", {2, 1, 1, .exact = true}, 1, 2, 0, CP_COMM_ALL_TO_ALL};
    static Run one, other;
    m.moe_intermediate_size = 12;
    one = run_of(&m, &alone), one.splits = splits, one.adapted = true, one.narrow = narrow;
    run_all(&one);
    for (int i = 0; i <= WAYS; i++) {
        const Way *w = i < WAYS ? &ways[i] : &piped;
        for (int split_backward = 0; split_backward < 2 && w->tensors > 1; split_backward++) {
            other = run_of(&m, w), other.splits = splits, other.adapted = true, other.narrow = narrow;
            other.split_backward = split_backward;
            run_all(&other);
            if (memcmp(one.figures[0], other.figures[0], sizeof one.figures[0]) != 0)
                fail_msg("adapters of latents over %s%s have other figures than one rank", w->name,
                         split_backward ? ", dgrad and wgrad separate," : "");
        }
    }
}

static void test_adapted_latents(void **state) {
    (void)state;
    for (int narrow = 0; narrow < 2; narrow++) {
        walk_adapted_latents(family_shape(&family_deepseek_v3), 2 << narrow, narrow);
        walk_adapted_latents(moonlight_shape(), 2 << narrow, narrow);
    }
    walk_adapted_latents(family_shape(&family_deepseek_v2), 2, false);
}

/* Experts that tp does not cut, which every rank of tp dispatches its own tokens to: the figures of one rank
 * whose sums over an expert's width are not split either. */
static void walk_whole_experts(ModelConfig m, Run run) {
    static const Way alone = {"alone", {1, 1, 1, .exact = true}, 1, 1, 0, CP_COMM_ALL_TO_ALL};
    static const Way folded[] = {
        {"tp", {1, 1, 1, .exact = true}, 1, 2, 2, CP_COMM_ALL_TO_ALL},
        {"tp, dp_shard", {1, 1, 2, .exact = true, .sync = SYNC_MICROBATCH}, 1, 2, 2, CP_COMM_ALL_TO_ALL},
        {"tp x dp_shard", {1, 1, 2, .exact = true}, 1, 2, 4, CP_COMM_ALL_TO_ALL},
        {"tp x dp_shard, Muon", {1, 1, 2, .exact = true, .muon = true}, 1, 2, 4, CP_COMM_ALL_TO_ALL},
        {"tp x cp by keys", {1, 1, 1, .exact = true}, 2, 2, 4, CP_COMM_ALL_GATHER},
        {"tp, cp by heads", {1, 1, 1, .exact = true}, 2, 2, 2, CP_COMM_ALL_TO_ALL},
        {"tp of 4", {1, 1, 1, .exact = true}, 1, 4, 4, CP_COMM_ALL_TO_ALL},
        {"tp, pp", {2, 1, 1, .exact = true}, 1, 2, 2, CP_COMM_ALL_TO_ALL}};
    static Run one, other;
    m.whole_experts = true;
    for (size_t i = 0; i < sizeof folded / sizeof *folded; i++) {
        const Way *w = &folded[i];
        Way same = alone;
        bool heads =
            w->method == CP_COMM_ALL_GATHER || axes_splits_heads(&m, (TpGroup){.size = w->tensors}, w->cp);
        if (w->tensors > run.splits || (w->cp > 1 && !heads)) continue;
        same.shape.muon = w->shape.muon;
        for (int split_backward = 0; split_backward < 2; split_backward++) {
            one = run_of(&m, &same), other = run_of(&m, w);
            Run *runs[] = {&one, &other};
            for (int k = 0; k < 2; k++) {
                runs[k]->splits = run.splits, runs[k]->adapted = run.adapted, runs[k]->narrow = run.narrow;
                runs[k]->etp = 1, runs[k]->split_backward = k && split_backward;
                run_all(runs[k]);
            }
            if (memcmp(one.figures[0], other.figures[0], sizeof one.figures[0]) != 0)
                fail_msg("whole experts of %s over %s%s have other figures than on one rank",
                         model_family(&m)->model_type, w->name,
                         split_backward ? ", dgrad and wgrad separate," : "");
        }
    }
}

static void test_whole_experts(void **state) {
    (void)state;
    for (int i = 0; families[i]; i++)
        if (family_has_experts(families[i]) && !families[i]->arch.expert_bias)
            walk_whole_experts(family_shape(families[i]), (Run){.splits = 2, .narrow = i % 2});
    ModelConfig m = moonlight_shape();
    m.moe_intermediate_size = 12;
    walk_whole_experts(m, (Run){.splits = 4, .adapted = true});
    m.mtp_depth = 1, m.mtp_module = true;
    walk_whole_experts(m, (Run){.splits = 2});
    m = family_shape(&family_qwen3_moe);
    m.num_attention_heads = 4, m.num_key_value_heads = 1, m.head_dim = 8, m.moe_intermediate_size = 7;
    walk_whole_experts(m, (Run){.splits = 2, .narrow = true});
}

/* The same in fast numerics, with each way to sum gradients, against ranks that have all experts. */
static void test_whole_experts_fast(void **state) {
    static Run one, other;
    static const Shape shapes[] = {{1, 1, 2, .sync = SYNC_STEP},
                                   {1, 1, 4, .sync = SYNC_MICROBATCH, .tied = true},
                                   {1, 2, 2, .sync = SYNC_REPLICA},
                                   {2, 1, 1, .sync = SYNC_MICROBATCH}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        one = (Run){.shape = &shapes[i], .tensors = 1, .splits = 2, .cp = 1, .experts = 1, .etp = 1};
        run_all(&one);
        for (int ep = 1; ep <= shapes[i].shards; ep *= 2)
            for (int tensors = 1; tensors <= 2; tensors *= 2) {
                other = one, other.tensors = tensors, other.experts = ep * tensors;
                run_all(&other);
                if (memcmp(one.figures[0], other.figures[0], sizeof one.figures[0]) != 0)
                    fail_msg("shape %zu: whole experts over tp %d, ep %d have other figures than without", i,
                             tensors, ep * tensors);
            }
    }
}

/* docs/use/combinations.md has the same table. */
static void test_families(void **state) {
    Text refused = {0};
    (void)state;
    for (int i = 0; families[i]; i++) walk_family(family_shape(families[i]), &refused);
    walk_family(moonlight_shape(), &refused);
    assert_string_equal(refused.data,
                        "llama: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "qwen2: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "qwen3: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "mistral: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "olmo2: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "olmo3: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "gemma2: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "gemma3_text: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "smollm3: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "phi3: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "gpt2: ep; ep over cp; ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "mixtral:\n"
                        "qwen3_moe:\n"
                        "olmoe:\n"
                        "gpt_oss:\n"
                        "deepseek_v3:\n"
                        "deepseek_v2:\n"
                        "llama4_text:\n"
                        "recurrent: tp; cp by heads; cp by keys; ep; tp, cp by keys, dp_shard; ep over cp; "
                        "ep over dp_shard, cp; ep with tp; ep over cp with tp;\n"
                        "deepseek_v3:\n");
    text_free(&refused);
}

/* ---- matrices that an optimizer must see whole although tp shards them ---- */

static const Way whole_ways[] = {
    {"tp", {1, 1, 1, .exact = true}, 1, 2, 0, CP_COMM_ALL_TO_ALL},
    {"tp, dp_shard", {1, 1, 2, .exact = true}, 1, 2, 0, CP_COMM_ALL_TO_ALL},
    {"tp, dp_replicate", {1, 2, 1, .exact = true, .sync = SYNC_MICROBATCH}, 1, 2, 0, CP_COMM_ALL_TO_ALL},
    {"tp, pp", {2, 1, 1, .exact = true}, 1, 2, 0, CP_COMM_ALL_TO_ALL},
    {"tp, cp by keys, pp", {2, 1, 1, .exact = true}, 2, 2, 0, CP_COMM_ALL_GATHER},
    {"tp, cp by keys, dp_shard", {1, 1, 2, .exact = true}, 2, 2, 0, CP_COMM_ALL_GATHER},
    {"tp, ep", {1, 1, 2, .exact = true}, 1, 2, 2, CP_COMM_ALL_TO_ALL},
    {"tp, cp by keys, ep", {1, 1, 1, .exact = true}, 2, 2, 2, CP_COMM_ALL_GATHER},
};

/* A model with an optimizer, over tp and combined with everything else: the figures of one rank. */
static void walk_whole(const ModelConfig *m, Shape like, int splits, int exact_chunks, bool adapted,
                       bool half) {
    static Run one, other;
    like.exact = true, like.pp = like.replicas = like.shards = 1;
    one = (Run){
        .shape = &like, .tensors = 1, .splits = splits, .cp = 1, .exact_chunks = exact_chunks, .model = m};
    one.adapted = adapted, one.half = half;
    run_all(&one);
    for (size_t i = 0; i < sizeof whole_ways / sizeof *whole_ways; i++) {
        const Way *w = &whole_ways[i];
        Shape s = w->shape;
        if ((exact_chunks == 0 && w->cp > 1) || (w->experts > 0 && !goes(m, w))) continue;
        s.tied = like.tied, s.whole = like.whole, s.muon = like.muon;
        other = one, other.shape = &s, other.cp = w->cp, other.method = w->method;
        other.experts = w->experts;
        other.own = OWN / (s.replicas * s.shards);
        for (other.tensors = 2; other.tensors <= splits; other.tensors *= 2) {
            run_all(&other);
            if (memcmp(one.figures[0], other.figures[0], sizeof one.figures[0]) != 0)
                fail_msg("%s over %s (%d) has other figures than one rank", model_family(m)->model_type,
                         w->name, other.tensors);
        }
    }
}

/* Matrices sharded by rows and by columns, several stored as one, and transposed; those of experts; routers
 * and projections to latents, which all ranks have; KV heads that some ranks share; adapters, sharded or not;
 * unequal shards of a vocabulary. */
static void test_whole_over_tensors(void **state) {
    (void)state;
    for (int i = 0; families[i]; i++) {
        ModelConfig m = family_shape(families[i]);
        if (!goes(&m, &ways[2])) continue;
        walk_whole(&m, (Shape){.muon = true}, 2, goes(&m, &ways[4]) ? 4 : 0, false, i % 2);
    }
    ModelConfig m = moonlight_shape();
    walk_whole(&m, (Shape){.muon = true}, 2, 4, false, true);
    walk_whole(&m, (Shape){.whole = true}, 2, 4, false, false);
    m = tiny_model(VOCAB, LAYERS, CONTEXT);
    for (int tied = 0; tied < 2; tied++) {
        m.tie_word_embeddings = tied;
        walk_whole(&m, (Shape){.tied = tied, .muon = true}, 4, 0, tied, !tied);
        walk_whole(&m, (Shape){.tied = tied, .whole = true}, 4, 0, false, false);
    }
    m.num_key_value_heads = 1, m.head_dim = 8;
    walk_whole(&m, (Shape){.tied = true, .muon = true}, 4, 0, false, true);
}

/* MTP heads: over tp and combined with everything else the figures of one rank, including their own
 * losses. */
static void walk_mtp_heads(ModelConfig m, int splits, bool narrow) {
    static Run one, other;
    static const struct {
        Shape shape;
        int cp;
    } meshes[] = {{{1, 1, 1, .exact = true}, 1},
                  {{1, 2, 1, .exact = true, .sync = SYNC_MICROBATCH}, 1},
                  {{2, 1, 1, .exact = true}, 1},
                  {{1, 1, 2, .exact = true}, 1},
                  {{1, 1, 1, .exact = true}, 2}};
    static const Shape alone = {1, 1, 1, .exact = true};
    one = (Run){&alone,      .tensors = 1,    .splits = splits, .cp = 1, .exact_chunks = 4,
                .model = &m, .narrow = narrow};
    run_all(&one);
    assert_true(one.figures[0][STEPS - 1][5] > 0);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        const Shape *s = &meshes[i].shape;
        other = one, other.shape = s, other.own = OWN / (s->replicas * s->shards);
        other.cp = meshes[i].cp, other.method = CP_COMM_ALL_GATHER;
        for (other.tensors = 2; other.tensors <= splits; other.tensors *= 2) {
            run_all(&other);
            assert_memory_equal(one.figures[0], other.figures[0], sizeof one.figures[0]);
        }
    }
}

static void test_mtp_heads(void **state) {
    (void)state;
    ModelConfig m = tiny_model(VOCAB, LAYERS, CONTEXT);
    m.num_key_value_heads = 4;
    for (int way = 0; way < 4; way++) {
        m.mtp_depth = 1 + way * 3 / 2 % 4;
        walk_mtp_heads(m, 4, way % 2);
    }
    for (int way = 0; way < 2; way++) {
        m = way ? moonlight_shape() : family_shape(&family_deepseek_v3), m.mtp_depth = 1 + way;
        walk_mtp_heads(m, 2, way);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_degrees),
                                       cmocka_unit_test(test_tensors),
                                       cmocka_unit_test(test_contexts),
                                       cmocka_unit_test(test_stages),
                                       cmocka_unit_test(test_muon),
                                       cmocka_unit_test(test_whole_over_tensors),
                                       cmocka_unit_test(test_mtp_heads),
                                       cmocka_unit_test(test_count_rides),
                                       cmocka_unit_test(test_replica_sync),
                                       cmocka_unit_test(test_experts),
                                       cmocka_unit_test(test_experts_over_contexts),
                                       cmocka_unit_test(test_experts_with_tensors),
                                       cmocka_unit_test(test_mtp_module),
                                       cmocka_unit_test(test_whole_experts),
                                       cmocka_unit_test(test_whole_experts_fast),
                                       cmocka_unit_test(test_families),
                                       cmocka_unit_test(test_adapters),
                                       cmocka_unit_test(test_adapted_latents),
                                       cmocka_unit_test(test_copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
