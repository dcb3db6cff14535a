/* Cross-entropy, and the records by which ranks with other parts of the vocabulary share it.
 *
 * A block has a row. Exponentials are taken in fp32 and added in double: thread i has the packs
 * (packs.cuh) i, i + BLOCK, ... of a leaf, and the threads' sums meet in a fixed order, so a record's bits
 * hang on its leaf alone, in whichever of the two ops it is made. */
#include "device/cuda/plugin/packs.cuh"

namespace {

constexpr int LEVELS = 7; /* 2^6 leaves */
static_assert(LEAVES_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of leaves");

/* Of n logits; every thread gets it. A NaN makes the sum one. */
template <typename T>
INLINE LossRecord record_of(const T *x, int64_t n, int64_t target, float *maxima, double *sums) {
    constexpr int N = AT_ONCE<T>;
    LossRecord r;
    float most = -INFINITY;
    for (int64_t at = threadIdx.x * N; at < n; at += BLOCK * N) {
        Pack<T, N> here = load_pack<N>(x, at, n);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at + i < n) most = fmaxf(most, get(here, i));
    }
    r.max = block_max(most, maxima);
    double sum = 0;
    for (int64_t at = threadIdx.x * N; at < n; at += BLOCK * N) {
        Pack<T, N> here = load_pack<N>(x, at, n);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at + i < n) sum += (double)expf(get(here, i) - r.max);
    }
    r.sum = block_sum(sum, sums);
    r.target = target >= 0 && target < n ? load(x, target) : 0;
    return r;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    loss_records_kernel(int64_t vocab, const T *logits, const int32_t *targets, int64_t first, int64_t leaf,
                        LossRecord *records) {
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    int64_t row = blockIdx.x, rows = gridDim.x, start = blockIdx.y * leaf;
    LossRecord r = record_of(logits + row * vocab + start, smaller(leaf, vocab - start),
                             targets[row] - first - start, maxima, sums);
    if (threadIdx.x == 0) records[blockIdx.y * rows + row] = r;
}

/* What the gradient of a row needs, from the records of all leaves, `apart` records from each other. share:
 * by what the softmax is multiplied for the sake of the z-loss, else 1. */
struct RowLoss {
    float max, loss, z_loss;
    double sum, share;
};

INLINE RowLoss loss_of(const LossRecord *records, int64_t apart, int count, int64_t target_leaf, float z) {
    float most = -INFINITY;
    for (int i = 0; i < count; i++) most = fmaxf(most, records[i * apart].max);
    Tree<double, LEVELS> tree;
    for (int i = 0; i < count; i++)
        tree.add(records[i * apart].sum * exp((double)records[i * apart].max - (double)most));
    double sum = tree.sum(), whole = (double)most + log(sum);
    return {most, (float)(whole - (double)records[target_leaf * apart].target),
            (float)((double)z * whole * whole), sum, 1 + 2 * (double)z * whole};
}

/* dx may be x: what the row's loss needs has been read by all before the first is written. The target's
 * probability may be nearly 1: what is left of it is taken in double. */
template <typename T, typename G>
INLINE void write_gradient(int64_t vocab, const T *x, int64_t target, RowLoss row, float scale, float cap,
                           G *dx) {
    constexpr int N = AT_ONCE<T, G>;
    float factor = (float)((double)scale * row.share / row.sum);
    for (int64_t at = threadIdx.x * N; at < vocab; at += BLOCK * N) {
        Pack<T, N> here = load_pack<N>(x, at, vocab);
        Pack<G, N> out = {};
#pragma unroll
        for (int i = 0; i < N; i++) {
            float l = get(here, i), slope = cap > 0 ? 1 - l / cap * (l / cap) : 1,
                  grad = expf(l - row.max) * factor;
            if (at + i == target)
                grad = (float)((exp((double)l - (double)row.max) / row.sum * row.share - 1) * (double)scale);
            put(out, i, grad * slope);
        }
        store_pack(dx, at, vocab, out);
    }
}

template <typename T, typename G>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_kernel(int64_t vocab, const T *logits, const int32_t *targets, VocabLeaves leaves,
                         int64_t leaf, int count, const float *scale, float cap, float z, float *loss,
                         float *z_loss, G *dlogits) {
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    SHARED(LossRecord, own, LEAVES_MAX);
    int64_t row = blockIdx.x, rows = gridDim.x, target = targets[row];
    const T *x = logits + row * vocab;
    G *dx = dlogits ? dlogits + row * vocab : NULL;
    if (target < 0) { /* the whole block */
        constexpr int N = AT_ONCE<G>;
        for (int64_t at = threadIdx.x * N; dx && at < vocab; at += BLOCK * N)
            store_pack(dx, at, vocab, Pack<G, N>{});
        if (threadIdx.x == 0) loss[row] = 0;
        if (threadIdx.x == 0 && z_loss) z_loss[row] = 0;
        return;
    }
    for (int i = 0; i < count && !leaves.records; i++) {
        int64_t start = i * leaf;
        LossRecord r =
            record_of(x + start, smaller(leaf, vocab - start), target - leaves.first - start, maxima, sums);
        if (threadIdx.x == 0) own[i] = r;
    }
    __syncthreads();
    RowLoss r = leaves.records ? loss_of(leaves.records + row, rows, count, target / leaf, z)
                               : loss_of(own, 1, count, target / leaf, z);
    if (threadIdx.x == 0) loss[row] = r.loss;
    if (threadIdx.x == 0 && z_loss) z_loss[row] = r.z_loss;
    if (dx) write_gradient(vocab, x, target - leaves.first, r, *scale, cap, dx);
}

int count_leaves(Device *d, int64_t vocab, int64_t leaf) {
    int64_t count = blocks_of(vocab, leaf);
    if (count > LEAVES_MAX)
        cuda_fatal(d, "cross_entropy: %lld leaves of the vocabulary; at most %d are done", (long long)count,
                   LEAVES_MAX);
    return (int)count;
}

void loss_records(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                  const int32_t *targets, VocabLeaves leaves, LossRecord *records) {
    if (rows == 0) return;
    int64_t leaf = leaves.leaf ? leaves.leaf : vocab;
    Grid grid(rows, count_leaves(d, vocab, leaf));
    BY_DTYPE(logits_type, T,
             LAUNCH(d, OP_LOSS_RECORDS, loss_records_kernel<T>, grid, BLOCK, 0, vocab, (const T *)logits,
                    targets, leaves.first, leaf, records));
}

void cross_entropy(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                   const int32_t *targets, VocabLeaves leaves, const float *scale, float cap, float z,
                   float *loss, float *z_loss, void *dlogits, Dtype grad_type) {
    if (rows == 0) return;
    int64_t leaf = leaves.leaf ? leaves.leaf : vocab;
    int count = leaves.records ? leaves.count : count_leaves(d, vocab, leaf);
    BY_DTYPE(logits_type, T,
             BY_DTYPE(grad_type, G, auto kernel = cross_entropy_kernel<T, G>;
                      LAUNCH(d, OP_CROSS_ENTROPY, kernel, rows, BLOCK, 0, vocab, (const T *)logits, targets,
                             leaves, leaf, count, scale, cap, z, loss, z_loss, (G *)dlogits)));
}

} // namespace

extern "C" void loss_fill(Ops *ops) {
    ops->loss_records = loss_records;
    ops->cross_entropy = cross_entropy;
}
