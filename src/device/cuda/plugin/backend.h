/* Shared by the files of the plugin: the backend behind a Device, and what kernels are launched with.
 *
 * Each file of kernels (*.cu) fills its slots of the op table. A slot checks only what it alone knows,
 * launches on the stream that the calling thread has chosen, and calls cuda_launched. Host code is C, kernels
 * are C++; both include this. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_BACKEND_H
#define WEFT_DEVICE_CUDA_PLUGIN_BACKEND_H

#include <cuda_runtime_api.h>

#include "device/cuda/plugin.h"
#include "device/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The stream of the calling thread. */
cudaStream_t cuda_stream(Device *d);
/* Scratch of ON_COMPUTE. Its ops run one after another, so each may use it from its start. Ends the process
 * if it is smaller than requested. */
void *cuda_scratch(Device *d, size_t bytes);
/* The GPU's compute capability, times ten. */
int cuda_chip(const Device *d);
/* Called after each launch. Ends the process with the op's name if the launch was refused, and with
 * WEFT_CUDA_CHECK=1 also if the kernel failed. */
void cuda_launched(Device *d, OpId op);
/* Called before each launch. Ends the process with the op's name if the grid is larger than GPUs allow. */
void cuda_check_grid(Device *d, OpId op, int64_t x, int64_t y);
/* Allows a kernel more than 48 KiB of dynamic shared memory. Ends the process on a GPU without that much. */
void cuda_allow_shared(Device *d, OpId op, const void *kernel, size_t bytes);
/* Ends the process with the message: for faults of the device, which are sticky. */
void cuda_fatal(Device *d, const char *format, ...) PRINTF_LIKE(2, 3);

/* Sets err and returns the code; for errors before anything has started. */
ErrorCode cuda_refuse(Error *err, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);

/* The same as TRY, which calls the program. */
#define PASS_ON(call)                  \
    do {                               \
        ErrorCode code_ = (call);      \
        if (code_ != OK) return code_; \
    } while (0)

/* For communicators.c. */
typedef struct Communicators Communicators;
Communicators **cuda_communicators(Device *d); /* address of the device's pointer; NULL in it: none yet */
void cuda_choose(Device *d);                   /* directs this thread's CUDA calls to the device's GPU */
cudaStream_t cuda_stream_of(Device *d, DeviceStream s);
ErrorCode cuda_open_stream(Device *d, DeviceStream s, Error *err);
bool cuda_reached(Device *d, Event e);
void cuda_identity(Device *d, char out[COMMUNICATOR_IDENTITY]);
const DeviceCommunicators *communicators_table(void);
int communicators_version(Error *err); /* of NCCL; 0 with err set if there is none */
bool communicators_close(Device *d);   /* false: an abort of them does not end */

/* Each file's slots of the op table. */
void elements_fill(Ops *ops);
void norms_fill(Ops *ops);
void embedding_fill(Ops *ops);
void experts_fill(Ops *ops);
void attention_fill(Ops *ops);
void scans_fill(Ops *ops);
void mamba_fill(Ops *ops);
void loss_fill(Ops *ops);
void optimizers_fill(Ops *ops);
void gradients_fill(Ops *ops);

/* The widest head on a GPU whose blocks may have this much shared memory. */
int attention_widest(size_t shared);

/* split_k.cu: products with splits, to which gemm delegates. */
void split_k_gemm(Device *d, const GemmArgs *o);

#ifdef __cplusplus
}
#endif

#endif
