/* Temporary files for the tests of data/: a directory that goes away, files in it, plain or zstd. */
#ifndef WEFT_TESTS_DATA_FILES_H
#define WEFT_TESTS_DATA_FILES_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/text.h"

static char files_root[64];

static inline const char *files_path(const char *name) {
    static char ring[8][512];
    static int next;
    char *out = ring[next++ % 8];
    snprintf(out, sizeof ring[0], "%s/%s", files_root, name);
    return out;
}

static inline const char *files_write(const char *name, const void *data, size_t length) {
    const char *path = files_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, length, f), length);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *files_text(const char *name, const char *text) { return files_write(name, text, strlen(text)); }

/* keep < SIZE_MAX cuts the compressed file to so many bytes. */
static inline const char *files_zstd(const char *name, const void *data, size_t length, size_t keep) {
    size_t bound = ZSTD_compressBound(length);
    char *packed = malloc(bound);
    size_t n = ZSTD_compress(packed, bound, data, length, 3);
    assert_false(ZSTD_isError(n));
    const char *path = files_write(name, packed, n < keep ? n : keep);
    free(packed);
    return path;
}

static inline char *files_read(const char *path, size_t *length) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *length = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*length + 1);
    assert_int_equal(fread(data, 1, *length, f), *length);
    fclose(f);
    return data;
}

static inline int files_setup(void **state) {
    (void)state;
    snprintf(files_root, sizeof files_root, "/tmp/weft-test-XXXXXX");
    return mkdtemp(files_root) ? 0 : -1;
}

static inline int files_remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static inline int files_remove(const char *path) { return nftw(path, files_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static inline int files_teardown(void **state) {
    (void)state;
    return files_remove(files_root);
}

#endif
