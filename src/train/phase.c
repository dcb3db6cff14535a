/* One mutex guards phase, step and engine, since the watchdog's thread reads them while the program's
 * changes them. It is held for the time of a few words only. The engine's current action is an atomic of
 * its own (engine_current): it changes some hundred times a step, too often for a lock. */
#include "train/phase.h"

#include <stdio.h>

#include "engine/engine.h"

/* The user's words: --inject, the watchdog's messages and docs/use/reliability.md name phases by them. */
static const char *const names[PHASES] = {
    [PHASE_START] = "MPI start",       [PHASE_READING] = "reading",     [PHASE_TOKENIZING] = "tokenizing",
    [PHASE_ALLOCATING] = "allocating", [PHASE_MEASURING] = "measuring", [PHASE_LOADING] = "loading",
    [PHASE_RECORDS] = "records",       [PHASE_STEPS] = "steps",         [PHASE_COMPARING] = "comparing",
    [PHASE_VALIDATION] = "validation", [PHASE_SAVING] = "saving",       [PHASE_ENDING] = "ending",
};

const char *phase_name(Phase phase) { return names[phase]; }

/* Before any thread is there that could look. */
void activity_start(Activity *d) { *d = (Activity){.mutex = PTHREAD_MUTEX_INITIALIZER}; }

/* Step and phase in one go: the watchdog must not name the one with the other's step. */
void activity_enter(Activity *d, Phase phase, int64_t step) {
    pthread_mutex_lock(&d->mutex);
    d->phase = phase;
    d->step = step;
    pthread_mutex_unlock(&d->mutex);
}

/* NULL before the engine is closed: nobody may look at its program after. */
void activity_engine(Activity *d, const struct Engine *engine) {
    pthread_mutex_lock(&d->mutex);
    d->engine = engine;
    pthread_mutex_unlock(&d->mutex);
}

/* The mutex is held: the engine stays, and with it the program whose action is told. */
static void describe_step(const Activity *d, char *out, size_t size) {
    const Action *a = d->engine ? engine_current(d->engine) : NULL;
    char unit[32] = "", microbatch[32] = "";
    if (a && a->unit >= 0) snprintf(unit, sizeof unit, " of unit %d", a->unit);
    if (a && a->microbatch >= 0) snprintf(microbatch, sizeof microbatch, ", microbatch %d", a->microbatch);
    snprintf(out, size, "step %lld, %s%s%s", (long long)d->step + 1,
             a ? action_name(a->kind) : "between steps", unit, microbatch);
}

/* Its argument is untyped because the watchdog (comm/) knows nothing of phases. Before there are steps no
 * step is named. */
void activity_describe(void *activity, char *out, size_t size) {
    Activity *d = activity;
    pthread_mutex_lock(&d->mutex);
    if (d->phase == PHASE_STEPS)
        describe_step(d, out, size);
    else if (d->phase > PHASE_STEPS)
        snprintf(out, size, "%s after step %lld", names[d->phase], (long long)d->step);
    else
        snprintf(out, size, "%s", names[d->phase]);
    pthread_mutex_unlock(&d->mutex);
}
