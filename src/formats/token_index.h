/* The index of a Megatron data set: where the documents of PREFIX.bin end, and the type of its ids
 * (PREFIX.idx). Elsewhere called: IndexedDataset. */
#ifndef WEFT_FORMATS_TOKEN_INDEX_H
#define WEFT_FORMATS_TOKEN_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/token_file.h"

typedef struct TokenIndex TokenIndex;

/* Path of the index next to `path` if that is PREFIX.bin and PREFIX.idx is an index, else NULL; the caller
 * frees it. */
char *token_index_path(const char *path);

bool token_index_is(const char *path); /* by its beginning */

/* ERR_DATA unless the index fits a file of `bytes` bytes, whose sequences follow each other without gaps. */
ErrorCode token_index_open(TokenIndex **index, const char *path, uint64_t bytes, Error *err);
void token_index_close(TokenIndex *index); /* NULL is fine */
TokenType token_index_type(const TokenIndex *index);
/* The first end of a document behind `token`, which is below the number of tokens. */
uint64_t token_index_end(const TokenIndex *index, uint64_t token);

#endif
