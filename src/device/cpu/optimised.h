/* The optimised CPU implementation: products and vector kernels for the instruction set of this
 * processor. Work is cut into pieces by shape alone and handed to threads; sums over pieces are added in the
 * order of the pieces. */
#ifndef WEFT_DEVICE_CPU_OPTIMISED_H
#define WEFT_DEVICE_CPU_OPTIMISED_H

#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/device.h"

typedef struct Optimised {
    const Kernels *kernels;
    Gemm *gemm;
} Optimised;

static inline Optimised *optimised_of(const Device *d) { return d->impl; }

/* Overrides slots of d->ops for d->name; d->threads and d->native_bf16 are set. */
ErrorCode optimised_open(Device *d, const Kernels *kernels, Error *err);
void optimised_close(Device *d);
/* From threads, native_bf16 and the shapes alone. */
size_t optimised_scratch_bytes(const Device *d, const DeviceNeeds *needs);

/* optimised_attention.c */
void optimised_attention_forward(Device *d, AttentionShape s, const void *qkv, const int32_t *first_key,
                                 void *out, float *lse, Dtype c);
void optimised_attention_backward(Device *d, AttentionShape s, const void *qkv, const int32_t *first_key,
                                  const void *out, const float *lse, const void *dout, void *dqkv, Dtype c);
void optimised_attention_decode(Device *d, AttentionShape s, int64_t start, const void *qkv,
                                const void *k_cache, const void *v_cache, void *out, Dtype c);
size_t optimised_attention_scratch(const Device *d, AttentionShape s);

#endif
