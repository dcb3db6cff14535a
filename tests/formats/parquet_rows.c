/* Prints the rows of a column of a Parquet file, or of several as objects of JSON, for the test against
 * pyarrow: for each that is not null a line "ROW LENGTH" and the bytes with a newline; at the end
 * "end NULLS".
 *
 *     parquet_rows FILE COLUMN [FIRST_ROW]
 *     parquet_rows FILE COLUMN,COLUMN FIRST_ROW   (at least one comma; ",,": the text before it is JSON) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/parquet.h"
#include "formats/parquet_rows.h"

enum { FIELDS = 8 };

static ErrorCode print_rows(Parquet *p, Error *err) {
    ParquetString s;
    bool more;
    for (;;) {
        TRY(parquet_next(p, &s, &more, err));
        if (!more) break;
        printf("%" PRIu64 " %zu\n", s.row, s.length);
        fwrite(s.bytes, 1, s.length, stdout);
        putchar('\n');
    }
    printf("end %" PRIu64 "\n", parquet_nulls(p));
    return OK;
}

static ErrorCode print_objects(ParquetRows *rows, Error *err) {
    ParquetRow row;
    bool more;
    for (;;) {
        TRY(parquet_rows_next(rows, &row, &more, err));
        if (!more) break;
        printf("%" PRIu64 " %zu\n", row.row, row.length);
        fwrite(row.object, 1, row.length, stdout);
        putchar('\n');
    }
    printf("end %" PRIu64 "\n", parquet_rows_nulls(rows));
    return OK;
}

/* The names are written into. */
static ErrorCode read_objects(const char *path, char *names, uint64_t first, Error *err) {
    ParquetField fields[FIELDS];
    size_t count = 0;
    ParquetRows *rows;
    while (*names && count < FIELDS) {
        char *end = names + strcspn(names, ",");
        fields[count++] = (ParquetField){names, *end && end[1] == ','};
        names = end + (*end ? 1 : 0) + (*end && end[1] == ',');
        *end = '\0';
    }
    TRY(parquet_rows_open(&rows, path, fields, count, err));
    ErrorCode code = first > 0 ? parquet_rows_skip_to(rows, first, err) : OK;
    if (code == OK) code = print_objects(rows, err);
    parquet_rows_close(rows);
    return code;
}

static ErrorCode read_column(int argc, char **argv, Error *err) {
    Parquet *p = NULL;
    ErrorCode code = parquet_open(&p, argv[1], argv[2], err);
    if (code == OK && argc > 3) code = parquet_skip_to(p, strtoull(argv[3], NULL, 10), err);
    if (code == OK) code = print_rows(p, err);
    parquet_close(p);
    return code;
}

int main(int argc, char **argv) {
    Error err = {0};
    if (argc < 3) return ERR_USAGE;
    bool objects = argc > 3 && strchr(argv[2], ',');
    ErrorCode code = objects ? read_objects(argv[1], argv[2], strtoull(argv[3], NULL, 10), &err)
                             : read_column(argc, argv, &err);
    if (code != OK) fprintf(stderr, "%s\n", err.message);
    return code;
}
