/* Memory of a CPU device: whole pages (base/pages.h), and the guard around them.
 *
 * Invariant of the guard build: every mapping is registered, and readable exactly while pool_unlock_all calls
 * outnumber pool_lock_all calls.
 *
 *     cpu_take: pages, made real --> guarded (guard build)
 *
 * The guard finds code that reads tensor memory without an op: it stops there with a fault, at the address
 * that it used. It is the process's, not a thread's: while one thread runs an op the others may read too. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "base/pages.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/pool.h"

#ifdef WEFT_GUARD
typedef struct Region {
    char *base;
    size_t bytes;
} Region;
static pthread_mutex_t guard_mutex = PTHREAD_MUTEX_INITIALIZER;
static Region *regions;
static size_t region_count;
static int unlock_depth;

/* Also of a region that is taken while an op runs: it is open until that ends. */
static void protect(const Region *r) {
    int access = unlock_depth > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    CHECK(mprotect(r->base, r->bytes, access) == 0);
}

/* Registered under the mutex together with its protection: else a step in between would leave it as it
 * was. */
static void guard_add(char *base, size_t bytes) {
    pthread_mutex_lock(&guard_mutex);
    regions = mem_grow(regions, (region_count + 1) * sizeof *regions);
    regions[region_count] = (Region){base, bytes};
    protect(&regions[region_count++]);
    pthread_mutex_unlock(&guard_mutex);
}

/* Regions are few (a pool each), so a list that is walked will do; and since threads take and give memory
 * while others run ops, all of it is under the mutex. */
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

/* Only the outermost call changes anything: calls nest in a thread, and those of several threads overlap.
 * That is a system call for every region around every op, which only this build pays. */
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

/* Made real at once: memory that is only promised can end the process in the middle of a step, when it is
 * touched, and what was planned would not be what is used. Zeroed, since the kernel gives no other pages. */
void *cpu_take(Device *d, size_t bytes) {
    void *base = pages_take(bytes, d->threads);
    if (base) guard_add(base, pages_length(bytes));
    return base;
}

/* `bytes` as it was asked for, from which the mapping's length follows again. */
void cpu_give(Device *d, void *memory, size_t bytes) {
    (void)d;
    guard_remove(memory);
    pages_give(memory, bytes);
}

/* Of this process: within the limit of its container, if it has one. */
size_t cpu_available(const Device *d) {
    (void)d;
    return (size_t)memory_use().available;
}

/* Nothing to pin: the CPU's tensor memory is host memory, and a transfer is a copy. */
void *cpu_host_take(Device *d, size_t bytes) {
    (void)d;
    return mem_alloc(bytes);
}

void cpu_host_give(Device *d, void *host) {
    (void)d;
    free(host);
}
