/* Which files of a source share a token cache: a file that changes costs its cache and no other. Large files
 * have one each; small ones share one, since each costs a directory, a lock and syncs. */
#ifndef WEFT_DATA_TOKEN_UNITS_H
#define WEFT_DATA_TOKEN_UNITS_H

#include "data/fingerprint.h"

/* Files of one cache, from `first` on: how many of prints[first, count). Bytes of them as stored: `least`,
 * unless they are the last, and eight times as many at most, unless it is one file. least 0: 8 MiB. */
size_t token_unit_files(const Fingerprint *prints, size_t first, size_t count, uint64_t least);

#endif
