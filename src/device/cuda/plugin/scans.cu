/* Causal convolutions, and recurrences: each channel by itself.
 *
 * A state goes from token to token in one chain of fp32, and a thread has a channel. Chains restart where
 * documents begin, so threads take runs of whole documents; this changes no bit of a state. A chain waits for
 * memory once in STEPS tokens, whose inputs are loaded together. Sums over tokens are cut by constants. */
#include "device/cuda/plugin/scans.cuh"

namespace {

/* ---- convolutions ---- */

/* The first token that t sees; in generation negative indices are those of the tail. */
INLINE int64_t reach_of(ConvShape s, const int32_t *first_key, int64_t t) {
    int64_t reach = t - s.taps + 1;
    return first_key ? larger(first_key[t], reach) : reach;
}

/* A pack of token u's row; rows before the first token are in the tail. */
template <int N, typename T>
INLINE Pack<float, N> input_pack(ConvShape s, const T *x, const float *tail, int64_t u, int64_t column) {
    if (u < 0) return load_pack<N>(tail + (u + s.taps - 1) * s.width, column, s.width);
    Pack<T, N> here = load_pack<N>(x + u * s.row, column, s.width);
    Pack<float, N> out = {};
#pragma unroll
    for (int i = 0; i < N; i++) put(out, i, get(here, i));
    return out;
}

/* Taps are added from the oldest token to the newest. */
template <typename T> __global__ void conv_forward_kernel(const ConvForwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    ConvShape s = o.s;
    PackStart at = pack_start<N>(s.width);
    int64_t t = at.row;
    if (t >= s.tokens) return;
    float sum[N] = {};
    for (int64_t u = reach_of(s, o.first_key, t); u <= t; u++) {
        Pack<float, N> weight = load_pack<N>(o.w + (s.taps - 1 - (t - u)) * s.width, at.column, s.width),
                       here = input_pack<N>(s, (const T *)o.x, o.tail, u, at.column);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = FUSED(get(weight, i), get(here, i), sum[i]);
    }
    Pack<T, N> out = {};
#pragma unroll
    for (int i = 0; i < N; i++) put(out, i, sum[i] * sigmoid(sum[i]));
    store_pack((T *)o.y + t * s.width, at.column, s.width, out);
}

/* The oldest row comes first, so that each row is read before it is overwritten. */
template <typename T> __global__ void conv_tail_kernel(const ConvForwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    ConvShape s = o.s;
    int64_t column = element() * N;
    if (column >= s.width) return;
    for (int64_t k = 0; k < s.taps - 1; k++)
        store_pack(o.tail + k * s.width, column, s.width,
                   input_pack<N>(s, (const T *)o.x, o.tail, s.tokens - s.taps + 1 + k, column));
}

void conv_forward(Device *d, const ConvForwardArgs *o) {
    if (o->s.tokens * o->s.width == 0) return;
    BY_DTYPE(o->c, T, constexpr int N = AT_ONCE<T>; auto kernel = conv_forward_kernel<T>;
             LAUNCH(d, OP_CONV_FORWARD, kernel, blocks_of_packs<N>(o->s.tokens, o->s.width), BLOCK, 0, *o);
             if (o->tail) LAUNCH(d, OP_CONV_FORWARD, conv_tail_kernel<T>, blocks_of_packs<N>(o->s.width),
                                 BLOCK, 0, *o));
}

constexpr int ROWS = THREADS / COLUMNS, CHUNK = 32; /* threads of a channel; tokens of a chunk */

/* One channel, with TAPS slots, the newest token last. A shorter convolution uses the last slots. */
template <int TAPS> struct ConvChannel {
    float weight[TAPS], sum[TAPS]; /* sum: gradients of the taps */
    float input[TAPS], grad[TAPS]; /* of the last TAPS tokens */
    INLINE void move_on(float x) {
#pragma unroll
        for (int k = 0; k + 1 < TAPS; k++) input[k] = input[k + 1], grad[k] = grad[k + 1];
        input[TAPS - 1] = x, grad[TAPS - 1] = 0;
    }
    /* Adds the gradients that dy, the gradient of token t's output, gives to the slots from `unseen` on.
     * counts: whether t belongs to the chunk. */
    INLINE void add(int unseen, float dy, bool counts) {
        float p = 0;
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            if (k >= unseen) p = FUSED(weight[k], input[k], p);
        float dp = dy * silu_slope(p, sigmoid(p));
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            if (k < unseen) continue;
            grad[k] = FUSED(weight[k], dp, grad[k]);
            if (counts) sum[k] = FUSED(input[k], dp, sum[k]);
        }
    }
};

/* The gradients of tokens begin .. end-1, for which the TAPS - 1 tokens behind them are also read. */
template <typename T, int TAPS>
INLINE void conv_backward_chunk(const ConvBackwardArgs &o, ConvChannel<TAPS> &state, int64_t channel,
                                int64_t begin, int64_t end) {
    ConvShape s = o.s;
    const T *x = (const T *)o.x, *dy = (const T *)o.dy;
    for (int64_t u = begin - TAPS + 1; u < begin; u++)
        state.move_on(u < 0 ? 0 : load(x, u * s.row + channel));
    for (int64_t t = begin; t < end + TAPS - 1; t++) {
        bool there = t < s.tokens;
        state.move_on(there ? load(x, t * s.row + channel) : 0);
        if (there)
            state.add((int)(reach_of(s, o.first_key, t) - (t - TAPS + 1)), load(dy, t * s.width + channel),
                      t < end);
        int64_t done = t - TAPS + 1; /* no later token sees it */
        if (done >= begin) store((T *)o.dx, done * s.row + channel, state.grad[0]);
    }
}

/* A block has adjacent channels; the threads of a channel take chunks of tokens round robin. */
template <typename T, int TAPS>
__global__ void __launch_bounds__(THREADS) conv_backward_kernel(const ConvBackwardArgs o) {
    ConvShape s = o.s;
    SHARED(float, smem, ROWS *COLUMNS);
    int number = (int)(threadIdx.y * COLUMNS + threadIdx.x), without = TAPS - s.taps;
    int64_t channel = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    bool mine = channel < s.width;
    ConvChannel<TAPS> state = {};
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        if (mine && k >= without) state.weight[k] = o.w[(k - without) * s.width + channel];
    for (int64_t begin = threadIdx.y * CHUNK; mine && begin < s.tokens; begin += ROWS * CHUNK)
        conv_backward_chunk<T>(o, state, channel, begin, smaller(s.tokens, begin + CHUNK));
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        smem[number] = state.sum[k];
        fold_rows(smem, ROWS, number);
        if (threadIdx.y == 0 && mine && k >= without) o.dw[(k - without) * s.width + channel] += smem[number];
    }
}

void conv_backward(Device *d, const ConvBackwardArgs *o) {
    constexpr int FEW = 4;
    static_assert(CONV_TAPS > FEW, "two kinds of kernels take all numbers of taps");
    if (o->s.tokens * o->s.width == 0) return;
    BY_DTYPE(o->c, T,
             auto kernel =
                 o->s.taps <= FEW ? conv_backward_kernel<T, FEW> : conv_backward_kernel<T, CONV_TAPS>;
             LAUNCH(d, OP_CONV_BACKWARD, kernel, blocks_of(o->s.width, COLUMNS), dim3(COLUMNS, ROWS), 0, *o));
}

/* ---- recurrences ---- */

constexpr int STEPS = 8;

/* What a and b of one token and channel are computed from, or the gradients of these. decay:
 * HAWK's factor of s(r). */
struct Element {
    float gate[SCAN_GATES], value, decay;
};
struct Coefficients {
    float a, b;
};

INLINE float decay_of(float lambda) { return (float)(-8 * log1p(exp((double)lambda))); }

template <ScanKind KIND, typename T>
INLINE Element element_at(const ScanShape &s, const ScanInputs &in, float decay, int64_t t, int64_t channel) {
    const T *gates = (const T *)in.gates + t * s.gates_row + channel;
    return {{load(gates, 0), KIND == SCAN_MIN_GRU ? 0 : load(gates, s.width)},
            load((const T *)in.values, t * s.values_row + channel),
            decay};
}

template <ScanKind KIND> INLINE Coefficients coefficients(Element e) {
    float x = sigmoid(e.gate[0]);
    if (KIND == SCAN_MIN_GRU) return {1 - x, x * e.value};
    float y = sigmoid(e.gate[1]), log_a = e.decay * x, n = 1 / (x + y + 1e-4f);
    if (KIND == SCAN_MIN_LSTM) return {x * n, y * n * e.value};
    return {expf(log_a), sqrtf(-expm1f(2 * log_a)) * y * e.value};
}

/* HAWK's gradients, from da and db. */
INLINE Element hawk_slopes(Element e, float da, float db) {
    float x = sigmoid(e.gate[0]), y = sigmoid(e.gate[1]), log_a = e.decay * x, a = expf(log_a),
          square = -expm1f(2 * log_a), root = sqrtf(square), along = db * y;
    float dlog = (da - 2 * a * along * e.value / sqrtf(fmaxf(4 * square, 1e-6f))) * a;
    return {{dlog * e.decay * x * (1 - x), along * root * e.value * (1 - y)}, along * root, dlog * x};
}

/* The gradients, from da and db. */
template <ScanKind KIND> INLINE Element slopes(Element e, float da, float db) {
    if (KIND == SCAN_HAWK) return hawk_slopes(e, da, db);
    float x = sigmoid(e.gate[0]), dbv = db * e.value;
    if (KIND == SCAN_MIN_GRU) return {{(dbv - da) * x * (1 - x), 0}, db * x, 0};
    float y = sigmoid(e.gate[1]), n = 1 / (x + y + 1e-4f), along = n * (da * x + dbv * y);
    return {{n * (da - along) * x * (1 - x), n * (dbv - along) * y * (1 - y)}, db * y * n, 0};
}

/* blockIdx.x: a run; blockIdx.y: channels, one per thread. */
INLINE int64_t channel_of_thread(void) { return (int64_t)blockIdx.y * WARP + threadIdx.x; }

template <typename T, ScanKind KIND>
__global__ void __launch_bounds__(WARP) scan_forward_kernel(const ScanForwardArgs o, int64_t run) {
    int64_t channel = channel_of_thread();
    if (channel >= o.s.width) return;
    Documents docs = documents_of(o.first_key, o.s.tokens, run);
    float decay = KIND == SCAN_HAWK ? decay_of(o.in.lambda[channel]) : 0,
          now = o.state ? o.state[channel] : 0;
    for (int64_t t = docs.first; t < docs.end; t += STEPS) {
        int count = (int)smaller(STEPS, docs.end - t);
        Coefficients k[STEPS] = {};
        bool begins[STEPS] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (i >= count) continue;
            begins[i] = begins_at(o.first_key, t + i);
            k[i] = coefficients<KIND>(element_at<KIND, T>(o.s, o.in, decay, t + i, channel));
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (i >= count) continue;
            now = FUSED(k[i].a, begins[i] ? 0 : now, k[i].b);
            o.h[(t + i) * o.s.width + channel] = now;
        }
    }
    if (o.state) o.state[channel] = now;
}

template <typename T> __global__ void scan_gate_kernel(const ScanGateArgs o) {
    constexpr int N = AT_ONCE<T>;
    ScanShape s = o.s;
    PackStart at = pack_start<N>(s.width);
    if (at.row >= s.tokens) return;
    Pack<T, N> x = load_pack<N>((const T *)o.gate + at.row * s.gate_row, at.column, s.width);
    Pack<float, N> now = load_pack<N>(o.h + at.row * s.width, at.column, s.width);
#pragma unroll
    for (int i = 0; i < N; i++) put(x, i, get(now, i) * (get(x, i) * sigmoid(get(x, i))));
    store_pack((T *)o.out + at.row * s.width, at.column, s.width, x);
}

/* What the backward pass reads of a token and channel. */
template <ScanKind KIND> struct ScanPoint {
    Element e;
    float gate, dy, now, before;
    bool begins;
};
template <ScanKind KIND, typename T>
INLINE ScanPoint<KIND> scan_point(const ScanBackwardArgs &o, float decay, int64_t t, int64_t channel) {
    ScanPoint<KIND> v = {element_at<KIND, T>(o.s, o.in, decay, t, channel),
                         load((const T *)o.in.gate, t * o.s.gate_row + channel),
                         load((const T *)o.dout, t * o.s.width + channel),
                         o.h[t * o.s.width + channel],
                         0,
                         t == 0 || begins_at(o.first_key, t)};
    if (!v.begins) v.before = o.h[(t - 1) * o.s.width + channel];
    return v;
}

/* Writes the gradients of a token. `later` is the gradient of the state from the token behind, and becomes
 * that of the state before. Returns the token's addend to the decay's gradient. */
template <ScanKind KIND, typename T>
INLINE float scan_backward_step(const ScanBackwardArgs &o, const ScanPoint<KIND> &v, int64_t t,
                                int64_t channel, float *later) {
    ScanShape s = o.s;
    float q = sigmoid(v.gate), g = FUSED(v.dy, v.gate * q, *later);
    Element de = slopes<KIND>(v.e, g * v.before, g);
    T *gates = (T *)o.out.gates + t * s.gates_row + channel;
    *later = v.begins ? 0 : g * coefficients<KIND>(v.e).a;
    store(gates, 0, de.gate[0]);
    if (KIND != SCAN_MIN_GRU) store(gates, s.width, de.gate[1]);
    store((T *)o.out.values, t * s.values_row + channel, de.value);
    store((T *)o.out.gate, t * s.gate_row + channel, v.dy * v.now * silu_slope(v.gate, q));
    return de.decay;
}

/* decays: HAWK's sums, one for each run and channel. */
template <typename T, ScanKind KIND>
__global__ void __launch_bounds__(WARP)
    scan_backward_kernel(const ScanBackwardArgs o, int64_t run, float *decays) {
    int64_t channel = channel_of_thread();
    if (channel >= o.s.width) return;
    Documents docs = documents_of(o.first_key, o.s.tokens, run);
    float decay = KIND == SCAN_HAWK ? decay_of(o.in.lambda[channel]) : 0, later = 0, sum = 0;
    for (int64_t t = docs.end - 1; t >= docs.first; t -= STEPS) {
        int count = (int)smaller(STEPS, t + 1 - docs.first);
        ScanPoint<KIND> of[STEPS] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (i < count) of[i] = scan_point<KIND, T>(o, decay, t - i, channel);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (i < count) sum += scan_backward_step<KIND, T>(o, of[i], t - i, channel, &later);
    }
    if (KIND == SCAN_HAWK) decays[blockIdx.x * o.s.width + channel] = sum;
}

/* A thread has a channel. */
__global__ void scan_lambda_kernel(int64_t width, int64_t runs, const float *decays, const float *lambda,
                                   float *dlambda) {
    int64_t channel = element();
    if (channel >= width) return;
    float sum = 0;
    for (int64_t run = 0; run < runs; run++) sum += decays[run * width + channel];
    dlambda[channel] += sum * (float)(-8 / (1 + exp(-(double)lambda[channel])));
}

/* ---- slots ---- */

/* Runs the statement with KIND a constant. */
#define BY_KIND(kind, KIND, ...)                     \
    do {                                             \
        if ((kind) == SCAN_MIN_GRU) {                \
            constexpr ScanKind KIND = SCAN_MIN_GRU;  \
            __VA_ARGS__;                             \
        } else if ((kind) == SCAN_MIN_LSTM) {        \
            constexpr ScanKind KIND = SCAN_MIN_LSTM; \
            __VA_ARGS__;                             \
        } else {                                     \
            constexpr ScanKind KIND = SCAN_HAWK;     \
            __VA_ARGS__;                             \
        }                                            \
    } while (0)

void scan_forward(Device *d, const ScanForwardArgs *o) {
    if (o->s.tokens * o->s.width == 0) return;
    int64_t run = run_of(o->s.tokens, o->first_key);
    Grid grid(blocks_of(o->s.tokens, run), blocks_of(o->s.width, WARP));
    BY_DTYPE(o->c, T,
             BY_KIND(o->s.kind, KIND, auto kernel = scan_forward_kernel<T, KIND>;
                     LAUNCH(d, OP_SCAN_FORWARD, kernel, grid, WARP, 0, *o, run)));
}

void scan_gate(Device *d, const ScanGateArgs *o) {
    if (o->s.tokens * o->s.width == 0) return;
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_SCAN_GATE, scan_gate_kernel<T>,
                    blocks_of_packs<AT_ONCE<T>>(o->s.tokens, o->s.width), BLOCK, 0, *o));
}

/* There are at most RUNS runs, so the sums of 131,072 channels fit into any plan's scratch (needs.h). */
void scan_backward(Device *d, const ScanBackwardArgs *o) {
    if (o->s.tokens * o->s.width == 0) return;
    int64_t run = run_of(o->s.tokens, o->first_key), runs = blocks_of(o->s.tokens, run);
    Grid grid(runs, blocks_of(o->s.width, WARP));
    bool hawk = o->s.kind == SCAN_HAWK;
    float *decays = hawk ? (float *)cuda_scratch(d, (size_t)(runs * o->s.width) * sizeof *decays) : NULL;
    BY_DTYPE(o->c, T,
             BY_KIND(o->s.kind, KIND, auto kernel = scan_backward_kernel<T, KIND>;
                     LAUNCH(d, OP_SCAN_BACKWARD, kernel, grid, WARP, 0, *o, run, decays)));
    if (hawk)
        LAUNCH(d, OP_SCAN_BACKWARD, scan_lambda_kernel, blocks_of(o->s.width, BLOCK), BLOCK, 0, o->s.width,
               runs, decays, o->in.lambda, o->out.lambda);
}

} // namespace

extern "C" void scans_fill(Ops *ops) {
    ops->conv_forward = conv_forward;
    ops->conv_backward = conv_backward;
    ops->scan_forward = scan_forward;
    ops->scan_gate = scan_gate;
    ops->scan_backward = scan_backward;
}
