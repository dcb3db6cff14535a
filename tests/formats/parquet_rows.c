/* Prints the rows of a column of a Parquet file, for the test against pyarrow: for each that is not null a
 * line "ROW LENGTH" and the bytes with a newline; at the end "end NULLS".
 *
 *     parquet_rows FILE COLUMN [FIRST_ROW] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/parquet.h"

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

int main(int argc, char **argv) {
    Parquet *p = NULL;
    Error err = {0};
    if (argc < 3) return ERR_USAGE;
    ErrorCode code = parquet_open(&p, argv[1], argv[2], &err);
    if (code == OK && argc > 3) code = parquet_skip_to(p, strtoull(argv[3], NULL, 10), &err);
    if (code == OK) code = print_rows(p, &err);
    parquet_close(p);
    if (code != OK) fprintf(stderr, "%s\n", err.message);
    return code;
}
