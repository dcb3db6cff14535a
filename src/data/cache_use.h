/* Records which token caches of a directory are in use, so that nobody removes them.
 *
 * CACHE_DIR/in-use is an empty file with one lockable byte for each cache, at an offset derived from the
 * cache's name. A user of a cache holds a shared lock on its byte from before it looks for the cache until
 * its process ends. Prune takes an exclusive lock on the byte, without waiting. */
#ifndef WEFT_DATA_CACHE_USE_H
#define WEFT_DATA_CACHE_USE_H

#include <stdbool.h>

#include "base/error.h"

#define CACHE_USE_FILE "in-use"

typedef struct CacheUse CacheUse;

/* The directory must exist. Where the file system supports no locks, caches are used without them, after a
 * warning. */
CacheUse *cache_use_open(const char *cache_dir);
/* Holds a cache by the name of its directory, whether or not it exists yet. Waits while the cache is being
 * removed. Idempotent. */
void cache_use_hold(CacheUse *use, const char *name);
/* Records the time of last use of all held caches and releases them. NULL is fine. */
void cache_use_close(CacheUse *use);

/* For removal. Fails where locks are not supported. Close with cache_use_close. */
ErrorCode cache_use_open_claims(CacheUse **use, const char *cache_dir, Error *err);
/* *claimed: nobody uses the cache, and nobody can start to until it is released. */
ErrorCode cache_use_claim(CacheUse *use, const char *name, bool *claimed, Error *err);
void cache_use_release(CacheUse *use, const char *name);

#endif
