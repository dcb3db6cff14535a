/* Files of token ids: types and headers, documents told by an id behind or in front of them, reading from any
 * token on, and what is wrong with files. */
#include "support/files.h"

#include "data/corpus.h"
#include "formats/token_index.h"

enum { VOCABULARY = 50257, END = 50256, BLOCK = 1 << 16 };

static TokenFileOptions options(TokenType type, TokenBoundary boundary, int32_t end) {
    return (TokenFileOptions){type, boundary, end, VOCABULARY, NULL};
}

/* ids as numbers of `width` bytes. */
static void add_ids(Text *out, const int32_t *ids, size_t count, size_t width) {
    for (size_t i = 0; i < count; i++) text_add(out, (const char *)&ids[i], width);
}

static void add_npy(Text *out, const char *descr, const char *shape) {
    char header[256];
    int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                          descr, shape);
    int padded = (10 + length + 1 + 63) / 64 * 64 - 10;
    unsigned char front[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)padded, (unsigned char)(padded >> 8)};
    text_add(out, (const char *)front, sizeof front);
    text_add(out, header, (size_t)length);
    while (length++ < padded - 1) text_puts(out, " ");
    text_puts(out, "\n");
}

static void add_llmc(Text *out, int32_t magic, int32_t version, int32_t count) {
    int32_t header[256] = {magic, version, count};
    text_add(out, (const char *)header, sizeof header);
}

/* Pieces from `first` on, joined; an end is added as -1. */
static ErrorCode read_from(const char *path, const TokenFileOptions *o, uint64_t first, TokenList *out,
                           Error *err) {
    TokenFile *f;
    TokenPiece p;
    bool more = true;
    out->count = 0;
    TRY(token_file_open(&f, path, o, err));
    ErrorCode code = first > 0 ? token_file_skip_to(f, first, err) : OK;
    while (code == OK && (code = token_file_next(f, &p, &more, err)) == OK && more) {
        assert_true(p.count > 0);
        assert_int_equal(p.first, first);
        first += p.count;
        token_list_reserve(out, p.count + 1);
        memcpy(out->ids + out->count, p.ids, p.count * sizeof *p.ids);
        out->count += p.count;
        if (p.ends) out->ids[out->count++] = -1;
    }
    token_file_close(f);
    return code;
}

static void expect_ids(const char *path, const TokenFileOptions *o, const int32_t *want, size_t count) {
    Error err = {0};
    TokenList got = {0};
    if (read_from(path, o, 0, &got, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(got.count, count);
    for (size_t i = 0; i < count; i++)
        if (got.ids[i] != want[i]) fail_msg("id %zu: %d for %d", i, got.ids[i], want[i]);
    token_list_free(&got);
}

static void test_formats(void **state) {
    (void)state;
    static const int32_t ids[] = {7, 8, END, END, 9, END}, llmc[] = {END, 7, 8, END, 9};
    static const int32_t ends[] = {7, 8, END, -1, END, -1, 9, END, -1},
                         starts[] = {END, 7, 8, -1, END, 9, -1};
    static const int32_t whole[] = {7, 8, END, END, 9, END, -1};
    static const struct {
        const char *descr;
        TokenType type;
        size_t width;
    } types[] = {{"<u2", TOKEN_UINT16, 2}, {"<u4", TOKEN_UINT32, 4}, {"<i4", TOKEN_INT32, 4}};
    for (int i = 0; i < 3; i++) {
        Text raw = {0}, npy = {0}, table = {0};
        add_ids(&raw, ids, 6, types[i].width);
        add_npy(&npy, types[i].descr, "(6,)");
        add_npy(&table, types[i].descr, "(2, 3)");
        text_add(&npy, raw.data, raw.length);
        text_add(&table, raw.data, raw.length);
        TokenFileOptions o = options(types[i].type, BOUNDARY_AUTO, END), none = options(types[i].type, 0, -1);
        expect_ids(files_write("raw.bin", raw.data, raw.length), &o, ends, 9);
        expect_ids(files_path("raw.bin"), &none, whole, 7);
        o.type = TOKEN_TYPE_AUTO;
        expect_ids(files_write("a.npy", npy.data, npy.length), &o, ends, 9);
        expect_ids(files_write("b.npy", table.data, table.length), &o, ends, 9);
        text_free(&raw);
        text_free(&npy);
        text_free(&table);
    }
    for (int wide = 0; wide < 2; wide++) {
        Text file = {0};
        add_llmc(&file, wide ? 20240801 : 20240520, wide ? 7 : 1, 5);
        add_ids(&file, llmc, 5, wide ? 4 : 2);
        TokenFileOptions o = options(TOKEN_TYPE_AUTO, BOUNDARY_AUTO, END);
        expect_ids(files_write("llmc.bin", file.data, file.length), &o, starts, 7);
        text_free(&file);
    }
    /* Without a header: told by the first and the last id. */
    Text file = {0};
    add_ids(&file, llmc, 5, 2);
    TokenFileOptions o = options(TOKEN_UINT16, BOUNDARY_AUTO, END);
    expect_ids(files_write("starts.bin", file.data, file.length), &o, starts, 7);
    expect_ids(files_write("none.bin", "", 0), &o, NULL, 0);
    text_free(&file);
}

/* Documents whose ends lie around the borders of blocks; the same from any token on. */
static void test_blocks(void **state) {
    (void)state;
    Error err = {0};
    enum { COUNT = 3 * BLOCK + 10 };
    int32_t *ids = malloc(COUNT * sizeof *ids);
    for (int boundary = BOUNDARY_END; boundary <= BOUNDARY_START; boundary++)
        for (int shift = -1; shift <= 1; shift++) {
            Text file = {0};
            TokenList all = {0}, rest = {0};
            for (int i = 0; i < COUNT; i++) ids[i] = i % 50000;
            for (int i = 1; i < 4; i++) ids[i * BLOCK + shift] = END;
            add_ids(&file, ids, COUNT, 2);
            const char *path = files_write("blocks.bin", file.data, file.length);
            TokenFileOptions o = options(TOKEN_UINT16, (TokenBoundary)boundary, END);
            assert_int_equal(read_from(path, &o, 0, &all, &err), OK);
            assert_int_equal(all.count, COUNT + 4);
            for (size_t i = 0, at = 0; i < COUNT; i++, at++) {
                assert_int_equal(all.ids[at], ids[i]);
                bool end = i + 1 == COUNT || (boundary == BOUNDARY_END ? ids[i] : ids[i + 1]) == END;
                assert_int_equal(end, all.ids[at + 1] == -1);
                at += end;
            }
            for (uint64_t first = 1; first <= COUNT; first += first % BLOCK > 2 ? BLOCK - 4 : 1) {
                assert_int_equal(read_from(path, &o, first, &rest, &err), OK);
                size_t n = rest.count;
                if (n) assert_memory_equal(rest.ids, all.ids + all.count - n, n * sizeof *rest.ids);
                size_t joined = 0;
                for (size_t i = 0; i < n; i++) joined += rest.ids[i] >= 0;
                assert_int_equal(joined, COUNT - first);
            }
            token_list_free(&all);
            token_list_free(&rest);
            text_free(&file);
        }
    free(ids);
}

static void expect_refused(const char *bytes, size_t length, const TokenFileOptions *o, const char *words) {
    Error err = {0};
    TokenList got = {0};
    assert_int_equal(read_from(files_write("bad.bin", bytes, length), o, 0, &got, &err), ERR_DATA);
    if (!strstr(err.message, words)) fail_msg("no \"%s\" in: %s", words, err.message);
    assert_non_null(strstr(err.message, "bad.bin: "));
    token_list_free(&got);
}

static void refuse_npy(const char *descr, const char *shape, size_t bytes, const char *words) {
    Text file = {0};
    TokenFileOptions o = options(TOKEN_TYPE_AUTO, BOUNDARY_AUTO, -1);
    add_npy(&file, descr, shape);
    text_add(&file, (char[64]){0}, bytes);
    expect_refused(file.data, file.length, &o, words);
    text_free(&file);
}

static void test_bad_headers(void **state) {
    (void)state;
    Error err = {0};
    TokenFileOptions any = options(TOKEN_TYPE_AUTO, BOUNDARY_AUTO, -1), u16 = options(TOKEN_UINT16, 0, -1);
    refuse_npy(">u2", "(4,)", 8,
               "a NumPy array of >u2: expected ids as uint16, uint32 or int32, of the lower");
    refuse_npy("<f4", "(4,)", 16, "a NumPy array of <f4");
    refuse_npy("|O", "(4,)", 16, "a NumPy array of |O");
    refuse_npy("<u2", "(4,)", 7, "states 4 ids of 2 bytes, but 7 bytes follow");
    refuse_npy("<u2", "(4,)", 10, "but 10 bytes follow");
    refuse_npy("<u2", "(18446744073709551615, 2)", 8, "its shape is too large");
    refuse_npy("<u2", "(99999999999999999999,)", 8, "its shape is too large");
    refuse_npy("<u2", "(9223372036854775808,)", 0, "states 9223372036854775808 ids");
    refuse_npy("<u2", "4", 8, "its shape is not a tuple");
    refuse_npy("<u2", "(4, 'x': 1)", 8, "its shape is not one of numbers");
    refuse_npy("<u2'), ('b", "(4,)", 8, "its header has an unknown key");
    expect_refused("\x93NUMPY\x01\0\xff\xff{'de", 14, &any, "damaged NumPy array");
    expect_refused("\x93NUMPY\x01", 7, &any, "truncated NumPy array; fetch");
    expect_refused("\x93NUMPY\x01\0\x02\0{}", 12, &any, "its header is incomplete");
    expect_refused("abcd", 4, &any, "give the source dtype: uint16, uint32 or int32");
    expect_refused("abc", 3, &u16, "3 bytes are not a multiple of 2, the bytes of an id: set dtype");
    expect_refused("MMIDIDX\0\0\1\0\0", 12, &any, "an index of Megatron, not ids: name the .bin next to it");
    Text file = {0};
    add_llmc(&file, 20240522, 1, 0);
    expect_refused(file.data, file.length, &any, "an evaluation file of llm.c");
    expect_refused(file.data, 100, &any, "truncated token file of llm.c; fetch");
    text_clear(&file);
    add_llmc(&file, 20240520, 2, 0);
    expect_refused(file.data, file.length, &any, "of version 2: expected version 1");
    text_clear(&file);
    add_llmc(&file, 20240520, 1, 3);
    expect_refused(file.data, file.length, &any, "states 3 ids of 2 bytes, but 0 bytes follow");
    text_clear(&file);
    add_npy(&file, "<u4", "(1,)");
    text_add(&file, "\1\0\0\0", 4);
    expect_refused(file.data, file.length, &u16,
                   "its header states uint32, but the source has dtype: uint16: leave dtype out");
    text_free(&file);
    TokenFile *f;
    assert_int_equal(token_file_open(&f, files_path("missing.bin"), &u16, &err), ERR_NOINPUT);
    assert_int_equal(token_file_open(&f, files_root, &u16, &err), ERR_NOINPUT);
}

static void test_bad_ids(void **state) {
    (void)state;
    static const int32_t ids[] = {1, 2, VOCABULARY, 3}, negative[] = {1, -5}, text[] = {72, 101, 108, 108};
    TokenFileOptions o = options(TOKEN_UINT16, BOUNDARY_AUTO, -1);
    Text file = {0};
    add_ids(&file, ids, 4, 2);
    expect_refused(
        file.data, file.length, &o,
        "token 2 (byte 4): id 50257 is outside of the vocabulary of 50257; it was made by another");
    o.type = TOKEN_UINT32;
    expect_refused(file.data, file.length, &o, "it looks like uint16");
    text_clear(&file);
    add_ids(&file, negative, 2, 4);
    o.type = TOKEN_INT32;
    expect_refused(file.data, file.length, &o, "token 1 (byte 4): id 4294967291");
    text_clear(&file);
    for (int i = 0; i < 20; i++) add_ids(&file, text, 4, 4);
    o.type = TOKEN_UINT16;
    expect_refused(file.data, file.length, &o,
                   "every second id is 0, as in a file of uint32 read as uint16: give the source dtype");
    o = options(TOKEN_UINT32, BOUNDARY_AUTO, END);
    expect_refused(file.data, file.length, &o,
                   "id 50256, which stands between documents, is not among its first 80");
    text_free(&file);
}

/* Writes PREFIX.idx of sequences of these lengths, of documents beginning at these sequences. */
static void write_index(const char *name, unsigned char type, size_t width, const int32_t *lengths,
                        int64_t count, const int64_t *firsts, int64_t first_count) {
    Text file = {0};
    int64_t at = 0, version = 1;
    text_add(&file, "MMIDIDX\0", 9);
    text_add(&file, (const char *)&version, 8);
    text_add(&file, (const char *)&type, 1);
    text_add(&file, (const char *)&count, 8);
    text_add(&file, (const char *)&first_count, 8);
    text_add(&file, (const char *)lengths, (size_t)count * 4);
    for (int64_t i = 0; i < count; i++) {
        text_add(&file, (const char *)&at, 8);
        at += (int64_t)lengths[i] * (int64_t)width;
    }
    text_add(&file, (const char *)firsts, (size_t)first_count * 8);
    files_write(name, file.data, file.length);
    text_free(&file);
}

/* Documents of several sequences and of none; the ids have no end of their own. */
static void test_megatron(void **state) {
    (void)state;
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7}, lengths[] = {2, 1, 0, 3, 1};
    static const int64_t firsts[] = {0, 2, 2, 3, 5};
    static const int32_t want[] = {1, 2, 3, -1, 4, 5, 6, 7, -1};
    for (int wide = 0; wide < 2; wide++) {
        Text bin = {0};
        add_ids(&bin, ids, 7, wide ? 4 : 2);
        const char *path = files_write("pair.bin", bin.data, bin.length);
        write_index("pair.idx", wide ? 4 : 8, wide ? 4 : 2, lengths, 5, firsts, 5);
        char *index = token_index_path(path);
        assert_non_null(index);
        TokenFileOptions o = options(TOKEN_TYPE_AUTO, BOUNDARY_AUTO, END);
        o.index = index;
        expect_ids(path, &o, want, 9);
        TokenList rest = {0};
        Error err = {0};
        for (uint64_t first = 1; first <= 7; first++) {
            assert_int_equal(read_from(path, &o, first, &rest, &err), OK);
            if (rest.count) assert_memory_equal(rest.ids, want + 9 - rest.count, rest.count * sizeof *want);
        }
        token_list_free(&rest);
        free(index);
        text_free(&bin);
    }
    assert_null(token_index_path(files_write("alone.bin", "ab", 2)));
    assert_null(token_index_path(files_path("pair.idx")));
}

static void refuse_index(size_t at, const char *bytes, size_t count, const char *words) {
    static const int32_t lengths[] = {2, 1};
    static const int64_t firsts[] = {0, 1, 2};
    Error err = {0};
    TokenIndex *x;
    size_t length;
    write_index("bad.idx", 8, 2, lengths, 2, firsts, 3);
    char *index = files_read("bad.idx", &length);
    memcpy(index + at, bytes, count);
    assert_int_equal(token_index_open(&x, files_write("bad.idx", index, length), 6, &err), ERR_DATA);
    if (!strstr(err.message, words)) fail_msg("no \"%s\" in: %s", words, err.message);
    free(index);
}

/* Header of 34 bytes, lengths from 34, offsets from 42, documents from 58. */
static void test_bad_indices(void **state) {
    (void)state;
    static const char ones[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    Error err = {0};
    TokenIndex *x;
    refuse_index(9, "\2", 1, "an unknown version");
    refuse_index(17, "\6", 1, "neither uint16 nor int32");
    refuse_index(18, ones, 8, "more entries than bytes");
    refuse_index(26, ones, 8, "more entries than bytes");
    refuse_index(25, "\x20", 1, "more entries than bytes");
    refuse_index(18, "\3", 1, "its size does not fit its counts");
    refuse_index(34, ones, 4, "a negative length");
    refuse_index(34, "\3", 1, "do not follow each other");
    refuse_index(42, "\2", 1, "do not follow each other");
    refuse_index(38, "\7", 1, "longer than the .bin");
    refuse_index(38, "\0", 1, "shorter than the .bin");
    refuse_index(58, "\1", 1, "do not cover");
    refuse_index(74, "\1", 1, "do not cover");
    refuse_index(66, "\5", 1, "not in order");
    assert_int_equal(token_index_open(&x, files_write("cut.idx", "MMIDIDX\0", 9), 6, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "it is truncated"));
}

/* As a source: chunks are ids, and reading goes on inside of a document. */
static void test_corpus(void **state) {
    (void)state;
    static const int32_t ids[] = {7, 8, END, 9};
    Error err = {0};
    CorpusFile file = {.path = files_write("c.bin", ids, sizeof ids),
                       .format = FORMAT_TOKENS,
                       .tokens = options(TOKEN_INT32, BOUNDARY_AUTO, END)};
    CorpusReader *r;
    CorpusChunk chunk;
    bool more;
    assert_int_equal(corpus_open(&r, &file, NULL, &err), OK);
    assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
    assert_true(more && chunk.starts && chunk.ends);
    assert_int_equal(chunk.length, 12);
    assert_memory_equal(chunk.bytes, ids, 12);
    assert_int_equal(corpus_position(r).offset, 3);
    corpus_close(r);
    CorpusPosition inside = {1, 1, true};
    assert_int_equal(corpus_open(&r, &file, &inside, &err), OK);
    assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
    assert_true(more && !chunk.starts && chunk.ends);
    assert_int_equal(chunk.length, 8);
    assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
    assert_true(more && chunk.starts && chunk.ends);
    assert_int_equal(chunk.line, 4);
    assert_int_equal(corpus_next(r, &chunk, &more, &err), OK);
    assert_false(more);
    corpus_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),     cmocka_unit_test(test_blocks), cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_ids),     cmocka_unit_test(test_corpus), cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_bad_indices),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
