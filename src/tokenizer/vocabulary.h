/* Tokens: bytes by id, and ids by bytes.
 *
 * Filled once by a reader, then constant. Invariants after vocabulary_seal succeeded: ids are 0 .. count - 1
 * without gaps; no two text tokens have the same bytes, no two byte tokens stand for one byte, and no two of
 * the others have the same spelling. */
#ifndef WEFT_TOKENIZER_VOCABULARY_H
#define WEFT_TOKENIZER_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum TokenKind {
    TOKEN_NONE,             /* not filled yet */
    TOKEN_TEXT,             /* made by merging bytes; found by its bytes */
    TOKEN_INERT,            /* in the file, but spelled outside the byte alphabet: no text leads to it */
    TOKEN_ADDED,            /* cut out of raw text before anything else */
    TOKEN_ADDED_NORMALIZED, /* cut out after normalization */
    TOKEN_SPECIAL,          /* never matched in text */
    TOKEN_BYTE /* byte fallback: one byte of a character without a token; not found by its bytes */
} TokenKind;

/* Namespaces: one string may be a token in each of them. */
typedef enum TokenName {
    NAME_TEXT,    /* bytes that text leads to */
    NAME_LITERAL, /* the spelling itself, not decoded by the file's alphabet */
    NAME_BYTE
} TokenName;

typedef struct Token {
    const char *bytes;
    uint32_t length;
    TokenKind kind;
    TokenName name;
} Token;

typedef struct Vocabulary {
    Token *tokens; /* [capacity] */
    int32_t count, capacity;
    char *arena; /* bytes of all tokens */
    size_t arena_used, arena_size;
    int32_t *slots; /* hash index: id, or -1; the number of slots is mask + 1 */
    size_t mask;
} Vocabulary;

#define VOCABULARY_MAX (1 << 24)

/* Allocates space for `capacity` tokens with `arena_size` bytes in total. */
ErrorCode vocabulary_init(Vocabulary *v, const char *where, size_t capacity, size_t arena_size, Error *err);
void vocabulary_free(Vocabulary *v);

/* Sets a token. Refuses ids outside [0, capacity), a duplicate id or text, and an empty token. The namespace
 * follows from the kind: text, byte, literal for the rest. */
ErrorCode vocabulary_set(Vocabulary *v, const char *where, int64_t id, const char *bytes, size_t length,
                         TokenKind kind, Error *err);
/* Ends the additions. Refuses gaps. */
ErrorCode vocabulary_seal(const Vocabulary *v, const char *where, Error *err);
/* The tokens of the 256 bytes in a namespace. Refuses a vocabulary that lacks one. */
ErrorCode vocabulary_bytes(const Vocabulary *v, const char *where, TokenName name, int32_t ids[256],
                           Error *err);

/* Id of a text token by its bytes, or -1. Finds added tokens, but not special ones. */
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length);
/* Id of the token of that name and namespace, whatever its kind, or -1. */
int32_t vocabulary_find_name(const Vocabulary *v, TokenName name, const char *bytes, size_t length);
/* Changes the kind of token `id`; its namespace stays. */
void vocabulary_set_kind(Vocabulary *v, int32_t id, TokenKind kind);

#endif
