/* Cuts a run of elements into shards, as evenly as possible without cutting a run that must stay whole.
 *
 * Shards are consecutive. Their maximum is the smallest that suffices, so nothing is padded; the last shards
 * are shorter, or empty. Where nothing must stay whole, all but the last shard are equal and begin at cache
 * lines. */
#ifndef WEFT_PROGRAM_CUTS_H
#define WEFT_PROGRAM_CUTS_H

#include "comm/comm.h"

/* A run that must stay whole: elements first <= e < end. */
typedef struct WholeRun {
    int64_t first, end;
} WholeRun;

/* whole_runs: ascending, disjoint. Fills shards[count], ascending. */
void cut_evenly(int64_t elements, const WholeRun *whole_runs, int whole_run_count, int count,
                CommRange *shards);

/* Permutes the shards over their owners: the owner with the least load takes the largest shard. */
void cut_assign(CommRange *shards, int count, const int64_t *load /* [count] elements that each has */);

#endif
