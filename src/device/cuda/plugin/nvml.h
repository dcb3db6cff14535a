/* The functions of NVML, the driver's management library, that are called, as its published interface has had
 * them since 2012. The library comes with the driver and is opened at run time. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_NVML_H
#define WEFT_DEVICE_CUDA_PLUGIN_NVML_H

#include <stdint.h>

enum { NVML_OK = 0 };

typedef struct NvmlMemory { /* nvmlMemory_t */
    unsigned long long total, available, used;
} NvmlMemory;
typedef struct nvmlDevice_st *NvmlDevice;

typedef struct Nvml {
    int (*Init)(void);
    int (*Shutdown)(void);
    int (*DeviceGetHandleByUUID)(const char *uuid, NvmlDevice *device);
    int (*DeviceGetMemoryInfo)(NvmlDevice device, NvmlMemory *memory);
} Nvml;

#ifdef __cplusplus
extern "C" {
#endif
/* Returns the free bytes of a GPU, without allocating on it; 0 if they are not known. */
uint64_t nvml_available(const char uuid[16]);

/* Set in a plugin that was linked with its own NVML (tests/cuda_sim). */
extern const Nvml nvml_linked __attribute__((weak));
#ifdef __cplusplus
}
#endif

#endif
