/* Muon and its like need whole matrices (optimizer/optimizer.h: MatrixUpdate), but tp shards them. Each
 * matrix has one owner rank among the ranks of tp that hold its shards. The owner gathers the direction of
 * the whole matrix, computes the step, and scatters the step's shards back.
 *
 *     shard: gradient, momentum -> direction =MATRIX_GATHER=> matrix -> step =MATRIX_SCATTER=> shard: weight
 *
 * Weights and states stay sharded, so norm, checkpoints and passes are the same as without owners. The rank
 * of dp_shard that holds a matrix is chosen as without tp (program/cuts.h), so it is the same on all ranks of
 * tp. Its matrices are then assigned to owners over tp by the FLOPs of their steps. Over dp_shard x tp each
 * step is thus computed once.
 *
 * The exchange uses two buffers, each with a segment for every rank of tp:
 *
 *     BUFFER_LOCAL   this rank's shards, grouped by owner rank
 *     BUFFER_OWNED   all shards of the matrices owned here, grouped by source rank
 *
 * Replicas come last in a segment: owners send them back but do not receive them. */
#ifndef WEFT_PROGRAM_OWNERS_H
#define WEFT_PROGRAM_OWNERS_H

#include "program/partition.h"

/* Fills `owners` of a partition whose shards are made. */
void owners_assign(Partition *p, const ParamGroups *g);
/* Whether any matrix of the unit has an owner rank, here or elsewhere. */
bool owners_have(const Partition *p, int unit);
/* The rank in tp that owns the matrices of a parameter of which this rank has a shard; -1: each rank updates
 * its own shard. */
int owner_of_matrices(const Partition *p, int param);

typedef enum OwnerBuffer { BUFFER_LOCAL, BUFFER_OWNED, OWNER_BUFFERS } OwnerBuffer;

/* Elements of a buffer: `counted` of the `count` are not replicas. */
typedef struct OwnerSegment {
    int64_t first, counted, count;
} OwnerSegment;
void owners_segments(const Partition *p, int unit, OwnerBuffer buffer, OwnerSegment out[SPLITS_MAX]);
/* Bytes of a buffer, rounded up to lines of a pool. */
size_t owners_buffer_bytes(const Partition *p, int unit, OwnerBuffer buffer);
/* Bytes that this rank sends from the buffer: to owners, or back as an owner. */
uint64_t owners_traffic(const Partition *p, int unit, OwnerBuffer from);
/* Bytes that the update of a unit takes: both buffers, then scratch for the largest matrix owned here. */
size_t owners_scratch(const Partition *p, const ParamGroups *g, int unit);

/* Iterates over the unit's parameters with shards in a buffer, in the order of the table. */
typedef struct OwnerWalk {
    const Partition *p;
    int unit;
    OwnerBuffer buffer;
    int param; /* the current one */
    /* Of its shard on each rank of tp (in BUFFER_LOCAL: of this rank's): the offset in elements, and whether
     * it is another rank's replica. */
    int64_t at[SPLITS_MAX];
    bool copy[SPLITS_MAX];
    OwnerSegment next[SPLITS_MAX];
} OwnerWalk;
OwnerWalk owners_walk(const Partition *p, int unit, OwnerBuffer buffer);
bool owners_next(OwnerWalk *w);

/* The block that the shard of rank `rank` of tp is in the k-th matrix of a parameter. */
typedef struct MatrixBlock {
    int64_t row, col, rows, cols;
} MatrixBlock;
MatrixBlock owners_block(const Partition *p, const Param *whole, int k, int rank);

#endif
