/* Bytes of a source file, decompressed if it is zstd.
 *
 * Positions count decompressed content, which documents and their ids are made of; stored bytes are for
 * progress only. Resuming in the middle of a zstd file decompresses it from its beginning: frames have no
 * index, and decompressing is far faster than tokenizing, so a separate index would not pay.
 *
 *  I1. `content` counts the bytes returned; `stored` the bytes read from the file. For plain files they are
 *      equal.
 *  I2. For zstd, `pending` is the last result of ZSTD_decompressStream: 0 exactly between frames, the only
 *      place where a file may end. */
#include "data/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/file.h"
#include "base/text.h"
#include "data/file_format.h"

/* A few of zstd's blocks of at most 128 KiB. */
enum { RAW_BYTES = 1 << 18 };

/* `in` points into `raw`. The bytes between in.pos and in.size have been read, but not decompressed. */
struct Input {
    char *path;
    int fd;
    bool any; /* accept any bytes */
    uint64_t content, stored;
    ZSTD_DStream *zstd; /* NULL for a plain file */
    char *raw;          /* compressed bytes read ahead */
    ZSTD_inBuffer in;
    size_t pending;
};

/* May return fewer bytes than asked for, as read does; only 0 is the end. Retries after signals. */
static ErrorCode read_some(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    ssize_t n;
    do n = read(input->fd, out, capacity);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return error_errno(err, ERR_IO, "%s: reading failed at byte %llu", input->path,
                           (unsigned long long)input->stored);
    *got = (size_t)n;
    input->stored += *got;
    return OK;
}

static void read_at(const Input *input, off_t at, unsigned char *out, size_t capacity, size_t *length) {
    ssize_t n = pread(input->fd, out, capacity, at);
    *length = n > 0 ? (size_t)n : 0;
}

static FileEnds stored_ends(const Input *input, uint64_t size) {
    FileEnds ends = {.path = input->path, .size = size};
    off_t tail = size > FILE_TAIL_BYTES ? (off_t)(size - FILE_TAIL_BYTES) : 0;
    read_at(input, 0, ends.head, sizeof ends.head, &ends.head_length);
    read_at(input, tail, ends.tail, sizeof ends.tail, &ends.tail_length);
    return ends;
}

static ErrorCode start_zstd(Input *input, Error *err) {
    input->zstd = ZSTD_createDStream();
    if (!input->zstd) return error_set(err, ERR_MEMORY, "%s: no memory for a zstd decoder", input->path);
    input->raw = mem_alloc(RAW_BYTES);
    input->in.src = input->raw;
    return OK;
}

/* Decides by content, since names may be wrong: a gzip file named .txt would otherwise be trained on. */
static ErrorCode start_decoder(Input *input, uint64_t size, Error *err) {
    FileEnds ends = stored_ends(input, size);
    const FileFormat *format = file_format_of(&ends);
    if (!format) return OK;
    if (format->kind == KIND_ZSTD) return start_zstd(input, err);
    if (format->kind == KIND_NOT_TEXT && input->any) return OK;
    return file_format_refuse(format, input->path, err);
}

/* The same for decompressed content: a compressed archive is not text either. Only its beginning is known. */
static ErrorCode check_content(const Input *input, const char *content, size_t length, Error *err) {
    FileEnds ends = {.path = input->path, .head_length = length < FILE_HEAD_BYTES ? length : FILE_HEAD_BYTES};
    memcpy(ends.head, content, ends.head_length);
    const FileFormat *format = input->any ? NULL : file_format_of(&ends);
    return format ? file_format_refuse(format, input->path, err) : OK;
}

/* O_NONBLOCK: opening a FIFO must not wait for a writer before it is refused. */
ErrorCode input_open(Input **out, const char *path, bool any, Error *err) {
    struct stat st;
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_refuse(path, err);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return file_refuse(path, err);
    }
    Input *input = mem_alloc(sizeof *input);
    input->path = mem_strdup(path);
    input->fd = fd;
    input->any = any;
    ErrorCode code = start_decoder(input, (uint64_t)st.st_size, err);
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
    ZSTD_freeDStream(input->zstd);
    close(input->fd);
    free(input->raw);
    free(input->path);
    free(input);
}

/* Returns at least one byte unless the file ends. A file may consist of several frames. */
static ErrorCode read_zstd(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    ZSTD_outBuffer made = {.dst = out, .size = capacity};
    while (made.pos == 0) {
        if (input->in.pos == input->in.size) {
            size_t n = 0;
            TRY(read_some(input, input->raw, RAW_BYTES, &n, err));
            input->in.size = n;
            input->in.pos = 0;
            if (n == 0 && input->pending == 0) break;
            if (n == 0)
                return error_set(err, ERR_DATA,
                                 "%s: truncated: the zstd data stops at byte %llu in the middle of a frame; "
                                 "fetch the file again",
                                 input->path, (unsigned long long)input->stored);
        }
        input->pending = ZSTD_decompressStream(input->zstd, &made, &input->in);
        if (ZSTD_isError(input->pending))
            return error_set(err, ERR_DATA,
                             "%s: damaged zstd data before byte %llu: %s; fetch the file again", input->path,
                             (unsigned long long)input->stored, ZSTD_getErrorName(input->pending));
    }
    *got = made.pos;
    return OK;
}

/* Only this function advances `content`, so that I1 holds for both kinds of files. *got may be less than
 * asked for; it is 0 only at the end. */
ErrorCode input_read(Input *input, char *out, size_t capacity, size_t *got, Error *err) {
    *got = 0;
    if (capacity == 0) return OK;
    if (input->zstd)
        TRY(read_zstd(input, out, capacity, got, err));
    else
        TRY(read_some(input, out, capacity, got, err));
    if (input->zstd && input->content == 0) TRY(check_content(input, out, *got, err));
    input->content += *got;
    return OK;
}

/* A plain file may have become shorter than an earlier run's position if it was replaced. Seeking past its
 * end would succeed and look like an empty rest, so the size is checked first. */
ErrorCode input_skip_to(Input *input, uint64_t offset, Error *err) {
    if (!input->zstd) {
        struct stat st;
        if (fstat(input->fd, &st) != 0 || offset > (uint64_t)st.st_size)
            return error_set(err, ERR_DATA, "%s: shorter than byte %llu, where reading was to go on",
                             input->path, (unsigned long long)offset);
        if (lseek(input->fd, (off_t)offset, SEEK_SET) < 0)
            return error_errno(err, ERR_IO, "%s: cannot seek", input->path);
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
                             input->path, (unsigned long long)offset);
    }
    free(sink);
    return code;
}

uint64_t input_stored_position(const Input *input) { return input->stored; }
