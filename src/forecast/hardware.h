/* What the ranks of a mesh are thought to run on: figures of `weft plan --hardware`, all of them assumptions.
 *
 * A name (h100, h200, b200) stands for figures that are built in: peaks, bandwidth and memory of the vendor's
 * data sheets; shares and links as users report to reach them. A file says what differs from h100:
 *
 *     compute: {bf16_tflops: 989, share: 0.6, attention_share: 0.45}
 *     memory: {gib: 79.6, gb_per_s: 3350, share: 0.8}
 *     links: {ranks: 8, inside_gb_per_s: 330, between_gb_per_s: 43, inside_us: 12, between_us: 25}
 *
 * Speeds are of one rank, links' of one direction. */
#ifndef WEFT_FORECAST_HARDWARE_H
#define WEFT_FORECAST_HARDWARE_H

#include "base/options.h"
#include "base/text.h"
#include "device/device.h"

typedef struct HardwareCompute {
    double bf16_tflops, fp32_tflops, float8_tflops; /* peaks */
    bool float8;                                 /* products of blocks at the float8 peak: not weft's own */
    double share, float8_share, attention_share; /* of a peak that is reached; attention's: of bf16's */
} HardwareCompute;

typedef struct HardwareMemory {
    double gib, gb_per_s, share;
} HardwareMemory;

typedef struct HardwareLinks {
    int64_t ranks; /* of a machine */
    double inside_gb_per_s, between_gb_per_s, inside_us, between_us;
    /* What other trainers do and weft does not: work hides so much of what crosses over tp and cp; partial
     * sums cross in the compute dtype. */
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

/* `asked`: a name that is built in, else a YAML file. ERR_CONFIG, ERR_NOINPUT. */
ErrorCode hardware_read(Hardware *h, const char *asked, Error *err);

double hardware_peak(const Hardware *h, Dtype compute);      /* FLOP/s that shares of the peak are told of */
double hardware_products(const Hardware *h, Dtype compute);  /* FLOP/s reached by products of blocks, ... */
double hardware_attention(const Hardware *h, Dtype compute); /* ... by attention, */
double hardware_head(const Hardware *h, Dtype compute);      /* ... and by the head's product */
double hardware_bandwidth(const Hardware *h);                /* bytes/s of memory reached */

/* Seconds in which each of `ranks` ranks, whose neighbours are `stride` ranks apart, sends `bytes` to the
 * others in `operations` collectives: bytes to ranks of the same machine and to others travel at once. */
double hardware_collective(const Hardware *h, int ranks, int stride, double bytes, int operations);
/* Seconds of one message to the rank that is `stride` ranks away. */
double hardware_message(const Hardware *h, int stride, double bytes);

/* The figures, in one line. */
void hardware_describe(const Hardware *h, Dtype compute, Text *out);

#endif
