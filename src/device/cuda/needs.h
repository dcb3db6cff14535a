/* What a run on a GPU takes of memory, whatever the GPU: by these figures the plugin takes it, and weft plans
 * it where there is no plugin. */
#ifndef WEFT_DEVICE_CUDA_NEEDS_H
#define WEFT_DEVICE_CUDA_NEEDS_H

#include "device/device.h"

enum {
    /* Below some 1,000 rows the head's products are bound by memory: its weight gradient is read and written
     * once for each group of rows. */
    CUDA_LOSS_ROWS = 2048,
    CUDA_ALIGNMENT = 256, /* of what cuBLASLt works in: an address is rounded up to it */
    /* Smaller allocations share such a piece, and nobody could tell what each has taken. */
    CUDA_GRANULARITY = 2 << 20,
    /* Heads of so many elements fit into the shared memory of any chip that code is made for. */
    CUDA_WIDEST_HEAD = 256,
    /* Pinned memory of a stream that uploads: segments, and the bytes of each. */
    CUDA_SEGMENTS = 4,
    CUDA_SEGMENT = 1 << 20
};

/* What the manual of cuBLAS recommends for Hopper and newer; 4 MiB would do before, but a plan that is made
 * elsewhere does not know the chip. */
static inline size_t cuda_products_workspace(void) { return ((size_t)32 << 20) + CUDA_ALIGNMENT; }

/* Products have their workspace; norms, and attention on the way back, a number for each head of a token;
 * attention in chunks one for each key. */
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
