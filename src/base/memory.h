/* Figures of this process and its machine from the system. */
#ifndef WEFT_BASE_MEMORY_H
#define WEFT_BASE_MEMORY_H

#include <stdint.h>

/* Resident bytes of this process now and at peak; total memory of the machine, or of the container. */
typedef struct MemoryUse {
    uint64_t resident, peak, machine, available; /* available: free or reclaimable, swap included */
} MemoryUse;
MemoryUse memory_use(void);

#endif
