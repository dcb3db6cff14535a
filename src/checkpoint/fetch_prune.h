/* Finds the copies of mirrored checkpoints (checkpoint/fetch.h) that are no longer needed, and removes them,
 * as data/cache_prune.h does with token caches. A process that uses a copy holds it until it ends. */
#ifndef WEFT_CHECKPOINT_FETCH_PRUNE_H
#define WEFT_CHECKPOINT_FETCH_PRUNE_H

#include "data/cache_prune.h"

/* Lists the copies in CACHE_DIR/checkpoints by name; none if there is no such directory. Else as
 * cache_prune. */
ErrorCode fetch_prune(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err);

#endif
