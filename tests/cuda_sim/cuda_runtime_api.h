/* A CUDA runtime of the CPU: what src/device/cuda/plugin calls of NVIDIA's, by the same names, so that the
 * plugin's own source runs on machines without a GPU. Work is queued by stream and runs when something waits
 * for it, streams in an order drawn from WEFT_SIM_SEED: a wait for an event that is missing, or host memory
 * that is used again too early, shows as another result.
 *
 *   device memory   cannot be read or written but by work that runs: a stray access is a crash
 *   pinned memory   is read and written when a copy runs; the target of a download holds NaN until then
 *   other memory    is copied from at once, and copied to before the call returns, as by the real runtime
 *   time            passes by a microsecond with each work that runs, and only so
 *
 * WEFT_SIM_TAKES=name=number,... says, in MiB, how much a GPU has (total, 8192 of itself), in what pieces it
 * is given (piece, 2), what others than these processes have of it (others), and what is taken for a context
 * of each process (context), a handle of cuBLASLt (products), a communicator (wire), and at the first launch
 * (kernels); leak=N: the Nth launch of a process on GPU 0, or leaks_on, takes a piece that nobody gives back;
 * blind=1: there is no NVML. Processes that have a file in common, WEFT_SIM_GPUS, take of the same GPUs.
 *
 * Transfers of memory of the wrong kind fail. Tensor memory may be pinned, which a GPU reaches too and tests
 * of single ops make use of, but not with WEFT_SIM_STRICT=1: as programs are to be.
 * WEFT_SIM_FAULT=N makes the Nth launch fail when it runs, as a fault inside a kernel does. WEFT_SIM_DRY=1:
 * launches are accepted or refused, and nothing of them runs, so that shapes may be as large as they like. */
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
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
