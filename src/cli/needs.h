/* The memory that an opened model takes, reported before any is taken. */
#ifndef WEFT_CLI_NEEDS_H
#define WEFT_CLI_NEEDS_H

#include "comm/comm.h"
#include "plan/rank.h"

typedef struct NeedsSpec {
    size_t more;       /* bytes of tensor memory that the caller takes alongside the plan's */
    const char *flags; /* of the verb, which make its passes smaller */
    bool quiet;        /* only what does not fit is reported */
} NeedsSpec;

/* Of the plan, which is for inference, on all ranks: rank 0 reports it. Collective: ERR_MEMORY on all ranks
 * alike where a machine or a GPU has less free than its ranks take together. */
ErrorCode needs_check(Comm *comm, Device *d, const RankPlan *plan, const NeedsSpec *spec, Error *err);

#endif
