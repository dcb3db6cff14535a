/* Memory pools and the process's memory figures.
 *
 * Invariants: a pool is dry (base NULL, requests only counted) or committed (base mapped, used <= planned).
 * In the guard build every committed pool is registered, and readable exactly while pool_unlock_all calls
 * outnumber pool_lock_all calls. */
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"

#define HUGE_PAGE ((size_t)2 << 20)

#ifdef WEFT_GUARD
typedef struct Region {
    char *base;
    size_t bytes;
} Region;
static pthread_mutex_t guard_mutex = PTHREAD_MUTEX_INITIALIZER;
static Region *regions;
static size_t region_count;
static int unlock_depth;

static void protect(const Region *r) {
    int access = unlock_depth > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    CHECK(mprotect(r->base, r->bytes, access) == 0);
}

static void guard_add(char *base, size_t bytes) {
    pthread_mutex_lock(&guard_mutex);
    regions = mem_grow(regions, (region_count + 1) * sizeof *regions);
    regions[region_count] = (Region){base, bytes};
    protect(&regions[region_count++]);
    pthread_mutex_unlock(&guard_mutex);
}

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

/* Only the outermost call changes anything. */
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

/* Whole pages that hold the plan; 0 when that is more than can be addressed. */
static size_t mapping_bytes(const Pool *p) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (p->planned > (size_t)PTRDIFF_MAX - page - HUGE_PAGE) return 0;
    size_t bytes = (p->planned + page - 1) / page * page;
    return bytes ? bytes : page;
}

void *pool_take(Pool *p, size_t bytes) {
    /* A plan too large to count sticks at the top, where pool_commit refuses it. */
    size_t rounded = bytes > SIZE_MAX - (POOL_ALIGN - 1) ? SIZE_MAX : pool_round(bytes);
    if (!p->base) {
        if (__builtin_add_overflow(p->planned, rounded, &p->planned)) p->planned = SIZE_MAX;
        return NULL;
    }
    CHECK(rounded <= p->planned - p->used);
    char *memory = p->base + p->used;
    p->used += rounded;
    return memory;
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

/* A mapping that starts on a huge page where it is large enough to use one. */
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

ErrorCode pool_commit(Pool *p, Error *err) {
    char size[32], available[32];
    CHECK(p->base == NULL);
    size_t bytes = mapping_bytes(p);
    if (bytes == 0)
        return error_set(err, ERR_MEMORY, "pool \"%s\": its size is more than this machine can address",
                         p->name);
    uint64_t free_bytes = memory_use().available;
    if (free_bytes && bytes > free_bytes)
        return error_set(err, ERR_MEMORY,
                         "pool \"%s\" needs %s, found %s available; make the model or the batch smaller "
                         "(train.microbatch; --batch)",
                         p->name, text_bytes((double)bytes, size), text_bytes((double)free_bytes, available));
    char *base = map_aligned(bytes);
    if (base && touch(base, bytes) != OK) {
        munmap(base, bytes);
        base = NULL;
    }
    if (!base)
        return error_set(err, ERR_MEMORY, "pool \"%s\": the system gave no memory for %s", p->name,
                         text_bytes((double)bytes, size));
    p->base = base;
    p->used = 0;
    guard_add(base, bytes);
    return OK;
}

void pool_free(Pool *p) {
    if (p->base) {
        guard_remove(p->base);
        munmap(p->base, mapping_bytes(p));
    }
    p->base = NULL;
    p->planned = p->used = 0;
}

/* A small system file into a buffer of the caller's: these figures are read inside steps, where nothing is
 * allocated. */
static bool read_small(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t length = 0;
    ssize_t got;
    while (length + 1 < size && (got = read(fd, out + length, size - 1 - length)) > 0) length += (size_t)got;
    close(fd);
    out[length] = 0;
    return length > 0;
}

/* The number after `label` at the start of a line, times `unit`; 0 when absent. */
static uint64_t field(const char *text, const char *label, uint64_t unit) {
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, label, strlen(label)) == 0) return strtoull(line + strlen(label), NULL, 10) * unit;
    }
    return 0;
}

/* A container's limit and what it has in use (file cache that can go does not count), cgroup version 2 or 1.
 */
static void apply_container(MemoryUse *use) {
    static const char *const files[][3] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
         "/sys/fs/cgroup/memory/memory.stat"},
    };
    char text[8192];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (!read_small(files[i][0], text, sizeof text)) continue;
        uint64_t limit = strtoull(text, NULL, 10); /* "max" reads as 0 */
        if (limit == 0 || limit >= use->machine) return;
        uint64_t current = read_small(files[i][1], text, sizeof text) ? strtoull(text, NULL, 10) : 0;
        uint64_t cache = read_small(files[i][2], text, sizeof text) ? field(text, "inactive_file ", 1) : 0;
        uint64_t used = current > cache ? current - cache : 0, left = limit > used ? limit - used : 1;
        use->machine = limit;
        if (left < use->available) use->available = left;
        return;
    }
}

MemoryUse memory_use(void) {
    MemoryUse use = {0};
    char text[8192];
    if (read_small("/proc/self/status", text, sizeof text)) {
        use.resident = field(text, "VmRSS:", 1024);
        use.peak = field(text, "VmHWM:", 1024);
    }
    if (read_small("/proc/meminfo", text, sizeof text)) {
        use.machine = field(text, "MemTotal:", 1024);
        use.available = field(text, "MemAvailable:", 1024) + field(text, "SwapFree:", 1024);
    }
    apply_container(&use);
    return use;
}
