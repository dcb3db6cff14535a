/* The engine on a small model: gradients against finite differences, and bits that must be equal. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"
#include "device/ops/memory.h"
#include "engine/engine.h"
#include "support/optimizers.h"
#include "support/tiny_model.h"
#include "train/inject.h"

enum { CONTEXT = 24, SEQUENCES = 2, TOKENS = CONTEXT * SEQUENCES, MICROBATCHES = 3, VOCAB = 61 };

typedef struct Setup {
    const char *kind;
    int threads;
    Dtype compute;
    Recompute recompute;
    bool split, tied, biases, exact, parts, adapted;
    const OptimizerOptions *optimizer; /* NULL: the default */
    double z, ema;                     /* coefficient of the z-loss; decay of the average */
    bool noise;
    bool inference;
    int microbatches, smaller; /* per step, 0: MICROBATCHES; of a smaller step, 0: there is none */
} Setup;

typedef struct Run {
    Device device;
    RankPlan plan;
    Comm *comm;
    Engine *engine;
    Batch batches[MICROBATCHES];
} Run;

static ModelConfig shape(Setup s) {
    ModelConfig c = tiny_model(VOCAB, 2, CONTEXT);
    c.rope_scaling = (RopeScaling){4, 1, 4, 8, .truncate = true};
    c.tie_word_embeddings = s.tied;
    c.attention_bias = c.mlp_bias = s.biases;
    return c;
}

/* Random tokens; the second sequence has two documents; some targets are ignored, in the last microbatch
 * most. */
static void fill_batch(Batch *b, int index) {
    *b = (Batch){.tokens = TOKENS};
    int32_t **arrays[] = {&b->inputs, &b->targets, &b->positions, &b->first_key};
    for (int i = 0; i < 4; i++) *arrays[i] = mem_alloc_array(TOKENS, sizeof(int32_t));
    for (int t = 0; t < TOKENS; t++) {
        uint64_t r = rng_u64(99, (uint64_t)(index * TOKENS + t));
        b->inputs[t] = (int32_t)(r % VOCAB);
        b->targets[t] =
            (r >> 20) % (index == MICROBATCHES - 1 ? 2 : 9) == 0 ? -1 : (int32_t)((r >> 32) % VOCAB);
        int start = t < CONTEXT ? 0 : t < CONTEXT + 7 ? CONTEXT : CONTEXT + 7;
        b->first_key[t] = start;
        b->positions[t] = t - start;
        b->valid += b->targets[t] >= 0;
    }
}

/* As if a collective ran before every op: an action for each op. */
static bool everywhere(const Partition *p, int unit, int part) {
    (void)p, (void)unit, (void)part;
    return true;
}

static void add_smaller(Layout *l, const ModelConfig *model, Setup s) {
    Error err = {0};
    Layout part;
    if (layout_single(&part, model, s.smaller, s.split, &err) != OK) fail_msg("%s", err.message);
    l->smaller = mem_alloc_array(1, sizeof *l->smaller);
    l->smaller[l->smaller_count++] = part.schedule;
    stages_free(&part.stages);
}

static const AdapterSpec adapters = {.rank = 3, .scale = 2, .match = "layers.0.*q_proj|layers.1"};

static void open_run(Run *r, Setup s) {
    Error err = {0};
    OptimizerOptions optimizer = s.optimizer ? *s.optimizer : usual_optimizer;
    optimizer.ema = s.ema;
    const char *other = strcmp(s.kind, "auto") == 0 ? getenv("TEST_KIND") : NULL;
    if (device_open(&r->device, other ? other : s.kind, 0, s.threads, &err) != OK)
        fail_msg("%s", err.message);
    RankSpec spec = {.model = shape(s),
                     .compute = s.compute,
                     .recompute = s.recompute,
                     .tokens = TOKENS,
                     .positions = CONTEXT,
                     .loss_rows = 20,
                     .defer_head = s.split,
                     .exact = s.exact,
                     .probes = true,
                     .z_loss = s.z,
                     .adapters = s.adapted ? adapters : (AdapterSpec){.rank = 0},
                     .noise = s.noise,
                     .inference = s.inference,
                     .optimizer = &optimizer,
                     .has_collective = s.parts ? everywhere : NULL};
    Layout layout;
    int microbatches = s.microbatches ? s.microbatches : MICROBATCHES;
    if (layout_single(&layout, &spec.model, microbatches, s.split, &err) != OK) fail_msg("%s", err.message);
    if (s.smaller) add_smaller(&layout, &spec.model, s);
    if (rank_plan(&r->plan, &spec, &layout, 0, &r->device, &err) != OK) fail_msg("%s", err.message);
    layout_free(&layout);
    if (s.parts) assert_true(r->plan.program.count > 3 * microbatches * r->plan.program.units);
    if (comm_open_transport(&r->comm, NULL, &err) != OK) fail_msg("%s", err.message);
    if (engine_open(&r->engine, &r->plan, &r->device, r->comm, &err) != OK) fail_msg("%s", err.message);
    if (!s.inference) engine_initialise(r->engine, INIT_NORMAL, 0.3, 7);
    for (int m = 0; m < MICROBATCHES; m++) fill_batch(&r->batches[m], m);
}

static void close_run(Run *r) {
    for (int m = 0; m < MICROBATCHES; m++) {
        free(r->batches[m].inputs);
        free(r->batches[m].targets);
        free(r->batches[m].positions);
        free(r->batches[m].first_key);
    }
    engine_close(r->engine);
    comm_close(r->comm);
    rank_plan_free(&r->plan);
    device_close(&r->device);
}

/* Another engine of the same plan, as after a repair. */
static void reopen(Run *r) {
    Error err = {0};
    EngineState *state = engine_take_state(r->engine);
    engine_close(r->engine);
    if (engine_open_with(&r->engine, &r->plan, &r->device, r->comm, state, &err) != OK)
        fail_msg("%s", err.message);
    engine_free_state(state);
}

static StepOptions options(double lr) { return (StepOptions){.lr_factor = lr, .clip = 1, .clip_norm = 2}; }

static void *fetch(Run *r, const void *tensor, size_t bytes) {
    void *host = mem_alloc(bytes);
    device_fetch(&r->device, host, tensor, bytes);
    return host;
}

/* One rank owns everything, so weights and gradients are one run each. */
static float *weights_of(const Run *r) { return engine_master(r->engine, (ParamSegment){0}); }
static float *gradients_of(const Run *r) {
    return engine_gradient(r->engine, &r->plan.model.table.params[0], (ParamSegment){0});
}

static size_t flat_bytes(const Run *r) { return r->plan.partition.owned * sizeof(float); }

/* The loss that is trained on. An evaluation has only the cross-entropy, so it takes the loss of a step with
 * learning rate 0. */
static double trained_loss(Run *r) {
    StepOptions none = options(0);
    StepResult result;
    engine_step(r->engine, r->batches, &none, &result);
    return result.loss + result.z_loss;
}

static double total_loss(Run *r) {
    double valid = 0;
    LossSum losses = {.nonfinite = 0};
    if (r->plan.spec.z_loss > 0) return trained_loss(r);
    for (int m = 0; m < MICROBATCHES; m++) {
        engine_evaluate(r->engine, &r->batches[m], &losses);
        valid += (double)r->batches[m].valid;
    }
    assert_int_equal(losses.nonfinite, 0);
    return exact_value(&losses.sum) / valid;
}

/* Scores of single tokens add up to the loss of an evaluation. */
static void test_scores(void **state) {
    (void)state;
    Run r;
    open_run(&r, (Setup){.kind = "auto", .threads = 2});
    double sum = 0;
    int64_t rows = 0;
    for (int m = 0; m < MICROBATCHES; m++) {
        LossRecord records[TOKENS];
        assert_true(engine_score(r.engine, &r.batches[m], records));
        for (int t = 0; t < TOKENS; t++) {
            if (r.batches[m].targets[t] < 0) continue;
            sum += (double)records[t].max + log(records[t].sum) - (double)records[t].target;
            assert_true(records[t].target <= records[t].max && records[t].sum >= 1);
            rows++;
        }
    }
    /* Losses are rounded to fp32 one by one, which is the only difference. */
    assert_true(fabs(sum / (double)rows - total_loss(&r)) < 1e-6);
    close_run(&r);
}

static void close_to(double a, double b) {
    if (!(fabs(a - b) <= 1e-12 * fabs(b))) fail_msg("%.17g is not %.17g", a, b);
}

enum { UNITS = 4 };

/* One probed step of a fresh run; the caller frees the weights before and after it. */
static StepResult probe_once(Setup s, UnitProbe *probe, float **before, float **after) {
    Run r;
    StepResult result;
    StepOptions o = options(1e-2);
    open_run(&r, s);
    assert_int_equal(r.plan.model.table.units, UNITS);
    o.probe = probe;
    *before = fetch(&r, weights_of(&r), flat_bytes(&r));
    engine_step(r.engine, r.batches, &o, &result);
    *after = fetch(&r, weights_of(&r), flat_bytes(&r));
    close_run(&r);
    return result;
}

/* Compares with figures that the host computes from the same numbers. */
static void test_probe(void **state) {
    (void)state;
    Setup s = {.kind = "auto", .threads = 2};
    UnitProbe probe[UNITS];
    float *before, *after;
    Run r;
    StepResult result = probe_once(s, probe, &before, &after);
    double squares = 0;
    for (int u = 0; u < UNITS; u++) {
        assert_int_equal(probe[u].weight.nonfinite + probe[u].weight_gradient.nonfinite, 0);
        squares += probe[u].weight_gradient.rms * probe[u].weight_gradient.rms *
                   (double)probe[u].weight_gradient.count;
    }
    close_to(sqrt(squares), result.grad_norm);
    /* The embedding's outputs are rows of its table before the step; its weights are those after it. */
    open_run(&r, s);
    const Param *table = &r.plan.model.table.params[0];
    const float *rows = before + partition_segment(&r.plan.partition, table).at,
                *now = after + partition_segment(&r.plan.partition, table).at;
    double out = 0, weights = 0, largest = 0;
    int64_t h = r.plan.model.config.hidden_size;
    for (int m = 0; m < MICROBATCHES; m++)
        for (int t = 0; t < TOKENS; t++)
            for (int64_t i = 0; i < h; i++) {
                double x = (double)rows[r.batches[m].inputs[t] * h + i];
                out += x * x;
                largest = fmax(largest, fabs(x));
            }
    for (int64_t i = 0; i < table->count; i++) weights += (double)now[i] * (double)now[i];
    close_to(probe[0].output.rms, sqrt(out / (double)(MICROBATCHES * TOKENS * h)));
    assert_true(probe[0].output.max == largest);
    assert_int_equal(probe[0].output.count, MICROBATCHES * TOKENS * h);
    close_to(probe[0].weight.rms, sqrt(weights / (double)table->count));
    assert_true(probe[2].output.rms > 0 && probe[2].gradient.rms > 0 && probe[0].gradient.max > 0);
    assert_true(isnan(probe[UNITS - 1].output.rms) && isnan(probe[UNITS - 1].gradient.rms));
    /* Probing changes nothing. */
    StepOptions o = options(1e-2);
    engine_step(r.engine, r.batches, &o, &result);
    float *plain = fetch(&r, weights_of(&r), flat_bytes(&r));
    assert_memory_equal(plain, after, flat_bytes(&r));
    close_run(&r);
    free(before);
    free(after);
    free(plain);
}

/* Probes are the same however passes are cut and whatever they recompute. */
static void test_probes_are_alike(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        Setup s = {.kind = "auto", .threads = 2, .compute = type ? DTYPE_BF16 : DTYPE_F32},
              other[3] = {s, s, s};
        UnitProbe one[UNITS], two[UNITS];
        float *before, *after;
        other[0].split = true, other[1].parts = true, other[2].recompute = RECOMPUTE_FULL;
        probe_once(s, one, &before, &after);
        free(before);
        free(after);
        for (int i = 0; i < 3; i++) {
            probe_once(other[i], two, &before, &after);
            for (int u = 0; u + 1 < UNITS; u++) assert_memory_equal(&one[u], &two[u], sizeof one[u]);
            free(before);
            free(after);
        }
    }
}

static void set_weight(Run *r, size_t at, float value) {
    OP(&r->device, upload, weights_of(r) + at, &value, sizeof value);
}

/* Evaluations do not leave out losses that are not finite: their number accompanies the sum. */
static void test_nonfinite_losses(void **state) {
    (void)state;
    Run r;
    open_run(&r, (Setup){.kind = "auto", .threads = 1});
    LossSum losses = {.nonfinite = 0};
    const ParamTable *t = &r.plan.model.table;
    int64_t valid = r.batches[0].valid;
    engine_evaluate(r.engine, &r.batches[0], &losses);
    assert_int_equal(losses.nonfinite, 0);
    set_weight(&r, partition_segment(&r.plan.partition, &t->params[t->count - 1]).at, NAN);
    engine_evaluate(r.engine, &r.batches[0], &losses);
    assert_int_equal(losses.nonfinite, valid);
    engine_evaluate(r.engine, &r.batches[1], &losses);
    assert_int_equal(losses.nonfinite, valid + r.batches[1].valid);
    close_run(&r);
}

/* Slope of the loss along one element of a parameter, by a central difference. */
static double slope(Run *r, size_t at, float value, float step) {
    set_weight(r, at, value + step);
    double up = total_loss(r);
    set_weight(r, at, value - step);
    double down = total_loss(r);
    set_weight(r, at, value);
    return (up - down) / (2 * (double)step);
}

static void check_finite_differences(Setup s) {
    Run r;
    StepResult result;
    open_run(&r, s);
    StepOptions none = options(0);
    engine_step(r.engine, r.batches, &none, &result);
    assert_true(fabs(result.loss + result.z_loss - total_loss(&r)) < 1e-6 * result.loss);
    assert_true(s.z > 0 ? result.z_loss > 0.1 * result.loss : result.z_loss == 0);
    float *weights = fetch(&r, weights_of(&r), flat_bytes(&r));
    float *gradients = fetch(&r, gradients_of(&r), flat_bytes(&r));
    for (int i = 0; i < r.plan.model.table.count; i++) {
        const Param *p = &r.plan.model.table.params[i];
        /* With a z-loss each difference takes two steps. */
        for (int k = 0; k < (s.z > 0 ? 1 : 3); k++) {
            size_t at = partition_segment(&r.plan.partition, p).at +
                        (size_t)(rng_u64(5, (uint64_t)(i * 3 + k)) % (uint64_t)p->count);
            double expected = slope(&r, at, weights[at], 1e-2f), found = (double)gradients[at];
            if (fabs(expected - found) > 2e-4 + 2e-2 * fabs(expected))
                fail_msg("%s: gradient %g, by differences %g", p->name, found, expected);
        }
    }
    free(weights);
    free(gradients);
    close_run(&r);
}

/* TEST_BRIEF skips tests with hundreds of passes, since a simulated GPU is slow. */
static void test_finite_differences(void **state) {
    (void)state;
    if (getenv("TEST_BRIEF")) skip();
    check_finite_differences((Setup){.kind = "reference", .threads = 1});
    check_finite_differences((Setup){.kind = "auto", .threads = 2, .tied = true, .biases = true});
    check_finite_differences(
        (Setup){.kind = "auto", .threads = 2, .biases = true, .split = true, .recompute = RECOMPUTE_FULL});
    check_finite_differences((Setup){.kind = "auto", .threads = 2, .tied = true, .split = true, .z = 0.05});
}

enum { STEPS = 4 };

typedef struct Outcome {
    double losses[STEPS], norms[STEPS];
    float *weights;
    size_t bytes;
} Outcome;

static Outcome train(Setup s) {
    Run r;
    Outcome o;
    open_run(&r, s);
    StepOptions step = options(1e-2);
    for (int i = 0; i < STEPS; i++) {
        StepResult result;
        engine_step(r.engine, r.batches, &step, &result);
        o.losses[i] = result.loss, o.norms[i] = result.grad_norm;
    }
    o.bytes = flat_bytes(&r);
    o.weights = fetch(&r, weights_of(&r), o.bytes);
    close_run(&r);
    return o;
}

static void assert_same(Outcome a, Outcome b, const char *what) {
    bool same = memcmp(a.losses, b.losses, sizeof a.losses) == 0 &&
                memcmp(a.norms, b.norms, sizeof a.norms) == 0 && memcmp(a.weights, b.weights, a.bytes) == 0;
    free(b.weights);
    if (!same)
        fail_msg("%s changes bits: losses %.17g and %.17g", what, a.losses[STEPS - 1], b.losses[STEPS - 1]);
}

static void check_same_bits(Setup s) {
    Outcome base = train(s);
    assert_true(isfinite(base.losses[STEPS - 1]) && base.losses[STEPS - 1] < base.losses[0]);
    assert_same(base, train(s), "running again");
    Setup other = s;
    other.threads = 2;
    assert_same(base, train(other), "two threads");
    other.threads = 3;
    assert_same(base, train(other), "three threads");
    other = s, other.split = true;
    assert_same(base, train(other), "splitting the backward pass");
    other = s, other.parts = true;
    assert_same(base, train(other), "an action for each part of a unit");
    for (int recompute = RECOMPUTE_SELECTIVE; recompute <= RECOMPUTE_FULL; recompute++) {
        other = s, other.recompute = (Recompute)recompute;
        assert_same(base, train(other), "recomputing");
        other.split = true;
        other.parts = true;
        assert_same(base, train(other), "recomputing with a split backward pass, part by part");
    }
    free(base.weights);
}

static void test_same_bits_fp32(void **state) {
    (void)state;
    if (getenv("TEST_BRIEF")) skip();
    check_same_bits((Setup){.kind = "auto", .threads = 1, .compute = DTYPE_F32});
    check_same_bits(
        (Setup){.kind = "auto", .threads = 1, .compute = DTYPE_F32, .tied = true, .biases = true});
}

static void test_same_bits_bf16(void **state) {
    (void)state;
    if (getenv("TEST_BRIEF")) skip();
    check_same_bits((Setup){.kind = "auto", .threads = 1, .compute = DTYPE_BF16, .tied = true});
    check_same_bits((Setup){.kind = "auto", .threads = 1, .compute = DTYPE_BF16, .biases = true});
}

static void test_a_bad_step_is_skipped_and_named(void **state) {
    (void)state;
    Run r;
    StepResult result;
    open_run(&r, (Setup){.kind = "auto", .threads = 1});
    StepOptions step = options(1e-2);
    engine_step(r.engine, r.batches, &step, &result);
    assert_false(result.skipped);
    float *before = fetch(&r, weights_of(&r), flat_bytes(&r));
    const Param *p = param_find(&r.plan.model.table, "model.layers.1.mlp.down_proj.weight");
    size_t at = partition_segment(&r.plan.partition, p).at;
    float kept = before[at];
    set_weight(&r, at, INFINITY);
    engine_step(r.engine, r.batches, &step, &result);
    assert_true(result.skipped && result.culprit[0] && result.clip_coefficient == 0);
    assert_int_equal(engine_updates(r.engine), 1);
    set_weight(&r, at, kept);
    float *after = fetch(&r, weights_of(&r), flat_bytes(&r));
    assert_memory_equal(before, after, flat_bytes(&r));
    engine_step(r.engine, r.batches, &step, &result);
    assert_false(result.skipped);
    free(before);
    free(after);
    close_run(&r);
}

static void a_nan_on_purpose(bool exact) {
    Run r;
    StepResult result;
    open_run(&r, (Setup){.kind = "auto", .threads = 1, .exact = exact});
    StepOptions step = options(1e-2);
    for (uint64_t index = 0; index < 3; index++) {
        step.poison = POISON_GRADIENT, step.poison_index = 1000003 * index;
        engine_step(r.engine, r.batches, &step, &result);
        assert_true(result.skipped && result.nonfinite >= 1);
        bool known = exact || index > 0; /* sums of a step are read once, until a step has been skipped */
        assert_string_equal(result.culprit, known ? "the gradient of lm_head.weight in microbatch 0"
                                                  : "the gradient of lm_head.weight");
        step.poison = POISON_NONE;
        engine_step(r.engine, r.batches, &step, &result);
        assert_false(result.skipped);
    }
    assert_int_equal(engine_updates(r.engine), 3);
    close_run(&r);
}

static void test_a_nan_on_purpose_skips_one_step(void **state) {
    (void)state;
    a_nan_on_purpose(false);
    a_nan_on_purpose(true);
}

/* Flips exactly the named bit of all weights. */
static void test_a_bit_turned_on_purpose(void **state) {
    (void)state;
    Run r;
    char where[160];
    open_run(&r, (Setup){.kind = "auto", .threads = 1, .compute = DTYPE_BF16});
    uint64_t bits = (uint64_t)r.plan.model.table.elements * 32;
    uint32_t *before = fetch(&r, weights_of(&r), flat_bytes(&r));
    const uint64_t indices[] = {0, 31, bits / 2 + 7, bits - 1};
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
        inject_bitflip(r.engine, FAULT_IN_WEIGHTS, indices[i], where, sizeof where);
        uint32_t *after = fetch(&r, weights_of(&r), flat_bytes(&r));
        size_t changed = 0, at = 0;
        for (size_t k = 0; k < flat_bytes(&r) / 4; k++)
            if (before[k] != after[k]) changed++, at = k;
        assert_int_equal(changed, 1);
        assert_int_equal(before[at] ^ after[at], UINT32_C(1) << indices[i] % 32);
        char expected[160];
        const Param *p = param_find(&r.plan.model.table, strrchr(where, ' ') + 1);
        assert_non_null(p);
        snprintf(expected, sizeof expected, "bit %d of element %lld of %s", (int)(indices[i] % 32),
                 (long long)(at - partition_segment(&r.plan.partition, p).at), p->name);
        assert_string_equal(where, expected);
        inject_bitflip(r.engine, FAULT_IN_WEIGHTS, indices[i], where, sizeof where);
        free(after);
    }
    uint32_t *after = fetch(&r, weights_of(&r), flat_bytes(&r));
    assert_memory_equal(before, after, flat_bytes(&r));
    free(before);
    free(after);
    close_run(&r);
}

/* Computed by hand, in double, from the weights after each step; the average must not change the weights. */
static void test_average(void **state) {
    enum { UPDATES = 12 };
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        Run r, plain;
        Setup s = {
            .kind = kind ? "auto" : "reference", .threads = 2, .compute = kind ? DTYPE_BF16 : DTYPE_F32};
        open_run(&plain, s);
        s.ema = 0.6;
        open_run(&r, s);
        const ParamTable *t = &r.plan.model.table;
        size_t n = flat_bytes(&r) / sizeof(float);
        double *mean = mem_alloc_array(n, sizeof *mean);
        float *weights = fetch(&r, weights_of(&r), flat_bytes(&r));
        engine_start_average(r.engine);
        for (size_t i = 0; i < n; i++) mean[i] = (double)weights[i];
        free(weights);
        for (int step = 1; step <= UPDATES; step++) {
            StepOptions o = options(1e-2);
            StepResult result;
            double decay = fmin(0.6, (1 + (double)step) / (10 + (double)step));
            engine_step(r.engine, r.batches, &o, &result);
            engine_step(plain.engine, plain.batches, &o, &result);
            weights = fetch(&r, weights_of(&r), flat_bytes(&r));
            float *others = fetch(&plain, weights_of(&plain), flat_bytes(&r));
            assert_memory_equal(weights, others, flat_bytes(&r));
            for (size_t i = 0; i < n; i++) mean[i] = decay * mean[i] + (1 - decay) * (double)weights[i];
            free(weights), free(others);
        }
        for (int i = 0; i < t->count; i++) {
            ParamSegment segment = partition_segment(&r.plan.partition, &t->params[i]);
            size_t bytes = (size_t)segment.count * sizeof(float);
            float *found =
                fetch(&r, engine_optimizer_state(r.engine, i, param_states(&r.plan.groups, i) - 1), bytes);
            for (int64_t k = 0; k < segment.count; k++)
                if (fabs((double)found[k] - mean[segment.at + (size_t)k]) > 1e-6)
                    fail_msg("%s: %g, by hand %g", t->params[i].name, (double)found[k],
                             mean[segment.at + (size_t)k]);
            free(found);
        }
        free(mean);
        close_run(&r);
        close_run(&plain);
    }
}

/* A step with fewer microbatches has the same bits as where no step is larger, and needs no more memory. */
static void check_smaller(Setup s) {
    Run large, small;
    s.smaller = 1;
    open_run(&large, s);
    s.microbatches = 1, s.smaller = 0;
    open_run(&small, s);
    size_t bytes = engine_bytes(large.engine);
    for (int step = 0; step < STEPS; step++) {
        StepOptions one = options(1e-2), all = options(1e-2);
        StepResult a, b;
        one.microbatches = 1;
        one.next = large.batches, one.next_microbatches = step + 1 < STEPS ? 1 : 0;
        engine_step(large.engine, large.batches, &one, &a);
        assert_int_equal(engine_times(large.engine)->program->microbatches, 1);
        one.microbatches = one.next_microbatches = 0, one.next = NULL;
        engine_step(small.engine, small.batches, &one, &b);
        assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm && a.valid == b.valid);
        if (step + 1 < STEPS) continue;
        engine_step(large.engine, large.batches, &all, &a);
        assert_true(a.valid > b.valid && isfinite(a.loss));
        assert_int_equal(engine_times(large.engine)->program->microbatches, MICROBATCHES);
    }
    assert_int_equal(engine_bytes(large.engine), bytes);
    close_run(&large);
    close_run(&small);
}

static void test_smaller_steps(void **state) {
    (void)state;
    check_smaller((Setup){.kind = "auto", .threads = 2, .tied = true});
    check_smaller((Setup){.kind = "auto", .threads = 2, .exact = true});
    check_smaller((Setup){.kind = "auto", .threads = 2, .split = true, .compute = DTYPE_BF16});
}

/* Computed by the formulas from the norm of the whole step and that of a step with its first microbatch
 * alone. */
static void check_noise(Setup s) {
    Run r;
    StepResult whole, first;
    StepOptions one = options(0), all = options(0);
    s.noise = true, s.smaller = 1, one.microbatches = 1;
    open_run(&r, s);
    engine_step(r.engine, r.batches, &one, &first);
    assert_true(isnan(first.noise.signal) && isnan(first.noise.variance));
    engine_step(r.engine, r.batches, &all, &whole);
    double b = (double)first.valid, n = (double)whole.valid, gb = first.grad_norm * first.grad_norm,
           gn = whole.grad_norm * whole.grad_norm, signal = (n * gn - b * gb) / (n - b),
           variance = (gb - gn) / (1 / b - 1 / n);
    assert_true(variance > 0 && fabs(whole.noise.variance - variance) < 1e-4 * variance);
    assert_true(fabs(whole.noise.signal - signal) < 1e-4 * (gn + gb));
    close_run(&r);
}

static void test_noise(void **state) {
    (void)state;
    check_noise((Setup){.kind = "auto", .threads = 2});
    check_noise((Setup){.kind = "auto", .threads = 2, .exact = true});
    check_noise((Setup){.kind = "reference", .threads = 1, .split = true});
}

static void test_norms_agree(void **state) {
    (void)state;
    Run r;
    StepResult result;
    open_run(&r, (Setup){.kind = "auto", .threads = 2});
    StepOptions step = options(0);
    engine_step(r.engine, r.batches, &step, &result);
    float *g = fetch(&r, gradients_of(&r), flat_bytes(&r));
    const double powers[] = {1, 2, 3, 2.5};
    int64_t bad;
    const char *name;
    double max = 0;
    for (size_t k = 0; k < sizeof powers / sizeof *powers; k++) {
        double sum = 0;
        for (size_t i = 0; i < flat_bytes(&r) / sizeof(float); i++)
            sum += pow(fabs((double)g[i]), powers[k]); /* padding is zero */
        double expected = pow(sum, 1 / powers[k]);
        assert_true(fabs(engine_gradient_norm(r.engine, powers[k], &bad, &name) - expected) <
                    1e-10 * expected);
    }
    for (size_t i = 0; i < flat_bytes(&r) / sizeof(float); i++) max = fmax(max, fabs((double)g[i]));
    assert_true(engine_gradient_norm(r.engine, INFINITY, &bad, &name) == max);
    /* Powers that underflow or overflow as doubles: any finite p must work. */
    const double large[] = {400, 1000, 1e9};
    for (size_t k = 0; k < sizeof large / sizeof *large; k++) {
        double norm = engine_gradient_norm(r.engine, large[k], &bad, &name);
        assert_true(bad == 0 && norm >= max * (1 - 1e-12));
        assert_true(norm <= max * pow((double)r.plan.model.table.elements, 1 / large[k]));
    }
    free(g);
    close_run(&r);
}

/* ---- freezing ---- */

static ParamSegment segment_of(const Run *r, const Param *p) {
    return partition_segment(&r->plan.partition, p);
}

static void compare(Run *a, const void *x, Run *b, const void *y, size_t bytes, bool equal,
                    const char *name) {
    void *left = fetch(a, x, bytes), *right = fetch(b, y, bytes);
    if ((memcmp(left, right, bytes) == 0) != equal)
        fail_msg("%s: %s", name, equal ? "differs" : "is the same");
    free(left);
    free(right);
}

/* Trained parameters have the same gradient as without freezing, and the norm covers only them. */
static void check_first_step(Run *plain, Run *frozen) {
    StepResult a, b;
    StepOptions o = options(1e-3);
    double squares = 0;
    engine_step(plain->engine, plain->batches, &o, &a);
    engine_step(frozen->engine, frozen->batches, &o, &b);
    assert_true(a.loss <= b.loss && a.loss >= b.loss);
    for (int i = 0; i < frozen->plan.model.table.count; i++) {
        const Param *q = &frozen->plan.model.table.params[i],
                    *p = param_find(&plain->plan.model.table, q->name);
        if (q->frozen) continue;
        size_t bytes = (size_t)q->count * sizeof(float);
        const float *wanted = engine_gradient(plain->engine, p, segment_of(plain, p));
        compare(plain, wanted, frozen, engine_gradient(frozen->engine, q, segment_of(frozen, q)), bytes, true,
                q->name);
        float *g = fetch(plain, wanted, bytes);
        for (int64_t k = 0; k < q->count; k++) squares += (double)g[k] * (double)g[k];
        free(g);
    }
    assert_true(fabs(b.grad_norm - sqrt(squares)) < 1e-9 * b.grad_norm);
    assert_true(b.grad_norm < a.grad_norm);
}

/* Frozen weights keep their initial bits after any number of steps; the others have moved. */
static void check_weights(Run *untouched, Run *frozen) {
    StepResult r;
    StepOptions o = options(1e-3);
    for (int i = 0; i < 2; i++) engine_step(frozen->engine, frozen->batches, &o, &r);
    for (int i = 0; i < frozen->plan.model.table.count; i++) {
        const Param *q = &frozen->plan.model.table.params[i],
                    *p = param_find(&untouched->plan.model.table, q->name);
        compare(untouched, engine_master(untouched->engine, segment_of(untouched, p)), frozen,
                engine_master(frozen->engine, segment_of(frozen, q)), (size_t)q->count * sizeof(float),
                q->frozen, q->name);
    }
}

/* Frozen parameters have no optimizer states, and frozen matrices no gradient. */
static void check_memory(const Run *plain, const Run *frozen) {
    const ParamTable *t = &frozen->plan.model.table;
    size_t states = 0, gradients = 0;
    for (int i = 0; i < t->count; i++)
        if (t->params[i].frozen) states += 2 * pool_round((size_t)t->params[i].count * sizeof(float));
    for (int u = 0; u < t->units; u++) gradients += t->flats[u][FLAT_FROZEN] * sizeof(float);
    assert_int_equal(plain->plan.memory.optimizer - frozen->plan.memory.optimizer, states);
    assert_true(plain->plan.memory.gradients >= frozen->plan.memory.gradients);
    assert_true(plain->plan.memory.gradients - frozen->plan.memory.gradients + 4096 >= gradients);
}

static void check_freezing(Setup s, const char *match) {
    Run plain, untouched, frozen;
    OptimizerGroup group = group_of(match);
    OptimizerOptions o = usual_optimizer;
    group.frozen = 1;
    o.groups = (ObjectList){1, (char *)&group};
    open_run(&plain, s);
    open_run(&untouched, s);
    s.optimizer = &o;
    open_run(&frozen, s);
    check_first_step(&plain, &frozen);
    check_weights(&untouched, &frozen);
    check_memory(&plain, &frozen);
    close_run(&plain);
    close_run(&untouched);
    close_run(&frozen);
}

/* Freezes whole units, parts of units, one of three matrices that are multiplied as one, vectors, tied
 * ends. */
static void test_freezing(void **state) {
    (void)state;
    static const char *const matches[] = {"layers.0", "mlp|embed", "q_proj", "norm", "embed|lm_head", "proj"};
    for (size_t i = 0; i < sizeof matches / sizeof *matches; i++) {
        check_freezing((Setup){.kind = "auto", .threads = 1}, matches[i]);
        check_freezing((Setup){.kind = "auto", .threads = 1, .tied = true, .exact = true}, matches[i]);
        check_freezing(
            (Setup){.kind = "auto", .threads = 1, .split = true, .biases = true, .recompute = RECOMPUTE_FULL},
            matches[i]);
    }
}

/* ---- adapters ---- */

static const Param *like(const Run *r, const Param *p) { return param_find(&r->plan.model.table, p->name); }

/* With B zero the loss is that of the base, and only B has a gradient. After some steps the base still has
 * its bits, and all adapters have moved. */
static void check_adapters(Setup s) {
    Run base, adapted;
    StepResult a, b;
    StepOptions still = options(0), o = options(1e-2);
    open_run(&base, s);
    s.adapted = true;
    open_run(&adapted, s);
    engine_step(base.engine, base.batches, &still, &a);
    engine_step(adapted.engine, adapted.batches, &still, &b);
    assert_true(fabs(a.loss - b.loss) <= 1e-6 * a.loss && b.grad_norm < a.grad_norm && b.grad_norm > 0);
    double before = b.loss;
    for (int i = 0; i < 6; i++) engine_step(adapted.engine, adapted.batches, &o, &b);
    assert_true(b.loss < before);
    const ParamTable *t = &adapted.plan.model.table;
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        size_t bytes = (size_t)p->count * sizeof(float);
        float *now = fetch(&adapted, engine_master(adapted.engine, segment_of(&adapted, p)), bytes);
        if (!p->row->adapts) {
            compare(&base, engine_master(base.engine, segment_of(&base, like(&base, p))), &adapted,
                    engine_master(adapted.engine, segment_of(&adapted, p)), bytes, true, p->name);
        } else if (p->row->cols == DIM_ADAPTER) {
            bool moved = false;
            for (int64_t k = 0; k < p->count; k++) moved |= now[k] < 0 || now[k] > 0;
            assert_true(moved);
        }
        assert_int_equal(p->frozen, p->row->adapts == NULL);
        free(now);
    }
    close_run(&base);
    close_run(&adapted);
}

/* The base has no optimizer states, and its matrices no gradient; engine_open checks that memory is as
 * planned. */
static void check_adapter_memory(Setup s) {
    Run r;
    s.adapted = true;
    open_run(&r, s);
    const ParamTable *t = &r.plan.model.table;
    size_t states = 0, gradients = 0;
    for (int i = 0; i < t->count; i++)
        if (t->params[i].row->adapts) states += 2 * pool_round((size_t)t->params[i].count * sizeof(float));
    for (int u = 0; u < t->units; u++)
        gradients += pool_round(t->flats[u][FLAT_VECTORS] * sizeof(float)) +
                     pool_round(t->flats[u][FLAT_MATRICES] * sizeof(float));
    assert_int_equal(r.plan.memory.optimizer, states);
    assert_true(adapters_count(t, &r.plan.spec.model) > 0);
    if (!s.exact && !s.tied) assert_int_equal(r.plan.memory.gradients, gradients);
    close_run(&r);
}

static void test_adapters(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        Setup s = {.kind = "auto",
                   .threads = 1,
                   .tied = i & 1,
                   .exact = i & 2,
                   .split = i & 4,
                   .biases = i & 4,
                   .recompute = (Recompute)(i % 3)};
        check_adapters(s);
        check_adapter_memory(s);
    }
}

/* As if weights were loaded: in the dtype that they are held in, which is that of passes. */
static void take_over_weights(Run *to, Run *from) {
    const ParamTable *t = &to->plan.model.table;
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        ParamSegment segment = partition_segment(&to->plan.partition, p);
        Dtype type = flat_dtype(p->flat, to->plan.spec.compute);
        size_t bytes = (size_t)segment.count * dtype_bytes(type);
        assert_int_equal(engine_held(to->engine, p->flat), type);
        void *host = fetch(from, weights_matrix(engine_weights(from->engine), p), bytes);
        OP(&to->device, upload, engine_weight(to->engine, p, segment), host, bytes);
        free(host);
    }
}

/* For inference a weight is held once, in the dtype of passes, and evaluation has the same bits as in
 * training. */
static void check_inference(Setup s) {
    Run trained, r;
    size_t weights = 0;
    open_run(&trained, s);
    s.inference = true;
    open_run(&r, s);
    take_over_weights(&r, &trained);
    const ParamTable *t = &r.plan.model.table;
    const MemoryPlan *memory = rank_memory(&r.plan);
    for (int u = 0; u < t->units; u++)
        for (int f = 0; f < FLATS; f++)
            weights += pool_round(t->flats[u][f] * dtype_bytes(flat_dtype((Flat)f, s.compute)));
    assert_in_range(memory->parameters + memory->copy, 1, weights + 2 * POOL_ALIGN);
    assert_int_equal(engine_bytes(r.engine), memory_plan_pools(memory));
    for (int m = 0; m < MICROBATCHES; m++) {
        LossSum a = {.nonfinite = 0}, b = {.nonfinite = 0};
        engine_evaluate(trained.engine, &trained.batches[m], &a);
        engine_evaluate(r.engine, &r.batches[m], &b);
        assert_true(exact_value(&a.sum) > 0);
        assert_memory_equal(&a, &b, sizeof a);
    }
    close_run(&r);
    close_run(&trained);
}

static void test_inference(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++)
        check_inference((Setup){.kind = "auto",
                                .threads = 2,
                                .compute = i & 1 ? DTYPE_BF16 : DTYPE_F32,
                                .tied = i & 2,
                                .biases = i & 4});
}

/* Steps have the same bits when another engine goes on with the weights, the moments and the number of
 * updates. */
static void check_state(Setup s) {
    Run plain, moved;
    StepOptions o = options(0.05);
    StepResult a, b;
    open_run(&plain, s);
    open_run(&moved, s);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(engine_step(plain.engine, plain.batches, &o, &a), OK);
        assert_int_equal(engine_step(moved.engine, moved.batches, &o, &b), OK);
        assert_memory_equal(&a.loss, &b.loss, sizeof a.loss);
        assert_memory_equal(&a.grad_norm, &b.grad_norm, sizeof a.grad_norm);
        reopen(&moved);
    }
    assert_int_equal(engine_updates(moved.engine), 4);
    assert_false(engine_is_torn(moved.engine));
    float *expected = fetch(&plain, weights_of(&plain), flat_bytes(&plain));
    float *weights = fetch(&moved, weights_of(&moved), flat_bytes(&moved));
    assert_memory_equal(expected, weights, flat_bytes(&plain));
    free(expected);
    free(weights);
    close_run(&moved);
    close_run(&plain);
}

static void test_another_engine_goes_on(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        check_state((Setup){.kind = "auto",
                            .threads = 2,
                            .compute = i & 1 ? DTYPE_BF16 : DTYPE_F32,
                            .tied = i & 2,
                            .exact = i & 2,
                            .ema = i & 1 ? 0.9 : 0});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scores),
                                       cmocka_unit_test(test_another_engine_goes_on),
                                       cmocka_unit_test(test_inference),
                                       cmocka_unit_test(test_probe),
                                       cmocka_unit_test(test_probes_are_alike),
                                       cmocka_unit_test(test_nonfinite_losses),
                                       cmocka_unit_test(test_finite_differences),
                                       cmocka_unit_test(test_same_bits_fp32),
                                       cmocka_unit_test(test_same_bits_bf16),
                                       cmocka_unit_test(test_a_bad_step_is_skipped_and_named),
                                       cmocka_unit_test(test_a_nan_on_purpose_skips_one_step),
                                       cmocka_unit_test(test_a_bit_turned_on_purpose),
                                       cmocka_unit_test(test_freezing),
                                       cmocka_unit_test(test_adapters),
                                       cmocka_unit_test(test_average),
                                       cmocka_unit_test(test_smaller_steps),
                                       cmocka_unit_test(test_noise),
                                       cmocka_unit_test(test_norms_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
