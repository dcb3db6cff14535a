/* Finds the copies of remote files that are no longer needed, and removes them, as data/cache_prune.h does
 * with token caches: those that no named configuration reads, no process holds (remote/store.h), and whose
 * last use is older than a limit; of an interrupted download, after a day. The hash of a copy stays. */
#ifndef WEFT_DATA_COPY_PRUNE_H
#define WEFT_DATA_COPY_PRUNE_H

#include "data/cache_prune.h"

/* Lists the copies in CACHE_DIR/remote, the least recently used first; none if there is no such directory.
 * Else as cache_prune. */
ErrorCode copy_prune(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err);

#endif
