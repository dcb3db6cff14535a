/* Files of token ids that another program has made: NumPy's .npy (uint16, uint32, int32), token files of
 * llm.c, data of Megatron with its index (formats/token_index.h), and arrays without a header (nanoGPT,
 * OLMo), whose type the caller knows.
 *
 * Ids are checked against the vocabulary. Documents are told by an id that stands behind each of them, or in
 * front of each; the last one ends with the file. */
#ifndef WEFT_FORMATS_TOKEN_FILE_H
#define WEFT_FORMATS_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/choices.h"
#include "base/error.h"

/* Type of the ids in a token file; auto: the header's. */
#define TOKEN_TYPES(X) \
    X(TOKEN_TYPE_AUTO, "auto") X(TOKEN_UINT16, "uint16") X(TOKEN_UINT32, "uint32") X(TOKEN_INT32, "int32")
typedef enum TokenType { TOKEN_TYPES(CHOICE_CONSTANT) } TokenType;
/* Where the id between documents stands. auto: in front in a file of llm.c, and in one that begins with it
 * and does not end with it; else behind. */
#define TOKEN_BOUNDARIES(X) X(BOUNDARY_AUTO, "auto") X(BOUNDARY_END, "end") X(BOUNDARY_START, "start")
typedef enum TokenBoundary { TOKEN_BOUNDARIES(CHOICE_CONSTANT) } TokenBoundary;

typedef struct TokenFileOptions {
    TokenType type;
    TokenBoundary boundary;
    int32_t end;         /* the id between documents; -1: the file is one document */
    uint64_t vocabulary; /* ids are below it */
    const char *index;   /* path of Megatron's index, which has type and documents; else NULL */
} TokenFileOptions;

typedef struct TokenFile TokenFile;

ErrorCode token_file_open(TokenFile **file, const char *path, const TokenFileOptions *options, Error *err);
void token_file_close(TokenFile *file); /* NULL is fine */
TokenType token_file_type(const TokenFile *file);

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
