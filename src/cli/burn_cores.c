/* Kernels with fixed inputs, whose results are hashed; and the comparison of the hashes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "cli/burn.h"
#include "engine/engine.h"

/* Products of a size that fits a core's second-level cache, so that cores multiply and do not wait. */
enum { PRODUCT = 384, PRODUCTS = 8, VOCAB = 512, CONTEXT = 128, TOKENS = 2 * CONTEXT, STEPS = 2 };

const char *burn_kernel_name(int kernel) {
    static const char *const names[] = {"products fp32", "products bf16", "training steps fp32",
                                        "training steps bf16"};
    return names[kernel];
}

/* ---- training steps ---- */

static const ModelConfig shape = {.vocab_size = VOCAB,
                                  .hidden_size = 128,
                                  .intermediate_size = 320,
                                  .num_hidden_layers = 2,
                                  .num_attention_heads = 4,
                                  .num_key_value_heads = 2,
                                  .head_dim = 32,
                                  .max_position_embeddings = CONTEXT,
                                  .rms_norm_eps = 1e-5,
                                  .rope_theta = 10000,
                                  .rope_scaling = ROPE_NONE,
                                  .bos_token_id = -1,
                                  .eos_token_id = -1};

static const OptimizerOptions optimizer = {.settings = {.kind = OPTIMIZER_ADAMW,
                                                        .states = DTYPE_F32,
                                                        .lr = 3e-3,
                                                        .weight_decay = 0.1,
                                                        .beta1 = 0.9,
                                                        .beta2 = 0.95,
                                                        .eps = 1e-8},
                                           .clip = 1,
                                           .clip_norm = 2};

static ErrorCode make_plan(RankPlan *plan, Dtype type, const Device *d, Error *err) {
    RankSpec spec = {
        .model = shape, .compute = type, .tokens = TOKENS, .positions = CONTEXT, .optimizer = &optimizer};
    Layout layout;
    TRY(layout_single(&layout, &spec.model, 1, false, err));
    ErrorCode code = rank_plan(plan, &spec, &layout, 0, d, err);
    layout_free(&layout);
    return code;
}

/* Any tokens do; these do not repeat within a sequence. */
static void run_steps(Engine *e) {
    int32_t inputs[TOKENS], targets[TOKENS], positions[TOKENS], first_key[TOKENS];
    Batch batch = {.tokens = TOKENS,
                   .inputs = inputs,
                   .targets = targets,
                   .positions = positions,
                   .first_key = first_key,
                   .valid = TOKENS};
    StepOptions options = {.lr_factor = 1, .clip = 1, .clip_norm = 2};
    StepResult result;
    for (int t = 0; t < TOKENS; t++) {
        inputs[t] = t * 37 % VOCAB;
        targets[t] = (t + 1) * 37 % VOCAB;
        positions[t] = t % CONTEXT;
        first_key[t] = t - t % CONTEXT;
    }
    for (int i = 0; i < STEPS; i++) engine_step(e, &batch, &options, &result);
}

/* Of all weights. They contain every gradient. */
static uint64_t hash_weights(const Engine *e, bool fault) {
    uint64_t hash = 0;
    const ParamTable *table = &engine_model(e)->table;
    for (int i = 0; i < table->count; i++) {
        ParamSegment s = partition_segment(&engine_plan(e)->partition, &table->params[i]);
        size_t bytes = (size_t)s.count * sizeof(float);
        unsigned char *host = mem_alloc(bytes + 1);
        device_fetch(engine_device(e), host, engine_master(e, s), bytes);
        if (fault && i == 0) host[bytes / 2] ^= 1;
        hash = hash * 31 + hash64(host, bytes);
        free(host);
    }
    return hash;
}

static ErrorCode hash_steps(Device *d, Dtype type, bool fault, uint64_t *out, Error *err) {
    RankPlan plan;
    Comm *comm = NULL;
    Engine *engine = NULL;
    TRY(make_plan(&plan, type, d, err));
    ErrorCode code = comm_open_transport(&comm, NULL, err);
    if (code == OK) code = engine_open(&engine, &plan, d, comm, err);
    if (code == OK) {
        engine_initialise(engine, INIT_NORMAL, 0.02, 42);
        run_steps(engine);
        *out = hash_weights(engine, fault);
    }
    engine_close(engine);
    comm_close(comm);
    rank_plan_free(&plan);
    return code;
}

/* ---- a core ---- */

static ErrorCode run_kernel(Device *d, int kernel, bool fault, uint64_t *hash, Error *err) {
    switch ((BurnKernel)kernel) {
    case BURN_PRODUCTS_F32: return device_product_hash(d, DTYPE_F32, PRODUCT, PRODUCTS, hash, err);
    case BURN_PRODUCTS_BF16: return device_product_hash(d, DTYPE_BF16, PRODUCT, PRODUCTS, hash, err);
    case BURN_STEPS_F32: return hash_steps(d, DTYPE_F32, fault, hash, err);
    case BURN_STEPS_BF16: return hash_steps(d, DTYPE_BF16, false, hash, err);
    case BURN_KERNELS: break;
    }
    return ERR_INTERNAL;
}

static void add_result(BurnResult *results, uint64_t hash) {
    int i = 0;
    while (i < BURN_RESULTS - 1 && results[i].count > 0 && results[i].hash != hash) i++;
    results[i].hash = hash;
    results[i].count++;
}

/* A fault is of one repeat: the one that a second round makes, or the only one. */
static ErrorCode run_rounds(BurnWorker *w, Device *d, double until, bool fault, Error *err) {
    do {
        bool now = fault && w->rounds == 1;
        for (int k = 0; k < BURN_KERNELS; k++) {
            uint64_t hash = 0;
            TRY(run_kernel(d, k, now, &hash, err));
            add_result(w->results[k], hash);
        }
        w->rounds++;
    } while (clock_seconds() < until);
    return OK;
}

void burn_cores(BurnWorker *w, double until, bool fault) {
    Device d = {0};
    Error err = {.message = ""};
    double start = clock_seconds();
    ErrorCode code = device_open_cpu(&d, NULL, w->threads, &err);
    if (code == OK) {
        snprintf(w->kernels, sizeof w->kernels, "%s", d.name);
        code = run_rounds(w, &d, until, fault, &err);
        device_close(&d);
    }
    if (code != OK) snprintf(w->problem, sizeof w->problem, "%.299s", err.message);
    w->seconds += clock_seconds() - start;
}

/* ---- comparison ---- */

static const BurnResult *most_frequent(const BurnResult *results) {
    const BurnResult *best = results;
    for (int i = 1; i < BURN_RESULTS; i++)
        if (results[i].count > best->count) best = &results[i];
    return best;
}

static int64_t total(const BurnResult *results) {
    int64_t sum = 0;
    for (int i = 0; i < BURN_RESULTS; i++) sum += results[i].count;
    return sum;
}

/* Workers whose most frequent result it is. */
static int votes_for(const Burn *b, int kernel, uint64_t hash) {
    int votes = 0;
    for (int i = 0; i <= b->cores; i++) {
        const BurnResult *r = most_frequent(b->workers[i].results[kernel]);
        votes += r->count > 0 && r->hash == hash;
    }
    return votes;
}

/* The result of most workers. Returns false if two results have as many: one of them is wrong, and which one
 * is not known. */
static bool find_truth(const Burn *b, int kernel, uint64_t *truth) {
    int most = 0;
    bool single = true;
    for (int i = 0; i <= b->cores; i++) {
        const BurnResult *r = most_frequent(b->workers[i].results[kernel]);
        int votes = r->count > 0 ? votes_for(b, kernel, r->hash) : 0;
        if (votes > most) *truth = r->hash, most = votes, single = true;
        if (votes == most && votes > 0 && r->hash != *truth) single = false;
    }
    return single;
}

static void name_worker(const BurnWorker *w, Text *out) {
    if (w->core < 0)
        text_printf(out, "%d threads", w->threads);
    else
        text_printf(out, "core %d", w->core);
}

/* known: which result is the right one. */
static int judge_worker(const BurnWorker *w, int kernel, bool known, uint64_t truth, Text *out) {
    int64_t wrong = 0, all = total(w->results[kernel]);
    for (int i = 0; i < BURN_RESULTS; i++)
        if (w->results[kernel][i].hash != truth) wrong += w->results[kernel][i].count;
    if (all == 0 || (known && wrong == 0)) return 0;
    name_worker(w, out);
    text_printf(out, ": %s: ", burn_kernel_name(kernel));
    if (known)
        text_printf(out, "%lld of %lld repeats have other bits than most cores\n", (long long)wrong,
                    (long long)all);
    else
        text_puts(out, "does not agree with others, and either may be wrong\n");
    return 1;
}

int burn_judge(const Burn *b, Text *out) {
    int lines = 0;
    for (int i = 0; i <= b->cores; i++) {
        const BurnWorker *w = &b->workers[i];
        if (!*w->problem) continue;
        name_worker(w, out);
        text_printf(out, ": %s\n", w->problem);
        lines++;
    }
    for (int k = 0; k < BURN_KERNELS; k++) {
        uint64_t truth = 0;
        bool known = find_truth(b, k, &truth);
        for (int i = 0; i <= b->cores; i++) lines += judge_worker(&b->workers[i], k, known, truth, out);
    }
    return lines;
}
