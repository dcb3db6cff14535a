/* Causal self-attention with grouped keys and values:
 *
 *     q k v  [q|k|v] = x [Wq;Wk;Wv]^T, q and k turned by their positions
 *     attention   a = softmax(q k^T / sqrt(D)) v, inside documents
 *     output      y = a Wo^T
 *
 * Shapes: T tokens, h hidden, Q = H*D, K = G*D. Generation keeps K keys and K values of each token. */
#include "model/unit.h"

enum { Q_BIAS, K_BIAS, V_BIAS, O_BIAS, Q, K, V, O, PARAMS };
static const ParamRow params[PARAMS] = {
    [Q_BIAS] = {"self_attn.q_proj.bias", DIM_QUERY, .when = WHEN_ATTENTION_BIAS, .cut = CUT_ROWS,
                .init = ROLE_ZEROS},
    [K_BIAS] = {"self_attn.k_proj.bias", DIM_KEY, .when = WHEN_ATTENTION_BIAS, .cut = CUT_ROWS,
                .init = ROLE_ZEROS, .continues = true},
    [V_BIAS] = {"self_attn.v_proj.bias", DIM_KEY, .when = WHEN_ATTENTION_BIAS, .cut = CUT_ROWS,
                .init = ROLE_ZEROS, .continues = true},
    [O_BIAS] = {"self_attn.o_proj.bias", DIM_HIDDEN, .when = WHEN_ATTENTION_BIAS, .init = ROLE_ZEROS},
    [Q] = {"self_attn.q_proj.weight", DIM_QUERY, DIM_HIDDEN, .cut = CUT_ROWS, .init = ROLE_INNER,
           .decays = true},
    [K] = {"self_attn.k_proj.weight", DIM_KEY, DIM_HIDDEN, .cut = CUT_ROWS, .init = ROLE_INNER,
           .decays = true, .continues = true},
    [V] = {"self_attn.v_proj.weight", DIM_KEY, DIM_HIDDEN, .cut = CUT_ROWS, .init = ROLE_INNER,
           .decays = true, .continues = true},
    [O] = {"self_attn.o_proj.weight", DIM_HIDDEN, DIM_QUERY, .cut = CUT_COLUMNS, .init = ROLE_OUT,
           .decays = true},
};

enum { QKV, ATTENDED, LSE, DQKV, DATTENDED, TENSORS };
static const TensorRow tensors[TENSORS] = {
    [QKV] = {.width = DIM_QKV, .life = LIFE_SAVED}, /* turned */
    [ATTENDED] = {.width = DIM_QUERY, .life = LIFE_SAVED, .operand = true},
    [LSE] = {.width = DIM_HEADS, .element = ELEMENT_FP32, .life = LIFE_SAVED}, /* laid out [H, T] */
    [DQKV] = {.width = DIM_QKV, .life = LIFE_SCRATCH, .operand = true},
    [DATTENDED] = {.width = DIM_QUERY, .life = LIFE_SCRATCH},
};

static const Product qkv = {&params[Q], &params[Q_BIAS], DIM_QKV, DIM_HIDDEN};
static const Product output = {&params[O], &params[O_BIAS], DIM_HIDDEN, DIM_QUERY};

static void rotate(const LayerPass *w, void *heads, bool inverse) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    OP(p->device, OP_ROPE, rope, model_attention(m), heads, p->batch.positions, m->cos_sin, inverse,
       m->compute);
}

static void qkv_forward(const LayerPass *w) {
    product_forward(w, &qkv, w->x, w->tensors[QKV]);
    rotate(w, w->tensors[QKV], false);
}

static void qkv_backward(const LayerPass *w, Half half) {
    if (half & HALF_INPUT) rotate(w, w->tensors[DQKV], true);
    if (half & HALF_WEIGHT) product_weight(w, &qkv, w->tensors[DQKV], w->x);
    if (half & HALF_INPUT) product_input(w, &qkv, w->tensors[DQKV], w->dx);
}

/* Puts the new keys and values where the cache wants them: those of a block's tokens one after the other,
 * keys before values. */
static void extend_cache(const LayerPass *w, char **keys, char **values) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const KeyValueCache *cache = p->cache;
    int64_t width = model_dim(&m->config, DIM_KEY), query = model_dim(&m->config, DIM_QUERY);
    size_t e = dtype_bytes(m->compute), row = (size_t)width * e;
    *keys = cache->base + (size_t)(w->unit - 1) * cache->unit_bytes;
    *values = *keys + (size_t)cache->positions * row;
    for (int64_t i = 0; i < m->tokens; i++) {
        const char *key = (const char *)w->tensors[QKV] + (size_t)(i * (query + 2 * width) + query) * e;
        size_t at = (size_t)(cache->start + i) * row;
        OP(p->device, OP_CAST, cast, width, key, m->compute, *keys + at, m->compute);
        OP(p->device, OP_CAST, cast, width, key + row, m->compute, *values + at, m->compute);
    }
}

static void attend(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    void *const *t = w->tensors;
    char *keys, *values;
    if (!p->cache) {
        OP(p->device, OP_ATTENTION_FORWARD, attention_forward, model_attention(m), t[QKV], p->batch.first_key,
           t[ATTENDED], t[LSE], m->compute);
        return;
    }
    extend_cache(w, &keys, &values);
    OP(p->device, OP_ATTENTION_DECODE, attention_decode, model_attention(m), p->cache->start, t[QKV], keys,
       values, t[ATTENDED], m->compute);
}

static void attend_backward(const LayerPass *w, Half half) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    if (half & HALF_INPUT)
        OP(p->device, OP_ATTENTION_BACKWARD, attention_backward, model_attention(p->model), t[QKV],
           p->batch.first_key, t[ATTENDED], t[LSE], t[DATTENDED], t[DQKV], p->model->compute);
}

/* Scores and values: 2 FLOPs each a pair, over half of the context, and twice that on the way back. */
static Cost attend_cost(const ModelConfig *c, int64_t context) {
    double pairs = (double)model_dim(c, DIM_QUERY) * (double)context;
    return (Cost){2 * pairs, 4 * pairs, 0};
}

static void output_forward(const LayerPass *w) { product_forward(w, &output, w->tensors[ATTENDED], w->y); }

static void output_backward(const LayerPass *w, Half half) {
    if (half & HALF_INPUT) product_input(w, &output, w->dy, w->tensors[DATTENDED]);
    if (half & HALF_WEIGHT) product_weight(w, &output, w->dy, w->tensors[ATTENDED]);
}

static const Part parts[] = {
    {"q k v", LIFE_SAVED, qkv_forward, qkv_backward, .product = &qkv},
    {"attention", LIFE_SAVED, attend, attend_backward, .more = attend_cost},
    {"output", LIFE_SAVED, output_forward, output_backward, .product = &output},
};

const Layer layer_attention = {.name = "attention",
                               .params = params,
                               .tensors = tensors,
                               .parts = parts,
                               .param_count = PARAMS,
                               .tensor_count = TENSORS,
                               .part_count = sizeof parts / sizeof *parts,
                               .cached = DIM_KEY_VALUE};
