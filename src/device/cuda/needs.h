/* Memory that a run on a GPU needs, whatever the GPU. The plugin allocates by these figures, and weft plans
 * by them where there is no plugin. */
#ifndef WEFT_DEVICE_CUDA_NEEDS_H
#define WEFT_DEVICE_CUDA_NEEDS_H

#include "device/shapes.h"

enum {
    /* Below some 1,000 rows the head's products are bound by memory: its wgrad is read and written once for
     * each group of rows. */
    CUDA_LOSS_ROWS = 2048,
    CUDA_ALIGNMENT = 256, /* of cuBLASLt's workspace, whose address is rounded up to it */
    /* The driver's allocation granularity, in bytes: smaller allocations share such a block, and how much
     * each takes of the GPU would be unknown. */
    CUDA_GRANULARITY = 2 << 20,
    /* The widest head that fits into the shared memory of any chip that code is compiled for. */
    CUDA_WIDEST_HEAD = 256,
    /* Pinned memory of a stream that uploads: the number of segments, and the bytes of each. */
    CUDA_SEGMENTS = 4,
    CUDA_SEGMENT = 1 << 20
};

/* The cuBLAS manual recommends 32 MiB for Hopper and newer. Older chips need only 4 MiB, but a plan made on
 * another machine does not know the chip. */
static inline size_t cuda_products_workspace(void) { return ((size_t)32 << 20) + CUDA_ALIGNMENT; }

/* Products need their workspace; norms and attention's backward one number per head of a token; chunked
 * attention one per key. */
static inline size_t cuda_scratch_needed(const DeviceNeeds *needs) {
    int64_t heads = needs->attention.heads > 1 ? needs->attention.heads : 1,
            tokens = needs->tokens > needs->attention.tokens ? needs->tokens : needs->attention.tokens;
    int64_t keys = needs->keys > tokens ? needs->keys : tokens;
    size_t rows = (size_t)(tokens * heads + keys) * sizeof(float);
    return rows > cuda_products_workspace() ? rows : cuda_products_workspace();
}

/* Nothing is uploaded on communicators. */
static inline uint64_t cuda_pinned(void) { return (uint64_t)ON_COMMUNICATORS * CUDA_SEGMENTS * CUDA_SEGMENT; }

#endif
