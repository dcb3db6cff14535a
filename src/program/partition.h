/* What a rank holds of a model: the units of its pipeline stages; of each parameter of these a box of rows
 * and columns, which tp leaves it (program/axes.h); of each flat that the boxes make up, its shard over
 * dp_shard (and cp). Experts that ep leaves it are a flat of their own, shared out over what is left of
 * dp_shard without ep.
 *
 * Shards are even, unless an optimizer asks that matrices stay whole (optimizer.groups: whole): then the cuts
 * lie between those, each matrix lives on one shard, and who has least takes the largest shard of a flat
 * (program/cuts.h). tp cuts it all the same, and all its boxes are on one shard. A rank's master weights,
 * moments and gradients are its shards, flat after flat and unit after unit ("owned" arrays): with one shard
 * they are the whole units. For inference the vectors of all units come before their matrices, since the two
 * are held in different dtypes.
 *
 * With tied embeddings the gradient of the head is a unit of its own, number `units`, shaped and sharded as
 * the embedding (which has no vectors). Where pipeline ranks part the embedding from the head, the head's
 * rank holds a second copy of the embedding (tied_copy): both add the two gradients in the same order and
 * make the same update, and only the first counts in the norm. */
#ifndef WEFT_PROGRAM_PARTITION_H
#define WEFT_PROGRAM_PARTITION_H

#include "base/text.h"
#include "comm/comm.h"
#include "optimizer/groups.h"
#include "program/axes.h"

/* Pipeline stages: runs of units. */
typedef struct Stages {
    int count;
    int *first; /* [count + 1] first unit of each stage; the last entry is the number of units */
    int *rank;  /* [count] pipeline rank of each */
} Stages;

void stages_single(Stages *s, int units); /* one stage with everything */
void stages_free(Stages *s);
int stages_of_unit(const Stages *s, int unit);

/* Of a flat of a unit that is held here, or whose gradient is made here; all zero of others. */
typedef struct FlatShard {
    AxisSet axes;         /* that share it out: MESH_SHARDS, of experts MESH_EXPERT_SHARDS */
    int shards, shard;    /* their size, and this rank's place */
    CommRange *ranges;    /* [shards] what each shard has */
    int64_t whole;        /* elements of the flat */
    int64_t first, count; /* of this rank's part: parts[shard] */
    size_t start;         /* of it, in the owned arrays; valid for units held */
} FlatShard;

typedef struct Partition {
    const ParamTable *table;  /* of the rank's own model: axes_local of the whole */
    const ModelConfig *whole; /* the model of the mesh */
    Mesh mesh;
    int rank;
    Stages stages;
    int *place;           /* [units + 1] pipeline rank of each; the last is the tied head's */
    bool tied, tied_copy; /* tied: the last unit reads the embedding too (model_embeds_last) */
    int pipe;             /* place in the pipeline */
    int shards, shard, replicas, replica; /* MESH_SHARDS and MESH_REPLICAS: size and own place */
    int tensors, tensor;                  /* MESH_TENSOR: the same */
    int copies, copy;                     /* MESH_KEY_COPIES: the same */
    int experts, expert;                  /* MESH_EXPERTS: the same */
    int splits;                           /* of the sums that these share */
    CpGroup cp;                           /* MESH_CONTEXT: the same, and the exact chunks of tokens */
    FlatShard (*flat_shard)[FLATS];       /* [units + 1]; the last is the tied head's gradient */
    size_t owned;      /* elements of the owned arrays, the tied head's gradient not among them */
    size_t vectors;    /* for inference: of these the first, which are those of vectors; else 0 */
    int64_t *load;     /* [shards] elements that each shard owns of the units held here */
    int64_t *assigned; /* [shards] of these what all ranks of tp have alike: by it shards are given out */
    int *owners; /* [parameters] program/owners.h; NULL where tp cuts no matrix that must be seen whole */
} Partition;

typedef struct PartitionSpec {
    const ModelConfig *model;  /* of the mesh */
    const ParamTable *table;   /* of the rank's own: partition_model */
    const ParamGroups *groups; /* which matrices stay whole; NULL: none must */
    const Mesh *mesh;
    int rank;
    const Stages *stages;
    int splits;       /* of sums that tp shares; 0: as many as its ranks */
    int exact_chunks; /* of tokens, that cp shares out: CpGroup */
    bool keys;        /* the same */
    bool inference;
} PartitionSpec;

/* Copies what it needs of mesh and stages; model and table must outlive it. */
void partition_build(Partition *p, const PartitionSpec *spec);
void partition_free(Partition *p);
/* How tp shares the model out, and this rank's place in that. leaves: as in the spec. */
TpGroup partition_tp_group(const Mesh *mesh, int rank, int splits);
/* How cp shares tokens out. */
CpGroup partition_cp(const Mesh *mesh, int rank, int exact_chunks, bool keys);
/* The model whose passes this rank runs. ERR_CONFIG when the mesh does not fit the model. */
ErrorCode partition_model(const ModelConfig *whole, const Mesh *mesh, int rank, int splits, ModelConfig *own,
                          Error *err);
/* Rows that the gradient of a vector has while passes add to it, one for each of this rank's splits; 1 where
 * it has one, as of parameters that are cut. */
int partition_rows(const Partition *p);
int partition_param_rows(const Partition *p, const Param *param);
/* Whether experts' parameters are summed over a group that is neither that of the others nor one rank. */
bool partition_splits_shards(const Partition *p);
/* Exact chunks of tokens that gradients of a microbatch are made of, each by itself, before they are
 * rounded. */
int partition_exact_chunks(const Partition *p);
/* Gradients of a flat that passes make each by itself: of each exact chunk; of experts, of the exact chunks
 * of each rank of ep, rank after rank. */
int partition_gradients(const Partition *p, Flat flat);

int partition_pipeline_rank(const Partition *p, int unit);
bool partition_runs(const Partition *p, int unit); /* forward and backward of the unit are this rank's */
/* Its parameters are: those that run here, and a tied copy. */
bool partition_holds(const Partition *p, int unit);
/* It makes a gradient of the unit, which may be the tied head's. */
bool partition_makes_gradient(const Partition *p, int unit);
/* Of the ranks that see the same batches, the one that counts them: the first on every axis along which they
 * are not cut. */
bool partition_counts_batches(const Partition *p);
/* The world's rank that has this one's place on every axis but pp. */
int partition_peer(const Partition *p, int unit);

/* The elements of a parameter that this rank owns: of those of its box, row after row, one run, possibly
 * empty. */
typedef struct ParamSegment {
    LocalShard shard;
    int64_t first, count; /* elements of the box */
    size_t at;            /* of the first, in the owned arrays */
} ParamSegment;
ParamSegment partition_segment(const Partition *p, const Param *param);
/* Those of a layer's experts that ep leaves here. */
ShardRange partition_experts(const Partition *p);
/* Whether this rank is the one that counts what it owns of the parameter: the first of those that hold a
 * copy, and not a tied copy. */
bool partition_counts(const Partition *p, const Param *param);
int64_t partition_counted(
    const Partition *p); /* elements that this rank counts; over all ranks: the model's parameters */
/* Whether other ranks hold copies of any parameter: somewhere on the mesh, not only of this rank's. */
bool partition_has_copies(const Partition *p);

/* Where a piece lies in the parameter as model files have it, and as names and seeds number it: a run for
 * each band of columns of each row of a box that is narrower than the matrix, else one for each band of
 * rows. */
typedef struct SegmentRun {
    int64_t element, count; /* elements of the whole parameter */
} SegmentRun;
/* The run that begins `at` elements behind the first of the piece; for (at = 0; at < count; at += run.count)
 * sees all. */
SegmentRun segment_run(const ParamSegment *segment, int64_t at);
int64_t segment_runs(const ParamSegment *segment); /* how many */

/* Elements of a gathered flat (or of the tied head's gradient). */
size_t partition_whole(const Partition *p, int unit, Flat flat);
/* The shard that owns a matrix which stays whole: that of its first element. */
int partition_owner(const Partition *p, const Param *param);
/* The rank of this one's pipeline place that holds the most. */
int partition_fullest(const Partition *p);
/* Who has which matrices that stay whole: a line for each unit, or for several that are alike. Nothing where
 * there are none, or one shard. */
void partition_print_owners(const Partition *p, const ParamGroups *g, Text *out);

#endif
