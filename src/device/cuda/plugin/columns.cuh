/* Column sums. A block sums COLUMNS adjacent columns over all rows. A thread sums every 256th row (fp32:
 * 128th) of a pack of columns; then the threads' sums of each column are added in a fixed tree. So the bits
 * of a column depend only on its rows and their order.
 *
 *     LAUNCH(d, op, kernel, Grid(..., blocks_of(n, COLUMNS)), block_of_columns<T>(), ...)
 *     SHARED(float, smem, COLUMN_SMEM<T>);
 *     for (row = threadIdx.y; ...; row += DOWN<T>) sum[i] = ... of column first_column<T>() + i
 *     add_to_columns<T>(sum, n, smem, sums)                        every thread of the block */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_COLUMNS_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_COLUMNS_CUH

#include "device/cuda/plugin/packs.cuh"

constexpr int COLUMNS = 32, THREADS = 1024;
/* Threads of a block along the columns and along the rows. */
template <typename T> constexpr int ACROSS = COLUMNS / AT_ONCE<T>;
template <typename T> constexpr int DOWN = THREADS / ACROSS<T>;
template <typename T> constexpr int COLUMN_SMEM = DOWN<T> *COLUMNS;
template <typename T> dim3 block_of_columns(void) { return dim3(ACROSS<T>, DOWN<T>); }

/* The first column of this thread. Blocks are laid out along y. */
template <typename T> INLINE int64_t first_column(void) {
    return (int64_t)blockIdx.y * COLUMNS + threadIdx.x * AT_ONCE<T>;
}

/* Adds up `rows` rows (a power of two) of COLUMNS partial sums in `smem`, into its first row. `number` is the
 * thread's index in its block. Every thread of the block must call. */
INLINE void fold_rows(float *smem, int rows, int number) {
    __syncthreads();
    for (int half = rows / 2 * COLUMNS; half >= COLUMNS; half /= 2) {
        for (int here = number; here < half; here += THREADS) smem[here] += smem[here + half];
        __syncthreads();
    }
}

/* sums[column] += the sum over the block's threads, for columns below n. All threads must call. */
template <typename T>
INLINE void add_to_columns(const float (&sum)[AT_ONCE<T>], int64_t n, float *smem, float *sums) {
    constexpr int N = AT_ONCE<T>;
    int number = (int)(threadIdx.y * ACROSS<T> + threadIdx.x);
#pragma unroll
    for (int i = 0; i < N; i++) smem[number * N + i] = sum[i];
    fold_rows(smem, DOWN<T>, number);
    int64_t column = (int64_t)blockIdx.y * COLUMNS + number;
    if (number < COLUMNS && column < n) sums[column] += smem[number];
}

#endif
