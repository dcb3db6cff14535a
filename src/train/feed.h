/* All microbatches of a step at once, on the host: the loss is divided by the valid targets of the whole step, which must be
 * known before its first microbatch runs. */
#ifndef WEFT_TRAIN_FEED_H
#define WEFT_TRAIN_FEED_H

#include "data/loader.h"
#include "train/config.h"

typedef struct Feed {
    Loader *loader;
    int64_t sequences, microbatches;
    int64_t tokens; /* of a step */
    Batch *batches; /* [microbatches] owned copies */
    int32_t *memory;
} Feed;

/* From the samples of step `step` (0-based) on. */
ErrorCode feed_open(Feed *f, const Config *c, const Dataset *d, int64_t step, Error *err);
void feed_close(Feed *f);
/* Fills f->batches with the next step's. *waited: seconds that data was waited for. */
ErrorCode feed_next(Feed *f, double *waited, Error *err);

#endif
