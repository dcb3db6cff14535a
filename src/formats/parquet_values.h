/* The encodings of a Parquet page: levels, and values that are strings.
 *
 * Both are iterators over the bytes of a page: 2.5 kB of legal Parquet can stand for a terabyte of text, so
 * nothing is expanded. Functions return NULL, or what is wrong with the page. */
#ifndef WEFT_FORMATS_PARQUET_VALUES_H
#define WEFT_FORMATS_PARQUET_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum { PARQUET_MOST_VALUE = 256 << 20 }; /* bytes of a value */

typedef enum ParquetEncoding {
    PARQUET_PLAIN = 0,
    PARQUET_PLAIN_DICTIONARY = 2, /* as a page of values: the same as RLE_DICTIONARY */
    PARQUET_RLE = 3,
    PARQUET_DELTA_LENGTH = 6,
    PARQUET_DELTA_BYTES = 7,
    PARQUET_RLE_DICTIONARY = 8
} ParquetEncoding;

/* Numbers of `width` bits, in runs of equal ones and in packed groups of eight. */
typedef struct Hybrid {
    const uint8_t *at, *end;
    unsigned width;
    uint64_t left;         /* numbers of the present run */
    const uint8_t *packed; /* its bits; NULL: a run of `value` */
    uint64_t bit;
    uint32_t value;
} Hybrid;

/* Numbers as differences, in blocks of miniblocks (DELTA_BINARY_PACKED). */
typedef struct Delta {
    const uint8_t *at, *end;
    uint64_t total, given;
    uint64_t value; /* the last that was given, or the first */
    uint64_t miniblocks, miniblock_values;
    uint64_t least; /* difference of the block */
    const uint8_t *widths;
    uint64_t miniblock; /* of the block, which is used up at `miniblocks` */
    const uint8_t *packed;
    uint64_t bit, left; /* in the miniblock */
    unsigned width;
} Delta;

typedef struct ParquetDictionary {
    const uint8_t *bytes; /* the caller's */
    uint32_t *at;         /* [count] offsets of the entries */
    size_t count, capacity;
} ParquetDictionary;

typedef struct ParquetValues {
    ParquetEncoding encoding;
    const uint8_t *at, *end; /* strings that are left */
    Hybrid indices;
    const ParquetDictionary *dictionary;
    Delta lengths, prefixes;
    Text previous; /* DELTA_BYTES: the last value */
} ParquetValues;

Hybrid hybrid_start(const uint8_t *at, const uint8_t *end, unsigned width);
/* The next number and how often it follows at least, without taking it. */
const char *hybrid_peek(Hybrid *h, uint32_t *value, uint64_t *times);
void hybrid_take(Hybrid *h, uint64_t count); /* at most `times` */
/* How many of the first `count` numbers are equal to `most`; a greater one is wrong. */
const char *hybrid_count(Hybrid h, uint64_t count, uint32_t most, uint64_t *equal);

/* The page's bytes stay the caller's, and must outlive the dictionary. */
const char *dictionary_start(ParquetDictionary *d, const char *bytes, size_t size, uint64_t count);
void dictionary_free(ParquetDictionary *d);

/* A section of `count` values; `dictionary` NULL: the chunk has none. The section outlives its values. */
const char *values_start(ParquetValues *v, int encoding, const char *bytes, size_t size, uint64_t count,
                         const ParquetDictionary *dictionary);
/* The next of `count` values, valid until the call after it. */
const char *values_next(ParquetValues *v, const char **value, size_t *length);
/* After the last one: bytes that are left are wrong. */
const char *values_end(const ParquetValues *v);
void values_free(ParquetValues *v);

#endif
