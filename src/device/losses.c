#include "device/losses.h"

#include <math.h>

#include "base/tree.h"

/* Relative to the largest logit of all. */
static double sum_of_leaves(const LossRecord *leaves, int64_t step, int count, float max) {
    if (count == 1) return leaves->sum * exp((double)leaves->max - (double)max);
    int half = tree_half(count);
    return sum_of_leaves(leaves, step, half, max) +
           sum_of_leaves(leaves + half * step, step, count - half, max);
}

LossRecord loss_record_of_leaves(const LossRecord *leaves, int64_t step, int count, int64_t own) {
    LossRecord of = {.max = -HUGE_VALF, .target = leaves[own * step].target};
    for (int i = 0; i < count; i++)
        if (leaves[i * step].max > of.max) of.max = leaves[i * step].max;
    of.sum = sum_of_leaves(leaves, step, count, of.max);
    return of;
}
