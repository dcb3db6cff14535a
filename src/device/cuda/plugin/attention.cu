/* Attention in tiles of TILE queries and TILE keys, for every even head dimension up to WIDEST and both
 * dtypes, in plain fp32 arithmetic from shared memory. device/cpu/reference_attention.c has the formulas.
 * Heads that a warp's matrix instructions take go to attention_mma.cu, or to attention_wgmma.cu on a GPU with
 * warpgroup instructions.
 *
 * Tiles of keys begin at multiples of TILE, whatever the range of queries, and are taken in ascending order,
 * so that the sums of a query do not depend on the tile it is in. first_key never decreases, so the first
 * query of a tile sees furthest back. A block has 16 x 16 threads. Thread (x, y) has the scores of queries y,
 * y + 16 with keys x, x + 16, and rows y, y + 16, columns x, x + 16, ... of a tile of results. Sixteen
 * adjacent lanes have a row, and share its maximum and sum.
 *
 * The backward pass has no atomics. One kernel gives each block a tile of keys, for which it walks over
 * all heads of the group and their queries; the other gives each block a tile of queries. Both
 * recompute the scores. */
#include "device/cuda/plugin/attention.cuh"

namespace {

constexpr int TILE = 32, SIDE = 16, WEIGHTS = TILE * (TILE + 1), WIDEST = 256;

/* Rows of tiles are one float longer than heads, to avoid bank conflicts between the rows of a column. */
INLINE int pitch_of(Attention a) { return a.s.head_dim + 1; }

/* Loads rows at .. at+TILE-1, which are `stride` elements from each other; zeros from row `end` on. */
template <typename T>
INLINE void load_tile(Attention a, const T *from, int64_t stride, int64_t at, int64_t end, float *to) {
    int dim = a.s.head_dim, pitch = pitch_of(a);
    for (int e = (int)threadIdx.x; e < TILE * dim; e += BLOCK) {
        int r = e / dim, i = e % dim;
        to[r * pitch + i] = at + r < end ? load(from, (at + r) * stride + i) : 0;
    }
}

INLINE float dot(Attention a, const float *x, const float *y) {
    float sum = 0;
    for (int i = 0; i < a.s.head_dim; i++) sum = FUSED(x[i], y[i], sum);
    return sum;
}

INLINE float capped(Attention a, float score) {
    return a.s.cap > 0 ? a.s.cap * tanhf(score / a.s.cap) : score;
}

/* This thread's position in its block. */
struct Position {
    int x, y;
};
INLINE Position position(void) { return {(int)threadIdx.x % SIDE, (int)threadIdx.x / SIDE}; }

/* A thread's sums: columns x, x + 16, ... of rows y and y + 16. */
template <int COLUMNS> struct Sums {
    float of[2][COLUMNS];
    INLINE void clear(void) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            for (int c = 0; c < COLUMNS; c++) of[r][c] = 0;
    }
    /* += weight[r] * a row of a tile */
    INLINE void add(Attention a, Position at, const float weight[2], const float *row) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            int i = at.x + c * SIDE;
            float v = i < a.s.head_dim ? row[i] : 0;
            of[0][c] = FUSED(weight[0], v, of[0][c]);
            of[1][c] = FUSED(weight[1], v, of[1][c]);
        }
    }
    template <typename T>
    INLINE void write(Attention a, const float factor[2], T *to, int64_t stride, int64_t first,
                      int64_t end) const {
        Position at = position();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t row = first + at.y + r * SIDE;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                int i = at.x + c * SIDE;
                if (row < end && i < a.s.head_dim) store(to, row * stride + i, of[r][c] * factor[r]);
            }
        }
    }
};

/* ---- forward ---- */

/* The online softmax of two rows: the largest score so far, and the sum of weights relative to it. */
struct Softmax {
    float most[2], sum[2];
};

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(BLOCK)
    attention_forward_kernel(Attention a, const T *queries, const T *keys, T *out, float *lse) {
    DYNAMIC_SHARED(smem);
    int pitch = pitch_of(a), dim = a.s.head_dim;
    float *q = (float *)smem, *k = q + TILE * pitch, *v = k + TILE * pitch, *weights = v + TILE * pitch;
    /* Blocks of the longest rows start first. */
    int64_t tokens = a.s.tokens, first = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE, head = blockIdx.y;
    int64_t kv = head / (a.s.heads / a.s.kv_heads);
    Position at = position();
    load_tile(a, queries + head * dim, a.r.q_row, first, tokens, q);
    Sums<COLUMNS> o;
    float sink = sink_of(a, head), begun = a.s.sinks ? 1 : 0;
    Softmax soft = {{sink, sink}, {begun, begun}};
    int64_t lowest[2];
    o.clear();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t t = a.r.first + smaller(first + at.y + r * SIDE, tokens - 1);
        lowest[r] = window_first(a.s, t, a.firsts[t]);
    }
    int64_t from = a.r.first + first, start = window_first(a.s, from, a.firsts[from]) / TILE * TILE,
            end = a.r.first + smaller(first + TILE, tokens);
    for (int64_t tile = start; tile < end; tile += TILE) {
        load_tile(a, keys + kv * dim, a.r.kv_row, tile, a.r.keys, k);
        load_tile(a, keys + (kv + a.s.kv_heads) * dim, a.r.kv_row, tile, a.r.keys, v);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = at.y + r * SIDE;
            float score[2];
            for (int c = 0; c < 2; c++) {
                int64_t key = tile + at.x + c * SIDE;
                bool seen = key <= from + row && key >= lowest[r];
                float x = a.scale * dot(a, q + row * pitch, k + (at.x + c * SIDE) * pitch);
                score[c] = seen ? capped(a, x) : -INFINITY;
            }
            float most = fmaxf(soft.most[r], lanes_max(fmaxf(score[0], score[1]), SIDE));
            /* No key was seen yet: there is nothing to rescale, and infinity minus infinity must be
             * avoided. */
            float shrink = most == -INFINITY ? 1 : expf(soft.most[r] - most), sum = 0;
            for (int c = 0; c < 2; c++) {
                float p = score[c] == -INFINITY ? 0 : expf(score[c] - most);
                weights[row * (TILE + 1) + at.x + c * SIDE] = p;
                sum += p;
            }
            soft.sum[r] = soft.sum[r] * shrink + lanes_sum(sum, SIDE);
            soft.most[r] = most;
            for (int c = 0; c < COLUMNS; c++) o.of[r][c] *= shrink;
        }
        __syncthreads();
        for (int j = 0; j < TILE; j++) {
            float weight[2] = {weights[at.y * (TILE + 1) + j], weights[(at.y + SIDE) * (TILE + 1) + j]};
            o.add(a, at, weight, v + j * pitch);
        }
        __syncthreads();
    }
    float factor[2] = {1 / soft.sum[0], 1 / soft.sum[1]};
    o.write(a, factor, out + head * dim, (int64_t)a.s.heads * dim, first, tokens);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t t = first + at.y + r * SIDE;
        if (at.x == 0 && t < tokens) lse[head * tokens + t] = soft.most[r] + logf(soft.sum[r]);
    }
}

/* ---- backward ---- */

/* delta = do . o of every token and head, a warp each. */
template <typename T> __global__ void delta_kernel(Attention a, const T *out, const T *dout, float *delta) {
    int64_t pair = element() / WARP, at = pair * a.s.head_dim, heads = a.s.heads;
    if (pair >= a.s.tokens * heads) return;
    float sum = 0;
    for (int i = lane(); i < a.s.head_dim; i += WARP) sum = FUSED(load(out, at + i), load(dout, at + i), sum);
    sum = lanes_sum(sum, WARP);
    if (lane() == 0) delta[pair % heads * a.s.tokens + pair / heads] = sum;
}

/* A block has a head. Of its sink's gradient each warp sums some tokens, and each lane some
 * elements of these. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    sinks_backward_kernel(AttentionShape s, const T *out, const float *lse, const T *dout, float *dsinks) {
    SHARED(float, sums, BLOCK / WARP);
    int64_t head = blockIdx.x;
    float sum = 0;
    for (int64_t t = threadIdx.x / WARP; t < s.tokens; t += BLOCK / WARP) {
        int64_t at = (t * s.heads + head) * s.head_dim;
        float weight = expf(s.sinks[head] - lse[head * s.tokens + t]), dot = 0;
        for (int i = lane(); i < s.head_dim; i += WARP)
            dot = FUSED(load(out, at + i), load(dout, at + i), dot);
        sum = FUSED(weight, dot, sum);
    }
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) dsinks[head] -= sum;
}

/* Tiles in shared memory. */
struct Tiles {
    float *q, *dout, *k, *v, *p, *ds;
};
INLINE Tiles tiles_of(Attention a, char *smem) {
    int size = TILE * pitch_of(a);
    float *q = (float *)smem;
    return {q, q + size, q + 2 * size, q + 3 * size, q + 4 * size, q + 4 * size + WEIGHTS};
}

/* Writes p and ds of a tile of queries and a tile of keys, [query][key]. */
INLINE void write_weights(Attention a, Tiles tiles, int64_t queries, int64_t keys, const float *lse,
                          const float *delta) {
    Position at = position();
    int pitch = pitch_of(a);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = at.y + r * SIDE;
        int64_t t = queries + row, token = a.r.first + t;
        bool there = t < a.s.tokens;
        int64_t lowest = there ? window_first(a.s, token, a.firsts[token]) : 0;
        for (int c = 0; c < 2; c++) {
            int column = at.x + c * SIDE;
            int64_t key = keys + column;
            bool seen = there && key <= token && key >= lowest;
            float x = capped(a, a.scale * dot(a, tiles.q + row * pitch, tiles.k + column * pitch));
            float slope = a.s.cap > 0 ? 1 - x / a.s.cap * (x / a.s.cap) : 1;
            float p = seen ? expf(x - lse[t]) : 0;
            float grad = seen ? dot(a, tiles.dout + row * pitch, tiles.v + column * pitch) - delta[t] : 0;
            tiles.p[row * (TILE + 1) + column] = p;
            tiles.ds[row * (TILE + 1) + column] = p * grad * slope * a.scale;
        }
    }
}

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(BLOCK)
    query_gradient_kernel(Attention a, const T *queries, const T *keys, Gradients<T> g) {
    DYNAMIC_SHARED(smem);
    int dim = a.s.head_dim;
    Tiles tiles = tiles_of(a, smem);
    int64_t tokens = a.s.tokens, first = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE, head = blockIdx.y;
    int64_t kv = head / (a.s.heads / a.s.kv_heads);
    Position at = position();
    Sums<COLUMNS> dq;
    dq.clear();
    load_tile(a, queries + head * dim, a.r.q_row, first, tokens, tiles.q);
    load_tile(a, g.dout + head * dim, (int64_t)a.s.heads * dim, first, tokens, tiles.dout);
    int64_t from = a.r.first + first, start = window_first(a.s, from, a.firsts[from]) / TILE * TILE,
            end = a.r.first + smaller(first + TILE, tokens);
    for (int64_t tile = start; tile < end; tile += TILE) {
        load_tile(a, keys + kv * dim, a.r.kv_row, tile, a.r.keys, tiles.k);
        load_tile(a, keys + (kv + a.s.kv_heads) * dim, a.r.kv_row, tile, a.r.keys, tiles.v);
        __syncthreads();
        write_weights(a, tiles, first, tile, g.lse + head * tokens, g.delta + head * tokens);
        __syncthreads();
        for (int j = 0; j < TILE; j++) {
            float weight[2] = {tiles.ds[at.y * (TILE + 1) + j], tiles.ds[(at.y + SIDE) * (TILE + 1) + j]};
            dq.add(a, at, weight, tiles.k + j * pitch_of(a));
        }
        __syncthreads();
    }
    const float one[2] = {1, 1};
    dq.write(a, one, g.dq + head * dim, a.r.q_row, first, tokens);
}

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(BLOCK)
    key_gradient_kernel(Attention a, const T *queries, const T *keys, Gradients<T> g) {
    DYNAMIC_SHARED(smem);
    int dim = a.s.head_dim, group = a.s.heads / a.s.kv_heads;
    Tiles tiles = tiles_of(a, smem);
    int64_t tokens = a.s.tokens, first = (int64_t)blockIdx.x * TILE, kv = blockIdx.y, end = a.r.keys,
            last = smaller(first + TILE, end) - 1, width = (int64_t)a.s.kv_heads * dim;
    int64_t start =
        first > a.r.first ? (first - a.r.first) / TILE * TILE : 0; /* the first tile that sees them */
    Position at = position();
    Sums<COLUMNS> dk, dv;
    dk.clear();
    dv.clear();
    load_tile(a, keys + kv * dim, a.r.kv_row, first, end, tiles.k);
    load_tile(a, keys + kv * dim + width, a.r.kv_row, first, end, tiles.v);
    for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
        for (int64_t tile = start; tile < tokens; tile += TILE) {
            int64_t token = a.r.first + tile;
            if (window_first(a.s, token, a.firsts[token]) > last)
                break; /* later tiles do not see them either */
            load_tile(a, queries + head * dim, a.r.q_row, tile, tokens, tiles.q);
            load_tile(a, g.dout + head * dim, (int64_t)a.s.heads * dim, tile, tokens, tiles.dout);
            __syncthreads();
            write_weights(a, tiles, tile, first, g.lse + head * tokens, g.delta + head * tokens);
            __syncthreads();
            for (int i = 0; i < TILE; i++) {
                const float *p = tiles.p + i * (TILE + 1) + at.y, *ds = tiles.ds + i * (TILE + 1) + at.y;
                float weight[2] = {p[0], p[SIDE]}, slope[2] = {ds[0], ds[SIDE]};
                dv.add(a, at, weight, tiles.dout + i * pitch_of(a));
                dk.add(a, at, slope, tiles.q + i * pitch_of(a));
            }
            __syncthreads();
        }
    }
    const float one[2] = {1, 1};
    if (a.r.partial) {
        float *to = (float *)g.dkv + kv * dim;
        dk.write(a, one, to, 2 * width, first, end);
        dv.write(a, one, to + width, 2 * width, first, end);
    } else {
        T *to = (T *)g.dkv + kv * dim;
        dk.write(a, one, to, a.r.kv_row, first, end);
        dv.write(a, one, to + width, a.r.kv_row, first, end);
    }
}

/* ---- one query at a time, over a cache ---- */

/* A block has one query of one head. It takes BLOCK keys at a time: first each thread has a key, then each
 * thread has an element of the result. */
template <typename T>
__global__ void __launch_bounds__(BLOCK) attention_decode_kernel(Attention a, int64_t start, const T *qkv,
                                                                 const T *k_cache, const T *v_cache, T *out) {
    SHARED(float, q, WIDEST);
    SHARED(float, weights, BLOCK);
    SHARED(float, sums, BLOCK / WARP);
    int dim = a.s.head_dim, i = (int)threadIdx.x;
    int64_t t = blockIdx.x, head = blockIdx.y, stride = (int64_t)a.s.kv_heads * dim;
    int64_t kv = head / (a.s.heads / a.s.kv_heads) * dim, end = start + t + 1;
    if (i < dim) q[i] = load(qkv, t * a.r.q_row + head * dim + i);
    __syncthreads();
    float most = sink_of(a, head), sum = a.s.sinks ? 1 : 0, o = 0;
    for (int64_t chunk = decode_first(a.s, start + t); chunk < end; chunk += BLOCK) {
        int64_t key = chunk + i;
        float score = -INFINITY, x = 0;
        for (int e = 0; key < end && e < dim; e++) x = FUSED(q[e], load(k_cache, key * stride + kv + e), x);
        if (key < end) score = capped(a, a.scale * x);
        float top = fmaxf(most, block_max(score, sums)), shrink = expf(most - top);
        float p = key < end ? expf(score - top) : 0;
        weights[i] = p;
        sum = sum * shrink + block_sum(p, sums); /* its barriers make `weights` visible */
        most = top;
        o *= shrink;
        int count = (int)smaller(BLOCK, end - chunk);
        for (int j = 0; i < dim && j < count; j++)
            o = FUSED(weights[j], load(v_cache, (chunk + j) * stride + kv + i), o);
        __syncthreads();
    }
    if (i < dim) store(out, (t * a.s.heads + head) * dim + i, o / sum);
}

/* ---- slots ---- */

Attention attention_of(Device *d, AttentionShape s, AttentionRun r, const int32_t *firsts) {
    if (s.head_dim > d->widest_head)
        cuda_fatal(d, "attention: heads of %d elements; at most %d are done: a bug", s.head_dim,
                   d->widest_head);
    return {s, s.scale > 0 ? s.scale : 1 / sqrtf((float)s.head_dim), r, firsts};
}

size_t tile_bytes(AttentionShape s, int tiles, int weights) {
    return (size_t)(tiles * TILE * (s.head_dim + 1) + weights * WEIGHTS) * sizeof(float);
}

/* Runs the statement with COLUMNS a sixteenth of the narrowest width (64, 128, 256) that heads fit in. */
#define BY_WIDTH(dim, ...)              \
    do {                                \
        if ((dim) <= 64) {              \
            constexpr int COLUMNS = 4;  \
            __VA_ARGS__;                \
        } else if ((dim) <= 128) {      \
            constexpr int COLUMNS = 8;  \
            __VA_ARGS__;                \
        } else {                        \
            constexpr int COLUMNS = 16; \
            __VA_ARGS__;                \
        }                               \
    } while (0)

/* firsts[t] = the first token of token t's chunk. Kernels use it in place of first_key. */
__global__ void chunk_firsts_kernel(int64_t keys, int64_t chunk, const int32_t *first_key, int32_t *firsts) {
    int64_t t = element();
    if (t < keys) firsts[t] = (int32_t)(t - (t - first_key[t]) % chunk);
}

/* Returns first_key, or with chunks their first tokens, which lie in scratch after its first `behind`
 * bytes. */
const int32_t *firsts_of(Device *d, OpId op, AttentionShape s, AttentionRun r, const int32_t *first_key,
                         size_t behind) {
    if (s.chunk == 0) return first_key;
    size_t bytes = behind + (size_t)r.keys * sizeof(int32_t);
    int32_t *firsts = (int32_t *)((char *)cuda_scratch(d, bytes) + behind);
    LAUNCH(d, op, chunk_firsts_kernel, blocks_of(r.keys, BLOCK), BLOCK, 0, r.keys, s.chunk, first_key,
           firsts);
    return firsts;
}

/* Operands of matrix instructions are copied by 16 bytes, so rows must be aligned to that. */
void check_rows(Device *d, Attention a, const void *q, const void *kv, const void *other) {
    uintptr_t bits = (uintptr_t)q | (uintptr_t)kv | (uintptr_t)other | (uintptr_t)(a.r.q_row * 2) |
                     (uintptr_t)(a.r.kv_row * 2);
    if (bits % 16 != 0) cuda_fatal(d, "attention: rows that do not begin at multiples of 16 bytes: a bug");
}

void attention_forward(Device *d, const AttentionForwardArgs *o) {
    if (o->s.tokens == 0) return;
    const int32_t *firsts = firsts_of(d, OP_ATTENTION_FORWARD, o->s, o->r, o->first_key, 0);
    Attention a = attention_of(d, o->s, o->r, firsts);
    Grid grid(blocks_of(o->s.tokens, TILE), o->s.heads);
    if (attention_takes_mma(o->s, o->c)) {
        check_rows(d, a, o->q, o->kv, o->out);
        auto run = attention_takes_wgmma(d, o->s, o->c) ? attention_wgmma_forward : attention_mma_forward;
        run(d, a, (const Bf16 *)o->q, (const Bf16 *)o->kv, (Bf16 *)o->out, o->lse);
        return;
    }
    BY_DTYPE(o->c, T,
             BY_WIDTH(o->s.head_dim, auto kernel = attention_forward_kernel<T, COLUMNS>;
                      LAUNCH_TILES(d, OP_ATTENTION_FORWARD, kernel, grid, BLOCK, tile_bytes(o->s, 3, 1), a,
                                   (const T *)o->q, (const T *)o->kv, (T *)o->out, o->lse)));
}

size_t delta_bytes(AttentionShape s) { return (size_t)(s.tokens * s.heads) * sizeof(float); }

/* delta lies in scratch. */
template <typename T> Gradients<T> gradients_of(Device *d, const AttentionBackwardArgs *o, Attention a) {
    int64_t pairs = a.s.tokens * a.s.heads;
    const T *dout = (const T *)o->dout;
    float *delta = (float *)cuda_scratch(d, delta_bytes(a.s));
    LAUNCH(d, OP_ATTENTION_BACKWARD, delta_kernel<T>, blocks_of(pairs, BLOCK / WARP), BLOCK, 0, a,
           (const T *)o->out, dout, delta);
    return {o->lse, delta, dout, (T *)o->dq, o->dkv};
}

template <typename T, int COLUMNS> void run_backward(Device *d, const AttentionBackwardArgs *o, Attention a) {
    const T *q = (const T *)o->q, *kv = (const T *)o->kv;
    Gradients<T> g = gradients_of<T>(d, o, a);
    size_t bytes = tile_bytes(a.s, 4, 2);
    Grid queries(blocks_of(a.s.tokens, TILE), a.s.heads), keys(blocks_of(a.r.keys, TILE), a.s.kv_heads);
    auto of_queries = query_gradient_kernel<T, COLUMNS>;
    auto of_keys = key_gradient_kernel<T, COLUMNS>;
    LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, of_queries, queries, BLOCK, bytes, a, q, kv, g);
    LAUNCH_TILES(d, OP_ATTENTION_BACKWARD, of_keys, keys, BLOCK, bytes, a, q, kv, g);
}

void attention_backward(Device *d, const AttentionBackwardArgs *o) {
    if (o->s.tokens == 0) return;
    const int32_t *firsts = firsts_of(d, OP_ATTENTION_BACKWARD, o->s, o->r, o->first_key, delta_bytes(o->s));
    Attention a = attention_of(d, o->s, o->r, firsts);
    if (attention_takes_mma(o->s, o->c)) {
        check_rows(d, a, o->q, o->kv, o->dout);
        check_rows(d, a, o->dq, o->dkv, o->dout);
        auto run = attention_takes_wgmma(d, o->s, o->c) ? attention_wgmma_backward : attention_mma_backward;
        run(d, a, (const Bf16 *)o->q, (const Bf16 *)o->kv, gradients_of<Bf16>(d, o, a));
        return;
    }
    BY_DTYPE(o->c, T, BY_WIDTH(o->s.head_dim, run_backward<T, COLUMNS>(d, o, a)));
}

void sinks_backward(Device *d, const SinksBackwardArgs *o) {
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_SINKS_BACKWARD, sinks_backward_kernel<T>, o->s.heads, BLOCK, 0, o->s,
                    (const T *)o->out, o->lse, (const T *)o->dout, o->dsinks));
}

void attention_decode(Device *d, const AttentionDecodeArgs *o) {
    if (o->s.tokens == 0) return;
    Attention a = attention_of(d, o->s, attention_whole(o->s), NULL);
    Grid grid(o->s.tokens, o->s.heads);
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_ATTENTION_DECODE, attention_decode_kernel<T>, grid, BLOCK, 0, a, o->start,
                    (const T *)o->qkv, (const T *)o->k_cache, (const T *)o->v_cache, (T *)o->out));
}

} // namespace

/* The backward pass needs the most tiles. */
extern "C" int attention_widest(size_t shared) {
    AttentionShape s = {};
    s.head_dim = WIDEST;
    while (s.head_dim > 0 && tile_bytes(s, 4, 2) > shared) s.head_dim -= 2;
    return s.head_dim;
}

extern "C" void attention_fill(Ops *ops) {
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->attention_decode = attention_decode;
    ops->sinks_backward = sinks_backward;
}
