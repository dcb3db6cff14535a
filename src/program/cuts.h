/* Where a run of elements is cut into shards: as even as may be, without cutting what must stay whole.
 *
 * Shards are runs one after the other, of at most as many elements as the smallest number that is enough for
 * all, so nothing is padded; the last ones are shorter, or empty. Where nothing must stay whole all but the
 * last are equal, and begin at whole cache lines. */
#ifndef WEFT_PROGRAM_CUTS_H
#define WEFT_PROGRAM_CUTS_H

#include "comm/comm.h"

/* What must stay whole: elements first <= e < end. */
typedef struct WholeRun {
    int64_t first, end;
} WholeRun;

/* whole_runs: ascending, not overlapping. shards: [count], ascending. */
void cut_evenly(int64_t elements, const WholeRun *whole_runs, int whole_run_count, int count,
                CommRange *shards);

/* Gives the shards to their owners in another order: who has least so far takes the largest. */
void cut_assign(CommRange *shards, int count, const int64_t *load /* [count] elements that each has */);

#endif
