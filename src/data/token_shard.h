/* Writing one shard of a token cache. */
#ifndef WEFT_DATA_TOKEN_SHARD_H
#define WEFT_DATA_TOKEN_SHARD_H

#include "data/token_cache.h"

typedef struct ShardWriter ShardWriter;

/* Starts the shard that follows `previous` (NULL: the first) in a temporary file beside its place. */
ErrorCode shard_open(ShardWriter **writer, const char *dir, const uint8_t key[32], uint64_t vocabulary,
                     const TokenHeader *previous, Error *err);
/* Ids in [0, vocabulary), and the ends of documents among them, counted from ids[0]. An end without a token
 * since the one before (an empty document) is left out. */
ErrorCode shard_add(ShardWriter *writer, const int32_t *ids, uint64_t count, const uint64_t *ends,
                    uint64_t end_count, uint64_t text_bytes, Error *err);
/* Counts so far; the fields next_* and last are the caller's to set before part_commit. */
TokenHeader *shard_header(ShardWriter *writer);
TokenFigures *shard_figures(ShardWriter *writer); /* the caller's, but for the checksum */
/* Makes the shard visible, whole, under its name. Frees the writer on failure too. */
ErrorCode shard_commit(ShardWriter *writer, Error *err);
void shard_abandon(ShardWriter *writer); /* removes the temporary file; NULL is fine */

#endif
