/* Records of the loss (LossRecord), on the host. */
#ifndef WEFT_DEVICE_LOSSES_H
#define WEFT_DEVICE_LOSSES_H

#include "device/shapes.h"

/* Combines the records of a row's `count` splits, which lie `step` apart; the target is in split `own`. The
 * maximum needs no order; sums are added in the canonical tree. A NaN never becomes the maximum, but it is in
 * its split's sum, and so in the result. */
LossRecord loss_record_of_splits(const LossRecord *splits, int64_t step, int count, int64_t own);

#endif
