/* Elementwise ops: a thread has a pack of adjacent elements (packs.cuh), or one element.
 *
 * Ops that may work in place (add, scale, softcap, activation_backward's act) read a pack before they write
 * it, in one thread. */
#include "device/cuda/plugin/packs.cuh"

namespace {

template <typename T> __global__ void add_kernel(int64_t n, const T *a, const T *b, T *out) {
    constexpr int N = AT_ONCE<T>;
    int64_t first = element() * N;
    Pack<T, N> x = load_pack<N>(a, first, n), y = load_pack<N>(b, first, n);
#pragma unroll
    for (int i = 0; i < N; i++) put(x, i, get(x, i) + get(y, i));
    store_pack(out, first, n, x);
}

template <typename From, typename To> __global__ void cast_kernel(int64_t n, const From *in, To *out) {
    constexpr int N = AT_ONCE<From, To>;
    int64_t first = element() * N;
    Pack<From, N> x = load_pack<N>(in, first, n);
    Pack<To, N> y = {};
#pragma unroll
    for (int i = 0; i < N; i++) put(y, i, get(x, i));
    store_pack(out, first, n, y);
}

__global__ void fill_kernel(int64_t n, float value, float *out) {
    constexpr int N = AT_ONCE<float>;
    Pack<float, N> x = {};
#pragma unroll
    for (int i = 0; i < N; i++) put(x, i, value);
    store_pack(out, element() * N, n, x);
}

template <typename T>
__global__ void scale_kernel(int64_t rows, int64_t width, float factor, const T *in, int64_t ldi, T *out) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(width);
    if (at.row >= rows) return;
    Pack<T, N> x = load_pack<N>(in + at.row * ldi, at.column, width);
#pragma unroll
    for (int i = 0; i < N; i++) put(x, i, factor * get(x, i));
    store_pack(out + at.row * width, at.column, width, x);
}

template <typename T> __global__ void softcap_kernel(int64_t n, float cap, T *x) {
    constexpr int N = AT_ONCE<T>;
    int64_t first = element() * N;
    Pack<T, N> here = load_pack<N>(x, first, n);
#pragma unroll
    for (int i = 0; i < N; i++) put(here, i, cap * tanhf(get(here, i) / cap));
    store_pack(x, first, n, here);
}

template <typename T> __global__ void bias_kernel(int64_t rows, int64_t width, T *y, const float *bias) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(width);
    if (at.row >= rows) return;
    y += at.row * width;
    Pack<T, N> x = load_pack<N>(y, at.column, width);
    Pack<float, N> more = load_pack<N>(bias, at.column, width);
#pragma unroll
    for (int i = 0; i < N; i++) put(x, i, get(x, i) + get(more, i));
    store_pack(y, at.column, width, x);
}

/* ---- activations ---- */

constexpr float SQRT_2_PI = 0.797884560802865f, GELU_CUBE = 0.044715f;

/* The value and the derivative at z; shapes.h has the formulas. */
INLINE void activation(Activation f, float z, float *value, float *slope) {
    if (f == ACT_SILU) {
        float sigmoid = 1 / (1 + expf(-z));
        *value = z * sigmoid;
        *slope = sigmoid + z * sigmoid * (1 - sigmoid);
    } else {
        float t = tanhf(SQRT_2_PI * (z + GELU_CUBE * z * z * z)), rest = 1 - t * t;
        *value = z * (1 + t) / 2;
        /* Where tanh is flat, z^2 may be infinite. */
        *slope = (1 + t) / 2 + (rest > 0 ? z * rest * (SQRT_2_PI * (1 + 3 * GELU_CUBE * z * z)) / 2 : 0);
    }
}

/* A row of x is the gate, followed by up if `gated`. */
template <typename T> __global__ void activation_forward_kernel(const ActivationForwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(o.inter);
    if (at.row >= o.tokens) return;
    const T *x = (const T *)o.x + at.row * (o.gated ? 2 * o.inter : o.inter);
    Pack<T, N> gate = load_pack<N>(x, at.column, o.inter), up = {}, out = {};
    if (o.gated) up = load_pack<N>(x + o.inter, at.column, o.inter);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float value, slope;
        activation(o.f, get(gate, i), &value, &slope);
        put(out, i, o.gated ? value * get(up, i) : value);
    }
    store_pack((T *)o.act + at.row * o.inter, at.column, o.inter, out);
}

/* dact may be act's memory. */
template <typename T> __global__ void activation_backward_kernel(const ActivationBackwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(o.inter);
    if (at.row >= o.tokens) return;
    int64_t inter = o.inter, wide = at.row * (o.gated ? 2 * inter : inter), narrow = at.row * inter;
    const T *x = (const T *)o.x + wide;
    T *dx = (T *)o.dx + wide;
    Pack<T, N> gate = load_pack<N>(x, at.column, inter), up = {}, dup = {};
    Pack<T, N> grad = load_pack<N>((const T *)o.dact + narrow, at.column, inter), out = {};
    if (o.gated) up = load_pack<N>(x + inter, at.column, inter);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float value, slope, u = o.gated ? get(up, i) : 1, g = get(grad, i);
        activation(o.f, get(gate, i), &value, &slope);
        put(gate, i, g * u * slope);
        put(dup, i, g * value);
        put(out, i, value * u);
    }
    store_pack(dx, at.column, inter, gate);
    if (o.gated) store_pack(dx + inter, at.column, inter, dup);
    store_pack((T *)o.act + narrow, at.column, inter, out);
}

/* For a gate and its up: the value, and its derivatives with respect to both. */
struct Clamped {
    float value, gate, up;
};
INLINE Clamped clamped(float gate, float up) {
    float z = gate > CLAMPED_LIMIT ? CLAMPED_LIMIT : gate, u = up > CLAMPED_LIMIT ? CLAMPED_LIMIT : up;
    u = 1 + (u < -CLAMPED_LIMIT ? -CLAMPED_LIMIT : u);
    float s = 1 / (1 + expf(-CLAMPED_SLOPE * z)), along = z * s;
    bool out = up > CLAMPED_LIMIT || up < -CLAMPED_LIMIT;
    return {u * along, gate > CLAMPED_LIMIT ? 0 : u * (s + CLAMPED_SLOPE * along * (1 - s)), out ? 0 : along};
}

/* In x each gate is next to its up, so a pack of act corresponds to two packs of x. */
template <typename T> __global__ void clamped_forward_kernel(int64_t n, const T *x, T *act) {
    constexpr int N = AT_ONCE<T>;
    int64_t first = element() * N;
    Pack<T, 2 *N> pairs = load_pack<2 * N>(x, 2 * first, 2 * n);
    Pack<T, N> out = {};
#pragma unroll
    for (int i = 0; i < N; i++) put(out, i, clamped(get(pairs, 2 * i), get(pairs, 2 * i + 1)).value);
    store_pack(act, first, n, out);
}

/* dact may be act's memory. */
template <typename T>
__global__ void clamped_backward_kernel(int64_t n, const T *x, const T *dact, T *dx, T *act) {
    constexpr int N = AT_ONCE<T>;
    int64_t first = element() * N;
    Pack<T, 2 *N> pairs = load_pack<2 * N>(x, 2 * first, 2 * n);
    Pack<T, N> grad = load_pack<N>(dact, first, n), out = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        Clamped y = clamped(get(pairs, 2 * i), get(pairs, 2 * i + 1));
        put(pairs, 2 * i, get(grad, i) * y.gate);
        put(pairs, 2 * i + 1, get(grad, i) * y.up);
        put(out, i, y.value);
    }
    store_pack(dx, 2 * first, 2 * n, pairs);
    store_pack(act, first, n, out);
}

/* ---- rotation ---- */

/* Two elements that are rotated together. */
struct Pair {
    float first, second;
};
INLINE Pair rotate(float a, float b, float cosine, float sine, bool inverse) {
    if (inverse) sine = -sine;
    return {a * cosine - b * sine, b * cosine + a * sine};
}

/* Head `row`, counted over the queries' and keys' heads of all tokens, and the angles of its token (`width`
 * floats for each position). NULLs past the last head. */
template <typename T> struct RotatedHead {
    T *x;
    const float *angles;
};
template <typename T>
INLINE RotatedHead<T> rotated_head(AttentionShape s, int width, int64_t row, T *qkv, const int32_t *positions,
                                   const float *cos_sin) {
    int64_t heads = s.heads + s.kv_heads, t = row / heads;
    if (t >= s.tokens) return {nullptr, nullptr};
    return {qkv + (t * (heads + s.kv_heads) + row % heads) * s.head_dim,
            cos_sin + (int64_t)positions[t] * width};
}

/* A row is the first 2 * half elements of a head, with pairs (i, half + i). A thread has a pack of each
 * side. */
template <typename T>
__global__ void rope_kernel(AttentionShape s, int half, T *qkv, const int32_t *positions,
                            const float *cos_sin, bool inverse) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(half);
    auto [x, angles] = rotated_head(s, 2 * half, at.row, qkv, positions, cos_sin);
    if (!x) return;
    Pack<T, N> u = load_pack<N>(x, at.column, half), v = load_pack<N>(x + half, at.column, half);
    Pack<float, N> cosine = load_pack<N>(angles, at.column, half),
                   sine = load_pack<N>(angles + half, at.column, half);
#pragma unroll
    for (int i = 0; i < N; i++) {
        Pair pair = rotate(get(u, i), get(v, i), get(cosine, i), get(sine, i), inverse);
        put(u, i, pair.first);
        put(v, i, pair.second);
    }
    store_pack(x, at.column, half, u);
    store_pack(x + half, at.column, half, v);
}

/* The same where pairs are adjacent elements: a pack holds pairs. */
template <typename T>
__global__ void rope_neighbours_kernel(AttentionShape s, int rotated, T *qkv, const int32_t *positions,
                                       const float *cos_sin, bool inverse) {
    constexpr int N = AT_ONCE<T>;
    PackStart at = pack_start<N>(rotated);
    auto [x, angles] = rotated_head(s, rotated, at.row, qkv, positions, cos_sin);
    if (!x) return;
    Pack<T, N> here = load_pack<N>(x, at.column, rotated);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        int64_t pair = (at.column + i) / 2;
        if (2 * pair >= rotated) break;
        Pair to = rotate(get(here, i), get(here, i + 1), angles[pair], angles[rotated / 2 + pair], inverse);
        put(here, i, to.first);
        put(here, i + 1, to.second);
    }
    store_pack(x, at.column, rotated, here);
}

template <typename T>
__global__ void queries_scale_kernel(AttentionShape s, T *qkv, const int32_t *positions,
                                     const float *factors) {
    constexpr int N = AT_ONCE<T>;
    int64_t n = (int64_t)s.heads * s.head_dim;
    PackStart at = pack_start<N>(n);
    if (at.row >= s.tokens) return;
    T *q = qkv + at.row * (n + 2 * (int64_t)s.kv_heads * s.head_dim);
    Pack<T, N> here = load_pack<N>(q, at.column, n);
    float factor = factors[positions[at.row]];
#pragma unroll
    for (int i = 0; i < N; i++) put(here, i, factor * get(here, i));
    store_pack(q, at.column, n, here);
}

/* ---- heads of latent attention ---- */

/* Element i of the rotated part of a head, which begins at x. */
template <typename T> INLINE float rotated(const float *angles, int width, bool inverse, const T *x, int i) {
    int pair = i / 2;
    Pair to =
        rotate(load(x, 2 * pair), load(x, 2 * pair + 1), angles[pair], angles[width / 2 + pair], inverse);
    return i % 2 == 0 ? to.first : to.second;
}

/* A row is a head's q, k or v of a token. The rotated part is read pair by pair. */
template <typename T> __global__ void latent_forward_kernel(const LatentForwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    LatentShape s = o.s;
    int dim = s.nope + s.rope, each = s.nope + s.value;
    PackStart at = pack_start<N>(dim);
    int64_t head = at.row % s.heads, which = at.row / s.heads % 3, t = at.row / s.heads / 3;
    if (t >= s.tokens) return;
    const float *angles = o.cos_sin + (int64_t)o.positions[t] * s.rope;
    const T *mine = (const T *)o.own + (t * s.heads + head) * each,
            *query = (const T *)o.q + t * s.q_row + head * dim;
    const T *copied = which == 0 ? query : which == 1 ? mine : mine + s.nope;
    const T *pairs = which == 0 ? query + s.nope : (const T *)o.key + t * s.key_row;
    Pack<T, N> x = load_pack<N>(copied, at.column, which == 2 ? s.value : s.nope);
#pragma unroll
    for (int i = 0; i < N; i++) {
        int pair = (int)at.column + i - s.nope;
        if (which < 2 && pair >= 0 && pair < s.rope) put(x, i, rotated(angles, s.rope, false, pairs, pair));
    }
    store_pack((T *)o.qkv + at.row * dim, at.column, dim, x);
}

constexpr int LEVELS = 7; /* 2^6 splits */
static_assert(SPLITS_MAX <= 1 << (LEVELS - 1), "a tree has a level for each doubling of splits");

/* Element i of the gradient of the shared key: a sum over the heads' keys at `from`. */
template <typename T> INLINE float common_sum(LatentShape s, const float *angles, const T *from, int i) {
    int dim = s.nope + s.rope, splits = s.splits > 1 ? s.splits : 1, heads = s.heads / splits;
    Tree<float, LEVELS> tree;
    for (int split = 0; split < splits; split++) {
        float sum[2] = {0, 0};
        for (int head = split * heads; head < (split + 1) * heads; head++) {
            const T *pair = from + (int64_t)head * dim + s.nope + i / 2 * 2;
            sum[0] += load(pair, 0), sum[1] += load(pair, 1);
        }
        tree.add(rotated(angles + i / 2, s.rope, true, sum, i % 2));
    }
    return tree.sum();
}

/* The work of a token's threads: packs of the gradient of q, head by head; then packs of the gradient of each
 * head's `own` elements; then elements of the gradient of the shared key, each summed over all heads. */
struct LatentThreads {
    int64_t queries, own, all;
};
template <int N> __host__ __device__ LatentThreads latent_threads(LatentShape s) {
    int64_t queries = s.heads * (int64_t)((s.nope + s.rope + N - 1) / N),
            own = s.heads * (int64_t)((s.nope + s.value + N - 1) / N);
    return {queries, own, queries + own + s.rope};
}

template <typename T> __global__ void latent_backward_kernel(const LatentBackwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    LatentShape s = o.s;
    LatentThreads threads = latent_threads<N>(s);
    int64_t t = element() / threads.all, x = element() % threads.all;
    if (t >= s.tokens) return;
    int dim = s.nope + s.rope, each = s.nope + s.value;
    int64_t width = (int64_t)s.heads * dim;
    const float *angles = o.cos_sin + (int64_t)o.positions[t] * s.rope;
    const T *from = (const T *)o.dqkv + t * 3 * width;
    if (x < threads.queries) {
        int64_t packs = threads.queries / s.heads, head = x / packs, column = x % packs * N;
        const T *query = from + head * dim;
        Pack<T, N> grad = load_pack<N>(query, column, s.nope);
#pragma unroll
        for (int i = 0; i < N; i++) {
            int pair = (int)column + i - s.nope;
            if (pair >= 0 && pair < s.rope) put(grad, i, rotated(angles, s.rope, true, query + s.nope, pair));
        }
        store_pack((T *)o.dq + t * s.q_row + head * dim, column, dim, grad);
    } else if (x < threads.queries + threads.own) {
        x -= threads.queries;
        int64_t packs = threads.own / s.heads, head = x / packs, column = x % packs * N;
        const T *key = from + width + head * dim, *value = from + 2 * width + head * dim;
        Pack<T, N> grad = {};
        if (column >= s.nope)
            grad = load_pack<N>(value, column - s.nope, s.value);
        else {
            grad = load_pack<N>(key, column, s.nope);
#pragma unroll
            for (int i = 0; i < N; i++) {
                int64_t more = column + i - s.nope;
                if (more >= 0 && more < s.value) take(grad, i, value + more);
            }
        }
        store_pack((T *)o.down + (t * s.heads + head) * each, column, each, grad);
    } else {
        int i = (int)(x - threads.queries - threads.own);
        float sum = common_sum(s, angles, from + width, i);
        if (s.partial)
            store((float *)o.dkey, t * s.key_row + i, sum);
        else
            store((T *)o.dkey, t * s.key_row + i, sum);
    }
}

/* ---- slots ---- */

void add(Device *d, const AddArgs *o) {
    if (o->n == 0) return;
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_ADD, add_kernel<T>, blocks_of_packs<AT_ONCE<T>>(o->n), BLOCK, 0, o->n,
                    (const T *)o->a, (const T *)o->b, (T *)o->out));
}

void cast(Device *d, const CastArgs *o) {
    if (o->n == 0) return;
    BY_DTYPE(o->in_type, From,
             BY_DTYPE(o->out_type, To, auto kernel = cast_kernel<From, To>;
                      constexpr int N = AT_ONCE<From, To>;
                      LAUNCH(d, OP_CAST, kernel, blocks_of_packs<N>(o->n), BLOCK, 0, o->n,
                             (const From *)o->in, (To *)o->out)));
}

void fill(Device *d, const FillArgs *o) {
    constexpr int N = AT_ONCE<float>;
    if (o->n > 0) LAUNCH(d, OP_FILL, fill_kernel, blocks_of_packs<N>(o->n), BLOCK, 0, o->n, o->value, o->out);
}

void scale(Device *d, const ScaleArgs *o) {
    if (o->rows * o->n == 0) return;
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_SCALE, scale_kernel<T>, blocks_of_packs<AT_ONCE<T>>(o->rows, o->n), BLOCK, 0,
                    o->rows, o->n, o->factor, (const T *)o->in, o->ldi, (T *)o->out));
}

void softcap(Device *d, const SoftcapArgs *o) {
    if (o->n == 0) return;
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_SOFTCAP, softcap_kernel<T>, blocks_of_packs<AT_ONCE<T>>(o->n), BLOCK, 0, o->n,
                    o->cap, (T *)o->x));
}

void bias_forward(Device *d, const BiasForwardArgs *o) {
    if (o->tokens * o->n == 0) return;
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_BIAS_FORWARD, bias_kernel<T>, blocks_of_packs<AT_ONCE<T>>(o->tokens, o->n), BLOCK,
                    0, o->tokens, o->n, (T *)o->y, o->bias));
}

void activation_forward(Device *d, const ActivationForwardArgs *o) {
    int64_t n = o->tokens * o->inter;
    if (n == 0) return;
    if (o->f == ACT_CLAMPED)
        BY_DTYPE(o->c, T,
                 LAUNCH(d, OP_ACTIVATION_FORWARD, clamped_forward_kernel<T>, blocks_of_packs<AT_ONCE<T>>(n),
                        BLOCK, 0, n, (const T *)o->x, (T *)o->act));
    else
        BY_DTYPE(o->c, T, auto kernel = activation_forward_kernel<T>;
                 LAUNCH(d, OP_ACTIVATION_FORWARD, kernel, blocks_of_packs<AT_ONCE<T>>(o->tokens, o->inter),
                        BLOCK, 0, *o));
}

void activation_backward(Device *d, const ActivationBackwardArgs *o) {
    int64_t n = o->tokens * o->inter;
    if (n == 0) return;
    if (o->f == ACT_CLAMPED)
        BY_DTYPE(o->c, T,
                 LAUNCH(d, OP_ACTIVATION_BACKWARD, clamped_backward_kernel<T>, blocks_of_packs<AT_ONCE<T>>(n),
                        BLOCK, 0, n, (const T *)o->x, (const T *)o->dact, (T *)o->dx, (T *)o->act));
    else
        BY_DTYPE(o->c, T, auto kernel = activation_backward_kernel<T>;
                 LAUNCH(d, OP_ACTIVATION_BACKWARD, kernel, blocks_of_packs<AT_ONCE<T>>(o->tokens, o->inter),
                        BLOCK, 0, *o));
}

void rope(Device *d, const RopeArgs *o) {
    int half = (o->s.rotary > 0 ? o->s.rotary : o->s.head_dim) / 2;
    int64_t heads = o->s.tokens * (o->s.heads + o->s.kv_heads);
    if (heads * half == 0) return;
    if (o->s.neighbours) {
        BY_DTYPE(o->c, T, auto kernel = rope_neighbours_kernel<T>;
                 LAUNCH(d, OP_ROPE, kernel, blocks_of_packs<AT_ONCE<T>>(heads, 2 * half), BLOCK, 0, o->s,
                        2 * half, (T *)o->qkv, o->positions, o->cos_sin, o->inverse));
        return;
    }
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_ROPE, rope_kernel<T>, blocks_of_packs<AT_ONCE<T>>(heads, half), BLOCK, 0, o->s,
                    half, (T *)o->qkv, o->positions, o->cos_sin, o->inverse));
}

void queries_scale(Device *d, const QueriesScaleArgs *o) {
    int64_t n = (int64_t)o->s.heads * o->s.head_dim;
    if (o->s.tokens * n == 0) return;
    BY_DTYPE(o->c, T, auto kernel = queries_scale_kernel<T>;
             LAUNCH(d, OP_QUERIES_SCALE, kernel, blocks_of_packs<AT_ONCE<T>>(o->s.tokens, n), BLOCK, 0, o->s,
                    (T *)o->qkv, o->positions, o->factors));
}

void latent_forward(Device *d, const LatentForwardArgs *o) {
    int64_t heads = o->s.tokens * 3 * o->s.heads, dim = latent_head(o->s);
    if (heads == 0) return;
    BY_DTYPE(o->c, T, auto kernel = latent_forward_kernel<T>;
             LAUNCH(d, OP_LATENT_FORWARD, kernel, blocks_of_packs<AT_ONCE<T>>(heads, dim), BLOCK, 0, *o));
}

void latent_backward(Device *d, const LatentBackwardArgs *o) {
    if (o->s.tokens * o->s.heads == 0) return;
    BY_DTYPE(o->c, T, auto kernel = latent_backward_kernel<T>;
             int64_t threads = o->s.tokens * latent_threads<AT_ONCE<T>>(o->s).all;
             LAUNCH(d, OP_LATENT_BACKWARD, kernel, blocks_of(threads, BLOCK), BLOCK, 0, *o));
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
    ops->queries_scale = queries_scale;
    ops->latent_forward = latent_forward;
    ops->latent_backward = latent_backward;
}
