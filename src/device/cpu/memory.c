/* Memory of a CPU device: whole pages (base/pages.h), and the guard around them.
 *
 * Invariant of the guard build: every mapping is registered, and is accessible exactly while there have been
 * more pool_unlock_all calls than pool_lock_all calls.
 *
 *     cpu_take: pages, made real --> guarded (guard build)
 *
 * The guard finds code that reads tensor memory outside an op: it faults at the address that it used. The
 * guard is per process, not per thread: while one thread runs an op, others may read too. */
#include <build_kind.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "base/pages.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/pool.h"

#if WEFT_GUARD
typedef struct Region {
    char *base;
    size_t bytes;
} Region;
static pthread_mutex_t guard_mutex = PTHREAD_MUTEX_INITIALIZER;
static Region *regions;
static size_t region_count;
static int unlock_depth;

/* A region that is taken while an op runs is open until the op ends. */
static void protect(const Region *r) {
    int access = unlock_depth > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    CHECK(mprotect(r->base, r->bytes, access) == 0);
}

/* Registers and protects under one mutex: otherwise a guard_step in between would miss the new region. */
static void guard_add(char *base, size_t bytes) {
    pthread_mutex_lock(&guard_mutex);
    regions = mem_grow(regions, (region_count + 1) * sizeof *regions);
    regions[region_count] = (Region){base, bytes};
    protect(&regions[region_count++]);
    pthread_mutex_unlock(&guard_mutex);
}

/* Regions are few (one per pool), so a linear list suffices. Threads take and give memory while others run
 * ops, so every access is under the mutex. */
static void guard_remove(const char *base) {
    pthread_mutex_lock(&guard_mutex);
    for (size_t i = 0; i < region_count; i++)
        if (regions[i].base == base) {
            regions[i] = regions[--region_count];
            break;
        }
    if (region_count == 0) {
        free(regions);
        regions = NULL;
    }
    pthread_mutex_unlock(&guard_mutex);
}

/* Only the outermost call changes the protection: calls nest within a thread, and those of several threads
 * overlap. Each change is a system call per region around every op, a cost that only this build has. */
static void guard_step(int change) {
    pthread_mutex_lock(&guard_mutex);
    bool was_open = unlock_depth > 0;
    unlock_depth += change;
    CHECK(unlock_depth >= 0);
    if (was_open != (unlock_depth > 0))
        for (size_t i = 0; i < region_count; i++) protect(&regions[i]);
    pthread_mutex_unlock(&guard_mutex);
}

void pool_unlock_all(void) { guard_step(1); }
void pool_lock_all(void) { guard_step(-1); }
#else
static void guard_add(char *base, size_t bytes) { (void)base, (void)bytes; }
static void guard_remove(const char *base) { (void)base; }
void pool_unlock_all(void) {}
void pool_lock_all(void) {}
#endif

/* Pages are made real at once. Otherwise an overcommitted page could kill the process in the middle of a
 * step, and memory use would differ from the plan. The operating system returns zeroed
 * pages. */
void *cpu_take(Device *d, size_t bytes) {
    void *base = pages_take(bytes, d->threads);
    if (base) guard_add(base, pages_length(bytes));
    return base;
}

/* `bytes` as requested; the length of the mapping follows from it. */
void cpu_give(Device *d, void *memory, size_t bytes) {
    (void)d;
    guard_remove(memory);
    pages_give(memory, bytes);
}

/* Available to this process, within the limit of its container if there is one. */
size_t cpu_available(const Device *d) {
    (void)d;
    return (size_t)memory_use().available;
}

/* No pinning needed: the CPU's tensor memory is host memory, and a transfer is a copy. */
void *cpu_host_take(Device *d, size_t bytes) {
    (void)d;
    return mem_alloc(bytes);
}

void cpu_host_give(Device *d, void *host) {
    (void)d;
    free(host);
}
