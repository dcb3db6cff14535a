/* The canonical tree: arithmetic only. */
#include "base/tree.h"

#include <stddef.h>

int tree_half(int n) {
    int half = 1;
    while (2 * half < n) half *= 2;
    return half;
}

/* The largest blocks of the tree that lie within the run, from left to right: those outside are left out,
 * those within are taken, those across are split. `out` NULL counts them only. */
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

int tree_blocks(int total, TreeBlock run, TreeBlock *out) {
    return add_blocks((TreeBlock){0, total}, run, out, 0);
}
