/* Resumes a run: finds and loads the newest good checkpoint of a run directory.
 *
 *     state_find       opens and verifies it, parses its state (saved.h)    nothing is derived yet
 *     changes_check    compares this run with that (changes.h)              no memory is allocated yet
 *     state_take_up    loads weights and optimizer into the engine */
#ifndef WEFT_TRAIN_STATE_H
#define WEFT_TRAIN_STATE_H

#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "engine/engine.h"
#include "train/saved.h"

/* The open checkpoint that a run resumes from. Must not be moved. */
typedef struct ResumePoint {
    bool exists;
    Checkpoint checkpoint;
    SavedRun saved;
} ResumePoint;

/* Finds the newest good checkpoint of the run directory, if there is one. All ranks; each verifies its part,
 * or everything if it does not see rank 0's directory (shared is false). Close with state_close, also after
 * an error. */
ErrorCode state_find(ResumePoint *f, const char *run_dir, bool shared, Comm *comm, Error *err);
/* Opens this checkpoint, which all ranks see. The rest is as above. */
ErrorCode state_open(ResumePoint *f, const char *path, Comm *comm, Error *err);
/* All ranks; each reads its shard. */
ErrorCode state_take_up(const ResumePoint *f, Engine *e, Comm *comm, Error *err);
void state_close(ResumePoint *f); /* a zeroed one is allowed */

/* Reads the facts of a run's newest checkpoint that has a state, for inspection: nothing is verified. All
 * facts are empty if there is none. */
ErrorCode state_read_facts(RunFacts *facts, const char *run_dir, Error *err);

/* Reads the best checkpoint from the newest readable state in a directory of checkpoints; step 0: there is
 * none, or the run has no keep_best. */
void state_read_best(BestCheckpoint *best, const char *checkpoints);

/* For a run that starts over, removes what the earlier one left: checkpoints, metrics, journal, TensorBoard
 * events, trace, report, audit logs, the log of metrics.command. Other files stay. */
ErrorCode state_discard(const char *run_dir, Error *err);

/* Hash that tells model directories apart; modelfiles_sample states what it covers. */
ErrorCode state_sample_weights(const char *dir, char out[65], Error *err);
/* Loads the weights of a model directory into an engine made for its shape; with adapters, those of the
 * base. */
ErrorCode state_load_weights(Engine *e, const char *dir, Error *err);
/* Loads the adapters of a directory into an engine with adapters. */
ErrorCode state_load_adapter(Engine *e, const char *dir, Error *err);

#endif
