/* Forward and backward passes of one pipeline unit on one microbatch, for this rank's shard of the model.
 * Nothing here communicates; where a pass must stop for a collective, `unit_collectives` describes it.
 *
 * A unit is put together from layers (layers/layer.h):
 *
 *     embedding  one layer
 *     block      one or two sublayers, x + out(f(in(x))) with f a layer: attention or a recurrence, then MLP
 *                or experts; in and out are norms, and a family may lack either
 *     head       one layer: final norm, head and loss. In training, an MTP module comes before it, with a
 *                residual stream of its own: a layer that begins it, a block, and a layer that ends it
 *
 * Memory
 *   saved(u, m)  activations saved from the forward to the backward pass of unit u on microbatch m, the
 *                unit's input first. The previous unit writes its output there, so no activation is copied.
 *   stash(u, m)  wgrad stash: operands of wgrad when dgrad and wgrad run separately. When they run together
 *                it is shared memory that every unit reuses.
 *   keys(u, m)   with segments: keys and values of all segments of microbatch m
 *   key_sums(u, m)  with segments: partial sums of their gradients
 *   scratch      shared by all units, dead after each action.
 *
 * The backward pass of every linear layer consists of dgrad (dX = dY W) and wgrad (dW += dY^T X). They can
 * run together or separately. Either way, weight gradients are accumulated in the order of the microbatches,
 * so the bits are the same. */
#ifndef WEFT_MODEL_UNIT_H
#define WEFT_MODEL_UNIT_H

#include "device/pool.h"
#include "model/layers/layer.h"
#include "model/params.h"
#include "model/weights.h"

/* This rank in its TP group (program/axes.h).
 *   splits   Number of split-K splits (KSplit) into which all ranks of the group together cut a sum over a
 *            TP-sharded dimension; a multiple of size. It does not change with size, so the bits do not
 *            either. 1: bits need not be independent of the TP degree, and sums take the fastest order.
 *   copies   Number of neighbouring ranks that hold the same KV heads, where there are fewer KV heads than
 *            ranks. */
typedef struct TpGroup {
    int size, rank, splits, copies;
} TpGroup;
#define ALONE ((TpGroup){1, 0, 1, 1})

/* How cp shards the tokens of a microbatch.
 *   rank           This rank's index in the group.
 *   exact_chunks   Number of exact chunks into which all ranks of the group together cut the tokens; a
 *                  multiple of ranks. With exact (fixed-point) sums, the gradient of each exact chunk is
 *                  rounded by itself, so the sum does not depend on which rank has which chunk. 0: sums are
 *                  not exact, and a rank sums over all its tokens at once.
 *
 * For attention, the ranks either exchange tokens for heads (all-to-all, Ulysses), or each rank keeps its own
 * queries and all-gathers the keys and values. Attention is causal, so with the all-gather a rank has two CP
 * chunks (zigzag), one as far from the beginning as the other is from the end: all ranks do the same amount
 * of work. With the all-to-all a rank has one CP chunk.
 *
 *     heads   0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3
 *     keys    0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0 */
typedef struct CpGroup {
    int ranks, rank, exact_chunks;
    bool keys; /* all-gather of KV; false: all-to-all. Always false with one rank */
} CpGroup;
#define ALL_TOKENS ((CpGroup){1, 0, 0, false})

typedef struct Model {
    ModelConfig config; /* of this rank: heads, MLP width and vocabulary are those of its shard */
    ParamTable table;
    Dtype compute;
    Recompute recompute;
    TpGroup tp;
    int64_t vocabulary, learned; /* rows of the unsharded embedding, and of unsharded learned positions */
    CpGroup cp;
    int64_t tokens; /* T: tokens of a pass on this rank of cp: of a microbatch, or of a segment. Between
                           products, a rank of tp holds T / tp.size of them (sequence parallelism) */
    /* Equal runs of a microbatch's tokens, in passes of their own (Sun et al., "Seq1F1B", 2024). Forward
     * passes go up, and a segment attends to those before it; backward passes go down. 0: as 1. */
    int segments;
    int64_t dispatch_rows; /* routed rows that the buffers of a dispatch chunk hold; 0: no dispatch */
    int64_t loss_rows;     /* tokens whose logits exist at a time */
    int64_t positions;     /* rows of a RoPE table: tokens of a sequence */
    int64_t context;       /* longest sequence that the RoPE tables serve (rotation.h); 0: positions */
    float *cos_sin;        /* [model_rotations, positions, R] tensor memory; R = model_rotary_dim */
} Model;

/* A microbatch in tensor memory. */
typedef struct Microbatch {
    int32_t *ids, *targets, *positions; /* [T] each */
    int32_t *first_key;                 /* [T * cp.ranks]: tokens of all ranks of cp */
} Microbatch;

/* KV cache of one sequence, for generation; tensor memory. A recurrent layer keeps its state here instead,
 * whose size does not grow, and clears it where a sequence begins. */
typedef struct KeyValueCache {
    char *base;        /* caches of the blocks, one after the other */
    size_t unit_bytes; /* of one block's cache */
    int64_t positions; /* capacity in tokens */
    int64_t start;     /* position of the pass's first token */
} KeyValueCache;

/* Everything a unit's pass needs besides its activations. */
typedef struct Pass {
    const Model *model;
    Device *device;
    const Weights *weights;
    Gradients gradients; /* training only */
    Microbatch batch;
    int segment;         /* of the microbatch, whose tokens these are */
    float *losses;       /* [T] out, by the head: loss of each token, 0 where ignored */
    float *z_losses;     /* [T] out: z-loss of each token; NULL: not wanted */
    float z_loss;        /* its coefficient; 0: none */
    int64_t *routed;     /* [blocks, E] tokens routed to each expert are added here; NULL: not wanted */
    LossSum *balance;    /* the balance loss is added here */
    LossRecord *records; /* out, by the head: [splits, rows] for each chunk in turn; NULL: not wanted */
    /* Training only: targets [T] and losses [T] of each MTP head, and the factor of its gradient, [1] tensor
     * memory. */
    const int32_t *mtp_targets[MTP_DEPTH_MAX];
    float *mtp_losses[MTP_DEPTH_MAX];
    const float *mtp_inverse_token_count;
    const int32_t *next_ids; /* [T] with an MTP module: the token after each, where there is one */
    bool training;           /* a backward pass follows */
    bool defer_head;         /* the head's wgrad does not run with its forward pass */
    bool first; /* gradients of matrices are overwritten, not accumulated (the embedding's always are) */
    const float *inverse_token_count; /* [1] tensor memory: 1 / target tokens of the step; training only */
    const KeyValueCache *cache;       /* generation only: append to the cache, then attend to it */
} Pass;

/* Fills m->table, which model_free releases; picks loss_rows when it is 0. */
ErrorCode model_build(Model *m, const ModelConfig *c, Dtype compute, Recompute recompute, int64_t tokens,
                      int64_t loss_rows, Error *err);
/* Makes m the model of one rank of a TP group; `whole` is the unsharded configuration. */
void model_set_tp(Model *m, TpGroup tp, const ModelConfig *whole);
/* Makes m the model of one rank of a CP group. */
void model_set_cp(Model *m, CpGroup cp);
/* The same for a model whose passes are over segments; m->tokens are those of one. */
void model_set_segments(Model *m, int segments, CpGroup cp);
/* Expert parallelism: sizes the dispatch buffers for chunks of `capacity` times the (token, expert)
 * assignments of one local exact chunk. capacity is at least 1, since one rank may send that many at most.
 * Call after model_set_cp. No-op where all experts are local (ModelConfig.expert_ranks). */
void model_set_ep(Model *m, double capacity);
void model_free(Model *m);
/* Rows of logits per chunk; asked 0: a default. Pass the unsharded configuration: the vocabulary of all ranks
 * counts, since the order of sums depends on the chunks. */
int64_t model_loss_rows(const ModelConfig *c, int64_t tokens, int64_t asked);

/* Tokens of this rank's sequence-parallel shard; the first is tp.rank times this. */
static inline int64_t model_local_tokens(const Model *m) { return m->tokens / m->tp.size; }
static inline int model_segments(const Model *m) { return m->segments > 1 ? m->segments : 1; }
/* Tokens of a microbatch: of all ranks of cp and all segments. With segments there is one rank of cp. */
static inline int64_t model_all_tokens(const Model *m) { return m->tokens * m->cp.ranks * model_segments(m); }
/* Number of CP chunks on this rank, tokens in each, and where the i-th begins among the tokens of all ranks.
 * They lie one after the other in local memory. */
static inline int model_cp_chunks(const Model *m) { return m->cp.keys ? 2 : 1; }
static inline int64_t model_cp_chunk(const Model *m) { return m->tokens / model_cp_chunks(m); }
static inline int64_t model_cp_chunk_first(const Model *m, int rank, int i) {
    return (i == 0 ? rank : 2 * m->cp.ranks - 1 - rank) * model_cp_chunk(m);
}
/* Index among the tokens of all ranks of the i-th token of cp rank `rank`. */
static inline int64_t model_token(const Model *m, int rank, int64_t i) {
    int64_t each = model_cp_chunk(m);
    return model_cp_chunk_first(m, rank, (int)(i / each)) + i % each;
}
/* Loss records of this rank's tokens. */
static inline int64_t model_records(const Model *m) { return m->tokens * m->tp.splits; }
static inline bool model_cp_all_to_all(const Model *m) { return m->cp.ranks > 1 && !m->cp.keys; }
/* Tokens of one sequence, and number of sequences, over all ranks of cp. The tokens of a sequence are in
 * order. */
static inline int64_t model_sequence(const Model *m) {
    int64_t all = model_all_tokens(m);
    return m->positions > 0 && m->positions < all ? m->positions : all;
}
static inline int64_t model_sequences(const Model *m) {
    return (model_all_tokens(m) + model_sequence(m) - 1) / model_sequence(m);
}
/* Number of counters that hold how often each sequence chose each expert. */
static inline int64_t model_counts(const Model *m) { return model_sequences(m) * m->config.num_experts; }
/* (token, expert) assignments of this rank's tokens. */
static inline int64_t model_assignments(const Model *m) { return m->tokens * m->config.num_experts_per_tok; }
static inline int model_local_splits(const Model *m) { return m->tp.splits / m->tp.size; }
/* Splits of sums over the width of experts, over all ranks and here (ModelConfig.whole_experts). */
static inline int model_expert_splits(const Model *m) { return m->config.whole_experts ? 1 : m->tp.splits; }
static inline int model_local_expert_splits(const Model *m) {
    return m->config.whole_experts ? 1 : model_local_splits(m);
}
/* Whether each rank of tp dispatches the rows of its own tokens. */
static inline bool model_is_folded(const Model *m) { return m->config.whole_experts && m->tp.size > 1; }
/* Routed rows that this rank makes: assignments of its tokens. */
static inline int64_t model_rows(const Model *m) {
    return model_assignments(m) / (model_is_folded(m) ? m->tp.size : 1);
}
/* Number of local splits whose queries share one KV head; 1 where each split has whole KV heads. With
 * several, the gradients of that head's keys and values are sums over these splits, which may lie on
 * several ranks. */
int model_key_splits(const Model *m);
/* Exact chunks of a pass on this rank; and of a local number of tokens, those in one exact chunk. */
static inline int model_exact_chunks(const Model *m) {
    return m->cp.exact_chunks > 0 ? m->cp.exact_chunks / (m->cp.ranks * model_segments(m)) : 1;
}
static inline int64_t model_exact_chunk(const Model *m, int64_t tokens) {
    return tokens / model_exact_chunks(m);
}
/* Routing pieces: runs of tokens whose rows are sorted by themselves. They are exact chunks, or the tokens of
 * single ranks of tp where each dispatches its own and these are fewer. */
static inline int model_route_pieces(const Model *m) {
    int exact_chunks = model_exact_chunks(m);
    return model_is_folded(m) && exact_chunks < m->tp.size ? m->tp.size : exact_chunks;
}
/* Those whose rows a rank of tp makes, the first of them on this rank, and tokens of one. */
static inline int model_local_pieces(const Model *m) {
    return model_route_pieces(m) / (model_is_folded(m) ? m->tp.size : 1);
}
static inline int model_first_piece(const Model *m) {
    return model_is_folded(m) ? m->tp.rank * model_local_pieces(m) : 0;
}
static inline int64_t model_piece(const Model *m) { return m->tokens / model_route_pieces(m); }
/* The index among a tp rank's own pieces of that in an exact chunk; -1: it has none there. */
static inline int model_piece_in(const Model *m, int tp_rank, int exact_chunk) {
    int pieces = model_local_pieces(m), first = model_is_folded(m) ? tp_rank * pieces : 0;
    for (int i = 0; i < pieces; i++)
        if ((first + i) * model_exact_chunks(m) / model_route_pieces(m) == exact_chunk) return i;
    return -1;
}
/* Runs of local tokens that are contiguous among the tokens of all ranks and lie in one exact chunk; and
 * where the i-th begins among the tokens of all ranks. */
static inline int model_runs(const Model *m) {
    return model_exact_chunks(m) > model_cp_chunks(m) ? model_exact_chunks(m) : model_cp_chunks(m);
}
static inline int64_t model_run_first(const Model *m, int i) {
    return model_token(m, m->cp.rank, i * (m->tokens / model_runs(m)));
}
/* Tokens of one split, where a sum over tokens is split. */
static inline int64_t model_token_split(const Model *m) {
    return model_exact_chunk(m, m->tokens) / m->tp.splits;
}
/* Whether products must be slice-invariant: the product of a slice has the bits of the slice of the full
 * product. */
static inline bool model_is_sliced(const Model *m) { return m->tp.splits > 1 || m->cp.exact_chunks > 1; }
/* Address of an element of a tensor in the compute dtype. */
static inline void *model_at(const Model *m, const void *tensor, int64_t elements) {
    return (char *)(uintptr_t)tensor + (size_t)elements * dtype_bytes(m->compute);
}
/* Split-K of a sum over this rank's shard of a TP-sharded dimension; and of a sum of `length` terms over a
 * dimension that is not sharded. */
KSplit model_k_split(const Model *m, Dim dim);
KSplit model_one_split(const Model *m, int64_t length);
/* The i-th split of this rank alone. */
KSplit model_split(const Model *m, Dim dim, int i);
KSplit model_vocabulary_split(const Model *m, int i); /* the last may be shorter */
/* Whether several MTP heads add to the gradient of one state while TP may shard each of them: then the
 * partial sums of each split are kept apart. */
bool model_has_heads_apart(const Model *m);
/* Number of partial sums alive at once while the local splits are added up, not counting the one that
 * becomes their sum where tp.size > 1, since that has a buffer already. */
int model_split_depth(const Model *m);
/* Rows of this rank's shard: of the embedding and logits, and of learned positions. */
EmbedRows model_vocabulary(const Model *m);
EmbedRows model_learned(const Model *m);
VocabSplit model_vocabulary_splits(const Model *m, const LossRecord *records);
/* RoPE tables: their bytes; taking them from a pool; computing them, after the pool is committed. */
size_t model_constants_bytes(const ModelConfig *c, int64_t positions);
void model_layout_constants(Model *m, int64_t positions, Pool *constants);
void model_compute_constants(Model *m, Device *d);
const float *model_angles(const Model *m, int rotation); /* [positions, R] */
const float *model_query_factors(const Model *m);        /* [positions], where some block scales queries */
DeviceNeeds model_device_needs(const Model *m);
/* Shapes of attention. model_attention: outside the CP all-to-all, local tokens and all heads of this rank of
 * tp. model_heads: as attention itself runs; with the all-to-all, tokens of all ranks of cp and this rank's
 * heads. */
AttentionShape model_attention(const Model *m, int64_t layer);
AttentionShape model_heads(const Model *m, int64_t layer);
/* Number of equally long runs of queries that attention is run on, one after the other. Gradients of keys and
 * values are sums over all queries. So that these sums do not depend on the CP degree, a run is an exact
 * chunk. Without exact chunks there is one run, or with CP all-gather one for each CP chunk. Runs are added
 * in the canonical tree, in the order first, last, second, second to last, ..., so each rank has a block of
 * the tree. Where several splits share a KV head, the runs of each split are added up first, then the
 * splits. */
int model_query_runs(const Model *m);
int model_query_run(const Model *m, int i); /* the i-th in that order */
/* Number of partial sums alive at once while the runs are added up. */
int model_partial_depth(const Model *m);
/* Whether gradients of keys and values are sums of several partial sums, here or over ranks. */
bool model_has_partials(const Model *m);
/* With segments, gradients of keys and values are sums over those that attend to them, whose backward passes
 * come first. Partial sums of a microbatch that are alive between its passes: with exact chunks one for each
 * pair of them, first and last, second and second to last, ..., since the tree adds pairs; else one. */
int model_segment_sums(const Model *m);

/* ---- what a unit is made of ---- */

/* Both norms NULL: the layer stands alone, outside a residual stream. If sublayers follow it, it begins their
 * stream; if sublayers precede it, it ends their stream. */
typedef struct Sublayer {
    const ParamRow *in, *out; /* [NORM_ROWS] before and after the layer; NULL: none */
    const Layer *layer;
    bool training; /* runs in training only */
} Sublayer;
static inline bool sublayer_alone(const Sublayer *s) { return !s->in && !s->out; }
enum { UNIT_SUBLAYERS = 4, UNIT_OPS = 28 };

/* Returns the number of sublayers. */
int unit_sublayers(const ModelConfig *c, int unit, Sublayer out[UNIT_SUBLAYERS]);

/* The ops first <= i < end of a unit, in forward order. */
typedef struct OpRange {
    int first, end;
} OpRange;
OpRange unit_ops(const ModelConfig *c, int unit); /* all of them */
const char *unit_op_name(const ModelConfig *c, int unit, int op);
const Product *unit_op_product(const ModelConfig *c, int unit, int op); /* NULL: it has none */
bool unit_op_trains(const ModelConfig *c, int unit, int op); /* Sublayer.training, LayerOp.trains */
/* Whether the policy recomputes it before the backward pass. */
bool unit_op_recomputed(const ModelConfig *c, int unit, int op, Recompute policy);

/* ---- collectives ---- */

/* A collective row of one of a unit's layers. */
typedef struct UnitCollective {
    const Collective *row;
    int sublayer, first; /* first: index in the unit of the layer's first op */
} UnitCollective;
enum { UNIT_COLLECTIVES = 32 }; /* at most: sets of them are 32-bit masks */
/* Returns their number; they are in the order of layers and of their rows. */
int unit_collectives(const ModelConfig *c, int unit, UnitCollective out[UNIT_COLLECTIVES]);
/* Mask of its ops, by index in the unit; and the index of the op before which it runs. */
static inline uint32_t collective_ops(const UnitCollective *c) { return c->row->ops << c->first; }
int collective_cut(const UnitCollective *c);
/* Mask of the ops that run on the ranks of their experts under expert parallelism. */
uint32_t unit_dispatched(const ModelConfig *c, int unit);
/* Whether the model has this collective with this CP group. */
bool collective_applies(const ModelConfig *c, CpGroup cp, const Collective *row);

/* ---- memory ---- */

/* Bytes of a unit for one microbatch, and of memory that all units share. */
size_t unit_saved_bytes(const Model *m, int unit);
size_t unit_stash_bytes(const Model *m, int unit);
size_t unit_keys_bytes(const Model *m, int unit); /* of all segments; 0 without segments */
size_t unit_key_sums_bytes(const Model *m, int unit);
size_t model_stash_bytes(const Model *m); /* dgrad and wgrad run together: the largest unit's */
size_t model_scratch_bytes(const Model *m);
size_t boundary_bytes(const Model *m); /* this rank's shard of one p2p tensor, in the compute dtype */

/* ---- passes ---- */

typedef struct UnitPass {
    const Pass *pass;
    int unit;
    char *saved, *stash, *scratch; /* NULL where the unit has no such memory */
    char *keys, *key_sums;         /* of the microbatch, with segments; key_sums: backward only */
    /* For the op that makes and uses logits: all of it (0), the logits of chunk j (2j + 1), or the loss and
     * gradients from them (2j + 2). Between the two, ranks exchange records. */
    int slice;
    /* For a pass with DGRAD or WGRAD alone: the other of the two runs on the same ops in the same pass, while
     * dx has not changed. If false, wgrad comes much later, when dx has been overwritten. */
    bool together;
    void *out; /* [T, h] forward: the unit's output; the head has none */
    /* [T, h] backward: gradient of the unit's output on entry, of its input on return. The embedding only
     * reads it, the head only writes it. WGRAD alone does not touch it in a block and in the head. */
    void *dx;
} UnitPass;

/* Runs the ops in ascending order. The head writes pass->losses. */
void unit_forward(const UnitPass *u, OpRange ops);
/* Recomputes, in ascending order, what the recompute policy dropped of these ops. Runs before DGRAD. */
void unit_recompute(const UnitPass *u, OpRange ops);
/* Runs the ops in descending order. */
void unit_backward(const UnitPass *u, Grads grads, OpRange ops);

/* ---- what ranks exchange ---- */

/* The pass that a collective belongs to. */
typedef enum PassKind { PASS_FORWARD, PASS_RECOMPUTE, PASS_BACKWARD } PassKind;

/* Buffers of one collective row of a unit; tensor memory. */
typedef struct UnitExchange {
    const Collective *row;
    void *from;    /* ALL_GATHER: local shard, to be copied into `to`; NULL: it is there already */
    void *to;      /* ALL_GATHER, ALL_REDUCE: the full tensor; REDUCE_SCATTER: the partial sums */
    int64_t count; /* elements per rank; for a chunk of logits, those of its records */
    size_t bytes;  /* of an element */
    /* Partial sums of adapters that travel with those of the stream: inner_width per token; 0: none. */
    float *inner;
    int64_t inner_width;
} UnitExchange;
/* chunk: index of the chunk of logits, for rows that run once for each. */
UnitExchange unit_exchange(const UnitPass *u, int row, PassKind pass, Grads grads, int chunk);
/* unit_pack runs before an exchange starts, and packs what is sent. unit_unpack runs when it is complete: it
 * rounds sums to their destination and adds the op's bias and its adapters' results. */
void unit_pack(const UnitPass *u, int row);
void unit_unpack(const UnitPass *u, int row, PassKind pass);
/* Elements per rank (layers/layer.h: Collective), and bytes of one. */
int64_t collective_count(const Model *m, const Collective *row, int chunk);
size_t collective_element(const Model *m, const Collective *row);
/* Elements per token that adapters send along with the partial sums of this row, and the maximum over the
 * unit's rows; 0: none. */
int64_t unit_inner_width(const Model *m, int unit, const UnitCollective *c);
int64_t unit_widest_inner(const Model *m, int unit);
/* Number of chunks of logits. */
int model_chunks(const Model *m);
/* Chunks of a pass over all heads: in training, each MTP head goes through all chunks too. */
int model_head_chunks(const Model *m, bool training);
int64_t model_chunk_rows(const Model *m, int chunk);
int64_t model_chunk_first(const Model *m, int chunk);    /* its first token */
int model_logits_exact_chunk(const Model *m, int chunk); /* a chunk lies in one exact chunk */

/* ---- dispatch and combine ---- */

/* Rows that go to the ranks of their experts and back (layer.h: ExpertDispatch), for the dispatched ops that
 * begin with `op`. Addresses are tensor memory. */
typedef struct DispatchRows {
    char *local, *remote;
    size_t bytes; /* of a row */
    int times;    /* number of tensors, one after the other, at these distances in bytes: */
    size_t local_step, remote_step;
} DispatchRows;
typedef struct DispatchTensors {
    const int32_t *runs; /* [local pieces, E + 1] */
    int32_t *all_runs;   /* [ranks, local pieces, E + 1] */
    int32_t *local_runs; /* [exact chunks, sources, local experts + 1], see ExpertDispatch */
    char *arrived;       /* [dispatch rows, h]; NULL: sources are not merged */
    int32_t *orders;     /* [2, dispatch rows] */
    DispatchRows out[DISPATCH_TENSORS], back[DISPATCH_TENSORS];
    int out_count, back_count;
} DispatchTensors;
DispatchTensors unit_dispatch(const UnitPass *u, int op, DispatchPass way);
/* Bytes that one (token, expert) assignment sends and receives, together. */
size_t unit_dispatch_bytes(const Model *m, int unit, int op, DispatchPass way);
void unit_permute(const UnitPass *u, int op, DispatchPass way);
/* The steps of ExpertPass. */
void unit_experts(const UnitPass *u, int op, DispatchPass way, const RemoteRows *v);
void unit_expert_weights(const UnitPass *u, int op, const RemoteRows *v);
void unit_expert_results(const UnitPass *u, int op, DispatchPass way, const RemoteRows *v);
void unit_unpermute(const UnitPass *u, int op, DispatchPass way);

/* ---- costs ---- */

/* FLOPs of one token in each unit, [L + 2]: matrix products, and causal attention over `context` tokens (half
 * of full attention, less with windows). Norms and activation functions count nothing. FLOPs are counted
 * where they are executed: recomputation in dgrad, and both gradients of the head in its forward pass. */
void model_unit_costs(const ModelConfig *c, Recompute recompute, int64_t context, Cost *units);
/* FLOPs of one token in an op, without recomputation. */
Cost unit_op_cost(const ModelConfig *c, int unit, int op, int64_t context);

#endif
