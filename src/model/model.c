/* A model as passes see it: its shape, its parameter table, and the constants that its layers share, which
 * are angles: of each position, for each pair of a head's elements, cosine and sine; and what queries of each
 * position are multiplied by, where some are.
 *
 * They are computed in double and rounded once. A model may have two tables (layers with windows turn by
 * another base), or none; which one a block takes, model_block says. */
#include <math.h>
#include <stdlib.h>

#include "base/text.h"
#include "base/tree.h"
#include "model/families/family.h"
#include "model/rotation.h"
#include "model/unit.h"

/* Logits of a chunk: enough rows that a product is efficient and the weight gradient is not passed over too
 * often, few enough that the chunk stays near 64 MiB. */
static int64_t default_loss_rows(const ModelConfig *c, int64_t tokens) {
    int64_t rows = (INT64_C(16) << 20) / c->vocab_size / 64 * 64;
    if (rows < 128) rows = 128;
    if (rows > 2048) rows = 2048;
    return rows < tokens ? rows : tokens;
}

int64_t model_loss_rows(const ModelConfig *c, int64_t tokens, int64_t asked) {
    if (asked == 0) return default_loss_rows(c, tokens);
    return asked < tokens ? asked : tokens;
}

/* The configuration is copied, the table owned: model_free gives it back. No chunk of logits has more rows
 * than the microbatch. */
ErrorCode model_build(Model *m, const ModelConfig *c, Dtype compute, Recompute recompute, int64_t tokens,
                      int64_t loss_rows, Error *err) {
    *m = (Model){.config = *c, .compute = compute, .recompute = recompute, .tokens = tokens};
    m->loss_rows = model_loss_rows(c, tokens, loss_rows);
    model_set_tp(m, ALONE, c);
    model_set_cp(m, ALL_TOKENS);
    return param_table_build(&m->table, c, err);
}

void model_set_tp(Model *m, TpGroup tp, const ModelConfig *whole) {
    CHECK(tp.splits % tp.size == 0 && m->tokens % tp.splits == 0 && tp.copies > 0);
    m->tp = tp, m->vocabulary = whole->vocab_size, m->learned = whole->max_position_embeddings;
}

/* Of no exact chunk there is more than the chunks of its own logits: they are what its gradient is added up
 * from. */
void model_set_cp(Model *m, CpGroup cp) {
    int exact_chunks = cp.exact_chunks > 0 ? cp.exact_chunks / cp.ranks : 1;
    CHECK(exact_chunks > 0 && cp.exact_chunks % cp.ranks == 0 &&
          m->tokens % (exact_chunks * m->tp.splits) == 0);
    m->cp = cp;
    if (m->loss_rows > model_exact_chunk(m, m->tokens)) m->loss_rows = model_exact_chunk(m, m->tokens);
}

/* ---- leaves ---- */

KSplit model_one_split(const Model *m, int64_t length) {
    if (!model_is_sliced(m)) return NO_SPLIT;
    return (KSplit){.runs = 1, .run = {{.length = length, .split_size = length}}};
}

/* All but rows of embeddings are cut into equal splits: of `all` these. */
static int64_t split_of(const Model *m, int64_t all) { return (all + m->tp.splits - 1) / m->tp.splits; }
static int64_t vocabulary_split_size(const Model *m) { return split_of(m, m->vocabulary); }

/* Ranks with copies of a head of keys take a piece of it each, so that no term is there twice; where it has
 * several splits on one rank, these do. `left`: elements behind the run before that are others'. */
static void add_run(const Model *m, KSplit *l, Dim dim, int64_t *left) {
    int64_t all = model_dim(&m->config, dim), copies = dim == DIM_KEY ? m->tp.copies : 1,
            length = all / copies, before = m->tp.rank % copies * length;
    int64_t split_size = dim == DIM_VOCAB ? vocabulary_split_size(m) : length / model_local_splits(m);
    CHECK(l->runs < SPLIT_RUNS && length * copies == all);
    l->run[l->runs].skip = *left + before;
    l->run[l->runs].length = length;
    l->run[l->runs++].split_size = split_size;
    *left = all - length - before;
}

/* Matrices that a product takes as one are runs of its inner dimension: a split has some heads' q, k and v,
 * and gate and up of some elements. Others are one run. */
KSplit model_k_split(const Model *m, Dim dim) {
    KSplit l = NO_SPLIT;
    Dim outputs[PARAM_MATRICES];
    int count = param_outputs(&m->config, dim, outputs);
    int64_t left = 0;
    for (int i = 0; i < count && model_is_sliced(m); i++) add_run(m, &l, outputs[i], &left);
    return l;
}

/* What is left of a run behind the split comes before the next one's. */
KSplit model_split(const Model *m, Dim dim, int i) {
    KSplit all = model_k_split(m, dim), one = all;
    int64_t left = 0;
    for (int r = 0; r < all.runs; r++) {
        int64_t split_size = all.run[r].split_size, first = i * split_size;
        one.run[r].skip = left + all.run[r].skip + first, one.run[r].length = split_size;
        left = all.run[r].length - first - split_size;
    }
    return one;
}

KSplit model_vocabulary_split(const Model *m, int i) {
    int64_t split_size = vocabulary_split_size(m), left = m->config.vocab_size - i * split_size;
    KSplit l = {.runs = 1};
    l.run[0].skip = i * split_size,
    l.run[0].length = l.run[0].split_size = left < split_size ? left : split_size;
    return l;
}

bool model_has_heads_apart(const Model *m) {
    return m->config.mtp_depth > 0 && !m->config.mtp_module && m->tp.splits > 1;
}

int model_key_splits(const Model *m) {
    int own = model_local_splits(m), heads = (int)m->config.num_key_value_heads;
    return heads > 0 && own > heads ? own / heads : 1;
}

/* Where the splits of this rank begin. */
static int64_t first_of(const Model *m, int64_t all) {
    return m->tp.rank * model_local_splits(m) * split_of(m, all);
}

static EmbedRows rows_here(const Model *m, int64_t all, int64_t own) {
    return m->tp.size == 1 ? ALL_ROWS : (EmbedRows){first_of(m, all), own};
}

EmbedRows model_vocabulary(const Model *m) { return rows_here(m, m->vocabulary, m->config.vocab_size); }
EmbedRows model_learned(const Model *m) {
    return rows_here(m, m->learned, m->config.max_position_embeddings);
}

VocabSplit model_vocabulary_splits(const Model *m, const LossRecord *records) {
    if (m->tp.splits == 1) return WHOLE_VOCABULARY;
    return (VocabSplit){.first = first_of(m, m->vocabulary),
                        .split_size = vocabulary_split_size(m),
                        .count = records ? m->tp.splits : 0,
                        .records = records};
}

/* ---- chunks of logits ---- */

static int chunks_of_exact_chunk(const Model *m) {
    return (int)((model_exact_chunk(m, m->tokens) + m->loss_rows - 1) / m->loss_rows);
}

int model_chunks(const Model *m) { return model_exact_chunks(m) * chunks_of_exact_chunk(m); }
int model_head_chunks(const Model *m, bool training) {
    bool mtp = training && !m->config.mtp_module;
    return model_chunks(m) * (mtp ? 1 + (int)m->config.mtp_depth : 1);
}
int model_logits_exact_chunk(const Model *m, int chunk) { return chunk / chunks_of_exact_chunk(m); }

int64_t model_chunk_first(const Model *m, int chunk) {
    return model_logits_exact_chunk(m, chunk) * model_exact_chunk(m, m->tokens) +
           chunk % chunks_of_exact_chunk(m) * m->loss_rows;
}

int64_t model_chunk_rows(const Model *m, int chunk) {
    int64_t left = model_exact_chunk(m, m->tokens) - chunk % chunks_of_exact_chunk(m) * m->loss_rows;
    return left < m->loss_rows ? left : m->loss_rows;
}

void model_set_ep(Model *m, double capacity) {
    if (model_expert_ranks(&m->config) == 1) return;
    int64_t least = model_exact_chunk(m, model_assignments(m));
    m->dispatch_rows = (int64_t)ceil(capacity * (double)least);
    CHECK(m->dispatch_rows >= least);
}

void model_free(Model *m) {
    param_table_free(&m->table);
    *m = (Model){0};
}

/* Elements of a table. */
static size_t table_elements(const ModelConfig *c, int64_t positions) {
    return (size_t)positions * (size_t)model_rotary_dim(c);
}

size_t model_constants_bytes(const ModelConfig *c, int64_t positions) {
    size_t factors = model_scales_queries(c) ? (size_t)positions : 0;
    return pool_round(((size_t)model_rotations(c) * table_elements(c, positions) + factors) * sizeof(float));
}

/* Once dry and once real, as all of a pool: the first time cos_sin is NULL, and only `positions` is meant. */
void model_layout_constants(Model *m, int64_t positions, Pool *constants) {
    m->positions = positions;
    m->cos_sin = pool_take(constants, model_constants_bytes(&m->config, positions));
}

/* Tables lie one after the other; a block's number of a table is model_block's `rotation`. */
const float *model_angles(const Model *m, int rotation) {
    return m->cos_sin + (size_t)rotation * table_elements(&m->config, m->positions);
}

/* Behind the tables. */
static float *query_factors(const Model *m) {
    return m->cos_sin + (size_t)model_rotations(&m->config) * table_elements(&m->config, m->positions);
}
const float *model_query_factors(const Model *m) { return query_factors(m); }

/* Some hundred rows at a time: few uploads, and little memory of the host. Each row is made from its
 * position alone, so a longer table begins with the bits of a shorter one; but longrope's that reaches beyond
 * the original context. */
static void compute_table(const Model *m, int rotation, Device *d) {
    enum { ROWS = 256 };
    int64_t width = model_rotary_dim(&m->config);
    int64_t context = m->context > 0 ? m->context : m->positions;
    float *rows = mem_alloc_array((size_t)(ROWS * width), sizeof *rows);
    for (int64_t first = 0; first < m->positions; first += ROWS) {
        int64_t count = m->positions - first < ROWS ? m->positions - first : ROWS;
        for (int64_t i = 0; i < count; i++)
            rotation_angles(&m->config, rotation, context, first + i, rows + i * width);
        OP(d, OP_UPLOAD, upload,
           m->cos_sin + (size_t)rotation * table_elements(&m->config, m->positions) + first * width, rows,
           (size_t)(count * width) * sizeof *rows);
    }
    free(rows);
}

static void compute_factors(const Model *m, Device *d) {
    float *factors = mem_alloc_array((size_t)m->positions, sizeof *factors);
    for (int64_t p = 0; p < m->positions; p++) factors[p] = rotation_query_factor(&m->config, p);
    OP(d, OP_UPLOAD, upload, query_factors(m), factors, (size_t)m->positions * sizeof *factors);
    free(factors);
}

void model_compute_constants(Model *m, Device *d) {
    for (int r = 0; r < model_rotations(&m->config); r++) compute_table(m, r, d);
    if (model_scales_queries(&m->config)) compute_factors(m, d);
}

/* Zeros stay zeros, by which the device knows the plain kind: scale 0 is 1 / sqrt(D), and only families
 * that give query_pre_attn_scalar have another. */
AttentionShape model_attention(const Model *m, int64_t layer) {
    const ModelConfig *c = &m->config;
    double scalar = c->query_pre_attn_scalar;
    BlockShape block = model_block(c, layer);
    return (AttentionShape){.tokens = m->tokens,
                            .heads = (int)c->num_attention_heads,
                            .kv_heads = (int)c->num_key_value_heads,
                            .head_dim = (int)c->head_dim,
                            .rotary = (int)model_rotary_dim(c),
                            .neighbours = model_family(c)->arch.neighbours,
                            .scale = c->kv_lora_rank > 0 ? rotation_score_scale(c)
                                     : scalar > 0        ? (float)(1 / sqrt(scalar))
                                                         : 0,
                            .cap = (float)c->attn_logit_softcapping,
                            .window = block.chunked ? 0 : block.window,
                            .chunk = block.chunked ? block.window : 0};
}

AttentionShape model_heads(const Model *m, int64_t layer) {
    AttentionShape s = model_attention(m, layer);
    int ranks = m->cp.ranks;
    if (model_cp_all_to_all(m)) s.tokens *= ranks, s.heads /= ranks, s.kv_heads /= ranks;
    return s;
}

/* By heads a rank attends for all tokens, and so by the exact chunks of all. */
int model_query_runs(const Model *m) {
    int exact_chunks = m->cp.exact_chunks;
    if (!m->cp.keys) return exact_chunks > 0 ? exact_chunks : 1;
    return exact_chunks > 0 ? exact_chunks / m->cp.ranks : model_cp_chunks(m);
}

int model_query_run(const Model *m, int i) { return i % 2 ? model_query_runs(m) - 1 - i / 2 : i / 2; }

/* The right half of a block is made while the left one waits. */
static int depth_of(int runs) {
    if (runs == 1) return 1;
    int half = tree_half(runs), left = depth_of(half), right = 1 + depth_of(runs - half);
    return left > right ? left : right;
}

int model_partial_depth(const Model *m) { return depth_of(model_query_runs(m)); }

int model_split_depth(const Model *m) { return depth_of(model_local_splits(m)) - (m->tp.size > 1 ? 1 : 0); }

bool model_has_partials(const Model *m) {
    return model_query_runs(m) > 1 || model_key_splits(m) > 1 || m->tp.copies > 1;
}

/* Of those that are normed, or have a bias: a router's is as wide as there are experts. */
static int64_t widest_row(const ModelConfig *c) {
    int64_t widths[] = {c->num_experts, model_dim(c, DIM_LATENT_WIDEST),
                        model_has_mixer(c, MIXER_MAMBA2) ? c->recurrent_size : 0},
            widest = c->hidden_size;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i] > widest) widest = widths[i];
    return widest;
}

/* The first layer stands for all: they differ in windows, which change what attention visits and not what
 * it needs. */
DeviceNeeds model_device_needs(const Model *m) {
    const ModelConfig *c = &m->config;
    return (DeviceNeeds){.compute = m->compute,
                         .tokens = m->tokens,
                         .hidden = widest_row(c),
                         .intermediate = c->intermediate_size,
                         .vocab = c->vocab_size,
                         .logits_rows = m->loss_rows,
                         .qkv = model_dim(c, DIM_QKV),
                         .attention = model_heads(m, 0),
                         .keys = model_all_tokens(m),
                         .splits = model_is_sliced(m) ? model_local_splits(m) : 0};
}
