/* Attention by warpgroup matrix instructions (wgmma), for bf16 heads of 64 or 128 elements without a cap,
 * only on Hopper (sm_90a): Shah et al., "FlashAttention-3", 2024. device/cpu/reference_attention.c has the
 * formulas, attention_rows.cuh what a warp does with its rows, wgmma.cuh the instructions.
 *
 * A block is one warpgroup and has 64 rows: queries, or keys in the kernel of their gradients. It walks over
 * the other side in steps of 64, for which shared memory has several slots: while one is multiplied, the next
 * is copied. A thread waits for its copies and makes them visible to the products; the barrier behind it
 * means that all threads' copies are there, and that the slots the step before read are free.
 *
 * Products are asynchronous. Those of a step's weights are begun one step later, after the next step's
 * scores: while they run, the next weights are computed from these scores. The kernel of keys' gradients has
 * no registers and no shared memory left for that. Whatever a block leaves idle is for the other blocks of
 * its multiprocessor, of which each kernel leaves room for at least two (measured to be better than larger
 * blocks that wait for each other).
 *
 * The backward pass has no atomics: two kernels, each of which recomputes the scores. The kernel of keys'
 * gradients has them transposed, keys by queries, so that weights need no rearranging to be left operands. */
#include "device/cuda/plugin/attention_rows.cuh"
#include "device/cuda/plugin/wgmma.cuh"

namespace {

constexpr int THREADS = GROUP, ROWS = GROUP_ROWS, STEP = 64;
template <int D> constexpr int TILE = STEP *D;

/* ---- tiles and products ---- */

/* Begins the copies of rows at .. at+STEP-1, which are `stride` elements from each other; zeros from row
 * `end` on. A thread copies one column of 16-byte segments. */
template <int D>
INLINE void fetch_panels(const Bf16 *from, int64_t stride, int64_t at, int64_t end, Bf16 *to) {
    constexpr int VECTORS = D / 8, AT_ONCE = THREADS / VECTORS;
    static_assert(AT_ONCE % 8 == 0 && STEP % AT_ONCE == 0, "rows of a thread lie alike in panels");
    int r = (int)threadIdx.x / VECTORS, i = (int)threadIdx.x % VECTORS;
    int there = (int)smaller(end - at, STEP) - r;
    const Bf16 *row = from + (at + r) * stride + i * 8;
    to += place_in_panels(STEP, r, i);
#pragma unroll
    for (int e = 0; e < STEP; e += AT_ONCE, row += AT_ONCE * stride)
        copy_async<16>(to + e * PANEL, row, e < there);
}

/* Waits for this thread's copies and makes them visible to products; after its barrier that holds
 * for all threads. */
INLINE void step_is_there(void) {
    copies_wait();
    copies_shown();
    __syncthreads();
}

INLINE Matrix tile_of(const Bf16 *tile) { return matrix_of(tile, STEP); }

/* Begins s = rows of D * the rows of a tile. */
template <int D> INLINE void begin_dots(Sums<STEP> &s, const Left<D> &rows, Matrix tile) {
    group_begin();
#pragma unroll
    for (int i = 0; i < D / 16; i++) group_multiply<false>(s.of, rows.of[i], rows_of(tile, i * 16), i > 0);
    group_end();
}
/* The same with the left rows in shared memory. */
template <int D> INLINE void begin_dots(Sums<STEP> &s, Matrix rows, Matrix tile) {
    group_begin();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        group_multiply(s.of, rows_of(rows, i * 16), rows_of(tile, i * 16), i > 0);
    group_end();
}
/* Begins sums += weights * a tile's rows. The caller must call group_end(). */
template <int D> INLINE void begin_weighted(Sums<D> &sums, const Left<STEP> &weights, Matrix tile) {
    group_begin();
#pragma unroll
    for (int m = 0; m < STEP / 16; m++)
        group_multiply<true>(sums.of, weights.of[m], columns_of(tile, m * 16), true);
}
/* Waits until all but the last LEFT groups are done, among them the one of these sums. */
template <int LEFT, int N> INLINE void wait_for(Sums<N> &sums) {
    group_wait<LEFT>();
    settle(sums.of);
}

/* ---- forward ---- */

template <int D>
__global__ void __launch_bounds__(THREADS, D == 64 ? 3 : 2)
    wgmma_forward_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, Bf16 *out, float *lse) {
    PANELS(smem);
    Bf16 *k = (Bf16 *)smem, *v = k + 2 * TILE<D>; /* two slots of each */
    /* Blocks of the longest rows start first. */
    int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y;
    const Bf16 *k_head = keys + head / (a.s.heads / a.s.kv_heads) * D, *v_head = k_head + a.s.kv_heads * D;
    KeyRange seen = keys_seen_by(a, first, ROWS, STEP);
    int steps = (seen.end - seen.start + STEP - 1) / STEP;
    auto fetch = [&](const Bf16 *from, int step, Bf16 *slots) {
        if (step < steps)
            fetch_panels<D>(from, a.r.kv_row, seen.start + step * STEP, a.r.keys, slots + step % 2 * TILE<D>);
    };
    fetch(k_head, 0, k);
    Left<D> q;
    q.load(queries + head * D, a.r.q_row, first + warp_row(), a.s.tokens);
    Sums<STEP> s;
    Sums<D> o;
    Softmax soft = softmax_of(a, head);
    float unit = unit_of(a), shrink[2];
    o.clear();
    step_is_there();
    fetch(k_head, 1, k);
    fetch(v_head, 0, v);
    begin_dots(s, q, tile_of(k));
    wait_for<0>(s);
    hide_unseen(seen, seen.start, s);
    weigh(soft, s, unit, shrink);
    for (int step = 1; step < steps; step++) {
        step_is_there();
        fetch(k_head, step + 1, k);
        fetch(v_head, step, v);
        Left<STEP> weights = rounded(s);
        begin_dots(s, q, tile_of(k + step % 2 * TILE<D>));
        begin_weighted(o, weights, tile_of(v + (step - 1) % 2 * TILE<D>));
        group_end();
        wait_for<1>(s);
        hide_unseen(seen, seen.start + step * STEP, s);
        weigh(soft, s, unit, shrink);
        wait_for<0>(o);
        shrink_results(o, shrink);
    }
    step_is_there();
    begin_weighted(o, rounded(s), tile_of(v + (steps - 1) % 2 * TILE<D>));
    group_end();
    wait_for<0>(o);
    write_results(a, soft, o, first + warp_row(), out + head * D, lse + head * a.s.tokens);
}

/* ---- backward ---- */

template <int D>
__global__ void __launch_bounds__(THREADS, 2)
    wgmma_query_gradient_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, Gradients<Bf16> g) {
    PANELS(smem);
    Bf16 *k = (Bf16 *)smem, *v = k + 3 * TILE<D>; /* three slots of keys, two of values */
    int64_t tokens = a.s.tokens, first = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y;
    const Bf16 *k_head = keys + head / (a.s.heads / a.s.kv_heads) * D, *v_head = k_head + a.s.kv_heads * D;
    KeyRange seen = keys_seen_by(a, first, ROWS, STEP);
    int steps = (seen.end - seen.start + STEP - 1) / STEP;
    auto fetch = [&](int step) {
        int key = seen.start + step * STEP;
        if (step >= steps) return;
        fetch_panels<D>(k_head, a.r.kv_row, key, a.r.keys, k + step % 3 * TILE<D>);
        fetch_panels<D>(v_head, a.r.kv_row, key, a.r.keys, v + step % 2 * TILE<D>);
    };
    fetch(0);
    Left<D> q, dout;
    q.load(queries + head * D, a.r.q_row, first + warp_row(), tokens);
    dout.load(g.dout + head * D, (int64_t)a.s.heads * D, first + warp_row(), tokens);
    Sums<STEP> s, ds;
    Sums<D> dq;
    Left<STEP> slopes;
    float unit = unit_of(a), lse[2], delta[2];
    row_facts(a, seen, g, head, lse, delta);
    dq.clear();
    for (int step = 0; step < steps; step++) {
        step_is_there();
        fetch(step + 1);
        begin_dots(s, q, tile_of(k + step % 3 * TILE<D>));
        begin_dots(ds, dout, tile_of(v + step % 2 * TILE<D>));
        if (step > 0) begin_weighted(dq, slopes, tile_of(k + (step - 1) % 3 * TILE<D>));
        group_end();
        wait_for<2>(s);
        hide_unseen(seen, seen.start + step * STEP, s);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s.of[n][i] = weight_of(unit, s.of[n][i], lse[i / 2]);
        wait_for<0>(ds);
        settle(dq.of);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) ds.of[n][i] = slope_of(s.of[n][i], ds.of[n][i], delta[i / 2]);
        slopes = rounded(ds);
    }
    begin_weighted(dq, slopes, tile_of(k + (steps - 1) % 3 * TILE<D>));
    group_end();
    wait_for<0>(dq);
    dq.scale(a.scale, a.scale);
    dq.write(g.dq + head * D, a.r.q_row, first + warp_row(), tokens);
}

/* Bytes of a slot: queries, dout and facts. */
template <int D> constexpr int SLOT = 2 * TILE<D> *(int)sizeof(Bf16) + 1024;
static_assert(Facts<STEP>::BYTES <= 1024, "facts lie behind panels, and panels behind them");

/* A block walks over all heads of its group, and for each over the steps of queries. Past the last query
 * there are zeros, which add nothing. */
template <int D>
__global__ void __launch_bounds__(THREADS, D == 64 ? 3 : 2)
    wgmma_key_gradient_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, Gradients<Bf16> g) {
    PANELS(smem);
    Bf16 *k = (Bf16 *)smem, *v = k + TILE<D>;
    char *slots = smem + 2 * TILE<D> * sizeof(Bf16); /* two slots */
    int64_t tokens = a.s.tokens, first = (int64_t)blockIdx.x * ROWS, kv = blockIdx.y,
            width = (int64_t)a.s.kv_heads * D;
    auto facts_in = [&](char *slot) { return Facts<STEP>::in(slot + 2 * TILE<D> * sizeof(Bf16)); };
    auto fetch = [&](Walk w, char *slot) {
        fetch_panels<D>(queries + w.head * D, a.r.q_row, w.at, tokens, (Bf16 *)slot);
        fetch_panels<D>(g.dout + w.head * D, (int64_t)a.s.heads * D, w.at, tokens, (Bf16 *)slot + TILE<D>);
        facts_in(slot).fetch(a, g, w.head, w.at);
    };
    fetch_panels<D>(keys + kv * D, a.r.kv_row, first, a.r.keys, k);
    fetch_panels<D>(keys + kv * D + width, a.r.kv_row, first, a.r.keys, v);
    Walk w = walk_of(a, first, ROWS, kv, STEP);
    if (w.steps > 0) fetch(w, slots);
    Sums<STEP> s, ds;
    Sums<D> dk, dv;
    float unit = unit_of(a);
    dk.clear();
    dv.clear();
    for (int step = 0; step < w.steps; step++) {
        char *slot = slots + step % 2 * SLOT<D>;
        const Bf16 *q = (Bf16 *)slot, *dout = q + TILE<D>;
        Facts<STEP> f = facts_in(slot);
        int64_t here = w.at;
        step_is_there();
        w.advance(STEP);
        if (step + 1 < w.steps) fetch(w, slots + (step + 1) % 2 * SLOT<D>);
        begin_dots<D>(s, tile_of(k), tile_of(q));
        begin_dots<D>(ds, tile_of(v), tile_of(dout));
        wait_for<1>(s);
        hide_unseen(a, f, first, ROWS, here, s);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s.of[n][i] = weight_of(unit, s.of[n][i], f.pair(f.lse, n)[i % 2]);
        wait_for<0>(ds);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                ds.of[n][i] = slope_of(s.of[n][i], ds.of[n][i], f.pair(f.delta, n)[i % 2]);
        Left<STEP> weights = rounded(s), slopes = rounded(ds);
        begin_weighted(dv, weights, tile_of(dout));
        begin_weighted(dk, slopes, tile_of(q));
        group_end();
        wait_for<0>(dk);
        settle(dv.of);
    }
    copies_wait(); /* where no query sees these keys, nothing has waited for their copies */
    write_key_gradients(a, g, dk, dv, kv, first + warp_row());
}

/* ---- launches ---- */

/* Runs the statement with D the head dimension. */
#define BY_HEAD(dim, ...)          \
    do {                           \
        if ((dim) == 64) {         \
            constexpr int D = 64;  \
            __VA_ARGS__;           \
        } else {                   \
            constexpr int D = 128; \
            __VA_ARGS__;           \
        }                          \
    } while (0)

template <int D> constexpr size_t tiles_bytes(int tiles) { return (size_t)tiles * TILE<D> * sizeof(Bf16); }

} // namespace

bool attention_takes_wgmma(Device *d, AttentionShape s, Dtype c) {
    return cuda_chip(d) == 90 && c == DTYPE_BF16 && (s.head_dim == 64 || s.head_dim == 128) && s.cap <= 0;
}

void attention_wgmma_forward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Bf16 *out, float *lse) {
    Grid grid(blocks_of(a.s.tokens, ROWS), a.s.heads);
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_FORWARD, wgmma_forward_kernel<D>, grid, THREADS,
                                       tiles_bytes<D>(4), a, q, kv, out, lse));
}

void attention_wgmma_backward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Gradients<Bf16> g) {
    Grid queries(blocks_of(a.s.tokens, ROWS), a.s.heads), keys(blocks_of(a.r.keys, ROWS), a.s.kv_heads);
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, wgmma_query_gradient_kernel<D>, queries,
                                       THREADS, tiles_bytes<D>(5), a, q, kv, g));
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, wgmma_key_gradient_kernel<D>, keys, THREADS,
                                       tiles_bytes<D>(2) + 2 * SLOT<D>, a, q, kv, g));
}
