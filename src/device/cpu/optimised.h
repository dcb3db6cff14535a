/* The optimised CPU implementation: oneDNN products and vector kernels for the instruction set of this processor. */
#ifndef WEFT_DEVICE_CPU_OPTIMISED_H
#define WEFT_DEVICE_CPU_OPTIMISED_H

#include "device/device.h"

/* Overrides slots of d->ops for d->name; d->threads and d->native_bf16 are set. */
ErrorCode optimised_open(Device *d, Error *err);
void optimised_close(Device *d);

#endif
