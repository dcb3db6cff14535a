/* The system calls that saving makes, as a table, so that tests can make each of them fail, be cut short, or
 * be the last one before the process dies. Results and errno are those of the calls of the same names. */
#ifndef WEFT_CHECKPOINT_FILEOPS_H
#define WEFT_CHECKPOINT_FILEOPS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

typedef struct FileOps {
    void *ctx;
    int (*create)(void *ctx, const char *path); /* a new file, for writing; fails if the name is taken */
    int (*open)(void *ctx, const char *path);   /* an existing file, for writing */
    ssize_t (*write)(void *ctx, int fd, const void *data, size_t length, uint64_t offset);
    /* Begins to write these bytes to the disk and does not wait. Only sync makes them durable, or reports
     * that they could not be written. */
    int (*write_behind)(void *ctx, int fd, uint64_t offset, uint64_t length);
    int (*resize)(void *ctx, int fd, uint64_t length);
    int (*sync)(void *ctx, int fd);
    int (*close)(void *ctx, int fd);
    int (*mkdir)(void *ctx, const char *path);
    int (*sync_dir)(void *ctx, const char *path);
    int (*rename)(void *ctx, const char *from, const char *to);
    int (*exchange)(void *ctx, const char *a, const char *b); /* swaps two names in one step */
    int (*symlink)(void *ctx, const char *target, const char *path);
    int (*unlink)(void *ctx, int dir, const char *name, int flags); /* unlinkat: also of empty directories */
} FileOps;

extern const FileOps file_ops_system;

/* Writes all of `data` at byte `offset`, with as many system calls as needed; `path` names the file in
 * errors. */
ErrorCode fileops_write(const FileOps *ops, int fd, const char *path, const void *data, size_t length,
                        uint64_t offset, Error *err);
/* Makes a new file with this content, which is on disk when the call returns. */
ErrorCode fileops_put(const FileOps *ops, const char *path, const void *data, size_t length, Error *err);
ErrorCode fileops_create(const FileOps *ops, const char *path, int *fd, Error *err);
ErrorCode fileops_open(const FileOps *ops, const char *path, int *fd, Error *err);
ErrorCode fileops_resize(const FileOps *ops, int fd, const char *path, uint64_t length, Error *err);
/* Syncs and closes; the descriptor is closed also on failure. */
ErrorCode fileops_finish(const FileOps *ops, int fd, const char *path, Error *err);

/* Opens `name` inside directory `dir` for reading: a regular file, never through a link. *size is its
 * length. */
ErrorCode fileops_open_in(const char *dir, const char *name, int *fd, uint64_t *size, Error *err);
/* The whole content of such a file, at most `limit` bytes, plus a NUL (not counted). The caller frees
 * *data. */
ErrorCode fileops_read_in(const char *dir, const char *name, size_t limit, char **data, size_t *length,
                          Error *err);

#endif
