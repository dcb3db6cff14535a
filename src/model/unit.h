/* Units of a model and their passes on one microbatch: single-device mathematics, nothing about parallelism.
 *
 * A unit is put together from layers (layers/layer.h):
 *
 *     embedding  the layer as it is
 *     block      one or two sublayers, x + out(f(in(x))) with f a layer: attention or a recurrence, then MLP
 *                or experts; in and out are norms, either of which a family may do without
 *     head       the layer as it is: final norm, head and loss; in training before it, where there is an MTP
 *                module, a stream of its own: what begins it, a block, and what ends it
 *
 * What lives where
 *   slab(u, m)   what the forward pass leaves for the backward pass of unit u on microbatch m, its input
 *                first. The unit before writes its output there, so no activation is copied.
 *   keep(u, m)   operands of wgrad when dgrad and wgrad run separately; with both together it is shared
 *                memory, reused by every unit.
 *   scratch      shared, dead after each action.
 *
 * The backward pass of every linear layer has two halves: the gradient of its input (dX = dY W) and of its
 * weight (dW += dY^T X). Either or both can be run; the order of additions into a weight gradient is that of
 * the microbatches either way, so the bits are the same. */
#ifndef WEFT_MODEL_UNIT_H
#define WEFT_MODEL_UNIT_H

#include "device/pool.h"
#include "model/layers/layer.h"
#include "model/params.h"
#include "model/weights.h"

/* How tp shares a model out (program/axes.h): its ranks, this one's place among them, and the splits
 * (device.h) that all of them together cut a sum into which they share. These are as many on one rank as on
 * several, so that the bits are; 1: no rank ever shared, and sums are made as is fastest. A multiple of
 * ranks. Copies: ranks, neighbours, that have the same heads of keys and values, of which there are fewer
 * than ranks. */
typedef struct TpGroup {
    int size, rank, splits, copies;
} TpGroup;
#define ALONE ((TpGroup){1, 0, 1, 1})

/* How cp shares the tokens of a microbatch out: its ranks, and this one's place among them; and the exact
 * chunks that all of them together cut these tokens into, a multiple of ranks. Where gradients are summed in
 * fixed point each exact chunk's is rounded by itself, so that the sum does not depend on who has which;
 * where they are not, exact chunks are 0, and what a rank has is summed as one.
 *
 * For attention ranks either change tokens for heads, or each has its own queries and keys of all. Queries
 * look at keys before them, so there a rank has two CP chunks of the tokens, as far from the beginning as
 * from the end: the work of all is the same. By heads it has one.
 *
 *     heads   0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3
 *     keys    0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0 */
typedef struct CpGroup {
    int ranks, place, exact_chunks;
    bool keys; /* by keys, and not by heads; never with one rank */
} CpGroup;
#define ALL_TOKENS ((CpGroup){1, 0, 0, false})

typedef struct Model {
    ModelConfig config; /* of this rank: heads, width of the MLP and vocabulary are what it has of them */
    ParamTable table;
    Dtype compute;
    Recompute recompute;
    TpGroup tp;
    int64_t vocabulary, learned; /* rows of the embedding, and of learned positions, of all ranks together */
    CpGroup cp;
    int64_t tokens; /* T of a microbatch, of cp's ranks this one's; of the stream between products a rank
                           of tp has T / tp.size */
    int64_t dispatch_rows; /* rows of all ranks' choices that a round of visits has room for; 0: none visit */
    int64_t loss_rows;     /* tokens whose logits exist at a time */
    int64_t positions;     /* rows of a table of angles: tokens of a sequence */
    int64_t context;       /* the longest sequence that the angles are for (rotation.h); 0: as positions */
    float *cos_sin;        /* [model_rotations, positions, R] tensor memory; R = model_rotary_dim */
} Model;

/* A microbatch in tensor memory. */
typedef struct Microbatch {
    int32_t *ids, *targets, *positions; /* [T] each */
    int32_t *first_key;                 /* [T] of all ranks of cp */
} Microbatch;

/* What layers keep of the tokens of one sequence so far, for generation; tensor memory. Keys and values of
 * each, or what a recurrence carries, which does not grow: its layer clears it where a sequence begins. */
typedef struct KeyValueCache {
    char *base;        /* of block after block */
    size_t unit_bytes; /* of each */
    int64_t positions; /* room */
    int64_t start;     /* position of the pass's first token */
} KeyValueCache;

/* Everything a unit's pass needs besides its activations. */
typedef struct Pass {
    const Model *model;
    Device *device;
    const Weights *weights;
    Gradients gradients; /* training only */
    Microbatch batch;
    float *losses;       /* [T] of the head: each token's, 0 where ignored */
    float *z_losses;     /* [T] the same of the z-loss; NULL: not wanted */
    float z_loss;        /* its coefficient; 0: none */
    int64_t *routed;     /* [blocks, E] choices of each expert are added here; NULL: nobody asks */
    LossSum *balance;    /* and the balance loss here */
    LossRecord *records; /* of the head, [splits, rows] of each chunk in turn; NULL: not asked for */
    /* Of each MTP head: targets [T], and the same as losses [T]; what its gradient is multiplied with,
     * [1] tensor memory. Training only */
    const int32_t *mtp_targets[MTP_DEPTH_MAX];
    float *mtp_losses[MTP_DEPTH_MAX];
    const float *mtp_inverse_token_count;
    const int32_t *next_ids; /* [T] with an MTP module: the token that follows each, where one does */
    bool training;           /* a backward pass follows */
    bool defer_head;         /* the head's wgrad is not done with its forward pass */
    bool first; /* gradients of matrices are set, not added to (the embedding's always are added to) */
    const float *inverse_token_count; /* [1] tensor memory: 1 / valid targets of the step; training only */
    const KeyValueCache *cache;       /* generation only: attend to the cache, after adding to it */
} Pass;

/* Fills m->table, picks loss_rows when it is 0. */
ErrorCode model_build(Model *m, const ModelConfig *c, Dtype compute, Recompute recompute, int64_t tokens,
                      int64_t loss_rows, Error *err);
/* It is the model of one rank of several: `whole` is that of all. */
void model_set_tp(Model *m, TpGroup tp, const ModelConfig *whole);
/* It has some of a microbatch's tokens. */
void model_set_cp(Model *m, CpGroup cp);
/* Its experts are some of a layer's (ModelConfig.expert_ranks): other ranks' rows visit them, in rounds of as
 * many as `capacity` times the choices of an exact chunk of its own, at least 1: what one rank may send at
 * most. After model_set_cp. No-op else. */
void model_set_ep(Model *m, double capacity);
void model_free(Model *m);
/* What loss_rows 0 becomes: by the vocabulary of all ranks, since chunks are sums. */
int64_t model_loss_rows(const ModelConfig *c, int64_t tokens, int64_t asked);

/* Tokens of the stream that this rank has: from tp.rank times so many on. */
static inline int64_t model_own_tokens(const Model *m) { return m->tokens / m->tp.size; }
/* Of all ranks of cp. */
static inline int64_t model_all_tokens(const Model *m) { return m->tokens * m->cp.ranks; }
/* CP chunks of the tokens of all ranks that this rank has, one behind the other; where the i-th begins. */
static inline int model_cp_chunks(const Model *m) { return m->cp.keys ? 2 : 1; }
static inline int64_t model_cp_chunk(const Model *m) { return m->tokens / model_cp_chunks(m); }
static inline int64_t model_cp_chunk_first(const Model *m, int place, int i) {
    return (i == 0 ? place : 2 * m->cp.ranks - 1 - place) * model_cp_chunk(m);
}
/* Where among the tokens of all ranks the i-th of the rank at that place is. */
static inline int64_t model_token(const Model *m, int place, int64_t i) {
    int64_t each = model_cp_chunk(m);
    return model_cp_chunk_first(m, place, (int)(i / each)) + i % each;
}
/* Records of losses that this rank's tokens have. */
static inline int64_t model_records(const Model *m) { return m->tokens * m->tp.splits; }
/* Whether tokens are changed for heads. */
static inline bool model_cp_all_to_all(const Model *m) { return m->cp.ranks > 1 && !m->cp.keys; }
/* Tokens of a sequence, which are in order, and sequences, those of all ranks of cp. */
static inline int64_t model_sequence(const Model *m) {
    int64_t all = model_all_tokens(m);
    return m->positions > 0 && m->positions < all ? m->positions : all;
}
static inline int64_t model_sequences(const Model *m) {
    return (model_all_tokens(m) + model_sequence(m) - 1) / model_sequence(m);
}
/* Numbers that tell how often each sequence chose each expert. */
static inline int64_t model_counts(const Model *m) { return model_sequences(m) * m->config.num_experts; }
/* Choices of this rank's tokens. */
static inline int64_t model_assignments(const Model *m) { return m->tokens * m->config.num_experts_per_tok; }
/* Splits that this rank has. */
static inline int model_local_splits(const Model *m) { return m->tp.splits / m->tp.size; }
/* Splits here of the queries that look at one head of keys: 1 where a split has whole heads. Where a head has
 * several, the gradients of its keys and values are sums over them, which ranks may share. */
int model_key_splits(const Model *m);
/* Exact chunks that this rank has, and how many of `tokens`, which are all that it has of something, one
 * takes. */
static inline int model_exact_chunks(const Model *m) {
    return m->cp.exact_chunks > 0 ? m->cp.exact_chunks / m->cp.ranks : 1;
}
static inline int64_t model_exact_chunk(const Model *m, int64_t tokens) {
    return tokens / model_exact_chunks(m);
}
/* Runs of its tokens that are next to each other among those of all ranks, and in one exact chunk; where the
 * i-th begins among all. */
static inline int model_runs(const Model *m) {
    return model_exact_chunks(m) > model_cp_chunks(m) ? model_exact_chunks(m) : model_cp_chunks(m);
}
static inline int64_t model_run_first(const Model *m, int i) {
    return model_token(m, m->cp.place, i * (m->tokens / model_runs(m)));
}
/* Tokens in a split. */
static inline int64_t model_token_split(const Model *m) {
    return model_exact_chunk(m, m->tokens) / m->tp.splits;
}
/* Whether what a product makes of a slice must be the slice of what it makes of the whole. */
static inline bool model_is_sliced(const Model *m) { return m->tp.splits > 1 || m->cp.exact_chunks > 1; }
/* So many elements of the compute dtype on. */
static inline void *model_at(const Model *m, const void *tensor, int64_t elements) {
    return (char *)(uintptr_t)tensor + (size_t)elements * dtype_bytes(m->compute);
}
/* Of a sum over a dimension that tp cuts, its own part of it, and over `terms` that no rank shares. */
KSplit model_k_split(const Model *m, Dim dim);
KSplit model_one_split(const Model *m, int64_t length);
/* The i-th split of this rank alone. */
KSplit model_split(const Model *m, Dim dim, int i);
KSplit model_vocabulary_split(const Model *m, int i); /* of which the last may be shorter */
/* Whether several heads add to the gradient of one state, of which ranks may share each: split by split. */
bool model_has_heads_apart(const Model *m);
/* Splits that wait at once while those of this rank are added up, beside what becomes their sum where ranks
 * have a place for that. */
int model_split_depth(const Model *m);
/* Rows of the embedding, and logits, that are here; learned positions. */
EmbedRows model_vocabulary(const Model *m);
EmbedRows model_learned(const Model *m);
VocabSplit model_vocabulary_splits(const Model *m, const LossRecord *records);
/* The tables of angles: bytes, taken from a pool, and computed (after commit). */
size_t model_constants_bytes(const ModelConfig *c, int64_t positions);
void model_layout_constants(Model *m, int64_t positions, Pool *constants);
void model_compute_constants(Model *m, Device *d);
const float *model_angles(const Model *m, int rotation); /* [positions, R] */
const float *model_query_factors(const Model *m);        /* [positions], where some block scales queries */
DeviceNeeds model_device_needs(const Model *m);
/* Of this rank's tokens, with all heads; and as it attends: by heads of all tokens, with its own heads. */
AttentionShape model_attention(const Model *m, int64_t layer);
AttentionShape model_heads(const Model *m, int64_t layer);
/* Runs of equally many queries by which a rank attends: gradients of keys and values are sums over all of
 * them, so these are cut as ranks of cp may share them, into exact chunks. Where there are none, one; by
 * keys, a run is a CP chunk. Exact chunks are added in the canonical tree, the first and the last, the second
 * and the last but one, ...: so each rank has a block of it. Where splits share a head of keys too, each
 * split's come to a sum first, and those are added then. */
int model_query_runs(const Model *m);
int model_query_run(const Model *m, int i); /* the i-th in that order */
/* Terms that are there at once while they are added up. */
int model_partial_depth(const Model *m);
/* Whether gradients of keys and values are sums of terms at all, here or over ranks. */
bool model_has_partials(const Model *m);

/* ---- what a unit is made of ---- */

/* Both norms NULL: the layer stands alone, and is added to nothing. With others behind it, it begins their
 * stream; with others before it, it ends that. */
typedef struct Sublayer {
    const ParamRow *in, *out; /* [NORM_ROWS] before and after the layer; NULL: none */
    const Layer *layer;
    bool training; /* it is run in training alone */
} Sublayer;
static inline bool sublayer_alone(const Sublayer *s) { return !s->in && !s->out; }
enum { UNIT_SUBLAYERS = 4, UNIT_OPS = 28 };

/* Returns how many. */
int unit_sublayers(const ModelConfig *c, int unit, Sublayer out[UNIT_SUBLAYERS]);

/* The ops first <= i < end of a unit, in forward order. */
typedef struct OpRange {
    int first, end;
} OpRange;
OpRange unit_ops(const ModelConfig *c, int unit); /* all of them */
const char *unit_op_name(const ModelConfig *c, int unit, int op);
const Product *unit_op_product(const ModelConfig *c, int unit, int op); /* NULL: it has none */
bool unit_op_trains(const ModelConfig *c, int unit, int op); /* Sublayer.training, LayerOp.trains */
/* Whether the policy makes it again before the backward pass. */
bool unit_op_recomputed(const ModelConfig *c, int unit, int op, Recompute policy);

/* ---- collectives ---- */

/* A row of one of a unit's layers. */
typedef struct UnitCollective {
    const Collective *row;
    int sublayer, first; /* the op of the unit that is the layer's first op */
} UnitCollective;
enum { UNIT_COLLECTIVES = 32 }; /* at most: sets of them have a bit each */
/* Returns how many, in the order of layers and of their rows. */
int unit_collectives(const ModelConfig *c, int unit, UnitCollective out[UNIT_COLLECTIVES]);
/* Its ops, ops of the unit, a bit each; and the op before which it stands. */
static inline uint32_t collective_ops(const UnitCollective *c) { return c->row->ops << c->first; }
int collective_place(const UnitCollective *c);
/* Ops that run where their experts are, if ranks share these out, a bit each. */
uint32_t unit_dispatched(const ModelConfig *c, int unit);
/* Whether a model has it, whose tokens cp deals out so. */
bool collective_applies(const ModelConfig *c, CpGroup cp, const Collective *row);

/* ---- memory ---- */

/* Bytes of a unit for one microbatch, and of what all units share. */
size_t unit_slab_bytes(const Model *m, int unit);
size_t unit_keep_bytes(const Model *m, int unit);
size_t model_keep_bytes(const Model *m); /* where the halves run together: the largest unit's */
size_t model_scratch_bytes(const Model *m);
size_t boundary_bytes(const Model *m); /* one tensor of the stream in the compute dtype, this rank's part */

/* ---- passes ---- */

typedef struct UnitPass {
    const Pass *pass;
    int unit;
    char *slab, *keep, *scratch; /* NULL where the unit has no such memory */
    /* Of the op that makes and uses logits: all of it (0), the logits of chunk j (2j + 1), or what follows
     * from them (2j + 2). Between the two ranks exchange records. */
    int slice;
    /* Of a backward pass one half of which is run: the other half of the same ops runs before or behind it
     * in the same pass, while dx is what it was; else wgrad comes when dx has long gone on. */
    bool together;
    void *out; /* [T, h] forward: the unit's output; the head has none */
    /* [T, h] backward: gradient of the unit's output on entry, of its input on return. The embedding only
     * reads it, the head only writes it; WGRAD alone leaves it alone in a block and in the head. */
    void *dx;
} UnitPass;

/* The ops in ascending order. The head writes pass->losses. */
void unit_forward(const UnitPass *u, OpRange ops);
/* Makes again, in ascending order, what the recompute policy dropped of these ops: before DGRAD. */
void unit_recompute(const UnitPass *u, OpRange ops);
/* The ops in descending order. */
void unit_backward(const UnitPass *u, Grads grads, OpRange ops);

/* ---- what ranks exchange ---- */

/* The pass that a collective belongs to. */
typedef enum PassKind { PASS_FORWARD, PASS_RECOMPUTE, PASS_BACKWARD } PassKind;

/* What a row of a unit moves: tensor memory. */
typedef struct Transfer {
    const Collective *row;
    const void
        *from;     /* ALL_GATHER: this rank's part, which is copied to its place in `to`; NULL: it is there */
    void *to;      /* ALL_GATHER, ALL_REDUCE: all of it; a sum that is scattered: the terms */
    int64_t count; /* elements that a rank has; of a chunk of logits those of its records */
    size_t bytes;  /* of an element */
    /* Of partial sums of the stream: those of adapters go along, so many of a token; 0: none do. */
    float *inner;
    int64_t inner_width;
} Transfer;
/* chunk: of logits, where the row is for each of them. */
Transfer unit_transfer(const UnitPass *u, int row, PassKind pass, Grads grads, int chunk);
/* Before a transfer starts, and when it is there: what it comes from is packed, sums are rounded to where
 * they belong, with what the op and its adapters add. */
void unit_pack(const UnitPass *u, int row);
void unit_unpack(const UnitPass *u, int row, PassKind pass);
/* Elements that each rank has of it (layers/layer.h: Collective), and bytes of one. */
int64_t collective_count(const Model *m, const Collective *row, int chunk);
size_t collective_element(const Model *m, const Collective *row);
/* Numbers of a token that adapters add to partial sums of the stream, and at most in a unit; 0: none. */
int64_t unit_inner_width(const Model *m, int unit, const UnitCollective *c);
int64_t unit_widest_inner(const Model *m, int unit);
/* Chunks of logits, and rows of one. */
int model_chunks(const Model *m);
/* Chunks that heads take in a pass: each head takes all. */
int model_head_chunks(const Model *m, bool training);
int64_t model_chunk_rows(const Model *m, int chunk);
int64_t model_chunk_first(const Model *m, int chunk);    /* its first token */
int model_logits_exact_chunk(const Model *m, int chunk); /* no chunk has tokens of two */

/* ---- visits ---- */

/* Rows of choices and the ranks of their experts (layer.h: ExpertDispatch), of the ops by experts that begin
 * with `op`. Addresses are tensor memory. */
typedef struct DispatchRows {
    char *local, *remote;
    size_t bytes; /* of a row */
    int times;    /* so many tensors, one behind the other; bytes of each: */
    size_t local_step, remote_step;
} DispatchRows;
typedef struct DispatchTensors {
    const int32_t *runs; /* [exact chunks, E + 1] */
    int32_t *all_runs;   /* [ranks, exact chunks, E + 1] */
    int32_t *own_runs;   /* [exact chunks, ranks, own experts + 1] */
    DispatchRows out[DISPATCH_TENSORS], back[DISPATCH_TENSORS];
    int out_count, back_count;
} DispatchTensors;
DispatchTensors unit_dispatch(const UnitPass *u, int op, DispatchPass way);
/* Bytes that a choice sends away, and gets back. */
size_t unit_dispatch_bytes(const Model *m, int unit, int op, DispatchPass way);
void unit_permute(const UnitPass *u, int op, DispatchPass way);
void unit_experts(const UnitPass *u, int op, DispatchPass way, const RemoteRows *v);
void unit_unpermute(const UnitPass *u, int op, DispatchPass way);

/* ---- costs ---- */

/* FLOPs of one token in each unit, [L + 2]: products of the matrices, causal attention over `context` tokens
 * (half of what a full one takes, less where windows end before), nothing for norms and activation functions.
 * As they are done: what is recomputed is in dgrad, and the head makes both its
 * gradients with its forward pass. */
void model_unit_costs(const ModelConfig *c, Recompute recompute, int64_t context, Cost *units);
/* The same of an op, without what is recomputed. */
Cost unit_op_cost(const ModelConfig *c, int unit, int op, int64_t context);

#endif
