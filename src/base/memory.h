/* Memory pools. All tensor memory is planned, allocated once before step 1, and handed out from named pools;
 * nothing is allocated inside a step. A pool is used twice with the same sequence of requests: first dry, to
 * add up its size, then real.
 *
 *     Pool p = {.name = "activations"};
 *     layout(&p);          // dry: pool_take returns NULL and counts
 *     pool_commit(&p);     // one page-aligned mapping of exactly the planned size
 *     layout(&p);          // real: pointers */
#ifndef WEFT_BASE_MEMORY_H
#define WEFT_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define POOL_ALIGN 64
static inline size_t pool_round(size_t bytes) { return (bytes + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN; }

typedef struct Pool {
    const char *name;
    char *base;     /* NULL before commit */
    size_t planned; /* bytes asked for in the dry pass */
    size_t used;    /* bytes handed out since commit */
} Pool;

/* `bytes` rounded up to POOL_ALIGN. Before commit returns NULL and counts. After commit CHECKs that the plan
 * is not exceeded. */
void *pool_take(Pool *p, size_t bytes);
/* Maps and touches the memory (zeroed). ERR_MEMORY names the pool and its size. */
ErrorCode pool_commit(Pool *p, Error *err);
void pool_free(Pool *p);

/* In the guard build (WEFT_GUARD) pool memory is unreadable except between these two, which every op call is
 * wrapped in. They nest and are no-ops elsewhere. */
void pool_unlock_all(void);
void pool_lock_all(void);

/* Figures of this process from the system: resident bytes now and at peak; total memory of the machine. */
typedef struct MemoryUse {
    uint64_t resident, peak, machine, available; /* available: free or reclaimable, swap included */
} MemoryUse;
MemoryUse memory_use(void);

#endif
