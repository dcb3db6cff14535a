/* A hash table of byte strings with counts. Entries are numbered by insertion. */
#ifndef WEFT_TOKENIZER_WORD_TABLE_H
#define WEFT_TOKENIZER_WORD_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct Word {
    const char *bytes; /* owned by the table */
    uint64_t hash;
    int64_t count;
    uint32_t length;
} Word;

/* Zero-initialise. */
typedef struct WordTable {
    Word *words; /* [count] */
    size_t count, capacity;
    size_t *slots; /* index of a word + 1; 0 is free. mask + 1 slots */
    size_t mask;
    struct WordBlock *blocks; /* memory of the bytes */
} WordTable;

/* Index of the word; a new one is added with count 0. length < 2^32. */
size_t word_table_find(WordTable *t, const char *bytes, size_t length);
/* Adds the counts of `other`. */
void word_table_absorb(WordTable *t, const WordTable *other);
void word_table_free(WordTable *t);

#endif
