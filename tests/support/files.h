/* Temporary files for tests: a directory that is removed at the end, and files in it, plain or compressed. */
#ifndef WEFT_TESTS_FILES_H
#define WEFT_TESTS_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

static char files_root[64];

/* The path of a name in the directory; an absolute one is unchanged. Valid until 15 more are requested. */
static inline const char *files_path(const char *name) {
    static char *ring[16];
    static int next;
    if (name[0] == '/') return name;
    char **slot = &ring[next++ % 16];
    free(*slot);
    return *slot = path_join(files_root, name);
}

static inline const char *files_write(const char *name, const void *data, size_t length) {
    const char *path = files_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, length, f), length);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *files_text(const char *name, const char *text) {
    return files_write(name, text, strlen(text));
}

/* keep < SIZE_MAX truncates the compressed file to that many bytes. */
static inline const char *files_zstd(const char *name, const void *data, size_t length, size_t keep) {
    size_t bound = ZSTD_compressBound(length);
    char *packed = malloc(bound);
    size_t n = ZSTD_compress(packed, bound, data, length, 3);
    assert_false(ZSTD_isError(n));
    const char *path = files_write(name, packed, n < keep ? n : keep);
    free(packed);
    return path;
}

/* Appends a gzip member to `out`. With `bgzf`, in the form of bgzip: its header has the member's size. */
static inline void files_add_member(Text *out, const void *data, size_t length, bool bgzf) {
    unsigned char size[6] = {'B', 'C', 2, 0, 0, 0};
    gz_header header = {.extra = size, .extra_len = sizeof size, .os = 255};
    z_stream z = {.avail_in = (unsigned)length};
    z.next_in = (Bytef *)(uintptr_t)data;
    size_t bound = compressBound(length) + 64;
    char *packed = malloc(bound);
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    if (bgzf) assert_int_equal(deflateSetHeader(&z, &header), Z_OK);
    z.next_out = (Bytef *)packed;
    z.avail_out = (unsigned)bound;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    for (int i = 0; bgzf && i < 2; i++) packed[16 + i] = (char)((z.total_out - 1) >> (8 * i));
    text_add(out, packed, z.total_out);
    deflateEnd(&z);
    free(packed);
}

/* One member; keep < SIZE_MAX cuts the compressed file to so many bytes. */
static inline const char *files_gzip(const char *name, const void *data, size_t length, size_t keep) {
    Text packed = {0};
    files_add_member(&packed, data, length, false);
    const char *path = files_write(name, packed.data, packed.length < keep ? packed.length : keep);
    text_free(&packed);
    return path;
}

/* The caller frees it. A NUL, which is not counted, follows the content. */
static inline char *files_read(const char *name, size_t *length) {
    FILE *f = fopen(files_path(name), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *length = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*length + 1);
    assert_int_equal(fread(data, 1, *length, f), *length);
    data[*length] = '\0';
    fclose(f);
    return data;
}

static inline const char *files_mkdir(const char *name) {
    const char *path = files_path(name);
    Error err;
    assert_int_equal(file_make_dirs(path, &err), OK);
    return path;
}

static inline int files_make_root(const char *parent) {
    snprintf(files_root, sizeof files_root, "%s/weft-test-XXXXXX", parent);
    return mkdtemp(files_root) ? 0 : -1;
}

static inline int files_setup(void **state) {
    (void)state;
    return files_make_root("/tmp");
}

/* In a memory file system, if there is one: for small files that are synced very often. */
static inline int files_setup_in_memory(void **state) {
    (void)state;
    return files_make_root(access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp");
}

static inline int files_teardown(void **state) {
    (void)state;
    return file_remove_tree(files_root, NULL) == OK ? 0 : -1;
}

#endif
