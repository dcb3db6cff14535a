/* NVIDIA GPUs, through weft-cuda.so, which is loaded on demand. */
#ifndef WEFT_DEVICE_CUDA_CUDA_H
#define WEFT_DEVICE_CUDA_CUDA_H

#include "device/cuda/plugin.h"
#include "device/device.h"

/* Opens GPU number `local_rank` modulo the number of GPUs. The plugin is $WEFT_CUDA if set, else
 * weft-cuda.so in the program's directory, or in ../lib/weft from there. ERR_UNAVAILABLE names what is
 * missing: plugin, libraries, driver, GPU. */
ErrorCode cuda_open(Device *d, int local_rank, Error *err);

/* Describes a GPU to plan for: see device_describe. */
void cuda_describe(Device *d);

/* The facts that `weft doctor` prints, including the survey; ERR_UNAVAILABLE if there is no plugin, or it
 * does not load. */
ErrorCode cuda_facts(CudaFacts *f, Error *err);

#endif
