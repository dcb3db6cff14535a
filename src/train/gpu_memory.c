/* Each rank measures its GPU. Rank 0 gathers all measurements, merges those of ranks with the same GPU, and
 * reports the GPU that matters.
 *
 * Before a process has a CUDA context, the driver's NVML reports how much is free. Without NVML, driver and
 * libraries cannot be told from other processes. A GPU that nobody uses is not entirely free: the driver
 * keeps some memory, which counts as that of others. */
#include "train/gpu_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static bool is_known(const GpuMemoryUse *o) { return o->device->runtime.memory != NULL; }

static uint64_t available(const GpuMemoryUse *o) {
    DeviceMemory m = {.available = 0};
    return o->device->runtime.memory(o->device, &m) ? m.available : 0;
}

void gpu_memory_open(GpuMemoryUse *o, Comm *comm, Device *d) {
    DeviceMemory m = {.total = 0};
    *o = (GpuMemoryUse){.comm = comm, .device = d};
    if (!is_known(o) || !d->runtime.memory(d, &m)) return;
    o->own = (GpuMemory){.rank = comm_rank(comm),
                         .ranks = 1,
                         .total = m.total,
                         .untouched = m.untouched,
                         .opened = m.available};
    _Static_assert(sizeof m.identity == sizeof o->own.identity, "they are the device's");
    memcpy(o->own.identity, m.identity, sizeof m.identity);
}

/* ---- all ranks' figures ---- */

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The first rank that measured before taking memory saw the GPU before any rank had taken some: it has the
 * maximum. */
static void put_together(GpuMemory *into, const GpuMemory *from) {
    into->ranks += from->ranks;
    if (from->untouched > into->untouched) into->untouched = from->untouched;
    into->opened = least(into->opened, from->opened);
    into->connected = least(into->connected, from->connected);
    into->pooled = least(into->pooled, from->pooled);
    into->settled = least(into->settled, from->settled);
    into->pools += from->pools, into->granules += from->granules;
    if (from->fell > into->fell) into->fell = from->fell;
}

/* choose() selects the GPU with the largest value. */
typedef double Urgency(const GpuMemory *g);
static double by_need(const GpuMemory *g) { return (double)g->granules - (double)g->connected; }
static double by_pools(const GpuMemory *g) { return -(double)g->pooled; }
static double by_settled(const GpuMemory *g) { return -(double)g->settled; }
static double by_fall(const GpuMemory *g) { return (double)g->fell; }

static void choose(GpuMemoryUse *o, GpuMemory *all, int ranks, Urgency *urgency) {
    int gpus = 0;
    for (int r = 0; r < ranks; r++) {
        int g = 0;
        while (g < gpus && memcmp(all[g].identity, all[r].identity, sizeof all[r].identity) != 0) g++;
        if (g < gpus)
            put_together(&all[g], &all[r]);
        else
            all[gpus++] = all[r];
    }
    o->gpu = all[0];
    for (int g = 1; g < gpus; g++)
        if (urgency(&all[g]) > urgency(&o->gpu)) o->gpu = all[g];
}

static ErrorCode gather(GpuMemoryUse *o, Urgency *urgency, Error *err) {
    int ranks = comm_size(o->comm);
    char *all = NULL;
    ErrorCode code = comm_concatenate(o->comm, &o->own, sizeof o->own, &all, NULL, err);
    if (all) choose(o, (GpuMemory *)(void *)all, ranks, urgency);
    free(all);
    return code;
}

/* ---- in words ---- */

static bool speaks(const GpuMemoryUse *o) { return comm_rank(o->comm) == 0; }

/* "the GPU", "the GPU of rank 3", "the GPU of rank 0 and 1 other rank" */
static void name_gpu(const GpuMemoryUse *o, const char *which, Text *out) {
    const GpuMemory *g = &o->gpu;
    text_puts(out, "the GPU");
    if (comm_size(o->comm) > 1) text_printf(out, " of rank %d", g->rank);
    if (g->ranks > 1) text_printf(out, " and %d other rank%s", g->ranks - 1, g->ranks > 2 ? "s" : "");
    if (comm_size(o->comm) > g->ranks) text_puts(out, which);
}

static void put_bytes(Text *out, const char *before, uint64_t bytes, const char *behind) {
    char size[32];
    text_printf(out, "%s%s%s", before, text_bytes((double)bytes, size), behind);
}

/* Describes what was taken before the pools. */
static void name_others(const GpuMemory *g, Text *out) {
    if (g->untouched == 0) {
        put_bytes(out, "driver, libraries and other processes ", less(g->total, g->connected),
                  " (without NVML they are not separated)");
        return;
    }
    put_bytes(out, "driver and libraries ", less(g->untouched, g->connected), "");
    if (g->connected < g->opened) put_bytes(out, " (of these NCCL ", g->opened - g->connected, ")");
    put_bytes(out, ", other processes, with what the driver keeps of any GPU, ", less(g->total, g->untouched),
              "");
}

/* ---- before and after the pools ---- */

typedef struct Verdict {
    char problem[800];
} Verdict;

static void judge(const GpuMemoryUse *o, Verdict *v) {
    const GpuMemory *g = &o->gpu;
    Text out = {0};
    if (g->total == 0 || g->granules <= g->connected) return;
    text_puts(&out, "run.device: cuda: ");
    name_gpu(o, "", &out);
    put_bytes(&out, ", ", g->total, ": ");
    put_bytes(&out, "pools take ", g->granules, ", and ");
    put_bytes(&out, "", g->connected, " are free; ");
    put_bytes(&out, "planned are ", g->pools, ", each pool in multiples of ");
    put_bytes(&out, "", o->device->granularity, "; taken already: ");
    name_others(g, &out);
    text_puts(&out,
              "; make the model or the step smaller (train.microbatch, train.recompute), or take more GPUs");
    snprintf(v->problem, sizeof v->problem, "%s", out.data);
    text_free(&out);
}

ErrorCode gpu_memory_check(GpuMemoryUse *o, size_t pools, size_t granules, Error *err) {
    Verdict v = {.problem = ""};
    if (!is_known(o)) return OK;
    o->own.connected = available(o);
    o->own.pools = pools, o->own.granules = granules;
    TRY(gather(o, by_need, err));
    if (speaks(o)) judge(o, &v);
    TRY(comm_broadcast(o->comm, &v, sizeof v, 0, err));
    if (!*v.problem) return OK;
    error_set(err, ERR_MEMORY, "%s", v.problem);
    if (err) err->reported = !speaks(o);
    return ERR_MEMORY;
}

/* A difference from the plan may be due to other processes, which come and go. */
static void report_pools(const GpuMemoryUse *o) {
    const GpuMemory *g = &o->gpu;
    uint64_t took = less(g->connected, g->pooled);
    Text out = {0};
    text_puts(&out, "memory of ");
    name_gpu(o, ", which has least left", &out);
    put_bytes(&out, ", ", g->total, ": ");
    put_bytes(&out, "pools ", took, took == g->granules ? ", as planned (" : ", not as planned (");
    put_bytes(&out, "", g->pools, ", each in multiples of ");
    put_bytes(&out, "", o->device->granularity, "");
    if (took != g->granules) put_bytes(&out, ": ", g->granules, "; others may have come or gone meanwhile");
    text_puts(&out, "), ");
    name_others(g, &out);
    put_bytes(&out, "; ", g->pooled, " are free");
    if (took == g->granules)
        log_info("%s", out.data);
    else
        log_warn("%s", out.data);
    text_free(&out);
}

/* The barrier keeps ranks from taking more memory before all have measured. */
ErrorCode gpu_memory_pooled(GpuMemoryUse *o, Error *err) {
    if (!is_known(o)) return OK;
    o->own.pooled = available(o);
    TRY(gather(o, by_pools, err));
    TRY(comm_barrier(o->comm, err));
    if (speaks(o) && o->gpu.total > 0) report_pools(o);
    return OK;
}

/* ---- steps ---- */

static void report_settled(const GpuMemoryUse *o) {
    const GpuMemory *g = &o->gpu;
    Text out = {0};
    text_puts(&out, "memory of ");
    name_gpu(o, ", which has least left", &out);
    put_bytes(&out, ": ", less(g->pooled, g->settled), " more for kernels that were loaded since; ");
    put_bytes(&out, "", g->settled, " are free behind the first step");
    log_info("%s", out.data);
    text_free(&out);
}

ErrorCode gpu_memory_settle(GpuMemoryUse *o, Error *err) {
    o->steady = true;
    if (!is_known(o)) return OK;
    TRY(comm_barrier(o->comm, err));
    o->own.settled = available(o);
    TRY(gather(o, by_settled, err));
    if (speaks(o) && o->gpu.total > 0) report_settled(o);
    return OK;
}

void gpu_memory_look(GpuMemoryUse *o) {
    if (!is_known(o) || o->own.fell > 0) return;
    uint64_t now = available(o);
    if (now < o->own.settled && now > 0) o->own.fell = o->own.settled - now;
}

void gpu_memory_allow(GpuMemoryUse *o) {
    if (is_known(o) && o->own.settled > 0) o->own.settled = least(o->own.settled, available(o));
}

ErrorCode gpu_memory_write(GpuMemoryUse *o, Text *message, Error *err) {
    if (!is_known(o) || o->reported) return OK;
    o->reported = true;
    TRY(gather(o, by_fall, err));
    if (!speaks(o) || o->gpu.fell == 0) return OK;
    put_bytes(message, "", o->gpu.fell, " less of the memory of ");
    name_gpu(o, "", message);
    text_puts(
        message,
        " are free than behind the first step, and no step takes any: a library has, or another process");
    return OK;
}

/* ---- facts ---- */

void gpu_memory_pool_facts(const GpuMemoryUse *o, JournalFact facts[GPU_MEMORY_FACTS]) {
    const GpuMemory *g = &o->gpu;
    bool separate_memory = g->untouched > 0;
    const JournalFact all[GPU_MEMORY_FACTS] = {
        {"gpu_ranks", g->ranks},
        {"gpu_bytes", (double)g->total},
        {"pool_bytes", (double)g->pools},
        {"pool_pieces_bytes", (double)g->granules},
        {"pools_took_bytes", (double)less(g->connected, g->pooled)},
        {"free_bytes", (double)g->pooled},
        {"nccl_bytes", (double)less(g->opened, g->connected)},
        {separate_memory ? "libraries_bytes" : "libraries_and_others_bytes",
         (double)less(separate_memory ? g->untouched : g->total, g->connected)},
        {separate_memory ? "others_bytes" : NULL, (double)less(g->total, g->untouched)},
        {NULL, 0}};
    memcpy(facts, all, sizeof all);
}

void gpu_memory_kernel_facts(const GpuMemoryUse *o, JournalFact facts[GPU_MEMORY_FACTS]) {
    const JournalFact all[GPU_MEMORY_FACTS] = {{"kernels_bytes", (double)less(o->gpu.pooled, o->gpu.settled)},
                                               {"free_bytes", (double)o->gpu.settled},
                                               {NULL, 0}};
    memcpy(facts, all, sizeof all);
}
