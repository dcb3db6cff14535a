/* Products with splits (KSplit): ranks may have some of the splits each, without changing a bit. An element
 * of C is, for each split, one chain of fused multiply-adds along the inner dimension in ascending order,
 * and then the canonical tree over splits. Neither depends on the tile that the element lies in, nor on
 * which rank has the split.
 *
 * A block computes a tile of TILE x TILE elements of C, four per thread, from tiles of both operands in
 * shared memory. blockIdx.x is the tile of rows, which may be many, blockIdx.y the tile of columns. Elements
 * past the end of a split are zeros, which change no sum. */
#include "device/cuda/plugin/kernels.cuh"

namespace {

constexpr int TILE = 32, HALF = TILE / 2, PITCH = TILE + 1, LEVELS = 7; /* 2^6 splits */
static_assert(SPLITS_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of splits");

/* Loads elements at .. at+count-1 of the inner dimension K, of TILE rows of op(A) and of TILE columns of
 * op(B): [k][row], [k][column]. */
template <typename T>
INLINE void load_tiles(const GemmArgs &o, int64_t at, int count, float *left, float *right) {
    const T *a = (const T *)o.a, *b = (const T *)o.b;
    for (int e = (int)threadIdx.x; e < TILE * TILE; e += BLOCK) {
        /* Adjacent threads read adjacent elements, whether the operand is transposed or not. */
        int fast = e % TILE, slow = e / TILE;
        int row = o.trans_a ? fast : slow, k = o.trans_a ? slow : fast;
        int64_t i = (int64_t)blockIdx.x * TILE + row, p = at + k;
        left[k * PITCH + row] = i < o.m && k < count ? load(a, o.trans_a ? p * o.m + i : i * o.k + p) : 0;
        int column = o.trans_b ? slow : fast;
        k = o.trans_b ? fast : slow;
        int64_t j = (int64_t)blockIdx.y * TILE + column;
        p = at + k;
        right[k * PITCH + column] = j < o.n && k < count ? load(b, o.trans_b ? j * o.k + p : p * o.n + j) : 0;
    }
}

/* sums[2 r + c]: rows y and y + HALF, columns x and x + HALF of the tile. */
INLINE void add_products(const float *left, const float *right, int x, int y, float sums[4]) {
    for (int p = 0; p < TILE; p++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                sums[2 * r + c] =
                    FUSED(left[p * PITCH + y + r * HALF], right[p * PITCH + x + c * HALF], sums[2 * r + c]);
}

/* count: splits. Two blocks a multiprocessor: for more, ptxas spills registers. */
template <typename T, typename C>
__global__ void __launch_bounds__(BLOCK, 2) split_k_kernel(const GemmArgs o, int count) {
    SHARED(float, left, TILE *PITCH);
    SHARED(float, right, TILE *PITCH);
    int x = (int)threadIdx.x % HALF, y = (int)threadIdx.x / HALF;
    Tree<float, LEVELS> trees[4];
    for (int split = 0; split < count; split++) {
        float sums[4] = {0, 0, 0, 0};
        int64_t run_start = 0;
        for (int r = 0; r < o.splits.runs; run_start += o.splits.run[r++].length) {
            run_start += o.splits.run[r].skip;
            int64_t first = split * o.splits.run[r].split_size,
                    end = smaller(o.splits.run[r].length, first + o.splits.run[r].split_size);
            for (int64_t at = first; at < end; at += TILE) {
                load_tiles<T>(o, run_start + at, (int)smaller(TILE, end - at), left, right);
                __syncthreads();
                add_products(left, right, x, y, sums);
                __syncthreads();
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) trees[e].add(sums[e]);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int64_t i = (int64_t)blockIdx.x * TILE + y + e / 2 * HALF,
                j = (int64_t)blockIdx.y * TILE + x + e % 2 * HALF;
        if (i >= o.m || j >= o.n) continue;
        float sum = trees[e].sum();
        C *c = (C *)o.c;
        store(c, i * o.ldc + j, o.accumulate ? load(c, i * o.ldc + j) + sum : sum);
    }
}

} // namespace

extern "C" void split_k_gemm(Device *d, const GemmArgs *o) {
    int count = (int)blocks_of(o->splits.run[0].length, o->splits.run[0].split_size);
    Grid grid(blocks_of(o->m, TILE), blocks_of(o->n, TILE));
    if (count > SPLITS_MAX)
        cuda_fatal(d, "gemm: %lld x %lld in %d splits; at most %d are done", (long long)o->m, (long long)o->n,
                   count, SPLITS_MAX);
    BY_DTYPE(o->ab_type, T,
             BY_DTYPE(o->c_type, C, auto kernel = split_k_kernel<T, C>;
                      LAUNCH(d, OP_GEMM, kernel, grid, BLOCK, 0, *o, count)));
}
