/* The last unit: final norm, head, loss.
 *
 *     norm           n = norm(x)
 *     head and loss  logits = cap(n W^T), loss of each token
 *
 * The head runs over chunks of tokens. For each chunk it does everything that needs its logits - the loss,
 * their gradient, and the head's dgrad and wgrad - before the next chunk overwrites them: the full logits
 * never exist. So the forward pass makes both gradients of the product, and the backward pass is only that of
 * the norm. A deferred wgrad recomputes the logits. With tied embeddings W is the embedding's, and its
 * gradient from here has memory of its own, laid out as all of unit 0; elements outside the embedding stay
 * zero.
 *
 * With a TP-sharded vocabulary each rank makes its own logits of a chunk. Then ranks exchange records, 16
 * bytes per token and split, from which all compute the same loss, and each the gradient of its own logits.
 * So a chunk has two slices there (UnitPass.slice): the first makes logits and records, the second uses them.
 *
 * Logits are capped, c tanh(l / c), in families that do so (Gemma team, "Gemma 2", 2024).
 *
 * MTP heads (Gloeckle et al., "Better & faster large language models via multi-token prediction", 2024) have
 * matrices of their own on the same normed states. The k-th one predicts the k-th token after the next one.
 * They exist only in training: each processes a chunk after the head, before the next chunk comes, and adds
 * its gradient to that of the states. With MTP heads, the head is not tied (config.c). The gradient of the
 * states is then a sum over heads and, for each, over the vocabulary, which TP may shard. Each split is
 * summed over the heads first, then the splits in the canonical tree, on one rank as on several, so ranks
 * reduce once for all heads.
 *
 * An MTP module (mtp.c) uses the head's matrix a second time, on the end of its stream after a norm of its
 * own. Its block's matrices are in the same unit, and their gradients are made in the backward pass. So the
 * head's are too: its wgrad is deferred like all others. The module's wgrad runs first and overwrites the
 * gradient. Recomputed logits need the records of all ranks again: those of both heads are saved in the
 * forward pass, so none are exchanged twice.
 *
 * Elsewhere called: lm_head, fused linear cross-entropy, vocab-parallel cross-entropy (Megatron). */
#include "model/unit.h"

#include "device/ops/linear.h"
#include "device/ops/loss.h"
#include "device/ops/memory.h"

enum { MTP_NORM, MTP_NORM_BIAS, NORM, NORM_BIAS, HEAD, MTP_HEADS, PARAMS };
static const ParamRow params[PARAMS] = {
    [MTP_NORM] = {"shared_head.norm.weight", DIM_HIDDEN, .init = ROLE_NORM},
    [MTP_NORM_BIAS] = {"shared_head.norm.bias", DIM_HIDDEN, .when = WHEN_LAYER_NORM, .init = ROLE_ZEROS},
    [NORM] = {"model.norm.weight", DIM_HIDDEN, .init = ROLE_NORM, .outside = true},
    [NORM_BIAS] = {"model.norm.bias", DIM_HIDDEN, .when = WHEN_LAYER_NORM, .init = ROLE_ZEROS,
                   .outside = true},
    [HEAD] = {"lm_head.weight", DIM_VOCAB, DIM_HIDDEN, .when = WHEN_UNTIED, .tp = COLUMN_PARALLEL,
              .init = ROLE_HEAD, .decays = true, .outside = true},
    [MTP_HEADS] = {"lm_heads.weight", DIM_MTP_HEADS, DIM_HIDDEN, .tp = COLUMN_PARALLEL, .init = ROLE_HEAD,
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
    MTP_DNORMED,
    MTP_RSTD,
    MTP_NORMED,
    MTP_KEPT,
    ALL_TENSORS
};
/* The forward pass writes DNORMED, the backward pass consumes it. In fp32, DLOGITS overwrite the logits. */
#define SHARED_ROWS                                                                 \
    [DNORMED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_ALWAYS},                    \
    [RSTD] = {EXTENT_LOCAL, DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_ALWAYS}, \
    [LOGITS] = {EXTENT_LOGITS, DIM_VOCAB, ELEMENT_FP32, .life = LIFE_SCRATCH},      \
    [DLOGITS] = {EXTENT_LOGITS, DIM_VOCAB, ELEMENT_NARROW, .life = LIFE_SCRATCH},   \
    [APART] = {EXTENT_LOGIT_SPLITS, DIM_HIDDEN, ELEMENT_FP32, .life = LIFE_SCRATCH, \
               .need = NEED_HEADS_APART}
#define KEPT_ROW \
    { EXTENT_RECORDS, DIM_ONE, ELEMENT_FP32, LIFE_ALWAYS, false, NEED_TP }
static const TensorRow tensors[TENSORS] = {
    SHARED_ROWS,
    [NORMED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_SCRATCH},
};
static const TensorRow mtp_tensors[ALL_TENSORS] = {
    SHARED_ROWS,
    [NORMED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_CHEAP, .operand = true},
    [KEPT] = KEPT_ROW,
    [MTP_DNORMED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_ALWAYS},
    [MTP_RSTD] = {EXTENT_LOCAL, DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_ALWAYS},
    [MTP_NORMED] = {EXTENT_LOCAL, DIM_HIDDEN, .life = LIFE_CHEAP, .operand = true},
    [MTP_KEPT] = KEPT_ROW,
};

static const Product head = {&params[HEAD], NULL, 1, DIM_VOCAB, DIM_HIDDEN};

/* A tied model has no head matrix: it uses the embedding's, which is [V, h] like a head. */
static const Param *matrix(const Model *m) {
    const Param *own = param_of(&m->table, m->table.units - 1, &params[HEAD]);
    return own ? own : param_of(&m->table, 0, &layer_embedding.params[0]);
}

static bool is_tied(const Model *m) { return matrix(m)->unit == 0; }

/* With tied embeddings, the gradient unit after the last, which begins with the embedding, as unit 0 does.
 * The two gradients of the one matrix are added once per step, whatever the schedule (weights.h). */
static float *matrix_gradient(const Pass *p, int exact_chunk) {
    const Gradients *g = &p->gradients;
    return is_tied(p->model) ? gradient_tied(g, exact_chunk)
                             : gradient_of_exact_chunk(g, matrix(p->model), exact_chunk);
}

static bool is_trained(const Model *m) { return matrix(m)->flat != FLAT_FROZEN; }

/* Clears what follows the embedding in the tied gradient, or all of it if the embedding is frozen. */
static void clear_rest(const Pass *p) {
    size_t all = p->model->table.flats[0][FLAT_MATRICES],
           own = is_trained(p->model) ? (size_t)matrix(p->model)->count : 0;
    for (int r = 0; is_tied(p->model) && all > own && r < model_exact_chunks(p->model); r++)
        OP(p->device, zero, gradient_tied(&p->gradients, r) + own, (all - own) * sizeof(float));
}

/* In fp32 whatever the compute dtype: the loss is a difference of logits, for which the 8 bits of bf16 would
 * not suffice. */
static void logits_of(const Pass *p, const void *weight, int64_t rows, const void *normed, float *logits) {
    const Model *m = p->model;
    OP(p->device, gemm, .trans_b = true, .m = rows, .n = m->config.vocab_size, .k = m->config.hidden_size,
       .a = normed, .b = weight, .ab_type = m->compute, .c = logits, .c_type = DTYPE_F32,
       .ldc = m->config.vocab_size, .splits = model_one_split(m, m->config.hidden_size));
    if (m->config.final_logit_softcapping > 0)
        OP(p->device, softcap, rows * m->config.vocab_size, (float)m->config.final_logit_softcapping, logits,
           DTYPE_F32);
}

/* One chunk of tokens, and which of the products (dgrad, wgrad) to do. */
typedef struct Chunk {
    int64_t first, rows;
    int exact_chunk;
    bool begins; /* it is the first chunk of its exact chunk */
    bool input, weight;
} Chunk;

/* One of the heads. Arrays are of all tokens. */
typedef struct Head {
    const void *normed; /* local states that it reads */
    LossRecord *kept;   /* records of all tokens and ranks, for a deferred wgrad; NULL: not needed */
    const void *weight;
    float *gradient;
    const int32_t *targets;
    float *losses, *z_losses; /* z_losses NULL: not wanted */
    float z;
    const float *scale;
    void *dnormed; /* gradient of `normed` */
    bool adds;     /* adds to dnormed; else overwrites it */
    bool last;     /* the last head that adds to dnormed */
    bool later;    /* another head has already written the gradient of its matrix in this pass */
} Head;

/* Evaluation needs only the main head. */
static int heads_at_work(const LayerPass *w) {
    const ModelConfig *c = &w->pass->model->config;
    return w->pass->training && !c->mtp_module ? 1 + (int)c->mtp_depth : 1;
}

static Head first_head(const LayerPass *w, Chunk c) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    return (Head){.normed = w->tensors[NORMED],
                  .kept = m->config.mtp_module ? w->tensors[KEPT] : NULL,
                  .weight = weights_matrix(p->weights, matrix(m)),
                  .gradient = c.weight && is_trained(m) ? matrix_gradient(p, c.exact_chunk) : NULL,
                  .targets = p->batch.targets,
                  .losses = p->losses,
                  .z_losses = p->z_losses,
                  .z = p->z_loss,
                  .scale = p->inverse_token_count,
                  .dnormed = w->tensors[DNORMED],
                  .last = heads_at_work(w) == 1,
                  .later = m->config.mtp_module};
}

/* The same matrix. The fields of the first MTP head in Pass are those of the MTP module. */
static Head mtp_head(const LayerPass *w, Chunk c) {
    const Pass *p = w->pass;
    Head own = first_head(w, c);
    own.normed = w->tensors[MTP_NORMED], own.kept = w->tensors[MTP_KEPT];
    own.targets = p->mtp_targets[0], own.losses = p->mtp_losses[0], own.scale = p->mtp_inverse_token_count;
    own.z_losses = NULL, own.z = 0;
    own.dnormed = w->tensors[MTP_DNORMED], own.later = false;
    return own;
}

static Head further_mtp_head(const LayerPass *w, Chunk c, int k) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    const Param *own = param_of(&m->table, m->table.units - 1, &params[MTP_HEADS]);
    int64_t at = k * m->config.vocab_size * m->config.hidden_size;
    bool wanted = c.weight && own->flat != FLAT_FROZEN;
    return (Head){.normed = w->tensors[NORMED],
                  .weight = model_at(m, weights_matrix(p->weights, own), at),
                  .gradient = wanted ? gradient_of_exact_chunk(&p->gradients, own, c.exact_chunk) + at : NULL,
                  .targets = p->mtp_targets[k],
                  .losses = p->mtp_losses[k],
                  .scale = p->mtp_inverse_token_count,
                  .dnormed = w->tensors[DNORMED],
                  .adds = true,
                  .last = k + 2 == heads_at_work(w)};
}

/* Normed states of the chunk's tokens; with TP, the all-gathered ones. */
static const void *normed_of(const LayerPass *w, Chunk c, const Head *own) {
    const Model *m = w->pass->model;
    const char *all = m->tp.size > 1 ? w->shared->full : own->normed;
    return all + (size_t)(c.first * m->config.hidden_size) * dtype_bytes(m->compute);
}

static LossRecord *local_records(const LayerPass *w, int64_t rows) {
    const Model *m = w->pass->model;
    return w->shared->records + m->tp.rank * model_local_splits(m) * rows;
}

/* Whether this is a deferred wgrad, which recomputes logits. */
static bool is_recompute(Chunk c) { return c.weight && !c.input; }

/* Records of a chunk from all ranks: just exchanged, or saved from the forward pass. */
static const LossRecord *records_of(const LayerPass *w, Chunk c, const Head *own) {
    const Model *m = w->pass->model;
    if (m->tp.size == 1) return NULL;
    return is_recompute(c) ? own->kept + c.first * m->tp.splits : w->shared->records;
}

static void copy_records(const LayerPass *w, Chunk c, LossRecord *all) {
    const Model *m = w->pass->model;
    OP(w->pass->device, copy, all + c.first * m->tp.splits, w->shared->records,
       (size_t)(c.rows * m->tp.splits) * sizeof *all);
}

/* Records of the local splits are written at their offset among those of all splits. */
static void make_logits(const LayerPass *w, Chunk c, const Head *own) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    logits_of(p, own->weight, c.rows, normed_of(w, c, own), w->tensors[LOGITS]);
    if (m->tp.size > 1 && !is_recompute(c))
        OP(p->device, loss_records, .rows = c.rows, .vocab = m->config.vocab_size,
           .logits = w->tensors[LOGITS], .logits_type = DTYPE_F32, .targets = own->targets + c.first,
           .splits = model_vocabulary_splits(m, w->shared->records), .records = local_records(w, c.rows));
}

/* Sums the splits in the canonical tree: into partial sums over ranks, or into the gradient of the states. */
static void sum_partials(const LayerPass *w, const Chunk *c, const Head *own, const float *const *splits) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t at = c->first * m->config.hidden_size, n = c->rows * m->config.hidden_size;
    bool partials = m->tp.size > 1, rounds = !partials && m->compute != DTYPE_F32;
    float *to = partials ? (float *)w->shared->partials + at
                : rounds ? (float *)w->tensors[APART]
                         : (float *)own->dnormed + at;
    OP(p->device, sum_partials, n, model_local_splits(m), splits, to);
    if (rounds) OP(p->device, cast, n, to, DTYPE_F32, model_at(m, own->dnormed, at), m->compute);
}

/* With several heads, each split is summed over the heads by itself. A rank with one split adds directly to
 * its partial sums. */
static void make_partials(const LayerPass *w, const Chunk *c, const Head *own, const void *dlogits) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t h = m->config.hidden_size;
    int count = model_local_splits(m);
    const float *splits[SPLITS_MAX];
    for (int i = 0; i < count; i++) {
        float *to = count == 1 ? (float *)w->shared->partials + c->first * h
                               : (float *)w->tensors[APART] + i * m->loss_rows * h;
        splits[i] = to;
        OP(p->device, gemm, .m = c->rows, .n = h, .k = m->config.vocab_size, .a = dlogits, .b = own->weight,
           .ab_type = m->compute, .c = to, .c_type = DTYPE_F32, .ldc = h, .accumulate = own->adds,
           .splits = model_vocabulary_split(m, i));
    }
    if (own->last && count > 1) sum_partials(w, c, own, splits);
}

/* The gradient of the normed states; with TP, partial sums over ranks. */
static void make_input(const LayerPass *w, const Chunk *c, const Head *own, const void *dlogits) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t h = m->config.hidden_size, at = c->first * h;
    bool partials = m->tp.size > 1;
    Dtype type = partials ? DTYPE_F32 : m->compute;
    char *to =
        (partials ? (char *)w->shared->partials : (char *)own->dnormed) + (size_t)at * dtype_bytes(type);
    OP(p->device, gemm, .m = c->rows, .n = h, .k = m->config.vocab_size, .a = dlogits, .b = own->weight,
       .ab_type = m->compute, .c = to, .c_type = type, .ldc = h, .accumulate = own->adds,
       .splits = model_k_split(m, DIM_VOCAB));
}

/* Saves the records of all splits that the caller wants, as the loss uses them. */
static void keep_records(const LayerPass *w, Chunk c) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    if (m->tp.size > 1)
        copy_records(w, c, p->records);
    else
        OP(p->device, loss_records, .rows = c.rows, .vocab = m->config.vocab_size,
           .logits = w->tensors[LOGITS], .logits_type = DTYPE_F32, .targets = p->batch.targets + c.first,
           .splits = model_vocabulary_splits(m, NULL), .records = p->records + c.first * m->tp.splits);
}

/* The gradient of the logits replaces them: in fp32 in the same memory, else in a narrow tensor, since
 * products need both operands in one dtype. The weight's gradient is overwritten by the first chunk of each
 * exact chunk of the first microbatch; all others add. */
static void use_logits(const LayerPass *w, Chunk c, const Head *own) {
    const Pass *p = w->pass;
    const Model *m = p->model;
    int64_t h = m->config.hidden_size, v = m->config.vocab_size;
    void *dlogits = w->tensors[m->compute == DTYPE_F32 ? LOGITS : DLOGITS];
    if (p->records && own->losses == p->losses) keep_records(w, c);
    if (m->tp.size > 1 && own->kept && p->training && !is_recompute(c)) copy_records(w, c, own->kept);
    OP(p->device, cross_entropy, .rows = c.rows, .vocab = v, .logits = w->tensors[LOGITS],
       .logits_type = DTYPE_F32, .targets = own->targets + c.first,
       .splits = model_vocabulary_splits(m, records_of(w, c, own)), .scale = own->scale,
       .cap = (float)m->config.final_logit_softcapping, .z = own->z, .loss = own->losses + c.first,
       .z_loss = own->z_losses ? own->z_losses + c.first : NULL,
       .dlogits = c.input || c.weight ? dlogits : NULL, .grad_type = m->compute);
    if (c.input) (model_has_heads_apart(m) ? make_partials : make_input)(w, &c, own, dlogits);
    if (own->gradient)
        OP(p->device, gemm, .trans_a = true, .m = v, .n = h, .k = c.rows, .a = dlogits,
           .b = normed_of(w, c, own), .ab_type = m->compute, .c = own->gradient, .c_type = DTYPE_F32,
           .ldc = h, .accumulate = own->later || !(p->first && c.begins),
           .splits = model_one_split(m, c.rows));
}

static Chunk chunk_of(const Model *m, int i, bool input, bool weight) {
    int exact_chunk = model_logits_exact_chunk(m, i);
    bool begins = i == 0 || model_logits_exact_chunk(m, i - 1) != exact_chunk;
    return (Chunk){model_chunk_first(m, i), model_chunk_rows(m, i), exact_chunk, begins, input, weight};
}

/* Runs the requested slice, or all of a chunk, for the i-th chunk of all heads. */
static void run_chunk(const LayerPass *w, Chunk c, Head own, int i) {
    if (!w->slice || w->slice == 2 * i + 1) make_logits(w, c, &own);
    if (!w->slice || w->slice == 2 * i + 2) use_logits(w, c, &own);
}

/* For each chunk, all heads in turn. */
static void all_heads(const LayerPass *w, bool input, bool weight) {
    const Model *m = w->pass->model;
    int heads = heads_at_work(w);
    if (weight && w->pass->first && w->slice <= 1) clear_rest(w->pass);
    for (int i = 0; i < heads * model_chunks(m); i++) {
        Chunk c = chunk_of(m, i / heads, input, weight);
        run_chunk(w, c, i % heads ? further_mtp_head(w, c, i % heads - 1) : first_head(w, c), i);
    }
}

static void all_of_mtp(const LayerPass *w, bool input, bool weight) {
    const Model *m = w->pass->model;
    for (int i = 0; i < model_chunks(m); i++) {
        Chunk c = chunk_of(m, i, input, weight);
        run_chunk(w, c, mtp_head(w, c), i);
    }
}

static void final_norm(const LayerPass *w) {
    norm_forward(w->pass, w->unit, &params[NORM], model_local_tokens(w->pass->model), w->input, NULL, NULL,
                 w->tensors[NORMED], w->tensors[RSTD]);
}

static void final_norm_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD)
        norm_backward(w->pass, w->unit, &params[NORM], w->input, w->tensors[RSTD], w->tensors[DNORMED], w->dx,
                      false);
}

/* Without a backward pass, only losses. */
static void head_forward(const LayerPass *w) {
    bool training = w->pass->training;
    all_heads(w, training, training && !w->pass->defer_head);
}

/* A deferred wgrad finds no logits, and without an MTP module no normed states, since scratch has been
 * reused. */
static void head_backward(const LayerPass *w, Grads grads) {
    if (!(grads & WGRAD) || !w->pass->defer_head) return;
    if (!w->pass->model->config.mtp_module) final_norm(w);
    all_heads(w, false, true);
}

static void mtp_norm(const LayerPass *w) {
    norm_forward(w->pass, w->unit, &params[MTP_NORM], model_local_tokens(w->pass->model), w->local_x, NULL,
                 NULL, w->tensors[MTP_NORMED], w->tensors[MTP_RSTD]);
}

static void mtp_norm_backward(const LayerPass *w, Grads grads) {
    if (grads & DGRAD)
        norm_backward(w->pass, w->unit, &params[MTP_NORM], w->local_x, w->tensors[MTP_RSTD],
                      w->tensors[MTP_DNORMED], w->dstream, false);
}

static void mtp_head_forward(const LayerPass *w) {
    CHECK(w->pass->defer_head);
    all_of_mtp(w, true, false);
}

static void mtp_head_backward(const LayerPass *w, Grads grads) {
    if (grads & WGRAD) all_of_mtp(w, false, true);
}

static double product_flops(const ModelConfig *c) {
    return 2 * (double)c->vocab_size * (double)c->hidden_size;
}

/* MTP heads cost the same as the head. */
static Cost mtp_cost(const ModelConfig *c, int unit, int64_t context) {
    (void)unit, (void)context;
    return (Cost){3 * (double)c->mtp_depth * product_flops(c), 0, 0};
}

/* Either head with an MTP module. Forward: logits, and the gradient of the states. Backward: logits again,
 * and the gradient of the matrix. */
static Cost deferred_cost(const ModelConfig *c, int unit, int64_t context) {
    (void)unit, (void)context;
    double product = product_flops(c);
    return (Cost){2 * product, 0, 2 * product};
}

/* A matrix counts once among the parameters ... */
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

static const LayerOp ops[] = {
    {"norm", LIFE_ALWAYS, final_norm, final_norm_backward, .product = NULL},
    {"head and loss", LIFE_ALWAYS, head_forward, head_backward, .product = &head, .fused = true},
};
enum { PARTS = sizeof ops / sizeof *ops };

static const LayerOp heads_ops[PARTS] = {
    {"norm", LIFE_ALWAYS, final_norm, final_norm_backward, .product = NULL},
    {"heads and losses", LIFE_ALWAYS, head_forward, head_backward, .product = &head, .fused = true,
     .more = mtp_cost, .needed = no_cost},
};

static const LayerOp mtp_ops[] = {
    {"norm", LIFE_CHEAP, final_norm, final_norm_backward, .product = NULL},
    {"head and loss", LIFE_ALWAYS, head_forward, head_backward, .more = deferred_cost, .needed = no_cost},
    {"norm of the module", LIFE_CHEAP, mtp_norm, mtp_norm_backward, .trains = true},
    {"head of the module", LIFE_ALWAYS, mtp_head_forward, mtp_head_backward, .trains = true,
     .more = deferred_cost, .needed = second_cost},
};

/* Collectives of a head that is op `op`. It reads all-gathered states, which its wgrad may need again, and
 * its forward pass makes their gradient. */
#define HEAD_COLLECTIVES(op, recompute, normed, dnormed)                                                  \
    {COLLECTIVE(IN_FORWARD | (recompute), BEFORE(OPS(op)), ALL_GATHER, TENSOR, normed, FULL_X, LOCAL,     \
                HIDDEN, COMPUTE)},                                                                        \
        {COLLECTIVE(IN_FORWARD, BEFORE(OPS(op)), ALL_GATHER, TENSOR, LOSS_RECORDS, LOSS_RECORDS, RECORDS, \
                    ONE, FP32),                                                                           \
         .chunked = true, .what = "LSE"},                                                                 \
    {                                                                                                     \
        COLLECTIVE(IN_FORWARD, BEHIND(OPS(op)), REDUCE_SCATTER, TENSOR, PARTIALS, dnormed, LOCAL, HIDDEN, \
                   FP32),                                                                                 \
            .trains = true                                                                                \
    }
enum { HEAD_OP = 1, MTP_HEAD_OP = 3 };
static const Collective collectives[] = {HEAD_COLLECTIVES(HEAD_OP, 0, NORMED, DNORMED)};
static const Collective mtp_collectives[] = {
    HEAD_COLLECTIVES(HEAD_OP, IN_WGRAD, NORMED, DNORMED),
    HEAD_COLLECTIVES(MTP_HEAD_OP, IN_WGRAD, MTP_NORMED, MTP_DNORMED)};

/* Rows that only an MTP module has come first; those that only MTP heads have come last. */
const Layer layer_head = {.name = "head",
                          .params = &params[NORM],
                          LAYER_ROWS(tensor, tensors),
                          LAYER_ROWS(op, ops),
                          LAYER_ROWS(collective, collectives),
                          .param_count = MTP_HEADS - NORM},
            layer_heads = {.name = "heads",
                           .params = &params[NORM],
                           LAYER_ROWS(tensor, tensors),
                           LAYER_ROWS(op, heads_ops),
                           LAYER_ROWS(collective, collectives),
                           .param_count = PARAMS - NORM},
            layer_mtp_head = {.name = "heads of model and module",
                              .params = params,
                              LAYER_ROWS(tensor, mtp_tensors),
                              LAYER_ROWS(op, mtp_ops),
                              LAYER_ROWS(collective, mtp_collectives),
                              .param_count = MTP_HEADS};
