/* Faults on purpose (inject.h), done to this process and to what the engine holds. */
#ifndef WEFT_TRAIN_INJECT_FAULTS_H
#define WEFT_TRAIN_INJECT_FAULTS_H

#include "engine/engine.h"
#include "train/inject.h"

/* All that the engine's rank has to suffer before step `step` (1-based) of this attempt, each said in a line
 * of the log. A NaN is left to the step: options->poison. */
void inject_faults(const Inject *in, Engine *e, int64_t step, int attempt, StepOptions *options);

/* All that a rank has to suffer on entering a phase, each said. */
void inject_phase_faults(const Inject *in, const FaultPlace *place);

/* Turns bit number `place` (modulo how many there are) of the master weights that this rank owns, and says
 * where it is. */
void inject_bitflip(Engine *e, uint64_t place, char *where, size_t size);

#endif
