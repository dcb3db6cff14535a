/* Tokens by id, and ids by bytes.
 *
 *  V1. Bytes of all tokens are in one block that is sized before the first is set, so that pointers into it
 *      stay valid.
 *  V2. An id is set once, and a name once. Sealing checks that ids run from 0 without a gap: a gap would be a
 *      row of the embedding for no token.
 *  V3. Text tokens are found by their bytes; special ones are not, so that no text becomes a control token by
 *      its spelling. An added token that is also in the vocabulary is found: merges lead to it, even though
 *      it is cut out earlier elsewhere.
 *  V4. Names are separated by meaning. "<0x0A>" of a Llama vocabulary is the byte 0x0A, which the same
 *      vocabulary may also have as a text token: two ids that decode alike. */
#include "tokenizer/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"

#define SLOT_EMPTY (-1)

/* Twice as many slots as tokens, so that searches are short and always end at a free one. */
ErrorCode vocabulary_init(Vocabulary *v, const char *where, size_t capacity, size_t arena_size, Error *err) {
    if (capacity > VOCABULARY_MAX) {
        return error_set(err, ERR_DATA, "%s: %zu tokens are more than the %d that weft takes", where,
                         capacity, VOCABULARY_MAX);
    }
    size_t slots = 1024;
    while (slots < capacity * 2) slots *= 2;
    *v = (Vocabulary){.capacity = (int32_t)capacity, .arena_size = arena_size, .mask = slots - 1};
    v->tokens = mem_alloc_array(capacity + 1, sizeof *v->tokens);
    v->arena = mem_alloc(arena_size + 1);
    v->slots = mem_alloc_array(slots, sizeof *v->slots);
    for (size_t i = 0; i < slots; i++) v->slots[i] = SLOT_EMPTY;
    return OK;
}

void vocabulary_free(Vocabulary *v) {
    free(v->tokens);
    free(v->arena);
    free(v->slots);
    *v = (Vocabulary){0};
}

/* The slot that holds these bytes, or the free one for them. Retired tokens stay in their slots, so that
 * probe sequences through them stay intact. */
static size_t slot_of(const Vocabulary *v, const char *bytes, size_t length, TokenName name) {
    for (size_t slot = hash64(bytes, length) & v->mask;; slot = (slot + 1) & v->mask) {
        int32_t id = v->slots[slot];
        if (id == SLOT_EMPTY) return slot;
        const Token *token = &v->tokens[id];
        if (token->length == length && token->name == name && memcmp(token->bytes, bytes, length) == 0)
            return slot;
    }
}

/* Refuses an id that is out of range or taken, an empty token and an existing name: each would give two rows
 * to one token, or one row to two. The bytes are copied. */
ErrorCode vocabulary_set(Vocabulary *v, const char *where, int64_t id, const char *bytes, size_t length,
                         TokenKind kind, Error *err) {
    char shown[80];
    error_escape(shown, sizeof shown, bytes, length);
    if (id < 0 || id >= v->capacity) {
        return error_set(err, ERR_DATA,
                         "%s: token \"%s\" has id %lld, but %d tokens must have the ids 0 to %d without gaps",
                         where, shown, (long long)id, v->capacity, v->capacity - 1);
    }
    if (length == 0)
        return error_set(err, ERR_DATA, "%s: the token with id %lld is empty", where, (long long)id);
    if (length > v->arena_size - v->arena_used || length > UINT32_MAX) {
        return error_set(err, ERR_DATA, "%s: token %lld is longer than its file", where, (long long)id);
    }
    Token *token = &v->tokens[id];
    if (token->kind != TOKEN_NONE) {
        char other[80];
        error_escape(other, sizeof other, token->bytes, token->length);
        return error_set(err, ERR_DATA, "%s: tokens \"%s\" and \"%s\" both have the id %lld", where, other,
                         shown, (long long)id);
    }
    char *copy = v->arena + v->arena_used;
    memcpy(copy, bytes, length);
    v->arena_used += length;
    *token = (Token){copy, (uint32_t)length, kind,
                     kind == TOKEN_TEXT   ? NAME_TEXT
                     : kind == TOKEN_BYTE ? NAME_BYTE
                                          : NAME_LITERAL};
    v->count++;
    size_t slot = slot_of(v, bytes, length, token->name);
    if (v->slots[slot] != SLOT_EMPTY) {
        return error_set(err, ERR_DATA, "%s: token \"%s\" is there twice, with the ids %d and %lld", where,
                         shown, v->slots[slot], (long long)id);
    }
    v->slots[slot] = (int32_t)id;
    return OK;
}

/* There are `count` tokens with different ids below capacity: if one is beyond count, another is missing
 * below. */
ErrorCode vocabulary_seal(const Vocabulary *v, const char *where, Error *err) {
    for (int32_t id = 0; id < v->count; id++) {
        if (v->tokens[id].kind == TOKEN_NONE) {
            return error_set(err, ERR_DATA,
                             "%s: no token has the id %d; ids must run from 0 to %d without gaps", where, id,
                             v->count - 1);
        }
    }
    return OK;
}

ErrorCode vocabulary_bytes(const Vocabulary *v, const char *where, TokenName name, int32_t ids[256],
                           Error *err) {
    for (int byte = 0; byte < 256; byte++) {
        ids[byte] = vocabulary_find_name(v, name, &(char){(char)byte}, 1);
        if (ids[byte] >= 0 && v->tokens[ids[byte]].kind != TOKEN_SPECIAL) continue;
        return error_set(
            err, ERR_DATA,
            "%s: no token for the byte 0x%02X, so text would be lost; weft takes vocabularies with "
            "all 256 bytes",
            where, (unsigned)byte);
    }
    return OK;
}

int32_t vocabulary_find_name(const Vocabulary *v, TokenName name, const char *bytes, size_t length) {
    return v->slots[slot_of(v, bytes, length, name)]; /* SLOT_EMPTY is -1 */
}

/* Also called for each non-ASCII character when a tokenizer of SentencePiece's kind encodes, so it costs one
 * hash and usually one comparison. */
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length) {
    int32_t id = vocabulary_find_name(v, NAME_TEXT, bytes, length);
    return id >= 0 && v->tokens[id].kind != TOKEN_SPECIAL ? id : -1;
}

void vocabulary_set_kind(Vocabulary *v, int32_t id, TokenKind kind) { v->tokens[id].kind = kind; }
