/* The files that a start of a run has read, for its journal: later nobody else knows which data, tokenizer,
 * tasks and weights made the run. That all ranks have read the same is agreed on before (train/agree.h), so
 * rank 0 lists its own.
 *
 * Sources are listed by pattern, with one digest for all files: a corpus may have 50,000. Their digests are
 * those by which the data was opened; small files are hashed here, and weights are sampled, since they may be
 * larger than the data (modelfiles_sample). */
#ifndef WEFT_TRAIN_INPUTS_H
#define WEFT_TRAIN_INPUTS_H

#include "config/config.h"
#include "data/dataset.h"
#include "observe/journal.h"

typedef struct InputsFrom {
    const char *config; /* the configuration's file */
    const Config *c;
    const Dataset *data;
    int64_t step;     /* of the checkpoint that the run goes on from; 0: none */
    const char *init; /* the sample of the weights that were read from model.init; "": none were */
} InputsFrom;

/* One entry of the journal: the event "read". */
ErrorCode inputs_record(const InputsFrom *from, Journal *j, Error *err);

#endif
