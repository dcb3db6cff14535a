/* Interface between weft and weft-cuda.so, which is opened at run time, so that one weft runs on machines
 * with and without a GPU. The plugin exports one function, cuda_plugin. Both come from one build: the sizes
 * of shared structs are compared, and a mismatch is an error. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_H
#define WEFT_DEVICE_CUDA_PLUGIN_H

#include "device/ops/ops.h"

/* Raised whenever an op or a function below changes its meaning but no size. */
enum { CUDA_ABI = 3, CUDA_DEVICES_MAX = 16 };

typedef struct CudaDeviceFacts {
    char name[128];
    uint64_t memory;  /* bytes */
    int major, minor; /* compute capability */
    /* Of a survey: */
    uint64_t available; /* free bytes, after CUDA has created its context */
    uint32_t reaches;   /* bit i: this GPU can access the memory of GPU i */
} CudaDeviceFacts;

typedef struct CudaFacts {
    int driver, runtime; /* as CUDA counts: 1000 major + 10 minor; driver 0: there is none */
    uint64_t products;   /* version of cuBLASLt */
    int devices;         /* number of GPUs; the first CUDA_DEVICES_MAX are described */
    CudaDeviceFacts device[CUDA_DEVICES_MAX];
    char problem[256]; /* why there are no devices; "" where there are */
    /* Of a survey: */
    int nccl;          /* as NCCL counts: 10000 major + 100 minor + patch; 0: there is none */
    char no_nccl[256]; /* why */
} CudaFacts;

/* Functions of the program that the plugin calls. */
typedef struct CudaHost {
    /* Prints one line and ends the process: after a device fault nothing can be trusted. */
    void (*fatal)(ErrorCode code, const char *message);
    DeviceStream (*stream)(void);    /* device_stream */
    const char *(*call)(OpId op);    /* the op that is being called, with its shape (calls.h) */
    const char *(*unfinished)(void); /* ops that no wait has shown to have ended */
} CudaHost;

typedef struct CudaPlugin {
    int abi;
    uint32_t device_bytes, ops_bytes, facts_bytes, host_bytes;
    void (*facts)(CudaFacts *f);
    /* Fills the rest of the facts. It starts CUDA on each device, which takes time and device memory. */
    void (*survey)(CudaFacts *f);
    /* Fills name, processor, *ops, runtime and impl of a Device that is zero but for the address `ops`. Two
     * ops are computed on the host (device/cuda/cuda.c): init_normal, whose slot stays empty, and grad_stats
     * of powers other than 1, 2 and infinity, which must not be asked of the plugin's. */
    ErrorCode (*open)(Device *d, int ordinal, const CudaHost *host, Error *err);
} CudaPlugin;

#ifdef __cplusplus
extern "C"
#endif
    __attribute__((visibility("default"))) const CudaPlugin *
    cuda_plugin(void);

#endif
