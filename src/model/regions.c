/* Where the tensors of a unit's passes are in memory. One walk over their rows counts bytes (without base
 * addresses) or assigns addresses. What the recompute policy drops from the saved activations moves to
 * `stash` if wgrad reads it, else to `scratch`.
 *
 *  1. The plan counts with the same walk that assigns addresses, so the two cannot differ.
 *  2. No two rows of a layer share bytes, even in scratch: an op may read what any earlier op of the pass has
 *     made. Units share memory, since their passes do not overlap, and a block's sublayers the TP buffers
 *     (take_shared).
 *
 * What is saved from the forward pass to the backward pass, by lifetime and policy:
 *
 *                  none   selective   full        elsewhere:
 *     INPUT        saved  saved       saved
 *     SAVED        saved  saved       -           operands of wgrad   stash
 *     CHEAP        saved  -           -           all others                    scratch
 *     SCRATCH      -      -           -
 *
 * With segments, keys and values of a microbatch and partial sums of their gradients have regions of their
 * own, which passes over several segments share.
 *
 * Operands have a region of their own (the wgrad stash), since wgrad may run much later than dgrad, when
 * another unit uses scratch.
 *
 * Elsewhere called: activation checkpointing (recompute policy), save_for_backward. */
#include "model/families/family.h"
#include "device/ops/recurrence.h"
#include "model/internal.h"

typedef enum Region {
    REGION_SAVED,
    REGION_STASH,
    REGION_SCRATCH,
    REGION_KEYS,
    REGION_KEY_SUMS,
    REGIONS
} Region;

typedef struct Cursor {
    char *base[REGIONS];
    size_t used[REGIONS];
} Cursor;

/* Tensors of each sublayer x + out(f(in(x))); the stream before the first one is the unit's input. The input
 * of a norm after the layer is saved: it is the result of the layer's last product, which is not cheap. */
static const TensorRow rstd_row = {EXTENT_LOCAL, DIM_ONE, ELEMENT_FP32, LIFE_SAVED, false, NEED_ALWAYS},
                       n_row = {EXTENT_LOCAL, DIM_HIDDEN, ELEMENT_COMPUTE, LIFE_CHEAP, true, NEED_ALWAYS},
                       dy_row = {EXTENT_LOCAL, DIM_HIDDEN, ELEMENT_COMPUTE, LIFE_SCRATCH, true, NEED_ALWAYS},
                       result_row = {EXTENT_LOCAL, DIM_HIDDEN, ELEMENT_COMPUTE,
                                     LIFE_SAVED,   false,      NEED_ALWAYS},
                       dn_row = {EXTENT_LOCAL, DIM_HIDDEN, ELEMENT_COMPUTE, LIFE_SCRATCH, false, NEED_ALWAYS},
                       full_row = {EXTENT_TOKENS, DIM_HIDDEN, ELEMENT_COMPUTE,
                                   LIFE_SCRATCH,  false,      NEED_ALWAYS},
                       partials_row = {EXTENT_TOKENS, DIM_HIDDEN, ELEMENT_FP32,
                                       LIFE_SCRATCH,  false,      NEED_ALWAYS},
                       inner_row = {EXTENT_LOCAL, DIM_ADAPTER, ELEMENT_COMPUTE,
                                    LIFE_ALWAYS,  false,       NEED_ALWAYS};

/* Without a norm before it, the layer reads the stream itself, which is then wgrad's operand. */
static TensorRow stream_row(const Sublayer *s, int index) {
    return (TensorRow){EXTENT_LOCAL,           DIM_HIDDEN, ELEMENT_COMPUTE,
                       stream_lifetime(index), !s->in,     NEED_ALWAYS};
}

/* With the CP all-to-all there are fewer heads and more tokens: as many elements as local tokens with all
 * heads. */
static int64_t keys_of(const Model *m) { return m->cp.keys ? model_all_tokens(m) : m->tokens; }

static int64_t rows_of(const Model *m, Extent rows) {
    switch (rows) {
    case EXTENT_TOKENS: return m->tokens;
    case EXTENT_LOCAL: return model_local_tokens(m);
    case EXTENT_LOGITS: return m->loss_rows;
    case EXTENT_LOGIT_SPLITS: return m->loss_rows * model_local_splits(m);
    case EXTENT_ASSIGNMENTS: return model_rows(m);
    case EXTENT_WORKED: return m->dispatch_rows > 0 ? m->dispatch_rows : model_rows(m);
    case EXTENT_SPLIT_PARTIALS: return m->tokens * model_split_depth(m);
    case EXTENT_SPLIT_ASSIGNMENTS:
        return model_assignments(m) * (m->dispatch_rows > 0 ? model_local_splits(m) : 1);
    case EXTENT_SPLIT_WORKED: return m->dispatch_rows * model_local_splits(m);
    case EXTENT_KEYS: return keys_of(m);
    case EXTENT_KEY_SPLITS: return keys_of(m) * model_key_splits(m);
    case EXTENT_PARTIALS:
        if (model_segments(m) > 1) return model_all_tokens(m);
        return keys_of(m) * model_key_splits(m) * model_partial_depth(m);
    case EXTENT_MICROBATCH: return model_all_tokens(m);
    case EXTENT_SEGMENT_SUMS: return model_all_tokens(m) * model_segment_sums(m);
    case EXTENT_ROW_SUMS: return 2 * m->tokens * m->tp.splits;
    case EXTENT_LOCAL_ROW_SUMS: return 2 * m->tokens * model_local_splits(m);
    case EXTENT_STARTS: return mamba_starts(m->tokens);
    case EXTENT_MAMBA_CHUNK: return mamba_scratch_rows(m->tokens);
    case EXTENT_EXACT_CHUNKS: return model_exact_chunks(m);
    case EXTENT_PIECES: return model_route_pieces(m);
    case EXTENT_LOCAL_PIECES: return model_local_pieces(m);
    case EXTENT_ORDERS: return 2 * m->dispatch_rows;
    case EXTENT_SEQUENCES: return model_sequences(m);
    case EXTENT_RECORDS: return (int64_t)(sizeof(LossRecord) / sizeof(float)) * model_records(m);
    case EXTENT_ADAPTER: return m->config.adapter_rank;
    case EXTENT_ONE: return 1;
    }
    return 0;
}

static bool is_needed(const Model *m, Need need) {
    switch (need) {
    case NEED_ALWAYS: break;
    case NEED_CP_ALL_TO_ALL: return model_cp_all_to_all(m);
    case NEED_KEYS: return m->cp.keys;
    case NEED_SEGMENTS: return model_segments(m) > 1;
    case NEED_PARTIALS: return model_has_partials(m);
    case NEED_KEY_SPLITS: return model_key_splits(m) > 1;
    case NEED_ROW_SUMS: return m->tp.splits > 1;
    case NEED_DISPATCH: return m->dispatch_rows > 0;
    case NEED_EXPERT_SPLITS: return model_expert_splits(m) > 1;
    case NEED_DISPATCH_SPLITS: return m->dispatch_rows > 0 && model_expert_splits(m) > 1;
    case NEED_EXPERT_BIAS: return model_family(&m->config)->arch.expert_bias;
    case NEED_HEAD_SUMS: return model_cp_all_to_all(m) && model_family(&m->config)->arch.sinks;
    case NEED_HEADS_APART: return model_has_heads_apart(m) && model_local_splits(m) > 1;
    case NEED_TP: return m->tp.size > 1;
    case NEED_WHOLE_EXPERTS: return model_expert_splits(m) == 1;
    case NEED_FOLDED: return model_is_folded(m);
    case NEED_BALANCE: return model_balance(&m->config) > 0;
    }
    return true;
}

/* Rounded up to cache lines, so that each tensor begins at one. ELEMENT_NARROW takes no memory where the
 * compute dtype is fp32: the layer then works in the fp32 tensor instead (head.c). */
static size_t tensor_bytes(const Model *m, const TensorRow *row) {
    bool narrow = row->element == ELEMENT_COMPUTE || row->element == ELEMENT_NARROW;
    size_t element = narrow                          ? dtype_bytes(m->compute)
                     : row->element == ELEMENT_COUNT ? sizeof(int64_t)
                                                     : sizeof(float);
    if (row->element == ELEMENT_NARROW && m->compute == DTYPE_F32) return 0;
    if (!is_needed(m, row->need)) return 0;
    return pool_round((size_t)rows_of(m, row->rows) * (size_t)model_dim(&m->config, row->width) * element);
}

size_t collective_element(const Model *m, const Collective *row) {
    return row->element == ELEMENT_COMPUTE ? dtype_bytes(m->compute)
           : row->element == ELEMENT_COUNT ? sizeof(int64_t)
                                           : sizeof(float);
}

int64_t collective_count(const Model *m, const Collective *row, int chunk) {
    int64_t numbers = (int64_t)(sizeof(LossRecord) / sizeof(float));
    if (row->chunked) return numbers * model_local_splits(m) * model_chunk_rows(m, chunk);
    return rows_of(m, row->rows) * model_dim(&m->config, row->width);
}

/* With dispatch, rows on the remote rank live for one dispatch chunk only. */
static Region region_of(const Model *m, const TensorRow *row) {
    if (row->rows == EXTENT_WORKED && m->dispatch_rows > 0) return REGION_SCRATCH;
    if (row->life == LIFE_SEGMENTS) return REGION_KEYS;
    if (row->life == LIFE_SEGMENTS_BACKWARD) return REGION_KEY_SUMS;
    return lifetime_stays(row->life, m->recompute) ? REGION_SAVED
           : row->operand                          ? REGION_STASH
                                                   : REGION_SCRATCH;
}

/* NULL where the region has no memory: when only counting, or for a unit that needs none. */
static void *take(Cursor *c, const Model *m, const TensorRow *row) {
    Region r = region_of(m, row);
    char *p = c->base[r] ? c->base[r] + c->used[r] : NULL;
    c->used[r] += tensor_bytes(m, row);
    return p;
}

/* Whether a layer has a product whose adapter saves x A^T because its B is replicated; at most one has. */
static bool keeps_inner(const Model *m, const Layer *l, int unit) {
    for (int i = 0; m->config.adapter_replicated && i < l->op_count; i++) {
        const Product *p = l->ops[i].product;
        if (p && p->weight->tp == ROW_PARALLEL && product_adapters(m, unit, p) > 0) return true;
    }
    return false;
}

/* Without a norm before it, the layer's operand n is the stream itself: one tensor under two names. The
 * embedding has no stream before it. */
static void take_sublayer(Cursor *c, const Model *m, const Sublayer *s, int unit, int index,
                          SublayerTensors *out) {
    TensorRow stream = stream_row(s, index);
    out->n = out->x = unit > 0 ? take(c, m, &stream) : NULL;
    if (!sublayer_alone(s)) {
        out->rstd = s->in ? take(c, m, &rstd_row) : NULL;
        if (s->in) out->n = take(c, m, &n_row);
        out->dy = take(c, m, &dy_row);
        out->result = s->out ? take(c, m, &result_row) : NULL;
        out->out_rstd = s->out ? take(c, m, &rstd_row) : NULL;
    }
    if (keeps_inner(m, s->layer, unit)) out->inner = take(c, m, &inner_row);
    CHECK(s->layer->tensor_count <= LAYER_TENSORS);
    for (int i = 0; i < s->layer->tensor_count; i++) out->layer[i] = take(c, m, &s->layer->tensors[i]);
}

/* Scratch memory without a row. */
static void *take_scratch(Cursor *c, size_t bytes) {
    char *p = c->base[REGION_SCRATCH] ? c->base[REGION_SCRATCH] + c->used[REGION_SCRATCH] : NULL;
    c->used[REGION_SCRATCH] += pool_round(bytes);
    return p;
}

/* Buffers of TP collectives are in scratch, since they are dead after the pass: each pass computes or gathers
 * their contents again. The sublayers of a block use them one after the other. */
static void take_shared(Cursor *c, const Model *m, int unit, Shared *out) {
    if (m->tp.size == 1) return;
    bool head = unit == m->table.units - 1;
    out->full = take(c, m, &full_row);
    out->dfull = take(c, m, &full_row);
    out->partials = take(c, m, &partials_row);
    int64_t inner = unit_widest_inner(m, unit);
    if (inner > 0) out->inner = take_scratch(c, (size_t)(m->tokens * inner) * sizeof *out->inner);
    if (head) out->records = take_scratch(c, (size_t)(m->tp.splits * m->loss_rows) * sizeof(LossRecord));
}

/* As wide as the widest output of the unit's adapters. */
static void take_adapters(Cursor *c, const Model *m, int unit, AdapterScratch *out) {
    const ParamTable *t = &m->table;
    Dim widest = DIM_NONE;
    for (int i = t->unit_first[unit]; m->config.adapter_rank > 0 && i < t->unit_first[unit + 1]; i++) {
        const ParamRow *row = t->params[i].row;
        if (row->adapts && model_dim(&m->config, row->rows) > model_dim(&m->config, widest))
            widest = row->rows;
    }
    if (widest == DIM_NONE) return;
    out->inner = take(
        c, m, &(TensorRow){EXTENT_TOKENS, DIM_ADAPTER, ELEMENT_COMPUTE, LIFE_SCRATCH, false, NEED_ALWAYS});
    out->outer =
        take(c, m, &(TensorRow){EXTENT_TOKENS, widest, ELEMENT_COMPUTE, LIFE_SCRATCH, false, NEED_ALWAYS});
    if (!m->config.adapter_replicated) return;
    bool wide = model_dim(&m->config, DIM_LATENT_WIDEST) > m->config.hidden_size;
    out->replicated = take(c, m,
                           &(TensorRow){EXTENT_ADAPTER, wide ? DIM_LATENT_WIDEST : DIM_HIDDEN, ELEMENT_NARROW,
                                        LIFE_SCRATCH, false, NEED_ALWAYS});
    if (m->tp.size > 1)
        out->apart = take(
            c, m, &(TensorRow){EXTENT_LOCAL, DIM_ADAPTER, ELEMENT_FP32, LIFE_SCRATCH, false, NEED_ALWAYS});
}

/* Elements of an MTP module's matrix. */
static size_t replicated_elements(const Model *m) {
    return (size_t)(model_dim(&m->config, DIM_HIDDEN) * model_dim(&m->config, DIM_JOINED));
}

/* The only walk. `dn` belongs to the block, not to a sublayer: the gradient of one layer's input is added to
 * that of the stream before the next layer down makes its own. */
static void lay_out(const Model *m, int unit, Cursor *c, UnitTensors *out) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(&m->config, unit, sublayers);
    *out = (UnitTensors){0};
    bool begins = count > 1 && sublayer_alone(&sublayers[0]);
    for (int s = 0; s < count; s++) take_sublayer(c, m, &sublayers[s], unit, s, &out->sublayers[s]);
    if (begins || !sublayer_alone(&sublayers[0])) out->dn = take(c, m, &dn_row);
    if (begins) out->dstream = take(c, m, &dy_row), out->sublayers[0].result = out->sublayers[1].x;
    take_shared(c, m, unit, &out->shared);
    take_adapters(c, m, unit, &out->adapters);
    if (begins && m->config.mtp_replicated && m->compute != DTYPE_F32)
        out->adapters.replicated = take_scratch(c, replicated_elements(m) * dtype_bytes(m->compute));
}

void unit_tensors(const UnitPass *u, UnitTensors *out) {
    Cursor c = {.base = {[REGION_SAVED] = u->saved,
                         [REGION_STASH] = u->stash,
                         [REGION_SCRATCH] = u->scratch,
                         [REGION_KEYS] = u->keys,
                         [REGION_KEY_SUMS] = u->key_sums}};
    lay_out(u->pass->model, u->unit, &c, out);
}

static size_t region_bytes(const Model *m, int unit, Region region) {
    Cursor c = {0};
    UnitTensors none;
    lay_out(m, unit, &c, &none);
    return c.used[region];
}

size_t unit_saved_bytes(const Model *m, int unit) { return region_bytes(m, unit, REGION_SAVED); }

size_t unit_stash_bytes(const Model *m, int unit) { return region_bytes(m, unit, REGION_STASH); }

size_t unit_keys_bytes(const Model *m, int unit) { return region_bytes(m, unit, REGION_KEYS); }

size_t unit_key_sums_bytes(const Model *m, int unit) { return region_bytes(m, unit, REGION_KEY_SUMS); }

/* Memory that units share is as large as the largest unit's. */
static size_t most_bytes(const Model *m, Region region) {
    size_t most = 0;
    for (int u = 0; u < m->table.units; u++) {
        size_t bytes = region_bytes(m, u, region);
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t model_stash_bytes(const Model *m) { return most_bytes(m, REGION_STASH); }

size_t model_scratch_bytes(const Model *m) { return most_bytes(m, REGION_SCRATCH); }

size_t boundary_bytes(const Model *m) {
    return (size_t)model_local_tokens(m) * (size_t)m->config.hidden_size * dtype_bytes(m->compute);
}
