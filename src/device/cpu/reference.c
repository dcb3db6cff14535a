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
static void gemm(Device *d, const GemmArgs *o) {
    if (d->profiling)
        d->profile[OP_GEMM].flops +=
            2.0 * (double)o->m * (double)o->n * (double)(o->splits.runs ? split_length(o->splits) : o->k);
    Terms t = {o->trans_a, o->trans_b, o->m, o->n, o->k, o->a, o->b, o->ab_type};
    int count = o->splits.runs ? (int)splits_of(o->splits.run[0].length, o->splits.run[0].split_size) : 1;
    for (int64_t i = 0; i < o->m; i++) {
        for (int64_t j = 0; j < o->n; j++) {
            float before = o->accumulate ? tensor_get(o->c, i * o->ldc + j, o->c_type) : 0;
            float sum = count == 1 ? (float)split_dot(&t, &o->splits, 0, i, j, (double)before)
                                   : before + tree_of_partials(&t, &o->splits, 0, count, i, j);
            tensor_set(o->c, i * o->ldc + j, o->c_type, sum);
        }
    }
}

/* ---- embedding, norms, biases ---- */

/* Without `add` rows are set, not added to zeros: -0 stays -0. */
static void embed_forward(Device *d, const EmbedForwardArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->tokens; t++)
        for (int64_t i = 0; i < o->hidden; i++) {
            int64_t row = embed_row_of(o->rows, o->ids[t]);
            float x = row < 0 ? -0.0f : o->scale * tensor_get(o->table, row * o->hidden + i, o->c);
            tensor_set(o->out, t * o->hidden + i, o->c,
                       o->add ? tensor_get(o->out, t * o->hidden + i, o->c) + x : x);
        }
}

/* Tokens in ascending order, in fp32. A row's sum has this order however columns are cut, so faster
 * implementations must produce the same bits. */
static void embed_backward(Device *d, const EmbedBackwardArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->tokens; t++) {
        int64_t row = embed_row_of(o->rows, o->ids[t]);
        for (int64_t i = 0; row >= 0 && i < o->hidden; i++)
            o->dtable[row * o->hidden + i] += o->scale * tensor_get(o->dout, t * o->hidden + i, o->c);
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
    const void *x, *dy; /* dy: of backward */
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

static RowMeans row_means(const NormRows *r, int64_t row, double rstd) {
    double mean = row_mean(r, row);
    RowMeans m = {0, 0};
    if (r->shared) {
        m.along = qk_row_sum(r->shared, r->shared->products, row, r->keys) * rstd /
                  (double)qk_row_length(r->shared, r->keys);
        return m;
    }
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = row_at(r, row) + i;
        double g = (double)tensor_get(r->dy, at, r->c) * row_weight(r, i) / (double)r->n;
        m.along += g * ((double)tensor_get(r->x, at, r->c) - mean) * rstd;
        m.middle += r->kind == NORM_LAYER ? g : 0;
    }
    return m;
}

/* dx may be dy, but only without `add`: the sums over the row have been taken, and each element is read
 * before it is written. */
static void norm_row_gradient(const NormRows *r, int64_t row, double rstd, void *dx, bool add) {
    RowMeans m = row_means(r, row, rstd);
    double mean = row_mean(r, row);
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = row_at(r, row) + i;
        double n = ((double)tensor_get(r->x, at, r->c) - mean) * rstd;
        double v = rstd * ((double)tensor_get(r->dy, at, r->c) * row_weight(r, i) - m.middle - n * m.along);
        tensor_set(dx, at, r->c, (float)(v + (add ? (double)tensor_get(dx, at, r->c) : 0)));
    }
}

/* Adds the weight gradient of one split of tokens. Columns are processed in groups, so that sums in double
 * fit on the stack. If rstd is NULL it is recomputed. */
static void norm_split_gradient(const NormRows *r, int64_t token, int64_t tokens, const float *rstd,
                                float eps, float *dw) {
    enum { COLUMNS = 256 };
    for (int64_t first = 0; first < r->n; first += COLUMNS) {
        double sums[COLUMNS] = {0};
        int64_t count = min_i64(COLUMNS, r->n - first);
        for (int64_t row = token * r->groups; row < (token + tokens) * r->groups; row++) {
            double mean = row_mean(r, row), scale = rstd ? (double)rstd[row] : row_rstd(r, row, eps);
            for (int64_t i = 0; i < count; i++) {
                int64_t at = row_at(r, row) + first + i;
                sums[i] +=
                    (double)tensor_get(r->dy, at, r->c) * ((double)tensor_get(r->x, at, r->c) - mean) * scale;
            }
        }
        for (int64_t i = 0; i < count; i++) dw[first + i] += (float)sums[i];
    }
}

/* dw [splits, n]: one row for each split of tokens. Ranks may hold different rows and add them in the
 * tree. */
static void norm_weight_gradient(const NormRows *r, int64_t split_size, const float *rstd, float *dw) {
    for (int64_t token = 0; token < r->tokens; token += split_size)
        norm_split_gradient(r, token, min_i64(split_size, r->tokens - token), rstd, 0,
                            dw + token / split_size * r->n);
}

/* Rows that fill their tokens. */
static NormRows whole_rows(NormKind kind, int64_t tokens, int64_t n, const void *x, const float *w, Dtype c) {
    return (NormRows){
        .kind = kind, .tokens = tokens, .groups = 1, .stride = n, .n = n, .x = x, .w = w, .c = c};
}

static void norm_forward(Device *d, const NormForwardArgs *o) {
    (void)d;
    /* If the input is a sum, it is rounded to c first and normed as rounded, because the backward pass reads
     * the rounded sum, and a norm of anything else would not match its derivative. */
    NormRows rows = whole_rows(o->kind, o->tokens, o->hidden, o->sum ? o->sum : o->a, o->w, o->c);
    for (int64_t i = 0; o->sum && i < o->tokens * o->hidden; i++)
        tensor_set(o->sum, i, o->c, tensor_get(o->a, i, o->c) + (o->b ? tensor_get(o->b, i, o->c) : 0));
    for (int64_t t = 0; t < o->tokens; t++) {
        o->rstd[t] = (float)row_rstd(&rows, t, o->eps);
        if (o->y) norm_row(&rows, t, (double)o->rstd[t], o->bias, o->y);
    }
}

static void norm_backward(Device *d, const NormBackwardArgs *o) {
    (void)d;
    NormRows rows = whole_rows(o->kind, o->tokens, o->hidden, o->x, o->w, o->c);
    rows.dy = o->dy;
    if (o->dw) norm_weight_gradient(&rows, o->split_size, o->rstd, o->dw);
    for (int64_t t = 0; t < o->tokens; t++) norm_row_gradient(&rows, t, (double)o->rstd[t], o->dx, o->add);
}

/* Offset of the queries, or of the keys, in qkv. */
static int64_t heads_at(AttentionShape s, bool keys) { return keys ? (int64_t)s.heads * s.head_dim : 0; }

/* The rows of queries, or of keys, from the first one on. */
static NormRows head_rows(AttentionShape s, const QkRows *qk, bool keys, const void *raw, Dtype c) {
    int64_t heads = keys ? s.kv_heads : s.heads, wide = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
    return (NormRows){.tokens = s.tokens,
                      .groups = qk->flat ? 1 : heads,
                      .stride = wide,
                      .n = qk->flat ? heads * s.head_dim : s.head_dim,
                      .x = tensor_at(raw, heads_at(s, keys), c),
                      .c = c,
                      .shared = qk->splits > 0 ? qk : NULL,
                      .keys = keys};
}

/* Values are copied. 1 / rms is not stored: recomputing it for a short head is cheap. */
static void qk_norm_forward(Device *d, const QkNormForwardArgs *o) {
    (void)d;
    int64_t wide = (o->s.heads + 2 * (int64_t)o->s.kv_heads) * o->s.head_dim,
            values = (int64_t)o->s.kv_heads * o->s.head_dim;
    for (int64_t t = 0; t < o->s.tokens; t++) {
        int64_t v = (t + 1) * wide - values;
        memcpy(tensor_to(o->out, v, o->c), tensor_at(o->raw, v, o->c), (size_t)values * dtype_bytes(o->c));
    }
    for (int keys = 0; keys < 2; keys++) {
        NormRows rows = head_rows(o->s, &o->rows, keys, o->raw, o->c);
        void *out = tensor_to(o->out, heads_at(o->s, keys), o->c);
        rows.kind = o->kind, rows.w = keys ? o->wk : o->wq;
        for (int64_t r = 0; r < rows.tokens * rows.groups; r++)
            norm_row(&rows, r, row_rstd(&rows, r, o->eps), NULL, out);
    }
}

/* Weight gradients first, since the rows' gradients overwrite dqkv, from which both are computed. */
static void qk_norm_backward(Device *d, const QkNormBackwardArgs *o) {
    (void)d;
    for (int keys = 0; keys < 2; keys++) {
        NormRows rows = head_rows(o->s, &o->rows, keys, o->raw, o->c);
        void *grad = tensor_to(o->dqkv, heads_at(o->s, keys), o->c);
        rows.kind = o->kind, rows.w = keys ? o->wk : o->wq, rows.dy = grad;
        NormRows split = rows;
        int64_t count = rows.w ? min_i64(o->splits, rows.groups) : 1, step = o->splits / count;
        split.groups /= count;
        for (int64_t i = 0; rows.w && i < count; i++) {
            int64_t before = i * split.groups * split.n;
            split.x = tensor_at(rows.x, before, o->c), split.dy = tensor_at(grad, before, o->c);
            norm_split_gradient(&split, 0, o->s.tokens, NULL, o->eps,
                                (keys ? o->dwk : o->dwq) + i * step * split.n);
        }
        for (int64_t r = 0; r < rows.tokens * rows.groups; r++)
            norm_row_gradient(&rows, r, row_rstd(&rows, r, o->eps), grad, false);
    }
}

/* The sum of one split of a row. */
static double split_sum(const NormRows *r, int64_t token, int64_t first, int64_t n) {
    double sum = 0;
    for (int64_t i = first; i < first + n; i++) {
        double x = (double)tensor_get(r->x, row_at(r, token) + i, r->c);
        double g = r->dy ? (double)tensor_get(r->dy, row_at(r, token) + i, r->c) * row_weight(r, i) : x;
        sum += x * g;
    }
    return sum;
}

static void qk_norm_sums(Device *d, const QkNormSumsArgs *o) {
    (void)d;
    QkRows flat = qk_rows(true);
    for (int keys = 0; keys < 2; keys++) {
        NormRows rows = head_rows(o->s, &flat, keys, o->raw, o->c);
        rows.kind = o->kind, rows.w = keys ? o->wk : o->wq;
        if (o->dqkv) rows.dy = tensor_at(o->dqkv, heads_at(o->s, keys), o->c);
        int64_t n = o->splits.run[keys].split_size, count = splits_of(o->splits.run[keys].length, n);
        for (int64_t i = 0; i < count; i++)
            for (int64_t t = 0; t < o->s.tokens; t++)
                o->sums[2 * (i * o->s.tokens + t) + keys] =
                    (float)split_sum(&rows, t, o->splits.run[keys].skip + i * n, n);
    }
}

/* Pair i of a head is elements i and i + D/2, as in most of Hugging Face's checkpoints; in the papers' form
 * (s.neighbours) it is 2i and 2i + 1. Values come last and are not rotated. */
static void rope(Device *d, const RopeArgs *o) {
    (void)d;
    int64_t dim = o->s.head_dim, rotated = rotary_dim(o->s), half = rotated / 2,
            row = (o->s.heads + 2 * o->s.kv_heads) * dim;
    for (int64_t t = 0; t < o->s.tokens; t++) {
        const float *cosine = o->cos_sin + o->positions[t] * rotated, *sine = cosine + half;
        for (int64_t head = 0; head < o->s.heads + o->s.kv_heads; head++) {
            void *x = tensor_to(o->qkv, t * row + head * dim, o->c);
            for (int64_t i = 0; i < half; i++) {
                int64_t one = o->s.neighbours ? 2 * i : i, other = o->s.neighbours ? one + 1 : half + i;
                float u = tensor_get(x, one, o->c), v = tensor_get(x, other, o->c),
                      sn = o->inverse ? -sine[i] : sine[i];
                tensor_set(x, one, o->c, u * cosine[i] - v * sn);
                tensor_set(x, other, o->c, v * cosine[i] + u * sn);
            }
        }
    }
}

static void queries_scale(Device *d, const QueriesScaleArgs *o) {
    (void)d;
    int64_t n = o->s.heads * (int64_t)o->s.head_dim, row = n + 2 * (int64_t)o->s.kv_heads * o->s.head_dim;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t i = t * row; i < t * row + n; i++)
            tensor_set(o->qkv, i, o->c, o->factors[o->positions[t]] * tensor_get(o->qkv, i, o->c));
}

/* A separate pass over the product's result, which has been rounded to c before. */
static void bias_forward(Device *d, const BiasForwardArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->tokens; t++)
        for (int64_t i = 0; i < o->n; i++)
            tensor_set(o->y, t * o->n + i, o->c, tensor_get(o->y, t * o->n + i, o->c) + o->bias[i]);
}

/* One row for each split of tokens, as in norm_backward; it is rounded once the split has been summed. */
static void bias_backward(Device *d, const BiasBackwardArgs *o) {
    (void)d;
    for (int64_t at = 0; at < splits_of(o->tokens, o->split_size) * o->n; at++) {
        int64_t first = at / o->n * o->split_size;
        double sum = 0;
        for (int64_t t = first; t < min_i64(o->tokens, first + o->split_size); t++)
            sum += (double)tensor_get(o->dy, t * o->n + at % o->n, o->c);
        o->db[at] += (float)sum;
    }
}

/* ---- activations ---- */

/* acos(-1) is pi, for which C11 has no name. */
static double gelu_inner(double z) { return sqrt(2 / acos(-1.0)) * (z + 0.044715 * z * z * z); }

/* The formulas of shapes.h; ACT_CLAMPED has functions of its own. */
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
static void activation_forward(Device *d, const ActivationForwardArgs *o) {
    (void)d;
    int64_t wide = o->gated ? 2 * o->inter : o->inter;
    if (o->f == ACT_CLAMPED) {
        clamped_forward(o->tokens * o->inter, o->x, o->act, o->c);
        return;
    }
    for (int64_t t = 0; t < o->tokens; t++) {
        for (int64_t i = 0; i < o->inter; i++) {
            double up = o->gated ? (double)tensor_get(o->x, t * wide + o->inter + i, o->c) : 1;
            double z = (double)tensor_get(o->x, t * wide + i, o->c);
            tensor_set(o->act, t * o->inter + i, o->c, (float)(activation(o->f, z) * up));
        }
    }
}

/* act may be the memory of dact, so each element of dact is read before that of act is written. */
static void activation_backward(Device *d, const ActivationBackwardArgs *o) {
    (void)d;
    int64_t wide = o->gated ? 2 * o->inter : o->inter;
    if (o->f == ACT_CLAMPED) {
        clamped_backward(o->tokens * o->inter, o->x, o->dact, o->dx, o->act, o->c);
        return;
    }
    for (int64_t t = 0; t < o->tokens; t++) {
        for (int64_t i = 0; i < o->inter; i++) {
            int64_t at = t * wide + i;
            double z = (double)tensor_get(o->x, at, o->c),
                   up = o->gated ? (double)tensor_get(o->x, at + o->inter, o->c) : 1;
            double grad = (double)tensor_get(o->dact, t * o->inter + i, o->c), value = activation(o->f, z);
            tensor_set(o->dx, at, o->c, (float)(grad * up * activation_slope(o->f, z)));
            if (o->gated) tensor_set(o->dx, at + o->inter, o->c, (float)(grad * value));
            tensor_set(o->act, t * o->inter + i, o->c, (float)(value * up));
        }
    }
}

static void add(Device *d, const AddArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++)
        tensor_set(o->out, i, o->c, tensor_get(o->a, i, o->c) + tensor_get(o->b, i, o->c));
}

static void scale(Device *d, const ScaleArgs *o) {
    (void)d;
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t i = 0; i < o->n; i++)
            tensor_set(o->out, r * o->n + i, o->c, o->factor * tensor_get(o->in, r * o->ldi + i, o->c));
}

/* In place; cross_entropy relies on that, since it computes the derivative from the capped logit alone. */
static void softcap(Device *d, const SoftcapArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++)
        tensor_set(o->x, i, o->c,
                   (float)((double)o->cap * tanh((double)tensor_get(o->x, i, o->c) / (double)o->cap)));
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

/* out may be one of the partial sums: an element is read from all of them before it is written. */
static void sum_partials(Device *d, const SumPartialsArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) o->out[i] = tree_sum(o->partials, o->in, i);
}

/* Unsigned, because these sums wrap around, and signed overflow is undefined in C. */
static void sum_partials_i64(Device *d, const SumPartialsI64Args *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) {
        uint64_t sum = 0;
        for (int p = 0; p < o->partials; p++) sum += (uint64_t)o->in[p][i];
        o->out[i] = (int64_t)sum;
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
static void loss_records(Device *d, const LossRecordsArgs *o) {
    LossRecord *records = o->records;
    (void)d;
    int64_t split_size = o->splits.split_size ? o->splits.split_size : o->vocab;
    for (int64_t first = 0; first < o->vocab; first += split_size)
        for (int64_t r = 0; r < o->rows; r++)
            *records++ = record_of(tensor_at(o->logits, r * o->vocab + first, o->logits_type),
                                   min_i64(split_size, o->vocab - first), o->logits_type,
                                   o->targets[r] - o->splits.first - first);
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
static void cross_entropy(Device *d, const CrossEntropyArgs *o) {
    LossRecord own[SPLITS_MAX];
    int64_t split_size = o->splits.split_size ? o->splits.split_size : o->vocab,
            step = o->splits.records ? o->rows : 1;
    int count = o->splits.records ? o->splits.count : (int)splits_of(o->vocab, split_size);
    for (int64_t r = 0; r < o->rows; r++) {
        const void *x = tensor_at(o->logits, r * o->vocab, o->logits_type);
        void *dx = o->dlogits ? tensor_to(o->dlogits, r * o->vocab, o->grad_type) : NULL;
        int64_t target = o->targets[r];
        o->loss[r] = 0;
        if (o->z_loss) o->z_loss[r] = 0;
        if (target < 0) {
            for (int64_t i = 0; dx && i < o->vocab; i++) tensor_set(dx, i, o->grad_type, 0);
            continue;
        }
        const LossRecord *records = o->splits.records ? o->splits.records + r : own;
        if (!o->splits.records)
            loss_records(d,
                         &(LossRecordsArgs){1, o->vocab, x, o->logits_type, o->targets + r, o->splits, own});
        float max = -HUGE_VALF;
        for (int i = 0; i < count; i++) max = fmaxf(max, records[i * step].max);
        double sum = tree_of_sums(records, step, count, max);
        double whole = (double)max + log(sum), share = 1 + 2 * (double)o->z * whole;
        o->loss[r] = (float)(whole - (double)records[target / split_size * step].target);
        if (o->z_loss) o->z_loss[r] = (float)((double)o->z * whole * whole);
        for (int64_t i = 0; dx && i < o->vocab; i++) {
            double l = (double)tensor_get(x, i, o->logits_type), p = exp(l - (double)max) / sum;
            double slope = o->cap > 0 ? 1 - l / (double)o->cap * (l / (double)o->cap) : 1;
            double onehot = o->splits.first + i == target ? 1 : 0;
            tensor_set(dx, i, o->grad_type, (float)((p * share - onehot) * (double)*o->scale * slope));
        }
    }
}

/* Non-finite losses cannot be part of an exact sum, so they are counted instead. */
static void loss_sum(Device *d, const LossSumArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) {
        o->into->nonfinite += !isfinite(o->losses[i]);
        exact_add(&o->into->sum, (double)o->losses[i]);
    }
}

/* Sets state `which` (0 or 1) of element i. The first state uses the lower half of the element's random word,
 * the second the upper (StateStore). So one word serves both, and they round independently. */
static void set_state(const StateStore *s, uint64_t step, void *state, int64_t i, int which, float value) {
    if (s->type == DTYPE_F32)
        ((float *)state)[i] = value;
    else
        ((uint16_t *)state)[i] = bf16_round_by(value, state_word(s, step, i) >> 16 * which & 0xffff);
}

/* In fp32 and in the order of the formulas. The states are part of a checkpoint; other implementations may
 * round differently from this. */
static void adamw(Device *d, const AdamWArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) {
        float g = o->grad[i] * o->step->grad_scale;
        float mean = o->constants.beta1 * tensor_get(o->m, i, o->s.type) + (1 - o->constants.beta1) * g;
        float square = o->constants.beta2 * tensor_get(o->v, i, o->s.type) + (1 - o->constants.beta2) * g * g;
        float move = mean / o->step->correction1 / (sqrtf(square / o->step->correction2) + o->constants.eps);
        o->param[i] -= o->step->lr * o->constants.weight_decay * o->param[i] + o->step->lr * move;
        set_state(&o->s, o->step->number, o->m, i, 0, mean);
        set_state(&o->s, o->step->number, o->v, i, 1, square);
        if (o->copy) o->copy[i] = bf16_round(o->param[i]);
    }
}

/* In PyTorch's order: weight decay is added to the gradient, so it enters the momentum. */
static void sgd(Device *d, const SgdArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) {
        float g = o->grad[i] * o->step->grad_scale + o->constants.weight_decay * o->param[i], move = g;
        if (o->momentum) {
            float b = o->constants.momentum * tensor_get(o->momentum, i, o->s.type) + g;
            set_state(&o->s, o->step->number, o->momentum, i, 0, b);
            move = o->constants.nesterov ? g + o->constants.momentum * b : b;
        }
        o->param[i] -= o->step->lr * move;
        if (o->copy) o->copy[i] = bf16_round(o->param[i]);
    }
}

/* Momentum as in SGD. The result is normalised to length 1 next, so neither a factor 1 - momentum nor the
 * clip coefficient of a single step would change the step's length. */
static void muon_momentum(Device *d, const MuonMomentumArgs *o) {
    float *x = o->x;
    (void)d;
    for (int64_t r = 0; r < o->shape.rows; r++)
        for (int64_t i = r * o->shape.row; i < r * o->shape.row + o->shape.cols; i++) {
            float g = o->grad[i] * o->step->grad_scale,
                  b = o->constants.momentum * tensor_get(o->momentum, i, o->s.type) + g;
            set_state(&o->s, o->step->number, o->momentum, i, 0, b);
            *x++ = o->constants.nesterov ? g + o->constants.momentum * b : b;
        }
}

static void muon_normalise(Device *d, const MuonNormaliseArgs *o) {
    float factor = muon_factor(o->squares, o->slack);
    (void)d;
    for (int64_t i = 0; i < o->n; i++) o->x[i] *= factor;
}

static void newton_schulz(Device *d, const NewtonSchulzArgs *o) {
    (void)d;
    for (int64_t r = 0; r < o->m; r++)
        for (int64_t i = r * o->m; i < (r + 1) * o->m; i++)
            o->square[i] = (i == r * o->m + r ? o->a : 0) + (o->b * o->gram[i] + o->c * o->square[i]);
}

/* Weight decay uses the plain learning rate; the scale applies to the step alone. */
static void muon_apply(Device *d, const MuonApplyArgs *o) {
    const float *x = o->x;
    (void)d;
    for (int64_t r = 0; r < o->shape.rows; r++)
        for (int64_t i = r * o->shape.row; i < r * o->shape.row + o->shape.cols; i++) {
            o->param[i] -= o->step->lr * o->constants.weight_decay * o->param[i] +
                           o->step->lr * o->constants.scale * *x++;
            if (o->copy) o->copy[i] = bf16_round(o->param[i]);
        }
}

static void average(Device *d, const AverageArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) o->mean[i] += o->step->average * (o->param[i] - o->mean[i]);
}

/* ---- gradients ---- */

/* Powers other than 1 and 2 are taken of |g| / unit: |g|^8 of a gradient of 1e5 overflows a float, and with
 * the largest |g| as the unit every power is at most 1. */
static void grad_stats(Device *d, const GradStatsArgs *o) {
    (void)d;
    *o->out = (GradStats){.first_nonfinite = -1};
    for (int64_t i = 0; i < o->n; i++) {
        double x = fabs((double)o->g[i]), power = isinf(o->p) ? 0
                                                  : o->p == 1 ? x
                                                  : o->p == 2 ? x * x
                                                              : pow(x / *o->unit, o->p);
        if (!isfinite(x) || !isfinite(power)) {
            if (o->out->nonfinite++ == 0) o->out->first_nonfinite = i;
            continue;
        }
        if (x > o->out->max) o->out->max = x;
        exact_add(&o->out->sum, power);
    }
    exact_normalise(&o->out->sum);
}

/* ldexp is exact, since a double has space for a float's digits at any power of two. So llrint does the only
 * rounding, to nearest even. NaN exceeds every limit. A refused element still clears acc if `set`. */
static void fixed_add(Device *d, const FixedAddArgs *o) {
    (void)d;
    CHECK(o->limit <= fixed_limit(1));
    for (int64_t i = 0; i < o->n; i++) {
        bool good = fabs((double)o->g[i]) <= o->limit;
        if (!good && o->refused->count++ == 0) o->refused->first = i;
        o->acc[i] = (o->set ? 0 : o->acc[i]) + (good ? llrint(ldexp((double)o->g[i], FIXED_SHIFT)) : 0);
    }
}

/* (float)acc rounds once. The power of two after it is exact, since no result is below 2^-50. */
static void fixed_to_float(Device *d, const FixedToFloatArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) o->out[i] = ldexpf((float)o->acc[i], -FIXED_SHIFT);
}

static void count_nonfinite(Device *d, const CountNonfiniteArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) *o->count += !isfinite(tensor_get(o->in, i, o->type));
}

/* ---- memory ---- */
static void cast(Device *d, const CastArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) tensor_set(o->out, i, o->out_type, tensor_get(o->in, i, o->in_type));
}

/* With 0 bytes the address may be NULL, which memset and memcpy do not allow. */
static void zero(Device *d, const ZeroArgs *o) {
    (void)d;
    if (o->bytes) memset(o->p, 0, o->bytes);
}

/* A number depends only on its element's index, so a shard gets the same numbers as the tensor. */
static void init_normal(Device *d, const InitNormalArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++)
        o->out[i] = (float)(o->mean + o->std * rng_normal(o->key, o->first + (uint64_t)i, o->lo, o->hi));
}

static void fill(Device *d, const FillArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->n; i++) o->out[i] = o->value;
}

static void copy(Device *d, const CopyArgs *o) {
    (void)d;
    if (o->bytes) memcpy(o->to, o->from, o->bytes);
}

static void copy_rows(Device *d, const CopyRowsArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->rows && o->bytes; i++)
        memcpy((char *)o->to + (size_t)i * o->to_stride, (const char *)o->from + (size_t)i * o->from_stride,
               o->bytes);
}

/* Tensor memory of a CPU is host memory: both transfers are copies that end before the call returns. */
static void upload(Device *d, const UploadArgs *o) {
    (void)d;
    if (o->bytes) memcpy(o->tensor, o->host, o->bytes);
}

static void download(Device *d, const DownloadArgs *o) {
    (void)d;
    if (o->bytes) memcpy(o->host, o->tensor, o->bytes);
}

/* All sums are in registers, so the reference needs no scratch. */
size_t reference_scratch_bytes(const Device *d, const DeviceNeeds *needs) {
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
                 .count_nonfinite = count_nonfinite,
                 .cast = cast,
                 .zero = zero,
                 .init_normal = init_normal,
                 .fill = fill,
                 .copy = copy,
                 .copy_rows = copy_rows,
                 .upload = upload,
                 .download = download,
                 .sum_partials = sum_partials,
                 .sum_partials_i64 = sum_partials_i64};
    reference_fill_attention(ops);
    reference_fill_scans(ops);
    reference_fill_mamba(ops);
    reference_fill_experts(ops);
    reference_fill_latent(ops);
}
