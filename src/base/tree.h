/* The canonical tree of a sum over 0 .. n-1, which are ranks, or the leaves of a sum that ranks may share
 * (device.h): a block is split at the largest power of two below its size, down to single ones. Where the
 * tree depends on n alone, so do the bits.
 *
 *     n = 6:  ((0 + 1) + (2 + 3)) + (4 + 5)
 *
 * Who has only a run of them can add up those blocks of the tree that lie in it: 0 .. 2 above gives (0 +
 * 1) and 2. Aligned runs of a power of two are one block: so n leaves on n / 2^i ranks, each with 2^i of
 * them, come to the same bits as on one rank, if ranks add what they have in this tree, and then each
 * other's. */
#ifndef WEFT_BASE_TREE_H
#define WEFT_BASE_TREE_H

/* Where a block of n > 1 is split. */
int tree_half(int n);

typedef struct TreeBlock {
    int first, size;
} TreeBlock;
enum { TREE_BLOCKS = 64 }; /* more than any run has: two a level */

/* The largest blocks of the tree over `total` ranks that lie in the run, ascending; returns how many. out:
 * room for TREE_BLOCKS, or NULL. */
int tree_blocks(int total, TreeBlock run, TreeBlock *out);

#endif
