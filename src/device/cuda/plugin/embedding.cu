/* Rows of the embedding, both ways. */
#include "device/cuda/plugin/packs.cuh"

namespace {

/* The row of a token, of those that are here; -1: it is not. */
INLINE int64_t row_here(EmbedRows rows, int32_t id) {
    int64_t row = id - rows.first;
    return row >= 0 && row < rows.count ? row : -1;
}

template <typename T>
__global__ void embed_forward_kernel(int64_t tokens, int64_t hidden, const int32_t *ids, const T *table,
                                     EmbedRows rows, float scale, bool add, T *out) {
    constexpr int N = AT_ONCE<T>;
    Place at = place_of<N>(hidden);
    if (at.row >= tokens) return;
    int64_t row = row_here(rows, ids[at.row]);
    Pack<T, N> x = {}, before = {};
    if (row >= 0) x = load_pack<N>(table + row * hidden, at.column, hidden);
    if (add) before = load_pack<N>(out + at.row * hidden, at.column, hidden);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float v = row < 0 ? -0.0f : scale * get(x, i);
        put(x, i, add ? get(before, i) + v : v);
    }
    store_pack(out + at.row * hidden, at.column, hidden, x);
}

/* Whether some id of from .. end-1 is `id`; the same answer to all threads. */
INLINE bool occurs(const int32_t *ids, int64_t from, int64_t end, int32_t id) {
    bool found = false;
    for (int64_t t = from + threadIdx.x; t < end && !found; t += BLOCK) found = ids[t] == id;
    return __syncthreads_or(found);
}

/* A block for each token, of which those work that are the first with their id: they add all tokens with it,
 * in ascending order, so that a row has the bits of the CPU's sum. A thread has packs of columns alone. */
template <typename T>
__global__ void embed_backward_kernel(int64_t tokens, int64_t hidden, const int32_t *ids, const T *dout,
                                      EmbedRows rows, float scale, float *dtable) {
    constexpr int N = AT_ONCE<T>;
    SHARED(int32_t, near, BLOCK);
    int64_t first = blockIdx.x;
    int32_t id = ids[first];
    if (row_here(rows, id) < 0 || occurs(ids, 0, first, id)) return; /* the whole block */
    float *row = dtable + row_here(rows, id) * hidden;
    for (int64_t start = first; start < tokens; start += BLOCK) {
        int64_t t = start + threadIdx.x;
        near[threadIdx.x] = t < tokens ? ids[t] : -1;
        __syncthreads();
        for (int k = 0; k < BLOCK; k++) {
            if (near[k] != id) continue;
            const T *from = dout + (start + k) * hidden;
            for (int64_t at = threadIdx.x * N; at < hidden; at += BLOCK * N) {
                Pack<float, N> sum = load_pack<N>(row, at, hidden);
                Pack<T, N> x = load_pack<N>(from, at, hidden);
#pragma unroll
                for (int i = 0; i < N; i++) put(sum, i, __fadd_rn(get(sum, i), __fmul_rn(scale, get(x, i))));
                store_pack(row, at, hidden, sum);
            }
        }
        __syncthreads();
    }
}

void embed_forward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *table,
                   EmbedRows rows, float scale, bool add, void *out, Dtype c) {
    if (tokens * hidden == 0) return;
    BY_DTYPE(c, T, auto kernel = embed_forward_kernel<T>;
             LAUNCH(d, OP_EMBED_FORWARD, kernel, blocks_of_packs<AT_ONCE<T>>(tokens, hidden), BLOCK, 0,
                    tokens, hidden, ids, (const T *)table, rows, scale, add, (T *)out));
}

void embed_backward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *dout,
                    EmbedRows rows, float scale, float *dtable, Dtype c) {
    if (tokens == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_EMBED_BACKWARD, embed_backward_kernel<T>, tokens, BLOCK, 0, tokens, hidden, ids,
                    (const T *)dout, rows, scale, dtable));
}

} // namespace

extern "C" void embedding_fill(Ops *ops) {
    ops->embed_forward = embed_forward;
    ops->embed_backward = embed_backward;
}
