/* Figures of this process and its machine from the system. */
#ifndef WEFT_BASE_MEMORY_H
#define WEFT_BASE_MEMORY_H

#include <stdint.h>

/* Figures of this process from the system, in bytes. */
typedef struct MemoryUse {
    uint64_t resident, peak; /* of this process, now and at most so far */
    uint64_t machine;        /* what it may use: all of the machine's, or the limit of its control group */
    uint64_t physical;  /* the machine's; more than `machine` where a control group (container) limits it */
    uint64_t available; /* of what it may use: free or reclaimable, swap included */
} MemoryUse;
MemoryUse memory_use(void);
/* The same with other directories in place of /proc and /sys/fs/cgroup. */
MemoryUse memory_use_at(const char *proc, const char *control_groups);

#endif
