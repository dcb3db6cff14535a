/* Records of the loss (device.h: LossRecord), on the host. */
#ifndef WEFT_DEVICE_LOSSES_H
#define WEFT_DEVICE_LOSSES_H

#include "device/device.h"

/* What the records of a row's `count` leaves, which lie `step` apart, come to; the target is in split `own`.
 * The largest needs no order, sums are added in the canonical tree. A NaN is never larger, but it is in its
 * split's sum, and so in this one. */
LossRecord loss_record_of_splits(const LossRecord *splits, int64_t step, int count, int64_t own);

#endif
