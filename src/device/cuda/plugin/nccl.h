/* The functions of NCCL that are called, as its published interface has had them since 2.18. The library is
 * opened at run time, so that neither building nor running on one GPU needs it. tests/cuda_sim/static.sh
 * compares this with NVIDIA's nccl.h where that is installed. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_NCCL_H
#define WEFT_DEVICE_CUDA_PLUGIN_NCCL_H

#include <cuda_runtime_api.h>
#include <stddef.h>

enum {
    NCCL_OK = 0,
    NCCL_IN_PROGRESS = 7,
    NCCL_BYTES = 0 /* ncclInt8 */,
    NCCL_NO_COLOUR = -1,
    NCCL_KEY = 128
};

typedef struct NcclKey { /* ncclUniqueId */
    char internal[NCCL_KEY];
} NcclKey;
typedef struct ncclComm *NcclComm;

typedef struct Nccl {
    int (*GetVersion)(int *version);
    int (*GetUniqueId)(NcclKey *key);
    int (*CommInitRank)(NcclComm *comm, int ranks, NcclKey key, int rank);
    int (*CommSplit)(NcclComm comm, int colour, int key, NcclComm *out, void *config);
    int (*CommDestroy)(NcclComm comm);
    int (*CommAbort)(NcclComm comm);
    int (*CommGetAsyncError)(NcclComm comm, int *error);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*Send)(const void *data, size_t count, int type, int peer, NcclComm comm, cudaStream_t stream);
    int (*Recv)(void *data, size_t count, int type, int peer, NcclComm comm, cudaStream_t stream);
    const char *(*GetErrorString)(int error);
} Nccl;

/* Set in a plugin that was linked with its own NCCL (tests/cuda_sim). */
#ifdef __cplusplus
extern "C" {
#endif
extern const Nccl nccl_linked __attribute__((weak));
#ifdef __cplusplus
}
#endif

#endif
