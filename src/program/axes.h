/* What each kind of parameter does on each axis of the mesh. Partition, norm, checks, checkpoints, lowering
 * and tests all read this one table.
 *
 *                       pp         dp_replicate  dp_shard, cp  ep        tp         kv
 *     replicated        cut        repl, sum     cut, sum      cut, sum  repl, sum  repl, sum
 *     column, row       cut        repl, sum     cut, sum      cut, sum  cut        cut
 *     keys, values      cut        repl, sum     cut, sum      cut, sum  cut        repl
 *     experts           cut        repl, sum     cut, sum      cut       cut        cut
 *     router, latents   cut        repl, sum     cut, sum      cut, sum  repl       repl
 *     tied embedding    repl, sum  repl, sum     cut, sum      cut, sum  cut        cut
 *
 *     cut   ranks along the axis hold different elements (DTensor Shard)
 *     repl  they hold the same elements, which the first of them counts (DTensor Replicate)
 *     sum   their gradients are partial sums of one sum (DTensor Partial)
 *
 * A parameter that is cut and summed is reduce-scattered; one that is replicated and summed is all-reduced;
 * one that is only cut has its complete gradient where it was computed. On pp a parameter goes with its
 * unit. ep is laid over dp_shard x cp: its column covers that part, and "dp_shard, cp" covers the rest.
 *
 * Experts are cut over ep as whole experts. Their gradients are complete there, since the rows of all ranks
 * of ep are dispatched to them; over tp each expert is cut as an MLP is, or with mesh.etp 1 (ModelConfig:
 * whole_experts) the ranks of tp are some of those of ep. Every rank of tp has a router and
 * all tokens for it, so the router's gradient is complete. The same holds for biases of experts' outputs,
 * for the projections and norms that make latents of keys and queries (model/layers/latent.c), for their
 * adapters, and for those sides of heads' adapters that read latents (model/params.h: param_sees_all).
 *
 * Replicated parameters are norms, and biases that are added after a reduction over tp. With sequence
 * parallelism each rank of tp has only its tokens there (Korthikanti et al. 2022). Their gradients must be
 * summed over tp; forgetting it is a common bug in other trainers. The same holds for the other replicated
 * adapter sides and for an MTP module's matrix (model/params.h: param_is_replicated). Learned positions are
 * cut as the embedding that they go with.
 *
 * Tensor parallelism (Shoeybi et al. 2019) splits a dimension of a matrix in whole grains: heads for
 * queries, keys and values, else single elements. Where a family stores several matrices as one, each of
 * them is split by itself. A vocabulary, and learned positions, may be split into unequal parts of whole
 * splits (KSplit). A model that does not fit is refused, with the name of the dimension.
 *
 * With fewer key and value heads than ranks, several neighbouring ranks hold each head, and each of these
 * has some of the queries that attend to it: these ranks are the axis kv (comm/mesh.h). They sum the
 * gradients of keys and values, over all queries, themselves (layers/heads.h). Each then computes the same,
 * complete weight gradient: these weights are replicated without a sum.
 *
 * After the split, a rank's model is a model of smaller dimensions (axes_local): its names, layer tables and
 * flats are those of any other model. */
#ifndef WEFT_PROGRAM_AXES_H
#define WEFT_PROGRAM_AXES_H

#include "comm/mesh.h"
#include "model/unit.h"

typedef enum ParamKind {
    KIND_REPLICATED,
    KIND_COLUMN_PARALLEL,
    KIND_ROW_PARALLEL,
    KIND_KEYS,
    KIND_EXPERTS,
    KIND_ROUTER, /* and the projections that make latents */
    KIND_TIED,
    KINDS
} ParamKind;
enum { DOES_CUT = 1, DOES_COPY = 2, DOES_SUM = 4 };

ParamKind axes_kind(const ModelConfig *c, const Param *p);
/* The axes on which a kind does any of `does`. */
AxisSet axes_any(ParamKind kind, int does);

/* Replicas of each key and value head on `ranks` ranks of tp; 1 where there are at least as many heads as
 * ranks. */
int axes_copies(const ModelConfig *c, int ranks);
/* Sets the mesh's kv axis to that number. A mesh that does not fit stays as it is, for axes_check to
 * refuse. */
void axes_lay_copies(const ModelConfig *c, Mesh *mesh);

/* A rank's part of a dimension: consecutive rows, or columns. */
typedef struct ShardRange {
    int64_t first, count;
} ShardRange;
/* Whether every dimension that may be split unequally gives all ranks equally much. */
bool axes_splits_evenly(const ModelConfig *c, int ranks, int splits);

/* A rank's TP shard of a parameter: rows and columns of the matrix as the model file has it, whose rows have
 * `stride` elements. A vector is a matrix of one column. Fused matrices have one range each: of rows, or of
 * columns where they lie side by side. The rank stores these rows and columns densely. */
typedef struct LocalShard {
    ShardRange rows[PARAM_MATRICES], columns[PARAM_MATRICES]; /* count 0 after the last */
    int64_t stride;
    /* Of fused expert weights whose rows are cut: the range of experts, each of which has these rows here,
     * and the rows of an unsharded expert. Else one matrix. */
    ShardRange fused;
    int64_t every;
} LocalShard;
int64_t shard_rows(const LocalShard *b);
int64_t shard_columns(const LocalShard *b);
/* experts: the range of a layer's experts that ep leaves to this rank. */
LocalShard axes_local_shard(const ModelConfig *c, const Param *p, TpGroup s, ShardRange experts);

/* Ranks with the same number hold the same elements of a parameter, if they hold any: they differ only along
 * axes on which it is replicated. */
int axes_replica_group(const ModelConfig *c, const Param *p, const Mesh *mesh, int rank);
/* Whether a rank is the first of its replica group, ignoring pp: there the unit's own stage comes before
 * that of a tied copy. */
bool axes_first(const ModelConfig *c, const Param *p, const Mesh *mesh, int rank);

/* The model of one rank of tp. */
ModelConfig axes_local(const ModelConfig *c, TpGroup s);
/* ERR_CONFIG, with the numbers that would fit, when the model cannot be split over so many ranks. */
ErrorCode axes_check(const ModelConfig *c, int ranks, Error *err);

/* What whole experts need (ModelConfig: whole_experts): no biases, whose gradients would be partial sums, and
 * on each rank of tp tokens of whole exact chunks, or of one. */
ErrorCode axes_check_whole_experts(const ModelConfig *c, TpGroup s, CpGroup cp, Error *err);
/* The same for ep: all ranks have equally many experts. */
ErrorCode axes_check_experts(const ModelConfig *c, int ranks, Error *err);

/* The degrees that compute the same bits as `splits`: one rank, and each degree whose ranks get a power of
 * two of the splits. ERR_CONFIG, with the degrees that would fit, for any other degree; also for a model
 * that cannot be cut into so many splits, and for a microbatch whose tokens do not divide by them. */
ErrorCode axes_check_splits(const ModelConfig *c, int ranks, int splits, int64_t tokens, Error *err);
/* The same for cp, whose ranks split the tokens of a microbatch and, with all-to-all, the heads that tp
 * leaves. With all-gather of KV and two or more exact chunks, a rank must have a block of the tree of
 * chunks. */
ErrorCode axes_check_cp(const ModelConfig *c, TpGroup s, CpGroup cp, int64_t tokens, Error *err);
/* Whether the model's sequences can be split over ranks at all. */
bool axes_splits_tokens(const ModelConfig *c);
/* Whether each of so many ranks of cp gets whole key and value heads. */
bool axes_splits_heads(const ModelConfig *c, TpGroup s, int ranks);
/* For all-gather of KV: whether no rank has several of the splits that attend to one key head. The partial
 * sum of each split would have to be sent by itself. */
bool axes_splits_keys(const ModelConfig *c, TpGroup s);
/* With all-gather of KV: whether so many ranks of cp can compute the bits of so many exact chunks; with 0
 * chunks, any number can. */
bool axes_splits_exact_chunks(int ranks, int exact_chunks);
/* Whether passes may be over segments of a microbatch of `tokens`: pipeline.segments. */
ErrorCode axes_check_segments(const ModelConfig *c, TpGroup s, CpGroup cp, int segments, int64_t tokens,
                              Error *err);

#endif
