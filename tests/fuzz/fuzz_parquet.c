/* A Parquet file. Rows come in order, and with nulls they are as many as the file states; going on at a row
 * gives the rest. The same for rows of several columns, one of them a list. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "formats/parquet.h"
#include "formats/parquet_rows.h"
#include "fuzz.h"

/* zstd can state 128 KiB in 4 bytes, of a page and of a dictionary, which takes as much again for the places
 * of its entries. A page is read with others ahead. Rows are read up to a number: few bytes may stand for
 * 2^31. */
enum { PER_BYTE = 3 << 15, FIXED = 1 << 20, MOST_ROWS = 2000 };

typedef struct Rows {
    size_t count;
    uint64_t next; /* the row behind the last */
    Text text;     /* each with its number in front */
    bool end;
} Rows;

static ErrorCode read_rows(const char *path, const char *column, uint64_t first, Rows *out, Error *err) {
    Parquet *p;
    ParquetString s;
    ErrorCode code = parquet_open(&p, path, column, err);
    bool more = true;
    if (code == OK && first > 0) code = parquet_skip_to(p, first, err);
    for (out->next = first; code == OK && out->count < MOST_ROWS && out->text.length < 1 << 20;
         out->count++) {
        code = parquet_next(p, &s, &more, err);
        if (code != OK || !more) break;
        REQUIRE(s.row >= out->next);
        out->next = s.row + 1;
        text_printf(&out->text, "%llu ", (unsigned long long)s.row);
        text_add(&out->text, s.bytes, s.length);
    }
    out->end = code == OK && !more;
    parquet_close(p);
    return code;
}

/* Rows as objects, from row `first` on. */
static ErrorCode read_objects(const char *path, uint64_t first, Rows *out, Error *err) {
    static const ParquetField fields[] = {{"messages", true}, {"system", false}, {"text", false}};
    ParquetRows *rows;
    ParquetRow row;
    bool more = true;
    TRY(parquet_rows_open(&rows, path, fields, 3, err));
    ErrorCode code = first > 0 ? parquet_rows_skip_to(rows, first, err) : OK;
    for (out->next = first; code == OK && out->count < MOST_ROWS && out->text.length < 1 << 20;
         out->count++) {
        code = parquet_rows_next(rows, &row, &more, err);
        if (code != OK || !more) break;
        REQUIRE(row.row >= out->next && row.object[0] == '{');
        out->next = row.row + 1;
        text_printf(&out->text, "%llu ", (unsigned long long)row.row);
        text_add(&out->text, row.object, row.length);
    }
    out->end = code == OK && !more;
    parquet_rows_close(rows);
    return code;
}

static void check_objects(const char *path, size_t size) {
    Error err = {0};
    Rows all = {0}, rest = {0};
    fuzz_memory_start();
    bool good = fuzz_ok(read_objects(path, 0, &all, &err), &err);
    fuzz_memory_check(size, 5 * PER_BYTE, 5 * FIXED + 4 * all.text.length);
    if (good && all.end && all.text.length > 0) {
        if (read_objects(path, all.next / 2, &rest, &err) != OK)
            fuzz_fail(__FILE__, __LINE__, "objects can be read from the middle", err.message);
        size_t n = rest.text.length;
        REQUIRE(n <= all.text.length && memcmp(all.text.data + all.text.length - n, rest.text.data, n) == 0);
    }
    text_free(&all.text);
    text_free(&rest.text);
}

static void check_restart(const char *path, const char *column, const Rows *all) {
    Error err = {0};
    Rows front = {0}, rest = {0};
    uint64_t middle = all->next / 2;
    if (read_rows(path, column, middle, &rest, &err) != OK)
        fuzz_fail(__FILE__, __LINE__, "what was read can be read from the middle", err.message);
    size_t n = rest.text.length;
    REQUIRE(n <= all->text.length && memcmp(all->text.data + all->text.length - n, rest.text.data, n) == 0);
    text_free(&front.text);
    text_free(&rest.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const columns[] = {"text", "meta.text"};
    const char *path = fuzz_file("file\x1b[31m.parquet", data, size);
    for (size_t i = 0; i < 2; i++) {
        Error err = {0};
        Rows all = {0};
        fuzz_memory_start();
        bool good = fuzz_ok(read_rows(path, columns[i], 0, &all, &err), &err);
        fuzz_memory_check(size, PER_BYTE, FIXED + 2 * all.text.length);
        if (good && all.end && all.text.length > 0) check_restart(path, columns[i], &all);
        text_free(&all.text);
    }
    check_objects(path, size);
    return 0;
}
