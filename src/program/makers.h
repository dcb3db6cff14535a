/* Matrices that an optimizer must see whole (optimizer/optimizer.h: MatrixUpdate), where tp leaves each rank
 * a box of them. Of the ranks of tp that hold boxes of a matrix one is its maker: it gets the direction of
 * the whole of it, makes the step, and gives the boxes of that back.
 *
 *     box: gradient, momentum --> direction ==COLLECT==> whole --> step ==RETURN==> box: master weight
 *
 * Weights and states stay boxes: norm, checkpoints and passes do not know of it. Which shard of dp_shard has
 * a matrix's boxes is found as without tp (program/cuts.h), alike on all ranks of tp; the makers of those
 * that a shard has are dealt out over tp by the FLOPs of their steps. So over dp_shard x tp each matrix is
 * worked on once.
 *
 * What crosses lies in two rooms, in which each place along tp has a segment: "own" are this rank's boxes, by
 * their makers, "made" are boxes of the matrices that are made here, by who has them. A segment has first
 * what its ranks count of the boxes, then copies: these are not sent to the maker, but come back. */
#ifndef WEFT_PROGRAM_MAKERS_H
#define WEFT_PROGRAM_MAKERS_H

#include "program/partition.h"

/* Of a partition whose shares are made: fills `makers`. */
void makers_deal(Partition *p, const ParamGroups *g);
/* Whether steps of a unit's matrices are made on ranks of tp, wherever. */
bool makers_have(const Partition *p, int unit);
/* The place along tp that makes the steps of a parameter's matrices, of which this rank has a box; -1: each
 * rank updates what it has. */
int makers_of(const Partition *p, int param);

typedef enum MakerRoom { ROOM_OWN, ROOM_MADE, MAKER_ROOMS } MakerRoom;

/* Elements of a room. */
typedef struct MakerSegment {
    int64_t first, counted, count;
} MakerSegment;
void makers_segments(const Partition *p, int unit, MakerRoom room, MakerSegment out[LEAVES_MAX]);
/* Bytes of a room, whole lines of a pool. */
size_t makers_room(const Partition *p, int unit, MakerRoom room);
/* Bytes that this rank sends to makers, or gives back as one. */
uint64_t makers_traffic(const Partition *p, int unit, MakerRoom from);
/* Bytes that the update of a unit takes: both rooms, then scratch of the largest matrix that is made here. */
size_t makers_scratch(const Partition *p, const ParamGroups *g, int unit);

/* Parameters of a unit with boxes in a room, in the order of the table. */
typedef struct MakerWalk {
    const Partition *p;
    int unit;
    MakerRoom room;
    int param; /* that it is at */
    /* Of its box of each place, of ROOM_OWN of this rank's: elements before it; it is another one's copy. */
    int64_t at[LEAVES_MAX];
    bool copy[LEAVES_MAX];
    MakerSegment next[LEAVES_MAX];
} MakerWalk;
MakerWalk makers_walk(const Partition *p, int unit, MakerRoom room);
bool makers_next(MakerWalk *w);

/* Where the box of a place lies in the k-th matrix of a parameter: one block of it. */
typedef struct MatrixPart {
    int64_t row, col, rows, cols;
} MatrixPart;
MatrixPart makers_part(const Partition *p, const Param *whole, int k, int place);

#endif
