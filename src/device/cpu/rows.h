/* Kernels that reduce along a row: RMSNorm, cross-entropy; and RoPE, which mixes its two halves. Part of
 * kernels_all.h. */

/* ---- RMSNorm ---- */

INLINE void rmsnorm_forward_typed(int64_t rows, int64_t hidden, float eps, const void *a, const void *b,
                                  const float *w, void *sum, void *y, float *rstd, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *x = tensor_at(a, r * hidden, c), *x2 = b ? tensor_at(b, r * hidden, c) : NULL;
        void *kept = sum ? tensor_to(sum, r * hidden, c) : NULL;
        Vec squares = {0};
        EACH_VECTOR(i, left, hidden) {
            Vec v = get(x, i, left, c);
            if (x2) v += get(x2, i, left, c);
            if (kept) {
                put(kept, i, left, c, v);
                v = get(kept, i, left, c); /* as rounded: backward sees that */
            }
            squares += v * v;
        }
        rstd[r] = 1 / __builtin_sqrtf(vec_sum(squares) / (float)hidden + eps);
        if (!y) continue;
        if (kept) x = kept;
        void *to = tensor_to(y, r * hidden, c);
        EACH_VECTOR(i, left, hidden)
        put(to, i, left, c, get(x, i, left, c) * rstd[r] * get(w, i, left, DTYPE_F32));
    }
}
static void rmsnorm_forward(int64_t rows, int64_t hidden, float eps, const void *a, const void *b,
                            const float *w, void *sum, void *y, float *rstd, Dtype c) {
    BY_DTYPE(c, rmsnorm_forward_typed, rows, hidden, eps, a, b, w, sum, y, rstd);
}

/* With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)); dw = sum dy n. */
INLINE void rmsnorm_backward_typed(int64_t rows, int64_t hidden, const void *x, const float *w,
                                   const float *rstd, const void *dy, void *dx, bool add_to, float *dw,
                                   Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *xr = tensor_at(x, r * hidden, c), *dyr = tensor_at(dy, r * hidden, c);
        void *dxr = tensor_to(dx, r * hidden, c);
        Vec dot = {0};
        EACH_VECTOR(i, left, hidden)
        dot += get(xr, i, left, c) * get(dyr, i, left, c) * get(w, i, left, DTYPE_F32);
        float scale = rstd[r], mean = vec_sum(dot) * scale / (float)hidden;
        EACH_VECTOR(i, left, hidden) {
            Vec n = get(xr, i, left, c) * scale, g = get(dyr, i, left, c);
            if (dw) put(dw, i, left, DTYPE_F32, get(dw, i, left, DTYPE_F32) + g * n);
            Vec v = (g * get(w, i, left, DTYPE_F32) - n * mean) * scale;
            if (add_to) v += get(dxr, i, left, c);
            put(dxr, i, left, c, v);
        }
    }
}
static void rmsnorm_backward(int64_t rows, int64_t hidden, const void *x, const float *w, const float *rstd,
                             const void *dy, void *dx, bool add_to, float *dw, Dtype c) {
    BY_DTYPE(c, rmsnorm_backward_typed, rows, hidden, x, w, rstd, dy, dx, add_to, dw);
}

/* ---- RoPE ---- */

INLINE void rope_typed(AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                       bool inverse, Dtype c) {
    int64_t dim = s.head_dim, half = dim / 2, row = (s.heads + 2 * s.kv_heads) * dim;
    float sign = inverse ? -1.0f : 1.0f;
    for (int64_t t = 0; t < s.tokens; t++) {
        const float *cosine = cos_sin + positions[t] * dim, *sine = cosine + half;
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

/* A row is taken in parts that stay in the first-level cache: the part's maximum, then its sum of
 * exponentials. So the row comes from memory once. */
enum { PART = 4096 };

INLINE float part_max(const void *x, int64_t first, int64_t n, Dtype t) {
    Vec top = vec_set(-HUGE_VALF);
    EACH_VECTOR(i, left, n) {
        Vec v = get(x, first + i, left, t);
        if (left < VLEN)
            for (int64_t lane = left; lane < VLEN; lane++) v[lane] = -HUGE_VALF;
        top = vec_max(v, top);
    }
    return vec_top(top);
}

INLINE float part_sum(const void *x, int64_t first, int64_t n, float max, Dtype t) {
    Vec sum = {0};
    EACH_VECTOR(i, left, n) {
        Vec e = vec_exp(get(x, first + i, left, t) - max);
        if (left < VLEN)
            for (int64_t lane = left; lane < VLEN; lane++) e[lane] = 0;
        sum += e;
    }
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

INLINE void row_gradient(const void *x, int64_t n, Dtype t, float max, float factor, void *dx,
                         Dtype grad_type) {
    EACH_VECTOR(i, left, n) put(dx, i, left, grad_type, vec_exp(get(x, i, left, t) - max) * factor);
}

INLINE void loss_gradient_typed(int64_t n, const void *x, int64_t target, RowSum of, float scale, void *dx,
                                Dtype grad_type, Dtype t) {
    bool here = target >= 0 && target < n;
    float factor = (float)((double)scale / of.sum), logit = here ? tensor_get(x, target, t) : 0;
    if (grad_type == DTYPE_F32)
        row_gradient(x, n, t, of.max, factor, dx, DTYPE_F32);
    else
        row_gradient(x, n, t, of.max, factor, dx, DTYPE_BF16);
    /* Anew, and not by subtraction from what was stored: that may be rounded. */
    if (here)
        tensor_set(dx, target, grad_type,
                   (float)((exp((double)logit - (double)of.max) / of.sum - 1) * (double)scale));
}
static void loss_gradient(int64_t n, const void *logits, Dtype logits_type, int64_t target, RowSum of,
                          float scale, void *dlogits, Dtype grad_type) {
    BY_DTYPE(logits_type, loss_gradient_typed, n, logits, target, of, scale, dlogits, grad_type);
}
