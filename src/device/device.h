/* The op table: every operation that weft does on tensor memory, with shapes beside each argument.
 *
 * Rules
 *  1. Only device/ dereferences tensor memory. Others hold pointers, add offsets, and call ops. The guard
 *     build proves it.
 *  2. device/cpu/reference.c fills every slot in plain C; faster implementations override slots. Each
 *     override is tested
 * against the reference on odd shapes and tails.
 *  3. Results do not depend on the number of threads: work is cut into pieces that depend on shapes alone,
 *     and every sum has a fixed order.
 *  4. Nothing is allocated in an op. Scratch comes from Device.scratch, whose size `scratch_bytes` tells
 *     in advance.
 *
 * Names: T tokens of one microbatch (sequences one after the other), h hidden size, H query heads, G
 * key/value heads (G divides H), D head dimension (even), I intermediate size, V vocabulary. Tensors are
 * row-major and contiguous unless a stride is named. "c" is the compute dtype (fp32 or bf16) of
 * activations and gathered weights; sums are taken in fp32 or wider. */
#ifndef WEFT_DEVICE_DEVICE_H
#define WEFT_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/exact.h"
#include "base/memory.h"
#include "base/text.h"

typedef enum Dtype { DTYPE_F32, DTYPE_BF16 } Dtype;
static inline size_t dtype_bytes(Dtype t) { return t == DTYPE_F32 ? 4 : 2; }
const char *dtype_name(Dtype t); /* "fp32", "bf16" */

/* Index of each op, for the profile. Keep in the order of struct Ops. */
typedef enum OpId {
    OP_GEMM,
    OP_EMBED_FORWARD,
    OP_EMBED_BACKWARD,
    OP_RMSNORM_FORWARD,
    OP_RMSNORM_BACKWARD,
    OP_ROPE,
    OP_BIAS_FORWARD,
    OP_BIAS_BACKWARD,
    OP_ATTENTION_FORWARD,
    OP_ATTENTION_BACKWARD,
    OP_ATTENTION_DECODE,
    OP_SWIGLU_FORWARD,
    OP_SWIGLU_BACKWARD,
    OP_ADD,
    OP_CROSS_ENTROPY,
    OP_ADAMW,
    OP_SGD,
    OP_GRAD_STATS,
    OP_FIXED_ADD,
    OP_FIXED_TO_FLOAT,
    OP_CAST,
    OP_ZERO,
    OP_INIT_NORMAL,
    OP_FILL,
    OP_UPLOAD,
    OP_DOWNLOAD,
    OP_SUM_PARTS,
    OP_COUNT
} OpId;

typedef struct AttentionShape {
    int64_t tokens;                /* T */
    int heads, kv_heads, head_dim; /* H, G, D */
} AttentionShape;

typedef struct AdamW {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2; /* 1 - beta^step */
    float grad_scale;               /* clip coefficient, multiplied into the gradient */
} AdamW;

typedef struct Sgd {
    float lr, momentum, weight_decay;
    float grad_scale; /* clip coefficient, multiplied into the gradient */
    bool nesterov;
} Sgd;

/* How the states of an optimizer are kept: fp32 as they are, or bf16, rounded stochastically. A bf16 number
 * has 8 bits: rounded to nearest, a mean of squares would never take up what is below 1/512 of it. So of the
 * two neighbours of x the upper one is taken with the probability that makes x the mean (finite x never
 * becomes infinite):
 *     bf16(x) = (bits of x + r) >> 16,   r: 16 random bits
 * The bits of element e (of a parameter: `first` is the number of the op's first one) are those of Philox
 * with the counter (e / 64 * 16 + e % 16, step), word e % 64 / 16; the first state takes the lower half of
 * the word, the second the upper. They depend on (key, step, e) alone, however the elements are cut into
 * calls. */
typedef struct StateStore {
    Dtype type;
    uint64_t key, step; /* of the parameter; updates made, this one among them: from 1 on */
    int64_t first;
} StateStore;
enum { STATE_CHUNK = 64, STATE_BLOCKS = 16 }; /* elements that 16 Philox blocks serve */

/* Order-free figures of a gradient tensor; see grad_stats. */
typedef struct GradStats {
    ExactSum sum;      /* of |g|^p, or (|g| / unit)^p, over finite elements (p finite), normalised */
    double max;        /* max |g| over finite elements */
    int64_t nonfinite; /* elements that are NaN or infinite, or whose power is beyond the largest double */
    int64_t first_nonfinite; /* index of the first of them; -1: there is none */
} GradStats;

/* Gradients in fixed point count units of 2^-FIXED_SHIFT: 8.9e-16. */
enum { FIXED_SHIFT = 50, FIXED_SUM_LOG2 = 62 };

/* The largest |g| that may be added when an element gets `contributions` additions, on all ranks together:
 * their sum stays within 2^FIXED_SUM_LOG2 units (and half a unit each of rounding), so an int64 never
 * overflows. 4096 for one contribution. */
static inline double fixed_limit(int64_t contributions) {
    return (double)(INT64_C(1) << (FIXED_SUM_LOG2 - FIXED_SHIFT)) / (double)contributions;
}

/* Elements that fixed_add refused. */
typedef struct FixedRefusals {
    int64_t count;
    int64_t first; /* index of the first; -1: none */
} FixedRefusals;

typedef struct Device Device;
typedef struct DeviceNeeds DeviceNeeds;

typedef struct Ops {
    /* C[M,N] = op(A) op(B) + (accumulate ? C : 0), row-major. op(A) is [M,K]: A itself [M,K], or with trans_a
     * the transpose of A [K,M]; op(B) is [K,N]: B [K,N], or with trans_b the transpose of B [N,K]. Any mix of
     * dtypes of A, B equal to each other; C may be fp32 or the same dtype as A. Leading dimensions are those
     * of contiguous tensors except ldc (>= N). linear
     * forward          Y[T,N] = X[T,K] W[N,K]^T        gemm(0, 1, T, N, K, X, W, Y) its input gradient      dX[T,K] = dY[T,N]
     * W[N,K]        gemm(0, 0, T, K, N, dY, W, dX) its weight gradient     dW[N,K] += dY[T,N]^T X[T,K]     gemm(1, 0, N, K, T,
     * dY, X, dW fp32, accumulate) */
    void (*gemm)(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
                 const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate);

    /* out[t] = table[ids[t]]. ids are checked by the loader, once, to be in [0, V). */
    void (*embed_forward)(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids /* [T] */,
                          const void *table /* [V, h] c */, void *out /* [T, h] c */, Dtype c);
    /* dtable[ids[t]] += dout[t], tokens in ascending order. */
    void (*embed_backward)(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids /* [T] */,
                           const void *dout /* [T, h] c */, float *dtable /* [V, h] */, Dtype c);

    /* sum = a + b (b, sum may be NULL: then sum is a); rstd = 1 / sqrt(mean(sum^2) + eps); y = sum * rstd *
     * w. Zhang & Sennrich, "Root mean square layer normalization", 2019. y may be NULL (only sum and rstd).
     */
    void (*rmsnorm_forward)(Device *d, int64_t tokens, int64_t hidden, float eps,
                            const void *a /* [T, h] c */, const void *b /* [T, h] c or NULL */,
                            const float *w /* [h] */, void *sum /* [T, h] c or NULL */,
                            void *y /* [T, h] c */, float *rstd /* [T] */, Dtype c);
    /* dx = (add ? dx : 0) + gradient through the norm; dw += sum over tokens (skipped when NULL); x is the
     * normed input. */
    void (*rmsnorm_backward)(Device *d, int64_t tokens, int64_t hidden, const void *x /* [T, h] c */,
                             const float *w /* [h] */, const float *rstd /* [T] */,
                             const void *dy /* [T, h] c */, void *dx /* [T, h] c */, bool add,
                             float *dw /* [h] or NULL */, Dtype c);

    /* Rotates q and k inside qkv, in place, by position (half-split form, as Hugging Face checkpoints).
     * inverse rotates back: the gradient. cos_sin[p] = D/2 cosines then D/2 sines. Su et al., "RoFormer",
     * 2021. */
    void (*rope)(Device *d, AttentionShape s, void *qkv /* [T, (H+2G)*D] c */,
                 const int32_t *positions /* [T] */, const float *cos_sin /* [P, D] */, bool inverse,
                 Dtype c);

    /* y[t] += bias;   db += sum_t dy[t]. */
    void (*bias_forward)(Device *d, int64_t tokens, int64_t n, void *y /* [T, n] c */,
                         const float *bias /* [n] */, Dtype c);
    void (*bias_backward)(Device *d, int64_t tokens, int64_t n, const void *dy /* [T, n] c */,
                          float *db /* [n] */, Dtype c);

    /* Causal attention inside segments: token t attends to keys first_key[t] .. t; first_key never decreases.
     * The score matrix never exists whole; lse keeps log sum exp of each row, natural log. scale = 1 /
     * sqrt(D). Dao, "FlashAttention-2", 2023. */
    void (*attention_forward)(Device *d, AttentionShape s, const void *qkv /* [T, (H+2G)*D] c */,
                              const int32_t *first_key /* [T] */, void *out /* [T, H*D] c */,
                              float *lse /* [H, T] */, Dtype c);
    void (*attention_backward)(Device *d, AttentionShape s, const void *qkv /* [T, (H+2G)*D] c */,
                               const int32_t *first_key /* [T] */, const void *out /* [T, H*D] c */,
                               const float *lse /* [H, T] */, const void *dout /* [T, H*D] c */,
                               void *dqkv /* [T, (H+2G)*D] c */, Dtype c);
    /* Generation: s.tokens new tokens at positions start .. start+T-1 of one sequence whose keys and values
     * are in the cache (the new ones too); query t attends to cache rows 0 .. start+t. */
    void (*attention_decode)(Device *d, AttentionShape s, int64_t start,
                             const void *qkv /* [T, (H+2G)*D] c */, const void *k_cache /* [P, G*D] c */,
                             const void *v_cache /* [P, G*D] c */, void *out /* [T, H*D] c */, Dtype c);

    /* act = silu(gate) * up with gate_up = [gate | up] per token. Shazeer, "GLU variants improve
     * transformer", 2020. */
    void (*swiglu_forward)(Device *d, int64_t tokens, int64_t inter, const void *gate_up /* [T, 2I] c */,
                           void *act /* [T, I] c */, Dtype c);
    /* dgate_up from dact; act is computed again on the way (the down projection's weight gradient wants it).
     * dact and act may be the same memory. */
    void (*swiglu_backward)(Device *d, int64_t tokens, int64_t inter, const void *gate_up /* [T, 2I] c */,
                            const void *dact /* [T, I] c */, void *dgate_up /* [T, 2I] c */,
                            void *act /* [T, I] c */, Dtype c);

    void (*add)(Device *d, int64_t n, const void *a, const void *b, void *out,
                Dtype c); /* out = a + b; out may be a or b */

    /* Cross-entropy of `rows` tokens, fused with its gradient: loss[r] = logsumexp(logits[r]) - logits[r,
     * target[r]], 0 where target < 0 (ignored). With dlogits: (softmax - onehot) * scale, zero rows where
     * ignored; dlogits may be logits. */
    void (*cross_entropy)(Device *d, int64_t rows, int64_t vocab, const void *logits /* [R, V] logits_type */,
                          Dtype logits_type, const int32_t *targets /* [R] */, float scale,
                          float *loss /* [R] */, void *dlogits /* [R, V] grad_type or NULL */,
                          Dtype grad_type);

    /* Loshchilov & Hutter, "Decoupled weight decay regularization", 2019; fused with clipping and with the
     * compute copy:
     *   g = grad * grad_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
     *   p -= lr * weight_decay * p + lr * (m / c1) / (sqrt(v / c2) + eps);   copy = p rounded to bf16 (unless NULL).
     */
    void (*adamw)(Device *d, int64_t n, AdamW a, StateStore s, float *param, const float *grad,
                  void *m /* [n] s.type */, void *v /* [n] s.type */, uint16_t *copy /* or NULL */);
    /* As PyTorch has it (no dampening), fused likewise; without `momentum` b is g:
     *   g = grad * grad_scale + weight_decay * p;   b = momentum * b + g;
     *   p -= lr * (nesterov ? g + momentum * b : b);   copy = p rounded to bf16 (unless NULL). */
    void (*sgd)(Device *d, int64_t n, Sgd o, StateStore s, float *param, const float *grad,
                void *momentum /* [n] s.type, or NULL */, uint16_t *copy /* or NULL */);

    /* Sum of powers (p finite, >= 1) and max |g|; the count of non-finite elements, which are left out of
     * both, and where the first is. |g| and g^2 are doubles; other powers are what pow() makes of |g| / unit,
     * so that with the largest |g| of all as the unit none overflows and the sum is 1 or more, whatever p.
     * The sum is exact: powers are added without rounding. So the figures of a tensor's parts, merged in any
     * order, are those of the tensor. With p infinite the sum is left 0. */
    void (*grad_stats)(Device *d, int64_t n, const float *g, double p, double unit,
                       GradStats *out /* host */);

    /* acc[i] = (set ? 0 : acc[i]) + g[i] * 2^FIXED_SHIFT rounded to nearest even. Whole numbers add in any
     * order. Elements that are not finite, or larger than the limit (at most fixed_limit(1)), add nothing and
     * are counted. */
    void (*fixed_add)(Device *d, int64_t n, const float *g, int64_t *acc, bool set, double limit,
                      FixedRefusals *refused /* host */);
    /* out[i] = acc[i] * 2^-FIXED_SHIFT, rounded once, to nearest even. */
    void (*fixed_to_float)(Device *d, int64_t n, const int64_t *acc, float *out);

    void (*cast)(Device *d, int64_t n, const void *in, Dtype in_type, void *out,
                 Dtype out_type); /* round to nearest even */
    void (*zero)(Device *d, void *p, size_t bytes);
    /* out[i] = mean + std * normal(key, first + i) cut to [lo, hi] standard deviations; base/rng.h
     * rng_normal. */
    void (*init_normal)(Device *d, int64_t n, uint64_t key, uint64_t first, double mean, double std,
                        double lo, double hi, float *out);
    void (*fill)(Device *d, int64_t n, float value, float *out);

    /* Between host memory and tensor memory. */
    void (*upload)(Device *d, void *tensor, const void *host, size_t bytes);
    void (*download)(Device *d, void *host, const void *tensor, size_t bytes);

    /* out[i] = sum over parts p of in[p][i], in the canonical tree: blocks of parts are split at the largest
     * power of two below their number. out may be one of the parts. The integers wrap around. */
    void (*sum_parts)(Device *d, int64_t n, int parts, const float *const *in /* [parts] of [n] */,
                      float *out /* [n] */);
    void (*sum_parts_i64)(Device *d, int64_t n, int parts, const int64_t *const *in /* [parts] of [n] */,
                          int64_t *out /* [n] */);

    /* Scratch that the ops above may need, for the largest shapes of a run. */
    size_t (*scratch_bytes)(const Device *d, const DeviceNeeds *needs);
} Ops;

/* Largest shapes of a run, for scratch. */
struct DeviceNeeds {
    Dtype compute;
    int64_t tokens, hidden, intermediate, vocab, logits_rows;
    AttentionShape attention;
};

typedef struct OpProfile {
    int64_t calls;
    double seconds;
    double flops; /* gemm: 2MNK; attention: by visited blocks */
} OpProfile;

struct Device {
    Ops ops;
    const char *name;    /* "avx512", "avx512_bf16", "avx2", "portable", "reference" */
    char processor[128]; /* the processor's own name */
    int threads;
    bool native_bf16; /* bf16 matrix products are at least as fast as fp32 ones */
    char *scratch;
    size_t scratch_size;
    bool profiling;
    OpProfile profile[OP_COUNT];
    void *impl; /* private to the implementation */
};

/* Names of CPU kernels, from the best to the plainest behind "auto": what an option table takes (OPT_CHOICE).
 */
#define DEVICE_KINDS "auto|avx512_bf16|avx512|avx2|portable|reference"
const char *device_kind(int index); /* one of them */

/* The CPU. `kind`: NULL or "auto" for the best that the processor runs, or a name above (ERR_UNAVAILABLE if
 * it can't). threads <= 0: one per core this process may use. Environment variable WEFT_CPU overrides "auto".
 */
ErrorCode device_open_cpu(Device *d, const char *kind, int threads, Error *err);
void device_close(Device *d);
/* A CPU to plan for, which may be another one than this: only scratch_bytes may be asked of it, and tells the
 * most that any of the implementations takes. threads as above. Nothing to close. */
void device_describe_cpu(Device *d, int threads, bool native_bf16);
/* Cores this process may run on. */
int device_cpu_cores(void);
const char *op_name(OpId op);

/* Every op call goes through this: it opens the guard, and keeps the profile when asked to.
 *     OP(d, OP_ADD, add, n, a, b, out); */
#define OP(d, id, slot, ...)                     \
    do {                                         \
        double op_start_ = device_op_enter((d)); \
        (d)->ops.slot((d), __VA_ARGS__);         \
        device_op_leave((d), (id), op_start_);   \
    } while (0)
double device_op_enter(Device *d);
void device_op_leave(Device *d, OpId op, double start);

/* A table of the profile: calls, seconds, share of `seconds` (0: of all ops), rate. */
void device_profile_print(const Device *d, double seconds, Text *out);

/* Matrix-product peak of this device, measured: largest of a few square-ish products, in FLOP/s. Takes about
 * `seconds`. */
double device_matmul_peak(Device *d, Dtype type, double seconds);

#endif
