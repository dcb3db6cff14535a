/* Parquet files: rows of every encoding and codec, from the first row and from any other, and what is wrong
 * with files. They are those of the fuzz target (tests/fuzz/make_parquet.py writes them). */
#include "support/files.h"

#include "data/corpus.h"
#include "formats/parquet.h"
#include "formats/parquet_rows.h"

enum { ROWS = 40 };

/* Valid until the next call. */
static const char *seed(const char *name) {
    static char path[1000];
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/parquet/%s", WEFT_SOURCE_DIR, name);
    return path;
}

/* As in make_parquet.py; NULL for null. */
static const char *row_text(int i, bool nulls, char out[80]) {
    if (nulls && i % 5 == 3) return NULL;
    if (i % 11 == 10) return "";
    int length = snprintf(out, 80, "row %d:", i);
    for (int k = 0; k < i % 7; k++) length += snprintf(out + length, 80 - (size_t)length, " word");
    return out;
}

static void expect_rows(const char *path, const char *column, bool nulls, uint64_t first) {
    Error err = {0};
    Parquet *p;
    ParquetString s;
    bool more;
    char text[80];
    uint64_t null_rows = 0;
    if (parquet_open(&p, path, column, &err) != OK) fail_msg("%s", err.message);
    if (first > 0) assert_int_equal(parquet_skip_to(p, first, &err), OK);
    for (int i = (int)first; i < ROWS; i++) {
        const char *want = row_text(i, nulls, text);
        if (!want) null_rows++;
        if (!want) continue;
        if (parquet_next(p, &s, &more, &err) != OK) fail_msg("row %d: %s", i, err.message);
        assert_true(more);
        assert_int_equal(s.row, i);
        assert_int_equal(s.length, strlen(want));
        assert_memory_equal(s.bytes, want, s.length);
    }
    assert_int_equal(parquet_next(p, &s, &more, &err), OK);
    assert_false(more);
    assert_int_equal(parquet_nulls(p), null_rows);
    parquet_close(p);
}

static void test_rows(void **state) {
    (void)state;
    static const char *const files[] = {"plain",
                                        "dictionary-snappy",
                                        "dictionary-zstd-v2",
                                        "fallback-snappy",
                                        "delta-length-gzip-v2",
                                        "delta-bytes-lz4-v2",
                                        "delta-bytes-zstd",
                                        "required-plain-snappy",
                                        "required-delta-v2",
                                        "required-dictionary-gzip",
                                        "sums",
                                        "nested",
                                        "polars-zstd",
                                        "duckdb-snappy",
                                        "duckdb-v2"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *column = strcmp(files[i], "nested") == 0 ? "meta.text" : "text";
        bool nulls = strncmp(files[i], "required", 8) != 0;
        for (uint64_t first = 0; first <= ROWS; first++) expect_rows(seed(files[i]), column, nulls, first);
    }
}

/* The strings of a short file, with a bar behind each. */
static ErrorCode read_joined(const char *path, const char *column, size_t most, Text *out, uint64_t *nulls,
                             Error *err) {
    Parquet *p;
    ParquetString s;
    bool more = true;
    text_clear(out);
    TRY(parquet_open(&p, path, column, err));
    ErrorCode code = OK;
    for (size_t i = 0; i < most && (code = parquet_next(p, &s, &more, err)) == OK && more; i++) {
        text_add(out, s.bytes, s.length);
        text_puts(out, "|");
    }
    *nulls = parquet_nulls(p);
    parquet_close(p);
    return code;
}

static void expect_joined(const char *name, const char *want, uint64_t nulls) {
    Error err = {0};
    Text got = {0};
    uint64_t found;
    if (read_joined(seed(name), "text", SIZE_MAX, &got, &found, &err) != OK) fail_msg("%s", err.message);
    assert_string_equal(got.data ? got.data : "", want);
    assert_int_equal(found, nulls);
    text_free(&got);
}

static void test_odd_files(void **state) {
    (void)state;
    expect_joined("hand-good", "a text|", 0);
    expect_joined("hand-padded", "a text|", 0);
    expect_joined("hand-two-pages", "a text|a text|", 0);
    expect_joined("hand-other-page", "a text|", 0);
    expect_joined("hand-dictionary", "x|yz|x|", 0);
    expect_joined("hand-v2", "v2|", 2);
    expect_joined("no-rows", "", 0);
    expect_joined("all-null", "", 40);
    expect_joined("hand-null-bomb", "", 1 << 30);
}

/* A terabyte of text takes no memory of its own. Beyond 4 GiB of a row group it is refused. */
static void test_expansion(void **state) {
    (void)state;
    Error err = {0};
    Parquet *p;
    ParquetString s;
    bool more = true;
    uint64_t rows = 0;
    ErrorCode code;
    assert_int_equal(parquet_open(&p, seed("hand-bomb"), "text", &err), OK);
    while ((code = parquet_next(p, &s, &more, &err)) == OK && more) rows++;
    assert_int_equal(code, ERR_DATA);
    assert_int_equal(rows, ((uint64_t)4 << 30) / 1000);
    assert_non_null(strstr(err.message, "hold more than 4 GiB of text"));
    parquet_close(p);
}

/* As chat() in make_parquet.py, without numbers; false: nothing is there. */
static bool object_text(int i, Text *out) {
    bool list = i % 10 != 9;
    text_clear(out);
    text_puts(out, "{");
    if (list) text_puts(out, "\"messages\": [");
    for (int k = 0; list && k < i % 4; k++) {
        text_printf(out, "%s{\"role\": \"%s\"", k ? ", " : "", k % 2 ? "assistant" : "user");
        if (k != 2) text_printf(out, ", \"content\": \"m%d of %d\"", k, i);
        text_puts(out, "}");
    }
    if (list && i % 7 == 6) text_puts(out, i % 4 ? ", {}" : "{}");
    if (list) text_puts(out, "]");
    if (i % 3 == 0) text_printf(out, "%s\"system\": \"s%d\"", list ? ", " : "", i);
    text_puts(out, "}");
    return list || i % 3 == 0;
}

/* Conversations, from every row on. */
static void test_objects(void **state) {
    (void)state;
    static const char *const files[] = {"chat", "chat-v2", "chat-polars", "chat-duckdb"};
    static const ParquetField fields[] = {{"messages", true}, {"prompt", false}, {"system", false}};
    Text want = {0};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++)
        for (int first = 0; first <= ROWS; first++) {
            Error err = {0};
            ParquetRows *rows;
            ParquetRow row;
            bool more;
            if (parquet_rows_open(&rows, seed(files[f]), fields, 3, &err) != OK) fail_msg("%s", err.message);
            assert_int_equal(parquet_rows_skip_to(rows, (uint64_t)first, &err), OK);
            for (int i = first; i < ROWS; i++) {
                if (!object_text(i, &want)) continue;
                if (parquet_rows_next(rows, &row, &more, &err) != OK) fail_msg("row %d: %s", i, err.message);
                assert_true(more);
                assert_int_equal(row.row, i);
                assert_string_equal(row.object, want.data);
            }
            assert_int_equal(parquet_rows_next(rows, &row, &more, &err), OK);
            assert_false(more);
            parquet_rows_close(rows);
        }
    text_free(&want);
}

/* A text may be a list, or an object that is the row. */
static void test_json_objects(void **state) {
    (void)state;
    static const ParquetField field = {"messages", true};
    Error err = {0};
    ParquetRows *rows;
    ParquetRow row;
    bool more;
    char want[40];
    assert_int_equal(parquet_rows_open(&rows, seed("chat-json"), &field, 1, &err), OK);
    for (int i = 0; i < ROWS; i++) {
        if (i % 5 == 3) continue;
        snprintf(want, sizeof want, i % 2 ? "{\"messages\": []}" : "{\"n\": %d}", i);
        assert_int_equal(parquet_rows_next(rows, &row, &more, &err), OK);
        assert_true(more && row.row == (uint64_t)i);
        assert_string_equal(row.object, want);
    }
    assert_int_equal(parquet_rows_next(rows, &row, &more, &err), OK);
    assert_false(more);
    assert_int_equal(parquet_rows_nulls(rows), ROWS / 5);
    parquet_rows_close(rows);
}

/* 2^30 rows that are null take a few bytes, and no time. */
static void test_null_objects(void **state) {
    (void)state;
    static const ParquetField field = {"text", false};
    Error err = {0};
    ParquetRows *rows;
    ParquetRow row;
    bool more;
    assert_int_equal(parquet_rows_open(&rows, seed("hand-null-bomb"), &field, 1, &err), OK);
    assert_int_equal(parquet_rows_next(rows, &row, &more, &err), OK);
    assert_false(more);
    assert_int_equal(parquet_rows_nulls(rows), 1 << 30);
    parquet_rows_close(rows);
}

typedef struct Bad {
    const char *file, *words;
} Bad;

static const Bad bad[] = {
    {"not-parquet", "not a Parquet file: expected \"PAR1\""},
    {"cut", "without its end; fetch it again"},
    {"short", "without its end"},
    {"bad-magic-at-end", "without its end"},
    {"bad-encrypted-footer", "encrypted metadata"},
    {"bad-footer-length", "134217728 bytes of it do not fit"},
    {"bad-list-count", "more elements than bytes"},
    {"bad-depth", "nested too deeply"},
    {"bad-field-type", "a field has an unexpected type"},
    {"bad-varint", "more than 64 bits"},
    {"bad-children", "its schema ends too early"},
    {"bad-elements", "elements outside of its tree"},
    {"bad-groups-before-schema", "its row groups come before its schema"},
    {"bad-total", "another number of rows than its row groups"},
    {"bad-rows", "no valid number of rows"},
    {"bad-values", "another number of values than of rows"},
    {"bad-offset", "lie outside of the file"},
    {"bad-offset-low", "lie outside of the file"},
    {"bad-stored", "lie outside of the file"},
    {"bad-path", "does not fit its schema"},
    {"bad-codec", "an unknown codec"},
    {"bad-elsewhere", "in another file"},
    {"bad-encrypted", "column 'text' is encrypted, which weft does not read"},
    {"bad-two-columns", "two columns are called 'text'"},
    {"bad-page-short", "reaches beyond the pages"},
    {"bad-page-beyond", "reaches beyond the pages"},
    {"bad-page-negative", "a page's header is incomplete"},
    {"bad-page-size", "more bytes than it can decompress to"},
    {"bad-page-giant", "more than 1 GiB"},
    {"bad-page-rows", "more rows than their row group"},
    {"bad-page-missing", "fewer rows than their row group"},
    {"bad-crc", "near byte 23, row 1: a page's checksum does not match"},
    {"bad-encoding", "its encoding is none of strings"},
    {"bad-plain-length", "its values end too early"},
    {"bad-plain-left", "bytes follow its last value"},
    {"bad-padding", "bytes follow its last value"},
    {"bad-no-dictionary", "its dictionary is missing"},
    {"bad-two-dictionaries", "not the first page of its row group"},
    {"bad-dictionary-count", "more entries than bytes"},
    {"bad-index", "beyond its dictionary"},
    {"bad-index-width", "more than 32 bits"},
    {"bad-run-empty", "a run is empty"},
    {"bad-levels-length", "longer than the page"},
    {"bad-level", "a definition level is too large"},
    {"bad-level-count", "its values end too early"},
    {"bad-v2-nulls", "another number of nulls"},
    {"bad-v2-levels", "longer than the page"},
    {"bad-delta-sum", "do not add up to its bytes"},
    {"bad-delta-negative", "is negative or longer than 256 MiB"},
    {"bad-delta-count", "another number of lengths than of values"},
    {"bad-delta-block", "an impossible size"},
    {"bad-delta-cut", "its values end too early"},
    {"bad-prefix", "longer than the string before"},
    {"bad-snappy-claim", "another size than its page states"},
    {"bad-snappy", "its compressed bytes are damaged"},
    {"bad-gzip", "another size than its page states"},
    {"bad-zstd", "another size than its page states"},
    {"bad-lz4", "its compressed bytes are damaged"},
    {"brotli", "compressed with brotli, which weft does not read; rewrite the file"},
    {"integers", "column 'text' is no text but INT64; columns of text: body"},
    {"list", "a struct or list, not a column of text, is called 'text'"},
    {"nested", "no column 'text'; columns of text: meta.text; name one with `column`"},
};

static void expect_bad(const char *path, const char *column, const char *words) {
    Error err = {0};
    Text got = {0};
    uint64_t nulls;
    assert_int_equal(read_joined(path, column, SIZE_MAX, &got, &nulls, &err), ERR_DATA);
    if (!strstr(err.message, words)) fail_msg("no \"%s\" in: %s", words, err.message);
    assert_non_null(strstr(err.message, path));
    text_free(&got);
}

static void test_bad_files(void **state) {
    (void)state;
    Error err = {0};
    Parquet *p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect_bad(seed(bad[i].file), "text", bad[i].words);
    expect_bad(seed("list"), "text.list.element", "is in a list (repeated)");
    assert_int_equal(parquet_open(&p, files_path("missing.parquet"), "text", &err), ERR_NOINPUT);
    assert_int_equal(parquet_open(&p, files_root, "text", &err), ERR_NOINPUT);
    assert_int_equal(parquet_open(&p, seed("plain"), "text", &err), OK);
    assert_int_equal(parquet_skip_to(p, 41, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "shorter than row 41"));
    parquet_close(p);
}

/* A file cut anywhere is refused. A changed byte in pages with checksums is an error, or changes nothing. */
static void test_damage(void **state) {
    (void)state;
    Error err = {0};
    Text want = {0}, got = {0};
    uint64_t nulls;
    size_t length;
    char *bytes = files_read(seed("sums"), &length);
    assert_int_equal(read_joined(seed("sums"), "text", SIZE_MAX, &want, &nulls, &err), OK);
    for (size_t keep = 0; keep < length; keep += 37)
        assert_int_equal(read_joined(files_write("cut", bytes, keep), "text", SIZE_MAX, &got, &nulls, &err),
                         ERR_DATA);
    size_t pages =
        length - 8 - ((size_t)(unsigned char)bytes[length - 7] << 8) - (unsigned char)bytes[length - 8];
    for (size_t at = 4; at < pages; at++) {
        bytes[at] ^= (char)(1 << at % 8);
        ErrorCode code =
            read_joined(files_write("changed", bytes, length), "text", SIZE_MAX, &got, &nulls, &err);
        if (code == OK) assert_string_equal(got.data, want.data);
        if (code != OK) assert_int_equal(code, ERR_DATA);
        bytes[at] ^= (char)(1 << at % 8);
    }
    text_free(&want);
    text_free(&got);
    free(bytes);
}

/* As a source: rows without text are no documents, and reading goes on behind any row. */
static void test_corpus(void **state) {
    (void)state;
    Error err = {0};
    CorpusFile file = {.path = seed("dictionary-snappy"),
                       .format = FORMAT_PARQUET,
                       .split = SPLIT_FILE,
                       .key = NULL,
                       .encoding = ENCODING_UTF8};
    CorpusPosition from = {0};
    CorpusReader *r;
    CorpusChunk chunk;
    bool more = true;
    char text[80];
    for (int i = 0; i < ROWS; i++) {
        const char *want = row_text(i, true, text);
        if (!want || !*want) continue;
        assert_int_equal(corpus_open(&r, &file, &from, &err), OK);
        assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
        assert_true(more && chunk.starts && chunk.ends);
        assert_int_equal(chunk.line, i + 1);
        assert_int_equal(chunk.length, strlen(want));
        assert_memory_equal(chunk.bytes, want, chunk.length);
        from = corpus_position(r);
        assert_int_equal(from.offset, i + 1);
        corpus_close(r);
    }
    assert_int_equal(corpus_open(&r, &file, &from, &err), OK);
    assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
    assert_false(more);
    corpus_close(r);
    file.format = FORMAT_AUTO;
    file.path = "a/b.parquet";
    assert_int_equal(corpus_format(&file), FORMAT_PARQUET);
    file.path = "a/parquet";
    assert_int_equal(corpus_format(&file), FORMAT_TEXT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_odd_files),
        cmocka_unit_test(test_expansion),    cmocka_unit_test(test_objects),
        cmocka_unit_test(test_null_objects), cmocka_unit_test(test_json_objects),
        cmocka_unit_test(test_bad_files),    cmocka_unit_test(test_damage),
        cmocka_unit_test(test_corpus),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
