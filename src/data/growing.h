/* Training data that is tokenized while it is read: the caches of data.order: stream, their order
 * (data/block_order.h), and a thread that builds what is missing of them, in the order of use and at a low
 * priority.
 *
 * Each process of a run has one. Of those that share a cache directory one builds a cache, the others wait
 * for its lock and find it complete; all read its shards as they appear. */
#ifndef WEFT_DATA_GROWING_H
#define WEFT_DATA_GROWING_H

#include "data/block_order.h"
#include "data/token_build.h"

typedef struct Growing Growing;

/* Called by the thread that builds, for units that are late, in the order of building. */
typedef struct GrowingArrivals {
    /* Waits for the files of a unit. Sets their prints, and dir (to be freed by the caller) and key of a unit
     * that has none yet. *here false: the wait was ended, since the dataset is closed. */
    ErrorCode (*await)(void *context, size_t unit, const CorpusFile *files, Fingerprint *prints, TokenUnit *u,
                       bool *here, Error *err);
    void (*release)(void *context, size_t unit); /* it is tokenized */
    void *context;
} GrowingArrivals;

typedef struct GrowingSpec {
    TokenBuild build; /* without files, prints and units */
    BlockOrderSpec order;
    GrowingArrivals arrivals;
    const uint32_t *slots; /* [sources] share of each in a mixture; NULL: they are one corpus */
} GrowingSpec;

Growing *growing_open(void);
/* Adds the next source. Strings that the files point to must outlive it. */
void growing_add(Growing *g, const CorpusFile *files, const Fingerprint *prints, size_t count,
                 const TokenUnit *units, size_t unit_count);
/* After growing_begin: all units in the order of building, numbered in the order of growing_add. */
size_t growing_queue(const Growing *g, const size_t **units);
atomic_ullong *growing_beats(Growing *g); /* of its thread, and those that work for it */
/* After the last source. Nothing is built before the first question for a sample. */
void growing_begin(Growing *g, const GrowingSpec *spec);
/* Waits for the job in progress; what is not committed is given up. NULL is fine. */
void growing_close(Growing *g);

/* Whether sample `index` of a group is there. A failure to build is reported here, whatever is asked. */
ErrorCode growing_ready(Growing *g, size_t group, uint64_t index, bool *ready, Error *err);
BlockOrder *growing_order(Growing *g);

#endif
