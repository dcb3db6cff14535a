/* A layer: what a transformer is put together from. One file and one entry of `Layer` each says which
 * parameters it has, which tensors its passes need and for how long, what ranks exchange in them, and what
 * they do, op by op. Nothing else knows: parameter table, memory plan, recomputation, FLOPs, costs for
 * the stage split, programs, engine, generation read these rows.
 *
 *     rows of parameters --> params.c (names, places in the unit's buffer), initialiser.c, optimizer (decay)
 *     rows of tensors ----> regions.c (slab, keep, scratch)
 *     rows of collectives > program/lower.c, program/check.c (where passes stop), engine/collectives.c
 *     ops --------------> unit.c (runs them), counts.c (FLOPs)
 *
 * A *unit* (embedding, block, head) is a list of sublayers; see unit.h. An *op* is the shortest piece of a
 * unit between two places where ranks may have to exchange something: model code never communicates, whoever
 * runs the ops does it between them.
 *
 * Invariants
 *  1. An op reads what earlier ops of its unit made, and nothing else of the unit's memory.
 *  2. The backward pass takes the ops in reverse. Each has two halves: DGRAD makes the gradient of the
 *     op's input and adds to those of vectors; WGRAD adds to the gradients of matrices, and reads
 *     only tensors that are marked `operand`. Both at once do the same operations, in an order that changes
 *     no bits.
 *  3. What an op makes again equals what it made: recomputation changes no bits. */
#ifndef WEFT_MODEL_LAYERS_LAYER_H
#define WEFT_MODEL_LAYERS_LAYER_H

#include "comm/mesh.h"
#include "device/device.h"
#include "model/params.h"

struct Model;

/* What the forward pass keeps of a block.
 *   none       every operand of the backward pass (the activation of the MLP is recomputed in passing)
 *   selective  not what is cheap to make again: the normed inputs, and the gate and up products
 *   full       the block's input only: its forward pass is done again */
#define RECOMPUTE_KINDS(X) \
    X(RECOMPUTE_NONE, "none") X(RECOMPUTE_SELECTIVE, "selective") X(RECOMPUTE_FULL, "full")
typedef enum Recompute { RECOMPUTE_KINDS(CHOICE_CONSTANT) } Recompute;

typedef enum Grads { DGRAD = 1, WGRAD = 2, BOTH_GRADS = 3 } Grads;

/* How long what a forward pass makes stays for the backward pass; where it then lives, regions.c says. */
typedef enum Lifetime {
    LIFE_INPUT,  /* always: the unit's input, and what nothing makes again */
    LIFE_SAVED,  /* unless everything is recomputed */
    LIFE_CHEAP,  /* only when nothing is recomputed */
    LIFE_SCRATCH /* not beyond the pass that makes it */
} Lifetime;

/* Rows of a tensor. */
typedef enum Extent {
    EXTENT_TOKENS,       /* of the microbatch, on this rank */
    EXTENT_OWN,          /* tokens / TP: what a rank has of the stream */
    EXTENT_LOGITS,       /* of a chunk of logits */
    EXTENT_LOGIT_SPLITS, /* of that, once for each split here */
    EXTENT_ASSIGNMENTS,  /* of each token's experts */
    EXTENT_WORKED,       /* of those that experts here work on at a time: all these, or what a round holds */
    /* of tokens, for each split that waits while these are added up: model_split_depth */
    EXTENT_SPLIT_PARTIALS,
    EXTENT_SPLIT_ASSIGNMENTS, /* rows that come back, of each split */
    EXTENT_SPLIT_WORKED,      /* of those that experts here work on, of each split */
    EXTENT_KEYS,              /* that attention looks at */
    EXTENT_KEY_SPLITS,   /* of keys, once for each split of queries that looks at them: model_key_splits */
    EXTENT_PARTIALS,     /* of terms of their gradients: model_partial_depth */
    EXTENT_ROW_SUMS,     /* two for each token and split of all ranks, of its queries and of its keys */
    EXTENT_OWN_ROW_SUMS, /* of these, of the splits here */
    EXTENT_STARTS,       /* states that Mamba-2 keeps */
    EXTENT_MAMBA_CHUNK,  /* tokens from one of these to the next, at most: MAMBA_CHUNK */
    EXTENT_EXACT_CHUNKS, /* one for each exact chunk of tokens */
    EXTENT_SEQUENCES,    /* one for each sequence of all ranks */
    EXTENT_RECORDS,      /* four numbers of the loss for each token and split of all ranks */
    EXTENT_ADAPTER,      /* r of adapters */
    EXTENT_ONE
} Extent;
typedef enum Element {
    ELEMENT_COMPUTE, /* the compute dtype */
    ELEMENT_FP32,
    ELEMENT_INDEX, /* int32_t */
    ELEMENT_COUNT, /* int64_t */
    ELEMENT_NARROW /* the compute dtype; no tensor at all where that is fp32 */
} Element;

/* Where a tensor is there at all. */
typedef enum Need {
    NEED_ALWAYS,
    NEED_CP_ALL_TO_ALL, /* ranks of cp change tokens for heads */
    NEED_KEYS,          /* ranks of cp gather keys and values of all tokens */
    NEED_PARTIALS, /* gradients of keys are sums of terms: several runs, or splits, of queries look at them */
    NEED_KEY_SPLITS,      /* several splits do, here */
    NEED_ROW_SUMS,        /* heads of a token, of which ranks may have some each, are normed as one row */
    NEED_DISPATCH,        /* ranks share experts out */
    NEED_SPLITS,          /* ranks may share matrices */
    NEED_TP,              /* ranks do */
    NEED_NO_SPLITS,       /* no ranks may */
    NEED_DISPATCH_SPLITS, /* ranks share experts out, and may share matrices */
    NEED_HEADS_APART,     /* splits here of what heads make of their input: model_has_heads_apart */
    NEED_EXPERT_BIAS,     /* experts have biases */
    NEED_HEAD_SUMS, /* ranks of cp change tokens for heads, and what is summed by heads is wanted by tokens */
    NEED_BALANCE    /* experts have a loss that is least where all have equally many tokens */
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
 * What the backward pass needs of it is recomputed from the product's operands: it keeps nothing, but where
 * ranks may share the matrix, x A^T of one whose inputs are cut. */
#define ADAPTER_ROWS(of, outputs, inputs) \
    [of##_A] = {.rows = DIM_ADAPTER,      \
                .cols = inputs,           \
                .init = ROLE_ADAPTER,     \
                .decays = true,           \
                .adapts = &params[of]},   \
    [of##_B] = {                          \
        .rows = outputs, .cols = DIM_ADAPTER, .init = ROLE_ZEROS, .decays = true, .adapts = &params[of]}

/* Scratch of a unit's adapters, one at a time; NULL where it has none. */
typedef struct AdapterRoom {
    void *inner;  /* [T, r] c: x A^T, or the gradient of it */
    void *outer;  /* [T, out] c: s times the gradient of the matrix's part of y */
    void *joint;  /* [r, h] c: a joint side as products read it, or an MTP module's matrix; none in fp32 */
    float *apart; /* [own, r]: of a sum over ranks, one adapter's */
} AdapterRoom;

/* y [T, out] = x [T, in] W^T (+ bias) (+ adapters). The rows that make up [out, in], and [out], lie side by
 * side; of those that a model has, the first begins the matrix. */
typedef struct Product {
    const ParamRow *weight, *bias; /* bias NULL: never any */
    int rows;                      /* of weight, and of bias: 1 for 0 */
    Dim out, in;
} Product;

/* ---- collectives ---- */

typedef enum CollKind {
    COLL_ALL_GATHER,
    COLL_REDUCE_SCATTER,
    COLL_ALL_REDUCE,
    COLL_ALL_TO_ALL,
    COLL_DISPATCH, /* runs its ops on the ranks of their experts: see ExpertDispatch */
    COLL_KINDS
} CollKind;

/* The passes over an op: forward, forward again for the backward pass, gradient of its input, gradient of its
 * weight. */
enum { IN_FORWARD = 1, IN_RECOMPUTE = 2, IN_DGRAD = 4, IN_WGRAD = 8 };

/* Tensors that belong to the unit rather than to a layer, numbered behind the layer's own. Those of all
 * tokens are shared by all layers: each holds one thing at a time. */
enum {
    UNIT_X = LAYER_TENSORS, /* [own, h] c: the layer's input */
    UNIT_DX,                /* [own, h] c: its gradient */
    UNIT_Y,                 /* [own, h] c: the layer's result */
    UNIT_DY,                /* [own, h] c: its gradient */
    FULL_X,                 /* [T, h] c: the input of all tokens */
    FULL_DY,                /* [T, h] c: the gradient of the result, of all tokens */
    PARTIALS,               /* [T, h] fp32: partial sums of a result, or of an input's gradient */
    LOSS_RECORDS,           /* [splits, loss_rows]: records of a chunk of logits */
    UNIT_TENSORS
};

/* What ranks exchange in the passes of a layer. It stands before the first of `ops` that reads `to` in the
 * order of a pass, or behind the last of those that make `from`, and is skipped where the degree over its
 * axes is 1. In a backward pass ops run in descending order. */
struct LayerPass;
typedef struct Collective Collective;
struct Collective {
    uint8_t passes; /* IN_FORWARD | ...; IN_RECOMPUTE: where its ops are; beside that, IN_DGRAD: where not */
    bool behind;    /* the ops make `from`; else they read `to` */
    uint32_t ops;   /* of the layer, a bit each: OPS(i) */
    CollKind kind;
    AxisSet over;
    int from, to; /* tensors of the layer, or of the unit */
    /* What each rank has of it: [rows, width]; of ALL_TO_ALL all of its pieces, of a sum what it gets. */
    Extent rows;
    Dim width;
    Element element;
    Need when;
    bool trains;   /* in training alone */
    bool overlaps; /* no op of the same pass reads `to` */
    bool brief;    /* so few numbers that no work is kept back to hide them */
    bool along;    /* starts and ends with the row before it */
    bool chunked;  /* once for each chunk of logits, between the two slices of its op */
    bool zigzag;   /* over tokens of all ranks of cp, of which each has its CP chunks; else ranks in order */
    const char *what; /* behind its name in listings; NULL: the stream */
    /* Before it starts: what is sent is put where it is sent from (`packed`, another tensor of the layer); a
     * gather without copies `from` into `to`. When it is there, the other way round. */
    void (*pack)(const struct LayerPass *w, const Collective *c);
    void (*unpack)(const struct LayerPass *w, const Collective *c);
    int packed;
    const struct Product *adapted; /* of a sum of partial sums: whose adapters' go along; NULL: its op's */
};
#define OPS(i) (1u << (i))
#define BEFORE(reads) .ops = (reads)
#define BEHIND(makes) .behind = true, .ops = (makes)
/* A row but for what most have not: passes, where, kind, axes, from, to, and what a rank has of it. */
#define COLLECTIVE(in, where, how, axes, source, target, extent, dim, type)                           \
    .passes = (in), where, .kind = COLL_##how, .over = MESH_##axes, .from = (source), .to = (target), \
    .rows = EXTENT_##extent, .width = DIM_##dim, .element = ELEMENT_##type

/* Around layers whose matrices ranks of tp share (Korthikanti et al., "Reducing activation recomputation in
 * large transformer models", 2022): between them a rank has some tokens of the stream. A column-parallel
 * product reads the input of all tokens, and its dgrad makes partial sums; a row-parallel one is the other
 * way round. */
#define ALL_GATHER_X(reads)                                                                                  \
    COLLECTIVE(IN_FORWARD | IN_RECOMPUTE | IN_WGRAD, BEFORE(reads), ALL_GATHER, TENSOR, UNIT_X, FULL_X, OWN, \
               HIDDEN, COMPUTE)
#define REDUCE_SCATTER_DX(makes) \
    COLLECTIVE(IN_DGRAD, BEHIND(makes), REDUCE_SCATTER, TENSOR, PARTIALS, UNIT_DX, OWN, HIDDEN, FP32)
#define REDUCE_SCATTER_Y(makes)                                                                         \
    COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(makes), REDUCE_SCATTER, TENSOR, PARTIALS, UNIT_Y, OWN, \
               HIDDEN, FP32)
#define ALL_GATHER_DY(reads) \
    COLLECTIVE(IN_DGRAD | IN_WGRAD, BEFORE(reads), ALL_GATHER, TENSOR, UNIT_DY, FULL_DY, OWN, HIDDEN, COMPUTE)

struct Pass;

/* What ranks exchange that share a unit's matrices; all NULL where none do. */
typedef struct Shared {
    void *whole;  /* [T, h] c: the layer's input, of all tokens */
    void *dwhole; /* [T, h] c: the gradient of its result, of all tokens */
    /* [T, h]: this rank's partial sums: of a result, or of an input's gradient */
    float *partials;
    float *inner;        /* [T, n r]: and of what adapters make that do a product's: x A^T, or its gradient */
    LossRecord *records; /* of the head: [splits, loss_rows] of a chunk */
} Shared;

/* What an op works on. Where ranks share the unit's matrices, `own` is what has a row for each token that is
 * this rank's of the stream; else these are all tokens, x is own_x, and so on. */
typedef struct LayerPass {
    const struct Pass *pass;
    int unit, slice;      /* slice: of UnitPass */
    void *const *tensors; /* of the layer, in the order of its rows */
    const Shared *shared;
    const AdapterRoom *adapters;
    void *inner;       /* [own, r] c: x A^T of the adapter whose B is joint, for the gradient of that */
    const void *own_x; /* [own, h] c: the same as x */
    const void *x;     /* [T, h] c: the normed state that the layer is applied to; NULL in the embedding */
    /* [T, h] c: forward: what the layer makes of it; fp32 partial sums where it is a sum over ranks */
    void *y;
    const void *dy;     /* [T, h] c: backward: gradient with respect to y */
    const void *own_dy; /* [own, h] c: the same */
    void *dx; /* [T, h] c: backward: where the gradient with respect to x goes; fp32 partial sums as for y */
    /* Of layers that stand alone, whose dx is the gradient of the unit's input: that, [own, h] c; and where x
     * is the end of a stream that began in the unit, where the gradient of this goes. */
    const void *input;
    void *dstream;
} LayerPass;

/* FLOPs of a token. */
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
    /* Of what its forward pass makes. A layer's last op makes its result: there the unit decides. */
    Lifetime makes;
    void (*forward)(const LayerPass *w);
    void (*backward)(const LayerPass *w, Grads grads);
    const Product *product; /* its product with a matrix; NULL: none */
    bool fused;             /* the forward pass makes the product's gradients too */
    bool partial;           /* what it makes is a term of the layer's result: recomputed with that alone */
    bool trains;            /* it is run in training alone */
    /* FLOPs beside the product's, in this unit, of a token of a sequence of `context`, in the mean; NULL:
     * none worth counting. */
    Cost (*more)(const ModelConfig *c, int unit, int64_t context);
    /* What the mathematics needs of that, where more is done; NULL: all. */
    Cost (*needed)(const ModelConfig *c, int unit, int64_t context);
} LayerOp;

/* Where ranks share experts out, and ops need those rows of all ranks that go to some of them
 * (COLL_DISPATCH): rows visit the ranks of their experts. At home they lie sorted by expert, so that those
 * for one rank are one run; away those of one rank lie behind those of another, and are worked on by
 * themselves: so each sum is taken as the rank whose rows they are would take it alone.
 *
 *     home   leave       ROWS --out-->  away   work, rank after rank  --back-->  home   arrive
 *
 * Where tokens have exact chunks, rows are sorted exact chunk by exact chunk, and those of one go out and
 * back before the next. These ops run in one go, in dgrad and wgrad at once, in as many rounds as what has
 * come needs room. They make again what the forward pass made away, whatever the policy. */
typedef enum DispatchIf {
    DISPATCH_ALWAYS,
    DISPATCH_WHOLE, /* no sum over an expert's width is one that ranks may share */
    DISPATCH_SPLITS /* such sums are, split by split: so many of the tensors, one behind the other */
} DispatchIf;
typedef struct DispatchTensor {
    int local, remote; /* tensors of the layer, by number: [choices, width], and [worked, width] */
    Dim width;
    Element element;
    DispatchIf when;
} DispatchTensor;
enum { DISPATCH_TENSORS = 3 }; /* at most */

/* The rows of an exact chunk of one rank's tokens away, from `first` on. */
typedef struct RemoteRows {
    int rank, exact_chunk;
    int64_t first, count;
} RemoteRows;

typedef struct ExpertPass {
    DispatchTensor out[DISPATCH_TENSORS], back[DISPATCH_TENSORS];
    int out_count, back_count;
    void (*permute)(const LayerPass *w);
    void (*experts)(const LayerPass *w, const RemoteRows *v);
    void (*unpermute)(const LayerPass *w);
} ExpertPass;
typedef enum DispatchPass { DISPATCH_FORWARD, DISPATCH_BACKWARD, DISPATCH_PASSES } DispatchPass;

typedef struct ExpertDispatch {
    /* Tensors of the layer: runs of rows by expert, of this rank [exact chunks, E + 1], of all that share
     * experts out, and of those that visit here, from each rank's first on [exact chunks, ranks, own experts
     * + 1] */
    int runs, all_runs, own_runs;
    ExpertPass way[DISPATCH_PASSES];
} ExpertDispatch;

typedef struct Layer {
    const char *name;
    const ParamRow *params;
    const TensorRow *tensors;
    const LayerOp *ops;
    const Collective *collectives;
    int param_count, tensor_count, op_count, collective_count;
    Dim cached; /* elements of the compute dtype that generation keeps of each token; DIM_NONE: nothing */
    /* fp32 elements that generation carries from token to token, however many there were; NULL: none. */
    int64_t (*carried)(const ModelConfig *c);
    const ExpertDispatch *dispatch; /* of its ops that are dispatched; NULL: it has none */
} Layer;

/* Of a Layer: a table of such rows, all of it. */
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
extern const Layer layer_head;           /* the state -> losses, or logits */
extern const Layer layer_heads;          /* the same, with MTP heads */
extern const Layer layer_mtp;            /* the state, next tokens' ids -> y: begins an MTP module's stream */
extern const Layer layer_mtp_head;       /* the state, and the end of that stream -> losses of both */

/* The passes of a product, on T tokens; what are partial sums over ranks is fp32 (device.h: KSplit). */
/* The parameter that begins its matrix, and its bias; NULL: it has none. */
const Param *product_matrix(const LayerPass *w, const Product *p);
const Param *product_bias(const LayerPass *w, const Product *p);
void product_forward(const LayerPass *w, const Product *p, const void *x /* [T, in] c */,
                     void *y /* [T, out] c */);
void product_input(const LayerPass *w, const Product *p, const void *dy /* [T, out] c */,
                   void *dx /* [T, in] c */);
void product_weight(const LayerPass *w, const Product *p, const void *dy /* [T, out] c */,
                    const void *x /* [T, in] c */);
/* In place of that, and with dgrad, where the matrix is joint (params.h): of own tokens. */
void product_joint(const LayerPass *w, const Product *p, const void *dy, const void *x);
/* Adapters of its matrices in a unit. */
int product_adapters(const struct Model *m, int unit, const Product *p);
/* What a sum over ranks comes to: y = terms, rounded, + bias + adapters, which have terms of their own. */
void product_summed(const LayerPass *w, const Product *p, const float *partials /* [own, out] */,
                    void *y /* [own, out] c */);
/* The same of dx, which is rounded: what adapters add to it, and gradients of their joint sides. */
void product_input_summed(const LayerPass *w, const Product *p, void *dx /* [own, in] c */);

/* Adapters alone, of products that a layer makes in a way of its own where ranks may share matrices. */
/* Forward, of a matrix that is cut by columns: x A^T, or terms of it; what the whole of that adds to y, where
 * it is here, and where it has come from several ranks. */
void product_adapters_inner(const LayerPass *w, const Product *p, const void *x /* [T, in] c */);
void product_adapters_output(const LayerPass *w, const Product *p, void *y /* [T, out] c */);
void product_adapters_summed(const LayerPass *w, const Product *p, void *y /* [own, out] c */);
/* On the way back, of matrices that ranks may share: to dx, or terms of what product_input_summed adds; and
 * of what makes latents, of so many tokens. */
void product_adapters_input(const LayerPass *w, const Product *p, const void *dy, void *dx);
void product_whole_input(const LayerPass *w, const Product *p, int64_t tokens,
                         const void *dy /* [tokens, out] c */, void *dx /* [tokens, in] c */);
/* Of heads that are made of latents, from sums of terms [T, r]: to the latents' gradient, and that of A. */
void product_latents_summed(const LayerPass *w, const Product *p, const float *partials,
                            const void *x /* [T, in] c */, void *dx /* [T, in] c */);

/* Generation: puts keys and values of the new tokens behind those of the block's cache, and attends to it. */
void attend_to_cache(const LayerPass *w, AttentionShape s, const void *qkv /* [T, (H+2G)*D] c */,
                     void *out /* [T, H*D] c */);
/* What a recurrence carries in generation, as many numbers as its layer says; NULL in training. */
float *carried_of(const LayerPass *w);
/* Before its first pass: whatever was carried is another sequence's. */
void begin_sequence(const LayerPass *w, int64_t elements);
/* Training finds where documents begin in the batch; generation has one: NULL. */
const int32_t *documents_of(const LayerPass *w);
/* Keys that a token of `layer` sees, in the mean over a sequence. */
double keys_seen(const ModelConfig *c, int64_t layer, int64_t context);

/* Rows of the embedding, times `scale`, and of learned positions (NULL: none), of all tokens: to y; where
 * ranks share the rows, terms of that. */
void embedding_forward(const LayerPass *w, const int32_t *ids, float scale, const int32_t *positions,
                       void *y);

/* The rows of a norm's parameters: its weight, then its bias, which only LayerNorm has. */
enum { NORM_ROWS = 2 };

/* The family's norm of `tokens` rows of what is this rank's: sum = a + b, y = norm(sum); b and sum may be
 * NULL. */
void norm_forward(const struct Pass *p, int unit, const ParamRow rows[NORM_ROWS], int64_t tokens,
                  const void *a /* [tokens, h] c */, const void *b, void *sum, void *y,
                  float *rstd /* [tokens] */);
/* dx = (add ? dx : 0) + gradient through the norm of x, [own, h] c. */
void norm_backward(const struct Pass *p, int unit, const ParamRow rows[NORM_ROWS], const void *x,
                   const float *rstd, const void *dy, void *dx, bool add);

/* Logits [rows, V] fp32 of `rows` states x [rows, h], for generation. */
void head_logits(const struct Pass *p, int64_t rows, const void *x, void *normed /* [rows, h] */,
                 float *rstd /* [rows] */, float *logits);

#endif
