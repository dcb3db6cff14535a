/* Attention by its formulas, one query or key at a time, with sums in double. For query q of head x, and the
 * keys j = first_key[q] .. q of its group:
 *
 *     s_j = cap(scale q . k_j)      p_j = exp(s_j - lse)      o = sum_j p_j v_j
 *     ds_j = p_j (do . v_j - do . o) cap'
 *     dq = scale sum_j ds_j k_j      dk_j = scale sum_q ds_j q      dv_j = sum_q p_j do
 *
 * with cap(s) = c tanh(s / c) and cap' = 1 - (s_j / c)^2; without a cap they are s and 1. Keys before the
 * window are treated like those before first_key[q].
 *
 * A sink is one more score, which contributes to the sum of exponentials alone.
 *
 * Query heads share keys and values in groups of H / G. Queries are those of a run of tokens: below, q is the
 * token's index among all tokens, and its rows are found by its index in the run. */
#include <math.h>

#include "base/error.h"
#include "device/cpu/cpu.h"

/* Operands are read in their own dtype and multiplied in double, so the only rounding is that of the tensors
 * themselves. */
static double dot(const void *a, const void *b, int64_t n, Dtype c) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)tensor_get(a, i, c) * (double)tensor_get(b, i, c);
    return sum;
}

static double score(AttentionShape s, const void *q, const void *k, Dtype c) {
    double scale = s.scale > 0 ? (double)s.scale : 1 / sqrt((double)s.head_dim), cap = (double)s.cap;
    double plain = scale * dot(q, k, s.head_dim, c);
    return cap > 0 ? cap * tanh(plain / cap) : plain;
}

/* The keys that a query sees, and their values, in rows `row` elements apart. */
typedef struct KeyRows {
    const void *k, *v;
    int64_t row, count;
} KeyRows;

/* One query; returns log sum exp. Scores are computed twice, first for their maximum, since storing them
 * would need memory of the sequence's length. There is at least one key, the query's own. */
static double attend(AttentionShape s, int64_t head, const void *q, KeyRows r, void *out, Dtype c) {
    double max = s.sinks ? (double)s.sinks[head] : -HUGE_VAL, sum = 0, o[HEAD_DIM_MAX] = {0};
    int64_t dim = s.head_dim;
    for (int64_t j = 0; j < r.count; j++) max = fmax(max, score(s, q, tensor_at(r.k, j * r.row, c), c));
    if (s.sinks) sum = exp((double)s.sinks[head] - max);
    for (int64_t j = 0; j < r.count; j++) {
        double p = exp(score(s, q, tensor_at(r.k, j * r.row, c), c) - max);
        sum += p;
        for (int64_t i = 0; i < dim; i++) o[i] += p * (double)tensor_get(r.v, j * r.row + i, c);
    }
    for (int64_t i = 0; i < dim; i++) tensor_set(out, i, c, (float)(o[i] / sum));
    return max + log(sum);
}

static void attention_forward(Device *d, const AttentionForwardArgs *o) {
    (void)d;
    CHECK(o->s.head_dim <= HEAD_DIM_MAX);
    int64_t dim = o->s.head_dim, group = o->s.heads / o->s.kv_heads;
    for (int64_t head = 0; head < o->s.heads; head++) {
        for (int64_t i = 0; i < o->s.tokens; i++) {
            int64_t t = o->r.first + i, first = window_first(o->s, t, o->first_key[t]);
            const void *query = tensor_at(o->q, i * o->r.q_row + head * dim, o->c);
            const void *k = tensor_at(o->kv, first * o->r.kv_row + head / group * dim, o->c);
            const KeyRows seen = {k, tensor_at(k, o->s.kv_heads * dim, o->c), o->r.kv_row, t + 1 - first};
            void *to = tensor_to(o->out, (i * o->s.heads + head) * dim, o->c);
            o->lse[head * o->s.tokens + i] = (float)attend(o->s, head, query, seen, to, o->c);
        }
    }
}

/* As forward, but keys and values are in the cache's rows of G*D, which already include the new tokens. No
 * lse, because there is no backward pass. */
static void attention_decode(Device *d, const AttentionDecodeArgs *o) {
    (void)d;
    CHECK(o->s.head_dim <= HEAD_DIM_MAX);
    int64_t dim = o->s.head_dim, row = (o->s.heads + 2 * o->s.kv_heads) * dim,
            group = o->s.heads / o->s.kv_heads;
    for (int64_t t = 0; t < o->s.tokens; t++) {
        for (int64_t head = 0; head < o->s.heads; head++) {
            int64_t keys = o->s.kv_heads * dim, first = window_first(o->s, o->start + t, 0);
            int64_t at = first * keys + head / group * dim;
            const KeyRows seen = {tensor_at(o->k_cache, at, o->c), tensor_at(o->v_cache, at, o->c), keys,
                                  o->start + t + 1 - first};
            attend(o->s, head, tensor_at(o->qkv, t * row + head * dim, o->c), seen,
                   tensor_to(o->out, (t * o->s.heads + head) * dim, o->c), o->c);
        }
    }
}

/* The two factors in every gradient, for query t of a head and key j. */
typedef struct Pair {
    double p, ds;
} Pair;

typedef struct Backward {
    AttentionShape s;
    AttentionRun r;
    const void *q, *kv, *out, *dout;
    const int32_t *first_key;
    const float *lse;
    Dtype c;
} Backward;

/* Rows of token t, which is a query of the run, and of key j that its head sees. */
static const void *query_of(const Backward *b, int64_t head, int64_t t) {
    return tensor_at(b->q, (t - b->r.first) * b->r.q_row + head * b->s.head_dim, b->c);
}
static const void *key_of(const Backward *b, int64_t head, int64_t j) {
    return tensor_at(b->kv, j * b->r.kv_row + head / (b->s.heads / b->s.kv_heads) * b->s.head_dim, b->c);
}
static int64_t result_of(const Backward *b, int64_t head, int64_t t) {
    return ((t - b->r.first) * b->s.heads + head) * b->s.head_dim;
}

/* The probability follows from the saved lse, without another sum over keys. ds includes the scale, so both
 * gradients computed from it do. */
static Pair pair_of(const Backward *b, int64_t head, int64_t t, int64_t j, double delta) {
    int64_t dim = b->s.head_dim;
    const void *q = query_of(b, head, t), *k = key_of(b, head, j);
    const void *v = tensor_at(k, b->s.kv_heads * dim, b->c),
               *grad = tensor_at(b->dout, result_of(b, head, t), b->c);
    double scale = b->s.scale > 0 ? (double)b->s.scale : 1 / sqrt((double)dim), cap = (double)b->s.cap;
    double x = score(b->s, q, k, b->c), slope = cap > 0 ? 1 - x / cap * (x / cap) : 1;
    double p = exp(x - (double)b->lse[head * b->s.tokens + t - b->r.first]);
    return (Pair){p, p * (dot(grad, v, dim, b->c) - delta) * slope * scale};
}

/* do . o, which equals sum_j p_j (do . v_j): the part of the softmax's gradient that all keys share (Dao,
 * "FlashAttention-2", 2023). */
static double delta_of(const Backward *b, int64_t head, int64_t t) {
    int64_t at = result_of(b, head, t);
    return dot(tensor_at(b->out, at, b->c), tensor_at(b->dout, at, b->c), b->s.head_dim, b->c);
}

static void query_gradient(const Backward *b, int64_t head, int64_t t, int64_t first, void *dq) {
    int64_t dim = b->s.head_dim;
    double sum[HEAD_DIM_MAX] = {0}, delta = delta_of(b, head, t);
    for (int64_t j = first; j <= t; j++) {
        double ds = pair_of(b, head, t, j, delta).ds;
        const void *k = key_of(b, head, j);
        for (int64_t i = 0; i < dim; i++) sum[i] += ds * (double)tensor_get(k, i, b->c);
    }
    for (int64_t i = 0; i < dim; i++) tensor_set(dq, i, b->c, (float)sum[i]);
}

/* Sums over all queries that see key j. First keys never decrease, so the loop ends at the first query that
 * no longer sees it. All heads of the group contribute to their shared key. */
static void key_gradient(const Backward *b, int64_t kv_head, int64_t j, void *dk, void *dv, Dtype type) {
    int64_t dim = b->s.head_dim, group = b->s.heads / b->s.kv_heads, end = b->r.first + b->s.tokens,
            start = j > b->r.first ? j : b->r.first;
    double dk_sum[HEAD_DIM_MAX] = {0}, dv_sum[HEAD_DIM_MAX] = {0};
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t t = start; t < end && window_first(b->s, t, b->first_key[t]) <= j; t++) {
            Pair w = pair_of(b, head, t, j, delta_of(b, head, t));
            const void *q = query_of(b, head, t), *dout = tensor_at(b->dout, result_of(b, head, t), b->c);
            for (int64_t i = 0; i < dim; i++) {
                dk_sum[i] += w.ds * (double)tensor_get(q, i, b->c);
                dv_sum[i] += w.p * (double)tensor_get(dout, i, b->c);
            }
        }
    }
    for (int64_t i = 0; i < dim; i++) tensor_set(dk, i, type, (float)dk_sum[i]);
    for (int64_t i = 0; i < dim; i++) tensor_set(dv, i, type, (float)dv_sum[i]);
}

/* Each element of dq and dkv is one sum that is stored once. So probabilities are recomputed in both passes:
 * more work, but no order of additions to define. */
static void attention_backward(Device *d, const AttentionBackwardArgs *o) {
    (void)d;
    CHECK(o->s.head_dim <= HEAD_DIM_MAX);
    Dtype type = o->r.partial ? DTYPE_F32 : o->c;
    int64_t dim = o->s.head_dim, width = o->s.kv_heads * dim, row = o->r.partial ? 2 * width : o->r.kv_row;
    Backward b = {o->s, o->r, o->q, o->kv, o->out, o->dout, o->first_key, o->lse, o->c};
    for (int64_t i = 0; i < o->s.tokens; i++)
        for (int64_t head = 0; head < o->s.heads; head++)
            query_gradient(&b, head, o->r.first + i,
                           window_first(o->s, o->r.first + i, o->first_key[o->r.first + i]),
                           tensor_to(o->dq, i * o->r.q_row + head * dim, o->c));
    for (int64_t j = 0; j < o->r.keys; j++)
        for (int64_t head = 0; head < o->s.kv_heads; head++) {
            void *dk = tensor_to(o->dkv, j * row + head * dim, type);
            key_gradient(&b, head, j, dk, tensor_to(dk, width, type), type);
        }
}

/* The weight of the sink is exp(sink - lse). It has no value, so the gradient of its score is only the term
 * that the softmax subtracts from all scores alike. */
static void sinks_backward(Device *d, const SinksBackwardArgs *o) {
    (void)d;
    Backward b = {.s = o->s, .out = o->out, .dout = o->dout, .lse = o->lse, .c = o->c};
    for (int64_t head = 0; head < o->s.heads; head++) {
        double sum = 0;
        for (int64_t t = 0; t < o->s.tokens; t++)
            sum += exp((double)o->s.sinks[head] - (double)o->lse[head * o->s.tokens + t]) *
                   delta_of(&b, head, t);
        o->dsinks[head] -= (float)sum;
    }
}

void reference_fill_attention(Ops *ops) {
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->attention_decode = attention_decode;
    ops->sinks_backward = sinks_backward;
}
