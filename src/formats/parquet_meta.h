/* Parquet's metadata: which columns there are, where the pages of one lie, and what is in them. */
#ifndef WEFT_FORMATS_PARQUET_META_H
#define WEFT_FORMATS_PARQUET_META_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "formats/thrift.h"

/* The column's pages in a row group. */
typedef struct ParquetGroup {
    uint64_t begin, end;      /* bytes of the file */
    uint64_t first_row, rows; /* of the file */
    uint64_t slots;           /* values and nulls: as many as rows, or more in a list */
    int codec;
} ParquetGroup;

typedef struct ParquetColumn {
    int optional;       /* optional and repeated members of its path: the definition level of a value */
    bool repeated;      /* in a list: each slot has a repetition level */
    bool text;          /* declared as text, not as bytes */
    uint64_t rows;      /* of the file */
    size_t group_count; /* those without rows are left out */
    ParquetGroup *groups;
} ParquetColumn;

/* A column of strings or of anything else, as the schema has it. */
typedef struct ParquetLeaf {
    char *path;       /* with dots, of 1000 bytes at most */
    bool text;        /* it could be read */
    const char *type; /* "text", or as the format calls it: "INT64" */
    int lists;        /* it is in, one inside of the other */
    int list_level;   /* definition level from which on the outermost list has an element */
    int member;       /* 0: the element of the list itself, 1: a member of the struct, more: deeper */
} ParquetLeaf;
typedef struct ParquetLeaves {
    ParquetLeaf *items;
    size_t count, capacity;
} ParquetLeaves;

/* All columns, in the order of the schema. Frees nothing that `leaves` holds before. */
ErrorCode parquet_find_leaves(ParquetLeaves *leaves, const char *path, const char *footer, size_t length,
                              Error *err);
void parquet_leaves_free(ParquetLeaves *leaves);

/* Finds `column`, a path with dots, in the metadata of a file, whose bytes up to `pages_end` may be pages.
 * ERR_DATA where the metadata is damaged, or where the column is none that weft reads. `in_list`: it
 * may be in one list. `path` is for messages. */
ErrorCode parquet_find_column(ParquetColumn *found, const char *path, const char *column, bool in_list,
                              const char *footer, size_t length, uint64_t pages_end, Error *err);
void parquet_column_free(ParquetColumn *column);

typedef enum ParquetPageKind {
    PARQUET_DATA_PAGE = 0,
    PARQUET_DICTIONARY_PAGE = 2,
    PARQUET_DATA_PAGE_V2 = 3
} ParquetPageKind;

/* Counts are -1 where the header has none. */
typedef struct ParquetPage {
    int kind;             /* ParquetPageKind, or another */
    int32_t size, stored; /* bytes behind the header: decompressed, in the file */
    bool has_crc;
    int32_t crc;
    int32_t values, nulls, rows;
    int encoding, level_encoding, repetition_encoding;
    int32_t definition_bytes, repetition_bytes; /* of levels, in version 2 */
    bool compressed;
} ParquetPage;

/* Whether it is complete and consistent in itself is in t->wrong. */
ParquetPage parquet_page_header(Thrift *t);

#endif
