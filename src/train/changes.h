/* A run that goes on, beside the run that was saved: what of it is other, and what that does.
 *
 * Keys are compared by value, and the option table says what another value of each does (OptionEffect);
 * facts that no key says are compared in the same way. What the run leaves open has been taken from the
 * saved one before, so it is no change. Nothing here knows a key by name. */
#ifndef WEFT_TRAIN_CHANGES_H
#define WEFT_TRAIN_CHANGES_H

#include "train/saved.h"

/* ERR_CONFIG for what would make another run, or another curve that run.allow_changes does not name; all
 * of it is named. Otherwise `said` gets what is other from here on, in one sentence: empty when nothing
 * is. `idle` gets the keys whose other values do nothing, for they are read when a run begins. */
ErrorCode changes_check(const SavedRun *saved, const Config *c, const OptionSet *set, const RunFacts *facts,
                        Text *message, Text *idle, Error *err);

/* Whether run.allow_changes names it: a key, or data, tokenizer or mixture. */
bool changes_allowed(const Config *c, const char *key);

#endif
