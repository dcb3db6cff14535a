/* The reference: every op in plain C, on one thread, with sums in double. Faster implementations are tested
 * against it, and it fills the slots that they do not override.
 *
 * Sums, and functions such as exp, are computed in double from operands as they are stored, and a result is
 * rounded once, when it is stored: the only rounding left is that of the tensors themselves. fp32 is used
 * where the op prescribes it for all implementations (trees of splits and of parts, updates, rows of an
 * embedding's gradient), and for a single sum or product per element. Nothing here is optimised. */
#include <math.h>

#include "base/rng.h"
#include "device/cpu/cpu.h"

/* Operands of a product, as the op gets them. */
typedef struct Terms {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const void *a, *b;
    Dtype type;
} Terms;

/* Adds terms first .. first+count-1 of element (i, j) to `sum`. */
static double dot(const Terms *t, int64_t i, int64_t j, int64_t first, int64_t count, double sum) {
    for (int64_t p = first; p < first + count; p++) {
        double x = (double)tensor_get(t->a, t->trans_a ? p * t->m + i : i * t->k + p, t->type);
        sum += x * (double)tensor_get(t->b, t->trans_b ? j * t->k + p : p * t->n + j, t->type);
    }
    return sum;
}

/* Adds segment `split` of every run, in one chain over all runs, to `sum`. A rank that has some heads has
 * their q, k and v, and must get this same sum. */
static double split_dot(const Terms *t, const KSplit *l, int64_t split, int64_t i, int64_t j, double sum) {
    int64_t start = 0;
    if (l->runs == 0) return dot(t, i, j, 0, t->k, sum);
    for (int r = 0; r < l->runs; start += l->run[r++].length) {
        int64_t first = split * l->run[r].split_size;
        start += l->run[r].skip;
        sum = dot(t, i, j, start + first, min_i64(l->run[r].split_size, l->run[r].length - first), sum);
    }
    return sum;
}

/* The tree over splits, in fp32, as ranks would send partials to each other: a partial is rounded before it
 * is added, on whichever rank it was computed. */
static float tree_of_partials(const Terms *t, const KSplit *l, int first, int count, int64_t i, int64_t j) {
    if (count == 1) return (float)split_dot(t, l, first, i, j, 0);
    int half = tree_half(count);
    return tree_of_partials(t, l, first, half, i, j) +
           tree_of_partials(t, l, first + half, count - half, i, j);
}

/* With one split, the previous C is the first term of the chain. With several, it is added to their finished
 * tree, parts of which other ranks may hold. */
static void gemm(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
                 const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate,
                 KSplit splits) {
    if (d->profiling)
        d->profile[OP_GEMM].flops +=
            2.0 * (double)m * (double)n * (double)(splits.runs ? split_length(splits) : k);
    Terms t = {trans_a, trans_b, m, n, k, a, b, ab_type};
    int count = splits.runs ? (int)splits_of(splits.run[0].length, splits.run[0].split_size) : 1;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float before = accumulate ? tensor_get(c, i * ldc + j, c_type) : 0;
            float sum = count == 1 ? (float)split_dot(&t, &splits, 0, i, j, (double)before)
                                   : before + tree_of_partials(&t, &splits, 0, count, i, j);
            tensor_set(c, i * ldc + j, c_type, sum);
        }
    }
}

/* ---- embedding, norms, biases ---- */

/* Without `add` rows are set, not added to zeros: -0 stays -0. */
static void embed_forward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *table,
                          EmbedRows rows, float scale, bool add, void *out, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < hidden; i++) {
            int64_t row = embed_row_of(rows, ids[t]);
            float x = row < 0 ? -0.0f : scale * tensor_get(table, row * hidden + i, c);
            tensor_set(out, t * hidden + i, c, add ? tensor_get(out, t * hidden + i, c) + x : x);
        }
}

/* Tokens in ascending order, in fp32. A row's sum has this order however columns are cut, so faster
 * implementations must produce the same bits. */
static void embed_backward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *dout,
                           EmbedRows rows, float scale, float *dtable, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = embed_row_of(rows, ids[t]);
        for (int64_t i = 0; row >= 0 && i < hidden; i++)
            dtable[row * hidden + i] += scale * tensor_get(dout, t * hidden + i, c);
    }
}

/* ---- norms ---- */

/* Rows of n numbers: `groups` of them one after the other in each token, tokens `stride` elements apart. For
 * each row, with n = (x - mean) r and g = dy w', where w' is the factor of n, and mean is 0 except for
 * LayerNorm:
 *
 *     y = n w' + bias      dx = r (g - [LayerNorm: mean(g)] - n mean(g n))      dw = sum dy n */
typedef struct NormRows {
    NormKind kind;
    int64_t tokens, groups, stride, n;
    const void *x;
    const float *w;
    Dtype c;
    const QkRows *shared; /* of flat rows that are shared over TP, with sums by splits; else NULL */
    bool keys;
} NormRows;

/* Heads are rows within a token but do not fill it: after those of q come k and v. */
static int64_t row_at(const NormRows *r, int64_t row) {
    return row / r->groups * r->stride + row % r->groups * r->n;
}

/* 0 for the RMS norms, so that one formula serves all three kinds. */
static double row_mean(const NormRows *r, int64_t row) {
    double sum = 0;
    if (r->kind != NORM_LAYER) return 0;
    for (int64_t i = 0; i < r->n; i++) sum += (double)tensor_get(r->x, row_at(r, row) + i, r->c);
    return sum / (double)r->n;
}

/* From squares of x - mean: mean(x^2) - mean(x)^2 would lose all digits if the mean is large. */
static double row_rstd(const NormRows *r, int64_t row, float eps) {
    if (r->shared)
        return 1 / sqrt(qk_row_sum(r->shared, r->shared->squares, row, r->keys) /
                            (double)qk_row_length(r->shared, r->keys) +
                        (double)eps);
    double mean = row_mean(r, row), squares = 0;
    for (int64_t i = 0; i < r->n; i++) {
        double x = (double)tensor_get(r->x, row_at(r, row) + i, r->c) - mean;
        squares += x * x;
    }
    return 1 / sqrt(squares / (double)r->n + (double)eps);
}

static double row_weight(const NormRows *r, int64_t i) {
    return r->w ? (double)r->w[i] + (r->kind == NORM_RMS_PLUS_ONE ? 1 : 0) : 1;
}

/* bias is NULL for a norm without one. The result is rounded once, including the bias. */
static void norm_row(const NormRows *r, int64_t row, double rstd, const float *bias, void *y) {
    double mean = row_mean(r, row);
    for (int64_t i = 0; i < r->n; i++) {
        double n = ((double)tensor_get(r->x, row_at(r, row) + i, r->c) - mean) * rstd;
        tensor_set(y, row_at(r, row) + i, r->c, (float)(n * row_weight(r, i) + (bias ? (double)bias[i] : 0)));
    }
}

/* Means of g n (along) and of g (middle) over a row. */
typedef struct RowMeans {
    double along, middle;
} RowMeans;

static RowMeans row_means(const NormRows *r, int64_t row, double rstd, const void *dy) {
    double mean = row_mean(r, row);
    RowMeans m = {0, 0};
    if (r->shared) {
        m.along = qk_row_sum(r->shared, r->shared->products, row, r->keys) * rstd /
                  (double)qk_row_length(r->shared, r->keys);
        return m;
    }
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = row_at(r, row) + i;
        double g = (double)tensor_get(dy, at, r->c) * row_weight(r, i) / (double)r->n;
        m.along += g * ((double)tensor_get(r->x, at, r->c) - mean) * rstd;
        m.middle += r->kind == NORM_LAYER ? g : 0;
    }
    return m;
}

/* dx may be dy, but only without `add`: the sums over the row have been taken, and each element is read
 * before it is written. */
static void norm_row_gradient(const NormRows *r, int64_t row, double rstd, RowMeans m, const void *dy,
                              void *dx, bool add) {
    double mean = row_mean(r, row);
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = row_at(r, row) + i;
        double n = ((double)tensor_get(r->x, at, r->c) - mean) * rstd;
        double v = rstd * ((double)tensor_get(dy, at, r->c) * row_weight(r, i) - m.middle - n * m.along);
        tensor_set(dx, at, r->c, (float)(v + (add ? (double)tensor_get(dx, at, r->c) : 0)));
    }
}

/* Adds the weight gradient of one split of tokens. Columns are processed in groups, so that sums in double
 * fit on the stack. If rstd is NULL it is recomputed. */
static void norm_split_gradient(const NormRows *r, int64_t token, int64_t tokens, const float *rstd,
                                float eps, const void *dy, float *dw) {
    enum { COLUMNS = 256 };
    for (int64_t first = 0; first < r->n; first += COLUMNS) {
        double sums[COLUMNS] = {0};
        int64_t count = min_i64(COLUMNS, r->n - first);
        for (int64_t row = token * r->groups; row < (token + tokens) * r->groups; row++) {
            double mean = row_mean(r, row), scale = rstd ? (double)rstd[row] : row_rstd(r, row, eps);
            for (int64_t i = 0; i < count; i++) {
                int64_t at = row_at(r, row) + first + i;
                sums[i] +=
                    (double)tensor_get(dy, at, r->c) * ((double)tensor_get(r->x, at, r->c) - mean) * scale;
            }
        }
        for (int64_t i = 0; i < count; i++) dw[first + i] += (float)sums[i];
    }
}

/* dw [splits, n]: one row for each split of tokens. Ranks may hold different rows and add them in the
 * tree. */
static void norm_weight_gradient(const NormRows *r, int64_t split_size, const float *rstd, float eps,
                                 const void *dy, float *dw) {
    for (int64_t token = 0; token < r->tokens; token += split_size)
        norm_split_gradient(r, token, min_i64(split_size, r->tokens - token), rstd, eps, dy,
                            dw + token / split_size * r->n);
}

static void norm_forward(Device *d, NormKind kind, int64_t tokens, int64_t hidden, float eps, const void *a,
                         const void *b, const float *w, const float *bias, void *sum, void *y, float *rstd,
                         Dtype c) {
    (void)d;
    /* If the input is a sum, it is rounded to c first and normed as rounded, because the backward pass reads
     * the rounded sum, and a norm of anything else would not match its derivative. */
    NormRows rows = {kind, tokens, 1, hidden, hidden, sum ? sum : a, w, c, NULL, false};
    for (int64_t i = 0; sum && i < tokens * hidden; i++)
        tensor_set(sum, i, c, tensor_get(a, i, c) + (b ? tensor_get(b, i, c) : 0));
    for (int64_t t = 0; t < tokens; t++) {
        rstd[t] = (float)row_rstd(&rows, t, eps);
        if (y) norm_row(&rows, t, (double)rstd[t], bias, y);
    }
}

static void norm_backward(Device *d, NormKind kind, int64_t tokens, int64_t hidden, const void *x,
                          const float *w, const float *rstd, const void *dy, void *dx, bool add, float *dw,
                          int64_t split_size, Dtype c) {
    (void)d;
    NormRows rows = {kind, tokens, 1, hidden, hidden, x, w, c, NULL, false};
    if (dw) norm_weight_gradient(&rows, split_size, rstd, 0, dy, dw);
    for (int64_t t = 0; t < tokens; t++)
        norm_row_gradient(&rows, t, (double)rstd[t], row_means(&rows, t, (double)rstd[t], dy), dy, dx, add);
}

/* The rows of queries, or of keys; *at is the offset of the first one in qkv. */
static NormRows head_rows(AttentionShape s, const QkRows *qk, NormKind kind, bool keys, const void *raw,
                          const float *w, int64_t *at, Dtype c) {
    int64_t heads = keys ? s.kv_heads : s.heads, wide = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
    *at = keys ? (int64_t)s.heads * s.head_dim : 0;
    return (NormRows){.kind = kind,
                      .tokens = s.tokens,
                      .groups = qk->flat ? 1 : heads,
                      .stride = wide,
                      .n = qk->flat ? heads * s.head_dim : s.head_dim,
                      .x = tensor_at(raw, *at, c),
                      .w = w,
                      .c = c,
                      .shared = qk->splits > 0 ? qk : NULL,
                      .keys = keys};
}

/* Values are copied. 1 / rms is not stored: recomputing it for a short head is cheap. */
static void qk_norm_forward(Device *d, AttentionShape s, QkRows qk, NormKind kind, float eps, const void *raw,
                            const float *wq, const float *wk, void *out, Dtype c) {
    (void)d;
    int64_t at, wide = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim,
                values = (int64_t)s.kv_heads * s.head_dim;
    for (int64_t t = 0; t < s.tokens; t++) {
        int64_t v = (t + 1) * wide - values;
        memcpy(tensor_to(out, v, c), tensor_at(raw, v, c), (size_t)values * dtype_bytes(c));
    }
    for (int keys = 0; keys < 2; keys++) {
        NormRows rows = head_rows(s, &qk, kind, keys, raw, keys ? wk : wq, &at, c);
        for (int64_t r = 0; r < rows.tokens * rows.groups; r++)
            norm_row(&rows, r, row_rstd(&rows, r, eps), NULL, tensor_to(out, at, c));
    }
}

/* Weight gradients first, since the rows' gradients overwrite dqkv, from which both are computed. */
static void qk_norm_backward(Device *d, AttentionShape s, QkRows qk, NormKind kind, float eps,
                             const void *raw, const float *wq, const float *wk, void *dqkv, float *dwq,
                             float *dwk, int splits, Dtype c) {
    (void)d;
    int64_t at;
    for (int keys = 0; keys < 2; keys++) {
        NormRows rows = head_rows(s, &qk, kind, keys, raw, keys ? wk : wq, &at, c);
        void *grad = tensor_to(dqkv, at, c);
        NormRows split = rows;
        int64_t count = rows.w ? min_i64(splits, rows.groups) : 1, step = splits / count;
        split.groups /= count;
        for (int64_t i = 0; rows.w && i < count; i++) {
            int64_t before = i * split.groups * split.n;
            split.x = tensor_at(rows.x, before, c);
            norm_split_gradient(&split, 0, s.tokens, NULL, eps, tensor_at(grad, before, c),
                                (keys ? dwk : dwq) + i * step * split.n);
        }
        for (int64_t r = 0; r < rows.tokens * rows.groups; r++) {
            double rstd = row_rstd(&rows, r, eps);
            norm_row_gradient(&rows, r, rstd, row_means(&rows, r, rstd, grad), grad, grad, false);
        }
    }
}

/* The sum of one split of a row. */
static double split_sum(const NormRows *r, int64_t token, int64_t first, int64_t n, const void *dy) {
    double sum = 0;
    for (int64_t i = first; i < first + n; i++) {
        double x = (double)tensor_get(r->x, row_at(r, token) + i, r->c);
        double g = dy ? (double)tensor_get(dy, row_at(r, token) + i, r->c) * row_weight(r, i) : x;
        sum += x * g;
    }
    return sum;
}

static void qk_norm_sums(Device *d, AttentionShape s, KSplit splits, NormKind kind, const void *raw,
                         const float *wq, const float *wk, const void *dqkv, float *sums, Dtype c) {
    (void)d;
    int64_t at;
    QkRows flat = qk_rows(true);
    for (int keys = 0; keys < 2; keys++) {
        NormRows rows = head_rows(s, &flat, kind, keys, raw, keys ? wk : wq, &at, c);
        const void *dy = dqkv ? tensor_at(dqkv, at, c) : NULL;
        int64_t n = splits.run[keys].split_size, count = splits_of(splits.run[keys].length, n);
        for (int64_t i = 0; i < count; i++)
            for (int64_t t = 0; t < s.tokens; t++)
                sums[2 * (i * s.tokens + t) + keys] =
                    (float)split_sum(&rows, t, splits.run[keys].skip + i * n, n, dy);
    }
}

/* Pair i of a head is elements i and i + D/2, as in most of Hugging Face's checkpoints; in the papers' form
 * (s.neighbours) it is 2i and 2i + 1. Values come last and are not rotated. */
static void rope(Device *d, AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                 bool inverse, Dtype c) {
    (void)d;
    int64_t dim = s.head_dim, turned = rotary_dim(s), half = turned / 2,
            row = (s.heads + 2 * s.kv_heads) * dim;
    for (int64_t t = 0; t < s.tokens; t++) {
        const float *cosine = cos_sin + positions[t] * turned, *sine = cosine + half;
        for (int64_t head = 0; head < s.heads + s.kv_heads; head++) {
            void *x = tensor_to(qkv, t * row + head * dim, c);
            for (int64_t i = 0; i < half; i++) {
                int64_t one = s.neighbours ? 2 * i : i, other = s.neighbours ? one + 1 : half + i;
                float u = tensor_get(x, one, c), v = tensor_get(x, other, c),
                      sn = inverse ? -sine[i] : sine[i];
                tensor_set(x, one, c, u * cosine[i] - v * sn);
                tensor_set(x, other, c, v * cosine[i] + u * sn);
            }
        }
    }
}

static void queries_scale(Device *d, AttentionShape s, void *qkv, const int32_t *positions,
                          const float *factors, Dtype c) {
    (void)d;
    int64_t n = s.heads * (int64_t)s.head_dim, row = n + 2 * (int64_t)s.kv_heads * s.head_dim;
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = t * row; i < t * row + n; i++)
            tensor_set(qkv, i, c, factors[positions[t]] * tensor_get(qkv, i, c));
}

/* A separate pass over the product's result, which has been rounded to c before. */
static void bias_forward(Device *d, int64_t tokens, int64_t n, void *y, const float *bias, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < n; i++) tensor_set(y, t * n + i, c, tensor_get(y, t * n + i, c) + bias[i]);
}

/* One row for each split of tokens, as in norm_backward; it is rounded once the split has been summed. */
static void bias_backward(Device *d, int64_t tokens, int64_t n, const void *dy, float *db, int64_t split_size,
                          Dtype c) {
    (void)d;
    for (int64_t at = 0; at < splits_of(tokens, split_size) * n; at++) {
        int64_t first = at / n * split_size;
        double sum = 0;
        for (int64_t t = first; t < min_i64(tokens, first + split_size); t++)
            sum += (double)tensor_get(dy, t * n + at % n, c);
        db[at] += (float)sum;
    }
}

/* ---- activations ---- */

/* acos(-1) is pi, for which C11 has no name. */
static double gelu_inner(double z) { return sqrt(2 / acos(-1.0)) * (z + 0.044715 * z * z * z); }

/* The formulas of device.h; ACT_CLAMPED has functions of its own. */
static double activation(Activation f, double z) {
    switch (f) {
    case ACT_SILU: return z / (1 + exp(-z));
    case ACT_GELU_TANH: return z * (1 + tanh(gelu_inner(z))) / 2;
    case ACT_CLAMPED: break;
    }
    return (double)NAN;
}

/* With s the sigmoid of z, and a = gelu_inner(z):
 *
 *     silu'(z) = s + z s (1 - s)      gelu'(z) = (1 + tanh a) / 2 + z (1 - tanh^2 a) a' / 2 */
static double activation_slope(Activation f, double z) {
    double sigmoid = 1 / (1 + exp(-z)), t = tanh(gelu_inner(z)),
           inner = sqrt(2 / acos(-1.0)) * (1 + 3 * 0.044715 * z * z);
    switch (f) {
    case ACT_SILU: return sigmoid + z * sigmoid * (1 - sigmoid);
    case ACT_GELU_TANH: return (1 + t) / 2 + z * (1 - t * t) * inner / 2;
    case ACT_CLAMPED: break;
    }
    return (double)NAN;
}

/* ACT_CLAMPED of a pair: its value, and its derivatives with respect to gate and up. */
typedef struct Clamped {
    double value, gate, up;
} Clamped;

static Clamped clamped(double gate, double up) {
    double limit = (double)CLAMPED_LIMIT, slope = (double)CLAMPED_SLOPE;
    double z = gate > limit ? limit : gate, u = 1 + (up > limit ? limit : up < -limit ? -limit : up);
    double s = 1 / (1 + exp(-slope * z));
    return (Clamped){.value = u * z * s,
                     .gate = gate <= limit ? u * (s + slope * z * s * (1 - s)) : 0,
                     .up = fabs(up) <= limit ? z * s : 0};
}

static void clamped_forward(int64_t n, const void *x, void *act, Dtype c) {
    for (int64_t i = 0; i < n; i++)
        tensor_set(
            act, i, c,
            (float)clamped((double)tensor_get(x, 2 * i, c), (double)tensor_get(x, 2 * i + 1, c)).value);
}

static void clamped_backward(int64_t n, const void *x, const void *dact, void *dx, void *act, Dtype c) {
    for (int64_t i = 0; i < n; i++) {
        Clamped y = clamped((double)tensor_get(x, 2 * i, c), (double)tensor_get(x, 2 * i + 1, c));
        double grad = (double)tensor_get(dact, i, c);
        tensor_set(dx, 2 * i, c, (float)(grad * y.gate));
        tensor_set(dx, 2 * i + 1, c, (float)(grad * y.up));
        tensor_set(act, i, c, (float)y.value);
    }
}

/* A token's row is its gate, then its up, as the fused product writes them. */
static void activation_forward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                               const void *x, void *act, Dtype c) {
    (void)d;
    int64_t wide = gated ? 2 * inter : inter;
    if (f == ACT_CLAMPED) {
        clamped_forward(tokens * inter, x, act, c);
        return;
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < inter; i++) {
            double up = gated ? (double)tensor_get(x, t * wide + inter + i, c) : 1;
            double z = (double)tensor_get(x, t * wide + i, c);
            tensor_set(act, t * inter + i, c, (float)(activation(f, z) * up));
        }
    }
}

/* act may be the memory of dact, so each element of dact is read before that of act is written. */
static void activation_backward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                                const void *x, const void *dact, void *dx, void *act, Dtype c) {
    (void)d;
    int64_t wide = gated ? 2 * inter : inter;
    if (f == ACT_CLAMPED) {
        clamped_backward(tokens * inter, x, dact, dx, act, c);
        return;
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < inter; i++) {
            int64_t at = t * wide + i;
            double z = (double)tensor_get(x, at, c), up = gated ? (double)tensor_get(x, at + inter, c) : 1;
            double grad = (double)tensor_get(dact, t * inter + i, c), value = activation(f, z);
            tensor_set(dx, at, c, (float)(grad * up * activation_slope(f, z)));
            if (gated) tensor_set(dx, at + inter, c, (float)(grad * value));
            tensor_set(act, t * inter + i, c, (float)(value * up));
        }
    }
}

static void add(Device *d, int64_t n, const void *a, const void *b, void *out, Dtype c) {
    (void)d;
    for (int64_t i = 0; i < n; i++) tensor_set(out, i, c, tensor_get(a, i, c) + tensor_get(b, i, c));
}

static void scale(Device *d, int64_t rows, int64_t n, float factor, const void *in, int64_t ldi, void *out,
                  Dtype c) {
    (void)d;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            tensor_set(out, r * n + i, c, factor * tensor_get(in, r * ldi + i, c));
}

/* In place; cross_entropy relies on that, since it computes the derivative from the capped logit alone. */
static void softcap(Device *d, int64_t n, float cap, void *x, Dtype c) {
    (void)d;
    for (int64_t i = 0; i < n; i++)
        tensor_set(x, i, c, (float)((double)cap * tanh((double)tensor_get(x, i, c) / (double)cap)));
}

float tree_of_steps(const float *sums, int64_t step, int count) {
    if (count == 1) return sums[0];
    int half = tree_half(count);
    return tree_of_steps(sums, step, half) + tree_of_steps(sums + half * step, step, count - half);
}

/* The canonical tree of base/tree.h, which ranks build from parts of it, so that the bits do not depend on
 * their number. */
static float tree_sum(int parts, const float *const *in, int64_t i) {
    if (parts == 1) return in[0][i];
    int half = tree_half(parts);
    return tree_sum(half, in, i) + tree_sum(parts - half, in + half, i);
}

/* out may be one of the parts: an element is read from all parts before it is written. */
static void sum_parts(Device *d, int64_t n, int parts, const float *const *in, float *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++) out[i] = tree_sum(parts, in, i);
}

/* Unsigned, because these sums wrap around, and signed overflow is undefined in C. */
static void sum_parts_i64(Device *d, int64_t n, int parts, const int64_t *const *in, int64_t *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++) {
        uint64_t sum = 0;
        for (int p = 0; p < parts; p++) sum += (uint64_t)in[p][i];
        out[i] = (int64_t)sum;
    }
}

/* ---- loss ---- */

/* The target's logit is selected, not added to zeros of other splits: no rounding, and -0 does not become
 * +0. */
static LossRecord record_of(const void *x, int64_t n, Dtype t, int64_t target) {
    LossRecord r = {.max = -HUGE_VALF};
    for (int64_t i = 0; i < n; i++) r.max = fmaxf(r.max, tensor_get(x, i, t));
    for (int64_t i = 0; i < n; i++) r.sum += exp((double)tensor_get(x, i, t) - (double)r.max);
    if (target >= 0 && target < n) r.target = tensor_get(x, target, t);
    return r;
}

/* Records are ordered by split, then by row: local splits follow each other in the order of the
 * vocabulary. */
static void loss_records(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                         const int32_t *targets, VocabSplit splits, LossRecord *records) {
    (void)d;
    int64_t split_size = splits.split_size ? splits.split_size : vocab;
    for (int64_t first = 0; first < vocab; first += split_size)
        for (int64_t r = 0; r < rows; r++)
            *records++ =
                record_of(tensor_at(logits, r * vocab + first, logits_type),
                          min_i64(split_size, vocab - first), logits_type, targets[r] - splits.first - first);
}

/* The tree over the splits of one row, `rows` records apart, relative to `max`. */
static double tree_of_sums(const LossRecord *records, int64_t rows, int count, float max) {
    if (count == 1) return records->sum * exp((double)records->max - (double)max);
    int half = tree_half(count);
    return tree_of_sums(records, rows, half, max) +
           tree_of_sums(records + half * rows, rows, count - half, max);
}

/* A row's loss, and all that its gradient needs, is computed before the gradient, which may overwrite the
 * logits; an element of the gradient reads its own logit alone. Targets index the full vocabulary: a rank
 * that does not hold a target has no onehot, but gets the target's logit from the records. */
static void cross_entropy(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                          const int32_t *targets, VocabSplit splits, const float *scale, float cap, float z,
                          float *loss, float *z_loss, void *dlogits, Dtype grad_type) {
    LossRecord own[SPLITS_MAX];
    int64_t split_size = splits.split_size ? splits.split_size : vocab, step = splits.records ? rows : 1;
    int count = splits.records ? splits.count : (int)splits_of(vocab, split_size);
    for (int64_t r = 0; r < rows; r++) {
        const void *x = tensor_at(logits, r * vocab, logits_type);
        void *dx = dlogits ? tensor_to(dlogits, r * vocab, grad_type) : NULL;
        int64_t target = targets[r];
        loss[r] = 0;
        if (z_loss) z_loss[r] = 0;
        if (target < 0) {
            for (int64_t i = 0; dx && i < vocab; i++) tensor_set(dx, i, grad_type, 0);
            continue;
        }
        const LossRecord *records = splits.records ? splits.records + r : own;
        if (!splits.records) loss_records(d, 1, vocab, x, logits_type, targets + r, splits, own);
        float max = -HUGE_VALF;
        for (int i = 0; i < count; i++) max = fmaxf(max, records[i * step].max);
        double sum = tree_of_sums(records, step, count, max);
        double whole = (double)max + log(sum), share = 1 + 2 * (double)z * whole;
        loss[r] = (float)(whole - (double)records[target / split_size * step].target);
        if (z_loss) z_loss[r] = (float)((double)z * whole * whole);
        for (int64_t i = 0; dx && i < vocab; i++) {
            double l = (double)tensor_get(x, i, logits_type), p = exp(l - (double)max) / sum;
            double slope = cap > 0 ? 1 - l / (double)cap * (l / (double)cap) : 1;
            double onehot = splits.first + i == target ? 1 : 0;
            tensor_set(dx, i, grad_type, (float)((p * share - onehot) * (double)*scale * slope));
        }
    }
}

/* Non-finite losses cannot be part of an exact sum, so they are counted instead. */
static void loss_sum(Device *d, int64_t n, const float *losses, LossSum *into) {
    (void)d;
    for (int64_t i = 0; i < n; i++) {
        into->nonfinite += !isfinite(losses[i]);
        exact_add(&into->sum, (double)losses[i]);
    }
}

/* Sets state `which` (0 or 1) of element i. The first state uses the lower half of the element's random word,
 * the second the upper (device.h, StateStore). So one word serves both, and they round independently. */
static void set_state(const StateStore *s, uint64_t step, void *state, int64_t i, int which, float value) {
    if (s->type == DTYPE_F32)
        ((float *)state)[i] = value;
    else
        ((uint16_t *)state)[i] = bf16_round_by(value, state_word(s, step, i) >> 16 * which & 0xffff);
}

/* In fp32 and in the order of the formulas. The states are part of a checkpoint; other implementations may
 * round differently from this. */
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

/* In PyTorch's order: weight decay is added to the gradient, so it enters the momentum. */
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

/* Momentum as in SGD. The result is normalised to length 1 next, so neither a factor 1 - momentum nor the
 * clip coefficient of a single step would change the step's length. */
static void muon_momentum(Device *d, MatrixShape shape, Muon o, StateStore s, const OptimizerStep *step,
                          const float *grad, void *momentum, float *x) {
    (void)d;
    for (int64_t r = 0; r < shape.rows; r++)
        for (int64_t i = r * shape.row; i < r * shape.row + shape.cols; i++) {
            float g = grad[i] * step->grad_scale, b = o.momentum * tensor_get(momentum, i, s.type) + g;
            set_state(&s, step->number, momentum, i, 0, b);
            *x++ = o.nesterov ? g + o.momentum * b : b;
        }
}

static void muon_normalise(Device *d, int64_t n, const GradStats *squares, float slack, float *x) {
    float factor = muon_factor(squares, slack);
    (void)d;
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void newton_schulz(Device *d, int64_t m, float a, float b, float c, const float *gram, float *square) {
    (void)d;
    for (int64_t r = 0; r < m; r++)
        for (int64_t i = r * m; i < (r + 1) * m; i++)
            square[i] = (i == r * m + r ? a : 0) + (b * gram[i] + c * square[i]);
}

/* Weight decay uses the plain learning rate; the scale applies to the step alone. */
static void muon_apply(Device *d, MatrixShape shape, Muon o, const OptimizerStep *step, const float *x,
                       float *param, uint16_t *copy) {
    (void)d;
    for (int64_t r = 0; r < shape.rows; r++)
        for (int64_t i = r * shape.row; i < r * shape.row + shape.cols; i++) {
            param[i] -= step->lr * o.weight_decay * param[i] + step->lr * o.scale * *x++;
            if (copy) copy[i] = bf16_round(param[i]);
        }
}

static void average(Device *d, int64_t n, const OptimizerStep *step, const float *param, float *mean) {
    (void)d;
    for (int64_t i = 0; i < n; i++) mean[i] += step->average * (param[i] - mean[i]);
}

/* ---- gradients ---- */

/* Powers other than 1 and 2 are taken of |g| / unit: |g|^8 of a gradient of 1e5 overflows a float, and with
 * the largest |g| as the unit every power is at most 1. */
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

/* ldexp is exact, since a double has space for a float's digits at any power of two. So llrint does the only
 * rounding, to nearest even. NaN exceeds every limit. A refused element still clears acc if `set`. */
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

/* (float)acc rounds once. The power of two after it is exact, since no result is below 2^-50. */
static void fixed_to_float(Device *d, int64_t n, const int64_t *acc, float *out) {
    (void)d;
    for (int64_t i = 0; i < n; i++) out[i] = ldexpf((float)acc[i], -FIXED_SHIFT);
}

/* ---- memory ---- */
static void cast(Device *d, int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    (void)d;
    for (int64_t i = 0; i < n; i++) tensor_set(out, i, out_type, tensor_get(in, i, in_type));
}

/* With 0 bytes the address may be NULL, which memset and memcpy do not allow. */
static void zero(Device *d, void *p, size_t bytes) {
    (void)d;
    if (bytes) memset(p, 0, bytes);
}

/* A number depends only on its element's index, so a shard gets the same numbers as the tensor. */
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

static void copy_rows(Device *d, int64_t rows, size_t bytes, void *to, size_t to_stride, const void *from,
                      size_t from_stride) {
    (void)d;
    for (int64_t i = 0; i < rows && bytes; i++)
        memcpy((char *)to + (size_t)i * to_stride, (const char *)from + (size_t)i * from_stride, bytes);
}

/* Tensor memory of a CPU is host memory: both transfers are copies that end before the call returns. */
static void upload(Device *d, void *tensor, const void *host, size_t bytes) {
    (void)d;
    if (bytes) memcpy(tensor, host, bytes);
}

static void download(Device *d, void *host, const void *tensor, size_t bytes) {
    (void)d;
    if (bytes) memcpy(host, tensor, bytes);
}

/* All sums are in registers, so the reference needs no scratch. */
static size_t scratch_bytes(const Device *d, const DeviceNeeds *needs) {
    (void)d;
    (void)needs;
    return 0;
}

/* Fills every slot; implementations override some of them. */
void reference_fill_ops(Ops *ops) {
    *ops = (Ops){.gemm = gemm,
                 .embed_forward = embed_forward,
                 .embed_backward = embed_backward,
                 .norm_forward = norm_forward,
                 .norm_backward = norm_backward,
                 .qk_norm_forward = qk_norm_forward,
                 .qk_norm_backward = qk_norm_backward,
                 .qk_norm_sums = qk_norm_sums,
                 .rope = rope,
                 .queries_scale = queries_scale,
                 .bias_forward = bias_forward,
                 .bias_backward = bias_backward,
                 .activation_forward = activation_forward,
                 .activation_backward = activation_backward,
                 .add = add,
                 .scale = scale,
                 .softcap = softcap,
                 .loss_records = loss_records,
                 .cross_entropy = cross_entropy,
                 .loss_sum = loss_sum,
                 .adamw = adamw,
                 .sgd = sgd,
                 .muon_momentum = muon_momentum,
                 .muon_normalise = muon_normalise,
                 .newton_schulz = newton_schulz,
                 .muon_apply = muon_apply,
                 .average = average,
                 .grad_stats = grad_stats,
                 .fixed_add = fixed_add,
                 .fixed_to_float = fixed_to_float,
                 .cast = cast,
                 .zero = zero,
                 .init_normal = init_normal,
                 .fill = fill,
                 .copy = copy,
                 .copy_rows = copy_rows,
                 .upload = upload,
                 .download = download,
                 .sum_parts = sum_parts,
                 .sum_parts_i64 = sum_parts_i64,
                 .scratch_bytes = scratch_bytes};
    reference_fill_attention(ops);
    reference_fill_scans(ops);
    reference_fill_mamba(ops);
    reference_fill_experts(ops);
    reference_fill_latent(ops);
}
