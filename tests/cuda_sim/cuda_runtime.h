/* What kernels see in place of NVIDIA's cuda_runtime.h: indices, barriers, shared memory, functions of lanes,
 * on a CPU. Blocks run one after another; each thread of a block is a fiber, that runs until it has to wait
 * for others. Warps and lanes take turns in an order drawn from the seed.
 *
 *   shared memory   a piece of the heap for each array and block, NaN until it is written
 *   a barrier       that some threads never reach ends the process, and says so
 *   a launch        with more blocks, threads or shared memory than GPUs have is refused
 *
 * What cannot be seen here: coalescing, bank conflicts, registers, orders of memory weaker than the
 * program's, alignment of wide accesses (there are none). */
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
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads)

/* ---- where a thread stands ---- */

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
/* The address that all lanes of this thread's warp publish 16 bytes at, lane by lane; a call of
 * sim_meet_warp lies between writing and reading, and two calls between writing twice. */
struct SimLane {
    unsigned char bytes[16];
};
SimLane *sim_lanes(void);
int sim_lane(void);
void sim_meet_warp(void);

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int apart) {
    static_assert(sizeof(T) <= sizeof(SimLane), "lanes exchange 16 bytes at most");
    (void)mask;
    SimLane *lanes = sim_lanes();
    memcpy(lanes[sim_lane()].bytes, &value, sizeof value);
    sim_meet_warp();
    memcpy(&value, lanes[sim_lane() ^ apart].bytes, sizeof value);
    return value;
}

/* Of all lanes of the warp. */
inline unsigned __ballot_sync(unsigned mask, int vote) {
    (void)mask;
    SimLane *lanes = sim_lanes();
    lanes[sim_lane()].bytes[0] = vote != 0;
    sim_meet_warp();
    unsigned votes = 0;
    for (int i = 0; i < 32; i++) votes |= (unsigned)(lanes[i].bytes[0] == 1) << i;
    return votes;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }

/* ---- shared memory ---- */

/* The same for all threads of a block; `key` is one address for each declaration. */
void *sim_shared(const void *key, size_t bytes);
char *sim_dynamic_shared(void);
#define SHARED(type, name, count)     \
    static const char name##_key = 0; \
    type *name = (type *)sim_shared(&name##_key, sizeof(type) * (count))
#define DYNAMIC_SHARED(name) char *name = sim_dynamic_shared()

/* ---- arithmetic ---- */

/* Two roundings where a GPU makes one: nothing that is held to bits fuses. */
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

/* One thread runs at a time; but races.cpp is to see that these are atomic, and order nothing. */
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

/* Queues a grid; arguments have been copied into `thread`, which runs one thread. */
void sim_launch(const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                std::function<void()> thread);

template <typename... P, typename... A>
void sim_launch_kernel(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s, A... a) {
    std::tuple<P...> held(a...);
    sim_launch((const void *)kernel, grid, block, shared, s, [=] { std::apply(kernel, held); });
}

#define LAUNCH(d, op, kernel, grid, block, shared, ...)                                          \
    do {                                                                                         \
        sim_launch_kernel(kernel, fitting((d), (op), (grid)), (block), (shared), cuda_stream(d), \
                          __VA_ARGS__);                                                          \
        cuda_launched((d), (op));                                                                \
    } while (0)

/* Queues work that is no grid (cublaslt.cpp). */
void sim_queue(cudaStream_t s, std::function<void()> work);

#endif
