/* Matrix instructions of a warpgroup (wgmma). The right operand lies in shared memory, the left one in
 * registers or in shared memory. Only sm_90a has them: files that include this are named *_wgmma.cu and are
 * compiled for that chip alone. All 128 threads of the group must call together.
 *
 * A product is of 64 x 16 bf16 by 16 x N bf16, with fp32 sums. Warp w of the group has rows 16 w .. 16 w + 15
 * of the sums, and of a left operand in registers; mma.cuh says which elements its lanes hold.
 *
 * Tiles in shared memory lie in panels: [D / 64][rows][64] bf16, each panel aligned to 1,024 bytes. Of the
 * eight 16-byte segments of a row, segment i lies at i xor row % 8 ("128-byte swizzle"), so that eight
 * adjacent rows, or eight segments, lie in different banks. A Matrix describes a tile, or a position inside
 * one:
 *
 *     rows_of(m, 16 c)       from column 16 c on: an operand whose inner dimension is the tile's columns
 *     columns_of(m, 16 r)    from row 16 r on: a right operand whose inner dimension is the tile's rows
 *
 * Products are asynchronous. group_begin() goes before the first product of a group and makes registers
 * written before visible to it; group_end() commits the group. After group_wait<K>() all but the last K
 * committed groups are done. Until then their sums, registers of left operands and shared memory must not be
 * touched. settle(sums) must come before sums are read. copies_shown(), after copies_wait() and before a
 * barrier, makes what copies wrote visible to products.
 *
 * NVIDIA, "Parallel Thread Execution ISA", 9.7.15: wgmma.mma_async. tests/cuda_sim/cuda_runtime.h has the CPU
 * versions. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_WGMMA_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_WGMMA_CUH

#include "device/cuda/plugin/mma.cuh"

enum { PANEL = 64, GROUP = 4 * WARP, GROUP_ROWS = 64 };

/* Where segment i of row r begins in a tile of `rows` rows, in elements. */
INLINE int place_in_panels(int rows, int r, int i) {
    return (i / 8 * rows + r) * PANEL + (i % 8 ^ r % 8) * 8;
}

#ifdef __CUDACC__

/* Dynamic shared memory for panels. */
#define PANELS(name) extern __shared__ __align__(1024) char name[]

/* The descriptor that the instruction takes: the first address, the bytes from a panel to the next and from
 * eight rows to the next, each in sixteenths, and the swizzle. */
struct Matrix {
    uint64_t description;
    int rows;
};
INLINE Matrix matrix_of(const Bf16 *tile, int rows) {
    uint64_t first = (shared_address(tile) & 0x3ffff) >> 4, panel = (uint64_t)rows * PANEL * 2 >> 4;
    return {first | panel << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62, rows};
}
INLINE Matrix further(Matrix m, int elements) {
    return {m.description + (uint64_t)(elements * 2 >> 4), m.rows};
}

INLINE void group_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void group_end(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> INLINE void group_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
INLINE void copies_shown(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Must come before sums are read: the compiler does not know that products are in flight. */
template <int N> INLINE void settle(float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[n][i])::"memory");
}

#define FOUR_SUMS(s, n) "+f"(s[n][0]), "+f"(s[n][1]), "+f"(s[n][2]), "+f"(s[n][3])
#define SUMS_OF_32(s, n) FOUR_SUMS(s, n), FOUR_SUMS(s, n + 1), FOUR_SUMS(s, n + 2), FOUR_SUMS(s, n + 3)
#define SUMS_OF_64(s) SUMS_OF_32(s, 0), SUMS_OF_32(s, 4)
#define SUMS_OF_128(s) SUMS_OF_64(s), SUMS_OF_32(s, 8), SUMS_OF_32(s, 12)
#define NAMES_OF_64                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_OF_128                                                                                    \
    NAMES_OF_64                                                                                         \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* A product whose operands have these names, which follow those of the sums; `add` becomes a predicate. */
#define WGMMA(n, operands, add, transposed)                                   \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                          \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" NAMES_OF_##n \
        "}, " operands ", p, 1, 1, " transposed ";\n}\n"

/* sums [64][N] = (add ? sums : 0) + left [64][16] * right [16][N]. BY_COLUMNS: `right` is from columns_of,
 * else from rows_of. */
#define MULTIPLY_BY(n, operands, add_name, transposed)                                                     \
    template <bool BY_COLUMNS>                                                                             \
    INLINE void group_multiply(float(&sums)[n / 8][4], const uint32_t(&left)[4], Matrix right, bool add) { \
        asm volatile(WGMMA(n, operands, add_name, transposed)                                              \
                     : SUMS_OF_##n(sums)                                                                   \
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.description),     \
                       "r"((int)add), "n"((int)BY_COLUMNS));                                               \
    }
MULTIPLY_BY(64, "{%32, %33, %34, %35}, %36", "%37", "%38")
MULTIPLY_BY(128, "{%64, %65, %66, %67}, %68", "%69", "%70")
#undef MULTIPLY_BY

/* The same with a left operand in shared memory; both are from rows_of. */
INLINE void group_multiply(float (&sums)[8][4], Matrix left, Matrix right, bool add) {
    asm volatile(WGMMA(64, "%32, %33", "%34", "0, 0")
                 : SUMS_OF_64(sums)
                 : "l"(left.description), "l"(right.description), "r"((int)add));
}

#else

#define PANELS(name) DYNAMIC_SHARED(name)

/* Products in flight hold the address of their sums, which must not move until they have been waited for. */
struct Matrix {
    const Bf16 *first;
    int rows;
};
INLINE Matrix matrix_of(const Bf16 *tile, int rows) { return {tile, rows}; }
INLINE Matrix further(Matrix m, int elements) { return {m.first + elements, m.rows}; }

INLINE SimMatrix sim_matrix(Matrix m) { return {m.first, m.rows * PANEL * 2, 1024}; }
template <bool BY_COLUMNS, int N>
INLINE void group_multiply(float (&sums)[N][4], const uint32_t (&left)[4], Matrix right, bool add) {
    sim_begin_product(
        {sums, N * 8, {left[0], left[1], left[2], left[3]}, {}, sim_matrix(right), BY_COLUMNS, {}}, add);
}
template <int N> INLINE void group_multiply(float (&sums)[N][4], Matrix left, Matrix right, bool add) {
    sim_begin_product({sums, N * 8, {}, sim_matrix(left), sim_matrix(right), false, {}}, add);
}
template <int N> INLINE void settle(float (&)[N][4]) {}

#endif

INLINE Matrix rows_of(Matrix m, int column) {
    return further(m, column / PANEL * m.rows * PANEL + column % PANEL);
}
INLINE Matrix columns_of(Matrix m, int row) { return further(m, row * PANEL); }

#endif
