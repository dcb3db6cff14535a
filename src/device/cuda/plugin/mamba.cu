/* Mamba-2 (ops/recurrence.h), and the gated norm behind it.
 *
 * A row of a head's state goes from token to token in its own chain of fp32. A warp has the row, and takes
 * runs of whole documents (scans.cuh). The backward pass goes by scan chunks, the last one first: warps with
 * a column of a head add up the gradients of B and C, warps with a row compute the gradients of x and of the
 * steps' inputs, and a warp per head finishes. Each of these recomputes the states, or the gradients handed
 * back from token to token, by the same formula, so that no warp waits for another. Sums over a state's
 * elements, and over rows, have one order, whatever the tokens. */
#include "device/cuda/plugin/scans.cuh"

namespace {

constexpr int SUBCHUNK = 8; /* tokens whose inputs are loaded together */
static_assert(MAMBA_CHUNK % SUBCHUNK == 0 && SUBCHUNK <= WARP, "scan chunks are of full subchunks");

/* ---- common to the kernels ---- */

INLINE int64_t rows_of(const MambaShape &s) { return s.heads * s.head_dim; }
/* Where a head's B and C begin in the row of a token. */
INLINE int group_at(const MambaShape &s, int64_t head) {
    return (int)(head / (s.heads / s.groups) * s.state);
}

/* The factors of a head at a token: of x, and of the state before. */
struct Step {
    float step, keep;
};
INLINE float rate_of(const MambaInputs &in, int64_t head) { return -expf(in.A_log[head]); }
template <typename T>
INLINE Step step_at(const MambaShape &s, const MambaInputs &in, const int32_t *first_key, int64_t head,
                    int64_t t) {
    float raw = load((const T *)in.dt, t * s.dt_row + head) + in.dt_bias[head],
          step = (raw > 0 ? raw : 0) + log1pf(expf(-fabsf(raw)));
    return {step, begins_at(first_key, t) ? 0 : expf(step * rate_of(in, head))};
}

/* Loads elements lane, lane + WARP, ... of n adjacent ones; zeros past them. */
template <int PER, typename T> INLINE void take_lanes(float (&x)[PER], const T *p, int64_t n) {
#pragma unroll
    for (int k = 0; k < PER; k++) x[k] = lane() + k * WARP < n ? load(p, lane() + k * WARP) : 0;
}
template <int PER> INLINE void give_lanes(const float (&x)[PER], float *p, int64_t n) {
#pragma unroll
    for (int k = 0; k < PER; k++)
        if (lane() + k * WARP < n) p[lane() + k * WARP] = x[k];
}

/* A state's element after a token. */
INLINE float next_state(Step k, float before, float x, float B) {
    return FUSED(k.step * x, B, k.keep * before);
}

/* The sum over the warp of each of a subchunk's values; lane i gets the i-th. */
INLINE float sum_of_lane(const float (&sum)[SUBCHUNK]) {
    float mine = 0;
#pragma unroll
    for (int i = 0; i < SUBCHUNK; i++) {
        float all = lanes_sum(sum[i], WARP);
        if (lane() == i) mine = all;
    }
    return mine;
}

/* Runs the statement with PER the elements of a state of size n that each lane has. */
#define BY_STATE(n, PER, ...)      \
    do {                           \
        if ((n) <= 2 * WARP) {     \
            constexpr int PER = 2; \
            __VA_ARGS__;           \
        } else if ((n) <= 128) {   \
            constexpr int PER = 4; \
            __VA_ARGS__;           \
        } else {                   \
            constexpr int PER = 8; \
            __VA_ARGS__;           \
        }                          \
    } while (0)
static_assert(MAMBA_STATE == 8 * WARP, "a warp has a row");

/* ---- forward ---- */

constexpr int ROWS = 4; /* warps of a block */

/* blockIdx.x: a run; blockIdx.y: rows. Subchunks end where scan chunks do. */
template <typename T, int PER>
__global__ void __launch_bounds__(ROWS *WARP) mamba_forward_kernel(const MambaForwardArgs o, int64_t run) {
    MambaShape s = o.s;
    MambaInputs in = o.in;
    int64_t rows = rows_of(s), row = (int64_t)blockIdx.y * ROWS + threadIdx.x / WARP, head = row / s.head_dim;
    if (row >= rows) return;
    Documents docs = documents_of(o.first_key, s.tokens, run);
    int group = group_at(s, head);
    float now[PER] = {}, D = in.D[head];
    if (o.state) take_lanes(now, o.state + row * s.state, s.state);
    if (docs.first == 0) give_lanes(now, o.starts + row * s.state, s.state);
    for (int64_t t = docs.first; t < docs.end;) {
        int count = (int)smaller(SUBCHUNK - t % SUBCHUNK, docs.end - t);
        bool mine = lane() < count;
        Step my_step = {};
        if (mine) my_step = step_at<T>(s, in, o.first_key, head, t + lane());
        float x = mine ? load((const T *)in.x, (t + lane()) * s.row + row) : 0, sum[SUBCHUNK] = {};
#pragma unroll
        for (int i = 0; i < SUBCHUNK; i++) {
            if (i >= count) continue;
            float B[PER], C[PER], here = __shfl_sync(0xffffffffu, x, i);
            Step k = {__shfl_sync(0xffffffffu, my_step.step, i), __shfl_sync(0xffffffffu, my_step.keep, i)};
            take_lanes(B, (const T *)in.B + (t + i) * s.row + group, s.state);
            take_lanes(C, (const T *)in.C + (t + i) * s.row + group, s.state);
#pragma unroll
            for (int n = 0; n < PER; n++) {
                now[n] = next_state(k, now[n], here, B[n]);
                sum[i] = FUSED(now[n], C[n], sum[i]);
            }
        }
        float along = sum_of_lane(sum);
        if (mine) store((T *)o.y, (t + lane()) * rows + row, along + D * x);
        t += count;
        if (t % MAMBA_CHUNK == 0 && t < s.tokens)
            give_lanes(now, o.starts + (t / MAMBA_CHUNK * rows + row) * s.state, s.state);
    }
    if (o.state) give_lanes(now, o.state + row * s.state, s.state);
}

void mamba_forward(Device *d, const MambaForwardArgs *o) {
    if (o->s.tokens * o->s.heads * o->s.head_dim == 0) return;
    int64_t run = run_of(o->s.tokens, o->first_key);
    Grid grid(blocks_of(o->s.tokens, run), blocks_of(o->s.heads * o->s.head_dim, ROWS));
    BY_DTYPE(o->c, T,
             BY_STATE(o->s.state, PER, auto kernel = mamba_forward_kernel<T, PER>;
                      LAUNCH(d, OP_MAMBA_FORWARD, kernel, grid, ROWS * WARP, 0, *o, run)));
}

/* ---- backward ---- */

/* Tokens first .. first + count - 1 (a scan chunk) of some heads, and scratch: two runs of MAMBA_CHUNK
 * floats for each head (steps) and for each of its rows (partials), and one more float for each row (skips).
 * last: no token comes behind. */
struct MambaChunk {
    int64_t first, head, heads;
    int count;
    bool last;
    float *steps, *partials, *skips;
};
constexpr int64_t NUMBERS = 2 * MAMBA_CHUNK;

INLINE float *steps_of(const MambaChunk &r, int64_t head) { return r.steps + (head - r.head) * NUMBERS; }
INLINE Step step_of(const float *steps, int i) { return {steps[i], steps[MAMBA_CHUNK + i]}; }
INLINE float *partials_of(const MambaShape &s, const MambaChunk &r, int64_t row) {
    return r.partials + (row - r.head * s.head_dim) * NUMBERS;
}

template <typename T> __global__ void mamba_steps_kernel(const MambaBackwardArgs o, const MambaChunk r) {
    int64_t head = r.head + element() / MAMBA_CHUNK;
    int i = (int)(element() % MAMBA_CHUNK);
    if (head >= r.head + r.heads || i >= r.count) return;
    Step k = step_at<T>(o.s, o.in, o.first_key, head, r.first + i);
    steps_of(r, head)[i] = k.step, steps_of(r, head)[MAMBA_CHUNK + i] = k.keep;
}

/* Adds the subchunk's sums to those of earlier rows if `more`, else stores them. */
INLINE void add_subchunk(const float (&sum)[SUBCHUNK], int count, bool more, float *to, int64_t step) {
    float mine = sum_of_lane(sum);
    if (lane() >= SUBCHUNK || lane() >= count) return;
    to += lane() * step;
    *to = more ? *to + mine : mine;
}

/* What the warp of a column has of the chunk's token i: its step, and x and gradients of y of PER of the
 * head's rows per lane, from row p on. */
template <int PER> struct ScanPoint {
    Step step;
    float x[PER], dy[PER];
};
template <int PER, typename T>
INLINE ScanPoint<PER> scan_point(const MambaBackwardArgs &o, const MambaChunk &r, int64_t head, int64_t p,
                                 int i) {
    int64_t t = r.first + i, row = head * o.s.head_dim + p, left = o.s.head_dim - p;
    ScanPoint<PER> point;
    point.step = step_of(steps_of(r, head), i);
    take_lanes(point.x, (const T *)o.in.x + t * o.s.row + row, left);
    take_lanes(point.dy, (const T *)o.dy + t * rows_of(o.s) + row, left);
    return point;
}

/* A warp has a column of a head's state: it sums one element of B's and of C's gradient
 * over rows. */
template <typename T> __global__ void mamba_columns_kernel(const MambaBackwardArgs o, const MambaChunk r) {
    constexpr int PER = 2;
    MambaShape s = o.s;
    int64_t number = element() / WARP, head = r.head + number / s.state, n = number % s.state,
            rows = rows_of(s), step = 2 * s.state;
    if (head >= r.head + r.heads) return;
    int64_t column = group_at(s, head) + n;
    float *to = o.scratch + head * smaller(MAMBA_CHUNK, s.tokens) * step + n;
    for (int64_t p = 0; p < s.head_dim; p += PER * WARP) {
        float now[PER] = {}, later[PER] = {};
#pragma unroll
        for (int k = 0; k < PER; k++) {
            int64_t row = p + lane() + k * WARP, at = (head * s.head_dim + row) * s.state + n;
            if (row >= s.head_dim) continue;
            now[k] = o.starts[r.first / MAMBA_CHUNK * rows * s.state + at];
            if (!r.last) later[k] = o.carry[at];
        }
        for (int sub = 0; sub < r.count; sub += SUBCHUNK) {
            float sum[SUBCHUNK] = {};
#pragma unroll
            for (int i = 0; i < SUBCHUNK; i++) {
                if (sub + i >= r.count) continue;
                ScanPoint<PER> of = scan_point<PER, T>(o, r, head, p, sub + i);
                float B = load((const T *)o.in.B, (r.first + sub + i) * s.row + column);
#pragma unroll
                for (int k = 0; k < PER; k++) {
                    now[k] = next_state(of.step, now[k], of.x[k], B);
                    sum[i] = FUSED(of.dy[k], now[k], sum[i]);
                }
            }
            add_subchunk(sum, r.count - sub, p > 0, to + s.state + sub * step, step);
        }
        for (int sub = (r.count - 1) / SUBCHUNK * SUBCHUNK; sub >= 0; sub -= SUBCHUNK) {
            float sum[SUBCHUNK] = {};
#pragma unroll
            for (int i = SUBCHUNK - 1; i >= 0; i--) {
                if (sub + i >= r.count) continue;
                ScanPoint<PER> of = scan_point<PER, T>(o, r, head, p, sub + i);
                float C = load((const T *)o.in.C, (r.first + sub + i) * s.row + column);
#pragma unroll
                for (int k = 0; k < PER; k++) {
                    float g = FUSED(of.dy[k], C, later[k]);
                    sum[i] = FUSED(of.step.step * of.x[k], g, sum[i]);
                    later[k] = of.step.keep * g;
                }
            }
            add_subchunk(sum, r.count - sub, p > 0, to + sub * step, step);
        }
    }
}

/* What all lanes read for a row and a subchunk, which is of the chunk's tokens from `first` on, at most
 * SUBCHUNK. */
struct Subchunk {
    int first;
    Step steps[SUBCHUNK];
    float x[SUBCHUNK], dy[SUBCHUNK];
};
template <typename T>
INLINE Subchunk subchunk_at(const MambaBackwardArgs &o, const MambaChunk &r, const float *steps, int64_t row,
                            int first) {
    Subchunk v = {first, {}, {}, {}};
#pragma unroll
    for (int i = 0; i < SUBCHUNK; i++) {
        if (first + i >= r.count) continue;
        int64_t t = r.first + first + i;
        v.steps[i] = step_of(steps, first + i);
        v.x[i] = load((const T *)o.in.x, t * o.s.row + row);
        v.dy[i] = load((const T *)o.dy, t * rows_of(o.s) + row);
    }
    return v;
}

/* Dot products of a row over a subchunk: the gradient of the state with B, and with the state before. */
struct Dots {
    float along[SUBCHUNK], kept[SUBCHUNK];
};

/* The backward pass over a subchunk: `now` is the state before it, `later` the gradient from the token
 * behind. */
template <typename T, int PER>
INLINE Dots subchunk_backward(const MambaBackwardArgs &o, const MambaChunk &r, int group, const Subchunk &v,
                              float (&now)[PER], float (&later)[PER]) {
    MambaShape s = o.s;
    int64_t t = r.first + v.first;
    int count = r.count - v.first;
    float before[SUBCHUNK][PER] = {}, B[PER], C[PER];
    Dots dots = {};
#pragma unroll
    for (int i = 0; i < SUBCHUNK; i++) {
        if (i >= count) continue;
        take_lanes(B, (const T *)o.in.B + (t + i) * s.row + group, s.state);
#pragma unroll
        for (int n = 0; n < PER; n++) {
            before[i][n] = now[n];
            now[n] = next_state(v.steps[i], now[n], v.x[i], B[n]);
        }
    }
#pragma unroll
    for (int i = SUBCHUNK - 1; i >= 0; i--) {
        if (i >= count) continue;
        take_lanes(B, (const T *)o.in.B + (t + i) * s.row + group, s.state);
        take_lanes(C, (const T *)o.in.C + (t + i) * s.row + group, s.state);
#pragma unroll
        for (int n = 0; n < PER; n++) {
            float g = FUSED(v.dy[i], C[n], later[n]);
            dots.along[i] = FUSED(g, B[n], dots.along[i]);
            dots.kept[i] = FUSED(g, before[i][n], dots.kept[i]);
            later[n] = v.steps[i].keep * g;
        }
    }
    return dots;
}

/* A warp has a row. The states before subchunks are in shared memory; a lane reads only what it wrote
 * itself. */
template <typename T, int PER, int WARPS>
__global__ void __launch_bounds__(WARPS *WARP)
    mamba_rows_kernel(const MambaBackwardArgs o, const MambaChunk r) {
    MambaShape s = o.s;
    constexpr int SUBCHUNKS = MAMBA_CHUNK / SUBCHUNK;
    SHARED(float, states, WARPS *SUBCHUNKS *PER *WARP);
    int64_t row = r.head * s.head_dim + element() / WARP, rows = rows_of(s), head = row / s.head_dim;
    if (row >= (r.head + r.heads) * s.head_dim) return;
    float *saved = states + threadIdx.x / WARP * SUBCHUNKS * PER * WARP + lane(), now[PER], later[PER] = {};
    float B[PER], skip = 0, D = o.in.D[head], *partials = partials_of(s, r, row);
    const float *steps = steps_of(r, head);
    int group = group_at(s, head);
    take_lanes(now, o.starts + (r.first / MAMBA_CHUNK * rows + row) * s.state, s.state);
    if (!r.last) take_lanes(later, o.carry + row * s.state, s.state);
    for (int sub = 0; sub < r.count; sub += SUBCHUNK) {
#pragma unroll
        for (int n = 0; n < PER; n++) saved[(sub / SUBCHUNK * PER + n) * WARP] = now[n];
        Subchunk v = subchunk_at<T>(o, r, steps, row, sub);
#pragma unroll
        for (int i = 0; i < SUBCHUNK; i++) {
            if (sub + i >= r.count) continue;
            take_lanes(B, (const T *)o.in.B + (r.first + sub + i) * s.row + group, s.state);
#pragma unroll
            for (int n = 0; n < PER; n++) now[n] = next_state(v.steps[i], now[n], v.x[i], B[n]);
        }
    }
    for (int sub = (r.count - 1) / SUBCHUNK * SUBCHUNK; sub >= 0; sub -= SUBCHUNK) {
#pragma unroll
        for (int n = 0; n < PER; n++) now[n] = saved[(sub / SUBCHUNK * PER + n) * WARP];
        Subchunk v = subchunk_at<T>(o, r, steps, row, sub);
        Dots dots = subchunk_backward<T>(o, r, group, v, now, later);
        float along = sum_of_lane(dots.along), kept = sum_of_lane(dots.kept);
#pragma unroll
        for (int i = 0; i < SUBCHUNK; i++) {
            skip = FUSED(v.x[i], v.dy[i], skip);
            if (lane() != i || sub + i >= r.count) continue;
            partials[sub + i] = v.x[i] * along, partials[MAMBA_CHUNK + sub + i] = kept;
            store((T *)o.out.x, (r.first + sub + i) * s.row + row,
                  FUSED(v.steps[i].step, along, D * v.dy[i]));
        }
    }
    give_lanes(later, o.carry + row * s.state, s.state);
    if (lane() == 0) r.skips[row - r.head * s.head_dim] = skip;
}

/* A warp has a head, and adds up the partial sums of its rows: d log keep = rate d step, and the derivative
 * of log(1 + e^z) is 1 - exp(-step). */
template <typename T> __global__ void mamba_heads_kernel(const MambaBackwardArgs o, const MambaChunk r) {
    MambaShape s = o.s;
    const MambaGradients &out = o.out;
    int64_t head = r.head + element() / WARP, row = head * s.head_dim;
    if (head >= r.head + r.heads) return;
    double bias = 0, rate = 0, skip = 0;
    for (int i = lane(); i < r.count; i += WARP) {
        float step = 0, kept = 0;
        for (int64_t p = 0; p < s.head_dim; p++) {
            const float *partials = partials_of(s, r, row + p);
            step += partials[i], kept += partials[MAMBA_CHUNK + i];
        }
        Step k = step_of(steps_of(r, head), i);
        float along = kept * k.keep * rate_of(o.in, head), dt = (step + along) * -expm1f(-k.step);
        store((T *)out.dt, (r.first + i) * s.dt_row + head, dt);
        bias += (double)dt, rate += (double)(along * k.step);
    }
    for (int64_t p = lane(); p < s.head_dim; p += WARP)
        skip += (double)r.skips[row - r.head * s.head_dim + p];
    bias = lanes_sum(bias, WARP), rate = lanes_sum(rate, WARP), skip = lanes_sum(skip, WARP);
    if (lane() != 0) return;
    out.dt_bias[head] += (float)bias, out.A_log[head] += (float)rate, out.D[head] += (float)skip;
}

/* A thread has an element of B's or C's gradient, and adds the partial sums of its group's heads in their
 * order. */
template <typename T>
__global__ void mamba_groups_kernel(const MambaBackwardArgs o, int64_t first, int64_t count) {
    MambaShape s = o.s;
    int64_t wide = s.groups * s.state, i = element() / (2 * wide), at = element() % (2 * wide),
            group = at % wide / s.state, n = at % s.state, heads = s.heads / s.groups,
            run = smaller(MAMBA_CHUNK, s.tokens);
    if (i >= count) return;
    bool is_C = at >= wide;
    float sum = 0;
    for (int64_t head = group * heads; head < (group + 1) * heads; head++)
        sum += o.scratch[((head * run + i) * 2 + is_C) * s.state + n];
    store(is_C ? (T *)o.out.C : (T *)o.out.B, (first + i) * s.row + at % wide, sum);
}

/* Bytes of scratch for a head, and the most for the heads that are computed together. The scratch for
 * products (needs.h) holds them. */
size_t bytes_of_head(MambaShape s) { return (size_t)(NUMBERS + s.head_dim * (NUMBERS + 1)) * sizeof(float); }
constexpr size_t AT_MOST = (size_t)16 << 20;

template <typename T> void heads_backward(Device *d, const MambaBackwardArgs *o, MambaChunk r) {
    constexpr OpId OP = OP_MAMBA_BACKWARD;
    int64_t rows = r.heads * o->s.head_dim;
    r.steps = (float *)cuda_scratch(d, (size_t)r.heads * bytes_of_head(o->s));
    r.partials = r.steps + r.heads * NUMBERS, r.skips = r.partials + rows * NUMBERS;
    LAUNCH(d, OP, mamba_steps_kernel<T>, blocks_of(r.heads * MAMBA_CHUNK, BLOCK), BLOCK, 0, *o, r);
    LAUNCH(d, OP, mamba_columns_kernel<T>, blocks_of(r.heads * o->s.state, BLOCK / WARP), BLOCK, 0, *o, r);
    BY_STATE(o->s.state, PER, constexpr int WARPS = PER == 8 ? 2 : 4;
             auto kernel = mamba_rows_kernel<T, PER, WARPS>;
             LAUNCH(d, OP, kernel, blocks_of(rows, WARPS), WARPS * WARP, 0, *o, r));
    LAUNCH(d, OP, mamba_heads_kernel<T>, blocks_of(r.heads, BLOCK / WARP), BLOCK, 0, *o, r);
}

void mamba_backward(Device *d, const MambaBackwardArgs *o) {
    if (o->s.tokens * o->s.heads * o->s.head_dim == 0) return;
    int64_t fitting_heads = (int64_t)(AT_MOST / bytes_of_head(o->s)), each = larger(1, fitting_heads),
            end = o->s.tokens;
    for (int64_t first = (mamba_starts(o->s.tokens) - 1) * MAMBA_CHUNK; first >= 0; first -= MAMBA_CHUNK) {
        int64_t count = end - first;
        for (int64_t head = 0; head < o->s.heads; head += each) {
            int64_t heads = smaller(each, o->s.heads - head);
            MambaChunk r = {first, head, heads, (int)count, end == o->s.tokens, NULL, NULL, NULL};
            BY_DTYPE(o->c, T, heads_backward<T>(d, o, r));
        }
        BY_DTYPE(o->c, T,
                 LAUNCH(d, OP_MAMBA_BACKWARD, mamba_groups_kernel<T>,
                        blocks_of(count * 2 * o->s.groups * o->s.state, BLOCK), BLOCK, 0, *o, first, count));
        end = first;
    }
}

/* ---- the gate and its norm ---- */

/* An element and its gate. */
struct Gated {
    float x, gate, sigmoid;
};
INLINE Gated gated(float x, float gate) { return {x, gate, sigmoid(gate)}; }
INLINE float passed(Gated g) { return g.x * (g.gate * g.sigmoid); }

/* Where a warp's run lies: its token, its first element, and the offsets of these in x and in the gate. */
struct GatedRow {
    int64_t t, first, x, gate;
};
INLINE GatedRow gated_row(const GatedNorm &s, int64_t number) {
    int64_t runs = s.width / s.run, t = number / runs, first = number % runs * s.run;
    return {t, first, t * s.width + first, t * s.gate_row + first};
}

/* Runs the statement for each pack of a run that this lane has; it begins at `at`. */
#define EACH_PACK(N, n, at) for (int64_t at = lane() * (N); at < (n); at += WARP * (N))

template <typename T> INLINE float gated_rstd(const GatedNorm &s, const T *x, const T *gate) {
    constexpr int N = AT_ONCE<T>;
    float squares = 0;
    EACH_PACK(N, s.run, at) {
        Pack<T, N> here = load_pack<N>(x, at, s.run), by = load_pack<N>(gate, at, s.run);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float n = passed(gated(get(here, i), get(by, i))); /* zero past the end */
            squares = FUSED(n, n, squares);
        }
    }
    return 1 / sqrtf(lanes_sum(squares, WARP) / (float)s.run + s.eps);
}

template <typename T> __global__ void gated_norm_forward_kernel(const GatedNormForwardArgs o) {
    constexpr int N = AT_ONCE<T>;
    GatedNorm s = o.s;
    GatedRow row = gated_row(s, element() / WARP);
    if (row.t >= s.tokens) return;
    const T *x = (const T *)o.x + row.x, *gate = (const T *)o.gate + row.gate;
    float rstd = gated_rstd(s, x, gate);
    EACH_PACK(N, s.run, at) {
        Pack<T, N> here = load_pack<N>(x, at, s.run), by = load_pack<N>(gate, at, s.run);
        Pack<float, N> weights = load_pack<N>(o.w + row.first, at, s.run);
#pragma unroll
        for (int i = 0; i < N; i++)
            put(here, i, passed(gated(get(here, i), get(by, i))) * rstd * get(weights, i));
        store_pack((T *)o.y + row.x, at, s.run, here);
    }
}

/* rstds: of each run, for gated_norm_sums_kernel. */
template <typename T>
__global__ void gated_norm_backward_kernel(const GatedNormBackwardArgs o, float *rstds) {
    constexpr int N = AT_ONCE<T>;
    GatedNorm s = o.s;
    int64_t number = element() / WARP;
    GatedRow row = gated_row(s, number);
    if (row.t >= s.tokens) return;
    const T *x = (const T *)o.x + row.x, *gate = (const T *)o.gate + row.gate, *dy = (const T *)o.dy + row.x;
    const float *w = o.w + row.first;
    float rstd = gated_rstd(s, x, gate), dot = 0;
    if (lane() == 0) rstds[number] = rstd;
    EACH_PACK(N, s.run, at) {
        Pack<T, N> here = load_pack<N>(x, at, s.run), by = load_pack<N>(gate, at, s.run),
                   grad = load_pack<N>(dy, at, s.run);
        Pack<float, N> weights = load_pack<N>(w, at, s.run);
#pragma unroll
        for (int i = 0; i < N; i++)
            dot = FUSED(passed(gated(get(here, i), get(by, i))), get(grad, i) * get(weights, i), dot);
    }
    float mean = lanes_sum(dot, WARP) * rstd / (float)s.run;
    EACH_PACK(N, s.run, at) {
        Pack<T, N> here = load_pack<N>(x, at, s.run), by = load_pack<N>(gate, at, s.run),
                   grad = load_pack<N>(dy, at, s.run);
        Pack<float, N> weights = load_pack<N>(w, at, s.run);
#pragma unroll
        for (int i = 0; i < N; i++) {
            Gated g = gated(get(here, i), get(by, i));
            float n = passed(g) * rstd, dn = (get(grad, i) * get(weights, i) - n * mean) * rstd;
            put(here, i, dn * (g.gate * g.sigmoid));
            put(by, i, dn * g.x * silu_slope(g.gate, g.sigmoid));
        }
        store_pack((T *)o.dx + row.x, at, s.run, here);
        store_pack((T *)o.dgate + row.gate, at, s.run, by);
    }
}

/* blockIdx.y: columns. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    gated_norm_sums_kernel(const GatedNormBackwardArgs o, const float *rstds) {
    constexpr int N = AT_ONCE<T>;
    GatedNorm s = o.s;
    SHARED(float, smem, COLUMN_SMEM<T>);
    int64_t column = first_column<T>();
    float sum[N] = {};
    for (int64_t t = threadIdx.y; t < s.tokens && column < s.width; t += DOWN<T>) {
        Pack<T, N> here = load_pack<N>((const T *)o.x + t * s.width, column, s.width),
                   by = load_pack<N>((const T *)o.gate + t * s.gate_row, column, s.width),
                   grad = load_pack<N>((const T *)o.dy + t * s.width, column, s.width);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (column + i >= s.width) continue;
            float rstd = rstds[t * (s.width / s.run) + (column + i) / s.run];
            sum[i] = FUSED(get(grad, i), passed(gated(get(here, i), get(by, i))) * rstd, sum[i]);
        }
    }
    add_to_columns<T>(sum, s.width, smem, o.dw);
}

void gated_norm_forward(Device *d, const GatedNormForwardArgs *o) {
    if (o->s.tokens * o->s.width == 0) return;
    int64_t runs = o->s.tokens * (o->s.width / o->s.run);
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_GATED_NORM_FORWARD, gated_norm_forward_kernel<T>, blocks_of(runs, BLOCK / WARP),
                    BLOCK, 0, *o));
}

void gated_norm_backward(Device *d, const GatedNormBackwardArgs *o) {
    if (o->s.tokens * o->s.width == 0) return;
    int64_t runs = o->s.tokens * (o->s.width / o->s.run);
    float *rstds = (float *)cuda_scratch(d, (size_t)runs * sizeof *rstds);
    Grid columns(1, blocks_of(o->s.width, COLUMNS));
    BY_DTYPE(o->c, T,
             LAUNCH(d, OP_GATED_NORM_BACKWARD, gated_norm_backward_kernel<T>, blocks_of(runs, BLOCK / WARP),
                    BLOCK, 0, *o, rstds);
             LAUNCH(d, OP_GATED_NORM_BACKWARD, gated_norm_sums_kernel<T>, columns, block_of_columns<T>(), 0,
                    *o, (const float *)rstds));
}

} // namespace

extern "C" void mamba_fill(Ops *ops) {
    ops->mamba_forward = mamba_forward;
    ops->mamba_backward = mamba_backward;
    ops->gated_norm_forward = gated_norm_forward;
    ops->gated_norm_backward = gated_norm_backward;
}
