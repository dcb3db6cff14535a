/* What of NVML, the driver's own library, is called, as its published interface has had it since 2012: the
 * library comes with a driver, and is opened at run time. */
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
/* Bytes of a GPU that nobody has, without taking any; 0: not known. */
uint64_t nvml_available(const char uuid[16]);

/* Of a plugin that was linked to an NVML of its own (tests/cuda_sim). */
extern const Nvml nvml_linked __attribute__((weak));
#ifdef __cplusplus
}
#endif

#endif
