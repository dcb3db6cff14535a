/* Chooses the value of train.gradient_sync: auto for a configuration, a mesh and the memory of a rank.
 *
 *     one data-parallel rank   step         nothing is sent
 *     one microbatch a step    microbatch   where parameters are sharded: sends the bytes of `step`, has its
 *                                           bits, and no rank holds a full gradient; else step
 *     several, no limit        step         sends the fewest bytes
 *     several, a limit         the first of step, replica (with both axes), microbatch whose memory fits, in
 *                              order of bytes sent; where none fits, the one that takes the least memory
 *
 * All ranks reach the same choice without communication, and so does `weft plan`: it does not depend on the
 * machine. */
#ifndef WEFT_PLAN_SYNC_H
#define WEFT_PLAN_SYNC_H

#include "plan/layout.h"
#include "plan/memory.h"
#include "program/program.h"

typedef struct SyncChoice {
    GradientSync sync; /* never SYNC_AUTO */
    const char *why;   /* static: "auto: one microbatch a step, ..." */
} SyncChoice;

const char *sync_name(GradientSync sync); /* as train.gradient_sync spells it */

/* `limit`: bytes of a rank (memory_plan_total), 0 for none. The shape of the model must be complete, and
 * c->train.gradient_sync must be auto. ERR_CONFIG where no layout is possible. */
ErrorCode sync_choose(const Config *c, int world, double limit, SyncChoice *out, Error *err);

#endif
