/* Writing one part of a token cache. */
#ifndef WEFT_DATA_TOKEN_PART_H
#define WEFT_DATA_TOKEN_PART_H

#include "data/token_cache.h"

typedef struct PartWriter PartWriter;

/* Starts the part that follows `previous` (NULL: the first) in a temporary file beside its place. */
ErrorCode part_open(PartWriter **writer, const char *dir, const uint8_t key[32], uint64_t vocabulary,
                    const TokenHeader *previous, Error *err);
/* Ids in [0, vocabulary), and the ends of documents among them, counted from ids[0]. An end without a token
 * since the one before (an empty document) is left out. */
ErrorCode part_add(PartWriter *writer, const int32_t *ids, uint64_t count, const uint64_t *ends,
                   uint64_t end_count, uint64_t text_bytes, Error *err);
/* Counts so far; the fields next_* and last are the caller's to set before part_commit. */
TokenHeader *part_header(PartWriter *writer);
TokenFigures *part_figures(PartWriter *writer); /* the caller's, but for the checksum */
/* Makes the part visible, whole, under its name. Frees the writer on failure too. */
ErrorCode part_commit(PartWriter *writer, Error *err);
void part_abandon(PartWriter *writer); /* removes the temporary file; NULL is fine */

#endif
