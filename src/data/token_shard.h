/* Writing one shard of a token cache. */
#ifndef WEFT_DATA_TOKEN_SHARD_H
#define WEFT_DATA_TOKEN_SHARD_H

#include "data/token_cache.h"

typedef struct ShardWriter ShardWriter;

/* Starts the shard that follows `previous` (NULL: the first), in a temporary file in `dir`. */
ErrorCode shard_open(ShardWriter **writer, const char *dir, const uint8_t key[32], uint64_t vocabulary,
                     const TokenHeader *previous, Error *err);
/* Adds ids in [0, vocabulary) and the ends of documents among them, counted from ids[0]. An empty document
 * (an end without a token since the previous one) is omitted. */
ErrorCode shard_add(ShardWriter *writer, const int32_t *ids, uint64_t count, const uint64_t *ends,
                    uint64_t end_count, uint64_t text_bytes, Error *err);
/* Counts so far. The caller sets the fields next_* and last before shard_commit. */
TokenHeader *shard_header(ShardWriter *writer);
TokenFigures *shard_figures(ShardWriter *writer); /* set by the caller, except for the checksum */
/* Publishes the complete shard under its name. Frees the writer, also on failure. */
ErrorCode shard_commit(ShardWriter *writer, Error *err);
void shard_abandon(ShardWriter *writer); /* removes the temporary file; NULL is fine */

#endif
