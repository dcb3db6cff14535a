/* The canonical tree of a sum over 0 .. n-1, which are ranks, or the partials of a split-K sum (KSplit). A
 * block is split at the largest power of two below its size, down to single elements. If the tree depends on
 * n alone, so do the bits.
 *
 *     n = 6:  ((0 + 1) + (2 + 3)) + (4 + 5)
 *
 * A rank that holds a contiguous range of elements can add up the blocks of the tree that lie in the range: 0
 * .. 2 above gives (0 + 1) and 2. An aligned range of a power of two is one block. So n partials on n / 2^i
 * ranks, 2^i on each, give the same bits as on one rank, if each rank adds its partials in this tree, and the
 * ranks' sums are then added in this tree. */
#ifndef WEFT_BASE_TREE_H
#define WEFT_BASE_TREE_H

/* Where a block of n > 1 is split. */
int tree_half(int n);

typedef struct TreeBlock {
    int first, size;
} TreeBlock;
enum { TREE_BLOCKS = 64 }; /* more than any range has: two per level */

/* The largest blocks of the tree over `total` elements that lie in the range, ascending; returns how many.
 * out: TREE_BLOCKS entries, or NULL. */
int tree_blocks(int total, TreeBlock run, TreeBlock *out);

/* Terms that come one after the other can be added in this tree with few partial sums: a binary counter.
 * `tree_waiting` partial sums wait when term i comes, one for each bit of i that is set, the largest block
 * first. The term completes the last `tree_carries` of them, one for each bit that is set below the lowest
 * clear one: it is added to the last, their sum to the one before, and so on. After a power of two of terms
 * one sum is left. */
int tree_waiting(int i);
int tree_carries(int i);
/* The same where an aligned power of two of terms comes as one sum. */
int tree_block_carries(TreeBlock block);
/* How many parts one sum takes, the term among them, where so many carries are left. The tree of three parts
 * is (0 + 1) + 2: with the term first and the latest partial sum next, two carries in one reading. */
static inline int tree_carry_parts(int carries) { return carries > 1 ? 3 : 2; }

#endif
