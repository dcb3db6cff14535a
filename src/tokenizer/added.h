/* Added tokens: strings that are cut out of text before byte-pair encoding. The leftmost match wins, and the
 * longest of those that start together.
 *
 * Special tokens are matched too, but stay text: a match of one is skipped together with any other tokens in
 * it, as `tokenizers` does under encode_special_tokens. */
#ifndef WEFT_TOKENIZER_ADDED_H
#define WEFT_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct AddedToken {
    char *text; /* [length], owned by the set */
    size_t length;
    int32_t id;
    bool special;
    bool single_word;    /* not next to a word character */
    bool lstrip, rstrip; /* also matches the white space before, after it */
} AddedToken;

typedef struct AddedSet {
    AddedToken *tokens; /* [count]; when sealed, sorted by first byte, then longest first */
    size_t count, capacity;
    bool marked;        /* a space represents U+2581, which is not white space for lstrip and rstrip */
    size_t starts[257]; /* tokens that begin with byte b: tokens[starts[b] .. starts[b + 1]) */
} AddedSet;

/* Adds a token. Copies `text`, which is not empty; the other members come from `token`. */
void added_put(AddedSet *set, const AddedToken *token, const char *text, size_t length);
/* A copy of an unsealed set in which special tokens match like others. */
void added_copy_all(AddedSet *to, const AddedSet *from);
/* Ends the additions. A set that could only skip its tokens becomes empty. */
void added_seal(AddedSet *set);
void added_free(AddedSet *set);

/* State of a search: `at` is after the last match, `taken` after the white space that it took. */
typedef struct AddedSearch {
    size_t at, taken;
} AddedSearch;

typedef struct AddedMatch {
    size_t start, end; /* with the white space that it takes */
    int32_t id;
} AddedMatch;

size_t added_space_behind(const AddedSet *set, const char *text, size_t length);

/* The next match in valid UTF-8; false when there is none. Begin with a zeroed search. */
bool added_next(const AddedSet *set, const char *text, size_t length, AddedSearch *search, AddedMatch *match);

#endif
