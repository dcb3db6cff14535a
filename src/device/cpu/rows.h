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

INLINE void rms_forward_typed(int64_t rows, int64_t hidden, float eps, const void *a, const void *b,
                              const float *w, void *sum, void *y, float *rstd, const Multiplier by, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *x = tensor_at(a, r * hidden, c), *x2 = b ? tensor_at(b, r * hidden, c) : NULL;
        void *kept = sum ? tensor_to(sum, r * hidden, c) : NULL;
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
        rstd[r] = 1 / __builtin_sqrtf(vec_sum(squares) / (float)hidden + eps);
        if (!y) continue;
        if (kept) x = kept;
        void *to = tensor_to(y, r * hidden, c);
        EACH_VECTOR(i, left, hidden)
        put(to, i, left, c, get(x, i, left, c) * rstd[r] * norm_weight(w, i, left, by));
    }
}

/* Sum of x dy w over one row. */
INLINE float rms_products(int64_t n, const void *x, const float *w, const void *dy, const Multiplier by,
                          Dtype c) {
    Vec dot = {0};
    EACH_VECTOR(i, left, n)
    dot += get(x, i, left, c) * get(dy, i, left, c) * norm_weight(w, i, left, by);
    return vec_sum(dot);
}

/* Backward of one row, given the mean of g n. Multiply-adds are explicit here, not left to contraction: that
 * depends on the branches around an expression, so the last vector of a row could get other bits than those
 * before it, and the shards of a row end at different elements. */
INLINE void rms_backward_row(int64_t n, const void *x, const float *w, float scale, float mean,
                             const void *dy, void *dx, bool add_to, float *dw, const Multiplier by, Dtype c) {
    EACH_VECTOR(i, left, n) {
        Vec normed = get(x, i, left, c) * scale, g = get(dy, i, left, c);
        if (dw) put(dw, i, left, DTYPE_F32, vec_multiply_add(get(dw, i, left, DTYPE_F32), g, normed));
        Vec v = vec_multiply_add(-(normed * mean), g, norm_weight(w, i, left, by)) * scale;
        if (add_to) v += get(dx, i, left, c);
        put(dx, i, left, c, v);
    }
}

/* With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)); dw = sum dy n. */
INLINE void rms_backward_typed(int64_t rows, int64_t hidden, const void *x, const float *w, const float *rstd,
                               const void *dy, void *dx, bool add_to, float *dw, const Multiplier by,
                               Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *xr = tensor_at(x, r * hidden, c), *dyr = tensor_at(dy, r * hidden, c);
        float mean = rms_products(hidden, xr, w, dyr, by, c) * rstd[r] / (float)hidden;
        rms_backward_row(hidden, xr, w, rstd[r], mean, dyr, tensor_to(dx, r * hidden, c), add_to, dw, by, c);
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
INLINE void layer_forward_typed(int64_t rows, int64_t hidden, float eps, const void *a, const void *b,
                                const float *w, const float *bias, void *sum, void *y, float *rstd, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *x = tensor_at(a, r * hidden, c);
        if (sum) {
            void *kept = tensor_to(sum, r * hidden, c);
            EACH_VECTOR(i, left, hidden) {
                Vec v = get(x, i, left, c);
                put(kept, i, left, c, b ? v + get(b, r * hidden + i, left, c) : v);
            }
            x = kept;
        }
        float mean = row_mean(x, hidden, c);
        Vec squares = {0};
        EACH_VECTOR(i, left, hidden) {
            Vec v = lanes_or(get(x, i, left, c) - mean, left, 0);
            squares += v * v;
        }
        rstd[r] = 1 / __builtin_sqrtf(vec_sum(squares) / (float)hidden + eps);
        void *to = y ? tensor_to(y, r * hidden, c) : NULL;
        for (int64_t i = 0, left = y ? hidden : 0; left > 0; i += VLEN, left -= VLEN) {
            Vec n = (get(x, i, left, c) - mean) * rstd[r] * get(w, i, left, DTYPE_F32);
            put(to, i, left, c, n + get(bias, i, left, DTYPE_F32));
        }
    }
}

/* With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)); dw = sum dy n. */
INLINE void layer_backward_typed(int64_t rows, int64_t hidden, const void *x, const float *w,
                                 const float *rstd, const void *dy, void *dx, bool add_to, float *dw,
                                 Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *xr = tensor_at(x, r * hidden, c), *dyr = tensor_at(dy, r * hidden, c);
        void *dxr = tensor_to(dx, r * hidden, c);
        float scale = rstd[r], mean = row_mean(xr, hidden, c);
        Vec dot = {0}, total = {0};
        EACH_VECTOR(i, left, hidden) {
            Vec g = get(dyr, i, left, c) * get(w, i, left, DTYPE_F32);
            dot += g * (get(xr, i, left, c) - mean); /* g is 0 in lanes past the end */
            total += g;
        }
        float along = vec_sum(dot) * scale / (float)hidden, middle = vec_sum(total) / (float)hidden;
        EACH_VECTOR(i, left, hidden) {
            Vec n = (get(xr, i, left, c) - mean) * scale, g = get(dyr, i, left, c);
            if (dw) put(dw, i, left, DTYPE_F32, get(dw, i, left, DTYPE_F32) + g * n);
            Vec v = (g * get(w, i, left, DTYPE_F32) - middle - n * along) * scale;
            if (add_to) v += get(dxr, i, left, c);
            put(dxr, i, left, c, v);
        }
    }
}

static void norm_forward(const NormForwardArgs *o) {
    switch (o->kind) {
    case NORM_RMS:
        BY_DTYPE(o->c, rms_forward_typed, o->tokens, o->hidden, o->eps, o->a, o->b, o->w, o->sum, o->y,
                 o->rstd, BY_WEIGHT);
        break;
    case NORM_RMS_PLUS_ONE:
        BY_DTYPE(o->c, rms_forward_typed, o->tokens, o->hidden, o->eps, o->a, o->b, o->w, o->sum, o->y,
                 o->rstd, BY_WEIGHT_PLUS_ONE);
        break;
    case NORM_LAYER:
        BY_DTYPE(o->c, layer_forward_typed, o->tokens, o->hidden, o->eps, o->a, o->b, o->w, o->bias, o->sum,
                 o->y, o->rstd);
        break;
    }
}
static void norm_backward(const NormBackwardArgs *o) {
    switch (o->kind) {
    case NORM_RMS:
        BY_DTYPE(o->c, rms_backward_typed, o->tokens, o->hidden, o->x, o->w, o->rstd, o->dy, o->dx, o->add,
                 o->dw, BY_WEIGHT);
        break;
    case NORM_RMS_PLUS_ONE:
        BY_DTYPE(o->c, rms_backward_typed, o->tokens, o->hidden, o->x, o->w, o->rstd, o->dy, o->dx, o->add,
                 o->dw, BY_WEIGHT_PLUS_ONE);
        break;
    case NORM_LAYER:
        BY_DTYPE(o->c, layer_backward_typed, o->tokens, o->hidden, o->x, o->w, o->rstd, o->dy, o->dx, o->add,
                 o->dw);
        break;
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

/* The rows of a token's queries, or of its keys: `groups` of n numbers, one after the other. Backward
 * recomputes their 1 / rms, which is cheaper than storing it. */
typedef struct QkToken {
    const QkRows *rows;
    int64_t token, groups, n;
    bool keys;
} QkToken;

INLINE float row_rstd(const QkToken *t, const void *x, float eps, Dtype c) {
    if (t->rows->splits == 0) return qk_rstd((double)squares_of(x, t->n, c), t->n, eps);
    return qk_rstd(qk_row_sum(t->rows, t->rows->squares, t->token, t->keys), qk_row_length(t->rows, t->keys),
                   eps);
}

INLINE void qk_forward_rows(const QkToken *t, float eps, const void *raw, const float *w, void *out,
                            const Multiplier by, Dtype c) {
    for (int64_t g = 0; g < t->groups; g++) {
        const void *x = tensor_at(raw, g * t->n, c);
        void *y = tensor_to(out, g * t->n, c);
        float rstd = row_rstd(t, x, eps, c);
        EACH_VECTOR(i, left, t->n)
        put(y, i, left, c, get(x, i, left, c) * rstd * norm_weight(w, i, left, by));
    }
}

INLINE QkToken token_rows(AttentionShape s, const QkRows *rows, int64_t token, bool keys) {
    int64_t heads = keys ? s.kv_heads : s.heads, groups = rows->flat ? 1 : heads;
    return (QkToken){rows, token, groups, heads * s.head_dim / groups, keys};
}

INLINE void qk_norm_forward_typed(AttentionShape s, QkRows rows, float eps, const void *raw, const float *wq,
                                  const float *wk, void *out, const Multiplier by, Dtype c) {
    int64_t q = (int64_t)s.heads * s.head_dim, k = (int64_t)s.kv_heads * s.head_dim, row = q + 2 * k;
    for (int64_t t = 0; t < s.tokens; t++) {
        const void *from = tensor_at(raw, t * row, c);
        void *to = tensor_to(out, t * row, c);
        QkToken queries = token_rows(s, &rows, t, false), keys = token_rows(s, &rows, t, true);
        qk_forward_rows(&queries, eps, from, wq, to, by, c);
        qk_forward_rows(&keys, eps, tensor_at(from, q, c), wk, tensor_to(to, q, c), by, c);
        memcpy(tensor_to(to, q + k, c), tensor_at(from, q + k, c), (size_t)k * dtype_bytes(c));
    }
}

/* For flat rows with splits, the weights are already in the splits' sums (qk_norm_sums). */
INLINE float row_mean_product(const QkToken *t, const void *x, const float *w, const void *dy, float rstd,
                              const Multiplier by, Dtype c) {
    if (t->rows->splits == 0) return rms_products(t->n, x, w, dy, by, c) * rstd / (float)t->n;
    return (float)qk_row_sum(t->rows, t->rows->products, t->token, t->keys) * rstd /
           (float)qk_row_length(t->rows, t->keys);
}

INLINE void qk_backward_rows(const QkToken *t, float eps, const void *raw, const float *w, void *grad,
                             float *dw, int64_t splits, const Multiplier by, Dtype c) {
    for (int64_t g = 0; g < t->groups; g++) {
        const void *x = tensor_at(raw, g * t->n, c);
        void *dx = tensor_to(grad, g * t->n, c);
        float rstd = row_rstd(t, x, eps, c), mean = row_mean_product(t, x, w, dx, rstd, by, c);
        rms_backward_row(t->n, x, w, rstd, mean, dx, dx, false,
                         by == BY_ONE ? NULL : dw + g * splits / t->groups * t->n, by, c);
    }
}

INLINE void qk_norm_backward_typed(AttentionShape s, QkRows rows, float eps, const void *raw, const float *wq,
                                   const float *wk, void *dqkv, float *dwq, float *dwk, int splits,
                                   const Multiplier by, Dtype c) {
    int64_t q = (int64_t)s.heads * s.head_dim, k = (int64_t)s.kv_heads * s.head_dim, row = q + 2 * k;
    for (int64_t t = 0; t < s.tokens; t++) {
        const void *from = tensor_at(raw, t * row, c);
        void *grad = tensor_to(dqkv, t * row, c);
        QkToken queries = token_rows(s, &rows, t, false), keys = token_rows(s, &rows, t, true);
        qk_backward_rows(&queries, eps, from, wq, grad, dwq, splits, by, c);
        qk_backward_rows(&keys, eps, tensor_at(from, q, c), wk, tensor_to(grad, q, c), dwk, splits, by, c);
    }
}

/* Sums over each split of a token's queries, or of its keys. `at`: where the splits begin in the token;
 * `first`: where they begin in the weights. */
INLINE void qk_sums_typed(AttentionShape s, KSplit splits, bool keys, const void *raw, const float *w,
                          const void *dqkv, float *sums, int64_t step, const Multiplier by, Dtype c) {
    int64_t q = (int64_t)s.heads * s.head_dim, row = q + 2 * (int64_t)s.kv_heads * s.head_dim,
            first = splits.run[keys].skip, at = first + (keys ? q : 0), n = splits.run[keys].split_size,
            count = splits_of(splits.run[keys].length, n);
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = 0; i < count; i++) {
            int64_t here = t * row + at + i * n;
            const void *x = tensor_at(raw, here, c);
            sums[2 * (i * step + t) + keys] =
                dqkv ? rms_products(n, x, w + first + i * n, tensor_at(dqkv, here, c), by, c)
                     : squares_of(x, n, c);
        }
}

static void qk_norm_forward(const QkNormForwardArgs *o) {
    if (!o->wq)
        BY_DTYPE(o->c, qk_norm_forward_typed, o->s, o->rows, o->eps, o->raw, NULL, NULL, o->out, BY_ONE);
    else if (o->kind == NORM_RMS)
        BY_DTYPE(o->c, qk_norm_forward_typed, o->s, o->rows, o->eps, o->raw, o->wq, o->wk, o->out, BY_WEIGHT);
    else
        BY_DTYPE(o->c, qk_norm_forward_typed, o->s, o->rows, o->eps, o->raw, o->wq, o->wk, o->out,
                 BY_WEIGHT_PLUS_ONE);
}
static void qk_norm_backward(const QkNormBackwardArgs *o) {
    if (!o->wq)
        BY_DTYPE(o->c, qk_norm_backward_typed, o->s, o->rows, o->eps, o->raw, NULL, NULL, o->dqkv, NULL, NULL,
                 o->splits, BY_ONE);
    else if (o->kind == NORM_RMS)
        BY_DTYPE(o->c, qk_norm_backward_typed, o->s, o->rows, o->eps, o->raw, o->wq, o->wk, o->dqkv, o->dwq,
                 o->dwk, o->splits, BY_WEIGHT);
    else
        BY_DTYPE(o->c, qk_norm_backward_typed, o->s, o->rows, o->eps, o->raw, o->wq, o->wk, o->dqkv, o->dwq,
                 o->dwk, o->splits, BY_WEIGHT_PLUS_ONE);
}
static void qk_norm_sums(const QkNormSumsArgs *o, int64_t step) {
    for (int keys = 0; keys < 2; keys++) {
        const float *w = keys ? o->wk : o->wq;
        if (o->kind == NORM_RMS)
            BY_DTYPE(o->c, qk_sums_typed, o->s, o->splits, keys, o->raw, w, o->dqkv, o->sums, step,
                     BY_WEIGHT);
        else
            BY_DTYPE(o->c, qk_sums_typed, o->s, o->splits, keys, o->raw, w, o->dqkv, o->sums, step,
                     BY_WEIGHT_PLUS_ONE);
    }
}

/* ---- RoPE ---- */

INLINE void rope_typed(AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                       bool inverse, Dtype c) {
    int64_t dim = s.head_dim, turned = rotary_dim(s), half = turned / 2,
            row = (s.heads + 2 * s.kv_heads) * dim;
    float sign = inverse ? -1.0f : 1.0f;
    for (int64_t t = 0; t < s.tokens; t++) {
        const float *cosine = cos_sin + positions[t] * turned, *sine = cosine + half;
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

INLINE void row_gradient(const void *x, int64_t n, Dtype t, float max, float factor, float cap, void *dx,
                         Dtype grad_type) {
    EACH_VECTOR(i, left, n) {
        Vec l = get(x, i, left, t), part = l / cap, e = vec_exp_bounded(l - max) * factor;
        put(dx, i, left, grad_type, cap > 0 ? e * (1.0f - part * part) : e);
    }
}

INLINE void loss_gradient_typed(int64_t n, const void *x, int64_t target, RowSum of, float scale,
                                double share, float cap, void *dx, Dtype grad_type, Dtype t) {
    bool here = target >= 0 && target < n;
    float factor = (float)((double)scale * share / of.sum), logit = here ? tensor_get(x, target, t) : 0;
    if (grad_type == DTYPE_F32)
        row_gradient(x, n, t, of.max, factor, cap, dx, DTYPE_F32);
    else
        row_gradient(x, n, t, of.max, factor, cap, dx, DTYPE_BF16);
    /* The target's gradient is recomputed, not corrected by subtraction from the stored value, which may be
     * rounded. */
    if (!here) return;
    double part = cap > 0 ? (double)logit / (double)cap : 0;
    double gradient =
        (exp((double)logit - (double)of.max) / of.sum * share - 1) * (double)scale * (1 - part * part);
    tensor_set(dx, target, grad_type, (float)gradient);
}
static void loss_gradient(const CrossEntropyArgs *o, int64_t row, RowSum of, double share) {
    const void *x = tensor_at(o->logits, row * o->vocab, o->logits_type);
    void *dx = tensor_to(o->dlogits, row * o->vocab, o->grad_type);
    BY_DTYPE(o->logits_type, loss_gradient_typed, o->vocab, x, o->targets[row] - o->splits.first, of,
             *o->scale, share, o->cap, dx, o->grad_type);
}
