/* Added tokens: strings that are cut out of text before byte-pair encoding sees it. The leftmost match
 * counts, the longest where several start together. */
#ifndef WEFT_DATA_ADDED_H
#define WEFT_DATA_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include "data/vocabulary.h"

typedef struct AddedSet {
    int32_t *ids;        /* by first byte, then longest first */
    int32_t starts[257]; /* tokens that begin with byte b: ids[starts[b] .. starts[b + 1]) */
} AddedSet;

/* The tokens of one kind (TOKEN_ADDED or TOKEN_ADDED_NORMALIZED). */
void added_init(AddedSet *set, const Vocabulary *v, TokenKind kind);
void added_free(AddedSet *set);

/* Where the next added token starts at or after `from`, its id in *id; `length` when there is none. */
size_t added_find(const AddedSet *set, const Vocabulary *v, const char *text, size_t length, size_t from,
                  int32_t *id);

#endif
