/* Between weft and weft-cuda.so, which is opened at run time: one weft runs on machines with and without a
 * GPU. The plugin exports one function, cuda_plugin. Both come from one build: structs that they share are
 * compared by size, and another size is an error, not a guess. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_H
#define WEFT_DEVICE_CUDA_PLUGIN_H

#include "device/device.h"

/* Raised whenever an op or a function below changes its meaning but no size. */
enum { CUDA_ABI = 2, CUDA_DEVICES_MAX = 16 };

typedef struct CudaDeviceFacts {
    char name[128];
    uint64_t memory;  /* bytes */
    int major, minor; /* compute capability */
    /* Of a survey: */
    uint64_t available; /* bytes that nobody has, when CUDA itself has what it needs */
    uint32_t reaches;   /* bit i: it reads and writes the memory of the i-th directly */
} CudaDeviceFacts;

typedef struct CudaFacts {
    int driver, runtime; /* as CUDA counts: 1000 major + 10 minor; driver 0: there is none */
    uint64_t products;   /* version of cuBLASLt */
    int devices;         /* how many there are; the first CUDA_DEVICES_MAX are described */
    CudaDeviceFacts device[CUDA_DEVICES_MAX];
    char problem[256]; /* why there are no devices; "" where there are */
    /* Of a survey: */
    int nccl;          /* as NCCL counts: 10000 major + 100 minor + patch; 0: there is none */
    char no_nccl[256]; /* why */
} CudaFacts;

/* What the plugin calls in the program. */
typedef struct CudaHost {
    /* Prints one line and ends the process: a fault of the device spoils all that follows. */
    void (*fatal)(ErrorCode code, const char *message);
    DeviceStream (*stream)(void);    /* device_stream */
    const char *(*call)(OpId op);    /* the op that is being called, with its shape (calls.h) */
    const char *(*unfinished)(void); /* those whose end no wait has shown */
} CudaHost;

typedef struct CudaPlugin {
    int abi;
    uint32_t device_bytes, ops_bytes, facts_bytes, host_bytes;
    void (*facts)(CudaFacts *f);
    /* The rest of the facts, for which CUDA starts on each device: that takes time, and memory of each. */
    void (*survey)(CudaFacts *f);
    /* Fills name, processor, ops, runtime and impl of a zeroed Device. Two slots stay empty, since the
     * program makes these numbers on the host (device/cuda/cuda.c): init_normal, and grad_stats of powers
     * other than 1, 2 and infinity, which the plugin's must not be asked for. */
    ErrorCode (*open)(Device *d, int ordinal, const CudaHost *host, Error *err);
} CudaPlugin;

#ifdef __cplusplus
extern "C"
#endif
    __attribute__((visibility("default"))) const CudaPlugin *
    cuda_plugin(void);

#endif
