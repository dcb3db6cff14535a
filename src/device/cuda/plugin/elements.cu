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
}
