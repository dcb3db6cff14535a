/* Plans of ranks that share tokens and matrices, and predicted step times: compared with the published
 * formulas in numbers, and with properties that every plan must have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/find.h"
#include "device/counting.h"
#include "device/ops/ops.h"
#include "forecast/forecast.h"
#include "plan/sync.h"

static Error err;

/* Configurations are read like a user's: from keys on a command line. */
typedef struct Planned {
    Config c;
    OptionSet set;
    Device d;
    Forecast f;
} Planned;

static void configure(Planned *p, int count, const char *const *words) {
    static const char *const base[] = {"model.vocab_size=512",
                                       "model.hidden_size=64",
                                       "model.intermediate_size=192",
                                       "model.num_hidden_layers=4",
                                       "model.num_attention_heads=8",
                                       "model.num_key_value_heads=4",
                                       "train.context=64",
                                       "train.microbatch=1",
                                       "train.compute=bf16",
                                       "run.threads=1"};
    enum { BASE = sizeof base / sizeof *base };
    const char *all[BASE + 16];
    memcpy(all, base, sizeof base);
    memcpy(all + BASE, words, (size_t)count * sizeof *words);
    if (config_load(&p->c, &p->set, NULL, BASE + count, all, checkpoint_find_shape, &err) != OK)
        fail_msg("%s", err.message);
    if (model_config_complete(&p->c.model.shape, "model", &err) != OK) fail_msg("%s", err.message);
    /* As choices and splits plan, on any machine. */
    device_describe(&p->d, device_kind(p->c.run.device), "", 1);
}
#define WORDS(...) \
    sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), (const char *const[]) { __VA_ARGS__ }

static void plan(Planned *p, int world, ForecastSpeed speed, int count, const char *const *words) {
    configure(p, count, words);
    if (forecast_build(&p->f, &p->c, &p->d, world, speed, &err) != OK) fail_msg("%s", err.message);
}

static void release(Planned *p) {
    forecast_free(&p->f);
    options_free(&p->set);
}

static const ForecastSpeed unknown = {.tflops = 0};

/* ---- collectives ---- */

static Hardware simple_hardware(void) {
    return (Hardware){.name = "simple",
                      .compute = {.bf16_tflops = 1, .fp32_tflops = 1, .share = 0.5, .attention_share = 0.25},
                      .memory = {.gib = 1, .gb_per_s = 1e9, .share = 1},
                      .links = {.ranks = 4, .inside_gb_per_s = 10, .between_gb_per_s = 1}};
}

static double both(Cost c) { return c.forward + c.input + c.weight; }

/* Bytes of a unit in a microbatch. */
static double sent(const Planned *p, int unit, PassAxis axis) { return both(p->f.passes[unit][axis].bytes); }

/* Bytes of rank 0 in a step. */
static double over_units(const Planned *p, PassAxis axis) {
    double sum = 0;
    for (int u = 0; u < p->f.ranks[0].plan.partition.table->units; u++) sum += sent(p, u, axis);
    return sum * p->f.layout.microbatches;
}

static void expect_sent(double want, PassAxis axis, int world, ForecastSpeed speed, int count,
                        const char *const *words) {
    enum { BLOCK = 1 };
    Planned p;
    plan(&p, world, speed, count, words);
    double found = sent(&p, BLOCK, axis);
    if (fabs(found - want) >= 1) fail_msg("%s: sends %.0f, not %.0f", words[0], found, want);
    release(&p);
}

/* A block has 4 gathers and 4 reductions in either precision, and two gathers for wgrad: 20 f T h bytes if
 * everything is bf16, 28 if partial sums are fp32 (Korthikanti et al. 2022). A separate wgrad also gathers
 * the gradients of outputs again. */
static void bytes_over_tp_are_the_formulas(void **state) {
    (void)state;
    const double T = 64, h = 64, f = 0.75;
    Hardware narrow = simple_hardware();
    narrow.links.narrow_sums = true;
    expect_sent(28 * f * T * h, PASS_TENSOR, 4, unknown, WORDS("mesh.tp=4", "train.split_backward=false"));
    expect_sent(32 * f * T * h, PASS_TENSOR, 4, unknown, WORDS("mesh.tp=4", "train.split_backward=true"));
    expect_sent(20 * f * T * h, PASS_TENSOR, 4, (ForecastSpeed){.hardware = &narrow},
                WORDS("mesh.tp=4", "train.split_backward=false"));
    expect_sent(10 * f * T * h, PASS_TENSOR, 8, (ForecastSpeed){.hardware = &narrow},
                WORDS("mesh.tp=4", "mesh.cp=2", "train.split_backward=false"));
    /* Recomputation gathers both inputs and reduces the attention's output once more. */
    expect_sent(26 * f * T * h, PASS_TENSOR, 4, (ForecastSpeed){.hardware = &narrow},
                WORDS("mesh.tp=4", "train.recompute=full", "train.split_backward=false"));
    /* Two ranks hold each KV head: an all-reduce of both gradients in fp32. */
    expect_sent(28 * 7.0 / 8 * T * h + 2 * 0.5 * T * 2 * 8 * 4, PASS_TENSOR, 8, unknown,
                WORDS("mesh.tp=8", "train.split_backward=false"));
    expect_sent(0, PASS_TENSOR, 1, unknown, WORDS("mesh.tp=1"));
}

/* Forward moves rows of x and of results, after their numbers; backward x, dy and dx, with a weight and its
 * gradient. */
static void bytes_over_ep_are_the_formulas(void **state) {
    (void)state;
    const double rows = 0.75 * 64 * 2, numbers = 3 * 9 * sizeof(int32_t);
    Planned p;
    plan(&p, 4, unknown,
         WORDS("mesh.ep=4", "mesh.dp_shard=4", "model.family=mixtral", "model.num_experts=8",
               "model.num_experts_per_tok=2"));
    double want = rows * (5 * 64 * 2 + 8) + numbers, found = sent(&p, 1, PASS_EXPERTS);
    if (fabs(found - want) >= 1) fail_msg("sends %.0f, not %.0f", found, want);
    assert_int_equal(p.f.passes[1][PASS_EXPERTS].operations, 8);
    assert_true(sent(&p, 0, PASS_EXPERTS) <= 0 && sent(&p, 5, PASS_EXPERTS) <= 0);
    release(&p);
}

static ModelConfig llama8b(void) {
    return (ModelConfig){.vocab_size = 128256,
                         .hidden_size = 4096,
                         .intermediate_size = 14336,
                         .num_hidden_layers = 32,
                         .num_attention_heads = 32,
                         .num_key_value_heads = 8,
                         .head_dim = 128,
                         .max_position_embeddings = 131072,
                         .rms_norm_eps = 1e-5,
                         .rope_theta = 5e5};
}

/* 131,072 tokens on 8 ranks take 1.88 GB a block to gather keys and values and to sum their gradients in
 * fp32, and 0.59 GB by all-to-all, which the model allows up to its 8 KV heads. Two ranks send less by
 * all-gather. Where all-gather does not fit the tokens or the exact chunks, auto takes all-to-all. A method
 * that is asked for is taken. */
static void auto_of_cp_sends_fewer_bytes(void **state) {
    (void)state;
    ModelConfig m = llama8b();
    CpCommSpec s = {&m, DTYPE_BF16, 131072, 1, 8, 0, CP_COMM_AUTO, 0};
    assert_int_equal(cp_comm_method(&s), CP_COMM_ALL_TO_ALL);
    assert_true(fabs(cp_comm_bytes(&s, CP_COMM_ALL_TO_ALL) -
                     2 * 0.875 / 8 * 131072 * (2 * 32 + 2 * 8) * 128 * 2) < 1);
    s.tensors = 2;
    assert_int_equal(cp_comm_method(&s), CP_COMM_ALL_GATHER);
    s.tensors = 1, s.cp = 16;
    assert_int_equal(cp_comm_method(&s), CP_COMM_ALL_GATHER);
    assert_true(fabs(cp_comm_bytes(&s, CP_COMM_ALL_GATHER) - 15.0 / 16 * 131072 * 2 * 8 * 128 * (2 + 2 + 4)) <
                1);
    s.cp = 2;
    assert_int_equal(cp_comm_method(&s), CP_COMM_ALL_GATHER);
    s.exact_chunks = 2;
    assert_int_equal(cp_comm_method(&s), CP_COMM_ALL_TO_ALL);
    s.exact_chunks = 8, s.tokens = 131074;
    assert_int_equal(cp_comm_method(&s), CP_COMM_ALL_TO_ALL);
    s.tokens = 131072, s.cp = 8, s.asked = CP_COMM_ALL_GATHER, s.exact_chunks = 0;
    assert_int_equal(cp_comm_method(&s), CP_COMM_ALL_GATHER);
}

/* What auto compares is what programs send without recomputation. */
static void bytes_over_cp_are_the_formulas(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        static const char *const methods[] = {"mesh.cp_comm=all_to_all", "mesh.cp_comm=all_gather"},
                                 *const families[] = {"model.family=llama", "model.family=gpt_oss"};
        Planned p;
        plan(&p, 4, unknown,
             WORDS("mesh.cp=4", methods[way % 2], families[way / 2], "train.recompute=none",
                   way / 2 ? "model.num_experts=4" : "model.num_experts=0",
                   way / 2 ? "model.num_experts_per_tok=2" : "model.num_experts_per_tok=0"));
        double want = cp_comm_bytes(&p.f.cp_comm, cp_comm_method(&p.f.cp_comm));
        if (fabs(sent(&p, 1, PASS_CONTEXT) - want) >= 1)
            fail_msg("way %d: sends %.0f, by formula %.0f", way, sent(&p, 1, PASS_CONTEXT), want);
        assert_true(sent(&p, 0, PASS_CONTEXT) <= 0);
        release(&p);
    }
}

/* ---- memory ---- */

/* Activations on a rank of tp are those of 1/t of the tokens, and so with cp. The exceptions: attention's
 * results, which cp all-to-all has by heads and by tokens (all-gather has them once); the first keys of all
 * tokens; and with tp the ids and losses of all of its tokens. */
static void activations_shrink_by_tp_and_cp(void **state) {
    (void)state;
    enum { TWICE = 4 /* layers */ * 16 * 64 * 2, KEYS = (64 - 16) * 4, ARRAYS = 5 * 16 * 4 };
    static const struct {
        const char *mesh[3];
        size_t more;
    } cases[] = {{{"mesh.tp=1", "mesh.cp=4", "mesh.cp_comm=all_to_all"}, TWICE + KEYS},
                 {{"mesh.tp=1", "mesh.cp=4", "mesh.cp_comm=all_gather"}, KEYS},
                 {{"mesh.tp=2", "mesh.cp=2", "mesh.cp_comm=all_to_all"}, TWICE + KEYS + ARRAYS},
                 {{"mesh.tp=2", "mesh.cp=2", "mesh.cp_comm=all_gather"}, KEYS + ARRAYS}};
    Planned one;
    plan(&one, 1, unknown, WORDS("train.context=16"));
    size_t expected = one.f.ranks[0].plan.memory.arena[ARENA_ACTIVATIONS];
    double flops = one.f.ranks[0].flops;
    release(&one);
    plan(&one, 1, unknown, WORDS("train.context=64"));
    double whole = one.f.ranks[0].flops;
    assert_true(whole > 4 * flops); /* attention sees more tokens */
    release(&one);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Planned p;
        plan(&p, 4, unknown, WORDS(cases[i].mesh[0], cases[i].mesh[1], cases[i].mesh[2], "train.context=64"));
        assert_int_equal(p.f.ranks[0].plan.memory.arena[ARENA_ACTIVATIONS], expected + cases[i].more);
        assert_true(fabs(p.f.ranks[0].flops * 4 - whole) < 1e-9 * whole);
        release(&p);
    }
    plan(&one, 8, unknown, WORDS("mesh.cp=8", "train.context=128"));
    assert_int_equal(one.f.ranks[0].plan.memory.arena[ARENA_ACTIVATIONS], expected + (128 - 16) * 4);
    release(&one);
}

/* tp shards matrices and replicates norms; cp shards like data-parallel ranks. */
static void states_are_sharded(void **state) {
    (void)state;
    Planned one, p;
    plan(&one, 1, unknown, WORDS("train.microbatch=1"));
    const Partition *whole = &one.f.ranks[0].plan.partition;
    int64_t norms = 64 * (2 * 4 + 1), all = (int64_t)whole->owned;
    plan(&p, 4, unknown, WORDS("mesh.tp=4"));
    assert_true(p.f.ranks[0].traffic.tensor > 0);
    int64_t own = (int64_t)p.f.ranks[0].plan.partition.owned;
    assert_true(llabs(own - (norms + (all - norms) / 4)) < 16 * 2 * 6);
    assert_true(over_units(&p, PASS_TENSOR) > 0 && over_units(&p, PASS_CONTEXT) <= 0);
    assert_int_equal(p.f.ranks[0].traffic.parameters, 0);
    release(&p);
    for (int way = 0; way < 6; way++) {
        static const char *const methods[] = {"mesh.cp_comm=all_to_all", "mesh.cp_comm=all_gather"},
                                 *const policies[] = {"train.recompute=none", "train.recompute=selective",
                                                      "train.recompute=full"};
        plan(&p, 4, unknown, WORDS("mesh.cp=4", methods[way % 2], policies[way / 2]));
        own = (int64_t)p.f.ranks[0].plan.partition.owned;
        assert_true(llabs(own - all / 4) < 16 * 2 * 6);
        double bytes = over_units(&p, PASS_CONTEXT);
        assert_true(bytes > 0 && over_units(&p, PASS_TENSOR) <= 0);
        assert_true(fabs(bytes - (double)p.f.ranks[0].traffic.context) < 0.5);
        assert_true(p.f.ranks[0].traffic.parameters > 0);
        release(&p);
    }
    release(&one);
}

static void expect_refusal(int world, const char *said, int count, const char *const *words) {
    Planned p;
    configure(&p, count, words);
    assert_int_equal(forecast_build(&p.f, &p.c, &p.d, world, unknown, &err), ERR_CONFIG);
    if (!strstr(err.message, said)) fail_msg("\"%s\" does not say \"%s\"", err.message, said);
    options_free(&p.set);
}

static void what_does_not_fit_is_named(void **state) {
    (void)state;
    expect_refusal(3, "mesh.tp 3 does not fit num_attention_heads 8", WORDS("mesh.tp=3"));
    expect_refusal(3,
                   "mesh.cp 3 by all_gather does not divide the 64 tokens of a microbatch into two parts a "
                   "rank: change train.microbatch or train.context, to a multiple of 6",
                   WORDS("mesh.cp=3"));
    expect_refusal(
        4,
        "mesh.cp 4 by all_gather cannot have the bits of numerics.cp_invariant_up_to 4, of which a rank "
        "takes 2, 4, 8, ...: mesh.cp 1 or 2 would, or mesh.cp_comm: all_to_all",
        WORDS("mesh.cp=4", "mesh.cp_comm=all_gather", "numerics.mode=exact",
              "numerics.cp_invariant_up_to=4"));
    expect_refusal(5, "does not divide 5 ranks", WORDS("mesh.tp=2"));
}

/* ---- train.gradient_sync: auto ---- */

typedef struct Sync {
    const char *words[3];
    int world;
    GradientSync expected;
} Sync;

static void auto_is_what_follows_from_mesh_and_step(void **state) {
    (void)state;
    static const Sync cases[] = {
        {{"train.tokens_per_step=256", "mesh.pp=1", "run.seed=1"}, 1, SYNC_STEP},
        {{"train.tokens_per_step=256", "mesh.pp=1", "run.seed=1"}, 4, SYNC_MICROBATCH},
        {{"train.tokens_per_step=256", "mesh.dp_replicate=4", "run.seed=1"}, 4, SYNC_STEP},
        {{"train.tokens_per_step=256", "mesh.dp_replicate=2", "run.seed=1"}, 4, SYNC_MICROBATCH},
        {{"train.tokens_per_step=512", "mesh.pp=1", "run.seed=1"}, 4, SYNC_STEP},
        {{"train.tokens_per_step=256", "mesh.pp=2", "run.seed=1"}, 2, SYNC_STEP},
        {{"train.tokens_per_step=256", "mesh.pp=2", "run.seed=1"}, 4, SYNC_STEP}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Planned p;
        SyncChoice choice;
        plan(&p, cases[i].world, unknown, 3, cases[i].words);
        assert_int_equal(sync_choose(&p.c, cases[i].world, 0, &choice, &err), OK);
        assert_int_equal(choice.sync, cases[i].expected);
        assert_int_equal(p.f.ranks[0].plan.program.sync, cases[i].expected); /* and the program agrees */
        release(&p);
    }
}

/* Without a limit, no other setting that sends as few bytes takes less memory. */
static void auto_takes_the_least_memory_of_the_fewest_bytes(void **state) {
    (void)state;
    static const char *const values[] = {"train.gradient_sync=step", "train.gradient_sync=replica",
                                         "train.gradient_sync=microbatch"};
    static const char *const meshes[] = {"mesh.dp_replicate=1", "mesh.dp_replicate=2", "mesh.dp_replicate=4"};
    static const char *const steps[] = {"train.tokens_per_step=256", "train.tokens_per_step=1024"};
    for (int m = 0; m < 3; m++)
        for (int s = 0; s < 2; s++) {
            Planned taken, other;
            plan(&taken, 4, unknown, WORDS(meshes[m], steps[s]));
            for (int v = 0; v < 3; v++) {
                plan(&other, 4, unknown, WORDS(meshes[m], steps[s], values[v]));
                uint64_t sent = forecast_sent(&taken.f, 0), others = forecast_sent(&other.f, 0);
                assert_true(sent <= others);
                assert_true(sent < others || forecast_memory(&taken.f, 0) <= forecast_memory(&other.f, 0));
                release(&other);
            }
            release(&taken);
        }
}

/* A limit just below the need of a setting leads to the next one, until nothing fits; then it is the one that
 * takes least. The figures are those of the plans, on a GPU those of its memory. */
static void a_limit_moves_auto_on(void **state) {
    (void)state;
    static const char *const meshes[] = {"mesh.dp_replicate=1", "mesh.dp_replicate=2"};
    static const GradientSync order[][3] = {{SYNC_STEP, SYNC_MICROBATCH, SYNC_MICROBATCH},
                                            {SYNC_STEP, SYNC_REPLICA, SYNC_REPLICA}};
    static const char *const deep = "model.num_hidden_layers=24", *const step = "train.tokens_per_step=1024";
    static const char *const devices[] = {"run.device=cpu", "run.device=cuda"};
    for (int m = 0; m < 4; m++) {
        const char *mesh = meshes[m / 2], *device = devices[m % 2];
        double limit = 1e12;
        for (int i = 0; i < 3; i++) {
            Planned p;
            SyncChoice choice;
            configure(&p, WORDS(mesh, step, deep, device));
            assert_int_equal(sync_choose(&p.c, 4, limit, &choice, &err), OK);
            assert_int_equal(choice.sync, order[m / 2][i]);
            assert_int_equal(strstr(choice.why, "nothing fits") != NULL, i == 2);
            options_free(&p.set);
            char chosen[64];
            snprintf(chosen, sizeof chosen, "train.gradient_sync=%s", sync_name(choice.sync));
            plan(&p, 4, unknown, WORDS(mesh, step, deep, device, chosen));
            double bytes = (double)forecast_memory(&p.f, p.f.fullest);
            assert_int_equal(bytes <= limit, i < 2);
            limit = bytes - 1;
            release(&p);
        }
    }
}

/* On a device with separate memory the copy for checkpoints is on the host, where no limit applies. */
static void memory_of_a_gpu_is_its_own(void **state) {
    (void)state;
    Planned here, gpu;
    plan(&here, 1, unknown, WORDS("train.tokens_per_step=256", "run.device=cpu"));
    plan(&gpu, 1, unknown, WORDS("train.tokens_per_step=256", "run.device=cuda"));
    const MemoryPlan *a = rank_memory(&here.f.ranks[0].plan), *b = rank_memory(&gpu.f.ranks[0].plan);
    assert_true(a->staging > 0 && a->staging == b->staging);
    assert_true(a->batches > 32 * 256 && a->batches == b->batches);
    assert_true(a->record > b->record && b->record > 0); /* on a GPU part of it is in pinned memory */
    assert_true(memory_plan_total(a) == memory_plan_pools(a) + a->staging + a->batches + a->record);
    assert_true(memory_plan_total(b) == memory_plan_pools(b) && memory_plan_host(b) >= b->staging);
    assert_true(b->device_scratch >= (size_t)32 << 20);
    assert_int_equal(gpu.f.ranks[0].plan.model.loss_rows, 64); /* all tokens, as there are fewer than 2,048 */
    release(&here);
    release(&gpu);
}

/* ---- hardware ---- */

static void hardware_is_named_or_read(void **state) {
    (void)state;
    Hardware h;
    char path[] = "/tmp/weft-hardware-XXXXXX";
    int file = mkstemp(path);
    assert_int_equal(hardware_read(&h, "b200", &err), OK);
    assert_true(fabs(hardware_peak(&h, DTYPE_BF16) - 2.25e15) < 1);
    assert_int_equal(hardware_read(&h, "h10", &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "expected a100, h100, h800, h200, b200, or a YAML file"));
    assert_int_equal(hardware_read(&h, "missing.yaml", &err), ERR_NOINPUT);
    assert_true(file >= 0);
    dprintf(file, "compute: {bf16_tflops: 100, share: 0.5, ramp_terms: 100}\nlinks: {ranks: 4}\n");
    assert_int_equal(hardware_read(&h, path, &err), OK);
    assert_true(fabs(hardware_products(&h, DTYPE_BF16, 0) - 50e12) < 1 &&
                fabs(hardware_products(&h, DTYPE_BF16, 100) - 25e12) < 1 && h.links.ranks == 4);
    assert_true(fabs(h.memory.gib - 79.6) < 1e-9); /* a file's defaults are those of h100 */
    dprintf(file, "memory: {gigs: 80}\n");
    assert_int_equal(hardware_read(&h, path, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "memory.gigs"));
    remove(path);
    close(file);
}

static double attention(Hardware *h, const char *name, bool backward, int head_dim, int64_t context) {
    assert_int_equal(hardware_read(h, name, &err), OK);
    return hardware_attention(h, DTYPE_BF16, backward, head_dim, context) / 1e12;
}

/* Measured rates by head size and context: at, between and outside the measured contexts. */
static void attention_has_measured_rates(void **state) {
    (void)state;
    Hardware h;
    double at = attention(&h, "h100", false, 128, 2048), next = attention(&h, "h100", false, 128, 4096);
    assert_true(fabs(at - 371) < 1e-9 && fabs(next - 445) < 1e-9);
    double between = attention(&h, "h100", false, 128, 2896);
    assert_true(fabs(between - (371 + 445) / 2.0) < 0.1);
    assert_true(fabs(attention(&h, "h100", false, 128, 1) - at) < 1e-9);
    assert_true(fabs(attention(&h, "h100", true, 64, 1 << 20) - 361 * 0.8) < 1e-9);
    assert_true(fabs(attention(&h, "h200", true, 96, 8192) - 390 * 0.8) < 1e-9);
    assert_true(attention(&h, "a100", false, 128, 8192) < 312);
    assert_true(attention(&h, "b200", false, 128, 8192) > 989);
    h.compute.attention_share = 0.5;
    assert_true(fabs(hardware_attention(&h, DTYPE_BF16, true, 64, 1) - 0.5 * 2.25e15) < 1);
}

static const OpCost *op_cost(const Planned *p, const char *name) {
    const OpCosts *ops = &p->f.ranks[0].ops;
    for (int i = 0; i < ops->count; i++)
        if (strcmp(ops->rows[i].name, name) == 0) return &ops->rows[i];
    fail_msg("no op is called %s", name);
    return NULL;
}

/* Bytes to ranks on the same machine take one link, others another link, concurrently. */
static void collectives_over_machines(void **state) {
    (void)state;
    Hardware h = simple_hardware();
    assert_true(hardware_collective(&h, 1, 1, 1e9, 1) <= 0);
    assert_true(fabs(hardware_collective(&h, 4, 1, 3e9, 1) - 0.3) < 1e-9); /* all inside */
    assert_true(fabs(hardware_collective(&h, 8, 1, 7e9, 1) - 4.0) < 1e-9); /* 4 of 7 leave */
    assert_true(fabs(hardware_collective(&h, 4, 4, 3e9, 1) - 3.0) < 1e-9); /* none of them on this machine */
    assert_true(fabs(hardware_collective(&h, 4, 2, 3e9, 1) - 2.0) < 1e-9); /* one of three is */
    h.links.inside_us = 5, h.links.between_us = 50;
    assert_true(fabs(hardware_collective(&h, 4, 1, 0, 2) - 10e-6) < 1e-12);
    assert_true(fabs(hardware_message(&h, 4, 1e9) - 1.00005) < 1e-9);
    assert_true(fabs(hardware_message(&h, 2, 1e9) - 0.100005) < 1e-9);
}

/* On one rank products and attention take time by their speeds; apart from the update nothing else does
 * here. */
static void a_step_is_its_flops(void **state) {
    (void)state;
    Hardware h = simple_hardware();
    Planned p;
    plan(&p, 1, (ForecastSpeed){.hardware = &h}, WORDS("train.tokens_per_step=256", "train.recompute=none"));
    double attention = 4 * 64 * 64 * 6.0 * 64; /* layers, context, width of queries, 6 a pair of half */
    const ForecastTime *t = &p.f.time;
    assert_true(fabs(t->attention - 4 * attention / 0.25e12) < 1e-9 * t->attention);
    assert_true(fabs(t->products + t->attention / 2 - p.f.ranks[0].flops / 0.5e12) < 1e-9 * t->products);
    assert_true(t->tensor <= 0 && t->context <= 0 && t->exposed <= 0 && t->update > 0 && t->memory > 0);
    assert_true(fabs(t->step - t->products - t->attention - t->memory - t->update) < 1e-9 * t->step);
    release(&p);
}

/* Products, attention and scans in the ops of a step agree with the layers' costs, for any family and
 * recompute policy; the seconds of the ops add up to those of the step. */
static void ops_are_what_layers_say(void **state) {
    (void)state;
    static const char *const families[][4] = {
        {"model.family=llama", "run.seed=1", "run.seed=1", "run.seed=1"},
        {"model.family=gemma2", "model.sliding_window=16", "run.seed=1", "run.seed=1"},
        {"model.family=olmo2", "run.seed=1", "run.seed=1", "run.seed=1"},
        {"model.family=gpt2", "model.num_key_value_heads=8", "run.seed=1", "run.seed=1"},
        {"model.family=mixtral", "model.num_experts=8", "model.num_experts_per_tok=2", "run.seed=1"},
        {"model.family=llama4_text", "model.num_experts=8", "model.moe_intermediate_size=96",
         "model.sliding_window=24"},
        {"model.family=recurrent", "model.mixer=[mamba2, attention]", "model.num_key_value_heads=8",
         "run.seed=1"},
        {"model.family=llama", "optimizer.kind=muon", "numerics.mode=exact", "run.seed=1"}};
    static const char *const policies[] = {"train.recompute=none", "train.recompute=selective",
                                           "train.recompute=full"};
    Hardware h = simple_hardware();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (int r = 0; r < 3; r++) {
            Planned p;
            double flops = 0, seconds = 0;
            const char *const *f = families[i];
            plan(&p, 1, (ForecastSpeed){.hardware = &h},
                 WORDS("train.tokens_per_step=256", f[0], f[1], f[2], f[3], policies[r]));
            const OpCosts *ops = &p.f.ranks[0].ops;
            const ForecastTime *t = &p.f.time;
            for (int k = 0; k < ops->count; k++) {
                flops += strcmp(ops->rows[k].name, "the optimizer") ? ops->rows[k].flops : 0;
                seconds += ops->rows[k].seconds;
            }
            if (fabs(flops / p.f.ranks[0].flops - 1) > 1e-9)
                fail_msg("%s, %s: %.6g FLOPs, by the layers %.6g", f[0], policies[r], flops,
                         p.f.ranks[0].flops);
            assert_true(fabs(seconds - t->products - t->attention - t->memory - t->update) < 1e-9 * seconds);
            release(&p);
        }
}

/* Each op of a model that is small enough to compute by hand: 4 layers, 4 microbatches of 64 tokens. */
static void ops_are_reckoned(void **state) {
    (void)state;
    Hardware h = simple_hardware();
    Planned p;
    h.memory.gb_per_s = 1;
    plan(&p, 1, (ForecastSpeed){.hardware = &h}, WORDS("train.tokens_per_step=256", "train.recompute=none"));
    const struct {
        const char *name;
        double calls, flops, bytes;
    } rows[] = {
        /* [64, 64] x [64, 384]: x, W and y; dy, W and dx; x, dy and dW twice in fp32. */
        {"gate and up", 48, 16 * 3 * 2.0 * 64 * 64 * 384,
         16 * (2.0 * 3 * (64 * 64 + 64 * 384) + 2 * 2 * 64 * 384 + 2 * 4 * 64 * 384)},
        {"activation_forward", 16, 0, 16 * 3 * 2.0 * 64 * 192},
        {"rope", 32, 0, 32 * 2 * 2.0 * 64 * 12 * 8},
        {"attention_forward", 16, 16 * 4.0 * 64 * 64 * 64 / 2, 16 * (2.0 * 3 * 64 * 64 + 4.0 * 64 * 8)},
        {"cross_entropy", 4, 0, 4 * 64 * 512 * (4.0 + 4 + 2)},
        {"adamw", 0, 0,
         (double)model_parameter_count(&p.c.model.shape) * 28 +
             2.0 * ((double)model_parameter_count(&p.c.model.shape) - 9 * 64)}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const OpCost *c = op_cost(&p, rows[i].name);
        if (rows[i].calls > 0) assert_true(fabs(c->calls - rows[i].calls) < 1e-9);
        assert_true(fabs(c->flops - rows[i].flops) <= 1e-9 * rows[i].flops);
        if (fabs(c->bytes - rows[i].bytes) > 1e-9 * rows[i].bytes)
            fail_msg("%s moves %.0f bytes, by hand %.0f", rows[i].name, c->bytes, rows[i].bytes);
        assert_true(fabs(c->seconds - fmax(c->bytes / 1e9, 0)) <
                    1e-9 * c->seconds); /* bound by slow memory */
    }
    release(&p);
}

/* The counting device has every op that a pass may call. */
static void a_counting_device_has_every_op(void **state) {
    (void)state;
    CountingDevice c;
    device_count(&c, 64, NULL, NULL);
#define IS_THERE(id, slot, ...) assert_true(c.device.ops->slot != NULL);
    DEVICE_OPS(IS_THERE)
#undef IS_THERE
}

/* Fast links are hidden behind work except for the first and the last transfer; on slow links a step takes
 * the time of its bytes. */
static void exposed_is_what_work_does_not_hide(void **state) {
    (void)state;
    double before = -1;
    for (double speed = 1e-7; speed < 1e3; speed *= 100) {
        Hardware h = simple_hardware();
        Planned p;
        h.links.inside_gb_per_s = speed;
        plan(&p, 4, (ForecastSpeed){.hardware = &h}, WORDS("train.tokens_per_step=1024"));
        const ForecastTime *t = &p.f.time;
        double sent = (double)(p.f.ranks[0].traffic.parameters + p.f.ranks[0].traffic.gradients);
        double bytes = sent / (1e9 * speed), passes = t->products + t->attention + t->memory;
        assert_true(t->exposed <= bytes * (1 + 1e-9) + 1e-12);
        assert_true(t->exposed >= bytes - passes - 1e-9 * bytes);
        if (before >= 0) assert_true(t->exposed <= before);
        before = t->exposed;
        release(&p);
    }
}

/* With tp and cp, the step is shorter than on one rank by the split of the work, and longer by the
 * collectives; with infinitely fast links only the split of the work remains. */
static void ranks_of_tp_and_cp_share_the_work(void **state) {
    (void)state;
    static const char *const meshes[] = {"mesh.tp=4", "mesh.cp=4"};
    Hardware h = simple_hardware();
    Planned one, copied;
    plan(&one, 1, (ForecastSpeed){.hardware = &h}, WORDS("train.tokens_per_step=256"));
    for (int i = 0; i < 2; i++) {
        Planned p;
        plan(&p, 4, (ForecastSpeed){.hardware = &h}, WORDS(meshes[i], "train.tokens_per_step=256"));
        const ForecastTime *t = &p.f.time;
        assert_true(fabs(4 * t->products - one.f.time.products) < 1e-9 * one.f.time.products);
        assert_true(fabs(4 * t->attention - one.f.time.attention) < 1e-9 * one.f.time.attention);
        double bytes = over_units(&p, PASS_TENSOR) + over_units(&p, PASS_CONTEXT);
        assert_true(fabs((t->tensor + t->context) * 10e9 - bytes) < 1e-9 * bytes);
        h.links.hidden_share = 0.5;
        double exchanged = t->tensor + t->context;
        release(&p);
        plan(&p, 4, (ForecastSpeed){.hardware = &h}, WORDS(meshes[i], "train.tokens_per_step=256"));
        assert_true(fabs(2 * (p.f.time.tensor + p.f.time.context) - exchanged) < 1e-9 * exchanged);
        h.links.hidden_share = 0;
        release(&p);
    }
    release(&one);
    /* Four replicas of one KV head take as much as four heads, except for the dgrad of q k v: each rank
     * computes a fourth of the sum over 16 of 32 columns, in one of three passes. */
    for (int i = 0; i < 2; i++)
        plan(i ? &copied : &one, 4, (ForecastSpeed){.hardware = &h},
             WORDS("mesh.tp=4", "train.tokens_per_step=256",
                   i ? "model.num_key_value_heads=1" : "model.num_key_value_heads=4"));
    const OpCost *of_copied = op_cost(&copied, "q k v"), *of_one = op_cost(&one, "q k v");
    assert_true(fabs(of_copied->flops / of_one->flops - (1 - 12.0 / 32 / 3)) < 1e-9);
    assert_true(fabs(copied.f.ranks[0].flops / one.f.ranks[0].flops - 1) < 1e-9);
    assert_true(copied.f.time.tensor > one.f.time.tensor);
    release(&one);
    release(&copied);
}

/* With a speed of messages, the passes of a unit include their exposed collectives. Forward exposes all of
 * them. Backward exposes what wgrads do not hide: on slow links everything but their work, and on fast links
 * next to nothing of the sums. */
static void a_link_counts_what_is_exposed(void **state) {
    (void)state;
    enum { BLOCK = 1 };
    Planned free;
    plan(&free, 2, (ForecastSpeed){.tflops = 1}, WORDS("mesh.tp=2", "train.tokens_per_step=256"));
    Cost work = free.f.units[BLOCK];
    for (double speed = 1e-6; speed < 1e6; speed *= 1000) {
        Planned p;
        plan(&p, 2, (ForecastSpeed){.tflops = 1, .link = speed},
             WORDS("mesh.tp=2", "train.tokens_per_step=256"));
        Cost took = p.f.units[BLOCK], bytes = p.f.passes[BLOCK][PASS_TENSOR].bytes;
        double byte = 1e12 / (speed * 1e9), forward = took.forward - work.forward,
               back = took.input - work.input;
        assert_true(fabs(forward - bytes.forward * byte) <= 1e-9 * took.forward);
        assert_true(back >= bytes.input * byte - work.input - work.weight - 1e-9 * took.input);
        assert_true(back < bytes.input * byte);
        /* Of four gathers, and two sums of twice the bytes, one gather cannot be hidden. */
        if (speed > 1e4) assert_true(back < bytes.input * byte / 6);
        release(&p);
    }
    release(&free);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_over_tp_are_the_formulas),
                                       cmocka_unit_test(bytes_over_ep_are_the_formulas),
                                       cmocka_unit_test(auto_of_cp_sends_fewer_bytes),
                                       cmocka_unit_test(bytes_over_cp_are_the_formulas),
                                       cmocka_unit_test(activations_shrink_by_tp_and_cp),
                                       cmocka_unit_test(states_are_sharded),
                                       cmocka_unit_test(what_does_not_fit_is_named),
                                       cmocka_unit_test(auto_is_what_follows_from_mesh_and_step),
                                       cmocka_unit_test(auto_takes_the_least_memory_of_the_fewest_bytes),
                                       cmocka_unit_test(a_limit_moves_auto_on),
                                       cmocka_unit_test(memory_of_a_gpu_is_its_own),
                                       cmocka_unit_test(hardware_is_named_or_read),
                                       cmocka_unit_test(attention_has_measured_rates),
                                       cmocka_unit_test(collectives_over_machines),
                                       cmocka_unit_test(a_step_is_its_flops),
                                       cmocka_unit_test(ops_are_what_layers_say),
                                       cmocka_unit_test(ops_are_reckoned),
                                       cmocka_unit_test(a_counting_device_has_every_op),
                                       cmocka_unit_test(exposed_is_what_work_does_not_hide),
                                       cmocka_unit_test(ranks_of_tp_and_cp_share_the_work),
                                       cmocka_unit_test(a_link_counts_what_is_exposed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
