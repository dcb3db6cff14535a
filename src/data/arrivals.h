/* Remote files that are fetched while a run trains, in the order in which they are tokenized.
 *
 *     arrivals_add      the files of a cache, one cache after the other
 *     arrivals_await    waits until the files of a cache are there; starts fetching
 *     arrivals_release  they are tokenized: their copies may go
 *     arrivals_stop     ends transfers and waits, from another thread
 *
 *  A1. A copy is held from before it is looked for until its cache is released, so that nobody removes it.
 *  A2. Files of at most AHEAD caches are fetched before their turn, and with data.remote_cache_gib of at most
 *      half of that. Those of the cache whose turn it is are always fetched, so that nobody waits for ever.
 *  A3. Only one thread awaits and releases, in the order of arrivals_add. */
#ifndef WEFT_DATA_ARRIVALS_H
#define WEFT_DATA_ARRIVALS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "remote/remote.h"

typedef struct Arrivals Arrivals;

/* Nothing else may use `remote` between the first arrivals_await and arrivals_close but remote_remember.
 * beats: as of remote_fetch_queue. */
Arrivals *arrivals_open(Remote *remote, const char *label, atomic_ullong *beats);
void arrivals_add(Arrivals *a, RemoteFile *files, size_t count);
/* *here is false after arrivals_stop. A failure to fetch any file is reported when a cache needs files that
 * have not come. */
ErrorCode arrivals_await(Arrivals *a, size_t cache, bool *here, Error *err);
void arrivals_release(Arrivals *a, size_t cache);
void arrivals_stop(Arrivals *a);  /* NULL is fine */
void arrivals_close(Arrivals *a); /* NULL is fine */

#endif
