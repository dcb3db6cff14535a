/* What of a run outlives the process: weights, optimizer, and the few numbers from which all else follows. */
#ifndef WEFT_TRAIN_STATE_H
#define WEFT_TRAIN_STATE_H

#include "data/dataset.h"
#include "observe/spike.h"
#include "config/config.h"
#include "engine/engine.h"

typedef struct RunState {
    int64_t step; /* steps done; the next one takes samples from step * samples per step on */
    int64_t tokens, skipped;
    SpikeWindow losses, norms;
} RunState;

#define STATE_VERSION 1

/* Reads a state file. `data` and `tokenizer` are the fingerprints of this run, which must be those of the
 * file's, as must be the configuration, but for what the user allows to change. */
ErrorCode state_parse(RunState *s, int64_t *updates, const char *text, const Config *c, const OptionSet *set,
                      const char *data, const char *tokenizer, Error *err);

/* Takes up the newest good checkpoint of the run directory, if there is one. Refuses one made with a
 * configuration or data that would have given another curve, naming what differs. All ranks; each reads what
 * it holds. */
ErrorCode state_resume(RunState *s, const Config *c, const OptionSet *set, Engine *e, Comm *comm,
                       const Dataset *d, const Tokenizer *t, bool *resumed, Error *err);
/* Removes what a run that starts over has left: checkpoints, metrics, journal, TensorBoard events, trace,
 * report, audit logs. What else is in the directory stays. */
ErrorCode state_discard(const char *run_dir, Error *err);

/* Weights of a model directory into an engine made for its shape. */
ErrorCode state_load_weights(Engine *e, const char *dir, Error *err);

#endif
