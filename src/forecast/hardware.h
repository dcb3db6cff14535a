/* The hardware that the ranks of a mesh are assumed to run on: figures of `weft plan --hardware`. They are
 * the same on any machine: nothing is measured here.
 *
 * A name (a100, h100, h800, h200, b200) stands for built-in figures: peaks, bandwidth and memory come from
 * the vendor's data sheets, attention's rates from measurements of kernels, other shares and link speeds from
 * users' reports. A file gives the differences from h100:
 *
 *     compute: {bf16_tflops: 989, share: 0.62, ramp_terms: 260, attention: weft}
 *     memory: {gib: 79.6, gb_per_s: 3350, share: 0.8}
 *     links: {ranks: 8, inside_gb_per_s: 330, between_gb_per_s: 43, inside_us: 12, between_us: 25}
 *
 * Speeds are those of one rank; link speeds are for one direction. */
#ifndef WEFT_FORECAST_HARDWARE_H
#define WEFT_FORECAST_HARDWARE_H

#include "base/options.h"
#include "base/text.h"
#include "device/device.h"

/* Whose measured rates attention has, in the order of compute.attention. */
typedef enum AttentionKernels {
    KERNELS_WEFT,
    KERNELS_CUDNN,
    KERNELS_CUDNN_B200,
    KERNELS_FLASH2_H100,
    KERNELS_FLASH2_A100,
    KERNELS_FLASH1_A100
} AttentionKernels;

typedef struct HardwareCompute {
    double bf16_tflops, fp32_tflops, float8_tflops; /* peaks */
    bool float8;                /* products of blocks run at the float8 peak; weft's do not */
    double share, float8_share; /* share of a peak that a product with infinitely long sums reaches */
    double ramp_terms;          /* terms of a sum in bf16 with which it reaches half of that */
    int attention;              /* AttentionKernels */
    double attention_share;     /* of bf16's peak, for all attention; 0: by the kernels' rates */
} HardwareCompute;

typedef struct HardwareMemory {
    double gib, gb_per_s, share;
} HardwareMemory;

typedef struct HardwareLinks {
    int64_t ranks; /* of one machine */
    double inside_gb_per_s, between_gb_per_s, inside_us, between_us;
    /* For comparison with other trainers; weft does neither. Work hides this share of the collectives over tp
     * and cp; partial sums are sent in the compute dtype. */
    double hidden_share;
    bool narrow_sums;
} HardwareLinks;

typedef struct Hardware {
    char name[80];
    HardwareCompute compute;
    HardwareMemory memory;
    HardwareLinks links;
} Hardware;

extern const Option hardware_options[];

/* `asked`: a built-in name, else a YAML file. ERR_CONFIG, ERR_NOINPUT. */
ErrorCode hardware_read(Hardware *h, const char *asked, Error *err);

double hardware_peak(const Hardware *h, Dtype compute); /* FLOP/s, base of the shares */
/* FLOP/s reached by products whose sums have so many terms, of blocks and of the head. */
double hardware_products(const Hardware *h, Dtype compute, double terms);
double hardware_head(const Hardware *h, Dtype compute, double terms);
/* By attention; a backward pass counts as two forward passes, as in counting.h. */
double hardware_attention(const Hardware *h, Dtype compute, bool backward, int head_dim, int64_t context);
double hardware_bandwidth(const Hardware *h); /* bytes/s of memory reached */

/* Seconds in which each of `ranks` ranks sends `bytes` to the others in `operations` collectives. Neighbours
 * in the group are `stride` ranks apart. Transfers inside a machine and between machines run concurrently. */
double hardware_collective(const Hardware *h, int ranks, int stride, double bytes, int operations);
/* The same where collectives have two levels (comm.h), and `local` ranks of the group are on each machine.
 * The levels of a collective follow each other. */
double hardware_levels(const Hardware *h, int ranks, int local, double bytes, int operations);
/* Seconds of one message to a rank that is `stride` ranks away. */
double hardware_message(const Hardware *h, int stride, double bytes);

/* Appends the figures in one line. */
void hardware_describe(const Hardware *h, Dtype compute, Text *out);

#endif
