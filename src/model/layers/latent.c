/* Multi-head latent attention, MLA (DeepSeek-AI, "DeepSeek-V2", 2024). Keys and values of all heads are made
 * from a small latent vector per token, and so are queries, if they have a latent. The rotated part of a key
 * is common to all heads.
 *
 *     down    [cq | ckv | kr] = x [Wqa;Wkva]^T         or [q | ckv | kr] = x [Wq;Wkva]^T
 *     norms   cq and ckv, each by itself
 *     queries q = cq Wqb^T                             per head, N elements without RoPE and R with it
 *     keys and values   [k | v] = ckv Wkvb^T           per head, N and V; heads of N + R after RoPE
 *     attention         as for any heads; values are padded with zeros
 *     output  y = a Wo^T                               without the padding
 *
 * Padding values to the width of keys costs (N + R - V) / (N + R + V) of attention's time, a fifth with the
 * published 128, 64 and 128, but avoids a separate kernel. Costs include it; FLOPs of the model do not.
 * Generation caches keys and values of all heads, not the latents: N + R elements each per head.
 *
 * The latents are side by side in the result of the first product, but norms need contiguous rows: they are
 * copied out in both passes, rather than saved twice.
 *
 * With TP, each rank has some rows of Wqb, or Wq, and of Wkvb, and some columns of Wo. Wqa, Wkva and the
 * norms of latents are replicated, and each rank makes the latents of all tokens from the all-gathered x:
 * they are small, and the forward pass exchanges nothing else. In the backward pass each rank has partial
 * sums of their gradients from its own heads. These are all-reduced (DLATENT), together with the partial sums
 * of x A^T and s dy B of adapters of Wqb and Wkvb. From there on, every rank computes what a single rank
 * would: gradients of Wqa, Wkva, the norms and these adapters' A are complete and equal on all ranks. Only
 * the gradient of x is made for local tokens; where Wq has partial sums of it, it is added after their
 * reduction.
 *
 * Elsewhere called: MLA, multi-head latent attention (DeepSeek). */
#include "model/families/family.h"
#include "device/ops/attention.h"
#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "model/layers/heads.h"
#include "model/unit.h"

/* transformers' classes use this value, whatever rms_norm_eps is. */
#define LATENT_EPS 1e-6f

/* DOWN_Q or PLAIN_Q, whichever the model has, is the first in its flat, and DOWN_KV follows it. */
enum { QUERY_NORM, KEY_NORM, DOWN_Q, PLAIN_Q, DOWN_KV, UP_Q, UP_KV, O, MATRICES };
enum {
    DOWN_Q_A = MATRICES,
    DOWN_Q_B,
    PLAIN_Q_A,
    PLAIN_Q_B,
    DOWN_KV_A,
    DOWN_KV_B,
    UP_Q_A,
    UP_Q_B,
    UP_KV_A,
    UP_KV_B,
    O_A,
    O_B,
    PARAMS
};
enum { DOWN_ROWS = 3 }; /* rows, of which the first product takes two */
static const ParamRow params[PARAMS] = {
    [QUERY_NORM] = {"self_attn.q_a_layernorm.weight", DIM_LATENT_QUERY, .when = WHEN_LATENT_QUERIES,
                    .init = ROLE_NORM, .latent = true},
    [KEY_NORM] = {"self_attn.kv_a_layernorm.weight", DIM_LATENT_KEY, .init = ROLE_NORM, .latent = true},
    [DOWN_Q] = {"self_attn.q_a_proj.weight", DIM_LATENT_QUERY, DIM_HIDDEN, .when = WHEN_LATENT_QUERIES,
                .init = ROLE_INNER, .decays = true, .latent = true},
    [PLAIN_Q] = {"self_attn.q_proj.weight", DIM_QUERY, DIM_HIDDEN, .when = WHEN_FULL_QUERIES,
                 .tp = COLUMN_PARALLEL, .init = ROLE_INNER, .decays = true, .continues = true},
    [DOWN_KV] = {"self_attn.kv_a_proj_with_mqa.weight", DIM_LATENT_DOWN, DIM_HIDDEN, .init = ROLE_INNER,
                 .decays = true, .continues = true, .latent = true},
    [UP_Q] = {"self_attn.q_b_proj.weight", DIM_QUERY, DIM_LATENT_QUERY, .when = WHEN_LATENT_QUERIES,
              .tp = COLUMN_PARALLEL, .init = ROLE_INNER, .decays = true, .of_latents = true},
    [UP_KV] = {"self_attn.kv_b_proj.weight", DIM_LATENT_UP, DIM_LATENT_KEY, .tp = COLUMN_PARALLEL,
               .init = ROLE_INNER, .decays = true, .of_latents = true},
    [O] = {"self_attn.o_proj.weight", DIM_HIDDEN, DIM_VALUES, .tp = ROW_PARALLEL, .init = ROLE_OUT,
           .decays = true},
    ADAPTER_ROWS(DOWN_Q, DIM_LATENT_QUERY, DIM_HIDDEN),
    ADAPTER_ROWS(PLAIN_Q, DIM_QUERY, DIM_HIDDEN),
    ADAPTER_ROWS(DOWN_KV, DIM_LATENT_DOWN, DIM_HIDDEN),
    ADAPTER_ROWS(UP_Q, DIM_QUERY, DIM_LATENT_QUERY),
    ADAPTER_ROWS(UP_KV, DIM_LATENT_UP, DIM_LATENT_KEY),
    ADAPTER_ROWS(O, DIM_HIDDEN, DIM_VALUES),
};

/* ATTENDED is padded with zeros after each head's values. */
enum {
    DOWN = ATTENTION_TENSORS,
    KEY_LATENT, /* normed */
    KEY_RSTD,
    UP,     /* then its gradient */
    VALUES, /* ATTENDED without padding; then its gradient */
    RAW,    /* a latent before its norm */
    DRAW,
    DKEY_LATENT,
    DDOWN,
    /* Partial sums of the gradients of the latent of keys, of the common key, and of the latent of queries;
     * and of the adapters' intermediates. */
    MADE_PARTIALS,
    KEYS_TENSORS,
    QUERY_LATENT = KEYS_TENSORS,
    QUERY_RSTD,
    QUERIES, /* then their gradient */
    DQUERY_LATENT,
    TENSORS
};
static const TensorRow tensors[TENSORS] = {
    [QKV] = {.width = DIM_QKV, .life = LIFE_SAVED},
    [DQKV] = {.width = DIM_QKV, .life = LIFE_SCRATCH},
    SHARED_TENSORS,
    [DOWN] = {.width = DIM_LATENT_ALL, .life = LIFE_SAVED},
    [KEY_LATENT] = {.width = DIM_LATENT_KEY, .life = LIFE_CHEAP, .operand = true},
    [KEY_RSTD] = {.width = DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_CHEAP},
    [UP] = {.width = DIM_LATENT_UP, .life = LIFE_SCRATCH, .operand = true},
    [VALUES] = {.width = DIM_VALUES, .life = LIFE_SCRATCH},
    [RAW] = {.width = DIM_LATENT_WIDEST, .life = LIFE_SCRATCH},
    [DRAW] = {.width = DIM_LATENT_WIDEST, .life = LIFE_SCRATCH},
    [DKEY_LATENT] = {.width = DIM_LATENT_KEY, .life = LIFE_SCRATCH},
    [DDOWN] = {.width = DIM_LATENT_ALL, .life = LIFE_SCRATCH, .operand = true},
    [MADE_PARTIALS] = {.width = DIM_LATENT_MADE,
                       .element = ELEMENT_FP32,
                       .life = LIFE_SCRATCH,
                       .need = NEED_TP},
    [QUERY_LATENT] = {.width = DIM_LATENT_QUERY, .life = LIFE_CHEAP, .operand = true},
    [QUERY_RSTD] = {.width = DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_CHEAP},
    [QUERIES] = {.width = DIM_QUERY, .life = LIFE_SCRATCH, .operand = true},
    [DQUERY_LATENT] = {.width = DIM_LATENT_QUERY, .life = LIFE_SCRATCH},
};

static const Product down = {&params[DOWN_Q], NULL, DOWN_ROWS, DIM_LATENT_ALL, DIM_HIDDEN};
static const Product keys_down = {&params[PLAIN_Q], NULL, DOWN_ROWS - 1, DIM_LATENT_ALL, DIM_HIDDEN};
static const Product queries = {&params[UP_Q], NULL, 1, DIM_QUERY, DIM_LATENT_QUERY};
static const Product keys_values = {&params[UP_KV], NULL, 1, DIM_LATENT_UP, DIM_LATENT_KEY};
static const Product output = {&params[O], NULL, 1, DIM_HIDDEN, DIM_VALUES};

static int64_t dim_of(const LayerPass *w, Dim dim) { return model_dim(&w->pass->model->config, dim); }
static bool has_latent_queries(const LayerPass *w) { return dim_of(w, DIM_LATENT_QUERY) > 0; }

/* Column of DOWN where the latent of keys and values begins: after that of queries, or after the queries. */
static int64_t first_of_keys(const LayerPass *w) {
    return dim_of(w, DIM_LATENT_ALL) - dim_of(w, DIM_LATENT_DOWN);
}

/* The common key is the last part of DOWN, or of its gradient. */
static void *common_key(const LayerPass *w, int tensor) {
    return model_at(w->pass->model, w->tensors[tensor],
                    dim_of(w, DIM_LATENT_ALL) - w->pass->model->config.qk_rope_head_dim);
}

/* Copies columns of one matrix into another. */
static void copy_columns(const LayerPass *w, int64_t rows, int64_t columns, const void *from,
                         int64_t from_row, void *to, int64_t to_row) {
    size_t e = dtype_bytes(w->pass->model->compute);
    OP(w->pass->device, copy_rows, .rows = rows, .bytes = (size_t)columns * e, .to = to,
       .to_stride = (size_t)to_row * e, .from = from, .from_stride = (size_t)from_row * e);
}

/* ---- down ---- */

static void down_forward(const LayerPass *w) { product_forward(w, &down, w->x, w->tensors[DOWN]); }

/* dx [tokens, h] from the given columns (`splits`) of the gradient of the first product's result, for
 * `tokens` tokens from `first` on. */
static void down_input(const LayerPass *w, int64_t first, int64_t tokens, KSplit splits, Dtype type,
                       bool add) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t hidden = m->config.hidden_size, all = dim_of(w, DIM_LATENT_ALL);
    OP(p->device, gemm, .m = tokens, .n = hidden, .k = all, .a = model_at(m, w->tensors[DDOWN], first * all),
       .b = weights_matrix(p->weights, product_matrix(w, &down)), .ab_type = m->compute, .c = w->dx,
       .c_type = type, .ldc = hidden, .accumulate = add, .splits = splits);
}

static void down_backward(const LayerPass *w, Grads grads) {
    const Model *m = w->pass->model;
    int64_t own = model_local_tokens(m);
    if (grads & WGRAD) product_weight(w, &down, w->tensors[DDOWN], w->x);
    if (!(grads & DGRAD)) return;
    if (m->tp.size == 1) {
        product_input(w, &down, w->tensors[DDOWN], w->dx);
        return;
    }
    int64_t first = m->tp.rank * own, all = dim_of(w, DIM_LATENT_ALL);
    down_input(w, first, own, model_one_split(m, all), m->compute, false);
    product_full_input(w, &down, own, model_at(m, w->tensors[DDOWN], first * all), w->dx);
}

/* Without a latent of queries: adds the gradient through the latent of keys to that through the queries. */
static void add_keys_down(const LayerPass *w, int64_t first, int64_t tokens) {
    const Model *m = w->pass->model;
    int64_t keys = dim_of(w, DIM_LATENT_DOWN);
    KSplit splits = {.runs = 1, .run = {{.length = keys, .split_size = keys, .skip = first_of_keys(w)}}};
    down_input(w, first, tokens, splits, m->compute, true);
    product_full_input(w, &keys_down, tokens,
                       model_at(m, w->tensors[DDOWN], first * dim_of(w, DIM_LATENT_ALL)), w->dx);
}

/* TP may shard the queries. */
static void keys_down_backward(const LayerPass *w, Grads grads) {
    const Model *m = w->pass->model;
    if (grads & WGRAD) product_weight(w, &keys_down, w->tensors[DDOWN], w->x);
    if (!(grads & DGRAD)) return;
    if (m->tp.splits == 1) {
        product_input(w, &keys_down, w->tensors[DDOWN], w->dx);
        return;
    }
    down_input(w, 0, m->tokens, model_k_split(m, DIM_QUERY), m->tp.size > 1 ? DTYPE_F32 : m->compute, false);
    product_adapters_input(w, &keys_down, w->tensors[DDOWN], w->dx);
    if (m->tp.size == 1) add_keys_down(w, 0, m->tokens);
}

static void keys_down_summed(const LayerPass *w, const Collective *c) {
    (void)c;
    const Model *m = w->pass->model;
    int64_t own = model_local_tokens(m);
    add_keys_down(w, m->tp.rank * own, own);
}

/* ---- norms of the latents ---- */

typedef struct Latent {
    int norm, normed, rstd, gradient; /* row of the parameter, and tensors */
    Dim width;
    int64_t first; /* its column in DOWN */
} Latent;
static Latent query_latent(void) {
    return (Latent){QUERY_NORM, QUERY_LATENT, QUERY_RSTD, DQUERY_LATENT, DIM_LATENT_QUERY, 0};
}
static Latent key_latent(const LayerPass *w) {
    return (Latent){KEY_NORM, KEY_LATENT, KEY_RSTD, DKEY_LATENT, DIM_LATENT_KEY, first_of_keys(w)};
}

static const Param *norm_of(const LayerPass *w, Latent l) {
    return param_of(&w->pass->model->table, w->unit, &params[l.norm]);
}

static void take_raw(const LayerPass *w, Latent l) {
    const Model *m = w->pass->model;
    int64_t width = dim_of(w, l.width);
    copy_columns(w, m->tokens, width, model_at(m, w->tensors[DOWN], l.first), dim_of(w, DIM_LATENT_ALL),
                 w->tensors[RAW], width);
}

static void normalise(const LayerPass *w, Latent l) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    take_raw(w, l);
    OP(p->device, norm_forward, .kind = NORM_RMS, .tokens = p->model->tokens, .hidden = dim_of(w, l.width),
       .eps = LATENT_EPS, .a = t[RAW], .w = weights_vector(p->weights, norm_of(w, l)), .y = t[l.normed],
       .rstd = t[l.rstd], .c = p->model->compute);
}

static void norms_forward(const LayerPass *w) {
    if (has_latent_queries(w)) normalise(w, query_latent());
    normalise(w, key_latent(w));
}

/* Offsets in MADE_PARTIALS. The latent of keys comes first. */
static float *common_key_partials(const LayerPass *w) {
    return (float *)w->tensors[MADE_PARTIALS] + w->pass->model->tokens * dim_of(w, DIM_LATENT_KEY);
}
static float *query_partials(const LayerPass *w) {
    return common_key_partials(w) + w->pass->model->tokens * dim_of(w, DIM_LATENT_ROPE);
}

static float *query_inner(const LayerPass *w) {
    return query_partials(w) + w->pass->model->tokens * dim_of(w, DIM_LATENT_QUERY);
}
static float *key_inner(const LayerPass *w) {
    int64_t width = has_latent_queries(w) ? dim_of(w, DIM_ADAPTER) : 0;
    return query_inner(w) + w->pass->model->tokens * width;
}

/* The gradient of a latent from the heads: [T, latent] c to dx; with TP, partial sums, and those of adapters
 * to `inner`, zeros where there are none. */
static void input_of_latent(const LayerPass *w, const Product *p, const void *dy, int latent, void *dx,
                            float *inner) {
    const Model *m = w->pass->model;
    Shared shared = *w->shared;
    LayerPass of = *w;
    shared.inner = inner, of.shared = &shared, of.local_x = w->tensors[latent];
    product_input(&of, p, dy, dx);
    if (m->tp.size > 1 && m->config.adapter_replicated && product_adapters(m, w->unit, p) == 0)
        OP(w->pass->device, zero, inner, (size_t)(m->tokens * dim_of(w, DIM_ADAPTER)) * sizeof *inner);
}

static void round_sums(const LayerPass *w, Dim width, const float *sums, void *to) {
    const Model *m = w->pass->model;
    OP(w->pass->device, cast, m->tokens * dim_of(w, width), sums, DTYPE_F32, to, m->compute);
}

/* Rounds the reduced sums into the tensors where a single rank has its gradients. */
static void take_sums(const LayerPass *w) {
    int64_t rope = dim_of(w, DIM_LATENT_ROPE);
    void *const *t = w->tensors;
    if (has_latent_queries(w)) round_sums(w, DIM_LATENT_QUERY, query_partials(w), t[DQUERY_LATENT]);
    round_sums(w, DIM_LATENT_KEY, t[MADE_PARTIALS], t[DKEY_LATENT]);
    round_sums(w, DIM_LATENT_ROPE, common_key_partials(w), t[DRAW]);
    copy_columns(w, w->pass->model->tokens, rope, t[DRAW], rope, common_key(w, DDOWN),
                 dim_of(w, DIM_LATENT_ALL));
    if (has_latent_queries(w))
        product_latents_summed(w, &queries, query_inner(w), t[QUERY_LATENT], t[DQUERY_LATENT]);
    product_latents_summed(w, &keys_values, key_inner(w), t[KEY_LATENT], t[DKEY_LATENT]);
}

/* Gradients of the weights are sums over all tokens, and have no splits. */
static void normalise_backward(const LayerPass *w, Latent l) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    void *const *t = w->tensors;
    const Param *norm = norm_of(w, l);
    int64_t width = dim_of(w, l.width), rows = model_exact_chunk(m, m->tokens);
    take_raw(w, l);
    for (int r = 0; r < model_exact_chunks(m); r++)
        OP(p->device, norm_backward, .kind = NORM_RMS, .tokens = rows, .hidden = width,
           .x = model_at(m, t[RAW], r * rows * width), .w = weights_vector(p->weights, norm),
           .rstd = (const float *)t[l.rstd] + r * rows, .dy = model_at(m, t[l.gradient], r * rows * width),
           .dx = model_at(m, t[DRAW], r * rows * width),
           .dw = gradient_of_exact_chunk(&p->gradients, norm, r), .split_size = rows, .c = m->compute);
    copy_columns(w, m->tokens, width, t[DRAW], width, model_at(m, t[DDOWN], l.first),
                 dim_of(w, DIM_LATENT_ALL));
}

static void norms_backward(const LayerPass *w, Grads grads) {
    if (!(grads & DGRAD)) return;
    if (w->pass->model->tp.size > 1) take_sums(w);
    if (has_latent_queries(w)) normalise_backward(w, query_latent());
    normalise_backward(w, key_latent(w));
}

/* ---- queries ---- */

static void queries_forward(const LayerPass *w) {
    product_forward(w, &queries, w->tensors[QUERY_LATENT], w->tensors[QUERIES]);
}

static void queries_backward(const LayerPass *w, Grads grads) {
    void *const *t = w->tensors;
    bool partials = w->pass->model->tp.size > 1;
    if (grads & DGRAD)
        input_of_latent(w, &queries, t[QUERIES], QUERY_LATENT,
                        partials ? query_partials(w) : t[DQUERY_LATENT], partials ? query_inner(w) : NULL);
    if (grads & WGRAD) product_weight(w, &queries, t[QUERIES], t[QUERY_LATENT]);
}

/* ---- keys and values, and heads of all three ---- */

static LatentShape heads_of(const LayerPass *w) {
    const Model *m = w->pass->model;
    const ModelConfig *c = &m->config;
    int64_t row = dim_of(w, DIM_LATENT_ALL);
    return (LatentShape){.tokens = m->tokens,
                         .heads = (int)c->num_attention_heads,
                         .nope = (int)c->qk_nope_head_dim,
                         .rope = (int)c->qk_rope_head_dim,
                         .value = (int)c->v_head_dim,
                         .q_row = has_latent_queries(w) ? dim_of(w, DIM_QUERY) : row,
                         .key_row = row,
                         .splits = model_local_splits(m)};
}

static void keys_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    product_forward(w, &keys_values, t[KEY_LATENT], t[UP]);
    OP(p->device, latent_forward, .s = heads_of(w), .q = has_latent_queries(w) ? t[QUERIES] : t[DOWN],
       .own = t[UP], .key = common_key(w, DOWN), .positions = p->batch.positions,
       .cos_sin = model_angles(p->model, 0), .qkv = attend_made(w), .c = p->model->compute);
}

static void heads_backward(const LayerPass *w, LatentShape s, void *common_key) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    OP(p->device, latent_backward, .s = s, .dqkv = t[DQKV], .positions = p->batch.positions,
       .cos_sin = model_angles(p->model, 0), .dq = has_latent_queries(w) ? t[QUERIES] : t[DDOWN],
       .down = t[UP], .dkey = common_key, .c = p->model->compute);
}

static void keys_backward(const LayerPass *w, Grads grads) {
    void *const *t = w->tensors;
    LatentShape s = heads_of(w);
    s.partial = w->pass->model->tp.size > 1;
    if (s.partial) s.key_row = s.rope;
    if (grads & DGRAD) {
        attend_take_sums(w);
        heads_backward(w, s, s.partial ? common_key_partials(w) : common_key(w, DDOWN));
        input_of_latent(w, &keys_values, t[UP], KEY_LATENT, s.partial ? t[MADE_PARTIALS] : t[DKEY_LATENT],
                        s.partial ? key_inner(w) : NULL);
    }
    if (grads & WGRAD) product_weight(w, &keys_values, t[UP], t[KEY_LATENT]);
}

/* ---- attention ---- */

/* Per pair: `keys` and `values` elements of all heads, 2 FLOPs each, and twice that in the backward pass. */
static Cost pairs_cost(const ModelConfig *c, int unit, int64_t context, Dim keys, Dim values) {
    double pairs = (double)(model_dim(c, keys) + model_dim(c, values)) * keys_seen(c, unit - 1, context);
    return (Cost){2 * pairs, 4 * pairs, 0};
}
static Cost attend_cost(const ModelConfig *c, int unit, int64_t context) {
    return pairs_cost(c, unit, context, DIM_QUERY, DIM_QUERY);
}
static Cost attend_needed(const ModelConfig *c, int unit, int64_t context) {
    return pairs_cost(c, unit, context, DIM_QUERY, DIM_VALUES);
}

/* ---- output ---- */

/* Copies values without padding; each head of a token is a row. */
static void narrow(const LayerPass *w) {
    const ModelConfig *c = &w->pass->model->config;
    copy_columns(w, w->pass->model->tokens * c->num_attention_heads, c->v_head_dim, w->tensors[ATTENDED],
                 c->head_dim, w->tensors[VALUES], c->v_head_dim);
}

/* Pads with zeros, since the padding must be finite. */
static void widen(const LayerPass *w) {
    const Model *m = w->pass->model;
    const ModelConfig *c = &m->config;
    OP(w->pass->device, zero, w->tensors[DATTENDED],
       (size_t)(m->tokens * dim_of(w, DIM_QUERY)) * dtype_bytes(m->compute));
    copy_columns(w, m->tokens * c->num_attention_heads, c->v_head_dim, w->tensors[VALUES], c->v_head_dim,
                 w->tensors[DATTENDED], c->head_dim);
}

static void output_forward(const LayerPass *w) {
    narrow(w);
    product_forward(w, &output, w->tensors[VALUES], w->y);
}

static void output_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD) {
        product_input(w, &output, w->dy, w->tensors[VALUES]);
        widen(w);
    }
    if (grads & WGRAD) {
        narrow(w);
        product_weight(w, &output, w->dy, w->tensors[VALUES]);
    }
}

/* ---- the two layers ---- */

#define NORMS_OP \
    { "norms of latents", LIFE_CHEAP, norms_forward, norms_backward, .product = NULL }
#define LAST_OPS                                                                           \
    {"keys and values", LIFE_SAVED, keys_forward, keys_backward, .product = &keys_values}, \
        {"attention",     LIFE_SAVED,          attend_forward,                             \
         attend_backward, .more = attend_cost, .needed = attend_needed},                   \
    {                                                                                      \
        "output", LIFE_SAVED, output_forward, output_backward, .product = &output          \
    }
static const LayerOp ops[] = {{"down", LIFE_SAVED, down_forward, down_backward, .product = &down},
                              NORMS_OP,
                              {"queries", LIFE_SAVED, queries_forward, queries_backward, .product = &queries},
                              LAST_OPS};
static const LayerOp keys_ops[] = {
    {"down", LIFE_SAVED, down_forward, keys_down_backward, .product = &keys_down}, NORMS_OP, LAST_OPS};

/* `attends`: index of the attention op. */
#define COLLECTIVES(attends)                                                                            \
    {ALL_GATHER_X(OPS(0))},                                                                             \
        {COLLECTIVE(IN_DGRAD, BEFORE(OPS(1)), ALL_REDUCE, TENSOR, MADE_PARTIALS, MADE_PARTIALS, TOKENS, \
                    LATENT_MADE, FP32),                                                                 \
         .what = "DLATENT"},                                                                            \
        ATTENTION_COLLECTIVES(attends), {REDUCE_SCATTER_Y(OPS((attends) + 1))}, {                       \
        ALL_GATHER_DY(OPS((attends) + 1))                                                               \
    }
static const Collective collectives[] = {COLLECTIVES(4)};
static const Collective keys_collectives[] = {COLLECTIVES(3),
                                              {REDUCE_SCATTER_DX(OPS(0)), .unpack = keys_down_summed}};

const Layer layer_latent = {.name = "latent attention",
                            LAYER_ROWS(param, params),
                            LAYER_ROWS(tensor, tensors),
                            LAYER_ROWS(op, ops),
                            LAYER_ROWS(collective, collectives),
                            .cached = DIM_KEY_VALUE};
const Layer layer_latent_keys = {.name = "latent attention, queries without a latent",
                                 LAYER_ROWS(param, params),
                                 .tensors = tensors,
                                 LAYER_ROWS(op, keys_ops),
                                 LAYER_ROWS(collective, keys_collectives),
                                 .tensor_count = KEYS_TENSORS,
                                 .cached = DIM_KEY_VALUE};
