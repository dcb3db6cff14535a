/* Memory pools. All tensor memory is planned, allocated from the device once before step 1, and handed out
 * from named pools; no step allocates. A pool is used twice with the same sequence of requests: first dry, to
 * add up its size, then for real.
 *
 *     Pool p = {.name = "activations"};
 *     layout(&p);              // dry: pool_take returns NULL and counts
 *     pool_commit(&p, d, err); // one allocation, of exactly the planned size
 *     layout(&p);              // real: addresses */
#ifndef WEFT_DEVICE_POOL_H
#define WEFT_DEVICE_POOL_H

#include "device/device.h"

#define POOL_ALIGN 64
static inline size_t pool_round(size_t bytes) { return (bytes + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN; }

/* Bytes that a device allocates for a pool: a multiple of its granularity (Device.granularity). */
static inline size_t pool_taken(size_t bytes, size_t granularity) {
    size_t least = bytes > 0 ? bytes : 1;
    return granularity > 0 ? (least + granularity - 1) / granularity * granularity : bytes;
}

typedef struct Pool {
    const char *name;
    Device *device; /* of a committed pool */
    char *base;     /* NULL before commit */
    size_t planned; /* bytes requested in the dry pass */
    size_t used;    /* bytes handed out since commit */
} Pool;

/* Hands out `bytes`, rounded up to POOL_ALIGN. Before commit it returns NULL and counts. After commit it
 * CHECKs that the plan is not exceeded. */
void *pool_take(Pool *p, size_t bytes);
/* Allocates all the memory, zeroed. ERR_MEMORY names the pool and its size. */
ErrorCode pool_commit(Pool *p, Device *d, Error *err);
void pool_free(Pool *p);

/* In the guard build (WEFT_GUARD), tensor memory of a CPU is unreadable except between these two, which wrap
 * every op call. They nest, and are no-ops in other builds. */
void pool_unlock_all(void);
void pool_lock_all(void);

#endif
