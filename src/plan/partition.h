/* What a rank holds of a model: the units of its pipeline stages, and of each unit its share over dp_shard.
 *
 * Each flat of a unit (model/params.h) is cut into dp_shard equal shares (the last padded), so a gathered
 * flat is [dp_shard * share.count] elements. A rank's master weights, moments and gradients are its shares,
 * flat after flat and unit after unit ("owned" arrays): with one shard they are the whole units.
 *
 * With tied embeddings the gradient of the head is a unit of its own, number `units`, shaped and sharded as
 * the embedding (which has no vectors). Where pipeline ranks part the embedding from the head, the head's
 * rank holds a second copy of the embedding (tied_copy): both add the two gradients in the same order and
 * make the same update, and only the first counts in the norm. */
#ifndef WEFT_PLAN_PARTITION_H
#define WEFT_PLAN_PARTITION_H

#include "comm/mesh.h"
#include "model/params.h"

/* Pipeline stages: runs of units. */
typedef struct Stages {
    int count;
    int *first; /* [count + 1] first unit of each stage; the last entry is the number of units */
    int *rank;  /* [count] pipeline rank of each */
} Stages;

void stages_single(Stages *s, int units); /* one stage with everything */
void stages_free(Stages *s);
int stages_of_unit(const Stages *s, int unit);

/* Of a flat. */
typedef struct Share {
    size_t count; /* elements of one shard, padding included */
    size_t start; /* of this rank's, in the owned arrays; valid for units held */
} Share;

typedef struct Partition {
    const ParamTable *table;
    Mesh mesh;
    int rank;
    Stages stages;
    int *place; /* [units + 1] pipeline rank of each; the last is the tied head's */
    bool tied, tied_copy;
    int pipe;                             /* place in the pipeline */
    int shards, shard, replicas, replica; /* MESH_SHARDS and MESH_REPLICAS: size and own place */
    Share (*share)[FLATS];                /* [units + 1]; the last is the tied head's gradient */
    size_t owned; /* elements of the owned arrays, the tied head's gradient not among them */
} Partition;

/* Copies what it needs of `stages`; the table must outlive it. */
void partition_build(Partition *p, const ParamTable *table, bool tied, const Mesh *mesh, int rank,
                     const Stages *stages);
void partition_free(Partition *p);

int partition_pipeline_rank(const Partition *p, int unit);
bool partition_runs(const Partition *p, int unit); /* forward and backward of the unit are this rank's */
bool partition_holds(const Partition *p,
                     int unit); /* its parameters are: those that run here, and a tied copy */
/* It makes a gradient of the unit, which may be the tied head's. */
bool partition_makes_gradient(const Partition *p, int unit);
/* It is at the first place of the pipeline: of the ranks that see the same batches, the one that counts
 * them. */
bool partition_first_stage(const Partition *p);
/* The world's rank that has this one's place on every axis but pp. */
int partition_peer(const Partition *p, int unit);
/* Whether this rank is the one that counts the elements it owns of `unit`: not a replica, not a tied copy. */
bool partition_counts(const Partition *p, int unit);

/* The elements of a parameter that this rank owns: one run, possibly empty. */
typedef struct Piece {
    int64_t first, count; /* elements of the parameter */
    size_t at;            /* of the first, in the owned arrays */
} Piece;
Piece partition_piece(const Partition *p, const Param *param);
int64_t partition_counted(
    const Partition *p); /* elements that this rank counts; over all ranks: the model's parameters */

/* Elements of a gathered flat (or of the tied head's gradient), padding included. */
size_t partition_whole(const Partition *p, int unit, Flat flat);

#endif
