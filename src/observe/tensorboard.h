/* TensorBoard event files, written without a library: a sequence of records
 *
 *     u64 length | u32 masked CRC-32C of length | data | u32 masked CRC-32C of data          (little-endian)
 *
 * whose data is a protocol buffer Event. The first record is file_version "brain.Event:2". Each process
 * writes its own file. A resumed one begins with a SessionLog START, so that TensorBoard drops the steps that
 * are run again. Records are written out at least every few seconds, so a running TensorBoard follows. */
#ifndef WEFT_OBSERVE_TENSORBOARD_H
#define WEFT_OBSERVE_TENSORBOARD_H

#include <stdint.h>

#include "base/error.h"
#include "observe/metrics.h"

typedef struct TensorBoard TensorBoard;

/* Creates a new event file in RUN/tensorboard, alongside older ones. `resumed` is the last completed step, 0
 * for a fresh run. */
ErrorCode tensorboard_open(TensorBoard **tb, const char *run_dir, int64_t resumed, Error *err);
/* Adds the metrics of a record, the struct of its kind. Values that are not finite are left out. Tags are
 * "train/loss", "speed/mfu_percent", "validation/loss", "validation/NAME/loss" (named set), "task/NAME/acc",
 * "probe/layers.3/output_rms", "source/NAME/loss". */
ErrorCode tensorboard_add(TensorBoard *tb, MetricsKind kind, const void *record, Error *err);
/* Removes the event files of a run that starts over. */
ErrorCode tensorboard_discard(const char *run_dir, Error *err);
const char *tensorboard_path(const TensorBoard *tb);
ErrorCode tensorboard_close(TensorBoard *tb, Error *err); /* NULL is fine */

/* CRC-32C as the records carry it. */
uint32_t tensorboard_masked_crc(const void *data, size_t length);

#endif
