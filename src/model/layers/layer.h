/* Layers, from which models are built. Each layer is one file and one `Layer` entry: its parameters, the
 * tensors of its passes and their lifetimes, its collectives, and its ops. Parameter table, memory plan,
 * recomputation, FLOPs, costs for the stage split, programs, engine and generation all read these rows.
 *
 *     rows of parameters --> params.c (names, places in the unit's buffer), initialiser.c, optimizer (decay)
 *     rows of tensors ----> regions.c (saved, stash, scratch)
 *     rows of collectives > program/lower.c, program/check.c (where passes stop), engine/collectives.c
 *     ops --------------> unit.c (runs them), counts.c (FLOPs)
 *
 * A *unit* (embedding, block, head) is a list of sublayers; see unit.h. An *op* is the smallest step of a
 * unit: collectives happen only between ops. Model code never communicates; whoever runs the ops does.
 *
 * Invariants
 *  1. An op reads results of earlier ops of its unit, and nothing else of the unit's memory.
 *  2. The backward pass runs the ops in reverse. DGRAD makes the gradient of the op's input and adds to the
 *     gradients of vectors. WGRAD adds to the gradients of matrices, and reads only tensors that are marked
 *     `operand`. Running both at once does the same operations, in an order that changes no bits.
 *  3. Recomputation changes no bits. */
#ifndef WEFT_MODEL_LAYERS_LAYER_H
#define WEFT_MODEL_LAYERS_LAYER_H

#include "comm/mesh.h"
#include "device/shapes.h"
#include "model/params.h"

struct Model;

/* Activation checkpointing: what is recomputed of a block.
 *   none       nothing, except the activation of the MLP: every operand of the backward pass is saved
 *   selective  cheap results: of norms and convolutions, and the gate and up products
 *   full       everything: only the block's input is saved, and its forward pass runs again */
#define RECOMPUTE_KINDS(X) \
    X(RECOMPUTE_NONE, "none") X(RECOMPUTE_SELECTIVE, "selective") X(RECOMPUTE_FULL, "full")
typedef enum Recompute { RECOMPUTE_KINDS(CHOICE_CONSTANT) } Recompute;

typedef enum Grads { DGRAD = 1, WGRAD = 2, BOTH_GRADS = 3 } Grads;

/* Under which policy a result of the forward pass is saved for the backward pass (memory: regions.c). */
typedef enum Lifetime {
    LIFE_ALWAYS,  /* the unit's input, and results that are never recomputed: routing, loss records */
    LIFE_SAVED,   /* unless everything is recomputed */
    LIFE_CHEAP,   /* only when nothing is recomputed */
    LIFE_SCRATCH, /* never: dead after the pass that makes it */
    /* One tensor for all segments of a microbatch: from its first forward pass to its last backward pass, or
     * in its backward passes. */
    LIFE_SEGMENTS,
    LIFE_SEGMENTS_BACKWARD
} Lifetime;

/* Rows of a tensor. */
typedef enum Extent {
    EXTENT_TOKENS,       /* tokens of the microbatch on this rank */
    EXTENT_LOCAL,        /* tokens / TP: the sequence-parallel shard */
    EXTENT_LOGITS,       /* tokens of a chunk of logits */
    EXTENT_LOGIT_SPLITS, /* EXTENT_LOGITS for each local split */
    EXTENT_ASSIGNMENTS,  /* (token, expert) assignments of tokens whose rows this rank makes */
    EXTENT_WORKED, /* rows that local experts work on at a time: a dispatch chunk, else all assignments */
    /* tokens, for each partial sum alive while splits are added up: model_split_depth */
    EXTENT_SPLIT_PARTIALS,
    EXTENT_SPLIT_ASSIGNMENTS, /* assignments; with EP, assignments x local splits */
    EXTENT_SPLIT_WORKED,      /* rows of a dispatch chunk, for each local split */
    EXTENT_KEYS,              /* keys that attention reads */
    EXTENT_KEY_SPLITS,        /* EXTENT_KEYS for each local split that shares a KV head: model_key_splits */
    /* EXTENT_KEY_SPLITS for each live partial sum: model_partial_depth; with segments, all keys once */
    EXTENT_PARTIALS,
    EXTENT_MICROBATCH,     /* tokens of all segments */
    EXTENT_SEGMENT_SUMS,   /* EXTENT_MICROBATCH for each partial sum: model_segment_sums */
    EXTENT_ROW_SUMS,       /* two (queries, keys) for each token and split of all ranks */
    EXTENT_LOCAL_ROW_SUMS, /* two for each token and local split */
    EXTENT_STARTS,         /* states that Mamba-2 saves, one for each scan chunk */
    EXTENT_MAMBA_CHUNK,    /* tokens of a scan chunk, at most, in whole blocks: mamba_scratch_rows */
    EXTENT_EXACT_CHUNKS,   /* one for each exact chunk of tokens */
    EXTENT_PIECES,         /* one for each routing piece of tokens */
    EXTENT_LOCAL_PIECES,   /* those whose rows this rank makes */
    EXTENT_ORDERS,         /* two for each row of a dispatch chunk */
    EXTENT_SEQUENCES,      /* one for each sequence of all ranks */
    EXTENT_RECORDS,        /* four numbers of the loss for each token and split of all ranks */
    EXTENT_ADAPTER,        /* r of adapters */
    EXTENT_ONE
} Extent;
typedef enum Element {
    ELEMENT_COMPUTE, /* the compute dtype */
    ELEMENT_FP32,
    ELEMENT_INDEX, /* int32_t */
    ELEMENT_COUNT, /* int64_t */
    ELEMENT_NARROW /* the compute dtype; no tensor at all where that is fp32 */
} Element;

/* Condition under which a tensor or a collective exists. */
typedef enum Need {
    NEED_ALWAYS,
    NEED_CP_ALL_TO_ALL,   /* CP exchanges tokens for heads */
    NEED_KEYS,            /* CP all-gathers keys and values */
    NEED_SEGMENTS,        /* passes are over segments of a microbatch */
    NEED_PARTIALS,        /* gradients of keys are sums of partial sums: model_has_partials */
    NEED_KEY_SPLITS,      /* several local splits share a KV head: model_key_splits */
    NEED_ROW_SUMS,        /* splits > 1, in a layer that norms all heads of a token as one row */
    NEED_DISPATCH,        /* expert parallelism */
    NEED_EXPERT_SPLITS,   /* sums over an expert's width are split: TP may shard experts */
    NEED_TP,              /* TP degree > 1 */
    NEED_WHOLE_EXPERTS,   /* these sums are not split */
    NEED_FOLDED,          /* each rank of TP dispatches the rows of its own tokens */
    NEED_DISPATCH_SPLITS, /* NEED_DISPATCH and NEED_EXPERT_SPLITS */
    NEED_HEADS_APART,     /* several local splits of MTP heads' input gradients: model_has_heads_apart */
    NEED_EXPERT_BIAS,     /* experts have biases */
    NEED_HEAD_SUMS,       /* CP all-to-all, and attention sinks, whose gradient is summed by tokens */
    NEED_BALANCE          /* balance loss of experts */
} Need;

/* A tensor of a layer's passes: [rows, width]. */
typedef struct TensorRow {
    Extent rows;
    Dim width;
    Element element;
    Lifetime life;
    bool operand; /* wgrad reads it */
    Need need;
} TensorRow;

enum { LAYER_TENSORS = 32 }; /* at most */

/* The two parameters of an adapter (Hu et al., "LoRA", 2021) of the matrix in row `of`:
 *
 *     y += s (x A^T) B^T        A [r, in], B [out, r], s = ModelConfig.adapter_scale
 *
 * The backward pass recomputes its intermediates from the product's operands. Only x A^T of a row-parallel
 * matrix is saved, where TP may shard matrices. */
#define ADAPTER_ROWS(of, outputs, inputs) \
    [of##_A] = {.rows = DIM_ADAPTER,      \
                .cols = inputs,           \
                .init = ROLE_ADAPTER,     \
                .decays = true,           \
                .adapts = &params[of]},   \
    [of##_B] = {                          \
        .rows = outputs, .cols = DIM_ADAPTER, .init = ROLE_ZEROS, .decays = true, .adapts = &params[of]}

/* Scratch of a unit's adapters, one at a time; NULL where it has none. */
typedef struct AdapterScratch {
    void *inner;      /* [T, r] c: x A^T, or the gradient of it */
    void *outer;      /* [T, out] c: s times the gradient of the matrix's part of y */
    void *replicated; /* [r, h] c: cast of a replicated side, or of an MTP module's matrix; none in fp32 */
    float *apart;     /* [local, r]: one adapter's columns of a reduced sum */
} AdapterScratch;

/* y [T, out] = x [T, in] W^T (+ bias) (+ adapters). The parameter rows that make up [out, in], and those of
 * [out], are adjacent; the first one that a model has begins the matrix. */
typedef struct Product {
    const ParamRow *weight, *bias; /* bias NULL: never any */
    int rows;                      /* of weight, and of bias; 0 means 1 */
    Dim out, in;
} Product;

/* ---- collectives (ncclAllGather, ncclReduceScatter ...); docs/inside/add-a-collective.md ---- */

typedef enum CollKind {
    COLL_ALL_GATHER,
    COLL_REDUCE_SCATTER,
    COLL_ALL_REDUCE,
    COLL_ALL_TO_ALL,
    COLL_DISPATCH, /* runs its ops on the ranks of their experts: see ExpertDispatch */
    COLL_KINDS
} CollKind;

/* The passes over an op. */
enum { IN_FORWARD = 1, IN_RECOMPUTE = 2, IN_DGRAD = 4, IN_WGRAD = 8 };

/* Tensors of the unit, numbered after those of the layer. FULL_X, FULL_DY and PARTIALS are one buffer each,
 * shared by all layers of the unit. */
enum {
    UNIT_X = LAYER_TENSORS, /* [local, h] c: the layer's input */
    UNIT_DX,                /* [local, h] c: its gradient */
    UNIT_Y,                 /* [local, h] c: the layer's result */
    UNIT_DY,                /* [local, h] c: its gradient */
    FULL_X,                 /* [T, h] c: the input of all tokens */
    FULL_DY,                /* [T, h] c: the gradient of the result, of all tokens */
    PARTIALS,               /* [T, h] fp32: partial sums of a result, or of an input's gradient */
    LOSS_RECORDS,           /* [splits, loss_rows]: records of a chunk of logits */
    UNIT_TENSORS
};

/* A collective in the passes of a layer. It runs before the first of `ops`, which read `to`, or after the
 * last of `ops`, which make `from`; first and last are in the order of the pass, which is descending in a
 * backward pass. It is skipped where the degree over its axes is 1.
 *
 * IN_RECOMPUTE applies only if the ops are recomputed. A row with both IN_RECOMPUTE and IN_DGRAD runs in
 * RECOMPUTE if they are, else in DGRAD. */
struct LayerPass;
typedef struct Collective Collective;
struct Collective {
    uint8_t passes; /* IN_FORWARD | ... */
    bool behind;    /* runs after its ops, which make `from`; else before them, which read `to` */
    uint32_t ops;   /* mask of ops of the layer: OPS(i) */
    CollKind kind;
    AxisSet over;
    int from, to; /* tensors of the layer, or of the unit */
    /* Shape per rank: [rows, width]. ALL_TO_ALL: all that a rank sends; REDUCE_SCATTER: what it receives. */
    Extent rows;
    Dim width;
    Element element;
    Need when;
    bool trains;      /* in training only */
    bool overlaps;    /* may overlap with the next op, since no op of this pass reads `to` */
    bool brief;       /* too small to delay other work in order to hide it */
    bool along;       /* starts and ends with the row before it */
    bool chunked;     /* once for each chunk of logits, between the two slices of its op */
    bool zigzag;      /* over tokens of all ranks of cp, in CP chunks; else ranks in order */
    const char *what; /* suffix of its name in listings; NULL: the stream */
    /* pack fills the send buffer from `packed`, another tensor of the layer; an all-gather without pack
     * copies `from` into `to`. unpack runs when the transfer is complete, and does the reverse. */
    void (*pack)(const struct LayerPass *w, const Collective *c);
    void (*unpack)(const struct LayerPass *w, const Collective *c);
    int packed;
    const struct Product *adapted; /* its adapters' partial sums go along; NULL: those of the op's product */
};
#define OPS(i) (1u << (i))
#define BEFORE(reads) .ops = (reads)
#define BEHIND(makes) .behind = true, .ops = (makes)
/* The fields that every row has: passes, position, kind, axes, from, to, shape per rank. */
#define COLLECTIVE(in, where, how, axes, source, target, extent, dim, type)                           \
    .passes = (in), where, .kind = COLL_##how, .over = MESH_##axes, .from = (source), .to = (target), \
    .rows = EXTENT_##extent, .width = DIM_##dim, .element = ELEMENT_##type

/* Sequence parallelism around TP-sharded layers (Korthikanti et al., "Reducing activation recomputation in
 * large transformer models", 2022): between layers a rank holds a shard of the tokens. A column-parallel
 * product reads the all-gathered input, and its dgrad makes partial sums. A row-parallel product makes
 * partial sums, and its dgrad reads the all-gathered gradient. */
#define ALL_GATHER_X(reads)                                                                             \
    COLLECTIVE(IN_FORWARD | IN_RECOMPUTE | IN_WGRAD, BEFORE(reads), ALL_GATHER, TENSOR, UNIT_X, FULL_X, \
               LOCAL, HIDDEN, COMPUTE)
#define REDUCE_SCATTER_DX(makes) \
    COLLECTIVE(IN_DGRAD, BEHIND(makes), REDUCE_SCATTER, TENSOR, PARTIALS, UNIT_DX, LOCAL, HIDDEN, FP32)
#define REDUCE_SCATTER_Y(makes)                                                                           \
    COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(makes), REDUCE_SCATTER, TENSOR, PARTIALS, UNIT_Y, LOCAL, \
               HIDDEN, FP32)
#define ALL_GATHER_DY(reads)                                                                            \
    COLLECTIVE(IN_DGRAD | IN_WGRAD, BEFORE(reads), ALL_GATHER, TENSOR, UNIT_DY, FULL_DY, LOCAL, HIDDEN, \
               COMPUTE)

struct Pass;

/* Buffers of TP collectives; all NULL without TP. */
typedef struct Shared {
    void *full;  /* [T, h] c: the layer's input, of all tokens */
    void *dfull; /* [T, h] c: the gradient of its result, of all tokens */
    /* [T, h]: local partial sums, of a result or of an input's gradient */
    float *partials;
    float *inner;        /* [T, n r]: partial sums of a product's adapters: of x A^T, or of its gradient */
    LossRecord *records; /* of the head: [splits, loss_rows] of a chunk */
} Shared;

/* Operands of an op. With TP, a dimension `local` is the tokens of this rank's sequence-parallel shard.
 * Without, it is all T tokens, x equals local_x, and so on. */
typedef struct LayerPass {
    const struct Pass *pass;
    int unit, slice;      /* slice: of UnitPass */
    void *const *tensors; /* of the layer, in the order of its rows */
    const Shared *shared;
    const AdapterScratch *adapters;
    void *inner;         /* [local, r] c: x A^T of the adapter whose B is replicated, for the gradient of B */
    const void *local_x; /* [local, h] c: the layer's input for this rank's tokens only */
    const void *x;       /* [T, h] c: the normed state that the layer is applied to; NULL in the embedding */
    /* [T, h] c: forward: the layer's result; fp32 partial sums where it is summed over ranks */
    void *y;
    const void *dy;       /* [T, h] c: backward: gradient with respect to y */
    const void *local_dy; /* [local, h] c: the same for this rank's tokens only */
    void *dx;          /* [T, h] c: backward: out, gradient with respect to x; fp32 partial sums as for y */
    const void *input; /* [local, h] c: of layers that stand alone: the unit's input, whose gradient is dx */
    void *dstream;     /* of an MTP module: where the gradient of its stream's end goes; else NULL */
} LayerPass;

/* FLOPs of a token: forward, dgrad, wgrad. */
typedef struct Cost {
    double forward, input, weight;
} Cost;
static inline Cost cost_scaled(Cost c, double by) {
    return (Cost){c.forward * by, c.input * by, c.weight * by};
}
static inline Cost cost_plus(Cost a, Cost b) {
    return (Cost){a.forward + b.forward, a.input + b.input, a.weight + b.weight};
}

typedef struct LayerOp {
    const char *name;
    /* Lifetime of its results. A layer's last op makes the layer's result: there the unit decides. */
    Lifetime makes;
    void (*forward)(const LayerPass *w);
    void (*backward)(const LayerPass *w, Grads grads);
    const Product *product; /* its product with a matrix; NULL: none */
    bool fused;             /* the forward pass makes the product's gradients too */
    bool partial;           /* makes partial sums of the layer's result; recomputed only if the result is */
    bool trains;            /* runs in training only */
    /* FLOPs in addition to the product's, per token, averaged over a sequence of `context` tokens; NULL: none
     * worth counting. */
    Cost (*more)(const ModelConfig *c, int unit, int64_t context);
    /* The part of `more` that the mathematics requires, where more is executed; NULL: all. */
    Cost (*needed)(const ModelConfig *c, int unit, int64_t context);
} LayerOp;

/* Expert parallelism (COLL_DISPATCH): routed rows go to the ranks of their experts (dispatch), and results
 * come back (combine). Locally rows are sorted by expert, so those for one rank are one contiguous run. On
 * the remote rank, rows of the source ranks follow each other, and those of each are processed by themselves:
 * so each sum is taken in the order in which the source rank alone would take it.
 *
 *     local   permute   ROWS --out-->  remote   experts, rank after rank  --back-->  local   unpermute
 *
 * Where each rank of TP dispatches its own tokens, the ranks of one TP group are one source: on the remote
 * rank their rows are merged, sorted by expert, tokens ascending, as if one rank had sent them (`arrived`,
 * `orders`).
 *
 * With exact chunks, rows are sorted within each exact chunk, and those of one chunk go out and back before
 * the next. These ops run as one, dgrad and wgrad together; if the received rows exceed the buffers, several
 * times, once for each dispatch chunk. They always recompute what the forward pass made on the remote rank,
 * whatever the policy. */
typedef enum DispatchIf {
    DISPATCH_ALWAYS,
    DISPATCH_WHOLE, /* sums over an expert's width are not split */
    DISPATCH_SPLITS /* they are: the tensor has one block per local split */
} DispatchIf;
typedef struct DispatchTensor {
    int local, remote; /* indices of tensors of the layer: [assignments, width], and [worked, width] */
    Dim width;
    Element element;
    DispatchIf when;
} DispatchTensor;
enum { DISPATCH_TENSORS = 3 }; /* at most */

/* On the remote rank: rows of an exact chunk, from the tokens of several source ranks. A dispatch chunk has
 * those of consecutive ranks, one after the other from the beginning of the buffer; these rows are of all its
 * ranks or of some. */
typedef struct RemoteRows {
    int exact_chunk;
    int first;         /* source rank with which the dispatch chunk begins */
    int rank, sources; /* the first source rank, and how many */
    int64_t count;     /* rows */
} RemoteRows;

typedef struct ExpertPass {
    DispatchTensor out[DISPATCH_TENSORS], back[DISPATCH_TENSORS];
    int out_count, back_count;
    void (*permute)(const LayerPass *w);
    /* On the remote rank, in this order. Results of no rows are not computed, but gradients are. */
    void (*experts)(const LayerPass *w, const RemoteRows *v); /* of a dispatch chunk */
    void (*weights)(const LayerPass *w,
                    const RemoteRows *v); /* gradients, from some of its sources; or NULL */
    void (*results)(const LayerPass *w, const RemoteRows *v); /* of a dispatch chunk, which go back */
    void (*unpermute)(const LayerPass *w);
} ExpertPass;
typedef enum DispatchPass { DISPATCH_FORWARD, DISPATCH_BACKWARD, DISPATCH_PASSES } DispatchPass;

typedef struct ExpertDispatch {
    /* Tensors of the layer with offsets of the runs of rows by expert: of this rank [exact chunks, E + 1]; of
     * all ranks of ep; and of the rows received here, by source rank and expert. Each dispatch chunk has a
     * table [its ranks, local experts] and the end of its rows, which begins where its first rank has one in
     * [exact chunks, ranks, local experts + 1] */
    int runs, all_runs, local_runs;
    /* Where sources are merged: rows as they arrived or leave, [worked, h]; and for each row of a dispatch
     * chunk the arrived row that it is, then the reverse. */
    int arrived, orders;
    ExpertPass way[DISPATCH_PASSES];
} ExpertDispatch;

typedef struct Layer {
    const char *name;
    const ParamRow *params;
    const TensorRow *tensors;
    const LayerOp *ops;
    const Collective *collectives;
    int param_count, tensor_count, op_count, collective_count;
    Dim cached; /* KV cache per token, in elements of the compute dtype; DIM_NONE: nothing */
    /* fp32 elements of the recurrent state that generation carries from token to token; NULL: none. */
    int64_t (*carried)(const ModelConfig *c);
    const ExpertDispatch *dispatch; /* of its ops that are dispatched; NULL: it has none */
} Layer;

/* Initialises a table of a Layer and its count. */
#define LAYER_ROWS(row, table) .row##s = (table), .row##_count = sizeof(table) / sizeof *(table)

extern const Layer layer_embedding;            /* ids -> y */
extern const Layer layer_attention;            /* x -> y */
extern const Layer layer_normed_attention;     /* the same with norms of queries and keys, head by head, */
extern const Layer layer_row_normed_attention; /* or all heads of a token at once */
extern const Layer layer_latent;               /* the same from latents of queries, keys and values */
extern const Layer layer_latent_keys;          /* of keys and values alone */
extern const Layer layer_min_gru;              /* the same, by recurrences */
extern const Layer layer_min_lstm;
extern const Layer layer_hawk;
extern const Layer layer_mamba2;
extern const Layer layer_mlp;            /* x -> y, with a gate or without */
extern const Layer layer_experts;        /* x -> y, in place of an MLP */
extern const Layer layer_shared_experts; /* the same, with some that all tokens meet */
extern const Layer layer_whole_experts;  /* both where TP shards no expert */
extern const Layer layer_whole_shared_experts;
extern const Layer layer_head;     /* the state -> losses, or logits */
extern const Layer layer_heads;    /* the same, with MTP heads */
extern const Layer layer_mtp;      /* the state, next tokens' ids -> y: begins an MTP module's stream */
extern const Layer layer_mtp_head; /* the state, and the end of that stream -> losses of both */

/* The passes of a product, on T tokens. Partial sums over ranks are fp32 (KSplit). */
/* The parameter that begins its matrix, and its bias; NULL: it has none. */
const Param *product_matrix(const LayerPass *w, const Product *p);
const Param *product_bias(const LayerPass *w, const Product *p);
void product_forward(const LayerPass *w, const Product *p, const void *x /* [T, in] c */,
                     void *y /* [T, out] c */);
void product_input(const LayerPass *w, const Product *p, const void *dy /* [T, out] c */,
                   void *dx /* [T, in] c */);
void product_weight(const LayerPass *w, const Product *p, const void *dy /* [T, out] c */,
                    const void *x /* [T, in] c */);
/* Replaces product_weight where the matrix is replicated (params.h: param_is_replicated): wgrad of local
 * tokens, run with dgrad. */
void product_replicated(const LayerPass *w, const Product *p, const void *dy, const void *x);
/* Number of adapters of its matrices in a unit. */
int product_adapters(const struct Model *m, int unit, const Product *p);
/* After the sum over ranks: y = round(sum) + bias + adapters, whose own partial sums were summed too. */
void product_summed(const LayerPass *w, const Product *p, const float *partials /* [local, out] */,
                    void *y /* [local, out] c */);
/* After the sum of dx over ranks, already rounded: adds the adapters' gradients to dx, and makes gradients of
 * their replicated sides. */
void product_input_summed(const LayerPass *w, const Product *p, void *dx /* [local, in] c */);

/* Adapters alone, for layers that compute a product themselves where TP may shard matrices. */
/* Forward. _inner makes x A^T, of a row-parallel matrix partial sums of it. _output adds the adapter's
 * contribution to y if x A^T is complete on this rank; _summed does so after the reduce-scatter. */
void product_adapters_inner(const LayerPass *w, const Product *p, const void *x /* [T, in] c */);
void product_adapters_output(const LayerPass *w, const Product *p, void *y /* [T, out] c */);
void product_adapters_summed(const LayerPass *w, const Product *p, void *y /* [local, out] c */);
/* Backward, where TP may shard matrices: adds to dx, or makes the partial sums that product_input_summed
 * adds; and the same for matrices that make latents, for `tokens` tokens. */
void product_adapters_input(const LayerPass *w, const Product *p, const void *dy, void *dx);
void product_full_input(const LayerPass *w, const Product *p, int64_t tokens,
                        const void *dy /* [tokens, out] c */, void *dx /* [tokens, in] c */);
/* For heads that are made from latents, from summed partial sums [T, r]: adds to the gradients of the latents
 * and of A. */
void product_latents_summed(const LayerPass *w, const Product *p, const float *partials,
                            const void *x /* [T, in] c */, void *dx /* [T, in] c */);

/* The recurrent state in generation, Layer.carried elements; NULL in training. */
float *carried_of(const LayerPass *w);
/* In generation, clears the state in the first pass of a sequence. */
void begin_sequence(const LayerPass *w, int64_t elements);
/* first_key of the batch, which gives document boundaries; NULL in generation, which has one document. */
const int32_t *documents_of(const LayerPass *w);
/* Keys that a token of `layer` sees, averaged over a sequence. */
double keys_seen(const ModelConfig *c, int64_t layer, int64_t context);

/* y = scale * embedding + learned positions (NULL: none) of all tokens; with TP, partial sums of that. */
void embedding_forward(const LayerPass *w, const int32_t *ids, float scale, const int32_t *positions,
                       void *y);

/* The rows of a norm's parameters: its weight, then its bias, which only LayerNorm has. */
enum { NORM_ROWS = 2 };

/* The family's norm of `tokens` local rows: sum = a + b, y = norm(sum). b and sum may be NULL. */
void norm_forward(const struct Pass *p, int unit, const ParamRow rows[NORM_ROWS], int64_t tokens,
                  const void *a /* [tokens, h] c */, const void *b, void *sum, void *y,
                  float *rstd /* [tokens] */);
/* dx = (add ? dx : 0) + gradient through the norm of x, [local, h] c. */
void norm_backward(const struct Pass *p, int unit, const ParamRow rows[NORM_ROWS], const void *x,
                   const float *rstd, const void *dy, void *dx, bool add);

/* Logits [rows, V] fp32 of `rows` states x [rows, h], for generation. */
void head_logits(const struct Pass *p, int64_t rows, const void *x, void *normed /* [rows, h] */,
                 float *rstd /* [rows] */, float *logits);

#endif
