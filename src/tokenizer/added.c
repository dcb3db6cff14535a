/* Finds added tokens in text: leftmost first, and the longest of those that start together.
 *
 *  A1. Sealed tokens are sorted by their first byte, then longest first; starts[b] .. starts[b + 1] are those
 *      that begin with byte b. So each position in the text costs one look-up, and the first match is the
 *      right one.
 *  A2. An empty set is never searched: added_next returns false at once.
 *  A3. Flags are applied to a match after it was found, never to the search: a token that is refused for
 *      being inside a word, or skipped for being special, still consumes the text it matched. The automaton
 *      of `tokenizers` does the same.
 *  A4. White space that a match takes (`rstrip`) is still searched: a token inside it is a match of its own.
 *      A token with `lstrip` starts after that white space, so nothing is left of it, and `tokenizers` drops
 *      empty matches. */
#include "tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tokenizer/normalize.h"
#include "tokenizer/utf8.h"

void added_put(AddedSet *set, const AddedToken *token, const char *text, size_t length) {
    if (set->count == set->capacity) {
        set->capacity = set->capacity ? 2 * set->capacity : 64;
        set->tokens = mem_grow(set->tokens, set->capacity * sizeof *set->tokens);
    }
    AddedToken *copy = &set->tokens[set->count++];
    *copy = *token;
    copy->text = mem_alloc(length + 1);
    memcpy(copy->text, text, length);
    copy->length = length;
}

void added_copy_all(AddedSet *to, const AddedSet *from) {
    for (size_t i = 0; i < from->count; i++) {
        AddedToken token = from->tokens[i];
        token.special = false;
        added_put(to, &token, from->tokens[i].text, token.length);
    }
}

/* Two tokens can have the same text only after normalization. Then special ones come first, as in
 * `tokenizers`, and ids break ties, so that the order does not depend on qsort. */
static int longer_first(const void *a, const void *b) {
    const AddedToken *x = a, *y = b;
    unsigned char p = (unsigned char)x->text[0], q = (unsigned char)y->text[0];
    if (p != q) return p < q ? -1 : 1;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    if (x->special != y->special) return x->special ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* A set of special tokens only would skip all its matches, so it need not be searched. Nearly all tokenizers
 * have special tokens, few have other added ones. */
static bool only_special(const AddedSet *set) {
    for (size_t i = 0; i < set->count; i++) {
        if (!set->tokens[i].special) return false;
    }
    return true;
}

/* Builds the table of starts: each token increases the ends of its first byte and of all later ones. */
void added_seal(AddedSet *set) {
    if (only_special(set)) {
        added_free(set);
        return;
    }
    qsort(set->tokens, set->count, sizeof *set->tokens, longer_first);
    for (size_t i = 0; i < set->count; i++) {
        for (int b = (unsigned char)set->tokens[i].text[0] + 1; b <= 256; b++) set->starts[b] = i + 1;
    }
}

void added_free(AddedSet *set) {
    for (size_t i = 0; i < set->count; i++) free(set->tokens[i].text);
    free(set->tokens);
    *set = (AddedSet){0};
}

/* The longest token that text begins with, or NULL. */
static const AddedToken *token_at(const AddedSet *set, const char *text, size_t left) {
    unsigned char first = (unsigned char)text[0];
    for (size_t k = set->starts[first]; k < set->starts[first + 1]; k++) {
        const AddedToken *token = &set->tokens[k];
        if (token->length <= left && memcmp(token->text, text, token->length) == 0) return token;
    }
    return NULL;
}

/* Whether the last character of text[0, length) is part of a word. */
static bool word_ends(const char *text, size_t length) {
    size_t lead = length;
    while (lead > 0 && ((unsigned char)text[--lead] & 0xC0) == 0x80) continue;
    uint32_t code;
    return length > 0 && text_utf8(text + lead, length - lead, &code) > 0 && unicode_is_word(code);
}

static bool word_begins(const char *text, size_t length) {
    uint32_t code;
    return length > 0 && text_utf8(text, length, &code) > 0 && unicode_is_word(code);
}

static bool counts(const AddedToken *token, const char *text, size_t length, size_t at) {
    if (token->special) return false;
    if (!token->single_word) return true;
    size_t end = at + token->length;
    return !word_ends(text, at) && !word_begins(text + end, length - end);
}

/* Length of the white space at the start of text[0, length), for a token with `rstrip`. */
size_t added_space_behind(const AddedSet *set, const char *text, size_t length) {
    size_t taken = utf8_leading_space(text, length);
    const char *mark = set->marked ? memchr(text, ' ', taken) : NULL;
    return mark ? (size_t)(mark - text) : taken;
}

/* Length of the white space at its end, for a token with `lstrip`. */
static size_t space_before(const AddedSet *set, const char *text, size_t length) {
    size_t taken = utf8_trailing_space(text, length);
    const char *mark = set->marked ? memrchr(text + length - taken, ' ', taken) : NULL;
    return mark ? (size_t)(text + length - mark) - 1 : taken;
}

bool added_next(const AddedSet *set, const char *text, size_t length, AddedSearch *search,
                AddedMatch *match) {
    if (set->count == 0) return false;
    for (size_t at = search->at; at < length;) {
        const AddedToken *token = token_at(set, text + at, length - at);
        if (!token || !counts(token, text, length, at)) {
            at += token ? token->length : 1;
            continue;
        }
        size_t start = at, end = at + token->length;
        at = end;
        if (token->lstrip) start -= space_before(set, text, start);
        if (start < search->taken) start = search->taken; /* the previous match has taken that white space */
        if (token->rstrip) end += added_space_behind(set, text + end, length - end);
        if (token->lstrip && start >= end) continue; /* A4 */
        *search = (AddedSearch){at, end};
        *match = (AddedMatch){start, end, token->id};
        return true;
    }
    return false;
}
