/* What train.gradient_sync: auto is, of a configuration, a mesh and the memory of a rank.
 *
 *     one data-parallel rank   step         nothing crosses
 *     one microbatch a step    microbatch   where parameters are sharded: bytes and bits of `step`, and
 *                                           no rank holds a whole gradient; step where they are not
 *     several, no limit        step         the fewest bytes
 *     several, a limit         the first of step, replica (with both axes), microbatch that keeps to it, by
 *                              their bytes; where none does, the one that takes the least memory
 *
 * All ranks come to the same without a word, and so does who plans for them: no machine is asked. */
#ifndef WEFT_PLAN_SYNC_H
#define WEFT_PLAN_SYNC_H

#include "plan/layout.h"
#include "plan/memory.h"
#include "program/program.h"

typedef struct SyncChoice {
    GradientSync sync; /* never SYNC_AUTO */
    const char *why;   /* static: "auto: one microbatch a step, ..." */
} SyncChoice;

const char *sync_name(GradientSync sync); /* as train.gradient_sync says it */

/* `limit`: bytes of a rank (memory_plan_total), 0 for none. The shape of the model must be complete, and
 * c->train.gradient_sync auto. ERR_CONFIG for what no run could be laid out by. */
ErrorCode sync_choose(const Config *c, int world, double limit, SyncChoice *out, Error *err);

#endif
