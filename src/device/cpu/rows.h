/* Kernels that reduce along a row: norms, cross-entropy; and RoPE, which mixes its two halves. Part of
 * kernels_all.h. */

/* ---- norms ---- */

/* The factor of a normed number; a compile-time constant of each kernel. */
typedef enum Multiplier { BY_WEIGHT, BY_WEIGHT_PLUS_ONE, BY_ONE } Multiplier;
INLINE Vec norm_weight(const float *w, int64_t i, int64_t left, const Multiplier by) {
    if (by == BY_ONE) return vec_set(1);
    Vec v = get(w, i, left, DTYPE_F32);
    return by == BY_WEIGHT_PLUS_ONE ? v + 1.0f : v;
}

INLINE void rms_forward_typed(const NormForwardArgs *o, const Multiplier by, Dtype c) {
    const int64_t hidden = o->hidden;
    const float *w = o->w;
    for (int64_t r = 0; r < o->tokens; r++) {
        const void *x = tensor_at(o->a, r * hidden, c), *x2 = o->b ? tensor_at(o->b, r * hidden, c) : NULL;
        void *kept = o->sum ? tensor_to(o->sum, r * hidden, c) : NULL;
        Vec squares = {0};
        EACH_VECTOR(i, left, hidden) {
            Vec v = get(x, i, left, c);
            if (x2) v += get(x2, i, left, c);
            if (kept) {
                put(kept, i, left, c, v);
                v = get(kept, i, left, c); /* as rounded, because backward reads that */
            }
            squares += v * v;
        }
        const float rstd = 1 / __builtin_sqrtf(vec_sum(squares) / (float)hidden + o->eps);
        o->rstd[r] = rstd;
        if (!o->y) continue;
        if (kept) x = kept;
        void *to = tensor_to(o->y, r * hidden, c);
        EACH_VECTOR(i, left, hidden)
        put(to, i, left, c, get(x, i, left, c) * rstd * norm_weight(w, i, left, by));
    }
}

/* Operands and results of an RMS norm's backward pass on a row of n elements. */
typedef struct RmsRow {
    int64_t n;
    const void *x, *dy;
    const float *w;
    void *dx;  /* may be dy */
    bool add;  /* to dx */
    float *dw; /* or NULL */
} RmsRow;

/* Sum of x dy w over one row. */
INLINE float rms_products(RmsRow r, const Multiplier by, Dtype c) {
    Vec dot = {0};
    EACH_VECTOR(i, left, r.n)
    dot += get(r.x, i, left, c) * get(r.dy, i, left, c) * norm_weight(r.w, i, left, by);
    return vec_sum(dot);
}

/* Backward of one row, given the mean of g n. Multiply-adds are explicit here, not left to contraction: that
 * depends on the branches around an expression, so the last vector of a row could get other bits than those
 * before it, and the shards of a row end at different elements. */
INLINE void rms_backward_row(RmsRow r, float rstd, float mean, const Multiplier by, Dtype c) {
    EACH_VECTOR(i, left, r.n) {
        Vec normed = get(r.x, i, left, c) * rstd, g = get(r.dy, i, left, c);
        if (r.dw) put(r.dw, i, left, DTYPE_F32, vec_multiply_add(get(r.dw, i, left, DTYPE_F32), g, normed));
        Vec v = vec_multiply_add(-(normed * mean), g, norm_weight(r.w, i, left, by)) * rstd;
        if (r.add) v += get(r.dx, i, left, c);
        put(r.dx, i, left, c, v);
    }
}

/* With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)); dw = sum dy n. */
INLINE void rms_backward_typed(const NormBackwardArgs *o, const Multiplier by, Dtype c) {
    for (int64_t r = 0; r < o->tokens; r++) {
        const int64_t at = r * o->hidden;
        const RmsRow row = {o->hidden, tensor_at(o->x, at, c),  tensor_at(o->dy, at, c),
                            o->w,      tensor_to(o->dx, at, c), o->add,
                            o->dw};
        const float rstd = o->rstd[r], mean = rms_products(row, by, c) * rstd / (float)o->hidden;
        rms_backward_row(row, rstd, mean, by, c);
    }
}

/* v, with `none` in the lanes past the end of the row. */
INLINE Vec lanes_or(Vec v, int64_t left, float none) {
    for (int64_t lane = left < VLEN ? left : VLEN; lane < VLEN; lane++) v[lane] = none;
    return v;
}

INLINE float row_mean(const void *x, int64_t n, Dtype c) {
    Vec sum = {0};
    EACH_VECTOR(i, left, n) sum += get(x, i, left, c);
    return vec_sum(sum) / (float)n;
}

/* Mean and variance in two passes: the mean of squares minus the square of the mean would cancel. */
INLINE void layer_forward_typed(const NormForwardArgs *o, Dtype c) {
    const int64_t hidden = o->hidden;
    const float *w = o->w, *bias = o->bias;
    for (int64_t r = 0; r < o->tokens; r++) {
        const void *x = tensor_at(o->a, r * hidden, c), *x2 = o->b;
        if (o->sum) {
            void *kept = tensor_to(o->sum, r * hidden, c);
            EACH_VECTOR(i, left, hidden) {
                Vec v = get(x, i, left, c);
                put(kept, i, left, c, x2 ? v + get(x2, r * hidden + i, left, c) : v);
            }
            x = kept;
        }
        float mean = row_mean(x, hidden, c);
        Vec squares = {0};
        EACH_VECTOR(i, left, hidden) {
            Vec v = lanes_or(get(x, i, left, c) - mean, left, 0);
            squares += v * v;
        }
        const float rstd = 1 / __builtin_sqrtf(vec_sum(squares) / (float)hidden + o->eps);
        o->rstd[r] = rstd;
        if (!o->y) continue;
        void *to = tensor_to(o->y, r * hidden, c);
        EACH_VECTOR(i, left, hidden) {
            Vec n = (get(x, i, left, c) - mean) * rstd * get(w, i, left, DTYPE_F32);
            put(to, i, left, c, n + get(bias, i, left, DTYPE_F32));
        }
    }
}

/* With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)); dw = sum dy n. */
INLINE void layer_backward_typed(const NormBackwardArgs *o, Dtype c) {
    const int64_t hidden = o->hidden;
    const float *w = o->w;
    float *dw = o->dw;
    const bool add_to = o->add;
    for (int64_t r = 0; r < o->tokens; r++) {
        const void *x = tensor_at(o->x, r * hidden, c), *dy = tensor_at(o->dy, r * hidden, c);
        void *dx = tensor_to(o->dx, r * hidden, c);
        float rstd = o->rstd[r], mean = row_mean(x, hidden, c);
        Vec dot = {0}, total = {0};
        EACH_VECTOR(i, left, hidden) {
            Vec g = get(dy, i, left, c) * get(w, i, left, DTYPE_F32);
            dot += g * (get(x, i, left, c) - mean); /* g is 0 in lanes past the end */
            total += g;
        }
        float along = vec_sum(dot) * rstd / (float)hidden, middle = vec_sum(total) / (float)hidden;
        EACH_VECTOR(i, left, hidden) {
            Vec n = (get(x, i, left, c) - mean) * rstd, g = get(dy, i, left, c);
            if (dw) put(dw, i, left, DTYPE_F32, get(dw, i, left, DTYPE_F32) + g * n);
            Vec v = (g * get(w, i, left, DTYPE_F32) - middle - n * along) * rstd;
            if (add_to) v += get(dx, i, left, c);
            put(dx, i, left, c, v);
        }
    }
}

static void norm_forward(const NormForwardArgs *o) {
    switch (o->kind) {
    case NORM_RMS: BY_DTYPE(o->c, rms_forward_typed, o, BY_WEIGHT); break;
    case NORM_RMS_PLUS_ONE: BY_DTYPE(o->c, rms_forward_typed, o, BY_WEIGHT_PLUS_ONE); break;
    case NORM_LAYER: BY_DTYPE(o->c, layer_forward_typed, o); break;
    }
}
static void norm_backward(const NormBackwardArgs *o) {
    switch (o->kind) {
    case NORM_RMS: BY_DTYPE(o->c, rms_backward_typed, o, BY_WEIGHT); break;
    case NORM_RMS_PLUS_ONE: BY_DTYPE(o->c, rms_backward_typed, o, BY_WEIGHT_PLUS_ONE); break;
    case NORM_LAYER: BY_DTYPE(o->c, layer_backward_typed, o); break;
    }
}

/* ---- norms of queries and keys ---- */

INLINE float squares_of(const void *x, int64_t n, Dtype c) {
    Vec squares = {0};
    EACH_VECTOR(i, left, n) {
        Vec v = get(x, i, left, c);
        squares += v * v;
    }
    return vec_sum(squares);
}

/* Computed in double and rounded once: its error scales the whole row, and what follows depends on
 * differences of scores. */
INLINE float qk_rstd(double squares, int64_t n, float eps) {
    return (float)(1 / __builtin_sqrt(squares / (double)n + (double)eps));
}

/* The rows of a token's queries, or of its keys: `groups` of n numbers, one after the other, from element
 * `at` of the tensor on. Backward recomputes their 1 / rms, which is cheaper than storing it. */
typedef struct QkToken {
    const QkRows *rows;
    int64_t token, at, groups, n;
    bool keys;
} QkToken;

INLINE QkToken token_rows(AttentionShape s, const QkRows *rows, int64_t token, bool keys) {
    int64_t heads = keys ? s.kv_heads : s.heads, groups = rows->flat ? 1 : heads,
            first = token * (s.heads + 2 * (int64_t)s.kv_heads) + (keys ? s.heads : 0);
    return (QkToken){rows, token, first * s.head_dim, groups, heads * s.head_dim / groups, keys};
}

INLINE float row_rstd(const QkToken *t, const void *x, float eps, Dtype c) {
    if (t->rows->splits == 0) return qk_rstd((double)squares_of(x, t->n, c), t->n, eps);
    return qk_rstd(qk_row_sum(t->rows, t->rows->squares, t->token, t->keys), qk_row_length(t->rows, t->keys),
                   eps);
}

INLINE void qk_forward_rows(const QkNormForwardArgs *o, const QkToken *t, const Multiplier by, Dtype c) {
    const float *w = t->keys ? o->wk : o->wq;
    for (int64_t g = 0; g < t->groups; g++) {
        const void *x = tensor_at(o->raw, t->at + g * t->n, c);
        void *y = tensor_to(o->out, t->at + g * t->n, c);
        float rstd = row_rstd(t, x, o->eps, c);
        EACH_VECTOR(i, left, t->n)
        put(y, i, left, c, get(x, i, left, c) * rstd * norm_weight(w, i, left, by));
    }
}

INLINE void qk_norm_forward_typed(const QkNormForwardArgs o, const Multiplier by, Dtype c) {
    for (int64_t t = 0; t < o.s.tokens; t++) {
        QkToken queries = token_rows(o.s, &o.rows, t, false), keys = token_rows(o.s, &o.rows, t, true);
        qk_forward_rows(&o, &queries, by, c);
        qk_forward_rows(&o, &keys, by, c);
        int64_t k = (int64_t)o.s.kv_heads * o.s.head_dim, values = keys.at + k;
        memcpy(tensor_to(o.out, values, c), tensor_at(o.raw, values, c), (size_t)k * dtype_bytes(c));
    }
}

/* For flat rows with splits, the weights are already in the splits' sums (qk_norm_sums). */
INLINE float row_mean_product(const QkToken *t, RmsRow r, float rstd, const Multiplier by, Dtype c) {
    if (t->rows->splits == 0) return rms_products(r, by, c) * rstd / (float)t->n;
    return (float)qk_row_sum(t->rows, t->rows->products, t->token, t->keys) * rstd /
           (float)qk_row_length(t->rows, t->keys);
}

INLINE void qk_backward_rows(const QkNormBackwardArgs *o, const QkToken *t, const Multiplier by, Dtype c) {
    float *dw = t->keys ? o->dwk : o->dwq;
    for (int64_t g = 0; g < t->groups; g++) {
        void *dx = tensor_to(o->dqkv, t->at + g * t->n, c);
        RmsRow r = {.n = t->n,
                    .x = tensor_at(o->raw, t->at + g * t->n, c),
                    .dy = dx,
                    .w = t->keys ? o->wk : o->wq,
                    .dx = dx,
                    .dw = by == BY_ONE ? NULL : dw + g * o->splits / t->groups * t->n};
        float rstd = row_rstd(t, r.x, o->eps, c);
        rms_backward_row(r, rstd, row_mean_product(t, r, rstd, by, c), by, c);
    }
}

INLINE void qk_norm_backward_typed(const QkNormBackwardArgs o, const Multiplier by, Dtype c) {
    for (int64_t t = 0; t < o.s.tokens; t++) {
        QkToken queries = token_rows(o.s, &o.rows, t, false), keys = token_rows(o.s, &o.rows, t, true);
        qk_backward_rows(&o, &queries, by, c);
        qk_backward_rows(&o, &keys, by, c);
    }
}

/* Sums over each split of a token's queries, or of its keys. `at`: where the splits begin in the token;
 * `first`: where they begin in the weights. */
INLINE void qk_sums_typed(const QkNormSumsArgs o, int64_t step, bool keys, const Multiplier by, Dtype c) {
    int64_t q = (int64_t)o.s.heads * o.s.head_dim, row = q + 2 * (int64_t)o.s.kv_heads * o.s.head_dim,
            first = o.splits.run[keys].skip, at = first + (keys ? q : 0), n = o.splits.run[keys].split_size,
            count = splits_of(o.splits.run[keys].length, n);
    const float *w = (keys ? o.wk : o.wq) + first;
    for (int64_t t = 0; t < o.s.tokens; t++)
        for (int64_t i = 0; i < count; i++) {
            int64_t here = t * row + at + i * n;
            RmsRow r = {.n = n, .x = tensor_at(o.raw, here, c), .w = w + i * n};
            if (o.dqkv) r.dy = tensor_at(o.dqkv, here, c);
            o.sums[2 * (i * step + t) + keys] = r.dy ? rms_products(r, by, c) : squares_of(r.x, n, c);
        }
}

/* Calls body(..., multiplier, dtype) with constants. The weights of heads may be missing. */
#define BY_MULTIPLIER(o, body, ...)                                  \
    do {                                                             \
        if (!(o)->wq)                                                \
            BY_DTYPE((o)->c, body, __VA_ARGS__, BY_ONE);             \
        else if ((o)->kind == NORM_RMS)                              \
            BY_DTYPE((o)->c, body, __VA_ARGS__, BY_WEIGHT);          \
        else                                                         \
            BY_DTYPE((o)->c, body, __VA_ARGS__, BY_WEIGHT_PLUS_ONE); \
    } while (0)

static void qk_norm_forward(const QkNormForwardArgs *o) { BY_MULTIPLIER(o, qk_norm_forward_typed, *o); }
static void qk_norm_backward(const QkNormBackwardArgs *o) { BY_MULTIPLIER(o, qk_norm_backward_typed, *o); }
static void qk_norm_sums(const QkNormSumsArgs *o, int64_t step) {
    for (int keys = 0; keys < 2; keys++) BY_MULTIPLIER(o, qk_sums_typed, *o, step, keys);
}

/* ---- RoPE ---- */

INLINE void rope_typed(AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                       bool inverse, Dtype c) {
    int64_t dim = s.head_dim, rotated = rotary_dim(s), half = rotated / 2,
            row = (s.heads + 2 * s.kv_heads) * dim;
    float sign = inverse ? -1.0f : 1.0f;
    for (int64_t t = 0; t < s.tokens; t++) {
        const float *cosine = cos_sin + positions[t] * rotated, *sine = cosine + half;
        for (int64_t head = 0; head < s.heads + s.kv_heads; head++) {
            void *x = tensor_to(qkv, t * row + head * dim, c), *x2 = tensor_to(x, half, c);
            EACH_VECTOR(i, left, half) {
                Vec u = get(x, i, left, c), v = get(x2, i, left, c);
                Vec co = get(cosine, i, left, DTYPE_F32), si = get(sine, i, left, DTYPE_F32) * sign;
                put(x, i, left, c, u * co - v * si);
                put(x2, i, left, c, v * co + u * si);
            }
        }
    }
}
static void rope(AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin, bool inverse,
                 Dtype c) {
    BY_DTYPE(c, rope_typed, s, qkv, positions, cos_sin, inverse);
}

/* ---- cross-entropy ---- */

/* A row is processed in parts that stay in the L1 cache: first the part's maximum, then its sum of
 * exponentials. So the row is read from memory once. */
enum { PART = 4096 };

/* In independent chains, to hide latency. */
INLINE float part_max(const void *x, int64_t first, int64_t n, Dtype t) {
    enum { CHAINS = 4 };
    Vec top[CHAINS];
    int64_t i = first, end = first + n;
    for (int c = 0; c < CHAINS; c++) top[c] = vec_set(-HUGE_VALF);
    for (; i + CHAINS * VLEN <= end; i += CHAINS * VLEN)
        for (int c = 0; c < CHAINS; c++) top[c] = vec_max(get(x, i + c * VLEN, VLEN, t), top[c]);
    for (; i < end; i += VLEN) top[0] = vec_max(lanes_or(get(x, i, end - i, t), end - i, -HUGE_VALF), top[0]);
    return vec_top(vec_max(vec_max(top[0], top[1]), vec_max(top[2], top[3])));
}

INLINE float part_sum(const void *x, int64_t first, int64_t n, float max, Dtype t) {
    Vec sum = {0};
    EACH_VECTOR(i, left, n)
    sum += lanes_or(vec_exp_bounded(get(x, first + i, left, t) - max), left, 0);
    return vec_sum(sum);
}

INLINE LossRecord loss_record_typed(int64_t n, const void *x, int64_t target, Dtype t) {
    LossRecord r = {.max = -HUGE_VALF};
    for (int64_t first = 0; first < n; first += PART) {
        int64_t count = min_i64(PART, n - first);
        float top = part_max(x, first, count, t);
        if (top > r.max) {
            r.sum *= exp((double)(r.max - top));
            r.max = top;
        }
        r.sum += (double)part_sum(x, first, count, r.max, t);
    }
    if (target >= 0 && target < n) r.target = tensor_get(x, target, t);
    return r;
}
static LossRecord loss_record(int64_t n, const void *logits, Dtype logits_type, int64_t target) {
    return logits_type == DTYPE_F32 ? loss_record_typed(n, logits, target, DTYPE_F32)
                                    : loss_record_typed(n, logits, target, DTYPE_BF16);
}

INLINE void row_gradient(const CrossEntropyArgs *o, int64_t row, float max, float factor, Dtype grad_type,
                         Dtype t) {
    const void *x = tensor_at(o->logits, row * o->vocab, t);
    void *dx = tensor_to(o->dlogits, row * o->vocab, grad_type);
    const float cap = o->cap;
    EACH_VECTOR(i, left, o->vocab) {
        Vec l = get(x, i, left, t), part = l / cap, e = vec_exp_bounded(l - max) * factor;
        put(dx, i, left, grad_type, cap > 0 ? e * (1.0f - part * part) : e);
    }
}

INLINE void loss_gradient_typed(const CrossEntropyArgs *o, int64_t row, RowSum of, double share, Dtype t) {
    int64_t target = o->targets[row] - o->splits.first, at = row * o->vocab + target;
    bool here = target >= 0 && target < o->vocab;
    double scale = (double)*o->scale, logit = here ? (double)tensor_get(o->logits, at, t) : 0;
    float factor = (float)(scale * share / of.sum);
    if (o->grad_type == DTYPE_F32)
        row_gradient(o, row, of.max, factor, DTYPE_F32, t);
    else
        row_gradient(o, row, of.max, factor, DTYPE_BF16, t);
    /* The target's gradient is recomputed, not corrected by subtraction from the stored value, which may be
     * rounded. */
    if (!here) return;
    double part = o->cap > 0 ? logit / (double)o->cap : 0;
    double gradient = (exp(logit - (double)of.max) / of.sum * share - 1) * scale * (1 - part * part);
    tensor_set(o->dlogits, at, o->grad_type, (float)gradient);
}
static void loss_gradient(const CrossEntropyArgs *o, int64_t row, RowSum of, double share) {
    BY_DTYPE(o->logits_type, loss_gradient_typed, o, row, of, share);
}
