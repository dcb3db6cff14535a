/* The parameter table: what weights a model has, in canonical order, by unit. Everything that handles weights
 * - initialisation, optimizer, sharding, checkpoints, inspection - reads this table and nothing else.
 *
 * A unit is what is sharded, gathered, recomputed and updated together: unit 0 the embedding, units 1..L the
 * blocks, unit L+1 the final norm with the head.
 *
 * Invariants of a unit's flat buffer
 *  1. Vectors (norms, biases) come first, matrices after `unit_vectors` elements: vectors are used in
 *     fp32, matrices in the compute dtype, so the two parts can be held, cast and gathered apart.
 *  2. q, k, v follow each other without a gap, and so do gate and up and their biases: each group is one
 *     matrix for the products, [q;k;v] [(H+2G)*D, h] and [gate;up] [2I, h]. Groups start at multiples of
 *     16 elements.
 *  3. The table is ascending by (unit, offset); padding belongs to no parameter and stays zero. */
#ifndef WEFT_MODEL_PARAMS_H
#define WEFT_MODEL_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

typedef enum ParamRole {
    PARAM_EMBED,
    PARAM_NORM1,
    PARAM_NORM2,
    PARAM_Q_BIAS,
    PARAM_K_BIAS,
    PARAM_V_BIAS,
    PARAM_O_BIAS,
    PARAM_GATE_BIAS,
    PARAM_UP_BIAS,
    PARAM_DOWN_BIAS,
    PARAM_Q,
    PARAM_K,
    PARAM_V,
    PARAM_O,
    PARAM_GATE,
    PARAM_UP,
    PARAM_DOWN,
    PARAM_NORM,
    PARAM_HEAD,
    PARAM_ROLES
} ParamRole;

/* How tensor parallelism splits a weight. */
typedef enum ParamSplit { SPLIT_NONE, SPLIT_COLUMN, SPLIT_ROW, SPLIT_VOCAB } ParamSplit;

typedef struct Param {
    char name[80]; /* "model.layers.3.self_attn.q_proj.weight" */
    ParamRole role;
    int unit, layer;    /* layer is -1 outside blocks */
    int64_t rows, cols; /* a vector has cols == 0: shape [rows] */
    int64_t count;      /* elements */
    size_t offset;      /* elements from the start of its unit's flat buffer */
    ParamSplit split;
} Param;

typedef struct ParamTable {
    int count, units;
    Param *params;        /* [count], ascending by (unit, offset) */
    size_t *unit_size;    /* [units] elements of each unit's flat buffer, padding included */
    size_t *unit_vectors; /* [units] elements of the vectors' part, padding included */
    size_t *unit_start;   /* [units + 1] elements before each unit, when units follow each other */
    int *unit_first;      /* [units + 1] index of each unit's first parameter */
    int64_t elements;     /* sum of count: the model's parameters */
} ParamTable;

/* With tied embeddings unit L+1 has no head parameter; the head reads the embedding. */
ErrorCode param_table_build(ParamTable *t, const ModelConfig *c, Error *err);
void param_table_free(ParamTable *t);
const Param *param_find(const ParamTable *t, const char *name);       /* NULL if none */
const Param *param_of(const ParamTable *t, int unit, ParamRole role); /* NULL if the unit has none */
/* Elements before it in its part, vectors or matrices, of its unit. */
size_t param_place(const ParamTable *t, const Param *p);

/* Initialisers, by name. All are functions of (seed, name, element) only.
 *   normal      every matrix N(0, std), norms 1, biases 0 (Hugging Face's own)
 *   torchtitan  embedding N(0, 1); q, k, v, gate 0.02; o, up, down 0.02 / sqrt(2 (layer + 1)), cut at +-2 absolute;
 *               head h^-0.5 cut at 3 std, and so the embedding when tied
 *   lingua      everything cut at 3 std: embedding, head h^-0.5; q, k, v, gate, up h^-0.5; o h^-0.5 / f, down I^-0.5 / f
 *               with f = sqrt(2 (L + 1)) */
typedef enum InitKind { INIT_NORMAL, INIT_TORCHTITAN, INIT_LINGUA } InitKind;
typedef struct InitRule {
    double value;       /* constant, when std is 0 */
    double std, lo, hi; /* lo, hi in standard deviations */
} InitRule;
InitRule param_init_rule(const Param *p, const ModelConfig *c, InitKind kind, double std);

#endif
