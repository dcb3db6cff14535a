/* All microbatches of a step at once, on the host: the loss is divided by the valid targets of the whole
 * step, which must be known before its first microbatch runs. */
#ifndef WEFT_TRAIN_FEED_H
#define WEFT_TRAIN_FEED_H

#include "data/loader.h"
#include "observe/audit.h"
#include "plan/layout.h"

typedef struct Feed {
    Loader *loader;
    int64_t sequences, microbatches;
    int64_t tokens;  /* of a step, of all data-parallel ranks */
    int64_t samples; /* the same in sequences */
    Batch *batches;  /* [microbatches] owned copies */
    int32_t *memory;
    const Dataset *dataset;
    LoaderLayout layout;
    uint64_t taken;    /* microbatches so far */
    AuditSample *used; /* [microbatches * sequences] what the batches hold; NULL without data.audit */
} Feed;

/* From training sample `first` on. Each data-parallel rank takes a run of the step's microbatches, in their
 * order. */
ErrorCode feed_open(Feed *f, const Config *c, const Layout *l, int dp_rank, const Dataset *d, int64_t first,
                    Error *err);
void feed_close(Feed *f);
/* Fills f->batches with the next step's. *waited: seconds that data was waited for. */
ErrorCode feed_next(Feed *f, double *waited, Error *err);

#endif
