/* Compares a run that resumes with the run that was saved: what changed, and what effect that has.
 *
 * Keys are compared by value, and the option table says what another value of each does (OptionEffect). Facts
 * that no key states are compared in the same way. What the run leaves open has been taken from the saved run
 * before, so it does not count as a change. Nothing here knows a key by name. */
#ifndef WEFT_TRAIN_CHANGES_H
#define WEFT_TRAIN_CHANGES_H

#include "train/saved.h"

/* ERR_CONFIG for changes that would make it another run, or another curve where run.allow_changes does not
 * name them; the error names all of them. Otherwise one sentence about the changes is appended to `message`,
 * or nothing if there are none. `idle` gets the changed keys that have no effect, because they are read only
 * when a run begins. */
ErrorCode changes_check(const SavedRun *saved, const Config *c, const OptionSet *set, const RunFacts *facts,
                        Text *message, Text *idle, Error *err);

/* Whether run.allow_changes names it: a key, or data, tokenizer, base, mixture, or unknown. */
bool changes_allowed(const Config *c, const char *key);

#endif
