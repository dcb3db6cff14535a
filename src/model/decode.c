/* The passes of training, forward and one sequence at a time, with keys and values of earlier tokens kept.
 * A prompt goes through in chunks, each attending to the cache that the ones before it have filled. */
#include "model/decode.h"

#include <stdlib.h>

#include "base/text.h"

/* Most that a block's layers keep of a token. */
static size_t cached_bytes(const Model *m) {
    size_t most = 0;
    for (int u = 1; u < m->table.units - 1; u++) {
        Sublayer sublayers[UNIT_SUBLAYERS];
        int64_t elements = 0, count = unit_sublayers(&m->config, u, sublayers);
        for (int s = 0; s < count; s++) elements += model_dim(&m->config, sublayers[s].layer->cached);
        size_t bytes = (size_t)elements * dtype_bytes(m->compute);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* A pass keeps nothing for a backward pass, which is the layout of full recomputation. */
static void layout(Decoder *g) {
    const ModelConfig *c = &g->model.config;
    Pool *p = &g->pool;
    size_t ids = (size_t)g->chunk * sizeof(int32_t);
    g->cache.unit_bytes = pool_round((size_t)g->cache.positions * cached_bytes(&g->model));
    g->cache.base = pool_take(p, (size_t)(g->model.table.units - 2) * g->cache.unit_bytes);
    g->batch.ids = pool_take(p, ids);
    g->batch.positions = pool_take(p, ids);
    for (int i = 0; i < 2; i++) g->states[i] = pool_take(p, unit_slab_bytes(&g->model, 1));
    g->keep = pool_take(p, model_keep_bytes(&g->model));
    g->scratch = pool_take(p, model_scratch_bytes(&g->model));
    g->logits = pool_take(p, (size_t)c->vocab_size * sizeof(float));
    g->rstd = pool_take(p, sizeof(float));
    model_layout_constants(&g->model, g->cache.positions, p);
}

ErrorCode decoder_open(Decoder *g, const Model *m, const Weights *weights, Device *d, int64_t positions,
                       int64_t chunk, Error *err) {
    *g = (Decoder){
        .model = *m, .device = d, .weights = weights, .chunk = chunk, .pool = {.name = "generation"}};
    g->model.recompute = RECOMPUTE_FULL;
    g->model.tokens = chunk;
    g->model.loss_rows = 1;
    g->cache.positions = positions;
    layout(g);
    TRY(pool_commit(&g->pool, d, err));
    layout(g);
    model_compute_constants(&g->model, d);
    return OK;
}

void decoder_close(Decoder *g) {
    pool_free(&g->pool);
    *g = (Decoder){0};
}

void decoder_restart(Decoder *g) { g->cache.start = 0; }

int64_t decoder_room(const Decoder *g) { return g->cache.positions - g->cache.start; }

static void upload(Decoder *g, const int32_t *ids, int64_t count) {
    size_t bytes = (size_t)count * sizeof(int32_t);
    int32_t *positions = mem_alloc(bytes);
    for (int64_t i = 0; i < count; i++) positions[i] = (int32_t)(g->cache.start + i);
    OP(g->device, OP_UPLOAD, upload, g->batch.ids, ids, bytes);
    OP(g->device, OP_UPLOAD, upload, g->batch.positions, positions, bytes);
    free(positions);
}

/* One pass up to the last block; returns the states [count, h] after the last one. */
static char *feed_chunk(Decoder *g, const Pass *p, const int32_t *ids, int64_t count) {
    upload(g, ids, count);
    const ModelConfig *c = &g->model.config;
    int last = g->model.table.units - 1, at = 0;
    for (int u = 0; u < last; u++, at ^= 1)
        unit_forward(&(UnitPass){.pass = p,
                                 .unit = u,
                                 .slab = g->states[at],
                                 .keep = g->keep,
                                 .scratch = g->scratch,
                                 .out = g->states[at ^ 1]},
                     unit_parts(c, u));
    g->cache.start += count;
    return g->states[at];
}

void decoder_feed(Decoder *g, const int32_t *ids, int64_t count, float *logits) {
    CHECK(count <= decoder_room(g));
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
