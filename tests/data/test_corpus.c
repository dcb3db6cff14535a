/* Documents of text and JSON-lines files: splitting, chunks, positions, compression, and bad input files. */
#include "support/files.h"

#include <sys/stat.h>

#include "data/corpus.h"

typedef struct Documents {
    Text all;         /* all chunks, one after the other */
    size_t ends[512]; /* ends of documents, in `all` */
    size_t count, chunks;
    CorpusPosition positions[512]; /* after each chunk */
    size_t chunk_ends[512];
    uint64_t lines[512];
} Documents;

static ErrorCode collect(const CorpusFile *file, const CorpusPosition *from, Documents *out, Error *err) {
    *out = (Documents){0};
    CorpusReader *r;
    TRY(corpus_open(&r, file, from, err));
    CorpusChunk chunk;
    bool more, inside = from && from->in_document;
    ErrorCode code;
    while ((code = corpus_next(r, &chunk, &more, err)) == OK && more) {
        assert_int_equal(chunk.starts, !inside);
        inside = !chunk.ends;
        text_add(&out->all, chunk.bytes, chunk.length);
        out->lines[out->chunks] = chunk.line;
        out->positions[out->chunks] = corpus_position(r);
        out->chunk_ends[out->chunks++] = out->all.length;
        if (chunk.ends) out->ends[out->count++] = out->all.length;
        assert_true(out->chunks < 512);
    }
    assert_false(code == OK && inside);
    corpus_close(r);
    return code;
}

static void expect_documents(SourceSplit split, const char *text, size_t count,
                             const char *const *documents) {
    CorpusFile file = {.path = files_text("a.txt", text),
                       .format = FORMAT_AUTO,
                       .split = split,
                       .key = NULL,
                       .encoding = ENCODING_UTF8};
    Documents got;
    Error err;
    assert_int_equal(collect(&file, NULL, &got, &err), OK);
    assert_int_equal(got.count, count);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(got.ends[i] - at, strlen(documents[i]));
        assert_memory_equal(got.all.data + at, documents[i], strlen(documents[i]));
        at = got.ends[i];
    }
    text_free(&got.all);
}

static void test_split(void **state) {
    (void)state;
    const char *text = "\n \none\ntwo\n\n\nthree\r\n\r\nfour\n  \n";
    expect_documents(SPLIT_FILE, text, 1, (const char *[]){text});
    expect_documents(SPLIT_PARAGRAPHS, text, 3,
                     (const char *[]){"\n \none\ntwo\n\n\n", "three\r\n\r\n", "four\n  \n"});
    expect_documents(SPLIT_LINES, text, 4,
                     (const char *[]){"\n \none\n", "two\n\n\n", "three\r\n\r\n", "four\n  \n"});
    expect_documents(SPLIT_LINES, "no newline", 1, (const char *[]){"no newline"});
    expect_documents(SPLIT_PARAGRAPHS, "\n\n\n", 1, (const char *[]){"\n\n\n"});
    expect_documents(SPLIT_FILE, "", 0, NULL);
    expect_documents(SPLIT_LINES, "", 0, NULL);
    expect_documents(SPLIT_FILE, "\xef\xbb\xbfmarked", 1, (const char *[]){"marked"});
    expect_documents(SPLIT_FILE, "\xef\xbb\xbf", 0, NULL);
}

/* Pseudo-text: words, newlines, blank lines, wide spaces, letters of several bytes. */
static char *random_text(size_t length, unsigned seed) {
    static const char *const parts[] = {
        "word", " ", "\n", "\n\n", "\xc3\xa9", "\xe3\x80\x80", "\xe4\xb8\xad\xe6\x96\x87", "x", ".", "\n \n"};
    char *out = malloc(length + 8);
    size_t n = 0;
    while (n < length) {
        seed = seed * 1664525u + 1013904223u;
        const char *part = parts[(seed >> 16) % 10];
        memcpy(out + n, part, strlen(part));
        n += strlen(part);
    }
    out[length] = 0;
    return out;
}

static void test_long_documents_come_in_chunks(void **state) {
    (void)state;
    size_t length = 3u << 20;
    char *text = random_text(length, 7);
    CorpusFile file = {.path = files_write("long.txt", text, length),
                       .format = FORMAT_TEXT,
                       .split = SPLIT_FILE,
                       .key = NULL,
                       .encoding = ENCODING_UTF8};
    Documents got;
    Error err;
    assert_int_equal(collect(&file, NULL, &got, &err), OK);
    assert_int_equal(got.count, 1);
    assert_true(got.chunks >= 10);
    assert_int_equal(got.all.length, length);
    assert_memory_equal(got.all.data, text, length);
    for (size_t i = 0; i + 1 < got.chunks; i++) {
        const char *cut = text + got.chunk_ends[i];
        assert_int_equal(cut[-1], '\n');
        assert_true(cut[-2] != '\n' && cut[-2] != ' ' && cut[0] != '\n' && cut[0] != ' ');
        assert_memory_not_equal(cut, "\xe3\x80\x80", 3);
        assert_memory_not_equal(cut - 4, "\xe3\x80\x80", 3);
    }
    text_free(&got.all);
    free(text);
}

static void test_text_without_newlines_is_cut_between_characters(void **state) {
    (void)state;
    size_t length = CORPUS_CHUNK_LIMIT + 1000;
    char *text = malloc(length);
    for (size_t i = 0; i < length; i++) text[i] = "\xe4\xb8\xad"[i % 3];
    for (int split = SPLIT_FILE; split <= SPLIT_LINES; split++) {
        CorpusFile file = {.path = files_write("wide.txt", text, length),
                           .format = FORMAT_TEXT,
                           .split = (SourceSplit)split,
                           .key = NULL,
                           .encoding = ENCODING_UTF8};
        Documents got;
        Error err;
        assert_int_equal(collect(&file, NULL, &got, &err), OK);
        assert_int_equal(got.count, 1);
        assert_int_equal(got.chunks, 2);
        assert_int_equal(got.chunk_ends[0] % 3, 0);
        assert_true(got.chunk_ends[0] <= CORPUS_CHUNK_LIMIT);
        assert_memory_equal(got.all.data, text, length);
        text_free(&got.all);
    }
    free(text);
}

static void test_reading_goes_on_anywhere(void **state) {
    (void)state;
    size_t length = 900000;
    char *text = random_text(length, 3);
    files_write("plain.txt", text, length);
    files_zstd("packed.txt.zst", text, length, SIZE_MAX);
    files_gzip("packed.txt.gz", text, length, SIZE_MAX);
    free(text);
    static const char *const names[] = {"plain.txt", "packed.txt.zst", "packed.txt.gz"};
    for (int i = 0; i < 3; i++) {
        CorpusFile file = {.path = files_path(names[i]),
                           .format = FORMAT_AUTO,
                           .split = SPLIT_FILE,
                           .key = NULL,
                           .encoding = ENCODING_UTF8};
        Documents whole, rest;
        Error err;
        assert_int_equal(collect(&file, NULL, &whole, &err), OK);
        assert_true(whole.chunks >= 3);
        for (size_t p = 0; p < whole.chunks; p++) {
            assert_int_equal(collect(&file, &whole.positions[p], &rest, &err), OK);
            assert_int_equal(rest.chunks, whole.chunks - p - 1);
            assert_int_equal(rest.all.length, whole.all.length - whole.chunk_ends[p]);
            if (rest.all.length)
                assert_memory_equal(rest.all.data, whole.all.data + whole.chunk_ends[p], rest.all.length);
            for (size_t q = 0; q < rest.chunks; q++) assert_int_equal(rest.lines[q], whole.lines[p + 1 + q]);
            text_free(&rest.all);
        }
        text_free(&whole.all);
    }
}

static void test_json_lines(void **state) {
    (void)state;
    const char *text = "{\"text\": \"a\\u00e9\\n\"}\n\n   \r\n{\"other\": 1, \"text\": "
                       "\"<|endoftext|>\"}\r\n{\"text\": \"\"}";
    const char *expected[] = {"a\xc3\xa9\n", "<|endoftext|>", ""};
    uint64_t lines[] = {1, 4, 5};
    files_text("a.jsonl", text);
    files_zstd("a.jsonl.zst", text, strlen(text), SIZE_MAX);
    files_gzip("a.json.gz", text, strlen(text), SIZE_MAX);
    static const char *const names[] = {"a.jsonl", "a.jsonl.zst", "a.json.gz"};
    for (int i = 0; i < 3; i++) {
        CorpusFile file = {.path = files_path(names[i]),
                           .format = FORMAT_AUTO,
                           .split = SPLIT_FILE,
                           .key = NULL,
                           .encoding = ENCODING_UTF8};
        assert_int_equal(corpus_format(&file), FORMAT_JSONL);
        CorpusReader *r;
        Error err;
        assert_int_equal(corpus_open(&r, &file, NULL, &err), OK);
        CorpusChunk chunk;
        bool more;
        Text decoded = {0};
        for (int d = 0; d < 3; d++) {
            assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
            assert_true(more && chunk.starts && chunk.ends);
            assert_int_equal(chunk.line, lines[d]);
            assert_int_equal(corpus_decode_json(&file, &chunk, &decoded, &err), OK);
            assert_int_equal(decoded.length, strlen(expected[d]));
            if (decoded.length) assert_string_equal(decoded.data, expected[d]);
        }
        assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
        assert_false(more);
        text_free(&decoded);
        corpus_close(r);
    }
}

/* One array instead of lines: its elements come like lines, from any of them on. */
static void test_json_arrays(void **state) {
    (void)state;
    const char *text = "\xef\xbb\xbf \n[{\"text\": \"]\\\"},[\"},\n {\"a\": [{}, []],\n\"text\": \"2\"}\n , "
                       "{\"text\": \"\\\\\"}\n]\n";
    const char *expected[] = {"]\"},[", "2", "\\"};
    uint64_t lines[] = {2, 3, 5};
    files_text("a.json", text);
    files_zstd("a.json.zst", text, strlen(text), SIZE_MAX);
    static const char *const names[] = {"a.json", "a.json.zst"};
    for (int i = 0; i < 2; i++) {
        CorpusFile file = {.path = files_path(names[i])};
        CorpusPosition at = {0};
        for (int d = 0; d < 3; d++) {
            Error err;
            CorpusReader *r;
            CorpusChunk chunk;
            bool more;
            Text decoded = {0};
            assert_int_equal(corpus_open(&r, &file, d ? &at : NULL, &err), OK);
            assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
            assert_true(more && chunk.starts && chunk.ends);
            assert_int_equal(chunk.line, lines[d]);
            assert_int_equal(corpus_decode_json(&file, &chunk, &decoded, &err), OK);
            assert_string_equal(decoded.data, expected[d]);
            at = corpus_position(r);
            for (int left = d + 1; left < 3; left++)
                assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
            for (int again = 0; again < 2; again++) {
                assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
                assert_false(more);
            }
            text_free(&decoded);
            corpus_close(r);
        }
    }
}

static void test_bad_json_arrays(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"[", "bad.json:1: expected an element of the array, found the end of the file"},
        {"[\n{}\n", "bad.json:2: the file ends in or behind this element"},
        {"[{\"a\": \"]}", "bad.json:1: the file ends in or behind this element"},
        {"[{},]", "bad.json:1: expected an element of the array, found ']'"},
        {"[,{}]", "expected an element of the array, found ','"},
        {"[{}]\n[{}]", "bad.json:2: expected nothing behind the array, found '['"},
        {"[{}}]]", "expected nothing behind the array, found ']'"},
        {"[{},\n{\"a\": [{\"b\": 1},\n{\"a\": []}\n]\n",
         "bad.json:2: the file ends in or behind this element, before the end of its array (5:1: expected "
         "',' "
         "or '}', found the end); mend the element"},
        {"[{},\n{\"a\" 1,\n{}]", "(2:6: expected ':' after the key, found '1'); mend the element"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CorpusFile file = {.path = files_text("bad.json", bad[i][0])};
        Documents got;
        Error err = {0};
        assert_int_equal(collect(&file, NULL, &got, &err), ERR_DATA);
        if (!strstr(err.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.message);
        text_free(&got.all);
    }
    CorpusFile empty = {.path = files_text("empty.json", " [ ] \n")};
    Documents got;
    Error err;
    assert_int_equal(collect(&empty, NULL, &got, &err), OK);
    assert_int_equal(got.count, 0);
}

/* A broken element ends where it would end unbroken, so that those behind it are read. */
static void test_broken_elements(void **state) {
    (void)state;
    static const char *const broken[] = {
        "{\"a\": [}", "{\"a\": [{\"b\": 1}}",    "{\"a\": 1]}",      "{\"a\": {]}}",
        "[1}, {]",    "{\"a\": [[[{\"b\": 1}]}", "{\"a\": \"x\ny\"}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char text[100];
        CorpusReader *r;
        CorpusChunk chunk;
        bool more;
        Error err;
        snprintf(text, sizeof text, "[{\"n\": 1},\n%s,\n{\"n\": [2]}]", broken[i]);
        CorpusFile file = {.path = files_text("broken.json", text)};
        const char *expected[] = {"{\"n\": 1}", broken[i], "{\"n\": [2]}"};
        assert_int_equal(corpus_open(&r, &file, NULL, &err), OK);
        for (size_t k = 0; k < 3; k++) {
            assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
            assert_true(more);
            if (chunk.length != strlen(expected[k]) || memcmp(chunk.bytes, expected[k], chunk.length) != 0)
                fail_msg("%s: %.*s", text, (int)chunk.length, chunk.bytes);
        }
        assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
        assert_false(more);
        corpus_close(r);
    }
}

static void expect_bad_line(const char *line, const char *key, const char *part) {
    CorpusFile file = {.path = "dir/b.jsonl",
                       .format = FORMAT_JSONL,
                       .split = SPLIT_FILE,
                       .key = key,
                       .encoding = ENCODING_UTF8};
    CorpusChunk chunk = {line, strlen(line), 17, true, true};
    Text decoded = {0};
    Error err = {0};
    assert_int_equal(corpus_decode_json(&file, &chunk, &decoded, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "dir/b.jsonl:17"));
    if (!strstr(err.message, part)) fail_msg("'%s' is not in: %s", part, err.message);
    text_free(&decoded);
}

static void test_nul_in_json_lines(void **state) {
    static const char line[] = "{\"text\": \"a\\u0000b\"}";
    CorpusFile file = {.path = "b.jsonl",
                       .format = FORMAT_JSONL,
                       .split = SPLIT_FILE,
                       .key = NULL,
                       .encoding = ENCODING_UTF8};
    CorpusChunk chunk = {line, sizeof line - 1, 1, true, true};
    Text decoded = {0};
    Error err = {0};
    (void)state;
    assert_int_equal(corpus_decode_json(&file, &chunk, &decoded, &err), OK);
    assert_int_equal(decoded.length, 3);
    assert_memory_equal(decoded.data, "a\0b", 3);
    text_free(&decoded);
}

static void test_bad_json_lines(void **state) {
    (void)state;
    expect_bad_line("{\"text\": 01}", NULL, "dir/b.jsonl:17:10: a number");
    expect_bad_line("{\"text\": \"a\"", NULL, "");
    expect_bad_line("plain words", NULL, "");
    expect_bad_line("[\"text\"]", NULL, "object");
    expect_bad_line("{\"text\": 5}", NULL, "not a string");
    expect_bad_line("{\"text\": null}", NULL, "not a string");
    expect_bad_line("{\"content\": \"x\", \"\\u001b[31m\": 1}", NULL, "no key 'text'");
    expect_bad_line("{\"text\": \"x\"}", "body", "no key 'body' in this line; it has: text");
    expect_bad_line("{\"text\": \"x\"} trailing", NULL, "");
    expect_bad_line("{\"text\": \"\xff\"}", NULL, "");
}

static ErrorCode read_all(const char *path, Error *err) {
    CorpusFile file = {
        .path = path, .format = FORMAT_TEXT, .split = SPLIT_FILE, .key = NULL, .encoding = ENCODING_UTF8};
    Documents got;
    ErrorCode code = collect(&file, NULL, &got, err);
    text_free(&got.all);
    return code;
}

static void test_bad_files(void **state) {
    (void)state;
    Error err = {0};
    assert_int_equal(read_all(files_path("missing.txt"), &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "missing.txt"));
    assert_int_equal(read_all(files_root, &err), ERR_NOINPUT);
    assert_int_equal(mkfifo(files_path("fifo"), 0600), 0);
    assert_int_equal(read_all(files_path("fifo"), &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(read_all("https://example.org/a.txt", &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "URLs are not read"));
}

/* ---- files that are not text ---- */

typedef struct Foreign {
    const char *file, *name; /* name: as in the message */
    size_t length;           /* of the front; zeros follow up to `size`, and then the tail */
    const char *front;
    size_t size;
    const char *tail;
} Foreign;

#define FRONT(bytes) sizeof(bytes) - 1, bytes
static const Foreign foreign[] = {
    {"a.parquet", "a Parquet file;", FRONT("PAR1\x15\x04"), 400, "PAR1"},
    {"half.parquet", "a Parquet file without its end", FRONT("PAR1\x15\x04"), 400, ""},
    {"a.arrow", "Arrow", FRONT("ARROW1\0\0\xff\xff\xff\xff"), 64, "ARROW1"},
    {"stream.arrow", "Arrow stream", FRONT("\xff\xff\xff\xff\x10\x01\0\0"), 400, ""},
    {"a.feather", "Feather", FRONT("FEA1\0\0\0\0"), 64, "FEA1"},
    {"a.orc", "ORC", FRONT("ORC\x0a\x10"), 64, "ORC\x17"},
    {"a.avro", "Avro", FRONT("Obj\x01\x04"), 64, ""},
    {"a.npy", "NumPy array", FRONT("\x93NUMPY\x01\0v\0{'descr': '<u2'"), 256, ""},
    {"a.npz", "NumPy archive",
     FRONT("PK\3\4\x2d\0\0\0\0\0\0\0!\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\5\0\x14\0a.npy"), 256, ""},
    {"a.docx", "office document",
     FRONT("PK\3\4\x14\0\6\0\x08\0\0\0!\0\0\0\0\0\0\0\0\0\0\0\0\0\x13\0\0\0[Content_Types].xml"), 256, ""},
    {"a.pt", "checkpoint of PyTorch",
     FRONT("PK\3\4\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl"), 256, ""},
    {"a.zip", "zip archive", FRONT("PK\3\4\x0a\0\0\0"), 64, ""},
    {"a.xz", "xz",
     FRONT("\xfd"
           "7zXZ\0"),
     64, ""},
    {"a.bz2", "bzip2", FRONT("BZh91AY&SY"), 64, ""},
    {"a.lz4", "lz4", FRONT("\x04\x22\x4d\x18"), 64, ""},
    {"a.br", "brotli", FRONT("\x1b\x51\x02\xf8\x8d"), 64, ""},
    {"a.7z", "7z", FRONT("7z\xbc\xaf\x27\x1c"), 64, ""},
    {"a.idx", "Megatron", FRONT("MMIDIDX\0\0\1"), 64, ""},
    {"a.bin", "llm.c", FRONT("\x88\xd8\x34\x01\1\0\0\0"), 1024, ""},
    {"a.safetensors", "safetensors", FRONT("\x20\0\0\0\0\0\0\0{\"a\":{}}"), 64, ""},
    {"a.gguf", "GGUF", FRONT("GGUF\3\0\0\0"), 64, ""},
    {"a.pkl", "pickle", FRONT("\x80\x04\x95"), 64, "."},
    {"a.sqlite", "SQLite", FRONT("SQLite format 3\0"), 512, ""},
    {"a.duckdb", "DuckDB",
     FRONT("\1\2\3\4\5\6\7\x08"
           "DUCK\x40"),
     512, ""},
    {"a.h5", "HDF5", FRONT("\x89HDF\r\n\x1a\n"), 64, ""},
    {"a.mds", "MDS", FRONT("\1\0\0\0\x0c\0\0\0\x20\0\0\0"), 32, ""},
    {"a.tfrecord", "TFRecord", FRONT("\x0a\0\0\0\0\0\0\0\xae\xa3\xbf\x3a"), 64, ""},
    {"a.warc", "WARC", FRONT("WARC/1.0\r\nWARC-Type: response\r\n"), 0, ""},
    {"a.pdf", "a PDF", FRONT("%PDF-1.7\n"), 64, ""},
    {"a.png", "PNG", FRONT("\x89PNG\r\n\x1a\n"), 64, ""},
    {"a.jpg", "JPEG", FRONT("\xff\xd8\xff\xe0"), 64, ""},
    {"a.gif", "GIF", FRONT("GIF89a\1\0"), 64, ""},
    {"a.out", "program (ELF)",
     FRONT("\x7f"
           "ELF\2\1\1"),
     64, ""},
    {"a.exe", "Windows", FRONT("MZ\x90\0\3"), 64, ""},
    {"utf-16.txt", "UTF-16 text",
     FRONT("\xff\xfe"
           "a\0b\0"),
     0, ""},
    {"utf-16be.txt", "UTF-16 text", FRONT("\xfe\xff\0a\0b"), 0, ""},
    {"utf-32.txt", "UTF-32 text", FRONT("\xff\xfe\0\0a\0\0\0"), 0, ""},
    /* Without a magic number. */
    {"unmarked.txt", "looks like UTF-16", FRONT("T\0h\0e\0 \0c\0a\0t\0.\0"), 0, ""},
    {"nano.bin", "numbers of 2 bytes", FRONT("\x10\1\x20\x1a\x33\0\x21\7\x11\0\x71\6\x23\3\x12\2"), 0, ""},
    {"ids.bin", "numbers of 4 bytes", FRONT("\x10\1\0\0\x20\x1a\0\0\x33\2\0\0\x21\7\0\0"), 0, ""},
    {"latin.txt", "not UTF-8", FRONT("d\xe9j\xe0 vu"), 0, ""},
    {"zeros", "byte 4 is NUL", FRONT("abc"), 64, ""},
};

static size_t foreign_bytes(const Foreign *f, char out[1100]) {
    size_t tail = strlen(f->tail), size = f->size > f->length ? f->size : f->length;
    memset(out, 0, 1100);
    memcpy(out, f->front, f->length);
    memcpy(out + size, f->tail, tail);
    return size + tail;
}

/* Each is refused by name and with advice, also within zstd and gzip and under a text file's name. */
static void test_foreign_files_are_refused(void **state) {
    (void)state;
    char bytes[1100];
    Error err = {0};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        const Foreign *f = &foreign[i];
        size_t length = foreign_bytes(f, bytes);
        assert_int_equal(read_all(files_write(f->file, bytes, length), &err), ERR_DATA);
        if (!strstr(err.message, f->name)) fail_msg("%s: %s", f->file, err.message);
        assert_non_null(strstr(err.message, f->file));
    }
    size_t length = foreign_bytes(&foreign[7], bytes);
    assert_int_equal(read_all(files_write("plain.txt", bytes, length), &err), ERR_DATA);
    assert_int_equal(read_all(files_zstd("a.npy.zst", bytes, length, SIZE_MAX), &err), ERR_DATA);
    assert_non_null(strstr(err.message, "NumPy array"));
    assert_int_equal(read_all(files_gzip("a.npy.gz", bytes, length, SIZE_MAX), &err), ERR_DATA);
    assert_non_null(strstr(err.message, "NumPy array"));
    Text twice = {0};
    files_add_member(&twice, "text", 4, false);
    assert_int_equal(read_all(files_gzip("a.gz.gz", twice.data, twice.length, SIZE_MAX), &err), ERR_DATA);
    assert_non_null(strstr(err.message, "this is gzip data; weft reads"));
    assert_non_null(strstr(err.message, "compressed twice"));
    text_free(&twice);
}

/* Any bytes are accepted if the source asks for them, but never compressed ones. */
/* The same text in other encodings, plain and compressed, from every position on. */
static void test_encodings(void **state) {
    (void)state;
    static const char utf8[] = "\xc3\xa4 \xe2\x82\xac\n\xf0\x9f\x99\x82 z\n", latin[] = "\xe4 \x80\n\xff",
                      little[] = "\xff\xfe\xe4\0 \0\xac\x20\n\0\x3d\xd8\x42\xde \0z\0\n\0",
                      big[] = "\xfe\xff\0\xe4\0 \x20\xac\0\n\xd8\x3d\xde\x42\0 \0z\0\n",
                      han[] = "\0\x4e\0\x4e\n\0\0\x30"; /* characters whose lower byte is zero */
    files_gzip("wide.txt.gz", little, sizeof little - 1, SIZE_MAX);
    const struct {
        const char *path, *text;
        TextEncoding encoding;
    } files[] = {
        {files_write("wide.txt", little, sizeof little - 1), utf8, ENCODING_UTF16},
        {files_write("unmarked.txt", little + 2, sizeof little - 3), utf8, ENCODING_UTF16},
        {files_write("big.txt", big, sizeof big - 1), utf8, ENCODING_UTF16},
        {files_write("han.txt", han, sizeof han - 1), "\xe4\xb8\x80\xe4\xb8\x80\n\xe3\x80\x80",
         ENCODING_UTF16},
        {files_path("wide.txt.gz"), utf8, ENCODING_UTF16},
        {files_text("latin.txt", latin), "\xc3\xa4 \xc2\x80\n\xc3\xbf", ENCODING_LATIN1},
        {files_text("western.txt", latin), "\xc3\xa4 \xe2\x82\xac\n\xc3\xbf", ENCODING_WINDOWS_1252}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        CorpusFile file = {.path = files[i].path, .split = SPLIT_LINES, .encoding = files[i].encoding};
        Documents whole, rest;
        Error err;
        if (collect(&file, NULL, &whole, &err) != OK) fail_msg("%s", err.message);
        assert_string_equal(whole.all.data, files[i].text);
        assert_int_equal(whole.count, 2);
        assert_int_equal(collect(&file, &whole.positions[0], &rest, &err), OK);
        assert_string_equal(rest.all.data, files[i].text + whole.chunk_ends[0]);
        text_free(&whole.all);
        text_free(&rest.all);
    }
}

static void test_marked_as_utf8(void **state) {
    (void)state;
    static const TextEncoding encodings[] = {ENCODING_LATIN1, ENCODING_WINDOWS_1252};
    for (size_t i = 0; i < 2; i++) {
        CorpusFile file = {.path = files_text("mark.txt", "\xef\xbb\xbf\xc3\xa4"), .encoding = encodings[i]};
        Documents got;
        Error err;
        assert_int_equal(collect(&file, NULL, &got, &err), ERR_DATA);
        if (!strstr(err.message, "it begins with the mark of UTF-8: leave encoding out"))
            fail_msg("%s", err.message);
        text_free(&got.all);
    }
}

static void test_bad_utf16(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        const char *words;
    } bad[] = {{"a\0b", 3, "near byte 3: it ends in the middle of a character"},
               {"a\0\x3d\xd8", 4, "it ends in the middle"},
               {"a\0\x3d\xd8z\0", 6, "near byte 6: the first half of a character without its second"},
               {"\x42\xde", 2, "near byte 2: the second half of a character without its first"},
               {"a\0\0\0", 4, "not text: byte 2 of its text as UTF-8 is NUL; if its bytes"},
               {"\xff\xfe\0\0z\0\n\0", 8, "UTF-32"},
               {"plain ASCII\n", 12, "it has no mark of UTF-16, and is valid UTF-8: leave encoding out"},
               {"\xef\xbb\xbfz", 4, "it begins with the mark of UTF-8: leave encoding out"},
               {"\0a\0 \0b\0\n", 8, "looks like UTF-16 with the upper byte first"},
               {"\0[\0{\0}\0]", 8, "iconv -f UTF-16BE -t UTF-8"},
               {"\x04\x30\0 \x04\x31", 6, "looks like UTF-16 with the upper byte first"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CorpusFile file = {.path = files_write("bad.txt", bad[i].bytes, bad[i].length),
                           .encoding = ENCODING_UTF16};
        Documents got;
        Error err;
        assert_int_equal(collect(&file, NULL, &got, &err), ERR_DATA);
        if (!strstr(err.message, bad[i].words)) fail_msg("%s", err.message);
        text_free(&got.all);
    }
}

static void test_any_bytes(void **state) {
    (void)state;
    char bytes[1100];
    Error err = {0};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        size_t length = foreign_bytes(&foreign[i], bytes);
        CorpusFile file = {.path = files_write(foreign[i].file, bytes, length),
                           .format = FORMAT_TEXT,
                           .split = SPLIT_FILE,
                           .key = NULL,
                           .encoding = ENCODING_BYTES};
        Documents got;
        ErrorCode code = collect(&file, NULL, &got, &err);
        if (code == OK) assert_int_equal(got.all.length, length);
        if (code == OK) assert_memory_equal(got.all.data, bytes, length);
        if (code != OK) assert_null(strstr(err.message, "if its bytes"));
        text_free(&got.all);
    }
}

/* Letters that begin a file of another kind may begin a text too, and any corpus has a few broken
 * characters. */
static void test_text_is_not_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"PAR1 is a name",
                                        "MZ said so",
                                        "GIF89a is a format",
                                        "ORCS are many",
                                        "BZh9, he wrote",
                                        "RIFFRAFF",
                                        "GGUF!",
                                        "ID3 tags",
                                        "FEA1",
                                        "LANC",
                                        "",
                                        "\n",
                                        "caf\xc3\xa9",
                                        "\xef\xbb\xbfmarked",
                                        "<!doctype html>",
                                        "\x1b[1mbold\x1b[0m\n\fpage"};
    Error err = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (read_all(files_text("text", texts[i]), &err) != OK) fail_msg("%s", err.message);
    Text most = {0};
    for (int i = 0; i < 200; i++) text_puts(&most, "a line of text\n");
    text_add(&most, "\xe9\xff", 2);
    CorpusFile file = {.path = files_write("most.txt", most.data, most.length),
                       .format = FORMAT_TEXT,
                       .split = SPLIT_FILE,
                       .key = NULL,
                       .encoding = ENCODING_UTF8};
    CorpusReader *reader;
    CorpusChunk chunk;
    bool more = true;
    assert_int_equal(corpus_open(&reader, &file, NULL, &err), OK);
    while (more) assert_int_equal(corpus_next(reader, &chunk, &more, &err), OK);
    assert_int_equal(corpus_invalid_bytes(reader), 2);
    corpus_close(reader);
    text_free(&most);
}

static void test_bad_zstd(void **state) {
    (void)state;
    char *text = random_text(300000, 11);
    Error err = {0};
    files_zstd("whole.zst", text, 300000, SIZE_MAX);
    size_t length;
    char *packed = files_read("whole.zst", &length);
    assert_int_equal(read_all(files_path("whole.zst"), &err), OK);
    /* Truncated at many offsets after the magic number. */
    for (size_t keep = 4; keep < length; keep += length / 37 + 1) {
        assert_int_equal(read_all(files_write("cut.zst", packed, keep), &err), ERR_DATA);
        assert_non_null(strstr(err.message, "truncated"));
    }
    packed[length / 2] ^= 0x55;
    ErrorCode code = read_all(files_write("bad.zst", packed, length), &err);
    assert_true(code == ERR_DATA || code == OK); /* frames without a checksum may decode to other text */
    packed[length / 2] ^= 0x55;
    memset(packed + 5, 0xff, 60);
    assert_int_equal(read_all(files_write("bad.zst", packed, length), &err), ERR_DATA);
    assert_non_null(strstr(err.message, "damaged"));
    free(packed);
    /* Two frames form one file. */
    files_zstd("two.zst", text, 1000, SIZE_MAX);
    packed = files_read("two.zst", &length);
    FILE *f = fopen(files_path("two.zst"), "ab");
    fwrite(packed, 1, length, f);
    fclose(f);
    CorpusFile file = {.path = files_path("two.zst"),
                       .format = FORMAT_TEXT,
                       .split = SPLIT_FILE,
                       .key = NULL,
                       .encoding = ENCODING_UTF8};
    Documents got;
    assert_int_equal(collect(&file, NULL, &got, &err), OK);
    assert_int_equal(got.all.length, 2000);
    assert_memory_equal(got.all.data + 1000, text, 1000);
    text_free(&got.all);
    free(packed);
    free(text);
}

/* The joined content of all members is the file, however they are cut; an empty one is not the end, and zeros
 * may follow the last. */
static void test_gzip_members(void **state) {
    (void)state;
    char *text = random_text(300000, 13);
    for (int kind = 0; kind < 4; kind++) {
        bool bgzf = kind == 3;
        Text packed = {0};
        size_t step = kind == 0 ? 300000 : kind == 1 ? 99999 : 5000;
        for (size_t at = 0; at < 300000; at += step) {
            files_add_member(&packed, text + at, 300000 - at < step ? 300000 - at : step, bgzf);
            if (at % 20000 == 0 || bgzf) files_add_member(&packed, "", 0, bgzf);
        }
        if (kind == 2) text_add(&packed, (char[1000]){0}, 1000);
        CorpusFile file = {.path = files_write("members.txt", packed.data, packed.length),
                           .format = FORMAT_TEXT,
                           .split = SPLIT_FILE,
                           .key = NULL,
                           .encoding = ENCODING_UTF8};
        Documents got;
        Error err;
        if (collect(&file, NULL, &got, &err) != OK) fail_msg("%s", err.message);
        assert_int_equal(got.all.length, 300000);
        assert_memory_equal(got.all.data, text, 300000);
        text_free(&got.all);
        text_free(&packed);
    }
    free(text);
}

static void expect_bad_gzip(const char *bytes, size_t length, const char *words) {
    Error err = {0};
    assert_int_equal(read_all(files_write("bad.gz", bytes, length), &err), ERR_DATA);
    assert_non_null(strstr(err.message, "bad.gz: "));
    if (!strstr(err.message, words)) fail_msg("no \"%s\" in: %s", words, err.message);
}

/* A file cut anywhere ends in an error with the place. A flipped bit does, too, except in the parts of the
 * header that mean nothing for the content, and in the bits that fill up the last byte of the content. */
static void test_bad_gzip(void **state) {
    (void)state;
    char *text = random_text(3000, 17), words[80];
    Text packed = {0};
    files_add_member(&packed, text, 3000, false);
    size_t length = packed.length, tried = 0, wrong = 0;
    Error err = {0};
    for (size_t keep = 2; keep < length; keep++) {
        snprintf(words, sizeof words, "truncated: the gzip data stops at byte %zu,", keep);
        expect_bad_gzip(packed.data, keep, words);
    }
    for (size_t bit = 16; bit < 8 * length; bit++) {
        if (bit / 8 >= 4 && bit / 8 < 10) continue; /* time, flags of the compressor, system */
        if (bit / 8 == 3) continue;                 /* flags: another header */
        tried++;
        packed.data[bit / 8] ^= (char)(1 << bit % 8);
        wrong += read_all(files_write("bad.gz", packed.data, length), &err) == ERR_DATA;
        packed.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(wrong + 7 >= tried);
    packed.data[length - 6] ^= 1;
    expect_bad_gzip(packed.data, length, "damaged gzip data near byte");
    packed.data[length - 6] ^= 1;
    packed.data[3] |= (char)0xe0;
    expect_bad_gzip(packed.data, length, "unknown header flags set");
    packed.data[3] &= 0x1f;
    text_add(&packed, "\0\0trailing", 10);
    snprintf(words, sizeof words, "damaged gzip data near byte %zu: bytes that are not gzip follow",
             length + 2);
    expect_bad_gzip(packed.data, packed.length, words);
    packed.length = length;
    text_add(&packed, "\x1f\x8b\x07more", 7);
    expect_bad_gzip(packed.data, packed.length, "unknown compression method");
    text_free(&packed);
    free(text);
}

static void test_shrunken_file(void **state) {
    (void)state;
    Error err = {0};
    CorpusFile file = {.path = files_text("short.txt", "abc"),
                       .format = FORMAT_TEXT,
                       .split = SPLIT_FILE,
                       .key = NULL,
                       .encoding = ENCODING_UTF8};
    CorpusPosition from = {.offset = 100, .line = 3};
    Documents got;
    assert_int_equal(collect(&file, &from, &got, &err), ERR_DATA);
    file.path = files_zstd("short.zst", "abc", 3, SIZE_MAX);
    assert_int_equal(collect(&file, &from, &got, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "shorter"));
    file.path = files_gzip("short.gz", "abc", 3, SIZE_MAX);
    assert_int_equal(collect(&file, &from, &got, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "shorter"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_long_documents_come_in_chunks),
        cmocka_unit_test(test_text_without_newlines_is_cut_between_characters),
        cmocka_unit_test(test_reading_goes_on_anywhere),
        cmocka_unit_test(test_json_lines),
        cmocka_unit_test(test_json_arrays),
        cmocka_unit_test(test_bad_json_arrays),
        cmocka_unit_test(test_broken_elements),
        cmocka_unit_test(test_nul_in_json_lines),
        cmocka_unit_test(test_bad_json_lines),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_foreign_files_are_refused),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_bad_utf16),
        cmocka_unit_test(test_marked_as_utf8),
        cmocka_unit_test(test_text_is_not_refused),
        cmocka_unit_test(test_bad_zstd),
        cmocka_unit_test(test_gzip_members),
        cmocka_unit_test(test_bad_gzip),
        cmocka_unit_test(test_shrunken_file),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
