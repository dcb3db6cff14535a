/* Checks and reports the memory that an opened model needs, before any is allocated. */
#ifndef WEFT_CLI_NEEDS_H
#define WEFT_CLI_NEEDS_H

#include "comm/comm.h"
#include "plan/rank.h"

typedef struct NeedsSpec {
    size_t more;       /* bytes of tensor memory that the caller allocates in addition to the plan's */
    const char *flags; /* of the verb: those that make its passes smaller */
    bool quiet;        /* report only if it does not fit */
} NeedsSpec;

/* Sums the inference plan over all ranks; rank 0 reports it. Collective: ERR_MEMORY on all ranks if a machine
 * or a GPU has less free memory than its ranks need together. */
ErrorCode needs_check(Comm *comm, Device *d, const RankPlan *plan, const NeedsSpec *spec, Error *err);

#endif
