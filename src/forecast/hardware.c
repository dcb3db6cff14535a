/* The figures are a table of options, so a file of them is read, checked and refused like a configuration; a
 * name is a list of values that differ from the table's defaults. Times are linear: latency for each
 * operation, plus bytes divided by speed. */
#include "forecast/hardware.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

#define AT(field) offsetof(Hardware, field)
#define FIGURE(name, at, value, least, most, text)                                                           \
    {                                                                                                        \
        .key = name, .type = OPT_DOUBLE, .effect = EFFECT_UNKNOWN, .offset = AT(at), .default_value = value, \
        .min = least, .max = most, .help = text                                                              \
    }

/* The defaults describe h100. */
const Option hardware_options[] = {
    FIGURE("compute.bf16_tflops", compute.bf16_tflops, "989", 1e-6, 1e9,
           "Peak of products in bf16, TFLOP/s."),
    FIGURE("compute.fp32_tflops", compute.fp32_tflops, "67", 1e-6, 1e9, "Peak of products in fp32."),
    FIGURE("compute.float8_tflops", compute.float8_tflops, "1979", 1e-6, 1e9, "Peak of products in float8."),
    {.key = "compute.float8",
     .type = OPT_BOOL,
     .effect = EFFECT_UNKNOWN,
     .offset = AT(compute.float8),
     .default_value = "false",
     .help = "Products of blocks run at the float8 peak: to hold plans against runs of trainers that do so."},
    FIGURE("compute.share", compute.share, "0.62", 1e-6, 1,
           "Share of the peak that products with long sums reach."),
    FIGURE("compute.float8_share", compute.float8_share, "0.45", 1e-6, 1, "The same of float8's."),
    FIGURE("compute.ramp_terms", compute.ramp_terms, "260", 0, 1e6,
           "Terms of a sum in bf16 with which a product reaches half of its share; in float8 as many times "
           "more as its peak is higher."),
    {.key = "compute.attention",
     .type = OPT_CHOICE,
     .effect = EFFECT_UNKNOWN,
     .offset = AT(compute.attention),
     .default_value = "weft",
     .choices = "weft|cudnn|cudnn_b200|flash2_h100|flash2_a100|flash1_a100",
     .help = "Whose measured rates attention has, by head size and context."},
    FIGURE("compute.attention_share", compute.attention_share, "0", 0, 1,
           "Share of the bf16 peak that all attention reaches; 0: by compute.attention."),
    FIGURE("memory.gib", memory.gib, "79.6", 1e-6, 1e9, "Memory of a rank, GiB."),
    FIGURE("memory.gb_per_s", memory.gb_per_s, "3350", 1e-6, 1e9, "Its bandwidth, GB/s."),
    FIGURE("memory.share", memory.share, "0.8", 1e-6, 1, "Share of the bandwidth that is reached."),
    {.key = "links.ranks",
     .type = OPT_INT,
     .effect = EFFECT_UNKNOWN,
     .offset = AT(links.ranks),
     .default_value = "8",
     .min = 1,
     .max = 1e6,
     .help = "Ranks of a machine."},
    FIGURE("links.inside_gb_per_s", links.inside_gb_per_s, "330", 1e-6, 1e9,
           "What a rank sends to others of its machine, GB/s, one direction."),
    FIGURE("links.between_gb_per_s", links.between_gb_per_s, "43", 1e-6, 1e9,
           "What it sends to other machines."),
    FIGURE("links.inside_us", links.inside_us, "12", 0, 1e9,
           "Latency of an operation inside a machine, microseconds."),
    FIGURE("links.between_us", links.between_us, "25", 0, 1e9, "The same between machines."),
    FIGURE(
        "links.hidden_share", links.hidden_share, "0", 0, 1,
        "Share of what crosses over tp and cp that work hides: to hold plans against trainers that do so."),
    {.key = "links.narrow_sums",
     .type = OPT_BOOL,
     .effect = EFFECT_UNKNOWN,
     .offset = AT(links.narrow_sums),
     .default_value = "false",
     .help = "Partial sums of tp and cp cross in the compute dtype and not in fp32: as other trainers do."},
    {.key = NULL}};

static const char *const h100[] = {NULL};
static const char *const a100[] = {"compute.bf16_tflops=312",
                                   "compute.fp32_tflops=19.5",
                                   "compute.float8_tflops=312",
                                   "compute.share=0.79",
                                   "compute.ramp_terms=82",
                                   "compute.attention=flash2_a100",
                                   "memory.gib=79.3",
                                   "memory.gb_per_s=2039",
                                   "links.inside_gb_per_s=220",
                                   "links.between_gb_per_s=22",
                                   NULL};
static const char *const h800[] = {"links.inside_gb_per_s=160", NULL};
static const char *const h200[] = {"memory.gib=140.4", "memory.gb_per_s=4800", NULL};
static const char *const b200[] = {
    "compute.bf16_tflops=2250", "compute.fp32_tflops=75",       "compute.float8_tflops=4500",
    "compute.ramp_terms=590",   "compute.attention=cudnn_b200", "memory.gib=179",
    "memory.gb_per_s=7700",     "links.inside_gb_per_s=690",    NULL};
static const struct {
    const char *name;
    const char *const *values;
} known[] = {{"a100", a100}, {"h100", h100}, {"h800", h800}, {"h200", h200}, {"b200", b200}};
enum { KNOWN = sizeof known / sizeof *known };

static ErrorCode apply(OptionSet *set, const char *asked, Error *err) {
    for (int i = 0; i < KNOWN; i++) {
        if (strcmp(asked, known[i].name) != 0) continue;
        for (const char *const *value = known[i].values; *value; value++)
            TRY(options_apply_override(set, *value, err));
        return OK;
    }
    return options_apply_file(set, asked, err);
}

/* A word without a dot or a slash that is not a file is taken for an unknown name. */
static ErrorCode check_name(const char *asked, Error *err) {
    char shown[80];
    for (int i = 0; i < KNOWN; i++)
        if (strcmp(asked, known[i].name) == 0) return OK;
    if (strpbrk(asked, "./") || file_exists(asked)) return OK;
    return error_set(err, ERR_CONFIG,
                     "--hardware is \"%s\": expected a100, h100, h800, h200, b200, or a YAML file",
                     error_escape(shown, sizeof shown, asked, strlen(asked)));
}

ErrorCode hardware_read(Hardware *h, const char *asked, Error *err) {
    OptionSet set;
    *h = (Hardware){.name = ""};
    TRY(check_name(asked, err));
    TRY(options_init(&set, hardware_options, h, err));
    ErrorCode code = apply(&set, asked, err);
    options_free(&set);
    error_escape(h->name, sizeof h->name, asked, strlen(asked));
    return code;
}

double hardware_peak(const Hardware *h, Dtype compute) {
    return 1e12 * (compute == DTYPE_BF16 ? h->compute.bf16_tflops : h->compute.fp32_tflops);
}

/* A tile's start and end take a time that does not depend on the sum's length, in which the tensor cores
 * could add `ramp` more terms: rate = most * terms / (terms + ramp). DeepGEMM's float8 rates on H800 (748,
 * 1166, 1204 and 1470 TFLOP/s for 512, 1536, 2048 and 16384 terms, its issue 74) follow this within 3% with a
 * ramp of 520, so 260 at the half peak of bf16, and in proportion to the peak on other GPUs. */
static double ramped(double most, double terms, double ramp) {
    return terms > 0 ? most * terms / (terms + ramp) : most;
}

double hardware_head(const Hardware *h, Dtype compute, double terms) {
    return ramped(h->compute.share * hardware_peak(h, compute), terms, h->compute.ramp_terms);
}

double hardware_products(const Hardware *h, Dtype compute, double terms) {
    const HardwareCompute *c = &h->compute;
    if (!c->float8) return hardware_head(h, compute, terms);
    return ramped(1e12 * c->float8_share * c->float8_tflops, terms,
                  c->ramp_terms * c->float8_tflops / c->bf16_tflops);
}

/* Measured rates of causal attention in TFLOP/s, forward and backward, by head size and context, as kernels'
 * authors count: a backward pass as 2.5 forward passes. Sources: weft, docs/lab/gpus.md, on H200. cudnn:
 * cuDNN 9.19 on H200 as NVIDIA published it (bench/bench_attention.c); its heads of 64 with a window of
 * 1,024; on GB200 from the same files. flash2_h100: flash-attention, issue 1893. On A100 the middle of the
 * range that the FlashAttention-2 paper states: 50 to 73% of the peak, and 30 to 50% forward and 25 to 35%
 * backward for version 1. */
typedef struct AttentionRate {
    AttentionKernels kernels;
    int head_dim;
    int64_t context;
    double peak, forward, backward;
} AttentionRate;
static const AttentionRate attention_rates[] = {
    {KERNELS_WEFT, 64, 2048, 989, 277, 191},          {KERNELS_WEFT, 64, 4096, 989, 339, 275},
    {KERNELS_WEFT, 64, 8192, 989, 379, 316},          {KERNELS_WEFT, 64, 16384, 989, 378, 348},
    {KERNELS_WEFT, 64, 32768, 989, 361, 361},         {KERNELS_WEFT, 128, 2048, 989, 371, 263},
    {KERNELS_WEFT, 128, 4096, 989, 445, 331},         {KERNELS_WEFT, 128, 8192, 989, 470, 390},
    {KERNELS_WEFT, 128, 16384, 989, 474, 441},        {KERNELS_WEFT, 128, 32768, 989, 479, 424},
    {KERNELS_CUDNN, 64, 1024, 989, 336, 289},         {KERNELS_CUDNN, 128, 2048, 989, 484, 370},
    {KERNELS_CUDNN, 128, 4096, 989, 591, 474},        {KERNELS_CUDNN, 128, 8192, 989, 644, 541},
    {KERNELS_CUDNN, 128, 16384, 989, 673, 579},       {KERNELS_CUDNN, 128, 32768, 989, 688, 581},
    {KERNELS_CUDNN_B200, 128, 2048, 2500, 1097, 885}, {KERNELS_CUDNN_B200, 128, 8192, 2500, 1574, 1332},
    {KERNELS_FLASH2_H100, 128, 8192, 989, 306, 166},  {KERNELS_FLASH2_A100, 128, 8192, 312, 192, 192},
    {KERNELS_FLASH1_A100, 128, 8192, 312, 125, 94},
};
enum { ATTENTION_RATES = sizeof attention_rates / sizeof *attention_rates };

static double share_of(const AttentionRate *r, bool backward) {
    return (backward ? r->backward * 2 / 2.5 : r->forward) / r->peak;
}

/* The head size among the kernels' that is nearest, by ratio. */
static int nearest_head(int kernels, int head_dim) {
    int best = 0;
    for (int i = 0; i < ATTENTION_RATES; i++) {
        const AttentionRate *r = &attention_rates[i];
        if ((int)r->kernels != kernels) continue;
        if (best == 0 || fabs(log2((double)r->head_dim / head_dim)) < fabs(log2((double)best / head_dim)))
            best = r->head_dim;
    }
    return best;
}

/* Between two contexts linear in the logarithm; outside them the nearest one's. Rows are in order. */
static double kernels_share(int kernels, bool backward, int head_dim, int64_t context) {
    int head = nearest_head(kernels, head_dim);
    const AttentionRate *below = NULL, *above = NULL;
    for (int i = 0; i < ATTENTION_RATES; i++) {
        const AttentionRate *r = &attention_rates[i];
        if ((int)r->kernels != kernels || r->head_dim != head) continue;
        if (r->context <= context) below = r;
        if (r->context >= context && !above) above = r;
    }
    if (!below || !above || below == above) return share_of(below ? below : above, backward);
    double at = log2((double)context / (double)below->context) /
                log2((double)above->context / (double)below->context);
    return (1 - at) * share_of(below, backward) + at * share_of(above, backward);
}

double hardware_attention(const Hardware *h, Dtype compute, bool backward, int head_dim, int64_t context) {
    const HardwareCompute *c = &h->compute;
    double share = c->attention_share > 0 ? c->attention_share
                                          : kernels_share(c->attention, backward, head_dim, context);
    return share * hardware_peak(h, compute);
}

double hardware_bandwidth(const Hardware *h) { return 1e9 * h->memory.share * h->memory.gb_per_s; }

/* Number of other ranks of a group on the same machine. Ranks of one machine have consecutive numbers. */
static double inside(const Hardware *h, int ranks, int stride) {
    double here = floor((double)h->links.ranks / stride);
    return fmin(fmax(here, 1), ranks) - 1;
}

double hardware_collective(const Hardware *h, int ranks, int stride, double bytes, int operations) {
    if (ranks <= 1) return 0;
    double near = inside(h, ranks, stride) / (ranks - 1);
    double latency = operations * 1e-6 * (near < 1 ? h->links.between_us : h->links.inside_us);
    return latency + fmax(near * bytes / (1e9 * h->links.inside_gb_per_s),
                          (1 - near) * bytes / (1e9 * h->links.between_gb_per_s));
}

double hardware_levels(const Hardware *h, int ranks, int local, double bytes, int operations) {
    double far = (double)(ranks / local - 1) / (ranks - 1);
    return operations * 1e-6 * (h->links.between_us + h->links.inside_us) +
           far * bytes / (1e9 * h->links.between_gb_per_s) +
           (1 - far) * bytes / (1e9 * h->links.inside_gb_per_s);
}

double hardware_message(const Hardware *h, int stride, double bytes) {
    bool outside = stride >= h->links.ranks;
    return 1e-6 * (outside ? h->links.between_us : h->links.inside_us) +
           bytes / (1e9 * (outside ? h->links.between_gb_per_s : h->links.inside_gb_per_s));
}

static void describe_attention(const Hardware *h, Dtype compute, Text *out) {
    if (h->compute.attention_share > 0)
        text_printf(out, "%g", h->compute.attention_share * hardware_peak(h, compute) / 1e12);
    else
        text_printf(out, "%.3g forward and %.3g backward (heads of 128, context 8192)",
                    hardware_attention(h, compute, false, 128, 8192) / 1e12,
                    hardware_attention(h, compute, true, 128, 8192) / 1e12);
}

void hardware_describe(const Hardware *h, Dtype compute, Text *out) {
    const HardwareLinks *l = &h->links;
    text_printf(out, "%s: peak %g TFLOP/s in %s; products reach up to %g%s, attention ", h->name,
                hardware_peak(h, compute) / 1e12, dtype_name(compute),
                hardware_products(h, compute, 0) / 1e12, h->compute.float8 ? " (float8)" : "");
    describe_attention(h, compute, out);
    text_printf(out, "; memory %g GiB at %g GB/s; %lld ranks a machine, links %g GB/s inside, %g between",
                h->memory.gib, hardware_bandwidth(h) / 1e9, (long long)l->ranks, l->inside_gb_per_s,
                l->between_gb_per_s);
    if (l->hidden_share > 0) text_printf(out, ", %g%% of tp and cp hidden", 100 * l->hidden_share);
    if (l->narrow_sums) text_printf(out, ", partial sums in %s", dtype_name(compute));
}
