/* Faults injected into a run, to test how it handles them.
 *
 *     kill:rank=1,step=7          the rank kills itself (SIGKILL)
 *     kill:rank=1,step=7,action=UPDATE    the same inside the step, before the first action of this kind (the
 *                                 names are those of weft plan --program); also stop
 *     stop:rank=2,step=5          it stops (SIGSTOP) and no longer answers
 *     nan:rank=0,step=3           a NaN among its gradients; what=activations: in an output of its passes; of
 *                                 microbatch 0, or microbatch=M
 *     bitflip:rank=1,step=4       one bit of its master weights flips, or what=moments, gradients,
 *                                 activations, messages (gradients on their way), tokens (of a batch, on the
 *                                 host), staging (the copy that the next checkpoint is written from); seed=S
 *                                 selects which
 *     bitflip:rank=1,step=4,pool=workspace    one bit of this memory, before a random action of the step
 *     slow:rank=1,step=2,ms=500   it sleeps
 *     stop:rank=1,phase=saving    kills, stops and sleeps can also happen on entering a phase (phase.h): the
 *                                 first time, or with step=N the time after step N
 *     random:seed=7,count=3,kinds=kill|stop    so many faults, each in a random step and on a random rank
 *
 * Several faults are separated by semicolons or blanks. Steps count from 1, as in the metrics.
 *
 * A fault belongs to one attempt at the run (0, or attempt=N). It happens once, however often the run is
 * restarted, so a restarted run gets past it. The supervisor counts attempts (supervise.h). Random faults are
 * in different steps, as long as there are enough steps. Each belongs to the attempt that gets there: the
 * attempt increases by one after each kill or stop. (A NaN or a flipped bit may also end an attempt,
 * depending on the configuration: in that case give the attempts explicitly.) */
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

/* What a fault corrupts. */
typedef enum FaultPlace {
    FAULT_IN_GRADIENTS,
    FAULT_IN_ACTIVATIONS,
    FAULT_IN_MESSAGES, /* gradients that were counted, on their way to other ranks */
    FAULT_IN_TOKENS,   /* the ids of a batch */
    FAULT_IN_WEIGHTS,  /* outlives the step */
    FAULT_IN_MOMENTS,  /* outlives the step */
    FAULT_IN_STAGING,  /* what is written to disk */
    FAULT_IN_POOL,     /* any tensor memory */
    FAULT_PLACES
} FaultPlace;

typedef struct Fault {
    FaultKind kind;
    int rank, attempt;
    Phase phase;       /* PHASE_STEPS: before a step */
    int64_t step;      /* 1-based; in another phase, 0: when it is first entered */
    ActionKind action; /* within the step, before the first action of this kind; ACT_KINDS: before the step */
    int64_t ms;        /* duration of slow */
    FaultPlace place;
    EnginePool pool; /* of FAULT_IN_POOL */
    int microbatch;  /* in which something becomes wrong */
    int times;       /* so often as well if the step is made again */
    uint64_t seed;
} Fault;

typedef struct Inject {
    size_t count;
    Fault *faults; /* in the order of the text; random ones by step */
} Inject;

/* ERR_USAGE names what is wrong: an unknown kind or key, or a rank or step that the run does not have. NULL
 * means no faults; "" is an error. Free with inject_free, also after an error. */
ErrorCode inject_parse(Inject *in, const char *text, int ranks, int64_t steps, Error *err);
void inject_free(Inject *in);

/* Returns the next fault after `last` (NULL: the first) for this rank in this step of this attempt; NULL if
 * there is none:
 *     for (const Fault *f = NULL; (f = inject_at(&in, rank, step, attempt, f));) ... */
const Fault *inject_at(const Inject *in, int rank, int64_t step, int attempt, const Fault *last);

/* State of a rank when it enters a phase. */
typedef struct FaultPoint {
    int rank, attempt;
    Phase phase;
    int64_t step; /* steps done */
    bool first;   /* first time in this attempt */
} FaultPoint;
/* The same for faults on entering a phase. */
const Fault *inject_in(const Inject *in, const FaultPoint *point, const Fault *last);

/* Which of `bits` bits a bitflip changes; which of so many elements becomes a NaN. bits >= 1. */
uint64_t inject_index(const Fault *f, uint64_t bits);

/* Injects all faults of a rank before step `step` (1-based) of this attempt, with a line of the log for
 * each. A NaN is injected inside the step: options->poison. Those of staging are the saver's (saver_flip). */
void inject_faults(const Inject *in, int rank, Engine *e, int64_t step, int attempt, StepOptions *options);

/* Injects all faults of a rank on entering a phase, with a line of the log for each. */
void inject_phase_faults(const Inject *in, const FaultPoint *point);

/* Flips bit number `index` (modulo their number) of the master weights, or of the moments, that this rank
 * owns, and writes its location to `where`. */
void inject_bitflip(Engine *e, FaultPlace place, uint64_t index, char *where, size_t size);

#endif
