/* A run from its configuration to its last checkpoint: data, steps, validation, metrics, checkpoints, stopping.
 *
 * The run directory
 *     config.yaml      resolved configuration, with the source of each value
 *     metrics.jsonl    a line a logged step, and a validation
 *     journal.jsonl    what happened
 *     tensorboard/     event files
 *     checkpoints/     step-00000100/, ..., latest
 *
 * Step s (0-based) takes samples [s * B, (s + 1) * B), whatever happened before: a step that is skipped has had its samples. A
 * run that finds a checkpoint in its directory goes on from it. */
#ifndef WEFT_TRAIN_TRAINER_H
#define WEFT_TRAIN_TRAINER_H

#include "train/config.h"

/* ERR_STOPPED when it was asked to stop (SIGINT, SIGTERM, SIGUSR1) and everything is saved; ERR_NUMERIC after too many
 * non-finite steps in a row. */
ErrorCode trainer_run(Config *c, const OptionSet *set, Error *err);

#endif
