/* Memory by patterns. A pass writes all words of the region, and then reads all of them: a word that is
 * written through another address has lost its own value by then. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/burn.h"

/* Between looks at the clock. */
enum { BLOCK = 1 << 21 /* words */, PATTERNS = 6 };

/* The word at an index, in a pass: its own number scattered over 64 bits, and the complement; alternating
 * bits, and their complement; zeros and ones; and the same again with other numbers. */
static inline uint64_t pattern(uint64_t index, int64_t pass) {
    uint64_t own = (index + 1 + (uint64_t)(pass / PATTERNS) * 0x632BE59BD9B4E019u) * 0x9E3779B97F4A7C15u;
    switch (pass % PATTERNS) {
    case 0: return own;
    case 1: return ~own;
    case 2: return 0x5555555555555555u;
    case 3: return 0xAAAAAAAAAAAAAAAAu;
    case 4: return 0;
    default: return ~UINT64_C(0);
    }
}

/* Returns how many words it wrote: fewer if the time is over. */
static uint64_t write_words(uint64_t *words, uint64_t count, int64_t pass, double until) {
    uint64_t i = 0;
    do {
        uint64_t end = i + BLOCK < count ? i + BLOCK : count;
        for (; i < end; i++) words[i] = pattern(i, pass);
    } while (i < count && clock_seconds() < until);
    __asm__ volatile("" ::: "memory"); /* the words are read from memory again */
    return i;
}

/* Of the page that holds the address; 0 unless the process may know. */
static uint64_t physical_address(const void *address) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), entry = 0, at = (uint64_t)(uintptr_t)address;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    bool known = pread(fd, &entry, sizeof entry, (off_t)(at / page * sizeof entry)) == sizeof entry;
    close(fd);
    uint64_t frame = entry & ((UINT64_C(1) << 55) - 1);
    return known && entry >> 63 && frame ? frame * page + at % page : 0;
}

static void add_bad(BurnMemory *m, const uint64_t *words, uint64_t i, int64_t pass) {
    if (m->bad++ == 0) {
        m->first = 8 * i;
        m->address = (uint64_t)(uintptr_t)&words[i];
        m->physical = physical_address(&words[i]);
        m->wrote = pattern(i, pass);
        m->read = words[i];
    }
    if (8 * i < m->first) m->first = 8 * i;
    if (8 * i > m->last) m->last = 8 * i;
}

static void read_words(BurnMemory *m, const uint64_t *words, uint64_t count, int64_t pass) {
    for (uint64_t i = 0; i < count; i++)
        if (words[i] != pattern(i, pass)) add_bad(m, words, i, pass);
}

/* Half of the time is for the first write, which also takes the pages: what it reaches is tested. */
static void run_passes(BurnMemory *m, uint64_t *words, uint64_t count, double until, int64_t fault) {
    double now = clock_seconds();
    count = write_words(words, count, 0, now + (until - now) / 2);
    m->bytes = 8 * count;
    for (;;) {
        if (m->passes == 0 && fault >= 0) words[(uint64_t)fault / 8 % count] ^= 1;
        read_words(m, words, count, m->passes);
        m->passes++;
        m->moved += 16 * count;
        if (clock_seconds() >= until) return;
        write_words(words, count, m->passes, INFINITY);
    }
}

void burn_memory(BurnWorker *w, uint64_t bytes, double until, int64_t fault) {
    double start = clock_seconds();
    uint64_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) {
        char size[32];
        snprintf(w->problem, sizeof w->problem, "the system gave no %s to test",
                 text_bytes((double)bytes, size));
        return;
    }
    run_passes(&w->memory, words, bytes / 8, until, fault);
    munmap(words, bytes);
    w->seconds = clock_seconds() - start;
}

int burn_judge_memory(const Burn *b, Text *out) {
    int lines = 0;
    for (int i = 0; i < b->cores; i++) {
        const BurnMemory *m = &b->workers[i].memory;
        char physical[48] = "";
        if (m->bad == 0) continue;
        if (m->physical)
            snprintf(physical, sizeof physical, " (physical 0x%llx)", (unsigned long long)m->physical);
        text_printf(out,
                    "memory: %lld words of the part of core %d differ, from offset 0x%llx to 0x%llx; address "
                    "0x%llx%s held 0x%016llx and not 0x%016llx\n",
                    (long long)m->bad, b->workers[i].core, (unsigned long long)m->first,
                    (unsigned long long)m->last + 8, (unsigned long long)m->address, physical,
                    (unsigned long long)m->read, (unsigned long long)m->wrote);
        lines++;
    }
    return lines;
}
