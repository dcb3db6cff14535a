/* All microbatches of a step at once, on the host, and those of the step after it: the loss is divided by
 * the valid targets of the whole step, which must be known to all ranks before its first microbatch runs,
 * and go with the record of the step before. */
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
    int64_t left;    /* steps of the run that were not begun */
    Batch *batches;  /* [microbatches] owned copies */
    Batch *next;     /* [microbatches] of the step after; NULL: there is none */
    Batch *both[2];  /* where these two take turns */
    int32_t *memory;
    const Dataset *dataset;
    LoaderLayout layout;
    uint64_t begun;    /* microbatches that came into f->batches so far */
    AuditSample *used; /* [microbatches * sequences] what the batches hold; NULL without data.audit */
} Feed;

/* From training sample `first` on, for `steps` more. Each data-parallel rank takes a run of the step's
 * microbatches, in their order. */
ErrorCode feed_open(Feed *f, const Config *c, const Layout *l, int dp_rank, const Dataset *d, int64_t first,
                    int64_t steps, Error *err);
void feed_close(Feed *f);
/* Makes f->batches the next step's, and f->next those of the one after it, if the run has one. *waited:
 * seconds that data was waited for. */
ErrorCode feed_next(Feed *f, double *waited, Error *err);

#endif
