/* Ops on elements by themselves: an element a thread, or a few one after another.
 *
 * What may be in place (add, scale, softcap, activation_backward's act) reads an element before it writes it,
 * in one thread. */
#include "device/cuda/plugin/kernels.cuh"

namespace {

template <typename T> __global__ void add_kernel(int64_t n, const T *a, const T *b, T *out) {
    int64_t i = element();
    if (i < n) store(out, i, load(a, i) + load(b, i));
}

template <typename From, typename To> __global__ void cast_kernel(int64_t n, const From *in, To *out) {
    int64_t i = element();
    if (i < n) store(out, i, load(in, i));
}

__global__ void fill_kernel(int64_t n, float value, float *out) {
    int64_t i = element();
    if (i < n) out[i] = value;
}

template <typename T>
__global__ void scale_kernel(int64_t n, int64_t width, float factor, const T *in, int64_t ldi, T *out) {
    int64_t i = element();
    if (i < n) store(out, i, factor * load(in, i / width * ldi + i % width));
}

template <typename T> __global__ void softcap_kernel(int64_t n, float cap, T *x) {
    int64_t i = element();
    if (i < n) store(x, i, cap * tanhf(load(x, i) / cap));
}

template <typename T> __global__ void bias_kernel(int64_t n, int64_t width, T *y, const float *bias) {
    int64_t i = element();
    if (i < n) store(y, i, load(y, i) + bias[i % width]);
}

/* ---- activations ---- */

constexpr float SQRT_2_PI = 0.797884560802865f, GELU_CUBE = 0.044715f;

/* The value and the slope at z: device.h has the formulas. */
INLINE void activation(Activation f, float z, float *value, float *slope) {
    if (f == ACT_SILU) {
        float sigmoid = 1 / (1 + expf(-z));
        *value = z * sigmoid;
        *slope = sigmoid + z * sigmoid * (1 - sigmoid);
    } else {
        float t = tanhf(SQRT_2_PI * (z + GELU_CUBE * z * z * z)), rest = 1 - t * t;
        *value = z * (1 + t) / 2;
        /* Where tanh is flat z^2 may be infinite. */
        *slope = (1 + t) / 2 + (rest > 0 ? z * rest * (SQRT_2_PI * (1 + 3 * GELU_CUBE * z * z)) / 2 : 0);
    }
}

template <typename T>
__global__ void activation_forward_kernel(Activation f, bool gated, int64_t n, int64_t inter, const T *x,
                                          T *act) {
    int64_t i = element(), at = gated ? i + i / inter * inter : i;
    if (i >= n) return;
    float value, slope;
    activation(f, load(x, at), &value, &slope);
    store(act, i, gated ? value * load(x, at + inter) : value);
}

/* dact may be act's memory. */
template <typename T>
__global__ void activation_backward_kernel(Activation f, bool gated, int64_t n, int64_t inter, const T *x,
                                           const T *dact, T *dx, T *act) {
    int64_t i = element(), at = gated ? i + i / inter * inter : i;
    if (i >= n) return;
    float value, slope, up = gated ? load(x, at + inter) : 1, grad = load(dact, i);
    activation(f, load(x, at), &value, &slope);
    store(dx, at, grad * up * slope);
    if (gated) store(dx, at + inter, grad * value);
    store(act, i, value * up);
}

/* ---- rotation ---- */

/* A pair a thread: elements i and half + i of a head's first 2 half ones. */
template <typename T>
__global__ void rope_kernel(int64_t pairs, AttentionShape s, int half, T *qkv, const int32_t *positions,
                            const float *cos_sin, bool inverse) {
    int64_t pair = element();
    if (pair >= pairs) return;
    int64_t turned = s.heads + s.kv_heads, row = (turned + s.kv_heads) * s.head_dim, i = pair % half,
            head = pair / half % turned, t = pair / half / turned;
    const float *cosine = cos_sin + (int64_t)positions[t] * 2 * half, *sine = cosine + half;
    T *x = qkv + t * row + head * s.head_dim;
    float u = load(x, i), v = load(x, half + i), sn = inverse ? -sine[i] : sine[i];
    store(x, i, u * cosine[i] - v * sn);
    store(x, half + i, v * cosine[i] + u * sn);
}

/* ---- heads of latent attention ---- */

/* Element i of those that turn, with the first of them at x. */
template <typename T> INLINE float turned(const float *angles, int width, bool inverse, const T *x, int i) {
    float cosine = angles[i / 2], sine = angles[width / 2 + i / 2], u = load(x, i / 2 * 2),
          v = load(x, i / 2 * 2 + 1);
    if (inverse) sine = -sine;
    return i % 2 == 0 ? u * cosine - v * sine : v * cosine + u * sine;
}

/* A thread has an element of q, k or v. */
template <typename T>
__global__ void latent_forward_kernel(int64_t n, LatentShape s, const T *q, const T *own, const T *key,
                                      const int32_t *positions, const float *cos_sin, T *qkv) {
    int64_t at = element();
    if (at >= n) return;
    int dim = s.plain + s.turned, each = s.plain + s.value, i = (int)(at % dim);
    int64_t head = at / dim % s.heads, which = at / dim / s.heads % 3, t = at / dim / s.heads / 3;
    const float *angles = cos_sin + (int64_t)positions[t] * s.turned;
    const T *mine = own + (t * s.heads + head) * each, *query = q + t * s.q_row + head * dim;
    float x = 0;
    if (which == 2) {
        if (i < s.value) x = load(mine, s.plain + i);
    } else if (i < s.plain)
        x = which == 0 ? load(query, i) : load(mine, i);
    else
        x = which == 0 ? turned(angles, s.turned, false, query + s.plain, i - s.plain)
                       : turned(angles, s.turned, false, key + t * s.key_row, i - s.plain);
    store(qkv, at, x);
}

constexpr int LEVELS = 7; /* 2^6 leaves */
static_assert(LEAVES_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of leaves");

/* Element i of those of the common key's gradient that the heads' keys at `from` come to. */
template <typename T> INLINE float common_sum(LatentShape s, const float *angles, const T *from, int i) {
    int dim = s.plain + s.turned, leaves = s.leaves > 1 ? s.leaves : 1, heads = s.heads / leaves;
    Tree<float, LEVELS> tree;
    for (int leaf = 0; leaf < leaves; leaf++) {
        float sum[2] = {0, 0};
        for (int head = leaf * heads; head < (leaf + 1) * heads; head++) {
            const T *pair = from + (int64_t)head * dim + s.plain + i / 2 * 2;
            sum[0] += load(pair, 0), sum[1] += load(pair, 1);
        }
        tree.add(turned(angles + i / 2, s.turned, true, sum, i % 2));
    }
    return tree.sum();
}

/* A thread has an element of q's gradient, or of that of what each head has of its own, or of that of the
 * common key, for which it goes through the heads. */
template <typename T>
__global__ void latent_backward_kernel(int64_t n, LatentShape s, const T *dqkv, const int32_t *positions,
                                       const float *cos_sin, T *dq, T *down, void *dkey) {
    int64_t at = element();
    if (at >= n) return;
    int dim = s.plain + s.turned, each = s.plain + s.value;
    int64_t width = (int64_t)s.heads * dim, own = (int64_t)s.heads * each, row = width + own + s.turned,
            t = at / row, x = at % row;
    const float *angles = cos_sin + (int64_t)positions[t] * s.turned;
    const T *from = dqkv + t * 3 * width;
    if (x < width) {
        int i = (int)(x % dim);
        const T *head = from + x / dim * dim;
        store(dq, t * s.q_row + x,
              i < s.plain ? load(head, i) : turned(angles, s.turned, true, head + s.plain, i - s.plain));
    } else if (x < width + own) {
        int64_t head = (x - width) / each;
        int i = (int)((x - width) % each);
        store(down, t * own + x - width,
              i < s.plain ? load(from + width, head * dim + i)
                          : load(from + 2 * width, head * dim + i - s.plain));
    } else {
        int i = (int)(x - width - own);
        float sum = common_sum(s, angles, from + width, i);
        if (s.terms)
            ((float *)dkey)[t * s.key_row + i] = sum;
        else
            store((T *)dkey, t * s.key_row + i, sum);
    }
}

/* ---- slots ---- */

void add(Device *d, int64_t n, const void *a, const void *b, void *out, Dtype c) {
    if (n == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_ADD, add_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, n, (const T *)a, (const T *)b,
                    (T *)out));
}

void cast(Device *d, int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    if (n == 0) return;
    BY_DTYPE(
        in_type, From,
        BY_DTYPE(out_type, To, auto kernel = cast_kernel<From, To>;
                 LAUNCH(d, OP_CAST, kernel, blocks_of(n, BLOCK), BLOCK, 0, n, (const From *)in, (To *)out)));
}

void fill(Device *d, int64_t n, float value, float *out) {
    if (n > 0) LAUNCH(d, OP_FILL, fill_kernel, blocks_of(n, BLOCK), BLOCK, 0, n, value, out);
}

void scale(Device *d, int64_t rows, int64_t n, float factor, const void *in, int64_t ldi, void *out,
           Dtype c) {
    int64_t all = rows * n;
    if (all == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_SCALE, scale_kernel<T>, blocks_of(all, BLOCK), BLOCK, 0, all, n, factor,
                    (const T *)in, ldi, (T *)out));
}

void softcap(Device *d, int64_t n, float cap, void *x, Dtype c) {
    if (n == 0) return;
    BY_DTYPE(c, T, LAUNCH(d, OP_SOFTCAP, softcap_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, n, cap, (T *)x));
}

void bias_forward(Device *d, int64_t tokens, int64_t n, void *y, const float *bias, Dtype c) {
    int64_t all = tokens * n;
    if (all == 0) return;
    BY_DTYPE(
        c, T,
        LAUNCH(d, OP_BIAS_FORWARD, bias_kernel<T>, blocks_of(all, BLOCK), BLOCK, 0, all, n, (T *)y, bias));
}

void activation_forward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter, const void *x,
                        void *act, Dtype c) {
    int64_t n = tokens * inter;
    if (n == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_ACTIVATION_FORWARD, activation_forward_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, f,
                    gated, n, inter, (const T *)x, (T *)act));
}

void activation_backward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter, const void *x,
                         const void *dact, void *dx, void *act, Dtype c) {
    int64_t n = tokens * inter;
    if (n == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_ACTIVATION_BACKWARD, activation_backward_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0,
                    f, gated, n, inter, (const T *)x, (const T *)dact, (T *)dx, (T *)act));
}

void rope(Device *d, AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
          bool inverse, Dtype c) {
    int half = (s.rotary > 0 ? s.rotary : s.head_dim) / 2;
    int64_t pairs = s.tokens * (s.heads + s.kv_heads) * half;
    if (pairs == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_ROPE, rope_kernel<T>, blocks_of(pairs, BLOCK), BLOCK, 0, pairs, s, half, (T *)qkv,
                    positions, cos_sin, inverse));
}

void latent_forward(Device *d, LatentShape s, const void *q, const void *own, const void *key,
                    const int32_t *positions, const float *cos_sin, void *qkv, Dtype c) {
    int64_t n = s.tokens * 3 * s.heads * latent_head(s);
    if (n == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_LATENT_FORWARD, latent_forward_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, n, s,
                    (const T *)q, (const T *)own, (const T *)key, positions, cos_sin, (T *)qkv));
}

void latent_backward(Device *d, LatentShape s, const void *dqkv, const int32_t *positions,
                     const float *cos_sin, void *dq, void *down, void *dkey, Dtype c) {
    int64_t n = s.tokens * (s.heads * (latent_head(s) + s.plain + s.value) + s.turned);
    if (n == 0) return;
    BY_DTYPE(c, T,
             LAUNCH(d, OP_LATENT_BACKWARD, latent_backward_kernel<T>, blocks_of(n, BLOCK), BLOCK, 0, n, s,
                    (const T *)dqkv, positions, cos_sin, (T *)dq, (T *)down, dkey));
}

} // namespace

extern "C" void elements_fill(Ops *ops) {
    ops->add = add;
    ops->cast = cast;
    ops->fill = fill;
    ops->scale = scale;
    ops->softcap = softcap;
    ops->bias_forward = bias_forward;
    ops->activation_forward = activation_forward;
    ops->activation_backward = activation_backward;
    ops->rope = rope;
    ops->latent_forward = latent_forward;
    ops->latent_backward = latent_backward;
}
