/* Reproduces golden values: `golden DIR ...`. Each DIR holds a small model, a batch for each step, and the
 * results of float64 arithmetic for them (tests/golden/make/make_golden.py): losses, gradient norms, the
 * gradients of step 1 and the final weights. Prints the worst deviations with their limits; exits with 1 if
 * one is exceeded.
 *
 *     config.json  model.safetensors  expected.json  grads.safetensors  final.safetensors
 *     batch.safetensors: tokens [steps, rows, context + 1], and optionally targets [steps, rows, context]
 *     routes.safetensors, optional, for models with experts: model.layers.N.mlp.gate.routes
 *     [steps, tokens, k], the experts of each token, ascending
 *
 * An expected.json with a mtp_loss_weight belongs to a model with an MTP module: its steps have a
 * further_loss. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "device/cpu/cpu.h"
#include "device/ops/memory.h"
#include "engine/engine.h"

typedef struct Golden {
    const char *dir;
    bool
        whole; /* sums are split as for two ranks of tp, but not those over the width of experts (mesh.etp) */
    cJSON *expected;
    int steps;
    int64_t rows, context;
    int64_t *tokens, *targets; /* [steps, rows, context + 1], [steps, rows, context] or NULL */
    OptimizerOptions optimizer;
    StepOptions options;
    Device device;
    RankPlan plan;
    Comm *comm;
    Engine *engine;
} Golden;

/* The experts of each token in bf16. Rounding changes a router's logits, so tokens with close scores go to
 * other experts than in float64, and the gradients of single experts then differ by their own size. With
 * given routes everything but that choice can be compared. Layers ask in ascending order, once a step. */
static struct {
    int64_t *layers[64]; /* [steps, tokens, k] */
    int count, asked;
} given;

static void given_route(Device *d, const RouteArgs *o) {
    int64_t assignments = o->s.tokens * o->s.chosen;
    const int64_t *chosen = given.layers[given.asked % given.count] + given.asked / given.count * assignments;
    (void)d, given.asked++;
    for (int64_t i = 0; i < assignments; i++) o->r.chosen[i] = (int32_t)chosen[i];
    for (int64_t t = 0; t < o->s.tokens; t++) {
        route_score(o->s, o->r.scores + t * o->s.experts);
        route_weigh(o->s, o->r.scores + t * o->s.experts, o->r.chosen + t * o->s.chosen,
                    o->r.weights + t * o->s.chosen);
    }
    route_order(o->s, o->r, o->counts);
}

/* A comparison: the worst deviation so far, and its limit. */
typedef struct Verdict {
    const char *what;
    double worst, limit;
} Verdict;

static ErrorCode read_i64(const SafeFile *f, const char *name, int64_t **out, const SafeTensor **tensor,
                          Error *err) {
    const SafeTensor *t = safe_find(f, name);
    *tensor = t;
    if (!t) return OK;
    if (t->type != SAFE_I64 || t->rank != 3)
        return error_set(err, ERR_DATA, "%s: tensor %s: expected I64 of rank 3", f->where, name);
    *out = mem_alloc_array((size_t)t->elements, sizeof **out);
    return safe_read(f, t, 0, *out, (size_t)t->elements * sizeof **out, err);
}

static ErrorCode read_batches(Golden *g, Error *err) {
    SafeFile f;
    const SafeTensor *tokens, *targets;
    char *path = path_join(g->dir, "batch.safetensors");
    ErrorCode code = safe_open(&f, path, err);
    free(path);
    TRY(code);
    code = read_i64(&f, "tokens", &g->tokens, &tokens, err);
    if (code == OK && !tokens) code = error_set(err, ERR_DATA, "%s: no tensor named tokens", f.where);
    if (code == OK) {
        g->steps = (int)tokens->shape[0], g->rows = (int64_t)tokens->shape[1],
        g->context = (int64_t)tokens->shape[2] - 1;
        code = read_i64(&f, "targets", &g->targets, &targets, err);
    }
    safe_close(&f);
    return code;
}

static ErrorCode read_routes(Golden *g, const ModelConfig *c, Error *err) {
    SafeFile f;
    char *path = path_join(g->dir, "routes.safetensors"), name[64];
    ErrorCode code = safe_open(&f, path, err);
    free(path);
    TRY(code);
    for (int64_t layer = 0; layer < model_blocks(c) && code == OK; layer++) {
        const SafeTensor *t;
        if (!model_block(c, layer).experts) continue;
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.routes", (int)layer);
        code = read_i64(&f, name, &given.layers[given.count], &t, err);
        if (code == OK && (!t || (int64_t)t->shape[2] != c->num_experts_per_tok || given.count == 63))
            code = error_set(err, ERR_DATA, "%s: no routes of layer %d", f.where, (int)layer);
        else
            given.count++;
    }
    safe_close(&f);
    return code;
}

static void forget_routes(void) {
    for (int i = 0; i < given.count; i++) free(given.layers[i]);
    given.count = given.asked = 0;
}

/* On devices other than the CPU, and without a routes file, tokens go where the router sends them. */
static ErrorCode give_routes(Golden *g, const ModelConfig *c, Error *err) {
    char *path = path_join(g->dir, "routes.safetensors");
    bool there = file_exists(path), here = g->device.ops->route && g->device.memory == 0;
    free(path);
    if (!there || !here || c->num_experts == 0) return OK;
    TRY(read_routes(g, c, err));
    g->device.ops->route = given_route;
    return OK;
}

/* Opens the device as $WEFT_DEFER asks, but after the routes are given: a device defers the ops that it has
 * by then. */
static ErrorCode open_device(Golden *g, const ModelConfig *c, Dtype compute, Error *err) {
    const char *kind = getenv("TEST_KIND"), *asked = getenv("WEFT_DEFER");
    char *seed = asked && *asked ? mem_strdup(asked) : NULL;
    unsetenv("WEFT_DEFER");
    ErrorCode code = device_open(&g->device, kind ? kind : "auto", 0, 0, err);
    if (code == OK && compute != DTYPE_F32) code = give_routes(g, c, err);
    if (code == OK && seed && g->device.memory == 0) device_defer(&g->device, strtoull(seed, NULL, 10));
    if (seed) setenv("WEFT_DEFER", seed, true);
    free(seed);
    return code;
}

static ErrorCode number(const cJSON *object, const char *key, double *out, Error *err) {
    return json_get_double(object, "expected.json", key, true, out, err);
}

static ErrorCode read_expected(Golden *g, Error *err) {
    char *path = path_join(g->dir, "expected.json");
    ErrorCode code = json_read(path, 1 << 20, &g->expected, err);
    free(path);
    TRY(code);
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(g->expected, "optimizer");
    const char *decay = "";
    OptimizerSettings *s = &g->optimizer.settings;
    TRY(number(o, "lr", &s->lr, err));
    TRY(number(o, "beta1", &s->beta1, err));
    TRY(number(o, "beta2", &s->beta2, err));
    TRY(number(o, "eps", &s->eps, err));
    TRY(number(o, "weight_decay", &s->weight_decay, err));
    TRY(number(o, "clip", &g->options.clip, err));
    TRY(json_get_string(o, "optimizer", "decay", true, &decay, err));
    g->optimizer.decay = strstr(decay, "all") ? DECAY_ALL : DECAY_MATRICES;
    g->options.lr_factor = 1, g->options.clip_norm = 2;
    return OK;
}

static bool has_mtp_module(const Golden *g) { return cJSON_HasObjectItem(g->expected, "further_weight"); }

static ErrorCode open_engine(Golden *g, Dtype compute, Error *err) {
    RankSpec spec = {.compute = compute,
                     .tokens = g->rows * g->context,
                     .positions = g->context,
                     .splits = g->whole ? 2 : 0,
                     .expert_splits = g->whole ? 1 : 0,
                     .optimizer = &g->optimizer};
    char *path = path_join(g->dir, "config.json");
    ErrorCode code = model_config_read(&spec.model, path, err);
    free(path);
    TRY(code);
    if (has_mtp_module(g)) {
        TRY(number(g->expected, "further_weight", &spec.mtp_loss_weight, err));
        spec.model.mtp_depth = 1, spec.model.mtp_module = true;
    }
    TRY(open_device(g, &spec.model, compute, err));
    Layout layout;
    TRY(layout_single(&layout, &spec.model, 1, false, err));
    ErrorCode planned = rank_plan(&g->plan, &spec, &layout, 0, &g->device, err);
    layout_free(&layout);
    TRY(planned);
    TRY(comm_open_transport(&g->comm, NULL, err));
    return engine_open(&g->engine, &g->plan, &g->device, g->comm, err);
}

/* Calls visit with each parameter and its values in a file of the directory. Parameters without a gradient
 * are in no gradient file. */
typedef void TensorVisit(Golden *g, const Param *p, const float *values, void *ctx);

static TensorVisit compare_gradient;

static ErrorCode each_tensor(Golden *g, const char *file, TensorVisit *visit, void *ctx, Error *err) {
    SafeFile f;
    char *path = path_join(g->dir, file);
    ErrorCode code = safe_open(&f, path, err);
    free(path);
    TRY(code);
    const ParamTable *table = &g->plan.model.table;
    for (int i = 0; i < table->count && code == OK; i++) {
        const Param *p = &table->params[i];
        const SafeTensor *t = safe_find(&f, p->name);
        if (!t && p->frozen && visit == compare_gradient) continue;
        if (!t || t->type != SAFE_F32 || (int64_t)t->elements != p->count) {
            code = error_set(err, ERR_DATA, "%s: no F32 tensor %s of %lld elements", f.where, p->name,
                             (long long)p->count);
            break;
        }
        float *values = mem_alloc_array((size_t)p->count, sizeof *values);
        code = safe_read(&f, t, 0, values, (size_t)p->count * sizeof *values, err);
        if (code == OK) visit(g, p, values, ctx);
        free(values);
    }
    safe_close(&f);
    return code;
}

static float *master_of(const Golden *g, const Param *p) {
    return engine_master(g->engine, partition_segment(&g->plan.partition, p));
}

static void load_weight(Golden *g, const Param *p, const float *values, void *ctx) {
    (void)ctx;
    OP(&g->device, upload, master_of(g, p), values, (size_t)p->count * sizeof *values);
}

/* Relative Frobenius distance; keeps the worst of all tensors. */
static void compare(Golden *g, const float *tensor, const Param *p, const float *values, double *worst) {
    float *found = mem_alloc_array((size_t)p->count, sizeof *found);
    double difference = 0, size = 0;
    device_fetch(&g->device, found, tensor, (size_t)p->count * sizeof *found);
    for (int64_t i = 0; i < p->count; i++) {
        double d = (double)found[i] - (double)values[i];
        difference += d * d;
        size += (double)values[i] * (double)values[i];
    }
    free(found);
    double relative = sqrt(difference / (size > 0 ? size : 1));
    if (!(relative <= *worst)) *worst = relative;
}

static void compare_gradient(Golden *g, const Param *p, const float *values, void *worst) {
    compare(g, engine_gradient(g->engine, p, partition_segment(&g->plan.partition, p)), p, values, worst);
}

static void compare_weight(Golden *g, const Param *p, const float *values, void *worst) {
    compare(g, master_of(g, p), p, values, worst);
}

static Batch batch_of(const Golden *g, int step) {
    int64_t count = g->rows * g->context;
    Batch b = {.tokens = count};
    int32_t **arrays[] = {&b.inputs, &b.targets, &b.positions, &b.first_key};
    for (int i = 0; i < 4; i++) *arrays[i] = mem_alloc_array((size_t)count, sizeof(int32_t));
    for (int64_t t = 0; t < count; t++) {
        int64_t row = t / g->context, column = t % g->context;
        const int64_t *line = g->tokens + ((int64_t)step * g->rows + row) * (g->context + 1);
        b.inputs[t] = (int32_t)line[column];
        b.targets[t] = (int32_t)(g->targets ? g->targets[(int64_t)step * count + t] : line[column + 1]);
        if (b.targets[t] < 0) b.targets[t] = -1;
        b.positions[t] = (int32_t)column;
        b.first_key[t] = (int32_t)(row * g->context);
        b.valid += b.targets[t] >= 0;
    }
    return b;
}

static void batch_release(Batch *b) {
    free(b->inputs);
    free(b->targets);
    free(b->positions);
    free(b->first_key);
}

static void worsen(double *worst, double found, double expected) {
    double relative = fabs(found - expected) / fabs(expected);
    if (!(relative <= *worst)) *worst = relative;
}

enum { LOSS, NORM, COEFFICIENT, GRADIENT, WEIGHT, VERDICTS };

/* In bf16 without given routes, only the loss of a model with experts can be compared. */
static bool compares(const Golden *g, Dtype compute, int verdict) {
    bool routed = g->plan.spec.model.num_experts == 0 || given.count > 0;
    return verdict == LOSS || compute == DTYPE_F32 || routed;
}

static ErrorCode run_step(Golden *g, int step, Verdict v[VERDICTS], Error *err) {
    static const struct {
        const char *key;
        double p;
    } norms[] = {{"grad_norm_l2", 2}, {"grad_norm_l1", 1}, {"grad_norm_l3", 3}, {"grad_norm_inf", INFINITY}};
    const cJSON *expected = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(g->expected, "steps"), step);
    Batch b = batch_of(g, step);
    StepResult r;
    double value;
    engine_step(g->engine, &b, &g->options, &r);
    batch_release(&b);
    TRY(number(expected, "loss", &value, err));
    worsen(&v[LOSS].worst, r.loss, value);
    if (has_mtp_module(g)) {
        TRY(number(expected, "further_loss", &value, err));
        worsen(&v[LOSS].worst, r.mtp[0], value);
    }
    TRY(number(expected, "clip_coefficient", &value, err));
    worsen(&v[COEFFICIENT].worst, r.clip_coefficient, value);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        int64_t bad;
        const char *culprit;
        TRY(number(expected, norms[i].key, &value, err));
        worsen(&v[NORM].worst, engine_gradient_norm(g->engine, norms[i].p, &bad, &culprit), value);
    }
    return step == 0 ? each_tensor(g, "grads.safetensors", compare_gradient, &v[GRADIENT].worst, err) : OK;
}

static ErrorCode reproduce(Golden *g, Dtype compute, Verdict v[VERDICTS], Error *err) {
    TRY(read_batches(g, err));
    TRY(read_expected(g, err));
    TRY(open_engine(g, compute, err));
    TRY(each_tensor(g, "model.safetensors", load_weight, NULL, err));
    engine_refresh(g->engine);
    for (int s = 0; s < g->steps; s++) TRY(run_step(g, s, v, err));
    return each_tensor(g, "final.safetensors", compare_weight, &v[WEIGHT].worst, err);
}

static void release(Golden *g) {
    cJSON_Delete(g->expected);
    free(g->tokens);
    free(g->targets);
    engine_close(g->engine);
    comm_close(g->comm);
    rank_plan_free(&g->plan);
    device_close(&g->device);
}

/* Whether the model has experts that can be whole on two ranks of tp. */
static bool has_whole_experts(const char *dir) {
    ModelConfig c;
    Error err = {0};
    char *path = path_join(dir, "config.json");
    ErrorCode code = model_config_read(&c, path, &err);
    free(path);
    if (code != OK || c.num_experts == 0) return false;
    c.whole_experts = true;
    return axes_check(&c, 2, &err) == OK &&
           axes_check_whole_experts(&c, (TpGroup){.size = 2}, ALL_TOKENS, &err) == OK;
}

static int check(const char *dir, Dtype compute, bool whole) {
    bool exact = compute == DTYPE_F32;
    Verdict v[VERDICTS] = {[LOSS] = {"loss", 0, exact ? 1e-6 : 5e-3},
                           [NORM] = {"norm", 0, exact ? 1e-5 : 3e-2},
                           [COEFFICIENT] = {"clip", 0, exact ? 1e-5 : 3e-2},
                           [GRADIENT] = {"gradients", 0, exact ? 1e-5 : 5e-2},
                           [WEIGHT] = {"weights", 0, exact ? 1e-4 : 5e-2}};
    Golden g = {.dir = dir, .whole = whole};
    Error err = {0};
    ErrorCode code = reproduce(&g, compute, v, &err);
    bool compared[VERDICTS];
    for (int i = 0; i < VERDICTS; i++) compared[i] = compares(&g, compute, i);
    release(&g);
    forget_routes();
    if (code != OK) {
        fprintf(stderr, "golden: %s\n", err.message);
        return (int)code;
    }
    int failures = 0;
    printf("%-40s %s%s ", dir, dtype_name(compute), whole ? ", whole experts" : "");
    for (int i = 0; i < VERDICTS; i++) {
        if (!compared[i]) continue;
        bool good = v[i].worst <= v[i].limit;
        printf(" %s %.1e%s%.0e", v[i].what, v[i].worst, good ? " < " : " EXCEEDS ", v[i].limit);
        failures += !good;
    }
    printf("\n");
    return failures ? 1 : 0;
}

int main(int argc, char **argv) {
    int status = argc > 1 ? 0 : 2;
    if (argc < 2) fprintf(stderr, "usage: golden DIR ...\n");
    for (int i = 1; i < argc; i++) {
        int fp32 = check(argv[i], DTYPE_F32, false),
            bf16 = fp32 > 1 ? fp32 : check(argv[i], DTYPE_BF16, false), /* prints an error only once */
            whole = has_whole_experts(argv[i]) ? check(argv[i], DTYPE_F32, true) : 0;
        status = status ? status : fp32 ? fp32 : bf16 ? bf16 : whole;
    }
    return status;
}
