/* Shared by all kernels: elements of both dtypes, warps, launches.
 *
 * nvcc compiles them for GPUs, and a C++ compiler for tests/cuda_sim, which replaces cuda_runtime.h. So that
 * both can, three things are always written in one way:
 *
 *   LAUNCH(d, op, kernel, grid, block, shared bytes, arguments...)     for kernel<<<...>>>(...); grid: a Grid
 *   SHARED(type, name, count)                                          an array of the block
 *   FUSED(a, b, c)                                                     a * b + c, rounded once on a GPU
 *
 * Contraction is off (-fmad=false): a product and a sum are rounded separately unless FUSED is used, so that
 * ops whose bits are promised have the CPU's bits.
 *
 * Grids and blocks depend only on shapes, never on the number of multiprocessors. No float is ever added
 * atomically. No thread returns before a barrier that others wait at. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_KERNELS_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_KERNELS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "device/cuda/plugin/backend.h"

#ifdef __CUDACC__
#define SHARED(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#define FUSED(a, b, c) fmaf((a), (b), (c))
#define LAUNCH(d, op, kernel, grid, block, shared, ...)                       \
    do {                                                                      \
        auto launched_ = kernel;                                              \
        dim3 grid_ = fitting((d), (op), (grid));                              \
        launched_<<<grid_, (block), (shared), cuda_stream(d)>>>(__VA_ARGS__); \
        cuda_launched((d), (op));                                             \
    } while (0)
#endif

#define INLINE __device__ __forceinline__

enum { WARP = 32, BLOCK = 256 };

/* The number of blocks of `each` elements that cover n. Grids are launched only with n of at least 1. */
static inline int64_t blocks_of(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* The blocks of a grid, in 64 bits until they have been checked against the limits. The number of tokens goes
 * along x, where the limit is 2^31 - 1; along y it is 65,535. */
struct Grid {
    int64_t x, y;
    Grid(int64_t x_, int64_t y_ = 1) : x(x_), y(y_) {}
};
static inline dim3 fitting(Device *d, OpId op, Grid g) {
    cuda_check_grid(d, op, g.x, g.y);
    return dim3((unsigned)g.x, (unsigned)g.y);
}

/* ---- elements ---- */

typedef struct Bf16 {
    uint16_t bits;
} Bf16;

/* The same as in device/cpu/cpu.h, bit for bit. */
INLINE float widen(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
INLINE uint16_t bf16_of(float f) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

INLINE float load(const float *p, int64_t i) { return p[i]; }
INLINE float load(const Bf16 *p, int64_t i) { return widen(p[i].bits); }
INLINE void store(float *p, int64_t i, float x) { p[i] = x; }
INLINE void store(Bf16 *p, int64_t i, float x) { p[i].bits = bf16_of(x); }

/* Runs the statement with T the element type of Dtype c. */
#define BY_DTYPE(c, T, ...)     \
    do {                        \
        if ((c) == DTYPE_F32) { \
            using T = float;    \
            __VA_ARGS__;        \
        } else {                \
            using T = Bf16;     \
            __VA_ARGS__;        \
        }                       \
    } while (0)

/* Index of this thread's element in a grid over elements. */
INLINE int64_t element(void) { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__host__ INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
__host__ INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- warps ---- */

INLINE int lane(void) { return (int)(threadIdx.x % WARP); }

/* Reductions over `lanes` adjacent lanes (a power of two), by a fixed butterfly; each gets the result. */
template <typename T> INLINE T lanes_sum(T x, int lanes) {
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
INLINE float lanes_max(float x, int lanes) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

/* Reductions over a block of BLOCK threads; each gets the result. `smem` is shared memory for BLOCK / WARP
 * values, and may be reused when this returns. */
template <typename T> INLINE T block_sum(T x, T *smem) {
    x = lanes_sum(x, WARP);
    if (lane() == 0) smem[threadIdx.x / WARP] = x;
    __syncthreads();
    T sum = smem[0];
    for (int i = 1; i < BLOCK / WARP; i++) sum += smem[i];
    __syncthreads();
    return sum;
}
INLINE float block_max(float x, float *smem) {
    x = lanes_max(x, WARP);
    if (lane() == 0) smem[threadIdx.x / WARP] = x;
    __syncthreads();
    float most = smem[0];
    for (int i = 1; i < BLOCK / WARP; i++) most = fmaxf(most, smem[i]);
    __syncthreads();
    return most;
}

/* ---- the canonical tree ---- */

/* Sums in the tree of base/tree.h, of values that come one after another. As in a binary counter, a finished
 * block is added to the one before it as soon as both have one size. Fewer than 2^LEVELS values fit.
 * Indices are constants after unrolling, so that all of it stays in registers. */
template <typename T, int LEVELS> struct Tree {
    T level[LEVELS];
    int count = 0;
    INLINE void add(T x) {
        bool carried = true;
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            bool full = count >> l & 1;
            if (carried && full) x = level[l] + x;
            if (carried && !full) level[l] = x, carried = false;
        }
        count++;
    }
    /* The remaining blocks become smaller from left to right, and are added from the right. */
    INLINE T sum(void) const {
        T x = 0;
        bool any = false;
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            if (!(count >> l & 1)) continue;
            x = any ? level[l] + x : level[l];
            any = true;
        }
        return x;
    }
};

#endif
