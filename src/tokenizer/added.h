/* Added tokens: strings that are cut out of text before byte-pair encoding sees it. The leftmost match
 * counts, the longest where several start together.
 *
 * Special tokens are looked for too, but as text: a match of one is passed over, whatever other tokens lie
 * in it, as `tokenizers` does it under encode_special_tokens. */
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
    bool single_word;    /* not beside a letter, a digit or such */
    bool lstrip, rstrip; /* takes the white space before it, behind it, along */
} AddedToken;

typedef struct AddedSet {
    AddedToken *tokens; /* [count]; once sealed by first byte, then longest first */
    size_t count, capacity;
    bool marked;        /* a space stands for U+2581, which is no white space to take along */
    size_t starts[257]; /* tokens that begin with byte b: tokens[starts[b] .. starts[b + 1]) */
} AddedSet;

/* Copies `text`, which is not empty; the other members are taken from `token`. */
void added_put(AddedSet *set, const AddedToken *token, const char *text, size_t length);
/* A copy of an unsealed set in which special tokens are found as others are. */
void added_copy_all(AddedSet *to, const AddedSet *from);
/* Nothing more will be put. A set that could only pass over its tokens becomes empty. */
void added_seal(AddedSet *set);
void added_free(AddedSet *set);

/* Where a search stands: `at` goes on behind the last match, `taken` behind what that match took along. */
typedef struct AddedSearch {
    size_t at, taken;
} AddedSearch;

typedef struct AddedMatch {
    size_t start, end; /* with the white space that goes along */
    int32_t id;
} AddedMatch;

size_t added_space_behind(const AddedSet *set, const char *text, size_t length);

/* The next match in valid UTF-8; false when there is none. Begin with a zeroed search. */
bool added_next(const AddedSet *set, const char *text, size_t length, AddedSearch *search, AddedMatch *match);

#endif
