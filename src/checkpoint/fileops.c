/* System calls of saving, with loops around those that may do only part of the work.
 *
 * Every change that a save makes to a disk goes through the table, and nothing else does. Tests can thus make
 * each call fail, cut it short, end the process after it, or record it and replay what a power cut would
 * leave (tests/checkpoint/). Reading has no table, since it changes nothing.
 *
 *     create, open, resize, write   files of a directory that is not yet a checkpoint
 *     write_behind                  lets the disk work during a save; changes nothing else
 *     sync, close                   makes a file's content durable (fileops_finish)
 *     sync_dir                      makes its name durable
 *     rename, exchange              publishes the checkpoint under its name
 *     symlink                       `latest`, for people: weft itself does not read it
 *     unlink                        leftovers, and checkpoints that are pruned */
#include "checkpoint/fileops.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/stored_file.h"

/* Linux writes at most 2 GiB less a page in one call; half of that keeps offsets round. */
#define MAX_WRITE ((size_t)1 << 30)

/* O_EXCL: if a name is taken in a directory that was just made, somebody else writes there. */
static int system_create(void *ctx, const char *path) {
    (void)ctx;
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
}

/* Write-only: a client of a network file system that cannot have read a page sends only the bytes written to
 * it, so two clients may write to one page concurrently. */
static int system_open(void *ctx, const char *path) {
    (void)ctx;
    return open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
}

/* pwrite: ranks write into one file, each at its own offsets. */
static ssize_t system_write(void *ctx, int fd, const void *data, size_t length, uint64_t offset) {
    (void)ctx;
    return pwrite(fd, data, length, (off_t)offset);
}

/* Otherwise the kernel keeps the pages for some seconds, and the disk is idle until the sync. */
static int system_write_behind(void *ctx, int fd, uint64_t offset, uint64_t length) {
    (void)ctx;
#ifdef SYNC_FILE_RANGE_WRITE
    return sync_file_range(fd, (off_t)offset, (off_t)length, SYNC_FILE_RANGE_WRITE);
#else
    (void)fd, (void)offset, (void)length;
    return 0;
#endif
}

static int system_resize(void *ctx, int fd, uint64_t length) {
    (void)ctx;
    return ftruncate(fd, (off_t)length);
}

/* The content and the file's metadata. */
static int system_sync(void *ctx, int fd) {
    (void)ctx;
    return fsync(fd);
}

static int system_close(void *ctx, int fd) {
    (void)ctx;
    return close(fd);
}

static int system_mkdir(void *ctx, const char *path) {
    (void)ctx;
    return mkdir(path, 0777);
}

/* The caller reads errno, which close may change. */
static int system_sync_dir(void *ctx, const char *path) {
    (void)ctx;
    int fd, result;
    RETRY(fd, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return -1;
    /* File systems that cannot sync a directory return EINVAL; there is no better alternative. */
    RETRY(result, fsync(fd));
    if (result != 0 && errno == EINVAL) result = 0;
    int saved = errno;
    close(fd);
    errno = saved;
    return result;
}

static int system_rename(void *ctx, const char *from, const char *to) {
    (void)ctx;
    return rename(from, to);
}

/* If the headers lack it, checkpoint.c falls back (invariant 4). */
static int system_exchange(void *ctx, const char *a, const char *b) {
    (void)ctx;
#ifdef RENAME_EXCHANGE
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
#else
    (void)a, (void)b;
    errno = ENOSYS;
    return -1;
#endif
}

static int system_symlink(void *ctx, const char *target, const char *path) {
    (void)ctx;
    return symlink(target, path);
}

static int system_unlink(void *ctx, int dir, const char *name, int flags) {
    (void)ctx;
    return unlinkat(dir, name, flags);
}

const FileOps file_ops_system = {.create = system_create,
                                 .open = system_open,
                                 .write = system_write,
                                 .write_behind = system_write_behind,
                                 .resize = system_resize,
                                 .sync = system_sync,
                                 .close = system_close,
                                 .mkdir = system_mkdir,
                                 .sync_dir = system_sync_dir,
                                 .rename = system_rename,
                                 .exchange = system_exchange,
                                 .symlink = system_symlink,
                                 .unlink = system_unlink};

static const char *shown(const char *path, char out[512]) {
    return error_escape(out, 512, path, strlen(path));
}

/* Counts progress at each call: the watchdog sees that a slow disk still works. */
ErrorCode fileops_write(const FileOps *ops, int fd, const char *path, const void *data, size_t length,
                        uint64_t offset, Error *err) {
    const char *bytes = data;
    char name[512];
    for (size_t done = 0; done < length;) {
        size_t want = length - done < MAX_WRITE ? length - done : MAX_WRITE;
        ssize_t wrote = ops->write(ops->ctx, fd, bytes + done, want, offset + done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return error_errno(err, ERR_IO, "%s: writing failed", shown(path, name));
        /* A device that writes nothing and reports no error would loop forever. */
        if (wrote == 0)
            return error_set(err, ERR_IO, "%s: writing failed: the device takes no more bytes",
                             shown(path, name));
        done += (size_t)wrote;
        progress_beat();
    }
    return OK;
}

/* The caller finishes *fd. */
ErrorCode fileops_create(const FileOps *ops, const char *path, int *fd, Error *err) {
    char name[512];
    RETRY(*fd, ops->create(ops->ctx, path));
    return *fd >= 0 ? OK : error_errno(err, ERR_CANTCREATE, "%s: cannot create", shown(path, name));
}

/* Opens a file that rank 0 has made: a missing one is an error, it is not made here. */
ErrorCode fileops_open(const FileOps *ops, const char *path, int *fd, Error *err) {
    char name[512];
    RETRY(*fd, ops->open(ops->ctx, path));
    return *fd >= 0 ? OK : error_errno(err, ERR_CANTCREATE, "%s: cannot open for writing", shown(path, name));
}

/* Extends it by a hole, which reads as zeros until it is written. */
ErrorCode fileops_resize(const FileOps *ops, int fd, const char *path, uint64_t length, Error *err) {
    char name[512];
    int result;
    RETRY(result, ops->resize(ops->ctx, fd, length));
    if (result == 0) return OK;
    return error_errno(err, ERR_IO, "%s: cannot make it %llu bytes long", shown(path, name),
                       (unsigned long long)length);
}

/* Closes the descriptor in any case. */
ErrorCode fileops_finish(const FileOps *ops, int fd, const char *path, Error *err) {
    char name[512];
    ErrorCode code = OK;
    int result;
    /* Only an interruption may be retried: after any other failure the kernel may have dropped the dirty
     * pages. */
    RETRY(result, ops->sync(ops->ctx, fd));
    if (result != 0) code = error_errno(err, ERR_IO, "%s: cannot sync", shown(path, name));
    /* Close is not retried on EINTR: on Linux the descriptor is already closed, and the data was synced
     * above. */
    if (ops->close(ops->ctx, fd) != 0 && errno != EINTR && code == OK)
        code = error_errno(err, ERR_IO, "%s: cannot close", shown(path, name));
    return code;
}

/* After a failed write the file is closed without syncing: its directory is about to be removed. */
ErrorCode fileops_put(const FileOps *ops, const char *path, const void *data, size_t length, Error *err) {
    int fd;
    TRY(fileops_create(ops, path, &fd, err));
    ErrorCode code = fileops_write(ops, fd, path, data, length, 0, err);
    if (code == OK) return fileops_finish(ops, fd, path, err);
    ops->close(ops->ctx, fd);
    return code;
}

/* `fd` must be a regular file. Opening a directory or a pipe of that name did no harm; the caller closes
 * it. */
static ErrorCode check_regular(int fd, const char *where, uint64_t *size, Error *err) {
    struct stat info;
    char name[512];
    if (fstat(fd, &info) != 0) return error_errno(err, ERR_NOINPUT, "%s: cannot stat", shown(where, name));
    if (!S_ISREG(info.st_mode))
        return error_set(err, ERR_DATA, "%s: expected a regular file", shown(where, name));
    *size = (uint64_t)info.st_size;
    return OK;
}

/* By descriptor and without following links: between checking a path and opening it somebody could put a link
 * there. */
static ErrorCode open_below(int dir_fd, const char *where, const char *name, int *fd, Error *err) {
    char shown_where[512];
    RETRY(*fd, openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (*fd >= 0) return OK;
    if (errno == ELOOP)
        return error_set(err, ERR_DATA,
                         "%s: expected a regular file, found a link; copy the file itself into the directory",
                         shown(where, shown_where));
    return error_errno(err, ERR_NOINPUT, "%s: cannot open", shown(where, shown_where));
}

/* Sets *fd and *size on success; nothing is open after a failure. */
ErrorCode fileops_open_in(const char *dir, const char *name, int *fd, uint64_t *size, Error *err) {
    char where[1024], shown_dir[512];
    snprintf(where, sizeof where, "%s/%s", dir, name);
    int dir_fd;
    RETRY(dir_fd, open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir_fd < 0)
        return error_errno(err, ERR_NOINPUT, "%s: cannot open the directory", shown(dir, shown_dir));
    ErrorCode code = open_below(dir_fd, where, name, fd, err);
    close(dir_fd);
    if (code != OK) return code;
    code = check_regular(*fd, where, size, err);
    if (code != OK) close(*fd);
    return code;
}

/* The size comes from the descriptor, so if the file grows meanwhile, only the old part is read. */
static ErrorCode read_whole(int fd, const char *where, uint64_t size, size_t limit, char **data, Error *err) {
    char name[512];
    if (size > limit)
        return error_set(err, ERR_DATA, "%s: %llu bytes, expected at most %zu", shown(where, name),
                         (unsigned long long)size, limit);
    /* Zeroed, so that a text ends in a NUL. */
    *data = mem_alloc((size_t)size + 1);
    ErrorCode code = stored_read_at(fd, where, 0, *data, (size_t)size, err);
    if (code == OK) return OK;
    free(*data);
    *data = NULL;
    return code;
}

/* The caller owns *data on success; it is NULL after a failure. */
ErrorCode fileops_read_in(const char *dir, const char *name, size_t limit, char **data, size_t *length,
                          Error *err) {
    char where[1024];
    uint64_t size;
    int fd;
    *data = NULL;
    *length = 0;
    TRY(fileops_open_in(dir, name, &fd, &size, err));
    snprintf(where, sizeof where, "%s/%s", dir, name);
    ErrorCode code = read_whole(fd, where, size, limit, data, err);
    close(fd);
    if (code == OK) *length = (size_t)size;
    return code;
}
