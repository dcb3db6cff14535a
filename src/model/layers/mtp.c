/* Begins the stream of an MTP module for multi-token prediction (DeepSeek-AI, "DeepSeek-V3 technical
 * report", 2024, section 2.2): for each token, from the state after the last block and the embedding of the
 * next token.
 *
 *     embedding and norms   j = [ norm_e(W[ids[t + 1]]) | norm_h(x) ]
 *     joined                y = j Wp^T
 *
 * A block follows in the same unit, then the end of the stream: a norm of the MTP module and the model's
 * head, which predicts the token after the next one (head.c). The last token of a document uses its own
 * embedding: it has no target here, so the result is not used.
 *
 * The embedding is unit 0's. Its gradient from here has memory of its own, as that of a tied head does
 * (weights.h): it is cleared with the first microbatch, and rows are added. The module's parameters are named
 * as a block after the last one. It runs in training only.
 *
 * With TP, each rank holds some rows of the embedding: the lookups of all tokens are partial sums, and their
 * gradient is all-gathered. All else here is of local tokens: Wp is replicated (params.h:
 * param_is_replicated), and its gradient is summed over tp, as a norm's is. */
#include "model/unit.h"

#include "device/ops/linear.h"
#include "device/ops/memory.h"

enum { EMBED_NORM, EMBED_NORM_BIAS, STATE_NORM, STATE_NORM_BIAS, PROJECTION, PARAMS };
static const ParamRow params[PARAMS] = {
    [EMBED_NORM] = {"enorm.weight", DIM_HIDDEN, .init = ROLE_NORM},
    [EMBED_NORM_BIAS] = {"enorm.bias", DIM_HIDDEN, .when = WHEN_LAYER_NORM, .init = ROLE_ZEROS},
    [STATE_NORM] = {"hnorm.weight", DIM_HIDDEN, .init = ROLE_NORM},
    [STATE_NORM_BIAS] = {"hnorm.bias", DIM_HIDDEN, .when = WHEN_LAYER_NORM, .init = ROLE_ZEROS},
    [PROJECTION] = {"eh_proj.weight", DIM_HIDDEN, DIM_JOINED, .init = ROLE_INNER, .decays = true,
                    .replicated = true},
};

enum { EMBEDDED, EMBED_RSTD, STATE_RSTD, JOINED, DJOINED, DEMBEDDED, NORMED, TENSORS };
static const TensorRow tensors[TENSORS] = {
    [EMBEDDED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_SAVED},
    [EMBED_RSTD] = {EXTENT_LOCAL, DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_CHEAP},
    [STATE_RSTD] = {EXTENT_LOCAL, DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_CHEAP},
    [JOINED] = {EXTENT_LOCAL, DIM_JOINED, .life = LIFE_CHEAP, .operand = true},
    [DJOINED] = {EXTENT_LOCAL, DIM_JOINED, .life = LIFE_SCRATCH},
    [DEMBEDDED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_SCRATCH, .operand = true},
    [NORMED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_SCRATCH}, /* one input of j, or its gradient */
};

static const Product projection = {&params[PROJECTION], NULL, 1, DIM_HIDDEN, DIM_JOINED};

static const Param *embedding(const Model *m) { return param_of(&m->table, 0, &layer_embedding.params[0]); }

/* The two halves of j alternate in its rows, but norms read and write contiguous rows. */
typedef enum JoinedInput { INPUT_EMBEDDING, INPUT_STATE } JoinedInput;
static void copy_input(const LayerPass *w, void *joined, JoinedInput input, bool out) {
    const Model *m = w->pass->model;
    size_t narrow = (size_t)m->config.hidden_size * dtype_bytes(m->compute), wide = 2 * narrow;
    char *columns = (char *)joined + (input == INPUT_STATE ? narrow : 0);
    void *rows = w->tensors[NORMED];
    OP(w->pass->device, copy_rows, .rows = model_local_tokens(m), .bytes = narrow, .to = out ? rows : columns,
       .to_stride = out ? narrow : wide, .from = out ? columns : rows, .from_stride = out ? wide : narrow);
}

static void rows_forward(const LayerPass *w) {
    embedding_forward(w, w->pass->next_ids, 1, NULL, w->tensors[EMBEDDED]);
}

static void norms_forward(const LayerPass *w) {
    const Pass *p = w->pass;
    int64_t own = model_local_tokens(p->model);
    void *const *t = w->tensors;
    norm_forward(p, w->unit, &params[EMBED_NORM], own, t[EMBEDDED], NULL, NULL, t[NORMED], t[EMBED_RSTD]);
    copy_input(w, t[JOINED], INPUT_EMBEDDING, false);
    norm_forward(p, w->unit, &params[STATE_NORM], own, w->input, NULL, NULL, t[NORMED], t[STATE_RSTD]);
    copy_input(w, t[JOINED], INPUT_STATE, false);
}

/* The state's gradient is added to the one that the head has written there. */
static void norms_backward(const LayerPass *w, Grads input) {
    const Pass *p = w->pass;
    void *const *t = w->tensors;
    if (!(input & DGRAD)) return;
    copy_input(w, t[DJOINED], INPUT_EMBEDDING, true);
    norm_backward(p, w->unit, &params[EMBED_NORM], t[EMBEDDED], t[EMBED_RSTD], t[NORMED], t[DEMBEDDED],
                  false);
    copy_input(w, t[DJOINED], INPUT_STATE, true);
    norm_backward(p, w->unit, &params[STATE_NORM], w->input, t[STATE_RSTD], t[NORMED], w->dx, true);
}

static void rows_backward(const LayerPass *w, Grads input) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t tokens = model_exact_chunk(m, m->tokens), hidden = m->config.hidden_size;
    const void *all = m->tp.size > 1 ? w->dy : w->tensors[DEMBEDDED];
    if (!(input & WGRAD) || embedding(m)->flat == FLAT_FROZEN) return;
    for (int r = 0; r < model_exact_chunks(m); r++) {
        if (p->first)
            OP(p->device, zero, gradient_tied(&p->gradients, r),
               m->table.flats[0][FLAT_MATRICES] * sizeof(float));
        OP(p->device, embed_backward, .tokens = tokens, .hidden = hidden, .ids = p->next_ids + r * tokens,
           .dout = model_at(m, all, r * tokens * hidden), .rows = model_vocabulary(m), .scale = 1,
           .dtable = gradient_tied(&p->gradients, r), .c = m->compute);
    }
}

static void joined_forward(const LayerPass *w) { product_forward(w, &projection, w->tensors[JOINED], w->y); }

static void joined_backward(const LayerPass *w, Grads input) {
    if (input & DGRAD) {
        product_input(w, &projection, w->local_dy, w->tensors[DJOINED]);
        product_replicated(w, &projection, w->local_dy, w->tensors[JOINED]);
    }
    if (input & WGRAD) product_weight(w, &projection, w->local_dy, w->tensors[JOINED]);
}

static const LayerOp ops[] = {
    {"embedding of next tokens", LIFE_SAVED, rows_forward, rows_backward, .product = NULL},
    {"norms of both", LIFE_CHEAP, norms_forward, norms_backward, .product = NULL},
    {"joined", LIFE_SAVED, joined_forward, joined_backward, .product = &projection},
};

static const Collective collectives[] = {
    {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(OPS(0)), REDUCE_SCATTER, TENSOR, PARTIALS, EMBEDDED, LOCAL,
                HIDDEN, FP32)},
    {COLLECTIVE(IN_WGRAD, BEFORE(OPS(0)), ALL_GATHER, TENSOR, DEMBEDDED, FULL_DY, LOCAL, HIDDEN, COMPUTE)},
};

const Layer layer_mtp = {.name = "module",
                         LAYER_ROWS(param, params),
                         LAYER_ROWS(tensor, tensors),
                         LAYER_ROWS(op, ops),
                         LAYER_ROWS(collective, collectives)};
