/* Which token caches of a directory nobody needs any more, and removing them.
 *
 * A cache goes when no configuration that is named uses it, no process has it open (data/cache_use.h), and
 * its last use is older than a limit; an interrupted build when it has rested for a day, or for that limit
 * where it is shorter. So does `fingerprints/`, the records of earlier versions. A directory that holds
 * anything that weft did not write is left as it is; no link is followed. */
#ifndef WEFT_DATA_CACHE_PRUNE_H
#define WEFT_DATA_CACHE_PRUNE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef enum CacheVerdict { CACHE_GOES, CACHE_OPEN, CACHE_NAMED, CACHE_RECENT, CACHE_FOREIGN } CacheVerdict;

typedef struct CacheEntry {
    char *name; /* of the directory */
    CacheVerdict verdict;
    double bytes, last_use; /* of its files; seconds since 1970 */
    bool interrupted;       /* a build that was not finished */
    const char *user;       /* CACHE_NAMED: by which name */
    char *foreign;          /* CACHE_FOREIGN: a name in it */
    char *source;           /* the first file that it was made of; "": not known */
    size_t more_files;
} CacheEntry;

typedef struct CacheRules {
    double days;                                            /* since the last use */
    bool remove;                                            /* else only what would go is found out */
    const char *(*user)(const void *ctx, const char *name); /* who is named and uses the cache; or NULL */
    const void *ctx;
} CacheRules;

typedef struct CacheList {
    CacheEntry *items; /* by name */
    size_t count, capacity;
} CacheList;

/* Entries with CACHE_GOES are gone on success with rules.remove. The list is the caller's after a failure,
 * too. */
ErrorCode cache_prune(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err);
void cache_list_free(CacheList *list);

#endif
