/* The layers of each unit, the norms around them, the resulting steps, and the unit's parameters.
 *
 * Where a family has its norms:
 *
 *     before   x + f(in(x))         Llama and most: Xiong et al., "On layer normalization in the transformer
 *                                   architecture", 2020
 *     after    x + out(f(x))        OLMo 2: OLMo team, "2 OLMo 2 furious", 2025
 *     both     x + out(f(in(x)))    Gemma 2
 *
 * `post_attention_layernorm` is the norm before the MLP in the first, and the norm after attention in the
 * others. */
#include "model/families/family.h"
#include "model/internal.h"

#define NORM_OF(name)                                                             \
    {                                                                             \
        {name ".weight", DIM_HIDDEN, .init = ROLE_NORM}, {                        \
            name ".bias", DIM_HIDDEN, .when = WHEN_LAYER_NORM, .init = ROLE_ZEROS \
        }                                                                         \
    }
typedef ParamRow NormRows[NORM_ROWS];
static const NormRows before[UNIT_SUBLAYERS] = {NORM_OF("input_layernorm"),
                                                NORM_OF("post_attention_layernorm")},
                      around_in[UNIT_SUBLAYERS] = {NORM_OF("input_layernorm"),
                                                   NORM_OF("pre_feedforward_layernorm")},
                      around_out[UNIT_SUBLAYERS] = {NORM_OF("post_attention_layernorm"),
                                                    NORM_OF("post_feedforward_layernorm")};

/* Parameters are found by the addresses of their rows (param_of), so each norm has a row of its own, even if
 * two are equal. */
static const ParamRow *norm_before(NormPlace place, int sublayer) {
    switch (place) {
    case NORMS_BEFORE: return before[sublayer];
    case NORMS_AFTER: return NULL;
    case NORMS_AROUND: return around_in[sublayer];
    }
    return NULL;
}

/* Assigned member by member: copying a compound literal took a third of planning's time. */
static void put_sublayer(const Arch *a, int sublayer, const Layer *layer, Sublayer *out) {
    out->in = norm_before(a->norms, sublayer);
    out->out = a->norms == NORMS_BEFORE ? NULL : around_out[sublayer];
    out->layer = layer;
    out->training = false;
}

/* The layer of each mixer, and whether it stands alone: no MLP follows Mamba-2 and Lingua's minGRU and
 * minLSTM. The kind of attention depends on the family, and on whether the layer has RoPE. */
static const struct {
    const Layer *layer; /* NULL: attention */
    bool alone;
} mixers[MIXERS] = {[MIXER_MIN_GRU] = {&layer_min_gru, true},
                    [MIXER_MIN_LSTM] = {&layer_min_lstm, true},
                    [MIXER_HAWK] = {&layer_hawk, false},
                    [MIXER_MAMBA2] = {&layer_mamba2, true}};

static const Layer *mixer_layer(const ModelConfig *c, const BlockShape *block) {
    const Arch *a = &model_family(c)->arch;
    if (mixers[block->mixer].layer) return mixers[block->mixer].layer;
    if (a->latent) return c->q_lora_rank > 0 ? &layer_latent : &layer_latent_keys;
    switch (a->qk_norm) {
    case QK_NORM_NONE: break;
    case QK_NORM_HEAD: return &layer_normed_attention;
    case QK_NORM_FLAT: return &layer_row_normed_attention;
    case QK_NORM_PLAIN:
        return c->use_qk_norm && block->rotation >= 0 ? &layer_normed_attention : &layer_attention;
    }
    return &layer_attention;
}

static const Layer *experts_layer(const ModelConfig *c) {
    bool shared = c->n_shared_experts > 0;
    if (c->whole_experts) return shared ? &layer_whole_shared_experts : &layer_whole_experts;
    return shared ? &layer_shared_experts : &layer_experts;
}

/* A mixer and, in most cases, an MLP or experts. */
static int block_sublayers(const ModelConfig *c, int64_t number, Sublayer out[2]) {
    const Arch *a = &model_family(c)->arch;
    BlockShape block = model_block(c, number);
    put_sublayer(a, 0, mixer_layer(c, &block), &out[0]);
    if (mixers[block.mixer].alone) return 1;
    put_sublayer(a, 1, block.experts ? experts_layer(c) : &layer_mlp, &out[1]);
    return 2;
}

/* The layer that begins an MTP module's stream, the module's block (numbered after the last one), and all
 * heads. */
static int mtp_sublayers(const ModelConfig *c, Sublayer out[UNIT_SUBLAYERS]) {
    int n = 0;
    out[n++] = (Sublayer){.layer = &layer_mtp};
    n += block_sublayers(c, c->num_hidden_layers, &out[n]);
    for (int s = 0; s < n; s++) out[s].training = true;
    out[n++] = (Sublayer){.layer = &layer_mtp_head};
    return n;
}

/* The structure of a model: units 0 and L+1 are one layer each, except that L+1 may hold an MTP module with
 * its block; all units between are blocks. */
int unit_sublayers(const ModelConfig *c, int unit, Sublayer out[UNIT_SUBLAYERS]) {
    bool embedding = unit == 0, head = unit == c->num_hidden_layers + 1;
    if (head && c->mtp_module) return mtp_sublayers(c, out);
    if (!embedding && !head) return block_sublayers(c, unit - 1, out);
    const Layer *last = c->mtp_depth > 0 ? &layer_heads : &layer_head;
    out[0] = (Sublayer){.layer = embedding ? &layer_embedding : last};
    return 1;
}

/* Norms come before the rows of the layers. Files are in the order of this list. */
int param_rows(const ModelConfig *c, int unit, const ParamRow *rows[UNIT_ROWS]) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(c, unit, sublayers), n = 0;
    for (int s = 0; s < count; s++)
        for (int i = 0; i < NORM_ROWS; i++) {
            if (sublayers[s].in) rows[n++] = &sublayers[s].in[i];
            if (sublayers[s].out) rows[n++] = &sublayers[s].out[i];
        }
    for (int s = 0; s < count; s++)
        for (int i = 0; i < sublayers[s].layer->param_count; i++) {
            CHECK(n < UNIT_ROWS);
            rows[n++] = &sublayers[s].layer->params[i];
        }
    return n;
}

Lifetime stream_lifetime(int index) { return index == 0 ? LIFE_ALWAYS : LIFE_SAVED; }

/* The only definition of the recompute policy: regions.c lays out memory by it, unit.c recomputes by it, and
 * counts.c counts its cost. */
bool lifetime_stays(Lifetime life, Recompute recompute) {
    switch (life) {
    case LIFE_ALWAYS: return true;
    case LIFE_SAVED: return recompute != RECOMPUTE_FULL;
    case LIFE_CHEAP: return recompute == RECOMPUTE_NONE;
    case LIFE_SEGMENTS:
    case LIFE_SEGMENTS_BACKWARD:
    case LIFE_SCRATCH: return false;
    }
    return false;
}

/* A sublayer has STEP_ENTER even without a norm, since the stream has to take the previous result. So has the
 * layer that ends a stream. */
static bool enters(const Sublayer *s, int index) { return !sublayer_alone(s) || index > 0; }

static int sublayer_steps(const Sublayer *s, int index) {
    return (enters(s, index) ? 1 : 0) + s->layer->op_count + (s->out ? 1 : 0);
}

/* The ops of the sublayer's layer. The last one makes its result, and some make a partial sum of it. */
static Step layer_step(const Layer *layer, int sublayer, Lifetime result, int i) {
    const LayerOp *op = &layer->ops[i];
    bool last = i == layer->op_count - 1;
    return (Step){STEP_LAYER, sublayer, op, last, last || op->partial ? result : op->makes};
}

/* The result of a sublayer is recomputed exactly if the stream after it is. The last sublayer's result goes
 * into the unit's output, the next unit's input, which is never recomputed. A norm after the layer is
 * recomputed with its 1 / rms, and reads the layer's result: both are saved, or both recomputed. */
static Step sublayer_step(const Sublayer *s, int index, bool ends, int i) {
    Lifetime result = ends ? LIFE_ALWAYS : stream_lifetime(index + 1);
    int first = enters(s, index) ? 1 : 0;
    if (i < first)
        return (Step){
            .kind = STEP_ENTER, .sublayer = index, .makes = s->in ? LIFE_CHEAP : stream_lifetime(index)};
    if (i - first < s->layer->op_count)
        return layer_step(s->layer, index, s->out ? LIFE_SAVED : result, i - first);
    return (Step){.kind = STEP_NORM_BEHIND, .sublayer = index, .makes = LIFE_SAVED};
}

/* Steps of a block with norms before the layers (e: enter, l: norm after the layer), and with norms after:
 *
 *     e  q k v  attention  output     e  gate and up  down     sum
 *     e  q k v  attention  output  l  e  gate and up  down  l  sum
 *
 * Planning asks for single steps, millions of times, so only the requested one is made. False: there is
 * none. */
static bool find_step(const ModelConfig *c, int unit, int op, Step *step) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(c, unit, sublayers);
    for (int s = 0; s < count && op >= 0; s++) {
        int steps = sublayer_steps(&sublayers[s], s);
        if (op < steps) {
            *step = sublayer_step(&sublayers[s], s, s == count - 1, op);
            return true;
        }
        op -= steps;
    }
    *step = (Step){.kind = STEP_ADD, .sublayer = count - 1, .makes = LIFE_ALWAYS};
    return op == 0 && !sublayer_alone(&sublayers[count - 1]);
}

OpRange unit_ops(const ModelConfig *c, int unit) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(c, unit, sublayers), end = sublayer_alone(&sublayers[count - 1]) ? 0 : 1;
    for (int s = 0; s < count; s++) end += sublayer_steps(&sublayers[s], s);
    return (OpRange){0, end};
}

int unit_steps(const ModelConfig *c, int unit, Step steps[UNIT_OPS]) {
    int n = 0, end = unit_ops(c, unit).end;
    CHECK(end <= UNIT_OPS);
    while (n < end && find_step(c, unit, n, &steps[n])) n++;
    return n;
}

Step unit_step(const ModelConfig *c, int unit, int op) {
    Step step;
    CHECK(find_step(c, unit, op, &step));
    return step;
}

int unit_collectives(const ModelConfig *c, int unit, UnitCollective out[UNIT_COLLECTIVES]) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(c, unit, sublayers), n = 0, steps = 0;
    for (int s = 0; s < count; s++) {
        const Layer *l = sublayers[s].layer;
        int first = steps + (enters(&sublayers[s], s) ? 1 : 0);
        CHECK(n + l->collective_count <= UNIT_COLLECTIVES);
        for (int i = 0; i < l->collective_count; i++)
            out[n++] = (UnitCollective){&l->collectives[i], s, first};
        steps += sublayer_steps(&sublayers[s], s);
    }
    return n;
}

/* A forward pass runs ops in ascending order; dgrad and wgrad in descending order. */
int collective_cut(const UnitCollective *c) {
    uint32_t ops = collective_ops(c);
    bool ahead = c->row->passes & (IN_FORWARD | IN_RECOMPUTE);
    int lowest = __builtin_ctz(ops), above = 32 - __builtin_clz(ops);
    return ahead != c->row->behind ? lowest : above;
}

uint32_t unit_dispatched(const ModelConfig *c, int unit) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(c, unit, rows);
    uint32_t ops = 0;
    for (int i = 0; i < count; i++)
        if (rows[i].row->kind == COLL_DISPATCH) ops |= collective_ops(&rows[i]);
    return ops;
}

bool collective_applies(const ModelConfig *c, CpGroup cp, const Collective *row) {
    bool heads = cp.ranks > 1 && !cp.keys;
    if (row->when == NEED_CP_ALL_TO_ALL) return heads;
    if (row->when == NEED_HEAD_SUMS) return heads && model_family(c)->arch.sinks;
    if (row->when == NEED_KEYS) return cp.keys;
    return row->when != NEED_BALANCE || model_balance(c) > 0;
}

const Product *unit_op_product(const ModelConfig *c, int unit, int op) {
    Step step = unit_step(c, unit, op);
    return step.kind == STEP_LAYER ? step.op->product : NULL;
}

bool unit_op_trains(const ModelConfig *c, int unit, int op) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    Step step;
    unit_sublayers(c, unit, sublayers);
    return find_step(c, unit, op, &step) &&
           (sublayers[step.sublayer].training || (step.op && step.op->trains));
}

bool unit_op_recomputed(const ModelConfig *c, int unit, int op, Recompute policy) {
    return !lifetime_stays(unit_step(c, unit, op).makes, policy);
}

/* Names of ops in the listing of a plan. */
const char *unit_op_name(const ModelConfig *c, int unit, int op) {
    Step step = unit_step(c, unit, op);
    Sublayer sublayers[UNIT_SUBLAYERS];
    unit_sublayers(c, unit, sublayers);
    switch (step.kind) {
    case STEP_ENTER: return sublayers[step.sublayer].in ? "norm" : "stream";
    case STEP_LAYER: return step.op->name;
    case STEP_NORM_BEHIND: return "norm of the result";
    case STEP_ADD: return "sum";
    }
    return "";
}
