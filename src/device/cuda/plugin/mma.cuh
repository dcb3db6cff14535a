/* Matrix instructions of a warp (mma.sync), and asynchronous copies into shared memory (sm_80 and newer).
 *
 * All 32 lanes of a warp must call its instructions together. A product is of 16 x 16 bf16 by 16 x 8 bf16,
 * with fp32 sums. Lane 4g + t holds, a pair of neighbours in each register:
 *
 *     left [16][16]   rows g, g + 8 (columns 2t, 2t + 1), then the same rows (columns 2t + 8, 2t + 9)
 *     right [16][8]   of column g the rows 2t, 2t + 1, then 2t + 8, 2t + 9
 *     sums [16][8]    of row g the columns 2t, 2t + 1, then of row g + 8
 *
 * So the sums of two adjacent products, rounded, are the left operand of another product.
 *
 * load_matrices loads four matrices of 8 x 8 from shared memory, whose rows are 16 bytes. Lane i gives the
 * address of row i % 8 of matrix i / 8. Of each matrix, lane 4g + t gets columns 2t, 2t + 1 of row g;
 * transposed: rows 2t, 2t + 1 of column g.
 *
 * copy_async copies BYTES (4 or 16, aligned to their size) from global to shared memory, or writes zeros if
 * `there` is false. This thread may read them only after copies_wait, other threads only after a barrier as
 * well.
 *
 * tests/cuda_sim/cuda_runtime.h has their CPU versions. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_MMA_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_MMA_CUH

#include "device/cuda/plugin/kernels.cuh"

#ifdef __CUDACC__

INLINE void multiply_matrices(float (&sums)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

INLINE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

INLINE void load_matrices(uint32_t (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

INLINE void load_matrices_transposed(uint32_t (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

template <int BYTES> INLINE void copy_async(void *to, const void *from, bool there) {
    uint32_t bytes = there ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(bytes)
                     : "memory");
}

INLINE void copies_wait(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Rounds both to bf16; the first is the lower half. */
INLINE uint32_t pair_of(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Two adjacent elements, aligned to 4 bytes. */
INLINE uint32_t load_pair(const void *from) { return *(const uint32_t *)from; }
INLINE void store_pair(void *to, uint32_t pair) { *(uint32_t *)to = pair; }

/* 2^x to within two units in the last place, in one instruction. */
INLINE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else

INLINE uint32_t pair_of(float low, float high) { return (uint32_t)bf16_of(high) << 16 | bf16_of(low); }

#endif

#endif
