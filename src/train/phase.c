/* One mutex guards phase, step and engine, because the watchdog's thread reads them while the main thread
 * changes them. It is held for a few instructions only. The engine's current action is an atomic of its own
 * (engine_current): it changes hundreds of times per step, too often for a lock. */
#include "train/phase.h"

#include <stdio.h>

#include "engine/engine.h"

/* Users see these names: --inject, the watchdog's messages and docs/use/reliability.md use them. */
static const char *const names[PHASES] = {
    [PHASE_START] = "MPI start",       [PHASE_READING] = "reading",     [PHASE_TOKENIZING] = "tokenizing",
    [PHASE_ALLOCATING] = "allocating", [PHASE_MEASURING] = "measuring", [PHASE_LOADING] = "loading",
    [PHASE_RECORDS] = "records",       [PHASE_STEPS] = "steps",         [PHASE_COMPARING] = "comparing",
    [PHASE_VALIDATION] = "validation", [PHASE_SAVING] = "saving",       [PHASE_ENDING] = "ending",
};

const char *phase_name(Phase phase) { return names[phase]; }

/* Call before there is another thread that could read it. */
void activity_start(Activity *d) { *d = (Activity){.mutex = PTHREAD_MUTEX_INITIALIZER}; }

/* Sets both under one lock, so that the watchdog never reports a phase with the step of another. */
void activity_enter(Activity *d, Phase phase, int64_t step) {
    pthread_mutex_lock(&d->mutex);
    d->phase = phase;
    d->step = step;
    pthread_mutex_unlock(&d->mutex);
}

/* Set to NULL before the engine is closed: nobody may look at its program afterwards. */
void activity_engine(Activity *d, const struct Engine *engine) {
    pthread_mutex_lock(&d->mutex);
    d->engine = engine;
    pthread_mutex_unlock(&d->mutex);
}

/* The mutex is held, so the engine stays open, and with it the program whose action is described. */
static void describe_step(const Activity *d, char *out, size_t size) {
    const Action *a = d->engine ? engine_current(d->engine) : NULL;
    char unit[32] = "", microbatch[32] = "";
    if (a && a->unit >= 0) snprintf(unit, sizeof unit, " of unit %d", a->unit);
    if (a && a->microbatch >= 0) snprintf(microbatch, sizeof microbatch, ", microbatch %d", a->microbatch);
    snprintf(out, size, "step %lld, %s%s%s", (long long)d->step + 1,
             a ? action_name(a->kind) : "between steps", unit, microbatch);
}

/* The argument is untyped because the watchdog (comm/) does not know phases. Phases before the first step are
 * described without a step. */
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
