/* Finds the token caches of a directory that are no longer needed, and removes them.
 *
 * A complete cache is removed when no named configuration uses it, no process has it open (data/cache_use.h),
 * and its last use is older than a limit. An interrupted build is removed after a day without changes, or
 * after that limit if it is shorter. `fingerprints/`, the records of earlier versions, is treated the same
 * way. A directory that holds any file that weft did not write is left as it is. Symbolic links are never
 * followed. */
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
    bool interrupted;       /* an unfinished build */
    const char *user;       /* CACHE_NAMED: name of the configuration that uses it */
    char *foreign;          /* CACHE_FOREIGN: a file in it that weft did not write */
    char *source;           /* the first file that it was built from; "": not known */
    size_t more_files;
} CacheEntry;

typedef struct CacheRules {
    double days; /* since the last use */
    bool remove; /* false: only report what would be removed */
    const char *(*user)(const void *ctx,
                        const char *name); /* name of the configuration that uses the cache, or NULL */
    const void *ctx;
} CacheRules;

typedef struct CacheList {
    CacheEntry *items; /* by name */
    size_t count, capacity;
} CacheList;

/* Of an entry that nobody has open. */
CacheVerdict cache_judge(CacheEntry *e, const CacheRules *rules);
/* Adds an entry of this name, which is returned until the next one is added. */
CacheEntry *cache_list_add(CacheList *list, const char *name);
void cache_list_sort(CacheList *list); /* by name */

/* Lists the caches. With rules.remove, all entries with CACHE_GOES have been removed on success. The caller
 * frees the list, also after a failure. */
ErrorCode cache_prune(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err);
void cache_list_free(CacheList *list);

#endif
