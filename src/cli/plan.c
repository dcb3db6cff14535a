/* weft plan: shows what a run would do on any number of ranks, without starting one.
 *
 * One rank gets a plan, several a forecast. All ranks of the mesh are planned by the code that a run uses
 * (plan/rank.h), once per pipeline rank, since ranks with the same pipeline coordinate differ only in their
 * shard.
 *
 *     --compare           all schedules, by time and memory           forecast/compare.h
 *     --svg FILE          the drawing alone                           forecast/draw.h
 *     otherwise           model, step, memory, work, drawing, and with --program the actions */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/cli.h"
#include "checkpoint/find.h"
#include "cli/terminal.h"
#include "forecast/compare.h"
#include "forecast/describe.h"
#include "plan/fit.h"
#include "forecast/forecast.h"
#include "forecast/machine.h"
#include "forecast/propose.h"
#include "plan/sync.h"
#include "train/setup.h"

#define GIB 1073741824.0

/* A million ranks are planned as fast as a few; only as many as a page has lines are drawn. */
enum { MOST_RANKS = 1 << 20, DRAWN_RANKS = 24 };

static const Flag flags[] = {
    {"--ranks", 'n', "N", "plan for N ranks, laid out by the keys of mesh; default 1"},
    {"--rank", 'r', "R",
     "the rank whose memory and program are shown; default: the fullest, and rank 0 for --program"},
    {"--memory", 'm', "SIZE",
     "memory of a rank, such as 80GiB, to hold the plan against, the GPU's where that trains; default with "
     "one rank: this machine's"},
    {"--tflops", 't', "X", "speed of a rank in TFLOP/s: times are then seconds, not TFLOP"},
    {"--link", 'l', "RATE[,DELAY]",
     "with --tflops: speed of a message between stages, and of what crosses over tp, cp and ep, in GB/s or "
     "as 1Gbit/s, and how long one takes in addition to its bytes, such as 5ms; counted as far as no work "
     "hides it; default: no time"},
    {"--hardware", 'H', "WHAT",
     "a100, h100, h800, h200, b200, or a YAML file of figures (docs/use/forecasts.md): time of a step, "
     "tokens/s and MFU "
     "that "
     "they make, and the memory that the plan is held against"},
    {"--budget", 'b', "FLOPS",
     "also propose a shape, tokens, batch and learning rate for so many training FLOPs, such as 1e19, by "
     "published scaling laws; printed as YAML"},
    {"--hours", 0, "H",
     "the same for what is trained in H hours: on this machine with one rank, else with --hardware or "
     "--tflops"},
    {"--compare", 'c', NULL,
     "all schedules and several numbers of microbatches next to each other, by time and memory; with a limit "
     "of memory and --hardware or --link it searches all meshes, schedules and settings"},
    {"--svg", 0, "FILE",
     "the pipeline's drawing as SVG; FILE may be - for standard output, then nothing else is printed"},
    {"--width", 'w', "N", "columns of the drawing, pixels with --svg; default: the terminal's, or 128; 960"},
    {"--program", 'p', NULL, "list the actions of one step; runs over consecutive units are folded"},
    {"--whole", 0, NULL, "with --program: one line an action; with --compare: all rows"},
    {NULL, 0, NULL, NULL}};

/* The flags, checked. Sizes that were not given stay 0 or -1 until the configuration, the machine or the
 * forecast determines them. */
typedef struct Request {
    int64_t ranks, rank; /* rank -1: not given */
    int64_t width;
    double memory; /* bytes; 0: not given */
    ForecastSpeed speed;
    Hardware hardware;    /* of speed, if it was given */
    double budget, hours; /* of the proposal; 0: not given */
    char sync[240];       /* why train.gradient_sync was chosen; empty: it was given */
} Request;

/* ---- the command line ---- */

typedef struct SizeUnit {
    const char *name;
    double size;
} SizeUnit;

/* "80GiB", "80 GB", "8e10": a number above 0 and one of the units, up to `end`. */
static bool parse_measure(const char *text, const char *end, const SizeUnit *units, double *out) {
    char *unit;
    double number = strtod(text, &unit);
    if (unit == text || unit > end || !(number > 0) || number > 1e18) return false;
    while (unit < end && *unit == ' ') unit++;
    size_t length = (size_t)(end - unit);
    for (; units->name; units++) {
        if (strlen(units->name) != length || strncmp(unit, units->name, length) != 0) continue;
        *out = number * units->size;
        return true;
    }
    return false;
}

/* K to T alone are powers of two, as for memory; followed by a B they are powers of ten, as for disks. */
static bool parse_size(const char *text, double *bytes) {
    static const SizeUnit units[] = {{"", 1},
                                     {"B", 1},
                                     {"KiB", 1024.0},
                                     {"MiB", 1048576.0},
                                     {"GiB", 1073741824.0},
                                     {"TiB", 1099511627776.0},
                                     {"K", 1024.0},
                                     {"M", 1048576.0},
                                     {"G", 1073741824.0},
                                     {"T", 1099511627776.0},
                                     {"KB", 1e3},
                                     {"MB", 1e6},
                                     {"GB", 1e9},
                                     {"TB", 1e12},
                                     {NULL, 0}};
    return parse_measure(text, text + strlen(text), units, bytes);
}

/* "25", "25GB/s", "1Gbit/s,5ms": GB/s, and seconds. Networks are specified in bits, buses in bytes. */
static bool parse_link(const char *text, double *rate, double *delay) {
    static const SizeUnit rates[] = {{"", 1},           {"GB/s", 1},          {"MB/s", 1e-3},
                                     {"Gbit/s", 0.125}, {"Mbit/s", 0.125e-3}, {NULL, 0}};
    static const SizeUnit times[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {NULL, 0}};
    const char *end = text + strlen(text), *comma = strchr(text, ',');
    if (!parse_measure(text, comma ? comma : end, rates, rate) || *rate > 1e9 || *rate < 1e-6) return false;
    return !comma || parse_measure(comma + 1, end, times, delay);
}

/* --hardware describes the speeds that --tflops and --link set, so they exclude each other. */
static ErrorCode read_hardware(const Arguments *args, Request *q, Error *err) {
    const char *asked = arguments_flag(args, "--hardware");
    if (!asked) return OK;
    if (q->speed.tflops > 0 || q->speed.link > 0)
        return error_set(err, ERR_USAGE,
                         "plan: --hardware and %s do not go together: put its figure into a file of figures",
                         q->speed.tflops > 0 ? "--tflops" : "--link");
    TRY(hardware_read(&q->hardware, asked, err));
    q->speed.hardware = &q->hardware;
    return OK;
}

/* The speed of links without that of ranks would mix seconds with operations. */
static ErrorCode read_request(const Arguments *args, Request *q, Error *err) {
    char shown[80];
    const char *memory = arguments_flag(args, "--memory"), *link = arguments_flag(args, "--link");
    *q = (Request){.ranks = 1, .rank = -1};
    TRY(arguments_int(args, "--ranks", 1, MOST_RANKS, &q->ranks, err));
    TRY(arguments_int(args, "--rank", 0, q->ranks - 1, &q->rank, err));
    TRY(arguments_int(args, "--width", 40, 20000, &q->width, err));
    TRY(arguments_double(args, "--tflops", 1e-6, 1e9, &q->speed.tflops, err));
    TRY(arguments_double(args, "--budget", 1e10, 1e30, &q->budget, err));
    TRY(arguments_double(args, "--hours", 1e-3, 1e6, &q->hours, err));
    if (q->budget > 0 && q->hours > 0)
        return error_set(err, ERR_USAGE, "plan: --budget and --hours do not go together: give one");
    if (link && !parse_link(link, &q->speed.link, &q->speed.delay))
        return error_set(
            err, ERR_USAGE,
            "plan: --link is \"%s\": expected a rate such as 25 (GB/s) or 1Gbit/s, and a delay if "
            "need be, such as 1Gbit/s,5ms",
            error_escape(shown, sizeof shown, link, strlen(link)));
    if (q->speed.link > 0 && q->speed.tflops <= 0)
        return error_set(
            err, ERR_USAGE,
            "plan: --link needs --tflops: how long a message takes counts against how long a rank computes");
    if (memory && !parse_size(memory, &q->memory))
        return error_set(err, ERR_USAGE, "plan: --memory is \"%s\": expected a size such as 80GiB or 512MB",
                         error_escape(shown, sizeof shown, memory, strlen(memory)));
    TRY(read_hardware(args, q, err));
    if (q->hours > 0 && q->ranks > 1 && !q->speed.hardware && q->speed.tflops <= 0)
        return error_set(
            err, ERR_USAGE,
            "plan: --hours with %lld ranks needs --hardware or --tflops: only one rank's work is "
            "measured on this machine",
            (long long)q->ranks);
    return OK;
}

/* ---- output ---- */

/* Ranks with the same pipeline coordinate are contiguous, since the pipeline is the outermost axis
 * (comm/mesh.h), and every coordinate has as many ranks as the first. */
static int pipe_rank_of(const Forecast *f, int64_t rank) { return (int)(rank / f->ranks[0].count); }

/* Draws the pipeline of the forecast: at most DRAWN_RANKS rows in a terminal; all of them as SVG. */
static void draw(const Request *q, const Forecast *f, bool svg, Text *out) {
    ForecastTimeline t;
    forecast_timeline(f, &t);
    if (svg) {
        draw_svg(&t.timeline, 1, q->width ? (int)q->width : 960, out);
    } else {
        TerminalStyle style = terminal_style((int)q->width);
        style.rows = DRAWN_RANKS;
        text_puts(out, "\n");
        draw_terminal(&t.timeline, style, out);
        if (mesh_size(&f->layout.mesh, MESH_SHARDS) > 1)
            text_puts(out, "g, r: from where a gather or reduction starts to where it is waited for; they "
                           "take no time here\n");
        text_printf(out,
                    "balance of the ranks %.1f%%: the average one's work as a share of the busiest one's\n",
                    100 * forecast_balance(f));
    }
    forecast_timeline_free(&t);
}

/* FLOP/s of the model on all ranks, as stated or forecast; 0: not known. */
static double stated_flops(const Config *c, const Request *q, const Forecast *f) {
    double tokens = (double)(layout_samples(&f->layout) * c->train.context);
    if (q->speed.hardware)
        return model_flops_per_token(&c->model.shape, c->train.context) * tokens / f->time.step;
    return q->speed.tflops * 1e12 * (double)q->ranks;
}

/* Every rank of a pipeline gets microbatches. */
static ErrorCode describe_proposal(const Config *c, const Request *q, const Forecast *f, double rate,
                                   Text *out, Error *err) {
    Proposal p;
    const Mesh *mesh = &f->layout.mesh;
    int64_t unit =
        f->layout.sequences * c->train.context * mesh_dp_degree(mesh) * mesh_size(mesh, MESH_PIPELINE);
    if (q->budget <= 0 && q->hours <= 0) return OK;
    if (q->budget <= 0 && rate <= 0)
        return error_set(err, ERR_USAGE,
                         "plan: --hours needs a speed, and none could be measured: give "
                         "--hardware, --tflops or --budget");
    TRY(propose(&p, c, unit, q->budget > 0 ? q->budget : q->hours * 3600 * rate, err));
    propose_print(&p, c, rate, out);
    return OK;
}

/* For one pipeline rank: the one with the most memory, which decides whether the run fits, unless a rank was
 * named. Facts of all ranks come first, then this one in full, and the drawing last, where a scrolling
 * terminal leaves it in sight. */
static ErrorCode describe_mesh(const Config *c, const Request *q, const Forecast *f, Device *d, Text *out,
                               Error *err) {
    int pipe_rank = q->rank >= 0 ? pipe_rank_of(f, q->rank) : f->fullest;
    describe_work(c, &f->layout, &f->ranks[0].plan, d, out);
    forecast_print_context(f, out);
    forecast_print_memory(f, q->memory, out);
    forecast_print_work(f, out);
    forecast_print_pipe_rank(f, pipe_rank, out);
    TRY(forecast_print_exact(f, d, pipe_rank, out, err));
    TRY(forecast_print_sync(f, d, pipe_rank, *q->sync ? q->sync : NULL, out, err));
    forecast_print_time(f, out);
    if (layout_is_pipeline(&f->layout)) draw(q, f, false, out);
    return describe_proposal(c, q, f, stated_flops(c, q, f), out, err);
}

/* For a run on this machine's device: nothing if another one was specified. Returns the FLOP/s of the
 * model. */
static double describe_time(const Config *c, const Request *q, const Forecast *f, Device *d, Text *out) {
    const RankPlan *p = &f->ranks[0].plan;
    if (!d->name || q->speed.tflops > 0) return 0;
    MachineRates r = rates_cached(d, p->model.compute, c->data.cache_dir);
    MachineTime t = machine_time(p, &r);
    double flops = machine_flops(&t, c, p, &f->layout);
    machine_describe(&t, &r, c, p, &f->layout, 0, out);
    rates_free(&r);
    return isfinite(flops) ? flops : 0;
}

/* The same text as `weft train` prints before it starts. The memory is shown relative to the given limit;
 * exceeding it is reported but is no error, since a plan is made to find that out. */
static ErrorCode describe_single(const Config *c, const Request *q, const Forecast *f, Device *d, Text *out,
                                 Error *err) {
    char limit[32];
    double share = q->memory > 0 ? 100 * (double)forecast_memory(f, 0) / q->memory : 0;
    describe_run(c, &f->layout, &f->ranks[0].plan, d, out);
    if (q->memory > 0)
        text_printf(out, "  of %s: %.1f%%%s\n", text_bytes(q->memory, limit), share,
                    share > 100 ? ": it will not fit" : "");
    TRY(forecast_print_exact(f, d, 0, out, err));
    double rate = describe_time(c, q, f, d, out);
    forecast_print_time(f, out);
    return describe_proposal(c, q, f, rate > 0 ? rate : stated_flops(c, q, f), out, err);
}

/* For one rank: ranks with the same pipeline coordinate have the same program. Rank 0 by default, whose
 * program begins with the text; the fullest rank matters only for memory. */
static void print_program(const Arguments *args, const Request *q, const Forecast *f, Text *out) {
    int64_t rank = q->rank >= 0 ? q->rank : 0;
    const Program *p = &f->ranks[pipe_rank_of(f, rank)].plan.program;
    if (f->layout.mesh.world > 1)
        text_printf(out, "program of rank %lld, %d actions\n", (long long)rank, p->count);
    else
        text_printf(out, "program %d actions\n", p->count);
    program_print(p, arguments_has(args, "--whole"), out);
}

/* Refused without a pipeline: the drawing shows which ranks wait for which, and a single stage waits for
 * nobody. */
static ErrorCode write_svg(const Request *q, const Forecast *f, const char *path, Error *err) {
    Text svg = {0};
    if (!layout_is_pipeline(&f->layout))
        return error_set(
            err, ERR_USAGE,
            "plan: --svg draws pipelines, and this plan has none: mesh.pp is 1; set it to 2 or more");
    draw(q, f, true, &svg);
    ErrorCode code = terminal_write_file(path, &svg, err);
    text_free(&svg);
    return code;
}

/* Everything is collected before anything is printed: a plan that fails half way prints an error and no
 * partial plan. */
static ErrorCode print_all(const Arguments *args, const Request *q, const Config *c, const Forecast *f,
                           Device *d, Error *err) {
    Text out = {0};
    bool mesh = f->layout.mesh.world > 1;
    ErrorCode code = mesh ? describe_mesh(c, q, f, d, &out, err) : describe_single(c, q, f, d, &out, err);
    if (code == OK && arguments_has(args, "--program")) print_program(args, q, f, &out);
    if (code == OK) code = terminal_print(&out, err);
    text_free(&out);
    return code;
}

/* Flags for a single schedule are refused with --compare rather than ignored: the user would take the table
 * for their result. */
static ErrorCode compare(const Arguments *args, const Request *q, const Config *c, Device *d, Error *err) {
    static const char *const others[] = {"--svg", "--program", "--rank", "--width", "--budget", "--hours"};
    /* A single rank most likely means this machine; many mean other machines, whose memory is unknown. */
    uint64_t here = d->separate_memory ? d->memory : memory_use().machine;
    double memory = q->memory > 0 ? q->memory : q->ranks == 1 ? (double)here : 0;
    CompareRequest request = {(int)q->ranks, memory, q->speed, arguments_has(args, "--whole")};
    Text out = {0};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (arguments_has(args, others[i]))
            return error_set(err, ERR_USAGE, "plan: --compare and %s do not go together: give one",
                             others[i]);
    ErrorCode code = compare_print(c, d, &request, &out, err);
    if (code == OK) code = terminal_print(&out, err);
    text_free(&out);
    return code;
}

/* The configuration must outlive the forecast, which points into it. */
static ErrorCode describe(const Arguments *args, const Request *q, const Config *c, Device *d, Error *err) {
    Forecast f;
    const char *svg = arguments_flag(args, "--svg");
    TRY(forecast_build(&f, c, d, (int)q->ranks, q->speed, err));
    /* If the drawing goes to standard output, nothing else does. */
    ErrorCode code = svg ? write_svg(q, &f, svg, err) : OK;
    if (code == OK && !(svg && strcmp(svg, "-") == 0)) code = print_all(args, q, c, &f, d, err);
    forecast_free(&f);
    return code;
}

/* The memory limit of the plan: the given one, that of the pipeline split, or the hardware's. */
static double limit_of(const Request *q, const Config *c) {
    if (q->memory > 0) return q->memory;
    if (c->pipeline.memory_gib > 0) return fit_limit(c);
    return q->speed.hardware ? q->hardware.memory.gib * GIB : 0;
}

/* Why train.gradient_sync: auto was settled so. The plan's memory limit may not be the run's; if that makes a
 * difference, the reason names the key with which a run does the same. */
static ErrorCode explain_sync(Request *q, const Config *settled, const OptionSet *set, Error *err) {
    SyncChoice of_run;
    Config open = *settled;
    open.train.gradient_sync = SYNC_AUTO;
    TRY(sync_choose(&open, (int)q->ranks, fit_limit(&open), &of_run, err));
    int at = snprintf(q->sync, sizeof q->sync, "%s", options_where(set, "train.gradient_sync"));
    if ((int)of_run.sync != settled->train.gradient_sync)
        snprintf(q->sync + at, sizeof q->sync - (size_t)at, "; a run takes it with pipeline.memory_gib=%.4g",
                 q->memory / GIB);
    return OK;
}

/* --compare settles what is open for each candidate. */
static ErrorCode plan(const Arguments *args, Request *q, Config *c, OptionSet *set, Device *d, Error *err) {
    bool open = c->train.gradient_sync == SYNC_AUTO;
    q->memory = limit_of(q, c);
    TRY(setup_compute(c, set, d->native_bf16, err));
    if (arguments_has(args, "--compare")) return compare(args, q, c, d, err);
    TRY(setup_settle(c, set, (int)q->ranks, NULL, q->memory, err));
    if (open) TRY(explain_sync(q, c, set, err));
    TRY(setup_check_init(c, err));
    return describe(args, q, c, d, err);
}

/* Opened for its figures; nothing is computed on it. With --hardware, or for a GPU that this machine lacks,
 * the device is only described: the plan is the same wherever it is made. */
static ErrorCode take_device(const Request *q, const Config *c, OptionSet *set, Device *d, Error *err) {
    static const char gpu[] = "cuda";
    if (q->speed.hardware) TRY(options_derive(set, "run.device", gpu, "--hardware", err));
    ErrorCode code = q->speed.hardware ? ERR_UNAVAILABLE : setup_device(c, NULL, 0, d, err);
    if (code != ERR_UNAVAILABLE || strcmp(device_kind(c->run.device), gpu) != 0) return code;
    device_describe(d, gpu, q->speed.hardware ? q->hardware.name : "a GPU", (int)c->run.threads);
    d->memory = (uint64_t)(q->speed.hardware ? q->hardware.memory.gib * GIB : 0);
    return OK;
}

/* The order of a run (train/begin.c), so that both refuse a configuration with the same words. */
static ErrorCode run_plan(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    Device d;
    Mesh mesh;
    Request q;
    TRY(read_request(args, &q, err));
    ErrorCode code = config_load(&c, &set, args->operands[0], args->operand_count - 1, args->operands + 1,
                                 checkpoint_find_shape, err);
    if (code == OK && q.speed.hardware && c.comm.two_levels) c.mesh.machine = q.hardware.links.ranks;
    if (code == OK) code = mesh_build(&mesh, &c.mesh, (int)q.ranks, err);
    if (code == OK) code = setup_check(&c, err);
    if (code == OK) code = take_device(&q, &c, &set, &d, err);
    if (code == OK) {
        code = setup_shape_planned(&c, &set, err);
        if (code == OK) code = plan(args, &q, &c, &set, &d, err);
        device_close(&d);
    }
    options_free(&set);
    return code;
}

const Verb verb_plan = {
    .name = "plan",
    .summary = "what a run would do: model, step, memory, traffic, program, on any mesh; starts nothing",
    .synopsis = "CONFIG.yaml [section.key=value ...] [-n RANKS]",
    .details =
        "Memory is read off the program of a step: what is printed here is what a run takes before "
        "its first step.\n\n"
        "With -n N the ranks of a whole mesh are planned, on this machine, without starting one: what "
        "each holds, does and sends in a step. A pipeline is drawn; --compare weighs all schedules "
        "and several numbers of microbatches.\n\n"
        "Examples:\n"
        "  weft plan configs/demo.yaml\n"
        "  weft plan configs/llama3-8b.yaml train.context=4096 --program\n"
        "  weft plan configs/llama3-8b.yaml -n 128 mesh.pp=4 mesh.dp_replicate=4 "
        "train.tokens_per_step=4194304\n"
        "  weft plan my.yaml --hours 6\n"
        "  weft plan my.yaml -n 16 mesh.pp=4 --compare --memory 80GiB\n"
        "  weft plan my.yaml -n 16 mesh.pp=4 --compare --tflops 400 --link 25\n"
        "  weft plan configs/llama3-70b.yaml -n 256 mesh.tp=8 train.tokens_per_step=4194304 --hardware h100",
    .flags = flags,
    .options = config_options,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_plan,
};
