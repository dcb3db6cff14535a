/* Generation runs the forward passes of training on one sequence at a time, and keeps the keys and values of
 * earlier tokens (KV cache). A prompt is fed in chunks, each attending to the cache that the previous ones
 * have filled.
 *
 * All blocks share two buffers for their tensors, since nothing is saved for a backward pass. The input comes
 * first in a buffer, and the output of one pass is written where the next one has its input.
 *
 *     embedding --> states[1] --> block 1 --> states[0] --> block 2 --> states[1] --> ...
 *                                   |                         |
 *                    cache:   keys [P, K], values [P, K]    those of block 2, ...
 *
 * Only the last token's state goes through the head: one row of logits, whatever the length of a prompt.
 *
 * longrope's angles depend on the length of the sequence. When it grows beyond the original context, the keys
 * in the cache have been rotated by other angles than those that follow. The sequence is then fed again from
 * its first token, as transformers does.
 *
 * Elsewhere called: inference with a KV cache (kv_cache, past_key_values). */
#include "model/decode.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "device/ops/memory.h"
#include "model/rotation.h"

/* Bytes of one block's cache: KV cache of `positions` tokens, and the recurrent states of its layers. */
static size_t kept_bytes(const Model *m, int unit, int64_t positions) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int64_t cached = 0, carried = 0, count = unit_sublayers(&m->config, unit, sublayers);
    for (int s = 0; s < count; s++) {
        const Layer *l = sublayers[s].layer;
        cached += model_dim(&m->config, l->cached);
        carried += l->carried ? l->carried(&m->config) : 0;
    }
    return (size_t)(positions * cached) * dtype_bytes(m->compute) + (size_t)carried * sizeof(float);
}

/* Every block gets as much memory as the one that needs most, so a block's offset is its index times that
 * size. */
static size_t cached_bytes(const Model *m, int64_t positions) {
    size_t most = 0;
    for (int u = 1; u < m->table.units - 1; u++)
        if (kept_bytes(m, u, positions) > most) most = kept_bytes(m, u, positions);
    return most;
}

/* The largest of a block: layers with experts also save the routing. */
static size_t saved_bytes(const Model *m) {
    size_t most = 0;
    for (int u = 1; u < m->table.units - 1; u++)
        if (unit_saved_bytes(m, u) > most) most = unit_saved_bytes(m, u);
    return most;
}

/* A pass saves nothing for a backward pass, which is the layout of full recomputation. Called twice, before
 * and after the pool is committed: once to count, once for addresses (device/pool.h). */
static void layout(Decoder *g) {
    const ModelConfig *c = &g->model.config;
    Pool *p = &g->pool;
    size_t ids = (size_t)g->chunk * sizeof(int32_t);
    g->cache.unit_bytes = pool_round(cached_bytes(&g->model, g->cache.positions));
    g->cache.base = pool_take(p, (size_t)(g->model.table.units - 2) * g->cache.unit_bytes);
    g->batch.ids = pool_take(p, ids);
    g->batch.positions = pool_take(p, ids);
    for (int i = 0; i < 2; i++) g->states[i] = pool_take(p, saved_bytes(&g->model));
    g->stash = pool_take(p, model_stash_bytes(&g->model));
    g->scratch = pool_take(p, model_scratch_bytes(&g->model));
    g->logits = pool_take(p, (size_t)c->vocab_size * sizeof(float));
    g->rstd = pool_take(p, sizeof(float));
    model_layout_constants(&g->model, g->cache.positions, p);
}

static void set_context(Decoder *g, int64_t context) {
    g->model.context = context;
    model_compute_constants(&g->model, g->device);
}

/* A copy of the model with sizes of its own. It shares the parameter table, so the given model must outlive
 * it. The layout is only counted. */
static Decoder plan(const Model *m, int64_t positions, int64_t chunk) {
    Decoder g = {.model = *m, .chunk = chunk, .pool = {.name = "generation"}};
    g.model.recompute = RECOMPUTE_FULL;
    g.model.tokens = chunk;
    g.model.loss_rows = 1;
    g.cache.positions = positions;
    layout(&g);
    return g;
}

size_t decoder_bytes(const Model *m, int64_t positions, int64_t chunk) {
    return plan(m, positions, chunk).pool.planned;
}

/* Angles are computed again, since they cover the length of the cache, not the run's context. Fails with
 * ERR_MEMORY, and then holds nothing. */
ErrorCode decoder_open(Decoder *g, const Model *m, const Weights *weights, Device *d, int64_t positions,
                       int64_t chunk, Error *err) {
    *g = plan(m, positions, chunk);
    g->device = d, g->weights = weights;
    TRY(pool_commit(&g->pool, d, err));
    layout(g);
    if (rotation_is_long(&m->config, positions)) g->fed = mem_alloc_array((size_t)positions, sizeof *g->fed);
    set_context(g, g->fed ? 1 : positions);
    return OK;
}

void decoder_close(Decoder *g) {
    free(g->fed);
    pool_free(&g->pool);
    *g = (Decoder){0};
}

/* Nothing is cleared: rows of the cache from `start` on are written before they are read, and recurrences see
 * from the position that a sequence begins. */
void decoder_restart(Decoder *g) {
    g->cache.start = 0;
    if (g->fed && g->model.context > 1) set_context(g, 1);
}

int64_t decoder_tokens_left(const Decoder *g) { return g->cache.positions - g->cache.start; }

/* Positions count from the beginning of the sequence, not of the chunk, since keys are cached after rotation.
 * The host's copy may be freed at once: an upload reads it when it is enqueued (device.h, the contract,
 * 3). */
static void upload(Decoder *g, const int32_t *ids, int64_t count) {
    size_t bytes = (size_t)count * sizeof(int32_t);
    int32_t *positions = mem_alloc(bytes);
    for (int64_t i = 0; i < count; i++) positions[i] = (int32_t)(g->cache.start + i);
    OP(g->device, upload, g->batch.ids, ids, bytes);
    OP(g->device, upload, g->batch.positions, positions, bytes);
    free(positions);
}

/* One pass up to the last block. Returns the states [count, h] after it. */
static char *feed_chunk(Decoder *g, const Pass *p, const int32_t *ids, int64_t count) {
    upload(g, ids, count);
    const ModelConfig *c = &g->model.config;
    int last = g->model.table.units - 1, at = 0;
    for (int u = 0; u < last; u++, at ^= 1)
        unit_forward(&(UnitPass){.pass = p,
                                 .unit = u,
                                 .saved = g->states[at],
                                 .stash = g->stash,
                                 .scratch = g->scratch,
                                 .out = g->states[at ^ 1]},
                     unit_ops(c, u));
    g->cache.start += count;
    return g->states[at];
}

/* The last chunk is shorter than the others. Passes take their length from the model, so they get a copy of
 * it with that number of tokens. The fetch makes the host wait, once per call. */
static void feed(Decoder *g, const int32_t *ids, int64_t count, float *logits) {
    Model m = g->model;
    Pass p = {.model = &m, .device = g->device, .weights = g->weights, .batch = g->batch, .cache = &g->cache};
    for (int64_t done = 0; done < count; done += m.tokens) {
        m.tokens = count - done < g->chunk ? count - done : g->chunk;
        char *states = feed_chunk(g, &p, ids + done, m.tokens);
        if (done + m.tokens < count || !logits) continue;
        size_t row = (size_t)m.config.hidden_size * dtype_bytes(m.compute);
        head_logits(&p, 1, states + (size_t)(m.tokens - 1) * row, g->scratch, g->rstd, g->logits);
        device_fetch(g->device, logits, g->logits, (size_t)m.config.vocab_size * sizeof(float));
    }
}

/* When the sequence becomes too long for its angles (longrope), all of it is fed again. */
void decoder_feed(Decoder *g, const int32_t *ids, int64_t count, float *logits) {
    CHECK(count <= decoder_tokens_left(g));
    int64_t before = g->cache.start;
    if (g->fed) memcpy(g->fed + before, ids, (size_t)count * sizeof *ids);
    if (g->fed && g->model.context == 1 && rotation_is_long(&g->model.config, before + count)) {
        set_context(g, g->cache.positions);
        g->cache.start = 0;
        feed(g, g->fed, before, NULL);
    }
    feed(g, ids, count, logits);
}
