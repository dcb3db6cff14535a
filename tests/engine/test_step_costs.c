/* What a step costs the host, whatever the model and the number of microbatches: at most two waits for
 * results of the device, and no allocations. With TEST_KIND=cuda it tests the GPU plugin instead of a
 * deferred CPU; there a norm that needs powers has waits of its own, one for each block of a parameter. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "support/allocations.h"
#include "support/optimizers.h"
#include "support/tiny_model.h"

/* ---- a step ---- */

enum { CONTEXT = 24, VOCAB = 61, MOST_MICROBATCHES = 5, MOST_UNITS = 9 };

typedef struct Case {
    int layers, microbatches;
    Dtype compute;
    Recompute recompute;
    bool split, tied, exact, mixed; /* mixed: several optimizers */
    double clip_norm;
} Case;

static ModelConfig shape(const Case *c) {
    ModelConfig m = tiny_model(VOCAB, c->layers, CONTEXT);
    m.tie_word_embeddings = c->tied;
    m.attention_bias = m.mlp_bias = true;
    return m;
}

static void fill_batch(Batch *b, int32_t memory[4][CONTEXT], uint64_t index) {
    *b = (Batch){CONTEXT, memory[0], memory[1], memory[2], memory[3], CONTEXT};
    for (int t = 0; t < CONTEXT; t++) {
        uint64_t r = rng_u64(99, index * CONTEXT + (uint64_t)t);
        b->inputs[t] = (int32_t)(r % VOCAB), b->targets[t] = (int32_t)((r >> 32) % VOCAB);
        b->positions[t] = t, b->first_key[t] = 0;
    }
}

typedef struct Costs {
    long long waits, blocks; /* blocks: of all parameters, as fetched to the host for powers */
    int allocations;         /* by the program itself */
    size_t grown;            /* bytes in use after the last step, less those before it */
} Costs;

/* defer 0: a CPU whose ops have ended when they return. */
static void open_device(Device *d, uint64_t defer) {
    Error err = {.message = ""};
    const char *other = defer ? getenv("TEST_KIND") : NULL;
    if (device_open(d, other ? other : "cpu", 0, 1, &err) != OK) fail_msg("%s", err.message);
    if (defer && !other) device_defer(d, defer);
}

static long long blocks_of(const RankPlan *plan) {
    enum { BLOCK = 1 << 14 };
    long long blocks = 0;
    for (int i = 0; i < plan->model.table.count; i++)
        blocks +=
            (partition_segment(&plan->partition, &plan->model.table.params[i]).count + BLOCK - 1) / BLOCK;
    return blocks;
}

/* Actions follow each other, and a wait lies within its action. On a device with a clock of its own, checks
 * its times of the second step and, after waiting, of the third. */
static void check_times(Engine *e) {
    for (int last = 0; last < 2; last++) {
        const StepTimes *t = engine_is_timed_late(e) ? engine_timed(e, last) : engine_times(e);
        double before = 0;
        assert_non_null(t);
        assert_int_equal(t->program->count, engine_plan(e)->program.count);
        for (int i = 0; i < t->program->count; i++) {
            const ActionTime *a = &t->actions[i];
            assert_true(a->start >= before && a->end >= a->start);
            assert_true(a->waited >= 0 && a->waited <= a->end - a->start + 1e-9);
            before = a->end;
        }
        assert_true(before > 0);
    }
}

/* Costs of the last of three steps. The second is probed if there are probes; all are timed. */
static Costs costs_of(const Case *c, uint64_t defer, bool probes) {
    Device d;
    Comm *comm;
    Engine *e;
    RankPlan plan;
    Layout layout;
    Error err = {.message = ""};
    static int32_t memory[MOST_MICROBATCHES][4][CONTEXT];
    Batch batches[MOST_MICROBATCHES];
    Costs costs = {0};
    UnitProbe units[MOST_UNITS];
    OptimizerGroup groups[3];
    OptimizerOptions mixed = mixed_optimizer(groups);
    RankSpec spec = {.model = shape(c),
                     .compute = c->compute,
                     .recompute = c->recompute,
                     .tokens = CONTEXT,
                     .positions = CONTEXT,
                     .loss_rows = 10,
                     .defer_head = c->split,
                     .exact = c->exact,
                     .probes = probes,
                     .optimizer = c->mixed ? &mixed : &usual_optimizer};
    open_device(&d, defer);
    if (layout_single(&layout, &spec.model, c->microbatches, c->split, &err) != OK)
        fail_msg("%s", err.message);
    if (rank_plan(&plan, &spec, &layout, 0, &d, &err) != OK) fail_msg("%s", err.message);
    layout_free(&layout);
    if (comm_open_transport(&comm, NULL, &err) != OK) fail_msg("%s", err.message);
    if (engine_open(&e, &plan, &d, comm, &err) != OK) fail_msg("%s", err.message);
    engine_initialise(e, INIT_NORMAL, 0.3, 7);
    StepOptions options = {.lr_factor = 1e-3, .clip = 1, .clip_norm = c->clip_norm};
    for (int step = 0; step < 3; step++) {
        StepResult result;
        for (int m = 0; m < c->microbatches; m++) fill_batch(&batches[m], memory[m], (uint64_t)m);
        long long waits = d.waits[WAIT_RESULT];
        size_t before = allocations_in_use();
        int own = allocations_own();
        options.probe = probes && step == 1 ? units : NULL;
        options.timed = true;
        engine_step(e, batches, &options, &result);
        costs = (Costs){d.waits[WAIT_RESULT] - waits, blocks_of(&plan), allocations_own() - own,
                        allocations_in_use() - before};
        assert_true(isfinite(result.loss) && !result.skipped);
    }
    check_times(e);
    engine_close(e);
    comm_close(comm);
    rank_plan_free(&plan);
    device_close(&d);
    return costs;
}

static const Case cases[] = {
    {.layers = 1, .microbatches = 1, .clip_norm = 2},
    {.layers = 3, .microbatches = 5, .clip_norm = 2, .tied = true},
    {.layers = 7, .microbatches = 2, .clip_norm = INFINITY, .recompute = RECOMPUTE_FULL},
    {.layers = 2, .microbatches = 3, .clip_norm = 1, .exact = true, .compute = DTYPE_BF16},
    {.layers = 2, .microbatches = 5, .clip_norm = 3, .exact = true, .split = true},
    {.layers = 5, .microbatches = 3, .clip_norm = 2, .mixed = true, .recompute = RECOMPUTE_SELECTIVE},
};
#define EACH_CASE(c) for (const Case *c = cases; c < cases + sizeof cases / sizeof *cases; c++)

/* One wait, or two if a norm needs the largest gradient first; the same for steps that could be probed but
 * are not (on GPUs only these, since simulated ones are slow). */
static void test_waits(void **state) {
    (void)state;
    const bool cuda = getenv("TEST_KIND");
    EACH_CASE(c)
    for (uint64_t seed = cuda; seed < 2; seed++)
        for (int probes = cuda; probes < 2; probes++) {
            bool powers = c->clip_norm > 2 && isfinite(c->clip_norm);
            Costs costs = costs_of(c, seed, probes);
            assert_int_equal(costs.waits, (powers ? 2 : 1) + (powers && cuda ? costs.blocks : 0));
        }
}

/* Libraries free what they allocate: oneDNN packs operands of products into memory of its own. */
static void test_allocations(void **state) {
    (void)state;
    if (!COUNTS_ALLOCATIONS || getenv("TEST_KIND")) skip();
    int before = allocations_own();
    free(mem_alloc(1));
    assert_int_equal(allocations_own() - before, 1);
    EACH_CASE(c) {
        Costs costs = costs_of(c, 0, true);
        assert_int_equal(costs.allocations, 0);
        assert_int_equal(costs.grown, 0);
    }
}

int main(void) {
    unsetenv("WEFT_DEFER"); /* both kinds are tested */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
