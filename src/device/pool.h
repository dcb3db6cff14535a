/* Memory pools. All tensor memory is planned, taken from the device once before step 1, and handed out from
 * named pools; nothing is allocated inside a step. A pool is used twice with the same sequence of requests:
 * first dry, to add up its size, then real.
 *
 *     Pool p = {.name = "activations"};
 *     layout(&p);              // dry: pool_take returns NULL and counts
 *     pool_commit(&p, d, err); // one piece of the device's memory, of exactly the planned size
 *     layout(&p);              // real: addresses */
#ifndef WEFT_DEVICE_POOL_H
#define WEFT_DEVICE_POOL_H

#include "device/device.h"

#define POOL_ALIGN 64
static inline size_t pool_round(size_t bytes) { return (bytes + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN; }

/* What a device takes of its memory for a pool, in such pieces (Device.granularity). */
static inline size_t pool_taken(size_t bytes, size_t granularity) {
    size_t least = bytes > 0 ? bytes : 1;
    return granularity > 0 ? (least + granularity - 1) / granularity * granularity : bytes;
}

typedef struct Pool {
    const char *name;
    Device *device; /* of a committed pool */
    char *base;     /* NULL before commit */
    size_t planned; /* bytes asked for in the dry pass */
    size_t used;    /* bytes handed out since commit */
} Pool;

/* `bytes` rounded up to POOL_ALIGN. Before commit returns NULL and counts. After commit CHECKs that the plan
 * is not exceeded. */
void *pool_take(Pool *p, size_t bytes);
/* Takes the memory, all of it, zeroed. ERR_MEMORY names the pool and its size. */
ErrorCode pool_commit(Pool *p, Device *d, Error *err);
void pool_free(Pool *p);

/* In the guard build (WEFT_GUARD) tensor memory of a CPU is unreadable except between these two, which every
 * op call is wrapped in. They nest and are no-ops elsewhere. */
void pool_unlock_all(void);
void pool_lock_all(void);

#endif
