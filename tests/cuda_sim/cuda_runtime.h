/* What kernels see in place of NVIDIA's cuda_runtime.h: indices, barriers, shared memory and warp functions
 * on a CPU. Blocks run one after another. Each thread of a block is a fiber that runs until it has to wait
 * for others. Warps and lanes run in an order drawn from the seed.
 *
 *   shared memory   a heap block for each array and block of threads, NaN until it is written
 *   a barrier       that some threads never reach ends the process with a message; so does a warp operation
 *                   that some lanes never reach, or at which they meet for different operations
 *   a copy          into shared memory that is asynchronous leaves NaN there until it is waited for; a thread
 *                   that ends before that ends the process
 *   a product       of a warpgroup is computed when it is waited for, and its sums are NaN until then; it
 *                   ends the process if it was not begun and closed, or reads copies that were not shown
 *                   to it
 *   a wide access   that is not aligned to its size ends the process
 *   a launch        with more blocks, threads or shared memory than GPUs have is refused
 *
 * Not visible here: coalescing, bank conflicts, registers, memory orders weaker than program order. */
#ifndef WEFT_TESTS_CUDA_SIM_CUDA_RUNTIME_H
#define WEFT_TESTS_CUDA_SIM_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>

#include "cuda_runtime_api.h"

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

/* ---- the position of a thread ---- */

struct SimThread {
    dim3 index;
};
extern SimThread *sim_thread;
extern dim3 sim_block_index, sim_block, sim_grid;
#define threadIdx (sim_thread->index)
#define blockIdx sim_block_index
#define blockDim sim_block
#define gridDim sim_grid

/* ---- meeting ---- */

void __syncthreads(void);
int __syncthreads_or(int condition);
/* Where the lanes of this thread's warp publish 24 bytes each. A call of sim_meet_warp must lie between
 * writing and reading, and two calls between writing twice. `what` must be the same for all lanes. */
struct SimLane {
    unsigned char bytes[24];
};
SimLane *sim_lanes(void);
int sim_lane(void);
void sim_meet_warp(const char *what);

/* The value of lane `from`, which may differ between lanes. */
template <typename T> T __shfl_sync(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= sizeof(SimLane), "lanes exchange 24 bytes at most");
    (void)mask;
    SimLane *lanes = sim_lanes();
    memcpy(lanes[sim_lane()].bytes, &value, sizeof value);
    sim_meet_warp("a shuffle");
    memcpy(&value, lanes[from].bytes, sizeof value);
    return value;
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int apart) {
    return __shfl_sync(mask, value, sim_lane() ^ apart);
}

/* The votes of all lanes of the warp. */
inline unsigned __ballot_sync(unsigned mask, int vote) {
    (void)mask;
    SimLane *lanes = sim_lanes();
    lanes[sim_lane()].bytes[0] = vote != 0;
    sim_meet_warp("a ballot");
    unsigned votes = 0;
    for (int i = 0; i < 32; i++) votes |= (unsigned)(lanes[i].bytes[0] == 1) << i;
    return votes;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

/* ---- shared memory ---- */

/* The same memory for all threads of a block; `key` is a distinct address for each declaration. */
void *sim_shared(const void *key, size_t bytes);
char *sim_dynamic_shared(void);
#define SHARED(type, name, count)     \
    static const char name##_key = 0; \
    type *name = (type *)sim_shared(&name##_key, sizeof(type) * (count))
#define DYNAMIC_SHARED(name) char *name = sim_dynamic_shared()

/* ---- matrix instructions of a warp, asynchronous copies: see device/cuda/plugin/mma.cuh ---- */

/* Ends the process unless p is aligned to `bytes`, a power of two, and in shared memory if is_shared. */
[[noreturn]] void sim_misaligned(void);
void sim_check_shared(const void *p, size_t bytes);
inline void sim_check_access(const void *p, size_t bytes, bool is_shared) {
    if ((uintptr_t)p & (bytes - 1)) sim_misaligned();
    if (is_shared) sim_check_shared(p, bytes);
}

void multiply_matrices(float (&sums)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1);

/* Exchanges the row addresses of all lanes. */
void sim_exchange_rows(const void *row, const char *rows[32]);

/* Functions that access tensors and shared memory are defined in this header, so that races.cpp sees them. */
inline void load_matrices(uint32_t (&to)[4], const void *row) {
    const char *rows[32];
    sim_exchange_rows(row, rows);
    for (int m = 0; m < 4; m++) memcpy(&to[m], rows[m * 8 + sim_lane() / 4] + sim_lane() % 4 * 4, 4);
}
inline void load_matrices_transposed(uint32_t (&to)[4], const void *row) {
    const char *rows[32];
    sim_exchange_rows(row, rows);
    for (int m = 0; m < 4; m++) {
        uint16_t pair[2];
        for (int i = 0; i < 2; i++)
            memcpy(&pair[i], rows[m * 8 + sim_lane() % 4 * 2 + i] + sim_lane() / 4 * 2, 2);
        to[m] = (uint32_t)pair[1] << 16 | pair[0];
    }
}

/* This thread's copies in flight. */
struct SimCopy {
    uint32_t *to;
    const uint32_t *from;
    int words;
    bool there;
};
void sim_begin_copy(SimCopy c);
bool sim_next_copy(SimCopy *c);
template <int BYTES> void copy_async(void *to, const void *from, bool there) {
    static_assert(BYTES == 4 || BYTES == 16, "copies are of 4 or 16 bytes");
    SimCopy c = {(uint32_t *)to, (const uint32_t *)from, BYTES / 4, there};
    sim_check_access(to, BYTES, true);
    sim_check_access(from, BYTES, false);
    sim_begin_copy(c);
    for (int i = 0; i < c.words; i++) c.to[i] = UINT32_MAX;
}
inline void copies_wait(void) {
    SimCopy c;
    while (sim_next_copy(&c))
        for (int i = 0; i < c.words; i++) c.to[i] = c.there ? c.from[i] : 0;
}

/* ---- asynchronous products of a warpgroup: see device/cuda/plugin/wgmma.cuh ---- */

/* A matrix in shared memory, with rows of 128 bytes: the bytes from a panel to the next, and from eight
 * rows to the next. */
struct SimMatrix {
    const void *first;
    int panel, eight;
};
/* A product as one thread computes it: sums of its two rows. */
struct SimProduct {
    float (*sums)[4];
    int columns;
    uint32_t left[4];    /* what the lane holds, or */
    SimMatrix left_rows; /* where the group's 64 rows are */
    SimMatrix right;
    bool by_columns;
    float rows[2][16]; /* the thread's rows of a left operand in registers */
};
/* An element of a matrix whose inner dimension, of 16, is that of rows or, by columns, that of panels. */
inline float sim_element(SimMatrix m, bool by_columns, int outer, int inner) {
    uintptr_t at = (uintptr_t)m.first;
    if (by_columns)
        at += (uintptr_t)(outer / 64 * m.panel + outer % 64 * 2 + inner / 8 * m.eight + inner % 8 * 128);
    else
        at += (uintptr_t)(outer / 8 * m.eight + outer % 8 * 128 + inner * 2);
    const uint16_t *p = (const uint16_t *)(at ^ (at >> 7 & 7) << 4);
    sim_check_access(p, sizeof *p, true);
    uint32_t bits = (uint32_t)*p << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void sim_group(bool begins);
/* From here on the sums are NaN, until the product has been waited for. */
void sim_begin_product(SimProduct p, bool add);
/* The oldest product that is not in the last `left` groups, with its sums. False if there is none; then sums
 * that no product in flight uses are back in place. */
bool sim_next_product(int left, SimProduct *p, float sums[16][4]);
void sim_end_product(const SimProduct *p, const float sums[16][4]);
void sim_copies_shown(void);

inline void group_begin(void) { sim_group(true); }
inline void group_end(void) { sim_group(false); }
inline void copies_shown(void) { sim_copies_shown(); }
template <int LEFT> inline void group_wait(void) {
    SimProduct p;
    float sums[16][4];
    while (sim_next_product(LEFT, &p, sums)) {
        int row = (int)threadIdx.x / 32 % 4 * 16 + sim_lane() / 4, column = sim_lane() % 4 * 2;
        for (int r = 0; p.left_rows.first && r < 2; r++)
            for (int k = 0; k < 16; k++) p.rows[r][k] = sim_element(p.left_rows, false, row + 8 * r, k);
        for (int n = 0; n < p.columns / 8; n++)
            for (int i = 0; i < 4; i++) {
                double sum = sums[n][i];
                for (int k = 0; k < 16; k++)
                    sum += (double)p.rows[i / 2][k] *
                           sim_element(p.right, p.by_columns, n * 8 + column + i % 2, k);
                sums[n][i] = (float)sum;
            }
        sim_end_product(&p, sums);
    }
}

inline uint32_t load_pair(const void *from) {
    uint32_t pair;
    sim_check_access(from, sizeof pair, false);
    memcpy(&pair, from, sizeof pair);
    return pair;
}
inline void store_pair(void *to, uint32_t pair) {
    sim_check_access(to, sizeof pair, false);
    memcpy(to, &pair, sizeof pair);
}

/* ---- packs: device/cuda/plugin/packs.cuh ---- */

typedef uint32_t SimWord __attribute__((may_alias));
template <int WORDS> inline void load_words(uint32_t *to, const void *from) {
    sim_check_access(from, 4 * WORDS, false);
    for (int w = 0; w < WORDS; w++) to[w] = ((const SimWord *)from)[w];
}
template <int WORDS> inline void store_words(void *to, const uint32_t *from) {
    sim_check_access(to, 4 * WORDS, false);
    for (int w = 0; w < WORDS; w++) ((SimWord *)to)[w] = from[w];
}

/* ---- arithmetic ---- */

inline float exp2_fast(float x) { return exp2f(x); }

/* Rounds twice where a GPU rounds once: nothing whose bits are promised uses it. */
#define FUSED(a, b, c) ((a) * (b) + (c))

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline long long __double2ll_rn(double x) { return llrint(x); }
inline float __ll2float_rn(long long x) { return (float)x; }
inline double __ull2double_rn(unsigned long long x) { return (double)x; }
inline uint32_t __float_as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
inline float __uint_as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
inline long long __double_as_longlong(double x) {
    long long u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* One thread runs at a time. These are atomic all the same, so that races.cpp sees that they are,
 * and order nothing. */
inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long x) {
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
inline unsigned atomicAdd(unsigned *p, unsigned x) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
inline unsigned long long sim_replace(unsigned long long *p, unsigned long long x, bool larger) {
    unsigned long long before = __atomic_load_n(p, __ATOMIC_RELAXED);
    if (larger ? x > before : x < before) __atomic_store_n(p, x, __ATOMIC_RELAXED);
    return before;
}
inline unsigned long long atomicMax(unsigned long long *p, unsigned long long x) {
    return sim_replace(p, x, true);
}
inline unsigned long long atomicMin(unsigned long long *p, unsigned long long x) {
    return sim_replace(p, x, false);
}

/* ---- launches ---- */

/* Queues a grid. `thread` runs one thread, and holds a copy of the arguments, at the address that
 * `arguments` returns. */
struct SimBytes {
    const void *first;
    size_t count;
};
typedef SimBytes (*SimArguments)(const std::function<void()> &thread);
void sim_launch(const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                std::function<void()> thread, SimArguments arguments);

template <typename... P, typename... A>
void sim_launch_kernel(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s, A... a) {
    std::tuple<P...> held(a...);
    auto thread = [=] { std::apply(kernel, held); };
    sim_launch((const void *)kernel, grid, block, shared, s, thread, [](const std::function<void()> &t) {
        return SimBytes{t.target<decltype(thread)>(), sizeof thread};
    });
}

#define LAUNCH(d, op, kernel, grid, block, shared, ...)                                          \
    do {                                                                                         \
        sim_launch_kernel(kernel, fitting((d), (op), (grid)), (block), (shared), cuda_stream(d), \
                          __VA_ARGS__);                                                          \
        cuda_launched((d), (op));                                                                \
    } while (0)

/* Queues work that is not a grid (cublaslt.cpp). */
void sim_queue(cudaStream_t s, std::function<void()> work);

#endif
