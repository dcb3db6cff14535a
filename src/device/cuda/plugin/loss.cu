/* Cross-entropy, and the records by which ranks with other shards of the vocabulary share it (vocab
 * parallel).
 *
 * A block has a row. Exponentials are computed in fp32 and added in double. Thread i has packs (packs.cuh)
 * i, i + BLOCK, ... of a split, and the threads' sums are added in a fixed order. So the bits of a record
 * depend only on its split, whichever of the two ops makes it. */
#include "device/cuda/plugin/packs.cuh"

namespace {

constexpr int LEVELS = 7; /* 2^6 splits */
static_assert(SPLITS_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of splits");

/* The record of n logits; every thread gets it. A NaN makes the sum NaN. */
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
    loss_records_kernel(int64_t vocab, const T *logits, const int32_t *targets, int64_t first,
                        int64_t split_size, LossRecord *records) {
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    int64_t row = blockIdx.x, rows = gridDim.x, start = blockIdx.y * split_size;
    LossRecord r = record_of(logits + row * vocab + start, smaller(split_size, vocab - start),
                             targets[row] - first - start, maxima, sums);
    if (threadIdx.x == 0) records[blockIdx.y * rows + row] = r;
}

/* What the gradient of a row needs, computed from the records of all splits, which are `stride` records from
 * each other. factor: that of the softmax that comes from the z-loss; 1 without it. */
struct RowLoss {
    float max, loss, z_loss;
    double sum, factor;
};

INLINE RowLoss loss_of(const LossRecord *records, int64_t stride, int count, int64_t target_split, float z) {
    float most = -INFINITY;
    for (int i = 0; i < count; i++) most = fmaxf(most, records[i * stride].max);
    Tree<double, LEVELS> tree;
    for (int i = 0; i < count; i++)
        tree.add(records[i * stride].sum * exp((double)records[i * stride].max - (double)most));
    double sum = tree.sum(), lse = (double)most + log(sum);
    return {most, (float)(lse - (double)records[target_split * stride].target),
            (float)((double)z * lse * lse), sum, 1 + 2 * (double)z * lse};
}

/* The gradient is the exponentials times factor_of, except at the target, whose probability may be nearly 1:
 * there the difference is computed in double. */
INLINE float factor_of(RowLoss row, float scale) { return (float)((double)scale * row.factor / row.sum); }
INLINE float target_gradient(float l, RowLoss row, float scale) {
    return (float)((exp((double)l - (double)row.max) / row.sum * row.factor - 1) * (double)scale);
}

/* dx may be x: all threads have read what the row's loss needs before the first write. */
template <typename T, typename G>
INLINE void write_gradient(const CrossEntropyArgs &o, const T *x, int64_t target, RowLoss row, G *dx) {
    constexpr int N = AT_ONCE<T, G>;
    float scale = *o.scale, factor = factor_of(row, scale);
    for (int64_t at = threadIdx.x * N; at < o.vocab; at += BLOCK * N) {
        Pack<T, N> here = load_pack<N>(x, at, o.vocab);
        Pack<G, N> out = {};
#pragma unroll
        for (int i = 0; i < N; i++) {
            float l = get(here, i), slope = o.cap > 0 ? 1 - l / o.cap * (l / o.cap) : 1,
                  grad = expf(l - row.max) * factor;
            if (at + i == target) grad = target_gradient(l, row, scale);
            put(out, i, grad * slope);
        }
        store_pack(dx, at, o.vocab, out);
    }
}

/* The gradient of a row without a target. */
template <typename G> INLINE void write_zeros(int64_t vocab, G *dx) {
    constexpr int N = AT_ONCE<G>;
    for (int64_t at = threadIdx.x * N; dx && at < vocab; at += BLOCK * N)
        store_pack(dx, at, vocab, Pack<G, N>{});
}
INLINE void write_losses(const CrossEntropyArgs &o, float loss, float z_loss) {
    if (threadIdx.x != 0) return;
    o.loss[blockIdx.x] = loss;
    if (o.z_loss) o.z_loss[blockIdx.x] = z_loss;
}

/* The local vocabulary has `count` splits, unless there are records. */
template <typename T, typename G>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_kernel(const CrossEntropyArgs o, int64_t split_size, int count) {
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    SHARED(LossRecord, made, SPLITS_MAX);
    int64_t row = blockIdx.x, rows = gridDim.x, vocab = o.vocab, target = o.targets[row];
    VocabSplit splits = o.splits;
    const T *x = (const T *)o.logits + row * vocab;
    G *dx = o.dlogits ? (G *)o.dlogits + row * vocab : NULL;
    if (target < 0) { /* the whole block */
        write_zeros(vocab, dx);
        write_losses(o, 0, 0);
        return;
    }
    for (int i = 0; i < count && !splits.records; i++) {
        int64_t start = i * split_size;
        LossRecord r = record_of(x + start, smaller(split_size, vocab - start), target - splits.first - start,
                                 maxima, sums);
        if (threadIdx.x == 0) made[i] = r;
    }
    __syncthreads();
    RowLoss r = splits.records ? loss_of(splits.records + row, rows, count, target / split_size, o.z)
                               : loss_of(made, 1, count, target / split_size, o.z);
    write_losses(o, r.loss, r.z_loss);
    if (dx) write_gradient(o, x, target - splits.first, r, dx);
}

/* ---- unsharded rows of fp32 without a cap ---- */

/* A thread takes packs of its row in groups. The first group stays in registers and the next SHARED_GROUPS
 * lie in shared memory, so that a row of 32,768 logits is read once; only the rest is read again in each
 * pass. The exponential of a logit that is held overwrites it, since the gradient needs nothing else. A
 * thread accesses only its own elements, in record_of's order. */
constexpr int FOUR = AT_ONCE<float>, GROUP = 8, SHARED_GROUPS = 3 /* 96 KiB */;
constexpr int64_t GROUP_SIZE = (int64_t)GROUP * BLOCK * FOUR; /* elements of a group, over all threads */
struct alignas(16) Quad {
    Pack<float, FOUR> pack;
};
struct Group {
    Pack<float, FOUR> pack[GROUP];
};
/* What a thread holds of its row. */
struct Held {
    Group first;
    Quad *shared;
};

INLINE int64_t offset_in_group(int64_t first, int k) {
    return first + (k * BLOCK + (int64_t)threadIdx.x) * FOUR;
}
/* Past the end it has -infinity, whose exponential is 0. */
INLINE Group load_group(const float *x, int64_t first, int64_t n) {
    Group g;
#pragma unroll
    for (int k = 0; k < GROUP; k++) g.pack[k] = load_pack<FOUR>(x, offset_in_group(first, k), n);
    if (first + GROUP_SIZE <= n) return g;
#pragma unroll
    for (int k = 0; k < GROUP; k++)
#pragma unroll
        for (int i = 0; i < FOUR; i++)
            if (offset_in_group(first, k) + i >= n) put(g.pack[k], i, -INFINITY);
    return g;
}
INLINE float group_max(const Group &g, float most) {
#pragma unroll
    for (int k = 0; k < GROUP; k++)
#pragma unroll
        for (int i = 0; i < FOUR; i++) most = fmaxf(most, get(g.pack[k], i));
    return most;
}
INLINE void take_exponentials(Pack<float, FOUR> &x, float max) {
#pragma unroll
    for (int i = 0; i < FOUR; i++) put(x, i, expf(get(x, i) - max));
}
INLINE double add_exponentials(const Pack<float, FOUR> &x, double sum) {
#pragma unroll
    for (int i = 0; i < FOUR; i++) sum += (double)get(x, i);
    return sum;
}
template <typename G>
INLINE void store_scaled(G *dx, int64_t at, int64_t n, const Pack<float, FOUR> &x, float factor) {
    Pack<G, FOUR> out = {};
#pragma unroll
    for (int i = 0; i < FOUR; i++) put(out, i, get(x, i) * factor);
    store_pack(dx, at, n, out);
}

/* The end of the logits that are held. */
INLINE int64_t held_end(int64_t n) { return smaller(n, (1 + SHARED_GROUPS) * GROUP_SIZE); }

INLINE float read_row(const float *x, int64_t n, Held &held) {
    held.first = load_group(x, 0, n);
    float most = group_max(held.first, -INFINITY);
    Quad *smem = held.shared;
    int64_t first = GROUP_SIZE;
    for (; first < held_end(n); first += GROUP_SIZE, smem += GROUP * BLOCK) {
        Group g = load_group(x, first, n);
        most = group_max(g, most);
#pragma unroll
        for (int k = 0; k < GROUP; k++) smem[k * BLOCK + (int)threadIdx.x].pack = g.pack[k];
    }
    for (; first < n; first += GROUP_SIZE) most = group_max(load_group(x, first, n), most);
    return most;
}

INLINE double sum_row(const float *x, int64_t n, float max, Held &held) {
    double sum = 0;
#pragma unroll
    for (int k = 0; k < GROUP; k++) {
        take_exponentials(held.first.pack[k], max);
        sum = add_exponentials(held.first.pack[k], sum);
    }
    Quad *smem = held.shared;
    int64_t first = GROUP_SIZE;
    for (; first < held_end(n); first += GROUP_SIZE, smem += GROUP * BLOCK) {
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            Quad here = smem[k * BLOCK + (int)threadIdx.x];
            take_exponentials(here.pack, max);
            smem[k * BLOCK + (int)threadIdx.x] = here;
            sum = add_exponentials(here.pack, sum);
        }
    }
    for (; first < n; first += GROUP_SIZE) {
        Group g = load_group(x, first, n);
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            take_exponentials(g.pack[k], max);
            sum = add_exponentials(g.pack[k], sum);
        }
    }
    return sum;
}

/* What was read last comes first: it may still be in cache. */
template <typename G>
INLINE void write_row(const float *x, int64_t n, float max, float factor, const Held &held, G *dx) {
    const Quad *smem = held.shared;
    for (int64_t first = held_end(n); first < n; first += GROUP_SIZE) {
        Group g = load_group(x, first, n);
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            take_exponentials(g.pack[k], max);
            store_scaled(dx, offset_in_group(first, k), n, g.pack[k], factor);
        }
    }
    for (int64_t first = GROUP_SIZE; first < held_end(n); first += GROUP_SIZE, smem += GROUP * BLOCK) {
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            store_scaled(dx, offset_in_group(first, k), n, smem[k * BLOCK + (int)threadIdx.x].pack, factor);
    }
#pragma unroll
    for (int k = 0; k < GROUP; k++) store_scaled(dx, offset_in_group(0, k), n, held.first.pack[k], factor);
}

template <typename G>
__global__ void __launch_bounds__(BLOCK) cross_entropy_held_kernel(const CrossEntropyArgs o) {
    DYNAMIC_SHARED(smem);
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    int64_t row = blockIdx.x, vocab = o.vocab, target = o.targets[row];
    const float *x = (const float *)o.logits + row * vocab;
    if (target < 0) { /* the whole block */
        write_zeros(vocab, o.dlogits ? (G *)o.dlogits + row * vocab : NULL);
        write_losses(o, 0, 0);
        return;
    }
    Held held;
    held.shared = (Quad *)smem;
    LossRecord r;
    target -= o.splits.first;
    r.target = target >= 0 && target < vocab ? x[target] : 0;
    r.max = block_max(read_row(x, vocab, held), maxima);
    r.sum = block_sum(sum_row(x, vocab, r.max, held), sums);
    RowLoss l = loss_of(&r, 0, 1, 0, o.z);
    write_losses(o, l.loss, l.z_loss);
    if (!o.dlogits) return;
    G *dx = (G *)o.dlogits + row * vocab;
    write_row(x, vocab, r.max, factor_of(l, *o.scale), held, dx);
    bool is_mine = target >= 0 && target < vocab && target / FOUR % BLOCK == threadIdx.x;
    if (is_mine) store(dx, target, target_gradient(r.target, l, *o.scale));
}

/* ---- slots ---- */

int count_splits(Device *d, int64_t vocab, int64_t split_size) {
    int64_t count = blocks_of(vocab, split_size);
    if (count > SPLITS_MAX)
        cuda_fatal(d, "cross_entropy: %lld splits of the vocabulary; at most %d are done", (long long)count,
                   SPLITS_MAX);
    return (int)count;
}

void loss_records(Device *d, const LossRecordsArgs *o) {
    if (o->rows == 0) return;
    int64_t split_size = o->splits.split_size ? o->splits.split_size : o->vocab;
    Grid grid(o->rows, count_splits(d, o->vocab, split_size));
    BY_DTYPE(o->logits_type, T,
             LAUNCH(d, OP_LOSS_RECORDS, loss_records_kernel<T>, grid, BLOCK, 0, o->vocab,
                    (const T *)o->logits, o->targets, o->splits.first, split_size, o->records));
}

void cross_entropy(Device *d, const CrossEntropyArgs *o) {
    if (o->rows == 0) return;
    int64_t split_size = o->splits.split_size ? o->splits.split_size : o->vocab;
    int count = o->splits.records ? o->splits.count : count_splits(d, o->vocab, split_size);
    if (count == 1 && !o->splits.records && o->cap <= 0 && o->logits_type == DTYPE_F32) {
        int64_t groups = smaller(SHARED_GROUPS, blocks_of(o->vocab, GROUP_SIZE) - 1);
        size_t bytes = (size_t)(groups * GROUP_SIZE) * sizeof(float);
        BY_DTYPE(o->grad_type, G, auto kernel = cross_entropy_held_kernel<G>;
                 cuda_allow_shared(d, OP_CROSS_ENTROPY, (const void *)kernel, bytes);
                 LAUNCH(d, OP_CROSS_ENTROPY, kernel, o->rows, BLOCK, bytes, *o));
        return;
    }
    BY_DTYPE(o->logits_type, T,
             BY_DTYPE(o->grad_type, G, auto kernel = cross_entropy_kernel<T, G>;
                      LAUNCH(d, OP_CROSS_ENTROPY, kernel, o->rows, BLOCK, 0, *o, split_size, count)));
}

} // namespace

extern "C" void loss_fill(Ops *ops) {
    ops->loss_records = loss_records;
    ops->cross_entropy = cross_entropy;
}
