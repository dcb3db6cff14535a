/* Shared by tests of ops: tensors of random numbers, backends by name. */
#ifndef WEFT_TESTS_SUPPORT_DEVICES_H
#define WEFT_TESTS_SUPPORT_DEVICES_H

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device/cpu/cpu.h"
#include "device/pool.h"

/* ---- tensors ---- */

enum { KEPT = 512 };
static void *kept[KEPT];
static int kept_count;

/* Whether tensors start off multiples of 16 bytes: one element later in bf16; two in fp32, so that memory for
 * 64-bit integers stays aligned. */
static bool odd_offsets;

/* The GPU whose pinned host memory holds all tensors, which it accesses by CUDA's unified addresses; NULL:
 * ordinary memory. In tests/cuda_sim/races.cpp kernels read only such memory. */
static Device *pinned_by;

static inline void *take_memory(size_t bytes) {
    void *p = pinned_by ? pinned_by->runtime.host_take(pinned_by, bytes) : malloc(bytes);
    assert_non_null(p);
    return p;
}
static inline void give_memory(void *p) {
    if (pinned_by && p)
        pinned_by->runtime.host_give(pinned_by, p);
    else
        free(p);
}

/* Exactly this many bytes, so that the address sanitizer detects every overrun. Freed by drop_all. */
static inline void *take_exactly(size_t bytes) {
    assert_true(kept_count < KEPT);
    kept[kept_count] = take_memory(bytes);
    memset(kept[kept_count], 0x7f, bytes);
    return kept[kept_count++];
}

static inline void *tensor(int64_t n, Dtype t) {
    size_t before = !odd_offsets ? 0 : t == DTYPE_F32 ? 8 : 2;
    return (char *)take_exactly(before + (size_t)n * dtype_bytes(t)) + before;
}

/* A copy in tensor memory of a host value, for an op's parameters and accumulators. */
#define COPY_OF(value) memcpy(take_exactly(sizeof(value)), &(value), sizeof(value))

static inline void drop_all(void) {
    while (kept_count > 0) give_memory(kept[--kept_count]);
}

/* Tests use a hundred million numbers: the same ones repeatedly, a prime number of them, so that rows
 * differ. */
enum { NUMBERS = 65521 };
static uint64_t next_number;
static inline float draw(float lo, float hi) {
    static float numbers[NUMBERS];
    static bool are_made;
    for (uint64_t i = 0; i < NUMBERS && !are_made; i++) numbers[i] = (float)rng_uniform(42, i);
    are_made = true;
    return lo + (hi - lo) * numbers[next_number++ % NUMBERS];
}

static inline void *random_tensor(int64_t n, Dtype t, float lo, float hi) {
    void *p = tensor(n, t);
    for (int64_t i = 0; i < n; i++) tensor_set(p, i, t, draw(lo, hi));
    return p;
}

static inline void *copy_of(const void *from, int64_t n, Dtype t) {
    void *p = tensor(n, t);
    memcpy(p, from, (size_t)n * dtype_bytes(t));
    return p;
}

static inline void assert_bits(const char *what, const Device *d, const void *got, const void *want,
                               int64_t n, Dtype t) {
    if (memcmp(got, want, (size_t)n * dtype_bytes(t)) != 0) fail_msg("%s, %s: bits differ", d->name, what);
}

/* ---- devices ---- */

static inline void open_device(Device *d, const char *kind, int threads) {
    Error err;
    if (device_open_cpu(d, kind, threads, &err) != OK) fail_msg("%s: %s", kind ? kind : "auto", err.message);
}

static void *pinned_scratch; /* d->scratch of such a GPU lies in it, aligned */

/* A simulated GPU asks for 32 MiB of scratch, of which most ops use little. Such scratch is not filled, but a
 * private mapping of a file of 0xff: only written pages are copied. The address sanitizer checks the end of
 * malloc's memory alone, and keeps that. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ADDRESS_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TEST_ADDRESS_SANITIZER 1
#endif
#ifdef TEST_ADDRESS_SANITIZER
enum { MAPPED_FROM = INT_MAX };
#else
enum { MAPPED_FROM = 1 << 20 };
#endif
static void *mapped_scratch; /* of one device at a time */

static inline void *map_poison(size_t bytes) {
    static char ones[1 << 20];
    static int file = -1;
    static size_t length;
    if (file < 0) file = memfd_create("scratch", 0), memset(ones, 0xff, sizeof ones);
    for (; length < bytes; length += sizeof ones)
        assert_int_equal(pwrite(file, ones, sizeof ones, (off_t)length), sizeof ones);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

static inline void drop_scratch(Device *d) {
    if (d == pinned_by) {
        give_memory(pinned_scratch);
        pinned_scratch = NULL;
    } else if (d->scratch && d->scratch == mapped_scratch) {
        munmap(mapped_scratch, d->scratch_size);
        mapped_scratch = NULL;
    } else {
        free(d->scratch);
    }
    d->scratch = NULL;
}

/* Exactly as many bytes as the device needs, all 0xff. */
static inline void set_scratch(Device *d, const DeviceNeeds *needs) {
    drop_scratch(d);
    d->scratch_size = d->runtime.scratch_bytes(d, needs);
    if (d == pinned_by) {
        pinned_scratch = take_memory(d->scratch_size + POOL_ALIGN);
        d->scratch = (char *)pinned_scratch + (POOL_ALIGN - (uintptr_t)pinned_scratch % POOL_ALIGN);
    } else if (d->scratch_size >= MAPPED_FROM && !mapped_scratch) {
        d->scratch = mapped_scratch = map_poison(d->scratch_size);
        return;
    } else {
        assert_int_equal(posix_memalign((void **)&d->scratch, POOL_ALIGN, d->scratch_size + 1), 0);
    }
    memset(d->scratch, 0xff, d->scratch_size);
}

static inline void close_device(Device *d) {
    drop_scratch(d);
    if (d == pinned_by) pinned_by = NULL;
    device_close(d);
}

/* Plain attention of these sizes. */
#define SHAPE(t, h, g, d) \
    { .tokens = (t), .heads = (h), .kv_heads = (g), .head_dim = (d) }

static inline DeviceNeeds small_needs(Dtype c, int64_t tokens, int64_t hidden) {
    return (DeviceNeeds){.compute = c,
                         .tokens = tokens,
                         .hidden = hidden,
                         .intermediate = hidden,
                         .vocab = 1,
                         .logits_rows = 1,
                         .attention = SHAPE(tokens, 1, 1, 2)};
}

/* Runs an op and waits for it, since the host reads the tensors of these tests. */
#define RUN(d, slot, ...)                                                   \
    do {                                                                    \
        OP((d), slot, __VA_ARGS__);                                         \
        device_finish((d), device_mark((d), device_stream()), WAIT_RESULT); \
    } while (0)

static const char DEFERRED[] = "deferred";
static const char CUDA[] = "cuda"; /* by $WEFT_CUDA: tests/cuda_sim, or a GPU */
static const char *only;           /* the one backend to test; NULL: all that run here */

/* Opens the backend; false if it does not run here. */
static inline bool open_backend(Device *d, const char *name, int threads) {
    Error err;
    bool deferred = strcmp(name, DEFERRED) == 0;
    if (strcmp(name, CUDA) == 0) {
        if (device_open(d, name, 0, threads, &err) != OK) fail_msg("%s", err.message);
        return true;
    }
    if (device_open_cpu(d, deferred ? NULL : name, threads, &err) == ERR_UNAVAILABLE) return false;
    if (deferred) device_defer(d, 11);
    return true;
}

static inline void on_one(const char *name, void (*check)(Device *d, Dtype c)) {
    static Device d;
    if ((only && strcmp(only, name) != 0) || !open_backend(&d, name, 2)) return;
    if (strcmp(name, CUDA) == 0) pinned_by = &d;
    for (int c = DTYPE_F32; c <= DTYPE_BF16; c++) {
        next_number = 0; /* the same numbers, whatever has run before */
        check(&d, (Dtype)c);
    }
    close_device(&d);
}

/* Runs a check on every CPU backend, with two threads, in both dtypes; on a GPU's only if it was
 * requested. */
static inline void on_all(void (*check)(Device *d, Dtype c)) {
    for (int i = 1; strcmp(device_cpu_kind(i), "reference") != 0; i++) on_one(device_cpu_kind(i), check);
    on_one(DEFERRED, check);
    if (only && strcmp(only, CUDA) == 0) on_one(CUDA, check);
}

static inline int32_t *random_ints(int64_t n, int32_t below) {
    int32_t *p = tensor(n, DTYPE_F32);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)(rng_u64(7, next_number++) % (uint64_t)below);
    return p;
}

#define EACH(item, list) for (const int64_t *item = list; item < list + sizeof list / sizeof *list; item++)

#endif
