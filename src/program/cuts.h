/* Where a run of elements is cut into shares: as even as may be, without cutting what must stay whole.
 *
 * Shares are runs one after the other, of at most as many elements as the smallest number that is enough for
 * all, so nothing is padded; the last ones are shorter, or empty. Where nothing must stay whole all but the
 * last are equal, and begin at whole cache lines. */
#ifndef WEFT_PROGRAM_CUTS_H
#define WEFT_PROGRAM_CUTS_H

#include "comm/comm.h"

/* What must stay whole: elements first <= e < end. */
typedef struct Stretch {
    int64_t first, end;
} Stretch;

/* stretches: ascending, not overlapping. shares: [count], ascending. */
void cut_evenly(int64_t elements, const Stretch *stretches, int stretch_count, int count, CommPart *shares);

/* Gives the shares to their owners in another order: who has least so far takes the largest. */
void cut_assign(CommPart *shares, int count, const int64_t *load /* [count] elements that each has */);

#endif
