/* A model as passes see it: its shape, its parameter table, and the constants that its layers share, which
 * are angles: of each position, for each pair of a head's elements, cosine and sine.
 *
 * They are computed in double and rounded once. A model may have two tables (layers with windows turn by
 * another base), or none; which one a block takes, model_block says. */
#include <math.h>
#include <stdlib.h>

#include "base/text.h"
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

/* The configuration is copied, the table owned: model_free gives it back. No chunk of logits has more rows
 * than the microbatch. */
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

/* Elements of a table. */
static size_t table_elements(const ModelConfig *c, int64_t positions) {
    return (size_t)positions * (size_t)model_rotary_dim(c);
}

size_t model_constants_bytes(const ModelConfig *c, int64_t positions) {
    return pool_round((size_t)model_rotations(c) * table_elements(c, positions) * sizeof(float));
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

/* Some hundred rows at a time: few uploads, and little memory of the host. Each row is made from its
 * position alone, so a longer table begins with the bits of a shorter one. */
static void compute_table(const Model *m, int rotation, Device *d) {
    enum { ROWS = 256 };
    int64_t width = model_rotary_dim(&m->config);
    float *rows = mem_alloc_array((size_t)(ROWS * width), sizeof *rows);
    for (int64_t first = 0; first < m->positions; first += ROWS) {
        int64_t count = m->positions - first < ROWS ? m->positions - first : ROWS;
        for (int64_t i = 0; i < count; i++)
            rotation_angles(&m->config, rotation, first + i, rows + i * width);
        OP(d, OP_UPLOAD, upload,
           m->cos_sin + (size_t)rotation * table_elements(&m->config, m->positions) + first * width, rows,
           (size_t)(count * width) * sizeof *rows);
    }
    free(rows);
}

void model_compute_constants(Model *m, Device *d) {
    for (int r = 0; r < model_rotations(&m->config); r++) compute_table(m, r, d);
}

/* Zeros stay zeros, by which the device knows the plain kind: scale 0 is 1 / sqrt(D), and only families
 * that give query_pre_attn_scalar have another. */
AttentionShape model_attention(const Model *m, int64_t layer) {
    const ModelConfig *c = &m->config;
    double scalar = c->query_pre_attn_scalar;
    return (AttentionShape){.tokens = m->tokens,
                            .heads = (int)c->num_attention_heads,
                            .kv_heads = (int)c->num_key_value_heads,
                            .head_dim = (int)c->head_dim,
                            .rotary = (int)model_rotary_dim(c),
                            .scale = scalar > 0 ? (float)(1 / sqrt(scalar)) : 0,
                            .cap = (float)c->attn_logit_softcapping,
                            .window = model_block(c, layer).window};
}

/* The first layer stands for all: they differ in windows, which change what attention visits and not what
 * it needs. */
DeviceNeeds model_device_needs(const Model *m) {
    const ModelConfig *c = &m->config;
    return (DeviceNeeds){.compute = m->compute,
                         .tokens = m->tokens,
                         .hidden = c->hidden_size,
                         .intermediate = c->intermediate_size,
                         .vocab = c->vocab_size,
                         .logits_rows = m->loss_rows,
                         .attention = model_attention(m, 0)};
}
