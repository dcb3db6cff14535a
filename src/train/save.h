/* Saves a run: state, weights and optimizer. A thread writes them alongside training, from a copy in memory
 * that was set aside before the first step. Training stalls only for the copy, and for the previous save if
 * the disk is slower than the checkpoint interval. */
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
    double waited; /* seconds spent waiting for the previous save */
    bool has_earlier;
    SaveReport earlier;                   /* report of the previous save, if nobody has asked for it yet */
    Tensors *model, *optimizer, *average; /* average: NULL without optimizer.ema */
    Tensors *kept; /* of a checkpoint with weights only, in place of optimizer; or NULL */
    CheckpointWriter *writer;
    Text config, generation, tokenizer, tokenizer_config, chat_template;
    CheckpointFile files[6];
    int file_count;
} Saver;

/* Keeps pointers to configuration, set and facts. in_use: step of the checkpoint that the run resumes from,
 * -1 for none; it is never removed. Close the saver also after a failure. */
ErrorCode saver_open(Saver *s, const Config *c, const OptionSet *set, const RunFacts *facts, Engine *e,
                     Comm *comm, const Tokenizer *t, int64_t in_use, Error *err);
/* Starts to save the weights as they are now, after the previous save; returns its failure, if it failed. All
 * ranks. */
ErrorCode saver_begin(Saver *s, const RunState *state, bool weights_only, Error *err);
/* Returns when weights and moments may change. Call before every update. */
void saver_copied(Saver *s);
/* Injects a fault into the copy that the next checkpoint is written from. */
void saver_flip(Saver *s, uint64_t index);
/* With several ranks a save advances at step boundaries: each rank's status travels with the step's
 * record. */
void saver_flags(Saver *s, uint64_t *any, uint64_t *all);
ErrorCode saver_advance(Saver *s, uint64_t any, uint64_t all, Error *err);
/* Waits until the save is committed. All ranks. */
ErrorCode saver_wait(Saver *s, Error *err);
/* Report of a save that was committed since the last call; returns false if there was none. */
bool saver_report(Saver *s, SaveReport *out);
ErrorCode saver_close(Saver *s, Error *err);

#endif
