/* Saving beside the training: tensors are copied into memory that was set aside before the first step; a thread writes them.
 * One save is in flight at a time: if the disk is slower than the interval, the next save waits for it.
 *
 * The copy too may run beside the training: weights and moments rest from one update to the next, so the thread can copy them
 * during the forward and backward passes, and only the next update has to wait for it:
 *
 *     checkpoint_writer_begin(w, &save, err);      after an update
 *     ... forward and backward of the next step ...
 *     checkpoint_writer_copied(w);                 before the next update
 */
#ifndef WEFT_CHECKPOINT_ASYNC_H
#define WEFT_CHECKPOINT_ASYNC_H

#include "checkpoint/checkpoint.h"

typedef struct CheckpointWriter CheckpointWriter;

typedef struct SaveReport {
    int64_t step;
    double waited;  /* seconds the caller waited for the save before (back-pressure) */
    double copied;  /* seconds the caller waited for the copy */
    double seconds; /* of writing and committing, in the background */
    uint64_t bytes;
    int removed; /* checkpoints that were retired after it */
} SaveReport;

/* Bytes of staging memory that saves of these lists need; optimizer may be NULL. */
size_t checkpoint_staging_bytes(const TensorList *model, const TensorList *optimizer);

/* Saves go to `dir`; after each one the rest is pruned by `keep`, sparing step in_use. ops NULL: the system's; it must be safe
 * to use from another thread. */
ErrorCode checkpoint_writer_start(CheckpointWriter **writer, const FileOps *ops, const char *dir, CheckpointKeep keep,
                                  int64_t in_use, size_t staging_bytes, Error *err);

/* Waits for the save before and starts the copy. The lists, names and files->data must stay as they are until the writer is
 * idle, tensor memory until checkpoint_writer_copied has returned; the state is copied at once. `fetch` is called from the
 * thread. A failure of the save before is returned here, and then nothing was started. */
ErrorCode checkpoint_writer_begin(CheckpointWriter *w, const CheckpointSave *save, Error *err);
/* Returns when tensor memory may change. Returns at once when no copy is under way; a failure to copy is one of the save. */
void checkpoint_writer_copied(CheckpointWriter *w);
/* Both in one: for a `fetch` that is not safe beside the training. */
ErrorCode checkpoint_writer_save(CheckpointWriter *w, const CheckpointSave *save, Error *err);

/* Waits until nothing is in flight; returns a failure that was not yet returned. */
ErrorCode checkpoint_writer_wait(CheckpointWriter *w, Error *err);
/* Figures of the last finished save, once each; false when there are none. Never waits for a save. */
bool checkpoint_writer_report(CheckpointWriter *w, SaveReport *out);
/* Waits, stops the thread, frees everything. NULL is fine. */
ErrorCode checkpoint_writer_stop(CheckpointWriter *w, Error *err);

/* Young's interval between saves, in seconds: sqrt(2 * mttf * stall), and never less than a save takes. */
double checkpoint_interval(double mean_time_to_failure, double stall, double save_seconds);

#endif
