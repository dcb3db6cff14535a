/* Where the tensors of a unit's passes live. One walk over their rows, the same each time, counts bytes (with
 * no memory given) or hands out addresses. What the recompute policy drops from the slab moves to `keep` if
 * the weight half reads it, else to `scratch`.
 *
 *  1. A row has one place, whatever asks: the plan counts with the walk that hands out addresses, so the two
 *     cannot differ.
 *  2. No two rows share bytes, even in scratch: a pass may read what any part before it has made. Only units
 *     share, since their passes do not overlap.
 *
 * What stays in the slab from the forward pass to the backward pass, by lifetime and policy:
 *
 *                  none   selective   full        elsewhere:
 *     INPUT        slab   slab        slab
 *     SAVED        slab   slab        -           operands of the weight half   keep
 *     CHEAP        slab   -           -           all others                    scratch
 *     SCRATCH      -      -           -
 *
 * Operands go to a place of their own since the weight half may come much later than the input half, when
 * scratch has long been another unit's. */
#include "model/internal.h"

typedef enum Region { REGION_SLAB, REGION_KEEP, REGION_SCRATCH, REGIONS } Region;

typedef struct Cursor {
    char *base[REGIONS];
    size_t used[REGIONS];
} Cursor;

/* Of each sublayer x + out(f(in(x))); the stream before the first one is the unit's input. What a norm after
 * the layer reads is saved: it is the layer's last product, which is not cheap. */
static const TensorRow rstd_row = {.width = DIM_ONE, .element = ELEMENT_FP32, .life = LIFE_SAVED},
                       n_row = {.width = DIM_HIDDEN, .life = LIFE_CHEAP, .operand = true},
                       dy_row = {.width = DIM_HIDDEN, .life = LIFE_SCRATCH, .operand = true},
                       result_row = {.width = DIM_HIDDEN, .life = LIFE_SAVED},
                       dn_row = {.width = DIM_HIDDEN, .life = LIFE_SCRATCH};

/* Without a norm before it, the layer reads the stream: then that is the operand. */
static TensorRow stream_row(const Sublayer *s, int index) {
    return (TensorRow){.width = DIM_HIDDEN, .life = stream_lifetime(index), .operand = !s->in};
}

/* In whole cache lines, so that each tensor begins at one. A narrow tensor is none where the compute dtype
 * is fp32: its layer works in the wide one beside it (head.c). */
static size_t tensor_bytes(const Model *m, const TensorRow *row) {
    size_t element = row->element == ELEMENT_FP32 ? sizeof(float) : dtype_bytes(m->compute);
    if (row->element == ELEMENT_NARROW && m->compute == DTYPE_F32) return 0;
    int64_t rows = row->rows == EXTENT_TOKENS ? m->tokens : m->loss_rows;
    return pool_round((size_t)rows * (size_t)model_dim(&m->config, row->width) * element);
}

/* NULL where the region has no memory, in a dry walk as for a unit that needs none there. */
static void *take(Cursor *c, const Model *m, const TensorRow *row) {
    Region r = lifetime_stays(row->life, m->recompute) ? REGION_SLAB
               : row->operand                          ? REGION_KEEP
                                                       : REGION_SCRATCH;
    char *p = c->base[r] ? c->base[r] + c->used[r] : NULL;
    c->used[r] += tensor_bytes(m, row);
    return p;
}

/* Without a norm before it the layer's operand n is the stream itself: one tensor under two names. A layer
 * that stands alone brings all its tensors with it. */
static void take_sublayer(Cursor *c, const Model *m, const Sublayer *s, int index, SublayerTensors *out) {
    if (!sublayer_alone(s)) {
        TensorRow stream = stream_row(s, index);
        out->x = take(c, m, &stream);
        out->rstd = s->in ? take(c, m, &rstd_row) : NULL;
        out->n = s->in ? take(c, m, &n_row) : out->x;
        out->dy = take(c, m, &dy_row);
        out->result = s->out ? take(c, m, &result_row) : NULL;
        out->out_rstd = s->out ? take(c, m, &rstd_row) : NULL;
    }
    CHECK(s->layer->tensor_count <= LAYER_TENSORS);
    for (int i = 0; i < s->layer->tensor_count; i++) out->layer[i] = take(c, m, &s->layer->tensors[i]);
}

/* The only walk. `dn` is a block's, not a sublayer's: the gradient of one layer's input is added to the
 * stream's before the next layer down makes its own. */
static void lay_out(const Model *m, int unit, Cursor *c, UnitTensors *out) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(&m->config, unit, sublayers);
    *out = (UnitTensors){0};
    for (int s = 0; s < count; s++) take_sublayer(c, m, &sublayers[s], s, &out->sublayers[s]);
    if (!sublayer_alone(&sublayers[0])) out->dn = take(c, m, &dn_row);
}

void unit_tensors(const Model *m, int unit, char *slab, char *keep, char *scratch, UnitTensors *out) {
    lay_out(m, unit, &(Cursor){.base = {slab, keep, scratch}}, out);
}

static size_t region_bytes(const Model *m, int unit, Region region) {
    Cursor c = {0};
    UnitTensors none;
    lay_out(m, unit, &c, &none);
    return c.used[region];
}

size_t unit_slab_bytes(const Model *m, int unit) { return region_bytes(m, unit, REGION_SLAB); }

size_t unit_keep_bytes(const Model *m, int unit) { return region_bytes(m, unit, REGION_KEEP); }

/* What units share is as large as the one that needs most. */
static size_t most_bytes(const Model *m, Region region) {
    size_t most = 0;
    for (int u = 0; u < m->table.units; u++) {
        size_t bytes = region_bytes(m, u, region);
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t model_keep_bytes(const Model *m) { return most_bytes(m, REGION_KEEP); }

size_t model_scratch_bytes(const Model *m) { return most_bytes(m, REGION_SCRATCH); }

size_t boundary_bytes(const Model *m) {
    return (size_t)m->tokens * (size_t)m->config.hidden_size * dtype_bytes(m->compute);
}
