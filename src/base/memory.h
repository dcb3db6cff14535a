/* Memory figures of this process and its machine. */
#ifndef WEFT_BASE_MEMORY_H
#define WEFT_BASE_MEMORY_H

#include <stdint.h>

/* In bytes. */
typedef struct MemoryUse {
    uint64_t resident, peak; /* of this process: now, and the maximum so far */
    uint64_t machine;        /* usable by the process: the machine's, or the limit of its control group */
    uint64_t physical;       /* the machine's; more than `machine` if a control group (container) limits it */
    uint64_t available;      /* of `machine`: free or reclaimable, swap included */
} MemoryUse;
MemoryUse memory_use(void);
/* The same with other directories in place of /proc and /sys/fs/cgroup. */
MemoryUse memory_use_at(const char *proc, const char *control_groups);

#endif
