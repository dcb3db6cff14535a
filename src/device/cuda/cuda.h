/* NVIDIA GPUs: weft-cuda.so, looked for when it is asked for. */
#ifndef WEFT_DEVICE_CUDA_CUDA_H
#define WEFT_DEVICE_CUDA_CUDA_H

#include "device/cuda/plugin.h"
#include "device/device.h"

/* GPU number `place` modulo how many there are. The plugin is $WEFT_CUDA where that is set, else weft-cuda.so
 * beside the program, or in ../lib/weft from there. ERR_UNAVAILABLE says what is missing: plugin, libraries,
 * driver, GPU. */
ErrorCode cuda_open(Device *d, int place, Error *err);

/* A GPU to plan for: see device_describe. */
void cuda_describe(Device *d);

/* What `weft doctor` tells, survey and all; ERR_UNAVAILABLE where there is no plugin, or one that does not
 * load. */
ErrorCode cuda_facts(CudaFacts *f, Error *err);

#endif
