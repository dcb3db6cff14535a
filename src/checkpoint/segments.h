/* The blobs that ranks of a save send to rank 0: the segments that each of them wrote, with checksums.
 *
 * A blob consists of little-endian 64-bit words:
 *
 *     "weftblob" | kind | step | layout | count | count times (list, tensor, first, count, sum) | checksum
 *
 * or, for a rank that failed,
 *
 *     "weftblob" | kind | error code | length of the message | message, padded to words | checksum
 *
 * The checksum covers all words before it. `layout` is a digest of the headers of all files: blobs of ranks
 * that describe different tensors never end up in one manifest. */
#ifndef WEFT_CHECKPOINT_SEGMENTS_H
#define WEFT_CHECKPOINT_SEGMENTS_H

#include "checkpoint/checkpoint.h"

/* The files of a save: model, optimizer unless weights only, the average if there is one. */
enum { SAVE_LISTS = 3 };
typedef struct SaveLayout {
    int64_t step;
    int count;
    ModelLayout lists[SAVE_LISTS];
    uint64_t digest;
} SaveLayout;
void savelayout_make(SaveLayout *l, const CheckpointSave *save);
void savelayout_free(SaveLayout *l);

typedef struct SavedSegment {
    int list, tensor;
    int64_t first, count; /* elements */
    uint64_t sum;
    int rank;
} SavedSegment;

typedef struct SavedSegments {
    size_t count;
    SavedSegment *items; /* ascending by list, tensor, first */
} SavedSegments;

/* Appends the blob of a rank whose segments were written. sums: [list][segment]. */
void blob_write(Text *blob, const SaveLayout *l, uint64_t *const sums[SAVE_LISTS]);
/* Reads the blobs [ranks] and checks that their segments cover every tensor. If a blob reports a failure,
 * that failure is returned. */
ErrorCode segments_collect(SavedSegments *all, const SaveLayout *l, const CheckpointBlob *blobs, int ranks,
                           Error *err);
void segments_free(SavedSegments *all);

#endif
