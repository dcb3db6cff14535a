/* Training speed on a mesh of ranks: full steps on random tokens, with the layout of a configuration.
 *
 *     [mpirun -n 2 --bind-to none] bench_ranks [--size 125M] [--layers N] [--steps N] [--name TEXT]
 *                                              [--profile] [--cold] [section.key=value ...]
 *
 * Every key of `weft train` is accepted; train.tokens_per_step defaults to 16384 and train.context to 1024.
 * --layers N overrides the number of layers of the size. A forward pass warms up, unless --cold. Times are
 * those of the fastest step; loss and gradient norm are those of the last. Rank 0 prints one JSON object on
 * stdout and a readable line on stderr; with --profile also the time by action and op. The peak is the sum of
 * the matrix-product speeds of all ranks at the same time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/find.h"
#include "base/clock.h"
#include "base/json.h"
#include "device/ops/ops.h"
#include "plan/layout.h"
#include "train/setup.h"
#include "workload.h"

enum { WORDS_MAX = 64 };

typedef struct Options {
    const Size *size;
    const char *name;
    int layers; /* 0: as many as the size has */
    int steps;
    bool profile, cold;
    int word_count;
    const char *words[WORDS_MAX];
} Options;

/* Measurements of a step. Combined over ranks: the maximum of times, the sum of quantities that are divided
 * among ranks. */
typedef struct Figures {
    double seconds;             /* the slowest rank's */
    double waited, most_waited; /* for other ranks: sum, and maximum */
    double moved;               /* between actions, spent on progressing messages: sum */
    double norm, stats;         /* NORM without its waits; its pass over the gradients: maximum */
    double sent[AXES];          /* bytes: sum */
    double planned[AXES];       /* as program_traffic predicts: sum */
    double memory, most_memory; /* planned bytes: sum, and maximum */
    double resident;            /* peak resident bytes: sum */
    double peak;                /* FLOP/s: sum */
} Figures;

typedef struct Bench {
    const Options *options;
    Comm *comm;
    Config config;
    OptionSet set;
    Device device;
    Layout layout;
    RankPlan plan;
    Engine *engine;
    Batch *batches;
    StepResult result;
    Figures best; /* of the fastest step */
    Text profile; /* of this rank in that step */
} Bench;

static void must(Bench *b, ErrorCode code, Error *err) {
    if (code == OK) return;
    if (b->comm) comm_fail(b->comm, err);
    fprintf(stderr, "bench_ranks: %s\n", err->message);
    exit((int)code);
}

static void combine_figures(void *into, const void *from) {
    Figures *a = into;
    const Figures *b = from;
    a->seconds = fmax(a->seconds, b->seconds);
    a->waited += b->waited;
    a->most_waited = fmax(a->most_waited, b->most_waited);
    a->moved += b->moved;
    a->norm = fmax(a->norm, b->norm);
    a->stats = fmax(a->stats, b->stats);
    for (int i = 0; i < AXES; i++) a->sent[i] += b->sent[i], a->planned[i] += b->planned[i];
    a->memory += b->memory;
    a->most_memory = fmax(a->most_memory, b->most_memory);
    a->resident += b->resident;
    a->peak += b->peak;
}

static void combine(Bench *b, Figures *f) {
    Error err = {.message = ""};
    must(b, comm_combine(b->comm, f, sizeof *f, combine_figures, &err), &err);
}

/* ---- setting up ---- */

static void open_bench(Bench *b) {
    Error err = {.message = ""};
    const Options *o = b->options;
    must(b, comm_open(&b->comm, &err), &err);
    must(b, config_load(&b->config, &b->set, NULL, o->word_count, o->words, checkpoint_find_shape, &err),
         &err);
    b->config.model.shape = workload_model(o->size, b->config.train.context);
    if (o->layers > 0) b->config.model.shape.num_hidden_layers = o->layers;
    must(b, setup_device(&b->config, b->comm, 0, &b->device, &err), &err);
    must(b, layout_build(&b->layout, &b->config, comm_size(b->comm), &err), &err);
    must(b, setup_communication(&b->config, b->comm, &b->layout.mesh, &b->device, &err), &err);
}

static void open_engine(Bench *b) {
    Error err = {.message = ""};
    const Layout *l = &b->layout;
    RankSpec spec = rank_spec(&b->config, l, &b->device);
    must(b, rank_plan(&b->plan, &spec, l, comm_rank(b->comm), &b->device, &err), &err);
    must(b, engine_open(&b->engine, &b->plan, &b->device, b->comm, &err), &err);
    engine_initialise(b->engine, INIT_NORMAL, 0.02, 1);
    b->batches = mem_alloc_array((size_t)l->microbatches, sizeof *b->batches);
    int first = mesh_dp_rank(&l->mesh, comm_rank(b->comm)) * l->microbatches;
    for (int m = 0; m < l->microbatches; m++)
        b->batches[m] = workload_batch(l->sequences, b->config.train.context, b->options->size->vocab,
                                       (uint64_t)(first + m));
}

static void close_bench(Bench *b) {
    text_free(&b->profile);
    workload_free(b->batches, b->layout.microbatches);
    engine_close(b->engine);
    rank_plan_free(&b->plan);
    device_close(&b->device);
    layout_free(&b->layout);
    options_free(&b->set);
    comm_close(b->comm);
}

/* ---- measuring ---- */

/* All ranks at the same time, since they share a machine. */
static void measure_peak(Bench *b) {
    Error err = {.message = ""};
    must(b, comm_barrier(b->comm, &err), &err);
    Figures f = {.peak = device_matmul_peak(&b->device, b->plan.model.compute, 1, INFINITY)};
    combine(b, &f);
    b->best.peak = fmax(b->best.peak, f.peak);
}

static void count_bytes(const Bench *b, Figures *f) {
    ProgramTraffic plan = rank_traffic(&b->plan);
    const double planned[AXES] = {[AXIS_PP] = (double)plan.pipeline,
                                  [AXIS_DP_REPLICATE] = (double)plan.replicas,
                                  [AXIS_DP_SHARD] = (double)(plan.parameters + plan.gradients),
                                  [AXIS_CP] = (double)plan.context,
                                  [AXIS_TP] = (double)plan.tensor};
    static const AxisSet sets[AXES] = {[AXIS_DP_REPLICATE] = MESH_REPLICAS,
                                       [AXIS_DP_SHARD] = MESH_SHARDS,
                                       [AXIS_CP] = MESH_CONTEXT,
                                       [AXIS_TP] = MESH_TENSOR};
    for (int axis = 0; axis < AXES; axis++) {
        CommTraffic sent = axis == AXIS_PP ? comm_point_traffic(b->comm) : comm_traffic(b->comm, sets[axis]);
        f->sent[axis] = (double)sent.bytes;
        f->planned[axis] = planned[axis];
    }
    f->memory = f->most_memory = (double)engine_bytes(b->engine);
    f->resident = (double)memory_use().peak;
}

static void read_times(const Bench *b, Figures *f) {
    const Program *p = &b->plan.program;
    const StepTimes *times = engine_times(b->engine);
    double busy = 0;
    for (int i = 0; i < p->count; i++) {
        const ActionTime *t = &times->actions[i];
        busy += t->end - t->start;
        if (p->actions[i].kind == ACT_NORM) f->norm += t->end - t->start - t->waited;
    }
    f->waited = f->most_waited = times->waited;
    f->moved = times->actions[p->count - 1].end - busy;
    f->stats = b->device.profile[OP_GRAD_STATS].seconds;
}

static Figures step(Bench *b) {
    Error err = {.message = ""};
    StepOptions options = {.lr_factor = 1, .clip = 1, .clip_norm = 2};
    must(b, comm_barrier(b->comm, &err), &err);
    comm_reset_traffic(b->comm);
    memset(b->device.profile, 0, sizeof b->device.profile);
    double start = clock_seconds();
    engine_step(b->engine, b->batches, &options, &b->result);
    Figures f = {.seconds = clock_seconds() - start};
    read_times(b, &f);
    count_bytes(b, &f);
    return f;
}

/* This rank's time by kind of action and by op. */
static void describe_step(Bench *b, double seconds, Text *out) {
    const Program *p = &b->plan.program;
    const StepTimes *times = engine_times(b->engine);
    struct {
        int count;
        double seconds, waited;
    } kinds[ACT_KINDS] = {{0}};
    for (int i = 0; i < p->count; i++) {
        ActionKind k = p->actions[i].kind;
        kinds[k].count++;
        kinds[k].seconds += times->actions[i].end - times->actions[i].start;
        kinds[k].waited += times->actions[i].waited;
    }
    text_printf(out, "%-20s %9s %9s %9s\n", "action", "count", "seconds", "waited");
    for (int k = 0; k < ACT_KINDS; k++)
        if (kinds[k].count)
            text_printf(out, "%-20s %9d %9.3f %9.3f\n", action_name((ActionKind)k), kinds[k].count,
                        kinds[k].seconds, kinds[k].waited);
    device_profile_print(&b->device, seconds, out);
}

static void warm_up(Bench *b) {
    LossSum losses = {.nonfinite = 0};
    engine_evaluate(b->engine, &b->batches[0], &losses);
}

static void measure(Bench *b) {
    double peak = b->best.peak;
    if (!b->options->cold) warm_up(b);
    b->device.profiling = true;
    b->best.seconds = INFINITY;
    for (int s = 0; s < b->options->steps; s++) {
        Figures f = step(b);
        double own = f.seconds;
        combine(b, &f);
        if (f.seconds >= b->best.seconds) continue;
        b->best = f;
        text_clear(&b->profile);
        describe_step(b, own, &b->profile);
    }
    b->best.peak = peak;
}

/* ---- reporting ---- */

typedef struct Rates {
    double tokens, flops; /* a second */
} Rates;

static Rates rates(const Bench *b) {
    double tokens = (double)(layout_samples(&b->layout) * b->config.train.context) / b->best.seconds;
    return (Rates){tokens, tokens * model_flops_per_token(&b->config.model.shape, b->config.train.context)};
}

static void write_axes(JsonWriter *w, const char *key, const double bytes[AXES]) {
    json_key(w, key);
    json_begin_object(w);
    for (int axis = 0; axis < AXES; axis++) {
        if (bytes[axis] <= 0) continue;
        json_key(w, axis_name((Axis)axis));
        json_double(w, bytes[axis]);
    }
    json_end_object(w);
}

static void print_json(const Bench *b) {
    const Figures *f = &b->best;
    Rates r = rates(b);
    int ranks = comm_size(b->comm);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"ranks", ranks},
                   {"threads", b->device.threads},
                   {"parameters", (double)model_parameter_count(&b->config.model.shape)},
                   {"context", (double)b->config.train.context},
                   {"microbatch", (double)b->layout.sequences},
                   {"microbatches", (double)b->layout.microbatches},
                   {"step_seconds", f->seconds},
                   {"tokens_per_second", r.tokens},
                   {"tflops", r.flops / 1e12},
                   {"peak_tflops", f->peak / 1e12},
                   {"share_of_peak", r.flops / f->peak},
                   {"planned_bytes_of_a_rank", f->most_memory},
                   {"planned_bytes", f->memory},
                   {"peak_rss_bytes", f->resident},
                   {"waited_seconds", f->waited / ranks},
                   {"most_waited_seconds", f->most_waited},
                   {"moving_seconds", f->moved / ranks},
                   {"norm_seconds", f->norm},
                   {"grad_stats_seconds", f->stats},
                   {"loss", b->result.loss},
                   {"grad_norm", b->result.grad_norm}};
    Text out = {0};
    JsonWriter w;
    json_start(&w, &out, 0);
    json_begin_object(&w);
    json_key(&w, "name");
    json_string(&w, b->options->name);
    json_key(&w, "size");
    json_string(&w, b->options->size->name);
    json_key(&w, "compute");
    json_string(&w, dtype_name(b->plan.model.compute));
    json_key(&w, "kernels");
    json_string(&w, b->device.name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        json_key(&w, numbers[i].key);
        json_double(&w, numbers[i].value);
    }
    write_axes(&w, "sent_bytes", f->sent);
    write_axes(&w, "planned_sent_bytes", f->planned);
    json_end_object(&w);
    printf("%s\n", out.data);
    text_free(&out);
}

static void print_line(const Bench *b) {
    const Figures *f = &b->best;
    Rates r = rates(b);
    int ranks = comm_size(b->comm);
    char memory[32];
    fprintf(
        stderr,
        "%-28s %d x %d  %9.1f tokens/s  %8.3f s  %5.1f%% of peak  %10s a rank  waited %.3f s  norm %.2f%%",
        b->options->name, ranks, b->device.threads, r.tokens, f->seconds, 100 * r.flops / f->peak,
        text_bytes(f->most_memory, memory), f->waited / ranks, 100 * f->norm / f->seconds);
    for (int axis = 0; axis < AXES; axis++) {
        char sent[32], planned[32];
        if (f->planned[axis] <= 0 && f->sent[axis] <= 0) continue;
        fprintf(stderr, "  %s sent %s (planned %s)", axis_name((Axis)axis),
                text_bytes(f->sent[axis] / ranks, sent), text_bytes(f->planned[axis] / ranks, planned));
    }
    fputs("\n", stderr);
}

/* ---- command line ---- */

static bool add_word(Options *o, const char *word) {
    if (o->word_count == WORDS_MAX) return false;
    o->words[o->word_count++] = word;
    return true;
}

static bool take_flag(Options *o, const char *name, const char *value) {
    if (strcmp(name, "--size") == 0) return (o->size = workload_size(value)) != NULL;
    if (strcmp(name, "--layers") == 0) return (o->layers = atoi(value)) > 0;
    if (strcmp(name, "--steps") == 0) return (o->steps = atoi(value)) > 0;
    if (strcmp(name, "--name") != 0) return false;
    o->name = value;
    return true;
}

static bool parse(Options *o, int argc, char **argv) {
    *o = (Options){.size = workload_size("125M"), .name = "bench_ranks", .steps = 1};
    bool ok = add_word(o, "train.tokens_per_step=16384") && add_word(o, "train.context=1024");
    for (int i = 1; ok && i < argc; i++) {
        if (strcmp(argv[i], "--profile") == 0)
            o->profile = true;
        else if (strcmp(argv[i], "--cold") == 0)
            o->cold = true;
        else if (strncmp(argv[i], "--", 2) == 0)
            ok = i + 1 < argc && take_flag(o, argv[i], argv[i + 1]), i++;
        else
            ok = add_word(o, argv[i]);
    }
    return ok;
}

int main(int argc, char **argv) {
    Options o;
    if (!parse(&o, argc, argv)) {
        fprintf(stderr,
                "usage: bench_ranks [--size " WORKLOAD_SIZES "] [--layers N] [--steps N] [--name TEXT]\n"
                "                   [--profile] [--cold] [section.key=value ...]\n");
        return 2;
    }
    Bench b = {.options = &o};
    open_bench(&b);
    open_engine(&b);
    measure_peak(&b);
    measure(&b);
    measure_peak(&b);
    if (comm_rank(b.comm) == 0) {
        print_json(&b);
        print_line(&b);
        if (o.profile) fputs(b.profile.data, stderr);
    }
    close_bench(&b);
    return 0;
}
