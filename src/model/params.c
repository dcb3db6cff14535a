/* The parameter table is made by walking the roles of each kind of unit in order; see params.h for the
 * invariants. */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define GROUP_ALIGN 16 /* elements: one cache line of fp32 */

/* What a role is: its name inside a layer, and how tensor parallelism splits it. */
typedef struct RoleInfo {
    const char *name;
    ParamSplit split;
    bool continues; /* follows the role before it without a gap (invariant 2) */
} RoleInfo;

static const RoleInfo roles[PARAM_ROLES] = {
    [PARAM_EMBED] = {"model.embed_tokens.weight", SPLIT_VOCAB, false},
    [PARAM_NORM1] = {"input_layernorm.weight", SPLIT_NONE, false},
    [PARAM_NORM2] = {"post_attention_layernorm.weight", SPLIT_NONE, false},
    [PARAM_Q_BIAS] = {"self_attn.q_proj.bias", SPLIT_COLUMN, false},
    [PARAM_K_BIAS] = {"self_attn.k_proj.bias", SPLIT_COLUMN, true},
    [PARAM_V_BIAS] = {"self_attn.v_proj.bias", SPLIT_COLUMN, true},
    [PARAM_O_BIAS] = {"self_attn.o_proj.bias", SPLIT_NONE, false},
    [PARAM_GATE_BIAS] = {"mlp.gate_proj.bias", SPLIT_COLUMN, false},
    [PARAM_UP_BIAS] = {"mlp.up_proj.bias", SPLIT_COLUMN, true},
    [PARAM_DOWN_BIAS] = {"mlp.down_proj.bias", SPLIT_NONE, false},
    [PARAM_Q] = {"self_attn.q_proj.weight", SPLIT_COLUMN, false},
    [PARAM_K] = {"self_attn.k_proj.weight", SPLIT_COLUMN, true},
    [PARAM_V] = {"self_attn.v_proj.weight", SPLIT_COLUMN, true},
    [PARAM_O] = {"self_attn.o_proj.weight", SPLIT_ROW, false},
    [PARAM_GATE] = {"mlp.gate_proj.weight", SPLIT_COLUMN, false},
    [PARAM_UP] = {"mlp.up_proj.weight", SPLIT_COLUMN, true},
    [PARAM_DOWN] = {"mlp.down_proj.weight", SPLIT_ROW, false},
    [PARAM_NORM] = {"model.norm.weight", SPLIT_NONE, false},
    [PARAM_HEAD] = {"lm_head.weight", SPLIT_VOCAB, false},
};

typedef struct Shape {
    int64_t rows, cols;
} Shape;

static Shape role_shape(ParamRole role, const ModelConfig *c) {
    int64_t h = c->hidden_size, i = c->intermediate_size, v = c->vocab_size;
    int64_t q = c->num_attention_heads * c->head_dim, kv = c->num_key_value_heads * c->head_dim;
    switch (role) {
    case PARAM_EMBED:
    case PARAM_HEAD: return (Shape){v, h};
    case PARAM_Q: return (Shape){q, h};
    case PARAM_K:
    case PARAM_V: return (Shape){kv, h};
    case PARAM_O: return (Shape){h, q};
    case PARAM_GATE:
    case PARAM_UP: return (Shape){i, h};
    case PARAM_DOWN: return (Shape){h, i};
    case PARAM_Q_BIAS: return (Shape){q, 0};
    case PARAM_K_BIAS:
    case PARAM_V_BIAS: return (Shape){kv, 0};
    case PARAM_GATE_BIAS:
    case PARAM_UP_BIAS: return (Shape){i, 0};
    default: return (Shape){h, 0}; /* norms, biases of o and down */
    }
}

static bool role_present(ParamRole role, int unit, int units, const ModelConfig *c) {
    if (unit == 0) return role == PARAM_EMBED;
    if (unit == units - 1) return role == PARAM_NORM || (role == PARAM_HEAD && !c->tie_word_embeddings);
    switch (role) {
    case PARAM_EMBED:
    case PARAM_NORM:
    case PARAM_HEAD: return false;
    case PARAM_Q_BIAS:
    case PARAM_K_BIAS:
    case PARAM_V_BIAS:
    case PARAM_O_BIAS: return c->attention_bias;
    case PARAM_GATE_BIAS:
    case PARAM_UP_BIAS:
    case PARAM_DOWN_BIAS: return c->mlp_bias;
    default: return true;
    }
}

static size_t align_up(size_t n) { return (n + GROUP_ALIGN - 1) / GROUP_ALIGN * GROUP_ALIGN; }

static void add_param(ParamTable *t, ParamRole role, int unit, const ModelConfig *c, size_t *offset) {
    Shape shape = role_shape(role, c);
    Param *p = &t->params[t->count++];
    if (!roles[role].continues) *offset = align_up(*offset);
    *p = (Param){
        .role = role, .unit = unit, .rows = shape.rows, .cols = shape.cols, .split = roles[role].split};
    p->count = shape.cols ? shape.rows * shape.cols : shape.rows;
    p->offset = *offset;
    bool in_block = unit > 0 && unit < t->units - 1;
    p->layer = in_block ? unit - 1 : -1;
    if (in_block)
        snprintf(p->name, sizeof p->name, "model.layers.%d.%s", p->layer, roles[role].name);
    else
        snprintf(p->name, sizeof p->name, "%s", roles[role].name);
    *offset += (size_t)p->count;
    t->elements += p->count;
}

static void build_unit(ParamTable *t, int unit, const ModelConfig *c) {
    size_t offset = 0;
    t->unit_first[unit] = t->count;
    for (int vectors = 1; vectors >= 0; vectors--) {
        for (int role = 0; role < PARAM_ROLES; role++)
            if (role_present((ParamRole)role, unit, t->units, c) &&
                (role_shape((ParamRole)role, c).cols == 0) == vectors)
                add_param(t, (ParamRole)role, unit, c, &offset);
        offset = align_up(offset);
        if (vectors) t->unit_vectors[unit] = offset;
    }
    t->unit_size[unit] = offset;
    t->unit_start[unit + 1] = t->unit_start[unit] + offset;
}

ErrorCode param_table_build(ParamTable *t, const ModelConfig *c, Error *err) {
    if (c->num_hidden_layers > MODEL_MAX_COUNT)
        return error_set(err, ERR_CONFIG, "num_hidden_layers is %lld: at most %d",
                         (long long)c->num_hidden_layers, MODEL_MAX_COUNT);
    size_t units = (size_t)c->num_hidden_layers + 2;
    *t = (ParamTable){.units = (int)units};
    t->params = mem_alloc_array(units * PARAM_ROLES, sizeof *t->params);
    t->unit_size = mem_alloc_array(units, sizeof *t->unit_size);
    t->unit_vectors = mem_alloc_array(units, sizeof *t->unit_vectors);
    t->unit_start = mem_alloc_array(units + 1, sizeof *t->unit_start);
    t->unit_first = mem_alloc_array(units + 1, sizeof *t->unit_first);
    for (int u = 0; u < t->units; u++) build_unit(t, u, c);
    t->unit_first[units] = t->count;
    return OK;
}

void param_table_free(ParamTable *t) {
    free(t->params);
    free(t->unit_size);
    free(t->unit_vectors);
    free(t->unit_start);
    free(t->unit_first);
    *t = (ParamTable){0};
}

size_t param_place(const ParamTable *t, const Param *p) {
    return p->offset - (p->cols ? t->unit_vectors[p->unit] : 0);
}

const Param *param_find(const ParamTable *t, const char *name) {
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->params[i].name, name) == 0) return &t->params[i];
    return NULL;
}

const Param *param_of(const ParamTable *t, int unit, ParamRole role) {
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++)
        if (t->params[i].role == role) return &t->params[i];
    return NULL;
}

static InitRule torchtitan_rule(const Param *p, const ModelConfig *c) {
    double by_depth = 0.02 / sqrt(2.0 * (p->layer + 1));
    /* A tied embedding is the head too, and a head of N(0, 1) would start with a loss of many times log V. */
    ParamRole role = p->role == PARAM_EMBED && c->tie_word_embeddings ? PARAM_HEAD : p->role;
    switch (role) {
    case PARAM_EMBED: return (InitRule){.std = 1, .lo = -INFINITY, .hi = INFINITY};
    case PARAM_HEAD: return (InitRule){.std = 1 / sqrt((double)c->hidden_size), .lo = -3, .hi = 3};
    case PARAM_O:
    case PARAM_UP:
    case PARAM_DOWN: return (InitRule){.std = by_depth, .lo = -2 / by_depth, .hi = 2 / by_depth};
    default: return (InitRule){.std = 0.02, .lo = -100, .hi = 100};
    }
}

static InitRule lingua_rule(const Param *p, const ModelConfig *c) {
    double std = 1 / sqrt((double)c->hidden_size), depth = sqrt(2.0 * (double)(c->num_hidden_layers + 1));
    if (p->role == PARAM_O) std /= depth;
    if (p->role == PARAM_DOWN) std = 1 / sqrt((double)c->intermediate_size) / depth;
    return (InitRule){.std = std, .lo = -3, .hi = 3};
}

InitRule param_init_rule(const Param *p, const ModelConfig *c, InitKind kind, double std) {
    if (p->cols == 0) {
        bool norm = p->role == PARAM_NORM || p->role == PARAM_NORM1 || p->role == PARAM_NORM2;
        return (InitRule){.value = norm ? 1 : 0};
    }
    switch (kind) {
    case INIT_TORCHTITAN: return torchtitan_rule(p, c);
    case INIT_LINGUA: return lingua_rule(p, c);
    default: return (InitRule){.std = std, .lo = -INFINITY, .hi = INFINITY};
    }
}
