/* The phase that a rank is in, for messages about ranks that keep others waiting. There is one Activity per
 * process, from before the ranks join until they have parted: the program sets the phase, and the watchdog's
 * thread reads it.
 *
 *     MPI start -> reading -> tokenizing -> allocating -> measuring -> loading -> records -> steps -> ending
 *                                                                                        |  ^
 *                                                           comparing, validation, saving <-'
 *
 * All ranks enter and leave a phase together, since each phase ends with something collective. So a rank that
 * waits is in the same phase as the rank that it waits for. */
#ifndef WEFT_TRAIN_PHASE_H
#define WEFT_TRAIN_PHASE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct Engine;

typedef enum Phase {
    PHASE_START,
    PHASE_READING,
    PHASE_TOKENIZING,
    PHASE_ALLOCATING,
    PHASE_MEASURING,
    PHASE_LOADING,
    PHASE_RECORDS,
    PHASE_STEPS,
    PHASE_COMPARING,
    PHASE_VALIDATION,
    PHASE_SAVING,
    PHASE_ENDING,
    PHASES
} Phase;
const char *phase_name(Phase phase); /* "MPI start", "tokenizing" */

typedef struct Activity {
    pthread_mutex_t mutex;
    Phase phase;
    int64_t step;                /* steps done */
    const struct Engine *engine; /* its current action is reported; NULL: no engine (yet, or any more) */
} Activity;

void activity_start(Activity *d);
void activity_enter(Activity *d, Phase phase, int64_t step);
void activity_engine(Activity *d, const struct Engine *engine);
/* Writes "tokenizing"; "step 12, FWD of unit 3, microbatch 1"; "saving after step 20". May be called from any
 * thread; activity: an Activity. */
void activity_describe(void *activity, char *out, size_t size);

#endif
