/* Attention in blocks of FLASH_BLOCK queries and keys, with online softmax (Dao, "FlashAttention-2", 2023).
 * Part of kernels_all.h.
 *
 * Scores are kept so that what is needed along them is a vector (see tile.h for the products): forward holds
 * a column of scores for each query (lanes are queries, so maxima and sums over keys need nothing across
 * lanes), backward a row (lanes are keys, so that the transposed copies of K and V are made once for a key
 * block and serve all its queries). Scores are in units of log 2.
 *
 * Key blocks that are wholly after the queries, or wholly before their first keys, are not visited; the mask
 * is applied only in blocks that a limit cuts. They begin at multiples of FLASH_BLOCK wherever queries do, so
 * that a query's sums are the same whichever others are in its block. */

enum { B = FLASH_BLOCK };

/* ---- operands ---- */

/* Rows as fp32: in place where that is possible, else widened and padded with zeros to `padded` columns in
 * `room`. */
typedef struct View {
    const float *data;
    int64_t row;
} View;

INLINE View view_typed(const void *from, int64_t row, int64_t rows, int64_t dim, int64_t padded, float *room,
                       Dtype c) {
    if (c == DTYPE_F32 && dim == padded) return (View){from, row};
    for (int64_t r = 0; r < rows; r++) {
        float *to = room + r * padded;
        EACH_VECTOR(i, left, dim) put(to, i, padded - i, DTYPE_F32, get(from, r * row + i, left, c));
        int64_t written = (dim + VLEN - 1) / VLEN * VLEN;
        for (int64_t i = written; i < padded; i++) to[i] = 0;
    }
    return (View){room, padded};
}
static View view(const void *from, int64_t row, int64_t rows, int64_t dim, int64_t padded, float *room,
                 Dtype c) {
    return c == DTYPE_F32 ? view_typed(from, row, rows, dim, padded, room, DTYPE_F32)
                          : view_typed(from, row, rows, dim, padded, room, DTYPE_BF16);
}

/* to[dim][B] = rows^T * factor; columns from `rows` on are zero. */
static void turn(View from, int64_t rows, int64_t dim, float factor, float *to) {
    transpose_block(from.data, from.row, rows, dim, to, B, factor, DTYPE_F32);
    for (int64_t i = 0; rows < B && i < dim; i++)
        memset(to + i * B + rows, 0, (size_t)(B - rows) * sizeof(float));
}

/* Scores to units of log 2. */
INLINE float score_factor(const Flash *f) {
    return f->s.scale > 0 ? 1.44269504f * f->s.scale : 1.44269504f / __builtin_sqrtf((float)f->s.head_dim);
}
INLINE float cap_factor(const Flash *f) { return 1.44269504f * f->s.cap; }

/* Where the maximum and the sum of a row begin. Without a sink the first is finite, so that -inf minus it is
 * -inf and not NaN. */
INLINE float sink_score(const Flash *f, int64_t head) {
    return f->s.sinks ? 1.44269504f * f->s.sinks[head] : -1e30f;
}
INLINE float sink_total(const Flash *f) { return f->s.sinks ? 1 : 0; }

/* ---- forward ---- */

/* State of a block of queries: lanes are queries. */
typedef struct ForwardBlock {
    const Flash *f;
    int64_t first, count; /* queries */
    int64_t head, kv_head;
    float *queries;         /* [D][B], times score_factor */
    float *sums;            /* [D][B] output, not yet divided */
    float *scores;          /* [B keys][B] */
    float *k_room, *v_room; /* [B][D padded] */
    float top[B], total[B], factor[B];
    int32_t last_key[B], first_key[B];
} ForwardBlock;

static void forward_start(ForwardBlock *b, float *scratch) {
    const Flash *f = b->f;
    int64_t dim = f->s.head_dim, padded = flash_padded(dim);
    b->queries = scratch;
    b->sums = b->queries + dim * B;
    b->scores = b->sums + dim * B;
    b->k_room = b->scores + B * B;
    b->v_room = b->k_room + B * padded;
    const void *q = tensor_at(f->q, b->first * f->q_row + b->head * dim, f->c);
    turn(view(q, f->q_row, b->count, dim, padded, b->k_room, f->c), b->count, dim, score_factor(f),
         b->queries);
    for (int64_t i = 0; i < B; i++) {
        int64_t t = b->first + min_i64(i, b->count - 1);
        b->last_key[i] = (int32_t)(f->offset + t);
        b->first_key[i] = (int32_t)flash_first(f, t);
        b->top[i] = sink_score(f, b->head);
        b->total[i] = sink_total(f);
    }
}

static void forward_mask(ForwardBlock *b, int64_t key, int64_t keys) {
    for (int64_t k = 0; k < keys; k++) {
        int32_t at = (int32_t)(key + k);
        for (int64_t i = 0; i < B; i += VLEN) {
            float *s = b->scores + k * B + i;
            VecInt seen = (VecInt)(vec_load_int(b->last_key + i) >= at) &
                          (VecInt)(vec_load_int(b->first_key + i) <= at);
            vec_store(s, vec_select(seen, vec_load(s), vec_set(-HUGE_VALF)));
        }
    }
}

static void forward_cap(ForwardBlock *b, int64_t keys) {
    float cap = cap_factor(b->f);
    for (int64_t i = 0; i < keys * B; i += VLEN)
        vec_store(b->scores + i, vec_tanh(vec_load(b->scores + i) / cap) * cap);
}

/* Scores become probabilities against the new maximum; factor is what older sums must be multiplied by. */
static void forward_softmax(ForwardBlock *b, int64_t keys) {
    for (int64_t i = 0; i < B; i += VLEN) {
        float *column = b->scores + i;
        Vec old = vec_load(b->top + i), top = old, total = {0};
        for (int64_t k = 0; k < keys; k++) top = vec_max(vec_load(column + k * B), top);
        for (int64_t k = 0; k < keys; k++) {
            Vec p = vec_exp2(vec_load(column + k * B) - top);
            vec_store(column + k * B, p);
            total += p;
        }
        Vec factor = vec_exp2(old - top);
        vec_store(b->top + i, top);
        vec_store(b->factor + i, factor);
        vec_store(b->total + i, vec_load(b->total + i) * factor + total);
    }
}

static void forward_keys(ForwardBlock *b, int64_t key, int64_t keys, bool first) {
    const Flash *f = b->f;
    int64_t dim = f->s.head_dim, at = key * f->kv_row + b->kv_head * dim;
    View k = view(tensor_at(f->k, at, f->c), f->kv_row, keys, dim,
                  f->c == DTYPE_F32 ? dim : flash_padded(dim), b->k_room, f->c);
    View v = view(tensor_at(f->v, at, f->c), f->kv_row, keys, dim,
                  f->c == DTYPE_F32 ? dim : flash_padded(dim), b->v_room, f->c);
    product((Product){.m = keys,
                      .n = B,
                      .k = dim,
                      .a = k.data,
                      .a_row = k.row,
                      .a_step = 1,
                      .b = b->queries,
                      .b_row = B,
                      .c = b->scores,
                      .c_row = B,
                      .mode = TILE_SET});
    if (f->s.cap > 0) forward_cap(b, keys);
    if (key + keys - 1 > b->last_key[0] || key < b->first_key[B - 1]) forward_mask(b, key, keys);
    forward_softmax(b, keys);
    product((Product){.m = dim,
                      .n = B,
                      .k = keys,
                      .a = v.data,
                      .a_row = 1,
                      .a_step = v.row,
                      .b = b->scores,
                      .b_row = B,
                      .c = b->sums,
                      .c_row = B,
                      .mode = first ? TILE_SET : TILE_RESCALE,
                      .factor = b->factor});
}

static void forward_finish(const ForwardBlock *b) {
    const Flash *f = b->f;
    int64_t dim = f->s.head_dim;
    for (int64_t r = 0; r < b->count; r++) {
        void *out = tensor_to(f->out, ((b->first + r) * f->s.heads + b->head) * dim, f->c);
        float share = 1 / b->total[r];
        for (int64_t i = 0; i < dim; i++) tensor_set(out, i, f->c, b->sums[i * B + r] * share);
        if (f->lse)
            f->lse[b->head * f->s.tokens + b->first + r] =
                (float)((double)b->top[r] * 0.69314718055994531 + log((double)b->total[r]));
    }
}

static void flash_forward(const Flash *f, int64_t head, int64_t block, float *scratch) {
    ForwardBlock b = {
        .f = f, .first = block * B, .head = head, .kv_head = head / (f->s.heads / f->s.kv_heads)};
    b.count = min_i64(B, f->s.tokens - b.first);
    forward_start(&b, scratch);
    int64_t start = b.first_key[0] / B * B, end = b.last_key[B - 1] + 1;
    for (int64_t key = start; key < end; key += B) forward_keys(&b, key, min_i64(B, end - key), key == start);
    forward_finish(&b);
}

/* ---- backward ---- */

static void flash_delta(const Flash *f, int64_t head, int64_t block) {
    int64_t dim = f->s.head_dim;
    for (int64_t t = block * B; t < min_i64(f->s.tokens, (block + 1) * B); t++) {
        int64_t at = (t * f->s.heads + head) * dim;
        const void *out = tensor_at(f->kept, at, f->c), *dout = tensor_at(f->dout, at, f->c);
        Vec sum = {0};
        EACH_VECTOR(i, left, dim) sum += get(out, i, left, f->c) * get(dout, i, left, f->c);
        f->delta[head * f->s.tokens + t] = vec_sum(sum);
    }
}

/* State of a block of keys: lanes are keys. */
typedef struct BackwardBlock {
    const Flash *f;
    int64_t first, count, kv_head; /* keys */
    int64_t block, padded;
    View k;
    float *keys, *values; /* [D][B] transposed */
    float *dk, *dv;       /* [B][D padded] */
    float *p, *ds;        /* [B queries][B] */
    float *k_room, *q_room, *dout_room;
} BackwardBlock;

static void backward_start(BackwardBlock *b, float *scratch) {
    const Flash *f = b->f;
    int64_t dim = f->s.head_dim, padded = b->padded, at = b->first * f->kv_row + b->kv_head * dim;
    b->keys = scratch;
    b->values = b->keys + dim * B;
    b->dk = b->values + dim * B;
    b->dv = b->dk + B * padded;
    b->k_room = b->dv + B * padded;
    b->q_room = b->k_room + B * padded;
    b->dout_room = b->q_room + B * padded;
    b->p = b->dout_room + B * padded;
    b->ds = b->p + B * B;
    b->k = view(tensor_at(f->k, at, f->c), f->kv_row, b->count, dim, padded, b->k_room, f->c);
    View v = view(tensor_at(f->v, at, f->c), f->kv_row, b->count, dim, padded, b->q_room, f->c);
    turn(b->k, b->count, dim, score_factor(f), b->keys);
    turn(v, b->count, dim, 1, b->values);
    memset(b->dk, 0, (size_t)(B * padded) * sizeof(float));
    memset(b->dv, 0, (size_t)(B * padded) * sizeof(float));
}

/* Scores to probabilities, and the products dout v to the gradients of scores, for one query. */
INLINE void backward_row(const BackwardBlock *b, int64_t t, int64_t r, float lse, float delta,
                         const bool masked, const bool capped) {
    int32_t index[VLEN];
    float cap = cap_factor(b->f);
    for (int lane = 0; lane < VLEN; lane++) index[lane] = lane;
    for (int64_t i = 0; i < B; i += VLEN) {
        Vec score = vec_load(b->p + r * B + i), part = capped ? vec_tanh(score / cap) : score;
        Vec p = vec_exp2((capped ? part * cap : score) - lse);
        if (masked) {
            VecInt key = vec_load_int(index) + (int32_t)(b->first + i);
            VecInt seen =
                (VecInt)(key <= (int32_t)(b->f->offset + t)) & (VecInt)(key >= (int32_t)flash_first(b->f, t));
            p = (Vec)(seen & (VecInt)p);
        }
        vec_store(b->p + r * B + i, p);
        Vec ds = p * (vec_load(b->ds + r * B + i) - delta);
        vec_store(b->ds + r * B + i, capped ? ds * (1.0f - part * part) : ds);
    }
}

static void backward_softmax(const BackwardBlock *b, int64_t head, int64_t first, int64_t count) {
    const float *lse = b->f->kept_lse + head * b->f->s.tokens, *delta = b->f->delta + head * b->f->s.tokens;
    bool masked = b->f->offset + first < b->first + b->count || b->count < B ||
                  flash_first(b->f, first + count - 1) > b->first;
    for (int64_t r = 0; r < count; r++) {
        int64_t t = first + r;
        float row_lse = lse[t] * 1.44269504f;
        if (b->f->s.cap > 0)
            backward_row(b, t, r, row_lse, delta[t], true, true);
        else if (masked)
            backward_row(b, t, r, row_lse, delta[t], true, false);
        else
            backward_row(b, t, r, row_lse, delta[t], false, false);
    }
}

/* dq += ds k, after the key blocks before this one, so that the order of the sum is fixed. They were started
 * earlier, on threads that run: the wait ends. */
static void backward_query(const BackwardBlock *b, int64_t head, int64_t query_block, int64_t count) {
    const Flash *f = b->f;
    int64_t blocks = (f->s.tokens + B - 1) / B, first = query_block * B;
    atomic_int *progress = f->progress + head * blocks + query_block;
    for (int spins = 0; atomic_load_explicit(progress, memory_order_acquire) != (int)b->block;)
        if (++spins > 200) sched_yield();
    product((Product){.m = count,
                      .n = b->padded,
                      .k = b->count,
                      .a = b->ds,
                      .a_row = B,
                      .a_step = 1,
                      .b = b->k.data,
                      .b_row = b->k.row,
                      .c = f->dq_sum + (head * f->s.tokens + first) * b->padded,
                      .c_row = b->padded,
                      .mode = b->block == flash_first(f, first) / B ? TILE_SET : TILE_ADD});
    atomic_store_explicit(progress, (int)b->block + 1, memory_order_release);
}

static void backward_queries(const BackwardBlock *b, int64_t head, int64_t query_block) {
    const Flash *f = b->f;
    int64_t dim = f->s.head_dim, first = query_block * B, count = min_i64(B, f->s.tokens - first),
            padded = b->padded;
    View q = view(tensor_at(f->q, first * f->q_row + head * dim, f->c), f->q_row, count, dim, padded,
                  b->q_room, f->c);
    View dout = view(tensor_at(f->dout, (first * f->s.heads + head) * dim, f->c), f->s.heads * dim, count,
                     dim, padded, b->dout_room, f->c);
    Product scores = {.m = count,
                      .n = B,
                      .k = dim,
                      .a = q.data,
                      .a_row = q.row,
                      .a_step = 1,
                      .b = b->keys,
                      .b_row = B,
                      .c = b->p,
                      .c_row = B,
                      .mode = TILE_SET};
    product(scores);
    scores.a = dout.data;
    scores.a_row = dout.row;
    scores.b = b->values;
    scores.c = b->ds;
    product(scores);
    backward_softmax(b, head, first, count);
    Product sums = {.m = b->count,
                    .n = padded,
                    .k = count,
                    .a = b->p,
                    .a_row = 1,
                    .a_step = B,
                    .b = dout.data,
                    .b_row = dout.row,
                    .c = b->dv,
                    .c_row = padded,
                    .mode = TILE_ADD};
    product(sums);
    sums.a = b->ds;
    sums.b = q.data;
    sums.b_row = q.row;
    sums.c = b->dk;
    product(sums);
    backward_query(b, head, query_block, count);
}

INLINE void write_rows(const float *from, int64_t padded, int64_t rows, int64_t dim, float factor, void *to,
                       int64_t row, Dtype c) {
    for (int64_t r = 0; r < rows; r++)
        EACH_VECTOR(i, left, dim) put(to, r * row + i, left, c, vec_load(from + r * padded + i) * factor);
}

static void flash_backward(const Flash *f, int64_t kv_head, int64_t block, float *scratch) {
    int64_t dim = f->s.head_dim, group = f->s.heads / f->s.kv_heads;
    BackwardBlock b = {
        .f = f, .first = block * B, .kv_head = kv_head, .block = block, .padded = flash_padded(dim)};
    b.count = min_i64(B, f->keys - b.first);
    backward_start(&b, scratch);
    int64_t query = b.first > f->offset ? (b.first - f->offset) / B : 0; /* the first block that sees it */
    for (int64_t q = query; q * B < f->s.tokens && flash_first(f, q * B) < b.first + b.count; q++)
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            backward_queries(&b, head, q);
    int64_t at = b.first * f->dkv_row + kv_head * dim, row = f->dkv_row;
    Dtype type = f->dkv_type;
    write_rows(b.dk, b.padded, b.count, dim, score_scale(f->s), tensor_to(f->dk, at, type), row, type);
    write_rows(b.dv, b.padded, b.count, dim, 1, tensor_to(f->dv, at, type), row, type);
}

static void flash_query(const Flash *f, int64_t head, int64_t block) {
    int64_t dim = f->s.head_dim, padded = flash_padded(dim), first = block * B,
            count = min_i64(B, f->s.tokens - first);
    write_rows(f->dq_sum + (head * f->s.tokens + first) * padded, padded, count, dim, score_scale(f->s),
               tensor_to(f->dq, first * f->q_row + head * dim, f->c), f->q_row, f->c);
}

/* ---- decode ---- */

INLINE float dot_rows(const void *a, const void *b, int64_t dim, Dtype c) {
    Vec sum = {0};
    EACH_VECTOR(i, left, dim) sum += get(a, i, left, c) * get(b, i, left, c);
    return vec_sum(sum);
}

/* Online softmax over parts of B keys. */
INLINE void decode_typed(const Flash *f, int64_t head, int64_t query, Dtype c) {
    int64_t dim = f->s.head_dim, keys = f->offset + query + 1, kv = head / (f->s.heads / f->s.kv_heads) * dim;
    const void *q = tensor_at(f->q, query * f->q_row + head * dim, c);
    float scores[B], sums[HEAD_DIM_MAX] = {0}, top = sink_score(f, head), total = sink_total(f);
    for (int64_t first = flash_first(f, query); first < keys; first += B) {
        int64_t count = min_i64(B, keys - first);
        float old = top;
        for (int64_t k = 0; k < count; k++) {
            scores[k] =
                dot_rows(q, tensor_at(f->k, (first + k) * f->kv_row + kv, c), dim, c) * score_factor(f);
            if (f->s.cap > 0) scores[k] = tanhf(scores[k] / cap_factor(f)) * cap_factor(f);
            if (scores[k] > top) top = scores[k];
        }
        float factor = __builtin_exp2f(old - top);
        total *= factor;
        for (int64_t i = 0; i < dim; i++) sums[i] *= factor;
        for (int64_t k = 0; k < count; k++) {
            float p = __builtin_exp2f(scores[k] - top);
            const void *v = tensor_at(f->v, (first + k) * f->kv_row + kv, c);
            total += p;
            EACH_VECTOR(i, left, dim)
            put(sums, i, left, DTYPE_F32, get(sums, i, left, DTYPE_F32) + get(v, i, left, c) * p);
        }
    }
    void *out = tensor_to(f->out, (query * f->s.heads + head) * dim, c);
    EACH_VECTOR(i, left, dim) put(out, i, left, c, get(sums, i, left, DTYPE_F32) / total);
}
static void flash_decode(const Flash *f, int64_t head, int64_t query) {
    BY_DTYPE(f->c, decode_typed, f, head, query);
}
