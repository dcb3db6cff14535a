/* Causal self-attention with grouped keys and values (Vaswani et al., "Attention is all you need", 2017;
 * Ainslie et al., "GQA", 2023):
 *
 *     q k v   [q|k|v] = x [Wq;Wk;Wv]^T (+ biases)
 *     heads   q and k normed, head by head or all heads of a token at once, where the family does that
 *             q and k rotated (RoPE), unless the layer does without; then, in Llama 4, q times a factor of
 *             its position
 *     attention   a = softmax(cap(scale q k^T)) v, inside documents and windows, or chunks
 *     output      y = a Wo^T
 *
 * With sinks the softmax has one more score, a parameter of each head, of a key without a value.
 *
 * Shapes: T tokens, h hidden, Q = H*D, K = G*D. Generation keeps K keys and K values of each token.
 *
 * Three layers share this code. Without norms of q and k, the rotation is done in place at the end of the
 * product's op: its backward pass needs only the angles. The backward pass of a norm needs the norm's input.
 * So with norms the product's result is saved (raw), and attention's input is made from it, cheaply enough to
 * be recomputed. Norms without weights follow the rotation (QK_NORM_PLAIN): then raw is rotated in place.
 * Where all heads of a token are normed as one row and TP may shard the heads (more than one split), the
 * product's op makes the sums of squares of each split, and the norm's op adds them. In the backward pass the
 * norm's op makes the sums, and the product's op goes through the norm.
 *
 * Elsewhere called: GQA; around it, Ulysses and all-gather context parallelism (heads.h). There is no
 * ring attention. */
#include "base/tree.h"
#include "device/ops/attention.h"
#include "device/ops/memory.h"
#include "model/families/family.h"
#include "model/layers/heads.h"
#include "model/unit.h"

enum {
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    QKV_BIAS,
    O_BIAS,
    SINKS,
    Q_NORM,
    K_NORM,
    Q_ROW_NORM,
    K_ROW_NORM,
    Q,
    K,
    V,
    QKV_WEIGHT,
    O,
    MATRICES
};
enum { Q_A = MATRICES, Q_B, K_A, K_B, V_A, V_B, QKV_WEIGHT_A, QKV_WEIGHT_B, O_A, O_B, PARAMS };
enum { QKV_ROWS = 4 }; /* rows that make up the product's matrix: three, or one */
static const ParamRow params[PARAMS] = {
    [Q_BIAS] = {"self_attn.q_proj.bias", DIM_QUERY, .when = WHEN_QKV_BIAS | WHEN_QKV_SEPARATE,
                .tp = COLUMN_PARALLEL, .init = ROLE_ZEROS},
    [K_BIAS] = {"self_attn.k_proj.bias", DIM_KEY, .when = WHEN_QKV_BIAS | WHEN_QKV_SEPARATE,
                .tp = COLUMN_PARALLEL, .init = ROLE_ZEROS, .continues = true},
    [V_BIAS] = {"self_attn.v_proj.bias", DIM_KEY, .when = WHEN_QKV_BIAS | WHEN_QKV_SEPARATE,
                .tp = COLUMN_PARALLEL, .init = ROLE_ZEROS, .continues = true},
    [QKV_BIAS] = {"self_attn.qkv_proj.bias", DIM_QKV, .when = WHEN_QKV_BIAS | WHEN_QKV_FUSED,
                  .tp = COLUMN_PARALLEL, .init = ROLE_ZEROS},
    [O_BIAS] = {"self_attn.o_proj.bias", DIM_HIDDEN, .when = WHEN_OUT_BIAS, .init = ROLE_ZEROS},
    [SINKS] = {"self_attn.sinks", DIM_HEADS, .when = WHEN_SINKS, .tp = COLUMN_PARALLEL, .init = ROLE_INNER},
    [Q_NORM] = {"self_attn.q_norm.weight", DIM_HEAD, .when = WHEN_QK_NORM, .init = ROLE_NORM},
    [K_NORM] = {"self_attn.k_norm.weight", DIM_HEAD, .when = WHEN_QK_NORM, .init = ROLE_NORM},
    [Q_ROW_NORM] = {"self_attn.q_norm.weight", DIM_QUERY, .when = WHEN_QK_ROW_NORM, .tp = COLUMN_PARALLEL,
                    .init = ROLE_NORM},
    [K_ROW_NORM] = {"self_attn.k_norm.weight", DIM_KEY, .when = WHEN_QK_ROW_NORM, .tp = COLUMN_PARALLEL,
                    .init = ROLE_NORM},
    [Q] = {"self_attn.q_proj.weight", DIM_QUERY, DIM_HIDDEN, .when = WHEN_QKV_SEPARATE, .tp = COLUMN_PARALLEL,
           .init = ROLE_INNER, .decays = true},
    [K] = {"self_attn.k_proj.weight", DIM_KEY, DIM_HIDDEN, .when = WHEN_QKV_SEPARATE, .tp = COLUMN_PARALLEL,
           .init = ROLE_INNER, .decays = true, .continues = true},
    [V] = {"self_attn.v_proj.weight", DIM_KEY, DIM_HIDDEN, .when = WHEN_QKV_SEPARATE, .tp = COLUMN_PARALLEL,
           .init = ROLE_INNER, .decays = true, .continues = true},
    [QKV_WEIGHT] = {"self_attn.qkv_proj.weight", DIM_QKV, DIM_HIDDEN, .when = WHEN_QKV_FUSED,
                    .tp = COLUMN_PARALLEL, .init = ROLE_INNER, .decays = true},
    [O] = {"self_attn.o_proj.weight", DIM_HIDDEN, DIM_QUERY, .tp = ROW_PARALLEL, .init = ROLE_OUT,
           .decays = true},
    ADAPTER_ROWS(Q, DIM_QUERY, DIM_HIDDEN),
    ADAPTER_ROWS(K, DIM_KEY, DIM_HIDDEN),
    ADAPTER_ROWS(V, DIM_KEY, DIM_HIDDEN),
    ADAPTER_ROWS(QKV_WEIGHT, DIM_QKV, DIM_HIDDEN),
    ADAPTER_ROWS(O, DIM_HIDDEN, DIM_QUERY),
};

enum { PLAIN_TENSORS = ATTENTION_TENSORS, RAW = PLAIN_TENSORS, NORMED_TENSORS };
enum { SQUARES = NORMED_TENSORS, PRODUCTS, ROW_NORMED_TENSORS };
static const TensorRow plain_tensors[PLAIN_TENSORS] = {
    [QKV] = {.width = DIM_QKV, .life = LIFE_SAVED}, /* rotated */
    [DQKV] = {.width = DIM_QKV, .life = LIFE_SCRATCH, .operand = true},
    SHARED_TENSORS,
};
/* QKV is RAW after norm and rotation. */
#define NORMED_ROWS                                                     \
    [QKV] = {.width = DIM_QKV, .life = LIFE_CHEAP},                     \
    [DQKV] = {.width = DIM_QKV, .life = LIFE_SCRATCH, .operand = true}, \
    SHARED_TENSORS, [RAW] = {.width = DIM_QKV, .life = LIFE_SAVED}
static const TensorRow normed_tensors[NORMED_TENSORS] = {NORMED_ROWS};
static const TensorRow row_normed_tensors[ROW_NORMED_TENSORS] = {
    NORMED_ROWS,
    [SQUARES] = {EXTENT_ROW_SUMS, DIM_ONE, ELEMENT_FP32, LIFE_SAVED, .need = NEED_ROW_SUMS},
    [PRODUCTS] = {EXTENT_ROW_SUMS, DIM_ONE, ELEMENT_FP32, LIFE_SCRATCH, .need = NEED_ROW_SUMS},
};

static const Product qkv = {&params[Q], &params[Q_BIAS], QKV_ROWS, DIM_QKV, DIM_HIDDEN};
static const Product output = {&params[O], &params[O_BIAS], 1, DIM_HIDDEN, DIM_QUERY};

/* Unit 0 is the embedding, so block u is layer u - 1. */
static AttentionShape shape_of(const LayerPass *w) { return model_attention(w->pass->model, w->unit - 1); }

static const Param *sinks_of(const LayerPass *w) {
    return param_of(&w->pass->model->table, w->unit, &params[SINKS]);
}

/* Shape in which attention itself runs: with the CP all-to-all, this rank's heads. */
static AttentionShape heads_of(const LayerPass *w) {
    const Model *m = w->pass->model;
    AttentionShape s = model_heads(m, w->unit - 1);
    const Param *sinks = sinks_of(w);
    if (sinks) s.sinks = weights_vector(w->pass->weights, sinks);
    if (s.sinks && model_cp_all_to_all(m)) s.sinks += m->cp.rank * s.heads;
    return s;
}

/* A tensor, or with the CP all-to-all the one that replaces it. */
static void *either(const LayerPass *w, int tensor, int swapped) {
    return w->tensors[model_cp_all_to_all(w->pass->model) ? swapped : tensor];
}

void *attend_made(const LayerPass *w) { return either(w, QKV, A2A_PACKED); }

/* Width of a token's keys and values. */
static int64_t key_width(AttentionShape s) { return 2 * (int64_t)s.kv_heads * s.head_dim; }

/* Rounds the summed gradients of keys and values of `rows` tokens and writes them after those of the queries
 * into dqkv, from row `at` on. */
static void take_sums(const LayerPass *w, const float *sums, int64_t rows, char *dqkv, int64_t at) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    AttentionShape s = heads_of(w);
    int64_t width = key_width(s), row = attention_whole(s).q_row;
    size_t e = dtype_bytes(m->compute), bytes = (size_t)width * e;
    OP(p->device, cast, rows * width, sums, DTYPE_F32, w->tensors[KEYS], m->compute);
    OP(p->device, copy_rows, .rows = rows, .bytes = bytes,
       .to = model_at(m, dqkv, at * row + (int64_t)s.heads * s.head_dim), .to_stride = (size_t)row * e,
       .from = w->tensors[KEYS], .from_stride = bytes);
}

/* The same from KV_PARTIALS, from token `first` on. */
static void take_partials(const LayerPass *w, int64_t first, int64_t rows, char *dqkv, int64_t at) {
    const float *partials = w->tensors[KV_PARTIALS];
    take_sums(w, partials + first * key_width(heads_of(w)), rows, dqkv, at);
}

/* Whether partial sums of gradients of keys and values are reduced over ranks, after attention's own op. */
static bool sums_dkv_over_ranks(const Model *m) { return m->cp.keys || m->tp.copies > 1; }

void attend_take_sums(const LayerPass *w) {
    const Model *m = w->pass->model;
    int64_t rows = model_cp_chunk(m);
    for (int i = 0; sums_dkv_over_ranks(m) && i < model_cp_chunks(m); i++)
        take_partials(w, model_cp_chunk_first(m, m->cp.rank, i), rows, w->tensors[DQKV], i * rows);
}

/* Apart from yarn's factor, which is in the tables, a rotation is orthogonal: gradients are rotated back by
 * the same tables. In layers without RoPE, queries may be multiplied by a factor, and so are their
 * gradients. */
static void rotate(const LayerPass *w, void *heads, bool inverse) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    BlockShape block = model_block(&m->config, w->unit - 1);
    if (block.rotation >= 0)
        OP(p->device, rope, .s = shape_of(w), .qkv = heads, .positions = p->batch.positions,
           .cos_sin = model_angles(m, block.rotation), .inverse = inverse, .c = m->compute);
    else if (block.scaled)
        OP(p->device, queries_scale, .s = shape_of(w), .qkv = heads, .positions = p->batch.positions,
           .factors = model_query_factors(m), .c = m->compute);
}

/* ---- CP all-to-all ---- */

/* Moves one share of the heads of queries, keys and values per rank. */
static void move_heads(const LayerPass *w, const Collective *c, bool split) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int ranks = m->cp.ranks;
    Dim outputs[PARAM_MATRICES];
    int64_t first = 0;
    size_t e = dtype_bytes(m->compute), wide = (size_t)model_dim(&m->config, c->width) * e,
           narrow = wide / (size_t)ranks;
    char *by_tokens = w->tensors[c->packed], *by_rank = w->tensors[split ? c->from : c->to];
    int count = param_outputs(&m->config, c->width, outputs);
    for (int i = 0; i < count; first += model_dim(&m->config, outputs[i++]))
        for (int rank = 0; rank < ranks; rank++) {
            size_t bytes = (size_t)(model_dim(&m->config, outputs[i]) / ranks) * e;
            char *row = by_tokens + (size_t)first * e + (size_t)rank * bytes;
            char *piece = by_rank + (size_t)rank * (size_t)m->tokens * narrow + (size_t)(first / ranks) * e;
            OP(p->device, copy_rows, .rows = m->tokens, .bytes = bytes, .to = split ? piece : row,
               .to_stride = split ? narrow : wide, .from = split ? row : piece,
               .from_stride = split ? wide : narrow);
        }
}

void heads_split(const LayerPass *w, const Collective *c) { move_heads(w, c, true); }
void heads_join(const LayerPass *w, const Collective *c) { move_heads(w, c, false); }

/* Packs, for each rank, the LSE of its tokens for the heads of this rank, exact chunk by exact chunk. The
 * source is by runs of queries, which are exact chunks or all tokens. */
void lse_split(const LayerPass *w, const Collective *c) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t heads = m->config.num_attention_heads / m->cp.ranks,
            exact_chunk = model_exact_chunk(m, m->tokens), run = model_all_tokens(m) / model_query_runs(m);
    const float *from = w->tensors[c->packed];
    float *to = w->tensors[c->from];
    for (int64_t token = 0; token < model_all_tokens(m); token += exact_chunk)
        OP(p->device, copy_rows, .rows = heads, .bytes = (size_t)exact_chunk * sizeof *to,
           .to = to + token * heads, .to_stride = (size_t)exact_chunk * sizeof *to,
           .from = from + token / run * run * heads + token % run, .from_stride = (size_t)run * sizeof *to);
}

/* Collects all ranks' heads, exact chunk by exact chunk, in LOCAL_LSE, which was also the send buffer. */
void lse_join(const LayerPass *w, const Collective *c) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int ranks = m->cp.ranks;
    size_t piece =
        (size_t)(model_exact_chunk(m, m->tokens) * m->config.num_attention_heads / ranks) * sizeof(float);
    char *from = w->tensors[c->to], *to = w->tensors[c->from];
    for (int rank = 0; rank < ranks; rank++)
        OP(p->device, copy_rows, .rows = model_exact_chunks(m), .bytes = piece,
           .to = to + (size_t)rank * piece, .to_stride = (size_t)ranks * piece,
           .from = from + (size_t)rank * (size_t)model_exact_chunks(m) * piece, .from_stride = piece);
}

/* Copies keys and values of `rows` local tokens, from token `at` on, out of QKV to their place among those of
 * all tokens. */
static void copy_keys(const LayerPass *w, int64_t at, int64_t rows, void *all, int64_t first) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t width = model_dim(&m->config, DIM_KEY_VALUE), row = model_dim(&m->config, DIM_QKV);
    size_t e = dtype_bytes(m->compute);
    OP(p->device, copy_rows, .rows = rows, .bytes = (size_t)width * e, .to = model_at(m, all, first * width),
       .to_stride = (size_t)width * e,
       .from = model_at(m, w->tensors[QKV], at * row + model_dim(&m->config, DIM_QUERY)),
       .from_stride = (size_t)row * e);
}

void keys_pack(const LayerPass *w, const Collective *c) {
    const Model *m = w->pass->model;
    int64_t rows = model_cp_chunk(m);
    for (int i = 0; i < model_cp_chunks(m); i++)
        copy_keys(w, i * rows, rows, w->tensors[c->to], model_cp_chunk_first(m, m->cp.rank, i));
}

/* ---- the product, and RoPE if no norm comes in between ---- */

/* One product for q, k and v: their matrices are contiguous (params.h, invariant 2), and one wide product is
 * faster than three. */
static void qkv_forward(const LayerPass *w) {
    void *packed = attend_made(w);
    product_forward(w, &qkv, w->x, packed);
    rotate(w, packed, false);
}

static void qkv_gradients(const LayerPass *w, Grads grads) {
    if (grads & WGRAD) product_weight(w, &qkv, w->tensors[DQKV], w->x);
    if (grads & DGRAD) product_input(w, &qkv, w->tensors[DQKV], w->dx);
}

/* Only dgrad rotates back. Wgrad runs after it, and finds the gradient already rotated. */
static void qkv_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD) attend_take_sums(w), rotate(w, w->tensors[DQKV], true);
    qkv_gradients(w, grads);
}

/* ---- norms of queries and keys ---- */

static bool is_flat(const Model *m) { return model_family(&m->config)->arch.qk_norm == QK_NORM_FLAT; }

/* Whether a row's sums are computed per split, separately from its norm. */
static bool sums_rows(const Model *m) { return is_flat(m) && m->tp.splits > 1; }

/* NULL: it has no weights. */
static const Param *norm_of(const LayerPass *w, bool keys) {
    bool flat = is_flat(w->pass->model);
    const ParamRow *row = keys ? &params[flat ? K_ROW_NORM : K_NORM] : &params[flat ? Q_ROW_NORM : Q_NORM];
    return param_of(&w->pass->model->table, w->unit, row);
}

static const float *weights_of(const LayerPass *w, bool keys) {
    const Param *norm = norm_of(w, keys);
    return norm ? weights_vector(w->pass->weights, norm) : NULL;
}

/* Whether RoPE comes before the norms. */
static bool rotates_first(const LayerPass *w) {
    return model_family(&w->pass->model->config)->arch.qk_norm == QK_NORM_PLAIN;
}

/* Rows from token `first` of this rank on. Replicated KV heads count once. */
static QkRows rows_of(const LayerPass *w, int64_t first) {
    const Model *m = w->pass->model;
    const TpGroup *tp = &m->tp;
    QkRows rows = qk_rows(is_flat(m));
    if (!sums_rows(m)) return rows;
    rows.splits = tp->splits, rows.tokens = m->tokens;
    rows.queries = tp->size * model_dim(&m->config, DIM_QUERY);
    rows.keys = tp->size / tp->copies * model_dim(&m->config, DIM_KEY);
    rows.squares = (const float *)w->tensors[SQUARES] + 2 * first;
    rows.products = (const float *)w->tensors[PRODUCTS] + 2 * first;
    return rows;
}

/* Computes the sums of the local splits, and writes them at their index among all splits. */
static void sum_rows(const LayerPass *w, const void *dqkv, int tensor) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    float *own = (float *)w->tensors[tensor] + 2 * m->tp.rank * m->tokens * model_local_splits(m);
    OP(p->device, qk_norm_sums, .s = shape_of(w), .splits = model_k_split(m, DIM_QKV),
       .kind = model_family(&m->config)->arch.norm, .raw = w->tensors[RAW],
       .wq = weights_vector(p->weights, norm_of(w, false)),
       .wk = weights_vector(p->weights, norm_of(w, true)), .dqkv = dqkv, .sums = own, .c = m->compute);
}

static void raw_forward(const LayerPass *w) {
    product_forward(w, &qkv, w->x, w->tensors[RAW]);
    if (rotates_first(w)) rotate(w, w->tensors[RAW], false);
    if (sums_rows(w->pass->model)) sum_rows(w, NULL, SQUARES);
}

static void heads_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    void *packed = attend_made(w);
    OP(p->device, qk_norm_forward, .s = shape_of(w), .rows = rows_of(w, 0),
       .kind = model_family(&m->config)->arch.norm, .eps = (float)m->config.rms_norm_eps,
       .raw = w->tensors[RAW], .wq = weights_of(w, false), .wk = weights_of(w, true), .out = packed,
       .c = m->compute);
    if (!rotates_first(w)) rotate(w, packed, false);
}

/* All ranks with replicas of a KV head compute the same contribution to the gradient of the norm's weight, so
 * all but the first drop theirs. With QK_NORM_FLAT the weight is sharded as the heads are, and replicated
 * where they are. */
static void drop_copies(const LayerPass *w, float *gradient /* [splits, D] */) {
    const Model *m = w->pass->model;
    if (is_flat(m) || m->tp.rank % m->tp.copies == 0) return;
    OP(w->pass->device, zero, gradient,
       (size_t)(model_local_splits(m) * m->config.head_dim) * sizeof *gradient);
}

/* DQKV becomes the gradient of RAW. Weights of norms are vectors, whose gradients belong to dgrad. With
 * QK_NORM_FLAT each weight is on one rank with all tokens, so its gradient has no splits. */
static void norms_backward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const Param *q = norm_of(w, false), *k = norm_of(w, true);
    AttentionShape s = shape_of(w);
    s.tokens = model_exact_chunk(m, s.tokens);
    int64_t elements = s.tokens * model_dim(&m->config, DIM_QKV);
    for (int r = 0; r < model_exact_chunks(m); r++)
        OP(p->device, qk_norm_backward, .s = s, .rows = rows_of(w, r * s.tokens),
           .kind = model_family(&m->config)->arch.norm, .eps = (float)m->config.rms_norm_eps,
           .raw = model_at(m, w->tensors[RAW], r * elements), .wq = weights_of(w, false),
           .wk = weights_of(w, true), .dqkv = model_at(m, w->tensors[DQKV], r * elements),
           .dwq = q ? gradient_of_exact_chunk(&p->gradients, q, r) : NULL,
           .dwk = k ? gradient_of_exact_chunk(&p->gradients, k, r) : NULL,
           .splits = is_flat(m) ? 1 : model_local_splits(m), .c = m->compute);
    for (int r = 0; k && r < model_exact_chunks(m); r++)
        drop_copies(w, gradient_of_exact_chunk(&p->gradients, k, r));
}

/* In reverse: rotates back, then goes through the norms in place, for the product's op. Where a row's sums
 * are computed separately, the product's op goes through the norms first, since ranks gather the sums in
 * between. */
static void heads_backward(const LayerPass *w, Grads grads) {
    if (!(grads & DGRAD)) return;
    attend_take_sums(w);
    if (!rotates_first(w)) rotate(w, w->tensors[DQKV], true);
    if (sums_rows(w->pass->model))
        sum_rows(w, w->tensors[DQKV], PRODUCTS);
    else
        norms_backward(w);
}

static void raw_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD && sums_rows(w->pass->model)) norms_backward(w);
    if (grads & DGRAD && rotates_first(w)) rotate(w, w->tensors[DQKV], true);
    qkv_gradients(w, grads);
}

/* ---- attention ---- */

/* Appends the new keys and values to the block's cache: all keys, token by token, then all values. */
static void extend_cache(const LayerPass *w, const void *heads, char **keys, char **values) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const KeyValueCache *cache = p->cache;
    int64_t width = model_dim(&m->config, DIM_KEY), query = model_dim(&m->config, DIM_QUERY);
    size_t e = dtype_bytes(m->compute), row = (size_t)width * e;
    *keys = cache->base + (size_t)(w->unit - 1) * cache->unit_bytes;
    *values = *keys + (size_t)cache->positions * row;
    for (int64_t i = 0; i < m->tokens; i++) {
        const char *key = (const char *)heads + (size_t)(i * (query + 2 * width) + query) * e;
        size_t at = (size_t)(cache->start + i) * row;
        OP(p->device, cast, width, key, m->compute, *keys + at, m->compute);
        OP(p->device, cast, width, key + row, m->compute, *values + at, m->compute);
    }
}

/* Generation: appends keys and values of the new tokens to the block's cache, and attends to it. The cache
 * holds keys after rotation. */
static void attend_to_cache(const LayerPass *w, AttentionShape s, const void *heads, void *out) {
    const Pass *p = w->pass;
    char *keys, *values;
    extend_cache(w, heads, &keys, &values);
    OP(p->device, attention_decode, .s = s, .start = p->cache->start, .qkv = heads, .k_cache = keys,
       .v_cache = values, .out = out, .c = p->model->compute);
}

/* A run of queries. `at`: index of its first query in tensors with a row per query. */
typedef struct Queries {
    AttentionShape s;
    AttentionRun r;
    int64_t at;
} Queries;

/* Whether keys and values are in a tensor of their own. */
static bool reads_keys_apart(const Model *m) { return m->cp.keys || model_segments(m) > 1; }

/* The segment's first token among those of the microbatch. */
static int64_t segment_first(const LayerPass *w) { return w->pass->segment * w->pass->model->tokens; }

static Queries queries_of(const LayerPass *w, int run) {
    const Model *m = w->pass->model;
    Queries q = {.s = heads_of(w)};
    q.r = attention_whole(q.s);
    q.s.tokens /= model_query_runs(m);
    q.r.first = q.at = run * q.s.tokens;
    q.r.partial = model_has_partials(m);
    if (!reads_keys_apart(m)) return q;
    q.r.first = m->cp.keys ? model_token(m, m->cp.rank, q.at) : segment_first(w) + q.at;
    q.r.keys = m->cp.keys ? model_all_tokens(m) : segment_first(w) + m->tokens;
    q.r.kv_row = model_dim(&m->config, DIM_KEY_VALUE);
    return q;
}

static const void *queries_at(const LayerPass *w, const Queries *q) {
    return model_at(w->pass->model, w->tensors[QKV], q->at * q->r.q_row);
}
static const void *keys_of(const LayerPass *w, const Queries *q) {
    const Model *m = w->pass->model;
    if (reads_keys_apart(m)) return w->tensors[m->cp.keys ? KEYS : SEGMENT_KEYS];
    return model_at(m, w->tensors[QKV], (int64_t)q->s.heads * q->s.head_dim);
}
/* Its rows of a tensor [queries, H*D]. */
static void *results_at(const LayerPass *w, const Queries *q, const void *tensor) {
    return model_at(w->pass->model, tensor, q->at * q->s.heads * q->s.head_dim);
}
/* LSE of the run, [H, queries of the run]. */
static float *sums_at(const LayerPass *w, const Queries *q) {
    return (float *)w->tensors[LSE] + q->at * q->s.heads;
}

static void attend_run(const LayerPass *w, int run) {
    const Pass *p = w->pass;
    Queries q = queries_of(w, run);
    OP(p->device, attention_forward, .s = q.s, .r = q.r, .q = queries_at(w, &q), .kv = keys_of(w, &q),
       .first_key = p->batch.first_key, .out = results_at(w, &q, either(w, ATTENDED, OUT_BY_HEADS)),
       .lse = sums_at(w, &q), .c = p->model->compute);
}

/* Training attends within the microbatch, by first_key. Generation attends to the cache, which has one
 * sequence and so needs no first_key. */
void attend_forward(const LayerPass *w) {
    const Model *m = w->pass->model;
    if (w->pass->cache) {
        attend_to_cache(w, heads_of(w), w->tensors[QKV], w->tensors[ATTENDED]);
        return;
    }
    if (model_segments(m) > 1) copy_keys(w, 0, m->tokens, w->tensors[SEGMENT_KEYS], segment_first(w));
    for (int i = 0; i < model_query_runs(m); i++) attend_run(w, i);
}

/* Gives each split its copy of the KV heads that it shares with others. Copies of one head are adjacent. */
static void spread_keys(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    Queries q = queries_of(w, 0);
    int splits = model_key_splits(m);
    size_t e = dtype_bytes(m->compute), row = (size_t)(splits * key_width(q.s)) * e;
    for (int i = 0; i < splits * 2 * q.s.kv_heads; i++)
        OP(p->device, copy_rows, .rows = q.r.keys, .bytes = (size_t)q.s.head_dim * e,
           .to = model_at(m, w->tensors[SPREAD], (int64_t)i * q.s.head_dim), .to_stride = row,
           .from = model_at(m, keys_of(w, &q), (int64_t)(i / splits) * q.s.head_dim),
           .from_stride = (size_t)q.r.kv_row * e);
}

/* Reorders KV_PARTIALS, where each split's heads are side by side, split by split, and sums the splits in the
 * canonical tree into KV_PARTIALS. */
static void sum_partials(const LayerPass *w) {
    const Pass *p = w->pass;
    Queries q = queries_of(w, 0);
    int splits = model_key_splits(p->model);
    int64_t width = key_width(q.s), dim = q.s.head_dim;
    float *apart = w->tensors[APART], *partials = w->tensors[KV_PARTIALS];
    const float *ops[SPLITS_MAX];
    for (int i = 0; i < splits * 2 * q.s.kv_heads; i++)
        OP(p->device, copy_rows, .rows = q.r.keys, .bytes = (size_t)dim * sizeof *apart,
           .to = apart + i % splits * q.r.keys * width + i / splits * dim,
           .to_stride = (size_t)width * sizeof *apart, .from = partials + i * dim,
           .from_stride = (size_t)(splits * width) * sizeof *partials);
    for (int i = 0; i < splits; i++) ops[i] = apart + i * q.r.keys * width;
    OP(p->device, sum_partials, q.r.keys * width, splits, ops, partials);
}

static void run_backward(const LayerPass *w, int run, void *dkv) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    Queries q = queries_of(w, run);
    const void *keys = keys_of(w, &q);
    if (model_key_splits(m) > 1)
        q.s.kv_heads *= model_key_splits(m), q.r.kv_row = key_width(q.s), keys = w->tensors[SPREAD];
    OP(p->device, attention_backward, .s = q.s, .r = q.r, .q = queries_at(w, &q), .kv = keys,
       .first_key = p->batch.first_key, .out = results_at(w, &q, either(w, ATTENDED, OUT_BY_HEADS)),
       .lse = sums_at(w, &q), .dout = results_at(w, &q, either(w, DATTENDED, A2A_PACKED)),
       .dq = model_at(m, either(w, DQKV, A2A_RECEIVED), q.at * q.r.q_row), .dkv = dkv, .c = m->compute);
}

/* Sums the partial sums of `count` runs in the order of the canonical tree into `to`; the memory after it is
 * scratch. */
static void add_partials(const LayerPass *w, int first, int count, float *to) {
    const Model *m = w->pass->model;
    if (count == 1) {
        run_backward(w, model_query_run(m, first), to);
        return;
    }
    Queries q = queries_of(w, 0);
    int64_t elements = q.r.keys * model_key_splits(m) * key_width(q.s);
    int grads = tree_half(count);
    const float *ops[2] = {to, to + elements};
    add_partials(w, first, grads, to);
    add_partials(w, first + grads, count - grads, to + elements);
    OP(w->pass->device, sum_partials, elements, 2, ops, to);
}

/* ---- segments ---- */

/* The sums of gradients of keys and values while a microbatch's backward passes go down through its segments.
 * With exact chunks, runs of queries are added in the order of add_partials, in which a run and its mirror
 * image are a pair: the upper half of the runs wait, each as the sum of its pair; then each run of the lower
 * half completes a pair, and pairs are added as far as the tree goes. Runs that have not come yet see none of
 * the segment's keys: in the tree their terms are zeros, and left out. Without exact chunks there is one sum,
 * in the order of the passes. */
typedef struct KeySums {
    const LayerPass *w;
    float *sums; /* [pairs, tokens of the microbatch, width] */
    int64_t keys, width, apart;
    int runs, pairs, lowest; /* of the microbatch; the lowest run so far */
} KeySums;

static float *key_sum(const KeySums *k, int pair) { return k->sums + pair * k->apart; }

/* Adds rows of two sums into the first. */
static void add_key_sums(const KeySums *k, int64_t first, int64_t rows, float *to, const float *from) {
    const float *ops[2] = {to + first * k->width, from + first * k->width};
    OP(k->w->pass->device, sum_partials, rows * k->width, 2, ops, to + first * k->width);
}

/* A run of the microbatch, `local` of the segment. */
static void add_run(const KeySums *k, int run, int local) {
    bool begins =
        k->runs == 1 ? k->w->pass->segment == model_segments(k->w->pass->model) - 1 : run >= k->pairs;
    int pair = k->runs == 1 ? 0 : run < k->pairs ? run : k->runs - 1 - run;
    float *made = begins ? key_sum(k, pair) : k->w->tensors[KV_PARTIALS];
    run_backward(k->w, local, made);
    if (begins) return;
    add_key_sums(k, 0, k->keys, key_sum(k, pair), made);
    for (int n = 1; pair % (2 * n) == 0 && pair + 2 * n <= k->pairs; n *= 2)
        add_key_sums(k, 0, k->keys, key_sum(k, pair), key_sum(k, pair + n));
}

/* Adds up the segment's own rows of `count` pairs, which are a subtree, into the first of them; false: none
 * of them has begun. */
static bool add_pairs(const KeySums *k, int first, int count) {
    int half = count / 2, begun = k->runs - k->lowest;
    if (first >= begun) return false;
    if (count == 1 || first >= k->lowest) return true;
    add_pairs(k, first, half);
    if (add_pairs(k, first + half, half))
        add_key_sums(k, segment_first(k->w), k->w->pass->model->tokens, key_sum(k, first),
                     key_sum(k, first + half));
    return true;
}

static void attend_segment_backward(const LayerPass *w, char *dqkv) {
    const Model *m = w->pass->model;
    int local = model_query_runs(m), segment = w->pass->segment;
    Queries q = queries_of(w, 0);
    KeySums k = {.w = w,
                 .sums = w->tensors[SEGMENT_SUMS],
                 .keys = q.r.keys,
                 .width = key_width(q.s),
                 .apart = model_all_tokens(m) * key_width(q.s),
                 .runs = m->cp.exact_chunks > 0 ? m->cp.exact_chunks : 1,
                 .pairs = model_segment_sums(m),
                 .lowest = segment * local};
    for (int i = local - 1; i >= 0; i--) add_run(&k, k.lowest + i, i);
    if (k.runs > 1) add_pairs(&k, 0, k.pairs);
    take_sums(w, k.sums + segment_first(w) * k.width, m->tokens, dqkv, 0);
}

/* For local tokens and all heads, also with the CP all-to-all. A run is an exact chunk, or lies in one. */
static void sinks_backward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const Param *sinks = sinks_of(w);
    int runs = model_cp_all_to_all(m) ? model_exact_chunks(m) : model_query_runs(m);
    AttentionShape s = shape_of(w);
    s.tokens /= runs;
    if (!sinks) return;
    s.sinks = weights_vector(p->weights, sinks);
    for (int i = 0; i < runs; i++) {
        Queries q = {.s = s, .at = i * s.tokens};
        OP(p->device, sinks_backward, .s = s, .out = results_at(w, &q, w->tensors[ATTENDED]),
           .lse = (const float *)either(w, LSE, LOCAL_LSE) + q.at * s.heads,
           .dout = results_at(w, &q, w->tensors[DATTENDED]),
           .dsinks = gradient_of_exact_chunk(&p->gradients, sinks, i * model_exact_chunks(m) / runs),
           .c = m->compute);
    }
}

void attend_backward(const LayerPass *w, Grads grads) {
    const Model *m = w->pass->model;
    Queries q = queries_of(w, 0);
    char *dqkv = either(w, DQKV, A2A_RECEIVED);
    if (!(grads & DGRAD)) return;
    sinks_backward(w);
    if (model_segments(m) > 1) {
        attend_segment_backward(w, dqkv);
        return;
    }
    if (!model_has_partials(m)) {
        run_backward(w, 0, model_at(m, dqkv, (int64_t)q.s.heads * q.s.head_dim));
        return;
    }
    if (model_key_splits(m) > 1) spread_keys(w);
    add_partials(w, 0, model_query_runs(m), w->tensors[KV_PARTIALS]);
    if (model_key_splits(m) > 1) sum_partials(w);
    if (!sums_dkv_over_ranks(m)) take_partials(w, 0, q.r.keys, dqkv, 0);
}

/* Averages over a sequence of T tokens. Without a window a token sees T / 2 keys. With a window W it sees W -
 * W^2 / (2 T), since all tokens from the W-th on see W. With chunks of W it sees half a chunk, or half of the
 * shorter last one. */
double keys_seen(const ModelConfig *c, int64_t layer, int64_t context) {
    BlockShape block = model_block(c, layer);
    double all = (double)context, window = (double)block.window;
    if (window <= 0 || window >= all) return all / 2;
    double left = (double)(context % block.window);
    return block.chunked ? ((all - left) * window + left * left) / (2 * all)
                         : window - window * window / (2 * all);
}

/* Scores and values: 2 FLOPs each per pair and element of a head, and twice that in the backward pass. */
static Cost attend_cost(const ModelConfig *c, int unit, int64_t context) {
    double pairs = (double)model_dim(c, DIM_QUERY) * keys_seen(c, unit - 1, context);
    return (Cost){4 * pairs, 8 * pairs, 0};
}

static void output_forward(const LayerPass *w) { product_forward(w, &output, w->tensors[ATTENDED], w->y); }

static void output_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD) product_input(w, &output, w->dy, w->tensors[DATTENDED]);
    if (grads & WGRAD) product_weight(w, &output, w->dy, w->tensors[ATTENDED]);
}

/* ---- the layers ---- */

#define SHARED_OPS                                                                     \
    {"attention", LIFE_SAVED, attend_forward, attend_backward, .more = attend_cost}, { \
        "output", LIFE_SAVED, output_forward, output_backward, .product = &output      \
    }
static const LayerOp plain_ops[] = {
    {"q k v", LIFE_SAVED, qkv_forward, qkv_backward, .product = &qkv},
    SHARED_OPS,
};
static const LayerOp normed_ops[] = {
    {"q k v", LIFE_SAVED, raw_forward, raw_backward, .product = &qkv},
    {"norm of q and k", LIFE_CHEAP, heads_forward, heads_backward, .product = NULL},
    SHARED_OPS,
};

#define COLLECTIVES(attends)                                                             \
    {ALL_GATHER_X(OPS(0))}, {REDUCE_SCATTER_DX(OPS(0))}, ATTENTION_COLLECTIVES(attends), \
        {REDUCE_SCATTER_Y(OPS((attends) + 1))}, {                                        \
        ALL_GATHER_DY(OPS((attends) + 1))                                                \
    }
static const Collective plain_collectives[] = {COLLECTIVES(1)};
static const Collective normed_collectives[] = {COLLECTIVES(2)};
static const Collective row_normed_collectives[] = {
    COLLECTIVES(2),
    {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(OPS(0)), ALL_GATHER, TENSOR, SQUARES, SQUARES,
                LOCAL_ROW_SUMS, ONE, FP32),
     .what = "NORM_SUMS"},
    {COLLECTIVE(IN_DGRAD, BEFORE(OPS(0)), ALL_GATHER, TENSOR, PRODUCTS, PRODUCTS, LOCAL_ROW_SUMS, ONE, FP32),
     .what = "NORM_SUMS"},
};

const Layer layer_attention = {.name = "attention",
                               LAYER_ROWS(param, params),
                               LAYER_ROWS(tensor, plain_tensors),
                               LAYER_ROWS(op, plain_ops),
                               LAYER_ROWS(collective, plain_collectives),
                               .cached = DIM_KEY_VALUE};
const Layer layer_normed_attention = {.name = "attention, q and k normed",
                                      LAYER_ROWS(param, params),
                                      LAYER_ROWS(tensor, normed_tensors),
                                      LAYER_ROWS(op, normed_ops),
                                      LAYER_ROWS(collective, normed_collectives),
                                      .cached = DIM_KEY_VALUE};
const Layer layer_row_normed_attention = {.name = "attention, q and k normed as rows",
                                          LAYER_ROWS(param, params),
                                          LAYER_ROWS(tensor, row_normed_tensors),
                                          LAYER_ROWS(op, normed_ops),
                                          LAYER_ROWS(collective, row_normed_collectives),
                                          .cached = DIM_KEY_VALUE};
