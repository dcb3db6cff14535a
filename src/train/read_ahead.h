/* All microbatches of a step at once, on the host, and those of the step after it: the loss is divided by
 * the valid targets of the whole step, which must be known to all ranks before its first microbatch runs,
 * and go with the record of the step before. */
#ifndef WEFT_TRAIN_READ_AHEAD_H
#define WEFT_TRAIN_READ_AHEAD_H

#include "data/loader.h"
#include "observe/audit.h"
#include "plan/layout.h"

typedef struct ReadAheadStep {
    Batch *batches;          /* owned copies */
    int64_t microbatches;    /* of this rank */
    int64_t tokens, samples; /* of all data-parallel ranks */
    int64_t first;           /* sample of this rank's first sequence; its others follow */
} ReadAheadStep;

typedef struct ReadAhead {
    const Config *config;
    const Dataset *dataset;
    Loader *loader;
    int64_t loads; /* microbatches of a step, as the loader deals them out */
    int64_t sequences;
    int64_t most; /* microbatches of the largest step */
    int64_t ranks, dp_rank;
    int64_t fetched, fetched_samples; /* steps, and samples, of the run that were read so far */
    int64_t left;                     /* steps of the run that were not begun */
    ReadAheadStep *now;
    ReadAheadStep *next;   /* NULL: there is none */
    ReadAheadStep both[2]; /* where these two take turns */
    int32_t *memory;
    AuditSample *used; /* [microbatches * sequences] what `now` holds; NULL without data.audit */
} ReadAhead;

/* Where a run stands. */
typedef struct ReadAheadStart {
    int64_t step, sample;
} ReadAheadStart;

/* The steps from there on, to the end of the run. Each data-parallel rank takes a run of a step's
 * microbatches, in their order. Configuration and dataset must outlive it. */
ErrorCode read_ahead_open(ReadAhead *f, const Config *c, const Layout *l, int dp_rank, const Dataset *d,
                          const ReadAheadStart *from, Error *err);
void read_ahead_close(ReadAhead *f);
/* Makes f->now the next step, and f->next the one after it, if the run has one. *waited: seconds that data
 * was waited for. */
ErrorCode read_ahead_next(ReadAhead *f, double *waited, Error *err);

#endif
