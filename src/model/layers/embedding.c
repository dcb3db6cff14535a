/* The embedding: y[t] = s W[ids[t]] (+ P[positions[t]]), with s the root of h in families that scale it, and
 * P in those that learn positions. Its input is the microbatch itself, so nothing is saved; its backward pass
 * adds each token's gradient to its rows, tokens in ascending order.
 *
 * With TP, each rank holds a shard of the rows of both tables, and y is summed over ranks. All partial sums
 * but one, or two with P, are -0 (embed_forward), so the order of the sum does not matter.
 *
 * Its gradients are always accumulated, never overwritten: a microbatch reaches few rows, and clearing all of
 * them for each microbatch would cost more than the pass. Their owner clears them once per step.
 *
 * Elsewhere called: VocabParallelEmbedding (Megatron). */
#include <math.h>

#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "model/families/family.h"
#include "model/unit.h"

enum { TOKENS, POSITIONS, PARAMS };
static const ParamRow params[PARAMS] = {
    [TOKENS] = {"model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, .tp = COLUMN_PARALLEL,
                .init = ROLE_EMBEDDING, .decays = true, .outside = true},
    [POSITIONS] = {"model.embed_positions.weight", DIM_POSITIONS, DIM_HIDDEN, .when = WHEN_LEARNED_POSITIONS,
                   .tp = COLUMN_PARALLEL, .init = ROLE_POSITIONS, .decays = true, .outside = true},
};

/* The tied head is not scaled. In fp32, as is the square root; transformers rounds it to bf16 with the
 * rest. */
static float scale_of(const Model *m) {
    return model_family(&m->config)->arch.scale_embedding ? sqrtf((float)m->config.hidden_size) : 1;
}

static const Param *table_of(const Model *m, int row) { return param_of(&m->table, 0, &params[row]); }

void embedding_forward(const LayerPass *w, const int32_t *ids, float scale, const int32_t *positions,
                       void *y) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t h = m->config.hidden_size;
    bool shared = m->tp.size > 1, narrow = shared && m->compute != DTYPE_F32;
    if (shared) y = narrow ? w->shared->full : (void *)w->shared->partials;
    OP(p->device, embed_forward, .tokens = m->tokens, .hidden = h, .ids = ids,
       .table = weights_matrix(p->weights, table_of(m, TOKENS)), .rows = model_vocabulary(m), .scale = scale,
       .out = y, .c = m->compute);
    if (positions)
        OP(p->device, embed_forward, .tokens = m->tokens, .hidden = h, .ids = positions,
           .table = weights_matrix(p->weights, table_of(m, POSITIONS)), .rows = model_learned(m), .scale = 1,
           .add = true, .out = y, .c = m->compute);
    if (narrow) OP(p->device, cast, m->tokens * h, y, m->compute, w->shared->partials, DTYPE_F32);
}

static void forward(const LayerPass *w) {
    const Pass *p = w->pass;
    bool learned = table_of(p->model, POSITIONS) != NULL;
    embedding_forward(w, p->batch.ids, scale_of(p->model), learned ? p->batch.positions : NULL, w->y);
}

/* Ids have no gradient, so there is only a wgrad. */
static void backward(const LayerPass *w, Grads grads) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const Param *tokens = table_of(m, TOKENS), *positions = table_of(m, POSITIONS);
    if (!(grads & WGRAD)) return;
    int64_t count = model_exact_chunk(m, m->tokens), h = m->config.hidden_size;
    for (int r = 0; r < model_exact_chunks(m); r++) {
        const void *dy = model_at(m, w->dy, r * count * h);
        if (tokens->flat != FLAT_FROZEN)
            OP(p->device, embed_backward, .tokens = count, .hidden = h, .ids = p->batch.ids + r * count,
               .dout = dy, .rows = model_vocabulary(m), .scale = scale_of(m),
               .dtable = gradient_of_exact_chunk(&p->gradients, tokens, r), .c = m->compute);
        if (positions && positions->flat != FLAT_FROZEN)
            OP(p->device, embed_backward, .tokens = count, .hidden = h, .ids = p->batch.positions + r * count,
               .dout = dy, .rows = model_learned(m), .scale = 1,
               .dtable = gradient_of_exact_chunk(&p->gradients, positions, r), .c = m->compute);
    }
}

static const LayerOp ops[] = {{"embedding", LIFE_ALWAYS, forward, backward, .product = NULL}};

static const Collective collectives[] = {
    {REDUCE_SCATTER_Y(OPS(0))},
    {COLLECTIVE(IN_WGRAD, BEFORE(OPS(0)), ALL_GATHER, TENSOR, UNIT_DY, FULL_DY, LOCAL, HIDDEN, COMPUTE)},
};

const Layer layer_embedding = {
    .name = "embedding", LAYER_ROWS(param, params), LAYER_ROWS(op, ops), LAYER_ROWS(collective, collectives)};
