/* Counts the allocations of a test program, separately from those of the libraries it calls. Include it in
 * one file of the program: it replaces malloc and its relatives, for the libraries too. Under sanitizers,
 * which replace them themselves, nothing is counted. */
#ifndef WEFT_SUPPORT_ALLOCATIONS_H
#define WEFT_SUPPORT_ALLOCATIONS_H

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef COUNTS_ALLOCATIONS
#define COUNTS_ALLOCATIONS 1
#endif

static atomic_int own_allocations;

#if COUNTS_ALLOCATIONS
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
extern const char __executable_start[], etext[]; /* from the linker: the program's code */

#define COUNT_ALLOCATION() count_allocation((uintptr_t)__builtin_return_address(0))
static void count_allocation(uintptr_t caller) {
    if (caller >= (uintptr_t)__executable_start && caller < (uintptr_t)etext)
        atomic_fetch_add(&own_allocations, 1);
}

void *malloc(size_t bytes) {
    COUNT_ALLOCATION();
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) {
    COUNT_ALLOCATION();
    return __libc_calloc(count, bytes);
}
void *realloc(void *old, size_t bytes) {
    COUNT_ALLOCATION();
    return __libc_realloc(old, bytes);
}
void *aligned_alloc(size_t align, size_t bytes) {
    COUNT_ALLOCATION();
    return __libc_memalign(align, bytes);
}
int posix_memalign(void **out, size_t align, size_t bytes) {
    COUNT_ALLOCATION();
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}
#endif

/* Allocations from this program so far. */
static inline int allocations_own(void) { return atomic_load(&own_allocations); }

/* Bytes currently allocated, by anybody. */
static inline size_t allocations_in_use(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

#endif
