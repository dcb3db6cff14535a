/* Memory of a unit, the embedding, and what all units share. Blocks are in block.c, the head in head.c. */
#include "model/unit.h"

#include <math.h>
#include <stdlib.h>

#include "base/text.h"
#include "model/internal.h"

size_t boundary_bytes(const Model *m) {
    return (size_t)m->tokens * (size_t)m->config.hidden_size * dtype_bytes(m->compute);
}

size_t unit_slab_bytes(const Model *m, int unit) {
    size_t slab = 0, keep, scratch;
    if (unit == m->table.units - 1) return head_slab_bytes(m);
    if (unit > 0) block_sizes(m, &slab, &keep, &scratch);
    return slab; /* the embedding's input is the microbatch itself */
}

size_t unit_keep_bytes(const Model *m, int unit) {
    size_t slab, keep = 0, scratch;
    if (unit > 0 && unit < m->table.units - 1) block_sizes(m, &slab, &keep, &scratch);
    return keep;
}

size_t unit_scratch_bytes(const Model *m) {
    size_t slab, keep, block, head = head_scratch_bytes(m);
    block_sizes(m, &slab, &keep, &block);
    return block > head ? block : head;
}

/* Logits of a chunk: enough rows that a product is efficient and the weight gradient is not passed over too
 * often, few enough that the chunk stays near 64 MiB. */
static int64_t default_loss_rows(const ModelConfig *c, int64_t tokens) {
    int64_t rows = (INT64_C(16) << 20) / c->vocab_size / 64 * 64;
    if (rows < 128) rows = 128;
    if (rows > 2048) rows = 2048;
    return rows < tokens ? rows : tokens;
}

ErrorCode model_build(Model *m, const ModelConfig *c, Dtype compute, Recompute recompute, int64_t tokens,
                      int64_t loss_rows, Error *err) {
    *m = (Model){.config = *c, .compute = compute, .recompute = recompute, .tokens = tokens};
    m->loss_rows = loss_rows > 0 ? (loss_rows < tokens ? loss_rows : tokens) : default_loss_rows(c, tokens);
    return param_table_build(&m->table, c, err);
}

void model_free(Model *m) {
    param_table_free(&m->table);
    *m = (Model){0};
}

void model_layout_constants(Model *m, int64_t positions, Pool *constants) {
    m->positions = positions;
    m->cos_sin = pool_take(constants, (size_t)positions * (size_t)m->config.head_dim * sizeof(float));
}

/* Angular frequency of pair i, with Llama 3.1's scaling: long wavelengths are divided by the factor, short
 * ones kept, those between are blended ("The Llama 3 herd of models", 2024; the rule is that of the published
 * checkpoints). */
static double rope_frequency(const ModelConfig *c, int64_t i) {
    double frequency = pow(c->rope_theta, -2.0 * (double)i / (double)c->head_dim);
    const RopeScaling *s = &c->rope_scaling;
    if (s->factor == 1 || s->factor == 0) return frequency;
    double wavelength = 2 * acos(-1.0) / frequency, original = (double)s->original_max_position_embeddings;
    if (wavelength < original / s->high_freq_factor) return frequency;
    if (wavelength > original / s->low_freq_factor) return frequency / s->factor;
    double blend = (original / wavelength - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    return (1 - blend) * frequency / s->factor + blend * frequency;
}

void model_compute_constants(Model *m, Device *d) {
    int64_t dim = m->config.head_dim, half = dim / 2;
    float *row = mem_alloc_array((size_t)dim, sizeof *row);
    for (int64_t p = 0; p < m->positions; p++) {
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * rope_frequency(&m->config, i);
            row[i] = (float)cos(angle);
            row[half + i] = (float)sin(angle);
        }
        OP(d, OP_UPLOAD, upload, m->cos_sin + p * dim, row, (size_t)dim * sizeof(float));
    }
    free(row);
}

DeviceNeeds model_device_needs(const Model *m) {
    const ModelConfig *c = &m->config;
    return (DeviceNeeds){
        .compute = m->compute,
        .tokens = m->tokens,
        .hidden = c->hidden_size,
        .intermediate = c->intermediate_size,
        .vocab = c->vocab_size,
        .logits_rows = m->loss_rows,
        .attention = {m->tokens, (int)c->num_attention_heads, (int)c->num_key_value_heads, (int)c->head_dim}};
}

void embed_forward_unit(const Pass *p, void *out) {
    const Model *m = p->model;
    const Param *table = param_of(&m->table, 0, PARAM_EMBED);
    OP(p->device, OP_EMBED_FORWARD, embed_forward, m->tokens, m->config.hidden_size, p->batch.ids,
       weights_matrix(p->weights, table), out, m->compute);
}

void embed_backward_unit(const Pass *p, const void *dx) {
    const Model *m = p->model;
    const Param *table = param_of(&m->table, 0, PARAM_EMBED);
    OP(p->device, OP_EMBED_BACKWARD, embed_backward, m->tokens, m->config.hidden_size, p->batch.ids, dx,
       gradient_of(&p->gradients, table), m->compute);
}
