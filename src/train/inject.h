/* Faults that a run is given on purpose, to see what it makes of them.
 *
 *     kill:rank=1,step=7          the rank kills itself (SIGKILL)
 *     stop:rank=2,step=5          it stops (SIGSTOP) and answers nobody
 *     nan:rank=0,step=3           a NaN among its gradients
 *     bitflip:rank=1,step=4       one bit of its master weights flips; seed=S says which
 *     slow:rank=1,step=2,ms=500   it sleeps
 *     stop:rank=1,phase=saving    kills, stops and sleeps also on entering a phase (phase.h): the first
 *                                 time, or with step=N that after step N
 *     random:seed=7,count=3,kinds=kill|stop    so many faults, each in a step and on a rank drawn from it
 *
 * Several stand one after the other, parted by semicolons or blanks. Steps count from 1, as in the metrics.
 *
 * A fault belongs to one attempt at the run (0 unless attempt=N is said): it happens once however often
 * the run is restarted, so a restarted run gets past it. Attempts are counted by whoever restarts
 * (supervise.h). Random faults are in different steps, as long as there are steps enough, and each belongs
 * to the attempt that gets there: to one more after each kill or stop. (A NaN or a flipped bit may end an
 * attempt too, as the run is configured: then say attempts by hand.) */
#ifndef WEFT_TRAIN_INJECT_H
#define WEFT_TRAIN_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"
#include "train/phase.h"

typedef enum FaultKind {
    FAULT_KILL,
    FAULT_STOP,
    FAULT_NAN,
    FAULT_BITFLIP,
    FAULT_SLOW,
    FAULT_KINDS
} FaultKind;
const char *fault_name(FaultKind kind); /* "bitflip" */

typedef struct Fault {
    FaultKind kind;
    int rank, attempt;
    Phase phase;  /* PHASE_STEPS: before a step */
    int64_t step; /* 1-based; of another phase 0: when it is first entered */
    int64_t ms;   /* slow */
    uint64_t seed;
} Fault;

typedef struct Inject {
    size_t count;
    Fault *faults; /* as they were written; random ones by step */
} Inject;

/* ERR_USAGE names the part that is wrong: an unknown kind or key, a rank or step that the run does not have.
 * NULL is no fault, "" an error. Free with inject_free, also after an error. */
ErrorCode inject_parse(Inject *in, const char *text, int ranks, int64_t steps, Error *err);
void inject_free(Inject *in);

/* The next fault, after `last` (NULL: the first), that this rank has in this step of this attempt; NULL when
 * there is none:
 *     for (const Fault *f = NULL; (f = inject_at(&in, rank, step, attempt, f));) ... */
const Fault *inject_at(const Inject *in, int rank, int64_t step, int attempt, const Fault *last);

/* Where a rank is when it enters a phase. */
typedef struct FaultPlace {
    int rank, attempt;
    Phase phase;
    int64_t step; /* steps that are done */
    bool first;   /* the attempt's first time in it */
} FaultPlace;
/* The same on entering a phase. */
const Fault *inject_in(const Inject *in, const FaultPlace *place, const Fault *last);

/* Which of `bits` bits a bitflip is about; which of so many elements a NaN goes into. bits >= 1. */
uint64_t inject_place(const Fault *f, uint64_t bits);

/* All that the engine's rank has to suffer before step `step` (1-based) of this attempt, each said in a line
 * of the log. A NaN is left to the step: options->poison. */
void inject_faults(const Inject *in, Engine *e, int64_t step, int attempt, StepOptions *options);

/* All that a rank has to suffer on entering a phase, each said. */
void inject_phase_faults(const Inject *in, const FaultPlace *place);

/* Turns bit number `place` (modulo how many there are) of the master weights that this rank owns, and says
 * where it is. */
void inject_bitflip(Engine *e, uint64_t place, char *where, size_t size);

#endif
