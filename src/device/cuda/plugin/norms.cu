/* Norms of rows, and sums over tokens for the gradients of their weights and of biases.
 *
 * A warp has a row. Its lanes take packs of it round robin (packs.cuh), and their sums meet in a fixed
 * butterfly, so that a row's bits depend only on its length and type, not on its address. Sums over tokens
 * are cut into splits; within a split they are column sums (columns.cuh). */
#include "device/cuda/needs.h"
#include "device/cuda/plugin/columns.cuh"

namespace {

/* `count` rows of n elements: each token has `groups` of them, and tokens are `stride` elements apart. */
struct Rows {
    int64_t count, groups, stride, n;
};

INLINE int64_t row_at(Rows r, int64_t row) {
    if (r.groups == 1) return row * r.stride; /* avoids a 64-bit division, which is slow */
    return row / r.groups * r.stride + row % r.groups * r.n;
}
INLINE int64_t row_of_warp(void) { return element() / WARP; }
INLINE float weight_of(NormKind kind, float w) { return kind == NORM_RMS_PLUS_ONE ? w + 1 : w; }
/* NULL stands for ones. */
template <int N> INLINE Pack<float, N> load_weights(const float *w, int64_t first, int64_t n) {
    Pack<float, N> weights = {};
    if (w) return load_pack<N>(w, first, n);
#pragma unroll
    for (int i = 0; i < N; i++) put(weights, i, 1);
    return weights;
}

/* Runs the statement for each pack of a row of n elements that this lane has; it begins at `first`. */
#define EACH_PACK(N, n, first) for (int64_t first = lane() * (N); first < (n); first += WARP * (N))
/* The same for a row of type R; k is the index of the pack, a constant if registers hold the row. */
#define EACH_PACK_OF(R, n, k, first)                                                          \
    _Pragma("unroll") for (int64_t k = 0, first = lane() * R::N; k < R::PACKS && first < (n); \
                           k++, first += R::STEP)

/* A row whose packs are read from memory each time. */
template <typename T> struct RowInMemory {
    static constexpr int N = AT_ONCE<T>, STEP = WARP * N, PACKS = INT32_MAX;
    const T *at;
    INLINE Pack<T, N> pack(int64_t, int64_t first, int64_t n) const { return load_pack<N>(at, first, n); }
};
template <typename T> INLINE RowInMemory<T> in_memory(const T *at) { return {at}; }

/* A row of at most PACKS * STEP elements, held in registers. All its loads are in flight at once. */
template <typename T, int PACKS_> struct RowInRegisters {
    static constexpr int N = AT_ONCE<T>, STEP = WARP * N, PACKS = PACKS_;
    Pack<T, N> packs[PACKS];
    INLINE Pack<T, N> pack(int64_t k, int64_t, int64_t) const { return packs[k]; }
    INLINE void load(const T *at, int64_t n) {
#pragma unroll
        for (int k = 0; k < PACKS; k++) packs[k] = load_pack<N>(at, k * STEP + lane() * N, n);
    }
};

template <typename R> INLINE float row_mean(NormKind kind, const R &x, int64_t n) {
    constexpr int N = R::N;
    if (kind != NORM_LAYER) return 0;
    float sum = 0;
    EACH_PACK_OF(R, n, k, first) {
        auto here = x.pack(k, first, n);
#pragma unroll
        for (int i = 0; i < N; i++) sum += get(here, i);
    }
    return lanes_sum(sum, WARP) / (float)n;
}

template <typename R> INLINE float row_rstd(const R &x, int64_t n, float mean, float eps) {
    constexpr int N = R::N;
    float squares = 0;
    EACH_PACK_OF(R, n, k, first) {
        auto here = x.pack(k, first, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float centred = first + i < n ? get(here, i) - mean : 0;
            squares = FUSED(centred, centred, squares);
        }
    }
    return 1 / sqrtf(lanes_sum(squares, WARP) / (float)n + eps);
}

/* The norm of a row of n elements, with its figures. */
struct Norm {
    NormKind kind;
    int64_t n;
    const float *w;
    float mean, rstd;
};

/* Writes y of one row; bias may be NULL. */
template <typename R, typename T> INLINE void write_normed(Norm m, const R &x, const float *bias, T *y) {
    constexpr int N = R::N;
    EACH_PACK_OF(R, m.n, k, first) {
        auto here = x.pack(k, first, m.n);
        Pack<float, N> weights = load_weights<N>(m.w, first, m.n), more = {};
        if (bias) more = load_pack<N>(bias, first, m.n);
#pragma unroll
        for (int i = 0; i < N; i++)
            put(here, i,
                (get(here, i) - m.mean) * m.rstd * weight_of(m.kind, get(weights, i)) + get(more, i));
        store_pack(y, first, m.n, here);
    }
}

/* The sum is rounded to T before the norm, since the backward pass reads the rounded one. sum may alias a. */
template <typename T> __global__ void __launch_bounds__(BLOCK) norm_forward_kernel(const NormForwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    int64_t row = row_of_warp(), n = o.hidden, at = row * n;
    if (row >= o.tokens) return;
    const T *a = (const T *)o.a, *b = (const T *)o.b;
    T *sum = (T *)o.sum;
    const T *x = sum ? sum + at : a + at;
    EACH_PACK(N, sum ? n : 0, first) {
        Pack<T, N> here = load_pack<N>(a + at, first, n), more = {};
        if (b) more = load_pack<N>(b + at, first, n);
#pragma unroll
        for (int i = 0; i < N; i++) put(here, i, get(here, i) + get(more, i));
        store_pack(sum + at, first, n, here);
    }
    auto sums = in_memory(x);
    float mean = row_mean(o.kind, sums, n), rstd = row_rstd(sums, n, mean, o.eps);
    if (lane() == 0) o.rstd[row] = rstd;
    if (o.y) write_normed({o.kind, n, o.w, mean, rstd}, sums, o.bias, (T *)o.y + at);
}

/* The same for rows that registers hold. */
template <typename T, int PACKS>
__global__ void __launch_bounds__(BLOCK) norm_held_kernel(const NormForwardArgs o) {
    using R = RowInRegisters<T, PACKS>;
    int64_t row = row_of_warp(), n = o.hidden, at = row * n;
    if (row >= o.tokens) return;
    R x, more = {};
    x.load((const T *)o.a + at, n);
    if (o.b && o.sum) more.load((const T *)o.b + at, n);
    EACH_PACK_OF(R, o.sum ? n : 0, k, first) {
#pragma unroll
        for (int i = 0; i < R::N; i++) put(x.packs[k], i, get(x.packs[k], i) + get(more.packs[k], i));
        store_pack((T *)o.sum + at, first, n, x.packs[k]);
    }
    Norm m = {o.kind, n, o.w, row_mean(o.kind, x, n), 0};
    m.rstd = row_rstd(x, n, m.mean, o.eps);
    if (lane() == 0) o.rstd[row] = m.rstd;
    if (o.y) write_normed(m, x, o.bias, (T *)o.y + at);
}

/* Where the gradient of a row goes. If `add`, it is added to `old`, which is dx before the op. */
template <typename R, typename T> struct Target {
    T *dx;
    const R &old;
    bool add;
};
/* Means over a row of g normed, and of g, the gradient of a normed element. */
struct GradientMeans {
    float along, middle;
};

/* dx = r (g - mean(g) [of LayerNorm] - normed mean(g normed)), g = dy w'. dx may be dy, since the butterfly
 * separates the last read of any lane from the first write of any lane. */
template <typename R, typename T>
INLINE void write_gradient_by(Norm m, GradientMeans g, const R &x, const R &dy, Target<R, T> to) {
    constexpr int N = R::N;
    EACH_PACK_OF(R, m.n, k, first) {
        Pack<T, N> here = x.pack(k, first, m.n), grad = dy.pack(k, first, m.n), before = {};
        Pack<float, N> weights = load_weights<N>(m.w, first, m.n);
        if (to.add) before = to.old.pack(k, first, m.n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float normed = (get(here, i) - m.mean) * m.rstd;
            float v =
                m.rstd * (get(grad, i) * weight_of(m.kind, get(weights, i)) - g.middle - normed * g.along);
            put(grad, i, to.add ? get(before, i) + v : v);
        }
        store_pack(to.dx, first, m.n, grad);
    }
}

template <typename R, typename T>
INLINE void write_gradient(Norm m, const R &x, const R &dy, Target<R, T> to) {
    constexpr int N = R::N;
    float along = 0, middle = 0;
    EACH_PACK_OF(R, m.n, k, first) {
        Pack<T, N> here = x.pack(k, first, m.n), grad = dy.pack(k, first, m.n);
        Pack<float, N> weights = load_weights<N>(m.w, first, m.n);
#pragma unroll
        for (int i = 0; i < N; i++) { /* past the end the gradient is zero */
            float g = get(grad, i) * weight_of(m.kind, get(weights, i));
            along = FUSED(g, (get(here, i) - m.mean) * m.rstd, along);
            if (m.kind == NORM_LAYER) middle += g;
        }
    }
    along = lanes_sum(along, WARP) / (float)m.n;
    middle = lanes_sum(middle, WARP) / (float)m.n;
    write_gradient_by(m, {along, middle}, x, dy, to);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) norm_backward_kernel(const NormBackwardArgs o) {
    int64_t row = row_of_warp(), n = o.hidden, at = row * n;
    if (row >= o.tokens) return;
    auto x = in_memory((const T *)o.x + at), dy = in_memory((const T *)o.dy + at),
         old = in_memory((const T *)o.dx + at);
    Norm m = {o.kind, n, o.w, row_mean(o.kind, x, n), o.rstd[row]};
    write_gradient<RowInMemory<T>, T>(m, x, dy, {(T *)o.dx + at, old, o.add});
}

/* Partial sums over flat rows of queries or of keys, of which each rank may have some heads (QkRows). All
 * ranks' `count` splits are here, `step` floats apart. Within a split each token has two floats: of queries,
 * of keys. n: the elements of an unsharded row. With count 0 the kernels compute the sums themselves. */
struct RowSplits {
    int count;
    int64_t step, n;
    const float *squares, *products;
};

constexpr int LEVELS = 7; /* 2^6 splits */
static_assert(SPLITS_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of splits");

INLINE float partials_sum(RowSplits l, const float *sums, int64_t row) {
    Tree<float, LEVELS> tree;
    for (int i = 0; i < l.count; i++) tree.add(sums[i * l.step + 2 * row]);
    return tree.sum();
}

template <typename T> INLINE float head_rstd(RowSplits l, int64_t row, const T *x, int64_t n, float eps) {
    if (l.count == 0) return row_rstd(in_memory(x), n, 0, eps);
    return 1 / sqrtf(partials_sum(l, l.squares, row) / (float)l.n + eps);
}

/* The norm of all rows of queries, or of keys, which begin `at` elements after the start of a token. */
struct Heads {
    NormKind kind;
    float eps;
    const float *w;
    int64_t at;
    Rows r;
    RowSplits l;
};

template <typename T> __global__ void head_norm_kernel(Heads h, const T *raw, T *out) {
    int64_t row = row_of_warp();
    if (row >= h.r.count) return;
    int64_t at = h.at + row_at(h.r, row);
    float rstd = head_rstd(h.l, row, raw + at, h.r.n, h.eps);
    write_normed({h.kind, h.r.n, h.w, 0, rstd}, in_memory(raw + at), NULL, out + at);
}

/* A warp has a split of a token's row. With dy it sums x dy w', else squares. Each token has two sums: of
 * queries, of keys. */
template <typename T>
__global__ void head_sums_kernel(Heads h, int64_t count, const T *x, const T *dy, float *sums) {
    int64_t number = row_of_warp(), token = number % h.r.count, split = number / h.r.count;
    if (split >= count) return;
    constexpr int N = AT_ONCE<T>;
    int64_t n = h.r.n, at = h.at + token * h.r.stride + split * n;
    float sum = 0;
    EACH_PACK(N, n, first) {
        Pack<T, N> here = load_pack<N>(x + at, first, n), grad = {};
        Pack<float, N> weights = {};
        if (dy) grad = load_pack<N>(dy + at, first, n), weights = load_pack<N>(h.w + split * n, first, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float v = get(here, i);
            sum = FUSED(v, dy ? get(grad, i) * weight_of(h.kind, get(weights, i)) : v, sum);
        }
    }
    sum = lanes_sum(sum, WARP);
    if (lane() == 0) sums[2 * number] = sum;
}

template <typename T>
__global__ void head_gradient_kernel(Heads h, const T *raw, const float *rstd, T *grad) {
    int64_t row = row_of_warp();
    if (row >= h.r.count) return;
    int64_t at = h.at + row_at(h.r, row);
    auto here = in_memory(raw + at), dy = in_memory((const T *)grad + at);
    Norm m = {h.kind, h.r.n, h.w, 0, rstd[row]};
    Target<RowInMemory<T>, T> to = {grad + at, dy, false};
    if (h.l.count == 0) {
        write_gradient(m, here, dy, to);
        return;
    }
    float along = partials_sum(h.l, h.l.products, row) * m.rstd / (float)h.l.n;
    write_gradient_by(m, {along, 0}, here, dy, to);
}

/* rstds from the sums of splits. */
__global__ void splits_rstd_kernel(int64_t rows, RowSplits l, float eps, float *rstds) {
    int64_t row = element();
    if (row < rows) rstds[row] = 1 / sqrtf(partials_sum(l, l.squares, row) / (float)l.n + eps);
}

/* Means and rstds of rows; either may be NULL. */
template <typename T>
__global__ void row_figures_kernel(NormKind kind, Rows r, float eps, const T *x, float *means, float *rstds) {
    int64_t row = row_of_warp();
    if (row >= r.count) return;
    auto at = in_memory(x + row_at(r, row));
    float mean = row_mean(kind, at, r.n), rstd = rstds ? row_rstd(at, r.n, mean, eps) : 0;
    if (lane() == 0 && means) means[row] = mean;
    if (lane() == 0 && rstds) rstds[row] = rstd;
}

/* The values of a token follow its queries and keys, and are not normed. */
template <typename T>
__global__ void copy_values_kernel(int64_t tokens, int64_t values, int64_t wide, const T *raw, T *out) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(values);
    if (at.row >= tokens) return;
    int64_t begin = at.row * wide + wide - values;
    store_pack(out + begin, at.column, values, load_pack<N>(raw + begin, at.column, values));
}

constexpr int AHEAD = 2; /* rows that a thread loads before it adds any */

/* What is summed over rows: dy, or, if x is given, dy (x - mean) rstd. means may be NULL. */
template <typename T> struct Summands {
    const T *dy, *x;
    const float *means, *rstds;
};
/* sums[split, i] += the sum over the split's rows. blockIdx.x: the split, blockIdx.y: columns. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    column_sums_kernel(Rows r, int64_t rows_of_split, Summands<T> of, float *sums) {
    constexpr int N = AT_ONCE<T>;
    SHARED(float, smem, COLUMN_SMEM<T>);
    int64_t column = first_column<T>(), begin = blockIdx.x * rows_of_split,
            end = smaller(r.count, begin + rows_of_split);
    float sum[N] = {};
    for (int64_t row = begin + threadIdx.y; row < end && column < r.n; row += AHEAD * DOWN<T>) {
        Pack<T, N> grad[AHEAD], here[AHEAD];
        float mean[AHEAD], rstd[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int64_t one = row + k * DOWN<T>, at = row_at(r, one), stop = one < end ? r.n : 0;
            bool there = of.x && stop;
            grad[k] = load_pack<N>(of.dy + at, column, stop);
            here[k] = of.x ? load_pack<N>(of.x + at, column, stop) : Pack<T, N>{};
            mean[k] = there && of.means ? of.means[one] : 0, rstd[k] = there ? of.rstds[one] : 1;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                float more = FUSED(get(grad[k], i), of.x ? (get(here[k], i) - mean[k]) * rstd[k] : 1, sum[i]);
                sum[i] = row + k * DOWN<T> < end ? more : sum[i];
            }
    }
    add_to_columns<T>(sum, r.n, smem, sums + blockIdx.x * r.n);
}

/* ---- gradients of rows and of weights in one pass ---- */

/* The rows of a split form DOWN<T> chains, assigned round robin, the same as in column_sums_kernel, so
 * that both give the same bits. A block has `together` adjacent chains, and takes a tile of rows at a
 * time: the next rows of each of its chains, one for each warp. A warp computes the gradient of a row and
 * leaves the row in shared memory; then threads add up columns, in the order of rows. A block has only one
 * chain, or only one tile. */
struct Chains {
    int64_t tokens, split_size, count; /* count: chains of a split */
    int together;
};

template <typename T, int PACKS> struct Tile {
    static constexpr int N = AT_ONCE<T>, WARPS = 32 / PACKS, HALVES = 2 * PACKS * WARP, EACH = N / 2,
                         SUMS = HALVES / (WARPS * WARP); /* half packs of a row; of a thread */
};

/* Words of a pack lie WARP words apart, to avoid bank conflicts between lanes. */
template <typename R> INLINE void stage_row(uint32_t *smem, const R &x, int64_t n) {
    EACH_PACK_OF(R, n, k, first) {
#pragma unroll
        for (int w = 0; w < 4; w++) smem[(k * 4 + w) * WARP + lane()] = x.packs[k].word[w];
    }
}
template <typename T> INLINE Pack<T, AT_ONCE<T> / 2> staged_half(const uint32_t *smem, int half) {
    const uint32_t *at = smem + half / WARP * 2 * WARP + lane();
    return {{at[0], at[WARP]}};
}

/* partials[chain, i] = the sum over the chain's rows of dy normed; and dx, as in norm_backward_kernel. */
template <typename T, int PACKS>
__global__ void __launch_bounds__(32 / PACKS * WARP)
    norm_gradients_kernel(const NormBackwardArgs o, Chains c, float *partials) {
    using R = RowInRegisters<T, PACKS>;
    using S = Tile<T, PACKS>;
    const T *x = (const T *)o.x, *dy = (const T *)o.dy;
    T *dx = (T *)o.dx;
    int64_t n = o.hidden;
    constexpr int WORDS = 2 * S::HALVES, EACH = S::EACH;
    SHARED(uint32_t, smem, S::WARPS * 2 * WORDS);
    SHARED(float, means, S::WARPS);
    SHARED(float, factors, S::WARPS);
    int down = S::WARPS / c.together, warp = (int)threadIdx.x / WARP;
    int64_t blocks = (c.count + c.together - 1) / c.together, number = blockIdx.x / blocks,
            chain = blockIdx.x % blocks * c.together, begin = number * c.split_size,
            end = smaller(c.tokens, begin + c.split_size), step = (int64_t)down * DOWN<T>;
    int64_t row = begin + chain + warp / down + warp % down * DOWN<T>;
    float sum[S::SUMS][EACH] = {};
    R here = {}, grad = {}, old = {};
    if (row < end) here.load(x + row * n, n), grad.load(dy + row * n, n);
    if (row < end && o.add) old.load(dx + row * n, n);
    for (int64_t top = begin + chain; top < end; top += step, row += step) {
        if (row < end) {
            Norm m = {o.kind, n, o.w, row_mean(o.kind, here, n), o.rstd[row]};
            stage_row(smem + 2 * warp * WORDS, here, n), stage_row(smem + (2 * warp + 1) * WORDS, grad, n);
            if (lane() == 0) means[warp] = m.mean, factors[warp] = m.rstd;
            write_gradient<R, T>(m, here, grad, {dx + row * n, old, o.add});
        }
        __syncthreads();
        int64_t next = row + step;
        if (next < end) here.load(x + next * n, n), grad.load(dy + next * n, n);
        if (next < end && o.add) old.load(dx + next * n, n);
#pragma unroll
        for (int s = 0; s < S::SUMS; s++) {
            int half = s * S::WARPS * WARP + (int)threadIdx.x;
            int64_t column = (half / (2 * WARP) * WARP + lane()) * S::N + half / WARP % 2 * EACH;
            for (int one = 0; one < c.together && column < n && top + one < end; one++) {
                for (int j = 0; j < down && top + one + j * DOWN<T> < end; j++) {
                    int r = one * down + j;
                    auto a = staged_half<T>(smem + 2 * r * WORDS, half),
                         g = staged_half<T>(smem + (2 * r + 1) * WORDS, half);
#pragma unroll
                    for (int i = 0; i < EACH; i++)
                        sum[s][i] = FUSED(get(g, i), (get(a, i) - means[r]) * factors[r], sum[s][i]);
                }
                if (top + step < end) continue;
                Pack<float, EACH> sums = {};
#pragma unroll
                for (int i = 0; i < EACH; i++) put(sums, i, sum[s][i]), sum[s][i] = 0;
                store_pack(partials + (number * c.count + chain + one) * n, column, n, sums);
            }
        }
        __syncthreads();
    }
}

/* sums[split, i] += the sum of the split's chains, in the tree of column_sums_kernel. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    fold_chains_kernel(Chains c, int64_t n, const float *partials, float *sums) {
    SHARED(float, smem, COLUMN_SMEM<T>);
    constexpr int FOUR = AT_ONCE<float>;
    int number = (int)threadIdx.x, mine = number * FOUR;
    int64_t begin = blockIdx.x * c.split_size, rows = smaller(c.tokens, begin + c.split_size) - begin,
            first = (int64_t)blockIdx.y * COLUMNS, column = first + number;
#pragma unroll
    for (int i = 0; i < COLUMN_SMEM<T>; i += THREADS * FOUR) {
        int chain = (i + mine) / COLUMNS;
        auto sum = load_pack<FOUR>(partials + (blockIdx.x * c.count + chain) * n, first + mine % COLUMNS,
                                   chain < rows ? n : 0);
#pragma unroll
        for (int k = 0; k < FOUR; k++) smem[i + mine + k] = get(sum, k);
    }
    fold_rows(smem, DOWN<T>, number);
    if (number < COLUMNS && column < n) sums[blockIdx.x * n + column] += smem[number];
}

/* ---- slots ---- */

/* Runs the statement with PACKS the packs of a lane in a row of n elements if registers hold
 * them, else `more`. */
#define BY_PACKS(T, n, PACKS, more, ...)                    \
    do {                                                    \
        if ((n) <= 4 * RowInRegisters<T, 4>::STEP) {        \
            constexpr int PACKS = 4;                        \
            __VA_ARGS__;                                    \
        } else if ((n) <= 8 * RowInRegisters<T, 8>::STEP) { \
            constexpr int PACKS = 8;                        \
            __VA_ARGS__;                                    \
        } else {                                            \
            more;                                           \
        }                                                   \
    } while (0)

int64_t blocks_of_rows(int64_t rows) { return blocks_of(rows, BLOCK / WARP); }

template <typename T>
void add_columns(Device *d, OpId op, Rows r, int64_t rows_of_split, Summands<T> of, float *sums) {
    Grid grid(blocks_of(r.count, rows_of_split), blocks_of(r.n, COLUMNS));
    LAUNCH(d, op, column_sums_kernel<T>, grid, block_of_columns<T>(), 0, r, rows_of_split, of, sums);
}

void norm_forward(Device *d, const NormForwardArgs *o) {
    if (o->tokens == 0) return;
    int64_t blocks = blocks_of_rows(o->tokens);
    BY_DTYPE(o->c, T,
             BY_PACKS(T, o->hidden, PACKS,
                      LAUNCH(d, OP_NORM_FORWARD, norm_forward_kernel<T>, blocks, BLOCK, 0, *o),
                      auto kernel = norm_held_kernel<T, PACKS>;
                      LAUNCH(d, OP_NORM_FORWARD, kernel, blocks, BLOCK, 0, *o)));
}

/* LayerNorm's column sums need the means of rows, which lie in scratch. */
template <typename T> void norm_weights(Device *d, const NormBackwardArgs *o, Rows r) {
    const T *x = (const T *)o->x, *dy = (const T *)o->dy;
    float *means = NULL;
    if (o->kind == NORM_LAYER) {
        means = (float *)cuda_scratch(d, (size_t)r.count * sizeof *means);
        LAUNCH(d, OP_NORM_BACKWARD, row_figures_kernel<T>, blocks_of_rows(r.count), BLOCK, 0, o->kind, r, 0,
               x, means, (float *)NULL);
    }
    add_columns<T>(d, OP_NORM_BACKWARD, r, o->split_size, {dy, x, means, o->rstd}, o->dw);
}

template <typename T> void norm_in_two(Device *d, const NormBackwardArgs *o) {
    if (o->dw) norm_weights<T>(d, o, {o->tokens, 1, o->hidden, o->hidden});
    LAUNCH(d, OP_NORM_BACKWARD, norm_backward_kernel<T>, blocks_of_rows(o->tokens), BLOCK, 0, *o);
}

/* In one pass over the rows; the sums of chains lie in scratch. */
template <typename T, int PACKS> void norm_in_one(Device *d, const NormBackwardArgs *o, Chains c) {
    int64_t splits = blocks_of(c.tokens, c.split_size),
            most = blocks_of(smaller(c.tokens, c.split_size), DOWN<T>);
    int warps = Tile<T, PACKS>::WARPS, down = 1;
    while (down < warps && down < most) down *= 2;
    c.together = warps / down;
    float *partials = (float *)cuda_scratch(d, (size_t)(splits * c.count * o->hidden) * sizeof *partials);
    auto kernel = norm_gradients_kernel<T, PACKS>;
    LAUNCH(d, OP_NORM_BACKWARD, kernel, splits * blocks_of(c.count, c.together), warps * WARP, 0, *o, c,
           partials);
    LAUNCH(d, OP_NORM_BACKWARD, fold_chains_kernel<T>, Grid(splits, blocks_of(o->hidden, COLUMNS)), THREADS,
           0, c, o->hidden, partials, o->dw);
}

/* Both ways give the same bits. The scratch of any plan has at least cuda_products_workspace bytes, which are
 * enough except for very many splits. */
template <typename T> void norm_gradients(Device *d, const NormBackwardArgs *o) {
    Chains c = {o->tokens, o->split_size, smaller(DOWN<T>, smaller(o->tokens, o->split_size)), 1};
    int64_t needed = blocks_of(o->tokens, o->split_size) * c.count * o->hidden * (int64_t)sizeof(float);
    if (!o->dw || needed > (int64_t)cuda_products_workspace())
        norm_in_two<T>(d, o);
    else
        BY_PACKS(T, o->hidden, PACKS, norm_in_two<T>(d, o), norm_in_one<T, PACKS>(d, o, c));
}

void norm_backward(Device *d, const NormBackwardArgs *o) {
    if (o->tokens == 0) return;
    BY_DTYPE(o->c, T, norm_gradients<T>(d, o));
}

void bias_backward(Device *d, const BiasBackwardArgs *o) {
    if (o->tokens == 0) return;
    Rows r = {o->tokens, 1, o->n, o->n};
    BY_DTYPE(o->c, T, Summands<T> of = {(const T *)o->dy, NULL, NULL, NULL};
             add_columns(d, OP_BIAS_BACKWARD, r, o->split_size, of, o->db));
}

int64_t row_of_qkv(AttentionShape s) { return (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim; }

/* Rows of queries, or of keys. */
Rows head_rows(AttentionShape s, bool flat, bool keys) {
    int64_t heads = keys ? s.kv_heads : s.heads, groups = flat ? 1 : heads;
    return {s.tokens * groups, groups, row_of_qkv(s), heads * s.head_dim / groups};
}
int64_t first_of_rows(AttentionShape s, bool keys) { return keys ? (int64_t)s.heads * s.head_dim : 0; }

RowSplits row_splits(QkRows q, bool keys) {
    if (q.splits == 0) return {0, 0, 0, NULL, NULL};
    return {q.splits, 2 * q.tokens, keys ? q.keys : q.queries, q.squares + keys,
            q.products ? q.products + keys : NULL};
}

/* Args: of the forward or of the backward pass. */
template <typename Args> Heads heads_of(const Args *o, bool keys) {
    return {o->kind,
            o->eps,
            keys ? o->wk : o->wq,
            first_of_rows(o->s, keys),
            head_rows(o->s, o->rows.flat, keys),
            row_splits(o->rows, keys)};
}

template <typename T> void norm_heads(Device *d, const QkNormForwardArgs *o) {
    const T *raw = (const T *)o->raw;
    T *out = (T *)o->out;
    int64_t values = (int64_t)o->s.kv_heads * o->s.head_dim;
    LAUNCH(d, OP_QK_NORM_FORWARD, copy_values_kernel<T>, blocks_of_packs<AT_ONCE<T>>(o->s.tokens, values),
           BLOCK, 0, o->s.tokens, values, row_of_qkv(o->s), raw, out);
    for (int keys = 0; keys < 2; keys++) {
        Heads h = heads_of(o, keys);
        LAUNCH(d, OP_QK_NORM_FORWARD, head_norm_kernel<T>, blocks_of_rows(h.r.count), BLOCK, 0, h, raw, out);
    }
}

void qk_norm_forward(Device *d, const QkNormForwardArgs *o) {
    if (o->s.tokens == 0) return;
    BY_DTYPE(o->c, T, norm_heads<T>(d, o));
}

template <typename T> void head_rstds(Device *d, const Heads &h, const T *raw, float *rstds) {
    if (h.l.count > 0)
        LAUNCH(d, OP_QK_NORM_BACKWARD, splits_rstd_kernel, blocks_of(h.r.count, BLOCK), BLOCK, 0, h.r.count,
               h.l, h.eps, rstds);
    else
        LAUNCH(d, OP_QK_NORM_BACKWARD, row_figures_kernel<T>, blocks_of_rows(h.r.count), BLOCK, 0, h.kind,
               h.r, h.eps, raw + h.at, (float *)NULL, rstds);
}

/* The weights' gradients come first, since the rows' gradients overwrite what they are computed from. */
template <typename T> void norm_heads_backward(Device *d, const QkNormBackwardArgs *o) {
    const T *raw = (const T *)o->raw;
    T *dqkv = (T *)o->dqkv;
    for (int keys = 0; keys < 2; keys++) {
        Heads h = heads_of(o, keys);
        float *rstds = (float *)cuda_scratch(d, (size_t)h.r.count * sizeof *rstds);
        int64_t count = !h.w ? 0 : h.r.groups < o->splits ? h.r.groups : o->splits;
        for (int64_t i = 0; i < count; i++) { /* each run of heads by itself */
            Heads split = h;
            split.r.count /= count, split.r.groups /= count, split.at += i * split.r.groups * split.r.n;
            head_rstds(d, split, raw, rstds);
            add_columns<T>(d, OP_QK_NORM_BACKWARD, split.r, split.r.count,
                           {dqkv + split.at, raw + split.at, NULL, rstds},
                           (keys ? o->dwk : o->dwq) + i * (o->splits / count) * split.r.n);
        }
        if (count != 1) head_rstds(d, h, raw, rstds);
        LAUNCH(d, OP_QK_NORM_BACKWARD, head_gradient_kernel<T>, blocks_of_rows(h.r.count), BLOCK, 0, h, raw,
               rstds, dqkv);
    }
}

void qk_norm_backward(Device *d, const QkNormBackwardArgs *o) {
    if (o->s.tokens == 0) return;
    BY_DTYPE(o->c, T, norm_heads_backward<T>(d, o));
}

template <typename T> void sum_heads(Device *d, const QkNormSumsArgs *o) {
    const T *raw = (const T *)o->raw, *dqkv = (const T *)o->dqkv;
    for (int keys = 0; keys < 2; keys++) {
        int64_t first = o->splits.run[keys].skip, n = o->splits.run[keys].split_size,
                count = blocks_of(o->splits.run[keys].length, n);
        Heads h = {o->kind,
                   0,
                   (keys ? o->wk : o->wq) + first,
                   first_of_rows(o->s, keys) + first,
                   head_rows(o->s, true, keys),
                   {}};
        h.r.n = n;
        LAUNCH(d, OP_QK_NORM_SUMS, head_sums_kernel<T>, blocks_of_rows(count * o->s.tokens), BLOCK, 0, h,
               count, raw, dqkv, o->sums + keys);
    }
}

void qk_norm_sums(Device *d, const QkNormSumsArgs *o) {
    if (o->s.tokens == 0) return;
    BY_DTYPE(o->c, T, sum_heads<T>(d, o));
}

} // namespace

extern "C" void norms_fill(Ops *ops) {
    ops->norm_forward = norm_forward;
    ops->norm_backward = norm_backward;
    ops->qk_norm_forward = qk_norm_forward;
    ops->qk_norm_backward = qk_norm_backward;
    ops->qk_norm_sums = qk_norm_sums;
    ops->bias_backward = bias_backward;
}
