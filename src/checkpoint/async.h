/* Saving beside the training: tensors are copied into memory that was set aside before the first step; a
 * thread writes them. One save is in flight at a time: if the disk is slower than the interval, the next save
 * waits for it.
 *
 * The copy too may run beside the training: weights and moments rest from one update to the next, so the
 * thread can copy them during the forward and backward passes, and only the next update has to wait for it:
 *
 *     checkpoint_writer_begin(w, &save, err);      after an update
 *     ... forward and backward of the next step ...
 *     checkpoint_writer_copied(w);                 before the next update
 *
 * With one rank that is all: the thread goes on to the commit by itself. With more, each rank has a writer,
 * and the writers go through the phases of a save (checkpoint.h) by what the caller carries between them. The
 * writer itself sends nothing. Each rank has a word, which says how far it is; at every step boundary the
 * caller combines the words of all ranks, beside whatever else it combines there, and gives the result to
 * each writer. All ranks get the same answer:
 *
 *     WriterWord word = checkpoint_writer_word(w);
 *     ... word.any: or over all ranks; word.all: and over all ranks ...
 *     if (checkpoint_writer_advance(w, word)) {
 *         ... gather checkpoint_writer_blob(w) of all ranks on rank 0 ...
 *         checkpoint_writer_commit(w, blobs);      NULL on the other ranks
 *     }
 *
 * A save begins at the same step on all ranks, when none is in flight, and not between the combining of words
 * and the advance. To wait for one - before the next, at the end of a run - all ranks do
 *
 *     while (!checkpoint_writer_idle(w)) {
 *         checkpoint_writer_settle(w);
 *         ... combine words, advance and commit as above ...
 *     }
 *
 * which is correct for one rank as well. A save that fails on one rank fails on all, at the same boundary:
 * from then on wait and begin return it, on rank 0 with the cause. Nothing here waits for another rank. */
#ifndef WEFT_CHECKPOINT_ASYNC_H
#define WEFT_CHECKPOINT_ASYNC_H

#include "checkpoint/checkpoint.h"
#include "device/device.h"

typedef struct CheckpointWriter CheckpointWriter;

/* Eight bits each, to be carried among others. */
enum {                       /* of any */
       WRITER_PREPARED = 1,  /* rank 0: the files are there, the others may write */
       WRITER_REFUSED = 2,   /* rank 0: they are not, and never will be */
       WRITER_COMMITTED = 4, /* rank 0: the checkpoint is there */
       WRITER_LOST = 8       /* rank 0: the save as a whole failed */
};
enum {                    /* of all */
       WRITER_WRITTEN = 1 /* this rank's pieces are on the disk, or its blob tells why not */
};
typedef struct WriterWord {
    unsigned any, all;
} WriterWord;

typedef struct SaveReport {
    int64_t step;
    double waited;  /* seconds the caller waited for the save before (back-pressure) */
    double copied;  /* seconds the caller waited for the copy */
    double seconds; /* rank 0: from making the files to the commit, in the background; others: of writing */
    uint64_t bytes; /* rank 0: of the checkpoint; others: 0 */
    int removed;    /* rank 0: checkpoints that were retired after it */
} SaveReport;

/* A writer without staging memory (WriterSetup.direct) reads the lists themselves: the caller waits until the
 * writer is idle before it changes any tensor.
 *
 * Bytes of staging memory that saves of the pieces in these lists need; all but the model may be NULL. */
size_t checkpoint_staging_bytes(const TensorList *model, const TensorList *optimizer,
                                const TensorList *average);

typedef struct WriterSetup {
    const FileOps *ops;  /* NULL: the system's; must be safe to use from another thread */
    const char *dir;     /* RUN/checkpoints, the same directory for all ranks */
    CheckpointKeep keep; /* rank 0 prunes by it after each save, with the save's own `best`, */
    int64_t in_use;      /* sparing this step; -1: none */
    int rank, ranks;
    size_t staging_bytes;
    bool direct;    /* no staging memory: staging_bytes is 0 */
    int threads;    /* that take it, and have nothing else to do meanwhile; 0: one */
    Device *device; /* of tensor memory that is apart: staging is its pinned memory; else NULL */
} WriterSetup;
ErrorCode checkpoint_writer_start(CheckpointWriter **writer, const WriterSetup *setup, Error *err);

/* Starts the copy. One rank: waits for the save before; more: there may be none in flight. The lists, names
 * and files->data must stay as they are until the writer is idle, tensor memory until
 * checkpoint_writer_copied has returned; the state is copied at once. `fetch` is called from the thread. A
 * failure of the save before is returned here, and then nothing was started. */
ErrorCode checkpoint_writer_begin(CheckpointWriter *w, const CheckpointSave *save, Error *err);
/* Returns when tensor memory may change. Returns at once when no copy is under way; a failure to copy is one
 * of the save. */
void checkpoint_writer_copied(CheckpointWriter *w);
/* Both in one: for a `fetch` that is not safe beside the training. */
ErrorCode checkpoint_writer_save(CheckpointWriter *w, const CheckpointSave *save, Error *err);

/* How far this rank is. Never waits. */
WriterWord checkpoint_writer_word(CheckpointWriter *w);
/* Takes the combined words of a step boundary. True when the blobs are to be gathered: once a save. Never
 * waits. With one rank there is nothing to do for it. */
bool checkpoint_writer_advance(CheckpointWriter *w, WriterWord combined);
/* Nothing is in flight. With more ranks it is so on all of them, or on none, between two boundaries. */
bool checkpoint_writer_idle(CheckpointWriter *w);
/* What rank 0 is to get of this rank, once it is to be gathered. Stays as it is until the next save begins.
 */
CheckpointBlob checkpoint_writer_blob(CheckpointWriter *w);
/* Rank 0 lets its thread commit; the blobs [ranks] are copied. On other ranks it does nothing. */
void checkpoint_writer_commit(CheckpointWriter *w, const CheckpointBlob *blobs);
/* Waits until the word is another than the last one asked for, or cannot change before the next exchange. */
void checkpoint_writer_settle(CheckpointWriter *w);

/* One rank: waits until nothing is in flight; more: nothing may be. Returns a failure that was not yet
 * returned. */
ErrorCode checkpoint_writer_wait(CheckpointWriter *w, Error *err);
/* Figures of the last finished save, once each; false when there are none. Never waits for a save. */
bool checkpoint_writer_report(CheckpointWriter *w, SaveReport *out);
/* Stops the thread and frees everything, after the save in flight with one rank; with more it is given up,
 * and what it left is removed by the next prune. NULL is fine. */
ErrorCode checkpoint_writer_stop(CheckpointWriter *w, Error *err);

/* Young's interval between saves, in seconds: sqrt(2 * mttf * stall), and never less than a save takes. */
double checkpoint_interval(double mean_time_to_failure, double stall, double save_seconds);

#endif
