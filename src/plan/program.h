/* A training step as data: the list of actions that a rank executes in one optimizer step, made before the first step and never
 * changed. The engine executes it, the memory plan is read off it, `weft plan --program` prints it.
 *
 *     LOAD   m     put microbatch m into tensor memory
 *     FWD    u m   forward of unit u on microbatch m; the last unit also makes the loss
 *     BWD    u m   backward of unit u, both halves
 *     BWD_IN u m   backward, only the gradient of the input
 *     BWD_W  u m   backward, only the gradient of the weights
 *     TIE          add the head's gradient to the embedding's (tied embeddings)
 *     NORM         gradient norm, count of non-finite gradients, clip coefficient
 *     UPDATE u     optimizer step of unit u, and its compute copy
 *
 * Invariants, checked by program_check
 *  1. Each FWD u m comes once, after FWD u-1 m (LOAD m for u = 0).
 *  2. Each (u, m) has one BWD, or one BWD_IN followed later by one BWD_W; inputs go backward after FWD of the last unit and
 *     after the input half of u+1.
 *  3. The weight halves of a unit come in ascending order of microbatches, so that sums do not depend on the schedule.
 *  4. TIE, NORM, UPDATE come once, in this order, after everything else. */
#ifndef WEFT_PLAN_PROGRAM_H
#define WEFT_PLAN_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

typedef enum ActionKind {
    ACT_LOAD,
    ACT_FWD,
    ACT_BWD,
    ACT_BWD_IN,
    ACT_BWD_W,
    ACT_TIE,
    ACT_NORM,
    ACT_UPDATE,
    ACT_KINDS
} ActionKind;

typedef struct Action {
    ActionKind kind;
    int unit;       /* -1 where there is none */
    int microbatch; /* -1 where there is none */
} Action;

typedef struct Program {
    int units, microbatches;
    bool tied;
    bool split_backward; /* BWD_IN and BWD_W apart */
    int count, capacity;
    Action *actions;
} Program;

typedef struct ProgramSpec {
    int units, microbatches;
    bool tied, split_backward;
} ProgramSpec;

/* One device: microbatches one after the other. With split_backward the weight halves of a microbatch follow its input halves.
 */
void program_lower(Program *p, ProgramSpec spec);
/* Forward only, over one microbatch: evaluation. */
void program_lower_evaluation(Program *p, int units);
void program_free(Program *p);
ErrorCode program_check(const Program *p, Error *err);

const char *action_name(ActionKind kind);
/* One line an action; runs of the same kind over consecutive units are folded ("FWD 0..13 m0") unless `whole`. */
void program_print(const Program *p, bool whole, Text *out);

#endif
