/* The embedding: y[t] = W[ids[t]]. Its input is the microbatch itself, so nothing is saved; its backward pass
 * adds each token's gradient to its row, tokens in ascending order. */
#include "model/unit.h"

static const ParamRow params[] = {
    {"model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, .cut = CUT_ROWS, .init = ROLE_EMBEDDING,
     .decays = true},
};

static const Param *table_of(const Model *m) { return param_of(&m->table, 0, params); }

static void forward(const LayerPass *w) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    OP(p->device, OP_EMBED_FORWARD, embed_forward, m->tokens, m->config.hidden_size, p->batch.ids,
       weights_matrix(p->weights, table_of(m)), w->y, m->compute);
}

static void backward(const LayerPass *w, Half half) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    if (half & HALF_WEIGHT)
        OP(p->device, OP_EMBED_BACKWARD, embed_backward, m->tokens, m->config.hidden_size, p->batch.ids,
           w->dy, gradient_of(&p->gradients, table_of(m)), m->compute);
}

static const Part parts[] = {{"embedding", LIFE_INPUT, forward, backward, .product = NULL}};

const Layer layer_embedding = {
    .name = "embedding", .params = params, .parts = parts, .param_count = 1, .part_count = 1};
