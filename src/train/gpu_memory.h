/* Breaks down a run's GPU memory: pools, which are planned; driver and libraries, which only the driver can
 * measure; and other processes. No-op on devices that use the machine's memory.
 *
 * Figures are per GPU, which several ranks may share. They are taken when all ranks have reached the same
 * point, because otherwise they would not add up:
 *
 *     untouched   before any rank used it              > contexts, cuBLASLt
 *     opened      devices are open                     > NCCL
 *     connected   NCCL has connected the ranks         > pools
 *     pooled      pools are allocated                  > kernels, loaded by the driver at their first use
 *     settled     the first step is done
 *
 * Nothing is allocated inside a step, so the memory that is free then stays free. */
#ifndef WEFT_TRAIN_GPU_MEMORY_H
#define WEFT_TRAIN_GPU_MEMORY_H

#include "base/text.h"
#include "comm/comm.h"
#include "device/device.h"
#include "observe/journal.h"

typedef struct GpuMemory {
    char identity[16];                                             /* DeviceMemory's */
    int rank, ranks;                                               /* first rank that uses it; how many do */
    uint64_t total, untouched, opened, connected, pooled, settled; /* bytes free; untouched 0: not known */
    uint64_t pools, granules; /* bytes of its ranks' pools; the same, rounded up to granules */
    uint64_t fell;            /* bytes by which free memory has decreased since it settled */
} GpuMemory;

typedef struct GpuMemoryUse {
    Comm *comm;
    Device *device;
    GpuMemory own; /* as this rank sees its GPU */
    GpuMemory gpu; /* rank 0's: the GPU with least memory left, or that lost most, over all its ranks */
    bool steady;   /* the first step is done */
    bool reported; /* the loss of memory was reported: once is enough */
} GpuMemoryUse;

/* Call when all ranks have opened their devices. */
void gpu_memory_open(GpuMemoryUse *o, Comm *comm, Device *d);
/* Call before pools of `pools` bytes, `granules` bytes when rounded up, are allocated. Collective: ERR_MEMORY
 * on all ranks alike if a GPU's ranks need more than is free on it. */
ErrorCode gpu_memory_check(GpuMemoryUse *o, size_t pools, size_t granules, Error *err);
/* Call when the pools are allocated; and after the first step. Collective. Rank 0 logs what took how much. */
ErrorCode gpu_memory_pooled(GpuMemoryUse *o, Error *err);
ErrorCode gpu_memory_settle(GpuMemoryUse *o, Error *err);
/* Measures after a later step, on this rank only. gpu_memory_has_seen: this rank found a loss that is not
 * reported yet; it goes into RECORD_MEMORY of the next step. */
void gpu_memory_look(GpuMemoryUse *o);
static inline bool gpu_memory_has_seen(const GpuMemoryUse *o) { return o->own.fell > 0 && !o->reported; }
/* Call after something other than a step, which has kernels of its own: accepts the memory that they took. */
void gpu_memory_allow(GpuMemoryUse *o);
/* Call where some rank has seen a loss, or may have. Collective. Appends to `message` on rank 0, if there is
 * anything to report. */
ErrorCode gpu_memory_write(GpuMemoryUse *o, Text *message, Error *err);

/* Facts about `gpu` for the journal: after the pools were allocated, and after the first step. */
enum { GPU_MEMORY_FACTS = 10 };
void gpu_memory_pool_facts(const GpuMemoryUse *o, JournalFact facts[GPU_MEMORY_FACTS]);
void gpu_memory_kernel_facts(const GpuMemoryUse *o, JournalFact facts[GPU_MEMORY_FACTS]);

#endif
