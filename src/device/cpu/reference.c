/* The textbook: every op in plain C, on one thread, with sums in double. Faster implementations are tested
 * against it, and it serves where they have nothing better. */
#include <math.h>

#include "base/rng.h"
#include "device/cpu/cpu.h"

/* Operands of a product as the op gets them. */
typedef struct Terms {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const void *a, *b;
    Dtype type;
} Terms;

/* Terms first .. first+count-1 of element (i, j), after `sum`. */
static double dot(const Terms *t, int64_t i, int64_t j, int64_t first, int64_t count, double sum) {
    for (int64_t p = first; p < first + count; p++) {
        double x = (double)tensor_get(t->a, t->trans_a ? p * t->m + i : i * t->k + p, t->type);
        sum += x * (double)tensor_get(t->b, t->trans_b ? j * t->k + p : p * t->n + j, t->type);
    }
    return sum;
}

static double leaf_dot(const Terms *t, const Leaves *l, int64_t leaf, int64_t i, int64_t j) {
    double sum = 0;
    int64_t start = 0;
    for (int r = 0; r < l->runs; start += l->run[r++].length) {
        int64_t first = leaf * l->run[r].leaf;
        sum = dot(t, i, j, start + first, min_i64(l->run[r].leaf, l->run[r].length - first), sum);
    }
    return sum;
}

static float tree_of_leaves(const Terms *t, const Leaves *l, int first, int count, int64_t i, int64_t j) {
    if (count == 1) return (float)leaf_dot(t, l, first, i, j);
    int half = tree_half(count);
    return tree_of_leaves(t, l, first, half, i, j) + tree_of_leaves(t, l, first + half, count - half, i, j);
}

static void gemm(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
                 const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate,
                 Leaves leaves) {
    if (d->profiling) d->profile[OP_GEMM].flops += 2.0 * (double)m * (double)n * (double)k;
    Terms t = {trans_a, trans_b, m, n, k, a, b, ab_type};
    int count = leaves.runs ? (int)leaves_of(leaves.run[0].length, leaves.run[0].leaf) : 1;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float before = accumulate ? tensor_get(c, i * ldc + j, c_type) : 0;
            float sum = count == 1 ? (float)dot(&t, i, j, 0, k, (double)before)
                                   : before + tree_of_leaves(&t, &leaves, 0, count, i, j);
            tensor_set(c, i * ldc + j, c_type, sum);
        }
    }
}

/* ---- embedding, norms, biases ---- */

/* Rows are copied, not added to zeros: -0 stays -0. */
static void embed_forward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *table,
                          void *out, Dtype c) {
    (void)d;
    size_t row = (size_t)hidden * dtype_bytes(c);
    for (int64_t t = 0; t < tokens; t++)
        memcpy(tensor_to(out, t * hidden, c), tensor_at(table, ids[t] * hidden, c), row);
}

/* Tokens in ascending order, in fp32: a row's sum has the same order wherever the columns are cut, so faster
 * implementations are held to these very bits. */
static void embed_backward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *dout,
                           float *dtable, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < hidden; i++)
            dtable[ids[t] * hidden + i] += tensor_get(dout, t * hidden + i, c);
}

/* Where the input is a sum, it is rounded to c first and normed as rounded: that is what the backward pass
 * reads, and a norm of something else would not be its derivative. */
static void rmsnorm_forward(Device *d, int64_t tokens, int64_t hidden, float eps, const void *a,
                            const void *b, const float *w, void *sum, void *y, float *rstd, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++) {
        const void *x = tensor_at(a, t * hidden, c);
        if (sum) {
            void *row = tensor_to(sum, t * hidden, c);
            for (int64_t i = 0; i < hidden; i++)
                tensor_set(row, i, c, tensor_get(x, i, c) + (b ? tensor_get(b, t * hidden + i, c) : 0));
            x = row;
        }
        double squares = 0;
        for (int64_t i = 0; i < hidden; i++)
            squares += (double)tensor_get(x, i, c) * (double)tensor_get(x, i, c);
        rstd[t] = (float)(1 / sqrt(squares / (double)hidden + (double)eps));
        for (int64_t i = 0; y && i < hidden; i++)
            tensor_set(y, t * hidden + i, c, tensor_get(x, i, c) * rstd[t] * w[i]);
    }
}

/* With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)); dw = sum dy n. */
static void rmsnorm_backward(Device *d, int64_t tokens, int64_t hidden, const void *x, const float *w,
                             const float *rstd, const void *dy, void *dx, bool add, float *dw, int64_t leaf,
                             Dtype c) {
    (void)d;
    for (int64_t at = 0; dw && at < leaves_of(tokens, leaf) * hidden; at++) {
        int64_t first = at / hidden * leaf, i = at % hidden;
        double sum = 0;
        for (int64_t t = first; t < min_i64(tokens, first + leaf); t++)
            sum += (double)tensor_get(dy, t * hidden + i, c) * (double)tensor_get(x, t * hidden + i, c) *
                   (double)rstd[t];
        dw[at] += (float)sum;
    }
    for (int64_t t = 0; t < tokens; t++) {
        double r = (double)rstd[t], mean = 0;
        for (int64_t i = 0; i < hidden; i++) {
            double g = (double)tensor_get(dy, t * hidden + i, c) * (double)w[i];
            mean += g * (double)tensor_get(x, t * hidden + i, c) * r / (double)hidden;
        }
        for (int64_t i = 0; i < hidden; i++) {
            int64_t e = t * hidden + i;
            double g = (double)tensor_get(dy, e, c) * (double)w[i];
            double v = r * (g - (double)tensor_get(x, e, c) * r * mean);
            tensor_set(dx, e, c, (float)(v + (add ? (double)tensor_get(dx, e, c) : 0)));
        }
    }
}

/* Pair i of a head is elements i and i + D/2, as Hugging Face's checkpoints have it; in the papers' form
 * neighbours are pairs. v heads are not rotated: they come last and are left alone. */
static void rope(Device *d, AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                 bool inverse, Dtype c) {
    (void)d;
    int64_t dim = s.head_dim, half = dim / 2, row = (s.heads + 2 * s.kv_heads) * dim;
    for (int64_t t = 0; t < s.tokens; t++) {
        const float *cosine = cos_sin + positions[t] * dim, *sine = cosine + half;
        for (int64_t head = 0; head < s.heads + s.kv_heads; head++) {
            void *x = tensor_to(qkv, t * row + head * dim, c);
            for (int64_t i = 0; i < half; i++) {
                float u = tensor_get(x, i, c), v = tensor_get(x, half + i, c),
                      sn = inverse ? -sine[i] : sine[i];
                tensor_set(x, i, c, u * cosine[i] - v * sn);
                tensor_set(x, half + i, c, v * cosine[i] + u * sn);
            }
        }
    }
}

static void bias_forward(Device *d, int64_t tokens, int64_t n, void *y, const float *bias, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < n; i++) tensor_set(y, t * n + i, c, tensor_get(y, t * n + i, c) + bias[i]);
}

/* As the norm's dw: a row for each leaf of tokens, which is rounded when the leaf has been summed. */
static void bias_backward(Device *d, int64_t tokens, int64_t n, const void *dy, float *db, int64_t leaf,
                          Dtype c) {
    (void)d;
    for (int64_t at = 0; at < leaves_of(tokens, leaf) * n; at++) {
        int64_t first = at / n * leaf;
        double sum = 0;
        for (int64_t t = first; t < min_i64(tokens, first + leaf); t++)
            sum += (double)tensor_get(dy, t * n + at % n, c);
        db[at] += (float)sum;
    }
}

/* ---- MLP, sums ---- */
static void swiglu_forward(Device *d, int64_t tokens, int64_t inter, const void *gate_up, void *act,
                           Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < inter; i++) {
            double g = (double)tensor_get(gate_up, t * 2 * inter + i, c);
            double u = (double)tensor_get(gate_up, t * 2 * inter + inter + i, c);
            tensor_set(act, t * inter + i, c, (float)(g / (1 + exp(-g)) * u));
        }
    }
}

/* With s = sigmoid(g): silu(g) = g s and silu'(g) = s + g s (1 - s). act may be dact's memory, so an
 * element of dact is read before act's is written. */
static void swiglu_backward(Device *d, int64_t tokens, int64_t inter, const void *gate_up, const void *dact,
                            void *dgate_up, void *act, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < inter; i++) {
            int64_t at = t * 2 * inter + i;
            double g = (double)tensor_get(gate_up, at, c), u = (double)tensor_get(gate_up, at + inter, c);
            double grad = (double)tensor_get(dact, t * inter + i, c), sigmoid = 1 / (1 + exp(-g)),
                   silu = g * sigmoid;
            tensor_set(dgate_up, at, c, (float)(grad * u * (sigmoid + silu * (1 - sigmoid))));
            tensor_set(dgate_up, at + inter, c, (float)(grad * silu));
            tensor_set(act, t * inter + i, c, (float)(silu * u));
        }
    }
}

static void add(Device *d, int64_t n, const void *a, const void *b, void *out, Dtype c) {
    (void)d;
    for (int64_t i = 0; i < n; i++) tensor_set(out, i, c, tensor_get(a, i, c) + tensor_get(b, i, c));
}

static float tree_sum(int parts, const float *const *in, int64_t i) {
    if (parts == 1) return in[0][i];
    int half = tree_half(parts);
    return tree_sum(half, in, i) + tree_sum(parts - half, in + half, i);
}

/* out may be one of the parts: an element is read from all before it is written. */
static void sum_parts(Device *d, int64_t n, int parts, const float *const *in, float *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++) out[i] = tree_sum(parts, in, i);
}

/* Unsigned, since whole numbers wrap around here and signed overflow is undefined in C. */
static void sum_parts_i64(Device *d, int64_t n, int parts, const int64_t *const *in, int64_t *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++) {
        uint64_t sum = 0;
        for (int p = 0; p < parts; p++) sum += (uint64_t)in[p][i];
        out[i] = (int64_t)sum;
    }
}

/* ---- loss ---- */

/* The target's logit is chosen, never added to zeros of other leaves: no rounding, and no -0 that turns to
 * +0. */
static LossRecord record_of(const void *x, int64_t n, Dtype t, int64_t target) {
    LossRecord r = {.max = -HUGE_VALF};
    for (int64_t i = 0; i < n; i++) r.max = fmaxf(r.max, tensor_get(x, i, t));
    for (int64_t i = 0; i < n; i++) r.sum += exp((double)tensor_get(x, i, t) - (double)r.max);
    if (target >= 0 && target < n) r.target = tensor_get(x, target, t);
    return r;
}

static void loss_records(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                         const int32_t *targets, VocabLeaves leaves, LossRecord *records) {
    (void)d;
    int64_t leaf = leaves.leaf ? leaves.leaf : vocab;
    for (int64_t first = 0; first < vocab; first += leaf)
        for (int64_t r = 0; r < rows; r++)
            *records++ =
                record_of(tensor_at(logits, r * vocab + first, logits_type), min_i64(leaf, vocab - first),
                          logits_type, targets[r] - leaves.first - first);
}

/* Of the leaves of one row, `rows` records apart, relative to `max`. */
static double tree_of_sums(const LossRecord *records, int64_t rows, int count, float max) {
    if (count == 1) return records->sum * exp((double)records->max - (double)max);
    int half = tree_half(count);
    return tree_of_sums(records, rows, half, max) +
           tree_of_sums(records + half * rows, rows, count - half, max);
}

static void cross_entropy(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                          const int32_t *targets, VocabLeaves leaves, const float *scale, float *loss,
                          void *dlogits, Dtype grad_type) {
    LossRecord own[LEAVES_MAX];
    int64_t leaf = leaves.leaf ? leaves.leaf : vocab, step = leaves.records ? rows : 1;
    int count = leaves.records ? leaves.count : (int)leaves_of(vocab, leaf);
    for (int64_t r = 0; r < rows; r++) {
        const void *x = tensor_at(logits, r * vocab, logits_type);
        void *dx = dlogits ? tensor_to(dlogits, r * vocab, grad_type) : NULL;
        int64_t target = targets[r];
        loss[r] = 0;
        if (target < 0) {
            for (int64_t i = 0; dx && i < vocab; i++) tensor_set(dx, i, grad_type, 0);
            continue;
        }
        const LossRecord *records = leaves.records ? leaves.records + r : own;
        if (!leaves.records) loss_records(d, 1, vocab, x, logits_type, targets + r, leaves, own);
        float max = -HUGE_VALF;
        for (int i = 0; i < count; i++) max = fmaxf(max, records[i * step].max);
        double sum = tree_of_sums(records, step, count, max);
        loss[r] = (float)((double)max + log(sum) - (double)records[target / leaf * step].target);
        for (int64_t i = 0; dx && i < vocab; i++) {
            double p = exp((double)tensor_get(x, i, logits_type) - (double)max) / sum;
            tensor_set(dx, i, grad_type,
                       (float)((p - (leaves.first + i == target ? 1 : 0)) * (double)*scale));
        }
    }
}

/* A loss that is not finite has no place in an exact sum: it is counted instead. */
static void loss_sum(Device *d, int64_t n, const float *losses, LossSum *into) {
    (void)d;
    for (int64_t i = 0; i < n; i++) {
        into->nonfinite += !isfinite(losses[i]);
        exact_add(&into->sum, (double)losses[i]);
    }
}

/* State `which` (0 or 1) of element i. */
static void set_state(const StateStore *s, uint64_t step, void *state, int64_t i, int which, float value) {
    if (s->type == DTYPE_F32)
        ((float *)state)[i] = value;
    else
        ((uint16_t *)state)[i] = bf16_round_by(value, state_word(s, step, i) >> 16 * which & 0xffff);
}

/* In fp32 and in the order of the formulas: the states are part of a checkpoint, and the reference shows what
 * other implementations may round differently. */
static void adamw(Device *d, int64_t n, AdamW a, StateStore s, const OptimizerStep *step, float *param,
                  const float *grad, void *m, void *v, uint16_t *copy) {
    (void)d;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * step->grad_scale;
        float mean = a.beta1 * tensor_get(m, i, s.type) + (1 - a.beta1) * g;
        float square = a.beta2 * tensor_get(v, i, s.type) + (1 - a.beta2) * g * g;
        float move = mean / step->correction1 / (sqrtf(square / step->correction2) + a.eps);
        param[i] -= step->lr * a.weight_decay * param[i] + step->lr * move;
        set_state(&s, step->number, m, i, 0, mean);
        set_state(&s, step->number, v, i, 1, square);
        if (copy) copy[i] = bf16_round(param[i]);
    }
}

static void sgd(Device *d, int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param,
                const float *grad, void *momentum, uint16_t *copy) {
    (void)d;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * step->grad_scale + o.weight_decay * param[i], move = g;
        if (momentum) {
            float b = o.momentum * tensor_get(momentum, i, s.type) + g;
            set_state(&s, step->number, momentum, i, 0, b);
            move = o.nesterov ? g + o.momentum * b : b;
        }
        param[i] -= step->lr * move;
        if (copy) copy[i] = bf16_round(param[i]);
    }
}

/* ---- gradients ---- */

/* Powers of p other than 1 and 2 are taken of |g| / unit: |g|^8 of a gradient of 1e5 is beyond float, and
 * with the largest as the unit every power is at most 1. */
static void grad_stats(Device *d, int64_t n, const float *g, double p, const double *unit, GradStats *out) {
    (void)d;
    *out = (GradStats){.first_nonfinite = -1};
    for (int64_t i = 0; i < n; i++) {
        double x = fabs((double)g[i]), power = isinf(p) ? 0 : p == 1 ? x : p == 2 ? x * x : pow(x / *unit, p);
        if (!isfinite(x) || !isfinite(power)) {
            if (out->nonfinite++ == 0) out->first_nonfinite = i;
            continue;
        }
        if (x > out->max) out->max = x;
        exact_add(&out->sum, power);
    }
    exact_normalise(&out->sum);
}

static void fixed_add(Device *d, int64_t n, const float *g, int64_t *acc, bool set, double limit,
                      FixedRefusals *refused) {
    (void)d;
    CHECK(limit <= fixed_limit(1));
    for (int64_t i = 0; i < n; i++) {
        bool good = fabs((double)g[i]) <= limit;
        if (!good && refused->count++ == 0) refused->first = i;
        acc[i] = (set ? 0 : acc[i]) + (good ? llrint(ldexp((double)g[i], FIXED_SHIFT)) : 0);
    }
}

/* (float)acc rounds once; the power of two after it is exact, since no result is below 2^-50. */
static void fixed_to_float(Device *d, int64_t n, const int64_t *acc, float *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++) out[i] = ldexpf((float)acc[i], -FIXED_SHIFT);
}

/* ---- memory ---- */
static void cast(Device *d, int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    (void)d;
    for (int64_t i = 0; i < n; i++) tensor_set(out, i, out_type, tensor_get(in, i, in_type));
}

static void zero(Device *d, void *p, size_t bytes) {
    (void)d;
    if (bytes) memset(p, 0, bytes);
}

static void init_normal(Device *d, int64_t n, uint64_t key, uint64_t first, double mean, double std,
                        double lo, double hi, float *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(mean + std * rng_normal(key, first + (uint64_t)i, lo, hi));
}

static void fill(Device *d, int64_t n, float value, float *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++) out[i] = value;
}

static void copy(Device *d, void *to, const void *from, size_t bytes) {
    (void)d;
    if (bytes) memcpy(to, from, bytes);
}

static void upload(Device *d, void *tensor, const void *host, size_t bytes) {
    (void)d;
    if (bytes) memcpy(tensor, host, bytes);
}

static void download(Device *d, void *host, const void *tensor, size_t bytes) {
    (void)d;
    if (bytes) memcpy(host, tensor, bytes);
}

/* Everything is summed in registers, so the plan of this kind needs no scratch. */
static size_t scratch_bytes(const Device *d, const DeviceNeeds *needs) {
    (void)d;
    (void)needs;
    return 0;
}

void reference_fill_ops(Ops *ops) {
    *ops = (Ops){.gemm = gemm,
                 .embed_forward = embed_forward,
                 .embed_backward = embed_backward,
                 .rmsnorm_forward = rmsnorm_forward,
                 .rmsnorm_backward = rmsnorm_backward,
                 .rope = rope,
                 .bias_forward = bias_forward,
                 .bias_backward = bias_backward,
                 .attention_forward = reference_attention_forward,
                 .attention_backward = reference_attention_backward,
                 .attention_decode = reference_attention_decode,
                 .swiglu_forward = swiglu_forward,
                 .swiglu_backward = swiglu_backward,
                 .add = add,
                 .loss_records = loss_records,
                 .cross_entropy = cross_entropy,
                 .loss_sum = loss_sum,
                 .adamw = adamw,
                 .sgd = sgd,
                 .grad_stats = grad_stats,
                 .fixed_add = fixed_add,
                 .fixed_to_float = fixed_to_float,
                 .cast = cast,
                 .zero = zero,
                 .init_normal = init_normal,
                 .fill = fill,
                 .copy = copy,
                 .upload = upload,
                 .download = download,
                 .sum_parts = sum_parts,
                 .sum_parts_i64 = sum_parts_i64,
                 .scratch_bytes = scratch_bytes};
}
