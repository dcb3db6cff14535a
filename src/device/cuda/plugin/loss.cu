/* Cross-entropy, and the records by which ranks with other parts of the vocabulary share it (vocab parallel).
 *
 * A block has a row. Exponentials are computed in fp32 and added in double. Thread i has packs (packs.cuh) i,
 * i + BLOCK, ... of a split, and the threads' sums are added in a fixed order. So the bits of a record depend
 * only on its split, whichever of the two ops makes it. */
#include "device/cuda/plugin/packs.cuh"

namespace {

constexpr int LEVELS = 7; /* 2^6 splits */
static_assert(SPLITS_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of leaves");

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

/* What the gradient of a row needs, computed from the records of all splits, which are `apart` records from
 * each other. share: the factor of the softmax that comes from the z-loss; 1 without it. */
struct RowLoss {
    float max, loss, z_loss;
    double sum, share;
};

INLINE RowLoss loss_of(const LossRecord *records, int64_t apart, int count, int64_t target_split, float z) {
    float most = -INFINITY;
    for (int i = 0; i < count; i++) most = fmaxf(most, records[i * apart].max);
    Tree<double, LEVELS> tree;
    for (int i = 0; i < count; i++)
        tree.add(records[i * apart].sum * exp((double)records[i * apart].max - (double)most));
    double sum = tree.sum(), whole = (double)most + log(sum);
    return {most, (float)(whole - (double)records[target_split * apart].target),
            (float)((double)z * whole * whole), sum, 1 + 2 * (double)z * whole};
}

/* The gradient is the exponentials times factor_of, except at the target, whose probability may be nearly 1:
 * there the difference is computed in double. */
INLINE float factor_of(RowLoss row, float scale) { return (float)((double)scale * row.share / row.sum); }
INLINE float target_gradient(float l, RowLoss row, float scale) {
    return (float)((exp((double)l - (double)row.max) / row.sum * row.share - 1) * (double)scale);
}

/* dx may be x: all threads have read what the row's loss needs before the first write. */
template <typename T, typename G>
INLINE void write_gradient(int64_t vocab, const T *x, int64_t target, RowLoss row, float scale, float cap,
                           G *dx) {
    constexpr int N = AT_ONCE<T, G>;
    float factor = factor_of(row, scale);
    for (int64_t at = threadIdx.x * N; at < vocab; at += BLOCK * N) {
        Pack<T, N> here = load_pack<N>(x, at, vocab);
        Pack<G, N> out = {};
#pragma unroll
        for (int i = 0; i < N; i++) {
            float l = get(here, i), slope = cap > 0 ? 1 - l / cap * (l / cap) : 1,
                  grad = expf(l - row.max) * factor;
            if (at + i == target) grad = target_gradient(l, row, scale);
            put(out, i, grad * slope);
        }
        store_pack(dx, at, vocab, out);
    }
}

/* The results of a row without a target. */
template <typename G> INLINE void no_loss(int64_t vocab, int64_t row, float *loss, float *z_loss, G *dx) {
    constexpr int N = AT_ONCE<G>;
    for (int64_t at = threadIdx.x * N; dx && at < vocab; at += BLOCK * N)
        store_pack(dx, at, vocab, Pack<G, N>{});
    if (threadIdx.x == 0) loss[row] = 0;
    if (threadIdx.x == 0 && z_loss) z_loss[row] = 0;
}

template <typename T, typename G>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_kernel(int64_t vocab, const T *logits, const int32_t *targets, VocabSplit splits,
                         int64_t split_size, int count, const float *scale, float cap, float z, float *loss,
                         float *z_loss, G *dlogits) {
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    SHARED(LossRecord, own, SPLITS_MAX);
    int64_t row = blockIdx.x, rows = gridDim.x, target = targets[row];
    const T *x = logits + row * vocab;
    G *dx = dlogits ? dlogits + row * vocab : NULL;
    if (target < 0) { /* the whole block */
        no_loss(vocab, row, loss, z_loss, dx);
        return;
    }
    for (int i = 0; i < count && !splits.records; i++) {
        int64_t start = i * split_size;
        LossRecord r = record_of(x + start, smaller(split_size, vocab - start), target - splits.first - start,
                                 maxima, sums);
        if (threadIdx.x == 0) own[i] = r;
    }
    __syncthreads();
    RowLoss r = splits.records ? loss_of(splits.records + row, rows, count, target / split_size, z)
                               : loss_of(own, 1, count, target / split_size, z);
    if (threadIdx.x == 0) loss[row] = r.loss;
    if (threadIdx.x == 0 && z_loss) z_loss[row] = r.z_loss;
    if (dx) write_gradient(vocab, x, target - splits.first, r, *scale, cap, dx);
}

/* ---- whole rows of fp32 without a cap ---- */

/* A thread takes packs of its row in groups. The first group stays in registers and the next SHARED_GROUPS
 * lie in shared memory, so that a row of 32,768 logits is read once; only the rest is read again in each
 * pass. The exponential of a logit that is held overwrites it, since the gradient needs nothing else. A
 * thread accesses only its own elements, in record_of's order. */
constexpr int FOUR = AT_ONCE<float>, GROUP = 8, SHARED_GROUPS = 3 /* 96 KiB */;
constexpr int64_t GROUP_SPAN = (int64_t)GROUP * BLOCK * FOUR; /* elements of a group, over all threads */
struct alignas(16) Quad {
    Pack<float, FOUR> pack;
};
struct Group {
    Pack<float, FOUR> pack[GROUP];
};

INLINE int64_t place_in_group(int64_t first, int k) {
    return first + (k * BLOCK + (int64_t)threadIdx.x) * FOUR;
}
/* Past the end it has -infinity, whose exponential is 0. */
INLINE Group load_group(const float *x, int64_t first, int64_t n) {
    Group g;
#pragma unroll
    for (int k = 0; k < GROUP; k++) g.pack[k] = load_pack<FOUR>(x, place_in_group(first, k), n);
    if (first + GROUP_SPAN <= n) return g;
#pragma unroll
    for (int k = 0; k < GROUP; k++)
#pragma unroll
        for (int i = 0; i < FOUR; i++)
            if (place_in_group(first, k) + i >= n) put(g.pack[k], i, -INFINITY);
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
INLINE int64_t held_end(int64_t n) { return smaller(n, (1 + SHARED_GROUPS) * GROUP_SPAN); }

INLINE float read_row(const float *x, int64_t n, Group &own, Quad *room) {
    own = load_group(x, 0, n);
    float most = group_max(own, -INFINITY);
    int64_t first = GROUP_SPAN;
    for (; first < held_end(n); first += GROUP_SPAN, room += GROUP * BLOCK) {
        Group g = load_group(x, first, n);
        most = group_max(g, most);
#pragma unroll
        for (int k = 0; k < GROUP; k++) room[k * BLOCK + (int)threadIdx.x].pack = g.pack[k];
    }
    for (; first < n; first += GROUP_SPAN) most = group_max(load_group(x, first, n), most);
    return most;
}

INLINE double sum_row(const float *x, int64_t n, float max, Group &own, Quad *room) {
    double sum = 0;
#pragma unroll
    for (int k = 0; k < GROUP; k++) {
        take_exponentials(own.pack[k], max);
        sum = add_exponentials(own.pack[k], sum);
    }
    int64_t first = GROUP_SPAN;
    for (; first < held_end(n); first += GROUP_SPAN, room += GROUP * BLOCK) {
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            Quad here = room[k * BLOCK + (int)threadIdx.x];
            take_exponentials(here.pack, max);
            room[k * BLOCK + (int)threadIdx.x] = here;
            sum = add_exponentials(here.pack, sum);
        }
    }
    for (; first < n; first += GROUP_SPAN) {
        Group g = load_group(x, first, n);
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            take_exponentials(g.pack[k], max);
            sum = add_exponentials(g.pack[k], sum);
        }
    }
    return sum;
}

/* The part that was read last comes first: it may still be in cache. */
template <typename G>
INLINE void write_row(const float *x, int64_t n, float max, float factor, const Group &own, const Quad *room,
                      G *dx) {
    for (int64_t first = held_end(n); first < n; first += GROUP_SPAN) {
        Group g = load_group(x, first, n);
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            take_exponentials(g.pack[k], max);
            store_scaled(dx, place_in_group(first, k), n, g.pack[k], factor);
        }
    }
    for (int64_t first = GROUP_SPAN; first < held_end(n); first += GROUP_SPAN, room += GROUP * BLOCK) {
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            store_scaled(dx, place_in_group(first, k), n, room[k * BLOCK + (int)threadIdx.x].pack, factor);
    }
#pragma unroll
    for (int k = 0; k < GROUP; k++) store_scaled(dx, place_in_group(0, k), n, own.pack[k], factor);
}

template <typename G>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_held_kernel(int64_t vocab, const float *logits, const int32_t *targets, int64_t begin,
                              const float *scale, float z, float *loss, float *z_loss, G *dlogits) {
    DYNAMIC_SHARED(room);
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    int64_t row = blockIdx.x, target = targets[row];
    const float *x = logits + row * vocab;
    G *dx = dlogits ? dlogits + row * vocab : NULL;
    if (target < 0) { /* the whole block */
        no_loss(vocab, row, loss, z_loss, dx);
        return;
    }
    Group own;
    LossRecord r;
    target -= begin;
    r.target = target >= 0 && target < vocab ? x[target] : 0;
    r.max = block_max(read_row(x, vocab, own, (Quad *)room), maxima);
    r.sum = block_sum(sum_row(x, vocab, r.max, own, (Quad *)room), sums);
    RowLoss l = loss_of(&r, 0, 1, 0, z);
    if (threadIdx.x == 0) loss[row] = l.loss;
    if (threadIdx.x == 0 && z_loss) z_loss[row] = l.z_loss;
    if (!dx) return;
    write_row(x, vocab, r.max, factor_of(l, *scale), own, (const Quad *)room, dx);
    bool is_own = target >= 0 && target < vocab && target / FOUR % BLOCK == threadIdx.x;
    if (is_own) store(dx, target, target_gradient(r.target, l, *scale));
}

/* ---- slots ---- */

int count_splits(Device *d, int64_t vocab, int64_t split_size) {
    int64_t count = blocks_of(vocab, split_size);
    if (count > SPLITS_MAX)
        cuda_fatal(d, "cross_entropy: %lld leaves of the vocabulary; at most %d are done", (long long)count,
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
        int64_t groups = smaller(SHARED_GROUPS, blocks_of(o->vocab, GROUP_SPAN) - 1);
        size_t room = (size_t)(groups * GROUP_SPAN) * sizeof(float);
        BY_DTYPE(o->grad_type, G, auto kernel = cross_entropy_held_kernel<G>;
                 cuda_allow_shared(d, OP_CROSS_ENTROPY, (const void *)kernel, room);
                 LAUNCH(d, OP_CROSS_ENTROPY, kernel, o->rows, BLOCK, room, o->vocab, (const float *)o->logits,
                        o->targets, o->splits.first, o->scale, o->z, o->loss, o->z_loss, (G *)o->dlogits));
        return;
    }
    BY_DTYPE(o->logits_type, T,
             BY_DTYPE(o->grad_type, G, auto kernel = cross_entropy_kernel<T, G>;
                      LAUNCH(d, OP_CROSS_ENTROPY, kernel, o->rows, BLOCK, 0, o->vocab, (const T *)o->logits,
                             o->targets, o->splits, split_size, count, o->scale, o->cap, o->z, o->loss,
                             o->z_loss, (G *)o->dlogits)));
}

} // namespace

extern "C" void loss_fill(Ops *ops) {
    ops->loss_records = loss_records;
    ops->cross_entropy = cross_entropy;
}
