/* Bytes of a source file, decompressed if it is zstd or gzip (formats/decoder.h).
 *
 * Positions count decompressed content, which documents and their ids are made of; stored bytes are for
 * progress only. Resuming in the middle of a compressed file decompresses it from its beginning: frames have
 * no index, and decompressing is far faster than tokenizing, so a separate index would not pay.
 *
 *  I1. `content` counts the bytes returned; `stored` the bytes read from the file. For plain files they are
 *      equal.
 *  I2. For compressed files, `whole` is true exactly between frames (zstd) or members (gzip), the only place
 *      where a file may end. */
#include "formats/input.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "formats/decoder.h"
#include "formats/file_format.h"
#include "formats/stored_file.h"

/* A few of zstd's blocks of at most 128 KiB. */
#ifdef WEFT_SMALL_BUFFERS /* for fuzzing (CMakeLists.txt) */
enum { RAW_BYTES = 1 << 10 };
#else
enum { RAW_BYTES = 1 << 18 };
#endif

/* bytes.in[in_at, in_size) have been read, but not decompressed. */
struct Input {
    StoredFile file;
    TextEncoding encoding;
    uint64_t content, stored;
    const Decoder *decoder; /* NULL for a plain file */
    void *state;            /* the decoder's */
    char *raw;              /* compressed bytes read ahead */
    DecoderBytes bytes;
    bool whole;
    Recoder recoder; /* if it is needed */
    char *foreign;   /* what it reads */
    uint64_t read;   /* bytes that it was given */
    Text text;       /* what it has made */
    size_t text_at;  /* of these, returned */
};

/* May return fewer bytes than asked for, as read does; only 0 is the end. Retries after signals. */
static ErrorCode read_some(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    ssize_t n;
    do n = read(input->file.fd, out, capacity);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return error_errno(err, ERR_IO, "%s: reading failed at byte %llu", input->file.path,
                           (unsigned long long)input->stored);
    *got = (size_t)n;
    input->stored += *got;
    return OK;
}

static ErrorCode start_decoder(Input *input, const Decoder *decoder, Error *err) {
    input->decoder = decoder;
    input->state = decoder->open();
    if (!input->state)
        return error_set(err, ERR_MEMORY, "%s: no memory for a decoder of %s", input->file.path,
                         decoder->name);
    input->raw = mem_alloc(RAW_BYTES);
    input->bytes.in = input->raw;
    return OK;
}

/* Decides by content, since names may be wrong: an xz file named .txt would otherwise be trained on. */
static ErrorCode recognise(Input *input, Error *err) {
    FileEnds ends;
    TRY(stored_ends(&input->file, &ends, err));
    const FileFormat *format = file_format_of(&ends);
    if (!format) return OK;
    const Decoder *decoder = decoder_of(format->kind);
    if (decoder) return start_decoder(input, decoder, err);
    if (format->kind == KIND_UTF16 && input->encoding == ENCODING_UTF16) return OK;
    if (format->kind != KIND_PACKED && input->encoding == ENCODING_BYTES) return OK;
    return file_format_refuse(format, input->file.path, err);
}

/* The same for decompressed content: a compressed archive is not text either. Only its beginning is known. */
static ErrorCode check_content(const Input *input, const char *content, size_t length, Error *err) {
    FileEnds ends = {.path = input->file.path,
                     .head_length = length < FILE_HEAD_BYTES ? length : FILE_HEAD_BYTES};
    memcpy(ends.head, content, ends.head_length);
    const FileFormat *format = input->encoding == ENCODING_BYTES ? NULL : file_format_of(&ends);
    if (format && format->kind == KIND_UTF16 && input->encoding == ENCODING_UTF16) return OK;
    return format ? file_format_refuse(format, input->file.path, err) : OK;
}

ErrorCode input_open(Input **out, const char *path, TextEncoding encoding, Error *err) {
    StoredFile file;
    *out = NULL;
    TRY(stored_open(&file, path, err));
    Input *input = mem_alloc(sizeof *input);
    input->file = file;
    input->encoding = encoding;
    input->recoder.encoding = encoding;
    if (recoder_needed(encoding)) input->foreign = mem_alloc(RAW_BYTES);
    ErrorCode code = recognise(input, err);
    if (code != OK) {
        input_close(input);
        return code;
    }
    *out = input;
    return OK;
}

/* NULL is fine, and so is an input whose opening failed: missing members are NULL. */
void input_close(Input *input) {
    if (!input) return;
    if (input->decoder) input->decoder->close(input->state);
    stored_close(&input->file);
    free(input->raw);
    free(input->foreign);
    text_free(&input->text);
    free(input);
}

/* Offset in the stored file of the first byte that is not decompressed. */
static unsigned long long decoded_position(const Input *input) {
    return input->stored - (input->bytes.in_size - input->bytes.in_at);
}

/* More compressed bytes; *end at the end of the file. */
static ErrorCode read_packed(Input *input, bool *end, Error *err) {
    size_t n = 0;
    TRY(read_some(input, input->raw, RAW_BYTES, &n, err));
    input->bytes.in_size = n;
    input->bytes.in_at = 0;
    *end = n == 0;
    if (n > 0 || input->whole) return OK;
    return error_set(err, ERR_DATA,
                     "%s: truncated: the %s data stops at byte %llu, before its end; fetch the file again",
                     input->file.path, input->decoder->name, decoded_position(input));
}

/* Returns at least one byte unless the file ends. */
static ErrorCode decompress(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    DecoderBytes *b = &input->bytes;
    bool end = false;
    b->out = out;
    b->out_size = capacity;
    b->out_at = 0;
    while (b->out_at == 0) {
        if (b->in_at == b->in_size) TRY(read_packed(input, &end, err));
        if (end) break;
        const char *wrong = input->decoder->run(input->state, b, &input->whole);
        if (wrong)
            return error_set(err, ERR_DATA, "%s: damaged %s data near byte %llu: %s; fetch the file again",
                             input->file.path, input->decoder->name, decoded_position(input), wrong);
    }
    *got = b->out_at;
    return OK;
}

/* The file's own bytes. */
static ErrorCode read_plain(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    if (!input->decoder) return read_some(input, out, capacity, got, err);
    bool first = input->read == 0 && input->content == 0;
    TRY(decompress(input, out, capacity, got, err));
    return first ? check_content(input, out, *got, err) : OK;
}

static ErrorCode check_encoding(const Input *input, size_t count, Error *err) {
    const char *doubt = recoder_doubt(input->encoding, input->foreign, count);
    if (!doubt) return OK;
    return error_set(err, ERR_DATA, "%s: not in the encoding of the source: %s", input->file.path, doubt);
}

/* More text from the recoder; none at the end of the file. */
static ErrorCode recode(Input *input, Error *err) {
    size_t got = 1, at = 0;
    text_clear(&input->text);
    input->text_at = 0;
    while (input->text.length == 0 && got > 0) {
        TRY(read_plain(input, input->foreign, RAW_BYTES, &got, err));
        if (input->read == 0) TRY(check_encoding(input, got, err));
        const char *wrong = got > 0 ? recoder_add(&input->recoder, input->foreign, got, &input->text, &at)
                                    : recoder_end(&input->recoder);
        if (wrong)
            return error_set(err, ERR_DATA, "%s: not in the encoding of the source: near byte %llu: %s",
                             input->file.path, (unsigned long long)(input->read + at), wrong);
        input->read += got;
    }
    return OK;
}

static ErrorCode read_recoded(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    if (input->text_at == input->text.length) TRY(recode(input, err));
    size_t left = input->text.length - input->text_at;
    *got = left < capacity ? left : capacity;
    if (*got > 0) memcpy(out, input->text.data + input->text_at, *got);
    input->text_at += *got;
    return OK;
}

/* Only this function advances `content`, so that I1 holds for both kinds of files. *got may be less than
 * asked for; it is 0 only at the end. */
ErrorCode input_read(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    *got = 0;
    if (capacity == 0) return OK;
    TRY((input->foreign ? read_recoded : read_plain)(input, out, capacity, got, err));
    input->content += *got;
    return OK;
}

/* A plain file may have become shorter than an earlier run's position if it was replaced. Seeking past its
 * end would succeed and look like an empty rest, so the size is checked first. */
ErrorCode input_skip_to(Input *input, uint64_t offset, Error *err) {
    if (!input->decoder && !input->foreign) {
        struct stat st;
        if (fstat(input->file.fd, &st) != 0 || offset > (uint64_t)st.st_size)
            return error_set(err, ERR_DATA, "%s: shorter than byte %llu, where reading was to go on",
                             input->file.path, (unsigned long long)offset);
        if (lseek(input->file.fd, (off_t)offset, SEEK_SET) < 0)
            return error_errno(err, ERR_IO, "%s: cannot seek", input->file.path);
        input->content = input->stored = offset;
        return OK;
    }
    char *sink = mem_alloc(RAW_BYTES);
    ErrorCode code = OK;
    while (code == OK && input->content < offset) {
        uint64_t left = offset - input->content;
        size_t got;
        code = input_read(input, sink, left < RAW_BYTES ? (size_t)left : RAW_BYTES, &got, err);
        if (code == OK && got == 0)
            code = error_set(err, ERR_DATA,
                             "%s: shorter than byte %llu of its content, where reading was to go on",
                             input->file.path, (unsigned long long)offset);
    }
    free(sink);
    return code;
}

uint64_t input_stored_position(const Input *input) { return input->stored; }
