/* Attention by matrix instructions, for bf16 heads of a multiple of 16 elements up to 128: Dao,
 * "FlashAttention-2", 2023. device/cpu/reference_attention.c has the formulas.
 *
 * A block has four warps and 64 rows: queries, or, for their gradients, keys. Each warp keeps the sums of 16
 * of them in registers, and walks over the other side in steps, for which shared memory has room twice: while
 * one is multiplied, the next is copied. A thread waits for its copies; then a barrier says that those of all
 * are there, and that the step before is no longer read, so that the next one may be fetched over it.
 *
 * Steps of keys begin at multiples of their size, whichever run the queries are of, and are taken in
 * ascending order: a query's sums do not hang on its place among rows. A step of which it sees nothing leaves
 * its sums as they are. Weights are rounded to bf16 before they are multiplied and before they are added up.
 *
 * The backward pass has no atomics: two kernels, each of which makes the scores again. That of keys has them
 * transposed, keys by queries, so that weights are left operands as they come.
 *
 * Rows in shared memory are 16 bytes longer than heads: eight rows next to each other, which an instruction
 * reads at once, lie in different banks. */
#include "device/cuda/plugin/attention.cuh"
#include "device/cuda/plugin/mma.cuh"

namespace {

constexpr int THREADS = 128, WARP_ROWS = 16, ROWS = THREADS / WARP * WARP_ROWS;
constexpr int STEP = 64;       /* keys of a step, forward */
constexpr int SHORT_STEP = 32; /* rows of a step, backward: twice as many sums are in registers */
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

template <int D> constexpr int PITCH = D + 8;

INLINE int warp_row(void) { return (int)threadIdx.x / WARP * WARP_ROWS; }
/* Of sums of 16 x 8 a lane has, in rows lane_row() and 8 further, columns lane_column() and the next. */
INLINE int lane_row(void) { return lane() / 4; }
INLINE int lane_column(void) { return lane() % 4 * 2; }

/* ---- tiles ---- */

/* Rows at .. at+N-1, `apart` elements from each other, on their way; zeros behind `end`. */
template <int D, int N>
INLINE void fetch_tile(const Bf16 *from, int64_t apart, int64_t at, int64_t end, Bf16 *to) {
    constexpr int PIECE = 8, PIECES = D / PIECE;
    for (int e = (int)threadIdx.x; e < N * PIECES; e += THREADS) {
        int r = e / PIECES, i = e % PIECES * PIECE;
        bool there = at + r < end;
        copy_async<16>(to + r * PITCH<D> + i, from + (there ? at + r : 0) * apart + i, there);
    }
}

/* 16 x 16 at (row, column) of a tile, as a left operand. */
template <int D> INLINE void read_left(uint32_t (&to)[4], const Bf16 *tile, int row, int column) {
    load_matrices(to, tile + (row + lane() % 16) * PITCH<D> + column + lane() / 16 * 8);
}
/* The same, as two right operands whose columns are the tile's rows. */
template <int D> INLINE void read_rows(uint32_t (&to)[4], const Bf16 *tile, int row, int column) {
    load_matrices(to, tile + (row + lane() / 16 * 8 + lane() % 8) * PITCH<D> + column + lane() / 8 % 2 * 8);
}
/* The same, as two right operands whose columns are the tile's. */
template <int D> INLINE void read_columns(uint32_t (&to)[4], const Bf16 *tile, int row, int column) {
    load_matrices_transposed(to, tile + (row + lane() % 16) * PITCH<D> + column + lane() / 16 * 8);
}

/* ---- rows of a warp, in registers ---- */

template <int D> struct Left {
    uint32_t of[D / 16][4];
    /* Rows of a tensor, zeros behind `end`. */
    INLINE void load(const Bf16 *from, int64_t apart, int64_t first, int64_t end) {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t row = first + lane_row() + i % 2 * 8;
                int column = k * 16 + i / 2 * 8 + lane_column();
                of[k][i] = row < end ? load_pair(from + row * apart + column) : 0;
            }
    }
};

/* 16 x N sums of a warp. */
template <int N> struct Sums {
    float of[N / 8][4];
    INLINE void clear(void) {
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            for (int i = 0; i < 4; i++) of[n][i] = 0;
    }
    /* Two columns of eight, += left * right. */
    INLINE void add(int n, const uint32_t (&left)[4], const uint32_t (&right)[4]) {
        multiply_matrices(of[n], left, right[0], right[1]);
        multiply_matrices(of[n + 1], left, right[2], right[3]);
    }
    /* += columns column .. column+15 of rows of D, times those of a tile of N rows. */
    template <int D> INLINE void add_dots(const uint32_t (&left)[4], const Bf16 *tile, int column) {
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            uint32_t right[4];
            read_rows<D>(right, tile, n, column);
            add(n / 8, left, right);
        }
    }
    /* += weights of M rows of a tile * these rows. */
    template <int M> INLINE void add_weighted(const Left<M> &weights, const Bf16 *tile) {
#pragma unroll
        for (int m = 0; m < M / 16; m++)
#pragma unroll
            for (int n = 0; n < N; n += 16) {
                uint32_t right[4];
                read_columns<N>(right, tile, m * 16, n);
                add(n / 8, weights.of[m], right);
            }
    }
    INLINE void scale(float first, float second) {
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            of[n][0] *= first, of[n][1] *= first, of[n][2] *= second, of[n][3] *= second;
    }
    template <typename T> INLINE void write(T *to, int64_t apart, int64_t first, int64_t end) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t row = first + lane_row() + r * 8;
            if (row >= end) continue;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                put(to + row * apart + n * 8 + lane_column(), of[n][2 * r], of[n][2 * r + 1]);
        }
    }
    INLINE static void put(float *to, float x, float y) { to[0] = x, to[1] = y; }
    INLINE static void put(Bf16 *to, float x, float y) { store_pair(to, pair_of(x, y)); }
};

/* Rounded to bf16, as a left operand: columns become what is summed over. */
template <int N> INLINE Left<N> rounded(const Sums<N> &s) {
    Left<N> left;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            left.of[n / 2][n % 2 * 2 + r] = pair_of(s.of[n][2 * r], s.of[n][2 * r + 1]);
    return left;
}

/* ---- scores ---- */

/* Sums of products become scores in units of log 2: capped, then times `unit`. */
INLINE float unit_of(Attention a) { return a.s.cap > 0 ? LOG2_E * a.s.cap : LOG2_E * a.scale; }
template <int N> INLINE void cap_scores(Attention a, Sums<N> &s) {
    if (a.s.cap <= 0) return;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) s.of[n][i] = tanhf(s.of[n][i] * (a.scale / a.s.cap));
}

/* Queries of a run in steps: which the block has, and how far back each of a lane's two sees. */
struct Seen {
    int64_t from, end, start; /* tokens of the run's queries, the first that is seen in front of them */
    int64_t whole;            /* what all of them see, up to the first of them */
    int64_t lowest[2], token[2];
};
/* Steps of `step` keys. A row behind the last query sees what that does, and is not written. */
INLINE Seen seen_by(Attention a, const int32_t *first_key, int64_t first, int step) {
    Seen v;
    v.from = a.r.first + first;
    v.end = a.r.first + smaller(first + ROWS, a.s.tokens);
    v.start = window_first(a.s, v.from, first_key[v.from]) / step * step;
    v.whole = window_first(a.s, v.end - 1, first_key[v.end - 1]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        v.token[r] = smaller(v.from + warp_row() + lane_row() + r * 8, v.end - 1);
        v.lowest[r] = window_first(a.s, v.token[r], first_key[v.token[r]]);
    }
    return v;
}
/* Whether all queries see all keys of a step. */
INLINE bool sees_all(Seen v, int64_t key, int step) { return key >= v.whole && key + step - 1 <= v.from; }
/* Whether a lane's query r sees a key. */
INLINE bool sees(Seen v, int r, int64_t key) { return key <= v.token[r] && key >= v.lowest[r]; }

/* ---- forward ---- */

/* Two rows as far as keys have been seen: the largest score, a lane's part of the sum relative to it. */
struct Softmax {
    float most[2], sum[2];
};

/* Scores become weights, and results so far are made relative to the largest score. */
template <int D> INLINE Left<STEP> weigh(Softmax &soft, Sums<STEP> &s, Sums<D> &o, float unit) {
    float shrink[2], base[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) top = fmaxf(top, fmaxf(s.of[n][2 * r], s.of[n][2 * r + 1]));
        top = fmaxf(soft.most[r], lanes_max(top, 4) * unit);
        /* Nothing seen yet: infinity minus infinity is to be avoided. */
        base[r] = top == -INFINITY ? 0 : top;
        shrink[r] = exp2_fast(soft.most[r] - base[r]);
        soft.most[r] = top;
        soft.sum[r] *= shrink[r];
    }
    o.scale(shrink[0], shrink[1]);
#pragma unroll
    for (int n = 0; n < STEP / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s.of[n][i] = exp2_fast(FUSED(s.of[n][i], unit, -base[i / 2]));
    Left<STEP> weights = rounded(s);
#pragma unroll
    for (int k = 0; k < STEP / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            soft.sum[i % 2] += widen((uint16_t)weights.of[k][i]) + widen((uint16_t)(weights.of[k][i] >> 16));
    return weights;
}

template <int D>
__global__ void __launch_bounds__(THREADS)
    mma_forward_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, const int32_t *first_key,
                       Bf16 *out, float *lse) {
    DYNAMIC_SHARED(room);
    constexpr int TILE = STEP * PITCH<D>;
    Bf16 *tiles = (Bf16 *)room; /* keys and values of even steps, of odd ones */
    /* The longest rows first. */
    int64_t tokens = a.s.tokens, first = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y;
    const Bf16 *k_head = keys + head / (a.s.heads / a.s.kv_heads) * D, *v_head = k_head + a.s.kv_heads * D;
    auto fetch = [&](int64_t key, Bf16 *to) {
        fetch_tile<D, STEP>(k_head, a.r.kv_row, key, a.r.keys, to);
        fetch_tile<D, STEP>(v_head, a.r.kv_row, key, a.r.keys, to + TILE);
    };
    Seen v = seen_by(a, first_key, first, STEP);
    fetch(v.start, tiles);
    Left<D> q;
    q.load(queries + head * D, a.r.q_row, first + warp_row(), tokens);
    Sums<D> o;
    float unit = unit_of(a), sink = sink_of(a, head) * LOG2_E;
    float begun = a.s.sinks && lane_column() == 0 ? 1 : 0; /* one lane of a row has it */
    Softmax soft = {{sink, sink}, {begun, begun}};
    o.clear();
    for (int64_t key = v.start; key < v.end; key += STEP) {
        Bf16 *k = tiles + (key - v.start) / STEP % 2 * 2 * TILE;
        copies_wait();
        __syncthreads();
        if (key + STEP < v.end) fetch(key + STEP, tiles + (key + STEP - v.start) / STEP % 2 * 2 * TILE);
        Sums<STEP> s;
        s.clear();
#pragma unroll
        for (int i = 0; i < D / 16; i++) s.template add_dots<D>(q.of[i], k, i * 16);
        cap_scores(a, s);
        if (!sees_all(v, key, STEP))
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!sees(v, i / 2, key + n * 8 + lane_column() + i % 2)) s.of[n][i] = -INFINITY;
        o.add_weighted(weigh(soft, s, o, unit), k + TILE);
    }
    float sum[2] = {lanes_sum(soft.sum[0], 4), lanes_sum(soft.sum[1], 4)};
    o.scale(1 / sum[0], 1 / sum[1]);
    o.write(out + head * D, (int64_t)a.s.heads * D, first + warp_row(), tokens);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t t = first + warp_row() + lane_row() + r * 8;
        if (lane_column() == 0 && t < tokens) lse[head * tokens + t] = soft.most[r] * LN_2 + logf(sum[r]);
    }
}

/* ---- backward ---- */

/* A weight of the softmax, and the gradient of its score but for the scale. */
struct Weight {
    float p, ds;
};
INLINE Weight weight_of(Attention a, float unit, bool seen, float score, float grad, float lse, float delta) {
    float p = seen ? exp2_fast(FUSED(score, unit, -lse * LOG2_E)) : 0;
    float slope = a.s.cap > 0 ? 1 - score * score : 1;
    return {p, p * (grad - delta) * slope};
}

template <int D>
__global__ void __launch_bounds__(THREADS)
    mma_query_gradient_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, const int32_t *first_key,
                              Gradients g) {
    DYNAMIC_SHARED(room);
    constexpr int TILE = SHORT_STEP * PITCH<D>;
    Bf16 *tiles = (Bf16 *)room; /* as in the forward pass */
    int64_t tokens = a.s.tokens, first = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y;
    const Bf16 *k_head = keys + head / (a.s.heads / a.s.kv_heads) * D, *v_head = k_head + a.s.kv_heads * D;
    auto fetch = [&](int64_t key, Bf16 *to) {
        fetch_tile<D, SHORT_STEP>(k_head, a.r.kv_row, key, a.r.keys, to);
        fetch_tile<D, SHORT_STEP>(v_head, a.r.kv_row, key, a.r.keys, to + TILE);
    };
    Seen v = seen_by(a, first_key, first, SHORT_STEP);
    fetch(v.start, tiles);
    Left<D> q, dout;
    q.load(queries + head * D, a.r.q_row, first + warp_row(), tokens);
    dout.load(g.dout + head * D, (int64_t)a.s.heads * D, first + warp_row(), tokens);
    Sums<D> dq;
    float unit = unit_of(a), lse[2], delta[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        lse[r] = g.lse[head * tokens + v.token[r] - a.r.first];
        delta[r] = g.delta[head * tokens + v.token[r] - a.r.first];
    }
    dq.clear();
    for (int64_t key = v.start; key < v.end; key += SHORT_STEP) {
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
            s.template add_dots<D>(q.of[i], k, i * 16);
            ds.template add_dots<D>(dout.of[i], k + TILE, i * 16);
        }
        cap_scores(a, s);
        bool all = sees_all(v, key, SHORT_STEP);
#pragma unroll
        for (int n = 0; n < SHORT_STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool seen = all || sees(v, i / 2, key + n * 8 + lane_column() + i % 2);
                ds.of[n][i] = weight_of(a, unit, seen, s.of[n][i], ds.of[n][i], lse[i / 2], delta[i / 2]).ds;
            }
        dq.add_weighted(rounded(ds), k);
    }
    dq.scale(a.scale, a.scale);
    dq.write(g.dq + head * D, a.r.q_row, first + warp_row(), tokens);
}

/* Of a step's queries, [SHORT_STEP] each. */
struct Facts {
    float *lse, *delta;
    int32_t *first_key;
};
INLINE Facts facts_in(char *room) {
    float *f = (float *)room;
    return {f, f + SHORT_STEP, (int32_t *)(f + 2 * SHORT_STEP)};
}
constexpr int FACTS_BYTES = 3 * SHORT_STEP * 4;

/* Steps of queries low .. high-1 are those whose first one sees a key up to `last`: the first that does not,
 * since later ones see less. */
INLINE int64_t steps_that_see(Attention a, const int32_t *first_key, int64_t low, int64_t last) {
    int64_t high = (a.s.tokens + SHORT_STEP - 1) / SHORT_STEP;
    while (low < high) {
        int64_t middle = (low + high) / 2, token = a.r.first + middle * SHORT_STEP;
        if (window_first(a.s, token, first_key[token]) <= last)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* All heads of a group, for each the steps of queries. Behind the last query are zeros: it adds nothing. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    mma_key_gradient_kernel(Attention a, const Bf16 *queries, const Bf16 *keys, const int32_t *first_key,
                            Gradients g) {
    DYNAMIC_SHARED(room);
    constexpr int TILE = SHORT_STEP * PITCH<D>, OWN = ROWS * PITCH<D>;
    constexpr int TURN =
        2 * TILE * (int)sizeof(Bf16) + FACTS_BYTES; /* queries, gradients of results, facts */
    Bf16 *k = (Bf16 *)room, *v = k + OWN;
    char *turns = room + 2 * OWN * sizeof(Bf16);
    int group = a.s.heads / a.s.kv_heads;
    int64_t tokens = a.s.tokens, first = (int64_t)blockIdx.x * ROWS, kv = blockIdx.y, end = a.r.keys,
            width = (int64_t)a.s.kv_heads * D, results = (int64_t)a.s.heads * D;
    int64_t begin = first > a.r.first ? (first - a.r.first) / SHORT_STEP : 0, /* the first that sees it */
        stop = steps_that_see(a, first_key, begin, smaller(first + ROWS, end) - 1);
    auto fetch = [&](int64_t head, int64_t at, char *turn) {
        Facts f = facts_in(turn + 2 * TILE * sizeof(Bf16));
        fetch_tile<D, SHORT_STEP>(queries + head * D, a.r.q_row, at, tokens, (Bf16 *)turn);
        fetch_tile<D, SHORT_STEP>(g.dout + head * D, results, at, tokens, (Bf16 *)turn + TILE);
        int i = (int)threadIdx.x;
        if (i >= SHORT_STEP) return;
        bool there = at + i < tokens;
        int64_t t = there ? at + i : 0;
        copy_async<4>(f.lse + i, g.lse + head * tokens + t, there);
        copy_async<4>(f.delta + i, g.delta + head * tokens + t, there);
        copy_async<4>(f.first_key + i, first_key + a.r.first + t, there);
    };
    Sums<D> dk, dv;
    float unit = unit_of(a);
    dk.clear();
    dv.clear();
    fetch_tile<D, ROWS>(keys + kv * D, a.r.kv_row, first, end, k);
    fetch_tile<D, ROWS>(keys + kv * D + width, a.r.kv_row, first, end, v);
    int64_t head = kv * group, at = begin * SHORT_STEP;
    int steps = (int)(group * larger(stop - begin, 0));
    if (steps > 0) fetch(head, at, turns);
    for (int step = 0; step < steps; step++) {
        char *turn = turns + step % 2 * TURN;
        const Bf16 *q = (Bf16 *)turn, *dout = q + TILE;
        Facts f = facts_in(turn + 2 * TILE * sizeof(Bf16));
        int64_t here = at, token = a.r.first + here;
        copies_wait();
        __syncthreads();
        at += SHORT_STEP;
        if (at >= stop * SHORT_STEP) at = begin * SHORT_STEP, head++;
        if (step + 1 < steps) fetch(head, at, turns + (step + 1) % 2 * TURN);
        Sums<SHORT_STEP> s, ds;
        s.clear();
        ds.clear();
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t left[4];
            read_left<D>(left, k, warp_row(), i * 16);
            s.template add_dots<D>(left, q, i * 16);
            read_left<D>(left, v, warp_row(), i * 16);
            ds.template add_dots<D>(left, dout, i * 16);
        }
        cap_scores(a, s);
        int64_t last = token + SHORT_STEP - 1;
        bool all = here + SHORT_STEP <= tokens && token >= first + ROWS - 1 &&
                   window_first(a.s, last, f.first_key[SHORT_STEP - 1]) <= first;
#pragma unroll
        for (int n = 0; n < SHORT_STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int column = n * 8 + lane_column() + i % 2;
                int64_t key = first + warp_row() + lane_row() + i / 2 * 8, query = token + column;
                bool seen = all || (key <= query && key >= window_first(a.s, query, f.first_key[column]));
                Weight w = weight_of(a, unit, seen, s.of[n][i], ds.of[n][i], f.lse[column], f.delta[column]);
                s.of[n][i] = w.p;
                ds.of[n][i] = w.ds;
            }
        dv.add_weighted(rounded(s), dout);
        dk.add_weighted(rounded(ds), q);
    }
    copies_wait(); /* where no query looked */
    dk.scale(a.scale, a.scale);
    int64_t row = first + warp_row();
    if (a.r.terms) {
        float *to = (float *)g.dkv + kv * D;
        dk.write(to, 2 * width, row, end);
        dv.write(to + width, 2 * width, row, end);
    } else {
        Bf16 *to = (Bf16 *)g.dkv + kv * D;
        dk.write(to, a.r.kv_row, row, end);
        dv.write(to + width, a.r.kv_row, row, end);
    }
}

/* ---- launches ---- */

/* Runs the statement with D the size of heads. */
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

/* Rows in shared memory. */
constexpr size_t rows_bytes(int dim, int rows) { return (size_t)rows * (size_t)(dim + 8) * sizeof(Bf16); }
constexpr size_t forward_bytes(int dim) { return rows_bytes(dim, 4 * STEP); }
constexpr size_t query_gradient_bytes(int dim) { return rows_bytes(dim, 4 * SHORT_STEP); }
constexpr size_t key_gradient_bytes(int dim) {
    return rows_bytes(dim, 2 * ROWS + 4 * SHORT_STEP) + 2 * FACTS_BYTES;
}
/* Of 164 KiB that a multiprocessor of sm_80 has, each block takes one more. */
constexpr size_t HALF = (82 - 1) << 10;
static_assert(forward_bytes(128) <= HALF && key_gradient_bytes(128) <= HALF, "two blocks fit");

/* Copies are of 16 bytes: rows begin at multiples of that. */
void check_rows(Device *d, Attention a, const void *q, const void *kv, const void *other) {
    uintptr_t bits = (uintptr_t)q | (uintptr_t)kv | (uintptr_t)other | (uintptr_t)(a.r.q_row * 2) |
                     (uintptr_t)(a.r.kv_row * 2);
    if (bits % 16 != 0) cuda_fatal(d, "attention: rows that do not begin at multiples of 16 bytes: a bug");
}

} // namespace

bool attention_takes_mma(AttentionShape s, Dtype c) {
    return c == DTYPE_BF16 && s.head_dim % 16 == 0 && s.head_dim <= 128;
}

void attention_mma_forward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, const int32_t *first_key,
                           Bf16 *out, float *lse) {
    Grid grid(blocks_of(a.s.tokens, ROWS), a.s.heads);
    check_rows(d, a, q, kv, out);
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_FORWARD, mma_forward_kernel<D>, grid, THREADS,
                                       forward_bytes(D), a, q, kv, first_key, out, lse));
}

void attention_mma_backward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, const int32_t *first_key,
                            Gradients g) {
    Grid queries(blocks_of(a.s.tokens, ROWS), a.s.heads), keys(blocks_of(a.r.keys, ROWS), a.s.kv_heads);
    check_rows(d, a, q, kv, g.dout);
    check_rows(d, a, g.dq, g.dkv, g.dout);
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, mma_query_gradient_kernel<D>, queries,
                                       THREADS, query_gradient_bytes(D), a, q, kv, first_key, g));
    BY_HEAD(a.s.head_dim, LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, mma_key_gradient_kernel<D>, keys, THREADS,
                                       key_gradient_bytes(D), a, q, kv, first_key, g));
}
