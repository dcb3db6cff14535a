/* What a rank holds of a model: the units of its pipeline stages; its TP shard of each parameter
 * (program/axes.h: LocalShard); its FSDP shard, over dp_shard and cp, of each flat of these shards. The
 * rank's experts are a flat of their own, sharded over the part of dp_shard and cp that ep does not cover.
 *
 * Shards are even, unless an optimizer needs whole matrices (optimizer.groups: whole). Then cuts lie between
 * these, each matrix lives on one shard, and the least loaded rank takes the largest shard of a flat
 * (program/cuts.h). tp still cuts such a matrix, and all its tp shards are on one shard of dp_shard. A
 * rank's master weights, moments and gradients are its shards, flat after flat and unit after unit ("owned"
 * arrays); with one shard they are the full units. For inference the vectors of all units precede the
 * matrices, since the two have different dtypes.
 *
 * With tied embeddings the gradient of the head is a unit of its own, number `units`, shaped and sharded as
 * the embedding (it has no vectors). Where embedding and head are on different pipeline ranks, the head's
 * rank holds a second copy of the embedding (tied_copy). Both add the two gradients in the same order and
 * make the same update; only the first counts in the norm. */
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

/* A flat of a unit that is held here, or whose gradient is made here; all zero for others. */
typedef struct FlatShard {
    AxisSet axes;         /* that shard it: MESH_SHARDS; of experts MESH_EXPERT_SHARDS */
    int shards, shard;    /* their size, and this rank's index */
    int inside;           /* ranks of the inner level of their collectives (mesh_inside) */
    CommRange *ranges;    /* [shards] */
    int64_t total;        /* elements of the flat */
    int64_t first, count; /* of this rank's shard: ranges[shard] */
    size_t start;         /* offset of it in the owned arrays; valid for units held */
} FlatShard;

typedef struct Partition {
    const ParamTable *table;      /* of the rank's local model: axes_local of the model */
    const ModelConfig *unsharded; /* the unsharded model */
    Mesh mesh;
    int rank;
    Stages stages;
    int *pipe_of;         /* [units + 1] pipeline rank of each unit; the last is the tied head's */
    bool tied, tied_copy; /* tied: the last unit reads the embedding too (model_embeds_last) */
    int pipe;             /* index in the pipeline */
    int shards, shard, replicas, replica; /* MESH_SHARDS and MESH_REPLICAS: size and this rank's index */
    int replicas_inside;                  /* of MESH_REPLICAS (mesh_inside) */
    int tensors, tensor;                  /* MESH_TENSOR: the same */
    int copies, copy;                     /* MESH_KEY_COPIES: the same */
    int experts, expert;                  /* MESH_EXPERTS: the same */
    int sources;                          /* MESH_EXPERT_SOURCES: size */
    int splits;                           /* splits of split-K, over all ranks of tp */
    CpGroup cp;                           /* MESH_CONTEXT: the same, and the exact chunks of tokens */
    int segments;                         /* of a microbatch */
    FlatShard (*flat_shard)[FLATS];       /* [units + 1]; the last is the tied head's gradient */
    size_t owned;                         /* elements of the owned arrays, without the tied head's gradient */
    size_t vectors;    /* for inference: leading elements of these that are vectors; else 0 */
    int64_t *load;     /* [shards] elements that each shard owns of the units held here */
    int64_t *assigned; /* [shards] the part that is equal on all ranks of tp; assigning shards uses only it */
    int *owners;       /* [parameters] program/owners.h; NULL where tp cuts no matrix that must stay whole */
} Partition;

typedef struct PartitionSpec {
    const ModelConfig *model;  /* the unsharded model */
    const ParamTable *table;   /* of the rank's local model: partition_model */
    const ParamGroups *groups; /* which matrices stay whole; NULL: none */
    const Mesh *mesh;
    int rank;
    const Stages *stages;
    int splits;       /* split-K over tp; 0: one a rank */
    int exact_chunks; /* of tokens, over cp: CpGroup */
    int segments;     /* of a microbatch's tokens; 0: 1 */
    bool keys;        /* all-gather of KV: CpGroup */
    bool inference;
} PartitionSpec;

/* Copies mesh and stages; model and table must outlive the partition. */
void partition_build(Partition *p, const PartitionSpec *spec);
void partition_free(Partition *p);
/* This rank's group of tp. splits: as in the spec. */
TpGroup partition_tp_group(const Mesh *mesh, int rank, int splits);
/* This rank's group of cp. */
CpGroup partition_cp(const Mesh *mesh, int rank, int exact_chunks, bool keys);
/* The local model, whose passes this rank runs. ERR_CONFIG when the mesh does not fit the model. */
ErrorCode partition_model(const ModelConfig *whole, const Mesh *mesh, int rank, int splits, ModelConfig *own,
                          Error *err);
/* Rows that passes add the gradient of a vector to: one for each split of this rank; 1 for parameters that
 * are cut. */
int partition_rows(const Partition *p);
int partition_param_rows(const Partition *p, const Param *param);
/* Whether expert gradients are reduced over a different group than other gradients, and that group has more
 * than one rank. */
bool partition_splits_shards(const Partition *p);
/* Exact chunks of a pass's tokens on this rank; 1: not cut. */
int partition_exact_chunks(const Partition *p);

bool partition_runs(const Partition *p, int unit); /* this rank runs the unit's forward and backward */
/* This rank holds the unit's parameters: it runs the unit, or has the tied copy. */
bool partition_holds(const Partition *p, int unit);
/* This rank makes a gradient of the unit, which may be the tied head's. */
bool partition_makes_gradient(const Partition *p, int unit);
/* Whether this rank counts its batches: of all ranks that see the same batches, the first. */
bool partition_counts_batches(const Partition *p);
/* The world rank with this rank's coordinates, except that its pp coordinate is the unit's stage. */
int partition_peer(const Partition *p, int unit);

/* The elements of a parameter that this rank owns: a run, possibly empty, of its local shard in row-major
 * order. */
typedef struct ParamSegment {
    LocalShard shard;
    int64_t first, count; /* elements of the local shard */
    size_t at;            /* offset of the first in the owned arrays */
} ParamSegment;
ParamSegment partition_segment(const Partition *p, const Param *param);
/* The range of a layer's experts that ep leaves to this rank. */
ShardRange partition_experts(const Partition *p);
/* Whether this rank counts what it owns of the parameter: it is the first of the replicas, and has no tied
 * copy. */
bool partition_counts(const Partition *p, const Param *param);
int64_t partition_counted(
    const Partition *p); /* elements that this rank counts; over all ranks: the model's parameters */
/* Whether any parameter has replicas somewhere on the mesh, on this rank or not. */
bool partition_has_copies(const Partition *p);

/* Contiguous runs of a segment's elements, numbered by element index in the unsharded parameter, as in model
 * files and for seeds. A local shard narrower than its matrix has one run for each column range of each row,
 * any other one for each row range. Resharding on resume reads these runs (checkpoint/modelvalues.c). */
typedef struct SegmentRun {
    int64_t element, count; /* elements of the unsharded parameter */
} SegmentRun;
/* The run that begins at element `at` of the segment. for (at = 0; at < count; at += run.count) visits
 * all. */
SegmentRun segment_run(const ParamSegment *segment, int64_t at);
int64_t segment_runs(const ParamSegment *segment); /* number of runs */

/* Elements of a gathered flat (or of the tied head's gradient). */
size_t partition_flat_elements(const Partition *p, int unit, Flat flat);
/* The shard that owns a matrix that stays whole: that of its first element. */
int partition_owner(const Partition *p, const Param *param);
/* The rank with the most elements among those with this rank's pipeline index. */
int partition_fullest(const Partition *p);
/* Prints which shard, and which owner rank of tp, has each matrix that must stay whole: a line for each
 * unit, or for several that are alike. Prints nothing where there are no such matrices, or neither shards
 * nor owners. */
void partition_print_owners(const Partition *p, const ParamGroups *g, Text *out);

#endif
