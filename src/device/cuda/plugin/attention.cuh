/* What all kinds of attention's kernels are told: attention.cu has those for all heads, attention_mma.cu and
 * attention_wgmma.cu those by matrix instructions of a warp and of four. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_ATTENTION_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_ATTENTION_CUH

#include "device/cuda/plugin/kernels.cuh"

struct Attention {
    AttentionShape s;
    float scale;
    AttentionRun r;
};

/* The first key that a token sees of what begins at one: a document, or a chunk (attention.cu). */
INLINE int64_t window_first(AttentionShape s, int64_t position, int64_t first) {
    return s.window > 0 ? larger(first, position - s.window + 1) : first;
}
/* Likewise in generation, where there is one document. */
INLINE int64_t decode_first(AttentionShape s, int64_t position) {
    return s.chunk > 0 ? position - position % s.chunk : window_first(s, position, 0);
}

/* What a head's scores begin with: its sink, which has no value, or nothing. */
INLINE float sink_of(Attention a, int64_t head) { return a.s.sinks ? a.s.sinks[head] : -INFINITY; }

/* Of the backward pass; delta is made of out and dout. */
struct Gradients {
    const float *lse, *delta; /* [H, T] */
    const Bf16 *dout;
    Bf16 *dq;
    void *dkv;
};

/* Whether heads are of those that matrix instructions take: bf16, a multiple of 16 elements, at most 128. */
bool attention_takes_mma(AttentionShape s, Dtype c);
void attention_mma_forward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, const int32_t *first_key,
                           Bf16 *out, float *lse);
void attention_mma_backward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, const int32_t *first_key,
                            Gradients g);

/* Of those, heads that instructions of four warps take on this GPU: compute capability 9.0, 64 or 128
 * elements, no cap. */
bool attention_takes_wgmma(Device *d, AttentionShape s, Dtype c);
void attention_wgmma_forward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, const int32_t *first_key,
                             Bf16 *out, float *lse);
void attention_wgmma_backward(Device *d, Attention a, const Bf16 *q, const Bf16 *kv, const int32_t *first_key,
                              Gradients g);

/* A launch with dynamic shared memory. */
#define LAUNCH_TILES(d, op, kernel, grid, block, bytes, ...)               \
    do {                                                                   \
        auto kernel_ = kernel;                                             \
        cuda_allow_shared((d), (op), (const void *)kernel_, (bytes));      \
        LAUNCH((d), (op), kernel_, (grid), (block), (bytes), __VA_ARGS__); \
    } while (0)

#endif
