/* Experts: routing, and ops on rows that are sorted by expert.
 *
 * Only the GPU knows how many rows an expert has. Grids therefore cover the maximum, and blocks look up
 * which expert and rows they have. Products are fp32 chains along the inner dimension in ascending order,
 * whatever tile a row lies in. Assignments and row indices are integers and equal the CPU's; so do the bits
 * of combined rows. */
#include "device/cuda/plugin/columns.cuh"

namespace {

/* ---- routing ---- */

constexpr uint64_t TAKEN = 0;

/* A sort key: larger for larger logits, and among equal ones for lower experts; never 0, which is none. NaN
 * is smaller than any number. */
INLINE uint64_t order_of(float logit, int expert) {
    uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit),
             below = (uint32_t)(0xffffffffu - (unsigned)expert);
    uint32_t order = logit != logit ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)order << 32 | below;
}
INLINE int expert_of(uint64_t order) { return (int)(0xffffffffu - (uint32_t)order); }

INLINE uint64_t block_most(uint64_t x, uint64_t *smem) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        uint64_t other = __shfl_xor_sync(0xffffffffu, x, offset);
        if (other > x) x = other;
    }
    if (lane() == 0) smem[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < BLOCK / WARP; i++)
        if (smem[i] > x) x = smem[i];
    __syncthreads();
    return x;
}

INLINE double chosen_sum(RouteShape s, const float *scores, const int32_t *chosen) {
    double sum = s.sigmoid ? 1e-20 : 0;
    for (int i = 0; i < s.chosen; i++) sum += (double)scores[chosen[i]];
    return sum;
}

INLINE double factor_of(RouteShape s) { return s.factor > 0 ? (double)s.factor : 1; }

/* The value by which experts are chosen. */
INLINE float key_of(RouteShape s, const float *scores, int e) {
    return s.bias ? scores[e] + s.bias[e] : scores[e];
}

/* The value of a group: its largest key, or the sum of its two largest. A NaN counts as none. */
INLINE float group_key(RouteShape s, const float *scores, int group) {
    float first = -INFINITY, second = -INFINITY;
    int size = s.experts / s.groups;
    for (int e = group * size; e < (group + 1) * size; e++) {
        float key = key_of(s, scores, e);
        if (key > first)
            second = first, first = key;
        else if (key > second)
            second = key;
    }
    return s.sigmoid ? first + second : first;
}

/* Marks experts of groups that are not chosen as taken. There are few groups, so one thread
 * chooses among them. */
INLINE void close_groups(RouteShape s, const float *scores, float *keys, unsigned char *taken) {
    int size = s.experts / s.groups;
    for (int g = (int)threadIdx.x; g < s.groups; g += BLOCK) keys[g] = group_key(s, scores, g);
    for (int e = (int)threadIdx.x; e < s.experts; e += BLOCK) taken[e] = 1;
    __syncthreads();
    for (int i = 0; i < s.groups_chosen && threadIdx.x == 0; i++) {
        uint64_t best = TAKEN;
        for (int g = 0; g < s.groups; g++) {
            uint64_t order = taken[g * size] ? order_of(keys[g], g) : TAKEN;
            if (order > best) best = order;
        }
        for (int e = 0; e < size; e++) taken[expert_of(best) * size + e] = 0;
    }
    __syncthreads();
}

INLINE void block_softmax(int n, float *x, float *maxima, double *sums) {
    float most = -INFINITY;
    double sum = 0;
    for (int e = (int)threadIdx.x; e < n; e += BLOCK) most = fmaxf(most, x[e]);
    most = block_max(most, maxima);
    for (int e = (int)threadIdx.x; e < n; e += BLOCK) sum += exp((double)x[e] - (double)most);
    sum = block_sum(sum, sums);
    for (int e = (int)threadIdx.x; e < n; e += BLOCK) x[e] = (float)(exp((double)x[e] - (double)most) / sum);
}

INLINE float sigmoid(float x) { return (float)(1 / (1 + exp(-(double)x))); }

/* A block has a token. Its experts are found one after another, then sorted ascending. They are chosen by
 * logits, whose order is that of scores (but for unequal logits with equal scores), or by scores where
 * sigmoids meet a bias or groups. */
__global__ void __launch_bounds__(BLOCK) route_kernel(RouteShape s, Routes r) {
    DYNAMIC_SHARED(smem);
    SHARED(uint64_t, orders, BLOCK / WARP);
    SHARED(float, maxima, BLOCK / WARP);
    SHARED(double, sums, BLOCK / WARP);
    int32_t *found = (int32_t *)smem;
    float *group_keys = (float *)(found + s.chosen);
    unsigned char *taken = (unsigned char *)(group_keys + (s.groups > 1 ? s.groups : 0));
    int64_t t = blockIdx.x;
    bool first = s.sigmoid && (s.bias || s.groups > 1);
    float *scores = r.scores + t * s.experts;
    int32_t *chosen = r.chosen + t * s.chosen;
    for (int e = (int)threadIdx.x; e < s.experts; e += BLOCK) {
        taken[e] = 0;
        if (first) scores[e] = sigmoid(scores[e]);
    }
    __syncthreads();
    if (s.groups > 1) close_groups(s, scores, group_keys, taken);
    for (int i = 0; i < s.chosen; i++) {
        uint64_t best = TAKEN;
        for (int e = (int)threadIdx.x; e < s.experts; e += BLOCK) {
            uint64_t order = taken[e] ? TAKEN : order_of(key_of(s, scores, e), e);
            if (order > best) best = order;
        }
        int expert = expert_of(block_most(best, orders));
        if (threadIdx.x == 0) found[i] = expert, taken[expert] = 1;
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < s.chosen; i += BLOCK) {
        int before = 0;
        for (int j = 0; j < s.chosen; j++) before += found[j] < found[i];
        chosen[before] = found[i];
    }
    if (!s.sigmoid) block_softmax(s.experts, scores, maxima, sums);
    for (int e = (int)threadIdx.x; e < s.experts && s.sigmoid && !first; e += BLOCK)
        scores[e] = sigmoid(scores[e]);
    __syncthreads();
    double sum = s.normalise ? chosen_sum(s, scores, chosen) : 1;
    for (int i = (int)threadIdx.x; i < s.chosen; i += BLOCK)
        r.weights[t * s.chosen + i] = (float)(factor_of(s) * (double)scores[chosen[i]] / sum);
}

/* first[e + 1] = the number of assignments to expert e, which is the block's. */
__global__ void __launch_bounds__(BLOCK) count_assignments_kernel(int64_t assignments, Routes r) {
    SHARED(int, sums, BLOCK / WARP);
    int count = 0, e = (int)blockIdx.x;
    for (int64_t i = threadIdx.x; i < assignments; i += BLOCK) count += r.chosen[i] == e;
    count = block_sum(count, sums);
    if (threadIdx.x == 0) r.first[e + 1] = count;
}

/* One thread is enough: there are few experts. */
__global__ void first_rows_kernel(int experts, Routes r, int64_t *counts) {
    int32_t row = 0;
    r.first[0] = 0;
    for (int e = 0; e < experts; e++) {
        int32_t count = r.first[e + 1];
        if (counts) counts[e] += count;
        r.first[e + 1] = row += count;
    }
}

/* A block has an expert, and gives its rows to its assignments in their order. */
__global__ void __launch_bounds__(BLOCK) order_rows_kernel(int64_t assignments, int k, Routes r) {
    SHARED(int, counts, BLOCK / WARP);
    int e = (int)blockIdx.x, warp = (int)threadIdx.x / WARP;
    int32_t next = r.first[e];
    for (int64_t at = 0; at < assignments; at += BLOCK) {
        int64_t i = at + threadIdx.x;
        bool mine = i < assignments && r.chosen[i] == e;
        unsigned votes = __ballot_sync(0xffffffffu, mine);
        if (lane() == 0) counts[warp] = __popc(votes);
        __syncthreads();
        int32_t row = next + __popc(votes & ((1u << lane()) - 1));
        for (int w = 0; w < BLOCK / WARP; w++) {
            if (w < warp) row += counts[w];
            next += counts[w];
        }
        if (mine) r.row[i] = row, r.token[row] = (int32_t)(i / k);
        __syncthreads();
    }
}

void route(Device *d, const RouteArgs *o) {
    int64_t assignments = o->s.tokens * o->s.chosen;
    if (o->s.experts > EXPERTS_MAX)
        cuda_fatal(d, "route: %d experts; at most %d are done", o->s.experts, EXPERTS_MAX);
    size_t bytes = (size_t)o->s.chosen * sizeof(int32_t) + (size_t)o->s.experts +
                   (o->s.groups > 1 ? (size_t)o->s.groups * sizeof(float) : 0);
    if (o->s.tokens > 0) LAUNCH(d, OP_ROUTE, route_kernel, o->s.tokens, BLOCK, bytes, o->s, o->r);
    LAUNCH(d, OP_ROUTE, count_assignments_kernel, o->s.experts, BLOCK, 0, assignments, o->r);
    LAUNCH(d, OP_ROUTE, first_rows_kernel, 1, 1, 0, o->s.experts, o->r, o->counts);
    LAUNCH(d, OP_ROUTE, order_rows_kernel, o->s.experts, BLOCK, 0, assignments, o->s.chosen, o->r);
}

/* ---- backward ---- */

constexpr int TOKENS = 32; /* of a block; its warps take them round robin */

/* A thread has an assignment. */
__global__ void route_count_kernel(RouteShape s, const int32_t *chosen, int64_t *counts) {
    int64_t i = element();
    if (i >= s.tokens * s.chosen) return;
    int64_t sequence = (s.before + i / s.chosen) / s.sequence;
    atomicAdd((unsigned long long *)&counts[sequence * s.experts + chosen[i]], 1ull);
}

void route_count(Device *d, const RouteCountArgs *o) {
    int64_t assignments = o->s.tokens * o->s.chosen;
    if (assignments == 0) return;
    LAUNCH(d, OP_ROUTE_COUNT, route_count_kernel, blocks_of(assignments, BLOCK), BLOCK, 0, o->s, o->chosen,
           o->counts);
}

/* The gradient with respect to a token's score of expert e. */
struct ScoreGradient {
    RouteShape s;
    const int32_t *chosen;
    const float *dweights;
    double slope, along, sum; /* slope: of the balance loss, per assignment of the sequence, times scale */
    INLINE double of(int e, int64_t count) const {
        double d = slope * (double)count;
        for (int i = 0; i < s.chosen; i++)
            if (chosen[i] == e) d += (factor_of(s) * (double)dweights[i] - along) / sum;
        return d;
    }
};

/* blockIdx.x: the sequence, the first of which may begin before these tokens; blockIdx.y: tokens of it. The
 * number of a sequence's tokens is computed from its assignments. */
template <typename T>
__global__ void __launch_bounds__(BLOCK) route_backward_kernel(const RouteBackwardArgs o) {
    RouteShape s = o.s;
    SHARED(int64_t, sums, BLOCK / WARP);
    int64_t sequence = s.before / s.sequence + blockIdx.x, first = sequence * s.sequence - s.before;
    int64_t behind = smaller(s.tokens, first + s.sequence);
    if (first < 0) first = 0;
    double each = 0;
    const int64_t *counts = o.counts;
    if (s.balance > 0) {
        int64_t assignments = 0;
        counts += sequence * s.experts;
        for (int e = (int)threadIdx.x; e < s.experts; e += BLOCK) assignments += counts[e];
        assignments = block_sum(assignments, sums);
        each = (double)s.balance * s.experts / (double)(assignments / s.chosen);
    }
    int64_t end = smaller(behind, first + ((int64_t)blockIdx.y + 1) * TOKENS);
    for (int64_t t = first + (int64_t)blockIdx.y * TOKENS + threadIdx.x / WARP; t < end; t += BLOCK / WARP) {
        int64_t at = t * s.chosen;
        const float *scores = o.r.scores + t * s.experts;
        ScoreGradient g = {s, o.r.chosen + at, o.dweights + at, each * (double)*o.scale, 0, 1};
        if (s.normalise) g.sum = chosen_sum(s, scores, g.chosen);
        for (int j = 0; j < s.chosen && s.normalise; j++)
            g.along += (double)o.dweights[at + j] * (double)o.r.weights[at + j];
        double value = 0, mean = 0;
        for (int e = lane(); e < s.experts; e += WARP) {
            int64_t count = s.balance > 0 ? counts[e] : 0;
            value += each * (double)count * (double)scores[e];
            mean += (double)scores[e] * g.of(e, count);
        }
        value = lanes_sum(value, WARP);
        mean = lanes_sum(mean, WARP);
        for (int e = lane(); e < s.experts; e += WARP) {
            double ds = g.of(e, s.balance > 0 ? counts[e] : 0);
            double slope = s.sigmoid ? ds * (1 - (double)scores[e]) : ds - mean;
            store((T *)o.dlogits, t * s.experts + e, (float)((double)scores[e] * slope));
        }
        if (lane() == 0) o.balance[t] = (float)value;
    }
}

void route_backward(Device *d, const RouteBackwardArgs *o) {
    if (o->s.tokens == 0) return;
    int64_t sequences = (o->s.before + o->s.tokens - 1) / o->s.sequence - o->s.before / o->s.sequence + 1;
    Grid grid(sequences, blocks_of(o->s.sequence < o->s.tokens ? o->s.sequence : o->s.tokens, TOKENS));
    BY_DTYPE(o->c, T, LAUNCH(d, OP_ROUTE_BACKWARD, route_backward_kernel<T>, grid, BLOCK, 0, *o));
}

/* ---- products ---- */

/* A block computes a tile of TILE x TILE elements, 4 x 4 per thread: rows y, y + SIDE, ..., columns
 * x, x + SIDE, ... */
constexpr int TILE = 64, SIDE = 16, EACH = TILE / SIDE, DEPTH = 16, PITCH = TILE + 1;

struct Sums {
    float of[EACH][EACH];
    INLINE void clear(void) {
#pragma unroll
        for (int r = 0; r < EACH; r++)
            for (int c = 0; c < EACH; c++) of[r][c] = 0;
    }
    /* From [k][row] and [k][column]. */
    INLINE void add(const float *left, const float *right, int x, int y) {
        for (int p = 0; p < DEPTH; p++)
#pragma unroll
            for (int r = 0; r < EACH; r++)
#pragma unroll
                for (int c = 0; c < EACH; c++)
                    of[r][c] =
                        FUSED(left[p * PITCH + y + r * SIDE], right[p * PITCH + x + c * SIDE], of[r][c]);
    }
};

/* An operand of a product: vectors along the inner dimension K, `step` elements apart. Adjacent elements of a
 * vector are `stride` elements from each other. */
template <typename T> struct Vectors {
    const T *at;
    int64_t count, step, stride;
};
/* Loads elements k .. k + DEPTH - 1 of TILE vectors from `first` on, of vectors of `end` elements:
 * [k][vector], zeros past both ends. */
template <typename T> INLINE void load_tile(Vectors<T> of, int64_t first, int64_t k, int64_t end, float *to) {
    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += BLOCK) {
        /* Adjacent threads read adjacent elements in either layout. */
        int v = of.stride == 1 ? e / DEPTH : e % TILE, p = of.stride == 1 ? e % DEPTH : e / TILE;
        bool there = first + v < of.count && k + p < end;
        to[p * PITCH + v] = there ? load(of.at, (first + v) * of.step + (k + p) * of.stride) : 0;
    }
}

INLINE int sources_of(ExpertRows e) { return e.sources > 1 ? e.sources : 1; }

/* A tile of an expert's rows from one source: the expert, the tile's first row, the end of the rows. */
struct Tile {
    int expert; /* -1: there is no such tile */
    int64_t row, end;
};
INLINE Tile tile_of(ExpertRows e, int64_t tile) {
    for (int i = 0; i < e.experts * sources_of(e); i++) {
        int64_t first = e.first[i], end = e.first[i + 1], tiles = (end - first + TILE - 1) / TILE;
        if (tile < tiles) return {i % e.experts, first + tile * TILE, end};
        tile -= tiles;
    }
    return {-1, 0, 0};
}

/* blockIdx.x: tiles of rows of all experts; blockIdx.y: tiles of columns. */
template <typename T, typename C>
__global__ void __launch_bounds__(BLOCK) grouped_gemm_kernel(const GroupedGemmArgs o) {
    SHARED(float, left, DEPTH *PITCH);
    SHARED(float, right, DEPTH *PITCH);
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    Tile tile = tile_of(o.e, blockIdx.x);
    if (tile.expert < 0) return; /* the whole block */
    int64_t n = o.n, k = o.k, column = (int64_t)blockIdx.y * TILE;
    Vectors<T> a = {(const T *)o.a, tile.end, k, 1};
    Vectors<T> b = {(const T *)o.b + tile.expert * o.e.step, n, o.trans_b ? k : 1, o.trans_b ? 1 : n};
    Sums sums;
    sums.clear();
    int64_t end = 0;
    for (int r = 0; r < o.splits.runs; r++) {
        int64_t first = end + o.splits.run[r].skip;
        end = first + o.splits.run[r].length;
        for (int64_t p = first; p < end; p += DEPTH) {
            load_tile(a, tile.row, p, end, left);
            load_tile(b, column, p, end, right);
            __syncthreads();
            sums.add(left, right, x, y);
            __syncthreads();
        }
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int64_t row = tile.row + y + r * SIDE, j = column + x + i * SIDE;
            if (row < tile.end && j < n) store((C *)o.c, row * n + j, sums.of[r][i]);
        }
}

/* blockIdx.x: tiles of m of the first expert, then of the second, ...; blockIdx.y: of n. LEVELS: of the tree
 * over sources; 0: there is one source. */
template <typename T, int LEVELS>
__global__ void __launch_bounds__(BLOCK) grouped_gemm_wgrad_kernel(const GroupedGemmWgradArgs o) {
    SHARED(float, left, DEPTH *PITCH);
    SHARED(float, right, DEPTH *PITCH);
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    unsigned tiles = gridDim.x / (unsigned)o.e.experts, expert = blockIdx.x / tiles;
    int64_t first_row = (int64_t)(blockIdx.x % tiles) * TILE, column = (int64_t)blockIdx.y * TILE;
    int64_t m = o.m, n = o.n;
    float *matrix = o.c + expert * o.e.step;
    Vectors<T> a = {(const T *)o.a, m, 1, m}, b = {(const T *)o.b, n, 1, n};
    Sums sums;
    Tree<float, LEVELS ? LEVELS : 1> trees[EACH][EACH];
    for (int s = 0; s < (LEVELS ? o.e.sources : 1); s++) {
        const int32_t *run = o.e.first + (int64_t)s * o.e.experts + expert;
        int64_t end = run[1];
        sums.clear();
        for (int64_t p = run[0]; p < end; p += DEPTH) {
            load_tile(a, first_row, p, end, left);
            load_tile(b, column, p, end, right);
            __syncthreads();
            sums.add(left, right, x, y);
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < EACH && LEVELS; r++)
#pragma unroll
            for (int i = 0; i < EACH; i++) trees[r][i].add(sums.of[r][i]);
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int64_t row = first_row + y + r * SIDE, j = column + x + i * SIDE;
            if (row >= m || j >= n) continue;
            float sum = LEVELS ? trees[r][i].sum() : sums.of[r][i];
            matrix[row * n + j] = o.accumulate ? matrix[row * n + j] + sum : sum;
        }
}

void grouped_gemm(Device *d, const GroupedGemmArgs *o) {
    GroupedGemmArgs args = *o; /* with a run, if o has none */
    if (o->splits.runs == 0) args.splits.runs = 1, args.splits.run[0] = {o->k, o->k, 0};
    if (d->profiling)
        d->profile[OP_GROUPED_GEMM].flops +=
            2.0 * (double)o->e.rows * (double)o->n * (double)split_length(args.splits);
    if (o->e.rows == 0 || o->n == 0) return;
    /* Each run may have one partial tile. */
    Grid grid(o->e.rows / TILE + o->e.experts * expert_sources(&o->e), blocks_of(o->n, TILE));
    BY_DTYPE(o->ab_type, T,
             BY_DTYPE(o->c_type, C, auto kernel = grouped_gemm_kernel<T, C>;
                      LAUNCH(d, OP_GROUPED_GEMM, kernel, grid, BLOCK, 0, args)));
}

/* A sum is one chain over an expert's rows from one source, whatever the tile. */
void grouped_gemm_wgrad(Device *d, const GroupedGemmWgradArgs *o) {
    if (d->profiling)
        d->profile[OP_GROUPED_GEMM_WGRAD].flops += 2.0 * (double)o->e.rows * (double)o->m * (double)o->n;
    if (o->m == 0 || o->n == 0) return;
    Grid grid(blocks_of(o->m, TILE) * o->e.experts, blocks_of(o->n, TILE));
    constexpr int LEVELS = 7; /* enough for SPLITS_MAX sources */
    BY_DTYPE(o->ab_type, T, auto one = grouped_gemm_wgrad_kernel<T, 0>;
             auto several = grouped_gemm_wgrad_kernel<T, LEVELS>;
             auto kernel = expert_sources(&o->e) > 1 ? several : one;
             LAUNCH(d, OP_GROUPED_GEMM_WGRAD, kernel, grid, BLOCK, 0, *o));
}

/* ---- rows ---- */

template <typename T> __global__ void __launch_bounds__(BLOCK) combine_kernel(const CombineArgs o) {
    constexpr int N = AT_ONCE<T>;
    int64_t hidden = o.hidden;
    PackStart at = pack_start<N>(hidden);
    if (at.row >= o.s.tokens) return;
    const T *rows = (const T *)o.rows;
    T *y = (T *)o.y + at.row * hidden;
    Pack<T, N> out = {};
    if (o.add) out = load_pack<N>(y, at.column, hidden);
    float sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = get(out, i);
    for (int64_t j = at.row * o.s.chosen; j < (at.row + 1) * o.s.chosen; j++) {
        Pack<T, N> x = load_pack<N>(rows + o.r.row[j] * hidden, at.column, hidden);
        float weight = o.weighed ? o.r.weights[j] : 1;
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += weight * get(x, i);
    }
#pragma unroll
    for (int i = 0; i < N; i++) put(out, i, sum[i]);
    store_pack(y, at.column, hidden, out);
}

void combine(Device *d, const CombineArgs *o) {
    if (o->s.tokens * o->hidden == 0) return;
    BY_DTYPE(o->c, T, auto kernel = combine_kernel<T>; LAUNCH(
                 d, OP_COMBINE, kernel, blocks_of_packs<AT_ONCE<T>>(o->s.tokens, o->hidden), BLOCK, 0, *o));
}

constexpr int LEVELS = 7; /* 2^6 splits */
static_assert(SPLITS_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of splits");

/* A block has an assignment, and takes its splits one after another. Each thread writes only packs
 * that it read itself. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    combine_backward_kernel(Routes r, int64_t split_size, int splits, T *act, T *dact, float *dweights) {
    constexpr int N = AT_ONCE<T>;
    SHARED(double, sums, BLOCK / WARP);
    int64_t j = blockIdx.x, first = (r.row ? r.row[j] : j) * split_size * splits;
    float weight = r.weights[j];
    Tree<float, LEVELS> tree;
    for (int l = 0; l < splits; l++, first += split_size) {
        double sum = 0;
        for (int64_t at = threadIdx.x * N; at < split_size; at += BLOCK * N) {
            Pack<T, N> x = load_pack<N>(act + first, at, split_size),
                       dx = load_pack<N>(dact + first, at, split_size);
#pragma unroll
            for (int i = 0; i < N; i++) { /* past the end there are zeros */
                sum += (double)get(x, i) * (double)get(dx, i);
                put(x, i, weight * get(x, i));
                put(dx, i, weight * get(dx, i));
            }
            store_pack(act + first, at, split_size, x);
            store_pack(dact + first, at, split_size, dx);
        }
        tree.add((float)block_sum(sum, sums));
    }
    if (threadIdx.x == 0) dweights[j] = tree.sum();
}

void combine_backward(Device *d, const CombineBackwardArgs *o) {
    int64_t assignments = o->s.tokens * o->s.chosen;
    if (assignments == 0) return;
    BY_DTYPE(o->c, T, auto kernel = combine_backward_kernel<T>;
             LAUNCH(d, OP_COMBINE_BACKWARD, kernel, assignments, BLOCK, 0, o->r, o->inter / o->splits,
                    o->splits, (T *)o->act, (T *)o->dact, o->dweights));
}

template <typename T> __global__ void permute_kernel(const PermuteArgs o) {
    constexpr int N = AT_ONCE<T>;
    int64_t hidden = o.hidden;
    PackStart at = pack_start<N>(hidden);
    if (at.row >= o.s.tokens * o.s.chosen) return;
    Pack<T, N> here = load_pack<N>((const T *)o.x + at.row / o.s.chosen * hidden, at.column, hidden);
    float weight = o.r.weights[at.row];
#pragma unroll
    for (int i = 0; i < N; i++) put(here, i, weight * get(here, i));
    store_pack((T *)o.rows + o.r.row[at.row] * hidden, at.column, hidden, here);
}

void permute(Device *d, const PermuteArgs *o) {
    int64_t assignments = o->s.tokens * o->s.chosen;
    if (assignments * o->hidden == 0) return;
    BY_DTYPE(o->c, T, auto kernel = permute_kernel<T>; LAUNCH(
                 d, OP_PERMUTE, kernel, blocks_of_packs<AT_ONCE<T>>(assignments, o->hidden), BLOCK, 0, *o));
}

/* A block has an assignment, and takes its splits one after another, each with its elements of every run. */
template <typename T>
__global__ void __launch_bounds__(BLOCK) permute_dweights_kernel(const PermuteDweightsArgs o) {
    constexpr int N = AT_ONCE<T>;
    SHARED(double, sums, BLOCK / WARP);
    int64_t j = blockIdx.x, n = o.n, row = (o.r.row ? o.r.row[j] : j) * o.runs * n, split_size = n / o.splits;
    const T *y = (const T *)o.y, *dy = (const T *)o.dy;
    float weight = o.r.weights[j];
    Tree<float, LEVELS> tree;
    for (int l = 0; l < o.splits; l++) {
        double sum = 0;
        for (int64_t first = row + l * split_size; first < row + o.runs * n; first += n)
            for (int64_t at = threadIdx.x * N; at < split_size; at += BLOCK * N) {
                Pack<T, N> x = load_pack<N>(y + first, at, split_size),
                           dx = load_pack<N>(dy + first, at, split_size);
#pragma unroll
                for (int i = 0; i < N; i++) sum += (double)get(x, i) * (double)get(dx, i);
            }
        sum = block_sum(sum, sums);
        tree.add(weight >= 0 && weight <= 0 ? 0 : (float)(sum / (double)weight));
    }
    __syncthreads(); /* dweights may be r.weights */
    if (threadIdx.x == 0) o.dweights[j] = tree.sum();
}

void permute_dweights(Device *d, const PermuteDweightsArgs *o) {
    int64_t assignments = o->s.tokens * o->s.chosen;
    if (assignments == 0) return;
    BY_DTYPE(o->c, T, LAUNCH(d, OP_PERMUTE_DWEIGHTS, permute_dweights_kernel<T>, assignments, BLOCK, 0, *o));
}

/* ---- biases ---- */

/* The expert of a row. Runs may have no rows. */
INLINE int expert_of_row(ExpertRows e, int64_t row) {
    int low = 0, high = e.experts * sources_of(e) - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (e.first[middle + 1] > row)
            high = middle;
        else
            low = middle + 1;
    }
    return low % e.experts;
}

template <typename T> __global__ void experts_bias_kernel(ExpertRows e, int64_t n, T *y, const float *bias) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(n);
    if (at.row >= e.rows) return;
    int64_t row = e.first[0] + at.row;
    y += row * n;
    Pack<T, N> x = load_pack<N>(y, at.column, n);
    Pack<float, N> more = load_pack<N>(bias + expert_of_row(e, row) * n, at.column, n);
#pragma unroll
    for (int i = 0; i < N; i++) put(x, i, get(x, i) + get(more, i));
    store_pack(y, at.column, n, x);
}

void experts_bias_forward(Device *d, const ExpertsBiasForwardArgs *o) {
    if (o->e.rows * o->n == 0) return;
    BY_DTYPE(o->c, T, auto kernel = experts_bias_kernel<T>;
             LAUNCH(d, OP_EXPERTS_BIAS_FORWARD, kernel, blocks_of_packs<AT_ONCE<T>>(o->e.rows, o->n), BLOCK,
                    0, o->e, o->n, (T *)o->y, o->bias));
}

/* The weight of the assignment in a row of expert e. */
INLINE float weight_of_row(RouteShape s, Routes r, int64_t row, int e) {
    int64_t at = (int64_t)r.token[row] * s.chosen;
    while (r.chosen[at] != e) at++;
    return r.weights[at];
}

/* blockIdx.x: the expert, blockIdx.y: columns. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    experts_bias_sums_kernel(RouteShape s, Routes r, int64_t n, const T *dy, bool weighed, float *dbias) {
    constexpr int N = AT_ONCE<T>;
    SHARED(float, smem, COLUMN_SMEM<T>);
    int e = (int)blockIdx.x;
    int64_t column = first_column<T>(), end = r.first[e + 1];
    float sum[N] = {};
    for (int64_t row = r.first[e] + threadIdx.y; row < end && column < n; row += DOWN<T>) {
        float weight = weighed ? weight_of_row(s, r, row, e) : 1;
        Pack<T, N> grad = load_pack<N>(dy + row * n, column, n);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = FUSED(get(grad, i), weight, sum[i]);
    }
    add_to_columns<T>(sum, n, smem, dbias + e * n);
}

/* A warp has an assignment: dweights += dy . bias of its expert. */
template <typename T>
__global__ void experts_bias_weights_kernel(int64_t assignments, Routes r, int64_t n, const T *dy,
                                            const float *bias, float *dweights) {
    constexpr int N = AT_ONCE<T>;
    int64_t j = element() / WARP;
    if (j >= assignments) return;
    dy += r.row[j] * n, bias += r.chosen[j] * n;
    double sum = 0;
    for (int64_t at = lane() * N; at < n; at += WARP * N) {
        Pack<T, N> grad = load_pack<N>(dy, at, n);
        Pack<float, N> here = load_pack<N>(bias, at, n);
#pragma unroll
        for (int i = 0; i < N; i++) sum += (double)get(grad, i) * (double)get(here, i);
    }
    sum = lanes_sum(sum, WARP);
    if (lane() == 0) dweights[j] += (float)sum;
}

/* Without weights s has no tokens, and the rows may be those of other ranks' tokens. */
void experts_bias_backward(Device *d, const ExpertsBiasBackwardArgs *o) {
    int64_t assignments = o->s.tokens * o->s.chosen;
    if (o->s.experts * o->n == 0) return;
    BY_DTYPE(o->c, T, auto sums = experts_bias_sums_kernel<T>; auto weights = experts_bias_weights_kernel<T>;
             Grid grid(o->s.experts, blocks_of(o->n, COLUMNS));
             LAUNCH(d, OP_EXPERTS_BIAS_BACKWARD, sums, grid, block_of_columns<T>(), 0, o->s, o->r, o->n,
                    (const T *)o->dy, o->weighed, o->dbias);
             if (o->weighed && assignments > 0)
                 LAUNCH(d, OP_EXPERTS_BIAS_BACKWARD, weights, blocks_of(assignments, BLOCK / WARP), BLOCK, 0,
                        assignments, o->r, o->n, (const T *)o->dy, o->bias, o->dweights));
}

} // namespace

extern "C" void experts_fill(Ops *ops) {
    ops->route = route;
    ops->route_count = route_count;
    ops->route_backward = route_backward;
    ops->grouped_gemm = grouped_gemm;
    ops->grouped_gemm_wgrad = grouped_gemm_wgrad;
    ops->combine = combine;
    ops->combine_backward = combine_backward;
    ops->permute = permute;
    ops->permute_dweights = permute_dweights;
    ops->experts_bias_forward = experts_bias_forward;
    ops->experts_bias_backward = experts_bias_backward;
}
