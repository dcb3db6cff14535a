/* Saving in the background: tensors are copied into staging memory that is allocated before the first step,
 * and a thread writes them to disk. One save is in flight at a time: if the disk is slower than the save
 * interval, the next save waits for the previous one.
 *
 * The copy can also overlap with training. Weights and moments do not change between two updates, so the
 * thread can copy them during the forward and backward passes; only the next update has to wait for it:
 *
 *     checkpoint_writer_begin(w, &save, err);      after an update
 *     ... forward and backward of the next step ...
 *     checkpoint_writer_copied(w);                 before the next update
 *
 * With one rank that is all: the thread commits by itself. With more, each rank has a writer, and the caller
 * moves the writers through the phases of a save (checkpoint.h) by exchanging data between them. The writer
 * itself communicates nothing. Each rank has a word that describes its progress. At every step boundary the
 * caller reduces the words over all ranks, along with whatever else it reduces there, and passes the result
 * to each writer. All ranks get the same result:
 *
 *     WriterWord word = checkpoint_writer_word(w);
 *     ... word.any: or over all ranks; word.all: and over all ranks ...
 *     if (checkpoint_writer_advance(w, word)) {
 *         ... gather checkpoint_writer_blob(w) of all ranks on rank 0 ...
 *         checkpoint_writer_commit(w, blobs);      NULL on the other ranks
 *     }
 *
 * A save begins at the same step on all ranks, when none is in flight, and not between the reduction of words
 * and the advance. To wait for a save - before the next one, at the end of a run - all ranks do
 *
 *     while (!checkpoint_writer_idle(w)) {
 *         checkpoint_writer_settle(w);
 *         ... combine words, advance and commit as above ...
 *     }
 *
 * which is correct for one rank as well. A save that fails on one rank fails on all, at the same boundary:
 * from then on wait and begin return the failure, on rank 0 with its cause. No function here waits for
 * another rank. */
#ifndef WEFT_CHECKPOINT_ASYNC_H
#define WEFT_CHECKPOINT_ASYNC_H

#include "checkpoint/checkpoint.h"
#include "device/device.h"

typedef struct CheckpointWriter CheckpointWriter;

/* Eight bits each, so that the caller can pack them into a larger message. */
enum {                       /* bits of `any` */
       WRITER_PREPARED = 1,  /* rank 0: the files exist, the other ranks may write */
       WRITER_REFUSED = 2,   /* rank 0: the files could not be made */
       WRITER_COMMITTED = 4, /* rank 0: the checkpoint exists */
       WRITER_LOST = 8       /* rank 0: the save as a whole failed */
};
enum {                    /* bits of `all` */
       WRITER_WRITTEN = 1 /* this rank's segments are on disk, or its blob has the failure */
};
typedef struct WriterWord {
    unsigned any, all;
} WriterWord;

typedef struct SaveReport {
    int64_t step;
    double waited;  /* seconds the caller waited for the previous save (back-pressure) */
    double copied;  /* seconds the caller waited for the copy */
    double seconds; /* rank 0: from making the files to the commit, in the background; others: of writing */
    uint64_t bytes; /* rank 0: size of the checkpoint; others: 0 */
    int removed;    /* rank 0: number of checkpoints pruned after it */
} SaveReport;

/* Bytes of staging memory that saves of the segments in these lists need; all but the model may be NULL. A
 * writer without staging memory (WriterSetup.direct) reads the lists themselves: the caller must not change
 * any tensor until the writer is idle. */
size_t checkpoint_staging_bytes(const TensorList *model, const TensorList *optimizer,
                                const TensorList *average);

typedef struct WriterSetup {
    const FileOps *ops;  /* NULL: the system's; must be thread-safe */
    const char *dir;     /* RUN/checkpoints, the same directory for all ranks */
    CheckpointKeep keep; /* rank 0 prunes by it after each save, with the save's own `best`, */
    int64_t in_use;      /* but keeps this step; -1: none */
    int rank, ranks;
    size_t staging_bytes;
    bool direct;    /* no staging memory: staging_bytes is 0 */
    int threads;    /* threads for allocating staging memory; 0: one */
    Device *device; /* of tensors in separate memory: staging is its pinned memory; else NULL */
} WriterSetup;
ErrorCode checkpoint_writer_start(CheckpointWriter **writer, const WriterSetup *setup, Error *err);

/* Starts the copy. With one rank it waits for the previous save; with more, none may be in flight. The lists,
 * names and files->data must stay unchanged until the writer is idle, tensor memory until
 * checkpoint_writer_copied has returned; the state is copied at once. `fetch` is called from the thread. If
 * the previous save failed, its failure is returned here and nothing is started. */
ErrorCode checkpoint_writer_begin(CheckpointWriter *w, const CheckpointSave *save, Error *err);
/* Waits for the copy; afterwards tensor memory may change. Returns at once when no copy is in progress. A
 * failure to copy is reported as a failure of the save. */
void checkpoint_writer_copied(CheckpointWriter *w);
/* Injects a fault: a bit of staging memory, chosen by the index, flips in the next save that begins, between
 * the copy and the write. Without staging memory it does nothing. */
void checkpoint_writer_flip(CheckpointWriter *w, uint64_t index);
/* Begin and copied in one call: for a `fetch` that must not run concurrently with training. */
ErrorCode checkpoint_writer_save(CheckpointWriter *w, const CheckpointSave *save, Error *err);

/* This rank's progress. Never waits. */
WriterWord checkpoint_writer_word(CheckpointWriter *w);
/* Takes the reduced words of a step boundary. Returns true when the caller must gather the blobs: once per
 * save. Never waits. With one rank it has nothing to do. */
bool checkpoint_writer_advance(CheckpointWriter *w, WriterWord combined);
/* True when nothing is in flight. Between two boundaries it has the same value on all ranks. */
bool checkpoint_writer_idle(CheckpointWriter *w);
/* This rank's blob for rank 0, once it is to be gathered. Valid until the next save begins. */
CheckpointBlob checkpoint_writer_blob(CheckpointWriter *w);
/* On rank 0: lets its thread commit; the blobs [ranks] are copied. On other ranks: no-op. */
void checkpoint_writer_commit(CheckpointWriter *w, const CheckpointBlob *blobs);
/* Waits until the word differs from the last one returned, or cannot change before the next exchange. */
void checkpoint_writer_settle(CheckpointWriter *w);

/* One rank: waits until nothing is in flight. More ranks: nothing may be in flight. Returns a failure that
 * was not yet returned. */
ErrorCode checkpoint_writer_wait(CheckpointWriter *w, Error *err);
/* Figures of the last finished save, each once; false when there are none. Never waits for a save. */
bool checkpoint_writer_report(CheckpointWriter *w, SaveReport *out);
/* Stops the thread and frees everything. With one rank it first completes the save in flight; with more it
 * abandons it, and the next prune removes its files. NULL is a no-op. */
ErrorCode checkpoint_writer_stop(CheckpointWriter *w, Error *err);

/* Young's interval between saves, in seconds: sqrt(2 * mttf * stall), but at least the duration of a save. */
double checkpoint_interval(double mean_time_to_failure, double stall, double save_seconds);

#endif
