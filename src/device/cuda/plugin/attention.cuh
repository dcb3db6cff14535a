/* Shared by the attention kernels: attention.cu has kernels for all heads, attention_mma.cu those by matrix
 * instructions of one warp, attention_wgmma.cu those of a warpgroup (four warps). */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_ATTENTION_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_ATTENTION_CUH

#include "device/cuda/plugin/kernels.cuh"

/* firsts: the first key of each token's document, or of its chunk (attention.cu). */
struct Attention {
    AttentionShape s;
    float scale;
    AttentionRun r;
    const int32_t *firsts;
};

/* The first key that the token at `position` sees. `first` is the first token of its document or chunk. */
INLINE int64_t window_first(AttentionShape s, int64_t position, int64_t first) {
    return s.window > 0 ? larger(first, position - s.window + 1) : first;
}
/* The same for generation, which has one document. */
INLINE int64_t decode_first(AttentionShape s, int64_t position) {
    return s.chunk > 0 ? position - position % s.chunk : window_first(s, position, 0);
}

/* The initial maximum of a head's softmax: its sink, which has no value; without sinks, -infinity. */
INLINE float sink_of(Attention a, int64_t head) { return a.s.sinks ? a.s.sinks[head] : -INFINITY; }

/* Arguments of the backward pass. delta is the dot product of out and dout. */
template <typename T> struct Gradients {
    const float *lse, *delta; /* [H, T] */
    const T *dout;
    T *dq;
    void *dkv;
};

/* Whether a warp's matrix instructions take these heads: bf16, a multiple of 16 elements, at most 128. */
bool attention_takes_mma(AttentionShape s, Dtype c);
void attention_mma_forward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Bf16 *out, float *lse);
void attention_mma_backward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Gradients<Bf16> g);

/* Whether a warpgroup's take them too: compute capability 9.0, 64 or 128 elements, no cap. */
bool attention_takes_wgmma(Device *d, AttentionShape s, Dtype c);
void attention_wgmma_forward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Bf16 *out, float *lse);
void attention_wgmma_backward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, Gradients<Bf16> g);

/* A launch with dynamic shared memory. */
#define LAUNCH_TILES(d, op, kernel, grid, block, bytes, ...)               \
    do {                                                                   \
        auto kernel_ = kernel;                                             \
        cuda_allow_shared((d), (op), (const void *)kernel_, (bytes));      \
        LAUNCH((d), (op), kernel_, (grid), (block), (bytes), __VA_ARGS__); \
    } while (0)

#endif
