/* Forward and backward passes of the embedding. */
#include "device/cuda/plugin/packs.cuh"

namespace {

/* The local row of a token's id; -1 if the row is not local. */
INLINE int64_t row_here(EmbedRows rows, int32_t id) {
    int64_t row = id - rows.first;
    return row >= 0 && row < rows.count ? row : -1;
}

template <typename T> __global__ void embed_forward_kernel(const EmbedForwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(o.hidden);
    if (at.row >= o.tokens) return;
    int64_t row = row_here(o.rows, o.ids[at.row]);
    T *out = (T *)o.out + at.row * o.hidden;
    Pack<T, N> x = {}, before = {};
    if (row >= 0) x = load_pack<N>((const T *)o.table + row * o.hidden, at.column, o.hidden);
    if (o.add) before = load_pack<N>(out, at.column, o.hidden);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float v = row < 0 ? -0.0f : o.scale * get(x, i);
        put(x, i, o.add ? get(before, i) + v : v);
    }
    store_pack(out, at.column, o.hidden, x);
}

/* A block examines STEP ids at a time: one bit for each, in as many words as a warp has lanes. */
enum { EACH = WARP * WARP / BLOCK, STEP = EACH * BLOCK, AHEAD = 4 };
static_assert(STEP == WARP * WARP, "a step is a word for each lane");

/* Whether a token before `end` has the id; all threads get the same answer. The search goes backward from
 * `end`, since text repeats recent words: for most tokens the first step decides. */
INLINE bool occurs(const int32_t *ids, int64_t end, int32_t id) {
    for (; end > 0; end -= STEP) {
        bool found = false;
#pragma unroll
        for (int j = 0; j < EACH; j++) /* the first token may be examined twice */
            found |= ids[larger(end - 1 - j * BLOCK - (int)threadIdx.x, 0)] == id;
        if (__syncthreads_or(found)) return true;
    }
    return false;
}

/* The tokens of a step that have an id. */
struct Matches {
    const uint32_t *votes; /* [WARP], shared */
    uint32_t words;        /* bit w: votes[w] has not been read and is not zero */
    int word;              /* the word that is being read, */
    uint32_t left;         /* and its remaining bits */
};

/* The matches among start .. start + STEP - 1; writes `votes`. All ids are loaded before the first ballot, so
 * that no ballot waits for a load of its own. */
INLINE Matches matches_of(const int32_t *ids, int64_t start, int64_t end, int32_t id, uint32_t *votes) {
    bool has[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int64_t t = start + j * BLOCK + threadIdx.x;
        has[j] = t < end && ids[t] == id;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        uint32_t vote = __ballot_sync(0xffffffffu, has[j]);
        if (lane() == 0) votes[(j * BLOCK + threadIdx.x) / WARP] = vote;
    }
    __syncthreads();
    return {votes, __ballot_sync(0xffffffffu, votes[lane()] != 0), 0, 0};
}

/* The next match, counted from the start of the step; -1: there is none. */
INLINE int next_of(Matches &m) {
    if (m.left == 0) {
        if (m.words == 0) return -1;
        m.word = __ffs((int)m.words) - 1;
        m.words &= m.words - 1;
        m.left = m.votes[m.word];
    }
    int bit = __ffs((int)m.left) - 1;
    m.left &= m.left - 1;
    return m.word * WARP + bit;
}

/* There is a block for each token and slice of columns. Only blocks of tokens that are the first with their
 * id work: they add all tokens with that id, in ascending order, so that a row has the bits of the CPU's sum.
 *
 * A thread has a pack of columns, whose sums stay in registers until the last token. The tokens of a frequent
 * id are a long chain of additions, so AHEAD of them are loaded before the first is added. Slices are as wide
 * as a block allows: each block scans all ids itself, and with many tokens and many ids this scan is most of
 * the work. Narrower slices would only shorten the longest row, which other blocks run alongside anyway.
 * Votes alternate between two buffers, so that a step needs only one barrier. */
template <typename T> __global__ void embed_backward_kernel(const EmbedBackwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    SHARED(uint32_t, votes, 2 * WARP);
    int64_t first = blockIdx.x, column = ((int64_t)blockIdx.y * BLOCK + threadIdx.x) * N;
    int32_t id = o.ids[first];
    if (row_here(o.rows, id) < 0 || occurs(o.ids, first, id)) return; /* the whole block */
    const T *dout = (const T *)o.dout;
    float *row = o.dtable + row_here(o.rows, id) * o.hidden;
    Pack<float, N> sum = load_pack<N>(row, column, o.hidden);
    int buffer = 0;
    for (int64_t start = first; start < o.tokens; start += STEP, buffer ^= WARP) {
        Matches m = matches_of(o.ids, start, o.tokens, id, votes + buffer);
        while (column < o.hidden && (m.words | m.left) != 0) {
            int next[AHEAD];
            Pack<T, N> x[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                next[a] = next_of(m);
                if (next[a] >= 0) x[a] = load_pack<N>(dout + (start + next[a]) * o.hidden, column, o.hidden);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
#pragma unroll
                for (int i = 0; i < N && next[a] >= 0; i++)
                    put(sum, i, __fadd_rn(get(sum, i), __fmul_rn(o.scale, get(x[a], i))));
        }
    }
    store_pack(row, column, o.hidden, sum);
}

void embed_forward(Device *d, const EmbedForwardArgs *o) {
    if (o->tokens * o->hidden == 0) return;
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_EMBED_FORWARD, embed_forward_kernel<T>,
                    blocks_of_packs<AT_ONCE<T>>(o->tokens, o->hidden), BLOCK, 0, *o));
}

void embed_backward(Device *d, const EmbedBackwardArgs *o) {
    if (o->tokens * o->hidden == 0) return;
    BY_DTYPE(o->c, T, Grid grid(o->tokens, blocks_of(o->hidden, BLOCK * AT_ONCE<T>));
             LAUNCH(d, OP_EMBED_BACKWARD, embed_backward_kernel<T>, grid, BLOCK, 0, *o));
}

} // namespace

extern "C" void embedding_fill(Ops *ops) {
    ops->embed_forward = embed_forward;
    ops->embed_backward = embed_backward;
}
