/* What the ranks of a save tell each other: which pieces each of them wrote, with their checksums.
 *
 * A blob is made of little-endian 64-bit words:
 *
 *     "weftblob" | kind | step | layout | count | count times (list, tensor, first, count, sum) | checksum
 *
 * or, of a rank that failed,
 *
 *     "weftblob" | kind | error code | length of the message | message, padded to words | checksum
 *
 * The checksum is that of all words before it. `layout` is a digest of the headers of all files: two ranks
 * that mean different tensors do not get to the same manifest. */
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

/* Appends the blob of a rank whose pieces were written. sums: [list][piece]. */
void blob_write(Text *blob, const SaveLayout *l, uint64_t *const sums[SAVE_LISTS]);
/* Reads the blobs [ranks] and checks that their pieces make up every tensor. The failure that a blob tells of
 * is returned. */
ErrorCode segments_collect(SavedSegments *all, const SaveLayout *l, const CheckpointBlob *blobs, int ranks,
                           Error *err);
void segments_free(SavedSegments *all);

#endif
