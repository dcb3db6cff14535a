/* The parameter table: what weights a model has, in canonical order, by unit. Everything that handles weights
 * - initialisation, optimizer, sharding, checkpoints, inspection - reads this table and nothing else. It is
 * made from the rows of the layers (layers/layer.h), where each kind of parameter is described once.
 *
 * A unit is what is sharded, gathered, recomputed and updated together: unit 0 the embedding, units 1..L the
 * blocks, unit L+1 the final norm with the head.
 *
 * Invariants of a unit's flat buffer
 *  1. It is cut into flats, one after the other: runs of parameters that are read in one dtype, and so can be
 *     held, cast, gathered and summed by themselves.
 *  2. q, k, v follow each other without a gap, and so do gate and up and their biases: each group is one
 *     matrix for the products, [q;k;v] [(H+2G)*D, h] and [gate;up] [2I, h], as it is where a family stores
 *     the group as one parameter. Groups start at multiples of 16 elements.
 *  3. The table is ascending by (unit, flat, place); padding belongs to no parameter and stays zero.
 *  4. Experts follow each other, each with all its matrices: the k-th parameter of expert e is e steps behind
 *     that of the first expert, in the table as in the flat. They have a flat of their own: frozen are those
 *     of all experts, or all have gradients.
 *  5. A table has all parameters of the model, so that numbers mean the same on every rank. Experts that are
 *     on other ranks of ep are away: they have no place here. A stack of experts has those that are here. */
#ifndef WEFT_MODEL_PARAMS_H
#define WEFT_MODEL_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

/* What a model must have for a parameter to be there: all of the bits. */
typedef enum When {
    WHEN_ALWAYS = 0,
    WHEN_QKV_BIAS = 1,
    WHEN_OUT_BIAS = 2, /* of attention */
    WHEN_MLP_BIAS = 4,
    WHEN_UNTIED = 8,
    WHEN_QKV_SEPARATE = 16, /* q, k, v are three parameters, or one */
    WHEN_QKV_FUSED = 32,
    WHEN_GATED = 64,             /* the MLP has a gate */
    WHEN_GATE_UP_SEPARATE = 128, /* gate and up are two parameters (without gate: up is one), or one */
    WHEN_GATE_UP_FUSED = 256,
    WHEN_QK_NORM = 512,     /* queries and keys are, head by head */
    WHEN_LAYER_NORM = 1024, /* norms have biases */
    WHEN_LEARNED_POSITIONS = 2048,
    WHEN_SINKS = 4096,            /* of attention */
    WHEN_EXPERTS_SEPARATE = 8192, /* each has parameters of its own, or one parameter has those of all */
    WHEN_EXPERTS_FUSED = 16384,
    WHEN_EXPERT_BIAS = 32768,      /* and of their router */
    WHEN_CONV = 65536,             /* gates of recurrences go through a convolution */
    WHEN_SHARED = 131072,          /* experts that all tokens meet */
    WHEN_CORRECTION_BIAS = 262144, /* of experts, where they are chosen */
    WHEN_LATENT_QUERIES = 524288,  /* queries of latent attention have a latent, or are made at once */
    WHEN_WHOLE_QUERIES = 1048576,
    WHEN_QK_ROW_NORM = 2097152, /* queries of a token are normed as one row, and so are its keys */
    WHEN_BALANCE_BIAS = 4194304 /* as WHEN_CORRECTION_BIAS, in families whose files have none */
} When;

/* What tensor parallelism cuts: nothing, the rows of a matrix (outputs: column-parallel, as Megatron calls
 * it, for it multiplies by the transpose; a vector is cut with them), or its columns (inputs:
 * row-parallel). */
typedef enum TpStyle { REPLICATED, COLUMN_PARALLEL, ROW_PARALLEL } TpStyle;

/* What a parameter is to an initialiser. */
typedef enum InitRole {
    ROLE_NORM, /* weight of a norm: it begins as the identity */
    ROLE_ZEROS,
    ROLE_EMBEDDING,
    ROLE_POSITIONS, /* learned, added to the embedding */
    ROLE_HEAD,
    ROLE_INNER, /* reads the stream: q, k, v, gate */
    ROLE_UP,
    ROLE_OUT,     /* adds to the stream: the attention's output, */
    ROLE_DOWN,    /* and the MLP's, and a recurrence's */
    ROLE_CONV,    /* taps */
    ROLE_LAMBDA,  /* how fast a channel of HAWK forgets */
    ROLE_STEP,    /* of Mamba-2: the bias of a head's steps, */
    ROLE_DECAY,   /* how fast it forgets, */
    ROLE_SKIP,    /* and how much goes past its state */
    ROLE_ADAPTER, /* A of an adapter; its B begins with zeros */
    INIT_ROLES
} InitRole;

/* The flats of a unit's buffer. A unit need not have all. */
typedef enum Flat {
    FLAT_VECTORS,        /* norms and biases, and what is joint: held in fp32 */
    FLAT_MATRICES,       /* read by products, in the compute dtype */
    FLAT_EXPERTS,        /* so are these: ranks that share experts out hold other ones each */
    FLAT_EXPERT_VECTORS, /* and of these, biases of experts, held in fp32 */
    FLAT_FROZEN,         /* matrices that are not trained: they have no gradient */
    FLAT_FROZEN_EXPERTS,
    FLATS,
    GRADIENT_FLATS = FLAT_FROZEN /* those before it have one */
} Flat;

/* A kind of parameter. Rows and columns, and their cut, are those of a matrix [outputs, inputs]; a family
 * that stores its matrices the other way round has them swapped in Param. */
typedef struct ParamRow {
    const char *name; /* Llama's; in blocks what follows "model.layers.N." */
    Dim rows, cols;   /* a vector has no columns: DIM_NONE */
    unsigned when;    /* When, together */
    TpStyle tp;
    InitRole init;
    bool decays;     /* weight decay is for it, unless asked otherwise */
    bool fixed;      /* the bias of experts where they are chosen: no gradient ever changes it */
    bool beside;     /* files of the family have no place for it: it is kept with the optimizer's states */
    bool continues;  /* follows the row before it without a gap (invariant 2) */
    bool expert;     /* one for each expert, whose number takes the place of the name's `*` */
    bool router;     /* of experts: on all ranks that share them */
    bool latent;     /* makes latents: likewise on all ranks that share the heads made of them */
    bool of_latents; /* makes heads of these: it reads them, of all tokens, and not the stream */
    bool fused;      /* one for all experts: theirs one after the other, matrices as [inputs, outputs]; ranks
                       that share experts out have a part of it each, unless it is a router's */
    bool joint;      /* a matrix that ranks which share others each have all of: param_is_joint */
    bool outside;    /* of blocks: its name is whole */
    /* Of an adapter's A [r, inputs] and B [outputs, r]: the matrix that they are for. A model has such rows
     * where adapters were put to it (param_table_adapt), never by its config.json. */
    const struct ParamRow *adapts;
} ParamRow;

/* A matrix that products see as one of their own, though a family may store several as one parameter (q, k
 * and v; gate and up; MTP heads; those of all experts): rows and columns as stored, rows lie `row`
 * elements apart. */
typedef struct ParamMatrix {
    int64_t first; /* element of the parameter */
    int64_t rows, cols, row;
} ParamMatrix;
enum { PARAM_MATRICES = 4 };

typedef struct Param {
    char name[80]; /* "model.layers.3.self_attn.q_proj.weight" */
    const ParamRow *row;
    int unit, layer;    /* layer is -1 outside blocks */
    int expert;         /* 0 for what is no expert's */
    bool remote;        /* an expert of another rank: it has no place here (invariant 5) */
    int64_t rows, cols; /* a vector has cols == 0: shape [rows] */
    int64_t fused;      /* experts here whose rows these are, as many each; 1: it is no stack */
    bool transposed;    /* rows and cols are those of the row swapped: stored [inputs, outputs] */
    int64_t count;      /* elements */
    int64_t room;       /* that its place is for: count, or more (ModelConfig.vocab_room) */
    bool frozen; /* not trained. A frozen vector, and a frozen matrix whose group is trained, has a gradient
                           all the same, which nobody looks at */
    Flat flat;
    size_t place;     /* elements before it in its flat; 0 where it is away */
    int matrix_count; /* of each of the stack */
    ParamMatrix
        matrices[PARAM_MATRICES]; /* [matrix_count] itself, or what it is made of; a vector has none */
} Param;

typedef struct ParamTable {
    int count, units;
    Param *params;          /* [count], ascending by (unit, flat, place) */
    size_t (*flats)[FLATS]; /* [units] elements of each unit's flats, padding included */
    int *unit_first;        /* [units + 1] index of each unit's first parameter */
    int64_t elements;       /* sum of count: the model's parameters */
} ParamTable;

/* Outputs of the matrices that a group of parameters, or one parameter of such a width, is made of: q, k, v;
 * gate, up; each MTP head; else itself. Returns how many. */
int param_outputs(const ModelConfig *c, Dim width, Dim out[PARAM_MATRICES]);
/* Its matrices, in the order of their elements. */
int param_matrices(const Param *p);
ParamMatrix param_matrix(const Param *p, int k);
/* The parameter as the model c has it, of which p may be what one rank has: its rows, columns, elements and
 * matrices. Its place is p's, and of a stack it has as many experts. */
Param param_whole(const ModelConfig *c, const Param *p);
/* In files of the model c, of which p may be what one rank has: [rows], [rows, cols], of stacks [stack, ...];
 * returns how many dimensions. */
enum { PARAM_RANK = 3 };
int param_shape(const ModelConfig *c, const Param *p, int64_t shape[PARAM_RANK]);

/* With tied embeddings unit L+1 has no head parameter; the head reads the embedding. An MTP module's
 * parameters are in unit L+1 and have names of block L. */
ErrorCode param_table_build(ParamTable *t, const ModelConfig *c, Error *err);
/* Lays the table out anew, with frozen[i] of the parameters that it has now: frozen matrices, but for those
 * in one group with others that are trained, move to a flat of their own. Indices of parameters change. */
ErrorCode param_table_freeze(ParamTable *t, const ModelConfig *c, const bool *frozen, Error *err);
/* Puts adapters to the parameters of which adapted[i], matrices that have rows for them; c has their rank.
 * Indices of parameters change. */
ErrorCode param_table_adapt(ParamTable *t, const ModelConfig *c, const bool *adapted, Error *err);
void param_table_free(ParamTable *t);
const Param *param_find(const ParamTable *t, const char *name); /* NULL if none */
/* NULL if the unit has none. Of experts' rows: the first expert's, or that expert's. */
const Param *param_of(const ParamTable *t, int unit, const ParamRow *row);
const Param *param_of_expert(const ParamTable *t, int unit, const ParamRow *row, int expert);
/* Elements from what an expert has of a row to what the next one has (invariant 4), be they one parameter; 0:
 * there is none here. */
int64_t param_expert_step(const ParamTable *t, const Param *first);
/* A or B of the matrix's adapter; NULL where it has none. */
typedef enum AdapterPart { ADAPTER_A, ADAPTER_B } AdapterPart;
const Param *param_adapter(const ParamTable *t, const Param *matrix, AdapterPart which);
/* What tp cuts of a parameter of this row: of an adapter the side along which its matrix is cut. */
TpStyle param_tp_style(const ParamRow *row);
/* Whether it is the other side of an adapter, or the matrix of an MTP module, where ranks may share matrices:
 * joint. Each has all of it, and makes its gradient of own tokens, as a norm's. It lies with these. */
bool param_is_joint(const ModelConfig *c, const ParamRow *row);
/* Whether ranks that share matrices each have all of it, and make its whole gradient of all tokens: routers,
 * what makes latents, adapters of that, and the joint sides of those that read latents. */
bool param_sees_all(const ParamRow *row);
/* Whether a matrix of this row may have one: it is one that the unit's layers multiply by. */
bool param_can_adapt(const ModelConfig *c, int unit, const ParamRow *row);
bool param_table_is_adapted(const ParamTable *t);
static inline bool flat_of_experts(Flat flat) {
    return flat == FLAT_EXPERTS || flat == FLAT_EXPERT_VECTORS || flat == FLAT_FROZEN_EXPERTS;
}
static inline bool flat_of_vectors(Flat flat) { return flat == FLAT_VECTORS || flat == FLAT_EXPERT_VECTORS; }
/* Whether ranks that share experts out have those of some each. */
static inline bool param_is_of_experts(const ParamRow *row) {
    return row->expert || (row->fused && !row->router);
}
/* Elements of a unit's buffer: of all its flats. */
size_t param_unit_size(const ParamTable *t, int unit);

/* At most so many kinds of parameters has a unit. */
enum { UNIT_ROWS = 64 };
/* The kinds of parameters that a unit may have, in canonical order but for vectors before matrices; returns
 * how many. Not all need be present. */
int param_rows(const ModelConfig *c, int unit, const ParamRow *rows[UNIT_ROWS]);
bool param_present(const ModelConfig *c, const ParamRow *row);
/* Experts of a stack that are here; 1: it is none. */
int64_t param_fused_experts(const ModelConfig *c, const ParamRow *row);
int64_t param_elements(const ModelConfig *c, const ParamRow *row);
/* Parameters of this row in a unit: one, or one for each expert. */
int64_t param_copies(const ModelConfig *c, const ParamRow *row);

/* Initialisers, by name. All are functions of (seed, name, element) only.
 *   normal      every matrix N(0, std), norms 1, biases 0 (Hugging Face's own)
 *   torchtitan  embedding N(0, 1); q, k, v, gate 0.02; o, up, down 0.02 / sqrt(2 (layer + 1)), cut at +-2
 *               absolute; head h^-0.5 cut at 3 std, and so the embedding when tied
 *   lingua      everything cut at 3 std: embedding, head h^-0.5; q, k, v, gate, up h^-0.5; o h^-0.5 / f, down
 *               (its inputs)^-0.5 / f with f = sqrt(2 (L + 1))
 *   gpt2        N(0, 0.02), but o and down 0.02 / sqrt(2 L)
 * What reads the stream in a recurrence starts as a gate does, its output as down; taps of convolutions from
 * K^-0.5, cut at 3 std, and lambda so that a^(1/4) is from U(0.81, 0.998) where the gate is open (De et al.,
 * "Griffin", 2024), everywhere. So do a Mamba-2 head's A_log as the logarithm of U(1, 16), its dt_bias so
 * that a step is the exponential of U(log 0.001, log 0.1), and D as 1 (Dao & Gu, "Transformers are SSMs",
 * 2024). Learned positions start as the embedding of `normal` and of gpt2 does, elsewhere from N(0, 0.02).
 * Norms begin as the identity, whatever their weights then are. */
#define INIT_NAMES(X) \
    X(INIT_NORMAL, "normal") X(INIT_TORCHTITAN, "torchtitan") X(INIT_LINGUA, "lingua") X(INIT_GPT2, "gpt2")
typedef enum InitKind { INIT_NAMES(CHOICE_CONSTANT) INIT_KINDS } InitKind;
typedef struct InitRule {
    double value;                 /* constant, when std is 0 */
    double std, lo, hi;           /* lo, hi in standard deviations */
    double (*of)(double uniform); /* of a number from [0, 1), unless NULL: then it alone counts */
} InitRule;
InitRule param_init_rule(const Param *p, const ModelConfig *c, InitKind kind, double std);

#endif
