/* Reads several columns of a Parquet file together: each row as an object of JSON.
 *
 *     prompt: string                             {"prompt": "...",
 *     messages: list<struct<role, content>>       "messages": [{"role": "...", "content": "..."}, ...]}
 *
 * Members that are null are left out, and members of structs that are no text. Deeper lists are refused by
 * name. */
#ifndef WEFT_FORMATS_PARQUET_ROWS_H
#define WEFT_FORMATS_PARQUET_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct ParquetRows ParquetRows;

typedef struct ParquetField {
    const char *name; /* of a column or list at the top of the schema */
    bool json; /* a text in it is JSON, as some writers store lists; of an only field perhaps the row */
} ParquetField;

/* Those of `fields` that the file has, at least one; the names must outlive the rows. */
ErrorCode parquet_rows_open(ParquetRows **rows, const char *path, const ParquetField *fields, size_t count,
                            Error *err);
void parquet_rows_close(ParquetRows *rows); /* NULL is fine */

typedef struct ParquetRow {
    const char *object; /* valid until the next call */
    size_t length;
    uint64_t row; /* of the file, from 0 */
} ParquetRow;

/* The next row that is not null in all of its fields. *more is false at the end of the file. */
ErrorCode parquet_rows_next(ParquetRows *rows, ParquetRow *row, bool *more, Error *err);
/* Begins at `row`; before the first one is read. */
ErrorCode parquet_rows_skip_to(ParquetRows *rows, uint64_t row, Error *err);
uint64_t parquet_rows_nulls(const ParquetRows *rows); /* rows so far that were null, without skipped ones */
uint64_t parquet_rows_stored_position(const ParquetRows *rows);

#endif
