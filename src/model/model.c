/* A model as passes see it: its shape, its parameter table, and the constants that its layers share. These
 * are the RoPE tables, with a cosine and a sine for each position and pair, and the factors of the queries by
 * position, in models that scale queries.
 *
 * They are computed in double and rounded once. A model may have two tables (layers with windows may have
 * another base), or none; model_block chooses a block's table. */
#include <math.h>
#include <stdlib.h>

#include "base/text.h"
#include "base/tree.h"
#include "device/ops/memory.h"
#include "model/families/family.h"
#include "model/rotation.h"
#include "model/unit.h"

/* Rows of a chunk of logits: enough for an efficient product and few passes over the weight gradient, few
 * enough that the chunk stays near 64 MiB. */
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

/* The configuration is copied; the table is owned and released by model_free. No chunk of logits has more
 * rows than the microbatch. */
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

/* A chunk of logits lies in one exact chunk, so it has at most as many rows: the gradient of an exact chunk
 * is the sum over the chunks of its logits. */
void model_set_cp(Model *m, CpGroup cp) {
    int shares = cp.ranks * model_segments(m),
        exact_chunks = cp.exact_chunks > 0 ? cp.exact_chunks / shares : 1;
    CHECK(exact_chunks > 0 && cp.exact_chunks % shares == 0 &&
          m->tokens % (exact_chunks * m->tp.splits) == 0);
    m->cp = cp;
    if (m->loss_rows > model_exact_chunk(m, m->tokens)) m->loss_rows = model_exact_chunk(m, m->tokens);
}

void model_set_segments(Model *m, int segments, CpGroup cp) {
    CHECK(segments == 1 || cp.ranks == 1);
    m->segments = segments;
    model_set_cp(m, cp);
}

/* ---- splits ---- */

KSplit model_one_split(const Model *m, int64_t length) {
    if (!model_is_sliced(m)) return NO_SPLIT;
    return (KSplit){.runs = 1, .run = {{.length = length, .split_size = length}}};
}

/* Size of a split: `all` divided evenly, except that the last split of an embedding's rows may be shorter. */
static int64_t split_of(const Model *m, int64_t all) { return (all + m->tp.splits - 1) / m->tp.splits; }
static int64_t vocabulary_split_size(const Model *m) { return split_of(m, m->vocabulary); }

/* Ranks with replicas of a KV head take a segment of it each, so that no partial sum occurs twice. If one
 * rank has several splits of it, these take segments too. `left`: elements after the previous run that belong
 * to others. */
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

/* Matrices that a product takes as one (q, k and v; gate and up) are separate runs of its inner dimension: a
 * split has some heads' q, k and v, or some elements of gate and up. Other dimensions are one run. */
KSplit model_k_split(const Model *m, Dim dim) {
    KSplit l = NO_SPLIT;
    Dim outputs[PARAM_MATRICES];
    int count = param_outputs(&m->config, dim, outputs);
    int64_t left = 0;
    for (int i = 0; i < count && model_is_sliced(m); i++) add_run(m, &l, outputs[i], &left);
    return l;
}

/* The rest of a run after the split is skipped before the next run. */
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

/* First element of this rank's splits. */
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

/* Elements of one table. */
static size_t table_elements(const ModelConfig *c, int64_t positions) {
    return (size_t)positions * (size_t)model_rotary_dim(c);
}

size_t model_constants_bytes(const ModelConfig *c, int64_t positions) {
    size_t factors = model_scales_queries(c) ? (size_t)positions : 0;
    return pool_round(((size_t)model_rotations(c) * table_elements(c, positions) + factors) * sizeof(float));
}

/* Called twice, as for all of a pool: the first time only counts, with cos_sin NULL. */
void model_layout_constants(Model *m, int64_t positions, Pool *constants) {
    m->positions = positions;
    m->cos_sin = pool_take(constants, model_constants_bytes(&m->config, positions));
}

/* Tables lie one after the other, in the order of model_block's `rotation`. */
const float *model_angles(const Model *m, int rotation) {
    return m->cos_sin + (size_t)rotation * table_elements(&m->config, m->positions);
}

/* After the tables. */
static float *query_factors(const Model *m) {
    return m->cos_sin + (size_t)model_rotations(&m->config) * table_elements(&m->config, m->positions);
}
const float *model_query_factors(const Model *m) { return query_factors(m); }

/* A few hundred rows at a time need few uploads and little host memory. Each row depends on its position
 * alone, so a longer table begins with the bits of a shorter one, except with longrope beyond the original
 * context. */
static void compute_table(const Model *m, int rotation, Device *d) {
    enum { ROWS = 256 };
    int64_t width = model_rotary_dim(&m->config);
    int64_t context = m->context > 0 ? m->context : m->positions;
    float *rows = mem_alloc_array((size_t)(ROWS * width), sizeof *rows);
    for (int64_t first = 0; first < m->positions; first += ROWS) {
        int64_t count = m->positions - first < ROWS ? m->positions - first : ROWS;
        for (int64_t i = 0; i < count; i++)
            rotation_angles(&m->config, rotation, context, first + i, rows + i * width);
        OP(d, upload,
           m->cos_sin + (size_t)rotation * table_elements(&m->config, m->positions) + first * width, rows,
           (size_t)(count * width) * sizeof *rows);
    }
    free(rows);
}

static void compute_factors(const Model *m, Device *d) {
    float *factors = mem_alloc_array((size_t)m->positions, sizeof *factors);
    for (int64_t p = 0; p < m->positions; p++) factors[p] = rotation_query_factor(&m->config, p);
    OP(d, upload, query_factors(m), factors, (size_t)m->positions * sizeof *factors);
    free(factors);
}

void model_compute_constants(Model *m, Device *d) {
    for (int r = 0; r < model_rotations(&m->config); r++) compute_table(m, r, d);
    if (model_scales_queries(&m->config)) compute_factors(m, d);
}

/* Zeros stay zeros, by which the device recognises the plain case: scale 0 is 1 / sqrt(D), and only families
 * with query_pre_attn_scalar have another. */
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

/* With the CP all-to-all a rank attends for all tokens, and so for the exact chunks of all ranks. */
int model_query_runs(const Model *m) {
    int exact_chunks = m->cp.exact_chunks;
    if (!m->cp.keys) return exact_chunks > 0 ? exact_chunks / model_segments(m) : 1;
    return exact_chunks > 0 ? exact_chunks / m->cp.ranks : model_cp_chunks(m);
}

int model_query_run(const Model *m, int i) { return i % 2 ? model_query_runs(m) - 1 - i / 2 : i / 2; }

/* The right half of a block is computed while the sum of the left half waits. */
static int depth_of(int runs) {
    if (runs == 1) return 1;
    int half = tree_half(runs), left = depth_of(half), right = 1 + depth_of(runs - half);
    return left > right ? left : right;
}

int model_partial_depth(const Model *m) { return depth_of(model_query_runs(m)); }

int model_split_depth(const Model *m) { return depth_of(model_local_splits(m)) - (m->tp.size > 1 ? 1 : 0); }

bool model_has_partials(const Model *m) {
    return model_query_runs(m) > 1 || model_key_splits(m) > 1 || m->tp.copies > 1 || model_segments(m) > 1;
}

int model_segment_sums(const Model *m) { return m->cp.exact_chunks > 1 ? m->cp.exact_chunks / 2 : 1; }

/* The widest row that is normed or has a bias. A router's bias is as wide as the number of experts. */
static int64_t widest_row(const ModelConfig *c) {
    int64_t widths[] = {c->num_experts, model_dim(c, DIM_LATENT_WIDEST),
                        model_has_mixer(c, MIXER_MAMBA2) ? c->recurrent_size : 0},
            widest = c->hidden_size;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i] > widest) widest = widths[i];
    return widest;
}

/* The first layer is representative: layers differ in windows, which change what attention reads but not the
 * memory it needs. */
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
                         .splits = model_is_sliced(m) ? model_local_splits(m) : 0,
                         .sources = m->dispatch_rows > 0 ? (int)model_expert_sources(c) : 0};
}
