/* Pages are touched by several threads: the kernel clears each page at its first access, which takes as long
 * as writing it, and for gigabytes this is most of the start-up time. */
#include "base/pages.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

#define HUGE_PAGE ((size_t)2 << 20)
/* Some milliseconds of clearing: a pool of some hundred MiB gives work to all threads, and each part counts
 * as progress for watchdogs. */
#define TOUCH_PART ((size_t)32 << 20)

size_t pages_length(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* Including what alignment needs. */
    if (bytes > (size_t)PTRDIFF_MAX - page - HUGE_PAGE) return 0;
    bytes = (bytes + page - 1) / page * page;
    return bytes ? bytes : page;
}

/* Populating by madvise reports exhaustion as an error; where it is missing, one store per page does the same
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

/* After a thread runs out of memory, it stops touching. */
static ErrorCode touch_all(char *base, size_t bytes, int threads) {
    bool failed = false;
    if (bytes <= TOUCH_PART || threads < 1) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(|| : failed)
    for (size_t at = 0; at < bytes; at += TOUCH_PART) {
        if (failed) continue;
        failed = touch(base + at, bytes - at < TOUCH_PART ? bytes - at : TOUCH_PART) != OK;
        progress_beat();
    }
    return failed ? ERR_MEMORY : OK;
}

/* A mapping that is large enough for a huge page starts at a huge page's boundary: it maps too much, and
 * unmaps the excess before and after at once. Huge pages are only advised: without them matrix products have
 * more TLB misses and are slower. */
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

void *pages_take(size_t bytes, int threads) {
    size_t length = pages_length(bytes);
    char *base = length ? map_aligned(length) : NULL;
    if (base && touch_all(base, length, threads) == OK) return base;
    if (base) munmap(base, length);
    errno = ENOMEM;
    return NULL;
}

void pages_give(void *memory, size_t bytes) { munmap(memory, pages_length(bytes)); }
