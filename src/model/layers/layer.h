/* A layer: what a transformer is put together from. One file and one entry of `Layer` each says which
 * parameters it has, which tensors its passes need and for how long, and what its passes do, part by part.
 * Nothing else knows: parameter table, memory plan, recomputation, FLOPs, costs for the stage split,
 * generation read these rows.
 *
 *     rows of parameters --> params.c (names, places in the unit's buffer), initialiser.c, optimizer (decay)
 *     rows of tensors ----> regions.c (slab, keep, scratch)
 *     parts --------------> unit.c (runs them), counts.c (FLOPs)
 *
 * A *unit* (embedding, block, head) is a list of sublayers; see unit.h. A *part* is the shortest piece of a
 * unit between two places where ranks may have to exchange something: model code never communicates, whoever
 * runs the parts does it between them.
 *
 * Invariants
 *  1. A part reads what earlier parts of its unit made, and nothing else of the unit's memory.
 *  2. The backward pass takes the parts in reverse. Each has two halves: HALF_INPUT makes the gradient of the
 *     part's input and adds to those of vectors; HALF_WEIGHT adds to the gradients of matrices, and reads
 *     only tensors that are marked `operand`. Both at once do the same operations, in an order that changes
 *     no bits.
 *  3. What a part makes again equals what it made: recomputation changes no bits. */
#ifndef WEFT_MODEL_LAYERS_LAYER_H
#define WEFT_MODEL_LAYERS_LAYER_H

#include "comm/mesh.h"
#include "device/device.h"
#include "model/params.h"

struct Model;

/* What the forward pass keeps of a block.
 *   none       every operand of the backward pass (the activation of the MLP is made again in passing)
 *   selective  not what is cheap to make again: the normed inputs, and the gate and up products
 *   full       the block's input only: its forward pass is done again */
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;

typedef enum Half { HALF_INPUT = 1, HALF_WEIGHT = 2, HALF_BOTH = 3 } Half;

/* How long what a forward pass makes stays for the backward pass; where it then lives, regions.c says. */
typedef enum Lifetime {
    LIFE_INPUT,  /* always: the unit's input, and what nothing makes again */
    LIFE_SAVED,  /* unless everything is recomputed */
    LIFE_CHEAP,  /* only when nothing is recomputed */
    LIFE_SCRATCH /* not beyond the pass that makes it */
} Lifetime;

typedef enum Extent {
    EXTENT_TOKENS,
    EXTENT_OWN,
    EXTENT_LOGITS,
    EXTENT_LOGIT_LEAVES,
    EXTENT_CHOICES,
    EXTENT_WORKED,
    EXTENT_LEAF_TERMS,
    EXTENT_LEAF_CHOICES,
    EXTENT_LEAF_WORKED,
    EXTENT_KEYS,
    EXTENT_KEY_LEAVES,
    EXTENT_TERMS,
    EXTENT_ROW_SUMS,
    EXTENT_STARTS,
    EXTENT_STRIDE,
    EXTENT_SPANS,
    EXTENT_SEQUENCES,
    EXTENT_RECORDS,
    EXTENT_ADAPTER,
    EXTENT_ONE
} Extent; /* rows: of the microbatch, of what a rank has of the stream, of a chunk of logits, and of that once
             for each leaf here; of each token's experts; of those that experts here work on at a time: all
             these, or what a round of visits holds, which then is scratch; of what experts come to, once for
             each leaf that waits while these are added up (model_leaf_depth); rows that come home, of each
             leaf, and of those that experts here work on; of keys that attention looks at, once for each
             leaf of queries that does (model_key_leaves), of terms of their gradients (model_term_depth);
             two for each token and leaf of all ranks, of its queries and of its keys; states that Mamba-2
             keeps, tokens from one of these to the next, at most (device.h: MAMBA_STRIDE); one for each span
             of tokens, for each sequence of all ranks; records of losses, of four numbers each, one for each
             token and leaf of all ranks; r of adapters; one */
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
    NEED_SWAP,  /* ranks of cp change tokens for heads */
    NEED_KEYS,  /* ranks of cp gather keys and values of all tokens */
    NEED_TERMS, /* gradients of keys are sums of terms: several runs, or leaves, of queries look at them */
    NEED_KEY_LEAVES,   /* several leaves do, here */
    NEED_ROW_SUMS,     /* heads of a token, of which ranks may have some each, are normed as one row */
    NEED_VISITS,       /* ranks share experts out */
    NEED_LEAVES,       /* ranks may share matrices */
    NEED_SHARES,       /* ranks do */
    NEED_NO_LEAVES,    /* no ranks may */
    NEED_VISIT_LEAVES, /* ranks share experts out, and may share matrices */
    NEED_HEADS_APART,  /* leaves here of what heads make of their input: model_has_heads_apart */
    NEED_EXPERT_BIAS,  /* experts have biases */
    NEED_HEAD_SUMS, /* ranks of cp change tokens for heads, and what is summed by heads is wanted by tokens */
    NEED_BALANCE    /* experts have a loss that is least where all have equally many tokens */
} Need;

/* A tensor of a layer's passes: [rows, width]. */
typedef struct TensorRow {
    Extent rows;
    Dim width;
    Element element;
    Lifetime life;
    bool operand; /* the weight half reads it */
    Need need;
} TensorRow;

enum { LAYER_TENSORS = 32 }; /* at most */

/* The two parameters of an adapter (Hu et al., "LoRA", 2021) of the matrix in row `of`:
 *
 *     y += s (x A^T) B^T        A [r, in], B [out, r], s = ModelConfig.adapter_scale
 *
 * What the backward pass needs of it is made again from the product's operands: it keeps nothing, but where
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
    void *joint;  /* [r, h] c: a joint side as products read it, or a module's matrix; none where c is fp32 */
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
    COLL_DISPATCH, /* runs its ops on the ranks of their experts: see Visits */
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
    LOSS_RECORDS,           /* [leaves, loss_rows]: records of a chunk of logits */
    UNIT_TENSORS
};

/* What ranks exchange in the passes of a layer. It stands before the first of `ops` that reads `to` in the
 * order of a pass, or behind the last of those that make `from`, and is skipped where the degree over its
 * axes is 1. In a backward pass ops run in descending order. */
typedef struct Collective {
    uint8_t passes; /* IN_FORWARD | ...; IN_RECOMPUTE: where its ops are; beside that, IN_DGRAD: else */
    bool behind;    /* the ops make `from`; else they read `to` */
    uint32_t ops;   /* of the layer, a bit each: OPS(i) */
    CollKind kind;
    AxisSet over;
    int from, to; /* tensors of the layer, or of the unit */
    /* What a rank has of it: [rows, width] */
    Extent rows;
    Dim width;
    Element element;
    Need when;
    bool trains;      /* in training alone */
    bool overlaps;    /* no op of the same pass reads `to` */
    bool along;       /* starts and ends with the row before it */
    bool chunked;     /* once for each chunk of logits, between the two slices of its op */
    const char *what; /* behind its name in listings; NULL: the stream */
} Collective;
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
#define GATHER_X(reads)                                                                                      \
    COLLECTIVE(IN_FORWARD | IN_RECOMPUTE | IN_WGRAD, BEFORE(reads), ALL_GATHER, TENSOR, UNIT_X, FULL_X, OWN, \
               HIDDEN, COMPUTE)
#define SUM_DX(makes) \
    COLLECTIVE(IN_DGRAD, BEHIND(makes), REDUCE_SCATTER, TENSOR, PARTIALS, UNIT_DX, OWN, HIDDEN, FP32)
#define SUM_Y(makes)                                                                                    \
    COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(makes), REDUCE_SCATTER, TENSOR, PARTIALS, UNIT_Y, OWN, \
               HIDDEN, FP32)
#define GATHER_DY(reads) \
    COLLECTIVE(IN_DGRAD | IN_WGRAD, BEFORE(reads), ALL_GATHER, TENSOR, UNIT_DY, FULL_DY, OWN, HIDDEN, COMPUTE)

struct Pass;

/* What ranks exchange that share a unit's matrices; all NULL where none do. */
typedef struct Shared {
    void *whole;  /* [T, h] c: the layer's input, of all tokens */
    void *dwhole; /* [T, h] c: the gradient of its result, of all tokens */
    float
        *terms; /* [T, h]: this rank's terms of what is a sum over ranks: a result, or an input's gradient */
    float *inner;        /* [T, n r]: and of what adapters make that do a product's: x A^T, or its gradient */
    LossRecord *records; /* of the head: [leaves, loss_rows] of a chunk */
} Shared;

/* What a part works on. Where ranks share the unit's matrices, `own` is what has a row for each token that is
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
    void *y; /* [T, h] c: forward: what the layer makes of it; fp32 terms where it is a sum over ranks */
    const void *dy;     /* [T, h] c: backward: gradient with respect to y */
    const void *own_dy; /* [own, h] c: the same */
    void *dx; /* [T, h] c: backward: where the gradient with respect to x goes; fp32 terms as for y */
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

typedef struct Part {
    const char *name;
    /* Of what its forward pass makes. A layer's last part makes its result: there the unit decides. */
    Lifetime makes;
    void (*forward)(const LayerPass *w);
    void (*backward)(const LayerPass *w, Half half);
    const Product *product; /* its product with a matrix; NULL: none */
    bool fused;             /* the forward pass makes the product's gradients too */
    bool term;              /* what it makes is a term of the layer's result: made again with that alone */
    bool attends;           /* tokens look at others, which may be of other ranks: see Swap, KeysOfAll */
    bool norms_rows;        /* all heads of a token at once, of which ranks may have some each: see RowSums */
    bool by_experts;        /* it takes rows that go to some experts, of all tokens: see Visit */
    bool routes;            /* it says which, of all tokens on each rank that shares the experts' matrices:
                               what is gathered for it the experts' parts read too; see Layer.counts */
    bool beside;            /* of an MLP beside experts: it reads that too, and its terms are theirs */
    bool whole;             /* its matrix is whole on ranks that share the layer, and makes latents of all
                               tokens; the gradient of what it reads it makes of own tokens, in place */
    bool latents;           /* behind it ranks have made these latents: on the way back terms of their
                               gradients are summed, see Layer.latents */
    bool of_latents;        /* what its product reads is that, and not the layer's input */
    bool embeds;            /* it takes rows of the embedding, which ranks may share: terms, of all tokens */
    bool logits;            /* as fused, of all tokens, but for the weight half, which makes logits again */
    bool own;               /* it makes the layer's result of own tokens alone */
    bool trains;            /* it is run in training alone */
    const Product *adapted; /* the product whose adapters' terms cross with what is summed; NULL: its own */
    /* Of a layer that stands alone, tensors of own tokens: what a part reads that is gathered for it, and
     * where the gradient of that goes; what terms come to that it makes, and the gradient of this. */
    int read, read_gradient, made, made_gradient;
    /* Of the gradient of what ranks gathered for it, own tokens of which have been summed: adds what each
     * makes by itself. */
    void (*summed)(const LayerPass *w);
    /* FLOPs beside the product's, in this unit, of a token of a sequence of `context`, in the mean; NULL:
     * none worth counting. */
    Cost (*more)(const ModelConfig *c, int unit, int64_t context);
    /* What the mathematics needs of that, where more is done; NULL: all. */
    Cost (*needed)(const ModelConfig *c, int unit, int64_t context);
} Part;

/* Numbers of each token and head, fp32, that come back from heads to tokens beside a swap. Tensors [H, T] of
 * each run of queries (by heads), or of each span (by tokens). */
typedef struct HeadSums {
    int heads, tokens; /* the latter has what goes out first, rank by rank */
    int through;       /* what has come, rank by rank */
} HeadSums;

/* Where ranks of cp share a microbatch's tokens out, and those of a part look at others (Part.attends):
 * before it, and behind it, each rank hands over tokens for heads (Jacobs et al., "DeepSpeed Ulysses", 2023).
 * Tensors by their numbers among the layer's. */
typedef struct Swap {
    int tokens;  /* [T / ranks, width] */
    int heads;   /* [T, width / ranks] */
    int through; /* as large: where what goes out, or has come, lies rank by rank */
    Dim width;
    const HeadSums *sums; /* that go the other way beside it, in models with sinks; NULL: none */
} Swap;
typedef enum SwapPlace { SWAP_IN, SWAP_OUT, SWAP_OUT_GRADIENT, SWAP_IN_GRADIENT, SWAPS } SwapPlace;

/* The other way: before it each rank gathers keys and values of all tokens, for the queries of its own; on
 * the way back it has terms of their gradients, of which each rank gets the sums of its own tokens (Llama
 * team, "The Llama 3 herd of models", 2024). */
typedef struct KeysOfAll {
    int own;   /* [T, (H+2G)*D] c: of this rank, behind its queries */
    int all;   /* [tokens of all ranks, 2G*D] c */
    int terms; /* [tokens of all ranks, 2G*D] fp32 */
    int apart; /* where leaves share heads of keys, in place of the terms: their sum, [T, 2G*D] fp32 */
} KeysOfAll;

/* Where heads of a token are normed as one row, of which ranks have some each, the part before that makes
 * sums of its leaves, and the part itself, on the way back, others; each rank gathers those of all. Tensors
 * [leaves, T, 2] fp32. */
typedef struct RowSums {
    int squares, products;
} RowSums;

/* Where ranks share experts out, and parts need those rows of all ranks that go to some of them
 * (Part.by_experts): rows visit the ranks of their experts. At home they lie sorted by expert, so that those
 * for one rank are one run; away those of one rank lie behind those of another, and are worked on by
 * themselves: so each sum is taken as the rank whose rows they are would take it alone.
 *
 *     home   leave       ROWS --out-->  away   work, rank after rank  --back-->  home   arrive
 *
 * Where tokens have spans, rows are sorted span by span, and those of one go out and back before the next.
 * These parts run in one go, in both halves of a backward pass at once, in as many rounds as what has come
 * needs room. They make again what the forward pass made away, whatever the policy. */
typedef enum CarriedIf {
    CARRIED_ALWAYS,
    CARRIED_WHOLE, /* no sum over an expert's width is one that ranks may share */
    CARRIED_LEAVES /* such sums are, leaf by leaf: so many of the tensors, one behind the other */
} CarriedIf;
typedef struct Carried {
    int home, away; /* tensors of the layer, by number: [choices, width], and [worked, width] */
    Dim width;
    Element element;
    CarriedIf when;
} Carried;
enum { CARRIED = 3 }; /* at most */

/* The rows of a span of one rank's tokens away, from `first` on. */
typedef struct Visitors {
    int rank, span;
    int64_t first, count;
} Visitors;

typedef struct Visit {
    Carried out[CARRIED], back[CARRIED];
    int out_count, back_count;
    void (*leave)(const LayerPass *w);
    void (*work)(const LayerPass *w, const Visitors *v);
    void (*arrive)(const LayerPass *w);
} Visit;
typedef enum VisitWay { VISIT_FORWARD, VISIT_BACKWARD, VISIT_WAYS } VisitWay;

typedef struct Visits {
    /* Tensors of the layer: runs of rows by expert, of this rank [spans, E + 1], of all that share experts
     * out, and of those that visit here, from each rank's first on [spans, ranks, own experts + 1] */
    int runs, all_runs, own_runs;
    Visit way[VISIT_WAYS];
} Visits;

typedef struct Layer {
    const char *name;
    const ParamRow *params;
    const TensorRow *tensors;
    const Part *parts;
    const Collective *collectives;
    int param_count, tensor_count, part_count, collective_count;
    Dim cached; /* elements of the compute dtype that generation keeps of each token; DIM_NONE: nothing */
    /* fp32 elements that generation carries from token to token, however many there were; NULL: none. */
    int64_t (*carried)(const ModelConfig *c);
    const Swap *swaps; /* [SWAPS] of its part that attends; NULL: it has none */
    const KeysOfAll *keys;
    const RowSums *rows;  /* of its part that norms rows; NULL: it has none */
    const Visits *visits; /* of its parts by experts; NULL: it has none */
    /* Of one with a part that routes: what each sequence has of each expert, [sequences, E] int64. Ranks of
     * cp each count their tokens, and the sums are there on the way back. And gradients of the weights of a
     * token's experts, [T, k] fp32, terms of a sum where ranks share the experts' matrices. */
    int counts, dweights;
    int latents; /* of one with a part that makes latents: the same of these, DIM_LATENT_MADE of a token */
} Layer;

/* Of a Layer: a table of such rows, all of it. */
#define LAYER_ROWS(row, table) .row##s = (table), .row##_count = sizeof(table) / sizeof *(table)

/* What ranks do that share a layer's matrices: those of a part whose matrix is cut by rows gather what it
 * reads, those of one whose matrix is cut by columns make terms of a sum. Experts, and the MLP beside them,
 * read what was gathered for their router, and theirs are terms of one sum. */
static inline bool part_cuts(const Part *p, Cut cut) { return p->product && p->product->weight->cut == cut; }
static inline bool part_reads_all(const Part *p) {
    return p->routes || p->whole || p->logits ||
           (part_cuts(p, CUT_ROWS) && !p->by_experts && !p->beside && !p->of_latents);
}
static inline const Product *part_adapted(const Part *p) { return p->adapted ? p->adapted : p->product; }
static inline bool part_makes_terms(const Part *p) {
    return p->embeds || (part_cuts(p, CUT_COLUMNS) && !p->beside);
}

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
extern const Layer layer_heads;          /* the same, with further heads */
extern const Layer layer_module;         /* the state, next tokens' ids -> y: begins a module's stream */
extern const Layer layer_module_head;    /* the state, and the end of that stream -> losses of both */

/* The passes of a product, on T tokens; what are terms of a sum over ranks is fp32 (device.h: Leaves). */
/* The parameter that begins its matrix, and its bias; NULL: it has none. */
const Param *product_matrix(const LayerPass *w, const Product *p);
const Param *product_bias(const LayerPass *w, const Product *p);
void product_forward(const LayerPass *w, const Product *p, const void *x /* [T, in] c */,
                     void *y /* [T, out] c */);
void product_input(const LayerPass *w, const Product *p, const void *dy /* [T, out] c */,
                   void *dx /* [T, in] c */);
void product_weight(const LayerPass *w, const Product *p, const void *dy /* [T, out] c */,
                    const void *x /* [T, in] c */);
/* In place of that, and with the input half, where the matrix is joint (params.h): of own tokens. */
void product_joint(const LayerPass *w, const Product *p, const void *dy, const void *x);
/* Adapters of its matrices in a unit. */
int product_adapters(const struct Model *m, int unit, const Product *p);
/* What a sum over ranks comes to: y = terms, rounded, + bias + adapters, which have terms of their own. */
void product_summed(const LayerPass *w, const Product *p, const float *terms /* [own, out] */,
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
void product_latents_summed(const LayerPass *w, const Product *p, const float *terms,
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
