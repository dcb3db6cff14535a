/* The parameter table: all weights of a model, in canonical order, by unit. Initialisation, optimizer,
 * sharding, checkpoints and inspection read this table and nothing else. It is built from the parameter rows
 * of the layers (layers/layer.h), where each kind of parameter is described once.
 *
 * A unit is sharded, gathered, recomputed and updated as a whole: unit 0 is the embedding, units 1..L are the
 * blocks, unit L+1 is the final norm with the head.
 *
 * Invariants of a unit's flat buffer
 *  1. It is a sequence of flats. A flat is a run of parameters that are read in one dtype, and is held, cast,
 *     gathered and reduced by itself.
 *  2. q, k, v are contiguous, and so are gate and up, and their biases. Products see each group as one
 *     matrix, [q;k;v] [(H+2G)*D, h] and [gate;up] [2I, h], as where a family stores the group as one
 *     parameter. Groups start at multiples of 16 elements.
 *  3. The table is ascending by (unit, flat, place). Padding belongs to no parameter and stays zero.
 *  4. Experts follow each other, each with all its matrices: the k-th parameter of expert e is e strides
 *     after that of expert 0, both in the table and in the flat. They have a flat of their own: the experts
 *     of a unit are either all frozen or all trained.
 *  5. The table lists all parameters of the model, so that indices mean the same on every rank. Experts of
 *     other ranks of ep are marked remote and occupy no elements. Fused expert weights hold the local
 *     experts. */
#ifndef WEFT_MODEL_PARAMS_H
#define WEFT_MODEL_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

/* Conditions on a model under which a parameter exists: all bits must hold. */
typedef enum When {
    WHEN_ALWAYS = 0,
    WHEN_QKV_BIAS = 1,
    WHEN_OUT_BIAS = 2, /* of attention */
    WHEN_MLP_BIAS = 4,
    WHEN_UNTIED = 8,
    WHEN_QKV_SEPARATE = 16,      /* q, k, v are three parameters */
    WHEN_QKV_FUSED = 32,         /* q, k, v are one parameter */
    WHEN_GATED = 64,             /* the MLP has a gate */
    WHEN_GATE_UP_SEPARATE = 128, /* gate and up are two parameters; also up without a gate */
    WHEN_GATE_UP_FUSED = 256,    /* gate and up are one parameter */
    WHEN_QK_NORM = 512,          /* queries and keys are normed head by head */
    WHEN_LAYER_NORM = 1024,      /* norms have biases */
    WHEN_LEARNED_POSITIONS = 2048,
    WHEN_SINKS = 4096,             /* attention sinks */
    WHEN_EXPERTS_SEPARATE = 8192,  /* each expert has parameters of its own */
    WHEN_EXPERTS_FUSED = 16384,    /* one parameter holds all experts */
    WHEN_EXPERT_BIAS = 32768,      /* experts and their router have biases */
    WHEN_CONV = 65536,             /* gates of recurrences go through a convolution */
    WHEN_SHARED = 131072,          /* shared experts: all tokens go through them */
    WHEN_CORRECTION_BIAS = 262144, /* a bias is added to the scores by which experts are chosen */
    WHEN_LATENT_QUERIES = 524288,  /* MLA: queries are made from a latent */
    WHEN_FULL_QUERIES = 1048576,   /* MLA: queries are made directly from the hidden state */
    WHEN_QK_ROW_NORM = 2097152,    /* queries of all heads of a token are normed as one row; so are keys */
    WHEN_BALANCE_BIAS = 4194304    /* as WHEN_CORRECTION_BIAS, in families whose files have none */
} When;

/* How tp shards a matrix: not at all; by rows, its outputs (Megatron's column-parallel: Megatron multiplies
 * by the transpose; vectors of outputs are sharded too); or by columns, its inputs (row-parallel). */
typedef enum TpStyle { REPLICATED, COLUMN_PARALLEL, ROW_PARALLEL } TpStyle;

/* The role by which initialisers choose a distribution. */
typedef enum InitRole {
    ROLE_NORM, /* weight of a norm, which starts as the identity */
    ROLE_ZEROS,
    ROLE_EMBEDDING,
    ROLE_POSITIONS, /* learned, added to the embedding */
    ROLE_HEAD,
    ROLE_INNER, /* reads the residual stream: q, k, v, gate */
    ROLE_UP,
    ROLE_OUT,     /* attention's output projection */
    ROLE_DOWN,    /* output projection of an MLP or a recurrence */
    ROLE_CONV,    /* taps of a convolution */
    ROLE_LAMBDA,  /* decay rate of a HAWK channel */
    ROLE_STEP,    /* Mamba-2: dt_bias of a head */
    ROLE_DECAY,   /* Mamba-2: A_log of a head */
    ROLE_SKIP,    /* Mamba-2: D of a head */
    ROLE_ADAPTER, /* A of an adapter; its B starts as zeros */
    INIT_ROLES
} InitRole;

/* The flats of a unit's buffer. A unit need not have all. */
typedef enum Flat {
    FLAT_VECTORS,        /* norms, biases and replicated matrices (param_is_replicated): held in fp32 */
    FLAT_MATRICES,       /* read by products, in the compute dtype */
    FLAT_EXPERTS,        /* likewise, of experts: sharded over ep */
    FLAT_EXPERT_VECTORS, /* biases of experts, held in fp32: sharded over ep */
    FLAT_FROZEN,         /* matrices that are not trained: they have no gradient */
    FLAT_FROZEN_EXPERTS,
    FLATS,
    GRADIENT_FLATS = FLAT_FROZEN /* number of flats with a gradient; they come first */
} Flat;

/* A kind of parameter. Rows, columns and TP style are those of a matrix [outputs, inputs]. Where a family
 * stores its matrices transposed, Param has rows and columns swapped. */
typedef struct ParamRow {
    const char *name; /* Llama's; in blocks the part after "model.layers.N." */
    Dim rows, cols;   /* a vector has no columns: DIM_NONE */
    unsigned when;    /* mask of When */
    TpStyle tp;
    InitRole init;
    bool decays;      /* has weight decay by default (elsewhere: no_weight_decay lists the others) */
    bool fixed;       /* bias by which experts are chosen: never changed by a gradient */
    bool with_states; /* files of the family cannot hold it: it is stored with the optimizer's states */
    bool continues;   /* follows the row before it without a gap (invariant 2) */
    bool expert;      /* one for each expert, whose index replaces the `*` of the name */
    bool router;      /* of experts: on all ranks of tp and ep */
    bool latent;      /* makes MLA latents: on all ranks of tp, which shard the heads made from them */
    bool of_latents;  /* makes heads from latents: reads those of all tokens, not the stream */
    bool fused;       /* one for all experts, one after the other, matrices as [inputs, outputs]; sharded over
                       ep by expert, unless it is a router's */
    bool replicated;  /* a matrix that ranks of tp replicate: param_is_replicated */
    bool outside;     /* not in a block: its name has no prefix */
    /* For A [r, inputs] and B [outputs, r] of an adapter: the row of the adapted matrix. A model has such
     * rows once param_table_adapt has added adapters; its config.json never asks for them. */
    const struct ParamRow *adapts;
} ParamRow;

/* A matrix as products see it. A family may store several as one parameter (q, k and v; gate and up; MTP
 * heads; those of all experts). Rows and columns are as stored; rows lie `row` elements apart. */
typedef struct ParamMatrix {
    int64_t first; /* index of its first element in the parameter */
    int64_t rows, cols, row;
} ParamMatrix;
enum { PARAM_MATRICES = 4 };

typedef struct Param {
    char name[80]; /* "model.layers.3.self_attn.q_proj.weight" */
    const ParamRow *row;
    int unit, layer;    /* layer is -1 outside blocks */
    int expert;         /* 0 if it belongs to no expert */
    bool remote;        /* an expert of another rank: occupies no elements here (invariant 5) */
    int64_t rows, cols; /* a vector has cols == 0: shape [rows] */
    int64_t fused;      /* local experts in it, each with rows / fused rows; 1: not fused */
    bool transposed;    /* stored [inputs, outputs]: rows and cols of the row are swapped */
    int64_t count;      /* elements */
    int64_t capacity;   /* elements reserved for it: count, or more (ModelConfig.vocab_capacity) */
    bool frozen; /* not trained. Vectors, and matrices whose group is trained, still have a gradient when
                           frozen; it is not used */
    Flat flat;
    size_t offset;                        /* offset in its flat, in elements; 0 if remote */
    int matrix_count;                     /* per fused expert */
    ParamMatrix matrices[PARAM_MATRICES]; /* [matrix_count]: itself, or its parts; a vector has none */
} Param;

typedef struct ParamTable {
    int count, units;
    Param *params;          /* [count], ascending by (unit, flat, place) */
    size_t (*flats)[FLATS]; /* [units] elements of each unit's flats, padding included */
    int *unit_first;        /* [units + 1] index of each unit's first parameter */
    int64_t elements;       /* sum of count: the model's parameters */
} ParamTable;

/* Splits a width into the outputs of its matrices: q, k, v; gate, up; each MTP head; else itself. Returns the
 * number of matrices. */
int param_outputs(const ModelConfig *c, Dim width, Dim out[PARAM_MATRICES]);
/* Its matrices, those of each fused expert in turn, in the order of their elements. */
int param_matrices(const Param *p);
ParamMatrix param_matrix(const Param *p, int k);
/* The unsharded parameter: p, which may be one rank's shard, with the rows, columns, elements and matrices
 * that it has in the model c. Its place and its number of fused experts stay those of p. */
Param param_unsharded(const ModelConfig *c, const Param *p);
/* Shape of the parameter in files of the model c, where p may be one rank's shard: [rows] or [rows, cols],
 * with fused experts [experts, ...]. Returns the number of dimensions. */
enum { PARAM_RANK = 3 };
int param_shape(const ModelConfig *c, const Param *p, int64_t shape[PARAM_RANK]);

/* With tied embeddings unit L+1 has no head parameter; the head reads the embedding. An MTP module's
 * parameters are in unit L+1 and have names of block L. */
ErrorCode param_table_build(ParamTable *t, const ModelConfig *c, Error *err);
/* Rebuilds the table with parameter i frozen where frozen[i]. Frozen matrices move to a flat of their own,
 * unless others of their group are trained. Indices of parameters change. */
ErrorCode param_table_freeze(ParamTable *t, const ModelConfig *c, const bool *frozen, Error *err);
/* Rebuilds the table with an adapter for parameter i where adapted[i]: matrices whose layer has adapter rows.
 * Their rank is c->adapter_rank. Indices of parameters change. */
ErrorCode param_table_adapt(ParamTable *t, const ModelConfig *c, const bool *adapted, Error *err);
void param_table_free(ParamTable *t);
const Param *param_find(const ParamTable *t, const char *name); /* NULL if none */
/* NULL if the unit has none. For rows of experts: that of the first expert, or of the given one. */
const Param *param_of(const ParamTable *t, int unit, const ParamRow *row);
const Param *param_of_expert(const ParamTable *t, int unit, const ParamRow *row, int expert);
/* Stride in elements from one expert's parameter to the next one's (invariant 4), also within fused weights;
 * 0: no next expert here. */
int64_t param_expert_step(const ParamTable *t, const Param *first);
/* A or B of the matrix's adapter; NULL where it has none. */
typedef enum AdapterPart { ADAPTER_A, ADAPTER_B } AdapterPart;
const Param *param_adapter(const ParamTable *t, const Param *matrix, AdapterPart which);
/* How tp shards a parameter of this row. Of an adapter, only the side along which its matrix is sharded is
 * sharded too; the other is replicated. */
TpStyle param_tp_style(const ParamRow *row);
/* Whether ranks of tp replicate it and each makes its gradient from local tokens only, as for a norm, so that
 * gradients are summed over tp: the side of an adapter that is not sharded, and the matrix of an MTP module,
 * where TP may shard the others. It lies in FLAT_VECTORS. */
bool param_is_replicated(const ModelConfig *c, const ParamRow *row);
/* Whether ranks of tp replicate it and each makes its complete gradient from all tokens: routers, matrices
 * that make latents, adapters of these, and the replicated sides of adapters that read latents. */
bool param_sees_all(const ParamRow *row);
/* Whether a matrix of this row may have an adapter: the unit's layers have adapter rows for it. */
bool param_can_adapt(const ModelConfig *c, int unit, const ParamRow *row);
bool param_table_is_adapted(const ParamTable *t);
static inline bool flat_of_experts(Flat flat) {
    return flat == FLAT_EXPERTS || flat == FLAT_EXPERT_VECTORS || flat == FLAT_FROZEN_EXPERTS;
}
static inline bool flat_of_vectors(Flat flat) { return flat == FLAT_VECTORS || flat == FLAT_EXPERT_VECTORS; }
/* Whether ep shards it by expert. */
static inline bool param_is_of_experts(const ParamRow *row) {
    return row->expert || (row->fused && !row->router);
}
/* Elements of a unit's buffer: of all its flats. */
size_t param_unit_size(const ParamTable *t, int unit);

enum { UNIT_ROWS = 64 }; /* most kinds of parameters in a unit */
/* The kinds of parameters that a unit may have, in canonical order except that vectors come before matrices.
 * Returns their number. A model need not have all of them: param_present. */
int param_rows(const ModelConfig *c, int unit, const ParamRow *rows[UNIT_ROWS]);
bool param_present(const ModelConfig *c, const ParamRow *row);
/* Local experts in fused expert weights; 1: it is not fused. */
int64_t param_fused_experts(const ModelConfig *c, const ParamRow *row);
/* Parameters of this row in a unit: one, or one for each expert. */
int64_t param_copies(const ModelConfig *c, const ParamRow *row);

/* Initialisers, by name. All are functions of (seed, name, element) only.
 *   normal      every matrix N(0, std), norms 1, biases 0 (Hugging Face's own)
 *   torchtitan  embedding N(0, 1); q, k, v, gate 0.02; o, up, down 0.02 / sqrt(2 (layer + 1)), cut at +-2
 *               absolute; head h^-0.5 cut at 3 std, and so the embedding when tied
 *   lingua      everything cut at 3 std: embedding, head h^-0.5; q, k, v, gate, up h^-0.5; o h^-0.5 / f, down
 *               (its inputs)^-0.5 / f with f = sqrt(2 (L + 1))
 *   gpt2        N(0, 0.02), but o and down 0.02 / sqrt(2 L)
 * With every initialiser:
 *  - In a recurrence, matrices that read the stream start as a gate does, and the output matrix as down.
 *  - Taps of convolutions have std K^-0.5, cut at 3 std.
 *  - HAWK's lambda is such that a^(1/4) is from U(0.81, 0.998) where the gate is open (De et al., "Griffin",
 *    2024).
 *  - Mamba-2: A_log is the logarithm of U(1, 16), dt_bias is such that a step is the exponential of
 *    U(log 0.001, log 0.1), and D is 1 (Dao & Gu, "Transformers are SSMs", 2024).
 *  - Learned positions start as the embedding with `normal` and gpt2, else from N(0, 0.02).
 *  - Norms start as the identity, whatever weights that takes. */
#define INIT_NAMES(X) \
    X(INIT_NORMAL, "normal") X(INIT_TORCHTITAN, "torchtitan") X(INIT_LINGUA, "lingua") X(INIT_GPT2, "gpt2")
typedef enum InitKind { INIT_NAMES(CHOICE_CONSTANT) INIT_KINDS } InitKind;
typedef struct InitRule {
    double value;                 /* constant, when std is 0 */
    double std, lo, hi;           /* lo, hi in standard deviations */
    double (*of)(double uniform); /* if not NULL, the value as a function of a number from [0, 1) */
} InitRule;
InitRule param_init_rule(const Param *p, const ModelConfig *c, InitKind kind, double std);

#endif
