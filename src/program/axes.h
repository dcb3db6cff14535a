/* What each kind of parameter does on each axis of the mesh: the one table that partition, norm, checks,
 * checkpoints, lowering and tests read.
 *
 *                       pp           dp_replicate   dp_shard, cp   ep         tp           kv
 *     whole             cut          copied, sum    cut, sum       cut, sum   copied, sum  copied, sum
 *     rows, columns     cut          copied, sum    cut, sum       cut, sum   cut          cut
 *     keys, values      cut          copied, sum    cut, sum       cut, sum   cut          copied
 *     experts           cut          copied, sum    cut, sum       cut        cut          cut
 *     router, latents   cut          copied, sum    cut, sum       cut, sum   copied       copied
 *     tied embedding    copied, sum  copied, sum    cut, sum       cut, sum   cut          cut
 *
 *   cut      ranks along the axis hold different elements of it
 *   copied   they hold the same elements, which the first of them counts
 *   sum      the gradients that they make are terms of one sum, and no rank has the others' terms
 *
 * What is cut and summed is reduce-scattered, what is copied and summed is all-reduced, and what is cut alone
 * is complete where it was made. On pp a parameter is with its unit. ep is what it has of dp_shard and cp,
 * and these are what is left. Experts are cut over ep each as a whole, and their gradients complete there,
 * since the rows of all ranks of ep visit them; over tp each is cut as an MLP is. A router is on each rank of
 * tp with all tokens, and so its gradient is complete there; so are those of biases of what experts make,
 * and of what makes latents of keys and of queries, and norms them (model/layers/latent.c), of its adapters,
 * and of those sides of adapters of heads that read latents (model/params.h: param_sees_all). "Whole" are
 * norms, and biases that are added to a sum over tp: each rank of tp has part of the tokens there
 * (Korthikanti et al. 2022), so that their gradients are sums; this is what other trainers have forgotten
 * most often. So are all other joint sides of adapters, and the matrix of an MTP module (model/params.h:
 * param_is_joint). Learned positions are cut as the embedding is that they are beside.
 *
 * Tensor parallelism (Shoeybi et al. 2019) deals out a dimension of a matrix in whole grains: heads for
 * queries, keys and values, single elements else; where a family stores several matrices as one, each of them
 * by itself. A vocabulary, and learned positions, may be dealt out in unequal parts, in whole splits
 * (device.h). What does not fit is refused by name.
 *
 * Key and value heads that are fewer than the ranks are held by several neighbours each, of which each has
 * some of the queries that look at them: these ranks are the axis kv (comm/mesh.h). They sum the gradients of
 * keys and values themselves, over the queries of all (layers/heads.h), so that those of the weights are made
 * alike, and complete, on each: they are copied and no sum.
 *
 * Once dealt out, a rank's model is a model of smaller dimensions (axes_local): names, rows of layers and
 * flats are those of any other. */
#ifndef WEFT_PROGRAM_AXES_H
#define WEFT_PROGRAM_AXES_H

#include "comm/mesh.h"
#include "model/unit.h"

typedef enum ParamKind {
    KIND_WHOLE,
    KIND_COLUMN_PARALLEL,
    KIND_ROW_PARALLEL,
    KIND_KEYS,
    KIND_EXPERTS,
    KIND_ROUTER, /* and what makes latents */
    KIND_TIED,
    KINDS
} ParamKind;
enum { DOES_CUT = 1, DOES_COPY = 2, DOES_SUM = 4 };

ParamKind axes_kind(const ModelConfig *c, const Param *p);
/* The axes on which a kind does all of `does`, and nothing else. */
AxisSet axes_that(ParamKind kind, int does);
/* The axes on which it does any of `does`. */
AxisSet axes_any(ParamKind kind, int does);

/* How many of so many ranks along tp hold the same heads of keys and values: 1 where heads are enough. */
int axes_copies(const ModelConfig *c, int ranks);
/* The ranks of a mesh along tp with that; what does not fit is left alone, to be refused (axes_check). */
void axes_lay_copies(const ModelConfig *c, Mesh *mesh);

/* What one rank has of a dimension; rows, or columns, next to each other. */
typedef struct ShardRange {
    int64_t first, count;
} ShardRange;
ShardRange axes_shard_range(const ModelConfig *c, Dim dim, TpGroup s);
/* Whether all ranks have equally much of what may be dealt out in unequal parts. */
bool axes_splits_evenly(const ModelConfig *c, int ranks, int splits);

/* What tp leaves a rank of a parameter: rows and columns of the matrix that the model file has, whose rows
 * have `stride` elements. A vector is a matrix of one column. Of matrices that are stored as one it has a
 * band each: of rows, or of columns where they lie side by side. What a rank has is a matrix of these rows
 * and columns without what is between them. */
typedef struct LocalShard {
    ShardRange rows[PARAM_MATRICES], columns[PARAM_MATRICES]; /* empty behind the last */
    int64_t stride;
    /* Of a stack of matrices whose rows are cut, these rows of each of some, and how many a whole one has;
     * else one matrix. */
    ShardRange fused;
    int64_t every;
} LocalShard;
int64_t shard_rows(const LocalShard *b);
int64_t shard_columns(const LocalShard *b);
/* experts: those of a layer that ep leaves it. */
LocalShard axes_local_shard(const ModelConfig *c, const Param *p, TpGroup s, ShardRange experts);

/* Ranks of one number hold the same elements of a parameter, if they hold any: they differ on axes only along
 * which it is copied. */
int axes_replica_group(const ModelConfig *c, const Param *p, const Mesh *mesh, int rank);
/* Whether a rank is the first of those, stages apart: a unit's own stage comes before a copy's. */
bool axes_first(const ModelConfig *c, const Param *p, const Mesh *mesh, int rank);

/* The model of a rank along tp. */
ModelConfig axes_local(const ModelConfig *c, TpGroup s);
/* ERR_CONFIG with the numbers that would do, when the model cannot be dealt out to so many ranks. */
ErrorCode axes_check(const ModelConfig *c, int ranks, Error *err);

/* The same of ep: ranks have equally many experts. */
ErrorCode axes_check_experts(const ModelConfig *c, int ranks, Error *err);

/* The degrees that have the bits of `splits`: one rank, and those whose share of them is a power of two. A
 * degree that is none of them is refused, with those that are; so is a model that cannot be cut into so many
 * splits, and a microbatch whose tokens do not divide into them. */
ErrorCode axes_check_splits(const ModelConfig *c, int ranks, int splits, int64_t tokens, Error *err);
/* The same of cp, whose ranks share the tokens of a microbatch out, and, by heads, the heads for attention,
 * of which tp leaves them some. By keys a rank must have a block of the tree of exact chunks, of two or
 * more. */
ErrorCode axes_check_cp(const ModelConfig *c, TpGroup s, CpGroup cp, int64_t tokens, Error *err);
/* Whether the tokens of its sequences can be shared out at all. */
bool axes_splits_tokens(const ModelConfig *c);
/* Whether whole heads of keys and values can be dealt out to so many ranks of cp. */
bool axes_splits_heads(const ModelConfig *c, TpGroup s, int ranks);
/* By keys, whether no rank has several of the splits that look at one head of keys: what each comes to would
 * have to cross by itself. */
bool axes_splits_keys(const ModelConfig *c, TpGroup s);
/* Whether ranks of cp can have the bits of so many exact chunks by keys; 0: any number can. */
bool axes_splits_exact_chunks(int ranks, int exact_chunks);

#endif
