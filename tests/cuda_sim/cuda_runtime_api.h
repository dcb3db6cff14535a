/* A CUDA runtime on the CPU. It has the functions of NVIDIA's that src/device/cuda/plugin calls, by the same
 * names, so that the plugin's own source runs on machines without a GPU. Work is queued per stream and runs
 * when something waits for it; the order of streams is drawn from WEFT_SIM_SEED. So a missing wait for an
 * event, or host memory that is reused too early, shows as a different result.
 *
 *   device memory   is accessible only to work that runs: a stray access is a crash
 *   pinned memory   is read and written when a copy runs; the target of a download holds NaN until then
 *   other memory    is copied from at once, and copied to before the call returns, as by the real runtime
 *   time            passes by a microsecond with each work that runs, and never otherwise
 *
 * WEFT_SIM_TAKES=name=number,... sets memory sizes in MiB: what a GPU has (total, 8192 by default), its
 * allocation granularity (piece, 2), what others than these processes use of it (others), and what each
 * process's context (context), a handle of cuBLASLt (products), a communicator (wire) and the first launch
 * (kernels) take. leak=N: the Nth launch of a process on GPU 0, or on leaks_on, takes a block that is never
 * freed. blind=1: there is no NVML. Processes that share a file, WEFT_SIM_GPUS, share the same GPUs.
 *
 * A thread chooses a GPU before it calls anything: a call for another GPU, or from a thread that has chosen
 * none, ends the process. (The real runtime would create a context on a GPU that is not used.)
 *
 * Transfers of the wrong kind of memory fail. Tensor memory may be pinned, which a GPU can access too and
 * which tests of single ops use; WEFT_SIM_STRICT=1 forbids it, as for programs. WEFT_SIM_FAULT=N makes the
 * Nth launch fail when it runs, as a fault inside a kernel does. With WEFT_SIM_DRY=1 launches are accepted or
 * refused, but do not run, so that shapes may be as large as desired. */
#ifndef WEFT_TESTS_CUDA_SIM_CUDA_RUNTIME_API_H
#define WEFT_TESTS_CUDA_SIM_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

typedef enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
} cudaMemcpyKind;

typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;

typedef struct cudaUUID_t {
    char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor;
};

enum {
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0
};

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void);

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t s);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t s);

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute name, int value);

#ifdef __cplusplus
}
#endif

#endif
