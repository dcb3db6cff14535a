/* Distinct words and their counts: a hash table over copies of their bytes.
 *
 *  W1. `words` is in order of first occurrence, so that results do not depend on hashing.
 *  W2. Hashes are stored with the words: growing or merging tables does not read the bytes again.
 *  W3. Bytes are in blocks that never move, so that words may point into them while the table grows.
 *  W4. Slots hold index + 1 of a word; at most half of them are used, so that searches end. */
#include "tokenizer/word_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"

#define BLOCK_SIZE ((size_t)1 << 20)

typedef struct WordBlock {
    struct WordBlock *next;
    size_t used, size;
    char bytes[];
} WordBlock;

/* The slot of the word, or the free one for it. */
static size_t slot_of(const WordTable *t, const char *bytes, size_t length, uint64_t hash) {
    size_t slot = hash & t->mask;
    for (; t->slots[slot]; slot = (slot + 1) & t->mask) {
        const Word *word = &t->words[t->slots[slot] - 1];
        if (word->hash == hash && word->length == length && memcmp(word->bytes, bytes, length) == 0) break;
    }
    return slot;
}

/* The order does not matter: all words are different, so none is compared. */
static void grow_slots(WordTable *t) {
    size_t slots = t->slots ? (t->mask + 1) * 2 : 1024;
    free(t->slots);
    t->slots = mem_alloc_array(slots, sizeof *t->slots);
    t->mask = slots - 1;
    for (size_t i = 0; i < t->count; i++) {
        size_t slot = t->words[i].hash & t->mask;
        while (t->slots[slot]) slot = (slot + 1) & t->mask;
        t->slots[slot] = i + 1;
    }
}

/* The rest of a block that a word does not fit into is wasted: words are short and blocks are a megabyte. */
static const char *keep_bytes(WordTable *t, const char *bytes, size_t length) {
    WordBlock *block = t->blocks;
    if (!block || block->size - block->used < length) {
        size_t size = length > BLOCK_SIZE ? length : BLOCK_SIZE;
        block = mem_alloc(sizeof *block + size);
        block->next = t->blocks;
        block->size = size;
        t->blocks = block;
    }
    char *copy = block->bytes + block->used;
    memcpy(copy, bytes, length);
    block->used += length;
    return copy;
}

static size_t find_hashed(WordTable *t, const char *bytes, size_t length, uint64_t hash) {
    if (!t->slots || t->count * 2 > t->mask) grow_slots(t);
    size_t slot = slot_of(t, bytes, length, hash);
    if (t->slots[slot]) return t->slots[slot] - 1;
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? t->capacity * 2 : 1024;
        t->words = mem_grow(t->words, t->capacity * sizeof *t->words);
    }
    t->words[t->count] = (Word){keep_bytes(t, bytes, length), hash, 0, (uint32_t)length};
    t->slots[slot] = ++t->count;
    return t->count - 1;
}

size_t word_table_find(WordTable *t, const char *bytes, size_t length) {
    return find_hashed(t, bytes, length, hash64(bytes, length));
}

/* Words of `other` follow the existing ones in its order, so adding up tables in a fixed order gives a fixed
 * order of words. */
void word_table_absorb(WordTable *t, const WordTable *other) {
    for (size_t i = 0; i < other->count; i++) {
        const Word *word = &other->words[i];
        size_t at = find_hashed(t, word->bytes, word->length, word->hash);
        t->words[at].count += word->count;
    }
}

void word_table_free(WordTable *t) {
    while (t->blocks) {
        WordBlock *next = t->blocks->next;
        free(t->blocks);
        t->blocks = next;
    }
    free(t->words);
    free(t->slots);
    *t = (WordTable){0};
}
