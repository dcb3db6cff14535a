/* Training speed: a few steps of 16,384 random tokens each, with accumulation, clipping and AdamW, compared
 * with the matrix-product peak measured in the same process, before and after. Prints one JSON object on
 * stdout and a readable line on stderr.
 *
 *     bench_train --size 125M --context 1024 [--compute fp32|bf16|best] [--microbatch SEQUENCES]
 *                 [--step-tokens N] [--loss-rows N] [--steps N] [--device KIND] [--threads N] [--profile]
 *
 * Without --microbatch it uses the fastest of a few sizes that fit, as the PyTorch benchmark does. On a GPU
 * that `weft plan --hardware` knows, it also reports the fraction of the data sheet's peak. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/clock.h"
#include "base/json.h"
#include "comm/comm.h"
#include "engine/engine.h"
#include "forecast/hardware.h"
#include "workload.h"

typedef struct Options {
    const Size *size;
    const char *compute, *device;
    int64_t context, microbatch, step_tokens, loss_rows;
    int steps, threads;
    bool profile;
} Options;

typedef struct Result {
    Dtype compute;
    int64_t microbatch;
    double seconds; /* of a step */
    double loss;
    size_t planned, free_first, free_last; /* of the device; free after the first and the last step */
} Result;

static void print_profile(Device *d, double seconds) {
    Text out = {0};
    device_profile_print(d, seconds, &out);
    fputs(out.data, stderr);
    text_free(&out);
}

/* The best of `steps` steps of `microbatches` microbatches, after one microbatch of warm-up. If memory is
 * short, the result has infinite seconds. */
static Result measure(Device *d, const Options *o, Dtype compute, int64_t sequences, int microbatches,
                      int steps) {
    Layout layout;
    RankPlan plan;
    Engine *e = NULL;
    Comm *comm = NULL;
    Error err = {0};
    StepResult r;
    RankSpec spec = {.model = workload_model(o->size, o->context),
                     .compute = compute,
                     .tokens = sequences * o->context,
                     .positions = o->context,
                     .loss_rows = o->loss_rows ? o->loss_rows : d->loss_rows,
                     .optimizer = &workload_optimizer};
    StepOptions options = {.lr_factor = 1, .clip = 1, .clip_norm = 2};
    if (layout_single(&layout, &spec.model, microbatches, false, &err) != OK ||
        rank_plan(&plan, &spec, &layout, 0, d, &err) != OK || comm_open_transport(&comm, NULL, &err) != OK ||
        engine_open(&e, &plan, d, comm, &err) != OK) {
        fprintf(stderr, "bench_train: %s\n", err.message);
        if (err.code != ERR_MEMORY || o->microbatch) exit((int)err.code);
        engine_close(e);
        comm_close(comm);
        rank_plan_free(&plan);
        layout_free(&layout);
        return (Result){.compute = compute, .microbatch = sequences, .seconds = INFINITY};
    }
    engine_initialise(e, INIT_NORMAL, 0.02, 1);
    Batch *batches = mem_alloc_array((size_t)microbatches, sizeof *batches);
    for (int m = 0; m < microbatches; m++)
        batches[m] = workload_batch(sequences, o->context, o->size->vocab, (uint64_t)m);
    Result result = {
        .compute = compute, .microbatch = sequences, .seconds = INFINITY, .planned = engine_bytes(e)};
    LossSum warm = {.nonfinite = 0};
    engine_evaluate(e, &batches[0], &warm);
    memset(d->profile, 0, sizeof d->profile);
    double total = clock_seconds();
    for (int s = 0; s < steps; s++) {
        double start = clock_seconds();
        engine_step(e, batches, &options, &r);
        result.seconds = fmin(result.seconds, clock_seconds() - start);
        result.free_last = d->separate_memory ? d->runtime.available(d) : 0;
        if (s == 0) result.free_first = result.free_last;
    }
    if (d->profiling && steps > 0 && microbatches * sequences * o->context == o->step_tokens)
        print_profile(d, clock_seconds() - total);
    result.loss = r.loss;
    workload_free(batches, microbatches);
    engine_close(e);
    comm_close(comm);
    rank_plan_free(&plan);
    layout_free(&layout);
    return result;
}

/* Tries the options that were not given, with one microbatch each, and keeps the fastest per token. */
static Result choose(Device *d, const Options *o) {
    Result best = {.seconds = INFINITY};
    double best_rate = 0;
    for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) {
        const char *name = dtype_name((Dtype)type);
        if (strcmp(o->compute, "best") != 0 && strcmp(o->compute, name) != 0) continue;
        /* What fits in a CPU's caches does not fill a GPU. */
        int64_t least = d->separate_memory ? 4096 : 1024, most = (d->separate_memory ? 8 : 4) * least;
        if (least > o->step_tokens) least = o->step_tokens;
        for (int64_t tokens = least; tokens <= most && tokens <= o->step_tokens; tokens *= 2) {
            int64_t sequences = o->microbatch ? o->microbatch : tokens / o->context;
            if (sequences == 0 || o->step_tokens / o->context % sequences != 0) continue;
            Result r = measure(d, o, (Dtype)type, sequences, 1, 2);
            double rate = (double)(sequences * o->context) / r.seconds;
            fprintf(stderr, "  %s, %lld sequences: %.0f tokens/s in a microbatch\n", name,
                    (long long)sequences, rate);
            if (rate > best_rate) best = r, best_rate = rate;
            if (o->microbatch) break;
        }
    }
    return best;
}

/* The measurement runs in its own process, so that its peak memory excludes the search. */
static void start_again(Result chosen, int argc, char **argv) {
    char microbatch[32];
    char **args = mem_alloc_array((size_t)argc + 5, sizeof *args);
    snprintf(microbatch, sizeof microbatch, "%lld", (long long)chosen.microbatch);
    memcpy(args, argv, (size_t)argc * sizeof *args);
    args[argc] = mem_strdup("--compute");
    args[argc + 1] = mem_strdup(dtype_name(chosen.compute));
    args[argc + 2] = mem_strdup("--microbatch");
    args[argc + 3] = microbatch;
    execv("/proc/self/exe", args);
    perror("bench_train: starting again");
    exit(ERR_INTERNAL);
}

/* FLOP/s according to the data sheet; 0 if it is none of these GPUs. */
static double datasheet_peak(const Device *d, Dtype compute) {
    static const char *const names[][2] = {{"H100", "h100"}, {"H200", "h200"}, {"B200", "b200"}};
    Hardware h;
    for (int i = 0; i < 3; i++)
        if (strstr(d->processor, names[i][0]) && hardware_read(&h, names[i][1], NULL) == OK)
            return hardware_peak(&h, compute);
    return 0;
}

static void report(const Options *o, const Result *r, double peak, const Device *d) {
    ModelConfig c = workload_model(o->size, o->context);
    double sheet = datasheet_peak(d, r->compute);
    double rate = (double)o->step_tokens / r->seconds, flops = rate * model_flops_per_token(&c, o->context);
    MemoryUse memory = memory_use();
    Text out = {0};
    JsonWriter w;
    json_start(&w, &out, 0);
    json_begin_object(&w);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"parameters", (double)model_parameter_count(&c)},
                   {"context", (double)o->context},
                   {"microbatch", (double)r->microbatch},
                   {"step_tokens", (double)o->step_tokens},
                   {"threads", d->threads},
                   {"step_seconds", r->seconds},
                   {"tokens_per_second", rate},
                   {"tflops", flops / 1e12},
                   {"peak_tflops", peak / 1e12},
                   {"share_of_peak", flops / peak},
                   {"share_of_datasheet", sheet > 0 ? flops / sheet : 0},
                   {"planned_bytes", (double)r->planned},
                   {"device_free_first", (double)r->free_first},
                   {"device_free_last", (double)r->free_last},
                   {"peak_rss_bytes", (double)memory.peak},
                   {"loss", r->loss}};
    json_key(&w, "size");
    json_string(&w, o->size->name);
    json_key(&w, "compute");
    json_string(&w, dtype_name(r->compute));
    json_key(&w, "kernels");
    json_string(&w, d->name);
    json_key(&w, "processor");
    json_string(&w, d->processor);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        json_key(&w, numbers[i].key);
        json_double(&w, numbers[i].value);
    }
    json_end_object(&w);
    printf("%s\n", out.data);
    text_free(&out);
    fprintf(stderr,
            "weft  %-8s context %5lld  %s  %9.0f tokens/s  %6.3f TFLOP/s  %5.1f%% of peak  %6.2f GiB\n",
            o->size->name, (long long)o->context, dtype_name(r->compute), rate, flops / 1e12,
            100 * flops / peak, (d->separate_memory ? (double)r->planned : (double)memory.peak) / (1 << 30));
    if (sheet > 0)
        fprintf(stderr, "      %.1f%% of the data sheet's %.0f TFLOP/s\n", 100 * flops / sheet, sheet / 1e12);
}

static int parse(Options *o, int argc, char **argv) {
    *o = (Options){.size = workload_size("125M"),
                   .compute = "best",
                   .device = "cpu",
                   .context = 1024,
                   .step_tokens = 16384,
                   .steps = 1};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--profile") == 0) {
            o->profile = true;
            continue;
        }
        if (i + 1 == argc) return 2;
        const char *value = argv[++i];
        long number = strtol(value, NULL, 10);
        if (strcmp(name, "--size") == 0) {
            o->size = workload_size(value);
        } else if (strcmp(name, "--compute") == 0)
            o->compute = value;
        else if (strcmp(name, "--device") == 0)
            o->device = value;
        else if (strcmp(name, "--step-tokens") == 0)
            o->step_tokens = number;
        else if (strcmp(name, "--context") == 0)
            o->context = number;
        else if (strcmp(name, "--microbatch") == 0)
            o->microbatch = number;
        else if (strcmp(name, "--loss-rows") == 0)
            o->loss_rows = number;
        else if (strcmp(name, "--steps") == 0)
            o->steps = (int)number;
        else if (strcmp(name, "--threads") == 0)
            o->threads = (int)number;
        else
            return 2;
    }
    int64_t sequences = o->context > 0 ? o->step_tokens / o->context : 0;
    if (!o->size || sequences < 1 || o->step_tokens % o->context != 0 || o->microbatch < 0) return 2;
    return o->microbatch == 0 || sequences % o->microbatch == 0 ? 0 : 2;
}

int main(int argc, char **argv) {
    Options o;
    Device d;
    Error err = {0};
    if (parse(&o, argc, argv)) {
        fprintf(stderr,
                "usage: bench_train --size " WORKLOAD_SIZES " --context N [--compute fp32|bf16|best]\n"
                "                   [--microbatch N] [--step-tokens N (16384; a multiple of microbatch and "
                "context)]\n"
                "                   [--loss-rows N] [--steps N] [--device " DEVICE_KINDS "]\n"
                "                   [--threads N] [--profile]\n");
        return 2;
    }
    if (device_open(&d, o.device, 0, o.threads, &err) != OK) {
        fprintf(stderr, "bench_train: %s\n", err.message);
        return (int)err.code;
    }
    bool open = !o.microbatch || strcmp(o.compute, "best") == 0;
    if (open) {
        Result chosen = choose(&d, &o);
        if (isinf(chosen.seconds)) {
            fprintf(stderr, "bench_train: no microbatch fits, or --compute is none of fp32, bf16, best\n");
            return ERR_MEMORY;
        }
        device_close(&d);
        start_again(chosen, argc, argv);
    }
    Dtype compute = strcmp(o.compute, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    double peak = device_matmul_peak(&d, compute, 1, INFINITY);
    d.profiling = o.profile;
    int microbatches = (int)(o.step_tokens / (o.microbatch * o.context));
    Result r = measure(&d, &o, compute, o.microbatch, microbatches, o.steps);
    peak = fmax(peak, device_matmul_peak(&d, compute, 1, INFINITY));
    report(&o, &r, peak, &d);
    device_close(&d);
    return 0;
}
