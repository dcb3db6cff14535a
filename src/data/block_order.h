/* The order of samples of data.order: stream, which needs only the caches up to a sample, not the whole of a
 * source.
 *
 * A group (one source of a mixture, or all sources together) is a list of caches in an order drawn from
 * the seed. Its windows (stream.h, of each cache by itself) are numbered in that order, and in epoch 0
 * they are shuffled within blocks of `block` windows: sample i is one of block i / block. So it needs the
 * caches up to the end of its block, and neither what follows nor the number of windows. The last block
 * may be shorter; all is tokenized when it is drawn. Later epochs are permutations of all windows.
 *
 * Caches may still be growing, in this process or another one. What a sample is depends on their content
 * alone, not on when it was written. All functions are thread-safe. */
#ifndef WEFT_DATA_BLOCK_ORDER_H
#define WEFT_DATA_BLOCK_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "data/sampler.h"
#include "data/stream.h"
#include "data/token_cache.h"

typedef struct BlockCache {
    char *dir; /* owned by the order; NULL: not known yet (block_order_name) */
    uint8_t key[32];
    size_t source;
} BlockCache;

/* What is there of a source. */
typedef struct BlockSource {
    bool complete;
    uint64_t windows, tokens, documents, text_bytes;
    TokenFigures figures;
} BlockSource;
/* Judges a source whenever more of it is there. */
typedef ErrorCode (*BlockCheck)(void *context, size_t source, const BlockSource *there, Error *err);

typedef struct BlockOrderSpec {
    uint64_t seed, vocabulary;
    int64_t context;
    uint64_t block; /* windows */
    bool document_mask;
    size_t sources;
    bool mixed; /* each source is a group of its own */
    BlockCheck check;
    void *check_context;
} BlockOrderSpec;

typedef struct BlockOrder BlockOrder;

/* Takes caches[count], those of a source after each other. Nothing is opened yet. */
BlockOrder *block_order_open(const BlockOrderSpec *spec, BlockCache *caches, size_t count);
void block_order_close(BlockOrder *o); /* NULL is fine */

/* Names a cache whose files were not known before: index into those of block_order_open. Takes dir. */
void block_order_name(BlockOrder *o, size_t cache, char *dir, const uint8_t key[32]);

size_t block_order_groups(const BlockOrder *o);
/* The caches of a group in the order of their use: indices into those of block_order_open. */
size_t block_order_caches(const BlockOrder *o, size_t group, const size_t **order);

/* Whether sample `index` of a group is tokenized, with its block. Opens what is there by now. An error
 * stays. */
ErrorCode block_order_ready(BlockOrder *o, size_t group, uint64_t index, bool *ready, Error *err);
/* Of a sample that was ready. Its window is numbered in the order of use within its source. */
Sample block_order_at(BlockOrder *o, size_t group, uint64_t index);
ErrorCode block_order_sample(BlockOrder *o, size_t group, uint64_t index, const SampleRow *row,
                             int64_t *valid, Error *err);
/* Opens what is there by now of all groups. */
ErrorCode block_order_grow(BlockOrder *o, Error *err);
BlockSource block_order_source(BlockOrder *o, size_t source);

#endif
