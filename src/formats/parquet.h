/* Reads a column of strings from a Parquet file, row by row; of a column in a list the slots of each row.
 *
 * Read are: data pages of version 1 and 2; plain, dictionary, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY;
 * required and optional columns, also inside of structs; snappy, zstd, gzip, lz4_raw, no compression. Refused
 * by name: columns in lists of lists, encrypted columns, brotli, lzo. Checksums of pages are compared where
 * they exist.
 *
 * The row groups are the index: going on at a row reads the metadata, headers of pages, and one page. Memory
 * is that of one page, stored and decompressed, and of a dictionary, however much text they stand for. */
#ifndef WEFT_FORMATS_PARQUET_H
#define WEFT_FORMATS_PARQUET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "formats/parquet_meta.h"

typedef struct Parquet Parquet;

/* `column`: its name, with dots for members of structs. */
ErrorCode parquet_open(Parquet **parquet, const char *path, const char *column, Error *err);
void parquet_close(Parquet *parquet); /* NULL is fine */
const ParquetColumn *parquet_column(const Parquet *parquet);
bool parquet_is_text(const Parquet *parquet); /* declared as text, not as bytes of any kind */

/* A value, valid until the next call. */
typedef struct ParquetString {
    const char *bytes;
    size_t length;
    uint64_t row; /* of the file, from 0 */
} ParquetString;

/* The next row that is not null. *more is false at the end of the file. */
ErrorCode parquet_next(Parquet *parquet, ParquetString *string, bool *more, Error *err);
/* The columns of a file, to be freed, also after an error. */
ErrorCode parquet_leaves(ParquetLeaves *leaves, const char *path, Error *err);

/* A value or a null: of a row, or of an element of its list, which has at least one slot. */
typedef struct ParquetSlot {
    const char *bytes; /* NULL unless it is present; valid until the next call */
    size_t length;
    uint64_t row;
    bool begins; /* the row */
    bool present;
    int level; /* definition level: how much of its path is there */
} ParquetSlot;

/* The same column slot by slot, which may be in one list. Not to be mixed with parquet_next. */
ErrorCode parquet_open_slots(Parquet **parquet, const char *path, const char *column, Error *err);
ErrorCode parquet_next_slot(Parquet *parquet, ParquetSlot *slot, bool *more, Error *err);
/* How many rows at least begin with the next slot and are null: 2^30 of them may take a few bytes. */
uint64_t parquet_null_rows(Parquet *parquet);
void parquet_pass_null_rows(Parquet *parquet, uint64_t rows); /* at most as many */

/* Goes on at `row`; only forward. */
ErrorCode parquet_skip_to(Parquet *parquet, uint64_t row, Error *err);
uint64_t parquet_nulls(const Parquet *parquet); /* rows so far that were null, without skipped ones */
uint64_t parquet_stored_position(const Parquet *parquet);

#endif
