/* Ids are read block by block, and ends of documents are looked up one by one, so memory does not depend on
 * the cache. Numbers are little-endian, as the machine's. */
#include "data/token_export.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

enum { BLOCK_IDS = 1 << 16, MEGATRON_UINT16 = 8, MEGATRON_INT32 = 4, MEGATRON_LEAST_INT32 = 65500 };

/* ---- a file that is complete or not there ---- */

/* Another export may write the same name at the same time, so the temporary file is locked, and published
 * only under a name that nothing has. The lock ends with the process, however it ends. */
typedef struct Output {
    char *path, *temporary; /* NULL, too: there is none of this export's */
    FILE *file;
} Output;

static ErrorCode refuse_write(const Output *o, Error *err) {
    return error_errno(err, ERR_IO, "%s: writing failed", o->temporary);
}

static ErrorCode refuse_existing(const char *path, Error *err) {
    return error_set(err, ERR_CANTCREATE, "%s: exists; remove it, or name another directory with --out",
                     path);
}

static char *path_of(const TokenExport *e, const char *name, const char *suffix) {
    Text path = {0};
    text_printf(&path, "%s/%s%s", e->dir, name, suffix);
    return path.data;
}

static bool has_name(int fd, const char *path) {
    struct stat file, named;
    return fstat(fd, &file) == 0 && lstat(path, &named) == 0 && file.st_ino == named.st_ino &&
           file.st_dev == named.st_dev;
}

/* Opens and locks the temporary file, which may be that of an export that was killed. One that lost its name
 * before it was locked is of an export that has ended. File systems without locks have the checks by name. */
static ErrorCode lock_temporary(const char *temporary, int *fd, Error *err) {
    for (;;) {
        TRY(file_open_own(temporary, O_WRONLY | O_CREAT, fd, err));
        bool busy = flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!busy && has_name(*fd, temporary)) return OK;
        close(*fd);
        if (busy)
            return error_set(err, ERR_CANTCREATE,
                             "%s: another process writes it; name another directory with --out", temporary);
    }
}

static ErrorCode output_open(Output *o, const TokenExport *e, const char *name, const char *suffix,
                             Error *err) {
    int fd;
    Text temporary = {0};
    o->path = path_of(e, name, suffix);
    text_printf(&temporary, "%s.tmp", o->path);
    ErrorCode code = lock_temporary(temporary.data, &fd, err);
    if (code != OK) {
        text_free(&temporary);
        return code;
    }
    o->temporary = temporary.data;
    o->file = fdopen(fd, "wb");
    if (!o->file || ftruncate(fd, 0) != 0)
        return error_errno(err, ERR_CANTCREATE, "%s: cannot create", o->temporary);
    /* Another export may have ended since token_export_check. */
    return file_exists(o->path) ? refuse_existing(o->path, err) : OK;
}

static void output_put(const Output *o, const void *bytes, size_t count) { fwrite(bytes, 1, count, o->file); }

static void put_number(const Output *o, uint64_t value, size_t bytes) { output_put(o, &value, bytes); }

/* The content is on disk, but has no name yet. */
static ErrorCode output_finish(const Output *o, Error *err) {
    if (fflush(o->file) != 0 || ferror(o->file)) return refuse_write(o, err);
    return file_sync(fileno(o->file), o->temporary, err);
}

/* File systems without this kind of rename have the check of output_open alone. */
static ErrorCode output_publish(Output *o, const char *dir, Error *err) {
    int result;
    RETRY(result, renameat2(AT_FDCWD, o->temporary, AT_FDCWD, o->path, RENAME_NOREPLACE));
    if (result != 0 && errno == EEXIST) return refuse_existing(o->path, err);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) RETRY(result, rename(o->temporary, o->path));
    if (result != 0) return error_errno(err, ERR_IO, "%s: cannot rename", o->temporary);
    free(o->temporary);
    o->temporary = NULL;
    return file_sync_dir(dir, err);
}

/* The file is removed while it is locked: then it is nobody else's. */
static void output_close(Output *o) {
    if (o->temporary) unlink(o->temporary);
    if (o->file) fclose(o->file);
    free(o->temporary);
    free(o->path);
}

/* ---- ids ---- */

typedef struct Blocks {
    int32_t ids[BLOCK_IDS], starts[BLOCK_IDS];
    unsigned char raw[4 * BLOCK_IDS];
} Blocks;

static void put_ids(const Output *o, Blocks *b, size_t count, size_t width) {
    for (size_t i = 0; i < count; i++) memcpy(b->raw + i * width, &b->ids[i], width);
    output_put(o, b->raw, count * width);
}

/* In a .npy a document ends where the EOS stands, and nowhere else. `before` is the id in front of the
 * block. */
static ErrorCode check_ends(const TokenExport *e, const char *name, const Blocks *b, size_t count,
                            uint64_t at, int32_t before, Error *err) {
    for (size_t i = at == 0; i < count; i++) {
        bool ended = (i ? b->ids[i - 1] : before) == e->eos;
        if (ended == (b->starts[i] != 0)) continue;
        return error_set(err, ERR_DATA,
                         "%s: token %" PRIu64
                         " %s, so a .npy could not tell documents apart (data.add_eos); --export megatron "
                         "keeps where they end",
                         name, at + i,
                         ended ? "follows the EOS inside of a document"
                               : "begins a document without an EOS before it");
    }
    return OK;
}

static ErrorCode put_cache(const TokenExport *e, const char *name, const TokenCache *cache, const Output *o,
                           Blocks *b, size_t width, Error *err) {
    uint64_t tokens = token_cache_tokens(cache);
    int32_t before = -1;
    for (uint64_t at = 0; at < tokens; at += BLOCK_IDS) {
        size_t count = tokens - at < BLOCK_IDS ? (size_t)(tokens - at) : BLOCK_IDS;
        TRY(token_cache_read(cache, at, count, b->ids, b->starts, err));
        if (e->format == EXPORT_NPY) TRY(check_ends(e, name, b, count, at, before, err));
        before = b->ids[count - 1];
        put_ids(o, b, count, width);
        if (ferror(o->file)) return refuse_write(o, err);
    }
    if (e->format == EXPORT_MEGATRON || tokens == 0 || before == e->eos) return OK;
    return error_set(err, ERR_DATA, "%s: its last document does not end with the EOS (data.add_eos)", name);
}

static ErrorCode put_all(const TokenExport *e, const char *name, const TokenCache *cache, const Output *o,
                         size_t width, Error *err) {
    Blocks *b = mem_alloc(sizeof *b);
    ErrorCode code = put_cache(e, name, cache, o, b, width, err);
    free(b);
    return code == OK ? output_finish(o, err) : code;
}

/* ---- NumPy ---- */

static void put_npy_header(const Output *o, uint64_t tokens, size_t width) {
    enum { FRONT = 10, ALIGN = 64 };
    Text header = {0};
    text_printf(&header, "{'descr': '<u%zu', 'fortran_order': False, 'shape': (%" PRIu64 ",), }", width,
                tokens);
    while ((FRONT + header.length + 1) % ALIGN != 0) text_puts(&header, " ");
    text_puts(&header, "\n");
    output_put(o, "\x93NUMPY\x01\x00", 8);
    put_number(o, header.length, 2);
    output_put(o, header.data, header.length);
    text_free(&header);
}

static ErrorCode export_npy(const TokenExport *e, const char *name, const TokenCache *cache, Output *o,
                            Error *err) {
    size_t width = e->vocabulary <= 65536 ? 2 : 4;
    if (e->eos < 0)
        return error_set(err, ERR_CONFIG,
                         "data.tokenizer has no EOS, and in a .npy documents end with it; --export megatron "
                         "keeps where they end");
    TRY(output_open(o, e, name, ".npy", err));
    put_npy_header(o, token_cache_tokens(cache), width);
    TRY(put_all(e, name, cache, o, width, err));
    return output_publish(o, e->dir, err);
}

/* ---- Megatron ---- */

/* Documents are not empty, so the end of one is behind its first token. */
static uint64_t next_end(const TokenCache *cache, uint64_t begin) {
    return token_cache_document_end(cache, begin + 1);
}

static ErrorCode put_lengths(const char *name, const TokenCache *cache, const Output *o, Error *err) {
    uint64_t tokens = token_cache_tokens(cache);
    for (uint64_t begin = 0, end; begin < tokens; begin = end) {
        end = next_end(cache, begin);
        if (end - begin > INT32_MAX)
            return error_set(err, ERR_DATA,
                             "%s: a document of %" PRIu64
                             " tokens, and Megatron's index has 31 bits for them",
                             name, end - begin);
        put_number(o, end - begin, 4);
    }
    return OK;
}

/* formats/token_index.c describes the layout. */
static ErrorCode put_index(const char *name, const TokenCache *cache, const Output *o, size_t width,
                           Error *err) {
    uint64_t tokens = token_cache_tokens(cache), documents = token_cache_documents(cache);
    output_put(o, "MMIDIDX\0", 9);
    put_number(o, 1, 8);
    put_number(o, width == 2 ? MEGATRON_UINT16 : MEGATRON_INT32, 1);
    put_number(o, documents, 8);
    put_number(o, documents + 1, 8);
    TRY(put_lengths(name, cache, o, err));
    for (uint64_t begin = 0; begin < tokens; begin = next_end(cache, begin)) put_number(o, begin * width, 8);
    for (uint64_t k = 0; k <= documents; k++) put_number(o, k, 8);
    return output_finish(o, err);
}

static ErrorCode export_megatron(const TokenExport *e, const char *name, const TokenCache *cache, Output *o,
                                 Output *index, Error *err) {
    size_t width = e->vocabulary < MEGATRON_LEAST_INT32 ? 2 : 4;
    TRY(output_open(o, e, name, ".bin", err));
    TRY(output_open(index, e, name, ".idx", err));
    TRY(put_all(e, name, cache, o, width, err));
    TRY(put_index(name, cache, index, width, err));
    TRY(output_publish(o, e->dir, err));
    return output_publish(index, e->dir, err);
}

/* ---- interface ---- */

ErrorCode token_export_check(const TokenExport *e, const char *name, Error *err) {
    static const char *const suffixes[][2] = {
        [EXPORT_NPY] = {".npy", ".npy"}, [EXPORT_MEGATRON] = {".bin", ".idx"}};
    for (int i = 0; i < 2; i++) {
        char *path = path_of(e, name, suffixes[e->format][i]);
        ErrorCode code = file_exists(path) ? refuse_existing(path, err) : OK;
        free(path);
        TRY(code);
    }
    return OK;
}

ErrorCode token_export(const TokenExport *e, const char *name, const TokenCache *cache, Error *err) {
    Output ids = {0}, index = {0};
    ErrorCode code = e->format == EXPORT_NPY ? export_npy(e, name, cache, &ids, err)
                                             : export_megatron(e, name, cache, &ids, &index, err);
    output_close(&ids);
    output_close(&index);
    return code;
}
