/* A run, from its configuration to its last checkpoint: data, steps, validation, metrics, checkpoints,
 * stopping.
 *
 * The run directory
 *     config.yaml      resolved configuration, with the source of each value
 *     metrics.jsonl    a line for each logged step, validation, validation set and task
 *     journal.jsonl    events
 *     audit-00000.log  with data.audit: the samples of each step (observe/audit.h)
 *     receipts.jsonl   with run.receipts: a hash chain of logged steps (observe/receipts.h)
 *     tensorboard/     event files
 *     checkpoints/     step-00000100/, ..., latest
 *
 * Step s (0-based) takes samples [s * B, (s + 1) * B), whatever happened before: a skipped step has used its
 * samples. A run that finds a checkpoint in its directory resumes from it. */
#ifndef WEFT_TRAIN_TRAINER_H
#define WEFT_TRAIN_TRAINER_H

#include "comm/comm.h"
#include "config/config.h"
#include "train/inject.h"
#include "train/phase.h"

/* From now on SIGINT, SIGTERM and SIGUSR1 are requests to stop after the first step that ends; a second
 * SIGINT, or SIGUSR2, ends the process. Call it before ranks join, which takes a while: a request that comes
 * in the meantime is kept. */
ErrorCode trainer_take_signals(Error *err);
/* For the end of a run, before its last message: from now on signals change nothing. */
void trainer_ignore_signals(void);

/* Returns ERR_STOPPED when it was asked to stop (SIGINT, SIGTERM, SIGUSR1) and everything is saved;
 * ERR_NUMERIC after too many non-finite steps in a row; ERR_REPLICAS if replicas differ. All ranks of comm
 * take part; rank 0 holds the directory's lock, and prints. file: path of the configuration; inject: faults
 * to inject; activity: receives the phases. */
ErrorCode trainer_run(Comm *comm, const char *file, Config *c, OptionSet *set, const Inject *inject,
                      Activity *activity, Error *err);

/* Steps of a run that are made again, to compare their receipts (run.receipts). */
typedef struct Replay {
    const char *checkpoint; /* to go on from; "": from the beginning */
    int64_t last;           /* the step to end with */
    const int64_t *steps;   /* [count] steps that get a receipt */
    size_t count;
} Replay;
/* Makes these steps in run.dir, a directory of its own, where the receipts are found then. Nothing is saved
 * or validated. */
ErrorCode trainer_replay(Comm *comm, const char *file, Config *c, OptionSet *set, const Replay *replay,
                         Activity *activity, Error *err);

#endif
