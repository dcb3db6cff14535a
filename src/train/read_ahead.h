/* Reads all microbatches of a step to the host, and those of the next step. The loss is divided by the valid
 * targets of the whole step, so all ranks must know these before its first microbatch runs: they travel with
 * the record of the previous step. */
#ifndef WEFT_TRAIN_READ_AHEAD_H
#define WEFT_TRAIN_READ_AHEAD_H

#include "data/loader.h"
#include "observe/audit.h"
#include "plan/layout.h"

typedef struct ReadAheadStep {
    Batch *batches;          /* owned copies */
    int64_t microbatches;    /* of this rank */
    int64_t tokens, samples; /* of all data-parallel ranks */
    int64_t first;           /* index of the first sample of this rank; its others follow */
} ReadAheadStep;

typedef struct ReadAhead {
    const Config *config;
    const Dataset *dataset;
    Loader *loader;
    int64_t loads; /* microbatches of a step in the loader's current layout */
    int64_t sequences;
    int64_t most; /* microbatches of the largest step */
    int64_t ranks, dp_rank;
    int64_t fetched, fetched_samples; /* steps and samples of the run read so far */
    int64_t left;                     /* steps of the run not begun yet */
    ReadAheadStep *now;
    ReadAheadStep *next;                  /* NULL: the run has none */
    ReadAheadStep both[STEPS_READ_AHEAD]; /* memory of these two, used alternately */
    int32_t *memory;
    AuditSample *used; /* [microbatches * sequences] samples in `now`; NULL without data.audit */
} ReadAhead;

/* Where a run starts or resumes. */
typedef struct ReadAheadStart {
    int64_t step, sample;
} ReadAheadStart;

/* Reads the steps from there to the end of the run. Each data-parallel rank takes a run of a step's
 * microbatches, in order. Configuration and dataset must outlive it. */
ErrorCode read_ahead_open(ReadAhead *f, const Config *c, const Layout *l, int dp_rank, const Dataset *d,
                          const ReadAheadStart *from, Error *err);
void read_ahead_close(ReadAhead *f);
/* Makes f->now the next step, and f->next the one after it, if the run has one. *waited: seconds spent
 * waiting for data. */
ErrorCode read_ahead_next(ReadAhead *f, double *waited, Error *err);
/* Gives microbatch m of f->now the tokens of a batch that was read again. Returns whether they were others:
 * then memory of the host has changed. */
bool read_ahead_restore(ReadAhead *f, int64_t m, const Batch *again);

#endif
