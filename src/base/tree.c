/* The canonical tree: arithmetic only.
 *
 *     six leaves     0 1 2 3 4 5         the left half is the largest power of two below the size
 *                   |4      |2  |
 *                   |2  |2  |1|1|
 *                   |1|1|1|1|
 *
 * A range of leaves is not always one block: the leaves 1 to 5 are the blocks 1, 2-3 and 4-5, in this order.
 * A rank that holds this range can compute the sums of these three blocks alone. */
#include "base/tree.h"

#include <stddef.h>

/* 1 for a single leaf, which is never split. */
int tree_half(int n) {
    int half = 1;
    while (2 * half < n) half *= 2;
    return half;
}

/* The largest blocks of the tree that lie within the range, from left to right: blocks outside are skipped,
 * blocks within are taken, blocks across its ends are split. `out` NULL only counts them. */
static int add_blocks(TreeBlock block, TreeBlock run, TreeBlock *out, int count) {
    int end = block.first + block.size, run_end = run.first + run.size;
    if (end <= run.first || block.first >= run_end) return count;
    if (block.first >= run.first && end <= run_end) {
        if (out) out[count] = block;
        return count + 1;
    }
    int half = tree_half(block.size);
    count = add_blocks((TreeBlock){block.first, half}, run, out, count);
    return add_blocks((TreeBlock){block.first + half, block.size - half}, run, out, count);
}

/* At each level at most two blocks are split, those across the ends of the range, so TREE_BLOCKS are
 * enough. */
int tree_blocks(int total, TreeBlock run, TreeBlock *out) {
    return add_blocks((TreeBlock){0, total}, run, out, 0);
}

int tree_waiting(int i) { return __builtin_popcount((unsigned)i); }

int tree_carries(int i) { return __builtin_ctz(~(unsigned)i); }

int tree_block_carries(TreeBlock block) {
    return tree_carries(block.first + block.size - 1) - tree_carries(block.size - 1);
}
