/* Which files of a source share a token cache: a file that changes costs its cache and no other. Large files
 * have one each; small ones share one, since each costs a directory, a lock and syncs. */
#ifndef WEFT_DATA_TOKEN_UNITS_H
#define WEFT_DATA_TOKEN_UNITS_H

#include "data/fingerprint.h"

/* The least that a cache of a source of these files holds: 8 MiB, and of more than 8, 16, 32 GiB twice, four
 * and eight times that, since each cache is a map in memory, which Linux counts. In steps, since another
 * least makes other caches. */
uint64_t token_unit_least(const Fingerprint *prints, size_t count);
/* Files of one cache, from `first` on: how many of prints[first, count). Bytes of them as stored: `least`,
 * unless they are the last, and eight times as many at most, unless it is one file. */
size_t token_unit_files(const Fingerprint *prints, size_t first, size_t count, uint64_t least);

#endif
