/* What a run has of its GPUs' memory, told apart: pools, which are planned; driver and libraries, of which
 * only the driver knows; and what others have. On devices whose memory is the machine's nothing is done.
 *
 * Figures are of a GPU, which several ranks may share. They are taken where all ranks have come to the same
 * place, since what one has taken and another has not would not add up:
 *
 *     untouched   before any of them had anything of it   > contexts, cuBLASLt
 *     opened      devices are open                        > NCCL
 *     wired       it has joined them                      > pools
 *     pooled      pools are there                         > kernels, loaded by the driver at their first use
 *     settled     the first step is done
 *
 * Nothing is allocated inside a step, so what is free then stays free. */
#ifndef WEFT_TRAIN_GPU_MEMORY_H
#define WEFT_TRAIN_GPU_MEMORY_H

#include "base/text.h"
#include "comm/comm.h"
#include "device/device.h"
#include "observe/journal.h"

typedef struct GpuMemory {
    char identity[16];                                         /* DeviceMemory's */
    int rank, ranks;                                           /* the first that uses it; how many do */
    uint64_t total, untouched, opened, wired, pooled, settled; /* bytes free; untouched 0: not known */
    uint64_t pools, granules; /* bytes of its ranks' pools; what these are to take of it in whole pieces */
    uint64_t fell;            /* bytes that were free when it was settled, and are not */
} GpuMemory;

typedef struct GpuMemoryUse {
    Comm *comm;
    Device *device;
    GpuMemory own; /* as this rank sees its GPU */
    GpuMemory gpu; /* rank 0's: all ranks' figures of the GPU that has least left, or that lost most */
    bool steady;   /* the first step is done */
    bool reported; /* of what fell: it is told once */
} GpuMemoryUse;

/* When all ranks have opened theirs. */
void gpu_memory_open(GpuMemoryUse *o, Comm *comm, Device *d);
/* Before pools are taken, of `pools` bytes and `pieces` in whole pieces. Collective: ERR_MEMORY on all ranks
 * alike where those of a GPU are more than is free on it. */
ErrorCode gpu_memory_check(GpuMemoryUse *o, size_t pools, size_t granules, Error *err);
/* They are there; behind the first step. Collective. Rank 0 says what has taken what. */
ErrorCode gpu_memory_pooled(GpuMemoryUse *o, Error *err);
ErrorCode gpu_memory_settle(GpuMemoryUse *o, Error *err);
/* Behind a later step; for this rank alone, as is whether it has seen something that was not told yet:
 * RECORD_MEMORY of the next step. */
void gpu_memory_look(GpuMemoryUse *o);
static inline bool gpu_memory_has_seen(const GpuMemoryUse *o) { return o->own.fell > 0 && !o->reported; }
/* Something else than a step was done, with kernels of its own. */
void gpu_memory_allow(GpuMemoryUse *o);
/* Where some rank has seen something, or may have. Collective. On rank 0 what there is to say; else `said`
 * stays empty. */
ErrorCode gpu_memory_tell(GpuMemoryUse *o, Text *message, Error *err);

/* Of `gpu`, for the journal: behind the pools, and behind the first step. */
enum { GPU_MEMORY_FACTS = 10 };
void gpu_memory_pool_facts(const GpuMemoryUse *o, JournalFact facts[GPU_MEMORY_FACTS]);
void gpu_memory_kernel_facts(const GpuMemoryUse *o, JournalFact facts[GPU_MEMORY_FACTS]);

#endif
