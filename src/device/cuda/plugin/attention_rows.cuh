/* What the attention kernels by matrix instructions keep in registers, for one warp or for a warpgroup. A
 * warp has 16 rows (queries, or keys in the kernel of their gradients) and walks over the other side in
 * steps. mma.cuh says which elements of operands and sums a lane holds. attention_mma.cu multiplies by one
 * warp, attention_wgmma.cu by four.
 *
 * Steps of keys begin at multiples of their size, whatever the range of queries, and are taken in ascending
 * order. So the sums of a query do not depend on its position among the rows. A step of which a query sees
 * nothing leaves its sums unchanged. Weights are rounded to bf16 before they are multiplied, but their sum is
 * that of the unrounded ones.
 *
 * Scores, times unit_of(), are to base 2: a weight is 2^(score unit - largest). */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_ATTENTION_ROWS_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_ATTENTION_ROWS_CUH

#include "device/cuda/plugin/attention.cuh"
#include "device/cuda/plugin/mma.cuh"

constexpr int WARP_ROWS = 16;
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

/* The first of this warp's rows in the block. */
INLINE int warp_row(void) { return (int)threadIdx.x / WARP * WARP_ROWS; }
/* A lane holds, of sums [16][8], rows lane_row() and lane_row() + 8, columns lane_column() and the next. */
INLINE int lane_row(void) { return lane() / 4; }
INLINE int lane_column(void) { return lane() % 4 * 2; }

/* ---- rows of a warp ---- */

template <int D> struct Left {
    uint32_t of[D / 16][4];
    /* Loads rows of a tensor, `stride` elements from each other; zeros from row `end` on. */
    INLINE void load(const Bf16 *from, int64_t stride, int64_t first, int64_t end) {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t row = first + lane_row() + i % 2 * 8;
                int column = k * 16 + i / 2 * 8 + lane_column();
                of[k][i] = row < end ? load_pair(from + row * stride + column) : 0;
            }
    }
};

/* A warp's sums [16][N]. */
template <int N> struct Sums {
    float of[N / 8][4];
    INLINE void clear(void) {
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            for (int i = 0; i < 4; i++) of[n][i] = 0;
    }
    INLINE void scale(float first, float second) {
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            of[n][0] *= first, of[n][1] *= first, of[n][2] *= second, of[n][3] *= second;
    }
    template <typename T> INLINE void write(T *to, int64_t stride, int64_t first, int64_t end) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t row = first + lane_row() + r * 8;
            if (row >= end) continue;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                put(to + row * stride + n * 8 + lane_column(), of[n][2 * r], of[n][2 * r + 1]);
        }
    }
    INLINE static void put(float *to, float x, float y) { to[0] = x, to[1] = y; }
    INLINE static void put(Bf16 *to, float x, float y) { store_pair(to, pair_of(x, y)); }
};

/* Rounds sums to bf16, as the left operand of a product whose inner dimension is their columns. */
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

/* The factor that turns sums of products, once capped, into scores to base 2. */
INLINE float unit_of(Attention a) { return a.s.cap > 0 ? LOG2_E * a.s.cap : LOG2_E * a.scale; }
template <int N> INLINE void cap_scores(Attention a, Sums<N> &s) {
    if (a.s.cap <= 0) return;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) s.of[n][i] = tanhf(s.of[n][i] * (a.scale / a.s.cap));
}

/* What the queries of a block see of the keys, which are taken in steps, and how far back each of the lane's
 * two queries sees. Positions are below 2^31, as first keys are. */
struct KeyRange {
    int from, end, start; /* queries from .. end-1; start: the first step of keys that they see */
    int full;             /* all of them see every key of full .. from */
    int lowest[2], token[2];
};
/* For a block's `rows` queries from `first` on. A row past the last query sees the keys of the last query,
 * and is not written. */
INLINE KeyRange keys_seen_by(Attention a, int64_t first, int rows, int step) {
    KeyRange v;
    auto lowest = [&](int token) { return (int)window_first(a.s, token, a.firsts[token]); };
    v.end = (int)(a.r.first + smaller(first + rows, a.s.tokens));
    v.from = (int)smaller(a.r.first + first, v.end - 1);
    v.start = lowest(v.from) / step * step;
    v.full = lowest(v.end - 1);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        v.token[r] = (int)smaller(v.from + (warp_row() + lane_row()) + r * 8, v.end - 1);
        v.lowest[r] = lowest(v.token[r]);
    }
    return v;
}
/* Whether all queries see all keys of the step that begins at `key`. */
INLINE bool sees_all(KeyRange v, int key, int step) { return key >= v.full && key + step - 1 <= v.from; }

/* Keys of a step that the lane's query r sees: first[r] .. last[r], counted from the start of the step. */
struct Window {
    int first[2], last[2];
    INLINE bool sees(int r, int column) const { return column >= first[r] && column <= last[r]; }
};
INLINE Window window_of(KeyRange v, int key) {
    return {{v.lowest[0] - key, v.lowest[1] - key}, {v.token[0] - key, v.token[1] - key}};
}

/* Sets the scores of keys that a query does not see to minus infinity. */
template <int N> INLINE void hide_unseen(KeyRange v, int key, Sums<N> &s) {
    if (sees_all(v, key, N)) return;
    Window w = window_of(v, key);
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!w.sees(i / 2, n * 8 + lane_column() + i % 2)) s.of[n][i] = -INFINITY;
}

/* The online softmax of the lane's two rows: the largest score so far, and the lane's partial sum of weights
 * relative to it. */
struct Softmax {
    float most[2], sum[2];
};
/* The softmax before any key: only the sink. */
INLINE Softmax softmax_of(Attention a, int64_t head) {
    float sink = sink_of(a, head) * LOG2_E;
    float begun = a.s.sinks && lane_column() == 0 ? 1 : 0; /* only one lane of a row counts it */
    return {{sink, sink}, {begun, begun}};
}

/* Turns scores into weights relative to the largest score so far. Earlier results must be multiplied by
 * `shrink`. */
template <int N> INLINE void weigh(Softmax &soft, Sums<N> &s, float unit, float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(s.of[n][2 * r], s.of[n][2 * r + 1]));
        top = fmaxf(soft.most[r], lanes_max(top, 4) * unit);
        /* No key was seen yet: avoid infinity minus infinity. */
        float base = top == -INFINITY ? 0 : top;
        shrink[r] = exp2_fast(soft.most[r] - base);
        soft.most[r] = top;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s.of[n][i] = exp2_fast(FUSED(s.of[n][i], unit, -base));
                sum += s.of[n][i];
            }
        soft.sum[r] = FUSED(soft.sum[r], shrink[r], sum);
    }
}

/* Rescales the results so far, unless no row of the warp found a larger score than before. */
template <int D> INLINE void shrink_results(Sums<D> &o, const float (&shrink)[2]) {
    if (__ballot_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) o.scale(shrink[0], shrink[1]);
}

/* Writes rows of one head's results, and the logarithms of their sums; `row` is the first row of the warp. */
template <int D>
INLINE void write_results(Attention a, Softmax soft, Sums<D> &o, int64_t row, Bf16 *out, float *lse) {
    float sum[2] = {lanes_sum(soft.sum[0], 4), lanes_sum(soft.sum[1], 4)};
    o.scale(1 / sum[0], 1 / sum[1]);
    o.write(out, (int64_t)a.s.heads * D, row, a.s.tokens);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t t = row + lane_row() + r * 8;
        if (lane_column() == 0 && t < a.s.tokens) lse[t] = soft.most[r] * LN_2 + logf(sum[r]);
    }
}

/* ---- gradients ---- */

/* lse and delta of the lane's two queries. */
INLINE void row_facts(Attention a, KeyRange v, const Gradients<Bf16> &g, int64_t head, float (&lse)[2],
                      float (&delta)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t at = head * a.s.tokens + v.token[r] - a.r.first;
        lse[r] = g.lse[at];
        delta[r] = g.delta[at];
    }
}

/* The softmax weight of a score. */
INLINE float weight_of(float unit, float score, float lse) {
    return exp2_fast(FUSED(score, unit, -lse * LOG2_E));
}
/* The gradient of that score, without the factors of the scale and the cap. */
INLINE float slope_of(float weight, float grad, float delta) { return weight * (grad - delta); }
INLINE float slope_of_cap(Attention a, float score) {
    return a.s.cap > 0 && score > -INFINITY ? 1 - score * score : 1;
}

/* lse, delta and first keys of a step's N queries, in shared memory. */
template <int N> struct Facts {
    float *lse, *delta;
    int32_t *first_key;
    /* The values of columns 8 n + lane_column() and the next. */
    INLINE static const float *pair(const float *facts, int n) { return facts + n * 8 + lane_column(); }
    static constexpr int BYTES = 3 * N * 4;
    INLINE static Facts in(char *smem) {
        float *f = (float *)smem;
        return {f, f + N, (int32_t *)(f + 2 * N)};
    }
    /* Begins the copies for queries from `at` on; zeros past the last query. */
    INLINE void fetch(Attention a, const Gradients<Bf16> &g, int64_t head, int64_t at) {
        int i = (int)threadIdx.x;
        if (i >= N) return;
        bool there = at + i < a.s.tokens;
        int64_t t = there ? at + i : 0;
        copy_async<4>(lse + i, g.lse + head * a.s.tokens + t, there);
        copy_async<4>(delta + i, g.delta + head * a.s.tokens + t, there);
        copy_async<4>(first_key + i, a.firsts + a.r.first + t, there);
    }
};

/* Returns the first step of queries, from `low` on, whose first query sees no key up to `last`. Later steps
 * see none either, since first keys never decrease. */
INLINE int64_t steps_that_see(Attention a, int64_t low, int64_t last, int step) {
    int64_t high = (a.s.tokens + step - 1) / step;
    while (low < high) {
        int64_t middle = (low + high) / 2, token = a.r.first + middle * step;
        if (window_first(a.s, token, a.firsts[token]) <= last)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The same for a block's `rows` keys from `first` on and a step's queries from `at` of the range on. A query
 * sees its window up to its own key. */
template <int N>
INLINE void hide_unseen(Attention a, Facts<N> f, int64_t first, int rows, int64_t at, Sums<N> &s) {
    int64_t token = a.r.first + at, last = token + N - 1;
    if (at + N <= a.s.tokens && token >= first + rows - 1 &&
        window_first(a.s, last, f.first_key[N - 1]) <= first)
        return;
    int window = (int)smaller(a.s.window, INT32_MAX), key = (int)(first - token) + (warp_row() + lane_row());
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int column = n * 8 + lane_column() + i, begins = (int)(f.first_key[column] - token);
            if (window > 0 && begins < column - window + 1) begins = column - window + 1;
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (key + 8 * r > column || key + 8 * r < begins) s.of[n][2 * r + i] = -INFINITY;
        }
}

/* The walk of a block of keys: for each query head of its group, queries `begin` to `end` by steps. */
struct Walk {
    int64_t begin, end;
    int64_t head, at;
    int steps;
    INLINE void advance(int step) {
        at += step;
        if (at >= end) at = begin, head++;
    }
};
/* For `rows` keys from `first` on. */
INLINE Walk walk_of(Attention a, int64_t first, int rows, int64_t kv, int step) {
    int64_t begin = first > a.r.first ? (first - a.r.first) / step : 0; /* the first step that sees them */
    int64_t end = steps_that_see(a, begin, smaller(first + rows, a.r.keys) - 1, step);
    int group = a.s.heads / a.s.kv_heads;
    return {begin * step, end * step, kv * group, begin * step, (int)(group * larger(end - begin, 0))};
}

/* Writes the gradients of one head's keys and values; `row` is the first row of the warp. */
template <int D>
INLINE void write_key_gradients(Attention a, Gradients<Bf16> g, Sums<D> &dk, const Sums<D> &dv, int64_t kv,
                                int64_t row) {
    int64_t width = (int64_t)a.s.kv_heads * D;
    dk.scale(a.scale, a.scale);
    if (a.r.partial) {
        float *to = (float *)g.dkv + kv * D;
        dk.write(to, 2 * width, row, a.r.keys);
        dv.write(to + width, 2 * width, row, a.r.keys);
    } else {
        Bf16 *to = (Bf16 *)g.dkv + kv * D;
        dk.write(to, a.r.kv_row, row, a.r.keys);
        dv.write(to + width, a.r.kv_row, row, a.r.keys);
    }
}

#endif
