/* Tokens: bytes by id, and ids by bytes.
 *
 * Filled once by a reader, then constant. Invariants after vocabulary_seal succeeded: ids are 0 .. count - 1
 * without gaps; every single byte has a text token; no two text tokens have the same bytes, and no two of the
 * others the same spelling. */
#ifndef WEFT_DATA_VOCABULARY_H
#define WEFT_DATA_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum TokenKind {
    TOKEN_NONE,             /* not filled yet */
    TOKEN_TEXT,             /* made by merging bytes; found by its bytes */
    TOKEN_INERT,            /* in the file, but spelled outside the byte alphabet: no text can lead to it */
    TOKEN_ADDED,            /* cut out of raw text before anything else */
    TOKEN_ADDED_NORMALIZED, /* cut out after normalization */
    TOKEN_SPECIAL           /* never from text */
} TokenKind;

typedef struct Token {
    const char *bytes;
    uint32_t length;
    TokenKind kind;
    /* bytes are the spelling itself, not what the byte alphabet makes of it: a name space of its own */
    bool literal;
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

/* Room for `capacity` tokens of `arena_size` bytes together. */
ErrorCode vocabulary_init(Vocabulary *v, const char *where, size_t capacity, size_t arena_size, Error *err);
void vocabulary_free(Vocabulary *v);

/* Refuses ids outside [0, capacity), an id or a text given twice, an empty token. Only TOKEN_TEXT is not
 * literal. */
ErrorCode vocabulary_set(Vocabulary *v, const char *where, int64_t id, const char *bytes, size_t length,
                         TokenKind kind, Error *err);
/* Nothing more will be set. Refuses gaps and missing bytes. */
ErrorCode vocabulary_seal(const Vocabulary *v, const char *where, Error *err);

/* Id of a text token, or -1. */
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length);
/* Id of an inert token by its spelling, or -1. */
int32_t vocabulary_find_inert(const Vocabulary *v, const char *text, size_t length);
/* Token `id` becomes one of another kind: its bytes no longer lead to it. */
void vocabulary_retire(Vocabulary *v, int32_t id, TokenKind kind);

#endif
