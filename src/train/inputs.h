/* Lists in the journal the files that a start of a run has read: later nothing else records which data,
 * tokenizer, tasks and weights made the run. The ranks have agreed before that all read the same
 * (train/agree.h), so rank 0 lists its own.
 *
 * Data sources are listed by pattern, with one digest for all their files: a corpus may have 50,000. The
 * digests are those of opening the data. Small files are hashed here. Weights are sampled, since they may be
 * larger than the data (modelfiles_sample). */
#ifndef WEFT_TRAIN_INPUTS_H
#define WEFT_TRAIN_INPUTS_H

#include "config/config.h"
#include "data/dataset.h"
#include "observe/journal.h"

typedef struct InputsFrom {
    const char *config; /* path of the configuration file */
    const Config *c;
    const Dataset *data;
    int64_t step;     /* of the checkpoint that the run resumes from; 0: none */
    const char *init; /* sample of the weights that were read from model.init; "": none were */
} InputsFrom;

/* Adds one entry to the journal: the event "read". */
ErrorCode inputs_record(const InputsFrom *from, Journal *j, Error *err);

#endif
