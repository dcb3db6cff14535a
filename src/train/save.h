/* Saving a run: state, weights and optimizer, written by a thread beside the training from a copy in memory
 * set aside before the first step. The stall that training sees is the copy, and the wait for the save before
 * if the disk is slower than the interval. */
#ifndef WEFT_TRAIN_SAVE_H
#define WEFT_TRAIN_SAVE_H

#include "checkpoint/async.h"
#include "config/config.h"
#include "train/saved.h"
#include "train/tensors.h"

typedef struct Saver {
    const Config *c;
    const OptionSet *set;
    const RunFacts *facts;
    Engine *engine;
    Comm *comm;
    double waited; /* seconds for the save before */
    bool has_earlier;
    SaveReport earlier;                   /* of that one, when nobody has asked for it yet */
    Tensors *model, *optimizer, *average; /* average: NULL without optimizer.ema */
    Tensors *kept; /* of a checkpoint of weights only, in place of optimizer; or NULL */
    CheckpointWriter *writer;
    Text config, generation, tokenizer, tokenizer_config, chat_template;
    CheckpointFile files[6];
    int file_count;
} Saver;

/* Configuration, set and facts are kept, not copied. in_use: step of the checkpoint that the run goes on
 * from, -1 for none; it is never removed. Close it also after a failure. */
ErrorCode saver_open(Saver *s, const Config *c, const OptionSet *set, const RunFacts *facts, Engine *e,
                     Comm *comm, const Tokenizer *t, int64_t in_use, Error *err);
/* Starts a save of the weights as they are now, after the one before. A failure of that is returned here. All
 * ranks. */
ErrorCode saver_begin(Saver *s, const RunState *state, bool weights_only, Error *err);
/* Returns when weights and moments may change: before every update. */
void saver_copied(Saver *s);
/* With many ranks a save goes on at step boundaries: what each rank has to say of it travels with the step's
 * record. */
void saver_flags(Saver *s, uint64_t *any, uint64_t *all);
ErrorCode saver_advance(Saver *s, uint64_t any, uint64_t all, Error *err);
/* Waits until what was saved is committed. All ranks. */
ErrorCode saver_wait(Saver *s, Error *err);
/* Figures of a save that has been committed since the last call; false when none was. */
bool saver_report(Saver *s, SaveReport *out);
ErrorCode saver_close(Saver *s, Error *err);

#endif
