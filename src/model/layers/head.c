/* The last unit: final norm, head, loss.
 *
 *     norm           n = norm(x)
 *     head and loss  logits = cap(n W^T), loss of each token
 *
 * The head runs over chunks of tokens, and for each chunk does everything that needs its logits - loss, their
 * gradient, and both halves of the head's backward pass - before the next chunk overwrites them: logits never
 * exist whole. So its forward pass makes both gradients of the product, and its backward pass is the norm's.
 * Where the weight half is deferred, it makes the logits again. With tied embeddings W is the embedding's,
 * and its gradient from here goes to memory of its own, laid out as all of unit 0: what of it is not the
 * embedding's stays zero.
 *
 * Where ranks share the vocabulary each makes its own logits of a chunk; then they exchange records of 16
 * bytes a token and leaf, from which all make the same loss, and each the gradient of its own logits. So a
 * chunk has two halves there, UnitPass.slice: what makes logits and records, and what uses them.
 *
 * Logits are capped, c tanh(l / c), where the family does that (Gemma team, "Gemma 2", 2024).
 *
 * Further heads (Gloeckle et al., "Better & faster large language models via multi-token prediction", 2024)
 * have matrices of their own on the same normed states, the k-th for the k-th token behind the next one. They
 * are there for training alone: each does with a chunk what the head has done, before the next chunk comes,
 * and adds its gradient to that of the states. Where there are any, the head is not tied (config.c). What the
 * states' gradient is a sum of then is heads, and of each leaves of the vocabulary, which ranks may share:
 * each leaf is added up over the heads first, and leaves then in the tree, on one rank as on several, so that
 * ranks sum once for all heads.
 *
 * A module (module.c) uses the head's own matrix once more, on the end of its stream behind a norm of its
 * own. Its block has matrices beside this one, of which gradients are made on the way back: so there the
 * head's are too, whose weight half is deferred with all others. The module's comes first, and sets. Logits
 * that are made again need records of all ranks again: those of both heads are kept from the forward pass,
 * and none cross twice.
 *
 * Elsewhere called: lm_head, fused linear cross-entropy, vocab-parallel cross-entropy (Megatron). */
#include "model/unit.h"

enum { MODULE_NORM, MODULE_NORM_BIAS, NORM, NORM_BIAS, HEAD, FURTHER, PARAMS };
static const ParamRow params[PARAMS] = {
    [MODULE_NORM] = {"shared_head.norm.weight", DIM_HIDDEN, .init = ROLE_NORM},
    [MODULE_NORM_BIAS] = {"shared_head.norm.bias", DIM_HIDDEN, .when = WHEN_LAYER_NORM, .init = ROLE_ZEROS},
    [NORM] = {"model.norm.weight", DIM_HIDDEN, .init = ROLE_NORM, .outside = true},
    [NORM_BIAS] = {"model.norm.bias", DIM_HIDDEN, .when = WHEN_LAYER_NORM, .init = ROLE_ZEROS,
                   .outside = true},
    [HEAD] = {"lm_head.weight", DIM_VOCAB, DIM_HIDDEN, .when = WHEN_UNTIED, .cut = CUT_ROWS,
              .init = ROLE_HEAD, .decays = true, .outside = true},
    [FURTHER] = {"lm_heads.weight", DIM_FURTHER, DIM_HIDDEN, .cut = CUT_ROWS, .init = ROLE_HEAD,
                 .decays = true, .outside = true},
};

enum {
    DNORMED,
    RSTD,
    NORMED,
    LOGITS,
    DLOGITS,
    APART,
    TENSORS,
    KEPT = TENSORS, /* records */
    MODULE_DNORMED,
    MODULE_RSTD,
    MODULE_NORMED,
    MODULE_KEPT,
    ALL_TENSORS
};
/* DNORMED is made by the forward pass, and used up by the backward pass. In fp32 DLOGITS are in the logits'
 * place. */
#define SHARED_ROWS                                                                 \
    [DNORMED] = {EXTENT_OWN, DIM_HIDDEN, .life = LIFE_INPUT},                       \
    [RSTD] = {EXTENT_OWN, DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_INPUT},    \
    [LOGITS] = {EXTENT_LOGITS, DIM_VOCAB, ELEMENT_FP32, .life = LIFE_SCRATCH},      \
    [DLOGITS] = {EXTENT_LOGITS, DIM_VOCAB, ELEMENT_NARROW, .life = LIFE_SCRATCH},   \
    [APART] = {EXTENT_LOGIT_LEAVES, DIM_HIDDEN, ELEMENT_FP32, .life = LIFE_SCRATCH, \
               .need = NEED_HEADS_APART}
#define KEPT_ROW \
    { EXTENT_RECORDS, DIM_ONE, ELEMENT_FP32, LIFE_INPUT, false, NEED_SHARES }
static const TensorRow tensors[TENSORS] = {
    SHARED_ROWS,
    [NORMED] = {EXTENT_OWN, DIM_HIDDEN, .life = LIFE_SCRATCH},
};
static const TensorRow module_tensors[ALL_TENSORS] = {
    SHARED_ROWS,
    [NORMED] = {EXTENT_OWN, DIM_HIDDEN, .life = LIFE_CHEAP, .operand = true},
    [KEPT] = KEPT_ROW,
    [MODULE_DNORMED] = {EXTENT_OWN, DIM_HIDDEN, .life = LIFE_INPUT},
    [MODULE_RSTD] = {EXTENT_OWN, DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_INPUT},
    [MODULE_NORMED] = {EXTENT_OWN, DIM_HIDDEN, .life = LIFE_CHEAP, .operand = true},
    [MODULE_KEPT] = KEPT_ROW,
};

static const Product head = {&params[HEAD], NULL, 1, DIM_VOCAB, DIM_HIDDEN};

/* A tied model has no head of its own: its matrix is the embedding's, [V, h] like a head. */
static const Param *matrix(const Model *m) {
    const Param *own = param_of(&m->table, m->table.units - 1, &params[HEAD]);
    return own ? own : param_of(&m->table, 0, &layer_embedding.params[0]);
}

static bool is_tied(const Model *m) { return matrix(m)->unit == 0; }

/* Tied: the unit behind the last, which begins with the embedding as unit 0 does. The two gradients of the
 * one matrix meet once a step, whatever the schedule (weights.h). */
static float *matrix_gradient(const Pass *p, int span) {
    const Gradients *g = &p->gradients;
    return is_tied(p->model) ? gradient_tied(g, span) : gradient_of_span(g, matrix(p->model), span);
}

static bool is_trained(const Model *m) { return matrix(m)->flat != FLAT_FROZEN; }

/* What stands behind the embedding in unit 0; all that stands there, if that is frozen. */
static void clear_rest(const Pass *p) {
    size_t all = p->model->table.flats[0][FLAT_MATRICES],
           own = is_trained(p->model) ? (size_t)matrix(p->model)->count : 0;
    for (int r = 0; is_tied(p->model) && all > own && r < model_spans(p->model); r++)
        OP(p->device, OP_ZERO, zero, gradient_tied(&p->gradients, r) + own, (all - own) * sizeof(float));
}

/* In fp32 whatever the compute dtype: the loss is a difference of them, which eight bits of bf16 would
 * spoil. */
static void logits_of(const Pass *p, const void *weight, int64_t rows, const void *normed, float *logits) {
    const Model *m = p->model;
    OP(p->device, OP_GEMM, gemm, false, true, rows, m->config.vocab_size, m->config.hidden_size, normed,
       weight, m->compute, logits, DTYPE_F32, m->config.vocab_size, false,
       model_one_leaf(m, m->config.hidden_size));
    if (m->config.final_logit_softcapping > 0)
        OP(p->device, OP_SOFTCAP, softcap, rows * m->config.vocab_size,
           (float)m->config.final_logit_softcapping, logits, DTYPE_F32);
}

/* One chunk: which of the products to do is up to the caller. */
typedef struct Chunk {
    int64_t first, rows;
    int span;
    bool begins; /* it */
    bool input, weight;
} Chunk;

/* One of the heads: its matrix and the gradient of it (NULL: it has none, or another pass makes it), of all
 * tokens what they are to say and the losses of that, and what the gradient is multiplied with. */
typedef struct Head {
    const void *normed; /* own states that it reads */
    LossRecord *kept;   /* of all tokens and ranks, for the weight half; NULL: that needs none */
    const void *weight;
    float *gradient;
    const int32_t *targets;
    float *losses, *z_losses; /* z_losses: NULL: not wanted */
    float z;
    const float *scale;
    void *dnormed; /* gradient of the states that it reads */
    bool adds;     /* to what is there */
    bool last;     /* nobody else does */
    bool later;    /* another head has set the gradient of its matrix in this pass */
} Head;

/* An evaluation asks the head alone. */
static int heads_at_work(const LayerPass *w) {
    const ModelConfig *c = &w->pass->model->config;
    return w->pass->training && !c->further_module ? 1 + (int)c->further_heads : 1;
}

static Head first_head(const LayerPass *w, Chunk c) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    return (Head){.normed = w->tensors[NORMED],
                  .kept = m->config.further_module ? w->tensors[KEPT] : NULL,
                  .weight = weights_matrix(p->weights, matrix(m)),
                  .gradient = c.weight && is_trained(m) ? matrix_gradient(p, c.span) : NULL,
                  .targets = p->batch.targets,
                  .losses = p->losses,
                  .z_losses = p->z_losses,
                  .z = p->z_loss,
                  .scale = p->loss_scale,
                  .dnormed = w->tensors[DNORMED],
                  .last = heads_at_work(w) == 1,
                  .later = m->config.further_module};
}

/* The same matrix; what is told of the first further head is of the module. */
static Head module_head(const LayerPass *w, Chunk c) {
    const Pass *p = w->pass;
    Head own = first_head(w, c);
    own.normed = w->tensors[MODULE_NORMED], own.kept = w->tensors[MODULE_KEPT];
    own.targets = p->further_targets[0], own.losses = p->further_losses[0], own.scale = p->further_scale;
    own.z_losses = NULL, own.z = 0;
    own.dnormed = w->tensors[MODULE_DNORMED], own.later = false;
    return own;
}

static Head further_head(const LayerPass *w, Chunk c, int k) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const Param *own = param_of(&m->table, m->table.units - 1, &params[FURTHER]);
    int64_t at = k * m->config.vocab_size * m->config.hidden_size;
    bool wanted = c.weight && own->flat != FLAT_FROZEN;
    return (Head){.normed = w->tensors[NORMED],
                  .weight = model_at(m, weights_matrix(p->weights, own), at),
                  .gradient = wanted ? gradient_of_span(&p->gradients, own, c.span) + at : NULL,
                  .targets = p->further_targets[k],
                  .losses = p->further_losses[k],
                  .scale = p->further_scale,
                  .dnormed = w->tensors[DNORMED],
                  .adds = true,
                  .last = k + 2 == heads_at_work(w)};
}

/* Normed states of the chunk's tokens: of all of them, where ranks have some each. */
static const void *normed_of(const LayerPass *w, Chunk c, const Head *own) {
    const Model *m = w->pass->model;
    const char *all = m->sharing.ranks > 1 ? w->shared->whole : own->normed;
    return all + (size_t)(c.first * m->config.hidden_size) * dtype_bytes(m->compute);
}

static LossRecord *own_records(const LayerPass *w, int64_t rows) {
    const Model *m = w->pass->model;
    return w->shared->records + m->sharing.place * model_own_leaves(m) * rows;
}

/* A weight half that comes by itself. */
static bool is_again(Chunk c) { return c.weight && !c.input; }

/* Of a chunk, where ranks have exchanged them, or kept from when they did. */
static const LossRecord *records_of(const LayerPass *w, Chunk c, const Head *own) {
    const Model *m = w->pass->model;
    if (m->sharing.ranks == 1) return NULL;
    return is_again(c) ? own->kept + c.first * m->sharing.leaves : w->shared->records;
}

static void copy_records(const LayerPass *w, Chunk c, LossRecord *all) {
    const Model *m = w->pass->model;
    OP(w->pass->device, OP_COPY, copy, all + c.first * m->sharing.leaves, w->shared->records,
       (size_t)(c.rows * m->sharing.leaves) * sizeof *all);
}

/* Records of this rank's leaves lie where they will be among those of all. */
static void make_logits(const LayerPass *w, Chunk c, const Head *own) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    logits_of(p, own->weight, c.rows, normed_of(w, c, own), w->tensors[LOGITS]);
    if (m->sharing.ranks > 1 && !is_again(c))
        OP(p->device, OP_LOSS_RECORDS, loss_records, c.rows, m->config.vocab_size, w->tensors[LOGITS],
           DTYPE_F32, own->targets + c.first, model_vocabulary_leaves(m, w->shared->records),
           own_records(w, c.rows));
}

/* Leaves in the tree: terms of all tokens, or the gradient of the states. */
static void add_leaves(const LayerPass *w, const Chunk *c, const Head *own, const float *const *leaves) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t at = c->first * m->config.hidden_size, n = c->rows * m->config.hidden_size;
    bool terms = m->sharing.ranks > 1, rounds = !terms && m->compute != DTYPE_F32;
    float *to = terms    ? (float *)w->shared->terms + at
                : rounds ? (float *)w->tensors[APART]
                         : (float *)own->dnormed + at;
    OP(p->device, OP_SUM_PARTS, sum_parts, n, model_own_leaves(m), leaves, to);
    if (rounds) OP(p->device, OP_CAST, cast, n, to, DTYPE_F32, model_at(m, own->dnormed, at), m->compute);
}

/* Of several heads: what each leaf comes to is added up by itself. A rank that has one of them adds to its
 * terms at once. */
static void make_leaves(const LayerPass *w, const Chunk *c, const Head *own, const void *dlogits) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t h = m->config.hidden_size;
    int count = model_own_leaves(m);
    const float *leaves[LEAVES_MAX];
    for (int i = 0; i < count; i++) {
        float *to = count == 1 ? (float *)w->shared->terms + c->first * h
                               : (float *)w->tensors[APART] + i * m->loss_rows * h;
        leaves[i] = to;
        OP(p->device, OP_GEMM, gemm, false, false, c->rows, h, m->config.vocab_size, dlogits, own->weight,
           m->compute, to, DTYPE_F32, h, own->adds, model_vocabulary_leaf(m, i));
    }
    if (own->last && count > 1) add_leaves(w, c, own, leaves);
}

/* The gradient of the normed states: of all tokens, and terms of a sum over ranks where these share it. */
static void make_input(const LayerPass *w, const Chunk *c, const Head *own, const void *dlogits) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t h = m->config.hidden_size, at = c->first * h;
    bool terms = m->sharing.ranks > 1;
    Dtype type = terms ? DTYPE_F32 : m->compute;
    char *to = (terms ? (char *)w->shared->terms : (char *)own->dnormed) + (size_t)at * dtype_bytes(type);
    OP(p->device, OP_GEMM, gemm, false, false, c->rows, h, m->config.vocab_size, dlogits, own->weight,
       m->compute, to, type, h, own->adds, model_leaves(m, DIM_VOCAB));
}

/* For whoever asks for them, of all leaves: as the loss is made of them. */
static void keep_records(const LayerPass *w, Chunk c) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    if (m->sharing.ranks > 1)
        copy_records(w, c, p->records);
    else
        OP(p->device, OP_LOSS_RECORDS, loss_records, c.rows, m->config.vocab_size, w->tensors[LOGITS],
           DTYPE_F32, p->batch.targets + c.first, model_vocabulary_leaves(m, NULL),
           p->records + c.first * m->sharing.leaves);
}

/* Logits are there, and their gradient takes their place: in fp32 the same memory, else a narrow tensor,
 * since products want both operands of one dtype. Of the weight's gradient the first chunk of the first
 * microbatch sets, or of each span of it; all others add. */
static void use_logits(const LayerPass *w, Chunk c, const Head *own) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t h = m->config.hidden_size, v = m->config.vocab_size;
    void *dlogits = w->tensors[m->compute == DTYPE_F32 ? LOGITS : DLOGITS];
    if (p->records && own->losses == p->losses) keep_records(w, c);
    if (m->sharing.ranks > 1 && own->kept && p->training && !is_again(c)) copy_records(w, c, own->kept);
    OP(p->device, OP_CROSS_ENTROPY, cross_entropy, c.rows, v, w->tensors[LOGITS], DTYPE_F32,
       own->targets + c.first, model_vocabulary_leaves(m, records_of(w, c, own)), own->scale,
       (float)m->config.final_logit_softcapping, own->z, own->losses + c.first,
       own->z_losses ? own->z_losses + c.first : NULL, c.input || c.weight ? dlogits : NULL, m->compute);
    if (c.input) (model_has_heads_apart(m) ? make_leaves : make_input)(w, &c, own, dlogits);
    if (own->gradient)
        OP(p->device, OP_GEMM, gemm, true, false, v, h, c.rows, dlogits, normed_of(w, c, own), m->compute,
           own->gradient, DTYPE_F32, h, own->later || !(p->first && c.begins), model_one_leaf(m, c.rows));
}

static Chunk chunk_of(const Model *m, int i, bool input, bool weight) {
    int span = model_chunk_span(m, i);
    bool begins = i == 0 || model_chunk_span(m, i - 1) != span;
    return (Chunk){model_chunk_first(m, i), model_chunk_rows(m, i), span, begins, input, weight};
}

/* The slice that is asked for, or all of a chunk, for the i-th time that a head takes one. */
static void run_chunk(const LayerPass *w, Chunk c, Head own, int i) {
    if (!w->slice || w->slice == 2 * i + 1) make_logits(w, c, &own);
    if (!w->slice || w->slice == 2 * i + 2) use_logits(w, c, &own);
}

/* All heads take a chunk, one after the other. */
static void all_heads(const LayerPass *w, bool input, bool weight) {
    const Model *m = w->pass->model;
    int heads = heads_at_work(w);
    if (weight && w->pass->first && w->slice <= 1) clear_rest(w->pass);
    for (int i = 0; i < heads * model_chunks(m); i++) {
        Chunk c = chunk_of(m, i / heads, input, weight);
        run_chunk(w, c, i % heads ? further_head(w, c, i % heads - 1) : first_head(w, c), i);
    }
}

static void all_of_module(const LayerPass *w, bool input, bool weight) {
    const Model *m = w->pass->model;
    for (int i = 0; i < model_chunks(m); i++) {
        Chunk c = chunk_of(m, i, input, weight);
        run_chunk(w, c, module_head(w, c), i);
    }
}

static void final_norm(const LayerPass *w) {
    norm_forward(w->pass, w->unit, &params[NORM], model_own_tokens(w->pass->model), w->input, NULL, NULL,
                 w->tensors[NORMED], w->tensors[RSTD]);
}

static void final_norm_backward(const LayerPass *w, Half half) {
    if (half & HALF_INPUT)
        norm_backward(w->pass, w->unit, &params[NORM], w->input, w->tensors[RSTD], w->tensors[DNORMED], w->dx,
                      false);
}

/* Without a backward pass to come, losses only. */
static void head_forward(const LayerPass *w) {
    bool training = w->pass->training;
    all_heads(w, training, training && !w->pass->defer_head);
}

/* Deferred, the weight half finds no logits, and without a module no normed states either: scratch was
 * others' in between. */
static void head_backward(const LayerPass *w, Half half) {
    if (!(half & HALF_WEIGHT) || !w->pass->defer_head) return;
    if (!w->pass->model->config.further_module) final_norm(w);
    all_heads(w, false, true);
}

static void module_norm(const LayerPass *w) {
    norm_forward(w->pass, w->unit, &params[MODULE_NORM], model_own_tokens(w->pass->model), w->own_x, NULL,
                 NULL, w->tensors[MODULE_NORMED], w->tensors[MODULE_RSTD]);
}

static void module_norm_backward(const LayerPass *w, Half half) {
    if (half & HALF_INPUT)
        norm_backward(w->pass, w->unit, &params[MODULE_NORM], w->own_x, w->tensors[MODULE_RSTD],
                      w->tensors[MODULE_DNORMED], w->dstream, false);
}

static void module_head_forward(const LayerPass *w) {
    CHECK(w->pass->defer_head);
    all_of_module(w, true, false);
}

static void module_head_backward(const LayerPass *w, Half half) {
    if (half & HALF_WEIGHT) all_of_module(w, false, true);
}

static double product_flops(const ModelConfig *c) {
    return 2 * (double)c->vocab_size * (double)c->hidden_size;
}

/* Further heads do what the head does. */
static Cost further_cost(const ModelConfig *c, int unit, int64_t context) {
    (void)unit, (void)context;
    return (Cost){3 * (double)c->further_heads * product_flops(c), 0, 0};
}

/* Of either head with a module: logits and the gradient of the states forward; on the way back logits again,
 * and the gradient of the matrix. */
static Cost deferred_cost(const ModelConfig *c, int unit, int64_t context) {
    (void)unit, (void)context;
    double product = product_flops(c);
    return (Cost){2 * product, 0, 2 * product};
}

/* A matrix counts once among the parameters, ... */
static Cost no_cost(const ModelConfig *c, int unit, int64_t context) {
    (void)c, (void)unit, (void)context;
    return (Cost){0, 0, 0};
}

/* ... and is used twice. */
static Cost second_cost(const ModelConfig *c, int unit, int64_t context) {
    (void)unit, (void)context;
    double product = product_flops(c);
    return (Cost){product, product, product};
}

void head_logits(const Pass *p, int64_t rows, const void *x, void *normed, float *rstd, float *logits) {
    norm_forward(p, p->model->table.units - 1, &params[NORM], rows, x, NULL, NULL, normed, rstd);
    logits_of(p, weights_matrix(p->weights, matrix(p->model)), rows, normed, logits);
}

static const Part parts[] = {
    {"norm", LIFE_INPUT, final_norm, final_norm_backward, .product = NULL},
    {"head and loss", LIFE_INPUT, head_forward, head_backward, .product = &head, .fused = true},
};
enum { PARTS = sizeof parts / sizeof *parts };

static const Part heads_parts[PARTS] = {
    {"norm", LIFE_INPUT, final_norm, final_norm_backward, .product = NULL},
    {"heads and losses", LIFE_INPUT, head_forward, head_backward, .product = &head, .fused = true,
     .more = further_cost, .needed = no_cost},
};

static const Part module_parts[] = {
    {"norm", LIFE_CHEAP, final_norm, final_norm_backward, .product = NULL},
    {"head and loss", LIFE_INPUT, head_forward, head_backward, .more = deferred_cost, .needed = no_cost},
    {"norm of the module", LIFE_CHEAP, module_norm, module_norm_backward, .trains = true},
    {"head of the module", LIFE_INPUT, module_head_forward, module_head_backward, .trains = true,
     .more = deferred_cost, .needed = second_cost},
};

/* Of a head that is op `op`: it reads own states, which its wgrad may want again, and its forward pass makes
 * their gradient. */
#define HEAD_COLLECTIVES(op, again, normed, dnormed)                                                      \
    {COLLECTIVE(IN_FORWARD | (again), BEFORE(OPS(op)), ALL_GATHER, TENSOR, normed, FULL_X, OWN, HIDDEN,   \
                COMPUTE)},                                                                                \
        {COLLECTIVE(IN_FORWARD, BEFORE(OPS(op)), ALL_GATHER, TENSOR, LOSS_RECORDS, LOSS_RECORDS, RECORDS, \
                    ONE, FP32),                                                                           \
         .chunked = true, .what = "LSE"},                                                                 \
    {                                                                                                     \
        COLLECTIVE(IN_FORWARD, BEHIND(OPS(op)), REDUCE_SCATTER, TENSOR, PARTIALS, dnormed, OWN, HIDDEN,   \
                   FP32),                                                                                 \
            .trains = true                                                                                \
    }
enum { HEAD_OP = 1, MODULE_HEAD_OP = 3 };
static const Collective collectives[] = {HEAD_COLLECTIVES(HEAD_OP, 0, NORMED, DNORMED)};
static const Collective module_collectives[] = {
    HEAD_COLLECTIVES(HEAD_OP, IN_WGRAD, NORMED, DNORMED),
    HEAD_COLLECTIVES(MODULE_HEAD_OP, IN_WGRAD, MODULE_NORMED, MODULE_DNORMED)};

/* What only a module has stands first, what only further heads have last. */
const Layer layer_head = {.name = "head",
                          .params = &params[NORM],
                          LAYER_ROWS(tensor, tensors),
                          LAYER_ROWS(part, parts),
                          LAYER_ROWS(collective, collectives),
                          .param_count = FURTHER - NORM},
            layer_heads = {.name = "heads",
                           .params = &params[NORM],
                           LAYER_ROWS(tensor, tensors),
                           LAYER_ROWS(part, heads_parts),
                           LAYER_ROWS(collective, collectives),
                           .param_count = PARAMS - NORM},
            layer_module_head = {.name = "heads of model and module",
                                 .params = params,
                                 LAYER_ROWS(tensor, module_tensors),
                                 LAYER_ROWS(part, module_parts),
                                 LAYER_ROWS(collective, module_collectives),
                                 .param_count = FURTHER};
