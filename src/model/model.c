/* A model as passes see it: its shape, its parameter table, and the constants that its layers share. */
#include <math.h>
#include <stdlib.h>

#include "base/text.h"
#include "model/unit.h"

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

static void rotate_position(const ModelConfig *c, int64_t position, float *row /* [D] */) {
    int64_t half = c->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * rope_frequency(c, i);
        row[i] = (float)cos(angle);
        row[half + i] = (float)sin(angle);
    }
}

/* Some hundred rows at a time: few uploads, and little memory of the host. */
void model_compute_constants(Model *m, Device *d) {
    enum { ROWS = 256 };
    int64_t dim = m->config.head_dim;
    float *rows = mem_alloc_array((size_t)(ROWS * dim), sizeof *rows);
    for (int64_t first = 0; first < m->positions; first += ROWS) {
        int64_t count = m->positions - first < ROWS ? m->positions - first : ROWS;
        for (int64_t i = 0; i < count; i++) rotate_position(&m->config, first + i, rows + i * dim);
        OP(d, OP_UPLOAD, upload, m->cos_sin + first * dim, rows, (size_t)(count * dim) * sizeof *rows);
    }
    free(rows);
}

AttentionShape model_attention(const Model *m) {
    const ModelConfig *c = &m->config;
    return (AttentionShape){m->tokens, (int)c->num_attention_heads, (int)c->num_key_value_heads,
                            (int)c->head_dim};
}

DeviceNeeds model_device_needs(const Model *m) {
    const ModelConfig *c = &m->config;
    return (DeviceNeeds){.compute = m->compute,
                         .tokens = m->tokens,
                         .hidden = c->hidden_size,
                         .intermediate = c->intermediate_size,
                         .vocab = c->vocab_size,
                         .logits_rows = m->loss_rows,
                         .attention = model_attention(m)};
}
