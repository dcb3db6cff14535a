/* Fuzzes a file of text or JSON; the first byte of the input selects how it is read and in which encoding,
 * and whether it is packed into gzip members first. Text chunks together are the file; a reader that resumes
 * from a position between two chunks returns the same; JSON lines give their text or an error. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/text.h"
#include "data/corpus.h"
#include "fuzz.h"

/* The reader's buffers do not depend on the file. A line of JSON is held as a tree. */
enum { PER_BYTE = 160, FIXED = FUZZ_TEXT_READER };

typedef struct Digest {
    size_t chunks;
    Text text; /* chunks, each after a mark for whether a document starts or ends */
} Digest;

/* Reads to the end or the first error; at most `stop_after` chunks, and then *position is where it
 * stopped. */
static ErrorCode read_chunks(const CorpusFile *file, const CorpusPosition *from, size_t stop_after,
                             Digest *out, CorpusPosition *position, Error *err) {
    CorpusReader *reader;
    CorpusChunk chunk;
    bool more = true;
    TRY(corpus_open(&reader, file, from, err));
    ErrorCode code = OK;
    while (out->chunks < stop_after && (code = corpus_next(reader, &chunk, &more, err)) == OK && more) {
        if (chunk.length == 0) fuzz_fail(__FILE__, __LINE__, "a piece is not empty", file->path);
        text_add(&out->text, &(char){(char)('0' + chunk.starts + 2 * chunk.ends)}, 1);
        text_add(&out->text, chunk.bytes, chunk.length);
        out->chunks++;
    }
    *position = corpus_position(reader);
    corpus_close(reader);
    return code;
}

static void check_restart(const CorpusFile *file, const Digest *whole, size_t at) {
    Error err = {0};
    Digest parts = {0};
    CorpusPosition middle, end;
    REQUIRE(read_chunks(file, NULL, at, &parts, &middle, &err) == OK && parts.chunks == at);
    REQUIRE(read_chunks(file, &middle, SIZE_MAX, &parts, &end, &err) == OK && parts.chunks == whole->chunks);
    REQUIRE(parts.text.length == whole->text.length &&
            memcmp(parts.text.data, whole->text.data, whole->text.length) == 0);
    text_free(&parts.text);
}

static void check_lines(const CorpusFile *file) {
    Error err = {0};
    CorpusReader *reader;
    CorpusChunk chunk;
    Text text = {0};
    bool more = true;
    if (corpus_open(&reader, file, NULL, &err) != OK) return;
    while (corpus_next(reader, &chunk, &more, &err) == OK && more)
        if (fuzz_ok(corpus_decode_json(file, &chunk, &text, &err), &err))
            REQUIRE(text.length <= chunk.length);
    text_free(&text);
    corpus_close(reader);
}

/* Compares with the content of the file, unless that is compressed. */
static void check_content(const Digest *whole, const uint8_t *data, size_t size) {
    if (size >= 4 && (memcmp(data, "\x28\xb5\x2f\xfd", 4) == 0 || (data[0] & 0xf0) == 0x50)) return;
    if (size >= 2 && memcmp(data, "\x1f\x8b", 2) == 0) return;
    if (size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0) data += 3, size -= 3;
    REQUIRE(whole->text.length - whole->chunks == size);
}

static void add_member(Text *out, const uint8_t *data, size_t size) {
    uint8_t packed[1 << 12];
    z_stream z = {.avail_in = (unsigned)size};
    z.next_in = (Bytef *)(uintptr_t)data;
    REQUIRE(deflateInit2(&z, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    int code;
    do {
        z.next_out = packed;
        z.avail_out = sizeof packed;
        code = deflate(&z, Z_FINISH);
        text_add(out, (const char *)packed, sizeof packed - z.avail_out);
    } while (code == Z_OK);
    REQUIRE(code == Z_STREAM_END);
    deflateEnd(&z);
}

/* Two members with content, at a place that the content draws, an empty one between them, and zeros. */
static const char *packed_file(const uint8_t *data, size_t size) {
    Text packed = {0};
    size_t cut = size > 0 ? data[size / 2] % size : 0;
    add_member(&packed, data, cut);
    add_member(&packed, data, 0);
    add_member(&packed, data + cut, size - cut);
    text_add(&packed, "\0\0\0", size % 4);
    const char *path = fuzz_file("corpus", packed.data, packed.length);
    text_free(&packed);
    return path;
}

static TextEncoding encoding_of(uint8_t how) {
    if (how & 16) return ENCODING_UTF8;
    if (how & 32) return how & 128 ? ENCODING_WINDOWS_1252 : ENCODING_UTF16;
    return how & 128 ? ENCODING_LATIN1 : ENCODING_BYTES;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    CorpusPosition end;
    if (size < 1) return 0;
    CorpusFile file = {.format = data[0] & 1 ? FORMAT_JSONL : FORMAT_TEXT,
                       .split = (SourceSplit)(data[0] / 2 % 3),
                       .key = data[0] & 8 ? "a\x1b[31m" : NULL,
                       .encoding = encoding_of(data[0])};
    file.path = data[0] & 64 ? packed_file(data + 1, size - 1) : fuzz_file("corpus", data + 1, size - 1);
    Digest whole = {0};
    fuzz_memory_start();
    bool good = fuzz_ok(read_chunks(&file, NULL, SIZE_MAX, &whole, &end, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    bool same = file.format == FORMAT_TEXT && !recoder_needed(file.encoding);
    if (good && same) check_content(&whole, data + 1, size - 1);
    if (good && whole.chunks > 1) check_restart(&file, &whole, whole.chunks / 2);
    if (file.format == FORMAT_JSONL) check_lines(&file);
    text_free(&whole.text);
    return 0;
}
