/* Matrices that an optimizer must see whole (optimizer/optimizer.h: MatrixUpdate), where tp leaves each rank
 * a box of them. Of the ranks of tp that hold boxes of a matrix one is its owner: it gets the direction of
 * the whole of it, makes the step, and gives the boxes of that back.
 *
 *     box: gradient, momentum --> direction ==MATRIX_GATHER==> whole --> step ==MATRIX_SCATTER==> box: weight
 *
 * Weights and states stay boxes: norm, checkpoints and passes do not know of it. Which shard of dp_shard has
 * a matrix's boxes is found as without tp (program/cuts.h), alike on all ranks of tp; the owners of those
 * that a shard has are dealt out over tp by the FLOPs of their steps. So over dp_shard x tp each matrix is
 * worked on once.
 *
 * What crosses lies in two buffers, in which each place along tp has a segment: "own" are this rank's boxes,
 * by their owners, "made" are boxes of the matrices that are made here, by who has them. A segment has first
 * what its ranks count of the boxes, then copies: these are not sent to the owner, but come back. */
#ifndef WEFT_PROGRAM_OWNERS_H
#define WEFT_PROGRAM_OWNERS_H

#include "program/partition.h"

/* Of a partition whose shards are made: fills `owners`. */
void owners_deal(Partition *p, const ParamGroups *g);
/* Whether steps of a unit's matrices are made on ranks of tp, wherever. */
bool owners_have(const Partition *p, int unit);
/* The place along tp that makes the steps of a parameter's matrices, of which this rank has a box; -1: each
 * rank updates what it has. */
int owner_of_matrices(const Partition *p, int param);

typedef enum OwnerBuffer { BUFFER_LOCAL, BUFFER_OWNED, OWNER_BUFFERS } OwnerBuffer;

/* Elements of a buffer. */
typedef struct OwnerSegment {
    int64_t first, counted, count;
} OwnerSegment;
void owners_segments(const Partition *p, int unit, OwnerBuffer buffer, OwnerSegment out[SPLITS_MAX]);
/* Bytes of a buffer, whole lines of a pool. */
size_t owners_buffer_bytes(const Partition *p, int unit, OwnerBuffer buffer);
/* Bytes that this rank sends to owners, or gives back as one. */
uint64_t owners_traffic(const Partition *p, int unit, OwnerBuffer from);
/* Bytes that the update of a unit takes: both buffers, then scratch of the largest matrix that is made
 * here. */
size_t owners_scratch(const Partition *p, const ParamGroups *g, int unit);

/* Parameters of a unit with boxes in a buffer, in the order of the table. */
typedef struct OwnerWalk {
    const Partition *p;
    int unit;
    OwnerBuffer buffer;
    int param; /* that it is at */
    /* Of its box of each place, of BUFFER_LOCAL of this rank's: elements before it; it is another one's
     * copy. */
    int64_t at[SPLITS_MAX];
    bool copy[SPLITS_MAX];
    OwnerSegment next[SPLITS_MAX];
} OwnerWalk;
OwnerWalk owners_walk(const Partition *p, int unit, OwnerBuffer buffer);
bool owners_next(OwnerWalk *w);

/* Where the box of a place lies in the k-th matrix of a parameter: one block of it. */
typedef struct MatrixBlock {
    int64_t row, col, rows, cols;
} MatrixBlock;
MatrixBlock owners_block(const Partition *p, const Param *whole, int k, int place);

#endif
