/* Memory of a CPU device: mappings of whole pages, made real when they are taken; and the guard around them.
 *
 * Invariant of the guard build: every mapping is registered, and readable exactly while pool_unlock_all calls
 * outnumber pool_lock_all calls.
 *
 *     cpu_take: mmap --> cut to a huge page --> every page touched --> guarded (guard build)
 *
 * The guard finds code that reads tensor memory without an op: it stops there with a fault, at the address
 * that it used. It is the process's, not a thread's: while one thread runs an op the others may read too. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/pool.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define TOUCH_PART ((size_t)1 << 30)

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

/* Whole pages, one at least; 0 when that, with what aligning it takes, is more than can be addressed. */
static size_t mapping_bytes(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > (size_t)PTRDIFF_MAX - page - HUGE_PAGE) return 0;
    bytes = (bytes + page - 1) / page * page;
    return bytes ? bytes : page;
}

/* Touching from the kernel reports exhaustion as an error; where it cannot, a store a page does the same
 * work. */
static ErrorCode touch(char *base, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return OK;
    if (errno == ENOMEM || errno == EFAULT) return ERR_MEMORY;
#endif
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t at = 0; at < bytes; at += page) *(volatile char *)(base + at) = 0;
    return OK;
}

/* In parts: a large pool takes as long as some watchdogs wait. */
static ErrorCode touch_all(char *base, size_t bytes) {
    for (size_t at = 0; at < bytes; at += TOUCH_PART) {
        if (touch(base + at, bytes - at < TOUCH_PART ? bytes - at : TOUCH_PART) != OK) return ERR_MEMORY;
        progress_beat();
    }
    return OK;
}

/* A mapping that starts on a huge page where it is large enough to use one: too much is mapped, and what
 * lies before and behind is given back at once. Huge pages are only wished for: without them products miss
 * the processor's table of pages more often, and are slower. */
static char *map_aligned(size_t bytes) {
    size_t extra = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *raw = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    if (!extra) return raw;
    size_t head = (HUGE_PAGE - (uintptr_t)raw % HUGE_PAGE) % HUGE_PAGE;
    if (head) munmap(raw, head);
    if (extra - head) munmap(raw + head + bytes, extra - head);
    madvise(raw + head, bytes, MADV_HUGEPAGE);
    return raw + head;
}

/* Made real at once: memory that is only promised can end the process in the middle of a step, when it is
 * touched, and what was planned would not be what is used. Zeroed, since the kernel gives no other pages. */
void *cpu_take(Device *d, size_t bytes) {
    (void)d;
    size_t mapped = mapping_bytes(bytes);
    char *base = mapped ? map_aligned(mapped) : NULL;
    if (base && touch_all(base, mapped) != OK) {
        munmap(base, mapped);
        base = NULL;
    }
    if (base) guard_add(base, mapped);
    return base;
}

/* `bytes` as it was asked for, from which the mapping's length follows again. */
void cpu_give(Device *d, void *memory, size_t bytes) {
    (void)d;
    guard_remove(memory);
    munmap(memory, mapping_bytes(bytes));
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
