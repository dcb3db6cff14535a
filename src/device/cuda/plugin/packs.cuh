/* Packs: adjacent elements that a thread handles together, for kernels that are bound by memory.
 *
 *   AT_ONCE<T, U>                     the number of elements of the smaller type in 16 bytes
 *   load_pack<N>(p, first, end)       elements first .. first + N - 1 of p; zeros from `end` on, not read
 *   store_pack(p, first, end, x)      writes them back; nothing is written from `end` on
 *   get(x, i), put(x, i, value)       i is a constant once loops are unrolled: a pack stays in registers
 *
 * A pack that is aligned and ends before `end` is accessed by 16 bytes at a time (by 8, if it has no more),
 * any other element by element. Both give the same bits, since a thread has the same elements either way. So
 * tensors may begin at any element, and rows may have any length. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_PACKS_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_PACKS_CUH

#include "device/cuda/plugin/kernels.cuh"

template <typename T, typename U = T>
constexpr int AT_ONCE = (int)(16 / (sizeof(T) < sizeof(U) ? sizeof(T) : sizeof(U)));

template <typename T, int N> struct Pack {
    static constexpr int WORDS = (int)(N * sizeof(T) / 4),
                         ACCESS = WORDS < 4 ? 2 : 4; /* words in one access */
    static_assert(WORDS % ACCESS == 0, "a pack is of whole accesses");
    uint32_t word[WORDS];
};

/* ---- elements of a pack ---- */

template <int N> INLINE float get(const Pack<float, N> &x, int i) { return __uint_as_float(x.word[i]); }
template <int N> INLINE float get(const Pack<Bf16, N> &x, int i) {
    return widen((uint16_t)(x.word[i / 2] >> i % 2 * 16));
}
template <int N> INLINE int64_t get(const Pack<int64_t, N> &x, int i) {
    return (int64_t)((uint64_t)x.word[2 * i + 1] << 32 | x.word[2 * i]);
}

template <int N> INLINE void put(Pack<float, N> &x, int i, float value) {
    x.word[i] = __float_as_uint(value);
}
template <int N> INLINE void put_bits(Pack<Bf16, N> &x, int i, uint16_t bits) {
    x.word[i / 2] = (x.word[i / 2] & 0xffff0000u >> i % 2 * 16) | (uint32_t)bits << i % 2 * 16;
}
template <int N> INLINE void put(Pack<Bf16, N> &x, int i, float value) { put_bits(x, i, bf16_of(value)); }
template <int N> INLINE void put(Pack<int64_t, N> &x, int i, int64_t value) {
    x.word[2 * i] = (uint32_t)value;
    x.word[2 * i + 1] = (uint32_t)((uint64_t)value >> 32);
}

/* Copy one element between memory and a pack, bits unchanged. */
template <int N> INLINE void take(Pack<float, N> &x, int i, const float *p) { put(x, i, *p); }
template <int N> INLINE void take(Pack<Bf16, N> &x, int i, const Bf16 *p) { put_bits(x, i, p->bits); }
template <int N> INLINE void take(Pack<int64_t, N> &x, int i, const int64_t *p) { put(x, i, *p); }
template <int N> INLINE void give(const Pack<float, N> &x, int i, float *p) { *p = get(x, i); }
template <int N> INLINE void give(const Pack<Bf16, N> &x, int i, Bf16 *p) {
    p->bits = (uint16_t)(x.word[i / 2] >> i % 2 * 16);
}
template <int N> INLINE void give(const Pack<int64_t, N> &x, int i, int64_t *p) { *p = get(x, i); }

/* ---- between memory and packs ---- */

#ifdef __CUDACC__
/* Access WORDS (2 or 4) words of a tensor, aligned to their size. This is assembly because nvcc splits some
 * accesses that are wide in C. tests/cuda_sim has its own. */
INLINE uint64_t global_address(const void *p) { return (uint64_t)__cvta_generic_to_global(p); }
template <int WORDS> INLINE void load_words(uint32_t *to, const void *from) {
    if constexpr (WORDS == 4)
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "l"(global_address(from))
                     : "memory");
    else
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1])
                     : "l"(global_address(from))
                     : "memory");
}
template <int WORDS> INLINE void store_words(void *to, const uint32_t *from) {
    if constexpr (WORDS == 4)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global_address(to)), "r"(from[0]),
                     "r"(from[1]), "r"(from[2]), "r"(from[3])
                     : "memory");
    else
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(global_address(to)), "r"(from[0]), "r"(from[1])
                     : "memory");
}
#endif

/* Whether a pack is accessed by 16 (or 8) bytes at a time. */
template <typename T, int N> INLINE bool is_wide(const T *p, int64_t first, int64_t end) {
    return first + N <= end && (uintptr_t)(p + first) % (4 * Pack<T, N>::ACCESS) == 0;
}

template <int N, typename T> INLINE Pack<T, N> load_pack(const T *p, int64_t first, int64_t end) {
    constexpr int STEP = Pack<T, N>::ACCESS;
    Pack<T, N> x = {};
    if (is_wide<T, N>(p, first, end)) {
#pragma unroll
        for (int w = 0; w < x.WORDS; w += STEP)
            load_words<STEP>(x.word + w, (const char *)(p + first) + 4 * w);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i < end) take(x, i, p + first + i);
    }
    return x;
}

template <int N, typename T> INLINE void store_pack(T *p, int64_t first, int64_t end, const Pack<T, N> &x) {
    constexpr int STEP = Pack<T, N>::ACCESS;
    if (is_wide<T, N>(p, first, end)) {
#pragma unroll
        for (int w = 0; w < x.WORDS; w += STEP) store_words<STEP>((char *)(p + first) + 4 * w, x.word + w);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i < end) give(x, i, p + first + i);
    }
}

/* Where this thread's pack of N begins in a grid over rows of `width` elements. No pack spans two rows. */
struct PackStart {
    int64_t row, column;
};
template <int N> INLINE PackStart pack_start(int64_t width) {
    int64_t packs = (width + N - 1) / N, number = element();
    return {number / packs, number % packs * N};
}

/* The blocks of such a grid, and of one over n elements. */
template <int N> int64_t blocks_of_packs(int64_t rows, int64_t width) {
    return blocks_of(rows * blocks_of(width, N), BLOCK);
}
template <int N> int64_t blocks_of_packs(int64_t n) { return blocks_of(n, (int64_t)N * BLOCK); }

#endif
