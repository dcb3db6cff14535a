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
    uint64_t pools, pieces; /* bytes of its ranks' pools; what these are to take of it in whole pieces */
    uint64_t fell;          /* bytes that were free when it was settled, and are not */
} GpuMemory;

typedef struct Occupancy {
    Comm *comm;
    Device *device;
    GpuMemory own; /* as this rank sees its GPU */
    GpuMemory gpu; /* rank 0's: all ranks' figures of the GPU that has least left, or that lost most */
    bool steady;   /* the first step is done */
    bool told;     /* of what fell: it is told once */
} Occupancy;

/* When all ranks have opened theirs. */
void occupancy_open(Occupancy *o, Comm *comm, Device *d);
/* Before pools are taken, of `pools` bytes and `pieces` in whole pieces. Collective: ERR_MEMORY on all ranks
 * alike where those of a GPU are more than is free on it. */
ErrorCode occupancy_check(Occupancy *o, size_t pools, size_t pieces, Error *err);
/* They are there; behind the first step. Collective. Rank 0 says what has taken what. */
ErrorCode occupancy_pooled(Occupancy *o, Error *err);
ErrorCode occupancy_settle(Occupancy *o, Error *err);
/* Behind a later step; for this rank alone, as is whether it has seen something that was not told yet:
 * RECORD_MEMORY of the next step. */
void occupancy_look(Occupancy *o);
static inline bool occupancy_has_seen(const Occupancy *o) { return o->own.fell > 0 && !o->told; }
/* Something else than a step was done, with kernels of its own. */
void occupancy_allow(Occupancy *o);
/* Where some rank has seen something, or may have. Collective. On rank 0 what there is to say; else `said`
 * stays empty. */
ErrorCode occupancy_tell(Occupancy *o, Text *said, Error *err);

/* Of `gpu`, for the journal: behind the pools, and behind the first step. */
enum { OCCUPANCY_FACTS = 10 };
void occupancy_pool_facts(const Occupancy *o, JournalFact facts[OCCUPANCY_FACTS]);
void occupancy_kernel_facts(const Occupancy *o, JournalFact facts[OCCUPANCY_FACTS]);

#endif
