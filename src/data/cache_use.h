/* Which token caches of a directory are in use, so that nobody removes them.
 *
 * CACHE_DIR/in-use is an empty file with a byte for each cache, at an offset that is made of the cache's
 * name. A user of a cache holds a shared lock on its byte from before it looks for the cache until its
 * process ends; prune takes the byte alone, without waiting. */
#ifndef WEFT_DATA_CACHE_USE_H
#define WEFT_DATA_CACHE_USE_H

#include <stdbool.h>

#include "base/error.h"

#define CACHE_USE_FILE "in-use"

typedef struct CacheUse CacheUse;

/* Of a directory that is there. One in which nothing can be locked is used all the same, with a warning. */
CacheUse *cache_use_open(const char *cache_dir);
/* Holds a cache, there or not yet, by the name of its directory; waits while it is being removed. Once more
 * is fine. */
void cache_use_hold(CacheUse *use, const char *name);
/* Writes down the time of last use of what was held, and lets go. NULL is fine. */
void cache_use_close(CacheUse *use);

/* For who removes: fails where nothing can be locked. Closed by cache_use_close. */
ErrorCode cache_use_open_claims(CacheUse **use, const char *cache_dir, Error *err);
/* *claimed: nobody uses the cache, and nobody comes to until it is released. */
ErrorCode cache_use_claim(CacheUse *use, const char *name, bool *claimed, Error *err);
void cache_use_release(CacheUse *use, const char *name);

#endif
