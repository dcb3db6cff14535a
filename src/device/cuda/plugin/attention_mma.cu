/* Attention by matrix instructions of a warp, for bf16 heads of a multiple of 16 elements up to 128: Dao,
 * "FlashAttention-2", 2023. device/cpu/reference_attention.c has the formulas, attention_rows.cuh what a warp
 * does with its rows.
 *
 * A block has four warps and 64 rows: queries, or keys in the kernel of their gradients. Each warp keeps the
 * sums of 16 rows in registers, and walks over the other side in steps. Shared memory holds two steps
 * (double buffering): while one is multiplied, the next is copied. A thread waits for its copies; the
 * barrier behind it means that all threads' copies are there, and that the step before is no longer read and
 * may be overwritten.
 *
 * The backward pass has no atomics: two kernels, each of which recomputes the scores. The kernel of keys'
 * gradients has them transposed, keys by queries, so that weights need no rearranging to be left operands.
 *
 * Rows in shared memory are 16 bytes longer than heads, so that eight adjacent rows, which an instruction
 * reads at once, lie in different banks. */
#include "device/cuda/plugin/attention_rows.cuh"

namespace {

constexpr int THREADS = 128, ROWS = THREADS / WARP * WARP_ROWS;
constexpr int STEP = 64;       /* keys of a step, forward */
constexpr int SHORT_STEP = 32; /* rows of a step, backward: twice as many sums are in registers */

template <int D> constexpr int PITCH = D + 8;

/* ---- tiles ---- */

/* Begins the copies of rows at .. at+N-1, which are `stride` elements from each other; zeros
 * from row `end` on. */
template <int D, int N>
INLINE void fetch_tile(const Bf16 *from, int64_t stride, int64_t at, int64_t end, Bf16 *to) {
    constexpr int VECTOR = 8, VECTORS = D / VECTOR;
    for (int e = (int)threadIdx.x; e < N * VECTORS; e += THREADS) {
        int r = e / VECTORS, i = e % VECTORS * VECTOR;
        bool there = at + r < end;
        copy_async<16>(to + r * PITCH<D> + i, from + (there ? at + r : 0) * stride + i, there);
    }
}

/* Reads 16 x 16 elements at (row, column) of a tile as a left operand. */
template <int D> INLINE void read_left(uint32_t (&to)[4], const Bf16 *tile, int row, int column) {
    load_matrices(to, tile + (row + lane() % 16) * PITCH<D> + column + lane() / 16 * 8);
}
/* The same, as two right operands whose columns are the tile's rows. */
template <int D> INLINE void read_rows(uint32_t (&to)[4], const Bf16 *tile, int row, int column) {
    load_matrices(to, tile + (row + lane() / 16 * 8 + lane() % 8) * PITCH<D> + column + lane() / 8 % 2 * 8);
}
/* The same, as two right operands whose columns are the tile's columns. */
template <int D> INLINE void read_columns(uint32_t (&to)[4], const Bf16 *tile, int row, int column) {
    load_matrices_transposed(to, tile + (row + lane() % 16) * PITCH<D> + column + lane() / 16 * 8);
}

/* ---- products ---- */

/* Adds left * right to sixteen columns of sums. */
template <int N>
INLINE void add_product(Sums<N> &sums, int n, const uint32_t (&left)[4], const uint32_t (&right)[4]) {
    multiply_matrices(sums.of[n], left, right[0], right[1]);
    multiply_matrices(sums.of[n + 1], left, right[2], right[3]);
}
/* sums += columns column .. column+15 of rows of D, times those columns of a tile of N rows. */
template <int D, int N>
INLINE void add_dots(Sums<N> &sums, const uint32_t (&left)[4], const Bf16 *tile, int column) {
#pragma unroll
    for (int n = 0; n < N; n += 16) {
        uint32_t right[4];
        read_rows<D>(right, tile, n, column);
        add_product(sums, n / 8, left, right);
    }
}
/* sums += weights * M rows of a tile. */
template <int M, int D> INLINE void add_weighted(Sums<D> &sums, const Left<M> &weights, const Bf16 *tile) {
#pragma unroll
    for (int m = 0; m < M / 16; m++)
#pragma unroll
        for (int n = 0; n < D; n += 16) {
            uint32_t right[4];
            read_columns<D>(right, tile, m * 16, n);
            add_product(sums, n / 8, weights.of[m], right);
        }
}

/* ---- forward ---- */

template <int D>
__global__ void __launch_bounds__(THREADS)
    mma_forward_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, Bf16 *out, float *lse) {
    DYNAMIC_SHARED(smem);
    constexpr int TILE = STEP * PITCH<D>;
    Bf16 *tiles = (Bf16 *)smem; /* keys and values of even steps, then of odd ones */
    /* Blocks of the longest rows start first. */
    int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y;
    const Bf16 *k_head = keys + head / (a.s.heads / a.s.kv_heads) * D, *v_head = k_head + a.s.kv_heads * D;
    auto fetch = [&](int64_t key, Bf16 *to) {
        fetch_tile<D, STEP>(k_head, a.r.kv_row, key, a.r.keys, to);
        fetch_tile<D, STEP>(v_head, a.r.kv_row, key, a.r.keys, to + TILE);
    };
    KeyRange v = keys_seen_by(a, first, ROWS, STEP);
    fetch(v.start, tiles);
    Left<D> q;
    q.load(queries + head * D, a.r.q_row, first + warp_row(), a.s.tokens);
    Sums<D> o;
    float unit = unit_of(a), shrink[2];
    Softmax soft = softmax_of(a, head);
    o.clear();
    for (int key = v.start; key < v.end; key += STEP) {
        Bf16 *k = tiles + (key - v.start) / STEP % 2 * 2 * TILE;
        copies_wait();
        __syncthreads();
        if (key + STEP < v.end) fetch(key + STEP, tiles + (key + STEP - v.start) / STEP % 2 * 2 * TILE);
        Sums<STEP> s;
        s.clear();
#pragma unroll
        for (int i = 0; i < D / 16; i++) add_dots<D>(s, q.of[i], k, i * 16);
        cap_scores(a, s);
        hide_unseen(v, key, s);
        weigh(soft, s, unit, shrink);
        shrink_results(o, shrink);
        add_weighted(o, rounded(s), k + TILE);
    }
    write_results(a, soft, o, first + warp_row(), out + head * D, lse + head * a.s.tokens);
}

/* ---- backward ---- */

template <int D>
__global__ void __launch_bounds__(THREADS)
    mma_query_gradient_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, Gradients<Bf16> g) {
    DYNAMIC_SHARED(smem);
    constexpr int TILE = SHORT_STEP * PITCH<D>;
    Bf16 *tiles = (Bf16 *)smem; /* as in the forward pass */
    int64_t tokens = a.s.tokens, first = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y;
    const Bf16 *k_head = keys + head / (a.s.heads / a.s.kv_heads) * D, *v_head = k_head + a.s.kv_heads * D;
    auto fetch = [&](int64_t key, Bf16 *to) {
        fetch_tile<D, SHORT_STEP>(k_head, a.r.kv_row, key, a.r.keys, to);
        fetch_tile<D, SHORT_STEP>(v_head, a.r.kv_row, key, a.r.keys, to + TILE);
    };
    KeyRange v = keys_seen_by(a, first, ROWS, SHORT_STEP);
    fetch(v.start, tiles);
    Left<D> q, dout;
    q.load(queries + head * D, a.r.q_row, first + warp_row(), tokens);
    dout.load(g.dout + head * D, (int64_t)a.s.heads * D, first + warp_row(), tokens);
    Sums<D> dq;
    float unit = unit_of(a), lse[2], delta[2];
    row_facts(a, v, g, head, lse, delta);
    dq.clear();
    for (int key = v.start; key < v.end; key += SHORT_STEP) {
        Bf16 *k = tiles + (key - v.start) / SHORT_STEP % 2 * 2 * TILE;
        copies_wait();
        __syncthreads();
        if (key + SHORT_STEP < v.end)
            fetch(key + SHORT_STEP, tiles + (key + SHORT_STEP - v.start) / SHORT_STEP % 2 * 2 * TILE);
        Sums<SHORT_STEP> s, ds;
        s.clear();
        ds.clear();
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            add_dots<D>(s, q.of[i], k, i * 16);
            add_dots<D>(ds, dout.of[i], k + TILE, i * 16);
        }
        cap_scores(a, s);
        hide_unseen(v, key, s);
#pragma unroll
        for (int n = 0; n < SHORT_STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float p = weight_of(unit, s.of[n][i], lse[i / 2]);
                ds.of[n][i] = slope_of(p, ds.of[n][i], delta[i / 2]) * slope_of_cap(a, s.of[n][i]);
            }
        add_weighted(dq, rounded(ds), k);
    }
    dq.scale(a.scale, a.scale);
    dq.write(g.dq + head * D, a.r.q_row, first + warp_row(), tokens);
}

/* A block walks over all heads of its group, and for each over the steps of queries. Past the last query
 * there are zeros, which add nothing. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    mma_key_gradient_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, Gradients<Bf16> g) {
    DYNAMIC_SHARED(smem);
    constexpr int TILE = SHORT_STEP * PITCH<D>, KEYS_TILE = ROWS * PITCH<D>;
    constexpr int SLOT = /* bytes of a step's queries, dout and facts */
        2 * TILE * (int)sizeof(Bf16) + Facts<SHORT_STEP>::BYTES;
    Bf16 *k = (Bf16 *)smem, *v = k + KEYS_TILE;
    char *slots = smem + 2 * KEYS_TILE * sizeof(Bf16);
    int64_t tokens = a.s.tokens, first = (int64_t)blockIdx.x * ROWS, kv = blockIdx.y,
            width = (int64_t)a.s.kv_heads * D;
    auto fetch = [&](Walk w, char *slot) {
        fetch_tile<D, SHORT_STEP>(queries + w.head * D, a.r.q_row, w.at, tokens, (Bf16 *)slot);
        fetch_tile<D, SHORT_STEP>(g.dout + w.head * D, (int64_t)a.s.heads * D, w.at, tokens,
                                  (Bf16 *)slot + TILE);
        Facts<SHORT_STEP>::in(slot + 2 * TILE * sizeof(Bf16)).fetch(a, g, w.head, w.at);
    };
    Sums<D> dk, dv;
    float unit = unit_of(a);
    dk.clear();
    dv.clear();
    fetch_tile<D, ROWS>(keys + kv * D, a.r.kv_row, first, a.r.keys, k);
    fetch_tile<D, ROWS>(keys + kv * D + width, a.r.kv_row, first, a.r.keys, v);
    Walk w = walk_of(a, first, ROWS, kv, SHORT_STEP);
    if (w.steps > 0) fetch(w, slots);
    for (int step = 0; step < w.steps; step++) {
        char *slot = slots + step % 2 * SLOT;
        const Bf16 *q = (Bf16 *)slot, *dout = q + TILE;
        Facts<SHORT_STEP> f = Facts<SHORT_STEP>::in(slot + 2 * TILE * sizeof(Bf16));
        int64_t here = w.at;
        copies_wait();
        __syncthreads();
        w.advance(SHORT_STEP);
        if (step + 1 < w.steps) fetch(w, slots + (step + 1) % 2 * SLOT);
        Sums<SHORT_STEP> s, ds;
        s.clear();
        ds.clear();
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t left[4];
            read_left<D>(left, k, warp_row(), i * 16);
            add_dots<D>(s, left, q, i * 16);
            read_left<D>(left, v, warp_row(), i * 16);
            add_dots<D>(ds, left, dout, i * 16);
        }
        cap_scores(a, s);
        hide_unseen(a, f, first, ROWS, here, s);
#pragma unroll
        for (int n = 0; n < SHORT_STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float p = weight_of(unit, s.of[n][i], f.pair(f.lse, n)[i % 2]);
                float grad = slope_of(p, ds.of[n][i], f.pair(f.delta, n)[i % 2]);
                ds.of[n][i] = grad * slope_of_cap(a, s.of[n][i]);
                s.of[n][i] = p;
            }
        add_weighted(dv, rounded(s), dout);
        add_weighted(dk, rounded(ds), q);
    }
    copies_wait(); /* where no query sees these keys, nothing has waited for their copies */
    write_key_gradients(a, g, dk, dv, kv, first + warp_row());
}

/* ---- launches ---- */

/* Runs the statement with D the head dimension. */
#define BY_HEAD(dim, ...)          \
    switch (dim) {                 \
        HEADS_OF(16, __VA_ARGS__)  \
        HEADS_OF(32, __VA_ARGS__)  \
        HEADS_OF(48, __VA_ARGS__)  \
        HEADS_OF(64, __VA_ARGS__)  \
        HEADS_OF(80, __VA_ARGS__)  \
        HEADS_OF(96, __VA_ARGS__)  \
        HEADS_OF(112, __VA_ARGS__) \
        HEADS_OF(128, __VA_ARGS__) \
    }
#define HEADS_OF(dim, ...)     \
    case dim: {                \
        constexpr int D = dim; \
        __VA_ARGS__;           \
        break;                 \
    }

/* Bytes of rows in shared memory. */
constexpr size_t rows_bytes(int dim, int rows) { return (size_t)rows * (size_t)(dim + 8) * sizeof(Bf16); }
constexpr size_t forward_bytes(int dim) { return rows_bytes(dim, 4 * STEP); }
constexpr size_t query_gradient_bytes(int dim) { return rows_bytes(dim, 4 * SHORT_STEP); }
constexpr size_t key_gradient_bytes(int dim) {
    return rows_bytes(dim, 2 * ROWS + 4 * SHORT_STEP) + 2 * Facts<SHORT_STEP>::BYTES;
}
/* Half of the 164 KiB of shared memory of an sm_80 multiprocessor, less 1 KiB that each block
 * takes in addition. */
constexpr size_t HALF = (82 - 1) << 10;
static_assert(forward_bytes(128) <= HALF && key_gradient_bytes(128) <= HALF, "two blocks fit");

} // namespace

bool attention_takes_mma(AttentionShape s, Dtype c) {
    return c == DTYPE_BF16 && s.head_dim % 16 == 0 && s.head_dim <= 128;
}

void attention_mma_forward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Bf16 *out, float *lse) {
    Grid grid(blocks_of(a.s.tokens, ROWS), a.s.heads);
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_FORWARD, mma_forward_kernel<D>, grid, THREADS,
                                       forward_bytes(D), a, q, kv, out, lse));
}

void attention_mma_backward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Gradients<Bf16> g) {
    Grid queries(blocks_of(a.s.tokens, ROWS), a.s.heads), keys(blocks_of(a.r.keys, ROWS), a.s.kv_heads);
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, mma_query_gradient_kernel<D>, queries,
                                       THREADS, query_gradient_bytes(D), a, q, kv, g));
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, mma_key_gradient_kernel<D>, keys, THREADS,
                                       key_gradient_bytes(D), a, q, kv, g));
}
