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
    FIGURE("compute.share", compute.share, "0.6", 1e-6, 1, "Share of the peak that products reach."),
    FIGURE("compute.float8_share", compute.float8_share, "0.45", 1e-6, 1, "The same of float8's."),
    FIGURE("compute.attention_share", compute.attention_share, "0.45", 1e-6, 1,
           "Share of the bf16 peak that attention reaches."),
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
static const char *const h200[] = {"memory.gib=140.4", "memory.gb_per_s=4800", NULL};
static const char *const b200[] = {"compute.bf16_tflops=2250",
                                   "compute.fp32_tflops=75",
                                   "compute.float8_tflops=4500",
                                   "memory.gib=179",
                                   "memory.gb_per_s=7700",
                                   "links.inside_gb_per_s=690",
                                   NULL};
static const struct {
    const char *name;
    const char *const *values;
} known[] = {{"h100", h100}, {"h200", h200}, {"b200", b200}};
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
    return error_set(err, ERR_CONFIG, "--hardware is \"%s\": expected h100, h200, b200, or a YAML file",
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

double hardware_head(const Hardware *h, Dtype compute) {
    return h->compute.share * hardware_peak(h, compute);
}

double hardware_products(const Hardware *h, Dtype compute) {
    if (!h->compute.float8) return hardware_head(h, compute);
    return 1e12 * h->compute.float8_share * h->compute.float8_tflops;
}

double hardware_attention(const Hardware *h, Dtype compute) {
    return h->compute.attention_share * hardware_peak(h, compute);
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

double hardware_message(const Hardware *h, int stride, double bytes) {
    bool outside = stride >= h->links.ranks;
    return 1e-6 * (outside ? h->links.between_us : h->links.inside_us) +
           bytes / (1e9 * (outside ? h->links.between_gb_per_s : h->links.inside_gb_per_s));
}

void hardware_describe(const Hardware *h, Dtype compute, Text *out) {
    const HardwareLinks *l = &h->links;
    text_printf(out,
                "%s: peak %g TFLOP/s in %s; products reach %g%s, attention %g; memory %g GiB at %g GB/s; "
                "%lld ranks a machine, links %g GB/s inside, %g between",
                h->name, hardware_peak(h, compute) / 1e12, dtype_name(compute),
                hardware_products(h, compute) / 1e12, h->compute.float8 ? " (float8)" : "",
                hardware_attention(h, compute) / 1e12, h->memory.gib, hardware_bandwidth(h) / 1e9,
                (long long)l->ranks, l->inside_gb_per_s, l->between_gb_per_s);
    if (l->hidden_share > 0) text_printf(out, ", %g%% of tp and cp hidden", 100 * l->hidden_share);
    if (l->narrow_sums) text_printf(out, ", partial sums in %s", dtype_name(compute));
}
