/* What this machine's device reaches, measured: the rates of a roofline. */
#ifndef WEFT_FORECAST_RATES_H
#define WEFT_FORECAST_RATES_H

#include "base/text.h"
#include "device/device.h"

typedef struct MachineRates {
    double peak; /* of matrix products in the compute dtype, FLOP/s */
    double copy; /* of memory, bytes/s */
    /* The file that had them, where they were measured before; owned. NULL: measured now. */
    char *before;
} MachineRates;

/* Measures copies for some hundredths of a second, in at most RATES_COPY_BYTES bytes; `peak` comes from
 * device_matmul_peak. */
enum { RATES_COPY_BYTES = 48 << 20 };
MachineRates rates_with_peak(Device *d, double peak);
/* Measures both for about a second, and keeps them in a file of `cache_dir` for 30 days. The file is named
 * after the processor, the kernels, the threads, the dtype and the build of weft. Where it cannot be written,
 * they are measured each time. Free with rates_free. */
MachineRates rates_cached(Device *d, Dtype compute, const char *cache_dir);
void rates_free(MachineRates *r);

#endif
