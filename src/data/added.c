/* Added tokens of a kind, found in text: leftmost first, and of those that start at one place the longest.
 *
 *  A1. ids are sorted by their first byte, then longest first; starts[b] .. starts[b + 1] are those that
 *      begin with byte b. So a place in the text costs one look-up, and the first that fits is the one to
 *      take.
 *  A2. Nothing is looked for where there are no such tokens: added_find then says "at the end" at once. */
#include "data/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Ties are broken by id, so that the order does not depend on how qsort treats equals. */
static int longer_first(const void *a, const void *b) {
    const Token *const *x = a, *const *y = b;
    unsigned char p = (unsigned char)(*x)->bytes[0], q = (unsigned char)(*y)->bytes[0];
    if (p != q) return p < q ? -1 : 1;
    if ((*x)->length != (*y)->length) return (*x)->length > (*y)->length ? -1 : 1;
    return *x < *y ? -1 : *x > *y;
}

/* The table of starts is filled from the front: each token moves the ends of its own byte and all after
 * it. */
void added_init(AddedSet *set, const Vocabulary *v, TokenKind kind) {
    *set = (AddedSet){0};
    int32_t count = 0;
    for (int32_t id = 0; id < v->count; id++) count += v->tokens[id].kind == kind;
    if (count == 0) return;
    const Token **sorted = mem_alloc_array((size_t)count, sizeof *sorted);
    int32_t n = 0;
    for (int32_t id = 0; id < v->count; id++) {
        if (v->tokens[id].kind == kind) sorted[n++] = &v->tokens[id];
    }
    qsort(sorted, (size_t)count, sizeof *sorted, longer_first);
    set->ids = mem_alloc_array((size_t)count, sizeof *set->ids);
    for (int32_t i = 0; i < count; i++) {
        set->ids[i] = (int32_t)(sorted[i] - v->tokens);
        for (int b = (unsigned char)sorted[i]->bytes[0] + 1; b <= 256; b++) set->starts[b] = i + 1;
    }
    free(sorted);
}

void added_free(AddedSet *set) {
    free(set->ids);
    *set = (AddedSet){0};
}

size_t added_find(const AddedSet *set, const Vocabulary *v, const char *text, size_t length, size_t from,
                  int32_t *id) {
    if (!set->ids) return length;
    for (size_t i = from; i < length; i++) {
        unsigned char first = (unsigned char)text[i];
        for (int32_t k = set->starts[first]; k < set->starts[first + 1]; k++) {
            const Token *token = &v->tokens[set->ids[k]];
            if (token->length <= length - i && memcmp(token->bytes, text + i, token->length) == 0) {
                *id = set->ids[k];
                return i;
            }
        }
    }
    return length;
}
