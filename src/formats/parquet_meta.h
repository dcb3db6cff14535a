/* Parquet's metadata: where the pages of one column of strings lie, and what is in them. */
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
    int codec;
} ParquetGroup;

typedef struct ParquetColumn {
    int optional;       /* optional members of its path: the definition level of a value that is there */
    bool text;          /* declared as text, not as bytes */
    uint64_t rows;      /* of the file */
    size_t group_count; /* those without rows are left out */
    ParquetGroup *groups;
} ParquetColumn;

/* Finds `column`, a path with dots, in the metadata of a file, whose bytes up to `pages_end` may be pages.
 * ERR_DATA where the metadata is damaged, or where the column is none that weft reads. `path` is for
 * messages. */
ErrorCode parquet_find_column(ParquetColumn *found, const char *path, const char *column, const char *footer,
                              size_t length, uint64_t pages_end, Error *err);
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
    int encoding, level_encoding;
    int32_t definition_bytes, repetition_bytes; /* of levels, in version 2 */
    bool compressed;
} ParquetPage;

/* Whether it is complete and consistent in itself is in t->wrong. */
ParquetPage parquet_page_header(Thrift *t);

#endif
