/* Race detection for kernels. With -fsanitize=thread the compiler calls a function before each access. These
 * are those functions, in place of the sanitizer's library, since what orders threads of a GPU is simpler
 * than what that library tracks, and known exactly. Kernels compiled without the flag never get here.
 *
 * Of two accesses of a grid to the same byte, at least one of which writes, the first must be ordered
 * before the second:
 *
 *   by one thread                                              in order
 *   by threads of a block, with a barrier in between           in order
 *   by lanes of a warp, with a warp operation in between       in order
 *   otherwise                                                  a race, whatever the order here happens to be
 *
 * Atomic operations do not race with each other. A race is reported with the place in the plugin's code
 * (addr2line), and ends the process; so does an access to memory that a GPU cannot reach.
 *
 * Of the reads of a byte, and of its atomic operations, two are kept: the last one, and the farthest (block,
 * warp, lane) of those that are not ordered before the last. No others are needed. Blocks run one after
 * another, and the threads of a block from barrier to barrier, so an access that does not race with these two
 * races with none.
 *
 * The four bytes of a word that are always accessed together are tracked as one. */
#include "sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <unordered_map>

namespace {

enum { PAGE = 4096, WORD = 4, LANES = 32 };
enum Kind { READ, ATOMIC, WRITE };

/* A SimPosition in 8 bytes. Meetings start at 1, so zero means no access. */
struct Access {
    uint64_t block : 20, barriers : 16, thread : 10, meetings : 18;
};

struct Farthest {
    Access last, other;
};

/* The accesses to a byte in this grid. */
struct Byte {
    Access write;
    Farthest kept[WRITE]; /* by READ, ATOMIC */
};

struct Word {
    Byte bytes[WORD];
    bool apart; /* else the first byte stands for all */
};

struct Page {
    Word words[PAGE / WORD];
};

std::unordered_map<uintptr_t, Page *> pages;
uintptr_t latest_number;
Page *latest;

/* How far `now` is from an earlier access: ORDERED, or the smallest group that would have had to
 * meet in between. */
enum Distance { ORDERED, LANE, WARP, BLOCK };
Distance distance(Access before, Access now) {
    if (before.meetings == 0) return ORDERED;
    if (before.block != now.block) return BLOCK;
    if (before.barriers != now.barriers || before.thread == now.thread) return ORDERED;
    if (before.thread / LANES != now.thread / LANES) return WARP;
    return before.meetings != now.meetings ? ORDERED : LANE;
}

void keep(Farthest *f, Access now) {
    if (distance(f->last, now) > distance(f->other, now)) f->other = f->last;
    f->last = now;
}

Access here(void) {
    SimPosition p = sim_position();
    Access a;
    a.block = p.block;
    a.barriers = p.barriers;
    a.thread = p.thread;
    a.meetings = p.meetings + 1;
    if (a.block != p.block || a.barriers != p.barriers || a.meetings != p.meetings + 1) {
        fprintf(stderr, "cuda_sim: this grid is too large to look for races in it\n");
        abort();
    }
    return a;
}

Page *page_of(uintptr_t number) {
    if (number == latest_number && latest) return latest;
    Page *&page = pages[number];
    if (!page) page = (Page *)calloc(1, sizeof *page);
    if (!page) abort();
    latest_number = number;
    return latest = page;
}

const char *const names[] = {"reads", "changes atomically", "writes"};

void print_position(const void *code) {
    Dl_info info;
    bool known = dladdr(code, &info) != 0;
    fprintf(stderr, "    addr2line -e %s 0x%zx\n", known ? info.dli_fname : "?",
            (size_t)((const char *)code - (const char *)(known ? info.dli_fbase : 0)));
}

[[noreturn]] void race(Kind kind, Access now, const char *before, Access then, const void *code) {
    fprintf(stderr,
            "cuda_sim: a race: block %u, thread %u %s what block %u, thread %u %s since they last met\n",
            (unsigned)now.block, (unsigned)now.thread, names[kind], (unsigned)then.block,
            (unsigned)then.thread, before);
    print_position(code);
    abort();
}

void check(Kind kind, Access now, const char *before, Access then, const void *code) {
    if (distance(then, now) != ORDERED) race(kind, now, before, then, code);
}

void touch(Byte *b, Kind kind, Access now, const void *code) {
    check(kind, now, "wrote", b->write, code);
    for (int k = READ; k < WRITE; k++) {
        if (k == (int)kind) continue;
        const char *before = k == READ ? "read" : "changed atomically";
        check(kind, now, before, b->kept[k].last, code);
        check(kind, now, before, b->kept[k].other, code);
    }
    if (kind == WRITE)
        b->write = now;
    else
        keep(&b->kept[kind], now);
}

/* Applies `with` to bytes from..to-1 of the word, or once if the word is tracked as one byte and
 * touched as a whole. */
template <typename F> void each_of(Word *w, size_t from, size_t to, F with) {
    bool whole = from == 0 && to == WORD;
    if (!whole && !w->apart) {
        for (Byte &b : w->bytes) b = w->bytes[0];
        w->apart = true;
    }
    for (size_t i = from; i < (whole && !w->apart ? 1 : to); i++) with(&w->bytes[i]);
}

template <typename F> void each_byte(const void *address, size_t bytes, F with) {
    for (uintptr_t at = (uintptr_t)address, end = at + bytes; at < end;) {
        uintptr_t word = at - at % WORD, next = word + WORD < end ? word + WORD : end;
        each_of(&page_of(at / PAGE)->words[at % PAGE / WORD], at - word, next - word, with);
        at = next;
    }
}

/* Whether it is a constant of the plugin. */
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[], _end[];
bool is_constant(const void *address) {
    return (const char *)address >= __ehdr_start && (const char *)address < _end;
}

[[noreturn]] void stray(Kind kind, Access now, const void *address, const void *code) {
    fprintf(stderr, "cuda_sim: block %u, thread %u %s %p, which a GPU does not reach\n", (unsigned)now.block,
            (unsigned)now.thread, names[kind], address);
    print_position(code);
    abort();
}

void access(const void *address, size_t bytes, Kind kind, const void *code) {
    if (sim_private(address)) return;
    Access now = here();
    if (!sim_block_reaches(address) && !(kind == READ && is_constant(address)))
        stray(kind, now, address, code);
    each_byte(address, bytes, [=](Byte *b) { touch(b, kind, now, code); });
}

} // namespace

void races_forget(const void *memory, size_t bytes) {
    if (!pages.empty()) each_byte(memory, bytes, [](Byte *b) { *b = Byte(); });
}

void races_end(void) {
    for (auto &page : pages) free(page.second);
    pages.clear();
    latest = NULL;
}

/* ---- what the compiler calls ---- */

#define HERE __builtin_return_address(0)
#define SIZED(bytes)                                                             \
    void __tsan_read##bytes(void *p) { access(p, bytes, READ, HERE); }           \
    void __tsan_write##bytes(void *p) { access(p, bytes, WRITE, HERE); }         \
    void __tsan_unaligned_read##bytes(void *p) { access(p, bytes, READ, HERE); } \
    void __tsan_unaligned_write##bytes(void *p) { access(p, bytes, WRITE, HERE); }
/* The atomic operations that cuda_runtime.h uses; kernels have no others. */
#define ATOMIC_OF(bits, T)                                             \
    T __tsan_atomic##bits##_load(const volatile T *p, int order) {     \
        access((const void *)p, sizeof *p, ATOMIC, HERE);              \
        return __atomic_load_n(p, order);                              \
    }                                                                  \
    void __tsan_atomic##bits##_store(volatile T *p, T x, int order) {  \
        access((const void *)p, sizeof *p, ATOMIC, HERE);              \
        __atomic_store_n(p, x, order);                                 \
    }                                                                  \
    T __tsan_atomic##bits##_fetch_add(volatile T *p, T x, int order) { \
        access((const void *)p, sizeof *p, ATOMIC, HERE);              \
        return __atomic_fetch_add(p, x, order);                        \
    }

extern "C" {
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)
void __tsan_read_range(void *p, size_t bytes) { access(p, bytes, READ, HERE); }
void __tsan_write_range(void *p, size_t bytes) { access(p, bytes, WRITE, HERE); }
ATOMIC_OF(32, uint32_t)
ATOMIC_OF(64, uint64_t)
}
