/* Groups the files of a source into token caches: a changed file invalidates its own cache only. Large files
 * have one cache each. Small ones share one, since each cache costs a directory, a lock and syncs. */
#ifndef WEFT_DATA_TOKEN_UNITS_H
#define WEFT_DATA_TOKEN_UNITS_H

#include <stdbool.h>

#include "data/fingerprint.h"

/* Minimum size of a cache of a source with these files: 8 MiB; two, four and eight times that for sources
 * above 8, 16 and 32 GiB, since each cache is a memory map and Linux limits their number. It grows in steps
 * because another minimum leads to other caches. */
uint64_t token_unit_least(const Fingerprint *prints, size_t count);
/* Number of the files prints[first, count) that the cache starting at `first` takes. Their stored bytes reach
 * `least`, unless they are the last, and are at most eight times that, unless it is a single file. */
size_t token_unit_files(const Fingerprint *prints, size_t first, size_t count, uint64_t least);
/* Whether the sizes alone decide which caches there are: no file that may end one is too small to end it
 * whatever its hash. */
bool token_units_by_size(const Fingerprint *prints, size_t count, uint64_t least);

#endif
