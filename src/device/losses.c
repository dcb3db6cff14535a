#include "device/losses.h"

#include <math.h>

#include "base/tree.h"

/* Sum of exponentials relative to `max`, the largest logit of all splits. */
static double sum_of_splits(const LossRecord *splits, int64_t step, int count, float max) {
    if (count == 1) return splits->sum * exp((double)splits->max - (double)max);
    int half = tree_half(count);
    return sum_of_splits(splits, step, half, max) +
           sum_of_splits(splits + half * step, step, count - half, max);
}

LossRecord loss_record_of_splits(const LossRecord *splits, int64_t step, int count, int64_t own) {
    LossRecord of = {.max = -HUGE_VALF, .target = splits[own * step].target};
    for (int i = 0; i < count; i++)
        if (splits[i * step].max > of.max) of.max = splits[i * step].max;
    of.sum = sum_of_splits(splits, step, count, of.max);
    return of;
}
