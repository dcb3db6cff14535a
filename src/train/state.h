/* What of a run outlives the process, taken up again: the newest good checkpoint of a run directory.
 *
 *     state_find       opens and verifies it, reads what it says (saved.h)     nothing is derived yet
 *     changes_check    compares this run with that (changes.h)                 no memory is taken yet
 *     state_take_up    weights and optimizer into the engine */
#ifndef WEFT_TRAIN_STATE_H
#define WEFT_TRAIN_STATE_H

#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "engine/engine.h"
#include "train/saved.h"

/* The checkpoint that a run goes on from, open. It stays where it is. */
typedef struct ResumePoint {
    bool exists;
    Checkpoint checkpoint;
    SavedRun saved;
} ResumePoint;

/* The newest good checkpoint of the run directory, if there is one. All ranks; each verifies its part, or
 * everything where it does not see rank 0's directory (shared is false). Closed with state_close, also after
 * an error. */
ErrorCode state_find(ResumePoint *f, const char *run_dir, bool shared, Comm *comm, Error *err);
/* All ranks; each reads what it holds. */
ErrorCode state_take_up(const ResumePoint *f, Engine *e, Comm *comm, Error *err);
void state_close(ResumePoint *f); /* a zeroed one is fine */

/* The facts of the newest checkpoint of a run that has a state, for who only looks: nothing is verified, and
 * all are empty where there is none. */
ErrorCode state_read_facts(RunFacts *facts, const char *run_dir, Error *err);

/* The best checkpoint by the newest state that can be read in a directory of checkpoints; step 0: there is
 * none, or none was looked for. */
void state_read_best(BestCheckpoint *best, const char *checkpoints);

/* Removes what a run that starts over has left: checkpoints, metrics, journal, TensorBoard events, trace,
 * report, audit logs, the log of metrics.command. What else is in the directory stays. */
ErrorCode state_discard(const char *run_dir, Error *err);

/* What tells one model directory from another; modelfiles_sample says what that covers. */
ErrorCode state_sample_weights(const char *dir, char out[65], Error *err);
/* Weights of a model directory into an engine made for its shape; with adapters, those of the base. */
ErrorCode state_load_weights(Engine *e, const char *dir, Error *err);
/* The adapters of a directory into an engine that has such. */
ErrorCode state_load_adapter(Engine *e, const char *dir, Error *err);

#endif
