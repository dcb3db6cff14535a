/* Files of token ids that another program has made: NumPy's .npy (uint16, uint32, int32), token files of llm.c,
 * and arrays without a header (nanoGPT, OLMo), whose type the caller knows.
 *
 * Ids are checked against the vocabulary. Documents are told by an id that stands behind each of them, or in
 * front of each; the last one ends with the file. */
#ifndef WEFT_DATA_TOKEN_FILE_H
#define WEFT_DATA_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "data/config.h"

typedef struct TokenFileOptions {
    TokenType type;
    TokenBoundary boundary;
    int32_t end;         /* the id between documents; -1: the file is one document */
    uint64_t vocabulary; /* ids are below it */
} TokenFileOptions;

typedef struct TokenFile TokenFile;

ErrorCode token_file_open(TokenFile **file, const char *path, const TokenFileOptions *options, Error *err);
void token_file_close(TokenFile *file); /* NULL is fine */

/* A part of a document, valid until the next call. */
typedef struct TokenPiece {
    const int32_t *ids;
    size_t count;
    uint64_t first; /* number of ids[0] in the file */
    bool ends;      /* the document */
} TokenPiece;

/* Parts depend on the file alone, wherever reading began. *more is false at the end of the file. */
ErrorCode token_file_next(TokenFile *file, TokenPiece *piece, bool *more, Error *err);
ErrorCode token_file_skip_to(TokenFile *file, uint64_t token, Error *err);
uint64_t token_file_stored_position(const TokenFile *file);

#endif
